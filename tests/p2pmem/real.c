/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Memory that devices publish, in a guest that has such devices (ci/suite/guest p2pmem):
 *
 *   real pairs FILE               what Strait says of each pair, beside what the kernel says: lines "PUBLISHER DISK yes|no"
 *   real closest FILE             lines "DISK... PUBLISHER": the publisher that is closest to all those disks
 *   real alloc PUBLISHER          allocation, contents, exhaustion, fragments, processes that share
 *   real direct PUBLISHER FROM TO a file goes through the memory by O_DIRECT
 *   real hold PUBLISHER BYTES     has memory until it is killed
 *   real daemon PUBLISHER         through the daemon
 *   real gone PUBLISHER           the device goes away
 */
#include "peer.h"

#include <sys/stat.h>

#define BLOCK ((size_t)256 << 10)

static unsigned char byte_of(size_t i, unsigned seed) { return (unsigned char)(seed * 37 + i * 7 + (i >> 8) * 13 + (i >> 16)); }

static void put(unsigned char *at, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		at[i] = byte_of(i, seed);
}

static size_t same(const unsigned char *at, size_t len, unsigned seed)
{
	size_t i = 0;

	while (i < len && at[i] == byte_of(i, seed))
		i++;
	return i;
}

static uint64_t checksum(const unsigned char *at, size_t len)
{
	uint64_t sum = 14695981039346656037u;

	for (size_t i = 0; i < len; i++)
		sum = (sum ^ at[i]) * 1099511628211u;
	return sum;
}

static int disk(const char *name)
{
	char path[64];
	int fd;

	snprintf(path, sizeof path, "/dev/%s", name);
	fd = open(path, O_RDWR | O_DIRECT);
	MUST(fd >= 0, "%s: %s", path, strerror(errno));
	return fd;
}

/* Whether the kernel lets this disk write from and read to that memory. */
static int passes(struct peer *peer, const char *name)
{
	int fd = disk(name), ok;

	put(peer->at, BLOCK, 9);
	ok = pwrite(fd, peer->at, BLOCK, 0) == (ssize_t)BLOCK;
	if (ok) {
		memset(peer->at, 0, BLOCK);
		MUST(pread(fd, peer->at, BLOCK, 0) == (ssize_t)BLOCK, "read: %s", strerror(errno));
		MUST(same(peer->at, BLOCK, 9) == BLOCK, "wrong at %zu", same(peer->at, BLOCK, 9));
	} else {
		MUST(errno == EREMOTEIO || errno == EINVAL || errno == EIO, "%s", strerror(errno));
	}
	close(fd);
	return ok;
}

static int pairs(const char *path)
{
	char publisher[32], name[32], says[8];
	int count = 0, yes = 0, bad = 0;
	FILE *file = fopen(path, "r");

	MUST(file, "%s", path);
	while (fscanf(file, "%31s %31s %7s", publisher, name, says) == 3) {
		struct strait_p2pmem_route route = { .size = sizeof route };
		struct peer peer;
		int kernel = !strcmp(says, "yes"), ours, io;

		peer_alloc(&peer, publisher, BLOCK);
		GIVES(strait_p2pmem_query_route(peer.p2pmem, publisher, name, &route), 0);
		ours = route.map != STRAIT_P2PMEM_MAP_NOT_SUPPORTED;
		io = passes(&peer, name);
		printf("%s %s: distance %u, map %u; kernel: %s, by transfer: %s%s\n", publisher, name, route.distance, route.map,
		       says, io ? "yes" : "no", ours == kernel && ours == io ? "" : "  DIFFERS");
		bad += ours != kernel || ours != io;
		count++, yes += ours;
		peer_free(&peer);
	}
	fclose(file);
	printf("%d pairs, %d of them with a way, %d differ\n", count, yes, bad);
	return bad || count < 20;
}

static int closest(const char *path)
{
	struct strait_p2pmem *p2pmem = peer_open(NULL);
	FILE *file = fopen(path, "r");
	char line[256];
	int count = 0;

	MUST(file, "%s", path);
	while (fgets(line, sizeof line, file)) {
		struct strait_p2pmem_request request = { .size = sizeof request, .len = 4096 };
		struct strait_p2pmem_info info = { .size = sizeof info };
		struct strait_p2pmem_buffer *buffer;
		const char *words[9];
		size_t n = 0;

		for (char *word = strtok(line, " \n"); word && n < 9; word = strtok(NULL, " \n"))
			words[n++] = word;
		MUST(n > 1, "%s", line);
		request.clients = words;
		request.client_count = n - 1;
		GIVES(strait_p2pmem_alloc(p2pmem, &request, &buffer), 0);
		GIVES(strait_p2pmem_query(buffer, &info), 0);
		MUST(!strcmp(info.publisher, words[n - 1]), "%zu clients, the first is %s: %s, not %s", n - 1, words[0],
		     info.publisher, words[n - 1]);
		GIVES(strait_p2pmem_free(buffer), 0);
		count++;
	}
	GIVES(strait_p2pmem_close(p2pmem), 0);
	fclose(file);
	printf("%d requests\n", count);
	return count < 3;
}

/* A child writes, and the parent sees it. */
static void shared_by_fork(struct peer *peer)
{
	pid_t child = fork();
	int status;

	if (!child) {
		if (same(peer->at, peer->len, 1) != peer->len)
			_exit(1);
		put(peer->at, peer->len, 2);
		_exit(0);
	}
	MUST(waitpid(child, &status, 0) == child && !status, "the child: %x", status);
	MUST(same(peer->at, peer->len, 2) == peer->len, "wrong at %zu", same(peer->at, peer->len, 2));
}

static int alloc(const char *publisher)
{
	unsigned long long before = peer_says(publisher, "available");
	struct strait_p2pmem_buffer *all[512] = { NULL }, *more;
	struct strait_p2pmem_segment segment;
	struct strait_memory memory = { .size = sizeof memory };
	struct peer peer, other;
	size_t count = 0, bytes = 0;
	uint64_t offset;
	int fd;

	peer_alloc(&peer, publisher, 1 << 20);
	MUST(peer_says(publisher, "available") == before - (1 << 20), "%llu", peer_says(publisher, "available"));
	put(peer.at, peer.len, 1);
	MUST(same(peer.at, peer.len, 1) == peer.len, "wrong at %zu", same(peer.at, peer.len, 1));
	peer_alloc(&other, publisher, 1 << 20);
	put(other.at, other.len, 5);
	MUST(same(peer.at, peer.len, 1) == peer.len, "two buffers are the same memory");
	peer_free(&other);
	GIVES(strait_query_memory(peer.at, peer.len, &memory), 0);
	MUST(memory.kind == STRAIT_MEMORY_CLIENT, "%u", memory.kind);
	GIVES(strait_p2pmem_dmabuf(peer.buffer, 0, &fd, &offset), -EOPNOTSUPP);
	shared_by_fork(&peer);
	/* No more than there is, in one piece or in many. */
	GIVES(peer_try(peer.p2pmem, before + 4096, 1, &more), -ENOMEM);
	GIVES(peer_try(peer.p2pmem, before + 4096, 16, &more), -ENOMEM);
	while (!peer_try(peer.p2pmem, 1 << 20, 1, &all[count]))
		count++;
	MUST(count >= 8 && count == (before >> 20) - 1, "%zu buffers", count);
	/* Every second one goes: what is free is in pieces. */
	for (size_t i = 0; i < count; i += 2) {
		GIVES(strait_p2pmem_free(all[i]), 0);
		all[i] = NULL;
	}
	GIVES(peer_try(peer.p2pmem, 3 << 20, 1, &more), -ENOMEM);
	GIVES(peer_try(peer.p2pmem, 3 << 20, 8, &more), 0);
	for (unsigned i = 0; !strait_p2pmem_segment_at(more, i, &segment); i++) {
		put(segment.addr, segment.len, 20 + i);
		bytes += segment.len;
		MUST(i < 8 && same(segment.addr, segment.len, 20 + i) == segment.len, "piece %u", i);
	}
	MUST(bytes == 3 << 20, "%zu bytes", bytes);
	GIVES(strait_p2pmem_free(more), 0);
	for (size_t i = 0; i < count; i++)
		GIVES(strait_p2pmem_free(all[i]), 0);
	MUST(same(peer.at, peer.len, 2) == peer.len, "another buffer has written here");
	peer_free(&peer);
	MUST(peer_says(publisher, "available") == before, "%llu of %llu", peer_says(publisher, "available"), before);
	printf("%zu MiB at most, in pieces too\n", count);
	return 0;
}

static int direct(const char *publisher, const char *from, const char *to)
{
	int in = disk(from), out = disk(to);
	unsigned char *host = aligned_alloc(4096, 16 * BLOCK);
	uint64_t sum, read_sum;
	struct peer peer;

	put(host, 16 * BLOCK, 77);
	sum = checksum(host, 16 * BLOCK);
	MUST(pwrite(in, host, 16 * BLOCK, 0) == (ssize_t)(16 * BLOCK), "write: %s", strerror(errno));
	memset(host, 0, 16 * BLOCK);
	MUST(pwrite(out, host, 16 * BLOCK, 1 << 20) == (ssize_t)(16 * BLOCK), "write: %s", strerror(errno));
	peer_alloc(&peer, publisher, BLOCK);
	for (size_t at = 0; at < 16 * BLOCK; at += BLOCK) {
		MUST(pread(in, peer.at, BLOCK, at) == (ssize_t)BLOCK, "read: %s", strerror(errno));
		MUST(pwrite(out, peer.at, BLOCK, (1 << 20) + at) == (ssize_t)BLOCK, "write: %s", strerror(errno));
	}
	MUST(pread(out, host, 16 * BLOCK, 1 << 20) == (ssize_t)(16 * BLOCK), "read: %s", strerror(errno));
	read_sum = checksum(host, 16 * BLOCK);
	MUST(read_sum == sum, "%llx, not %llx", (unsigned long long)read_sum, (unsigned long long)sum);
	printf("%zu KiB, checksum %016llx\n", 16 * BLOCK >> 10, (unsigned long long)sum);
	peer_free(&peer);
	return 0;
}

_Noreturn static void hold(const char *publisher, size_t len)
{
	struct peer peer;

	peer_alloc(&peer, publisher, len);
	memset(peer.at, 1, len);
	printf("held\n");
	fflush(stdout);
	for (;;)
		pause();
}

static int through_daemon(const char *publisher)
{
	struct strait_p2pmem_options options = { .size = sizeof options, .daemon = "" };
	unsigned long long before = peer_says(publisher, "available");
	struct strait_p2pmem_info info = { .size = sizeof info };
	struct peer peer = { .len = 1 << 20 };
	struct strait_p2pmem_buffer *more;
	const char *clients[] = { publisher };

	GIVES(strait_p2pmem_open(&options, &peer.p2pmem), 0);
	GIVES(peer_try(peer.p2pmem, peer.len, 1, &peer.buffer), 0);
	GIVES(strait_p2pmem_query(peer.buffer, &info), 0);
	MUST(!strcmp(info.publisher, publisher) && !strcmp(info.kind, "sysfs"), "%s", info.publisher);
	peer.at = peer_at(peer.buffer);
	MUST(peer_says(publisher, "available") == before - peer.len, "not taken");
	put(peer.at, peer.len, 1);
	shared_by_fork(&peer);
	/* For a further device it is the same memory, not another mapping. */
	GIVES(strait_p2pmem_share(peer.p2pmem, peer.buffer, clients, 1, &more), 0);
	MUST(peer_at(more) == peer.at && peer_says(publisher, "available") == before - peer.len, "other memory");
	GIVES(strait_p2pmem_free(peer.buffer), 0);
	peer.buffer = more;
	MUST(same(peer.at, peer.len, 2) == peer.len, "it is gone");
	peer_free(&peer);
	MUST(peer_says(publisher, "available") == before, "not given back");
	return 0;
}

static sigjmp_buf fault;
static void faulted(int sig) { siglongjmp(fault, sig); }

static int gone(const char *publisher)
{
	struct strait_p2pmem_info info = { .size = sizeof info };
	struct strait_p2pmem_buffer *more;
	volatile int got = 0;
	struct peer peer;
	int sig;

	peer_alloc(&peer, publisher, 1 << 20);
	put(peer.at, peer.len, 1);
	peer_unbind(publisher);
	signal(SIGBUS, faulted);
	if (!(sig = sigsetjmp(fault, 1)))
		peer.at[4096] = 1;
	else
		got = sig;
	MUST(got == SIGBUS, "signal %d", got);
	GIVES(strait_p2pmem_query(peer.buffer, &info), 0);
	MUST(info.revoked, "it is not said to be revoked");
	GIVES(peer_try(peer.p2pmem, 4096, 1, &more), -ENOMEM);
	peer_free(&peer);
	return 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "";

	if (!strcmp(what, "pairs"))
		return pairs(argv[2]);
	if (!strcmp(what, "closest"))
		return closest(argv[2]);
	if (!strcmp(what, "alloc"))
		return alloc(argv[2]);
	if (!strcmp(what, "direct") && argc == 5)
		return direct(argv[2], argv[3], argv[4]);
	if (!strcmp(what, "hold") && argc == 4)
		hold(argv[2], strtoul(argv[3], NULL, 0));
	if (!strcmp(what, "daemon"))
		return through_daemon(argv[2]);
	if (!strcmp(what, "gone"))
		return gone(argv[2]);
	fprintf(stderr, "usage: real pairs|closest|alloc|direct|hold|daemon|gone ...\n");
	return 2;
}

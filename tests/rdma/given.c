/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Memory of dma-bufs that a program has, registered with FI_MR_DMABUF (ci/suite/guest rdma-dmabuf): writes, reads and messages of two
 * processes from and into it, contents checked.
 *
 *   given MEMORY MEMORY [revoke|kill]
 *
 * MEMORY is heap, udmabuf or vfio:FUNCTION (BAR 2 of a device that VFIO has), of each process; or memfd, for the stand-in of libibverbs
 * (ci/suite/verbs), or client: a memfd of a client of libstrait.so, which is registered without FI_MR_DMABUF. NODE is the address of both.
 *
 * With revoke the second one has the exporter take its memory back (VFIO_DEVICE_RESET, strait_invalidate): the other one's next write fails,
 * and what the second one has sent; registered anew it is accessed. With kill the second one is killed while each writes to the other: the writes end, and
 * a third process takes its place.
 */
#include "../faults/fab.h"
#define MUST CHECK
#include "../p2pmem/dmabufs.h"

#include <dlfcn.h>
#include <sys/socket.h>

enum { LEN = 512 << 10, IN = LEN / 2, PIECE = 150000, ROUNDS = 6, BAR = 2, FLYING = 8, TAG = 7 };

struct card {
	struct name name;
	uint64_t key, addr;
};

#include "client.h"

static struct fab fab;
static struct fid_mr *mr;
static fi_addr_t peer;
static struct card card;
static unsigned char *at;
static int dmabuf, vfio_device = -1, other, keeps, is_client;

static void allocate(const char *memory)
{
	off_t from = 0;
	int mapped;

	if (!strncmp(memory, "vfio:", 5)) {
		struct {
			struct vfio_device_feature head;
			uint32_t region, open_flags, flags, ranges;
			uint64_t offset, len;
		} ask = { .head = { .argsz = sizeof ask, .flags = VFIO_DEVICE_FEATURE_GET | 11 }, .region = BAR,
			  .open_flags = O_RDWR | O_CLOEXEC, .ranges = 1, .len = LEN };
		struct vfio_region_info region = { .argsz = sizeof region, .index = BAR };

		mapped = vfio_device = of_vfio(memory + 5);
		MUST(!ioctl(vfio_device, VFIO_DEVICE_GET_REGION_INFO, &region), "VFIO_DEVICE_GET_REGION_INFO: %s", strerror(errno));
		from = (off_t)region.offset;
		dmabuf = ioctl(vfio_device, VFIO_DEVICE_FEATURE, &ask);
		MUST(dmabuf >= 0, "VFIO_DEVICE_FEATURE_DMA_BUF: %s", strerror(errno));
	} else if (!strcmp(memory, "memfd") || !strcmp(memory, "client")) {
		is_client = *memory == 'c';
		mapped = dmabuf = of_memfd(LEN);
	} else {
		mapped = dmabuf = strcmp(memory, "heap") ? of_udmabuf(LEN) : of_heap(LEN);
	}
	at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, mapped, from);
	MUST(at != MAP_FAILED, "mmap of %s: %s", memory, strerror(errno));
	if (is_client)
		own_register(at, dmabuf);
}

/* No device pins the mapping by its address, as those of the other exporters: what is accessed is so by the descriptor. */
static void have_no_pages(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_LAZY | RTLD_NOLOAD);
	void (*no_pages)(uint64_t, uint64_t) = NULL;

	if (lib)
		*(void **)&no_pages = dlsym(lib, "stand_in_verbs_no_pages");
	MUST(no_pages, "a memfd is for the stand-in of libibverbs: %s", dlerror());
	no_pages((uintptr_t)at, LEN);
}

/* All but its first bytes, from inside of a page on. */
static void register_memory(void)
{
	const size_t skip = 4096 + 64;
	struct fi_mr_dmabuf of = { .fd = dmabuf, .offset = skip, .len = LEN - skip, .base_addr = at };
	struct fi_mr_attr attr = { .dmabuf = &of, .iov_count = 1, .requested_key = 5,
				   .access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE };
	struct iovec iov = { .iov_base = at + skip, .iov_len = LEN - skip };

	if (is_client)
		attr.mr_iov = &iov;
	OK(fi_mr_regattr(fab.domain, &attr, is_client ? 0 : FI_MR_DMABUF, &mr));
	card.key = fi_mr_key(mr);
	card.addr = (uintptr_t)at;
}

/* Both have come here; meanwhile this one makes progress. */
static void meet(void)
{
	char c = 'm';
	ssize_t n;

	MUST(write(other, &c, 1) == 1, "the other process has gone");
	while ((n = recv(other, &c, 1, MSG_DONTWAIT)) < 0) {
		MUST(errno == EAGAIN, "recv: %s", strerror(errno));
		if (!fab_poll(&fab))
			sched_yield();
	}
	MUST(n == 1, "the other process has gone");
}

static void trade_cards(void)
{
	struct card mine = card;

	MUST(write(other, &mine, sizeof mine) == sizeof mine, "write: %s", strerror(errno));
	MUST(recv(other, &card, sizeof card, MSG_WAITALL) == sizeof card, "the other process has gone");
}

static void holds(size_t from, unsigned seed, const char *what)
{
	size_t same = differs(at + from, PIECE, seed);

	MUST(same == PIECE, "%s: wrong at %zu", what, same);
}

static long put(struct op *op, size_t from, size_t to, size_t len)
{
	POST(&fab, op, fi_write(fab.ep, at + from, len, fi_mr_desc(mr), peer, card.addr + to, card.key, op));
	return op->err;
}

static void put_and_wait(size_t from, size_t to, size_t len)
{
	struct op op;

	put(&op, from, to, len);
	await(&fab, &op, "fi_write");
}

static void get(size_t into, size_t from, size_t len)
{
	struct op op;

	POST(&fab, &op, fi_read(fab.ep, at + into, len, fi_mr_desc(mr), peer, card.addr + from, card.key, &op));
	await(&fab, &op, "fi_read");
}

static void message(int sends, size_t where)
{
	struct op op;

	if (sends)
		POST(&fab, &op, fi_tsend(fab.ep, at + where, PIECE, fi_mr_desc(mr), peer, TAG, &op));
	else
		POST(&fab, &op, fi_trecv(fab.ep, at + where, PIECE, fi_mr_desc(mr), peer, TAG, 0, &op));
	await(&fab, &op, "a message");
}

/* The keys, and what they need, are there once some accesses were made. `acts`: this process makes them. */
static void warm(int acts)
{
	for (int i = 0; acts && i < 20; i++)
		get(8192, IN, 8);
	meet();
	message(acts, acts ? 8192 : IN);
	meet();
	for (int i = 0; acts && i < 20; i++)
		get(8192, IN, 8);
	meet();
}

static void traffic(int acts)
{
	for (unsigned round = 0; round < ROUNDS; round++) {
		size_t shift = 8192 + 13 * round;

		if (acts) {
			fill(at + shift, PIECE, round);
			put_and_wait(shift, IN + shift, PIECE);
			memset(at + IN, 0, IN);
			get(IN + shift, IN + shift, PIECE);
			holds(IN + shift, round, "what was read back");
		}
		meet();
		if (!acts) {
			holds(IN + shift, round, "what was written here");
			memset(at + IN, 0, IN);
		}
		meet();
		message(acts, acts ? shift : IN + shift);
		if (!acts)
			holds(IN + shift, round, "what was sent here");
		meet();
	}
}

static void taken_back(int role)
{
	static unsigned char bytes[PIECE];
	struct op op;

	if (role == 1) {
		/* Without a receive it is under way until the other one's end. */
		POST(&fab, &op, fi_tsend(fab.ep, bytes, PIECE, NULL, peer, TAG + 1, &op));
		if (is_client)
			own_take_back();
		else
			MUST(!ioctl(vfio_device, VFIO_DEVICE_RESET), "VFIO_DEVICE_RESET: %s", strerror(errno));
	}
	meet();
	if (role == 0)
		put(&op, 8192, IN, PIECE);
	for (uint64_t start = now_ns(); op.state == PENDING; fab_poll(&fab))
		MUST(now_ns() - start < 20000000000u, "no end of what was under way");
	printf("    taken back: process %d has %s\n", role, fi_strerror(op.err));
	MUST(op.state == FAILED, "it was done");
	meet();
	OK(fi_close(&mr->fid));
	meet();
	card.name = fab.name;
	register_memory();
	trade_cards();
	warm(role == 0);
	traffic(role == 0);
	traffic(role == 1);
}

/* Writes without an end: in process 0 until one has failed, since the other one was killed. */
static void killed(int role, pid_t victim)
{
	static struct op ops[FLYING];
	uint64_t start = now_ns(), end = 0;
	unsigned done = 0, pending = 1, failed = 0;

	meet();
	while (role == 1 || !failed || pending) {
		pending = 0;
		for (unsigned i = 0; i < FLYING; i++) {
			struct op *op = &ops[i];

			done += op->state == DONE;
			failed += op->state == FAILED;
			if (op->state == PENDING)
				pending++;
			else if (role == 1 || !failed)
				put(op, 8192, IN, PIECE);
			else
				op->state = FREE;
		}
		fab_poll(&fab);
		if (role == 0 && !end && done > 4 * FLYING) {
			kill(victim, SIGKILL);
			end = now_ns();
		}
		MUST(now_ns() - (end ? end : start) < 40000000000u, "%u writes do not end", pending);
	}
	printf("    the other process was killed: %u writes were done, %u failed\n", done, failed);
}

static void begin_with(const char *memory, int end, int role)
{
	other = end;
	if (!at) {
		allocate(memory);
		fab_open(&fab, (struct fab_options){ .cq_size = 128, .tx_size = 64 });
		if (!strcmp(memory, "memfd") || is_client)
			have_no_pages();
		register_memory();
		/* The registration has its own. */
		if (!keeps && !is_client)
			close(dmabuf);
	} else {
		card = (struct card){ .key = fi_mr_key(mr), .addr = (uintptr_t)at };
	}
	card.name = fab.name;
	trade_cards();
	peer = fab_insert(&fab, &card.name);
	warm(role == 0);
	warm(role == 1);
	traffic(role == 0);
	traffic(role == 1);
}

int main(int argc, char **argv)
{
	const char *how = argc == 4 ? argv[3] : "";
	int ends[2][2], status;
	pid_t pids[2];

	CHECK(argc == 3 || !strcmp(how, "revoke") || !strcmp(how, "kill"), "usage: see the head of given.c");
	setvbuf(stdout, NULL, _IOLBF, 0);
	keeps = !strcmp(how, "revoke");
	/* The second and the third process, before anything is open. */
	for (int i = 0; i < 2; i++) {
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends[i]), "socketpair: %s", strerror(errno));
		CHECK((pids[i] = fork()) >= 0, "fork: %s", strerror(errno));
		if (pids[i]) {
			close(ends[i][1]);
			continue;
		}
		char c;

		fab_role = i ? "third" : "second";
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int j = 0; j <= i; j++)
			close(ends[j][0]);
		/* The third one is needed once the second one is gone. */
		if (recv(ends[i][1], &c, 1, 0) != 1)
			return 0;
		begin_with(argv[2], ends[i][1], 1);
		if (!i && !strcmp(how, "revoke"))
			taken_back(1);
		if (!i && !strcmp(how, "kill"))
			killed(1, 0);
		OK(fi_close(&mr->fid));
		fab_close(&fab);
		return 0;
	}
	CHECK(write(ends[0][0], "g", 1) == 1, "write: %s", strerror(errno));
	begin_with(argv[1], ends[0][0], 0);
	if (!strcmp(how, "revoke"))
		taken_back(0);
	if (!strcmp(how, "kill")) {
		killed(0, pids[0]);
		waitpid(pids[0], &status, 0);
		CHECK(WIFSIGNALED(status), "the second process has ended by itself: %d", status);
		CHECK(write(ends[1][0], "g", 1) == 1, "write: %s", strerror(errno));
		begin_with(argv[1], ends[1][0], 0);
	}
	OK(fi_close(&mr->fid));
	fab_close(&fab);
	close(ends[1][0]);
	for (int i = !strcmp(how, "kill"); i < 2; i++) {
		CHECK(waitpid(pids[i], &status, 0) == pids[i] && !status, "process %d: status %#x", i + 1, status);
	}
	printf("writes, reads and messages of two processes from and into %s and %s, contents checked\n", argv[1], argv[2]);
	return 0;
}

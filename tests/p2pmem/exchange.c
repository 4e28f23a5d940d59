/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Two processes with memory of devices' under libfabric (ci/suite/guest p2pmem):
 *
 *   exchange PUBLISHER PUBLISHER           messages, RMA and atomics in and out of it
 *   exchange PUBLISHER PUBLISHER gone      the first one's device goes away: its operations end with errors
 *   exchange far PUBLISHER ROLE ADDRESS    one process of two, on hosts of their own: ROLE 0 has the ADDRESS, ROLE 1 calls it
 */
#include "fab.h"
#include "peer.h"

#include <stdatomic.h>
#include <sys/socket.h>

/* Of the network that the two hosts have for themselves. */
#define PORT 7000

#define MOST ((size_t)1 << 20)
#define SIZE ((size_t)3 << 20)

static struct shared {
	struct name names[2];
	_Atomic int step[2];
	uint64_t key, addr;
} *shared;
static int me;
static struct fab fab;
static fi_addr_t peer_ep;
static struct peer peer;
static unsigned char *host;
/* The other process is on another host, behind this socket. */
static int far = -1;
/* It is to know this one's key. */
static int exports;

struct card {
	uint64_t exports, key, addr;
};

static void hear(void *to, size_t len)
{
	uint64_t begin = now_ns();

	for (size_t got = 0; got < len;) {
		ssize_t n = recv(far, (char *)to + got, len - got, MSG_DONTWAIT);

		CHECK(n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR)), "the other one has gone: %s", strerror(errno));
		got += n > 0 ? (size_t)n : 0;
		if (n < 0 && fab.ep && !fab_poll(&fab))
			sched_yield();
		CHECK(now_ns() - begin < 100000000000u, "the other one does not come");
	}
}

static void say(const void *from, size_t len)
{
	CHECK(send(far, from, len, MSG_NOSIGNAL) == (ssize_t)len, "send: %s", strerror(errno));
}

static void meet_far(void)
{
	struct card own = { (uint64_t)exports, shared->key, shared->addr }, theirs;

	say(&own, sizeof own);
	hear(&theirs, sizeof theirs);
	if (theirs.exports) {
		shared->key = theirs.key;
		shared->addr = theirs.addr;
	}
}

static void meet(void)
{
	uint64_t begin = now_ns();
	int n;

	if (far >= 0) {
		meet_far();
		return;
	}
	n = ++shared->step[me];

	while (shared->step[!me] < n) {
		fab_poll(&fab);
		sched_yield();
		CHECK(now_ns() - begin < 100000000000u, "the other one does not come");
	}
}

/* Waits for the end of an operation, whatever it is. */
static int ended(struct op *op, const char *what)
{
	uint64_t begin = now_ns();

	while (op->state == PENDING) {
		if (!fab_poll(&fab))
			sched_yield();
		CHECK(now_ns() - begin < 60000000000u, "%s: nothing for 60 s", what);
	}
	return op->state == DONE;
}

/* One message; on each side from or to the device's memory or the host's. */
static void message(size_t off, size_t len, int dev_from, int dev_to, unsigned seed)
{
	struct op op = {0};

	if (me == 0) {
		unsigned char *from = (dev_from ? peer.at : host) + off;
		fill(from, len, seed);
		POST(&fab, &op, fi_tsend(fab.ep, from, len, NULL, peer_ep, seed, &op));
		CHECK(ended(&op, "send"), "send of %zu: %s", len, fi_strerror(op.err));
	} else {
		unsigned char *to = (dev_to ? peer.at : host) + off;
		memset(to, 0x5a, len + 16);
		POST(&fab, &op, fi_trecv(fab.ep, to + 3, len, NULL, peer_ep, seed, 0, &op));
		CHECK(ended(&op, "receive"), "receive of %zu: %s", len, fi_strerror(op.err));
		CHECK(op.len == len && differs(to + 3, len, seed) == len, "%zu bytes, %d to %d: wrong at %zu", len, dev_from,
		      dev_to, differs(to + 3, len, seed));
		for (int i = 0; i < 3; i++)
			CHECK(to[i] == 0x5a && to[3 + len + i] == 0x5a, "written beside");
	}
}

static void messages(void)
{
	static const size_t lens[] = {1, 64, 4096, 16385, 65537, MOST};
	unsigned seed = 1;

	for (size_t i = 0; i < sizeof lens / sizeof *lens; i++)
		for (int way = 1; way < 4; way++, seed++)
			message(i * 5 + 1, lens[i], way & 1, way >> 1, seed);
	meet();
}

static struct fid_mr *registered(void)
{
	struct fid_mr *mr;

	OK(fi_mr_reg(fab.domain, peer.at, MOST, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
	shared->key = fi_mr_key(mr);
	shared->addr = (uintptr_t)peer.at;
	exports = 1;
	return mr;
}

static void one_sided(int target)
{
	struct fid_mr *mr = NULL;
	uint64_t one = 1, old = 0;
	struct op op = {0};

	if (me == target) {
		mr = registered();
		memset(peer.at, 0, 4096);
	}
	meet();
	if (me != target) {
		for (size_t len = 1; len < MOST / 2; len = len * 13 + 1) {
			fill(peer.at, len, 5);
			POST(&fab, &op, fi_write(fab.ep, peer.at, len, NULL, peer_ep, shared->addr + 8, shared->key, &op));
			CHECK(ended(&op, "write"), "write of %zu: %s", len, fi_strerror(op.err));
			memset(peer.at + MOST, 0, len);
			POST(&fab, &op, fi_read(fab.ep, peer.at + MOST, len, NULL, peer_ep, shared->addr + 8, shared->key, &op));
			CHECK(ended(&op, "read"), "read of %zu: %s", len, fi_strerror(op.err));
			CHECK(differs(peer.at + MOST, len, 5) == len, "read: %zu bytes", len);
			POST(&fab, &op, fi_read(fab.ep, host, len, NULL, peer_ep, shared->addr + 8, shared->key, &op));
			CHECK(ended(&op, "read"), "read of %zu to the host: %s", len, fi_strerror(op.err));
			CHECK(differs(host, len, 5) == len, "read to the host: %zu bytes", len);
		}
		for (uint64_t i = 0; i < 5; i++) {
			POST(&fab, &op, fi_fetch_atomic(fab.ep, &one, 1, NULL, &old, NULL, peer_ep, shared->addr, shared->key,
							FI_UINT64, FI_SUM, &op));
			CHECK(ended(&op, "atomic"), "atomic: %s", fi_strerror(op.err));
			CHECK(old == i, "an atomic fetched %lu, not %lu", (unsigned long)old, (unsigned long)i);
		}
	}
	meet();
	if (me == target) {
		CHECK(*(volatile uint64_t *)peer.at == 5, "%lu", (unsigned long)*(volatile uint64_t *)peer.at);
		OK(fi_close(&mr->fid));
		exports = 0;
	}
	meet();
}

/* Process 0 has lost its device. Each operation with that memory fails at the process that waits for it. */
static void gone(const char *publisher)
{
	static const size_t lens[] = {8, 5000, 300000};
	static struct op waiting[3];
	struct fid_mr *mr = me == 0 ? registered() : NULL;

	meet();
	if (me == 0)
		peer_unbind(publisher);
	meet();
	for (size_t i = 0; i < 3; i++) {
		struct op op = {0}, lost = {0};
		size_t len = lens[i];

		/* Sent from it. */
		if (me == 0) {
			POST(&fab, &op, fi_tsend(fab.ep, peer.at, len, NULL, peer_ep, 500 + i, &op));
			CHECK(!ended(&op, "a send of lost memory"), "a send of %zu lost bytes went well", len);
		} else {
			/* It may get an error from the other side, or nothing. */
			POST(&fab, &waiting[i], fi_trecv(fab.ep, host, len, NULL, peer_ep, 500 + i, 0, &waiting[i]));
		}
		meet();
		/* Received into it. */
		if (me == 0) {
			POST(&fab, &op, fi_trecv(fab.ep, peer.at, len, NULL, peer_ep, 600 + i, 0, &op));
			CHECK(!ended(&op, "a receive"), "a receive of %zu bytes into lost memory went well", len);
		} else {
			POST(&fab, &lost, fi_tsend(fab.ep, peer.at, len, NULL, peer_ep, 600 + i, &lost));
			ended(&lost, "a send to lost memory");
		}
		meet();
		/* Read and written by the other process. A small write is complete when it is on its way. */
		if (me == 1) {
			POST(&fab, &op, fi_read(fab.ep, host, len, NULL, peer_ep, shared->addr, shared->key, &op));
			CHECK(!ended(&op, "a read"), "a read of %zu lost bytes went well", len);
			POST(&fab, &op, fi_write(fab.ep, host, len, NULL, peer_ep, shared->addr, shared->key, &op));
			CHECK(!ended(&op, "a write") || len < 5000, "a write of %zu bytes to lost memory went well", len);
		}
		meet();
	}
	/* All else goes on. */
	message(0, 100000, 0, 0, 700);
	meet();
	message(0, 100000, 0, 1, 701);
	meet();
	if (mr)
		OK(fi_close(&mr->fid));
}

static void run(char **argv)
{
	struct fab_options o = {.threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL};

	host = malloc(SIZE);
	peer_alloc(&peer, argv[1 + me], SIZE);
	fab_open(&fab, o);
	shared->names[me] = fab.name;
	atomic_fetch_add(&shared->step[me], 1);
	while (shared->step[!me] < 1)
		sched_yield();
	peer_ep = fab_insert(&fab, &shared->names[!me]);
	message(0, 100, 0, 0, 200);
	meet();
	if (argv[3]) {
		gone(argv[1]);
	} else {
		messages();
		one_sided(0);
		one_sided(1);
	}
	meet();
	fab_close(&fab);
	peer_free(&peer);
	exit(0);
}

/* One of two processes, on hosts of their own. */
static int run_far(char **argv)
{
	struct fab_options o = {.threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL};
	struct name other;

	me = atoi(argv[3]);
	fab_role = me ? "one" : "zero";
	shared = shared_memory(sizeof *shared);
	host = malloc(SIZE);
	peer_alloc(&peer, argv[2], SIZE);
	far = peer_connect(me, argv[4], PORT);
	fab_open(&fab, o);
	say(&fab.name, sizeof fab.name);
	hear(&other, sizeof other);
	peer_ep = fab_insert(&fab, &other);
	message(0, 100, 0, 0, 200);
	meet();
	messages();
	one_sided(0);
	one_sided(1);
	meet();
	fab_close(&fab);
	peer_free(&peer);
	printf("far: ok\n");
	return 0;
}

int main(int argc, char **argv)
{
	int status, bad = 0;
	pid_t pids[2];

	if (argc == 5 && !strcmp(argv[1], "far"))
		return run_far(argv);

	if (argc != 3 && (argc != 4 || strcmp(argv[3], "gone"))) {
		fprintf(stderr, "usage: exchange PUBLISHER PUBLISHER [gone], or exchange far PUBLISHER ROLE ADDRESS\n");
		return 2;
	}
	shared = shared_memory(sizeof *shared);
	for (me = 0; me < 2; me++)
		if (!(pids[me] = fork())) {
			fab_role = me ? "one" : "zero";
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			run(argv);
		}
	while (wait(&status) > 0)
		if (status && !bad++) {
			fprintf(stderr, "a process ended with %x\n", status);
			for (me = 0; me < 2; me++)
				kill(pids[me], SIGTERM);
		}
	return bad != 0;
}

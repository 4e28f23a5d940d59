/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A program's own memory kind under libfabric: two processes, each with a client of libstrait.so whose
 * memory no CPU and no other process reaches by its address.
 *
 *   client fd|copy|cpu     how the client says where its memory is: a file others may map, only its own
 *                          copies, or an address of this process
 */
#include "client_device.h"

/* What the two processes write for each other. */
static struct shared {
	struct name names[2];
	_Atomic int step[2];
	uint64_t key, addr;
} *shared;
static int me;
static struct fab fab;
static fi_addr_t peer;

/* Both have come here; progress is made meanwhile. */
static void meet(void)
{
	uint64_t begin = now_ns();
	int n = ++shared->step[me];

	while (shared->step[!me] < n) {
		fab_poll(&fab);
		sched_yield();
		CHECK(now_ns() - begin < 60000000000u, "the other one does not come");
	}
}

static unsigned char *host;

/* One message of `len` bytes; on each side from or to the device or the host. */
static void message(size_t off, size_t len, int dev_from, int dev_to, unsigned seed)
{
	struct op op = {0};

	if (me == 0) {
		unsigned char *from = dev_from ? dev.at : host;
		fill((dev_from ? dev.alias : host) + off, len, seed);
		POST(&fab, &op, fi_tsend(fab.ep, from + off, len, NULL, peer, seed, &op));
	} else {
		unsigned char *to = dev_to ? dev.at : host, *see = dev_to ? dev.alias : host;
		memset(see + off, 0x5a, len + 16);
		POST(&fab, &op, fi_trecv(fab.ep, to + off + 3, len, NULL, peer, seed, 0, &op));
		await(&fab, &op, "receive");
		CHECK(op.len == len && differs(see + off + 3, len, seed) == len, "%zu bytes, %d to %d: wrong at %zu",
		      len, dev_from, dev_to, differs(see + off + 3, len, seed));
		for (int i = 0; i < 3; i++)
			CHECK(see[off + i] == 0x5a && see[off + 3 + len + i] == 0x5a, "written beside");
		return;
	}
	await(&fab, &op, "send");
}

static void messages(void)
{
	static const size_t lens[] = {1, 64, 4096, 16385, 65537, 1 << 20, MOST};
	unsigned seed = 1;

	for (size_t i = 0; i < sizeof lens / sizeof *lens; i++)
		for (int way = 1; way < 4; way++, seed++)
			message(i * 5 + 1, lens[i], way & 1, way >> 1, seed);
	/* Many at once, in one direction and the other. */
	for (int turn = 0; turn < 2; turn++) {
		struct op ops[16] = {0};
		for (int i = 0; i < 16; i++) {
			size_t off = (size_t)i * 300000;
			if (me == turn) {
				fill(dev.alias + off, 250001, i);
				POST(&fab, &ops[i], fi_tsend(fab.ep, dev.at + off, 250001, NULL, peer, i, &ops[i]));
			} else {
				POST(&fab, &ops[i], fi_trecv(fab.ep, dev.at + off, 250001, NULL, peer, i, 0, &ops[i]));
			}
		}
		for (int i = 0; i < 16; i++) {
			size_t off = (size_t)i * 300000;
			await(&fab, &ops[i], "one of many");
			if (me != turn)
				CHECK(differs(dev.alias + off, 250001, i) == 250001, "one of many is wrong");
		}
		meet();
	}
}

static struct fid_mr *register_mr(size_t off, size_t len)
{
	struct fid_mr *mr;

	OK(fi_mr_reg(fab.domain, dev.at + off, len, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
	return mr;
}

static int path_of(struct fid_mr *mr)
{
	struct fi_strait_ops_hmem *ops;
	struct fi_strait_path path = {.size = sizeof path};

	OK(fi_open_ops(&fab.domain->fid, FI_STRAIT_HMEM_OPS, 0, (void **)&ops, NULL));
	OK(ops->mr_query_path(mr, &path));
	return (int)path.path;
}

/* RMA and atomics into registered memory; then the memory goes, and the registration stays. */
static void one_sided(void)
{
	struct fid_mr *mr = NULL;
	uint64_t one = 1, old = 0;
	struct op op = {0};

	if (me == 1) {
		mr = register_mr(4096, 1 << 20);
		CHECK((path_of(mr) == FI_STRAIT_PATH_PEER_MAP) == (dev.way == WAY_FD), "its path: %d", path_of(mr));
		shared->key = fi_mr_key(mr);
		shared->addr = (uintptr_t)dev.at + 4096;
		memset(dev.alias + 4096, 0, 1 << 20);
	}
	meet();
	if (me == 0) {
		for (size_t len = 1; len < 1 << 20; len = len * 7 + 1) {
			fill(dev.alias, len, 5);
			POST(&fab, &op, fi_write(fab.ep, dev.at, len, NULL, peer, shared->addr + 8, shared->key, &op));
			await(&fab, &op, "write");
			memset(dev.alias + MOST, 0, len);
			POST(&fab, &op, fi_read(fab.ep, dev.at + MOST, len, NULL, peer, shared->addr + 8, shared->key, &op));
			await(&fab, &op, "read to the device");
			CHECK(differs(dev.alias + MOST, len, 5) == len, "read: %zu bytes", len);
			POST(&fab, &op, fi_read(fab.ep, host, len, NULL, peer, shared->addr + 8, shared->key, &op));
			await(&fab, &op, "read to the host");
			CHECK(differs(host, len, 5) == len, "read to the host: %zu bytes", len);
		}
		for (int i = 0; i < 3; i++) {
			POST(&fab, &op, fi_fetch_atomic(fab.ep, &one, 1, NULL, &old, NULL, peer, shared->addr, shared->key,
							FI_UINT64, FI_SUM, &op));
			await(&fab, &op, "atomic");
			CHECK(old == (uint64_t)i, "an atomic fetched %lu", (unsigned long)old);
		}
	}
	meet();
	if (me == 1) {
		CHECK(differs(dev.alias + 4096 + 8, 1000, 5) == 1000, "what was written");
		CHECK(invalidate_all() > 0, "nothing was pinned");
		/* Something else comes to the same place. */
		fill(dev.alias + 4096, 4096, 77);
	}
	meet();
	if (me == 0) {
		size_t lens[] = {8, 4096, 500000};
		for (int i = 0; i < 6; i++) {
			size_t len = lens[i / 2];
			if (i & 1)
				POST(&fab, &op, fi_read(fab.ep, host, len, NULL, peer, shared->addr, shared->key, &op));
			else
				POST(&fab, &op, fi_write(fab.ep, host, len, NULL, peer, shared->addr, shared->key, &op));
			uint64_t begin = now_ns();
			/* A small write is done when it is on its way; only its target hears of it. */
			while (op.state == PENDING) {
				fab_poll(&fab);
				CHECK(now_ns() - begin < 20000000000u, "nothing comes of it");
			}
			CHECK(op.state == FAILED || (len == 8 && !(i & 1)), "%s of %zu invalidated bytes went well",
			      i & 1 ? "a read" : "a write", len);
		}
	}
	meet();
	if (me == 1) {
		CHECK(differs(dev.alias + 4096, 4096, 77) == 4096, "the new memory was written to");
		CHECK(fi_mr_reg(fab.domain, dev.at + 4096, 4096, FI_REMOTE_READ, 0, 1, 0, &(struct fid_mr *){NULL}, NULL) ==
			      -ESTALE, "registered beside a stale one");
		OK(fi_close(&mr->fid));
		mr = register_mr(4096, 1 << 20);
		OK(fi_close(&mr->fid));
	}
	meet();
}

/* The client refuses: each operation says so, and nothing else suffers. */
static void refusals(void)
{
	static const int codes[] = {-EACCES, -ENOMEM};
	struct fid_mr *mr;

	for (int i = 0; i < 2; i++) {
		struct op op = {0};
		invalidate_all();
		meet();
		*(i ? &dev.refuse_pages : &dev.refuse_acquire) = codes[i];
		CHECK(fi_mr_reg(fab.domain, dev.at, 4096, FI_SEND, 0, 9, 0, &mr, NULL) == codes[i], "fi_mr_reg");
		/* Its own side fails; what the other one has posted is served by a good message. */
		if (me == 0) {
			for (size_t len = 8; len < 1 << 20; len *= 100) {
				POST(&fab, &op, fi_tsend(fab.ep, dev.at, len, NULL, peer, 50, &op));
				uint64_t begin = now_ns();
				while (op.state == PENDING) {
					fab_poll(&fab);
					CHECK(now_ns() - begin < 20000000000u, "a send of %zu hangs", len);
				}
				CHECK(op.state == FAILED, "a send of %zu bytes of refused memory went well", len);
			}
		} else {
			/* What it posted may get an error from the other side, or nothing. */
			for (int n = 0; n < 3; n++) {
				struct op *lost = calloc(1, sizeof *lost);
				POST(&fab, lost, fi_trecv(fab.ep, host, MOST, NULL, peer, 50, 0, lost));
			}
		}
		meet();
		/* The receiver's memory is refused: it hears of it, and the sender goes on. */
		if (me == 0) {
			fill(host, 100000, 3);
			POST(&fab, &op, fi_tsend(fab.ep, host, 100000, NULL, peer, 60, &op));
			uint64_t begin = now_ns();
			while (op.state == PENDING) {
				fab_poll(&fab);
				CHECK(now_ns() - begin < 20000000000u, "a send to refused memory hangs");
			}
		} else {
			POST(&fab, &op, fi_trecv(fab.ep, dev.at, 100000, NULL, peer, 60, 0, &op));
			uint64_t begin = now_ns();
			while (op.state == PENDING) {
				fab_poll(&fab);
				CHECK(now_ns() - begin < 20000000000u, "a receive into refused memory hangs");
			}
			CHECK(op.state == FAILED, "a receive into refused memory went well");
		}
		meet();
		dev.refuse_acquire = dev.refuse_pages = 0;
		message(7, 70000, 1, 1, 90 + i);
		meet();
	}
}

static void run(enum way way)
{
	struct fab_options o = {.threading = FI_THREAD_SAFE, .progress = FI_PROGRESS_MANUAL};

	device_make(way);
	host = malloc(MOST + 4096);
	/* One has the library before the provider, the other when that is in use already. */
	if (me == 1)
		device_register();
	fab_open(&fab, o);
	shared->names[me] = fab.name;
	atomic_fetch_add(&shared->step[me], 1);
	while (shared->step[!me] < 1)
		sched_yield();
	peer = fab_insert(&fab, &shared->names[!me]);
	message(0, 100, 0, 0, 200);
	meet();
	if (me == 0)
		device_register();
	messages();
	one_sided();
	refusals();
	meet();
	OK(unreg_client(dev.client));
	CHECK(dev.acquired == dev.released && dev.acquired > 5 && dev.pinned > 2, "acquired %d times, released %d",
	      dev.acquired, dev.released);
	for (size_t i = 0; i < REGS; i++)
		CHECK(dev.regs[i].state == NONE, "a registration is left");
	CHECK((dev.copies > 0) == (way == WAY_COPY), "%d copies by the client", dev.copies);
	/* Host memory goes on. */
	message(0, 100000, 0, 0, 210);
	meet();
	if (me == 0)
		printf("client: %d registrations, ok\n", dev.acquired);
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	const char *ways[] = {"fd", "copy", "cpu"};
	int way = 0, status, bad = 0;
	pid_t pids[2];

	while (argc != 2 || way == 3 || strcmp(argv[1], ways[way]))
		if (argc != 2 || ++way == 3) {
			fprintf(stderr, "usage: client fd|copy|cpu\n");
			return 2;
		}
	shared = shared_memory(sizeof *shared);
	for (me = 0; me < 2; me++)
		if (!(pids[me] = fork())) {
			fab_role = me ? "one" : "zero";
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			run(way);
		}
	while (wait(&status) > 0)
		if (status && !bad++)
			for (me = 0; me < 2; me++)
				kill(pids[me], SIGTERM);
	return bad != 0;
}

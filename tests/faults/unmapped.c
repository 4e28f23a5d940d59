/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A peer's RMA and atomics on memory that its target has registered but that is not mapped there: never was
 * ((NULL, SIZE_MAX)), was unmapped after the registration, may only be read, or is of a file that was cut short.
 * Each is an error to the initiator; the target lives, and serves the next good one.
 *
 *   unmapped frames|any [auto]
 *
 * frames: the error has to be FI_EFAULT; any: FI_EIO, too, where the kernel copies from process to process.
 * auto: the target makes no call, its progress thread serves.
 */
#include "fab.h"

#define LEN (256u << 10)
#define HALF (LEN / 2)

enum { WHOLE, GONE, READ_ONLY, CUT, GOOD, REGIONS };
static const char *const names[] = {"never mapped", "unmapped", "read-only", "cut short", "good"};

static struct shared {
	struct name name;
	uint64_t key[REGIONS], at[REGIONS];
	volatile int ready, spoil, spoilt, done;
} *sh;

static struct fab me;
static fi_addr_t peer;
static int only_frames, checks, unasked;

static void *mapped(int fd)
{
	int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	void *at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, flags, fd, 0);

	CHECK(at != MAP_FAILED, "mmap: %s", strerror(errno));
	memset(at, 1, LEN);
	return at;
}

static void target(int automatic)
{
	struct fab_options o = {.progress = automatic ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL};
	uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE;
	void *at[REGIONS] = {NULL};
	struct fid_mr *mr[REGIONS];
	int fd = memfd_create("cut", MFD_CLOEXEC), spoilt = 0;

	fab_role = "target";
	fab_open(&me, o);
	CHECK(fd >= 0 && !ftruncate(fd, LEN), "memfd: %s", strerror(errno));
	for (int i = 0; i < REGIONS; i++) {
		at[i] = i == WHOLE ? NULL : mapped(i == CUT ? fd : -1);
		OK(fi_mr_reg(me.domain, at[i], i == WHOLE ? SIZE_MAX : LEN, access, 0, (uint64_t)i, 0, &mr[i], NULL));
		sh->key[i] = fi_mr_key(mr[i]);
		sh->at[i] = (uintptr_t)at[i];
	}
	/* An address of its own that nothing is at, before anything is unmapped that could be mapped again. */
	sh->at[WHOLE] = (uintptr_t)mmap(NULL, LEN, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sh->name = me.name;
	sh->ready = 1;
	while (!sh->done) {
		if (!automatic)
			fab_poll(&me);
		if (sh->spoil && !spoilt) {
			OK(munmap(at[GONE], LEN));
			OK(mprotect(at[READ_ONLY], LEN, PROT_READ));
			OK(ftruncate(fd, 0));
			spoilt = sh->spoilt = 1;
		}
		sched_yield();
	}
	for (int i = 0; i < REGIONS; i++)
		OK(fi_close(&mr[i]->fid));
	fab_close(&me);
	close(fd);
	exit(0);
}

/* Takes in what there is: an error without a context is that of a write that asked for no answer. */
static void take(void)
{
	struct fi_cq_tagged_entry e;
	struct fi_cq_err_entry err = {0};
	ssize_t n = fi_cq_read(me.cq, &e, 1);
	struct op *op;

	if (n == -FI_EAGAIN) {
		sched_yield();
		return;
	}
	if (n == 1) {
		op = e.op_context;
		CHECK(op->state == PENDING, "a completion for no operation");
		op->state = DONE;
		return;
	}
	CHECK(n == -FI_EAVAIL && fi_cq_readerr(me.cq, &err, 0) == 1, "fi_cq_read: %zd", n);
	op = err.op_context;
	if (op) {
		CHECK(op->state == PENDING, "an error for no operation");
		op->err = err.err;
		op->state = FAILED;
	} else {
		CHECK(err.err == FI_EFAULT, "unasked: %s", fi_strerror(err.err));
		unasked++;
	}
}

enum kind { WRITE, DELIVERED, READ, ADD, FETCH, LOOK, KINDS };
static const char *const kinds[] = {"write", "delivered write", "read", "atomic", "fetching atomic", "atomic read"};

static long post(struct op *op, enum kind kind, unsigned char *buf, size_t len, uint64_t at, uint64_t key)
{
	static uint64_t one = 1, old;
	struct iovec iov = {buf, len};
	struct fi_rma_iov there = {at, len, key};
	struct fi_msg_rma m = {.msg_iov = &iov, .iov_count = 1, .addr = peer, .rma_iov = &there, .rma_iov_count = 1,
			       .context = op};

	switch (kind) {
	case WRITE: return fi_write(me.ep, buf, len, NULL, peer, at, key, op);
	case DELIVERED: return fi_writemsg(me.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE);
	case READ: return fi_read(me.ep, buf, len, NULL, peer, at, key, op);
	case ADD: return fi_atomic(me.ep, &one, 1, NULL, peer, at, key, FI_UINT64, FI_SUM, op);
	case FETCH: return fi_fetch_atomic(me.ep, &one, 1, NULL, &old, NULL, peer, at, key, FI_UINT64, FI_SUM, op);
	default:
		return fi_fetch_atomic(me.ep, NULL, 1, NULL, &old, NULL, peer, at, key, FI_UINT64, FI_ATOMIC_READ, op);
	}
}

/* Does one; the error of it, also where that comes after its completion. */
static int run(enum kind kind, unsigned char *buf, size_t len, uint64_t at, uint64_t key)
{
	static struct op op;
	uint64_t start = now_ns();
	int before = unasked;
	long ret;

	begin(&op);
	while ((ret = post(&op, kind, buf, len, at, key)) == -FI_EAGAIN)
		take();
	OK(ret);
	while (op.state == PENDING) {
		take();
		CHECK(now_ns() - start < 20000000000u, "%s of %zu bytes: nothing for 20 s", kinds[kind], len);
	}
	checks++;
	if (op.state == FAILED)
		return op.err;
	/* What was sent before is answered before: an atomic read of what is good. */
	if (kind != WRITE && kind != ADD)
		return 0;
	CHECK(!run(LOOK, NULL, 8, sh->at[GOOD], sh->key[GOOD]), "an atomic read of good memory");
	return unasked > before ? FI_EFAULT : 0;
}

static void good(const char *what)
{
	static unsigned char out[HALF], back[HALF];
	static unsigned seed;
	static const size_t lens[] = {8, 1024, HALF};

	for (size_t i = 0; i < 3; i++) {
		fill(out, lens[i], ++seed);
		CHECK(!run(DELIVERED, out, lens[i], sh->at[GOOD] + 16, sh->key[GOOD]), "a good write after %s", what);
		CHECK(!run(READ, back, lens[i], sh->at[GOOD] + 16, sh->key[GOOD]), "a good read after %s", what);
		CHECK(differs(back, lens[i], seed) == lens[i], "other bytes after %s", what);
	}
}

static void bad(int region, uint64_t off)
{
	static unsigned char buf[HALF];
	static const size_t lens[] = {8, 100, 1024, 8000, 64 << 10, HALF};
	uint64_t at = sh->at[region] + off, key = sh->key[region];

	for (int kind = 0; kind < KINDS; kind++)
		for (size_t i = 0; i < (kind < ADD ? 6 : 1); i++) {
			int fine = region == READ_ONLY && (kind == READ || kind == LOOK);
			int err = run((enum kind)kind, buf, lens[i], at, key);

			if (fine)
				CHECK(!err, "%s of read-only memory: %s", kinds[kind], fi_strerror(err));
			else
				CHECK(err == FI_EFAULT || (err == FI_EIO && !only_frames),
				      "%s of %zu bytes of memory that is %s: %s, not %s", kinds[kind], lens[i],
				      names[region], err ? fi_strerror(err) : "no error", fi_strerror(FI_EFAULT));
		}
	good(names[region]);
}

int main(int argc, char **argv)
{
	int status, automatic = argc > 2 && !strcmp(argv[2], "auto");
	pid_t child;

	CHECK(argc > 1, "usage: unmapped frames|any [auto]");
	only_frames = !strcmp(argv[1], "frames");
	sh = shared_memory(sizeof *sh);
	child = fork();
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		target(automatic);
	}
	while (!sh->ready)
		CHECK(!waitpid(child, &status, WNOHANG), "the target has ended, status %#x", status);
	fab_open(&me, (struct fab_options){0});
	peer = fab_insert(&me, &sh->name);
	good("nothing");
	for (int region = GONE; region <= CUT; region++)
		CHECK(!run(READ, (unsigned char[8]){0}, 8, sh->at[region], sh->key[region]), "a read before");
	sh->spoil = 1;
	while (!sh->spoilt)
		take();
	for (int region = WHOLE; region <= CUT; region++) {
		bad(region, 0);
		bad(region, HALF - 64);
	}
	/* No address at all. */
	sh->at[WHOLE] = 64;
	bad(WHOLE, 0);
	sh->at[WHOLE] = 1ull << 63;
	bad(WHOLE, 0);
	/* What is there may be accessed by that registration, too. */
	CHECK(!run(DELIVERED, (unsigned char[8]){5}, 8, sh->at[GOOD], sh->key[WHOLE]), "the whole address space");
	good("all");
	sh->done = 1;
	CHECK(waitpid(child, &status, 0) == child && !status, "the target's status: %#x", status);
	fab_close(&me);
	printf("unmapped ok, %d operations\n", checks);
	return 0;
}

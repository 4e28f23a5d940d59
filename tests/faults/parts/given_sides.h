/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What both sides of a case of given.c have and do. */
#include "../fab.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/syscall.h>

#define WATCHDOG 8000000000u
#define WATCH 400000000u /* how long canaries are looked at */
#define CANARY 0xc5
#define LARGEST ((size_t)256 << 20)
#define PLACE ((void *)0x100000000000) /* the same address before and after exec */
enum { KEY = 7, TAG = 3, TAG_GO = 4, TAG_NEXT = 5 };

static struct shared {
	struct name names[2];
	uint64_t key, at;
	volatile pid_t pids[2];
	volatile int ready[2], step, over;
	volatile int ok; /* the peer's operation: 1 ok, -1 failed */
	char why[2][200];
} *sh;
static int sh_fd;
/* The buffer of an initiator that its target stops, seen by both. */
static unsigned char *seen;

static struct fab f;
static fi_addr_t other;
static int me;

/* Ends this side of a case with what is wrong. */
#define WRONG(...)                                                      \
	do {                                                            \
		snprintf(sh->why[me], sizeof sh->why[me], __VA_ARGS__); \
		_exit(2);                                               \
	} while (0)
#define NEED(cond, ...)                     \
	do {                                \
		if (!(cond))                \
			WRONG(__VA_ARGS__); \
	} while (0)

static size_t not_canary(const unsigned char *b, size_t n)
{
	size_t bad = 0;

	for (size_t i = 0; i < n; i++)
		bad += b[i] != CANARY;
	return bad;
}

/* Looks at memory that was given back. `polls`: the endpoint is still there and makes progress. */
static void watch(const unsigned char *b, size_t n, int polls)
{
	uint64_t start = now_ns();
	size_t bad;

	do {
		for (int i = 0; polls && i < 100; i++)
			fab_poll(&f);
		bad = not_canary(b, n);
		NEED(!bad, "%zu of %zu bytes were written after they were given back", bad, n);
		usleep(2000);
	} while (now_ns() - start < WATCH || (!sh->over && now_ns() - start < WATCHDOG + WATCH));
	NEED(sh->over, "the peer's side did not end");
}

/* fi_close, again and again while a peer is in the middle of a copy. */
static void close_again(struct fid *fid, const char *what)
{
	uint64_t start = now_ns();
	int ret;

	while ((ret = fi_close(fid)) == -FI_EBUSY) {
		kill(sh->pids[!me], SIGCONT); /* if it was stopped */
		if (f.cq)
			fab_poll(&f);
		usleep(500);
		NEED(now_ns() - start < WATCHDOG, "closing %s: busy for 8 s", what);
	}
	NEED(!ret, "closing %s: %s", what, fi_strerror(-ret));
	NEED(now_ns() - start < WATCHDOG, "closing %s took %lu ms", what, (now_ns() - start) / 1000000);
}

static void close_all(struct fid_mr *mr)
{
	close_again(&f.ep->fid, "the endpoint");
	if (mr)
		close_again(&mr->fid, "the region");
	close_again(&f.av->fid, "the vector");
	close_again(&f.cq->fid, "the queue");
	f.cq = NULL;
	close_again(&f.domain->fid, "the domain");
	close_again(&f.fabric->fid, "the fabric");
}

/* Until it has ended; returns whether well. */
static int ends(struct op *op, const char *what)
{
	uint64_t start = now_ns();

	while (op->state == PENDING) {
		if (!fab_poll(&f))
			sched_yield();
		NEED(now_ns() - start < WATCHDOG, "%s never ended", what);
	}
	return op->state == DONE;
}

static void step(int n)
{
	uint64_t start = now_ns();

	while (sh->step < n) {
		usleep(50);
		NEED(now_ns() - start < 2 * WATCHDOG, "waited for step %d", n);
	}
}

/* As step(), with progress. */
static void step_polling(int n)
{
	uint64_t start = now_ns();

	while (sh->step < n) {
		fab_poll(&f);
		NEED(now_ns() - start < 2 * WATCHDOG, "waited for step %d", n);
	}
}

static struct fid_mr *expose(void *at, size_t len, int counted)
{
	struct fid_mr *mr;

	OK(fi_mr_reg(f.domain, at, len, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, counted ? FI_RMA_EVENT : 0, &mr, NULL));
	if (counted) {
		struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
		struct fid_cntr *cntr;

		OK(fi_cntr_open(f.domain, &attr, &cntr, NULL));
		OK(fi_mr_bind(mr, &cntr->fid, FI_REMOTE_READ | FI_REMOTE_WRITE));
	}
	sh->key = fi_mr_key(mr);
	sh->at = f.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)at : 0;
	return mr;
}

/* Opens, and exchanges a word each way, so that both have their channels. */
static struct fid_mr *meet_as(void *at, size_t len, int counted, uint64_t order)
{
	struct fid_mr *mr = NULL;
	uint64_t out = 1, in = 0, start = now_ns();
	struct op a = {0}, b = {0};

	fab_open(&f, (struct fab_options){.caps = counted ? FAB_CAPS | FI_RMA_EVENT : 0, .order = order});
	if (at)
		mr = expose(at, len, counted);
	sh->names[me] = f.name;
	sh->pids[me] = getpid();
	sh->ready[me] = 1;
	while (!sh->ready[!me]) {
		usleep(50);
		CHECK(now_ns() - start < 20000000000u, "the other side is not there");
	}
	other = fab_insert(&f, &sh->names[!me]);
	POST(&f, &a, fi_trecv(f.ep, &in, 8, NULL, other, TAG_GO, 0, &a));
	POST(&f, &b, fi_tsend(f.ep, &out, 8, NULL, other, TAG_GO, &b));
	await(&f, &a, "a first word");
	await(&f, &b, "our first word");
	/* What the other side exposes comes by its socket. */
	for (start = now_ns(); now_ns() - start < 50000000;)
		fab_poll(&f);
	return mr;
}

static struct fid_mr *meet(void *at, size_t len)
{
	return meet_as(at, len, 0, 0);
}

static ssize_t rma(int write, void *buf, size_t len, uint64_t flags, uint64_t data, struct op *op)
{
	struct iovec iov = {buf, len};
	struct fi_rma_iov there = {sh->at, len, sh->key};
	struct fi_msg_rma m = {.msg_iov = &iov, .iov_count = 1, .addr = other, .rma_iov = &there, .rma_iov_count = 1, .context = op, .data = data};

	return write ? fi_writemsg(f.ep, &m, flags | FI_COMPLETION) : fi_readmsg(f.ep, &m, flags | FI_COMPLETION);
}

static void *map(void *at, size_t len)
{
	void *got = mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);

	CHECK(got != MAP_FAILED && (!at || got == at), "mmap: %s", strerror(errno));
	return got;
}

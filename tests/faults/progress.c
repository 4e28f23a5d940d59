/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A target that computes: it makes no call at all until the initiator is done with it.
 *
 *   progress auto|manual
 *
 * With FI_PROGRESS_AUTO put, get, atomic, fetching atomic, and messages of every size to posted receives
 * go on; with manual progress, put and get of what can be copied directly.  Nothing is timed: a target
 * that were needed would never come.  The last one is an endpoint with neither queue nor counter.
 */
#include "fab.h"

#define LEN (2u << 20)
#define KEY 3

static struct shared {
	struct name name, bare;
	uint64_t key, bare_key, at;
	volatile int ready, received, computing, done;
	unsigned char memory[LEN], bare_memory[8], landed[LEN], small[64];
} *sh;

static void compute(void)
{
	uint64_t start = now_ns();

	sh->computing = 1;
	while (!sh->done)
		CHECK(now_ns() - start < 30000000000u, "the initiator was held up");
}

static struct fid_mr *give(struct fab *f, void *at, size_t len, uint64_t *key)
{
	uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE;
	struct fid_mr *mr;

	OK(fi_mr_reg(f->domain, at, len, access, 0, KEY, 0, &mr, NULL));
	*key = fi_mr_key(mr);
	return mr;
}

static void target(int automatic)
{
	struct fab_options o = {.progress = automatic ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL};
	struct fab f, bare;
	struct op large = {0}, little = {0}, warm = {0};
	struct fid_mr *mr, *bare_mr;
	struct fid_ep *ep;
	uint64_t word;

	fab_role = "target";
	fab_open(&f, o);
	fab_open(&bare, o);
	/* In the place of its endpoint one without anything. */
	OK(fi_close(&bare.ep->fid));
	bare.info->caps = FI_RMA | FI_ATOMIC | FI_REMOTE_READ | FI_REMOTE_WRITE;
	OK(fi_endpoint(bare.domain, bare.info, &ep, NULL));
	bare.ep = ep;
	OK(fi_ep_bind(ep, &bare.av->fid, 0));
	OK(fi_enable(ep));
	bare.name.len = sizeof bare.name.bytes;
	OK(fi_getname(&ep->fid, bare.name.bytes, &bare.name.len));
	mr = give(&f, sh->memory, LEN, &sh->key);
	bare_mr = give(&bare, sh->bare_memory, sizeof sh->bare_memory, &sh->bare_key);
	sh->at = f.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR;
	sh->name = f.name;
	sh->bare = bare.name;
	sh->ready = 1;
	POST(&f, &warm, fi_trecv(f.ep, &word, 8, NULL, FI_ADDR_UNSPEC, 1, 0, &warm));
	await(&f, &warm, "the first word");
	POST(&f, &large, fi_trecv(f.ep, sh->landed, LEN, NULL, FI_ADDR_UNSPEC, 2, 0, &large));
	POST(&f, &little, fi_trecv(f.ep, sh->small, sizeof sh->small, NULL, FI_ADDR_UNSPEC, 3, 0, &little));
	compute();
	if (automatic) {
		await(&f, &large, "the large message");
		await(&f, &little, "the small message");
		CHECK(differs(sh->landed, LEN, 7) == LEN && large.len == LEN, "the large message");
		CHECK(differs(sh->small, 64, 8) == 64 && little.len == 64, "the small message");
	}
	OK(fi_close(&mr->fid));
	OK(fi_close(&bare_mr->fid));
	fab_close(&bare);
	fab_close(&f);
}

static struct fab me;

static void rma(fi_addr_t to, int write, void *buf, size_t len, uint64_t at, uint64_t key, const char *what)
{
	struct iovec iov = {buf, len};
	struct fi_rma_iov there = {at, len, key};
	struct op op = {0};
	struct fi_msg_rma m = {
		.msg_iov = &iov, .iov_count = 1, .addr = to, .rma_iov = &there, .rma_iov_count = 1, .context = &op};

	POST(&me, &op, write ? fi_writemsg(me.ep, &m, FI_DELIVERY_COMPLETE | FI_COMPLETION)
			     : fi_readmsg(me.ep, &m, FI_COMPLETION));
	await(&me, &op, what);
}

static void send(fi_addr_t to, void *buf, size_t len, uint64_t tag)
{
	struct iovec iov = {buf, len};
	struct op op = {0};
	struct fi_msg_tagged m = {.msg_iov = &iov, .iov_count = 1, .addr = to, .tag = tag, .context = &op};

	POST(&me, &op, fi_tsendmsg(me.ep, &m, FI_DELIVERY_COMPLETE | FI_COMPLETION));
	await(&me, &op, "a message");
}

/* Two atomics, the second of which sees the first. */
static void add(fi_addr_t to, uint64_t at, uint64_t key, void *memory)
{
	uint64_t word = 5, old = 0;
	struct op op = {0};

	memset(memory, 0, 8);
	for (int i = 0; i < 2; i++) {
		POST(&me, &op, fi_fetch_atomic(me.ep, &word, 1, NULL, &old, NULL, to, at, key, FI_UINT64, FI_SUM, &op));
		await(&me, &op, "an atomic");
	}
	CHECK(old == 5, "fetched %lu", old);
}

static void initiator(int automatic)
{
	unsigned char *buf = malloc(LEN);
	struct op op = {0};
	uint64_t at, first = 1;
	fi_addr_t to, bare;

	fab_role = "initiator";
	CHECK(buf, "memory");
	fab_open(&me, (struct fab_options){0});
	while (!sh->ready)
		usleep(100);
	to = fab_insert(&me, &sh->name);
	bare = fab_insert(&me, &sh->bare);
	at = sh->at ? (uintptr_t)sh->memory : 0;
	POST(&me, &op, fi_tsend(me.ep, &first, 8, NULL, to, 1, &op));
	await(&me, &op, "the first word");
	/* What the target registered is known from its welcome on, which it has sent when it computes. */
	for (int polls = 0; !sh->computing || polls < 200; polls++) {
		fab_poll(&me);
		usleep(100);
	}
	if (!automatic)
		rma(to, 0, buf, 1, at, sh->key, "a first get");
	for (size_t len = 8; len <= LEN; len *= 16) {
		fill(buf, len, 4);
		rma(to, 1, buf, len, at, sh->key, "a put");
		CHECK(differs(sh->memory, len, 4) == len, "put of %zu", len);
		fill(sh->memory, len, 5);
		rma(to, 0, buf, len, at, sh->key, "a get");
		CHECK(differs(buf, len, 5) == len, "get of %zu", len);
	}
	if (automatic) {
		add(to, at, sh->key, sh->memory);
		fill(buf, LEN, 7);
		send(to, buf, LEN, 2);
		fill(buf, 64, 8);
		send(to, buf, 64, 3);
		add(bare, sh->at ? (uintptr_t)sh->bare_memory : 0, sh->bare_key, sh->bare_memory);
	}
	sh->done = 1;
	fab_close(&me);
	free(buf);
}

int main(int argc, char **argv)
{
	int automatic = argc < 2 || !strcmp(argv[1], "auto"), status;
	pid_t pid;

	sh = shared_memory(sizeof *sh);
	pid = fork();
	CHECK(pid >= 0, "fork");
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		target(automatic);
		exit(0);
	}
	initiator(automatic);
	CHECK(waitpid(pid, &status, 0) == pid && !status, "the target: status %x", status);
	printf("progress %s ok\n", automatic ? "auto" : "manual");
	return 0;
}

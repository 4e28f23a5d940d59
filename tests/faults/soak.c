/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Much of everything for long, with every byte looked at.
 *
 *   soak MESSAGES [SEED] [PROVIDER]   three processes send so many messages in all, of all sorts and
 *                                     sizes, and write, read and add to each other's memory meanwhile
 *   soak flood [PROVIDER]             messages that wait for a receive for a while
 *   soak quiet [PROVIDER]             the same, from one that makes no progress but by sending
 *
 * Sender and receiver draw what message K from one to the other is from the same numbers.
 */
#include "fab.h"

enum { PROCS = 3, WINDOW = 48, LARGEST = 1 << 20, SLOT = 64 << 10, EVERY = 64 };
#define KEY 11

static struct shared {
	struct name names[PROCS];
	uint64_t key[PROCS], at[PROCS];
	volatile int ready, done;
	volatile uint64_t sent, bytes, added[PROCS];
	volatile int stuck, received;
} *sh;

static struct fab f;
static uint64_t seed = 1;

/* Message `k` from one process to another. */
struct what {
	size_t len;
	uint64_t tag;
	int tagged, inject, data, delivery;
	unsigned fill;
};

static struct what draw(int from, int to, uint64_t k)
{
	uint64_t state = seed * 1000003 + (uint64_t)(from * PROCS + to) * 7919 + k * 104729, r;
	struct what w = {0};

	for (int i = 0; i < 3; i++)
		r = next_random(&state);
	r %= 1000;
	w.len = r < 700 ? next_random(&state) % 256 : r < 960 ? next_random(&state) % 4097 : r < 997 ? next_random(&state) % 65536 : next_random(&state) % LARGEST;
	/* Where pieces meet, errors by one are at home. */
	r = next_random(&state);
	if (w.len > 8192 && r % 3 == 0)
		w.len = (w.len & ~(size_t)4095) + (r >> 8) % 3 - 1;
	w.tag = k % 7;
	w.tagged = next_random(&state) % 3 != 0;
	w.inject = w.len <= 4096 && next_random(&state) % 3 == 0;
	w.data = next_random(&state) % 4 == 0;
	w.delivery = next_random(&state) % 4 == 0;
	w.fill = (unsigned)next_random(&state);
	return w;
}

/* What one process has with another. */
struct pair {
	fi_addr_t addr;
	uint64_t sends, recvs, taken, rmas;
	struct op out[WINDOW], in[WINDOW];
	unsigned char *out_buf[WINDOW], *in_buf[WINDOW];
	size_t out_room[WINDOW], in_room[WINDOW];
	struct op rma;
	int rma_step;
	unsigned char *rma_buf;
	size_t rma_len;
};

static unsigned char *room(unsigned char **buf, size_t *have, size_t want)
{
	if (*have < want) {
		free(*buf);
		*have = want;
		*buf = calloc(1, want); /* valgrind does not see what the other process writes */
		CHECK(*buf, "memory");
	}
	return *buf;
}

static struct fid_mr *give(void *at, size_t len, int me)
{
	struct fid_mr *mr;

	OK(fi_mr_reg(f.domain, at, len, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL));
	sh->key[me] = fi_mr_key(mr);
	sh->at[me] = f.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)at : 0;
	return mr;
}

static int send_next(struct pair *p, int me, int to, uint64_t most)
{
	struct op *op = &p->out[p->sends % WINDOW];
	struct what w;
	struct iovec iov;
	long ret;

	if (p->sends == most || op->state == PENDING)
		return 0;
	CHECK(op->state != FAILED, "a send: %s", fi_strerror(op->err));
	w = draw(me, to, p->sends);
	iov.iov_base = room(&p->out_buf[p->sends % WINDOW], &p->out_room[p->sends % WINDOW], w.len + 1);
	iov.iov_len = w.len;
	fill(iov.iov_base, w.len, w.fill);
	if (w.inject && w.tagged) {
		ret = w.data ? fi_tinjectdata(f.ep, iov.iov_base, w.len, p->sends, p->addr, w.tag)
			     : fi_tinject(f.ep, iov.iov_base, w.len, p->addr, w.tag);
		memset(iov.iov_base, 0xee, w.len);
	} else if (w.tagged) {
		struct fi_msg_tagged m = {.msg_iov = &iov, .iov_count = 1, .addr = p->addr, .tag = w.tag, .context = op, .data = p->sends};

		begin(op);
		ret = fi_tsendmsg(f.ep, &m, FI_COMPLETION | (w.data ? FI_REMOTE_CQ_DATA : 0) | (w.delivery ? FI_DELIVERY_COMPLETE : 0));
	} else {
		struct fi_msg m = {.msg_iov = &iov, .iov_count = 1, .addr = p->addr, .context = op, .data = p->sends};

		begin(op);
		ret = fi_sendmsg(f.ep, &m, FI_COMPLETION | (w.data ? FI_REMOTE_CQ_DATA : 0) | (w.delivery ? FI_DELIVERY_COMPLETE : 0));
	}
	if (ret) {
		op->state = FREE;
		CHECK(ret == -FI_EAGAIN, "sending: %s", fi_strerror((int)-ret));
		return 0;
	}
	p->sends++;
	__sync_fetch_and_add(&sh->bytes, w.len);
	return 1;
}

static int recv_next(struct pair *p, int me, int from, uint64_t most)
{
	struct op *op = &p->in[p->recvs % WINDOW];
	struct what w;
	void *buf;
	long ret;

	if (p->recvs == most || p->recvs == p->taken + WINDOW)
		return 0;
	w = draw(from, me, p->recvs);
	buf = room(&p->in_buf[p->recvs % WINDOW], &p->in_room[p->recvs % WINDOW], w.len + 1);
	begin(op);
	ret = w.tagged ? fi_trecv(f.ep, buf, w.len, NULL, p->addr, w.tag, 0, op) : fi_recv(f.ep, buf, w.len, NULL, p->addr, op);
	if (ret) {
		op->state = FREE;
		CHECK(ret == -FI_EAGAIN, "receiving: %s", fi_strerror((int)-ret));
		return 0;
	}
	p->recvs++;
	return 1;
}

/* Looks at what has come, in the order in which it was asked for. */
static void take(struct pair *p, int me, int from)
{
	while (p->taken < p->recvs && p->in[p->taken % WINDOW].state != PENDING) {
		struct op *op = &p->in[p->taken % WINDOW];
		struct what w = draw(from, me, p->taken);
		size_t bad = differs(p->in_buf[p->taken % WINDOW], w.len, w.fill);

		CHECK(op->state == DONE, "message %lu from %d: %s", p->taken, from, fi_strerror(op->err));
		CHECK(op->len == w.len && bad == w.len, "message %lu from %d: %zu of %zu bytes, wrong at %zu", p->taken, from,
		      op->len, w.len, bad);
		CHECK(!w.tagged || op->tag == w.tag, "message %lu from %d: tag %lu", p->taken, from, op->tag);
		CHECK(op->src == p->addr, "message %lu from %d: source", p->taken, from);
		CHECK(!w.data || op->data == p->taken, "message %lu from %d: data %lu", p->taken, from, op->data);
		op->state = FREE;
		p->taken++;
	}
}

/* Writes to a place of our own there, reads it back, adds one to a number. */
static void rma_next(struct pair *p, int me, int to)
{
	uint64_t slot = sh->at[to] + (uint64_t)(me * SLOT);
	struct iovec iov = {p->rma_buf, p->rma_len};
	struct fi_rma_iov there = {slot, p->rma_len, sh->key[to]};
	struct fi_msg_rma m = {
		.msg_iov = &iov, .iov_count = 1, .addr = p->addr, .rma_iov = &there, .rma_iov_count = 1, .context = &p->rma};
	long ret = 0;

	if (p->rma.state == PENDING)
		return;
	CHECK(p->rma.state != FAILED, "RMA: %s", fi_strerror(p->rma.err));
	switch (p->rma_step) {
	case 0:
		if (p->rmas * EVERY > p->sends)
			return;
		p->rma_len = iov.iov_len = there.len = 1 + (p->rmas * 7919) % (SLOT - 1);
		fill(p->rma_buf, p->rma_len, (unsigned)p->rmas);
		begin(&p->rma);
		ret = fi_writemsg(f.ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE);
		break;
	case 1:
		memset(p->rma_buf, 0, p->rma_len);
		begin(&p->rma);
		ret = fi_readmsg(f.ep, &m, FI_COMPLETION);
		break;
	case 2: {
		uint64_t one = 1;
		size_t bad = differs(p->rma_buf, p->rma_len, (unsigned)p->rmas);

		CHECK(bad == p->rma_len, "read back %zu bytes, wrong at %zu", p->rma_len, bad);
		ret = fi_inject_atomic(f.ep, &one, 1, p->addr, sh->at[to] + PROCS * SLOT, sh->key[to], FI_UINT64, FI_SUM);
		p->rmas += !ret;
		p->rma.state = FREE;
	}
	}
	CHECK(!ret || ret == -FI_EAGAIN, "RMA: %s", fi_strerror((int)-ret));
	if (ret)
		p->rma.state = FREE;
	else
		p->rma_step = (p->rma_step + 1) % 3;
}

static void process(int me, uint64_t most, struct fab_options o)
{
	static struct pair pairs[PROCS];
	static char role[16];
	unsigned char *memory = calloc(1, PROCS * SLOT + 8);
	volatile uint64_t *sum = (uint64_t *)(memory + PROCS * SLOT);
	uint64_t last = now_ns();
	int fds = descriptors(), busy = 1;
	struct fid_mr *mr;

	snprintf(role, sizeof role, "process %d", me);
	fab_role = role;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHECK(memory, "memory");
	fab_open(&f, o);
	mr = give(memory, PROCS * SLOT + 8, me);
	sh->names[me] = f.name;
	for (__sync_fetch_and_add(&sh->ready, 1); sh->ready < PROCS;)
		usleep(500);
	for (int k = 0; k < PROCS; k++) {
		pairs[k].addr = fab_insert(&f, &sh->names[k]);
		pairs[k].rma_buf = malloc(SLOT);
	}
	while (busy) {
		int done = 0;

		for (int k = 0; k < PROCS; k++) {
			if (k == me)
				continue;
			while (recv_next(&pairs[k], me, k, most))
				done++;
			for (int i = 0; i < 16 && send_next(&pairs[k], me, k, most); i++)
				done++;
			rma_next(&pairs[k], me, k);
			take(&pairs[k], me, k);
		}
		done += fab_poll(&f);
		if (done)
			last = now_ns();
		else
			sched_yield();
		CHECK(now_ns() - last < 120000000000u, "nothing for two minutes");
		busy = 0;
		for (int k = 0; k < PROCS; k++) {
			if (k == me)
				continue;
			busy |= pairs[k].sends < most || pairs[k].taken < most || pairs[k].rma_step || pairs[k].rma.state == PENDING;
			for (int i = 0; i < WINDOW; i++) {
				CHECK(pairs[k].out[i].state != FAILED, "a send: %s", fi_strerror(pairs[k].out[i].err));
				busy |= pairs[k].out[i].state == PENDING;
			}
		}
	}
	for (int k = 0; k < PROCS; k++)
		__sync_fetch_and_add(&sh->added[k], pairs[k].rmas);
	__sync_fetch_and_add(&sh->sent, most * (PROCS - 1));
	__sync_fetch_and_add(&sh->done, 1);
	/* What was added here: as much as all others say, once all have come. */
	for (last = now_ns(); sh->done < PROCS;) {
		fab_poll(&f);
		CHECK(now_ns() - last < 120000000000u, "waited for the others");
	}
	for (last = now_ns(); *sum < sh->added[me];) {
		fab_poll(&f);
		CHECK(now_ns() - last < 30000000000u, "%lu was added, not %lu", *sum, sh->added[me]);
	}
	CHECK(*sum == sh->added[me], "%lu was added, not %lu", *sum, sh->added[me]);
	__sync_fetch_and_add(&sh->received, 1);
	while (sh->received < PROCS)
		fab_poll(&f);
	OK(fi_close(&mr->fid));
	fab_close(&f);
	for (int k = 0; k < PROCS; k++) {
		for (int i = 0; i < WINDOW; i++) {
			free(pairs[k].out_buf[i]);
			free(pairs[k].in_buf[i]);
		}
		free(pairs[k].rma_buf);
	}
	free(memory);
	CHECK(descriptors() - fds <= 1, "%d descriptors, %d before", descriptors(), fds);
	exit(0);
}

static long resident(void)
{
	char line[256];
	FILE *in = fopen("/proc/self/status", "r");
	long n = 0;

	while (fgets(line, sizeof line, in))
		if (!strncmp(line, "RssAnon:", 8))
			n = atol(line + 8);
	fclose(in);
	return n;
}

enum { FLOOD = 4096 };

static void flood_receiver(struct fab_options o)
{
	static unsigned char buf[FLOOD];
	uint64_t n = 0;
	struct op op = {0};
	fi_addr_t from;
	long before, most = 0;

	fab_role = "receiver";
	o.cq_size = 1 << 16;
	fab_open(&f, o);
	sh->names[0] = f.name;
	sh->ready = 1;
	while (sh->ready < 2)
		usleep(100);
	from = fab_insert(&f, &sh->names[1]);
	before = resident();
	while (!sh->stuck) {
		fab_poll(&f);
		if (++n % 256 == 0)
			most = resident() > most ? resident() : most;
	}
	most = resident() > most ? resident() : most;
	printf("flood: %lu messages, %lu MiB; the receiver grew by %ld KiB\n", sh->sent, sh->sent * FLOOD >> 20, most - before);
	CHECK(!getenv("FI_STRAIT_UNEXPECTED_SIZE") || most - before < (64 << 10), "grew by %ld KiB", most - before);
	for (n = 0; n < sh->sent; n++) {
		POST(&f, &op, fi_trecv(f.ep, buf, FLOOD, NULL, from, n % 3, 0, &op));
		await(&f, &op, "a message of the flood");
		CHECK(op.len == FLOOD && differs(buf, FLOOD, (unsigned)n) == FLOOD, "message %lu of %lu", n, sh->sent);
	}
	sh->done = 1;
	fab_close(&f);
	exit(0);
}

static void flood_sender(struct fab_options o, int quiet)
{
	enum { ROOM = 1 << 13 };
	static struct op ops[ROOM];
	unsigned char (*bufs)[FLOOD] = malloc((size_t)ROOM * FLOOD);
	uint64_t last, n = 0;
	fi_addr_t to;

	fab_role = "sender";
	CHECK(bufs, "memory");
	o.cq_size = 1 << 16;
	fab_open(&f, o);
	sh->names[1] = f.name;
	while (!sh->ready)
		usleep(100);
	sh->ready = 2;
	to = fab_insert(&f, &sh->names[0]);
	/* Until nothing more is taken for a while; what was taken stays where it is. */
	last = now_ns();
	while (n < 200000 && now_ns() - last < 500000000u) {
		struct op *op = &ops[n % ROOM];
		long ret;

		if (!quiet)
			fab_poll(&f);
		if (op->state == PENDING)
			continue;
		CHECK(op->state != FAILED, "%s", fi_strerror(op->err));
		fill(bufs[n % ROOM], FLOOD, (unsigned)n);
		if (n % 4 && !quiet) {
			begin(op);
			ret = fi_tsend(f.ep, bufs[n % ROOM], FLOOD, NULL, to, n % 3, op);
		} else {
			ret = fi_tinject(f.ep, bufs[n % ROOM], FLOOD, to, n % 3);
		}
		if (ret == -FI_EAGAIN) {
			op->state = FREE;
			continue;
		}
		CHECK(!ret, "%s", fi_strerror((int)-ret));
		last = now_ns();
		n++;
	}
	CHECK(n > 100, "only %lu messages were taken", n);
	sh->sent = n;
	sh->stuck = 1;
	while (!sh->done)
		fab_poll(&f);
	for (int i = 0; i < ROOM; i++)
		if (ops[i].state != FREE)
			await(&f, &ops[i], "a message of the flood");
	fab_close(&f);
	free(bufs);
	exit(0);
}

int main(int argc, char **argv)
{
	int quiet = argc > 1 && !strcmp(argv[1], "quiet");
	int flood = quiet || (argc > 1 && !strcmp(argv[1], "flood")), procs = flood ? 2 : PROCS;
	uint64_t messages = argc > 1 && !flood ? strtoull(argv[1], NULL, 0) : 100000;
	struct fab_options o = {.threading = FI_THREAD_DOMAIN, .cq_size = 1024};
	pid_t pids[PROCS];

	if (!flood && argc > 2)
		seed = strtoull(argv[2], NULL, 0);
	o.provider = argc > (flood ? 2 : 3) ? argv[flood ? 2 : 3] : "strait";
	sh = shared_memory(sizeof *sh);
	for (int i = 0; i < procs; i++) {
		pids[i] = fork();
		CHECK(pids[i] >= 0, "fork");
		if (pids[i])
			continue;
		if (flood && i)
			flood_sender(o, quiet);
		if (flood)
			flood_receiver(o);
		process(i, messages / (PROCS * (PROCS - 1)), o);
	}
	for (int i = 0; i < procs; i++) {
		int status;

		CHECK(waitpid(pids[i], &status, 0) == pids[i] && !status, "process %d: status %x", i, status);
	}
	if (!flood)
		printf("soak: %lu messages, %lu MiB, seed %lu, all as they were sent\n", sh->sent, sh->bytes >> 20, seed);
	puts("soak ok");
	return 0;
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * fence SECONDS SEED [BUSY]: two processes write lists of all sorts to each other, each followed by a notification with
 * FI_FENCE, as GPI-2 does. Of each third list the last part and the notification are two elements of one write. The target looks at
 * the notification in memory; what the list wrote has to be there then.
 * A thread of each makes progress, two endpoints of a domain are in use at once, and BUSY processes compute beside them.
 */
#include "fab.h"

#include <pthread.h>

#define ENDS 2
#define LISTS 16	  /* one behind the other, before the two meet again */
#define MOST 8		  /* operations of a list */
#define PART (128u << 10) /* bytes that one of them may write */
#define SIZE ((size_t)ENDS * LISTS * MOST * PART)
#define INJECT 4096

/* What the two know of each other: by memory, not by what is tested. */
struct side {
	struct name names[ENDS];
	uint64_t base, key, words, words_key;
	_Atomic int open, ready, checked, over;
};

static struct side *sides, *mine, *theirs;
static struct fab me;
static struct fid_ep *eps[ENDS];
static struct fid_cq *cqs[ENDS];
static fi_addr_t to[ENDS];
static unsigned char *area;		/* written by the peer */
static volatile uint64_t *words;	/* notifications, by the peer */
static volatile int stop;
static uint64_t lists, operations;
static long sent[ENDS], done[ENDS];

static uint64_t at_peer(uint64_t base, size_t off)
{
	return me.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? base + off : off;
}

static void *progress(void *unused)
{
	(void)unused;
	while (!stop)
		for (int e = 0; e < ENDS; e++)
			fi_cq_read(cqs[e], NULL, 0);
	return NULL;
}

static void open_all(void)
{
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};
	uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE;
	struct fid_mr *mr;

	fab_open(&me, (struct fab_options){.threading = FI_THREAD_SAFE});
	for (int e = 0; e < ENDS; e++) {
		OK(fi_cq_open(me.domain, &cq_attr, &cqs[e], NULL));
		OK(fi_endpoint(me.domain, me.info, &eps[e], NULL));
		OK(fi_ep_bind(eps[e], &me.av->fid, 0));
		OK(fi_ep_bind(eps[e], &cqs[e]->fid, FI_TRANSMIT | FI_RECV));
		OK(fi_enable(eps[e]));
		mine->names[e].len = NAME_MAX_LEN;
		OK(fi_getname(&eps[e]->fid, mine->names[e].bytes, &mine->names[e].len));
	}
	area = aligned_alloc(4096, SIZE);
	words = aligned_alloc(4096, 4096);
	CHECK(area && words, "no memory");
	memset((void *)words, 0, 4096);
	memset(area, 0, SIZE);
	OK(fi_mr_reg(me.domain, area, SIZE, access, 0, 1, 0, &mr, NULL));
	mine->base = (uintptr_t)area, mine->key = fi_mr_key(mr);
	OK(fi_mr_reg(me.domain, (void *)words, 4096, access, 0, 2, 0, &mr, NULL));
	mine->words = (uintptr_t)words, mine->words_key = fi_mr_key(mr);
	mine->open = 1;
	while (!theirs->open)
		sched_yield();
	for (int e = 0; e < ENDS; e++)
		to[e] = fab_insert(&me, &theirs->names[e]);
}

/* Takes in completions of an endpoint's; writes of the peer with data among them. */
static int reap(int e)
{
	struct fi_cq_data_entry got[16];
	struct fi_cq_err_entry err = {0};
	ssize_t n = fi_cq_read(cqs[e], got, 16);
	int own = 0;

	if (n == -FI_EAVAIL) {
		CHECK(fi_cq_readerr(cqs[e], &err, 0) == 1, "fi_cq_readerr");
		fab_die(__LINE__, "an operation failed: %s", fi_strerror(err.err));
	}
	CHECK(n >= 0 || n == -FI_EAGAIN, "fi_cq_read: %s", fi_strerror((int)-n));
	for (ssize_t i = 0; i < n; i++)
		own += !!got[i].op_context;
	return own;
}

#define POSTED(e, call)                                                                           \
	do {                                                                                      \
		long ret_;                                                                        \
		while ((ret_ = (call)) == -FI_EAGAIN)                                             \
			done[e] += reap(e);                                                       \
		CHECK(!ret_, "%s: %s", #call, fi_strerror((int)-ret_));                           \
	} while (0)

static size_t length(uint64_t *dice)
{
	static const size_t some[] = {1, 2, 8, 64, 200, 1000, 4096, 9000, 16384, 20000, 40000, 65536, 100000, PART};

	return some[next_random(dice) % (sizeof some / sizeof *some)];
}

/* Whether the notification of list n is the second element of the write of its last part. */
static int joined(int n)
{
	return n % 3 == 1;
}

/* How long each operation of this list is, and of what sort: both sides draw it from the same seed. */
struct list {
	int n;
	struct {
		int how;
		size_t len;
	} of[MOST];
};

static struct list list_of(int e, int n, unsigned seed)
{
	uint64_t dice = ((uint64_t)seed << 32) + (unsigned)(n * ENDS + e) * 2654435761u;
	int only_short = next_random(&dice) % 3 == 0;
	struct list l = {.n = 1 + (int)(next_random(&dice) % MOST)};

	for (int i = 0; i < l.n; i++) {
		l.of[i].how = (int)(next_random(&dice) % 7);
		l.of[i].len = length(&dice);
		if (only_short || l.of[i].how == 0)
			l.of[i].len = 1 + l.of[i].len % INJECT;
		if (l.of[i].how == 5)
			l.of[i].len = 8;
	}
	return l;
}

static unsigned mark(int n, int e, int i)
{
	return (unsigned)(n * 131 + e * 31 + i * 7 + 1);
}

/* Where operation i of list n of an endpoint writes. */
static size_t place(int e, int n, int i)
{
	return (size_t)((e * LISTS + n % LISTS) * MOST + i) * PART;
}

/* Which notification that list has. */
static size_t word(int e, int n)
{
	return (size_t)(e * LISTS + n % LISTS);
}

/* Posts list n, and adds to what has to complete before its buffers are used again. */
static void post_list(int e, int n, unsigned seed, unsigned char *from)
{
	struct list l = list_of(e, n, seed);
	static uint64_t context, notification[ENDS * LISTS], old[ENDS * LISTS][MOST];
	struct fid_ep *ep = eps[e];
	struct iovec both[2] = {{NULL, 0}, {&notification[word(e, n)], 8}};
	struct fi_rma_iov marked[2] = {{0, 0, theirs->key},
				       {at_peer(theirs->words, 8 * word(e, n)), 8, theirs->words_key}};
	int first = !joined(n);

	for (int i = 0; i < l.n; i++) {
		size_t off = place(e, n, i), len = l.of[i].len, half = len / 2;
		uint64_t at = at_peer(theirs->base, off), key = theirs->key;
		unsigned char *b = from + off;
		struct iovec iov[2] = {{b, half}, {b + half, len - half}};
		struct fi_rma_iov there[2] = {{at, half, key}, {at + half, len - half, key}};
		struct fi_msg_rma m = {.msg_iov = iov, .iov_count = 2, .addr = to[e], .rma_iov = there, .rma_iov_count = 2,
				       .context = &context, .data = 5};

		fill(b, len, mark(n, e, i));
		if (joined(n) && i == l.n - 1) {
			both[0] = (struct iovec){b, len};
			marked[0].addr = at, marked[0].len = len;
			break;
		}
		switch (l.of[i].how) {
		case 0:
			POSTED(e, fi_inject_write(ep, b, len, to[e], at, key));
			continue;
		case 1:
			POSTED(e, fi_writedata(ep, b, len, NULL, 7, to[e], at, key, &context));
			break;
		case 2:
			POSTED(e, fi_writemsg(ep, &m, 0));
			break;
		case 3:
			POSTED(e, fi_writemsg(ep, &m, FI_DELIVERY_COMPLETE | FI_COMPLETION));
			break;
		case 5:
			POSTED(e, fi_fetch_atomic(ep, b, 1, NULL, &old[word(e, n)][i], NULL, to[e], at, key, FI_UINT64, FI_ATOMIC_WRITE,
						  &context));
			break;
		case 6:
			POSTED(e, fi_writev(ep, iov, NULL, 2, to[e], at, key, &context));
			break;
		default:
			POSTED(e, fi_write(ep, b, len, NULL, to[e], at, key, &context));
		}
		sent[e]++;
	}
	notification[word(e, n)] = (uint64_t)n;
	{
		struct fi_msg_rma m = {.msg_iov = both + first, .iov_count = 2 - first, .addr = to[e], .rma_iov = marked + first,
				       .rma_iov_count = 2 - first, .context = &context};
		int injected = n % 2 && both[0].iov_len + 8 <= INJECT;
		uint64_t flags = FI_FENCE | (injected ? FI_INJECT : 0) | (n % 5 ? 0 : FI_DELIVERY_COMPLETE);

		POSTED(e, fi_writemsg(ep, &m, flags));
		sent[e]++;
	}
	operations += (uint64_t)l.n;
	lists++;
}

static void check_list(int e, int n, unsigned seed)
{
	struct list l = list_of(e, n, seed);
	uint64_t start = now_ns();

	while (words[word(e, n)] != (uint64_t)n) {
		done[e] += reap(e);
		CHECK(now_ns() - start < 60000000000u, "list %d of endpoint %d: no notification for 60 s", n, e);
	}
	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	for (int i = 0; i < l.n; i++) {
		/* What is not there at the notification is not looked for again. */
		size_t len = l.of[i].len, wrong = differs(area + place(e, n, i), len, mark(n, e, i));

		CHECK(wrong == len, "list %d of endpoint %d: operation %d of %d (sort %d, %zu bytes) is not there at byte %zu", n, e,
		      i, l.n, l.of[i].how, len, wrong);
	}
}

/* Waits for the other process. */
static void meet(_Atomic int *own, _Atomic int *other, int at)
{
	*own = at;
	while (*other < at)
		sched_yield();
}

static int side(int own, int seconds, unsigned seed)
{
	unsigned char *from = malloc(SIZE);
	uint64_t end = now_ns() + (uint64_t)seconds * 1000000000u;
	pthread_t thread;
	int round = 0, over;

	fab_role = own ? "second" : "first";
	mine = &sides[own], theirs = &sides[!own];
	open_all();
	CHECK(from && !pthread_create(&thread, NULL, progress, NULL), "no thread");
	do {
		round++;
		memset(area, 0, SIZE);
		mine->over = now_ns() > end;
		meet(&mine->ready, &theirs->ready, round);
		/* Of two endpoints in turns, so that their lists are under way at once. */
		for (int n = round * LISTS; n < (round + 1) * LISTS; n++)
			for (int e = 0; e < ENDS; e++)
				post_list(e, n, seed, from);
		for (int n = round * LISTS; n < (round + 1) * LISTS; n++)
			for (int e = 0; e < ENDS; e++)
				check_list(e, n, seed);
		for (int e = 0; e < ENDS; e++)
			while (done[e] < sent[e])
				done[e] += reap(e);
		over = sides[0].over;
		meet(&mine->checked, &theirs->checked, round);
	} while (!over);
	stop = 1;
	pthread_join(thread, NULL);
	printf("%s: %lu lists, %lu operations\n", fab_role, (unsigned long)lists, (unsigned long)operations);
	fflush(stdout);
	_exit(0);
}

int main(int argc, char **argv)
{
	int seconds = argc > 1 ? atoi(argv[1]) : 5, busy = argc > 3 ? atoi(argv[3]) : 0, bad = 0;
	unsigned seed = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
	pid_t pids[2], spinning[16];

	sides = shared_memory(2 * sizeof *sides);
	CHECK(busy <= 16, "at most 16 busy processes");
	for (int i = 0; i < busy; i++)
		if (!(spinning[i] = fork())) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				;
		}
	for (int i = 0; i < 2; i++)
		if (!(pids[i] = fork())) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			side(i, seconds, seed);
		}
	for (int left = 2; left; left--) {
		int status;
		pid_t ended;

		do
			ended = wait(&status);
		while (ended != pids[0] && ended != pids[1]);
		if (!status)
			continue;
		bad = 1;
		/* The other would wait for it. */
		kill(pids[ended == pids[0]], SIGKILL);
	}
	for (int i = 0; i < busy; i++) {
		kill(spinning[i], SIGKILL);
		waitpid(spinning[i], NULL, 0);
	}
	if (bad)
		return 1;
	printf("fence ok\n");
	return 0;
}

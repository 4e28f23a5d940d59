/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Everything at once, at random microseconds.
 *
 *   storm SECONDS [SEED] [PROCESSES] [auto] [without=WORD,WORD...]
 *
 * Processes talk all to all: messages of every protocol, reads, writes (plain, fenced, ordered, to regions
 * with counters) and atomics.  Meanwhile each of them
 *
 *   kill     is killed
 *   exec     becomes another program in the middle of whatever it does, which has canaries where the
 *            first had its buffers
 *   stop     is stopped and continued
 *   fork     forks a child that holds copies of all descriptors for a while
 *   close    closes everything with operations under way, fills all its buffers with canaries or unmaps
 *            them, and begins anew
 *   cancel   cancels receives and sends
 *   dereg    closes a region and fills it with canaries at once, or unmaps it
 *
 * The first of them is never killed and seldom closes, so that an operation which does not end is noticed.
 * `without=` leaves some of these out, also: directed (receives from one peer), rma, atomic, munmap.
 *
 * Counted, and each has to be zero at the end:
 *
 *   wrong     a completion without error whose bytes are not those of that message or region, a message that
 *             came twice
 *   touched   canaries written: memory whose operation had ended, was closed, cancelled or deregistered
 *   foreign   bytes written in another program
 *   hangs     an operation or a call that did not end within 8 s
 *   blamed    an operation that failed although its peer and the region lived on
 *   crashes   a process that ended otherwise
 *
 * The numbers drawn depend on the seed alone; when they meet does not.
 */
#include "fab.h"

#include <sys/syscall.h>

#define WATCHDOG 8000000000u
enum { MOST = 6, CLASSES = 4, REGIONS = 2, SUB = 512 << 10, WORDS = 64 };
/* Longest message of a class (its tag; the last is untagged), and how many of each a process has under way. */
static const size_t class_len[CLASSES] = {16 << 10, 256 << 10, 2 << 20, 16 << 10};
static const int class_ops[CLASSES] = {16, 4, 2, 8};
enum { SLOTS = 16 + 4 + 2 + 8 };

#define CANARY 0xc5
#define CANARY_WORD 0xc5c5c5c5c5c5c5c5u
#define MAGIC 0x5354524149545354u
/* The same addresses in every program of a slot. */
#define ARENA(slot) ((unsigned char *)0x100000000000 + ((size_t)(slot) << 36))
#define REGION(slot, r) (ARENA(slot) + ((size_t)(1 + (r)) << 32))
/* A part for each peer (what is checked, what is not), and a line for the word of each. */
#define REGION_LEN ((size_t)MOST * SUB + MOST * WORDS)

enum { KILL = 1, EXEC = 2, STOP = 4, FORK = 8, CLOSE = 16, CANCEL = 32, DEREG = 64, DIRECTED = 128, RMA = 256, ATOMIC = 512, MUNMAP = 1024 };
static const char *const deeds[] = {"kill", "exec", "stop", "fork", "close", "cancel", "dereg", "directed", "rma", "atomic", "munmap"};
static unsigned without;
static int procs = 4, progress_auto;
static uint64_t seed;

struct slot {
	volatile uint64_t version; /* odd while the rest changes */
	volatile uint64_t gen, key[REGIONS], at[REGIONS], epoch[REGIONS], born[REGIONS];
	struct name name;
	volatile uint64_t doomed;		   /* the last incarnation that has ended, or is about to */
	volatile uint64_t epochs_over[REGIONS]; /* likewise of its regions */
	volatile uint64_t beat;
	volatile int where; /* line of the call it is in */
};

static struct shared {
	struct slot slots[MOST];
	volatile int stop;
	volatile uint64_t said;
	volatile uint64_t wrong, touched, foreign, hangs, blamed, crashes;
	volatile uint64_t messages, bytes, reads, writes, atomics, failed, kills, execs, stops, forks, closes, cancels, deregs, busy;
	volatile uint64_t errs[512];
} *sh;
static int sh_fd;

#define COUNT(what, n) __sync_fetch_and_add(&sh->what, (uint64_t)(n))

static int me;
static uint64_t gen; /* of this endpoint */
static uint64_t rnd;
static struct fab f;

static uint64_t draw(uint64_t n) { return next_random(&rnd) % n; }
static int has(unsigned deed) { return !(without & deed); }

/* Tells of a finding, if not too many were told. */
#define FOUND(counter, ...)                                                                     \
	do {                                                                                    \
		COUNT(counter, 1);                                                              \
		if (COUNT(said, 1) < 40) {                                                      \
			char found_text[240];                                                   \
			snprintf(found_text, sizeof found_text, __VA_ARGS__);                   \
			fprintf(stderr, "seed %lu: %d.%lu (pid %d), line %d, " #counter ": %s\n", seed, me, gen, (int)getpid(), \
				__LINE__, found_text);                                          \
		}                                                                               \
	} while (0)

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
	uint64_t x = a * 0x9e3779b97f4a7c15u ^ b * 0xc2b2ae3d27d4eb4fu ^ c * 0x165667b19e3779f9u;

	x ^= x >> 29;
	return x * 0xbf58476d1ce4e5b9u;
}

static uint64_t word_at(uint64_t key, size_t i) { return (key ^ i * 0x9e3779b97f4a7c15u) & ~(uint64_t)0x80; }

/* Content that depends on a key and the position, and has no canary word. */
static void paint(unsigned char *b, size_t from, size_t to, uint64_t key)
{
	for (size_t i = from / 8; i * 8 < to; i++) {
		uint64_t w = word_at(key, i);

		memcpy(b + i * 8, &w, to - i * 8 < 8 ? to - i * 8 : 8);
	}
}

/* Where it differs first, or `to`. */
static size_t unlike(const unsigned char *b, size_t from, size_t to, uint64_t key)
{
	for (size_t i = from / 8; i * 8 < to; i++) {
		uint64_t w = word_at(key, i);

		if (memcmp(b + i * 8, &w, to - i * 8 < 8 ? to - i * 8 : 8))
			return i * 8;
	}
	return to;
}

/* Bytes that are not canaries. */
static size_t not_canary(const unsigned char *b, size_t n)
{
	size_t bad = 0, i = 0;

	for (; i + 8 <= n; i += 8) {
		uint64_t w;

		memcpy(&w, b + i, 8);
		if (w != CANARY_WORD)
			for (int k = 0; k < 8; k++)
				bad += b[i + k] != CANARY;
	}
	for (; i < n; i++)
		bad += b[i] != CANARY;
	return bad;
}

static int has_canary(const unsigned char *b, size_t n)
{
	for (size_t i = 0; i + 8 <= n; i += 8) {
		uint64_t w;

		memcpy(&w, b + i, 8);
		if (w == CANARY_WORD)
			return 1;
	}
	return 0;
}

static void map_at(unsigned char *at, size_t len)
{
	void *got = mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	CHECK(got == at, "mmap: %s", strerror(errno));
}

/*
 * One process.
 */
enum kind { SENDS, RECVS, WRITES, READS, FETCHES };

/* An operation: its address is its context.  While it is not under way its buffer is full of canaries. */
struct work {
	struct fi_context2 room;
	enum kind kind;
	int busy, class, directed, cancelled, told;
	unsigned char *buf;
	size_t room_len, len;
	int peer, region;
	uint64_t gen, epoch, key, posted;
	uint64_t checked; /* whether what it reads or writes is */
};

/* What is known of a peer. */
struct peer {
	uint64_t gen, keys[REGIONS], at[REGIONS], epoch[REGIONS];
	fi_addr_t addr;
	uint64_t seq, again; /* since when it takes nothing */
	/* What is in our part of its regions. */
	uint64_t wkey[REGIONS], sum[REGIONS];
	size_t wlen[REGIONS];
	int tainted[REGIONS], sum_known[REGIONS], older[REGIONS]; /* than this incarnation of ours, so not checked */
	/* Which of its messages have come. */
	uint64_t seen_gen;
	uint64_t *seen;
};

enum { SEEN = 1 << 18 };

struct region {
	enum { CLOSED, OPEN, CLOSING, WATCHED, UNMAPPED } state;
	struct fid_mr *mr;
	struct fid_cntr *cntr;
	uint64_t epoch, born, since, until; /* when it is closed, or registered again */
};

static struct work sends[SLOTS], recvs[SLOTS], rmas[MOST][REGIONS];
static struct peer peers[MOST];
static struct region regions[REGIONS];
static size_t arena_len;
static int ordered;
static uint64_t opened;

static unsigned char *take(unsigned char **at, size_t n)
{
	unsigned char *b = *at;

	*at += n;
	return b;
}

static size_t lay_out(int slot)
{
	unsigned char *at = ARENA(slot);
	int n = 0;

	for (int c = 0; c < CLASSES; c++)
		for (int i = 0; i < class_ops[c]; i++, n++) {
			sends[n] = (struct work){.kind = SENDS, .class = c, .buf = take(&at, class_len[c]), .room_len = class_len[c]};
			recvs[n] = (struct work){.kind = RECVS, .class = c, .buf = take(&at, class_len[c]), .room_len = class_len[c], .directed = i % 2};
		}
	for (int k = 0; k < MOST; k++)
		for (int r = 0; r < REGIONS; r++)
			rmas[k][r] = (struct work){.buf = take(&at, SUB / 2), .room_len = SUB / 2, .peer = k, .region = r};
	return (size_t)(at - ARENA(slot));
}

/* The buffer is nobody's any more. */
static void give_back(struct work *w)
{
	memset(w->buf, CANARY, w->room_len);
	w->busy = w->told = 0;
}

/* Before a buffer is used again. */
static void check_canaries(struct work *w)
{
	size_t bad = not_canary(w->buf, w->room_len);

	if (bad) {
		FOUND(touched, "%zu of %zu bytes of a buffer whose %s had ended (%zu bytes, peer %d.%lu, cancelled %d)", bad, w->room_len,
		      w->kind == SENDS ? "send" : w->kind == RECVS ? "receive" : w->kind == WRITES ? "write" : "read or atomic", w->len,
		      w->peer, w->gen, w->cancelled);
		memset(w->buf, CANARY, w->room_len);
	}
}

#define HERE() (sh->slots[me].where = __LINE__, sh->slots[me].beat = now_ns())

static void verify_message(struct work *w, size_t len)
{
	uint64_t h[6];
	size_t bad;
	struct peer *p;

	memcpy(h, w->buf, sizeof h);
	if (len < sizeof h || h[0] != MAGIC || h[1] >= (uint64_t)procs || len != h[5]) {
		FOUND(wrong, "received %zu bytes that are no message, class %d: %016lx %016lx", len, w->class, h[0], h[1]);
		return;
	}
	if (h[3] != gen) {
		FOUND(wrong, "a message for incarnation %lu", h[3]);
		return;
	}
	bad = unlike(w->buf, sizeof h, len, mix(h[1], h[2], h[4]));
	if (bad != len) {
		FOUND(wrong, "message %lu from %lu.%lu: wrong at %zu of %zu, canaries in it %d", h[4], h[1], h[2], bad, len,
		      has_canary(w->buf, len));
		return;
	}
	p = &peers[h[1]];
	if (p->seen_gen != h[2]) {
		p->seen_gen = h[2];
		memset(p->seen, 0, SEEN / 8);
	}
	if (h[4] < SEEN) {
		if (p->seen[h[4] / 64] >> h[4] % 64 & 1)
			FOUND(wrong, "message %lu from %lu.%lu came twice", h[4], h[1], h[2]);
		p->seen[h[4] / 64] |= (uint64_t)1 << h[4] % 64;
	}
	COUNT(messages, 1);
	COUNT(bytes, len);
}

/* An operation has ended. */
static void ended(struct work *w, int err, size_t len)
{
	struct peer *p = &peers[w->peer];
	struct slot *s = &sh->slots[w->peer];
	int lives = w->gen > s->doomed, r = w->region;

	if (!w->busy) {
		FOUND(wrong, "a completion for no operation");
		return;
	}
	if (err) {
		COUNT(failed, 1);
		COUNT(errs[err & 511], 1);
		if (w->kind == RECVS) {
			if (w->directed && lives && err != FI_ECANCELED && has(CANCEL) == 0)
				FOUND(blamed, "a receive from %d.%lu, which lives: %s", w->peer, w->gen, fi_strerror(err));
		} else if (lives && !w->cancelled && (w->kind == SENDS || w->epoch > s->epochs_over[r])) {
			FOUND(blamed, "kind %d, %zu bytes to %d.%lu, which lives: %s", w->kind, w->len, w->peer, w->gen, fi_strerror(err));
		}
	}
	switch (w->kind) {
	case RECVS:
		if (!err)
			verify_message(w, len);
		break;
	case SENDS:
		break;
	case WRITES:
		COUNT(writes, 1);
		if (p->gen != w->gen || p->epoch[r] != w->epoch || !w->checked)
			break;
		if (err) {
			p->tainted[r] = 1;
		} else {
			p->wkey[r] = w->key;
			p->wlen[r] = w->len;
		}
		break;
	case READS: {
		uint64_t fresh = mix((uint64_t)w->peer + 100, w->epoch, 0);
		size_t at = (size_t)me * SUB + (w->checked ? 0 : SUB / 2), bad;

		COUNT(reads, 1);
		if (err)
			break;
		if (has_canary(w->buf, w->len)) {
			FOUND(wrong, "a read of %zu bytes from %d.%lu has canaries", w->len, w->peer, w->gen);
			break;
		}
		if (!w->checked || p->gen != w->gen || p->epoch[r] != w->epoch || p->tainted[r])
			break;
		/* What was written last, and what has been there from the beginning behind it. */
		bad = w->len;
		if (p->wlen[r])
			bad = unlike(w->buf, 0, w->len < p->wlen[r] ? w->len : p->wlen[r], p->wkey[r]);
		else
			for (size_t i = 0; i + 8 <= w->len && bad == w->len; i += 8) {
				uint64_t want = word_at(fresh, (at + i) / 8);

				if (memcmp(w->buf + i, &want, 8))
					bad = i;
			}
		if (bad < w->len && bad < (p->wlen[r] ? p->wlen[r] : w->len))
			FOUND(wrong, "a read of %zu bytes from %d.%lu: wrong at %zu (%zu written)", w->len, w->peer, w->gen, bad, p->wlen[r]);
		break;
	}
	case FETCHES:
		COUNT(atomics, 1);
		if (p->gen != w->gen || p->epoch[r] != w->epoch)
			break;
		if (err) {
			p->sum_known[r] = 0;
		} else {
			uint64_t old;

			memcpy(&old, w->buf, 8);
			if (p->sum_known[r] && old != p->sum[r])
				FOUND(wrong, "a fetching atomic at %d.%lu: %lu, not %lu", w->peer, w->gen, old, p->sum[r]);
			p->sum[r] = old + 1;
			p->sum_known[r] = !p->older[r];
		}
	}
	give_back(w);
}

static int poll_once(void)
{
	struct fi_cq_tagged_entry e[8];
	ssize_t n;

	HERE();
	n = fi_cq_read(f.cq, e, 8);
	if (n == -FI_EAGAIN)
		return 0;
	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry err = {0};

		if (fi_cq_readerr(f.cq, &err, 0) == 1 && err.op_context)
			ended(err.op_context, err.err, err.len);
		/* Without a context: a write of which no completion was asked for. */
		return 1;
	}
	if (n < 0) {
		FOUND(wrong, "fi_cq_read: %s", fi_strerror((int)-n));
		return 0;
	}
	for (ssize_t i = 0; i < n; i++)
		if (e[i].op_context)
			ended(e[i].op_context, 0, e[i].len);
	return (int)n;
}

/* What was posted: kept, or its buffer is ours again. */
static void posted(struct work *w, struct peer *p, ssize_t ret)
{
	if (!ret) {
		if (p)
			p->again = 0;
		return;
	}
	if (ret == -FI_EAGAIN) {
		if (p && !p->again)
			p->again = now_ns();
		if (p && p->again && now_ns() - p->again > WATCHDOG && p->gen > sh->slots[w->peer].doomed) {
			FOUND(hangs, "%d.%lu takes nothing for 8 s", w->peer, p->gen);
			p->again = now_ns();
		}
		give_back(w);
	} else {
		ended(w, (int)-ret, 0);
	}
}

static int take_region(int k, int r)
{
	return sh->slots[k].epoch[r] == peers[k].epoch[r];
}

/* Learns what a peer is now. */
static void meet(int k)
{
	struct slot *s = &sh->slots[k];
	struct peer *p = &peers[k];
	uint64_t v = s->version, g, key[REGIONS], at[REGIONS], epoch[REGIONS], born[REGIONS];
	struct name name;

	if (v & 1)
		return;
	__sync_synchronize();
	g = s->gen;
	name = s->name;
	for (int r = 0; r < REGIONS; r++) {
		key[r] = s->key[r];
		at[r] = s->at[r];
		epoch[r] = s->epoch[r];
		born[r] = s->born[r];
	}
	__sync_synchronize();
	if (s->version != v || !g)
		return;
	if (p->gen != g) {
		int idle = p->gen != 0;

		for (int i = 0; i < SLOTS; i++)
			idle &= !(sends[i].busy && sends[i].peer == k) && !(recvs[i].busy && recvs[i].directed && recvs[i].peer == k);
		for (int r = 0; r < REGIONS; r++)
			idle &= !rmas[k][r].busy;
		HERE();
		if (idle)
			OK(fi_av_remove(f.av, &p->addr, 1, 0));
		p->addr = fab_insert(&f, &name);
		p->gen = g;
		p->seq = 0;
		p->again = 0;
	}
	for (int r = 0; r < REGIONS; r++)
		if (p->epoch[r] != epoch[r]) {
			p->epoch[r] = epoch[r];
			p->keys[r] = key[r];
			p->at[r] = at[r];
			p->wlen[r] = 0;
			p->older[r] = born[r] < opened;
			p->tainted[r] = rmas[k][r].busy || p->older[r];
			p->sum[r] = 0;
			p->sum_known[r] = !rmas[k][r].busy && !p->older[r];
		}
}

static void send_one(int k)
{
	struct peer *p = &peers[k];
	struct work *w = &sends[draw(SLOTS)];
	uint64_t h[6] = {MAGIC, (uint64_t)me, gen, p->gen, p->seq, 0};
	struct iovec iov;
	uint64_t flags = FI_COMPLETION;
	int inject;
	ssize_t ret;

	if (w->busy)
		return;
	check_canaries(w);
	w->len = sizeof h + draw(draw(4) ? w->room_len - sizeof h : w->room_len < 4000 ? w->room_len - sizeof h : 4000);
	if (w->len > w->room_len)
		w->len = w->room_len;
	h[5] = w->len;
	paint(w->buf, sizeof h, w->len, mix(h[1], h[2], h[4]));
	memcpy(w->buf, h, sizeof h);
	w->peer = k, w->gen = p->gen, w->posted = now_ns(), w->cancelled = 0, w->busy = 1;
	iov = (struct iovec){w->buf, w->len};
	inject = w->len <= f.info->tx_attr->inject_size && !draw(3);
	HERE();
	if (inject) {
		ret = w->class == 3 ? fi_inject(f.ep, w->buf, w->len, p->addr) : fi_tinject(f.ep, w->buf, w->len, p->addr, (uint64_t)w->class);
		if (!ret) {
			p->seq++;
			p->again = 0;
			give_back(w);
			return;
		}
	} else if (w->class == 3) {
		struct fi_msg m = {.msg_iov = &iov, .iov_count = 1, .addr = p->addr, .context = w};

		ret = fi_sendmsg(f.ep, &m, flags | (draw(2) ? FI_DELIVERY_COMPLETE : 0) | (draw(8) ? 0 : FI_FENCE));
	} else {
		struct fi_msg_tagged m = {.msg_iov = &iov, .iov_count = 1, .addr = p->addr, .tag = (uint64_t)w->class, .context = w};

		ret = fi_tsendmsg(f.ep, &m, flags | (draw(2) ? FI_DELIVERY_COMPLETE : 0) | (draw(8) ? 0 : FI_FENCE));
	}
	if (!ret)
		p->seq++;
	posted(w, p, ret);
}

static void recv_one(struct work *w)
{
	struct peer *p = NULL;
	fi_addr_t from = FI_ADDR_UNSPEC;
	ssize_t ret;

	check_canaries(w);
	w->peer = me, w->gen = gen;
	if (w->directed) {
		int k = (int)draw((uint64_t)procs);

		p = &peers[k];
		if (!has(DIRECTED) || k == me || !p->gen)
			return;
		from = p->addr;
		w->peer = k, w->gen = p->gen;
	}
	w->posted = now_ns(), w->cancelled = 0, w->len = w->room_len, w->busy = 1;
	HERE();
	if (w->class == 3)
		ret = fi_recv(f.ep, w->buf, w->room_len, NULL, from, w);
	else
		ret = fi_trecv(f.ep, w->buf, w->room_len, NULL, from, (uint64_t)w->class, 0, w);
	posted(w, p, ret);
}

static void rma_one(int k)
{
	struct peer *p = &peers[k];
	int r = (int)draw(REGIONS), what = (int)draw(10);
	struct work *w = &rmas[k][r];
	uint64_t part = p->at[r] + (uint64_t)me * SUB, flags = FI_COMPLETION;
	struct iovec iov;
	struct fi_rma_iov there;
	struct fi_msg_rma m;
	ssize_t ret;

	if (w->busy || !p->keys[r] || !take_region(k, r))
		return;
	check_canaries(w);
	w->gen = p->gen, w->epoch = p->epoch[r], w->posted = now_ns(), w->cancelled = 0, w->busy = 1, w->checked = 1;
	if (what < 2 && has(ATOMIC)) {
		struct fi_ioc one = {w->buf + 64, 1}, old = {w->buf, 1};
		struct fi_rma_ioc at = {p->at[r] + (uint64_t)MOST * SUB + (uint64_t)me * WORDS, 1, p->keys[r]};
		struct fi_msg_atomic a = {.msg_iov = &one, .iov_count = 1, .addr = p->addr, .rma_iov = &at, .rma_iov_count = 1,
					  .datatype = FI_UINT64, .op = FI_SUM, .context = w};

		w->kind = FETCHES;
		w->len = 8;
		memcpy(w->buf + 64, &(uint64_t){1}, 8);
		HERE();
		posted(w, p, fi_fetch_atomicmsg(f.ep, &a, &old, NULL, 1, flags));
		return;
	}
	w->len = 8 + (draw(2) ? draw(SUB / 2 - 8) : draw(9000));
	if (what == 2 && w->len <= f.info->tx_attr->inject_size) {
		/* Told of by nobody. */
		paint(w->buf, 0, w->len, rnd);
		HERE();
		(void)!fi_inject_write(f.ep, w->buf, w->len, p->addr, part + SUB / 2, p->keys[r]);
		give_back(w);
		return;
	}
	w->checked = draw(3) != 0;
	w->kind = what < 6 ? WRITES : READS;
	w->key = mix((uint64_t)me + 200, gen, next_random(&rnd));
	if (w->kind == WRITES)
		paint(w->buf, 0, w->len, w->key);
	iov = (struct iovec){w->buf, w->len};
	there = (struct fi_rma_iov){part + (w->checked ? 0 : SUB / 2), w->len, p->keys[r]};
	m = (struct fi_msg_rma){.msg_iov = &iov, .iov_count = 1, .addr = p->addr, .rma_iov = &there, .rma_iov_count = 1, .context = w};
	if (!draw(4))
		flags |= FI_FENCE;
	HERE();
	if (w->kind == WRITES)
		ret = fi_writemsg(f.ep, &m, flags | (w->checked || draw(2) ? FI_DELIVERY_COMPLETE : 0));
	else
		ret = fi_readmsg(f.ep, &m, flags);
	posted(w, p, ret);
}

/* What we expose has changed. */
static void publish(int whole)
{
	struct slot *s = &sh->slots[me];

	s->version++;
	__sync_synchronize();
	if (whole) {
		s->gen = gen;
		s->name = f.name;
	}
	for (int r = 0; r < REGIONS; r++) {
		s->key[r] = regions[r].state == OPEN ? fi_mr_key(regions[r].mr) : 0;
		s->at[r] = f.info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)REGION(me, r) : 0;
		s->epoch[r] = regions[r].epoch;
		s->born[r] = regions[r].born;
	}
	__sync_synchronize();
	s->version++;
}

static void expose(int r)
{
	static uint64_t epochs;
	struct region *g = &regions[r];

	g->epoch = (gen << 24) + ++epochs;
	paint(REGION(me, r), 0, (size_t)MOST * SUB, mix((uint64_t)me + 100, g->epoch, 0));
	memset(REGION(me, r) + (size_t)MOST * SUB, 0, (size_t)MOST * WORDS);
	HERE();
	OK(fi_mr_reg(f.domain, REGION(me, r), REGION_LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, (uint64_t)r, r ? FI_RMA_EVENT : 0, &g->mr,
		     NULL));
	if (r)
		OK(fi_mr_bind(g->mr, &g->cntr->fid, FI_REMOTE_READ | FI_REMOTE_WRITE));
	g->state = OPEN;
	g->born = now_ns();
	g->until = g->born + draw(120000000);
}

static int busy_close(struct fid *fid, uint64_t since, const char *what)
{
	int ret;

	HERE();
	ret = fi_close(fid);
	if (now_ns() - since > WATCHDOG)
		FOUND(hangs, "closing %s: %lu ms, %s", what, (now_ns() - since) / 1000000, fi_strerror(-ret));
	if (ret == -FI_EBUSY) {
		COUNT(busy, 1);
		return now_ns() - since < 2 * WATCHDOG;
	}
	CHECK(!ret, "closing %s: %s", what, fi_strerror(-ret));
	return 0;
}

/* The next step of what a region goes through. */
static void turn_region(int r)
{
	struct region *g = &regions[r];
	size_t bad;

	switch (g->state) {
	case CLOSED:
		break;
	case OPEN:
		if (!has(DEREG) || now_ns() < g->until)
			break;
		g->since = now_ns();
		sh->slots[me].epochs_over[r] = g->epoch;
		g->state = CLOSING;
		/* fallthrough */
	case CLOSING:
		if (busy_close(&g->mr->fid, g->since, "a region"))
			break;
		COUNT(deregs, 1);
		g->state = has(MUNMAP) && draw(2) ? UNMAPPED : WATCHED;
		if (g->state == UNMAPPED)
			munmap(REGION(me, r), REGION_LEN);
		else
			memset(REGION(me, r), CANARY, REGION_LEN);
		g->until = now_ns() + draw(30000000);
		publish(0);
		break;
	case WATCHED:
	case UNMAPPED:
		if (now_ns() < g->until)
			break;
		if (g->state == UNMAPPED)
			map_at(REGION(me, r), REGION_LEN);
		else if ((bad = not_canary(REGION(me, r), REGION_LEN)))
			FOUND(touched, "%zu bytes of a region that was closed", bad);
		expose(r);
		publish(0);
	}
}

/* Every operation ends. */
static void look_for_hangs(void)
{
	uint64_t now = now_ns();

	for (int i = 0; i < 2 * SLOTS + MOST * REGIONS; i++) {
		struct work *w = i < SLOTS ? &sends[i] : i < 2 * SLOTS ? &recvs[i - SLOTS] : &rmas[(i - 2 * SLOTS) / REGIONS][i % REGIONS];
		int waits = w->kind == RECVS && !w->cancelled && (!w->directed || w->gen > sh->slots[w->peer].doomed);

		if (waits)
			w->posted = now; /* a receive may wait for as long as there is somebody to send */
		if (w->busy && !w->told && now - w->posted > WATCHDOG) {
			FOUND(hangs, "kind %d, %zu bytes, peer %d.%lu (%s), posted %lu ms ago, cancelled %d", w->kind, w->len, w->peer,
			      w->gen, w->gen > sh->slots[w->peer].doomed ? "lives" : "is gone", (now - w->posted) / 1000000, w->cancelled);
			w->told = 1;
		}
	}
}

static void cancel_one(void)
{
	struct work *w = draw(2) ? &recvs[draw(SLOTS)] : &sends[draw(SLOTS)];

	if (!w->busy || w->cancelled)
		return;
	HERE();
	if (!fi_cancel(&f.ep->fid, w)) {
		COUNT(cancels, 1);
		w->cancelled = 1;
		w->posted = now_ns();
	}
}

static void open_all(void)
{
	struct fi_cntr_attr attr = {.events = FI_CNTR_EVENTS_COMP};
	struct fab_options o = {.threading = FI_THREAD_DOMAIN, .cq_size = 1024, .caps = FAB_CAPS | FI_RMA_EVENT};

	opened = now_ns();
	ordered = !draw(3);
	if (ordered)
		o.order = FI_ORDER_RAW | FI_ORDER_WAR | FI_ORDER_WAW;
	if (progress_auto || !draw(4))
		o.threading = FI_THREAD_SAFE;
	if (progress_auto)
		o.progress = FI_PROGRESS_AUTO;
	gen = sh->slots[me].doomed + 1;
	HERE();
	fab_open(&f, o);
	memset(ARENA(me), CANARY, arena_len);
	lay_out(me);
	for (int k = 0; k < MOST; k++) {
		uint64_t *seen = peers[k].seen;

		peers[k] = (struct peer){.seen = seen ? seen : calloc(1, SEEN / 8)};
		CHECK(peers[k].seen, "memory");
	}
	for (int r = 0; r < REGIONS; r++) {
		OK(fi_cntr_open(f.domain, &attr, &regions[r].cntr, NULL));
		expose(r);
	}
	publish(1);
}

/* Closes all with whatever is under way, and looks at the buffers for a while. */
static void close_all(void)
{
	uint64_t since = now_ns(), until;
	size_t bad;
	int unmap = has(MUNMAP) && !draw(3);

	sh->slots[me].doomed = gen;
	COUNT(closes, 1);
	while (busy_close(&f.ep->fid, since, "the endpoint"))
		fi_cq_read(f.cq, &(struct fi_cq_tagged_entry){0}, 1);
	for (int r = 0; r < REGIONS; r++) {
		struct region *g = &regions[r];

		if (g->state == OPEN || g->state == CLOSING)
			while (busy_close(&g->mr->fid, since, "a region"))
				usleep(100);
		else if (g->state == UNMAPPED)
			map_at(REGION(me, r), REGION_LEN);
		g->state = CLOSED;
		OK(fi_close(&g->cntr->fid));
	}
	{
		struct fid *rest[] = {&f.av->fid, &f.cq->fid, &f.domain->fid, &f.fabric->fid};

		for (int i = 0; i < 4; i++)
			while (busy_close(rest[i], since, "the rest"))
				usleep(100);
	}
	fi_freeinfo(f.info);
	if (unmap) {
		munmap(ARENA(me), arena_len);
		for (int r = 0; r < REGIONS; r++)
			munmap(REGION(me, r), REGION_LEN);
		usleep((useconds_t)draw(20000));
		HERE();
		map_at(ARENA(me), arena_len);
		for (int r = 0; r < REGIONS; r++)
			map_at(REGION(me, r), REGION_LEN);
		return;
	}
	memset(ARENA(me), CANARY, arena_len);
	for (int r = 0; r < REGIONS; r++)
		memset(REGION(me, r), CANARY, REGION_LEN);
	for (until = now_ns() + draw(60000000); now_ns() < until;) {
		usleep(2000);
		HERE();
	}
	bad = not_canary(ARENA(me), arena_len);
	if (bad)
		FOUND(touched, "%zu bytes of buffers after everything was closed", bad);
	for (int r = 0; r < REGIONS; r++)
		if ((bad = not_canary(REGION(me, r), REGION_LEN)))
			FOUND(touched, "%zu bytes of a region after everything was closed", bad);
}

static char exec_fd[16], exec_slot[16], exec_gen[24], exec_seed[24];
static char *exec_argv[] = {"storm", "--canary", exec_fd, exec_slot, exec_gen, exec_seed, NULL};

static void on_exec(int sig)
{
	sigset_t none;

	(void)sig;
	/* Not blocked in the new program. */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	execv("/proc/self/exe", exec_argv);
	_exit(9);
}

static void on_fork(int sig)
{
	int err = errno;

	(void)sig;
	/* Not the library's fork: nothing of ours is to run in it. */
	if (!syscall(SYS_fork)) {
		struct timespec t = {0, 300000000};

		nanosleep(&t, NULL);
		_exit(0);
	}
	errno = err;
}

/* Its peers are not to blame. */
static void on_crash(int sig)
{
	sh->slots[me].doomed = gen;
	signal(sig, SIG_DFL);
	raise(sig);
}

static uint64_t next_close(void)
{
	return now_ns() + (me ? draw(1000000000) : 10000000000 + draw(10000000000));
}

static void process(int slot)
{
	static char who[24];
	struct sigaction act = {.sa_handler = on_exec};
	uint64_t looked = 0, closing;

	me = slot;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(who, sizeof who, "process %d", me);
	fab_who = who;
	rnd = mix(seed, (uint64_t)me, sh->slots[me].doomed);
	snprintf(exec_fd, sizeof exec_fd, "%d", sh_fd);
	snprintf(exec_slot, sizeof exec_slot, "%d", me);
	snprintf(exec_gen, sizeof exec_gen, "%lu", sh->slots[me].doomed + 1);
	snprintf(exec_seed, sizeof exec_seed, "%lu", seed);
	arena_len = lay_out(me);
	map_at(ARENA(me), arena_len);
	for (int r = 0; r < REGIONS; r++)
		map_at(REGION(me, r), REGION_LEN);
	signal(SIGCHLD, SIG_IGN);
	sigaction(SIGUSR1, &act, NULL);
	signal(SIGSEGV, on_crash);
	signal(SIGBUS, on_crash);
	signal(SIGABRT, on_crash);
	act.sa_handler = on_fork;
	act.sa_flags = draw(2) ? SA_RESTART : 0;
	sigaction(SIGUSR2, &act, NULL);
	open_all();
	closing = next_close();
	while (!sh->stop) {
		int n = 0;

		for (int i = 0; i < SLOTS; i++)
			if (!recvs[i].busy)
				recv_one(&recvs[i]);
		for (int i = 0; i < 4; i++) {
			int k = (int)draw((uint64_t)procs);

			if (k == me)
				continue;
			meet(k);
			if (!peers[k].gen || peers[k].gen <= sh->slots[k].doomed)
				continue; /* posted to what is gone all the same, now and then */
			send_one(k);
			if (has(RMA))
				rma_one(k);
		}
		for (int i = 0; i < 4; i++)
			n += poll_once();
		for (int r = 0; r < REGIONS; r++)
			turn_region(r);
		if (has(CANCEL) && !draw(20))
			cancel_one();
		if (!n)
			sched_yield();
		if (now_ns() - looked > 100000000) {
			looked = now_ns();
			look_for_hangs();
		}
		if (has(CLOSE) && now_ns() > closing) {
			close_all();
			if (me && draw(2))
				exit(0);
			snprintf(exec_gen, sizeof exec_gen, "%lu", sh->slots[me].doomed + 1);
			open_all();
			closing = next_close();
		}
	}
	close_all();
	exit(0);
}

/* What a process becomes by exec. */
static int canary_program(char **argv)
{
	unsigned char *places[1 + REGIONS];
	size_t lens[1 + REGIONS], bad;
	uint64_t until;

	sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED, atoi(argv[2]), 0);
	CHECK(sh != MAP_FAILED, "mmap: %s", strerror(errno));
	me = atoi(argv[3]);
	gen = strtoull(argv[4], NULL, 0);
	seed = strtoull(argv[5], NULL, 0);
	rnd = mix(seed, gen, 77);
	places[0] = ARENA(me);
	lens[0] = lay_out(me);
	for (int r = 0; r < REGIONS; r++) {
		places[1 + r] = REGION(me, r);
		lens[1 + r] = REGION_LEN;
	}
	for (int i = 0; i < 1 + REGIONS; i++) {
		map_at(places[i], lens[i]);
		memset(places[i], CANARY, lens[i]);
	}
	for (until = now_ns() + 10000000 + draw(90000000); now_ns() < until;) {
		usleep(2000);
		HERE();
	}
	for (int i = 0; i < 1 + REGIONS; i++)
		if ((bad = not_canary(places[i], lens[i])))
			FOUND(foreign, "%zu bytes were written in another program", bad);
	return 0;
}

/*
 * The driver.
 */
static pid_t pids[MOST];
static uint64_t stopped[MOST], started[MOST];

static void start(int k)
{
	fflush(NULL);
	started[k] = now_ns();
	stopped[k] = 0;
	sh->slots[k].beat = started[k];
	pids[k] = fork();
	CHECK(pids[k] >= 0, "fork: %s", strerror(errno));
	if (!pids[k])
		process(k);
}

/* Takes in processes that have ended; returns how many run. */
static int reap(int restart)
{
	int status, n = 0;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (int k = 0; k < procs; k++) {
			if (pids[k] != pid)
				continue;
			pids[k] = 0;
			if (status && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)) {
				me = k, gen = sh->slots[k].doomed + 1;
				FOUND(crashes, "status 0x%x, last at line %d", status, sh->slots[k].where);
			}
			if (sh->slots[k].gen > sh->slots[k].doomed)
				sh->slots[k].doomed = sh->slots[k].gen;
			if (restart)
				start(k);
		}
	for (int k = 0; k < procs; k++)
		n += pids[k] != 0;
	return n;
}

/* Continues who was stopped for long enough, and finds who makes no progress. */
static void tend(int all)
{
	uint64_t now = now_ns();

	for (int k = 0; k < procs; k++) {
		if (!pids[k])
			continue;
		if (stopped[k] && (all || now > stopped[k])) {
			kill(pids[k], SIGCONT);
			stopped[k] = 0;
			sh->slots[k].beat = now;
		}
		if (!stopped[k] && now > sh->slots[k].beat && now - sh->slots[k].beat > WATCHDOG + 1000000000u) {
			char line[160];

			me = k, gen = sh->slots[k].doomed + 1;
			FOUND(hangs, "in a call of line %d for 9 s", sh->slots[k].where);
			if (getenv("STORM_GDB")) {
				snprintf(line, sizeof line, "gdb -p %d -batch -ex 'thread apply all bt' >&2 2>/dev/null", (int)pids[k]);
				(void)!system(line);
			}
			sh->slots[k].doomed = sh->slots[k].gen;
			kill(pids[k], SIGKILL);
			sh->slots[k].beat = now;
		}
	}
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 10;
	uint64_t end, bad;

	if (argc > 5 && !strcmp(argv[1], "--canary"))
		return canary_program(argv);
	seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;
	for (int i = 3; i < argc; i++) {
		if (!strcmp(argv[i], "auto"))
			progress_auto = 1;
		else if (!strncmp(argv[i], "without=", 8))
			for (unsigned d = 0; d < sizeof deeds / sizeof *deeds; d++)
				without |= strstr(argv[i] + 8, deeds[d]) ? 1u << d : 0;
		else
			procs = atoi(argv[i]);
	}
	CHECK(procs >= 2 && procs <= MOST, "2 to %d processes", MOST);
	rnd = mix(seed, 99, 99);
	sh_fd = memfd_create("storm", 0);
	CHECK(sh_fd >= 0 && !ftruncate(sh_fd, sizeof *sh), "memfd: %s", strerror(errno));
	sh = mmap(NULL, sizeof *sh, PROT_READ | PROT_WRITE, MAP_SHARED, sh_fd, 0);
	CHECK(sh != MAP_FAILED, "mmap: %s", strerror(errno));
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int k = 0; k < procs; k++)
		start(k);
	end = now_ns() + (uint64_t)(seconds * 1e9);
	while (now_ns() < end) {
		int k = (int)draw((uint64_t)procs), what = (int)draw(100);

		usleep((useconds_t)draw(40000));
		reap(1);
		tend(0);
		/* Time to open first, mostly. */
		if (!pids[k] || now_ns() - started[k] < 20000000 + draw(200000000))
			continue;
		if (what < 20 && has(KILL) && k) {
			sh->slots[k].doomed = sh->slots[k].gen;
			COUNT(kills, 1);
			kill(pids[k], SIGKILL);
			started[k] = now_ns();
		} else if (what < 40 && has(EXEC) && k) {
			if (stopped[k] || sh->slots[k].gen <= sh->slots[k].doomed)
				continue;
			sh->slots[k].doomed = sh->slots[k].gen;
			COUNT(execs, 1);
			kill(pids[k], SIGUSR1);
			started[k] = now_ns();
		} else if (what < 75 && has(STOP)) {
			if (stopped[k])
				continue;
			COUNT(stops, 1);
			kill(pids[k], SIGSTOP);
			stopped[k] = now_ns() + draw(draw(3) ? 5000000 : 200000000);
		} else if (what < 90 && has(FORK)) {
			if (sh->slots[k].gen <= sh->slots[k].doomed)
				continue;
			COUNT(forks, 1);
			kill(pids[k], SIGUSR2);
		}
	}
	sh->stop = 1;
	for (end = now_ns() + 3 * WATCHDOG; reap(0);) {
		tend(1);
		usleep(1000);
		if (now_ns() > end)
			for (int k = 0; k < procs; k++)
				if (pids[k])
					kill(pids[k], SIGKILL);
	}
	printf("storm: seed %lu, %d processes, %.0f s: %lu messages, %lu MiB, %lu writes, %lu reads, %lu atomics; %lu operations failed\n", seed,
	       procs, seconds, sh->messages, sh->bytes >> 20, sh->writes, sh->reads, sh->atomics, sh->failed);
	printf("%lu kills, %lu execs, %lu stops, %lu forks, %lu closes, %lu cancels, %lu regions closed; busy %lu times\n", sh->kills, sh->execs,
	       sh->stops, sh->forks, sh->closes, sh->cancels, sh->deregs, sh->busy);
	for (int e = 0; e < 512; e++)
		if (sh->errs[e])
			printf("  %lu: %s\n", sh->errs[e], fi_strerror(e));
	printf("wrong %lu, touched %lu, foreign %lu, hangs %lu, blamed %lu, crashes %lu\n", sh->wrong, sh->touched, sh->foreign, sh->hangs,
	       sh->blamed, sh->crashes);
	bad = sh->wrong + sh->touched + sh->foreign + sh->hangs + sh->blamed + sh->crashes;
	if (bad)
		printf("storm FAILED, seed %lu\n", seed);
	else
		puts("storm ok");
	return bad != 0;
}

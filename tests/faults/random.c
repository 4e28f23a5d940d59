/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Random messages between processes of several endpoints and threads, checked against a model.
 *
 *   random SEED MESSAGES [processes=N] [endpoints=N] [threads=N] [auto] [sleep] [shared] [tx=N] [cq=N]
 *
 * Each thread of a process sends so many messages from each endpoint to the same thread of each process and endpoint, by every call there is,
 * with every level of completion, and has a way of its own to receive them: by exact tags in any order, by masks of one source or of any, some of
 * them cancelled, by peeks that are followed by a receive, a claim or a discard; and thread 0 of some seeds by buffers for several untagged
 * messages. All threads post and read one queue. What message K from one to another is both draw from the same numbers. Buffers are written over
 * as soon as a send has completed or was injected; bytes behind a message must stay as they were.
 */
#include "fab.h"

#include <pthread.h>

enum { PROCS = 8, EPS = 3, THREADS = 6, WINDOW = 24, LARGEST = 300000, GUARD = 32, MULTI = 1 << 20 };
enum style { EXACT, OF_ONE, OF_ANY, PEEKS, UNTAGGED };

static struct shared {
	struct name names[PROCS * EPS];
	volatile int ready, done, failed;
	volatile uint64_t messages, again, cancelled;
} *sh;

static int procs = 3, endpoints = 1, threads = 2, is_auto, sleeps, is_shared, tx_size, cq_size, me;
static uint64_t seed, most;
static struct fab f;
static struct fid_ep *eps[EPS], *srx;
static fi_addr_t addrs[PROCS * EPS];

/* An operation. */
struct slot {
	struct fi_context2 room;
	volatile int state; /* FREE, PENDING, DONE, FAILED */
	int err, cancelled;
	size_t len, cap, olen;
	uint64_t tag, data, flags, seq;
	fi_addr_t src;
	unsigned char *buf;
	int is_multi;
};

/* What came to a buffer for several messages. */
struct arrival {
	unsigned char *at;
	size_t len;
	uint64_t data, flags;
	struct slot *of;
};
static struct arrival arrivals[4096];
static volatile unsigned arrived, arrived_taken;
static pthread_mutex_t arrival_lock = PTHREAD_MUTEX_INITIALIZER;

struct what {
	size_t len;
	int call, flags, data;
	uint64_t key;
};

static uint64_t mixed(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static unsigned at_random(uint64_t *state, unsigned n) { return (unsigned)(mixed(*state += 0x9e3779b97f4a7c15u) % n); }

static struct what draw(int t, int src, int dst, uint64_t seq)
{
	static const size_t edges[] = {0, 8, 12, 64, 192, 1024, 4096, 8192, 16384, 32768, 65536, 131072};
	uint64_t s = mixed(seed * 1000003 + (uint64_t)((t * 64 + src) * 64 + dst) * 7919 + seq * 104729);
	struct what w = {.key = mixed(s)};

	w.len = at_random(&s, 3) ? edges[at_random(&s, at_random(&s, 4) ? 8 : 12)] + at_random(&s, 5) : at_random(&s, at_random(&s, 30) ? 5000 : LARGEST);
	w.call = (int)at_random(&s, 8);
	w.flags = (int)at_random(&s, 7);
	w.data = w.call == 2 || w.call == 3 || (w.call >= 6 && !at_random(&s, 3));
	return w;
}

static void paint(unsigned char *b, size_t n, uint64_t key)
{
	for (size_t i = 0; i < n; i += 8) {
		uint64_t v = mixed(key + i);

		memcpy(b + i, &v, n - i < 8 ? n - i : 8);
	}
}

static size_t unlike(const unsigned char *b, size_t n, uint64_t key)
{
	for (size_t i = 0; i < n; i += 8) {
		uint64_t v = mixed(key + i);

		if (memcmp(b + i, &v, n - i < 8 ? n - i : 8))
			return i;
	}
	return n;
}

static uint64_t tag_of(int t, int src, int dst, uint64_t seq) { return (uint64_t)t << 56 | (uint64_t)src << 44 | (uint64_t)dst << 32 | seq; }
static int src_of(uint64_t tag) { return (int)(tag >> 44 & 0xfff); }

static int poll_once(void)
{
	struct fi_cq_tagged_entry e[8];
	fi_addr_t src[8];
	ssize_t n = sleeps ? fi_cq_sreadfrom(f.cq, e, 8, src, NULL, 5) : fi_cq_readfrom(f.cq, e, 8, src);

	if (n == -FI_EAGAIN || n == -FI_EINTR)
		return 0;
	if (n == -FI_EAVAIL) {
		struct fi_cq_err_entry err = {0};
		struct slot *s;

		n = fi_cq_readerr(f.cq, &err, 0);
		if (n == -FI_EAGAIN)
			return 0; /* another thread has it */
		CHECK(n == 1, "fi_cq_readerr: %zd", n);
		s = err.op_context;
		CHECK(s && s->state == PENDING, "an error for no operation: %s", fi_strerror(err.err));
		s->err = err.err, s->len = err.len, s->olen = err.olen, s->tag = err.tag, s->data = err.data, s->flags = err.flags;
		__sync_synchronize();
		s->state = FAILED;
		return 1;
	}
	CHECK(n > 0, "fi_cq_read: %zd (%s)", n, fi_strerror((int)-n));
	for (ssize_t i = 0; i < n; i++) {
		struct slot *s = e[i].op_context;

		CHECK(s, "a completion without a context, flags %lx", e[i].flags);
		if (s->is_multi) {
			/* The last entry of a buffer may come without a message. */
			CHECK(arrived - arrived_taken < 4096, "too many at once");
			arrivals[arrived % 4096] = (struct arrival){e[i].buf, e[i].len, e[i].data, e[i].flags, s};
			__sync_synchronize();
			arrived++;
			continue;
		}
		CHECK(s->state == PENDING, "a completion for no operation: flags %lx, tag %lx, state %d", e[i].flags, e[i].tag, s->state);
		s->len = e[i].len, s->tag = e[i].tag, s->data = e[i].data, s->flags = e[i].flags, s->src = src[i], s->err = 0;
		__sync_synchronize();
		s->state = DONE;
	}
	return (int)n;
}

/* Of a buffer for several messages the last entry is to be seen last: there one thread reads at a time. */
static int poll_queue(void)
{
	int n;

	if (seed % 3)
		return poll_once();
	pthread_mutex_lock(&arrival_lock);
	n = poll_once();
	pthread_mutex_unlock(&arrival_lock);
	return n;
}

/* Each thread. */
struct actor {
	int t, e, id;
	uint64_t rnd;
	struct slot *out, *in; /* WINDOW for each peer; of any */
	uint64_t sent[PROCS * EPS], posted[PROCS * EPS], taken[PROCS * EPS], next[PROCS * EPS];
	uint64_t in_first, in_last, all_taken; /* of any */
	struct slot peek;
	int peeked;
};

static enum style style_of(int t) { return t == 0 && seed % 3 == 0 ? UNTAGGED : (enum style)((t + (int)(seed % 7)) % 4); }

static struct fid_ep *receiver(struct actor *a) { return srx ? srx : eps[a->e]; }

static int send_one(struct actor *a, int dst)
{
	uint64_t seq = a->sent[dst], tag = tag_of(a->t, a->id, dst, seq), flags = FI_COMPLETION, data = mixed(tag);
	struct slot *s = &a->out[dst * WINDOW + seq % WINDOW];
	struct what w = draw(a->t, a->id, dst, seq);
	int untagged = style_of(a->t) == UNTAGGED, injected = 0;
	struct fid_ep *ep = eps[a->e];
	struct iovec iov[3];
	ssize_t ret;

	if (seq == most || s->state == PENDING)
		return 0;
	CHECK(s->state != FAILED, "a send to %d: %s", dst, fi_strerror(s->err));
	if (s->state == DONE)
		CHECK(s->flags & FI_SEND, "a send completed with flags %lx", s->flags);
	if (untagged && w.len < 8)
		w.len = 8;
	if (untagged && w.len > 60000)
		w.len = 60000;
	free(s->buf);
	s->buf = malloc(w.len + 1);
	paint(s->buf, w.len, w.key);
	if (untagged)
		memcpy(s->buf, &tag, 8);
	s->state = PENDING, s->cap = w.len;
	iov[0] = (struct iovec){s->buf, w.len / 3};
	iov[1] = (struct iovec){s->buf + w.len / 3, w.len / 3};
	iov[2] = (struct iovec){s->buf + w.len / 3 * 2, w.len - w.len / 3 * 2};
	if (w.len > f.info->tx_attr->inject_size && (w.call == 1 || w.call == 3))
		w.call -= 1;
	switch (w.call) {
	case 0: ret = untagged ? fi_send(ep, s->buf, w.len, NULL, addrs[dst], s) : fi_tsend(ep, s->buf, w.len, NULL, addrs[dst], tag, s); break;
	case 1:
		ret = untagged ? fi_inject(ep, s->buf, w.len, addrs[dst]) : fi_tinject(ep, s->buf, w.len, addrs[dst], tag);
		injected = 2;
		break;
	case 2: ret = untagged ? fi_senddata(ep, s->buf, w.len, NULL, data, addrs[dst], s) : fi_tsenddata(ep, s->buf, w.len, NULL, data, addrs[dst], tag, s); break;
	case 3:
		ret = untagged ? fi_injectdata(ep, s->buf, w.len, data, addrs[dst]) : fi_tinjectdata(ep, s->buf, w.len, data, addrs[dst], tag);
		injected = 2;
		break;
	case 4: ret = untagged ? fi_sendv(ep, iov, NULL, 3, addrs[dst], s) : fi_tsendv(ep, iov, NULL, 3, addrs[dst], tag, s); break;
	default: {
		static const uint64_t levels[] = {0, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE, FI_FENCE, FI_MORE};
		struct fi_msg_tagged m = {.msg_iov = iov, .iov_count = 3, .addr = addrs[dst], .tag = tag, .context = s, .data = data};
		struct fi_msg u = {.msg_iov = iov, .iov_count = 3, .addr = addrs[dst], .context = s, .data = data};

		flags |= levels[w.flags] | (w.data ? FI_REMOTE_CQ_DATA : 0);
		if (w.len <= f.info->tx_attr->inject_size && w.call == 5)
			flags |= FI_INJECT, injected = 1;
		ret = untagged ? fi_sendmsg(ep, &u, flags) : fi_tsendmsg(ep, &m, flags);
	}
	}
	if (ret == -FI_EAGAIN) {
		s->state = FREE;
		__sync_fetch_and_add(&sh->again, 1);
		return 0;
	}
	CHECK(!ret, "a send of %zu bytes by call %d: %s", w.len, w.call, fi_strerror((int)-ret));
	if (injected)
		memset(s->buf, 0xdd, w.len);
	if (injected == 2)
		s->state = FREE;
	a->sent[dst]++;
	return 1;
}

/* What a receive has got has to be this message. */
static void check_got(struct slot *s, int t, int src, int dst, uint64_t seq)
{
	struct what w = draw(t, src, dst, seq);
	size_t len = w.len < s->cap ? w.len : s->cap, bad;

	CHECK(s->tag == tag_of(t, src, dst, seq), "tag %lx, not %lx", s->tag, tag_of(t, src, dst, seq));
	if (w.len > s->cap)
		CHECK(s->state == FAILED && s->err == FI_ETRUNC && s->olen == w.len - s->cap, "%zu bytes in %zu: %s, olen %zu", w.len, s->cap, fi_strerror(s->err),
		      s->olen);
	else
		CHECK(s->state == DONE && s->len == w.len, "message %lu from %d: %zu bytes, not %zu: %s", seq, src, s->len, w.len, fi_strerror(s->err));
	if (s->state == DONE)
		CHECK(s->src == addrs[src], "message %lu from %d: source %lu", seq, src, s->src);
	CHECK(!!(s->flags & FI_REMOTE_CQ_DATA) == w.data && (!w.data || s->data == mixed(s->tag)), "message %lu from %d: data %lx, flags %lx", seq, src, s->data, s->flags);
	bad = unlike(s->buf, len, w.key);
	CHECK(bad == len, "message %lu of %zu bytes from %d to %d, thread %d, call %d: wrong at %zu", seq, w.len, src, dst, t, w.call, bad);
	for (size_t i = len; i < s->cap + GUARD; i++)
		CHECK(s->buf[i] == 0xee, "message %lu of %zu bytes from %d: written at %zu behind it", seq, w.len, src, i - len);
	s->state = FREE;
	__sync_fetch_and_add(&sh->messages, 1);
}

static void room(struct slot *s, size_t cap)
{
	free(s->buf);
	s->buf = malloc(cap + GUARD);
	CHECK(s->buf, "memory");
	memset(s->buf, 0xee, cap + GUARD);
	s->cap = cap, s->state = PENDING, s->cancelled = 0;
}

/* Posts a receive; whether it was taken. */
static int post(struct actor *a, struct slot *s, fi_addr_t src, uint64_t tag, uint64_t ignore)
{
	ssize_t ret;

	if (at_random(&a->rnd, 3)) {
		ret = fi_trecv(receiver(a), s->buf, s->cap, NULL, srx ? FI_ADDR_UNSPEC : src, tag, ignore, s);
	} else {
		struct iovec iov[2] = {{s->buf, s->cap / 2}, {s->buf + s->cap / 2, s->cap - s->cap / 2}};
		struct fi_msg_tagged m = {.msg_iov = iov, .iov_count = 2, .addr = srx ? FI_ADDR_UNSPEC : src, .tag = tag, .ignore = ignore, .context = s};

		ret = fi_trecvmsg(receiver(a), &m, FI_COMPLETION);
	}
	if (ret == -FI_EAGAIN) {
		s->state = FREE;
		__sync_fetch_and_add(&sh->again, 1);
		return 0;
	}
	CHECK(!ret, "a receive: %s", fi_strerror((int)-ret));
	return 1;
}

static int take_in_order(struct actor *a, int src, enum style style)
{
	struct slot *s;
	int n = 0;

	while (a->taken[src] < a->posted[src]) {
		s = &a->in[src * WINDOW + a->taken[src] % WINDOW];
		if (s->state == PENDING)
			break;
		check_got(s, a->t, src, a->id, s->seq);
		a->taken[src]++;
		n++;
	}
	while (a->posted[src] < most && a->posted[src] - a->taken[src] < WINDOW) {
		uint64_t k = a->posted[src], seq = k;
		size_t cap;

		s = &a->in[src * WINDOW + k % WINDOW];
		/* Exact tags: the receives of a few messages are posted in reverse order. */
		if (style == EXACT && k / 4 * 4 + 4 <= most)
			seq = k / 4 * 4 + 3 - k % 4;
		cap = draw(a->t, src, a->id, seq).len;
		if (style == EXACT)
			cap = at_random(&a->rnd, 20) ? cap + at_random(&a->rnd, 100) : at_random(&a->rnd, (unsigned)cap + 1);
		room(s, cap);
		s->seq = seq;
		if (!post(a, s, style == OF_ONE || at_random(&a->rnd, 2) ? addrs[src] : FI_ADDR_UNSPEC, tag_of(a->t, src, a->id, style == EXACT ? seq : 0),
			  style == EXACT ? 0 : 0xffffffff))
			break;
		a->posted[src]++;
		n++;
	}
	return n;
}

static int take_of_any(struct actor *a, int peers)
{
	struct slot *s;
	int n = 0;

	while (a->in_first < a->in_last) {
		s = &a->in[a->in_first % WINDOW];
		if (s->state == PENDING)
			break;
		if (s->state == FAILED && s->err == FI_ECANCELED) {
			CHECK(s->cancelled, "cancelled by no one");
			for (size_t i = 0; i < s->cap + GUARD; i++)
				CHECK(s->buf[i] == 0xee, "a cancelled receive was written to at %zu", i);
			__sync_fetch_and_add(&sh->cancelled, 1);
			s->state = FREE;
		} else {
			int src = src_of(s->tag);

			CHECK(src < peers, "a message from %d", src);
			check_got(s, a->t, src, a->id, a->next[src]++);
			a->all_taken++;
		}
		a->in_first++;
		n++;
	}
	while (a->all_taken + (a->in_last - a->in_first) < most * (uint64_t)peers && a->in_last - a->in_first < WINDOW) {
		s = &a->in[a->in_last % WINDOW];
		room(s, LARGEST);
		if (!post(a, s, FI_ADDR_UNSPEC, tag_of(a->t, 0, a->id, 0), (uint64_t)0xfff << 44 | 0xffffffff))
			break;
		a->in_last++;
		n++;
	}
	if (a->in_first < a->in_last && !at_random(&a->rnd, 50)) {
		s = &a->in[(a->in_first + at_random(&a->rnd, (unsigned)(a->in_last - a->in_first))) % WINDOW];
		if (s->state == PENDING && !s->cancelled) {
			ssize_t ret;

			s->cancelled = 1;
			ret = fi_cancel(&receiver(a)->fid, s);
			CHECK(!ret || ret == -FI_ENOENT, "fi_cancel: %zd", ret);
		}
	}
	return n;
}

static int peek_one(struct actor *a, int peers)
{
	struct slot *s = &a->peek;
	struct fi_msg_tagged m = {.tag = tag_of(a->t, 0, a->id, 0), .ignore = (uint64_t)0xfff << 44 | 0xffffffff, .addr = FI_ADDR_UNSPEC, .context = s};
	struct iovec iov;
	struct what w;
	ssize_t ret;
	int src;

	if (s->state == PENDING)
		return 0;
	if (s->state == FREE) {
		if (a->all_taken == most * (uint64_t)peers)
			return 0;
		a->peeked = (int)at_random(&a->rnd, 4);
		s->state = PENDING;
		ret = fi_trecvmsg(receiver(a), &m, FI_PEEK | FI_COMPLETION | (a->peeked == 1 || a->peeked == 2 ? FI_CLAIM : a->peeked == 3 ? FI_DISCARD : 0));
		if (ret == -FI_EAGAIN || ret == -FI_ENOMSG) {
			s->state = FREE;
			return 0;
		}
		CHECK(!ret, "a peek: %s", fi_strerror((int)-ret));
		return 1;
	}
	if (s->state == FAILED && a->peeked < 10) {
		CHECK(s->err == FI_ENOMSG, "a peek: %s", fi_strerror(s->err));
		s->state = FREE;
		return 0;
	}
	src = src_of(s->tag);
	CHECK(src < peers, "peeked at a message from %d", src);
	w = draw(a->t, src, a->id, a->next[src]);
	CHECK(s->tag == tag_of(a->t, src, a->id, a->next[src]) && s->len == w.len, "peeked at tag %lx of %zu bytes, not %lx of %zu", s->tag, s->len,
	      tag_of(a->t, src, a->id, a->next[src]), w.len);
	if (a->peeked >= 10 || a->peeked == 3) {
		if (a->peeked == 10)
			check_got(s, a->t, src, a->id, a->next[src]);
		else
			__sync_fetch_and_add(&sh->messages, 1);
		s->state = FREE;
		a->next[src]++;
		a->all_taken++;
		return 1;
	}
	room(s, w.len);
	m.tag = s->tag, m.ignore = 0;
	iov = (struct iovec){s->buf, s->cap};
	m.msg_iov = &iov, m.iov_count = 1;
	do
		ret = a->peeked == 0 ? fi_trecv(receiver(a), s->buf, s->cap, NULL, FI_ADDR_UNSPEC, m.tag, 0, s)
				     : fi_trecvmsg(receiver(a), &m, FI_COMPLETION | FI_CLAIM | (a->peeked == 2 ? FI_DISCARD : 0));
	while (ret == -FI_EAGAIN && poll_queue() >= 0);
	CHECK(!ret, "what was peeked at: %s", fi_strerror((int)-ret));
	a->peeked = a->peeked == 2 ? 11 : 10;
	return 1;
}

#include "parts/random_threads.h"

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Waits: each has an end. Included by strait_xpu.cuh. */
#ifndef STRAIT_XPU_WAIT_CUH
#define STRAIT_XPU_WAIT_CUH
#include "base.cuh"

/* So many polls acquire at once, which is the quicker way; a longer wait polls relaxed, which leaves the L1 cache of the
 * SM to the other warps, and acquires at its end. */
#ifndef STRAIT_XPU_ACQUIRE_POLLS
#define STRAIT_XPU_ACQUIRE_POLLS 256
#endif

namespace strait {
namespace xpu {

/* For timeouts: that of the context. 0 looks once. */
enum : i64 { default_timeout = -1 };

namespace detail {

/* The error word of a peer, or null. */
STRAIT_XPU_FN const u64 *error_of(const strait_xpu_context *ctx, u32 peer)
{
	return ctx->peer_errors && peer < ctx->peer_count ? (const u64 *)ctx->peer_errors + peer : nullptr;
}

/* When a wait ends without what it waits for. The context is not read before there is need. */
struct limit {
	const strait_xpu_context *ctx; /* or null */
	u64 otherwise, start;	       /* without a context: the time of waits that name none */
	i64 timeout;
	u32 peer, polls;
};

STRAIT_XPU_FN limit limit_of(const strait_xpu_context *ctx, i64 timeout_ns, u32 peer)
{
	return limit{ctx, 0, 0, timeout_ns, peer, 0};
}

STRAIT_XPU_FN limit limit_of(u64 otherwise, i64 timeout_ns)
{
	return limit{nullptr, otherwise, 0, timeout_ns, STRAIT_XPU_ANY, 0};
}

/* Every 16th time: the clock, and every 256th: the peer. When the wait began, or an error. By value, so that what polls
 * keeps its limit in registers. */
STRAIT_XPU_CALLED i64 look_around(limit l)
{
	const u64 now = hw::now_ns();
	const u64 most = l.timeout >= 0 ? (u64)l.timeout : l.ctx ? l.ctx->timeout_ns : l.otherwise;
	if (l.start == 0)
		l.start = now;
	else if (now - l.start > most)
		return err_timedout;
	if ((l.polls & 255) == 0 && l.ctx) {
		const u64 *error = error_of(l.ctx, l.peer);
		if (error && hw::load_relaxed(error) != 0)
			return err_canceled;
	}
	return (i64)l.start;
}

/* After a poll without success: 0 to go on. */
STRAIT_XPU_FN int after_poll(limit *l)
{
	if (l->timeout == 0)
		return err_timedout;
	if ((++l->polls & 15) != 0)
		return ok;
	const i64 start = look_around(*l);
	if (start < 0)
		return (int)start;
	l->start = (u64)start;
	return ok;
}

/* Polls between two looks around. The loop over them calls nothing and counts nothing else: with a look at the limit after each
 * poll a signal took 1.2 of a bare flag's time, with loops around it 1.1, and 1.05 as a loop of its own. */
enum : u32 { polls_at_once = 16 };

/* After so many without success: 0 to go on. */
STRAIT_XPU_FN int after_polls(limit *l)
{
	l->polls += polls_at_once;
	const i64 start = look_around(*l);
	if (start < 0)
		return (int)start;
	l->start = (u64)start;
	return ok;
}

template <bool Acquires, class T> STRAIT_XPU_FN bool poll_some(const T *word, cmp how, u64 value, T *v)
{
	STRAIT_XPU_UNROLL_4
	for (u32 i = 0; i < polls_at_once; i++) {
		*v = Acquires ? hw::load_acquire(word) : hw::load_relaxed(word);
		if (holds(how, *v, value))
			return true;
	}
	return false;
}

/* What a wait came to: an error or 0, and what the word was. */
struct polled {
	u64 have;
	int rc;
};

/* A wait beyond the first polls: with a limit, and in one copy of the code. */
template <class T> STRAIT_XPU_CALLED polled poll_long(const T *word, cmp how, u64 value, limit l)
{
	T v = 0;
	for (;;) {
		const int rc = after_polls(&l);
		if (rc != ok)
			return polled{v, rc};
		bool there;
		if (l.polls < STRAIT_XPU_ACQUIRE_POLLS) {
			there = poll_some<true>(word, how, value, &v);
		} else {
			there = poll_some<false>(word, how, value, &v);
			if (there) {
				v = hw::load_acquire(word);
				there = holds(how, v, value);
			}
		}
		if (there)
			return polled{v, ok};
	}
}

template <class T> STRAIT_XPU_FN int poll(const T *word, cmp how, u64 value, limit l, u64 *have)
{
	T v = 0;
	if (l.timeout == 0) {
		*have = v = hw::load_acquire(word);
		return holds(how, v, value) ? (int)ok : (int)err_timedout;
	}
	if (STRAIT_XPU_SELDOM(!poll_some<true>(word, how, value, &v))) {
		const polled p = poll_long(word, how, value, l);
		*have = p.have;
		return p.rc;
	}
	*have = v;
	return ok;
}

/* What a warp's threads tell each other by shuffles and votes orders no memory: the barrier does. A block's has it in it. */
template <scope S> STRAIT_XPU_FN void order_warp()
{
	if (S == scope::warp)
		hw::sync<S>();
}

/* The first thread's result, for all; what is ordered before it there is so for all threads. */
template <scope S> STRAIT_XPU_FN int share(int rc)
{
	rc = (int)(u32)hw::broadcast<S>((u64)(u32)rc);
	order_warp<S>();
	return rc;
}

/* The same by one barrier where the result is 0, as it nearly always is: of a warp by a vote, which does not stand behind an
 * acquiring load's invalidation of the L1 cache, as a shuffle does, for some 0.3 us. Threads other than the first give 0. */
template <scope S> STRAIT_XPU_FN int agree(int rc)
{
	if (hw::any<S>(rc != ok))
		return share<S>(rc);
	order_warp<S>();
	return ok;
}

} // namespace detail

/* Wait until `word` compares so with `value`. What was put before the signal that made it so is seen by all threads of the
 * scope after it. `peer`: the wait ends with err_canceled when the host says that this peer is lost; STRAIT_XPU_ANY: no
 * peer in particular. `have`: what the word was, or null. */
template <scope S, class T>
STRAIT_XPU_FN int wait_until(const strait_xpu_context *ctx, const T *word, cmp how, u64 value,
			     i64 timeout_ns = default_timeout, u32 peer = STRAIT_XPU_ANY, u64 *have = nullptr)
{
	u64 seen = 0;
	int rc = ok;
	if (hw::rank<S>() == 0)
		rc = detail::poll(word, how, value, detail::limit_of(ctx, timeout_ns, peer), &seen);
	if (S != scope::thread) {
		rc = detail::agree<S>(rc);
		if (have)
			seen = hw::broadcast<S>(seen);
	}
	if (have)
		*have = seen;
	return rc;
}

/* A word and its signal in one: what put_word_signal stores. `word`: the value that came with the signal. */
STRAIT_XPU_FN int wait_word(const strait_xpu_context *ctx, const pair64 *place, cmp how, u64 value, u64 *word,
			    i64 timeout_ns = default_timeout, u32 peer = STRAIT_XPU_ANY)
{
	detail::limit l = detail::limit_of(ctx, timeout_ns, peer);
	for (;;) {
		STRAIT_XPU_UNROLL_4
		for (u32 i = 0; i < detail::polls_at_once; i++) {
			const pair64 v = hw::load_whole(place);
			if (holds(how, v.hi, value)) {
				*word = v.lo;
				return ok;
			}
			if (timeout_ns == 0)
				return err_timedout;
		}
		const int rc = detail::after_polls(&l);
		if (rc != ok)
			return rc;
	}
}

} // namespace xpu
} // namespace strait

#endif

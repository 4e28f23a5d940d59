/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Atomic operations on words of 8 bytes of a peer, and notifications. Included by strait_xpu.cuh. */
#ifndef STRAIT_XPU_ATOMICS_CUH
#define STRAIT_XPU_ATOMICS_CUH
#include "window.cuh"

namespace strait {
namespace xpu {

namespace detail {

/* libfabric's numbers of FI_UINT64 and of the operations. */
enum : u64 { type_u64 = 7, op_sum = 2, op_or = 6, op_and = 7, op_xor = 9, op_write = 11, op_cswap = 12 };

STRAIT_XPU_FN bool word_at(const window &w, u64 offset)
{
	return inside(w, offset, 8) && (w.mapped + offset) % 8 == 0;
}

/* A command whose old value comes to `old`, memory of a region of this process; waits for it. The ring tells its first
 * error and how many commands have failed: one of others that failed meanwhile, behind an earlier error, makes it err_io. */
STRAIT_XPU_FN int fetch_by_command(window &w, u32 op, u64 what, u64 offset, u64 operand, u64 compared, u64 *old,
				   i64 timeout_ns)
{
	strait_xpu_command c = command(w, op, offset, type_u64 | what << 8, 0);
	c.operand = operand;
	c.value = compared;
	c.local = (u64)old;
	c.region = region_of(w.ctx, old, 8);
	if (c.region == STRAIT_XPU_NO_REGION)
		return err_inval;
	u64 ticket = 0;
	settle<scope::thread>(0);
	const u64 failed = hw::load_relaxed(&w.ring.status->failed);
	int rc = post_to<scope::thread>(w, c, &ticket);
	if (rc == ok)
		rc = wait_ticket(w.ring, ticket, timeout_ns);
	/* A failure is counted before the command is done. */
	if (rc != ok || hw::load_relaxed(&w.ring.status->failed) == failed)
		return rc;
	const u64 e = hw::load_relaxed(&w.ring.status->error);
	const bool mine = STRAIT_XPU_ERROR_TICKET(e) == ((u32)ticket & 0x7fffffffu);
	return mine ? -(int)STRAIT_XPU_ERROR_CODE(e) : (int)err_io;
}

} // namespace detail

/* Add, without the old value. Relaxed: signal with `add` comes after earlier puts. */
STRAIT_XPU_FN int atomic_add(window &w, u64 offset, u64 v)
{
	if (!detail::word_at(w, offset))
		return err_inval;
	if (w.mapped) {
		hw::add_relaxed((u64 *)(w.mapped + offset), v);
		return ok;
	}
	strait_xpu_command c =
		detail::command(w, STRAIT_XPU_OP_ATOMIC, offset, detail::type_u64 | (u64)detail::op_sum << 8, 0);
	c.operand = v;
	return detail::post_to<scope::thread>(w, c);
}

/* The old value goes to `old`, which has to be in a region of this process if the peer is not mapped; the call then waits
 * for the command. */
#define STRAIT_XPU_FETCH(name, operation, code)                                                                    \
	STRAIT_XPU_FN int name(window &w, u64 offset, u64 v, u64 *old, i64 timeout_ns = default_timeout)           \
	{                                                                                                          \
		if (!detail::word_at(w, offset))                                                                   \
			return err_inval;                                                                          \
		if (!w.mapped)                                                                                     \
			return detail::fetch_by_command(w, STRAIT_XPU_OP_FETCH, detail::code, offset, v, 0, old,   \
							timeout_ns);                                               \
		*old = hw::operation((u64 *)(w.mapped + offset), v);                                               \
		return ok;                                                                                         \
	}
STRAIT_XPU_FETCH(atomic_fetch_add, fetch_add, op_sum)
STRAIT_XPU_FETCH(atomic_fetch_and, fetch_and, op_and)
STRAIT_XPU_FETCH(atomic_fetch_or, fetch_or, op_or)
STRAIT_XPU_FETCH(atomic_fetch_xor, fetch_xor, op_xor)
STRAIT_XPU_FETCH(atomic_swap, exchange, op_write)
#undef STRAIT_XPU_FETCH

STRAIT_XPU_FN int atomic_compare_swap(window &w, u64 offset, u64 want, u64 v, u64 *old, i64 timeout_ns = default_timeout)
{
	if (!detail::word_at(w, offset))
		return err_inval;
	if (!w.mapped)
		return detail::fetch_by_command(w, STRAIT_XPU_OP_COMPARE, detail::op_cswap, offset, v, want, old, timeout_ns);
	*old = hw::compare_swap((u64 *)(w.mapped + offset), want, v);
	return ok;
}

/* ---- Notifications, as of GASPI: words of 4 bytes, from `offset` of a region on. 0: not notified. ---- */

/* Notification `id` gets `value`, not 0, after all that the scope put to the peer before. */
template <scope S> STRAIT_XPU_FN int notify(window &w, u64 offset, u32 id, u32 value)
{
	const u64 at = offset + 4ULL * id;
	if (value == 0 || !detail::inside(w, at, 4) || (w.mapped + at) % 4)
		return err_inval;
	if (w.mapped) {
		hw::sync<S>();
		if (hw::rank<S>() == 0)
			hw::store_release((u32 *)(w.mapped + at), value);
		return ok;
	}
	strait_xpu_command c = detail::command(w, STRAIT_XPU_OP_SIGNAL, at, 0, STRAIT_XPU_SIGNAL_32);
	c.remote = 0;
	c.key = 0;
	c.operand = w.remote + at;
	c.value = value;
	c.context = w.key;
	detail::settle<S>(0);
	return detail::post_to<S>(w, c);
}

/* A put and a notification after it. */
template <scope S>
STRAIT_XPU_FN int put_notify(window &w, u64 offset, const void *src, u64 n, window &nw, u64 notifications, u32 id, u32 value)
{
	const u64 at = notifications + 4ULL * id;
	if (value == 0 || !detail::inside(nw, at, 4) || (nw.mapped + at) % 4 || w.peer != nw.peer)
		return err_inval;
	if (w.mapped && nw.mapped) {
		const int rc = put<S>(w, offset, src, n);
		return rc != ok ? rc : notify<S>(nw, notifications, id, value);
	}
	if (!w.has_ring || !detail::inside(w, offset, n))
		return w.has_ring ? (int)err_inval : (int)err_nosys;
	strait_xpu_command c = detail::command(w, STRAIT_XPU_OP_PUT_SIGNAL, offset, n, STRAIT_XPU_SIGNAL_32);
	c.operand = nw.remote + at;
	c.value = value;
	c.context = nw.key;
	const int rc = detail::source<S>(w, &c, src, n, 0);
	return rc != ok ? rc : detail::post_to<S>(w, c);
}

/* Wait for one of `count` notifications from `first` on; `id`: which. All threads of the scope look, at some each. */
template <scope S>
STRAIT_XPU_FN int notify_waitsome(const strait_xpu_context *ctx, const u32 *notifications, u32 first, u32 count, u32 *id,
				  i64 timeout_ns = default_timeout, u32 peer = STRAIT_XPU_ANY)
{
	detail::limit l = detail::limit_of(ctx, timeout_ns, peer);
	const unsigned rank = hw::rank<S>() % STRAIT_XPU_WARP, step = S == scope::thread ? 1 : STRAIT_XPU_WARP;
	/* Of a block its first warp looks; what that finds is handed to the others. */
	const bool looks = S != scope::block || hw::rank<S>() < STRAIT_XPU_WARP;
	u64 found = ~0ULL;
	int rc = ok;
	while (looks && found == ~0ULL && rc == ok) {
		for (u32 i = 0; i < count && found == ~0ULL; i += step) {
			const bool set = i + rank < count && hw::load_acquire(notifications + first + i + rank) != 0;
			if (S == scope::thread) {
				found = set ? first + i : found;
			} else {
				const u64 which = hw::ballot(set);
				for (unsigned b = 0; which && b < STRAIT_XPU_WARP; b++)
					if (which >> b & 1) {
						found = first + i + b;
						break;
					}
			}
		}
		if (found == ~0ULL) {
			rc = rank == 0 ? detail::after_poll(&l) : (int)ok;
			if (S != scope::thread)
				rc = detail::share<scope::warp>(rc);
		}
	}
	if (S == scope::block) {
		/* Both in one word. */
		found = hw::broadcast<S>(rc == ok ? found : 1ULL << 63 | (u32)rc);
		rc = found >> 63 ? (int)(u32)found : (int)ok;
	} else {
		hw::sync<S>();
	}
	if (rc == ok)
		*id = (u32)found;
	return rc;
}

/* Take a notification: its value, and 0 from now on. Of several threads that take it, one gets the value. */
STRAIT_XPU_FN u32 notify_reset(u32 *notifications, u32 id) { return hw::exchange_acquire(notifications + id, 0); }

} // namespace xpu
} // namespace strait

#endif

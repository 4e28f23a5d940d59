/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Put, get, signals and atomic operations on a region of a peer. Included by strait_xpu.cuh.
 *
 * A region that is mapped is written and read by the kernel itself; all others by commands in a ring. Completion, order
 * and errors: docs/xpu.md. */
#ifndef STRAIT_XPU_WINDOW_CUH
#define STRAIT_XPU_WINDOW_CUH
#include "base.cuh"
#include "copy.cuh"
#include "ring.cuh"
#include "wait.cuh"

namespace strait {
namespace xpu {

/* What a put may be told, or'ed together. */
enum flag : u32 {
	strong = 0,                         /* the signal comes after all that this scope put to the peer before */
	weak = STRAIT_XPU_SIGNAL_WEAK,      /* the signal comes after the put that it is given with */
	add = STRAIT_XPU_SIGNAL_ADD,        /* the signal is added to; else it is set */
	more = STRAIT_XPU_MORE,             /* another command follows at once: no bell yet */
	completion = STRAIT_XPU_COMPLETION, /* commands: an entry in the ring's queue */
	untouched = 1u << 16                /* this kernel has not used the local memory: commands need no fence */
};

/* A region of a peer, in registers of each thread that uses it. */
struct window {
	const strait_xpu_context *ctx;
	u64 mapped, remote, key, length;
	struct ring ring;
	u32 peer;
	bool has_ring, fenced;
};

/* `which`: the ring for what is not mapped. Rings are for one block each, best; any thread may use any. */
STRAIT_XPU_FN int open(window *w, const strait_xpu_context *ctx, u32 peer, u32 region, u32 which = 0)
{
	if (ctx->version != STRAIT_XPU_VERSION || peer >= ctx->peer_count || region >= ctx->region_count)
		return err_inval;
	const strait_xpu_peer *p = (const strait_xpu_peer *)ctx->peers + ((u64)peer * ctx->region_count + region);
	w->ctx = ctx;
	w->mapped = p->mapped;
	w->remote = p->remote;
	w->key = p->key;
	w->length = p->length;
	w->peer = peer;
	w->fenced = false;
	w->has_ring = which < ctx->ring_count && open_ring(&w->ring, (const strait_xpu_ring *)ctx->rings + which) == ok;
	if (w->length == 0)
		return err_inval;
	return w->mapped || w->has_ring ? (int)ok : (int)err_nosys;
}

namespace detail {

STRAIT_XPU_FN bool inside(const window &w, u64 offset, u64 n) { return n <= w.length && offset <= w.length - n; }

/* The region of this process that has these bytes, or STRAIT_XPU_NO_REGION. */
STRAIT_XPU_FN u32 region_of(const strait_xpu_context *ctx, const void *p, u64 n)
{
	const strait_xpu_region *r = (const strait_xpu_region *)ctx->regions;
	for (u32 i = 0; i < ctx->region_count; i++)
		if ((u64)p >= r[i].base && n <= r[i].length && (u64)p - r[i].base <= r[i].length - n)
			return i;
	return STRAIT_XPU_NO_REGION;
}

/* A command to that place, with the fence that is due. */
STRAIT_XPU_FN strait_xpu_command command(window &w, u32 op, u64 offset, u64 n, u32 flags)
{
	strait_xpu_command c = {op, flags & STRAIT_XPU_FLAGS_ALL, w.peer, STRAIT_XPU_NO_REGION, 0, w.remote + offset,
				w.key, n, 0, 0, 0};
	if (w.fenced)
		c.flags |= STRAIT_XPU_FENCE;
	return c;
}

template <scope S> STRAIT_XPU_FN int post_to(window &w, const strait_xpu_command &c, u64 *ticket = nullptr)
{
	const int rc = post<S>(w.ring, c, ticket);
	if (rc == ok)
		w.fenced = false;
	return rc;
}

/* What the kernel did to local memory comes before what the host does to it. */
template <scope S> STRAIT_XPU_FN void settle(u32 flags)
{
	if (flags & untouched)
		return;
	hw::sync<S>();
	/* Those threads write the command. */
	if (hw::rank<S>() < 4)
		hw::fence();
}

/* Where the bytes of a put are: in the command itself, or in a region of this process. */
template <scope S> STRAIT_XPU_FN int source(const window &w, strait_xpu_command *c, const void *src, u64 n, u32 flags)
{
	if (n <= STRAIT_XPU_INLINE_MAX) {
		/* Its signal is a release, unless it is weak. */
		settle<S>(c->op == STRAIT_XPU_OP_PUT ? (u32)untouched : flags & weak ? flags | untouched : flags);
		c->flags |= STRAIT_XPU_INLINE_DATA;
		c->local = gather8((const u8 *)src, n);
		return ok;
	}
	if (n > STRAIT_XPU_LENGTH_MASK)
		return err_msgsize;
	c->local = (u64)src;
	c->region = region_of(w.ctx, src, n);
	if (c->region == STRAIT_XPU_NO_REGION)
		return err_inval;
	settle<S>(flags);
	return ok;
}

} // namespace detail

/* n bytes to `offset` of the window. All threads of the scope have to see them (a barrier after they are written). It returns when they are on their way: `src` may be written again after flush, and
 * they are there after quiet, or when the peer has seen a signal that comes after them. */
template <scope S> STRAIT_XPU_FN int put(window &w, u64 offset, const void *src, u64 n, u32 flags = 0)
{
	if (!detail::inside(w, offset, n))
		return err_inval;
	if (n == 0)
		return ok;
	if (w.mapped) {
		detail::copy_out<S>((void *)(w.mapped + offset), src, n);
		return ok;
	}
	strait_xpu_command c = detail::command(w, STRAIT_XPU_OP_PUT, offset, n, flags & (more | completion));
	const int rc = detail::source<S>(w, &c, src, n, flags);
	return rc != ok ? rc : detail::post_to<S>(w, c);
}

/* n bytes from `offset` of the window. They are there for the threads of the scope after flush or quiet. */
template <scope S> STRAIT_XPU_FN int get(window &w, void *dst, u64 offset, u64 n, u32 flags = 0)
{
	if (!detail::inside(w, offset, n))
		return err_inval;
	if (n == 0)
		return ok;
	if (w.mapped) {
		detail::copy_in<S>(dst, (const void *)(w.mapped + offset), n);
		return ok;
	}
	if (n > STRAIT_XPU_LENGTH_MASK)
		return err_msgsize;
	strait_xpu_command c = detail::command(w, STRAIT_XPU_OP_GET, offset, n, flags & (more | completion));
	c.local = (u64)dst;
	c.region = detail::region_of(w.ctx, dst, n);
	if (c.region == STRAIT_XPU_NO_REGION)
		return err_inval;
	detail::settle<S>(flags);
	return detail::post_to<S>(w, c);
}

namespace detail {

template <scope S> STRAIT_XPU_FN int signal_by_command(window &w, u64 offset, u64 value, u32 flags)
{
	strait_xpu_command c = command(w, STRAIT_XPU_OP_SIGNAL, offset, 0, flags);
	c.remote = 0;
	c.key = 0;
	c.operand = w.remote + offset;
	c.value = value;
	c.context = w.key;
	settle<S>(flags & weak ? flags | untouched : flags);
	return post_to<S>(w, c);
}

} // namespace detail

/* Set or add to a word of 8 bytes. A strong one comes after all that the scope put and read before; a weak one waits for no
 * thread of it. */
template <scope S> STRAIT_XPU_FN int signal(window &w, u64 offset, u64 value, u32 flags = strong)
{
	if (STRAIT_XPU_SELDOM(!detail::inside(w, offset, 8) || (w.mapped + offset) % 8))
		return err_inval;
	if (STRAIT_XPU_SELDOM(!w.mapped))
		return detail::signal_by_command<S>(w, offset, value, flags);
	u64 *word = (u64 *)(w.mapped + offset);
	if (!(flags & weak))
		hw::sync<S>();
	if (hw::rank<S>() == 0) {
		if (flags & weak) {
			if (flags & add)
				hw::add_relaxed(word, value);
			else
				hw::store_relaxed(word, value);
		} else if (flags & add) {
			hw::add_release(word, value);
		} else {
			hw::store_release(word, value);
		}
	}
	return ok;
}

/* A put and a signal after it, in a region of the same peer.
 *
 * 8 bytes just before a weak signal that is set, both in one unit of 16, go as one store and need no release: the quickest
 * put that there is. All else is stores, the group's barrier, and one release by its first thread. */
template <scope S>
STRAIT_XPU_FN int put_signal(window &w, u64 offset, const void *src, u64 n, window &sw, u64 signal_offset, u64 value,
			     u32 flags = strong)
{
	if (!detail::inside(w, offset, n) || !detail::inside(sw, signal_offset, 8) || (sw.mapped + signal_offset) % 8 ||
	    w.peer != sw.peer)
		return err_inval;
	if (w.mapped && sw.mapped) {
		const u64 to = w.mapped + offset, word = sw.mapped + signal_offset;
		if (n == 8 && (flags & (weak | add)) == weak && word == to + 8 && to % 16 == 0) {
			if (hw::rank<S>() == 0)
				hw::store_whole((pair64 *)to, pair64{detail::gather8((const u8 *)src, 8), value});
			return ok;
		}
		detail::copy_out<S>((void *)to, src, n);
		/* A weak signal needs its put's bytes before it, and so the release. */
		return signal<S>(sw, signal_offset, value, n ? flags & ~(u32)weak : flags);
	}
	if (!w.has_ring)
		return err_nosys;
	strait_xpu_command c = detail::command(w, STRAIT_XPU_OP_PUT_SIGNAL, offset, n, flags);
	c.operand = sw.remote + signal_offset;
	c.value = value;
	c.context = sw.key;
	const int rc = detail::source<S>(w, &c, src, n, flags);
	return rc != ok ? rc : detail::post_to<S>(w, c);
}

template <scope S>
STRAIT_XPU_FN int put_signal(window &w, u64 offset, const void *src, u64 n, u64 signal_offset, u64 value,
			     u32 flags = strong)
{
	return put_signal<S>(w, offset, src, n, w, signal_offset, value, flags);
}

/* A word and its signal, which the peer reads by wait_word: 16 bytes at `offset`, a multiple of 16. The word comes with the
 * signal; nothing that was put before is ordered by it. Mapped regions alone have it. */
STRAIT_XPU_FN int put_word_signal(window &w, u64 offset, u64 word, u64 signal)
{
	if (!detail::inside(w, offset, 16) || (w.mapped + offset) % 16)
		return err_inval;
	if (!w.mapped)
		return err_nosys;
	hw::store_whole((pair64 *)(w.mapped + offset), pair64{word, signal});
	return ok;
}

/* Single words. */
STRAIT_XPU_FN int put_word(window &w, u64 offset, u64 word)
{
	return signal<scope::thread>(w, offset, word, weak);
}

STRAIT_XPU_FN int get_word(window &w, u64 *word, u64 offset)
{
	if (!detail::inside(w, offset, 8) || (w.mapped + offset) % 8)
		return err_inval;
	if (!w.mapped)
		return get<scope::thread>(w, word, offset, 8);
	*word = hw::load_relaxed((const u64 *)(w.mapped + offset));
	return ok;
}

/* Later puts of the scope to this peer come after the earlier ones. */
template <scope S> STRAIT_XPU_FN void fence(window &w)
{
	hw::sync<S>();
	if (w.mapped)
		hw::fence();
	else
		w.fenced = true;
}

/* Until what was put may be written again, and what was got is there. */
template <scope S> STRAIT_XPU_FN int flush(window &w, i64 timeout_ns = default_timeout)
{
	if (!w.mapped)
		return flush<S>(w.ring, timeout_ns);
	hw::sync<S>();
	return ok;
}

/* Until what was put is there. */
template <scope S> STRAIT_XPU_FN int quiet(window &w, i64 timeout_ns = default_timeout)
{
	if (!w.mapped)
		return quiet<S>(w.ring, timeout_ns);
	hw::sync<S>();
	hw::fence();
	hw::sync<S>();
	const u64 *lost = hw::rank<S>() == 0 ? detail::error_of(w.ctx, w.peer) : nullptr;
	return detail::share<S>(lost && hw::load_relaxed(lost) ? (int)err_canceled : (int)ok);
}

/* The first error there was: of the peer, else of the ring. `code`: an errno; `ticket`: the command's, or all ones. Returns
 * whether there is one. */
STRAIT_XPU_FN bool last_error(const window &w, u32 *code, u32 *ticket)
{
	const u64 *lost = detail::error_of(w.ctx, w.peer);
	u64 e = lost ? hw::load_relaxed(lost) : 0;
	*ticket = ~0u;
	if (e == 0 && w.has_ring) {
		e = hw::load_relaxed(&w.ring.status->error);
		*ticket = STRAIT_XPU_ERROR_TICKET(e);
	}
	*code = STRAIT_XPU_ERROR_CODE(e);
	return e != 0;
}

} // namespace xpu
} // namespace strait

#endif

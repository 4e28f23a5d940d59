/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* GASPI's names in kernels. Included by strait_xpu.cuh.
 *
 * A segment is a region of the context; its notifications are words of 4 bytes in a region of the same number for all
 * segments, `notifications` bytes from the start of the segment's part on. A queue is a ring. Calls are made by a whole
 * block, unless their name ends in _warp or _thread. Timeouts are GASPI's: milliseconds, GASPI_BLOCK waits as long as the
 * context says, GASPI_TEST looks once. */
#ifndef STRAIT_XPU_GASPI_CUH
#define STRAIT_XPU_GASPI_CUH
#include "atomics.cuh"

#define GPU_GASPI_BLOCK (-1LL)
#define GPU_GASPI_TEST 0LL

/* As GASPI's return values. */
enum gpu_gaspi_return { GPU_GASPI_ERROR = -1, GPU_GASPI_SUCCESS = 0, GPU_GASPI_TIMEOUT = 1, GPU_GASPI_QUEUE_FULL = 2 };

/* What a kernel has of GASPI. */
struct gpu_gaspi {
	const strait_xpu_context *ctx;
	strait_xpu_u32 notify_region; /* where notifications are */
	strait_xpu_u32 notify_count;  /* of each segment */
};

namespace strait {
namespace xpu {
namespace detail {

STRAIT_XPU_FN gpu_gaspi_return gaspi_of(int rc)
{
	return rc == ok ? GPU_GASPI_SUCCESS
	     : rc == err_timedout ? GPU_GASPI_TIMEOUT
	     : rc == err_again ? GPU_GASPI_QUEUE_FULL : GPU_GASPI_ERROR;
}

STRAIT_XPU_FN i64 gaspi_timeout(i64 ms) { return ms < 0 ? (i64)default_timeout : ms > (i64)(~0ULL >> 1) / 1000000 ? (i64)(~0ULL >> 1) : ms * 1000000; }

STRAIT_XPU_FN u64 notifications_of(const gpu_gaspi &g, u32 segment) { return 4ULL * g.notify_count * segment; }

/* This process's notifications of a segment, or null. */
STRAIT_XPU_FN u32 *own_notifications(const gpu_gaspi &g, u32 segment)
{
	const strait_xpu_region *r = (const strait_xpu_region *)g.ctx->regions + g.notify_region;
	if (g.notify_region >= g.ctx->region_count || notifications_of(g, segment) + 4ULL * g.notify_count > r->length)
		return nullptr;
	return (u32 *)(r->base + notifications_of(g, segment));
}

STRAIT_XPU_FN const u8 *own_bytes(const gpu_gaspi &g, u32 segment, u64 offset, u64 n)
{
	const strait_xpu_region *r = (const strait_xpu_region *)g.ctx->regions + segment;
	if (segment >= g.ctx->region_count || n > r->length || offset > r->length - n)
		return nullptr;
	return (const u8 *)r->base + offset;
}

template <scope S>
STRAIT_XPU_FN gpu_gaspi_return gaspi_write_notify(const gpu_gaspi &g, u32 local, u64 local_offset, u32 rank, u32 remote,
						  u64 remote_offset, u64 n, u32 id, u32 value, u32 queue)
{
	window w, nw;
	const u8 *from = own_bytes(g, local, local_offset, n);
	if (!from || id >= g.notify_count || open(&w, g.ctx, rank, remote, queue) != ok ||
	    open(&nw, g.ctx, rank, g.notify_region, queue) != ok)
		return GPU_GASPI_ERROR;
	return gaspi_of(put_notify<S>(w, remote_offset, from, n, nw, notifications_of(g, remote), id, value));
}

template <scope S>
STRAIT_XPU_FN gpu_gaspi_return gaspi_waitsome(const gpu_gaspi &g, u32 segment, u32 first, u32 count, u32 *id, i64 ms)
{
	u32 *words = own_notifications(g, segment);
	if (!words || first >= g.notify_count || count > g.notify_count - first)
		return GPU_GASPI_ERROR;
	return gaspi_of(notify_waitsome<S>(g.ctx, words, first, count, id, gaspi_timeout(ms)));
}

} // namespace detail
} // namespace xpu
} // namespace strait

/* gaspi_write: n bytes of a local segment to one of `rank`. */
STRAIT_XPU_FN gpu_gaspi_return gpu_gaspi_write(const gpu_gaspi &g, strait_xpu_u32 local, strait_xpu_u64 local_offset,
					       strait_xpu_u32 rank, strait_xpu_u32 remote, strait_xpu_u64 remote_offset,
					       strait_xpu_u64 n, strait_xpu_u32 queue)
{
	using namespace strait::xpu;
	window w;
	const u8 *from = detail::own_bytes(g, local, local_offset, n);
	if (!from || open(&w, g.ctx, rank, remote, queue) != ok)
		return GPU_GASPI_ERROR;
	return detail::gaspi_of(put<scope::block>(w, remote_offset, from, n));
}

/* gaspi_write_notify: and then the notification. */
STRAIT_XPU_FN gpu_gaspi_return gpu_gaspi_write_notify(const gpu_gaspi &g, strait_xpu_u32 local,
						      strait_xpu_u64 local_offset, strait_xpu_u32 rank,
						      strait_xpu_u32 remote, strait_xpu_u64 remote_offset,
						      strait_xpu_u64 n, strait_xpu_u32 id, strait_xpu_u32 value,
						      strait_xpu_u32 queue)
{
	return strait::xpu::detail::gaspi_write_notify<strait::xpu::scope::block>(g, local, local_offset, rank, remote,
										  remote_offset, n, id, value, queue);
}

STRAIT_XPU_FN gpu_gaspi_return gpu_gaspi_write_notify_warp(const gpu_gaspi &g, strait_xpu_u32 local,
							   strait_xpu_u64 local_offset, strait_xpu_u32 rank,
							   strait_xpu_u32 remote, strait_xpu_u64 remote_offset,
							   strait_xpu_u64 n, strait_xpu_u32 id, strait_xpu_u32 value,
							   strait_xpu_u32 queue)
{
	return strait::xpu::detail::gaspi_write_notify<strait::xpu::scope::warp>(g, local, local_offset, rank, remote,
										 remote_offset, n, id, value, queue);
}

/* gaspi_notify: the notification alone. */
STRAIT_XPU_FN gpu_gaspi_return gpu_gaspi_notify(const gpu_gaspi &g, strait_xpu_u32 remote, strait_xpu_u32 rank,
						strait_xpu_u32 id, strait_xpu_u32 value, strait_xpu_u32 queue)
{
	using namespace strait::xpu;
	window nw;
	if (id >= g.notify_count || open(&nw, g.ctx, rank, g.notify_region, queue) != ok)
		return GPU_GASPI_ERROR;
	return detail::gaspi_of(notify<scope::block>(nw, detail::notifications_of(g, remote), id, value));
}

STRAIT_XPU_FN gpu_gaspi_return gpu_gaspi_notify_waitsome(const gpu_gaspi &g, strait_xpu_u32 segment,
							 strait_xpu_u32 first, strait_xpu_u32 count, strait_xpu_u32 *id,
							 long long ms)
{
	return strait::xpu::detail::gaspi_waitsome<strait::xpu::scope::block>(g, segment, first, count, id, ms);
}

STRAIT_XPU_FN gpu_gaspi_return gpu_gaspi_notify_waitsome_warp(const gpu_gaspi &g, strait_xpu_u32 segment,
							      strait_xpu_u32 first, strait_xpu_u32 count,
							      strait_xpu_u32 *id, long long ms)
{
	return strait::xpu::detail::gaspi_waitsome<strait::xpu::scope::warp>(g, segment, first, count, id, ms);
}

/* gaspi_notify_reset: by one thread; `old`: the value it had. */
STRAIT_XPU_FN gpu_gaspi_return gpu_gaspi_notify_reset(const gpu_gaspi &g, strait_xpu_u32 segment, strait_xpu_u32 id,
						      strait_xpu_u32 *old)
{
	using namespace strait::xpu;
	u32 *words = detail::own_notifications(g, segment);
	if (!words || id >= g.notify_count)
		return GPU_GASPI_ERROR;
	*old = notify_reset(words, id);
	return GPU_GASPI_SUCCESS;
}

/* What calls between a local segment and one of a peer look up in the context's tables, looked up once: what comes after a
 * wait would read them anew from memory each time. */
struct gpu_gaspi_link {
	strait::xpu::window to, notes;
	const strait_xpu_context *ctx;
	const strait::xpu::u8 *from;
	strait_xpu_u64 length, notifications; /* of the local segment; where the peer's notifications are in `notes` */
	strait_xpu_u32 *arrived;	      /* the local segment's notifications */
	strait_xpu_u32 notify_count;
};

STRAIT_XPU_FN gpu_gaspi_return gpu_gaspi_link_open(gpu_gaspi_link *l, const gpu_gaspi &g, strait_xpu_u32 local,
						   strait_xpu_u32 rank, strait_xpu_u32 remote, strait_xpu_u32 queue)
{
	using namespace strait::xpu;
	l->ctx = g.ctx;
	l->from = detail::own_bytes(g, local, 0, 0);
	l->arrived = detail::own_notifications(g, local);
	l->notify_count = g.notify_count;
	l->notifications = detail::notifications_of(g, remote);
	if (!l->from || !l->arrived || open(&l->to, g.ctx, rank, remote, queue) != ok ||
	    open(&l->notes, g.ctx, rank, g.notify_region, queue) != ok)
		return GPU_GASPI_ERROR;
	l->length = ((const strait_xpu_region *)g.ctx->regions + local)->length;
	return GPU_GASPI_SUCCESS;
}

/* As gpu_gaspi_write_notify. */
STRAIT_XPU_FN gpu_gaspi_return gpu_gaspi_link_write_notify(gpu_gaspi_link &l, strait_xpu_u64 local_offset,
							   strait_xpu_u64 remote_offset, strait_xpu_u64 n,
							   strait_xpu_u32 id, strait_xpu_u32 value)
{
	using namespace strait::xpu;
	if (id >= l.notify_count || n > l.length || local_offset > l.length - n)
		return GPU_GASPI_ERROR;
	return detail::gaspi_of(put_notify<scope::block>(l.to, remote_offset, l.from + local_offset, n, l.notes, l.notifications, id, value));
}

/* As gpu_gaspi_notify_waitsome and _notify_reset, of the local segment. */
STRAIT_XPU_FN gpu_gaspi_return gpu_gaspi_link_waitsome(const gpu_gaspi_link &l, strait_xpu_u32 first, strait_xpu_u32 count,
						       strait_xpu_u32 *id, long long ms)
{
	using namespace strait::xpu;
	if (first >= l.notify_count || count > l.notify_count - first)
		return GPU_GASPI_ERROR;
	return detail::gaspi_of(notify_waitsome<scope::block>(l.ctx, l.arrived, first, count, id, detail::gaspi_timeout(ms)));
}

STRAIT_XPU_FN gpu_gaspi_return gpu_gaspi_link_reset(const gpu_gaspi_link &l, strait_xpu_u32 id, strait_xpu_u32 *old)
{
	if (id >= l.notify_count)
		return GPU_GASPI_ERROR;
	*old = strait::xpu::notify_reset(l.arrived, id);
	return GPU_GASPI_SUCCESS;
}

/* gaspi_wait: what was written to peers that are mapped is on its way when the call returns, so that only rings wait. An error
 * once a command of the queue has failed. */
STRAIT_XPU_FN gpu_gaspi_return gpu_gaspi_wait(const gpu_gaspi &g, strait_xpu_u32 queue, long long ms)
{
	using namespace strait::xpu;
	ring r;
	hw::sync<scope::block>();
	if (queue >= g.ctx->ring_count)
		return GPU_GASPI_SUCCESS;
	if (open_ring(&r, (const strait_xpu_ring *)g.ctx->rings + queue) != ok)
		return GPU_GASPI_ERROR;
	const int rc = flush<scope::block>(r, detail::gaspi_timeout(ms));
	/* The first error of the queue stays, as that of a queue that was not repaired, and counts whatever else is still under way. */
	if (rc == ok || rc == err_timedout) {
		const int error = detail::share<scope::block>(hw::rank<scope::block>() == 0 ? detail::ring_error(r) : (int)ok);
		/* Of any kind: ETIMEDOUT of a command is not the wait's own time. */
		if (error != ok)
			return GPU_GASPI_ERROR;
	}
	return rc == ok || rc == err_timedout ? detail::gaspi_of(rc) : GPU_GASPI_ERROR;
}

#endif

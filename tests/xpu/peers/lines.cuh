/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Lines: payload in units of 128 bytes, 120 of payload and 8 of an epoch, that the hardware keeps whole: a form of packets
 * that the device library does not have, since its packets are quicker at every size (docs/measurements/xpu.md).
 *
 * Eight lanes of a warp store a line in one instruction and eight load it in one. That a reader that sees the epoch sees
 * the line's payload, too, is in no memory model: it is so between NVIDIA GPUs over NVLink, and not over PCIe.
 *
 * A unit is what a warp stores in one instruction: 4 lines, 480 bytes. Its first 448 bytes are the 16-byte chunks of the
 * seven first lanes of each line, its last 32 the 8 bytes of each eighth lane, so that all chunks are aligned as the
 * payload is. */
#ifndef STRAIT_TEST_XPU_LINES_CUH
#define STRAIT_TEST_XPU_LINES_CUH

namespace lines {

/* In one instruction, without a branch. */
__device__ inline void store_if(pair64 *p, pair64 v, bool has)
{
	asm volatile("{ .reg .pred t; setp.ne.u32 t, %3, 0; @t st.relaxed.sys.global.v2.b64 [%0], {%1, %2}; }" ::"l"(hw::global(p)),
		     "l"(v.lo), "l"(v.hi), "r"((u32)has)
		     : "memory");
}

enum : u32 {
	line_lanes = 8,
	unit_lines = STRAIT_XPU_WARP / line_lanes,
	unit_chunks = 112 * unit_lines, /* bytes of a unit before those of the eighth lanes */
	unit_bytes = 120 * unit_lines
};

/* What a lane has of each unit. */
struct line_part {
	u32 lane, line, at; /* `at`: in the payload of the unit */
	bool last;	    /* it has 8 bytes and the epoch, not 16 */
};

__device__ inline line_part line_part_of(u32 thread)
{
	const u32 lane = thread % STRAIT_XPU_WARP, line = lane / line_lanes, part = lane % line_lanes;
	const bool last = part == line_lanes - 1;
	return line_part{lane, line, last ? unit_chunks + 8 * line : 16 * ((line_lanes - 1) * line + part), last};
}

/* Of a unit with so many bytes, the line is there. */
__device__ inline bool has_line(const line_part &p, u32 left) { return 112 * p.line < left; }

__device__ inline bool aligned16(const void *p) { return ((u64)p & 15) == 0 && unit_bytes % 16 == 0; }

/* A lane's 16 bytes of the unit at `from`, of which `left` bytes are there. */
__device__ inline pair64 line_from(const line_part &p, const u8 *from, u32 left, bool aligned, u64 epoch)
{
	pair64 v = {0, 0};
	if (left >= unit_bytes && aligned) {
		/* One load for all lanes: an eighth one takes a half. */
		v = hw::load_payload((const pair64 *)(from + (p.at & ~15u)));
		if (p.last && (p.at & 8))
			v.lo = v.hi;
	} else {
		if (p.at < left)
			v.lo = detail::gather8(from + p.at, left - p.at);
		if (!p.last && p.at + 8 < left)
			v.hi = detail::gather8(from + p.at + 8, left - p.at - 8);
	}
	if (p.last)
		v.hi = epoch;
	return v;
}

__device__ inline void line_to(const line_part &p, u8 *to, u32 left, bool aligned, pair64 v)
{
	if (left >= unit_bytes && aligned) {
		if (p.last)
			hw::store_payload((u64 *)(to + p.at), v.lo);
		else
			hw::store_payload((pair64 *)(to + p.at), v);
		return;
	}
	if (p.at < left)
		detail::scatter8(to + p.at, v.lo, left - p.at);
	if (!p.last && p.at + 8 < left)
		detail::scatter8(to + p.at + 8, v.hi, left - p.at - 8);
}

/* Each warp has every `warps`th unit, `deep` of them under way at once. */
template <u32 deep> __device__ inline void lines_out(pair64 *to, const u8 *src, u32 n, u64 epoch, u32 thread, u32 warps)
{
	const line_part p = line_part_of(thread);
	const u32 units = (n + unit_bytes - 1) / unit_bytes;
	const bool aligned = aligned16(src);
	for (u32 u = thread / STRAIT_XPU_WARP; u < units; u += warps * deep) {
		pair64 v[deep];
		STRAIT_XPU_UNROLL
		for (u32 k = 0; k < deep; k++) {
			const u32 at = (u + k * warps) * unit_bytes;
			v[k] = u + k * warps < units ? line_from(p, src + at, n - at, aligned, epoch) : pair64{0, 0};
		}
		/* Lanes that took other ways to their bytes are together again for the one instruction. */
		hw::sync<scope::warp>();
		STRAIT_XPU_UNROLL
		for (u32 k = 0; k < deep; k++) {
			const u32 unit = u + k * warps;
			store_if(to + (u64)unit * STRAIT_XPU_WARP + p.lane, v[k],
					unit < units && has_line(p, n - unit * unit_bytes));
		}
	}
}

template <u32 deep>
__device__ inline int lines_in(detail::limit l, const pair64 *from, u8 *dst, u32 n, u64 epoch, u32 thread, u32 warps)
{
	const line_part p = line_part_of(thread);
	const u32 units = (n + unit_bytes - 1) / unit_bytes;
	const bool aligned = aligned16(dst);
	for (u32 u = thread / STRAIT_XPU_WARP; u < units; u += warps * deep) {
		pair64 v[deep];
		for (;;) {
			bool there = true;
			STRAIT_XPU_UNROLL
			for (u32 k = 0; k < deep; k++) {
				/* A unit or a line that is not there: the first, once more. */
				const u32 unit = u + k * warps < units ? u + k * warps : u;
				const u32 lane = has_line(p, n - unit * unit_bytes) ? p.lane : p.lane % line_lanes;
				v[k] = hw::load_line(from + (u64)unit * STRAIT_XPU_WARP + lane);
			}
			STRAIT_XPU_UNROLL
			for (u32 k = 0; k < deep; k++)
				there &= !p.last || v[k].hi == epoch;
			if (!hw::warp_any(!there))
				break;
			int rc = detail::after_poll(&l);
			if ((l.polls & 15) == 0) {
				/* Each lane has read the clock itself. */
				const bool canceled = hw::warp_any(rc == err_canceled);
				rc = !hw::warp_any(rc != ok) ? (int)ok : canceled ? (int)err_canceled : (int)err_timedout;
			}
			if (rc != ok)
				return rc;
		}
		STRAIT_XPU_UNROLL
		for (u32 k = 0; k < deep; k++) {
			const u32 unit = u + k * warps, at = unit * unit_bytes;
			if (unit < units)
				line_to(p, dst + at, n - at, aligned, v[k]);
		}
	}
	return ok;
}

template <scope S> __device__ int put(window &w, u64 offset, const u8 *src, u32 n, u64 epoch)
{
	pair64 *const to = (pair64 *)(w.mapped + offset);
	const u32 thread = hw::rank<S>(), warps = hw::size<S>() / STRAIT_XPU_WARP;
	if (n <= warps * unit_bytes)
		lines_out<1>(to, src, n, epoch, thread, warps);
	else if (n <= 2 * warps * unit_bytes)
		lines_out<2>(to, src, n, epoch, thread, warps);
	else
		lines_out<4>(to, src, n, epoch, thread, warps);
	return ok;
}

template <scope S> __device__ int take(const strait_xpu_context *ctx, const u8 *at, u8 *dst, u32 n, u64 epoch)
{
	const detail::limit l = detail::limit_of(ctx, default_timeout, STRAIT_XPU_ANY);
	const pair64 *const from = (const pair64 *)at;
	const u32 thread = hw::rank<S>(), warps = hw::size<S>() / STRAIT_XPU_WARP;
	int rc;
	if (n <= warps * unit_bytes)
		rc = lines_in<1>(l, from, dst, n, epoch, thread, warps);
	else if (n <= 2 * warps * unit_bytes)
		rc = lines_in<2>(l, from, dst, n, epoch, thread, warps);
	else
		rc = lines_in<4>(l, from, dst, n, epoch, thread, warps);
	const bool failed = hw::any<S>(rc != ok);
	detail::order_warp<S>();
	return failed ? (int)err_timedout : (int)ok;
}

} // namespace lines

#endif

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Lines: payload in units of 128 bytes, 120 of payload and 8 of an epoch, that the hardware keeps whole. Included by
 * strait_xpu.cuh.
 *
 * Eight lanes of a warp store a line in one instruction and eight load it in one. That a reader that sees the epoch sees
 * the line's payload, too, is in no memory model: it holds between NVIDIA GPUs over NVLink and within one of them, where
 * the litmus tests of ci/xpu have found no line in two parts, and it does not over PCIe. docs/xpu.md says where lines are
 * allowed. Otherwise they are like packets (packets.cuh), at 128/120 of the bytes instead of twice.
 *
 * A unit is what a warp stores in one instruction: 4 lines, 480 bytes. Its first 448 bytes are the 16-byte chunks of the
 * seven first lanes of each line, its last 32 the 8 bytes of each eighth lane, so that all chunks are aligned as the
 * payload is. */
#ifndef STRAIT_XPU_LINES_CUH
#define STRAIT_XPU_LINES_CUH
#include "window.cuh"

namespace strait {
namespace xpu {

namespace detail {

enum : u32 {
	line_lanes = 8,
	unit_lines = STRAIT_XPU_WARP < 8 ? 1 : STRAIT_XPU_WARP / line_lanes,
	unit_chunks = 112 * unit_lines, /* bytes of a unit before those of the eighth lanes */
	unit_bytes = 120 * unit_lines,
	lines_most = 0x40000000 /* bytes of a call */
};

/* What a lane has of each unit. */
struct line_part {
	u32 lane, line, at; /* `at`: in the payload of the unit */
	bool last;	    /* it has 8 bytes and the epoch, not 16 */
};

STRAIT_XPU_FN line_part line_part_of(u32 thread)
{
	const u32 lane = thread % STRAIT_XPU_WARP, line = lane / line_lanes, part = lane % line_lanes;
	const bool last = part == line_lanes - 1;
	return line_part{lane, line, last ? unit_chunks + 8 * line : 16 * ((line_lanes - 1) * line + part), last};
}

/* Of a unit with so many bytes, the line is there. */
STRAIT_XPU_FN bool has_line(const line_part &p, u32 left) { return 112 * p.line < left; }

STRAIT_XPU_FN bool aligned16(const void *p) { return ((u64)p & 15) == 0 && unit_bytes % 16 == 0; }

/* A lane's 16 bytes of the unit at `from`, of which `left` bytes are there. */
STRAIT_XPU_FN pair64 line_from(const line_part &p, const u8 *from, u32 left, bool aligned, u64 epoch)
{
	pair64 v = {0, 0};
	if (left >= unit_bytes && aligned) {
		/* One load for all lanes: an eighth one takes a half. */
		v = hw::load_payload((const pair64 *)(from + (p.at & ~15u)));
		if (p.last && (p.at & 8))
			v.lo = v.hi;
	} else {
		if (p.at < left)
			v.lo = gather8(from + p.at, left - p.at);
		if (!p.last && p.at + 8 < left)
			v.hi = gather8(from + p.at + 8, left - p.at - 8);
	}
	if (p.last)
		v.hi = epoch;
	return v;
}

STRAIT_XPU_FN void line_to(const line_part &p, u8 *to, u32 left, bool aligned, pair64 v)
{
	if (left >= unit_bytes && aligned) {
		if (p.last)
			hw::store_payload((u64 *)(to + p.at), v.lo);
		else
			hw::store_payload((pair64 *)(to + p.at), v);
		return;
	}
	if (p.at < left)
		scatter8(to + p.at, v.lo, left - p.at);
	if (!p.last && p.at + 8 < left)
		scatter8(to + p.at + 8, v.hi, left - p.at - 8);
}

/* Each warp has every `warps`th unit, `deep` of them under way at once. */
template <u32 deep> STRAIT_XPU_FN void lines_out(pair64 *to, const u8 *src, u32 n, u64 epoch, u32 thread, u32 warps)
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
			hw::store_lines(to + (u64)unit * STRAIT_XPU_WARP + p.lane, v[k],
					unit < units && has_line(p, n - unit * unit_bytes));
		}
	}
}

template <u32 deep>
STRAIT_XPU_FN int lines_in(limit l, const pair64 *from, u8 *dst, u32 n, u64 epoch, u32 thread, u32 warps)
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
				v[k] = hw::load_lines(from + (u64)unit * STRAIT_XPU_WARP + lane);
			}
			STRAIT_XPU_UNROLL
			for (u32 k = 0; k < deep; k++)
				there &= !p.last || v[k].hi == epoch;
			if (!hw::warp_any(!there))
				break;
			int rc = after_poll(&l);
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

} // namespace detail

/* Bytes that lines of n bytes take. */
STRAIT_XPU_FN u64 lines_size(u64 n)
{
	const u64 rest = n % detail::unit_bytes;
	const u64 lines = rest > detail::unit_chunks ? (u64)detail::unit_lines : (rest + 111) / 112;
	return (n / detail::unit_bytes * detail::unit_lines + lines) * 128;
}

/* n bytes as lines to `offset` of a mapped window, a multiple of 128; by a warp or a block. `epoch`: not 0 (fresh memory),
 * and not one that was there before. Only where lines stay whole (docs/xpu.md). */
template <scope S> STRAIT_XPU_FN int put_lines(window &w, u64 offset, const void *src, u64 n, u64 epoch)
{
	static_assert(S != scope::thread, "eight lanes store a line");
	if (!w.mapped || !hw::has_lines)
		return err_nosys;
	if (n > detail::lines_most)
		return err_msgsize;
	if (!detail::inside(w, offset, lines_size(n)) || (w.mapped + offset) % 128 || epoch == 0)
		return err_inval;
	pair64 *const to = (pair64 *)(w.mapped + offset);
	const u32 thread = hw::rank<S>(), warps = hw::size<S>() / STRAIT_XPU_WARP, part = (u32)n;
	if (n <= (u64)warps * detail::unit_bytes)
		detail::lines_out<1>(to, (const u8 *)src, part, epoch, thread, warps);
	else if (n <= 2ULL * warps * detail::unit_bytes)
		detail::lines_out<2>(to, (const u8 *)src, part, epoch, thread, warps);
	else
		detail::lines_out<4>(to, (const u8 *)src, part, epoch, thread, warps);
	return ok;
}

/* Wait for the lines at `lines`, in this process's memory, a multiple of 128, and copy their payload to `dst`, where all
 * threads of the scope find it. */
template <scope S>
STRAIT_XPU_FN int take_lines(const strait_xpu_context *ctx, const void *lines, void *dst, u64 n, u64 epoch,
			     i64 timeout_ns = default_timeout, u32 peer = STRAIT_XPU_ANY)
{
	static_assert(S != scope::thread, "eight lanes load a line");
	if (!hw::has_lines)
		return err_nosys;
	if (n > detail::lines_most)
		return err_msgsize;
	if ((u64)lines % 128 || epoch == 0)
		return err_inval;
	const detail::limit l = detail::limit_of(ctx, timeout_ns, peer);
	const pair64 *const from = (const pair64 *)lines;
	const u32 thread = hw::rank<S>(), warps = hw::size<S>() / STRAIT_XPU_WARP, part = (u32)n;
	int rc;
	if (n <= (u64)warps * detail::unit_bytes)
		rc = detail::lines_in<1>(l, from, (u8 *)dst, part, epoch, thread, warps);
	else if (n <= 2ULL * warps * detail::unit_bytes)
		rc = detail::lines_in<2>(l, from, (u8 *)dst, part, epoch, thread, warps);
	else
		rc = detail::lines_in<4>(l, from, (u8 *)dst, part, epoch, thread, warps);
	if (S == scope::warp) {
		/* All lanes have one result. */
		detail::order_warp<S>();
		return rc;
	}
	if (!hw::any<S>(rc != ok))
		return ok;
	return hw::any<S>(rc == err_canceled) ? (int)err_canceled : (int)err_timedout;
}

} // namespace xpu
} // namespace strait

#endif

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Copies by a thread, a warp or a block. Included by strait_xpu.cuh.
 *
 * The side that is far is taken in units of 16 bytes wherever it has them, whatever the alignment of the near side: an
 * NVLink packet costs the same for 1 byte as for 16. Several units of each thread are under way at once. */
#ifndef STRAIT_XPU_COPY_CUH
#define STRAIT_XPU_COPY_CUH
#include "base.cuh"

namespace strait {
namespace xpu {
namespace detail {

/* 16 bytes from an address that is a multiple of sizeof(U). */
template <class U> STRAIT_XPU_FN pair64 gather16(const u8 *p)
{
	u64 w[2] = {0, 0};
	STRAIT_XPU_UNROLL
	for (unsigned i = 0; i < 16 / sizeof(U); i++) {
		const u64 v = (u64)hw::load_payload((const U *)p + i);
		w[i * sizeof(U) / 8] |= v << (i * sizeof(U) % 8 * 8);
	}
	return pair64{w[0], w[1]};
}

template <> STRAIT_XPU_FN pair64 gather16<pair64>(const u8 *p) { return hw::load_payload((const pair64 *)p); }

template <class U> STRAIT_XPU_FN void scatter16(u8 *p, pair64 v)
{
	const u64 w[2] = {v.lo, v.hi};
	STRAIT_XPU_UNROLL
	for (unsigned i = 0; i < 16 / sizeof(U); i++)
		hw::store_payload((U *)p + i, (U)(w[i * sizeof(U) / 8] >> (i * sizeof(U) % 8 * 8)));
}

template <> STRAIT_XPU_FN void scatter16<pair64>(u8 *p, pair64 v) { hw::store_payload((pair64 *)p, v); }

/* Near memory to far memory: stores of 16 bytes. */
struct outward {
	template <class T> static STRAIT_XPU_FN T load(const T *p) { return hw::load_payload(p); }
	template <class U> static STRAIT_XPU_FN pair64 load16(const u8 *p) { return gather16<U>(p); }
	template <class U> static STRAIT_XPU_FN void store16(u8 *p, pair64 v) { hw::store_payload((pair64 *)p, v); }
};

/* Far memory to near memory: loads of 16 bytes. */
struct inward {
	template <class T> static STRAIT_XPU_FN T load(const T *p) { return hw::load_remote(p); }
	template <class U> static STRAIT_XPU_FN pair64 load16(const u8 *p) { return hw::load_remote((const pair64 *)p); }
	template <class U> static STRAIT_XPU_FN void store16(u8 *p, pair64 v) { scatter16<U>(p, v); }
};

/* Units of 16 bytes, of which the far side is a multiple of 16 and the near one of sizeof(U); thread `rank` of `size`. */
template <class Way, class U> STRAIT_XPU_FN void copy_units(u8 *to, const u8 *from, u64 units, unsigned rank, unsigned size)
{
	const unsigned deep = 4;
	u64 i = rank;
	for (; i + (u64)(deep - 1) * size < units; i += (u64)deep * size) {
		pair64 v[deep];
		STRAIT_XPU_UNROLL
		for (unsigned k = 0; k < deep; k++)
			v[k] = Way::template load16<U>(from + (i + (u64)k * size) * 16);
		STRAIT_XPU_UNROLL
		for (unsigned k = 0; k < deep; k++)
			Way::template store16<U>(to + (i + (u64)k * size) * 16, v[k]);
	}
	for (; i < units; i += size)
		Way::template store16<U>(to + i * 16, Way::template load16<U>(from + i * 16));
}

/* The near side has another alignment than the far one. */
template <class Way>
STRAIT_XPU_CALLED void copy_skewed(u8 *to, const u8 *from, u64 units, unsigned rank, unsigned size, u64 skew)
{
	if (skew == 8)
		copy_units<Way, u64>(to, from, units, rank, size);
	else if ((skew & 3) == 0)
		copy_units<Way, u32>(to, from, units, rank, size);
	else
		copy_units<Way, u8>(to, from, units, rank, size);
}

template <scope S, class Way> STRAIT_XPU_FN void copy(u8 *to, const u8 *from, u64 n, u64 far, u64 near)
{
	const unsigned rank = hw::rank<S>(), size = hw::size<S>();
	if (n == 8 && ((far | near) & 7) == 0) {
		if (rank == 0)
			hw::store_payload((u64 *)to, Way::load((const u64 *)from));
		return;
	}
	const u64 before = (16 - (far & 15)) & 15, head = before < n ? before : n;
	const u64 units = (n - head) / 16, rest = head + units * 16;
	for (u64 i = rank; i < head; i += size)
		hw::store_payload(to + i, Way::load(from + i));
	const u64 skew = (near + head) & 15;
	if (skew == 0)
		copy_units<Way, pair64>(to + head, from + head, units, rank, size);
	else if (units)
		copy_skewed<Way>(to + head, from + head, units, rank, size, skew);
	for (u64 i = rest + rank; i < n; i += size)
		hw::store_payload(to + i, Way::load(from + i));
}

template <scope S> STRAIT_XPU_FN void copy_out(void *far, const void *near, u64 n)
{
	copy<S, outward>((u8 *)far, (const u8 *)near, n, (u64)far, (u64)near);
}

template <scope S> STRAIT_XPU_FN void copy_in(void *near, const void *far, u64 n)
{
	copy<S, inward>((u8 *)near, (const u8 *)far, n, (u64)far, (u64)near);
}

/* Up to 8 bytes from anywhere, as a word. */
STRAIT_XPU_FN u64 gather8(const u8 *p, u64 n)
{
	if (n >= 8 && ((u64)p & 7) == 0)
		return hw::load_payload((const u64 *)p);
	u64 v = 0;
	for (u64 i = 0; i < n && i < 8; i++)
		v |= (u64)hw::load_payload(p + i) << (8 * i);
	return v;
}

STRAIT_XPU_FN void scatter8(u8 *p, u64 v, u64 n)
{
	if (n >= 8 && ((u64)p & 7) == 0) {
		hw::store_payload((u64 *)p, v);
		return;
	}
	for (u64 i = 0; i < n && i < 8; i++)
		hw::store_payload(p + i, (u8)(v >> (8 * i)));
}

} // namespace detail
} // namespace xpu
} // namespace strait

#endif

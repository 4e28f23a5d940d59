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

/* Units of 16 bytes to `to`, which is a multiple of 16; thread `rank` of `size`. */
template <class U> STRAIT_XPU_FN void put_units(u8 *to, const u8 *from, u64 units, unsigned rank, unsigned size)
{
	const unsigned deep = 4;
	u64 i = rank;
	for (; i + (u64)(deep - 1) * size < units; i += (u64)deep * size) {
		pair64 v[deep];
		STRAIT_XPU_UNROLL
		for (unsigned k = 0; k < deep; k++)
			v[k] = gather16<U>(from + (i + (u64)k * size) * 16);
		STRAIT_XPU_UNROLL
		for (unsigned k = 0; k < deep; k++)
			hw::store_payload((pair64 *)to + i + (u64)k * size, v[k]);
	}
	for (; i < units; i += size)
		hw::store_payload((pair64 *)to + i, gather16<U>(from + i * 16));
}

template <class U> STRAIT_XPU_FN void get_units(u8 *to, const u8 *from, u64 units, unsigned rank, unsigned size)
{
	const unsigned deep = 4;
	u64 i = rank;
	for (; i + (u64)(deep - 1) * size < units; i += (u64)deep * size) {
		pair64 v[deep];
		STRAIT_XPU_UNROLL
		for (unsigned k = 0; k < deep; k++)
			v[k] = hw::load_remote((const pair64 *)from + i + (u64)k * size);
		STRAIT_XPU_UNROLL
		for (unsigned k = 0; k < deep; k++)
			scatter16<U>(to + (i + (u64)k * size) * 16, v[k]);
	}
	for (; i < units; i += size)
		scatter16<U>(to + i * 16, hw::load_remote((const pair64 *)from + i));
}

/* The near side has another alignment than the far one. */
STRAIT_XPU_CALLED void put_skewed(u8 *to, const u8 *from, u64 units, unsigned rank, unsigned size, u64 skew)
{
	if (skew == 8)
		put_units<u64>(to, from, units, rank, size);
	else if ((skew & 3) == 0)
		put_units<u32>(to, from, units, rank, size);
	else
		put_units<u8>(to, from, units, rank, size);
}

STRAIT_XPU_CALLED void get_skewed(u8 *to, const u8 *from, u64 units, unsigned rank, unsigned size, u64 skew)
{
	if (skew == 8)
		get_units<u64>(to, from, units, rank, size);
	else if ((skew & 3) == 0)
		get_units<u32>(to, from, units, rank, size);
	else
		get_units<u8>(to, from, units, rank, size);
}

STRAIT_XPU_FN u64 head_of(const void *far, u64 n)
{
	const u64 head = (16 - ((u64)far & 15)) & 15;
	return head < n ? head : n;
}

/* Near memory to far memory. */
template <scope S> STRAIT_XPU_FN void copy_out(void *far, const void *near, u64 n)
{
	const unsigned rank = hw::rank<S>(), size = hw::size<S>();
	u8 *to = (u8 *)far;
	const u8 *from = (const u8 *)near;
	if (n == 8 && (((u64)to | (u64)from) & 7) == 0) {
		if (rank == 0)
			hw::store_payload((u64 *)to, hw::load_payload((const u64 *)from));
		return;
	}
	const u64 head = head_of(far, n), units = (n - head) / 16, rest = head + units * 16;
	for (u64 i = rank; i < head; i += size)
		hw::store_payload(to + i, hw::load_payload(from + i));
	const u64 skew = (u64)(from + head) & 15;
	if (skew == 0)
		put_units<pair64>(to + head, from + head, units, rank, size);
	else if (units)
		put_skewed(to + head, from + head, units, rank, size, skew);
	for (u64 i = rest + rank; i < n; i += size)
		hw::store_payload(to + i, hw::load_payload(from + i));
}

/* Far memory to near memory. */
template <scope S> STRAIT_XPU_FN void copy_in(void *near, const void *far, u64 n)
{
	const unsigned rank = hw::rank<S>(), size = hw::size<S>();
	u8 *to = (u8 *)near;
	const u8 *from = (const u8 *)far;
	if (n == 8 && (((u64)to | (u64)from) & 7) == 0) {
		if (rank == 0)
			hw::store_payload((u64 *)to, hw::load_remote((const u64 *)from));
		return;
	}
	const u64 head = head_of(far, n), units = (n - head) / 16, rest = head + units * 16;
	for (u64 i = rank; i < head; i += size)
		hw::store_payload(to + i, hw::load_remote(from + i));
	const u64 skew = (u64)(to + head) & 15;
	if (skew == 0)
		get_units<pair64>(to + head, from + head, units, rank, size);
	else if (units)
		get_skewed(to + head, from + head, units, rank, size, skew);
	for (u64 i = rest + rank; i < n; i += size)
		hw::store_payload(to + i, hw::load_remote(from + i));
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

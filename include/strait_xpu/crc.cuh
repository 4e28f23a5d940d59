/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* CRC32 (zlib's, of Ethernet) and CRC32C (Castagnoli's, of iSCSI), and payload that is checked. Included by strait_xpu.cuh.
 *
 * A CRC is a polynomial modulo another, over GF(2), here with x^0 in bit 31. A word w of 4 bytes after the state s makes
 * it (s ^ w) x^32. Lanes take every W-th word each, at W words a step their state grows by x^(32 W), and what the lanes
 * have is added at the end, each times the x of what comes after it. */
#ifndef STRAIT_XPU_CRC_CUH
#define STRAIT_XPU_CRC_CUH
#include "window.cuh"

#ifdef STRAIT_XPU_HOST
#define STRAIT_XPU_CONSTEXPR constexpr
#define STRAIT_XPU_TABLE
#else
#define STRAIT_XPU_CONSTEXPR __host__ __device__ constexpr
#define STRAIT_XPU_TABLE __device__
#endif

namespace strait {
namespace xpu {

enum class crc_kind : u32 { zlib = 0xedb88320u, castagnoli = 0x82f63b78u };

/* How often payload was checked, read again because it was wrong, and wrong to the end. In device memory, zero at first. */
struct crc_stats {
	u64 checked, retried, failed;
};

namespace detail {

STRAIT_XPU_CONSTEXPR u32 times_x(u32 a, u32 poly) { return a & 1 ? a >> 1 ^ poly : a >> 1; }

STRAIT_XPU_CONSTEXPR u32 times(u32 a, u32 b, u32 poly)
{
	u32 product = 0;
	for (int i = 0; i < 32; i++) {
		product ^= (0u - (b >> 31)) & a;
		b <<= 1;
		a = times_x(a, poly);
	}
	return product;
}

/* x^(2^k), k < 48. */
struct crc_powers {
	u32 of[48];
};

STRAIT_XPU_CONSTEXPR crc_powers make_powers(u32 poly)
{
	crc_powers p = {};
	p.of[0] = 0x40000000u;
	for (int k = 1; k < 48; k++)
		p.of[k] = times(p.of[k - 1], p.of[k - 1], poly);
	return p;
}

/* A factor's products with each value of each half byte. */
struct crc_table {
	u32 of[8][16];
};

/* That of x^bits. */
STRAIT_XPU_CONSTEXPR crc_table make_table(u32 poly, u32 bits)
{
	u32 factor = 0x80000000u;
	for (u32 i = 0; i < bits; i++)
		factor = times_x(factor, poly);
	crc_table t = {};
	for (int j = 0; j < 8; j++)
		for (u32 v = 0; v < 16; v++)
			t.of[j][v] = times(factor, v << (4 * j), poly);
	return t;
}

template <u32 Poly, u32 Bits> STRAIT_XPU_FN u32 step(u32 s)
{
	static STRAIT_XPU_TABLE const crc_table t = make_table(Poly, Bits);
	u32 r = 0;
	STRAIT_XPU_UNROLL
	for (int j = 0; j < 8; j++)
		r ^= t.of[j][s >> (4 * j) & 15];
	return r;
}

/* s times x^(8 bytes). */
template <u32 Poly> STRAIT_XPU_FN u32 advance(u32 s, u64 bytes)
{
	static STRAIT_XPU_TABLE const crc_powers p = make_powers(Poly);
	for (int k = 3; bytes && k < 48; k++, bytes >>= 1)
		if (bytes & 1)
			s = times(s, p.of[k], Poly);
	return s;
}

/* Read from memory itself, so that a second reading is one. */
STRAIT_XPU_FN u32 crc_word(const u8 *p)
{
	if (((u64)p & 3) == 0)
		return hw::load_remote((const u32 *)p);
	u32 w = 0;
	for (int i = 0; i < 4; i++)
		w |= (u32)hw::load_remote(p + i) << (8 * i);
	return w;
}

template <u32 Poly> STRAIT_XPU_FN u32 crc_serial(u32 s, const u8 *p, u64 n)
{
	for (; n >= 4; n -= 4, p += 4)
		s = step<Poly, 32>(s ^ crc_word(p));
	for (; n; n--, p++) {
		s ^= hw::load_remote(p);
		for (int i = 0; i < 8; i++)
			s = times_x(s, Poly);
	}
	return s;
}

/* By a warp; the result is lane 0's. */
template <u32 Poly> STRAIT_XPU_FN u32 crc_by_warp(u32 s, const u8 *p, u64 n)
{
	const unsigned lane = hw::rank<scope::warp>();
	const u64 rounds = n / (4 * STRAIT_XPU_WARP);
	if (rounds) {
		u32 mine = lane == 0 ? s : 0;
		for (u64 i = 0; i < rounds; i++) {
			const u32 w = crc_word(p + (i * STRAIT_XPU_WARP + lane) * 4);
			mine = i == 0 ? mine ^ w : step<Poly, 32 * STRAIT_XPU_WARP>(mine) ^ w;
		}
		u32 factor = step<Poly, 32>(0x80000000u);
		for (unsigned d = 1; d < STRAIT_XPU_WARP; d *= 2) {
			const u32 other = (u32)hw::shuffle(mine, (lane + d) % STRAIT_XPU_WARP);
			mine = times(mine, factor, Poly) ^ other;
			factor = times(factor, factor, Poly);
		}
		s = step<Poly, 32>(mine);
	}
	const u64 done = rounds * 4 * STRAIT_XPU_WARP;
	return lane == 0 ? crc_serial<Poly>(s, p + done, n - done) : 0;
}

template <scope S, u32 Poly> STRAIT_XPU_CALLED u32 crc_of(const u8 *p, u64 n)
{
	if (S == scope::thread)
		return ~crc_serial<Poly>(~0u, p, n);
	const unsigned warps = hw::size<S>() / STRAIT_XPU_WARP;
	if (S == scope::warp)
		return ~(u32)hw::broadcast<S>(crc_by_warp<Poly>(~0u, p, n));
	/* A part for each warp; short payload is the first warp's. */
	const unsigned warp = hw::rank<S>() / STRAIT_XPU_WARP;
	const u64 part = n >= 16384 && warps > 1 ? n / warps / 16 * 16 : n;
	const u64 begin = part * warp, end = part == n ? n : warp == warps - 1 ? n : begin + part;
	u32 mine = 0;
	if (warp == 0 || (part != n && warp < warps))
		mine = crc_by_warp<Poly>(warp == 0 ? ~0u : 0u, p + begin, end - begin);
	return ~hw::block_xor(hw::rank<S>() % STRAIT_XPU_WARP == 0 ? advance<Poly>(mine, n - end) : 0);
}

} // namespace detail

/* The CRC of n bytes, for all threads of the scope. A block has whole warps. */
template <scope S> STRAIT_XPU_FN u32 crc(const void *p, u64 n, crc_kind kind = crc_kind::zlib)
{
	hw::sync<S>();
	return kind == crc_kind::zlib ? detail::crc_of<S, (u32)crc_kind::zlib>((const u8 *)p, n)
				      : detail::crc_of<S, (u32)crc_kind::castagnoli>((const u8 *)p, n);
}

/* Whether n bytes have this CRC. If not they are read again, so many times; err_io if that does not help. `stats`: counted
 * there, or null. */
template <scope S>
STRAIT_XPU_FN int crc_check(const void *p, u64 n, u32 expected, crc_kind kind = crc_kind::zlib, u32 again = 8,
			    crc_stats *stats = nullptr)
{
	u32 tries = 0;
	bool right = crc<S>(p, n, kind) == expected;
	while (!right && tries < again) {
		tries++;
		right = crc<S>(p, n, kind) == expected;
	}
	if (stats && hw::rank<S>() == 0) {
		hw::add_relaxed(&stats->checked, 1);
		if (tries)
			hw::add_relaxed(&stats->retried, tries);
		if (!right)
			hw::add_relaxed(&stats->failed, 1);
	}
	return right ? ok : err_io;
}

/* A put with a signal, and the put's CRC in the 8 bytes at `crc_offset`, all of one window. */
template <scope S>
STRAIT_XPU_FN int put_signal_crc(window &w, u64 offset, const void *src, u64 n, u64 crc_offset, u64 signal_offset,
				 u64 value, u32 flags = strong, crc_kind kind = crc_kind::zlib)
{
	const u64 sum = (u64)crc<S>(src, n, kind);
	int rc = put<S>(w, offset, src, n, more);
	if (rc == ok)
		rc = put<S>(w, crc_offset, &sum, 8, more);
	/* Two puts precede it. */
	return rc == ok ? signal<S>(w, signal_offset, value, flags & ~(u32)weak) : rc;
}

/* Wait for the signal of such a put, then check what came with it. */
template <scope S>
STRAIT_XPU_FN int wait_crc(const strait_xpu_context *ctx, const u64 *word, cmp how, u64 value, const void *data, u64 n,
			   const u64 *sum, crc_stats *stats = nullptr, crc_kind kind = crc_kind::zlib,
			   i64 timeout_ns = default_timeout, u32 peer = STRAIT_XPU_ANY)
{
	const int rc = wait_until<S>(ctx, word, how, value, timeout_ns, peer);
	return rc != ok ? rc : crc_check<S>(data, n, (u32)hw::load_payload(sum), kind, 8, stats);
}

} // namespace xpu
} // namespace strait

#endif

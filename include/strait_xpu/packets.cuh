/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packets: payload that says itself that it is there. Included by strait_xpu.cuh.
 *
 * A packet is a store of 16 bytes that is seen as a whole: 12 of payload and 4 of an epoch. So the sender stores without a
 * release, and the reader knows each packet when it comes, whatever the order: the quickest way up to 16 KiB, at 16/12 of
 * the bytes. The place is one that both sides agree on; it may be used again, with another epoch, once the reader has said
 * that it is done.
 *
 * 32 packets have 96 words of 4 bytes: packet i the words i, 32 + i and 64 + i, so that the threads of a warp read and write
 * payload side by side. Of the last words, packets without any are left out. */
#ifndef STRAIT_XPU_PACKETS_CUH
#define STRAIT_XPU_PACKETS_CUH
#include "window.cuh"

namespace strait {
namespace xpu {

/* Bytes that packets of n bytes take. */
STRAIT_XPU_FN u64 packets_size(u64 n)
{
	const u64 words = n / 4 + (n % 4 != 0), rest = words % 96;
	return (words / 96 * 32 + (rest < 32 ? rest : 32)) * 16;
}

namespace detail {

/* Bytes of a call: what is counted has 32 bits. */
enum : u32 { packets_most = 0x40000000 };

/* Where a packet's first word is in the payload, in words; the others are 32 and 64 behind it. */
STRAIT_XPU_FN u32 first_word(u32 packet) { return packet / 32 * 96 + packet % 32; }

/* Whether n bytes at `p` are words. Then no branch stands between the loads of several packets. */
STRAIT_XPU_FN bool are_words(const void *p, u32 n) { return (((u64)p | n) & 3) == 0; }

/* Word `i` of n bytes. */
template <bool words> STRAIT_XPU_FN u32 word_from(const u8 *src, u32 i, u32 n)
{
	if constexpr (words) {
		return hw::load_payload((const u32 *)src + i);
	} else {
		u32 v = 0;
		for (u32 b = 0; b < 4 && 4 * i + b < n; b++)
			v |= (u32)hw::load_payload(src + 4 * i + b) << (8 * b);
		return v;
	}
}

template <bool words> STRAIT_XPU_FN void word_to(u8 *dst, u32 i, u32 n, u32 v)
{
	if constexpr (words) {
		hw::store_payload((u32 *)dst + i, v);
	} else {
		for (u32 b = 0; b < 4 && 4 * i + b < n; b++)
			hw::store_payload(dst + 4 * i + b, (u8)(v >> (8 * b)));
	}
}

/* A thread has every `size`th packet, `deep` of them under way at once. */
template <u32 deep, bool words>
STRAIT_XPU_FN void packets_out(pair64 *to, const u8 *src, u32 n, u32 epoch, u32 thread, u32 size)
{
	const u32 count = (n + 3) / 4;
	for (u32 i = thread; first_word(i) < count; i += size * deep) {
		u32 v[deep][3];
		STRAIT_XPU_UNROLL
		for (u32 k = 0; k < deep; k++) {
			const u32 at = first_word(i + k * size);
			STRAIT_XPU_UNROLL
			for (u32 m = 0; m < 3; m++)
				v[k][m] = at + 32 * m < count ? word_from<words>(src, at + 32 * m, n) : 0;
		}
		STRAIT_XPU_UNROLL
		for (u32 k = 0; k < deep; k++)
			if (first_word(i + k * size) < count)
				hw::store_whole(to + (i + k * size),
						pair64{v[k][0] | (u64)v[k][1] << 32, v[k][2] | (u64)epoch << 32});
	}
}

template <u32 deep, bool words>
STRAIT_XPU_FN int packets_in(limit l, const pair64 *from, u8 *dst, u32 n, u32 epoch, u32 thread, u32 size)
{
	const u32 count = (n + 3) / 4;
	for (u32 i = thread; first_word(i) < count; i += size * deep) {
		pair64 v[deep];
		for (;;) {
			bool there = true;
			STRAIT_XPU_UNROLL
			for (u32 k = 0; k < deep; k++) {
				/* In place of one that is not there: the first, once more. */
				const u32 j = i + k * size;
				v[k] = hw::load_whole(from + (first_word(j) < count ? j : i));
			}
			STRAIT_XPU_UNROLL
			for (u32 k = 0; k < deep; k++)
				there &= (u32)(v[k].hi >> 32) == epoch;
			if (there)
				break;
			const int rc = after_poll(&l);
			if (rc != ok)
				return rc;
		}
		STRAIT_XPU_UNROLL
		for (u32 k = 0; k < deep; k++) {
			const u32 at = first_word(i + k * size);
			const u32 word[3] = {(u32)v[k].lo, (u32)(v[k].lo >> 32), (u32)v[k].hi};
			STRAIT_XPU_UNROLL
			for (u32 m = 0; m < 3; m++)
				if (at + 32 * m < count)
					word_to<words>(dst, at + 32 * m, n, word[m]);
		}
	}
	return ok;
}

/* As many under way as the threads' share of n bytes allows. */
template <bool words> STRAIT_XPU_FN void packets_out(pair64 *to, const u8 *src, u32 n, u32 epoch, u32 thread, u32 size)
{
	if (n <= 12 * size)
		packets_out<1, words>(to, src, n, epoch, thread, size);
	else if (n <= 24 * size)
		packets_out<2, words>(to, src, n, epoch, thread, size);
	else
		packets_out<4, words>(to, src, n, epoch, thread, size);
}

template <bool words>
STRAIT_XPU_FN int packets_in(limit l, const pair64 *from, u8 *dst, u32 n, u32 epoch, u32 thread, u32 size)
{
	if (n <= 12 * size)
		return packets_in<1, words>(l, from, dst, n, epoch, thread, size);
	if (n <= 24 * size)
		return packets_in<2, words>(l, from, dst, n, epoch, thread, size);
	return packets_in<4, words>(l, from, dst, n, epoch, thread, size);
}

} // namespace detail

/* n bytes as packets to `offset` of a mapped window, a multiple of 16. `epoch`: not 0 (fresh memory), and not the one that
 * was there last. */
template <scope S> STRAIT_XPU_FN int put_packets(window &w, u64 offset, const void *src, u64 n, u32 epoch)
{
	if (!w.mapped)
		return err_nosys;
	if (n > w.length || !detail::inside(w, offset, packets_size(n)) || (w.mapped + offset) % 16 || epoch == 0)
		return err_inval;
	if (n > detail::packets_most)
		return err_msgsize;
	pair64 *const to = (pair64 *)(w.mapped + offset);
	const u32 size = hw::size<S>(), thread = hw::rank<S>(), bytes = (u32)n;
	if (detail::are_words(src, bytes))
		detail::packets_out<true>(to, (const u8 *)src, bytes, epoch, thread, size);
	else
		detail::packets_out<false>(to, (const u8 *)src, bytes, epoch, thread, size);
	return ok;
}

/* Wait for the packets at `packets`, in this process's memory, a multiple of 16, and copy their payload to `dst`, where all
 * threads of the scope find it. */
template <scope S>
STRAIT_XPU_FN int take_packets(const strait_xpu_context *ctx, const void *packets, void *dst, u64 n, u32 epoch,
			       i64 timeout_ns = default_timeout, u32 peer = STRAIT_XPU_ANY)
{
	if ((u64)packets % 16 || epoch == 0)
		return err_inval;
	if (n > detail::packets_most)
		return err_msgsize;
	const detail::limit l = detail::limit_of(ctx, timeout_ns, peer);
	const pair64 *const from = (const pair64 *)packets;
	const u32 size = hw::size<S>(), thread = hw::rank<S>(), bytes = (u32)n;
	const int rc = detail::are_words(dst, bytes)
			       ? detail::packets_in<true>(l, from, (u8 *)dst, bytes, epoch, thread, size)
			       : detail::packets_in<false>(l, from, (u8 *)dst, bytes, epoch, thread, size);
	if (S == scope::thread)
		return rc;
	const bool failed = hw::any<S>(rc != ok);
	detail::order_warp<S>();
	if (!failed)
		return ok;
	return hw::any<S>(rc == err_canceled) ? (int)err_canceled : (int)err_timedout;
}

} // namespace xpu
} // namespace strait

#endif

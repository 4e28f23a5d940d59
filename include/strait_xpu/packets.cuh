/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Packets: payload whose every word says that it is there. Included by strait_xpu.cuh.
 *
 * Each unit of 8 bytes has 4 of payload and 4 of an epoch, so that the sender stores without a release and the reader
 * knows each word when it comes, whatever the order: the quickest way for up to some KiB, at twice the bytes. The place is
 * one that both sides agree on; it may be used again, with another epoch, once the reader has said that it is done. */
#ifndef STRAIT_XPU_PACKETS_CUH
#define STRAIT_XPU_PACKETS_CUH
#include "window.cuh"

namespace strait {
namespace xpu {

/* Bytes that packets of n bytes take. */
STRAIT_XPU_FN u64 packets_size(u64 n) { return (n + 7) / 8 * 16; }

namespace detail {

STRAIT_XPU_FN pair64 packet(u64 payload, u32 epoch)
{
	const u64 e = (u64)epoch << 32;
	return pair64{(payload & 0xffffffffu) | e, payload >> 32 | e};
}

STRAIT_XPU_FN bool is_of(pair64 line, u32 epoch)
{
	return (u32)(line.lo >> 32) == epoch && (u32)(line.hi >> 32) == epoch;
}

STRAIT_XPU_FN u64 payload_of(pair64 line) { return (line.lo & 0xffffffffu) | line.hi << 32; }

} // namespace detail

/* n bytes as packets to `offset` of a mapped window, a multiple of 16. `epoch`: not 0 (fresh memory), and not the one that
 * was there last. */
template <scope S> STRAIT_XPU_FN int put_packets(window &w, u64 offset, const void *src, u64 n, u32 epoch)
{
	if (!w.mapped)
		return err_nosys;
	if (n > w.length || !detail::inside(w, offset, packets_size(n)) || (w.mapped + offset) % 16 || epoch == 0)
		return err_inval;
	pair64 *lines = (pair64 *)(w.mapped + offset);
	for (u64 i = hw::rank<S>(); i < (n + 7) / 8; i += hw::size<S>())
		hw::store_line(lines + i, detail::packet(detail::gather8((const u8 *)src + i * 8, n - i * 8), epoch));
	return ok;
}

/* Wait for the packets at `lines`, in this process's memory, and copy their payload to `dst`, where all threads of the scope
 * find it. */
template <scope S>
STRAIT_XPU_FN int take_packets(const strait_xpu_context *ctx, const void *lines, void *dst, u64 n, u32 epoch,
			       i64 timeout_ns = default_timeout, u32 peer = STRAIT_XPU_ANY)
{
	detail::limit l = detail::limit_of(ctx, timeout_ns, peer);
	int rc = ok;
	for (u64 i = hw::rank<S>(); i < (n + 7) / 8 && rc == ok; i += hw::size<S>()) {
		pair64 line = hw::load_line((const pair64 *)lines + i);
		while (!detail::is_of(line, epoch)) {
			rc = detail::after_poll(&l);
			if (rc != ok)
				break;
			line = hw::load_line((const pair64 *)lines + i);
		}
		if (rc == ok)
			detail::scatter8((u8 *)dst + i * 8, detail::payload_of(line), n - i * 8);
	}
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

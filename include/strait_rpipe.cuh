/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Kernels that wait for messages of a pipe whose heap is memory of the device: the device side of rpipe_on_device
 * (strait_rpipe.h). A header alone, for the compilers of strait_xpu.cuh. strait_rpipe(7) has the manual.
 *
 *     strait::rpipe::message m;
 *     if (strait::rpipe::wait<strait::xpu::scope::block>(heap, number, &m, 1000000000) == 0)
 *         use(m.bytes, m.size);
 */
#ifndef STRAIT_RPIPE_CUH
#define STRAIT_RPIPE_CUH

#include "strait_xpu.cuh"

namespace strait {
namespace rpipe {

using xpu::i64;
using xpu::u32;
using xpu::u64;

/* What a kernel is given, by value. */
struct heap {
	u64 begin, size, numbers;
	u32 granule, slots;
};

#ifdef STRAIT_RPIPE_H
/* Of what rpipe_on_device has told; in host code. */
inline heap heap_of(const struct ::rpipe_device &of)
{
	return heap{(u64)(size_t)of.heap, (u64)of.heap_size, (u64)(size_t)of.numbers, (u32)of.granule, (u32)of.slots};
}
#endif

/* A message: its bytes are there until the host has freed its block. */
struct message {
	const void *bytes;
	u32 size;
};

namespace detail {

STRAIT_XPU_FN int find(const heap &h, u64 number, u64 *size, u64 *place, i64 timeout_ns)
{
	const u64 *at = (const u64 *)(size_t)h.numbers;
	xpu::detail::limit l = xpu::detail::limit_of((u64)0, timeout_ns < 0 ? (i64)0 : timeout_ns);

	if (!at || number == 0 || h.slots == 0)
		return xpu::err_inval;
	at += (number - 1) % h.slots * 2;
	for (;;) {
		/* The bytes were there before either half. */
		const u64 lo = xpu::hw::load_acquire(at), hi = xpu::hw::load_acquire(at + 1);

		if ((u32)(lo >> 32) == (u32)number && (u32)(hi >> 32) == (u32)number) {
			*size = (u32)lo;
			*place = (u64)(u32)hi * h.granule;
			/* What the writer says is no reason to look outside. */
			return *place <= h.size && *size <= h.size - *place ? xpu::ok : xpu::err_io;
		}
		const int rc = xpu::detail::after_poll(&l);
		if (rc != xpu::ok)
			return rc;
	}
}

} // namespace detail

/* Waits until message `number`, counted from 1, is there, so long at most; 0 looks once. All threads of the scope get it. err_timedout: it is not;
 * err_io: the writer has told of bytes outside of the heap; err_inval: the pipe has no numbers (RPIPE_NUMBERS), or there is no such message. Of
 * `slots` messages the first has to be freed by the host before the next is told of. */
template <xpu::scope S = xpu::scope::thread>
STRAIT_XPU_FN int wait(const heap &h, u64 number, message *m, i64 timeout_ns)
{
	u64 size = 0, place = 0;
	int rc = xpu::ok;

	if (S == xpu::scope::thread || xpu::hw::rank<S>() == 0)
		rc = detail::find(h, number, &size, &place, timeout_ns);
	if (S != xpu::scope::thread) {
		rc = xpu::detail::share<S>(rc);
		size = xpu::hw::broadcast<S>(size);
		place = xpu::hw::broadcast<S>(place);
	}
	m->bytes = (const void *)(size_t)(h.begin + place);
	m->size = (u32)size;
	return rc;
}

} // namespace rpipe
} // namespace strait

#endif

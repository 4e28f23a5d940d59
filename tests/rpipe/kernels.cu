/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The kernel of the tests of strait_rpipe.cuh: waits for messages, adds up their bytes, and reports each to the host. */
#include "strait_rpipe.cuh"

#ifndef KERNEL
#define KERNEL extern "C" __global__ void
#endif

using namespace strait;

/* sums[n]: of message first + n, or what went wrong, with the top bit set. `done`: memory of the host. */
KERNEL take(rpipe::heap heap, rpipe::u64 first, rpipe::u64 count, rpipe::i64 timeout_ns, rpipe::u64 *sums, rpipe::u64 *done)
{
	for (rpipe::u64 n = 0; n < count; n++) {
		rpipe::message m;
		const int rc = rpipe::wait<xpu::scope::block>(heap, first + n, &m, timeout_ns);
		rpipe::u64 sum = 0;

		if (rc != 0) {
			if (xpu::hw::rank<xpu::scope::block>() == 0) {
				sums[n] = (rpipe::u64)1 << 63 | (rpipe::u32)-rc;
				xpu::hw::store_release(done, count + 1);
			}
			return;
		}
		for (rpipe::u64 i = xpu::hw::rank<xpu::scope::block>(); i < m.size; i += xpu::hw::size<xpu::scope::block>())
			sum += (rpipe::u64)((const unsigned char *)m.bytes)[i] * (i % 251 + 1);
		if (sum)
			xpu::hw::fetch_add(sums + n, sum);
		xpu::hw::sync<xpu::scope::block>();
		if (xpu::hw::rank<xpu::scope::block>() == 0)
			xpu::hw::store_release(done, n + 1);
	}
}

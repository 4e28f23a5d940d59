/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What it takes to reach memory elsewhere: the host's, another GPU's, or for comparison the own GPU's. */

/* `rounds` times after 20 that do not count. A load or a store is of one word by one thread: each load has its place from the
 * one before (`far` is zeroed), and each store has arrived before the next. A copy is of `words` by the block. */
KERNEL crossing(u64 *far, u64 *near, u64 words, u64 rounds, u64 what, u64 *out)
{
	enum { AT_ONCE = 8 };
	u64 begin = 0, at = 0;
	for (u64 i = 0; i < rounds + 20; i++) {
		if (i == 20)
			begin = hw::now_ns();
		if (what == CROSS_LOAD) {
			at = (at + hw::load_relaxed(far + at) + 16) % words;
		} else if (what == CROSS_STORE) {
			hw::store_relaxed(far + at, i);
			hw::fence();
			at = (at + 16) % words;
		} else if (what == CROSS_READ) {
			for (u64 k = threadIdx.x; k < words; k += AT_ONCE * blockDim.x) {
				u64 some[AT_ONCE];
				for (unsigned j = 0; j < AT_ONCE; j++)
					some[j] = k + j * blockDim.x < words ? hw::load_relaxed(far + k + j * blockDim.x) : 0;
				for (unsigned j = 0; j < AT_ONCE; j++)
					if (k + j * blockDim.x < words)
						near[k + j * blockDim.x] = some[j];
			}
			__syncthreads();
		} else {
			for (u64 k = threadIdx.x; k < words; k += blockDim.x)
				hw::store_relaxed(far + k, near[k]);
			hw::fence();
			__syncthreads();
		}
	}
	if (threadIdx.x == 0) {
		out[0] = hw::now_ns() - begin;
		out[1] = at;
	}
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The same operations on AMD GPUs, by HIP's atomic builtins. Not run on hardware. Included by strait_xpu.cuh.
 *
 * Memory that others write has to be fine-grained (hipExtMallocWithFlags), or uncached, for a running kernel to see it. */
#ifndef STRAIT_XPU_HW_HIP_CUH
#define STRAIT_XPU_HW_HIP_CUH
#include "base.cuh"

namespace strait {
namespace xpu {
namespace hw {

#define STRAIT_XPU_SYS __HIP_MEMORY_SCOPE_SYSTEM
#define STRAIT_XPU_GPU __HIP_MEMORY_SCOPE_AGENT

#define STRAIT_XPU_WORD(type)                                                                                      \
	STRAIT_XPU_FN type load_relaxed(const type *p)                                                             \
	{                                                                                                          \
		return __hip_atomic_load((type *)p, __ATOMIC_RELAXED, STRAIT_XPU_SYS);                             \
	}                                                                                                          \
	STRAIT_XPU_FN type load_acquire(const type *p)                                                             \
	{                                                                                                          \
		return __hip_atomic_load((type *)p, __ATOMIC_ACQUIRE, STRAIT_XPU_SYS);                             \
	}                                                                                                          \
	STRAIT_XPU_FN void store_relaxed(type *p, type v)                                                          \
	{                                                                                                          \
		__hip_atomic_store(p, v, __ATOMIC_RELAXED, STRAIT_XPU_SYS);                                        \
	}                                                                                                          \
	STRAIT_XPU_FN void store_release(type *p, type v)                                                          \
	{                                                                                                          \
		__hip_atomic_store(p, v, __ATOMIC_RELEASE, STRAIT_XPU_SYS);                                        \
	}                                                                                                          \
	STRAIT_XPU_FN type fetch_add(type *p, type v)                                                              \
	{                                                                                                          \
		return __hip_atomic_fetch_add(p, v, __ATOMIC_RELAXED, STRAIT_XPU_SYS);                             \
	}                                                                                                          \
	STRAIT_XPU_FN void add_relaxed(type *p, type v) { fetch_add(p, v); }                                       \
	STRAIT_XPU_FN void add_release(type *p, type v)                                                            \
	{                                                                                                          \
		__hip_atomic_fetch_add(p, v, __ATOMIC_RELEASE, STRAIT_XPU_SYS);                                    \
	}
STRAIT_XPU_WORD(u64)
STRAIT_XPU_WORD(u32)
#undef STRAIT_XPU_WORD

STRAIT_XPU_FN u64 load_relaxed_gpu(const u64 *p)
{
	return __hip_atomic_load((u64 *)p, __ATOMIC_RELAXED, STRAIT_XPU_GPU);
}
STRAIT_XPU_FN void store_relaxed_gpu(u64 *p, u64 v) { __hip_atomic_store(p, v, __ATOMIC_RELAXED, STRAIT_XPU_GPU); }
STRAIT_XPU_FN void store_release_gpu(u64 *p, u64 v) { __hip_atomic_store(p, v, __ATOMIC_RELEASE, STRAIT_XPU_GPU); }
STRAIT_XPU_FN void add_release_gpu(u64 *p, u64 v) { __hip_atomic_fetch_add(p, v, __ATOMIC_RELEASE, STRAIT_XPU_GPU); }
STRAIT_XPU_FN u64 fetch_and(u64 *p, u64 v) { return __hip_atomic_fetch_and(p, v, __ATOMIC_RELAXED, STRAIT_XPU_SYS); }
STRAIT_XPU_FN u64 fetch_or(u64 *p, u64 v) { return __hip_atomic_fetch_or(p, v, __ATOMIC_RELAXED, STRAIT_XPU_SYS); }
STRAIT_XPU_FN u64 fetch_xor(u64 *p, u64 v) { return __hip_atomic_fetch_xor(p, v, __ATOMIC_RELAXED, STRAIT_XPU_SYS); }
STRAIT_XPU_FN u64 exchange(u64 *p, u64 v) { return __hip_atomic_exchange(p, v, __ATOMIC_RELAXED, STRAIT_XPU_SYS); }
STRAIT_XPU_FN u32 exchange_acquire(u32 *p, u32 v)
{
	return __hip_atomic_exchange(p, v, __ATOMIC_ACQUIRE, STRAIT_XPU_SYS);
}
STRAIT_XPU_FN void max_relaxed(u64 *p, u64 v)
{
	u64 was = load_relaxed(p);
	while (was < v && !__hip_atomic_compare_exchange_strong(p, &was, v, __ATOMIC_RELAXED, __ATOMIC_RELAXED,
								 STRAIT_XPU_SYS)) {
	}
}
STRAIT_XPU_FN u64 compare_swap(u64 *p, u64 want, u64 v)
{
	__hip_atomic_compare_exchange_strong(p, &want, v, __ATOMIC_RELAXED, __ATOMIC_RELAXED, STRAIT_XPU_SYS);
	return want;
}
STRAIT_XPU_FN u64 compare_swap_gpu(u64 *p, u64 want, u64 v)
{
	__hip_atomic_compare_exchange_strong(p, &want, v, __ATOMIC_ACQUIRE, __ATOMIC_ACQUIRE, STRAIT_XPU_GPU);
	return want;
}
STRAIT_XPU_FN u64 compare_swap_relaxed_gpu(u64 *p, u64 want, u64 v)
{
	__hip_atomic_compare_exchange_strong(p, &want, v, __ATOMIC_RELAXED, __ATOMIC_RELAXED, STRAIT_XPU_GPU);
	return want;
}

STRAIT_XPU_FN void fence() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }

/* There is no store of 16 bytes that is promised to be whole: the second half is released behind the first, and what reads
 * them takes the second half first. A sender that laps its reader may so be seen with a newer word than the signal says. */
STRAIT_XPU_FN void store_whole(pair64 *p, pair64 v)
{
	store_relaxed(&p->lo, v.lo);
	store_release(&p->hi, v.hi);
}
STRAIT_XPU_FN pair64 load_whole(const pair64 *p)
{
	pair64 v;
	v.hi = load_acquire(&p->hi);
	v.lo = load_relaxed(&p->lo);
	return v;
}
STRAIT_XPU_FN void store_line(pair64 *p, pair64 v)
{
	store_relaxed(&p->lo, v.lo);
	store_relaxed(&p->hi, v.hi);
}
STRAIT_XPU_FN pair64 load_line(const pair64 *p)
{
	pair64 v;
	v.lo = load_relaxed(&p->lo);
	v.hi = load_relaxed(&p->hi);
	return v;
}

STRAIT_XPU_FN u8 load_remote(const u8 *p) { return __hip_atomic_load((u8 *)p, __ATOMIC_RELAXED, STRAIT_XPU_SYS); }

/* The constant clock counts at 100 MHz on CDNA. */
STRAIT_XPU_FN u64 now_ns() { return (u64)wall_clock64() * 10; }

/* The clock of the compute unit: it counts up, and starts again after 2^32. */
STRAIT_XPU_FN u32 ticks() { return (u32)__builtin_readcyclecounter(); }

/* The barrier alone keeps lanes together and orders no memory: what a lane stored before is released, and acquired after. */
STRAIT_XPU_FN void sync_warp()
{
	__builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
	__builtin_amdgcn_wave_barrier();
	__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

STRAIT_XPU_FN u64 shuffle(u64 v, unsigned from) { return __shfl(v, (int)from); }
STRAIT_XPU_FN u64 ballot(bool v) { return __ballot(v); }
STRAIT_XPU_FN bool warp_any(bool v) { return ballot(v) != 0; }

} // namespace hw
} // namespace xpu
} // namespace strait

#include "hw_group.cuh"

#endif

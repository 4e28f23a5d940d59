/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Memory operations and groups of threads on NVIDIA GPUs, sm_80 and later. Included by strait_xpu.cuh.
 *
 * Scope .sys wherever another GPU or the CPU takes part, .gpu for what stays on this one. A store with .release is one
 * MEMBAR and the store; a fence followed by such a store would be two, so no function here has a fence of its own
 * except the one that is named so. What a lane stored before the group's barrier is ordered by the leader's release
 * (causality order is transitive through bar.sync and bar.warp.sync), so that lanes need none.
 */
#ifndef STRAIT_XPU_HW_CUDA_CUH
#define STRAIT_XPU_HW_CUDA_CUH
#include "base.cuh"

namespace strait {
namespace xpu {
namespace hw {

/* Windows, mailboxes, rings and words that others write are in global memory; what is put may be anywhere. */
STRAIT_XPU_FN u64 global(const void *p) { return (u64)__cvta_generic_to_global(p); }

#define STRAIT_XPU_LOAD(name, how, type, reg, suffix)                                                              \
	STRAIT_XPU_FN type name(const type *p)                                                                     \
	{                                                                                                          \
		type v;                                                                                            \
		asm volatile("ld." how ".global." suffix " %0, [%1];" : reg(v) : "l"(global(p)) : "memory");       \
		return v;                                                                                          \
	}
#define STRAIT_XPU_STORE(name, how, type, reg, suffix)                                                             \
	STRAIT_XPU_FN void name(type *p, type v)                                                                   \
	{                                                                                                          \
		asm volatile("st." how ".global." suffix " [%0], %1;" ::"l"(global(p)), reg(v) : "memory");        \
	}
#define STRAIT_XPU_RMW(name, how, type, out, in, suffix)                                                           \
	STRAIT_XPU_FN type name(type *p, type v)                                                                   \
	{                                                                                                          \
		type was;                                                                                          \
		asm volatile("atom." how "." suffix " %0, [%1], %2;"                                               \
			     : out(was)                                                                            \
			     : "l"(global(p)), in(v)                                                               \
			     : "memory");                                                                          \
		return was;                                                                                        \
	}
#define STRAIT_XPU_RED(name, how, type, in, suffix)                                                                \
	STRAIT_XPU_FN void name(type *p, type v)                                                                   \
	{                                                                                                          \
		asm volatile("red." how "." suffix " [%0], %1;" ::"l"(global(p)), in(v) : "memory");               \
	}

STRAIT_XPU_LOAD(load_relaxed, "relaxed.sys", u64, "=l", "b64")
STRAIT_XPU_LOAD(load_relaxed, "relaxed.sys", u32, "=r", "b32")
STRAIT_XPU_LOAD(load_acquire, "acquire.sys", u64, "=l", "b64")
STRAIT_XPU_LOAD(load_acquire, "acquire.sys", u32, "=r", "b32")
STRAIT_XPU_LOAD(load_relaxed_gpu, "relaxed.gpu", u64, "=l", "b64")
STRAIT_XPU_LOAD(load_acquire_gpu, "acquire.gpu", u64, "=l", "b64")
STRAIT_XPU_STORE(store_relaxed, "relaxed.sys", u64, "l", "b64")
STRAIT_XPU_STORE(store_relaxed, "relaxed.sys", u32, "r", "b32")
STRAIT_XPU_STORE(store_release, "release.sys", u64, "l", "b64")
STRAIT_XPU_STORE(store_release, "release.sys", u32, "r", "b32")
STRAIT_XPU_STORE(store_relaxed_gpu, "relaxed.gpu", u64, "l", "b64")
STRAIT_XPU_STORE(store_release_gpu, "release.gpu", u64, "l", "b64")
STRAIT_XPU_RMW(fetch_add, "relaxed.sys.global.add", u64, "=l", "l", "u64")
STRAIT_XPU_RMW(fetch_add, "relaxed.sys.global.add", u32, "=r", "r", "u32")
STRAIT_XPU_RMW(fetch_and, "relaxed.sys.global.and", u64, "=l", "l", "b64")
STRAIT_XPU_RMW(fetch_or, "relaxed.sys.global.or", u64, "=l", "l", "b64")
STRAIT_XPU_RMW(fetch_xor, "relaxed.sys.global.xor", u64, "=l", "l", "b64")
STRAIT_XPU_RMW(exchange, "relaxed.sys.global.exch", u64, "=l", "l", "b64")
STRAIT_XPU_RMW(exchange_acquire, "acquire.sys.global.exch", u32, "=r", "r", "b32")
STRAIT_XPU_RMW(fetch_add_gpu, "relaxed.gpu.global.add", u64, "=l", "l", "u64")
STRAIT_XPU_RED(add_relaxed, "relaxed.sys.global.add", u64, "l", "u64")
STRAIT_XPU_RED(add_release, "release.sys.global.add", u64, "l", "u64")
STRAIT_XPU_RED(add_relaxed, "relaxed.sys.global.add", u32, "r", "u32")
STRAIT_XPU_RED(add_release, "release.sys.global.add", u32, "r", "u32")
STRAIT_XPU_RED(max_relaxed, "relaxed.sys.global.max", u64, "l", "u64")
STRAIT_XPU_RED(add_release_gpu, "release.gpu.global.add", u64, "l", "u64")
#undef STRAIT_XPU_LOAD
#undef STRAIT_XPU_STORE
#undef STRAIT_XPU_RMW
#undef STRAIT_XPU_RED

STRAIT_XPU_FN u64 compare_swap(u64 *p, u64 want, u64 v)
{
	u64 was;
	asm volatile("atom.relaxed.sys.global.cas.b64 %0, [%1], %2, %3;"
		     : "=l"(was) : "l"(global(p)), "l"(want), "l"(v) : "memory");
	return was;
}

/* For words that threads of this GPU alone use; acquires where it succeeds. */
STRAIT_XPU_FN u64 compare_swap_gpu(u64 *p, u64 want, u64 v)
{
	u64 was;
	asm volatile("atom.acquire.gpu.global.cas.b64 %0, [%1], %2, %3;"
		     : "=l"(was) : "l"(global(p)), "l"(want), "l"(v) : "memory");
	return was;
}

STRAIT_XPU_FN u64 compare_swap_relaxed_gpu(u64 *p, u64 want, u64 v)
{
	u64 was;
	asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
		     : "=l"(was) : "l"(global(p)), "l"(want), "l"(v) : "memory");
	return was;
}

/* Orders all before with all after, also for other devices. */
STRAIT_XPU_FN void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

/* 16 bytes that are seen as a whole or not at all. */
STRAIT_XPU_FN void store_whole(pair64 *p, pair64 v)
{
	asm volatile("{ .reg .b128 t; mov.b128 t, {%1, %2}; st.relaxed.sys.global.b128 [%0], t; }" ::"l"(global(p)),
		     "l"(v.lo), "l"(v.hi)
		     : "memory");
}

STRAIT_XPU_FN pair64 load_whole(const pair64 *p)
{
	pair64 v;
	asm volatile("{ .reg .b128 t; ld.relaxed.sys.global.b128 t, [%2]; mov.b128 {%0, %1}, t; }"
		     : "=l"(v.lo), "=l"(v.hi) : "l"(global(p)) : "memory");
	return v;
}

/* 16 bytes of which either half may be seen first. */
STRAIT_XPU_FN void store_line(pair64 *p, pair64 v)
{
	asm volatile("st.relaxed.sys.global.v2.b64 [%0], {%1, %2};" ::"l"(global(p)), "l"(v.lo), "l"(v.hi) : "memory");
}

STRAIT_XPU_FN pair64 load_line(const pair64 *p)
{
	pair64 v;
	asm volatile("ld.relaxed.sys.global.v2.b64 {%0, %1}, [%2];"
		     : "=l"(v.lo), "=l"(v.hi) : "l"(global(p)) : "memory");
	return v;
}

STRAIT_XPU_FN u8 load_remote(const u8 *p)
{
	u32 v;
	asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=r"(v) : "l"(global(p)) : "memory");
	return (u8)v;
}

STRAIT_XPU_FN u64 now_ns()
{
	u64 t;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

/* The SM's clock: it counts up, and starts again after 2^32. */
STRAIT_XPU_FN u32 ticks()
{
	u32 t;
	asm volatile("mov.u32 %0, %%clock;" : "=r"(t)::"memory");
	return t;
}

STRAIT_XPU_FN void sync_warp() { __syncwarp(); }

/* The value of lane `from`, for all lanes of the warp. */
STRAIT_XPU_FN u64 shuffle(u64 v, unsigned from)
{
	return __shfl_sync(0xffffffffu, v, (int)from);
}

STRAIT_XPU_FN bool warp_any(bool v) { return __any_sync(0xffffffffu, v) != 0; }
STRAIT_XPU_FN u64 ballot(bool v) { return __ballot_sync(0xffffffffu, v); }

} // namespace hw
} // namespace xpu
} // namespace strait

#include "hw_group.cuh"

#endif

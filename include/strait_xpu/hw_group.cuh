/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Groups of threads and payload on GPUs, by what hw_cuda.cuh and hw_hip.cuh give: warp_any, shuffle, sync_warp, load_line,
 * load_relaxed. Included by them. */
#ifndef STRAIT_XPU_HW_GROUP_CUH
#define STRAIT_XPU_HW_GROUP_CUH

namespace strait {
namespace xpu {
namespace hw {

/* Payload, in units of 1, 4, 8 and 16 bytes: ordered by the release that follows and the acquire that came before.
 * What is read from a peer is read past the L1 cache. */
template <class T> STRAIT_XPU_FN void store_payload(T *p, T v) { *p = v; }
template <class T> STRAIT_XPU_FN T load_payload(const T *p) { return *p; }
STRAIT_XPU_FN pair64 load_remote(const pair64 *p) { return load_line(p); }
STRAIT_XPU_FN u64 load_remote(const u64 *p) { return load_relaxed(p); }
STRAIT_XPU_FN u32 load_remote(const u32 *p) { return load_relaxed(p); }

STRAIT_XPU_FN unsigned thread_of_block()
{
	return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

template <scope S> STRAIT_XPU_FN unsigned rank()
{
	return S == scope::thread ? 0 : S == scope::warp ? thread_of_block() % STRAIT_XPU_WARP : thread_of_block();
}

template <scope S> STRAIT_XPU_FN unsigned size()
{
	return S == scope::thread ? 1 : S == scope::warp ? STRAIT_XPU_WARP : blockDim.x * blockDim.y * blockDim.z;
}

/* The threads of the group wait for each other; what one stored before is seen by the others after. */
template <scope S> STRAIT_XPU_FN void sync()
{
	if (S == scope::warp)
		sync_warp();
	else if (S == scope::block)
		__syncthreads();
}

/* The first thread's value, for all. */
template <scope S> STRAIT_XPU_FN u64 broadcast(u64 v)
{
	if (S == scope::warp)
		return shuffle(v, 0);
	if (S == scope::block) {
		__shared__ u64 shared;
		__syncthreads();
		if (rank<S>() == 0)
			shared = v;
		__syncthreads();
		return shared;
	}
	return v;
}

/* Whether it holds for any thread of the group. Of a block it is a barrier, too; of a warp neither this nor a shuffle
 * orders memory (CUDA promises that of __syncwarp alone, and HIP has sync_warp's fences for it). */
template <scope S> STRAIT_XPU_FN bool any(bool v)
{
	return S == scope::thread ? v : S == scope::warp ? warp_any(v) : __syncthreads_or(v) != 0;
}

/* The exclusive or of all threads' values, for all: a block's. */
STRAIT_XPU_FN u32 block_xor(u32 v)
{
	__shared__ u32 shared;
	__syncthreads();
	if (rank<scope::block>() == 0)
		shared = 0;
	__syncthreads();
	atomicXor(&shared, v);
	__syncthreads();
	return shared;
}

} // namespace hw
} // namespace xpu
} // namespace strait

#endif

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the device library takes of HIP, declared: clang compiles tests/xpu/emit.cu for AMD GPUs with it where there is no ROCm. */
#ifndef STRAIT_TEST_XPU_HIP_H
#define STRAIT_TEST_XPU_HIP_H

#define __HIPCC__ 1
#define __host__ __attribute__((host))
#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))

struct hip_dim {
	unsigned x, y, z;
};
extern __device__ const hip_dim threadIdx, blockDim, blockIdx;
__device__ unsigned long long __shfl(unsigned long long v, int from);
__device__ unsigned long long __ballot(int v);
__device__ int __syncthreads_or(int v);
__device__ void __syncthreads();
__device__ unsigned atomicXor(unsigned *p, unsigned v);
__device__ long long wall_clock64();

#endif

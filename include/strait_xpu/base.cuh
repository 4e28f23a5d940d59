/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Words that every part of the device library uses: integers, errors, scopes. Included by strait_xpu.cuh. */
#ifndef STRAIT_XPU_BASE_CUH
#define STRAIT_XPU_BASE_CUH

#if defined(__HIPCC__) || defined(__HIPCC_RTC__)
#define STRAIT_XPU_HIP 1
#elif defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define STRAIT_XPU_CUDA 1
#else
#define STRAIT_XPU_HOST 1
#endif

#include "../strait_xpu_layout.h"

#ifdef STRAIT_XPU_HOST
#define STRAIT_XPU_FN inline
#define STRAIT_XPU_CALLED inline
#define STRAIT_XPU_UNROLL
#define STRAIT_XPU_UNROLL_4
#else
#define STRAIT_XPU_FN __device__ __forceinline__
/* What is long and seldom: one copy of the code. */
#define STRAIT_XPU_CALLED inline __device__ __noinline__
#define STRAIT_XPU_UNROLL _Pragma("unroll")
#define STRAIT_XPU_UNROLL_4 _Pragma("unroll 4")
#endif

/* What is seldom so: its code is out of the way. */
#define STRAIT_XPU_SELDOM(what) __builtin_expect(!!(what), 0)

/* Lanes of a warp. */
#ifndef STRAIT_XPU_WARP
#if defined(STRAIT_XPU_HIP) && defined(__AMDGCN_WAVEFRONT_SIZE)
#define STRAIT_XPU_WARP __AMDGCN_WAVEFRONT_SIZE
#elif defined(STRAIT_XPU_HOST)
#define STRAIT_XPU_WARP 4
#else
#define STRAIT_XPU_WARP 32
#endif
#endif

namespace strait {
namespace xpu {

typedef strait_xpu_u64 u64;
typedef strait_xpu_u32 u32;
typedef long long i64;
typedef unsigned char u8;

/* The threads that make a call together, all with the same arguments. */
enum class scope : int { thread = 0, warp = 1, block = 2 };

/* What a function returns: 0, or one of these below 0. The numbers are errno's, and so libfabric's. */
enum error : int {
	ok = 0,
	err_io = -5,          /* a CRC that stayed wrong; a command that failed */
	err_again = -11,      /* no room now: a full ring or mailbox */
	err_inval = -22,      /* no such peer or window, or outside it */
	err_nosys = -38,      /* no path to this peer does this */
	err_msgsize = -90,    /* longer than this way carries */
	err_timedout = -110,  /* the time given is over */
	err_canceled = -125   /* the host has told the kernel to stop, or the other side is gone */
};

/* How a wait compares what it reads with the value it is given. */
enum class cmp : int { eq = 0, ne = 1, gt = 2, ge = 3, lt = 4, le = 5 };

STRAIT_XPU_FN bool holds(cmp c, u64 have, u64 want)
{
	switch (c) {
	case cmp::eq: return have == want;
	case cmp::ne: return have != want;
	case cmp::gt: return have > want;
	case cmp::ge: return have >= want;
	case cmp::lt: return have < want;
	default: return have <= want;
	}
}

/* 16 bytes: two words of 8. */
struct alignas(16) pair64 {
	u64 lo, hi;
};

struct alignas(8) words2 {
	u32 a, b;
};

struct alignas(16) words4 {
	u32 a, b, c, d;
};

} // namespace xpu
} // namespace strait

#endif

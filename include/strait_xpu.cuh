/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Kernels that put, get, signal and wait: the device side of strait_xpu.h. A header alone, for CUDA C++17 (nvcc, NVRTC;
 * sm_80 and later) and HIP (not run on hardware), and for C++17 on a CPU with threads as lanes, for tests. docs/xpu.md has
 * the manual.
 *
 *     strait::xpu::window w;
 *     strait::xpu::open(&w, ctx, peer, region);
 *     strait::xpu::put_signal<strait::xpu::scope::block>(w, offset, data, bytes, signal_offset, 1);
 */
#ifndef STRAIT_XPU_CUH
#define STRAIT_XPU_CUH

#include "strait_xpu/base.cuh"

#if defined(STRAIT_XPU_CUDA)
#include "strait_xpu/hw_cuda.cuh"
#elif defined(STRAIT_XPU_HIP)
#include "strait_xpu/hw_hip.cuh"
#else
#include "strait_xpu/hw_host.cuh"
#endif

#include "strait_xpu/wait.cuh"
#include "strait_xpu/copy.cuh"
#include "strait_xpu/ring.cuh"
#include "strait_xpu/window.cuh"
#include "strait_xpu/atomics.cuh"
#include "strait_xpu/packets.cuh"
#include "strait_xpu/mailbox.cuh"
#include "strait_xpu/crc.cuh"
#include "strait_xpu/gaspi.cuh"

#endif

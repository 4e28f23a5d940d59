/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Kernels of nvshmem.cu: NVSHMEM's calls, and forms of put with a signal that the device library does not have. */
#ifndef STRAIT_TEST_XPU_WAYS_CUH
#define STRAIT_TEST_XPU_WAYS_CUH

enum { WAY_NVSHMEM_SIGNAL, WAY_NVSHMEM_PUT, WAY_WORDS, WAY_LINES, WAY_FENCES };

#include "lines.cuh"

/* Packets of 8 bytes of payload, an epoch in each word of 8: they need no store that is seen as a whole. */
template <scope S> __device__ int put_words(window &w, u64 offset, const u8 *src, u64 n, u32 epoch)
{
	pair64 *const to = (pair64 *)(w.mapped + offset);
	for (u64 i = hw::rank<S>(); i < (n + 7) / 8; i += hw::size<S>())
		hw::store_line(to + i, detail::packet(detail::gather8(src + i * 8, n - i * 8), epoch));
	return ok;
}

template <scope S> __device__ int take_words(const strait_xpu_context *ctx, const u8 *at, u8 *dst, u64 n, u32 epoch)
{
	detail::limit l = detail::limit_of(ctx, default_timeout, STRAIT_XPU_ANY);
	int rc = ok;
	for (u64 i = hw::rank<S>(); i < (n + 7) / 8 && rc == ok; i += hw::size<S>()) {
		pair64 line = hw::load_line((const pair64 *)at + i);
		while (!detail::is_of(line, epoch) && rc == ok) {
			rc = detail::after_poll(&l);
			line = hw::load_line((const pair64 *)at + i);
		}
		if (rc == ok)
			detail::scatter8(dst + i * 8, detail::payload_of(line), n - i * 8);
	}
	const bool failed = hw::any<S>(rc != ok);
	detail::order_warp<S>();
	return failed ? (int)err_timedout : (int)ok;
}

/* A put with its signal where every thread has a fence of its own, and the signal is a plain store behind the barrier. */
template <scope S> __device__ int put_signal_fences(window &w, u64 offset, const u8 *src, u64 n, u64 signal, u64 value)
{
	detail::copy_out<S>((void *)(w.mapped + offset), src, n);
	hw::fence();
	hw::sync<S>();
	if (hw::rank<S>() == 0)
		hw::store_relaxed((u64 *)(w.mapped + signal), value);
	return ok;
}

template <scope S> __device__ void nvshmem_put_signal(u8 *base, u64 n, u64 i, int peer)
{
	uint64_t *flag = (uint64_t *)(base + 16);
	if (S == scope::block)
		nvshmemx_putmem_signal_block(base + 4096, base + AREA / 2, n, flag, i, NVSHMEM_SIGNAL_SET, peer);
	else if (S == scope::warp)
		nvshmemx_putmem_signal_warp(base + 4096, base + AREA / 2, n, flag, i, NVSHMEM_SIGNAL_SET, peer);
	else
		nvshmem_putmem_signal(base + 4096, base + AREA / 2, n, flag, i, NVSHMEM_SIGNAL_SET, peer);
}

template <scope S> __device__ void way_out(window &to, u8 *base, u64 way, u64 n, u64 i, int peer)
{
	switch (way) {
	case WAY_NVSHMEM_SIGNAL:
		if (hw::rank<S>() == 0)
			nvshmemx_signal_op((uint64_t *)(base + 16), i, NVSHMEM_SIGNAL_SET, peer);
		break;
	case WAY_NVSHMEM_PUT: nvshmem_put_signal<S>(base, n, i, peer); break;
	case WAY_WORDS: put_words<S>(to, 4096, base + AREA / 2, n, (u32)i); break;
	case WAY_LINES: lines::put<S>(to, 4096, base + AREA / 2, (u32)n, i); break;
	default: put_signal_fences<S>(to, 4096, base + AREA / 2, n, 16, i); break;
	}
}

template <scope S> __device__ int way_in(const strait_xpu_context *ctx, u8 *base, u64 way, u64 n, u64 i)
{
	switch (way) {
	case WAY_NVSHMEM_SIGNAL:
	case WAY_NVSHMEM_PUT:
		if (hw::rank<S>() == 0)
			nvshmem_signal_wait_until((uint64_t *)(base + 16), NVSHMEM_CMP_EQ, i);
		hw::sync<S>();
		return ok;
	case WAY_WORDS: return take_words<S>(ctx, base + 4096, base + 3 * (AREA / 4), n, (u32)i);
	case WAY_LINES: return lines::take<S>(ctx, base + 4096, base + 3 * (AREA / 4), (u32)n, i);
	default: return wait_until<S>(ctx, (const u64 *)(base + 16), cmp::eq, i);
	}
}

/* As `latency` of kernels.cu. */
template <scope S> __device__ void ways_of(const strait_xpu_context *ctx, u64 way, u64 n, u64 rounds, u64 first, u64 *out)
{
	window to;
	int rc = open(&to, ctx, 1 - ctx->rank, 0);
	u64 begin = 0;
	u8 *const base = own(ctx, 0, 0);
	const u32 rank = ctx->rank;
	for (u64 i = 0; i < rounds + 50 && rc == ok; i++) {
		if (i == 50)
			begin = hw::now_ns();
		if (rank == 0)
			way_out<S>(to, base, way, n, first + i, 1);
		rc = way_in<S>(ctx, base, way, n, first + i);
		if (rank == 1 && rc == ok)
			way_out<S>(to, base, way, n, first + i, 0);
	}
	if (hw::rank<S>() == 0) {
		out[0] = hw::now_ns() - begin;
		out[1] = (u64)(i64)rc;
	}
}

KERNEL ways_thread(const strait_xpu_context *c, u64 way, u64 n, u64 rounds, u64 first, u64 *out)
{
	ways_of<scope::thread>(c, way, n, rounds, first, out);
}
KERNEL ways_warp(const strait_xpu_context *c, u64 way, u64 n, u64 rounds, u64 first, u64 *out)
{
	ways_of<scope::warp>(c, way, n, rounds, first, out);
}
/* It is run with 512 threads, too. */
KERNEL __launch_bounds__(512) ways_block(const strait_xpu_context *c, u64 way, u64 n, u64 rounds, u64 first, u64 *out)
{
	ways_of<scope::block>(c, way, n, rounds, first, out);
}

KERNEL nvshmem_bandwidth(u8 *memory, u64 n, u64 rounds)
{
	const u64 part = n / gridDim.x & ~15ULL, at = part * blockIdx.x, mine = blockIdx.x == gridDim.x - 1 ? n - at : part;
	for (u64 i = 0; i < rounds; i++)
		nvshmemx_putmem_nbi_block(memory + at, memory + at, mine, 1);
	__syncthreads();
	if (threadIdx.x == 0)
		nvshmem_quiet();
}

/* ---- Over a transport: a signal is polled with an end, 10 s ---- */

__device__ bool signal_came(const u8 *base, u64 value)
{
	const u64 begin = hw::now_ns();
	while (hw::load_acquire((const u64 *)(base + 16)) != value)
		if (hw::now_ns() - begin > 10000000000ULL)
			return false;
	return true;
}

/* n bytes of a pattern, by rank 0, with a signal; rank 1 waits for it. out: whether a byte was wrong, whether it did not come. */
KERNEL proxy_put(u8 *memory, u64 n, u64 value, u64 *out)
{
	u8 *const data = memory + 4096;
	u32 bad = 0;
	bool came = true;
	if (nvshmem_my_pe() == 0) {
		fill<scope::block>(data, value, n);
		nvshmemx_putmem_signal_block(data, data, n, (uint64_t *)(memory + 16), value, NVSHMEM_SIGNAL_SET, 1);
	} else {
		came = __syncthreads_and(threadIdx.x != 0 || signal_came(memory, value));
		bad = came ? wrong<scope::block>(data, value, n) : 0;
	}
	if (threadIdx.x == 0) {
		out[0] = bad;
		out[1] = !came;
	}
}

/* What rank 1 has at 64 is fetched and added to by rank 0. */
KERNEL proxy_more(u8 *memory, u64 *out)
{
	out[0] = 0;
	if (nvshmem_my_pe() == 0) {
		unsigned long long *word = (unsigned long long *)(memory + 64), *copy = (unsigned long long *)(memory + 128);
		nvshmem_ulonglong_p(word, 77, 1);
		nvshmem_quiet();
		const unsigned long long was = nvshmem_ulonglong_atomic_fetch_add(word, 5, 1);
		nvshmem_ulonglong_get(copy, word, 1, 1);
		out[0] = was != 77 || *(volatile unsigned long long *)copy != 82;
	}
}

__device__ void proxy_send(u8 *memory, u64 n, u64 i, int peer)
{
	uint64_t *const signal = (uint64_t *)(memory + 16);
	if (n)
		nvshmem_putmem_signal(memory + 4096, memory + AREA / 2, n, signal, i, NVSHMEM_SIGNAL_SET, peer);
	else
		nvshmemx_signal_op(signal, i, NVSHMEM_SIGNAL_SET, peer);
}

/* n bytes with their signal, or (0) the signal alone. */
KERNEL proxy_ping(u8 *memory, u64 n, u64 rounds, u64 *out)
{
	const int me = nvshmem_my_pe();
	u64 begin = 0;
	bool came = true;
	for (u64 i = 1; i <= rounds + 10 && came; i++) {
		if (i == 11)
			begin = hw::now_ns();
		if (me == 0)
			proxy_send(memory, n, i, 1);
		came = signal_came(memory, i);
		if (me == 1 && came)
			proxy_send(memory, n, i, 0);
	}
	out[0] = hw::now_ns() - begin;
	out[1] = !came;
}

KERNEL proxy_stream(u8 *memory, u64 n, u64 rounds, u64 *out)
{
	const u64 begin = hw::now_ns();
	for (u64 i = 0; i < rounds; i++)
		nvshmemx_putmem_nbi_block(memory + 4096, memory + 4096, n, 1);
	__syncthreads();
	if (threadIdx.x == 0) {
		nvshmem_quiet();
		out[0] = hw::now_ns() - begin;
	}
}

#endif

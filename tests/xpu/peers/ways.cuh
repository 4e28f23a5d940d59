/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Kernels of nvshmem.cu: NVSHMEM's calls, and forms of put with a signal that the device library does not have. */
#ifndef STRAIT_TEST_XPU_WAYS_CUH
#define STRAIT_TEST_XPU_WAYS_CUH

enum { WAY_NVSHMEM_SIGNAL, WAY_NVSHMEM_PUT, WAY_PACKETS_DEEP, WAY_FENCES, WAY_LINES_1, WAY_LINES_8, WAY_TWELVES };

/* Packets of which a thread has several under way at once. Measured slower than one after the other, at every size. */
template <scope S> __device__ constexpr unsigned lines_at_once() { return S == scope::block ? 4 : 8; }

template <scope S> __device__ int put_packets_deep(window &w, u64 offset, const u8 *src, u64 n, u32 epoch)
{
	if (!w.mapped)
		return err_nosys;
	pair64 *lines = (pair64 *)(w.mapped + offset);
	const unsigned deep = lines_at_once<S>(), size = hw::size<S>();
	const u64 words = ((u64)src & 7) == 0 ? n / 8 : 0;
	for (u64 i = hw::rank<S>(); i < words; i += (u64)deep * size) {
		u64 v[deep];
		STRAIT_XPU_UNROLL
		for (unsigned k = 0; k < deep; k++)
			v[k] = i + (u64)k * size < words ? hw::load_payload((const u64 *)src + i + (u64)k * size) : 0;
		STRAIT_XPU_UNROLL
		for (unsigned k = 0; k < deep; k++)
			if (i + (u64)k * size < words)
				hw::store_line(lines + i + (u64)k * size, detail::packet(v[k], epoch));
	}
	for (u64 i = words + hw::rank<S>(); i < (n + 7) / 8; i += size)
		hw::store_line(lines + i, detail::packet(detail::gather8((const u8 *)src + i * 8, n - i * 8), epoch));
	return ok;
}

template <scope S> __device__ int take_packets_deep(const strait_xpu_context *ctx, const u8 *lines, u8 *dst, u64 n, u32 epoch)
{
	detail::limit l = detail::limit_of(ctx, default_timeout, STRAIT_XPU_ANY);
	const unsigned deep = lines_at_once<S>(), size = hw::size<S>();
	const u64 count = (n + 7) / 8;
	int rc = ok;
	for (u64 i = hw::rank<S>(); i < count && rc == ok; i += (u64)deep * size) {
		pair64 line[deep];
		bool there;
		do {
			there = true;
			STRAIT_XPU_UNROLL
			for (unsigned k = 0; k < deep; k++)
				if (i + (u64)k * size < count)
					line[k] = hw::load_line((const pair64 *)lines + i + (u64)k * size);
			STRAIT_XPU_UNROLL
			for (unsigned k = 0; k < deep; k++)
				there &= i + (u64)k * size >= count || detail::is_of(line[k], epoch);
			rc = there ? (int)ok : detail::after_poll(&l);
		} while (!there && rc == ok);
		STRAIT_XPU_UNROLL
		for (unsigned k = 0; k < deep; k++)
			if (rc == ok && i + (u64)k * size < count)
				detail::scatter8((u8 *)dst + (i + (u64)k * size) * 8, detail::payload_of(line[k]), n - (i + (u64)k * size) * 8);
	}
	if (S == scope::thread)
		return rc;
	const bool failed = hw::any<S>(rc != ok);
	detail::order_warp<S>();
	if (!failed)
		return ok;
	return hw::any<S>(rc == err_canceled) ? (int)err_canceled : (int)err_timedout;
}

/* Lines of which a warp has `deep` units under way at once, whatever the size. */
template <scope S, u32 deep> __device__ int put_lines_deep(window &w, u64 offset, const u8 *src, u64 n, u64 epoch)
{
	detail::lines_out<deep>((pair64 *)(w.mapped + offset), src, (u32)n, epoch, hw::rank<S>(), hw::size<S>() / STRAIT_XPU_WARP);
	return ok;
}

template <scope S, u32 deep> __device__ int take_lines_deep(const strait_xpu_context *ctx, const u8 *lines, u8 *dst, u64 n, u64 epoch)
{
	const int rc = detail::lines_in<deep>(detail::limit_of(ctx, default_timeout, STRAIT_XPU_ANY), (const pair64 *)lines, dst, (u32)n, epoch,
					      hw::rank<S>(), hw::size<S>() / STRAIT_XPU_WARP);
	if (S == scope::warp)
		detail::order_warp<S>();
	return S == scope::warp ? rc : hw::any<S>(rc != ok) ? (int)err_timedout : (int)ok;
}

/* 12 bytes and an epoch of 4 in 16 that PTX promises to be whole: 32 threads have 384 bytes in three words each. */
template <u32 deep> __device__ void twelves_out(pair64 *to, const u8 *src, u32 n, u32 epoch, u32 thread, u32 size)
{
	const u32 words = (n + 3) / 4;
	for (u32 i = thread; i / 32 * 96 + i % 32 < words; i += size * deep) {
		u32 v[deep][3];
		STRAIT_XPU_UNROLL
		for (u32 k = 0; k < deep; k++) {
			const u32 j = i + k * size, at = j / 32 * 96 + j % 32;
			STRAIT_XPU_UNROLL
			for (u32 m = 0; m < 3; m++)
				v[k][m] = at + 32 * m < words ? hw::load_payload((const u32 *)src + at + 32 * m) : 0;
		}
		STRAIT_XPU_UNROLL
		for (u32 k = 0; k < deep; k++) {
			const u32 j = i + k * size;
			if (j / 32 * 96 + j % 32 < words)
				hw::store_whole(to + j, pair64{v[k][0] | (u64)v[k][1] << 32, v[k][2] | (u64)epoch << 32});
		}
	}
}

template <u32 deep> __device__ int twelves_in(detail::limit l, const pair64 *from, u8 *dst, u32 n, u32 epoch, u32 thread, u32 size)
{
	const u32 words = (n + 3) / 4;
	for (u32 i = thread; i / 32 * 96 + i % 32 < words; i += size * deep) {
		pair64 v[deep];
		for (;;) {
			bool there = true;
			STRAIT_XPU_UNROLL
			for (u32 k = 0; k < deep; k++) {
				const u32 j = i + k * size;
				v[k] = hw::load_whole(from + (j / 32 * 96 + j % 32 < words ? j : i));
			}
			STRAIT_XPU_UNROLL
			for (u32 k = 0; k < deep; k++)
				there &= (u32)(v[k].hi >> 32) == epoch;
			if (there)
				break;
			const int rc = detail::after_poll(&l);
			if (rc != ok)
				return rc;
		}
		STRAIT_XPU_UNROLL
		for (u32 k = 0; k < deep; k++) {
			const u32 j = i + k * size, at = j / 32 * 96 + j % 32, part[3] = {(u32)v[k].lo, (u32)(v[k].lo >> 32), (u32)v[k].hi};
			STRAIT_XPU_UNROLL
			for (u32 m = 0; m < 3; m++)
				if (at + 32 * m < words)
					hw::store_payload((u32 *)dst + at + 32 * m, part[m]);
		}
	}
	return ok;
}

template <scope S> __device__ int put_twelves(window &w, u64 offset, const u8 *src, u64 n, u32 epoch)
{
	pair64 *const to = (pair64 *)(w.mapped + offset);
	const u32 size = hw::size<S>(), thread = hw::rank<S>();
	if (n <= 12 * size)
		twelves_out<1>(to, src, (u32)n, epoch, thread, size);
	else if (n <= 24 * size)
		twelves_out<2>(to, src, (u32)n, epoch, thread, size);
	else
		twelves_out<4>(to, src, (u32)n, epoch, thread, size);
	return ok;
}

template <scope S> __device__ int take_twelves(const strait_xpu_context *ctx, const u8 *lines, u8 *dst, u64 n, u32 epoch)
{
	const detail::limit l = detail::limit_of(ctx, default_timeout, STRAIT_XPU_ANY);
	const u32 size = hw::size<S>(), thread = hw::rank<S>();
	int rc;
	if (n <= 12 * size)
		rc = twelves_in<1>(l, (const pair64 *)lines, dst, (u32)n, epoch, thread, size);
	else if (n <= 24 * size)
		rc = twelves_in<2>(l, (const pair64 *)lines, dst, (u32)n, epoch, thread, size);
	else
		rc = twelves_in<4>(l, (const pair64 *)lines, dst, (u32)n, epoch, thread, size);
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
	case WAY_PACKETS_DEEP: put_packets_deep<S>(to, 4096, base + AREA / 2, n, (u32)i); break;
	case WAY_TWELVES: put_twelves<S>(to, 4096, base + AREA / 2, n, (u32)i); break;
	case WAY_LINES_1: put_lines_deep<S, 1>(to, 4096, base + AREA / 2, n, i); break;
	case WAY_LINES_8: put_lines_deep<S, 8>(to, 4096, base + AREA / 2, n, i); break;
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
	case WAY_PACKETS_DEEP: return take_packets_deep<S>(ctx, base + 4096, base + 3 * (AREA / 4), n, (u32)i);
	case WAY_TWELVES: return take_twelves<S>(ctx, base + 4096, base + 3 * (AREA / 4), n, (u32)i);
	case WAY_LINES_1: return take_lines_deep<S, 1>(ctx, base + 4096, base + 3 * (AREA / 4), n, i);
	case WAY_LINES_8: return take_lines_deep<S, 8>(ctx, base + 4096, base + 3 * (AREA / 4), n, i);
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

KERNEL proxy_ping(u8 *memory, u64 n, u64 rounds, u64 *out)
{
	const int me = nvshmem_my_pe();
	u64 begin = 0;
	bool came = true;
	for (u64 i = 1; i <= rounds + 10 && came; i++) {
		if (i == 11)
			begin = hw::now_ns();
		if (me == 0)
			nvshmem_putmem_signal(memory + 4096, memory + AREA / 2, n, (uint64_t *)(memory + 16), i, NVSHMEM_SIGNAL_SET, 1);
		came = signal_came(memory, i);
		if (me == 1 && came)
			nvshmem_putmem_signal(memory + 4096, memory + AREA / 2, n, (uint64_t *)(memory + 16), i, NVSHMEM_SIGNAL_SET, 0);
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

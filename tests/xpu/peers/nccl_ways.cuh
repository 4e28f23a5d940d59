/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Kernels of nccl_device.cu: what NCCL's device API has for peers whose memory is mapped. There is no put in it: a program stores
 * through ncclGetLsaPointer's address, and both sides meet at a barrier; or it sends elements by the session of its LL protocol,
 * whose reader waits for each. A barrier has no half of a ping-pong, so both put and signal at the same time there: a round takes
 * what one way takes. */
#ifndef STRAIT_TEST_XPU_NCCL_WAYS_CUH
#define STRAIT_TEST_XPU_NCCL_WAYS_CUH

enum { BOTH_BARE, BOTH_WEAK, BOTH_SIGNAL, BOTH_PUT, NCCL_RELAXED, NCCL_BARRIER, NCCL_PUT, NCCL_LL };

/* Elements of 8 bytes that the LL session has room for. */
#define NCCL_SLOTS 2048
/* A byte of what is put. */
#define PATTERN 0xa5

KERNEL peer_address(ncclWindow_t window, int peer, u64 *out) { out[0] = (u64)ncclGetLsaPointer(window, 0, peer); }

/* Up to four units of 16 bytes of a thread are under way. */
template <class Coop> __device__ void nccl_store(Coop coop, u8 *to, const u8 *from, u64 n)
{
	const u64 units = n / 16, step = (u64)coop.size();
	u64 i = (u64)coop.thread_rank();
	for (; i + 3 * step < units; i += 4 * step) {
		uint4 v[4];
#pragma unroll
		for (u64 k = 0; k < 4; k++)
			v[k] = ((const uint4 *)from)[i + k * step];
#pragma unroll
		for (u64 k = 0; k < 4; k++)
			((uint4 *)to)[i + k * step] = v[k];
	}
	for (; i < units; i += step)
		((uint4 *)to)[i] = ((const uint4 *)from)[i];
	for (u64 w = units * 2 + (u64)coop.thread_rank(); w < n / 8; w += step)
		((u64 *)to)[w] = ((const u64 *)from)[w];
}

/* By the device library. */
template <scope S> __device__ int both_put(window &to, const strait_xpu_context *ctx, u8 *base, int way, u64 n, u64 i)
{
	const u64 *flag = (const u64 *)(base + 16);
	switch (way) {
	case BOTH_BARE:
		if (hw::rank<S>() == 0) {
			*(volatile u64 *)(to.mapped + 16) = i;
			while (*(volatile const u64 *)flag < i)
				;
		}
		hw::sync<S>();
		return ok;
	case BOTH_WEAK: signal<S>(to, 16, i, weak); break;
	case BOTH_SIGNAL: signal<S>(to, 16, i); break;
	default: put_signal<S>(to, 4096, base + AREA / 2, n, 16, i, weak); break;
	}
	return wait_until<S>(ctx, flag, cmp::ge, i);
}

template <scope S> __device__ void both_ways(const strait_xpu_context *ctx, int way, u64 n, u64 rounds, u64 first, u64 *out)
{
	window to;
	int rc = open(&to, ctx, 1 - ctx->rank, 0);
	u64 begin = 0;
	for (u64 i = 0; i < rounds + 50 && rc == ok; i++) {
		if (i == 50)
			begin = hw::now_ns();
		rc = both_put<S>(to, ctx, own(ctx, 0, 0), way, n, first + i);
	}
	if (hw::rank<S>() == 0) {
		out[0] = hw::now_ns() - begin;
		out[1] = (u64)(i64)rc;
	}
}

KERNEL both_thread(const strait_xpu_context *c, int way, u64 n, u64 rounds, u64 first, u64 *out)
{
	both_ways<scope::thread>(c, way, n, rounds, first, out);
}
KERNEL both_warp(const strait_xpu_context *c, int way, u64 n, u64 rounds, u64 first, u64 *out)
{
	both_ways<scope::warp>(c, way, n, rounds, first, out);
}
KERNEL both_block(const strait_xpu_context *c, int way, u64 n, u64 rounds, u64 first, u64 *out)
{
	both_ways<scope::block>(c, way, n, rounds, first, out);
}

/* A round of the LL session: rank 0 sends n bytes, and rank 1 sends as many back. */
template <class Coop> __device__ u64 ll_round(Coop coop, ncclLLA2ASession<Coop> &ll, int me, u8 *own, u64 n, u64 i)
{
	const u64 step = (u64)coop.size();
	u64 bad = 0;
	for (int turn = 0; turn < 2; turn++) {
		for (u64 w = (u64)coop.thread_rank(); w < n / 8 && turn == me; w += step)
			ll.send(1 - me, (int)w, ((const u64 *)(own + AREA / 2))[w] + (w == 0 ? i : 0));
		for (u64 w = (u64)coop.thread_rank(); w < n / 8 && turn != me; w += step) {
			const u64 v = ll.template recv<u64>((int)w);
			((u64 *)(own + 3 * (AREA / 4)))[w] = v;
			bad += v != 0x0101010101010101ULL * PATTERN + (w == 0 ? i : 0);
		}
		if (turn != me)
			coop.sync();
	}
	ll.endEpoch(coop);
	return bad;
}

template <class Coop>
__device__ void nccl_ways(const ncclDevComm &comm, ncclWindow_t window, ncclLLA2AHandle packets, int way, u64 n, u64 rounds, u64 first, u64 *out)
{
	Coop coop;
	const int me = comm.lsaRank;
	u8 *const own = (u8 *)ncclGetLocalPointer(window, 0), *const peer = (u8 *)ncclGetLsaPointer(window, 0, 1 - me);
	const auto order = way == NCCL_RELAXED ? cuda::memory_order_relaxed : cuda::memory_order_acq_rel;
	u64 begin = 0, bad = 0;
	ncclLsaBarrierSession<Coop> barrier{coop, comm, ncclTeamTagLsa(), 0};
	ncclLLA2ASession<Coop> ll{coop, comm, ncclTeamLsa(comm), packets, 0, NCCL_SLOTS};
	for (u64 i = 0; i < rounds + 50; i++) {
		if (i == 50)
			begin = hw::now_ns();
		if (way == NCCL_LL) {
			bad += ll_round(coop, ll, me, own, n, first + i);
		} else {
			if (way == NCCL_PUT)
				nccl_store(coop, peer + 4096, own + AREA / 2, n);
			barrier.sync(coop, order);
		}
	}
	if (bad)
		out[1] = bad;
	if (coop.thread_rank() == 0) {
		out[0] = hw::now_ns() - begin;
		if (!bad)
			out[1] = 0;
	}
}

KERNEL nccl_thread(ncclDevComm c, ncclWindow_t w, ncclLLA2AHandle p, int way, u64 n, u64 rounds, u64 first, u64 *out)
{
	nccl_ways<ncclCoopThread>(c, w, p, way, n, rounds, first, out);
}
KERNEL nccl_warp(ncclDevComm c, ncclWindow_t w, ncclLLA2AHandle p, int way, u64 n, u64 rounds, u64 first, u64 *out)
{
	nccl_ways<ncclCoopWarp>(c, w, p, way, n, rounds, first, out);
}
KERNEL nccl_block(ncclDevComm c, ncclWindow_t w, ncclLLA2AHandle p, int way, u64 n, u64 rounds, u64 first, u64 *out)
{
	nccl_ways<ncclCoopCta>(c, w, p, way, n, rounds, first, out);
}

KERNEL nccl_bandwidth(ncclWindow_t window, u64 at, u64 n, u64 rounds)
{
	const u64 part = n / gridDim.x & ~15ULL, from = at + part * blockIdx.x, mine = blockIdx.x == gridDim.x - 1 ? n - part * blockIdx.x : part;
	u8 *const to = (u8 *)ncclGetLsaPointer(window, from, 1);
	const u8 *const own = (const u8 *)ncclGetLocalPointer(window, from);
	for (u64 i = 0; i < rounds; i++)
		nccl_store(ncclCoopCta(), to, own, mine);
	__threadfence_system();
}

#endif

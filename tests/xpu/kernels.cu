/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Kernels of tests/xpu/gpu.cc: each is launched for rank 0 and for rank 1, on two GPUs or on one. */
#include "strait_xpu.cuh"
#include "gpu.h"

using namespace strait::xpu;

#ifndef KERNEL
#define KERNEL extern "C" __global__ void
#endif

__device__ u64 random_of(u64 i)
{
	i = (i + 1) * 0xbf58476d1ce4e5b9ULL;
	i ^= i >> 29;
	i *= 0x94d049bb133111ebULL;
	return i ^ i >> 32;
}

__device__ u8 pattern(u64 i, u64 j) { return (u8)((i * 0x9e3779b97f4a7c15ULL + j * 0xd1342543de82ef95ULL) >> 40); }

template <scope S> __device__ void fill(u8 *to, u64 i, u64 n)
{
	for (u64 j = hw::rank<S>(); j < n; j += hw::size<S>())
		to[j] = pattern(i, j);
	hw::sync<S>();
}

template <scope S> __device__ u32 wrong(const u8 *from, u64 i, u64 n)
{
	u32 bad = 0;
	for (u64 j = hw::rank<S>(); j < n; j += hw::size<S>())
		bad |= from[j] != pattern(i, j);
	return hw::any<S>(bad != 0);
}

__device__ u8 *own(const strait_xpu_context *ctx, u32 region, u64 offset)
{
	return (u8 *)((const strait_xpu_region *)ctx->regions)[region].base + offset;
}

/* ---- Order and contents ---- */

struct litmus_side {
	const strait_xpu_context *ctx;
	window to;
	mailbox m;
	u64 base, mode, most;
	crc_stats *stats;
};

template <scope S> __device__ int send_round(litmus_side &s, u64 i, u64 n, u64 at)
{
	const u8 *from = own(s.ctx, 0, s.base + AREA / 2 + (random_of(i) & 31));
	fill<S>((u8 *)from, i, s.mode == MODE_FUSED ? 8 : n);
	switch (s.mode) {
	case MODE_SIGNAL: return put_signal<S>(s.to, at, from, n, s.base + 16, i + 1);
	case MODE_ADD: return put_signal<S>(s.to, at, from, n, s.base + 16, 1, add);
	case MODE_PACKETS: return put_packets<S>(s.to, s.base + 4096, from, n, (u32)i + 1);
	case MODE_CRC: return put_signal_crc<S>(s.to, at, from, n, s.base + 32, s.base + 16, i + 1);
	case MODE_MAIL: {
		int rc;
		while ((rc = mail_put<S>(s.m, 0, at, from, n, 0, s.base + 16, i + 1)) == err_again)
			;
		return rc;
	}
	default: return put_signal<S>(s.to, s.base + 64, from, 8, s.base + 72, i + 1, weak);
	}
}

template <scope S> __device__ int take_round(litmus_side &s, u64 i, u64 n, u64 at, u32 *bad)
{
	const u64 *word = (const u64 *)own(s.ctx, 0, s.base + (s.mode == MODE_FUSED ? 72 : 16));
	const u8 *data = own(s.ctx, 0, at);
	int rc;
	if (s.mode == MODE_PACKETS) {
		data = own(s.ctx, 0, s.base + 3 * (AREA / 4) + (i & 1 ? i >> 1 & 31 : 0));
		rc = take_packets<S>(s.ctx, own(s.ctx, 0, s.base + 4096), (u8 *)data, n, (u32)i + 1);
		hw::sync<S>();
	} else if (s.mode == MODE_MAIL) {
		rc = mail_wait<S>(s.m, word, cmp::eq, i + 1);
	} else if (s.mode == MODE_CRC) {
		rc = wait_crc<S>(s.ctx, word, cmp::eq, i + 1, data, n, (const u64 *)own(s.ctx, 0, s.base + 32), s.stats);
		*bad = rc == err_io;
		return rc == err_io ? (int)ok : rc;
	} else {
		rc = wait_until<S>(s.ctx, word, cmp::eq, i + 1);
		data = s.mode == MODE_FUSED ? own(s.ctx, 0, s.base + 64) : data;
	}
	*bad = wrong<S>(data, i, s.mode == MODE_FUSED ? 8 : n);
	return rc;
}

template <scope S>
__device__ void litmus(const strait_xpu_context *ctx, u64 mode, u64 rounds, u64 seed, u64 most, u64 *out, crc_stats *stats)
{
	litmus_side s = {ctx, {}, {}, (u64)blockIdx.x * AREA, mode, most, stats};
	const u32 rank = ctx->rank;
	u64 bad = 0, i = 0;
	int rc = open(&s.to, ctx, 1 - rank, 0);
	if (rc == ok && mode == MODE_MAIL)
		rc = open_mailbox(&s.m, ctx, 1 - rank, 1, 2 * mailbox_size(MAIL_LOG2) * blockIdx.x, MAIL_LOG2);
	for (; i < rounds && rc == ok; i++) {
		const u64 r = random_of(seed + i * 64 + blockIdx.x), at = s.base + 4096 + (r >> 40 & 31);
		/* One of eight is long. */
		const u64 n = 1 + r % (r >> 50 & 7 || most < 2048 ? most < 2048 ? most : 2048 : most);
		u32 now = 0;
		if (rank == 0) {
			rc = send_round<S>(s, i, n, at);
			if (rc == ok)
				rc = wait_until<S>(ctx, (const u64 *)own(ctx, 0, s.base + 24), cmp::ge, i + 1);
		} else {
			rc = take_round<S>(s, i, n, at, &now);
			bad += now;
			if (rc == ok)
				rc = signal<S>(s.to, s.base + 24, i + 1);
		}
	}
	if (hw::rank<S>() == 0) {
		out[3 * blockIdx.x] = i;
		out[3 * blockIdx.x + 1] = bad;
		out[3 * blockIdx.x + 2] = (u64)(i64)rc;
	}
}

KERNEL litmus_thread(const strait_xpu_context *c, u64 mode, u64 rounds, u64 seed, u64 most, u64 *out, crc_stats *s)
{
	litmus<scope::thread>(c, mode, rounds, seed, most, out, s);
}
KERNEL litmus_warp(const strait_xpu_context *c, u64 mode, u64 rounds, u64 seed, u64 most, u64 *out, crc_stats *s)
{
	litmus<scope::warp>(c, mode, rounds, seed, most, out, s);
}
KERNEL litmus_block(const strait_xpu_context *c, u64 mode, u64 rounds, u64 seed, u64 most, u64 *out, crc_stats *s)
{
	litmus<scope::block>(c, mode, rounds, seed, most, out, s);
}

/* A stream of words with their signals, without answers: whatever signal is seen, the word is its own. */
KERNEL litmus_words(const strait_xpu_context *ctx, u64 rounds, u64 *out)
{
	window to;
	const u64 at = (u64)blockIdx.x * AREA + 128;
	u64 bad = 0, seen = 0, have = 0, word = 0;
	int rc = open(&to, ctx, 1 - ctx->rank, 0);
	if (ctx->rank == 0)
		for (u64 i = 1; i <= rounds && rc == ok; i++)
			rc = put_word_signal(to, at, random_of(i), i);
	while (ctx->rank == 1 && have < rounds && rc == ok) {
		pair64 v = hw::load_whole((const pair64 *)own(ctx, 0, at));
		if (v.hi == have) {
			rc = wait_word(ctx, (const pair64 *)own(ctx, 0, at), cmp::gt, have, &word);
			v = hw::load_whole((const pair64 *)own(ctx, 0, at));
		}
		bad += v.hi < have || (v.hi && v.lo != random_of(v.hi));
		have = v.hi;
		seen++;
	}
	out[3 * blockIdx.x] = ctx->rank ? seen : rounds;
	out[3 * blockIdx.x + 1] = bad;
	out[3 * blockIdx.x + 2] = (u64)(i64)rc;
}

/* ---- Time one way ---- */

/* What a program would write itself; still with an end. */
__device__ int bare_wait(const u64 *p, u64 v)
{
	u64 begin = 0;
	for (u32 spins = 1; *(volatile const u64 *)p != v; spins++)
		if ((spins & 0xfffff) == 0) {
			const u64 now = hw::now_ns();
			begin = begin ? begin : now;
			if (now - begin > 10000000000ULL)
				return err_timedout;
		}
	return ok;
}

/* Each kind has kernels of its own, as a program would: in one kernel for all, of 17000 instructions, a signal took longer. */
template <scope S, int Kind>
__device__ int ping(window &to, mailbox &m, const u8 *base, u64 n, u64 i)
{
	const u8 *from = base + AREA / 2;
	switch (Kind) {
	case PING_BARE:
		if (hw::rank<S>() == 0)
			*(volatile u64 *)(to.mapped + 16) = i;
		return ok;
	case PING_SIGNAL_WEAK: return signal<S>(to, 16, i, weak);
	case PING_SIGNAL: return signal<S>(to, 16, i);
	case PING_PUT: return put_signal<S>(to, 4096, from, n, 16, i, weak);
	case PING_FUSED: return put_signal<S>(to, 4096, from, 8, 4104, i, weak);
	case PING_WORD: return hw::rank<S>() == 0 ? put_word_signal(to, 4096, i, i) : (int)ok;
	case PING_PACKETS: return put_packets<S>(to, 4096, from, n, (u32)i);
	default: return mail_put<S>(m, 0, 4096, from, n, 0, 16, i);
	}
}

template <scope S, int Kind> __device__ int pong(mailbox &m, const strait_xpu_context *ctx, u8 *base, u64 n, u64 i)
{
	u64 word = 0;
	const u64 *flag = (const u64 *)(base + 16);
	int rc = ok;
	switch (Kind) {
	case PING_BARE:
		if (hw::rank<S>() == 0)
			rc = bare_wait(flag, i);
		hw::sync<S>();
		return rc;
	case PING_FUSED: return wait_until<S>(ctx, (const u64 *)(base + 4104), cmp::eq, i);
	case PING_WORD:
		if (hw::rank<S>() == 0)
			rc = wait_word(ctx, (const pair64 *)(base + 4096), cmp::eq, i, &word);
		hw::sync<S>();
		return rc;
	case PING_PACKETS: return take_packets<S>(ctx, (base + 4096), (base + 3 * (AREA / 4)), n, (u32)i);
	case PING_MAIL: return mail_wait<S>(m, flag, cmp::eq, i);
	default: return wait_until<S>(ctx, flag, cmp::eq, i);
	}
}

/* out: nanoseconds of `rounds` round trips, and what went wrong. `first`: the number of the first, above those before. */
template <scope S, int Kind> __device__ void latency(const strait_xpu_context *ctx, u64 n, u64 rounds, u64 first, u64 *out)
{
	window to;
	mailbox m = {};
	int rc = open(&to, ctx, 1 - ctx->rank, 0);
	if (Kind == PING_MAIL && rc == ok)
		rc = open_mailbox(&m, ctx, 1 - ctx->rank, 1, 0, MAIL_LOG2);
	u64 begin = 0;
	u8 *const base = own(ctx, 0, 0);
	const u32 rank = ctx->rank;
	/* The number is in a register: a load of a kernel's argument stands behind what a wait did to the L1 cache. */
	for (u64 i = first; i < first + rounds + 50 && rc == ok; i++) {
		if (i == first + 50)
			begin = hw::now_ns();
		if (rank == 0)
			rc = ping<S, Kind>(to, m, base, n, i);
		if (rc == ok)
			rc = pong<S, Kind>(m, ctx, base, n, i);
		if (rank == 1 && rc == ok)
			rc = ping<S, Kind>(to, m, base, n, i);
	}
	if (hw::rank<S>() == 0) {
		out[0] = hw::now_ns() - begin;
		out[1] = (u64)(i64)rc;
	}
}

/* A block's is run with 512 threads, too. */
#define LATENCY(name, kind)                                                                                        \
	KERNEL latency_thread_##name(const strait_xpu_context *c, u64 n, u64 rounds, u64 first, u64 *out)          \
	{                                                                                                          \
		latency<scope::thread, kind>(c, n, rounds, first, out);                                            \
	}                                                                                                          \
	KERNEL latency_warp_##name(const strait_xpu_context *c, u64 n, u64 rounds, u64 first, u64 *out)            \
	{                                                                                                          \
		latency<scope::warp, kind>(c, n, rounds, first, out);                                              \
	}                                                                                                          \
	KERNEL __launch_bounds__(512) latency_block_##name(const strait_xpu_context *c, u64 n, u64 rounds, u64 first, u64 *out) \
	{                                                                                                          \
		latency<scope::block, kind>(c, n, rounds, first, out);                                             \
	}
PINGS_OF(LATENCY)
#undef LATENCY

/* ---- Bandwidth: rank 0 puts n bytes so often, each block its part ---- */

KERNEL bandwidth(const strait_xpu_context *ctx, u64 n, u64 rounds, u64 gets, u64 *out)
{
	window to;
	int rc = open(&to, ctx, 1 - ctx->rank, 2);
	const u64 part = n / gridDim.x & ~15ULL, at = part * blockIdx.x;
	const u64 mine = blockIdx.x == gridDim.x - 1 ? n - at : part;
	for (u64 i = 0; i < rounds && rc == ok; i++)
		rc = gets ? get<scope::block>(to, own(ctx, 2, at), at, mine) : put<scope::block>(to, at, own(ctx, 2, at), mine);
	if (rc == ok)
		rc = quiet<scope::block>(to);
	if (hw::rank<scope::block>() == 0)
		out[blockIdx.x] = (u64)(i64)rc;
}

/* ---- Commands ---- */

/* A word to the host and back, `rounds` times: what commands are compared with. */
KERNEL bare_round_trip(u64 *to, const u64 *back, u64 rounds, u64 *out)
{
	int rc = ok;
	u64 begin = 0;
	for (u64 i = 1; i <= rounds + 50 && rc == ok; i++) {
		if (i == 51)
			begin = hw::now_ns();
		*(volatile u64 *)to = i;
		rc = bare_wait(back, i);
	}
	out[0] = hw::now_ns() - begin;
	out[1] = (u64)(i64)rc;
}

__device__ strait_xpu_command nop() { return strait_xpu_command{STRAIT_XPU_OP_NOP, 0, 0, STRAIT_XPU_NO_REGION, 0, 0, 0, 0, 0, 0, 0}; }

/* One command, and until it is done. By a thread alone, or by a warp that writes it together. */
KERNEL command_round_trip(const strait_xpu_context *ctx, u64 rounds, u64 warp, u64 *out)
{
	ring r;
	u64 begin = 0, ticket = 0;
	int rc = open_ring(&r, (const strait_xpu_ring *)ctx->rings);
	for (u64 i = 0; i < rounds + 50 && rc == ok; i++) {
		if (i == 50)
			begin = hw::now_ns();
		rc = warp ? post<scope::warp>(r, nop(), &ticket) : post<scope::thread>(r, nop(), &ticket);
		if (threadIdx.x == 0 && rc == ok)
			rc = wait_ticket(r, ticket);
		if (warp)
			rc = detail::agree<scope::warp>(rc);
	}
	if (threadIdx.x == 0) {
		out[0] = hw::now_ns() - begin;
		out[1] = (u64)(i64)rc;
	}
}

/* The seed's ladder. Each warp posts `count` commands to the ring of its number % rings; out: nanoseconds, what went wrong. */
KERNEL __launch_bounds__(960) ladder(const strait_xpu_context *ctx, u64 ring_count, u64 step, u64 count, u64 *out)
{
	ring r;
	const unsigned warp = threadIdx.x / STRAIT_XPU_WARP, lane = threadIdx.x % STRAIT_XPU_WARP;
	const unsigned number = blockIdx.x * (blockDim.x / STRAIT_XPU_WARP) + warp;
	int rc = open_ring(&r, (const strait_xpu_ring *)ctx->rings + number % ring_count);
	const u64 begin = hw::now_ns();
	strait_xpu_command c = nop();
	if (step == LADDER_WARP) {
		for (u64 i = 0; i < count && rc == ok; i += 32) {
			u32 tries = 0;
			while ((rc = post_each(r, c, true)) == err_again && ++tries < 10000000)
				;
		}
	} else if (lane == 0) {
		for (u64 i = 0; i < count && rc == ok; i++) {
			u64 ticket = 0;
			u32 tries = 0;
			c.flags = step == LADDER_BATCH && i % 32 != 31 && i != count - 1 ? STRAIT_XPU_MORE : 0;
			while ((rc = post<scope::thread>(r, c, &ticket)) == err_again && ++tries < 10000000)
				/* The drain has to be notified of what fills the ring. */
				bell(r);
			if (rc == ok && step == LADDER_NAIVE)
				rc = wait_ticket(r, ticket);
		}
	}
	rc = detail::share<scope::warp>(rc);
	const int rest = quiet<scope::warp>(r);
	if (lane == 0) {
		out[2 * number] = hw::now_ns() - begin;
		out[2 * number + 1] = (u64)(i64)(rc == ok ? rest : rc);
	}
}

/* A drain that is a kernel: one warp takes `count` commands and reports each. It reaches rings and status wherever they
 * are, as a network card would. */
KERNEL soft_card(const strait_xpu_context *ctx, u64 count, u64 *out)
{
	const strait_xpu_ring *from = (const strait_xpu_ring *)ctx->rings;
	const unsigned lane = threadIdx.x;
	ring r;
	int rc = open_ring(&r, from);
	strait_xpu_status *s = (strait_xpu_status *)from->status;
	const u64 begin = hw::now_ns();
	for (u64 t = 0; t < count && rc == ok; t++) {
		const u64 *slot = r.slots[t & ((1ULL << r.log2_slots) - 1)].word;
		const u64 lap = strait_xpu_lap(t, r.log2_slots);
		u32 spins = 0;
		for (;;) {
			const bool there = lane >= 8 || hw::load_relaxed(slot + (lane & 7)) >> 63 == lap;
			if (hw::ballot(there) == 0xffffffffu)
				break;
			if ((++spins & 1023) == 0 && hw::now_ns() - begin > 20000000000ULL) {
				rc = err_timedout;
				break;
			}
		}
		rc = detail::share<scope::warp>(rc);
		if (lane == 0 && rc == ok) {
			hw::store_relaxed(&s->consumed, t + 1);
			hw::store_relaxed(&s->done, t + 1);
		}
	}
	if (lane == 0)
		out[0] = (u64)(i64)rc;
}

#include "matvec.cuh"
#include "crossing.cuh"

/* ---- fi_xpu(3): fi_program.cc ---- */

#include "fi_turn.cuh"

KERNEL fi_thread(const fi_args *a) { fi_test::turn<scope::thread>(a, 0); }
KERNEL fi_warp(const fi_args *a) { fi_test::turn<scope::warp>(a, 1); }
KERNEL fi_block(const fi_args *a) { fi_test::turn<scope::block>(a, 2); }

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Kernels of gaspi/host.cc: what a GPU's node does in the seed's slides 41 and 42, against ranks on hosts. One block each. */
#include "strait_xpu.cuh"
#include "gaspi/host.h"

using namespace strait::xpu;

#ifndef KERNEL
#define KERNEL extern "C" __global__ void
#endif

__device__ u8 *own_memory(const strait_xpu_context *ctx, u32 segment, u64 offset)
{
	return (u8 *)((const strait_xpu_region *)ctx->regions)[segment].base + offset;
}

__device__ bool first_thread() { return hw::rank<scope::block>() == 0; }

/* Slide 41: waits, computes, and writes back; `rounds` times. */
KERNEL gaspi_echo(const gaspi_job *job, u64 *out)
{
	const gpu_gaspi g = {(const strait_xpu_context *)job->ctx, job->notify_region, job->notify_count};
	const u32 s = job->segment;
	int rc = GPU_GASPI_SUCCESS;
	u32 wrong = 0;
	for (u64 done = 0; done < job->rounds && rc == GPU_GASPI_SUCCESS; done++) {
		u32 id = ~0u, value = 0;
		rc = gpu_gaspi_notify_waitsome(g, s, 0, 8, &id, GPU_GASPI_BLOCK);
		if (rc != GPU_GASPI_SUCCESS)
			break;
		if (first_thread())
			gpu_gaspi_notify_reset(g, s, id, &value);
		/* The value says which round: several are on their way. */
		value = (u32)hw::broadcast<scope::block>((u64)value);
		const u64 i = (u64)value - 1;
		wrong += value == 0 || id != i % 8;
		const u64 n = gaspi_size_of(i, job->most), from = IN_AT + i % 8 * job->most, to = OUT_AT + i % 8 * job->most;
		for (u64 j = hw::rank<scope::block>(); j < n; j += hw::size<scope::block>()) {
			const u8 have = *own_memory(g.ctx, s, from + j);
			wrong += have != gaspi_byte(i, j);
			*own_memory(g.ctx, s, to + j) = (u8)(have + 1);
		}
		hw::sync<scope::block>();
		while ((rc = gpu_gaspi_write_notify(g, s, to, job->peer, s, to, n, 8 + id, value, job->queue)) == GPU_GASPI_QUEUE_FULL)
			;
	}
	if (rc == GPU_GASPI_SUCCESS)
		rc = gpu_gaspi_wait(g, job->queue, GPU_GASPI_BLOCK);
	hw::add_relaxed(&out[1], wrong);
	if (first_thread())
		out[0] = (u64)(i64)rc;
}

/* Each call in turn; out[0] is the first line where it went wrong, or 0. */
#define EXPECT(what)                                                     \
	do {                                                             \
		if (!(what) && first_thread() && out[0] == 0)            \
			out[0] = __LINE__;                               \
	} while (0)

KERNEL gaspi_calls(const gaspi_job *job, u64 *out)
{
	const gpu_gaspi g = {(const strait_xpu_context *)job->ctx, job->notify_region, job->notify_count};
	const u32 s = job->segment, peer = job->peer, q = job->queue;
	u32 id = 0, old = 0, got = 0;
	/* The rank on the host has set 20, 33 and 63 to 200, 333 and 63; they may come one by one. */
	EXPECT(gpu_gaspi_notify_waitsome(g, s, 34, 29, &id, 50) == GPU_GASPI_TIMEOUT);
	EXPECT(gpu_gaspi_notify_waitsome(g, s, 0, 20, &id, GPU_GASPI_TEST) == GPU_GASPI_TIMEOUT);
	EXPECT(gpu_gaspi_notify_waitsome(g, s, 16, 8, &id, GPU_GASPI_BLOCK) == GPU_GASPI_SUCCESS && id == 20);
	EXPECT(gpu_gaspi_notify_waitsome(g, s, 21, 20, &id, GPU_GASPI_BLOCK) == GPU_GASPI_SUCCESS && id == 33);
	EXPECT(gpu_gaspi_notify_waitsome(g, s, 63, 1, &id, GPU_GASPI_BLOCK) == GPU_GASPI_SUCCESS && id == 63);
	hw::sync<scope::block>();
	if (first_thread()) {
		EXPECT(gpu_gaspi_notify_reset(g, s, 20, &old) == GPU_GASPI_SUCCESS && old == 200);
		EXPECT(gpu_gaspi_notify_reset(g, s, 20, &old) == GPU_GASPI_SUCCESS && old == 0);
		EXPECT(gpu_gaspi_notify_reset(g, s, 33, &old) == GPU_GASPI_SUCCESS && old == 333);
		EXPECT(gpu_gaspi_notify_reset(g, s, 63, &old) == GPU_GASPI_SUCCESS && old == 63);
	}
	hw::sync<scope::block>();
	EXPECT(gpu_gaspi_notify_waitsome(g, s, 0, 64, &id, GPU_GASPI_TEST) == GPU_GASPI_TIMEOUT);
	/* What is not there: a rank, a segment, an id, a range. */
	EXPECT(gpu_gaspi_notify_waitsome(g, s, 60, 5, &id, GPU_GASPI_TEST) == GPU_GASPI_ERROR);
	EXPECT(gpu_gaspi_write(g, s, 0, 3, s, 0, 8, q) == GPU_GASPI_ERROR);
	EXPECT(gpu_gaspi_write(g, s, 0, peer, 7, 0, 8, q) == GPU_GASPI_ERROR);
	EXPECT(gpu_gaspi_write(g, s, SEGMENT_BYTES, peer, s, 0, 8, q) == GPU_GASPI_ERROR);
	EXPECT(gpu_gaspi_notify(g, s, peer, 64, 1, q) == GPU_GASPI_ERROR);
	/* Small and large writes, then a notification after all of them. */
	for (u64 n = 1; n <= 24; n++) {
		for (u64 j = hw::rank<scope::block>(); j < n; j += hw::size<scope::block>())
			*own_memory(g.ctx, s, SMALL_AT + 64 * n + j) = gaspi_byte(n, j);
		hw::sync<scope::block>();
		while ((got = (u32)gpu_gaspi_write(g, s, SMALL_AT + 64 * n, peer, s, SMALL_AT + 64 * n, n, q)) == GPU_GASPI_QUEUE_FULL)
			;
		EXPECT(got == GPU_GASPI_SUCCESS);
	}
	while ((got = (u32)gpu_gaspi_notify(g, s, peer, 40, 4000000000u, q)) == GPU_GASPI_QUEUE_FULL)
		;
	EXPECT(got == GPU_GASPI_SUCCESS);
	EXPECT(gpu_gaspi_wait(g, q, GPU_GASPI_BLOCK) == GPU_GASPI_SUCCESS);
	/* A get, and words. */
	window w;
	EXPECT(open(&w, g.ctx, peer, s, q) == ok);
	EXPECT(get<scope::block>(w, own_memory(g.ctx, s, READ_AT), HOST_AT, 1000) == ok && gpu_gaspi_wait(g, q, GPU_GASPI_BLOCK) == GPU_GASPI_SUCCESS);
	u32 wrong = 0;
	for (u64 j = hw::rank<scope::block>(); j < 1000; j += hw::size<scope::block>())
		wrong += *own_memory(g.ctx, s, READ_AT + j) != gaspi_byte(77, j);
	hw::add_relaxed(&out[1], wrong);
	hw::sync<scope::block>();
	if (first_thread()) {
		u64 *fetched = (u64 *)own_memory(g.ctx, s, READ_AT + 2048);
		for (u64 i = 0; i < 10; i++)
			EXPECT(atomic_fetch_add(w, WORD_AT, 3, fetched) == ok && hw::load_acquire(fetched) == 3 * i);
		EXPECT(atomic_add(w, WORD_AT, 12) == ok && quiet<scope::thread>(w) == ok);
		EXPECT(atomic_compare_swap(w, WORD_AT, 41, 1, fetched) == ok && hw::load_acquire(fetched) == 42);
		EXPECT(atomic_compare_swap(w, WORD_AT, 42, 43, fetched) == ok && hw::load_acquire(fetched) == 42);
	}
	hw::sync<scope::block>();
	while ((got = (u32)gpu_gaspi_notify(g, s, peer, 41, 1, q)) == GPU_GASPI_QUEUE_FULL)
		;
	EXPECT(got == GPU_GASPI_SUCCESS && gpu_gaspi_wait(g, q, GPU_GASPI_BLOCK) == GPU_GASPI_SUCCESS);
}

/* The host's thread does not look until out[LOOK_GO] is set: the ring fills, and waits time out. */
KERNEL gaspi_full(const gaspi_job *job, u64 *out)
{
	const gpu_gaspi g = {(const strait_xpu_context *)job->ctx, job->notify_region, job->notify_count};
	u64 posted = 0;
	int rc;
	while ((rc = gpu_gaspi_notify(g, job->segment, job->peer, 42, (u32)posted + 1, job->queue)) == GPU_GASPI_SUCCESS && posted < 1u << 21)
		posted++;
	EXPECT(rc == GPU_GASPI_QUEUE_FULL);
	EXPECT(gpu_gaspi_wait(g, job->queue, 20) == GPU_GASPI_TIMEOUT);
	hw::sync<scope::block>();
	if (first_thread()) {
		out[1] = posted;
		hw::store_release(&out[LOOK_GO], 1);
	}
	rc = gpu_gaspi_wait(g, job->queue, GPU_GASPI_BLOCK);
	EXPECT(rc == GPU_GASPI_SUCCESS);
}

/* A command that the host refuses, past the device's checks: no notification after it comes through, and the queue has an error. */
KERNEL gaspi_refused(const gaspi_job *job, u64 *out)
{
	const gpu_gaspi g = {(const strait_xpu_context *)job->ctx, job->notify_region, job->notify_count};
	window w;
	u32 code = 0, ticket = 0;
	EXPECT(open(&w, g.ctx, job->peer, job->segment, job->queue) == ok);
	w.length += 1u << 20;
	EXPECT(put<scope::block>(w, SEGMENT_BYTES + 64, own_memory(g.ctx, job->segment, 0), 64) == ok);
	EXPECT(gpu_gaspi_notify(g, job->segment, job->peer, 43, 1, job->queue) == GPU_GASPI_SUCCESS);
	EXPECT(gpu_gaspi_wait(g, job->queue, GPU_GASPI_BLOCK) == GPU_GASPI_ERROR);
	EXPECT(last_error(w, &code, &ticket) && code == 22);
	/* An error is reported also while commands are under way. */
	if (first_thread()) {
		hw::store_release(&out[LOOK_PAUSE], 1);
		EXPECT(wait_until<scope::thread>(g.ctx, &out[LOOK_PAUSED], cmp::eq, 1) == ok);
	}
	hw::sync<scope::block>();
	EXPECT(gpu_gaspi_write(g, job->segment, 0, job->peer, job->segment, SMALL_AT, 8, job->queue) == GPU_GASPI_SUCCESS);
	EXPECT(gpu_gaspi_wait(g, job->queue, 20) == GPU_GASPI_ERROR);
	hw::sync<scope::block>();
	if (first_thread())
		hw::store_release(&out[LOOK_PAUSE], 0);
	/* Another queue knows nothing of it. */
	EXPECT(gpu_gaspi_notify(g, job->segment, job->peer, 44, 1, 0) == GPU_GASPI_SUCCESS);
	EXPECT(gpu_gaspi_wait(g, 0, GPU_GASPI_BLOCK) == GPU_GASPI_SUCCESS);
}

/* Writes to a rank that is killed meanwhile, until there is an error, of this number if `rounds` is one; then one to a rank that lives. */
KERNEL gaspi_until_error(const gaspi_job *job, u64 *out)
{
	const gpu_gaspi g = {(const strait_xpu_context *)job->ctx, job->notify_region, job->notify_count};
	const u64 begin = hw::now_ns();
	int rc = GPU_GASPI_SUCCESS;
	u64 rounds = 0;
	for (;; rounds++) {
		rc = gpu_gaspi_write_notify(g, job->segment, 0, job->peer, job->segment, 0, job->most, 1, 1, job->queue);
		if (rc == GPU_GASPI_SUCCESS)
			rc = gpu_gaspi_wait(g, job->queue, 2000);
		/* The block leaves as one. */
		const bool late = hw::any<scope::block>(hw::now_ns() - begin > 30000000000ULL);
		if ((rc != GPU_GASPI_SUCCESS && rc != GPU_GASPI_TIMEOUT && rc != GPU_GASPI_QUEUE_FULL) || late)
			break;
	}
	EXPECT(rc == GPU_GASPI_ERROR);
	window w;
	u32 code = 0, ticket = 0;
	EXPECT(open(&w, g.ctx, job->peer, job->segment, job->queue) == ok && last_error(w, &code, &ticket) && (job->rounds == 0 || code == job->rounds));
	EXPECT(gpu_gaspi_notify(g, job->segment, 0, job->queue == 1 ? 45 : 46, 1, 0) == GPU_GASPI_SUCCESS);
	EXPECT(gpu_gaspi_wait(g, 0, GPU_GASPI_BLOCK) == GPU_GASPI_SUCCESS);
	if (first_thread()) {
		out[1] = rounds;
		out[2] = hw::now_ns() - begin;
	}
}

/* Back and forth with a rank on the host; out[1]: ns of all rounds after the first ten. */
KERNEL gaspi_latency(const gaspi_job *job, u64 *out)
{
	const gpu_gaspi g = {(const strait_xpu_context *)job->ctx, job->notify_region, job->notify_count};
	gpu_gaspi_link l;
	int rc = gpu_gaspi_link_open(&l, g, job->segment, job->peer, job->segment, job->queue);
	u64 begin = 0;
	for (u64 i = 0; i < job->rounds + 10 && rc == GPU_GASPI_SUCCESS; i++) {
		u32 id = 0, old = 0;
		if (i == 10)
			begin = hw::now_ns();
		while ((rc = gpu_gaspi_link_write_notify(l, OUT_AT, IN_AT, job->most, 1, (u32)i + 1)) == GPU_GASPI_QUEUE_FULL)
			;
		if (rc == GPU_GASPI_SUCCESS)
			rc = gpu_gaspi_link_waitsome(l, 2, 1, &id, GPU_GASPI_BLOCK);
		if (first_thread() && rc == GPU_GASPI_SUCCESS)
			gpu_gaspi_link_reset(l, id, &old);
		hw::sync<scope::block>();
	}
	if (first_thread()) {
		out[0] = (u64)(i64)rc;
		out[1] = hw::now_ns() - begin;
	}
}

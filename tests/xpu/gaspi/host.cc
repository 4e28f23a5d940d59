/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Kernels with gpu_gaspi_* names against ranks of a GASPI on the host: rank 0 is the CPU's node, rank 1 the GPU's, and rank 2
 * is killed. With GPI2 the GASPI is what <GASPI.h> has, else a stand-in. The kernels' threads are lanes, or with a file of
 * machine code a GPU's. It starts its ranks itself.
 *
 *     gaspi_host                        prints "ok gaspi"
 *     gaspi_host kernels.cubin|lanes    and times
 *
 * GASPI_TEST_HOST_MEMORY: the GPU's segments are both the host's memory. */
#include <signal.h>
#include <unistd.h>

#ifdef GPI2
#include <GASPI.h>
#else
#include "gaspi/stand_in.h"
#endif
#include "strait_gaspi_host.hpp"

#include <cstdio>
#include <string>

#include "driver.h"
#include "gaspi/ranks.h"
#include "strait_xpu.cuh"

/* The words of CUDA that the kernels use. */
#define __device__ static inline
#define KERNEL static void
#include "gaspi_kernels.cu"

static unsigned rank_here;
#define CHECK_FORMAT "rank %u: "
#define CHECK_ARGS rank_here
#include "check.h"

enum : unsigned { ranks = 3, gaspi_segments = 2 };

/* ---- Where kernels run ---- */

static struct {
	std::string code; /* empty: lanes */
	void *module = nullptr, *stream = nullptr;
	std::thread lanes;
} gpu;

static void *pinned(size_t n)
{
	void *p = nullptr;
	cu("cuMemHostAlloc", &p, n, 3u);
	return p;
}
static void unpinned(void *p) { cu("cuMemFreeHost", p); }
static void *on_device(size_t n)
{
	dptr p = 0;
	cu("cuMemAlloc_v2", &p, n);
	cu("cuMemsetD8_v2", p, (unsigned char)0, n);
	return (void *)p;
}
static void off_device(void *p) { cu("cuMemFree_v2", (dptr)p); }
static void to_device(void *to, const void *from, size_t n) { cu("cuMemcpyHtoD_v2", (dptr)to, from, n); }

static void open_gpu(const char *file)
{
	FILE *f = fopen(file, "rb");
	CHECK(f);
	char some[65536];
	for (size_t n; (n = fread(some, 1, sizeof some, f)) > 0;)
		gpu.code.append(some, n);
	fclose(f);
	void *context = nullptr;
	cu("cuInit", 0u);
	cu("cuDevicePrimaryCtxRetain", &context, 0);
	cu("cuCtxSetCurrent", context);
	cu("cuModuleLoadData", &gpu.module, (const void *)gpu.code.data());
	cu("cuStreamCreate", &gpu.stream, 1u);
}

static void *memory_of(unsigned segment)
{
#ifndef GPI2
	return stand_in::me().f->data[rank_here][segment];
#else
	/* Segment 0 is the host's memory, which the GPU maps; segment 1 is the GPU's. */
	void *p;
	if (gpu.code.empty() || rank_here != 1)
		p = aligned_alloc(4096, SEGMENT_BYTES);
	else
		return segment == 0 || getenv("GASPI_TEST_HOST_MEMORY") ? memset(pinned(SEGMENT_BYTES), 0, SEGMENT_BYTES) : on_device(SEGMENT_BYTES);
	return memset(p, 0, SEGMENT_BYTES);
#endif
}

/* The same in host memory and where the device finds it. */
static gaspi_job *job;
static u64 *out;

static void start(const char *name, void (*kernel)(const gaspi_job *, u64 *), const strait::gaspi::host &h, u32 segment, u32 peer, u32 queue, u64 rounds, u64 most)
{
	*job = gaspi_job{(u64)h.context(), h.notify_region(), h.notify_count(), segment, peer, queue, 0, rounds, most};
	memset(out, 0, 64);
	if (gpu.code.empty()) {
		gpu.lanes = std::thread([kernel] { hw::launch(1, 2 * STRAIT_XPU_WARP, 1, [kernel](unsigned) { kernel(job, out); }); });
		return;
	}
	void *function = nullptr, *args[] = {&job, &out};
	cu("cuModuleGetFunction", &function, gpu.module, name);
	cu("cuLaunchKernel", function, 1u, 1u, 1u, 128u, 1u, 1u, 0u, gpu.stream, (void **)args, (void **)nullptr);
}
#define START(kernel, ...) start(#kernel, kernel, __VA_ARGS__)

static void ended(const char *what)
{
	if (gpu.code.empty()) {
		gpu.lanes.join();
	} else {
		while (!stream_ended(gpu.stream))
			std::this_thread::yield();
	}
	if (out[0] != 0)
		fprintf(stderr, "%s: %lld (line or code), %lld %lld\n", what, (long long)out[0], (long long)out[1], (long long)out[2]);
	CHECK(out[0] == 0);
}

static strait::gaspi::options options_of(void *const memory[])
{
	strait::gaspi::options o;
	o.calls = STRAIT_GASPI_CALLS();
	o.rank = 1;
	o.ranks = ranks;
	o.segments = {{0, memory[0], SEGMENT_BYTES}, {1, memory[1], SEGMENT_BYTES}};
	o.queues = {1, 2, 3, 5};
	o.reads = 4;
	o.give_up_ns = 3000000000ULL;
	o.log2_slots = 6;
	o.timeout_ns = 40000000000ULL;
	if (!gpu.code.empty()) {
		o.allocate = pinned;
		o.release = unpinned;
		o.device_allocate = on_device;
		o.device_release = off_device;
		o.device_copy = to_device;
	}
	return o;
}

/* ---- What a rank on the host does, by GASPI alone, on queue 0 ---- */

template <class F> static void do_it(F call)
{
	gaspi_return_t rc;
	while ((rc = call()) == GASPI_QUEUE_FULL || rc == GASPI_TIMEOUT)
		if (rc == GASPI_QUEUE_FULL)
			CHECK(gaspi_wait(0, GASPI_BLOCK) == GASPI_SUCCESS);
	CHECK(rc == GASPI_SUCCESS);
}

static void all_out()
{
	gaspi_return_t rc;
	while ((rc = gaspi_wait(0, 1000)) == GASPI_TIMEOUT)
		;
	CHECK(rc == GASPI_SUCCESS);
}

static u32 wait_and_reset(u32 segment, u32 first, u32 count, u32 *id, unsigned ms = 40000)
{
	gaspi_notification_id_t which = 0;
	gaspi_notification_t value = 0;
	const gaspi_return_t rc = gaspi_notify_waitsome((gaspi_segment_id_t)segment, (gaspi_notification_id_t)first, count, &which, ms);
	if (rc != GASPI_SUCCESS)
		fprintf(stderr, "rank %u: no notification of segment %u from %u: %d\n", rank_here, segment, first, (int)rc);
	CHECK(rc == GASPI_SUCCESS);
	CHECK(gaspi_notify_reset((gaspi_segment_id_t)segment, which, &value) == GASPI_SUCCESS && value != 0);
	*id = which;
	return value;
}

static void barrier() { CHECK(gaspi_barrier(GASPI_GROUP_ALL, GASPI_BLOCK) == GASPI_SUCCESS); }

/* Slide 41's CPU node, `window` messages at once; answers to these may come in any order. */
static void cpu_node(u32 segment, u8 *mine, u64 rounds, u64 most, u64 window)
{
	for (u64 begin = 0; begin < rounds; begin += window) {
		for (u64 i = begin; i < begin + window; i++) {
			const u64 n = gaspi_size_of(i, most), at = IN_AT + i % 8 * most;
			for (u64 j = 0; j < n; j++)
				mine[at + j] = gaspi_byte(i, j);
			do_it([&] { return gaspi_write_notify((gaspi_segment_id_t)segment, at, 1, (gaspi_segment_id_t)segment, at, n, (gaspi_notification_id_t)(i % 8), (u32)i + 1, 0, 1000); });
		}
		all_out();
		for (u64 back = 0; back < window; back++) {
			u32 id = 0;
			const u64 i = wait_and_reset(segment, 8, 8, &id) - 1;
			CHECK(i >= begin && i < begin + window && id == 8 + i % 8);
			for (u64 j = 0, n = gaspi_size_of(i, most); j < n; j++)
				CHECK(mine[OUT_AT + i % 8 * most + j] == (u8)(gaspi_byte(i, j) + 1));
		}
	}
}

static void host_rank(u8 *const memory[])
{
	const u64 rounds = 60;
	u32 id = 0;
	for (u32 s = 0; s < gaspi_segments; s++) {
		cpu_node(s, memory[s], rounds, 3000, 1);
		barrier();
		cpu_node(s, memory[s], rounds, 200000, 4);
		barrier();
		/* gaspi_calls */
		u8 *const mine = memory[s];
		for (u64 j = 0; j < 1000; j++)
			mine[HOST_AT + j] = gaspi_byte(77, j);
		barrier();
		usleep(100000);
		const u32 notes[][2] = {{20, 200}, {33, 333}, {63, 63}};
		for (const auto &n : notes) {
			do_it([&] { return gaspi_notify((gaspi_segment_id_t)s, 1, (gaspi_notification_id_t)n[0], n[1], 0, 1000); });
			all_out();
			usleep(1000);
		}
		CHECK(wait_and_reset(s, 40, 1, &id) == 4000000000u);
		for (u64 n = 1; n <= 24; n++)
			for (u64 j = 0; j < 64; j++)
				CHECK(mine[SMALL_AT + 64 * n + j] == (j < n ? gaspi_byte(n, j) : 0));
		wait_and_reset(s, 41, 1, &id);
		CHECK(*(u64 *)(mine + WORD_AT) == 43);
		barrier();
	}
	/* gaspi_full: the last of all values. */
	barrier();
	u32 last = 0;
	while (last < 64)
		last = wait_and_reset(0, 42, 1, &id);
	CHECK(last == 64);
	/* gaspi_refused: 44 comes, 43 never does. */
	barrier();
	CHECK(wait_and_reset(0, 43, 2, &id) == 1 && id == 44);
	gaspi_notification_id_t none = 0;
	CHECK(gaspi_notify_waitsome(0, 43, 1, &none, 20) == GASPI_TIMEOUT);
	barrier();
	/* gaspi_until_error */
	CHECK(wait_and_reset(0, 45, 1, &id) == 1 && wait_and_reset(0, 46, 1, &id) == 1);
}

/* Back and forth: what rank 0 answers, and rank 1 by its CPU. */
static void ping(u32 segment, u64 rounds, u64 n, bool first)
{
	u32 id = 0;
	for (u64 i = 0; i < rounds; i++) {
		if (!first)
			wait_and_reset(segment, 1, 1, &id);
		do_it([&] { return gaspi_write_notify((gaspi_segment_id_t)segment, OUT_AT, first ? 0 : 1, (gaspi_segment_id_t)segment, IN_AT, n, first ? 1 : 2, (u32)i + 1, 0, 1000); });
		all_out();
		if (first)
			wait_and_reset(segment, 2, 1, &id);
	}
}

static const u64 sizes[] = {8, 1024, 65536};

static void times_on_host()
{
	for (u32 s = 0; s < gaspi_segments; s++)
		for (u64 n : sizes) {
			ping(s, 210, n, false);
			barrier();
			ping(s, 210, n, false);
			barrier();
		}
}

static void times_on_gpu(void *const memory[])
{
	for (u32 s = 0; s < gaspi_segments; s++)
		for (u64 n : sizes) {
			u64 kernel_ns, cpu_ns;
			{
				strait::gaspi::host h(options_of(memory));
				START(gaspi_latency, h, s, 0, 0, 200, n);
				ended("gaspi_latency");
				kernel_ns = out[1] / 400;
			}
			barrier();
			ping(s, 10, n, true);
			const auto begin = std::chrono::steady_clock::now();
			ping(s, 200, n, true);
			cpu_ns = (u64)std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count() / 400;
			barrier();
			printf("write_notify one way, %s, %6llu B: kernel %6.2f us, CPU %6.2f us\n", s ? "device memory" : "host memory  ", n, (double)kernel_ns / 1e3, (double)cpu_ns / 1e3);
			fflush(stdout);
		}
}

/* ---- The GPU's node ---- */

static void gpu_rank(void *const memory[])
{
	const u64 rounds = 60;
	{
		strait::gaspi::host h(options_of(memory));
		for (u32 s = 0; s < gaspi_segments; s++) {
			for (u64 most : {3000, 200000}) {
				START(gaspi_echo, h, s, 0, 0, rounds, most);
				ended("gaspi_echo");
				CHECK(out[1] == 0);
				barrier();
			}
			barrier();
			START(gaspi_calls, h, s, 0, 1, 0, 0);
			ended("gaspi_calls");
			CHECK(out[1] == 0);
			barrier();
		}
	}
	strait::gaspi::options o = options_of(memory);
	o.thread = false;
	strait::gaspi::host h(o);
	std::atomic<bool> stop{false};
	/* It looks when the kernel says so. */
	std::thread looks([&] {
		while (!__atomic_load_n(&out[LOOK_GO], __ATOMIC_ACQUIRE))
			usleep(100);
		while (!stop) {
			const u64 pause = __atomic_load_n(&out[LOOK_PAUSE], __ATOMIC_ACQUIRE);
			__atomic_store_n(&out[LOOK_PAUSED], pause, __ATOMIC_RELEASE);
			if (pause || !h.look())
				std::this_thread::yield();
		}
	});
	START(gaspi_full, h, 0, 0, 1, 0, 0);
	barrier();
	ended("gaspi_full");
	CHECK(out[1] == 64);
	/* A rank that a queue has never reached may still appear: GPI-2 waits for it inside its call. This one has been there. */
	do_it([] { return gaspi_notify(0, 2, 50, 1, 5, 1000); });
	while (gaspi_wait(5, 0) == GASPI_TIMEOUT)
		;
	barrier();
	START(gaspi_refused, h, 0, 0, 2, 0, 0);
	ended("gaspi_refused");
	barrier();
	/* A ring whose queue has an error, and then one whose commands are refused, since the rank is known to be dead. */
	for (u32 ring : {1u, 3u}) {
#ifdef GPI2
		const u64 code = 0;
#else
		const u64 code = ring == 1 ? 5 : 104;
#endif
		START(gaspi_until_error, h, 0, 2, ring, code, 5000);
		ended("gaspi_until_error");
		printf("a killed rank: an error after %llu writes, %.1f ms\n", out[1], (double)out[2] / 1e6);
	}
	stop = true;
	looks.join();
	/* A kernel that comes after the end gets an error at once. */
	h.end();
	START(gaspi_until_error, h, 0, 0, 1, 0, 8);
	if (gpu.code.empty())
		gpu.lanes.join();
	else
		while (!stream_ended(gpu.stream))
			;
	CHECK(out[1] == 0 && out[2] < 2000000000ULL);
}

static int play(const char *code)
{
#ifdef GPI2
	CHECK(configure_ranks() == GASPI_SUCCESS);
#endif
	rank_here = (unsigned)atoi(getenv("GASPI_RANK"));
	if (code && rank_here == 1 && std::string(code) != "lanes")
		open_gpu(code);
	CHECK(gaspi_proc_init(GASPI_BLOCK) == GASPI_SUCCESS);
	gaspi_rank_t number = 0, count = 0;
	CHECK(gaspi_proc_rank(&number) == GASPI_SUCCESS && gaspi_proc_num(&count) == GASPI_SUCCESS && number == rank_here && count == ranks);
	void *memory[gaspi_segments];
	for (unsigned s = 0; s < gaspi_segments; s++) {
		memory[s] = memory_of(s);
		CHECK(gaspi_segment_use((gaspi_segment_id_t)s, memory[s], SEGMENT_BYTES, GASPI_GROUP_ALL, GASPI_BLOCK, 0) == GASPI_SUCCESS);
	}
	if (rank_here == 1) {
		job = (gaspi_job *)(gpu.code.empty() ? aligned_alloc(64, 4096) : pinned(4096));
		out = (u64 *)(job + 1);
		memset(out, 0, 8 * (LOOK_PAUSED + 1));
		static_assert(sizeof(gaspi_job) % 8 == 0, "words");
		if (code)
			times_on_gpu(memory);
		gpu_rank(memory);
	} else if (rank_here == 0) {
		u8 *const bytes[] = {(u8 *)memory[0], (u8 *)memory[1]};
		if (code)
			times_on_host();
		host_rank(bytes);
	} else {
		for (unsigned i = 0; i < (code ? 4 * sizeof sizes / sizeof *sizes : 0) + 4 * gaspi_segments + 3; i++)
			barrier();
		usleep(300000);
		raise(SIGKILL);
	}
	fflush(stdout);
	/* A rank of the group is dead: GASPI's own end is not what is tested. */
	_exit(0);
}

int main(int argc, char **argv)
{
	const char *code = argc > 1 ? argv[1] : nullptr;
	if (getenv("GASPI_RANK")) {
		try {
			return play(code);
		} catch (const std::exception &e) {
			fprintf(stderr, "%s\n", e.what());
			_exit(1);
		}
	}
	const int failed = run_ranks(argv, ranks, 2);
	if (!failed)
		puts("ok gaspi");
	return failed;
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* strait_gaspi_host.hpp with a table of calls that is a test's: commands that no kernel of ours would write, failures of the queue
 * that rings share, numbers that do not fit. One process, no thread: each look is the test's. */
#include <unistd.h>

#include <cstdio>
#include <random>

#include "check.h"
#include "strait_gaspi_host.hpp"
#include "strait_xpu.cuh"

using namespace strait::xpu;
using strait::gaspi::host;
using strait::gaspi::options;

enum : u32 { bytes = 4096, notes = 16, ranks = 3, scratch = 31, reads = 4 };
enum : int { success = 0, failure = -1, timeout_rc = 1, full = 7 };
alignas(64) static u8 memory[2][bytes], small_ones[65536];
static u64 small_length, calls;
static int read_rc, reads_rc, still; /* `still` looks at the queue of reads find it under way */

static bool local(u32 s, u64 o, u64 n)
{
	const u64 most = s == scratch ? small_length : s == 0 || s == 2 ? (u64)bytes : 0;
	return n <= most && o <= most - n;
}
static bool remote(u32 s, u64 o, u64 n, u32 k) { return k < ranks && (s == 0 || s == 2) && n <= bytes && o <= bytes - n; }

static strait::gaspi::call_table table()
{
	strait::gaspi::call_table t = {};
	t.success = success, t.timeout = timeout_rc, t.queue_full = full;
	t.write = [](u32 s, u64 o, u32 k, u32 r, u64 p, u64 n, u32 q, u64) -> int {
		calls++;
		CHECK(n && local(s, o, n) && remote(r, p, n, k) && q < 3);
		return success;
	};
	t.read = [](u32 s, u64 o, u32 k, u32 r, u64 p, u64 n, u32 q, u64) -> int {
		calls++;
		CHECK(n && local(s, o, n) && (remote(r, p, n, k) || (r == scratch && k == 1 && local(r, p, n))) && q == reads);
		const int rc = read_rc;
		read_rc = success;
		return rc;
	};
	t.write_notify = [](u32 s, u64 o, u32 k, u32 r, u64 p, u64 n, u32 i, u32 v, u32 q, u64) -> int {
		calls++;
		CHECK(n && local(s, o, n) && remote(r, p, n, k) && i < notes && v && q < 3);
		return success;
	};
	t.notify = [](u32 r, u32 k, u32 i, u32 v, u32 q, u64) -> int {
		calls++;
		CHECK(remote(r, 0, 0, k) && i < notes && v && q < 3);
		return success;
	};
	t.wait = [](u32 q, u64) -> int {
		calls++;
		if (q == reads && still) {
			still--;
			return timeout_rc;
		}
		const int rc = q == reads ? reads_rc : success;
		if (q == reads)
			reads_rc = success; /* returned once */
		return rc;
	};
	t.notify_waitsome = [](u32, u32, u32, u32 *, u64) -> int { return calls++, timeout_rc; };
	t.notify_reset = [](u32, u32, u32 *) -> int { return failure; };
	t.fetch_add = [](u32 r, u64 p, u32 k, u64, u64 *old, u64) -> int {
		calls++;
		CHECK(remote(r, p, 8, k) && p % 8 == 0);
		return *old = 5, success;
	};
	t.compare_swap = [](u32 r, u64 p, u32 k, u64, u64, u64 *old, u64) -> int {
		calls++;
		CHECK(remote(r, p, 8, k) && p % 8 == 0);
		return *old = 5, success;
	};
	t.segment_alloc = [](u32 s, u64 n, void **at) -> int {
		CHECK(s == scratch && n <= sizeof small_ones);
		small_length = n;
		return *at = small_ones, success;
	};
	t.segment_delete = [](u32) -> int { return success; };
	t.corrupt = [](u32, u32) -> bool { return false; };
	return t;
}

static options some()
{
	options o;
	o.calls = table();
	o.rank = 1, o.ranks = ranks;
	o.segments = {{0, memory[0], bytes}, {2, memory[1], bytes}};
	o.notifications = notes;
	o.queues = {0, 1, 2};
	o.reads = reads;
	o.log2_slots = 4;
	o.thread = false;
	return o;
}

static ring ring_of(const host &h, u32 which)
{
	ring r;
	CHECK(open_ring(&r, (const strait_xpu_ring *)h.context()->rings + which) == ok);
	return r;
}

/* Whatever stands in a ring: GASPI is asked for nothing outside of what both sides have, and the host goes on. */
static void hostile()
{
	host h(some());
	ring r = ring_of(h, 0);
	std::mt19937_64 random(7);
	const u64 odd[] = {0, 1, 7, 8, 15, 16, 63, 64, 4088, 4089, 4096, 4097, 1ULL << 32, (1ULL << 40) - 1, 1ULL << 62, 1ULL << 63, ~0ULL - 7, ~0ULL,
			   (u64)memory[0], (u64)memory[0] + 4088, (u64)memory[0] + 4089, (u64)memory[1], (u64)memory[1] - 1, 7 | 2 << 8, 7 | 12 << 8};
	auto any = [&] { return random() % 8 ? odd[random() % (sizeof odd / sizeof *odd)] : random(); };
	u64 sent = 0;
	for (u64 i = 0; i < 300000; i++) {
		strait_xpu_command c = {};
		c.op = (u32)random() % 16;
		c.flags = random() % 4 ? (u32)(random() % 2 ? STRAIT_XPU_SIGNAL_32 : 0) | (u32)(random() % 2 ? STRAIT_XPU_INLINE_DATA : 0) : (u32)random() & 0xffff;
		c.peer = random() % 8 ? (u32)random() % 4 : (u32)random();
		c.region = random() % 8 ? (u32)random() % 4 : (u32)random();
		c.local = any();
		c.remote = any();
		c.key = random() % 4 ? random() % 4 : any();
		c.length = any();
		c.operand = any();
		c.value = any();
		c.context = random() % 4 ? 3 : any();
		CHECK(post<scope::thread>(r, c) == ok);
		sent++;
		for (int look = 0; look < 2; look++)
			h.look();
		CHECK(wait_ticket(r, sent - 1, 0) == ok);
	}
	CHECK(calls > 10000);
}

static void get_8(const host &h, u32 which, u64 at)
{
	window w;
	CHECK(open(&w, h.context(), 0, 0, which) == ok && get<scope::thread>(w, memory[0] + at, 0, 8) == ok);
}

/* A read that failed is reported once, and whichever ring asks: none of those that read takes it for success; those that did not go on. */
static void failed_reads(bool in_an_atomic)
{
	host h(some());
	ring a = ring_of(h, 0), b = ring_of(h, 1), c = ring_of(h, 2);
	if (in_an_atomic) {
		/* Ring 0's fetch finds the queue full of what ring 1 reads, and waits for it. */
		get_8(h, 1, 8);
		still = 1;
		h.look();
		reads_rc = failure;
		read_rc = full;
		strait_xpu_command f = {STRAIT_XPU_OP_FETCH, 0, 0, 0, (u64)memory[0], 0, 0, 7 | 2 << 8, 1, 0, 0};
		CHECK(post<scope::thread>(a, f) == ok);
	} else {
		get_8(h, 0, 0);
		get_8(h, 1, 8);
		still = 2;
		h.look();
		reads_rc = failure;
	}
	strait_xpu_command nop = {STRAIT_XPU_OP_NOP, 0, STRAIT_XPU_ANY, STRAIT_XPU_NO_REGION, 0, 0, 0, 0, 0, 0, 0};
	for (int i = 0; i < 4; i++) {
		h.look();
		usleep(2000);
	}
	CHECK(quiet<scope::thread>(b, 0) != ok);
	CHECK(quiet<scope::thread>(a, 0) != ok);
	CHECK(post<scope::thread>(c, nop) == ok);
	h.look();
	CHECK(quiet<scope::thread>(c, 0) == ok);
	reads_rc = read_rc = success;
}

static bool refused(const options &o)
{
	try {
		host h(o);
	} catch (const std::invalid_argument &) {
		return true;
	}
	return false;
}

static void numbers()
{
	options o = some();
	CHECK(!refused(o));
	o.queues = {0, 1, 0};
	CHECK(refused(o));
	o.queues = {0, reads};
	CHECK(refused(o));
	o.queues = {256};
	CHECK(refused(o));
	o = some();
	o.scratch = 256 + 31;
	CHECK(refused(o));
	o = some();
	o.reads = 260;
	CHECK(refused(o));
}

/* After the end a look calls nothing. */
static void after_the_end()
{
	host h(some());
	h.look();
	h.end();
	const u64 before = calls;
	CHECK(!h.look() && calls == before);
}

/* A command that failed by its time is no time of the wait's. */
static void timed_out_before()
{
	host h(some());
	auto *status = (strait_xpu_status *)((const strait_xpu_ring *)h.context()->rings)->status;
	status->error = 110;
	hw::launch(1, STRAIT_XPU_WARP, 1, [&](unsigned) {
		const gpu_gaspi g = {h.context(), h.notify_region(), h.notify_count()};
		CHECK(gpu_gaspi_wait(g, 0, 1000) == GPU_GASPI_ERROR);
	});
}

int main(int argc, char **argv)
{
	const struct {
		const char *name;
		void (*run)();
	} all[] = {{"hostile", hostile}, {"failed_reads", [] { failed_reads(false); }}, {"failed_reads_in_an_atomic", [] { failed_reads(true); }},
		   {"numbers", numbers}, {"after_the_end", after_the_end}, {"timed_out_before", timed_out_before}};
	for (const auto &t : all)
		if (argc < 2 || !strcmp(argv[1], t.name)) {
			t.run();
			printf("ok %s\n", t.name);
		}
	return 0;
}

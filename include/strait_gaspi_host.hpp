/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Kernels that talk to ranks of GASPI: the host's side of the gpu_gaspi_* names of strait_xpu.cuh, for a process that is a
 * rank itself (of GPI-2, unmodified, over libfabric and this provider, or of any other GASPI). A header alone, C++17.
 *
 * Kernels post commands into rings in memory that the host and the device share. A thread takes them and carries each out
 * by GASPI's public calls, which the program gives as a table, and hands notifications that came for kernels to words that
 * these poll. Nothing of a GASPI is compiled in or linked here. docs/xpu.md has the manual.
 *
 *     #include <GASPI.h>
 *     #include <strait_gaspi_host.hpp>
 *     strait::gaspi::options o;
 *     o.calls = STRAIT_GASPI_CALLS();
 *     o.rank = rank, o.ranks = ranks;
 *     o.segments = {{0, pointer, bytes}};            // gaspi_segment_use(0, pointer, bytes, ...) has been called
 *     o.allocate = pinned;                           // cudaHostAlloc
 *     strait::gaspi::host host(o);
 *     kernel<<<...>>>(host.context(), host.notify_region(), host.notify_count());
 */
#ifndef STRAIT_GASPI_HOST_HPP
#define STRAIT_GASPI_HOST_HPP

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "strait_gaspi_calls.hpp"
#include "strait_xpu_layout.h"

namespace strait {
namespace gaspi {

/* Rings, notification words and the thread that drains. Made when the segments are known to all ranks, destroyed before
 * they are deleted and before gaspi_proc_term, when no kernel runs any more. */
class host {
public:
	explicit host(options with) : o(std::move(with)) { open(); }
	host(const host &) = delete;
	host &operator=(const host &) = delete;
	~host() { close(); }

	/* The three members of a kernel's struct gpu_gaspi. */
	const strait_xpu_context *context() const { return (const strait_xpu_context *)tables_device; }
	u32 notify_region() const { return regions - 1; }
	u32 notify_count() const { return o.notifications; }

	/* One look at notifications and at each ring; whether there was something to do. For the thread; or, without it, for the
	 * program, one call at a time. */
	bool look();

	/* Every ring ends: kernels that post or wait get an error. No call of GASPI is made any more. */
	void end();

private:
	enum : u32 { einval = 22, eio = 5, enosys = 38, ecanceled = 125, econnreset = 104, etimedout = 110 };
	/* What a command came to. `later`: nothing happened, it is to be carried out again. */
	enum : u32 { posted = 0, later = ~0u };
	/* A call of GASPI may take its time: a kernel gives up after eight beats. */
	enum : u64 { beat_ns = 1000000000, longest_pause_ns = 1000000 };

	struct ring {
		u64 *slots = nullptr;
		strait_xpu_status *status = nullptr;
		u32 queue = 0;
		u64 taken = 0, finished = 0;
		u64 under_way = 0, reading = 0; /* of [finished, taken): those that GASPI has */
		u64 failed = 0;
		u64 next_wait = 0, pause = 0;   /* gaspi_wait is not called before */
		u64 since = 0;                  /* when gaspi_wait timed out first */
		std::vector<bool> failed_to;    /* ranks that a command did not get to: later notifications would be wrong */
		bool ended = false;
	};

	/* A command, as the kernel wrote it: nothing of it is trusted. */
	struct command {
		u64 w[STRAIT_XPU_SLOT_WORDS];
		u32 op() const { return (u32)(w[0] >> STRAIT_XPU_OP_SHIFT) & 0xff; }
		u32 flags() const { return (u32)(w[0] >> STRAIT_XPU_FLAGS_SHIFT) & 0xffff; }
		u32 peer() const { return (u32)w[0]; }
		/* Word i, with its own bit 63. */
		u64 whole(unsigned i) const
		{
			return (w[i] & ~(1ULL << STRAIT_XPU_LAP_BIT)) |
			       (w[0] >> (STRAIT_XPU_HIGH_SHIFT + i - 1) & 1) << STRAIT_XPU_LAP_BIT;
		}
		u64 length() const { return whole(4) & STRAIT_XPU_LENGTH_MASK; }
		u32 region() const { return (u32)(whole(4) >> STRAIT_XPU_REGION_SHIFT); }
	};

	options o;
	u32 regions = 0;
	std::vector<segment> by_id; /* length 0: there is none */
	std::vector<ring> rings;
	char *shared = nullptr, *tables_host = nullptr, *tables_device = nullptr;
	u32 *words = nullptr; /* notifications that kernels poll */
	u64 *peer_errors = nullptr;
	void *scratch = nullptr;
	u64 last_beat = 0;
	std::thread runs;
	std::atomic<bool> stop{false};

	static u64 now_ns()
	{
		return (u64)std::chrono::duration_cast<std::chrono::nanoseconds>(
			       std::chrono::steady_clock::now().time_since_epoch())
			.count();
	}
	u64 slots() const { return 1ULL << o.log2_slots; }
	void *get(std::size_t n) { return o.allocate ? o.allocate(n) : std::aligned_alloc(64, (n + 63) / 64 * 64); }
	void open();
	void close();
	void run();
	bool hand_over(const segment &s);
	bool take(ring &r);
	bool finish(ring &r);
	void fail(ring &r, u64 ticket, u32 code, u64 how_many = 1);
	void give_up(ring &r, u32 code);
	void lose_reads();
	bool is_there(const ring &r, command &c) const;
	u32 carry_out(ring &r, const command &c, u64 ticket);
	u32 place(const command &c, u64 address, u64 n, u32 *id, u64 *offset) const;
	u32 put(ring &r, const command &c, u64 ticket);
	u32 notification(const command &c, u32 *id, u32 *of) const;
	u32 atomic(ring &r, const command &c, u64 ticket);
	u32 result(u64 *under_way, u32 peer, int rc);
	u64 scratch_at(const ring &r, u64 ticket) const
	{
		return 8 * ((u64)(&r - rings.data()) * slots() + (ticket & (slots() - 1)));
	}
};

inline void host::open()
{
	if (o.rank >= o.ranks || o.segments.empty() || o.queues.empty() || o.log2_slots < 1 || o.log2_slots > 20 || o.notifications == 0 ||
	    o.notifications > 1u << 20)
		throw std::invalid_argument("strait::gaspi: ranks, segments, queues, slots or notifications");
	/* An error of a queue is told once: with two rings, one would take it for success. */
	for (std::size_t i = 0; i < o.queues.size(); i++)
		for (std::size_t j = 0; j <= i; j++)
			if (o.queues[i] > 255 || o.queues[i] == (j < i ? o.queues[j] : o.reads))
				throw std::invalid_argument("strait::gaspi: a queue's number, or one for two purposes");
	if (o.reads > 255 || o.scratch > 255)
		throw std::invalid_argument("strait::gaspi: the number of the queue for reads, or of the scratch segment");
	for (const segment &s : o.segments) {
		if (s.id > 255 || s.id == o.scratch || !s.base || !s.length)
			throw std::invalid_argument("strait::gaspi: a segment's number, memory or length");
		if (s.id >= by_id.size())
			by_id.resize(s.id + 1, segment{0, nullptr, 0, 0});
		by_id[s.id] = s;
		if (by_id[s.id].remote == 0)
			by_id[s.id].remote = s.length;
	}
	regions = (u32)by_id.size() + 1;
	const std::size_t n = o.queues.size(), notes = (std::size_t)4 * o.notifications * by_id.size();
	if (o.calls.segment_alloc(o.scratch, 8 * slots() * n, &scratch) != o.calls.success || !scratch)
		throw std::runtime_error("strait::gaspi: the scratch segment is not to be had");

	/* What both sides write and read. */
	const std::size_t ring_bytes = 64 * slots() + sizeof(strait_xpu_status);
	const std::size_t notes_bytes = (notes + 63) / 64 * 64;
	const std::size_t shared_bytes = ring_bytes * n + notes_bytes + 8 * (std::size_t)o.ranks;
	/* What the host writes once, and what kernels alone write. */
	const std::size_t peers_at = sizeof(strait_xpu_context), regions_at = peers_at + sizeof(strait_xpu_peer) * regions * o.ranks;
	const std::size_t rings_at = (regions_at + sizeof(strait_xpu_region) * regions + 63) / 64 * 64;
	const std::size_t produced_at = rings_at + sizeof(strait_xpu_ring) * n;
	const std::size_t tables_bytes = produced_at + sizeof(strait_xpu_produced) * n;
	shared = (char *)get(shared_bytes);
	const bool device = o.device_allocate && o.device_copy;
	tables_host = (char *)(device ? std::aligned_alloc(64, (tables_bytes + 63) / 64 * 64) : get(tables_bytes));
	tables_device = device ? (char *)o.device_allocate(tables_bytes) : tables_host;
	if (!shared || !tables_host || !tables_device) {
		close();
		throw std::bad_alloc();
	}
	std::memset(shared, 0, shared_bytes);
	std::memset(tables_host, 0, tables_bytes);
	words = (u32 *)(shared + ring_bytes * n);
	peer_errors = (u64 *)(shared + ring_bytes * n + notes_bytes);

	auto *peers = (strait_xpu_peer *)(tables_host + peers_at);
	auto *own = (strait_xpu_region *)(tables_host + regions_at);
	auto *of_rings = (strait_xpu_ring *)(tables_host + rings_at);
	for (u32 g = 0; g < regions; g++) {
		const bool is_notes = g == regions - 1;
		/* In commands an address is the offset in the segment, and the key its number. */
		own[g] = is_notes ? strait_xpu_region{(u64)words, notes, g, 0} : strait_xpu_region{(u64)by_id[g].base, by_id[g].length, g, 0};
		for (u32 p = 0; p < o.ranks; p++)
			peers[p * regions + g] = strait_xpu_peer{0, 0, g, is_notes ? notes : by_id[g].length ? by_id[g].remote : 0};
	}
	rings.resize(n);
	for (std::size_t i = 0; i < n; i++) {
		ring &r = rings[i];
		r.slots = (u64 *)(shared + ring_bytes * i);
		r.status = (strait_xpu_status *)(shared + ring_bytes * i + 64 * slots());
		r.queue = o.queues[i];
		r.failed_to.resize(o.ranks);
		of_rings[i] = strait_xpu_ring{STRAIT_XPU_VERSION, o.log2_slots, 0, (u32)i, (u64)r.slots,
					      (u64)(tables_device + produced_at + sizeof(strait_xpu_produced) * i), (u64)r.status, 0, o.timeout_ns,
					      beat_ns};
	}
	auto *ctx = (strait_xpu_context *)tables_host;
	ctx->version = STRAIT_XPU_VERSION;
	ctx->rank = o.rank;
	ctx->peer_count = o.ranks;
	ctx->region_count = regions;
	ctx->ring_count = (u32)n;
	ctx->peers = (u64)(tables_device + peers_at);
	ctx->regions = (u64)(tables_device + regions_at);
	ctx->rings = (u64)(tables_device + rings_at);
	ctx->peer_errors = (u64)peer_errors;
	ctx->timeout_ns = o.timeout_ns;
	if (device)
		o.device_copy(tables_device, tables_host, tables_bytes);
	if (o.thread)
		runs = std::thread([this] { run(); });
}

inline void host::close()
{
	end();
	void (*free_host)(void *) = o.allocate ? o.release : std::free;
	const bool device = tables_device != tables_host;
	if (tables_host && device)
		std::free(tables_host);
	else if (tables_host && free_host)
		free_host(tables_host);
	if (tables_device && device && o.device_release)
		o.device_release(tables_device);
	if (shared && free_host)
		free_host(shared);
	if (scratch)
		o.calls.segment_delete(o.scratch);
}

inline void host::end()
{
	stop.store(true, std::memory_order_release);
	if (runs.joinable())
		runs.join();
	for (ring &r : rings) {
		r.ended = true;
		const u64 was = __atomic_load_n(&r.status->error, __ATOMIC_RELAXED);
		const u64 code = was ? was : (u64)ecanceled | (r.taken & 0x7fffffffu) << 32;
		__atomic_store_n(&r.status->error, code | STRAIT_XPU_ERROR_ENDED, __ATOMIC_RELEASE);
	}
}

/* Looks without pause while there is something to do, then yields, and then sleeps: kernels cannot wake it. */
inline void host::run()
{
	for (u32 idle = 0; !stop.load(std::memory_order_acquire); idle++) {
		if (look())
			idle = 0;
		else if (idle > 20000 && o.sleep_ns)
			std::this_thread::sleep_for(std::chrono::nanoseconds(o.sleep_ns < 25000000 ? o.sleep_ns : 25000000));
		else if (idle > 200)
			std::this_thread::yield();
	}
}

inline bool host::look()
{
	bool busy = false;
	if (stop.load(std::memory_order_acquire))
		return busy;
	for (const segment &s : o.segments)
		busy |= hand_over(s);
	for (ring &r : rings)
		if (!r.ended) {
			busy |= take(r);
			busy |= !r.ended && finish(r);
		}
	const u64 now = now_ns();
	if (now - last_beat > beat_ns / 10) {
		last_beat = now;
		for (ring &r : rings)
			__atomic_store_n(&r.status->beat, r.status->beat + 1, __ATOMIC_RELAXED);
	}
	return busy;
}

/* Notifications go to the kernels' words when these are free, so that the host never writes a word that a kernel is taking:
 * over PCIe an exchange by the device is not atomic for the CPU. What comes for a word that is not free stays in GASPI. */
inline bool host::hand_over(const segment &s)
{
	bool some = false;
	u32 first = 0, id = 0, value = 0;
	u32 *const mine = words + (std::size_t)o.notifications * s.id;
	while (first < o.notifications && o.calls.notify_waitsome(s.id, first, o.notifications - first, &id, 0) == o.calls.success) {
		if (id < first || id >= o.notifications)
			break;
		first = id + 1;
		if (__atomic_load_n(&mine[id], __ATOMIC_ACQUIRE) != 0)
			continue;
		if (o.calls.notify_reset(s.id, id, &value) != o.calls.success || value == 0)
			continue;
		/* The bytes that it tells of were in the segment before GASPI showed it. */
		__atomic_store_n(&mine[id], value, __ATOMIC_RELEASE);
		some = true;
	}
	return some;
}

/* The first error stays. */
inline void host::fail(ring &r, u64 ticket, u32 code, u64 how_many)
{
	if (!__atomic_load_n(&r.status->error, __ATOMIC_RELAXED))
		__atomic_store_n(&r.status->error, (u64)code | (ticket & 0x7fffffffu) << 32, __ATOMIC_RELEASE);
	r.failed += how_many;
	__atomic_store_n(&r.status->failed, r.failed, __ATOMIC_RELEASE);
}

/* What the ring has under way is lost. */
inline void host::give_up(ring &r, u32 code)
{
	fail(r, r.finished, code, r.under_way + r.reading);
	r.ended = true;
	__atomic_store_n(&r.status->error, r.status->error | STRAIT_XPU_ERROR_ENDED, __ATOMIC_RELEASE);
}

/* The queue of reads is that of all rings, and GASPI tells of its failure once, and not of which. */
inline void host::lose_reads()
{
	for (ring &r : rings)
		if (r.reading && !r.ended)
			give_up(r, eio);
}

inline bool host::is_there(const ring &r, command &c) const
{
	const u64 *slot = r.slots + STRAIT_XPU_SLOT_WORDS * (r.taken & (slots() - 1));
	const u64 lap = strait_xpu_lap(r.taken, o.log2_slots);
	for (unsigned i = 0; i < STRAIT_XPU_SLOT_WORDS; i++) {
		c.w[i] = __atomic_load_n(&slot[i], __ATOMIC_ACQUIRE);
		if (c.w[i] >> STRAIT_XPU_LAP_BIT != lap)
			return false;
	}
	return true;
}

inline bool host::take(ring &r)
{
	const u64 from = r.taken;
	command c;
	/* A command's scratch is its own until it is finished. */
	while (!r.ended && r.taken - from < 64 && r.taken - r.finished < slots() && is_there(r, c)) {
		const u32 rc = carry_out(r, c, r.taken);
		if (rc == later)
			break;
		if (rc != posted) {
			fail(r, r.taken, rc);
			if (c.peer() < o.ranks)
				r.failed_to[c.peer()] = true;
		}
		r.taken++;
		__atomic_store_n(&r.status->consumed, r.taken, __ATOMIC_RELEASE);
	}
	return r.taken != from;
}

/* What GASPI has of this ring comes to its end by gaspi_wait, which has no count of what is over: all or nothing. */
inline bool host::finish(ring &r)
{
	if (r.finished == r.taken)
		return false;
	if (r.under_way || r.reading) {
		const u64 now = now_ns();
		if (now < r.next_wait)
			return false;
		int rc = r.under_way ? o.calls.wait(r.queue, 0) : o.calls.success;
		const bool of_reads = rc == o.calls.success;
		if (of_reads) {
			r.under_way = 0;
			rc = r.reading ? o.calls.wait(o.reads, 0) : o.calls.success;
		}
		if (rc == o.calls.timeout && r.since == 0)
			r.since = now;
		if (rc == o.calls.timeout && now - r.since <= o.give_up_ns) {
			r.pause = r.pause ? (2 * r.pause < longest_pause_ns ? 2 * r.pause : (u64)longest_pause_ns) : 500;
			r.next_wait = now + r.pause;
			return false;
		}
		if (rc != o.calls.success) {
			/* GASPI does not say which, and the queue is of no use before the program repairs it. */
			if (of_reads && rc != o.calls.timeout)
				lose_reads();
			else
				give_up(r, rc == o.calls.timeout ? etimedout : eio);
			return true;
		}
	}
	r.under_way = r.reading = r.pause = r.next_wait = r.since = 0;
	r.finished = r.taken;
	__atomic_store_n(&r.status->local, r.finished, __ATOMIC_RELEASE);
	__atomic_store_n(&r.status->done, r.finished, __ATOMIC_RELEASE);
	return true;
}

/* What a call that posts came to. */
inline u32 host::result(u64 *under_way, u32 peer, int rc)
{
	if (rc == o.calls.success) {
		++*under_way;
		return posted;
	}
	if (rc == o.calls.timeout || rc == o.calls.queue_full)
		return later;
	if (o.calls.corrupt(peer, o.ranks))
		__atomic_store_n(&peer_errors[peer], (u64)econnreset, __ATOMIC_RELEASE);
	return eio;
}

/* Where local memory of a command is: `address` for n bytes. */
inline u32 host::place(const command &c, u64 address, u64 n, u32 *id, u64 *offset) const
{
	*id = c.region();
	if (*id >= by_id.size() || by_id[*id].length == 0)
		return einval;
	const u64 base = (u64)by_id[*id].base;
	if (address < base || n > by_id[*id].length || address - base > by_id[*id].length - n)
		return einval;
	*offset = address - base;
	return posted;
}

/* The notification that a command sets: which, and of which segment. */
inline u32 host::notification(const command &c, u32 *id, u32 *of) const
{
	const u64 at = c.whole(5);
	if (!(c.flags() & STRAIT_XPU_SIGNAL_32) || c.flags() & STRAIT_XPU_SIGNAL_ADD)
		return enosys;
	if (c.whole(7) != regions - 1 || at % 4 || at / 4 / o.notifications >= by_id.size() || c.whole(6) == 0 || c.whole(6) > ~0u)
		return einval;
	*id = (u32)(at / 4 % o.notifications);
	*of = (u32)(at / 4 / o.notifications);
	return by_id[*of].length ? posted : (u32)einval;
}

inline u32 host::put(ring &r, const command &c, u64 ticket)
{
	const u64 n = c.length(), to = c.whole(2), remote = c.whole(3);
	u32 id = 0, of = 0, local = o.scratch;
	u64 offset = scratch_at(r, ticket);
	if (remote >= by_id.size() || by_id[remote].length == 0 || n > by_id[remote].remote || to > by_id[remote].remote - n)
		return einval;
	if (c.op() == STRAIT_XPU_OP_PUT_SIGNAL) {
		const u32 rc = notification(c, &id, &of);
		if (rc != posted)
			return rc;
		if (of != remote)
			return einval;
	}
	if (c.flags() & STRAIT_XPU_INLINE_DATA) {
		if (n > STRAIT_XPU_INLINE_MAX || c.op() == STRAIT_XPU_OP_GET)
			return einval;
		const u64 bytes = c.whole(1);
		std::memcpy((char *)scratch + offset, &bytes, 8);
	} else {
		const u32 rc = n ? place(c, c.whole(1), n, &local, &offset) : (u32)posted;
		if (rc != posted)
			return rc;
	}
	if (c.op() == STRAIT_XPU_OP_PUT_SIGNAL && n == 0)
		return result(&r.under_way, c.peer(), o.calls.notify(of, c.peer(), id, (u32)c.whole(6), r.queue, o.call_ms));
	if (c.op() == STRAIT_XPU_OP_PUT_SIGNAL)
		return result(&r.under_way, c.peer(),
			      o.calls.write_notify(local, offset, c.peer(), (u32)remote, to, n, id, (u32)c.whole(6), r.queue, o.call_ms));
	if (n == 0)
		return posted;
	if (c.op() == STRAIT_XPU_OP_GET)
		return result(&r.reading, c.peer(), o.calls.read(local, offset, c.peer(), (u32)remote, to, n, o.reads, o.call_ms));
	return result(&r.under_way, c.peer(), o.calls.write(local, offset, c.peer(), (u32)remote, to, n, r.queue, o.call_ms));
}

/* The old value goes to its place by a read of this rank from itself, since the CPU may not reach that memory. A write so short
 * has no completion in GPI-2's OFI device. */
inline u32 host::atomic(ring &r, const command &c, u64 ticket)
{
	const u64 what = c.length(), at = c.whole(2), remote = c.whole(3), offset = scratch_at(r, ticket);
	const bool compare = c.op() == STRAIT_XPU_OP_COMPARE;
	u32 id = 0;
	u64 place_of_old = 0, old = 0;
	/* libfabric's numbers: FI_UINT64, and FI_SUM or FI_CSWAP. */
	if ((what & 0xff) != 7 || what >> 8 != (compare ? 12u : 2u))
		return enosys;
	if (remote >= by_id.size() || by_id[remote].length == 0 || at % 8 || by_id[remote].remote < 8 || at > by_id[remote].remote - 8)
		return einval;
	if (c.op() != STRAIT_XPU_OP_ATOMIC) {
		const u32 rc = place(c, c.whole(1), 8, &id, &place_of_old);
		if (rc != posted)
			return rc;
	}
	const int rc = compare ? o.calls.compare_swap((u32)remote, at, c.peer(), c.whole(6), c.whole(5), &old, o.call_ms)
			       : o.calls.fetch_add((u32)remote, at, c.peer(), c.whole(5), &old, o.call_ms);
	if (rc != o.calls.success)
		return result(&r.reading, c.peer(), rc);
	if (c.op() == STRAIT_XPU_OP_ATOMIC)
		return posted;
	std::memcpy((char *)scratch + offset, &old, 8);
	/* Done at the target: it is not to be done again, so that a full queue is waited for here. */
	for (const u64 begin = now_ns();;) {
		const u32 sent = result(&r.reading, o.rank, o.calls.read(id, place_of_old, o.rank, o.scratch, offset, 8, o.reads, o.call_ms));
		if (sent != later)
			return sent;
		const int waited = o.calls.wait(o.reads, o.call_ms);
		if (waited != o.calls.success && waited != o.calls.timeout) {
			lose_reads();
			return eio;
		}
		if (now_ns() - begin > beat_ns)
			return eio;
	}
}

/* One command: `posted`, `later`, or an errno. */
inline u32 host::carry_out(ring &r, const command &c, u64 ticket)
{
	const u32 op = c.op(), flags = c.flags(), peer = c.peer();
	if (op == STRAIT_XPU_OP_NOP)
		return posted;
	const bool notifies = op == STRAIT_XPU_OP_PUT_SIGNAL || op == STRAIT_XPU_OP_SIGNAL;
	/* A ring has no queue of completions, and GASPI no data that goes with a write. */
	if (flags & ~(u32)STRAIT_XPU_FLAGS_ALL || flags & (STRAIT_XPU_COMPLETION | STRAIT_XPU_CQ_DATA) || peer >= o.ranks)
		return einval;
	/* A call for a rank that is lost may take seconds, and the other rings wait meanwhile. */
	if (__atomic_load_n(&peer_errors[peer], __ATOMIC_RELAXED))
		return econnreset;
	/* A rank that has waited for a notification takes what was written before it to be there. */
	if (notifies && r.failed_to[peer])
		return ecanceled;
	if (flags & STRAIT_XPU_FENCE && r.finished != ticket)
		return later;
	switch (op) {
	case STRAIT_XPU_OP_PUT:
	case STRAIT_XPU_OP_PUT_SIGNAL:
	case STRAIT_XPU_OP_GET:
		return put(r, c, ticket);
	case STRAIT_XPU_OP_SIGNAL: {
		u32 id = 0, of = 0;
		const u32 rc = notification(c, &id, &of);
		return rc != posted ? rc : result(&r.under_way, peer, o.calls.notify(of, peer, id, (u32)c.whole(6), r.queue, o.call_ms));
	}
	case STRAIT_XPU_OP_ATOMIC:
	case STRAIT_XPU_OP_FETCH:
	case STRAIT_XPU_OP_COMPARE:
		return atomic(r, c, ticket);
	default:
		return enosys;
	}
}

} // namespace gaspi
} // namespace strait

#endif

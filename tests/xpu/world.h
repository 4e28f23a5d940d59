/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two processes on a CPU, whose kernels are threads as lanes: contexts, regions, rings, and a drain that plays the host. */
#ifndef STRAIT_TEST_XPU_WORLD_H
#define STRAIT_TEST_XPU_WORLD_H

#include <sched.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

/* What another thread does in the middle of an operation of this one, if a test says so. */
inline thread_local void (*between)() = nullptr;

/* Lets others run, at random. */
inline void fuzz()
{
	if (between)
		between();
	static thread_local uint64_t state = 0;
	if (state == 0)
		state = (uint64_t)(uintptr_t)&state * 0x9e3779b97f4a7c15ULL | 1;
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	if (state % 512 == 0)
		usleep((useconds_t)(state >> 32) % 60);
	else if (state % 16 == 0)
		sched_yield();
}

#define STRAIT_XPU_HOST_HOOK() fuzz()
#define STRAIT_XPU_HOST_DELAY
#include "check.h"
#include "strait_xpu.cuh"

/* Waits that name no time. */
#ifndef WORLD_TIMEOUT_NS
#define WORLD_TIMEOUT_NS 20000000000ULL
#endif

/* Of each rank, and of each region. */
#ifndef WORLD_REGIONS
#define WORLD_REGIONS 2
#define WORLD_BYTES (1u << 17)
#endif

using namespace strait::xpu;

struct world {
	enum : unsigned { ranks = 2, regions = WORLD_REGIONS, bytes = WORLD_BYTES, log2_slots = 4, rings = 1 };
	std::vector<pair64> memory[ranks][regions];
	strait_xpu_context ctx[ranks] = {};
	strait_xpu_peer peers[ranks][ranks * regions] = {};
	strait_xpu_region own[ranks][regions] = {};
	strait_xpu_ring ring[ranks] = {};
	alignas(64) strait_xpu_slot slots[ranks][1u << log2_slots] = {};
	alignas(64) strait_xpu_produced produced[ranks] = {};
	alignas(64) strait_xpu_status status[ranks] = {};
	u64 lost[ranks][ranks] = {};

	explicit world(bool mapped, u32 ring_flags = 0)
	{
		for (unsigned r = 0; r < ranks; r++)
			for (unsigned g = 0; g < regions; g++) {
				memory[r][g].resize(bytes / 16);
				own[r][g] = strait_xpu_region{(u64)memory[r][g].data(), bytes, 0, 0};
			}
		for (unsigned r = 0; r < ranks; r++) {
			for (unsigned p = 0; p < ranks; p++)
				for (unsigned g = 0; g < regions; g++)
					peers[r][p * regions + g] =
						strait_xpu_peer{mapped ? own[p][g].base : 0, own[p][g].base, 7, bytes};
			ring[r].version = STRAIT_XPU_VERSION;
			ring[r].log2_slots = log2_slots;
			ring[r].flags = ring_flags;
			ring[r].slots = (u64)slots[r];
			ring[r].produced = (u64)&produced[r];
			ring[r].status = (u64)&status[r];
			ring[r].timeout_ns = WORLD_TIMEOUT_NS;
			ring[r].beat_ns = 0;
			ctx[r].version = STRAIT_XPU_VERSION;
			ctx[r].rank = r;
			ctx[r].peer_count = ranks;
			ctx[r].region_count = regions;
			ctx[r].ring_count = rings;
			ctx[r].peers = (u64)peers[r];
			ctx[r].regions = (u64)own[r];
			ctx[r].rings = (u64)&ring[r];
			ctx[r].peer_errors = (u64)lost[r];
			ctx[r].timeout_ns = WORLD_TIMEOUT_NS;
		}
	}
	u8 *at(unsigned r, unsigned g, u64 offset) { return (u8 *)memory[r][g].data() + offset; }
	u64 *word(unsigned r, unsigned g, u64 offset) { return (u64 *)at(r, g, offset); }
};

/* Takes the commands of a rank and carries them out, in their order. */
class drain {
public:
	static constexpr u64 bad_key = 0xbad;

	drain(world &w, unsigned rank) : w(w), rank(rank), thread([this] { run(); }) {}
	~drain()
	{
		__atomic_store_n(&stop, true, __ATOMIC_RELEASE);
		thread.join();
	}

private:
	world &w;
	unsigned rank;
	bool stop = false;
	u64 taken = 0;
	std::thread thread;

	bool there(u64 words[8])
	{
		if (w.ring[rank].flags & STRAIT_XPU_RING_BELL &&
		    __atomic_load_n(&w.produced[rank].bell, __ATOMIC_ACQUIRE) <= taken)
			return false;
		u64 *slot = w.slots[rank][taken & ((1u << world::log2_slots) - 1)].word;
		bool all = true;
		for (int i = 0; i < 8; i++) {
			words[i] = __atomic_load_n(&slot[i], __ATOMIC_ACQUIRE);
#ifdef BROKEN_DRAIN
			if (i > 0)
				continue;
#endif
			all &= words[i] >> 63 == strait_xpu_lap(taken, world::log2_slots);
		}
		return all;
	}

	static u64 whole(const u64 words[8], int i)
	{
		return (words[i] & ~(1ULL << 63)) | (words[0] >> (STRAIT_XPU_HIGH_SHIFT + i - 1) & 1) << 63;
	}

	static void signal(u64 at, u64 value, u32 flags)
	{
		if (flags & STRAIT_XPU_SIGNAL_32)
			__atomic_store_n((u32 *)at, (u32)value, __ATOMIC_RELEASE);
		else if (flags & STRAIT_XPU_SIGNAL_ADD)
			__atomic_fetch_add((u64 *)at, value, __ATOMIC_RELEASE);
		else
			__atomic_store_n((u64 *)at, value, __ATOMIC_RELEASE);
	}

	/* The first error stays; failures are counted. */
	void fail(u32 code)
	{
		strait_xpu_status &s = w.status[rank];
		if (!__atomic_load_n(&s.error, __ATOMIC_ACQUIRE))
			__atomic_store_n(&s.error, (u64)code | taken << 32, __ATOMIC_RELEASE);
		__atomic_store_n(&s.failed, s.failed + 1, __ATOMIC_RELEASE);
	}

	void carry_out(const u64 words[8])
	{
		const u32 op = (u32)(words[0] >> STRAIT_XPU_OP_SHIFT & 0xff);
		const u32 flags = (u32)(words[0] >> STRAIT_XPU_FLAGS_SHIFT & 0xffff);
		const u64 local = whole(words, 1), remote = whole(words, 2), operand = whole(words, 5);
		const u64 n = whole(words, 4) & STRAIT_XPU_LENGTH_MASK;
		u64 was;
		switch (op) {
		case STRAIT_XPU_OP_NOP:
			break;
		case STRAIT_XPU_OP_PUT:
		case STRAIT_XPU_OP_PUT_SIGNAL:
			memcpy((void *)remote, flags & STRAIT_XPU_INLINE_DATA ? (const void *)&local : (const void *)local, n);
			if (op == STRAIT_XPU_OP_PUT_SIGNAL)
				signal(operand, whole(words, 6), flags);
			break;
		case STRAIT_XPU_OP_GET:
			memcpy((void *)local, (const void *)remote, n);
			break;
		case STRAIT_XPU_OP_SIGNAL:
			signal(operand, whole(words, 6), flags);
			break;
		case STRAIT_XPU_OP_ATOMIC:
		case STRAIT_XPU_OP_FETCH:
			if (whole(words, 3) == bad_key)
				return fail(13);
			CHECK((n & 0xff) == 7 && n >> 8 == 2);
			was = __atomic_fetch_add((u64 *)remote, operand, __ATOMIC_ACQ_REL);
			if (op == STRAIT_XPU_OP_FETCH)
				*(u64 *)local = was;
			break;
		case STRAIT_XPU_OP_COMPARE:
			was = whole(words, 6);
			__atomic_compare_exchange_n((u64 *)remote, &was, operand, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
			*(u64 *)local = was;
			break;
		default:
			fail(38);
		}
	}

	void run()
	{
		strait_xpu_status &s = w.status[rank];
		while (!__atomic_load_n(&stop, __ATOMIC_ACQUIRE)) {
			u64 words[8];
			fuzz();
			if (!there(words)) {
				sched_yield();
				continue;
			}
			carry_out(words);
			taken++;
			__atomic_store_n(&s.consumed, taken, __ATOMIC_RELEASE);
			__atomic_store_n(&s.local, taken, __ATOMIC_RELEASE);
			__atomic_store_n(&s.done, taken, __ATOMIC_RELEASE);
			__atomic_store_n(&s.beat, taken, __ATOMIC_RELAXED);
		}
	}
};

/* What byte j of message i is. */
inline u8 pattern(u64 i, u64 j) { return (u8)((i * 0x9e3779b97f4a7c15ULL + j * 0xd1342543de82ef95ULL) >> 40); }

inline u64 random_of(u64 i)
{
	i = (i + 1) * 0xbf58476d1ce4e5b9ULL;
	i ^= i >> 29;
	i *= 0x94d049bb133111ebULL;
	return i ^ i >> 32;
}

#endif

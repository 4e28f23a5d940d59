/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A CPU thread that takes commands as fast as a plain loop can: what rings are measured with. It knows of NOP alone. */
#ifndef STRAIT_TEST_XPU_HOST_DRAIN_H
#define STRAIT_TEST_XPU_HOST_DRAIN_H

#include "machine.h"

/* Rings whose slots and status the CPU reaches; what the device alone writes is in its memory. With `bell` that is in the
 * host's as well, since the CPU has to read it. */
class host_rings {
public:
	host_rings(machine &m, unsigned count, u32 log2_slots, bool bell, dptr produced_at)
		: count(count), log2_slots(log2_slots)
	{
		const size_t slots = (size_t)64 << log2_slots;
		m.enter(0);
		cu("cuMemHostAlloc", &memory, (slots + 128) * count, 3u);
		memset(memory, 0, (slots + 128) * count);
		for (unsigned i = 0; i < count; i++) {
			char *at = (char *)memory + (slots + 128) * i;
			strait_xpu_ring r = {};
			r.version = STRAIT_XPU_VERSION;
			r.log2_slots = log2_slots;
			r.flags = bell ? STRAIT_XPU_RING_BELL : 0;
			r.id = i;
			r.slots = (u64)at;
			r.status = (u64)(at + slots);
			r.produced = bell ? (u64)(at + slots + 64) : produced_at + 64ULL * i;
			r.timeout_ns = 5000000000ULL;
			ring.push_back(r);
		}
		cu("cuMemsetD8_v2", produced_at, (unsigned char)0, (size_t)64 * count);
		cu("cuCtxSynchronize");
		taken.assign(count, 0);
	}

	/* One thread takes the commands of rings first, first + step, ...; status is written every `lazy` commands or when the
	 * ring is empty. */
	void start(unsigned first, unsigned step)
	{
		threads.emplace_back([this, first, step] {
			while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
				for (unsigned i = first; i < count; i += step)
					take(i);
		});
	}

	~host_rings()
	{
		__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
		for (std::thread &t : threads)
			t.join();
		/* The pages stay: to free them waits for the device. */
	}

	std::vector<strait_xpu_ring> ring;

private:
	unsigned count;
	u32 log2_slots;
	void *memory = nullptr;
	bool stop = false;
	std::vector<u64> taken;
	std::vector<std::thread> threads;

	void take(unsigned i)
	{
		const strait_xpu_ring &r = ring[i];
		auto *status = (strait_xpu_status *)r.status;
		u64 t = taken[i];
		u64 most = t + 64;
		if (r.flags & STRAIT_XPU_RING_BELL)
			most = std::min<u64>(most, __atomic_load_n(&((strait_xpu_produced *)r.produced)->bell, __ATOMIC_ACQUIRE));
		while (t < most) {
			u64 *slot = ((strait_xpu_slot *)r.slots)[t & ((1u << log2_slots) - 1)].word;
			const u64 lap = strait_xpu_lap(t, log2_slots);
			bool all = true;
			for (int w = 0; w < 8; w++)
				all &= __atomic_load_n(&slot[w], __ATOMIC_ACQUIRE) >> 63 == lap;
			if (!all)
				break;
			t++;
		}
		if (t == taken[i])
			return;
		taken[i] = t;
		__atomic_store_n(&status->consumed, t, __ATOMIC_RELEASE);
		__atomic_store_n(&status->local, t, __ATOMIC_RELEASE);
		__atomic_store_n(&status->done, t, __ATOMIC_RELEASE);
	}
};

#endif

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What a kernel does with an endpoint, a queue and a counter that the provider has exported: for fi_program.cc's lanes and for kernels.cu.
 * Each function of fi_xpu(3) that moves something is called, by one scope; the peer is a host process that sends back what it gets. */
#ifndef STRAIT_TEST_XPU_FI_TURN_CUH
#define STRAIT_TEST_XPU_FI_TURN_CUH

#include "strait_fi_xpu_device.cuh"

enum : unsigned { fi_threads = 64, fi_turns = 3, fi_memory = 65536, fi_payload = 40, fi_message = 24 };

struct fi_args {
	fid_xpu_ep ep;
	fid_xpu_cq cq;
	fid_xpu_cntr cntr;
	/* Raw address and descriptor; the target's key, and one that it has not. */
	strait_xpu_u64 peer, region, key, wrong_key;
	unsigned char *memory;
	/* For each thread: 0, or the line of what was not so. */
	strait_xpu_u64 *out;
	/* What turns before have added, and written. */
	strait_xpu_u64 added, written;
};

namespace fi_test {

using namespace strait::xpu;

template <scope S> STRAIT_XPU_FN int group()
{
	return S == scope::thread ? FI_XPU_WORK_ITEM : S == scope::warp ? FI_XPU_SUBGROUP : FI_XPU_WORK_GROUP;
}

STRAIT_XPU_FN u8 byte_of(u64 turn, u64 me, u64 i) { return (u8)(turn * 77 + me * 5 + i * 3 + 1); }

/* Takes `count` completions; whether each has one of two flags, and the contexts have that sum. */
template <scope S> STRAIT_XPU_FN bool collect(fi_args &a, u64 count, u64 flags, u64 or_flags, u64 contexts)
{
	u64 *entries = (u64 *)(a.memory + 1024), n = 0, sum = 0;
	bool good = true;
	while (n < count) {
		const u64 most = count - n < 8 ? count - n : 8;
		const i64 got = fi_xpu_cq_sread(&a.cq, entries, most, 1, group<S>());
		if (got <= 0 || (u64)got > most)
			return false;
		for (u64 i = 0; i < (u64)got; i++) {
			sum += entries[6 * i];
			good &= entries[6 * i + 1] == flags || entries[6 * i + 1] == or_flags;
		}
		n += (u64)got;
		/* Before the next are written there. */
		hw::sync<S>();
	}
	return good && sum == contexts;
}

#define FI_EXPECT(what)                          \
	do {                                     \
		if (!(what) && line == 0)        \
			line = __LINE__;         \
	} while (0)
/* All threads of the scope leave together. */
#define FI_LEAVE()                               \
	do {                                     \
		if (hw::any<S>(line != 0))       \
			return line;             \
	} while (0)

template <scope S> STRAIT_XPU_FN u32 transfers(fi_args &a, u64 turn, u64 me, u64 lanes)
{
	const int g = group<S>();
	const u64 there = 4096 + 64 * me, each = lanes * (lanes - 1) / 2;
	u8 *own = a.memory + there;
	u32 line = 0;
	for (u64 i = 0; i < fi_payload; i++)
		own[i] = byte_of(turn, me, i);
	FI_EXPECT(fi_xpu_write(&a.ep, own, fi_payload, &a.region, 1 + me, &a.peer, there, a.key, (void *)(100 + me), fi::remote_cq_data, g) == ok);
	FI_EXPECT(collect<S>(a, lanes, fi::rma | fi::write, 0, 100 * lanes + each));
	FI_LEAVE();
	FI_EXPECT(fi_xpu_read(&a.ep, own + 8192, fi_payload, &a.region, &a.peer, there, a.key, (void *)(200 + me), 0, g) == ok);
	FI_EXPECT(collect<S>(a, lanes, fi::rma | fi::read, 0, 200 * lanes + each));
	for (u64 i = 0; i < fi_payload; i++)
		FI_EXPECT(own[8192 + i] == byte_of(turn, me, i));
	const u64 word = turn * 1000 + me;
	FI_EXPECT(fi_xpu_write(&a.ep, &word, 8, nullptr, 0, &a.peer, there + 48, a.key, (void *)(300 + me), fi::inject, g) == ok);
	FI_EXPECT(collect<S>(a, lanes, fi::rma | fi::write, 0, 300 * lanes + each));
	FI_LEAVE();
	/* FI_UINT64 is 7, FI_SUM 2, FI_CSWAP 12. */
	u64 *result = (u64 *)(a.memory + 32768) + me;
	const u64 one = 1, none = 0, mine = me + 1;
	FI_EXPECT(fi_xpu_fetch_atomic(&a.ep, &one, 1, nullptr, result, &a.region, &a.peer, 0, a.key, 7, 2, (void *)(400 + me), 0, g) == ok);
	FI_EXPECT(collect<S>(a, lanes, fi::atomic | fi::read, 0, 400 * lanes + each));
	FI_EXPECT(*result >= a.added && *result < a.added + lanes);
	FI_LEAVE();
	*result = ~0ULL;
	FI_EXPECT(fi_xpu_compare_atomic(&a.ep, &mine, 1, nullptr, &none, nullptr, result, &a.region, &a.peer, 2048 + 8 * (fi_threads * turn + me), a.key, 7,
					12, (void *)(500 + me), 0, g) == ok);
	FI_EXPECT(collect<S>(a, lanes, fi::atomic | fi::read, 0, 500 * lanes + each));
	FI_EXPECT(*result == 0);
	FI_EXPECT(fi_xpu_atomic(&a.ep, &one, 1, nullptr, &a.peer, 8, a.key, 7, 2, (void *)(600 + me), 0, g) == ok);
	FI_EXPECT(collect<S>(a, lanes, fi::atomic | fi::write, 0, 600 * lanes + each));
	return line;
}

template <scope S> STRAIT_XPU_FN u32 messages(fi_args &a, u64 turn, u64 me, u64 lanes)
{
	const int g = group<S>();
	u8 *own = a.memory + 4096 + 64 * me, *back = a.memory + 40960 + 64 * me;
	u32 line = 0;
	FI_EXPECT(fi_xpu_trecv(&a.ep, back, fi_message, &a.region, &a.peer, 1000 + me, 0, (void *)(700 + me), 0, g) == ok);
	FI_EXPECT(fi_xpu_tsend(&a.ep, own, fi_message, &a.region, 0, &a.peer, me, (void *)(800 + me), 0, g) == ok);
	FI_EXPECT(collect<S>(a, 2 * lanes, fi::tagged | fi::send, fi::tagged | fi::recv, 1500 * lanes + lanes * (lanes - 1)));
	for (u64 i = 0; i < fi_message; i++)
		FI_EXPECT(back[i] == (u8)(byte_of(turn, me, i) + 1));
	FI_LEAVE();
	/* A message without a tag, to a receive of any peer's. */
	FI_EXPECT(fi_xpu_recv(&a.ep, back, fi_message, &a.region, nullptr, (void *)(700 + me), 0, g) == ok);
	const u64 word = me;
	FI_EXPECT(fi_xpu_send(&a.ep, &word, 8, nullptr, 0, &a.peer, (void *)(800 + me), 0, g) == ok);
	FI_EXPECT(collect<S>(a, 2 * lanes, fi::msg | fi::send, fi::msg | fi::recv, 1500 * lanes + lanes * (lanes - 1)));
	/* Whichever of them came. */
	FI_EXPECT(*(volatile u64 *)back >= 1000 && *(volatile u64 *)back < 1000 + lanes);
	return line;
}

/* A key that the target has not, and what comes after it. */
template <scope S> STRAIT_XPU_FN u32 failures(fi_args &a)
{
	u64 *entry = (u64 *)(a.memory + 1024), buf = 5;
	u32 line = 0;
	const int g = group<S>();
	FI_EXPECT(fi_xpu_cntr_readerr(&a.cntr, g) == 0);
	FI_EXPECT(fi_xpu_write(&a.ep, &buf, 8, nullptr, 0, &a.peer, 0, a.wrong_key, (void *)900, 0, g) == ok);
	FI_EXPECT(fi_xpu_cq_sread(&a.cq, entry, 1, 1, g) == fi::eavail);
	FI_EXPECT(fi_xpu_cq_readerr(&a.cq, entry, 0, g) == 1 && entry[0] == 900 && (u32)entry[7] != 0);
	/* Counters are written after queues: the wait ends with the failure, or with its time where that was counted before. */
	fi_xpu_cntr_wait(&a.cntr, ~0ULL, 50, g);
	FI_EXPECT(fi_xpu_cntr_readerr(&a.cntr, g) == 1);
	FI_EXPECT(fi_xpu_write(&a.ep, &buf, 8, nullptr, 0, &a.peer, 64, a.key, (void *)901, 0, g) == ok);
	FI_EXPECT(fi_xpu_cq_sread(&a.cq, entry, 1, 1, g) == 1 && entry[0] == 901);
	FI_EXPECT(fi_xpu_cq_read(&a.cq, entry, 1, g) == err_again);
	return line;
}

/* One scope: `turn` 0 is a thread's, 1 a warp's, 2 a block's. The first has what fails, too. */
template <scope S> STRAIT_XPU_FN void turn(const fi_args *from, u64 number)
{
	fi_args a = *from;
	const u64 me = hw::rank<S>(), lanes = hw::size<S>();
	u32 line = transfers<S>(a, number, me, lanes);
	if (!hw::any<S>(line != 0))
		line = messages<S>(a, number, me, lanes);
	if (!hw::any<S>(line != 0)) {
		/* Two writes and an atomic of each. */
		fi_xpu_cntr_wait(&a.cntr, a.written + 3 * lanes, -1, group<S>());
		FI_EXPECT(fi_xpu_cntr_read(&a.cntr, group<S>()) == a.written + 3 * lanes);
	}
	if (S == scope::thread && line == 0)
		line = failures<S>(a);
	a.out[me] = line;
}

#undef FI_EXPECT
#undef FI_LEAVE

} // namespace fi_test

#endif

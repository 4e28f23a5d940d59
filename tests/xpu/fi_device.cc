/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* fi_xpu(3)'s functions in kernels, with threads as lanes, over rings that a thread drains: puts and reads of each scope,
 * atomics, counters, queues, and what is refused.
 *
 *     fi_device NAME [SEED]      "ok NAME", or what is wrong; fi_device alone lists the names */
#include "world.h"
#include "strait_fi_xpu_device.cuh"

static u64 seed;
/* What another provider's answers are: by tests/xpu/stock's stand-in for libfabric's header, or none. */
#ifdef STRAIT_FI_XPU_STOCK
enum { others = -1000, others_count = 1000 };
#else
enum { others = err_nosys, others_count = 0 };
#endif
enum : unsigned { threads = 2 * STRAIT_XPU_WARP };

static fid_xpu exported(const void *at) { return fid_xpu{1, STRAIT_XPU_PROV_ID, (u64)at}; }
static fid_xpu_ep ep_of(world &w) { return fid_xpu_ep{exported(&w.ring[0])}; }
static void settle(world &w, u64 count)
{
	while (__atomic_load_n(&w.status[0].done, __ATOMIC_ACQUIRE) < count)
		sched_yield();
}

/* Each thread of a scope puts 24 bytes of its own and 8 that go in the command, and reads 24 back. */
static void transfers_as(int group, unsigned lanes)
{
	world w(false);
	drain host(w, 0);
	fid_xpu_ep ep = ep_of(w);
	u64 peer = 1, region = 0;
	hw::launch(1, lanes, seed, [&](unsigned) {
		const u64 me = hw::thread_of_block(), at = 4096 + 64 * me;
		auto again = [&](auto call) {
			int rc;
			while ((rc = call()) == err_again)
				sched_yield();
			CHECK(rc == ok);
		};
		for (u64 j = 0; j < 24; j++)
			*w.at(0, 0, at + j) = pattern(me, j);
		*w.word(0, 0, at + 32) = me + 7;
		again([&] { return fi_xpu_write(&ep, w.at(0, 0, at), 24, &region, 0, &peer, (u64)w.at(1, 0, at), 7, nullptr, 0, group); });
		again([&] { return fi_xpu_write(&ep, w.at(0, 0, at + 32), 8, nullptr, 0, &peer, (u64)w.at(1, 0, at + 32), 7, nullptr, 1ULL << 25, group); });
		again([&] { return fi_xpu_read(&ep, w.at(0, 0, at + 32768), 24, &region, &peer, (u64)w.at(1, 0, at), 7, nullptr, 0, group); });
	});
	settle(w, 3 * lanes);
	for (u64 me = 0; me < lanes; me++) {
		CHECK(*w.word(1, 0, 4096 + 64 * me + 32) == me + 7);
		for (u64 j = 0; j < 24; j++)
			CHECK(*w.at(1, 0, 4096 + 64 * me + j) == pattern(me, j) && *w.at(0, 0, 4096 + 64 * me + 32768 + j) == pattern(me, j));
	}
}

static void transfers()
{
	transfers_as(FI_XPU_WORK_ITEM, STRAIT_XPU_WARP);
	transfers_as(FI_XPU_SUBGROUP, STRAIT_XPU_WARP);
	transfers_as(FI_XPU_WORK_GROUP, threads);
}

/* FI_UINT64 is 7; FI_SUM 2, FI_CSWAP 12. */
static void atomics()
{
	world w(false);
	*w.word(1, 0, 0) = 100;
	drain host(w, 0);
	fid_xpu_ep ep = ep_of(w);
	u64 peer = 1, region = 0;
	hw::launch(1, STRAIT_XPU_WARP, seed, [&](unsigned) {
		const u64 me = hw::thread_of_block(), one = 1;
		CHECK(fi_xpu_atomic(&ep, &one, 1, nullptr, &peer, (u64)w.at(1, 0, 0), 7, 7, 2, nullptr, 0, FI_XPU_SUBGROUP) == ok);
		CHECK(fi_xpu_fetch_atomic(&ep, &one, 1, nullptr, w.word(0, 0, 64 + 8 * me), &region, &peer, (u64)w.at(1, 0, 0), 7, 7, 2, nullptr, 0,
					  FI_XPU_SUBGROUP) == ok);
		CHECK(fi_xpu_atomic(&ep, &one, 2, nullptr, &peer, 0, 7, 7, 2, nullptr, 0, FI_XPU_SUBGROUP) == err_inval);
		CHECK(fi_xpu_atomic(&ep, &one, 1, nullptr, &peer, 0, 7, 12, 2, nullptr, 0, FI_XPU_WORK_ITEM) == err_inval);
	});
	settle(w, 2 * STRAIT_XPU_WARP);
	CHECK(*w.word(1, 0, 0) == 100 + 2 * STRAIT_XPU_WARP);
	for (u64 me = 0; me < STRAIT_XPU_WARP; me++)
		CHECK(*w.word(0, 0, 64 + 8 * me) >= 100 + STRAIT_XPU_WARP);
	hw::launch(1, 1, seed, [&](unsigned) {
		const u64 want = 100 + 2 * STRAIT_XPU_WARP, to = 5;
		CHECK(fi_xpu_compare_atomic(&ep, &to, 1, nullptr, &want, nullptr, w.word(0, 0, 64), &region, &peer, (u64)w.at(1, 0, 0), 7, 7, 12, nullptr, 0,
					    FI_XPU_WORK_ITEM) == ok);
	});
	settle(w, 2 * STRAIT_XPU_WARP + 1);
	CHECK(*w.word(1, 0, 0) == 5 && *w.word(0, 0, 64) == 100 + 2 * STRAIT_XPU_WARP);
}

/* What a command has in its words: messages go by the same ring. */
static void messages()
{
	world w(false);
	fid_xpu_ep ep = ep_of(w);
	u64 peer = 1, region = 3;
	hw::launch(1, 1, seed, [&](unsigned) {
		const u64 data = 0x55;
		char *const buf = (char *)w.at(0, 0, 64);
		CHECK(fi_xpu_send(&ep, &data, 8, nullptr, 0x77, &peer, (void *)9, 1ULL << 17, FI_XPU_WORK_ITEM) == ok);
		CHECK(fi_xpu_tsend(&ep, buf, 100, &region, 0, &peer, 0xabcULL << 52, (void *)10, 1ULL << 21, FI_XPU_WORK_ITEM) == ok);
		CHECK(fi_xpu_recv(&ep, buf, 100, &region, nullptr, (void *)11, 0, FI_XPU_WORK_ITEM) == ok);
		CHECK(fi_xpu_trecv(&ep, buf, 4, &region, &peer, 5, 6, (void *)12, 1ULL << 18, FI_XPU_WORK_ITEM) == ok);
	});
	auto word = [&](unsigned slot, unsigned i) { return w.slots[0][slot].word[i] & ~(1ULL << 63); };
	auto op = [&](unsigned slot) { return (u32)(word(slot, 0) >> STRAIT_XPU_OP_SHIFT & 0xff); };
	auto flags = [&](unsigned slot) { return (u32)(word(slot, 0) >> STRAIT_XPU_FLAGS_SHIFT & 0xffff); };
	CHECK(op(0) == STRAIT_XPU_OP_SEND && op(1) == STRAIT_XPU_OP_TSEND && op(2) == STRAIT_XPU_OP_RECV && op(3) == STRAIT_XPU_OP_TRECV);
	CHECK(flags(0) == (STRAIT_XPU_INLINE_DATA | STRAIT_XPU_COMPLETION | STRAIT_XPU_CQ_DATA) && word(0, 1) == 0x55 && word(0, 5) == 0x77);
	CHECK(word(0, 7) == 9 && (word(0, 4) & STRAIT_XPU_LENGTH_MASK) == 8);
	CHECK(flags(1) == (STRAIT_XPU_COMPLETION | STRAIT_XPU_FENCE) && word(1, 2) == (0xabcULL << 52 & ~(1ULL << 63)));
	CHECK((word(1, 4) & STRAIT_XPU_LENGTH_MASK) == 100 && word(1, 4) >> STRAIT_XPU_REGION_SHIFT == 3);
	CHECK(flags(2) == STRAIT_XPU_COMPLETION && (u32)word(2, 0) == STRAIT_XPU_ANY);
	CHECK(flags(3) == (STRAIT_XPU_COMPLETION | STRAIT_XPU_MORE) && (u32)word(3, 0) == 1 && word(3, 2) == 5 && word(3, 3) == 6);
}

static void refusals()
{
	world w(false);
	fid_xpu_ep ep = ep_of(w), other = ep;
	fid_xpu_cq cq = {{2, 1, 0}};
	fid_xpu_cntr cntr = {{3, 1, 0}};
	u64 peer = 1, bytes[2] = {};
	other.fid.prov_id = 1;
	hw::launch(1, STRAIT_XPU_WARP, seed, [&](unsigned) {
		for (int group : {FI_XPU_WORK_ITEM, FI_XPU_SUBGROUP, FI_XPU_WORK_GROUP}) {
			CHECK(fi_xpu_write(&other, bytes, 8, nullptr, 0, &peer, 0, 0, nullptr, 0, group) == others);
			CHECK(fi_xpu_write(&ep, bytes, 9, nullptr, 0, &peer, 0, 0, nullptr, 1ULL << 25, group) == err_inval);
			CHECK(fi_xpu_write(&ep, bytes, 8, nullptr, 0, &peer, 0, 0, nullptr, 1ULL << 40, group) == err_inval);
			CHECK(fi_xpu_write(&ep, bytes, 1ULL << 40, nullptr, 0, &peer, 0, 0, nullptr, 0, group) == err_msgsize);
		}
		/* One lane of a warp is refused, so is the warp. */
		CHECK(fi_xpu_write(&ep, bytes, hw::thread_of_block() == 2 ? 9 : 8, nullptr, 0, &peer, 0, 0, nullptr, 1ULL << 25, FI_XPU_SUBGROUP) == err_inval);
		CHECK(fi_xpu_write(&ep, bytes, 8, nullptr, 0, &peer, 0, 0, nullptr, 0, FI_XPU_DEVICE) == -95);
		CHECK(fi_xpu_cq_read(&cq, bytes, 1, FI_XPU_SUBGROUP) == others && fi_xpu_cntr_read(&cntr, 0) == others_count);
		CHECK(fi_xpu_cq_sreadfrom(&cq, bytes, 1, bytes, 1, 0) == others && fi_xpu_cntr_set(&cntr, 0, 0) == others);
		fi_xpu_cntr_wait(&cntr, 5, -1, 0);
	});
	CHECK(w.produced[0].reserved == 0);
	/* In a block each warp by itself, and none waits for one that is refused. */
	hw::launch(1, threads, seed, [&](unsigned) {
		const bool second = hw::thread_of_block() >= STRAIT_XPU_WARP;
		CHECK(fi_xpu_write(&ep, bytes, second ? 9 : 8, nullptr, 0, &peer, 0, 0, nullptr, 1ULL << 25, FI_XPU_WORK_GROUP) == (second ? err_inval : ok));
	});
	CHECK(w.produced[0].reserved == STRAIT_XPU_WARP);
	/* A full ring, at once. */
	hw::launch(1, 1, seed, [&](unsigned) {
		for (unsigned i = STRAIT_XPU_WARP; i < 1u << world::log2_slots; i++)
			CHECK(fi_xpu_write(&ep, bytes, 8, nullptr, 0, &peer, 0, 0, nullptr, 0, FI_XPU_WORK_ITEM) == ok);
		CHECK(fi_xpu_write(&ep, bytes, 8, nullptr, 0, &peer, 0, 0, nullptr, 0, FI_XPU_WORK_ITEM) == err_again);
	});
}

/* Entries of each format, errors between them, and a wait, by each scope. */
static void queues()
{
	for (u64 format = 0; format <= 4; format++) {
		alignas(64) strait_xpu_completion entries[4] = {};
		alignas(64) strait_xpu_queue_read read = {};
		strait_xpu_queue q = {STRAIT_XPU_VERSION, 2, (u64)entries, (u64)&read, 2000000000ULL, 0, format, {}};
		fid_xpu_cq cq = {exported(&q)};
		const unsigned words = format == 4 ? 6 : format == 3 ? 5 : format == 2 ? 3 : 1;
		auto give = [&](u64 n, u64 what) {
			strait_xpu_completion &e = entries[(n - 1) % 4];
			e.context = 100 + n;
			e.what = what;
			e.length = 8 * n;
			e.data = 3 * n;
			e.tag = 5 * n;
			e.source = n == 2 ? (u64)STRAIT_XPU_ANY : n;
			__atomic_store_n(&e.commit, n, __ATOMIC_RELEASE);
		};
		give(1, STRAIT_XPU_OP_PUT);
		give(2, STRAIT_XPU_OP_TRECV | 1 << 8);
		give(3, STRAIT_XPU_OP_GET | 5ULL << 32);
		u64 buf[24] = {}, from[4] = {};
		std::thread later([&] {
			usleep(3000);
			while (__atomic_load_n(&read.read, __ATOMIC_ACQUIRE) < 3)
				sched_yield();
			give(4, STRAIT_XPU_OP_SEND);
		});
		hw::launch(1, threads, seed, [&](unsigned) {
			const int g = FI_XPU_WORK_GROUP;
			CHECK(fi_xpu_cq_readerr(&cq, buf, 0, g) == err_again);
			CHECK(fi_xpu_cq_readfrom(&cq, buf, 4, from, g) == 2);
			CHECK(buf[0] == 101 && buf[words] == 102 && from[0] == 1 && from[1] == ~0ULL);
			CHECK(words < 3 || (buf[1] == (1ULL << 2 | 1ULL << 9) && buf[2] == 8));
			CHECK(words < 6 || (buf[7] == (1ULL << 3 | 1ULL << 10 | 1ULL << 17) && buf[10] == 6 && buf[11] == 10));
			hw::sync<scope::block>();
			CHECK(fi_xpu_cq_read(&cq, buf, 1, g) == -259);
			CHECK(fi_xpu_cq_readerr(&cq, buf, 0, g) == 1 && buf[0] == 103 && buf[7] == 5);
			hw::sync<scope::block>();
			CHECK(fi_xpu_cq_sread(&cq, buf, 2, 1, g) == 1 && buf[0] == 104);
			CHECK(fi_xpu_cq_read(&cq, buf, 1, g) == err_again && fi_xpu_cq_read(&cq, buf, 0, g) == 0);
			CHECK(fi_xpu_cq_read(&cq, buf, 1, FI_XPU_SUBGROUP) == err_again && fi_xpu_cq_read(&cq, buf, 1, FI_XPU_DEVICE) == -95);
		});
		later.join();
		__atomic_store_n(&q.error, STRAIT_XPU_ERROR_ENDED | 125, __ATOMIC_RELEASE);
		hw::launch(1, 1, seed, [&](unsigned) { CHECK(fi_xpu_cq_sread(&cq, buf, 1, 1, FI_XPU_WORK_ITEM) == err_canceled); });
	}
}

static void counters()
{
	strait_xpu_counter c = {};
	fid_xpu_cntr cntr = {exported(&c)};
	c.host.timeout_ns = 20000000;
	c.host.value = 10;
	hw::launch(1, 1, seed, [&](unsigned) {
		CHECK(fi_xpu_cntr_read(&cntr, 0) == 10 && fi_xpu_cntr_add(&cntr, 5, 0) == ok && fi_xpu_cntr_read(&cntr, 0) == 15);
		CHECK(fi_xpu_cntr_set(&cntr, 3, 0) == ok && fi_xpu_cntr_read(&cntr, 0) == 3);
		CHECK(fi_xpu_cntr_adderr(&cntr, 2, 0) == ok && fi_xpu_cntr_readerr(&cntr, 0) == 2);
		CHECK(fi_xpu_cntr_seterr(&cntr, 1, 0) == ok && fi_xpu_cntr_readerr(&cntr, 0) == 1);
		fi_xpu_cntr_wait(&cntr, 3, -1, 0);
		fi_xpu_cntr_wait(&cntr, 4, -1, 0);
		fi_xpu_cntr_wait(&cntr, 4, 1, 0);
		CHECK(fi_xpu_cntr_read(&cntr, 0) == 3);
	});
}

struct test {
	const char *name;
	void (*run)();
};
static const test tests[] = {{"transfers", transfers}, {"atomics", atomics}, {"messages", messages}, {"refusals", refusals}, {"queues", queues}, {"counters", counters}};

int main(int argc, char **argv)
{
	seed = argc > 2 ? strtoull(argv[2], nullptr, 10) : 1;
	for (const test &t : tests) {
		if (argc < 2) {
			puts(t.name);
		} else if (!strcmp(argv[1], t.name)) {
			t.run();
			printf("ok %s\n", t.name);
			return 0;
		}
	}
	return argc < 2 ? 0 : 2;
}

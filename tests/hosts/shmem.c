/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What Sandia OpenSHMEM 1.5.3 asks of libfabric, by some processes on several hosts that share a directory: its hints, its order
 * of calls, and for each routine of OpenSHMEM the operation that serves it. Contents are checked.
 *
 *   shmem PE PES DIR scalable     as it is built by default: registrations without modes, a counter of the target's, automatic
 *                                 progress, and one endpoint that is target and default context, whose counters are bound when
 *                                 it is enabled already
 *   shmem PE PES DIR polling      the same with --enable-hard-polling: no counter of the target's
 *   shmem PE PES DIR manual       --enable-ofi-mr=basic --enable-mr-endpoint --enable-hard-polling --enable-ofi-manual-progress
 *                                 --enable-manual-progress
 *   shmem PE PES DIR basic        the same with two endpoints (SHMEM_OFI_DISABLE_SINGLE_EP)
 *
 * OpenSHMEM asks for FI_DELIVERY_COMPLETE in its hints, opens the second endpoint with it, and the one endpoint without, which has
 * only counters for FI_READ and FI_WRITE: what they have counted its barriers take to be where it belongs.
 */
#include "shmem_pe.h"

/* How long a target makes no calls, where it has no automatic progress. */
static const uint64_t PAUSE_NS = 50000000u;

/* Puts of many lengths to all, each followed by a flag in order; looked at by their targets, and read back. */
static void moves(void)
{
	static const size_t lengths[] = {1, 8, 16, 200, 5000, 70000, HEAP / 2 / PES};
	static unsigned char back[HEAP / 2 / PES];

	for (unsigned step = 0; step < sizeof lengths / sizeof *lengths; step++) {
		size_t n = lengths[step];

		for (int pe = 0; pe < pes; pe++) {
			fill(heap->out, n, step * PES + (unsigned)me);
			if (step % 2 && n <= 8192)
				put_buffered(pe, heap->in[me], heap->out, n);
			else
				put(pe, heap->in[me], heap->out, n);
			/* A put with a signal: without FI_FENCE the signal waits for the payload. */
			quiet();
			uint64_t word = step + 1;
			put(pe, &arrived[me], &word, sizeof word);
		}
		for (int pe = 0; pe < pes; pe++) {
			wait_until(&arrived[pe], step + 1);
			CHECK(differs(heap->in[pe], n, step * PES + (unsigned)pe) == n, "%zu bytes of %d: wrong contents", n, pe);
		}
		for (int pe = 0; pe < pes; pe++) {
			memset(back, 0, n);
			get(pe, back, heap->in[me], n);
			CHECK(differs(back, n, step * PES + (unsigned)me) == n, "%zu bytes read back from %d: wrong contents", n, pe);
		}
		barrier();
	}
}

/* Many puts in a row, with one quiet; their order is not promised. */
static void many(void)
{
	for (uint64_t i = 0; i < 500; i++)
		for (int pe = 0; pe < pes; pe++) {
			uint64_t word = i * PES + (uint64_t)me;
			put(pe, &heap->many[me][i], &word, sizeof word);
		}
	barrier();
	for (int pe = 0; pe < pes; pe++)
		for (uint64_t i = 0; i < 500; i++)
			CHECK(heap->many[pe][i] == i * PES + (uint64_t)pe, "put %lu of %d has %lu", (unsigned long)i, pe, (unsigned long)heap->many[pe][i]);
	barrier();
}

/* What is put in each round: so many bytes, or an atomic. */
static const size_t lengths[] = {8, 100, 4000, 40000, 0};
enum { ROUNDS = sizeof lengths / sizeof *lengths };

/* So few that all of them find room on their way. */
static unsigned parts(size_t n)
{
	size_t fit = n ? sizeof heap->delivered[me] / n : 0;

	return (unsigned)(fit < 200 ? fit : 200);
}

/* Puts to all targets, those on this host first, which all make no calls. */
static void put_all(unsigned round)
{
	static unsigned char bytes[40000];
	size_t n = lengths[round];
	int64_t one = 1;

	for (int i = 0; i < pes; i++) {
		int pe = ((me ^ 1) + i) % pes;

		if (pe % 2 == me % 2)
			continue;
		fill(bytes, n, round + (unsigned)me);
		for (unsigned part = 0; part < parts(n); part++)
			put(pe, heap->delivered[me] + part * n, bytes, n);
		if (!n)
			atomic(pe, &heap->summed[me], &one, FI_INT64, FI_SUM);
		quiet();
		__atomic_store_n(&posted->put[me][pe], round + 1, __ATOMIC_RELEASE);
	}
}

/* Waits until every initiator says that its puts are done, and looks at memory before any other call. */
static void find_all(unsigned round)
{
	uint64_t start = now_ns();
	size_t n = lengths[round];

	for (int pe = (me ^ 1) % 2; pe < pes; pe += 2) {
		while (__atomic_load_n(&posted->put[pe][me], __ATOMIC_ACQUIRE) <= round) {
			CHECK(now_ns() - start < LIMIT * 1000000ull, "process %d does not end its puts", pe);
			/* What cannot be written without this process has to be taken in by it. */
			if (!automatic && now_ns() - start > PAUSE_NS)
				probe();
		}
		for (unsigned part = 0; part < parts(n); part++)
			CHECK(differs(heap->delivered[pe] + part * n, n, round + (unsigned)pe) == n,
			      "quiet ended at %d before %zu bytes, the %u. time, were here", pe, n, part + 1);
		int64_t sum = __atomic_load_n(&heap->summed[pe], __ATOMIC_RELAXED);
		CHECK(n || sum == 1, "quiet ended at %d before an atomic was here", pe);
	}
}

/*
 * shmem_quiet(3): what was put is in the target's memory, whichever process says so to the target, and by whatever means; barriers
 * end by an atomic of another process. Even ones put to odd ones, and then the other way.
 */
static void delivers(void)
{
	for (unsigned round = 0; round < ROUNDS; round++)
		for (int puts = 0; puts < 2; puts++) {
			barrier();
			if (me % 2 == puts)
				put_all(round);
			else
				find_all(round);
		}
	barrier();
}

static void atomics(void)
{
	int64_t one = 1, old = 0, last = -1, zero = 0;
	int32_t bit = 1 << me, narrow = 0;
	double half = 0.5, real = 0;

	for (int i = 0; i < 50; i++) {
		fetch(0, &heap->sum, &one, &old, FI_INT64, FI_SUM);
		CHECK(old > last && old < 100 * pes, "a fetched sum is %ld after %ld", (long)old, (long)last);
		last = old;
		atomic(0, &heap->sum, &one, FI_INT64, FI_SUM);
	}
	/* A lock that one holds at a time, by which all add to a number that is no atomic one. */
	for (int i = 0; i < 5; i++) {
		int32_t is = 0, mine = me + 1, free_ = 0, seen;
		do
			compare(pes - 1, &heap->lock, &mine, &free_, &seen, FI_INT32, FI_CSWAP);
		while (seen != is);
		get(pes - 1, &real, &heap->real, sizeof real);
		real += half;
		put(pes - 1, &heap->real, &real, sizeof real);
		quiet();
		fetch(pes - 1, &heap->lock, &free_, &seen, FI_INT32, FI_ATOMIC_WRITE);
		CHECK(seen == mine, "a lock of %d was %d's", mine, seen);
	}
	/* Each sets its bit, by a mask. */
	compare(0, &heap->masked, &bit, &bit, &narrow, FI_INT32, FI_MSWAP);
	CHECK(!(narrow & bit), "a bit that was set before");
	barrier();
	fetch(0, &heap->sum, &zero, &old, FI_INT64, FI_ATOMIC_READ);
	CHECK(old == 100 * pes, "the sum is %ld", (long)old);
	fetch(0, &heap->masked, &bit, &narrow, FI_INT32, FI_ATOMIC_READ);
	CHECK(narrow == (1 << pes) - 1, "the bits are %x", (unsigned)narrow);
	get(pes - 1, &real, &heap->real, sizeof real);
	CHECK(real == half * 5 * pes, "the number under a lock is %g", real);
	barrier();
	fetch(me, &heap->real, &half, &real, FI_DOUBLE, FI_ATOMIC_WRITE);
	CHECK(me != pes - 1 || real == half * 5 * pes, "fetched %g", real);
	barrier();
}

int main(int argc, char **argv)
{
	CHECK(argc == 5, "usage: shmem PE PES DIR scalable|polling|manual|basic");
	me = atoi(argv[1]);
	pes = atoi(argv[2]);
	CHECK(pes <= PES && me < pes, "there are %d processes at most", PES);
	counts = !strcmp(argv[4], "scalable");
	scalable = automatic = counts || !strcmp(argv[4], "polling");
	single = strcmp(argv[4], "basic") != 0;
	fab_role = "shmem";
	map_posted(argv[3]);
	start(argv[3]);
	barrier();
	moves();
	many();
	delivers();
	atomics();
	quiet();
	/* The others may still want this one's progress, which only its calls make where that is not automatic. */
	for (uint64_t begin = now_ns(); !automatic && now_ns() - begin < 200000000u;)
		probe();
	OK(fi_close(&heap_mr->fid));
	OK(fi_close(&data_mr->fid));
	struct fid *all[] = {&ep->fid, &cq->fid, ep != target ? &target->fid : NULL, ep != target ? &target_cq->fid : NULL,
			     &written->fid, &fetched->fid, arrivals ? &arrivals->fid : NULL, &av->fid, &domain->fid, &fabric->fid};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++)
		if (all[i])
			OK(fi_close(all[i]));
	fi_freeinfo(info);
	printf("ok: process %d of %d\n", me, pes);
	return 0;
}

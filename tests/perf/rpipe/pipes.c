/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * libstrait_rpipe between pairs of ranks, all pairs at once; from one rank to many; and its heaps.
 *
 *   pipes pairs|random|heap [ROUNDS]
 *
 * pairs: rwrite is rmalloc, a copy into the block, rwrite, and on the other side rread, a look at the bytes, rfree; one way is half
 * of there and back. pull is the same with RPIPE_PULL. rread is rread, a copy of the bytes, and rfree, of messages that have come before.
 * random: rank 0 to random peers, widths and heaps of several lengths.
 * heap: rmalloc and rfree by each policy: of one length at once, and among 128 blocks of random lengths.
 *
 * Rank 0 prints "FORM BYTES MICROSECONDS"; for random "random-rwrite.PEERS.HEAP BYTES MICROSECONDS"; for heap
 * "heap-POLICY.KIND 0 MICROSECONDS" of a pair of calls, and "fragmentation-POLICY 0 PART".
 */
#include <strait_rpipe.h>

#include "common.h"

enum { HEAP = 1 << 20, LONG_HEAP = 4 * LONGEST, AHEAD = 128, BLOCKS = 128, WIDEST_BLOCK = 4096 };

static int rank, size_of_job;
static rpipe_t to, from, *control;
static char *out, *in;

#define MUST(call) do { \
	if ((call) < 0) \
		fail(#call); \
} while (0)

static void fail(const char *what)
{
	fprintf(stderr, "rank %d: %s: %s\n", rank, what, rerror());
	exit(1);
}

static inline void give(rpipe_t rp, size_t size, uint64_t stamp, int full)
{
	raddr_t a = rmalloc(rp, size);
	char *memory = a == RADDR_NULL ? NULL : rmem(rp, a);

	if (!memory)
		fail("rmalloc");
	stamp_it(out, size, stamp, full);
	memcpy(memory, out, size);
	MUST(rwrite(rp, a));
}

static inline void take(rpipe_t rp, size_t size, uint64_t stamp, int full)
{
	raddr_t a;
	const char *memory;

	MUST(rread(rp, a, size));
	if (!(memory = rmem(rp, a)))
		fail("rmem");
	check_it("rwrite", memory, size, stamp, full);
	MUST(rfree(a));
}

static uint64_t stamps;

static double ping(size_t size, long rounds, int full)
{
	double begin = now();

	for (long n = 0; n < 2 * rounds; n++) {
		uint64_t stamp = ++stamps;

		if (n % 2 == rank % 2)
			give(to, size, stamp, full);
		else
			take(from, size, stamp, full);
	}
	return (now() - begin) / rounds / 2 * 1e6;
}

/* The odd rank writes so many ahead, and says so by the last. The even one asks for the next. */
static double reads(rpipe_t ahead, size_t size, long rounds)
{
	long room = (size > MOST ? LONG_HEAP : HEAP) / 2 / (long)size, most = room < AHEAD ? room : AHEAD, done = 0;
	double took = 0;

	while (done < rounds) {
		if (rank % 2) {
			for (long n = 0; n < most; n++)
				give(ahead, size, stamps + n, 0);
			MUST(rflush(ahead, RPIPE_FOREVER));
			give(to, 8, stamps, 0);
			take(from, 8, stamps, 0);
		} else {
			take(from, 8, stamps, 0);
			double begin = now();

			for (long n = 0; n < most; n++) {
				raddr_t a;

				MUST(rread(ahead, a, size));
				memcpy(in, rmem(ahead, a), size);
				MUST(rfree(a));
				check_it("rread", in, size, stamps + n, 0);
			}
			took += now() - begin;
			give(to, 8, stamps, 0);
		}
		done += most;
		stamps += most;
	}
	return took / done * 1e6;
}

/* A pipe for messages of more than MOST. */
static void open_long(rpipe_t *rp, int writer, unsigned flags)
{
	rpipe_attr attr = { .size = sizeof(attr), .iswriter = writer, .flags = HD_PIPE | flags, .width = LONGEST, .heap = LONG_HEAP };

	MUST(rpipe_open_attr(rp, rank ^ 1, &attr));
}

static void pings(const char *name, size_t least, size_t most, size_t heap, long rounds)
{
	/* Twice through the heap: its pages are there. */
	ping(most, 2 * (long)(heap / most), 1);
	for (size_t size = least; size <= most; size = size_after(size)) {
		ping(size, warm_of(size), 1);
		double took = ping(size, rounds_of(rounds, size), 0);

		if (rank == 0)
			printf("%s %zu %.4f\n", name, size, took);
	}
}

static void ways(const char *name, unsigned flags, long rounds)
{
	int peer = rank ^ 1;

	MUST(rpipe(to, peer, 1, MOST, HD_PIPE | flags));
	MUST(rpipe(from, peer, 0, MOST, HD_PIPE | flags));
	pings(name, LEAST, MOST, HEAP, rounds);
	MUST(rpipe_close(to));
	MUST(rpipe_close(from));
	open_long(&to, 1, flags);
	open_long(&from, 0, flags);
	pings(name, size_after(MOST), LONGEST, LONG_HEAP, rounds);
	MUST(rpipe_close(to));
	MUST(rpipe_close(from));
}

static void read_sizes(rpipe_t ahead, size_t least, size_t most, size_t heap, long rounds)
{
	reads(ahead, most, 2 * heap / most);
	for (size_t size = least; size <= most; size = size_after(size)) {
		/* Each page is touched before. */
		reads(ahead, size, size > MOST ? 2 * (long)(heap / size) : 8 * AHEAD);
		double took = reads(ahead, size, rounds_of(rounds, size));

		if (rank == 0)
			printf("rread %zu %.4f\n", size, took);
	}
}

static void pairs(long rounds)
{
	int peer = rank ^ 1;
	rpipe_t ahead;

	ways("pull", RPIPE_PULL, rounds);
	ways("rwrite", 0, rounds);
	/* What `reads` asks and answers with. */
	MUST(rpipe(to, peer, 1, MOST, HD_PIPE));
	MUST(rpipe(from, peer, 0, MOST, HD_PIPE));
	MUST(rpipe(ahead, peer, rank % 2, MOST, HD_PIPE));
	read_sizes(ahead, LEAST, MOST, HEAP, rounds);
	MUST(rpipe_close(ahead));
	open_long(&ahead, rank % 2, 0);
	read_sizes(ahead, size_after(MOST), LONGEST, LONG_HEAP, rounds);
	if (rank == 0) {
		rpipe_stats stats = { .size = sizeof(stats) };

		MUST(rpipe_get_stats(to, &stats));
		fprintf(stderr, "path %s, flags %s\n", stats.path, stats.flag_mode);
	}
}

/* Until all peers have said that they have read all of theirs. */
static double random_of(rpipe_t *pipes, int peers, size_t size, long rounds, uint64_t turn)
{
	double begin = now();

	drawn = size;
	for (long n = 0; n < rounds; n++) {
		int peer = 1 + draw() % peers;

		if (rank == 0)
			give(pipes[peer], size, turn + n, 0);
		else if (rank == peer)
			take(pipes[0], size, turn + n, 0);
	}
	if (rank && rank <= peers)
		give(control[0], 8, turn, 0);
	for (int peer = 1; rank == 0 && peer <= peers; peer++)
		take(control[peer], 8, turn, 0);
	return (now() - begin) / rounds * 1e6;
}

static void random_with(int peers, size_t width, size_t heap, long rounds)
{
	rpipe_t *pipes = calloc(size_of_job, sizeof(*pipes));
	rpipe_attr attr = { .size = sizeof(attr), .iswriter = rank == 0, .flags = HD_PIPE, .width = width, .heap = heap };
	/* The same in all ranks, also in those that take no part now. */
	uint64_t turn = ++stamps;

	for (int peer = 1; peer <= peers; peer++) {
		if (rank == 0)
			MUST(rpipe_open_attr(&pipes[peer], peer, &attr));
		else if (rank == peer)
			MUST(rpipe_open_attr(&pipes[0], 0, &attr));
	}
	if (rank <= peers) {
		/* Each is set up by its first message. */
		for (int peer = 1; peer <= peers; peer++) {
			if (rank == 0)
				give(pipes[peer], width, 0, 1);
			else if (rank == peer)
				take(pipes[0], width, 0, 1);
		}
		random_of(pipes, peers, width, peers * (long)(heap / (width < 64 ? 64 : width)), turn);
		double took = random_of(pipes, peers, width, rounds, turn);

		if (rank == 0)
			printf("random-rwrite.%d.%zuK %zu %.4f\n", peers, heap >> 10, width, took);
		for (int n = 0; n < size_of_job; n++)
			if (pipes[n])
				MUST(rpipe_close(pipes[n]));
	}
	free(pipes);
}

static void randoms(long rounds)
{
	control = calloc(size_of_job, sizeof(*control));
	for (int peer = 1; peer < size_of_job; peer++) {
		if (rank == 0)
			MUST(rpipe(control[peer], peer, 0, 8, HD_PIPE));
		else if (rank == peer)
			MUST(rpipe(control[0], 0, 1, 8, HD_PIPE));
	}
	for (int peers = 1; peers; peers = more_peers(peers, size_of_job))
		for (size_t w = 0; w < WIDTHS; w++)
			for (size_t heap = 64 << 10; heap <= HEAP; heap *= 4)
				random_with(peers, widths[w], heap, rounds);
	/* Ranks that have nothing to do any more stay until rank 0 is through. */
	for (int peer = 1; peer < size_of_job; peer++) {
		if (rank == 0)
			take(control[peer], 8, UINT64_MAX, 0);
		else if (rank == peer)
			give(control[0], 8, UINT64_MAX, 0);
	}
}

static raddr_t block(rpipe_t rp, size_t size)
{
	raddr_t a = rmalloc(rp, size);

	if (a == RADDR_NULL)
		fail("rmalloc");
	return a;
}

/* Blocks are given back and taken in random order. With `full` each has bytes of its own until then. */
static double trace(rpipe_t rp, long rounds, int full, double *fragmentation)
{
	raddr_t held[BLOCKS];
	size_t lengths[BLOCKS];
	rpipe_stats stats = { .size = sizeof(stats) };
	double begin = 0;

	for (long n = 0; n < rounds + BLOCKS; n++) {
		int at = n < BLOCKS ? (int)n : (int)(draw() % BLOCKS);

		if (n == BLOCKS)
			begin = now();
		if (n >= BLOCKS) {
			if (full)
				check_it("rmalloc", rmem(rp, held[at]), lengths[at], (uint64_t)at, 1);
			MUST(rfree(held[at]));
		}
		lengths[at] = 16 + draw() % (WIDEST_BLOCK - 15);
		held[at] = block(rp, lengths[at]);
		if (full)
			stamp_it(rmem(rp, held[at]), lengths[at], (uint64_t)at, 1);
	}
	begin = (now() - begin) / rounds * 1e6;
	MUST(rpipe_get_stats(rp, &stats));
	*fragmentation = stats.fragmentation;
	for (int at = 0; at < BLOCKS; at++)
		MUST(rfree(held[at]));
	return begin;
}

static void heaps(long rounds)
{
	static const struct { const char *name; unsigned flag; } policies[] = {
		{ "next-fit", RPIPE_NEXT_FIT }, { "first-fit", RPIPE_FIRST_FIT },
		{ "best-fit", RPIPE_BEST_FIT }, { "worst-fit", RPIPE_WORST_FIT },
	};

	for (size_t p = 0; p < 4 && rank < 2; p++) {
		rpipe_attr attr = { .size = sizeof(attr), .iswriter = rank == 0, .width = RPIPE_UNBOUNDED, .heap = HEAP,
				    .slots = 4 * BLOCKS };
		rpipe_t rp;
		double begin, took, part;

		attr.flags = HD_PIPE | policies[p].flag;
		MUST(rpipe_open_attr(&rp, !rank, &attr));
		if (rank) {
			take(rp, 8, p, 0);
			MUST(rpipe_close(rp));
			continue;
		}
		drawn = 1;
		trace(rp, 1000, 1, &part);
		begin = now();
		for (long n = 0; n < rounds; n++)
			MUST(rfree(block(rp, 64)));
		printf("heap-%s.same 0 %.5f\n", policies[p].name, (now() - begin) / rounds * 1e6);
		took = trace(rp, rounds, 0, &part);
		printf("heap-%s.random 0 %.5f\nfragmentation-%s 0 %.5f\n", policies[p].name, took, policies[p].name, part);
		give(rp, 8, p, 0);
		MUST(rpipe_close(rp));
	}
}

int main(int argc, char **argv)
{
	long rounds = argc > 2 ? atol(argv[2]) : 10000;

	/* What was measured before a failure counts. */
	setvbuf(stdout, NULL, _IOLBF, 0);
	MUST(rinit(&rank, NULL));
	MUST(size_of_job = rcount());
	out = aligned_alloc(4096, LONGEST);
	in = aligned_alloc(4096, LONGEST);
	memset(out, 0, LONGEST);
	memset(in, 0, LONGEST);
	if (argc > 1 && rounds > 0 && size_of_job % 2 == 0 && !strcmp(argv[1], "pairs"))
		pairs(rounds);
	else if (argc > 1 && rounds > 0 && size_of_job > 1 && !strcmp(argv[1], "random"))
		randoms(rounds);
	else if (argc > 1 && rounds > 0 && size_of_job > 1 && !strcmp(argv[1], "heap"))
		heaps(rounds);
	else {
		fprintf(stderr, "usage: strait run -n EVEN %s pairs|random|heap [ROUNDS]\n", argv[0]);
		return 2;
	}
	MUST(rfinalize());
	return 0;
}

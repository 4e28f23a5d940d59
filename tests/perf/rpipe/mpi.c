/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Latency of MPI between pairs of ranks, all pairs at once: one-sided by each synchronization, and two-sided.
 *
 *   mpi pairs|random [ROUNDS]
 *
 * pairs: a put has come when the target sees it: by the synchronization itself (fence, PSCW), or by a flag that is put once the
 * bytes are there (flush between), and which the target polls with MPI_Win_sync. One way is half of there and back. A get is
 * complete at its origin; nothing notifies it that there is something to get, and what it gets is the same each time. A pull is a message by a get:
 * the target stores new bytes into its window and notifies the origin, by the synchronization or a flag, which gets them; one way
 * is half of there and back.
 * random: rank 0 to random peers, each message with its flag, or by MPI_Send.
 *
 * Rank 0 prints "FORM BYTES MICROSECONDS", and for random "FORM.PEERS BYTES MICROSECONDS".
 */
#include <mpi.h>

#include "common.h"

static MPI_Comm pair;
static MPI_Win win;
static MPI_Group group;
static int me, peer;
static char *memory, *out, *in;

#define FLAG ((MPI_Aint)LONGEST)
#define MINE (LONGEST + 4096) /* what the peer pulls */

static void put(size_t size)
{
	MPI_Put(out, (int)size, MPI_BYTE, peer, 0, (int)size, MPI_BYTE, win);
}

static void put_flag(int to, const uint64_t *stamp)
{
	MPI_Put(stamp, 1, MPI_UINT64_T, to, FLAG, 1, MPI_UINT64_T, win);
}

/* A window's target may have to be in MPI for puts to end. */
static void poll_flag(uint64_t stamp)
{
	const volatile uint64_t *flag = (const volatile uint64_t *)(memory + FLAG);

	for (unsigned n = 1; *flag != stamp; n++) {
		int any;

		MPI_Win_sync(win);
		if (n % 64 == 0)
			MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, pair, &any, MPI_STATUS_IGNORE);
	}
	MPI_Win_sync(win);
}

static void fence(void) { MPI_Win_fence(0, win); }
static void fence_end(void) { MPI_Win_fence(MPI_MODE_NOSUCCEED, win); }
static void fence_send(size_t size, uint64_t stamp) { (void)stamp; put(size); fence(); }
static void fence_wait(size_t size, uint64_t stamp) { (void)size; (void)stamp; fence(); }

/* The next exposure is posted ahead. */
static void pscw(void) { MPI_Win_post(group, 0, win); }
static void pscw_end(void)
{
	MPI_Win_start(group, 0, win);
	MPI_Win_complete(win);
	MPI_Win_wait(win);
}
static void pscw_send(size_t size, uint64_t stamp)
{
	(void)stamp;
	MPI_Win_start(group, 0, win);
	put(size);
	MPI_Win_complete(win);
}
static void pscw_wait(size_t size, uint64_t stamp)
{
	(void)size;
	(void)stamp;
	MPI_Win_wait(win);
}

/* The own lock is for MPI_Win_sync. */
static void lock(void) { MPI_Win_lock(MPI_LOCK_SHARED, me, 0, win); }
static void lock_end(void) { MPI_Win_unlock(me, win); }
static void lock_send(size_t size, uint64_t stamp)
{
	MPI_Win_lock(MPI_LOCK_SHARED, peer, 0, win);
	put(size);
	MPI_Win_flush(peer, win);
	put_flag(peer, &stamp);
	MPI_Win_unlock(peer, win);
}
static void flag_wait(size_t size, uint64_t stamp) { (void)size; poll_flag(stamp); }

static void all(void) { MPI_Win_lock_all(0, win); }
static void all_end(void) { MPI_Win_unlock_all(win); }
static void all_send(size_t size, uint64_t stamp)
{
	put(size);
	MPI_Win_flush(peer, win);
	put_flag(peer, &stamp);
	MPI_Win_flush(peer, win);
}

static void nothing(void) { }
static void two_send(size_t size, uint64_t stamp)
{
	(void)stamp;
	MPI_Send(out, (int)size, MPI_BYTE, peer, 1, pair);
}
static void two_wait(size_t size, uint64_t stamp)
{
	(void)stamp;
	MPI_Recv(memory, (int)size, MPI_BYTE, peer, 1, pair, MPI_STATUS_IGNORE);
}

static void pull(size_t size)
{
	MPI_Get(memory, (int)size, MPI_BYTE, peer, MINE, (int)size, MPI_BYTE, win);
}
static void offer(size_t size)
{
	memcpy(memory + MINE, out, size);
	MPI_Win_sync(win);
}

static void fence_offer(size_t size, uint64_t stamp)
{
	(void)stamp;
	memcpy(memory + MINE, out, size);
	fence();
	fence();
}
static void fence_pull(size_t size, uint64_t stamp)
{
	(void)stamp;
	fence();
	pull(size);
	fence();
}
static void pscw_offer(size_t size, uint64_t stamp)
{
	(void)stamp;
	memcpy(memory + MINE, out, size);
	MPI_Win_post(group, 0, win);
	MPI_Win_wait(win);
}
static void pscw_pull(size_t size, uint64_t stamp)
{
	(void)stamp;
	MPI_Win_start(group, 0, win);
	pull(size);
	MPI_Win_complete(win);
}
static void lock_offer(size_t size, uint64_t stamp)
{
	offer(size);
	MPI_Win_lock(MPI_LOCK_SHARED, peer, 0, win);
	put_flag(peer, &stamp);
	MPI_Win_unlock(peer, win);
}
static void lock_pull(size_t size, uint64_t stamp)
{
	poll_flag(stamp);
	MPI_Win_lock(MPI_LOCK_SHARED, peer, 0, win);
	pull(size);
	MPI_Win_unlock(peer, win);
}
static void all_offer(size_t size, uint64_t stamp)
{
	offer(size);
	put_flag(peer, &stamp);
	MPI_Win_flush(peer, win);
}
static void all_pull(size_t size, uint64_t stamp)
{
	poll_flag(stamp);
	pull(size);
	MPI_Win_flush(peer, win);
}

static const struct {
	const char *name;
	void (*begin)(void), (*send)(size_t, uint64_t), (*wait)(size_t, uint64_t), (*again)(void), (*end)(void);
} forms[] = {
	{ "put-fence", fence, fence_send, fence_wait, nothing, fence_end },
	{ "put-pscw", pscw, pscw_send, pscw_wait, pscw, pscw_end },
	{ "put-lock", lock, lock_send, flag_wait, nothing, lock_end },
	{ "put-lockall", all, all_send, flag_wait, nothing, all_end },
	{ "pull-fence", fence, fence_offer, fence_pull, nothing, fence_end },
	{ "pull-pscw", nothing, pscw_offer, pscw_pull, nothing, nothing },
	{ "pull-lock", lock, lock_offer, lock_pull, nothing, lock_end },
	{ "pull-lockall", all, all_offer, all_pull, nothing, all_end },
	{ "send", nothing, two_send, two_wait, nothing, nothing },
};

static uint64_t stamps;

static double ping(size_t form, size_t size, long rounds, int full)
{
	double begin = now();

	for (long n = 0; n < 2 * rounds; n++) {
		uint64_t stamp = ++stamps;

		if (n % 2 == me) {
			stamp_it(out, size, stamp, full);
			forms[form].send(size, stamp);
		} else {
			forms[form].wait(size, stamp);
			check_it(forms[form].name, memory, size, stamp, full);
			forms[form].again();
		}
	}
	return (now() - begin) / rounds / 2 * 1e6;
}

static void get(size_t size)
{
	MPI_Get(in, (int)size, MPI_BYTE, peer, 0, (int)size, MPI_BYTE, win);
}

static double got(int form, size_t size, long rounds)
{
	double begin;

	memset(in, 0, size);
	stamp_it(memory, size, size, 1);
	if (form == 0)
		fence();
	if (form == 3)
		all();
	MPI_Barrier(pair);
	begin = now();
	for (long n = 0; n < rounds; n++) {
		if (form == 0) {
			if (me == 0)
				get(size);
			fence();
		} else if (form == 1 && me == 0) {
			MPI_Win_start(group, 0, win);
			get(size);
			MPI_Win_complete(win);
		} else if (form == 1) {
			MPI_Win_post(group, 0, win);
			MPI_Win_wait(win);
		} else if (form == 2 && me == 0) {
			MPI_Win_lock(MPI_LOCK_SHARED, peer, 0, win);
			get(size);
			MPI_Win_flush(peer, win);
			MPI_Win_unlock(peer, win);
		} else if (me == 0) {
			get(size);
			MPI_Win_flush(peer, win);
		}
	}
	begin = (now() - begin) / rounds * 1e6;
	if (form == 0)
		fence_end();
	if (form == 3)
		all_end();
	if (me == 0)
		check_it("get", in, size, size, 1);
	MPI_Barrier(pair);
	return begin;
}

static void pairs(int rank, long rounds)
{
	static const char *names[] = { "get-fence", "get-pscw", "get-lock", "get-lockall" };

	for (size_t form = 0; form < sizeof(forms) / sizeof(forms[0]); form++) {
		*(uint64_t *)(memory + FLAG) = 0;
		MPI_Barrier(MPI_COMM_WORLD);
		forms[form].begin();
		for (size_t size = LEAST; size <= LONGEST; size = size_after(size)) {
			ping(form, size, warm_of(size), 1);
			double took = ping(form, size, rounds_of(rounds, size), 0);

			if (rank == 0)
				printf("%s %zu %.4f\n", forms[form].name, size, took);
		}
		forms[form].end();
		MPI_Barrier(pair);
	}
	for (int form = 0; form < 4; form++) {
		MPI_Barrier(MPI_COMM_WORLD);
		for (size_t size = LEAST; size <= LONGEST; size = size_after(size)) {
			got(form, size, warm_of(size));
			double took = got(form, size, rounds_of(rounds, size));

			if (rank == 0)
				printf("%s %zu %.4f\n", names[form], size, took);
		}
	}
}

/* What comes last is what is checked of puts: those before are written over. */
static double random_of(int peers, size_t size, long rounds, int puts)
{
	uint64_t mine = 0, stamp = 0;
	double begin;

	drawn = size;
	MPI_Barrier(pair);
	begin = now();
	for (long n = 0; n < rounds; n++) {
		int to = 1 + draw() % peers;

		stamp = (uint64_t)n + 1;
		if (me == 0) {
			stamp_it(out, size, stamp, 0);
			peer = to;
			if (puts)
				all_send(size, stamp);
			else
				MPI_Send(out, (int)size, MPI_BYTE, to, 1, pair);
		} else if (to == me) {
			mine = stamp;
			if (!puts) {
				MPI_Recv(in, (int)size, MPI_BYTE, 0, 1, pair, MPI_STATUS_IGNORE);
				check_it("random send", in, size, stamp, 0);
			}
		}
	}
	if (puts && me && mine) {
		poll_flag(mine);
		check_it("random put", memory, size, mine, 0);
	}
	MPI_Barrier(pair);
	return (now() - begin) / rounds * 1e6;
}

static void randoms(int size, long rounds)
{
	all();
	for (int peers = 1; peers; peers = more_peers(peers, size)) {
		for (size_t w = 0; w < WIDTHS; w++) {
			for (int puts = 0; puts < 2; puts++) {
				double took;

				*(uint64_t *)(memory + FLAG) = 0;
				MPI_Win_sync(win);
				random_of(peers, widths[w], WARM, puts);
				*(uint64_t *)(memory + FLAG) = 0;
				MPI_Win_sync(win);
				took = random_of(peers, widths[w], rounds, puts);
				if (me == 0)
					printf("%s.%d %zu %.4f\n", puts ? "random-lockall" : "random-send", peers, widths[w], took);
			}
		}
	}
	all_end();
}

int main(int argc, char **argv)
{
	int rank, size, together;
	long rounds = argc > 2 ? atol(argv[2]) : 10000;
	MPI_Group every;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	together = argc > 1 && !strcmp(argv[1], "random");
	if (argc < 2 || rounds < 1 || size < 2 || (!together && (size % 2 || strcmp(argv[1], "pairs")))) {
		fprintf(stderr, "usage: mpirun -n EVEN %s pairs|random [ROUNDS]\n", argv[0]);
		return 2;
	}
	MPI_Comm_split(MPI_COMM_WORLD, together ? 0 : rank / 2, rank, &pair);
	MPI_Comm_rank(pair, &me);
	peer = !me;
	MPI_Comm_group(pair, &every);
	MPI_Group_incl(every, 1, &peer, &group);
	/* One after the other: Open MPI 4.1 takes the same name for the memory of windows that are made at once in different pairs. */
	for (int turn = 0; turn < (together ? 1 : size / 2); turn++) {
		if (together || turn == rank / 2)
			MPI_Win_allocate(MINE + LONGEST, 1, MPI_INFO_NULL, pair, &memory, &win);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	out = aligned_alloc(4096, LONGEST);
	in = aligned_alloc(4096, LONGEST);
	memset(out, 0, LONGEST);
	memset(in, 0, LONGEST);
	memset(memory, 0, MINE + LONGEST);
	if (together)
		randoms(size, rounds);
	else
		pairs(rank, rounds);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Group_free(&group);
	MPI_Group_free(&every);
	MPI_Win_free(&win);
	MPI_Comm_free(&pair);
	MPI_Finalize();
	return 0;
}

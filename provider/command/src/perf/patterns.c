/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Patterns of MPI programs, timed; `strait perf --mpi` compiles and starts it:  patterns SECONDS BYTES...
 * Prints a line for each pattern and size: its name, the bytes, and the microseconds of the slowest rank for one step.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks, left, right;
static char *out, *in;

static void pingpong(int n)
{
	int peer = 1 - rank;

	if (rank > 1)
		return;
	for (int side = 0; side < 2; side++) {
		if (rank == side)
			MPI_Send(out, n, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
		else
			MPI_Recv(in, n, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
}

static void window(int n)
{
	MPI_Request all[32];

	if (rank > 1)
		return;
	for (int i = 0; i < 32; i++)
		if (rank == 0)
			MPI_Isend(out, n, MPI_BYTE, 1, 2, MPI_COMM_WORLD, all + i);
		else
			MPI_Irecv(in, n, MPI_BYTE, 0, 2, MPI_COMM_WORLD, all + i);
	MPI_Waitall(32, all, MPI_STATUSES_IGNORE);
}

static void ring(int n)
{
	MPI_Sendrecv(out, n, MPI_BYTE, right, 3, in, n, MPI_BYTE, left, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void exchange(int n)
{
	MPI_Request all[4];

	MPI_Irecv(in, n, MPI_BYTE, left, 4, MPI_COMM_WORLD, all);
	MPI_Irecv(in + n, n, MPI_BYTE, right, 4, MPI_COMM_WORLD, all + 1);
	MPI_Isend(out, n, MPI_BYTE, left, 4, MPI_COMM_WORLD, all + 2);
	MPI_Isend(out, n, MPI_BYTE, right, 4, MPI_COMM_WORLD, all + 3);
	MPI_Waitall(4, all, MPI_STATUSES_IGNORE);
}

static void incast(int n)
{
	if (rank)
		MPI_Send(out, n, MPI_BYTE, 0, 5, MPI_COMM_WORLD);
	for (int i = 1; !rank && i < ranks; i++)
		MPI_Recv(in, n, MPI_BYTE, MPI_ANY_SOURCE, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void alltoall(int n) { MPI_Alltoall(out, n, MPI_BYTE, in, n, MPI_BYTE, MPI_COMM_WORLD); }
static void allgather(int n) { MPI_Allgather(out, n, MPI_BYTE, in, n, MPI_BYTE, MPI_COMM_WORLD); }
static void allreduce(int n) { MPI_Allreduce(out, in, n / 8, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD); }
static void bcast(int n) { MPI_Bcast(in, n, MPI_BYTE, 0, MPI_COMM_WORLD); }
static void gather(int n) { MPI_Gather(out, n, MPI_BYTE, in, n, MPI_BYTE, 0, MPI_COMM_WORLD); }
static void barrier(int n) { (void)n, MPI_Barrier(MPI_COMM_WORLD); }

static const struct {
	const char *name;
	void (*step)(int n);
	int sized;
} patterns[] = {
	{ "pingpong", pingpong, 1 }, { "window", window, 1 }, { "ring", ring, 1 }, { "exchange", exchange, 1 },
	{ "incast", incast, 1 }, { "alltoall", alltoall, 1 }, { "allgather", allgather, 1 }, { "allreduce", allreduce, 1 },
	{ "bcast", bcast, 1 }, { "gather", gather, 1 }, { "barrier", barrier, 0 },
};

/* Seconds of one step, of the slowest rank. */
static double timed(void (*step)(int), int n, long count)
{
	double mine, most;

	MPI_Barrier(MPI_COMM_WORLD);
	mine = MPI_Wtime();
	for (long i = 0; i < count; i++)
		step(n);
	mine = (MPI_Wtime() - mine) / (double)count;
	MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	return most;
}

static int order(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The median of five: a rank that was not running for a while does not count. */
static double median(void (*step)(int), int n, long count)
{
	double all[5];

	for (int i = 0; i < 5; i++)
		all[i] = timed(step, n, count);
	qsort(all, 5, sizeof *all, order);
	return all[2];
}

/* The left neighbour's bytes come by a ring, or the job ends. */
static void check(int n)
{
	memset(in, 0, (size_t)n);
	memset(out, rank % 100 + 1, (size_t)n);
	ring(n);
	for (int i = 0; i < n; i++)
		if (in[i] != left % 100 + 1) {
			fprintf(stderr, "patterns: rank %d: byte %d of %d is wrong\n", rank, i, n);
			MPI_Abort(MPI_COMM_WORLD, 3);
		}
}

int main(int argc, char **argv)
{
	double budget;
	size_t room = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	left = (rank + ranks - 1) % ranks;
	right = (rank + 1) % ranks;
	if (argc < 3 || ranks < 2) {
		if (!rank)
			fprintf(stderr, "patterns: %s\n", ranks < 2 ? "the launcher starts one rank; two are needed: -n 2" : "SECONDS BYTES...");
		MPI_Finalize();
		return 2;
	}
	budget = atof(argv[1]);
	for (int i = 2; i < argc; i++)
		if (room < strtoul(argv[i], NULL, 10))
			room = strtoul(argv[i], NULL, 10);
	room = (room + 8) * ((size_t)ranks + 1);
	in = calloc(1, room);
	out = calloc(1, room);
	if (!in || !out) {
		fprintf(stderr, "patterns: no memory for %zu bytes twice; choose smaller --sizes\n", room);
		MPI_Abort(MPI_COMM_WORLD, 4);
	}
	for (unsigned p = 0; p < sizeof patterns / sizeof *patterns; p++)
		for (int i = 2; i < argc && (i == 2 || patterns[p].sized); i++) {
			int n = (int)strtoul(argv[i], NULL, 10);
			long count = 4;
			double step;

			check(n);
			timed(patterns[p].step, n, 2);
			step = timed(patterns[p].step, n, count);
			if (step > 0 && budget / step / 8 > 4)
				step = timed(patterns[p].step, n, (long)(budget / step / 8));
			if (step > 0)
				count = (long)(budget / step / 5);
			count = count < 4 ? 4 : count > 100000 ? 100000 : count;
			step = median(patterns[p].step, n, count);
			if (!rank)
				printf("%s %d %.4f\n", patterns[p].name, patterns[p].sized ? n : 0, step * 1e6), fflush(stdout);
		}
	MPI_Finalize();
	return 0;
}

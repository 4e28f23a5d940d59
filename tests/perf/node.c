/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What MPI programs do inside a host, timed (ci/perf-guard).
 *
 *   node [PATTERNS [SECONDS]]     words of names, default all; what each figure takes, default 0.005
 *
 * A line for each figure: pattern, ranks, bytes, microseconds (of the streams for each message). The contents of one
 * message of each pattern and size are checked first.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST (1 << 20)
#define TAG_STORM 100

static int rank, ranks;
static char *out, *in;
static MPI_Comm world;

static int right(void) { return (rank + 1) % ranks; }
static int left(void) { return (rank + ranks - 1) % ranks; }

static void pingpong(int n)
{
	if (rank == 0) {
		MPI_Send(out, n, MPI_BYTE, 1, 1, world);
		MPI_Recv(in, n, MPI_BYTE, 1, 1, world, MPI_STATUS_IGNORE);
	} else if (rank == 1) {
		MPI_Recv(in, n, MPI_BYTE, 0, 1, world, MPI_STATUS_IGNORE);
		MPI_Send(out, n, MPI_BYTE, 0, 1, world);
	}
}

static void stream(int n)
{
	if (rank == 1)
		MPI_Send(out, n, MPI_BYTE, 0, 2, world);
	else if (rank == 0)
		MPI_Recv(in, n, MPI_BYTE, 1, 2, world, MPI_STATUS_IGNORE);
}

static void ring(int n)
{
	MPI_Sendrecv(out, n, MPI_BYTE, right(), 3, in, n, MPI_BYTE, left(), 3, world, MPI_STATUS_IGNORE);
}

static void exchange(int n)
{
	MPI_Request all[4];

	MPI_Irecv(in, n, MPI_BYTE, left(), 4, world, &all[0]);
	MPI_Irecv(in + n, n, MPI_BYTE, right(), 4, world, &all[1]);
	MPI_Isend(out, n, MPI_BYTE, right(), 4, world, &all[2]);
	MPI_Isend(out, n, MPI_BYTE, left(), 4, world, &all[3]);
	MPI_Waitall(4, all, MPI_STATUSES_IGNORE);
}

static void incast(int n)
{
	if (rank) {
		MPI_Send(out, n, MPI_BYTE, 0, 5, world);
		return;
	}
	for (int i = 1; i < ranks; i++)
		MPI_Recv(in, n, MPI_BYTE, MPI_ANY_SOURCE, 5, world, MPI_STATUS_IGNORE);
}

/* From each to each, received from any source. A tag of each round: a message of the next one that is taken in this one could
 * leave two ranks that wait for each other. */
static void storm(int n)
{
	static int round;
	MPI_Request all[128];
	int sent = 0, tag = TAG_STORM + round++ % 30000;

	for (int i = 1; i < ranks && sent < 128; i++)
		MPI_Isend(out, n, MPI_BYTE, (rank + i) % ranks, tag, world, &all[sent++]);
	for (int i = 1; i < ranks; i++)
		MPI_Recv(in, n, MPI_BYTE, MPI_ANY_SOURCE, tag, world, MPI_STATUS_IGNORE);
	MPI_Waitall(sent, all, MPI_STATUSES_IGNORE);
}

static void alltoall(int n) { MPI_Alltoall(out, n, MPI_BYTE, in, n, MPI_BYTE, world); }
static void allgather(int n) { MPI_Allgather(out, n, MPI_BYTE, in, n, MPI_BYTE, world); }
static void allreduce(int n) { MPI_Allreduce(out, in, n, MPI_BYTE, MPI_BOR, world); }
static void bcast(int n) { MPI_Bcast(out, n, MPI_BYTE, 0, world); }
static void gather(int n) { MPI_Gather(out, n, MPI_BYTE, in, n, MPI_BYTE, 0, world); }

static void barrier(int n)
{
	(void)n;
	MPI_Barrier(world);
}

static const struct {
	const char *name;
	void (*run)(int);
	int one_size, messages;
} PATTERNS[] = {
	{"pingpong", pingpong, 0, 2}, {"stream", stream, 0, 1},       {"ring", ring, 0, 1},
	{"exchange", exchange, 0, 1}, {"incast", incast, 0, 1},       {"storm", storm, 0, 1},
	{"alltoall", alltoall, 0, 1}, {"allgather", allgather, 0, 1}, {"allreduce", allreduce, 0, 1},
	{"bcast", bcast, 0, 1},       {"gather", gather, 0, 1},       {"barrier", barrier, 1, 1},
};

/* Whether `names` has this one as a word. */
static int asked(const char *names, const char *name)
{
	size_t len = strlen(name);

	for (const char *at = names; (at = strstr(at, name)); at += len)
		if ((at == names || at[-1] == ' ') && (at[len] == ' ' || !at[len]))
			return 1;
	return !*names;
}

/* Seconds of so many, as the slowest rank has them. */
static double timed(void (*run)(int), int n, long count)
{
	double each, most;

	MPI_Barrier(world);
	double begin = MPI_Wtime();
	for (long i = 0; i < count; i++)
		run(n);
	each = MPI_Wtime() - begin;
	MPI_Allreduce(&each, &most, 1, MPI_DOUBLE, MPI_MAX, world);
	return most;
}

/* What comes from the left in a ring of n bytes is the left one's. A broadcast has written to what is sent. */
static void check(int n)
{
	for (int i = 0; i < n; i++) {
		out[i] = (char)(rank * 31 + i * 7);
		in[i] = 0;
	}
	ring(n);
	for (int i = 0; i < n; i++)
		if (in[i] != (char)(left() * 31 + i * 7)) {
			fprintf(stderr, "node: byte %d of %d is wrong\n", i, n);
			MPI_Abort(world, 1);
		}
}

int main(int argc, char **argv)
{
	static const int sizes[] = {8, 64, 512, 4096, 16384, 65536, 262144, MOST};
	const char *names = argc > 1 ? argv[1] : "";
	double budget = argc > 2 ? atof(argv[2]) : 0.005;

	MPI_Init(&argc, &argv);
	MPI_Comm_dup(MPI_COMM_WORLD, &world);
	MPI_Comm_rank(world, &rank);
	MPI_Comm_size(world, &ranks);
	out = malloc((size_t)ranks * MOST);
	in = calloc((size_t)ranks + 2, MOST);
	if (!out || !in || ranks < 2)
		MPI_Abort(world, 2);
	memset(out, rank, (size_t)ranks * MOST);
	for (size_t p = 0; p < sizeof PATTERNS / sizeof *PATTERNS; p++) {
		if (!asked(names, PATTERNS[p].name))
			continue;
		for (size_t s = 0; s < sizeof sizes / sizeof *sizes && !(PATTERNS[p].one_size && s); s++) {
			int n = sizes[s];
			long count = 4;
			double took;

			check(n);
			timed(PATTERNS[p].run, n, count);
			while ((took = timed(PATTERNS[p].run, n, count)) < budget && count < 200000)
				count *= took < budget / 8 ? 8 : 2;
			if (!rank)
				printf("%s %d %d %.4f\n", PATTERNS[p].name, ranks, n,
				       took * 1e6 / (double)count / PATTERNS[p].messages);
		}
	}
	MPI_Finalize();
	return 0;
}

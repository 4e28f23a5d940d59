/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Two ranks of an MPI with TCP between them.
 *
 *   hosts-mpi PATTERN BYTES [PATTERN BYTES...]
 *
 * PATTERN is ping (one way) or stream (messages one way, 16 under way). Prints a line "PATTERN BYTES FIGURE CPU" for each, as
 * hosts.c does: microseconds one way, or MB/s; seconds of the processors, user's and kernel's, of both ranks for a message, or
 * a GB. Each takes about $SECONDS_EACH (0.2).
 */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { DEEP = 16, TAG = 5 };

static int me;
static char *out, *in;

static double processor(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void ping(int size, long rounds)
{
	for (long n = 0; n < rounds; n++) {
		if (me) {
			MPI_Recv(in, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(out, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
		} else {
			MPI_Send(out, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
			MPI_Recv(in, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		}
	}
}

static void stream(int size, long rounds)
{
	MPI_Request all[DEEP];

	for (long n = 0; n < rounds; n++) {
		int at = (int)(n % DEEP);

		if (n >= DEEP)
			MPI_Wait(&all[at], MPI_STATUS_IGNORE);
		if (me)
			MPI_Irecv(in, size, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, &all[at]);
		else
			MPI_Isend(out, size, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, &all[at]);
	}
	MPI_Waitall((int)(rounds < DEEP ? rounds : DEEP), all, MPI_STATUSES_IGNORE);
}

static double go(int is_ping, int size, long rounds, double *used)
{
	double begin, mine;

	MPI_Barrier(MPI_COMM_WORLD);
	mine = processor();
	begin = MPI_Wtime();
	(is_ping ? ping : stream)(size, rounds);
	MPI_Barrier(MPI_COMM_WORLD);
	begin = MPI_Wtime() - begin;
	mine = processor() - mine;
	MPI_Allreduce(&mine, used, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	MPI_Bcast(&begin, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
	return begin;
}

int main(int argc, char **argv)
{
	double seconds = getenv("SECONDS_EACH") ? atof(getenv("SECONDS_EACH")) : 0.2;
	int size, ranks;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	if (argc < 3 || ranks != 2) {
		fprintf(stderr, "usage: two ranks of %s ping|stream BYTES...\n", argv[0]);
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	for (int i = 1; i + 1 < argc; i += 2) {
		int is_ping = !strcmp(argv[i], "ping");
		long rounds = 2 * DEEP;
		double took, used;

		size = atoi(argv[i + 1]);
		out = malloc(size + 1);
		in = malloc(size + 1);
		memset(out, 1, size);
		memset(in, 0, size);
		/* As many as fill the time, by a run that warms up as well. */
		go(is_ping, size, rounds, &used);
		took = go(is_ping, size, rounds, &used);
		rounds = (long)(rounds * seconds / took) + 1;
		took = go(is_ping, size, rounds, &used);
		if (size && (me || is_ping) && (in[0] != 1 || in[size - 1] != 1)) {
			fprintf(stderr, "what came is not what was sent\n");
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
		if (!me && is_ping)
			printf("ping %d %.4g %.4g\n", size, took / rounds / 2 * 1e6, used / rounds / 2 * 1e6);
		else if (!me)
			printf("stream %d %.4g %.4g\n", size, rounds / 1e6 * size / took, used * 1e9 / rounds / size);
		free(out);
		free(in);
	}
	MPI_Finalize();
	return 0;
}

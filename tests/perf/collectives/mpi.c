/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What fi.c does, by an MPI: MPI_Barrier, MPI_Bcast, MPI_Allreduce, MPI_Allgather by size.
 *
 *   mpirun -n MEMBERS mpi SECONDS
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STRETCHES = 5, LONGEST = 65536, OPERATIONS = 4 };

static const char *const names[OPERATIONS] = {"barrier", "broadcast", "allreduce", "allgather"};
static const int sizes[] = {8, 64, 512, 4096, 16384, 65536};
static int members, rank;
static char *in, *out;

static void once(int op, int bytes, int root)
{
	int n = bytes / (int)sizeof(double);

	switch (op) {
	case 0:
		MPI_Barrier(MPI_COMM_WORLD);
		break;
	case 1:
		MPI_Bcast(out, n, MPI_DOUBLE, root, MPI_COMM_WORLD);
		break;
	case 2:
		MPI_Allreduce(in, out, n, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		break;
	default:
		MPI_Allgather(in, n, MPI_DOUBLE, out, n, MPI_DOUBLE, MPI_COMM_WORLD);
	}
}

/* The seconds of the slowest member. */
static double stretch(int op, int bytes, long rounds)
{
	double start, own, slowest;

	MPI_Barrier(MPI_COMM_WORLD);
	start = MPI_Wtime();
	for (long i = 0; i < rounds; i++)
		once(op, bytes, (int)(i % members));
	own = MPI_Wtime() - start;
	MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	return slowest;
}

static void measure(int op, int bytes, double seconds)
{
	double all[STRETCHES];
	long rounds = (long)(seconds / STRETCHES / (stretch(op, bytes, 20) / 20));

	rounds = rounds < 5 ? 5 : rounds > 100000 ? 100000 : rounds;
	for (int i = 0; i < STRETCHES; i++)
		all[i] = stretch(op, bytes, rounds);
	for (int i = 0; i < STRETCHES; i++)
		for (int k = i + 1; k < STRETCHES; k++)
			if (all[k] < all[i]) {
				double swap = all[i];

				all[i] = all[k];
				all[k] = swap;
			}
	if (!rank)
		printf("%s %d %.3f\n", names[op], op ? bytes : 0, all[STRETCHES / 2] / rounds * 1e6);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 0.2;

	MPI_Init(&argc, &argv);
	MPI_Comm_size(MPI_COMM_WORLD, &members);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	in = malloc(LONGEST);
	out = malloc((size_t)LONGEST * members);
	memset(in, 0, LONGEST);
	memset(out, 0, (size_t)LONGEST * members);
	for (int op = 0; op < OPERATIONS; op++)
		for (size_t i = 0; i < (op ? sizeof sizes / sizeof *sizes : 1); i++)
			measure(op, sizes[i], seconds);
	MPI_Finalize();
	return 0;
}

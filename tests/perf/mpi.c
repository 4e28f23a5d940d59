/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * MPI_Send of host memory from a process to itself, and MPI_Recv, for counting what libstrait_mpi.so.0 adds to them.
 *
 *   mpi ROUNDS [BYTES]
 *
 * Prints nothing. Under valgrind --tool=callgrind --toggle-collect=measured the instructions of ROUNDS are counted, after a
 * tenth as many that are not (ci/check/instructions).
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int code, const char *what)
{
	if (code != MPI_SUCCESS) {
		fprintf(stderr, "%s: %d\n", what, code);
		exit(1);
	}
}

static void once(char *from, char *to, int bytes)
{
	check(MPI_Send(from, bytes, MPI_BYTE, 0, 1, MPI_COMM_SELF), "MPI_Send");
	check(MPI_Recv(to, bytes, MPI_BYTE, 0, 1, MPI_COMM_SELF, MPI_STATUS_IGNORE), "MPI_Recv");
}

__attribute__((noinline)) void measured(long rounds, char *from, char *to, int bytes)
{
	while (rounds--)
		once(from, to, bytes);
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : 1000;
	int bytes = argc > 2 ? atoi(argv[2]) : 8;
	/* Under valgrind the heap and the stack are not where the kernel has them. */
	static char from[4096], to[4096];

	if (bytes < 0 || bytes > (int)sizeof from)
		return 2;
	MPI_Init(&argc, &argv);
	for (long i = 0; i < rounds / 10 + 1; i++)
		once(from, to, bytes);
	measured(rounds, from, to, bytes);
	MPI_Finalize();
	return 0;
}

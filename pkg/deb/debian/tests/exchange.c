/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two ranks: messages of each power of two up to 4 MiB both ways, and a sum, with their contents checked. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int rank, size, sum, bad = 0, most = 4 << 20;
	unsigned char *out, *in;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	out = malloc(most);
	in = malloc(most);
	if (size != 2 || !out || !in) {
		fprintf(stderr, "exchange: wants two ranks and memory\n");
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	for (int n = 1; n <= most; n *= 2) {
		for (int i = 0; i < n; i++) {
			out[i] = (unsigned char)(i * 7 + n + rank);
			in[i] = 0;
		}
		MPI_Sendrecv(out, n, MPI_BYTE, 1 - rank, n, in, n, MPI_BYTE, 1 - rank, n, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < n; i++)
			bad += in[i] != (unsigned char)(i * 7 + n + 1 - rank);
	}
	MPI_Allreduce(&bad, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	if (rank == 0)
		printf("exchange: %s (%d wrong bytes)\n", sum ? "FAILED" : "ok", sum);
	free(in);
	free(out);
	MPI_Finalize();
	return sum != 0;
}

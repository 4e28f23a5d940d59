/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Two ranks send a message back and forth, in both directions with its contents checked, and time
 * it without the check.  Prints one line for each size:
 *
 *     pingpong BYTES HALF_ROUND_TRIP_US
 *
 * the median over several batches.  Exits 1 if a byte is wrong.
 *
 *     pingpong [BYTES...]                  default: 8 65536 1048576
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCHES 21

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void swap(int rank, unsigned char *out, unsigned char *in, int n)
{
    if (rank == 0) {
        MPI_Send(out, n, MPI_BYTE, 1, 7, MPI_COMM_WORLD);
        MPI_Recv(in, n, MPI_BYTE, 1, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(in, n, MPI_BYTE, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(out, n, MPI_BYTE, 0, 7, MPI_COMM_WORLD);
    }
}

/* Other bytes for each sender, size and place. */
static unsigned char expected(int sender, int n, int at)
{
    return (unsigned char)(31 * sender + 7 * n + at + at / 251 + 1);
}

int main(int argc, char **argv)
{
    static const int usual[] = { 8, 65536, 1048576 };
    int rank, ranks, i, k, b, wrong = 0, all = 0;
    int sizes = argc > 1 ? argc - 1 : 3;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2) {
        if (rank == 0)
            fprintf(stderr, "pingpong: needs 2 ranks, not %d\n", ranks);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    for (k = 0; k < sizes; k++) {
        int n = argc > 1 ? atoi(argv[k + 1]) : usual[k];
        int turns = n < 4096 ? 2000 : n < 262144 ? 200 : 20;
        unsigned char *out, *in;
        double took[BATCHES];

        if (n < 0)
            n = 0;
        out = malloc(n + 1);
        in = malloc(n + 1);
        if (!out || !in)
            MPI_Abort(MPI_COMM_WORLD, 2);
        for (i = 0; i < n; i++)
            out[i] = expected(rank, n, i);
        memset(in, 0, n);
        swap(rank, out, in, n);
        for (i = 0; i < n; i++)
            wrong += in[i] != expected(1 - rank, n, i);
        for (i = 0; i < turns; i++)
            swap(rank, out, in, n);
        for (b = 0; b < BATCHES; b++) {
            double start;

            MPI_Barrier(MPI_COMM_WORLD);
            start = MPI_Wtime();
            for (i = 0; i < turns; i++)
                swap(rank, out, in, n);
            took[b] = (MPI_Wtime() - start) * 1e6 / turns / 2;
        }
        for (i = 0; i < n; i++)
            wrong += in[i] != expected(1 - rank, n, i);
        qsort(took, BATCHES, sizeof *took, by_value);
        if (rank == 0)
            printf("pingpong %d %.3f\n", n, took[BATCHES / 2]);
        free(out);
        free(in);
    }
    MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("pingpong %s\n", all ? "WRONG BYTES" : "bytes ok");
        fflush(stdout);
    }
    MPI_Finalize();
    return all != 0;
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Time of MPI calls with device memory, by libstrait_mpi.so.0, next to what a program does without it: a copy to page-locked host
 * memory, the call there, and a copy back. In turns, each the median of several rounds; one line for each size:
 *
 *   allreduce 1048576 bytes: 312.4 us, staged by the program 340.1 us, ratio 0.92
 *
 * allreduce and bcast of floats in MPI_COMM_WORLD, reduce_local, and halo: a face of a cube of N^3 doubles, a column of single
 * elements and a plane of rows, to the next rank (with one rank to itself), as MPI_Type_vector; by the program as it would without
 * a kernel that packs: the whole extent of the face.
 *
 *   mpi [MOST [N]]      the most bytes of the collectives, 67108864; the cube's edge, 256
 */
#include <mpi.h>
#include "driver.h"

enum { MOST_ROUNDS = 21 };

static int me, ranks;
static char *device[2], *host[2];

static void to_host(int n, size_t len) { CU(cuMemcpyDtoH_v2, (void *, uint64_t, size_t), host[n], (uint64_t)device[n], len); }
static void to_device(int n, size_t len) { CU(cuMemcpyHtoD_v2, (uint64_t, const void *, size_t), (uint64_t)device[n], host[n], len); }

static void check(int code, const char *what)
{
	if (code == MPI_SUCCESS)
		return;
	fprintf(stderr, "rank %d: %s: error %d\n", me, what, code);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

#define OK(call) check(call, #call)

static void allreduce(size_t len, int staged)
{
	char **at = staged ? host : device;

	if (staged)
		to_host(0, len);
	OK(MPI_Allreduce(at[0], at[1], (int)(len / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
	if (staged)
		to_device(1, len);
}

static void bcast(size_t len, int staged)
{
	if (staged && !me)
		to_host(0, len);
	OK(MPI_Bcast(staged ? host[0] : device[0], (int)(len / 4), MPI_FLOAT, 0, MPI_COMM_WORLD));
	if (staged && me)
		to_device(0, len);
}

static void reduce_local(size_t len, int staged)
{
	char **at = staged ? host : device;

	if (staged)
		to_host(0, len), to_host(1, len);
	OK(MPI_Reduce_local(at[0], at[1], (int)(len / 4), MPI_FLOAT, MPI_SUM));
	if (staged)
		to_device(1, len);
}

static MPI_Datatype face;
static size_t extent;

static void halo(size_t len, int staged)
{
	char **at = staged ? host : device;
	int next = (me + 1) % ranks, last = (me + ranks - 1) % ranks;

	(void)len;
	if (staged)
		to_host(0, extent), to_host(1, extent);
	OK(MPI_Sendrecv(at[0], 1, face, next, 1, at[1], 1, face, last, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
	if (staged)
		to_device(1, extent);
}

static int by_size(const void *a, const void *b)
{
	double d = *(const double *)a - *(const double *)b;

	return (d > 0) - (d < 0);
}

static void measure(const char *name, void (*call)(size_t, int), size_t len)
{
	double took[2][MOST_ROUNDS], all[2];
	int rounds = len > (8 << 20) ? 7 : MOST_ROUNDS;

	for (int n = -3; n < rounds; n++)
		for (int staged = 0; staged < 2; staged++) {
			double begin, one;

			MPI_Barrier(MPI_COMM_WORLD);
			begin = MPI_Wtime();
			call(len, staged);
			one = MPI_Wtime() - begin;
			if (n >= 0)
				took[staged][n] = one;
		}
	for (int staged = 0; staged < 2; staged++) {
		qsort(took[staged], (size_t)rounds, sizeof(double), by_size);
		MPI_Allreduce(&took[staged][rounds / 2], &all[staged], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	}
	if (!me)
		printf("%s %zu bytes: %.1f us, staged by the program %.1f us, ratio %.2f\n", name, len, 1e6 * all[0], 1e6 * all[1],
		       all[0] / all[1]);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int n = argc > 2 ? atoi(argv[2]) : 256;
	size_t most = argc > 1 ? strtoull(argv[1], NULL, 0) : 64 << 20, room = 8ull * n * n * n;

	room = most > room ? most : room;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	cuda_begin(me);
	for (int i = 0; i < 2; i++) {
		CU(cuMemAlloc_v2, (void **, size_t), (void **)&device[i], room);
		CU(cuMemHostAlloc, (void **, size_t, unsigned), (void **)&host[i], room, 0);
		memset(host[i], 0, room);
		to_device(i, room);
	}
	for (size_t len = 8; len <= most; len *= 8) {
		measure("allreduce", allreduce, len);
		measure("bcast", bcast, len);
		measure("reduce_local", reduce_local, len);
	}
	/* A column of single elements, a plane of rows, and a plane that is one block. */
	int counts[] = { n * n, n, 1 }, lengths[] = { 1, n, n * n }, strides[] = { n, n * n, 1 };
	const char *names[] = { "halo of elements", "halo of rows", "halo of a block" };

	for (int i = 0; i < 3; i++) {
		MPI_Type_vector(counts[i], lengths[i], strides[i], MPI_DOUBLE, &face);
		MPI_Type_commit(&face);
		extent = 8 * ((size_t)(counts[i] - 1) * strides[i] + lengths[i]);
		measure(names[i], halo, 8ull * n * n);
		MPI_Type_free(&face);
	}
	MPI_Finalize();
	return 0;
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Time of MPI calls with device memory, by libstrait_mpi.so.0, next to what a program does without it: a copy to page-locked host
 * memory, the call there, and a copy back. In turns, each the median of several rounds; one line for each size:
 *
 *   allreduce 1048576 bytes: 312.4 us, staged by the program 340.1 us, ratio 0.92
 *
 * allreduce and bcast of floats in MPI_COMM_WORLD, reduce_local, and halo: a face of a cube of N^3 doubles to the next rank (with one
 * rank to itself), as MPI_Type_vector (a column of single elements, a plane of rows, a block) and as MPI_Type_create_subarray
 * (a face of each axis); by the program as it would without a kernel that packs: the whole extent of the face. Halos are next to a
 * strided copy of the driver's, too: the face to other device memory by cuMemcpy3D, that in MPI_Sendrecv, and back.
 *
 *   mpi [MOST [N [WHAT]]]   the most bytes of the collectives, 268435456; the cube's edge, 256; allreduce, reduce, moves, halos or all
 *
 * The results of allreduce are looked at; reduce is MPI_Reduce, MPI_Reduce_scatter_block and MPI_Scan; moves are MPI_Bcast, MPI_Gather,
 * MPI_Scatter, MPI_Allgather and MPI_Alltoall, of so many bytes in all.
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

static void reduce(size_t len, int staged)
{
	char **at = staged ? host : device;

	if (staged)
		to_host(0, len);
	OK(MPI_Reduce(at[0], at[1], (int)(len / 4), MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD));
	if (staged && !me)
		to_device(1, len);
}

static void reduce_scatter(size_t len, int staged)
{
	char **at = staged ? host : device;

	if (staged)
		to_host(0, len);
	OK(MPI_Reduce_scatter_block(at[0], at[1], (int)(len / 4) / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
	if (staged)
		to_device(1, len / (size_t)ranks);
}

static void scan(size_t len, int staged)
{
	char **at = staged ? host : device;

	if (staged)
		to_host(0, len);
	OK(MPI_Scan(at[0], at[1], (int)(len / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
	if (staged)
		to_device(1, len);
}

/* What each rank contributes to allreduce; and that the sum is that of all. */
static void fill(size_t len)
{
	float *to = (float *)host[0];

	for (size_t i = 0; i < len / 4; i++)
		to[i] = (float)(i % 7 + (size_t)me);
	to_device(0, len);
	memset(host[1], 255, len);
	to_device(1, len);
}

static void look(size_t len)
{
	const float *got = (const float *)host[1];

	to_host(1, len);
	for (size_t i = 0; i < len / 4; i++)
		if (got[i] != (float)(i % 7 * (size_t)ranks + (size_t)(ranks * (ranks - 1) / 2))) {
			fprintf(stderr, "rank %d: allreduce of %zu bytes: element %zu is %g\n", me, len, i, (double)got[i]);
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
}

static void bcast(size_t len, int staged)
{
	if (staged && !me)
		to_host(0, len);
	OK(MPI_Bcast(staged ? host[0] : device[0], (int)(len / 4), MPI_FLOAT, 0, MPI_COMM_WORLD));
	if (staged && me)
		to_device(0, len);
}

/* Of len bytes in all: each rank's block is that by the number of ranks. */
static void gather(size_t len, int staged)
{
	char **at = staged ? host : device;
	int block = (int)(len / (size_t)ranks);

	if (staged)
		to_host(0, (size_t)block);
	OK(MPI_Gather(at[0], block, MPI_BYTE, at[1], block, MPI_BYTE, 0, MPI_COMM_WORLD));
	if (staged && !me)
		to_device(1, len);
}

static void scatter(size_t len, int staged)
{
	char **at = staged ? host : device;
	int block = (int)(len / (size_t)ranks);

	if (staged && !me)
		to_host(0, len);
	OK(MPI_Scatter(at[0], block, MPI_BYTE, at[1], block, MPI_BYTE, 0, MPI_COMM_WORLD));
	if (staged)
		to_device(1, (size_t)block);
}

static void allgather(size_t len, int staged)
{
	char **at = staged ? host : device;
	int block = (int)(len / (size_t)ranks);

	if (staged)
		to_host(0, (size_t)block);
	OK(MPI_Allgather(at[0], block, MPI_BYTE, at[1], block, MPI_BYTE, MPI_COMM_WORLD));
	if (staged)
		to_device(1, len);
}

static void alltoall(size_t len, int staged)
{
	char **at = staged ? host : device;
	int block = (int)(len / (size_t)ranks);

	if (staged)
		to_host(0, len);
	OK(MPI_Alltoall(at[0], block, MPI_BYTE, at[1], block, MPI_BYTE, MPI_COMM_WORLD));
	if (staged)
		to_device(1, len);
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

/* CUDA_MEMCPY3D */
struct place {
	size_t x, y, z, lod;
	unsigned type;
	const void *host;
	uint64_t device;
	void *array, *reserved;
	size_t pitch, height;
};
struct copy {
	struct place src, dst;
	size_t width, height, depth;
};

static MPI_Datatype face;
static size_t extent;
static char *packed[2];
static struct copy strided;

static void halo(size_t len, int how)
{
	char **at = how == 1 ? host : device;
	int next = (me + 1) % ranks, last = (me + ranks - 1) % ranks, staged = how == 1;
	struct copy back = strided;

	if (how == 2) {
		/* CU_MEMORYTYPE_DEVICE */
		strided.src.device = (uint64_t)device[0], strided.dst.device = (uint64_t)packed[0];
		CU(cuMemcpy3D_v2, (const struct copy *), &strided);
		CU(cuCtxSynchronize, (void));
		OK(MPI_Sendrecv(packed[0], (int)(len / 8), MPI_DOUBLE, next, 1, packed[1], (int)(len / 8), MPI_DOUBLE, last, 1,
				MPI_COMM_WORLD, MPI_STATUS_IGNORE));
		back.src = strided.dst, back.dst = strided.src;
		back.src.device = (uint64_t)packed[1], back.dst.device = (uint64_t)device[1];
		CU(cuMemcpy3D_v2, (const struct copy *), &back);
		CU(cuCtxSynchronize, (void));
		return;
	}
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

static void measure(const char *name, void (*call)(size_t, int), size_t len, int ways)
{
	double took[3][MOST_ROUNDS], all[3];
	int rounds = len > (8 << 20) ? 7 : MOST_ROUNDS;

	for (int n = -3; n < rounds; n++)
		for (int how = 0; how < ways; how++) {
			double begin, one;

			MPI_Barrier(MPI_COMM_WORLD);
			begin = MPI_Wtime();
			call(len, how);
			one = MPI_Wtime() - begin;
			if (n >= 0)
				took[how][n] = one;
		}
	for (int how = 0; how < ways; how++) {
		qsort(took[how], (size_t)rounds, sizeof(double), by_size);
		MPI_Allreduce(&took[how][rounds / 2], &all[how], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
	}
	if (!me)
		printf("%s %zu bytes: %.1f us, staged by the program %.1f us, ratio %.2f", name, len, 1e6 * all[0], 1e6 * all[1],
		       all[0] / all[1]);
	if (!me && ways > 2)
		printf(", strided copy plus MPI_Sendrecv %.1f us, ratio %.2f", 1e6 * all[2], all[0] / all[2]);
	if (!me)
		puts("");
	fflush(stdout);
}

/* `depth` planes of `height` rows of `width` bytes, from the offset `at` on. */
static void halos(const char *name, size_t at, size_t width, size_t height, size_t depth, size_t pitch, size_t rows)
{
	MPI_Type_commit(&face);
	strided = (struct copy){ .src = { .type = 2, .pitch = pitch, .height = rows, .x = at % pitch, .y = at / pitch % rows, .z = at / pitch / rows },
				 .dst = { .type = 2, .pitch = width, .height = height },
				 .width = width, .height = height, .depth = depth };
	extent = at + (depth - 1) * pitch * rows + (height - 1) * pitch + width;
	measure(name, halo, width * height * depth, 3);
	MPI_Type_free(&face);
}

int main(int argc, char **argv)
{
	int n = argc > 2 ? atoi(argv[2]) : 256;
	size_t most = argc > 1 ? strtoull(argv[1], NULL, 0) : 256 << 20, row = 8ull * n, plane = row * n, room = plane * n;

	const char *what = argc > 3 ? argv[3] : "all";
	int all = !strcmp(what, "all");

	room = most > room ? most : room;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	cuda_begin(me);
	for (int i = 0; i < 2; i++) {
		CU(cuMemAlloc_v2, (void **, size_t), (void **)&device[i], room);
		CU(cuMemAlloc_v2, (void **, size_t), (void **)&packed[i], plane);
		CU(cuMemHostAlloc, (void **, size_t, unsigned), (void **)&host[i], room, 0);
		memset(host[i], 0, room);
		to_device(i, room);
	}
	for (size_t len = strcmp(what, "halos") ? 8 : most + 1; len <= most; len = len < most && len * 8 > most ? most : len * 8) {
		if (all || !strcmp(what, "allreduce")) {
			fill(len);
			OK(MPI_Allreduce(device[0], device[1], (int)(len / 4), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
			look(len);
			measure("allreduce", allreduce, len, 2);
		}
		if (!strcmp(what, "reduce")) {
			measure("reduce", reduce, len, 2);
			measure("reduce_scatter_block", reduce_scatter, len, 2);
			measure("scan", scan, len, 2);
		}
		if (!strcmp(what, "moves")) {
			measure("bcast", bcast, len, 2);
			measure("gather", gather, len, 2);
			measure("scatter", scatter, len, 2);
			measure("allgather", allgather, len, 2);
			measure("alltoall", alltoall, len, 2);
		}
		if (all) {
			measure("bcast", bcast, len, 2);
			measure("reduce_local", reduce_local, len, 2);
		}
	}
	if (!all && strcmp(what, "halos")) {
		MPI_Finalize();
		return 0;
	}
	MPI_Type_vector(n * n, 1, n, MPI_DOUBLE, &face);
	halos("halo of elements", 0, 8, (size_t)n * n, 1, row, (size_t)n * n);
	MPI_Type_vector(n, n, n * n, MPI_DOUBLE, &face);
	halos("halo of rows", 0, row, 1, (size_t)n, row, (size_t)n);
	MPI_Type_vector(1, n * n, 1, MPI_DOUBLE, &face);
	halos("halo of a block", 0, row, (size_t)n, 1, row, (size_t)n);
	for (int axis = 0; axis < 3; axis++) {
		static const char *const names[] = { "subarray, planes", "subarray, rows", "subarray, elements" };
		int sizes[] = { n, n, n }, sub[] = { n, n, n }, at[] = { 0, 0, 0 };

		sub[axis] = 1, at[axis] = n - 2;
		MPI_Type_create_subarray(3, sizes, sub, at, MPI_ORDER_C, MPI_DOUBLE, &face);
		halos(names[axis], (size_t)(n - 2) * (axis == 0 ? plane : axis == 1 ? row : 8), 8 * (size_t)sub[2], (size_t)sub[1],
		      (size_t)sub[0], row, (size_t)n);
	}
	MPI_Finalize();
	return 0;
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Collectives that may go by NCCL: of MPI_COMM_WORLD and of communicators made of it, which are freed; and what comes of an error
 * of NCCL's, which the environment orders (NCCL_STAND_IN_FAIL, NCCL_STAND_IN_ASYNC): an MPI error at each rank that waits for it,
 * and right results behind it.
 */
#include "types.h"
#include <time.h>

static int failed;

/* A call that may fail once: with an error that names the library. The case is not compared then. */
#define MAY(call)                                                                                       \
	do {                                                                                            \
		int code = (call);                                                                      \
		if (code != MPI_SUCCESS) {                                                              \
			CHECK(side == 0 && getenv("FAILS") && strstr(words(code), "libstrait_mpi"));    \
			failed++;                                                                       \
			sealed = 1;                                                                     \
		}                                                                                       \
	} while (0)

static void collectives(MPI_Comm comm, const char *name, int n)
{
	int rank, size;

	MPI_Comm_rank(comm, &rank);
	MPI_Comm_size(comm, &size);
	begin("%s of %d, collectives of %d floats", name, size, n);
	struct buffer *s = take(4 * (size_t)n * size, ANY), *r = take(4 * (size_t)n * size, ANY), *g = take(4 * (size_t)n * size, ANY);

	/* Small whole numbers, of which sums are exact. */
	float *from = malloc(4 * (size_t)n * size);
	for (int i = 0; i < n * size; i++)
		from[i] = (float)((i + 7 * rank) % 100);
	put(s, 0, from, 4 * (size_t)n * size);
	put(r, 0, from, 4 * (size_t)n * size);
	put(g, 0, from, 4 * (size_t)n * size);
	free(from);
	SIDES {
		MAY(MPI_Bcast(P(g), n, MPI_FLOAT, size - 1, comm));
		MAY(MPI_Allreduce(P(s), P(r), n, MPI_FLOAT, MPI_SUM, comm));
		MAY(MPI_Allreduce(MPI_IN_PLACE, P(r), n, MPI_FLOAT, MPI_MAX, comm));
		MAY(MPI_Reduce(P(s), P(r), n, MPI_FLOAT, MPI_MIN, 0, comm));
		MAY(MPI_Allgather(P(s), n, MPI_FLOAT, P(g), n, MPI_FLOAT, comm));
		MAY(MPI_Alltoall(P(s), n, MPI_FLOAT, P(r), n, MPI_FLOAT, comm));
		MAY(MPI_Reduce_scatter_block(P(s), P(g), n, MPI_FLOAT, MPI_SUM, comm));
	}
	end();
}

static void world(void)
{
	for (int n = 1; n < 20000; n *= 11)
		collectives(MPI_COMM_WORLD, "world", n);
}

/* Made and freed again and again, in each way that communicators are made of one, and of those. */
static void made(void)
{
	for (int i = 0; i < 4; i++) {
		MPI_Comm dup, half, of_half, node, same, info;
		MPI_Group group;

		MPI_Comm_dup(MPI_COMM_WORLD, &dup);
		MPI_Comm_split(dup, me % 2, -me, &half);
		MPI_Comm_split(dup, me ? MPI_UNDEFINED : 0, 0, &node);
		CHECK((node != MPI_COMM_NULL) == !me);
		if (node != MPI_COMM_NULL)
			MPI_Comm_free(&node);
		MPI_Comm_dup(half, &of_half);
		MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
		MPI_Comm_group(MPI_COMM_WORLD, &group);
		MPI_Comm_create(MPI_COMM_WORLD, group, &same);
		MPI_Comm_dup_with_info(same, MPI_INFO_NULL, &info);
		MPI_Group_free(&group);
		collectives(dup, "a duplicate", 300);
		collectives(half, "a half", 300);
		collectives(of_half, "a half's duplicate", 300);
		collectives(node, "the node's", 300);
		collectives(info, "a duplicate with info", 300);
		collectives(same, "one of a group", 300);
		collectives(MPI_COMM_WORLD, "world", 300 + i);
		MPI_Comm_free(&half);
		MPI_Comm_free(&dup);
		MPI_Comm_free(&info);
		MPI_Comm_free(&of_half);
		MPI_Comm_free(&same);
		MPI_Comm_free(&node);
	}
}

/* One rank's memory is the host's, another one's each time; and each rank is late once. */
static void unlike(void)
{
	enum kind was = fixed;

	for (int i = 0; i < 70; i++) {
		struct timespec late = { 0, 2000000 };

		if (was != HOST)
			fixed = i % 3 == 0 && i / 3 % ranks == me ? HOST : DEVICE;
		if (i % (5 * ranks) == 5 * me)
			nanosleep(&late, NULL);
		collectives(MPI_COMM_WORLD, "unlike kinds", 500 + i);
	}
	fixed = was;
}

int main(int argc, char **argv)
{
	static const struct subject all[] = { { "world", world }, { "made", made }, { "unlike", unlike } };
	const char *rank = getenv("OMPI_COMM_WORLD_RANK") ? getenv("OMPI_COMM_WORLD_RANK") : getenv("PMI_RANK"), *at = getenv("FAILS");
	int code;

	/* FAILS: the rank at which NCCL fails, or "all". */
	if (at && rank && strcmp(at, "all") && strcmp(at, rank)) {
		unsetenv("NCCL_STAND_IN_FAIL");
		unsetenv("NCCL_STAND_IN_ASYNC");
	}
	/* WITHOUT: the rank that does not take part. */
	if (rank && getenv("WITHOUT") && !strcmp(getenv("WITHOUT"), rank))
		setenv("STRAIT_MPI_NCCL", "0", 1);
	code = run_subjects("nccl", argc, argv, all, COUNT(all), MPI_THREAD_SINGLE);

	if (getenv("FAILS"))
		printf("rank %d: %d calls have failed\n", me, failed);
	return code;
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * MPI whose buffers are memory that the allocator gave:  mpirun -np 2 mpi SYSFS PUBLISHER
 *
 * MPI knows nothing of it. Each rank has publishers of its own, in SYSFS-0 and SYSFS-1: where files stand for windows, two processes that map one
 * would have the same pages, other than with a device's.
 */
#include "peer.h"

#include <mpi.h>

#define LEN ((size_t)1 << 20)

static int rank;
static unsigned char *at;

static unsigned char byte_of(size_t i, int of, int salt)
{
	return i * 7 + (i >> 8) * 13 + of * 101 + salt;
}

static void fill(size_t from, size_t len, int of, int salt)
{
	for (size_t i = 0; i < len; i++)
		at[from + i] = byte_of(i, of, salt);
}

static void is(size_t from, size_t len, int of, int salt, const char *what)
{
	for (size_t i = 0; i < len; i++)
		MUST(at[from + i] == byte_of(i, of, salt), "%s of %zu bytes: byte %zu of rank %d's is %d", what, len, i, of, at[from + i]);
}

/* Both directions at once, from the first half of the memory into the second. */
static void messages(size_t len, int salt)
{
	MPI_Request two[2];
	MPI_Status one;
	int got;

	fill(0, len, rank, salt);
	memset(at + LEN / 2, 0, len);
	MPI_Irecv(at + LEN / 2, len, MPI_BYTE, !rank, salt, MPI_COMM_WORLD, &two[0]);
	MPI_Isend(at, len, MPI_BYTE, !rank, salt, MPI_COMM_WORLD, &two[1]);
	MPI_Waitall(2, two, MPI_STATUSES_IGNORE);
	is(LEN / 2, len, !rank, salt, "a message");
	/* One that is not expected. */
	if (rank)
		MPI_Isend(at, len, MPI_BYTE, 0, salt + 1, MPI_COMM_WORLD, &two[0]);
	MPI_Barrier(MPI_COMM_WORLD);
	if (!rank) {
		memset(at + LEN / 2, 0, len);
		MPI_Recv(at + LEN / 2, len, MPI_BYTE, 1, salt + 1, MPI_COMM_WORLD, &one);
		MPI_Get_count(&one, MPI_BYTE, &got);
		MUST(got == (int)len, "%d", got);
		is(LEN / 2, len, 1, salt, "an unexpected message");
	} else {
		MPI_Wait(&two[0], &one);
	}
}

static void one_sided(void)
{
	MPI_Win window;
	int64_t *counter = (int64_t *)(at + LEN - 64), add = 5 + rank, before;

	fill(0, LEN / 4, rank, 1);
	*counter = 100;
	MPI_Win_create(at, LEN, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &window);
	MPI_Win_fence(0, window);
	MPI_Put(at, LEN / 4, MPI_BYTE, !rank, LEN / 4, LEN / 4, MPI_BYTE, window);
	MPI_Win_fence(0, window);
	is(LEN / 4, LEN / 4, !rank, 1, "put");
	MPI_Get(at + LEN / 2, LEN / 4, MPI_BYTE, !rank, LEN / 4, LEN / 4, MPI_BYTE, window);
	MPI_Win_fence(0, window);
	is(LEN / 2, LEN / 4, rank, 1, "get");
	for (int n = 0; n < 10; n++) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
		MPI_Fetch_and_op(&add, &before, MPI_INT64_T, 0, LEN - 64, MPI_SUM, window);
		MPI_Win_unlock(0, window);
		MUST(before >= 100 && before < 210, "%lld", (long long)before);
	}
	MPI_Win_fence(0, window);
	MUST(rank || *counter == 100 + 10 * 5 + 10 * 6, "%lld", (long long)*counter);
	MPI_Win_free(&window);
}

static void together(void)
{
	int32_t *own = (int32_t *)at, *all = (int32_t *)(at + LEN / 2);
	int n = LEN / 8 / sizeof *own;

	for (int i = 0; i < n; i++)
		own[i] = i * (rank + 1);
	MPI_Allreduce(own, all, n, MPI_INT32_T, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < n; i++)
		MUST(all[i] == 3 * i, "sum %d is %d", i, all[i]);
	fill(0, LEN / 4, rank, 9);
	MPI_Bcast(at, LEN / 4, MPI_BYTE, 1, MPI_COMM_WORLD);
	is(0, LEN / 4, 1, 9, "broadcast");
}

int main(int argc, char **argv)
{
	static const size_t lens[] = { 0, 1, 8, 1000, 4096, 70000, LEN / 2 };
	struct strait_p2pmem_request request = { .size = sizeof request, .len = LEN, .flags = STRAIT_P2PMEM_NO_HOST };
	struct strait_p2pmem_info info = { .size = sizeof info };
	struct strait_p2pmem_segment segment;
	struct strait_p2pmem_buffer *buffer;
	struct strait_p2pmem *p2pmem;
	char sysfs[4096], rules[128];

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MUST(argc == 3, "usage: mpi SYSFS PUBLISHER");
	snprintf(sysfs, sizeof sysfs, "%s-%d", argv[1], rank);
	snprintf(rules, sizeof rules, "pin publisher=%s\n", argv[2]);
	struct strait_p2pmem_options options = { .size = sizeof options, .sysfs = sysfs, .rules = rules };
	GIVES(strait_p2pmem_open(&options, &p2pmem), 0);
	GIVES(strait_p2pmem_alloc(p2pmem, &request, &buffer), 0);
	GIVES(strait_p2pmem_query(buffer, &info), 0);
	MUST(!strcmp(info.kind, "sysfs"), "%s", info.kind);
	GIVES(strait_p2pmem_segment_at(buffer, 0, &segment), 0);
	at = segment.addr;
	for (size_t n = 0; n < sizeof lens / sizeof *lens; n++)
		messages(lens[n], 10 * n);
	one_sided();
	together();
	MPI_Finalize();
	GIVES(strait_p2pmem_free(buffer), 0);
	GIVES(strait_p2pmem_close(p2pmem), 0);
	return 0;
}

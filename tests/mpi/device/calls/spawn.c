/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Processes that MPI_Comm_spawn has begun: messages and collectives of the intercommunicator, device memory on both sides. */
#include "device.h"

enum { N = 3000 };

static int value(int child, int rank, int i) { return 100000 * child + 1000 * rank + i % 997; }

static void fill(struct buffer *b, int child, int rank)
{
	int all[N];

	for (int i = 0; i < N; i++)
		all[i] = value(child, rank, i);
	put(b, 0, all, sizeof all);
}

/* How many of them are not those of `from`'s side and rank, or of all of that side's ranks if `sums` of them are added. */
static int wrong(struct buffer *b, int s, int child, int rank, int sums)
{
	int all[N], bad = 0;

	get(b, s, 0, all, sizeof all);
	for (int i = 0; i < N; i++) {
		int should = sums ? 0 : value(child, rank, i);

		for (int r = 0; r < sums; r++)
			should += value(child, r, i);
		bad += all[i] != should;
	}
	return bad;
}

/* One side of it: what the others' side and ranks have sent. */
static int both(MPI_Comm inter, int child, int s, struct buffer *own, struct buffer *got)
{
	int rank, size, other, bad = 0, twice;
	char *from = own->at[s], *to = got->at[s];
	MPI_Request q[2];

	OK(MPI_Comm_rank(inter, &rank));
	OK(MPI_Comm_size(inter, &size));
	OK(MPI_Comm_remote_size(inter, &other));
	twice = size < other ? size : other;
	if (rank < twice) {
		OK(MPI_Irecv(to, N, MPI_INT, rank, 3, inter, &q[0]));
		OK(MPI_Isend(from, N, MPI_INT, rank, 3, inter, &q[1]));
		OK(MPI_Waitall(2, q, MPI_STATUSES_IGNORE));
		bad += wrong(got, s, !child, rank, 0);
	}
	/* From the first parent to all children. */
	OK(MPI_Bcast(child ? to : from, N, MPI_INT, child ? 0 : rank == 0 ? MPI_ROOT : MPI_PROC_NULL, inter));
	bad += child ? wrong(got, s, 0, 0, 0) : 0;
	OK(MPI_Allreduce(from, to, N, MPI_INT, MPI_SUM, inter));
	bad += wrong(got, s, !child, 0, other);
	OK(MPI_Barrier(inter));
	return bad;
}

static void children(void)
{
	char program[4096], preloaded[4096], paths[4096], kind[64];
	char *arguments[] = { preloaded, paths, kind, program, "child", NULL };
	MPI_Comm inter;
	int others = 0, code[1];

	if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
		return;
	program[readlink("/proc/self/exe", program, sizeof program - 1)] = 0;
	snprintf(preloaded, sizeof preloaded, "LD_PRELOAD=%s", getenv("LD_PRELOAD") ? getenv("LD_PRELOAD") : "");
	snprintf(paths, sizeof paths, "LD_LIBRARY_PATH=%s", getenv("LD_LIBRARY_PATH") ? getenv("LD_LIBRARY_PATH") : "");
	snprintf(kind, sizeof kind, "MEM=%s", getenv("MEM") ? getenv("MEM") : "device");
	begin("MPI_Comm_spawn");
	struct buffer *own = take(4 * N, UNCHANGED), *got = take(4 * N, CHANGED);

	fill(own, 0, me);
	OK(MPI_Comm_spawn("/usr/bin/env", arguments, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &inter, code));
	OK(MPI_Comm_set_errhandler(inter, MPI_ERRORS_RETURN));
	SIDES
		CHECK(!both(inter, 0, side, own, got));
	/* What the children have found. */
	OK(MPI_Bcast(&others, 1, MPI_INT, 0, inter));
	CHECK(others == 0);
	OK(MPI_Comm_disconnect(&inter));
	end();
}

/* A child: its twins are the second side. */
static int child(MPI_Comm inter)
{
	int bad = 0;

	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	fixed = getenv("MEM") && !strcmp(getenv("MEM"), "host") ? HOST : getenv("MEM") && !strcmp(getenv("MEM"), "mixed") ? KINDS : DEVICE;
	if (fixed != HOST)
		cuda_begin(me);
	begin("a child");
	struct buffer *own = take(4 * N, UNCHANGED), *got = take(4 * N, CHANGED);

	fill(own, 1, me);
	SIDES
		bad += both(inter, 1, side, own, got);
	end();
	bad += failures + here_failed;
	OK(MPI_Bcast(&bad, 1, MPI_INT, me == 0 ? MPI_ROOT : MPI_PROC_NULL, inter));
	MPI_Comm_disconnect(&inter);
	MPI_Finalize();
	return 0;
}

int main(int argc, char **argv)
{
	static const struct subject all[] = { { "children", children } };
	MPI_Comm parent;

	if (argc != 2 || strcmp(argv[1], "child"))
		return run_subjects("spawn", argc, argv, all, COUNT(all), MPI_THREAD_SINGLE);
	MPI_Init(&argc, &argv);
	MPI_Comm_get_parent(&parent);
	return child(parent);
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Neighbourhood collectives of grids and graphs, in every way of calling them. */
#include "shape.h"

static int turn;

static void all_calls(struct peers *p, const char *of)
{
	static const int sizes[] = { 3, 0, 900, 1 };

	for (enum which which = WHOLE; which < ALL_WHICH; which++)
		for (enum how how = 0; how < HOWS; how++)
			for (int times = 0; times < 2 && there(which, how); times++) {
				struct shape w = { .which = which, .how = how, .k = sizes[turn / 2 % COUNT(sizes)],
						   .pair = turn / 3 % FIXED_PAIRS };

				turn++;
				begin("%s%s of %s: k %d pair %d", how_names[how], which_names[which], of, w.k, w.pair);
				run_shape(&w, p);
			}
	OK(MPI_Comm_free(&p->comm));
}

/* A row, open at its ends (neighbours that are MPI_PROC_NULL) or closed. */
static void grids(void)
{
	for (int closed = 0; closed < 2; closed++) {
		struct peers p = { .in = 2, .out = 2 };

		OK(MPI_Cart_create(MPI_COMM_WORLD, 1, &ranks, &closed, 0, &p.comm));
		OK(MPI_Comm_set_errhandler(p.comm, MPI_ERRORS_RETURN));
		OK(MPI_Comm_rank(p.comm, &p.me));
		OK(MPI_Cart_shift(p.comm, 0, 1, &p.from[0], &p.from[1]));
		/* With two ranks both neighbours are the same: counts by rank, not by side. */
		for (int j = 0; j < 2; j++) {
			if (p.from[j] == MPI_PROC_NULL)
				p.from[j] = -1;
			p.to[j] = p.from[j];
		}
		all_calls(&p, closed ? "a ring" : "a row");
	}
}

/* Each to the next two, itself too where there are no more. */
static void graphs(void)
{
	struct peers p = { .in = 2, .out = 2 };

	for (int j = 0; j < 2; j++) {
		p.to[j] = (me + j) % ranks;
		p.from[j] = (me + ranks - j) % ranks;
	}
	p.me = me;
	OK(MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 2, p.from, MPI_UNWEIGHTED, 2, p.to, MPI_UNWEIGHTED, MPI_INFO_NULL, 0, &p.comm));
	OK(MPI_Comm_set_errhandler(p.comm, MPI_ERRORS_RETURN));
	all_calls(&p, "a distributed graph");

	/* Everyone and rank 0. */
	int index[MOST_PEERS], edges[2 * MOST_PEERS], n = 0;
	struct peers star = { .me = me };

	for (int r = 0; r < ranks; r++) {
		for (int to = r ? 0 : 1; to < (r ? 1 : ranks); to++)
			edges[n++] = to;
		index[r] = n;
	}
	if (ranks < 2)
		return;
	OK(MPI_Graph_create(MPI_COMM_WORLD, ranks, index, edges, 0, &star.comm));
	OK(MPI_Comm_set_errhandler(star.comm, MPI_ERRORS_RETURN));
	OK(MPI_Graph_neighbors_count(star.comm, me, &star.in));
	star.out = star.in;
	OK(MPI_Graph_neighbors(star.comm, me, star.in, star.from));
	memcpy(star.to, star.from, sizeof star.to);
	all_calls(&star, "a graph");
}

int main(int argc, char **argv)
{
	static const struct subject all[] = { { "grids", grids }, { "graphs", graphs } };

	return run_subjects("neighbour", argc, argv, all, COUNT(all), MPI_THREAD_SINGLE);
}

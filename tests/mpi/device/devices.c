/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Collectives that the ranks' devices may do: random reductions and moves of blocks against the MPI's own on host memory; sums of floats
 * that are not exact, which have to be the same each time; and what comes of a device that fails, which the environment orders
 * (CUDA_STAND_IN_FAIL): an MPI error, and right results behind it.
 *
 *   ORDER=all|pieces   the devices compute: operations are in the order of ranks; of pieces not those in place that scatter
 *   FAILS=rank|all     where a device fails: only what that is about is run
 *   FAILS_MOVE=1       of MPI_Allgather, in place of MPI_Allreduce
 */
#include "device.h"

enum call { ALLREDUCE, REDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, SCAN, EXSCAN, CALLS };
enum { MOST_RANKS = 64 };

static const char *const call_names[] = { "Allreduce", "Reduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan" };
static int failed;

struct work {
	enum call call;
	int in_place, root, n, counts[MOST_RANKS];
	MPI_Datatype type;
	MPI_Op op;
	MPI_Comm comm;
	int rank, size;
};

static int start(const struct work *w, const void *s, void *r)
{
	const void *from = w->in_place ? MPI_IN_PLACE : s;

	switch (w->call) {
	case ALLREDUCE: return MPI_Allreduce(from, r, w->n, w->type, w->op, w->comm);
	case REDUCE: return MPI_Reduce(w->in_place && w->rank == w->root ? from : s, r, w->n, w->type, w->op, w->root, w->comm);
	case REDUCE_SCATTER: return MPI_Reduce_scatter(from, r, w->counts, w->type, w->op, w->comm);
	case REDUCE_SCATTER_BLOCK: return MPI_Reduce_scatter_block(from, r, w->n, w->type, w->op, w->comm);
	case SCAN: return MPI_Scan(from, r, w->n, w->type, w->op, w->comm);
	default: return MPI_Exscan(from, r, w->n, w->type, w->op, w->comm);
	}
}

/* Elements of a contribution. */
static int all_of(const struct work *w)
{
	int sum = 0;

	for (int i = 0; i < w->size; i++)
		sum += w->counts[i];
	return w->call == REDUCE_SCATTER ? sum : w->call == REDUCE_SCATTER_BLOCK ? w->n * w->size : w->n;
}

static struct work draw_work(MPI_Comm comm)
{
	struct work w = { .call = (enum call)draw(CALLS), .in_place = (int)draw(2), .n = (int)draw(2500), .comm = comm };

	MPI_Comm_rank(comm, &w.rank);
	MPI_Comm_size(comm, &w.size);
	w.root = (int)draw((unsigned)w.size);
	for (int i = 0; i < w.size; i++)
		w.counts[i] = draw(4) ? (int)draw(2000) : 0;
	return w;
}

static void random_on(MPI_Comm comm, int i)
{
	const MPI_Datatype integers[] = { MPI_INT, MPI_UNSIGNED, MPI_LONG, MPI_UINT64_T, MPI_SHORT, MPI_UNSIGNED_CHAR, MPI_INT8_T };
	const MPI_Datatype others[] = { MPI_FLOAT, MPI_DOUBLE, MPI_C_DOUBLE_COMPLEX };
	const MPI_Op of_integers[] = { MPI_BXOR, MPI_BAND, MPI_BOR, MPI_LAND, MPI_LXOR }, sums[] = { MPI_SUM, MPI_PROD };
	int size, all, whole;
	struct work w;

	begin("random %d", i);
	w = draw_work(comm);
	whole = draw(2);
	w.type = whole ? integers[draw(COUNT(integers))] : others[draw(COUNT(others))];
	/* The sign of a 0 in a product of complex numbers depends on the order. */
	w.op = whole ? of_integers[draw(COUNT(of_integers))] : w.type == MPI_C_DOUBLE_COMPLEX ? MPI_SUM : sums[draw(COUNT(sums))];
	snprintf(the_case + strlen(the_case), sizeof the_case - strlen(the_case), ": %s of %d%s", call_names[w.call], w.n, w.in_place ? ", in place" : "");
	MPI_Type_size(w.type, &size);
	all = all_of(&w);
	struct buffer *s = take((size_t)(size * all), UNCHANGED), *r = take((size_t)(size * all), ANY);
	char *values = malloc((size_t)(size * all) + 1);

	/* Whole numbers of which sums and products are exact. */
	for (int k = 0, n = 0; !whole && k < 2; k++) {
		int each = w.type == MPI_FLOAT ? 4 : 8;

		for (n = 0; n < size * all; n += each) {
			int small = (int)(mix(seed_of_case + 77u * (unsigned)me + (unsigned)(n + k)) % 5) - 2;
			float f = (float)small;
			double d = small;

			memcpy(values + n, each == 4 ? (void *)&f : (void *)&d, (size_t)each);
		}
		put(k ? r : s, 0, values, (size_t)(size * all));
	}
	free(values);
	SIDES
		OK(start(&w, P(s), P(r)));
	end();
}

static void on_comms(void (*random)(MPI_Comm comm, int i))
{
	MPI_Comm comms[3];

	MPI_Comm_split(MPI_COMM_WORLD, 0, -me, &comms[0]);
	MPI_Comm_split(MPI_COMM_WORLD, me % 2, me, &comms[1]);
	MPI_Comm_dup(comms[0], &comms[2]);
	for (int i = 0; i < 120; i++)
		random(i % 4 == 3 ? MPI_COMM_WORLD : comms[i % 4], i);
	for (int i = 0; i < 3; i++)
		MPI_Comm_free(&comms[i]);
}

static void random_calls(void)
{
	on_comms(random_on);
}

enum move { BCAST, GATHER, SCATTER, ALLGATHER, ALLGATHERV, ALLTOALL, MOVES };

/* Blocks of n elements: sent as elements, received as a few of a datatype of several, and the other way round. */
static void move_on(MPI_Comm comm, int i)
{
	static const char *const names[] = { "Bcast", "Gather", "Scatter", "Allgather", "Allgatherv", "Alltoall" };
	const MPI_Datatype types[] = { MPI_CHAR, MPI_INT, MPI_DOUBLE, MPI_DOUBLE_INT };
	MPI_Datatype one, many, st, rt;
	enum move move;
	int in_place, n, is_many, counts[MOST_RANKS], places[MOST_RANKS], rank, size, root, gap, sum = 0, sn, rn;
	MPI_Aint low, extent;

	begin("move %d", i);
	one = types[draw(COUNT(types))], move = (enum move)draw(MOVES), in_place = (int)draw(2), n = 6 * (int)draw(400);
	is_many = (int)draw(2), gap = draw(4) ? 0 : 6;
	MPI_Comm_rank(comm, &rank);
	MPI_Comm_size(comm, &size);
	root = (int)draw((unsigned)size);
	snprintf(the_case + strlen(the_case), sizeof the_case - strlen(the_case), ": %s of %d%s", names[move], n, in_place ? ", in place" : "");
	MPI_Type_get_extent(one, &low, &extent);
	MPI_Type_contiguous(6, one, &many);
	MPI_Type_commit(&many);
	st = is_many ? many : one, rt = is_many ? one : many;
	for (int k = 0; k < size; k++) {
		counts[k] = draw(4) ? 6 * (int)draw(300) : 0;
		places[k] = sum, sum += counts[k] + gap;
	}
	if (is_many == 0)
		for (int k = 0; k < size; k++)
			counts[k] /= 6, places[k] /= 6;
	struct buffer *s = take((size_t)(extent * (n * size + sum)), ANY), *r = take((size_t)(extent * (n * size + sum)), ANY);

	sn = is_many ? n / 6 : n, rn = is_many ? n : n / 6;
	SIDES {
		void *own = in_place && (rank == root || move > SCATTER) ? MPI_IN_PLACE : NULL;

		switch (move) {
		case BCAST: OK(MPI_Bcast(P(s), rank == root ? sn : rn, rank == root ? st : rt, root, comm)); break;
		case GATHER: OK(MPI_Gather(own ? own : P(s), sn, st, P(r), rn, rt, root, comm)); break;
		case SCATTER: OK(MPI_Scatter(P(s), sn, st, own ? own : P(r), rn, rt, root, comm)); break;
		case ALLGATHER: OK(MPI_Allgather(own ? own : P(s), sn, st, P(r), rn, rt, comm)); break;
		case ALLGATHERV: OK(MPI_Allgatherv(own ? own : P(s), is_many ? counts[rank] / 6 : 6 * counts[rank], st, P(r), counts, places, rt, comm)); break;
		default: OK(MPI_Alltoall(own ? own : P(s), sn, st, P(r), rn, rt, comm)); break;
		}
	}
	MPI_Type_free(&many);
	end();
}

static void moves(void)
{
	on_comms(move_on);
}

enum vector { GATHERV, SCATTERV, ALLTOALLV, ALLTOALLW, VECTORS };

/* Places of blocks with gaps between some, in the order of ranks or the other way round; behind the last one. */
static int places_of(const int *counts, int *places, int n)
{
	int sum = 0, back = draw(3) == 0, gap = draw(2) ? 0 : (int)draw(40);

	for (int i = 0; i < n; i++) {
		int k = back ? n - 1 - i : i;

		places[k] = sum, sum += counts[k] + gap;
	}
	return sum;
}

/* Blocks of which a rank knows its own alone: of any length, none too, sent as elements and received as a few of a datatype of
   several, or the other way round. */
static void vector_on(MPI_Comm comm, int i)
{
	static const char *const names[] = { "Gatherv", "Scatterv", "Alltoallv", "Alltoallw" };
	const MPI_Datatype types[] = { MPI_CHAR, MPI_INT, MPI_DOUBLE, MPI_DOUBLE_INT };
	MPI_Datatype one, many, st, rt, sts[MOST_RANKS], rts[MOST_RANKS];
	enum vector vector;
	int in_place, is_many, rank, size, root, none, all, sn, rn, lens[MOST_RANKS][MOST_RANKS];
	int sns[MOST_RANKS], rns[MOST_RANKS], sds[MOST_RANKS], rds[MOST_RANKS], to, from;
	MPI_Aint low, extent;

	begin("vector %d", i);
	one = types[draw(8) ? draw(3) : 3], vector = (enum vector)draw(VECTORS), in_place = draw(3) == 0, is_many = (int)draw(2);
	MPI_Comm_rank(comm, &rank);
	MPI_Comm_size(comm, &size);
	root = (int)draw((unsigned)size), none = draw(3) ? -1 : (int)draw((unsigned)size), all = draw(16) ? 300 : 0;
	snprintf(the_case + strlen(the_case), sizeof the_case - strlen(the_case), ": %s%s", names[vector], in_place ? ", in place" : "");
	MPI_Type_get_extent(one, &low, &extent);
	MPI_Type_contiguous(6, one, &many);
	MPI_Type_commit(&many);
	st = is_many ? many : one, rt = is_many ? one : many;
	if (in_place && vector >= ALLTOALLV)
		st = rt;
	for (int a = 0; a < size; a++)
		for (int b = 0; b < size; b++)
			lens[a][b] = !all || a == none || b == none || !draw(4) ? 0 : (int)draw((unsigned)all);
	for (int a = 0; in_place && a < size; a++)
		for (int b = 0; b < a; b++)
			lens[a][b] = lens[b][a];
	for (int k = 0; k < size; k++) {
		/* What goes by way of the root are its row and its column. */
		int out = lens[rank][k], in = vector == GATHERV ? lens[root][k] : lens[k][rank];

		if (vector == SCATTERV)
			out = lens[root][k];
		sns[k] = st == many ? out : 6 * out, rns[k] = rt == many ? in : 6 * in;
		sts[k] = st, rts[k] = rt;
	}
	to = places_of(sns, sds, size), from = places_of(rns, rds, size);
	sn = lens[root][rank] * (st == many ? 1 : 6), rn = lens[root][rank] * (rt == many ? 1 : 6);
	for (int k = 0; vector == ALLTOALLW && k < size; k++)
		sds[k] *= (int)extent * (st == many ? 6 : 1), rds[k] *= (int)extent * (rt == many ? 6 : 1);
	struct buffer *s = take((size_t)(extent * (6 * (to + sn) + 6)), ANY), *r = take((size_t)(extent * (6 * (from + rn) + 6)), ANY);

	SIDES {
		int is_root = rank == root;
		void *own = in_place && (is_root || vector >= ALLTOALLV) ? MPI_IN_PLACE : NULL, *in = own ? own : P(s), *out = own ? own : P(r);

		switch (vector) {
		case GATHERV: OK(MPI_Gatherv(in, sn, st, P(r), is_root ? rns : NULL, is_root ? rds : NULL, rt, root, comm)); break;
		case SCATTERV: OK(MPI_Scatterv(P(s), is_root ? sns : NULL, is_root ? sds : NULL, st, out, rn, rt, root, comm)); break;
		case ALLTOALLV: OK(MPI_Alltoallv(in, sns, sds, st, P(r), rns, rds, rt, comm)); break;
		default: OK(MPI_Alltoallw(in, sns, sds, sts, P(r), rns, rds, rts, comm)); break;
		}
	}
	MPI_Type_free(&many);
	end();
}

static void vectors(void)
{
	on_comms(vector_on);
}

/* Whether the operations of `results` elements, of the ranks before `ranks`, are those in the order of ranks. */
static void in_order(const struct work *w, const double *all, int ranks_of, int first, int results, const double *got)
{
	for (int i = 0; i < results; i++) {
		double sum = all[first + i];

		for (int k = 1; k < ranks_of; k++)
			sum += all[k * all_of(w) + first + i];
		if (memcmp(&sum, &got[i], 8)) {
			fail("element %d of rank %d is %.17g, not %.17g", first + i, w->rank, got[i], sum);
			return;
		}
	}
}

static void order(void)
{
	const char *wanted = getenv("ORDER");

	for (int i = 0; i < 30; i++) {
		struct work w;
		int n, first = 0, ranks_of = ranks, results;

		begin("order %d", i);
		w = draw_work(MPI_COMM_WORLD);
		w.type = MPI_DOUBLE, w.op = MPI_SUM;
		n = all_of(&w);
		struct buffer *s = take_of(fixed == KINDS ? DEVICE : fixed, 8 * (size_t)n, ANY);
		struct buffer *r = take_of(fixed == KINDS ? DEVICE : fixed, 8 * (size_t)n, ANY);
		double *values = malloc(8 * (size_t)n + 8), *all = malloc(8 * (size_t)n * (size_t)ranks + 8), *got[2];

		for (int k = 0; k < n; k++)
			values[k] = (double)(mix(seed_of_case + 31u * (unsigned)me + (unsigned)k) % 1000003) / 7.0 * (k % 3 ? 1 : 1e9);
		PMPI_Allgather(values, n, MPI_DOUBLE, all, n, MPI_DOUBLE, MPI_COMM_WORLD);
		results = w.call == REDUCE_SCATTER ? w.counts[me] : n;
		if (w.call == REDUCE_SCATTER_BLOCK)
			results = w.n, first = me * w.n;
		for (int k = 0; w.call == REDUCE_SCATTER && k < me; k++)
			first += w.counts[k];
		if (w.call == SCAN || w.call == EXSCAN)
			ranks_of = me + (w.call == SCAN);
		if ((w.call == REDUCE && w.root != me) || !ranks_of)
			results = 0;
		for (int again = 0; again < 2; again++) {
			put(s, 0, values, 8 * (size_t)n);
			put(r, 0, values, 8 * (size_t)n);
			OK(start(&w, P(s), P(r)));
			got[again] = malloc(8 * (size_t)n + 8);
			get(r, 0, 0, got[again], 8 * (size_t)results);
		}
		CHECK(!memcmp(got[0], got[1], 8 * (size_t)results));
		if (wanted && (!strcmp(wanted, "all") || !w.in_place || (w.call != REDUCE_SCATTER && w.call != REDUCE_SCATTER_BLOCK)))
			in_order(&w, all, ranks_of, first, results, got[0]);
		free(got[0]), free(got[1]), free(values), free(all);
		sealed = 1;
		end();
	}
}

/* Calls of which one may fail. */
static void failing(void)
{
	for (int i = 0; i < 12; i++) {
		int code;

		begin("failing %d", i);
		struct buffer *s = take(4000, UNCHANGED), *r = take(4000, CHANGED);

		SIDES {
			if (getenv("FAILS_MOVE"))
				code = MPI_Allgather(P(s), 4000 / ranks / 4, MPI_UNSIGNED, P(r), 4000 / ranks / 4, MPI_UNSIGNED, MPI_COMM_WORLD);
			else
				code = MPI_Allreduce(P(s), P(r), 1000, MPI_UNSIGNED, MPI_SUM, MPI_COMM_WORLD);
			if (code != MPI_SUCCESS) {
				CHECK(side == 0 && getenv("FAILS") && strstr(words(code), "libstrait_mpi"));
				failed++;
				sealed = 1;
			}
		}
		end();
	}
}

int main(int argc, char **argv)
{
	static const struct subject all[] = { { "random", random_calls }, { "order", order }, { "moves", moves }, { "vectors", vectors }, { "failing", failing } };
	const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *at = getenv("FAILS");
	int code;

	if (at && rank && strcmp(at, "all") && strcmp(at, rank))
		unsetenv("CUDA_STAND_IN_FAIL");
	code = run_subjects("devices", argc, argv, at ? all + 4 : all, at ? 1 : COUNT(all), MPI_THREAD_SINGLE);
	if (getenv("FAILS"))
		printf("rank %d: %d calls have failed\n", me, failed);
	return code;
}

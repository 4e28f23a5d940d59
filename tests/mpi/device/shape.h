/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The arguments and buffers of a collective: from a few numbers the same on every rank. */
#ifndef MPI_DEVICE_SHAPE_H
#define MPI_DEVICE_SHAPE_H

#include "coll.h"

enum reduction { SUM_INT, MAX_DOUBLE, MAXLOC_DOUBLE_INT, OWN_OP, REDUCTIONS };

/* Whom a collective of a communicator goes to and comes from. */
struct peers {
	MPI_Comm comm;
	int me, in, out, from[MOST_PEERS], to[MOST_PEERS];
	int inter;
	int group;		/* the size of the own group */
};

/* What a case varies. */
struct shape {
	enum which which;
	enum how how;
	int k;			/* elements of a block */
	int pair;		/* of fixed_pair() */
	enum reduction reduction;
	int in_place;
	int root;		/* a rank; of an intercommunicator: MPI_ROOT, MPI_PROC_NULL or one of the other group */
	int ignored;		/* arguments that mean nothing on this rank are no addresses and no datatypes */
};

static inline int is_reduction(enum which w) { return w >= REDUCE && w <= EXSCAN; }
static inline int has_root(enum which w) { return w <= SCATTERV ? w != WHOLE : w == REDUCE; }

/* Associative, not commutative: pairs of bytes are the maps x -> a x + b. */
static void compose(void *in, void *inout, int *len, MPI_Datatype *type)
{
	int size, at = 0, all;
	unsigned char *x, *y;

	PMPI_Type_size(*type, &size);
	all = size * *len;
	x = malloc((size_t)all + 64), y = malloc((size_t)all + 64);
	PMPI_Pack(in, *len, *type, x, all, &at, MPI_COMM_SELF);
	at = 0;
	PMPI_Pack(inout, *len, *type, y, all, &at, MPI_COMM_SELF);
	/* Each element alone, since an MPI may cut the array anywhere. */
	for (int e = 0; e < *len; e++) {
		unsigned char *p = x + e * size, *q = y + e * size;
		int i = 0;

		for (; i + 1 < size; i += 2) {
			q[i + 1] = (unsigned char)(p[i] * q[i + 1] + p[i + 1]);
			q[i] = (unsigned char)(p[i] * q[i]);
		}
		if (i < size)
			q[i] = (unsigned char)(q[i] + p[i]);
	}
	at = 0;
	PMPI_Unpack(y, all, &at, inout, *len, *type, MPI_COMM_SELF);
	free(x), free(y);
}

static MPI_Op own_op = MPI_OP_NULL;

/* Numbers that sums are exact of, in the whole buffer. */
static inline void numbers(struct buffer *b, enum reduction r)
{
	char *all = malloc(b->len + 16);

	memcpy(all, b->before + GUARD, b->len);
	for (size_t at = 0; r == MAX_DOUBLE && at + 8 <= b->len; at += 8) {
		double x = (double)(int)(mix(seed_of_case + 31 * me + at) % 200) - 100;

		memcpy(all + at, &x, 8);
	}
	for (size_t at = 0; r == MAXLOC_DOUBLE_INT && at + 12 <= b->len; at += 16) {
		double x = (double)(mix(seed_of_case + 31 * me + at) % 3);

		memcpy(all + at, &x, 8);
		memcpy(all + at + 8, &me, 4);
	}
	put(b, 0, all, b->len);
	free(all);
	b->loose = r == MAXLOC_DOUBLE_INT;
}

static inline int each(int i, int j, int k) { return (i + j) % 4 * k; }
static inline int one(int i, int k) { return (i + 1) % 3 * k; }

/* Blocks one behind the other, the last first, an element apart; their whole length. */
static int places(int n, const int *counts, int *at)
{
	int next = 0;

	for (int j = n - 1; j >= 0; j--) {
		at[j] = next;
		next += counts[j] + 1;
	}
	return next;
}

/* The same in bytes, each of its own datatype; the length in bytes. */
static int byte_places(int n, const int *counts, const MPI_Datatype *types, int *at)
{
	MPI_Aint lb, extent, true_lb, true_extent, next = 0;

	for (int j = n - 1; j >= 0; j--) {
		PMPI_Type_get_extent(types[j], &lb, &extent);
		PMPI_Type_get_true_extent(types[j], &true_lb, &true_extent);
		at[j] = (int)(next - true_lb);
		if (counts[j])
			next += (extent * (counts[j] - 1) + true_extent + 31) / 16 * 16;
	}
	return (int)next + 16;
}

static int sum(int n, const int *counts)
{
	int all = 0;

	for (int j = 0; j < n; j++)
		all += counts[j];
	return all;
}

/* One case: buffers, arguments, the call on both sides, the comparison. */
static void run_shape(const struct shape *w, const struct peers *p)
{
	struct pair first = fixed_pair(w->pair), second = fixed_pair((w->pair + 1) % FIXED_PAIRS);
	struct coll *a = calloc(1, sizeof *a);
	enum which which = w->which;
	int is_root = p->inter ? w->root == MPI_ROOT : p->me == w->root, k = w->k;
	int idle = p->inter && has_root(which) && w->root == MPI_PROC_NULL;
	int receives = 1, sends = 1, in_place = w->in_place, got = 0;
	struct buffer *sb, *rb;
	long s_all = 0, r_all = 0;

	if (own_op == MPI_OP_NULL)
		OK(MPI_Op_create(compose, 0, &own_op));
	a->comm = p->comm;
	a->root = w->root;
	a->st = first.send;
	a->rt = first.recv;
	for (int j = 0; j < p->out; j++) {
		a->isns[j] = which == SCATTERV ? one(j, k) : p->to[j] < 0 ? k : each(p->me, p->to[j], k);
		a->sts[j] = p->to[j] < 0 || (p->me + p->to[j]) % 2 ? first.send : second.send;
	}
	for (int j = 0; j < p->in; j++) {
		a->irns[j] = p->from[j] < 0 ? k
			     : which == GATHERV || which == ALLGATHERV || which == N_ALLGATHERV ? one(p->from[j], k)
			     : each(p->from[j], p->me, k);
		a->rts[j] = p->from[j] < 0 || (p->me + p->from[j]) % 2 ? first.recv : second.recv;
		if (in_place)
			a->rts[j] = (p->me + p->from[j]) % 2 ? first.recv : second.recv;
	}
	switch (which) {
	case BCAST:
		a->rn = k;
		a->rt = is_root ? first.send : first.recv;
		sends = 0, r_all = k, got = k * !is_root;
		break;
	case GATHER: case GATHERV:
		a->sn = which == GATHER ? k : one(p->me, k);
		a->rn = k;
		receives = is_root, sends = p->inter ? !is_root : !(in_place && is_root);
		s_all = a->sn;
		r_all = which == GATHER ? (long)k * p->in : places(p->in, a->irns, a->irds);
		got = k && p->in > in_place;
		in_place = in_place && is_root;
		break;
	case SCATTER: case SCATTERV:
		a->sn = k;
		a->rn = which == SCATTER ? k : one(p->me, k);
		sends = is_root, receives = p->inter ? !is_root : !(in_place && is_root);
		s_all = which == SCATTER ? (long)k * p->out : places(p->out, a->isns, a->isds);
		r_all = a->rn, got = a->rn;
		in_place = in_place && is_root;
		break;
	case ALLGATHER: case ALLGATHERV: case N_ALLGATHER: case N_ALLGATHERV:
		a->sn = which == ALLGATHER || which == N_ALLGATHER ? k : one(p->me, k);
		a->rn = k;
		s_all = a->sn;
		r_all = which == ALLGATHER || which == N_ALLGATHER ? (long)k * p->in : places(p->in, a->irns, a->irds);
		break;
	case ALLTOALL: case N_ALLTOALL:
		a->sn = a->rn = k;
		s_all = (long)k * p->out, r_all = (long)k * p->in;
		break;
	case ALLTOALLV: case N_ALLTOALLV:
		s_all = places(p->out, a->isns, a->isds), r_all = places(p->in, a->irns, a->irds);
		break;
	case ALLTOALLW: case N_ALLTOALLW:
		s_all = byte_places(p->out, a->isns, a->sts, a->isds);
		r_all = byte_places(p->in, a->irns, a->rts, a->irds);
		break;
	default:
		a->rt = w->reduction == SUM_INT ? MPI_INT : w->reduction == MAX_DOUBLE ? MPI_DOUBLE
			: w->reduction == MAXLOC_DOUBLE_INT ? MPI_DOUBLE_INT
			/* MPICH 5.0 and Intel MPI 2021.18: their temporary memory for a datatype with a lower bound is too short. */
			: !open_mpi && w->pair > 2 ? MPI_LONG : first.recv;
		a->op = w->reduction == SUM_INT ? MPI_SUM : w->reduction == MAX_DOUBLE ? MPI_MAX
			: w->reduction == MAXLOC_DOUBLE_INT ? MPI_MAXLOC : own_op;
		a->st = a->rt;
		a->rn = k;
		s_all = r_all = k;
		if (which == REDUCE)
			receives = is_root, sends = p->inter ? !is_root : 1, in_place = in_place && is_root;
		/* Both groups of an intercommunicator reduce as many elements. */
		for (int j = 0; j < p->group; j++)
			a->irns[j] = p->inter ? 12 * k / p->group : one(j, k);
		if (which == REDUCE_SCATTER)
			s_all = sum(p->group, a->irns), r_all = a->irns[p->me];
		if (which == REDUCE_SCATTER_BLOCK) {
			a->rn = p->inter ? 12 * k / p->group : k;
			s_all = (long)a->rn * p->group, r_all = a->rn;
		}
		if (in_place)
			r_all = s_all;
		got = 0;
	}
	for (int j = 0; j < MOST_PEERS; j++) {
		a->csns[j] = a->isns[j], a->crns[j] = a->irns[j];
		a->csds[j] = a->isds[j], a->crds[j] = a->irds[j];
	}
	if (which == ALLTOALLW || which == N_ALLTOALLW) {
		sb = take((size_t)s_all, UNCHANGED);
		rb = take((size_t)r_all, ANY);
	} else {
		sb = take_typed(s_all, 1, a->st, UNCHANGED);
		rb = take_typed(r_all, 1, a->rt, receives && !idle && got ? CHANGED : receives ? ANY : UNCHANGED);
	}
	/* A block of one element may come from a rank that counts none. */
	if (which == GATHERV || which == SCATTERV)
		rb->change = receives ? ANY : UNCHANGED;
	if (which == BCAST && is_root)
		rb->change = UNCHANGED;
	if (is_reduction(which) && w->reduction != OWN_OP) {
		numbers(sb, w->reduction);
		numbers(rb, w->reduction);
	}
	SIDES {
		a->s = in_place ? MPI_IN_PLACE : P(sb);
		a->r = P(rb);
		if (w->ignored && !sends && which != BCAST && !in_place)
			a->s = (void *)-64, a->sn = -1;
		if (w->ignored && !receives)
			a->r = (void *)-64, a->rn = which == REDUCE ? a->rn : -1;
		if ((which == SCATTER || which == SCATTERV) && in_place)
			a->s = P(sb), a->r = MPI_IN_PLACE;
		call(a, which, w->how);
	}
	end();
	free(a);
	free_pair(&first);
	free_pair(&second);
}

/* The peers of an intracommunicator: all. */
static inline struct peers all_of(MPI_Comm comm)
{
	struct peers p = { .comm = comm };

	PMPI_Comm_rank(comm, &p.me);
	PMPI_Comm_size(comm, &p.in);
	p.out = p.group = p.in;
	for (int j = 0; j < p.in; j++)
		p.from[j] = p.to[j] = j;
	return p;
}

#endif

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Every collective with buffers as a row of a table, called blocking, nonblocking and persistent, with counts of
 * int and of MPI_Count, on intracommunicators, intercommunicators and topologies. */
#ifndef MPI_DEVICE_COLL_H
#define MPI_DEVICE_COLL_H

#include "types.h"

enum { MOST_PEERS = 16 };

enum which {
	BCAST, GATHER, GATHERV, SCATTER, SCATTERV, ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, ALLTOALLW,
	REDUCE, ALLREDUCE, REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, SCAN, EXSCAN, WHOLE,
	N_ALLGATHER = WHOLE, N_ALLGATHERV, N_ALLTOALL, N_ALLTOALLV, N_ALLTOALLW, ALL_WHICH
};
enum how { BLOCKING, NONBLOCKING, PERSISTENT, BLOCKING_C, NONBLOCKING_C, PERSISTENT_C, HOWS };

static const char *const which_names[] = {
	"Bcast", "Gather", "Gatherv", "Scatter", "Scatterv", "Allgather", "Allgatherv", "Alltoall", "Alltoallv",
	"Alltoallw", "Reduce", "Allreduce", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan",
	"Neighbor_allgather", "Neighbor_allgatherv", "Neighbor_alltoall", "Neighbor_alltoallv",
	"Neighbor_alltoallw"
};
static const char *const how_names[] = { "", "I", "_init", "_c", "I _c", "_init_c" };

/* The arguments of one call. i: counts of int; c: the same as MPI_Count. */
struct coll {
	const void *s;
	void *r;
	int sn, rn, root;
	int isns[MOST_PEERS], irns[MOST_PEERS], isds[MOST_PEERS], irds[MOST_PEERS];
	MPI_Count csns[MOST_PEERS], crns[MOST_PEERS];
	MPI_Aint csds[MOST_PEERS], crds[MOST_PEERS];
	MPI_Datatype st, rt, sts[MOST_PEERS], rts[MOST_PEERS];
	MPI_Op op;
	MPI_Comm comm;
};

/* Rows: name; arguments up to the communicator. n(): a count alone; v(): an array of counts or displacements. */
#define COLLECTIVES(X, n, v)                                                                                    \
	X(BCAST, Bcast, a->r, n(a->rn), a->rt, a->root)                                                         \
	X(GATHER, Gather, a->s, n(a->sn), a->st, a->r, n(a->rn), a->rt, a->root)                                \
	X(GATHERV, Gatherv, a->s, n(a->sn), a->st, a->r, a->v(rns), a->v(rds), a->rt, a->root)                  \
	X(SCATTER, Scatter, a->s, n(a->sn), a->st, a->r, n(a->rn), a->rt, a->root)                              \
	X(SCATTERV, Scatterv, a->s, a->v(sns), a->v(sds), a->st, a->r, n(a->rn), a->rt, a->root)                \
	X(ALLGATHER, Allgather, a->s, n(a->sn), a->st, a->r, n(a->rn), a->rt)                                   \
	X(ALLGATHERV, Allgatherv, a->s, n(a->sn), a->st, a->r, a->v(rns), a->v(rds), a->rt)                     \
	X(ALLTOALL, Alltoall, a->s, n(a->sn), a->st, a->r, n(a->rn), a->rt)                                     \
	X(ALLTOALLV, Alltoallv, a->s, a->v(sns), a->v(sds), a->st, a->r, a->v(rns), a->v(rds), a->rt)           \
	X(ALLTOALLW, Alltoallw, a->s, a->v(sns), a->v(sds), a->sts, a->r, a->v(rns), a->v(rds), a->rts)         \
	X(REDUCE, Reduce, a->s, a->r, n(a->rn), a->rt, a->op, a->root)                                          \
	X(ALLREDUCE, Allreduce, a->s, a->r, n(a->rn), a->rt, a->op)                                             \
	X(REDUCE_SCATTER, Reduce_scatter, a->s, a->r, a->v(rns), a->rt, a->op)                                  \
	X(REDUCE_SCATTER_BLOCK, Reduce_scatter_block, a->s, a->r, n(a->rn), a->rt, a->op)                       \
	X(SCAN, Scan, a->s, a->r, n(a->rn), a->rt, a->op)                                                       \
	X(EXSCAN, Exscan, a->s, a->r, n(a->rn), a->rt, a->op)                                                   \
	X(N_ALLGATHER, Neighbor_allgather, a->s, n(a->sn), a->st, a->r, n(a->rn), a->rt)                        \
	X(N_ALLGATHERV, Neighbor_allgatherv, a->s, n(a->sn), a->st, a->r, a->v(rns), a->v(rds), a->rt)          \
	X(N_ALLTOALL, Neighbor_alltoall, a->s, n(a->sn), a->st, a->r, n(a->rn), a->rt)                          \
	X(N_ALLTOALLV, Neighbor_alltoallv, a->s, a->v(sns), a->v(sds), a->st, a->r, a->v(rns), a->v(rds), a->rt) \
	X(N_ALLTOALLW, Neighbor_alltoallw, a->s, a->v(sns), a->csds, a->sts, a->r, a->v(rns), a->crds, a->rts)

#define INT_N(x) (x)
#define INT_V(x) i##x
#define BIG_N(x) ((MPI_Count)(x))
#define BIG_V(x) c##x

static int call_blocking(struct coll *a, enum which which)
{
	switch (which) {
#define X(id, name, ...) case id: return MPI_##name(__VA_ARGS__, a->comm);
	COLLECTIVES(X, INT_N, INT_V)
#undef X
	default: return MPI_ERR_OTHER;
	}
}

static int call_nonblocking(struct coll *a, enum which which, MPI_Request *request)
{
	switch (which) {
#define X(id, name, ...) case id: return MPI_I##name(__VA_ARGS__, a->comm, request);
	/* The names of the nonblocking ones begin with a small letter behind the I. */
#define MPI_IBcast MPI_Ibcast
#define MPI_IGather MPI_Igather
#define MPI_IGatherv MPI_Igatherv
#define MPI_IScatter MPI_Iscatter
#define MPI_IScatterv MPI_Iscatterv
#define MPI_IAllgather MPI_Iallgather
#define MPI_IAllgatherv MPI_Iallgatherv
#define MPI_IAlltoall MPI_Ialltoall
#define MPI_IAlltoallv MPI_Ialltoallv
#define MPI_IAlltoallw MPI_Ialltoallw
#define MPI_IReduce MPI_Ireduce
#define MPI_IAllreduce MPI_Iallreduce
#define MPI_IReduce_scatter MPI_Ireduce_scatter
#define MPI_IReduce_scatter_block MPI_Ireduce_scatter_block
#define MPI_IScan MPI_Iscan
#define MPI_IExscan MPI_Iexscan
#define MPI_INeighbor_allgather MPI_Ineighbor_allgather
#define MPI_INeighbor_allgatherv MPI_Ineighbor_allgatherv
#define MPI_INeighbor_alltoall MPI_Ineighbor_alltoall
#define MPI_INeighbor_alltoallv MPI_Ineighbor_alltoallv
#define MPI_INeighbor_alltoallw MPI_Ineighbor_alltoallw
	COLLECTIVES(X, INT_N, INT_V)
#undef X
	default: return MPI_ERR_OTHER;
	}
}

/* The name of a call of MPI-4, as dlsym(3) wants it; Open MPI 4 has the persistent ones as MPIX. */
static int (*found(enum which which, enum how how))()
{
	char name[64];
	int (*f)();

	snprintf(name, sizeof name, "MPI_%s%s%s", how == NONBLOCKING_C ? "I" : "", which_names[which],
		 how == PERSISTENT ? "_init" : how == PERSISTENT_C ? "_init_c" : "_c");
	if (how == NONBLOCKING_C)
		name[5] = (char)(name[5] + 'a' - 'A');
	if ((f = optional(name)) || how != PERSISTENT)
		return f;
	snprintf(name, sizeof name, "MPIX_%s_init", which_names[which]);
	return optional(name);
}

static int call_found(struct coll *a, enum which which, enum how how, int (*f)(), MPI_Request *request)
{
#define X(id, name, ...)                                                                        \
	case id:                                                                                \
		return how == PERSISTENT ? f(__VA_ARGS__, a->comm, MPI_INFO_NULL, request) : 0;
	if (how == PERSISTENT)
		switch (which) {
			COLLECTIVES(X, INT_N, INT_V)
		default: return MPI_ERR_OTHER;
		}
#undef X
#define X(id, name, ...)                                                                        \
	case id:                                                                                \
		return how == BLOCKING_C ? f(__VA_ARGS__, a->comm)                              \
		     : how == NONBLOCKING_C ? f(__VA_ARGS__, a->comm, request)                  \
					    : f(__VA_ARGS__, a->comm, MPI_INFO_NULL, request);
	switch (which) {
		COLLECTIVES(X, BIG_N, BIG_V)
	default: return MPI_ERR_OTHER;
	}
#undef X
}

/* Whether this MPI has the call. */
static inline int there(enum which which, enum how how)
{
	return how == BLOCKING || how == NONBLOCKING || found(which, how);
}

/* One call, complete; a persistent one is started twice. */
static void call(struct coll *a, enum which which, enum how how)
{
	MPI_Request request = MPI_REQUEST_NULL;
	int persistent = how == PERSISTENT || how == PERSISTENT_C;

	if (how == BLOCKING)
		OK(call_blocking(a, which));
	else if (how == NONBLOCKING)
		OK(call_nonblocking(a, which, &request));
	else
		OK(call_found(a, which, how, found(which, how), &request));
	if (how == BLOCKING || how == BLOCKING_C)
		return;
	for (int i = 0; i < 1 + persistent; i++) {
		if (persistent)
			OK(MPI_Start(&request));
		OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
	}
	if (persistent) {
		OK(MPI_Request_free(&request));
	}
	CHECK(request == MPI_REQUEST_NULL);
}

#endif

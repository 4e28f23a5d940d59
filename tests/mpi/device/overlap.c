/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Collectives that return a request, many of them under way at once, which the ranks' devices may do: on several communicators, with
 * buffers of any kind, completed in another order at each rank, by each call that completes requests, in arrays with other requests.
 *
 *   IN_PLACE=1         MPI_Ialltoallv in place, too, by devices: the MPI's blocking call is the reference
 *   FAILS=rank|all     where a device fails: only what that is about is run
 */
#include "device.h"
#include <time.h>

enum { MOST_RANKS = 16, MOST = 12, COMMS = 3 };
enum call {
	IBCAST, IALLREDUCE, IREDUCE, IALLGATHER, IALLGATHERV, IGATHER, ISCATTER, IALLTOALL, IALLTOALLV, IREDUCE_SCATTER, IREDUCE_SCATTER_BLOCK,
	ISCAN, IEXSCAN, IGATHERV, ISCATTERV, CALLS
};

static int failed;
static MPI_Comm comms[COMMS];

struct work {
	enum call call;
	int n, root, in_place, rank, size;
	int counts[MOST_RANKS], places[MOST_RANKS], rcounts[MOST_RANKS], rplaces[MOST_RANKS];
	MPI_Comm comm;
	MPI_Datatype type;
	struct buffer *s, *r;
};

static int begin_call(struct work *w, MPI_Request *request)
{
	int is_root = w->rank == w->root;
	void *s = w->in_place && (is_root || (w->call != IREDUCE && w->call != IGATHER && w->call != IGATHERV)) ? MPI_IN_PLACE : P(w->s);
	void *r = P(w->r);

	switch (w->call) {
	case IBCAST: return MPI_Ibcast(r, w->n, w->type, w->root, w->comm, request);
	case IALLREDUCE: return MPI_Iallreduce(s, r, w->n, MPI_INT, MPI_SUM, w->comm, request);
	case IREDUCE: return MPI_Ireduce(s, r, w->n, MPI_INT, MPI_SUM, w->root, w->comm, request);
	case IALLGATHER: return MPI_Iallgather(s, w->n, w->type, r, w->n, w->type, w->comm, request);
	case IALLGATHERV: return MPI_Iallgatherv(s, w->counts[w->rank], w->type, r, w->counts, w->places, w->type, w->comm, request);
	case IGATHER: return MPI_Igather(s, w->n, w->type, r, w->n, w->type, w->root, w->comm, request);
	case ISCATTER:
		return MPI_Iscatter(P(w->s), w->n, w->type, w->in_place && is_root ? MPI_IN_PLACE : r, w->n, w->type, w->root, w->comm, request);
	case IALLTOALL: return MPI_Ialltoall(s, w->n, w->type, r, w->n, w->type, w->comm, request);
	case IALLTOALLV:
		if (w->in_place && side) {
			*request = MPI_REQUEST_NULL;
			return PMPI_Alltoallv(s, w->counts, w->places, w->type, r, w->rcounts, w->rplaces, w->type, w->comm);
		}
		return MPI_Ialltoallv(s, w->counts, w->places, w->type, r, w->rcounts, w->rplaces, w->type, w->comm, request);
	case IREDUCE_SCATTER: return MPI_Ireduce_scatter(s, r, w->counts, MPI_INT, MPI_SUM, w->comm, request);
	case IREDUCE_SCATTER_BLOCK: return MPI_Ireduce_scatter_block(s, r, w->n, MPI_INT, MPI_SUM, w->comm, request);
	case ISCAN: return MPI_Iscan(s, r, w->n, MPI_INT, MPI_SUM, w->comm, request);
	case IEXSCAN: return MPI_Iexscan(s, r, w->n, MPI_INT, MPI_SUM, w->comm, request);
	case IGATHERV:
		return MPI_Igatherv(s, w->counts[w->rank], w->type, r, is_root ? w->counts : NULL, is_root ? w->places : NULL, w->type, w->root, w->comm,
				    request);
	default:
		return MPI_Iscatterv(P(w->s), is_root ? w->counts : NULL, is_root ? w->places : NULL, w->type,
				     w->in_place && is_root ? MPI_IN_PLACE : r, w->counts[w->rank], w->type, w->root, w->comm, request);
	}
}

static void draw_call(struct work *w, MPI_Comm comm, unsigned most)
{
	int sum = 0, into = 0;

	w->call = (enum call)draw(CALLS), w->n = (int)draw(most), w->in_place = draw(3) == 0, w->comm = comm;
	/* MPI_Ialltoallv in place of Open MPI 4.1 is wrong of 5 ranks. */
	if (w->call == IALLTOALLV && !getenv("IN_PLACE"))
		w->in_place = 0;
	w->type = draw(2) ? MPI_INT : MPI_DOUBLE;
	MPI_Comm_rank(comm, &w->rank);
	MPI_Comm_size(comm, &w->size);
	w->root = (int)draw((unsigned)w->size);
	/* As many draws for each size: the next call may be of another communicator. */
	for (int k = 0; k < MOST_RANKS; k++) {
		int len = (int)draw(most), gap = (int)draw(3);

		w->counts[k] = draw(3) ? len : 0;
		w->places[k] = sum, sum += k < w->size ? w->counts[k] + gap : 0;
	}
	/* Of exchanges each rank has other lengths for each rank: as many for the sum of both, which is the same at both. */
	for (int k = 0; w->call == IALLTOALLV && k < w->size; k++) {
		int len = w->counts[(w->rank + k) % w->size];

		w->rcounts[k] = len, w->rplaces[k] = into, into += len + 1;
	}
	if (w->call == IALLTOALLV) {
		memcpy(w->counts, w->rcounts, sizeof w->counts);
		memcpy(w->places, w->rplaces, sizeof w->places);
	}
	w->s = take(8 * (size_t)(w->n * w->size + sum + into), ANY), w->r = take(8 * (size_t)(w->n * w->size + sum + into), ANY);
}

/* Completes all in an order of this rank's own. */
static void complete(MPI_Request *all, int n, unsigned how)
{
	int left = 0, index, flag = 0, found, indices[2 * MOST + 2];
	MPI_Status status, statuses[2 * MOST + 2];

	for (int i = 0; i < n; i++)
		left += all[i] != MPI_REQUEST_NULL;
	switch (how % 7) {
	case 0: OK(MPI_Waitall(n, all, MPI_STATUSES_IGNORE)); break;
	case 1:
		for (int i = 0; i < n; i++)
			OK(MPI_Wait(&all[(i * 5 + me) % n], MPI_STATUS_IGNORE));
		/* 5 may divide n. */
		OK(MPI_Waitall(n, all, statuses));
		break;
	case 2:
		while (left--)
			OK(MPI_Waitany(n, all, &index, &status));
		break;
	case 3:
		while (left) {
			OK(MPI_Waitsome(n, all, &found, indices, statuses));
			left -= found;
		}
		break;
	case 4:
		while (left) {
			OK(MPI_Testsome(n, all, &found, indices, MPI_STATUSES_IGNORE));
			left -= found;
		}
		break;
	case 5:
		while (!flag)
			OK(MPI_Testall(n, all, &flag, statuses));
		break;
	default:
		for (int i = n - 1; i >= 0; i--)
			for (flag = 0; !flag;) {
				OK(MPI_Request_get_status(all[i], &flag, &status));
				if (flag)
					OK(MPI_Test(&all[i], &flag, &status));
			}
	}
	for (int i = 0; i < n; i++)
		CHECK(all[i] == MPI_REQUEST_NULL);
}

static void several(unsigned most)
{
	struct work all[MOST];
	MPI_Request requests[2 * MOST + 2];
	int n = 1 + (int)draw(MOST), others = 0;
	unsigned own = (unsigned)mix(seed_of_case + 1000u + (unsigned)me);
	struct buffer *sent, *got;

	for (int k = 0; k < n; k++) {
		draw_call(&all[k], comms[draw(COMMS)], most);
		snprintf(the_case + strlen(the_case), sizeof the_case - strlen(the_case), " %d%s", all[k].call, all[k].in_place ? "!" : "");
	}
	sent = take(4000, UNCHANGED), got = take(4000, ANY);
	SIDES {
		for (int k = 0; k < n; k++) {
			OK(begin_call(&all[k], &requests[k]));
			/* Ranks are not at the same call. */
			if (mix(own + (unsigned)k) % 16 == 0)
				nanosleep(&(struct timespec){ 0, 300000 }, NULL);
			/* And blocking ones between them. */
			if (k == n / 2)
				OK(MPI_Allreduce(MPI_IN_PLACE, P(got), 500, MPI_INT, MPI_MAX, all[0].comm));
		}
		others = n;
		OK(MPI_Irecv(P(got), 500, MPI_INT, (me + ranks - 1) % ranks, 5, MPI_COMM_WORLD, &requests[others++]));
		OK(MPI_Isend(P(sent), 500, MPI_INT, (me + 1) % ranks, 5, MPI_COMM_WORLD, &requests[others++]));
		complete(requests, others, own + (unsigned)side);
	}
	end();
}

static void random_calls(void)
{
	for (int i = 0; i < 60; i++) {
		begin("overlap %d", i);
		several(i % 4 ? 400 : 9000);
	}
}

/* A rank waits for a message of another one first, which is sent when that has completed a collective. */
static void crosswise(void)
{
	for (int i = 0; i < 20; i++) {
		MPI_Request request;
		struct buffer *s, *r;
		int byte = 0;

		begin("crosswise %d", i);
		s = take(40000, UNCHANGED), r = take(40000, CHANGED);
		SIDES {
			if (me == 0 && i % 2)
				OK(MPI_Recv(&byte, 1, MPI_INT, 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
			OK(MPI_Iallreduce(P(s), P(r), 10000, MPI_INT, MPI_BXOR, MPI_COMM_WORLD, &request));
			if (me == 1 && i % 2)
				OK(MPI_Send(&byte, 1, MPI_INT, 0, 9, MPI_COMM_WORLD));
			if (me && i % 2 == 0) {
				OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
				OK(MPI_Send(&byte, 1, MPI_INT, 0, 9, MPI_COMM_WORLD));
			}
			for (int k = 1; me == 0 && i % 2 == 0 && k < ranks; k++)
				OK(MPI_Recv(&byte, 1, MPI_INT, k, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
			OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
		}
		end();
	}
}

/* More than the words have room for, of which the root is ahead; with a rank on the host, and with none. */
static void ahead(void)
{
	enum { MANY = 150 };

	for (int i = 0; i < 8; i++) {
		static MPI_Request requests[MANY];
		enum kind kind;

		begin("ahead %d", i);
		kind = i % 4 == 3 && fixed != HOST && me == i / 4 % ranks ? HOST : next_kind();
		struct buffer *b = take_of(kind, 4 * 64 * MANY, ANY);

		SIDES {
			if (me && i % 2)
				nanosleep(&(struct timespec){ 0, 20000000 }, NULL);
			for (int k = 0; k < MANY; k++)
				OK(MPI_Ibcast((char *)P(b) + 256 * k, 64, MPI_INT, i % 4 == 2 ? k % ranks : 0, MPI_COMM_WORLD, &requests[k]));
			OK(MPI_Waitall(MANY, requests, MPI_STATUSES_IGNORE));
		}
		end();
	}
}

/* Datatypes that are freed, and a communicator, while a collective is under way; a request cannot be cancelled. */
static void freed(void)
{
	for (int i = 0; i < 12; i++) {
		struct buffer *s, *r;
		MPI_Request request;
		MPI_Datatype rows;
		MPI_Comm comm;

		begin("freed %d", i);
		s = take(4 * 3000, UNCHANGED), r = take((size_t)(4 * 3000 * ranks), CHANGED);
		SIDES {
			MPI_Comm_dup(MPI_COMM_WORLD, &comm);
			if (i % 3 == 0)
				MPI_Type_contiguous(10, MPI_INT, &rows);
			else
				MPI_Type_vector(5, 1, 2, MPI_INT, &rows);
			MPI_Type_commit(&rows);
			if (me == i % ranks)
				nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
			OK(MPI_Iallgather(P(s), 200, rows, P(r), 200, rows, comm, &request));
			MPI_Type_free(&rows);
			if (i % 2)
				MPI_Comm_free(&comm);
			OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
			if (i % 2 == 0)
				MPI_Comm_free(&comm);
		}
		end();
	}
}

static void failing(void)
{
	for (int i = 0; i < 12; i++) {
		MPI_Request request;
		int code;

		begin("failing %d", i);
		struct buffer *s = take(4000, UNCHANGED), *r = take(4000, CHANGED);

		SIDES {
			OK(MPI_Iallreduce(P(s), P(r), 1000, MPI_UNSIGNED, MPI_SUM, MPI_COMM_WORLD, &request));
			code = MPI_Wait(&request, MPI_STATUS_IGNORE);
			if (code != MPI_SUCCESS) {
				CHECK(side == 0 && getenv("FAILS") && strstr(words(code), "libstrait_mpi"));
				failed++;
				sealed = 1;
			}
		}
		end();
	}
}

static void on_comms(void (*run)(void))
{
	MPI_Comm_split(MPI_COMM_WORLD, 0, -me, &comms[0]);
	MPI_Comm_split(MPI_COMM_WORLD, me % 2, me, &comms[1]);
	comms[2] = MPI_COMM_WORLD;
	run();
	MPI_Comm_free(&comms[0]);
	MPI_Comm_free(&comms[1]);
}

static void random_on_comms(void) { on_comms(random_calls); }

int main(int argc, char **argv)
{
	static const struct subject all[] = {
		{ "random", random_on_comms }, { "crosswise", crosswise }, { "ahead", ahead }, { "freed", freed }, { "failing", failing }
	};
	const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *at = getenv("FAILS");
	int code;

	if (at && rank && strcmp(at, "all") && strcmp(at, rank))
		unsetenv("CUDA_STAND_IN_FAIL");
	code = run_subjects("overlap", argc, argv, at ? all + 4 : all, at ? 1 : COUNT(all), MPI_THREAD_SINGLE);
	if (getenv("FAILS"))
		printf("rank %d: %d calls have failed\n", me, failed);
	return code;
}

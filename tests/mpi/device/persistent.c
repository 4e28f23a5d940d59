/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Persistent requests, started many times with other contents: of point-to-point calls, partitioned, and of collectives. */
#include "shape.h"

/*
 * Other bytes for the buffer of side `s`, from `x`. With STRAIT_MPI_SYNC=device they are queued in a stream for a device's memory, and each
 * start of a request waits for that.
 */
static void refill(struct buffer *b, int s, int x)
{
	static char *locked;
	static size_t room;
	static void *stream;
	const char *sync = getenv("STRAIT_MPI_SYNC");
	int queued = sync && !strcmp(sync, "device") && !s && b->kind == DEVICE && b->len;
	char *now;

	if (queued && room < b->len) {
		if (stream)
			CU(cuMemFreeHost, (void *), locked);
		else
			CU(cuStreamCreate, (void **, unsigned), &stream, 1);
		room = b->len;
		CU(cuMemHostAlloc, (void **, size_t, unsigned), (void **)&locked, room, 0);
	}
	now = queued ? locked : malloc(b->len + 1);
	if (queued)
		CU(cuStreamSynchronize, (void *), stream);
	for (size_t i = 0; i < b->len; i++)
		now[i] = (char)mix(((uint64_t)x << 32) + i);
	if (queued) {
		CU(cuMemcpyAsync, (uint64_t, uint64_t, size_t, void *), (uint64_t)b->at[0], (uint64_t)now, b->len, stream);
		return;
	}
	move(s ? HOST : b->kind, b->at[s], now, b->len);
	free(now);
}

static void has(struct buffer *b, int s, size_t len, int x)
{
	char *now = malloc(b->len + 1);

	get(b, s, 0, now, len);
	for (size_t i = 0; i < len; i++)
		if (now[i] != (char)mix(((uint64_t)x << 32) + i)) {
			fail("byte %zu is not of round %d", i, x);
			break;
		}
	free(now);
}

static void point_to_point(void)
{
	static const int sizes[] = { 8, 5000, 200000 };
	static char room[1 << 20];
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks, len;
	void *at;

	OK(MPI_Buffer_attach(room, sizeof room));
	for (int way = 0; way < 4; way++)
		for (int k = 0; k < COUNT(sizes); k++) {
			int n = sizes[k];

			/* Open MPI 4.1 sends the contents of the first start again. */
			if (way == 2 && ((open_mpi && k) || openmpi4_mtl))
				continue;
			begin("%s_init of %d", way == 0 ? "Send" : way == 1 ? "Ssend" : way == 2 ? "Bsend" : "Rsend", n);
			struct buffer *s = take((size_t)n, ANY), *r = take((size_t)n, CHANGED);

			SIDES {
				MPI_Request q[2];

				OK(MPI_Recv_init(P(r), n, MPI_BYTE, from, 1, MPI_COMM_WORLD, &q[0]));
				switch (way) {
				case 0: OK(MPI_Send_init(P(s), n, MPI_BYTE, to, 1, MPI_COMM_WORLD, &q[1])); break;
				case 1: OK(MPI_Ssend_init(P(s), n, MPI_BYTE, to, 1, MPI_COMM_WORLD, &q[1])); break;
				case 2: OK(MPI_Bsend_init(P(s), n, MPI_BYTE, to, 1, MPI_COMM_WORLD, &q[1])); break;
				default: OK(MPI_Rsend_init(P(s), n, MPI_BYTE, to, 1, MPI_COMM_WORLD, &q[1]));
				}
				for (int round = 0; round < 12; round++) {
					int flag = 0, index;
					MPI_Status status;

					refill(s, side, 100 * me + round);
					if (way == 3) {
						OK(MPI_Start(&q[0]));
						OK(MPI_Barrier(MPI_COMM_WORLD));
						OK(MPI_Start(&q[1]));
					} else {
						OK(MPI_Startall(2, q));
					}
					switch (round % 4) {
					case 0: OK(MPI_Waitall(2, q, MPI_STATUSES_IGNORE)); break;
					case 1:
						while (!flag)
							OK(MPI_Testall(2, q, &flag, MPI_STATUSES_IGNORE));
						break;
					case 2:
						OK(MPI_Waitany(2, q, &index, &status));
						OK(MPI_Waitany(2, q, &index, &status));
						/* Both are inactive now. */
						OK(MPI_Waitany(2, q, &index, &status));
						CHECK(index == MPI_UNDEFINED);
						break;
					default:
						OK(MPI_Wait(&q[1], &status));
						OK(MPI_Wait(&q[0], &status));
						CHECK(status.MPI_SOURCE == from);
					}
					CHECK(q[0] != MPI_REQUEST_NULL && q[1] != MPI_REQUEST_NULL);
					has(r, side, (size_t)n, 100 * from + round);
				}
				OK(MPI_Request_free(&q[0]));
				OK(MPI_Request_free(&q[1]));
				CHECK(q[0] == MPI_REQUEST_NULL);
			}
			end();
		}
	OK(MPI_Buffer_detach(&at, &len));
}

/* Open MPI 4 frees a persistent request that has failed, and a later one may have its handle: what was known of the first one is gone. */
static void failed(void)
{
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;
	MPI_Datatype type;

	begin("a persistent receive that is too short");
	OK(MPI_Type_vector(10, 1, 3, MPI_INT, &type));
	OK(MPI_Type_commit(&type));
	struct buffer *d = take_typed(1, 0, type, ANY), *h = take_of(HOST, 400, CHANGED), *s = take_of(HOST, 400, UNCHANGED);
	char known[400];

	for (size_t i = 0; i < d->len; i++)
		known[i] = (char)mix((1ull << 32) + i);
	SIDES {
		MPI_Request q, send;
		int code, class = 0;

		OK(MPI_Recv_init(P(d), 1, type, from, 1, MPI_COMM_WORLD, &q));
		OK(MPI_Start(&q));
		OK(MPI_Isend(P(s), 100, MPI_INT, to, 1, MPI_COMM_WORLD, &send));
		code = MPI_Wait(&q, MPI_STATUS_IGNORE);
		OK(MPI_Error_class(code, &class));
		CHECK(class == MPI_ERR_TRUNCATE);
		OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
		if (q != MPI_REQUEST_NULL)
			OK(MPI_Request_free(&q));
		OK(MPI_Recv_init(P(h), 100, MPI_INT, from, 2, MPI_COMM_WORLD, &q));
		OK(MPI_Start(&q));
		move(side ? HOST : d->kind, d->at[side], known, d->len);
		OK(MPI_Isend(P(s), 100, MPI_INT, to, 2, MPI_COMM_WORLD, &send));
		OK(MPI_Wait(&q, MPI_STATUS_IGNORE));
		OK(MPI_Wait(&send, MPI_STATUS_IGNORE));
		OK(MPI_Request_free(&q));
		has(d, side, d->len, 1);
	}
	end();
	OK(MPI_Type_free(&type));
}

static int requests_refused;

static void count_refused(MPI_Comm *comm, int *code, ...)
{
	int class = 0;

	(void)comm;
	MPI_Error_class(*code, &class);
	requests_refused += class == MPI_ERR_REQUEST;
}

/* One that the program has freed while it was under way: Open MPI 4 frees it, too, when it has failed. */
static void failed_and_freed(void)
{
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;
	MPI_Errhandler handler;
	MPI_Datatype type;
	MPI_Request q;

	if (fixed == HOST)
		return;
	begin("a persistent receive that is freed, and too short");
	OK(MPI_Type_vector(10, 1, 3, MPI_INT, &type));
	OK(MPI_Type_commit(&type));
	OK(MPI_Comm_create_errhandler(count_refused, &handler));
	struct buffer *d = take_of(DEVICE, 120, ANY), *s = take_of(HOST, 400, UNCHANGED);

	requests_refused = 0;
	OK(MPI_Recv_init(d->at[0], 1, type, from, 1, MPI_COMM_WORLD, &q));
	OK(MPI_Start(&q));
	OK(MPI_Request_free(&q));
	OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler));
	OK(MPI_Isend(s->at[0], 100, MPI_INT, to, 1, MPI_COMM_WORLD, &q));
	OK(MPI_Wait(&q, MPI_STATUS_IGNORE));
	OK(MPI_Barrier(MPI_COMM_WORLD));
	for (int tries = 0, flag; tries < 2000; tries++) {
		q = MPI_REQUEST_NULL;
		OK(MPI_Test(&q, &flag, MPI_STATUS_IGNORE));
	}
	CHECK(requests_refused == 0);
	OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
	OK(MPI_Errhandler_free(&handler));
	/* What of the message has come is not said. */
	for (size_t i = 0; i < d->len; i++)
		get(d, 0, i, &d->at[1][i], 1);
	end();
	OK(MPI_Type_free(&type));
}

/* A start that fails at its second request has begun none: waits and the end of the first write nothing. */
static void not_started(void)
{
	int (*init)() = optional("MPI_Allreduce_init");
	MPI_Request q[2];
	uint64_t gone = 0;

	if (!init || fixed != DEVICE)
		return;
	begin("a start that fails");
	struct buffer *s = take_of(DEVICE, 4000, UNCHANGED), *r = take_of(DEVICE, 4000, UNCHANGED);

	CU(cuMemAlloc_v2, (uint64_t *, size_t), &gone, 4000);
	OK(init(s->at[0], r->at[0], 1000, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &q[0]));
	OK(MPI_Send_init((void *)gone, 4000, MPI_BYTE, me, 1, MPI_COMM_WORLD, &q[1]));
	CU(cuMemFree_v2, (uint64_t), gone);
	CHECK(MPI_Startall(2, q) != MPI_SUCCESS);
	OK(MPI_Wait(&q[0], MPI_STATUS_IGNORE));
	OK(MPI_Request_free(&q[0]));
	OK(MPI_Request_free(&q[1]));
	OK(MPI_Barrier(MPI_COMM_WORLD));
	end();
}

/*
 * A rank without a partner sends to itself: the first call of Open MPI 5 makes a communicator of all ranks, and waits for each of
 * them (without libstrait_mpi too, over ob1 and the MTL).
 */
static void partitioned(void)
{
	int (*send)() = optional("MPI_Psend_init"), (*recv)() = optional("MPI_Precv_init"), (*ready)() = optional("MPI_Pready"),
	    (*arrived)() = optional("MPI_Parrived");
	int other = (me ^ 1) < ranks ? me ^ 1 : me;
	int sends = me % 2 == 0, receives = me % 2 || other == me;

	if (!send || !recv || !ready || !arrived || getenv("NO_PARTITIONED"))
		return;
	begin("partitioned");
	struct buffer *from = take(8 * 4000, ANY), *to = take(8 * 4000, ANY);

	SIDES {
		MPI_Request q[2];
		int n = 0;

		if (sends)
			OK(send(P(from), 8, (MPI_Count)1000, MPI_INT, other, 1, MPI_COMM_WORLD, MPI_INFO_NULL, &q[n++]));
		if (receives)
			OK(recv(P(to), 8, (MPI_Count)1000, MPI_INT, other, 1, MPI_COMM_WORLD, MPI_INFO_NULL, &q[n++]));
		for (int round = 0; round < 3; round++) {
			if (sends)
				refill(from, side, round);
			OK(MPI_Startall(n, q));
			for (int i = 0; i < 8 && sends; i++)
				OK(ready(i * 3 % 8, q[0]));
			OK(MPI_Waitall(n, q, MPI_STATUSES_IGNORE));
			if (receives)
				has(to, side, to->len, round);
			OK(MPI_Barrier(MPI_COMM_SELF));
		}
		for (int i = 0; i < n; i++)
			OK(MPI_Request_free(&q[i]));
	}
	end();
}

static int turn;

static void collectives_by(enum how how)
{
	static const int sizes[] = { 4, 700, 0, 6000 };
	struct peers p = all_of(MPI_COMM_WORLD);

	for (enum which which = 0; which < WHOLE; which++)
		for (int in_place = 0; in_place < 2 && there(which, how); in_place++)
			for (int k = 0; k < COUNT(sizes); k++) {
				struct shape w = { .which = which, .how = how, .k = sizes[k], .in_place = in_place,
						   .pair = turn % FIXED_PAIRS, .reduction = (enum reduction)(turn % REDUCTIONS),
						   .root = turn % ranks };

				/* Intel MPI 2021.18: "Message truncated". */
				if (in_place && (which == BCAST || (intel && which == ALLTOALLW)))
					continue;
				begin("%s%s: k %d pair %d reduction %d%s root %d", which_names[which], how_names[how], w.k, w.pair,
				      w.reduction, in_place ? " in place" : "", w.root);
				turn++;
				run_shape(&w, &p);
			}
}

static void collectives(void) { collectives_by(PERSISTENT); }
static void large_counts(void) { collectives_by(PERSISTENT_C); }

int main(int argc, char **argv)
{
	static const struct subject all[] = {
		{ "point_to_point", point_to_point }, { "failed", failed }, { "failed_and_freed", failed_and_freed },
		{ "not_started", not_started }, { "partitioned", partitioned },
		{ "collectives", collectives }, { "large_counts", large_counts },
	};

	return run_subjects("persistent", argc, argv, all, COUNT(all), MPI_THREAD_SINGLE);
}

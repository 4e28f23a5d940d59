/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* MPI_THREAD_MULTIPLE: threads that each send, receive and reduce device memory, also without a current context of CUDA's. */
#include "types.h"
#include <pthread.h>

enum { THREADS = 4, ROUNDS = 40, LEN = 6000 };

struct work {
	pthread_t thread;
	int number, wrong, other_side;
	MPI_Comm comm;
	struct buffer *s, *r, *x;
	MPI_Request q;
};

/* No fail(): its text is the main thread's. */
#define THREAD_OK(call) (w->wrong += (call) != MPI_SUCCESS)

static void *rounds(void *arg)
{
	struct work *w = arg;
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks, s = w->other_side;
	char *send = w->s->at[s], *recv = w->r->at[s], *x = w->x->at[s];

	/* Odd threads have no context: the library's copies may not ask for one. */
	if (w->number % 2 == 0 && fixed != HOST)
		cuda_begin(me);
	for (int i = 0; i < ROUNDS; i++) {
		int n = 1 + (i * 613 + w->number * 97) % LEN;
		MPI_Request q[2];

		THREAD_OK(MPI_Irecv(recv, n, MPI_BYTE, from, i, w->comm, &q[0]));
		THREAD_OK(MPI_Isend(send, n, MPI_BYTE, to, i, w->comm, &q[1]));
		THREAD_OK(MPI_Waitall(2, q, MPI_STATUSES_IGNORE));
		THREAD_OK(MPI_Allreduce(MPI_IN_PLACE, x, n / 4, MPI_INT, MPI_BXOR, w->comm));
		THREAD_OK(MPI_Bcast(x, n, MPI_BYTE, i % ranks, w->comm));
	}
	return NULL;
}

static int multiple(void)
{
	int level;

	MPI_Query_thread(&level);
	if (level < MPI_THREAD_MULTIPLE && me == 0)
		fprintf(stderr, "  no MPI_THREAD_MULTIPLE\n");
	return level >= MPI_THREAD_MULTIPLE;
}

static void together(void)
{
	struct work all[THREADS];

	if (!multiple())
		return;
	begin("%d threads", THREADS);
	memset(all, 0, sizeof all);
	for (int t = 0; t < THREADS; t++) {
		all[t] = (struct work){ .number = t, .s = take(LEN, UNCHANGED), .r = take(LEN, CHANGED), .x = take(LEN, CHANGED) };
		OK(MPI_Comm_dup(MPI_COMM_WORLD, &all[t].comm));
	}
	SIDES {
		for (int t = 0; t < THREADS; t++) {
			all[t].other_side = side;
			pthread_create(&all[t].thread, NULL, rounds, &all[t]);
		}
		for (int t = 0; t < THREADS; t++) {
			pthread_join(all[t].thread, NULL);
			CHECK(!all[t].wrong);
		}
	}
	for (int t = 0; t < THREADS; t++)
		OK(MPI_Comm_free(&all[t].comm));
	end();
}

/* A request of one thread is completed by another. */
static void *waits(void *arg)
{
	struct work *w = arg;

	THREAD_OK(MPI_Wait(&w->q, MPI_STATUS_IGNORE));
	return NULL;
}

static void passed_on(void)
{
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;

	if (!multiple())
		return;
	for (int i = 0; i < 10; i++) {
		struct work work = { 0 }, *w = &work;

		begin("a request that another thread completes, %d", i);
		struct buffer *s = take(20000, UNCHANGED), *r = take(20000, CHANGED);

		SIDES {
			OK(MPI_Irecv(P(r), 20000, MPI_BYTE, from, i, MPI_COMM_WORLD, &w->q));
			pthread_create(&w->thread, NULL, waits, w);
			OK(MPI_Send(P(s), 20000, MPI_BYTE, to, i, MPI_COMM_WORLD));
			pthread_join(w->thread, NULL);
			CHECK(!w->wrong);
		}
		end();
	}
}

int main(int argc, char **argv)
{
	static const struct subject all[] = { { "together", together }, { "passed_on", passed_on } };

	return run_subjects("threads", argc, argv, all, COUNT(all), MPI_THREAD_MULTIPLE);
}

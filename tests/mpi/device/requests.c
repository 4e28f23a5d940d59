/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Requests of every sort, in every call that completes them, mixed with those of host memory. */
#include "types.h"

enum { N = 12 };

/* What N receives and N sends of a pair complete by. */
enum by { WAIT, TEST, WAITANY, TESTANY, WAITSOME, TESTSOME, WAITALL, TESTALL, STATUS_FIRST, BYS };
static const char *const by_names[] = { "Wait", "Test", "Waitany", "Testany", "Waitsome", "Testsome", "Waitall", "Testall",
					"Request_get_status" };

static void status_is(const MPI_Status *s, int from, int i, int n)
{
	int got = -1;

	CHECK(s->MPI_SOURCE == from);
	CHECK(s->MPI_TAG == i);
	OK(MPI_Get_count(s, MPI_INT, &got));
	CHECK(got == n);
}

static void complete(enum by by, MPI_Request *q, int from, const int *n)
{
	MPI_Status s[2 * N], one;
	int left = 2 * N, flag = 0, index, done, indices[2 * N];

	switch (by) {
	case WAIT:
		for (int i = 2 * N - 1; i >= 0; i--) {
			OK(MPI_Wait(&q[i], &one));
			if (i < N)
				status_is(&one, from, i, n[i]);
		}
		break;
	case TEST:
		for (int i = 0; i < 2 * N; i++) {
			for (flag = 0; !flag;)
				OK(MPI_Test(&q[i], &flag, &one));
			if (i < N)
				status_is(&one, from, i, n[i]);
		}
		break;
	case WAITANY:
	case TESTANY:
		while (left) {
			flag = 1;
			if (by == WAITANY)
				OK(MPI_Waitany(2 * N, q, &index, &one));
			else
				OK(MPI_Testany(2 * N, q, &index, &flag, &one));
			if (!flag)
				continue;
			CHECK(index >= 0 && index < 2 * N && q[index] == MPI_REQUEST_NULL);
			if (index >= 0 && index < N)
				status_is(&one, from, index, n[index]);
			left--;
		}
		OK(MPI_Waitany(2 * N, q, &index, &one));
		CHECK(index == MPI_UNDEFINED);
		break;
	case WAITSOME:
	case TESTSOME:
		while (left) {
			if (by == WAITSOME)
				OK(MPI_Waitsome(2 * N, q, &done, indices, s));
			else
				OK(MPI_Testsome(2 * N, q, &done, indices, s));
			for (int i = 0; i < done; i++) {
				CHECK(q[indices[i]] == MPI_REQUEST_NULL);
				if (indices[i] < N)
					status_is(&s[i], from, indices[i], n[indices[i]]);
			}
			left -= done;
		}
		OK(MPI_Testsome(2 * N, q, &done, indices, MPI_STATUSES_IGNORE));
		CHECK(done == MPI_UNDEFINED);
		break;
	case TESTALL:
		while (!flag)
			OK(MPI_Testall(2 * N, q, &flag, s));
		break;
	case STATUS_FIRST:
		/* It says complete, and completes nothing: the request stays. */
		for (int i = 0; i < 2 * N; i++) {
			MPI_Request was = q[i];

			for (flag = 0; !flag;)
				OK(MPI_Request_get_status(q[i], &flag, &one));
			CHECK(q[i] == was);
			if (i < N)
				status_is(&one, from, i, n[i]);
		}
		/* fall through */
	default:
		OK(MPI_Waitall(2 * N, q, s));
	}
	for (int i = 0; i < N && (by == WAITALL || by == TESTALL); i++)
		status_is(&s[i], from, i, n[i]);
	for (int i = 0; i < 2 * N; i++)
		CHECK(q[i] == MPI_REQUEST_NULL);
}

static void completions(void)
{
	enum kind was = fixed;
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks, n[N];

	for (enum by by = 0; by < BYS; by++)
		for (int mixed = 0; mixed < 2; mixed++) {
			struct buffer *s[N], *r[N];

			/* Every other one in host memory. */
			begin("%s%s", by_names[by], mixed ? ", every other in host memory" : "");
			for (int i = 0; i < N; i++) {
				n[i] = i % 3 == 2 ? 20000 : i * 10;
				fixed = mixed && i % 2 ? HOST : was;
				r[i] = take(4 * (size_t)n[i], n[i] ? CHANGED : ANY);
				s[i] = take(4 * (size_t)n[i], UNCHANGED);
			}
			fixed = was;
			SIDES {
				MPI_Request q[2 * N];

				for (int i = 0; i < N; i++)
					OK(MPI_Irecv(P(r[i]), n[i], MPI_INT, from, i, MPI_COMM_WORLD, &q[i]));
				for (int i = N - 1; i >= 0; i--)
					OK(MPI_Isend(P(s[i]), n[i], MPI_INT, to, i, MPI_COMM_WORLD, &q[N + i]));
				complete(by, q, from, n);
				for (int i = 0; i < N; i++)
					has_first(r[i], side, 0, 4 * (size_t)n[i], from, 2 * i + 1, 0);
			}
			end();
		}
}

/* Freed before they complete: the transfer goes on. Behind what says that it is over no call waits for or tests a request. */
static void freed(void)
{
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;
	MPI_Datatype gappy;

	OK(MPI_Type_create_resized(MPI_BYTE, 0, 3, &gappy));
	OK(MPI_Type_commit(&gappy));
	for (int way = 0; way < 4; way++)
		for (int n = 10; n < 200000; n *= 100) {
			MPI_Datatype type = way % 2 ? gappy : MPI_BYTE;

			begin("Request_free of %d%s, then %s", n, way % 2 ? " with gaps" : "", way < 2 ? "a receive" : "a barrier");
			struct buffer *s = take_typed(n, 0, type, UNCHANGED), *r = take_typed(n, 0, type, CHANGED), *late = take_typed(n, 0, type, CHANGED);

			SIDES {
				MPI_Request q, other;
				char answer = 0, all[2];

				OK(MPI_Irecv(P(r), n, type, from, 1, MPI_COMM_WORLD, &other));
				OK(MPI_Isend(P(s), n, type, to, 1, MPI_COMM_WORLD, &q));
				OK(MPI_Request_free(&q));
				CHECK(q == MPI_REQUEST_NULL);
				OK(MPI_Wait(&other, MPI_STATUS_IGNORE));
				/* A receive that is freed: complete once a later message of the same sender has come. */
				OK(MPI_Irecv(P(late), n, type, from, 2, MPI_COMM_WORLD, &q));
				OK(MPI_Request_free(&q));
				OK(MPI_Sendrecv(P(s), n, type, to, 2, &answer, 0, MPI_BYTE, MPI_PROC_NULL, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
				for (int i = 0; i < 3; i++)
					OK(MPI_Sendrecv(&answer, 1, MPI_BYTE, to, 3, &answer, 1, MPI_BYTE, from, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
				if (way >= 2)
					OK(MPI_Barrier(MPI_COMM_WORLD));
				for (int tries = 0, flag; tries < 2000; tries++)
					OK(MPI_Iprobe(MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE));
				if (way < 2)
					OK(MPI_Sendrecv(&answer, 1, MPI_BYTE, to, 3, &answer, 1, MPI_BYTE, from, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
				else
					OK(MPI_Barrier(MPI_COMM_WORLD));
				for (int i = 0; i < 2; i++) {
					size_t at = i ? (type == gappy ? 3 : 1) * (size_t)(n - 1) : 0;

					get(late, side, at, &all[i], 1);
					CHECK(all[i] == (char)first_byte(from, 0, at));
				}
			}
			end();
		}
	OK(MPI_Type_free(&gappy));
}

static long resident(void)
{
	FILE *f = fopen("/proc/self/statm", "r");
	long all = 0, here = 0;

	if (f) {
		CHECK(fscanf(f, "%ld %ld", &all, &here) == 2);
		fclose(f);
	}
	return here * sysconf(_SC_PAGESIZE);
}

/* Freed sends, and receives that block: what stands for the buffers of those that are over is used again. */
static void freed_sends(void)
{
	enum { COUNT_OF_SENDS = 300, BYTES = 50000 };
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;
	MPI_Datatype gappy;

	OK(MPI_Type_vector(2, BYTES, BYTES + 100, MPI_BYTE, &gappy));
	OK(MPI_Type_commit(&gappy));
	begin("%d freed sends", COUNT_OF_SENDS);
	struct buffer *s = take_typed(1, 0, gappy, UNCHANGED), *r = take_typed(1, 0, gappy, CHANGED);

	SIDES {
		long before = 0;

		for (int i = 0; i < COUNT_OF_SENDS; i++) {
			MPI_Request q;

			OK(MPI_Isend(P(s), 1, gappy, to, 1, MPI_COMM_WORLD, &q));
			OK(MPI_Request_free(&q));
			OK(MPI_Recv(P(r), 1, gappy, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
			OK(MPI_Barrier(MPI_COMM_WORLD));
			if (i == 20)
				before = resident();
		}
		CHECK(resident() - before < (COUNT_OF_SENDS - 20) * BYTES);
	}
	end();
	OK(MPI_Type_free(&gappy));
}

/* A receive that nothing matches is cancelled, and leaves its buffer alone. */
static void cancelled(void)
{
	begin("Cancel");
	struct buffer *r = take(5000, UNCHANGED), *x = take(5000, UNCHANGED);

	SIDES {
		MPI_Request q, persistent;
		MPI_Status status;
		int flag = 0;

		OK(MPI_Irecv(P(r), 5000, MPI_BYTE, MPI_ANY_SOURCE, 4711, MPI_COMM_WORLD, &q));
		OK(MPI_Cancel(&q));
		OK(MPI_Wait(&q, &status));
		OK(MPI_Test_cancelled(&status, &flag));
		CHECK(flag);
		OK(MPI_Recv_init(P(x), 5000, MPI_BYTE, MPI_ANY_SOURCE, 4712, MPI_COMM_WORLD, &persistent));
		for (int i = 0; i < 3; i++) {
			OK(MPI_Start(&persistent));
			OK(MPI_Cancel(&persistent));
			OK(MPI_Wait(&persistent, &status));
			OK(MPI_Test_cancelled(&status, &flag));
			CHECK(flag);
		}
		OK(MPI_Request_free(&persistent));
	}
	end();
}

/* A device's copy into the gaps of a posted receive, while that is under way. */
static void gaps(void)
{
	enum { ROWS = 500 };
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;
	MPI_Datatype even;

	OK(MPI_Type_vector(ROWS, 4, 8, MPI_INT, &even));
	OK(MPI_Type_commit(&even));
	for (int how = 0; how < 3; how++) {
		begin("gaps written during a transfer, %d", how);
		struct buffer *r = take(ROWS * 32, CHANGED), *s = take(ROWS * 32, ANY);

		SIDES {
			MPI_Request q[4];
			int n = 2;

			OK(MPI_Irecv(P(r), 1, even, from, 1, MPI_COMM_WORLD, &q[0]));
			if (how == 1) {
				/* The other columns by another transfer. */
				OK(MPI_Irecv((char *)P(r) + 16, 1, even, from, 2, MPI_COMM_WORLD, &q[1]));
				OK(MPI_Isend(P(s), 1, even, to, 2, MPI_COMM_WORLD, &q[2]));
				n = 3;
			}
			if (how != 1) {
				for (int row = 0; row < ROWS - 1; row++)
					move(side ? HOST : r->kind, (char *)P(r) + 32 * row + 16, r->before + 40, 16);
			}
			if (how == 2)
				/* Into the gaps of what is sent. */
				for (int row = 0; row < ROWS - 1; row++)
					move(side ? HOST : s->kind, (char *)P(s) + 32 * row + 16, s->before + 40, 16);
			OK(MPI_Isend(P(s), 1, even, to, 1, MPI_COMM_WORLD, &q[n - 1]));
			if (how == 2)
				for (int row = 0; row < ROWS - 1; row++)
					move(side ? HOST : s->kind, (char *)P(s) + 32 * row + 16, s->before + 60, 16);
			OK(MPI_Waitall(n, q, MPI_STATUSES_IGNORE));
		}
		end();
	}
	OK(MPI_Type_free(&even));
}

/* One-sided calls with gaps, whose requests MPICH completes before the data are there: completed in the epoch, and behind it. */
static void windows(void)
{
	enum { ELEMENTS = 100 };
	int target = (me + 1) % ranks;
	MPI_Datatype gappy;

	OK(MPI_Type_create_resized(MPI_INT, 0, 12, &gappy));
	OK(MPI_Type_commit(&gappy));
	for (int late = 0; late < 3; late++) {
		begin("one-sided calls with gaps, completed %s", late ? late == 1 ? "behind the epoch" : "behind a flush" : "in the epoch");
		struct buffer *o = take(12 * ELEMENTS, UNCHANGED), *r = take(2 * 12 * ELEMENTS, CHANGED);
		int *memory[2];

		SIDES {
			MPI_Request q[3] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL };
			MPI_Win win;

			memory[side] = malloc(3 * 4 * ELEMENTS);
			for (int i = 0; i < 3 * ELEMENTS; i++)
				memory[side][i] = 1000 * me + i;
			OK(MPI_Win_create(memory[side], 3 * 4 * ELEMENTS, 4, MPI_INFO_NULL, MPI_COMM_WORLD, &win));
			OK(MPI_Win_lock_all(0, win));
			OK(MPI_Rget(P(r), ELEMENTS, gappy, target, 0, ELEMENTS, MPI_INT, win, &q[0]));
			OK(MPI_Rget((char *)P(r) + 12 * ELEMENTS, ELEMENTS, gappy, target, ELEMENTS, ELEMENTS, MPI_INT, win, &q[1]));
			OK(MPI_Rput(P(o), ELEMENTS, gappy, target, 2 * ELEMENTS, ELEMENTS, MPI_INT, win, &q[2]));
			if (late == 2)
				OK(MPI_Win_flush(target, win));
			if (late != 1)
				OK(MPI_Waitall(3, q, MPI_STATUSES_IGNORE));
			OK(MPI_Win_unlock_all(win));
			OK(MPI_Waitall(3, q, MPI_STATUSES_IGNORE));
			OK(MPI_Win_free(&win));
		}
		CHECK(!memcmp(memory[0], memory[1], 3 * 4 * ELEMENTS));
		free(memory[0]), free(memory[1]);
		end();
	}
	OK(MPI_Type_free(&gappy));
}

/* Generalized requests, and those of a barrier, in one array with transfers. */
static int query(void *state, MPI_Status *status)
{
	(void)state;
	MPI_Status_set_elements(status, MPI_INT, 0);
	MPI_Status_set_cancelled(status, 0);
	status->MPI_SOURCE = MPI_UNDEFINED, status->MPI_TAG = MPI_UNDEFINED;
	return MPI_SUCCESS;
}
static int freed_one(void *state) { (void)state; return MPI_SUCCESS; }
static int cancel(void *state, int complete) { (void)state, (void)complete; return MPI_SUCCESS; }

static void foreign(void)
{
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;

	begin("requests of other sorts");
	struct buffer *s = take(3000, UNCHANGED), *r = take(3000, CHANGED);

	SIDES {
		MPI_Request q[5] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL };
		int left = 4, index;

		OK(MPI_Grequest_start(query, freed_one, cancel, NULL, &q[0]));
		OK(MPI_Irecv(P(r), 3000, MPI_BYTE, from, 1, MPI_COMM_WORLD, &q[1]));
		OK(MPI_Ibarrier(MPI_COMM_WORLD, &q[3]));
		OK(MPI_Isend(P(s), 3000, MPI_BYTE, to, 1, MPI_COMM_WORLD, &q[4]));
		OK(MPI_Grequest_complete(q[0]));
		while (left--)
			OK(MPI_Waitany(5, q, &index, MPI_STATUS_IGNORE));
	}
	end();
}

/* Thousands of requests one after another: what belongs to them is used again. */
static void many(void)
{
	int other = me ^ 1;

	begin("3000 requests");
	struct buffer *b = take(3000 * 8, ANY);

	if (other < ranks)
		for (side = 0; side < 2; side++)
			for (int round = 0; round < 30; round++) {
				MPI_Request q[100];

				for (int i = 0; i < 100; i++) {
					char *at = (char *)P(b) + 8 * (100 * round + i);

					if (me % 2)
						OK(MPI_Irecv(at, 8, MPI_BYTE, other, i, MPI_COMM_WORLD, &q[i]));
					else
						OK(MPI_Isend(at, 8, MPI_BYTE, other, i, MPI_COMM_WORLD, &q[i]));
				}
				OK(MPI_Waitall(100, q, MPI_STATUSES_IGNORE));
			}
	if (me % 2)
		has_first(b, 0, 0, b->len, other, 0, 0);
	end();
}

int main(int argc, char **argv)
{
	static const struct subject all[] = {
		{ "completions", completions }, { "freed", freed }, { "freed_sends", freed_sends }, { "cancelled", cancelled },
		{ "gaps", gaps }, { "windows", windows }, { "foreign", foreign }, { "many", many },
	};

	return run_subjects("requests", argc, argv, all, COUNT(all), MPI_THREAD_SINGLE);
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A plain MPI program that touches every kind of traffic once and checks what arrives.
 * Any number of ranks from 1 up.  Prints "exchange ok" on rank 0 and exits 0 when all is well.
 * With the argument `threads` it asks for MPI_THREAD_MULTIPLE.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

#define CHECK(cond, ...)                                                        \
	do {                                                                    \
		if (!(cond)) {                                                  \
			fprintf(stderr, "rank %d, line %d: ", rank, __LINE__);  \
			fprintf(stderr, __VA_ARGS__);                           \
			fputc('\n', stderr);                                    \
			MPI_Abort(MPI_COMM_WORLD, 1);                           \
		}                                                               \
	} while (0)

/* Content that depends on the sender, on the step and on the position. */
static unsigned char byte_at(int from, int step, size_t i)
{
	return (unsigned char)(from * 37 + step * 11 + i * 7 + (i >> 8) * 13 + (i >> 16));
}

static void fill(unsigned char *b, size_t n, int from, int step)
{
	for (size_t i = 0; i < n; i++)
		b[i] = byte_at(from, step, i);
}

static void verify(const unsigned char *b, size_t n, int from, int step)
{
	for (size_t i = 0; i < n; i++)
		CHECK(b[i] == byte_at(from, step, i), "step %d, %zu bytes from %d: wrong at %zu",
		      step, n, from, i);
}

static void ring(void)
{
	int next = (rank + 1) % size, prev = (rank + size - 1) % size;

	for (int lap = 0; lap < 50; lap++) {
		int token = lap;

		if (size == 1)
			break;
		if (rank == 0) {
			MPI_Send(&token, 1, MPI_INT, next, lap, MPI_COMM_WORLD);
			MPI_Recv(&token, 1, MPI_INT, prev, lap, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			CHECK(token == lap + size - 1, "ring: token %d in lap %d", token, lap);
		} else {
			MPI_Recv(&token, 1, MPI_INT, prev, lap, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			token++;
			MPI_Send(&token, 1, MPI_INT, next, lap, MPI_COMM_WORLD);
		}
	}
}

/* Every size class, each with one byte less and one more: 1 B to 4 MiB. */
static void sendrecv(void)
{
	const size_t max = (4u << 20) + 1;
	int next = (rank + 1) % size, prev = (rank + size - 1) % size, step = 0;
	unsigned char *out = malloc(max), *in = malloc(max);

	CHECK(out && in, "no memory");
	for (size_t base = 1; base <= 4u << 20; base *= 2)
		for (int d = -1; d <= 1; d++, step++) {
			size_t n = base + d;
			MPI_Status st;
			int got;

			fill(out, n, rank, step);
			memset(in, 0xee, n);
			MPI_Sendrecv(out, (int)n, MPI_BYTE, next, step, in, (int)max, MPI_BYTE, prev,
				     step, MPI_COMM_WORLD, &st);
			MPI_Get_count(&st, MPI_BYTE, &got);
			CHECK((size_t)got == n && st.MPI_SOURCE == prev && st.MPI_TAG == step,
			      "sendrecv of %zu: got %d from %d tag %d", n, got, st.MPI_SOURCE, st.MPI_TAG);
			verify(in, n, prev, step);
		}
	free(out);
	free(in);
}

/* Unexpected messages of mixed sizes, found by probe and mprobe, with any source and any tag. */
static void probes(void)
{
	static const int sizes[] = { 0, 1, 100, 5000, 70000, 1000000 };
	enum { N = sizeof(sizes) / sizeof(*sizes) };
	int total = (size - 1) * N;

	if (rank != 0) {
		MPI_Request req[N];
		unsigned char *buf[N];

		for (int i = 0; i < N; i++) {
			buf[i] = malloc(sizes[i] + 1);
			fill(buf[i], sizes[i], rank, i);
			MPI_Isend(buf[i], sizes[i], MPI_BYTE, 0, 200 + i, MPI_COMM_WORLD, &req[i]);
		}
		MPI_Waitall(N, req, MPI_STATUSES_IGNORE);
		for (int i = 0; i < N; i++)
			free(buf[i]);
	} else {
		int *seen = calloc(size, sizeof(int));

		for (int k = 0; k < total; k++) {
			unsigned char *b;
			MPI_Message msg;
			MPI_Status st;
			int n, i;

			if (k % 2) {
				MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &msg, &st);
			} else {
				int flag = 0;
				while (!flag)
					MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &st);
			}
			MPI_Get_count(&st, MPI_BYTE, &n);
			i = st.MPI_TAG - 200;
			CHECK(i >= 0 && i < N && n == sizes[i], "probe: tag %d, %d bytes", st.MPI_TAG, n);
			b = malloc(n + 1);
			if (k % 2)
				MPI_Mrecv(b, n, MPI_BYTE, &msg, &st);
			else
				MPI_Recv(b, n, MPI_BYTE, st.MPI_SOURCE, st.MPI_TAG, MPI_COMM_WORLD, &st);
			verify(b, n, st.MPI_SOURCE, i);
			CHECK(!(seen[st.MPI_SOURCE] & 1 << i), "the same message twice");
			seen[st.MPI_SOURCE] |= 1 << i;
			free(b);
		}
		free(seen);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

/* Many receives posted for any source; the messages of one sender must stay in order. */
static void any_source(void)
{
	enum { PER = 200 };

	if (rank == 0) {
		int total = (size - 1) * PER, *val = malloc((total + 1) * sizeof(int));
		int *last = malloc(size * sizeof(int));
		MPI_Request *req = malloc((total + 1) * sizeof(*req));
		MPI_Status *st = malloc((total + 1) * sizeof(*st));

		for (int i = 0; i < size; i++)
			last[i] = -1;
		for (int i = 0; i < total; i++)
			MPI_Irecv(&val[i], 1, MPI_INT, MPI_ANY_SOURCE, 7, MPI_COMM_WORLD, &req[i]);
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Waitall(total, req, st);
		for (int i = 0; i < total; i++) {
			int s = st[i].MPI_SOURCE;
			CHECK(val[i] == last[s] + 1, "any source: %d after %d from %d", val[i], last[s], s);
			last[s] = val[i];
		}
		free(val), free(last), free(req), free(st);
	} else {
		MPI_Barrier(MPI_COMM_WORLD);
		for (int i = 0; i < PER; i++)
			MPI_Send(&i, 1, MPI_INT, 0, 7, MPI_COMM_WORLD);
	}
}

/* Persistent requests and synchronous sends; a cancelled receive. */
static void requests(void)
{
	int next = (rank + 1) % size, prev = (rank + size - 1) % size, flag = 0;
	enum { N = 3000 };
	static unsigned char out[N], in[N];
	MPI_Request req[2];
	MPI_Status st;

	MPI_Send_init(out, N, MPI_BYTE, next, 300, MPI_COMM_WORLD, &req[0]);
	MPI_Recv_init(in, N, MPI_BYTE, prev, 300, MPI_COMM_WORLD, &req[1]);
	for (int i = 0; i < 20; i++) {
		fill(out, N, rank, i);
		MPI_Startall(2, req);
		MPI_Waitall(2, req, MPI_STATUSES_IGNORE);
		verify(in, N, prev, i);
	}
	MPI_Request_free(&req[0]);
	MPI_Request_free(&req[1]);

	for (int i = 0; i < 20; i++) {
		int n = i * 150;

		fill(out, n, rank, i);
		MPI_Irecv(in, N, MPI_BYTE, prev, 301, MPI_COMM_WORLD, &req[1]);
		MPI_Issend(out, n, MPI_BYTE, next, 301, MPI_COMM_WORLD, &req[0]);
		MPI_Waitall(2, req, MPI_STATUSES_IGNORE);
		verify(in, n, prev, i);
	}

	MPI_Irecv(in, N, MPI_BYTE, prev, 302, MPI_COMM_WORLD, &req[0]);
	MPI_Cancel(&req[0]);
	MPI_Wait(&req[0], &st);
	MPI_Test_cancelled(&st, &flag);
	CHECK(flag, "a receive that nothing matches was not cancelled");
}

/* A strided column: non-contiguous on both sides. */
static void datatypes(void)
{
	enum { ROWS = 500, COLS = 40 };
	int next = (rank + 1) % size, prev = (rank + size - 1) % size;
	double *a = malloc(ROWS * COLS * sizeof(*a)), *b = malloc(ROWS * COLS * sizeof(*b));
	MPI_Datatype column;

	for (int i = 0; i < ROWS * COLS; i++)
		a[i] = rank * 1e6 + i, b[i] = -1;
	MPI_Type_vector(ROWS, 3, COLS, MPI_DOUBLE, &column);
	MPI_Type_commit(&column);
	MPI_Sendrecv(a + 5, 1, column, next, 400, b + 5, 1, column, prev, 400, MPI_COMM_WORLD,
		     MPI_STATUS_IGNORE);
	for (int r = 0; r < ROWS; r++)
		for (int c = 0; c < COLS; c++) {
			double want = c >= 5 && c < 8 ? prev * 1e6 + r * COLS + c : -1;
			CHECK(b[r * COLS + c] == want, "column: row %d col %d", r, c);
		}
	MPI_Type_free(&column);
	free(a), free(b);
}

static void rma(void)
{
	enum { N = 1 << 18 };
	int next = (rank + 1) % size, prev = (rank + size - 1) % size;
	unsigned char *base, *buf = malloc(N), *back = malloc(N);
	long *count, one = 1, old, sum;
	MPI_Win win, cwin;

	MPI_Win_allocate(N, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
	memset(base, 0, N);
	MPI_Win_fence(0, win);
	for (int step = 0; step < 3; step++) {
		int n = step == 0 ? 8 : step == 1 ? 5000 : N;

		fill(buf, n, rank, step);
		MPI_Put(buf, n, MPI_BYTE, next, 0, n, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		verify(base, n, prev, step);
		memset(back, 0, n);
		MPI_Get(back, n, MPI_BYTE, next, 0, n, MPI_BYTE, win);
		MPI_Win_fence(0, win);
		verify(back, n, rank, step);
	}
	MPI_Win_free(&win);

	/*
	 * A counter and an accumulation array on rank 0, under lock_all.  Not MPI_Win_allocate again:
	 * Open MPI 4.1 crashes in compare_and_swap on such a window, over any transport.
	 */
	count = malloc(65 * sizeof(long));
	MPI_Win_create(count, 65 * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &cwin);
	MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, cwin);
	memset(count, 0, 65 * sizeof(long));
	MPI_Win_unlock(rank, cwin);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Win_lock_all(0, cwin);
	sum = 0;
	for (int i = 0; i < 100; i++) {
		MPI_Fetch_and_op(&one, &old, MPI_LONG, 0, 0, MPI_SUM, cwin);
		MPI_Win_flush(0, cwin);
		CHECK(old >= sum && old < 100L * size, "fetch_and_op: %ld after %ld", old, sum);
		sum = old + 1;
	}
	long v[64];
	for (int i = 0; i < 64; i++)
		v[i] = i + rank;
	MPI_Accumulate(v, 64, MPI_LONG, 0, 1, 64, MPI_LONG, MPI_SUM, cwin);
	MPI_Win_flush(0, cwin);
	MPI_Win_unlock_all(cwin);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, cwin);
		CHECK(count[0] == 100L * size, "counter %ld of %ld", count[0], 100L * size);
		for (int i = 0; i < 64; i++) {
			long want = (long)i * size + (long)size * (size - 1) / 2;
			CHECK(count[1 + i] == want, "accumulate: [%d] = %ld, not %ld", i, count[1 + i], want);
		}
		MPI_Win_unlock(0, cwin);
	}

	/*
	 * compare_and_swap: exactly one rank wins each round.  The owner of the value takes no part:
	 * that is another crash of Open MPI 4.1.
	 */
	for (int round = 0; size > 1 && round < 10; round++) {
		int owner = round % size;
		long mine = 1000 + rank, expect = 77, res = -1, won, all;

		if (rank == owner) {
			MPI_Win_lock(MPI_LOCK_EXCLUSIVE, rank, 0, cwin);
			count[0] = expect;
			MPI_Win_unlock(rank, cwin);
		}
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank != owner) {
			MPI_Win_lock(MPI_LOCK_SHARED, owner, 0, cwin);
			MPI_Compare_and_swap(&mine, &expect, &res, MPI_LONG, owner, 0, cwin);
			MPI_Win_unlock(owner, cwin);
		}
		won = res == expect;
		MPI_Allreduce(&won, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
		CHECK(all == 1, "compare_and_swap: %ld winners", all);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	MPI_Win_free(&cwin);
	free(buf), free(back), free(count);
}

static void collectives(void)
{
	static const int sizes[] = { 1, 1000, 100000 };

	for (int k = 0; k < 3; k++) {
		int n = sizes[k];
		unsigned char *out = malloc((size_t)n * size), *in = malloc((size_t)n * size);
		double x = rank + 1, s;

		for (int p = 0; p < size; p++)
			fill(out + (size_t)p * n, n, rank, p);
		MPI_Alltoall(out, n, MPI_BYTE, in, n, MPI_BYTE, MPI_COMM_WORLD);
		for (int p = 0; p < size; p++)
			verify(in + (size_t)p * n, n, p, rank);
		if (rank == size - 1)
			fill(out, n, 99, k);
		MPI_Bcast(out, n, MPI_BYTE, size - 1, MPI_COMM_WORLD);
		verify(out, n, 99, k);
		MPI_Allreduce(&x, &s, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
		CHECK(s == size * (size + 1) / 2.0, "allreduce: %g", s);
		free(out), free(in);
	}
	for (int i = 0; i < 20; i++)
		MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} parts[] = {
		{ "ring", ring },           { "sendrecv", sendrecv },   { "probes", probes },
		{ "any source", any_source }, { "requests", requests }, { "datatypes", datatypes },
		{ "rma", rma },             { "collectives", collectives },
	};
	int want = argc > 1 && !strcmp(argv[1], "threads") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
	int have;

	MPI_Init_thread(&argc, &argv, want, &have);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	CHECK(have >= want, "thread level %d, wanted %d", have, want);
	for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
		parts[i].run();
		MPI_Barrier(MPI_COMM_WORLD);
		if (rank == 0) {
			printf("exchange: %s\n", parts[i].name);
			fflush(stdout);
		}
	}
	MPI_Finalize();
	if (rank == 0)
		puts("exchange ok");
	return 0;
}

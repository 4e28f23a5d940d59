/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Of random.c: what comes between rounds: windows, collectives, new communicators, pauses. */

static void open_comms(int g)
{
	OK(MPI_Comm_dup(MPI_COMM_WORLD, &comms[g * PER_GROUP]));
	OK(MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &comms[g * PER_GROUP + 1]));
	for (int c = 0; c < PER_GROUP; c++)
		OK(MPI_Comm_set_errhandler(comms[g * PER_GROUP + c], MPI_ERRORS_RETURN));
}

static void window(void)
{
	int slot = 1 + draw(&plan, draw(&plan, 3) ? 3000 : 140000), n = draw(&plan, slot) + 1, passes = 1 + draw(&plan, 4);
	long counts = 1 + draw(&plan, 30), sum = 0, *number;
	size_t bytes = (size_t)slot * size + 64;
	unsigned char *base = malloc(bytes), *from = malloc(bytes), *back = malloc(bytes);
	MPI_Win win, cwin;

	stage = "window";
	memset(base, 0xee, bytes);
	OK(MPI_Win_create(base, (MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win));
	OK(MPI_Win_fence(0, win));
	for (int p = 0; p < passes; p++) {
		for (int t = 0; t < size; t++) {
			struct message m = {.len = n, .number = 1000000 + p * 10000 + rank * 100 + t};

			content(from + (size_t)t * slot, &m);
			OK(MPI_Put(from + (size_t)t * slot, n, MPI_BYTE, t, (MPI_Aint)rank * slot, n, MPI_BYTE, win));
		}
		OK(MPI_Win_fence(0, win));
		for (int t = 0; t < size; t++) {
			struct message m = {.len = n, .number = 1000000 + p * 10000 + t * 100 + rank};

			content(scratch, &m);
			CHECK(!memcmp(base + (size_t)t * slot, scratch, (size_t)n), "a put of %d bytes by %d", n, t);
			for (int i = n; i < slot; i++)
				CHECK(base[(size_t)t * slot + i] == 0xee, "written behind a put");
			OK(MPI_Get(back + (size_t)t * slot, n, MPI_BYTE, t, (MPI_Aint)rank * slot, n, MPI_BYTE, win));
		}
		OK(MPI_Win_fence(0, win));
		for (int t = 0; t < size; t++)
			CHECK(!memcmp(back + (size_t)t * slot, from + (size_t)t * slot, (size_t)n), "a get of %d bytes from %d", n, t);
	}
	OK(MPI_Win_free(&win));
	free(base), free(from), free(back);
	number = calloc(4, sizeof(long));
	OK(MPI_Win_create(number, 4 * sizeof(long), sizeof(long), MPI_INFO_NULL, MPI_COMM_WORLD, &cwin));
	stage = "window of counters";
	for (int i = 0; i < counts; i++) {
		long one = i + 1;
		int t = draw(&own, size);

		OK(MPI_Win_lock(draw(&own, 2) ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE, t, 0, cwin));
		OK(MPI_Accumulate(&one, 1, MPI_LONG, t, draw(&own, 4), 1, MPI_LONG, MPI_SUM, cwin));
		OK(MPI_Win_unlock(t, cwin));
	}
	OK(MPI_Barrier(MPI_COMM_WORLD));
	OK(MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, cwin));
	for (int i = 0; i < 4; i++)
		sum += number[i];
	OK(MPI_Win_unlock(rank, cwin));
	OK(MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD));
	CHECK(sum == size * counts * (counts + 1) / 2, "accumulated %ld, not %ld", sum, size * counts * (counts + 1) / 2);
	OK(MPI_Win_free(&cwin));
	free(number);
}

static void collectives(void)
{
	int what = draw(&plan, 7), n = length(draw(&plan, 4) ? 5000 : 40000), root = draw(&plan, size), c = draw(&plan, GROUPS * PER_GROUP), me = in_comm(c, rank);
	unsigned char *out = malloc((size_t)(n + 8) * size), *in = malloc((size_t)(n + 8) * size);
	struct message m = {.len = n};
	MPI_Comm comm = comms[c];

	stage = "collectives";
	for (int r = 0; r < size; r++) {
		m.number = 2000000 + me * 100 + r;
		content(out + (size_t)r * n, &m);
	}
	memset(in, 0xee, (size_t)(n + 8) * size);
	if (what == 0) {
		OK(MPI_Alltoall(out, n, MPI_BYTE, in, n, MPI_BYTE, comm));
		for (int r = 0; r < size; r++) {
			m.number = 2000000 + r * 100 + me;
			content(scratch, &m);
			CHECK(!memcmp(in + (size_t)r * n, scratch, (size_t)n), "alltoall of %d bytes, from %d", n, r);
		}
	} else if (what == 1 || what == 2) {
		OK(what == 1 ? MPI_Allgather(out, n, MPI_BYTE, in, n, MPI_BYTE, comm) : MPI_Gather(out, n, MPI_BYTE, in, n, MPI_BYTE, root, comm));
		for (int r = 0; r < size && (what == 1 || me == root); r++) {
			m.number = 2000000 + r * 100;
			content(scratch, &m);
			CHECK(!memcmp(in + (size_t)r * n, scratch, (size_t)n), "gather of %d bytes, from %d", n, r);
		}
	} else if (what == 3) {
		OK(MPI_Bcast(out, n, MPI_BYTE, root, comm));
		m.number = 2000000 + root * 100;
		content(scratch, &m);
		CHECK(!memcmp(out, scratch, (size_t)n), "bcast of %d bytes from %d", n, root);
	} else if (what == 4) {
		long *a = malloc(sizeof(long) * (n + 1));

		for (int i = 0; i < n; i++)
			a[i] = me + i;
		OK(MPI_Allreduce(MPI_IN_PLACE, a, n, MPI_LONG, MPI_SUM, comm));
		for (int i = 0; i < n; i++)
			CHECK(a[i] == (long)size * (size - 1) / 2 + (long)i * size, "allreduce of %d at %d", n, i);
		free(a);
	} else if (what == 5) {
		for (int k = 0; k < 5; k++) {
			MPI_Status st;
			int got, next = (me + 1 + k) % size, prev = (me + size - 1 - k % size + size) % size;

			OK(MPI_Sendrecv(out + (size_t)k % size * n, n, MPI_BYTE, next, 99, in, n + 8, MPI_BYTE, prev, 99, comm, &st));
			OK(MPI_Get_count(&st, MPI_BYTE, &got));
			m.number = 2000000 + prev * 100 + k % size;
			content(scratch, &m);
			CHECK(got == n && !memcmp(in, scratch, (size_t)n), "sendrecv of %d bytes from %d: %d", n, prev, got);
		}
	} else {
		OK(MPI_Scatter(out, n, MPI_BYTE, in, n, MPI_BYTE, root, comm));
		m.number = 2000000 + root * 100 + me;
		content(scratch, &m);
		CHECK(!memcmp(in, scratch, (size_t)n), "scatter of %d bytes from %d", n, root);
	}
	free(out), free(in);
}

/* All messages of the rounds before have been received. */
static void between(void)
{
	void *at;
	int n;

	stage = "barrier";
	OK(MPI_Buffer_detach(&at, &n));
	OK(MPI_Buffer_attach(at, n));
	bsend_used = 0;
	OK(MPI_Barrier(MPI_COMM_WORLD));
	for (int k = draw(&plan, 3); k > 0; k--)
		collectives();
	if (!no_rma && !draw(&plan, 6))
		window();
	if (!draw(&plan, 10)) {
		int g = draw(&plan, GROUPS);

		stage = "communicators";
		for (int c = 0; c < PER_GROUP; c++)
			OK(MPI_Comm_free(&comms[g * PER_GROUP + c]));
		open_comms(g);
	}
	/* One that does not call MPI for a while. */
	if (!draw(&plan, 4) && draw(&plan, size) == rank)
		usleep((useconds_t)draw(&own, 100000));
}

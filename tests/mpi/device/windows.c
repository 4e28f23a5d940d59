/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Windows on device memory, and origins in it: each call is right, or ends with an error of MPI's, and never with a signal. */
#include "types.h"

enum { N = 600 };
enum sort { CREATE, ALLOCATE, DYNAMIC, SORTS };
static const char *const sort_names[] = { "Win_create", "Win_allocate", "Win_create_dynamic" };

/* A window of both sides, whose memory is `b`; of ALLOCATE, the MPI's own. */
struct window {
	enum sort sort;
	MPI_Win win[2];
	MPI_Aint base[2][16];	/* of each rank: DYNAMIC addresses memory absolutely */
	struct buffer *b;
	char *own[2];
};

/* Every rank has to know of a refusal at any. */
static int refused(int code)
{
	int worst = 0, mine = code;

	PMPI_Allreduce(&mine, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
	if (worst)
		refuse(code ? code : worst);
	return worst != 0;
}

static int open_window(struct window *w, enum sort sort, size_t len)
{
	int code;

	memset(w, 0, sizeof *w);
	w->sort = sort;
	w->win[0] = w->win[1] = MPI_WIN_NULL;
	w->b = take(len, ANY);
	for (int s = 0; s < 2; s++) {
		MPI_Aint address = 0;

		side = s;
		if (sort == CREATE)
			code = MPI_Win_create(P(w->b), (MPI_Aint)len, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &w->win[s]);
		else if (sort == ALLOCATE)
			code = MPI_Win_allocate((MPI_Aint)len, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &w->own[s], &w->win[s]);
		else if (!(code = MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &w->win[s])) &&
			 !(code = MPI_Win_set_errhandler(w->win[s], MPI_ERRORS_RETURN)))
			code = MPI_Win_attach(w->win[s], P(w->b), (MPI_Aint)len);
		if (s == 1)
			OK(code);
		else if (refused(code))
			return 0;
		OK(MPI_Win_set_errhandler(w->win[s], MPI_ERRORS_RETURN));
		if (sort == DYNAMIC)
			OK(MPI_Get_address(P(w->b), &address));
		PMPI_Allgather(&address, 1, MPI_AINT, w->base[s], 1, MPI_AINT, MPI_COMM_WORLD);
		if (sort == ALLOCATE)
			memcpy(w->own[s], w->b->before + GUARD, len);
	}
	side = 0;
	PMPI_Barrier(MPI_COMM_WORLD);
	return 1;
}

static void close_window(struct window *w)
{
	for (int s = 0; s < 2; s++) {
		side = s;
		PMPI_Barrier(MPI_COMM_WORLD);
		if (w->sort == ALLOCATE && w->own[0] && w->own[1] && s == 0 && memcmp(w->own[0], w->own[1], w->b->len))
			fail("the windows' own memory differs");
		if (w->sort == DYNAMIC && w->win[s] != MPI_WIN_NULL && !sealed)
			OK(MPI_Win_detach(w->win[s], P(w->b)));
		if (w->win[s] != MPI_WIN_NULL)
			OK(MPI_Win_free(&w->win[s]));
	}
	side = 0;
}

enum epoch { FENCE, PSCW, LOCK, LOCK_ALL, EPOCHS };
static const char *const epoch_names[] = { "fence", "post-start", "lock", "lock_all" };

static void epoch(struct window *w, enum epoch e, int opens, int target)
{
	MPI_Win win = w->win[side];
	MPI_Group all, to, from;
	int source = (2 * me + ranks - target) % ranks;

	switch (e) {
	case FENCE:
		OK(MPI_Win_fence(opens ? MPI_MODE_NOPRECEDE : MPI_MODE_NOSUCCEED, win));
		break;
	case PSCW:
		/* The target of each rank is as far from it as it is from that of which it is the target. */
		if (opens) {
			OK(MPI_Comm_group(MPI_COMM_WORLD, &all));
			OK(MPI_Group_incl(all, 1, &target, &to));
			OK(MPI_Group_incl(all, 1, &source, &from));
			OK(MPI_Win_post(from, 0, win));
			OK(MPI_Win_start(to, 0, win));
			OK(MPI_Group_free(&all)); OK(MPI_Group_free(&to)); OK(MPI_Group_free(&from));
		} else {
			OK(MPI_Win_complete(win));
			OK(MPI_Win_wait(win));
		}
		break;
	case LOCK:
		if (opens)
			OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, win));
		else
			OK(MPI_Win_unlock(target, win));
		break;
	default:
		if (opens) {
			OK(MPI_Win_lock_all(0, win));
		} else {
			OK(MPI_Win_flush(target, win));
			OK(MPI_Win_flush_local_all(win));
			OK(MPI_Win_unlock_all(win));
		}
	}
	/* After an access epoch of locks the target sees it when it has synchronised, too. */
	if (!opens && e >= LOCK) {
		OK(MPI_Barrier(MPI_COMM_WORLD));
		OK(MPI_Win_lock(MPI_LOCK_SHARED, me, 0, win));
		OK(MPI_Win_sync(win));
		OK(MPI_Win_unlock(me, win));
		OK(MPI_Barrier(MPI_COMM_WORLD));
	}
}

/* Calls of one epoch, that do not meet: each has its place at the target. */
static int access_all(struct window *w, int target, struct buffer *o, struct buffer *r, struct buffer *c, MPI_Datatype gappy)
{
	MPI_Win win = w->win[side];
	MPI_Aint at = w->sort == DYNAMIC ? w->base[side][target] : 0;
	int code = 0;

	/* put: 0..; get: 1000..; accumulate: 1400..; get_accumulate: 1600..; fetch: 1800; compare: 1808; put of a vector: 1900.. */
	code |= MPI_Put(P(o), 100, MPI_INT, target, at, 100, MPI_INT, win);
	code |= MPI_Get(P(r), 100, MPI_INT, target, at + 1000, 100, MPI_INT, win);
	code |= MPI_Accumulate((char *)P(o) + 400, 50, MPI_INT, target, at + 1400, 50, MPI_INT, MPI_SUM, win);
	code |= MPI_Get_accumulate((char *)P(o) + 600, 50, MPI_INT, (char *)P(r) + 400, 50, MPI_INT, target, at + 1600, 50, MPI_INT,
				   MPI_BXOR, win);
	code |= MPI_Fetch_and_op((char *)P(o) + 800, (char *)P(r) + 600, MPI_LONG, target, at + 1800, MPI_SUM, win);
	code |= MPI_Compare_and_swap((char *)P(o) + 808, (char *)P(c) + 0, (char *)P(r) + 608, MPI_LONG, target, at + 1808, win);
	code |= MPI_Put((char *)P(o) + 816, 1, gappy, target, at + 1900, 1, gappy, win);
	code |= MPI_Get((char *)P(r) + 620, 1, gappy, target, at + 2100, 8, MPI_INT, win);
	return code;
}

static void epochs(void)
{
	MPI_Datatype gappy;

	OK(MPI_Type_vector(4, 2, 5, MPI_INT, &gappy));
	OK(MPI_Type_commit(&gappy));
	for (enum sort sort = 0; sort < SORTS; sort++)
		for (enum epoch e = 0; e < EPOCHS; e++)
			for (int far = 0; far < 2; far++) {
				int target = (me + far) % ranks, code = 0;
				struct window w;

				begin("%s, %s, %s", sort_names[sort], epoch_names[e], far ? "the next rank" : "itself");
				if (open_window(&w, sort, 4 * N)) {
					struct buffer *o = take(1200, UNCHANGED), *r = take(1200, CHANGED), *c = take(8, UNCHANGED);

					for (side = 0; side < 2; side++) {
						epoch(&w, e, 1, target);
						code = access_all(&w, target, o, r, c, gappy);
						epoch(&w, e, 0, target);
						if (side == 0 && refused(code))
							break;
						if (side == 1)
							OK(code);
					}
				}
				close_window(&w);
				end();
			}
	OK(MPI_Type_free(&gappy));
}

/* A window in host memory, its origins in a device's; and the calls with requests. */
static void origins(void)
{
	enum kind was = fixed;

	for (int far = 0; far < 2; far++) {
		int target = (me + far) % ranks, code = 0;
		struct window w;

		begin("requests of windows, %d", far);
		fixed = HOST;
		if (open_window(&w, CREATE, 4 * N)) {
			fixed = was;
			struct buffer *o = take(1200, UNCHANGED), *r = take(1200, CHANGED);

			for (side = 0; side < 2; side++) {
				MPI_Request q[4] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL, MPI_REQUEST_NULL };

				OK(MPI_Win_lock_all(0, w.win[side]));
				code = MPI_Rput(P(o), 100, MPI_INT, target, 0, 100, MPI_INT, w.win[side], &q[0]);
				code |= MPI_Rget(P(r), 100, MPI_INT, target, 1000, 100, MPI_INT, w.win[side], &q[1]);
				code |= MPI_Raccumulate((char *)P(o) + 400, 50, MPI_INT, target, 1400, 50, MPI_INT, MPI_SUM, w.win[side], &q[2]);
				code |= MPI_Rget_accumulate((char *)P(o) + 600, 50, MPI_INT, (char *)P(r) + 400, 50, MPI_INT, target, 1600, 50,
							    MPI_INT, MPI_MAX, w.win[side], &q[3]);
				OK(MPI_Waitall(4, q, MPI_STATUSES_IGNORE));
				OK(MPI_Win_flush_all(w.win[side]));
				OK(MPI_Win_unlock_all(w.win[side]));
				OK(MPI_Barrier(MPI_COMM_WORLD));
				if (side == 0 && refused(code))
					break;
			}
		}
		fixed = was;
		close_window(&w);
		end();
	}
}

/* Many accumulations by all ranks on rank 0: none is lost. */
static void accumulated(void)
{
	struct window w;

	begin("accumulations of all ranks");
	if (open_window(&w, CREATE, 4000)) {
		struct buffer *o = take(4000, UNCHANGED), *f = take(8, ANY);
		int code = 0;

		for (side = 0; side < 2; side++) {
			OK(MPI_Win_fence(0, w.win[side]));
			for (int i = 0; i < 10; i++)
				code |= MPI_Accumulate(P(o), 400, MPI_INT, 0, 0, 400, MPI_INT, MPI_SUM, w.win[side]);
			for (int i = 0; i < 10; i++)
				code |= MPI_Accumulate(P(o), 400, MPI_INT, 0, 1600, 400, MPI_INT, MPI_BXOR, w.win[side]);
			OK(MPI_Win_fence(0, w.win[side]));
			/* What the owner's device writes between epochs is what the next one finds. */
			move(side ? HOST : w.b->kind, (char *)P(w.b) + 3200, w.b->before + GUARD, 100);
			OK(MPI_Win_fence(0, w.win[side]));
			code |= MPI_Get(P(f), 2, MPI_INT, (me + 1) % ranks, 3200, 2, MPI_INT, w.win[side]);
			OK(MPI_Win_fence(0, w.win[side]));
			if (side == 0 && refused(code))
				break;
		}
	}
	close_window(&w);
	end();
}

/* A datatype with elements of one basic type, of which `n` have room in so many bytes from `before` bytes before the first one on. */
static MPI_Datatype random_of_one(int round, int n, MPI_Aint room, MPI_Aint *before)
{
	MPI_Datatype type;
	MPI_Aint lb, extent, true_lb, true_extent;

	for (;;) {
		type = random_type(1 + round % 3);
		PMPI_Type_get_extent(type, &lb, &extent);
		PMPI_Type_get_true_extent(type, &true_lb, &true_extent);
		*before = true_lb < 0 ? -true_lb : 0;
		if (true_extent > 0 && *before + true_lb + true_extent + extent * (n - 1) <= room)
			break;
		OK(MPI_Type_free(&type));
	}
	OK(MPI_Type_commit(&type));
	return type;
}

/*
 * Accumulations with random datatypes and operations: from each rank to another one, and from all to rank 0. Those of lock_all are in two
 * parts, with a flush between them.
 */
static void random_operations(void)
{
	static const int numbers[] = { 1, 2, 5, 3, 4 };
	MPI_Datatype basics[] = { MPI_SHORT, MPI_INT, MPI_LONG_LONG, MPI_DOUBLE, MPI_FLOAT };
	MPI_Op ops[] = { MPI_SUM, MPI_MIN, MPI_MAX, MPI_REPLACE, MPI_PROD, MPI_BXOR, MPI_BAND, MPI_BOR };
	enum { ROUNDS = 10, ROOM = 12000 };

	for (int k = 0; k < ROUNDS * EPOCHS; k++) {
		int round = k / EPOCHS, is_int = round % 5 < 3, n = 1 + round % 3, size, of_basic;
		enum epoch e = (enum epoch)(k % EPOCHS);
		int target = (me + 1 + round % (ranks > 1 ? ranks - 1 : 1)) % ranks, code = 0;
		MPI_Datatype type, basic = basics[round % 5];
		MPI_Aint at;
		struct window w;

		begin("random operations, round %d, %s", round, epoch_names[e]);
		sole_basic = numbers[round % 5];
		type = random_of_one(round, n, ROOM, &at);
		sole_basic = -1;
		MPI_Op first = ops[draw(is_int ? 8 : 5)], second = ops[draw(is_int ? 8 : 5)], sum = ops[draw(3)];
		int is_packed = (int)draw(2);

		OK(MPI_Type_size(type, &size));
		OK(MPI_Type_size(basic, &of_basic));
		if (open_window(&w, round % 2 ? ALLOCATE : CREATE, 3 * ROOM)) {
			struct buffer *o = is_packed ? take((size_t)(n * size), UNCHANGED) : take_typed(n, 0, type, UNCHANGED),
				      *r = take_typed(n, 0, type, CHANGED), *p = take((size_t)(n * size), CHANGED);
			MPI_Datatype otype = is_packed ? basic : type;
			int on = is_packed ? n * size / of_basic : n;

			for (side = 0; side < 2; side++) {
				MPI_Win win = w.win[side];

				epoch(&w, e, 1, target);
				code = MPI_Accumulate(P(o), on, otype, target, at, n, type, first, win);
				if (e == LOCK_ALL)
					OK(MPI_Win_flush(target, win));
				code |= MPI_Get_accumulate(P(o), on, otype, P(r), n, type, target, ROOM + at, n, type, second, win);
				if (e == LOCK_ALL)
					OK(MPI_Win_flush(target, win));
				code |= MPI_Get_accumulate(NULL, 0, basic, P(p), n * size / of_basic, basic, target, at, n, type, MPI_NO_OP,
							   win);
				/* In no order: the operations of integers commute, and are exact. */
				if (is_int && e == LOCK_ALL)
					code |= MPI_Accumulate(P(o), on, otype, 0, 2 * ROOM + at, n, type, sum, win);
				epoch(&w, e, 0, target);
				if (side == 0 && refused(code))
					break;
				if (side == 1)
					OK(code);
			}
		}
		close_window(&w);
		end();
		OK(MPI_Type_free(&type));
	}
}

/* A window of memory shared by the ranks of a host, with device memory as origin. */
static void shared(void)
{
	begin("Win_allocate_shared");
	struct buffer *o = take(800, UNCHANGED), *r = take(800, CHANGED);
	MPI_Win win[2];
	int code = 0;

	for (side = 0; side < 2; side++) {
		char *base;

		OK(MPI_Win_allocate_shared(800, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win[side]));
		OK(MPI_Win_set_errhandler(win[side], MPI_ERRORS_RETURN));
		OK(MPI_Win_fence(0, win[side]));
		code |= MPI_Put(P(o), 200, MPI_INT, (me + 1) % ranks, 0, 200, MPI_INT, win[side]);
		OK(MPI_Win_fence(0, win[side]));
		code |= MPI_Get(P(r), 200, MPI_INT, me, 0, 200, MPI_INT, win[side]);
		OK(MPI_Win_fence(0, win[side]));
		OK(MPI_Win_free(&win[side]));
		if (side == 0 && refused(code))
			break;
	}
	end();
}

/* A part of a window as memory that this process loads from: its own is where the window was made; of another's there is none. */
static void queried(void)
{
	begin("Win_shared_query");
	struct buffer *b = take(800, UNCHANGED);

	SIDES {
		MPI_Win win;
		MPI_Aint len = -1;
		void *at = NULL;
		int unit = 0;

		OK(MPI_Win_create(P(b), 800, 4, MPI_INFO_NULL, MPI_COMM_WORLD, &win));
		OK(MPI_Win_set_errhandler(win, MPI_ERRORS_RETURN));
		/* Before MPI 4.1 it was for windows of MPI_Win_allocate_shared alone. */
		if (MPI_Win_shared_query(win, me, &len, &unit, &at) == MPI_SUCCESS && len)
			CHECK(at == P(b));
		if (side == 0 && ranks > 1 && on_device(b->kind) &&
		    MPI_Win_shared_query(win, (me + 1) % ranks, &len, &unit, &at) == MPI_SUCCESS)
			CHECK(!at && !len);
		OK(MPI_Win_free(&win));
	}
	end();
}

enum { TIMES = 16 };

/* How often each of the numbers below `ranks` times TIMES was fetched: by one rank, once. */
static int all_once(const long *got)
{
	long *all = malloc(sizeof(long) * (size_t)ranks * TIMES);
	char *seen = calloc((size_t)ranks, TIMES);
	int bad = 0;

	PMPI_Allgather(got, TIMES, MPI_LONG, all, TIMES, MPI_LONG, MPI_COMM_WORLD);
	for (int i = 0; i < ranks * TIMES; i++)
		bad += all[i] < 0 || all[i] >= ranks * TIMES || seen[all[i]]++;
	free(all), free(seen);
	return !bad;
}

/*
 * All ranks, its owner too, at the same elements of rank 0's window in one epoch: each operation is atomic, a lock of MPI_Compare_and_swap
 * lets one rank in, and those of one rank are in its order. The owner synchronises meanwhile.
 */
static void atomics(void)
{
	enum { COUNTER, LOCK_WORD, GUARDED, ORDERED };
	struct window w;

	begin("atomic operations of all ranks");
	if (open_window(&w, CREATE, 8 * 16)) {
		struct buffer *o = take(64, ANY), *f = take(64, ANY);
		long zeros[16] = { 0 }, numbers[8] = { 1, 0, 1 + me, 0 };

		put(w.b, 0, zeros, sizeof zeros);
		put(o, 0, numbers, sizeof numbers);
		/* The windows were made of what was there. */
		for (side = 0; side < 2; side++) {
			OK(MPI_Win_lock(MPI_LOCK_EXCLUSIVE, me, 0, w.win[side]));
			move(side ? HOST : w.b->kind, P(w.b), (char *)zeros, sizeof zeros);
			OK(MPI_Win_unlock(me, w.win[side]));
		}
		for (side = 0; side < 2; side++) {
			MPI_Win win = w.win[side];
			char *own = P(o), *got = P(f);
			long counted[TIMES], sum, last, was = -1, now;

			OK(MPI_Barrier(MPI_COMM_WORLD));
			OK(MPI_Win_lock_all(0, win));
			for (int i = 0; i < TIMES; i++) {
				OK(MPI_Fetch_and_op(own, got, MPI_LONG, 0, 8 * COUNTER, MPI_SUM, win));
				OK(MPI_Win_flush(0, win));
				get(f, side, 0, &counted[i], 8);
				CHECK(counted[i] > was);
				was = counted[i];
				if (i % 8 == 0)
					OK(MPI_Win_sync(win));
			}
			for (int i = 0; i < TIMES / 8; i++) {
				do {
					OK(MPI_Compare_and_swap(own + 16, own + 8, got, MPI_LONG, 0, 8 * LOCK_WORD, win));
					OK(MPI_Win_flush(0, win));
					get(f, side, 0, &now, 8);
				} while (now);
				OK(MPI_Get(got, 1, MPI_LONG, 0, 8 * GUARDED, 1, MPI_LONG, win));
				OK(MPI_Win_flush(0, win));
				get(f, side, 0, &now, 8);
				now++;
				move(side ? HOST : o->kind, own + 32, (char *)&now, 8);
				OK(MPI_Put(own + 32, 1, MPI_LONG, 0, 8 * GUARDED, 1, MPI_LONG, win));
				OK(MPI_Win_flush(0, win));
				OK(MPI_Accumulate(own + 8, 1, MPI_LONG, 0, 8 * LOCK_WORD, 1, MPI_LONG, MPI_REPLACE, win));
				OK(MPI_Win_flush(0, win));
			}
			/* No flush between: the last one of a rank is what its fetch finds. */
			for (int i = 0; i < TIMES; i++) {
				long *place = (long *)(own + 40);

				now = 100 * me + i;
				move(side ? HOST : o->kind, (char *)place, (char *)&now, 8);
				OK(MPI_Accumulate(place, 1, MPI_LONG, me, 8 * ORDERED, 1, MPI_LONG, MPI_REPLACE, win));
				OK(MPI_Accumulate(own, 1, MPI_LONG, me, 8 * ORDERED, 1, MPI_LONG, MPI_SUM, win));
				OK(MPI_Get_accumulate(NULL, 0, MPI_LONG, got, 1, MPI_LONG, me, 8 * ORDERED, 1, MPI_LONG, MPI_NO_OP, win));
				OK(MPI_Win_flush(me, win));
				get(f, side, 0, &last, 8);
				CHECK(last == now + 1);
			}
			OK(MPI_Win_unlock_all(win));
			OK(MPI_Barrier(MPI_COMM_WORLD));
			CHECK(all_once(counted));
			OK(MPI_Win_lock(MPI_LOCK_SHARED, me, 0, win));
			get(w.b, side, 8 * COUNTER, &sum, 8);
			get(w.b, side, 8 * GUARDED, &last, 8);
			if (me == 0)
				CHECK(sum == ranks * TIMES && last == ranks * (TIMES / 8));
			OK(MPI_Win_unlock(me, win));
			/* What a rank has fetched last differs. */
			move(side ? HOST : f->kind, got, (char *)zeros, 64);
			move(side ? HOST : o->kind, own, (char *)zeros, 64);
		}
	}
	close_window(&w);
	end();
}

int main(int argc, char **argv)
{
	static const struct subject all[] = {
		{ "epochs", epochs }, { "origins", origins }, { "accumulated", accumulated },
		{ "random_operations", random_operations }, { "shared", shared },
		{ "queried", queried }, { "atomics", atomics },
	};

	return run_subjects("windows", argc, argv, all, COUNT(all), MPI_THREAD_SINGLE);
}

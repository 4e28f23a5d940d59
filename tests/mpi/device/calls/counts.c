/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Each call of messages, windows and files for large counts. Where the MPI has none the library has, and without that the call of int is taken. */
#include "types.h"

/* The arguments of a call, and what it answers. */
struct call {
	void *s, *r;
	int k, to, from;
	MPI_Datatype t;
	MPI_Request q;
	MPI_Status status;
	MPI_Message message;
	MPI_Win win;
	MPI_File file;
	MPI_Offset place;
	MPI_Aint at;
};

/* Rows: which way, name, arguments. n(): a count. */
#define SENDS(X, n)                                                                                     \
	X(Send, c->s, n(c->k), c->t, c->to, 1, MPI_COMM_WORLD)                                          \
	X(Bsend, c->s, n(c->k), c->t, c->to, 1, MPI_COMM_WORLD)                                         \
	X(Ssend, c->s, n(c->k), c->t, c->to, 1, MPI_COMM_WORLD)                                         \
	X(Rsend, c->s, n(c->k), c->t, c->to, 1, MPI_COMM_WORLD)                                         \
	X(Isend, c->s, n(c->k), c->t, c->to, 1, MPI_COMM_WORLD, &c->q)                                  \
	X(Ibsend, c->s, n(c->k), c->t, c->to, 1, MPI_COMM_WORLD, &c->q)                                 \
	X(Issend, c->s, n(c->k), c->t, c->to, 1, MPI_COMM_WORLD, &c->q)                                 \
	X(Irsend, c->s, n(c->k), c->t, c->to, 1, MPI_COMM_WORLD, &c->q)                                 \
	X(Send_init, c->s, n(c->k), c->t, c->to, 1, MPI_COMM_WORLD, &c->q)                              \
	X(Bsend_init, c->s, n(c->k), c->t, c->to, 1, MPI_COMM_WORLD, &c->q)                             \
	X(Ssend_init, c->s, n(c->k), c->t, c->to, 1, MPI_COMM_WORLD, &c->q)                             \
	X(Rsend_init, c->s, n(c->k), c->t, c->to, 1, MPI_COMM_WORLD, &c->q)
#define RECEIVES(X, n)                                                                                  \
	X(Recv, c->r, n(c->k), c->t, c->from, 1, MPI_COMM_WORLD, &c->status)                            \
	X(Irecv, c->r, n(c->k), c->t, c->from, 1, MPI_COMM_WORLD, &c->q)                                \
	X(Recv_init, c->r, n(c->k), c->t, c->from, 1, MPI_COMM_WORLD, &c->q)                            \
	X(Mrecv, c->r, n(c->k), c->t, &c->message, &c->status)                                          \
	X(Imrecv, c->r, n(c->k), c->t, &c->message, &c->q)
#define BOTH(X, n)                                                                                      \
	X(Sendrecv, c->s, n(c->k), c->t, c->to, 1, c->r, n(c->k), c->t, c->from, 1, MPI_COMM_WORLD, &c->status) \
	X(Sendrecv_replace, c->r, n(c->k), c->t, c->to, 1, c->from, 1, MPI_COMM_WORLD, &c->status)
#define ALONE(X, n)                                                                                     \
	X(Reduce_local, c->s, c->r, n(2 * c->k), MPI_INT, MPI_SUM)
#define ACCESSES(X, n)                                                                                  \
	X(Put, c->s, n(c->k), c->t, c->to, c->at, n(c->k), c->t, c->win)                                \
	X(Get, c->r, n(c->k), c->t, c->to, c->at, n(c->k), c->t, c->win)                                \
	X(Accumulate, c->s, n(2 * c->k), MPI_INT, c->to, c->at, n(2 * c->k), MPI_INT, MPI_SUM, c->win)  \
	X(Get_accumulate, c->s, n(2 * c->k), MPI_INT, c->r, n(2 * c->k), MPI_INT, c->to, c->at, n(2 * c->k), MPI_INT, MPI_BXOR, c->win) \
	X(Rput, c->s, n(c->k), c->t, c->to, c->at, n(c->k), c->t, c->win, &c->q)                        \
	X(Rget, c->r, n(c->k), c->t, c->to, c->at, n(c->k), c->t, c->win, &c->q)                        \
	X(Raccumulate, c->s, n(2 * c->k), MPI_INT, c->to, c->at, n(2 * c->k), MPI_INT, MPI_SUM, c->win, &c->q) \
	X(Rget_accumulate, c->s, n(2 * c->k), MPI_INT, c->r, n(2 * c->k), MPI_INT, c->to, c->at, n(2 * c->k), MPI_INT, MPI_MAX, c->win, &c->q)
#define WRITES(X, n)                                                                                    \
	X(File_write, c->file, c->s, n(c->k), c->t, &c->status)                                         \
	X(File_write_all, c->file, c->s, n(c->k), c->t, &c->status)                                     \
	X(File_write_at, c->file, c->place, c->s, n(c->k), c->t, &c->status)                            \
	X(File_write_at_all, c->file, c->place, c->s, n(c->k), c->t, &c->status)                        \
	X(File_write_shared, c->file, c->s, n(c->k), c->t, &c->status)                                  \
	X(File_write_ordered, c->file, c->s, n(c->k), c->t, &c->status)                                 \
	X(File_iwrite, c->file, c->s, n(c->k), c->t, &c->q)                                             \
	X(File_iwrite_all, c->file, c->s, n(c->k), c->t, &c->q)                                         \
	X(File_iwrite_at, c->file, c->place, c->s, n(c->k), c->t, &c->q)                                \
	X(File_iwrite_at_all, c->file, c->place, c->s, n(c->k), c->t, &c->q)                            \
	X(File_iwrite_shared, c->file, c->s, n(c->k), c->t, &c->q)                                      \
	X(File_write_all_begin, c->file, c->s, n(c->k), c->t)                                           \
	X(File_write_at_all_begin, c->file, c->place, c->s, n(c->k), c->t)                              \
	X(File_write_ordered_begin, c->file, c->s, n(c->k), c->t)
#define READS(X, n)                                                                                     \
	X(File_read, c->file, c->r, n(c->k), c->t, &c->status)                                          \
	X(File_read_all, c->file, c->r, n(c->k), c->t, &c->status)                                      \
	X(File_read_at, c->file, c->place, c->r, n(c->k), c->t, &c->status)                             \
	X(File_read_at_all, c->file, c->place, c->r, n(c->k), c->t, &c->status)                         \
	X(File_read_shared, c->file, c->r, n(c->k), c->t, &c->status)                                   \
	X(File_read_ordered, c->file, c->r, n(c->k), c->t, &c->status)                                  \
	X(File_iread, c->file, c->r, n(c->k), c->t, &c->q)                                              \
	X(File_iread_all, c->file, c->r, n(c->k), c->t, &c->q)                                          \
	X(File_iread_at, c->file, c->place, c->r, n(c->k), c->t, &c->q)                                 \
	X(File_iread_at_all, c->file, c->place, c->r, n(c->k), c->t, &c->q)                             \
	X(File_iread_shared, c->file, c->r, n(c->k), c->t, &c->q)                                       \
	X(File_read_all_begin, c->file, c->r, n(c->k), c->t)                                            \
	X(File_read_at_all_begin, c->file, c->place, c->r, n(c->k), c->t)                               \
	X(File_read_ordered_begin, c->file, c->r, n(c->k), c->t)
#define ALL(X, n) SENDS(X, n) RECEIVES(X, n) BOTH(X, n) ALONE(X, n) ACCESSES(X, n) WRITES(X, n) READS(X, n)

enum row {
#define X(name, ...) name,
	SENDS(X, ) SENDS_END, SENDS_LAST = SENDS_END - 1,
	RECEIVES(X, ) BOTH(X, ) ALONE(X, ) ACCESSES(X, ) WRITES(X, ) READS(X, ) ROWS
#undef X
};
static const char *const row_names[] = {
#define X(name, ...) [name] = #name,
	ALL(X, )
#undef X
};

#define INT_N(x) (x)
#define BIG_N(x) ((MPI_Count)(x))

/* By MPI_Count wherever there is such a call: the MPI's, or the library's. */
static void make(enum row row, struct call *c)
{
	char name[64];
	int (*f)();

	snprintf(name, sizeof name, "MPI_%s_c", row_names[row]);
	f = (int (*)())dlsym(RTLD_DEFAULT, name);
	switch (row) {
#define X(name, ...) case name: OK(f ? f(__VA_ARGS__) : 0); break;
		ALL(X, BIG_N)
#undef X
	default: break;
	}
	if (f)
		return;
	switch (row) {
#define X(name, ...) case name: OK(MPI_##name(__VA_ARGS__)); break;
		ALL(X, INT_N)
#undef X
	default: break;
	}
}

static int has(enum row row, const char *what) { return strstr(row_names[row], what) != NULL; }

/* Completes what `row` has begun; one that is persistent is started before, and freed. */
static void complete(enum row row, struct call *c)
{
	if (has(row, "_init"))
		OK(MPI_Start(&c->q));
	if (c->q == MPI_REQUEST_NULL)
		return;
	OK(MPI_Wait(&c->q, &c->status));
	if (has(row, "_init"))
		OK(MPI_Request_free(&c->q));
}

enum { K = 300 };

static void messages(void)
{
	static char room[1 << 16];
	MPI_Datatype types[] = { MPI_DOUBLE, MPI_DATATYPE_NULL };
	void *was;
	int len;

	/* Two ints of four. */
	OK(MPI_Type_vector(2, 1, 2, MPI_INT, &types[1]));
	types[1] = committed(types[1]);
	OK(MPI_Buffer_attach(room, sizeof room));
	for (int row = 0; row <= Sendrecv_replace; row++)
		for (int gaps = 0; gaps < 2; gaps++) {
			struct call c[2] = { 0 };
			int is_send = row < SENDS_END;

			if (row == SENDS_END)
				continue;
			/* Open MPI 4 over its MTL: no end of it on host memory either. */
			if (openmpi4_mtl && (enum row)row == Bsend_init)
				continue;
			/* Open MPI's MTL ofi unpacks nothing, over libfabric's provider tcp and without the library too. */
			if (open_mpi && getenv("OVER_MTL") && gaps && (row == Mrecv || row == Imrecv))
				continue;
			begin("MPI_%s_c%s", row_names[row], gaps ? " with gaps" : "");
			struct buffer *s = take_typed(K, 0, types[gaps], UNCHANGED), *r = take_typed(K, 0, types[gaps], CHANGED);

			SIDES {
				struct call *a = &c[side];
				MPI_Request other = MPI_REQUEST_NULL;

				*a = (struct call){ .s = P(s), .r = P(r), .k = K, .t = types[gaps], .to = (me + 1) % ranks,
						    .from = (me + ranks - 1) % ranks, .q = MPI_REQUEST_NULL };
				if (is_send)
					OK(MPI_Irecv(a->r, K, a->t, a->from, 1, MPI_COMM_WORLD, &other));
				/* A ready send finds its receive. */
				OK(MPI_Barrier(MPI_COMM_WORLD));
				if (!is_send && row < Sendrecv)
					OK(MPI_Isend(a->s, K, a->t, a->to, 1, MPI_COMM_WORLD, &other));
				if (row == Mrecv || row == Imrecv)
					OK(MPI_Mprobe(a->from, 1, MPI_COMM_WORLD, &a->message, &a->status));
				/* Blocking sends of a ring: the receives are posted. */
				make((enum row)row, a);
				complete((enum row)row, a);
				OK(MPI_Wait(&other, MPI_STATUS_IGNORE));
			}
			end();
		}
	OK(MPI_Buffer_detach(&was, &len));
	OK(MPI_Type_free(&types[1]));
}

static void reduce_local(void)
{
	begin("MPI_Reduce_local_c");
	struct buffer *s = take(8 * K, UNCHANGED), *r = take(8 * K, CHANGED);

	SIDES
		make(Reduce_local, &(struct call){ .s = P(s), .r = P(r), .k = K });
	end();
}

static void windows(void)
{
	for (int row = Put; row <= Rget_accumulate; row++) {
		int (*create)() = (int (*)())dlsym(RTLD_DEFAULT, "MPI_Win_create_c");

		begin("MPI_%s_c", row_names[row]);
		int fetches = has((enum row)row, "et");
		struct buffer *b = take(8 * K, ANY), *s = take(8 * K, UNCHANGED), *r = take(8 * K, fetches ? CHANGED : UNCHANGED);

		SIDES {
			struct call c = { .s = P(s), .r = P(r), .k = K, .t = MPI_DOUBLE, .to = (me + 1) % ranks, .q = MPI_REQUEST_NULL };

			if (create)
				OK(create(P(b), (MPI_Aint)(8 * K), (MPI_Aint)1, MPI_INFO_NULL, MPI_COMM_WORLD, &c.win));
			else
				OK(MPI_Win_create(P(b), 8 * K, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &c.win));
			OK(MPI_Win_lock_all(0, c.win));
			make((enum row)row, &c);
			complete((enum row)row, &c);
			OK(MPI_Win_flush_all(c.win));
			OK(MPI_Win_unlock_all(c.win));
			OK(MPI_Barrier(MPI_COMM_WORLD));
			OK(MPI_Win_free(&c.win));
		}
		end();
	}
}

/* A split collective is ended. */
static void end_split(enum row row, struct call *c)
{
	if (row == File_write_all_begin)
		OK(MPI_File_write_all_end(c->file, c->s, &c->status));
	if (row == File_write_at_all_begin)
		OK(MPI_File_write_at_all_end(c->file, c->s, &c->status));
	if (row == File_write_ordered_begin)
		OK(MPI_File_write_ordered_end(c->file, c->s, &c->status));
	if (row == File_read_all_begin)
		OK(MPI_File_read_all_end(c->file, c->r, &c->status));
	if (row == File_read_at_all_begin)
		OK(MPI_File_read_at_all_end(c->file, c->r, &c->status));
	if (row == File_read_ordered_begin)
		OK(MPI_File_read_ordered_end(c->file, c->r, &c->status));
}

/* What a call writes is read by the one of the same kind. Each rank has a file of its own. */
static void files(void)
{
	const char *in = getenv("FILES");

	for (int row = 0; row < File_read - File_write; row++) {
		begin("MPI_%s_c and MPI_%s_c", row_names[File_write + row], row_names[File_read + row]);
		struct buffer *s = take(8 * K, UNCHANGED), *r = take(8 * K, CHANGED);

		SIDES {
			struct call c = { .s = P(s), .r = P(r), .k = K, .t = MPI_DOUBLE, .q = MPI_REQUEST_NULL };
			int mode = MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, got = -1;
			char path[300];

			snprintf(path, sizeof path, "%s/mpi-device-counts-%d-%d", in ? in : "/dev/shm", me, side);
			OK(MPI_File_open(MPI_COMM_SELF, path, mode, MPI_INFO_NULL, &c.file));
			OK(MPI_File_set_errhandler(c.file, MPI_ERRORS_RETURN));
			for (int reads = 0; reads < 2; reads++) {
				enum row now = (enum row)((reads ? File_read : File_write) + row);

				make(now, &c);
				end_split(now, &c);
				complete(now, &c);
				OK(MPI_File_seek(c.file, 0, MPI_SEEK_SET));
				OK(MPI_File_seek_shared(c.file, 0, MPI_SEEK_SET));
			}
			OK(MPI_Get_count(&c.status, MPI_DOUBLE, &got));
			CHECK(got == K);
			has_first(r, side, 0, 8 * K, me, 0, 0);
			OK(MPI_File_close(&c.file));
		}
		end();
	}
}

int main(int argc, char **argv)
{
	static const struct subject all[] = {
		{ "messages", messages }, { "reduce_local", reduce_local }, { "windows", windows }, { "files", files },
	};

	return run_subjects("counts", argc, argv, all, COUNT(all), MPI_THREAD_SINGLE);
}

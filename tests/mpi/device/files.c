/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Files written from and read to device memory, in each call of MPI-IO. FILES names a folder (/dev/shm). */
#include "types.h"

static char path[2][300];
static MPI_File file[2];

static void open_files(MPI_Comm comm)
{
	const char *in = getenv("FILES");

	for (int s = 0; s < 2; s++) {
		snprintf(path[s], sizeof path[s], "%s/mpi-device-%d-%d", in ? in : "/dev/shm", comm == MPI_COMM_SELF ? me : 99, s);
		OK(MPI_File_open(comm, path[s], MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file[s]));
		OK(MPI_File_set_errhandler(file[s], MPI_ERRORS_RETURN));
	}
}

static void close_files(void)
{
	for (int s = 0; s < 2; s++)
		OK(MPI_File_close(&file[s]));
}

enum way { PLAIN, AT, ALL, AT_ALL, SHARED, ORDERED, I, I_AT, I_ALL, I_AT_ALL, I_SHARED, SPLIT, SPLIT_AT, SPLIT_ORDERED, WAYS };

static void write_by(enum way way, const void *b, int n, MPI_Datatype t, MPI_Offset at)
{
	MPI_File f = file[side];
	MPI_Request q = MPI_REQUEST_NULL;
	MPI_Status s;

	switch (way) {
	case PLAIN: OK(MPI_File_seek(f, at, MPI_SEEK_SET)); OK(MPI_File_write(f, b, n, t, &s)); break;
	case AT: OK(MPI_File_write_at(f, at, b, n, t, &s)); break;
	case ALL: OK(MPI_File_seek(f, at, MPI_SEEK_SET)); OK(MPI_File_write_all(f, b, n, t, &s)); break;
	case AT_ALL: OK(MPI_File_write_at_all(f, at, b, n, t, &s)); break;
	case SHARED: OK(MPI_File_write_shared(f, b, n, t, &s)); break;
	case ORDERED: OK(MPI_File_write_ordered(f, b, n, t, &s)); break;
	case I: OK(MPI_File_seek(f, at, MPI_SEEK_SET)); OK(MPI_File_iwrite(f, b, n, t, &q)); break;
	case I_AT: OK(MPI_File_iwrite_at(f, at, b, n, t, &q)); break;
	case I_ALL: OK(MPI_File_seek(f, at, MPI_SEEK_SET)); OK(MPI_File_iwrite_all(f, b, n, t, &q)); break;
	case I_AT_ALL: OK(MPI_File_iwrite_at_all(f, at, b, n, t, &q)); break;
	case I_SHARED: OK(MPI_File_iwrite_shared(f, b, n, t, &q)); break;
	case SPLIT:
		OK(MPI_File_seek(f, at, MPI_SEEK_SET));
		OK(MPI_File_write_all_begin(f, b, n, t));
		OK(MPI_File_write_all_end(f, b, &s));
		break;
	case SPLIT_AT:
		OK(MPI_File_write_at_all_begin(f, at, b, n, t));
		OK(MPI_File_write_at_all_end(f, b, &s));
		break;
	default:
		OK(MPI_File_write_ordered_begin(f, b, n, t));
		OK(MPI_File_write_ordered_end(f, b, &s));
	}
	if (q != MPI_REQUEST_NULL)
		OK(MPI_Wait(&q, &s));
}

static void read_by(enum way way, void *b, int n, MPI_Datatype t, MPI_Offset at)
{
	MPI_File f = file[side];
	MPI_Request q = MPI_REQUEST_NULL;
	MPI_Status s;
	int got = -1;

	switch (way) {
	case PLAIN: OK(MPI_File_seek(f, at, MPI_SEEK_SET)); OK(MPI_File_read(f, b, n, t, &s)); break;
	case AT: OK(MPI_File_read_at(f, at, b, n, t, &s)); break;
	case ALL: OK(MPI_File_seek(f, at, MPI_SEEK_SET)); OK(MPI_File_read_all(f, b, n, t, &s)); break;
	case AT_ALL: OK(MPI_File_read_at_all(f, at, b, n, t, &s)); break;
	case SHARED: OK(MPI_File_read_shared(f, b, n, t, &s)); break;
	case ORDERED: OK(MPI_File_read_ordered(f, b, n, t, &s)); break;
	case I: OK(MPI_File_seek(f, at, MPI_SEEK_SET)); OK(MPI_File_iread(f, b, n, t, &q)); break;
	case I_AT: OK(MPI_File_iread_at(f, at, b, n, t, &q)); break;
	case I_ALL: OK(MPI_File_seek(f, at, MPI_SEEK_SET)); OK(MPI_File_iread_all(f, b, n, t, &q)); break;
	case I_AT_ALL: OK(MPI_File_iread_at_all(f, at, b, n, t, &q)); break;
	case I_SHARED: OK(MPI_File_iread_shared(f, b, n, t, &q)); break;
	case SPLIT:
		OK(MPI_File_seek(f, at, MPI_SEEK_SET));
		OK(MPI_File_read_all_begin(f, b, n, t));
		OK(MPI_File_read_all_end(f, b, &s));
		break;
	case SPLIT_AT:
		OK(MPI_File_read_at_all_begin(f, at, b, n, t));
		OK(MPI_File_read_at_all_end(f, b, &s));
		break;
	default:
		OK(MPI_File_read_ordered_begin(f, b, n, t));
		OK(MPI_File_read_ordered_end(f, b, &s));
	}
	if (q != MPI_REQUEST_NULL)
		OK(MPI_Wait(&q, &s));
	OK(MPI_Get_count(&s, t, &got));
	CHECK(got == n);
}

static int is_shared(enum way way) { return way == SHARED || way == I_SHARED; }

/* Each rank its own part of a file; those calls whose order between ranks is not given have a file of their own. */
static void written(void)
{
	for (enum way way = 0; way < WAYS; way++)
		for (int pair = 0; pair < 3; pair += 2) {
			MPI_Comm comm = is_shared(way) ? MPI_COMM_SELF : MPI_COMM_WORLD;
			struct pair p = fixed_pair(pair);
			int n = 500, size;
			MPI_Offset at;

			OK(MPI_Type_size(p.send, &size));
			at = (MPI_Offset)(comm == MPI_COMM_SELF ? 0 : me) * n * size;
			begin("files, way %d, pair %d", way, pair);
			open_files(comm);
			struct buffer *o = take_typed(n, 0, p.send, UNCHANGED), *r = take_typed(n, 0, p.recv, CHANGED);

			SIDES {
				char *first = malloc((size_t)(n * size)), *second = malloc((size_t)(n * size));
				MPI_Status s;

				write_by(way, P(o), n, p.send, at);
				OK(MPI_File_sync(file[side]));
				OK(MPI_Barrier(comm));
				/* The file itself, by host memory. */
				OK(MPI_File_read_at(file[side], at, first, n * size, MPI_BYTE, &s));
				memset(second, 0, (size_t)(n * size));
				if (pair == 0) {
					get(o, side, 0, second, (size_t)(n * size));
					CHECK(!memcmp(first, second, (size_t)(n * size)));
				}
				free(first), free(second);
				OK(MPI_Barrier(comm));
				if (is_shared(way) || way == ORDERED || way == SPLIT_ORDERED)
					OK(MPI_File_seek_shared(file[side], 0, MPI_SEEK_SET));
				read_by(way, P(r), n, p.recv, at);
			}
			close_files();
			end();
			free_pair(&p);
		}
}

/* Requests of files in each call that completes them. MPICH loses one once MPI_Request_get_status has said that it has completed. */
static void requested(void)
{
	enum { WAIT, TEST, TESTALL, TESTANY, TESTSOME, STATUS, STATUS_ALL, STATUS_ANY, STATUS_SOME, BYS, ROUNDS = 8 };
	int (*status_all)() = optional("MPI_Request_get_status_all"), (*status_any)() = optional("MPI_Request_get_status_any");
	int (*status_some)() = optional("MPI_Request_get_status_some");

	for (int by = 0; by < BYS; by++) {
		if (by >= STATUS_ALL && !(status_all && status_any && status_some))
			continue;
		begin("requests of files, completed in way %d", by);
		open_files(MPI_COMM_SELF);
		struct buffer *o = take(4000, UNCHANGED), *r = take(4000 * ROUNDS, CHANGED);

		SIDES {
			for (int round = 0; round < 2 * ROUNDS; round++) {
				MPI_Request q;
				MPI_Status s;
				int flag = 0, index, done = 0;

				if (round % 2)
					OK(MPI_File_iread_at(file[side], 0, (char *)P(r) + 4000 * (round / 2), 4000, MPI_BYTE, &q));
				else
					OK(MPI_File_iwrite_at(file[side], 0, P(o), 4000, MPI_BYTE, &q));
				for (int tries = 0; !flag && !here_failed && tries < 100000000; tries++)
					switch (by) {
					case WAIT: OK(MPI_Wait(&q, &s)); flag = 1; break;
					case TEST: OK(MPI_Test(&q, &flag, &s)); break;
					case TESTALL: OK(MPI_Testall(1, &q, &flag, &s)); break;
					case TESTANY: OK(MPI_Testany(1, &q, &index, &flag, &s)); break;
					case TESTSOME: OK(MPI_Testsome(1, &q, &done, &index, &s)); flag = done == 1; break;
					case STATUS: OK(MPI_Request_get_status(q, &flag, &s)); break;
					case STATUS_ALL: OK(status_all(1, &q, &flag, &s)); break;
					case STATUS_ANY: OK(status_any(1, &q, &index, &flag, &s)); break;
					default: OK(status_some(1, &q, &done, &index, &s)); flag = done == 1;
					}
				if (by >= STATUS)
					OK(MPI_Wait(&q, &s));
				CHECK(q == MPI_REQUEST_NULL);
			}
		}
		close_files();
		end();
	}
}

/* A view with holes in the file. */
static void views(void)
{
	MPI_Datatype holes;

	OK(MPI_Type_vector(20, 5, 9, MPI_INT, &holes));
	OK(MPI_Type_commit(&holes));
	begin("a view with holes");
	open_files(MPI_COMM_SELF);
	struct buffer *o = take(800, UNCHANGED), *r = take(800, CHANGED);

	SIDES {
		OK(MPI_File_set_view(file[side], 12, MPI_INT, holes, "native", MPI_INFO_NULL));
		OK(MPI_File_write_at(file[side], 0, P(o), 200, MPI_INT, MPI_STATUS_IGNORE));
		OK(MPI_File_read_at(file[side], 0, P(r), 200, MPI_INT, MPI_STATUS_IGNORE));
		has_first(r, side, 0, 800, me, 0, 0);
	}
	close_files();
	end();
	OK(MPI_Type_free(&holes));
}

/* At the file's end less is read than there is room for: what lies behind stays. */
static void at_end(void)
{
	begin("the end of a file");
	open_files(MPI_COMM_SELF);
	struct buffer *o = take(100, UNCHANGED), *r = take(800, CHANGED);

	SIDES {
		MPI_Status s;
		int got;

		OK(MPI_File_write_at(file[side], 0, P(o), 100, MPI_BYTE, MPI_STATUS_IGNORE));
		OK(MPI_File_read_at(file[side], 0, P(r), 800, MPI_BYTE, &s));
		OK(MPI_Get_count(&s, MPI_BYTE, &got));
		CHECK(got == 100);
	}
	close_files();
	end();
}

int main(int argc, char **argv)
{
	static const struct subject all[] = { { "written", written }, { "requested", requested }, { "views", views }, { "at_end", at_end } };

	return run_subjects("files", argc, argv, all, COUNT(all), MPI_THREAD_SINGLE);
}

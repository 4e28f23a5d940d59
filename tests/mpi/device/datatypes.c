/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Random datatypes in every call that takes one: the bytes are those that the MPI moves in host memory, and no other is written. */
#include "types.h"

static int rounds(void)
{
	const char *text = getenv("ROUNDS");

	return text ? atoi(text) : 30;
}

/* A datatype whose hull is not too long, committed. */
static MPI_Datatype random_one(int round)
{
	MPI_Aint lb, extent;
	MPI_Datatype type;

	for (;;) {
		type = random_type(1 + round % 4);
		OK(MPI_Type_get_true_extent(type, &lb, &extent));
		if (extent <= 20000 && lb > -20000)
			break;
		OK(MPI_Type_free(&type));
	}
	OK(MPI_Type_commit(&type));
	return type;
}

static void transfers(void)
{
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;

	for (int round = 0; round < rounds(); round++) {
		int n = 1 + round % 5;
		MPI_Datatype type;

		begin("random datatype, round %d", round);
		type = random_one(round);
		struct buffer *s = take_typed(n, 0, type, UNCHANGED), *r = take_typed(n, 0, type, ANY), *x = take_typed(n, 0, type, ANY),
			      *g = take_typed((long)n * ranks, 0, type, ANY),
			      *b = take_typed(n, 0, type, ANY);

		SIDES {
			MPI_Request q[2];

			OK(MPI_Sendrecv(P(s), n, type, to, 1, P(r), n, type, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
			OK(MPI_Sendrecv_replace(P(x), n, type, to, 2, from, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
			OK(MPI_Allgather(P(s), n, type, P(g), n, type, MPI_COMM_WORLD));
			OK(MPI_Bcast(P(b), n, type, round % ranks, MPI_COMM_WORLD));
			/* Freed while it is in use: MPI-3.1, 4.1.9. */
			if (round % 3 == 0) {
				MPI_Datatype copy;

				OK(MPI_Type_dup(type, &copy));
				OK(MPI_Irecv(P(r), n, copy, from, 3, MPI_COMM_WORLD, &q[0]));
				OK(MPI_Isend(P(s), n, copy, to, 3, MPI_COMM_WORLD, &q[1]));
				OK(MPI_Type_free(&copy));
				OK(MPI_Waitall(2, q, MPI_STATUSES_IGNORE));
			}
		}
		end();
		OK(MPI_Type_free(&type));
	}
}

static void packing(void)
{
	static char external[] = "external32";

	for (int round = 0; round < rounds(); round++) {
		int n = 1 + round % 4, most, is_external;
		MPI_Aint room = 0;
		MPI_Datatype type;
		int (*pack)() = optional("MPI_Pack_c"), (*unpack)() = optional("MPI_Unpack_c");

		begin("packing, round %d", round);
		with_struct = 0;
		type = random_one(round);
		/* MPICH 5.0 ends with SIGILL in MPI_Pack_external_size of some structs. */
		is_external = open_mpi || !with_struct;
		OK(MPI_Pack_size(n, type, MPI_COMM_WORLD, &most));
		if (is_external)
			OK(MPI_Pack_external_size(external, n, type, &room));
		struct buffer *s = take_typed(n, 0, type, UNCHANGED), *r = take_typed(n, 0, type, ANY), *e = take_typed(n, 0, type, ANY),
			      *p = take((size_t)most + 20, ANY), *x = take((size_t)room + 20, ANY), *c = take_typed(n, 0, type, ANY);

		SIDES {
			int at = 7, begin_at = 7;
			MPI_Aint place = 3;
			MPI_Count big = 7;

			OK(MPI_Pack(P(s), n, type, P(p), most + 20, &at, MPI_COMM_WORLD));
			OK(MPI_Unpack(P(p), most + 20, &begin_at, P(r), n, type, MPI_COMM_WORLD));
			CHECK(at == begin_at);
			if (pack && unpack) {
				OK(pack(P(s), (MPI_Count)n, type, P(p), (MPI_Count)most + 20, &big, MPI_COMM_WORLD));
				CHECK(big == at);
				big = 7;
				OK(unpack(P(p), (MPI_Count)most + 20, &big, P(c), (MPI_Count)n, type, MPI_COMM_WORLD));
				CHECK(big == at);
			}
			/* A part that is too short: an error, and the position stays in it. */
			at = most + 20;
			if (open_mpi && most)
				BAD(MPI_Pack(P(s), n, type, P(p), 0, &(int){ 0 }, MPI_COMM_WORLD));
			if (!is_external)
				continue;
			OK(MPI_Pack_external(external, P(s), n, type, P(x), room + 20, &place));
			place = 3;
			OK(MPI_Unpack_external(external, P(x), room + 20, &place, P(e), n, type));
		}
		end();
		OK(MPI_Type_free(&type));
	}
}

/* What is packed by pieces is received as a whole, and the other way round. */
static void packed_messages(void)
{
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;
	struct pair p = fixed_pair(2);

	begin("MPI_PACKED");
	struct buffer *a = take_typed(50, 0, p.send, UNCHANGED), *i = take(40, UNCHANGED), *packed = take(4000, ANY),
		      *got = take(4000, ANY), *r = take_typed(50, 0, p.recv, CHANGED), *j = take(40, CHANGED);

	SIDES {
		int at = 0, len;
		MPI_Status status;

		OK(MPI_Pack(P(i), 10, MPI_INT, P(packed), 4000, &at, MPI_COMM_WORLD));
		OK(MPI_Pack(P(a), 50, p.send, P(packed), 4000, &at, MPI_COMM_WORLD));
		OK(MPI_Sendrecv(P(packed), at, MPI_PACKED, to, 1, P(got), 4000, MPI_PACKED, from, 1, MPI_COMM_WORLD, &status));
		OK(MPI_Get_count(&status, MPI_PACKED, &len));
		CHECK(len == at);
		at = 0;
		OK(MPI_Unpack(P(got), len, &at, P(j), 10, MPI_INT, MPI_COMM_WORLD));
		OK(MPI_Unpack(P(got), len, &at, P(r), 50, p.recv, MPI_COMM_WORLD));
	}
	end();
	free_pair(&p);
}

/* The faces of a cube in memory of a device to a neighbour: subarrays of both orders. The longer edge has gaps that are not copied. */
static void halos(void)
{
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;

	for (int n = 0; n < 12; n++) {
		int face = n % 6, E = n < 6 ? 12 : 40;

		begin("face %d of an edge of %d", face, E);
		struct buffer *cube = take((size_t)(8 * E * E * E), CHANGED);
		int sizes[] = { E, E, E }, sub[] = { E, E, E }, out[] = { 0, 0, 0 }, in[] = { 0, 0, 0 }, axis = face / 2;
		MPI_Datatype s, r;

		sub[axis] = 1;
		out[axis] = face % 2 ? 1 : E - 2;
		in[axis] = face % 2 ? E - 1 : 0;
		OK(MPI_Type_create_subarray(3, sizes, sub, out, face < 3 ? MPI_ORDER_C : MPI_ORDER_FORTRAN, MPI_DOUBLE, &s));
		OK(MPI_Type_create_subarray(3, sizes, sub, in, face < 3 ? MPI_ORDER_C : MPI_ORDER_FORTRAN, MPI_DOUBLE, &r));
		OK(MPI_Type_commit(&s));
		OK(MPI_Type_commit(&r));
		SIDES {
			MPI_Request q[2];

			OK(MPI_Irecv(P(cube), 1, r, from, 1, MPI_COMM_WORLD, &q[0]));
			OK(MPI_Isend(P(cube), 1, s, to, 1, MPI_COMM_WORLD, &q[1]));
			OK(MPI_Waitall(2, q, MPI_STATUSES_IGNORE));
		}
		end();
		OK(MPI_Type_free(&s));
		OK(MPI_Type_free(&r));
	}
}

/* Single elements that lie far apart, in calls that need the layout of the datatype, and in those that can do without. */
static void columns(void)
{
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks, sizes[] = { 300, 600 }, sub[] = { 300, 1 }, at[] = { 0, 7 };
	MPI_Datatype column, wide, list;

	begin("columns");
	OK(MPI_Type_create_subarray(2, sizes, sub, at, MPI_ORDER_C, MPI_INT, &wide));
	/* One behind another, as the columns of a matrix are. */
	OK(MPI_Type_create_resized(wide, 0, 4, &column));
	OK(MPI_Type_commit(&column));
	OK(MPI_Type_create_indexed_block(3, 2, (int[]){ 0, 50000, 70001 }, MPI_INT, &list));
	OK(MPI_Type_commit(&list));
	end();
	for (int n = 0; n < 2; n++) {
		MPI_Datatype type = n ? list : column;
		int count = n ? 1 : 3;

		begin("collectives of columns, type %d", n);
		struct buffer *s = take_typed(count, 0, type, UNCHANGED), *b = take_typed(count, 0, type, ANY),
			      *g = take_typed((long)count * ranks, 0, type, CHANGED), *w = take_typed((long)count * ranks, 0, type, CHANGED),
			      *x = take_typed(count, 0, type, ANY), *r = take_typed(count, 0, type, CHANGED), *p = take(8000, CHANGED),
			      *u = take_typed(count, 0, type, CHANGED);
		MPI_Aint lb, extent;

		PMPI_Type_get_extent(type, &lb, &extent);
		SIDES {
			int counts[16], places[16], at = 0;
			MPI_Datatype types[16];
			MPI_Request q[2];

			for (int i = 0; i < ranks && i < 16; i++)
				counts[i] = count, places[i] = (int)(i * count * extent), types[i] = type;
			OK(MPI_Bcast(P(b), count, type, 0, MPI_COMM_WORLD));
			OK(MPI_Allgather(P(s), count, type, P(g), count, type, MPI_COMM_WORLD));
			OK(MPI_Alltoallw(P(g), counts, places, types, P(w), counts, places, types, MPI_COMM_WORLD));
			OK(MPI_Sendrecv_replace(P(x), count, type, to, 2, from, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
			OK(MPI_Recv_init(P(r), count, type, from, 3, MPI_COMM_WORLD, &q[0]));
			OK(MPI_Send_init(P(s), count, type, to, 3, MPI_COMM_WORLD, &q[1]));
			for (int i = 0; i < 2; i++) {
				OK(MPI_Startall(2, q));
				OK(MPI_Waitall(2, q, MPI_STATUSES_IGNORE));
			}
			OK(MPI_Request_free(&q[0]));
			OK(MPI_Request_free(&q[1]));
			OK(MPI_Pack(P(s), count, type, P(p), 8000, &at, MPI_COMM_WORLD));
			at = 0;
			OK(MPI_Unpack(P(p), 8000, &at, P(u), count, type, MPI_COMM_WORLD));
		}
		end();
	}
	OK(MPI_Type_free(&wide));
	OK(MPI_Type_free(&column));
	OK(MPI_Type_free(&list));
}

/* Handles that are freed and made again as other datatypes: what is known of one may not be taken for the other. */
static void again(void)
{
	for (int i = 0; i < 40; i++) {
		MPI_Datatype type;

		begin("datatype %d of many", i);
		OK(MPI_Type_vector(2 + i % 3, 1 + i % 2, 3 + i % 5, i % 2 ? MPI_INT : MPI_SHORT, &type));
		OK(MPI_Type_commit(&type));
		struct buffer *s = take_typed(3, 0, type, UNCHANGED), *r = take_typed(3, 0, type, CHANGED);

		SIDES
			OK(MPI_Sendrecv(P(s), 3, type, me, 1, P(r), 3, type, me, 1, MPI_COMM_WORLD,
					MPI_STATUS_IGNORE));
		end();
		OK(MPI_Type_free(&type));
	}
}

/* A receive of fewer elements than it has room for: nothing behind them is written, within an element neither. */
static void less(void)
{
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks;
	MPI_Datatype type;

	OK(MPI_Type_vector(4, 2, 5, MPI_INT, &type));
	OK(MPI_Type_commit(&type));
	for (int n = 0; n < 30; n += 3) {
		begin("%d ints into 10 vectors of 8", n);
		struct buffer *s = take(200, UNCHANGED), *r = take_typed(10, 0, type, n ? CHANGED : UNCHANGED);

		SIDES {
			MPI_Status status;
			int elements;

			OK(MPI_Sendrecv(P(s), n, MPI_INT, to, 1, P(r), 10, type, from, 1, MPI_COMM_WORLD, &status));
			OK(MPI_Get_elements(&status, type, &elements));
			CHECK(elements == n);
		}
		end();
		begin("%d ints by other receives", n);
		struct buffer *o = take(200, UNCHANGED), *a = take_typed(10, 0, type, n ? CHANGED : UNCHANGED),
			      *m = take(200, n ? CHANGED : UNCHANGED), *none = take(200, UNCHANGED);

		SIDES {
			MPI_Status status;
			MPI_Message message;
			MPI_Request q[2];
			int elements;

			OK(MPI_Isend(P(o), n, MPI_INT, to, 1, MPI_COMM_WORLD, &q[0]));
			OK(MPI_Isend(P(o), n, MPI_INT, to, 2, MPI_COMM_WORLD, &q[1]));
			OK(MPI_Recv(P(a), 10, type, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
			OK(MPI_Mprobe(from, 2, MPI_COMM_WORLD, &message, &status));
			OK(MPI_Mrecv(P(m), 50, MPI_INT, &message, &status));
			OK(MPI_Get_count(&status, MPI_INT, &elements));
			CHECK(elements == n);
			OK(MPI_Waitall(2, q, MPI_STATUSES_IGNORE));
			OK(MPI_Recv(P(none), 50, MPI_INT, MPI_PROC_NULL, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
			OK(MPI_Sendrecv(P(o), n, MPI_INT, MPI_PROC_NULL, 1, P(none), 50, MPI_INT, MPI_PROC_NULL, 1, MPI_COMM_WORLD,
					MPI_STATUS_IGNORE));
		}
		end();
	}
	OK(MPI_Type_free(&type));
}

/* Types by the class and the size of their numbers. */
static void matched(void)
{
	static const struct { int class, size; } all[] = {
		{ MPI_TYPECLASS_REAL, 4 }, { MPI_TYPECLASS_REAL, 8 }, { MPI_TYPECLASS_INTEGER, 1 }, { MPI_TYPECLASS_INTEGER, 2 },
		{ MPI_TYPECLASS_INTEGER, 4 }, { MPI_TYPECLASS_INTEGER, 8 }, { MPI_TYPECLASS_COMPLEX, 8 }, { MPI_TYPECLASS_COMPLEX, 16 },
	};
	int to = (me + 1) % ranks, from = (me + ranks - 1) % ranks, n = 700;

	for (int i = 0; i < COUNT(all); i++) {
		MPI_Datatype type = MPI_DATATYPE_NULL, pairs;

		/* An MPI without Fortran has none. */
		if (MPI_Type_match_size(all[i].class, all[i].size, &type) != MPI_SUCCESS || type == MPI_DATATYPE_NULL)
			continue;
		begin("MPI_Type_match_size, %d bytes of class %d", all[i].size, i);
		OK(MPI_Type_vector(n / 2, 1, 2, type, &pairs));
		pairs = committed(pairs);
		struct buffer *s = take((size_t)(n * all[i].size), UNCHANGED), *r = take((size_t)(n * all[i].size), CHANGED),
			      *v = take((size_t)(n * all[i].size), ANY), *x = take((size_t)(n * all[i].size), ANY);

		SIDES {
			OK(MPI_Sendrecv(P(s), n, type, to, 1, P(r), n, type, from, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
			OK(MPI_Bcast(P(v), 1, pairs, 0, MPI_COMM_WORLD));
			if (all[i].class == MPI_TYPECLASS_INTEGER && all[i].size > 1)
				OK(MPI_Allreduce(P(s), P(x), n, type, MPI_BXOR, MPI_COMM_WORLD));
		}
		OK(MPI_Type_free(&pairs));
		end();
	}
}

int main(int argc, char **argv)
{
	static const struct subject all[] = {
		{ "transfers", transfers }, { "packing", packing }, { "packed_messages", packed_messages },
		{ "halos", halos }, { "columns", columns }, { "again", again }, { "less", less }, { "matched", matched },
	};

	return run_subjects("datatypes", argc, argv, all, COUNT(all), MPI_THREAD_SINGLE);
}

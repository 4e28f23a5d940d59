/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Each predefined operation on each datatype that the standard allows for it, and operations of the program's own. */
#include "shape.h"
#include <complex.h>

enum group { INTEGER = 1, FLOATING = 2, LOGICAL = 4, COMPLEX = 8, BYTES = 16, PAIR = 32, MULTI = 64 };

struct type {
	const char *name;
	enum group group;
	size_t size, extent;
	MPI_Datatype handle;
};

static struct type types[64];
static int type_count;

static void add(const char *name, enum group group, MPI_Datatype handle)
{
	MPI_Aint lb, extent;
	int size;

	if (handle == MPI_DATATYPE_NULL)
		return;
	OK(MPI_Type_size(handle, &size));
	OK(MPI_Type_get_extent(handle, &lb, &extent));
	if (size > 0)
		types[type_count++] = (struct type){ name, group, (size_t)size, (size_t)extent, handle };
}

static void list_types(void)
{
#define T(group, name) add(#name, group, name)
	type_count = 0;
	T(INTEGER, MPI_INT), T(INTEGER, MPI_LONG), T(INTEGER, MPI_SHORT), T(INTEGER, MPI_UNSIGNED_SHORT);
	T(INTEGER, MPI_UNSIGNED), T(INTEGER, MPI_UNSIGNED_LONG), T(INTEGER, MPI_LONG_LONG), T(INTEGER, MPI_UNSIGNED_LONG_LONG);
	T(INTEGER, MPI_SIGNED_CHAR), T(INTEGER, MPI_UNSIGNED_CHAR), T(INTEGER, MPI_INT8_T), T(INTEGER, MPI_INT16_T);
	T(INTEGER, MPI_INT32_T), T(INTEGER, MPI_INT64_T), T(INTEGER, MPI_UINT8_T), T(INTEGER, MPI_UINT16_T);
	T(INTEGER, MPI_UINT32_T), T(INTEGER, MPI_UINT64_T);
	T(MULTI, MPI_AINT), T(MULTI, MPI_OFFSET), T(MULTI, MPI_COUNT);
	T(FLOATING, MPI_FLOAT), T(FLOATING, MPI_DOUBLE), T(FLOATING, MPI_LONG_DOUBLE);
	T(LOGICAL, MPI_C_BOOL);
	T(COMPLEX, MPI_C_COMPLEX), T(COMPLEX, MPI_C_DOUBLE_COMPLEX), T(COMPLEX, MPI_C_LONG_DOUBLE_COMPLEX);
	T(BYTES, MPI_BYTE);
	T(PAIR, MPI_FLOAT_INT), T(PAIR, MPI_DOUBLE_INT), T(PAIR, MPI_LONG_INT), T(PAIR, MPI_2INT), T(PAIR, MPI_SHORT_INT);
	T(PAIR, MPI_LONG_DOUBLE_INT);
	/* Of Fortran, where the MPI has Fortran. */
	T(MULTI, MPI_INTEGER), T(FLOATING, MPI_REAL), T(FLOATING, MPI_DOUBLE_PRECISION), T(COMPLEX, MPI_COMPLEX);
	T(LOGICAL, MPI_LOGICAL);
#undef T
}

struct op {
	const char *name;
	int groups;
	MPI_Op handle;
};

/* Values that each operation is exact on, in any order. */
static void values(struct buffer *b, const struct type *t, int n)
{
	char *all = calloc(1, b->len + 16);

	memcpy(all, b->before + GUARD, b->len);
	for (int i = 0; i < n; i++) {
		char *at = all + t->extent * (size_t)i;
		int small = (int)(mix(seed_of_case + 1000003u * (unsigned)me + (unsigned)i + 7) % 5) - 2;

		switch (t->group) {
		case FLOATING:
		case COMPLEX: {
			size_t one = t->group == COMPLEX ? t->size / 2 : t->size;

			for (size_t part = 0; part < t->size; part += one, small = (small + 3) % 3) {
				float f = (float)small;
				double d = small;
				long double l = small;

				if (one == 16)
					memset(at + part, 0, 16);
				memcpy(at + part, one == 4 ? (void *)&f : one == 8 ? (void *)&d : (void *)&l, one == 16 ? 10 : one);
			}
			break;
		}
		case LOGICAL:
			memset(at, 0, t->size);
			at[0] = (char)(small & 1);
			break;
		case PAIR: {
			/* Few values, so that places decide. */
			size_t first = t->handle == MPI_LONG_DOUBLE_INT ? 16 : t->handle == MPI_2INT || t->handle == MPI_FLOAT_INT ? 4
				     : t->handle == MPI_SHORT_INT ? 2 : 8;
			int place = (int)(mix((unsigned)(me + 5 * i)) % 50);
			float f = (float)small;
			double d = small;
			long double l = small;
			long whole = small;

			if (first == 16) {
				memset(at, 0, 16);
				memcpy(at, &l, 10);
			} else {
				memcpy(at, t->handle == MPI_FLOAT_INT ? (void *)&f : t->handle == MPI_DOUBLE_INT ? (void *)&d : (void *)&whole, first);
			}
			memcpy(at + (first == 2 ? 4 : first), &place, 4);
			break;
		}
		default:
			break;
		}
	}
	put(b, 0, all, b->len);
	/* The paddings of pairs and of long double. */
	b->loose = t->group == PAIR || t->size >= 16;
	free(all);
}

static void pair_of(const struct op *op, const struct type *t, int call)
{
	static const char *const names[] = { "Reduce_local", "Allreduce", "Reduce", "Scan", "Exscan", "Reduce_scatter_block", "Allreduce in place" };
	static const int counts[] = { 1, 19, 1000 };
	int n = counts[(type_count + call + (int)t->size) % COUNT(counts)];

	begin("%s %s %s of %d", names[call], op->name, t->name, n);
	struct buffer *s = take(t->extent * (size_t)(n * ranks), UNCHANGED), *r = take(t->extent * (size_t)(n * ranks), ANY);

	values(s, t, n * ranks);
	values(r, t, n * ranks);
	SIDES {
		switch (call) {
		case 0: OK(MPI_Reduce_local(P(s), P(r), n, t->handle, op->handle)); break;
		case 1: OK(MPI_Allreduce(P(s), P(r), n, t->handle, op->handle, MPI_COMM_WORLD)); break;
		case 2: OK(MPI_Reduce(P(s), P(r), n, t->handle, op->handle, n % ranks, MPI_COMM_WORLD)); break;
		case 3: OK(MPI_Scan(P(s), P(r), n, t->handle, op->handle, MPI_COMM_WORLD)); break;
		case 4: OK(MPI_Exscan(P(s), P(r), n, t->handle, op->handle, MPI_COMM_WORLD)); break;
		case 5: OK(MPI_Reduce_scatter_block(P(s), P(r), n, t->handle, op->handle, MPI_COMM_WORLD)); break;
		default: OK(MPI_Allreduce(MPI_IN_PLACE, P(r), n, t->handle, op->handle, MPI_COMM_WORLD));
		}
	}
	end();
}

/* Which datatypes each operation takes: MPI-3.1, 5.9.2. */
static void predefined(void)
{
	const int numbers = INTEGER | MULTI | FLOATING;
	const struct op ops[] = {
		{ "MPI_SUM", numbers | COMPLEX, MPI_SUM }, { "MPI_PROD", numbers | COMPLEX, MPI_PROD },
		{ "MPI_MAX", numbers, MPI_MAX }, { "MPI_MIN", numbers, MPI_MIN },
		{ "MPI_LAND", INTEGER | LOGICAL, MPI_LAND }, { "MPI_LOR", INTEGER | LOGICAL, MPI_LOR },
		{ "MPI_LXOR", INTEGER | LOGICAL, MPI_LXOR }, { "MPI_BAND", INTEGER | BYTES | MULTI, MPI_BAND },
		{ "MPI_BOR", INTEGER | BYTES | MULTI, MPI_BOR }, { "MPI_BXOR", INTEGER | BYTES | MULTI, MPI_BXOR },
		{ "MPI_MAXLOC", PAIR, MPI_MAXLOC }, { "MPI_MINLOC", PAIR, MPI_MINLOC },
	};

	list_types();
	for (int o = 0; o < COUNT(ops); o++)
		for (int t = 0; t < type_count; t++)
			if (ops[o].groups & types[t].group) {
				pair_of(&ops[o], &types[t], 0);
				pair_of(&ops[o], &types[t], 1 + (o + t) % 6);
			}
}

static int calls_of_own;
static void saturate(void *in, void *inout, int *len, MPI_Datatype *type)
{
	/* Addresses of the host, whatever the program's buffers are. */
	unsigned char *x = in, *y = inout;

	(void)type;
	calls_of_own++;
	for (int i = 0; i < *len; i++)
		y[i] = (unsigned char)(x[i] + y[i] > 255 ? 255 : x[i] + y[i]);
}

static void own(void)
{
	MPI_Op op;
	struct peers p = all_of(MPI_COMM_WORLD);

	OK(MPI_Op_create(saturate, 1, &op));
	for (int i = 0; i < 6; i++) {
		int n = 1 + 700 * i;

		begin("operation of the program's on %d bytes", n);
		struct buffer *s = take((size_t)n, UNCHANGED), *r = take((size_t)n, CHANGED);

		calls_of_own = 0;
		SIDES {
			MPI_Request q;

			OK(MPI_Allreduce(P(s), P(r), n, MPI_BYTE, op, MPI_COMM_WORLD));
			OK(MPI_Iallreduce(MPI_IN_PLACE, P(r), n, MPI_BYTE, op, MPI_COMM_WORLD, &q));
			OK(MPI_Wait(&q, MPI_STATUS_IGNORE));
			OK(MPI_Reduce_local(P(s), P(r), n, MPI_BYTE, op));
		}
		CHECK(calls_of_own >= 2);
		end();
	}
	OK(MPI_Op_free(&op));
	/* Not commutative, on derived datatypes. */
	for (enum which which = REDUCE; which <= EXSCAN; which++)
		for (int pair = 0; pair < FIXED_PAIRS; pair++)
			for (int in_place = 0; in_place < 2; in_place++) {
				struct shape w = { .which = which, .how = (enum how)(pair % 2), .k = 1 + 40 * pair, .pair = pair,
						   .reduction = OWN_OP, .in_place = in_place, .root = pair % ranks };

				begin("%s by composition, pair %d%s", which_names[which], pair, in_place ? " in place" : "");
				run_shape(&w, &p);
			}
}

/* Accumulating in turns with a copy of the device's: each call sees what the device holds now. */
static void repeated(void)
{
	begin("Reduce_local again and again");
	struct buffer *s = take(800, UNCHANGED), *r = take(800, CHANGED), *x = take(800, CHANGED);

	SIDES
		for (int i = 0; i < 20; i++) {
			OK(MPI_Reduce_local(P(s), P(r), 200, MPI_INT, i % 2 ? MPI_BXOR : MPI_SUM));
			move(side ? HOST : r->kind, (char *)P(r) + 4 * i, r->before + GUARD, 40);
			OK(MPI_Reduce_local(P(r), P(x), 200, MPI_UNSIGNED, MPI_SUM));
		}
	end();
}

int main(int argc, char **argv)
{
	static const struct subject all[] = { { "predefined", predefined }, { "own", own }, { "repeated", repeated } };

	return run_subjects("reductions", argc, argv, all, COUNT(all), MPI_THREAD_SINGLE);
}

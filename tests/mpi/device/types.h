/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Datatypes: a few fixed pairs of equal signature, and random ones. */
#ifndef MPI_DEVICE_TYPES_H
#define MPI_DEVICE_TYPES_H

#include "device.h"
#include <stddef.h>

/* Two datatypes of one signature: what is sent, and what it is received as. */
struct pair {
	const char *name;
	MPI_Datatype send, recv;
	int own;
};

static inline MPI_Datatype committed(MPI_Datatype type)
{
	OK(MPI_Type_commit(&type));
	return type;
}

static inline MPI_Datatype resized(MPI_Datatype old, MPI_Aint lb, MPI_Aint extent)
{
	MPI_Datatype type;

	OK(MPI_Type_create_resized(old, lb, extent, &type));
	OK(MPI_Type_free(&old));
	return type;
}

enum { FIXED_PAIRS = 6 };

static struct pair fixed_pair(int n)
{
	struct pair p = { "int", MPI_INT, MPI_INT, 0 };
	MPI_Datatype t;

	switch (n) {
	case 0:
		break;
	case 1:
		p = (struct pair){ "double", MPI_DOUBLE, MPI_DOUBLE, 0 };
		break;
	case 2: {
		/* Vector with gaps, to contiguous. */
		OK(MPI_Type_vector(3, 2, 5, MPI_INT, &t));
		p = (struct pair){ "vector", committed(t), MPI_DATATYPE_NULL, 1 };
		OK(MPI_Type_contiguous(6, MPI_INT, &t));
		p.recv = committed(t);
		break;
	}
	case 3: {
		/* A struct with padding, to one with the other order in memory of its members. */
		int ones[] = { 1, 2, 1 };
		MPI_Aint at[] = { 0, 8, 24 }, other[] = { 40, 0, 20 };
		MPI_Datatype of[] = { MPI_INT, MPI_DOUBLE, MPI_INT };

		OK(MPI_Type_create_struct(3, ones, at, of, &t));
		p = (struct pair){ "struct", committed(t), MPI_DATATYPE_NULL, 1 };
		OK(MPI_Type_create_struct(3, ones, other, of, &t));
		p.recv = committed(resized(t, -8, 64));
		break;
	}
	case 4: {
		/* A column of a matrix, whose elements interleave, to a subarray. */
		int sizes[] = { 5, 6 }, subsizes[] = { 2, 2 }, starts[] = { 1, 3 };

		OK(MPI_Type_vector(4, 1, 7, MPI_FLOAT, &t));
		p = (struct pair){ "column", committed(resized(t, 0, 4)), MPI_DATATYPE_NULL, 1 };
		OK(MPI_Type_create_subarray(2, sizes, subsizes, starts, MPI_ORDER_C, MPI_FLOAT, &t));
		p.recv = committed(t);
		break;
	}
	default: {
		int lens[] = { 1, 3, 0, 2 }, at[] = { 9, 0, 3, 5 }, block[] = { 1, 8, 4 };
		MPI_Datatype two;

		OK(MPI_Type_indexed(4, lens, at, MPI_LONG, &t));
		p = (struct pair){ "indexed", committed(t), MPI_DATATYPE_NULL, 1 };
		OK(MPI_Type_contiguous(2, MPI_LONG, &two));
		OK(MPI_Type_create_indexed_block(3, 1, block, two, &t));
		OK(MPI_Type_free(&two));
		p.recv = committed(t);
	}
	}
	return p;
}

static inline void free_pair(struct pair *p)
{
	if (p->own) {
		OK(MPI_Type_free(&p->send));
		OK(MPI_Type_free(&p->recv));
	}
}

/* The number of the basic datatype that all elements of a random one have; -1: any. */
static int sole_basic = -1;
/* Whether one since this was set to 0 has a struct in it. */
static int with_struct;

/* A random datatype, not committed; at most some 20 KiB of hull. The same on every rank. */
static MPI_Datatype random_type(int depth)
{
	static const char size[] = { 1, 2, 4, 8, 4, 8, 1 };
	MPI_Datatype basic[] = { MPI_CHAR, MPI_SHORT, MPI_INT, MPI_DOUBLE, MPI_FLOAT, MPI_LONG_LONG, MPI_BYTE };
	MPI_Datatype old, type;
	MPI_Aint lb, extent, at[4];
	int lens[4], places[4], sizes[3], subsizes[3], starts[3], n = 1 + (int)draw(4), next = 0;

	if (!depth) {
		int which = sole_basic < 0 ? (int)draw(COUNT(basic)) : sole_basic;

		OK(MPI_Type_contiguous(1 + (int)draw(3), basic[which], &type));
		return draw(4) ? type : resized(type, 0, 4 * size[which]);
	}
	old = random_type(depth - 1);
	OK(MPI_Type_get_extent(old, &lb, &extent));
	for (int i = 0; i < n; i++) {
		lens[i] = (int)draw(3);
		places[i] = next + (int)draw(3);
		next = places[i] + (lens[i] > 1 ? lens[i] : 1);
		at[i] = places[i] * extent;
	}
	lens[0] += !lens[0] && n == 1;
	switch (draw(12)) {
	case 0: OK(MPI_Type_contiguous(n, old, &type)); break;
	case 1: OK(MPI_Type_vector(n, 1 + (int)draw(2), 2 + (int)draw(3), old, &type)); break;
	case 2: OK(MPI_Type_create_hvector(n, 1, extent * (draw(3) ? 1 : -1) * (1 + (int)draw(3)), old, &type)); break;
	case 3: OK(MPI_Type_indexed(n, lens, places, old, &type)); break;
	case 4: OK(MPI_Type_create_hindexed(n, lens, at, old, &type)); break;
	case 5: OK(MPI_Type_create_hindexed_block(n, 1, at, old, &type)); break;
	case 6: {
		MPI_Datatype of[4] = { old, old, sole_basic < 0 ? MPI_INT : basic[sole_basic], sole_basic < 0 ? MPI_CHAR : basic[sole_basic] };
		MPI_Aint gap = next * extent + 16;

		with_struct = 1;
		for (int i = 2; i < n; i++)
			at[i] = gap + 40 * i;
		OK(MPI_Type_create_struct(n, lens, at, of, &type));
		break;
	}
	case 7:
		for (int i = 0; i < 3; i++) {
			sizes[i] = 1 + (int)draw(4);
			subsizes[i] = 1 + (int)draw((unsigned)sizes[i]);
			starts[i] = (int)draw((unsigned)(sizes[i] - subsizes[i] + 1));
		}
		OK(MPI_Type_create_subarray(3, sizes, subsizes, starts, draw(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN,
					    old, &type));
		break;
	case 8: {
		int distribs[] = { MPI_DISTRIBUTE_BLOCK, MPI_DISTRIBUTE_CYCLIC }, args[] = { MPI_DISTRIBUTE_DFLT_DARG, 2 };
		int grid[] = { 1, 2 };

		sizes[0] = 2 + (int)draw(3), sizes[1] = 4 + (int)draw(4);
		OK(MPI_Type_create_darray(2, (int)draw(2), 2, sizes, distribs, args, grid,
					  draw(2) ? MPI_ORDER_C : MPI_ORDER_FORTRAN, old, &type));
		break;
	}
	case 9: OK(MPI_Type_dup(old, &type)); break;
	case 10:
		for (int i = 0; i < n; i++)
			places[i] = 3 * i + (int)draw(2);
		OK(MPI_Type_create_indexed_block(n, 1 + (int)draw(2), places, old, &type));
		break;
	default: OK(MPI_Type_create_resized(old, lb - 4 * (int)draw(2), extent + 8 * (int)draw(3) + 8, &type));
	}
	OK(MPI_Type_free(&old));
	return type;
}

#endif

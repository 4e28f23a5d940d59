/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What the programs of this folder have in common.
 *
 * Each call is made twice, with the same arguments: on memory of the kind that MEM names (`side` 0), and on
 * twins of these buffers in host memory (`side` 1). Then both have to have the same bytes: in the buffer, in
 * the gaps of its datatype, and in the guards before and behind it. The MPI's own result on host memory is
 * the reference. A buffer that a call has to change, or must not change, is marked as such.
 *
 *   MEM=device|pool|managed|pinned|host|mixed   mixed: another kind for each buffer and rank
 *   VERBOSE=1                                   rank 0 names each case before it
 *   FLAW=1                                      before each comparison one byte of a buffer is changed:
 *                                               every case has to fail
 *
 * Over the stand-in for CUDA's driver an access of the CPU to device memory is a SIGSEGV.
 */
#ifndef MPI_DEVICE_H
#define MPI_DEVICE_H

#include <mpi.h>
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../gpu/driver.h"

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))
#define SIDES for (side = 0; side < 2; side++)
enum { GUARD = 192, MOST_BUFFERS = 64 };
enum kind { DEVICE, POOL, MANAGED, PINNED, HOST, KINDS };
enum change { ANY, CHANGED, UNCHANGED };

struct buffer {
	char *at[2];		/* where the buffer begins, on each side */
	char *base[2];		/* with the guard before it */
	char *before;		/* the whole, as it was at first */
	size_t len;
	long origin;		/* of an argument, behind `at`: a datatype may begin below it */
	enum kind kind;
	enum change change;
	int loose;		/* its gaps may be written by an MPI: those of the pairs of MPI_MAXLOC */
};

static int me, ranks, side, flawed, sealed, verbose;
/* Which MPI: for faults of its own on host memory. */
static int intel, open_mpi;
/* Open MPI 4 over its MTL ofi: of a synchronous send that MPI_Mprobe has matched the sender is not acknowledged, and of MPI_Bsend_init
   the contents of the first start are sent again; by host memory without the library, over libfabric's provider tcp too. */
static int openmpi4, openmpi4_mtl;
static char the_case[256];
static long cases, failures, refusals, here_failed;
static struct buffer buffers[MOST_BUFFERS];
static int used;
static enum kind fixed = KINDS;
static uint64_t seed_of_case;

/* The address of a buffer as an argument of a call, on the side in turn. */
#define P(b) ((void *)((b)->at[side] + (b)->origin))

static inline uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

/* The same on every rank, another for each case. */
static uint64_t drawn;
static inline unsigned draw(unsigned below) { return (unsigned)(mix(seed_of_case + ++drawn) % below); }

__attribute__((format(printf, 1, 2))) static inline void fail(const char *text, ...)
{
	va_list list;
	char line[512];

	va_start(list, text);
	vsnprintf(line, sizeof line, text, list);
	va_end(list);
	here_failed++;
	if (failures + here_failed <= 12 && !flawed)
		fprintf(stderr, "  rank %d: %s, %s: %s\n", me, the_case, side ? "host" : "device", line);
}

static inline const char *words(int code)
{
	static char text[MPI_MAX_ERROR_STRING + 1];
	int len = 0;

	if (PMPI_Error_string(code, text, &len))
		return "unknown code";
	return text;
}

/* A call that has to succeed. */
#define OK(call)                                                                \
	do {                                                                    \
		int ok_code = (call);                                           \
		if (ok_code != MPI_SUCCESS)                                     \
			fail("%s: %s", #call, words(ok_code));                  \
	} while (0)
/* A call that has to fail with an error of MPI's. */
#define BAD(call)                                                               \
	do {                                                                    \
		if ((call) == MPI_SUCCESS)                                      \
			fail("%s: no error", #call);                            \
	} while (0)
#define CHECK(what)                                                             \
	do {                                                                    \
		if (!(what))                                                    \
			fail("not so: %s", #what);                              \
	} while (0)

/* A call that not every MPI has, by its name; NULL where the MPI itself lacks it. */
static int (*optional(const char *name))()
{
	char profiled[96];

	snprintf(profiled, sizeof profiled, "P%s", name);
	return dlsym(RTLD_DEFAULT, profiled) ? (int (*)())dlsym(RTLD_DEFAULT, name) : NULL;
}

static inline int on_device(enum kind kind) { return kind == DEVICE || kind == POOL; }

static inline char *allocate(enum kind kind, size_t len)
{
	void *at = NULL;

	switch (kind) {
	case DEVICE: CU(cuMemAlloc_v2, (void **, size_t), &at, len); break;
	case POOL: CU(cuMemAllocAsync, (void **, size_t, void *), &at, len, NULL); break;
	case MANAGED: CU(cuMemAllocManaged, (void **, size_t, unsigned), &at, len, 1); break;
	case PINNED: CU(cuMemHostAlloc, (void **, size_t, unsigned), &at, len, 0); break;
	default: at = malloc(len);
	}
	return at;
}

static inline void release(enum kind kind, char *at)
{
	switch (kind) {
	case POOL: CU(cuMemFreeAsync, (uint64_t, void *), (uint64_t)at, NULL); break;
	case DEVICE:
	case MANAGED: CU(cuMemFree_v2, (uint64_t), (uint64_t)at); break;
	case PINNED: CU(cuMemFreeHost, (void *), at); break;
	default: free(at);
	}
}

static inline void move(enum kind kind, char *to, const char *from, size_t len)
{
	if (kind == HOST)
		memcpy(to, from, len);
	else if (len)
		CU(cuMemcpy, (uint64_t, uint64_t, size_t), (uint64_t)to, (uint64_t)from, len);
}

static inline enum kind next_kind(void)
{
	return fixed != KINDS ? fixed : (enum kind)(mix(seed_of_case + 77 * me + 1000 + used) % KINDS);
}

/* The byte at `i` of what a rank begins with in its buffer number `n`: what another rank knows, too. */
static inline unsigned char first_byte(int rank, int n, size_t i)
{
	return (unsigned char)(mix(seed_of_case ^ ((uint64_t)rank << 40) ^ ((uint64_t)n << 32) ^ i) >> 17);
}

/* A buffer of a kind, with random bytes, freed by end(). */
static struct buffer *take_of(enum kind kind, size_t len, enum change change)
{
	struct buffer *b = &buffers[used];
	size_t all = len + 2 * GUARD;

	if (used == MOST_BUFFERS) {
		fprintf(stderr, "%s: more buffers than %d\n", the_case, MOST_BUFFERS);
		exit(2);
	}
	*b = (struct buffer){ .len = len, .kind = kind, .change = change };
	b->before = malloc(all);
	for (size_t i = 0; i < all; i++)
		b->before[i] = (char)first_byte(me, used, i - GUARD);
	for (int s = 0; s < 2; s++) {
		b->base[s] = allocate(s ? HOST : kind, all);
		b->at[s] = b->base[s] + GUARD;
		move(s ? HOST : kind, b->base[s], b->before, all);
	}
	used++;
	return b;
}

static inline struct buffer *take(size_t len, enum change change) { return take_of(next_kind(), len, change); }

/* The hull of `count` elements, and room of `more` elements behind it. */
static inline struct buffer *take_typed(long count, long more, MPI_Datatype type, enum change change)
{
	MPI_Aint lb = 0, extent = 0, true_lb = 0, true_extent = 0;
	struct buffer *b;
	long span, low;

	PMPI_Type_get_extent(type, &lb, &extent);
	PMPI_Type_get_true_extent(type, &true_lb, &true_extent);
	span = count + more > 0 ? (long)extent * (count + more - 1) : 0;
	low = (long)true_lb + (span < 0 ? span : 0);
	b = take((size_t)((span < 0 ? -span : span) + true_extent), change);
	b->origin = -low;
	return b;
}

/* Bytes of the test's in place of the random ones, on both sides. */
static inline void put(struct buffer *b, size_t at, const void *from, size_t len)
{
	memcpy(b->before + GUARD + at, from, len);
	for (int s = 0; s < 2; s++)
		move(s ? HOST : b->kind, b->at[s] + at, from, len);
}

/* What side `s` has there now. */
static inline void get(struct buffer *b, int s, size_t at, void *to, size_t len)
{
	move(s ? HOST : b->kind, to, b->at[s] + at, len);
}

/* That the buffer has the first bytes of rank `rank`'s buffer number `n`, from `skip` on. */
static inline void has_first(struct buffer *b, int s, size_t at, size_t len, int rank, int n, size_t skip)
{
	char *now = malloc(len + 1);

	get(b, s, at, now, len);
	for (size_t i = 0; i < len; i++)
		if (now[i] != (char)first_byte(rank, n, skip + i)) {
			fail("byte %zu is not that of rank %d", at + i, rank);
			break;
		}
	free(now);
}

static inline void begin(const char *text, ...)
{
	va_list list;

	va_start(list, text);
	vsnprintf(the_case, sizeof the_case, text, list);
	va_end(list);
	seed_of_case = 0;
	for (const char *c = the_case; *c; c++)
		seed_of_case = mix(seed_of_case + (unsigned char)*c);
	drawn = 0;
	used = 0;
	side = 0;
	here_failed = 0;
	sealed = 0;
	if (verbose && me == 0)
		fprintf(stderr, "%s\n", the_case);
}

static inline void compare(struct buffer *b, int number)
{
	size_t all = b->len + 2 * GUARD;
	char *now = malloc(all);

	move(b->kind, now, b->base[0], all);
	side = 0;
	for (size_t i = 0; i < all; i++) {
		if (now[i] == b->base[1][i] || (b->loose && now[i] == b->before[i]))
			continue;
		fail("buffer %d, byte %ld of %zu%s: %02x in the place of %02x, before it was %02x", number,
		     (long)i - GUARD, b->len, i < GUARD || i >= GUARD + b->len ? " (guard)" : "",
		     now[i] & 255, b->base[1][i] & 255, b->before[i] & 255);
		break;
	}
	side = 1;
	if (memcmp(b->base[1], b->before, GUARD) ||
	    memcmp(b->base[1] + GUARD + b->len, b->before + GUARD + b->len, GUARD))
		fail("buffer %d: the guard of the twin was written", number);
	if (b->change == CHANGED && !memcmp(b->base[1], b->before, all))
		fail("buffer %d was not changed", number);
	if (b->change == UNCHANGED && memcmp(b->base[1], b->before, all))
		fail("buffer %d was changed", number);
	side = 0;
	free(now);
}

/* Compares all buffers of the case, and frees them. */
static inline void end(void)
{
	if (flawed && used && !sealed) {
		struct buffer *b = &buffers[draw(used)];
		/* Half of them in a guard. */
		size_t at = draw(2) || !b->len ? draw(GUARD) : GUARD + mix(drawn) % b->len;
		char byte;

		move(b->kind, &byte, b->base[0] + at, 1);
		byte = (char)(byte + 1 == b->before[at] ? byte + 2 : byte + 1);
		move(b->kind, b->base[0] + at, &byte, 1);
	}
	for (int i = 0; i < used; i++) {
		if (!sealed)
			compare(&buffers[i], i);
		for (int s = 0; s < 2; s++)
			release(s ? HOST : buffers[i].kind, buffers[i].base[s]);
		free(buffers[i].before);
	}
	/* With a flaw, cases without a buffer on this rank are none. */
	cases += !flawed || (used && !sealed);
	failures += here_failed != 0;
	used = 0;
}

/* The MPI, or the library, refuses this case on device memory by an error: not compared. */
static inline void refuse(int code)
{
	if (refusals++ < 1 && me == 0 && !flawed)
		fprintf(stderr, "  refused: %s: %s\n", the_case, words(code));
	sealed = 1;
}

static inline void on_segv(int number)
{
	static const char text[] = "  SIGSEGV in: ";

	signal(number, SIG_DFL);
	if (write(2, text, sizeof text - 1) < 0 || write(2, the_case, strlen(the_case)) < 0 || write(2, "\n", 1) < 0)
		_exit(139);
	/* The faulting instruction runs again. */
}

struct subject {
	const char *name;
	void (*run)(void);
};

/* main() of each program: all subjects, or those that are named. --list prints them. */
static inline int run_subjects(const char *program, int argc, char **argv, const struct subject *all, int n, int level)
{
	static const char *const names[] = { "device", "pool", "managed", "pinned", "host", "mixed" };
	const char *mem = getenv("MEM");
	long sums[3], mine[3];
	char library[MPI_MAX_LIBRARY_VERSION_STRING];
	int have = 0, wanted;

	if (argc == 2 && !strcmp(argv[1], "--list")) {
		for (int i = 0; i < n; i++)
			puts(all[i].name);
		return 0;
	}
	MPI_Init_thread(&argc, &argv, level, &have);
	MPI_Comm_rank(MPI_COMM_WORLD, &me);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
	MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
	MPI_Get_library_version(library, &have);
	intel = strstr(library, "Intel") != NULL;
	open_mpi = strstr(library, "Open MPI") != NULL;
	fixed = DEVICE;
	for (int i = 0; mem && i < COUNT(names); i++)
		if (!strcmp(mem, names[i]))
			fixed = (enum kind)i;
	openmpi4 = strstr(library, "Open MPI v4") != NULL;
	openmpi4_mtl = openmpi4 && getenv("OVER_MTL");
	flawed = getenv("FLAW") != NULL;
	verbose = getenv("VERBOSE") != NULL;
	if (fixed != HOST)
		cuda_begin(me);
	signal(SIGSEGV, on_segv);
	signal(SIGBUS, on_segv);
	for (int i = 0; i < n; i++) {
		wanted = argc < 2;
		for (int k = 1; k < argc; k++)
			wanted |= !strcmp(argv[k], all[i].name);
		if (wanted)
			all[i].run();
	}
	snprintf(the_case, sizeof the_case, "MPI_Finalize");
	mine[0] = cases, mine[1] = failures, mine[2] = refusals;
	PMPI_Allreduce(mine, sums, 3, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	if (me == 0)
		printf("%s %s: %ld cases, %ld failed, %ld refused\n", sums[1] ? "wrong" : "right", program, sums[0],
		       sums[1], sums[2]);
	/* Before another rank's exit status ends the job. */
	fflush(stdout);
	MPI_Finalize();
	return sums[1] != 0;
}

#endif

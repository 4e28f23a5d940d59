/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What both programs have: sizes, rounds, contents that are checked, random numbers that all ranks draw alike. */
#ifndef COMMON_H
#define COMMON_H
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* LONGEST are the long messages, which have memory of their own, so that the others stay in the processor's caches. */
enum { LEAST = 8, MOST = 65536, WARM = 64, WIDEST = 4096, LONGEST = 4 << 20 };

static const size_t widths[] = { 8, 64, 512, WIDEST };
#define WIDTHS (sizeof(widths) / sizeof(widths[0]))

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* Long messages go less often. */
static inline long rounds_of(long rounds, size_t size)
{
	return size <= 1024 ? rounds : size <= 8192 ? rounds / 4 + 1 : size <= MOST ? rounds / 16 + 1 : rounds / 128 + 1;
}

static void wrong(const char *what, size_t size, uint64_t stamp)
{
	fprintf(stderr, "%s of %zu bytes: message %llu is not what was sent\n", what, size, (unsigned long long)stamp);
	exit(3);
}

/* Messages before the clock runs. */
static inline long warm_of(size_t size)
{
	return size <= MOST ? WARM : WARM / 8;
}

/* The size after this one: powers of two to MOST, of four to LONGEST. */
static inline size_t size_after(size_t size)
{
	return size < MOST ? size * 2 : size * 4;
}

/* The first and the last eight bytes have the message's number; in the first messages all bytes depend on it. */
static inline void stamp_it(char *to, size_t size, uint64_t stamp, int all)
{
	for (size_t n = 0; all && n < size; n++)
		to[n] = (char)(stamp * 31 + n * 7);
	memcpy(to + size - 8, &stamp, 8);
	memcpy(to, &stamp, 8);
}

static inline void check_it(const char *what, const char *from, size_t size, uint64_t stamp, int all)
{
	if (memcmp(from, &stamp, 8) || memcmp(from + size - 8, &stamp, 8))
		wrong(what, size, stamp);
	for (size_t n = 8; all && n + 8 < size; n++)
		if (from[n] != (char)(stamp * 31 + n * 7))
			wrong(what, size, stamp);
}

static uint64_t drawn = 1;

static inline uint32_t draw(void)
{
	drawn = drawn * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(drawn >> 33);
}

/* The next number of peers to go to: 1, 3, 7 and so on, and all. 0: there is none. */
static inline int more_peers(int had, int size)
{
	int next = 2 * had + 1;

	return had == size - 1 ? 0 : next < size ? next : size - 1;
}
#endif

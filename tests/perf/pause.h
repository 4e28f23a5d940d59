/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A pause of random length, up to PAUSE multiplications (some 0.9 ns each) of the environment; none by default.
 * Without it two processes that wait for each other in loops fall into a step, and which step it is decides
 * about tens of nanoseconds.
 */
#ifndef PAUSE_H
#define PAUSE_H
#include <stdlib.h>

static inline void pause_a_little(void)
{
	static int most = -1;
	static unsigned random = 12345;
	unsigned product = 3;

	if (most < 0)
		most = getenv("PAUSE") ? atoi(getenv("PAUSE")) : 0;
	if (most < 1)
		return;
	random = random * 1664525 + 1013904223;
	for (unsigned n = (random >> 16) % most; n > 0; n--)
		product *= product;
	/* As if the value were used. */
	__asm__ volatile("" : : "r"(product));
}
#endif

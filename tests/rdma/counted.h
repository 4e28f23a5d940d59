/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Of programs whose instructions callgrind counts (--toggle-collect='counted_*').
 */
#ifndef COUNTED_H
#define COUNTED_H

#include <unistd.h>
#include <valgrind/callgrind.h>

/* A device that is the kernel's (soft RoCE) moves what was posted, on this processor. */
static inline void device_works(void)
{
	usleep(5000);
}

/* What was counted so far was to warm up. */
static inline void counted_begin(void)
{
	CALLGRIND_ZERO_STATS;
}

/* Nothing behind it counts. */
static inline void counted_end(void)
{
	CALLGRIND_DUMP_STATS_AT("counted");
}

#endif

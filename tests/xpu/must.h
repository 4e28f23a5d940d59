/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* MUST(call): a call that returns anything but 0 ends the process. The time, and the CPUs' time of this process, in seconds. */
#ifndef STRAIT_TEST_XPU_MUST_H
#define STRAIT_TEST_XPU_MUST_H

#include <sys/resource.h>

#include <ctime>

#include "check.h"

#define MUST(call)                                                                                                       \
	do {                                                                                                             \
		const long long rc_ = (long long)(call);                                                                 \
		if (rc_) {                                                                                               \
			fprintf(stderr, CHECK_FORMAT "line %d: %s: %lld\n", CHECK_ARGS, __LINE__, #call, rc_);           \
			_exit(1);                                                                                        \
		}                                                                                                        \
	} while (0)

static inline double now()
{
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static inline double cpu_seconds()
{
	rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

#endif

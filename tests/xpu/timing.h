/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The time, and what of it this process has taken of the CPUs, in seconds. */
#pragma once

#include <sys/resource.h>

#include <ctime>

static double now()
{
	timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static double cpu_seconds()
{
	rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A clock that counts its readings, for the whole program when linked with -rdynamic: instructions then do not depend on
 * how long a processor takes for them. clock_gettime(2) of a real clock makes polls read sockets the more often the slower
 * they are.
 */
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
	static _Thread_local long reading;

	(void)clock;
	reading += 1000;
	now->tv_sec = 1000 + reading / 1000000000;
	now->tv_nsec = reading % 1000000000;
	return 0;
}

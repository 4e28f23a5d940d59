/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* CHECK(what): what is not so ends the process, since threads of a group cannot leave one by one.
 *
 * A program of several processes says which of them it was: CHECK_FORMAT and CHECK_ARGS, defined before, are printed in front. */
#ifndef STRAIT_TEST_XPU_CHECK_H
#define STRAIT_TEST_XPU_CHECK_H

#include <stdio.h>
#include <unistd.h>

#ifndef CHECK_FORMAT
#define CHECK_FORMAT "%s"
#define CHECK_ARGS ""
#endif

#define CHECK(what)                                                                                             \
	do {                                                                                                    \
		if (!(what)) {                                                                                  \
			fprintf(stderr, CHECK_FORMAT "%s:%d: %s: not so\n", CHECK_ARGS, __FILE__, __LINE__, #what); \
			_exit(1);                                                                               \
		}                                                                                               \
	} while (0)

#endif

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A system call, or anything with an errno, that has to go well. */
#ifndef MUST_H
#define MUST_H
#include <stdio.h>
#include <stdlib.h>

#define CHECK(what)                                        \
	do {                                               \
		if (!(what)) {                             \
			perror(#what);                     \
			exit(1);                           \
		}                                          \
	} while (0)
#endif

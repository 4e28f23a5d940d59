/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A call of libfabric's that has to go well. */
#ifndef CHECK_H
#define CHECK_H
#include <rdma/fi_errno.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                 \
	do {                                                                        \
		long rc_ = (call);                                                  \
		if (rc_ < 0) {                                                      \
			fprintf(stderr, "%s: %s\n", #call, fi_strerror((int)-rc_)); \
			exit(1);                                                    \
		}                                                                   \
	} while (0)
#endif

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* MUST(call): a call that returns anything but 0 ends the process. */
#ifndef STRAIT_TEST_XPU_MUST_H
#define STRAIT_TEST_XPU_MUST_H

#include "check.h"

#define MUST(call)                                                                                                       \
	do {                                                                                                             \
		const long long rc_ = (long long)(call);                                                                 \
		if (rc_) {                                                                                               \
			fprintf(stderr, CHECK_FORMAT "line %d: %s: %lld\n", CHECK_ARGS, __LINE__, #call, rc_);           \
			_exit(1);                                                                                        \
		}                                                                                                        \
	} while (0)

#endif

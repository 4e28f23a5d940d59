/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the program of the slide leaves out: ranks go in pairs, the even one writes. The value that was read is printed before its
 * memory is freed. */
#include <stdio.h>
#include <strait_rpipe.h>

static int rank;
#define peer (rank ^ 1)
#define iswriter (rank % 2 == 0)
#define SEND_VAL (4200 + rank)
#define rfree(addr) (printf("rank %d has read %d\n", rank, *ptr), rfree(addr))

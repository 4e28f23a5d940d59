/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What gaspi/host.cc and its kernels have in common. */
#ifndef STRAIT_TEST_XPU_GASPI_HOST_H
#define STRAIT_TEST_XPU_GASPI_HOST_H

#include "strait_xpu_layout.h"

#define SEGMENT_BYTES (8u << 20)
/* In each segment: for the GPU, from it, short ones, what is fetched, what the host has, a word. */
#define IN_AT 0u
#define OUT_AT (2u << 20)
#define SMALL_AT (4u << 20)
#define READ_AT (5u << 20)
#define HOST_AT (6u << 20)
#define WORD_AT (7u << 20)

/* Words behind a kernel's results that the thread which looks at rings reads: it begins; it is to pause; it does. */
#define LOOK_GO 16
#define LOOK_PAUSE 17
#define LOOK_PAUSED 18

struct gaspi_job {
	strait_xpu_u64 ctx;
	strait_xpu_u32 notify_region, notify_count, segment, peer, queue, unused;
	strait_xpu_u64 rounds, most;
};

/* What byte j of message i is, and how long the message. */
STRAIT_XPU_INLINE unsigned char gaspi_byte(strait_xpu_u64 i, strait_xpu_u64 j)
{
	return (unsigned char)((i * 0x9e3779b97f4a7c15ULL + j * 0xd1342543de82ef95ULL) >> 40);
}
STRAIT_XPU_INLINE strait_xpu_u64 gaspi_size_of(strait_xpu_u64 i, strait_xpu_u64 most)
{
	strait_xpu_u64 v = (i + 1) * 0xbf58476d1ce4e5b9ULL;
	v ^= v >> 29;
	return i % 3 == 0 ? 1 + v % 8 : 1 + v % most;
}

#endif

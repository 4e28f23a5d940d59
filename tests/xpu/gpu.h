/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Numbers that tests/xpu/kernels.cu and gpu.cc share. */
#ifndef STRAIT_TEST_XPU_GPU_H
#define STRAIT_TEST_XPU_GPU_H

#define AREA 65536ULL /* bytes of a block, in region 0 */
#define BLOCKS_MOST 64
#define MAIL_LOG2 12
#define VECTOR 32 /* the matrix has VECTOR rows and columns */

enum { MODE_SIGNAL, MODE_ADD, MODE_PACKETS, MODE_CRC, MODE_MAIL, MODE_FUSED, MODES };
enum { PING_BARE, PING_SIGNAL_WEAK, PING_SIGNAL, PING_PUT, PING_FUSED, PING_WORD, PING_PACKETS, PING_MAIL, PINGS };
/* What kernels latency_SCOPE_NAME are of. */
#define PINGS_OF(of)                                                                                               \
	of(bare, PING_BARE) of(signal_weak, PING_SIGNAL_WEAK) of(signal, PING_SIGNAL) of(put, PING_PUT)            \
	of(fused, PING_FUSED) of(word, PING_WORD) of(packets, PING_PACKETS) of(mail, PING_MAIL)
enum { LADDER_NAIVE, LADDER_BELL, LADDER_BATCH, LADDER_WARP };
/* What crosses between memories: where a thread loads and stores, or a block copies. */
enum { CROSS_LOAD, CROSS_STORE, CROSS_READ, CROSS_WRITE };

#endif

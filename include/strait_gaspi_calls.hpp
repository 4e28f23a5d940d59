/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What the program gives: GASPI's calls as a table of functions, segments, options. Included by strait_gaspi_host.hpp. */
#ifndef STRAIT_GASPI_CALLS_HPP
#define STRAIT_GASPI_CALLS_HPP

#include <cstddef>
#include <vector>

#include "strait_xpu_layout.h"

namespace strait {
namespace gaspi {

using u64 = strait_xpu_u64;
using u32 = strait_xpu_u32;

/* GASPI's calls, by the arguments of the specification and in their order; STRAIT_GASPI_CALLS has them of what the program
 * includes and links. Timeouts are milliseconds, 0 is GASPI_TEST. */
struct call_table {
	/* What they return: GASPI_SUCCESS, GASPI_TIMEOUT, GASPI_QUEUE_FULL. All else is an error. */
	int success, timeout, queue_full;
	int (*write)(u32 segment, u64 offset, u32 rank, u32 remote, u64 remote_offset, u64 size, u32 queue, u64 ms);
	int (*read)(u32 segment, u64 offset, u32 rank, u32 remote, u64 remote_offset, u64 size, u32 queue, u64 ms);
	int (*write_notify)(u32 segment, u64 offset, u32 rank, u32 remote, u64 remote_offset, u64 size, u32 id, u32 value,
			    u32 queue, u64 ms);
	int (*notify)(u32 remote, u32 rank, u32 id, u32 value, u32 queue, u64 ms);
	int (*wait)(u32 queue, u64 ms);
	int (*notify_waitsome)(u32 segment, u32 first, u32 count, u32 *id, u64 ms);
	int (*notify_reset)(u32 segment, u32 id, u32 *old);
	int (*fetch_add)(u32 segment, u64 offset, u32 rank, u64 value, u64 *old, u64 ms);
	int (*compare_swap)(u32 segment, u64 offset, u32 rank, u64 compared, u64 value, u64 *old, u64 ms);
	/* gaspi_segment_alloc, zeroed, and gaspi_segment_ptr; gaspi_segment_delete. */
	int (*segment_alloc)(u32 segment, u64 size, void **at);
	int (*segment_delete)(u32 segment);
	/* Of gaspi_state_vec_get: whether the state of `rank` is GASPI_STATE_CORRUPT. */
	bool (*corrupt)(u32 rank, u32 ranks);
};

/* The table, where the program has included its GASPI's header: each entry is a function that calls the one of that name,
 * so that the types of that header may differ from these. */
#define STRAIT_GASPI_CALLS() (::strait::gaspi::call_table{                                                              \
	GASPI_SUCCESS, GASPI_TIMEOUT, GASPI_QUEUE_FULL,                                                                 \
	[](unsigned s, unsigned long long o, unsigned k, unsigned r, unsigned long long p, unsigned long long n,        \
	   unsigned q, unsigned long long ms) -> int {                                                                  \
		return (int)gaspi_write((gaspi_segment_id_t)s, o, (gaspi_rank_t)k, (gaspi_segment_id_t)r, p, n,         \
					(gaspi_queue_id_t)q, ms);                                                       \
	},                                                                                                              \
	[](unsigned s, unsigned long long o, unsigned k, unsigned r, unsigned long long p, unsigned long long n,        \
	   unsigned q, unsigned long long ms) -> int {                                                                  \
		return (int)gaspi_read((gaspi_segment_id_t)s, o, (gaspi_rank_t)k, (gaspi_segment_id_t)r, p, n,          \
				       (gaspi_queue_id_t)q, ms);                                                        \
	},                                                                                                              \
	[](unsigned s, unsigned long long o, unsigned k, unsigned r, unsigned long long p, unsigned long long n,        \
	   unsigned i, unsigned v, unsigned q, unsigned long long ms) -> int {                                          \
		return (int)gaspi_write_notify((gaspi_segment_id_t)s, o, (gaspi_rank_t)k, (gaspi_segment_id_t)r, p, n,  \
					       (gaspi_notification_id_t)i, v, (gaspi_queue_id_t)q, ms);                 \
	},                                                                                                              \
	[](unsigned r, unsigned k, unsigned i, unsigned v, unsigned q, unsigned long long ms) -> int {                  \
		return (int)gaspi_notify((gaspi_segment_id_t)r, (gaspi_rank_t)k, (gaspi_notification_id_t)i, v,         \
					 (gaspi_queue_id_t)q, ms);                                                      \
	},                                                                                                              \
	[](unsigned q, unsigned long long ms) -> int { return (int)gaspi_wait((gaspi_queue_id_t)q, ms); },              \
	[](unsigned s, unsigned f, unsigned n, unsigned *i, unsigned long long ms) -> int {                             \
		gaspi_notification_id_t id = 0;                                                                         \
		const int rc = (int)gaspi_notify_waitsome((gaspi_segment_id_t)s, (gaspi_notification_id_t)f,            \
							  (gaspi_number_t)n, &id, ms);                                  \
		*i = id;                                                                                                \
		return rc;                                                                                              \
	},                                                                                                              \
	[](unsigned s, unsigned i, unsigned *v) -> int {                                                                \
		gaspi_notification_t old = 0;                                                                           \
		const int rc = (int)gaspi_notify_reset((gaspi_segment_id_t)s, (gaspi_notification_id_t)i, &old);        \
		*v = old;                                                                                               \
		return rc;                                                                                              \
	},                                                                                                              \
	[](unsigned s, unsigned long long o, unsigned k, unsigned long long v, unsigned long long *old,                 \
	   unsigned long long ms) -> int {                                                                              \
		gaspi_atomic_value_t was = 0;                                                                           \
		const int rc = (int)gaspi_atomic_fetch_add((gaspi_segment_id_t)s, o, (gaspi_rank_t)k, v, &was, ms);     \
		*old = was;                                                                                             \
		return rc;                                                                                              \
	},                                                                                                              \
	[](unsigned s, unsigned long long o, unsigned k, unsigned long long c, unsigned long long v,                    \
	   unsigned long long *old, unsigned long long ms) -> int {                                                     \
		gaspi_atomic_value_t was = 0;                                                                           \
		const int rc = (int)gaspi_atomic_compare_swap((gaspi_segment_id_t)s, o, (gaspi_rank_t)k, c, v, &was,    \
							      ms);                                                      \
		*old = was;                                                                                             \
		return rc;                                                                                              \
	},                                                                                                              \
	[](unsigned s, unsigned long long n, void **at) -> int {                                                        \
		gaspi_pointer_t p = nullptr;                                                                            \
		int rc = (int)gaspi_segment_alloc((gaspi_segment_id_t)s, n, GASPI_MEM_INITIALIZED);                     \
		if (rc == (int)GASPI_SUCCESS)                                                                           \
			rc = (int)gaspi_segment_ptr((gaspi_segment_id_t)s, &p);                                         \
		*at = p;                                                                                                \
		return rc;                                                                                              \
	},                                                                                                              \
	[](unsigned s) -> int { return (int)gaspi_segment_delete((gaspi_segment_id_t)s); },                             \
	[](unsigned k, unsigned ranks) -> bool {                                                                        \
		std::vector<gaspi_state_t> state(ranks, GASPI_STATE_HEALTHY);                                           \
		return gaspi_state_vec_get(state.data()) == GASPI_SUCCESS && state[k] == GASPI_STATE_CORRUPT;           \
	}})

/* A segment that kernels use: of this number in GASPI and in gpu_gaspi_* calls. */
struct segment {
	u32 id;
	void *base;     /* where kernels find this rank's part */
	u64 length;     /* of this rank's part, in bytes */
	u64 remote = 0; /* of the largest part of another rank; 0: as this rank's */
};

struct options {
	call_table calls = {};
	u32 rank = 0, ranks = 0;
	std::vector<segment> segments;
	/* Notifications 0 to `notifications` - 1 of each segment are the kernels'; all others stay the CPU's. */
	u32 notifications = 64;
	/* GASPI's queue of ring 0, 1, ...: a kernel's queue is the ring. The CPU uses others. */
	std::vector<u32> queues = {0};
	/* GASPI's queue for reads and for values fetched, which nothing else uses. GPI-2's OFI device counts completions of notifications
	 * as those of reads that come after them in the same queue. */
	u32 reads = 1;
	/* A ring has 2^log2_slots commands under way at most: no more than gaspi_queue_size_max. */
	u32 log2_slots = 9;
	/* The number of a segment that is free: payload of up to 8 bytes, which is in the command itself, goes through it. */
	u32 scratch = 31;
	/* Of waits of kernels that have GPU_GASPI_BLOCK. */
	u64 timeout_ns = 30000000000ULL;
	/* The longest sleep of the thread between two looks when there is nothing to do. */
	u64 sleep_ns = 50000;
	/* How long gaspi_wait may have what it waits for to come, until the ring ends with ETIMEDOUT: GPI-2's OFI device loses the failure of an
	 * operation when its progress thread reads it before gaspi_wait does, and times out from then on. */
	u64 give_up_ns = 10000000000ULL;
	/* What one call of GASPI that posts may wait for a lock or a connection. */
	u64 call_ms = 20;
	/* Memory of the host's which kernels find at the same address (cudaHostAlloc), at a multiple of 64 and zeroed or not; null: memory of
	 * the process, for threads that play kernels. */
	void *(*allocate)(std::size_t) = nullptr;
	void (*release)(void *) = nullptr;
	/* Memory of the device's, for the tables and what kernels alone write, and a copy to it: without them both are in the
	 * host's, where each look of a kernel crosses the bus. */
	void *(*device_allocate)(std::size_t) = nullptr;
	void (*device_release)(void *) = nullptr;
	void (*device_copy)(void *to, const void *from, std::size_t) = nullptr;
	/* Without a thread the program calls look(). */
	bool thread = true;
};

} // namespace gaspi
} // namespace strait

#endif

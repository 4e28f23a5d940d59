/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* libstrait_xpu.so: GPU kernels that send, the host's side. Link with -lstrait_xpu.
 *
 * Functions return 0, or an errno below 0; strait_xpu_error has its words. Structures begin with their size, set by the
 * program, and only grow at their end. A context is used by one thread at a time. strait_xpu(7) has the whole story.
 */

#ifndef STRAIT_XPU_H
#define STRAIT_XPU_H

#include <stddef.h>
#include <stdint.h>
#include "strait_xpu_layout.h"


/*
 strait_xpu_ring_options.flags: commands are taken up to the ring's bell only, and not as soon as they are
 written.
 */
#define STRAIT_XPU_WITH_BELL 1

/*
 strait_xpu_ring_options.flags: the ring has a queue of completions.
 */
#define STRAIT_XPU_WITH_QUEUE 2

/*
 strait_xpu_ring_options.flags: kernels of any device, and code of this process, post to the ring. Without
 it, or STRAIT_XPU_WITH_BELL, a ring that a thread with a current CUDA context adds is for kernels of that
 context, which reserve their slots in its memory: each reservation in host memory takes as long as a
 command's way to the host.
 */
#define STRAIT_XPU_ANY_DEVICE 4

/*
 A context: an endpoint, memory that peers reach, rings, and the tables that a device reads.
 */
struct strait_xpu;

/*
 How a context is opened.
 */
struct strait_xpu_options {
    /*
     Of this structure.
     */
    size_t size;
    /*
     A secret that all processes have, with which peers of other hosts are reached by TCP; NULL: none are.
     */
    const char *key;
    /*
     Of waits of a device that name no time, in nanoseconds; 0: 30 seconds.
     */
    uint64_t timeout_ns;
    /*
     How long a thread that drains rings sleeps at most between two looks, in nanoseconds; 0: 50
     microseconds.
     */
    uint64_t sleep_ns;
    /*
     How many threads drain the rings, at most 16; 0: one. Ring r is drained by thread r modulo this.
     Messages and data for a peer's queue are for the rings of thread 0.
     */
    uint32_t threads;
    /*
     0.
     */
    uint32_t unused;
    /*
     How long a thread sleeps at most once nothing has happened for 10 milliseconds, in nanoseconds, taken
     as whole milliseconds, 1 to 25; 0: as long as before. A command of a kernel waits so long, unless
     strait_xpu_wake was called.
     */
    uint64_t idle_ns;
};

/*
 How a ring is made.
 */
struct strait_xpu_ring_options {
    /*
     Of this structure.
     */
    size_t size;
    /*
     The ring has 2^log2_slots slots; at most 20.
     */
    uint32_t log2_slots;
    /*
     Its queue has 2^log2_entries entries; at most 20.
     */
    uint32_t log2_entries;
    /*
     STRAIT_XPU_WITH_BELL, STRAIT_XPU_WITH_QUEUE, STRAIT_XPU_ANY_DEVICE.
     */
    uint32_t flags;
    /*
     0.
     */
    uint32_t unused;
    /*
     Memory for the slots, 64 bytes each, at a multiple of 64, which stays until strait_xpu_close: where
     the CPU finds it. NULL: host memory, page-locked where the process has a device.
     */
    void *slots;
    /*
     The same memory, where the device finds it.
     */
    void *slots_device;
    /*
     Its bytes.
     */
    size_t slots_size;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Why the last call of this thread failed. Valid until its next.
 */
const char *strait_xpu_error(void);

/*
 Opens a context. A device's runtime is to be initialized before.

 # Safety
 `options` is NULL or as said of the structure; `opened` is NULL or valid for a write.
 */
int strait_xpu_open(const struct strait_xpu_options *options, struct strait_xpu **opened);

/*
 Registers memory of a device's or the host's for peers. Regions have the numbers 0, 1 and so on; all
 processes register theirs in the same order.

 # Safety
 `context` is open; `address` to `address` + `length` stays allocated until strait_xpu_close; `region` is
 NULL or valid for a write.
 */
int strait_xpu_register(struct strait_xpu *context,
                        void *address,
                        size_t length,
                        uint32_t *region);

/*
 Allocates and registers zeroed memory of the host's, which devices of this process, and peers of this
 host, may map.

 # Safety
 `context` is open; `region` and `address` are NULL or valid for a write.
 */
int strait_xpu_allocate(struct strait_xpu *context,
                        size_t length,
                        uint32_t *region,
                        void **address);

/*
 Adds a ring. Rings have the numbers 0, 1 and so on.

 # Safety
 `context` is open; `options` is as said of the structure; `ring` is NULL or valid for a write.
 */
int strait_xpu_add_ring(struct strait_xpu *context,
                        const struct strait_xpu_ring_options *options,
                        uint32_t *ring);

/*
 What peers have to know of this process, to be called when all its memory is registered. `length` is the
 size of `buffer`, and becomes that of the blob; -ENOSPC: it is too small, and nothing was written.

 # Safety
 `context` is open; `buffer` is valid for writes of `length` bytes; `length` is NULL or valid.
 */
int strait_xpu_blob(struct strait_xpu *context,
                    void *buffer,
                    size_t *length);

/*
 Comes to know all processes, of which this is number `rank`: `count` blobs, in the order of their numbers.
 Memory of peers on this host is mapped, where that can be done. To be called once, before
 strait_xpu_begin.

 # Safety
 `context` is open; `blobs` and `lengths` are `count` pointers and lengths of readable bytes.
 */
int strait_xpu_connect(struct strait_xpu *context,
                       uint32_t rank,
                       uint32_t count,
                       const void *const *blobs,
                       const size_t *lengths);

/*
 Ends the setting up, and starts the thread that drains the rings. `view` gets the address, in the device's
 space, of a struct strait_xpu_context (strait_xpu_layout.h), for kernels. It stays until strait_xpu_close.

 # Safety
 `context` is open; `view` is NULL or valid for a write.
 */
int strait_xpu_begin(struct strait_xpu *context,
                     void **view);

/*
 Commands come: the threads that drain the rings do not sleep long for the next 10 milliseconds, and one
 that does ends that. To be called before a kernel that posts is started, where strait_xpu_options.idle_ns
 is given. Any thread may call it at any time from strait_xpu_open to strait_xpu_close, also one that calls
 for cuLaunchHostFunc: it calls nothing of the device's runtime, waits for nothing, and costs a fence where
 the threads are awake.

 # Safety
 `context` is NULL or open.
 */
int strait_xpu_wake(const struct strait_xpu *context);

/*
 Where the device finds a region of a peer's: NULL in `address` if it is reached by commands alone.

 # Safety
 `context` is open, and strait_xpu_connect was called; `address` and `length` are NULL or valid for a
 write.
 */
int strait_xpu_mapped(struct strait_xpu *context,
                      uint32_t peer,
                      uint32_t region,
                      void **address,
                      size_t *length);

/*
 Ends a context: each ring and each peer get an error word, so that kernels which wait return, and no peer
 reaches memory of this process any more. What kernels use stays until strait_xpu_close.

 # Safety
 `context` is NULL or open.
 */
int strait_xpu_end(struct strait_xpu *context);

/*
 Closes a context. No kernel that uses it runs any more. -EBUSY: a peer is stopped while it accesses memory
 of this process; the context is still open.

 # Safety
 `context` is NULL or open, and is not used any more if this returns 0.
 */
int strait_xpu_close(struct strait_xpu *context);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STRAIT_XPU_H */

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* libstrait_rpipe.so: remote memory by malloc, messages by a pipe. Link with -lstrait_rpipe.
 *
 * Functions return 0 or more, or an errno below 0, and set errno; those that return an address or a pointer return none.
 * rerror() has the words of the last failure. Structures begin with their size, set by the program, and only grow at their
 * end, but for rpipe_neighbor, of which there are arrays. Pipes may be used by several threads, each pipe by one at a time
 * (others wait). strait_rpipe(7) has the whole story.
 */

#ifndef STRAIT_RPIPE_H
#define STRAIT_RPIPE_H

#include <stddef.h>
#include <stdint.h>
/* Makes an end of a pipe: rpipe(rp, peer, iswriter, width, flags). */
#define rpipe(rp, peer, iswriter, width, flags) rpipe_open(&(rp), (peer), (iswriter), (width), (flags))

/* Waits for the next message, whose address goes to addr: rread(rp, addr, size). */
#define rread(rp, addr, size) rread_into((rp), &(addr), (size))


/*
 No block.
 */
#define RADDR_NULL 0

/*
 Flags of rpipe: messages go one way, from the writer to the reader.
 */
#define HD_PIPE 1

/*
 Messages go both ways; `iswriter` says nothing then.
 */
#define FD_PIPE 2

/*
 Set up now, and not at the first use.
 */
#define RPIPE_EAGER 16

/*
 The reader gets the bytes, instead of the writer putting them.
 */
#define RPIPE_PULL 32

/*
 The writer's policy: blocks are the next that fit; the default.
 */
#define RPIPE_NEXT_FIT 256

/*
 The first that fit.
 */
#define RPIPE_FIRST_FIT 512

/*
 The shortest that fit.
 */
#define RPIPE_BEST_FIT 768

/*
 The longest.
 */
#define RPIPE_WORST_FIT 1024

/*
 The writer learns of freed blocks when the reader frees; the default for next-fit and first-fit.
 */
#define RPIPE_DEFERRED 4096

/*
 The writer learns of freed blocks when it allocates; the default for best-fit and worst-fit.
 */
#define RPIPE_IMMEDIATE 8192

/*
 Memory of a CUDA device, that of the calling thread's context or of STRAIT_RPIPE_DEVICE: the heap of a
 reader's end, the blocks of a writer's. The other end may have the host's. rmem gives the device's
 pointer.
 */
#define RPIPE_DEVICE 65536

/*
 Reader, with RPIPE_DEVICE: kernels wait for messages; see rpipe_on_device.
 */
#define RPIPE_NUMBERS 131072

/*
 A width: messages are as long as the heap at most.
 */
#define RPIPE_UNBOUNDED 0

/*
 Nanoseconds: as long as the peer is there.
 */
#define RPIPE_FOREVER -1

/*
 Types of rpipe_reduce and rpipe_allreduce.
 */
#define RPIPE_INT32 1

#define RPIPE_INT64 2

#define RPIPE_UINT32 3

#define RPIPE_UINT64 4

#define RPIPE_FLOAT 5

#define RPIPE_DOUBLE 6

/*
 Operations of the same. Sums and products of integers wrap.
 */
#define RPIPE_SUM 16

#define RPIPE_PROD 32

#define RPIPE_MIN 48

#define RPIPE_MAX 64

/*
 Bitwise, of integers.
 */
#define RPIPE_AND 80

#define RPIPE_OR 96

#define RPIPE_XOR 112

/*
 Operations of rborrow_atomic alone: the word becomes the operand; or does if it was `compare`.
 */
#define RPIPE_SWAP 128

#define RPIPE_COMPARE_SWAP 144

/*
 Memory of another process, with a heap in it.
 */
typedef struct rborrowed rborrowed;

/*
 Memory that this process lends.
 */
typedef struct rlent rlent;

/*
 A pipe's end.
 */
typedef struct rpipe_end rpipe_end;

/*
 Processes that call collectively.
 */
typedef struct rpipe_group rpipe_group;

/*
 The readers' ends of pipes of many writers.
 */
typedef struct rpipe_many_end rpipe_many_end;

/*
 How rinit begins.
 */
typedef struct rinit_attr {
    /*
     sizeof(struct rinit_attr).
     */
    size_t size;
    /*
     The backend, or NULL: as STRAIT_RPIPE_BACKEND says, or strait.
     */
    const char *backend;
} rinit_attr;

/*
 A pipe's end, made by rpipe.
 */
typedef struct rpipe_end *rpipe_t;

/*
 How a pipe is to be.
 */
typedef struct rpipe_attr {
    /*
     sizeof(struct rpipe_attr).
     */
    size_t size;
    /*
     Nonzero: this is the writer's end.
     */
    int iswriter;
    /*
     HD_PIPE or FD_PIPE, and others.
     */
    unsigned int flags;
    /*
     Bytes of the longest message, the same at both ends; RPIPE_UNBOUNDED: as long as the heap.
     */
    size_t width;
    /*
     Reader: bytes of the heap; 0: as STRAIT_RPIPE_HEAP says, or 1 MiB, and the width at least.
     */
    size_t heap;
    /*
     Reader: the most messages under way; 0: as STRAIT_RPIPE_SLOTS says, or 256.
     */
    size_t slots;
} rpipe_attr;

/*
 What a pipe has done and has now. The writer's counts are those of the heap's book; of a full-duplex pipe
 they are those given, with the messages of the reader beside.
 */
typedef struct rpipe_stats {
    /*
     sizeof(struct rpipe_stats).
     */
    size_t size;
    /*
     Bytes of the heap; 0: the pipe is not set up yet.
     */
    uint64_t heap;
    /*
     Bytes in use: writer: allocated or at the reader; reader: read and not freed.
     */
    uint64_t used;
    /*
     Bytes that are free.
     */
    uint64_t free;
    /*
     Writer: bytes of the longest free block.
     */
    uint64_t largest;
    /*
     Writer: external fragmentation, 1 - largest / free.
     */
    double fragmentation;
    /*
     Messages written, and their bytes.
     */
    uint64_t written;
    uint64_t written_bytes;
    /*
     Messages read, and their bytes.
     */
    uint64_t read;
    uint64_t read_bytes;
    /*
     Synchronizations: how often this end put tags of freed blocks, or took such in; and how many tags.
     */
    uint64_t syncs;
    uint64_t tags;
    /*
     How the reader learns of messages: store, one-write, two-writes, delivered, notified. The reason.
     */
    char flag_mode[16];
    char flag_why[160];
    /*
     What leads to the peer. The reason.
     */
    char path[32];
    char path_why[160];
    /*
     Writer: the policy, and the synchronization.
     */
    char policy[16];
    char sync[16];
    /*
     Writer: messages of up to so many bytes travel in their slot; longer ones of up to so many are copied
     by the path, 0: none. Others go from their block.
     */
    uint64_t in_slot;
    uint64_t injected;
    /*
     Where `injected` comes from: measured, given or a default, and why so.
     */
    char injected_why[160];
} rpipe_stats;

/*
 A block of a pipe: which pipe, where, and which of the blocks that were there. RADDR_NULL is none.
 */
typedef uint64_t raddr_t;

/*
 What is called for an active message: with what was said at rhandle, the pipe, the bytes and how many. It
 may call every function, also of this pipe; the bytes are there until it returns.
 */
typedef void (*rhandler_t)(void *arg, rpipe_t rp, void *bytes, size_t size);

/*
 The readers' ends of pipes of many writers, as one, made by rpipe_many_open.
 */
typedef struct rpipe_many_end *rpipe_many_t;

/*
 Processes that call collectively, made by rpipe_group_open.
 */
typedef struct rpipe_group *rpipe_group_t;

/*
 A neighbour of rpipe_neighbor_exchange, in an array of such.
 */
typedef struct rpipe_neighbor {
    /*
     Its rank.
     */
    int rank;
    /*
     What it gets; NULL only for no bytes.
     */
    const void *send;
    size_t send_size;
    /*
     Where that goes which it sends, and the room there; NULL only for none.
     */
    void *receive;
    size_t receive_size;
    /*
     Out: bytes that came.
     */
    size_t received;
} rpipe_neighbor;

/*
 Combines `count` elements at `in` with those at `inout`, one by one, into `inout`. The elements begin on
 multiples of 8 bytes at least if their size is such a multiple and the memory of the caller does.
 */
typedef void (*rpipe_combine_t)(const void *in, void *inout, size_t count, void *arg);

/*
 A function of the program's for rpipe_reduce_by and rpipe_allreduce_by.
 */
typedef struct rpipe_function {
    /*
     sizeof(struct rpipe_function).
     */
    size_t size;
    /*
     Bytes of an element, 1 to 8192.
     */
    size_t element;
    rpipe_combine_t combine;
    /*
     What it gets.
     */
    void *arg;
} rpipe_function;

/*
 The number by which a kernel finds a message, in memory of the device. Each half is there at once: the
 message is there when both have its number.
 */
typedef struct rpipe_number {
    /*
     Bytes of the message.
     */
    uint32_t size;
    /*
     The lower half of the message's number, counted from 1.
     */
    uint32_t number;
    /*
     Where its bytes begin in the heap, in granules.
     */
    uint32_t place;
    /*
     The same as `number`.
     */
    uint32_t again;
} rpipe_number;

/*
 A reader's heap in memory of a device, for kernels.
 */
typedef struct rpipe_device {
    /*
     sizeof(struct rpipe_device).
     */
    size_t size;
    /*
     Where the heap begins, and its bytes.
     */
    void *heap;
    size_t heap_size;
    /*
     Bytes by which rpipe_number.place counts.
     */
    size_t granule;
    /*
     With RPIPE_NUMBERS: `slots` of them, in memory of the device; that of message n, counted from 1, has
     the index (n - 1) % slots. Else NULL.
     */
    const struct rpipe_number *numbers;
    size_t slots;
    /*
     The number, counted from 1, of the message that rread gives next.
     */
    uint64_t next;
    /*
     The device's number in this process.
     */
    int device;
} rpipe_device;

/*
 Memory that this process lends, made by rlend.
 */
typedef struct rlent *rlent_t;

/*
 Memory of another process, with a heap in it, made by rborrow.
 */
typedef struct rborrowed *rborrowed_t;

/*
 A block of borrowed memory: of which, where, and which of the blocks that were there. RADDR_NULL is none.
 */
typedef uint64_t rborrow_addr_t;

/*
 A part of a block of borrowed memory, and where its bytes are or go in this process.
 */
typedef struct rborrow_part {
    /*
     The block.
     */
    rborrow_addr_t addr;
    /*
     Where in the block.
     */
    size_t offset;
    /*
     Memory of this process.
     */
    void *memory;
    /*
     Bytes.
     */
    size_t size;
} rborrow_part;

/*
 What was done with borrowed memory, and what is in its heap.
 */
typedef struct rborrow_stats {
    /*
     sizeof(struct rborrow_stats).
     */
    size_t size;
    /*
     Bytes that were lent.
     */
    uint64_t heap;
    /*
     Bytes that are allocated; without the book: that are attached, and 0 in the next three.
     */
    uint64_t used;
    /*
     Bytes that are free.
     */
    uint64_t free;
    /*
     Bytes of the longest free block.
     */
    uint64_t largest;
    /*
     External fragmentation, 1 - largest / free.
     */
    double fragmentation;
    /*
     Calls that have written, and their bytes.
     */
    uint64_t writes;
    uint64_t written_bytes;
    /*
     Calls that have read, and their bytes.
     */
    uint64_t reads;
    uint64_t read_bytes;
    /*
     Nonzero: the memory is mapped here, and rborrow_mem works.
     */
    int mapped;
    /*
     Nonzero: a thread of the lender's makes progress for the operations of this process.
     */
    int thread;
    /*
     The policy; "" without the book.
     */
    char policy[16];
    /*
     What leads to the lender. The reason.
     */
    char path[32];
    char path_why[160];
    /*
     Calls of rborrow_atomic. From here on fields are set where `size` has room for all of them.
     */
    uint64_t atomics;
    /*
     The rank of the borrower that keeps the book: the first of those that rlend_many was given. -1: the
     memory came from rlend, and has no other borrower.
     */
    int keeper;
} rborrow_stats;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Joins the job that this process was started in, and gives its rank. `attr` may be NULL. Once that has
 succeeded it is an error, also after rfinalize.

 0, or an errno below 0; rerror has its words.

 # Safety
 `rank` is NULL or valid for a write; `attr` is NULL or a structure that begins with its size.
 */
int rinit(int *rank,
          const struct rinit_attr *attr);

/*
 Leaves the job: closes all pipes, after what was written has left. Peers read what was written before. A
 program that ends without it has left too. ETIMEDOUT: it has left, and some of what was written may be
 lost (STRAIT_RPIPE_LINGER).
 */
int rfinalize(void);

/*
 Processes of the job, or an errno below 0.
 */
int rcount(void);

/*
 Makes an end of a pipe to a peer, whose messages have `width` bytes at most. The peer makes the other end,
 at any time; the first that a process makes to a peer leads to the first that the peer makes, and so on.
 Programs call it as rpipe.

 # Safety
 `rp` is NULL or valid for a write.
 */
int rpipe_open(rpipe_t *rp,
               int peer,
               int iswriter,
               size_t width,
               unsigned int flags);

/*
 As rpipe_open, with all that can be said of a pipe.

 # Safety
 `rp` is NULL or valid for a write; `attr` is NULL or a structure that begins with its size.
 */
int rpipe_open_attr(rpipe_t *rp, int peer, const struct rpipe_attr *attr);

/*
 Closes an end, after what was written has left. Addresses of the pipe, and memory at them, are not to be
 used any more. The peer reads what was written, and then its calls fail with EPIPE. ETIMEDOUT: the end is
 closed, and some of what was written may be lost (STRAIT_RPIPE_LINGER).

 # Safety
 `rp` is NULL or came from rpipe.
 */
int rpipe_close(rpipe_t rp);

/*
 Chooses blocks by another policy from now on: RPIPE_NEXT_FIT and so on. The writer's end only.

 # Safety
 `rp` is NULL or came from rpipe.
 */
int rpipe_set_policy(rpipe_t rp, unsigned int policy);

/*
 What a pipe has done and has now.

 # Safety
 `rp` is NULL or came from rpipe; `stats` is NULL or a structure whose first field is its size.
 */
int rpipe_get_stats(rpipe_t rp, struct rpipe_stats *stats);

/*
 What the last call of this thread that failed has to say, and what to do about it. The text stays until
 the next failure.
 */
const char *rerror(void);

/*
 Allocates a block of the pipe's heap. Waits until the reader has freed enough, if it has anything to free.
 RADDR_NULL, with errno, if not: ENOBUFS: all is this end's; EMSGSIZE: it never fits; EPIPE: the peer is
 gone.

 # Safety
 `rp` is NULL or came from rpipe.
 */
raddr_t rmalloc(rpipe_t rp,
                size_t size);

/*
 As rmalloc, on a multiple of `align`, a power of two of 4096 at most.

 # Safety
 `rp` is NULL or came from rpipe.
 */
raddr_t rmalloc_aligned(rpipe_t rp, size_t size, size_t align);

/*
 As rmalloc, and waits so long at most; 0: not at all; EAGAIN or ENOBUFS then.

 # Safety
 `rp` is NULL or came from rpipe.
 */
raddr_t rmalloc_timed(rpipe_t rp, size_t size, int64_t nanoseconds);

/*
 The memory of a block: one that was allocated, until it is written or freed; one that was read, until it
 is freed. NULL, with errno, if it is neither. A peer of ill will can write there at any time.

 # Safety
 `rp` is NULL or came from rpipe.
 */
void *rmem(rpipe_t rp,
           raddr_t addr);

/*
 The bytes of a block: as many as were allocated, or as the message has. -1, with errno, if it is none.
 */
ptrdiff_t rlength(raddr_t addr);

/*
 Writes: the block is the reader's from now on, which finds it as its next message. Does not wait for the
 reader.

 # Safety
 `rp` is NULL or came from rpipe.
 */
int rwrite(rpipe_t rp,
           raddr_t addr);

/*
 As rwrite, and waits so long at most for the path to take the message; 0: not at all. EAGAIN: it has not,
 and the block is still this end's. Memory that both ends map takes it at once.

 # Safety
 `rp` is NULL or came from rpipe.
 */
int rwrite_timed(rpipe_t rp,
                 raddr_t addr,
                 int64_t nanoseconds);

/*
 As rwrite, of the first `size` bytes.

 # Safety
 `rp` is NULL or came from rpipe.
 */
int rwrite_part(rpipe_t rp, raddr_t addr, size_t size);

/*
 Waits until all that was written has left this process, so long at most.

 # Safety
 `rp` is NULL or came from rpipe.
 */
int rflush(rpipe_t rp, int64_t nanoseconds);

/*
 Waits for the next message, of `size` bytes at most, and gives its address; rlength has its length. A
 longer one stays (EMSGSIZE). Active messages before it are handled. EPIPE: all was read, and the peer is
 gone. Programs call it as rread, with the address by its name.

 # Safety
 `rp` is NULL or came from rpipe; `addr` is NULL or valid for a write.
 */
int rread_into(rpipe_t rp,
               raddr_t *addr,
               size_t size);

/*
 As rread_into, and waits so long at most; 0: not at all; EAGAIN then, also while active messages come
 without end.

 # Safety
 `rp` is NULL or came from rpipe; `addr` is NULL or valid for a write.
 */
int rread_timed(rpipe_t rp,
                raddr_t *addr,
                size_t size,
                int64_t nanoseconds);

/*
 The length of the next message, without reading it, or EAGAIN below 0. Called again and again it finds
 each message, and EPIPE once all was read and the peer is gone.

 # Safety
 `rp` is NULL or came from rpipe.
 */
ptrdiff_t rpeek(rpipe_t rp);

/*
 Frees a block: one that was read, which becomes the writer's again, or one that was allocated and not
 written. ESTALE: it is none of these, or was freed before.
 */
int rfree(raddr_t addr);

/*
 Waits until one of `count` pipes has a message, so long at most: its index, or EAGAIN below 0. A pipe
 whose peer is gone counts as one that has a message: rread says so. After some polls the process sleeps
 until a writer wakes it.

 # Safety
 `pipes` has so many pipes, each from rpipe.
 */
int rwait(const rpipe_t *pipes,
          size_t count,
          int64_t nanoseconds);

/*
 A descriptor for poll(2): readable once something may have come for a pipe that rpipe_arm has said may be
 slept for. An errno below 0 if there is none.
 */
int rpipe_fd(void);

/*
 Prepares for sleeping on rpipe_fd until this pipe has a message. 0: sleep; EAGAIN below 0: there is
 something to read, or to do, already.

 # Safety
 `rp` is NULL or came from rpipe.
 */
int rpipe_arm(rpipe_t rp);

/*
 Registers what is called for active messages of this number, 1 to 32767; NULL: nothing. They are handled
 in the order of all messages, within rread and its like.

 # Safety
 `rp` is NULL or came from rpipe; the function may be called as long as the pipe is open.
 */
int rhandle(rpipe_t rp,
            int number,
            rhandler_t handler,
            void *arg);

/*
 Writes a block as an active message: the reader's handler of this number gets it, and the block comes back
 after that.

 # Safety
 `rp` is NULL or came from rpipe.
 */
int rwrite_am(rpipe_t rp,
              raddr_t addr,
              int number);

/*
 Makes the readers' ends of pipes from `count` writers, which are read as one; `peers` are their ranks, in
 any order, or NULL for all other processes of the job. Each writer opens its end by rpipe, as that of any
 other pipe. A heap is made when its writer begins. Of `attr`, which may be NULL for pipes of any width,
 `iswriter` says nothing, and FD_PIPE is refused.

 # Safety
 `many` is NULL or valid for a write; `peers` is NULL or has so many ranks; `attr` is NULL or a structure
 that begins with its size.
 */
int rpipe_many_open(rpipe_many_t *many,
                    const int *peers,
                    size_t count,
                    const struct rpipe_attr *attr);

/*
 Waits for the next message of any writer, of `size` bytes at most, so long at most, and gives its address,
 its pipe, for rmem, and its writer's rank. Writers come in turn: each that has written gets one message
 read before another gets a second one. A longer message stays (EMSGSIZE). Active messages are handled, by
 what rhandle has registered with their pipe. EPIPE: the writer of this rank and pipe has ended, and all
 that it wrote was read; each writer's end is reported once. When all writers have ended, EPIPE comes with
 the rank -1. EAGAIN: not within the time. `from` and `source` may be NULL.

 # Safety
 `many` is NULL or came from rpipe_many_open; `addr`, `from` and `source` are each NULL or valid for a
 write.
 */
int rpipe_many_read(rpipe_many_t many,
                    raddr_t *addr,
                    size_t size,
                    rpipe_t *from,
                    int *source,
                    int64_t nanoseconds);

/*
 The pipe of the writer of this rank, for rhandle and rpipe_get_stats. It is read by rpipe_many_read alone,
 and closed by rpipe_many_close. NULL, with errno, if there is none.

 # Safety
 `many` is NULL or came from rpipe_many_open.
 */
rpipe_t rpipe_many_pipe(rpipe_many_t many,
                        int rank);

/*
 Closes the ends. Addresses of their pipes, and memory at them, are not to be used any more.

 # Safety
 `many` is NULL or came from rpipe_many_open.
 */
int rpipe_many_close(rpipe_many_t many);

/*
 Makes a group of these ranks, this process's among them, in the same order at each of them; NULL: all
 processes of the job. Nothing is sent before it is used. Two processes that are in several groups
 together, or have full-duplex pipes to each other, make all these in the same order.

 # Safety
 `group` is NULL or valid for a write; `members` is NULL or has so many ranks.
 */
int rpipe_group_open(rpipe_group_t *group,
                     const int *members,
                     size_t count);

/*
 Broadcast: the `size` bytes of the member of rank `root` come to all others. Each member calls it, with
 the same root and size, and returns when its part is done: the root may return before others have the
 bytes. EPIPE: a member that this one needs has ended, or its call has failed; rerror names it. EMSGSIZE,
 EINVAL: the members do not call the same. After any of these the group is over: each call of it fails, at
 all members that wait for one another; close it, and make another one of those that are left.

 # Safety
 `group` is NULL or came from rpipe_group_open; `buffer` has so many bytes, which nothing else uses
 meanwhile.
 */
int rpipe_bcast(rpipe_group_t group,
                int root,
                void *buffer,
                size_t size);

/*
 As rpipe_bcast, and takes so long at most. ETIMEDOUT: it has taken longer; rerror names the members that
 were waited for. The group is over then: the calls of the others fail with EPIPE.

 # Safety
 Those of rpipe_bcast.
 */
int rpipe_bcast_timed(rpipe_group_t group,
                      int root,
                      void *buffer,
                      size_t size,
                      int64_t nanoseconds);

/*
 Neighbour exchange: sends to each neighbour, and receives from each. A neighbour is a member that calls
 it, too, and has this one among its neighbours; members that have none need not call it. Messages may have
 any length, up to the room that the receiver gives. Of several neighbours that are one rank the first sent
 is the first received; this member may be its own. Errors are those of rpipe_bcast.

 # Safety
 `group` is NULL or came from rpipe_group_open; `neighbors` is NULL or has so many, with the memory that
 they name.
 */
int rpipe_neighbor_exchange(rpipe_group_t group,
                            struct rpipe_neighbor *neighbors,
                            size_t count);

/*
 As rpipe_neighbor_exchange, and takes so long at most. ETIMEDOUT is that of rpipe_bcast_timed.

 # Safety
 Those of rpipe_neighbor_exchange.
 */
int rpipe_neighbor_exchange_timed(rpipe_group_t group,
                                  struct rpipe_neighbor *neighbors,
                                  size_t count,
                                  int64_t nanoseconds);

/*
 Closes a group. Others that wait for this member get EPIPE.

 # Safety
 `group` is NULL or came from rpipe_group_open.
 */
int rpipe_group_close(rpipe_group_t group);

/*
 Returns when all members have called it, or with an error: ETIMEDOUT, if that took longer than
 `nanoseconds`; else those of rpipe_bcast. The group is over then.

 # Safety
 `group` is NULL or came from rpipe_group_open.
 */
int rpipe_barrier(rpipe_group_t group, int64_t nanoseconds);

/*
 Gather: the `size` bytes of each member come to the member of rank `root`, which has them in `receive` one
 behind the other, in the order of the group. `sizes` of the root: how many each member sends; NULL: `size`
 each. The others' `receive` and `sizes` are not used. Errors are those of rpipe_barrier; EMSGSIZE: a
 member sends another size.

 # Safety
 `group` is NULL or came from rpipe_group_open; the memory is there, and nothing else uses it meanwhile.
 */
int rpipe_gather(rpipe_group_t group,
                 int root,
                 const void *send,
                 size_t size,
                 void *receive,
                 const size_t *sizes,
                 int64_t nanoseconds);

/*
 Scatter: of the bytes at `send` of the member of rank `root` each member gets its `size`, in the order of
 the group. `sizes` of the root: how many each gets; NULL: `size` each. The others' `send` and `sizes` are
 not used. Errors are those of rpipe_gather.

 # Safety
 Those of rpipe_gather.
 */
int rpipe_scatter(rpipe_group_t group,
                  int root,
                  const void *send,
                  const size_t *sizes,
                  void *receive,
                  size_t size,
                  int64_t nanoseconds);

/*
 All-to-all: each member has a part for each at `send`, and gets one of each at `receive`, one behind the
 other in the order of the group. `send_sizes`, `receive_sizes`: how long they are; NULL: `size` each. What
 is sent and what is received do not overlap. Errors are those of rpipe_gather.

 # Safety
 Those of rpipe_gather.
 */
int rpipe_alltoall(rpipe_group_t group,
                   const void *send,
                   const size_t *send_sizes,
                   void *receive,
                   const size_t *receive_sizes,
                   size_t size,
                   int64_t nanoseconds);

/*
 Reduce: the `count` elements of all members are combined, one by one, and come to `receive` of the member
 of rank `root`; the others' `receive` is not used. `what` is a type and an operation, such as
 RPIPE_INT32 | RPIPE_SUM. `receive` may be `send`. Errors are those of rpipe_barrier; EMSGSIZE: a member
 has another count.

 # Safety
 Those of rpipe_gather.
 */
int rpipe_reduce(rpipe_group_t group,
                 int root,
                 const void *send,
                 void *receive,
                 size_t count,
                 unsigned int what,
                 int64_t nanoseconds);

/*
 As rpipe_reduce, by a function of the program's, which has to be associative and commutative. It is called
 in this thread, with some of the elements at a time, and makes no call of this library.

 # Safety
 Those of rpipe_gather; `function` is NULL or valid, and combines elements of its size.
 */
int rpipe_reduce_by(rpipe_group_t group,
                    int root,
                    const void *send,
                    void *receive,
                    size_t count,
                    const struct rpipe_function *function,
                    int64_t nanoseconds);

/*
 As rpipe_reduce, and the outcome comes to all members, to each the same bits.

 # Safety
 Those of rpipe_gather.
 */
int rpipe_allreduce(rpipe_group_t group,
                    const void *send,
                    void *receive,
                    size_t count,
                    unsigned int what,
                    int64_t nanoseconds);

/*
 As rpipe_allreduce, by a function of the program's: see rpipe_reduce_by.

 # Safety
 Those of rpipe_reduce_by.
 */
int rpipe_allreduce_by(rpipe_group_t group,
                       const void *send,
                       void *receive,
                       size_t count,
                       const struct rpipe_function *function,
                       int64_t nanoseconds);

/*
 Writes `size` bytes of memory of any kind, the host's or a device's, as a message, without a block of the
 program's: to a heap that is mapped or in memory of a device they are copied once, by the device where
 that has part. The memory may be used again when this returns. Waits for room as rmalloc does, and fails
 as rmalloc and rwrite do.

 # Safety
 `rp` is NULL or came from rpipe; so many bytes are readable at `from`, by the processor or by the device
 whose memory it is.
 */
int rwrite_from(rpipe_t rp,
                const void *from,
                size_t size);

/*
 The heap of a reader's end with RPIPE_DEVICE, for kernels; waits until the writer has begun. EINVAL: the
 heap is the host's, or this is a writer's end.

 # Safety
 `rp` is NULL or came from rpipe; `device` is NULL or a structure whose first field is its size.
 */
int rpipe_on_device(rpipe_t rp,
                    struct rpipe_device *device);

/*
 Lends `size` bytes of memory, all zero, to the process of rank `borrower`, and returns when that process
 has them, by whichever of its calls of this library. From then on this process has nothing to do: it may
 compute, sleep, or make no call at all. Where the borrower's operations take progress here (frames, MPI)
 a thread is started, which sleeps while nothing comes. EAGAIN: not within the time; nothing is lent
 then. EPIPE: the borrower has ended. EOPNOTSUPP: the path takes a thread here, and the program's
 MPI allows none.

 # Safety
 `lent` is NULL or valid for a write.
 */
int rlend(rlent_t *lent,
          int borrower,
          size_t size,
          int64_t nanoseconds);

/*
 Lends `size` bytes of memory, all zero, to the `count` processes of the ranks at `borrowers`, all of
 which reach the same bytes; NULL: to all others of the job, in the order of their ranks. Returns when
 all of them have it. The first of the list keeps the book: it allocates and frees blocks, and passes
 their addresses to the others, which call rborrow_attach. With any error the memory is lent to none of
 them. EPIPE: one of them has ended. Else as rlend.

 # Safety
 `lent` is NULL or valid for a write; `borrowers` is NULL or has `count` entries.
 */
int rlend_many(rlent_t *lent,
               const int *borrowers,
               size_t count,
               size_t size,
               int64_t nanoseconds);

/*
 Waits until the borrower, or each of several, has given the memory back or has ended, so long at most;
 EAGAIN then. EPIPE: the borrower, or one of them, has ended before. EINVAL: another thread has taken it
 back meanwhile. No lender has to call it.

 # Safety
 `lent` is NULL or came from rlend.
 */
int rlend_wait(rlent_t at,
               int64_t nanoseconds);

/*
 Takes the memory back. Calls of its borrowers fail with EPIPE, within 100 ms where the memory is mapped.

 # Safety
 `lent` is NULL or came from rlend.
 */
int rlend_close(rlent_t at);

/*
 Borrows: the oldest memory that the process of rank `lender` lends to this one and that is not borrowed
 yet. Waits for it, so long at most; EAGAIN then. `policy` is RPIPE_NEXT_FIT and so on, or 0: as
 STRAIT_RPIPE_POLICY says. EPIPE: the lender has ended. EOPNOTSUPP: the path does not promise that a read
 finds what was written before it. ENOBUFS: another memory that is borrowed here has the same addresses;
 this one is given back.

 # Safety
 `borrowed` is NULL or valid for a write.
 */
int rborrow(rborrowed_t *borrowed,
            int lender,
            unsigned int policy,
            int64_t nanoseconds);

/*
 Allocates a block of borrowed memory. Nothing is sent, and nothing waited for. RADDR_NULL, with errno, if
 not: ENOBUFS: there is no free block of that length; EMSGSIZE: there never is; EPIPE: the lender has
 ended, or has taken the memory back; EPERM: of several borrowers another one keeps the book.

 # Safety
 `borrowed` is NULL or came from rborrow.
 */
rborrow_addr_t rborrow_malloc(rborrowed_t borrowed,
                              size_t size);

/*
 As rborrow_malloc, on a multiple of `align`, a power of two of 4096 at most.

 # Safety
 `borrowed` is NULL or came from rborrow.
 */
rborrow_addr_t rborrow_malloc_aligned(rborrowed_t borrowed, size_t size, size_t align);

/*
 The bytes of a block, as many as were allocated. -1, with errno, if it is none.

 # Safety
 `borrowed` is NULL or came from rborrow.
 */
ptrdiff_t rborrow_length(rborrowed_t borrowed, rborrow_addr_t addr);

/*
 The memory of a block, where it is mapped here, for loads and stores: until the block is freed or the
 memory is given back; also when the lender has ended. NULL, with errno, if it is not mapped (EOPNOTSUPP)
 or no block (ESTALE).

 # Safety
 `borrowed` is NULL or came from rborrow.
 */
void *rborrow_mem(rborrowed_t borrowed,
                  rborrow_addr_t addr);

/*
 Writes `size` bytes to a block, from its byte `offset` on, without any call of the lender. They are in
 its memory when the call returns. Waits so long at most; EAGAIN: not all of them are known to be there,
 and some may arrive until another call here has returned something else; write all of them again.
 EMSGSIZE: the block has fewer bytes. ESTALE: there is no such block. EPIPE: the lender has ended, or has
 taken the memory back.

 # Safety
 `borrowed` is NULL or came from rborrow; `from` has so many bytes, which nothing changes meanwhile.
 */
int rborrow_write(rborrowed_t borrowed,
                  rborrow_addr_t addr,
                  size_t offset,
                  const void *from,
                  size_t size,
                  int64_t nanoseconds);

/*
 Reads `size` bytes of a block, from its byte `offset` on, without any call of the lender. A block that
 was not written has what was there before: zeros at first. Errors are those of rborrow_write.

 # Safety
 `borrowed` is NULL or came from rborrow; `to` has room for so many bytes, which nothing else uses
 meanwhile.
 */
int rborrow_read(rborrowed_t borrowed,
                 rborrow_addr_t addr,
                 size_t offset,
                 void *to,
                 size_t size,
                 int64_t nanoseconds);

/*
 Frees a block. ESTALE: it was freed before, or is none. EPERM: of several borrowers another one keeps the
 book.

 # Safety
 `borrowed` is NULL or came from rborrow.
 */
int rborrow_free(rborrowed_t borrowed,
                 rborrow_addr_t addr);

/*
 Makes a block usable here which the first of several borrowers has allocated: `addr` is the address
 there, which a message has brought, and `size` its bytes, or how many of its first are used. The address
 is then the block's here too. Nothing is sent. Blocks that were attached at bytes of it end here, since
 they were freed before. ESTALE: the address is of other memory. EMSGSIZE: it is not inside of what was
 lent. The book's keeper may call it too: EMSGSIZE: the block has fewer bytes, ESTALE: there is no such
 block.

 # Safety
 `borrowed` is NULL or came from rborrow.
 */
int rborrow_attach(rborrowed_t borrowed,
                   rborrow_addr_t addr,
                   size_t size);

/*
 Ends rborrow_attach: the address is ESTALE here. It frees nothing; the book's keeper does that.

 # Safety
 `borrowed` is NULL or came from rborrow.
 */
int rborrow_detach(rborrowed_t borrowed, rborrow_addr_t addr);

/*
 An atomic operation on a word of a block: `what` is a type, RPIPE_INT32, RPIPE_UINT32, RPIPE_INT64 or
 RPIPE_UINT64, and RPIPE_SUM, RPIPE_AND, RPIPE_OR, RPIPE_XOR, RPIPE_SWAP or RPIPE_COMPARE_SWAP, as
 RPIPE_UINT64 | RPIPE_SUM. The word begins `offset` bytes into the block, a multiple of its own bytes, 4
 or 8; of one of 4 bytes the lower halves of the numbers count. RPIPE_COMPARE_SWAP alone uses `compare`.
 What the word was comes to `old`, with zeros above 4 bytes; NULL: it is not wanted. Sums wrap; a sum
 with 0 reads. Atomic among all borrowers, over every path, and with the atomic instructions of the
 lender's and the borrowers' processors; rborrow_write is not.

 Waits so long at most; EAGAIN: it may be done or not. The same call again, with the same numbers, gets
 what it has found, and does it no second time: it is made until it returns something else. EINVAL: this
 is no operation, or the word is not aligned. Else errors are those of rborrow_write.

 # Safety
 `borrowed` is NULL or came from rborrow; `old` is NULL or valid for a write.
 */
int rborrow_atomic(rborrowed_t borrowed,
                   rborrow_addr_t addr,
                   size_t offset,
                   unsigned int what,
                   uint64_t operand,
                   uint64_t compare,
                   uint64_t *old,
                   int64_t nanoseconds);

/*
 Writes a list of parts of blocks, in its order, within one time. EINVAL, ESTALE and EMSGSIZE say that a
 part could not be, and nothing is written then; else errors are those of rborrow_write, and parts up to
 the one that failed may be there.

 # Safety
 `borrowed` is NULL or came from rborrow; `parts` is NULL or has `count` entries, and each part's memory
 has so many bytes, which nothing writes meanwhile.
 */
int rborrow_writev(rborrowed_t borrowed,
                   const struct rborrow_part *parts,
                   size_t count,
                   int64_t nanoseconds);

/*
 Reads a list of parts of blocks, in its order, within one time. Else as rborrow_writev.

 # Safety
 As of rborrow_writev; nothing else uses the memory of the parts meanwhile.
 */
int rborrow_readv(rborrowed_t borrowed,
                  const struct rborrow_part *parts,
                  size_t count,
                  int64_t nanoseconds);

/*
 What was done with borrowed memory, and what is in its heap.

 # Safety
 `borrowed` is NULL or came from rborrow; `stats` is NULL or a structure whose first field is its size.
 */
int rborrow_get_stats(rborrowed_t borrowed,
                      struct rborrow_stats *stats);

/*
 Gives the memory back. Its addresses, and memory at them, are not to be used any more.

 # Safety
 `borrowed` is NULL or came from rborrow.
 */
int rborrow_close(rborrowed_t borrowed);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STRAIT_RPIPE_H */

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* libstrait_xpu.so: CUDA streams and graphs that send to another process. Link with -lstrait_xpu.
 *
 * Functions return 0, or an errno below 0; strait_stream_error has its words. Structures begin with their size, set by the
 * program, and only grow at their end. An endpoint and its lists are used by one thread at a time, but by
 * strait_stream_abort. strait_stream(7) has the whole story.
 */

#ifndef STRAIT_STREAM_H
#define STRAIT_STREAM_H

#include <stddef.h>
#include <stdint.h>


/*
 strait_stream_options.flags: messages go through host memory even if a device's can be mapped.
 */
#define STRAIT_STREAM_HOST_MEMORY 1

/*
 strait_stream_options.flags: an agent carries messages even if the peer's memory can be mapped.
 */
#define STRAIT_STREAM_BY_AGENT 2

/*
 strait_stream_options.flags: memory operations of streams wait, which take no multiprocessor, and no
 kernel does. Of either side it holds for both.
 */
#define STRAIT_STREAM_MEMORY_OPERATIONS 4

/*
 strait_stream_path.path: through memory of the receiver's device, which the sender maps.
 */
#define STRAIT_STREAM_DEVICE 1

/*
 strait_stream_path.path: through host memory that both map.
 */
#define STRAIT_STREAM_HOST 2

/*
 strait_stream_path.path: through host memory of each process, which an agent of each copies.
 */
#define STRAIT_STREAM_AGENT 3

/*
 strait_stream_transfer.signal: none.
 */
#define STRAIT_STREAM_NO_SIGNAL 4294967295

/*
 strait_stream_failure.operation: the endpoint as a whole.
 */
#define STRAIT_STREAM_OP_NONE 0

/*
 strait_stream_failure.operation: a send, which waited for the credit of its slot.
 */
#define STRAIT_STREAM_OP_SEND 1

/*
 strait_stream_failure.operation: a receive.
 */
#define STRAIT_STREAM_OP_RECEIVE 2

/*
 strait_stream_failure.operation: a put, which waited for the credit of its signal, or for its agent.
 */
#define STRAIT_STREAM_OP_PUT 3

/*
 strait_stream_failure.operation: a wait for a signal.
 */
#define STRAIT_STREAM_OP_WAIT 4

/*
 strait_stream_failure.operation: a get, which waited for its agent.
 */
#define STRAIT_STREAM_OP_GET 5

/*
 The condition of a wait for a word: its difference to the value, as a signed number, is not negative.
 */
#define STRAIT_STREAM_GEQ 0

/*
 The condition of a wait for a word: it is the value.
 */
#define STRAIT_STREAM_EQ 1

/*
 The condition of a wait for a word: it has a bit of the value.
 */
#define STRAIT_STREAM_AND 2

/*
 The condition of a wait for a word: there is a bit that neither it nor the value has.
 */
#define STRAIT_STREAM_NOR 3

/*
 With a condition: what adapters have written to the device's memory before the word was raised is visible
 behind the wait.
 */
#define STRAIT_STREAM_FLUSH 8

/*
 One side of a connection between two processes of a host.
 */
struct strait_stream;

/*
 A list of operations, which a stream, a graph or the CPU executes any number of times.
 */
struct strait_stream_list;

/*
 Memory for words that streams access.
 */
struct strait_stream_words;

/*
 How an endpoint is opened. Both sides have the same slots, slot_bytes and signals. 0: the default.
 */
struct strait_stream_options {
    /*
     Of this structure.
     */
    size_t size;
    /*
     Messages that may be on the way in each direction; 32.
     */
    uint32_t slots;
    /*
     Bytes of a slot, a multiple of 16; 65536. A longer message takes several slots.
     */
    uint32_t slot_bytes;
    /*
     Signals of puts; 16.
     */
    uint32_t signals;
    /*
     STRAIT_STREAM_HOST_MEMORY, STRAIT_STREAM_BY_AGENT, STRAIT_STREAM_MEMORY_OPERATIONS.
     */
    uint32_t flags;
    /*
     How long a stream waits at most for one operation, in nanoseconds; 30 seconds.
     */
    uint64_t timeout_ns;
    /*
     A secret that both processes have, by which a peer of another host is reached by TCP; NULL: none is.
     */
    const char *key;
};

/*
 Which way messages go.
 */
struct strait_stream_path {
    /*
     Of this structure.
     */
    size_t size;
    /*
     STRAIT_STREAM_DEVICE, STRAIT_STREAM_HOST, STRAIT_STREAM_AGENT.
     */
    uint32_t path;
    /*
     0.
     */
    uint32_t unused;
    /*
     Why, as a string.
     */
    char why[240];
    /*
     How often the agent has polled; 0: there is none.
     */
    uint64_t polls;
};

/*
 What ended an endpoint.
 */
struct strait_stream_failure {
    /*
     Of this structure.
     */
    size_t size;
    /*
     0: nothing did. ETIMEDOUT, ECONNRESET (the peer ended), EPIPE (the peer closed), EMSGSIZE, ECANCELED,
     or what a call of the driver's failed with.
     */
    int code;
    /*
     STRAIT_STREAM_OP_SEND and others.
     */
    uint32_t operation;
    /*
     The slot or signal that it waited for.
     */
    uint32_t index;
    /*
     The peer's process.
     */
    uint32_t peer;
    /*
     1: it failed in the peer.
     */
    uint32_t by_peer;
    /*
     0.
     */
    uint32_t unused;
};

/*
 What a put or a get moves.
 */
struct strait_stream_transfer {
    /*
     Of this structure.
     */
    size_t size;
    /*
     Memory of this process.
     */
    void *local;
    /*
     Bytes.
     */
    size_t length;
    /*
     Bytes from the first one of the peer's registration.
     */
    uint64_t offset;
    /*
     The number of the peer's registration.
     */
    uint32_t region;
    /*
     The signal that a put raises behind the data, or STRAIT_STREAM_NO_SIGNAL.
     */
    uint32_t signal;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Why the last call of this thread failed. Valid until its next.
 */
const char *strait_stream_error(void);

/*
 Opens an endpoint. Slots for messages are in memory of the calling thread's CUDA context, if it has one,
 and kernels are loaded there, for which the driver waits for what is queued in the context. The first call
 for a stream of another context loads them there.

 # Safety
 `options` is NULL or as said of the structure; `opened` is NULL or valid for a write.
 */
int strait_stream_open(const struct strait_stream_options *options,
                       struct strait_stream **opened);

/*
 Registers device memory that the peer may put to and get from. Registrations have the numbers 0, 1 and so
 on. To be called before strait_stream_blob.

 # Safety
 `endpoint` is open; `address` to `address` + `length` stays allocated until both sides have closed;
 `region` is valid for a write.
 */
int strait_stream_register(struct strait_stream *endpoint,
                           void *address,
                           size_t length,
                           uint32_t *region);

/*
 What the peer has to know. `length` is the size of `buffer`, and becomes that of the blob; -ENOSPC: it is
 too small, and nothing was written.

 # Safety
 `endpoint` is open; `buffer` is valid for writes of `length` bytes; `length` is NULL or valid.
 */
int strait_stream_blob(struct strait_stream *endpoint,
                       void *buffer,
                       size_t *length);

/*
 Connects to the peer whose blob this is, a process of the same host, and maps its memory. Both sides call
 it, and each waits for the other one. -EHOSTUNREACH: the peer is on another host, and one side has no key.

 # Safety
 `endpoint` is open; `blob` is NULL or `length` readable bytes.
 */
int strait_stream_connect(struct strait_stream *endpoint,
                          const void *blob,
                          size_t length);

/*
 Which way messages to the peer go, and why.

 # Safety
 `endpoint` is open; `path` is NULL, or valid for writes, its size set.
 */
int strait_stream_query(struct strait_stream *endpoint, struct strait_stream_path *path);

/*
 What ended the endpoint; `code` is 0 if nothing did.

 # Safety
 `endpoint` is open; `failure` is NULL, or valid for writes, its size set.
 */
int strait_stream_failed(struct strait_stream *endpoint, struct strait_stream_failure *failure);

/*
 How many calls without a list streams have executed: `sends` of strait_stream_send, strait_stream_put and
 strait_stream_acknowledge_and_put, `receives` of strait_stream_receive, strait_stream_get,
 strait_stream_wait and strait_stream_acknowledge. After a failure streams pass these calls, and they
 count.

 # Safety
 `endpoint` is open; `sends` and `receives` are NULL or valid for a write.
 */
int strait_stream_executed(struct strait_stream *endpoint,
                           uint64_t *sends,
                           uint64_t *receives);

/*
 The address of a word of 4 bytes in page-locked host memory, for kernels of the program's: not 0 once the
 endpoint has failed.

 # Safety
 `endpoint` is open; `word` is NULL or valid for a write.
 */
int strait_stream_error_word(struct strait_stream *endpoint,
                             const uint32_t **word);

/*
 Fails the endpoint and the peer's: each wait of a stream or of a call passes, nothing is moved any more,
 and all calls but those that close fail. Any thread may call it while the endpoint is open.

 # Safety
 `endpoint` is NULL or open, and is not closed meanwhile.
 */
int strait_stream_abort(struct strait_stream *endpoint);

/*
 Closes an endpoint. -EBUSY: a list is open, or a stream has not executed what it was given; the endpoint
 is still open. Streams of the peer's that wait for this side pass, and its endpoint fails (EPIPE).
 Messages that were sent before arrive.

 # Safety
 `endpoint` is NULL or open, and is not used any more if this returns 0.
 */
int strait_stream_close(struct strait_stream *endpoint);

/*
 Queues a send in a stream (a CUstream). Sends and puts are in one stream at a time.

 # Safety
 `endpoint` is open; `stream` is a stream; `buffer` to `buffer` + `length` is readable until the stream has
 done it.
 */
int strait_stream_send(struct strait_stream *endpoint,
                       void *stream,
                       const void *buffer,
                       size_t length);

/*
 Queues a receive in a stream: what is behind it finds the message in the buffer. The message has the
 length of the buffer; the endpoint fails otherwise. Receives, gets and waits are in one stream at a time.

 # Safety
 As of strait_stream_send, and the buffer is writable.
 */
int strait_stream_receive(struct strait_stream *endpoint,
                          void *stream,
                          void *buffer,
                          size_t length);

/*
 Queues a put in a stream, and the signal behind it.

 # Safety
 As of strait_stream_send; `what` is NULL or as said of the structure.
 */
int strait_stream_put(struct strait_stream *endpoint,
                      void *stream,
                      const struct strait_stream_transfer *what);

/*
 Queues a get in a stream. `what->signal` is STRAIT_STREAM_NO_SIGNAL.

 # Safety
 As of strait_stream_receive; `what` is NULL or as said of the structure.
 */
int strait_stream_get(struct strait_stream *endpoint,
                      void *stream,
                      const struct strait_stream_transfer *what);

/*
 Queues a wait for a signal of the peer's in a stream.

 # Safety
 `endpoint` is open; `stream` is a stream.
 */
int strait_stream_wait(struct strait_stream *endpoint, void *stream, uint32_t signal);

/*
 Queues the acknowledgement of a signal that was waited for: the peer may put again.

 # Safety
 As of strait_stream_wait.
 */
int strait_stream_acknowledge(struct strait_stream *endpoint, void *stream, uint32_t signal);

/*
 Queues the acknowledgement of a signal that was waited for, and a put behind it, which is one kernel
 between two devices. It is in the stream of sends and puts, which is to be behind the wait and behind what
 uses the memory that the peer may put to again. -EBUSY: another stream has not executed a receive, get,
 wait or acknowledgement. The acknowledgement is raised before the put's bytes are read: the peer may
 overwrite them if they are in memory that it puts to with that signal.

 # Safety
 As of strait_stream_put.
 */
int strait_stream_acknowledge_and_put(struct strait_stream *endpoint,
                                      void *stream,
                                      uint32_t signal,
                                      const struct strait_stream_transfer *what);

/*
 Makes a list with room for `entries` operations. A message takes one for each slot that it fills. -EBUSY:
 62 lists of the endpoint are open, as many as there can be.

 # Safety
 `endpoint` is open; `made` is NULL or valid for a write.
 */
int strait_stream_list_open(struct strait_stream *endpoint,
                            size_t entries,
                            struct strait_stream_list **made);

/*
 Adds a send to a list. -ENOSPC: the list has not room for it, and is as before.

 # Safety
 `to` is open; the buffer is readable until the last execution of the list is done.
 */
int strait_stream_list_send(struct strait_stream_list *to, const void *buffer, size_t length);

/*
 Adds a receive to a list.

 # Safety
 As of strait_stream_list_send, and the buffer is writable.
 */
int strait_stream_list_receive(struct strait_stream_list *to, void *buffer, size_t length);

/*
 Adds a put, and the signal behind it, to a list.

 # Safety
 As of strait_stream_list_send; `what` is NULL or as said of the structure.
 */
int strait_stream_list_put(struct strait_stream_list *to,
                           const struct strait_stream_transfer *what);

/*
 Adds a get to a list.

 # Safety
 As of strait_stream_list_receive; `what` is NULL or as said of the structure.
 */
int strait_stream_list_get(struct strait_stream_list *to,
                           const struct strait_stream_transfer *what);

/*
 Adds a wait for a signal of the peer's to a list.

 # Safety
 `to` is open.
 */
int strait_stream_list_wait(struct strait_stream_list *to, uint32_t signal);

/*
 Adds the acknowledgement of a signal to a list.

 # Safety
 `to` is open.
 */
int strait_stream_list_acknowledge(struct strait_stream_list *to, uint32_t signal);

/*
 Queues a list in a stream. If that is being captured, the list becomes part of the graph. One execution of
 a list is done before the next begins.

 # Safety
 `what` is open and `stream` is a stream; a graph that was captured is gone, with its instances, before the
 list is closed.
 */
int strait_stream_list_run(struct strait_stream_list *what,
                           void *stream);

/*
 Executes a list by the calling thread, and returns when it is done or the endpoint has failed.

 # Safety
 `what` is open.
 */
int strait_stream_list_run_on_cpu(struct strait_stream_list *what);

/*
 Adds a list to a graph (a CUgraph) of the calling thread's context as nodes, behind the `count` nodes
 `after`. `last` becomes the node that is behind all of them.

 # Safety
 `what` is open; `graph` is a graph that no other thread uses, and `after` are nodes of it; the graph is
 gone, with its instances, before the list is closed; `last` is valid for a write.
 */
int strait_stream_list_add_to_graph(struct strait_stream_list *what,
                                    void *graph,
                                    void *const *after,
                                    size_t count,
                                    void **last);

/*
 Closes a list. -EBUSY: a stream has not executed it yet, or a graph or an instance of one has it (as
 drivers from CUDA 11.3 on say); it is still open.

 # Safety
 `what` is NULL or open, and is not used any more if this returns 0.
 */
int strait_stream_list_close(struct strait_stream_list *what);

/*
 Makes zeroed host memory for words, page-locked for the devices of the process, which has a CUDA context;
 `memory` is where it begins.

 # Safety
 `made` and `memory` are NULL or valid for a write.
 */
int strait_stream_words_open(size_t length,
                             struct strait_stream_words **made,
                             void **memory);

/*
 Gives such memory back.

 # Safety
 `made` is NULL or open, no stream and no graph accesses the memory any more, and neither does the program.
 */
int strait_stream_words_close(struct strait_stream_words *made);

/*
 Queues a wait in a stream until a counter of libfabric's has the value. `word` is the counter's
 write-back word, of get_wb_addr or set_wb_buffer (strait_fi_stream.h). The wait also passes once the
 counter has counted a failure, or is closed: fi_strait_cntr_wb_readerr of the word says so. -EPERM: the
 stream is being captured.

 # Safety
 `stream` is a stream; the word stays until the stream has passed.
 */
int strait_stream_wait_counter(void *stream,
                               const void *word,
                               uint64_t value);

/*
 Queues in a stream what raises a counter of libfabric's: deferred work with a threshold up to it begins.
 `word` is the first one of get_mmio_addr, and `sum` what streams have added in all. -EPERM: the stream is
 being captured.

 # Safety
 As of strait_stream_wait_counter.
 */
int strait_stream_raise_counter(void *stream,
                                void *word,
                                uint64_t sum);

/*
 Whether two streams share a hardware queue: 1 in `shared` then, else 0. What waits in one of such streams
 holds up what is queued later in the other. The call tries it, which takes up to 0.2 seconds if they do.
 -EBUSY: one of them, or the device, has something to do; -EPERM: one is being captured.

 # Safety
 Both are streams; `shared` is NULL or valid for a write.
 */
int strait_stream_share_queue(void *first,
                              void *second,
                              uint32_t *shared);

/*
 Queues a wait in a stream for a word of the program's, in device memory or page-locked. `condition` is
 STRAIT_STREAM_GEQ and others, with STRAIT_STREAM_FLUSH or without. Nothing but the word ends the wait.

 # Safety
 `stream` is a stream; the word stays until the stream has passed, or as long as the graph is used.
 */
int strait_stream_wait_value32(void *stream,
                               const uint32_t *word,
                               uint32_t value,
                               uint32_t condition);

/*
 Queues a store in a stream, behind all that precedes, to a word of the program's.

 # Safety
 As of strait_stream_wait_value32.
 */
int strait_stream_write_value32(void *stream, uint32_t *word, uint32_t value);

/*
 Queues a store of bytes in a stream, which the call takes with it: a multiple of 4, at most 1020, to
 memory that is aligned to 4.

 # Safety
 As of strait_stream_wait_value32, for all of the memory; `from` is NULL or `length` readable bytes.
 */
int strait_stream_write_memory(void *stream,
                               void *to,
                               const void *from,
                               size_t length);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STRAIT_STREAM_H */

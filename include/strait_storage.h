/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* libstrait.so: files to memory of any kind and back. Link with -lstrait.
 *
 * Functions return 0 or a number of bytes, or an errno below 0; strait_storage_error has its words. A structure that begins
 * with its size, set by the program, only grows at its end. The functions may be called from any thread.
 * strait_storage(7) has the whole story.
 */

#ifndef STRAIT_STORAGE_H
#define STRAIT_STORAGE_H

#include <stddef.h>
#include <stdint.h>


/*
 strait_storage_open: the file is to be written too.
 */
#define STRAIT_STORAGE_WRITE 1

/*
 strait_storage_open: it is made if it is not there. Only with STRAIT_STORAGE_WRITE.
 */
#define STRAIT_STORAGE_CREATE 2

/*
 strait_storage_open: without O_DIRECT.
 */
#define STRAIT_STORAGE_NO_DIRECT 4

/*
 strait_storage_open: without cuFile.
 */
#define STRAIT_STORAGE_NO_CUFILE 8

/*
 strait_storage_info.path: nothing has been transferred yet.
 */
#define STRAIT_STORAGE_PATH_NONE 0

/*
 strait_storage_info.path: O_DIRECT into the memory itself.
 */
#define STRAIT_STORAGE_PATH_DIRECT 1

/*
 strait_storage_info.path: by cuFile.
 */
#define STRAIT_STORAGE_PATH_CUFILE 2

/*
 strait_storage_info.path: through buffers in host memory.
 */
#define STRAIT_STORAGE_PATH_BOUNCE 3

/*
 strait_storage_info.path: through the page cache.
 */
#define STRAIT_STORAGE_PATH_CACHED 4

/*
 An open file.
 */
struct strait_storage;

/*
 Transfers that are under way.
 */
struct strait_storage_request;

/*
 One transfer of a batch.
 */
struct strait_storage_op {
    /*
     The memory: a device's, a buffer of strait_p2pmem.h, or the host's.
     */
    void *addr;
    /*
     Bytes.
     */
    size_t len;
    /*
     Where in the file.
     */
    uint64_t offset;
    /*
     1: from memory to the file.
     */
    uint32_t write;
    /*
     0.
     */
    uint32_t reserved;
    /*
     Out: bytes, or an errno below 0.
     */
    int64_t result;
};

/*
 Which ways a file's bytes have taken.
 */
struct strait_storage_info {
    /*
     In: sizeof(struct strait_storage_info).
     */
    size_t size;
    /*
     Out: that of the last transfer, of STRAIT_STORAGE_PATH_.
     */
    uint32_t path;
    /*
     Out: 0.
     */
    uint32_t reserved;
    /*
     Out: bytes by O_DIRECT into the memory itself.
     */
    uint64_t direct;
    /*
     Out: bytes by cuFile.
     */
    uint64_t cufile;
    /*
     Out: bytes through buffers in host memory.
     */
    uint64_t bounce;
    /*
     Out: bytes through the page cache.
     */
    uint64_t cached;
    /*
     Out: why the last transfer took no better way, or "".
     */
    char why[240];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The words of the last error that a function of this header returned in this thread. Valid until the next
 one.
 */
const char *strait_storage_error(void);

/*
 Opens a file or a disk. `flags` are of STRAIT_STORAGE_.

 0, or an errno below 0: -EINVAL also for a pipe, a socket, a character device or a directory.
 The bytes of `path` are taken as they are: they need not be UTF-8.

 # Safety
 `path` is NULL or a C string; `opened` is NULL or valid for a write.
 */
int strait_storage_open(const char *path, uint32_t flags, struct strait_storage **opened);

/*
 Closes a file. What was submitted goes on.

 # Safety
 `opened` is NULL or came from strait_storage_open, was not closed, and no other function is being called
 with it.
 */
int strait_storage_close(struct strait_storage *opened);

/*
 Reads `len` bytes of the file, from byte `offset` on, into memory of any kind.

 How many bytes, fewer at the end of the file; or an errno below 0: -EIO also if the memory's device has
 gone.

 # Safety
 `opened` is NULL or a file that is open. The memory may be written, and stays until this returns.
 */
int64_t strait_storage_read(struct strait_storage *opened,
                            void *addr,
                            size_t len,
                            uint64_t offset);

/*
 Writes `len` bytes of memory of any kind to the file, from its byte `offset` on. Else as
 strait_storage_read.

 # Safety
 `opened` is NULL or a file that is open. The memory may be read, and stays until this returns.
 */
int64_t strait_storage_write(struct strait_storage *opened,
                             const void *addr,
                             size_t len,
                             uint64_t offset);

/*
 Does `count` transfers, several at once and in any order, and returns when all are done. Each one's
 `result` is what strait_storage_read or strait_storage_write would have returned.

 0, or -EINVAL.

 # Safety
 `opened` is NULL or a file that is open; `ops` has `count` entries, with memory as of strait_storage_read
 or strait_storage_write.
 */
int strait_storage_batch(struct strait_storage *opened,
                         struct strait_storage_op *ops,
                         size_t count);

/*
 Begins `count` transfers and returns: they go on, several at once and in any order. `*request` is to be
 released.

 0, or an errno below 0. What each transfer comes to is in `ops` when strait_storage_poll or
 strait_storage_wait has said that the request is done.

 # Safety
 As of strait_storage_batch; `ops` and the memory stay until the request is done or released. `request` is
 NULL or valid for a write.
 */
int strait_storage_submit(struct strait_storage *opened,
                          struct strait_storage_op *ops,
                          size_t count,
                          struct strait_storage_request **request);

/*
 Begins `count` transfers of several files: that of `ops[n]` is with `files[n]`. A few threads do all of
 them, in pieces, so that a hundred files take no more threads and buffers than one. Else as
 strait_storage_submit; strait_storage_error names the file of a transfer that failed.

 # Safety
 As of strait_storage_submit; `files` is NULL or has `count` entries, each of which is NULL or a file that
 is open, and which may be closed when this returns.
 */
int strait_storage_submit_files(struct strait_storage *const *files,
                                struct strait_storage_op *ops,
                                size_t count,
                                struct strait_storage_request **request);

/*
 Queues `count` transfers on a stream of CUDA's (a CUstream or cudaStream_t): they begin when all that was
 queued there before is done, and what is queued there later waits for them. Else as strait_storage_submit.

 A read ends where the file ends, as far as that is known now; what was queued by this function to be
 written counts. The memory is CUDA's, a buffer of strait_p2pmem.h, or the host's; with other kinds
 -EOPNOTSUPP, as with a stream that is being captured. A transfer that fails does not stop the stream: its
 result is an errno, and its memory's contents are undefined.

 # Safety
 As of strait_storage_submit; `stream` is a stream of this process, and is destroyed after the request is
 done.
 */
int strait_storage_submit_on_stream(struct strait_storage *opened,
                                    struct strait_storage_op *ops,
                                    size_t count,
                                    void *stream,
                                    struct strait_storage_request **request);

/*
 Whether all of a request's transfers are done. Their results are in the program's strait_storage_op then,
 and strait_storage_error has the words of one that failed.

 1 if so, 0 if not, -EINVAL.

 # Safety
 `request` is NULL or not released, and in use by no other thread.
 */
int strait_storage_poll(struct strait_storage_request *request);

/*
 Waits until all of a request's transfers are done, for at most `timeout_ms` milliseconds, or for ever if
 that is below 0. Else as strait_storage_poll.

 0 if they are, -ETIMEDOUT if not, -EINVAL.

 # Safety
 As of strait_storage_poll. Not within a function that a stream calls.
 */
int strait_storage_wait(struct strait_storage_request *request,
                        int timeout_ms);

/*
 Gives a request back; waits for its transfers, if they are not done. NULL is ignored.

 0.

 # Safety
 `request` is NULL or not released.
 */
int strait_storage_release(struct strait_storage_request *request);

/*
 Which ways the file's bytes have taken, and why no better one.

 0, or -EINVAL.

 # Safety
 `opened` is NULL or a file that is open; `info` is NULL or points to as many bytes as its `size` says.
 */
int strait_storage_query(struct strait_storage *opened,
                         struct strait_storage_info *info);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STRAIT_STORAGE_H */

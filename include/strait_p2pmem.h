/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* libstrait.so: PCI peer memory. Link with -lstrait.
 *
 * Functions return 0, or an errno below 0; strait_p2pmem_error has its words. Structures begin with their size, set by
 * the program, and only grow at their end. The functions may be called from any thread; a buffer is freed by one.
 * strait_p2pmem(7) has the whole story.
 */

#ifndef STRAIT_P2PMEM_H
#define STRAIT_P2PMEM_H

#include <stddef.h>
#include <stdint.h>


/*
 strait_p2pmem_request.flags: no host memory, even if nothing else is to be had.
 */
#define STRAIT_P2PMEM_NO_HOST 1

/*
 strait_p2pmem_route.map: by addresses of the bus, through a switch.
 */
#define STRAIT_P2PMEM_MAP_BUS_ADDRESS 0

/*
 strait_p2pmem_route.map: through the host bridge.
 */
#define STRAIT_P2PMEM_MAP_HOST_BRIDGE 1

/*
 strait_p2pmem_route.map: host memory.
 */
#define STRAIT_P2PMEM_MAP_HOST_MEMORY 2

/*
 strait_p2pmem_route.map: the client does not reach the memory.
 */
#define STRAIT_P2PMEM_MAP_NOT_SUPPORTED 3

/*
 strait_p2pmem_unpublish: only if no buffer of it is in use.
 */
#define STRAIT_P2PMEM_IF_IDLE 0

/*
 strait_p2pmem_unpublish: revoke its buffers.
 */
#define STRAIT_P2PMEM_REVOKE -1

/*
 Publishers, rules and buffers of this process, or a connection to a daemon.
 */
struct strait_p2pmem;

/*
 A buffer.
 */
struct strait_p2pmem_buffer;

/*
 How to open.
 */
struct strait_p2pmem_options {
    /*
     sizeof(struct strait_p2pmem_options).
     */
    size_t size;
    /*
     The name of a daemon's socket (`strait p2pmemd`), or "" for its usual name: memory comes from there,
     and the other fields are not used. NULL: this process has publishers of its own.
     */
    const char *daemon;
    /*
     The directory that is read instead of /sys, or NULL.
     */
    const char *sysfs;
    /*
     Rules, one a line, or NULL.
     */
    const char *rules;
    /*
     Host memory to publish as the last resort, in bytes.
     */
    uint64_t host;
};

/*
 The request.
 */
struct strait_p2pmem_request {
    /*
     sizeof(struct strait_p2pmem_request).
     */
    size_t size;
    /*
     Bytes. Whole pages are given.
     */
    uint64_t len;
    /*
     A power of two, or 0 for a page's: of the address of memory that a program gave, of the place in a
     file or BAR that it gave. Others refuse more than 4096.
     */
    uint64_t align;
    /*
     The devices that are to reach it: `client_count` addresses (0000:3a:00.0) or names (mlx5_0, nvme0).
     */
    const char *const *clients;
    /*
     How many they are. With 0, any memory will do.
     */
    size_t client_count;
    /*
     In how many pieces it may be, or 0 for one.
     */
    uint32_t segments;
    /*
     Of STRAIT_P2PMEM_NO_HOST.
     */
    uint32_t flags;
    /*
     A name that rules can refer to, or NULL.
     */
    const char *job;
};

/*
 A piece of a buffer.
 */
struct strait_p2pmem_segment {
    /*
     Where it is in this process. Of a kind of memory that the CPU cannot access it is the device's
     address.
     */
    void *addr;
    /*
     Bytes.
     */
    size_t len;
};

/*
 What a buffer is.
 */
struct strait_p2pmem_info {
    /*
     In: sizeof(struct strait_p2pmem_info).
     */
    size_t size;
    /*
     Out: bytes.
     */
    uint64_t len;
    /*
     Out: how many pieces it has.
     */
    uint32_t segments;
    /*
     Out: 1 if it was taken back: free it.
     */
    uint32_t revoked;
    /*
     Out: the publisher's name.
     */
    char publisher[72];
    /*
     Out: the publisher's kind: sysfs, host, file, cuda, ...
     */
    char kind[16];
};

/*
 How a device reaches a publisher's memory.
 */
struct strait_p2pmem_route {
    /*
     In: sizeof(struct strait_p2pmem_route).
     */
    size_t size;
    /*
     Out: one of STRAIT_P2PMEM_MAP_.
     */
    uint32_t map;
    /*
     Out: steps.
     */
    uint32_t distance;
    /*
     Out: why it is so, in words.
     */
    char why[496];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The words of the last error that a function of this header returned in this thread: what is wrong, and
 what to do. Valid until the next one.
 */
const char *strait_p2pmem_error(void);

/*
 Opens. Pieces of devices' windows are a kind of memory of their own from then on, which Strait's provider
 and transport take in this process.

 0, or an errno below 0: -EINVAL for rules that are wrong, -ECONNREFUSED without a daemon.

 # Safety
 As said of the structure; `opened` is NULL or valid for a write.
 */
int strait_p2pmem_open(const struct strait_p2pmem_options *options,
                       struct strait_p2pmem **opened);

/*
 Closes. Buffers stay until they are freed.

 # Safety
 `opened` is NULL or came from strait_p2pmem_open, and was not closed.
 */
int strait_p2pmem_close(struct strait_p2pmem *opened);

/*
 Allocates memory that all clients of the request reach, from the publisher that is closest to all of them,
 and maps it.

 0; -ENOMEM: no publisher may or can give it (strait_p2pmem_error has the reason of each); -ENODEV: a
 client is not there; -EINVAL.

 # Safety
 As said of the structure; `buffer` is NULL or valid for a write.
 */
int strait_p2pmem_alloc(struct strait_p2pmem *opened,
                        const struct strait_p2pmem_request *request,
                        struct strait_p2pmem_buffer **buffer);

/*
 Frees a buffer. The memory goes back when the last buffer that shares it is freed.

 # Safety
 `buffer` is NULL or came from strait_p2pmem_alloc or strait_p2pmem_share, and was not freed.
 */
int strait_p2pmem_free(struct strait_p2pmem_buffer *buffer);

/*
 Piece `index` of a buffer.

 0; -ENOENT: it has no such piece; -ESTALE: it was revoked; -EINVAL.

 # Safety
 `buffer` is NULL or a buffer that was not freed; `segment` is NULL or valid for a write.
 */
int strait_p2pmem_segment_at(struct strait_p2pmem_buffer *buffer,
                             uint32_t index,
                             struct strait_p2pmem_segment *segment);

/*
 What a buffer is, and whether it was taken back.

 # Safety
 `buffer` is NULL or a buffer that was not freed and that no other thread uses now; `info` is NULL or
 points to as many bytes as its `size` says.
 */
int strait_p2pmem_query(struct strait_p2pmem_buffer *buffer,
                        struct strait_p2pmem_info *info);

/*
 The same memory for further clients (broadcast): a buffer of its own, which is freed by itself.

 0; -ENOMEM: a client does not reach it, or a rule is against it; -ENODEV; -ESTALE; -EINVAL.

 # Safety
 `buffer` is NULL or a buffer that was not freed; `clients` has `client_count` C strings; `shared` is NULL
 or valid for a write.
 */
int strait_p2pmem_share(struct strait_p2pmem *opened,
                        struct strait_p2pmem_buffer *buffer,
                        const char *const *clients,
                        size_t client_count,
                        struct strait_p2pmem_buffer **shared);

/*
 A dma-buf of piece `index`, for a driver that takes one: a new descriptor in *fd, which the caller closes,
 and where in it the piece begins in *offset.

 0; -EOPNOTSUPP: Linux makes none of such memory; -EINVAL; else what the memory's driver said.

 # Safety
 `buffer` is NULL or a buffer that was not freed; `fd` and `offset` are NULL or valid for a write.
 */
int strait_p2pmem_dmabuf(struct strait_p2pmem_buffer *buffer,
                         uint32_t index,
                         int *fd,
                         uint64_t *offset);

/*
 Has `notice` called, from any thread, when the buffer is taken back: `why` says in words what happened. At
 once if it was. It may not free the buffer. strait_p2pmem_free waits for it, so the caller of that holds
 no lock that `notice` takes; it is not called later. Not with a daemon: strait_p2pmem_query says it there.

 # Safety
 `buffer` is NULL or a buffer that was not freed; `notice` may be called with `arg` once, until the buffer
 is freed.
 */
int strait_p2pmem_on_revoke(struct strait_p2pmem_buffer *buffer,
                            void (*notice)(void *arg, const char *why),
                            void *arg);

/*
 How a device, by its address or name, reaches memory of a publisher, by its name.

 # Safety
 The texts are C strings or NULL; `route` is NULL or points to as many bytes as its `size` says.
 */
int strait_p2pmem_query_route(struct strait_p2pmem *opened,
                              const char *publisher,
                              const char *client,
                              struct strait_p2pmem_route *route);

/*
 Adds a rule behind the others (strait_p2pmem(7) has the grammar).

 # Safety
 `rule` is a C string or NULL.
 */
int strait_p2pmem_add_rule(struct strait_p2pmem *opened, const char *rule);

/*
 Publishes memory of this process, a device's (cudaMalloc) or other: `len` bytes at `addr`, from which
 parts are given. `function` is the address of the PCI function that has it, without which no client
 reaches it, or NULL.

 # Safety
 The memory stays until it is unpublished and all buffers of it are freed. The texts are C strings, or
 NULL.
 */
int strait_p2pmem_publish_memory(struct strait_p2pmem *opened,
                                 const char *name,
                                 const char *pci_function,
                                 void *addr,
                                 size_t len);

/*
 Publishes `len` bytes of a file that can be mapped, from byte `offset` on: a dma-buf, or a memfd. The
 descriptor is copied. Else as strait_p2pmem_publish_memory.

 # Safety
 The texts are C strings, or NULL. The file is as long until it is unpublished and all buffers of it are
 freed.
 */
int strait_p2pmem_publish_file(struct strait_p2pmem *opened,
                               const char *name,
                               const char *pci_function,
                               int fd,
                               uint64_t offset,
                               uint64_t len);

/*
 Publishes `len` bytes from byte `offset` on of BAR `bar` of a device that VFIO has, by the device's
 descriptor, which is copied. They are mapped through that; strait_p2pmem_dmabuf gives a dma-buf, which
 Linux makes since 6.19, or says why there is none. Else as strait_p2pmem_publish_memory.

 # Safety
 The texts are C strings, or NULL.
 */
int strait_p2pmem_publish_vfio(struct strait_p2pmem *opened,
                               const char *name,
                               const char *pci_function,
                               int device,
                               uint32_t bar,
                               uint64_t offset,
                               uint64_t len);

/*
 Takes a publisher out. `drain` is STRAIT_P2PMEM_IF_IDLE, STRAIT_P2PMEM_REVOKE, or for how many
 milliseconds to wait until its buffers are freed; meanwhile it gives nothing.

 0; -EBUSY: buffers are in use; -ENOENT; -EINVAL.

 # Safety
 `name` is a C string or NULL.
 */
int strait_p2pmem_unpublish(struct strait_p2pmem *opened, const char *name, int64_t drain);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STRAIT_P2PMEM_H */

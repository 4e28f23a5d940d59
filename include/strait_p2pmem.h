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
 strait_p2pmem_request.flags: memory will do that a process of another user has published, and can read and
 write.
 */
#define STRAIT_P2PMEM_OTHER_USERS 2

/*
 strait_p2pmem_options.flags: what is published by way of the daemon is for other users too, if their
 requests have STRAIT_P2PMEM_OTHER_USERS.
 */
#define STRAIT_P2PMEM_FOR_ALL_USERS 1

/*
 strait_p2pmem_publisher.flags: it is being unpublished, and gives nothing.
 */
#define STRAIT_P2PMEM_DRAINING 1

/*
 strait_p2pmem_publisher.flags: a process of this user has published it.
 */
#define STRAIT_P2PMEM_OWN 2

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
     The name of a daemon's socket (`strait p2pmemd`), its path if it begins with /, or "" for its usual
     name: memory comes from there, and of the other fields `rules` and `flags` alone are used. NULL: this
     process has publishers of its own.
     */
    const char *daemon;
    /*
     The directory that is read instead of /sys, or NULL.
     */
    const char *sysfs;
    /*
     Rules, one a line, or NULL. With a daemon they are for this process's requests, behind the daemon's.
     */
    const char *rules;
    /*
     Host memory to publish as the last resort, in bytes: 0, or 4096 and more.
     */
    uint64_t host;
    /*
     Of STRAIT_P2PMEM_FOR_ALL_USERS.
     */
    uint32_t flags;
    /*
     0.
     */
    uint32_t reserved;
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
     Of STRAIT_P2PMEM_NO_HOST and STRAIT_P2PMEM_OTHER_USERS.
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

/*
 A publisher, and how some devices reach it together.
 */
struct strait_p2pmem_publisher {
    /*
     In, of the first of a list: sizeof(struct strait_p2pmem_publisher).
     */
    size_t size;
    /*
     Out: bytes in all.
     */
    uint64_t bytes;
    /*
     Out: bytes that are free.
     */
    uint64_t available;
    /*
     Out: buffers of it.
     */
    uint32_t buffers;
    /*
     Out: of STRAIT_P2PMEM_DRAINING and STRAIT_P2PMEM_OWN.
     */
    uint32_t flags;
    /*
     Out: one of STRAIT_P2PMEM_MAP_, the worst of all devices.
     */
    uint32_t map;
    /*
     Out: steps, the sum over all devices.
     */
    uint32_t distance;
    /*
     Out: its name.
     */
    char name[72];
    /*
     Out: its kind, as in strait_p2pmem_info.
     */
    char kind[16];
    /*
     Out: the address of the PCI function that has the memory, or "".
     */
    char pci_function[32];
    /*
     Out: why a device does not reach it, in words, or "".
     */
    char why[496];
};

/*
 What another process joins a buffer by.
 */
struct strait_p2pmem_token {
    /*
     As good as random.
     */
    uint8_t bytes[16];
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
 Closes. Buffers stay until they are freed, and what was published by way of the daemon as long as they do.

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
 `buffer` is NULL or came from strait_p2pmem_alloc, strait_p2pmem_share or strait_p2pmem_join, and was not
 freed.
 */
int strait_p2pmem_free(struct strait_p2pmem_buffer *buffer);

/*
 Piece `index` of a buffer.

 0; -ENOENT: it has no such piece; -ESTALE: it was revoked; -EOPNOTSUPP: no processor can map it, and
 devices take its dma-buf; -EINVAL.

 # Safety
 `buffer` is NULL or a buffer that was not freed; `segment` is NULL or valid for a write.
 */
int strait_p2pmem_segment_at(struct strait_p2pmem_buffer *buffer,
                             uint32_t index,
                             struct strait_p2pmem_segment *segment);

/*
 What a buffer is, and whether it was taken back.

 # Safety
 `buffer` is NULL or a buffer that was not freed; `info` is NULL or points to as many bytes as its `size`
 says.
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

 0; -EOPNOTSUPP: Linux makes none of such memory; -ESTALE: it was revoked; -EINVAL; else what the memory's
 driver said.

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
 no lock that `notice` takes; it is not called later. With a daemon a thread of the library's waits for
 what the daemon says, and its end is a revocation too.

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
 Adds a rule behind the others (strait_p2pmem(7) has the grammar). With a daemon it is one for the requests
 of this process, behind the daemon's own.

 # Safety
 `rule` is a C string or NULL.
 */
int strait_p2pmem_add_rule(struct strait_p2pmem *opened,
                           const char *rule);

/*
 Publishes memory of this process, a device's (cudaMalloc) or other: `len` bytes at `addr`, from which
 parts are given. `function` is the address of the PCI function that has it, without which no client
 reaches it, or NULL.

 With a daemon other processes of this user map memory of cudaMalloc (hipMalloc) by its driver, and have
 other memory by a dma-buf: -EOPNOTSUPP where there is none, as of malloc(3)'s. It is published until this
 is closed.

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

 With a daemon a memfd is sealed so that it cannot become shorter (F_SEAL_SHRINK), since an access would be
 SIGBUS at other processes: -EOPNOTSUPP where that cannot be done, as with a file of a file system.

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

 With a daemon other processes have the dma-buf alone, since the device's descriptor controls all of the
 device.

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

 0; -EBUSY: buffers are in use; -EPERM: another user has published it, or the daemon has; -ENOENT; -EINVAL.

 # Safety
 `name` is a C string or NULL.
 */
int strait_p2pmem_unpublish(struct strait_p2pmem *opened,
                            const char *name,
                            int64_t drain);

/*
 The publishers that this user may have memory of, and how `client_count` devices reach them: those that
 all of the devices reach first, the closest of these before others, host memory last. Without devices they
 are in the order in which they came.

 `publishers` has room for `*count` of them, each of `publishers->size` bytes. `*count` becomes the number
 that there are, of which no more are written than there is room for.

 0; -ENODEV: a client is not there; -EINVAL.

 # Safety
 `clients` has `client_count` C strings; `count` is NULL or valid for a read and a write; `publishers` is
 NULL where `*count` is 0, or points to that many times the bytes that its `size` says.
 */
int strait_p2pmem_list(struct strait_p2pmem *opened,
                       const char *const *clients,
                       size_t client_count,
                       struct strait_p2pmem_publisher *publishers,
                       size_t *count);

/*
 Whether a PCI function, by its address, has published memory: 1, 0, or -EINVAL.

 # Safety
 `pci_function` is a C string or NULL.
 */
int strait_p2pmem_has_p2pmem(struct strait_p2pmem *opened, const char *pci_function);

/*
 A token by which a buffer is joined, as long as that is not freed: by another process of this user with a
 daemon, else by another part of this process.

 0; -EOPNOTSUPP: of kind sysfs, of which each mapping is memory of its own; -ESTALE: it was revoked;
 -EINVAL: it has 16 tokens.

 # Safety
 `buffer` is NULL or a buffer that was not freed; `token` is NULL or valid for a write.
 */
int strait_p2pmem_get_token(struct strait_p2pmem_buffer *buffer,
                            struct strait_p2pmem_token *token);

/*
 The buffer that a token is of: a buffer of its own, which is freed by itself.

 0; -ENOENT: its owner has freed it, or there never was one; -EPERM: it is another user's; -ESTALE: it was
 revoked; -EINVAL.

 # Safety
 `token` is NULL or valid for a read; `buffer` is NULL or valid for a write.
 */
int strait_p2pmem_join(struct strait_p2pmem *opened,
                       const struct strait_p2pmem_token *token,
                       struct strait_p2pmem_buffer **buffer);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STRAIT_P2PMEM_H */

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* libstrait.so: what of Strait no standard interface offers. Link with -lstrait.
 *
 * Functions return 0, or an errno below 0 that strait_strerror puts into words. Structures begin with
 * their size, set by the side that makes them, and only grow at their end. docs/hmem.md has the whole story.
 */

#ifndef STRAIT_H
#define STRAIT_H

#include <stddef.h>
#include <stdint.h>


/*
 Version of this header: major << 16 | minor. Within a major version structures only grow at their
 end, and functions are only added.
 */
#define STRAIT_VERSION 1

/*
 strait_sg.kind: the CPU of this process may follow `addr`; no other process gets it.
 */
#define STRAIT_SG_CPU 0

/*
 strait_sg.kind: `fd` may be mapped, from byte `addr` on, here and by other processes of the same
 user: a dma-buf, or a memfd with F_SEAL_SHRINK. It stays open until put_pages.
 */
#define STRAIT_SG_FD 1

/*
 strait_sg.kind: only the client's `copy` gets there.
 */
#define STRAIT_SG_OPAQUE 2

/*
 strait_importer.kind: a process of this host.
 */
#define STRAIT_IMPORTER_PROCESS 0

/*
 strait_importer.kind: an adapter, of a client with STRAIT_CLIENT_DEVICES alone. dma_map leaves what it
 registers: pieces of STRAIT_SG_FD, which are of dma-bufs; of STRAIT_SG_CPU, whose address is registered;
 or of STRAIT_SG_OPAQUE, for which export_dmabuf is called. An errno if it may not have the memory: after
 -EOPNOTSUPP, -ENOSYS or -ENODEV the client's dma_map is called for no adapter any more.
 */
#define STRAIT_IMPORTER_DEVICE 1

/*
 strait_peer_memory_client.flags: adapters may have memory of this client, as its dma_map says of each
 registration. A buffer then has up to two registrations at a time, one for each strait_importer.kind, each
 with its own acquire and its own core_context.
 */
#define STRAIT_CLIENT_DEVICES 1

/*
 strait_memory.kind: host memory.
 */
#define STRAIT_MEMORY_SYSTEM 0

/*
 strait_memory.kind: CUDA's.
 */
#define STRAIT_MEMORY_CUDA 2

/*
 strait_memory.kind: ROCm's.
 */
#define STRAIT_MEMORY_ROCR 3

/*
 strait_memory.kind: Level Zero's.
 */
#define STRAIT_MEMORY_ZE 4

/*
 strait_memory.kind: that of a client of this process.
 */
#define STRAIT_MEMORY_CLIENT 5

/*
 strait_export_dmabuf: one that is sure to be reachable over PCIe.
 */
#define STRAIT_DMABUF_PCIE 1

/*
 A client that is registered.
 */
struct strait_client;

/*
 A piece of a client's memory.
 */
struct strait_sg {
    /*
     Bytes.
     */
    uint64_t len;
    /*
     One of STRAIT_SG_.
     */
    uint32_t kind;
    /*
     Of STRAIT_SG_FD.
     */
    int32_t fd;
    /*
     An address, or an offset in `fd`.
     */
    uint64_t addr;
};

/*
 The pieces of a registration, in order and without a gap.
 */
struct strait_sg_table {
    /*
     In: sizeof(struct strait_sg_table).
     */
    size_t size;
    /*
     In: how many there is room for at `sg`. A client that needs more returns -ENOSPC from
     get_pages with the number in `count`, and is asked again (up to 256).
     */
    uint32_t room;
    /*
     Out: how many there are.
     */
    uint32_t count;
    /*
     The pieces.
     */
    struct strait_sg *sg;
};

/*
 What is to reach the memory.
 */
struct strait_importer {
    /*
     sizeof(struct strait_importer).
     */
    size_t size;
    /*
     One of STRAIT_IMPORTER_.
     */
    uint32_t kind;
    /*
     0.
     */
    uint32_t zero;
};

/*
 A client: the callbacks of PeerDirect's struct peer_memory_client, for user space.

 For each registration they come in this order: acquire, get_pages, dma_map, any number of copies,
 dma_unmap, put_pages, release; what fails ends it with the opposites of what went before. Callbacks
 for different registrations may come at once and from any thread. They may not call
 strait_register_..., strait_unregister_... or strait_invalidate, which answer -EDEADLK there, nor wait
 for a thread that is in one of these calls, nor call libfabric, whose operations call them with a
 domain's lock held.
 Those that return int return 0, or an errno below 0 (acquire also 1).
 */
struct strait_peer_memory_client {
    /*
     sizeof(struct strait_peer_memory_client).
     */
    size_t size;
    /*
     For people: at most 64 characters are kept.
     */
    const char *name;
    /*
     Handed to acquire.
     */
    void *arg;
    /*
     Whether `addr` is this client's: 1, with *context set; 0 if not; an errno below 0 if it is but
     cannot be used now. Asked about buffers of every operation that are in no registration yet, so it
     should be quick; never about the heap that grows with brk(2) and the main thread's stack.
     */
    int (*acquire)(void *arg, uint64_t addr, size_t len, void **context);
    /*
     Pins the memory and says where it is. `core_context` is what strait_invalidate takes; with
     STRAIT_CLIENT_DEVICES the same memory may have one for processes and one for adapters.
     */
    int (*get_pages)(void *context,
                     uint64_t addr,
                     size_t len,
                     int write,
                     struct strait_sg_table *sgt,
                     uint64_t core_context);
    /*
     Makes it reachable for that one; may change the pieces, not their number or lengths.
     */
    int (*dma_map)(void *context,
                   const struct strait_importer *importer,
                   struct strait_sg_table *sgt);
    /*
     The opposite of dma_map.
     */
    int (*dma_unmap)(void *context,
                     const struct strait_importer *importer,
                     struct strait_sg_table *sgt);
    /*
     The opposite of get_pages.
     */
    void (*put_pages)(void *context, struct strait_sg_table *sgt);
    /*
     The opposite of acquire.
     */
    void (*release)(void *context);
    /*
     May be NULL. Copies between the memory and `host`, and returns when that is done. Without it,
     the pieces are read and written by the CPU.
     */
    int (*copy)(void *context, uint64_t addr, void *host, size_t len, int to_host);
    /*
     May be NULL. A new dma-buf of the memory in *fd, which the caller closes, and where in it `addr`
     is in *offset.
     */
    int (*export_dmabuf)(void *context, uint64_t addr, size_t len, int *fd, uint64_t *offset);
    /*
     STRAIT_CLIENT_DEVICES, or 0. A `size` that ends before it is 0, too.
     */
    uint64_t flags;
};

/*
 What a piece of memory is. Paths are those of enum fi_strait_path_kind in strait_hmem.h.
 */
struct strait_memory {
    /*
     In: sizeof(struct strait_memory).
     */
    size_t size;
    /*
     Out: one of STRAIT_MEMORY_.
     */
    uint32_t kind;
    /*
     Out: by which path others reach it.
     */
    uint32_t path;
    /*
     Out: an errno for each path that was tried before, or 0.
     */
    int32_t refused[5];
    /*
     0.
     */
    uint32_t zero;
    /*
     Out: the refusals in words.
     */
    char why[256];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 Version of the library in use, as STRAIT_VERSION.
 */
uint32_t strait_version(void);

/*
 What a negative value that a function here has returned means. The text is never freed.
 */
const char *strait_strerror(int error);

/*
 Registers a client: from now on Strait's libraries in this process ask it about buffers, whether they
 were loaded before or are later. The structure is copied; what it points to stays as it is until
 the client is unregistered. The first registration of a process takes some milliseconds.

 0; -EINVAL: a callback that has to be there is not, or `size` is none; -ENOSYS: the structure has
 fields set that this library is too old to know; -EDEADLK: called from a callback.

 # Safety
 As said of the structure.
 */
int strait_register_peer_memory_client(const struct strait_peer_memory_client *client,
                                       struct strait_client **registered);

/*
 Ends a registration of a client: what is in use of its memory is invalidated. When this returns, no
 callback of the client runs in any thread, and none will: operations, evictions and invalidations of
 other threads that are in one are waited for. `registered` is gone then, and no other thread may
 begin a call with it.

 The caller must hold no lock that a callback takes.

 0; -EINVAL; -EDEADLK: called from a callback, and the client stays registered.

 # Safety
 `registered` is NULL or came from strait_register_peer_memory_client, and was not unregistered.
 */
int strait_unregister_peer_memory_client(struct strait_client *registered);

/*
 The client takes memory away: the `core_context` that get_pages got is passed back
 (dma_unmap, put_pages, release) before this returns, after copies in progress have ended.
 Operations on the memory fail from then on with FI_EIO; a registration of it gives that, or
 FI_ESTALE, even if other memory comes to the same address, until that registration is closed. A
 transfer that another process has already begun from a mapping of `fd` reads what is in there.

 With STRAIT_CLIENT_DEVICES, `core_context` of an adapter's registration: queue pairs with requests under
 way that name it are put in error, with all else that is under way with those peers, and ibv_dereg_mr ends
 each key before dma_unmap. A peer that uses its key later loses its connection. To take back a buffer,
 acquire refuses it with an errno until both registrations have been invalidated: else an operation of
 another thread registers it again in between.

 The caller must hold no lock that a callback takes.

 0; -ENOENT: it is not registered any more, and has been given back also where another thread ended
 it; -EINVAL; -EDEADLK: called from a callback, and nothing is invalidated.

 # Safety
 `registered` is NULL or came from strait_register_peer_memory_client, and was not unregistered.
 */
int strait_invalidate(struct strait_client *registered,
                      uint64_t core_context);

/*
 What memory `addr` is, and by which path another process or a device reaches `len` bytes there.

 0; -EINVAL: `memory` is NULL or its size is too small, or the range is none.

 # Safety
 `memory` is NULL or points to as many bytes as its `size` says.
 */
int strait_query_memory(const void *addr, size_t len, struct strait_memory *memory);

/*
 A dma-buf of `len` bytes of device memory at `addr`, for a driver or a card that takes one: a new
 descriptor in *fd, which the caller closes, and where in it `addr` is in *offset. `flags`: 0 or
 STRAIT_DMABUF_PCIE.

 0; -EINVAL; -EOPNOTSUPP: host memory, or the kind of memory has none; else what its driver said.

 # Safety
 `fd` and `offset` are NULL or valid for a write.
 */
int strait_export_dmabuf(const void *addr, size_t len, uint64_t flags, int *fd, uint64_t *offset);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* STRAIT_H */

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two libraries in one process: a client registered with libstrait.so, whose memory is a region of a context of
 * libstrait_xpu.so. Commands put into that region and get from it; the client's own copy(), and no access by the CPU,
 * reaches the memory. The context is opened before the client is registered. */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>

#include <strait.h>
#include <strait_xpu.h>

#define CHECK_FORMAT "(%s): "
#define CHECK_ARGS strait_xpu_error()
#include "../check.h"
#include "post.h"

#define LENGTH ((size_t)1 << 16)

/* What the program has, which no CPU may access; what the client has; registrations, and copies. */
static unsigned char *at, *alias;
static atomic_int acquired, pinned, copies;

static int acquire(void *arg, uint64_t addr, size_t len, void **context) {
    (void)len;
    if (addr - (uintptr_t)at >= LENGTH) return 0;
    acquired++;
    *context = arg;
    return 1;
}

static int get_pages(void *context, uint64_t addr, size_t len, int write, struct strait_sg_table *sgt, uint64_t core) {
    (void)context, (void)addr, (void)write, (void)core;
    pinned++;
    sgt->count = 1;
    sgt->sg[0] = (struct strait_sg){.len = len, .kind = STRAIT_SG_OPAQUE, .fd = -1};
    return 0;
}

static int nothing(void *context, const struct strait_importer *importer, struct strait_sg_table *sgt) {
    (void)context, (void)importer, (void)sgt;
    return 0;
}

static void put_pages(void *context, struct strait_sg_table *sgt) {
    (void)context, (void)sgt;
    pinned--;
}

static void release(void *context) {
    (void)context;
    acquired--;
}

static int copy(void *context, uint64_t addr, void *host, size_t len, int to_host) {
    unsigned char *there = alias + (addr - (uintptr_t)at);
    (void)context;
    CHECK(addr - (uintptr_t)at <= LENGTH - len);
    copies++;
    memcpy(to_host ? host : there, to_host ? there : host, len);
    return 0;
}

static struct strait_client *register_client(void) {
    struct strait_peer_memory_client client = {
        .size = sizeof client, .name = "test", .acquire = acquire, .get_pages = get_pages, .dma_map = nothing,
        .dma_unmap = nothing, .put_pages = put_pages, .release = release, .copy = copy};
    struct strait_client *registered;
    int fd = memfd_create("memory", MFD_CLOEXEC);
    CHECK(fd >= 0 && ftruncate(fd, LENGTH) == 0);
    at = mmap(NULL, LENGTH, PROT_NONE, MAP_SHARED, fd, 0);
    alias = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(at != MAP_FAILED && alias != MAP_FAILED);
    CHECK(strait_register_peer_memory_client(&client, &registered) == 0);
    return registered;
}

/* Carries a command out. */
static void done(const struct strait_xpu_ring *ring, const struct strait_xpu_command *command) {
    const struct strait_xpu_status *status = (void *)(uintptr_t)ring->status;
    u64 ticket = post(ring, command);
    time_t begin = time(NULL);
    while (load((u64)(uintptr_t)&status->done) <= ticket) {
        CHECK(!late(begin));
        sched_yield();
    }
    CHECK(load((u64)(uintptr_t)&status->error) == 0);
}

int main(void) {
    enum { CLIENT, HOST };
    struct strait_xpu *x;
    struct strait_memory memory = {.size = sizeof memory};
    struct strait_xpu_ring_options options = {.size = sizeof options, .log2_slots = 3, .flags = STRAIT_XPU_ANY_DEVICE};
    uint32_t number;
    void *address, *view;
    char blob[4096];
    size_t length = sizeof blob;
    const void *blobs[1] = {blob};

    CHECK(strait_xpu_open(NULL, &x) == 0);
    struct strait_client *registered = register_client();
    CHECK(strait_query_memory(at, LENGTH, &memory) == 0 && memory.kind == STRAIT_MEMORY_CLIENT);
    CHECK(strait_xpu_register(x, at, LENGTH, &number) == 0 && number == CLIENT && pinned > 0);
    CHECK(strait_xpu_allocate(x, LENGTH, &number, &address) == 0 && number == HOST);
    CHECK(strait_xpu_add_ring(x, &options, &number) == 0);
    CHECK(strait_xpu_blob(x, blob, &length) == 0 && strait_xpu_connect(x, 0, 1, blobs, &length) == 0);
    CHECK(strait_xpu_begin(x, &view) == 0);

    const struct strait_xpu_context *context = view;
    const struct strait_xpu_ring *ring = (void *)(uintptr_t)context->rings;
    const struct strait_xpu_peer *own = (void *)(uintptr_t)context->peers;
    unsigned char *bytes = address;
    struct strait_xpu_command c = {.op = STRAIT_XPU_OP_PUT, .region = HOST, .local = (u64)(uintptr_t)bytes,
                                   .remote = own[CLIENT].remote, .key = own[CLIENT].key, .length = LENGTH / 2};
    for (size_t i = 0; i < LENGTH / 2; i++) bytes[i] = (unsigned char)(i % 251);
    done(ring, &c);
    CHECK(copies > 0 && memcmp(alias, bytes, LENGTH / 2) == 0);
    alias[7] = 255;
    c.op = STRAIT_XPU_OP_GET;
    c.local += LENGTH / 2;
    done(ring, &c);
    CHECK(memcmp(bytes + LENGTH / 2, alias, LENGTH / 2) == 0);

    CHECK(strait_xpu_end(x) == 0 && strait_xpu_close(x) == 0);
    CHECK(strait_unregister_peer_memory_client(registered) == 0 && acquired == 0 && pinned == 0);
    return 0;
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * A kind of memory of the program's own: a file that peers may map. Under FI_PROVIDER=strait libfabric takes it
 * wherever it takes a buffer.
 *
 *    cc client.c -o client $(pkg-config --cflags --libs libstrait)
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>
#include <strait.h>

enum { LEN = 1 << 20 };
static int file;
static uint64_t begin;

static int acquire(void *arg, uint64_t addr, size_t len, void **context)
{
    (void)len;
    *context = arg;
    return addr >= begin && addr < begin + LEN;
}

static int get_pages(void *context, uint64_t addr, size_t len, int write, struct strait_sg_table *sgt, uint64_t core_context)
{
    (void)context, (void)write, (void)core_context;
    if (len > begin + LEN - addr)
        return -EINVAL;
    sgt->count = 1;
    if (sgt->room < 1)
        return -ENOSPC;
    sgt->sg[0] = (struct strait_sg){ .len = len, .kind = STRAIT_SG_FD, .fd = file, .addr = addr - begin };
    return 0;
}

static int map(void *context, const struct strait_importer *importer, struct strait_sg_table *sgt)
{
    (void)context, (void)importer, (void)sgt;
    return 0;
}

static void put_pages(void *context, struct strait_sg_table *sgt) { (void)context, (void)sgt; }
static void release(void *context) { (void)context; }

int main(void)
{
    struct strait_peer_memory_client client = {
        .size = sizeof client, .name = "file", .acquire = acquire, .get_pages = get_pages, .dma_map = map, .dma_unmap = map,
        .put_pages = put_pages, .release = release };
    struct strait_client *registered;
    struct strait_memory memory = { .size = sizeof memory };
    void *at;
    int rc;

    file = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (file < 0 || ftruncate(file, LEN) || fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK)) {
        perror("memfd");
        return 1;
    }
    at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    begin = (uint64_t)(uintptr_t)at;
    rc = strait_register_peer_memory_client(&client, &registered);
    if (!rc)
        rc = strait_query_memory(at, LEN, &memory);
    if (rc) {
        fprintf(stderr, "client: %s\n", strait_strerror(rc));
        return 1;
    }
    printf("kind %u%s, path %u\n", memory.kind, memory.kind == STRAIT_MEMORY_CLIENT ? " (a client's)" : "", memory.path);
    return strait_unregister_peer_memory_client(registered) != 0;
}

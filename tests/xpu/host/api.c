/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Two processes with include/strait_xpu.h. A thread of each plays the kernel: it has the view alone, and writes commands
 * into its ring by strait_xpu_layout.h, or stores into mapped memory of the peer.
 *
 *   api exchange      puts by commands and by stores, both ways
 *   api killed        the second process is killed: the first one's kernel finds out by error words
 *   api resting       the first with two threads that drain, which rest before it begins and are woken
 *   api wrong         calls that are refused
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <strait_xpu.h>

#define LENGTH (1u << 20)
#define ROUNDS 300
/* Words of the region: data from 0 on, then the signals. */
#define BY_COMMAND 0
#define BY_STORE 4096
#define SIGNAL_COMMAND 100000
#define SIGNAL_STORE 100008

static int rank;
#define CHECK_FORMAT "rank %d (%s): "
#define CHECK_ARGS rank, strait_xpu_error()
#include "../check.h"

#include "post.h"

/* Waits for a signal; 0, or the peer's error word. */
static u64 wait_signal(const struct strait_xpu_context *view, u64 address, u64 value, int peer) {
    time_t begin = time(NULL);
    while (load(address) < value) {
        u64 error = load(view->peer_errors + 8 * peer);
        if (error) return error;
        CHECK(!late(begin));
        sched_yield();
    }
    return 0;
}

static struct strait_xpu_command put(const struct strait_xpu_context *view, int peer, u64 from, u64 to, u64 length) {
    const struct strait_xpu_region *mine = (void *)(uintptr_t)view->regions;
    const struct strait_xpu_peer *theirs = (struct strait_xpu_peer *)(uintptr_t)view->peers + peer * view->region_count;
    struct strait_xpu_command c = {.op = STRAIT_XPU_OP_PUT, .peer = peer, .region = 0, .local = mine->base + from,
                                   .remote = theirs->remote + to, .key = theirs->key, .length = length};
    return c;
}

static void *exchange(void *arg) {
    const struct strait_xpu_context *view = arg;
    const struct strait_xpu_ring *ring = (void *)(uintptr_t)view->rings;
    const struct strait_xpu_status *status = (void *)(uintptr_t)ring->status;
    int peer = 1 - rank;
    const struct strait_xpu_region *mine = (void *)(uintptr_t)view->regions;
    const struct strait_xpu_peer *theirs = (struct strait_xpu_peer *)(uintptr_t)view->peers + peer * view->region_count;
    CHECK(view->version == STRAIT_XPU_VERSION && ring->version == STRAIT_XPU_VERSION && (int)view->rank == rank);
    CHECK(view->peer_count == 2 && view->region_count == 1 && view->ring_count == 1);
    CHECK(theirs->length == LENGTH && theirs->mapped != 0);
    u64 scratch = 8 * 20000, words = 512;
    for (u64 n = 1; n <= ROUNDS; n++) {
        /* What this side sends, it writes into its own region first. */
        for (u64 i = 0; i < words; i++) store(mine->base + scratch + 8 * i, n << 32 | i << 1 | rank);
        struct strait_xpu_command c = put(view, peer, scratch, 8 * BY_COMMAND, 8 * words);
        c.op = STRAIT_XPU_OP_PUT_SIGNAL;
        c.operand = theirs->remote + 8 * SIGNAL_COMMAND;
        c.value = n;
        c.context = theirs->key;
        u64 ticket = post(ring, &c);
        /* Stores by itself, into the peer's memory as it is mapped here. */
        for (u64 i = 0; i < words; i++) store(theirs->mapped + 8 * (BY_STORE + i), n << 32 | i << 1 | rank);
        store(theirs->mapped + 8 * SIGNAL_STORE, n);
        CHECK(wait_signal(view, mine->base + 8 * SIGNAL_COMMAND, n, peer) == 0);
        CHECK(wait_signal(view, mine->base + 8 * SIGNAL_STORE, n, peer) == 0);
        for (u64 i = 0; i < words; i++) {
            CHECK(load(mine->base + 8 * (BY_COMMAND + i)) == (n << 32 | i << 1 | (u64)peer));
            CHECK(load(mine->base + 8 * (BY_STORE + i)) == (n << 32 | i << 1 | (u64)peer));
        }
        time_t begin = time(NULL);
        while (load((u64)(uintptr_t)&status->done) <= ticket) CHECK(!late(begin) && status->error == 0);
        /* Neither begins the next round before the other has looked at this one. */
        store(theirs->mapped + 8 * (SIGNAL_STORE + 8), n);
        CHECK(wait_signal(view, mine->base + 8 * (SIGNAL_STORE + 8), n, peer) == 0);
    }
    CHECK(load((u64)(uintptr_t)&status->error) == 0);
    return NULL;
}

static void *killed(void *arg) {
    const struct strait_xpu_context *view = arg;
    const struct strait_xpu_ring *ring = (void *)(uintptr_t)view->rings;
    struct strait_xpu_status *status = (void *)(uintptr_t)ring->status;
    const struct strait_xpu_region *mine = (void *)(uintptr_t)view->regions;
    /* A signal that never comes: mapped memory says nothing of its owner's end, the error word does. */
    u64 error = wait_signal(view, mine->base + 8 * SIGNAL_COMMAND, 1, 1);
    CHECK(error & STRAIT_XPU_ERROR_ENDED && STRAIT_XPU_ERROR_CODE(error) == ECONNRESET);
    CHECK(load(view->peer_errors) == 0);
    /* Commands to it end, too. */
    struct strait_xpu_command c = put(view, 1, 0, 0, 8);
    u64 ticket = post(ring, &c);
    time_t begin = time(NULL);
    while (load((u64)(uintptr_t)&status->done) <= ticket) CHECK(!late(begin));
    CHECK(load((u64)(uintptr_t)&status->error) != 0 && load((u64)(uintptr_t)&status->failed) == 1);
    return NULL;
}

static void *waits_for_the_end(void *arg) {
    const struct strait_xpu_context *view = arg;
    const struct strait_xpu_status *status = (void *)(uintptr_t)((struct strait_xpu_ring *)(uintptr_t)view->rings)->status;
    time_t begin = time(NULL);
    while (!(load((u64)(uintptr_t)&status->error) & STRAIT_XPU_ERROR_ENDED)) CHECK(!late(begin));
    return NULL;
}

static void kernel(void *(*run)(void *), void *view, struct strait_xpu *end) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, view) == 0);
    if (end) CHECK(strait_xpu_end(end) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void process(int sock, int is_killed, int rests) {
    struct strait_xpu *x;
    uint32_t region, ring;
    void *address, *view, *mapped;
    char blobs[2][4096];
    size_t lengths[2] = {0, 0}, length;
    struct strait_xpu_options how = {.size = sizeof how, .threads = 2, .idle_ns = 25000000};
    CHECK(strait_xpu_open(rests ? &how : NULL, &x) == 0);
    CHECK(strait_xpu_allocate(x, LENGTH, &region, &address) == 0 && region == 0);
    struct strait_xpu_ring_options options = {.size = sizeof options, .log2_slots = 3};
    CHECK(strait_xpu_add_ring(x, &options, &ring) == 0 && ring == 0);
    CHECK(strait_xpu_blob(x, NULL, &lengths[rank]) == -ENOSPC);
    CHECK(strait_xpu_blob(x, blobs[rank], &lengths[rank]) == 0);
    CHECK(send(sock, blobs[rank], lengths[rank], 0) == (ssize_t)lengths[rank]);
    ssize_t got = recv(sock, blobs[1 - rank], sizeof blobs[0], 0);
    CHECK(got > 0);
    lengths[1 - rank] = got;
    const void *all[2] = {blobs[0], blobs[1]};
    CHECK(strait_xpu_connect(x, rank, 2, all, lengths) == 0);
    CHECK(strait_xpu_mapped(x, 1 - rank, 0, &mapped, &length) == 0 && mapped && length == LENGTH);
    CHECK(strait_xpu_mapped(x, 2, 0, &mapped, &length) == -ENOENT);
    CHECK(strait_xpu_begin(x, &view) == 0);
    CHECK(strait_xpu_begin(x, &view) == -EBUSY);
    /* Both have begun. */
    char c = 0;
    CHECK(send(sock, &c, 1, 0) == 1 && recv(sock, &c, 1, 0) == 1);
    if (is_killed) {
        if (rank == 1) for (;;) pause();
        kernel(killed, view, NULL);
    } else {
        if (rests) {
            usleep(50000);
            CHECK(strait_xpu_wake(x) == 0);
        }
        kernel(exchange, view, NULL);
        kernel(waits_for_the_end, view, x);
        /* Neither closes while the other still stores. */
        CHECK(send(sock, &c, 1, 0) == 1 && recv(sock, &c, 1, 0) == 1);
    }
    CHECK(strait_xpu_close(x) == 0);
}

static void wrong(void) {
    struct strait_xpu *x;
    uint32_t number;
    void *at;
    size_t length = 3;
    const void *blob = "abc";
    struct strait_xpu_options later = {.size = 4};
    struct strait_xpu_ring_options ring = {.size = sizeof ring, .log2_slots = 21};
    CHECK(strait_xpu_open(&later, &x) == -EINVAL && strait_xpu_open(NULL, NULL) == -EINVAL);
    struct strait_xpu_options many = {.size = sizeof many, .threads = 17}, filled = {.size = sizeof filled, .unused = 1};
    CHECK(strait_xpu_open(&many, &x) == -EINVAL && strstr(strait_xpu_error(), "16"));
    CHECK(strait_xpu_open(&filled, &x) == -EINVAL);
    CHECK(strait_xpu_wake(NULL) == -EINVAL);
    /* A program that was compiled before there were threads to choose. */
    struct strait_xpu_options older = {.size = offsetof(struct strait_xpu_options, threads), .threads = 17, .unused = 1};
    CHECK(strait_xpu_open(&older, &x) == 0 && strait_xpu_wake(x) == 0 && strait_xpu_close(x) == 0);
    CHECK(strait_xpu_open(NULL, &x) == 0);
    CHECK(strait_xpu_register(x, NULL, 8, &number) == -EINVAL && strait_xpu_allocate(x, 0, &number, &at) == -EINVAL);
    CHECK(strait_xpu_register(x, (void *)8, SIZE_MAX, &number) == -EINVAL);
    CHECK(strait_xpu_add_ring(x, &ring, &number) == -EINVAL && strstr(strait_xpu_error(), "2^20"));
    ring.log2_slots = 2;
    ring.flags = 8;
    CHECK(strait_xpu_add_ring(x, &ring, &number) == -EINVAL);
    ring.flags = 0;
    ring.slots = &ring;
    ring.slots_size = 64;
    ring.slots = (void *)((uintptr_t)ring.slots | 8);
    CHECK(strait_xpu_add_ring(x, &ring, &number) == -EINVAL && strstr(strait_xpu_error(), "64"));
    CHECK(strait_xpu_connect(x, 0, 1, &blob, &length) == -EINVAL && strstr(strait_xpu_error(), "blob"));
    CHECK(strait_xpu_connect(x, 1, 1, &blob, &length) == -EINVAL);
    CHECK(strait_xpu_close(x) == 0 && strait_xpu_close(NULL) == 0);
    CHECK(strait_xpu_end(NULL) == -EINVAL && strait_xpu_blob(NULL, NULL, &length) == -EINVAL);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    int socks[2], status = 0, is_killed = strcmp(what, "killed") == 0;
    if (strcmp(what, "wrong") == 0) {
        wrong();
        return 0;
    }
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, socks) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    rank = child == 0;
    alarm(2 * LIMIT_S);
    if (child > 0 && is_killed) {
        /* This process starts the peer's end while its kernel waits. */
        pid_t killer = fork();
        CHECK(killer >= 0);
        if (killer == 0) {
            sleep(1);
            kill(child, SIGKILL);
            _exit(0);
        }
    }
    process(socks[rank], is_killed, strcmp(what, "resting") == 0);
    if (child == 0) return 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(is_killed ? WIFSIGNALED(status) : status == 0);
    return 0;
}

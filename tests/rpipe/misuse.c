/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* What is refused changes nothing, between two processes; handlers call all functions; blocks begin where they were asked for. */
#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strait_rpipe.h>
#include <time.h>

#define SECOND 1000000000LL
#define LIMIT (60 * SECOND)

static void refused(int code, int expected)
{
    if (code != -expected || errno != expected || strlen(rerror()) < 10) {
        printf("%d and errno %d instead of %d: %s\n", code, errno, expected, rerror());
        assert(!"refused otherwise");
    }
}

static void to_itself(int rank)
{
    rpipe_t rp = NULL;
    rpipe_many_t many = NULL;
    int ranks[2] = {1 - rank, rank};
    refused(rpipe(rp, rank, 1, 0, HD_PIPE), EINVAL);
    refused(rpipe(rp, rank, 0, 0, FD_PIPE), EINVAL);
    refused(rpipe_many_open(&many, ranks, 2, NULL), EINVAL);
}

/* The pipe that is refused at one end alone is no end's second. */
static void refused_at_one_end(int rank)
{
    rpipe_t rp = NULL;
    raddr_t addr = RADDR_NULL;
    struct rpipe_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.size = sizeof(attr);
    attr.flags = FD_PIPE;
    attr.slots = 1 << 20;
    if (rank == 0)
        refused(rpipe_open_attr(&rp, 1, &attr), EINVAL);
    attr.slots = 0;
    assert(rpipe_open_attr(&rp, 1 - rank, &attr) == 0);
    assert((addr = rmalloc_timed(rp, sizeof(rank), LIMIT)) != RADDR_NULL);
    *(int *)rmem(rp, addr) = rank;
    assert(rwrite(rp, addr) == 0 && rread_timed(rp, &addr, sizeof(rank), LIMIT) == 0);
    assert(*(int *)rmem(rp, addr) == 1 - rank && rfree(addr) == 0);
    assert(rpipe_close(rp) == 0);
}

static void aligned(int rank)
{
    rpipe_t rp = NULL;
    raddr_t addr = RADDR_NULL;
    assert(rpipe(rp, 1 - rank, rank == 0, RPIPE_UNBOUNDED, HD_PIPE) == 0);
    for (size_t align = 1; align <= 4096; align *= 2)
        for (size_t size = 1; size <= 64; size += 63)
            if (rank == 0) {
                raddr_t before = rmalloc(rp, 1);
                assert((addr = rmalloc_aligned(rp, size, align)) != RADDR_NULL && rfree(before) == 0);
                assert((uintptr_t)rmem(rp, addr) % align == 0);
                memset(rmem(rp, addr), (int)size, size);
                assert(rwrite(rp, addr) == 0);
            } else {
                assert(rread(rp, addr, 64) == 0 && (uintptr_t)rmem(rp, addr) % align == 0);
                assert(rlength(addr) == (ptrdiff_t)size && *(char *)rmem(rp, addr) == (char)size && rfree(addr) == 0);
            }
    assert(rpipe_close(rp) == 0);
}

struct within {
    rpipe_many_t many;
    int calls;
};

/* Reads the message behind the one that it is called for. */
static void reads_on(void *arg, rpipe_t rp, void *bytes, size_t size)
{
    struct within *within = (struct within *)arg;
    raddr_t addr = RADDR_NULL;
    rpipe_t from = NULL;
    assert(size == 4 && memcmp(bytes, "call", 4) == 0);
    assert(rpipe_many_read(within->many, &addr, 8, &from, NULL, LIMIT) == 0 && from == rp);
    assert(memcmp(rmem(from, addr), "next", 4) == 0 && rfree(addr) == 0);
    within->calls++;
}

static void *look(void *many)
{
    raddr_t addr = RADDR_NULL;
    assert(rpipe_many_read((rpipe_many_t)many, &addr, 8, NULL, NULL, 0) == -EAGAIN);
    return NULL;
}

static void write_words(rpipe_t rp, const char *word, int number)
{
    raddr_t addr = rmalloc(rp, 4);
    assert(addr != RADDR_NULL);
    memcpy(rmem(rp, addr), word, 4);
    assert((number != 0 ? rwrite_am(rp, addr, number) : rwrite(rp, addr)) == 0);
}

/* A handler of one of many pipes, which one thread has used, and then two. */
static void in_a_handler(int rank, int threads)
{
    if (rank == 1) {
        rpipe_t rp = NULL, go = NULL;
        raddr_t addr = RADDR_NULL;
        assert(rpipe(go, 0, 0, 0, HD_PIPE) == 0 && rpipe(rp, 0, 1, 0, HD_PIPE) == 0);
        assert(rread(go, addr, 4) == 0);
        write_words(rp, "call", 3);
        write_words(rp, "next", 0);
        write_words(rp, "last", 0);
        assert(rread(go, addr, 4) == -EPIPE && rpipe_close(go) == 0 && rpipe_close(rp) == 0);
        return;
    }
    struct within within = {NULL, 0};
    rpipe_t go = NULL, from = NULL;
    raddr_t addr = RADDR_NULL;
    assert(rpipe(go, 1, 1, 0, HD_PIPE) == 0 && rpipe_many_open(&within.many, NULL, 0, NULL) == 0);
    assert(rhandle(rpipe_many_pipe(within.many, 1), 3, reads_on, &within) == 0);
    look(within.many);
    if (threads == 2) {
        pthread_t thread;
        assert(pthread_create(&thread, NULL, look, within.many) == 0 && pthread_join(thread, NULL) == 0);
    }
    write_words(go, "go  ", 0);
    assert(rpipe_many_read(within.many, &addr, 8, &from, NULL, LIMIT) == 0 && within.calls == 1);
    assert(memcmp(rmem(from, addr), "last", 4) == 0 && rfree(addr) == 0);
    assert(rpipe_many_close(within.many) == 0 && rpipe_close(go) == 0);
}

static void counts(void *arg, rpipe_t rp, void *bytes, size_t size)
{
    assert(rp != NULL && bytes != NULL && size == 4);
    ++*(long *)arg;
    /* So that the next one is there already. */
    poll(NULL, 0, 1);
}

/* Active messages without end end no call later than its time. */
static void in_a_flood(int rank)
{
    rpipe_t rp = NULL, stop = NULL;
    raddr_t addr = RADDR_NULL;
    assert(rpipe(rp, 1 - rank, rank == 1, 0, HD_PIPE) == 0 && rpipe(stop, 1 - rank, rank == 0, 0, HD_PIPE) == 0);
    if (rank == 1) {
        time_t until = time(NULL) + 60;
        do {
            write_words(rp, "call", 3);
            assert(time(NULL) < until);
        } while (rread_timed(stop, &addr, 4, 0) == -EAGAIN);
        assert(rfree(addr) == 0);
    } else {
        long calls = 0;
        assert(rhandle(rp, 3, counts, &calls) == 0);
        do {
            assert(rread_timed(rp, &addr, 4, SECOND / 100) == -EAGAIN);
        } while (calls == 0);
        write_words(stop, "stop", 0);
        assert(rread(rp, addr, 4) == -EPIPE);
    }
    assert(rpipe_close(rp) == 0 && rpipe_close(stop) == 0);
}

int main(void)
{
    int rank = -1;
    assert(rinit(&rank, NULL) == 0 && rcount() == 2);
    to_itself(rank);
    refused_at_one_end(rank);
    aligned(rank);
    in_a_handler(rank, 1);
    in_a_handler(rank, 2);
    in_a_flood(rank);
    assert(rfinalize() == 0);
    refused(rinit(&rank, NULL), EINVAL);
    assert(strstr(rerror(), "rfinalize") != NULL);
    printf("rank %d: ok\n", rank);
    return 0;
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Arguments at their limits and beyond, of every function, between two processes: NULL, 0, SIZE_MAX, ranks and flags that there are not, handles that are
 * closed, in another thread, before rinit and after rfinalize. Each is refused, changes nothing, and waits for no peer. Also compiled as C++. */
#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strait_rpipe.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define LIMIT (60 * SECOND)

static int rank = -1;
static char bytes[64];

static void is_refused(int line, ptrdiff_t code, int expected)
{
    if (code != -expected || errno != expected || strlen(rerror()) < 10) {
        printf("rank %d, line %d: %ld and errno %d instead of %d: %s\n", rank, line, (long)code, errno, expected, rerror());
        exit(1);
    }
}
#define REFUSED(call, expected) (errno = 0, is_refused(__LINE__, (call), (expected)))
/* Of what returns an address, a pointer, or -1. */
#define NONE(call, none, expected) (errno = 0, is_refused(__LINE__, (call) == (none) ? -(expected) : -1, (expected)))

/* Every call that takes a pipe, with one that is none. */
static void no_pipe(rpipe_t rp)
{
    raddr_t addr = 7;
    struct rpipe_stats stats;
    struct rpipe_device device;
    stats.size = sizeof(stats);
    device.size = sizeof(device);
    REFUSED(rpipe_close(rp), EINVAL);
    REFUSED(rpipe_set_policy(rp, RPIPE_BEST_FIT), EINVAL);
    REFUSED(rpipe_get_stats(rp, &stats), EINVAL);
    NONE(rmalloc(rp, 8), RADDR_NULL, EINVAL);
    NONE(rmalloc_aligned(rp, 8, 8), RADDR_NULL, EINVAL);
    NONE(rmalloc_timed(rp, 8, 0), RADDR_NULL, EINVAL);
    NONE(rmem(rp, 1), NULL, EINVAL);
    REFUSED(rwrite(rp, 1), EINVAL);
    REFUSED(rwrite_timed(rp, 1, 0), EINVAL);
    REFUSED(rwrite_part(rp, 1, 1), EINVAL);
    REFUSED(rwrite_am(rp, 1, 1), EINVAL);
    REFUSED(rwrite_from(rp, bytes, 8), EINVAL);
    REFUSED(rflush(rp, 0), EINVAL);
    REFUSED(rread(rp, addr, 8), EINVAL);
    REFUSED(rread_timed(rp, &addr, 8, 0), EINVAL);
    REFUSED(rpeek(rp), EINVAL);
    REFUSED(rhandle(rp, 1, NULL, NULL), EINVAL);
    REFUSED(rpipe_arm(rp), EINVAL);
    REFUSED(rwait(&rp, 1, 0), EINVAL);
    REFUSED(rpipe_on_device(rp, &device), EINVAL);
    assert(addr == 7);
}

static void no_others(rpipe_many_t many, rpipe_group_t group, rlent_t lent, rborrowed_t borrowed)
{
    raddr_t addr = 7;
    struct rpipe_neighbor side;
    struct rborrow_stats stats;
    memset(&side, 0, sizeof(side));
    stats.size = sizeof(stats);
    REFUSED(rpipe_many_read(many, &addr, 8, NULL, NULL, 0), EINVAL);
    NONE(rpipe_many_pipe(many, 0), NULL, EINVAL);
    REFUSED(rpipe_many_close(many), EINVAL);
    REFUSED(rpipe_bcast(group, 0, bytes, 8), EINVAL);
    REFUSED(rpipe_bcast_timed(group, 0, bytes, 8, 0), EINVAL);
    REFUSED(rpipe_neighbor_exchange(group, &side, 1), EINVAL);
    REFUSED(rpipe_neighbor_exchange_timed(group, &side, 1, 0), EINVAL);
    REFUSED(rpipe_group_close(group), EINVAL);
    REFUSED(rlend_wait(lent, 0), EINVAL);
    REFUSED(rlend_close(lent), EINVAL);
    NONE(rborrow_malloc(borrowed, 8), RADDR_NULL, EINVAL);
    NONE(rborrow_malloc_aligned(borrowed, 8, 8), RADDR_NULL, EINVAL);
    NONE(rborrow_length(borrowed, 1), -1, EINVAL);
    NONE(rborrow_mem(borrowed, 1), NULL, EINVAL);
    REFUSED(rborrow_write(borrowed, 1, 0, bytes, 8, 0), EINVAL);
    REFUSED(rborrow_read(borrowed, 1, 0, bytes, 8, 0), EINVAL);
    REFUSED(rborrow_free(borrowed, 1), EINVAL);
    REFUSED(rborrow_attach(borrowed, 1, 8), EINVAL);
    REFUSED(rborrow_detach(borrowed, 1), EINVAL);
    REFUSED(rborrow_atomic(borrowed, 1, 0, RPIPE_INT64 | RPIPE_SUM, 1, 0, NULL, 0), EINVAL);
    REFUSED(rborrow_get_stats(borrowed, &stats), EINVAL);
    REFUSED(rborrow_close(borrowed), EINVAL);
}

/* What needs a job. */
static void no_job(void)
{
    rpipe_t rp = NULL;
    rpipe_many_t many = NULL;
    rpipe_group_t group = NULL;
    rlent_t lent = NULL;
    rborrowed_t borrowed = NULL;
    REFUSED(rcount(), EINVAL);
    REFUSED(rpipe_fd(), EINVAL);
    REFUSED(rfinalize(), EINVAL);
    REFUSED(rpipe(rp, 0, 1, 8, HD_PIPE), EINVAL);
    REFUSED(rpipe_many_open(&many, NULL, 0, NULL), EINVAL);
    REFUSED(rpipe_group_open(&group, NULL, 0), EINVAL);
    REFUSED(rlend(&lent, 0, 64, 0), EINVAL);
    REFUSED(rlend_many(&lent, NULL, 0, 64, 0), EINVAL);
    REFUSED(rborrow(&borrowed, 0, 0, 0), EINVAL);
    assert(!rp && !many && !group && !lent && !borrowed);
    no_pipe(NULL);
    no_others(NULL, NULL, NULL, NULL);
}

static void opened_wrongly(void)
{
    static const unsigned flags[] = {0, HD_PIPE | FD_PIPE, 4, UINT_MAX, HD_PIPE | RPIPE_NEXT_FIT | RPIPE_WORST_FIT, HD_PIPE | 0x500,
                                     HD_PIPE | RPIPE_DEFERRED | RPIPE_IMMEDIATE, HD_PIPE | RPIPE_NUMBERS, HD_PIPE | 1u << 31};
    static const int ranks[] = {INT_MIN, -1, 2, INT_MAX, 65536};
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX - 1, SIZE_MAX / 2, ((size_t)16 << 30) + 1};
    rpipe_t rp = NULL;
    rpipe_many_t many = NULL;
    rpipe_group_t group = NULL;
    int peer = 1 - rank, twice[2] = {rank, rank}, other[1] = {peer};
    struct rpipe_attr attr, good;
    memset(&good, 0, sizeof(good));
    good.size = sizeof(good);
    good.flags = HD_PIPE;
    for (size_t n = 0; n < sizeof(flags) / sizeof(flags[0]); n++)
        REFUSED(rpipe(rp, peer, 0, 8, flags[n]), EINVAL);
    for (size_t n = 0; n < sizeof(ranks) / sizeof(ranks[0]); n++) {
        rlent_t lent = NULL;
        rborrowed_t borrowed = NULL;
        REFUSED(rpipe(rp, ranks[n], 1, 8, HD_PIPE), EINVAL);
        REFUSED(rpipe(rp, ranks[n], 0, 8, HD_PIPE), EINVAL);
        REFUSED(rpipe_many_open(&many, &ranks[n], 1, NULL), EINVAL);
        REFUSED(rpipe_group_open(&group, &ranks[n], 1), EINVAL);
        REFUSED(rlend(&lent, ranks[n], 64, 0), EINVAL);
        REFUSED(rlend_many(&lent, &ranks[n], 1, 64, 0), EINVAL);
        REFUSED(rborrow(&borrowed, ranks[n], 0, 0), EINVAL);
    }
    for (size_t n = 0; n < sizeof(sizes) / sizeof(sizes[0]); n++) {
        rlent_t lent = NULL;
        attr = good;
        attr.heap = sizes[n];
        REFUSED(rpipe_open_attr(&rp, peer, &attr), EINVAL);
        REFUSED(rpipe_many_open(&many, NULL, 0, &attr), EINVAL);
        attr = good;
        attr.slots = sizes[n];
        REFUSED(rpipe_open_attr(&rp, peer, &attr), EINVAL);
        REFUSED(rlend(&lent, peer, sizes[n], 0), EINVAL);
        REFUSED(rlend_many(&lent, NULL, 0, sizes[n], 0), EINVAL);
        if (n > 0) {
            attr = good;
            attr.width = sizes[n];
            REFUSED(rpipe_open_attr(&rp, peer, &attr), EINVAL);
        }
    }
    attr = good;
    attr.slots = 32769;
    REFUSED(rpipe_open_attr(&rp, peer, &attr), EINVAL);
    REFUSED(rpipe_open_attr(NULL, peer, &good), EINVAL);
    REFUSED(rpipe_open_attr(&rp, peer, NULL), EINVAL);
    REFUSED(rpipe_open(NULL, peer, 0, 8, HD_PIPE), EINVAL);
    for (attr = good, attr.size = 0; attr.size < sizeof(attr); attr.size += sizeof(attr.size)) {
        REFUSED(rpipe_open_attr(&rp, peer, &attr), EINVAL);
        REFUSED(rpipe_many_open(&many, NULL, 0, &attr), EINVAL);
    }
    REFUSED(rpipe_many_open(NULL, NULL, 0, NULL), EINVAL);
    REFUSED(rpipe_many_open(&many, other, 0, NULL), EINVAL);
    REFUSED(rpipe_many_open(&many, other, SIZE_MAX, NULL), EINVAL);
    attr = good;
    attr.flags = FD_PIPE;
    REFUSED(rpipe_many_open(&many, NULL, 0, &attr), EINVAL);
    REFUSED(rpipe_group_open(NULL, NULL, 0), EINVAL);
    REFUSED(rpipe_group_open(&group, other, 1), EINVAL);
    REFUSED(rpipe_group_open(&group, twice, 2), EINVAL);
    REFUSED(rpipe_group_open(&group, twice, 0), EINVAL);
    REFUSED(rpipe_group_open(&group, twice, SIZE_MAX), EINVAL);
    assert(!rp && !many && !group);
}

static void in_a_pipe(rpipe_t rp)
{
    static const size_t aligns[] = {0, 3, 24, 8192, SIZE_MAX, SIZE_MAX / 2 + 1};
    static const int numbers[] = {0, -1, 32768, 65536, 65537, INT_MIN, INT_MAX};
    struct rpipe_stats stats;
    raddr_t addr, block;
    if (rank == 1) {
        /* The reader's end has no block, and has the error before it waits. */
        stats.size = sizeof(stats) - 1;
        REFUSED(rpipe_get_stats(rp, &stats), EINVAL);
        REFUSED(rpipe_get_stats(rp, NULL), EINVAL);
        REFUSED(rread_into(rp, NULL, 8), EINVAL);
        REFUSED(rread_timed(rp, NULL, 8, RPIPE_FOREVER), EINVAL);
        REFUSED(rwait(NULL, 1, RPIPE_FOREVER), EINVAL);
        REFUSED(rwait(&rp, SIZE_MAX, RPIPE_FOREVER), EINVAL);
        REFUSED(rpipe_on_device(rp, NULL), EINVAL);
        REFUSED(rwrite_from(rp, bytes, 8), EINVAL);
        for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++)
            REFUSED(rhandle(rp, numbers[n], NULL, NULL), EINVAL);
        assert(rread_timed(rp, &addr, 0, INT64_MAX) == 0 && rlength(addr) == 0 && rmem(rp, addr) != NULL && rfree(addr) == 0);
        return;
    }
    for (size_t n = 0; n < sizeof(aligns) / sizeof(aligns[0]); n++)
        NONE(rmalloc_aligned(rp, 8, aligns[n]), RADDR_NULL, EINVAL);
    assert((block = rmalloc_timed(rp, 40, INT64_MAX)) != RADDR_NULL);
    NONE(rmalloc(rp, SIZE_MAX), RADDR_NULL, EMSGSIZE);
    NONE(rmalloc(rp, (size_t)UINT_MAX + 1), RADDR_NULL, EMSGSIZE);
    NONE(rmalloc_aligned(rp, SIZE_MAX, 4096), RADDR_NULL, EMSGSIZE);
    NONE(rmalloc_timed(rp, SIZE_MAX - 4095, 0), RADDR_NULL, EMSGSIZE);
    REFUSED(rwrite_from(rp, bytes, SIZE_MAX), EMSGSIZE);
    REFUSED(rwrite_from(rp, NULL, 1), EINVAL);
    REFUSED(rwrite_part(rp, block, SIZE_MAX), EMSGSIZE);
    REFUSED(rwrite_part(rp, block, 41), EMSGSIZE);
    for (size_t n = 0; n < sizeof(numbers) / sizeof(numbers[0]); n++)
        REFUSED(rwrite_am(rp, block, numbers[n]), EINVAL);
    /* Each bit of an address counts. */
    for (int bit = 0; bit < 64; bit++) {
        raddr_t wrong = block ^ (raddr_t)1 << bit;
        assert(rmem(rp, wrong) == NULL && (errno == ESTALE || errno == EINVAL));
        assert(rwrite(rp, wrong) == -errno && (errno == ESTALE || errno == EINVAL));
        assert(rfree(wrong) == -errno && (errno == ESTALE || errno == EINVAL));
        assert(rlength(wrong) == -1);
    }
    REFUSED(rfree(0), ESTALE);
    REFUSED(rfree(UINT64_MAX), ESTALE);
    NONE(rlength(UINT64_MAX), -1, ESTALE);
    REFUSED(rpipe_set_policy(rp, 0), EINVAL);
    REFUSED(rpipe_set_policy(rp, UINT_MAX), EINVAL);
    REFUSED(rread(rp, addr, SIZE_MAX), EINVAL);
    REFUSED(rpeek(rp), EINVAL);
    REFUSED(rpipe_arm(rp), EINVAL);
    assert(rlength(block) == 40 && rfree(block) == 0);
    stats.size = sizeof(stats);
    assert(rpipe_get_stats(rp, &stats) == 0 && stats.used == 0 && stats.written == 0);
    /* A message of no bytes is one. */
    assert((addr = rmalloc(rp, 0)) != RADDR_NULL && rlength(addr) == 0 && rmem(rp, addr) != NULL && rwrite(rp, addr) == 0);
    assert(rflush(rp, LIMIT) == 0);
}

/* What is wrong is reported before the peer has begun: it waits for this one. */
static void refused_at_once(rpipe_t go)
{
    rpipe_t rp;
    raddr_t addr;
    if (rank == 0) {
        assert(rpipe(rp, 1, 1, 64, HD_PIPE) == 0);
        NONE(rmalloc_aligned(rp, 8, 3), RADDR_NULL, EINVAL);
        NONE(rmalloc(rp, 65), RADDR_NULL, EMSGSIZE);
        NONE(rmalloc(rp, SIZE_MAX), RADDR_NULL, EMSGSIZE);
        assert(rwrite_from(go, bytes, 8) == 0);
        assert((addr = rmalloc(rp, 8)) != RADDR_NULL && rwrite(rp, addr) == 0);
        assert(rflush(rp, LIMIT) == 0 && rpipe_close(rp) == 0);
        return;
    }
    assert(rread(go, addr, 8) == 0 && rfree(addr) == 0);
    assert(rpipe(rp, 0, 0, 64, HD_PIPE) == 0);
    /* Looks alone find the message, and then that there is no other. */
    ptrdiff_t next;
    while ((next = rpeek(rp)) == -EAGAIN)
        ;
    assert(next == 8 && rread(rp, addr, 8) == 0 && rfree(addr) == 0);
    while ((next = rpeek(rp)) == -EAGAIN)
        ;
    assert(next == -EPIPE && errno == EPIPE && rpipe_close(rp) == 0);
}

static void groups(void)
{
    rpipe_group_t group, closed;
    struct rpipe_neighbor side;
    memset(&side, 0, sizeof(side));
    assert(rpipe_group_open(&closed, NULL, 0) == 0 && rpipe_group_close(closed) == 0);
    assert(rpipe_group_open(&group, NULL, 0) == 0);
    no_others(NULL, closed, NULL, NULL);
    REFUSED(rpipe_bcast(group, -1, bytes, 8), EINVAL);
    REFUSED(rpipe_bcast(group, 2, bytes, 8), EINVAL);
    REFUSED(rpipe_bcast(group, 0, NULL, 8), EINVAL);
    REFUSED(rpipe_bcast(group, 0, bytes, SIZE_MAX), EINVAL);
    REFUSED(rpipe_neighbor_exchange(group, NULL, 1), EINVAL);
    REFUSED(rpipe_neighbor_exchange(group, NULL, SIZE_MAX), EINVAL);
    side.rank = 7;
    REFUSED(rpipe_neighbor_exchange(group, &side, 1), EINVAL);
    side.rank = 1 - rank;
    side.send_size = 1;
    REFUSED(rpipe_neighbor_exchange(group, &side, 1), EINVAL);
    side.send_size = SIZE_MAX;
    side.send = bytes;
    REFUSED(rpipe_neighbor_exchange(group, &side, 1), EINVAL);
    /* None of that has ended the group. */
    side.send_size = 0;
    assert(rpipe_bcast(group, 0, NULL, 0) == 0 && rpipe_neighbor_exchange(group, NULL, 0) == 0);
    assert(rpipe_neighbor_exchange(group, &side, 1) == 0 && side.received == 0);
    assert(rpipe_group_close(group) == 0);
    no_others(NULL, group, NULL, NULL);
}

static void lending(void)
{
    rlent_t lent, closed;
    rborrowed_t far, given_back;
    rborrow_addr_t block;
    struct rborrow_stats stats;
    REFUSED(rlend(NULL, 1 - rank, 64, 0), EINVAL);
    REFUSED(rborrow(NULL, 1 - rank, 0, 0), EINVAL);
    REFUSED(rborrow(&far, 1 - rank, UINT_MAX, 0), EINVAL);
    REFUSED(rborrow(&far, 1 - rank, RPIPE_PULL, 0), EINVAL);
    if (rank == 0) {
        assert(rlend(&closed, 1, 1, LIMIT) == 0);
        assert(rlend_wait(closed, LIMIT) == 0 && rlend_close(closed) == 0);
        assert(rlend(&lent, 1, 4096, LIMIT) == 0);
        no_others(NULL, NULL, closed, NULL);
        assert(rlend_wait(lent, LIMIT) == 0 && rlend_close(lent) == 0);
        return;
    }
    assert(rborrow(&given_back, 0, 0, LIMIT) == 0 && rborrow_close(given_back) == 0);
    assert(rborrow(&far, 0, RPIPE_FIRST_FIT, LIMIT) == 0);
    no_others(NULL, NULL, NULL, given_back);
    NONE(rborrow_malloc(far, SIZE_MAX), RADDR_NULL, EMSGSIZE);
    NONE(rborrow_malloc(far, 4097), RADDR_NULL, EMSGSIZE);
    NONE(rborrow_malloc_aligned(far, 8, 0), RADDR_NULL, EINVAL);
    NONE(rborrow_malloc_aligned(far, 8, 8192), RADDR_NULL, EINVAL);
    assert((block = rborrow_malloc_aligned(far, 40, 4096)) != RADDR_NULL && rborrow_length(far, block) == 40);
    REFUSED(rborrow_write(far, block, SIZE_MAX, bytes, 1, 0), EMSGSIZE);
    REFUSED(rborrow_write(far, block, 1, bytes, SIZE_MAX / 2, 0), EMSGSIZE);
    REFUSED(rborrow_write(far, block, 1, bytes, SIZE_MAX, 0), EINVAL);
    REFUSED(rborrow_read(far, block, 41, bytes, 0, 0), EMSGSIZE);
    REFUSED(rborrow_read(far, block, 1, bytes, 40, 0), EMSGSIZE);
    REFUSED(rborrow_read(far, block, 0, NULL, 1, 0), EINVAL);
    REFUSED(rborrow_write(far, 0, 0, bytes, 1, 0), ESTALE);
    REFUSED(rborrow_free(far, UINT64_MAX), ESTALE);
    for (int bit = 0; bit < 64; bit++) {
        REFUSED(rborrow_free(far, block ^ (rborrow_addr_t)1 << bit), ESTALE);
        NONE(rborrow_length(far, block ^ (rborrow_addr_t)1 << bit), -1, ESTALE);
        REFUSED(rborrow_attach(far, block ^ (rborrow_addr_t)1 << bit, 1), ESTALE);
        REFUSED(rborrow_atomic(far, block ^ (rborrow_addr_t)1 << bit, 0, RPIPE_INT64 | RPIPE_SUM, 1, 0, NULL, 0), ESTALE);
    }
    assert(rborrow_write(far, block, 40, NULL, 0, LIMIT) == 0 && rborrow_read(far, block, 0, bytes, 40, LIMIT) == 0);
    assert(rborrow_free(far, block) == 0);
    REFUSED(rborrow_free(far, block), ESTALE);
    NONE(rborrow_mem(far, block), NULL, ESTALE);
    stats.size = 8;
    REFUSED(rborrow_get_stats(far, &stats), EINVAL);
    REFUSED(rborrow_get_stats(far, NULL), EINVAL);
    stats.size = sizeof(stats);
    assert(rborrow_get_stats(far, &stats) == 0 && stats.used == 0 && stats.heap == 4096);
    assert(rborrow_close(far) == 0);
}

static void many(void)
{
    rpipe_many_t all, closed;
    rpipe_t rp, of;
    raddr_t addr = 7;
    if (rank == 0) {
        assert(rpipe(rp, 1, 1, 8, HD_PIPE) == 0 && rpipe_close(rp) == 0);
        assert(rpipe(rp, 1, 1, 8, HD_PIPE) == 0 && rwrite_from(rp, bytes, 8) == 0 && rpipe_close(rp) == 0);
        return;
    }
    struct rpipe_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.size = sizeof(attr);
    attr.flags = HD_PIPE;
    attr.width = 8;
    assert(rpipe_many_open(&closed, NULL, 0, &attr) == 0 && rpipe_many_close(closed) == 0);
    assert(rpipe_many_open(&all, NULL, 0, &attr) == 0);
    no_others(closed, NULL, NULL, NULL);
    NONE(rpipe_many_pipe(all, -1), NULL, EINVAL);
    NONE(rpipe_many_pipe(all, 1), NULL, EINVAL);
    NONE(rpipe_many_pipe(all, INT_MIN), NULL, EINVAL);
    assert((of = rpipe_many_pipe(all, 0)) != NULL);
    REFUSED(rpipe_close(of), EINVAL);
    REFUSED(rpipe_many_read(all, NULL, 8, NULL, NULL, RPIPE_FOREVER), EINVAL);
    REFUSED(rpipe_many_read(all, &addr, 7, NULL, NULL, LIMIT), EMSGSIZE);
    assert(addr == 7 && rpipe_many_read(all, &addr, SIZE_MAX, NULL, NULL, LIMIT) == 0 && rfree(addr) == 0);
    assert(rpipe_many_close(all) == 0);
    no_pipe(of);
}

static void *elsewhere(void *rp)
{
    no_pipe((rpipe_t)rp);
    no_pipe(NULL);
    assert(rcount() == 2);
    return NULL;
}

int main(void)
{
    rpipe_t go = NULL, rp = NULL;
    pthread_t thread;
    struct rinit_attr attr = {0, NULL};
    /* A call that waits for what never comes. */
    alarm(300);
    assert(rerror() != NULL);
    no_job();
    REFUSED(rinit(&rank, &attr), EINVAL);
    attr.size = sizeof(attr);
    attr.backend = "\xff\xfe";
    REFUSED(rinit(&rank, &attr), EINVAL);
    attr.backend = "none:such";
    REFUSED(rinit(&rank, &attr), EOPNOTSUPP);
    assert(rank == -1 && rinit(&rank, NULL) == 0);
    REFUSED(rinit(&rank, NULL), EINVAL);
    no_pipe(NULL);
    no_others(NULL, NULL, NULL, NULL);
    opened_wrongly();
    assert(rpipe(go, 1 - rank, rank == 0, SIZE_MAX, HD_PIPE) == 0);
    in_a_pipe(go);
    refused_at_once(go);
    groups();
    lending();
    many();
    assert(rpipe(rp, 1 - rank, rank, 8, HD_PIPE) == 0 && rpipe_close(rp) == 0);
    no_pipe(rp);
    assert(pthread_create(&thread, NULL, elsewhere, rp) == 0 && pthread_join(thread, NULL) == 0);
    assert(rfinalize() == 0);
    no_pipe(go);
    no_job();
    printf("rank %d: ok\n", rank);
    return 0;
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Every function of strait_rpipe.h, between two processes; what is wrong is refused, with errno and words. Also compiled as C++. */
#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <strait_rpipe.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define LIMIT (60 * SECOND)

static void refused(int code, int expected)
{
    if (code != -expected || errno != expected || strlen(rerror()) < 10) {
        printf("%d and errno %d instead of %d: %s\n", code, errno, expected, rerror());
        assert(!"refused otherwise");
    }
}

struct sum {
    long value;
    int calls;
};

static void add(void *arg, rpipe_t rp, void *bytes, size_t size)
{
    struct sum *sum = (struct sum *)arg;
    long value;
    assert(size == sizeof(value) || size == 200);
    memcpy(&value, bytes, sizeof(value));
    sum->value += value;
    sum->calls++;
    /* The pipe is not locked meanwhile. */
    ptrdiff_t next = rpeek(rp);
    assert(next >= 0 || next == -EAGAIN || next == -EPIPE);
}

/* Active messages between others: each in its turn. */
static void active(rpipe_t both, int rank)
{
    struct sum sum = {0, 0};
    refused(rhandle(both, 0, add, &sum), EINVAL);
    assert(rhandle(both, 7, add, &sum) == 0);
    for (long i = 1; i <= 10; i++) {
        raddr_t addr = rmalloc(both, i == 5 ? 200 : sizeof(i));
        memcpy(rmem(both, addr), &i, sizeof(i));
        if (i == 10) {
            assert(rwrite(both, addr) == 0);
        } else {
            refused(rwrite_am(both, addr, 40000), EINVAL);
            assert(rwrite_am(both, addr, i == 9 && rank == 0 ? 8 : 7) == 0);
        }
    }
    raddr_t last = RADDR_NULL;
    if (rank == 1) {
        refused(rread(both, last, sizeof(long)), EINVAL);
        assert(sum.calls == 8 && sum.value == 36);
    }
    assert(rread(both, last, sizeof(long)) == 0 && *(long *)rmem(both, last) == 10 && rfree(last) == 0);
    assert(rank == 1 || (sum.calls == 9 && sum.value == 45));
}

static void writer(rpipe_t rp)
{
    raddr_t addr = rmalloc_aligned(rp, 100, 64);
    assert(addr != RADDR_NULL && (uintptr_t)rmem(rp, addr) % 64 == 0 && rlength(addr) == 100);
    memset(rmem(rp, addr), 'a', 100);
    assert(rwrite_part(rp, addr, 50) == 0);
    refused(rwrite(rp, addr), ESTALE);
    assert(rmem(rp, addr) == NULL && errno == ESTALE);
    assert(rmalloc(rp, 257) == RADDR_NULL && errno == EMSGSIZE);
    addr = rmalloc_timed(rp, 8, 0);
    assert(rfree(addr) == 0);
    refused(rfree(addr), ESTALE);
    assert(rlength(addr) == -1);
    assert(rpipe_set_policy(rp, RPIPE_BEST_FIT) == 0);
    refused(rpipe_set_policy(rp, RPIPE_EAGER), EINVAL);
    /* Each allocation learns of what the reader has freed. */
    struct rpipe_stats stats;
    stats.size = sizeof(stats);
    do {
        addr = rmalloc(rp, 8);
        assert(addr != RADDR_NULL && rfree(addr) == 0 && rpipe_get_stats(rp, &stats) == 0);
    } while (stats.used != 0);
    /* A heap that is full of what is not sent. */
    raddr_t all[4];
    for (int i = 0; i < 4; i++)
        assert((all[i] = rmalloc_timed(rp, 256, LIMIT)) != RADDR_NULL);
    assert(rmalloc(rp, 1) == RADDR_NULL && errno == ENOBUFS);
    assert(rpipe_get_stats(rp, &stats) == 0);
    assert(stats.heap == 1024 && stats.used == 1024 && stats.free == 0 && stats.written == 1 && stats.syncs == 1);
    assert(stats.in_slot == 40 && stats.injected <= 4096 && strlen(stats.injected_why) > 3);
    assert(strcmp(stats.policy, "best-fit") == 0 && strcmp(stats.sync, "immediate") == 0 && stats.flag_mode[0] && stats.path[0]);
    printf("flag mode %s (%s), path %s (%s)\n", stats.flag_mode, stats.flag_why, stats.path, stats.path_why);
    printf("injected %llu (%s)\n", (unsigned long long)stats.injected, stats.injected_why);
    for (int i = 0; i < 4; i++)
        assert(rwrite(rp, all[i]) == 0);
    assert(rflush(rp, LIMIT) == 0);
}

static void reader(rpipe_t rp)
{
    raddr_t addr = RADDR_NULL;
    assert(rmalloc(rp, 1) == RADDR_NULL && errno == EINVAL);
    assert(rwait(&rp, 1, LIMIT) == 0 && rpeek(rp) == 50);
    assert(rwait(&rp, 0, RPIPE_FOREVER) == -EINVAL);
    refused(rread(rp, addr, 49), EMSGSIZE);
    assert(rread(rp, addr, 50) == 0 && rlength(addr) == 50);
    assert(memchr(rmem(rp, addr), 'a', 50) == rmem(rp, addr));
    assert(rfree(addr) == 0);
    refused(rfree(addr), ESTALE);
    refused(rfree(12345), ESTALE);
    for (int i = 0; i < 4; i++) {
        struct pollfd p = {rpipe_fd(), POLLIN, 0};
        while (rpipe_arm(rp) == 0)
            poll(&p, 1, 1000);
        assert(rread_timed(rp, &addr, 256, LIMIT) == 0 && rlength(addr) == 256 && rfree(addr) == 0);
    }
}

/* R, S, ...: what the kernel says of a process. */
static char state_of(int process)
{
    char name[64], state = 0;
    snprintf(name, sizeof(name), "/proc/%d/stat", process);
    FILE *file = fopen(name, "r");
    assert(file != NULL && fscanf(file, "%*d %*s %c", &state) == 1 && fclose(file) == 0);
    return state;
}

/* A process that waits sleeps: rank 1 writes once rank 0 does, which waits for that alone. */
static void idle(rpipe_t both, int rank)
{
    raddr_t addr = RADDR_NULL;
    int process = getpid(), naps = 0;
    if (rank == 0) {
        assert((addr = rmalloc(both, sizeof(process))) != RADDR_NULL);
        *(int *)rmem(both, addr) = process;
        assert(rwrite(both, addr) == 0);
        assert(rwait(&both, 1, LIMIT) == 0 && rread(both, addr, 1) == 0 && rfree(addr) == 0);
    } else {
        assert(rread(both, addr, sizeof(process)) == 0);
        process = *(int *)rmem(both, addr);
        assert(rfree(addr) == 0);
        assert(rwait(&both, 1, SECOND / 100) == -EAGAIN && rwait(&both, 1, 0) == -EAGAIN);
        for (; state_of(process) != 'S'; poll(NULL, 0, 1))
            assert(naps++ < 60000);
        assert((addr = rmalloc(both, 1)) != RADDR_NULL && rwrite(both, addr) == 0);
    }
}

int main(void)
{
    int rank = -1;
    rpipe_t rp = NULL, both = NULL;
    refused(rfinalize(), EINVAL);
    assert(rinit(&rank, NULL) == 0);
    refused(rinit(NULL, NULL), EINVAL);
    assert(rcount() == 2 && (rank == 0 || rank == 1));
    refused(rpipe(rp, 2, 0, 0, HD_PIPE), EINVAL);
    refused(rpipe(rp, 1 - rank, 0, 0, 0), EINVAL);
    struct rpipe_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.size = sizeof(attr);
    attr.iswriter = rank == 0;
    attr.flags = HD_PIPE | RPIPE_IMMEDIATE;
    attr.width = 256;
    attr.heap = 1024;
    assert(rpipe_open_attr(&rp, 1 - rank, &attr) == 0);
    assert(rpipe(both, 1 - rank, 0, RPIPE_UNBOUNDED, FD_PIPE | RPIPE_EAGER) == 0);
    if (rank == 0)
        writer(rp);
    else
        reader(rp);
    raddr_t addr = rmalloc(both, 4), other = RADDR_NULL;
    memcpy(rmem(both, addr), &rank, 4);
    assert(rmem(rp, addr) == NULL && errno == ESTALE);
    assert(rwrite(both, addr) == 0 && rread(both, other, 4) == 0);
    assert(*(int *)rmem(both, other) == 1 - rank && rfree(other) == 0);
    active(both, rank);
    idle(both, rank);
    assert(rpipe_close(rp) == 0);
    refused(rpipe_close(rp), EINVAL);
    assert(rmalloc(rp, 1) == RADDR_NULL && errno == EINVAL);
    assert(rfinalize() == 0);
    refused(rpipe(rp, 0, 0, 0, HD_PIPE), EINVAL);
    printf("rank %d: ok\n", rank);
    return 0;
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Rank 1 stops (SIGSTOP) at each step of what two processes do together: meanwhile each call of rank 0 that has a time ends, and nothing is lost once rank 1
 * goes on. */
#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <strait_rpipe.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define LIMIT (60 * SECOND)
#define SHORT (SECOND / 100)

enum { HEAP = 4096, SLOTS = 4, LONG = 1000 };

static int rank, other;
static rpipe_t out, in;

/* Between two steps, both in calls. */
static void meet(void)
{
    raddr_t addr = RADDR_NULL;
    assert(rwrite_from(out, "meet", 4) == 0 && rflush(out, LIMIT) == 0);
    assert(rread_timed(in, &addr, 4, LIMIT) == 0 && rfree(addr) == 0);
}

/* Rank 1 stops, and rank 0 sees that. */
static void stop(void)
{
    char name[64], state = 0;
    int turns = 0;
    if (rank == 1) {
        raise(SIGSTOP);
        return;
    }
    snprintf(name, sizeof(name), "/proc/%d/stat", other);
    do {
        FILE *file = fopen(name, "r");
        assert(file && fscanf(file, "%*d %*s %c", &state) == 1 && fclose(file) == 0);
        assert(turns++ < 60000);
        poll(NULL, 0, state == 'T' ? 0 : 1);
    } while (state != 'T');
}

static void go_on(void)
{
    if (rank == 0)
        assert(kill(other, SIGCONT) == 0);
}

static int is_one(int code, int fault)
{
    return code == 0 || code == -fault;
}

/* A peer that has not opened its end, or has opened it and is in no call. */
static void a_writer(int opened, int pull)
{
    struct rpipe_attr attr;
    rpipe_t rp = NULL;
    raddr_t addr;
    memset(&attr, 0, sizeof(attr));
    attr.size = sizeof(attr);
    attr.iswriter = rank == 0;
    attr.flags = HD_PIPE | RPIPE_EAGER | (pull ? RPIPE_PULL : 0);
    attr.heap = HEAP;
    attr.slots = SLOTS;
    if (rank == 1 && opened)
        assert(rpipe_open_attr(&rp, 0, &attr) == 0);
    meet();
    stop();
    int written = 0;
    if (rank == 0) {
        assert(rpipe_open_attr(&rp, 1, &attr) == 0);
        for (int n = 0; n < 2 * SLOTS; n++) {
            addr = rmalloc_timed(rp, LONG, n % 2 ? 0 : SHORT);
            if (addr == RADDR_NULL) {
                assert(errno == EAGAIN || errno == ENOBUFS);
                continue;
            }
            memset(rmem(rp, addr), 'a' + written, LONG);
            int code = rwrite_timed(rp, addr, SHORT);
            assert(is_one(code, EAGAIN));
            if (code == 0)
                written++;
            else
                assert(rfree(addr) == 0);
        }
        assert(written <= SLOTS && is_one(rflush(rp, SHORT), EAGAIN));
        go_on();
        for (; written < 3 * SLOTS; written++) {
            assert((addr = rmalloc_timed(rp, LONG, LIMIT)) != RADDR_NULL);
            memset(rmem(rp, addr), 'a' + written, LONG);
            assert(rwrite_timed(rp, addr, LIMIT) == 0);
        }
        assert(rflush(rp, LIMIT) == 0);
    } else {
        if (!opened)
            assert(rpipe_open_attr(&rp, 0, &attr) == 0);
        for (int n = 0; n < 3 * SLOTS; n++) {
            assert(rread_timed(rp, &addr, LONG, LIMIT) == 0 && rlength(addr) == LONG);
            for (int at = 0; at < LONG; at++)
                assert(((volatile char *)rmem(rp, addr))[at] == 'a' + n);
            assert(rfree(addr) == 0);
        }
    }
    meet();
    assert(rpipe_close(rp) == 0);
}

/* A writer that stops with a block that it has allocated, and behind one that it has written. */
static void a_reader(int pull, int many)
{
    rpipe_t rp = NULL, of;
    rpipe_many_t all = NULL;
    raddr_t addr, block = RADDR_NULL;
    int peer = 1, source;
    if (rank == 1) {
        assert(rpipe(rp, 0, 1, 0, HD_PIPE | (pull ? RPIPE_PULL : 0)) == 0);
        assert(rwrite_from(rp, "first", 5) == 0 && rflush(rp, LIMIT) == 0);
        assert((block = rmalloc(rp, LONG)) != RADDR_NULL);
        memset(rmem(rp, block), 'x', LONG);
    } else if (many) {
        assert(rpipe_many_open(&all, &peer, 1, NULL) == 0);
        assert(rpipe_many_read(all, &addr, 5, &of, &source, LIMIT) == 0 && source == 1 && rfree(addr) == 0);
    } else {
        assert(rpipe(rp, 1, 0, 0, HD_PIPE | (pull ? RPIPE_PULL : 0)) == 0);
        assert(rread_timed(rp, &addr, 5, LIMIT) == 0 && rfree(addr) == 0);
    }
    meet();
    stop();
    if (rank == 0) {
        for (int n = 0; n < 3; n++) {
            if (many) {
                assert(rpipe_many_read(all, &addr, LONG, NULL, NULL, n ? SHORT : 0) == -EAGAIN);
            } else {
                assert(rread_timed(rp, &addr, LONG, n ? SHORT : 0) == -EAGAIN);
                assert(rpeek(rp) == -EAGAIN && rwait(&rp, 1, SHORT) == -EAGAIN);
            }
        }
        go_on();
        if (many)
            assert(rpipe_many_read(all, &addr, LONG, &rp, NULL, LIMIT) == 0);
        else
            assert(rread_timed(rp, &addr, LONG, LIMIT) == 0);
        assert(*(char *)rmem(rp, addr) == 'x' && rfree(addr) == 0);
    } else {
        assert(rwrite(rp, block) == 0 && rflush(rp, LIMIT) == 0);
    }
    meet();
    assert((all ? rpipe_many_close(all) : rpipe_close(rp)) == 0);
}

static void a_group(int used)
{
    static char bytes[200000];
    rpipe_group_t group;
    assert(rpipe_group_open(&group, NULL, 0) == 0);
    if (used)
        assert(rpipe_bcast(group, 0, bytes, sizeof(bytes)) == 0);
    meet();
    stop();
    if (rank == 0) {
        assert(rpipe_bcast_timed(group, 1, bytes, sizeof(bytes), SHORT) == -ETIMEDOUT);
        go_on();
    } else {
        /* A root may be done before it has the error. */
        int code = rpipe_bcast_timed(group, 1, bytes, sizeof(bytes), LIMIT);
        assert(is_one(code, EPIPE));
    }
    assert(rpipe_group_close(group) == 0);
    meet();
}

/* Rank 1 has borrowed, and stops; and then it has lent. */
static void a_borrower_and_a_lender(void)
{
    rlent_t lent = NULL;
    rborrowed_t far = NULL;
    rborrow_addr_t block;
    static char bytes[3000], back[3000];
    meet();
    stop();
    if (rank == 0) {
        assert(rlend(&lent, 1, 1 << 16, SHORT) == -EAGAIN);
        assert(rborrow(&far, 1, 0, SHORT) == -EAGAIN);
        go_on();
    } else {
        /* What was offered meanwhile may be borrowed before it is heard that it was given up. */
        while (rborrow(&far, 0, 0, SHORT) == 0)
            assert(rborrow_close(far) == 0);
    }
    meet();
    if (rank == 0)
        assert(rlend(&lent, 1, 1 << 16, LIMIT) == 0);
    else
        assert(rborrow(&far, 0, 0, LIMIT) == 0);
    meet();
    stop();
    if (rank == 0) {
        assert(rlend_wait(lent, SHORT) == -EAGAIN);
        go_on();
        assert(rlend_wait(lent, LIMIT) == 0 && rlend_close(lent) == 0);
        assert(rborrow(&far, 1, 0, LIMIT) == 0);
    } else {
        assert(rborrow_close(far) == 0);
        assert(rlend(&lent, 0, 1 << 16, LIMIT) == 0);
    }
    meet();
    stop();
    if (rank == 0) {
        assert((block = rborrow_malloc(far, sizeof(bytes))) != RADDR_NULL);
        memset(bytes, 'l', sizeof(bytes));
        int written = rborrow_write(far, block, 0, bytes, sizeof(bytes), SHORT);
        assert(is_one(written, EAGAIN));
        assert(is_one(rborrow_read(far, block, 0, back, sizeof(back), SHORT), EAGAIN));
        go_on();
        assert(rborrow_write(far, block, 0, bytes, sizeof(bytes), LIMIT) == 0);
        assert(rborrow_read(far, block, 0, back, sizeof(back), LIMIT) == 0 && memcmp(bytes, back, sizeof(back)) == 0);
        assert(rborrow_close(far) == 0);
    } else {
        assert(rlend_wait(lent, LIMIT) == 0 && rlend_close(lent) == 0);
    }
    meet();
}

int main(void)
{
    int mine = getpid();
    raddr_t addr = RADDR_NULL;
    alarm(300);
    assert(rinit(&rank, NULL) == 0 && rcount() == 2);
    assert(rpipe(out, 1 - rank, 1, 0, HD_PIPE) == 0 && rpipe(in, 1 - rank, 0, 0, HD_PIPE) == 0);
    assert(rwrite_from(out, &mine, sizeof(mine)) == 0 && rflush(out, LIMIT) == 0);
    assert(rread_timed(in, &addr, sizeof(other), LIMIT) == 0);
    memcpy(&other, rmem(in, addr), sizeof(other));
    assert(rfree(addr) == 0);
    for (int n = 0; n < 4; n++) {
        a_writer(n & 1, n & 2);
        a_reader(n & 1, n & 2);
    }
    a_group(0);
    a_group(1);
    a_borrower_and_a_lender();
    assert(rpipe_close(out) == 0 && rpipe_close(in) == 0);
    assert(rfinalize() == 0);
    printf("rank %d: ok\n", rank);
    return 0;
}

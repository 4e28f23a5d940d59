/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The last rank lends one memory to all others, and makes no call until they have done their work: they write and read the same blocks, and count in
 * the same words. Arguments: the number of rounds; a file, which is not there yet. Also compiled as C++. */
#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strait_rpipe.h>
#include <unistd.h>

#define LIMIT 60000000000LL
#define ADD64 (RPIPE_UINT64 | RPIPE_SUM)
#define ADD32 (RPIPE_INT32 | RPIPE_SUM)
#define PART 5000
/* Words of the block of counters. */
enum { COUNT = 0, NARROW = 8, BESIDE = 12, SWAPPED = 16, FLAGS = 24, MASK = 32, LOCK = 40, GUARDED = 48, BY_MEMORY = 56, STORM = 64, WORDS = 72 };

static int rank, borrowers, rounds = 41;
static char done[4096];

static void refused(int code, int expected)
{
    if (code != -expected || errno != expected || strlen(rerror()) < 10) {
        printf("%d and errno %d instead of %d: %s\n", code, errno, expected, rerror());
        assert(!"refused otherwise");
    }
}

static void lender(void)
{
    int list[64], twice[2] = {0, 0}, self = rank, absent = rank + 1;
    rlent_t lent = NULL, other = NULL;
    refused(rlend_many(NULL, NULL, 0, 4096, LIMIT), EINVAL);
    refused(rlend_many(&lent, twice, 2, 4096, LIMIT), EINVAL);
    refused(rlend_many(&lent, twice, 0, 4096, LIMIT), EINVAL);
    refused(rlend_many(&lent, &self, 1, 4096, LIMIT), EINVAL);
    refused(rlend_many(&lent, &absent, 1, 4096, LIMIT), EINVAL);
    refused(rlend_many(&lent, twice, (size_t)-1, 4096, LIMIT), EINVAL);
    refused(rlend_many(&lent, NULL, 0, 0, LIMIT), EINVAL);
    assert(lent == NULL);
    /* The last borrower has the book of the one, the first that of the other. */
    for (int n = 0; n < borrowers; n++)
        list[n] = borrowers - 1 - n;
    assert(rlend_many(&lent, list, (size_t)borrowers, 1 << 20, LIMIT) == 0);
    assert(rlend_many(&other, NULL, 0, 4096, LIMIT) == 0);
    while (access(done, F_OK) != 0)
        usleep(1000);
    assert(rlend_wait(lent, LIMIT) == 0);
    refused(rlend_wait(other, 1000000), EAGAIN);
    assert(rlend_close(lent) == 0 && rlend_close(other) == 0);
    refused(rlend_wait(lent, 0), EINVAL);
}

static uint64_t atomic(rborrowed_t memory, rborrow_addr_t addr, size_t offset, unsigned what, uint64_t operand, uint64_t compare)
{
    uint64_t old = 1234567;
    int code = rborrow_atomic(memory, addr, offset, what, operand, compare, &old, LIMIT);
    if (code != 0) {
        printf("rank %d: atomic %#x at %zu: %s\n", rank, what, offset, rerror());
        assert(!"an atomic operation has failed");
    }
    return old;
}

/* What the one that keeps the book says, and the others hear. */
static rborrow_addr_t passed(rpipe_group_t group, int keeper, rborrow_addr_t addr)
{
    assert(rpipe_bcast_timed(group, keeper, &addr, sizeof(addr), LIMIT) == 0);
    return addr;
}

static void contents(rborrowed_t memory, rpipe_group_t group, rborrow_addr_t block)
{
    static unsigned char mine[PART], all[64 * PART];
    struct rborrow_part parts[64];
    for (int n = 0; n < PART; n++)
        mine[n] = (unsigned char)(rank * 31 + n * 7 + 1);
    assert(rborrow_write(memory, block, (size_t)rank * PART, mine, PART, LIMIT) == 0);
    assert(rpipe_barrier(group, LIMIT) == 0);
    for (int of = 0; of < borrowers; of++) {
        parts[of].addr = block;
        parts[of].offset = (size_t)of * PART;
        parts[of].memory = all + of * PART;
        parts[of].size = PART;
    }
    assert(rborrow_readv(memory, parts, (size_t)borrowers, LIMIT) == 0);
    for (int of = 0; of < borrowers; of++)
        for (int n = 0; n < PART; n++)
            assert(all[of * PART + n] == (unsigned char)(of * 31 + n * 7 + 1));
    assert(rpipe_barrier(group, LIMIT) == 0);
}

static void counters(rborrowed_t memory, rpipe_group_t group, rborrow_addr_t words, int is_mapped, int by_thread)
{
    const int storm = by_thread ? rounds : 30000;
    uint64_t last = 0, sum = 0, all = 0, guarded;
    for (int n = 0; n < rounds; n++) {
        uint64_t old = atomic(memory, words, COUNT, ADD64, 1, 0);
        assert(n == 0 || old > last);
        last = old;
        /* Two words of 4 bytes in one of 8: neither carries into the other. */
        atomic(memory, words, NARROW, ADD32, 0x01000000u, 0);
        atomic(memory, words, BESIDE, RPIPE_UINT32 | RPIPE_SUM, (uint64_t)-1, 0);
        /* What each has put in, and taken out, is the same together. */
        sum += (uint64_t)(rank * rounds + n + 1);
        sum -= atomic(memory, words, SWAPPED, RPIPE_INT64 | RPIPE_SWAP, (uint64_t)(rank * rounds + n + 1), 0);
        atomic(memory, words, FLAGS, RPIPE_UINT64 | RPIPE_XOR, (uint64_t)1 << rank, 0);
        if (is_mapped)
            __atomic_fetch_add((uint64_t *)rborrow_mem(memory, words) + BY_MEMORY / 8, 1, __ATOMIC_RELAXED);
        else
            assert(rborrow_atomic(memory, words, BY_MEMORY, ADD64, 1, 0, NULL, LIMIT) == 0);
    }
    /* At one time, as fast as each can. */
    assert(rpipe_barrier(group, LIMIT) == 0);
    for (int n = 0; n < storm; n++)
        assert(rborrow_atomic(memory, words, STORM, ADD64, 1, 0, NULL, LIMIT) == 0);
    atomic(memory, words, MASK, RPIPE_UINT64 | RPIPE_OR, (uint64_t)0x101 << rank, 0);
    assert(rpipe_barrier(group, LIMIT) == 0);
    atomic(memory, words, MASK, RPIPE_UINT64 | RPIPE_AND, ~((uint64_t)0x100 << rank), 0);
    /* A lock, by compare and swap; what it guards is read and written. */
    for (int n = 0; n < rounds / 4; n++) {
        while (atomic(memory, words, LOCK, RPIPE_UINT32 | RPIPE_COMPARE_SWAP, (uint64_t)rank + 1, 0) != 0)
            usleep(10);
        assert(rborrow_read(memory, words, GUARDED, &guarded, 8, LIMIT) == 0);
        guarded++;
        assert(rborrow_write(memory, words, GUARDED, &guarded, 8, LIMIT) == 0);
        assert(atomic(memory, words, LOCK, RPIPE_UINT32 | RPIPE_SWAP, 0, 0) == (uint64_t)rank + 1);
    }
    assert(rpipe_allreduce(group, &sum, &all, 1, ADD64, LIMIT) == 0);
    uint64_t total = (uint64_t)borrowers * (uint64_t)rounds;
    assert(atomic(memory, words, COUNT, ADD64, 0, 0) == total);
    assert(atomic(memory, words, NARROW, ADD32, 0, 0) == (uint32_t)(total << 24));
    assert(atomic(memory, words, BESIDE, ADD32, 0, 0) == (uint32_t)-(uint32_t)total);
    assert(atomic(memory, words, SWAPPED, ADD64, 0, 0) == all);
    assert(atomic(memory, words, FLAGS, ADD64, 0, 0) == (rounds % 2 ? ((uint64_t)1 << borrowers) - 1 : 0));
    assert(atomic(memory, words, MASK, ADD64, 0, 0) == ((uint64_t)1 << borrowers) - 1);
    assert(atomic(memory, words, BY_MEMORY, ADD64, 0, 0) == total);
    assert(atomic(memory, words, STORM, ADD64, 0, 0) == (uint64_t)borrowers * (uint64_t)storm);
    assert(rborrow_read(memory, words, GUARDED, &guarded, 8, LIMIT) == 0);
    assert(guarded == (uint64_t)borrowers * (uint64_t)(rounds / 4));
    assert(rpipe_barrier(group, LIMIT) == 0);
}

static void wrong(rborrowed_t memory, rborrowed_t other, rborrow_addr_t words)
{
    const unsigned none[] = {0, RPIPE_SUM, RPIPE_UINT64, RPIPE_DOUBLE | RPIPE_SUM, RPIPE_UINT64 | RPIPE_MIN, RPIPE_UINT64 | 160, (unsigned)-1};
    uint64_t old = 5;
    for (size_t n = 0; n < sizeof(none) / sizeof(none[0]); n++)
        refused(rborrow_atomic(memory, words, 0, none[n], 1, 0, &old, LIMIT), EINVAL);
    refused(rborrow_atomic(memory, words, 4, ADD64, 1, 0, &old, LIMIT), EINVAL);
    refused(rborrow_atomic(memory, words, 1, ADD64, 1, 0, &old, LIMIT), EINVAL);
    refused(rborrow_atomic(memory, words, 2, ADD32, 1, 0, &old, LIMIT), EINVAL);
    refused(rborrow_atomic(memory, words, WORDS, ADD64, 1, 0, &old, LIMIT), EMSGSIZE);
    refused(rborrow_atomic(memory, words, WORDS, ADD32, 1, 0, &old, LIMIT), EMSGSIZE);
    refused(rborrow_atomic(memory, words, (size_t)-8, ADD64, 1, 0, &old, LIMIT), EMSGSIZE);
    refused(rborrow_atomic(other, words, 0, ADD64, 1, 0, &old, LIMIT), ESTALE);
    refused(rborrow_atomic(memory, RADDR_NULL, 0, ADD64, 1, 0, &old, LIMIT), ESTALE);
    refused(rborrow_atomic(NULL, words, 0, ADD64, 1, 0, &old, LIMIT), EINVAL);
    refused(rborrow_attach(other, words, WORDS), ESTALE);
    refused(rborrow_attach(memory, words, 2 << 20), EMSGSIZE);
    refused(rborrow_attach(memory, words, (size_t)-1), EMSGSIZE);
    refused(rborrow_attach(NULL, words, WORDS), EINVAL);
    refused(rborrow_detach(NULL, words), EINVAL);
    refused(rborrow_detach(memory, RADDR_NULL), ESTALE);
    assert(old == 5);
}

static void borrower(void)
{
    const int keeper = borrowers - 1;
    int ranks[64];
    uint64_t value = 7;
    rpipe_group_t group;
    rborrowed_t memory = NULL, other = NULL;
    struct rborrow_stats stats;
    rborrow_addr_t words = RADDR_NULL, block = RADDR_NULL, next = RADDR_NULL;
    for (int n = 0; n < borrowers; n++)
        ranks[n] = n;
    assert(rpipe_group_open(&group, ranks, (size_t)borrowers) == 0);
    assert(rborrow(&memory, borrowers, RPIPE_FIRST_FIT, LIMIT) == 0);
    assert(rborrow(&other, borrowers, 0, LIMIT) == 0);
    memset(&stats, 0x55, sizeof(stats));
    stats.size = sizeof(stats);
    assert(rborrow_get_stats(other, &stats) == 0 && stats.keeper == 0);
    assert(rborrow_get_stats(memory, &stats) == 0 && stats.keeper == keeper && stats.heap == 1 << 20 && stats.atomics == 0);
    assert(strcmp(stats.policy, rank == keeper ? "first-fit" : "") == 0);
    /* A program that was compiled before there were the last two. */
    memset(&stats, 0x55, sizeof(stats));
    stats.size = offsetof(struct rborrow_stats, atomics);
    assert(rborrow_get_stats(memory, &stats) == 0 && stats.keeper == 0x55555555);
    if (rank == keeper) {
        words = rborrow_malloc_aligned(memory, WORDS, 64);
        block = rborrow_malloc(memory, (size_t)borrowers * PART);
        assert(words != RADDR_NULL && block != RADDR_NULL);
    } else {
        char name[32];
        snprintf(name, sizeof(name), "rank %d,", keeper);
        assert(rborrow_malloc(memory, 8) == RADDR_NULL && errno == EPERM && strstr(rerror(), name) != NULL);
    }
    words = passed(group, keeper, words);
    block = passed(group, keeper, block);
    if (rank != keeper) {
        refused(rborrow_write(memory, words, 0, &value, 8, LIMIT), ESTALE);
        refused(rborrow_detach(memory, words), ESTALE);
    }
    /* All may call it: one program, whichever rank it has. */
    assert(rborrow_attach(memory, words, WORDS) == 0);
    assert(rborrow_attach(memory, block, (size_t)borrowers * PART) == 0);
    assert(rborrow_length(memory, words) == WORDS && rborrow_length(memory, block) == (ptrdiff_t)borrowers * PART);
    if (rank != keeper)
        refused(rborrow_free(memory, words), EPERM);
    refused(rborrow_write(memory, words, WORDS - 7, &value, 8, LIMIT), EMSGSIZE);
    wrong(memory, other, words);
    stats.size = sizeof(stats);
    assert(rborrow_get_stats(memory, &stats) == 0);
    contents(memory, group, block);
    counters(memory, group, words, stats.mapped, stats.thread);
    assert(rborrow_get_stats(memory, &stats) == 0 && stats.atomics >= 5 * (uint64_t)rounds);
    if (rank == 0)
        printf("%s: %s; thread %d, mapped %d\n", stats.path, stats.path_why, stats.thread, stats.mapped);

    /* Another block at the same place: the address of the one before is stale for all. */
    if (rank == keeper) {
        assert(rborrow_free(memory, block) == 0);
        next = rborrow_malloc(memory, 100);
    }
    next = passed(group, keeper, next);
    assert(next != block && rborrow_attach(memory, next, 100) == 0);
    refused(rborrow_read(memory, block, 0, &value, 8, LIMIT), ESTALE);
    assert(rborrow_detach(memory, next) == 0);
    assert((rborrow_length(memory, next) == 100) == (rank == keeper));

    /* One that gives the memory back leaves the others. */
    assert(rpipe_barrier(group, LIMIT) == 0);
    if (rank == keeper)
        assert(rborrow_close(memory) == 0);
    assert(rpipe_barrier(group, LIMIT) == 0);
    if (rank != keeper) {
        atomic(memory, words, COUNT, ADD64, 1, 0);
        assert(rborrow_close(memory) == 0);
    }
    refused(rborrow_atomic(memory, words, COUNT, ADD64, 1, 0, NULL, LIMIT), EINVAL);
    assert(rpipe_barrier(group, LIMIT) == 0);
    /* The other memory the lender takes back from all. */
    block = passed(group, 0, rank == 0 ? rborrow_malloc(other, 8) : RADDR_NULL);
    assert(rborrow_attach(other, block, 8) == 0);
    assert(rpipe_barrier(group, LIMIT) == 0);
    if (rank == 0) {
        FILE *file = fopen(done, "w");
        assert(file != NULL && fclose(file) == 0);
    }
    int code;
    while ((code = rborrow_atomic(other, block, 0, ADD64, 1, 0, NULL, LIMIT)) == 0)
        usleep(1000);
    refused(code, EPIPE);
    assert(rpipe_group_close(group) == 0);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]);
    if (argc > 2)
        snprintf(done, sizeof(done), "%s", argv[2]);
    else
        snprintf(done, sizeof(done), "%s/worked", getenv("STRAIT_RPIPE_DIR"));
    alarm(300);
    assert(rinit(&rank, NULL) == 0);
    borrowers = rcount() - 1;
    assert(borrowers >= 2 && borrowers <= 8);
    if (rank == borrowers)
        lender();
    else
        borrower();
    assert(rfinalize() == 0);
    printf("rank %d: ok\n", rank);
    return 0;
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Rank 1 lends memory and makes no call until it is given back; rank 0 has a heap there. What is wrong is refused, with errno and words. Also
 * compiled as C++. */
#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strait_rpipe.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT 60000000000LL
#define ENTRIES 100

static void refused(int code, int expected)
{
    if (code != -expected || errno != expected || strlen(rerror()) < 10) {
        printf("%d and errno %d instead of %d: %s\n", code, errno, expected, rerror());
        assert(!"refused otherwise");
    }
}

static void in_child(rlent_t lent)
{
    rborrowed_t none = NULL;
    refused(rlend_close(lent), EINVAL);
    refused(rlend_wait(lent, 0), EINVAL);
    refused(rborrow(&none, 0, 0, 0), EINVAL);
    exit(0);
}

static void lender(void)
{
    rlent_t lent = NULL, other = NULL;
    int status;
    refused(rlend(NULL, 0, 4096, LIMIT), EINVAL);
    refused(rlend(&lent, 2, 4096, LIMIT), EINVAL);
    refused(rlend(&lent, -1, 4096, LIMIT), EINVAL);
    refused(rlend(&lent, 1, 4096, LIMIT), EINVAL);
    refused(rlend(&lent, 0, 0, LIMIT), EINVAL);
    refused(rlend(&lent, 0, (size_t)-1, LIMIT), EINVAL);
    refused(rlend_wait(NULL, 0), EINVAL);
    refused(rlend_close(NULL), EINVAL);
    assert(rlend(&lent, 0, 1 << 20, LIMIT) == 0);
    assert(rlend(&other, 0, 4096, LIMIT) == 0);
    pid_t child = fork();
    if (child == 0)
        in_child(lent);
    assert(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    /* Nothing is called here until rank 0 has done its work. */
    char name[4096];
    snprintf(name, sizeof(name), "%s/worked", getenv("STRAIT_RPIPE_DIR"));
    while (access(name, F_OK) != 0)
        usleep(1000);
    assert(rlend_wait(lent, LIMIT) == 0);
    refused(rlend_wait(other, 1000000), EAGAIN);
    assert(rlend_close(other) == 0);
    assert(rlend_close(lent) == 0);
    refused(rlend_close(lent), EINVAL);
    refused(rlend_wait(lent, 0), EINVAL);
}

static void table(rborrowed_t memory)
{
    rborrow_addr_t entry[ENTRIES];
    long value;
    for (long i = 0; i < ENTRIES; i++) {
        entry[i] = rborrow_malloc(memory, 1000);
        assert(entry[i] != RADDR_NULL && rborrow_length(memory, entry[i]) == 1000);
        assert(rborrow_write(memory, entry[i], 992, &i, sizeof(i), LIMIT) == 0);
    }
    for (long i = ENTRIES; i-- > 0;) {
        assert(rborrow_read(memory, entry[i], 992, &value, sizeof(value), LIMIT) == 0 && value == i);
        assert(rborrow_read(memory, entry[i], 0, &value, sizeof(value), LIMIT) == 0 && value == 0);
        assert(rborrow_free(memory, entry[i]) == 0);
    }
    refused(rborrow_free(memory, entry[0]), ESTALE);
    refused(rborrow_read(memory, entry[0], 0, &value, 8, LIMIT), ESTALE);
}

/* Lists: scattered to blocks, gathered from them; one part that cannot be keeps all of them from being done. */
static void lists(rborrowed_t memory)
{
    enum { PARTS = 40 };
    struct rborrow_part parts[PARTS];
    long out[PARTS], back[PARTS];
    for (long i = 0; i < PARTS; i++) {
        out[i] = 1000 + i;
        parts[i].addr = rborrow_malloc(memory, 64 + 100 * i);
        parts[i].offset = 8 * (i % 8);
        parts[i].memory = &out[i];
        parts[i].size = sizeof(out[i]);
        assert(parts[i].addr != RADDR_NULL);
    }
    assert(rborrow_writev(memory, parts, PARTS, LIMIT) == 0);
    for (long i = 0; i < PARTS; i++)
        parts[i].memory = &back[PARTS - 1 - i];
    assert(rborrow_readv(memory, parts, PARTS, LIMIT) == 0);
    for (long i = 0; i < PARTS; i++)
        assert(back[PARTS - 1 - i] == out[i]);
    parts[PARTS - 1].offset = 64 + 100 * (PARTS - 1);
    memset(back, 0, sizeof(back));
    refused(rborrow_readv(memory, parts, PARTS, LIMIT), EMSGSIZE);
    refused(rborrow_writev(memory, parts, PARTS, LIMIT), EMSGSIZE);
    for (long i = 0; i < PARTS; i++)
        assert(back[i] == 0);
    parts[PARTS - 1].offset = 0;
    parts[PARTS - 1].memory = NULL;
    refused(rborrow_writev(memory, parts, PARTS, LIMIT), EINVAL);
    refused(rborrow_writev(memory, NULL, 1, LIMIT), EINVAL);
    refused(rborrow_readv(NULL, parts, 1, LIMIT), EINVAL);
    assert(rborrow_readv(memory, NULL, 0, LIMIT) == 0);
    for (long i = 0; i < PARTS; i++) {
        long value = 0;
        assert(rborrow_read(memory, parts[i].addr, i == PARTS - 1 ? 8 * (i % 8) : parts[i].offset, &value, 8, LIMIT) == 0);
        assert(value == out[i]);
        assert(rborrow_free(memory, parts[i].addr) == 0);
    }
    refused(rborrow_readv(memory, parts, 1, LIMIT), ESTALE);
}

static void borrower(void)
{
    rborrowed_t memory = NULL, other = NULL;
    struct rborrow_stats stats;
    char bytes[100];
    refused(rborrow(NULL, 1, 0, LIMIT), EINVAL);
    refused(rborrow(&memory, 2, 0, LIMIT), EINVAL);
    refused(rborrow(&memory, 0, 0, LIMIT), EINVAL);
    refused(rborrow(&memory, 1, 1u << 30, LIMIT), EINVAL);
    refused(rborrow(&memory, 1, RPIPE_DEFERRED, LIMIT), EINVAL);
    assert(rborrow_malloc(memory, 1) == RADDR_NULL && errno == EINVAL);
    assert(rborrow(&memory, 1, RPIPE_BEST_FIT, LIMIT) == 0);
    assert(rborrow(&other, 1, 0, LIMIT) == 0);
    table(memory);
    memset(&stats, 0, sizeof(stats));
    refused(rborrow_get_stats(memory, &stats), EINVAL);
    refused(rborrow_get_stats(memory, NULL), EINVAL);
    stats.size = sizeof(stats);
    assert(rborrow_get_stats(memory, &stats) == 0);
    assert(stats.heap == 1 << 20 && stats.used == 0 && stats.largest == stats.heap && stats.fragmentation == 0);
    assert(stats.writes == ENTRIES && stats.read_bytes == 2 * ENTRIES * sizeof(long));
    assert(strcmp(stats.policy, "best-fit") == 0 && strlen(stats.path) > 3 && strlen(stats.path_why) > 3);

    rborrow_addr_t block = rborrow_malloc_aligned(memory, 100, 4096), far = rborrow_malloc(other, 100);
    assert(block != RADDR_NULL && far != RADDR_NULL && block != far);
    char *mapped = (char *)rborrow_mem(memory, block);
    if (stats.mapped) {
        assert(mapped != NULL && (size_t)mapped % 4096 == 0);
        mapped[99] = 77;
        assert(rborrow_read(memory, block, 99, bytes, 1, 0) == 0 && bytes[0] == 77);
        /* From the memory itself. */
        assert(rborrow_write(memory, block, 1, mapped, 99, 0) == 0);
    } else {
        assert(mapped == NULL && errno == EOPNOTSUPP);
    }
    uint64_t old = 9;
    assert(rborrow_atomic(memory, block, 56, RPIPE_UINT64 | RPIPE_SWAP, 8, 0, &old, LIMIT) == 0 && old == 0);
    assert(rborrow_atomic(memory, block, 56, RPIPE_UINT64 | RPIPE_COMPARE_SWAP, 3, 8, &old, LIMIT) == 0 && old == 8);
    assert(rborrow_atomic(memory, block, 56, RPIPE_UINT32 | RPIPE_SUM, 1, 0, &old, LIMIT) == 0 && old == 3);
    refused(rborrow_atomic(memory, far, 0, RPIPE_UINT64 | RPIPE_SUM, 1, 0, &old, LIMIT), ESTALE);
    refused(rborrow_atomic(memory, block, 96, RPIPE_UINT64 | RPIPE_SUM, 1, 0, &old, LIMIT), EMSGSIZE);
    assert(old == 3);
    refused(rborrow_write(memory, far, 0, bytes, 1, LIMIT), ESTALE);
    refused(rborrow_free(other, block), ESTALE);
    refused(rfree(block), ESTALE);
    refused(rborrow_write(memory, block, 50, bytes, 51, LIMIT), EMSGSIZE);
    refused(rborrow_write(memory, block, 0, NULL, 1, LIMIT), EINVAL);
    refused(rborrow_write(memory, block, 0, bytes, (size_t)-1, LIMIT), EINVAL);
    refused(rborrow_read(memory, block, (size_t)-1, bytes, 2, LIMIT), EMSGSIZE);
    refused(rborrow_read(memory, block, 0, NULL, 1, LIMIT), EINVAL);
    assert(rborrow_malloc(memory, (1 << 20) + 1) == RADDR_NULL && errno == EMSGSIZE);
    assert(rborrow_malloc(memory, 1 << 20) == RADDR_NULL && errno == ENOBUFS);
    assert(rborrow_malloc_aligned(memory, 1, 8192) == RADDR_NULL && errno == EINVAL);
    assert(rborrow_length(memory, RADDR_NULL) == -1 && errno == ESTALE);
    lists(memory);
    assert(rborrow_close(memory) == 0);
    refused(rborrow_close(memory), EINVAL);
    refused(rborrow_free(memory, block), EINVAL);

    char name[4096];
    snprintf(name, sizeof(name), "%s/worked", getenv("STRAIT_RPIPE_DIR"));
    FILE *file = fopen(name, "w");
    assert(file != NULL && fclose(file) == 0);
    /* The lender takes this one back. */
    int code;
    while ((code = rborrow_write(other, far, 0, bytes, 8, LIMIT)) == 0)
        usleep(1000);
    refused(code, EPIPE);
    assert(rborrow_malloc(other, 8) == RADDR_NULL && errno == EPIPE);
}

int main(void)
{
    int rank = -1;
    rlent_t lent = NULL;
    refused(rlend(&lent, 0, 64, 0), EINVAL);
    assert(rinit(&rank, NULL) == 0);
    if (rank == 0)
        borrower();
    else
        lender();
    assert(rfinalize() == 0);
    printf("rank %d: ok\n", rank);
    return 0;
}

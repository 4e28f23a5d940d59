/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* A work list and a histogram in memory of rank 0, which lends it to all others and sleeps: strait run -n 4 ./shared_memory */
#include <stdio.h>
#include <strait_rpipe.h>

#define SECONDS 1000000000LL
#define ADD (RPIPE_UINT64 | RPIPE_SUM)
#define ITEMS 1000
#define BINS 8

int main(void)
{
    int rank;
    uint64_t next, mine = 0, all = 0, bins[BINS];
    rlent_t lent;
    rborrowed_t far;
    rborrow_addr_t work = RADDR_NULL;
    rpipe_group_t group;
    int ranks[64], borrowers;
    if (rinit(&rank, NULL))
        goto failed;
    borrowers = rcount() - 1;
    if (borrowers < 1 || borrowers > 64) {
        fprintf(stderr, "start 2 to 65 processes\n");
        return 1;
    }
    if (rank == 0) {
        /* To all others; rank 1 keeps the book. This process has nothing more to do until they have given the memory back. */
        if (rlend_many(&lent, NULL, 0, 1 << 20, 10 * SECONDS) || rlend_wait(lent, RPIPE_FOREVER) || rlend_close(lent))
            goto failed;
        return rfinalize() != 0;
    }
    for (int n = 0; n < borrowers; n++)
        ranks[n] = n + 1;
    if (rborrow(&far, 0, RPIPE_FIRST_FIT, 10 * SECONDS) || rpipe_group_open(&group, ranks, (size_t)borrowers))
        goto failed;
    /* A block of which the first word is the next item, and the others are the histogram. All its bytes are 0. */
    if (rank == 1 && (work = rborrow_malloc(far, (1 + BINS) * 8)) == RADDR_NULL)
        goto failed;
    if (rpipe_bcast_timed(group, 1, &work, sizeof(work), 10 * SECONDS) || rborrow_attach(far, work, (1 + BINS) * 8))
        goto failed;
    for (;;) {
        if (rborrow_atomic(far, work, 0, ADD, 1, 0, &next, 10 * SECONDS))
            goto failed;
        if (next >= ITEMS)
            break;
        mine++;
        if (rborrow_atomic(far, work, 8 + next * next % BINS * 8, ADD, 1, 0, NULL, 10 * SECONDS))
            goto failed;
    }
    if (rpipe_reduce(group, 1, &mine, &all, 1, ADD, 10 * SECONDS))
        goto failed;
    if (rank == 1) {
        if (rborrow_read(far, work, 8, bins, sizeof(bins), 10 * SECONDS))
            goto failed;
        printf("%d items, each taken once, by %d processes: %d of them are 0, %d are 1, %d are 4, modulo %d\n", (int)all, borrowers, (int)bins[0],
               (int)bins[1], (int)bins[4], BINS);
    }
    return rborrow_close(far) || rpipe_group_close(group) || rfinalize();
failed:
    fprintf(stderr, "rank %d: %s\n", rank, rerror());
    return 1;
}

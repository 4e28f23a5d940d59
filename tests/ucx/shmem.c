/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * OpenSHMEM: put, get, atomics, a lock, collectives; contents are checked.  Every processing
 * element prints "shmem N: ok".
 */
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int me, n;

static void equal(long have, long want, const char *what) {
    if (have != want) {
        fprintf(stderr, "shmem %d: %s: %ld, not %ld\n", me, what, have, want);
        shmem_global_exit(1);
    }
}

static long lock, counter, total;
static long psync_reduce[SHMEM_REDUCE_SYNC_SIZE], psync_collect[SHMEM_COLLECT_SYNC_SIZE];
static long work[SHMEM_REDUCE_MIN_WRKDATA_SIZE], sum_in, sum_out, flag;

int main(void) {
    shmem_init();
    me = shmem_my_pe();
    n = shmem_n_pes();
    int next = (me + 1) % n, previous = (me + n - 1) % n;
    size_t most = 4 << 20;
    unsigned char *heap = shmem_malloc(most), *local = malloc(most);
    long *all = shmem_malloc(n * sizeof(long));
    for (int i = 0; i < SHMEM_REDUCE_SYNC_SIZE; i++) psync_reduce[i] = SHMEM_SYNC_VALUE;
    for (int i = 0; i < SHMEM_COLLECT_SYNC_SIZE; i++) psync_collect[i] = SHMEM_SYNC_VALUE;
    shmem_barrier_all();

    for (size_t size = 1; size <= most; size = size < 64 ? size * 2 : size * 4 + 3) {
        for (size_t i = 0; i < size; i++) local[i] = (unsigned char)(i * 7 + me + size);
        shmem_putmem(heap, local, size, next);
        shmem_barrier_all();
        for (size_t i = 0; i < size; i++) equal(heap[i], (unsigned char)(i * 7 + previous + size), "put");
        shmem_barrier_all();
        memset(local, 0, size);
        shmem_getmem(local, heap, size, next);
        for (size_t i = 0; i < size; i++) equal(local[i], (unsigned char)(i * 7 + me + size), "get");
        shmem_barrier_all();
    }
    for (int i = 0; i < 1000; i++) {
        shmem_long_atomic_add(&counter, 1, i % n);
        if (i % 2) (void)shmem_long_atomic_fetch_inc(&counter, i % n);
    }
    shmem_barrier_all();
    long mine = 0;
    for (int i = 0; i < 1000; i++) mine += i % n == me ? 1 + i % 2 : 0;
    equal(counter, mine * n, "atomics");
    equal(shmem_long_atomic_compare_swap(&counter, -1, 5, me), mine * n, "compare and swap");
    shmem_barrier_all();

    for (int i = 0; i < 50; i++) {
        shmem_set_lock(&lock);
        long now = shmem_long_g(&total, 0);
        shmem_long_p(&total, now + 1, 0);
        shmem_quiet();
        shmem_clear_lock(&lock);
    }
    shmem_barrier_all();
    if (me == 0) equal(total, 50L * n, "lock");

    sum_in = me + 1;
    shmem_long_sum_to_all(&sum_out, &sum_in, 1, 0, 0, n, work, psync_reduce);
    equal(sum_out, (long)n * (n + 1) / 2, "sum");
    long *one = shmem_malloc(sizeof(long));
    *one = me * 3;
    shmem_barrier_all();
    shmem_fcollect64(all, one, 1, 0, 0, n, psync_collect);
    for (int i = 0; i < n; i++) equal(all[i], i * 3, "collect");
    shmem_long_p(&flag, 7, next);
    shmem_long_wait_until(&flag, SHMEM_CMP_EQ, 7);
    shmem_barrier_all();
    printf("shmem %d: ok\n", me);
    fflush(stdout);
    shmem_finalize();
    return 0;
}

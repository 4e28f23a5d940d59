/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Rank 0 writes a number into memory of rank 1.
 *
 *    cc rpipe.c -o rpipe $(pkg-config --cflags --libs libstrait_rpipe)
 *    strait run -n 2 ./rpipe
 */
#include <stdio.h>
#include <strait_rpipe.h>

int main(void)
{
    int rank, value = 42;
    rpipe_t rp;
    raddr_t addr;
    if (rinit(&rank, NULL) || rpipe(rp, 1 - rank, rank == 0, sizeof(int), HD_PIPE)) {
        fprintf(stderr, "rpipe: %s; start two processes: strait run -n 2 ./rpipe\n", rerror());
        return 1;
    }
    if (rank == 0) {
        addr = rmalloc(rp, sizeof(int));
        *(int *)rmem(rp, addr) = value;
        rwrite(rp, addr);
    } else {
        rread(rp, addr, sizeof(int));
        value = *(int *)rmem(rp, addr);
        rfree(addr);
        printf("rank 1 has read %d\n", value);
    }
    return rfinalize() != 0;
}

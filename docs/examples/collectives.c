/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The integral of 4 / (1 + x^2) from 0 to 1, by all processes of a job: strait run -n 4 ./collectives */
#include <math.h>
#include <stdio.h>
#include <strait_rpipe.h>

#define SECONDS 1000000000LL

int main(void)
{
    int rank;
    long steps = 0;
    double part = 0, pi = 0, worst = 0;
    rpipe_group_t group;
    if (rinit(&rank, NULL) || rpipe_group_open(&group, NULL, 0)) {
        fprintf(stderr, "rpipe: %s\n", rerror());
        return 1;
    }
    /* Rank 0 chooses how many steps there are. */
    if (rank == 0)
        steps = 1000000;
    if (rpipe_bcast_timed(group, 0, &steps, sizeof(steps), 10 * SECONDS))
        goto failed;
    for (long i = rank; i < steps; i += rcount()) {
        double x = (i + 0.5) / steps;
        part += 4 / (1 + x * x) / steps;
    }
    if (rpipe_allreduce(group, &part, &pi, 1, RPIPE_DOUBLE | RPIPE_SUM, 10 * SECONDS))
        goto failed;
    double error = fabs(pi - acos(-1));
    if (rpipe_reduce(group, 0, &error, &worst, 1, RPIPE_DOUBLE | RPIPE_MAX, 10 * SECONDS) || rpipe_barrier(group, 10 * SECONDS))
        goto failed;
    if (rank == 0)
        printf("pi is %.9f, by %d processes, and no rank is off by more than %.0e\n", pi, rcount(), worst > 1e-12 ? worst : 1e-12);
    return rpipe_group_close(group) || rfinalize();
failed:
    /* Of a member that is missing rerror has the rank. The process ends, and with it the others' calls. */
    fprintf(stderr, "rank %d: %s\n", rank, rerror());
    return 1;
}

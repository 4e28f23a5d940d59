/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Two ranks that fail, end or hang in the way that is named: what `strait doctor` says of them is checked by
 * ci/suite/doctor.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <mpi.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is(const char *mode, const char *name) { return strcmp(mode, name) == 0; }

/* memfd_create(2) fails with EPERM from now on, as under the profile of a container. */
static void forbid_memfd(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        exit(77);
}

/* What is wrong before MPI begins. */
static void before(const char *mode)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK") != NULL ? getenv("OMPI_COMM_WORLD_RANK") : getenv("SLURM_PROCID");
    if (is(mode, "memfd"))
        forbid_memfd();
    if (is(mode, "keys"))
        setenv("FI_STRAIT_JOB_KEY", rank != NULL && rank[0] == '1' ? "one" : "another", 1);
    if (is(mode, "files") || is(mode, "files-hard")) {
        struct rlimit limit = {24, is(mode, "files") ? 4096 : 24};
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "ok";
    static char bytes[1 << 20];
    int rank;
    before(mode);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const int other = 1 - rank;
    if (is(mode, "tags")) {
        if (rank == 0)
            MPI_Send(bytes, 8, MPI_CHAR, other, 5, MPI_COMM_WORLD);
        else
            MPI_Recv(bytes, 8, MPI_CHAR, other, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else if (is(mode, "circle")) {
        MPI_Recv(bytes, 8, MPI_CHAR, other, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 1 && is(mode, "absent"))
            sleep(1000);
        if (rank == 1 && is(mode, "crash"))
            *(volatile int *)8 = 1;
        if (rank == 1 && is(mode, "killed"))
            raise(SIGKILL);
        void *from = is(mode, "buffer") ? (void *)64 : bytes;
        if (rank == 1)
            MPI_Send(from, 64, MPI_CHAR, other, 5, MPI_COMM_WORLD);
        else if (is(mode, "absent"))
            MPI_Send(bytes, sizeof bytes, MPI_CHAR, other, 5, MPI_COMM_WORLD);
        else
            MPI_Recv(bytes, 64, MPI_CHAR, other, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Finalize();
    return 0;
}

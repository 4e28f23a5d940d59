/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The writer fills the pipe while the reader is in no call, and ends, while the reader is still in none for
 * so many milliseconds. What was written has to be read, in order, or the writer has the error that some of it may
 * be lost (ETIMEDOUT). The reader reads no message in part, and then sees the end of the writer.
 *
 *   ends close|finalize|exit|return|exec MILLISECONDS BYTES FILE
 *
 * FILE is one that both map. By exec the writer's program becomes another one without a call of the library:
 * what was flushed arrives as far as the path had it, and the reader has the end reported. */
#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strait_rpipe.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MS 1000000LL
#define LIMIT (60000 * MS)

static struct shared {
    volatile long reads, written, code;
} *sh;

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void at(unsigned char *to, size_t len, long number)
{
    for (size_t i = 0; i < len; i++)
        to[i] = (unsigned char)(number * 7 + (long)i);
}

enum { MOST = 900 };

/* Writes until the path or the heap has no room for some time. Returns what the last flush said. */
static int writes(rpipe_t rp, size_t len)
{
    raddr_t addr;
    int code;
    while (sh->written < MOST) {
        addr = rmalloc_timed(rp, len, 300 * MS);
        if (addr == RADDR_NULL) {
            assert(errno == EAGAIN || errno == ENOBUFS);
            break;
        }
        at(rmem(rp, addr), len, sh->written);
        code = rwrite_timed(rp, addr, 300 * MS);
        if (code == -EAGAIN) {
            assert(rfree(addr) == 0);
            break;
        }
        assert(code == 0);
        sh->written++;
    }
    code = rflush(rp, 300 * MS);
    assert(code == 0 || code == -EAGAIN);
    return code;
}

static int reads(rpipe_t rp, size_t len)
{
    unsigned char *wanted = malloc(len);
    raddr_t addr;
    int code;
    for (;;) {
        code = rread_timed(rp, &addr, len, LIMIT);
        if (code != 0)
            break;
        at(wanted, len, sh->reads);
        assert(rlength(addr) == (ptrdiff_t)len && memcmp(rmem(rp, addr), wanted, len) == 0);
        sh->reads++;
        assert(rfree(addr) == 0);
    }
    free(wanted);
    return code;
}

int main(int argc, char **argv)
{
    assert(argc == 5);
    const char *how = argv[1];
    long late = atol(argv[2]);
    size_t len = (size_t)atol(argv[3]);
    struct rpipe_attr attr;
    rpipe_t rp, back;
    raddr_t addr;
    int rank, code, file = open(argv[4], O_RDWR | O_CREAT, 0600);
    assert(file >= 0 && ftruncate(file, 4096) == 0);
    sh = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    assert(sh != MAP_FAILED);
    assert(rinit(&rank, NULL) == 0);
    memset(&attr, 0, sizeof(attr));
    attr.size = sizeof(attr);
    attr.flags = HD_PIPE | RPIPE_EAGER;
    attr.heap = 8u << 20;
    attr.slots = 1024;
    attr.iswriter = rank == 0;
    assert(rpipe_open_attr(&rp, 1 - rank, &attr) == 0);
    attr.iswriter = rank != 0;
    assert(rpipe_open_attr(&back, 1 - rank, &attr) == 0);
    if (rank == 0) {
        /* The pipe is set up, and the reader is in no call any more. */
        assert(rwrite_from(rp, "go", 2) == 0);
        assert(rread_timed(back, &addr, 2, LIMIT) == 0);
        int flushed = writes(rp, len);
        long start = now_ms();
        if (!strcmp(how, "close"))
            code = rpipe_close(rp);
        else if (!strcmp(how, "finalize"))
            code = rfinalize();
        else
            code = 0;
        sh->code = code;
        printf("rank 0: %ld written, flush %d, %s %d after %ld ms\n", sh->written, flushed, how, code, now_ms() - start);
        fflush(stdout);
        if (!strcmp(how, "exit"))
            exit(0);
        if (!strcmp(how, "exec"))
            execl("/bin/true", "true", NULL);
        return 0;
    }
    assert(rread_timed(rp, &addr, 2, LIMIT) == 0 && rfree(addr) == 0);
    assert(rwrite_from(back, "go", 2) == 0 && rflush(back, LIMIT) == 0);
    poll(NULL, 0, (int)late);
    code = reads(rp, len);
    printf("rank 1: %ld read of %ld written; then %d\n", sh->reads, sh->written, code);
    assert(code == -EPIPE && sh->written > 0 && sh->reads <= sh->written);
    return !(sh->reads == sh->written || sh->code == -ETIMEDOUT || !strcmp(how, "exec"));
}

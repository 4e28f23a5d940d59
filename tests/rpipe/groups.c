/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Groups and many writers, between three processes and more: broadcast, a ring of neighbours, and messages of all to rank 0; what is wrong
 * is refused, with errno and words. Also compiled as C++. */
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

enum { MESSAGES = 50, ACTIVE = 9 };

static int rank, size;

static void refused(int code, int expected)
{
    if (code != -expected || errno != expected || strlen(rerror()) < 10) {
        printf("%d and errno %d instead of %d: %s\n", code, errno, expected, rerror());
        assert(!"refused otherwise");
    }
}

static void count(void *arg, rpipe_t rp, void *bytes, size_t length)
{
    assert(rp != NULL && length == sizeof(int) && *(int *)bytes == 7);
    ++*(int *)arg;
}

static void broadcast(rpipe_group_t group)
{
    static char bytes[300000];
    for (int root = 0; root < size; root++) {
        size_t length = root == 0 ? sizeof(bytes) : (size_t)(8 * root);
        memset(bytes, rank == root ? root + 1 : 0, sizeof(bytes));
        assert(rpipe_bcast(group, root, bytes, length) == 0);
        assert(bytes[0] == root + 1 && memcmp(bytes, bytes + 1, length - 1) == 0);
    }
    assert(rpipe_bcast(group, size - 1, NULL, 0) == 0);
    bytes[0] = rank == 1 ? 9 : 0;
    assert(rpipe_bcast_timed(group, 1, bytes, 1, LIMIT) == 0 && bytes[0] == 9);
    refused(rpipe_bcast_timed(group, size, bytes, 1, LIMIT), EINVAL);
    refused(rpipe_bcast_timed(NULL, 0, bytes, 1, 0), EINVAL);
    refused(rpipe_bcast(group, size, bytes, 1), EINVAL);
    refused(rpipe_bcast(group, -1, bytes, 1), EINVAL);
    refused(rpipe_bcast(group, 0, NULL, 1), EINVAL);
    refused(rpipe_bcast(group, 0, bytes, (size_t)-1), EINVAL);
    refused(rpipe_bcast(NULL, 0, bytes, 1), EINVAL);
}

static void ring(rpipe_group_t group)
{
    int to[2] = {100 * rank, 100 * rank + 1}, from[2] = {-1, -1};
    struct rpipe_neighbor sides[2];
    memset(sides, 0, sizeof(sides));
    for (int side = 0; side < 2; side++) {
        sides[side].rank = (rank + (side ? 1 : size - 1)) % size;
        sides[side].send = &to[side];
        sides[side].send_size = sizeof(int);
        sides[side].receive = &from[side];
        sides[side].receive_size = sizeof(int);
    }
    assert(rpipe_neighbor_exchange(group, sides, 2) == 0);
    assert(sides[0].received == sizeof(int) && sides[1].received == sizeof(int));
    assert(from[0] == 100 * sides[0].rank + 1 && from[1] == 100 * sides[1].rank);
    assert(rpipe_neighbor_exchange_timed(group, sides, 2, LIMIT) == 0 && sides[0].received == sizeof(int));
    assert(rpipe_neighbor_exchange(group, NULL, 0) == 0);
    assert(rpipe_neighbor_exchange_timed(group, NULL, 0, 0) == 0);
    refused(rpipe_neighbor_exchange_timed(group, NULL, 1, 0), EINVAL);
    refused(rpipe_neighbor_exchange(group, NULL, 1), EINVAL);
    refused(rpipe_neighbor_exchange(group, sides, (size_t)-1), EINVAL);
    sides[1].rank = size;
    refused(rpipe_neighbor_exchange(group, sides, 2), EINVAL);
    sides[1].rank = sides[0].rank;
    sides[1].receive = NULL;
    refused(rpipe_neighbor_exchange(group, sides, 2), EINVAL);
}

/* Rank 0 waits for rank 1, which does not call before that has given up. */
static void too_late(rpipe_group_t all)
{
    int pair[2] = {0, 1}, value = 0;
    struct rpipe_neighbor other;
    rpipe_group_t group = NULL;
    memset(&other, 0, sizeof(other));
    other.rank = 1;
    if (rank < 2)
        assert(rpipe_group_open(&group, pair, 2) == 0);
    if (rank == 0) {
        refused(rpipe_bcast_timed(group, 1, &value, sizeof(value), 10000000), ETIMEDOUT);
        assert(strstr(rerror(), "rank 1") != NULL);
        refused(rpipe_neighbor_exchange_timed(group, &other, 1, LIMIT), ETIMEDOUT);
    }
    assert(rpipe_bcast(all, 0, &value, sizeof(value)) == 0);
    if (rank < 2)
        assert(rpipe_group_close(group) == 0);
}

/* All but rank 0 write to it; it has one object to read from. */
static void all_to_one(void)
{
    rpipe_many_t many = NULL;
    if (rank != 0) {
        rpipe_t rp;
        raddr_t addr;
        assert(rpipe(rp, 0, 1, sizeof(int), HD_PIPE) == 0);
        for (int i = 0; i < MESSAGES; i++) {
            assert((addr = rmalloc(rp, sizeof(int))) != RADDR_NULL);
            *(int *)rmem(rp, addr) = i == ACTIVE ? 7 : 1000 * rank + i;
            assert((i == ACTIVE ? rwrite_am(rp, addr, 3) : rwrite(rp, addr)) == 0);
        }
        assert(rpipe_close(rp) == 0);
        return;
    }
    int calls = 0, had[64] = {0}, none = size, source;
    raddr_t addr;
    rpipe_t from;
    refused(rpipe_many_open(NULL, NULL, 0, NULL), EINVAL);
    refused(rpipe_many_open(&many, &none, 1, NULL), EINVAL);
    refused(rpipe_many_open(&many, &none, 0, NULL), EINVAL);
    refused(rpipe_many_open(&many, &none, (size_t)-1, NULL), EINVAL);
    struct rpipe_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.flags = HD_PIPE;
    refused(rpipe_many_open(&many, NULL, 0, &attr), EINVAL);
    attr.size = sizeof(attr);
    attr.width = sizeof(int);
    assert(rpipe_many_open(&many, NULL, 0, &attr) == 0);
    for (int peer = 1; peer < size; peer++)
        assert(rhandle(rpipe_many_pipe(many, peer), 3, count, &calls) == 0);
    assert(rpipe_many_pipe(many, 0) == NULL && errno == EINVAL);
    refused(rpipe_close(rpipe_many_pipe(many, 1)), EINVAL);
    refused(rpipe_many_read(many, NULL, 8, NULL, NULL, 0), EINVAL);
    refused(rpipe_many_read(NULL, &addr, 8, NULL, NULL, 0), EINVAL);
    for (int ends = 0; ends < size - 1;) {
        int code = rpipe_many_read(many, &addr, sizeof(int), &from, &source, LIMIT);
        assert(source >= 1 && source < size && from == rpipe_many_pipe(many, source));
        if (code != 0) {
            refused(code, EPIPE);
            assert(had[source] == MESSAGES);
            ends++;
            continue;
        }
        if (had[source] == ACTIVE)
            had[source]++;
        assert(*(int *)rmem(from, addr) == 1000 * source + had[source]++);
        assert(rfree(addr) == 0);
    }
    assert(calls == size - 1);
    refused(rpipe_many_read(many, &addr, 8, NULL, &source, RPIPE_FOREVER), EPIPE);
    assert(source == -1);
    assert(rpipe_many_close(many) == 0);
    refused(rpipe_many_close(many), EINVAL);
    refused(rpipe_many_read(many, &addr, 8, NULL, NULL, 0), EINVAL);
}

static void in_child(rpipe_group_t group)
{
    char byte = 0;
    refused(rpipe_bcast(group, 0, &byte, 1), EINVAL);
    refused(rpipe_group_close(group), EINVAL);
    exit(0);
}

/* No process leaves before all are here: one that leaves waits a second for what is on its way, and peers may have none under load. */
static void await_all(void)
{
    char name[4096];
    rpipe_t idle;
    assert(rpipe(idle, (rank + 1) % size, 0, 4, HD_PIPE) == 0);
    for (int peer = -1; peer < size; peer++) {
        snprintf(name, sizeof(name), "%s/here.%d", getenv("STRAIT_RPIPE_DIR"), peer < 0 ? rank : peer);
        if (peer < 0) {
            FILE *file = fopen(name, "w");
            assert(file != NULL && fclose(file) == 0);
        }
        /* Which makes progress. */
        while (access(name, F_OK) != 0)
            rwait(&idle, 1, 1000000);
    }
    assert(rpipe_close(idle) == 0);
}

int main(void)
{
    int status;
    rpipe_group_t group = NULL, second = NULL;
    refused(rpipe_group_open(&group, NULL, 0), EINVAL);
    assert(rinit(&rank, NULL) == 0);
    size = rcount();
    refused(rpipe_group_open(NULL, NULL, 0), EINVAL);
    refused(rpipe_group_open(&group, &size, 1), EINVAL);
    refused(rpipe_group_open(&group, &rank, 0), EINVAL);
    assert(rpipe_group_open(&group, NULL, 0) == 0);
    assert(rpipe_group_open(&second, &rank, 1) == 0);
    broadcast(group);
    assert(rpipe_bcast(second, rank, &status, sizeof(status)) == 0);
    pid_t child = fork();
    if (child == 0)
        in_child(group);
    assert(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    ring(group);
    too_late(group);
    all_to_one();
    for (int root = 0; root < size; root++) {
        int code = rpipe_bcast(group, root, &status, sizeof(status));
        if (code != 0)
            printf("rank %d, root %d: %s\n", rank, root, rerror());
        assert(code == 0);
    }
    await_all();
    assert(rpipe_group_close(group) == 0);
    refused(rpipe_group_close(group), EINVAL);
    refused(rpipe_bcast(group, 0, &status, 1), EINVAL);
    assert(rfinalize() == 0);
    refused(rpipe_bcast(second, rank, &status, 1), EINVAL);
    printf("rank %d: ok\n", rank);
    return 0;
}

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Collective calls of a group with random roots, lengths, types and operations, beside a plain reference: collectives [ROUNDS [SEED]].
 * With -DWITH_MPI, started by an MPI's launcher, beside MPI's results too; STRAIT_RPIPE_DIR is an empty directory then. */
#undef NDEBUG
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strait_rpipe.h>
#ifdef WITH_MPI
#include <mpi.h>
#endif

#define LIMIT 60000000000LL
enum { MEMBERS = 64, TYPES = 6, OPERATIONS = 7 };

static int rank, size;
static unsigned long long state;

/* The same at each member. */
static unsigned next(unsigned below)
{
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (unsigned)(state >> 33) % below;
}

/* Short ones mostly, and some that are longer than a heap. */
static size_t length(void)
{
    static const unsigned most[] = {4, 40, 3000, 20000, 120000};
    return next(most[next(next(4) ? 3 : 5)]);
}

static void done(int code, const char *call)
{
    if (code != 0)
        fprintf(stderr, "rank %d: %s: %d: %s\n", rank, call, code, rerror());
    assert(code == 0);
}

static void refused(int code, int expected)
{
    if (code != -expected || errno != expected || strlen(rerror()) < 10) {
        fprintf(stderr, "%d and errno %d instead of %d: %s\n", code, errno, expected, rerror());
        assert(!"refused otherwise");
    }
}

static unsigned char byte(int from, int to, size_t at)
{
    return (unsigned char)(from * 31 + to * 17 + at * 7 + at / 251);
}

static unsigned char *memory(size_t bytes)
{
    unsigned char *at = (unsigned char *)malloc(bytes + 1);
    assert(at != NULL);
    memset(at, 0xee, bytes + 1);
    return at;
}

static void check_parts(const unsigned char *at, const size_t *sizes, int only, int to)
{
    for (int from = 0; from < size; from++) {
        for (size_t i = 0; i < sizes[from]; i++)
            assert(at[i] == byte(from, to, i));
        at += sizes[from];
    }
    assert(only || *at == 0xee);
}

#ifdef WITH_MPI
static const MPI_Datatype mpi_types[TYPES] = {MPI_INT32_T, MPI_INT64_T, MPI_UINT32_T, MPI_UINT64_T, MPI_FLOAT, MPI_DOUBLE};
static MPI_Op mpi_operation(int n)
{
    const MPI_Op all[OPERATIONS] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_BAND, MPI_BOR, MPI_BXOR};
    return all[n];
}
#endif

static void gather_and_scatter(rpipe_group_t group)
{
    size_t sizes[MEMBERS], all = 0, same = next(2) ? 0 : length() + 1;
    int root = (int)next((unsigned)size);
    for (int i = 0; i < size; i++)
        all += sizes[i] = same ? same : length();
    size_t mine = sizes[rank];
    unsigned char *part = memory(mine), *whole = memory(all), *at = whole;
    for (size_t i = 0; i < mine; i++)
        part[i] = byte(rank, root, i);
    done(rpipe_gather(group, root, part, mine, rank == root ? whole : NULL, rank == root && !same ? sizes : NULL, LIMIT), "gather");
    if (rank == root)
        check_parts(whole, sizes, 0, root);
    /* The same parts go back, with another content. */
    for (int to = 0; to < size && rank == root; to++)
        for (size_t i = 0; i < sizes[to]; i++)
            *at++ = byte(root, to, i);
    memset(part, 0, mine);
    done(rpipe_scatter(group, root, rank == root ? whole : NULL, rank == root && !same ? sizes : NULL, part, mine, LIMIT), "scatter");
    for (size_t i = 0; i < mine; i++)
        assert(part[i] == byte(root, rank, i));
    assert(part[mine] == 0xee);
    free(part);
    free(whole);
}

static void all_to_all(rpipe_group_t group)
{
    static size_t sizes[MEMBERS][MEMBERS];
    size_t from[MEMBERS], to[MEMBERS], sent = 0, received = 0, same = next(3) ? 0 : length() + 1;
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++)
            sizes[i][j] = same ? same : length() / (size_t)size;
    for (int i = 0; i < size; i++) {
        sent += to[i] = sizes[rank][i];
        received += from[i] = sizes[i][rank];
    }
    unsigned char *out = memory(sent), *in = memory(received), *at = out;
    for (int peer = 0; peer < size; peer++)
        for (size_t i = 0; i < to[peer]; i++)
            *at++ = byte(rank, peer, i);
    done(rpipe_alltoall(group, out, same ? NULL : to, in, same ? NULL : from, same, LIMIT), "alltoall");
    check_parts(in, from, 0, rank);
#ifdef WITH_MPI
    int counts[4][MEMBERS];
    unsigned char *other = memory(received);
    for (int i = 0; i < size; i++) {
        counts[0][i] = (int)to[i], counts[2][i] = (int)from[i];
        counts[1][i] = i ? counts[1][i - 1] + counts[0][i - 1] : 0;
        counts[3][i] = i ? counts[3][i - 1] + counts[2][i - 1] : 0;
    }
    MPI_Alltoallv(out, counts[0], counts[1], MPI_BYTE, other, counts[2], counts[3], MPI_BYTE, MPI_COMM_WORLD);
    assert(memcmp(in, other, received) == 0);
    free(other);
#endif
    free(out);
    free(in);
}

/* Floating-point numbers are whole here, and few: no order of operations rounds. */
static int number(int of, size_t at, int operation)
{
    int n = (int)((unsigned)of * 2654435761u + (unsigned)at * 40503u) >> 7;
    if (operation == 1)
        return n % 8 == 0 ? 2 : n % 2 ? -1 : 1;
    return n % 1000;
}

#define COMBINE(a, b, operation) \
    ((operation) == 0 ? (a) + (b) : (operation) == 1 ? (a) * (b) : (operation) == 2 ? ((b) < (a) ? (b) : (a)) : ((a) < (b) ? (b) : (a)))
#define BITS(a, b, operation) ((operation) == 4 ? ((a) & (b)) : (operation) == 5 ? ((a) | (b)) : ((a) ^ (b)))

#define TYPE(name, type, wide, BITWISE)                                                     \
    static void fill_##name(void *at, int of, size_t count, int operation)                  \
    {                                                                                       \
        for (size_t i = 0; i < count; i++)                                                  \
            ((type *)at)[i] = (type)number(of, i, operation);                               \
    }                                                                                       \
    static void check_##name(const void *at, size_t count, int operation)                   \
    {                                                                                       \
        for (size_t i = 0; i < count; i++) {                                                \
            type all = (type)number(0, i, operation);                                       \
            for (int of = 1; of < size; of++) {                                             \
                type one = (type)number(of, i, operation);                                  \
                all = operation < 4 ? (type)COMBINE((wide)all, (wide)one, operation) : BITWISE(all, one, operation); \
            }                                                                               \
            if (((const type *)at)[i] != all)                                               \
                fprintf(stderr, "rank %d: element %zu of %zu of " #name ", operation %d\n", rank, i, count, operation); \
            assert(((const type *)at)[i] == all);                                           \
        }                                                                                   \
    }
#define NONE(a, b, operation) ((void)(b), (a))
TYPE(i32, int32_t, int64_t, BITS)
TYPE(i64, int64_t, int64_t, BITS)
TYPE(u32, uint32_t, uint64_t, BITS)
TYPE(u64, uint64_t, uint64_t, BITS)
TYPE(f32, float, float, NONE)
TYPE(f64, double, double, NONE)

static const struct {
    unsigned type;
    size_t bytes;
    void (*fill)(void *, int, size_t, int);
    void (*check)(const void *, size_t, int);
} types[TYPES] = {
    {RPIPE_INT32, 4, fill_i32, check_i32}, {RPIPE_INT64, 8, fill_i64, check_i64}, {RPIPE_UINT32, 4, fill_u32, check_u32},
    {RPIPE_UINT64, 8, fill_u64, check_u64}, {RPIPE_FLOAT, 4, fill_f32, check_f32}, {RPIPE_DOUBLE, 8, fill_f64, check_f64},
};
static const unsigned operations[OPERATIONS] = {RPIPE_SUM, RPIPE_PROD, RPIPE_MIN, RPIPE_MAX, RPIPE_AND, RPIPE_OR, RPIPE_XOR};

static void reductions(rpipe_group_t group)
{
    int type = (int)next(TYPES), operation = (int)next(type < 4 ? OPERATIONS : 4), root = (int)next((unsigned)size), in_place = (int)next(2);
    size_t count = length();
    unsigned what = types[type].type | operations[operation];
    size_t bytes = count * types[type].bytes;
    unsigned char *send = memory(bytes), *to = in_place ? send : memory(bytes);
    types[type].fill(send, rank, count, operation);
    done(rpipe_reduce(group, root, send, rank == root ? to : NULL, count, what, LIMIT), "reduce");
    if (rank == root)
        types[type].check(to, count, operation);
    types[type].fill(send, rank, count, operation);
    done(rpipe_allreduce(group, send, to, count, what, LIMIT), "allreduce");
    types[type].check(to, count, operation);
    assert(to[bytes] == 0xee);
#ifdef WITH_MPI
    unsigned char *from = memory(bytes), *other = memory(bytes);
    types[type].fill(from, rank, count, operation);
    MPI_Allreduce(from, other, (int)count, mpi_types[type], mpi_operation(operation), MPI_COMM_WORLD);
    assert(memcmp(to, other, bytes) == 0);
    free(from);
    free(other);
#endif
    if (to != send)
        free(to);
    free(send);
}

struct sample {
    double least;
    int64_t sum;
    unsigned bits;
    char odd;
};

static void merge(const void *in, void *inout, size_t count, void *arg)
{
    const struct sample *a = (const struct sample *)in;
    struct sample *b = (struct sample *)inout;
    *(size_t *)arg += count;
    for (size_t i = 0; i < count; i++) {
        b[i].least = a[i].least < b[i].least ? a[i].least : b[i].least;
        b[i].sum += a[i].sum;
        b[i].bits |= a[i].bits;
        b[i].odd = (char)(a[i].odd ^ b[i].odd);
    }
}

static void by_function(rpipe_group_t group)
{
    size_t count = length(), calls = 0;
    int root = (int)next((unsigned)size);
    struct rpipe_function function;
    struct sample *send = (struct sample *)calloc(count + 1, sizeof(*send)), *to = (struct sample *)calloc(count + 1, sizeof(*to));
    function.size = sizeof(function);
    function.element = sizeof(*send);
    function.combine = merge;
    function.arg = &calls;
    for (int all = 0; all < 2; all++) {
        for (size_t i = 0; i < count; i++)
            send[i].least = number(rank, i, 0), send[i].sum = rank + (int64_t)i, send[i].bits = 1u << rank % 32, send[i].odd = (char)(rank & 1);
        if (all)
            done(rpipe_allreduce_by(group, send, to, count, &function, LIMIT), "allreduce_by");
        else
            done(rpipe_reduce_by(group, root, send, rank == root ? to : NULL, count, &function, LIMIT), "reduce_by");
        for (size_t i = 0; i < count && (all || rank == root); i++) {
            int least = number(0, i, 0);
            for (int of = 1; of < size; of++)
                least = number(of, i, 0) < least ? number(of, i, 0) : least;
            assert(to[i].least == least && to[i].sum == (int64_t)size * (int64_t)i + (int64_t)size * (size - 1) / 2);
            assert(to[i].bits == (size > 31 ? ~0u : (1u << size) - 1) && to[i].odd == (size / 2 & 1));
        }
    }
    assert(rank != root || size == 1 || calls >= count);
    free(send);
    free(to);
}

static void wrong_arguments(rpipe_group_t group)
{
    int value = 0;
    size_t sizes[MEMBERS];
    struct rpipe_function function;
    memset(&function, 0, sizeof(function));
    memset(sizes, 0xff, sizeof(sizes));
    refused(rpipe_barrier(NULL, LIMIT), EINVAL);
    refused(rpipe_gather(group, size, &value, 1, &value, NULL, LIMIT), EINVAL);
    refused(rpipe_gather(group, rank, NULL, 1, &value, NULL, LIMIT), EINVAL);
    refused(rpipe_gather(group, rank, &value, 1, NULL, NULL, LIMIT), EINVAL);
    refused(rpipe_gather(group, rank, &value, 1, &value, sizes, LIMIT), EINVAL);
    refused(rpipe_scatter(group, -1, &value, NULL, &value, 1, LIMIT), EINVAL);
    refused(rpipe_scatter(group, rank, NULL, NULL, &value, 1, LIMIT), EINVAL);
    refused(rpipe_alltoall(group, NULL, NULL, &value, NULL, 1, LIMIT), EINVAL);
    refused(rpipe_alltoall(group, &value, NULL, NULL, NULL, 1, LIMIT), EINVAL);
    refused(rpipe_reduce(group, rank, &value, &value, 1, RPIPE_INT32, LIMIT), EINVAL);
    refused(rpipe_reduce(group, rank, &value, &value, 1, RPIPE_SUM, LIMIT), EINVAL);
    refused(rpipe_reduce(group, rank, &value, &value, 1, RPIPE_FLOAT | RPIPE_XOR, LIMIT), EINVAL);
    refused(rpipe_reduce(group, rank, &value, NULL, 1, RPIPE_INT32 | RPIPE_SUM, LIMIT), EINVAL);
    refused(rpipe_allreduce(group, NULL, &value, 1, RPIPE_INT32 | RPIPE_SUM, LIMIT), EINVAL);
    refused(rpipe_allreduce(group, &value, &value, (size_t)-1, RPIPE_INT64 | RPIPE_SUM, LIMIT), EINVAL);
    refused(rpipe_allreduce_by(group, &value, &value, 1, NULL, LIMIT), EINVAL);
    function.size = sizeof(function);
    refused(rpipe_allreduce_by(group, &value, &value, 1, &function, LIMIT), EINVAL);
    function.combine = merge;
    refused(rpipe_reduce_by(group, rank, &value, &value, 1, &function, LIMIT), EINVAL);
}

int main(int argc, char **argv)
{
    rpipe_group_t group = NULL;
    int rounds = argc > 1 ? atoi(argv[1]) : 6;
#ifdef WITH_MPI
    char text[32];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    snprintf(text, sizeof(text), "%d", rank);
    setenv("STRAIT_RPIPE_RANK", text, 1);
    snprintf(text, sizeof(text), "%d", size);
    setenv("STRAIT_RPIPE_SIZE", text, 1);
#endif
    state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    if (rinit(&rank, NULL) != 0) {
        fprintf(stderr, "rinit: %s\n", rerror());
        return 1;
    }
    size = rcount();
    assert(size <= MEMBERS && rpipe_group_open(&group, NULL, 0) == 0);
    wrong_arguments(group);
    for (int round = 0; round < rounds; round++) {
        gather_and_scatter(group);
        all_to_all(group);
        reductions(group);
        by_function(group);
        done(rpipe_barrier(group, LIMIT), "barrier");
    }
    /* None leaves before all have what they need. */
    done(rpipe_barrier(group, LIMIT), "barrier");
    done(rpipe_group_close(group), "close");
    done(rfinalize(), "rfinalize");
#ifdef WITH_MPI
    MPI_Finalize();
#endif
    printf("rank %d: ok\n", rank);
    return 0;
}

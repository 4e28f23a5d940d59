/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * What the backend `mpi` of libstrait_rpipe needs of an MPI: windows with passive target, and messages. Built with
 * the compiler of the MPI, and loaded by its name:
 *
 *     mpicc -O2 -shared -fPIC -o libstrait_rpipe_mpi_NAME.so strait_rpipe_mpi.c
 *     STRAIT_RPIPE_BACKEND=mpi:NAME mpirun -n 2 ./program
 *
 * Called by one thread at a time. A function returns 0, or an error of MPI.
 */
#include <limits.h>
#include <mpi.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 2
#define TAG 1

static MPI_Comm comm = MPI_COMM_NULL;
static MPI_Win window = MPI_WIN_NULL;
static int ours;    /* MPI was initialised here */
static int allowed; /* another thread may call it while the program is not in a call of ours */

/* Messages that have not left yet. */
struct message {
    struct message *next;
    MPI_Request request;
    char bytes[];
};
static struct message *leaving;

static int start(char *name, size_t room)
{
    int there, length, provided, rc;
    char text[MPI_MAX_LIBRARY_VERSION_STRING];

    if (comm == MPI_COMM_NULL) {
        if ((rc = MPI_Initialized(&there)))
            return rc;
        if (!there) {
            if ((rc = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided)))
                return rc;
            ours = 1;
            allowed = provided >= MPI_THREAD_SERIALIZED;
        } else {
            /* The program may call it at any time. */
            if ((rc = MPI_Query_thread(&provided)))
                return rc;
            allowed = provided == MPI_THREAD_MULTIPLE;
        }
        if ((rc = MPI_Comm_dup(MPI_COMM_WORLD, &comm)))
            return rc;
        if ((rc = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN)))
            return rc;
    }
    if ((rc = MPI_Get_library_version(text, &length)))
        return rc;
    if (room) {
        strncpy(name, text, room - 1);
        name[room - 1] = 0;
        name[strcspn(name, "\n,")] = 0;
    }
    return 0;
}

static int place(int *rank, int *size)
{
    int rc = MPI_Comm_rank(comm, rank);
    return rc ? rc : MPI_Comm_size(comm, size);
}

static int allgather(const void *mine, size_t len, void *all)
{
    if (len > INT_MAX)
        return MPI_ERR_COUNT;
    return MPI_Allgather(mine, (int)len, MPI_BYTE, all, (int)len, MPI_BYTE, comm);
}

/* Collective. `unified`: memory and window are one, so that a load sees what was put. */
static int open_window(int *unified)
{
    int there, rc, *model;

    if ((rc = MPI_Win_create_dynamic(MPI_INFO_NULL, comm, &window)))
        return rc;
    if ((rc = MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN)))
        return rc;
    if ((rc = MPI_Win_get_attr(window, MPI_WIN_MODEL, &model, &there)))
        return rc;
    *unified = there && *model == MPI_WIN_UNIFIED;
    return MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
}

static int attach(void *base, size_t len, uint64_t *address)
{
    MPI_Aint at;
    int rc;

    if ((rc = MPI_Win_attach(window, base, (MPI_Aint)len)))
        return rc;
    rc = MPI_Get_address(base, &at);
    *address = (uint64_t)at;
    return rc;
}

static int detach(void *base)
{
    return MPI_Win_detach(window, base);
}

static int put(const void *from, size_t len, int to, uint64_t address)
{
    while (len) {
        int now = len > INT_MAX ? INT_MAX : (int)len;
        int rc = MPI_Put(from, now, MPI_BYTE, to, (MPI_Aint)address, now, MPI_BYTE, window);
        if (rc)
            return rc;
        from = (const char *)from + now;
        address += (uint64_t)now;
        len -= (size_t)now;
    }
    return 0;
}

static int get(void *at, size_t len, int from, uint64_t address)
{
    while (len) {
        int now = len > INT_MAX ? INT_MAX : (int)len;
        int rc = MPI_Get(at, now, MPI_BYTE, from, (MPI_Aint)address, now, MPI_BYTE, window);
        if (rc)
            return rc;
        at = (char *)at + now;
        address += (uint64_t)now;
        len -= (size_t)now;
    }
    return 0;
}

static int fetch_add(const uint64_t *add, uint64_t *old, int to, uint64_t address)
{
    return MPI_Fetch_and_op(add, old, MPI_UINT64_T, to, (MPI_Aint)address, MPI_SUM, window);
}

/* All operations to a process are over, there too. */
static int flush(int to)
{
    return MPI_Win_flush(to, window);
}

static int reap(void)
{
    struct message **at = &leaving;

    while (*at) {
        struct message *one = *at;
        int done, rc = MPI_Test(&one->request, &done, MPI_STATUS_IGNORE);
        if (rc)
            return rc;
        if (done) {
            *at = one->next;
            free(one);
        } else {
            at = &one->next;
        }
    }
    return 0;
}

static int send(int to, const void *bytes, size_t len)
{
    struct message *one = malloc(sizeof *one + len);
    int rc;

    if (!one || len > INT_MAX) {
        free(one);
        return MPI_ERR_NO_MEM;
    }
    memcpy(one->bytes, bytes, len);
    if ((rc = MPI_Isend(one->bytes, (int)len, MPI_BYTE, to, TAG, comm, &one->request))) {
        free(one);
        return rc;
    }
    one->next = leaving;
    leaving = one;
    return 0;
}

/* The next message: `from` is -1 if there is none. What others put is visible after this. */
static int poll(int *from, void *bytes, size_t room, size_t *len)
{
    MPI_Status status;
    int there, count, rc;

    *from = -1;
    if ((rc = reap()) || (rc = MPI_Iprobe(MPI_ANY_SOURCE, TAG, comm, &there, &status)))
        return rc;
    if (there) {
        if (room > INT_MAX)
            room = INT_MAX;
        rc = MPI_Recv(bytes, (int)room, MPI_BYTE, status.MPI_SOURCE, TAG, comm, &status);
        if (rc || (rc = MPI_Get_count(&status, MPI_BYTE, &count)))
            return rc;
        *from = status.MPI_SOURCE;
        *len = (size_t)count;
    }
    return window == MPI_WIN_NULL ? 0 : MPI_Win_sync(window);
}

/* Whether all messages have left. */
static int idle(int *is)
{
    int rc = reap();
    *is = !leaving;
    return rc;
}

static int threads(void)
{
    return allowed;
}

/* Collective. */
static int end(void)
{
    int rc;

    if (window != MPI_WIN_NULL && ((rc = MPI_Win_unlock_all(window)) || (rc = MPI_Win_free(&window))))
        return rc;
    if (comm != MPI_COMM_NULL && (rc = MPI_Comm_free(&comm)))
        return rc;
    return ours ? MPI_Finalize() : 0;
}

static void text(int error, char *to, size_t room)
{
    char words[MPI_MAX_ERROR_STRING];
    int length;

    if (!room)
        return;
    if (MPI_Error_string(error, words, &length))
        strcpy(words, "an error of MPI");
    strncpy(to, words, room - 1);
    to[room - 1] = 0;
}

const struct strait_rpipe_mpi {
    uint32_t version;
    int (*start)(char *, size_t);
    int (*place)(int *, int *);
    int (*allgather)(const void *, size_t, void *);
    int (*open_window)(int *);
    int (*attach)(void *, size_t, uint64_t *);
    int (*detach)(void *);
    int (*put)(const void *, size_t, int, uint64_t);
    int (*get)(void *, size_t, int, uint64_t);
    int (*fetch_add)(const uint64_t *, uint64_t *, int, uint64_t);
    int (*flush)(int);
    int (*send)(int, const void *, size_t);
    int (*poll)(int *, void *, size_t, size_t *);
    int (*idle)(int *);
    int (*end)(void);
    void (*text)(int, char *, size_t);
    int (*threads)(void);
} strait_rpipe_mpi = {
    VERSION, start, place, allgather, open_window, attach, detach, put, get,
    fetch_add, flush, send, poll, idle, end, text, threads,
};

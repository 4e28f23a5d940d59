/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Messages of an MPI that CUDA streams send, receive and wait for: -lstrait_xpu, and any MPI with MPI_THREAD_MULTIPLE that takes
 * the buffers, by itself or by libstrait_mpi.so.0. strait_stream(7) has a loop.
 *
 * A call queues in the stream, and the stream raises a counter when it gets there. A thread of the queue, the agent, then calls
 * MPI_Isend or MPI_Irecv, and tests; its completion is a word that the stream waits for. No host function is in the stream.
 *
 * With libstrait_mpi.so.0 datatypes with gaps are refused (-EOPNOTSUPP): strait_stream(7) says why.
 *
 * Each wait of the stream ends: by its operation, by an error of MPI, by strait_mpi_stream_abort, or by the time limit, 30 seconds
 * unless strait_mpi_stream_set_timeout says another one. strait_mpi_stream_failure then names the operation and the peer. Buffers of
 * a queue that has failed are the MPI's until strait_mpi_stream_close has returned 0.
 *
 * Functions return 0 or an errno below 0. A queue is used by one thread at a time, for one stream, and not by a stream that is
 * being captured (-EPERM).
 */
#ifndef STRAIT_MPI_STREAM_H
#define STRAIT_MPI_STREAM_H

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <mpi.h>

#include "strait_stream.h"

/* Operations of a queue that have not completed, at most. */
#define STRAIT_MPI_STREAM_OPERATIONS 1024u

/* An operation, by its number. The agent reads it once the stream has raised the counter. */
struct strait_mpi_operation {
	void *buffer;
	MPI_Datatype datatype;
	MPI_Comm comm;
	MPI_Request request;
	MPI_Status *status;
	int count, peer, tag, sends, done;
};

/* What ended a queue, and of which operation. */
struct strait_mpi_failure {
	int code;	 /* ETIMEDOUT, ECANCELED (an abort), or EIO: MPI's error */
	int error;	 /* MPI's */
	int sends;	 /* a send, else a receive; -1: no operation is known */
	int peer, tag;	 /* as in the call */
	uint64_t number; /* of the operation, in the order of the calls, from 1 on */
};

/* What a wait takes. */
typedef struct strait_mpi_request {
	uint64_t number; /* 0: none */
} strait_mpi_request;

struct strait_mpi_stream {
	void *stream;
	struct strait_stream_words *page;
	uint64_t *bell;	     /* raised by the stream: operations that it has got to */
	uint64_t *waits;     /* stored by the stream: the operation that it waits for, or has last waited for */
	uint64_t *completed; /* a word of each operation, as a counter's write-back word */
	uint64_t *polls;
	struct strait_mpi_operation *operations;
	pthread_t agent;
	uint64_t queued;		/* by calls */
	uint64_t done;			/* the agent's: all up to it have completed */
	int mode;			/* 0: auto, 1: performance, 2: economy */
	int packs;			/* libstrait_mpi.so.0 takes the buffers */
	uint64_t timeout_ns;
	struct strait_mpi_failure failure; /* the agent's; valid once there is an error */
	int error;			   /* MPI's, or 0 */
	int ends, aborts;		/* of the agent */
};

/* A counter's word: the value, and bit 63. With 127 failures each wait passes. */
#define STRAIT_MPI_SET (1ULL << 63)
#define STRAIT_MPI_FAILED (STRAIT_MPI_SET | 127ULL << 48)

static inline struct strait_mpi_operation *strait_mpi_at(struct strait_mpi_stream *q, uint64_t number)
{
	return &q->operations[number % STRAIT_MPI_STREAM_OPERATIONS];
}

static inline uint64_t *strait_mpi_word(struct strait_mpi_stream *q, uint64_t number)
{
	return &q->completed[number % STRAIT_MPI_STREAM_OPERATIONS];
}

static inline uint64_t strait_mpi_now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The first failure is kept. `number`: of its operation, or 0. */
static inline void strait_mpi_failed(struct strait_mpi_stream *q, int code, int error, uint64_t number)
{
	const struct strait_mpi_operation *op = strait_mpi_at(q, number);
	if (q->error)
		return;
	q->failure.code = code;
	q->failure.error = error;
	q->failure.number = number;
	q->failure.sends = number ? op->sends : -1;
	q->failure.peer = number ? op->peer : MPI_PROC_NULL;
	q->failure.tag = number ? op->tag : 0;
	__atomic_store_n(&q->error, error, __ATOMIC_RELEASE);
}

/* The operation that the stream waits for, which is after `done` and has not completed; 0: none. */
static inline uint64_t strait_mpi_waited(struct strait_mpi_stream *q, uint64_t done)
{
	const uint64_t number = __atomic_load_n(q->waits, __ATOMIC_ACQUIRE);
	return number > done && !strait_mpi_at(q, number)->done ? number : 0;
}

/* From now on each wait passes, and nothing is begun. */
static inline void strait_mpi_fail(struct strait_mpi_stream *q)
{
	unsigned i;
	for (i = 0; i < STRAIT_MPI_STREAM_OPERATIONS; i++)
		__atomic_store_n(&q->completed[i], STRAIT_MPI_FAILED, __ATOMIC_RELEASE);
}

static inline int strait_mpi_begin(struct strait_mpi_operation *op)
{
	return op->sends ? MPI_Isend(op->buffer, op->count, op->datatype, op->peer, op->tag, op->comm, &op->request)
			 : MPI_Irecv(op->buffer, op->count, op->datatype, op->peer, op->tag, op->comm, &op->request);
}

/* Asks the MPI to end receives that are under way. Until it has, and has ended the sends, they have their buffers. */
static inline void strait_mpi_cancel(struct strait_mpi_stream *q, uint64_t first, uint64_t last)
{
	for (; first <= last; first++) {
		struct strait_mpi_operation *op = strait_mpi_at(q, first);
		if (!op->done && !op->sends)
			MPI_Cancel(&op->request);
	}
}

/* After `idle` polls that found nothing. In economy mode an agent sleeps between polls, but for 20 microseconds after one that found
 * something: what follows at once waits for no sleep. */
static inline void strait_mpi_pause(int mode, unsigned idle, uint64_t *found)
{
	const struct timespec length = {0, mode == 2 ? 100000 : 50000};
	const uint64_t now = mode == 2 ? strait_mpi_now() : 0;
	if (!idle)
		*found = now;
	if ((mode == 2 && now - *found >= 20000) || (mode == 0 && idle > 4000))
		nanosleep(&length, NULL);
	else if (mode == 2 || idle > 2000)
		sched_yield();
}

static inline void *strait_mpi_agent(void *argument)
{
	struct strait_mpi_stream *q = (struct strait_mpi_stream *)argument;
	uint64_t begun = 0, done = 0, waited = 0, since = 0, looked = 0, found = 0, now, n;
	unsigned idle = 0, follow = 0;
	int failed = 0;
	while (!__atomic_load_n(&q->ends, __ATOMIC_ACQUIRE)) {
		const uint64_t bell = __atomic_load_n(q->bell, __ATOMIC_ACQUIRE), queued = __atomic_load_n(&q->queued, __ATOMIC_ACQUIRE);
		__atomic_fetch_add(q->polls, 1, __ATOMIC_RELAXED);
		idle++;
		/* Before the tests: a process that was stopped tests once more before the limit counts. Of the time in which it was
		 * stopped a tenth of a second counts, and 200 tests follow, since a message may take several to come. */
		now = waited && (idle > 2000 || q->mode == 2) ? strait_mpi_now() : 0;
		if (now && looked && now - looked > 100000000) {
			since += now - looked - 100000000;
			follow = follow ? follow : 200;
		}
		looked = now ? now : looked;
		if (__atomic_load_n(&q->aborts, __ATOMIC_ACQUIRE))
			strait_mpi_failed(q, ECANCELED, MPI_ERR_OTHER, strait_mpi_waited(q, done));
		if (q->error && !failed) {
			strait_mpi_fail(q);
			strait_mpi_cancel(q, done + 1, begun);
			failed = 1;
		}
		/* What the stream still gets to is not begun. */
		if (failed && done == begun)
			begun = done = queued;
		while (begun < bell && begun < queued && !q->error) {
			struct strait_mpi_operation *op = strait_mpi_at(q, begun + 1);
			const int error = strait_mpi_begin(op);
			if (error) {
				strait_mpi_failed(q, EIO, error, begun + 1);
				op->done = 1;
			}
			begun++;
			idle = 0;
		}
		for (n = done + 1; n <= begun; n++) {
			struct strait_mpi_operation *op = strait_mpi_at(q, n);
			MPI_Status status;
			int over = 0, error;
			if (op->done)
				continue;
			error = MPI_Test(&op->request, &over, &status);
			if (!error && !over)
				continue;
			/* After a failure the waits have passed, and the program may have its status back. */
			if (!failed && op->status != MPI_STATUS_IGNORE)
				*op->status = status;
			op->done = 1;
			idle = 0;
			if (error)
				strait_mpi_failed(q, EIO, error, n);
			else if (!failed)
				__atomic_store_n(strait_mpi_word(q, n), STRAIT_MPI_SET | n, __ATOMIC_RELEASE);
		}
		while (done < begun && strait_mpi_at(q, done + 1)->done)
			done++;
		n = strait_mpi_waited(q, done);
		if (n != waited) {
			waited = n;
			since = looked = strait_mpi_now();
			follow = 0;
		} else if (follow > 1) {
			follow--;
		} else if (n && now && now > since && now - since >= __atomic_load_n(&q->timeout_ns, __ATOMIC_RELAXED)) {
			strait_mpi_failed(q, ETIMEDOUT, MPI_ERR_OTHER, n);
		}
		__atomic_store_n(&q->done, done, __ATOMIC_RELEASE);
		strait_mpi_pause(q->mode, idle, &found);
	}
	return NULL;
}

/* Whether libstrait_mpi.so.0 is in the process. */
static inline int strait_mpi_is_packed(void)
{
	char line[4096];
	int found = 0;
	FILE *maps = fopen("/proc/self/maps", "re");
	while (maps && !found && fgets(line, sizeof line, maps))
		found = strstr(line, "/libstrait_mpi.so") != NULL;
	if (maps)
		fclose(maps);
	return found;
}

/* The library packs such a datatype by a kernel. To load that, the driver may wait for the stream, which waits for the operation. */
static inline int strait_mpi_has_gaps(MPI_Datatype datatype)
{
	MPI_Count size = 0, lower = 0, extent = 0;
	return MPI_Type_size_x(datatype, &size) || MPI_Type_get_extent_x(datatype, &lower, &extent) || size != extent;
}

/* Opens a queue for a stream of the calling thread's context. -EOPNOTSUPP: MPI was not initialized with MPI_THREAD_MULTIPLE. */
static inline int strait_mpi_stream_open(void *stream, struct strait_mpi_stream **opened)
{
	const char *mode = getenv("FI_STRAIT_XPU_MODE");
	struct strait_mpi_stream *q;
	void *memory = NULL;
	unsigned i;
	int provided = 0, rc;
	if (!opened)
		return -EINVAL;
	if (MPI_Query_thread(&provided) || provided != MPI_THREAD_MULTIPLE)
		return -EOPNOTSUPP;
	q = (struct strait_mpi_stream *)calloc(1, sizeof *q);
	if (!q)
		return -ENOMEM;
	q->stream = stream;
	q->mode = mode && !strcmp(mode, "performance") ? 1 : mode && !strcmp(mode, "economy") ? 2 : 0;
	q->operations = (struct strait_mpi_operation *)calloc(STRAIT_MPI_STREAM_OPERATIONS, sizeof *q->operations);
	q->timeout_ns = 30000000000u;
	q->packs = strait_mpi_is_packed();
	rc = q->operations ? strait_stream_words_open(192 + 8 * STRAIT_MPI_STREAM_OPERATIONS, &q->page, &memory) : -ENOMEM;
	if (!rc) {
		q->bell = (uint64_t *)memory;
		q->polls = q->bell + 8;
		q->waits = q->bell + 16;
		q->completed = q->bell + 24;
		for (i = 0; i < STRAIT_MPI_STREAM_OPERATIONS; i++)
			q->completed[i] = STRAIT_MPI_SET;
		rc = -pthread_create(&q->agent, NULL, strait_mpi_agent, q);
	}
	if (rc) {
		strait_stream_words_close(q->page);
		free(q->operations);
		free(q);
		return rc;
	}
	*opened = q;
	return 0;
}

/* MPI's error, or 0: it ended the queue. */
static inline int strait_mpi_stream_failed(struct strait_mpi_stream *q) { return __atomic_load_n(&q->error, __ATOMIC_ACQUIRE); }

/* How long the stream waits at most for one operation; UINT64_MAX: without an end. Also while it waits. */
static inline void strait_mpi_stream_set_timeout(struct strait_mpi_stream *q, uint64_t ns) { __atomic_store_n(&q->timeout_ns, ns, __ATOMIC_RELAXED); }

/* What ended the queue; -EAGAIN: nothing did. */
static inline int strait_mpi_stream_failure(struct strait_mpi_stream *q, struct strait_mpi_failure *failure)
{
	if (!strait_mpi_stream_failed(q))
		return -EAGAIN;
	*failure = q->failure;
	return 0;
}

/* The same in words, as snprintf(3) returns them. */
static inline int strait_mpi_stream_describe(struct strait_mpi_stream *q, char *to, size_t room)
{
	struct strait_mpi_failure f;
	if (strait_mpi_stream_failure(q, &f))
		return snprintf(to, room, "the queue has not failed");
	const char *why = f.code == ETIMEDOUT ? "did not complete in time" : f.code == ECANCELED ? "was ended by an abort" : "failed";
	if (f.sends < 0)
		return snprintf(to, room, "the queue %s (MPI error %d)", why, f.error);
	return snprintf(to, room, "operation %llu, a %s rank %d with tag %d, %s (MPI error %d)", (unsigned long long)f.number,
			f.sends ? "send to" : "receive from", f.peer, f.tag, why, f.error);
}

/* How often the agent has polled. */
static inline uint64_t strait_mpi_stream_polls(struct strait_mpi_stream *q) { return __atomic_load_n(q->polls, __ATOMIC_RELAXED); }

/* Ends all waits of the stream: receives are cancelled, and nothing is begun any more. Buffers of what is under way are the MPI's
 * until strait_mpi_stream_close has returned 0. */
static inline void strait_mpi_stream_abort(struct strait_mpi_stream *q) { __atomic_store_n(&q->aborts, 1, __ATOMIC_RELEASE); }

/* Closes a queue, before MPI_Finalize, when the stream is at its end. -EBUSY: an operation has not completed. After a failure it is one
 * that the MPI has not ended: it still has the buffer, the datatype and the communicator. To a peer that is gone an MPI may never end
 * one: leave the queue and the buffers as they are then, until MPI_Abort or the end of the process. */
static inline int strait_mpi_stream_close(struct strait_mpi_stream *q)
{
	if (__atomic_load_n(&q->done, __ATOMIC_ACQUIRE) < q->queued)
		return -EBUSY;
	__atomic_store_n(&q->ends, 1, __ATOMIC_RELEASE);
	pthread_join(q->agent, NULL);
	strait_stream_words_close(q->page);
	free(q->operations);
	free(q);
	return 0;
}

static inline int strait_mpi_enqueue(struct strait_mpi_stream *q, int sends, void *buffer, int count, MPI_Datatype datatype, int peer, int tag,
				     MPI_Comm comm, MPI_Status *status, strait_mpi_request *request)
{
	const uint64_t number = q->queued + 1;
	struct strait_mpi_operation *op = strait_mpi_at(q, number);
	int rc;
	if (strait_mpi_stream_failed(q))
		return -EIO;
	if (number - __atomic_load_n(&q->done, __ATOMIC_ACQUIRE) > STRAIT_MPI_STREAM_OPERATIONS)
		return -EAGAIN;
	if (q->packs && strait_mpi_has_gaps(datatype))
		return -EOPNOTSUPP;
	op->buffer = buffer;
	op->datatype = datatype;
	op->comm = comm;
	op->status = status;
	op->count = count;
	op->peer = peer;
	op->tag = tag;
	op->sends = sends;
	op->done = 0;
	__atomic_store_n(&q->queued, number, __ATOMIC_RELEASE);
	rc = strait_stream_raise_counter(q->stream, q->bell, number);
	if (rc)
		__atomic_store_n(&q->queued, number - 1, __ATOMIC_RELEASE);
	else
		request->number = number;
	return rc;
}

/* Queues what MPI_Isend does: the buffer is readable until a wait for the request has passed. -EAGAIN: 1024 operations have not
 * completed. -EIO: strait_mpi_stream_failed. -EOPNOTSUPP: the datatype has gaps, and libstrait_mpi.so.0 takes the buffers. The datatype and
 * the communicator stay until then. */
static inline int strait_mpi_isend_enqueue(const void *buffer, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
					   struct strait_mpi_stream *q, strait_mpi_request *request)
{
	return strait_mpi_enqueue(q, 1, (void *)(uintptr_t)buffer, count, datatype, dest, tag, comm, MPI_STATUS_IGNORE, request);
}

/* Queues what MPI_Irecv does. `status`, or MPI_STATUS_IGNORE, is written before a wait for the request passes, and stays until then. */
static inline int strait_mpi_irecv_enqueue(void *buffer, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
					   struct strait_mpi_stream *q, MPI_Status *status, strait_mpi_request *request)
{
	return strait_mpi_enqueue(q, 0, buffer, count, datatype, source, tag, comm, status, request);
}

/* Queues a wait for a request, in any order of requests; kernels behind it find the message. A request is waited for once. */
static inline int strait_mpi_wait_enqueue(struct strait_mpi_stream *q, strait_mpi_request *request)
{
	int rc;
	if (!request->number)
		return 0;
	/* The agent knows then what the stream waits for. */
	rc = strait_stream_raise_counter(q->stream, q->waits, request->number);
	if (!rc)
		rc = strait_stream_wait_counter(q->stream, strait_mpi_word(q, request->number), request->number);
	if (!rc)
		request->number = 0;
	return rc;
}

static inline int strait_mpi_waitall_enqueue(struct strait_mpi_stream *q, int count, strait_mpi_request *requests)
{
	int rc = 0, i;
	for (i = 0; i < count && !rc; i++)
		rc = strait_mpi_wait_enqueue(q, &requests[i]);
	return rc;
}

/* Queues what MPI_Send does: behind it the buffer may be written. */
static inline int strait_mpi_send_enqueue(const void *buffer, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm,
					  struct strait_mpi_stream *q)
{
	strait_mpi_request request;
	const int rc = strait_mpi_isend_enqueue(buffer, count, datatype, dest, tag, comm, q, &request);
	return rc ? rc : strait_mpi_wait_enqueue(q, &request);
}

/* Queues what MPI_Recv does. */
static inline int strait_mpi_recv_enqueue(void *buffer, int count, MPI_Datatype datatype, int source, int tag, MPI_Comm comm,
					  struct strait_mpi_stream *q, MPI_Status *status)
{
	strait_mpi_request request;
	const int rc = strait_mpi_irecv_enqueue(buffer, count, datatype, source, tag, comm, q, status, &request);
	return rc ? rc : strait_mpi_wait_enqueue(q, &request);
}

#endif

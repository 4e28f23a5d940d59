/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* libgdsync 2.2's names (gds_*) over strait_stream.h, for programs of GPUDirect Async: link with -lstrait_xpu. docs/streams.md
 * says what a program changes: queue pairs meet by strait_gds_blob and strait_gds_connect, and `qp` and `cq` of the structures
 * are NULL, so that no ibv_* call takes them.
 *
 * Functions return 0 or an errno above 0. A queue pair is used by one thread at a time. STRAIT_GDS_WITHOUT_VERBS, defined
 * before, spares <infiniband/verbs.h>: what gds_* take of it is declared here.
 */
#ifndef STRAIT_GDS_H
#define STRAIT_GDS_H

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "strait_stream.h"

#ifndef STRAIT_GDS_WITHOUT_VERBS
#include <infiniband/verbs.h>
#else
#include "strait_gds/verbs.h"
#endif

typedef struct CUstream_st *CUstream;

#define GDS_API_MAJOR_VERSION 2
#define GDS_API_MINOR_VERSION 2
#define GDS_API_VERSION (((unsigned)GDS_API_MAJOR_VERSION << 16) | (unsigned)GDS_API_MINOR_VERSION)
/* Whether a program of that version runs with this one. */
#define GDS_API_VERSION_COMPATIBLE(v) \
	((unsigned)(v) >> 16 == (unsigned)GDS_API_MAJOR_VERSION && ((unsigned)(v) & 0xffffu) >= (unsigned)GDS_API_MINOR_VERSION)

typedef enum gds_param { GDS_PARAM_VERSION, GDS_NUM_PARAMS } gds_param_t;

/* Where queues are in libgdsync; here taken, and without a meaning. */
enum gds_create_qp_flags {
	GDS_CREATE_QP_DEFAULT = 0,
	GDS_CREATE_QP_WQ_ON_GPU = 1 << 0,
	GDS_CREATE_QP_TX_CQ_ON_GPU = 1 << 1,
	GDS_CREATE_QP_RX_CQ_ON_GPU = 1 << 2,
	GDS_CREATE_QP_WQ_DBREC_ON_GPU = 1 << 5
};

typedef enum gds_memory_type {
	GDS_MEMORY_GPU = 1,  /* of cuMemAlloc or cuMemHostAlloc */
	GDS_MEMORY_HOST = 2, /* page-locked by the program (cuMemHostRegister) */
	GDS_MEMORY_IO = 4,   /* refused */
	GDS_MEMORY_MASK = 7
} gds_memory_type_t;

typedef enum gds_wait_flags { GDS_WAIT_POST_FLUSH_REMOTE = 1 << 3, GDS_WAIT_POST_FLUSH = 1 << 3 } gds_wait_flags_t;
/* The driver has a barrier before each store, and the next one, or the end of the stream, behind it. */
typedef enum gds_write_flags { GDS_WRITE_PRE_BARRIER_SYS = 1 << 4, GDS_WRITE_PRE_BARRIER = 1 << 4 } gds_write_flags_t;
typedef enum gds_write_memory_flags {
	GDS_WRITE_MEMORY_POST_BARRIER_SYS = 1 << 4,
	GDS_WRITE_MEMORY_PRE_BARRIER_SYS = 1 << 5
} gds_write_memory_flags_t;
typedef enum gds_membar_flags {
	GDS_MEMBAR_FLUSH_REMOTE = 1 << 4,
	GDS_MEMBAR_DEFAULT = 1 << 5,
	GDS_MEMBAR_SYS = 1 << 6
} gds_membar_flags_t;
typedef enum gds_wait_cond_flag {
	GDS_WAIT_COND_GEQ = STRAIT_STREAM_GEQ,
	GDS_WAIT_COND_EQ = STRAIT_STREAM_EQ,
	GDS_WAIT_COND_AND = STRAIT_STREAM_AND,
	GDS_WAIT_COND_NOR = STRAIT_STREAM_NOR
} gds_wait_cond_flag_t;

typedef struct ibv_qp_init_attr gds_qp_init_attr_t;
typedef struct ibv_send_wr gds_send_wr;

/* A message: what is posted, and how it completes. */
struct strait_gds_work {
	uint64_t wr_id;
	void *buffer;
	uint32_t length;
	uint32_t region;    /* of an RDMA write: rkey, the number of the peer's registration */
	uint64_t offset;    /* of an RDMA write: remote_addr, bytes from the first one of the registration */
	uint64_t done_with; /* how many calls the stream has executed then; 0: it is done */
	int writes;         /* an RDMA write */
};

/* The work of one direction: `posted`, of it `queued` in streams or done, of it `polled`. */
struct strait_gds_ring {
	struct strait_gds_work *work;
	uint64_t room, posted, queued, polled;
	uint64_t calls; /* queued in streams */
};

struct strait_gds_qp;
struct gds_cq {
	struct ibv_cq *cq;    /* NULL */
	uint32_t curr_offset; /* completions that were waited for */
	struct strait_gds_qp *strait;
};

struct gds_qp {
	struct ibv_qp *qp; /* NULL */
	struct gds_cq send_cq, recv_cq;
	struct ibv_context *dev_context;
};

struct strait_gds_qp {
	struct gds_qp qp;
	struct strait_stream *endpoint;
	struct strait_gds_ring sends, receives;
};

typedef struct gds_send_request {
	struct gds_qp *qp;
	struct strait_gds_work work;
} gds_send_request_t;

typedef struct gds_wait_request {
	struct gds_cq *cq;
	uint64_t number; /* of the completion */
} gds_wait_request_t;

typedef struct gds_wait_value32 {
	uint32_t *ptr, value;
	gds_wait_cond_flag_t cond_flags;
	int flags;
} gds_wait_value32_t;

typedef struct gds_write_value32 {
	uint32_t *ptr, value;
	int flags;
} gds_write_value32_t;

typedef struct gds_write_memory {
	uint8_t *dest;
	const uint8_t *src;
	size_t count;
	int flags;
} gds_write_memory_t;

typedef enum gds_tag {
	GDS_TAG_SEND,
	GDS_TAG_WAIT,
	GDS_TAG_WAIT_VALUE32,
	GDS_TAG_WRITE_VALUE32,
	GDS_TAG_WRITE_MEMORY
} gds_tag_t;

typedef struct gds_descriptor {
	gds_tag_t tag;
	union {
		gds_send_request_t *send;
		gds_wait_request_t *wait;
		gds_wait_value32_t wait32;
		gds_write_value32_t write32;
		gds_write_memory_t writemem;
	};
} gds_descriptor_t;

/* The version of the interface. */
static inline int gds_query_param(gds_param_t param, int *value)
{
	if (param != GDS_PARAM_VERSION || !value)
		return EINVAL;
	*value = (int)GDS_API_VERSION;
	return 0;
}

static inline struct strait_gds_qp *strait_gds_of(struct gds_qp *qp) { return (struct strait_gds_qp *)(void *)qp; }

/* The endpoint of strait_stream.h: for strait_stream_failed, _query, _register. */
static inline struct strait_stream *strait_gds_endpoint(struct gds_qp *qp) { return strait_gds_of(qp)->endpoint; }

/* What the peer passes to strait_gds_connect, in place of LID, QPN and GID. ENOSPC: `length` says how much it is. */
static inline int strait_gds_blob(struct gds_qp *qp, void *buffer, size_t *length)
{
	return -strait_stream_blob(strait_gds_endpoint(qp), buffer, length);
}

/* Connects, in place of ibv_modify_qp and ibv_create_ah. Both sides call it, and each waits for the other. */
static inline int strait_gds_connect(struct gds_qp *qp, const void *blob, size_t length)
{
	return -strait_stream_connect(strait_gds_endpoint(qp), blob, length);
}

/* Destroys a queue pair. EBUSY: a stream has not executed what it was given; the queue pair is as before. */
static inline int gds_destroy_qp(struct gds_qp *qp)
{
	struct strait_gds_qp *s = strait_gds_of(qp);
	const int rc = s ? strait_stream_close(s->endpoint) : -EINVAL;
	if (rc)
		return -rc;
	free(s->sends.work);
	free(s->receives.work);
	free(s);
	return 0;
}

/* Creates a queue pair; the calling thread's CUDA context is current and is of the GPU. `pd` and `context` are not used, and
 * may be NULL. NULL and errno: EOPNOTSUPP of IBV_QPT_UD, whose address handles have no counterpart. */
static inline struct gds_qp *gds_create_qp(struct ibv_pd *pd, struct ibv_context *context, gds_qp_init_attr_t *attr, int gpu_id, int flags)
{
	struct strait_gds_qp *s;
	int rc;
	(void)pd, (void)gpu_id;
	if (!attr || flags & ~(GDS_CREATE_QP_WQ_ON_GPU | GDS_CREATE_QP_TX_CQ_ON_GPU | GDS_CREATE_QP_RX_CQ_ON_GPU | GDS_CREATE_QP_WQ_DBREC_ON_GPU)) {
		errno = EINVAL;
		return NULL;
	}
	if (attr->qp_type == IBV_QPT_UD) {
		errno = EOPNOTSUPP;
		return NULL;
	}
	s = (struct strait_gds_qp *)calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->sends.room = attr->cap.max_send_wr ? attr->cap.max_send_wr : 1;
	s->receives.room = attr->cap.max_recv_wr ? attr->cap.max_recv_wr : 1;
	s->sends.work = (struct strait_gds_work *)calloc(s->sends.room, sizeof *s->sends.work);
	s->receives.work = (struct strait_gds_work *)calloc(s->receives.room, sizeof *s->receives.work);
	rc = s->sends.work && s->receives.work ? -strait_stream_open(NULL, &s->endpoint) : ENOMEM;
	if (rc) {
		free(s->sends.work);
		free(s->receives.work);
		free(s);
		errno = rc;
		return NULL;
	}
	s->qp.dev_context = context;
	s->qp.send_cq.strait = s->qp.recv_cq.strait = s;
	return &s->qp;
}

#include "strait_gds/calls.h"

#endif

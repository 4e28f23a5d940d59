/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The calls of strait_gds.h that post, wait and poll, which includes this file. */
#ifndef STRAIT_GDS_CALLS_H
#define STRAIT_GDS_CALLS_H

/* Bytes of a slot of an endpoint without options: a message takes an entry of a list for each that it fills. */
#define STRAIT_GDS_SLOT 65536u

static inline struct strait_gds_work *strait_gds_at(struct strait_gds_ring *ring, uint64_t number)
{
	return &ring->work[number % ring->room];
}

static inline int strait_gds_push(struct strait_gds_ring *ring, const struct strait_gds_work *work)
{
	if (ring->posted - ring->polled == ring->room)
		return ENOMEM;
	*strait_gds_at(ring, ring->posted++) = *work;
	return 0;
}

static inline int strait_gds_buffer(struct strait_gds_work *work, uint64_t wr_id, const struct ibv_sge *sge, int count)
{
	memset(work, 0, sizeof *work);
	work->wr_id = wr_id;
	if (count > 1 || count < 0 || (count == 1 && !sge))
		return EINVAL;
	if (count == 1) {
		work->buffer = (void *)(uintptr_t)sge->addr;
		work->length = sge->length;
	}
	return 0;
}

/* One request: IBV_WR_SEND, or IBV_WR_RDMA_WRITE with the number of the peer's registration as rkey and an offset in it as
 * remote_addr. Each completes. */
static inline int strait_gds_send_work(struct strait_gds_work *work, const gds_send_wr *wr)
{
	const int rc = strait_gds_buffer(work, wr->wr_id, wr->sg_list, wr->num_sge);
	if (wr->opcode == IBV_WR_RDMA_WRITE) {
		work->writes = 1;
		work->region = wr->wr.rdma.rkey;
		work->offset = wr->wr.rdma.remote_addr;
	} else if (wr->opcode != IBV_WR_SEND) {
		return EOPNOTSUPP;
	}
	return rc;
}

static inline struct strait_stream_transfer strait_gds_transfer(const struct strait_gds_work *work)
{
	struct strait_stream_transfer t;
	memset(&t, 0, sizeof t);
	t.size = sizeof t;
	t.local = work->buffer;
	t.length = work->length;
	t.offset = work->offset;
	t.region = work->region;
	t.signal = STRAIT_STREAM_NO_SIGNAL;
	return t;
}

/* Has the calling thread send or receive, and waits until that is done. */
static inline int strait_gds_by_cpu(struct strait_gds_qp *s, struct strait_gds_work *work, int sends)
{
	struct strait_stream_list *list = NULL;
	const struct strait_stream_transfer t = strait_gds_transfer(work);
	int rc = strait_stream_list_open(s->endpoint, 1 + work->length / STRAIT_GDS_SLOT, &list);
	if (rc)
		return -rc;
	if (work->writes)
		rc = strait_stream_list_put(list, &t);
	else if (sends)
		rc = strait_stream_list_send(list, work->buffer, work->length);
	else
		rc = strait_stream_list_receive(list, work->buffer, work->length);
	if (!rc)
		rc = strait_stream_list_run_on_cpu(list);
	strait_stream_list_close(list);
	work->done_with = 0;
	return -rc;
}

static inline int strait_gds_send(struct strait_gds_qp *s, CUstream stream, int by_cpu, const struct strait_gds_work *of)
{
	struct strait_gds_work work = *of;
	const struct strait_stream_transfer t = strait_gds_transfer(&work);
	int rc;
	if (s->sends.posted - s->sends.polled == s->sends.room)
		return ENOMEM;
	if (by_cpu)
		rc = strait_gds_by_cpu(s, &work, 1);
	else if (work.writes)
		rc = -strait_stream_put(s->endpoint, stream, &t);
	else
		rc = -strait_stream_send(s->endpoint, stream, work.buffer, work.length);
	if (rc)
		return rc;
	if (!by_cpu)
		work.done_with = ++s->sends.calls;
	s->sends.queued++;
	return strait_gds_push(&s->sends, &work);
}

static inline int strait_gds_send_all(CUstream stream, int by_cpu, struct gds_qp *qp, gds_send_wr *wr, gds_send_wr **bad)
{
	struct strait_gds_work work;
	int rc = qp && wr ? 0 : EINVAL;
	for (; !rc && wr; wr = wr->next) {
		rc = strait_gds_send_work(&work, wr);
		if (!rc)
			rc = strait_gds_send(strait_gds_of(qp), stream, by_cpu, &work);
		if (rc)
			break;
	}
	if (bad)
		*bad = wr;
	return rc;
}

/* Sends, by the calling thread; waits for room at the peer. */
static inline int gds_post_send(struct gds_qp *qp, gds_send_wr *wr, gds_send_wr **bad_wr)
{
	return strait_gds_send_all(NULL, 1, qp, wr, bad_wr);
}

/* Queues sends in a stream. */
static inline int gds_stream_queue_send(CUstream stream, struct gds_qp *qp, gds_send_wr *wr, gds_send_wr **bad_wr)
{
	return strait_gds_send_all(stream, 0, qp, wr, bad_wr);
}

/* Posts receives. A message is copied to its buffer by the wait for it, and has the buffer's length. */
static inline int gds_post_recv(struct gds_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr)
{
	struct strait_gds_work work;
	int rc = qp && wr ? 0 : EINVAL;
	for (; !rc && wr; wr = wr->next) {
		rc = strait_gds_buffer(&work, wr->wr_id, wr->sg_list, wr->num_sge);
		if (!rc)
			rc = strait_gds_push(&strait_gds_of(qp)->receives, &work);
		if (rc)
			break;
	}
	if (bad_wr)
		*bad_wr = wr;
	return rc;
}

/* Names the next completion of a queue. */
static inline int gds_prepare_wait_cq(struct gds_cq *cq, gds_wait_request_t *request, int flags)
{
	if (!cq || !request || flags)
		return EINVAL;
	request->cq = cq;
	request->number = cq->curr_offset++;
	return 0;
}

/* The waits for receives are queued in the order in which they were prepared. A send has completed for what is behind it in its
 * stream. */
static inline int strait_gds_wait(CUstream stream, int by_cpu, const gds_wait_request_t *request)
{
	struct strait_gds_qp *s;
	struct strait_gds_work *work;
	int rc;
	if (!request || !request->cq)
		return EINVAL;
	s = request->cq->strait;
	if (request->cq == &s->qp.send_cq)
		return (uint32_t)request->number < (uint32_t)s->sends.posted ? 0 : ENOENT;
	if ((uint32_t)request->number != (uint32_t)s->receives.queued)
		return EINVAL;
	if (s->receives.queued == s->receives.posted)
		return ENOENT;
	work = strait_gds_at(&s->receives, s->receives.queued);
	if (by_cpu)
		rc = strait_gds_by_cpu(s, work, 0);
	else
		rc = -strait_stream_receive(s->endpoint, stream, work->buffer, work->length);
	if (rc)
		return rc;
	if (!by_cpu)
		work->done_with = ++s->receives.calls;
	s->receives.queued++;
	return 0;
}

/* Queues the wait that was prepared. ENOENT: nothing was posted whose completion that is. */
static inline int gds_stream_post_wait_cq(CUstream stream, gds_wait_request_t *request)
{
	return strait_gds_wait(stream, 0, request);
}

static inline int gds_stream_post_wait_cq_all(CUstream stream, int count, gds_wait_request_t *requests)
{
	int rc = 0, i;
	for (i = 0; i < count && !rc; i++)
		rc = gds_stream_post_wait_cq(stream, &requests[i]);
	return rc;
}

/* Has the calling thread wait, in place of a stream. */
static inline int gds_post_wait_cq(struct gds_cq *cq, gds_wait_request_t *request, int flags)
{
	return flags || !request || request->cq != cq ? EINVAL : strait_gds_wait(NULL, 1, request);
}

/* Queues a wait for the next completion of a queue. */
static inline int gds_stream_wait_cq(CUstream stream, struct gds_cq *cq, int flags)
{
	gds_wait_request_t request;
	int rc = gds_prepare_wait_cq(cq, &request, flags);
	if (rc)
		return rc;
	rc = gds_stream_post_wait_cq(stream, &request);
	if (rc)
		cq->curr_offset--;
	return rc;
}

static inline int gds_prepare_send(struct gds_qp *qp, gds_send_wr *wr, gds_send_wr **bad_wr, gds_send_request_t *request)
{
	int rc = qp && wr && !wr->next && request ? 0 : EINVAL;
	if (!rc) {
		request->qp = qp;
		rc = strait_gds_send_work(&request->work, wr);
	}
	if (bad_wr)
		*bad_wr = rc ? wr : NULL;
	return rc;
}

static inline int gds_stream_post_send(CUstream stream, gds_send_request_t *request)
{
	return request && request->qp ? strait_gds_send(strait_gds_of(request->qp), stream, 0, &request->work) : EINVAL;
}

static inline int gds_stream_post_send_all(CUstream stream, int count, gds_send_request_t *requests)
{
	int rc = 0, i;
	for (i = 0; i < count && !rc; i++)
		rc = gds_stream_post_send(stream, &requests[i]);
	return rc;
}

/* Takes completions that the stream has passed. Once the endpoint has failed, all that is left completes with an error. */
static inline int gds_poll_cq(struct gds_cq *cq, int count, struct ibv_wc *wc)
{
	struct strait_gds_qp *s = cq ? cq->strait : NULL;
	struct strait_stream_failure failure;
	uint64_t done[2] = {0, 0};
	struct strait_gds_ring *ring;
	int sends, n = 0;
	if (!s || !wc || count < 0)
		return -EINVAL;
	memset(&failure, 0, sizeof failure);
	failure.size = sizeof failure;
	/* In this order: what failed is seen with what was executed. */
	if (strait_stream_executed(s->endpoint, &done[0], &done[1]) || strait_stream_failed(s->endpoint, &failure))
		return -EINVAL;
	sends = cq == &s->qp.send_cq;
	ring = sends ? &s->sends : &s->receives;
	while (n < count && ring->polled < (failure.code ? ring->posted : ring->queued)) {
		const struct strait_gds_work *work = strait_gds_at(ring, ring->polled);
		if (!failure.code && work->done_with > done[sends ? 0 : 1])
			break;
		memset(&wc[n], 0, sizeof wc[n]);
		wc[n].wr_id = work->wr_id;
		wc[n].byte_len = work->length;
		wc[n].opcode = !sends ? IBV_WC_RECV : work->writes ? IBV_WC_RDMA_WRITE : IBV_WC_SEND;
		if (failure.code == EMSGSIZE)
			wc[n].status = IBV_WC_LOC_LEN_ERR;
		else if (failure.code == ECONNRESET || failure.code == ETIMEDOUT)
			wc[n].status = IBV_WC_RETRY_EXC_ERR;
		else
			wc[n].status = failure.code ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS;
		ring->polled++;
		n++;
	}
	return n;
}

static inline int strait_gds_memory(int flags, int others)
{
	const int type = flags & GDS_MEMORY_MASK;
	if (flags & ~(GDS_MEMORY_MASK | others) || (type != GDS_MEMORY_GPU && type != GDS_MEMORY_HOST && type != GDS_MEMORY_IO))
		return EINVAL;
	return type == GDS_MEMORY_IO ? EOPNOTSUPP : 0;
}

static inline int gds_prepare_wait_value32(gds_wait_value32_t *desc, uint32_t *ptr, uint32_t value, gds_wait_cond_flag_t cond_flags, int flags)
{
	if (!desc || !ptr || cond_flags < GDS_WAIT_COND_GEQ || cond_flags > GDS_WAIT_COND_NOR)
		return EINVAL;
	desc->ptr = ptr;
	desc->value = value;
	desc->cond_flags = cond_flags;
	desc->flags = flags;
	return strait_gds_memory(flags, GDS_WAIT_POST_FLUSH_REMOTE);
}

static inline int gds_prepare_write_value32(gds_write_value32_t *desc, uint32_t *ptr, uint32_t value, int flags)
{
	if (!desc || !ptr)
		return EINVAL;
	desc->ptr = ptr;
	desc->value = value;
	desc->flags = flags;
	return strait_gds_memory(flags, GDS_WRITE_PRE_BARRIER_SYS);
}

/* `count` is a multiple of 4 up to 1020, and `dest` is aligned to 4. */
static inline int gds_prepare_write_memory(gds_write_memory_t *desc, uint8_t *dest, const uint8_t *src, size_t count, int flags)
{
	if (!desc || !dest || !src)
		return EINVAL;
	desc->dest = dest;
	desc->src = src;
	desc->count = count;
	desc->flags = flags;
	return strait_gds_memory(flags, GDS_WRITE_MEMORY_POST_BARRIER_SYS | GDS_WRITE_MEMORY_PRE_BARRIER_SYS);
}

/* Polls a word, as a stream would. */
static inline void strait_gds_spin(const gds_wait_value32_t *desc)
{
	for (;; sched_yield()) {
		const uint32_t word = __atomic_load_n(desc->ptr, __ATOMIC_ACQUIRE), value = desc->value;
		if ((desc->cond_flags == GDS_WAIT_COND_GEQ && (int32_t)(word - value) >= 0) || (desc->cond_flags == GDS_WAIT_COND_EQ && word == value) ||
		    (desc->cond_flags == GDS_WAIT_COND_AND && word & value) || (desc->cond_flags == GDS_WAIT_COND_NOR && ~(word | value)))
			return;
	}
}

static inline int strait_gds_one(CUstream stream, int by_cpu, gds_descriptor_t *desc)
{
	switch (desc->tag) {
	case GDS_TAG_SEND:
		return desc->send && desc->send->qp ? strait_gds_send(strait_gds_of(desc->send->qp), stream, by_cpu, &desc->send->work) : EINVAL;
	case GDS_TAG_WAIT:
		return strait_gds_wait(stream, by_cpu, desc->wait);
	case GDS_TAG_WAIT_VALUE32:
		if (by_cpu) {
			strait_gds_spin(&desc->wait32);
			return 0;
		}
		return -strait_stream_wait_value32(stream, desc->wait32.ptr, desc->wait32.value,
						   (uint32_t)desc->wait32.cond_flags | (desc->wait32.flags & GDS_WAIT_POST_FLUSH_REMOTE ? STRAIT_STREAM_FLUSH : 0u));
	case GDS_TAG_WRITE_VALUE32:
		if (by_cpu) {
			__atomic_store_n(desc->write32.ptr, desc->write32.value, __ATOMIC_RELEASE);
			return 0;
		}
		return -strait_stream_write_value32(stream, desc->write32.ptr, desc->write32.value);
	case GDS_TAG_WRITE_MEMORY:
		if (by_cpu) {
			memcpy(desc->writemem.dest, desc->writemem.src, desc->writemem.count);
			__atomic_thread_fence(__ATOMIC_SEQ_CST);
			return 0;
		}
		return -strait_stream_write_memory(stream, desc->writemem.dest, desc->writemem.src, desc->writemem.count);
	}
	return EINVAL;
}

static inline int strait_gds_each(CUstream stream, int by_cpu, size_t count, gds_descriptor_t *descs, int flags)
{
	size_t i;
	int rc = flags || (count && !descs) ? EINVAL : 0;
	for (i = 0; i < count && !rc; i++)
		rc = (unsigned)descs[i].tag > GDS_TAG_WRITE_MEMORY ? EINVAL : 0;
	for (i = 0; i < count && !rc; i++)
		rc = strait_gds_one(stream, by_cpu, &descs[i]);
	return rc;
}

/* Queues descriptors in a stream. What is before one that is refused stays queued. */
static inline int gds_stream_post_descriptors(CUstream stream, size_t n_descs, gds_descriptor_t *descs, int flags)
{
	return strait_gds_each(stream, 0, n_descs, descs, flags);
}

/* Has the calling thread carry descriptors out. Words and memory are the host's; messages may be in a device's memory. */
static inline int gds_post_descriptors(size_t n_descs, gds_descriptor_t *descs, int flags)
{
	return strait_gds_each(NULL, 1, n_descs, descs, flags);
}

#endif

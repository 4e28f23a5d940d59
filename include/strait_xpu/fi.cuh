/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The functions of fi_xpu(3). Included by strait_fi_xpu_device.cuh. */
#ifndef STRAIT_XPU_FI_CUH
#define STRAIT_XPU_FI_CUH

namespace strait {
namespace xpu {
namespace fi {

/* libfabric's numbers. */
enum : u64 {
	msg = 1ULL << 1, rma = 1ULL << 2, tagged = 1ULL << 3, atomic = 1ULL << 4, read = 1ULL << 8, write = 1ULL << 9,
	recv = 1ULL << 10, send = 1ULL << 11, remote_write = 1ULL << 13, remote_cq_data = 1ULL << 17, more = 1ULL << 18,
	fence = 1ULL << 21, completion = 1ULL << 24, inject = 1ULL << 25, all_complete = 7ULL << 26
};
enum : int { opnotsupp = -95, eavail = -259 };
enum : u64 { format_context = 1, format_msg = 2, format_data = 3, format_tagged = 4 };
enum : u64 { addr_notavail = ~0ULL };

STRAIT_XPU_FN bool ours(const fid_xpu &f) { return f.prov_id == STRAIT_XPU_PROV_ID; }

/* What a raw address or descriptor says. */
STRAIT_XPU_FN u32 number(const void *at, u32 otherwise) { return at ? (u32)hw::load_payload((const u64 *)at) : otherwise; }

/* Bytes of an element, or 0: FI_INT8 to FI_UINT64, FI_FLOAT, FI_DOUBLE, FI_FLOAT_COMPLEX. */
STRAIT_XPU_FN u32 width(int datatype)
{
	return datatype < 0 ? 0 : datatype < 8 ? 1u << datatype / 2 : datatype == 8 ? 4 : datatype == 9 || datatype == 10 ? 8 : 0;
}

STRAIT_XPU_FN u64 element(const void *at, u32 bytes) { return at ? detail::gather8((const u8 *)at, bytes) : 0; }

/* The command of this thread. `used`: it reads or writes local memory, which the kernel may have used. */
template <scope S> STRAIT_XPU_FN int post_as(ring &r, const strait_xpu_command &c, bool used)
{
	if (used)
		hw::fence();
	return S == scope::thread ? post<scope::thread>(r, c) : post_each(r, c, true);
}

STRAIT_XPU_FN int post(const fid_xpu &fid, strait_xpu_command c, u64 flags, bool used, int group)
{
	const strait_xpu_ring *from = (const strait_xpu_ring *)fid.prov_ctx;
	const bool receives = c.op == STRAIT_XPU_OP_RECV || c.op == STRAIT_XPU_OP_TRECV;
	ring r;
	int rc = open_ring(&r, from);
	if (flags & ~(u64)(remote_cq_data | more | fence | completion | inject | all_complete))
		rc = err_inval;
	c.flags |= STRAIT_XPU_COMPLETION;
	if (flags & fence && !receives)
		c.flags |= STRAIT_XPU_FENCE;
	if (flags & more)
		c.flags |= STRAIT_XPU_MORE;
	if (c.length > STRAIT_XPU_LENGTH_MASK)
		rc = err_msgsize;
	if (group == FI_XPU_WORK_ITEM)
		return rc != ok ? rc : post_as<scope::thread>(r, c, used);
	if (group != FI_XPU_SUBGROUP && group != FI_XPU_WORK_GROUP)
		return opnotsupp;
	/* All threads of the scope come here, also those that are refused: what they wrote is ordered before the fences. */
	if (group == FI_XPU_WORK_GROUP)
		hw::sync<scope::block>();
	else
		hw::sync<scope::warp>();
	/* A warp reserves at once: what one thread may not post, none of it does. */
	const u64 refused = hw::ballot(rc != ok);
	if (refused) {
		u32 first = 0;
		while (!(refused >> first & 1))
			first++;
		return (int)(u32)hw::shuffle((u32)rc, first);
	}
	return post_as<scope::warp>(r, c, used);
}

/* Of an operation with bytes: where they are. Up to 8 that leave are in the command. False: injected, and too many. */
STRAIT_XPU_FN bool payload(strait_xpu_command *c, const void *buf, u64 len, void *desc, bool leaves, u64 flags)
{
	c->length = len;
	c->local = (u64)buf;
	c->region = number(desc, STRAIT_XPU_NO_REGION);
	if (leaves && len <= STRAIT_XPU_INLINE_MAX) {
		c->local = detail::gather8((const u8 *)buf, len);
		c->region = STRAIT_XPU_NO_REGION;
		c->flags |= STRAIT_XPU_INLINE_DATA;
	}
	return !(flags & inject) || (leaves && len <= STRAIT_XPU_INLINE_MAX);
}

STRAIT_XPU_FN strait_xpu_command command(u32 op, const void *addr, void *context)
{
	return strait_xpu_command{op, 0, number(addr, STRAIT_XPU_ANY), STRAIT_XPU_NO_REGION, 0, 0, 0, 0, 0, 0, (u64)context};
}

STRAIT_XPU_FN int transfer(const fid_xpu &fid, strait_xpu_command c, const void *buf, u64 len, void *desc, bool leaves,
			   u64 data, u64 flags, int group)
{
	const bool fits = payload(&c, buf, len, desc, leaves, flags);
	if (leaves && flags & remote_cq_data) {
		c.flags |= STRAIT_XPU_CQ_DATA;
		c.operand = data;
	}
	/* All threads of a group make the call that they wait in: a flag that there is not refuses it. */
	return post(fid, c, fits ? flags : ~0ULL, !(c.flags & STRAIT_XPU_INLINE_DATA), group);
}

STRAIT_XPU_FN int atomics(const fid_xpu &fid, strait_xpu_command c, const void *buf, u64 count, const void *compare, void *result,
			  void *result_desc, u64 addr, u64 key, int datatype, int op, u64 flags, int group)
{
	const u32 bytes = width(datatype);
	c.remote = addr;
	c.key = key;
	c.length = (u64)(u32)datatype | (u64)((u32)op & 0xff) << 8;
	c.operand = element(buf, bytes);
	c.value = element(compare, bytes);
	if (c.op != STRAIT_XPU_OP_ATOMIC) {
		c.local = (u64)result;
		c.region = number(result_desc, STRAIT_XPU_NO_REGION);
	}
	const bool good = count == 1 && bytes && op >= 0 && op < 256;
	return post(fid, c, good ? flags & ~(u64)inject : ~0ULL, c.op != STRAIT_XPU_OP_ATOMIC, group);
}

/* ---- Completion queues: by one thread of the group, for all ---- */

/* What a completion's flags are in libfabric. */
STRAIT_XPU_FN u64 flags_of(const strait_xpu_completion &e)
{
	const u64 data = e.what >> 8 & 1 ? (u64)remote_cq_data : 0;
	switch (e.what & 0xff) {
	case STRAIT_XPU_OP_PUT:
	case STRAIT_XPU_OP_PUT_SIGNAL:
	case STRAIT_XPU_OP_SIGNAL: return rma | write;
	case STRAIT_XPU_OP_GET: return rma | read;
	case STRAIT_XPU_OP_ATOMIC: return atomic | write;
	case STRAIT_XPU_OP_FETCH:
	case STRAIT_XPU_OP_COMPARE: return atomic | read;
	case STRAIT_XPU_OP_SEND: return msg | send;
	case STRAIT_XPU_OP_TSEND: return tagged | send;
	case STRAIT_XPU_OP_RECV: return msg | recv | data;
	case STRAIT_XPU_OP_TRECV: return tagged | recv | data;
	case 0: return rma | remote_write | data;
	default: return 0;
	}
}

/* The next entry stays where it is: 0, err_again, or err_canceled. */
STRAIT_XPU_FN int peek(const strait_xpu_queue *q, strait_xpu_completion *to, u64 *at)
{
	if (q->version != STRAIT_XPU_VERSION || q->log2_entries > 31)
		return err_inval;
	*at = hw::load_relaxed(&((strait_xpu_queue_read *)q->read)->read);
	const strait_xpu_completion *e = (const strait_xpu_completion *)q->entries + (*at & ((1ULL << q->log2_entries) - 1));
	if (hw::load_acquire(&e->commit) != *at + 1)
		return hw::load_relaxed(&q->error) & STRAIT_XPU_ERROR_ENDED ? (int)err_canceled : (int)err_again;
	for (unsigned i = 0; i < 8; i++)
		((u64 *)to)[i] = hw::load_payload((const u64 *)e + i);
	return ok;
}

STRAIT_XPU_FN void done_with(const strait_xpu_queue *q, u64 at) { hw::store_release(&((strait_xpu_queue_read *)q->read)->read, at + 1); }

STRAIT_XPU_FN unsigned words_of(u64 format)
{
	return format == format_tagged ? 6 : format == format_data ? 5 : format == format_msg ? 3 : 1;
}

STRAIT_XPU_FN i64 take(const strait_xpu_queue *q, u64 *buf, u64 count, u64 *from)
{
	const unsigned words = words_of(q->format);
	u64 n = 0, at = 0;
	for (; n < count; n++) {
		strait_xpu_completion e;
		const int rc = peek(q, &e, &at);
		if (rc != ok)
			return n ? (i64)n : rc;
		if (e.what >> 32)
			return n ? (i64)n : (i64)eavail;
		const u64 entry[6] = {e.context, flags_of(e), e.length, 0, e.data, e.tag};
		for (unsigned i = 0; buf && i < words; i++)
			buf[n * words + i] = entry[i];
		if (from)
			from[n] = e.source == STRAIT_XPU_ANY ? (u64)addr_notavail : e.source;
		done_with(q, at);
	}
	return (i64)n;
}

STRAIT_XPU_FN i64 take_error(const strait_xpu_queue *q, u64 *buf)
{
	strait_xpu_completion e;
	u64 at = 0;
	const int rc = peek(q, &e, &at);
	if (rc != ok)
		return rc;
	if (e.what >> 32 == 0)
		return err_again;
	/* struct fi_cq_err_entry, up to prov_errno: there is no err_data. */
	const u64 entry[8] = {e.context, flags_of(e), e.length, 0, e.data, e.tag, 0, e.what >> 32};
	for (unsigned i = 0; i < 8; i++)
		buf[i] = entry[i];
	done_with(q, at);
	return 1;
}

/* `wait`: until there is one, or the queue's time is over. */
template <scope S> STRAIT_XPU_FN i64 read_as(const strait_xpu_queue *q, void *buf, u64 count, u64 *from, bool wait, bool errors)
{
	i64 n = 0;
	hw::sync<S>();
	if (hw::rank<S>() == 0) {
		detail::limit l = detail::limit_of(q->timeout_ns, wait ? (i64)default_timeout : 0);
		for (;;) {
			n = errors ? take_error(q, (u64 *)buf) : take(q, (u64 *)buf, count, from);
			if (n != err_again || !wait || count == 0 || detail::after_poll(&l) != ok)
				break;
		}
	}
	n = (i64)hw::broadcast<S>((u64)n);
	detail::order_warp<S>();
	return n;
}

STRAIT_XPU_FN i64 read_queue(const fid_xpu &fid, void *buf, u64 count, void *from, bool wait, bool errors, int group)
{
	const strait_xpu_queue *q = (const strait_xpu_queue *)fid.prov_ctx;
	switch (group) {
	case FI_XPU_WORK_ITEM: return read_as<scope::thread>(q, buf, count, (u64 *)from, wait, errors);
	case FI_XPU_SUBGROUP: return read_as<scope::warp>(q, buf, count, (u64 *)from, wait, errors);
	case FI_XPU_WORK_GROUP: return read_as<scope::block>(q, buf, count, (u64 *)from, wait, errors);
	default: return opnotsupp;
	}
}

/* ---- Counters ---- */

STRAIT_XPU_FN strait_xpu_counter *counter(const fid_xpu &fid) { return (strait_xpu_counter *)fid.prov_ctx; }

STRAIT_XPU_FN u64 errors(const strait_xpu_counter *c)
{
	return read_counter_errors(c) + hw::load_relaxed(&c->device.errors_added);
}

} // namespace fi
} // namespace xpu
} // namespace strait

#if defined(STRAIT_XPU_HOST)
#define STRAIT_FI_FN static inline
#else
#define STRAIT_FI_FN __device__ static inline
#endif
#define STRAIT_FI strait::xpu::fi
typedef strait_xpu_u64 strait_fi_u64;

STRAIT_FI_FN int fi_xpu_write(struct fid_xpu_ep *ep, const void *buf, size_t len, void *desc, strait_fi_u64 data, void *dest_addr,
			      strait_fi_u64 addr, strait_fi_u64 key, void *context, strait_fi_u64 flags, int scope)
{
	if (!STRAIT_FI::ours(ep->fid))
		return STRAIT_FI_OTHER(write(ep, buf, len, desc, data, dest_addr, addr, key, context, flags, scope), -38);
	strait_xpu_command c = STRAIT_FI::command(STRAIT_XPU_OP_PUT, dest_addr, context);
	c.remote = addr;
	c.key = key;
	return STRAIT_FI::transfer(ep->fid, c, buf, len, desc, true, data, flags, scope);
}

STRAIT_FI_FN int fi_xpu_read(struct fid_xpu_ep *ep, void *buf, size_t len, void *desc, void *src_addr, strait_fi_u64 addr,
			     strait_fi_u64 key, void *context, strait_fi_u64 flags, int scope)
{
	if (!STRAIT_FI::ours(ep->fid))
		return STRAIT_FI_OTHER(read(ep, buf, len, desc, src_addr, addr, key, context, flags, scope), -38);
	strait_xpu_command c = STRAIT_FI::command(STRAIT_XPU_OP_GET, src_addr, context);
	c.remote = addr;
	c.key = key;
	return STRAIT_FI::transfer(ep->fid, c, buf, len, desc, false, 0, flags, scope);
}

STRAIT_FI_FN int fi_xpu_send(struct fid_xpu_ep *ep, const void *buf, size_t len, void *desc, strait_fi_u64 data, void *dest_addr,
			     void *context, strait_fi_u64 flags, int scope)
{
	if (!STRAIT_FI::ours(ep->fid))
		return STRAIT_FI_OTHER(send(ep, buf, len, desc, data, dest_addr, context, flags, scope), -38);
	return STRAIT_FI::transfer(ep->fid, STRAIT_FI::command(STRAIT_XPU_OP_SEND, dest_addr, context), buf, len, desc, true, data, flags, scope);
}

STRAIT_FI_FN int fi_xpu_recv(struct fid_xpu_ep *ep, void *buf, size_t len, void *desc, void *src_addr, void *context,
			     strait_fi_u64 flags, int scope)
{
	if (!STRAIT_FI::ours(ep->fid))
		return STRAIT_FI_OTHER(recv(ep, buf, len, desc, src_addr, context, flags, scope), -38);
	return STRAIT_FI::transfer(ep->fid, STRAIT_FI::command(STRAIT_XPU_OP_RECV, src_addr, context), buf, len, desc, false, 0, flags, scope);
}

STRAIT_FI_FN int fi_xpu_tsend(struct fid_xpu_ep *ep, const void *buf, size_t len, void *desc, strait_fi_u64 data, void *dest_addr,
			      strait_fi_u64 tag, void *context, strait_fi_u64 flags, int scope)
{
	if (!STRAIT_FI::ours(ep->fid))
		return STRAIT_FI_OTHER(tsend(ep, buf, len, desc, data, dest_addr, tag, context, flags, scope), -38);
	strait_xpu_command c = STRAIT_FI::command(STRAIT_XPU_OP_TSEND, dest_addr, context);
	c.remote = tag;
	return STRAIT_FI::transfer(ep->fid, c, buf, len, desc, true, data, flags, scope);
}

STRAIT_FI_FN int fi_xpu_trecv(struct fid_xpu_ep *ep, void *buf, size_t len, void *desc, void *src_addr, strait_fi_u64 tag,
			      strait_fi_u64 ignore, void *context, strait_fi_u64 flags, int scope)
{
	if (!STRAIT_FI::ours(ep->fid))
		return STRAIT_FI_OTHER(trecv(ep, buf, len, desc, src_addr, tag, ignore, context, flags, scope), -38);
	strait_xpu_command c = STRAIT_FI::command(STRAIT_XPU_OP_TRECV, src_addr, context);
	c.remote = tag;
	c.key = ignore;
	return STRAIT_FI::transfer(ep->fid, c, buf, len, desc, false, 0, flags, scope);
}

STRAIT_FI_FN int fi_xpu_atomic(struct fid_xpu_ep *ep, const void *buf, size_t count, void *desc, void *dest_addr, strait_fi_u64 addr,
			       strait_fi_u64 key, int datatype, int op, void *context, strait_fi_u64 flags, int scope)
{
	if (!STRAIT_FI::ours(ep->fid))
		return STRAIT_FI_OTHER(atomic(ep, buf, count, desc, dest_addr, addr, key, datatype, op, context, flags, scope), -38);
	(void)desc;
	return STRAIT_FI::atomics(ep->fid, STRAIT_FI::command(STRAIT_XPU_OP_ATOMIC, dest_addr, context), buf, count, nullptr, nullptr,
				  nullptr, addr, key, datatype, op, flags, scope);
}

STRAIT_FI_FN int fi_xpu_fetch_atomic(struct fid_xpu_ep *ep, const void *buf, size_t count, void *desc, void *result,
				     void *result_desc, void *dest_addr, strait_fi_u64 addr, strait_fi_u64 key, int datatype, int op,
				     void *context, strait_fi_u64 flags, int scope)
{
	if (!STRAIT_FI::ours(ep->fid))
		return STRAIT_FI_OTHER(fetch_atomic(ep, buf, count, desc, result, result_desc, dest_addr, addr, key, datatype, op, context, flags, scope), -38);
	(void)desc;
	return STRAIT_FI::atomics(ep->fid, STRAIT_FI::command(STRAIT_XPU_OP_FETCH, dest_addr, context), buf, count, nullptr, result,
				  result_desc, addr, key, datatype, op, flags, scope);
}

STRAIT_FI_FN int fi_xpu_compare_atomic(struct fid_xpu_ep *ep, const void *buf, size_t count, void *desc, const void *compare,
				       void *compare_desc, void *result, void *result_desc, void *dest_addr, strait_fi_u64 addr,
				       strait_fi_u64 key, int datatype, int op, void *context, strait_fi_u64 flags, int scope)
{
	if (!STRAIT_FI::ours(ep->fid))
		return STRAIT_FI_OTHER(compare_atomic(ep, buf, count, desc, compare, compare_desc, result, result_desc, dest_addr, addr, key, datatype, op, context, flags, scope), -38);
	(void)desc;
	(void)compare_desc;
	return STRAIT_FI::atomics(ep->fid, STRAIT_FI::command(STRAIT_XPU_OP_COMPARE, dest_addr, context), buf, count, compare, result,
				  result_desc, addr, key, datatype, op, flags, scope);
}

/* Counters: each thread for itself. */
STRAIT_FI_FN strait_fi_u64 fi_xpu_cntr_read(struct fid_xpu_cntr *cntr, int scope)
{
	(void)scope;
	return STRAIT_FI::ours(cntr->fid) ? strait::xpu::read_counter(STRAIT_FI::counter(cntr->fid)) : STRAIT_FI_OTHER(cntr_read(cntr, scope), 0);
}

STRAIT_FI_FN strait_fi_u64 fi_xpu_cntr_readerr(struct fid_xpu_cntr *cntr, int scope)
{
	(void)scope;
	return STRAIT_FI::ours(cntr->fid) ? STRAIT_FI::errors(STRAIT_FI::counter(cntr->fid)) : STRAIT_FI_OTHER(cntr_readerr(cntr, scope), 0);
}

/* It ends with the threshold, a failure, the time (milliseconds; below 0: the counter's own), or the counter's end:
 * fi_xpu_cntr_read and _readerr say which. */
STRAIT_FI_FN void fi_xpu_cntr_wait(struct fid_xpu_cntr *cntr, strait_fi_u64 threshold, int timeout, int scope)
{
	(void)scope;
	if (STRAIT_FI::ours(cntr->fid))
		strait::xpu::wait_counter(STRAIT_FI::counter(cntr->fid), threshold,
					  timeout < 0 ? (strait::xpu::i64)strait::xpu::default_timeout : timeout * 1000000LL);
	else
		STRAIT_FI_OTHER(cntr_wait(cntr, threshold, timeout, scope), (void)0);
}

STRAIT_FI_FN int fi_xpu_cntr_add(struct fid_xpu_cntr *cntr, strait_fi_u64 value, int scope)
{
	(void)scope;
	if (!STRAIT_FI::ours(cntr->fid))
		return STRAIT_FI_OTHER(cntr_add(cntr, value, scope), -38);
	strait::xpu::add_counter(STRAIT_FI::counter(cntr->fid), value);
	return 0;
}

/* What completes while a counter is set may or may not be counted, as of fi_cntr_set. */
STRAIT_FI_FN int fi_xpu_cntr_set(struct fid_xpu_cntr *cntr, strait_fi_u64 value, int scope)
{
	(void)scope;
	if (!STRAIT_FI::ours(cntr->fid))
		return STRAIT_FI_OTHER(cntr_set(cntr, value, scope), -38);
	strait_xpu_counter *c = STRAIT_FI::counter(cntr->fid);
	strait::xpu::hw::store_relaxed(&c->device.added, value - strait::xpu::hw::load_relaxed(&c->host.value));
	return 0;
}

STRAIT_FI_FN int fi_xpu_cntr_adderr(struct fid_xpu_cntr *cntr, strait_fi_u64 value, int scope)
{
	(void)scope;
	if (!STRAIT_FI::ours(cntr->fid))
		return STRAIT_FI_OTHER(cntr_adderr(cntr, value, scope), -38);
	strait::xpu::hw::add_relaxed(&STRAIT_FI::counter(cntr->fid)->device.errors_added, value);
	return 0;
}

STRAIT_FI_FN int fi_xpu_cntr_seterr(struct fid_xpu_cntr *cntr, strait_fi_u64 value, int scope)
{
	(void)scope;
	if (!STRAIT_FI::ours(cntr->fid))
		return STRAIT_FI_OTHER(cntr_seterr(cntr, value, scope), -38);
	strait_xpu_counter *c = STRAIT_FI::counter(cntr->fid);
	strait::xpu::hw::store_relaxed(&c->device.errors_added, value - strait::xpu::read_counter_errors(c));
	return 0;
}

/* Entries have the format of the queue's fi_cq_open. A failed operation is -FI_EAVAIL until fi_xpu_cq_readerr has it. */
STRAIT_FI_FN strait::xpu::i64 fi_xpu_cq_readfrom(struct fid_xpu_cq *cq, void *buf, size_t count, void *src_addr, int scope)
{
	return STRAIT_FI::ours(cq->fid) ? STRAIT_FI::read_queue(cq->fid, buf, count, src_addr, false, false, scope)
					: (strait::xpu::i64)STRAIT_FI_OTHER(cq_readfrom(cq, buf, count, src_addr, scope), -38);
}

STRAIT_FI_FN strait::xpu::i64 fi_xpu_cq_read(struct fid_xpu_cq *cq, void *buf, size_t count, int scope)
{
	return STRAIT_FI::ours(cq->fid) ? STRAIT_FI::read_queue(cq->fid, buf, count, nullptr, false, false, scope)
					: (strait::xpu::i64)STRAIT_FI_OTHER(cq_read(cq, buf, count, scope), -38);
}

STRAIT_FI_FN strait::xpu::i64 fi_xpu_cq_readerr(struct fid_xpu_cq *cq, void *buf, strait_fi_u64 flags, int scope)
{
	(void)flags;
	return STRAIT_FI::ours(cq->fid) ? STRAIT_FI::read_queue(cq->fid, buf, 1, nullptr, false, true, scope)
					: (strait::xpu::i64)STRAIT_FI_OTHER(cq_readerr(cq, buf, flags, scope), -38);
}

/* They wait for one entry, whatever the threshold, and no longer than the queue's time: then -FI_EAGAIN. */
STRAIT_FI_FN strait::xpu::i64 fi_xpu_cq_sreadfrom(struct fid_xpu_cq *cq, void *buf, size_t count, void *src_addr, strait_fi_u64 threshold,
						  int scope)
{
	(void)threshold;
	return STRAIT_FI::ours(cq->fid) ? STRAIT_FI::read_queue(cq->fid, buf, count, src_addr, true, false, scope)
					: (strait::xpu::i64)STRAIT_FI_OTHER(cq_sreadfrom(cq, buf, count, src_addr, threshold, scope), -38);
}

STRAIT_FI_FN strait::xpu::i64 fi_xpu_cq_sread(struct fid_xpu_cq *cq, void *buf, size_t count, strait_fi_u64 threshold, int scope)
{
	(void)threshold;
	return STRAIT_FI::ours(cq->fid) ? STRAIT_FI::read_queue(cq->fid, buf, count, nullptr, true, false, scope)
					: (strait::xpu::i64)STRAIT_FI_OTHER(cq_sread(cq, buf, count, threshold, scope), -38);
}

#endif

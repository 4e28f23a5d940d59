/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Commands that the host carries out, its completion queues and its counters. Included by strait_xpu.cuh.
 *
 * A command is one cache line, and each of its words says by its lap bit that it is there: no fence and no release stand
 * between a command's words, nor between commands. A full ring is err_again at once. */
#ifndef STRAIT_XPU_RING_CUH
#define STRAIT_XPU_RING_CUH
#include "base.cuh"
#include "wait.cuh"

namespace strait {
namespace xpu {

/* A ring, in registers. */
struct ring {
	strait_xpu_slot *slots;
	strait_xpu_produced *produced;
	const strait_xpu_status *status;
	u64 timeout_ns, beat_ns;
	/* What was known last: the next ticket, or no_ticket, and what was consumed by then. */
	u64 next, consumed;
	u32 log2_slots, flags;
	/* By hw::ticks: when the last command was written, and how long after it a wait looks first. */
	u32 written;
	mutable u32 lead;
};

namespace detail {

enum : u64 { no_ticket = ~0ULL, ended_ticket = ~0ULL - 1 };

} // namespace detail

STRAIT_XPU_FN int open_ring(ring *r, const strait_xpu_ring *from)
{
	if (from->version != STRAIT_XPU_VERSION || from->log2_slots > 31)
		return err_inval;
	r->slots = (strait_xpu_slot *)from->slots;
	r->produced = (strait_xpu_produced *)from->produced;
	r->status = (const strait_xpu_status *)from->status;
	r->timeout_ns = from->timeout_ns;
	r->beat_ns = from->beat_ns;
	r->next = detail::no_ticket;
	r->consumed = 0;
	r->log2_slots = from->log2_slots;
	r->flags = from->flags;
	r->written = 0;
	r->lead = 0;
	return ok;
}

namespace detail {

/* The first of `n` tickets, or no_ticket. The store into a slot cannot come before the branch on what was consumed, so the
 * loads are relaxed. A thread that was the last to reserve needs one atomic operation and no load. What the ring knows is read
 * once and written at the end, so that threads may share one: a ticket that was looked up by another has not been found to
 * have room by this one. */
STRAIT_XPU_FN u64 reserve(ring &r, u32 n)
{
	const u64 depth = 1ULL << r.log2_slots;
	u64 ticket = r.next, consumed = r.consumed;
	if (ticket == no_ticket) {
		ticket = hw::load_relaxed_gpu(&r.produced->reserved);
		consumed = hw::load_relaxed_gpu(&r.produced->seen_consumed);
	}
	for (;;) {
		if (ticket + n - consumed > depth)
			consumed = hw::load_relaxed_gpu(&r.produced->seen_consumed);
		if (ticket + n - consumed > depth) {
			consumed = hw::load_relaxed(&r.status->consumed);
			if (ticket + n - consumed > depth) {
				/* Unless the ticket was out of date itself. */
				const u64 now = hw::load_relaxed_gpu(&r.produced->reserved);
				if (now == ticket) {
					r.next = ticket;
					r.consumed = consumed;
					return no_ticket;
				}
				ticket = now;
				continue;
			}
			hw::store_relaxed_gpu(&r.produced->seen_consumed, consumed);
		}
		const u64 was = hw::compare_swap_relaxed_gpu(&r.produced->reserved, ticket, ticket + n);
		if (was == ticket) {
			r.next = ticket + n;
			r.consumed = consumed;
			return ticket;
		}
		ticket = was;
	}
}

STRAIT_XPU_FN pair64 line_of(const u64 *w, unsigned i)
{
	return i == 0 ? pair64{w[0], w[1]} : i == 1 ? pair64{w[2], w[3]} : i == 2 ? pair64{w[4], w[5]} : pair64{w[6], w[7]};
}

template <scope S> STRAIT_XPU_FN void write_slot(const ring &r, u64 ticket, const strait_xpu_command &c)
{
	u64 w[STRAIT_XPU_SLOT_WORDS];
	strait_xpu_pack(&c, ticket, r.log2_slots, w);
	pair64 *slot = (pair64 *)&r.slots[ticket & ((1ULL << r.log2_slots) - 1)];
	if (hw::size<S>() >= 4) {
		if (hw::rank<S>() < 4)
			hw::store_line(slot + hw::rank<S>(), line_of(w, hw::rank<S>()));
	} else if (hw::rank<S>() == 0) {
		for (unsigned i = 0; i < 4; i++)
			hw::store_line(slot + i, line_of(w, i));
	}
}

/* The host looks at lap bits too, so that the bell needs no order; it only grows, whatever order its writers come in. */
STRAIT_XPU_FN void ring_bell(const ring &r, u64 below)
{
	if (r.flags & STRAIT_XPU_RING_BELL)
		hw::max_relaxed(&r.produced->bell, below);
}

STRAIT_XPU_FN int ring_error(const ring &r)
{
	const u64 e = hw::load_relaxed(&r.status->error);
	return e & STRAIT_XPU_ERROR_ENDED ? (int)err_canceled : e ? -(int)STRAIT_XPU_ERROR_CODE(e) : (int)ok;
}

/* Likewise, or ended_ticket: the word that the host may write meanwhile is read by one thread, for all. */
STRAIT_XPU_FN u64 reserve_or_why(ring &r, u32 n)
{
	const u64 t = reserve(r, n);
	return t == no_ticket && ring_error(r) == err_canceled ? (u64)ended_ticket : t;
}

/* What the ring's lead grows by, and cannot grow beyond. */
enum : u32 { lead_step = 64, most_lead = 8192 };

/* A look at a word of the host's is a way over the bus and back, and the next one begins when it has ended: one that starts
 * with the command sees nothing, and what the host tells a little after it passed there waits for the end of the second. So
 * the first look begins `lead` after the command. Whether it was held. */
STRAIT_XPU_FN bool hold_first_look(const ring &r)
{
	bool held = false;
	while (hw::ticks() - r.written < r.lead)
		held = true;
	return held;
}

/* The lead gets a little shorter with each first look that sees what is waited for, and a step longer with each that comes
 * too early, unless it came by far too early: three looks late, a lead gains nothing, and what follows may be quicker. */
STRAIT_XPU_FN void learn_lead(const ring &r, u32 looks, bool held)
{
	if (looks == 0 && held)
		r.lead -= (r.lead + 255) / 256;
	else if (looks > 0 && looks < 3 && r.lead < most_lead)
		r.lead += lead_step;
}

/* Until a word of the status is at least `value`. The drain counts as gone if it has not moved `beat` for 8 of its times. */
STRAIT_XPU_FN int wait_status(const ring &r, const u64 *word, u64 value, i64 timeout_ns)
{
	limit l = limit_of(r.timeout_ns, timeout_ns);
	u64 beat = 0, changed = 0;
	const bool held = timeout_ns != 0 && hold_first_look(r);
	while (hw::load_acquire(word) < value) {
		const int rc = after_poll(&l);
		if (rc != ok)
			return rc;
		if ((l.polls & 255) != 0)
			continue;
		if (hw::load_relaxed(&r.status->error) & STRAIT_XPU_ERROR_ENDED)
			return err_canceled;
		const u64 now = hw::now_ns(), beats = hw::load_relaxed(&r.status->beat);
		if (beats != beat || changed == 0) {
			beat = beats;
			changed = now;
		} else if (r.beat_ns && now - changed > 8 * r.beat_ns) {
			return err_canceled;
		}
	}
	learn_lead(r, l.polls, held);
	return ok;
}

} // namespace detail

/* Post one command; all threads of the scope give the same. `ticket`: its number, or null. With STRAIT_XPU_MORE in its
 * flags the bell is left to a later one. */
template <scope S> STRAIT_XPU_FN int post(ring &r, const strait_xpu_command &c, u64 *ticket = nullptr)
{
	u64 t = detail::no_ticket;
	if (hw::rank<S>() == 0)
		t = detail::reserve_or_why(r, 1);
	t = hw::broadcast<S>(t);
	if (t >= detail::ended_ticket)
		return t == detail::ended_ticket ? (int)err_canceled : (int)err_again;
	detail::write_slot<S>(r, t, c);
	if (hw::rank<S>() == 0) {
		r.written = hw::ticks();
		if (!(c.flags & STRAIT_XPU_MORE))
			detail::ring_bell(r, t + 1);
	}
	if (ticket)
		*ticket = t;
	return ok;
}

/* Every lane of a warp that has one posts a command of its own: one reservation, one bell, and stores of whole cache
 * lines: four lanes write a command. err_msgsize: the ring has fewer slots than the warp has commands. */
STRAIT_XPU_FN int post_each(ring &r, const strait_xpu_command &c, bool has, u64 *ticket = nullptr)
{
	const unsigned lane = hw::rank<scope::warp>();
	const u64 having = hw::ballot(has);
	unsigned n = 0, mine = 0;
	for (unsigned i = 0; i < STRAIT_XPU_WARP; i++) {
		n += (unsigned)(having >> i & 1);
		mine += i < lane ? (unsigned)(having >> i & 1) : 0;
	}
	if (n == 0)
		return ok;
	if (n > 1ULL << r.log2_slots)
		return err_msgsize;
	u64 t = detail::no_ticket;
	if (lane == 0)
		t = detail::reserve_or_why(r, n);
	t = hw::broadcast<scope::warp>(t);
	if (t >= detail::ended_ticket)
		return t == detail::ended_ticket ? (int)err_canceled : (int)err_again;
	u64 w[STRAIT_XPU_SLOT_WORDS];
	strait_xpu_pack(&c, t + mine, r.log2_slots, w);
	/* At step s the command of lane s * (warp / 4) + lane / 4 is written, if it has one. */
	for (unsigned s = 0; s < 4; s++) {
		const unsigned from = s * (STRAIT_XPU_WARP / 4) + lane / 4;
		const u64 at = t + hw::shuffle(mine, from);
		u64 v[STRAIT_XPU_SLOT_WORDS];
		STRAIT_XPU_UNROLL
		for (unsigned i = 0; i < STRAIT_XPU_SLOT_WORDS; i++)
			v[i] = hw::shuffle(w[i], from);
		if (having >> from & 1)
			hw::store_line((pair64 *)&r.slots[at & ((1ULL << r.log2_slots) - 1)] + lane % 4,
				       detail::line_of(v, lane % 4));
	}
	if (lane == 0) {
		r.written = hw::ticks();
		detail::ring_bell(r, t + n);
	}
	if (ticket)
		*ticket = t + mine;
	return ok;
}

/* Ring the bell for all that was posted with STRAIT_XPU_MORE. */
STRAIT_XPU_FN void bell(const ring &r) { detail::ring_bell(r, hw::load_relaxed_gpu(&r.produced->reserved)); }

/* Until the source memory of all commands of this ring may be written again. */
template <scope S> STRAIT_XPU_FN int flush(const ring &r, i64 timeout_ns = default_timeout)
{
	hw::sync<S>();
	int rc = ok;
	if (hw::rank<S>() == 0) {
		bell(r);
		rc = detail::wait_status(r, &r.status->local, hw::load_relaxed_gpu(&r.produced->reserved), timeout_ns);
	}
	return detail::agree<S>(rc);
}

/* Until all commands of this ring are complete at their targets; the first error of the ring, if there was any. */
template <scope S> STRAIT_XPU_FN int quiet(const ring &r, i64 timeout_ns = default_timeout)
{
	hw::sync<S>();
	int rc = ok;
	if (hw::rank<S>() == 0) {
		bell(r);
		rc = detail::wait_status(r, &r.status->done, hw::load_relaxed_gpu(&r.produced->reserved), timeout_ns);
		if (rc == ok)
			rc = detail::ring_error(r);
	}
	return detail::agree<S>(rc);
}

/* Until the command of that ticket is complete. */
STRAIT_XPU_FN int wait_ticket(const ring &r, u64 ticket, i64 timeout_ns = default_timeout)
{
	return detail::wait_status(r, &r.status->done, ticket + 1, timeout_ns);
}

/* The next completion of a queue, or err_again. One thread at a time reads a queue. */
STRAIT_XPU_FN int read_queue(const strait_xpu_queue *q, strait_xpu_completion *to)
{
	if (q->version != STRAIT_XPU_VERSION || q->log2_entries > 31)
		return err_inval;
	strait_xpu_queue_read *mine = (strait_xpu_queue_read *)q->read;
	const u64 n = hw::load_relaxed(&mine->read);
	const strait_xpu_completion *e = (const strait_xpu_completion *)q->entries + (n & ((1ULL << q->log2_entries) - 1));
	if (hw::load_acquire(&e->commit) != n + 1)
		return hw::load_relaxed(&q->error) & STRAIT_XPU_ERROR_ENDED ? (int)err_canceled : (int)err_again;
	for (unsigned i = 0; i < 8; i++)
		((u64 *)to)[i] = hw::load_payload((const u64 *)e + i);
	hw::store_release(&mine->read, n + 1);
	return ok;
}

STRAIT_XPU_FN int wait_queue(const strait_xpu_queue *q, strait_xpu_completion *to, i64 timeout_ns = default_timeout)
{
	detail::limit l = detail::limit_of(q->timeout_ns, timeout_ns);
	for (;;) {
		int rc = read_queue(q, to);
		if (rc != err_again)
			return rc;
		rc = detail::after_poll(&l);
		if (rc != ok)
			return rc;
	}
}

/* A counter's value. */
STRAIT_XPU_FN u64 read_counter(const strait_xpu_counter *c)
{
	return hw::load_acquire(&c->host.value) + hw::load_relaxed(&c->device.added);
}

STRAIT_XPU_FN void add_counter(strait_xpu_counter *c, u64 v) { hw::add_relaxed(&c->device.added, v); }

/* How many operations of the counter have failed. */
STRAIT_XPU_FN u64 read_counter_errors(const strait_xpu_counter *c) { return hw::load_acquire(&c->host.errors); }

/* For wait_counter: what failed before the call is known. */
enum : u64 { errors_now = ~0ULL };

/* Until the counter is at least `value`; err_io once more have failed than `errors`: what read_counter_errors gave before the
 * operations were posted, so that one that fails before the wait ends it, too. */
STRAIT_XPU_FN int wait_counter(const strait_xpu_counter *c, u64 value, i64 timeout_ns = default_timeout, u64 errors = errors_now)
{
	if (errors == errors_now)
		errors = read_counter_errors(c);
	detail::limit l = detail::limit_of(c->host.timeout_ns, timeout_ns);
	while (read_counter(c) < value) {
		if (read_counter_errors(c) != errors)
			/* What was counted before the failure counts. */
			return read_counter(c) < value ? (int)err_io : (int)ok;
		if (hw::load_relaxed(&c->host.error) & STRAIT_XPU_ERROR_ENDED)
			return err_canceled;
		const int rc = detail::after_poll(&l);
		if (rc != ok)
			return rc;
	}
	return ok;
}

} // namespace xpu
} // namespace strait

#endif

/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Mailboxes: short puts with a signal that need no release, into a ring of packets. Included by strait_xpu.cuh.
 *
 * The reader's waits carry the bytes to where they belong and then the signal. So it is for programs in which completion
 * precedes use: a put is seen by a wait of this library alone, not by a program that polls the buffer.
 *
 * Each pair of processes has a mailbox in each direction, in a region of the reader, which is zero at first: the mailboxes
 * for and from peer p are mailbox_size(log2_lines) * p bytes from `offset` of the region on, in every process alike. */
#ifndef STRAIT_XPU_MAILBOX_CUH
#define STRAIT_XPU_MAILBOX_CUH
#include "packets.cuh"

namespace strait {
namespace xpu {

namespace detail {

/* A line has 8 bytes of a message: each of its words 4 of them and 4 of the epoch. */
STRAIT_XPU_FN pair64 packet(u64 payload, u32 epoch)
{
	const u64 e = (u64)epoch << 32;
	return pair64{(payload & 0xffffffffu) | e, payload >> 32 | e};
}

STRAIT_XPU_FN bool is_of(pair64 line, u32 epoch)
{
	return (u32)(line.lo >> 32) == epoch && (u32)(line.hi >> 32) == epoch;
}

STRAIT_XPU_FN u64 payload_of(pair64 line) { return (line.lo & 0xffffffffu) | line.hi << 32; }

/* Before the lines. Three cache lines: the reader's, the writer's, and the one that the peer writes. */
struct mailbox_words {
	u64 head, lock, unused0[6]; /* of what comes from the peer: lines taken */
	u64 tail, seen, unused1[6];        /* of what goes to it: lines reserved, and known to be free */
	u64 credit, unused2[7];            /* lines of ours that the peer has taken; the peer writes it */
};

enum : u32 { mail_header = 4, mail_add = 1, mail_signal = 2, mail_credit = 4 };

} // namespace detail

STRAIT_XPU_FN u64 mailbox_size(u32 log2_lines) { return sizeof(detail::mailbox_words) + (16ULL << log2_lines); }

/* The mailboxes to and from a peer, in registers. */
struct mailbox {
	const strait_xpu_context *ctx;
	const strait_xpu_region *regions;
	detail::mailbox_words *ours, *theirs;
	u32 log2_lines, peer, region_count;
};

/* 2^log2_lines lines of 8 bytes of payload, at least 16. The same numbers in all processes; `offset` a multiple of 16. */
STRAIT_XPU_FN int open_mailbox(mailbox *m, const strait_xpu_context *ctx, u32 peer, u32 region, u64 offset, u32 log2_lines)
{
	if (ctx->version != STRAIT_XPU_VERSION || peer >= ctx->peer_count || region >= ctx->region_count ||
	    log2_lines < 4 || log2_lines > 24)
		return err_inval;
	const strait_xpu_peer *p = (const strait_xpu_peer *)ctx->peers + ((u64)peer * ctx->region_count + region);
	const strait_xpu_region *r = (const strait_xpu_region *)ctx->regions + region;
	const u64 size = mailbox_size(log2_lines), here = offset + peer * size, there = offset + ctx->rank * size;
	if (size > r->length || here > r->length - size || size > p->length || there > p->length - size || here < offset ||
	    there < offset)
		return err_inval;
	if (!p->mapped)
		return err_nosys;
	if ((r->base + here) % 16 || (p->mapped + there) % 16)
		return err_inval;
	m->ctx = ctx;
	m->regions = (const strait_xpu_region *)ctx->regions;
	m->region_count = ctx->region_count;
	m->ours = (detail::mailbox_words *)(r->base + here);
	m->theirs = (detail::mailbox_words *)(p->mapped + there);
	m->log2_lines = log2_lines;
	m->peer = peer;
	return ok;
}

namespace detail {

STRAIT_XPU_FN pair64 *lines_of(mailbox_words *w) { return (pair64 *)(w + 1); }

STRAIT_XPU_FN u32 epoch_of(const mailbox &m, u64 line) { return (u32)(line >> m.log2_lines) + 1; }

STRAIT_XPU_FN u64 slot_of(const mailbox &m, u64 line) { return line & ((1ULL << m.log2_lines) - 1); }

/* The first of n lines, or no_ticket. A line is free when the peer has told that it took what was there. */
STRAIT_XPU_FN u64 reserve_lines(const mailbox &m, u64 n)
{
	mailbox_words *w = m.ours;
	const u64 depth = 1ULL << m.log2_lines;
	u64 tail = hw::load_relaxed_gpu(&w->tail);
	for (;;) {
		if (tail + n - hw::load_relaxed_gpu(&w->seen) > depth) {
			const u64 credit = hw::load_acquire(&w->credit);
			if (tail + n - credit > depth) {
				const u64 now = hw::load_relaxed_gpu(&w->tail);
				if (now == tail)
					return no_ticket;
				tail = now;
				continue;
			}
			hw::store_relaxed_gpu(&w->seen, credit);
		}
		const u64 was = hw::compare_swap_relaxed_gpu(&w->tail, tail, tail + n);
		if (was == tail)
			return tail;
		tail = was;
	}
}

template <scope S>
STRAIT_XPU_FN int mail(const mailbox &m, const u64 header[mail_header], const void *src, u64 n, u64 *next = nullptr)
{
	const u64 lines = mail_header + (n + 7) / 8;
	u64 first = no_ticket;
	if (hw::rank<S>() == 0)
		first = reserve_lines(m, lines);
	first = hw::broadcast<S>(first);
	if (first == no_ticket)
		return err_again;
	if (next)
		*next = first + lines;
	for (u64 i = hw::rank<S>(); i < lines; i += hw::size<S>()) {
		const u64 v = i == 0 ? header[0] : i == 1 ? header[1] : i == 2 ? header[2] : i == 3 ? header[3]
			: gather8((const u8 *)src + (i - mail_header) * 8, n - (i - mail_header) * 8);
		hw::store_line(lines_of(m.theirs) + slot_of(m, first + i), packet(v, epoch_of(m, first + i)));
	}
	return ok;
}

} // namespace detail

/* The longest put through a mailbox: it takes half of the lines. */
STRAIT_XPU_FN u64 mail_most(const mailbox &m) { return ((1ULL << m.log2_lines) / 2 - detail::mail_header) * 8; }

/* Put n bytes to a place in the peer, and set (with `add`: add to) its signal after them. Weak: other puts, also those
 * through the same mailbox, are ordered by quiet alone; messages of one mailbox are taken in their order. err_again if the
 * peer has to take some first. */
template <scope S>
STRAIT_XPU_FN int mail_put(const mailbox &m, u32 region, u64 offset, const void *src, u64 n, u32 signal_region,
			   u64 signal_offset, u64 value, u32 flags = 0)
{
	if (n > mail_most(m))
		return err_msgsize;
	if ((offset | signal_offset) >> 48 || (region | signal_region) >> 16 || signal_offset % 8)
		return err_inval;
	const u32 what = detail::mail_signal | (flags & add ? (u32)detail::mail_add : 0u);
	const u64 header[detail::mail_header] = {n | (u64)what << 32, (u64)region << 48 | offset,
						 (u64)signal_region << 48 | signal_offset, value};
	return detail::mail<S>(m, header, src, n);
}

namespace detail {

struct letter {
	u64 n, place, signal, value;
	u32 flags;
};

STRAIT_XPU_FN bool header_there(const mailbox &m, u64 head, u64 words[mail_header])
{
	bool there = true;
	for (u64 i = 0; i < mail_header; i++) {
		const pair64 line = hw::load_line(lines_of(m.ours) + slot_of(m, head + i));
		there &= is_of(line, epoch_of(m, head + i));
		words[i] = payload_of(line);
	}
	return there;
}

/* n bytes at a place that a peer names, if a region has them; else 0. */
STRAIT_XPU_FN u64 place_of(const mailbox &m, u64 place, u64 n)
{
	const u64 region = place >> 48, offset = place & 0xffffffffffffULL;
	if (region >= m.region_count)
		return 0;
	const strait_xpu_region *r = m.regions + region;
	return n <= r->length && offset <= r->length - n ? r->base + offset : 0;
}

/* The payload of the letter at `head` to its place, by all threads. */
template <scope S> STRAIT_XPU_FN bool unpack(const mailbox &m, u64 head, u64 to, u64 n, limit l)
{
	bool late = false;
	for (u64 i = hw::rank<S>(); i < (n + 7) / 8 && !late; i += hw::size<S>()) {
		const u64 at = head + mail_header + i;
		pair64 line = hw::load_line(lines_of(m.ours) + slot_of(m, at));
		while (!is_of(line, epoch_of(m, at)) && !late) {
			late = after_poll(&l) != ok;
			line = hw::load_line(lines_of(m.ours) + slot_of(m, at));
		}
		if (!late && to)
			scatter8((u8 *)to + i * 8, payload_of(line), n - i * 8);
	}
	late = hw::any<S>(late);
	order_warp<S>();
	return !late;
}

/* By one thread, when all have read their lines: the signal, the credit, and the mailbox is free for others. */
STRAIT_XPU_FN void finish(const mailbox &m, const letter &t, u64 to, u64 head, u64 next)
{
	mailbox_words *w = m.ours;
	u64 *word = (u64 *)(to && t.flags & mail_signal ? place_of(m, t.signal, 8) : 0);
	if (word && (u64)word % 8 == 0) {
		if (t.flags & mail_add)
			hw::add_release_gpu(word, t.value);
		else
			hw::store_release_gpu(word, t.value);
	}
	hw::store_relaxed_gpu(&w->head, next);
	/* Told at each quarter of the ring, or when it is asked for. */
	if (t.flags & mail_credit || head >> (m.log2_lines - 2) != next >> (m.log2_lines - 2))
		hw::store_release(&m.theirs->credit, next);
	hw::store_release_gpu(&w->lock, 0);
}

} // namespace detail

/* Take the next put out of the mailbox, if there is one: err_again if there is none, or if others are at it. err_inval: the
 * peer named a place that is in no region; what it put is dropped. */
template <scope S> STRAIT_XPU_FN int mail_take(const mailbox &m, i64 timeout_ns = default_timeout)
{
	detail::mailbox_words *w = m.ours;
	u64 head = detail::no_ticket, words[detail::mail_header] = {0, 0, 0, 0};
	/* Looked at before the lock is taken, and then once more. */
	if (hw::rank<S>() == 0 && detail::header_there(m, hw::load_relaxed_gpu(&w->head), words) &&
	    hw::compare_swap_gpu(&w->lock, 0, 1) == 0) {
		head = hw::load_relaxed_gpu(&w->head);
		if (!detail::header_there(m, head, words)) {
			hw::store_release_gpu(&w->lock, 0);
			head = detail::no_ticket;
		}
	}
	head = hw::broadcast<S>(head);
	if (head == detail::no_ticket)
		return err_again;
	/* The peer may write the header at any time: one thread has read it, once, and all go by that. */
	const detail::letter t = {words[0] & 0xffffffffu, words[1], words[2], words[3], (u32)(words[0] >> 32)};
	const bool sane = t.n <= mail_most(m);
	const u64 n = hw::broadcast<S>(sane ? t.n : 0), to = hw::broadcast<S>(sane ? detail::place_of(m, t.place, t.n) : 0);
	const detail::limit l = detail::limit_of(m.ctx, timeout_ns == 0 ? (i64)default_timeout : timeout_ns, m.peer);
	const bool there = detail::unpack<S>(m, head, to, n, l);
	if (hw::rank<S>() == 0) {
		if (there)
			detail::finish(m, t, to, head, head + detail::mail_header + (n + 7) / 8);
		else
			hw::store_release_gpu(&w->lock, 0);
	}
	return !there ? (int)err_timedout : to ? (int)ok : (int)err_inval;
}

/* Wait for a signal, and carry what is in the mailbox meanwhile. */
template <scope S>
STRAIT_XPU_FN int mail_wait(const mailbox &m, const u64 *word, cmp how, u64 value, i64 timeout_ns = default_timeout)
{
	detail::limit l = detail::limit_of(m.ctx, timeout_ns, m.peer);
	for (;;) {
		u64 seen = 0;
		if (hw::rank<S>() == 0)
			seen = holds(how, hw::load_acquire(word), value);
		if (hw::broadcast<S>(seen)) {
			detail::order_warp<S>();
			return ok;
		}
		int rc = mail_take<S>(m, timeout_ns);
		if (rc == ok)
			continue;
		if (rc != err_again)
			return rc;
		if (hw::rank<S>() == 0)
			rc = detail::after_poll(&l);
		rc = detail::share<S>(rc);
		if (rc != ok)
			return rc;
	}
}

/* Until the peer has taken all that was put into its mailbox; it has to wait on the mailbox for that. */
template <scope S> STRAIT_XPU_FN int mail_quiet(const mailbox &m, i64 timeout_ns = default_timeout)
{
	detail::limit l = detail::limit_of(m.ctx, timeout_ns, m.peer);
	const u64 header[detail::mail_header] = {(u64)detail::mail_credit << 32, 0, 0, 0};
	u64 all = 0;
	int rc;
	while ((rc = detail::mail<S>(m, header, nullptr, 0, &all)) == err_again) {
		rc = hw::rank<S>() == 0 ? detail::after_poll(&l) : (int)ok;
		rc = detail::share<S>(rc);
		if (rc != ok)
			return rc;
	}
	if (hw::rank<S>() == 0) {
		while (rc == ok && hw::load_acquire(&m.ours->credit) < all)
			rc = detail::after_poll(&l);
	}
	return detail::share<S>(rc);
}

} // namespace xpu
} // namespace strait

#endif

//! How operations complete, and where that is reported.

use hmem::Span;

use crate::core::{Bound, Core, RecvOp, Spans, Tally};
use crate::endpoint::parts::bind::Bind;
use crate::endpoint::parts::request::{Done, MatchedRecv, Meta};
use crate::types::*;

/// An operation that could not start, as its completion names it.
pub(crate) struct Failed {
    pub(crate) ctx: Ctx,
    pub(crate) what: What,
    pub(crate) tag: u64,
    pub(crate) to: FiAddr,
}

impl Bind {
    /// The counter of an endpoint's operations of this sort.
    #[inline(always)]
    pub(crate) fn cntr_of(&self, what: What) -> Option<CntrId> {
        if what.contains(What::SEND) {
            self.cntrs().send
        } else if what.contains(What::RECV) {
            self.cntrs().recv
        } else if what.contains(What::READ) {
            self.cntrs().read
        } else {
            self.cntrs().write
        }
    }

    /// Completes an operation that was started here.
    #[inline]
    pub(in crate::endpoint) fn finish(&self, core: &mut Core, done: &Done, len: usize, err: Option<Error>) {
        self.finish_to(core, done, len, err, ADDR_UNSPEC);
    }

    /// [`Bind::finish`]; `to`: the peer of an operation that failed, as the entry names it.
    #[inline]
    pub(in crate::endpoint) fn finish_to(
        &self,
        core: &mut Core,
        done: &Done,
        len: usize,
        err: Option<Error>,
        to: FiAddr,
    ) {
        core.tally(done.tally, self.cntr_of(done.what), err.is_some());
        if done.report || err.is_some() {
            let entry = Completion {
                ctx: done.ctx,
                what: done.what,
                len,
                buf: 0,
                data: done.data,
                tag: done.tag,
                src: to,
                err,
                olen: 0,
            };
            core.report(self.tx_cq(), entry);
        }
    }

    /// Completes a message that `n` of `len` bytes came in of.
    pub(in crate::endpoint) fn complete_recv(
        &self,
        core: &mut Core,
        mut matched: MatchedRecv,
        len: usize,
        err: Option<Error>,
    ) {
        let entry = &mut matched.entry;
        entry.len = len.min(matched.room);
        entry.err = err;
        if err.is_none() && len > matched.room {
            entry.err = Some(Error::Truncated);
            entry.olen = len - matched.room;
        }
        if let (Some(id), Some(rx)) = (matched.multi, core.rxs.get_mut(self.rx().at())) {
            if let Some(m) = rx.multi.get_mut(id) {
                m.coming -= 1;
                if m.spent && m.coming == 0 {
                    entry.what |= What::MULTI_RECV;
                    rx.multi.remove(id);
                }
            }
        }
        core.tally(matched.tally, self.cntrs().recv, entry.err.is_some());
        if matched.report || entry.err.is_some() || entry.what.contains(What::MULTI_RECV) {
            core.report(self.rx_cq(), matched.entry);
        }
    }

    /// Where a message lands in a receive buffer. For a multi-receive buffer, `true` beside it says
    /// that no more messages are to go there.
    pub(in crate::endpoint) fn matched_recv(
        &self,
        core: &mut Core,
        recv: &RecvOp,
        meta: &Meta,
    ) -> (MatchedRecv, bool) {
        let mut what = if meta.tagged { What::TAGGED } else { What::MSG } | What::RECV;
        what.set(What::PART, recv.flags.contains(OpFlags::PART));
        let mut matched = MatchedRecv {
            iov: Spans::NONE,
            room: recv.len(),
            entry: Completion {
                ctx: recv.ctx,
                what: if meta.data.is_some() { what | What::REMOTE_CQ_DATA } else { what },
                len: 0,
                buf: 0,
                data: meta.data.unwrap_or(0),
                tag: meta.tag,
                src: meta.src,
                err: None,
                olen: 0,
            },
            report: self.reports(recv.flags),
            multi: recv.multi,
            tally: recv.tally,
        };
        let rx = core.rxs.get_mut(self.rx().at());
        let multi = recv.multi.and_then(|id| {
            let rx = rx?;
            Some((rx.min_multi_recv, rx.multi.get_mut(id)?))
        });
        let Some((least, multi)) = multi else {
            matched.entry.buf = recv.iov.first().map_or(0, |s: &Span| s.addr());
            matched.iov = recv.iov.clone();
            return (matched, true);
        };
        let room = recv.len() - multi.used;
        matched.room = room;
        matched.iov = recv.iov.part(multi.used, meta.len.min(room));
        matched.entry.buf = matched.iov.first().map_or(0, |s| s.addr());
        multi.used += meta.len.min(room);
        multi.coming += 1;
        multi.spent = recv.len() - multi.used < least.max(1);
        (matched, multi.spent)
    }

    /// The buffer of the oldest receive a message fits.
    pub(in crate::endpoint) fn matched(&self, core: &mut Core, meta: &Meta) -> Option<MatchedRecv> {
        let matcher = core.rxs.get_mut(self.rx().at())?.matcher(meta.tagged);
        let at = matcher.find_posted(meta.src, meta.tag)?;
        // Taken out while the buffer is looked at; a multi-receive buffer with room left stays.
        let is_multi = matcher.found_posted(at)?.multi.is_some();
        if !is_multi {
            let recv = matcher.unpost(at)?;
            return Some(self.matched_recv(core, &recv, meta).0);
        }
        let recv = matcher.found_posted(at)?.clone();
        let (matched, spent) = self.matched_recv(core, &recv, meta);
        if spent {
            core.rxs.get_mut(self.rx().at())?.matcher(meta.tagged).unpost(at);
        }
        Some(matched)
    }

    /// Gives a posted receive back unfilled.
    pub(crate) fn fail_recv(&self, core: &mut Core, recv: RecvOp, err: Error) {
        let mut what = What::RECV | if recv.pattern.tag.is_some() { What::TAGGED } else { What::MSG };
        what.set(What::PART, recv.flags.contains(OpFlags::PART));
        // One that was not posted has no other completion.
        what.set(What::MULTI_RECV, recv.multi.is_none() && recv.flags.contains(OpFlags::MULTI_RECV));
        if let (Some(id), Some(rx)) = (recv.multi, core.rxs.get_mut(self.rx().at())) {
            if let Some(m) = rx.multi.get_mut(id) {
                m.spent = true;
                if m.coming == 0 {
                    what |= What::MULTI_RECV;
                    rx.multi.remove(id);
                }
            }
        }
        core.tally(recv.tally, self.cntrs().recv, true);
        let entry = Completion {
            ctx: recv.ctx,
            what,
            len: 0,
            buf: recv.iov.first().map_or(0, |s| s.addr()),
            data: 0,
            tag: recv.pattern.tag.map_or(0, |t| t.0),
            src: recv.pattern.src,
            err: Some(err),
            olen: 0,
        };
        core.report(self.rx_cq(), entry);
    }

    /// Completes an operation that the application takes for started.
    pub(crate) fn fail_start(&self, core: &mut Core, failed: Failed, tally: Tally, err: Error) {
        let Failed { ctx, what, tag, to } = failed;
        let done = Done { ctx, what, report: true, tag, data: 0, tally };
        self.finish_to(core, &done, 0, Some(err), to);
    }

    /// A peer has read memory here, or changed it and got what was there.
    pub(in crate::endpoint) fn was_read(&self, core: &mut Core, cntrs: Bound) {
        core.count(self.cntrs().remote_read, false);
        for cntr in cntrs {
            if Some(cntr) != self.cntrs().remote_read {
                core.count(Some(cntr), false);
            }
        }
    }

    /// Whether receives are posted.
    pub(in crate::endpoint) fn has_receives(&self, core: &Core) -> bool {
        let rx = core.rxs.get(self.rx().at());
        rx.is_some_and(|rx| !rx.nothing_posted())
    }

    /// Whether the success of a receive is written to the queue.
    #[inline(always)]
    pub(crate) fn reports(&self, receive: OpFlags) -> bool {
        receive.intersects(self.writes())
    }
}

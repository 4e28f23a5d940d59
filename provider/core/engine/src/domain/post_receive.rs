//! How a receive is posted: it takes a message that waits, or the next one of the ring, or is kept until its
//! message comes. How it is taken back.

use hmem::Span;

use super::opened::Opened;
use crate::core::{Multi, RecvOp, RxContext, Spans, Tally};
use crate::matching::At;
use crate::types::*;
use link_api::{Hint, RmaLink};

/// Posts a receive of one buffer, which no message that waits is for. Returns the context's endpoint, if it
/// has one alone, and whether no other receive is posted.
#[inline(always)]
fn post_to(
    context: &mut RxContext,
    span: Span,
    (src, tag): (FiAddr, Option<(u64, u64)>),
    ctx: Ctx,
    flags: OpFlags,
) -> (Option<EpId>, bool) {
    let by = (context.sole(), context.nothing_posted());
    // Built where it stays.
    context.matcher(tag.is_some()).post(src, || RecvOp {
        pattern: Pattern { src, tag },
        iov: Spans::One(span),
        ctx,
        flags,
        multi: None,
        tally: Tally::PLAIN,
    });
    by
}

impl<L: RmaLink> Opened<L> {
    /// Posts a receive of one buffer, `span` in the place of `op.iov`, or completes it with a message
    /// that waits.
    ///
    /// Each call that is not nearly always made gets what was requested in a structure of its own: this one's
    /// then stays in registers, and is not stored by words to be read by pairs of words, which takes the
    /// processor longer than all the rest.
    #[inline(always)]
    pub(super) fn recv_one(&mut self, rx: RxId, span: Span, op: Recv<'_>) -> Result<(), Error> {
        let Recv { pattern: Pattern { src, tag }, ctx, flags, .. } = op;
        if flags.contains(OpFlags::MULTI_RECV) || self.core.aliases {
            return self.recv_slowly(rx, span.apart(), (src, tag), ctx, flags);
        }
        let Some(context) = self.core.rxs.get_mut(rx.at()) else { return Err(Error::NotFound) };
        let matcher = context.matcher(tag.is_some());
        if !matcher.nothing_waits() {
            if let Some(at) = matcher.find_waiting(&Pattern { src, tag }) {
                return match self.recv_waiting(rx, at, span.apart(), tag.is_some(), ctx, flags) {
                    true => Ok(()),
                    false => self.recv_slowly(rx, span.apart(), (src, tag), ctx, flags),
                };
            }
            if src != ADDR_UNSPEC && matcher.nothing_posted() {
                let op = Recv { pattern: Pattern { src, tag }, iov: &[], ctx, flags };
                let by = (context.sole(), context.rest());
                return match self.recv_from_ring(by, span.apart(), op) {
                    true => Ok(()),
                    false => self.post_one(rx, span.apart(), (src, tag), ctx, flags),
                };
            }
        }
        if context.is_late() && context.matcher(tag.is_some()).nothing_posted() {
            let op = Recv { pattern: Pattern { src, tag }, iov: &[], ctx, flags };
            let by = (context.sole(), context.rest());
            return match self.recv_at_once(by, span, op) {
                true => Ok(()),
                false => self.post_one(rx, span.apart(), (src, tag), ctx, flags),
            };
        }
        let by = post_to(context, span, (src, tag), ctx, flags);
        self.posted(rx, by, src);
        Ok(())
    }

    /// Receives a message that waits, and was found just now, if it takes no more than to copy it: `false`,
    /// and nothing has happened, if it does.
    #[inline(never)]
    fn recv_waiting(&mut self, rx: RxId, at: At, span: Span, tagged: bool, ctx: Ctx, flags: OpFlags) -> bool {
        let Some(context) = self.core.rxs.get_mut(rx.at()) else { return false };
        let ep = context.matcher(tagged).found_waiting(at).map(|message| message.ep);
        let Some(ep) = ep.and_then(|ep| self.eps.get_mut(ep.at())) else { return false };
        // Of the pattern no more counts.
        let pattern = Pattern { src: ADDR_UNSPEC, tag: tagged.then_some((0, 0)) };
        if !ep.incoming_messages().accept_plain(
            &mut self.core,
            at,
            span,
            &Recv { pattern, iov: &[], ctx, flags },
        ) {
            return false;
        }
        true
    }

    /// Receives the next message of a ring, if it is for this receive: the polls for the ones before found
    /// these at once. `by`: the context's endpoint, if it has one alone, and the polls that rest behind a
    /// message. The two ways to receive share no function that gets them as closures: those keep the receive
    /// in memory, which takes 80 instructions for a message.
    #[inline(always)]
    fn recv_at_once(&mut self, by: (Option<EpId>, u8), span: Span, op: Recv<'_>) -> bool {
        let Some(ep) = by.0.and_then(|ep| self.eps.get_mut(ep.at())) else { return false };
        ep.receive_at_once(&mut self.core, span, &op, by.1)
    }

    /// Receives the next message of its sender's ring, if it is for this receive. Messages wait that no
    /// receive was posted for: where several peers are ahead of this one, a poll for that message would take
    /// in those of the others first.
    #[inline(never)]
    fn recv_from_ring(&mut self, by: (Option<EpId>, u8), span: Span, op: Recv<'_>) -> bool {
        let Some(ep) = by.0.and_then(|ep| self.eps.get_mut(ep.at())) else { return false };
        ep.receive_from_ring(&mut self.core, span, &op, by.1)
    }

    /// A receive was posted, which names this source. `by`: the context's endpoint, if it has one alone, and
    /// whether there is no other receive.
    #[inline(always)]
    fn posted(&mut self, rx: RxId, by: (Option<EpId>, bool), src: FiAddr) {
        self.core.rest = 0;
        let Some(ep) = by.0 else { return self.expect_peer(rx, src) };
        if let Some(ep) = self.eps.get_mut(ep.at()) {
            ep.expect_from(&mut self.core, src, by.1);
        }
    }

    /// Posts a receive of one buffer, which no message that waits is for.
    #[inline(never)]
    fn post_one(
        &mut self,
        rx: RxId,
        span: Span,
        of: (FiAddr, Option<(u64, u64)>),
        ctx: Ctx,
        flags: OpFlags,
    ) -> Result<(), Error> {
        let Some(context) = self.core.rxs.get_mut(rx.at()) else { return Err(Error::NotFound) };
        let by = post_to(context, span, of, ctx, flags);
        self.posted(rx, by, of.0);
        Ok(())
    }

    #[inline(never)]
    fn recv_slowly(
        &mut self,
        rx: RxId,
        span: Span,
        (src, tag): (FiAddr, Option<(u64, u64)>),
        ctx: Ctx,
        flags: OpFlags,
    ) -> Result<(), Error> {
        self.recv(rx, &Recv { pattern: Pattern { src, tag }, iov: &[span], ctx, flags }, Tally::PLAIN)
    }

    /// Posts a receive, or completes it with a message that waits.
    pub(super) fn recv(&mut self, rx: RxId, op: &Recv<'_>, tally: Tally) -> Result<(), Error> {
        let (pattern, ctx, flags) = (op.pattern, op.ctx, op.flags);
        self.receive(rx, RecvOp { pattern, iov: op.iov.into(), ctx, flags, multi: None, tally })
    }

    fn receive(&mut self, rx: RxId, mut recv: RecvOp) -> Result<(), Error> {
        recv.pattern = self.known_as(rx, recv.pattern)?;
        let pattern = recv.pattern;
        let context = self.core.rxs.get_mut(rx.at()).ok_or(Error::NotFound)?;
        if recv.flags.contains(OpFlags::MULTI_RECV) {
            recv.multi = Some(context.multi.insert(Multi::default()));
        }
        loop {
            let Some(context) = self.core.rxs.get_mut(rx.at()) else { return Ok(()) };
            let matcher = context.matcher(pattern.tag.is_some());
            let Some(message) = matcher.find_waiting(&pattern).and_then(|at| matcher.take(at)) else {
                matcher.post(pattern.src, || recv);
                self.core.rest = 0;
                self.expect_peer(rx, pattern.src);
                return Ok(());
            };
            let Some(ep) = self.eps.get_mut(message.ep.at()) else { continue };
            if ep.incoming_messages().accept(&mut self.core, message, &recv) {
                return Ok(());
            }
        }
    }

    /// Has the endpoints of a context look for the peer that a receive names, if it names one, which was
    /// posted just now.
    #[inline(never)]
    fn expect_peer(&mut self, rx: RxId, src: FiAddr) {
        let mut at = 0;
        while let Some(&id) = self.core.rxs.get(rx.at()).and_then(|rx| rx.eps.get(at)) {
            if let Some(ep) = self.eps.get_mut(id.at()) {
                ep.expect_from(&mut self.core, src, false);
            }
            at += 1;
        }
    }

    /// The pattern with its peer called what messages from it are called.
    pub(super) fn known_as(&self, rx: RxId, mut pattern: Pattern) -> Result<Pattern, Error> {
        if pattern.src != ADDR_UNSPEC {
            let eps = &self.core.rxs.get(rx.at()).ok_or(Error::NotFound)?.eps;
            let ep = eps.first().and_then(|ep| self.eps.get(ep.at()));
            if let Some(vector) = ep.and_then(|ep| self.avs.get(ep.bind.av().at())) {
                pattern.src = vector.canonical(pattern.src);
            }
        }
        Ok(pattern)
    }

    /// Takes a posted receive back, by a call to this endpoint if one is named.
    pub(super) fn cancel_recv(&mut self, rx: RxId, ctx: Ctx, by: Option<EpId>) -> Result<(), Error> {
        let context = self.core.rxs.get_mut(rx.at()).ok_or(Error::NotFound)?;
        let recv = context.tagged.cancel(ctx).or_else(|| context.plain.cancel(ctx)).ok_or(Error::NotFound)?;
        let ep = self.completes_calls(rx, by).and_then(|ep| self.eps.get_mut(ep.at()));
        if let Some(ep) = ep {
            ep.net.link.hint(Hint::ReceiveFrom(None));
            ep.bind.fail_recv(&mut self.core, recv, Error::Cancelled);
        }
        Ok(())
    }

    /// The endpoint whose queue gets completions of calls that no message belongs to: that of the call, or
    /// else the context's first, and one without a queue only if none has one.
    pub(super) fn completes_calls(&self, rx: RxId, by: Option<EpId>) -> Option<EpId> {
        let all = &self.core.rxs.get(rx.at())?.eps;
        let has_queue = |ep: &EpId| self.eps.get(ep.at()).is_some_and(|ep| ep.bind.rx_cq().is_some());
        by.iter().chain(all).copied().find(has_queue).or(by).or_else(|| all.first().copied())
    }
}

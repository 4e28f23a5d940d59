//! Memory that is given back although operations on it are under way: a send that is cancelled, a
//! registration that is closed.
//!
//! What a frame told a peer of, the peer may access by itself, until the request that the frame named is
//! answered. So the link ends that first ([`RmaLink::revoke`]); then the request is given up, and both sides
//! complete with an error. A name stays taken until the peer has answered it, so that no later request
//! is taken for it.

use wire::{Flags, Head, Op as WireOp, Status};
use zerocopy::IntoBytes;

use super::Endpoint;
use crate::config::MrId;
use crate::core::{Core, Spans};
use crate::endpoint::malformed::Handled;
use crate::endpoint::parts::request::{In, Request, Serve, Then};
use crate::types::*;
use link_api::{InUse, Patience, PeerId, RmaLink};

impl<L: RmaLink> Endpoint<L> {
    /// Cancels the oldest send of that context whose bytes are still here, or the one that an earlier call
    /// has `begun` with: it completes with [`Error::Cancelled`], and so does the receive that it met.
    pub(crate) fn cancel(
        &mut self,
        core: &mut Core,
        ctx: Ctx,
        begun: &mut Option<Cancelling>,
    ) -> Result<(), Error> {
        let name = match begun {
            Some(Cancelling(name)) => *name,
            None => self.requests.cancellable(ctx).ok_or(Error::NotFound)?,
        };
        let Some(Request::Out(out)) = self.requests.pool.get_mut(name) else {
            // It is over: what completed it has said how it ended.
            return Ok(());
        };
        if out.asked.is_some_and(|(_, want)| out.done >= want) {
            // All of it is on its way.
            return if begun.is_some() { Ok(()) } else { Err(Error::NotFound) };
        }
        let (peer, unasked) = (out.peer, out.asked.is_none());
        let withdrawn = Head::new(WireOp::Withdrawn, Flags::empty(), 0, name, 0);
        if self.requests.take_back(&mut self.net.link, peer, name).is_err() {
            if core.patience == Patience::Look {
                *begun = Some(Cancelling(name));
                return Err(Error::Busy);
            }
            // The receiver is stopped inside a copy, perhaps of something else: the send completes when the
            // receiver answers, which it does also if it has not received it.
            if unasked {
                self.net.send_or_queue(peer, withdrawn.as_bytes());
            }
            return Ok(());
        }
        self.cancelled(core, name, peer, &withdrawn)
    }

    /// The receiver is not inside the bytes of that send any more.
    fn cancelled(&mut self, core: &mut Core, name: u64, peer: PeerId, withdrawn: &Head) -> Result<(), Error> {
        // A receiver that was done before says so by now: then it was sent.
        self.progress(core, None);
        match self.requests.pool.get_mut(name) {
            // One that asked for frames meanwhile has all of them by now, or will.
            Some(Request::Out(out)) if out.asked.is_none_or(|(_, want)| out.done < want) => {}
            _ => return Ok(()),
        }
        self.requests.cancel_operation(&mut self.net.link, name);
        // Pieces that were copied here are accounted for.
        self.coop_report(name);
        self.requests.queues.drop_coop(name);
        self.requests.queues.drop_stream(name);
        let Some(Request::Out(out)) = self.requests.pool.replace(name, Request::Withdrawn(peer)) else {
            return Err(Error::NotFound);
        };
        match out.asked {
            Some((theirs, _)) => self.net.fin(peer, theirs, Status::Discarded, 0),
            None => self.net.send_or_queue(peer, withdrawn.as_bytes()),
        }
        self.finish_out(core, &out, Some(Error::Cancelled));
        Ok(())
    }

    /// The sender of a message has cancelled it: it is matched no more.
    pub(super) fn on_withdrawn(&mut self, core: &mut Core, peer: PeerId, head: &Head) -> Handled {
        let (ep, theirs) = (self.id, head.tag.get());
        if self.restore_order(peer, theirs) {
            return Ok(());
        }
        let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) else { return Ok(()) };
        match rx.withdraw(ep, peer, theirs) {
            // It is being received, which fails by itself.
            None => return Ok(()),
            Some(Some(message)) => self.take_unexpected(core, &message),
            Some(None) => {}
        }
        self.net.fin(peer, theirs, Status::Discarded, 0);
        Ok(())
    }

    /// Fails receives that messages were on their way to. The endpoint is closed, and they were posted to a
    /// context that others share.
    pub(crate) fn fail_received(&mut self, core: &mut Core) {
        let received = |r: &Request| matches!(r, Request::In(In { then: Then::Recv(_), .. }));
        for name in self.requests.pool.names(received) {
            if let Some(Request::In(In { then: Then::Recv(matched), .. })) = self.requests.pool.remove(name) {
                self.bind.complete_recv(core, matched, 0, Some(Error::Cancelled));
            }
        }
    }

    /// Ends what peers have under way with a registration that is closed: it fails on both sides.
    /// When it returns `Ok`, none of it is accessed any more.
    pub(crate) fn end_accesses(&mut self, core: &mut Core, mr: MrId) -> Result<(), InUse> {
        let names = self.requests.pool.names(|r| match r {
            Request::In(In { then: Then::Write { mrs, .. }, .. }) => mrs.contains(&mr),
            Request::Serve(s) => s.mrs.contains(&mr),
            Request::CoopHelp(l) => l.mrs.contains(&mr),
            _ => false,
        });
        let mut outcome = Ok(());
        for name in names {
            if outcome.is_err() {
                // The call is to be made again in any case: the others are asked, and not waited for.
                self.net.link.set_patience(Patience::Look);
            }
            match self.requests.pool.get_mut(name) {
                Some(Request::In(i)) => {
                    let peer = i.peer;
                    if self.requests.take_back(&mut self.net.link, peer, name).is_err() {
                        outcome = Err(InUse);
                    }
                    self.end_write(core, name);
                }
                Some(&mut Request::Serve(Serve { peer, req, lent, .. })) => {
                    // Its initiator may be getting it.
                    if lent && self.requests.take_back(&mut self.net.link, peer, name).is_err() {
                        outcome = Err(InUse);
                        continue;
                    }
                    self.requests.cancel_operation(&mut self.net.link, name);
                    self.requests.queues.drop_stream(name);
                    self.requests.end_serve(&mut self.net.link, name);
                    self.net.fin(peer, req, Status::BadKey, 0);
                }
                Some(Request::CoopHelp(_)) => {
                    self.requests.queues.drop_coop(name);
                    self.coop_report(name);
                }
                _ => {}
            }
        }
        self.net.link.set_patience(core.patience);
        self.go_on_in_order(core);
        outcome
    }

    /// A write of a peer's whose memory here was taken back. What is still on its way is thrown away.
    fn end_write(&mut self, core: &mut Core, name: u64) {
        let copying = self.requests.is_in_flight(name);
        let landing = self.requests.staging.is_landing(name);
        self.requests.cancel_operation(&mut self.net.link, name);
        self.requests.end_invitation(&mut self.net.link, name);
        let Some(Request::In(i)) = self.requests.pool.get_mut(name) else { return };
        i.iov = Spans::NONE;
        i.failed = Some(Status::BadKey);
        if copying || (landing && i.got == i.want) {
            // Nothing comes any more.
            if let Some(Request::In(i)) = self.requests.pool.remove(name) {
                self.fetched(core, i.peer, i.req, Status::BadKey, 0, i.then);
            }
        } else if let Some(part) = &mut i.coop {
            // Pieces that the peer has not taken are taken here, and not copied.
            part.copy.give_up();
            self.coop_progress(core);
        }
    }
}

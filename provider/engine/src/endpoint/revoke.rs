//! Memory that is given back although operations on it are under way: a send that is cancelled, a
//! registration that is closed.
//!
//! What a frame told a peer of, the peer may access by itself, until the request that the frame named is
//! answered. So the link ends that first ([`RmaLink::revoke`]); then the request is given up, and both sides
//! complete with an error. A name stays taken until the peer has answered it, so that no later request
//! is taken for it.

use hmem::total;
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
    fn take_back(&mut self, peer: PeerId, name: u64) -> Result<(), InUse> {
        // It may have been tried before, in vain.
        self.queues.add_revoked(name, peer);
        self.net.link.revoke(peer, name)
    }

    /// Names whose requests are over may be used again.
    #[cold]
    pub(super) fn renew(&mut self) {
        let (requests, link) = (&mut self.requests, &mut self.net.link);
        self.queues.retain_revoked(|name, peer| {
            let stays = requests.get_mut(name).is_some();
            if !stays {
                link.renew(peer, name);
            }
            stays
        });
    }

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
            None => self.cancellable(ctx).ok_or(Error::NotFound)?,
        };
        let Some(Request::Out(out)) = self.requests.get_mut(name) else {
            // It is over: what completed it has said how it ended.
            return Ok(());
        };
        if out.asked.is_some_and(|(_, want)| out.done >= want) {
            // All of it is on its way.
            return if begun.is_some() { Ok(()) } else { Err(Error::NotFound) };
        }
        let (peer, unasked) = (out.peer, out.asked.is_none());
        let withdrawn = Head::new(WireOp::Withdrawn, Flags::empty(), 0, name, 0);
        if self.take_back(peer, name).is_err() {
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

    /// The name of the oldest send of that context whose bytes are still here.
    fn cancellable(&mut self, ctx: Ctx) -> Option<u64> {
        let is_it = |r: &Request| {
            matches!(r, Request::Out(out) if out.done_as.ctx == ctx
                && out.done_as.what.contains(What::SEND)
                && total(&out.iov) > 0)
        };
        let mut found = None;
        for name in self.requests.names(is_it) {
            let Some(Request::Out(out)) = self.requests.get_mut(name) else { continue };
            if self.injected.kept(name).is_none() && found.is_none_or(|(seq, _)| out.seq < seq) {
                found = Some((out.seq, name));
            }
        }
        found.map(|(_, name)| name)
    }

    /// The receiver is not inside the bytes of that send any more.
    fn cancelled(&mut self, core: &mut Core, name: u64, peer: PeerId, withdrawn: &Head) -> Result<(), Error> {
        // A receiver that was done before says so by now: then it was sent.
        self.progress(core, None);
        match self.requests.get_mut(name) {
            // One that asked for frames meanwhile has all of them by now, or will.
            Some(Request::Out(out)) if out.asked.is_none_or(|(_, want)| out.done < want) => {}
            _ => return Ok(()),
        }
        self.cancel_operation(name);
        // Pieces that were copied here are accounted for.
        self.coop_report(name);
        self.queues.drop_coop(name);
        self.queues.drop_stream(name);
        let Some(Request::Out(out)) = self.requests.replace(name, Request::Withdrawn(peer)) else {
            return Err(Error::NotFound);
        };
        match out.asked {
            Some((theirs, _)) => self.net.fin(peer, theirs, Status::Discarded, 0),
            None => self.net.send_or_queue(peer, withdrawn.as_bytes()),
        }
        self.finish_out(core, &out, Some(Error::Cancelled));
        Ok(())
    }

    /// Whether a peer asks for a send that was cancelled.
    pub(super) fn is_withdrawn(&mut self, peer: PeerId, name: u64) -> bool {
        matches!(self.requests.get_mut(name), Some(Request::Withdrawn(p)) if *p == peer)
    }

    /// The receiver has answered a send that was cancelled.
    pub(super) fn forget_withdrawn(&mut self, peer: PeerId, name: u64) -> bool {
        self.is_withdrawn(peer, name) && self.requests.remove(name).is_some()
    }

    /// Whether a frame names a request that is over: it was given up when the frame was on its way.
    pub(super) fn is_past(&self, peer: PeerId, name: u64) -> bool {
        let past = self.requests.is_past(name);
        if past {
            log::debug!(
                "{}: an answer to what is over, from {}",
                self.net.link.addr(),
                self.net.link.peer_addr(peer)
            );
        }
        past
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
        for name in self.requests.names(received) {
            if let Some(Request::In(In { then: Then::Recv(matched), .. })) = self.requests.remove(name) {
                self.complete_recv(core, matched, 0, Some(Error::Cancelled));
            }
        }
    }

    /// Ends what peers have under way with a registration that is closed: it fails on both sides.
    /// When it returns `Ok`, none of it is accessed any more.
    pub(crate) fn end_accesses(&mut self, core: &mut Core, mr: MrId) -> Result<(), InUse> {
        let names = self.requests.names(|r| match r {
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
            match self.requests.get_mut(name) {
                Some(Request::In(i)) => {
                    let peer = i.peer;
                    if self.take_back(peer, name).is_err() {
                        outcome = Err(InUse);
                    }
                    self.end_write(core, name);
                }
                Some(&mut Request::Serve(Serve { peer, req, lent, .. })) => {
                    // Its initiator may be getting it.
                    if lent && self.take_back(peer, name).is_err() {
                        outcome = Err(InUse);
                        continue;
                    }
                    self.cancel_operation(name);
                    self.queues.drop_stream(name);
                    self.end_serve(name);
                    self.net.fin(peer, req, Status::BadKey, 0);
                }
                Some(Request::CoopHelp(_)) => {
                    self.queues.drop_coop(name);
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
        let copying = self.is_in_flight(name);
        let landing = self.staging.is_landing(name);
        self.cancel_operation(name);
        self.end_invitation(name);
        let Some(Request::In(i)) = self.requests.get_mut(name) else { return };
        i.iov = Spans::NONE;
        i.failed = Some(Status::BadKey);
        if copying || (landing && i.got == i.want) {
            // Nothing comes any more.
            if let Some(Request::In(i)) = self.requests.remove(name) {
                self.fetched(core, i.peer, i.req, Status::BadKey, 0, i.then);
            }
        } else if let Some(part) = &mut i.coop {
            // Pieces that the peer has not taken are taken here, and not copied.
            part.copy.give_up();
            self.coop_progress(core);
        }
    }
}

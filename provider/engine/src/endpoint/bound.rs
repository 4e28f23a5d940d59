//! What peers may take up here, and what happens when that is a lot.
//!
//! Unexpected messages wait in memory of ours. When they take up more than they are to
//! (`FI_STRAIT_UNEXPECTED_SIZE`), their senders are told to pause (`Pause`): from then on they
//! offer every message instead of sending it, so that its bytes stay with them until they are wanted. No
//! ring ever stops, so that nothing behind such a message waits, and whatever an MPI program may
//! rely on goes on. An offer takes little room here, and each sender has only so many operations under way
//! ([`Endpoint::depth`]) before it is told to try again.
//!
//! The same depth bounds what a correct peer can have this side keep of answers that found no room, and of
//! requests that this side serves. One that goes far beyond is cut off.

use hmem::{Span, total};
use wire::{Flags, Head, Offer, Op as WireOp, Seg, Status};

use super::Endpoint;
use crate::core::{Body, Core, Message, Spans, Tally, failure};
use crate::endpoint::malformed::{Handled, Malformed};
use crate::endpoint::parts::header::{Header, push};
use crate::endpoint::parts::quota::{MANY_OF_ONE, SLACK};
use crate::endpoint::parts::request::{Done, In, Meta, Out, Request, Serve};
use crate::endpoint::post::{rma_flags, rma_head, segments};
use crate::matching::At;
use crate::proto::{Cut, Reach};
use crate::types::*;
use link_api::{PeerId, RmaLink};

impl<L: RmaLink> Endpoint<L> {
    /// Keeps an unexpected message.
    pub(super) fn keep_unexpected(&mut self, core: &mut Core, meta: Meta, ack: Option<u64>, body: Body) {
        let Meta { peer, src, tagged, tag, data, len } = meta;
        let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) else { return };
        let message = Message { ep: self.id, peer, src, tagged, tag, data, len, ack, body };
        let weight = message.weight();
        let at = rx.matcher(tagged).wait(src, tag, || message);
        if !self.weighs_more(core, peer, weight) {
            self.refuse_unexpected(core, tagged, at);
        }
    }

    /// What waits takes up so much more. `false`: that is more than all peers may have this side keep, and
    /// the peer is cut off.
    #[inline]
    #[must_use]
    pub(super) fn weighs_more(&mut self, core: &mut Core, peer: PeerId, weight: usize) -> bool {
        core.waiting += weight;
        self.net.peer(peer).waiting += weight;
        core.waiting <= core.waiting_most || self.over_quota(core, peer)
    }

    /// A message that was kept just now does not stay.
    #[cold]
    pub(super) fn refuse_unexpected(&mut self, core: &mut Core, tagged: bool, at: At) {
        let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) else { return };
        let Some(message) = rx.matcher(tagged).take(at) else { return };
        self.take_unexpected(core, &message);
        if let Body::Held(held) = message.body {
            core.buffers.drop(held);
        }
    }

    /// A message waits no more.
    pub(super) fn take_unexpected(&mut self, core: &mut Core, message: &Message) {
        self.weighs_less(core, message.peer, message.weight());
    }

    /// What waits takes up so much less.
    #[inline]
    pub(super) fn weighs_less(&mut self, core: &mut Core, peer: PeerId, weight: usize) {
        core.waiting = core.waiting.saturating_sub(weight);
        let Some(state) = self.net.peers.get_mut(peer) else { return };
        state.waiting = state.waiting.saturating_sub(weight);
        if state.waiting == 0 && state.gone.is_some() {
            self.release(peer);
        }
    }

    /// Whether what came last may stay.
    #[cold]
    fn over_quota(&mut self, core: &mut Core, peer: PeerId) -> bool {
        if !self.net.may_keep(core, peer, 0) {
            return false;
        }
        let most = core.waiting_most.saturating_mul(2).saturating_add(SLACK);
        let state = self.net.peer(peer);
        if state.waiting > most {
            let (ep, rx) = (self.id, self.bind.rx());
            self.net.cut_off(peer, "unexpected messages");
            if let Some(rx) = core.rxs.get_mut(rx.at()) {
                for tagged in [true, false] {
                    rx.matcher(tagged).drop_waiting(|m| m.ep == ep && m.peer == peer);
                }
            }
            self.net.peer(peer).waiting = 0;
            core.weigh();
        } else if !std::mem::replace(&mut state.pause_sent, true) {
            self.net.unhurried.pause();
            log::info!(
                "{}: {} bytes of messages wait to be received; {} is to pause",
                self.net.link.addr(),
                core.waiting,
                self.net.link.peer_addr(peer)
            );
            self.net.send_pause(peer, true);
        }
        true
    }

    /// Offers an injected message to a peer that is short of room, or whose frames do not hold it: its bytes
    /// are kept here.
    pub(super) fn offer_kept(
        &mut self,
        peer: PeerId,
        op: &Send<'_>,
        flags: Flags,
        done_as: Done,
    ) -> Result<(), Error> {
        let bytes = copied(op.iov)?;
        let name = self.offer(Out::new(peer, Spans::NONE, bytes.len(), done_as), op, flags)?;
        self.requests.injected.keep(name, bytes);
        Ok(())
    }

    /// Offers an injected write that no frame holds: its bytes are kept here.
    pub(super) fn write_kept(&mut self, peer: PeerId, op: &Rma<'_>, done_as: Done) -> Result<(), Error> {
        let bytes = copied(op.iov)?;
        let seg = Seg { addr: 0.into(), len: (bytes.len() as u64).into() };
        let mut name = 0;
        let header = |req: u64, h: &mut Header| {
            name = req;
            rma_head(h, WireOp::WriteRts, rma_flags(op), op, &[seg], req);
        };
        let out = Out { large: true, ..Out::new(peer, Spans::NONE, bytes.len(), done_as) };
        self.launch(out, header, &[], 0)?;
        // The target holds what comes behind it.
        self.net.peer(peer).hints.note_frames();
        self.requests.injected.keep(name, bytes);
        Ok(())
    }

    /// Tells the peer of a message whose bytes stay here until it has a buffer for them.
    pub(super) fn send_rts(
        &mut self,
        peer: PeerId,
        iov: &[Span],
        mut flags: Flags,
        done_as: Done,
        handles: bool,
    ) -> Result<(), Error> {
        let (segs, direct) = segments(iov)?;
        flags.set(Flags::DIRECT, direct && !handles && self.net.peer(peer).flow.limits().allows(Reach::Cpu));
        flags.set(Flags::HANDLES, handles);
        let len = total(iov);
        let header = |req: u64, h: &mut Header| {
            push(h, &Head::new(WireOp::Rts, flags, segs.len() as u16, done_as.tag, done_as.data));
            push(h, &Offer { req: req.into(), len: (len as u64).into() });
            push(h, &segs[..]);
        };
        let out = Out { offered: Cut::is_worth(len), ..Out::new(peer, iov.into(), len, done_as) };
        self.launch(out, header, &[], 0)
    }

    /// Offers a message whose bytes the peer has to ask for: it is not told where they are.
    pub(super) fn offer(&mut self, out: Out, op: &Send<'_>, flags: Flags) -> Result<u64, Error> {
        let (tag, data, len) = (op.tag.unwrap_or(0), op.data.unwrap_or(0), out.len as u64);
        let mut name = 0;
        let header = |req: u64, h: &mut Header| {
            name = req;
            let seg = Seg { addr: 0.into(), len: len.into() };
            push(h, &Head::new(WireOp::Rts, flags, 1, tag, data));
            push(h, &Offer { req: req.into(), len: seg.len });
            push(h, &seg);
        };
        self.launch(out, header, &[], 0)?;
        Ok(name)
    }

    /// Sends the bytes of such a message, if that is what was asked for. `None`: it is not.
    pub(super) fn give_kept(&mut self, peer: PeerId, name: u64, theirs: u64, want: u64) -> Option<()> {
        let kept = self.requests.injected.kept(name)?;
        let ours = matches!(self.requests.pool.get_mut(name), Some(Request::Out(out)) if out.peer == peer);
        (ours && want <= kept.len() as u64).then_some(())?;
        let kept = self.requests.injected.take_kept(name)?;
        self.net.send_parts(peer, theirs, 0, &kept[..want as usize]);
        Some(())
    }

    /// A write or atomic of ours that asked for no answer came to nothing.
    pub(super) fn on_refused(&mut self, core: &mut Core, peer: PeerId, head: &Head) -> Handled {
        let err = failure(Status::from_u16(head.aux.get())).ok_or(Malformed::Status)?;
        if !self.net.peer(peer).answers.refuse_unacked() {
            return Err(Malformed::Status);
        }
        let what = What::WRITE | if head.data.get() == 1 { What::ATOMIC } else { What::RMA };
        self.bind.fail_start(core, Ctx(0), what, 0, Tally::PLAIN, err);
        Ok(())
    }

    /// Whether a peer has more requests served than there is a good reason for.
    #[cold]
    pub(super) fn count_requests(&mut self, core: &Core) {
        let mut of = vec![0usize; self.net.peers.len()];
        for name in self.requests.pool.names(|_| true) {
            match self.requests.pool.get_mut(name) {
                Some(Request::In(In { peer, .. }) | Request::Serve(Serve { peer, .. })) => {
                    of[peer.0 as usize] += 1
                }
                Some(Request::CoopHelp(l)) => of[l.peer.0 as usize] += 1,
                _ => {}
            }
        }
        let beyond = !core.limit.holds(core.waiting + of.iter().sum::<usize>() * size_of::<Request>());
        let most = if beyond { of.iter().copied().max().unwrap_or(0).saturating_sub(1) } else { MANY_OF_ONE };
        for (peer, _) in (0..).map(PeerId).zip(of).filter(|(_, n)| *n > most.min(MANY_OF_ONE)) {
            self.net.cut_off(peer, "requests");
        }
        self.net.quota.counted(self.requests.pool.len());
    }
}

/// What is injected, for a frame to come.
fn copied(iov: &[Span]) -> Result<Vec<u8>, Error> {
    let mut bytes = vec![0; hmem::total(iov)];
    if hmem::read(iov, 0, &mut bytes) == bytes.len() { Ok(bytes) } else { Err(Error::Io) }
}

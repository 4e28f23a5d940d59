//! Cooperative copies that this side opens: of a payload it takes in, and of its own reads and writes.

use arrayvec::ArrayVec;
use hmem::total;
use wire::{Flags, Head, Op as WireOp, Pieces, Seg, put};

use crate::core::{Core, Spans};
use crate::endpoint::Endpoint;
use crate::endpoint::coop_copy::Part;
use crate::endpoint::request::{Done, In, Out, Request, Then};
use crate::proto::Cut;
use crate::types::Rma;
use link_api::{Grant, PeerId, RegionVersion, RmaLink, Way};
use xfer::CoopCopy;

/// How often what is given stays given although there is time to copy it: while frames keep coming.
const PATIENCE: u16 = 256;

impl<L: RmaLink> Endpoint<L> {
    /// Whether a peer has begun with most of what it was given.
    pub(in crate::endpoint) fn is_idle(&mut self, peer: PeerId) -> bool {
        let (link, given) = (&self.link, &mut self.peers[peer.0 as usize].given);
        given.retain(|share| !link.pieces_begun(peer, *share));
        !given.is_full()
    }

    /// Whether a peer may be told what it can do without. While it does not look, such frames add up, and
    /// must not be in the way of others.
    pub(in crate::endpoint) fn may_advise(&mut self, peer: PeerId) -> bool {
        !self.peer(peer).has_backlog() && self.link.has_room_to_spare(peer)
    }

    /// Starts to fetch a payload together with its sender. Gives `then` back if that is not to be.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::endpoint) fn share_out(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        req: u64,
        segs: &[Seg],
        iov: &Spans,
        len: usize,
        cut: Cut,
        then: Then,
    ) -> Option<Then> {
        if !self.may_advise(peer) {
            return Some(then);
        }
        let Some(share) = self.link.pieces_open(peer) else { return Some(then) };
        let want = len.min(total(iov));
        let segs = segs.iter().copied().collect();
        let copy = CoopCopy::open(peer, share, want, cut.pieces, Grant::Request(req), Way::Get);
        let left = if cut.delegated { PATIENCE } else { 0 };
        let part = Part { theirs: req, left, ..Part::opened(copy, segs) };
        let about = part.about();
        let mut request = In::new(peer, iov.clone(), len, want, req, then);
        request.shared = Some(Box::new(part));
        let name = self.requests.insert(Request::In(request));
        let mut frame = Vec::with_capacity(Head::LEN + size_of::<Pieces>() + iov.len() * size_of::<Seg>());
        put(&mut frame, &Head::new(WireOp::Share, Flags::empty(), iov.len() as u16, req, name));
        put(&mut frame, &about);
        for s in iov.iter() {
            put(&mut frame, &Seg { addr: s.addr().into(), len: (s.len() as u64).into() });
        }
        self.tell_peer(peer, &frame);
        if cut.delegated {
            let _ = self.peer(peer).given.try_push(share);
        }
        self.share_begin(core, name);
        None
    }

    /// Begins with a transfer that was opened here.
    fn share_begin(&mut self, core: &mut Core, name: u64) {
        self.shares.push_back(name);
        self.share_one(core, name);
    }

    /// Starts a large read or write of ours together with its target, which has nothing to check that
    /// we have not: `there` is what it exposes. `false`: that is not to be.
    pub(in crate::endpoint) fn share_rma(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        op: &Rma<'_>,
        (there, version): (Seg, RegionVersion),
        cut: Cut,
        done_as: Done,
    ) -> bool {
        let len = total(op.iov);
        let [named] = op.remote else { return false };
        if !self.may_advise(peer) {
            return false;
        }
        let Some(share) = self.link.pieces_open(peer) else { return false };
        let mut segs = ArrayVec::new();
        segs.push(there);
        let way = if op.write { Way::Put } else { Way::Get };
        let copy = CoopCopy::open(peer, share, len, cut.pieces, Grant::Region(version), way);
        let part = Part { named: Some(*named), left: cut.delegated.into(), ..Part::opened(copy, segs) };
        let about = part.about();
        let shared = Some(Box::new(part));
        let state = self.peer(peer);
        state.posted += 1;
        state.outstanding += 1;
        let seq = state.posted;
        let iov = Spans::from(op.iov);
        let out = Out { seq, shared, ..Out::new(peer, iov, len, done_as) };
        let name = self.requests.insert(Request::Out(out));
        let mut frame = Vec::with_capacity(Head::LEN + 64 + op.iov.len() * size_of::<Seg>());
        put(&mut frame, &Head::new(WireOp::Lend, Flags::empty(), op.iov.len() as u16, name, op.write.into()));
        put(&mut frame, &about);
        put(&mut frame, named);
        for s in op.iov {
            put(&mut frame, &Seg { addr: s.addr().into(), len: (s.len() as u64).into() });
        }
        self.tell_peer(peer, &frame);
        if cut.delegated {
            let _ = self.peer(peer).given.try_push(share);
        }
        self.share_begin(core, name);
        true
    }
}

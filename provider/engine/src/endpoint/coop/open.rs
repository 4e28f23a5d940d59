//! Cooperative copies that this side opens: of a payload it takes in, and of its own reads and writes.

use arrayvec::ArrayVec;
use hmem::total;
use wire::{Flags, Head, Op as WireOp, Pieces, Seg, put};

use crate::core::{Core, Spans};
use crate::endpoint::Endpoint;
use crate::endpoint::coop_copy::Coop;
use crate::endpoint::parts::header::put_segs;
use crate::endpoint::parts::request::{Done, In, Out, Request, Then};
use crate::proto::Cut;
use crate::types::Rma;
use link_api::{Grant, PeerId, RegionVersion, RmaLink, Way};
use xfer::CoopCopy;

/// How often what is given stays given although there is time to copy it: while frames keep coming.
const PATIENCE: u16 = 256;

impl<L: RmaLink> Endpoint<L> {
    /// Starts to fetch a payload together with its sender. Gives `then` back if that is not to be.
    #[allow(clippy::too_many_arguments)]
    pub(in crate::endpoint) fn coop_fetch(
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
        if !self.net.has_room_for_offers(peer) {
            return Some(then);
        }
        let Some(counter) = self.net.link.pieces_open(peer) else { return Some(then) };
        let want = len.min(total(iov));
        let segs = segs.iter().copied().collect();
        let copy = CoopCopy::open(peer, counter, want, cut.pieces, Grant::Request(req), Way::Get);
        let left = if cut.delegated { PATIENCE } else { 0 };
        let coop = Coop { theirs: req, left, ..Coop::opened(copy, segs) };
        let about = coop.about();
        let mut request = In::new(peer, iov.clone(), len, want, req, then);
        request.coop = Some(Box::new(coop));
        let name = self.requests.pool.insert(Request::In(request));
        let mut frame = Vec::with_capacity(Head::LEN + size_of::<Pieces>() + iov.len() * size_of::<Seg>());
        put(&mut frame, &Head::new(WireOp::CoopFetch, Flags::empty(), iov.len() as u16, req, name));
        put(&mut frame, &about);
        put_segs(&mut frame, iov);
        self.net.send_or_queue(peer, &frame);
        if cut.delegated {
            let _ = self.net.peer(peer).hints.delegated().try_push(counter);
        }
        self.coop_begin(core, name);
        None
    }

    /// Begins with a transfer that was opened here.
    fn coop_begin(&mut self, core: &mut Core, name: u64) {
        self.requests.queues.add_coop(name);
        self.coop_step(core, name);
    }

    /// Starts a large read or write of ours together with its target, which has nothing to check that
    /// was not checked here: `there` is what it exposes. `false`: that is not to be.
    pub(in crate::endpoint) fn coop_rma(
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
        if !self.net.has_room_for_offers(peer) {
            return false;
        }
        let Some(counter) = self.net.link.pieces_open(peer) else { return false };
        let mut segs = ArrayVec::new();
        segs.push(there);
        let way = if op.write { Way::Put } else { Way::Get };
        let copy = CoopCopy::open(peer, counter, len, cut.pieces, Grant::Region(version), way);
        let coop = Coop { named: Some(*named), left: cut.delegated.into(), ..Coop::opened(copy, segs) };
        let about = coop.about();
        let coop = Some(Box::new(coop));
        let state = self.net.peer(peer);
        let seq = state.answers.next_seq();
        state.answers.begin(false);
        let iov = Spans::from(op.iov);
        let out = Out { seq, coop, ..Out::new(peer, iov, len, done_as) };
        let name = self.requests.pool.insert(Request::Out(out));
        let mut frame = Vec::with_capacity(Head::LEN + 64 + op.iov.len() * size_of::<Seg>());
        put(
            &mut frame,
            &Head::new(WireOp::CoopRma, Flags::empty(), op.iov.len() as u16, name, op.write.into()),
        );
        put(&mut frame, &about);
        put(&mut frame, named);
        put_segs(&mut frame, op.iov);
        self.net.send_or_queue(peer, &frame);
        if cut.delegated {
            let _ = self.net.peer(peer).hints.delegated().try_push(counter);
        }
        self.coop_begin(core, name);
        true
    }
}

//! Cooperative copies that begin: those that this side opens, for a payload that it takes in and for its own
//! reads and writes, and those that the peer opens.

use arrayvec::ArrayVec;
use hmem::total;
use wire::{Flags, Head, Op as WireOp, Pieces, RmaSeg, Seg, Status, put};
use xfer::{CoopCopy, LAST, MAX_HELPED};

use crate::core::{Core, Spans};
use crate::endpoint::coop::CoopCopies;
use crate::endpoint::coop::copy::{Coop, CoopHelp};
use crate::endpoint::malformed::{Fields, Handled, Malformed, parse_segs};
use crate::endpoint::parts::header::put_segs;
use crate::endpoint::parts::request::{Done, In, Out, Request, Then};
use crate::proto::{Cut, Memory};
use crate::types::*;
use link_api::{Grant, PeerId, RegionVersion, RmaLink, Way};

/// How often what is given stays given although there is time to copy it: while frames keep coming.
const PATIENCE: u16 = 256;

impl<L: RmaLink> CoopCopies<'_, L> {
    /// Begins with what is the other side's, unless much was done in this progress call: then the next one
    /// does.
    fn coop_join(&mut self, core: &mut Core, name: u64) {
        self.requests.queues.add_coop(name);
        if self.adapt.has_time_to_copy() {
            let taken = self.coop_step(core, name);
            self.adapt.note_pieces(taken);
        }
    }

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

    /// A peer has begun to read or write memory here, and this side may help.
    pub(in crate::endpoint) fn on_coop_rma(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let n = parse_segs(head.aux.get())?;
        let about: Pieces = fields.take()?;
        let named: RmaSeg = fields.take()?;
        let segs = fields.take_segs(n)?;
        let write = head.data.get() == 1;
        let want = if write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        // If it has changed meanwhile, it does not concern this side; the peer finds that out by itself.
        let Ok(reached) = core.mrs.reach(&[named], want) else { return Ok(()) };
        let way = if write { Way::Get } else { Way::Put };
        let coop = Coop::helping(peer, &about, segs, head.tag.get(), way).ok_or(Malformed::Pieces)?;
        // The last bytes of a write are the initiator's.
        let behind = if write { LAST } else { 0 };
        if !(coop.copy.len..=coop.copy.len.saturating_add(behind)).contains(&reached.len)
            || !self.net.peer(peer).flow.limits().is_sync()
            || Memory::of(&reached.iov) != Memory::Host
        {
            return Ok(());
        }
        let iov = Spans::from(&reached.iov[..]);
        let requests = &mut self.requests.pool;
        let mut is_theirs =
            |name: &u64| matches!(requests.get_mut(*name), Some(Request::CoopHelp(l)) if l.peer == peer);
        if self.requests.queues.coop().iter().filter(|name| is_theirs(name)).count() >= MAX_HELPED {
            return Ok(());
        }
        let lent = CoopHelp { peer, iov, coop: Box::new(coop), mrs: reached.mrs };
        let name = self.requests.pool.insert(Request::CoopHelp(lent));
        self.coop_join(core, name);
        Ok(())
    }

    /// The taker of what this side sends has begun, and this side may help.
    pub(in crate::endpoint) fn on_coop_fetch(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let n = parse_segs(head.aux.get())?;
        let about: Pieces = fields.take()?;
        let segs = fields.take_segs(n)?;
        let name = head.tag.get();
        let is_sync = self.net.peer(peer).flow.limits().is_sync();
        let in_order = core.config.rma_order;
        if self.requests.is_withdrawn(peer, name) {
            return Ok(());
        }
        let Request::Out(out) = self.requests.named(peer, name)? else { return Err(Malformed::Unfit) };
        let coop = Coop::helping(peer, &about, segs, head.data.get(), Way::Put).ok_or(Malformed::Pieces)?;
        let fits = out.asked.is_none()
            && out.coop.is_none()
            && coop.copy.len <= total(&out.iov)
            && !out.done_as.what.intersects(What::READ | What::ATOMIC);
        if !fits {
            return Err(Malformed::Unfit);
        }
        if !is_sync
            || (in_order && out.done_as.what.contains(What::RMA))
            || Memory::of(&out.iov) != Memory::Host
        {
            return Ok(());
        }
        out.coop = Some(Box::new(coop));
        self.coop_join(core, name);
        Ok(())
    }

    /// The other side has copied so many pieces, and there are no more.
    pub(in crate::endpoint) fn on_coop_done(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
    ) -> Handled {
        let name = head.tag.get();
        let coop = match self.requests.named(peer, name)? {
            Request::In(In { coop: Some(coop), .. }) | Request::Out(Out { coop: Some(coop), .. }) => coop,
            _ => return Err(Malformed::Unfit),
        };
        if !coop.is_owner() || coop.reported.is_some() {
            return Err(Malformed::Unfit);
        }
        coop.reported = Some((Status::from_u16(head.aux.get()), head.data.get()));
        // Otherwise our own pieces come first.
        if !self.requests.queues.coop().contains(&name) {
            self.coop_end(core, name);
        }
        Ok(())
    }
}

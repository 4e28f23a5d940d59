//! Large transfers that both sides copy.
//!
//! One core's copy of host memory is far from what the memory can do. So the taker of a large
//! payload opens a counter that both sides can reach ([`RmaLink::pieces_open`]), tells the sender where
//! its buffer is (`Share`), and fetches piece after piece, each taken from the counter. The sender,
//! if it is inside the library, takes pieces too, and puts them. If it is not, it takes none, and the
//! taker fetches them all as it would have done anyway: nobody ever waits for the other to begin.
//!
//! When the counter has no more pieces, a sender that took any says how many (`Shared`); they are
//! copied by then. The taker knows how many those are, since it counts its own, and waits only then.
//!
//! Of many messages in a row each side copies a half: while more are waiting behind a message, the
//! taker leaves the second half of it to the sender, and goes on with the next. What the sender has not
//! begun when nothing is left to take, the taker copies itself.
//!
//! A large read or write that its initiator could do alone is shared likewise: the initiator opens the
//! counter and tells the target (`Lend`).

use arrayvec::ArrayVec;
use hmem::total;
use wire::{Aux, Flags, Head, MAX_SEGS, Op as WireOp, Pieces, RmaSeg, Seg, Status, put, take, take_many};
use zerocopy::IntoBytes;

use super::{Done, Endpoint, Fetches, In, Out, Request, Then};
use crate::core::{Core, Mrs, Spans};
use crate::proto::{Cut, Memory, pieces_by};
use crate::types::{Access, Rma, What};
use link_api::{Grant, NoDirect, PeerId, PieceCounter, RegionVersion, RmaLink};

/// Bytes copied in a row, so that nothing else waits long.
const GO: usize = 4 << 20;

/// Pieces taken by one progress call, after which the next call goes on.
const TAKEN: usize = 64;
/// Reads and writes of one peer that we take part in at a time: more than a peer of ours begins.
const LENT: usize = 64;

/// Messages a sender is given ahead: one to copy, and one to go on with.
pub(super) const GIVEN: usize = 2;
/// How often what is given stays given although there is time to copy it: while frames keep coming.
const PATIENCE: u16 = 256;

/// Whether a peer can copy its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shares {
    /// Nothing was copied directly yet, so nobody knows whether that works.
    Unknown,
    May,
    /// It tried and could not.
    Not,
}

impl Shares {
    /// Direct copies work, here at least.
    pub(super) fn may(&mut self) {
        if *self == Shares::Unknown {
            *self = Shares::May;
        }
    }
}

/// A shared transfer, as either side sees it.
#[derive(Debug)]
pub(super) struct Part {
    share: PieceCounter,
    /// Bytes in all, bytes of a piece, and how many of these there are.
    len: usize,
    piece: usize,
    pieces: u16,
    /// The other side's memory, what allows to access it, and how an initiator names it.
    segs: ArrayVec<Seg, MAX_SEGS>,
    grant: Grant,
    named: Option<RmaSeg>,
    /// Pieces copied, or given up, on this side.
    mine: u16,
    /// Why a piece could not be copied here, and which.
    failed: Option<(NoDirect, u16)>,
    /// Whether this side opened the counter, and whether it gets or puts.
    owner: bool,
    gets: bool,
    /// How many times more it is left to the other side.
    left: u16,
    /// The owner's request, where that is the other side's.
    theirs: u64,
    /// Said to the owner at the end.
    said: Option<(Status, u64)>,
}

/// A peer's read or write that we take pieces of.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) peer: PeerId,
    iov: Spans,
    part: Box<Part>,
    pub(super) mrs: Mrs,
}

impl Part {
    /// What the side that opens the counter knows.
    fn opened(
        share: PieceCounter,
        len: usize,
        cut: Cut,
        segs: ArrayVec<Seg, MAX_SEGS>,
        grant: Grant,
        gets: bool,
    ) -> Part {
        let Cut { piece, pieces, delegated } = cut;
        let left =
            if delegated && gets && matches!(grant, Grant::Request(_)) { PATIENCE } else { delegated.into() };
        let (named, mine, failed, owner, theirs, said) = (None, 0, None, true, 0, None);
        Part { share, len, piece, pieces, segs, grant, named, mine, failed, owner, gets, left, theirs, said }
    }

    /// The transfer as the other side is told of it.
    fn about(&self) -> Pieces {
        let PieceCounter { slot, generation } = self.share;
        let (len, piece) = ((self.len as u64).into(), (self.piece as u64).into());
        Pieces { len, piece, slot: slot.into(), generation: generation.into() }
    }

    /// What the side that did not open the counter knows, as it was told; `None` if that is nonsense.
    fn helping(about: &Pieces, segs: ArrayVec<Seg, MAX_SEGS>, theirs: u64, gets: bool) -> Option<Part> {
        let len = usize::try_from(about.len.get()).ok()?;
        let piece = usize::try_from(about.piece.get()).ok()?;
        let there = segs.iter().try_fold(0u64, |n, s| n.checked_add(s.len.get()))?;
        (there >= len as u64).then_some(())?;
        let pieces = pieces_by(len, piece)?;
        let share = PieceCounter { slot: about.slot.get(), generation: about.generation.get() };
        let (mine, failed, owner, left, said) = (0, None, false, 0, None);
        let (grant, named) = (Grant::Request(theirs), None);
        Some(Part {
            share,
            len,
            piece,
            pieces,
            segs,
            grant,
            named,
            mine,
            failed,
            owner,
            gets,
            left,
            theirs,
            said,
        })
    }

    /// Whether this side opened the counter.
    pub(super) fn is_owner(&self) -> bool {
        self.owner
    }

    /// No more is copied here.
    pub(super) fn give_up(&mut self) {
        self.failed.get_or_insert((NoDirect::Revoked, 0));
    }

    /// Place and length of a piece.
    fn bytes(&self, piece: u16) -> (usize, usize) {
        let off = usize::from(piece) * self.piece;
        (off, self.piece.min(self.len - off))
    }
}

impl<L: RmaLink> Endpoint<L> {
    /// Whether a peer has begun with most of what it was given.
    pub(super) fn is_idle(&mut self, peer: PeerId) -> bool {
        let (link, given) = (&self.link, &mut self.peers[peer.0 as usize].given);
        given.retain(|share| !link.pieces_begun(peer, *share));
        !given.is_full()
    }

    /// Whether a peer may be told what it can do without. While it does not look, such frames add up, and
    /// must not be in the way of others.
    pub(super) fn may_advise(&mut self, peer: PeerId) -> bool {
        !self.peer(peer).has_backlog() && self.link.has_room_to_spare(peer)
    }

    /// Starts to fetch a payload together with its sender. Gives `then` back if that is not to be.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn share_out(
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
        let opened = Part::opened(share, want, cut, segs, Grant::Request(req), true);
        let left = if cut.delegated { PATIENCE } else { 0 };
        let part = Part { theirs: req, left, ..opened };
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

    /// Goes on with what is shared.
    pub(super) fn share_on(&mut self, core: &mut Core) -> usize {
        let mut n = 0;
        for _ in 0..self.shares.len() {
            let Some(&name) = self.shares.front() else { break };
            self.shares.rotate_left(1);
            let taken = self.share_one(core, name);
            n += taken;
            self.taken += taken;
            if self.taken >= TAKEN {
                break;
            }
        }
        n
    }

    /// Begins with what is the other side's, unless much was done in this progress call: then the next one does.
    fn share_in(&mut self, core: &mut Core, name: u64) {
        self.shares.push_back(name);
        if self.taken < TAKEN {
            self.taken += self.share_one(core, name);
        }
    }

    /// Copies pieces until there are none, or enough for one go.
    fn share_one(&mut self, core: &mut Core, name: u64) -> usize {
        let (peer, iov, part) = match self.requests.get_mut(name) {
            Some(Request::In(In { peer, iov, shared: Some(part), .. })) => (*peer, &*iov, part),
            Some(Request::Out(Out { peer, iov, shared: Some(part), .. })) => (*peer, &*iov, part),
            Some(Request::Lent(Lent { peer, iov, part, .. })) => (*peer, &*iov, part),
            _ => {
                self.shares.retain(|s| *s != name);
                return 0;
            }
        };
        let owner = part.owner;
        let (mut n, mut left) = (0, GO);
        let mut over = false;
        while left > 0 {
            // The other half is the other side's, unless there is nothing else to do.
            if part.left > 0 && part.mine > 0 && (self.posting || self.link.has_frames_of(peer)) {
                part.left -= 1;
                break;
            }
            // A peer that turns the counter back gets no more out of us than there is.
            let next = if part.mine < part.pieces {
                self.link.pieces_claim(peer, part.share, owner, part.pieces)
            } else {
                None
            };
            let Some(piece) = next else {
                over = true;
                break;
            };
            part.mine += 1;
            n += 1;
            // What is left after a failure is taken only so that the other side does not.
            if part.failed.is_none() {
                let (off, len) = part.bytes(piece);
                let copied = if part.gets {
                    self.link.get(peer, part.grant, &part.segs, off, iov, off, len)
                } else {
                    self.link.put(peer, part.grant, &part.segs, off, iov, off, len)
                };
                if let Err(why) = copied {
                    part.failed = Some((why, piece));
                    // The owner can still do it alone.
                    over = !owner;
                    if over {
                        break;
                    }
                }
                left = left.saturating_sub(len);
            }
        }
        if over {
            self.shares.retain(|s| *s != name);
            if owner { self.share_end(core, name) } else { self.share_tell(name) }
        }
        n
    }

    /// The owner has no more pieces to take: done, unless the other side still has.
    fn share_end(&mut self, core: &mut Core, name: u64) {
        let (peer, iov, part) = match self.requests.get_mut(name) {
            Some(Request::In(In { peer, iov, shared: Some(part), .. })) => (*peer, &*iov, part),
            Some(Request::Out(Out { peer, iov, shared: Some(part), .. })) => (*peer, &*iov, part),
            _ => return,
        };
        let theirs = part.pieces - part.mine;
        let mut by_frames = false;
        let mut status = match part.failed {
            None => Status::Ok,
            Some((NoDirect::Revoked, _)) => Status::Discarded,
            Some((NoDirect::Fault, _)) => Status::Io,
            Some((NoDirect::Memory | NoDirect::Never, _)) => {
                by_frames = true;
                Status::Io
            }
        };
        if theirs > 0 {
            let Some((said, data)) = part.said else { return };
            let (copied, failed) = (data as u32, (data >> 32) as u32);
            if copied != u32::from(theirs) || !matches!(said, Status::Ok | Status::Unsupported) {
                status = Status::Io;
            } else if said == Status::Unsupported && status == Status::Ok {
                status = Status::Io;
                let piece = u16::try_from(failed.wrapping_sub(1)).ok().filter(|p| *p < part.pieces);
                if let Some((off, len)) = piece.map(|p| part.bytes(p)) {
                    let copied = match part.gets {
                        true => self.link.get(peer, part.grant, &part.segs, off, iov, off, len),
                        false => self.link.put(peer, part.grant, &part.segs, off, iov, off, len),
                    };
                    match copied {
                        Ok(()) => status = Status::Ok,
                        Err(why) => by_frames = matches!(why, NoDirect::Memory | NoDirect::Never),
                    }
                }
            }
        }
        let (share, said) = (part.share, part.said);
        if let Some((Status::Unsupported, _)) = said {
            self.peer(peer).shares = Shares::Not;
        }
        self.link.pieces_close(peer, share);
        if status == Status::Io && by_frames && self.begin_anew(name) {
            return;
        }
        match self.requests.remove(name) {
            Some(Request::In(i)) => {
                let status = i.failed.unwrap_or(status);
                let len = if status == Status::Ok { i.len } else { 0 };
                self.fetched(core, i.peer, i.req, status, len, i.then);
            }
            Some(Request::Out(out)) => {
                let err = self.failure(peer, status);
                self.finish_out(core, &out, err);
            }
            _ => {}
        }
    }

    /// Memory that cannot be accessed directly: all of it again, in frames. `false`: it cannot be.
    #[cold]
    fn begin_anew(&mut self, name: u64) -> bool {
        match self.requests.get_mut(name) {
            Some(Request::In(i)) if i.failed.is_none() => {
                i.shared = None;
                self.ask(name, true);
                true
            }
            Some(Request::Out(out)) => {
                let Some(named) = out.shared.take().and_then(|part| part.named) else { return false };
                let (peer, write) = (out.peer, out.done_as.what.contains(What::WRITE));
                out.large = true;
                let op = if write { WireOp::WriteRts } else { WireOp::Read };
                let mut frame = Vec::new();
                put(&mut frame, &Head::new(op, Flags::empty(), Aux::rma(1, out.iov.len()), name, 0));
                put(&mut frame, &named);
                for s in out.iov.iter() {
                    put(&mut frame, &Seg { addr: s.addr().into(), len: (s.len() as u64).into() });
                }
                let state = self.peer(peer);
                state.large += 1;
                state.fetches = Fetches::ByFrames;
                self.tell_peer(peer, &frame);
                true
            }
            _ => false,
        }
    }

    /// The other side has taken its last piece: says so, if it took any.
    pub(super) fn share_tell(&mut self, name: u64) {
        let (peer, part) = match self.requests.get_mut(name) {
            Some(Request::Out(Out { peer, shared, .. })) => (*peer, shared.take()),
            Some(Request::Lent(_)) => match self.requests.remove(name) {
                Some(Request::Lent(Lent { peer, part, .. })) => (peer, Some(part)),
                _ => return,
            },
            _ => return,
        };
        let Some(part) = part.filter(|p| p.mine > 0) else { return };
        let (status, failed) = match part.failed {
            None => (Status::Ok, 0),
            Some((NoDirect::Never | NoDirect::Memory, piece)) => (Status::Unsupported, u64::from(piece) + 1),
            Some((NoDirect::Revoked, piece)) => (Status::Discarded, u64::from(piece) + 1),
            Some((NoDirect::Fault, piece)) => (Status::Io, u64::from(piece) + 1),
        };
        let data = u64::from(part.mine) | failed << 32;
        let head = Head::new(WireOp::Shared, Flags::empty(), status as u16, part.theirs, data);
        self.tell_peer(peer, head.as_bytes());
    }

    /// Starts a large read or write of ours together with its target, which has nothing to check that
    /// we have not: `there` is what it exposes. `false`: that is not to be.
    pub(super) fn share_rma(
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
        let opened = Part::opened(share, len, cut, segs, Grant::Region(version), !op.write);
        let part = Part { named: Some(*named), ..opened };
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

    /// A peer has begun to read or write memory here, and we may help.
    pub(super) fn on_lend(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        rest: &mut &[u8],
    ) -> Option<()> {
        let about: Pieces = take(rest)?;
        let named: RmaSeg = take(rest)?;
        let n = usize::from(head.aux.get());
        (n <= MAX_SEGS).then_some(())?;
        let segs: ArrayVec<Seg, MAX_SEGS> = take_many::<Seg>(rest, n)?.try_into().ok()?;
        let write = head.data.get() == 1;
        let want = if write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        // If it has changed meanwhile, it does not concern us; the peer finds that out by itself.
        let Ok(reached) = core.reach(&[named], want) else { return Some(()) };
        let part = Part::helping(&about, segs, head.tag.get(), write)?;
        if part.len != reached.len
            || !self.peer(peer).limits.is_sync()
            || Memory::of(&reached.iov) != Memory::Host
        {
            return Some(());
        }
        let iov = Spans::from(&reached.iov[..]);
        let requests = &mut self.requests;
        let mut is_theirs =
            |name: &u64| matches!(requests.get_mut(*name), Some(Request::Lent(l)) if l.peer == peer);
        if self.shares.iter().filter(|name| is_theirs(name)).count() >= LENT {
            return Some(());
        }
        let lent = Lent { peer, iov, part: Box::new(part), mrs: reached.mrs };
        let name = self.requests.insert(Request::Lent(lent));
        self.share_in(core, name);
        Some(())
    }

    /// The taker of what we send has begun, and we may help.
    pub(super) fn on_share(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        rest: &mut &[u8],
    ) -> Option<()> {
        let about: Pieces = take(rest)?;
        let n = usize::from(head.aux.get());
        (n <= MAX_SEGS).then_some(())?;
        let segs: ArrayVec<Seg, MAX_SEGS> = take_many::<Seg>(rest, n)?.try_into().ok()?;
        let part = Part::helping(&about, segs, head.data.get(), false)?;
        let name = head.tag.get();
        let is_sync = self.peer(peer).limits.is_sync();
        let in_order = core.config.rma_order;
        if self.is_withdrawn(peer, name) {
            return Some(());
        }
        let Request::Out(out) = self.requests.get_mut(name)? else { return None };
        let ours = out.peer == peer
            && out.asked.is_none()
            && out.shared.is_none()
            && part.len <= total(&out.iov)
            && !out.done_as.what.intersects(What::READ | What::ATOMIC);
        ours.then_some(())?;
        if !is_sync
            || (in_order && out.done_as.what.contains(What::RMA))
            || Memory::of(&out.iov) != Memory::Host
        {
            return Some(());
        }
        out.shared = Some(Box::new(part));
        self.share_in(core, name);
        Some(())
    }

    /// The other side has copied so many pieces, and there are no more.
    pub(super) fn on_shared(&mut self, core: &mut Core, peer: PeerId, head: &Head) -> Option<()> {
        let name = head.tag.get();
        let (from, part) = match self.requests.get_mut(name)? {
            Request::In(In { peer, shared: Some(part), .. })
            | Request::Out(Out { peer, shared: Some(part), .. }) => (*peer, part),
            _ => return None,
        };
        (from == peer && part.owner && part.said.is_none()).then_some(())?;
        part.said = Some((Status::from_u16(head.aux.get()), head.data.get()));
        // Otherwise our own pieces come first.
        if !self.shares.contains(&name) {
            self.share_end(core, name);
        }
        Some(())
    }
}

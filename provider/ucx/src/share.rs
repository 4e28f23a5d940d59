//! Large puts and gets by CMA, which both sides copy.
//!
//! One core's copy is far from what the memory can do. So whoever puts or gets opens a counter that both sides can
//! reach, says where its memory is, and copies piece after piece, each taken from the counter. The owner of the
//! remote memory, if its progress comes to it meanwhile, takes pieces too and copies them the other way round. If
//! not, it takes none, and all is copied here as it would have been anyway: nobody waits for the other to begin.
//!
//! ```text
//! | SHARE, put?, parts, 0 | address | length | bytes of a piece | counter, turn | slot of the key, 0 | parts: address, length; ... |
//! ```
//!
//! When there are no more pieces, the owner reports in shared memory how many it has done. Until then an operation of
//! which it took any is in flight. If it is cancelled or its endpoint destroyed, the owner's permission ends
//! ([`Link::revoke`]), so that UCX's memory is not accessed once it was given back.

use arrayvec::ArrayVec;
use engine::{Grant, Link, PeerId, Share};
use hmem::{Kind, Span};
use link::ShmLink;
use ucx_sys::{self as ucx, Completion, Status};
use wire::Seg;

use crate::attr::MAX_IOV;
use crate::ep::{self, Ep};
use crate::iface::{HEAD, Iface};
use crate::region::{Region, Slot};
use crate::remote::word;
use crate::rma;

/// The first byte of such a frame.
pub(crate) const SHARE: u8 = 3;
/// Bits of a share's name that tell its turn.
const TURN: u32 = 48;
/// Words before the parts; the key's slot is in the last two.
const WORDS: usize = 6;
const SLOT_AT: usize = 8 * 4;
/// Longest frame.
const MAX: usize = HEAD + 8 * (WORDS + 2 * MAX_IOV);
const _: () = assert!(MAX <= crate::iface::MAX_FRAME);

/// Bytes from which on it is worth a frame, and from which on also where more of the peer's frames wait: of many
/// short ones in a row each side has enough to do.
const LEAST: usize = 32 << 10;
const LEAST_IN_A_ROW: usize = 128 << 10;

/// Bytes of peers' transfers that one call of progress copies: what else it has to do waits meanwhile.
const GO: usize = 4 << 20;
/// Most transfers of one peer that are helped with at a time; a channel has about that many counters.
const MOST_HELPED: usize = 64;

/// After so many in a row of which the owner took nothing, it is told of one in `RARELY` only: it is busy elsewhere.
const PATIENCE: u32 = 4;
const RARELY: u32 = 32;

/// The name under which an owner accesses memory here, so that it can be taken back.
fn request(share: Share) -> u64 {
    u64::from((share.turn as u32).max(1)) << 32 | u64::from(share.slot)
}

/// What an endpoint knows of its peer's help.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Help {
    /// CMA works with this peer.
    pub(crate) can: bool,
    /// It tried, and could not.
    cannot: bool,
    /// How many in a row it took nothing of.
    missed: u32,
}

impl Help {
    /// Whether the owner is told of the next one.
    fn is_worth_asking(&mut self) -> bool {
        if !self.can || self.cannot {
            return false;
        }
        let told = self.missed < PATIENCE || self.missed % RARELY == 0;
        if !told {
            self.missed += 1;
        }
        told
    }

    fn took(&mut self, pieces: u16) {
        self.missed = if pieces > 0 { 0 } else { self.missed.saturating_add(1) };
    }
}

/// A put or get of a peer's memory.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) put: bool,
    pub(crate) addr: u64,
    pub(crate) rkey: usize,
    pub(crate) local: ArrayVec<Span, MAX_IOV>,
    pub(crate) len: usize,
    pub(crate) comp: *mut Completion,
}

/// One of which the owner has pieces.
#[derive(Debug)]
pub(crate) struct Shared {
    ep: *mut Ep,
    pub(crate) peer: PeerId,
    share: Share,
    /// How many the owner has.
    theirs: u16,
    /// Whether all of ours could be copied.
    good: bool,
    access: Access,
}

impl Shared {
    /// Whether the owner is done, and all is there.
    fn over(&self, i: &Iface) -> Option<bool> {
        let (done, good) = i.link.share_reported(self.peer, self.share)?;
        Some(self.good && good && done == self.theirs)
    }
}

/// Copies together with the owner, if that is worth it. `None`: it is not, and nothing was done.
pub(crate) fn start(e: &mut Ep, access: &Access) -> Option<Status> {
    if access.len < LEAST || access.comp.is_null() || !e.help.is_worth_asking() {
        return None;
    }
    // SAFETY: an endpoint's interface outlives it.
    let i = unsafe { &mut *e.iface() };
    if access.len < LEAST_IN_A_ROW && i.link.waiting(e.peer) {
        return None;
    }
    let (piece, pieces) = engine::pieces(access.len);
    let share = i.link.share_open(e.peer)?;
    let part = Part { peer: e.peer, share, len: access.len, piece, pieces };
    let mut frame = ArrayVec::<u8, MAX>::new();
    let mut say = |bytes: &[u8]| frame.try_extend_from_slice(bytes);
    let name = u64::from(share.slot) << TURN | share.turn;
    let head = [SHARE, access.put.into(), access.local.len() as u8, 0];
    let mut said = say(&head);
    for word in [access.addr, access.len as u64, piece as u64, name] {
        said = said.and_then(|()| say(&word.to_ne_bytes()));
    }
    said = said.and_then(|()| say(&Slot::pack(rma::slot(access.rkey)))).and_then(|()| say(&[0; 4]));
    for part in &access.local {
        said = said.and_then(|()| say(&part.addr().to_ne_bytes()));
        said = said.and_then(|()| say(&(part.len() as u64).to_ne_bytes()));
    }
    let peer = e.peer;
    let remote = [Seg { addr: access.addr.into(), len: (access.len as u64).into() }];
    let copied = rma::access(access.rkey, || {
        if said.is_err() || i.link.send(peer, &frame, &[], 0, 0).is_err() {
            return None;
        }
        let mut done = Done::NOTHING;
        part.copy(&mut i.link, true, (&access.local, &remote, access.put), &mut done, usize::MAX);
        Some(done)
    });
    let Done { pieces: mine, good } = match copied {
        Ok(Some(done)) => done,
        refused => {
            i.link.share_close(peer, share);
            return refused.err();
        }
    };
    let theirs = pieces - mine;
    e.help.took(theirs);
    log::trace!("{} copies {theirs} pieces of {pieces}, {} bytes", i.link.peer_addr(peer), access.len);
    let shared = Shared { ep: e, peer, share, theirs, good, access: access.clone() };
    let over = if theirs == 0 { Some(good) } else { shared.over(i) };
    let Some(good) = over else {
        e.outstanding += 1;
        i.shared.push(shared);
        i.busy = true;
        return Some(ucx::UCS_INPROGRESS);
    };
    i.link.share_close(peer, share);
    Some(if good { ucx::UCS_OK } else { alone(e, access) })
}

/// What is shared: bytes in all and of a piece, and how many of these there are.
#[derive(Clone, Copy, Debug)]
struct Part {
    peer: PeerId,
    share: Share,
    len: usize,
    piece: usize,
    pieces: u16,
}

/// What one side has done of it: how many pieces, and whether all could be copied.
#[derive(Clone, Copy, Debug)]
struct Done {
    pieces: u16,
    good: bool,
}

impl Done {
    const NOTHING: Done = Done { pieces: 0, good: true };
}

impl Part {
    /// Copies pieces, with the link's help, on the side that opened the counter (`mine`) or on the other; see `go`.
    fn copy(
        &self,
        link: &mut ShmLink,
        mine: bool,
        (here, there, put): (&[Span], &[Seg], bool),
        done: &mut Done,
        most: usize,
    ) -> bool {
        // The owner's memory is allowed by its key, that of the other side by its offer.
        let grant = if mine { Grant::Agreed } else { Grant::Request(request(self.share)) };
        self.go(
            done,
            most,
            link,
            |link| link.share_claim(self.peer, self.share, mine, self.pieces),
            |link, off, len| match put {
                true => link.put(self.peer, grant, there, off, here, off, len).is_ok(),
                false => link.get(self.peer, grant, there, off, here, off, len).is_ok(),
            },
        )
    }

    /// Claims and copies pieces until there are none, or `most` bytes have been copied; whether there are none.
    fn go<L>(
        &self,
        done: &mut Done,
        most: usize,
        link: &mut L,
        mut claim: impl FnMut(&mut L) -> Option<u16>,
        mut copy: impl FnMut(&mut L, usize, usize) -> bool,
    ) -> bool {
        let mut left = most;
        while left > 0 {
            // A side that turns the counter back gets no more out of us than there is.
            if done.pieces >= self.pieces {
                return true;
            }
            let Some(n) = claim(link) else { return true };
            done.pieces += 1;
            let off = usize::from(n) * self.piece;
            let len = self.piece.min(self.len - off);
            // What is left after a failure is taken only so that the other side does not.
            done.good = done.good && copy(link, off, len);
            left = left.saturating_sub(len);
        }
        false
    }
}

/// Some piece could not be copied: all of it again, without the owner's help.
#[cold]
fn alone(e: &mut Ep, access: &Access) -> Status {
    e.help.cannot = true;
    rma::transfer(e, access).unwrap_or_else(|status| status)
}

/// Completes what owners are done with; how many.
///
/// # Safety
/// `this` must be an interface that no one borrows from. Calls UCX back.
pub(crate) unsafe fn progress(this: *mut Iface) -> u32 {
    // SAFETY: the caller's promise.
    let mut n = unsafe { progress_stuck(this) };
    // SAFETY: the caller's promise; an endpoint that goes takes what it has here along.
    unsafe {
        while let Some((at, good)) =
            (*this).shared.iter().enumerate().find_map(|(at, s)| Some((at, s.over(&*this)?)))
        {
            let Shared { ep, peer, share, access, .. } = (*this).shared.swap_remove(at);
            (*this).link.share_close(peer, share);
            let status = if good { ucx::UCS_OK } else { alone(&mut *ep, &access) };
            if status != ucx::UCS_INPROGRESS {
                ep::complete(access.comp, status);
            }
            if (*this).has(ep) {
                Ep::answered(ep);
            }
            n += 1;
        }
    }
    n
}

/// Forgets an endpoint's operations, whose owners access no memory of theirs any more when this returns; their
/// completions. One whose owner is stopped inside a copy completes when the owner has left it, or has ended:
/// see [`stuck`].
pub(crate) fn abandon(i: &mut Iface, ep: *mut Ep) -> Vec<*mut Completion> {
    let mut out = Vec::new();
    while let Some(at) = i.shared.iter().position(|s| s.ep == ep) {
        let s = i.shared.swap_remove(at);
        // No piece is taken any more, and none that was taken is copied any more.
        i.link.share_close(s.peer, s.share);
        let left = s.over(i).is_some() || i.link.revoke(s.peer, request(s.share)).is_ok();
        match left {
            true => out.push(s.access.comp),
            false => i.stuck.push(s),
        }
    }
    out
}

/// How many operations of an endpoint were given up while their owners were inside a copy.
pub(crate) fn stuck(i: &Iface, ep: *mut Ep) -> u32 {
    i.stuck.iter().filter(|s| s.ep == ep).count() as u32
}

/// An endpoint is gone: the operations that were given up are nobody's, also if another endpoint has its place.
pub(crate) fn orphan(i: &mut Iface, ep: *mut Ep) {
    for s in i.stuck.iter_mut().filter(|s| s.ep == ep) {
        s.ep = std::ptr::null_mut();
        s.access.comp = std::ptr::null_mut();
    }
}

/// Completes those of them whose owners have left or ended; how many.
///
/// # Safety
/// As for `progress`.
unsafe fn progress_stuck(this: *mut Iface) -> u32 {
    let mut n = 0;
    let has_left = |i: &Iface, s: &Shared| {
        s.over(i).is_some() || !i.link.is_inside(s.peer, request(s.share)) || i.link.is_gone(s.peer)
    };
    // SAFETY: the caller's promise; an endpoint is only looked at if it is still there.
    unsafe {
        while let Some(at) = (*this).stuck.iter().position(|s| has_left(&*this, s)) {
            let Shared { ep, access, .. } = (*this).stuck.swap_remove(at);
            ep::complete(access.comp, ucx::UCS_ERR_CANCELED);
            if (*this).has(ep) {
                Ep::answered(ep);
            }
            n += 1;
        }
    }
    n
}

/// A peer's put or get of memory here, of which pieces are copied on this side.
#[derive(Debug)]
pub(crate) struct Helping {
    part: Part,
    /// The peer puts.
    put: bool,
    addr: usize,
    /// The registration that was there when the peer told of it.
    region: Region,
    there: ArrayVec<Seg, MAX_IOV>,
    done: Done,
}

/// A peer accesses memory of ours, and we may help.
pub(crate) fn help(i: &mut Iface, from: PeerId, put: u8, body: &[u8]) -> Option<()> {
    let (addr, len) = (word(body, 0)? as usize, usize::try_from(word(body, 1)?).ok()?);
    let (piece, name) = (usize::try_from(word(body, 2)?).ok()?, word(body, 3)?);
    let share = Share { slot: (name >> TURN) as u16, turn: name & ((1 << TURN) - 1) };
    let slot = Slot::unpack(body.get(SLOT_AT..)?)?;
    let parts = body.get(8 * WORDS..)?.chunks_exact(16);
    let there: ArrayVec<Seg, MAX_IOV> = parts
        .map(|part| Some(Seg { addr: word(part, 0)?.into(), len: word(part, 1)?.into() }))
        .collect::<Option<_>>()?;
    let total = there.iter().try_fold(0u64, |n, part| n.checked_add(part.len.get()))?;
    if total < len as u64 {
        return None;
    }
    let pieces = engine::pieces_by(len, piece)?;
    // The peer has closed what had this counter before, and waits for no report of it.
    i.helping.retain(|h| h.part.peer != from || h.part.share.slot != share.slot);
    // SAFETY: the domain outlives its interfaces.
    let md = unsafe { &*i.md };
    // Without help the peer copies all of it.
    let many = i.helping.iter().filter(|h| h.part.peer == from).count() >= MOST_HELPED;
    if !md.cma || many || piece > GO || slot.is_some_and(|slot| !md.regions.is_current(slot)) {
        return Some(());
    }
    if let Some(region) = md.regions.access(addr, len, None, |region| region) {
        let part = Part { peer: from, share, len, piece, pieces };
        let put = put != 0;
        i.helping.push_back(Helping { part, put, addr, region, there, done: Done::NOTHING });
        help_on(i);
    }
    Some(())
}

/// Copies pieces of the peers' transfer whose turn it is, `GO` bytes; how many.
pub(crate) fn help_on(i: &mut Iface) -> u32 {
    let Some(mut h) = i.helping.pop_front() else { return 0 };
    let (link, done) = (&mut i.link, &mut h.done);
    // SAFETY: the domain outlives its interfaces.
    let regions = unsafe { &(*i.md).regions };
    let before = done.pieces;
    let over = regions.access(h.addr, h.part.len, Some(h.region), |_| {
        // SAFETY: memory that UCP registered with us for its peers to access, valid until it is deregistered, which
        // waits for this.
        let ours = [unsafe { Span::new(h.addr, h.part.len, Kind::System) }];
        // The other way round: what the peer gets is put there.
        h.part.copy(link, false, (&ours, &h.there, !h.put), done, GO)
    });
    let copied = done.pieces - before;
    // Memory that is deregistered by now is not copied any more.
    if over == Some(false) {
        i.helping.push_back(h);
        i.busy = true;
    } else {
        h.report(&mut i.link);
    }
    copied.into()
}

impl Helping {
    /// No more pieces are taken.
    fn report(&self, link: &mut ShmLink) {
        if self.done.pieces > 0 {
            link.share_report(self.part.peer, self.part.share, self.done.pieces, self.done.good);
        }
    }
}

/// Whether a transfer of this peer is helped with.
pub(crate) fn helps(i: &Iface, peer: PeerId) -> bool {
    i.helping.iter().any(|h| h.part.peer == peer)
}

/// A peer is gone: its transfers are not gone on with.
pub(crate) fn help_ends(i: &mut Iface, peer: PeerId) {
    i.helping.retain(|h| h.part.peer != peer);
}

/// The interface closes: peers are told of what was done.
pub(crate) fn help_closes(i: &mut Iface) {
    for h in std::mem::take(&mut i.helping) {
        h.report(&mut i.link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_never_helps_is_asked_rarely_and_who_does_again_each_time() {
        let mut help = Help::default();
        assert!(!help.is_worth_asking(), "whether CMA works is not known");
        help.can = true;
        let mut ask = |took: u16| {
            let asked = help.is_worth_asking();
            if asked {
                help.took(took);
            }
            asked
        };
        assert_eq!((0..1000).filter(|_| ask(0)).count(), PATIENCE as usize + 1000 / RARELY as usize);
        while !ask(1) {}
        assert!((0..100).all(|_| ask(1)));
        help.cannot = true;
        assert!(!help.is_worth_asking());
    }

    #[test]
    fn one_call_of_progress_copies_no_more_than_a_go() {
        const LEN: usize = 10 * GO + 5;
        let (piece, pieces) = engine::pieces(LEN);
        let part = Part { peer: PeerId(0), share: Share { slot: 0, turn: 1 }, len: LEN, piece, pieces };
        let (mut done, mut next, mut copied, mut calls) = (Done::NOTHING, 0, vec![], 0);
        loop {
            let before = copied.len();
            let over = part.go(
                &mut done,
                GO,
                &mut next,
                |next| (*next < pieces).then(|| std::mem::replace(next, *next + 1)),
                |_, off, len| {
                    copied.push((off, len));
                    true
                },
            );
            calls += 1;
            let bytes: usize = copied[before..].iter().map(|(_, len)| len).sum();
            assert!(bytes < GO + piece, "{bytes} bytes in one call");
            if over {
                break;
            }
        }
        assert!(calls >= 10, "{calls} calls");
        assert_eq!((done.pieces, done.good), (pieces, true));
        // Each byte once.
        assert_eq!(copied.iter().try_fold(0, |at, (off, len)| (at == *off).then_some(at + len)), Some(LEN));
    }
}

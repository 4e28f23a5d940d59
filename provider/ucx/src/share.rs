//! Large puts and gets by CMA, which both sides copy.
//!
//! One core's copy is far from what the memory can do. So the side that puts or gets opens a counter that both sides can
//! reach, says where its memory is, and copies piece after piece, each taken from the counter. The owner of the
//! remote memory, if its progress comes to it meanwhile, takes pieces too and copies them the other way round. If
//! not, it takes none, and all is copied here as it would have been anyway: no side waits for the other to begin.
//!
//! ```text
//! | SHARE, put?, parts, 0 | address | length | bytes of a piece | counter, turn | slot of the key, 0 | parts: address, length; ... |
//! ```
//!
//! When there are no more pieces, the owner reports in shared memory how many it has done. Until then an operation of
//! which it took any is in flight. If it is cancelled or its endpoint destroyed, the owner's permission ends
//! ([`RmaLink::revoke`]), so that UCX's memory is not accessed once it was given back.

use arrayvec::ArrayVec;
use hmem::Span;
use link::ShmLink;
use link_api::{Grant, Link, PeerId, PieceCounter, RmaLink};
use ucx_sys::{self as ucx, Completion, Status};
use wire::Seg;

use crate::attr::MAX_IOV;
use crate::direct::{self, Access};
use crate::ep::Ep;
use crate::ffi::complete;
use crate::frame::{HEAD, SHARE};
use crate::iface::Iface;
use crate::region::Slot;

/// Bits of a share's name that tell its turn.
pub(crate) const TURN: u32 = 48;
/// Words before the parts; the key's slot is in the last two.
pub(crate) const WORDS: usize = 6;
pub(crate) const SLOT_AT: usize = 8 * 4;
/// Longest frame.
const MAX: usize = HEAD + 8 * (WORDS + 2 * MAX_IOV);
const _: () = assert!(MAX <= crate::frame::MAX_FRAME);

/// Bytes from which on it is worth a frame, and from which on also where more of the peer's frames wait: of many
/// short ones in a row each side has enough to do.
const LEAST: usize = 32 << 10;
const LEAST_IN_A_ROW: usize = 128 << 10;

/// After so many in a row of which the owner took nothing, it is told of one in `RARELY` only: it is busy elsewhere.
const PATIENCE: u32 = 4;
const RARELY: u32 = 32;

/// The name under which an owner accesses memory here, so that it can be taken back.
fn request(share: PieceCounter) -> u64 {
    u64::from((share.generation as u32).max(1)) << 32 | u64::from(share.slot)
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
        let asks = self.missed < PATIENCE || self.missed % RARELY == 0;
        if !asks {
            self.missed += 1;
        }
        asks
    }

    fn took(&mut self, pieces: u16) {
        self.missed = if pieces > 0 { 0 } else { self.missed.saturating_add(1) };
    }
}

/// One of which the owner has pieces.
#[derive(Debug)]
pub(crate) struct Shared {
    ep: *mut Ep,
    pub(crate) peer: PeerId,
    share: PieceCounter,
    /// How many the owner has.
    theirs: u16,
    /// Whether all of ours could be copied.
    good: bool,
    access: Access,
}

impl Shared {
    /// Whether the owner is done, and all is there.
    fn over(&self, i: &Iface) -> Option<bool> {
        let (done, good) = i.link.pieces_reported(self.peer, self.share)?;
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
    if access.len < LEAST_IN_A_ROW && i.link.has_frames_of(e.peer) {
        return None;
    }
    let (piece, pieces) = engine::pieces(access.len);
    let share = i.link.pieces_open(e.peer)?;
    let part = Part { peer: e.peer, share, len: access.len, piece, pieces };
    let mut frame = ArrayVec::<u8, MAX>::new();
    let mut say = |bytes: &[u8]| frame.try_extend_from_slice(bytes);
    let name = u64::from(share.slot) << TURN | share.generation;
    let head = [SHARE, access.put.into(), access.local.len() as u8, 0];
    let mut said = say(&head);
    for word in [access.addr, access.len as u64, piece as u64, name] {
        said = said.and_then(|()| say(&word.to_ne_bytes()));
    }
    said = said.and_then(|()| say(&Slot::pack(direct::slot(access.rkey)))).and_then(|()| say(&[0; 4]));
    for part in &access.local {
        said = said.and_then(|()| say(&part.addr().to_ne_bytes()));
        said = said.and_then(|()| say(&(part.len() as u64).to_ne_bytes()));
    }
    let peer = e.peer;
    let remote = [Seg { addr: access.addr.into(), len: (access.len as u64).into() }];
    let copied = direct::access(access.rkey, || {
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
            i.link.pieces_close(peer, share);
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
    i.link.pieces_close(peer, share);
    Some(if good { ucx::UCS_OK } else { alone(e, access) })
}

/// What is shared: bytes in all and of a piece, and how many of these there are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) peer: PeerId,
    pub(crate) share: PieceCounter,
    pub(crate) len: usize,
    pub(crate) piece: usize,
    pub(crate) pieces: u16,
}

/// What one side has done of it: how many pieces, and whether all could be copied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    pub(crate) pieces: u16,
    pub(crate) good: bool,
}

impl Done {
    pub(crate) const NOTHING: Done = Done { pieces: 0, good: true };
}

impl Part {
    /// Copies pieces, with the link's help, on the side that opened the counter (`mine`) or on the other; see `go`.
    pub(crate) fn copy(
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
            |link| link.pieces_claim(self.peer, self.share, mine, self.pieces),
            |link, off, len| match put {
                true => link.put(self.peer, grant, there, off, here, off, len).is_ok(),
                false => link.get(self.peer, grant, there, off, here, off, len).is_ok(),
            },
        )
    }

    /// Claims and copies pieces until there are none, or `most` bytes have been copied; whether there are none.
    pub(crate) fn go<L>(
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
    direct::transfer(e, access).unwrap_or_else(|status| status)
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
            (*this).link.pieces_close(peer, share);
            let status = if good { ucx::UCS_OK } else { alone(&mut *ep, &access) };
            if status != ucx::UCS_INPROGRESS {
                complete(access.comp, status);
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
        i.link.pieces_close(s.peer, s.share);
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

/// An endpoint is gone: the operations that were given up have none, also if another endpoint has its place.
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
            complete(access.comp, ucx::UCS_ERR_CANCELED);
            if (*this).has(ep) {
                Ep::answered(ep);
            }
            n += 1;
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_that_never_helps_is_asked_rarely_and_one_that_does_each_time() {
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
}

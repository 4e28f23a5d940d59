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

mod join;
mod open;

use wire::{Aux, Flags, Head, Op as WireOp, Seg, Status, put};
use xfer::BYTES_PER_CALL;
use zerocopy::IntoBytes;

use super::Endpoint;
use super::coop_copy::{Lent, Part};
use super::peer::Fetches;
use super::request::{In, Out, Request};
use crate::core::Core;
use crate::types::What;
use link_api::{NoDirect, RmaLink};

/// Pieces taken by one progress call, after which the next call goes on.
const TAKEN: usize = 64;

impl<L: RmaLink> Endpoint<L> {
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
        let Part { copy, segs, left, .. } = &mut **part;
        let (owner, before, posting) = (copy.is_opener(), copy.mine(), self.posting);
        let over = copy.run(&mut self.link, iov, segs, BYTES_PER_CALL, |link, copy| {
            // The other half is the other side's, unless there is nothing else to do.
            let pause = *left > 0 && copy.mine() > 0 && (posting || link.has_frames_of(peer));
            *left -= u16::from(pause);
            pause
        });
        let n = usize::from(copy.mine() - before);
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
        let theirs = part.copy.theirs();
        let mut by_frames = false;
        let mut status = match part.copy.failed() {
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
                let piece = u16::try_from(failed.wrapping_sub(1)).ok().filter(|p| *p < part.copy.cut.pieces);
                if let Some(piece) = piece {
                    let copied = part.copy.copy_piece(&mut self.link, iov, &part.segs, piece);
                    match copied {
                        Ok(()) => status = Status::Ok,
                        Err(why) => by_frames = matches!(why, NoDirect::Memory | NoDirect::Never),
                    }
                }
            }
        }
        let (share, said) = (part.copy.counter, part.said);
        if let Some((Status::Unsupported, _)) = said {
            self.peer(peer).helper.has_failed();
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
        let Some(part) = part.filter(|p| p.copy.mine() > 0) else { return };
        let (status, failed) = match part.copy.failed() {
            None => (Status::Ok, 0),
            Some((NoDirect::Never | NoDirect::Memory, piece)) => (Status::Unsupported, u64::from(piece) + 1),
            Some((NoDirect::Revoked, piece)) => (Status::Discarded, u64::from(piece) + 1),
            Some((NoDirect::Fault, piece)) => (Status::Io, u64::from(piece) + 1),
        };
        let data = u64::from(part.copy.mine()) | failed << 32;
        let head = Head::new(WireOp::Shared, Flags::empty(), status as u16, part.theirs, data);
        self.tell_peer(peer, head.as_bytes());
    }
}

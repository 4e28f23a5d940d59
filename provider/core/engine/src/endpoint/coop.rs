//! Cooperative copies: large transfers of which both sides copy pieces.
//!
//! One core's copy of host memory is far from what the memory can do. So the taker of a large
//! payload opens a counter that both sides can reach ([`RmaLink::pieces_open`]), sends the sender the place
//! of its buffer (`CoopFetch`), and fetches piece after piece, each taken from the counter. The sender, if it
//! is inside the library, takes pieces too, and puts them. If it is not, it takes none, and the taker fetches
//! them all as it would have done anyway: neither ever waits for the other to begin.
//!
//! When the counter has no more pieces, a sender that took any says how many (`CoopDone`); they are
//! copied by then. The taker knows how many those are, since it counts its own, and waits only then.
//!
//! Of many messages in a row each side copies a half: while more are waiting behind a message, the
//! taker leaves the second half of it to the sender, and goes on with the next. What the sender has not
//! begun when nothing is left to take, the taker copies itself.
//!
//! A large read or write that its initiator could do alone is copied cooperatively, too: the initiator opens
//! the counter and notifies the target (`CoopRma`).

mod begin;
pub(crate) mod copy;

use wire::{Aux, Flags, Head, Op as WireOp, Status, put};
use xfer::BYTES_PER_CALL;
use zerocopy::IntoBytes;

use crate::core::Core;
use crate::endpoint::coop::copy::{Coop, CoopHelp};
use crate::endpoint::device::handles::Handles;
use crate::endpoint::ends::Ends;
use crate::endpoint::net::Net;
use crate::endpoint::parts::adapt::Adapt;
use crate::endpoint::parts::bind::Bind;
use crate::endpoint::parts::header::put_segs;
use crate::endpoint::parts::request::{In, Out, Request};
use crate::endpoint::requests::Requests;
use crate::types::*;
use link_api::{How, NoDirect, RmaLink, Side};

/// How a copy of the opener's ends that a piece was not copied of, and whether all of it may go in frames.
fn ended(why: NoDirect) -> (Status, bool) {
    match why {
        NoDirect::Revoked => (Status::Discarded, false),
        NoDirect::Fault => (Status::Io, false),
        NoDirect::Memory | NoDirect::Never => (Status::Io, true),
    }
}

/// Cooperative copies.
pub(crate) struct CoopCopies<'a, L> {
    pub(in crate::endpoint) net: &'a mut Net<L>,
    pub(in crate::endpoint) requests: &'a mut Requests,
    pub(in crate::endpoint) bind: &'a Bind,
    pub(in crate::endpoint) adapt: &'a mut Adapt,
}

impl<L: RmaLink> CoopCopies<'_, L> {
    #[inline(always)]
    pub(in crate::endpoint) fn handles(&mut self) -> Handles<'_, L> {
        Handles { net: self.net, requests: self.requests }
    }

    #[inline(always)]
    pub(in crate::endpoint) fn ends(&mut self) -> Ends<'_, L> {
        Ends { net: self.net, requests: self.requests, bind: self.bind, adapt: self.adapt }
    }

    /// Copies pieces of the cooperative copies under way.
    pub(in crate::endpoint) fn coop_progress(&mut self, core: &mut Core) -> usize {
        let mut n = 0;
        for _ in 0..self.requests.queues.coop().len() {
            let Some(name) = self.requests.queues.next_coop() else { break };
            let taken = self.coop_step(core, name);
            n += taken;
            self.adapt.note_pieces(taken);
            if !self.adapt.has_time_to_copy() {
                break;
            }
        }
        n
    }

    /// Copies pieces until there are none, or enough for one go.
    pub(in crate::endpoint) fn coop_step(&mut self, core: &mut Core, name: u64) -> usize {
        let (peer, iov, coop) = match self.requests.pool.get_mut(name) {
            Some(Request::In(In { peer, iov, coop: Some(coop), .. })) => (*peer, &*iov, coop),
            Some(Request::Out(Out { peer, iov, coop: Some(coop), .. })) => (*peer, &*iov, coop),
            Some(Request::CoopHelp(CoopHelp { peer, iov, coop, .. })) => (*peer, &*iov, coop),
            _ => {
                self.requests.queues.drop_coop(name);
                return 0;
            }
        };
        let Coop { copy, segs, left, .. } = &mut **coop;
        let (owner, before, posting) = (copy.is_opener(), copy.mine(), self.adapt.is_in_a_row());
        let over = copy.run(&mut self.net.link, iov, segs, BYTES_PER_CALL, |link, copy| {
            // The other half is the other side's, unless there is nothing else to do.
            let pause = *left > 0 && copy.mine() > 0 && (posting || link.has_frames_of(peer));
            *left -= u16::from(pause);
            pause
        });
        let n = usize::from(copy.mine() - before);
        if over {
            self.requests.queues.drop_coop(name);
            if owner { self.coop_end(core, name) } else { self.coop_report(name) }
        }
        n
    }

    /// The owner has no more pieces to take: done, unless the other side still has.
    pub(in crate::endpoint) fn coop_end(&mut self, core: &mut Core, name: u64) {
        let (peer, iov, coop) = match self.requests.pool.get_mut(name) {
            Some(Request::In(In { peer, iov, coop: Some(coop), .. })) => (*peer, &*iov, coop),
            Some(Request::Out(Out { peer, iov, coop: Some(coop), .. })) => (*peer, &*iov, coop),
            _ => return,
        };
        let theirs = coop.copy.theirs();
        let (mut status, mut by_frames) =
            coop.copy.failed().map_or((Status::Ok, false), |(why, _)| ended(why));
        if theirs > 0 {
            let Some((reported, data)) = coop.reported else { return };
            let (copied, failed) = (data as u32, (data >> 32) as u32);
            if copied != u32::from(theirs) || !matches!(reported, Status::Ok | Status::Unsupported) {
                status = Status::Io;
            } else if reported == Status::Unsupported && status == Status::Ok {
                status = Status::Io;
                let piece = u16::try_from(failed.wrapping_sub(1)).ok().filter(|p| *p < coop.copy.cut.pieces);
                if let Some(piece) = piece {
                    let copied = coop.copy.copy_piece(&mut self.net.link, iov, &coop.segs, piece);
                    match copied {
                        Ok(()) => status = Status::Ok,
                        Err(why) => by_frames = matches!(why, NoDirect::Memory | NoDirect::Never),
                    }
                }
            }
        }
        if status == Status::Ok {
            let copied = coop.copy.finish(&mut self.net.link, iov, &coop.segs);
            (status, by_frames) = copied.err().map_or((Status::Ok, false), ended);
        }
        let (counter, reported) = (coop.copy.counter, coop.reported);
        if let Some((Status::Unsupported, _)) = reported {
            self.net.peer(peer).hints.helper().has_failed();
        }
        self.net.link.pieces_close(peer, counter);
        if status == Status::Io && by_frames && self.coop_restart_in_frames(name) {
            return;
        }
        match self.requests.pool.remove(name) {
            Some(Request::In(i)) => {
                let status = i.failed.unwrap_or(status);
                let len = if status == Status::Ok { i.len } else { 0 };
                if status == Status::Ok {
                    self.net.meter(i.peer, Side::Theirs, How::Cooperative, len);
                }
                self.ends().fetched(core, i.peer, i.req, status, len, i.then);
            }
            Some(Request::Out(out)) => {
                let err = self.net.failure(peer, status);
                self.ends().finish_out(core, &out, err);
            }
            _ => {}
        }
    }

    /// Memory that cannot be accessed directly: all of it again, in frames. `false`: it cannot be.
    #[cold]
    fn coop_restart_in_frames(&mut self, name: u64) -> bool {
        match self.requests.pool.get_mut(name) {
            Some(Request::In(i)) if i.failed.is_none() => {
                i.coop = None;
                self.handles().send_cts(name, true, false);
                true
            }
            Some(Request::Out(out)) => {
                let Some(named) = out.coop.take().and_then(|coop| coop.named) else { return false };
                let (peer, write) = (out.peer, out.done_as.what.contains(What::WRITE));
                out.large = true;
                let op = if write { WireOp::WriteRts } else { WireOp::Read };
                let mut frame = Vec::new();
                put(&mut frame, &Head::new(op, Flags::empty(), Aux::rma(1, out.iov.len()), name, 0));
                put(&mut frame, &named);
                put_segs(&mut frame, &out.iov);
                let state = self.net.peer(peer);
                state.answers.becomes_large();
                state.hints.note_frames();
                self.net.send_or_queue(peer, &frame);
                true
            }
            _ => false,
        }
    }

    /// The other side has taken its last piece: says so, if it took any.
    pub(in crate::endpoint) fn coop_report(&mut self, name: u64) {
        let (peer, coop) = match self.requests.pool.get_mut(name) {
            Some(Request::Out(Out { peer, coop, helped, .. })) => {
                *helped = coop.is_some();
                (*peer, coop.take())
            }
            Some(Request::CoopHelp(_)) => match self.requests.pool.remove(name) {
                Some(Request::CoopHelp(CoopHelp { peer, coop, .. })) => (peer, Some(coop)),
                _ => return,
            },
            _ => return,
        };
        let Some(coop) = coop.filter(|c| c.copy.mine() > 0) else { return };
        let (status, failed) = match coop.copy.failed() {
            None => (Status::Ok, 0),
            Some((NoDirect::Never | NoDirect::Memory, piece)) => (Status::Unsupported, u64::from(piece) + 1),
            Some((NoDirect::Revoked, piece)) => (Status::Discarded, u64::from(piece) + 1),
            Some((NoDirect::Fault, piece)) => (Status::Io, u64::from(piece) + 1),
        };
        let data = u64::from(coop.copy.mine()) | failed << 32;
        let head = Head::new(WireOp::CoopDone, Flags::empty(), status as u16, coop.theirs, data);
        self.net.send_or_queue(peer, head.as_bytes());
    }
}

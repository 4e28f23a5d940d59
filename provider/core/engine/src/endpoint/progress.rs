//! The calls of progress: what the link reports goes to what it concerns. Nothing in frames is trusted.

use wire::{Flags, Head, MAX_SEGS, Op as WireOp, RmaSeg, Seg, Status};

use super::Endpoint;
use crate::core::Core;
use crate::endpoint::device::staging::Source;
use crate::endpoint::malformed::{Fields, Handled, Malformed, parse_head};
use crate::endpoint::parts::quota::{self, MANY_OF_ONE, cost};
use crate::endpoint::parts::request::{In, Request, Serve, Then};
use crate::endpoint::plain::{Eager, Fast, apart, work_of};
use crate::proto::Reach;
use crate::types::*;
use link_api::{Cork, Event, Frame, FrameSource, Gone, PeerId, PollFrame, Refused, RmaLink};

/// Frames taken in one call of progress, so that the application gets to see what arrived.
const BUDGET: usize = 32;

/// Most work of one look, in messages that are kept, or in as many bytes as these cost.
const FAST_BUDGET: u32 = 32;

/// Most bytes of headers.
const HEADERS: usize = Head::LEN + 8 + MAX_SEGS * (size_of::<RmaSeg>() + size_of::<Seg>());

/// How a frame names memory of its sender.
fn named_by(op: WireOp, flags: Flags) -> Reach {
    match op {
        WireOp::CoopFetch | WireOp::CoopRma => Reach::Cpu,
        WireOp::Handle | WireOp::ReadRts | WireOp::Bounce | WireOp::Invite => Reach::Handles,
        _ => Reach::of(flags),
    }
}

impl<L: RmaLink> Endpoint<L> {
    #[inline]
    fn incoming(&mut self, core: &mut Core, frame: &Frame) {
        let peer = frame.from;
        self.net.peer(peer).has_sent(frame.len);
        if let Err(why) = self.dispatch(core, frame) {
            self.net.not_taken(frame, why);
        }
    }

    #[inline(always)]
    fn dispatch(&mut self, core: &mut Core, frame: &Frame) -> Handled {
        let peer = frame.from;
        let bytes: [u8; Head::LEN] = self.net.link.peek(frame).ok_or(Malformed::Head)?;
        let (head, op, flags) = parse_head(&bytes)?;
        match op {
            WireOp::Eager if flags.contains(Flags::COLLECTIVE) => {
                self.parts_for(flags)?.on_eager(core, frame, &head, flags)
            }
            WireOp::Eager => match self.incoming_messages().on_plain_eager(core, frame, &head, flags) {
                Some(()) => Ok(()),
                None => self.incoming_messages().on_eager(core, frame, &head, flags),
            },
            WireOp::Rts if flags.contains(Flags::COLLECTIVE) => {
                self.on_long(core, peer, Source::Frame(frame, 0), frame.len, &head, op, flags)
            }
            WireOp::Rts => {
                let state = self.net.peer(peer);
                state.hints.set_unanswered(false);
                state.ahead_sent = false;
                match self.incoming_messages().on_plain_rts(core, frame, &head, flags) {
                    Some(()) => Ok(()),
                    None => self.on_long(core, peer, Source::Frame(frame, 0), frame.len, &head, op, flags),
                }
            }
            WireOp::Write | WireOp::WriteRts | WireOp::Read | WireOp::Atomic | WireOp::Flush
                if self.net.peer(peer).order.is_some()
                    && self.rma_order().is_held_back(frame, &head, op, flags) =>
            {
                Ok(())
            }
            WireOp::Write => match self.accesses().on_plain_write(core, frame, &head, flags) {
                Some(()) => Ok(()),
                None => self.on_long(core, peer, Source::Frame(frame, 0), frame.len, &head, op, flags),
            },
            WireOp::Data => self.transfers().on_data(core, frame, &head),
            WireOp::Body => self.incoming_messages().on_body(core, frame, &head),
            WireOp::Fin => self.transfers().on_fin(core, peer, &head),
            WireOp::Pause => self.net.on_pause(peer, &head),
            WireOp::Refused => self.accesses().on_refused(core, peer, &head),
            WireOp::Withdrawn => self.unexpected().on_withdrawn(core, peer, &head),
            WireOp::Result => self.ends().on_result(core, frame, &head),
            WireOp::CoopDone => self.coop().on_coop_done(core, peer, &head),
            WireOp::BounceDone => self.bounce().on_bounce_done(peer, &head),
            WireOp::Cts
            | WireOp::Handle
            | WireOp::WriteRts
            | WireOp::Read
            | WireOp::Atomic
            | WireOp::CoopFetch
            | WireOp::CoopRma
            | WireOp::Invite
            | WireOp::ReadRts
            | WireOp::Flush
            | WireOp::Bounce => {
                self.on_long(core, peer, Source::Frame(frame, 0), frame.len, &head, op, flags)
            }
        }
    }

    /// A frame that names memory: its header goes on.
    #[inline(never)]
    #[allow(clippy::too_many_arguments)]
    fn on_long(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        frame: Source<'_>,
        size: usize,
        head: &Head,
        op: WireOp,
        flags: Flags,
    ) -> Handled {
        if !self.net.peer(peer).flow.limits().allows(named_by(op, flags)) {
            return Err(Malformed::Means);
        }
        let mut bytes = [0u8; HEADERS - Head::LEN];
        let n = self.net.read_from(frame, Head::LEN, &mut bytes);
        let fields = &mut Fields::new(&bytes[..n]);
        match op {
            WireOp::Rts => self.parts_for(flags)?.on_rts(core, peer, head, flags, fields),
            WireOp::Cts => self.transfers().on_cts(peer, head, flags, fields),
            WireOp::Handle => self.net.on_handle(peer, fields),
            WireOp::Write => self.accesses().on_write(core, peer, (frame, size), head, flags, fields),
            WireOp::WriteRts => self.transfers().on_write_rts(core, peer, head, flags, fields),
            WireOp::Read => self.transfers().on_read(core, peer, head, flags, fields),
            WireOp::Atomic => self.accesses().on_atomic(core, peer, (frame, size), head, flags, fields),
            WireOp::CoopFetch => self.coop().on_coop_fetch(core, peer, head, fields),
            WireOp::CoopRma => self.coop().on_coop_rma(core, peer, head, fields),
            WireOp::Invite => self.handles().on_invite(peer, head, fields),
            WireOp::Bounce => self.transfers().on_bounce(core, peer, head, fields),
            WireOp::ReadRts => self.handles().on_read_rts(peer, head, flags, fields),
            WireOp::Flush => {
                self.net.fin_of_all(peer, head.tag.get(), Status::Ok, 0);
                Ok(())
            }
            _ => Err(Malformed::Op),
        }
    }

    /// Takes in what has arrived, and sends on what waits. Returns how much was done. `enough`:
    /// nothing more need be taken in once that queue has so many entries.
    #[inline]
    pub(crate) fn progress(&mut self, core: &mut Core, enough: Option<(CqId, usize)>) -> usize {
        let (mut n, mut corked) = (0, false);
        self.adapt.note_progress();
        // Writes that were posted since the last one go together.
        if self.net.unhurried.has_tails() {
            self.net.link.cork(Cork::Off);
        }
        let standing = |core: &Core| enough.map_or(0, |(cq, _)| core.standing(cq));
        let most = enough.map_or(usize::MAX, |(_, most)| most);
        while n < BUDGET && !self.requests.staging.is_full() {
            let mut frame = match self.net.link.poll() {
                None => break,
                Some(Event::Frame(frame)) => frame,
                Some(Event::Closed(peer, why)) => {
                    self.closed(core, peer, why);
                    n += 1;
                    continue;
                }
                Some(Event::PathChanged(peer)) => {
                    let path = self.net.link.path(peer);
                    self.net.peer(peer).flow.set_path(&path);
                    n += 1;
                    continue;
                }
                Some(Event::Begun(frame)) => {
                    let from = frame.from;
                    self.transfers().begun(core, frame);
                    n += 1 + self.go_on_with(core, from);
                    if standing(core) > 0 {
                        break;
                    }
                    continue;
                }
                Some(event @ (Event::Done(..) | Event::Cut(_) | Event::Written(..))) => {
                    match event {
                        Event::Written(peer, data, len) => {
                            self.accesses().written_with(core, peer, data, len);
                        }
                        event => self.transfers().operation_over(core, &event),
                    }
                    n += 1 + self.go_on_in_order(core);
                    if standing(core) > 0 {
                        break;
                    }
                    continue;
                }
            };
            if !corked {
                corked = true;
                self.net.link.cork(Cork::On);
            }
            loop {
                let from = frame.from;
                if self.net.metered.is_on() {
                    self.net.metered.frame(&self.net.link, &frame);
                }
                let receives = self.bind.has_receives(core);
                self.incoming(core, &frame);
                self.net.link.release(frame);
                n += 1 + self.go_on_with(core, from);
                // Behind the message of the last receive that was posted, the next ones are as well off in
                // the ring.
                let satisfied = receives && standing(core) > 0 && !self.bind.has_receives(core);
                if satisfied || n >= BUDGET || standing(core) >= most || self.requests.staging.is_full() {
                    break;
                }
                match self.net.link.poll_frame(FrameSource::Next(from)) {
                    PollFrame::Frame(next) => frame = next,
                    _ => break,
                }
            }
            // A caller that waits for that queue is better served now than after another round.
            if standing(core) > 0 {
                break;
            }
        }
        // Answers to what came together go together.
        if corked {
            self.net.link.cork(Cork::Off);
        }
        n + self.attend(core)
    }

    /// Sends on what waits, and the like.
    #[inline(always)]
    fn attend(&mut self, core: &mut Core) -> usize {
        let mut n = 0;
        if self.net.peers.has_backlog() {
            n += self.catch_up(core);
        }
        if self.requests.queues.has_streams() {
            n += self.transfers().stream(core);
        }
        if self.requests.queues.has_unbegun() {
            n += self.transfers().fetch_unbegun(core);
        }
        if self.requests.queues.has_coop() {
            n += self.coop().coop_progress(core);
        }
        if self.requests.queues.has_invited() {
            n += self.handles().check_invitations();
        }
        if self.may_resume(core) {
            self.net.resume_peers();
        }
        if self.net.quota.is_time_to_count(self.requests.pool.len()) {
            self.count_requests(core);
        }
        if self.requests.queues.has_revoked() {
            self.requests.renew(&mut self.net.link);
        }
        if self.requests.queues.has_unsent() {
            n += self.ends().finish_sent(core);
        }
        if self.net.unhurried.has_tails() {
            n += self.requests.flush_tails(&mut self.net, false);
        }
        n + self.go_on_in_order(core)
    }

    /// Whether there is more to do than to wait for peers: frames that found no room, messages to take in,
    /// pieces to copy.
    pub(crate) fn is_waiting_for_room(&self) -> bool {
        self.net.peers.has_backlog() || self.requests.queues.has_work()
    }

    /// Whether the link is armed, and nothing is left to do that the link does not wake for.
    pub(crate) fn is_armed(&self, core: &Core) -> bool {
        !self.is_waiting_for_room()
            && !self.requests.is_inviting()
            && !self.may_resume(core)
            && !self.net.unhurried.has_tails()
            && self.net.link.is_armed()
    }

    /// Whether paused peers are to go on.
    fn may_resume(&self, core: &Core) -> bool {
        self.net.unhurried.has_paused() && core.waiting <= core.waiting_most / 2
    }

    fn catch_up(&mut self, core: &mut Core) -> usize {
        let mut n = 0;
        let mut with_backlog = self.net.peers.take_backlog();
        with_backlog.retain(|&peer| {
            let state = &mut self.net.peers[peer];
            while let Some(frame) = state.flow.next_in_backlog() {
                if self.net.link.send(peer, frame, &[], 0, 0) == Err(Refused::Busy) {
                    return true;
                }
                let sent = state.flow.pop_backlog();
                let size = state.flow.pay(sent.as_deref().map_or(0, quota::cost));
                self.net.quota.pay(size);
                n += 1;
            }
            state.connecting
        });
        self.net.peers.put_back_backlog(with_backlog);
        n + self.directed().retry_connects(core)
    }

    /// A peer is gone, or its channel is closed: what depended on it fails.
    #[cold]
    fn closed(&mut self, core: &mut Core, peer: PeerId, why: Gone) {
        let err = Error::from(why);
        self.net.metered.path(&self.net.link, peer);
        let path = self.net.link.path(peer);
        let owed = self.net.peer(peer).flow.owed();
        self.net.quota.pay(owed);
        let paused = self.net.peer(peer).close(&path, why);
        self.net.unhurried.resume(paused);
        log::info!("{} -> {}: {err}", self.net.link.addr(), self.net.link.peer_addr(peer));
        self.net.peers.drop_work_of(peer);
        self.net.unhurried.set_in_order(self.net.peers.has_in_order());
        self.ends().end_unsent(core, peer, err);
        let mut mine = self.requests.pool.names(|r| r.peer() == peer);
        mine.retain(|name| !self.requests.outlives_peer(*name));
        self.requests.queues.drop_requests(&mine);
        for name in mine {
            self.requests.cancel_operation(&mut self.net.link, name);
            self.requests.injected.take_kept(name);
            match self.requests.pool.remove(name) {
                Some(Request::Out(out)) => self.ends().finish_out(core, &out, Some(err)),
                Some(Request::In(In { then: Then::Recv(matched), .. })) => {
                    self.bind.complete_recv(core, matched, 0, Some(err))
                }
                _ => {}
            }
        }
        let (ep, mut left) = (self.id, 0);
        for rx in self.bind.contexts() {
            let Some(rx) = core.rxs.get_mut(rx.at()) else { continue };
            rx.close_peer(ep, peer);
            left += rx.weight_of(ep, peer);
        }
        self.net.peer(peer).waiting = left;
        core.weigh();
        self.directed().fail_directed(core, peer, why);
        self.requests.release(&mut self.net, peer);
    }

    /// Lets accesses take effect that have waited for the request before them.
    #[inline(always)]
    pub(in crate::endpoint) fn go_on_in_order(&mut self, core: &mut Core) -> usize {
        if !self.net.peers.has_in_order() { 0 } else { self.let_all_through(core) }
    }

    /// Lets accesses of a peer take effect of which something has come: they do not wait for what comes next,
    /// which may be its end.
    #[inline(always)]
    fn go_on_with(&mut self, core: &mut Core, peer: PeerId) -> usize {
        if !self.net.peers.has_in_order() { 0 } else { self.let_through(core, peer) }
    }

    #[cold]
    fn let_all_through(&mut self, core: &mut Core) -> usize {
        let mut n = 0;
        let mut peers = self.net.peers.take_in_order();
        peers.retain(|&peer| {
            n += self.let_through(core, peer);
            self.net.peer(peer).order.as_ref().is_some_and(|o| o.broken.is_none())
        });
        // A request that began meanwhile is of a peer that stays.
        self.net.peers.set_in_order(peers);
        self.net.unhurried.set_in_order(self.net.peers.has_in_order());
        n
    }

    #[cold]
    fn let_through(&mut self, core: &mut Core, peer: PeerId) -> usize {
        for n in 0.. {
            let Some(order) = self.net.peers[peer].order.as_mut() else { return n };
            if order.waits(&mut self.requests.pool) {
                return n;
            }
            let Some(frame) = order.held.pop_front() else {
                if order.broken.is_none() {
                    self.net.peer(peer).order = None;
                }
                return n;
            };
            order.size -= cost(&frame);
            let access = |(head, op, flags): (Head, WireOp, Flags)| {
                self.on_long(core, peer, Source::Held(&frame), frame.len(), &head, op, flags)
            };
            if let Err(why) = parse_head(&frame).and_then(access) {
                self.net.malformed(peer, frame.first_chunk().copied(), frame.len(), why);
            }
        }
        0
    }

    /// Whether a peer has more requests served than there is a good reason for.
    #[cold]
    fn count_requests(&mut self, core: &Core) {
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

    /// What a call of progress does that finds nothing, messages of the plainest sort that no receive is for,
    /// or one that a receive is for: the completion of that does not go into the queue `cq`, which is
    /// empty, but to `to`. An answer that holds it would be put together in memory, and taken apart before
    /// its words have got there.
    #[inline(always)]
    pub(crate) fn poll_fast(&mut self, core: &mut Core, cq: CqId, to: &mut impl Report) -> PollFast {
        if self.requests.has_chores(&self.net) {
            return PollFast::Unknown;
        }
        self.adapt.note_short_progress();
        let frame = match self.net.link.poll_frame(FrameSource::Any) {
            PollFrame::Nothing => return PollFast::Nothing,
            PollFrame::Unknown => return PollFast::Unknown,
            PollFrame::Frame(frame) => frame,
        };
        match self.incoming_messages().receive_fast(core, &frame, cq, to) {
            Fast::Received => PollFast::Message,
            Fast::Other => {
                self.take_in(core, apart(&frame));
                PollFast::Other
            }
            Fast::Unexpected(message) => self.take_frames_from(core, apart(&frame), Some(&message), cq),
            Fast::Answer => self.take_frames_from(core, apart(&frame), None, cq),
        }
    }

    /// Keeps a message that no receive is for, or, if it is none, hears an answer; and goes on with what the
    /// same peer has sent, up to a message that a receive is for, whose completion is in the queue, or to
    /// anything of another sort.
    #[inline(never)]
    fn take_frames_from(
        &mut self,
        core: &mut Core,
        mut frame: Frame,
        message: Option<&Eager>,
        cq: CqId,
    ) -> PollFast {
        let (from, mut work) = (frame.from, work_of(&frame));
        if let Some(message) = message {
            self.incoming_messages().keep_plain(core, &frame, message);
            self.net.link.release(frame);
        } else {
            self.take_in(core, frame);
        }
        while work < FAST_BUDGET {
            let PollFrame::Frame(next) = self.net.link.poll_frame(FrameSource::Next(from)) else { break };
            frame = next;
            work += work_of(&frame);
            let mut entry = None;
            match self
                .incoming_messages()
                .receive_fast(core, &frame, cq, &mut |c: &Completion| entry = Some(*c))
            {
                Fast::Unexpected(message) => {
                    self.incoming_messages().keep_plain(core, &frame, &message);
                    self.net.link.release(frame);
                }
                Fast::Answer => self.take_in(core, frame),
                Fast::Received => {
                    if let Some(entry) = entry {
                        core.complete(Some(cq), entry);
                    }
                    break;
                }
                Fast::Other => {
                    self.take_in(core, frame);
                    return PollFast::Other;
                }
            }
        }
        // Of all endpoints that were polled.
        core.kept = core.kept.saturating_add(work);
        PollFast::Kept
    }

    #[inline(never)]
    fn take_in(&mut self, core: &mut Core, frame: Frame) {
        self.incoming(core, &frame);
        self.net.link.release(frame);
    }
}

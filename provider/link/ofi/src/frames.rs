//! The engine's calls.

use std::os::fd::RawFd;

use hmem::{Span, total};
use link_api::{
    Direct, Event, Frame, Gone, InUse, Link, NoDirect, OpId, Path, Patience, PeerId, PieceCounter, Refused,
    Region, RegionVersion, RmaLink, Standing, Way,
};
use wire::{Addr, Handle, Seg};

use crate::below::{About, Below};
use crate::channel::BEFORE;
use crate::dealings::is_read;
use crate::link::OfiLink;
use crate::parts::inbox::Held;
use crate::peer::Stage;

impl<B: RmaLink, F: Below> OfiLink<B, F> {
    fn next_out(&mut self) -> Option<Event> {
        let event = self.net.inbox.next()?;
        if let Event::Closed(peer, _) = event {
            self.net.peers.at(peer).end.report();
        }
        Some(event)
    }

    /// Makes a way to a peer, which is met over the connection that `connect` makes.
    fn meet(
        &mut self,
        peer: PeerId,
        connect: fn(&mut B, PeerId) -> Result<(), Refused>,
    ) -> Result<(), Refused> {
        let at = self.net.peers.at(peer);
        if at.end.is_ending() {
            return Err(Refused::Gone(Gone::Reset));
        }
        if at.stage == Stage::Fabric {
            return Ok(());
        }
        if self.net.goes_by_base(peer) {
            return connect(&mut self.net.base, peer);
        }
        if self.net.peers.at(peer).stage == Stage::Idle {
            match connect(&mut self.net.base, peer) {
                Ok(()) if self.net.provider.has_failed() => self.net.refuse(peer, "it has failed here"),
                Ok(()) => self.net.announce(peer),
                Err(Refused::Gone(why)) => return Err(Refused::Gone(why)),
                Err(_) => {}
            }
        }
        self.net.peers.want(peer);
        Err(Refused::Busy)
    }

    /// The bytes of the frame at hand, if it came by the fabric.
    fn at_hand(&self, frame: &Frame) -> Option<&[u8]> {
        let Some(Held::Fabric(_, _, came)) = self.net.inbox.held() else { return None };
        came.bytes(self.net.below.as_ref()).get(BEFORE..BEFORE + frame.len)
    }
}

impl<B: RmaLink, F: Below> Link for OfiLink<B, F> {
    fn addr(&self) -> Addr {
        self.net.base.addr()
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        let peer = self.net.base.peer(addr);
        self.net.peers.add(peer);
        peer
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.net.base.peer_addr(peer)
    }

    fn reaches(&self, addr: &Addr) -> Result<(), String> {
        self.net.base.reaches(addr)
    }

    fn path(&self, peer: PeerId) -> Path {
        if self.net.goes_by_base(peer) && !self.net.is_own(peer) {
            self.net.base.path(peer)
        } else {
            self.net.fabric_path()
        }
    }

    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
        let Some(at) = self.net.peers.get(to) else { return self.net.base.send(to, head, body, off, len) };
        if at.end.is_ending() {
            return Err(Refused::Gone(Gone::Reset));
        }
        if at.stage == Stage::Fabric {
            self.net.send_by_fabric(to, head, body, off, len)?;
            let kept = self.reports_kept && self.net.keeps_frames(to);
            return if kept { Err(Refused::Kept) } else { Ok(()) };
        }
        if self.net.goes_by_base(to) {
            return self.net.base.send(to, head, body, off, len);
        }
        self.meet(to, B::connect_to_send).and(Err(Refused::Busy))
    }

    fn poll(&mut self) -> Option<Event> {
        debug_assert!(self.net.inbox.held().is_none(), "polled before the last frame was released");
        let slept = self.net.sleep.disarm();
        if self.net.inbox.is_empty() {
            self.poll_some();
        }
        let found = !self.net.inbox.is_empty();
        // What has ended a sleep may take more than one look, since the provider is asked by few calls at a
        // time.
        if (slept || found && self.net.sleep.is_vain()) && self.net.sleep.woke(found) {
            self.net.set_timer();
        }
        self.next_out()
    }

    fn poll_frame_from(&mut self, from: PeerId) -> Option<Frame> {
        if !self.has_frames_of(from) {
            return None;
        }
        match self.next_out() {
            Some(Event::Frame(frame)) => Some(frame),
            _ => None,
        }
    }

    fn has_frames_of(&self, from: PeerId) -> bool {
        self.net.inbox.is_next_from(from)
    }

    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        if let Some(Held::Base(held)) = self.net.inbox.held() {
            return self.net.base.read(held, off, dst);
        }
        let rest = self.at_hand(frame).and_then(|bytes| bytes.get(off..)).unwrap_or_default();
        let n = rest.len().min(dst.len());
        dst[..n].copy_from_slice(&rest[..n]);
        n
    }

    fn copy_out(&self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        if let Some(Held::Base(held)) = self.net.inbox.held() {
            return self.net.base.copy_out(held, off, dst, doff, len);
        }
        let rest = self.at_hand(frame).and_then(|bytes| bytes.get(off..)).unwrap_or_default();
        let n = rest.len().min(len).min(total(dst).saturating_sub(doff));
        hmem::write(dst, doff, &rest[..n])
    }

    fn release(&mut self, _frame: Frame) {
        match self.net.inbox.take_held() {
            Some(Held::Base(frame)) => self.net.inbox.release_base(&mut self.net.base, frame),
            Some(Held::Fabric(peer, generation, came)) => {
                came.give_back(self.net.below.as_mut());
                let at = &mut self.net.peers[peer];
                if let Some(channel) = at.channel.as_mut().filter(|_| at.generation == generation) {
                    channel.note_done();
                    self.net.send_room(peer);
                }
            }
            None => {}
        }
    }

    fn set_budget(&mut self, budget: &link_api::Budget) {
        self.net.base.set_budget(budget);
    }

    fn tell_kept(&mut self) {
        self.reports_kept = true;
        self.net.base.tell_kept();
    }

    fn keeps(&mut self, to: PeerId) -> bool {
        let Some(at) = self.net.peers.get_mut(to) else { return self.net.base.keeps(to) };
        // Its end is still to be reported.
        if at.end.is_losing() {
            return true;
        }
        let lost = at.end.take_lost();
        lost || self.net.keeps_frames(to) || self.net.goes_by_base(to) && self.net.base.keeps(to)
    }

    fn is_gone(&self, peer: PeerId) -> bool {
        self.net.peers.get(peer).is_some_and(|at| at.end.is_ending()) || self.net.base.is_gone(peer)
    }

    fn is_connected(&self, peer: PeerId) -> bool {
        self.net.peers.get(peer).is_some_and(|at| at.end.is_ending()) || self.net.base.is_connected(peer)
    }

    fn connect(&mut self, peer: PeerId) -> Result<(), Refused> {
        self.meet(peer, B::connect)
    }

    fn connect_to_send(&mut self, peer: PeerId) -> Result<(), Refused> {
        self.meet(peer, B::connect_to_send)
    }

    fn expect(&mut self, peer: PeerId) {
        if !self.is_connected(peer) {
            self.net.base.expect(peer);
        }
    }

    fn has_room_to_spare(&mut self, to: PeerId, len: usize) -> bool {
        if self.net.goes_by_base(to) {
            return self.net.base.has_room_to_spare(to, len);
        }
        let at = self.net.peers.at(to);
        at.stage == Stage::Fabric
            && !at.upkeep.is_full()
            && at.channel.as_ref().is_some_and(|c| c.has_much_room())
    }

    fn serve_host(&mut self, on: bool) {
        self.net.base.serve_host(on);
    }

    fn settle(&mut self, last: bool) -> bool {
        self.settle_at_exit(last)
    }

    fn forget(&mut self, peer: PeerId) {
        if self.is_connected(peer) || self.net.is_own(peer) {
            return;
        }
        self.net.base.forget(peer);
        self.net.reset(peer);
        self.net.peers.forget(peer);
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.net.inbox.drop_frames_of(peer, &mut self.net.base, &mut self.net.below);
        self.net.cut(peer, None);
    }

    fn arm(&mut self) -> bool {
        let nudged = self.net.sleep.take_nudge();
        let armed = !self.has_something(true) && self.may_sleep() && !nudged;
        self.net.sleep.set_armed(armed);
        if armed {
            self.net.falls_asleep();
        }
        armed
    }

    fn is_armed(&self) -> bool {
        self.net.sleep.is_armed()
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.net.sleep.fd())
    }

    fn wait_fds(&self) -> Vec<RawFd> {
        self.net.fds()
    }

    fn has_met(&mut self) -> bool {
        self.net.base.has_met()
    }

    fn worn_fd(&mut self) -> Option<RawFd> {
        self.net.sleep.take_worn().or_else(|| self.net.base.worn_fd())
    }

    fn describe(&self, peer: PeerId) -> String {
        let base = self.net.base.describe(peer);
        let stage = self.net.peers.get(peer).map_or(Stage::Idle, |at| at.stage);
        let Some(below) = &self.net.below else {
            return format!("{base}; no fabric: {}", self.net.provider.lacks());
        };
        let About { name, detail, .. } = below.about();
        match stage {
            Stage::Fabric => {
                let payloads = self.net.payloads(peer);
                format!(
                    "{name} ({detail}), frames of {} bytes, {payloads}; set up over tcp, {base}",
                    self.net.provider.max_frame()
                )
            }
            Stage::Base => {
                let why = self.net.peers.get(peer).map(|at| at.meeting.refused()).unwrap_or_default();
                format!("{base}; not {name}: {why}")
            }
            Stage::Idle | Stage::Meeting => format!("{name} ({detail}), not connected; tcp {base}"),
        }
    }

    fn standing(&self) -> Vec<Standing> {
        let offers = match &self.net.below {
            Some(below) => {
                let refused = match self.net.provider.lacks() {
                    "" => String::new(),
                    lacks => format!("; refused before it: {lacks}"),
                };
                let About { name, detail, .. } = below.about();
                Ok(format!(
                    "over {name} ({detail}), frames of {} bytes{refused}",
                    self.net.provider.max_frame()
                ))
            }
            None => Err(self.net.provider.lacks().to_owned()),
        };
        let base = self.net.base.standing().into_iter().map(|base| {
            let only = |what| format!("only meets peers for ofi, and is not to carry frames; {what}");
            let offers =
                if self.net.options.fallback { base.offers } else { base.offers.and_then(|w| Err(only(w))) };
            Standing { offers, ..base }
        });
        std::iter::once(Standing { link: "ofi", offers }).chain(base).collect()
    }
}

/// Calls a method of the connection for a peer whose frames go by it.
macro_rules! by_base {
    ($self:ident, $peer:ident, $method:ident($($arg:expr),*), $else:expr) => {
        if $self.net.goes_by_base($peer) { $self.net.base.$method($peer, $($arg),*) } else { $else }
    };
}

/// By the fabric payloads come in frames, or are read or written without the owner of the memory.
impl<B: RmaLink, F: Below> RmaLink for OfiLink<B, F> {
    fn get(&mut self, from: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        by_base!(self, from, get(access), Err(NoDirect::Never))
    }

    fn put(&mut self, to: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        by_base!(self, to, put(access), Err(NoDirect::Never))
    }

    fn start(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        if self.net.goes_by_base(peer) {
            self.net.base.start(way, peer, access)
        } else {
            self.net.with_memory(|memory| memory.start_access(way, peer, access))
        }
    }

    fn cancel(&mut self, op: OpId) {
        if is_read(op) {
            self.net.with_memory(|memory| memory.cancel_read(op))
        } else {
            self.net.base.cancel(op)
        }
    }

    fn export_handles(&mut self, to: PeerId, iov: &[Span], way: Way) -> Option<Vec<Handle>> {
        by_base!(self, to, export_handles(iov, way), self.net.with_memory(|memory| memory.lend(to, iov, way)))
    }

    fn mark_exported(&mut self, to: PeerId, handle: &Handle) {
        by_base!(self, to, mark_exported(handle), self.net.peers.at(to).dealings.mark_exported(handle));
    }

    fn import_handle(&mut self, from: PeerId, handle: &Handle) {
        by_base!(
            self,
            from,
            import_handle(handle),
            self.net.with_memory(|memory| memory.note_handle(from, handle))
        );
    }

    fn retire_handles(&mut self, to: PeerId, iov: &[Span]) {
        by_base!(self, to, retire_handles(iov), self.net.with_memory(|memory| memory.end_leases(to, iov)));
    }

    fn on_distinct_devices(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> bool {
        by_base!(self, peer, on_distinct_devices(theirs, ours), false)
    }

    fn on_one_device(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> bool {
        by_base!(self, peer, on_one_device(theirs, ours), false)
    }

    fn pieces_open(&mut self, with: PeerId) -> Option<PieceCounter> {
        by_base!(self, with, pieces_open(), None)
    }

    fn pieces_claim(&mut self, with: PeerId, counter: PieceCounter, mine: bool, of: u16) -> Option<u16> {
        by_base!(self, with, pieces_claim(counter, mine, of), None)
    }

    fn pieces_begun(&self, with: PeerId, counter: PieceCounter) -> bool {
        by_base!(self, with, pieces_begun(counter), false)
    }

    fn pieces_close(&mut self, with: PeerId, counter: PieceCounter) {
        by_base!(self, with, pieces_close(counter), ());
    }

    fn publish(&mut self, region: &Region) {
        self.net.base.publish(region);
    }

    fn unpublish(&mut self, key: u64) -> Result<(), InUse> {
        self.net.base.unpublish(key)
    }

    fn published(&self, by: PeerId, key: u64) -> Option<(Region, RegionVersion)> {
        by_base!(self, by, published(key), None)
    }

    fn revoke(&mut self, from: PeerId, request: u64) -> Result<(), InUse> {
        by_base!(self, from, revoke(request), self.take_back(from, request))
    }

    fn renew(&mut self, to: PeerId, request: u64) {
        by_base!(self, to, renew(request), self.net.with_memory(|memory| memory.give_again(to, request)));
    }

    fn stage_devices(&mut self) {
        self.net.provider.stage_devices();
    }

    fn set_patience(&mut self, patience: Patience) {
        self.net.reading.set_patience(patience);
        self.net.base.set_patience(patience);
    }

    fn close(&mut self) -> Result<(), InUse> {
        let lent = self.take_back_all();
        self.net.base.close().and(lent)
    }
}

//! The calls of the engine, each by the link that the peer has.

use std::io;
use std::os::fd::RawFd;

use hmem::Span;
use link_api::{
    Allow, Channel, Connect, Cork, Devices, Direct, Event, Frame, FrameLink, FrameSource, Gone, GroupLink,
    HandleNote, Hint, InUse, LandAt, Landing, Link, NoDirect, Once, OpId, Parting, Path, PeerId,
    PieceCounter, PollFrame, Refused, Region, RegionVersion, Revoke, RmaLink, Row, Sent, Setting, SleepLink,
    Standing, WaitFd, Way, send_each,
};
use wire::{Addr, Handle, Seg};

use super::groups::Groups;
use super::route::Cause;
use super::{Links, route};
use crate::turns;

impl Link for Links {
    fn addr(&self) -> Addr {
        self.shm.addr()
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        let peer = self.shm.peer(addr);
        if self.further.is_empty() && self.later.is_none() {
            // Where there is no other link, each peer is on this host. The numbers of peers that are
            // forgotten are given again.
            turns::knows(peer.0 as usize + 1);
        } else if self.routes.of(peer).is_none() {
            let cause = self.host.cause(self.shm.addr(), addr);
            if let Cause::Far(_) = cause {
                self.open_later();
            }
            self.assign().choose(peer, addr, cause);
        }
        peer
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.shm.peer_addr(peer)
    }

    fn path(&self, peer: PeerId) -> Path {
        match self.routes.far_of(peer) {
            Some((at, id)) => self.further[at].path(id),
            None => self.shm.path(peer),
        }
    }

    fn set(&mut self, setting: Setting<'_>) {
        if let Setting::ServeHost(_) | Setting::StageDevices = setting {
            // These differ from link to link: `set_shm` and `set_device_direct` are the calls.
            return;
        }
        self.shm.set(setting);
        self.further.each_mut().for_each(|link| link.set(setting));
        self.later.iter_mut().for_each(|later| later.set(setting));
    }

    fn channel(&self, peer: PeerId) -> Channel {
        match self.routes.far_of(peer) {
            Some((at, id)) => self.further[at].channel(id),
            None => self.shm.channel(peer),
        }
    }

    fn connect(&mut self, peer: PeerId, how: Connect) -> Result<(), Refused> {
        self.rest.wake();
        if let Some((at, id)) = self.routes.far_of(peer) {
            self.pace.hurry(self.shm.has_no_rings());
            return self.further[at].connect(id, how);
        }
        match self.shm.connect(peer, how) {
            Err(Refused::Gone(Gone::Unreachable)) if self.assign().reroute(peer) => Err(Refused::Busy),
            done => done,
        }
    }

    fn settle(&mut self, last: bool) -> bool {
        let mut settled = true;
        self.further.each_mut().for_each(|link| settled &= link.settle(last));
        settled
    }

    fn dismiss(&mut self, peer: PeerId, how: Parting) {
        match how {
            Parting::Forgotten => self.forget(peer),
            Parting::CutOff => self.disconnect(peer),
        }
    }

    fn answer(&mut self, peer: PeerId, front: &[u8]) -> bool {
        match self.routes.far_of(peer) {
            Some((at, id)) => self.further[at].answer(id, front),
            None => self.shm.answer(peer, front),
        }
    }

    fn lack(&self) -> Option<io::Error> {
        self.shm.lack().or_else(|| self.further.each().find_map(|link| link.lack()))
    }

    fn describe(&self, peer: PeerId) -> String {
        self.descriptions().path(peer)
    }

    fn standing(&self) -> Vec<Standing> {
        self.descriptions().standing()
    }
}

impl FrameLink for Links {
    #[inline(always)]
    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        match self.shm.send_connected(to, head, body, off, len) {
            Some(done) => done,
            None => self.send_unconnected(to, head, body, off, len),
        }
    }

    #[inline(always)]
    fn send_short<const N: usize>(
        &mut self,
        to: PeerId,
        head: [u8; N],
        body: Span,
    ) -> Option<Result<Sent, Refused>> {
        self.shm.send_short(to, head, body)
    }

    #[inline]
    fn poll(&mut self) -> Option<Event> {
        if self.further.is_empty() { self.shm.poll() } else { self.poll_all() }
    }

    #[inline(always)]
    fn poll_frame(&mut self, of: FrameSource) -> PollFrame {
        if let FrameSource::Next(_) = of {
            return self.shm.poll_frame(of);
        }
        if self.pace.step() {
            return match of {
                FrameSource::Any => self.poll_frame_of_all(),
                // Only a system call would find something, and that is left to the next poll.
                FrameSource::AnyAtHand if self.shm.has_no_rings() => {
                    self.pace.take_near_only();
                    PollFrame::Nothing
                }
                _ => PollFrame::Unknown,
            };
        }
        let found = self.shm.poll_frame(of);
        self.pace.note_near(matches!(found, PollFrame::Frame(_)));
        found
    }

    #[inline(always)]
    fn hint(&mut self, hint: Hint) {
        self.shm.hint(hint)
    }

    #[inline]
    fn has_frames_of(&self, from: PeerId) -> bool {
        match self.routes.far_of(from) {
            Some((at, id)) => self.further[at].has_frames_of(id),
            None => self.shm.has_frames_of(from),
        }
    }

    // The trait's own reads a frame of shared memory in the general way, which costs a short message more.
    #[inline(always)]
    fn peek<const N: usize>(&self, frame: &Frame) -> Option<[u8; N]> {
        if route::is_far(frame.slot) {
            let mut bytes = [0; N];
            let read = self.further.read(frame.from, frame.len, frame.slot, 0, &mut bytes);
            return (read == N).then_some(bytes);
        }
        self.shm.peek(frame)
    }

    #[inline]
    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        if route::is_far(frame.slot) {
            return self.further.read(frame.from, frame.len, frame.slot, off, dst);
        }
        self.shm.read(frame, off, dst)
    }

    #[inline(always)]
    fn copy_out(&self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        if route::is_far(frame.slot) {
            return self.further.copy_out((frame.from, frame.len, frame.slot), off, dst, doff, len);
        }
        self.shm.copy_out(frame, off, dst, doff, len)
    }

    #[inline(always)]
    fn copy_last(&mut self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        if route::is_far(frame.slot) {
            return self.further.copy_last((frame.from, frame.len, frame.slot), off, dst, doff, len);
        }
        self.shm.copy_out(frame, off, dst, doff, len)
    }

    #[inline]
    fn cork(&mut self, how: Cork) {
        self.further.each_mut().for_each(|link| link.cork(how));
    }

    #[inline(always)]
    fn take(&mut self, frame: &Frame, off: usize, dst: Span, apart: bool) -> bool {
        if apart {
            return route::is_far(frame.slot) && self.further.take(frame, off, dst);
        }
        !route::is_far(frame.slot) && self.shm.take(frame, off, dst, false)
    }

    #[inline(always)]
    fn release(&mut self, frame: Frame) {
        if route::is_far(frame.slot) {
            return self.further.release(frame.from, frame.len, frame.slot);
        }
        self.shm.release(frame)
    }

    fn keeps(&mut self, to: PeerId) -> bool {
        // Also while the peer's end has not been reported though its link has reported it.
        let ends = |event: &Event| matches!(event, Event::Closed(peer, _) if *peer == to);
        if self.events.iter().any(ends) {
            return true;
        }
        self.routes.far_of(to).is_some_and(|(at, id)| self.further[at].keeps(id))
    }

    #[inline(always)]
    fn land(&mut self, frame: Frame, to: Option<LandAt<'_>>) -> Landing {
        if route::is_far(frame.slot) {
            return self.land_far((frame.from, frame.len, frame.slot), to);
        }
        self.shm.land(frame, to)
    }

    fn has_room_to_spare(&mut self, to: PeerId, len: usize) -> bool {
        self.rest.wake();
        match self.routes.far_of(to) {
            Some((at, id)) => self.further[at].has_room_to_spare(id, len),
            None => self.shm.has_room_to_spare(to, len),
        }
    }
}

impl SleepLink for Links {
    fn arm(&mut self) -> bool {
        // What ends the sleep may be of any link.
        self.pace.poll_next();
        self.rest.wake();
        // A link without a descriptor wakes nothing.
        let ready = self.events.is_empty() && self.shm.arm();
        let armed = self
            .further
            .each_mut()
            .fold(ready, |ready, link| link.arm() && link.wait_fd(WaitFd::All).is_some() && ready);
        self.rest.unwatch(self.further.each());
        armed
    }

    fn is_armed(&self) -> bool {
        self.events.is_empty() && self.shm.is_armed() && self.further.each().all(|link| link.is_armed())
    }

    fn wait_fd(&self, which: WaitFd) -> Option<RawFd> {
        match self.rest.fd() {
            Some(fd) => which.only(fd),
            None => self.shm.wait_fd(which),
        }
    }
}

/// Calls a method of the link that a peer has.
macro_rules! by_peer {
    ($self:ident, $peer:ident, $method:ident($($arg:expr),*)) => {
        match $self.routes.far_of($peer) {
            Some((at, id)) => $self.further[at].$method(id, $($arg),*),
            None => $self.shm.$method($peer, $($arg),*),
        }
    };
}

impl RmaLink for Links {
    fn send_row(&mut self, to: PeerId, row: Row<'_>) -> Result<usize, Refused> {
        let Some((at, id)) = self.routes.far_of(to) else { return send_each(self, to, row) };
        self.rest.wake();
        self.pace.hurry(self.shm.has_no_rings());
        let sent = self.further[at].send_row(id, row);
        if sent.is_ok() {
            // As behind a frame.
            self.shm.set_patient();
        }
        sent
    }

    fn groups(&mut self) -> Option<Box<dyn GroupLink + '_>> {
        Some(Box::new(Groups { shm: &mut self.shm, routes: &self.routes }))
    }

    fn access(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        match self.routes.far_of(peer) {
            Some((at, id)) => self.further[at].access(way, id, access),
            None => self.shm.access(way, peer, access),
        }
    }

    fn start(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        match self.routes.far_of(peer) {
            Some((at, id)) => {
                let op = self.further[at].start(way, id, access)?;
                Ok(route::tag_op(at, op))
            }
            None => self.shm.start(way, peer, access),
        }
    }

    fn start_once(&mut self, peer: PeerId, once: Once, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        match self.routes.far_of(peer) {
            Some((at, id)) => {
                let op = self.further[at].start_once(id, once, access)?;
                Ok(route::tag_op(at, op))
            }
            None => self.shm.start_once(peer, once, access),
        }
    }

    fn cancel(&mut self, op: OpId) {
        match route::untag_op(op) {
            (Some(at), op) => self.further[at].cancel(op),
            (None, op) => self.shm.cancel(op),
        }
    }

    fn export_handles(&mut self, to: PeerId, iov: &[Span], way: Way) -> Option<Vec<Handle>> {
        by_peer!(self, to, export_handles(iov, way))
    }

    fn note_handle(&mut self, peer: PeerId, what: HandleNote<'_>) {
        by_peer!(self, peer, note_handle(what))
    }

    fn devices(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> Devices {
        by_peer!(self, peer, devices(theirs, ours))
    }

    fn pieces_open(&mut self, with: PeerId) -> Option<PieceCounter> {
        by_peer!(self, with, pieces_open())
    }

    fn pieces_claim(&mut self, with: PeerId, counter: PieceCounter, mine: bool, of: u16) -> Option<u16> {
        by_peer!(self, with, pieces_claim(counter, mine, of))
    }

    fn pieces_begun(&self, with: PeerId, counter: PieceCounter) -> bool {
        by_peer!(self, with, pieces_begun(counter))
    }

    fn pieces_close(&mut self, with: PeerId, counter: PieceCounter) {
        by_peer!(self, with, pieces_close(counter))
    }

    #[inline]
    fn published(&mut self, by: PeerId, key: u64) -> Option<(Region, RegionVersion)> {
        by_peer!(self, by, published(key))
    }

    fn allow(&mut self, what: Allow<'_>) {
        match what {
            Allow::Request(to, request) => match self.routes.far_of(to) {
                Some((at, id)) => self.further[at].allow(Allow::Request(id, request)),
                None => self.shm.allow(what),
            },
            Allow::Region(..) => {
                self.shm.allow(what);
                self.further.each_mut().for_each(|link| link.allow(what));
            }
        }
    }

    fn revoke(&mut self, what: Revoke) -> Result<(), InUse> {
        match what {
            Revoke::Request(from, request) => match self.routes.far_of(from) {
                Some((at, id)) => self.further[at].revoke(Revoke::Request(id, request)),
                None => self.shm.revoke(what),
            },
            // Each of them, whatever the others say.
            Revoke::Region(_) | Revoke::All => {
                let shm = self.shm.revoke(what);
                self.further.each_mut().fold(shm, |all, link| link.revoke(what).and(all))
            }
        }
    }
}

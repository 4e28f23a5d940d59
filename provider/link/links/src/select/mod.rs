//! All links of one endpoint, and which of them each peer is reached by.
//!
//! A peer on this host is reached by shared memory. Any other is reached by the first of the further links
//! that leads to its address. If shared memory turns out not to lead to a peer (another network namespace),
//! the peer gets the next link that does, and [`Event::PathChanged`] says so before anything was sent.
//!
//! One link serves a peer, in both directions, and its name decides which, never the side that calls. A
//! caller by another link is refused: it would act with the means of a connection that was authenticated for
//! another process ([`served`]).
//!
//! The shared memory link is here by value and by its type, so that a short message costs no more than it
//! does on that link alone: its numbers of peers are those of the endpoint, and it is asked first. Further
//! links are boxed; their numbers, operations and frames are translated.

mod assign;
mod crowd;
mod describe;
mod further;
mod later;
mod pace;
mod rest;
#[cfg(all(test, not(loom)))]
mod rest_tests;
mod rma;
mod route;
mod served;
#[cfg(all(test, not(loom)))]
mod setup_tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use hmem::Span;
use link_api::{Event, Frame, Gone, Landing, Link, Path, PeerId, PollFrame, Refused, Standing};
use wire::Addr;

use crate::shm::{Callers, OpenOptions, ShmLink};
use crate::tcp::{TcpLink, TcpOptions};
use crate::turns;
use assign::{Assign, Host};
use describe::Describe;
use further::Further;
use later::Later;
use pace::Pace;
use rest::Rest;
use route::{Cause, Routes};

pub use further::BoxedLink;

/// The links of one endpoint.
#[derive(Debug)]
pub struct Links {
    shm: ShmLink,
    further: Further,
    routes: Routes,
    /// What is reported before anything else.
    events: VecDeque<Event>,
    pace: Pace,
    rest: Rest,
    host: Host,
    /// A further link that is opened when a peer takes it.
    later: Option<Later>,
    /// Links that were not opened, and why.
    absent: Vec<(&'static str, String)>,
}

impl Links {
    /// Opens an endpoint of this name, with the link of shared memory alone.
    pub fn open(options: OpenOptions) -> io::Result<Links> {
        Ok(Links {
            shm: ShmLink::open(options)?,
            further: Further::default(),
            routes: Routes::default(),
            events: VecDeque::new(),
            pace: Pace::default(),
            rest: Rest::default(),
            host: Host::new(),
            later: None,
            absent: Vec::new(),
        })
    }

    /// Adds a link, to be considered after those that are here. To be called before any peer is known.
    pub fn add(&mut self, link: BoxedLink) -> io::Result<()> {
        for fd in link.wait_fds() {
            self.rest.watch(self.shm.wait_fd(), fd)?;
        }
        self.further.add(link);
        self.share_out();
        self.pace.begin();
        self.rest.join(self.further.each());
        Ok(())
    }

    /// Adds a link over TCP, if [`OpenOptions::port`] listens.
    pub fn add_tcp(&mut self, options: TcpOptions) -> io::Result<()> {
        let link = TcpLink::open(self.shm.name(), options)?;
        self.add(Box::new(link))
    }

    /// Adds a link over TCP that is opened when a peer of another host is known, with
    /// [`Port::ListensLater`](crate::Port). To be called before any peer is known.
    pub fn add_tcp_later(&mut self, options: TcpOptions) -> io::Result<()> {
        // What watches the endpoint's descriptor is not to notice when there is another link.
        self.rest.begin(self.shm.wait_fd())?;
        self.later = Some(Later::new(options));
        self.share_out();
        Ok(())
    }

    /// A peer of another host is known: opens the link that leads there.
    #[cold]
    fn open_later(&mut self) {
        let Some(later) = self.later.take() else { return };
        let added = later.open(&mut self.shm).and_then(|link| self.add(Box::new(link)));
        match added {
            Ok(()) => {
                log::debug!("{}: a peer of another host is known, and its port listens", self.shm.addr())
            }
            Err(e) => {
                log::warn!("{}: no peer of another host is reached: {e}", self.shm.addr());
                self.absent.push(("tcp", e.to_string()));
            }
        }
    }

    /// Adds a link that is made of one over TCP; where it cannot be opened, the log says why.
    pub fn add_over_tcp(
        &mut self,
        options: TcpOptions,
        over: impl FnOnce(TcpLink) -> io::Result<BoxedLink>,
    ) -> io::Result<()> {
        let link = TcpLink::open(self.shm.name(), options)?;
        self.add(over(link)?)
    }

    /// Whether peers on this host are reached by shared memory, and not like all others. To be called before
    /// any peer is known.
    pub fn set_shm(&mut self, on: bool) {
        self.host.set_shm(on);
        self.share_out();
    }

    /// Peers of this host are served by shared memory, or by further links, and are refused by the others.
    fn share_out(&mut self) {
        let shm = self.host.has_shm();
        self.shm.admit_callers(match (shm, self.further.is_empty() && self.later.is_none()) {
            (_, true) => Callers::All,
            (true, false) => Callers::OfThisHost,
            (false, false) => Callers::Itself,
        });
        self.further.each_mut().for_each(|link| link.serve_host(!shm));
    }

    /// A link that is not here, and why: descriptions of paths say so.
    pub fn set_absent(&mut self, link: &'static str, why: String) {
        self.absent.push((link, why));
    }

    /// Whether a device copies from or to a peer's device memory, where shared memory leads to the peer, and
    /// whether an adapter accesses it elsewhere. That ends for good.
    pub fn set_device_direct(&mut self, on: bool) {
        self.shm.set_device_direct(on);
        if !on {
            self.further.each_mut().for_each(|link| link.stage_devices());
        }
    }

    fn assign(&mut self) -> Assign<'_> {
        Assign {
            shm: &mut self.shm,
            further: &mut self.further,
            routes: &mut self.routes,
            events: &mut self.events,
            pace: &mut self.pace,
            host: &mut self.host,
        }
    }

    fn descriptions(&self) -> Describe<'_> {
        Describe {
            shm: &self.shm,
            further: &self.further,
            routes: &self.routes,
            host: &self.host,
            later: self.later.as_ref(),
            absent: &self.absent,
        }
    }

    #[cold]
    fn send_unconnected(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
        self.rest.wake();
        self.assign().send(to, head, body, off, len)
    }

    /// The next event, of any link.
    #[cold]
    fn poll_all(&mut self) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if !self.pace.step() {
            return self.poll_near();
        }
        if self.rests() {
            return None;
        }
        self.pace.polled(self.shm.clock());
        // One poll of a further link for each of shared memory, first one then the other.
        let (near_first, begin) = self.further.next_poll();
        if near_first {
            if let Some(event) = self.poll_near() {
                return Some(event);
            }
        }
        let links = self.further.len();
        for step in 0..links {
            if let Some(event) = self.assign().poll((begin + step) % links) {
                self.pace.found();
                self.rest.wake();
                self.shm.set_patient();
                // What became known with it comes first.
                if let Some(first) = self.events.pop_front() {
                    self.events.push_back(event);
                    return Some(first);
                }
                return Some(event);
            }
        }
        self.pace.missed();
        if self.further.each_mut().any(|link| link.has_met()) {
            // The other side's next word is on its way, as a rule.
            self.pace.hurry();
            self.pace.poll_next();
        }
        let event = if near_first { None } else { self.poll_near() };
        if event.is_none() {
            self.rest_if_quiet();
        }
        event
    }

    fn poll_near(&mut self) -> Option<Event> {
        let event = self.shm.poll();
        self.pace.note_near(event.is_some());
        self.pace.note_time(self.shm.clock());
        event
    }

    /// Nothing has come. Where that is so for a while, and no peer has a ring here, the descriptor shows what
    /// comes.
    #[cold]
    fn rest_if_quiet(&mut self) {
        if self.rest.is_quiet() && self.shm.has_no_rings() && self.arm() {
            self.rest.rest();
        }
    }

    /// Whether this poll is to find nothing: the endpoint rests, and its descriptor has nothing.
    #[inline(never)]
    fn rests(&mut self) -> bool {
        if !self.rest.rests() {
            return false;
        }
        let (events, shm, further) = (&self.events, &self.shm, &self.further);
        let is_armed = || events.is_empty() && shm.is_armed() && further.each().all(|link| link.is_armed());
        if !self.rest.is_due(is_armed) {
            return true;
        }
        self.rest.wake();
        self.pace.hurry();
        self.pace.poll_next();
        false
    }
}

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

    #[inline(always)]
    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
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
    ) -> Option<Result<(), Refused>> {
        self.shm.send_short(to, head, body)
    }

    #[inline]
    fn poll(&mut self) -> Option<Event> {
        if self.further.is_empty() { self.shm.poll() } else { self.poll_all() }
    }

    #[inline(always)]
    fn poll_frame(&mut self) -> PollFrame {
        if self.pace.step() {
            return if self.rests() { PollFrame::Nothing } else { PollFrame::Unknown };
        }
        let found = self.shm.poll_frame();
        self.pace.note_near(matches!(found, PollFrame::Frame(_)));
        found
    }

    #[inline(always)]
    fn poll_frame_from(&mut self, from: PeerId) -> Option<Frame> {
        self.shm.poll_frame_from(from)
    }

    #[inline]
    fn poll_frame_of(&mut self, from: PeerId) -> PollFrame {
        if self.pace.step() {
            return PollFrame::Unknown;
        }
        let found = self.shm.poll_frame_of(from);
        self.pace.note_near(matches!(found, PollFrame::Frame(_)));
        found
    }

    #[inline(always)]
    fn awaits(&mut self, peer: Option<PeerId>) {
        self.shm.awaits(peer)
    }

    #[inline(always)]
    fn will_send(&mut self, to: PeerId) {
        self.shm.will_send(to)
    }

    #[inline(always)]
    fn put_back(&mut self, frame: Frame) {
        // Quick polls find frames of shared memory alone.
        self.shm.put_back(frame)
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
    fn take(&mut self, frame: &Frame, off: usize, dst: Span, len: usize) -> bool {
        !route::is_far(frame.slot) && self.shm.take(frame, off, dst, len)
    }

    #[inline(always)]
    fn release(&mut self, frame: Frame) {
        if route::is_far(frame.slot) {
            return self.further.release(frame.from, frame.len, frame.slot);
        }
        self.shm.release(frame)
    }

    fn set_early(&mut self) {
        self.further.each_mut().for_each(|link| link.set_early());
        self.later.iter_mut().for_each(Later::set_early);
    }

    fn set_budget(&mut self, budget: &link_api::Budget) {
        self.further.each_mut().for_each(|link| link.set_budget(budget));
        self.later.iter_mut().for_each(|later| later.set_budget(budget));
    }

    fn tell_kept(&mut self) {
        self.further.each_mut().for_each(|link| link.tell_kept());
        self.later.iter_mut().for_each(Later::tell_kept);
    }

    fn keeps(&mut self, to: PeerId) -> bool {
        // Also while the peer's end has not been reported though its link has reported it.
        let ends = |event: &Event| matches!(event, Event::Closed(peer, _) if *peer == to);
        if self.events.iter().any(ends) {
            return true;
        }
        self.routes.far_of(to).is_some_and(|(at, id)| self.further[at].keeps(id))
    }

    fn land(&mut self, frame: Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> Landing {
        self.rest.wake();
        self.further.land(&frame, off, dst, doff, len)
    }

    fn leave(&mut self, frame: Frame) {
        self.further.leave(&frame);
    }

    fn is_gone(&self, peer: PeerId) -> bool {
        match self.routes.far_of(peer) {
            Some((at, id)) => self.further[at].is_gone(id),
            None => self.shm.is_gone(peer),
        }
    }

    fn is_connected(&self, peer: PeerId) -> bool {
        match self.routes.far_of(peer) {
            Some((at, id)) => self.further[at].is_connected(id),
            None => self.shm.is_connected(peer),
        }
    }

    fn connect(&mut self, peer: PeerId) -> Result<(), Refused> {
        self.rest.wake();
        if let Some((at, id)) = self.routes.far_of(peer) {
            self.pace.hurry();
            return self.further[at].connect(id);
        }
        match self.shm.connect(peer) {
            Err(Refused::Gone(Gone::Unreachable)) if self.assign().reroute(peer) => Err(Refused::Busy),
            done => done,
        }
    }

    fn expect(&mut self, peer: PeerId) {
        self.rest.wake();
        match self.routes.far_of(peer) {
            Some((at, id)) => {
                self.pace.hurry();
                self.further[at].expect(id);
            }
            None => self.shm.expect(peer),
        }
    }

    fn has_room_to_spare(&mut self, to: PeerId, len: usize) -> bool {
        self.rest.wake();
        match self.routes.far_of(to) {
            Some((at, id)) => self.further[at].has_room_to_spare(id, len),
            None => self.shm.has_room_to_spare(to, len),
        }
    }

    fn settle(&mut self, last: bool) -> bool {
        let mut settled = true;
        self.further.each_mut().for_each(|link| settled &= link.settle(last));
        settled
    }

    fn forget(&mut self, peer: PeerId) {
        self.rest.wake();
        if self.is_connected(peer) {
            return;
        }
        if let Some((at, id)) = self.routes.far_of(peer) {
            self.further[at].forget(id);
            self.further.unset(at, id);
            self.shm.set_elsewhere(peer, false);
        }
        self.host.remove_peer(self.routes.cause_of(peer));
        self.routes.unset(peer);
        self.shm.forget(peer);
    }

    fn disconnect(&mut self, peer: PeerId) {
        self.rest.wake();
        match self.routes.far_of(peer) {
            Some((at, id)) => self.further[at].disconnect(id),
            None => self.shm.disconnect(peer),
        }
    }

    fn arm(&mut self) -> bool {
        // What ends the sleep may be of any link.
        self.pace.poll_next();
        self.rest.wake();
        // A link without a descriptor wakes nothing.
        let ready = self.events.is_empty() && self.shm.arm();
        let armed = self
            .further
            .each_mut()
            .fold(ready, |ready, link| link.arm() && link.wait_fd().is_some() && ready);
        self.rest.unwatch(self.further.each_mut());
        armed
    }

    fn is_armed(&self) -> bool {
        self.events.is_empty() && self.shm.is_armed() && self.further.each().all(|link| link.is_armed())
    }

    fn wait_fd(&self) -> Option<RawFd> {
        self.rest.fd().or_else(|| self.shm.wait_fd())
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

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
mod calls;
mod crowd;
mod describe;
mod further;
mod groups;
mod later;
mod pace;
mod rest;
#[cfg(all(test, not(loom)))]
mod rest_tests;
mod route;
mod served;
#[cfg(all(test, not(loom)))]
mod setup_tests;

use std::collections::VecDeque;
use std::io;

use hmem::Span;
use link_api::{
    Channel, Event, Frame, FrameLink as _, FrameSource, LandAt, Landing, Link as _, Parting, PeerId,
    PollFrame, Refused, Sent, Setting, SleepLink as _, WaitFd,
};

use crate::shm::{Callers, OpenOptions, ShmLink};
use crate::tcp::{TcpLink, TcpOptions};
use assign::{Assign, Host};
use describe::Describe;
use further::Further;
use later::Later;
use pace::Pace;
use rest::Rest;
use route::Routes;

pub use further::BoxedLink;

/// The links of one endpoint.
#[derive(Debug)]
#[repr(C)]
pub struct Links {
    pace: Pace,
    shm: ShmLink,
    further: Further,
    routes: Routes,
    /// What is reported before anything else.
    events: VecDeque<Event>,
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
        for fd in (0..).map_while(|n| link.wait_fd(WaitFd::Each(n))) {
            self.rest.watch(self.shm.wait_fd(WaitFd::All), fd)?;
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
        self.rest.begin(self.shm.wait_fd(WaitFd::All))?;
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
        self.further.each_mut().for_each(|link| link.set(Setting::ServeHost(!shm)));
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
            self.further.each_mut().for_each(|link| link.set(Setting::StageDevices));
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
    ) -> Result<Sent, Refused> {
        self.rest.wake();
        let Some((at, id)) = self.routes.far_of(to) else {
            return self.assign().send(to, head, body, off, len);
        };
        self.pace.hurry(self.shm.has_no_rings());
        let sent = self.further[at].send(id, head, body, off, len);
        if sent.is_ok() {
            // A sender that receives nothing would else poll for callers at nearly each call.
            self.shm.set_patient();
        }
        sent
    }

    /// The next event, of any link.
    #[cold]
    fn poll_all(&mut self) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        if !self.pace.step() || self.pace.take_near_only() {
            return self.poll_near();
        }
        if self.rests() {
            return None;
        }
        self.pace.polled(self.shm.clock());
        // One poll of a further link for each of shared memory, first one then the other.
        let (near_first, begin) = self.further.next_poll();
        self.further.note_polled();
        if near_first {
            if let Some(event) = self.poll_near() {
                return Some(event);
            }
        }
        let links = self.further.len();
        for step in 0..links {
            if let Some(event) = self.assign().poll((begin + step) % links) {
                self.found_far();
                // What became known with it comes first.
                if let Some(first) = self.events.pop_front() {
                    self.events.push_back(event);
                    return Some(first);
                }
                return Some(event);
            }
        }
        self.missed_far();
        let event = if near_first { None } else { self.poll_near() };
        if event.is_none() && self.rest.takes_part() {
            self.rest_if_quiet();
        }
        event
    }

    /// The next frame of any link, by what [`Links::poll_all`] would look at first. Where only that finds
    /// out, it looks at the links in the same order.
    #[cold]
    #[inline(never)]
    fn poll_frame_of_all(&mut self) -> PollFrame {
        if !self.events.is_empty() {
            return PollFrame::Unknown;
        }
        if self.pace.take_near_only() {
            return self.poll_frame_near();
        }
        let found = self.poll_frame_of_each();
        if !matches!(found, PollFrame::Unknown) {
            self.further.note_polled();
        }
        found
    }

    #[inline(always)]
    fn poll_frame_of_each(&mut self) -> PollFrame {
        if self.rest.rests() && self.rests() {
            return PollFrame::Nothing;
        }
        let (near_first, begin) = self.further.next_poll();
        if near_first {
            let found = self.poll_frame_near();
            if !matches!(found, PollFrame::Nothing) {
                return found;
            }
        }
        let (links, mut at) = (self.further.len(), begin);
        for _ in 0..links {
            match self.further[at].poll_frame(FrameSource::Any) {
                PollFrame::Nothing => {}
                PollFrame::Frame(frame) => return self.found_frame(at, frame),
                PollFrame::Unknown => return PollFrame::Unknown,
            }
            at = if at + 1 < links { at + 1 } else { 0 };
        }
        self.pace.polled(self.shm.clock());
        self.missed_far();
        let found = if near_first { PollFrame::Nothing } else { self.poll_frame_near() };
        if matches!(found, PollFrame::Nothing) && self.rest.takes_part() {
            self.rest_if_quiet();
        }
        found
    }

    /// A further link has a frame. Where its peer is not served by that link yet, a poll hands it out behind
    /// what became known with it.
    #[inline(always)]
    fn found_frame(&mut self, at: usize, frame: Frame) -> PollFrame {
        let Some(from) = self.further.served(at, frame.from) else { return self.found_other(at, frame) };
        self.pace.polled(self.shm.clock());
        self.found_far();
        let slot = route::tagged(at, frame.slot);
        PollFrame::Frame(Frame { from: from.peer(), len: frame.len, slot })
    }

    #[cold]
    #[inline(never)]
    fn found_other(&mut self, at: usize, frame: Frame) -> PollFrame {
        if let Some(event) = self.assign().of_frame(at, frame) {
            self.pace.polled(self.shm.clock());
            self.found_far();
            self.events.push_back(event);
        }
        PollFrame::Unknown
    }

    /// The next frame by shared memory, whose poll is quick, or is due.
    #[inline(always)]
    fn poll_frame_near(&mut self) -> PollFrame {
        if self.shm.has_no_rings() {
            return if self.shm.count_quick() { PollFrame::Nothing } else { self.poll_frame_slowly() };
        }
        let found = self.shm.poll_frame(FrameSource::Any);
        self.pace.note_near(matches!(found, PollFrame::Frame(_)));
        found
    }

    /// The same, of a poll of shared memory that has more to do.
    #[cold]
    #[inline(never)]
    fn poll_frame_slowly(&mut self) -> PollFrame {
        match self.poll_near() {
            None => PollFrame::Nothing,
            Some(Event::Frame(frame)) => PollFrame::Frame(frame),
            Some(event) => {
                self.events.push_back(event);
                PollFrame::Unknown
            }
        }
    }

    /// A look at further links has found something.
    #[inline]
    fn found_far(&mut self) {
        self.pace.found(self.shm.has_no_rings());
        self.rest.wake();
        self.shm.set_patient();
    }

    /// A look at further links has found nothing.
    #[inline]
    fn missed_far(&mut self) {
        self.pace.missed();
        if self.further.each_mut().any(|link| link.has_met()) {
            // The other side's next word is on its way, as a rule.
            self.pace.hurry(false);
            self.pace.poll_next();
        }
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
        self.pace.hurry(false);
        self.pace.poll_next();
        false
    }

    /// [`Parting::Forgotten`].
    fn forget(&mut self, peer: PeerId) {
        self.rest.wake();
        if self.channel(peer) != Channel::None {
            return;
        }
        if let Some((at, id)) = self.routes.far_of(peer) {
            self.further[at].dismiss(id, Parting::Forgotten);
            self.further.unset(at, id);
            self.shm.set_elsewhere(peer, false);
        }
        self.host.remove_peer(self.routes.cause_of(peer));
        self.routes.unset(peer);
        self.shm.dismiss(peer, Parting::Forgotten);
    }

    /// [`Parting::CutOff`].
    fn disconnect(&mut self, peer: PeerId) {
        self.rest.wake();
        match self.routes.far_of(peer) {
            Some((at, id)) => self.further[at].dismiss(id, Parting::CutOff),
            None => self.shm.dismiss(peer, Parting::CutOff),
        }
    }

    /// [`FrameLink::land`](link_api::FrameLink::land) of a further link's frame.
    #[cold]
    #[inline(never)]
    fn land_far(&mut self, (from, len, slot): (PeerId, usize, u32), to: Option<LandAt<'_>>) -> Landing {
        if to.is_some() {
            self.rest.wake();
        }
        self.further.land(Frame { from, len, slot }, to)
    }
}

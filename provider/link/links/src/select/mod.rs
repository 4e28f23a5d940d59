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
mod far_frames;
mod later;
mod pace;
mod rest;
#[cfg(all(test, not(loom)))]
mod rest_tests;
mod rma;
mod route;
mod served;
mod setup;

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use hmem::Span;
use ipc::Poller;
use link_api::{
    Channel, Connect, Event, Frame, Gone, LandAt, Landing, Link, Parting, Path, PeerId, PollFrame, Refused,
    Sent, Setting, Standing, WaitFd,
};
use wire::Addr;

use crate::shm::ShmLink;
use crate::turns;
use crowd::Member;
use later::Later;
use pace::Pace;
use route::{Far, Routes};

pub use route::BoxedLink;

/// The links of one endpoint.
#[derive(Debug)]
pub struct Links {
    shm: ShmLink,
    far: Vec<Far>,
    routes: Routes,
    /// What is to be told before anything else.
    events: VecDeque<Event>,
    /// Which further link is looked at first.
    turn: usize,
    pace: Pace,
    /// The endpoint's part in looks at many endpoints, if it takes part. It goes before `poller`, whose
    /// descriptor it names.
    member: Option<Member>,
    /// Watches the descriptors of all links, if there is more than one.
    poller: Option<Poller>,
    /// Peers on this host are reached by shared memory; and how many peers were found to be on it.
    near: bool,
    neighbours: usize,
    /// A further link that is opened when a peer takes it.
    later: Option<Later>,
    /// Links that were not opened, and why: they are told of.
    absent: Vec<(&'static str, String)>,
}

impl Links {
    /// The further link of a peer, and what that calls it.
    #[inline]
    fn far_of(&self, peer: PeerId) -> Option<(usize, PeerId)> {
        self.routes.of(peer)?.far()
    }

    /// The next event of one further link, of peers that it serves.
    fn poll_one(&mut self, at: usize) -> Option<Event> {
        loop {
            return Some(match self.far[at].link.poll()? {
                Event::Frame(frame) => match self.serve(at, frame.from) {
                    Some(from) => {
                        let slot = route::tagged(at, frame.slot);
                        Event::Frame(Frame { from: from.peer(), len: frame.len, slot })
                    }
                    None => {
                        self.refuse(at, frame);
                        continue;
                    }
                },
                Event::Begun(frame) => match self.serve(at, frame.from) {
                    Some(from) => {
                        let slot = route::tagged(at, frame.slot);
                        Event::Begun(Frame { from: from.peer(), len: frame.len, slot })
                    }
                    None => {
                        self.refuse_begun(at, frame);
                        continue;
                    }
                },
                Event::Closed(id, why) => match self.far[at].served(id) {
                    Some(peer) => Event::Closed(peer.peer(), why),
                    None => {
                        self.far[at].link.dismiss(id, Parting::Forgotten);
                        continue;
                    }
                },
                Event::PathChanged(id) => match self.far[at].served(id) {
                    Some(peer) => Event::PathChanged(peer.peer()),
                    None => continue,
                },
                Event::Done(op, ok) => Event::Done(route::tag_op(at, op), ok),
            });
        }
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
        let far = self.far.len();
        self.pace.looks(self.shm.clock());
        // One look at a further link for each at shared memory, first one then the other.
        self.turn = (self.turn + 1) % (2 * far);
        let first = self.turn % 2 == 0;
        if first {
            if let Some(event) = self.poll_near() {
                return Some(event);
            }
        }
        for step in 0..far {
            if let Some(event) = self.poll_one((self.turn / 2 + step) % far) {
                self.found();
                self.shm.set_patient();
                // What became known with it comes first.
                if let Some(told) = self.events.pop_front() {
                    self.events.push_back(event);
                    return Some(told);
                }
                return Some(event);
            }
        }
        self.pace.missed();
        if self.far.iter_mut().any(|far| far.link.has_met()) {
            // The other side's next word is on its way, as a rule.
            self.pace.hurry();
            self.pace.look_next();
        }
        let event = if first { None } else { self.poll_near() };
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

    /// [`Parting::Forgotten`].
    fn forget(&mut self, peer: PeerId) {
        self.wake();
        if self.channel(peer) != Channel::None {
            return;
        }
        if let Some((at, id)) = self.far_of(peer) {
            self.far[at].link.dismiss(id, Parting::Forgotten);
            self.far[at].unset(id);
            self.shm.set_elsewhere(peer, false);
        }
        self.is_no_neighbour(peer);
        self.routes.unset(peer);
        self.shm.dismiss(peer, Parting::Forgotten);
    }

    /// [`Parting::CutOff`].
    fn disconnect(&mut self, peer: PeerId) {
        self.wake();
        match self.far_of(peer) {
            Some((at, id)) => self.far[at].link.dismiss(id, Parting::CutOff),
            None => self.shm.dismiss(peer, Parting::CutOff),
        }
    }
}

impl Link for Links {
    fn addr(&self) -> Addr {
        self.shm.addr()
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        let peer = self.shm.peer(addr);
        if self.far.is_empty() && self.later.is_none() {
            // Where there is no other link, each peer is on this host. The numbers of peers that are
            // forgotten are given again.
            turns::knows(peer.0 as usize + 1);
        } else if self.routes.of(peer).is_none() {
            self.assign(peer, addr);
        }
        peer
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.shm.peer_addr(peer)
    }

    fn path(&self, peer: PeerId) -> Path {
        match self.far_of(peer) {
            Some((at, id)) => self.far[at].link.path(id),
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
    ) -> Result<Sent, Refused> {
        match self.shm.send_connected(to, head, body, off, len) {
            Some(done) => done,
            None => self.send_far(to, head, body, off, len),
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
        if self.far.is_empty() { self.shm.poll() } else { self.poll_all() }
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

    #[inline]
    fn has_frames_of(&self, from: PeerId) -> bool {
        match self.far_of(from) {
            Some((at, id)) => self.far[at].link.has_frames_of(id),
            None => self.shm.has_frames_of(from),
        }
    }

    // The trait's own reads a frame of shared memory in the general way, which costs a short message more.
    #[inline(always)]
    fn peek<const N: usize>(&self, frame: &Frame) -> Option<[u8; N]> {
        if route::is_far(frame.slot) {
            let mut bytes = [0; N];
            let read = self.read_far(frame.from, frame.len, frame.slot, 0, &mut bytes);
            return (read == N).then_some(bytes);
        }
        self.shm.peek(frame)
    }

    #[inline]
    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        if route::is_far(frame.slot) {
            return self.read_far(frame.from, frame.len, frame.slot, off, dst);
        }
        self.shm.read(frame, off, dst)
    }

    #[inline(always)]
    fn copy_out(&self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        if route::is_far(frame.slot) {
            return self.copy_out_far((frame.from, frame.len, frame.slot), off, dst, doff, len);
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
            return self.release_far(frame.from, frame.len, frame.slot);
        }
        self.shm.release(frame)
    }

    fn set(&mut self, setting: Setting<'_>) {
        if let Setting::ServeHost(_) | Setting::StageDevices = setting {
            // These differ from link to link: `set_shm` and `set_device_direct` are the calls.
            return;
        }
        self.shm.set(setting);
        self.far.iter_mut().for_each(|far| far.link.set(setting));
        self.later.iter_mut().for_each(|later| later.set(setting));
    }

    fn keeps(&mut self, to: PeerId) -> bool {
        self.keeps_far(to)
    }

    #[inline(always)]
    fn land(&mut self, frame: Frame, to: Option<LandAt<'_>>) -> Landing {
        if route::is_far(frame.slot) {
            return self.land_far((frame.from, frame.len, frame.slot), to);
        }
        self.shm.land(frame, to)
    }

    fn channel(&self, peer: PeerId) -> Channel {
        match self.far_of(peer) {
            Some((at, id)) => self.far[at].link.channel(id),
            None => self.shm.channel(peer),
        }
    }

    fn connect(&mut self, peer: PeerId, how: Connect) -> Result<(), Refused> {
        self.wake();
        if let Some((at, id)) = self.far_of(peer) {
            self.pace.hurry();
            return self.far[at].link.connect(id, how);
        }
        match self.shm.connect(peer, how) {
            Err(Refused::Gone(Gone::Unreachable)) if self.reroute(peer) => Err(Refused::Busy),
            done => done,
        }
    }

    fn has_room_to_spare(&mut self, to: PeerId, len: usize) -> bool {
        self.wake();
        match self.far_of(to) {
            Some((at, id)) => self.far[at].link.has_room_to_spare(id, len),
            None => self.shm.has_room_to_spare(to, len),
        }
    }

    fn settle(&mut self, last: bool) -> bool {
        let mut settled = true;
        self.far.iter_mut().for_each(|far| settled &= far.link.settle(last));
        settled
    }

    fn dismiss(&mut self, peer: PeerId, how: Parting) {
        match how {
            Parting::Forgotten => self.forget(peer),
            Parting::CutOff => self.disconnect(peer),
        }
    }

    fn arm(&mut self) -> bool {
        // What ends the sleep may be of any link.
        self.pace.look_next();
        self.wake();
        // A link without a descriptor wakes nothing.
        let ready = self.events.is_empty() && self.shm.arm();
        let armed = self
            .far
            .iter_mut()
            .fold(ready, |ready, far| far.link.arm() && far.link.wait_fd(WaitFd::All).is_some() && ready);
        if let Some(poller) = &self.poller {
            self.far
                .iter()
                .filter_map(|far| far.link.wait_fd(WaitFd::Worn))
                .for_each(|fd| poller.remove(&fd));
        }
        armed
    }

    fn is_armed(&self) -> bool {
        self.events.is_empty() && self.shm.is_armed() && self.far.iter().all(|far| far.link.is_armed())
    }

    fn wait_fd(&self, which: WaitFd) -> Option<RawFd> {
        match &self.poller {
            Some(poller) => which.only(poller.fd()),
            None => self.shm.wait_fd(which),
        }
    }

    fn lack(&self) -> Option<io::Error> {
        self.shm.lack().or_else(|| self.far.iter().find_map(Far::lack))
    }

    fn describe(&self, peer: PeerId) -> String {
        self.tell(peer)
    }

    fn standing(&self) -> Vec<Standing> {
        self.all_standing()
    }
}

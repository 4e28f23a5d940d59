//! The link of the kit.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use hmem::{Span, total};
use link_api::{
    Channel, Connect, Event, Frame, FrameLink, FrameSource, Gone, Grant, Hint, LandAt, Landing, Link,
    NoDirect, OpId, Parting, Path, PeerId, PollFrame, Refused, Sent, SleepLink, Standing,
};
use wire::Addr;

use crate::Direct;
use crate::hub::{Hub, Item, Place, Station};

/// A link to others at the same hub. It holds the engine to the contract of [`Link`]: a frame that
/// is too long, bytes that no span has, or a poll before the last frame was released all panic.
#[derive(Debug)]
pub struct MemLink {
    pub(crate) hub: Rc<RefCell<Hub>>,
    pub(crate) at: Place,
    /// By number; `None`: it was given back.
    pub(crate) peers: Vec<Option<Place>>,
    held: Option<Vec<u8>>,
    /// A frame that was put back, and the peer it is of.
    back: Option<(PeerId, Vec<u8>)>,
    /// Handles that peers were sent, and have sent.
    pub(crate) exported: Vec<(Place, u64)>,
    pub(crate) learned: Vec<(Place, u64, u64)>,
    /// Operations in flight, whose bytes are copied when they are over.
    pub(crate) flying: Vec<Flight>,
    /// Something sleeps until there is an event.
    armed: bool,
    pub(crate) started: u64,
}

/// An operation in flight.
#[derive(Debug)]
pub(crate) struct Flight {
    pub(crate) id: OpId,
    pub(crate) dst: Vec<Span>,
    pub(crate) src: Vec<Span>,
    pub(crate) len: usize,
    /// The peer whose memory it accesses, and how many ended in its place before.
    pub(crate) peer: Place,
    pub(crate) epoch: u32,
    pub(crate) request: u64,
}

impl MemLink {
    /// A link at a new place of the hub.
    pub(crate) fn join(hub: &Rc<RefCell<Hub>>) -> MemLink {
        let at = hub.borrow_mut().join();
        MemLink::new(hub, at)
    }

    /// That of another process at the place of one that ended.
    pub(crate) fn rejoin(hub: &Rc<RefCell<Hub>>, at: Place) -> MemLink {
        hub.borrow_mut().rejoin(at);
        MemLink::new(hub, at)
    }

    fn new(hub: &Rc<RefCell<Hub>>, at: Place) -> MemLink {
        hub.borrow_mut().flying.insert(at, 0);
        let hub = hub.clone();
        let (exported, learned) = (Vec::new(), Vec::new());
        MemLink {
            hub,
            at,
            peers: Vec::new(),
            held: None,
            back: None,
            exported,
            learned,
            flying: Vec::new(),
            armed: false,
            started: 0,
        }
    }

    /// An operation in flight is over: the oldest, or any.
    fn finish_one(&mut self) -> Option<Event> {
        let mut hub = self.hub.borrow_mut();
        if self.flying.is_empty() || hub.held {
            return None;
        }
        let any_order = matches!(hub.direct, Direct::AnyOrder | Direct::Gets);
        let at = if any_order { hub.draw(self.flying.len()) } else { 0 };
        let Flight { id, dst, src, len, peer, epoch, request } = self.flying.remove(at);
        hub.flying.insert(self.at, self.flying.len());
        // What its owner took back while it was in flight is not accessed any more.
        let station = &hub.stations[peer];
        let is_there = station.alive && station.epoch == epoch && !hub.way(self.at, peer).cut;
        if !is_there || hub.is_allowed(peer, Grant::Request(request)).is_err() {
            return Some(Event::Done(id, false));
        }
        if hub.fail.1 > 0 {
            hub.fail.1 -= 1;
            // Half of it was made.
            hmem::copy(&dst, 0, &src, 0, len / 2);
            return Some(Event::Done(id, false));
        }
        // An adapter is free to begin with the last part of it.
        if let (true, [before @ .., last], 0) = (any_order && dst.len() > 1, &dst[..], hub.draw(2)) {
            let off = hmem::total(before);
            hmem::copy(&dst, off, &src, off, last.len().min(len.saturating_sub(off)));
            self.flying.push(Flight { id, dst, src, len, peer, epoch, request });
            hub.flying.insert(self.at, self.flying.len());
            return None;
        }
        hub.copies += 1;
        Some(Event::Done(id, hmem::copy(&dst, 0, &src, 0, len) == len))
    }

    /// Whether chance, one in `of`, has operations and frames come in another order than usual.
    fn draws_any_order(&self, of: usize) -> bool {
        let mut hub = self.hub.borrow_mut();
        matches!(hub.direct, Direct::AnyOrder | Direct::Gets) && hub.draw(of) == 0
    }

    /// Its place at the hub, which is its peers' index of it where a [`crate::Net`] introduced them.
    pub fn place(&self) -> Place {
        self.at
    }

    fn peer_at(&mut self, place: Place) -> PeerId {
        let at = |peers: &[Option<Place>], place| peers.iter().position(|p| *p == place);
        let known = at(&self.peers, Some(place)).or_else(|| at(&self.peers, None)).unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() - 1
        });
        self.peers[known] = Some(place);
        PeerId(known as u32)
    }

    pub(crate) fn place_of(&self, peer: PeerId) -> Place {
        self.peers[peer.0 as usize].expect("the number of a peer that was not given back")
    }

    fn hand_out(&mut self, from: PeerId, bytes: Vec<u8>) -> Frame {
        let len = bytes.len();
        self.held = Some(bytes);
        Frame { from, len, slot: 0 }
    }

    /// The rest of the frame at hand.
    fn bytes_of(&self, frame: &Frame, off: usize) -> &[u8] {
        let bytes = self.held.as_deref().expect("a frame that was not released");
        assert_eq!(bytes.len(), frame.len, "another frame is at hand");
        bytes.get(off..).unwrap_or_default()
    }

    /// Lets another node do what it is to do while this one waits, or copies.
    pub(crate) fn let_others_work(&self, copies: bool) {
        let work = self.hub.borrow_mut().meanwhile.take_if(|m| (m.at, m.copies) == (self.at, copies));
        if let Some(mut meanwhile) = work {
            (meanwhile.work)();
            self.hub.borrow_mut().meanwhile = Some(meanwhile);
        }
    }

    pub(crate) fn copy(
        &self,
        dst: &[Span],
        doff: usize,
        src: &[Span],
        soff: usize,
        len: usize,
    ) -> Result<(), NoDirect> {
        let host = |iov: &[Span]| hmem::can(iov, hmem::Caps::CMA);
        assert!(host(dst) && host(src), "direct access to memory that is not the host's");
        match hmem::copy(dst, doff, src, soff, len) == len {
            true => {
                self.hub.borrow_mut().accesses += 1;
                Ok(())
            }
            false => Err(NoDirect::Fault),
        }
    }

    /// [`Parting::Forgotten`].
    fn forget(&mut self, peer: PeerId) {
        if self.channel(peer) == Channel::None {
            self.peers[peer.0 as usize] = None;
        }
    }

    /// [`Parting::CutOff`].
    fn disconnect(&mut self, peer: PeerId) {
        let place = self.place_of(peer);
        let mut hub = self.hub.borrow_mut();
        let way = hub.way(place, self.at);
        // Nothing more comes from there, whatever is sent.
        if !std::mem::replace(&mut way.cut, true) {
            way.items.clear();
            way.items.push_back(Item::Closed(Gone::Denied));
            let back = hub.way(self.at, place);
            back.items.clear();
            back.items.push_back(Item::Closed(Gone::Reset));
        }
    }
}

impl Link for MemLink {
    fn addr(&self) -> Addr {
        self.hub.borrow().addr(self.at)
    }

    fn path(&self, _peer: PeerId) -> Path {
        self.hub.borrow().path
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        let known = self.hub.borrow().stations.iter().position(|s| s.addr == *addr);
        let place = known.unwrap_or_else(|| {
            // A name without an endpoint: a place of its own.
            let mut hub = self.hub.borrow_mut();
            hub.stations.push(Station { addr: *addr, alive: false, epoch: 0, memory: BTreeMap::new() });
            hub.stations.len() - 1
        });
        self.peer_at(place)
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.hub.borrow().addr(self.place_of(peer))
    }

    fn channel(&self, peer: PeerId) -> Channel {
        let (here, there) = (self.at, self.place_of(peer));
        let hub = self.hub.borrow();
        let way = |from, to| hub.ways.get(&(from, to));
        let is_connected = way(here, there).is_some_and(|w| w.used)
            || way(there, here).is_some_and(|w| w.used || !w.items.is_empty());
        match is_connected {
            false => Channel::None,
            true if hub.stations[there].alive => Channel::Open,
            true => Channel::Ended,
        }
    }

    fn connect(&mut self, peer: PeerId, how: Connect) -> Result<(), Refused> {
        let (there, is_connected) = (self.place_of(peer), self.channel(peer) != Channel::None);
        let mut hub = self.hub.borrow_mut();
        if how == Connect::Expected {
            assert!(!is_connected, "a peer that is there is expected");
            hub.expected.push((self.at, there));
        }
        if is_connected || how == Connect::Expected {
            return Ok(());
        }
        let alive = hub.stations[there].alive;
        let slow = hub.slow;
        let way = hub.way(self.at, there);
        match way.refuse {
            _ if slow => Err(Refused::Busy),
            Some(why) => Err(Refused::Gone(why)),
            None if !alive => Err(Refused::Gone(Gone::Refused)),
            None => {
                way.used = true;
                Ok(())
            }
        }
    }

    fn dismiss(&mut self, peer: PeerId, how: Parting) {
        match how {
            Parting::Forgotten => self.forget(peer),
            Parting::CutOff => self.disconnect(peer),
        }
    }

    fn describe(&self, _peer: PeerId) -> String {
        "in memory".into()
    }

    fn standing(&self) -> Vec<Standing> {
        vec![Standing { link: "memory", offers: Ok("this process".into()) }]
    }
}

impl MemLink {
    fn poll_any(&mut self) -> PollFrame {
        if !self.flying.is_empty() || self.hub.borrow().ends(self.at) {
            return PollFrame::Unknown;
        }
        match self.poll() {
            None => PollFrame::Nothing,
            Some(Event::Frame(frame)) => PollFrame::Frame(frame),
            Some(other) => panic!("{other:?} came out of nowhere"),
        }
    }

    fn poll_only(&mut self, from: PeerId) -> PollFrame {
        if !self.flying.is_empty() || self.hub.borrow().ends(self.at) || self.draws_any_order(5) {
            return PollFrame::Unknown;
        }
        assert!(self.held.is_none(), "polled before the last frame was released");
        let back = self.back.take_if(|(of, _)| *of == from).map(|(_, bytes)| bytes);
        // One frame alone can be put back here.
        let may_put_back = self.back.is_none();
        let next = || self.hub.borrow_mut().next_frame_of(self.place_of(from), self.at);
        match back.or_else(|| if may_put_back { next() } else { None }) {
            Some(bytes) => PollFrame::Frame(self.hand_out(from, bytes)),
            None => PollFrame::Nothing,
        }
    }
}

impl FrameLink for MemLink {
    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        let to = self.place_of(to);
        let mut hub = self.hub.borrow_mut();
        assert!(head.len() + len <= hub.path.max_frame, "a frame of {} + {len} bytes", head.len());
        assert!(off + len <= total(body), "bytes {off}+{len} of {body:?}");
        let (alive, capacity) = (hub.stations[to].alive, hub.capacity);
        let way = hub.way(self.at, to);
        if let Some(why) = way.refuse {
            return Err(Refused::Gone(why));
        }
        if !alive {
            return Err(Refused::Gone(Gone::Refused));
        }
        if way.cut {
            return Err(Refused::Gone(Gone::Reset));
        }
        if way.items.len() >= capacity {
            hub.busy += 1;
            return Err(Refused::Busy);
        }
        let mut bytes = vec![0; head.len() + len];
        bytes[..head.len()].copy_from_slice(head);
        if hmem::read(body, off, &mut bytes[head.len()..]) != len {
            return Err(Refused::Fault);
        }
        way.used = true;
        way.items.push_back(Item::Frame(bytes));
        Ok(if way.keeps { Sent::Kept } else { Sent::Done })
    }

    fn poll(&mut self) -> Option<Event> {
        assert!(self.held.is_none(), "polled before the last frame was released");
        self.armed = false;
        if let Some((from, bytes)) = self.back.take() {
            let len = bytes.len();
            self.held = Some(bytes);
            return Some(Event::Frame(Frame { from, len, slot: 0 }));
        }
        if !self.flying.is_empty() && self.draws_any_order(3) {
            return self.finish_one();
        }
        let next = self.hub.borrow_mut().next(self.at);
        let Some((from, item)) = next else {
            self.let_others_work(false);
            // It may take longer.
            if !self.flying.is_empty() && self.draws_any_order(2) {
                return None;
            }
            return self.finish_one();
        };
        let from = self.peer_at(from);
        Some(match item {
            Item::Frame(bytes) => {
                let len = bytes.len();
                self.held = Some(bytes);
                Event::Frame(Frame { from, len, slot: 0 })
            }
            Item::Closed(why) => {
                let place = self.place_of(from);
                self.exported.retain(|t| t.0 != place);
                self.learned.retain(|l| l.0 != place);
                Event::Closed(from, why)
            }
        })
    }

    fn poll_frame(&mut self, of: FrameSource) -> PollFrame {
        match of {
            FrameSource::Any | FrameSource::AnyAtHand => self.poll_any(),
            FrameSource::Only(from) => self.poll_only(from),
            FrameSource::Next(from) => {
                assert!(self.held.is_none(), "polled before the last frame was released");
                let next = self.hub.borrow_mut().next_in_row(self.place_of(from), self.at);
                next.map_or(PollFrame::Unknown, |bytes| PollFrame::Frame(self.hand_out(from, bytes)))
            }
        }
    }
    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        let rest = self.bytes_of(frame, off);
        let n = rest.len().min(dst.len());
        dst[..n].copy_from_slice(&rest[..n]);
        n
    }

    fn copy_out(&self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        let rest = self.bytes_of(frame, off);
        let all = rest.len().min(len);
        hmem::write(dst, doff, &rest[..all - usize::from(self.hub.borrow().short && all > 0)])
    }

    fn has_frames_of(&self, from: PeerId) -> bool {
        let way = (self.place_of(from), self.at);
        self.hub.borrow().ways.get(&way).is_some_and(|w| w.open > 0 && !w.items.is_empty())
    }

    fn land(&mut self, frame: Frame, to: Option<LandAt<'_>>) -> Landing {
        assert!(to.is_none(), "no frame of this link begins");
        let bytes = self.held.take().expect("put back what was not held");
        self.back = Some((frame.from, bytes));
        Landing::Left
    }

    fn release(&mut self, _frame: Frame) {
        assert!(self.held.take().is_some(), "released what was not held");
    }

    fn hint(&mut self, hint: Hint) {
        let Hint::ReceiveFrom(peer) = hint else { return };
        let place = peer.map(|peer| self.place_of(peer));
        self.hub.borrow_mut().awaited.insert(self.at, place);
    }

    fn has_room_to_spare(&mut self, to: PeerId, len: usize) -> bool {
        let to = self.place_of(to);
        let mut hub = self.hub.borrow_mut();
        let (capacity, spare) = (hub.capacity, hub.spare);
        let way = hub.way(self.at, to);
        2 * way.items.len() < capacity && way.bytes() + len <= spare
    }

    fn keeps(&mut self, to: PeerId) -> bool {
        let to = self.place_of(to);
        self.hub.borrow_mut().way(self.at, to).keeps
    }
}

impl SleepLink for MemLink {
    fn arm(&mut self) -> bool {
        if !self.flying.is_empty() || self.back.is_some() {
            return false;
        }
        let hub = self.hub.borrow();
        self.armed =
            !hub.ways.iter().any(|(&(_, to), way)| to == self.at && way.open > 0 && !way.items.is_empty());
        self.armed
    }

    fn is_armed(&self) -> bool {
        self.armed
    }
}

//! Frames and channels of a [`KeyedLink`].

use std::collections::{HashMap, HashSet};
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use hmem::{Span, total};
use link_api::{
    Channel, Connect, Event, Frame, FrameLink, FrameSource, Gone, Link, OpId, Parting, Path, PeerId,
    PollFrame, Refused, RmaCaps, Sent, SleepLink, Standing, WaitFd,
};
use wire::{Addr, Handle};

use super::carrier::Shared;
use super::key::Id;
use super::stream::{self, HEADER, Next};

/// What an endpoint has of a peer.
#[derive(Debug)]
pub(super) struct Peer {
    addr: Addr,
    /// The other end of the channel.
    pub(super) channel: Option<Id>,
    /// Nothing more is read from it.
    cut: bool,
    /// A frame to it found no channel, or no room.
    wants: bool,
    /// Keys that were exported to it.
    pub(super) exported: HashSet<u64>,
    /// What it exported.
    pub(super) learned: Vec<Handle>,
}

impl Peer {
    fn new(addr: Addr) -> Peer {
        Peer { addr, channel: None, cut: false, wants: false, exported: HashSet::new(), learned: Vec::new() }
    }
}

/// One endpoint's link to all others of a [`super::KeyedNet`].
#[derive(Debug)]
pub struct KeyedLink {
    pub(super) shared: Arc<Shared>,
    pub(super) id: Id,
    addr: Addr,
    bell: UnixStream,
    pub(super) peers: Vec<Peer>,
    ids: HashMap<Addr, PeerId>,
    free: Vec<PeerId>,
    held: Option<Vec<u8>>,
    turn: usize,
    /// Peers that receives wait for, and until when.
    expected: Vec<(PeerId, Instant)>,
}

impl KeyedLink {
    const PATH: Path = Path {
        link: "keyed",
        max_frame: Path::LEAST_FRAME,
        eager: 1 << 10,
        eager_in_a_row: 2 << 10,
        eager_one_way: 2 << 10,
        rma: RmaCaps::HOST_HANDLES,
        least_get: 0,
    };

    pub(super) fn new(shared: &Arc<Shared>, id: Id, addr: Addr, bell: UnixStream) -> KeyedLink {
        let (shared, ids) = (Arc::clone(shared), HashMap::new());
        let (peers, free, expected) = Default::default();
        KeyedLink { shared, id, addr, bell, peers, ids, free, held: None, turn: 0, expected }
    }

    /// The channel to a peer, or why there is none: one is made meanwhile if that can be.
    fn channel_to(&mut self, peer: PeerId) -> Result<Id, Refused> {
        self.adopt();
        let known = &self.peers[peer.0 as usize];
        if let Some(id) = known.channel {
            let wire = self.shared.lock();
            let lives = wire.stations.contains_key(&id)
                && wire.ways.get(&(self.id, id)).is_some_and(|way| way.end.is_none());
            return if lives && !known.cut { Ok(id) } else { Err(Refused::Gone(Gone::Reset)) };
        }
        let mut wire = self.shared.lock();
        let Some(&id) = wire.names.get(&known.addr) else { return Err(Refused::Gone(Gone::Refused)) };
        let call = (self.id, id);
        if !wire.calls.contains(&call) {
            wire.calls.push(call);
            self.shared.hurry();
        }
        Err(Refused::Busy)
    }

    /// Takes in channels that were made since.
    fn adopt(&mut self) {
        let found: Vec<(Id, Addr)> = {
            let wire = self.shared.lock();
            let taken = |id: &Id| self.peers.iter().any(|p| p.channel == Some(*id));
            let ways = wire.ways_to(self.id).into_iter().map(|(from, _)| from).filter(|id| !taken(id));
            ways.map(|id| (id, wire.known[&id])).collect()
        };
        for (id, addr) in found {
            let at = self.peer(&addr).0 as usize;
            // A successor waits for the end of the one before.
            self.peers[at].channel.get_or_insert(id);
        }
    }

    /// The next frame of a peer, or its end.
    fn next_of(&mut self, peer: PeerId) -> Option<Event> {
        let known = &self.peers[peer.0 as usize];
        let from = known.channel?;
        if known.cut {
            return Some(self.end(peer, from, Gone::Denied));
        }
        let mut wire = self.shared.lock();
        let window = wire.pace.window;
        let way = wire.ways.get_mut(&(from, self.id))?;
        let next = stream::take(&mut way.arrived, Self::PATH.max_frame);
        match next {
            Next::Frame(bytes) => {
                let in_flight = way.in_flight();
                if way.starved.take_if(|len| in_flight + *len <= window).is_some() {
                    wire.wake(from);
                }
                drop(wire);
                let len = bytes.len();
                self.held = Some(bytes);
                Some(Event::Frame(Frame { from: peer, len, slot: 0 }))
            }
            Next::Part => {
                let why = way.end.filter(|_| way.has_ended())?;
                drop(wire);
                Some(self.end(peer, from, why))
            }
            Next::Nonsense => {
                drop(wire);
                Some(self.end(peer, from, Gone::Denied))
            }
        }
    }

    /// A channel is no more.
    fn end(&mut self, peer: PeerId, id: Id, why: Gone) -> Event {
        let mut wire = self.shared.lock();
        wire.ways.remove(&(id, self.id));
        if let Some(way) = wire.ways.get_mut(&(self.id, id)) {
            way.end.get_or_insert(Gone::Reset);
        }
        if let Some(here) = wire.stations.get_mut(&self.id) {
            here.exposed.revoked.retain(|(from, _)| *from != id);
        }
        drop(wire);
        self.shared.hurry();
        let known = &mut self.peers[peer.0 as usize];
        *known = Peer::new(known.addr);
        Event::Closed(peer, why)
    }

    /// The next access that is over; and the peer that is waited for in vain.
    fn next_done(&mut self) -> Option<(OpId, bool)> {
        let mut wire = self.shared.lock();
        let here = wire.stations.get_mut(&self.id)?;
        (here.armed, here.nudged) = (false, false);
        here.done.pop_front()
    }

    fn next_missed(&mut self) -> Option<Event> {
        let now = Instant::now();
        for (peer, until) in std::mem::take(&mut self.expected) {
            if self.channel(peer) != Channel::None {
                continue;
            }
            if until > now {
                self.expected.push((peer, until));
                continue;
            }
            match self.channel_to(peer) {
                Ok(_) => {}
                Err(Refused::Gone(why)) => return Some(Event::Closed(peer, why)),
                Err(_) => self.expected.push((peer, until)),
            }
        }
        self.set_alarm();
        None
    }

    fn set_alarm(&mut self) {
        let first = self.expected.iter().map(|(_, until)| *until).min();
        let mut wire = self.shared.lock();
        let soon = Instant::now() + wire.pace.pause;
        if let Some(here) = wire.stations.get_mut(&self.id) {
            here.alarm = first.map(|at| at.max(soon));
        }
        self.shared.hurry();
    }

    fn rest(&self, frame: &Frame, off: usize) -> &[u8] {
        let bytes = self.held.as_deref().expect("a frame that was not released");
        assert_eq!(bytes.len(), frame.len, "another frame is at hand");
        bytes.get(off..).unwrap_or_default()
    }

    /// [`Parting::Forgotten`].
    fn forget(&mut self, peer: PeerId) {
        let addr = self.peers[peer.0 as usize].addr;
        if self.channel(peer) != Channel::None || self.ids.get(&addr) != Some(&peer) {
            return;
        }
        self.ids.remove(&addr);
        self.expected.retain(|(known, _)| *known != peer);
        self.free.push(peer);
    }

    /// [`Parting::CutOff`].
    fn disconnect(&mut self, peer: PeerId) {
        self.adopt();
        let known = &mut self.peers[peer.0 as usize];
        known.cut = known.channel.is_some();
    }
}

impl Link for KeyedLink {
    fn addr(&self) -> Addr {
        self.addr
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        if let Some(known) = self.ids.get(addr) {
            return *known;
        }
        let id = self.free.pop().unwrap_or(PeerId(self.peers.len() as u32));
        match self.peers.get_mut(id.0 as usize) {
            Some(old) => *old = Peer::new(*addr),
            None => self.peers.push(Peer::new(*addr)),
        }
        self.ids.insert(*addr, id);
        id
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.peers[peer.0 as usize].addr
    }

    fn path(&self, _peer: PeerId) -> Path {
        Self::PATH
    }

    fn channel(&self, peer: PeerId) -> Channel {
        let known = &self.peers[peer.0 as usize];
        let wire = self.shared.lock();
        match known.channel {
            Some(id) if !wire.stations.contains_key(&id) => Channel::Ended,
            Some(_) => Channel::Open,
            None if wire.ways_to(self.id).iter().any(|(from, _)| wire.known[from] == known.addr) => {
                Channel::Open
            }
            None => Channel::None,
        }
    }

    fn connect(&mut self, peer: PeerId, how: Connect) -> Result<(), Refused> {
        if how != Connect::Expected {
            let found = self.channel_to(peer).map(drop);
            self.peers[peer.0 as usize].wants |= found == Err(Refused::Busy);
            return found;
        }
        if self.expected.iter().all(|(known, _)| *known != peer) {
            let until = Instant::now() + self.shared.lock().pace.patience;
            self.expected.push((peer, until));
            self.set_alarm();
        }
        Ok(())
    }

    fn dismiss(&mut self, peer: PeerId, how: Parting) {
        match how {
            Parting::Forgotten => self.forget(peer),
            Parting::CutOff => self.disconnect(peer),
        }
    }

    fn describe(&self, peer: PeerId) -> String {
        let state = if self.channel(peer) == Channel::None { "not connected" } else { "connected" };
        format!("keyed, {state}, frames of {} bytes, memory by keys", Self::PATH.max_frame)
    }

    fn standing(&self) -> Vec<Standing> {
        vec![Standing { link: Self::PATH.link, offers: Ok("memory by keys, in this process".into()) }]
    }
}

impl FrameLink for KeyedLink {
    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        let n = head.len() + len;
        assert!(n <= Self::PATH.max_frame, "frame longer than Path::max_frame");
        assert!(off + len <= total(body), "bytes {off}+{len} of {body:?}");
        let id = match self.channel_to(to) {
            Err(Refused::Busy) => {
                self.peers[to.0 as usize].wants = true;
                return Err(Refused::Busy);
            }
            other => other?,
        };
        let mut bytes = vec![0; n];
        bytes[..head.len()].copy_from_slice(head);
        if hmem::read(body, off, &mut bytes[head.len()..]) != len {
            return Err(Refused::Fault);
        }
        let mut wire = self.shared.lock();
        let window = wire.pace.window;
        let Some(way) = wire.ways.get_mut(&(self.id, id)) else {
            return Err(Refused::Gone(Gone::Reset));
        };
        if way.in_flight() + HEADER + n > window {
            way.starved = Some(HEADER + n);
            self.peers[to.0 as usize].wants = true;
            return Err(Refused::Busy);
        }
        way.transit.extend(stream::header(n));
        way.transit.extend(bytes);
        self.peers[to.0 as usize].wants = false;
        self.shared.hurry();
        Ok(Sent::Done)
    }

    fn poll(&mut self) -> Option<Event> {
        assert!(self.held.is_none(), "polled before the last frame was released");
        let mut rung = [0; 64];
        while self.bell.read(&mut rung).is_ok_and(|n| n > 0) {}
        if let Some((op, ok)) = self.next_done() {
            return Some(Event::Done(op, ok));
        }
        self.adopt();
        let peers = self.peers.len();
        for _ in 0..peers {
            self.turn = (self.turn + 1) % peers;
            if let Some(event) = self.next_of(PeerId(self.turn as u32)) {
                return Some(event);
            }
        }
        if self.expected.is_empty() { None } else { self.next_missed() }
    }

    fn poll_frame(&mut self, of: FrameSource) -> PollFrame {
        match of {
            FrameSource::Any => {}
            FrameSource::AnyAtHand | FrameSource::Only(_) => return PollFrame::Unknown,
            FrameSource::Next(from) => {
                if self.peers[from.0 as usize].cut || !self.has_frames_of(from) {
                    return PollFrame::Unknown;
                }
                return match self.next_of(from) {
                    Some(Event::Frame(frame)) => PollFrame::Frame(frame),
                    other => unreachable!("a whole frame was there, not {other:?}"),
                };
            }
        }
        // Whether ends or accesses come first is for a poll to find.
        if self.shared.lock().ways_to(self.id).iter().any(|(_, ready)| *ready) {
            return PollFrame::Unknown;
        }
        let wire = self.shared.lock();
        match wire.stations.get(&self.id) {
            Some(here) if here.done.is_empty() && self.expected.is_empty() => PollFrame::Nothing,
            _ => PollFrame::Unknown,
        }
    }

    fn has_frames_of(&self, from: PeerId) -> bool {
        let known = &self.peers[from.0 as usize];
        let Some(id) = known.channel.filter(|_| !known.cut) else { return false };
        let wire = self.shared.lock();
        wire.ways.get(&(id, self.id)).is_some_and(|w| stream::starts_whole(&w.arrived, Self::PATH.max_frame))
    }

    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        let rest = self.rest(frame, off);
        let n = rest.len().min(dst.len());
        dst[..n].copy_from_slice(&rest[..n]);
        n
    }

    fn copy_out(&self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        let rest = self.rest(frame, off);
        hmem::write(dst, doff, &rest[..rest.len().min(len)])
    }

    fn release(&mut self, _frame: Frame) {
        assert!(self.held.take().is_some(), "released what was not held");
    }

    fn has_room_to_spare(&mut self, to: PeerId, _: usize) -> bool {
        let Ok(id) = self.channel_to(to) else { return false };
        let wire = self.shared.lock();
        wire.ways.get(&(self.id, id)).is_some_and(|way| 2 * way.in_flight() < wire.pace.window)
    }
}

impl SleepLink for KeyedLink {
    fn arm(&mut self) -> bool {
        if self.held.is_some() || self.peers.iter().any(|p| p.cut) {
            return false;
        }
        // No poll reports what was wanted and is there now.
        self.adopt();
        let mut wire = self.shared.lock();
        let id = self.id;
        let has = |channel| wire.ways.get(&(id, channel)).is_none_or(|way| way.starved.is_none());
        let mut served = false;
        for peer in self.peers.iter_mut().filter(|peer| peer.wants) {
            // Nor does it report one that ended before there was a channel to it.
            if peer.channel.map_or(!wire.names.contains_key(&peer.addr), has) {
                (peer.wants, served) = (false, true);
            }
        }
        let ready = served || wire.ways_to(id).iter().any(|(_, ready)| *ready);
        let Some(here) = wire.stations.get_mut(&self.id) else { return false };
        here.armed = !ready && !here.nudged && here.done.is_empty();
        here.armed
    }

    fn is_armed(&self) -> bool {
        self.shared.lock().stations.get(&self.id).is_some_and(|here| here.armed)
    }

    fn wait_fd(&self, which: WaitFd) -> Option<RawFd> {
        which.only(self.bell.as_raw_fd())
    }
}

impl Drop for KeyedLink {
    fn drop(&mut self) {
        self.shared.leave(self.id);
    }
}

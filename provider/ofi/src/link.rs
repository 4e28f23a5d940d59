//! An [`OfiLink`]'s state.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::time::{Duration, Instant};

use hmem::Kind;
use ipc::{Bell, Poller, Timer, random};
use link_api::{Event, Frame, Gone, Path, PeerId, RmaCaps, RmaLink};
use wire::session::{JobKey, Mark};

use crate::below::{Below, Dest, Usage};
use crate::channel::{BEFORE, Came};
use crate::fds::{Fd, is_readable, is_shallow};
use crate::peer::{Peer, Stage};
use crate::reading::Reading;

/// Shorter messages fit into one frame, whose copy takes less than a registration and a read
/// (docs/measurements/hosts.md).
const LEAST_READ: usize = 64 << 10;
/// How often peers that are met, or lost, are looked after.
const TICK: Duration = Duration::from_millis(50);
/// How often a provider without a descriptor is looked at while this side sleeps: at first, and after so many
/// times in vain.
const LOOK: Duration = Duration::from_millis(2);
const IDLE_LOOK: Duration = Duration::from_millis(10);
const IDLE: u32 = 50;
/// After so many sleeps in a row that the fabric's descriptor kept from being any, with nothing there, it is
/// not watched.
const RESTLESS: u32 = 50;

/// How to open an [`OfiLink`].
#[derive(Clone, Debug)]
pub struct OfiOptions {
    /// What endpoints of one job have in common.
    pub key: JobKey,
    /// Whether frames may go by the connection where the fabric does not lead to a peer.
    pub fallback: bool,
    /// How long it may take until that turns out.
    pub patience: Duration,
    /// How long after a message was lost the connection may take to tell the end of the peer.
    pub grace: Duration,
    /// How long a read may take that a peer which lives wants to be over.
    pub leave: Duration,
    /// How long an endpoint that is closed waits at most until its peers have what was sent.
    pub linger: Duration,
    /// See [`Path::eager`].
    pub eager: usize,
    /// See [`Path::eager_in_a_row`].
    pub eager_in_a_row: usize,
    /// See [`Path::least_get`].
    pub least_get: usize,
}

impl OfiOptions {
    /// For endpoints with this key.
    pub fn new(key: JobKey) -> OfiOptions {
        OfiOptions {
            key,
            fallback: true,
            patience: Duration::from_secs(30),
            grace: Duration::from_secs(5),
            leave: Duration::from_millis(500),
            linger: Duration::from_secs(1),
            eager: 16 << 10,
            eager_in_a_row: 32 << 10,
            least_get: LEAST_READ,
        }
    }
}

/// The frame at hand.
#[derive(Debug)]
pub(crate) enum Held {
    /// Of the fabric: the peer, which generation of it, and where it is.
    Fabric(PeerId, u32, Came),
    /// Of the connection, as that knows it.
    Base(Frame),
}

/// What is to be told.
#[derive(Debug)]
pub(crate) enum Out {
    Event(Event),
    /// A frame by the fabric: from which generation of which peer, and where it is.
    Frame(PeerId, u32, Came),
    /// One by the connection, which is not asked for more until it is given back.
    Base(Frame),
}

/// One endpoint of a fabric, `F`, and its connections, `B`.
#[derive(Debug)]
pub struct OfiLink<B: RmaLink, F: Below> {
    // Closed in this order: the end of a connection is that of the peer, and a fabric that fails before would
    // look like a fault.
    pub(crate) base: B,
    pub(crate) below: Option<F>,
    pub(crate) options: OfiOptions,
    /// Why there is no fabric, or no better one.
    pub(crate) lacks: String,
    /// What a fabric's buffers can hold of a frame.
    pub(crate) most: usize,
    pub(crate) window: u32,
    pub(crate) peers: Vec<Peer>,
    pub(crate) out: VecDeque<Out>,
    pub(crate) held: Option<Held>,
    /// A frame of the connection is in `out`, or held.
    pub(crate) base_busy: bool,
    /// What is still to be said by the connection.
    pub(crate) saying: VecDeque<(PeerId, Vec<u8>)>,
    /// Peers that are met, or lost, or have said bye.
    pub(crate) restless: Vec<PeerId>,
    /// Peers to which a send found no way.
    pub(crate) wanting: Vec<PeerId>,
    /// One that has ended, though not all it sent has come: until when that is waited for.
    pub(crate) lame: Option<(PeerId, Gone, Instant)>,
    /// Peers whose frames go by the connection.
    pub(crate) by_base: usize,
    pub(crate) looks: u32,
    /// How often a sleep has ended with nothing from the fabric.
    pub(crate) vain: u32,
    /// Of these, how many in a row began with its descriptor readable.
    pub(crate) readable: u32,
    pub(crate) generation: u32,
    /// The fabric does nothing any more.
    pub(crate) failed: bool,
    /// Reads of peers' memory.
    pub(crate) reading: Reading,
    /// Its descriptor, if that is of no use any more, until that was told.
    pub(crate) worn: Option<RawFd>,
    /// There is a fabric without a descriptor that would be of use.
    pub(crate) unseen: bool,
    pub(crate) poller: Poller,
    pub(crate) timer: Timer,
    pub(crate) period: Duration,
    pub(crate) bell: Bell,
    pub(crate) armed: bool,
    /// Sends say that a frame is kept.
    pub(crate) tells_kept: bool,
    /// A sleeper was woken for what the connections have told.
    pub(crate) nudged: bool,
    pub(crate) pid: u32,
}

impl<B: RmaLink, F: Below> OfiLink<B, F> {
    /// What was in the way of fabrics that would have been better, for people.
    pub fn note_refused(&mut self, refused: &[String]) {
        if self.below.is_some() {
            self.lacks = refused.join("; ");
        }
    }

    /// An endpoint whose connections are `base`'s, which no peer is known to yet, with a fabric or (and why)
    /// without.
    pub fn new(base: B, below: Result<F, String>, options: OfiOptions) -> io::Result<OfiLink<B, F>> {
        let (below, lacks) = match below {
            Ok(below) => (Some(below), String::new()),
            Err(why) => (None, why),
        };
        let (poller, timer, bell) = (Poller::new()?, Timer::new(Duration::ZERO)?, Bell::new()?);
        let unseen = below.as_ref().is_some_and(|b| b.wait_fd().is_none_or(|fd| !is_shallow(fd)));
        let most = below.as_ref().map_or(0, |b| b.most().saturating_sub(BEFORE));
        let window = below.as_ref().map_or(0, F::window);
        let reading = Reading::new(below.as_ref().and_then(F::reads));
        let link = OfiLink {
            base,
            below,
            options,
            lacks,
            most,
            window,
            peers: Vec::new(),
            out: VecDeque::new(),
            held: None,
            base_busy: false,
            saying: VecDeque::new(),
            restless: Vec::new(),
            wanting: Vec::new(),
            lame: None,
            by_base: 0,
            looks: 0,
            vain: 0,
            readable: 0,
            generation: u32::from_le_bytes(random()?),
            failed: false,
            reading,
            worn: None,
            unseen,
            poller,
            timer,
            period: Duration::ZERO,
            bell,
            armed: false,
            tells_kept: false,
            nudged: false,
            pid: std::process::id(),
        };
        for fd in link.fds() {
            link.poller.add(&Fd(fd), 0)?;
        }
        Ok(link)
    }

    /// The descriptor of the fabric, if one is of use.
    pub(crate) fn fabric_fd(&self) -> Option<RawFd> {
        self.below.as_ref().and_then(F::wait_fd).filter(|_| !self.unseen)
    }

    /// All descriptors that tell of something.
    pub(crate) fn fds(&self) -> Vec<RawFd> {
        let own = [self.timer.as_raw_fd(), self.bell.as_raw_fd()];
        let lender = self.below.as_ref().and_then(F::lender_fd);
        own.into_iter().chain(self.base.wait_fds()).chain(self.fabric_fd()).chain(lender).collect()
    }

    /// The provider below, for tests.
    pub fn below(&mut self) -> Option<&mut F> {
        self.below.as_mut()
    }

    /// Where messages to a peer go, and what the next one begins with, for tests.
    pub fn next_mark(&self, peer: PeerId) -> Option<(Dest, Mark)> {
        let channel = self.known(peer)?.channel.as_ref()?;
        let (slot, generation) = (channel.far.slot, channel.far.generation);
        Some((channel.far.dest, Mark { slot, generation, number: channel.sent }))
    }

    #[inline]
    pub(crate) fn at(&mut self, peer: PeerId) -> &mut Peer {
        self.list(peer);
        &mut self.peers[peer.0 as usize]
    }

    /// What there is of a peer, if anything.
    #[inline]
    pub(crate) fn known(&self, peer: PeerId) -> Option<&Peer> {
        self.peers.get(peer.0 as usize)
    }

    /// Makes room for what there is of a peer.
    pub(crate) fn list(&mut self, peer: PeerId) {
        while self.peers.len() <= peer.0 as usize {
            self.generation = self.generation.wrapping_add(1);
            self.peers.push(Peer::new(self.generation));
        }
    }

    /// Whether a frame is with the provider below still, or was lost there.
    pub(crate) fn keeps_frames(&self, peer: PeerId) -> bool {
        let (Some(below), Some(at)) = (&self.below, self.known(peer)) else { return false };
        at.end.is_broken() || at.channel.as_ref().is_some_and(|channel| channel.keeps(below))
    }

    /// Forgets all of a peer but that it is there: what follows is another one, or another time.
    pub(crate) fn reset(&mut self, peer: PeerId) {
        self.list(peer);
        // One that has said bye wants none of those that are under way.
        let losing = self.keeps_frames(peer) && !self.at(peer).farewell.is_heard();
        self.at(peer).end.lose(losing);
        self.end_dealings(peer);
        self.generation = self.generation.wrapping_add(1);
        let at = &mut self.peers[peer.0 as usize];
        let fresh = at.renewed(self.generation);
        let old = std::mem::replace(at, fresh);
        if old.stage == Stage::Base {
            self.by_base -= 1;
        }
        if let (Some(channel), Some(below)) = (old.channel, &mut self.below) {
            below.part(channel.far.dest);
        }
        self.saying.retain(|(to, _)| *to != peer);
    }

    pub(crate) fn is_own(&self, peer: PeerId) -> bool {
        self.base.peer_addr(peer) == self.base.addr()
    }

    /// Whether frames to and from this peer go by the connection.
    pub(crate) fn goes_by_base(&self, peer: PeerId) -> bool {
        self.below.is_none() || self.known(peer).is_some_and(|p| p.stage == Stage::Base) || self.is_own(peer)
    }

    /// What the way by the fabric is like.
    pub(crate) fn fabric_path(&self) -> Path {
        let most = self.most - wire::EAGER_HEAD;
        let eager = self.options.eager.min(most);
        let in_a_row = self.options.eager_in_a_row.max(eager).min(most);
        Path {
            link: "ofi",
            max_frame: self.most,
            eager,
            eager_in_a_row: in_a_row,
            eager_one_way: in_a_row,
            rma: match self.reading.most {
                Some(_) if self.gets_devices() => RmaCaps::HOST_GETS | RmaCaps::DEVICE_GETS,
                Some(_) => RmaCaps::HOST_GETS,
                None => RmaCaps::empty(),
            },
            least_get: self.options.least_get,
        }
    }

    /// Whether memory of some kind of devices is read by the provider below, from there or into it, as far as
    /// is known.
    pub(crate) fn gets_devices(&self) -> bool {
        let is_for = |below: &F, kind| [Usage::Lent, Usage::ReadInto].iter().any(|u| below.reaches(kind, *u));
        let is_got = |kind| self.below.as_ref().is_some_and(|below| is_for(below, kind));
        [Kind::Cuda, Kind::Rocr, Kind::Ze, Kind::Fake].into_iter().any(is_got)
    }

    /// A peer is to be looked after.
    pub(crate) fn note_restless(&mut self, peer: PeerId) {
        let at = self.at(peer);
        if at.upkeep.list() {
            self.restless.push(peer);
        }
        self.set_timer();
    }

    /// A send finds no way, or no room.
    pub(crate) fn want(&mut self, peer: PeerId) {
        if self.at(peer).upkeep.want() {
            self.wanting.push(peer);
        }
    }

    /// A sleep is over: whether something has come by the fabric.
    pub(crate) fn woke(&mut self, found: bool) {
        self.timer.clear();
        let idle = self.vain >= IDLE;
        self.vain = if found { 0 } else { self.vain.saturating_add(1) };
        if idle != (self.vain >= IDLE) {
            self.set_timer();
        }
    }

    /// A sleep begins, for which the fabric has said that it has nothing. One whose descriptor is readable
    /// all the same, time and again with nothing there, is looked at from now on like one without.
    pub(crate) fn falls_asleep(&mut self) {
        let Some(fd) = self.fabric_fd().filter(|_| self.vain > 0 && !self.failed) else {
            self.readable = 0;
            return;
        };
        self.readable = if is_readable(fd) { self.readable + 1 } else { 0 };
        if self.readable < RESTLESS {
            return;
        }
        log::info!(
            "{}: the fabric's descriptor is readable all the time, and not watched any more",
            self.base.addr()
        );
        self.unwatch(fd);
        if let Some(below) = &mut self.below {
            below.unwatch_lender();
        }
        self.unseen = true;
        self.set_timer();
    }

    /// The fabric's descriptor may be readable for good.
    pub(crate) fn unwatch(&mut self, fd: RawFd) {
        self.poller.remove(&Fd(fd));
        self.worn = Some(fd);
    }

    /// Sets the timer, by what there is to wait for.
    pub(crate) fn set_timer(&mut self) {
        let unseen = self.unseen && self.peers.iter().any(|p| p.meeting.is_announced())
            || self.below.as_ref().is_some_and(F::is_read_unseen)
            || self.reading.is_waiting();
        let period = if unseen {
            if self.vain < IDLE { LOOK } else { IDLE_LOOK }
        } else if !self.restless.is_empty() || !self.saying.is_empty() || self.lame.is_some() {
            TICK
        } else {
            Duration::ZERO
        };
        if period != self.period && self.timer.set(period).is_ok() {
            self.period = period;
        }
    }
}

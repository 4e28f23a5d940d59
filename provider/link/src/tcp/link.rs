//! A [`TcpLink`]'s state.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::{Duration, Instant};

use ipc::{Bell, Poller, Strangers, Timer, Unshared, Watch};
use link_api::{Event, Gone, Path, PeerId, RmaCaps};
use wire::Addr;
use wire::session::{Hello, Role};

use super::agreement::Agreements;
use super::channel::connection::Channel;
use super::channel::incoming::Step;
use super::channel::pool::{MAX_FRAME, Pool};
use super::channel::rails::Rails;
use super::farewell;
use super::handshake::Guest;
use super::listen;
use super::names::Names;
use super::options::TcpOptions;
use super::peer::Peer;
use super::promises::Promises;
use super::sock;
use super::watched::token;
use crate::name::{Name, Port};

/// Of so many looks, all but one are at one connection alone: as long as others have nothing the number is
/// doubled.
pub(super) const ROUND: std::ops::RangeInclusive<u32> = 4..=32;

/// The frame at hand.
#[derive(Debug)]
pub(super) enum Held {
    /// Of a channel, and its bytes.
    Of(PeerId, usize),
    /// Of this endpoint itself.
    Own(Vec<u8>),
}

/// One endpoint's connections to all others.
#[derive(Debug)]
pub struct TcpLink {
    pub(super) addr: Addr,
    /// The address that connections are made from, unless the endpoint serves all of the host's.
    pub(super) source: Option<SocketAddr>,
    pub(super) options: TcpOptions,
    pub(super) names: Names,
    pub(super) listener: Unshared,
    /// Those of further addresses, and all addresses at which rails may be made.
    pub(super) further: Vec<Unshared>,
    pub(super) rails_at: Vec<SocketAddr>,
    /// Peers whose connections may have rails.
    pub(super) railed: Vec<PeerId>,
    /// Given up to take in a caller for which there is no other descriptor, so as to tell it.
    pub(super) spare: Option<Unshared>,
    /// Whether the listener is watched: not while there are no descriptors, or too many guests.
    pub(super) listens: bool,
    pub(super) poller: Poller,
    pub(super) timer: Timer,
    pub(super) period: Duration,
    pub(super) bell: Bell,
    pub(super) instance: u64,
    /// Which connections count, and those that are not confirmed.
    pub(super) agreed: Agreements,
    pub(super) promises: Promises,
    pub(super) peers: Vec<Peer>,
    pub(super) ids: HashMap<Addr, PeerId>,
    pub(super) free: Vec<PeerId>,
    pub(super) guests: Strangers<IpAddr, Guest>,
    /// Peers that may have a frame.
    pub(super) ready: VecDeque<PeerId>,
    pub(super) events: VecDeque<Event>,
    /// Peers to which a send found no way.
    pub(super) wanting: Vec<PeerId>,
    /// Peers that are called, or expected.
    pub(super) pending: Vec<PeerId>,
    /// The peer whose connection is looked at without asking whether it has something.
    pub(super) hot: Option<PeerId>,
    /// Looks at it since the last one at all, and how many there may be.
    pub(super) looks: u32,
    pub(super) round: u32,
    /// The connection that is looked at and not watched.
    pub(super) alone: Option<PeerId>,
    /// When all were looked at last, while the timer ticks.
    pub(super) looked: Instant,
    pub(super) pool: Pool,
    pub(super) held: Option<Held>,
    /// Frames from this endpoint to itself, and their bytes.
    pub(super) own: VecDeque<Vec<u8>>,
    pub(super) own_bytes: usize,
    pub(super) armed: bool,
    /// It was armed before the look that is under way, which something may have woken a sleeper for.
    pub(super) slept: bool,
    /// Frames are told of when they begin; and how many have landed.
    pub(super) early: bool,
    pub(super) landings: u64,
    /// A send says where something of it is kept.
    pub(super) tells_kept: bool,
    pub(super) warned: bool,
    /// What lacks for peers that are called, as an errno; and for those that call, since when they wait.
    pub(super) lacks: (Option<i32>, Option<(i32, Instant)>),
    /// A connection that is being made has come further.
    pub(super) met: bool,
    /// The process whose endpoint it is.
    pid: u32,
    _name: Option<Name>,
}

impl TcpLink {
    /// Opens an endpoint under this name.
    pub fn bind(bind: std::net::SocketAddr, options: TcpOptions) -> io::Result<TcpLink> {
        let (name, ()) = Name::claim(Some(bind), Port::Listens, |_| Ok(()))?;
        let mut link = TcpLink::open(&name, options)?;
        link._name = Some(name);
        Ok(link)
    }

    /// Opens an endpoint whose name was claimed.
    pub(crate) fn open(name: &Name, options: TcpOptions) -> io::Result<TcpLink> {
        let (poller, timer, listener) = (Poller::new()?, Timer::new(Duration::ZERO)?, name.socket()?);
        let bell = Bell::new()?;
        poller.add(&listener, token::LISTENER)?;
        poller.add(&timer, token::TIMER)?;
        poller.add(&bell, token::BELL)?;
        let addr = name.addr();
        farewell::stay_at_exit(options.linger);
        let options = TcpOptions { rails: options.rails.clamp(1, wire::session::MOST_RAILS), ..options };
        let (mut further, rails_at) = listen::for_rails(name, &options);
        further.extend(name.further_socket()?);
        // What is accepted has the options of the socket that it was accepted on (tcp(7)): that is once for
        // all callers.
        sock::tune(&listener, options.timeout)?;
        for further in &further {
            sock::tune(further, options.timeout)?;
            poller.add(further, token::FURTHER)?;
        }
        let guests = Strangers::new(options.guests);
        Ok(TcpLink {
            addr,
            source: (!name.is_wildcard()).then_some(addr.sock()),
            names: Names::new(options.secret),
            options,
            spare: listener.try_clone().ok(),
            listener,
            further,
            rails_at,
            railed: Vec::new(),
            listens: true,
            poller,
            timer,
            period: Duration::ZERO,
            bell,
            instance: crate::random()?,
            agreed: Agreements::new(addr),
            promises: Promises::default(),
            peers: Vec::new(),
            ids: HashMap::new(),
            free: Vec::new(),
            guests,
            ready: VecDeque::new(),
            events: VecDeque::new(),
            wanting: Vec::new(),
            pending: Vec::new(),
            hot: None,
            looks: 0,
            round: *ROUND.start(),
            alone: None,
            looked: Instant::now(),
            pool: Pool::default(),
            held: None,
            own: VecDeque::new(),
            own_bytes: 0,
            armed: false,
            slept: false,
            early: false,
            tells_kept: false,
            landings: 0,
            warned: false,
            lacks: (None, None),
            met: false,
            pid: std::process::id(),
            _name: None,
        })
    }

    /// Whether buffers of this link count there.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn counts_in(&mut self, budget: &link_api::Budget) -> bool {
        let before = budget.used();
        let _buffer = self.pool.take(true);
        budget.used() > before
    }

    /// The socket of the connection to a peer, for diagnosis.
    pub fn socket(&self, peer: PeerId) -> Option<BorrowedFd<'_>> {
        self.at(peer).channel.as_ref().map(|channel| channel.fd().as_fd())
    }

    /// What paths to all peers are like.
    pub(super) fn common_path(&self) -> Path {
        let most = MAX_FRAME - wire::EAGER_HEAD;
        let in_a_row = self.options.eager_in_a_row.max(self.options.eager).min(most);
        Path {
            link: "tcp",
            max_frame: MAX_FRAME,
            eager: self.options.eager.min(most),
            eager_in_a_row: in_a_row,
            eager_one_way: in_a_row,
            rma: RmaCaps::empty(),
            least_get: 0,
        }
    }

    #[inline]
    pub(super) fn at(&self, peer: PeerId) -> &Peer {
        &self.peers[peer.0 as usize]
    }

    #[inline]
    pub(super) fn at_mut(&mut self, peer: PeerId) -> &mut Peer {
        &mut self.peers[peer.0 as usize]
    }

    /// The number of the peer of that name.
    pub(super) fn id_of(&mut self, addr: &Addr) -> PeerId {
        if let Some(known) = self.ids.get(addr).copied() {
            let at = self.at_mut(known);
            if let Some(further) = addr.further().filter(|ip| at.addr.further() != Some(*ip)) {
                at.addr = at.addr.with_further(further);
            }
            return known;
        }
        let id = self.free.pop().unwrap_or(PeerId(self.peers.len() as u32));
        match self.peers.get_mut(id.0 as usize) {
            Some(old) => {
                let ready = old.ready;
                *old = Peer::new(*addr);
                old.ready = ready;
            }
            None => self.peers.push(Peer::new(*addr)),
        }
        self.ids.insert(*addr, id);
        id
    }

    /// What this endpoint says of itself to `other`.
    pub(super) fn hello(&self, role: Role, other: Addr) -> io::Result<Hello> {
        Ok(Hello { role, instance: self.instance, name: self.addr, other, nonce: ipc::random()? })
    }

    /// This peer may have a frame, or an end.
    pub(super) fn note_ready(&mut self, peer: PeerId) {
        // No descriptor tells of it.
        self.armed = false;
        let at = self.at_mut(peer);
        if !std::mem::replace(&mut at.ready, true) {
            self.ready.push_back(peer);
        }
    }

    /// A channel that was agreed on is this peer's: now, or after the end of the one before.
    pub(super) fn adopt(&mut self, peer: PeerId, channel: Box<Channel>) {
        let at = self.at_mut(peer);
        at.set_met();
        if let Some(former) = &mut at.channel {
            former.set_last();
            at.next = Some(channel);
        } else if at.cut {
            at.next = Some(channel);
        } else {
            at.channel = Some(channel);
            self.watch(peer);
        }
        self.note_ready(peer);
    }

    /// Watches the channel of a peer that it was just given.
    fn watch(&mut self, peer: PeerId) {
        self.railed.retain(|known| *known != peer);
        let Some(channel) = &self.peers[peer.0 as usize].channel else { return };
        if let Err(e) = self.poller.add(channel.fd(), token::channel(peer)) {
            log::warn!("{}: a connection cannot be watched: {e}", self.addr);
            if let Some(channel) = &mut self.at_mut(peer).channel {
                channel.set_over(Gone::Exhausted);
            }
        }
        self.offer_rails(peer);
        self.note_ready(peer);
    }

    /// The channel of a peer has room, or has none.
    pub(super) fn watch_room(&mut self, peer: PeerId, was_blocked: bool) {
        let Some(channel) = &self.peers[peer.0 as usize].channel else { return };
        if channel.has_rails() {
            self.sync_rails(peer);
        } else if channel.is_blocked() != was_blocked {
            self.alone = self.alone.filter(|alone| *alone != peer);
            let watch = if channel.is_blocked() { Watch::Both } else { Watch::Read };
            // If this fails the next flush is that of another send.
            let _ = self.poller.change(channel.fd(), token::channel(peer), watch);
        }
    }

    /// The next frame or end of those peers that may have one.
    pub(super) fn next_ready(&mut self) -> Option<Event> {
        while let Some(peer) = self.ready.pop_front() {
            self.at_mut(peer).ready = false;
            if let Some(event) = self.next_of(peer) {
                self.note_ready(peer);
                return Some(event);
            }
            // A buffer with nothing in it serves others: else each peer that has ever sent something would
            // have one.
            if let Some(channel) = &mut self.peers[peer.0 as usize].channel {
                channel.give_back(&mut self.pool);
                let rails = channel.rails_mut().into_iter().flat_map(Rails::channels_mut);
                rails.for_each(|rail| rail.give_back(&mut self.pool));
            }
        }
        None
    }

    /// The next frame or end of this peer.
    pub(super) fn next_of(&mut self, peer: PeerId) -> Option<Event> {
        if self.at(peer).cut {
            return Some(self.end(peer, Gone::Denied));
        }
        match &self.at(peer).channel {
            Some(channel) if channel.rails().is_some() => self.next_of_railed(peer),
            Some(_) => self.next_of_all::<false>(peer),
            None => None,
        }
    }

    #[cold]
    #[inline(never)]
    fn next_of_railed(&mut self, peer: PeerId) -> Option<Event> {
        self.next_of_all::<true>(peer)
    }

    #[inline(always)]
    fn next_of_all<const RAILED: bool>(&mut self, peer: PeerId) -> Option<Event> {
        loop {
            let mut channel = self.peers[peer.0 as usize].channel.as_mut()?;
            let step = if RAILED { channel.next() } else { channel.next_here() };
            if RAILED {
                self.heed_notes(peer);
                channel = self.peers[peer.0 as usize].channel.as_mut()?;
            }
            match step {
                Step::Frame(len) => {
                    self.held = Some(Held::Of(peer, len));
                    return Some(Event::Frame(link_api::Frame { from: peer, len, slot: 0 }));
                }
                Step::Begun(len) => return Some(Event::Begun(link_api::Frame { from: peer, len, slot: 0 })),
                Step::Landed(op, ok) => return Some(Event::Done(op, ok)),
                Step::End(why) => return Some(self.end(peer, why)),
                // The end of the former is not waited for.
                Step::Nothing if channel.is_last() => {
                    channel.fill(&mut self.pool);
                }
                Step::Nothing => return None,
            }
        }
    }

    /// The channel of a peer is no more; what follows it takes its place.
    fn end(&mut self, peer: PeerId, why: Gone) -> Event {
        let at = &mut self.peers[peer.0 as usize];
        at.cut = false;
        let former = at.channel.take();
        at.channel = at.next.take();
        if let Some(mut former) = former {
            at.lost = former.keeps();
            former.end_rails(&self.poller);
            self.poller.remove(former.fd());
            self.agreed.ended(&self.peers[peer.0 as usize].addr, former.conn());
            ipc::socket::shutdown(former.fd());
        }
        self.watch(peer);
        Event::Closed(peer, why)
    }
}

impl Drop for TcpLink {
    /// Waits until what was sent has come, within limits.
    fn drop(&mut self) {
        // A forked child only closes its copies, and what it shares with its parent goes on.
        if std::process::id() != self.pid {
            return;
        }
        farewell::say(self.addr, &mut self.peers, self.options.linger);
        for (_, guest) in self.guests.iter() {
            ipc::socket::shutdown(&guest.fd);
        }
        self.promises.shut_down();
        // For a forked process that holds it, too.
        std::iter::once(&self.listener)
            .chain(&self.further)
            .for_each(|listener| ipc::socket::shutdown(listener));
    }
}

//! A [`TcpLink`], as the parts that it is made of: each owns its state. Opening it, and its end.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};

use ipc::Watch;
use link_api::{Event, Gone, Path, PeerId, RmaCaps};
use meet::Strangers;

use crate::name::{Name, Port};
use crate::tcp::channel::connection::Channel;
use crate::tcp::channel::incoming::Step;
use crate::tcp::channel::pool::MAX_FRAME;
use crate::tcp::channel::rails::Rails;
use crate::tcp::farewell;
use crate::tcp::looks::Looks;
use crate::tcp::meet::agreement::Agreements;
use crate::tcp::meet::handshake::Guest;
use crate::tcp::meet::listening::{self, Listening};
use crate::tcp::meet::meeting::Meeting;
use crate::tcp::meet::names::Names;
use crate::tcp::meet::own::Own;
use crate::tcp::meet::promises::Promise;
use crate::tcp::meet::railed::Railed;
use crate::tcp::options::TcpOptions;
use crate::tcp::peers::Peers;
use crate::tcp::receiving::{Held, Receiving};
use crate::tcp::reports::Reports;
use crate::tcp::sleep::Sleep;
use crate::tcp::ticks::Ticks;
use crate::tcp::to_self::ToSelf;
use crate::tcp::watched::token;

/// One endpoint's connections to all others.
#[derive(Debug)]
pub struct TcpLink {
    pub(super) listening: Listening,
    pub(super) peers: Peers,
    pub(super) reports: Reports,
    pub(super) receiving: Receiving,
    pub(super) to_self: ToSelf,
    pub(super) looks: Looks,
    pub(super) sleep: Sleep,
    pub(super) ticks: Ticks,
    pub(super) names: Names,
    pub(super) guests: Strangers<IpAddr, Guest>,
    /// Which connections count, and those that are not confirmed.
    pub(super) agreed: Agreements,
    pub(super) promises: Strangers<(), Promise>,
    pub(super) meeting: Meeting,
    pub(super) railed: Railed,
    pub(super) options: TcpOptions,
    /// Dropped last: the name is of others once nothing listens under it any more.
    pub(super) own: Own,
}

impl TcpLink {
    /// Opens an endpoint under this name.
    pub fn bind(bind: std::net::SocketAddr, options: TcpOptions) -> io::Result<TcpLink> {
        let (name, ()) = Name::claim(Some(bind), Port::Listens, |_| Ok(()))?;
        let mut link = TcpLink::open(&name, options)?;
        link.own.keep_name(name);
        Ok(link)
    }

    /// Opens an endpoint whose name was claimed.
    pub(crate) fn open(name: &Name, options: TcpOptions) -> io::Result<TcpLink> {
        let sleep = Sleep::new()?;
        let ticks = Ticks::new(sleep.poller())?;
        let options = TcpOptions { rails: options.rails.clamp(1, wire::session::MOST_RAILS), ..options };
        let (further, rails_at) = listening::for_rails(name, &options);
        let listening = Listening::new(name, further, &options, sleep.poller())?;
        farewell::stay_at_exit(options.linger);
        Ok(TcpLink {
            own: Own::new(name)?,
            peers: Peers::default(),
            reports: Reports::default(),
            receiving: Receiving::default(),
            to_self: ToSelf::default(),
            looks: Looks::new(),
            names: Names::new(options.secret),
            listening,
            guests: Strangers::new(options.guests),
            agreed: Agreements::new(name.addr()),
            promises: Strangers::new(options.guests),
            meeting: Meeting::default(),
            railed: Railed::new(rails_at),
            sleep,
            ticks,
            options,
        })
    }

    /// Whether buffers of this link count there.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn counts_in(&mut self, budget: &link_api::Budget) -> bool {
        let before = budget.used();
        let _buffer = self.receiving.pool().take(true);
        budget.used() > before
    }

    /// The socket of the connection to a peer, for diagnosis.
    pub fn socket(&self, peer: PeerId) -> Option<BorrowedFd<'_>> {
        self.peers[peer].channel.as_ref().map(|channel| channel.fd().as_fd())
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

    /// This peer may have a frame, or an end.
    pub(super) fn note_ready(&mut self, peer: PeerId) {
        // No descriptor tells of it.
        self.sleep.disarm();
        self.reports.note_ready(&mut self.peers, peer);
    }

    /// A channel that was agreed on is this peer's: now, or after the end of the one before.
    pub(super) fn adopt(&mut self, peer: PeerId, channel: Box<Channel>) {
        let at = &mut self.peers[peer];
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
        self.railed.remove(peer);
        let Some(channel) = &self.peers[peer].channel else { return };
        if let Err(e) = self.sleep.poller().add(channel.fd(), token::channel(peer)) {
            log::warn!("{}: a connection cannot be watched: {e}", self.own.addr());
            if let Some(channel) = &mut self.peers[peer].channel {
                channel.set_over(Gone::Exhausted);
            }
        }
        self.offer_rails(peer);
        self.note_ready(peer);
    }

    /// The channel of a peer has room, or has none.
    pub(super) fn watch_room(&mut self, peer: PeerId, was_blocked: bool) {
        let Some(channel) = &self.peers[peer].channel else { return };
        if channel.has_rails() {
            self.sync_rails(peer);
        } else if channel.is_blocked() != was_blocked {
            self.looks.set_watched(peer);
            let watch = if channel.is_blocked() { Watch::Both } else { Watch::Read };
            // If this fails the next flush is that of another send.
            let _ = self.sleep.poller().change(channel.fd(), token::channel(peer), watch);
        }
    }

    /// The next frame or end of those peers that may have one.
    pub(super) fn next_ready(&mut self) -> Option<Event> {
        while let Some(peer) = self.reports.next_ready(&mut self.peers) {
            if let Some(event) = self.next_of(peer) {
                self.note_ready(peer);
                return Some(event);
            }
            // A buffer with nothing in it serves others: else each peer that has ever sent something would
            // have one.
            if let Some(channel) = &mut self.peers[peer].channel {
                channel.give_back(self.receiving.pool());
                let rails = channel.rails_mut().into_iter().flat_map(Rails::channels_mut);
                rails.for_each(|rail| rail.give_back(self.receiving.pool()));
            }
        }
        None
    }

    /// The next frame or end of this peer.
    pub(super) fn next_of(&mut self, peer: PeerId) -> Option<Event> {
        if self.peers[peer].cut {
            return Some(self.end(peer, Gone::Denied));
        }
        match &self.peers[peer].channel {
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
            let mut channel = self.peers[peer].channel.as_mut()?;
            let step = if RAILED { channel.next() } else { channel.next_here() };
            if RAILED {
                self.heed_notes(peer);
                channel = self.peers[peer].channel.as_mut()?;
            }
            match step {
                Step::Frame(len) => {
                    self.receiving.hold(Held::Of(peer, len));
                    return Some(Event::Frame(link_api::Frame { from: peer, len, slot: 0 }));
                }
                Step::Begun(len) => return Some(Event::Begun(link_api::Frame { from: peer, len, slot: 0 })),
                Step::Landed(op, ok) => return Some(Event::Done(op, ok)),
                Step::End(why) => return Some(self.end(peer, why)),
                // The end of the former is not waited for.
                Step::Nothing if channel.is_last() => {
                    channel.fill(self.receiving.pool());
                }
                Step::Nothing => return None,
            }
        }
    }

    /// The channel of a peer is no more; what follows it takes its place.
    fn end(&mut self, peer: PeerId, why: Gone) -> Event {
        let at = &mut self.peers[peer];
        at.cut = false;
        let former = at.channel.take();
        at.channel = at.next.take();
        if let Some(mut former) = former {
            at.lost = former.keeps();
            former.end_rails(self.sleep.poller());
            self.sleep.poller().remove(former.fd());
            self.agreed.ended(&self.peers[peer].addr, former.conn());
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
        if self.own.is_forked() {
            return;
        }
        farewell::say(self.own.addr(), self.peers.as_mut_slice(), self.options.linger);
        for (_, guest) in self.guests.iter() {
            ipc::socket::shutdown(&guest.fd);
        }
        self.promises.iter().for_each(|(_, promise)| ipc::socket::shutdown(&promise.fd));
        self.listening.shut_down();
    }
}

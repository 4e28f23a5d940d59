//! Connections that are agreed on: what comes and goes by them, what they are watched for, and their end.

use std::time::{Duration, Instant};

use ipc::Watch;
use link_api::{Event, Frame, Gone, Path, PeerId, PollFrame, RmaCaps};

use crate::tcp::channel::connection::Channel;
use crate::tcp::channel::incoming::Step;
use crate::tcp::channel::pool::MAX_FRAME;
use crate::tcp::channel::rails::Rails;
use crate::tcp::channel::silence::{self, CHECKS};
use crate::tcp::cork::Cork;
use crate::tcp::looks::Looks;
use crate::tcp::meet::agreement::Agreements;
use crate::tcp::meet::own::Own;
use crate::tcp::meet::railed::Railed;
use crate::tcp::options::TcpOptions;
use crate::tcp::peers::Peers;
use crate::tcp::receiving::{Held, Receiving};
use crate::tcp::reports::Reports;
use crate::tcp::sleep::Sleep;
use crate::tcp::ticks::{TICK, Ticks};
use crate::tcp::watched::token;

/// The peers of an endpoint, and its connections to them.
#[derive(Debug)]
pub(super) struct Connections {
    pub(super) peers: Peers,
    pub(super) reports: Reports,
    pub(super) receiving: Receiving,
    pub(super) cork: Cork,
    pub(super) looks: Looks,
    pub(super) sleep: Sleep,
    pub(super) ticks: Ticks,
    /// Which connections count.
    pub(super) agreed: Agreements,
    pub(super) railed: Railed,
    pub(super) options: TcpOptions,
    pub(super) own: Own,
}

impl Connections {
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
        // No descriptor shows it.
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

    /// Sends what was kept back for this peer.
    pub(super) fn uncork(&mut self, peer: PeerId) {
        let Some(channel) = &mut self.peers[peer].channel else { return };
        if !channel.is_corked() {
            return;
        }
        channel.flush();
        if channel.ends() {
            self.note_ready(peer);
        } else if channel.is_blocked() {
            self.watch_room(peer, false);
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

    /// The next frame of a connection without rails that is whole in its buffer: of the peer that is next to
    /// be looked at, or of the one that was used last, by one system call.
    pub(super) fn next_at_hand(&mut self) -> PollFrame {
        let peer = match self.reports.first_ready() {
            Some(peer) => peer,
            None => {
                let Some(hot) = self.looks.next_at_one() else { return PollFrame::Unknown };
                let Some(channel) = &mut self.peers[hot].channel else { return PollFrame::Unknown };
                if channel.rails().is_some() {
                    return PollFrame::Unknown;
                }
                self.looks.count();
                if !channel.fill(self.receiving.pool()) {
                    let waits = self.receiving.is_short();
                    return if waits { PollFrame::Unknown } else { PollFrame::Nothing };
                }
                hot
            }
        };
        let at = &mut self.peers[peer];
        let plain = at.channel.as_mut().filter(|channel| !at.cut && channel.rails().is_none());
        let Some(len) = plain.and_then(|channel| channel.next_buffered()) else {
            // A part of a frame, a long one, the end, rails, or a peer that was cut off.
            self.serve_found(peer);
            return PollFrame::Unknown;
        };
        self.reports.take_first(&mut self.peers, peer);
        self.receiving.hold(Held::Of(peer, len));
        PollFrame::Frame(Frame { from: peer, len, slot: 0 })
    }

    /// Something was received of a peer, which a poll reports.
    #[cold]
    fn serve_found(&mut self, peer: PeerId) {
        if let Some(channel) = self.peers[peer].channel.as_ref().filter(|channel| channel.is_over()) {
            // It would be readable all the time.
            self.sleep.poller().remove(channel.fd());
        }
        self.note_ready(peer);
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
                    return Some(Event::Frame(Frame { from: peer, len, slot: 0 }));
                }
                Step::Begun(len) => return Some(Event::Begun(Frame { from: peer, len, slot: 0 })),
                Step::Done(op, ok) => return Some(Event::Done(op, ok)),
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

    /// A send finds no way to this peer.
    pub(super) fn want(&mut self, peer: PeerId) {
        self.reports.want(&mut self.peers, peer);
    }

    /// Nothing but the connection that was used last has had anything for a while: it is polled, and
    /// no longer watched. What a watched connection receives wakes each poller that it is in, at the
    /// sender's expense where that is on this host.
    pub(super) fn poll_unwatched(&mut self) {
        let Some(hot) = self.looks.hot().filter(|hot| !self.looks.is_unwatched(*hot)) else { return };
        let Some(channel) = &self.peers[hot].channel else { return };
        if !channel.is_blocked()
            && !channel.has_rails()
            && self.sleep.poller().change(channel.fd(), token::channel(hot), Watch::Ends).is_ok()
        {
            self.looks.set_unwatched(hot);
        }
    }

    /// All connections are watched again.
    pub(super) fn watch_again(&mut self) {
        let Some(peer) = self.looks.take_unwatched() else { return };
        if let Some(channel) = &self.peers[peer].channel {
            let watch = if channel.is_blocked() { Watch::Both } else { Watch::Read };
            if self.sleep.poller().change(channel.fd(), token::channel(peer), watch).is_err() {
                self.note_ready(peer);
            }
        }
    }

    pub(super) fn serve_channel(&mut self, peer: PeerId, readable: bool, room: bool) {
        let at = &mut self.peers[peer];
        let Some(channel) = &mut at.channel else { return };
        if room && channel.is_blocked() {
            channel.flush();
            self.watch_room(peer, true);
        }
        let Some(channel) = &mut self.peers[peer].channel else { return };
        if self.sleep.has_slept() {
            channel.hasten();
        }
        let found = readable && channel.fill(self.receiving.pool());
        if channel.is_over() {
            // It would be readable all the time.
            self.sleep.poller().remove(channel.fd());
        }
        let ends = channel.ends();
        if found {
            self.looks.set_hot(peer);
        }
        if found || ends {
            self.note_ready(peer);
        } else if self.receiving.is_short() && self.ticks.are_off() {
            self.tick_as_needed();
        }
    }

    /// Ends connections to hosts that have answered nothing for too long ([`silence`]).
    pub(super) fn check_silence(&mut self, now: Instant) {
        let most = self.options.timeout;
        let short = self.receiving.pool().was_short();
        for at in self.peers.ids() {
            let Some(channel) = &mut self.peers[at].channel else { continue };
            let Some(what) = silence::reason(channel, short, now, most) else { continue };
            let rails = channel.rails_mut().into_iter().flat_map(Rails::channels_mut);
            rails.for_each(|rail| rail.set_over(Gone::Reset));
            channel.set_over(Gone::Reset);
            self.sleep.poller().remove(channel.fd());
            log::warn!(
                "{} -> {}: {what} for {} s: the connection is closed",
                self.own.addr(),
                self.peers[at].addr,
                most.as_secs()
            );
            self.note_ready(at);
        }
    }

    /// How often the timer is to tick for these connections; zero: not at all.
    pub(super) fn period(&self) -> Duration {
        let watched = |channel: &Channel| channel.current() != 0 || channel.is_any_unsure();
        let unsure = || self.peers.iter().any(|p| p.channel.as_deref().is_some_and(watched));
        if self.calls_rails() {
            TICK
        } else if self.receiving.is_short() || unsure() {
            (self.options.timeout / CHECKS).max(TICK)
        } else {
            Duration::ZERO
        }
    }

    /// The timer ticks as often as these connections need it. A tick finds out whether that is too often.
    pub(super) fn tick_as_needed(&mut self) {
        self.ticks.at_least(self.period());
    }

    /// Whether there is a frame or an end to poll for, or room for a frame that found none: the latter is
    /// reported once, if `once`.
    pub(super) fn has_something(&mut self, once: bool) -> bool {
        if self.receiving.held().is_some() || self.reports.has_events() {
            return true;
        }
        let served = self.reports.is_any_served(&mut self.peers, once);
        let has = self.reports.is_any_ready(&mut self.peers);
        // A note may have been read, by which it is another connection's turn.
        for at in 0..self.railed.peers().len() {
            self.sync_rails(self.railed.peers()[at]);
        }
        served || has
    }
}

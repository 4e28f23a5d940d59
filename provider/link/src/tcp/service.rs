//! What descriptors and time bring about.

use std::time::{Duration, Instant};

use ipc::Watch;
use link_api::{Gone, PeerId};

use super::channel::connection::Channel;
use super::channel::pool::SPARE;
use super::channel::rails::Rails;
use super::link::{ROUND, TcpLink};
use super::watched::token;

/// How often calls and guests are looked after.
const TICK: Duration = Duration::from_millis(50);
/// How often within the time after which a host that does not answer is gone it is asked whether it does: the
/// look that finds first that it does not is late, and so is the one that finds the time over.
const LOOKS: u32 = 8;
/// Descriptors looked at in one go: no more than there are buffers to spare for what is found.
const BATCH: usize = SPARE;
/// A process that has not looked for longer had something else to do.
const AWAY: Duration = Duration::from_secs(1);

impl TcpLink {
    /// Looks for something to do. Most looks are at the connection that was used last, at the price of one
    /// system call.
    pub(super) fn look(&mut self) {
        self.looks += 1;
        if self.alone != self.hot {
            self.watch_alone();
        }
        // What has woken a sleeper may be any of them.
        if let Some(hot) = self.hot.filter(|_| self.looks < self.round && !self.slept) {
            if self.at(hot).channel.is_some() {
                return self.serve_channel(hot, true, false);
            }
            self.hot = None;
        }
        self.looks = 0;
        let of_hot = self.hot.map(token::channel);
        if self.look_at_all_but(of_hot) {
            self.round = *ROUND.start();
            self.watch_alone();
        } else if !self.pending.is_empty() {
            // What is waited for is a connection that is being made, as a rule.
            (self.hot, self.round) = (None, *ROUND.start());
        } else if self.slept {
            // Looks that follow sleeps say nothing of how rarely others have something.
        } else if self.round < *ROUND.end() {
            self.round *= 2;
        } else {
            self.leave_alone();
        }
    }

    /// Nothing but the connection that was used last has had anything for a while: it is looked at, and
    /// nothing tells of it. What a watched connection receives wakes each poller that it is in, at the
    /// sender's expense where that is on this host.
    fn leave_alone(&mut self) {
        let Some(hot) = self.hot.filter(|hot| self.alone != Some(*hot)) else { return };
        let Some(channel) = &self.peers[hot.0 as usize].channel else { return };
        if !channel.is_blocked()
            && !channel.has_rails()
            && self.poller.change(channel.fd(), token::channel(hot), Watch::Ends).is_ok()
        {
            self.alone = Some(hot);
        }
    }

    /// All connections are watched again.
    pub(super) fn watch_alone(&mut self) {
        let Some(peer) = self.alone.take() else { return };
        self.round = *ROUND.start();
        if let Some(channel) = &self.peers[peer.0 as usize].channel {
            let watch = if channel.is_blocked() { Watch::Both } else { Watch::Read };
            if self.poller.change(channel.fd(), token::channel(peer), watch).is_err() {
                self.note_ready(peer);
            }
        }
    }

    /// Looks at all that has something.
    pub(super) fn look_at_all(&mut self) {
        self.watch_alone();
        self.look_at_all_but(None);
    }

    /// Likewise; whether something else than this descriptor had.
    fn look_at_all_but(&mut self, hot: Option<u64>) -> bool {
        if self.period == TICK {
            self.allow_for_absence(Instant::now());
        }
        let found = self.poller.ready::<BATCH>();
        let others = found.events().any(|(token, ..)| Some(token) != hot);
        for (token, readable, room) in found.events() {
            let at = token as u32;
            match (token >> 32, token) {
                (_, token::LISTENER | token::FURTHER) => self.accept(),
                (_, token::TIMER) => self.tick(),
                // The next poll has read it.
                (_, token::BELL) => {}
                (token::GUEST, _) => self.serve_guest(at as usize),
                (token::PROMISE, _) => self.serve_promise(at as usize),
                (token::CALL, _) => self.serve_call(PeerId(at)),
                (token::CHANNEL, _) if self.is_out_of_turn(PeerId(at)) => {
                    self.serve_out_of_turn(PeerId(at), readable, room);
                }
                (of, _) if of > token::CHANNEL => {
                    self.serve_rail(PeerId(at), (of - token::CHANNEL) as u8, readable, room);
                }
                _ => self.serve_channel(PeerId(at), readable, room),
            }
        }
        others
    }

    /// Connections that are being made have not gone on while the process did not look: that is no delay of
    /// theirs.
    fn allow_for_absence(&mut self, now: Instant) {
        let away = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        if away < AWAY {
            return;
        }
        self.guests.iter_mut().for_each(|(_, guest)| guest.since += away);
        for peer in &self.pending {
            if let Some(call) = &mut self.peers[peer.0 as usize].call {
                (call.until, call.late) = (call.until + away, true);
            }
        }
        for peer in &self.railed {
            let channel = self.peers[peer.0 as usize].channel.as_mut();
            let rails = channel.and_then(|channel| channel.rails_mut());
            rails.into_iter().flat_map(Rails::calls_mut).for_each(|call| call.until += away);
        }
    }

    pub(super) fn serve_channel(&mut self, peer: PeerId, readable: bool, room: bool) {
        let at = &mut self.peers[peer.0 as usize];
        let Some(channel) = &mut at.channel else { return };
        if room && channel.is_blocked() {
            channel.flush();
            self.watch_room(peer, true);
        }
        let Some(channel) = &mut self.peers[peer.0 as usize].channel else { return };
        if self.slept {
            channel.hasten();
        }
        let found = readable && channel.fill(&mut self.pool);
        if channel.is_over() {
            // It would be readable all the time.
            self.poller.remove(channel.fd());
        }
        let ends = channel.ends();
        if found {
            self.hot = Some(peer);
        }
        if found || ends {
            self.note_ready(peer);
        } else if self.pool.is_short() && self.period.is_zero() {
            self.set_timer();
        }
    }

    /// Sets the timer, by what there is to wait for.
    pub(super) fn set_timer(&mut self) {
        let guests = !self.guests.is_empty() || self.promises.len() > 0;
        let soon = !self.listens || !self.pending.is_empty() || guests || self.calls_rails();
        let watched = |channel: &Channel| channel.turn() != 0 || channel.is_any_unsure();
        let unsure = || self.peers.iter().any(|p| p.channel.as_deref().is_some_and(watched));
        let period = if soon {
            TICK
        } else if self.pool.is_short() || unsure() {
            (self.options.timeout / LOOKS).max(TICK)
        } else {
            Duration::ZERO
        };
        if period != self.period && self.timer.set(period).is_ok() {
            (self.period, self.looked) = (period, Instant::now());
        }
    }

    fn tick(&mut self) {
        self.timer.clear();
        let now = Instant::now();
        self.check_pending(now);
        self.check_guests(now);
        self.check_promises(now);
        self.check_rails(now);
        self.check_silence(now);
        self.set_listening(true);
        self.set_timer();
    }

    /// Ends connections to hosts that have answered nothing for too long. The kernel does that for
    /// connections on which nothing is sent; its limit for others would also end those to a process that does
    /// not receive for a while. And where parts of frames take up all memory for them, those to peers that
    /// send no more of one for as long.
    fn check_silence(&mut self, now: Instant) {
        let most = self.options.timeout;
        let short = self.pool.was_short();
        for at in 0..self.peers.len() {
            let Some(channel) = &mut self.peers[at].channel else { continue };
            let rails_silent = channel
                .rails_mut()
                .into_iter()
                .flat_map(Rails::channels_mut)
                .any(|rail| rail.is_silent(now, most));
            let silent = rails_silent || channel.is_silent(now, most);
            let rails = channel.rails_mut().into_iter().flat_map(Rails::channels_mut);
            // Each is asked, since each keeps the time.
            let stuck = rails.filter_map(|rail| rail.is_stuck(short, now, most).then_some(())).count() > 0;
            let stuck = channel.is_stuck(short, now, most) || stuck;
            // The tick that finds it first is late by up to the time between two.
            if silent || stuck || channel.is_starved(now, most - most / LOOKS) {
                let what = match (silent, stuck) {
                    (true, _) => "its host has not answered",
                    (_, true) => {
                        "a part of a frame has taken up memory that other peers wait for, and has not become whole,"
                    }
                    _ => "it has ended, and nothing has come of a frame that is on a rail",
                };
                log::warn!(
                    "{} -> {}: {what} for {} s: the connection is closed",
                    self.addr,
                    self.peers[at].addr,
                    most.as_secs()
                );
                if let Some(channel) = &mut self.peers[at].channel {
                    let rails = channel.rails_mut().into_iter().flat_map(Rails::channels_mut);
                    rails.for_each(|rail| rail.set_over(Gone::Reset));
                    channel.set_over(Gone::Reset);
                    self.poller.remove(channel.fd());
                }
                self.note_ready(PeerId(at as u32));
            }
        }
    }

    /// Does what is to be done without a caller: to send what found no room, to let peers in. What comes of
    /// it is told by a later [`Link::poll`](link_api::Link::poll), and
    /// [`Link::wait_fd`](link_api::Link::wait_fd) tells a sleeper that there is something.
    pub fn progress(&mut self) {
        let armed = std::mem::take(&mut self.armed);
        self.slept = armed;
        self.look_at_all();
        if armed && self.has_something(false) {
            self.bell.ring();
        } else {
            self.armed = armed;
        }
    }

    /// Whether there is something to poll for, or room for a frame that found none: that is told once, if
    /// `told`.
    pub(super) fn has_something(&mut self, told: bool) -> bool {
        if self.held.is_some() || !self.events.is_empty() || !self.own.is_empty() {
            return true;
        }
        let mut served = false;
        let mut wanting = std::mem::take(&mut self.wanting);
        wanting.retain(|peer| {
            let at = self.at_mut(*peer);
            let is_served = at.wants && at.is_served();
            at.wants &= !(is_served && told);
            at.owed_untold &= !(is_served && told);
            served |= is_served;
            at.wants
        });
        self.wanting = wanting;
        let peers = &mut self.peers;
        // Of those that have nothing whole, their descriptors tell when there is more.
        let has = |peer: &PeerId| {
            let at = &mut peers[peer.0 as usize];
            at.cut || at.channel.as_deref_mut().is_some_and(Channel::is_ready)
        };
        let has = self.ready.iter().any(has);
        // A note may have been read, by which it is another connection's turn.
        for at in 0..self.railed.len() {
            self.sync_rails(self.railed[at]);
        }
        served || has
    }
}

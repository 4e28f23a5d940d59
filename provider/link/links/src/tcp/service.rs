//! What descriptors and time bring about.

use std::time::{Duration, Instant};

use ipc::Watch;
use link_api::{Gone, PeerId};

use crate::tcp::channel::connection::Channel;
use crate::tcp::channel::pool::SPARE;
use crate::tcp::channel::rails::Rails;
use crate::tcp::link::TcpLink;
use crate::tcp::ticks::TICK;
use crate::tcp::watched::token;

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
        self.looks.count();
        if self.looks.is_other_unwatched() {
            self.watch_alone();
        }
        // What has woken a sleeper may be any of them.
        if let Some(hot) = self.looks.at_one().filter(|_| !self.sleep.has_slept()) {
            if self.peers[hot].channel.is_some() {
                return self.serve_channel(hot, true, false);
            }
            self.looks.cool();
        }
        self.looks.at_all();
        let of_hot = self.looks.hot().map(token::channel);
        if self.look_at_all_but(of_hot) {
            self.looks.shorten();
            self.watch_alone();
        } else if !self.meeting.is_empty() {
            // What is waited for is a connection that is being made, as a rule.
            self.looks.cool();
            self.looks.shorten();
        } else if self.sleep.has_slept() {
            // Looks that follow sleeps say nothing of how rarely others have something.
        } else if !self.looks.lengthen() {
            self.leave_alone();
        }
    }

    /// Nothing but the connection that was used last has had anything for a while: it is looked at, and
    /// nothing tells of it. What a watched connection receives wakes each poller that it is in, at the
    /// sender's expense where that is on this host.
    fn leave_alone(&mut self) {
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
    pub(super) fn watch_alone(&mut self) {
        let Some(peer) = self.looks.take_unwatched() else { return };
        if let Some(channel) = &self.peers[peer].channel {
            let watch = if channel.is_blocked() { Watch::Both } else { Watch::Read };
            if self.sleep.poller().change(channel.fd(), token::channel(peer), watch).is_err() {
                self.note_ready(peer);
            }
        }
    }

    /// Looks at all that has something.
    pub(super) fn look_at_all(&mut self) {
        self.watch_alone();
        self.look_at_all_but(None);
    }

    /// Looks at all that has something; whether something else than this descriptor had.
    fn look_at_all_but(&mut self, hot: Option<u64>) -> bool {
        if self.ticks.are_often() {
            self.allow_for_absence(Instant::now());
        }
        let found = self.sleep.poller().ready::<BATCH>();
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
        let away = self.ticks.restart(now);
        if away < AWAY {
            return;
        }
        self.guests.each_since().for_each(|since| *since += away);
        for peer in self.meeting.iter() {
            if let Some(call) = &mut self.peers[*peer].call {
                (call.until, call.late) = (call.until + away, true);
            }
        }
        for peer in self.railed.peers() {
            let channel = self.peers[*peer].channel.as_mut();
            let rails = channel.and_then(|channel| channel.rails_mut());
            rails.into_iter().flat_map(Rails::calls_mut).for_each(|call| call.until += away);
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
            self.set_timer();
        }
    }

    /// Sets the timer, by what there is to wait for.
    pub(super) fn set_timer(&mut self) {
        let guests = !self.guests.is_empty() || !self.promises.is_empty();
        let soon = !self.listening.is_on() || !self.meeting.is_empty() || guests || self.calls_rails();
        let watched = |channel: &Channel| channel.turn() != 0 || channel.is_any_unsure();
        let unsure = || self.peers.iter().any(|p| p.channel.as_deref().is_some_and(watched));
        let period = if soon {
            TICK
        } else if self.receiving.is_short() || unsure() {
            (self.options.timeout / LOOKS).max(TICK)
        } else {
            Duration::ZERO
        };
        self.ticks.set(period);
    }

    fn tick(&mut self) {
        self.ticks.clear();
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
        let short = self.receiving.pool().was_short();
        for at in self.peers.ids() {
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
                    self.own.addr(),
                    self.peers[at].addr,
                    most.as_secs()
                );
                if let Some(channel) = &mut self.peers[at].channel {
                    let rails = channel.rails_mut().into_iter().flat_map(Rails::channels_mut);
                    rails.for_each(|rail| rail.set_over(Gone::Reset));
                    channel.set_over(Gone::Reset);
                    self.sleep.poller().remove(channel.fd());
                }
                self.note_ready(at);
            }
        }
    }

    /// Does what is to be done without a caller: to send what found no room, to let peers in. What comes of
    /// it is told by a later [`Link::poll`](link_api::Link::poll), and
    /// [`Link::wait_fd`](link_api::Link::wait_fd) tells a sleeper that there is something.
    pub fn progress(&mut self) {
        let armed = self.sleep.begin();
        self.look_at_all();
        if armed && self.has_something(false) {
            self.sleep.wake();
        } else {
            self.sleep.set_armed(armed);
        }
    }

    /// Whether there is something to poll for, or room for a frame that found none: that is told once, if
    /// `told`.
    pub(super) fn has_something(&mut self, told: bool) -> bool {
        if self.receiving.held().is_some() || self.reports.has_events() || !self.to_self.is_empty() {
            return true;
        }
        let served = self.reports.is_any_served(&mut self.peers, told);
        let has = self.reports.is_any_ready(&mut self.peers);
        // A note may have been read, by which it is another connection's turn.
        for at in 0..self.railed.peers().len() {
            self.sync_rails(self.railed.peers()[at]);
        }
        served || has
    }
}

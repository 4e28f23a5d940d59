//! What descriptors and time bring about.

use std::time::{Duration, Instant};

use link_api::PeerId;

use crate::tcp::channel::pool::SPARE;
use crate::tcp::channel::rails::Rails;
use crate::tcp::connections::Connections;
use crate::tcp::meet::callers::Callers;
use crate::tcp::meet::calls::Calls;
use crate::tcp::meet::meeting::Meeting;
use crate::tcp::ticks::TICK;
use crate::tcp::watched::token;

/// Descriptors polled in one go: no more than there are buffers to spare for what is found.
const BATCH: usize = SPARE;
/// A process that has not polled for longer had something else to do.
const AWAY: Duration = Duration::from_secs(1);

/// Does what the descriptors and the time ask for.
pub(super) struct Service<'a> {
    pub(super) conns: &'a mut Connections,
    pub(super) meeting: &'a mut Meeting,
}

impl Service<'_> {
    fn calls(&mut self) -> Calls<'_> {
        Calls { conns: self.conns, meeting: self.meeting }
    }

    fn callers(&mut self) -> Callers<'_> {
        Callers { conns: self.conns, meeting: self.meeting }
    }

    /// Polls for something to do. Most polls are of the connection that was used last, at the price of one
    /// system call.
    pub(super) fn poll(&mut self) {
        self.conns.looks.count();
        if self.conns.looks.is_other_unwatched() {
            self.conns.watch_again();
        }
        // What has woken a sleeper may be any of them.
        if let Some(hot) = self.conns.looks.at_one().filter(|_| !self.conns.sleep.has_slept()) {
            if self.conns.peers[hot].channel.is_some() {
                return self.conns.serve_channel(hot, true, false);
            }
            self.conns.looks.cool();
        }
        self.conns.looks.at_all();
        let of_hot = self.conns.looks.hot().map(token::channel);
        if self.poll_all_but(of_hot) {
            self.conns.looks.shorten();
            self.conns.watch_again();
        } else if !self.meeting.is_empty() {
            // What is waited for is a connection that is being made, as a rule.
            self.conns.looks.cool();
            self.conns.looks.shorten();
        } else if self.conns.sleep.has_slept() {
            // Polls that follow sleeps say nothing of how rarely others have something.
        } else if !self.conns.looks.lengthen() {
            self.conns.poll_unwatched();
        }
    }

    /// Polls all that has something.
    pub(super) fn poll_all(&mut self) {
        self.conns.watch_again();
        self.poll_all_but(None);
    }

    /// Polls all that has something; whether something else than this descriptor had.
    fn poll_all_but(&mut self, hot: Option<u64>) -> bool {
        if self.conns.ticks.are_often() {
            self.allow_for_absence(Instant::now());
        }
        let found = self.conns.sleep.poller().ready::<BATCH>();
        let others = found.events().any(|(token, ..)| Some(token) != hot);
        for (token, readable, room) in found.events() {
            let at = token as u32;
            match (token >> 32, token) {
                (_, token::LISTENER | token::FURTHER) => self.callers().accept(),
                (_, token::TIMER) => self.tick(),
                // The next poll has read it.
                (_, token::BELL) => {}
                (token::GUEST, _) => self.callers().serve_guest(at as usize),
                (token::PROMISE, _) => self.callers().serve_promise(at as usize),
                (token::CALL, _) => self.calls().serve_call(PeerId(at)),
                (token::CHANNEL, _) if self.conns.is_rail_current(PeerId(at)) => {
                    self.conns.serve_beside_rail(PeerId(at), readable, room);
                }
                (of, _) if of > token::CHANNEL => {
                    if self.conns.serve_rail(PeerId(at), (of - token::CHANNEL) as u8, readable, room) {
                        self.meeting.set_met();
                    }
                }
                _ => self.conns.serve_channel(PeerId(at), readable, room),
            }
        }
        others
    }

    /// Connections that are being made have not gone on while the process did not poll: that is no delay of
    /// theirs.
    fn allow_for_absence(&mut self, now: Instant) {
        let away = self.conns.ticks.restart(now);
        if away < AWAY {
            return;
        }
        self.meeting.guests.each_since().for_each(|since| *since += away);
        for peer in self.meeting.iter() {
            if let Some(call) = &mut self.conns.peers[*peer].call {
                (call.until, call.late) = (call.until + away, true);
            }
        }
        for peer in self.conns.railed.peers() {
            let channel = self.conns.peers[*peer].channel.as_mut();
            let rails = channel.and_then(|channel| channel.rails_mut());
            rails.into_iter().flat_map(Rails::calls_mut).for_each(|call| call.until += away);
        }
    }

    fn tick(&mut self) {
        self.conns.ticks.clear();
        let now = Instant::now();
        self.calls().check_pending(now);
        self.callers().check_guests(now);
        self.callers().check_promises(now);
        self.conns.check_rails(now);
        self.conns.check_silence(now);
        self.callers().set_listening(true);
        let waits = !self.meeting.listening.is_on() || !self.meeting.is_quiet();
        self.conns.ticks.set(if waits { TICK } else { self.conns.period() });
    }
}

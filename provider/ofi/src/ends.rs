//! Peers that end or break the rules, and the end of this endpoint.

use std::time::{Duration, Instant};

use link_api::{Gone, PeerId, RmaLink};
use wire::session::Control;

use crate::below::Below;
use crate::channel::{BEFORE, Came, Channel, FIRST};
use crate::link::{Held, OfiLink, Out};
use crate::peer::Stage;

impl<B: RmaLink, F: Below> OfiLink<B, F> {
    /// A peer does what no honest one does.
    #[cold]
    pub(crate) fn spoil(&mut self, peer: PeerId, why: &str) {
        let (own, name) = (self.base.addr(), self.base.peer_addr(peer));
        log::warn!("{own} -> {name}: what it sends is not believed any more: {why}");
        self.cut(peer, Some(Gone::Denied));
    }

    /// Cuts a peer off; its end, which the connection tells of, is said to have this reason. What came before
    /// is still told of.
    #[cold]
    pub(crate) fn cut(&mut self, peer: PeerId, why: Option<Gone>) {
        self.reset(peer);
        self.at(peer).end.set_why(why);
        self.base.disconnect(peer);
    }

    /// Gives back what came of a peer, and was not told of.
    pub(crate) fn drop_frames_of(&mut self, peer: PeerId) {
        for out in std::mem::take(&mut self.out) {
            match (out, &mut self.below) {
                (Out::Frame(from, _, came), below) if from == peer => came.give_back(below.as_mut()),
                (Out::Base(frame), _) if frame.from == peer => {
                    self.base.release(frame);
                    self.base_busy = false;
                }
                (out, _) => self.out.push_back(out),
            }
        }
    }

    /// The fabric has lost a message.
    #[cold]
    pub(crate) fn lost(&mut self, who: u64, why: &str) {
        let (first, who) = (who & FIRST != 0, who & !FIRST);
        let peer = PeerId((who >> 32) as u32);
        let Some(at) =
            self.peers.get(peer.0 as usize).filter(|at| u64::from(at.generation) == who & 0xffff_ffff)
        else {
            return;
        };
        match at.stage {
            Stage::Meeting if first => return self.first_failed(peer, why),
            Stage::Meeting => return self.refuse(peer, why),
            // It was sent again, and has come.
            _ if first => return,
            _ => {}
        }
        if at.end.is_broken() {
            return;
        }
        // As a rule its process has ended, which the connection tells.
        log::info!(
            "{} -> {}: the fabric has lost a message: {why}",
            self.base.addr(),
            self.base.peer_addr(peer)
        );
        let until = Instant::now() + self.options.grace;
        self.at(peer).end.break_off(until);
        self.note_restless(peer);
    }

    /// The fabric does nothing any more.
    #[cold]
    pub(crate) fn dead(&mut self, why: &str) {
        log::warn!("{}: the fabric has failed: {why}", self.base.addr());
        self.failed = true;
        if let Some(fd) = self.fabric_fd() {
            self.unwatch(fd);
        }
        for at in 0..self.peers.len() {
            if self.peers[at].channel.is_some() {
                self.cut(PeerId(at as u32), Some(Gone::Reset));
            }
        }
    }

    /// Tells a peer how much was sent to it.
    fn say_bye(&mut self, peer: PeerId) {
        let at = &mut self.peers[peer.0 as usize];
        let Some(sent) = at.channel.as_ref().map(|c| c.sent) else { return };
        at.farewell.say(sent);
        self.say(peer, &Control::Bye(sent));
    }

    /// The peers that may still say that all that was sent to them has come, and have not.
    fn owed(&self) -> Vec<PeerId> {
        let is_owed = |peer: &PeerId| {
            let at = &self.peers[peer.0 as usize];
            let has_all = |c: &Channel| c.is_quiet() || at.farewell.is_answered(c.sent);
            let owes = |c: &Channel| !has_all(c);
            at.channel.as_ref().is_some_and(owes) && !at.end.is_broken()
        };
        (0..self.peers.len() as u32).map(PeerId).filter(is_owed).collect()
    }

    /// The process exits. What was sent is to come, as where the endpoint is closed; what comes meanwhile is
    /// kept, and all else as it was, for handlers of exit(3) that run later.
    pub(crate) fn settle_at_exit(&mut self, last: bool) -> bool {
        if std::process::id() != self.pid || self.below.is_none() || self.failed {
            return true;
        }
        for peer in self.owed() {
            // Of what is sent meanwhile when the last answer is there, so that each has one.
            if !self.peers[peer.0 as usize].farewell.is_unanswered() {
                self.say_bye(peer);
            }
        }
        self.look_at_all();
        self.set_aside();
        let leaving = self.owed();
        if last {
            self.warn_of_left(&leaving);
        }
        leaving.is_empty() && self.saying.is_empty()
    }

    /// Copies what has come and waits for its turn, so that more can come.
    fn set_aside(&mut self) {
        for out in &mut self.out {
            let copy = match out {
                Out::Frame(from, generation, came @ Came::Buffer(..)) => {
                    (*from, *generation, Came::Copy(came.bytes(self.below.as_ref()).into()))
                }
                // A frame by the connection is told of like one by the fabric of a peer that has no channel.
                Out::Base(frame) => {
                    let mut bytes = vec![0; BEFORE + frame.len];
                    self.base.read(frame, 0, &mut bytes[BEFORE..]);
                    let generation = self.peers[frame.from.0 as usize].generation;
                    (frame.from, generation, Came::Copy(bytes.into()))
                }
                _ => continue,
            };
            match std::mem::replace(out, Out::Frame(copy.0, copy.1, copy.2)) {
                Out::Frame(_, _, came) => came.give_back(self.below.as_mut()),
                Out::Base(frame) => {
                    self.base.release(frame);
                    self.base_busy = false;
                }
                Out::Event(_) => {}
            }
        }
    }

    /// Waits a moment until what was sent has come.
    fn farewell(&mut self) {
        (0..self.peers.len() as u32).for_each(|at| self.say_bye(PeerId(at)));
        if let Some(Held::Base(frame)) = self.held.take() {
            self.base.release(frame);
            self.base_busy = false;
        }
        let until = Instant::now() + self.options.linger;
        loop {
            for out in std::mem::take(&mut self.out) {
                match (out, &mut self.below) {
                    (Out::Frame(_, _, came), below) => came.give_back(below.as_mut()),
                    (Out::Base(frame), _) => {
                        self.base.release(frame);
                        self.base_busy = false;
                    }
                    _ => {}
                }
            }
            let leaving = self.owed();
            if leaving.is_empty() && self.saying.is_empty() {
                return;
            }
            if Instant::now() >= until {
                return self.warn_of_left(&leaving);
            }
            self.look_at_all();
            if self.out.is_empty() {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }
}

impl<B: RmaLink, F: Below> OfiLink<B, F> {
    fn warn_of_left(&self, leaving: &[PeerId]) {
        for peer in leaving {
            log::warn!(
                "{} -> {}: closed after {} ms though not all messages have come, which may be lost",
                self.base.addr(),
                self.base.peer_addr(*peer),
                self.options.linger.as_millis()
            );
        }
    }
}

impl<B: RmaLink, F: Below> Drop for OfiLink<B, F> {
    fn drop(&mut self) {
        // What a forked child shares with its parent goes on.
        if std::process::id() == self.pid {
            self.farewell();
        }
    }
}

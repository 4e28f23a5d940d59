//! An [`OfiLink`]: the parts that it is made of, peers that end or break the rules, and its own end.

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use hmem::Kind;
use ipc::random;
use link_api::{Gone, Parting, Path, PeerId, RmaCaps, RmaLink, WaitFd};
use wire::session::{Control, Mark};

use crate::below::{Below, Dest, Usage};
use crate::channel::{Channel, FIRST};
use crate::fds::is_shallow;
use crate::options::OfiOptions;
use crate::parts::inbox::Inbox;
use crate::parts::peers::Peers;
use crate::parts::provider::Provider;
use crate::parts::reading::Reading;
use crate::parts::saying::Saying;
use crate::parts::sleep::Sleep;
use crate::parts::turns::Turns;
use crate::peer::Stage;

/// One endpoint of a fabric, `F`, and its connections, `B`.
#[derive(Debug)]
pub struct OfiLink<B: RmaLink, F: Below> {
    // Closed in this order: the end of a connection is that of the peer, and a fabric that fails before would
    // look like a fault.
    pub(crate) base: B,
    pub(crate) below: Option<F>,
    pub(crate) provider: Provider,
    pub(crate) options: OfiOptions,
    pub(crate) peers: Peers,
    pub(crate) inbox: Inbox,
    pub(crate) saying: Saying,
    pub(crate) turns: Turns,
    /// Reads of peers' memory.
    pub(crate) reading: Reading,
    pub(crate) sleep: Sleep,
    /// Sends report that a frame is kept.
    pub(crate) reports_kept: bool,
    pid: u32,
}

impl<B: RmaLink, F: Below> OfiLink<B, F> {
    /// What was in the way of fabrics that would have been better, for people.
    pub fn note_refused(&mut self, refused: &[String]) {
        if self.below.is_some() {
            self.provider.set_lacks(refused.join("; "));
        }
    }

    /// An endpoint whose connections are `base`'s, which no peer is known to yet, with a fabric or (and why)
    /// without.
    pub fn new(base: B, below: Result<F, String>, options: OfiOptions) -> io::Result<OfiLink<B, F>> {
        let provider = Provider::new(below.as_ref());
        let below = below.ok();
        let unseen = below.as_ref().is_some_and(|b| b.wait_fd().is_none_or(|fd| !is_shallow(fd)));
        let reading = Reading::new(below.as_ref().and_then(F::reads));
        let link = OfiLink {
            base,
            below,
            provider,
            options,
            peers: Peers::new(u32::from_le_bytes(random()?)),
            inbox: Inbox::default(),
            saying: Saying::default(),
            turns: Turns::default(),
            reading,
            sleep: Sleep::new(unseen)?,
            reports_kept: false,
            pid: std::process::id(),
        };
        for fd in link.fds() {
            link.sleep.watch(fd)?;
        }
        Ok(link)
    }

    /// The descriptor of the fabric, if one is of use.
    pub(crate) fn fabric_fd(&self) -> Option<RawFd> {
        self.below.as_ref().and_then(F::wait_fd).filter(|_| !self.sleep.is_unseen())
    }

    /// All descriptors that end a sleep.
    pub(crate) fn fds(&self) -> Vec<RawFd> {
        let own = self.sleep.fds();
        let lender = self.below.as_ref().and_then(F::lender_fd);
        let base = (0..).map_while(|n| self.base.wait_fd(WaitFd::Each(n)));
        own.into_iter().chain(base).chain(self.fabric_fd()).chain(lender).collect()
    }

    /// The provider below, for tests.
    pub fn below(&mut self) -> Option<&mut F> {
        self.below.as_mut()
    }

    /// Where messages to a peer go, and what the next one begins with, for tests.
    pub fn next_mark(&self, peer: PeerId) -> Option<(Dest, Mark)> {
        let channel = self.peers.get(peer)?.channel.as_ref()?;
        let (slot, generation) = (channel.far().slot, channel.far().generation);
        Some((channel.far().dest, Mark { slot, generation, number: channel.sent() }))
    }

    /// Whether a frame is with the provider below still, or was lost there.
    pub(crate) fn keeps_frames(&self, peer: PeerId) -> bool {
        let (Some(below), Some(at)) = (&self.below, self.peers.get(peer)) else { return false };
        at.end.is_broken() || at.channel.as_ref().is_some_and(|channel| channel.keeps(below))
    }

    /// Forgets all of a peer but that it is there: what follows is another one, or another time.
    pub(crate) fn reset(&mut self, peer: PeerId) {
        self.peers.add(peer);
        // One that has said bye wants none of those that are under way.
        let losing = self.keeps_frames(peer) && !self.peers.at(peer).farewell.is_heard();
        self.peers.at(peer).end.lose(losing);
        self.end_dealings(peer);
        let old = self.peers.renew(peer);
        if let (Some(channel), Some(below)) = (old.channel, &mut self.below) {
            below.part(channel.far().dest);
        }
        self.saying.drop_of(peer);
    }

    pub(crate) fn is_own(&self, peer: PeerId) -> bool {
        self.base.peer_addr(peer) == self.base.addr()
    }

    /// Whether frames to and from this peer go by the connection.
    pub(crate) fn goes_by_base(&self, peer: PeerId) -> bool {
        self.below.is_none()
            || self.peers.get(peer).is_some_and(|p| p.stage == Stage::Base)
            || self.is_own(peer)
    }

    /// What the way by the fabric is like.
    pub(crate) fn fabric_path(&self) -> Path {
        let most = self.provider.max_frame() - wire::EAGER_HEAD;
        let eager = self.options.eager.min(most);
        let in_a_row = self.options.eager_in_a_row.max(eager).min(most);
        Path {
            link: "ofi",
            max_frame: self.provider.max_frame(),
            eager,
            eager_in_a_row: in_a_row,
            eager_one_way: in_a_row,
            rma: match self.reading.most() {
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
        self.peers.note_restless(peer);
        self.set_timer();
    }

    /// A sleep begins, for which the fabric has said that it has nothing. One whose descriptor is readable
    /// all the same, time and again with nothing there, is polled from now on like one without.
    pub(crate) fn falls_asleep(&mut self) {
        let fd = self.fabric_fd().filter(|_| !self.provider.has_failed());
        if !self.sleep.finds_worn(fd) {
            return;
        }
        log::info!(
            "{}: the fabric's descriptor is readable all the time, and not watched any more",
            self.base.addr()
        );
        fd.into_iter().for_each(|fd| self.sleep.unwatch(fd));
        if let Some(below) = &mut self.below {
            below.unwatch_lender();
        }
        self.sleep.set_unseen();
        self.set_timer();
    }

    /// Sets the timer, by what there is to wait for.
    pub(crate) fn set_timer(&mut self) {
        let polls = self.sleep.is_unseen() && self.peers.iter().any(|p| p.meeting.is_announced())
            || self.below.as_ref().is_some_and(F::is_read_unseen)
            || self.reading.is_waiting();
        let (peers, saying, turns) = (&self.peers, &self.saying, &self.turns);
        self.sleep.set_timer(polls, || peers.has_restless() || !saying.is_empty() || turns.is_waiting());
    }

    /// A peer does what no honest one does.
    #[cold]
    pub(crate) fn spoil(&mut self, peer: PeerId, why: &str) {
        let (own, name) = (self.base.addr(), self.base.peer_addr(peer));
        log::warn!("{own} -> {name}: what it sends is not believed any more: {why}");
        self.cut(peer, Some(Gone::Denied));
    }

    /// Cuts a peer off; its end, which the connection reports, gets this reason. What arrived before is still
    /// polled.
    #[cold]
    pub(crate) fn cut(&mut self, peer: PeerId, why: Option<Gone>) {
        self.reset(peer);
        self.peers.at(peer).end.set_why(why);
        self.base.dismiss(peer, Parting::CutOff);
    }

    /// The fabric has lost a message.
    #[cold]
    pub(crate) fn lost(&mut self, who: u64, why: &str) {
        let (first, who) = (who & FIRST != 0, who & !FIRST);
        let peer = PeerId((who >> 32) as u32);
        let Some(at) = self.peers.get(peer).filter(|at| u64::from(at.generation) == who & 0xffff_ffff) else {
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
        // As a rule its process has ended, which the connection reports.
        log::info!(
            "{} -> {}: the fabric has lost a message: {why}",
            self.base.addr(),
            self.base.peer_addr(peer)
        );
        let until = Instant::now() + self.options.grace;
        self.peers.at(peer).end.break_off(until);
        self.note_restless(peer);
    }

    /// The fabric does nothing any more.
    #[cold]
    pub(crate) fn dead(&mut self, why: &str) {
        log::warn!("{}: the fabric has failed: {why}", self.base.addr());
        self.provider.fail();
        if let Some(fd) = self.fabric_fd() {
            self.sleep.unwatch(fd);
        }
        for peer in self.peers.ids() {
            if self.peers[peer].channel.is_some() {
                self.cut(peer, Some(Gone::Reset));
            }
        }
    }

    /// Says to a peer how much was sent to it.
    fn say_bye(&mut self, peer: PeerId) {
        let at = &mut self.peers[peer];
        let Some(sent) = at.channel.as_ref().map(|c| c.sent()) else { return };
        at.farewell.say(sent);
        self.say(peer, &Control::Bye(sent));
    }

    /// The peers that may still say that all that was sent to them has come, and have not.
    fn owed(&self) -> Vec<PeerId> {
        let is_owed = |peer: &PeerId| {
            let at = &self.peers[*peer];
            let has_all = |c: &Channel| c.is_quiet() || at.farewell.is_answered(c.sent());
            let owes = |c: &Channel| !has_all(c);
            at.channel.as_ref().is_some_and(owes) && !at.end.is_broken()
        };
        self.peers.ids().filter(is_owed).collect()
    }

    /// The process exits. What was sent is to come, as where the endpoint is closed; what comes meanwhile is
    /// kept, and all else as it was, for handlers of exit(3) that run later.
    pub(crate) fn settle_at_exit(&mut self, last: bool) -> bool {
        if std::process::id() != self.pid || self.below.is_none() || self.provider.has_failed() {
            return true;
        }
        for peer in self.owed() {
            // Of what is sent meanwhile when the last answer is there, so that each has one.
            if !self.peers[peer].farewell.is_unanswered() {
                self.say_bye(peer);
            }
        }
        self.poll_all();
        self.inbox.set_aside(&self.peers, &mut self.base, &mut self.below);
        let leaving = self.owed();
        if last {
            self.warn_of_left(&leaving);
        }
        leaving.is_empty() && self.saying.is_empty()
    }

    /// Waits a moment until what was sent has come.
    fn farewell(&mut self) {
        self.peers.ids().for_each(|peer| self.say_bye(peer));
        self.inbox.release_held_base(&mut self.base);
        let until = Instant::now() + self.options.linger;
        loop {
            self.inbox.drop_all(&mut self.base, &mut self.below);
            let leaving = self.owed();
            if leaving.is_empty() && self.saying.is_empty() {
                return;
            }
            if Instant::now() >= until {
                return self.warn_of_left(&leaving);
            }
            self.poll_all();
            if self.inbox.is_empty() {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }

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

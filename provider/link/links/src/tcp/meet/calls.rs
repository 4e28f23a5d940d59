//! Connections that this side makes.

use std::io;
use std::time::{Duration, Instant};

use ipc::{Unshared, Watch};
use link_api::{Event, Gone, PeerId, Refused};
use wire::Addr;
use wire::session::{Caller, Heard, Hello, Keys, MAC, Next, Role, Stranger, Verdict};

use crate::tcp::connections::Connections;
use crate::tcp::meet::agreement::CROSSING;
use crate::tcp::meet::handshake::{Call, Stage, say, versions};
use crate::tcp::meet::meeting::Meeting;
use crate::tcp::meet::names::Unproved;
use crate::tcp::sock::{self, gone};
use crate::tcp::ticks::TICK;
use crate::tcp::watched::token;

/// How long it takes until a peer that does not listen yet is called again.
const AGAIN: Duration = Duration::from_millis(100);

/// How long the kernel tries one of two addresses, before it is the other one's turn.
const ATTEMPT: Duration = Duration::from_secs(1);

/// After how long without an answer of a peer's host that is logged.
const SILENCE: Duration = Duration::from_secs(5);

/// Makes connections to peers.
pub(in crate::tcp) struct Calls<'a> {
    pub(in crate::tcp) conns: &'a mut Connections,
    pub(in crate::tcp) meeting: &'a mut Meeting,
}

impl Calls<'_> {
    /// Makes a connection to a peer that has none, or says why there will be none.
    pub(in crate::tcp) fn call(&mut self, peer: PeerId) -> Result<(), Refused> {
        let at = &mut self.conns.peers[peer];
        if at.cut || at.next.is_some() {
            // Its end is reported first.
            return Err(Refused::Gone(Gone::Reset));
        }
        if at.call.is_some() {
            return Err(Refused::Busy);
        }
        if let Some(why) = at.answers.take_failure(at.met) {
            return Err(Refused::Gone(why));
        }
        let addr = at.addr;
        if !self.conns.agreed.may_call(&addr, Instant::now()) {
            return self.expect_call(peer);
        }
        self.meeting.listening.shortage_mut().calls_again();
        match self.place_call(peer) {
            Ok(()) => Err(Refused::Busy),
            Err(e) if ipc::socket::is_lack(&e) => {
                self.meeting.listening.shortage_mut().of_called(&e);
                Err(Refused::Gone(Gone::Exhausted))
            }
            Err(e) => {
                self.call_failed(peer, gone(&e), &e.to_string());
                let at = &mut self.conns.peers[peer];
                at.answers.take_failure(at.met).map_or(Err(Refused::Busy), |why| Err(Refused::Gone(why)))
            }
        }
    }

    /// The other side's call was accepted, and its confirmation is waited for.
    fn expect_call(&mut self, peer: PeerId) -> Result<(), Refused> {
        match self.conns.own.hello(Role::Caller, self.conns.peers[peer].addr) {
            Ok(own) => self.call_after(peer, Caller::new(&self.conns.options.key, own), CROSSING),
            Err(e) => self.call_failed(peer, Gone::Exhausted, &e.to_string()),
        }
        Err(Refused::Busy)
    }

    /// A call is over, since the other side's was accepted.
    pub(in crate::tcp) fn wait_for_call_of(&mut self, peer: PeerId) {
        if let Some(call) = self.drop_call(peer) {
            self.call_after(peer, call.caller, CROSSING);
        }
    }

    /// The peer is called once more later on, if it is being called. Whether it is.
    fn call_again(&mut self, peer: PeerId) -> bool {
        let call = self.drop_call(peer);
        let is_called = call.is_some();
        if let Some(call) = call {
            self.call_later(peer, call.caller);
        }
        is_called
    }

    fn call_later(&mut self, peer: PeerId, caller: Caller) {
        self.call_after(peer, caller, AGAIN.min(self.conns.options.connect_timeout));
    }

    fn call_after(&mut self, peer: PeerId, caller: Caller, time: Duration) {
        let until = Instant::now() + time;
        let at = &mut self.conns.peers[peer];
        at.trying.get_or_insert_with(Instant::now);
        let call = Call { stage: Stage::Waiting, caller, until, by_further: false, first: None, late: false };
        at.call = Some(Box::new(call));
        self.note_pending(peer);
    }

    /// Whether a peer that does not listen may be about to: it was never met, and that is tried for a short
    /// time only.
    fn is_early(&self, peer: PeerId) -> bool {
        !self.conns.peers[peer].met && self.is_recent(peer)
    }

    /// Whether a connection to a peer has been tried to be made for a short time only.
    fn is_recent(&self, peer: PeerId) -> bool {
        self.is_tried_for_less_than(peer, self.conns.options.connect_timeout)
    }

    fn is_tried_for_less_than(&self, peer: PeerId, most: Duration) -> bool {
        self.conns.peers[peer].trying.is_none_or(|since| since.elapsed() < most)
    }

    /// Calls a peer: by its other address, too, if it has one and the one that was used last leads nowhere.
    fn place_call(&mut self, peer: PeerId) -> io::Result<()> {
        let addr = self.conns.peers[peer].addr;
        let by_further = self.conns.peers[peer].by_further;
        let found = match self.place_call_by(peer, by_further, None) {
            Err(e) if addr.further().is_some() && !ipc::socket::is_lack(&e) => {
                self.place_call_by(peer, !by_further, Some(gone(&e))).map_err(|_| e)
            }
            found => found,
        };
        match found {
            Err(e) if gone(&e) == Gone::Refused && self.is_early(peer) => {
                let caller = Caller::new(&self.conns.options.key, self.conns.own.hello(Role::Caller, addr)?);
                self.call_later(peer, caller);
                Ok(())
            }
            found => found,
        }
    }

    /// Calls a peer by one of its addresses; `first` says why not by the other one, if that was tried.
    fn place_call_by(&mut self, peer: PeerId, by_further: bool, first: Option<Gone>) -> io::Result<()> {
        let other = self.conns.peers[peer].addr;
        let caller = Caller::new(&self.conns.options.key, self.conns.own.hello(Role::Caller, other)?);
        let further = other.further().map(|ip| (ip, other.port()).into());
        let (to, from) = match further.filter(|_| by_further) {
            Some(to) => (to, None),
            None => (other.sock(), self.conns.own.source()),
        };
        let fd = sock::connect(to, from)?;
        sock::tune(&fd, self.conns.options.timeout)?;
        self.conns.sleep.poller().add_for(&fd, token::call(peer), Watch::Write)?;
        let most = if further.is_some() {
            ATTEMPT.min(self.conns.options.timeout)
        } else {
            self.conns.options.timeout
        };
        let until = Instant::now() + most;
        let at = &mut self.conns.peers[peer];
        let call = Call { stage: Stage::Connecting(fd), caller, until, by_further, first, late: false };
        at.call = Some(Box::new(call));
        at.trying.get_or_insert_with(Instant::now);
        self.note_pending(peer);
        Ok(())
    }

    /// Where one address of a peer led to no connection: whether the other one is called. A further address
    /// may be one that another host has as well, so what answers there says nothing of the peer.
    fn call_other(&mut self, peer: PeerId, call: &Call, why: Gone) -> bool {
        let leads_elsewhere = call.by_further || matches!(call.stage, Stage::Connecting(_));
        if !leads_elsewhere || call.first.is_some() || self.conns.peers[peer].addr.further().is_none() {
            return false;
        }
        self.place_call_by(peer, !call.by_further, Some(why)).is_ok()
    }

    /// Whether the kernel had no answer in the time that one of two addresses has, and there is more for
    /// both.
    fn was_cut_short(&self, peer: PeerId, call: &Call) -> bool {
        let at = &self.conns.peers[peer];
        let in_time = at.trying.is_some_and(|since| since.elapsed() < self.conns.options.timeout);
        let connecting = matches!(call.stage, Stage::Connecting(_)) && call.until <= Instant::now();
        at.addr.further().is_some() && connecting && in_time
    }

    /// Whether what took the call has ended it without a word, as a peer does that has too many callers at
    /// the moment, and there is time for another one.
    fn was_turned_away(&self, peer: PeerId, call: &Call, why: Gone) -> bool {
        let in_time =
            self.conns.peers[peer].trying.is_some_and(|since| since.elapsed() < self.conns.options.timeout);
        let ended = match call.stage {
            Stage::Connecting(_) => why == Gone::Reset,
            Stage::Talking(..) => why == Gone::Refused,
            Stage::Waiting => false,
        };
        ended && in_time
    }

    /// A peer is called, or expected.
    pub(in crate::tcp) fn note_pending(&mut self, peer: PeerId) {
        self.meeting.add(peer);
        self.conns.ticks.at_least(TICK);
    }

    /// Something happened to a call.
    pub(in crate::tcp) fn serve_call(&mut self, peer: PeerId) {
        let Some(call) = &mut self.conns.peers[peer].call else { return };
        self.meeting.set_met();
        if let Stage::Connecting(_) = call.stage {
            let done = call.connected();
            call.until = Instant::now() + self.conns.options.timeout;
            match (done, call.fd()) {
                (Ok(()), Some(fd)) => {
                    let _ = self.conns.sleep.poller().change(fd, token::call(peer), Watch::Read);
                    self.conns.peers[peer].answers.set_listens();
                    self.conns.agreed.said(&self.conns.peers[peer].addr);
                }
                (Err(e), _) => self.call_failed(peer, gone(&e), &e.to_string()),
                (Ok(()), None) => {}
            }
            return;
        }
        match call.heard() {
            None => {}
            Some(Ok(message)) => self.hear(peer, &message),
            Some(Err(e)) => self.call_failed(peer, Gone::Refused, &e.to_string()),
        }
    }

    /// Says once of a peer that was never met what keeps it from being met, and what to do.
    fn note_unmet(&mut self, peer: PeerId, why: &str) {
        let at = &mut self.conns.peers[peer];
        if !at.met && !std::mem::replace(&mut at.noted, true) {
            log::warn!("{} -> {}: no connection by tcp: {why}", self.conns.own.addr(), at.addr);
        }
    }

    /// The kernel of the peer's host takes connections whatever its process does, so that it is noted where
    /// none answers.
    fn note_silence(&mut self, peer: PeerId) {
        let at = &self.conns.peers[peer];
        let (Some(Stage::Connecting(_)), Some(since)) = (at.call.as_ref().map(|call| &call.stage), at.trying)
        else {
            return;
        };
        let (waited, most) = (since.elapsed(), self.conns.options.timeout);
        if waited >= SILENCE.min(most) {
            let (port, seconds) = (at.addr.port(), waited.as_secs());
            let why = format!(
                "nothing has answered for {seconds} s, and operations fail after {} s (FI_STRAIT_TCP_TIMEOUT): a firewall \
                 drops what is sent to port {port} there (FI_STRAIT_PORTS names ports to open), or the host is down",
                most.as_secs()
            );
            self.note_unmet(peer, &why);
        }
    }

    fn hear(&mut self, peer: PeerId, message: &[u8]) {
        let Some(call) = &mut self.conns.peers[peer].call else { return };
        let awaits_proof = call.caller.wants() == Hello::LEN + MAC;
        match call.caller.hear(message) {
            Ok(Next::Say(bytes)) => {
                if let Some(Err(e)) = call.fd().map(|fd| say(fd, &bytes)) {
                    self.call_failed(peer, Gone::Refused, &e.to_string());
                }
            }
            Ok(Next::Connected(hello, keys)) => {
                let (stage, by_further) =
                    (std::mem::replace(&mut call.stage, Stage::Waiting), call.by_further);
                let confirmation = call.caller.confirmation();
                if let (Stage::Talking(fd, _), Some(confirmation)) = (stage, confirmation) {
                    self.conns.sleep.poller().remove(&fd);
                    self.meeting.listening.give_spare();
                    let checked = self.meeting.names.check_called(&fd);
                    self.meeting.listening.keep_spare();
                    match checked {
                        Ok(()) => {}
                        Err(Unproved::Ended(why)) => return self.hung_up(peer, &why),
                        Err(Unproved::For(why)) => return self.warn_of(peer, Gone::Denied, &why),
                        Err(Unproved::Lack(errno)) => {
                            let lack = io::Error::from_raw_os_error(errno);
                            self.meeting.listening.shortage_mut().of_called(&lack);
                            if !(self.is_recent(peer) && self.call_again(peer)) {
                                self.call_failed(peer, Gone::Exhausted, "there is no descriptor");
                            }
                            return;
                        }
                    }
                    self.conns.peers[peer].by_further = by_further;
                    self.confirm(peer, (fd, confirmation), keys, &hello);
                }
            }
            Ok(Next::Declined(_, Verdict::Crossing)) => {
                self.wait_for_call_of(peer);
            }
            Ok(Next::Declined(_, Verdict::Busy)) if self.is_tried_for_less_than(peer, self.busy_for()) => {
                self.call_again(peer);
            }
            Ok(Next::Declined(hello, Verdict::Busy)) => {
                let why =
                    format!("{} has a connection to another process by the name of this one", hello.name);
                self.warn_of(peer, Gone::Denied, &why);
            }
            Ok(Next::Declined(hello, Verdict::Known)) => {
                let why = format!("{} is connected already by another name: use one name for it", hello.name);
                self.warn_of(peer, Gone::Denied, &why);
            }
            Ok(Next::Declined(_, Verdict::Full)) if self.is_recent(peer) => {
                self.call_again(peer);
            }
            Ok(Next::Declined(_, Verdict::Full)) => {
                let why = "its process has no descriptor left for a connection: raise ulimit -n there";
                self.warn_of(peer, Gone::Exhausted, why);
            }
            Ok(Next::Declined(_, Verdict::Denied)) => {
                let why = "it does not grant this endpoint its name: its log says why";
                self.warn_of(peer, Gone::Denied, why);
            }
            Ok(Next::Declined(hello, _)) => {
                let why = format!("what answers there is {}, of the same job", hello.name);
                self.warn_of(peer, Gone::Denied, &why);
            }
            Err(Heard::Stranger(Stranger::Version { session, frames })) => {
                self.warn_of(peer, Gone::Denied, &versions(session, frames));
            }
            Err(Heard::Stranger(Stranger::Nonsense)) => {
                self.warn_of(peer, Gone::Denied, "what listens there does not speak this protocol");
            }
            Err(Heard::NotOurs) => {
                // A proof of no key, so that the other side can say that the keys differ.
                let call = self.conns.peers[peer].call.as_ref().filter(|_| awaits_proof);
                if let Some(Err(e)) = call.and_then(|call| call.fd()).map(|fd| say(fd, &[0; MAC])) {
                    log::debug!("{}: it hangs up: {e}", self.conns.own.addr());
                }
                let why = "it has another job key: give all processes of a job the same FI_STRAIT_JOB_KEY";
                self.warn_of(peer, Gone::Denied, why);
            }
        }
    }

    /// For how long a peer is called that has a connection to this one's name: longer than it takes that one
    /// to find out that the host at the other end of that is gone.
    fn busy_for(&self) -> Duration {
        2 * self.conns.options.timeout
    }

    /// A peer has accepted a call.
    fn confirm(
        &mut self,
        peer: PeerId,
        (fd, confirmation): (Unshared, [u8; MAC]),
        keys: Keys,
        hello: &Hello,
    ) {
        // A caller that was slow may have been given up meanwhile.
        if sock::is_finished(&fd) {
            return self.hung_up(peer, "it has given up this side");
        }
        if let Err(e) = say(&fd, &confirmation) {
            return self.call_failed(peer, Gone::Refused, &e.to_string());
        }
        let (addr, conn) = (self.conns.peers[peer].addr, self.meeting.number());
        let (counts, void) = self.conns.agreed.accepted(&addr, conn, hello);
        void.into_iter().for_each(|conn| self.meeting.drop_promise(conn, self.conns.sleep.poller()));
        if counts {
            let channel = self.conns.new_channel(fd, keys, hello, conn);
            self.conns.adopt(peer, channel);
        } else {
            self.drop_call(peer);
        }
    }

    /// A peer has closed a connection that it had accepted, and this end has not used: it is called again,
    /// for as long as a connection may take to be made.
    fn hung_up(&mut self, peer: PeerId, why: &str) {
        let timeout = self.conns.options.timeout;
        if !(self.is_tried_for_less_than(peer, timeout) && self.call_again(peer)) {
            self.warn_of(peer, Gone::Refused, why);
        }
    }

    fn warn_of(&mut self, peer: PeerId, gone: Gone, why: &str) {
        self.conns.peers[peer].noted = true;
        log::warn!("{} -> {}: no connection: {why}", self.conns.own.addr(), self.conns.peers[peer].addr);
        self.call_failed(peer, gone, why);
    }

    /// There will be no connection by this call.
    pub(in crate::tcp) fn call_failed(&mut self, peer: PeerId, why: Gone, reason: &str) {
        log::debug!("{} -> {}: no connection: {reason}", self.conns.own.addr(), self.conns.peers[peer].addr);
        let call = self.drop_call(peer);
        let mut why = why;
        let mut was_taken = false;
        if let Some(call) = call {
            was_taken = matches!(call.stage, Stage::Talking(..)) && !call.by_further;
            if self.call_other(peer, &call, why) {
                return;
            }
            // What its own address says counts: that was tried first, then.
            if call.by_further {
                why = call.first.unwrap_or(why);
            }
            let was_late = call.late && matches!(why, Gone::Refused | Gone::Reset);
            if was_late
                || self.was_turned_away(peer, &call, why)
                || self.was_cut_short(peer, &call)
                || why == Gone::Refused && self.is_early(peer)
            {
                return self.call_later(peer, call.caller);
            }
        }
        match why {
            Gone::Refused if was_taken => self.note_unmet(
                peer,
                "what listens there has closed the connection: it is no endpoint of Strait, or its process has ended",
            ),
            Gone::Refused => self.note_unmet(
                peer,
                "nothing listens there: its process has ended or has not started, or a firewall refuses the port",
            ),
            Gone::Unreachable => self.note_unmet(peer, &format!("no route leads there: {reason}")),
            Gone::TimedOut => self.note_unmet(
                peer,
                "the host has taken the connection and the process does not answer: it is stopped, or makes no progress \
                 (calls nothing of libfabric)",
            ),
            _ => {}
        }
        let at = &mut self.conns.peers[peer];
        if at.expected.take().is_some() {
            self.conns.reports.push(Event::Closed(peer, why));
        } else {
            at.fail(why);
        }
    }

    /// Calls a peer under whose name a connection came that is not from its address: what answers there has
    /// the name. The verdict on that connection.
    pub(in crate::tcp) fn call_back(&mut self, name: &Addr) -> Verdict {
        let Some(peer) = self.conns.peers.find(name).filter(|peer| !self.conns.peers[*peer].is_connected())
        else {
            return Verdict::Denied;
        };
        if self.conns.peers[peer].call.is_none() {
            log::info!(
                "{}: {name} calls from another address, and is called at its own",
                self.conns.own.addr()
            );
            if let Err(Refused::Gone(_)) = self.call(peer) {
                return Verdict::Denied;
            }
        }
        Verdict::Crossing
    }

    pub(in crate::tcp) fn drop_call(&mut self, peer: PeerId) -> Option<Box<Call>> {
        let call = self.conns.peers[peer].call.take()?;
        self.conns.agreed.call_over(&self.conns.peers[peer].addr);
        if let Some(fd) = call.fd() {
            self.conns.sleep.poller().remove(fd);
        }
        Some(call)
    }

    /// Calls that take too long, and expected peers that do not come.
    pub(in crate::tcp) fn check_pending(&mut self, now: Instant) {
        for peer in self.meeting.take() {
            let at = &mut self.conns.peers[peer];
            let late = |call: &Call| call.until <= now;
            if at.call.as_deref().is_some_and(late) {
                if let Some(Stage::Waiting) = at.call.as_ref().map(|call| &call.stage) {
                    // The next send calls again.
                    at.call = None;
                } else {
                    self.note_silence(peer);
                    self.call_failed(peer, Gone::TimedOut, "it did not answer in time");
                }
            }
            let at = &mut self.conns.peers[peer];
            match at.expected {
                Some((until, false)) if until <= now && at.call.is_none() => {
                    at.expected = Some((until, true));
                    if let Err(Refused::Gone(why)) = self.call(peer) {
                        self.call_failed(peer, why, "it was expected");
                    }
                }
                // The other side's call was waited for in vain.
                Some((until, true)) if at.call.is_none() => at.expected = Some((until, false)),
                _ => {}
            }
            self.note_silence(peer);
            let at = &mut self.conns.peers[peer];
            if at.call.is_some() || at.expected.is_some() {
                self.meeting.add(peer);
            }
        }
    }
}

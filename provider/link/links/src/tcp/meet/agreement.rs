//! Which connection to a peer counts: of calls that cross, and of a call under the name of a peer that is
//! connected.
//!
//! No IO and no clock: the link says what happened, and does what is decided here.
//!
//! - An answerer that has accepted a call has promised it: the connection counts for it when the caller has
//!   confirmed. The caller may have given up the call meanwhile.
//! - A caller that has accepted, or promised, another connection gives up its call before it says so: it
//!   confirms one of both, or neither.
//! - Of two calls that cross, the one of the lower name counts, and the other is declined: there is one
//!   connection at last.
//! - A connection that stands is replaced only when it is known to have ended: by its kernel's FIN or RST, or
//!   after the time in which its host has answered nothing. What a caller says is no evidence, since each
//!   process of the job can say it.
//! - A promise is kept until the same is known of it, or this side's own call was accepted: where the peer
//!   accepts a call, it has given up its own.
//!
//! Nothing here depends on what is known of other peers, nor on whether the peer was forgotten in between.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use wire::Addr;
use wire::session::{Hello, Verdict};

#[cfg(all(test, not(loom)))]
mod explored;
#[cfg(all(test, not(loom)))]
mod model;
#[cfg(all(test, not(loom)))]
mod twins;

/// How long the other side's own call is waited for, which counts instead of this side's.
pub(in crate::tcp) const CROSSING: Duration = Duration::from_secs(1);
/// Between two probes of a connection whose peer's name is called by.
const PROBES: Duration = Duration::from_secs(1);

/// The number of a connection at this endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::tcp) struct Conn(pub(in crate::tcp) u64);

/// A connection that both sides have agreed on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Standing {
    conn: Conn,
    /// Which endpoint is at the other end, and what that one calls this one.
    instance: u64,
    called: Addr,
}

/// What there is of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Named {
    /// This side calls, and has said so.
    said: bool,
    /// A call of the other side's that was accepted and is not confirmed, and since when.
    promise: Option<(Conn, Instant)>,
    stands: Option<Standing>,
    /// When that one was probed last.
    probed: Option<Instant>,
}

/// What comes of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Answer {
    /// It is accepted. A call of this side's is over.
    Promised,
    /// It is not, for this reason.
    Declined(Verdict),
    /// Nor is it, and the connection that stands is to be probed: whether its other end is there.
    Probe,
}

impl Answer {
    pub(in crate::tcp) fn verdict(self) -> Verdict {
        match self {
            Answer::Promised => Verdict::Accepted,
            Answer::Declined(verdict) => verdict,
            Answer::Probe => Verdict::Busy,
        }
    }
}

/// The connections of an endpoint, by the names of its peers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::tcp) struct Agreements {
    own: Addr,
    names: BTreeMap<Addr, Named>,
}

impl Agreements {
    pub(in crate::tcp) fn new(own: Addr) -> Agreements {
        Agreements { own, names: BTreeMap::new() }
    }

    fn change<T>(&mut self, name: &Addr, how: impl FnOnce(&mut Named) -> T) -> T {
        let at = self.names.entry(*name).or_default();
        let found = how(at);
        if !at.said && at.promise.is_none() && at.stands.is_none() {
            self.names.remove(name);
        }
        found
    }

    /// Whether a call to this name is of use. The confirmation of a caller that was accepted is waited for,
    /// but not for long: it may be one that only says to be this peer.
    pub(in crate::tcp) fn may_call(&self, name: &Addr, now: Instant) -> bool {
        let Some(at) = self.names.get(name) else { return true };
        let is_recent = |since: Instant| now.saturating_duration_since(since) < CROSSING;
        at.stands.is_none() && !at.promise.is_some_and(|(_, since)| is_recent(since))
    }

    /// A call to this name has reached the other side's host, and says hello.
    pub(in crate::tcp) fn said(&mut self, name: &Addr) {
        self.change(name, |at| at.said = true);
    }

    /// A call to this name has come to nothing, or was given up.
    pub(in crate::tcp) fn call_over(&mut self, name: &Addr) {
        self.change(name, |at| at.said = false);
    }

    /// A caller that has the key says this, and `conn` is the connection that it has made. `has_ended`:
    /// whether the one that stands is known to have.
    pub(in crate::tcp) fn called(
        &mut self,
        caller: &Hello,
        conn: Conn,
        has_ended: impl FnOnce(Conn) -> bool,
        now: Instant,
    ) -> Answer {
        let (by_name, is_first) = (caller.other == self.own, self.own < caller.name);
        self.change(&caller.name, |at| {
            if at.stands.as_ref().is_some_and(|stands| has_ended(stands.conn)) {
                at.stands = None;
            }
            if let Some(stands) = &at.stands {
                if stands.instance == caller.instance && stands.called != caller.other {
                    // It has both, and calls this endpoint by two names.
                    return Answer::Declined(Verdict::Known);
                }
                if at.probed.is_some_and(|at| now.saturating_duration_since(at) < PROBES) {
                    return Answer::Declined(Verdict::Busy);
                }
                at.probed = Some(now);
                return Answer::Probe;
            }
            if at.promise.is_some() {
                return Answer::Declined(Verdict::Busy);
            }
            if at.said && by_name && is_first {
                return Answer::Declined(Verdict::Crossing);
            }
            (at.said, at.promise) = (false, Some((conn, now)));
            Answer::Promised
        })
    }

    /// The caller that was promised this connection has confirmed it. Whether it counts; else it is to be
    /// closed.
    pub(in crate::tcp) fn confirmed(&mut self, caller: &Hello, conn: Conn) -> bool {
        self.change(&caller.name, |at| {
            if at.promise.is_none_or(|(promised, _)| promised != conn) {
                return false;
            }
            (at.promise, at.said) = (None, false);
            at.stand(conn, caller);
            true
        })
    }

    /// The peer of this name has accepted this side's call, `conn`, and says this. Whether the connection
    /// counts, else it is to be closed; and the promise that is void by that, if there is one.
    pub(in crate::tcp) fn accepted(
        &mut self,
        name: &Addr,
        conn: Conn,
        hello: &Hello,
    ) -> (bool, Option<Conn>) {
        self.change(name, |at| {
            at.said = false;
            if at.stands.is_some() {
                return (false, None);
            }
            at.stand(conn, hello);
            (true, at.promise.take().map(|(conn, _)| conn))
        })
    }

    /// A connection to this name, one that stands or was promised, has ended.
    pub(in crate::tcp) fn ended(&mut self, name: &Addr, conn: Conn) {
        self.change(name, |at| {
            at.promise = at.promise.filter(|(promised, _)| *promised != conn);
            at.stands = at.stands.take().filter(|stands| stands.conn != conn);
        });
    }
}

impl Named {
    fn stand(&mut self, conn: Conn, hello: &Hello) {
        self.stands = Some(Standing { conn, instance: hello.instance, called: hello.other });
        self.probed = None;
    }
}

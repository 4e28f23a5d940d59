//! What the model runs: [`Agreements`], and the same with one rule broken.

use std::time::{Duration, Instant};

use wire::Addr;
use wire::session::{Hello, Role, Verdict};

use super::{Agreements, Answer, Conn};

/// What an endpoint decides by.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Rules {
    broken: Broken,
    start: Instant,
    agreed: Agreements,
    /// What hellos had before: how many connections had ended at this endpoint, when one to the peer did last
    /// and when a peer was forgotten last; and what the peer said in the connection that stands.
    ended: u8,
    forgotten: u8,
    of_peer: Option<u8>,
    said: u8,
}

/// Which rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Broken {
    None,
    /// A caller with a higher epoch is later than the connection that stands.
    Epoch,
    /// One with another instance is.
    Instance,
    /// What was accepted counts without a confirmation.
    Confirmation,
    /// A caller that has promised another connection goes on calling.
    KeepsCalling,
    /// A promise is broken for a later caller.
    Promise,
    /// The connection that follows another is replaced before that one's end was told.
    Next,
}

/// A name.
pub(super) fn name(which: usize) -> Addr {
    Addr::new(([10, 0, 0, 1 + which as u8], 7).into())
}

pub(super) fn hello(from: usize, to: usize, instance: u8) -> Hello {
    let (name, other) = (name(from), name(to));
    Hello { role: Role::Caller, instance: instance.into(), name, other, nonce: [0; 32] }
}

impl Rules {
    pub(super) fn new(broken: Broken, own: usize, start: Instant) -> Rules {
        let agreed = Agreements::new(name(own));
        Rules { broken, start, agreed, ended: 0, forgotten: 0, of_peer: None, said: 0 }
    }

    /// The same in a new process.
    pub(super) fn anew(&self, own: usize) -> Rules {
        Rules::new(self.broken, own, self.start)
    }

    pub(super) fn confirms(&self) -> bool {
        self.broken != Broken::Confirmation
    }

    pub(super) fn keeps_calling(&self) -> bool {
        self.broken == Broken::KeepsCalling
    }

    pub(super) fn replaces_next(&self) -> bool {
        self.broken == Broken::Next
    }

    /// The epoch that a hello had.
    pub(super) fn epoch(&self) -> u8 {
        if self.broken == Broken::Epoch { self.of_peer.unwrap_or(self.forgotten) } else { 0 }
    }

    pub(super) fn forget(&mut self) {
        if self.broken == Broken::Epoch {
            self.forgotten = self.forgotten.max(self.of_peer.take().unwrap_or(0));
        }
    }

    /// A connection to another peer has ended, and that peer was forgotten.
    pub(super) fn forget_another(&mut self) {
        if self.broken == Broken::Epoch {
            self.ended += 1;
            self.forgotten = self.ended;
        }
    }

    pub(super) fn may_call(&self, peer: usize) -> bool {
        // Any time may have passed.
        self.agreed.may_call(&name(peer), self.start + Duration::from_secs(60))
    }

    pub(super) fn placed(&mut self) {
        if self.broken == Broken::Epoch {
            self.of_peer.get_or_insert(self.forgotten);
        }
    }

    pub(super) fn said(&mut self, peer: usize) {
        self.agreed.said(&name(peer));
    }

    pub(super) fn call_over(&mut self, peer: usize) {
        self.agreed.call_over(&name(peer));
    }

    pub(super) fn called(&mut self, caller: &Hello, epoch: u8, conn: Conn, has_ended: bool) -> Answer {
        let (broken, said) = (self.broken, self.said);
        self.agreed.change(&caller.name, |at| {
            let is_later = |stands: &mut super::Standing| match broken {
                Broken::Epoch => epoch > said,
                Broken::Instance => stands.instance != caller.instance,
                _ => false,
            };
            at.stands.take_if(is_later);
            if broken == Broken::Promise {
                at.promise = None;
            }
        });
        let answer = self.agreed.called(caller, conn, |_| has_ended, self.start);
        if answer == Answer::Promised {
            self.placed();
        }
        match answer {
            // When it was probed makes no difference.
            Answer::Probe => Answer::Declined(Verdict::Busy),
            answer => answer,
        }
    }

    pub(super) fn confirmed(&mut self, caller: &Hello, epoch: u8, conn: Conn) -> bool {
        self.said = epoch;
        self.agreed.confirmed(caller, conn)
    }

    pub(super) fn accepted(&mut self, hello: &Hello, epoch: u8, conn: Conn) -> (bool, Option<Conn>) {
        self.said = epoch;
        self.agreed.accepted(&hello.name, conn, hello)
    }

    pub(super) fn ended(&mut self, peer: usize, conn: Conn, counted: bool) {
        self.agreed.ended(&name(peer), conn);
        if counted && self.broken == Broken::Epoch {
            self.ended += 1;
            self.of_peer = Some(self.ended);
        }
    }
}

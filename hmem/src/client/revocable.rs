//! What an adapter has registered of a client's memory, which the client may take back at any time and from
//! any thread.
//!
//! What takes it back puts the queue pairs in error that have requests under way which name it, since nothing
//! need poll for their completions, and ends the registration; so the adapter has no access when the client
//! gets its memory. All else is up to the thread of the endpoint, which finds the registration gone.

use std::sync::{Arc, PoisonError};

#[cfg(all(test, loom))]
use super::twins::Twin;
use super::twins::forgets;

#[cfg(all(test, loom))]
use loom::sync::{Mutex, MutexGuard};
#[cfg(not(all(test, loom)))]
use std::sync::{Mutex, MutexGuard};

/// An adapter, and what its objects are.
pub trait Adapter {
    /// A registration, with all of its keys.
    type Mr;
    /// A queue pair, as any thread puts it in error. Clones are of the same one.
    type Pair: Clone;
    /// Why a call was refused.
    type Refused: Copy;

    /// Ends a registration: the adapter accesses its memory no more, unless this is refused.
    fn deregister(mr: Self::Mr) -> Result<(), Self::Refused>;

    /// Puts a queue pair in error: its requests, and those of its peer, access nothing more.
    fn fail(pair: &Self::Pair);

    /// Whether both are of one queue pair.
    fn is_same(one: &Self::Pair, other: &Self::Pair) -> bool;
}

struct State<A: Adapter> {
    mr: Option<A::Mr>,
    is_revoked: bool,
    /// Why it could not be ended.
    failure: Option<A::Refused>,
    /// The queue pairs that requests were posted to since none was under way.
    users: Vec<A::Pair>,
    /// That of the peer whose domain it is in.
    peer: Option<A::Pair>,
    #[cfg(all(test, loom))]
    twin: Twin,
}

impl<A: Adapter> State<A> {
    /// Ends the registration. Where that is refused the peer's queue pair ends, by which the peer has a key.
    fn end(&mut self) {
        if let Some(Err(why)) = self.mr.take().map(A::deregister) {
            self.failure = Some(why);
            if !forgets!(self, KeepsPeer) {
                self.peer.iter().for_each(A::fail);
            }
        }
    }

    fn fail_users(&mut self) {
        self.users.drain(..).for_each(|user| A::fail(&user));
    }
}

/// A registration of a client's memory with an adapter. Clones are of the same one.
pub struct Revocable<A: Adapter>(Arc<Mutex<State<A>>>);

impl<A: Adapter> Clone for Revocable<A> {
    fn clone(&self) -> Self {
        Revocable(Arc::clone(&self.0))
    }
}

impl<A: Adapter> std::fmt::Debug for Revocable<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Revocable")
    }
}

impl<A: Adapter> Revocable<A> {
    /// Nothing is registered yet. `peer`: the queue pair that alone uses the domain where it is going to be.
    pub fn new(peer: Option<A::Pair>) -> Self {
        Revocable(Arc::new(Mutex::new(State {
            mr: None,
            is_revoked: false,
            failure: None,
            users: Vec::new(),
            peer,
            #[cfg(all(test, loom))]
            twin: Twin::Sound,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, State<A>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client takes the memory back: when this returns the adapter has it no more.
    pub fn revoke(&self) {
        let mut state = self.lock();
        state.is_revoked = true;
        if forgets!(state, DeregistersFirst) {
            state.end();
        }
        state.fail_users();
        state.end();
    }

    /// Registers the memory, which the client has mapped; `None`: it has taken it back since.
    pub fn register<T, E>(&self, make: impl FnOnce() -> Result<(A::Mr, T), E>) -> Option<Result<T, E>> {
        let mut state = self.lock();
        if state.is_revoked && !forgets!(state, RegistersRevoked) {
            return None;
        }
        Some(make().map(|(mr, made)| {
            state.mr = Some(mr);
            made
        }))
    }

    /// Whether the client has not taken the memory back.
    pub fn is_there(&self) -> bool {
        !self.lock().is_revoked
    }

    /// A request that names it is about to be posted to this queue pair; `false`: the memory was taken back.
    pub fn begin(&self, on: &A::Pair) -> bool {
        let mut state = self.lock();
        let is_known = state.users.iter().any(|user| A::is_same(user, on)) || forgets!(state, BeginsUnseen);
        let is_there = !state.is_revoked || forgets!(state, BeginsRevoked);
        if is_there && !is_known {
            state.users.push(on.clone());
        }
        is_there
    }

    /// No request that names it is under way.
    pub fn note_idle(&self) {
        self.lock().users.clear();
    }

    /// Ends the registration, if it was not taken back; an error says that the adapter has the memory still.
    pub fn end(&self) -> Result<(), A::Refused> {
        let mut state = self.lock();
        state.end();
        state.failure.map_or(Ok(()), Err)
    }
}

#[cfg(all(test, loom))]
#[path = "revocable_loom.rs"]
mod loom_tests;

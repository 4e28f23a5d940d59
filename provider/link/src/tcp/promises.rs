//! What there is of callers that were accepted and have not confirmed.

use std::time::Instant;

use ipc::Unshared;
use wire::session::Proven;

use super::agreement::Conn;
use super::handshake::Message;

/// A connection that its caller has not confirmed yet.
#[derive(Debug)]
pub(super) struct Promise {
    pub(super) fd: Unshared,
    pub(super) proven: Box<Proven>,
    pub(super) conn: Conn,
    pub(super) since: Instant,
    pub(super) message: Message,
}

/// All of an endpoint.
#[derive(Debug, Default)]
pub(super) struct Promises {
    all: Vec<Option<Promise>>,
    /// Connections that have been numbered.
    conns: u64,
}

impl Promises {
    /// The number of a new connection.
    pub(super) fn number(&mut self) -> Conn {
        self.conns += 1;
        Conn(self.conns)
    }

    /// For a forked process that holds them, too.
    pub(super) fn shut_down(&self) {
        self.all.iter().flatten().for_each(|promise| ipc::socket::shutdown(&promise.fd));
    }

    pub(super) fn get(&mut self, at: usize) -> Option<&mut Promise> {
        self.all.get_mut(at)?.as_mut()
    }

    pub(super) fn take(&mut self, at: usize) -> Option<Promise> {
        let promise = self.all.get_mut(at)?.take();
        while self.all.last().is_some_and(Option::is_none) {
            self.all.pop();
        }
        promise
    }

    pub(super) fn put(&mut self, at: usize, promise: Promise) {
        if at == self.all.len() {
            self.all.push(None);
        }
        self.all[at] = Some(promise);
    }

    pub(super) fn find(&self, is_it: impl Fn(&Promise) -> bool) -> Option<usize> {
        self.all.iter().position(|promise| promise.as_ref().is_some_and(&is_it))
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.all.iter().flatten().count()
    }

    /// The one that waits longest, and since when.
    pub(super) fn oldest(&self) -> Option<(usize, Instant)> {
        let all = self.all.iter().enumerate();
        all.filter_map(|(at, promise)| promise.as_ref().map(|promise| (at, promise.since)))
            .min_by_key(|(_, since)| *since)
    }

    /// A place for one more.
    pub(super) fn find_free(&self) -> usize {
        self.all.iter().position(Option::is_none).unwrap_or(self.all.len())
    }
}

//! What there is of callers that were accepted and have not confirmed.

use std::time::Instant;

use ipc::Unshared;
use wire::session::Proven;

use crate::tcp::meet::agreement::Conn;
use crate::tcp::meet::handshake::Message;

/// A connection that its caller has not confirmed yet.
#[derive(Debug)]
pub(in crate::tcp) struct Promise {
    pub(in crate::tcp) fd: Unshared,
    pub(in crate::tcp) proven: Box<Proven>,
    pub(in crate::tcp) conn: Conn,
    pub(in crate::tcp) since: Instant,
    pub(in crate::tcp) message: Message,
}

/// All of an endpoint.
#[derive(Debug, Default)]
pub(in crate::tcp) struct Promises {
    all: Vec<Option<Promise>>,
    /// Connections that have been numbered.
    conns: u64,
}

impl Promises {
    /// The number of a new connection.
    pub(in crate::tcp) fn number(&mut self) -> Conn {
        self.conns += 1;
        Conn(self.conns)
    }

    /// For a forked process that holds them, too.
    pub(in crate::tcp) fn shut_down(&self) {
        self.all.iter().flatten().for_each(|promise| ipc::socket::shutdown(&promise.fd));
    }

    pub(in crate::tcp) fn get(&mut self, at: usize) -> Option<&mut Promise> {
        self.all.get_mut(at)?.as_mut()
    }

    pub(in crate::tcp) fn take(&mut self, at: usize) -> Option<Promise> {
        let promise = self.all.get_mut(at)?.take();
        while self.all.last().is_some_and(Option::is_none) {
            self.all.pop();
        }
        promise
    }

    pub(in crate::tcp) fn put(&mut self, at: usize, promise: Promise) {
        if at == self.all.len() {
            self.all.push(None);
        }
        self.all[at] = Some(promise);
    }

    pub(in crate::tcp) fn find(&self, is_it: impl Fn(&Promise) -> bool) -> Option<usize> {
        self.all.iter().position(|promise| promise.as_ref().is_some_and(&is_it))
    }

    /// How many there are.
    pub(in crate::tcp) fn len(&self) -> usize {
        self.all.iter().flatten().count()
    }

    /// The one that waits longest, and since when.
    pub(in crate::tcp) fn oldest(&self) -> Option<(usize, Instant)> {
        let all = self.all.iter().enumerate();
        all.filter_map(|(at, promise)| promise.as_ref().map(|promise| (at, promise.since)))
            .min_by_key(|(_, since)| *since)
    }

    /// A place for one more.
    pub(in crate::tcp) fn find_free(&self) -> usize {
        self.all.iter().position(Option::is_none).unwrap_or(self.all.len())
    }
}

//! Connections that are being made: by this side to peers that are called, or expected, and by others.

use std::net::IpAddr;

use ipc::Poller;
use link_api::PeerId;
use meet::Strangers;

use crate::tcp::meet::agreement::Conn;
use crate::tcp::meet::handshake::Guest;
use crate::tcp::meet::listening::Listening;
use crate::tcp::meet::names::Names;
use crate::tcp::meet::promises::Promise;
use crate::tcp::options::TcpOptions;

/// Those connections, the numbers of connections, and where others make theirs.
#[derive(Debug)]
pub(in crate::tcp) struct Meeting {
    pub(in crate::tcp) listening: Listening,
    pub(in crate::tcp) names: Names,
    pub(in crate::tcp) guests: Strangers<IpAddr, Guest>,
    pub(in crate::tcp) promises: Strangers<(), Promise>,
    /// Peers that are called, or expected.
    pending: Vec<PeerId>,
    /// Connections that have been numbered.
    conns: u64,
    /// A connection that is being made has come further.
    met: bool,
}

impl Meeting {
    pub(in crate::tcp) fn new(listening: Listening, options: &TcpOptions) -> Meeting {
        Meeting {
            listening,
            names: Names::new(options.secret),
            guests: Strangers::new(options.guests),
            promises: Strangers::new(options.guests),
            pending: Vec::new(),
            conns: 0,
            met: false,
        }
    }

    /// Whether no connection is being made, and no peer is expected.
    pub(in crate::tcp) fn is_quiet(&self) -> bool {
        self.pending.is_empty() && self.guests.is_empty() && self.promises.is_empty()
    }

    /// The first promise of which `is_it` holds.
    pub(in crate::tcp) fn find_promise(&self, is_it: impl Fn(&Promise) -> bool) -> Option<usize> {
        self.promises.iter().find(|(_, promise)| is_it(promise)).map(|(at, _)| at)
    }

    pub(in crate::tcp) fn take_promise(&mut self, at: usize, poller: &Poller) -> Option<Promise> {
        let promise = self.promises.take(at)?;
        poller.remove(&promise.fd);
        Some(promise)
    }

    /// This side's own call was accepted instead.
    pub(in crate::tcp) fn drop_promise(&mut self, conn: Conn, poller: &Poller) {
        if let Some(at) = self.find_promise(|promise| promise.conn == conn) {
            self.take_promise(at, poller);
        }
    }

    /// Whether no peer is called, or expected.
    pub(in crate::tcp) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub(in crate::tcp) fn iter(&self) -> std::slice::Iter<'_, PeerId> {
        self.pending.iter()
    }

    /// A peer is called, or expected.
    pub(in crate::tcp) fn add(&mut self, peer: PeerId) {
        if !self.pending.contains(&peer) {
            self.pending.push(peer);
        }
    }

    pub(in crate::tcp) fn remove(&mut self, peer: PeerId) {
        self.pending.retain(|known| *known != peer);
    }

    /// Takes all of them out: those are added again that are still called, or expected.
    pub(in crate::tcp) fn take(&mut self) -> Vec<PeerId> {
        std::mem::take(&mut self.pending)
    }

    /// The number of a new connection.
    pub(in crate::tcp) fn number(&mut self) -> Conn {
        self.conns += 1;
        Conn(self.conns)
    }

    /// A connection that is being made has come further.
    pub(in crate::tcp) fn set_met(&mut self) {
        self.met = true;
    }

    /// Whether one has, since this was asked last.
    pub(in crate::tcp) fn take_met(&mut self) -> bool {
        std::mem::take(&mut self.met)
    }
}

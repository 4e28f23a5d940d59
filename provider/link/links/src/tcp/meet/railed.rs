//! Peers whose connections may have rails, and where these are made to.

use std::net::SocketAddr;

use link_api::PeerId;

#[derive(Debug)]
pub(in crate::tcp) struct Railed {
    /// All addresses of this endpoint at which rails may be made.
    at: Vec<SocketAddr>,
    peers: Vec<PeerId>,
}

impl Railed {
    pub(in crate::tcp) fn new(at: Vec<SocketAddr>) -> Railed {
        Railed { at, peers: Vec::new() }
    }

    /// The addresses of this endpoint at which rails may be made.
    pub(in crate::tcp) fn addrs(&self) -> &[SocketAddr] {
        &self.at
    }

    pub(in crate::tcp) fn peers(&self) -> &[PeerId] {
        &self.peers
    }

    /// The connection of a peer may have rails.
    pub(in crate::tcp) fn add(&mut self, peer: PeerId) {
        if !self.peers.contains(&peer) {
            self.peers.push(peer);
        }
    }

    pub(in crate::tcp) fn remove(&mut self, peer: PeerId) {
        self.peers.retain(|known| *known != peer);
    }
}

//! The end of an endpoint's link, as its peers see it.
//!
//! A peer may have sent what is not read any more. What it sends once this is over must not be taken for sent: so the
//! ring of each channel is marked ([`wake::close`]), also of those that were made to the listener and not met yet. Its
//! socket ends before: a sender that finds the mark finds the end, too, and what listens under the name by then.

use std::os::fd::OwnedFd;

use ipc::credentials::{Cred, User};
use ipc::rights;
use ipc::socket;
use wire::channel::Hello;

use super::link::ShmLink;
use super::ring::Consumer;
use super::wake;

impl Drop for ShmLink {
    fn drop(&mut self) {
        // A forked child only closes its copies. The endpoint's own process ends the connections
        // for good, even while a child still holds copies.
        if self.own.is_forked() {
            return;
        }
        // Copies in flight are from or to peers' memory: before these see the end of the connection.
        self.copies.cancel_all();
        if !self.access.is_closed() {
            let _ = self.access.close(&self.own, &self.peers);
        }
        // The listener first: a peer that sees its channel end finds nothing to connect to.
        self.listening.shut_down();
        let mut ins: Vec<_> = self.contests.take().collect();
        for mut peer in self.peers.take() {
            if let Some(out) = &peer.out {
                socket::shutdown(&out.sock);
            }
            ins.extend(peer.inb.take());
            ins.append(&mut peer.waiting);
        }
        for mut inb in ins {
            socket::shutdown(&inb.sock);
            wake::close(&mut inb.rx);
        }
        for guest in self.listening.guests_mut().take_all() {
            self.close_unmet(&guest.sock, guest.said);
        }
        // Those that were not accepted yet, which a child's copy of the listener would keep; each takes two descriptors.
        self.listening.give_reserve();
        while let Ok(sock) = self.listening.accept() {
            self.close_unmet(&sock, None);
        }
    }
}

impl ShmLink {
    /// Ends a connection of which no channel has come to be, and marks the ring that its hello brings, if one was `said`
    /// or waits to be received.
    fn close_unmet(&self, sock: &OwnedFd, said: Option<(Vec<u8>, Option<OwnedFd>)>) {
        // From now on no hello can be sent.
        socket::shutdown(sock);
        let ours = || Cred::of(sock).is_ok_and(|cred| cred.user(sock) == User::Ours);
        let (bytes, fd) = match said {
            Some(said) => said,
            None if ours() => {
                let mut bytes = [0; Hello::LEN + 1];
                match rights::recv_fd(sock, &mut bytes) {
                    Ok((n, fd)) => (bytes[..n].to_vec(), fd),
                    Err(_) => return,
                }
            }
            None => return,
        };
        if let Ok((_, segment)) = self.admit(&bytes, fd.as_ref()) {
            wake::close(&mut Consumer::new(segment));
        }
    }
}

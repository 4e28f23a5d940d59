//! Windows that change hands: requests and answers on the sockets of channels.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ipc::{rights, socket};
use wire::Addr;
use wire::channel::Packet;

use crate::shm::memory::windows::{Import, WindowId, Windows, adopt};

impl Windows {
    /// The peer at the other end of `sock` asks for a window of this process.
    pub(in crate::shm) fn grant(&self, sock: &OwnedFd, window: WindowId, own: Addr) {
        let sent = (self.maker() == window.maker).then(|| {
            self.with_fd(window.number, |fd| rights::send_fd(sock, &Packet::Grant(window).encode(), fd))
        });
        match sent.flatten() {
            None => socket::notify(sock, &Packet::Deny(window).encode()),
            // It will ask again, for a while.
            Some(Err(e)) => {
                log::debug!("{own}: a window could not be sent: {e}");
                socket::notify(sock, &Packet::Grant(window).encode());
            }
            Some(Ok(())) => {}
        }
    }

    /// A peer grants a window of its own.
    pub(in crate::shm) fn granted(&self, window: WindowId, fd: Option<OwnedFd>, own: Addr, peer: Addr) {
        match fd.as_ref().map(adopt) {
            Some(Ok(mapping)) => self.answer(window, Import::Here(Arc::new(mapping))),
            Some(Err(why)) => {
                log::warn!("{own}: refused a window of {peer}: {why}");
                self.answer(window, Import::Denied);
            }
            None if self.bare(window) => log::warn!(
                "{own}: {peer} grants a window, of which no descriptor comes: raise the limit of descriptors (ulimit -n) \
                 here or there; memory is accessed by requests"
            ),
            None => {}
        }
    }

    /// A peer has no such window.
    pub(in crate::shm) fn deny(&self, window: WindowId) {
        self.answer(window, Import::Denied);
    }
}

#[cfg(all(test, not(loom)))]
#[path = "window_tests.rs"]
mod tests;

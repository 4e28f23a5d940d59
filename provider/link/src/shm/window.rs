//! Windows that change hands: what is asked for and answered on the sockets of channels.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ipc::{rights, socket};
use link_api::{PeerId, Refused};
use wire::channel::Packet;

use super::link::ShmLink;
use super::windows::{Import, WindowId, adopt};

impl ShmLink {
    /// Asks a peer for a window, connecting if need be. Once it is there, [`Windows::find`] has it;
    /// until then it may be called again at any time.
    pub fn want(&mut self, from: PeerId, id: WindowId) -> Result<(), Refused> {
        if self.peers[from.0].out.is_none() {
            self.open_channel(from.0)?;
        }
        let Some(windows) = &self.options.windows else { return Ok(()) };
        if let Some(out) = &self.peers[from.0].out {
            if windows.ask(id) {
                socket::notify(&out.sock, &Packet::Want(id).encode());
                return Ok(());
            }
        }
        // The answer may be here: a program that only puts and gets has no other reason to poll.
        self.service();
        Ok(())
    }

    /// A peer asks for a window of ours.
    pub(super) fn hear_want(&self, id: u32, window: WindowId) {
        let Some(inb) = &self.peers[id].inb else { return };
        let windows = self.options.windows.as_ref().filter(|w| w.maker() == window.maker);
        let sent = windows.and_then(|w| {
            w.with_fd(window.number, |fd| rights::send_fd(&inb.sock, &Packet::Grant(window).encode(), fd))
        });
        match sent {
            None => socket::notify(&inb.sock, &Packet::Deny(window).encode()),
            // It will ask again, for a while.
            Some(Err(e)) => {
                log::debug!("{}: a window could not be sent: {e}", self.own.addr());
                socket::notify(&inb.sock, &Packet::Grant(window).encode());
            }
            Some(Ok(())) => {}
        }
    }

    /// A peer grants a window of its own.
    pub(super) fn hear_grant(&self, id: u32, window: WindowId, fd: Option<OwnedFd>) {
        let Some(windows) = &self.options.windows else { return };
        let peer = self.peers[id].addr;
        match fd.as_ref().map(adopt) {
            Some(Ok(mapping)) => windows.answer(window, Import::Here(Arc::new(mapping))),
            Some(Err(why)) => {
                log::warn!("{}: refused a window of {peer}: {why}", self.own.addr());
                windows.answer(window, Import::Denied);
            }
            None if windows.bare(window) => log::warn!(
                "{}: {peer} grants a window, of which no descriptor comes: raise the limit of descriptors (ulimit -n) \
                 here or there; memory is accessed by requests",
                self.own.addr()
            ),
            None => {}
        }
    }

    /// A peer has no such window.
    pub(super) fn hear_denial(&self, window: WindowId) {
        if let Some(windows) = &self.options.windows {
            windows.answer(window, Import::Denied);
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "window_tests.rs"]
mod tests;

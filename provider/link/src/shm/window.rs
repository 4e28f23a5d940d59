//! Windows that change hands: what is asked for and answered on the sockets of channels.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ipc::{rights, socket};
use link_api::{PeerId, Refused};

use super::link::ShmLink;
use super::windows::{DENY, GRANT, Import, WANT, WindowId, adopt};

impl ShmLink {
    /// Asks a peer for a window, connecting if need be. Once it is there, [`Windows::find`] has it;
    /// until then it may be called again at any time.
    pub fn want(&mut self, from: PeerId, id: WindowId) -> Result<(), Refused> {
        if self.peers[from.0 as usize].out.is_none() {
            self.open_channel(from.0)?;
        }
        let Some(windows) = &self.options.windows else { return Ok(()) };
        if let Some(out) = &self.peers[from.0 as usize].out {
            if windows.ask(id) {
                socket::notify(&out.sock, &id.packet(WANT));
                return Ok(());
            }
        }
        // The answer may be here: a program that only puts and gets has no other reason to poll.
        self.service();
        Ok(())
    }

    /// A peer asks for a window of ours.
    pub(super) fn hear_want(&self, id: u32, packet: &[u8]) {
        let Some((WANT, window)) = WindowId::parse(packet) else { return };
        let Some(inb) = &self.peers[id as usize].inb else { return };
        let windows = self.options.windows.as_ref().filter(|w| w.maker() == window.maker);
        let sent = windows.and_then(|w| {
            w.with_fd(window.number, |fd| rights::send_fd(&inb.sock, &window.packet(GRANT), fd))
        });
        match sent {
            None => socket::notify(&inb.sock, &window.packet(DENY)),
            // It will ask again, for a while.
            Some(Err(e)) => {
                log::debug!("{}: a window could not be sent: {e}", self.addr);
                socket::notify(&inb.sock, &window.packet(GRANT));
            }
            Some(Ok(())) => {}
        }
    }

    /// A peer answers for a window of its own.
    pub(super) fn hear_window(&self, id: u32, packet: &[u8], fd: Option<OwnedFd>) {
        let Some(windows) = &self.options.windows else { return };
        match (WindowId::parse(packet), fd) {
            (Some((GRANT, window)), Some(fd)) => match adopt(&fd) {
                Ok(mapping) => windows.answer(window, Import::Here(Arc::new(mapping))),
                Err(why) => {
                    log::warn!("{}: refused a window of {}: {why}", self.addr, self.peers[id as usize].addr);
                    windows.answer(window, Import::Denied);
                }
            },
            (Some((GRANT, window)), None) if windows.bare(window) => log::warn!(
                "{}: {} grants a window, of which no descriptor comes: raise the limit of descriptors (ulimit -n) here \
                 or there; memory is accessed by requests",
                self.addr,
                self.peers[id as usize].addr
            ),
            (Some((DENY, window)), None) => windows.answer(window, Import::Denied),
            _ => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "window_tests.rs"]
mod tests;

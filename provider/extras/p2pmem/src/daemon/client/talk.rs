//! Questions and answers on the socket of the daemon.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use ipc::{rights, socket};

use crate::daemon::wire::{Answer, Ask, MOST};
use crate::error::Error;

/// How long the daemon may take to answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// Most notices that were read and not taken: a daemon sends one for a buffer, and a connection has up to
/// 4096 buffers.
const MOST_NOTICES: usize = 65536;

/// An answer, and the descriptor that came with it.
pub(super) type Answered = (Answer, Option<OwnedFd>);

/// The socket, and the notices that have come by it.
#[derive(Debug)]
pub(super) struct Talk {
    sock: OwnedFd,
    revoked: VecDeque<(u64, String)>,
    /// An answer is still to come, in whole or in part.
    open: bool,
    /// The daemon has ended the connection.
    ended: bool,
    /// Whose it is: the daemon gives to one process, and a forked one would take its parent's answers.
    process: u32,
}

pub(super) fn os(e: io::Error) -> Error {
    Error::Os("the daemon's socket".into(), e)
}

pub(super) fn nonsense() -> Error {
    Error::Daemon(libc::EPROTO, "the daemon's answer makes no sense: is it of another version?".into())
}

pub(super) fn no_answer() -> Error {
    Error::Os("the daemon does not answer".into(), io::ErrorKind::TimedOut.into())
}

/// What comes next would be taken for the answer to this.
fn late() -> Error {
    let why = "an answer of the daemon came too late, or made no sense: this connection asks no more; what was given stays until it is closed";
    Error::Daemon(libc::EPIPE, why.into())
}

impl Talk {
    pub(super) fn new(sock: OwnedFd) -> Talk {
        Talk { sock, revoked: VecDeque::new(), open: false, ended: false, process: std::process::id() }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.sock.as_raw_fd()
    }

    pub(super) fn copy(&self) -> io::Result<OwnedFd> {
        self.sock.try_clone()
    }

    pub(super) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    pub(super) fn own(&self) -> Result<(), Error> {
        match self.is_forked() {
            false => Ok(()),
            true => Err(Error::Unsupported(
                "this connection to the daemon is of the process that forked this one: open another here"
                    .into(),
            )),
        }
    }

    /// Sends a question; a descriptor goes with it.
    pub(super) fn ask(&mut self, ask: &Ask, fd: Option<BorrowedFd<'_>>) -> Result<(), Error> {
        self.own()?;
        if self.open {
            return Err(late());
        }
        let bytes = ask.to_bytes();
        let sent = match fd {
            None => socket::send(&self.sock, &bytes),
            Some(fd) => rights::send_fd(&self.sock, &bytes, fd),
        };
        if let Err(e) = sent {
            // What it said before it ended is still to be read.
            let gone = matches!(e.raw_os_error(), Some(libc::EPIPE | libc::ECONNRESET | libc::ENOTCONN));
            return Err(if gone { self.end() } else { os(e) });
        }
        self.open = true;
        Ok(())
    }

    /// The answer that was awaited has come, all of it.
    pub(super) fn close(&mut self) {
        self.open = false;
    }

    fn end(&mut self) -> Error {
        self.ended = true;
        Error::Os("the daemon ended the connection".into(), io::Error::from_raw_os_error(libc::ECONNRESET))
    }

    /// Keeps a notice until it is taken.
    fn keep(&mut self, handle: u64, why: String) -> Result<(), Error> {
        if self.revoked.len() >= MOST_NOTICES {
            return Err(nonsense());
        }
        self.revoked.push_back((handle, why));
        Ok(())
    }

    fn receive(&mut self) -> Result<Answered, Error> {
        let mut bytes = [0; MOST];
        let (len, fd) = match rights::recv_fd(&self.sock, &mut bytes) {
            Ok((0, _)) => return Err(self.end()),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Err(self.end()),
            other => other.map_err(os)?,
        };
        Ok((Answer::parse(&bytes[..len]).ok_or_else(nonsense)?, fd))
    }

    /// The next answer that is no notice.
    pub(super) fn answer(&mut self) -> Result<Answered, Error> {
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            // Notices without end are no answer.
            if left.is_zero() {
                return Err(no_answer());
            }
            if !socket::wait(&self.sock, left.as_millis() as i32) {
                continue;
            }
            match self.receive()? {
                (Answer::Revoked { handle, why }, _) => self.keep(handle, why)?,
                (Answer::Failed { errno, why }, _) => {
                    self.open = false;
                    return Err(Error::Daemon(errno, why));
                }
                other => return Ok(other),
            }
        }
    }

    /// The answer that it was done.
    pub(super) fn done(&mut self) -> Result<u64, Error> {
        match self.answer()?.0 {
            Answer::Done { count } => {
                self.open = false;
                Ok(count)
            }
            _ => Err(nonsense()),
        }
    }

    /// The next answer, without its descriptor if this process has no room for it.
    pub(super) fn part(&mut self) -> Result<Answered, Error> {
        match self.answer() {
            // The packet is still there.
            Err(Error::Os(_, e)) if socket::is_lack(&e) => {
                let mut bytes = [0; MOST];
                let len = socket::receive(&self.sock, &mut bytes).map_err(os)?;
                Ok((Answer::parse(&bytes[..len]).ok_or_else(nonsense)?, None))
            }
            other => other,
        }
    }

    /// Reads what notices there are.
    pub(super) fn read_notices(&mut self) -> Result<(), Error> {
        self.own()?;
        if self.open {
            return Err(late());
        }
        while !self.ended && socket::wait(&self.sock, 0) {
            match self.receive()? {
                (Answer::Revoked { handle, why }, _) => self.keep(handle, why)?,
                (Answer::Failed { errno, why }, _) => return Err(Error::Daemon(errno, why)),
                _ => return Err(nonsense()),
            }
        }
        Ok(())
    }

    /// The first of the notices that were read.
    pub(super) fn notice(&mut self) -> Option<(u64, String)> {
        self.revoked.pop_front()
    }

    /// The notice of that buffer, if it was read.
    pub(super) fn notice_of(&mut self, handle: u64) -> Option<String> {
        let at = self.revoked.iter().position(|(of, _)| *of == handle)?;
        self.revoked.remove(at).map(|(_, why)| why)
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // A thread may wait at a copy of the descriptor. That of a forked process is its parent's.
        if !self.is_forked() {
            socket::shutdown(&self.sock);
        }
    }
}

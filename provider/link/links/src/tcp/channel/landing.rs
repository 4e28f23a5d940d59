//! A long frame whose front is there, and whose rest goes where it belongs as it comes.

use std::io;

use hmem::Span;
use ipc::Unshared;
use link_api::{Gone, OpId};

use crate::tcp::sock::{self, gone, would_block};

/// What was reported of the frame at the front, of which a part is there.
#[derive(Debug)]
pub(super) enum Front {
    /// Nothing.
    Unseen,
    /// That it has begun.
    Reported,
    /// That it has begun, and it is to be reported when it is whole.
    Left,
    /// It goes where it belongs.
    Lands(Box<Landing>),
}

/// Bytes on their way into memory of the application's.
#[derive(Debug)]
pub(super) struct Landing {
    op: OpId,
    dst: Vec<Span>,
    /// Where in `dst` the next byte belongs, and how many do; behind these, how many belong nowhere.
    doff: usize,
    len: usize,
    behind: usize,
    /// Some could not be put there.
    failed: bool,
    /// Its end is not to be reported.
    cancelled: bool,
}

/// Most bytes that are received in one go into memory of this process where the kernel does not reach the
/// application's.
const BOUNCE: usize = 64 << 10;

impl Landing {
    pub(super) fn is_over(&self) -> bool {
        self.len == 0 && self.behind == 0
    }

    /// Of `len` bytes for byte `doff` of `dst`, and behind them `behind` that belong nowhere. `failed`: some
    /// that came before could not be put there.
    pub(super) fn new(
        op: OpId,
        dst: &[Span],
        doff: usize,
        len: usize,
        behind: usize,
        failed: bool,
    ) -> Landing {
        Landing { op, dst: dst.into(), doff, len, behind, failed, cancelled: false }
    }

    /// Which one it is, if its end is to be reported.
    pub(super) fn op(&self) -> Option<OpId> {
        (!self.cancelled).then_some(self.op)
    }

    /// Whether all is where it belongs.
    pub(super) fn is_good(&self) -> bool {
        self.is_over() && !self.failed
    }

    /// Ends this operation, if it is that one.
    pub(super) fn cancel(&mut self, op: OpId) -> bool {
        if self.op != op {
            return false;
        }
        self.stop();
        (self.dst, self.cancelled) = (Vec::new(), true);
        true
    }

    /// Nothing is put there any more.
    fn stop(&mut self) {
        self.behind += std::mem::take(&mut self.len);
        self.failed = true;
    }

    /// Receives what is there, and where that is all of it also what is next, which goes to `ahead`: how many
    /// bytes of that, and why nothing more will come, if that is so.
    pub(super) fn receive(&mut self, fd: &Unshared, ahead: &mut [u8]) -> (usize, Option<Gone>) {
        let mut next = 0;
        while !self.is_over() {
            match self.receive_some(fd, ahead) {
                Ok((0, _)) => return (0, Some(Gone::Reset)),
                Ok((_, found)) => next = found,
                Err(e) if would_block(&e) => return (0, None),
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) && self.len > 0 => self.stop(),
                Err(e) => return (0, Some(gone(&e))),
            }
        }
        (next, None)
    }

    /// How many bytes came, and how many of them are behind its own.
    fn receive_some(&mut self, fd: &Unshared, ahead: &mut [u8]) -> io::Result<(usize, usize)> {
        if self.len == 0 {
            let n = sock::discard_some(fd, self.behind)?;
            self.behind -= n;
            return Ok((n, 0));
        }
        let ahead = if self.behind == 0 { ahead } else { &mut [] };
        let n = match sock::recv_spans(fd, &self.dst, self.doff, self.len, ahead) {
            Some(found) => found?,
            None => self.bounce(fd)?,
        };
        let own = n.min(self.len);
        (self.doff, self.len) = (self.doff + own, self.len - own);
        Ok((n, n - own))
    }

    /// How many bytes came, where the kernel does not reach all of the memory.
    fn bounce(&mut self, fd: &Unshared) -> io::Result<usize> {
        let mut bytes = vec![0; self.len.min(BOUNCE)];
        let n = sock::recv(fd, &mut bytes)?;
        if hmem::write(&self.dst, self.doff, &bytes[..n]) < n {
            self.failed = true;
        }
        Ok(n)
    }
}

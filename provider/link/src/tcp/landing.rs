//! A long frame whose front is there, and whose rest goes where it belongs as it comes.

use std::io;

use hmem::Span;
use ipc::Unshared;
use link_api::{Gone, OpId};
use wire::session::RECORD;

use super::channel::{Channel, LONG, Step, gone, would_block};
use super::sock;

/// What was told of the frame at the front, of which a part is there.
#[derive(Debug)]
pub(super) enum Front {
    /// Nothing.
    Unseen,
    /// That it has begun.
    Told,
    /// Likewise, and it is to be told of when it is whole.
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
    /// Its end is not to be told of.
    cancelled: bool,
}

/// Most bytes that are received in one go into memory of this process where the kernel does not reach the application's.
const BOUNCE: usize = 64 << 10;

impl Landing {
    pub(super) fn is_over(&self) -> bool {
        self.len == 0 && self.behind == 0
    }

    /// What is to be told, once nothing more of it comes.
    fn outcome(&self) -> Option<Step> {
        (!self.cancelled).then(|| Step::Landed(self.op, self.is_over() && !self.failed))
    }

    /// Nothing is put there any more.
    fn stop(&mut self) {
        self.behind += std::mem::take(&mut self.len);
        self.failed = true;
    }

    /// Receives what is there; why nothing more will be, if that is so.
    pub(super) fn receive(&mut self, fd: &Unshared) -> Option<Gone> {
        while !self.is_over() {
            match self.receive_some(fd) {
                Ok(0) => return Some(Gone::Reset),
                Ok(_) => {}
                Err(e) if would_block(&e) => return None,
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) && self.len > 0 => self.stop(),
                Err(e) => return Some(gone(&e)),
            }
        }
        None
    }

    fn receive_some(&mut self, fd: &Unshared) -> io::Result<usize> {
        if self.len == 0 {
            let n = sock::discard_some(fd, self.behind)?;
            self.behind -= n;
            return Ok(n);
        }
        let n = match sock::recv_spans(fd, &self.dst, self.doff, self.len) {
            Some(found) => found?,
            None => self.bounce(fd)?,
        };
        (self.doff, self.len) = (self.doff + n, self.len - n);
        Ok(n)
    }

    /// Likewise, where the kernel does not reach all of the memory.
    fn bounce(&mut self, fd: &Unshared) -> io::Result<usize> {
        let mut bytes = vec![0; self.len.min(BOUNCE)];
        let n = sock::recv(fd, &mut bytes)?;
        if hmem::write(&self.dst, self.doff, &bytes[..n]) < n {
            self.failed = true;
        }
        Ok(n)
    }
}

impl Channel {
    /// Whether a frame of so many bytes is told of before it is whole.
    pub(super) fn begins_early(&self, len: usize) -> bool {
        self.early && len >= LONG && matches!(self.front, Front::Unseen | Front::Told)
    }

    /// Whether the frame at the front is to be told of now.
    pub(super) fn may_begin(&self) -> bool {
        matches!(self.front, Front::Unseen)
            && self.over.is_none()
            && self.opened.is_some_and(|len| self.begins_early(len))
    }

    /// What is to be told of the frame that lands, if one does.
    pub(super) fn next_of_landing(&mut self) -> Option<Step> {
        let Front::Lands(landing) = &self.front else { return None };
        let (is_over, step) = (landing.is_over(), landing.outcome());
        if !is_over && self.over.is_none() {
            return Some(Step::Nothing);
        }
        self.front = Front::Unseen;
        step
    }

    /// The frame at the front, of `size` bytes, goes to byte `doff` of `dst`, `len` bytes of it from `off` on. Whether that is over, and all
    /// are there.
    pub(super) fn land(
        &mut self,
        op: OpId,
        (size, off): (usize, usize),
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> Option<bool> {
        debug_assert!(off + len <= size, "bytes {off}+{len} of a frame of {size}");
        let len = len.min(size.saturating_sub(off));
        let here = self.here(size);
        let near = here.len().saturating_sub(off).min(len);
        let failed = hmem::write(dst, doff, &here[off.min(here.len())..][..near]) < near;
        let (left, rest) = (len - near, size - here.len());
        let mut landing = Box::new(Landing {
            op,
            dst: dst.into(),
            doff: doff + near,
            len: left,
            behind: rest - left,
            failed,
            cancelled: false,
        });
        self.pass(RECORD + size - rest, size);
        self.over = self.over.or(landing.receive(&self.fd));
        if landing.is_over() {
            return Some(!landing.failed);
        }
        self.front = Front::Lands(landing);
        None
    }

    /// Bytes of a frame that has begun, as far as they are there.
    pub(super) fn read_front(&self, size: usize, off: usize, dst: &mut [u8]) -> usize {
        let rest = self.here(size).get(off..).unwrap_or_default();
        let n = rest.len().min(dst.len());
        dst[..n].copy_from_slice(&rest[..n]);
        n
    }

    /// The frame at the front is told of again when it is whole.
    pub(super) fn leave(&mut self) {
        if let Front::Told = self.front {
            self.front = Front::Left;
        }
    }

    /// Nothing more of this operation goes where it belongs. Whether it was one of this channel's.
    pub(super) fn cancel(&mut self, op: OpId) -> bool {
        match &mut self.front {
            Front::Lands(landing) if landing.op == op => {
                landing.stop();
                (landing.dst, landing.cancelled) = (Vec::new(), true);
                true
            }
            _ => false,
        }
    }

    /// The operation that is under way, if the end of one is to be told of.
    pub(super) fn lands(&self) -> Option<OpId> {
        match &self.front {
            Front::Lands(landing) => Some(landing.op).filter(|_| !landing.cancelled),
            _ => None,
        }
    }
}

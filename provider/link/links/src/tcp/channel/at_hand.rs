//! The bytes of a frame that was handed out: what of it was received, and what is with the kernel still.

use hmem::Span;
use wire::session::RECORD;

use crate::tcp::channel::incoming::Incoming;
use crate::tcp::channel::line::Line;
use crate::tcp::sock;

impl Incoming {
    /// Bytes of the frame at hand from `off` on to `dst`.
    #[inline]
    pub(super) fn read(&self, line: &Line, len: usize, off: usize, dst: &mut [u8]) -> usize {
        if let Some(front) = self.here(len).get(off..).and_then(|rest| rest.get(..dst.len())) {
            dst.copy_from_slice(front);
            return front.len();
        }
        let n = len.saturating_sub(off).min(dst.len());
        let (here, front) = (self.here(len), self.here_from(len, off, n));
        let near = front.len();
        dst[..near].copy_from_slice(front);
        let there = |dst: &mut [u8]| !self.is_taken() && peek(line, off + near - here.len(), dst).is_some();
        if near < n && !there(&mut dst[near..n]) {
            return near;
        }
        n
    }

    /// Bytes of a frame that has begun, as far as they are there.
    pub(super) fn read_front(&self, size: usize, off: usize, dst: &mut [u8]) -> usize {
        let front = self.here_from(size, off, dst.len());
        dst[..front.len()].copy_from_slice(front);
        front.len()
    }

    /// Whether a frame of so many bytes at the front was received as a whole.
    #[inline(always)]
    pub(super) fn is_buffered(&self, len: usize) -> bool {
        self.buffered().len() >= RECORD + len
    }

    /// What of the frame at hand was received.
    #[inline]
    pub(super) fn here(&self, len: usize) -> &[u8] {
        let frame = self.buffered().get(RECORD..).unwrap_or_default();
        &frame[..frame.len().min(len)]
    }

    /// Up to `most` bytes of these, from `off` on.
    #[inline]
    pub(super) fn here_from(&self, len: usize, off: usize, most: usize) -> &[u8] {
        let rest = self.here(len).get(off..).unwrap_or_default();
        &rest[..rest.len().min(most)]
    }

    /// Up to `len` bytes from `off` on of the frame at hand, which has `size`, to byte `doff` of `dst`; how
    /// many that were.
    #[inline]
    pub(super) fn copy_out(
        &self,
        line: &Line,
        (size, off): (usize, usize),
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> usize {
        let n = most(size.saturating_sub(off).min(len), dst, doff);
        let (here, front) = (self.here(size), self.here_from(size, off, n));
        let (near, done) = (front.len(), hmem::write(dst, doff, front));
        if done < near || near == n || self.is_taken() {
            return done;
        }
        let (behind, doff, rest) = (off + near - here.len(), doff + near, n - near);
        if behind == 0 {
            if let Some(found) = sock::peek(line.fd(), dst, doff, rest) {
                return near + found.unwrap_or(0);
            }
        }
        let mut bytes = vec![0; rest];
        match peek(line, behind, &mut bytes) {
            Some(()) => near + hmem::write(dst, doff, &bytes),
            None => near,
        }
    }

    /// [`Incoming::copy_out`], where none of these bytes, or of those behind them, is read again: those that
    /// the kernel has are received, and the front of the next frame with them.
    pub(super) fn copy_last(
        &mut self,
        line: &Line,
        (size, off): (usize, usize),
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> usize {
        let n = most(size.saturating_sub(off).min(len), dst, doff);
        let (here, near) = (self.here(size).len(), self.here_from(size, off, n).len());
        // The rest of the frame, and nothing that is to be left out before or behind it.
        if near == n || off + n < size || off > here || self.is_taken() {
            return self.copy_out(line, (size, off), dst, doff, len);
        }
        if self.copy_out(line, (size, off), dst, doff, near) < near {
            return 0;
        }
        match self.receive_rest(line, dst, doff + near, n - near) {
            Some(found) => near + found,
            None => self.copy_out(line, (size, off), dst, doff, len),
        }
    }
}

/// How many of `len` bytes have room from byte `doff` of `dst` on.
fn most(len: usize, dst: &[Span], doff: usize) -> usize {
    len.min(hmem::total(dst).saturating_sub(doff))
}

/// Bytes from `off` on of what is with the kernel.
fn peek(line: &Line, off: usize, into: &mut [u8]) -> Option<()> {
    if off == 0 {
        let n = sock::peek_bytes(line.fd(), into).ok()?;
        return (n == into.len()).then_some(());
    }
    let mut all = vec![0; off + into.len()];
    let n = sock::peek_bytes(line.fd(), &mut all).ok()?;
    into.copy_from_slice(&all[off..]);
    (n == all.len()).then_some(())
}

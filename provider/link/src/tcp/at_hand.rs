//! The bytes of a frame that was handed out: what of it was received, and what is with the kernel still.

use hmem::Span;
use wire::session::RECORD;

use super::channel::Channel;
use super::sock;

impl Channel {
    /// Bytes of the frame at hand from `off` on to `dst`.
    #[inline]
    pub(super) fn read(&self, len: usize, off: usize, dst: &mut [u8]) -> usize {
        if self.turn != 0 {
            return self.read_of_rail(len, off, dst);
        }
        self.read_here(len, off, dst)
    }

    /// Likewise, of one of this connection.
    #[inline]
    pub(super) fn read_here(&self, len: usize, off: usize, dst: &mut [u8]) -> usize {
        let n = len.saturating_sub(off).min(dst.len());
        let (here, front) = (self.here(len), self.here_from(len, off, n));
        let near = front.len();
        dst[..near].copy_from_slice(front);
        if near < n && self.peek(off + near - here.len(), &mut dst[near..n]).is_none() {
            return near;
        }
        n
    }

    /// What of the frame at hand was received.
    pub(super) fn here(&self, len: usize) -> &[u8] {
        let frame = self.buffered().get(RECORD..).unwrap_or_default();
        &frame[..frame.len().min(len)]
    }

    /// Up to `most` bytes of these, from `off` on.
    pub(super) fn here_from(&self, len: usize, off: usize, most: usize) -> &[u8] {
        let rest = self.here(len).get(off..).unwrap_or_default();
        &rest[..rest.len().min(most)]
    }

    /// Bytes from `off` on of what is with the kernel.
    fn peek(&self, off: usize, into: &mut [u8]) -> Option<()> {
        if off == 0 {
            let n = sock::peek_bytes(&self.fd, into).ok()?;
            return (n == into.len()).then_some(());
        }
        let mut all = vec![0; off + into.len()];
        let n = sock::peek_bytes(&self.fd, &mut all).ok()?;
        into.copy_from_slice(&all[off..]);
        (n == all.len()).then_some(())
    }

    /// Up to `len` bytes from `off` on of the frame at hand, which has `size`, to byte `doff` of `dst`; how
    /// many that were.
    pub(super) fn copy_out(&self, size: usize, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        if self.turn != 0 {
            return self.copy_out_of_rail(size, off, dst, doff, len);
        }
        self.copy_out_here(size, off, dst, doff, len)
    }

    /// Likewise, of one of this connection.
    #[inline]
    pub(super) fn copy_out_here(
        &self,
        size: usize,
        off: usize,
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> usize {
        let n = size.saturating_sub(off).min(len).min(hmem::total(dst).saturating_sub(doff));
        let (here, front) = (self.here(size), self.here_from(size, off, n));
        let (near, done) = (front.len(), hmem::write(dst, doff, front));
        if done < near || near == n {
            return done;
        }
        let (behind, doff, rest) = (off + near - here.len(), doff + near, n - near);
        if behind == 0 {
            if let Some(found) = sock::peek(&self.fd, dst, doff, rest) {
                return near + found.unwrap_or(0);
            }
        }
        let mut bytes = vec![0; rest];
        match self.peek(behind, &mut bytes) {
            Some(()) => near + hmem::write(dst, doff, &bytes),
            None => near,
        }
    }
}

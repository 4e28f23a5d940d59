//! Frames that came by a further link.

use hmem::Span;
use link_api::{Frame, PeerId};

use super::{Links, route};

impl Links {
    /// The link that a frame came by, if it is not shared memory; and the frame as that link knows it.
    fn far_frame(&self, from: PeerId, len: usize, slot: u32) -> Option<(usize, Frame)> {
        let at = route::of_slot(slot)?;
        let from = self.far.get(at)?.id_of(from)?;
        Some((at, Frame { from, len, slot: route::slot(slot) }))
    }

    /// By its parts, as with the following two: the address of a frame of shared memory, whose number is known where it is
    /// polled, is then taken nowhere, and nothing is asked of it.
    #[cold]
    #[inline(never)]
    pub(super) fn read_far(
        &self,
        from: PeerId,
        frame_len: usize,
        slot: u32,
        off: usize,
        dst: &mut [u8],
    ) -> usize {
        let far = self.far_frame(from, frame_len, slot);
        far.map_or(0, |(at, frame)| self.far[at].link.read(&frame, off, dst))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn copy_out_far(
        &self,
        (from, frame_len, slot): (PeerId, usize, u32),
        off: usize,
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> usize {
        let far = self.far_frame(from, frame_len, slot);
        far.map_or(0, |(at, frame)| self.far[at].link.copy_out(&frame, off, dst, doff, len))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn release_far(&mut self, from: PeerId, len: usize, slot: u32) {
        if let Some((at, frame)) = self.far_frame(from, len, slot) {
            self.far[at].link.release(frame);
        }
    }
}

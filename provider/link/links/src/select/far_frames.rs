//! Frames that came by a further link.

use hmem::Span;
use link_api::{Event, Frame, Gone, LandAt, Landing, Link as _, PeerId, Refused, Sent};

use super::{Links, route};

impl Links {
    #[cold]
    pub(super) fn send_far(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        self.wake();
        if let Some((at, id)) = self.far_of(to) {
            self.pace.hurry();
            let sent = self.far[at].link.send(id, head, body, off, len);
            if sent.is_ok() {
                // A sender that receives nothing would else look for callers at nearly each poll.
                self.shm.set_patient();
            }
            return sent;
        }
        match self.shm.send(to, head, body, off, len) {
            Err(Refused::Gone(Gone::Unreachable)) if self.reroute(to) => Err(Refused::Busy),
            done => done,
        }
    }

    /// [`Link::keeps`](link_api::Link::keeps), also while the peer's end has not been told of though its link
    /// has.
    pub(super) fn keeps_far(&mut self, to: PeerId) -> bool {
        let ends = |event: &Event| matches!(event, Event::Closed(peer, _) if *peer == to);
        if self.events.iter().any(ends) {
            return true;
        }
        self.far_of(to).is_some_and(|(at, id)| self.far[at].link.keeps(id))
    }

    /// The link that a frame came by, if it is not shared memory; and the frame as that link knows it.
    fn far_frame(&self, from: PeerId, len: usize, slot: u32) -> Option<(usize, Frame)> {
        let at = route::of_slot(slot)?;
        let from = self.far.get(at)?.id_of(from)?;
        Some((at, Frame { from, len, slot: route::slot(slot) }))
    }

    /// By its parts, as with the following two: the address of a frame of shared memory, whose number is
    /// known where it is polled, is then taken nowhere, and nothing is asked of it.
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

    #[cold]
    #[inline(never)]
    pub(super) fn land_far(
        &mut self,
        (from, len, slot): (PeerId, usize, u32),
        to: Option<LandAt<'_>>,
    ) -> Landing {
        if to.is_some() {
            self.wake();
        }
        let Some((at, frame)) = self.far_frame(from, len, slot) else {
            return if to.is_some() { Landing::Over(false) } else { Landing::Left };
        };
        match self.far[at].link.land(frame, to) {
            Landing::InFlight(op) => Landing::InFlight(route::tag_op(at, op)),
            other => other,
        }
    }
}

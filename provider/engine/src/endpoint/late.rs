//! Receives that are posted late: their messages are in a ring already. Each is copied from there to its buffer in the call that
//! posts the receive, which is then neither posted nor looked for.

use hmem::Span;
use wire::{Flags, Head, Op as WireOp};

use super::Endpoint;
use crate::core::Core;
use crate::types::*;
use link_api::{Frame, PollFrame, RmaLink};

/// Source, tag and data of a message.
type Sight = (FiAddr, u64, Option<u64>);

impl<L: RmaLink> Endpoint<L> {
    /// Completes a receive that is not posted yet with the next message of a ring, if that is there and is for it: `false`, and
    /// nothing has happened, where it is not. No receive is posted, and no message waits, that would come before.
    #[inline(always)]
    pub(crate) fn receive_at_once(&mut self, core: &mut Core, span: Span, op: &Recv<'_>) -> bool {
        if self.has_chores() {
            return false;
        }
        self.awaits(self.routed(op.pattern.src));
        let frame = match self.link.poll_frame() {
            PollFrame::Frame(frame) => frame,
            PollFrame::Nothing => {
                self.waited(core);
                return false;
            }
            PollFrame::Unknown => return false,
        };
        let Some((sight, len)) = self.fitting(&frame, span, &op.pattern) else {
            return self.not_late(core, frame);
        };
        // Memory that vanishes is for the general way.
        if self.link.copy_out(&frame, Head::LEN, &[span], 0, len) != len {
            return self.not_late(core, frame);
        }
        self.link.release(frame);
        core.rest_after(self.rx);
        self.received_plain(core, op, sight, span.addr(), len);
        true
    }

    /// Likewise, with the next message of the peer that the receive names, whatever others have sent.
    pub(crate) fn receive_from_ring(&mut self, core: &mut Core, span: Span, op: &Recv<'_>) -> bool {
        if self.has_chores() {
            return false;
        }
        let Some(peer) = self.routed(op.pattern.src) else { return false };
        let PollFrame::Frame(frame) = self.link.poll_frame_of(peer) else { return false };
        let fitting = self.fitting(&frame, span, &op.pattern);
        // Memory that vanishes is for the general way.
        let copied =
            fitting.filter(|&(_, len)| self.link.copy_out(&frame, Head::LEN, &[span], 0, len) == len);
        let Some((sight, len)) = copied else {
            self.link.put_back(frame);
            return false;
        };
        self.link.release(frame);
        core.rest_after(self.rx);
        self.received_plain(core, op, sight, span.addr(), len);
        true
    }

    /// The next message of a ring is not for the receive, or not to be had by a copy.
    #[inline(never)]
    fn not_late(&mut self, core: &mut Core, frame: Frame) -> bool {
        self.link.put_back(frame);
        self.waited(core);
        false
    }

    /// No message was in its ring before its receive was posted.
    fn waited(&mut self, core: &mut Core) {
        self.waited = true;
        if let Some(rx) = core.rxs.get_mut(self.rx.at()) {
            rx.note_late(true);
        }
    }

    /// Source, tag and data of a message, and its length, if it is of the plainest sort and fits a receive.
    #[inline(always)]
    fn fitting(&mut self, frame: &Frame, span: Span, pattern: &Pattern) -> Option<(Sight, usize)> {
        let (head, flags) = self.plain_head(frame)?;
        let is_plain = head.op() == Some(WireOp::Eager) && !flags.contains(Flags::ACK);
        if !is_plain || flags.contains(Flags::TAGGED) != pattern.tag.is_some() {
            return None;
        }
        let peer = self.peers.get_mut(frame.from.0 as usize)?;
        let (src, tag) = (peer.src, head.tag.get());
        let len = frame.len - Head::LEN;
        let goes = len <= span.len() && span.can(hmem::Caps::CPU);
        if !goes || !pattern.fits(src, tag) {
            return None;
        }
        peer.has_sent(frame.len);
        Some(((src, tag, flags.contains(Flags::CQ_DATA).then(|| head.data.get())), len))
    }
}

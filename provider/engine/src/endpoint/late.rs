//! Receives that are posted late: their messages are in a ring already. Each is copied from there to its
//! buffer in the call that posts the receive, which is then neither posted nor looked for.

use hmem::Span;
use wire::{Flags, Head, Op as WireOp};

use super::Endpoint;
use crate::core::Core;
use crate::endpoint::plain::apart;
use crate::types::*;
use link_api::{Frame, PollFrame, RmaLink};

/// Source, tag and data of a message.
type Sight = (FiAddr, u64, Option<u64>);

impl<L: RmaLink> Endpoint<L> {
    /// Completes a receive that is not posted yet with the next message of a ring, if that is there and is
    /// for it: `false`, and nothing has happened, where it is not. No receive is posted, and no message
    /// waits, that would come before. `rest`: polls that take nothing in behind it ([`Core::rest`]).
    #[inline(always)]
    pub(crate) fn receive_at_once(&mut self, core: &mut Core, span: Span, op: &Recv<'_>, rest: u8) -> bool {
        if self.has_chores() {
            return false;
        }
        self.awaits(self.net.routed(op.pattern.src));
        let frame = match self.net.link.poll_frame() {
            PollFrame::Frame(frame) => frame,
            PollFrame::Nothing => {
                self.waited(core);
                return false;
            }
            PollFrame::Unknown => return false,
        };
        let done = self.receive_this(core, &frame, span, op, rest);
        if !done {
            self.waited(core);
        }
        done
    }

    /// Receives the next message of the peer that the receive names, whatever others have sent.
    pub(crate) fn receive_from_ring(&mut self, core: &mut Core, span: Span, op: &Recv<'_>, rest: u8) -> bool {
        if self.has_chores() {
            return false;
        }
        let Some(peer) = self.net.routed(op.pattern.src) else { return false };
        let PollFrame::Frame(frame) = self.net.link.poll_frame_of(peer) else { return false };
        self.receive_this(core, &frame, span, op, rest)
    }

    /// Completes a receive with this message, if it is for it and takes no more than a copy. Memory that
    /// vanishes is for the general way.
    #[inline(always)]
    fn receive_this(&mut self, core: &mut Core, frame: &Frame, span: Span, op: &Recv<'_>, rest: u8) -> bool {
        if let Some((sight, len)) = self.fitting(frame, span, &op.pattern) {
            if self.net.link.take(frame, Head::LEN, span, len)
                || self.net.take_long(frame.from, frame.len, frame.slot, span.apart())
            {
                core.rest = rest;
                self.bind.received_plain(core, op, sight, span.addr(), len);
                return true;
            }
        }
        self.net.link.put_back(apart(frame));
        false
    }

    /// No message was in its ring before its receive was posted.
    #[inline(never)]
    fn waited(&mut self, core: &mut Core) {
        self.adapt.note_wait();
        if let Some(rx) = core.rxs.get_mut(self.bind.rx().at()) {
            rx.note_late(true);
        }
    }

    /// Source, tag and data of a message, and its length, if it is of the plainest sort and fits a receive.
    #[inline(always)]
    fn fitting(&mut self, frame: &Frame, span: Span, pattern: &Pattern) -> Option<(Sight, usize)> {
        let (head, flags) = self.net.plain_head(frame)?;
        let is_plain = head.is(WireOp::Eager) && !flags.contains(Flags::ACK);
        if !is_plain || flags.contains(Flags::TAGGED) != pattern.tag.is_some() {
            return None;
        }
        let peer = self.net.peers.get_mut(frame.from)?;
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

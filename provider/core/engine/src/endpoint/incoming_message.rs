//! Messages that come, and what each does: it goes to the receive that it matches, or waits for one.

use wire::{Flags, Head, Offer};

use crate::core::{Body, Core, Message, RecvOp, Segs};
use crate::endpoint::device::staging::Source;
use crate::endpoint::malformed::{Fields, Handled, Malformed, bytes_of, parse_segs};
use crate::endpoint::net::Net;
use crate::endpoint::parts::adapt::Adapt;
use crate::endpoint::parts::bind::Bind;
use crate::endpoint::parts::request::{Meta, Request};
use crate::endpoint::requests::Requests;
use crate::proto::{Reach, When};
use crate::types::*;
use link_api::{Frame, PeerId, RmaLink};

/// Incoming messages, and the receives that they match.
pub(crate) struct IncomingMessages<'a, L> {
    pub(in crate::endpoint) id: EpId,
    pub(in crate::endpoint) net: &'a mut Net<L>,
    pub(in crate::endpoint) requests: &'a mut Requests,
    pub(in crate::endpoint) bind: &'a Bind,
    pub(in crate::endpoint) adapt: &'a mut Adapt,
}

impl<L: RmaLink> IncomingMessages<'_, L> {
    /// Gives a waiting message to a receive that has just been posted.
    pub(crate) fn accept(&mut self, core: &mut Core, message: Message, recv: &RecvOp) -> bool {
        self.unexpected().take_unexpected(core, &message);
        let Message { peer, src, tagged, tag, data, len, ack, body, .. } = message;
        let (matched, spent) =
            self.bind.matched_recv(core, recv, &Meta { peer, src, tagged, tag, data, len });
        match body {
            Body::Held(held) => {
                self.transfers().deliver(core, peer, ack, matched, len, Source::Held(held.bytes(len)));
                core.buffers.drop(held);
            }
            Body::Offered { req, segs, direct } => {
                // A thread that sleeps until the link's descriptor is readable makes no call of progress for
                // this.
                let when = if self.net.link.is_armed() { When::empty() } else { When::IN_POST };
                self.transfers().fetch(core, peer, req, segs.all(), direct, len, matched, when);
            }
            Body::Withdrawn => self.bind.complete_recv(core, matched, 0, Some(Error::Cancelled)),
        }
        spent
    }

    pub(in crate::endpoint) fn on_eager(
        &mut self,
        core: &mut Core,
        frame: &Frame,
        head: &Head,
        flags: Flags,
    ) -> Handled {
        let (off, ack) = self.net.ack_of(frame, flags).ok_or(Malformed::Short(8))?;
        let len = frame.len - off;
        let meta = self.net.meta(frame.from, head, flags, len);
        if let Some(matched) = self.bind.matched(core, &meta) {
            self.transfers().deliver(core, meta.peer, ack, matched, len, Source::Frame(frame, off));
            return Ok(());
        }
        let held = core.buffers.keep(len, |bytes| {
            self.net.link.read(frame, off, bytes);
        });
        self.unexpected().keep_unexpected(core, meta, ack, Body::Held(held));
        Ok(())
    }

    pub(in crate::endpoint) fn on_rts(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        flags: Flags,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let n = parse_segs(head.aux.get())?;
        let offer: Offer = fields.take()?;
        let segs = fields.take_segs(n)?;
        let len = usize::try_from(offer.len.get()).map_err(|_| Malformed::Lengths)?;
        let direct = Reach::of(flags);
        if bytes_of(&segs)? != len as u64 {
            return Err(Malformed::Segments);
        }
        let meta = self.net.meta(peer, head, flags, len);
        let req = offer.req.get();
        match self.bind.matched(core, &meta) {
            Some(matched) => {
                self.transfers().fetch(core, peer, req, &segs, direct, len, matched, When::empty())
            }
            None => {
                let segs = Segs::new(&segs);
                self.unexpected().keep_unexpected(core, meta, None, Body::Offered { req, segs, direct });
            }
        }
        Ok(())
    }

    /// The bytes of a message that was offered before.
    pub(in crate::endpoint) fn on_body(&mut self, core: &mut Core, frame: &Frame, head: &Head) -> Handled {
        let (peer, theirs) = (frame.from, head.tag.get());
        let len = frame.len - Head::LEN;
        let waits = |r: &Request| matches!(r, Request::In(i) if i.peer == peer && i.req == theirs);
        if let Some(&name) = self.requests.pool.names(waits).first() {
            return self.transfers().take_body(core, frame, name, len);
        }
        let ep = self.id;
        // With its peer's end the offer ends.
        if !self.net.may_keep(core, peer, len) {
            return Ok(());
        }
        let has_it = |core: &mut Core, rx: &RxId| {
            core.rxs.get_mut(rx.at()).is_some_and(|rx| rx.offered(ep, peer, theirs).is_some())
        };
        let rx = self.bind.contexts().find(|rx| has_it(core, rx));
        let Some(message) = rx.and_then(|rx| core.rxs.get_mut(rx.at())?.offered(ep, peer, theirs)) else {
            // It has been thrown away meanwhile, and its sender has the answer.
            return Ok(());
        };
        if message.len != len {
            return Err(Malformed::Lengths);
        }
        message.body = Body::Held(core.buffers.keep(len, |bytes| {
            self.net.link.read(frame, Head::LEN, bytes);
        }));
        message.ack = Some(theirs);
        let _ = self.unexpected().add_weight(core, peer, len);
        Ok(())
    }
}

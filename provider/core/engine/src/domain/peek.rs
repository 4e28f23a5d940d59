//! Messages that wait, before they are received: FI_PEEK, FI_CLAIM and FI_DISCARD of fi_tagged(3).

use super::opened::Opened;
use crate::core::{Message, RecvOp, Tally};
use crate::types::*;
use link_api::RmaLink;

impl<L: RmaLink> Opened<L> {
    /// Peeks, by a call to the context or to one of its endpoints; whether there was a message.
    pub(super) fn peek(
        &mut self,
        rx: RxId,
        by: Option<EpId>,
        pattern: Pattern,
        what: Peek,
        (ctx, flags): (Ctx, OpFlags),
    ) -> Result<bool, Error> {
        let pattern = self.known_as(rx, pattern)?;
        let caller = self.completes_calls(rx, by);
        let context = self.core.rxs.get_mut(rx.at()).ok_or(Error::NotFound)?;
        let tagged = pattern.tag.is_some();
        let matcher = context.matcher(tagged);
        let mut entry = Completion {
            ctx,
            what: What::RECV | if tagged { What::TAGGED } else { What::MSG },
            len: 0,
            buf: 0,
            data: 0,
            tag: pattern.tag.map_or(0, |t| t.0),
            src: ADDR_UNSPEC,
            err: Some(Error::NoMessage),
            olen: 0,
        };
        let (mut from, mut dropped) = (None, None);
        if let Some((at, m)) =
            matcher.find_waiting(&pattern).and_then(|at| Some((at, matcher.waiting_at(at)?)))
        {
            entry.len = m.len;
            entry.tag = m.tag;
            entry.src = m.src;
            entry.err = None;
            entry.data = m.data.unwrap_or(0);
            if m.data.is_some() {
                entry.what |= What::REMOTE_CQ_DATA;
            }
            from = Some(m.ep);
            match what {
                Peek::Leave => {}
                Peek::Claim => {
                    entry.what |= What::CLAIM;
                    let taken = matcher.take(at);
                    context.claimed.extend(taken.map(|m| (ctx, m)));
                }
                Peek::Discard => dropped = matcher.take(at),
            }
        }
        if let Some(m) = dropped {
            if let Some(ep) = self.eps.get_mut(m.ep.at()) {
                ep.unexpected().discard(&mut self.core, m);
            }
        }
        // Of a call to the context itself, where the message would be received.
        let has_queue = |ep: &EpId| self.eps.get(ep.at()).is_some_and(|ep| ep.bind.rx_cq().is_some());
        let to = from.filter(|ep| by.is_none() && has_queue(ep)).or(caller);
        let Some(ep) = to.and_then(|ep| self.eps.get_mut(ep.at())) else { return Err(Error::NotFound) };
        if ep.bind.reports(flags) || entry.err.is_some() {
            let cq = ep.bind.rx_cq();
            self.core.complete(cq, entry);
        }
        Ok(entry.err.is_none())
    }

    fn claimed(&mut self, rx: RxId, ctx: Ctx, tagged: bool) -> Result<Message, Error> {
        let claimed = &mut self.core.rxs.get_mut(rx.at()).ok_or(Error::NotFound)?.claimed;
        let at = claimed.iter().position(|(c, m)| *c == ctx && m.tagged == tagged).ok_or(Error::NoMessage)?;
        Ok(claimed.remove(at).1)
    }

    /// Receives the message that a peek with the same context has set aside.
    pub(super) fn claim(&mut self, rx: RxId, op: &Recv<'_>) -> Result<(), Error> {
        let message = self.claimed(rx, op.ctx, op.pattern.tag.is_some())?;
        let recv = RecvOp {
            pattern: op.pattern,
            iov: op.iov.into(),
            ctx: op.ctx,
            flags: op.flags,
            multi: None,
            tally: Tally::PLAIN,
        };
        let ep = self.eps.get_mut(message.ep.at()).ok_or(Error::NotFound)?;
        ep.incoming_messages().accept(&mut self.core, message, &recv);
        Ok(())
    }

    /// Throws away the message that a peek has set aside; completes with its length, but no bytes.
    pub(super) fn claim_discard(
        &mut self,
        rx: RxId,
        ctx: Ctx,
        tagged: bool,
        flags: OpFlags,
    ) -> Result<(), Error> {
        let message = self.claimed(rx, ctx, tagged)?;
        let ep = self.eps.get_mut(message.ep.at()).ok_or(Error::NotFound)?;
        let entry = Completion {
            ctx,
            what: What::RECV
                | if tagged { What::TAGGED } else { What::MSG }
                | if message.data.is_some() { What::REMOTE_CQ_DATA } else { What::empty() },
            len: message.len,
            buf: 0,
            data: message.data.unwrap_or(0),
            tag: message.tag,
            src: message.src,
            err: None,
            olen: 0,
        };
        ep.unexpected().discard(&mut self.core, message);
        if ep.bind.reports(flags) {
            let cq = ep.bind.rx_cq();
            self.core.complete(cq, entry);
        }
        Ok(())
    }
}

//! Sends that are cancelled (fi_cancel(3)).

use wire::{Flags, Head, Op as WireOp, Status};
use zerocopy::IntoBytes;

use crate::core::Core;
use crate::endpoint::parts::request::Request;
use crate::endpoint::transfer::Transfers;
use crate::types::*;
use link_api::{Patience, PeerId, RmaLink};

/// Cancels the oldest send of a context whose bytes are still here, or the one that an earlier call has begun
/// with: it completes with the caller's error, and the receive that it met with [`Error::Cancelled`].
/// Progress is made between the two steps.
pub(crate) struct Cancel<'a, L>(pub(in crate::endpoint) Transfers<'a, L>);

/// A send whose bytes are not accessed any more.
pub(in crate::endpoint) struct Withdrawal {
    name: u64,
    peer: PeerId,
}

impl Withdrawal {
    fn head(&self) -> Head {
        Head::new(WireOp::Withdrawn, Flags::empty(), 0, self.name, 0)
    }
}

impl<L: RmaLink> Cancel<'_, L> {
    /// Takes back the bytes of the send. `None`: there is no further step.
    pub(in crate::endpoint) fn begin(
        &mut self,
        core: &Core,
        ctx: Ctx,
        begun: &mut Option<Cancelling>,
        why: Error,
    ) -> Result<Option<Withdrawal>, Error> {
        let Transfers { net, requests, .. } = &mut self.0;
        let name = match begun {
            Some(Cancelling(name)) => *name,
            None => requests.cancellable(ctx).ok_or(Error::NotFound)?,
        };
        let Some(Request::Out(out)) = requests.pool.get_mut(name) else {
            // It is over: what completed it has said how it ended.
            return Ok(None);
        };
        if out.asked.is_some_and(|(_, want)| out.done >= want) {
            // All of it is on its way.
            return if begun.is_some() { Ok(None) } else { Err(Error::NotFound) };
        }
        let (withdrawal, unasked) = (Withdrawal { name, peer: out.peer }, out.asked.is_none());
        let taken = requests.take_back(&mut net.link, withdrawal.peer, name);
        if why == Error::Overdue {
            // Where the receiver answers first, it says that the send was discarded, and not why.
            requests.queues.set_overdue(name);
        }
        if taken.is_err() {
            if core.patience == Patience::Retried {
                *begun = Some(Cancelling(name));
                return Err(Error::Busy);
            }
            // The receiver is stopped inside a copy, perhaps of something else: the send completes when the
            // receiver answers, which it does also if it has not received it.
            if unasked {
                net.send_or_queue(withdrawal.peer, withdrawal.head().as_bytes());
            }
            return Ok(None);
        }
        Ok(Some(withdrawal))
    }

    /// Completes the send, unless its receiver has all of it by now, or will; whether it did.
    pub(in crate::endpoint) fn finish(
        &mut self,
        core: &mut Core,
        withdrawal: &Withdrawal,
        why: Error,
    ) -> Result<bool, Error> {
        let &Withdrawal { name, peer } = withdrawal;
        match self.0.requests.pool.get_mut(name) {
            Some(Request::Out(out)) if out.asked.is_none_or(|(_, want)| out.done < want) => {}
            _ => return Ok(false),
        }
        self.0.requests.cancel_operation(&mut self.0.net.link, name);
        // Pieces that were copied here are accounted for.
        self.0.coop().coop_report(name);
        self.0.requests.queues.drop_coop(name);
        self.0.requests.queues.drop_stream(name);
        let Some(Request::Out(out)) = self.0.requests.pool.replace(name, Request::Withdrawn(peer)) else {
            return Err(Error::NotFound);
        };
        match out.asked {
            Some((theirs, _)) => self.0.net.fin(peer, theirs, Status::Discarded, 0),
            None => self.0.net.send_or_queue(peer, withdrawal.head().as_bytes()),
        }
        self.0.ends().finish_out(core, &out, Some(why));
        Ok(true)
    }
}

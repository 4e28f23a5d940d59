//! The one object a door drives: everything that lives under one lock.

mod deferred;
mod endpoints;
mod memory;
mod queues;
mod receive;

pub use endpoints::Abandoned;

use hmem::Span;

use crate::av::Av;
use crate::config::Config;
use crate::core::{Core, Slab, Tally};
use crate::endpoint::{Endpoint, Leaving};
use crate::types::*;
use crate::work::Work;
use link_api::RmaLink;

/// An operation that could not start, as its completion names it.
struct Failed {
    ctx: Ctx,
    what: What,
    tag: u64,
}

/// Endpoints and all that they share. It is driven by one thread at a time: a door puts its lock
/// around it.
#[derive(Debug)]
pub struct Domain<L> {
    core: Core,
    avs: Slab<Av>,
    eps: Slab<Endpoint<L>>,
    work: Vec<Work>,
}

impl<L: RmaLink> Domain<L> {
    /// A domain without anything in it.
    pub fn new(config: Config) -> Self {
        Domain { core: Core::new(config), avs: Slab::default(), eps: Slab::default(), work: Vec::new() }
    }

    /// Runs a post; if there is no room, makes progress and tries once more, so that a caller which
    /// does nothing but repeat the call gets through.
    fn post(
        &mut self,
        ep: EpId,
        to: FiAddr,
        run: impl Fn(&mut Endpoint<L>, &mut Core) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let e = self.eps.get_mut(ep.at()).ok_or(Error::NotFound)?;
        let mut result = run(e, &mut self.core);
        if result == Err(Error::Again) && e.progress(&mut self.core, None) > 0 {
            result = run(e, &mut self.core);
        }
        if let Err(err) = result {
            e.directed().not_started(&mut self.core, to, err);
        }
        if result.is_ok() {
            e.net.log_new_path();
        }
        if self.core.counted && !self.work.is_empty() {
            self.run_work();
        }
        result
    }

    /// How a post ends whose peer cannot be reached: one that asked for a completion has one, with the
    /// error. There are clients that try again for ever what a post refuses.
    #[cold]
    fn fail_post(&mut self, ep: EpId, err: Error, flags: OpFlags, failed: Failed) -> Result<(), Error> {
        let gone = err.gone().is_some();
        match self.eps.get(ep.at()) {
            Some(e) if gone && flags.contains(OpFlags::COMPLETION) && e.bind.tx_cq().is_some() => {
                e.bind.fail_start(&mut self.core, failed.ctx, failed.what, failed.tag, Tally::PLAIN, err);
                Ok(())
            }
            _ => Err(err),
        }
    }

    /// Sends a message. If it is injected, its buffer is the application's again when the call returns, which
    /// may wait for a device.
    pub fn send(&mut self, ep: EpId, op: &Send<'_>) -> Result<(), Error> {
        if let Some(mut leaving) = self.start_send(ep, op)? {
            while !self.has_left(&mut leaving) {}
        }
        Ok(())
    }

    /// As [`Domain::send`], but without that wait: what this returns is to be handed to [`Domain::has_left`]
    /// until the buffer is the application's again. Others may use the domain in between.
    pub fn start_send(&mut self, ep: EpId, op: &Send<'_>) -> Result<Option<Leaving>, Error> {
        self.post_send(ep, op)?;
        let injects = op.flags.contains(OpFlags::INJECT);
        Ok(self.eps.get_mut(ep.at()).filter(|_| injects).and_then(Endpoint::take_leaving))
    }

    /// Makes progress with an injected message: whether its bytes have left their buffer.
    pub fn has_left(&mut self, leaving: &mut Leaving) -> bool {
        let left = self.eps.get_mut(leaving.ep.at()).is_none_or(|e| e.has_left(&mut self.core, leaving));
        if !self.work.is_empty() {
            self.run_work();
        }
        left
    }

    fn post_send(&mut self, ep: EpId, op: &Send<'_>) -> Result<(), Error> {
        self.post(ep, op.to, |e, core| e.send(core, op, Tally::PLAIN)).or_else(|err| {
            let what = What::SEND | if op.tag.is_some() { What::TAGGED } else { What::MSG };
            self.fail_post(ep, err, op.flags, Failed { ctx: op.ctx, what, tag: op.tag.unwrap_or(0) })
        })
    }

    /// Sends a message of one buffer, `span` in the place of `op.iov`, if that can be done in no time.
    /// Otherwise nothing has happened, and [`Domain::send`] is the way.
    #[inline(always)]
    pub fn send_plain(&mut self, ep: EpId, span: Span, op: &Send<'_>) -> bool {
        let Some(e) = self.eps.get_mut(ep.at()) else { return false };
        let sent = e.post().send_plain(&mut self.core, span, op);
        if !self.work.is_empty() {
            self.run_work();
        }
        sent
    }

    /// Reads or writes a peer's memory.
    pub fn rma(&mut self, ep: EpId, op: &Rma<'_>) -> Result<(), Error> {
        self.post(ep, op.to, |e, core| e.rma(core, op, Tally::PLAIN)).or_else(|err| {
            let what = What::RMA | if op.write { What::WRITE } else { What::READ };
            self.fail_post(ep, err, op.flags, Failed { ctx: op.ctx, what, tag: 0 })
        })
    }

    /// Changes a peer's memory.
    pub fn atomic(&mut self, ep: EpId, op: &Atomic<'_>) -> Result<(), Error> {
        self.post(ep, op.to, |e, core| e.atomic(core, op, Tally::PLAIN)).or_else(|err| {
            let fetches = hmem::total(op.result) > 0;
            let what = What::ATOMIC | if fetches { What::READ } else { What::WRITE };
            self.fail_post(ep, err, op.flags, Failed { ctx: op.ctx, what, tag: 0 })
        })
    }

    /// Takes in what has arrived at any endpoint, and sends on what waits. Returns how much was
    /// done.
    pub fn progress(&mut self) -> usize {
        let mut n = 0;
        for (_, ep) in self.eps.iter_mut() {
            n += ep.progress(&mut self.core, None);
        }
        if !self.work.is_empty() {
            self.run_work();
        }
        n
    }

    /// Makes progress until a queue has `most` entries, and no longer; returns whether it has any.
    #[inline]
    pub fn progress_for(&mut self, cq: CqId, most: usize) -> bool {
        for (_, ep) in self.eps.iter_mut() {
            ep.progress(&mut self.core, Some((cq, most)));
        }
        if !self.work.is_empty() {
            self.run_work();
        }
        !self.cq_is_empty(cq)
    }

    /// Whether this poll, the first since the application had its say, is to take nothing in and look at no
    /// ring: a receive has completed just now, and no other is posted.
    #[inline(always)]
    pub fn rests(&mut self) -> bool {
        if self.core.rest == 0 {
            return false;
        }
        self.core.rest -= 1;
        true
    }

    /// A quick look for what that queue, which is empty, would have one entry of, as nearly every
    /// message has.
    #[inline(always)]
    pub fn poll_fast(&mut self, cq: CqId, to: &mut impl Report) -> PollFast {
        if !self.work.is_empty() {
            return PollFast::Unknown;
        }
        let mut all = PollFast::Nothing;
        for slot in self.eps.slots() {
            let Some(ep) = slot else { continue };
            match ep.poll_fast(&mut self.core, cq, to) {
                PollFast::Nothing => {}
                PollFast::Kept if self.core.standing(cq) > 0 => return PollFast::Kept,
                PollFast::Kept => all = PollFast::Kept,
                found => return found,
            }
        }
        all
    }

    /// The work of all polls that have found [`PollFast::Kept`] since this was asked last, at all endpoints:
    /// in messages that wait now, or as many bytes as cost about as much.
    pub fn kept(&mut self) -> u32 {
        std::mem::take(&mut self.core.kept)
    }

    /// The process exits: [`Link::settle`](link_api::Link::settle) of each endpoint.
    pub fn settle(&mut self, last: bool) -> bool {
        let mut settled = true;
        self.eps.iter_mut().for_each(|(_, ep)| settled &= ep.net.link.settle(last));
        settled
    }

    /// Has every peer wake this process when it sends. `true`: nothing is there now, and all links' wait
    /// descriptors may be slept on.
    pub fn arm(&mut self) -> bool {
        let mut quiet = true;
        for (_, ep) in self.eps.iter_mut() {
            quiet &= !ep.is_waiting_for_room()
                && !ep.requests.is_inviting()
                && !ep.requests.has_sent(&mut ep.net.link)
                && ep.net.link.arm();
        }
        quiet
    }

    /// Whether the last [`Domain::arm`] returned true and holds: no call since has left anything to do that
    /// its wait descriptors do not tell of.
    pub fn is_armed(&self) -> bool {
        self.eps.iter().all(|ep| ep.is_armed(&self.core))
    }
}

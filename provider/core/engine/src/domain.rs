//! The one object that a provider drives: everything that lives under one lock.

mod collectives;
mod deferred_work;
mod expire;
mod objects;
mod opened;
mod peek;
mod pending;
mod post_receive;

pub use expire::{Expired, Expiring};
pub use objects::Abandoned;
pub use pending::pending;

use hmem::Span;

use self::collectives::Collectives;
use self::deferred_work::DeferredWork;
use self::opened::Opened;
use crate::config::Config;
use crate::core::{Core, RxContext, Slab, Tally};
use crate::endpoint::{Endpoint, Failed, Leaving};
use crate::types::*;
use crate::work::Work;
use link_api::{Patience, RmaLink};

/// Endpoints and all that they share. It is driven by one thread at a time: a provider puts its lock
/// around it.
#[derive(Debug)]
#[repr(C)]
pub struct Domain<L> {
    opened: Opened<L>,
    deferred: DeferredWork,
    collectives: Collectives,
}

impl<L: RmaLink> Domain<L> {
    /// A domain without anything in it.
    pub fn new(config: Config) -> Self {
        let opened = Opened { core: Core::new(config), avs: Slab::default(), eps: Slab::default() };
        Domain { opened, deferred: DeferredWork::default(), collectives: Collectives::new() }
    }

    /// Runs a post; if there is no room, makes progress and tries once more, so that a caller which
    /// does nothing but repeat the call gets through.
    fn post(
        &mut self,
        ep: EpId,
        to: FiAddr,
        run: impl Fn(&mut Endpoint<L>, &mut Core) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let e = self.opened.eps.get_mut(ep.at()).ok_or(Error::NotFound)?;
        let mut result = run(e, &mut self.opened.core);
        if result == Err(Error::Again) && e.progress(&mut self.opened.core, None) > 0 {
            result = run(e, &mut self.opened.core);
        }
        if let Err(err) = result {
            e.directed().not_started(&mut self.opened.core, to, err);
        }
        if result.is_ok() {
            e.net.log_new_path();
        }
        self.run_counted();
        result
    }

    /// How a post ends whose peer cannot be reached: one that requested a completion has one, with the
    /// error. There are clients that try again for ever what a post refuses.
    #[cold]
    fn fail_post(&mut self, ep: EpId, err: Error, flags: OpFlags, failed: Failed) -> Result<(), Error> {
        let gone = err.gone().is_some();
        match self.opened.eps.get(ep.at()) {
            Some(e) if gone && flags.contains(OpFlags::COMPLETION) && e.bind.tx_cq().is_some() => {
                e.bind.fail_start(&mut self.opened.core, failed, Tally::PLAIN, err);
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
        Ok(self.opened.eps.get_mut(ep.at()).filter(|_| injects).and_then(Endpoint::take_leaving))
    }

    /// Makes progress with an injected message: whether its bytes have left their buffer.
    pub fn has_left(&mut self, leaving: &mut Leaving) -> bool {
        let left = self
            .opened
            .eps
            .get_mut(leaving.ep.at())
            .is_none_or(|e| e.has_left(&mut self.opened.core, leaving));
        if !self.opened.core.later.is_empty() {
            self.run_work();
        }
        left
    }

    fn post_send(&mut self, ep: EpId, op: &Send<'_>) -> Result<(), Error> {
        self.post(ep, op.to, |e, core| e.send(core, op, Tally::PLAIN)).or_else(|err| {
            let (what, tag) = (What::sent(op.tag.is_some()), op.tag.unwrap_or(0));
            self.fail_post(ep, err, op.flags, Failed { ctx: op.ctx, what, tag, to: op.to })
        })
    }

    /// Sends a message of one buffer, `span` in the place of `op.iov`, if that can be done in no time.
    /// Otherwise nothing has happened, and [`Domain::send`] is the way.
    #[inline(always)]
    pub fn send_plain(&mut self, ep: EpId, span: Span, op: &Send<'_>) -> bool {
        let Some(e) = self.opened.eps.get_mut(ep.at()) else { return false };
        let sent = e.post().send_plain(&mut self.opened.core, span, op);
        if !self.opened.core.later.is_empty() {
            self.run_work();
        }
        sent
    }

    /// Reads or writes a peer's memory.
    pub fn rma(&mut self, ep: EpId, op: &Rma<'_>) -> Result<(), Error> {
        self.post(ep, op.to, |e, core| e.rma(core, op, Tally::PLAIN)).or_else(|err| {
            let what = What::rma(op.write);
            self.fail_post(ep, err, op.flags, Failed { ctx: op.ctx, what, tag: 0, to: op.to })
        })
    }

    /// Changes a peer's memory.
    pub fn atomic(&mut self, ep: EpId, op: &Atomic<'_>) -> Result<(), Error> {
        self.post(ep, op.to, |e, core| e.atomic(core, op, Tally::PLAIN)).or_else(|err| {
            let what = What::atomic(hmem::total(op.result) > 0);
            self.fail_post(ep, err, op.flags, Failed { ctx: op.ctx, what, tag: 0, to: op.to })
        })
    }

    /// Posts a receive of one buffer, `span` in the place of `op.iov`, or completes it with a message
    /// that waits.
    #[inline(always)]
    pub fn recv_one(&mut self, rx: RxId, span: Span, op: Recv<'_>) -> Result<(), Error> {
        let posted = self.opened.recv_one(rx, span, op);
        self.run_counted();
        posted
    }

    /// Posts a receive, or completes it with a message that waits.
    pub fn recv(&mut self, rx: RxId, op: &Recv<'_>) -> Result<(), Error> {
        self.opened.recv(rx, op, Tally::PLAIN)?;
        self.run_counted();
        Ok(())
    }

    /// Looks for a waiting message. The answer is a completion: a success that describes the
    /// message, or a failure with [`Error::NoMessage`].
    ///
    /// Progress is made after a look that finds nothing, not before it: a library that looks at
    /// several transports in turn (MPICH, for a probe of any source) then finds here only what it
    /// would have found a while ago, and not what overtook a message of another transport.
    pub fn peek(
        &mut self,
        rx: RxId,
        pattern: Pattern,
        what: Peek,
        ctx: Ctx,
        flags: OpFlags,
    ) -> Result<(), Error> {
        self.peek_by(rx, None, pattern, what, (ctx, flags))
    }

    /// Peeks by a call to this endpoint: the answer is a completion in its queue, whichever endpoint the
    /// message came to.
    pub fn ep_peek(
        &mut self,
        ep: EpId,
        pattern: Pattern,
        what: Peek,
        ctx: Ctx,
        flags: OpFlags,
    ) -> Result<(), Error> {
        let rx = self.ep_rx(ep).ok_or(Error::NotFound)?;
        self.peek_by(rx, Some(ep), pattern, what, (ctx, flags))
    }

    fn peek_by(
        &mut self,
        rx: RxId,
        by: Option<EpId>,
        pattern: Pattern,
        what: Peek,
        of: (Ctx, OpFlags),
    ) -> Result<(), Error> {
        if !self.opened.peek(rx, by, pattern, what, of)? {
            self.progress();
        }
        Ok(())
    }

    /// Receives the message that a peek with the same context has set aside.
    pub fn claim(&mut self, rx: RxId, op: &Recv<'_>) -> Result<(), Error> {
        self.opened.claim(rx, op)?;
        self.run_counted();
        Ok(())
    }

    /// Throws away the message that a peek has set aside; completes with its length, but no bytes.
    pub fn claim_discard(&mut self, rx: RxId, ctx: Ctx, tagged: bool, flags: OpFlags) -> Result<(), Error> {
        self.opened.claim_discard(rx, ctx, tagged, flags)
    }

    /// Cancels what was posted to an endpoint under that context: a receive, or a send whose bytes are still
    /// here. It fails with [`Error::Cancelled`].
    pub fn ep_cancel(&mut self, ep: EpId, ctx: Ctx) -> Result<(), Error> {
        self.ep_cancel_in_turns(ep, ctx, &mut None)
    }

    /// Cancels as [`Domain::ep_cancel`] does, by a caller that lets others in meanwhile. [`Error::Busy`],
    /// with [`Patience::Retried`](link_api::Patience) alone: the receiver of the send is inside an access. It
    /// is called again with what it left in `begun`, which names that send: another one with the
    /// same context is not cancelled in its stead.
    pub fn ep_cancel_in_turns(
        &mut self,
        ep: EpId,
        ctx: Ctx,
        begun: &mut Option<Cancelling>,
    ) -> Result<(), Error> {
        if begun.is_none() {
            let rx = self.ep_rx(ep).ok_or(Error::NotFound)?;
            match self.opened.cancel_recv(rx, ctx, Some(ep)) {
                Err(Error::NotFound) => {}
                other => return other,
            }
        }
        let e = self.opened.eps.get_mut(ep.at()).ok_or(Error::NotFound)?;
        e.cancel(&mut self.opened.core, ctx, begun, Error::Cancelled)?;
        self.run_counted();
        Ok(())
    }

    /// Takes a posted receive back: it fails with [`Error::Cancelled`].
    pub fn cancel(&mut self, rx: RxId, ctx: Ctx) -> Result<(), Error> {
        self.opened.cancel_recv(rx, ctx, None)
    }

    /// Queues an operation for when its counter is there, which may be now.
    pub fn queue_work(&mut self, work: Work) {
        self.deferred.queue(work);
        self.run_work();
    }

    /// Takes back an operation that has not started: it has no completion ([`Domain::cntr_watch`]).
    pub fn cancel_work(&mut self, id: Ctx) -> Result<(), Error> {
        let taken = self.deferred.cancel(id)?;
        self.opened.core.forget(Tally { endpoint: false, also: taken.completion }, None);
        self.run_counted();
        Ok(())
    }

    /// Takes back all operations that have not started, as [`Domain::cancel_work`] does.
    pub fn flush_work(&mut self) {
        for taken in self.deferred.clear() {
            self.opened.core.forget(Tally { endpoint: false, also: taken.completion }, None);
        }
    }

    /// The counter has not counted in time what it was to count: `until`. Of the operations that are to count
    /// in it, those that can be taken back fail with [`Error::Overdue`]: deferred ones that have not started,
    /// receives without a message, sends whose bytes are still here. So do deferred ones that wait for the
    /// counter, and all that wait for a counter in which one of these was to count. It has a failure then,
    /// unless it has reached the value; what only a peer can end counts when it ends.
    ///
    /// [`Error::Busy`], with [`Patience::Retried`] alone: the receiver of a send is inside an access. It is
    /// called again with what it left in `begun`.
    pub fn cntr_expire(
        &mut self,
        cntr: CntrId,
        until: u64,
        patience: Patience,
        begun: &mut Option<Expiring>,
    ) -> Result<Expired, Error> {
        let before = self.opened.core.patience;
        self.set_patience(patience);
        let Domain { opened, deferred, collectives } = self;
        let mut expiring = begun.take().unwrap_or_else(|| expire::begin(opened, deferred, cntr));
        let ended = expiring.end_sends(opened);
        let outcome = match ended {
            Ok(()) => Ok(expiring.finish(opened, until, collectives.counted_in(opened, cntr))),
            Err(err) => {
                *begun = Some(expiring);
                Err(err)
            }
        };
        self.set_patience(before);
        self.run_work();
        outcome
    }

    /// Lets an endpoint take part in collective operations. To be called before peers may: until then their
    /// messages of these are refused.
    pub fn ep_allow_collectives(&mut self, ep: EpId) {
        let Some(e) = self.opened.eps.get_mut(ep.at()).filter(|e| e.bind.collective().is_none()) else {
            return;
        };
        let mut rx = RxContext::new(false);
        rx.add_ep(ep);
        e.set_collective(RxId(self.opened.core.rxs.insert(rx)));
    }

    /// Joins a group of these endpoints, in this order, of which the endpoint is one; all of them have to.
    /// [`Domain::joined`] reports the end. [`Error::Invalid`]: one is named twice, or the endpoint is not
    /// among them. [`Error::Unsupported`]: it was not let.
    pub fn group_join(&mut self, ep: EpId, members: &[FiAddr], ctx: Ctx) -> Result<GroupId, Error> {
        let e = self.opened.eps.get(ep.at()).ok_or(Error::NotFound)?;
        if e.bind.collective().is_none() {
            return Err(Error::Unsupported);
        }
        let vector = self.opened.avs.get(e.bind.av().at()).ok_or(Error::NotFound)?;
        let known = |at: &FiAddr| Some((vector.canonical(*at), vector.lookup(*at)?));
        let all: Option<Vec<_>> = members.iter().map(known).collect();
        let all = all.ok_or(Error::NoAddr)?;
        let own = e.net.link.addr();
        let rank = all.iter().position(|(_, addr)| *addr == own).ok_or(Error::Invalid)?;
        let mut sorted: Vec<FiAddr> = all.iter().map(|(at, _)| *at).collect();
        sorted.sort_unstable();
        if sorted.windows(2).any(|two| two[0] == two[1]) {
            return Err(Error::Invalid);
        }
        let group = self.collectives.join(&mut self.opened, ep, all, rank, ctx)?;
        self.run_work();
        Ok(group)
    }

    /// The end of the join of a group, once. A group whose join has failed is closed as any other.
    pub fn joined(&mut self, group: GroupId) -> Option<Joined> {
        self.collectives.take_joined(group)
    }

    /// Bytes of the buffers of an operation, input and result. Those in `op` do not count.
    pub fn collective_lengths(
        &self,
        ep: EpId,
        group: GroupId,
        op: &Collective,
    ) -> Result<(usize, usize), Error> {
        Ok(self.collectives.shape(&self.opened, (ep, group), op)?.lengths())
    }

    /// Posts a collective operation, which completes where the endpoint's atomics do. All members post the
    /// same ones in one order. Those that a member's end keeps from completing fail, and all behind them.
    /// [`Error::NotFound`]: the endpoint has not joined the group.
    pub fn collective(&mut self, ep: EpId, group: GroupId, op: &Collective) -> Result<(), Error> {
        self.collectives.start(&mut self.opened, (ep, group), op)?;
        self.run_work();
        Ok(())
    }

    /// Sets how many bytes each member of a group shares with the others, if all are of one host; 0: none,
    /// and operations go by messages. Of groups that are joined from now on.
    pub fn set_group_memory(&mut self, bytes: usize) {
        self.collectives.set_memory(bytes);
    }

    /// Leaves a group. [`Error::Busy`]: an operation is under way, or the join is.
    pub fn group_close(&mut self, group: GroupId) -> Result<(), Error> {
        self.collectives.close(&mut self.opened, group)
    }

    fn run_work(&mut self) {
        if self.opened.core.later.has_collectives() {
            self.collectives.run(&mut self.opened);
        }
        self.deferred.run(&mut self.opened);
        self.opened.core.later.set_deferred(!self.deferred.is_empty());
    }

    /// Runs what waits for a counter that has changed.
    #[inline(always)]
    fn run_counted(&mut self) {
        if !self.opened.core.changed.is_empty() {
            self.run_work();
        }
    }

    /// Takes in what has arrived at any endpoint, and sends on what waits. Returns how much was
    /// done.
    pub fn progress(&mut self) -> usize {
        let mut n = 0;
        for (_, ep) in self.opened.eps.iter_mut() {
            n += ep.progress(&mut self.opened.core, None);
        }
        if !self.opened.core.later.is_empty() {
            n += self.collectives.run(&mut self.opened);
            self.run_work();
        }
        n
    }

    /// Makes progress until a queue has `most` entries, and no longer; returns whether it has any.
    #[inline]
    pub fn progress_for(&mut self, cq: CqId, most: usize) -> bool {
        for (_, ep) in self.opened.eps.iter_mut() {
            ep.progress(&mut self.opened.core, Some((cq, most)));
        }
        if !self.opened.core.later.is_empty() {
            self.run_work();
        }
        !self.cq_is_empty(cq)
    }

    /// Whether this poll, the first since the application had its say, is to take nothing in and look at no
    /// ring: a receive has completed just now, and no other is posted.
    #[inline(always)]
    pub fn rests(&mut self) -> bool {
        if self.opened.core.rest == 0 {
            return false;
        }
        self.opened.core.rest -= 1;
        true
    }

    /// A quick look for what that queue, which is empty, would have one entry of, as nearly every
    /// message has.
    #[inline(always)]
    pub fn poll_fast(&mut self, cq: CqId, to: &mut impl Report) -> PollFast {
        if !self.opened.core.later.is_empty() {
            return PollFast::Unknown;
        }
        let mut all = PollFast::Nothing;
        for slot in self.opened.eps.slots() {
            let Some(ep) = slot else { continue };
            match ep.poll_fast(&mut self.opened.core, cq, to) {
                PollFast::Nothing => {}
                PollFast::Kept if self.opened.core.standing(cq) > 0 => return PollFast::Kept,
                PollFast::Kept => all = PollFast::Kept,
                found => return found,
            }
        }
        all
    }

    /// The work of all polls that have found [`PollFast::Kept`] since this was asked last, at all endpoints:
    /// in messages that wait now, or as many bytes as cost about as much.
    pub fn kept(&mut self) -> u32 {
        std::mem::take(&mut self.opened.core.kept)
    }

    /// The process exits: [`Link::settle`](link_api::Link::settle) of each endpoint.
    pub fn settle(&mut self, last: bool) -> bool {
        let mut settled = true;
        self.opened.eps.iter_mut().for_each(|(_, ep)| settled &= ep.net.link.settle(last));
        settled
    }

    /// Has every peer wake this process when it sends. `true`: nothing is there now, and all links' wait
    /// descriptors may be slept on.
    pub fn arm(&mut self) -> bool {
        let mut quiet = self.collectives.arm(&mut self.opened);
        for (_, ep) in self.opened.eps.iter_mut() {
            ep.requests.flush_tails(&mut ep.net, true);
            quiet &= !ep.is_waiting_for_room()
                && !ep.requests.is_inviting()
                && !ep.requests.has_sent(&mut ep.net.link)
                && ep.net.link.arm();
        }
        quiet
    }

    /// Whether the last [`Domain::arm`] returned true and holds: no call since has left anything to do that
    /// its wait descriptors do not signal.
    pub fn is_armed(&self) -> bool {
        let armed = |ep: &Endpoint<L>| ep.is_armed(&self.opened.core);
        self.collectives.is_armed(&self.opened) && self.opened.eps.iter().all(armed)
    }
}

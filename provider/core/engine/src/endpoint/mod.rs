//! An endpoint: its peers, its requests, and what it does with each.

mod arrivals;
mod cancel;
mod complete;
mod coop;
mod device;
mod ends;
mod forgotten;
mod frames;
mod gone;
mod incoming_message;
mod malformed;
mod metered;
mod net;
mod parts;
pub(crate) mod pending;
mod plain;
mod post;
mod progress;
mod requests;
mod rma;
mod transfer;
mod unexpected_quota;

use hmem::Span;
use wire::{Addr, Status};

use crate::config::{Cntrs, MrId};
use crate::core::{Core, Tally};
use crate::endpoint::cancel::Cancel;
use crate::endpoint::coop::CoopCopies;
use crate::endpoint::device::bounce::Bounce;
use crate::endpoint::device::handles::Handles;
use crate::endpoint::device::inject::Inject;
use crate::endpoint::ends::Ends;
use crate::endpoint::gone::Directed;
use crate::endpoint::incoming_message::IncomingMessages;
use crate::endpoint::malformed::Malformed;
use crate::endpoint::net::Net;
use crate::endpoint::parts::adapt::Adapt;
use crate::endpoint::parts::bind::Bind;
use crate::endpoint::parts::request::{In, Request, Serve, Then};
use crate::endpoint::post::Post;
use crate::endpoint::requests::Requests;
use crate::endpoint::rma::order::RmaOrder;
use crate::endpoint::rma::target::Accesses;
use crate::endpoint::transfer::Transfers;
use crate::endpoint::unexpected_quota::Unexpected;
use crate::types::*;
pub(crate) use complete::Failed;
pub use device::staging::Leaving;
pub(crate) use forgotten::forget;
use link_api::{Allow, Budget, FrameSource, Hint, InUse, Patience, PeerId, PollFrame, RmaLink, Setting};

/// What short messages touch is together: it comes first in each of these, and in what they are made of. The
/// link is dropped before the memory that devices copy to and from for it.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Endpoint<L> {
    pub(crate) id: EpId,
    pub(crate) bind: Bind,
    adapt: Adapt,
    pub(crate) net: Net<L>,
    pub(crate) requests: Requests,
    /// What receives of parts of collective operations are bound to.
    parts: Option<Box<Bind>>,
}

impl<L: RmaLink> Endpoint<L> {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        link: L,
        av: AvId,
        rx: RxId,
        tx_cq: Option<CqId>,
        rx_cq: Option<CqId>,
        cntrs: Cntrs,
        budget: &Budget,
    ) -> Self {
        Endpoint {
            id: EpId(u32::MAX),
            net: Net::new(link, budget),
            bind: Bind::new(av, rx, tx_cq, rx_cq, cntrs),
            requests: Requests::new(),
            adapt: Adapt::default(),
            parts: None,
        }
    }

    /// Lets peers see a registration, if it is one range of memory under a key of its own.
    pub(crate) fn expose(&mut self, core: &Core, mr: MrId) {
        // Memory of a device may be freed while it is registered, and what is at its address be other memory.
        let may = |span: &Span| core.lasting || !span.can(hmem::Caps::DEVICE);
        if let Some((mut memory, span)) = core.mrs.exposed(mr).filter(|(_, span)| may(span)) {
            memory.target_must_observe |=
                self.bind.cntrs().remote_read.is_some() || self.bind.cntrs().remote_write.is_some();
            self.net.link.allow(Allow::Region(&memory, span));
        }
    }

    /// A receive was posted that names this peer, which may never come, or be gone as far as is known;
    /// `ADDR_UNSPEC`: it names none. `only`: no other receive is posted. Where something else is under way,
    /// answers of any peer may be waited for.
    #[inline(always)]
    pub(crate) fn expect_from(&mut self, core: &mut Core, from: FiAddr, only: bool) {
        let Some(peer) = self.net.routed(from) else { return self.net.link.hint(Hint::ReceiveFrom(None)) };
        if only && self.requests.pool.len() == 0 {
            self.net.link.hint(Hint::ReceiveFrom(Some(peer)));
            // The next message most often goes to that peer.
            self.net.link.hint(Hint::SendTo(peer));
        } else {
            self.net.link.hint(Hint::ReceiveFrom(None));
        }
        match self.net.peers.get(peer) {
            Some(p) if p.expected & p.gone.is_none() => {}
            _ => self.directed().reconnect(core, peer),
        }
    }

    /// Completes a receive that is not posted yet with the next message of a ring, if that is there and is
    /// for it: `false`, and nothing has happened, where it is not. No receive is posted, and no message
    /// waits, that would come before. `rest`: polls that take nothing in behind it ([`Core::rest`]).
    #[inline(always)]
    pub(crate) fn receive_at_once(&mut self, core: &mut Core, span: Span, op: &Recv<'_>, rest: u8) -> bool {
        if self.requests.has_chores(&self.net) {
            return false;
        }
        match self.net.routed(op.pattern.src) {
            Some(peer) if self.requests.pool.len() == 0 => {
                self.net.link.hint(Hint::ReceiveFrom(Some(peer)));
            }
            _ => self.net.link.hint(Hint::ReceiveFrom(None)),
        }
        let frame = match self.net.link.poll_frame(FrameSource::AnyAtHand) {
            PollFrame::Frame(frame) => frame,
            PollFrame::Nothing => {
                plain::waited(core, self.bind.rx());
                return false;
            }
            PollFrame::Unknown => return false,
        };
        let done = self.incoming_messages().receive_this(core, &frame, span, op, rest);
        if !done {
            plain::waited(core, self.bind.rx());
        }
        done
    }

    /// Receives the next message of the peer that the receive names, whatever others have sent.
    pub(crate) fn receive_from_ring(&mut self, core: &mut Core, span: Span, op: &Recv<'_>, rest: u8) -> bool {
        if self.requests.has_chores(&self.net) {
            return false;
        }
        let Some(peer) = self.net.routed(op.pattern.src) else { return false };
        let PollFrame::Frame(frame) = self.net.link.poll_frame(FrameSource::Only(peer)) else { return false };
        self.incoming_messages().receive_this(core, &frame, span, op, rest)
    }

    /// The address vector got an entry. `first` is the first index of the same address.
    pub(crate) fn add_route(&mut self, core: &mut Core, at: FiAddr, addr: &Addr, first: FiAddr) {
        let peer = self.net.link.peer(addr);
        self.net.peers.set_route(at, peer);
        if self.net.peer(peer).routes == 0 {
            // Its number may have been a peer's of another link.
            let path = self.net.link.path(peer);
            self.net.peer(peer).flow.set_path(&path);
        }
        self.net.peer(peer).routes += 1;
        self.relabel(core, peer, first);
    }

    /// The address vector lost an entry; `next` is what the address is called now.
    pub(crate) fn remove_route(&mut self, core: &mut Core, at: FiAddr, next: FiAddr) {
        if let Some(peer) = self.net.peers.take_route(at) {
            self.relabel(core, peer, next);
            let state = self.net.peer(peer);
            state.routes = state.routes.saturating_sub(1);
            self.requests.release(&mut self.net, peer);
        }
    }

    fn relabel(&mut self, core: &mut Core, peer: PeerId, src: FiAddr) {
        let old = std::mem::replace(&mut self.net.peer(peer).src, src);
        if old == src {
            return;
        }
        let ep = self.id;
        for rx in self.bind.contexts() {
            let Some(rx) = core.rxs.get_mut(rx.at()) else { continue };
            for tagged in [true, false] {
                let m = rx.matcher(tagged);
                m.edit_waiting(|m| m.ep == ep && m.peer == peer, |m| m.src = src);
                if old != ADDR_UNSPEC && src != ADDR_UNSPEC {
                    m.edit_posted(|r| r.pattern.src == old, |r| r.pattern.src = src);
                }
            }
            for (_, m) in rx.claimed.iter_mut().filter(|(_, m)| m.ep == ep && m.peer == peer) {
                m.src = src;
            }
        }
    }

    /// Cancels a send: see [`Cancel`]. `begun`: what an earlier call has begun with. Whether it has completed
    /// with `why`.
    pub(crate) fn cancel(
        &mut self,
        core: &mut Core,
        ctx: Ctx,
        begun: &mut Option<Cancelling>,
        why: Error,
    ) -> Result<bool, Error> {
        let Some(withdrawal) = Cancel(self.transfers()).begin(core, ctx, begun, why)? else {
            return Ok(false);
        };
        // A receiver that was done before says so by now: then it was sent.
        self.progress(core, None);
        Cancel(self.transfers()).finish(core, &withdrawal, why)
    }

    /// What has been started here and is to count in that counter: sends that can be cancelled, and how much
    /// else is under way.
    pub(crate) fn counted_in(&mut self, cntr: CntrId) -> (Vec<Cancelling>, usize) {
        let bind = &self.bind;
        let is_counted = |tally: Tally, what| {
            tally.also == Some(cntr) || (tally.endpoint && bind.cntr_of(what) == Some(cntr))
        };
        let (mut sends, mut left) = (Vec::new(), 0);
        for (name, tally, what) in self.requests.that_count() {
            match name {
                _ if !is_counted(tally, what) => {}
                Some(name) if self.requests.is_cancellable(name) => sends.push(Cancelling(name)),
                _ => left += 1,
            }
        }
        (sends, left)
    }

    /// What that send is, its peer and its context, unless it is over.
    pub(crate) fn sending(&mut self, send: Cancelling) -> Option<(What, FiAddr, Ctx)> {
        let Some(Request::Out(out)) = self.requests.pool.get_mut(send.0) else { return None };
        let (peer, done_as) = (out.peer, out.done_as);
        Some((done_as.what, self.net.peer(peer).src, done_as.ctx))
    }

    /// Fails receives that messages were on their way to. The endpoint is closed, and they were posted to a
    /// context that others share.
    pub(crate) fn fail_received(&mut self, core: &mut Core) {
        let received = |r: &Request| matches!(r, Request::In(In { then: Then::Recv(_), .. }));
        for name in self.requests.pool.names(received) {
            if let Some(Request::In(In { then: Then::Recv(matched), .. })) = self.requests.pool.remove(name) {
                self.bind.complete_recv(core, matched, 0, Some(Error::Cancelled));
            }
        }
    }

    /// Ends what peers have under way with a registration that is closed: it fails on both sides.
    /// When it returns `Ok`, none of it is accessed any more.
    pub(crate) fn end_accesses(&mut self, core: &mut Core, mr: MrId) -> Result<(), InUse> {
        let names = self.requests.pool.names(|r| match r {
            Request::In(In { then: Then::Write { mrs, .. }, .. }) => mrs.contains(&mr),
            Request::Serve(s) => s.mrs.contains(&mr),
            Request::CoopHelp(l) => l.mrs.contains(&mr),
            _ => false,
        });
        let mut outcome = Ok(());
        for name in names {
            if outcome.is_err() {
                // The call is to be made again in any case: the others are asked, and not waited for.
                self.net.link.set(Setting::Patience(Patience::Retried));
            }
            match self.requests.pool.get_mut(name) {
                Some(Request::In(i)) => {
                    let peer = i.peer;
                    if self.requests.take_back(&mut self.net.link, peer, name).is_err() {
                        outcome = Err(InUse);
                    }
                    self.transfers().end_write(core, name);
                }
                Some(&mut Request::Serve(Serve { peer, req, lent, .. })) => {
                    // Its initiator may be getting it.
                    if lent && self.requests.take_back(&mut self.net.link, peer, name).is_err() {
                        outcome = Err(InUse);
                        continue;
                    }
                    self.requests.cancel_operation(&mut self.net.link, name);
                    self.requests.queues.drop_stream(name);
                    self.requests.end_serve(&mut self.net.link, name);
                    self.net.fin(peer, req, Status::BadKey, 0);
                }
                Some(Request::CoopHelp(_)) => {
                    self.requests.queues.drop_coop(name);
                    self.coop().coop_report(name);
                }
                _ => {}
            }
        }
        self.net.link.set(Setting::Patience(core.patience));
        self.go_on_in_order(core);
        outcome
    }

    /// The message that was injected just now, if its bytes have still to leave their buffer.
    pub(crate) fn take_leaving(&mut self) -> Option<Leaving> {
        let (peer, name) = self.requests.injected.take_leaving()?;
        Some(Leaving { ep: self.id, peer, name, patience: device::staging::PATIENCE })
    }

    /// Goes on with an injected message: whether its buffer is the application's again. That is when our
    /// device has put it where its receiver said, or has copied it to the host, to be sent from there.
    pub(crate) fn has_left(&mut self, core: &mut Core, leaving: &mut Leaving) -> bool {
        self.progress(core, None);
        let (peer, name) = (leaving.peer, leaving.name);
        if self.requests.staging.following(name).is_some() {
            return self.inject().follow(name);
        }
        let progress = match self.requests.pool.get_mut(name) {
            Some(Request::Out(out)) => Some((out.asked.is_some(), out.done > 0)),
            _ => None,
        };
        let prompt = match progress {
            // Received, or the peer is gone.
            None => true,
            Some((true, begun)) if begun || self.requests.queues.is_streamed(name) => false,
            Some((true, _)) if self.requests.is_in_flight(name) => return false,
            Some((true, _)) => true,
            Some((false, _)) if leaving.patience == 0 => false,
            Some((false, _)) => {
                leaving.patience -= 1;
                return false;
            }
        };
        self.net.peer(peer).hints.note_prompt(prompt);
        self.inject().let_follow(peer, name)
    }

    #[inline(always)]
    pub(crate) fn accesses(&mut self) -> Accesses<'_, L> {
        Accesses { net: &mut self.net, bind: &self.bind }
    }

    #[inline(always)]
    pub(crate) fn directed(&mut self) -> Directed<'_, L> {
        Directed { net: &mut self.net, bind: &self.bind }
    }

    #[inline(always)]
    pub(crate) fn rma_order(&mut self) -> RmaOrder<'_, L> {
        RmaOrder { net: &mut self.net, requests: &mut self.requests }
    }

    #[inline(always)]
    pub(crate) fn handles(&mut self) -> Handles<'_, L> {
        Handles { net: &mut self.net, requests: &mut self.requests }
    }

    #[inline(always)]
    pub(crate) fn bounce(&mut self) -> Bounce<'_, L> {
        Bounce { net: &mut self.net, requests: &mut self.requests }
    }

    #[inline(always)]
    pub(crate) fn inject(&mut self) -> Inject<'_, L> {
        Inject { net: &mut self.net, requests: &mut self.requests }
    }

    #[inline(always)]
    pub(crate) fn ends(&mut self) -> Ends<'_, L> {
        Ends { net: &mut self.net, requests: &mut self.requests, bind: &self.bind, adapt: &mut self.adapt }
    }

    #[inline(always)]
    pub(crate) fn coop(&mut self) -> CoopCopies<'_, L> {
        CoopCopies {
            net: &mut self.net,
            requests: &mut self.requests,
            bind: &self.bind,
            adapt: &mut self.adapt,
        }
    }

    #[inline(always)]
    pub(crate) fn transfers(&mut self) -> Transfers<'_, L> {
        Transfers {
            net: &mut self.net,
            requests: &mut self.requests,
            bind: &self.bind,
            adapt: &mut self.adapt,
        }
    }

    #[inline(always)]
    pub(crate) fn unexpected(&mut self) -> Unexpected<'_, L> {
        Unexpected { id: self.id, net: &mut self.net, requests: &mut self.requests, bind: &self.bind }
    }

    /// Parts of collective operations are received by this context from now on.
    pub(crate) fn set_collective(&mut self, rx: RxId) {
        self.parts = Some(Box::new(self.bind.set_collective(rx)));
    }

    /// Incoming messages of the application, or, with [`wire::Flags::COLLECTIVE`], of collective operations.
    fn parts_for(&mut self, flags: wire::Flags) -> Result<IncomingMessages<'_, L>, Malformed> {
        let bind = match self.parts.as_deref() {
            _ if !flags.contains(wire::Flags::COLLECTIVE) => &self.bind,
            Some(parts) => parts,
            None => return Err(Malformed::Flags),
        };
        Ok(IncomingMessages {
            id: self.id,
            net: &mut self.net,
            requests: &mut self.requests,
            bind,
            adapt: &mut self.adapt,
        })
    }

    #[inline(always)]
    pub(crate) fn incoming_messages(&mut self) -> IncomingMessages<'_, L> {
        IncomingMessages {
            id: self.id,
            net: &mut self.net,
            requests: &mut self.requests,
            bind: &self.bind,
            adapt: &mut self.adapt,
        }
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, core: &mut Core, op: &Send<'_>, tally: Tally) -> Result<(), Error> {
        if self.adapt.is_time_for_progress() {
            self.progress(core, None);
        }
        self.post().send(core, op, tally)
    }

    pub(crate) fn rma(&mut self, core: &mut Core, op: &Rma<'_>, tally: Tally) -> Result<(), Error> {
        self.progress_in_order(core);
        self.post().rma(core, op, tally)
    }

    pub(crate) fn atomic(&mut self, core: &mut Core, op: &Atomic<'_>, tally: Tally) -> Result<(), Error> {
        self.progress_in_order(core);
        self.post().atomic(core, op, tally)
    }

    /// Makes progress before an operation that takes effect in order, if it is time for some.
    fn progress_in_order(&mut self, core: &mut Core) {
        if core.config.rma_order && self.adapt.is_time_for_progress() {
            self.progress(core, None);
        }
    }

    #[inline(always)]
    pub(crate) fn post(&mut self) -> Post<'_, L> {
        Post { net: &mut self.net, requests: &mut self.requests, bind: &self.bind, adapt: &mut self.adapt }
    }
}

//! The requests of an endpoint, what is to be done for each, and which bytes of theirs are under way.

use hmem::{Span, total};
use wire::{Flags, Head, Op as WireOp, Seg};
use zerocopy::IntoBytes;

use crate::core::{Tally, unmoved};
use crate::endpoint::device::staging::Staging;
use crate::endpoint::malformed::{Handled, Malformed, request_of};
use crate::endpoint::net::Net;
use crate::endpoint::parts::cumulative::Tail;
use crate::endpoint::parts::injected::Injected;
use crate::endpoint::parts::peer::Peer;
use crate::endpoint::parts::queues::Queues;
use crate::endpoint::parts::request::{In, NO_REQUEST, Out, Request, Serve, Then};
use crate::pool::Pool;
use crate::types::*;
use link_api::{
    Allow, Channel, Direct, Grant, HandleNote, InUse, NoDirect, OpId, Parting, PeerId, Revoke, RmaLink, Way,
};

/// Whether its peer may access its memory: it gets a message or a write, and puts what is read.
fn is_fetched(out: &Out) -> bool {
    let what = out.done_as.what;
    what.intersects(What::SEND | What::RMA)
}

#[derive(Debug)]
#[repr(C)]
pub(crate) struct Requests {
    pub(in crate::endpoint) pool: Pool<Request>,
    pub(in crate::endpoint) queues: Queues,
    pub(in crate::endpoint) injected: Injected,
    pub(in crate::endpoint) staging: Staging,
}

impl Requests {
    pub(in crate::endpoint) fn new() -> Requests {
        let (queues, injected) = (Queues::default(), Injected::default());
        Requests { pool: Pool::with_capacity(64), queues, injected, staging: Staging::new() }
    }

    /// The operation with this peer that a frame names.
    pub(in crate::endpoint) fn named(&mut self, peer: PeerId, name: u64) -> Result<&mut Request, Malformed> {
        request_of(&mut self.pool, peer, name)
    }

    /// Takes down what a peer wants of a request of ours, unless that is malformed.
    pub(in crate::endpoint) fn accept_cts(
        &mut self,
        peer: PeerId,
        name: u64,
        theirs: u64,
        want: u64,
    ) -> Handled {
        let Request::Out(out) = self.named(peer, name)? else { return Err(Malformed::Unfit) };
        let fits = out.asked.is_none()
            && out.coop.is_none()
            && want <= total(&out.iov) as u64
            && !out.done_as.what.intersects(What::READ | What::ATOMIC);
        fits.then(|| out.asked = Some((theirs, want as usize))).ok_or(Malformed::Unfit)
    }

    /// Bytes of this request were not put where they belong.
    pub(in crate::endpoint) fn spoil(&mut self, name: u64) {
        if let Some(Request::In(i)) = self.pool.get_mut(name) {
            let why = unmoved(&i.iov);
            i.failed.get_or_insert(why);
        }
    }

    /// From this byte on the payload has to come otherwise.
    pub(in crate::endpoint) fn refuse_bounce(&mut self, name: u64, off: usize) {
        if let Some(Request::In(i)) = self.pool.get_mut(name) {
            i.broken = Some(i.broken.map_or(off, |before| before.min(off)));
        }
    }

    /// Whether a request of this name lends memory to this peer, its initiator.
    pub(in crate::endpoint) fn is_lent(&mut self, peer: PeerId, name: u64) -> bool {
        matches!(self.pool.get_mut(name), Some(Request::Serve(s)) if s.peer == peer && s.lent)
    }

    /// Whether a peer asks for a send that was cancelled.
    pub(in crate::endpoint) fn is_withdrawn(&mut self, peer: PeerId, name: u64) -> bool {
        matches!(self.pool.get_mut(name), Some(Request::Withdrawn(p)) if *p == peer)
    }

    /// The receiver has answered a send that was cancelled.
    pub(in crate::endpoint) fn forget_withdrawn(&mut self, peer: PeerId, name: u64) -> bool {
        self.is_withdrawn(peer, name) && self.pool.remove(name).is_some()
    }

    /// Whether a copy is in flight for this request.
    pub(in crate::endpoint) fn is_in_flight(&self, name: u64) -> bool {
        self.queues.is_in_flight(name)
    }

    /// Whether messages come in only if this side goes on polling.
    pub(crate) fn is_inviting(&self) -> bool {
        self.queues.has_invited()
    }

    /// The operations in flight.
    pub(crate) fn ops_in_flight(&self) -> impl Iterator<Item = OpId> {
        self.queues.flights()
    }

    /// Requests that are not done.
    pub(crate) fn under_way(&self) -> usize {
        self.pool.len() + self.queues.unsent().len()
    }

    /// What is under way and counts when it is over, and its name unless the link has the rest of it.
    pub(crate) fn that_count(&self) -> Vec<(Option<u64>, Tally, What)> {
        let requests = self.pool.iter().filter_map(|(name, request)| match request {
            Request::Out(out) => Some((Some(name), out.done_as.tally, out.done_as.what)),
            Request::In(In { then: Then::Recv(matched), .. }) => {
                Some((Some(name), matched.tally, What::RECV))
            }
            _ => None,
        });
        let unsent = self.queues.unsent().iter().map(|u| (None, u.done_as.tally, u.done_as.what));
        requests.chain(unsent).collect()
    }

    /// A request has no more frames to send, and nothing on its way to a device: no device accesses its
    /// memory any more.
    pub(in crate::endpoint) fn end_stream(&mut self, name: u64) {
        self.queues.drop_stream(name);
        self.staging.cancel(name);
    }

    /// A peer is gone. Whether this request of its needs nothing of it any more; then it is answered to no
    /// successor.
    pub(in crate::endpoint) fn outlives_peer(&mut self, name: u64) -> bool {
        match self.pool.get_mut(name) {
            Some(Request::In(i)) if i.got == i.want && self.staging.is_landing(name) => {
                i.req = NO_REQUEST;
                true
            }
            _ => false,
        }
    }

    /// The name of the oldest send of that context whose bytes are still here.
    pub(in crate::endpoint) fn cancellable(&mut self, ctx: Ctx) -> Option<u64> {
        let is_it = |r: &Request| matches!(r, Request::Out(out) if out.done_as.ctx == ctx);
        let mut found = None;
        for name in self.pool.names(is_it) {
            if !self.is_cancellable(name) {
                continue;
            }
            let Some(Request::Out(out)) = self.pool.get_mut(name) else { continue };
            if found.is_none_or(|(seq, _)| out.seq < seq) {
                found = Some((out.seq, name));
            }
        }
        found.map(|(_, name)| name)
    }

    /// Whether that is a send of the application's whose bytes are still here.
    pub(in crate::endpoint) fn is_cancellable(&mut self, name: u64) -> bool {
        let is_send = matches!(self.pool.get_mut(name), Some(Request::Out(out))
            if out.done_as.what.contains(What::SEND)
                && !out.done_as.what.contains(What::PART)
                && total(&out.iov) > 0);
        is_send && self.injected.kept(name).is_none()
    }

    /// The parts of a collective operation that are being sent under that context.
    pub(crate) fn parts_of(&mut self, ctx: Ctx) -> Vec<u64> {
        let is_it = |r: &Request| matches!(r, Request::Out(out) if out.done_as.ctx == ctx && out.done_as.what.contains(What::PART));
        self.pool.names(is_it)
    }

    /// Whether messages can be completed, or could since the last call of progress.
    pub(crate) fn has_sent<L: RmaLink>(&mut self, link: &mut L) -> bool {
        self.queues.unsent().iter().any(|unsent| !link.keeps(unsent.peer))
    }

    /// Whether a frame names a request that is over: it was given up when the frame was on its way.
    pub(in crate::endpoint) fn is_past<L: RmaLink>(&self, link: &L, peer: PeerId, name: u64) -> bool {
        let past = self.pool.is_past(name);
        if past {
            log::debug!("{}: an answer to what is over, from {}", link.addr(), link.peer_addr(peer));
        }
        past
    }

    /// The request is to be no more: the memory it was about is let go of.
    pub(in crate::endpoint) fn cancel_operation<L: RmaLink>(&mut self, link: &mut L, name: u64) {
        self.staging.cancel(name);
        if !self.is_in_flight(name) {
            return;
        }
        for copy in self.queues.take_flights(Some(name)) {
            self.staging.bounces.taken(copy);
            link.cancel(copy);
        }
    }

    /// Ends all operations in flight: this endpoint is to be no more.
    pub(crate) fn cancel_operations<L: RmaLink>(&mut self, link: &mut L) {
        self.staging.cancel_all();
        for copy in self.queues.take_flights(None) {
            link.cancel(copy);
        }
    }

    /// Begins to copy, on behalf of the request `name`, what the peer announced under the name of its own.
    pub(in crate::endpoint) fn start_operation<L: RmaLink>(
        &mut self,
        link: &mut L,
        name: u64,
        way: Way,
        peer: PeerId,
        access: &Direct<'_>,
    ) -> Result<(), NoDirect> {
        let copy = link.start(way, peer, access)?;
        self.queues.add_flight(copy, name);
        Ok(())
    }

    pub(in crate::endpoint) fn take_back<L: RmaLink>(
        &mut self,
        link: &mut L,
        peer: PeerId,
        name: u64,
    ) -> Result<(), InUse> {
        // It may have been tried before, in vain.
        self.queues.add_revoked(name, peer);
        link.revoke(Revoke::Request(peer, name))
    }

    /// Names whose requests are over may be used again.
    #[cold]
    pub(in crate::endpoint) fn renew<L: RmaLink>(&mut self, link: &mut L) {
        let requests = &mut self.pool;
        self.queues.retain_revoked(|name, peer| {
            let stays = requests.get_mut(name).is_some();
            if !stays {
                link.allow(Allow::Request(peer, name));
            }
            stays
        });
    }

    /// Puts the payload of a request of ours where its taker says, if that can be.
    pub(in crate::endpoint) fn start_put<L: RmaLink>(
        &mut self,
        link: &mut L,
        name: u64,
        segs: &[Seg],
    ) -> bool {
        let Some(Request::Out(out)) = self.pool.get_mut(name) else { return false };
        let Some((theirs, want)) = out.asked else { return false };
        let (peer, iov) = (out.peer, out.iov.clone());
        let access = Direct::new(Grant::Request(theirs), segs, &iov, want);
        self.start_operation(link, name, Way::Put, peer, &access).is_ok()
    }

    /// The sender of this request is not waited for any more, if it was invited.
    pub(in crate::endpoint) fn end_invitation<L: RmaLink>(&mut self, link: &mut L, name: u64) {
        let Some(Request::In(In { peer, invited: Some(i), .. })) = self.pool.get_mut(name) else {
            return;
        };
        let (peer, share) = (*peer, i.share);
        link.pieces_close(peer, share);
        self.queues.drop_invited(name);
    }

    /// The peer needs no handles of this memory any more, unless a request has some of it.
    pub(in crate::endpoint) fn retire_memory<L: RmaLink>(
        &mut self,
        link: &mut L,
        peer: PeerId,
        iov: &[Span],
    ) {
        let has = |one: &dyn Fn(&[Span]) -> bool| {
            self.pool.any(|r| match r {
                Request::Out(out) => out.peer == peer && is_fetched(out) && one(&out.iov),
                Request::Serve(s) => s.peer == peer && s.lent && one(&s.iov),
                _ => false,
            })
        };
        if !has(&|_| true) {
            // Also what was announced for one that was then refused.
            return link.note_handle(peer, HandleNote::Retired(&[]));
        }
        let is_free = |span: &&Span| !has(&|iov| iov.iter().any(|other| span.overlaps(*other)));
        let free: Vec<Span> = iov.iter().filter(is_free).copied().collect();
        if !free.is_empty() {
            link.note_handle(peer, HandleNote::Retired(&free));
        }
    }

    /// A request is over: the peer needs no handles of its memory any more, unless another request has some
    /// of it, too.
    pub(in crate::endpoint) fn retire<L: RmaLink>(&mut self, link: &mut L, over: &Out) {
        if !over.iov.is_empty() && is_fetched(over) {
            self.retire_memory(link, over.peer, &over.iov);
        }
    }

    /// A read of a peer's is over: the peer needs no handles of its memory any more.
    pub(in crate::endpoint) fn end_serve<L: RmaLink>(&mut self, link: &mut L, name: u64) -> Option<Serve> {
        let Some(Request::Serve(serve)) = self.pool.remove(name) else { return None };
        if serve.lent {
            self.retire_memory(link, serve.peer, &serve.iov);
        }
        Some(serve)
    }

    /// Keeps nothing of a peer that nothing here is about any more: its number may be another's next.
    #[cold]
    pub(in crate::endpoint) fn release<L: RmaLink>(&mut self, net: &mut Net<L>, peer: PeerId) {
        let state = net.peer(peer);
        let needed = state.routes > 0 || state.waiting > 0 || state.answers.outstanding() > 0;
        if needed || state.flow.has_backlog() || net.link.channel(peer) != Channel::None {
            return;
        }
        if !self.pool.any(|r| r.peer() == peer) {
            net.peers.drop_backlog_of(peer);
            self.queues.retain_revoked(|_, p| p != peer);
            net.link.dismiss(peer, Parting::Forgotten);
            let path = net.link.path(peer);
            *net.peer(peer) = Peer::new(&path, net.metered.is_on());
        }
    }

    /// Requests answers for writes behind which none was requested; `last`: for all, since there may be no
    /// other call of progress soon. To how many peers there were some.
    #[cold]
    #[inline(never)]
    pub(crate) fn flush_tails<L: RmaLink>(&mut self, net: &mut Net<L>, last: bool) -> usize {
        if !net.unhurried.has_tails() {
            return 0;
        }
        let mut n = 0;
        let mut peers = net.peers.take_tails();
        peers.retain(|&peer| {
            let state = &mut net.peers[peer];
            let (seq, Some(cumulative)) = (state.answers.last_seq() + 1, &mut state.cumulative) else {
                return false;
            };
            let tail = cumulative.poll(last);
            if tail == Tail::Flush {
                cumulative.flushed();
                let name = self.pool.insert(Request::Flush(peer, seq));
                net.send_or_queue(peer, Head::new(WireOp::Flush, Flags::ACK, 0, name, 0).as_bytes());
            }
            n += usize::from(tail != Tail::None);
            tail == Tail::Waits
        });
        net.unhurried.set_tails(!peers.is_empty());
        net.peers.set_tails(peers);
        n
    }

    /// Whether progress is more than to take in frames.
    #[inline(always)]
    pub(in crate::endpoint) fn has_chores<L: RmaLink>(&self, net: &Net<L>) -> bool {
        // One question, since it is asked all the time.
        (self.queues.any() | net.peers.backlogs() | net.unhurried.any()) != 0
    }
}

//! An endpoint: its peers, its requests, and what it does with each.

mod bound;
mod gone;
mod handles;
mod incoming;
mod inject;
mod malformed;
mod onesided;
mod peer;
mod plain;
mod post;
mod revoke;
mod share;
mod transfer;

use std::collections::VecDeque;

use hmem::Span;
use wire::{Addr, Flags, Head, Op as WireOp, Status};
use zerocopy::IntoBytes;

use crate::core::{Bound, Core, Mrs, RecvOp, Spans, Tally, failure};
use crate::domain::{Cntrs, MrId};
use crate::hash::Map;
use crate::pool::Pool;
use crate::types::*;
use link_api::{Event, Gone, OpId, PeerId, Refused, RmaLink};
use peer::{Fetches, Peer};

/// Frames taken in one call of progress, so that the application gets to see what arrived.
const BUDGET: usize = 32;

/// A request that a peer has yet to answer or to feed.
#[derive(Debug)]
enum Request {
    Out(Out),
    In(In),
    Serve(Serve),
    Lent(share::Lent),
    /// A send that was cancelled, and that its receiver has not answered yet.
    Withdrawn(PeerId),
}

impl Request {
    fn peer(&self) -> PeerId {
        match self {
            Request::Out(o) => o.peer,
            Request::In(i) => i.peer,
            Request::Serve(s) => s.peer,
            Request::Lent(l) => l.peer,
            Request::Withdrawn(peer) => *peer,
        }
    }
}

/// Started here.
#[derive(Debug)]
struct Out {
    peer: PeerId,
    /// The how manyth it is, see [`Peer::posted`].
    seq: u64,
    /// Source of a send or write, destination of a read or of what an atomic fetches.
    iov: Spans,
    len: usize,
    /// Bytes sent or received in frames.
    done: usize,
    large: bool,
    followed: inject::Followed,
    /// The peer asked for frames: its request, and how many bytes it wants.
    asked: Option<(u64, usize)>,
    /// We and the peer copy it.
    shared: Option<Box<share::Part>>,
    done_as: Done,
}

impl Out {
    fn new(peer: PeerId, iov: Spans, len: usize, done_as: Done) -> Out {
        let followed = inject::Followed::No;
        Out { peer, seq: 0, iov, len, done: 0, large: false, followed, asked: None, shared: None, done_as }
    }
}

/// How an operation started here completes.
#[derive(Clone, Copy, Debug)]
struct Done {
    ctx: Ctx,
    what: What,
    report: bool,
    tag: u64,
    data: u64,
    tally: Tally,
}

/// Bytes that a peer sends in frames because we asked.
#[derive(Debug)]
struct In {
    peer: PeerId,
    iov: Spans,
    /// Bytes of the message; only `want` of them are asked for.
    len: usize,
    want: usize,
    got: usize,
    /// The peer's request, to be answered when all is here.
    req: u64,
    /// The peer was told where to put the bytes, and may say that it has.
    placed: bool,
    /// It was so only if it comes to it before we do.
    invited: Option<Box<handles::Invited>>,
    /// Why they are not kept: a device could not take them, or the memory was taken back.
    failed: Option<Status>,
    then: Then,
    /// We and the peer copy it, instead of frames.
    shared: Option<Box<share::Part>>,
}

impl In {
    fn new(peer: PeerId, iov: Spans, len: usize, want: usize, req: u64, then: Then) -> In {
        let (got, placed, invited, failed, shared) = (0, false, None, None, None);
        In { peer, iov, len, want, got, req, placed, invited, failed, then, shared }
    }
}

/// What a rendezvous was for.
#[derive(Debug)]
enum Then {
    Recv(Landing),
    Write { data: Option<u64>, cntrs: Bound, mrs: Mrs },
}

/// Memory that a peer reads, in frames.
#[derive(Debug)]
struct Serve {
    peer: PeerId,
    iov: Spans,
    len: usize,
    done: usize,
    req: u64,
    /// They count the read.
    cntrs: Bound,
    mrs: Mrs,
}

/// A message on its way into a posted buffer.
#[derive(Debug)]
pub(crate) struct Landing {
    iov: Spans,
    room: usize,
    entry: Completion,
    report: bool,
    multi: Option<u64>,
    tally: Tally,
}

#[derive(Debug)]
pub(crate) struct Endpoint<L> {
    pub(crate) id: EpId,
    pub(crate) link: L,
    pub(crate) av: AvId,
    pub(crate) rx: RxId,
    pub(crate) tx_cq: Option<CqId>,
    pub(crate) rx_cq: Option<CqId>,
    pub(crate) cntrs: Cntrs,
    peers: Vec<Peer>,
    /// From an index in the address vector to the link's peer.
    route: Vec<Option<PeerId>>,
    requests: Pool<Request>,
    /// Requests with frames to send.
    streams: VecDeque<u64>,
    /// Requests of which we have pieces to copy.
    shares: VecDeque<u64>,
    /// Pieces of shared transfers taken in this progress call.
    taken: usize,
    /// Something large was begun, and nobody waited for anything since.
    posting: bool,
    /// Copies in flight, and the request each is for.
    copies: Vec<(OpId, u64)>,
    /// Requests whose sender is invited, and for how many polls more it is left to that.
    invited: Vec<(u64, u16)>,
    /// Peers with a backlog.
    lagging: Vec<PeerId>,
    /// A peer whose path is to be logged.
    pub(crate) unlogged_path: Option<PeerId>,
    /// Operations that may be under way to one peer.
    depth: u32,
    /// Bytes of messages sent since the last progress, see `bound`.
    unheard: usize,
    /// Injected messages that were only offered: their bytes, by request.
    kept: Map<u64, Vec<u8>>,
    /// How many peers were told to hold back.
    stopped: u32,
    /// Requests from which on it is looked whose they are.
    many: usize,
    /// Requests whose memory was taken back, and from which peer.
    revoked: Vec<(u64, PeerId)>,
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
    ) -> Self {
        Endpoint {
            id: EpId(u32::MAX),
            link,
            av,
            rx,
            tx_cq,
            rx_cq,
            cntrs,
            peers: Vec::new(),
            route: Vec::new(),
            requests: Pool::with_capacity(64),
            streams: VecDeque::new(),
            shares: VecDeque::new(),
            taken: 0,
            posting: false,
            copies: Vec::new(),
            invited: Vec::new(),
            lagging: Vec::new(),
            unlogged_path: None,
            depth: bound::DEPTH,
            unheard: 0,
            kept: Map::default(),
            stopped: 0,
            many: bound::MANY,
            revoked: Vec::new(),
        }
    }

    /// The address vector got an entry. `first` is the first index of the same address.
    pub(crate) fn learn(&mut self, core: &mut Core, at: FiAddr, addr: &Addr, first: FiAddr) {
        let peer = self.link.peer(addr);
        let slot = at as usize;
        if self.route.len() <= slot {
            self.route.resize(slot + 1, None);
        }
        self.route[slot] = Some(peer);
        self.peer(peer).routes += 1;
        self.relabel(core, peer, first);
    }

    /// The address vector lost an entry; `next` is what the address is called now.
    pub(crate) fn forget(&mut self, core: &mut Core, at: FiAddr, next: FiAddr) {
        if let Some(peer) = self.route.get_mut(at as usize).and_then(Option::take) {
            self.relabel(core, peer, next);
            let state = self.peer(peer);
            state.routes = state.routes.saturating_sub(1);
            self.release(peer);
        }
    }

    fn relabel(&mut self, core: &mut Core, peer: PeerId, src: FiAddr) {
        let old = std::mem::replace(&mut self.peer(peer).src, src);
        if old == src {
            return;
        }
        let ep = self.id;
        let Some(rx) = core.rxs.get_mut(self.rx.at()) else { return };
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

    #[inline]
    fn peer(&mut self, peer: PeerId) -> &mut Peer {
        let at = peer.0 as usize;
        if at >= self.peers.len() {
            self.meet(at);
        }
        &mut self.peers[at]
    }

    #[cold]
    fn meet(&mut self, at: usize) {
        while self.peers.len() <= at {
            let path = self.link.path(PeerId(self.peers.len() as u32));
            self.peers.push(Peer::new(&path));
        }
    }

    /// Writes a line on the path to a peer, once there is one.
    pub(crate) fn tell(&mut self, peer: PeerId) {
        if !self.peer(peer).mark_path_logged() || !log::log_enabled!(log::Level::Info) {
            return;
        }
        let limits = self.peer(peer).limits;
        log::info!(
            "{} -> {}: {}; up to {} bytes inside the frame, more fetched by the other side, or sent in frames of {} where it can't",
            self.link.addr(),
            self.link.peer_addr(peer),
            self.link.describe(peer),
            limits.eager,
            limits.max_frame
        );
    }

    /// Takes in what has arrived, and sends on what waits. Returns how much was done. `enough`:
    /// nothing more need be taken in once that queue has so many entries.
    #[inline]
    pub(crate) fn progress(&mut self, core: &mut Core, enough: Option<(CqId, usize)>) -> usize {
        let mut n = 0;
        self.unheard = 0;
        self.posting = false;
        self.taken = 0;
        let standing = |core: &Core| enough.map_or(0, |(cq, _)| core.standing(cq));
        let most = enough.map_or(usize::MAX, |(_, most)| most);
        while n < BUDGET {
            let mut frame = match self.link.poll() {
                None => break,
                Some(Event::Frame(frame)) => frame,
                Some(Event::Closed(peer, why)) => {
                    self.closed(core, peer, why);
                    n += 1;
                    continue;
                }
                Some(Event::Done(copy, ok)) => {
                    self.copied(core, copy, ok);
                    n += 1;
                    continue;
                }
            };
            loop {
                let from = frame.from;
                self.incoming(core, &frame);
                self.link.release(frame);
                n += 1;
                if n >= BUDGET || standing(core) >= most {
                    break;
                }
                match self.link.poll_frame_from(from) {
                    Some(next) => frame = next,
                    None => break,
                }
            }
            // Who waits for that queue is better served now than after another round.
            if standing(core) > 0 {
                break;
            }
        }
        n + self.attend(core)
    }

    /// Whether progress is more than to take in frames.
    #[inline(always)]
    fn has_chores(&self) -> bool {
        // One question, since it is asked all the time.
        let waiting = self.lagging.len() | self.streams.len() | self.shares.len() | self.revoked.len();
        (waiting | self.invited.len() | self.stopped as usize) != 0
    }

    /// Sends on what waits, and the like.
    #[inline(always)]
    fn attend(&mut self, core: &mut Core) -> usize {
        let mut n = 0;
        if !self.lagging.is_empty() {
            n += self.catch_up(core);
        }
        if !self.streams.is_empty() {
            n += self.stream(core);
        }
        if !self.shares.is_empty() {
            n += self.share_on(core);
        }
        if !self.invited.is_empty() {
            n += self.wait_for_the_invited();
        }
        if self.stopped > 0 && core.waiting <= core.waiting_most / 2 {
            self.let_go();
        }
        if self.requests.len() > self.many {
            self.count_requests();
        }
        if !self.revoked.is_empty() {
            self.renew();
        }
        n
    }

    /// Requests that are not done.
    pub(crate) fn under_way(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is more to do than to wait for peers: frames that found no room, pieces to copy.
    pub(crate) fn is_waiting_for_room(&self) -> bool {
        !self.lagging.is_empty() || !self.streams.is_empty() || !self.shares.is_empty()
    }

    /// Sends a frame that must not get lost: now, or as soon as there is room.
    fn tell_peer(&mut self, peer: PeerId, frame: &[u8]) {
        self.tell_peer_of(peer, frame, &[], 0);
    }

    /// Lets peers see a registration, if it is plain memory under a key of its own.
    pub(crate) fn expose(&mut self, core: &Core, mr: MrId) {
        if let Some(mut memory) = core.exposed(mr) {
            memory.target_must_observe |=
                self.cntrs.remote_read.is_some() || self.cntrs.remote_write.is_some();
            self.link.publish(&memory);
        }
    }

    /// Likewise, with the first `len` bytes of `body` behind it, as they are now; `false` if a device
    /// could not read them.
    fn tell_peer_of(&mut self, peer: PeerId, head: &[u8], body: &[Span], len: usize) -> bool {
        if !self.peer(peer).has_backlog() {
            match self.link.send(peer, head, body, 0, len) {
                // To one who is gone nothing need be said: the link tells of it, or told already.
                Ok(()) | Err(Refused::Gone(_)) => return true,
                Err(Refused::Busy) => self.lagging.push(peer),
                Err(Refused::Fault) => return false,
            }
        }
        let mut frame = head.to_vec();
        frame.resize(head.len() + len, 0);
        let read = hmem::read(body, 0, &mut frame[head.len()..]);
        if read == len {
            let size = bound::cost(&frame);
            self.peer(peer).push_backlog(frame);
            self.owe(peer, size);
        }
        read == len
    }

    fn fin(&mut self, peer: PeerId, req: u64, status: Status, bytes: usize) {
        let head = Head::new(WireOp::Fin, Flags::empty(), status as u16, req, bytes as u64);
        self.tell_peer(peer, head.as_bytes());
    }

    fn catch_up(&mut self, core: &mut Core) -> usize {
        let mut n = 0;
        let mut lagging = std::mem::take(&mut self.lagging);
        lagging.retain(|&peer| {
            let state = &mut self.peers[peer.0 as usize];
            while let Some(frame) = state.next_in_backlog() {
                if self.link.send(peer, frame, &[], 0, 0) == Err(Refused::Busy) {
                    return true;
                }
                let sent = state.pop_backlog();
                state.owed = state.owed.saturating_sub(sent.as_deref().map_or(0, bound::cost));
                n += 1;
            }
            state.sought
        });
        self.lagging.append(&mut lagging);
        n + self.seek(core)
    }

    /// Completes an operation that was started here.
    #[inline]
    fn finish(&self, core: &mut Core, done: &Done, len: usize, err: Option<Error>) {
        let cntr = if done.what.contains(What::SEND) {
            self.cntrs.send
        } else if done.what.contains(What::READ) {
            self.cntrs.read
        } else {
            self.cntrs.write
        };
        core.tally(done.tally, cntr, err.is_some());
        if done.report || err.is_some() {
            let entry = Completion {
                ctx: done.ctx,
                what: done.what,
                len,
                buf: 0,
                data: done.data,
                tag: done.tag,
                src: ADDR_UNSPEC,
                err,
                olen: 0,
            };
            core.complete(self.tx_cq, entry);
        }
    }

    /// Completes a request of ours, after the pool has let go of it.
    fn finish_out(&mut self, core: &mut Core, out: &Out, err: Option<Error>) {
        let peer = self.peer(out.peer);
        peer.outstanding = peer.outstanding.saturating_sub(1);
        if out.seq > peer.loose {
            peer.loose = 0;
        }
        if out.large {
            peer.large = peer.large.saturating_sub(1);
        }
        self.finish(core, &out.done_as, out.len, err);
    }

    /// Why bytes of a peer could not be moved: its death may show in these first.
    fn failure(&self, peer: PeerId, status: Status) -> Option<Error> {
        match failure(status) {
            Some(Error::Io) if self.link.is_gone(peer) => Some(Error::Reset),
            other => other,
        }
    }

    /// Completes a message that `n` of `len` bytes came in of.
    fn land(&mut self, core: &mut Core, mut landing: Landing, len: usize, err: Option<Error>) {
        let entry = &mut landing.entry;
        entry.len = len.min(landing.room);
        entry.err = err;
        if err.is_none() && len > landing.room {
            entry.err = Some(Error::Truncated);
            entry.olen = len - landing.room;
        }
        if let (Some(id), Some(rx)) = (landing.multi, core.rxs.get_mut(self.rx.at())) {
            if let Some(m) = rx.multi.get_mut(id) {
                m.coming -= 1;
                if m.spent && m.coming == 0 {
                    entry.what |= What::MULTI_RECV;
                    rx.multi.remove(id);
                }
            }
        }
        core.tally(landing.tally, self.cntrs.recv, entry.err.is_some());
        if landing.report || entry.err.is_some() || entry.what.contains(What::MULTI_RECV) {
            core.complete(self.rx_cq, landing.entry);
        }
    }

    /// Where a message lands in a receive buffer. For a multi-receive buffer, `true` beside it says
    /// that no more messages are to go there.
    fn landing(&self, core: &mut Core, recv: &RecvOp, meta: &Meta) -> (Landing, bool) {
        let what = if meta.tagged { What::TAGGED } else { What::MSG } | What::RECV;
        let mut landing = Landing {
            iov: Spans::NONE,
            room: recv.len,
            entry: Completion {
                ctx: recv.ctx,
                what: if meta.data.is_some() { what | What::REMOTE_CQ_DATA } else { what },
                len: 0,
                buf: 0,
                data: meta.data.unwrap_or(0),
                tag: meta.tag,
                src: meta.src,
                err: None,
                olen: 0,
            },
            report: recv.flags.contains(OpFlags::COMPLETION),
            multi: recv.multi,
            tally: recv.tally,
        };
        let rx = core.rxs.get_mut(self.rx.at());
        let multi = recv.multi.and_then(|id| {
            let rx = rx?;
            Some((rx.min_multi_recv, rx.multi.get_mut(id)?))
        });
        let Some((least, multi)) = multi else {
            landing.entry.buf = recv.iov.first().map_or(0, |s: &Span| s.addr());
            landing.iov = recv.iov.clone();
            return (landing, true);
        };
        let room = recv.len - multi.used;
        landing.room = room;
        landing.iov = recv.iov.part(multi.used, meta.len.min(room));
        landing.entry.buf = landing.iov.first().map_or(0, |s| s.addr());
        multi.used += meta.len.min(room);
        multi.coming += 1;
        multi.spent = recv.len - multi.used < least.max(1);
        (landing, multi.spent)
    }

    /// A peer is gone, or will be deaf and dumb from now on: whatever depended on it fails.
    #[cold]
    fn closed(&mut self, core: &mut Core, peer: PeerId, why: Gone) {
        let err = Error::from(why);
        let path = self.link.path(peer);
        let state = self.peer(peer);
        state.reset_channel(&path);
        let stopped = std::mem::take(&mut state.stopped);
        state.fetches = Fetches::Unknown;
        state.puts_not = false;
        state.promptness = inject::Promptness::default();
        state.shares = share::Shares::Unknown;
        state.given.clear();
        state.loose = 0;
        state.unanswered = 0;
        state.gone = Some(why);
        state.sought = false;
        state.expected = false;
        self.stopped -= u32::from(stopped);
        log::info!("{} -> {}: {err}", self.link.addr(), self.link.peer_addr(peer));
        self.lagging.retain(|p| *p != peer);
        let mine = self.requests.names(|r| r.peer() == peer);
        self.streams.retain(|name| !mine.contains(name));
        self.shares.retain(|name| !mine.contains(name));
        self.invited.retain(|(name, _)| !mine.contains(name));
        for name in mine {
            self.stop_copy(name);
            self.kept.remove(&name);
            match self.requests.remove(name) {
                Some(Request::Out(out)) => self.finish_out(core, &out, Some(err)),
                Some(Request::In(In { then: Then::Recv(landing), .. })) => {
                    self.land(core, landing, 0, Some(err))
                }
                _ => {}
            }
        }
        let ep = self.id;
        let Some(rx) = core.rxs.get_mut(self.rx.at()) else { return };
        rx.claimed.retain(|(_, m)| !(m.ep == ep && m.peer == peer && m.is_offered()));
        // Whoever comes after it under the same name has not asked for these answers.
        for (_, m) in rx.claimed.iter_mut().filter(|(_, m)| m.ep == ep && m.peer == peer) {
            m.ack = None;
        }
        for tagged in [true, false] {
            let m = rx.matcher(tagged);
            m.drop_waiting(|m| m.ep == ep && m.peer == peer && m.is_offered());
            m.edit_waiting(|m| m.ep == ep && m.peer == peer, |m| m.ack = None);
        }
        let left = rx.weight_of(ep, peer);
        self.peer(peer).waiting = left;
        core.weigh();
        self.fail_directed(core, peer, why);
        self.release(peer);
    }

    /// Keeps nothing of a peer that nothing here is about any more: its number may be another's next.
    #[cold]
    fn release(&mut self, peer: PeerId) {
        let state = self.peer(peer);
        let needed = state.routes > 0 || state.waiting > 0 || state.outstanding > 0;
        if needed || state.has_backlog() || self.link.is_connected(peer) {
            return;
        }
        if !self.requests.any(|r| r.peer() == peer) {
            self.lagging.retain(|p| *p != peer);
            self.revoked.retain(|(_, p)| *p != peer);
            self.link.forget(peer);
            let path = self.link.path(peer);
            *self.peer(peer) = Peer::new(&path);
        }
    }

    /// How many peers there is room for that something is kept of.
    pub(crate) fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Gives a posted receive back unfilled.
    pub(crate) fn fail_recv(&mut self, core: &mut Core, recv: RecvOp, err: Error) {
        let mut what = What::RECV | if recv.pattern.tag.is_some() { What::TAGGED } else { What::MSG };
        if let (Some(id), Some(rx)) = (recv.multi, core.rxs.get_mut(self.rx.at())) {
            if let Some(m) = rx.multi.get_mut(id) {
                m.spent = true;
                if m.coming == 0 {
                    what |= What::MULTI_RECV;
                    rx.multi.remove(id);
                }
            }
        }
        core.tally(recv.tally, self.cntrs.recv, true);
        let entry = Completion {
            ctx: recv.ctx,
            what,
            len: 0,
            buf: recv.iov.first().map_or(0, |s| s.addr()),
            data: 0,
            tag: recv.pattern.tag.map_or(0, |t| t.0),
            src: recv.pattern.src,
            err: Some(err),
            olen: 0,
        };
        core.complete(self.rx_cq, entry);
    }
}

/// What is known of a message when it is matched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meta {
    pub(crate) peer: PeerId,
    pub(crate) src: FiAddr,
    pub(crate) tagged: bool,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) len: usize,
}

impl From<Gone> for Error {
    fn from(why: Gone) -> Error {
        match why {
            Gone::Refused => Error::Refused,
            Gone::Reset => Error::Reset,
            Gone::Unreachable => Error::Unreachable,
            Gone::Denied => Error::Denied,
            Gone::Exhausted => Error::Exhausted,
        }
    }
}

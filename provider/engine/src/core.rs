//! What the endpoints of a domain share: queues, counters, receive contexts, registrations.

use arrayvec::ArrayVec;
use hmem::Span;
use wire::{MAX_SEGS, RmaSeg, Seg, Status};

use crate::domain::{Config, MrId, Reg};
use crate::entries::Entries;
use crate::hash::Map;
use crate::matching::{Matcher, Posted, Waiting};
use crate::types::*;
use link_api::{PeerId, Region};

/// Spans of one operation, as a door hands them over for later.
pub type Iov = ArrayVec<Span, MAX_SEGS>;
/// Remote segments of one operation.
pub type RmaIov = ArrayVec<RmaSeg, MAX_SEGS>;

/// Spans of one operation under way: nearly always one, and small to move about.
#[derive(Clone, Debug)]
pub(crate) enum Spans {
    One(Span),
    Many(Box<[Span]>),
}

impl Spans {
    pub(crate) const NONE: Spans = Spans::One(Span::EMPTY);

    /// The part `off..off+len`, as far as there is one.
    pub(crate) fn part(&self, mut off: usize, len: usize) -> Spans {
        if let Spans::One(s) = self {
            let off = off.min(s.len());
            return Spans::One(s.part(off, len.min(s.len() - off)).unwrap_or(Span::EMPTY));
        }
        let mut left = len;
        let mut parts = Vec::new();
        for s in self.iter() {
            if off >= s.len() {
                off -= s.len();
                continue;
            }
            let n = left.min(s.len() - off);
            parts.extend(s.part(off, n));
            left -= n;
            off = 0;
            if left == 0 {
                break;
            }
        }
        Spans::from(&parts[..])
    }
}

impl From<&[Span]> for Spans {
    fn from(iov: &[Span]) -> Self {
        match iov {
            [] => Spans::NONE,
            [one] => Spans::One(*one),
            many => Spans::Many(many.into()),
        }
    }
}

impl std::ops::Deref for Spans {
    type Target = [Span];
    fn deref(&self) -> &[Span] {
        match self {
            Spans::One(s) => std::slice::from_ref(s),
            Spans::Many(m) => m,
        }
    }
}

/// A slab: ids are used again, by the door's leave only.
#[derive(Debug)]
pub(crate) struct Slab<T>(Vec<Option<T>>);

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab(Vec::new())
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, v: T) -> u32 {
        let at = self.0.iter().position(Option::is_none).unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[at] = Some(v);
        at as u32
    }
    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        self.0.get(at)?.as_ref()
    }
    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.0.get_mut(at)?.as_mut()
    }
    pub(crate) fn remove(&mut self, at: usize) -> Option<T> {
        self.0.get_mut(at)?.take()
    }
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        (0..).zip(&mut self.0).filter_map(|(i, v)| Some((i, v.as_mut()?)))
    }
}

/// A completion queue. Posts are refused while `size` entries stand unread; what completes anyway
/// is kept, however many that are.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) entries: Entries,
    pub(crate) size: usize,
    pub(crate) users: usize,
}

impl Cq {
    pub(crate) fn new(size: usize) -> Self {
        Cq { entries: Entries::with_capacity(size.clamp(1, 1024)), size: size.max(1), users: 0 }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Cntr {
    pub(crate) value: u64,
    pub(crate) errors: u64,
    pub(crate) users: usize,
}

/// Whom to tell of a completion.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tally {
    /// The endpoint's own counter.
    pub(crate) endpoint: bool,
    /// The completion counter of deferred work.
    pub(crate) also: Option<CntrId>,
}

impl Tally {
    /// As for an operation that the application posted itself.
    pub(crate) const PLAIN: Tally = Tally { endpoint: true, also: None };
}

/// A posted receive.
#[derive(Clone, Debug)]
pub(crate) struct RecvOp {
    pub(crate) pattern: Pattern,
    pub(crate) iov: Spans,
    pub(crate) len: usize,
    pub(crate) ctx: Ctx,
    pub(crate) flags: OpFlags,
    /// Of a multi-receive buffer: its state in [`RxContext::multi`].
    pub(crate) multi: Option<u64>,
    pub(crate) tally: Tally,
}

impl Posted for RecvOp {
    fn pattern(&self) -> &Pattern {
        &self.pattern
    }
    fn ctx(&self) -> Ctx {
        self.ctx
    }
}

/// A multi-receive buffer: how much is used, how many messages are still coming in.
#[derive(Debug, Default)]
pub(crate) struct Multi {
    pub(crate) used: usize,
    pub(crate) coming: usize,
    /// No more messages will be put in; the last one gives the buffer back.
    pub(crate) spent: bool,
}

/// How a waiting message's bytes are to be had.
#[derive(Debug)]
pub(crate) enum Body {
    /// They are here.
    Held(Vec<u8>),
    /// The sender keeps them.
    Offered { req: u64, segs: ArrayVec<Seg, MAX_SEGS>, direct: Reach },
    /// The sender has cancelled it, after the application had claimed it here.
    Withdrawn,
}

/// How a peer says that segments of its memory may be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// By frames alone.
    Frames,
    /// By the CPU.
    Cpu,
    /// By an operation of the link's, with the handles that the peer has sent.
    Handles,
}

impl Reach {
    pub(crate) fn of(flags: wire::Flags) -> Reach {
        if flags.contains(wire::Flags::HANDLES) {
            Reach::Handles
        } else if flags.contains(wire::Flags::DIRECT) {
            Reach::Cpu
        } else {
            Reach::Frames
        }
    }
}

/// A message nobody asked for yet.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) ep: EpId,
    pub(crate) peer: PeerId,
    pub(crate) src: FiAddr,
    pub(crate) tagged: bool,
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
    pub(crate) len: usize,
    /// The sender's request, if it waits to hear of the delivery.
    pub(crate) ack: Option<u64>,
    pub(crate) body: Body,
}

impl Message {
    /// Bytes it takes up.
    pub(crate) fn weight(&self) -> usize {
        /// With its place in a queue and in an index.
        const ALONE: usize = 256;
        ALONE + if let Body::Held(bytes) = &self.body { bytes.len() } else { 0 }
    }

    /// Whether a peer offered it under that name.
    fn is_offer(&self, ep: EpId, peer: PeerId, name: u64) -> bool {
        self.ep == ep && self.peer == peer && matches!(self.body, Body::Offered { req, .. } if req == name)
    }

    pub(crate) fn is_offered(&self) -> bool {
        matches!(self.body, Body::Offered { .. })
    }
}

impl Waiting for Message {
    fn src(&self) -> FiAddr {
        self.src
    }
    fn tag(&self) -> u64 {
        self.tag
    }
}

/// What receives are posted to.
#[derive(Debug)]
pub(crate) struct RxContext {
    pub(crate) tagged: Matcher<RecvOp, Message>,
    pub(crate) plain: Matcher<RecvOp, Message>,
    pub(crate) claimed: Vec<(Ctx, Message)>,
    pub(crate) multi: crate::pool::Pool<Multi>,
    pub(crate) min_multi_recv: usize,
    pub(crate) eps: Vec<EpId>,
    pub(crate) shared: bool,
}

impl RxContext {
    pub(crate) fn new(shared: bool) -> Self {
        RxContext {
            tagged: Matcher::new(),
            plain: Matcher::new(),
            claimed: Vec::new(),
            multi: crate::pool::Pool::with_capacity(0),
            min_multi_recv: 64,
            eps: Vec::new(),
            shared,
        }
    }

    fn waiting(&self) -> impl Iterator<Item = &Message> {
        let waiting = self.tagged.waiting().chain(self.plain.waiting());
        waiting.chain(self.claimed.iter().map(|(_, m)| m))
    }

    /// Bytes that waiting messages of a peer take up.
    pub(crate) fn weight_of(&self, ep: EpId, peer: PeerId) -> usize {
        self.waiting().filter(|m| m.ep == ep && m.peer == peer).map(Message::weight).sum()
    }

    /// The message that a peer offered under that name, if it waits.
    pub(crate) fn offered(&mut self, ep: EpId, peer: PeerId, name: u64) -> Option<&mut Message> {
        let is_it = |m: &Message| m.is_offer(ep, peer, name);
        let (tagged, plain) = (&mut self.tagged, &mut self.plain);
        let waiting = tagged.latest_waiting(is_it).or_else(|| plain.latest_waiting(is_it));
        waiting.or_else(|| self.claimed.iter_mut().map(|(_, m)| m).find(|m| is_it(m)))
    }

    /// The message that a peer offered under that name is not to be had any more: taken out if it waits, and
    /// `Some(None)` if the application has claimed it. `None`: it neither waits nor was claimed.
    pub(crate) fn withdraw(&mut self, ep: EpId, peer: PeerId, name: u64) -> Option<Option<Message>> {
        let is_it = |m: &Message| m.is_offer(ep, peer, name);
        for matcher in [&mut self.tagged, &mut self.plain] {
            let taken = matcher.take_oldest(is_it);
            if taken.is_some() {
                return Some(taken);
            }
        }
        let (_, claimed) = self.claimed.iter_mut().find(|(_, m)| is_it(m))?;
        claimed.body = Body::Withdrawn;
        Some(None)
    }

    #[inline]
    pub(crate) fn matcher(&mut self, tagged: bool) -> &mut Matcher<RecvOp, Message> {
        if tagged { &mut self.tagged } else { &mut self.plain }
    }
}

#[derive(Debug)]
pub(crate) struct Mr {
    pub(crate) iov: Iov,
    pub(crate) len: usize,
    pub(crate) access: Access,
    pub(crate) key: u64,
    pub(crate) remote_read: Option<CntrId>,
    pub(crate) remote_write: Option<CntrId>,
}

/// Everything of a domain but its endpoints.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) cntrs: Slab<Cntr>,
    pub(crate) rxs: Slab<RxContext>,
    mrs: Map<MrId, Mr>,
    keys: Map<u64, MrId>,
    next_mr: u64,
    /// A counter changed since deferred work was last looked at.
    pub(crate) counted: bool,
    /// Buffers of waiting messages, to be used again.
    spare: Vec<Vec<u8>>,
    /// Bytes that waiting messages take up, and how many may before peers are told to hold back.
    pub(crate) waiting: usize,
    pub(crate) waiting_most: usize,
}

impl Core {
    pub(crate) fn new(config: Config) -> Self {
        Core {
            config,
            cqs: Slab::default(),
            cntrs: Slab::default(),
            rxs: Slab::default(),
            mrs: Map::default(),
            keys: Map::default(),
            next_mr: 1,
            counted: false,
            spare: Vec::new(),
            waiting: 0,
            waiting_most: 256 << 20,
        }
    }

    #[inline]
    pub(crate) fn complete(&mut self, cq: Option<CqId>, entry: Completion) {
        self.complete_with(cq, || entry);
    }

    /// Likewise, with the entry built where it stays.
    #[inline(always)]
    pub(crate) fn complete_with(&mut self, cq: Option<CqId>, entry: impl FnOnce() -> Completion) {
        let Some(id) = cq else { return };
        if let Some(cq) = self.cqs.get_mut(id.at()) {
            cq.entries.push(entry);
        }
    }

    /// How many entries stand in it.
    #[inline]
    pub(crate) fn standing(&self, cq: CqId) -> usize {
        self.cqs.get(cq.at()).map_or(0, |cq| cq.entries.len())
    }

    /// Whether the queue takes no more posts until it is read.
    #[inline]
    pub(crate) fn is_full(&self, cq: Option<CqId>) -> bool {
        cq.and_then(|id| self.cqs.get(id.at())).is_some_and(|cq| cq.entries.len() >= cq.size)
    }

    #[inline]
    pub(crate) fn count(&mut self, cntr: Option<CntrId>, failed: bool) {
        if let Some(c) = cntr.and_then(|id| self.cntrs.get_mut(id.at())) {
            if failed {
                c.errors += 1;
            } else {
                c.value += 1;
            }
            self.counted = true;
        }
    }

    /// Counts a completion that belongs to `cntr` of its endpoint.
    #[inline]
    pub(crate) fn tally(&mut self, tally: Tally, cntr: Option<CntrId>, failed: bool) {
        if tally.endpoint {
            self.count(cntr, failed);
        }
        self.count(tally.also, failed);
    }

    pub(crate) fn buffer(&mut self, len: usize) -> Vec<u8> {
        let mut buf = self.spare.pop().unwrap_or_default();
        buf.resize(len, 0);
        buf
    }

    pub(crate) fn give_back(&mut self, buf: Vec<u8>) {
        if self.spare.len() < 64 && buf.capacity() <= 64 << 10 {
            self.spare.push(buf);
        }
    }

    /// Weighs all waiting messages anew, after some were dropped.
    pub(crate) fn weigh(&mut self) {
        self.waiting = self.rxs.iter_mut().flat_map(|(_, rx)| rx.waiting()).map(Message::weight).sum();
    }

    pub(crate) fn mr_reg(&mut self, reg: &Reg<'_>) -> Result<(MrId, u64), Error> {
        let mut iov: Iov = reg.iov.try_into().map_err(|_| Error::Invalid)?;
        iov.iter_mut().for_each(|s| *s = s.for_peers());
        let len = iov.iter().try_fold(0usize, |n, s| n.checked_add(s.len())).ok_or(Error::Invalid)?;
        let id = MrId(self.next_mr);
        let key = reg.key.unwrap_or(self.next_mr);
        self.next_mr += 1;
        // Without remote access nobody can name it, so its key need not be its own.
        if reg.key.is_none() || !reg.access.is_empty() {
            if self.keys.contains_key(&key) {
                return Err(Error::KeyInUse);
            }
            self.keys.insert(key, id);
        }
        let mr = Mr { iov, len, access: reg.access, key, remote_read: None, remote_write: None };
        self.mrs.insert(id, mr);
        Ok((id, key))
    }

    pub(crate) fn mr_mut(&mut self, id: MrId) -> Option<&mut Mr> {
        self.mrs.get_mut(&id)
    }

    /// A registration as peers may see it, if they may.
    pub(crate) fn exposed(&self, id: MrId) -> Option<Region> {
        let mr = self.mrs.get(&id)?;
        let [span] = mr.iov[..] else { return None };
        let named = self.keys.get(&mr.key) == Some(&id);
        (named && span.kind().is_system() && !mr.access.is_empty()).then_some(Region {
            key: mr.key,
            addr: span.addr(),
            len: span.len() as u64,
            read: mr.access.contains(Access::REMOTE_READ),
            write: mr.access.contains(Access::REMOTE_WRITE),
            virt_addr: self.config.virt_addr,
            target_must_observe: mr.remote_read.is_some() || mr.remote_write.is_some(),
        })
    }

    /// The key of a registration, if it is known by that.
    pub(crate) fn mr_key(&self, id: MrId) -> Option<u64> {
        let key = self.mrs.get(&id)?.key;
        (self.keys.get(&key) == Some(&id)).then_some(key)
    }

    /// The names of all registrations.
    pub(crate) fn mr_ids(&self) -> Vec<MrId> {
        self.mrs.keys().copied().collect()
    }

    /// Ends a registration; returns its key if it was known by that.
    pub(crate) fn mr_close(&mut self, id: MrId) -> Result<Option<u64>, Error> {
        let mr = self.mrs.remove(&id).ok_or(Error::NotFound)?;
        let named = self.keys.get(&mr.key) == Some(&id);
        if named {
            self.keys.remove(&mr.key);
        }
        Ok(named.then_some(mr.key))
    }

    /// The memory a peer names by one segment, where it is one stretch of a registration and may be
    /// written, and who counts that. `None`: [`Core::reach`] knows more.
    #[inline]
    pub(crate) fn reach_plain(&self, seg: &RmaSeg) -> Option<(Span, Option<CntrId>)> {
        let mr = self.mrs.get(self.keys.get(&seg.key.get())?)?;
        let [span] = mr.iov[..] else { return None };
        let base = if self.config.virt_addr { span.addr() } else { 0 };
        let off = usize::try_from(seg.addr.get().checked_sub(base)?).ok()?;
        let part = span.part(off, usize::try_from(seg.len.get()).ok()?)?;
        mr.access.contains(Access::REMOTE_WRITE).then_some((part, mr.remote_write))
    }

    /// The memory a peer names, if the registration allows it, and who counts the access.
    pub(crate) fn reach(&self, segs: &[RmaSeg], want: Access) -> Result<Reached, Status> {
        let mut reached = Reached::default();
        for seg in segs {
            let id = *self.keys.get(&seg.key.get()).ok_or(Status::BadKey)?;
            let mr = self.mrs.get(&id).ok_or(Status::BadKey)?;
            if !reached.mrs.contains(&id) {
                reached.mrs.try_push(id).map_err(|_| Status::Malformed)?;
            }
            if !mr.access.contains(want) {
                return Err(Status::Access);
            }
            let n = usize::try_from(seg.len.get()).map_err(|_| Status::Range)?;
            let base = match mr.iov.first() {
                Some(first) if self.config.virt_addr => first.addr(),
                _ => 0,
            };
            let off = seg.addr.get().checked_sub(base).and_then(|o| usize::try_from(o).ok());
            let off = off.ok_or(Status::Range)?;
            if off.checked_add(n).is_none_or(|end| end > mr.len) {
                return Err(Status::Range);
            }
            let (mut off, mut left) = (off, n);
            for s in &mr.iov {
                if left == 0 {
                    break;
                }
                if off >= s.len() {
                    off -= s.len();
                    continue;
                }
                let part = s.part(off, left.min(s.len() - off)).ok_or(Status::Range)?;
                reached.iov.try_push(part).map_err(|_| Status::Unsupported)?;
                left -= part.len();
                off = 0;
            }
            reached.len = reached.len.checked_add(n).ok_or(Status::Range)?;
            let reads = mr.remote_read.filter(|_| want.contains(Access::REMOTE_READ));
            let writes = mr.remote_write.filter(|_| want.contains(Access::REMOTE_WRITE));
            for cntr in reads.into_iter().chain(writes) {
                if !reached.cntrs.contains(&cntr) {
                    reached.cntrs.try_push(cntr).map_err(|_| Status::Unsupported)?;
                }
            }
        }
        Ok(reached)
    }
}

/// The registrations that an access of a peer's is to.
pub(crate) type Mrs = ArrayVec<MrId, MAX_SEGS>;

/// Counters of the registrations that one operation reaches, each once.
pub(crate) type Bound = ArrayVec<CntrId, { 2 * MAX_SEGS }>;

/// Memory a peer may reach.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    pub(crate) iov: Iov,
    pub(crate) len: usize,
    pub(crate) cntrs: Bound,
    pub(crate) mrs: Mrs,
}

/// What a peer's status means to the one who asked.
pub(crate) fn failure(status: Status) -> Option<Error> {
    match status {
        Status::Ok => None,
        Status::BadKey => Some(Error::BadKey),
        Status::Access => Some(Error::Access),
        Status::Range => Some(Error::Range),
        Status::Unsupported => Some(Error::Unsupported),
        Status::Io | Status::Malformed => Some(Error::Io),
        Status::Discarded => Some(Error::Cancelled),
        Status::Fault => Some(Error::Fault),
    }
}

/// What the one who asked is told where bytes could not be moved from or to this memory.
#[cold]
pub(crate) fn unmoved(iov: &[Span]) -> Status {
    if iov.iter().any(|s| s.may_vanish()) { Status::Fault } else { Status::Io }
}

#[cfg(test)]
mod bounds_tests;

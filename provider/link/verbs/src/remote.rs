//! Memory of peers that is read and written by RDMA, and memory that peers access so.
//!
//! An access is one request of the queue pair that is the peer's, and names its memory by what that peer has
//! said. What is written and short goes inline; what else is short goes by a place that is registered
//! (`bounces`); longer memory has a registration of the program that holds it, or one for the time of the
//! request. A registration ends for peers at once: a device that has answered ibv_dereg_mr(3) accesses the
//! memory no more.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use below::{Dest, Keys, Lease, NotSent, Piece, RAILS, Stop};
use hmem::{Caps, Span};
use link_api::{Once, Way};
use rdma_sys::{Mw, ibv_sge};
use register::Uses;

use crate::joining::Joining;
use crate::pair::{Access, Pair, Posted, Verb};
use crate::rails::{first_of, rail_of};
use crate::registered::{Key, may_be_apart};
use crate::seconds::{Domain, Publication, SECOND};
use crate::state::{MOST_INLINE, Objects, Verbs};
use crate::used::Used;

mod local;

pub(crate) use local::Local;

/// How long the requests of a queue pair may take until all have completed, in error or before one that is
/// not to be repeated.
const FLUSH: Duration = Duration::from_millis(500);
/// How long a request to bind a window may take, once what it binds is to end.
const BINDING: Duration = Duration::from_millis(100);

/// Memory of peers, and of this side for them.
pub(crate) struct Accesses<'a>(pub(crate) &'a mut Verbs);

impl Accesses<'_> {
    /// Whether requests of a queue pair are under way that use memory of the program, or bind it.
    fn is_used(&self, number: u32) -> bool {
        let Objects { windows, pairs, .. } = &*self.0.objects;
        pairs.get(number).is_some_and(|pair| pair.has_accesses()) || windows.is_binding_of(number)
    }

    /// Both queue pairs of the peer that this one is of.
    fn both(&self, number: u32) -> impl Iterator<Item = u32> + Clone + use<> {
        let (first, second) = self.0.objects.seconds.both(number);
        [Some(first), second].into_iter().flatten()
    }

    /// Takes completions in until that is so, for so long at most; whether it is.
    fn wait(&mut self, most: Duration, is_so: impl Fn(&Self) -> bool) -> bool {
        let until = Instant::now() + most;
        while !is_so(self) {
            if self.0.dead.is_some() || Instant::now() >= until {
                return false;
            }
            if self.0.read() == 0 {
                std::thread::yield_now();
            }
        }
        true
    }

    /// Ends a connection, and all that was posted to it: when this returns, no access by it is under way.
    fn stop_connection(&mut self, dest: Dest) {
        let both = self.both(dest.0 as u32);
        let first = self.0.objects.seconds.both(dest.0 as u32).0;
        self.0.fail(dest.0 as u32, None, "its accesses were to end".into());
        let is_used =
            |all: &Self| both.clone().any(|number| all.is_used(number)) || all.0.rails.is_used(first);
        if self.wait(FLUSH, |all| !is_used(all)) {
            return;
        }
        // The device does not report their ends, as where it was removed. A queue pair that is destroyed
        // accesses nothing.
        both.clone().for_each(|number| self.0.stop_pair(number));
        self.0.rails.stop(first);
        self.0.read_rails();
    }

    /// A registration could not be ended: no queue pair may go on, lest peers access its memory.
    #[cold]
    fn lock_out(&mut self, (call, errno): (&'static str, i32)) {
        let why = format!("{call}: errno {errno}: a registration cannot be ended");
        for number in self.0.objects.pairs.numbers() {
            self.0.fail(number, None, why.clone());
        }
        self.0.dead = Some(why);
    }

    /// Registers memory, which no peer accesses by that alone.
    fn lease(&mut self, span: Span, (read, write): (bool, bool), is_shared: bool) -> Option<Lease> {
        let uses = Uses { local_write: write, remote_read: read, remote_write: write, domain: 0 };
        let found = self.0.objects.registered.register(span, uses, is_shared);
        let (number, key) = found.ok()?;
        Some(Lease { number, key: 0, base: key.base(), lender: Box::default() })
    }

    /// Registers memory for the peer of this queue pair alone, in the domain of the second one with it.
    fn lease_apart(&mut self, first: u32, span: Span, (read, write): (bool, bool)) -> Option<Lease> {
        let domain = self.0.objects.seconds.connected(first)?.1.id;
        let (number, rkey, base) = self.lease_in(domain, span, (read, write))?;
        Some(Lease { number, key: SECOND | u64::from(rkey), base, lender: Box::default() })
    }

    /// Registers memory for the peer that this domain is of: the registration, its key, and what the first
    /// byte is called there.
    pub(crate) fn lease_in(
        &mut self,
        domain: u32,
        span: Span,
        (read, write): (bool, bool),
    ) -> Option<(u64, u32, u64)> {
        let uses = Uses { local_write: write, remote_read: read, remote_write: write, domain };
        let (number, key) = self.0.objects.registered.register(span, uses, false).ok()?;
        Some((number, key.rkey(), key.base()))
    }

    pub(crate) fn lend(&mut self, to: Dest, span: Span, way: Way) -> Option<Lease> {
        let (first, may) = (to.0 as u32, (way == Way::Get, way == Way::Put));
        let is_apart = may_be_apart(&span);
        if is_apart {
            if Joining(self.0).is_usable(first) {
                return self.lease_apart(first, span, may);
            }
            let lacks = self.0.objects.seconds.lacks(first);
            self.0.objects.registered.device().try_dmabufs(lacks);
        }
        let lease = self.lease(span, may, false);
        if is_apart && self.0.objects.registered.device().takes_dmabufs() {
            self.0.objects.seconds.want(first);
        }
        let lease = lease?;
        match self.admit(to, lease.number, may) {
            Some(key) => Some(Lease { key, ..lease }),
            None => {
                self.end_lease(lease.number, false);
                None
            }
        }
    }

    pub(crate) fn publish(&mut self, span: Span, read: bool, write: bool) -> Option<Lease> {
        self.0.objects.registered.device().try_dmabufs(None);
        let found = self.lease(span, (read, write), true);
        if !may_be_apart(&span) || !self.0.objects.registered.device().takes_dmabufs() {
            return found;
        }
        // By the one that is for this side each peer finds out how it is called.
        let lease = match found {
            Some(lease) => lease,
            None => {
                let uses = Uses { local_write: write, ..Uses::default() };
                let (number, key) = self.0.objects.registered.register(span, uses, true).ok()?;
                Lease { number, key: 0, base: key.base(), lender: Box::default() }
            }
        };
        self.0.objects.seconds.publish(lease.number, Publication { span, read, write });
        Some(lease)
    }

    /// The key of what is published for the peer of this queue pair, in the domain of the second one; that is
    /// to be made if there is none.
    fn admit_apart(&mut self, first: u32, lease: u64) -> Option<u64> {
        let Publication { span, read, write } = self.0.objects.seconds.publication(lease)?;
        if let Some((registration, key)) = self.0.objects.seconds.key(lease, first) {
            if self.0.objects.registered.key(registration).is_some() {
                return Some(key);
            }
            // A client has taken the memory back: its number may be that of another registration.
            self.0.objects.seconds.remove_key(lease, first);
            self.end_lease(registration, true);
            return None;
        }
        self.0.objects.seconds.want(first);
        if !Joining(self.0).is_usable(first) {
            return None;
        }
        let base = self.0.objects.registered.key(lease)?.base();
        let found = self.lease_apart(first, span, (read, write))?;
        if found.base != base {
            self.end_lease(found.number, false);
            return None;
        }
        self.0.objects.seconds.add_key(lease, first, found.number, found.key);
        Some(found.key)
    }

    /// Registers memory that was lent to a peer, or admitted, for its rails; what is `published`, also for
    /// those whose port is down.
    pub(crate) fn stripe(
        &mut self,
        to: Dest,
        lease: u64,
        span: Span,
        may: (bool, bool),
        published: bool,
    ) -> Keys {
        match self.0.objects.registered.key(lease).map(Key::base) {
            Some(base) if !self.0.rails.is_empty() => {
                self.0.rails.stripe((lease, first_of(to)), base, span, may, published)
            }
            _ => [0; RAILS],
        }
    }

    /// Whether all requests of a queue pair, that is connected, have completed, which may take a moment: what
    /// is posted then is repeated by no driver.
    fn complete_all(&mut self, number: u32) -> bool {
        let in_use = |all: &Self| all.0.objects.pairs.get(number).is_some_and(|pair| pair.in_use() > 0);
        // The next one waits once they have completed.
        let in_vain = self.0.objects.pairs.get(number).is_some_and(Pair::is_long_in_use);
        let most = if in_vain { Duration::ZERO } else { FLUSH };
        if !self.wait(most, |all| all.0.connected(number).is_err() || !in_use(all)) {
            self.0.objects.pairs.get_mut(number).into_iter().for_each(Pair::note_long_in_use);
            return false;
        }
        self.0.connected(number).is_ok()
    }

    /// The key of a registration for the peer of this queue pair. Messages that are sent to it from here on
    /// are behind the request that makes the key valid.
    pub(crate) fn admit(&mut self, to: Dest, lease: u64, may: (bool, bool)) -> Option<u64> {
        let number = to.0 as u32;
        let id = self.0.connected(number).ok()?;
        if let Some(key) = self.0.objects.windows.key(lease, number) {
            return Some(key.into());
        }
        if let Some(key) = self.admit_apart(number, lease) {
            return Some(key);
        }
        if !self.0.objects.registered.key(lease)?.binds() {
            return None;
        }
        if self.0.sizes.repeats && !self.complete_all(number) {
            return None;
        }
        let Objects { windows, pairs, registered, .. } = &mut *self.0.objects;
        let pair = pairs.get_mut(number).filter(|pair| pair.has_slot())?;
        if self.0.credits == 0 {
            return None;
        }
        // Of what is read and written.
        let atomics = self.0.sizes.atomics && may == (true, true);
        let (key, posted) = (registered.key(lease)?, Posted { bind: Some(lease), ..Posted::default() });
        let post = |window: &Mw| {
            let bind = key.bind(window, may, atomics).ok_or("memory of a client")?;
            // SAFETY: no bytes, and a window and a registration that are there until it has completed.
            let done = unsafe { pair.post(id, Verb::Bind(bind), ibv_sge::default(), (false, true), posted) };
            done.map(|()| bind).map_err(|why| format!("{why:?}"))
        };
        let key = windows.open((lease, number), post)?;
        self.0.credits -= 1;
        Some(key.into())
    }

    /// Has the requests complete that bind windows of a registration. Those that do not within some time, as
    /// where the peer's device does not answer, end with their connection.
    fn end_binding(&mut self, lease: u64) {
        self.wait(BINDING, |all| all.0.objects.windows.binding(lease).is_none());
        // A connection that was stopped has none.
        while let Some(pair) = self.0.objects.windows.binding(lease) {
            log::info!("a key that is to end cannot be ended by itself: its connection ends");
            self.stop_connection(Dest(pair.into()));
        }
    }

    pub(crate) fn end_lease(&mut self, number: u64, is_known: bool) -> bool {
        if let Err(why) = self.0.rails.end_lease(number) {
            self.lock_out(why);
        }
        if self.0.objects.windows.binding(number).is_some() {
            // One that binds what was ended would end the connection.
            if !is_known && self.0.objects.windows.park(number) {
                return true;
            }
            self.end_binding(number);
        }
        for apart in self.0.objects.seconds.end_publication(number) {
            self.end_lease(apart, true);
        }
        let Objects { windows, registered, .. } = &mut *self.0.objects;
        // The registration ends behind its windows.
        let windows = windows.end_lease(number).map_err(|e| ("ibv_dealloc_mw", e.errno()));
        match windows.and_then(|()| registered.close(number)) {
            Ok(is_over) => is_over,
            Err(why) => {
                self.lock_out(why);
                true
            }
        }
    }

    /// The queue pair that a key is for, and its domain if that is a peer's alone.
    fn pair_of(&self, piece: &Piece) -> Result<(u32, Option<Domain>), NotSent> {
        let (first, seconds) = (piece.at.0 as u32, &self.0.objects.seconds);
        let which = piece.key & !u64::from(u32::MAX);
        if which == 0 {
            return Ok((first, None));
        }
        self.0.connected(first)?;
        match which {
            // The peer has connected it, as it says by another way.
            SECOND if seconds.is_awaited(first) => Err(NotSent::Busy),
            // What takes a receive, or is atomic, goes by the first one alone.
            SECOND if piece.once.is_none() => match seconds.connected(first) {
                Some((second, domain)) => Ok((second, Some(domain.clone()))),
                None => Err(NotSent::Error("a key of a queue pair that there is not".into())),
            },
            _ => Err(NotSent::Error("no key of a device".into())),
        }
    }

    pub(crate) fn access(&mut self, op: u64, piece: &Piece) -> Result<(), NotSent> {
        if let Some(rail) = rail_of(piece.key) {
            self.0.connected(first_of(piece.at))?;
            return self.0.rails.access(rail, op, piece);
        }
        let by = self.pair_of(piece)?;
        self.access_by(by, op, piece)
    }

    /// Accesses memory of a peer by this queue pair, and in this domain if it is alone in one.
    fn access_by(
        &mut self,
        (number, domain): (u32, Option<Domain>),
        op: u64,
        piece: &Piece,
    ) -> Result<(), NotSent> {
        let local = piece.local;
        let inline = self.has_room(number)?.min(MOST_INLINE);
        if piece.way == Way::Get || local.len() > inline || !local.can(Caps::CPU) {
            let found = self.find(number, domain, op, piece)?;
            return self.post(number, piece, found);
        }
        let mut room;
        let addr = if local.is_plain() {
            local.addr()
        } else {
            room = [0; MOST_INLINE];
            if hmem::read(&[local], 0, &mut room[..local.len()]) < local.len() {
                return Err(NotSent::Fault);
            }
            room.as_ptr() as u64
        };
        self.post(number, piece, Local::inline(op, addr, local.len()))
    }

    /// Whether a queue pair takes an access now: how much of one goes inline.
    pub(crate) fn has_room(&self, number: u32) -> Result<usize, NotSent> {
        self.0.connected(number)?;
        let pair = self.0.objects.pairs.get(number).filter(|pair| pair.has_slot_for_access());
        let pair = pair.filter(|_| self.0.credits > self.0.eighth());
        pair.map(Pair::most_inline).ok_or(NotSent::Busy)
    }

    /// Finds the means for memory of this side in an access that is not inline. An error is of that memory.
    pub(crate) fn find(
        &mut self,
        number: u32,
        domain: Option<Domain>,
        op: u64,
        piece: &Piece,
    ) -> Result<Local, NotSent> {
        let repeats = self.0.sizes.repeats && domain.is_none();
        let local = self.0.objects.find_local(op, piece, (domain, repeats))?;
        let Objects { pairs, registered, .. } = &*self.0.objects;
        // A client may have taken it back since it was found, and may do so at any time.
        let key = local.posted.access.and_then(|access| registered.key_in_use(access.held?));
        let pair = pairs.get(number);
        if key.is_none_or(|key| pair.is_some_and(|pair| key.begin(pair.qp.breaker()))) {
            return Ok(local);
        }
        self.let_go(number, local.posted);
        Err(NotSent::Error("a client has taken its memory back".into()))
    }

    /// Posts an access that a queue pair [has room](Accesses::has_room) for.
    #[inline]
    pub(crate) fn post(&mut self, number: u32, piece: &Piece, local: Local) -> Result<(), NotSent> {
        let remote = (piece.addr, piece.key as u32);
        let verb = match (piece.once, piece.way) {
            (Some(Once::Write(data)), _) => Verb::WriteWithData(remote, data),
            (Some(Once::FetchAdd(add)), _) => Verb::FetchAdd(remote, add),
            (Some(Once::CompareSwap(compare, swap)), _) => Verb::CompareSwap(remote, compare, swap),
            (None, Way::Get) => Verb::Read(remote),
            (None, Way::Put) => Verb::Write(remote),
        };
        let Local { bytes, is_inline, posted } = local;
        let Some((pair, id)) = self.0.objects.pairs.with_id(number) else {
            self.let_go(number, posted);
            return Err(NotSent::Busy);
        };
        // SAFETY: inline, of memory that is there during the call, as that of a span is; else a place that
        // was taken for this request, or memory that is registered until it has completed, and that is the
        // operation's until then ([`below::Remote::access`]).
        let outcome = unsafe { pair.post(id, verb, bytes, (is_inline, true), posted) };
        match outcome {
            Ok(()) => self.0.credits -= 1,
            Err(_) => self.let_go(number, posted),
        }
        outcome
    }

    /// A request was not posted: what it was to use is this side's again.
    #[cold]
    fn let_go(&mut self, pair: u32, posted: Posted) {
        let access = posted.access.map(|access| Access { into: None, ..access });
        let Objects { windows, sends, bounces, registered, .. } = &mut *self.0.objects;
        let (did, is_own_memory, has_lost) = (&mut VecDeque::new(), false, false);
        Used { windows, sends, bounces, registered, did, pair, is_own_memory, has_lost }
            .free(Posted { access, ..posted }, false);
    }

    pub(crate) fn stop(&mut self, what: Stop) -> bool {
        match what {
            // Each has ended with its lease.
            Stop::Leases => true,
            Stop::Connection(dest) => {
                self.stop_connection(dest);
                true
            }
            Stop::Accesses => {
                let all = self.0.objects.pairs.numbers();
                all.into_iter().for_each(|number| self.stop_connection(Dest(number.into())));
                true
            }
        }
    }
}

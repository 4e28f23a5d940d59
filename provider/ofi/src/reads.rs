//! Reads of peers' memory.
//!
//! A read that is not to go on is waited for: for a moment where memory of this side is given back, and
//! longer where it is the peer that wants its own. If it is not over then, all are ended, with the endpoint
//! that they were posted to ([`Below::stop_reads`]): frames make up for the others. Since their owners then
//! end what they have lent, and others' reads with that, this is for peers that answer no more: reads from
//! one that lives are over by themselves, also those from an endpoint that it has closed.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hmem::total;
use link_api::{Direct, Event, NoDirect, OpId, PeerId, RmaLink, Way};

use crate::below::{Below, Did, NotSent, Usage};
use crate::channel::Sort;
use crate::lent::{ALL, is_for_below};
use crate::link::OfiLink;
use crate::parts::reading::{Op, Piece};
use crate::peer::Stage;

/// What numbers of reads have that no operation of the connection's has.
const READ: u64 = 1 << 55;
/// How long a read that is not to go on is waited for.
const MOMENT: Duration = Duration::from_millis(5);

/// Whether an operation is a read by the fabric.
pub(crate) fn is_read(op: OpId) -> bool {
    op.0 & READ != 0
}

impl<B: RmaLink, F: Below> OfiLink<B, F> {
    /// How payloads get to this peer, and from it, for people.
    pub(crate) fn payloads(&self, peer: PeerId) -> &'static str {
        match (self.reading.most, self.peers.get(peer).is_some_and(|at| at.dealings.may_read)) {
            (Some(_), true) if self.gets_devices() => {
                "long payloads, also from and to memory of devices, read by their receiver"
            }
            (Some(_), true) => "long payloads read by their receiver",
            (Some(_), false) => "payloads in frames (the peer does not read)",
            (None, _) => "payloads in frames (the provider does not read, or registers in another way)",
        }
    }

    /// Starts to read memory of a peer's.
    pub(crate) fn start_read(
        &mut self,
        way: Way,
        peer: PeerId,
        access: &Direct<'_>,
    ) -> Result<OpId, NoDirect> {
        let request = access.operation()?;
        let most = self.reading.most.filter(|_| way == Way::Get).ok_or(NoDirect::Memory)?;
        let at = self.peers.get(peer).filter(|_| !self.provider.has_failed()).ok_or(NoDirect::Fault)?;
        if at.stage != Stage::Fabric || at.end.is_broken() {
            return Err(NoDirect::Fault);
        }
        if at.dealings.is_revoked(request) {
            return Err(NoDirect::Revoked);
        }
        let below = self.below.as_ref().ok_or(NoDirect::Fault)?;
        if total(access.local) < access.len
            || !access.local.iter().all(|span| is_for_below(below, span, Usage::ReadInto))
        {
            return Err(NoDirect::Memory);
        }
        let (mut queue, mut generation) = (VecDeque::new(), 0);
        let (mut left, mut here) = (access.len, access.local.iter().copied());
        let mut room = here.next();
        for seg in access.remote {
            let len = usize::try_from(seg.len.get()).map_err(|_| NoDirect::Memory)?.min(left);
            if len == 0 {
                continue;
            }
            let found = at.dealings.find(seg).ok_or(NoDirect::Memory)?;
            generation = generation.max(found.generation);
            let mut off = 0;
            while off < len {
                let span = room.ok_or(NoDirect::Memory)?;
                let n = (len - off).min(span.len()).min(most);
                if let Some(into) = span.part(0, n).filter(|_| n > 0) {
                    let at = found.at.checked_add(off as u64).ok_or(NoDirect::Memory)?;
                    queue.push_back(Piece { from: found.from, key: found.key, at, into });
                }
                off += n;
                room = if n == span.len() { here.next() } else { span.part(n, span.len() - n) };
            }
            left -= len;
        }
        if left > 0 {
            return Err(NoDirect::Memory);
        }
        let id = OpId(READ | self.reading.number);
        self.reading.number += 1;
        let (flying, failed, mute, until) = (0, false, false, None);
        let op = Op { id, peer, request, generation, queue, flying, failed, mute, until };
        self.reading.ops.push(op);
        self.post_reads();
        Ok(id)
    }

    /// Posts what can be posted.
    pub(crate) fn post_reads(&mut self) {
        if self.reading.ops.is_empty() {
            return;
        }
        let mut some_over = false;
        for op in &mut self.reading.ops {
            let Some(below) = &mut self.below else { break };
            while let Some(piece) = op.queue.front() {
                match below.read(op.id.0, piece.from, (piece.key, piece.at), piece.into) {
                    Ok(()) => {
                        op.queue.pop_front();
                        op.flying += 1;
                    }
                    // Another peer's may be posted nevertheless: this one may be connecting, or gone.
                    Err(NotSent::Busy) => break,
                    Err(why) => {
                        log::debug!("a read cannot be posted: {why:?}");
                        op.queue.clear();
                        op.failed = true;
                    }
                }
            }
            some_over |= op.is_over();
        }
        if some_over {
            self.report_reads();
        }
        self.end_late_reads();
        self.set_timer();
    }

    /// Ends those that should be over by now.
    fn end_late_reads(&mut self) {
        let late = |op: &Op| op.until.is_some_and(|until| until <= Instant::now());
        if self.reading.ops.iter().any(late) && self.below.as_mut().is_none_or(F::stop_reads) {
            log::info!("{}: reads that were not over in time are ended", self.base.addr());
            self.cut_reads();
            self.report_reads();
        }
    }

    /// A piece of a read is over.
    pub(crate) fn read_is_over(&mut self, who: u64, ok: bool) {
        if self.count_read(who, ok) {
            self.report_reads();
        }
    }

    /// A piece of a read is over; whether the whole read is.
    fn count_read(&mut self, who: u64, ok: bool) -> bool {
        let Some(op) = self.reading.ops.iter_mut().find(|op| op.id.0 == who) else { return false };
        op.flying = op.flying.saturating_sub(1);
        if !ok {
            op.failed = true;
            op.queue.clear();
        }
        let over = op.is_over();
        if !ok {
            let (peer, generation) = (op.peer, op.generation);
            self.note_cut(peer, generation);
        }
        over
    }

    /// All reads under way have ended before their time.
    fn cut_reads(&mut self) {
        let mut owners = Vec::new();
        for op in self.reading.ops.iter_mut().filter(|op| op.flying > 0) {
            (op.flying, op.failed) = (0, true);
            op.queue.clear();
            owners.push((op.peer, op.generation));
        }
        for (peer, generation) in owners {
            self.note_cut(peer, generation);
        }
    }

    /// Reports reads that are over.
    fn report_reads(&mut self) {
        let inbox = &mut self.inbox;
        self.reading.ops.retain(|op| {
            if op.is_over() && !op.mute {
                inbox.push_event(Event::Done(op.id, !op.failed));
            }
            !op.is_over()
        });
        if !self.reading.leaving.is_empty() {
            self.report_left();
        }
        self.set_timer();
    }

    /// Reports to peers the requests by which no memory is read any more.
    fn report_left(&mut self) {
        for (peer, request) in std::mem::take(&mut self.reading.leaving) {
            let reads = |op: &Op| op.peer == peer && (request == ALL || op.request == request);
            if self.reading.ops.iter().any(reads) {
                self.reading.leaving.push((peer, request));
            } else {
                self.note(peer, Sort::Left, request);
            }
        }
    }

    /// A peer takes a request back: its reads fail, and it gets an answer when they are over.
    pub(crate) fn leave_reads(&mut self, peer: PeerId, request: u64) {
        self.let_end(|op| op.peer == peer && (request == ALL || op.request == request), true);
        if !self.reading.leaving.contains(&(peer, request)) {
            self.reading.leaving.push((peer, request));
        }
        self.report_reads();
    }

    /// A peer has closed the endpoint that it had lent these generations by: providers that have connections
    /// report the end of reads from there.
    pub(crate) fn let_reads_end(&mut self, peer: PeerId, last: u64) {
        self.let_end(|op| op.peer == peer && op.generation <= last, false);
        self.report_reads();
    }

    /// Posts no more of some reads, which have failed then, or if `failed`.
    fn let_end(&mut self, which: impl Fn(&Op) -> bool, failed: bool) {
        let until = Instant::now() + self.options.leave;
        for op in self.reading.ops.iter_mut().filter(|op| which(op)) {
            op.failed |= failed || !op.queue.is_empty();
            op.queue.clear();
            op.until.get_or_insert(until);
        }
    }

    /// Ends reads: when this returns they access no memory any more. Those that are reported have failed.
    pub(crate) fn end_reads(&mut self, which: impl Fn(&Op) -> bool, reports: bool) {
        let mut found = false;
        for op in self.reading.ops.iter_mut().filter(|op| which(op)) {
            op.queue.clear();
            (op.failed, op.mute, found) = (true, !reports, true);
        }
        if !found {
            return;
        }
        let (mut until, mut logged) = (Instant::now() + MOMENT, false);
        while self.reading.ops.iter().any(|op| which(op) && op.flying > 0) {
            match self.below.as_mut().filter(|_| !self.provider.has_failed()).and_then(F::poll) {
                Some(Did::Read(who, ok)) => {
                    self.count_read(who, ok);
                    continue;
                }
                Some(did) => {
                    self.reading.stash.push_back(did);
                    continue;
                }
                None => {}
            }
            if Instant::now() < until && !self.provider.has_failed() {
                std::thread::yield_now();
            } else if self.below.as_mut().is_none_or(F::stop_reads) {
                log::info!("{}: reads that were not over are ended", self.base.addr());
                self.cut_reads();
            } else {
                // Its memory is not to be given back until the provider lets go of it.
                if !std::mem::replace(&mut logged, true) {
                    log::error!("{}: reads cannot be ended, and are waited for", self.base.addr());
                }
                until = Instant::now() + MOMENT;
            }
        }
        self.report_reads();
    }

    /// Ends a read that is not reported any more.
    pub(crate) fn cancel_read(&mut self, op: OpId) {
        self.end_reads(|known| known.id == op, false);
        self.inbox.drop_done(op);
    }
}

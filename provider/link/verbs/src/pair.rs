//! A queue pair, and the requests that were posted to its sending half.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use below::NotSent;
use hmem::Span;
use rdma_sys::{
    Bind, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_BIND_MW, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, Qp,
    ibv_send_wr, ibv_sge,
};

/// How long a queue pair that is closed may take until all its requests have completed.
const LAST: Duration = Duration::from_secs(2);

/// How far a queue pair is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its address was announced.
    Offered,
    /// A connection manager connects it.
    Joining,
    /// Messages go both ways.
    Connected,
    /// It is in error, and why.
    Failed(String),
    /// It is not needed any more, and is destroyed when its requests have completed, or then.
    Closing(Instant),
}

impl State {
    /// Whether it is not in error, and needed: requests are posted to it now, or are to be.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self, State::Offered | State::Joining | State::Connected)
    }
}

/// A request that was posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posted {
    /// What its failure is reported with; `None`: not at all.
    pub(crate) who: Option<u64>,
    /// The place that it is sent from, or of an access the one that it goes by.
    pub(crate) place: Option<usize>,
    /// It is an access to the peer's memory.
    pub(crate) access: Option<Access>,
    /// It binds a window of this registration.
    pub(crate) bind: Option<u64>,
}

impl Posted {
    /// Whether something is to be given back, or reported, once it is over.
    #[inline]
    fn uses_something(&self) -> bool {
        self.place.is_some() || self.access.is_some() || self.bind.is_some()
    }
}

/// An access to the peer's memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Access {
    /// What its end is reported with.
    pub(crate) op: u64,
    /// Where the bytes belong that are read to its place.
    pub(crate) into: Option<Span>,
    /// The registration that it names.
    pub(crate) held: Option<u64>,
    /// That too, which a driver that repeats requests may use until a later one has completed.
    pub(crate) late: Option<u64>,
}

/// What a request does; where in the peer's memory, and by which key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Verb {
    Send,
    Read((u64, u32)),
    Write((u64, u32)),
    /// With data that the peer's device reports.
    WriteWithData((u64, u32), u32),
    /// Of a word: what is added; what it has to be, and what it becomes then.
    FetchAdd((u64, u32), u64),
    CompareSwap((u64, u32), u64, u64),
    /// Binds a memory window to this queue pair.
    Bind(Bind),
}

/// Puts the word of an atomic into its request, and its operands.
fn put_atomic(request: &mut ibv_send_wr, (remote_addr, rkey): (u64, u32), operands: (u64, u64)) {
    request.wr.atomic.remote_addr = remote_addr;
    request.wr.atomic.rkey = rkey;
    (request.wr.atomic.compare_add, request.wr.atomic.swap) = operands;
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) qp: Qp,
    /// The number of its first packet.
    pub(crate) psn: u32,
    pub(crate) state: State,
    /// Of the requests whose slots are not known to be free those that have used something, or are reported
    /// with something else than the message before; in order, each with its number.
    posted: VecDeque<(u32, Posted)>,
    /// The number of the first request whose slot is not known to be free, and of the next one. Numbers wrap.
    first: u32,
    next: u32,
    /// How many of the newest in a row have no completion of their own.
    silent: u32,
    /// How many are accesses.
    accesses: u32,
    /// What the failure of its newest message is reported with.
    newest: Option<u64>,
    /// [`Access::late`] of the request that has completed last.
    late: Option<u64>,
    /// An access that is done is over once a later request has completed: the driver may repeat it until
    /// then.
    pub(crate) delays: bool,
    /// That access.
    delayed: Option<Posted>,
    /// A request that was to be posted alone has waited in vain since some were posted.
    is_long_in_use: bool,
    /// Receives that are posted to it, where it has its own.
    pub(crate) receives: u32,
    /// What the device had posted to it of a shared queue has completed.
    pub(crate) is_last: bool,
    /// What is posted to it in error completes; else its receives do, behind all that was sent.
    pub(crate) drains: bool,
}

impl Pair {
    pub(crate) fn new(qp: Qp, psn: u32) -> Pair {
        Pair {
            qp,
            psn,
            state: State::Offered,
            posted: VecDeque::new(),
            first: 0,
            next: 0,
            silent: 0,
            accesses: 0,
            newest: None,
            late: None,
            delays: false,
            delayed: None,
            is_long_in_use: false,
            receives: 0,
            is_last: false,
            drains: true,
        }
    }

    /// It is in error; whether that is new.
    pub(crate) fn fail(&mut self, why: &str) -> bool {
        let is_new = self.state.is_open();
        if is_new {
            // As a rule it is so already.
            self.qp.breaker().fail();
            self.state = State::Failed(why.into());
        }
        is_new
    }

    /// Its failure is reported with this, though no message goes by it.
    pub(crate) fn report_with(&mut self, who: u64) {
        self.newest = Some(who);
    }

    /// What the failure of the newest message is reported with, if there was one.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// Whether accesses to the peer's memory are under way.
    pub(crate) fn has_accesses(&self) -> bool {
        self.accesses > 0
    }

    /// Slots that are not known to be free.
    #[inline]
    pub(crate) fn in_use(&self) -> usize {
        self.next.wrapping_sub(self.first) as usize
    }

    /// Longest message that is sent inline.
    pub(crate) fn most_inline(&self) -> usize {
        self.qp.granted().max_inline as usize
    }

    /// Whether a message finds a slot: the last one is for the end.
    pub(crate) fn has_slot(&self) -> bool {
        self.in_use() + 1 < self.qp.granted().max_send_wr as usize
    }

    /// Whether an access finds one: a quarter is for messages.
    pub(crate) fn has_slot_for_access(&self) -> bool {
        4 * (self.in_use() + 1) < 3 * self.qp.granted().max_send_wr as usize
    }

    /// Whether the next request needs a completion of its own for slots to become free in time.
    pub(crate) fn is_signal_due(&self) -> bool {
        4 * (self.silent + 1) >= self.qp.granted().max_send_wr
    }

    /// Posts a request with these bytes, and an id of which this is all but the number.
    ///
    /// # Safety
    /// Inline, the bytes are readable; else they are in a place that is registered and that nothing else
    /// uses until this request, or a later one, has completed. So is a window that is to be bound, and its
    /// registration.
    #[inline(always)]
    pub(crate) unsafe fn post(
        &mut self,
        id: u64,
        verb: Verb,
        mut bytes: ibv_sge,
        (inline, signal): (bool, bool),
        posted: Posted,
    ) -> Result<(), NotSent> {
        let number = self.next;
        let flag = |on, bit| if on { bit } else { 0 };
        let (opcode, remote) = match verb {
            Verb::Send => (IBV_WR_SEND, None),
            Verb::Read(remote) => (IBV_WR_RDMA_READ, Some(remote)),
            Verb::Write(remote) => (IBV_WR_RDMA_WRITE, Some(remote)),
            Verb::WriteWithData(remote, _) => (IBV_WR_RDMA_WRITE_WITH_IMM, Some(remote)),
            Verb::FetchAdd(..) => (IBV_WR_ATOMIC_FETCH_AND_ADD, None),
            Verb::CompareSwap(..) => (IBV_WR_ATOMIC_CMP_AND_SWP, None),
            Verb::Bind(_) => (IBV_WR_BIND_MW, None),
        };
        let mut request = ibv_send_wr {
            wr_id: id | u64::from(number),
            sg_list: &raw mut bytes,
            num_sge: i32::from(bytes.length > 0),
            opcode,
            send_flags: flag(inline, IBV_SEND_INLINE) | flag(signal, IBV_SEND_SIGNALED),
            ..Default::default()
        };
        if let Some((remote_addr, rkey)) = remote {
            request.wr.rdma.remote_addr = remote_addr;
            request.wr.rdma.rkey = rkey;
        }
        match verb {
            Verb::Bind(bind) => bind.put_in(&mut request),
            Verb::WriteWithData(_, data) => request.anon1.imm_data = data.to_be(),
            Verb::FetchAdd(word, add) => put_atomic(&mut request, word, (add, 0)),
            Verb::CompareSwap(word, compare, swap) => put_atomic(&mut request, word, (compare, swap)),
            Verb::Send | Verb::Read(_) | Verb::Write(_) => {}
        }
        // SAFETY: a list of one request with one piece, as the caller promises.
        match unsafe { self.qp.post_send(&mut request) } {
            Ok(()) => {
                self.next = number.wrapping_add(1);
                self.accesses += u32::from(posted.access.is_some());
                if posted.uses_something() || posted.who.is_none() || posted.who != self.newest {
                    self.newest = posted.who.or(self.newest);
                    self.posted.push_back((number, posted));
                }
                self.silent = if signal { 0 } else { self.silent + 1 };
                Ok(())
            }
            // The slots of the device's queue are its own to count.
            Err((_, e)) if [libc::ENOMEM, libc::EAGAIN].contains(&e.errno()) => Err(NotSent::Busy),
            Err((_, e)) => Err(NotSent::Error(e.to_string())),
        }
    }

    /// The request of this number has completed, as `is_done` says, and with it all before it, which are
    /// handed to `free`, if they have used something, but what it [delays](Pair::delays); the one itself is
    /// returned. `None`: it had been before.
    pub(crate) fn complete(
        &mut self,
        number: u32,
        is_done: bool,
        mut free: impl FnMut(Posted, bool),
    ) -> Option<Posted> {
        let ahead = number.wrapping_sub(self.first);
        if ahead as usize >= self.in_use() {
            return None;
        }
        let Pair { posted, accesses, delayed, first, .. } = self;
        let mut end = |one: Posted, is_done| {
            *accesses -= u32::from(one.access.is_some());
            free(one, is_done);
        };
        let (mut own, mut is_own_delayed) = (Posted { who: self.newest, ..Posted::default() }, false);
        while let Some(&(at, one)) = posted.front().filter(|(at, _)| at.wrapping_sub(*first) <= ahead) {
            posted.pop_front();
            if at == number {
                own = one;
            }
            delayed.take().into_iter().for_each(|before| end(before, true));
            // Behind a request that has failed, those before it need not have been done.
            if self.delays && is_done && one.access.is_some() {
                *delayed = Some(one);
                is_own_delayed = at == number;
            } else {
                end(one, is_done);
            }
        }
        // A message that has used nothing is not among them, and ends what was delayed as any other does.
        if !is_own_delayed {
            delayed.take().into_iter().for_each(|before| end(before, true));
        }
        self.first = number.wrapping_add(1);
        self.is_long_in_use &= self.in_use() > 0;
        Some(own)
    }

    /// The registration that is used no more now that a request has completed; `None` for that: it is gone.
    pub(crate) fn take_late(&mut self, done: Option<&Posted>) -> Option<u64> {
        let late = done.and_then(|one| one.access?.late);
        std::mem::replace(&mut self.late, late)
    }

    /// Whether a request that is to be posted alone had better not wait: one has, in vain.
    pub(crate) fn is_long_in_use(&self) -> bool {
        self.is_long_in_use
    }

    pub(crate) fn note_long_in_use(&mut self) {
        self.is_long_in_use = true;
    }

    /// Whether something is used until a later request has completed.
    pub(crate) fn has_late(&self) -> bool {
        self.late.is_some() || self.delayed.is_some()
    }

    /// Posts a request that moves no bytes, with the id of [`Pair::post`]; whether it was posted.
    pub(crate) fn follow(&mut self, id: u64) -> bool {
        let (verb, posted) = (Verb::Write((0, 0)), Posted::default());
        // SAFETY: no bytes.
        unsafe { self.post(id, verb, ibv_sge::default(), (false, true), posted) }.is_ok()
    }

    /// The access that was delayed, whose queue pair is gone.
    pub(crate) fn take_delayed(&mut self) -> Option<Posted> {
        self.delayed.take()
    }

    /// Gives all requests up, whose queue pair is gone: how many there were, and those that have used
    /// something.
    pub(crate) fn drop_posted(&mut self) -> (usize, impl Iterator<Item = Posted> + use<>) {
        let n = self.in_use();
        (self.accesses, self.first) = (0, self.next);
        (n, std::mem::take(&mut self.posted).into_iter().map(|(_, one)| one))
    }

    /// It is not needed any more. One more request is posted, which completes after all others, also those
    /// that had no completion of their own.
    pub(crate) fn close(&mut self, id: u64) -> bool {
        self.state = State::Closing(Instant::now() + LAST);
        self.qp.breaker().fail();
        // SAFETY: no bytes.
        self.drains
            && unsafe { self.post(id, Verb::Send, ibv_sge::default(), (false, true), Posted::default()) }
                .is_ok()
    }

    /// Whether a queue pair that is closed can be destroyed: all has completed, or has had its time.
    pub(crate) fn is_over(&self, shared: bool) -> bool {
        let State::Closing(until) = self.state else { return false };
        let is_drained =
            (self.in_use() == 0 || !self.drains) && self.receives == 0 && (self.is_last || !shared);
        is_drained || Instant::now() >= until
    }
}

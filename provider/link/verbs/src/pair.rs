//! A queue pair, and the requests that were posted to its sending half.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use below::NotSent;
use rdma_sys::{IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_WR_SEND, Qp, ibv_send_wr, ibv_sge};

/// How long a queue pair that is closed may take until all its requests have completed.
const LAST: Duration = Duration::from_secs(2);

/// How far a queue pair is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Its address was announced.
    Offered,
    /// Messages go both ways.
    Connected,
    /// It is in error, and why.
    Failed(String),
    /// It is not needed any more, and is destroyed when its requests have completed, or then.
    Closing(Instant),
}

/// A request that was posted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posted {
    /// What its failure is reported with; `None`: not at all.
    pub(crate) who: Option<u64>,
    /// The place that it is sent from.
    pub(crate) place: Option<usize>,
}

/// A queue pair.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) qp: Qp,
    /// The number of its first packet.
    pub(crate) psn: u32,
    pub(crate) state: State,
    /// Requests whose slots are not known to be free, in order.
    posted: VecDeque<Posted>,
    /// The number of the first of them. Numbers wrap.
    first: u32,
    /// How many of the newest in a row have no completion of their own.
    silent: u32,
    /// Receives that are posted to it, where it has its own.
    pub(crate) receives: u32,
    /// What the device had posted to it of a shared queue has completed.
    pub(crate) is_last: bool,
}

impl Pair {
    pub(crate) fn new(qp: Qp, psn: u32) -> Pair {
        Pair {
            qp,
            psn,
            state: State::Offered,
            posted: VecDeque::new(),
            first: 0,
            silent: 0,
            receives: 0,
            is_last: false,
        }
    }

    /// What the failure of the newest request is reported with, if there is one.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.posted.back()?.who
    }

    /// Slots that are not known to be free.
    pub(crate) fn in_use(&self) -> usize {
        self.posted.len()
    }

    /// Longest message that is sent inline.
    pub(crate) fn most_inline(&self) -> usize {
        self.qp.granted().max_inline as usize
    }

    /// Whether a message finds a slot: the last one is for the end.
    pub(crate) fn has_slot(&self) -> bool {
        self.posted.len() + 1 < self.qp.granted().max_send_wr as usize
    }

    /// Whether the next request needs a completion of its own for slots to become free in time.
    pub(crate) fn is_signal_due(&self) -> bool {
        4 * (self.silent + 1) >= self.qp.granted().max_send_wr
    }

    /// Posts a send of these bytes, with an id of which this is all but the number.
    ///
    /// # Safety
    /// Inline, the bytes are readable; else they are in a place that is registered and that nothing else
    /// uses until this request, or a later one, has completed.
    pub(crate) unsafe fn send(
        &mut self,
        id: u64,
        mut bytes: ibv_sge,
        (inline, signal): (bool, bool),
        posted: Posted,
    ) -> Result<(), NotSent> {
        let number = self.first.wrapping_add(self.posted.len() as u32);
        let flag = |on, bit| if on { bit } else { 0 };
        let mut request = ibv_send_wr {
            wr_id: id | u64::from(number),
            sg_list: &raw mut bytes,
            num_sge: i32::from(bytes.length > 0),
            opcode: IBV_WR_SEND,
            send_flags: flag(inline, IBV_SEND_INLINE) | flag(signal, IBV_SEND_SIGNALED),
            ..Default::default()
        };
        // SAFETY: a list of one request with one piece, as the caller promises.
        match unsafe { self.qp.post_send(&mut request) } {
            Ok(()) => {
                self.posted.push_back(posted);
                self.silent = if signal { 0 } else { self.silent + 1 };
                Ok(())
            }
            // The slots of the device's queue are its own to count.
            Err((_, e)) if [libc::ENOMEM, libc::EAGAIN].contains(&e.errno()) => Err(NotSent::Busy),
            Err((_, e)) => Err(NotSent::Error(e.to_string())),
        }
    }

    /// The request of this number has completed, and with it all before it, which are handed to `free`; the
    /// one itself is returned. `None`: it had been before.
    pub(crate) fn complete(&mut self, number: u32, mut free: impl FnMut(Posted)) -> Option<Posted> {
        let ahead = number.wrapping_sub(self.first) as usize;
        if ahead >= self.posted.len() {
            return None;
        }
        self.first = number.wrapping_add(1);
        self.posted.drain(..ahead).for_each(&mut free);
        let own = self.posted.pop_front()?;
        free(own);
        Some(own)
    }

    /// Gives all requests up, whose queue pair is gone.
    pub(crate) fn drop_posted(&mut self) -> impl Iterator<Item = Posted> + '_ {
        self.posted.drain(..)
    }

    /// It is not needed any more. One more request is posted, which completes after all others, also those
    /// that had no completion of their own.
    pub(crate) fn close(&mut self, id: u64) -> bool {
        self.state = State::Closing(Instant::now() + LAST);
        let _ = self.qp.fail();
        // SAFETY: no bytes.
        unsafe { self.send(id, ibv_sge::default(), (false, true), Posted::default()) }.is_ok()
    }

    /// Whether a queue pair that is closed can be destroyed: all has completed, or has had its time.
    pub(crate) fn is_over(&self, shared: bool) -> bool {
        let State::Closing(until) = self.state else { return false };
        let is_drained = self.posted.is_empty() && self.receives == 0 && (self.is_last || !shared);
        is_drained || Instant::now() >= until
    }
}

//! An end by its number, and its operations: starting them, and waiting for their ends.

use std::sync::Arc;

use super::Patience;
use super::wait::{WaitStep, Waiting};
use crate::core::context::{Context, End, Fate, Ready, UNAWAITED};
use crate::core::control::Class;
use crate::{Backend, Error, Rank, RemoteId, Token};

/// Numbers for operations of an end.
#[derive(Debug)]
pub(super) struct OpNumbers(u32);

impl OpNumbers {
    /// Behind this one.
    pub(super) fn after(op: u32) -> OpNumbers {
        OpNumbers(op)
    }

    pub(super) fn next(&mut self) -> u32 {
        self.0 = self.0.checked_add(1).unwrap_or(UNAWAITED + 1);
        self.0
    }
}

#[derive(Debug)]
pub(super) struct Port {
    context: Arc<Context>,
    no: u32,
    peer: Rank,
}

impl Port {
    /// Opens the end of the next stream to a peer.
    pub(super) fn open(context: &Arc<Context>, class: Class, peer: Rank, end: End) -> Result<Port, Error> {
        let no = context.lock().open(class, peer, end)?;
        Ok(Port { context: context.clone(), no, peer })
    }

    pub(super) fn context(&self) -> &Context {
        &self.context
    }

    pub(super) fn peer(&self) -> Rank {
        self.peer
    }

    pub(super) fn token(&self, op: u32) -> Token {
        Token(u64::from(self.no) << 32 | u64::from(op))
    }

    /// Begins to set the stream up, without waiting.
    pub(super) fn begin(&self) -> Result<(), Error> {
        self.context.lock().begin(self.no)
    }

    /// Waits until the end is known on both sides.
    pub(super) fn until_ready(&self, patience: Patience) -> Result<Ready, Error> {
        let mut waiting = Waiting::new(patience, false);
        loop {
            let ready = self.context.lock().ready(self.no)?;
            if let Some(ready) = ready {
                return Ok(ready);
            }
            if waiting.step(&self.context)? == WaitStep::Sleep {
                waiting.sleep(&self.context, false);
            }
        }
    }

    /// Starts an operation, as soon as the backend takes it. `Again`: it has not within the time.
    pub(super) fn post(
        &self,
        patience: Patience,
        mut start: impl FnMut(&mut dyn Backend) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut waiting = Waiting::new(patience, false);
        loop {
            let mut inner = self.context.lock();
            match start(inner.backend()) {
                Err(Error::Again) => inner.can_reach(self.no)?,
                other => return other,
            }
            drop(inner);
            if waiting.step(&self.context)? == WaitStep::Sleep {
                std::thread::yield_now();
            }
        }
    }

    /// Puts bytes that may be reused at once.
    pub(super) fn put_bytes(
        &self,
        patience: Patience,
        remote: (RemoteId, usize),
        bytes: &[u8],
        notify: Option<u32>,
    ) -> Result<(), Error> {
        self.post(patience, |backend| backend.put_bytes(self.peer, remote, bytes, notify))
    }

    /// Waits for the end of an operation. `Again`: it has none yet.
    pub(super) fn await_op(&self, op: u32, patience: Patience) -> Result<u64, Error> {
        let mut waiting = Waiting::new(patience, false);
        loop {
            let mut inner = self.context.lock();
            if let Some(outcome) = inner.take_done(self.no, op) {
                return outcome;
            }
            inner.can_reach(self.no)?;
            drop(inner);
            if waiting.step(&self.context)? == WaitStep::Sleep {
                waiting.sleep(&self.context, false);
            }
        }
    }

    /// Whether all of these operations have ended, the last one first; those that have are taken from the
    /// list. The end breaks with its peer if one has failed.
    pub(super) fn have_ended(&self, ops: &mut Vec<u32>) -> Result<bool, Error> {
        let mut inner = self.context.lock();
        while let Some(op) = ops.last() {
            match inner.take_done(self.no, *op) {
                None => return Ok(false),
                Some(Err(fault)) => {
                    inner.break_off(self.no, &fault);
                    return Err(fault);
                }
                Some(Ok(_)) => ops.pop(),
            };
        }
        Ok(true)
    }

    /// The next notification.
    pub(super) fn take_notified(&self) -> Option<u16> {
        self.context.lock().take_notified(self.no)
    }

    /// An error if nothing comes from the peer any more.
    pub(super) fn still_there(&self) -> Result<(), Error> {
        self.context.lock().still_there(self.no)
    }

    /// An error if nothing comes from the peer any more, or nothing can be taken in.
    pub(super) fn still_comes(&self) -> Result<(), Error> {
        self.context.lock().still_comes(self.no)
    }

    /// Whether the peer has begun to set the stream up, or will not.
    pub(super) fn has_begun(&self) -> bool {
        self.context.lock().has_begun(self.no)
    }

    /// Whether the peer may begin yet.
    pub(super) fn may_begin(&self) -> bool {
        self.context.lock().may_begin(self.no)
    }

    /// The end breaks with its peer, which broke the protocol.
    pub(super) fn break_off(&self, fault: &Error) {
        self.context.lock().break_off(self.no, fault);
    }

    /// Sends the peer that the group of this end is over for this rank.
    pub(super) fn say_over(&self, rank: Rank) {
        self.context.lock().say_over(self.no, rank);
    }

    /// The rank for which the peer has said so.
    pub(super) fn over_for(&self) -> Option<Rank> {
        self.context.lock().over_for(self.no)
    }

    /// Wakes the peer's process.
    pub(super) fn wake(&self) {
        let _ = self.context.lock().backend().wake(self.peer);
    }

    /// Closes the end.
    pub(super) fn leave(&self, fate: Fate) -> Result<(), Error> {
        self.context.lock().leave(self.no, fate)
    }
}

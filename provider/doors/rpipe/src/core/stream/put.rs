//! Sending over a path that is not mapped: data and slots are put, and flags as the mode has it.

use super::post::{post, token};
use super::wait::Waiting;
use super::writer::{Unflagged, Writer};
use super::{Mode, Patience};
use crate::core::context::UNAWAITED;
use crate::core::settings::INJECT_MOST;
use crate::core::slot::{self, FLAG, INLINE, Notice, SLOT};
use crate::{Block, Error, Put};

impl Writer {
    /// Sends over a path that is not mapped. `Again`: nothing has left within the time. What has left in part
    /// is told of by later calls.
    pub(super) fn put(&mut self, block: Block, notice: Notice, patience: Patience) -> Result<(), Error> {
        let (no, peer) = (self.no, self.peer);
        // Those before come first.
        self.flush(patience)?;
        let up = self.up.as_deref_mut().ok_or(Error::Again)?;
        let (offset, len) = (up.heap.offset(block.granule), notice.len as usize);
        let (promise, remote) = (up.ready.promise.clone(), up.ready.theirs.remote);
        let ordered = promise.between && up.mode != Mode::Delivered;
        let mut ops = Vec::new();
        let mut data = [0; INLINE];
        let from = up.local_at + offset;
        if notice.is_inline {
            up.local.copy_out(from, &mut data[..len]);
        } else if len <= up.inject.most {
            let mut bytes = [0; INJECT_MOST];
            up.local.copy_out(from, &mut bytes[..len]);
            let to = (remote, up.shape.heap_at() + offset);
            post(&self.context, no, patience, |inner| {
                inner.backend.put_bytes(peer, to, &bytes[..len], None)
            })?;
        } else if !up.ready.met.manner.pull {
            for begin in (0..len).step_by(promise.most.max(64)) {
                let op = if ordered { UNAWAITED } else { up.next_op() };
                ops.extend((!ordered).then_some(op));
                let put = Put {
                    to: peer,
                    from: (up.ready.mine.id, from + begin),
                    remote: (remote, up.shape.heap_at() + offset + begin),
                    len: (len - begin).min(promise.most.max(64)),
                    behind: false,
                    notify: None,
                    token: token(no, op),
                };
                let time = if begin == 0 { patience } else { Patience::Forever };
                post(&self.context, no, time, |inner| inner.backend.put(&put))?;
            }
        }
        let flag = up.flag + 1;
        let (at, bytes) = (
            up.shape.slot(up.flag),
            slot::encode(notice, if notice.is_inline { &data[..len] } else { &[] }, flag),
        );
        up.flag = flag;
        if up.mode == Mode::Delivered {
            // Its flag comes later.
            let (stage, op) = (up.shape.stage_at() + at, up.next_op());
            up.ready.mine.memory.copy_in(stage, &bytes);
            let put = Put {
                to: peer,
                from: (up.ready.mine.id, stage),
                remote: (remote, at),
                len: FLAG,
                behind: false,
                notify: None,
                token: token(no, op),
            };
            post(&self.context, no, Patience::Forever, |inner| inner.backend.put(&put))?;
            ops.push(op);
        } else {
            up.ready.mine.memory.copy_in(up.shape.stage_at() + at, &bytes);
        }
        up.waiting.push_back(Unflagged { ops, flag });
        // Nothing else would raise it if the program makes no further call.
        match self.flush(patience) {
            Err(Error::Again) => Ok(()),
            other => other,
        }
    }

    /// Puts a slot behind the bytes it tells of. After `Again` it is put once more: its flag was not.
    fn put_slot(
        &mut self,
        at: usize,
        bytes: &[u8; SLOT],
        flag: u64,
        patience: Patience,
    ) -> Result<(), Error> {
        let (no, peer) = (self.no, self.peer);
        let up = self.up.as_deref_mut().ok_or(Error::Again)?;
        let remote = up.ready.theirs.remote;
        let notify = u32::from(up.ready.met.no) << 16 | (flag as u32 & 0xffff);
        let put = |from: usize, bytes: &[u8], notify| {
            post(&self.context, no, patience, |inner| {
                inner.backend.put_bytes(peer, (remote, at + from), bytes, notify)
            })
        };
        match up.mode {
            Mode::TwoWrites => {
                put(0, &bytes[..FLAG], None)?;
                put(FLAG, &bytes[FLAG..], None)
            }
            Mode::Notified => put(0, bytes, Some(notify)),
            _ => put(0, bytes, None),
        }
    }

    /// Raises the flags of messages whose bytes are visible by now, in order.
    pub(super) fn raise_due(&mut self, patience: Patience) -> Result<(), Error> {
        loop {
            let Some(up) = self.up.as_deref_mut() else { return Ok(()) };
            let Some(first) = up.waiting.front_mut() else { return Ok(()) };
            let mut inner = self.context.lock();
            while let Some(op) = first.ops.last() {
                match inner.take_done(self.no, *op) {
                    None => return Ok(()),
                    Some(Err(fault)) => {
                        inner.break_off(self.no, &fault);
                        return Err(fault);
                    }
                    Some(Ok(_)) => first.ops.pop(),
                };
            }
            drop(inner);
            let flag = first.flag;
            let at = up.shape.slot(flag - 1);
            if up.mode == Mode::Delivered {
                let (no, peer, remote) = (self.no, self.peer, up.ready.theirs.remote);
                let bytes = flag.to_ne_bytes();
                post(&self.context, no, patience, |inner| {
                    inner.backend.put_bytes(peer, (remote, at + FLAG), &bytes, None)
                })?;
            } else {
                let mut bytes = [0; SLOT];
                up.ready.mine.memory.copy_out(up.shape.stage_at() + at, &mut bytes);
                self.put_slot(at, &bytes, flag, patience)?;
            }
            if let Some(up) = self.up.as_deref_mut() {
                up.waiting.pop_front();
            }
        }
    }

    /// Waits until all that was sent has left: its flags are raised.
    pub(crate) fn flush(&mut self, patience: Patience) -> Result<(), Error> {
        let mut waiting = Waiting::new(patience, false);
        loop {
            self.raise_due(patience)?;
            if self.up.as_deref().is_none_or(|up| up.waiting.is_empty()) {
                return Ok(());
            }
            waiting.turn(&self.context)?;
            self.context.lock().still_there(self.no)?;
        }
    }
}

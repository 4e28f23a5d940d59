//! Sending over a path that is not mapped: data and slots are put, and flags as the mode has it.

use std::collections::VecDeque;

use super::source::Source;
use crate::core::context::{Ready, UNAWAITED};
use crate::core::settings::INJECT_MOST;
use crate::core::slot::{self, FLAG, INLINE, Notice, SLOT};
use crate::core::stream::port::{OpNumbers, Port};
use crate::core::stream::wait::Waiting;
use crate::core::stream::{Mode, Patience};
use crate::{Error, Put};

/// Messages whose flags are not raised yet, in order.
#[derive(Debug, Default)]
pub(super) struct Unraised(VecDeque<Unflagged>);

impl Unraised {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A message whose bytes are not known to be visible yet.
#[derive(Debug)]
struct Unflagged {
    /// The operations that its flag waits for.
    ops: Vec<u32>,
    flag: u64,
}

/// The parts that take part in a put.
#[derive(Debug)]
pub(super) struct Puts<'a> {
    pub(super) port: &'a Port,
    pub(super) ready: &'a Ready,
    pub(super) source: &'a Source,
    pub(super) ops: &'a mut OpNumbers,
    pub(super) unraised: &'a mut Unraised,
    /// The next message's number.
    pub(super) flag: &'a mut u64,
    /// Messages behind their slot of up to so many bytes are copied by the path.
    pub(super) inject_most: usize,
}

impl Puts<'_> {
    fn mode(&self) -> Mode {
        self.ready.met.manner.mode
    }

    /// Sends a block at this offset of the heap. `Again`: nothing has left within the time. The flags of what
    /// has left in part are raised by later calls.
    pub(super) fn put(&mut self, offset: usize, notice: Notice, patience: Patience) -> Result<(), Error> {
        // Those before come first.
        self.flush(patience)?;
        let mut data = [0; INLINE];
        let data = &mut data[..if notice.is_inline { notice.len as usize } else { 0 }];
        self.source.copy_out(offset, data);
        let mut ops =
            if notice.is_inline { Vec::new() } else { self.put_data(offset, notice.len as usize, patience)? };
        let (number, flag) = (*self.flag, *self.flag + 1);
        let (at, bytes) = (self.ready.met.shape.slot(number), slot::encode(notice, data, flag));
        *self.flag = flag;
        let stage = self.ready.met.shape.stage_at() + at;
        self.ready.mine.memory.copy_in(stage, &bytes);
        if self.mode() == Mode::Delivered {
            // Its flag comes later.
            let op = self.ops.next();
            self.start(stage, at, FLAG, op, Patience::Forever)?;
            ops.push(op);
        }
        self.unraised.0.push_back(Unflagged { ops, flag });
        // Nothing else would raise it if the program makes no further call.
        match self.flush(patience) {
            Err(Error::Again) => Ok(()),
            other => other,
        }
    }

    /// Puts a block's bytes, unless the reader gets them; the operations that the flag waits for.
    fn put_data(&mut self, offset: usize, len: usize, patience: Patience) -> Result<Vec<u32>, Error> {
        let (promise, mut ops) = (&self.ready.promise, Vec::new());
        let to = self.ready.met.shape.heap_at() + offset;
        if len <= self.inject_most {
            let mut bytes = [0; INJECT_MOST];
            self.source.copy_out(offset, &mut bytes[..len]);
            self.port.put_bytes(patience, (self.ready.theirs.remote, to), &bytes[..len], None)?;
        } else if !self.ready.met.manner.pull {
            let (from, most) = (self.source.place(offset), promise.most.max(64));
            let ordered = promise.between && self.mode() != Mode::Delivered;
            for begin in (0..len).step_by(most) {
                let op = if ordered { UNAWAITED } else { self.ops.next() };
                ops.extend((!ordered).then_some(op));
                let time = if begin == 0 { patience } else { Patience::Forever };
                self.start(from + begin, to + begin, (len - begin).min(most), op, time)?;
            }
        }
        Ok(ops)
    }

    /// Starts a put from this end's region to the reader's.
    fn start(&self, from: usize, to: usize, len: usize, op: u32, patience: Patience) -> Result<(), Error> {
        let put = Put {
            to: self.port.peer(),
            from: (self.ready.mine.id, from),
            remote: (self.ready.theirs.remote, to),
            len,
            behind: false,
            notify: None,
            token: self.port.token(op),
        };
        self.port.post(patience, |backend| backend.put(&put))
    }

    /// Puts a slot behind the bytes of its message. After `Again` it is put once more: its flag was not.
    fn put_slot(&self, at: usize, bytes: &[u8; SLOT], flag: u64, patience: Patience) -> Result<(), Error> {
        let notify = u32::from(self.ready.met.no) << 16 | (flag as u32 & 0xffff);
        let put = |from: usize, bytes: &[u8], notify| {
            self.port.put_bytes(patience, (self.ready.theirs.remote, at + from), bytes, notify)
        };
        match self.mode() {
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
        while let Some(first) = self.unraised.0.front_mut() {
            if !self.port.have_ended(&mut first.ops)? {
                return Ok(());
            }
            let flag = first.flag;
            let at = self.ready.met.shape.slot(flag - 1);
            if self.mode() == Mode::Delivered {
                let to = (self.ready.theirs.remote, at + FLAG);
                self.port.put_bytes(patience, to, &flag.to_ne_bytes(), None)?;
            } else {
                let mut bytes = [0; SLOT];
                self.ready.mine.memory.copy_out(self.ready.met.shape.stage_at() + at, &mut bytes);
                self.put_slot(at, &bytes, flag, patience)?;
            }
            self.unraised.0.pop_front();
        }
        Ok(())
    }

    /// Waits until all that was sent has left: its flags are raised.
    pub(super) fn flush(&mut self, patience: Patience) -> Result<(), Error> {
        let mut waiting = Waiting::new(patience, false);
        loop {
            self.raise_due(patience)?;
            if self.unraised.is_empty() {
                return Ok(());
            }
            waiting.step(self.port.context())?;
            self.port.still_there()?;
        }
    }
}

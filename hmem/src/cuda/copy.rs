//! Copies with a device on one side or both.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::api::{Api, Error, Handle, MemOp, NOT_FOUND, NOT_READY, WRITE_VALUE_64, loaded};
use super::info::{Info, Sort, info};
use super::stream::{
    self, Direction, Entered, Relaxed as RelaxedCapture, Slot, StreamUse, context_for, give_back, slot,
};
use crate::error::Error as AnyError;
use crate::pending::{PIECE, Part, PendingCopy};
use crate::share::Opened;

/// Copies `len` bytes and waits until they are there. They must not overlap.
#[cold]
pub(crate) fn copy_now(dst: usize, src: usize, len: usize) -> Result<(), Error> {
    if len == 0 {
        return Ok(());
    }
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let entered = Entered::new(api, context_for(api, dst, src)?)?;
    let slot = slot(api, &entered, StreamUse::Waited)?;
    let stream = slot.stream as Handle;
    let copied = api.copy_async(dst as u64, src as u64, len, stream).and_then(|()| api.stream_wait(stream));
    give_back(api, &slot);
    copied
}

/// A copy in flight. Dropping it waits until the device has let go of the memory.
#[derive(Debug)]
pub(super) struct Pending {
    slot: Slot,
    /// What is not handed to the driver yet.
    todo: VecDeque<Part>,
    /// Between host memory that is not page-locked and a device.
    pageable: bool,
    /// All was handed to the driver at the start.
    at_once: bool,
    /// The device has let go of the memory.
    over: bool,
    /// Other processes' memory that is in use.
    _keep: Vec<Opened>,
}

/// Starts copying all parts. In `ctx`, if that is not 0; else where the memory is. `host`: one side
/// may be host memory.
///
/// # Safety
/// All parts are valid for the copy until the answer is dropped, or has been found done. `keep` is
/// what keeps them so where they are other processes' memory.
pub(super) unsafe fn start(
    parts: &[Part],
    ctx: usize,
    keep: Vec<Opened>,
    host: bool,
) -> Result<Pending, Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let first = parts.iter().find(|p| p.len > 0);
    let ctx = match (ctx, first) {
        (0, Some(p)) => context_for(api, p.dst, p.src)?,
        (0, None) => stream::any(api).unwrap_or(0),
        (ctx, _) => ctx,
    };
    let (direction, pageable) = match first {
        Some(p) if host => {
            let (dst, src) = (info(p.dst), info(p.src));
            let is_host = |side: Option<Info>| side.is_none_or(|i| i.sort == Sort::Host);
            let direction = match (is_host(src), is_host(dst)) {
                (true, _) => Direction::ToDevice,
                (false, true) => Direction::FromDevice,
                (false, false) => Direction::BetweenDevices,
            };
            (direction, dst.is_none() || src.is_none())
        }
        _ => (Direction::BetweenDevices, false),
    };
    let long = parts.iter().map(|p| p.len).sum::<usize>() > PIECE;
    // SAFETY: the caller's promise.
    unsafe { begin(api, parts, ctx, keep, StreamUse::Pending(direction, long), pageable) }
}

/// Begins a copy in `ctx` and a stream that are known.
///
/// # Safety
/// As of [`start`].
pub(super) unsafe fn begin(
    api: &Api,
    parts: &[Part],
    ctx: usize,
    keep: Vec<Opened>,
    usage: StreamUse,
    pageable: bool,
) -> Result<Pending, Error> {
    let entered = Entered::new(api, ctx)?;
    let mut pending = Pending {
        slot: slot(api, &entered, usage)?,
        todo: parts.iter().copied().filter(|p| p.len > 0).collect(),
        pageable,
        at_once: false,
        over: false,
        _keep: keep,
    };
    pending.issue(api)?;
    pending.at_once = pending.todo.is_empty();
    Ok(pending)
}

impl PendingCopy for Pending {
    fn poll(&mut self) -> Result<bool, AnyError> {
        let api = loaded().ok_or(Error(NOT_FOUND))?;
        let relaxed = RelaxedCapture::new(api);
        let queried = api.event_query(self.slot.event as Handle);
        drop(relaxed);
        match queried {
            Ok(()) if self.todo.is_empty() => {
                self.over = true;
                Ok(true)
            }
            Ok(()) => {
                let _entered = Entered::new(api, self.slot.ctx)?;
                self.issue(api)?;
                Ok(false)
            }
            Err(Error(NOT_READY)) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    fn queue(&self) -> Option<usize> {
        // What is handed over bit by bit comes behind others that were started later.
        self.at_once.then_some(self.slot.stream)
    }

    fn on_later_done(&mut self) -> bool {
        self.over = self.todo.is_empty();
        self.over
    }
}

impl Pending {
    /// Hands the next parts to the driver: all, or as much as does not take long.
    fn issue(&mut self, api: &Api) -> Result<(), Error> {
        let (stream, event) = (self.slot.stream as Handle, self.slot.event as Handle);
        while let Some(part) = self.todo.pop_front() {
            let n = if self.pageable { part.len.min(PIECE) } else { part.len };
            if n < part.len {
                self.todo.push_front(Part { dst: part.dst + n, src: part.src + n, len: part.len - n });
            }
            let copied = match !self.pageable && is_by_values(part) {
                // What takes no such operations copies.
                true => write_values(api, part, stream)
                    .or_else(|_| api.copy_async(part.dst as u64, part.src as u64, n, stream)),
                false => api.copy_async(part.dst as u64, part.src as u64, n, stream),
            };
            if copied.is_err() {
                // What is queued already still runs, and the event has to come after it.
                self.todo.clear();
                let _ = api.event_record(event, stream);
                return copied;
            }
            if self.pageable {
                break;
            }
        }
        api.event_record(event, stream)
    }
}

/// Whether short copies from host memory to a device are written by the stream itself.
static BY_VALUES: AtomicBool = AtomicBool::new(false);

/// Most bytes that are, in words of 8.
const VALUES: usize = 1024;

/// From now on they are: the driver has short copies from host memory made by the engine of kernels, where
/// they wait until the other process's kernels have had their slice of time.
pub(super) fn write_short_copies_by_values() {
    BY_VALUES.store(true, Relaxed);
}

fn is_by_values(part: Part) -> bool {
    let fits = part.len <= VALUES && part.len % 8 == 0 && part.dst % 8 == 0;
    let is_host = |at| info(at).is_some_and(|i| i.sort == Sort::Host);
    fits && BY_VALUES.load(Relaxed) && is_host(part.src) && !is_host(part.dst)
}

/// Has the stream write the words that are in host memory now.
fn write_values(api: &Api, part: Part, stream: Handle) -> Result<(), Error> {
    let ops = |n: usize| -> MemOp {
        // SAFETY: `start`'s promise: host memory, valid for reads of `len` bytes, of which 8 begin here.
        let value = unsafe { std::ptr::with_exposed_provenance::<u64>(part.src + n).read_unaligned() };
        [WRITE_VALUE_64, (part.dst + n) as u64, value, 0, 0, 0]
    };
    let ops: Vec<MemOp> = (0..part.len).step_by(8).map(ops).collect();
    api.mem_ops(stream, ops.len() as u32, ops.as_ptr(), 0)
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(api) = loaded() else { return };
        // Not for nothing: to ask for an event that is known to be over takes a microsecond too.
        if !self.over {
            let _relaxed = RelaxedCapture::new(api);
            let _ = api.event_wait(self.slot.event as Handle);
        }
        give_back(api, &self.slot);
    }
}

//! Copies from a device to host memory that is not page-locked, by way of buffers that are.
//!
//! The driver makes such a copy by buffers of its own, and returns when it is over. A long one has to be
//! handed to it piece by piece, so that others get their turn, and between two pieces the device does
//! nothing. Here the device fills some buffers while the processor empties another one, with each poll at
//! most one of them.

use std::collections::VecDeque;
use std::sync::LazyLock;

use super::api::{Api, Error, NOT_FOUND, loaded};
use super::copy::{Pending, begin, start};
use super::info::info;
use super::stream::{Direction, StreamUse, context_for};
use crate::bytes::{copy_bytes, stream_bytes};
use crate::error::Error as AnyError;
use crate::locked::{Buffer, NoBuffer, Pool};
use crate::memory::Memory;
use crate::pending::{PIECE, Part, PendingCopy};
use crate::share::Opened;

/// Fewest bytes that a copy is cut into: to start one and to find it over takes as long as the processor
/// needs for 64 KiB.
const LEAST: usize = 256 << 10;
/// Bytes from which on a copy goes past the caches: more than a processor has to itself.
const MUCH: usize = 4 << 20;
/// The buffers of all copies, which have room for a piece each.
static BUFFERS: LazyLock<Pool> = LazyLock::new(|| Pool::new(8, PIECE));
/// Most buffers of one copy.
const EACH: usize = 3;
/// Polls without a buffer after which the driver copies a piece: the copies that have the buffers may not be
/// polled.
const PATIENCE: u32 = 10_000;

/// A copy that is cut. Dropping it waits until the device has let go of the memory.
#[derive(Debug)]
struct ToHost {
    /// CUDA, which page-locks the buffers.
    runtime: &'static dyn Memory,
    ctx: usize,
    usage: StreamUse,
    /// What is not handed to the driver yet.
    todo: VecDeque<Part>,
    /// So much that it is written past the caches.
    is_much: bool,
    /// Bytes that are handed to it at a time.
    piece: usize,
    /// What is, in order.
    loads: VecDeque<Load>,
    /// The queue, if all was handed over at the start.
    queue: Option<usize>,
    /// All that was handed over is in the buffers.
    all_buffered: bool,
    /// Polls since there was a buffer.
    vain: u32,
    /// Other processes' memory that is in use, by the loads.
    _keep: Vec<Opened>,
}

/// What is on its way to a buffer, or, where there was none, to where it belongs.
#[derive(Debug)]
struct Load {
    /// Goes first.
    pending: Pending,
    /// Where the bytes of the buffer belong, one part behind the other.
    buffer: Option<(Buffer, Vec<Part>)>,
}

/// Starts copying all parts, in `ctx`, if that is not 0; else where the memory is.
///
/// # Safety
/// As of [`start`]. Where the parts go to is host memory, which the processor may write as long as the copy
/// is not over.
pub(super) unsafe fn start_to_host(
    parts: &[Part],
    ctx: usize,
    keep: Vec<Opened>,
    runtime: &'static dyn Memory,
) -> Result<Box<dyn PendingCopy>, Error> {
    let api = loaded().ok_or(Error(NOT_FOUND))?;
    let first = parts.iter().find(|p| p.len > 0);
    let Some(first) = first.filter(|p| info(p.dst).is_none()) else {
        // SAFETY: the caller's promise.
        return Ok(Box::new(unsafe { start(parts, ctx, keep, true)? }));
    };
    let ctx = if ctx == 0 { context_for(api, first.dst, first.src)? } else { ctx };
    let len = parts.iter().map(|p| p.len).sum::<usize>();
    let mut copy = ToHost {
        runtime,
        ctx,
        usage: StreamUse::Pending(Direction::FromDevice, len > PIECE),
        todo: parts.iter().copied().filter(|p| p.len > 0).collect(),
        is_much: len >= MUCH,
        piece: (len / 4).clamp(LEAST, PIECE),
        loads: VecDeque::new(),
        queue: None,
        all_buffered: false,
        vain: 0,
        _keep: keep,
    };
    copy.load(api)?;
    copy.queue = copy.loads.front().filter(|_| copy.todo.is_empty()).and_then(|l| l.pending.queue());
    Ok(Box::new(copy))
}

impl ToHost {
    /// Has the device fill the buffers that are to be had.
    fn load(&mut self, api: &Api) -> Result<(), Error> {
        while self.loads.len() < EACH && !self.todo.is_empty() {
            let buffer = match BUFFERS.take_locked(self.runtime) {
                Ok(buffer) => buffer,
                Err(NoBuffer::Taken) => return Ok(()),
                Err(NoBuffer::Refused) => {
                    self.vain = PATIENCE;
                    return Ok(());
                }
            };
            self.vain = 0;
            let to = self.next(self.piece);
            let mut filled = buffer.at().expose_provenance();
            let parts = to.iter().map(|p| {
                let dst = filled;
                filled += p.len;
                Part { dst, ..*p }
            });
            self.hand_over(api, &parts.collect::<Vec<_>>(), Some((buffer, to)))?;
        }
        Ok(())
    }

    /// Up to so many bytes of what is to be done.
    fn next(&mut self, most: usize) -> Vec<Part> {
        let (mut out, mut room) = (Vec::new(), most);
        while room > 0 {
            let Some(part) = self.todo.pop_front() else { break };
            let len = part.len.min(room);
            out.push(Part { len, ..part });
            room -= len;
            if len < part.len {
                self.todo.push_front(Part { dst: part.dst + len, src: part.src + len, len: part.len - len });
            }
        }
        out
    }

    fn hand_over(
        &mut self,
        api: &Api,
        parts: &[Part],
        buffer: Option<(Buffer, Vec<Part>)>,
    ) -> Result<(), Error> {
        let pageable = buffer.is_none();
        // SAFETY: by `start_to_host`'s promise, whose memory `_keep` keeps behind the loads; a buffer is in
        // the load, behind the copy.
        let pending = unsafe { begin(api, parts, self.ctx, Vec::new(), self.usage, pageable)? };
        self.loads.push_back(Load { pending, buffer });
        Ok(())
    }
}

impl PendingCopy for ToHost {
    fn poll(&mut self) -> Result<bool, AnyError> {
        let api = loaded().ok_or(Error(NOT_FOUND))?;
        if let Some(first) = self.loads.front_mut() {
            if !self.all_buffered && !first.pending.poll()? {
                return Ok(false);
            }
            if let Some(Load { buffer: Some((buffer, to)), .. }) = self.loads.pop_front() {
                empty(&buffer, &to, self.is_much);
            }
        }
        self.load(api)?;
        if self.loads.is_empty() && !self.todo.is_empty() {
            self.vain = self.vain.saturating_add(1);
            if self.vain > PATIENCE {
                let parts = self.next(PIECE);
                self.hand_over(api, &parts, None)?;
            }
        }
        Ok(self.loads.is_empty() && self.todo.is_empty())
    }

    fn queue(&self) -> Option<usize> {
        self.queue
    }

    fn on_later_done(&mut self) -> bool {
        // The bytes have still to be taken out of the buffers.
        self.all_buffered = true;
        self.loads.iter_mut().for_each(|l| {
            l.pending.on_later_done();
        });
        false
    }
}

/// Copies what is in the buffer, in which no device writes any more, to where it belongs.
fn empty(buffer: &Buffer, to: &[Part], is_much: bool) {
    let copy = if is_much { stream_bytes } else { copy_bytes };
    let mut from = buffer.at().expose_provenance();
    for part in to {
        let src = std::ptr::with_exposed_provenance(from);
        // SAFETY: the parts are no longer than the buffer, and by `start_to_host`'s promise the processor may
        // write so many bytes there.
        unsafe { copy(src, std::ptr::with_exposed_provenance_mut(part.dst), part.len) };
        from += part.len;
    }
}

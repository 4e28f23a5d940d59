//! Starting a copy: by the device whose memory it is, or by the CPU.

use std::collections::VecDeque;

use super::{PIECE, Part, PendingCopy};
use crate::copy::copy;
use crate::error::Error;
use crate::kind::{Caps, Kind};
use crate::registry;
use crate::share::Opened;
use crate::span::Span;

/// Starts to copy all parts: each has memory of `local`'s kind on one side, and on the other memory of
/// `keep`'s (`into`: that is where to).
///
/// # Safety
/// All parts are valid for the copy until the answer is dropped, or has been found done. `keep` is
/// what keeps them so where they are other processes' memory.
pub unsafe fn start(
    parts: &[Part],
    keep: Vec<Opened>,
    locals: &[Span],
    into: bool,
) -> Result<Box<dyn PendingCopy>, Error> {
    let of = keep.first().map_or(Kind::System, Opened::kind);
    if keep.iter().any(|k| k.kind() != of) {
        return Err(Error::UNSUPPORTED);
    }
    if of == Kind::System {
        let local = |part: &Part| {
            let at = if into { part.src } else { part.dst };
            let inside = |s: &&Span| (at as u64).wrapping_sub(s.addr()) < s.len() as u64;
            locals.iter().find(inside).copied().unwrap_or(Span::EMPTY)
        };
        let todo = parts.iter().filter(|p| p.len > 0).map(|p| (*p, local(p))).collect();
        return Ok(Box::new(ByCpu { todo, into, keep }));
    }
    let host = locals.iter().any(|s| s.can(Caps::CPU));
    if locals.iter().any(|s| !s.can(Caps::CPU) && s.kind() != of) {
        return Err(Error::UNSUPPORTED);
    }
    let memory = registry::of(of);
    if host && !into && locals.iter().all(|s| s.is_plain()) {
        // SAFETY: the caller's promise; what is plain the processor may write.
        return unsafe { memory.start_to_host(parts, keep) };
    }
    // SAFETY: the caller's promise.
    unsafe { memory.start(parts, keep, host) }
}

/// A copy from or to memory that is mapped here: a piece with each poll.
#[derive(Debug)]
struct ByCpu {
    /// Each with a span of such memory as the local side is.
    todo: VecDeque<(Part, Span)>,
    into: bool,
    keep: Vec<Opened>,
}

impl PendingCopy for ByCpu {
    fn poll(&mut self) -> Result<bool, Error> {
        let Some((part, local)) = self.todo.pop_front() else { return Ok(true) };
        let n = part.len.min(PIECE);
        let (to, from) = if self.into { (Span::EMPTY, local) } else { (local, Span::EMPTY) };
        let _access = self.keep.iter().map(|k| k.cpu_access(self.into)).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: by the promise of `start`.
        let (dst, src) = unsafe { (to.like(part.dst, n), from.like(part.src, n)) };
        if copy(&[dst], 0, &[src], 0, n) != n {
            return Err(Error::os(libc::EIO));
        }
        if n < part.len {
            let rest = Part { dst: part.dst + n, src: part.src + n, len: part.len - n };
            self.todo.push_front((rest, local));
        }
        Ok(self.todo.is_empty())
    }
}

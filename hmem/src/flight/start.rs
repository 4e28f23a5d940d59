//! Starting a copy: by the device whose memory it is, or by the CPU.

use std::collections::VecDeque;

use super::{Flight, PIECE, Part};
use crate::copy::copy;
use crate::error::Error;
use crate::kind::Kind;
use crate::registry;
use crate::share::Opened;
use crate::span::Span;

/// Starts to copy all parts: each has memory of `local`'s kind on one side, and on the other memory of
/// `keep`'s (`into`: that is where to). `host`: some of the local memory may be the host's.
///
/// # Safety
/// All parts are valid for the copy until the answer is dropped, or has been found done. `keep` is
/// what keeps them so where they are other processes' memory.
pub unsafe fn start(
    parts: &[Part],
    keep: Vec<Opened>,
    locals: &[Span],
    into: bool,
) -> Result<Box<dyn Flight>, Error> {
    let of = keep.first().map_or(Kind::System, Opened::kind);
    if keep.iter().any(|k| k.kind() != of) {
        return Err(Error::UNSUPPORTED);
    }
    if of.is_system() {
        let local = |part: &Part| {
            let at = if into { part.src } else { part.dst };
            let inside = |s: &&Span| (at as u64).wrapping_sub(s.addr()) < s.len() as u64;
            locals.iter().find(inside).map_or((Kind::System, false), |s| (s.kind(), s.may_vanish()))
        };
        let todo = parts.iter().filter(|p| p.len > 0).map(|p| (*p, local(p))).collect();
        return Ok(Box::new(ByCpu { todo, into, keep }));
    }
    let host = locals.iter().any(|s| s.kind().is_system());
    if locals.iter().any(|s| !s.kind().is_system() && s.kind() != of) {
        return Err(Error::UNSUPPORTED);
    }
    // SAFETY: the caller's promise.
    unsafe { registry::of(of).start(parts, keep, host) }
}

/// A copy from or to memory that is mapped here: a piece whenever somebody asks.
#[derive(Debug)]
struct ByCpu {
    /// Each with the kind of the local memory, and whether that may vanish.
    todo: VecDeque<(Part, (Kind, bool))>,
    into: bool,
    keep: Vec<Opened>,
}

impl Flight for ByCpu {
    fn poll(&mut self) -> Result<bool, Error> {
        let Some((part, (kind, vanishes))) = self.todo.pop_front() else { return Ok(true) };
        let n = part.len.min(PIECE);
        let (dst, src) = if self.into { (Kind::System, kind) } else { (kind, Kind::System) };
        let _access = self.keep.iter().map(|k| k.cpu_access(self.into)).collect::<Result<Vec<_>, _>>()?;
        // SAFETY: by the promise of `start`.
        let (mut dst, mut src) = unsafe { (Span::new(part.dst, n, dst), Span::new(part.src, n, src)) };
        if vanishes {
            let local = if self.into { &mut src } else { &mut dst };
            *local = local.for_peers();
        }
        if copy(&[dst], 0, &[src], 0, n) != n {
            return Err(Error::os(libc::EIO));
        }
        if n < part.len {
            let rest = Part { dst: part.dst + n, src: part.src + n, len: part.len - n };
            self.todo.push_front((rest, (kind, vanishes)));
        }
        Ok(self.todo.is_empty())
    }
}

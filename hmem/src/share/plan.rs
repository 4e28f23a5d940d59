//! How a copy between other processes' memory and this one's is made up.

use super::handle::Export;
use super::open::open;
use super::opened::Opened;
use super::owner::Owner;
use crate::error::Error;
use crate::pending::{self, Part, PendingCopy};
use crate::span::Span;

/// Why there is no copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPlan {
    /// Some of the memory is not there.
    Fault,
    /// Some of it cannot be opened.
    Open(Error),
}

/// A copy that has not begun, with all that it needs open.
#[derive(Debug)]
pub struct Plan<'l> {
    parts: Vec<Part>,
    keep: Vec<Opened>,
    local: &'l [Span],
    put: bool,
}

impl Plan<'_> {
    /// Begins with it.
    pub fn start(self) -> Result<Box<dyn PendingCopy>, Error> {
        let Plan { parts, keep, local, put } = self;
        // SAFETY: local parts are of spans, valid until the last operation that was given them has completed,
        // which is when the copy is over or cancelled; remote ones are in mappings that are kept.
        unsafe { pending::start(&parts, keep, local, put) }
    }
}

/// A copy of `len` bytes between the fronts of `remote` (addresses and lengths; `find` knows the
/// allocation that an address is in) and `local`. `put`: to `remote`.
pub fn plan<'a, 'l>(
    put: bool,
    owner: Owner,
    find: impl Fn(u64) -> Option<&'a Export>,
    remote: impl IntoIterator<Item = (u64, u64)>,
    local: &'l [Span],
    len: usize,
) -> Result<Plan<'l>, NoPlan> {
    let (mut parts, mut keep) = (Vec::new(), Vec::<Opened>::new());
    let mut here = local.iter().filter(|s| !s.is_empty());
    let (mut at, mut room) = (0, 0);
    let mut left = len;
    for (mut addr, mut n) in remote {
        while n > 0 && left > 0 {
            if room == 0 {
                let next = here.next().ok_or(NoPlan::Fault)?;
                (at, room) = (next.addr() as usize, next.len());
            }
            let export = find(addr).ok_or(NoPlan::Fault)?;
            // If not for where the local memory is, then for where the other is, or for any device.
            let opened = open(owner.pid, owner.id, export, at)
                .or_else(|why| open(owner.pid, owner.id, export, 0).map_err(|_| why))
                .map_err(NoPlan::Open)?;
            let (there, follow) = opened.place(addr).ok_or(NoPlan::Fault)?;
            let step = left.min(room).min(follow).min(usize::try_from(n).unwrap_or(usize::MAX));
            let (dst, src) = if put { (there, at) } else { (at, there) };
            parts.push(Part { dst, src, len: step });
            keep.push(opened);
            (at, room, left) = (at + step, room - step, left - step);
            addr += step as u64;
            n -= step as u64;
        }
    }
    if left > 0 { Err(NoPlan::Fault) } else { Ok(Plan { parts, keep, local, put }) }
}

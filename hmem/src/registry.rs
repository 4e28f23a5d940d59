//! The registry: all kinds of memory there are, and which of them an address is of.

use crate::error::Error;
use crate::kind::Kind;
use crate::span::Span;
use crate::system::System;
use crate::{client, cuda, fake, presence, rocr, ze};

pub use crate::memory::{AdapterWrites, Allocate, Copies, Exportable, Handles, Memory, Pages};

/// All but the host's, in the order in which they are asked whose an address is. What a program has
/// registered itself comes first.
static ALL: [&dyn Memory; 5] = [&fake::Fake, &client::Clients, &cuda::Cuda, &rocr::Rocr, &ze::Ze];

/// The kind's entry.
pub fn of(kind: Kind) -> &'static dyn Memory {
    ALL.into_iter().find(|m| m.kind() == kind).unwrap_or(&System)
}

/// The kinds that applications can use, for texts to users.
pub fn kinds() -> impl Iterator<Item = &'static dyn Memory> {
    let system: &dyn Memory = &System;
    [system].into_iter().chain(ALL.into_iter().filter(|m| m.kind() != Kind::Fake))
}

/// Finds the runtimes that are loaded, if the dynamic linker has loaded anything since the last call. For
/// calls that set something up: it takes as long as dl_iterate_phdr(3) for one object.
pub fn find_runtimes() {
    presence::find_all(&ALL);
}

/// Whether this process has memory of that kind, or could have by now. Looks as [`look`] does.
pub fn is_here(kind: Kind) -> bool {
    presence::find_all(&ALL);
    kind == Kind::System || presence::is_here(kind)
}

/// Whether this process has device memory of any kind, or could have by now; after [`find_runtimes`].
pub fn any_device() -> bool {
    presence::find_all(&ALL);
    ALL.iter().any(|m| m.kind() != Kind::Fake && presence::is_here(m.kind()))
}

/// Page-locks host memory for every runtime that is here, until what is returned is dropped. A runtime that
/// refuses is left out.
///
/// # Safety
/// The memory is mapped for longer than that.
pub unsafe fn lock_for_devices(at: usize, len: usize) -> Vec<Pages> {
    let kinds = [Kind::Cuda, Kind::Rocr, Kind::Ze].into_iter().filter(|k| is_here(*k));
    // SAFETY: the caller's promise.
    kinds.filter_map(|k| unsafe { of(k).lock_host(at, len) }).collect()
}

/// What memory `addr..addr+len` is, to be asked where an application names a buffer. Costs next to
/// nothing as long as the process has no device memory (see `presence`).
#[inline]
pub fn classify(addr: usize, len: usize) -> Kind {
    match presence::may_own(addr, &ALL) {
        0 => Kind::System,
        some => ask(some, addr, len),
    }
}

/// Whether `addr` is on the heap, on the main thread's stack or in the program's data, where no device memory
/// can be. A few comparisons.
#[inline]
pub fn is_never_a_device(addr: usize) -> bool {
    presence::is_never_a_device(addr)
}

/// Whether this process could have device memory by now, as far as is known without a call of a driver.
#[inline]
pub fn may_have_a_device() -> bool {
    presence::may_have(&ALL) != 0
}

/// The same as [`classify`] for memory that is registered: see [`Memory::acquire_to_register`].
pub fn classify_to_register(addr: usize, len: usize) -> Kind {
    let some = presence::may_own(addr, &ALL);
    let may = |m: &&&dyn Memory| some & presence::bit(m.kind()) != 0 && m.acquire_to_register(addr, len);
    ALL.iter().find(may).map_or(Kind::System, |m| m.kind())
}

#[inline(never)]
fn ask(some: u32, addr: usize, len: usize) -> Kind {
    let may = |m: &&&dyn Memory| some & presence::bit(m.kind()) != 0 && m.acquire(addr, len);
    ALL.iter().find(may).map_or(Kind::System, |m| m.kind())
}

/// A process is gone: nothing is kept of it.
pub(crate) fn forget(owner: u64) {
    for memory in ALL {
        memory.forget(owner);
    }
}

/// Registers memory: what is returned keeps it usable.
pub fn get_pages(span: Span, write: bool) -> Result<Option<Pages>, Error> {
    if span.kind() == Kind::System {
        return Ok(None);
    }
    of(span.kind()).get_pages(span.addr() as usize, span.len(), write).map(Some)
}

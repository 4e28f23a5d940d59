//! Access to memory that may not be there.
//!
//! What a program has registered for its peers it may have unmapped by the time one of them comes to it, and
//! (NULL, SIZE_MAX) was never all there. A peer's access must then be an error to that peer, not the end of
//! this process. So such memory is touched by a few instructions only ([`routine`]), and a handler of SIGSEGV
//! and SIGBUS ([`handler`]) has a fault at one of them go on where the routine returns an error: that costs
//! nothing as long as there is no fault.
//!
//! Where there is no such handler the kernel copies, process_vm_readv(2) on this process, which finds out
//! too; and where that is not allowed either, a fault is a fault.
//!
//! The handler cannot help a thread that blocks SIGSEGV or SIGBUS: the kernel ends the process then.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
mod entry;
mod fault;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
mod handler;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
mod install;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
mod routine;
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", miri))]
#[path = "plain.rs"]
mod routine;

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
pub(crate) use fault::Cell;
pub use fault::Fault;
use fault::by_call;

/// How such memory is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Guard {
    /// A signal handler turns faults into errors.
    Handler = 1,
    /// The kernel copies.
    Call = 2,
    /// Not guarded: a fault ends the process.
    None = 3,
}

/// The [`Guard`] there is in the lowest bits: 0 before the first query, [`UNASKED`] where there was a handler
/// and memory has been registered since. Above, how often memory was: what is asked meanwhile is not taken
/// for an answer.
static GUARD: AtomicU32 = AtomicU32::new(0);
const STATE: u32 = 7;
const UNASKED: u32 = 4;
const ONCE: u32 = 8;

/// The one that a caller knows of.
static SAID: AtomicU32 = AtomicU32::new(0);

impl Guard {
    fn of(word: u32) -> Option<Guard> {
        [Guard::Handler, Guard::Call, Guard::None].into_iter().find(|guard| *guard as u32 == word & STATE)
    }

    /// Itself, if no caller knows of it.
    fn say(self) -> Option<Guard> {
        (SAID.swap(self as u32, Relaxed) != self as u32).then_some(self)
    }
}

/// Sees to it that there is a guard, by a signal handler if `handlers` and that is possible. Says how memory
/// is accessed from now on if that has changed.
pub fn hold(handlers: bool) -> Option<Guard> {
    ask(handlers).say()
}

/// The same for memory that is registered for peers. Another library may set handlers of its own at any time,
/// so it is to be called each time. To look whether ours is still there takes two system calls, and is left
/// to the first access that comes after.
pub fn hold_registered(handlers: bool) -> Option<Guard> {
    let mark = |word: u32| match word & STATE {
        UNASKED => Some(word.wrapping_add(ONCE)),
        _ if Guard::of(word) == Some(Guard::Handler) => Some((word & !STATE).wrapping_add(ONCE) | UNASKED),
        _ => None,
    };
    if handlers && GUARD.fetch_update(Relaxed, Relaxed, mark).is_ok() {
        return None;
    }
    hold(handlers)
}

fn ask(handlers: bool) -> Guard {
    loop {
        let before = GUARD.load(Relaxed);
        if let Some(last @ (Guard::Call | Guard::None)) = Guard::of(before) {
            return last;
        }
        let now = match handlers && has_handler() {
            true => Guard::Handler,
            false if calls() => Guard::Call,
            false => Guard::None,
        };
        let after = before & !STATE | now as u32;
        if GUARD.compare_exchange(before, after, Relaxed, Relaxed).is_ok() {
            return now;
        }
    }
}

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", not(miri)))]
fn has_handler() -> bool {
    install::hold().is_ok()
}

/// Nothing to be set: see `plain.rs`.
#[cfg(all(target_arch = "x86_64", target_pointer_width = "64", miri))]
fn has_handler() -> bool {
    true
}

#[cfg(not(all(target_arch = "x86_64", target_pointer_width = "64")))]
fn has_handler() -> bool {
    false
}

/// Whether the kernel copies within this process.
fn calls() -> bool {
    let (from, mut to) = (7u8, 0u8);
    by_call(&raw mut to, &raw const from, 1).is_ok() && to == 7
}

#[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
#[inline]
pub(crate) fn is_by_handler() -> bool {
    GUARD.load(Relaxed) & STATE == Guard::Handler as u32
}

/// The guard there is, from now on at the latest.
#[cold]
pub(crate) fn current() -> Guard {
    match Guard::of(GUARD.load(Relaxed)) {
        Some(guard) => guard,
        None => ask(true),
    }
}

/// Copies `len` bytes, which may overlap; some of them may have been copied before a fault.
///
/// # Safety
/// What is mapped of `to..to+len` must be memory that the caller may write, of `from..from+len` such as it
/// may read; the rest may be anything.
#[inline]
pub unsafe fn copy(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    #[cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]
    if is_by_handler() {
        // SAFETY: the caller's promise; what is not mapped is a fault, which the handler turns into the
        // answer.
        return match unsafe { routine::copy(to, from, len) } {
            0 => Ok(()),
            _ => Err(Fault),
        };
    }
    // SAFETY: the caller's promise.
    unsafe { copy_otherwise(to, from, len) }
}

/// # Safety
/// As for [`copy`].
#[cold]
unsafe fn copy_otherwise(to: *mut u8, from: *const u8, len: usize) -> Result<(), Fault> {
    match current() {
        // SAFETY: the caller's promise.
        Guard::Handler => unsafe { copy(to, from, len) },
        Guard::Call => by_call(to, from, len),
        Guard::None => {
            // SAFETY: the caller's promise. Nothing better is to be had here, which was said.
            unsafe { std::ptr::copy(from, to, len) };
            Ok(())
        }
    }
}

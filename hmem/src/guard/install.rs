//! Setting the handler of SIGSEGV and SIGBUS.
//!
//! It is set by the system call, not by sigaction(3): UCX, sanitizers and the JVM's libjsig have functions of
//! that name which do something else for these two signals.

use std::ptr;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, PoisonError};

use super::entry;
use super::fault::by_call;
use super::handler::{Action, FIRST, SA_NODEFER, SECOND, SIGNALS, action};

const SA_RESTORER: u64 = 0x0400_0000;
/// What the handler before chose and this one keeps.
const KEPT: u64 = (libc::SA_ONSTACK | libc::SA_RESTART) as u64;

/// Why there is no handler of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum No {
    /// The kernel does not allow it.
    Forbidden(i32),
    /// Another one has taken our place twice.
    Replaced,
}

/// Sees to it that a fault of ours comes to our handler: to be asked after every registration, since another
/// library's handler may have taken its place. That one has its turn before those that ours came after, once;
/// a second time is refused, since it could go on for ever.
pub(super) fn hold() -> Result<(), No> {
    static LOCK: Mutex<()> = Mutex::new(());
    let _lock = LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    for (i, signal) in SIGNALS.into_iter().enumerate() {
        let now = action(signal, None).map_err(No::Forbidden)?;
        if now.handler == entry::addresses().0 {
            continue;
        }
        let before = match (FIRST[i].load(Acquire).is_null(), SECOND[i].load(Acquire).is_null()) {
            (true, _) => &FIRST[i],
            // Another copy of this code was installed later, and passes on to this one.
            (false, _) if is_like_us(now.handler) => continue,
            (false, true) => &SECOND[i],
            (false, false) => return Err(No::Replaced),
        };
        // It may be called at once.
        before.store(Box::into_raw(Box::new(now)), Release);
        let (handler, restorer) = entry::addresses();
        let is_default = now.handler == libc::SIG_DFL || now.handler == libc::SIG_IGN;
        let kept = if is_default { libc::SA_ONSTACK as u64 } else { now.flags & KEPT };
        let flags = libc::SA_SIGINFO as u64 | SA_NODEFER | SA_RESTORER | kept;
        let replaced =
            action(signal, Some(&Action { handler, flags, restorer, mask: 0 })).map_err(No::Forbidden)?;
        if replaced.handler != now.handler {
            // Set by another thread in between.
            before.store(Box::into_raw(Box::new(replaced)), Release);
        }
    }
    Ok(())
}

/// Whether a handler is that of another library with this code in it.
fn is_like_us(handler: usize) -> bool {
    let mut found = [0u8; 16];
    let at = handler.wrapping_sub(found.len());
    by_call(found.as_mut_ptr(), ptr::without_provenance(at), found.len()).is_ok()
        && found == *entry::SIGNATURE
}

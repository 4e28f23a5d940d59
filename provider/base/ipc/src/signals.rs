//! Threads of a library in a program that has handlers of signals.

/// A thread that `begin` makes takes none of the program's signals, but those of its own faults: `hmem`'s
/// handler needs them.
pub fn without_signals<R>(begin: impl FnOnce() -> R) -> R {
    // SAFETY: zeros are a value of a `sigset_t`, which sigfillset(3) fills in and pthread_sigmask(3) reads
    // and writes.
    let before: libc::sigset_t = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP] {
            libc::sigdelset(&raw mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let made = begin();
    // SAFETY: the set from before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    made
}

//! Whether this process is a forked child of one that is in a job: what it would do to pipes it would do to
//! its parent's.

use std::sync::Once;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::Error;

static CHILD: AtomicBool = AtomicBool::new(false);

/// From now on children know that they are some.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a function of this library, which libc forgets when it is unloaded.
        unsafe { libc::pthread_atfork(None, None, Some(child)) };
    });
}

/// One store, which a child of a process with threads may do, too.
extern "C" fn child() {
    CHILD.store(true, Relaxed);
}

/// Whether this is one.
#[inline]
pub(crate) fn is_child() -> bool {
    CHILD.load(Relaxed)
}

/// What a call of one gets.
#[cold]
pub(crate) fn error() -> Error {
    Error::Invalid("this process was forked from one of the job: pipes are its parent's alone".into())
}

/// An error if this is one.
pub(crate) fn check() -> Result<(), Error> {
    if is_child() { Err(error()) } else { Ok(()) }
}

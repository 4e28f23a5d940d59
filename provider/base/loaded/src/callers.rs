//! The callers on a thread's stack.

use core::ffi::{c_int, c_void};
use core::ptr::null;

use crate::base;

/// Most frames looked at.
const DEPTH: usize = 64;

struct Trace {
    addresses: [*const c_void; DEPTH],
    used: usize,
}

/// The code addresses on this thread's stack outside the object that holds this code, innermost first.
///
/// Stable Rust has no way to ask for a function's return address; the unwinder that std uses for
/// panics knows it.
pub fn callers() -> impl Iterator<Item = *const c_void> {
    const CONTINUE: c_int = 0;
    const STOP: c_int = 4;

    unsafe extern "C" {
        // libgcc_s (or its stand-in), which std links already.
        fn _Unwind_Backtrace(
            each: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
            data: *mut c_void,
        ) -> c_int;
        fn _Unwind_GetIP(context: *mut c_void) -> usize;
    }

    unsafe extern "C" fn each(context: *mut c_void, data: *mut c_void) -> c_int {
        // SAFETY: the unwinder passes its own context and the pointer to our Trace, which nothing
        // else uses meanwhile.
        let (trace, address) = unsafe { (&mut *data.cast::<Trace>(), _Unwind_GetIP(context)) };
        if trace.used == DEPTH || address == 0 {
            return STOP;
        }
        // A return address may be one past the end of its function.
        trace.addresses[trace.used] = (address - 1) as *const c_void;
        trace.used += 1;
        CONTINUE
    }

    let mut trace = Trace { addresses: [null(); DEPTH], used: 0 };
    // SAFETY: `each` does not unwind and is of the unwinder's callback type; `trace` outlives the
    // call.
    unsafe { _Unwind_Backtrace(each, (&raw mut trace).cast()) };

    let own = base(callers_here as *const c_void);
    let used = trace.used;
    trace.addresses.into_iter().take(used).filter(move |&address| base(address) != own)
}

/// Is in the object that holds this code.
fn callers_here() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_callers_of_other_objects_are_named() {
        let own = base(callers_here as *const c_void);
        assert!(callers().all(|address| base(address) != own));
        // Called by the C library, this is below it on the stack.
        static FOUND: std::sync::OnceLock<Option<usize>> = std::sync::OnceLock::new();
        unsafe extern "C" fn compare(_: *const c_void, _: *const c_void) -> c_int {
            FOUND.get_or_init(|| callers().next().and_then(base));
            0
        }
        let mut two = [1u8, 2];
        // SAFETY: two elements of a byte, and a function that compares such.
        unsafe { libc::qsort(two.as_mut_ptr().cast(), 2, 1, Some(compare)) };
        let (found, sorter) = (*FOUND.get().unwrap(), base(libc::qsort as *const c_void));
        assert!(found != own && (sorter == own || found == sorter));
    }
}

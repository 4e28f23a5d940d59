//! The handler of SIGSEGV and SIGBUS: a fault of [`super::routine`]'s goes on there, everything else is
//! passed on to the handler that was there before, as the kernel would have called it.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{
    AtomicPtr,
    Ordering::{Acquire, Release},
};

use super::routine;

/// The kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Action {
    pub(super) handler: usize,
    pub(super) flags: u64,
    pub(super) restorer: usize,
    pub(super) mask: u64,
}

pub(super) const SA_NODEFER: u64 = libc::SA_NODEFER as u64;
const SA_RESETHAND: u64 = libc::SA_RESETHAND as u64;
/// SIGBUS: a page was found broken which this thread did not touch.
const BUS_MCEERR_AO: c_int = 5;

static DEFAULT: Action = Action { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };

pub(super) const SIGNALS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Those before this one, by signal: when it was first installed, and when another one had taken its place.
/// Both are null or live for ever.
pub(super) static FIRST: [AtomicPtr<Action>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];
pub(super) static SECOND: [AtomicPtr<Action>; 2] = [const { AtomicPtr::new(ptr::null_mut()) }; 2];

/// Reads, and with `new` sets, what is done on a signal; or the errno.
pub(super) fn action(signal: c_int, new: Option<&Action>) -> Result<Action, i32> {
    let mut old = DEFAULT;
    let new = new.map_or(ptr::null(), ptr::from_ref);
    // SAFETY: both are of the kernel's layout or null; a new handler is ours, or was there before.
    let ret = unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, &raw mut old, 8usize) };
    match ret {
        0 => Ok(old),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::ENOSYS)),
    }
}

/// What the handler does. `above` is the place above its return address: there the kernel puts the context,
/// and no other handler does that calls this one.
///
/// # Safety
/// To be called for one of [`SIGNALS`], with the arguments that the kernel passes to a handler with
/// SA_SIGINFO.
pub(super) unsafe extern "C" fn on_fault(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
    above: usize,
) {
    // SAFETY: the caller's promise.
    let code = unsafe { (*info).si_code };
    // Otherwise it was sent, and where the thread was has nothing to do with it.
    let is_fault = code > 0 && !(signal == libc::SIGBUS && code == BUS_MCEERR_AO);
    if is_fault {
        // SAFETY: the caller's promise.
        let at =
            unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs[libc::REG_RIP as usize] };
        if routine::instructions().contains(&(*at as usize)) {
            *at = routine::fix_up() as i64;
            return;
        }
    }
    // SAFETY: the caller's promise.
    unsafe { pass_on(signal, info, context, is_fault, above == context as usize) }
}

/// Does what would have been done without this handler.
///
/// # Safety
/// As for [`on_fault`].
#[cold]
unsafe fn pass_on(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
    is_fault: bool,
    by_kernel: bool,
) {
    let i = usize::from(signal == libc::SIGBUS);
    let (first, second) = (FIRST[i].load(Acquire), SECOND[i].load(Acquire));
    // One that was installed later passes on what it does not want: then it is the turn of those before.
    let (place, before) =
        if by_kernel && !second.is_null() { (&SECOND[i], second) } else { (&FIRST[i], first) };
    // SAFETY: null, or it lives for ever.
    let before = unsafe { before.as_ref() }.copied().unwrap_or(DEFAULT);
    match before.handler {
        // The kernel ignores what was sent, but no fault.
        libc::SIG_IGN if !is_fault => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            let _ = action(signal, Some(&DEFAULT));
            if !is_fault {
                // SAFETY: a signal to this thread.
                unsafe {
                    libc::syscall(libc::SYS_tgkill, libc::getpid(), libc::syscall(libc::SYS_gettid), signal)
                };
            }
            // A fault comes again on return, and ends the process where it happened.
        }
        handler => {
            if before.flags & SA_RESETHAND != 0 {
                place.store((&raw const DEFAULT).cast_mut(), Release);
            }
            let own = if before.flags & SA_NODEFER == 0 { 1u64 << (signal - 1) } else { 0 };
            let mask = before.mask | own;
            // The mask of before comes back with the context. SAFETY: a mask of 8 bytes, as the kernel has
            // it; it was a handler of the program's, and is called as the kernel does, with all three
            // arguments in either case.
            unsafe {
                libc::syscall(
                    libc::SYS_rt_sigprocmask,
                    libc::SIG_BLOCK,
                    &raw const mask,
                    ptr::null_mut::<u64>(),
                    8usize,
                );
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
    }
}

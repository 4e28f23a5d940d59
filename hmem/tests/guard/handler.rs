//! The handler among others: each case in a process of its own, whose end is the result.

use std::ffi::c_void;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use hmem::guard::{Guard, hold, hold_registered};

use super::*;

const SEGV: c_int = libc::SIGSEGV;
const CASE: &str = "STRAIT_GUARD_CASE";

fn child(case: &str) -> ExitStatus {
    let this = std::env::current_exe().unwrap();
    let args = ["--exact", "handler::in_a_child", "--nocapture", "--test-threads=1"];
    Command::new(this).args(args).env(CASE, case).status().unwrap()
}

#[track_caller]
fn exits(case: &str) {
    let status = child(case);
    assert_eq!(status.code(), Some(42), "{case}: {status}");
}

#[track_caller]
fn killed(case: &str, by: c_int) {
    let status = child(case);
    assert_eq!(status.signal(), Some(by), "{case}: {status}");
}

/// The end of a child that did what it should.
fn good() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(42) }
}

type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

fn set(signal: c_int, handler: usize, flags: c_int, also: Option<c_int>) -> libc::sigaction {
    // SAFETY: a handler of a test's, and places of our own.
    unsafe {
        let (mut new, mut old): (libc::sigaction, libc::sigaction) = (std::mem::zeroed(), std::mem::zeroed());
        new.sa_sigaction = handler;
        new.sa_flags = flags;
        if let Some(also) = also {
            libc::sigaddset(&raw mut new.sa_mask, also);
        }
        assert_eq!(libc::sigaction(signal, &new, &mut old), 0);
        old
    }
}

fn handled_by(signal: c_int) -> usize {
    // SAFETY: asks only.
    unsafe {
        let mut now: libc::sigaction = std::mem::zeroed();
        assert_eq!(libc::sigaction(signal, ptr::null(), &mut now), 0);
        now.sa_sigaction
    }
}

/// A fault that no handler is for.
fn foreign(at: *mut u8) {
    // SAFETY: none: it is to fail.
    unsafe { at.write_volatile(1) }
}

/// A fault of ours.
fn ours() {
    let (here, hole) = (writable(1), gone(1));
    check(here, PAGE, hole, 0, 8);
    check(hole, 0, here, PAGE, 100);
}

static SEEN: AtomicUsize = AtomicUsize::new(0);
static EXPECTED: AtomicUsize = AtomicUsize::new(0);
static OLD: AtomicUsize = AtomicUsize::new(0);

/// Expects a certain address, and the mask that the kernel would have set.
extern "C" fn strict(signal: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: a handler's arguments, and a set of our own.
    unsafe {
        let mut now: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut now);
        let is = |signal| libc::sigismember(&raw const now, signal) == 1;
        let right = (*info).si_addr() as usize == EXPECTED.load(SeqCst)
            && is(libc::SIGSEGV)
            && is(libc::SIGUSR1)
            && !is(libc::SIGUSR2)
            && signal == libc::SIGSEGV;
        libc::_exit(if right { 42 } else { 1 });
    }
}

/// Makes the page accessible that was expected.
extern "C" fn cure(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    SEEN.fetch_add(1, SeqCst);
    let at = ptr::with_exposed_provenance_mut(EXPECTED.load(SeqCst));
    // SAFETY: a page of the test's.
    unsafe { libc::mprotect(at, PAGE, libc::PROT_READ | libc::PROT_WRITE) };
}

/// Counts, and passes on to the handler that it found.
extern "C" fn link(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    SEEN.fetch_add(100, SeqCst);
    // SAFETY: what was there was a handler with three arguments.
    let old: Handler = unsafe { std::mem::transmute(OLD.load(SeqCst)) };
    old(signal, info, context);
}

extern "C" fn greedy(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: ends the process.
    unsafe { libc::_exit(7) }
}

fn expect_cure(times: usize) {
    for _ in 0..times {
        let page = gone(1);
        EXPECTED.store(page.expose_provenance(), SeqCst);
        foreign(page);
        // SAFETY: a page of ours, accessible by now.
        assert_eq!(unsafe { *page }, 1);
    }
}

#[test]
fn in_a_child() {
    let Ok(case) = std::env::var(CASE) else { return };
    let known = [handlers_of_before, faults_without_help, handlers_that_came_later, other_guards];
    assert!(known.into_iter().any(|cases| cases(&case)), "{case}");
}

/// What becomes of a fault that is not ours, and of a signal that was sent. `false`: not a case of these.
fn handlers_of_before(case: &str) -> bool {
    match case {
        "siginfo" => {
            set(SEGV, strict as Handler as usize, libc::SA_SIGINFO | libc::SA_ONSTACK, Some(libc::SIGUSR1));
            assert_eq!(hold(true), Some(Guard::Handler));
            ours();
            let page = gone(1);
            EXPECTED.store(page as usize, SeqCst);
            foreign(page);
        }
        "plain" => {
            set(SEGV, cure as Handler as usize, 0, None);
            assert_eq!(hold(true), Some(Guard::Handler));
            (0..3).for_each(|_| (ours(), expect_cure(2)).0);
            assert_eq!((SEEN.load(SeqCst), hold(true)), (6, None));
            good();
        }
        "once" => {
            set(SEGV, cure as Handler as usize, libc::SA_RESETHAND, None);
            hold(true);
            expect_cure(1);
            ours();
            foreign(gone(1));
        }
        "default" => {
            set(SEGV, libc::SIG_DFL, 0, None);
            hold(true);
            ours();
            foreign(gone(1));
        }
        "sent" | "ignored" | "ignored fault" => {
            set(SEGV, if case == "sent" { libc::SIG_DFL } else { libc::SIG_IGN }, 0, None);
            hold(true);
            ours();
            if case == "ignored fault" {
                foreign(gone(1));
            }
            // SAFETY: a signal to ourselves.
            unsafe { libc::raise(SEGV) };
            ours();
            good();
        }
        "bus" => {
            set(libc::SIGBUS, libc::SIG_DFL, 0, None);
            hold(true);
            // SAFETY: a signal to ourselves.
            unsafe { libc::raise(libc::SIGBUS) };
        }
        _ => return false,
    }
    true
}

/// Where the handler is not called. `false`: not a case of these.
fn faults_without_help(case: &str) -> bool {
    match case {
        // The twin: what is guarded without a handler is not.
        "twin" => {
            hold(true);
            ours();
            set(SEGV, libc::SIG_DFL, 0, None);
            ours();
        }
        // What no handler can help: the kernel does not call one for a thread that blocks the signal.
        "blocked" => {
            hold(true);
            ours();
            // SAFETY: a set of our own.
            unsafe {
                let mut all: libc::sigset_t = std::mem::zeroed();
                libc::sigfillset(&raw mut all);
                libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut());
            }
            ours();
        }
        _ => return false,
    }
    true
}

/// Another handler takes the place of ours. `false`: not a case of these.
fn handlers_that_came_later(case: &str) -> bool {
    match case {
        // Set behind our back, and it does not pass on: found at the next registration.
        "replaced" => {
            set(SEGV, cure as Handler as usize, libc::SA_SIGINFO, None);
            hold(true);
            set(SEGV, greedy as Handler as usize, libc::SA_SIGINFO, None);
            assert_eq!(hold(true), None);
            ours();
            foreign(gone(1));
        }
        // It passes on: ours, the one that came later, ours again, the one before.
        "linked" => {
            set(SEGV, cure as Handler as usize, libc::SA_SIGINFO, None);
            hold(true);
            OLD.store(
                set(SEGV, link as Handler as usize, libc::SA_SIGINFO | libc::SA_ONSTACK, None).sa_sigaction,
                SeqCst,
            );
            ours();
            assert_eq!(SEEN.swap(0, SeqCst), 200);
            assert_eq!(hold(true), None);
            ours();
            assert_eq!(SEEN.load(SeqCst), 0);
            expect_cure(3);
            assert_eq!(SEEN.load(SeqCst), 303);
            good();
        }
        "replaced twice" => {
            hold(true);
            let mine = handled_by(SEGV);
            set(SEGV, link as Handler as usize, libc::SA_SIGINFO, None);
            assert_eq!(hold(true), None);
            assert_eq!(handled_by(SEGV), mine);
            set(SEGV, greedy as Handler as usize, libc::SA_SIGINFO, None);
            assert_eq!(hold(true), Some(Guard::Call));
            assert_eq!(handled_by(SEGV), greedy as Handler as usize);
            ours();
            good();
        }
        // Found by the first access after a registration, which itself does not look.
        "registered" => {
            assert_eq!(hold_registered(true), Some(Guard::Handler));
            let mine = handled_by(SEGV);
            ours();
            set(SEGV, greedy as Handler as usize, libc::SA_SIGINFO, None);
            assert_eq!((hold_registered(true), hold_registered(true)), (None, None));
            assert_eq!(handled_by(SEGV), greedy as Handler as usize, "a registration asks the kernel");
            ours();
            assert_eq!(handled_by(SEGV), mine);
            good();
        }
        // And is said by the next registration where it cannot be put right.
        "registered twice" => {
            hold_registered(true);
            for handler in [link as Handler, greedy as Handler] {
                set(SEGV, handler as usize, libc::SA_SIGINFO, None);
                assert_eq!(hold_registered(true), None);
                ours();
            }
            assert_eq!((hold_registered(true), hold_registered(true)), (Some(Guard::Call), None));
            ours();
            good();
        }
        // Another library with this code came later: it passes on, so its place is left to it.
        "relative" => {
            hold(true);
            let mine = handled_by(SEGV);
            let code = pages(1, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
            let mut jump = b"strait guard 1\0\0\x48\xb8".to_vec();
            jump.extend(mine.to_ne_bytes());
            jump.extend(b"\xff\xe0");
            // SAFETY: a page of ours.
            unsafe { code.copy_from_nonoverlapping(jump.as_ptr(), jump.len()) };
            let theirs = code as usize + 16;
            for _ in 0..3 {
                set(SEGV, theirs, libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER, None);
                assert_eq!(hold(true), None);
                assert_eq!(handled_by(SEGV), theirs);
                ours();
            }
            good();
        }
        _ => return false,
    }
    true
}

/// There is no handler. `false`: not a case of these.
fn other_guards(case: &str) -> bool {
    match case {
        "call" | "nothing" => {
            let before = handled_by(SEGV);
            if case == "nothing" {
                forbid(libc::SYS_process_vm_readv);
                assert_eq!(hold(false), Some(Guard::None));
                let (to, from) = (writable(1), writable(1));
                check(to, PAGE, from, PAGE, 100);
                assert_eq!(atomic(to, AtomicOp::Sum, Datatype::Uint64).map(|_| ()), Ok(()));
                ours();
            }
            assert_eq!(hold(false), Some(Guard::Call));
            assert_eq!((handled_by(SEGV), hold(true)), (before, None));
            copies::every_length_up_to_every_distance_from_the_end_of_memory();
            copies::addresses_that_are_none();
            copies::memory_that_may_only_be_read();
            copies::a_file_that_was_truncated();
            atomics::every_atomic_on_memory_that_is_not_there();
            atomics::every_atomic_does_what_it_does();
            atomics::nothing_is_lost_between_two_threads();
            copies::spans_are_copied_as_far_as_they_are_there();
            good();
        }
        // rt_sigaction refused: the kernel copies.
        "no handler" => {
            forbid(libc::SYS_rt_sigaction);
            assert_eq!(hold(true), Some(Guard::Call));
            ours();
            good();
        }
        _ => false,
    }
}

/// Has the kernel refuse a system call from now on.
fn forbid(call: i64) {
    let op = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let (load, equal, ret) = (0x20, 0x15, 0x06);
    let mut filter = [
        op(load, 0, 0, 0),
        op(equal, call as u32, 0, 1),
        op(ret, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
        op(ret, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a filter that lives during the call.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn a_handler_of_before_gets_what_is_not_ours_as_if_from_the_kernel() {
    exits("siginfo");
    exits("plain");
}

#[test]
fn what_was_the_default_still_is() {
    killed("default", libc::SIGSEGV);
    killed("once", libc::SIGSEGV);
    killed("sent", libc::SIGSEGV);
    killed("bus", libc::SIGBUS);
    exits("ignored");
    killed("ignored fault", libc::SIGSEGV);
}

#[test]
fn without_the_handler_the_process_dies() {
    killed("twin", libc::SIGSEGV);
    killed("blocked", libc::SIGSEGV);
}

#[test]
fn a_handler_that_took_our_place() {
    assert_eq!(child("replaced").code(), Some(7));
    exits("registered");
    exits("registered twice");
    exits("linked");
    exits("replaced twice");
    exits("relative");
}

#[test]
fn where_no_handler_is_to_be_had_the_kernel_copies() {
    exits("call");
    exits("no handler");
    killed("nothing", libc::SIGSEGV);
}

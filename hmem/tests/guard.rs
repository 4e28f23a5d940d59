//! Memory that is not there is an error to the call that accesses it, and goes unnoticed by all else.
#![cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]

use std::ffi::{c_int, c_void};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitStatus};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use hmem::guard::{Fault, Guard, copy, hold};
use hmem::{AtomicOp, Class, Datatype, Kind, NotApplied, Span, apply, valid};

const PAGE: usize = 4096;

/// So many pages that may be accessed as said, with one on either side that may not at all.
fn pages(n: usize, protection: c_int) -> *mut u8 {
    // SAFETY: new memory, and a part of it.
    unsafe {
        let all = (n + 2) * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let at = libc::mmap(ptr::null_mut(), all, libc::PROT_NONE, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        let at = at.cast::<u8>().add(PAGE);
        assert_eq!(libc::mprotect(at.cast(), n * PAGE, protection), 0);
        at
    }
}

fn writable(n: usize) -> *mut u8 {
    pages(n, libc::PROT_READ | libc::PROT_WRITE)
}

/// Memory that was there once.
fn gone(n: usize) -> *mut u8 {
    pages(n, libc::PROT_NONE)
}

fn fill(at: *mut u8, n: usize, seed: usize) {
    // SAFETY: callers own so much there.
    (0..n).for_each(|i| unsafe { *at.add(i) = (i * 7 + (i >> 8) + seed) as u8 });
}

fn bytes(at: *const u8, n: usize) -> Vec<u8> {
    // SAFETY: callers own so much there.
    unsafe { std::slice::from_raw_parts(at, n) }.to_vec()
}

/// Copies, and checks that a copy that has to fail did, and what it wrote.
fn check(to: *mut u8, to_room: usize, from: *const u8, from_room: usize, len: usize) {
    // SAFETY: memory of the caller's as far as it is mapped.
    let done = unsafe { copy(to, from, len) };
    if len <= to_room && len <= from_room {
        assert_eq!(done, Ok(()), "{len} bytes");
        assert!(bytes(to, len) == bytes(from, len), "{len} bytes");
    } else {
        assert_eq!(done, Err(Fault), "{len} bytes of {from_room} to {to_room}");
    }
}

#[test]
fn every_length_up_to_every_distance_from_the_end_of_memory() {
    let (one, other) = (writable(1), writable(1));
    // SAFETY: both are a page.
    let (end, there) = unsafe { (one.add(PAGE), other.add(1024)) };
    for room in 0..=200 {
        let edge = end.wrapping_sub(room);
        for len in 0..=200 {
            // The other side's alignment changes too.
            let there = there.wrapping_add((room * 5 + len) % 16);
            fill(edge, room, len);
            check(there, PAGE, edge, room, len);
            fill(there, 200, room);
            let around = (bytes(there.wrapping_sub(16), 16), bytes(edge.wrapping_sub(16), 16));
            check(edge, room, there, PAGE, len);
            assert!(around == (bytes(there.wrapping_sub(16), 16), bytes(edge.wrapping_sub(16), 16)));
        }
    }
}

#[test]
fn every_length_from_before_the_begin_of_memory() {
    let (one, other) = (writable(1), writable(1));
    for before in 1..=200 {
        for len in 1..=200 {
            check(one.wrapping_sub(before), 0, other, PAGE, len);
            check(other, PAGE, one.wrapping_sub(before), 0, len);
            check(other, PAGE, one.wrapping_sub(before), 0, len + 4096);
        }
        check(one.wrapping_sub(before), 0, other, PAGE, 0);
    }
}

#[test]
fn long_copies_stop_at_any_place() {
    let (one, other) = (writable(40), writable(40));
    fill(one, 40 * PAGE, 1);
    for len in (201..40 * PAGE).step_by(777).chain([4095, 4096, 4097, 8192, 40 * PAGE]) {
        for missing in [0, 1, 15, 63, 64, 100, len / 2, len - 1].into_iter().filter(|m| *m < len) {
            let edge = one.wrapping_add(40 * PAGE + missing - len);
            check(other.wrapping_add(missing % 16), 38 * PAGE, edge, len - missing, len.min(38 * PAGE));
        }
    }
    fill(other, 40 * PAGE, 2);
    for len in (201..38 * PAGE).step_by(777) {
        for missing in [0, 1, 64, len / 2] {
            let edge = one.wrapping_add(40 * PAGE + missing - len);
            check(edge, len - missing, other.wrapping_add(missing % 16), 38 * PAGE, len);
        }
    }
    // A hole in the middle.
    // SAFETY: a page of ours.
    assert_eq!(unsafe { libc::munmap(one.add(20 * PAGE).cast(), PAGE) }, 0);
    for len in [10 * PAGE, 20 * PAGE, 20 * PAGE + 1, 30 * PAGE] {
        check(other, 40 * PAGE, one, 20 * PAGE, len);
        check(one, 20 * PAGE, other, 40 * PAGE, len);
    }
}

#[test]
fn overlapping_memory_is_copied_as_memmove_does() {
    let at = writable(4);
    for len in (0..300).step_by(3).chain([64, 65, 128, 300, 1000, 4095, 4096, 5000, 8000]) {
        for shift in [0, 1, 7, 8, 15, 16, 31, 33, 64, 100, 299, 1000] {
            for back in [false, true] {
                let area = if len <= 300 { 1300 } else { 3 * PAGE };
                fill(at, area, len);
                let (to, from) = if back { (0, shift) } else { (shift, 0) };
                let mut want = bytes(at, area);
                want.copy_within(from..from + len, to);
                // SAFETY: 12 KiB of ours.
                assert_eq!(unsafe { copy(at.add(to), at.add(from), len) }, Ok(()));
                assert!(bytes(at, area) == want, "{len} bytes by {shift}, back: {back}");
            }
        }
    }
}

#[test]
fn addresses_that_are_none() {
    let here = writable(1);
    for at in [0, 1, 4096, 1 << 46, 1 << 47, 1 << 63, usize::MAX - 4096, usize::MAX - 8, usize::MAX] {
        let there = ptr::without_provenance_mut(at);
        for len in [1, 2, 4, 7, 8, 16, 20, 40, 100, 4096] {
            check(there, 0, here, PAGE, len);
            check(here, PAGE, there, 0, len);
        }
    }
}

#[test]
fn memory_that_may_only_be_read() {
    let (here, there) = (writable(1), pages(1, libc::PROT_READ));
    for len in [1, 2, 3, 8, 16, 33, 65, 4096] {
        check(here, PAGE, there, PAGE, len);
        check(there, 0, here, PAGE, len);
    }
}

/// A file cut short below a mapping: SIGBUS.
#[test]
fn a_file_that_was_truncated() {
    // SAFETY: a new file and a mapping of it.
    let at = unsafe {
        let fd = libc::memfd_create(c"guard".as_ptr(), libc::MFD_CLOEXEC);
        assert!(fd >= 0 && libc::ftruncate(fd, 2 * PAGE as i64) == 0);
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(ptr::null_mut(), 2 * PAGE, rw, libc::MAP_SHARED, fd, 0);
        assert_ne!(at, libc::MAP_FAILED);
        at.cast::<u8>().write_bytes(1, 2 * PAGE);
        assert_eq!(libc::ftruncate(fd, PAGE as i64), 0);
        at.cast::<u8>()
    };
    let here = writable(2);
    for len in [1, 8, 100, 4096] {
        check(here, PAGE, at.wrapping_add(PAGE), 0, len);
        check(at.wrapping_add(PAGE), 0, here, PAGE, len);
        check(at.wrapping_add(PAGE - 50), 50, here, PAGE, len);
    }
    assert_eq!(atomic(at.wrapping_add(PAGE), AtomicOp::Sum, Datatype::Uint64), Err(NotApplied::Fault));
}

fn peers(at: *const u8, len: usize) -> Span {
    // SAFETY: memory of a test's, or none, which `for_peers` takes into account.
    unsafe { Span::new(at.expose_provenance(), len, Kind::System) }.for_peers()
}

/// One element, with operand 3 and compare value 5: what was there.
fn atomic(at: *mut u8, op: AtomicOp, datatype: Datatype) -> Result<Vec<u8>, NotApplied> {
    let size = datatype.size();
    let value = |n: u8| {
        let mut v = vec![0u8; size];
        v[0] = n;
        v
    };
    let mut old = vec![0; size];
    let operand = if op == AtomicOp::AtomicRead { vec![] } else { value(3) };
    let compare = if op.compares() { value(5) } else { vec![] };
    apply(&[peers(at, size)], op, datatype, &operand, &compare, Some(&mut old)).map(|()| old)
}

fn all() -> impl Iterator<Item = (AtomicOp, Datatype)> {
    let ops = (0..19).filter_map(AtomicOp::from_code);
    ops.flat_map(|op| (0..14).filter_map(Datatype::from_code).map(move |t| (op, t)))
        .filter(|(op, t)| valid(*op, *t, if op.compares() { Class::Compare } else { Class::Fetch }))
}

#[test]
fn every_atomic_on_memory_that_is_not_there() {
    let (hole, here) = (gone(1), writable(1));
    for (op, datatype) in all() {
        assert_eq!(atomic(hole, op, datatype), Err(NotApplied::Fault), "{op:?} {datatype:?}");
        // Half of it.
        let half = here.wrapping_add(PAGE - datatype.size() / 2);
        assert_eq!(atomic(half, op, datatype), Err(NotApplied::Fault), "{op:?} {datatype:?}");
        assert_eq!(atomic(here, op, datatype).map(|_| ()), Ok(()), "{op:?} {datatype:?}");
    }
}

/// As it is of memory that does not vanish.
#[test]
fn every_atomic_does_what_it_does() {
    let at = writable(1);
    for (op, datatype) in all() {
        for first in [0u8, 3, 5, 200] {
            let size = datatype.size();
            // SAFETY: memory of ours.
            unsafe { at.write_bytes(first, size) };
            let guarded = (atomic(at, op, datatype).unwrap(), bytes(at, size));
            let plain = Span::leak(size);
            hmem::write(&[plain], 0, &vec![first; size]);
            let (mut three, mut five, mut old) = (vec![0; size], vec![0; size], vec![0; size]);
            (three[0], five[0]) = (3, 5);
            let operand = if op == AtomicOp::AtomicRead { &[][..] } else { &three };
            let compare = if op.compares() { &five[..] } else { &[] };
            apply(&[plain], op, datatype, operand, compare, Some(&mut old)).unwrap();
            let mut new = vec![0; size];
            hmem::read(&[plain], 0, &mut new);
            assert_eq!(guarded, (old, new), "{op:?} {datatype:?} on {first}");
        }
    }
}

#[test]
fn atomics_on_memory_that_may_only_be_read() {
    let at = pages(1, libc::PROT_READ);
    for (op, datatype) in all() {
        // What stays as it is is not written: 0 is not 5.
        if matches!(op, AtomicOp::AtomicRead | AtomicOp::Cswap) {
            let zero = vec![0; datatype.size()];
            assert_eq!(atomic(at, op, datatype), Ok(zero), "{op:?} {datatype:?}");
        }
    }
    for datatype in [Datatype::Uint8, Datatype::Int16, Datatype::Uint32, Datatype::Uint64, Datatype::Double] {
        for op in [AtomicOp::Sum, AtomicOp::AtomicWrite, AtomicOp::CswapNe] {
            assert_eq!(atomic(at, op, datatype), Err(NotApplied::Fault), "{op:?} {datatype:?}");
        }
    }
}

#[test]
fn nothing_is_lost_between_two_threads() {
    let at = writable(1) as usize;
    let count = move |datatype: Datatype, one: &[u8]| {
        let span = peers(ptr::with_exposed_provenance(at), datatype.size());
        (0..20_000).for_each(|_| apply(&[span], AtomicOp::Sum, datatype, one, &[], None).unwrap());
    };
    let value = |n| bytes(ptr::with_exposed_provenance(at), n);
    std::thread::scope(|t| {
        (0..2).for_each(|_| drop(t.spawn(|| count(Datatype::Double, &1f64.to_ne_bytes()))));
    });
    assert_eq!(value(8), 40_000f64.to_ne_bytes());
    hmem::write(&[peers(ptr::with_exposed_provenance(at), 8)], 0, &[0; 8]);
    std::thread::scope(|t| {
        (0..2).for_each(|_| drop(t.spawn(|| count(Datatype::Uint64, &1u64.to_ne_bytes()))));
    });
    assert_eq!(value(8), 40_000u64.to_ne_bytes());
}

#[test]
fn several_threads_at_once() {
    let (hole, here) = (gone(1) as usize, writable(1) as usize);
    let at = ptr::with_exposed_provenance_mut::<u8>;
    std::thread::scope(|t| {
        for n in 0..6usize {
            t.spawn(move || {
                let own = writable(1);
                for i in 0..3000 {
                    let len = 1 + (i * 13 + n) % 300;
                    check(at(hole + n), 0, own, PAGE, len);
                    check(own, PAGE, at(hole + n), 0, len);
                    check(own, PAGE, at(here), PAGE, len);
                }
            });
        }
    });
}

#[test]
fn spans_are_copied_as_far_as_they_are_there() {
    let (here, hole) = (writable(1), gone(1));
    let good = Span::leak(64);
    let mixed = [peers(here, 10), peers(hole, 10), peers(here, 10)];
    assert_eq!(hmem::write(&mixed, 0, &[1; 30]), 10);
    assert_eq!(hmem::read(&mixed, 0, &mut [0; 30]), 10);
    assert_eq!(hmem::copy(&mixed, 0, &[good], 0, 30), 10);
    assert_eq!(hmem::copy(&[good], 0, &mixed, 0, 30), 10);
    assert_eq!(hmem::copy(&mixed[1..], 0, &[good], 0, 8), 0);
    assert_eq!(hmem::copy(&mixed, 20, &[good], 0, 10), 10);
    // The fake device, too.
    let fake = hmem::fake::alloc(16);
    assert_eq!(hmem::copy(&[fake.span()], 0, &[peers(here, 10)], 0, 10), 10);
    assert_eq!(hmem::copy(&[fake.span()], 0, &[peers(hole, 10)], 0, 10), 0);
    assert_eq!(hmem::copy(&[peers(hole, 10)], 0, &[fake.span()], 0, 10), 0);
    let device = fake.span().for_peers();
    assert!(!device.may_vanish() && !device.is_plain());
    assert!(peers(here, 1).may_vanish() && peers(here, 9).part(2, 3).unwrap().may_vanish());
    assert!(good.is_plain() && !peers(here, 1).is_plain());
}

// What happens in a process of its own: its end is the result.

const CASE: &str = "STRAIT_GUARD_CASE";

fn child(case: &str) -> ExitStatus {
    let this = std::env::current_exe().unwrap();
    let args = ["--exact", "in_a_child", "--nocapture", "--test-threads=1"];
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
    const SEGV: c_int = libc::SIGSEGV;
    let info = libc::SA_SIGINFO;
    match case.as_str() {
        "siginfo" => {
            set(SEGV, strict as Handler as usize, info | libc::SA_ONSTACK, Some(libc::SIGUSR1));
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
        // Set behind our back, and it does not pass on: found at the next registration.
        "replaced" => {
            set(SEGV, cure as Handler as usize, info, None);
            hold(true);
            set(SEGV, greedy as Handler as usize, info, None);
            assert_eq!(hold(true), None);
            ours();
            foreign(gone(1));
        }
        // It passes on: ours, the one that came later, ours again, the one before.
        "linked" => {
            set(SEGV, cure as Handler as usize, info, None);
            hold(true);
            OLD.store(
                set(SEGV, link as Handler as usize, info | libc::SA_ONSTACK, None).sa_sigaction,
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
            set(SEGV, link as Handler as usize, info, None);
            assert_eq!(hold(true), None);
            assert_eq!(handled_by(SEGV), mine);
            set(SEGV, greedy as Handler as usize, info, None);
            assert_eq!(hold(true), Some(Guard::Call));
            assert_eq!(handled_by(SEGV), greedy as Handler as usize);
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
                set(SEGV, theirs, info | libc::SA_ONSTACK | libc::SA_NODEFER, None);
                assert_eq!(hold(true), None);
                assert_eq!(handled_by(SEGV), theirs);
                ours();
            }
            good();
        }
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
            every_length_up_to_every_distance_from_the_end_of_memory();
            addresses_that_are_none();
            memory_that_may_only_be_read();
            a_file_that_was_truncated();
            every_atomic_on_memory_that_is_not_there();
            every_atomic_does_what_it_does();
            nothing_is_lost_between_two_threads();
            spans_are_copied_as_far_as_they_are_there();
            good();
        }
        // rt_sigaction refused: the kernel copies.
        "no handler" => {
            forbid(libc::SYS_rt_sigaction);
            assert_eq!(hold(true), Some(Guard::Call));
            ours();
            good();
        }
        other => panic!("{other}"),
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

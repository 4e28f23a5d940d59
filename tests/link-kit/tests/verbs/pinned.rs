//! Memory that the program has not registered, by default: pinned for each access. The device of these tests
//! has the pages that were there when memory was registered (`pins`), so that a registration which stayed
//! would be noticed.

use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use below::Remote as _;
use hmem::{Kind, Span};
use link_api::Way;
use link_kit::text;
use testkit::pattern;

use crate::changes::{APART, Both, Change, LEN, MAPPED, change, long, map, pages_change, part};
use crate::device::calls;

const DEVICE: &str = "sv0:pins";

/// What the kernel says where it does not pin as many pages as these tests need.
fn refusal() -> Option<String> {
    let error = |call| Some(format!("{call}: {}", std::io::Error::last_os_error()));
    // SAFETY: it has no effect but on what is opened here, if it is granted.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, [0u32; 30].as_mut_ptr()) };
    if ring < 0 {
        return error("io_uring_setup");
    }
    // SAFETY: it was opened above, and nothing else has it.
    let ring = unsafe { OwnedFd::from_raw_fd(ring as i32) };
    let mut memory = vec![0u8; 256 << 10];
    let buffer = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    let (call, fd) = (libc::SYS_io_uring_register, ring.as_raw_fd());
    // SAFETY: IORING_REGISTER_BUFFERS of memory that stays until the ring is closed.
    if unsafe { libc::syscall(call, fd, 0, &raw const buffer, 1) } < 0 {
        return error("io_uring_register");
    }
    // SAFETY: IORING_UNREGISTER_BUFFERS, so that the pages count no more when this returns.
    unsafe { libc::syscall(call, fd, 1, std::ptr::null::<libc::c_void>(), 0) };
    None
}

/// `None` where the kernel refuses what the device's pages are pinned by.
fn both() -> Option<Both> {
    match refusal() {
        None => Some(Both::new(DEVICE, false)),
        Some(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// The twin: what a registration that stayed would do, which is one of the program's.
#[test]
fn a_registration_that_stays_sends_the_pages_of_before() {
    let Some(mut both) = both() else { return };
    let at = map(None).expect("memory");
    let mine = both.by.publish(part(at), true, true).expect("memory of the host");
    both.by.admit(both.to.0, &mine, true, true).expect("a key");
    both.exchange(part(at), 1);
    for what in [Change::Fixed, Change::Remap, Change::Discard] {
        change(what, at);
        hmem::write(&[part(at)], 0, &pattern(LEN, 7));
        hmem::write(&[both.memory], 0, &pattern(LEN, 9));
        assert!(both.access(Way::Put, part(at)));
        assert!(text(&[both.memory]) == pattern(LEN, 2), "{what:?}: the device has not the old pages");
    }
}

#[test]
fn pages_that_another_thread_maps_are_what_the_device_accesses() {
    exact(Duration::from_millis(500));
}

#[test]
#[ignore = "ten minutes"]
fn pages_that_another_thread_maps_are_what_the_device_accesses_for_long() {
    exact(long());
}

fn exact(time: Duration) {
    let Some(mut both) = both() else { return };
    let (registered, given_back) = (calls(c"ibv_reg_mr"), calls(c"ibv_dereg_mr"));
    pages_change(&mut both, time);
    let registered = calls(c"ibv_reg_mr") - registered;
    assert!(registered > 0, "memory is registered");
    assert_eq!(registered, calls(c"ibv_dereg_mr") - given_back, "none stays");
}

/// Writes to each word of the pages which generation it is of.
fn fill(at: usize, generation: u64) {
    for word in 0..MAPPED / 8 {
        // SAFETY: pages of this test, to which no thread has a reference.
        unsafe { AtomicU64::from_ptr((at + word * 8) as *mut u64).store(generation, Ordering::Relaxed) };
    }
}

/// What the words were of that came.
#[derive(Debug, Default)]
struct Came {
    /// Accesses during which the pages of the beginning were not there, that have brought words of later ones.
    later: u64,
    /// Of an access, the first word that was of pages from before it.
    stale: Option<String>,
}

/// One thread changes the pages without a pause, and writes which generation they are of; the other one sends
/// them meanwhile. A word may be of any generation that was there during the access, or of pages that were
/// not written yet (0), but of none before. The device has the pages of generation 1 for good if the program
/// has registered them, which is the twin.
fn beside(time: Duration, is_registered: bool) -> Option<Came> {
    let mut both = both()?;
    let at = map(Some(APART)).expect("memory");
    fill(at, 1);
    // SAFETY: pages of this test; while they are not mapped an access of them fails.
    let whole = unsafe { Span::new(at, LEN / 8 * 8, Kind::System) };
    if is_registered {
        let mine = both.by.publish(whole, true, true).expect("memory of the host");
        both.by.admit(both.to.0, &mine, true, true).expect("a key");
    }
    let (begun, written, end) =
        (Arc::new(AtomicU64::new(1)), Arc::new(AtomicU64::new(1)), Arc::new(AtomicBool::new(false)));
    let other = thread::spawn({
        let (begun, written, end) = (begun.clone(), written.clone(), end.clone());
        move || {
            let all = [Change::Unmap, Change::Fixed, Change::Remap, Change::Discard, Change::Fork];
            for (generation, what) in (2u64..).zip(all.iter().cycle()) {
                begun.store(generation, Ordering::SeqCst);
                change(*what, at);
                if matches!(what, Change::Unmap) {
                    map(Some(at)).expect("the same address");
                }
                fill(at, generation);
                written.store(generation, Ordering::SeqCst);
                if end.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    });
    let (start, mut sent, mut came) = (Instant::now(), 0, Came::default());
    let (mut failed, mut failed_at) = (0, 0);
    while start.elapsed() < time || sent < 50 || begun.load(Ordering::SeqCst) <= 10 {
        assert!(!other.is_finished(), "the other thread has ended");
        let least = written.load(Ordering::SeqCst);
        let done = both.access(Way::Put, whole);
        let most = begun.load(Ordering::SeqCst);
        if !done {
            // There was nothing to register, which is so for a part of a generation in five.
            failed += u64::from(least != failed_at);
            failed_at = least;
            assert!(failed < 1000, "each access fails");
            thread::yield_now();
            continue;
        }
        (sent, failed) = (sent + 1, 0);
        let bytes = text(&[both.memory]);
        let words = bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().expect("8 bytes")));
        let words: Vec<u64> = words.take(whole.len() / 8).filter(|word| *word != 0).collect();
        came.later += u64::from(least > 1 && words.iter().any(|word| *word > 1));
        let stale = words.iter().find(|word| !(least..=most).contains(word));
        came.stale = came.stale.or(stale.map(|word| format!("of {word}, and not of {least} to {most}")));
    }
    end.store(true, Ordering::Relaxed);
    other.join().expect("the other thread");
    Some(came)
}

fn none_of_before(time: Duration) {
    let Some(came) = beside(time, false) else { return };
    assert_eq!(came.stale, None);
    assert!(came.later > 0, "what the other thread has written is sent");
}

#[test]
fn no_page_of_before_is_sent_while_another_thread_changes_them() {
    none_of_before(Duration::from_millis(500));
}

#[test]
#[ignore = "ten minutes"]
fn no_page_of_before_is_sent_while_another_thread_changes_them_for_long() {
    none_of_before(long());
}

/// The twin.
#[test]
fn a_registration_that_stays_sends_pages_of_before_while_another_thread_changes_them() {
    let Some(came) = beside(Duration::from_millis(500), true) else { return };
    assert!(came.stale.is_some() && came.later == 0, "{came:?}");
}

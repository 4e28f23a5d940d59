//! Memory that the program has not registered, by default: pinned for each access. The device of these tests
//! has the pages that were there when memory was registered (`pins`), so that a registration which stayed
//! would be noticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use below::Remote as _;
use hmem::{Kind, Span};
use link_api::Way;
use link_kit::text;
use testkit::pattern;

use crate::changes::{APART, Both, Change, LEN, MAPPED, change, map, pages_change, part, program};

const DEVICE: &str = "sv0:pins";

/// `None` where the kernel refuses what the device's pages are pinned by.
fn both() -> Option<Both> {
    // SAFETY: it has no effect but on what is opened here, if it is granted.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, [0u32; 30].as_mut_ptr()) };
    if ring < 0 {
        eprintln!("not run: io_uring_setup: {}", std::io::Error::last_os_error());
        return None;
    }
    // SAFETY: it was opened above.
    unsafe { libc::close(ring as i32) };
    Some(Both::new(DEVICE, false))
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
        assert!(both.access(Way::Put, part(at)));
        assert!(text(&[both.memory]) != pattern(LEN, 7), "{what:?}: the device has not the old pages");
    }
}

#[test]
fn pages_that_another_thread_maps_are_what_the_device_accesses() {
    exact(Duration::from_millis(500));
}

#[test]
#[ignore = "ten minutes"]
fn pages_that_another_thread_maps_are_what_the_device_accesses_for_long() {
    exact(Duration::from_secs(600));
}

fn exact(time: Duration) {
    let Some(mut both) = both() else { return };
    let (registered, given_back) = (program().calls(c"ibv_reg_mr"), program().calls(c"ibv_dereg_mr"));
    pages_change(&mut both, time);
    let registered = program().calls(c"ibv_reg_mr") - registered;
    assert!(registered > 0, "memory is registered");
    assert_eq!(registered, program().calls(c"ibv_dereg_mr") - given_back, "none stays");
}

/// One thread changes the pages without a pause, and writes which generation they are of; the other one sends
/// them meanwhile. A word may be of any generation that was there during the access, or of pages that were
/// not written yet, but of none before.
fn beside(time: Duration) -> u64 {
    let Some(mut both) = both() else { return 1 };
    let at = map(Some(APART)).expect("memory");
    let (begun, written, end) =
        (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let other = thread::spawn({
        let (begun, written, end) = (begun.clone(), written.clone(), end.clone());
        move || {
            let all = [Change::Unmap, Change::Fixed, Change::Remap, Change::Discard, Change::Fork];
            for (generation, what) in (1u64..).zip(all.iter().cycle()) {
                begun.store(generation, Ordering::SeqCst);
                change(*what, at);
                if matches!(what, Change::Unmap) {
                    map(Some(at)).expect("the same address");
                }
                for word in 0..MAPPED / 8 {
                    // SAFETY: pages of this test; the other thread has no reference to them.
                    unsafe {
                        AtomicU64::from_ptr((at + word * 8) as *mut u64).store(generation, Ordering::Relaxed)
                    };
                }
                written.store(generation, Ordering::SeqCst);
                if end.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    });
    // SAFETY: pages of this test; while they are not mapped an access of them fails.
    let whole = unsafe { Span::new(at, LEN / 8 * 8, Kind::System) };
    let (start, mut sent) = (Instant::now(), 0);
    while start.elapsed() < time || sent < 50 {
        let least = written.load(Ordering::SeqCst);
        let done = both.access(Way::Put, whole);
        let most = begun.load(Ordering::SeqCst);
        if !done {
            // There was nothing to register.
            continue;
        }
        sent += 1;
        for word in text(&[both.memory]).chunks_exact(8).take(whole.len() / 8) {
            let word = u64::from_ne_bytes(word.try_into().expect("8 bytes"));
            assert!(word == 0 || (least..=most).contains(&word), "of {word}, and not of {least} to {most}");
        }
    }
    end.store(true, Ordering::Relaxed);
    other.join().expect("the other thread");
    sent
}

#[test]
fn no_page_of_before_is_sent_while_another_thread_changes_them() {
    assert!(beside(Duration::from_millis(500)) > 0);
}

#[test]
#[ignore = "ten minutes"]
fn no_page_of_before_is_sent_while_another_thread_changes_them_for_long() {
    assert!(beside(Duration::from_secs(600)) > 0);
}

//! Copies from and to memory that is not there.

use hmem::{AtomicOp, Datatype, NotApplied, Span};

use super::*;

#[test]
pub fn every_length_up_to_every_distance_from_the_end_of_memory() {
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
pub fn every_length_from_before_the_begin_of_memory() {
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
pub fn addresses_that_are_none() {
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
pub fn memory_that_may_only_be_read() {
    let (here, there) = (writable(1), pages(1, libc::PROT_READ));
    for len in [1, 2, 3, 8, 16, 33, 65, 4096] {
        check(here, PAGE, there, PAGE, len);
        check(there, 0, here, PAGE, len);
    }
}

/// A file cut short below a mapping: SIGBUS.
#[test]
pub fn a_file_that_was_truncated() {
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

#[test]
pub fn spans_are_copied_as_far_as_they_are_there() {
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

//! Memory that is not there is an error to the call that accesses it, and goes unnoticed by all else.
#![cfg(all(target_arch = "x86_64", target_pointer_width = "64"))]

mod atomics;
mod copies;
mod handler;

use std::ffi::c_int;
use std::ptr;

use hmem::guard::{Fault, copy};
use hmem::{AtomicOp, Datatype, Kind, NotApplied, Span, apply};

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

//! The fake device: out of reach for the CPU, in reach for this crate.

use std::sync::{Mutex, MutexGuard, PoisonError};

use hmem::{AtomicOp, Datatype, Kind, Span, apply, classify, copy, copy_in, copy_out, fake, read, write};

/// Addresses of freed memory are given out again: one test at a time.
static ONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn only_the_crate_reaches_it() {
    let _alone = alone();
    let mem = fake::alloc(5000);
    let span = mem.span();
    assert_eq!(write(&[span], 4990, b"0123456789abc"), 10);
    let mut back = [0; 4];
    assert_eq!(read(&[span], 4994, &mut back), 4);
    assert_eq!(&back, b"4567");

    let local = libc::iovec { iov_base: back.as_mut_ptr().cast(), iov_len: 4 };
    let remote = libc::iovec { iov_base: span.as_ptr().cast(), iov_len: 4 };
    // SAFETY: `local` is 4 bytes of ours; of `remote` the kernel makes sure by itself.
    let got = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    let why = std::io::Error::last_os_error().raw_os_error();
    assert_eq!((got, why), (-1, Some(libc::EFAULT)));
}

#[test]
fn copies_cross_kinds() {
    let _alone = alone();
    let (a, b) = (fake::alloc(8), fake::alloc(8));
    let host = Span::leak(8);
    assert_eq!(write(&[host], 0, b"abcdefgh"), 8);
    assert_eq!(copy(&[a.span()], 1, &[host], 0, 8), 7);
    assert_eq!(copy(&[b.span()], 0, &[a.span()], 2, 6), 6);
    assert_eq!(copy(&[host], 0, &[b.span()], 0, 8), 8);
    let mut back = [0; 8];
    // SAFETY: `back` is 8 bytes.
    assert!(unsafe { copy_out(host, back.as_mut_ptr(), 8) });
    assert_eq!(&back, b"bcdefg\0\0");
    // SAFETY: the literal is 3 bytes, `back` is 8.
    unsafe {
        assert!(copy_in(a.span(), b"xyz".as_ptr(), 3));
        assert!(copy_out(a.span(), back.as_mut_ptr(), 8));
    }
    assert_eq!(&back, b"xyzcdefg");
    assert_eq!(
        apply(&[a.span()], AtomicOp::Sum, Datatype::Uint64, &[1, 0, 0, 0, 0, 0, 0, 0], &[], None),
        Ok(())
    );
    read(&[a.span()], 0, &mut back);
    assert_eq!(&back, b"yyzcdefg");
}

#[test]
fn it_is_distinguished_from_host_memory() {
    let _alone = alone();
    let mem = fake::alloc(100);
    assert_eq!(classify(mem.addr() + 99, 1), Kind::Fake);
    assert_eq!(classify(mem.addr() + 100, 1), Kind::System);
    assert_eq!(classify(Span::leak(4).addr() as usize, 4), Kind::System);
    let addr = mem.addr();
    drop(mem);
    assert_eq!(classify(addr, 100), Kind::System);
}

#[test]
fn what_is_gone_is_missed() {
    let _alone = alone();
    let mem = fake::alloc(8);
    let span = mem.span();
    let inside = std::panic::catch_unwind(|| read(&[span], 0, &mut [0; 8]));
    assert!(inside.is_ok());
    drop(mem);
    let more = fake::alloc(4); // may get the same address, but is shorter
    assert!(std::panic::catch_unwind(|| read(&[span], 0, &mut [0; 8])).is_err());
    drop(more);
}

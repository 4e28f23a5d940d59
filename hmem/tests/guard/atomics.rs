//! Atomics on memory that is not there.

use hmem::{AtomicOp, Class, Datatype, NotApplied, apply, valid};

use super::*;

fn all() -> impl Iterator<Item = (AtomicOp, Datatype)> {
    let ops = (0..19).filter_map(AtomicOp::from_code);
    ops.flat_map(|op| (0..14).filter_map(Datatype::from_code).map(move |t| (op, t)))
        .filter(|(op, t)| valid(*op, *t, if op.compares() { Class::Compare } else { Class::Fetch }))
}

#[test]
pub fn every_atomic_on_memory_that_is_not_there() {
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
pub fn every_atomic_does_what_it_does() {
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
pub fn nothing_is_lost_between_two_threads() {
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

//! The engine over queue pairs: atomics that the device does, and those that it does not.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use engine::{Access, Atomic, Completion, Ctx, Error, OpFlags};
use hmem::{AtomicOp, Datatype, Span};
use testkit::{there, write};
use verbs::Verbs;
use wire::RmaSeg;

use crate::device::{options, set};
use crate::duo::{Duo, filled};
use crate::rma::{BOTH, WAIT, duo, known};

/// Words of the second one.
const WORDS: usize = 64;

/// An atomic of one element, and what it needs.
struct One {
    to: u64,
    operand: Span,
    compare: Span,
    result: Span,
    remote: RmaSeg,
}

impl One {
    /// On the word at this byte, which is of so many bytes.
    fn new(to: u64, at: usize, size: usize) -> One {
        let [operand, compare, result] = [(); 3].map(|()| Span::leak(size));
        One { to, operand, compare, result, remote: there(at as u64, size, 9) }
    }

    fn op(&self, op: AtomicOp, datatype: Datatype) -> Atomic<'_> {
        let one = std::slice::from_ref;
        Atomic {
            to: self.to,
            op,
            datatype,
            operand: one(&self.operand),
            compare: if op.compares() { one(&self.compare) } else { &[] },
            result: one(&self.result),
            remote: std::slice::from_ref(&self.remote),
            data: None,
            ctx: Ctx(1),
            flags: OpFlags::COMPLETION,
        }
    }
}

fn put(span: Span, value: u64) {
    hmem::write(&[span], 0, &value.to_le_bytes()[..span.len()]);
}

fn get(span: Span) -> u64 {
    let mut bytes = [0; 8];
    hmem::read(&[span], 0, &mut bytes[..span.len()]);
    u64::from_le_bytes(bytes)
}

fn word(memory: Span, at: usize) -> u64 {
    get(memory.part(at, 8).expect("a word"))
}

/// Posts one, which completes.
fn completed(duo: &mut Duo<Verbs>, op: &Atomic<'_>) -> Completion {
    duo.post(|a| a.domain.atomic(a.ep, op));
    duo.complete(1, 0).0[0]
}

/// The same while the second one does nothing.
fn completed_alone(duo: &mut Duo<Verbs>, op: &Atomic<'_>) -> Completion {
    duo.a.domain.atomic(duo.a.ep, op).expect("room for one");
    let start = Instant::now();
    loop {
        if let Some(found) = duo.a.next() {
            return found;
        }
        assert!(start.elapsed() < WAIT, "an atomic is never over");
        sleep(Duration::from_micros(20));
    }
}

/// Memory whose words are as this function says, whose key is known.
fn words(duo: &mut Duo<Verbs>) -> Span {
    let memory = Span::leak(8 * WORDS);
    (0..WORDS).for_each(|i| put(memory.part(8 * i, 8).expect("a word"), 100 + i as u64));
    known(duo, memory, 9, BOTH);
    memory
}

fn is_by_device(device: &str) {
    let mut duo = duo(device);
    let memory = words(&mut duo);
    let one = One::new(duo.a.peer, 40, 8);
    for datatype in [Datatype::Uint64, Datatype::Int64] {
        put(memory.part(40, 8).expect("a word"), u64::MAX - 1);
        put(one.operand, 5);
        let found = completed_alone(&mut duo, &one.op(AtomicOp::Sum, datatype));
        assert_eq!((found.err, get(one.result), word(memory, 40)), (None, u64::MAX - 1, 3));
        for (compare, then) in [(4, 3), (3, 9)] {
            put(one.compare, compare);
            put(one.operand, 9);
            let found = completed_alone(&mut duo, &one.op(AtomicOp::Cswap, datatype));
            assert_eq!((found.err, get(one.result), word(memory, 40)), (None, 3, then));
        }
        assert_eq!(duo.counts.take(), [0, 0, 3, 24], "messages, their bytes, accesses, their bytes");
    }
    assert_eq!((word(memory, 32), word(memory, 48)), (104, 106), "the words beside it");
}

#[test]
fn fetch_add_and_compare_swap_of_64_bits_are_one_request_where_the_device_is_atomic_with_processors() {
    is_by_device("sv0:glob");
}

#[test]
fn fetch_add_and_compare_swap_are_one_request_on_a_small_device() {
    is_by_device("sv0:glob,nosrq,inline=16,sge=1,reads=1");
}

/// All are applied by the target's processor.
fn is_by_frames(duo: &mut Duo<Verbs>) {
    let memory = words(duo);
    let one = One::new(duo.a.peer, 40, 8);
    put(one.operand, 5);
    let found = completed(duo, &one.op(AtomicOp::Sum, Datatype::Uint64));
    assert_eq!((found.err, get(one.result), word(memory, 40)), (None, 105, 110));
    put(one.compare, 110);
    let found = completed(duo, &one.op(AtomicOp::Cswap, Datatype::Uint64));
    assert_eq!((found.err, get(one.result), word(memory, 40)), (None, 110, 5));
    assert_eq!(duo.counts.take()[2], 0, "accesses by the device");
}

#[test]
fn atomics_go_by_frames_where_the_device_is_atomic_with_itself_alone() {
    is_by_frames(&mut duo("sv0"));
}

#[test]
fn atomics_go_by_frames_where_the_device_has_none() {
    is_by_frames(&mut duo("sv0:noatomics"));
}

/// Both ends have to be so, whichever initiates.
#[test]
fn atomics_go_by_frames_where_one_of_the_two_devices_is_not_atomic_with_processors() {
    set("sv0:glob;sv1", &[]);
    let mut left = ["sv0", "sv1"].into_iter();
    let mut duo: Duo<Verbs> = Duo::new(|| {
        let options = verbs::Options { device: left.next().map(Into::into), ..options() };
        verbs::open(&options, std::net::Ipv4Addr::LOCALHOST.into()).expect("a device").0
    });
    is_by_frames(&mut duo);
    std::mem::swap(&mut duo.a, &mut duo.b);
    is_by_frames(&mut duo);
}

/// What a device cannot do, and what would be in another order than frames.
#[test]
fn other_atomics_go_by_frames() {
    let mut duo = duo("sv0:glob");
    let memory = words(&mut duo);
    let to = duo.a.peer;
    let (whole, askew, short) = (One::new(to, 40, 8), One::new(to, 44, 8), One::new(to, 80, 4));
    put(whole.operand, 2);
    put(short.operand, 2);
    let fence = OpFlags::COMPLETION | OpFlags::FENCE;
    let sum = AtomicOp::Sum;
    for (op, was) in [
        (whole.op(AtomicOp::Prod, Datatype::Uint64), 105),
        (whole.op(AtomicOp::AtomicRead, Datatype::Uint64), 210),
        (whole.op(AtomicOp::CswapNe, Datatype::Uint64), 210),
        (Atomic { flags: fence, ..whole.op(sum, Datatype::Uint64) }, 2),
        (short.op(sum, Datatype::Uint32), 110),
        (askew.op(sum, Datatype::Uint64), 106 << 32),
    ] {
        let op = if op.op == AtomicOp::AtomicRead { Atomic { operand: &[], ..op } } else { op };
        let found = completed(&mut duo, &op);
        let result = op.result[0];
        assert_eq!((found.err, get(result)), (None, was), "{:?} of {:?}", op.op, op.datatype);
        assert_eq!(duo.counts.take()[2], 0, "accesses by the device for {:?} of {:?}", op.op, op.datatype);
    }
    // One without a result, and one with data for the target.
    let none = Atomic { result: &[], ..whole.op(sum, Datatype::Uint64) };
    assert_eq!(completed(&mut duo, &none).err, None);
    let data = Atomic { data: Some(5), ..whole.op(sum, Datatype::Uint64) };
    assert_eq!(completed(&mut duo, &data).err, None);
    assert_eq!((word(memory, 40), duo.counts.take()[2]), (8, 0));
}

/// A word that may be read or written alone, or is outside, is not touched.
#[test]
fn a_word_that_may_not_be_read_and_written_is_refused() {
    let mut duo = duo("sv0:glob");
    let memory = filled(8 * WORDS, 3);
    let before = word(memory, 40);
    for (key, access) in [(9, Access::REMOTE_READ), (10, Access::REMOTE_WRITE)] {
        known(&mut duo, memory, key, access);
        let one = One { remote: there(40, 8, key), ..One::new(duo.a.peer, 40, 8) };
        put(one.operand, 5);
        for _ in 0..2 {
            let found = completed(&mut duo, &one.op(AtomicOp::Sum, Datatype::Uint64));
            assert_eq!((found.err, duo.counts.take()[2]), (Some(Error::Access), 0));
        }
    }
    known(&mut duo, memory, 11, BOTH);
    let one = One { remote: there(8 * WORDS as u64 - 4, 8, 11), ..One::new(duo.a.peer, 0, 8) };
    let found = completed(&mut duo, &one.op(AtomicOp::Sum, Datatype::Uint64));
    assert_eq!((found.err, word(memory, 40)), (Some(Error::Range), before));
}

/// Additions by the device, by frames and by the program's threads: none is lost.
#[test]
fn atomics_of_the_device_of_frames_and_of_the_processor_are_atomic_to_each_other() {
    const N: u64 = 400;
    let mut duo = duo("sv0:glob");
    let memory = words(&mut duo);
    let one = One::new(duo.a.peer, 40, 8);
    // SAFETY: an aligned word that is never freed, and that is accessed by atomics alone.
    let shared = unsafe { AtomicU64::from_ptr((memory.addr() + 40) as *mut u64) };
    shared.store(0, SeqCst);
    put(one.operand, 1);
    scope(|scope| {
        scope.spawn(|| {
            (0..1_000_000).for_each(|_| {
                shared.fetch_add(1 << 32, SeqCst);
            })
        });
        let mut last = 0;
        for i in 0..N {
            // Of every fourth nothing is fetched, which goes by a frame.
            let all = one.op(AtomicOp::Sum, Datatype::Uint64);
            let op = if i % 4 == 3 { Atomic { result: &[], ..all } } else { all };
            assert_eq!(completed(&mut duo, &op).err, None);
            if i % 4 != 3 {
                last = get(one.result) & 0xffff_ffff;
                assert_eq!(last, i, "additions before this one");
            }
        }
        assert_eq!(last, N - 2);
    });
    assert_eq!(shared.load(SeqCst), 1_000_000 << 32 | N);
    assert!(duo.counts.take()[2] >= N / 2, "accesses by the device");
}

/// One that frames carry is not overtaken by one of the device that is posted behind it.
#[test]
fn an_atomic_of_the_device_does_not_overtake_one_in_frames() {
    let mut duo = duo("sv0:glob");
    let memory = words(&mut duo);
    let (product, sum) = (One::new(duo.a.peer, 40, 8), One::new(duo.a.peer, 40, 8));
    put(product.operand, 3);
    put(sum.operand, 1);
    for _ in 0..20 {
        put(memory.part(40, 8).expect("a word"), 10);
        duo.post(|a| a.domain.atomic(a.ep, &product.op(AtomicOp::Prod, Datatype::Uint64)));
        duo.post(|a| a.domain.atomic(a.ep, &sum.op(AtomicOp::Sum, Datatype::Uint64)));
        let (of_a, _) = duo.complete(2, 0);
        assert!(of_a.iter().all(|c| c.err.is_none()));
        assert_eq!((get(product.result), get(sum.result), word(memory, 40)), (10, 30, 31));
    }
}

/// A Send is in no order with an Atomic that was posted before it.
#[test]
fn an_atomic_in_frames_waits_for_those_of_the_device() {
    let mut duo = duo("sv0:glob");
    let memory = words(&mut duo);
    let (product, sum) = (One::new(duo.a.peer, 40, 8), One::new(duo.a.peer, 40, 8));
    put(product.operand, 3);
    put(sum.operand, 1);
    put(memory.part(40, 8).expect("a word"), 10);
    duo.counts.holds.store(true, Relaxed);
    duo.a.domain.atomic(duo.a.ep, &sum.op(AtomicOp::Sum, Datatype::Uint64)).expect("room for one");
    let product_op = product.op(AtomicOp::Prod, Datatype::Uint64);
    for _ in 0..20 {
        assert_eq!(duo.a.domain.atomic(duo.a.ep, &product_op), Err(Error::Again));
    }
    duo.counts.holds.store(false, Relaxed);
    duo.post(|a| a.domain.atomic(a.ep, &product_op));
    let (of_a, _) = duo.complete(2, 0);
    assert!(of_a.iter().all(|c| c.err.is_none()));
    assert_eq!((get(sum.result), get(product.result), word(memory, 40)), (10, 11, 33));
}

/// The device has added, and the connection goes before that is reported: how the atomic ends. It is not repeated
/// by frames, also once the two have met again.
fn ends_with_its_connection(hands_over: bool) -> Option<Error> {
    let mut duo = duo("sv0:glob");
    duo.counts.hands_over.store(hands_over, Relaxed);
    let (memory, other) = (Span::leak(8 * WORDS), Span::leak(64));
    put(memory.part(40, 8).expect("a word"), 105);
    let mr = known(&mut duo, memory, 9, BOTH);
    let one = One::new(duo.a.peer, 40, 8);
    put(one.operand, 5);
    duo.counts.holds.store(true, Relaxed);
    duo.a.domain.atomic(duo.a.ep, &one.op(AtomicOp::Sum, Datatype::Uint64)).expect("room for one");
    let start = Instant::now();
    while word(memory, 40) != 110 {
        assert!(start.elapsed() < WAIT, "the device does not add");
        sleep(Duration::from_micros(50));
    }
    // What the device refuses then ends the connection.
    duo.b.domain.mr_close(mr).expect("memory that is taken back");
    let (here, remote) = ([filled(8, 1)], [there(0, 8, 9)]);
    duo.a.domain.rma(duo.a.ep, &write(duo.a.peer, &here, &remote, 2)).expect("room for one");
    let (of_a, _) = duo.complete(2, 0);
    let [first, second] = of_a[..] else { panic!("two") };
    assert_eq!(second.err, Some(Error::Reset));
    duo.counts.holds.store(false, Relaxed);
    duo.counts.held.lock().expect("no panic").clear();
    known(&mut duo, other, 9, BOTH);
    assert_eq!(word(memory, 40), 110, "added once");
    first.err
}

#[test]
fn an_atomic_whose_end_is_lost_with_its_connection_fails_and_is_not_repeated() {
    assert_eq!(ends_with_its_connection(false), Some(Error::Reset));
}

#[test]
fn an_atomic_that_the_device_has_done_before_its_connection_ended_has_not_failed() {
    assert_eq!(ends_with_its_connection(true), None);
}

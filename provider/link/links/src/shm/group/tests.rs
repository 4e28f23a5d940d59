use std::time::{Duration, Instant};

use hmem::{AtomicOp, Datatype, Span};
use link_api::{
    Arrival, FrameLink as _, GroupMemory, GroupName, GroupShape, INLINE, InSlot, Link as _, Opening,
    RmaLink as _, SLOTS,
};

use crate::shm::ShmLink;
use crate::shm::tests::open;

const SHAPE: GroupShape = GroupShape { members: 2, rank: 0, slot: 4096 };

/// Requests memory until there is an answer; both links are polled meanwhile.
fn request(by: &mut ShmLink, shape: GroupShape, of: &mut ShmLink, name: GroupName) -> Opening {
    let maker = by.peer(&of.addr());
    let begin = Instant::now();
    loop {
        assert!(by.poll().is_none() && of.poll().is_none());
        match by.groups().unwrap().open(shape, maker, name) {
            Opening::Pending => assert!(begin.elapsed() < Duration::from_secs(60), "nothing came"),
            answer => return answer,
        }
    }
}

fn memory(opening: Opening) -> Box<dyn GroupMemory> {
    match opening {
        Opening::Open(memory) => memory,
        other => panic!("{other:?}"),
    }
}

fn is_denied(opening: &Opening) -> bool {
    matches!(opening, Opening::Denied(_))
}

/// Two members, and their memory.
fn pair() -> (ShmLink, Box<dyn GroupMemory>, ShmLink, Box<dyn GroupMemory>) {
    let (mut a, mut b) = (open(), open());
    let to = a.peer(&b.addr());
    let (name, here) = a.groups().unwrap().create(SHAPE, &[to]).unwrap();
    let there = memory(request(&mut b, GroupShape { rank: 1, ..SHAPE }, &mut a, name));
    (a, here, b, there)
}

fn bytes(of: &[u8]) -> Span {
    let span = Span::leak(of.len());
    hmem::write(&[span], 0, of);
    span
}

fn text(span: Span) -> Vec<u8> {
    let mut bytes = vec![0; span.len()];
    hmem::read(&[span], 0, &mut bytes);
    bytes
}

#[test]
fn memory_comes_to_the_members_that_it_is_offered_to_and_no_other_peer() {
    let (mut a, mut b, mut c) = (open(), open(), open());
    let to = a.peer(&b.addr());
    let (name, _memory) = a.groups().unwrap().create(SHAPE, &[to]).unwrap();
    assert!(is_denied(&request(&mut c, SHAPE, &mut a, name)));
    let shape = GroupShape { rank: 1, ..SHAPE };
    memory(request(&mut b, shape, &mut a, name));
    // Again, and by no other name.
    memory(request(&mut b, shape, &mut a, name));
    for other in [GroupName { number: 9, ..name }, GroupName { maker: name.maker ^ 1, ..name }] {
        assert!(is_denied(&request(&mut b, shape, &mut a, other)));
    }
    a.groups().unwrap().withdraw(name);
    assert!(is_denied(&request(&mut b, shape, &mut a, name)));
}

#[test]
fn memory_of_another_shape_or_of_a_maker_that_ended_is_denied() {
    let (mut a, mut b) = (open(), open());
    let to = a.peer(&b.addr());
    let (name, memory) = a.groups().unwrap().create(SHAPE, &[to]).unwrap();
    for shape in [
        GroupShape { slot: 8192, ..SHAPE },
        GroupShape { members: 3, ..SHAPE },
        GroupShape { slot: 100, ..SHAPE },
    ] {
        assert!(is_denied(&request(&mut b, shape, &mut a, name)), "{shape:?}");
    }
    for shape in [GroupShape { members: 1, ..SHAPE }, GroupShape { rank: 2, ..SHAPE }] {
        assert!(a.groups().unwrap().create(shape, &[to]).is_err(), "{shape:?}");
    }
    let maker = b.peer(&a.addr());
    drop((a, memory));
    let begin = Instant::now();
    while !is_denied(&b.groups().unwrap().open(SHAPE, maker, name)) {
        b.poll();
        assert!(begin.elapsed() < Duration::from_secs(60), "is waited for");
    }
}

#[test]
fn a_step_is_here_when_it_is_published_by_that_name_and_wrong_by_another() {
    let (_a, here, _b, there) = pair();
    assert_eq!(there.arrival(0, 1, 7), Arrival::Awaited);
    here.publish(1, 7);
    assert_eq!((there.arrival(0, 1, 7), there.arrival(0, 1, 8)), (Arrival::Here, Arrival::Wrong));
    assert_eq!(here.arrival(1, 1, 7), Arrival::Awaited);
    // The slot of the step was filled for a later one: that cannot be.
    here.publish(1 + SLOTS, 7);
    assert_eq!(there.arrival(0, 1, 7), Arrival::Wrong);
    assert_eq!(there.arrival(0, 2, 7), Arrival::Awaited);
    here.publish(u64::MAX, 7);
    assert_eq!(there.arrival(0, SLOTS - 1, 7), Arrival::Wrong);
    there.finish(u64::MAX);
    assert_eq!((here.finished(1), here.finished(0)), (u64::MAX, 0));
}

#[test]
fn short_and_long_bytes_go_from_slot_to_slot() {
    let (_a, here, _b, there) = pair();
    for used in [8, INLINE, INLINE + 8, 4096] {
        for step in 1..=2 * SLOTS {
            let sent: Vec<u8> = (0..used).map(|i| (i as u64 + step) as u8 & 0x3f).collect();
            let slot = InSlot { member: 0, step, used, at: 0, len: used };
            assert!(here.put(slot, bytes(&sent)));
            assert!(there.put(InSlot { member: 1, ..slot }, bytes(&sent)));
            let part = InSlot { at: 3, len: used - 5, ..slot };
            let into = Span::leak(used - 5);
            assert!(there.get(part, into));
            assert_eq!(text(into), sent[3..used - 2]);
            // Into the reader's own slot, which the other sees.
            there.reduce(slot, None, (AtomicOp::Sum, Datatype::Uint8)).unwrap();
            let sum = Span::leak(used);
            assert!(here.get(InSlot { member: 1, ..slot }, sum));
            assert_eq!(text(sum), sent.iter().map(|b| b * 2).collect::<Vec<_>>());
            there.reduce(slot, Some(sum), (AtomicOp::Sum, Datatype::Uint8)).unwrap();
            assert_eq!(text(sum), sent.iter().map(|b| b * 3).collect::<Vec<_>>());
            assert!(!here.put(slot, Span::leak(used + 1)) && !there.get(slot, Span::leak(used - 1)));
        }
    }
}

#[test]
fn memory_stays_when_its_maker_has_ended() {
    let (a, here, _b, there) = pair();
    let slot = InSlot { member: 0, step: 1, used: 200, at: 0, len: 200 };
    assert!(here.put(slot, bytes(&[5; 200])));
    here.publish(1, 7);
    drop((a, here));
    let into = Span::leak(200);
    assert!(there.arrival(0, 1, 7) == Arrival::Here && there.get(slot, into));
    assert_eq!(text(into), [5; 200]);
}

#[test]
fn a_member_that_sleeps_is_woken_once() {
    let (_a, here, _b, there) = pair();
    assert!(!here.may_sleep());
    there.sleep();
    assert!(here.may_sleep());
    assert_eq!((here.wake_next(0), here.wake_next(2)), (Some(1), None));
    assert!(!here.may_sleep() && here.wake_next(0).is_none());
}

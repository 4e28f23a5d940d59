//! The completion queue: what peeks wait for, what they keep, and when they end.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::exec::{Cpu, Executor};
use crate::testing::{TestMemory, word};

type Queue = CompletionQueue<u32, Arc<TestMemory>>;

const SIZE: u32 = 3;
const PEEKS: u32 = 2;

/// Those of a peer that compares counts, and of one that looks at owner bits.
fn both() -> [Caps; 2] {
    [Caps::all(), Caps::all().difference(Caps::POLL_GEQ_DWORD)]
}

fn open(caps: Caps) -> (Arc<TestMemory>, Queue) {
    let memory = TestMemory::new(6);
    assert_eq!(Queue::bytes(SIZE, PEEKS), 24);
    (memory.clone(), Queue::open(memory, word(0), SIZE, PEEKS, caps).unwrap())
}

fn peek(queue: &mut Queue, whence: Whence, count: u64) -> (PeekId, Vec<Op>) {
    let mut list = List::new(3);
    let id = queue.peek(&mut list, whence, count).unwrap();
    (id, list.ops().to_vec())
}

/// Whether the list comes to its end now.
fn ends(memory: &Arc<TestMemory>, ops: &[Op]) -> bool {
    match Cpu::within(memory.clone(), Duration::ZERO).execute(ops) {
        Ok(()) => true,
        Err(failed) => {
            assert_eq!((failed.done, failed.error), (0, Error::TimedOut));
            false
        }
    }
}

#[test]
fn a_peek_ends_with_the_completion_that_it_is_for() {
    for caps in both() {
        let (memory, mut queue) = open(caps);
        // Several rounds of the queue, each completion with a peek by its number in all, and by how far it is
        // ahead.
        for n in 0..20u32 {
            let (_, absolute) = peek(&mut queue, Whence::Absolute, u64::from(n) + 1);
            let (_, relative) = peek(&mut queue, Whence::Relative, 1);
            assert_eq!(absolute.len(), 3);
            assert_eq!(absolute[0], relative[0]);
            assert!(!ends(&memory, &absolute) && !ends(&memory, &relative), "{n}");
            queue.complete(n).unwrap();
            assert_eq!(queue.poll(), Err(Error::Peeked));
            assert!(ends(&memory, &relative));
            assert_eq!(queue.poll(), Err(Error::Peeked), "the other one goes on");
            assert!(ends(&memory, &absolute));
            assert_eq!(queue.poll(), Ok(Some(n)));
        }
        assert_eq!((queue.poll(), queue.produced()), (Ok(None), 20));
    }
}

#[test]
fn a_peek_for_several_waits_for_the_last_and_keeps_that_alone() {
    for caps in both() {
        let (memory, mut queue) = open(caps);
        (0..2).for_each(|n| queue.complete(n).unwrap());
        assert_eq!(queue.poll(), Ok(Some(0)));
        let (_, ops) = peek(&mut queue, Whence::Relative, 3);
        queue.complete(2).unwrap();
        assert_eq!((queue.poll(), queue.poll()), (Ok(Some(1)), Ok(Some(2))));
        assert!(!ends(&memory, &ops));
        queue.complete(3).unwrap();
        assert_eq!(queue.poll(), Err(Error::Peeked));
        assert!(ends(&memory, &ops));
        assert_eq!(queue.poll(), Ok(Some(3)));
    }
}

#[test]
fn what_is_consumed_needs_no_bytecode() {
    let (memory, mut queue) = open(Caps::all());
    queue.complete(0).unwrap();
    assert_eq!(queue.poll(), Ok(Some(0)));
    let (id, ops) = peek(&mut queue, Whence::Absolute, 1);
    assert!(ops.is_empty() && ends(&memory, &ops));
    assert_eq!(queue.abort(id), Ok(()));
}

#[test]
fn a_peek_is_for_1_to_as_many_as_the_queue_has() {
    let (_, mut queue) = open(Caps::all());
    queue.complete(0).unwrap();
    queue.poll().unwrap();
    let mut list = List::new(9);
    for (whence, count, ahead) in [
        (Whence::Relative, 0, 0),
        (Whence::Absolute, 0, 0),
        (Whence::Relative, 4, 4),
        (Whence::Absolute, 5, 4),
        (Whence::Relative, u64::MAX, u64::MAX),
    ] {
        let refused = queue.peek(&mut list, whence, count).unwrap_err();
        assert_eq!(refused, Error::PeekRange { ahead, size: SIZE });
        assert_eq!(refused.errno(), libc::E2BIG);
    }
    assert!(list.ops().is_empty());
    assert!(queue.peek(&mut list, Whence::Absolute, 4).is_ok());
}

#[test]
fn a_short_list_begins_no_peek() {
    let (_, mut queue) = open(Caps::all());
    for room in 0..3 {
        let refused = queue.peek(&mut List::new(room), Whence::Relative, 1);
        assert_eq!(refused, Err(Error::NoSpace { needed: 3, room }));
    }
    queue.complete(1).unwrap();
    assert_eq!(queue.poll(), Ok(Some(1)));
}

#[test]
fn an_aborted_peek_keeps_nothing_and_its_late_end_ends_no_other() {
    for caps in both() {
        let (memory, mut queue) = open(caps);
        let (first, stale) = peek(&mut queue, Whence::Relative, 1);
        queue.complete(0).unwrap();
        assert_eq!(queue.poll(), Err(Error::Peeked));
        assert_eq!(queue.abort(first), Ok(()));
        assert_eq!(queue.abort(first), Err(Error::NoPeek));
        // Its place is another's now, which a late end of the first does not end.
        let (second, ops) = peek(&mut queue, Whence::Relative, 1);
        assert!(ends(&memory, &stale));
        assert_eq!(queue.poll(), Err(Error::Peeked));
        assert!(ends(&memory, &ops));
        assert_eq!(queue.abort(second), Err(Error::NoPeek), "it is over");
        assert_eq!(queue.poll(), Ok(Some(0)));
    }
}

#[test]
fn places_of_peeks_are_used_again_when_they_are_over() {
    let (memory, mut queue) = open(Caps::all());
    queue.complete(0).unwrap();
    let (first, ops) = peek(&mut queue, Whence::Relative, 1);
    peek(&mut queue, Whence::Relative, 1);
    let full = queue.peek(&mut List::new(3), Whence::Relative, 1);
    assert_eq!(full, Err(Error::Peeks(2)));
    assert!(ends(&memory, &ops));
    let (third, _) = peek(&mut queue, Whence::Relative, 1);
    assert_eq!((first.slot, queue.abort(first)), (third.slot, Err(Error::NoPeek)));
}

#[test]
fn a_queue_holds_its_size() {
    for caps in both() {
        let (memory, mut queue) = open(caps);
        (0..SIZE).for_each(|n| queue.complete(n).unwrap());
        assert_eq!(queue.complete(9), Err(Error::Overrun(3)));
        // One that is to come would have the entry of one that is there.
        queue.poll().unwrap();
        let (_, ops) = peek(&mut queue, Whence::Relative, 3);
        assert!(!ends(&memory, &ops));
        queue.complete(3).unwrap();
        assert!(ends(&memory, &ops));
    }
}

#[test]
fn what_a_peer_lacks_is_found_when_a_queue_is_opened() {
    let memory = TestMemory::new(6);
    let open = |base, size, caps| Queue::open(memory.clone(), base, size, PEEKS, caps).err();
    let lacks = Caps::all().difference(Caps::POLL_GEQ_DWORD | Caps::POLL_NOR_DWORD);
    assert_eq!(open(word(0), SIZE, lacks), Some(Error::Lacks(Caps::POLL_NOR_DWORD)));
    assert!(matches!(open(word(1), SIZE, Caps::all()), Some(Error::OutOfPlace(..))));
    assert!(matches!(open(word(0), 0, Caps::all()), Some(Error::Setup(_))));
}

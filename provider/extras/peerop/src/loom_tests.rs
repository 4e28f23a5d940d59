//! The order of accesses under loom: the operations as they are made, executed by threads over memory without
//! any order but that of fences; in each twin one side has none. Loom does not move a load behind a store of
//! the same thread, so that the fences by which a word is given back have no twin that fails.

use std::sync::Arc;
use std::time::Instant;

use loom::thread;

use crate::cq::{CompletionQueue, Whence};
use crate::error::Error;
use crate::exec::{Cpu, Executor};
use crate::memory::Memory;
use crate::op::{List, Op};
use crate::place::Caps;
use crate::queue::SendQueue;
use crate::replay::Pair;
use crate::testing::{TestMemory, word};

/// A peer without counts or stores of 8 bytes, which loom's words have not.
fn narrow() -> Caps {
    Caps::all().difference(Caps::STORE_QWORD | Caps::POLL_GEQ_DWORD)
}

fn cpu(memory: Arc<TestMemory>) -> Cpu<Arc<TestMemory>, impl FnMut(Instant) -> Result<(), Error>> {
    Cpu::new(memory, |_| {
        thread::yield_now();
        Ok(())
    })
}

fn run(memory: &Arc<TestMemory>, ops: &[Op]) {
    cpu(memory.clone()).execute(ops).unwrap();
}

const DATA: u64 = 10;

/// Two replays on each side; whether the sender and the receiver have fences.
fn replays(sender: bool, receiver: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let memory = TestMemory::new(12);
        let pair = Pair { flag: word(0), credit: word(1) };
        pair.prepare(&memory).unwrap();
        let (own, other) = (memory.side(sender), memory.side(receiver));
        let receiver = thread::spawn(move || {
            for n in 1..=2 {
                run(&other, &pair.wait());
                assert_eq!(other.load32(word(DATA)), Ok(n), "stale data");
                run(&other, &pair.release());
            }
        });
        for n in 1..=2 {
            run(&own, &pair.acquire());
            run(&own, &[Op::Store32 { to: word(DATA), value: n }]);
            run(&own, &pair.signal());
        }
        receiver.join().unwrap();
    });
}

#[test]
fn data_is_there_before_its_flag() {
    replays(true, true);
}

#[test]
#[should_panic(expected = "stale data")]
fn twin_of_the_sender_without_fences() {
    replays(false, true);
}

#[test]
#[should_panic(expected = "stale data")]
fn twin_of_the_receiver_without_fences() {
    replays(true, false);
}

/// What a device wrote for a send is there when the doorbell releases it; whether the device and the CPU have
/// fences.
fn commits(device: bool, cpu: bool) {
    loom::model(move || {
        let memory = TestMemory::new(12);
        let mut queue = SendQueue::open(memory.side(cpu), word(0), 2, narrow()).unwrap();
        let mut list = List::new(2);
        queue.post(7).unwrap();
        queue.commit(&mut list).unwrap();
        let device = memory.side(device);
        let device = thread::spawn(move || {
            run(&device, &[Op::Store32 { to: word(DATA), value: 5 }]);
            run(&device, list.ops());
        });
        for request in queue.release().unwrap() {
            assert_eq!((request, memory.load32(word(DATA))), (7, Ok(5)), "stale data");
        }
        device.join().unwrap();
        queue.release().unwrap();
        assert!(queue.is_empty(), "what was not released before is now");
    });
}

#[test]
fn data_is_there_before_the_doorbell() {
    commits(true, true);
}

#[test]
#[should_panic(expected = "stale data")]
fn twin_of_a_commit_without_its_fence() {
    commits(false, true);
}

#[test]
#[should_panic(expected = "stale data")]
fn twin_of_the_release_without_its_fence() {
    commits(true, false);
}

/// What arrived is there when a peek for its completion ends; whether the CPU and the device have fences.
fn peeks(cpu: bool, device: bool) {
    loom::model(move || {
        let memory = TestMemory::new(12);
        let mut queue = CompletionQueue::open(memory.side(cpu), word(0), 1, 1, narrow()).unwrap();
        let mut list = List::new(3);
        queue.peek(&mut list, Whence::Relative, 1).unwrap();
        let device = memory.side(device);
        let device = thread::spawn(move || {
            run(&device, list.ops());
            assert_eq!(device.load32(word(DATA)), Ok(5), "stale data");
        });
        memory.store32(word(DATA), 5).unwrap();
        queue.complete(()).unwrap();
        device.join().unwrap();
        assert_eq!(queue.poll(), Ok(Some(())));
    });
}

#[test]
fn data_is_there_before_its_completion() {
    peeks(true, true);
}

#[test]
#[should_panic(expected = "stale data")]
fn twin_of_a_completion_without_its_fence() {
    peeks(false, true);
}

#[test]
#[should_panic(expected = "stale data")]
fn twin_of_a_peek_without_its_fence() {
    peeks(true, false);
}

//! The order of accesses under loom: the operations as they are made, executed by threads over memory without
//! any order but that of fences; the twin has none.

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

/// Two replays on each side.
fn replays(fences: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let memory = TestMemory::with(12, fences);
        let pair = Pair { flag: word(0), credit: word(1) };
        pair.prepare(&memory).unwrap();
        let own = memory.clone();
        let receiver = thread::spawn(move || {
            for n in 1..=2 {
                run(&own, &pair.wait());
                assert_eq!(own.load32(word(DATA)), Ok(n), "stale data");
                run(&own, &pair.release());
            }
        });
        for n in 1..=2 {
            run(&memory, &pair.acquire());
            run(&memory, &[Op::Store32 { to: word(DATA), value: n }]);
            run(&memory, &pair.signal());
        }
        receiver.join().unwrap();
    });
}

#[test]
fn data_is_there_before_its_flag() {
    replays(true);
}

#[test]
#[should_panic(expected = "stale data")]
fn twin_of_flag_and_credit_without_fences() {
    replays(false);
}

/// What a device wrote for a send is there when the doorbell releases it.
fn commits(fences: bool) {
    loom::model(move || {
        let memory = TestMemory::with(12, fences);
        let mut queue = SendQueue::open(memory.clone(), word(0), 2, narrow()).unwrap();
        let mut list = List::new(2);
        queue.post(7).unwrap();
        queue.commit(&mut list).unwrap();
        let device = memory.clone();
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
    commits(true);
}

#[test]
#[should_panic(expected = "stale data")]
fn twin_of_the_doorbell_without_fences() {
    commits(false);
}

/// What arrived is there when a peek for its completion ends.
fn peeks(fences: bool) {
    loom::model(move || {
        let memory = TestMemory::with(12, fences);
        let mut queue = CompletionQueue::open(memory.clone(), word(0), 1, 1, narrow()).unwrap();
        let mut list = List::new(3);
        queue.peek(&mut list, Whence::Relative, 1).unwrap();
        let device = memory.clone();
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
    peeks(true);
}

#[test]
#[should_panic(expected = "stale data")]
fn twin_of_the_completion_without_fences() {
    peeks(false);
}

//! The send queue: what leaves when, and what is taken back.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::exec::{Cpu, Executor};
use crate::testing::{TestMemory, word};

fn open(depth: usize) -> (Arc<TestMemory>, SendQueue<u32, Arc<TestMemory>>) {
    let memory = TestMemory::new(4);
    (memory.clone(), SendQueue::open(memory, word(0), depth, Caps::all()).unwrap())
}

fn post(queue: &mut SendQueue<u32, Arc<TestMemory>>, requests: std::ops::Range<u32>) {
    requests.for_each(|r| queue.post(r).unwrap());
}

fn commit(queue: &mut SendQueue<u32, Arc<TestMemory>>) -> (CommitId, Vec<Op>) {
    let mut list = List::new(2);
    let id = queue.commit(&mut list).unwrap();
    (id, list.ops().to_vec())
}

fn run(memory: &Arc<TestMemory>, ops: &[Op]) {
    Cpu::within(memory.clone(), Duration::from_secs(10)).execute(ops).unwrap();
}

#[test]
fn nothing_leaves_before_the_bytecode_runs_then_all_of_the_batch_does() {
    let (memory, mut queue) = open(20);
    post(&mut queue, 0..20);
    assert_eq!(queue.release(), Ok(vec![]), "post only queues");
    let (_, ops) = commit(&mut queue);
    assert_eq!(queue.release(), Ok(vec![]), "to commit makes bytecode");
    assert_eq!(ops.len(), 2);
    assert!(matches!(ops[..], [Op::Fence(_), Op::Store64 { value: 20, .. }]), "{ops:?}");
    run(&memory, &ops);
    assert_eq!(queue.release(), Ok((0..20).collect()));
    assert_eq!((queue.release(), queue.is_empty()), (Ok(vec![]), true));
}

#[test]
fn a_short_list_commits_nothing() {
    let (memory, mut queue) = open(4);
    post(&mut queue, 0..2);
    let mut short = List::new(1);
    let refused = queue.commit(&mut short).unwrap_err();
    assert_eq!((&refused, refused.errno()), (&Error::NoSpace { needed: 2, room: 1 }, libc::ENOSPC));
    assert!(short.ops().is_empty());
    assert_eq!(queue.rollback(Rollback::Uncommitted), Ok(vec![0, 1]), "they are still uncommitted");
    post(&mut queue, 5..6);
    let (_, ops) = commit(&mut queue);
    run(&memory, &ops);
    assert_eq!(queue.release(), Ok(vec![5]));
}

#[test]
fn the_queue_takes_its_depth_and_a_commit_needs_a_request() {
    let (memory, mut queue) = open(2);
    assert_eq!(queue.commit(&mut List::new(9)), Err(Error::NothingPosted));
    post(&mut queue, 0..2);
    assert_eq!(queue.post(2), Err(Error::QueueFull(2)));
    let (_, ops) = commit(&mut queue);
    assert_eq!(queue.commit(&mut List::new(9)), Err(Error::NothingPosted));
    run(&memory, &ops);
    assert_eq!(queue.release(), Ok(vec![0, 1]));
    post(&mut queue, 2..4);
}

#[test]
fn the_last_commit_is_rolled_back_and_earlier_ones_with_those_after_them() {
    let (memory, mut queue) = open(9);
    post(&mut queue, 0..1);
    let (first, ops) = commit(&mut queue);
    post(&mut queue, 1..3);
    let (second, _) = commit(&mut queue);
    post(&mut queue, 3..4);
    let (third, _) = commit(&mut queue);
    post(&mut queue, 4..5);
    assert_eq!(queue.rollback(Rollback::Commit(second)), Err(Error::Later(1)));
    assert_eq!(queue.rollback(Rollback::Late(second)), Ok(vec![1, 2, 3]));
    for gone in [second, third] {
        assert_eq!(queue.rollback(Rollback::Late(gone)), Err(Error::NoCommit));
    }
    // What is posted and uncommitted stays, and leaves with the next commit.
    let (fourth, last) = commit(&mut queue);
    run(&memory, &ops);
    assert_eq!(queue.rollback(Rollback::Late(first)), Err(Error::Released));
    assert_eq!(queue.release(), Ok(vec![0]));
    assert_eq!(queue.rollback(Rollback::Commit(first)), Err(Error::NoCommit));
    run(&memory, &last);
    assert_eq!(queue.rollback(Rollback::Commit(fourth)), Err(Error::Released));
    assert_eq!((queue.release(), queue.len()), (Ok(vec![4]), 0));
}

#[test]
fn bytecode_that_was_rolled_back_releases_nothing_of_later_posts() {
    let (memory, mut queue) = open(4);
    post(&mut queue, 0..2);
    let (id, stale) = commit(&mut queue);
    assert_eq!(queue.rollback(Rollback::Commit(id)), Ok(vec![0, 1]));
    post(&mut queue, 7..9);
    let (_, ops) = commit(&mut queue);
    run(&memory, &stale);
    assert_eq!(queue.release(), Ok(vec![]));
    run(&memory, &ops);
    assert_eq!(queue.release(), Ok(vec![7, 8]));
}

#[test]
fn room_comes_back_with_rollbacks() {
    let (_, mut queue) = open(2);
    for n in 0..1000 {
        post(&mut queue, n..n + 2);
        let (id, _) = commit(&mut queue);
        assert_eq!(queue.rollback(Rollback::Commit(id)), Ok(vec![n, n + 1]));
    }
    assert_eq!((queue.requests.len(), queue.commits.len()), (0, 0));
}

#[test]
fn a_doorbell_that_no_commit_wrote_is_an_error() {
    let (memory, mut queue) = open(4);
    post(&mut queue, 0..3);
    for forged in [1, 3, 4, 1 << 20] {
        memory.store32(word(0), forged).unwrap();
        let refused = queue.release().unwrap_err();
        assert_eq!((refused.clone(), refused.errno()), (Error::Doorbell(forged), libc::EPROTO));
    }
    memory.store32(word(0), 0).unwrap();
    assert_eq!(queue.release(), Ok(vec![]));
}

#[test]
fn counts_wrap_with_a_peer_that_stores_4_bytes() {
    let memory = TestMemory::new(4);
    let caps = Caps::all().difference(Caps::STORE_QWORD);
    let mut queue = SendQueue::open(memory.clone(), word(0), 4, caps).unwrap();
    let near = u64::from(u32::MAX) - 1;
    (queue.first, queue.committed, queue.posted) = (near, near, near);
    memory.store32(word(0), near as u32).unwrap();
    for n in 0..4 {
        queue.post(n).unwrap();
        let (_, ops) = commit(&mut queue);
        assert!(matches!(ops[1], Op::Store32 { .. }));
        run(&memory, &ops);
        assert_eq!(queue.release(), Ok(vec![n]));
    }
}

#[test]
fn what_a_peer_lacks_is_found_when_a_queue_is_opened() {
    let memory = TestMemory::new(4);
    let open = |doorbell, depth, caps| SendQueue::<u32, _>::open(memory.clone(), doorbell, depth, caps).err();
    let lacks = Caps::all().difference(Caps::FENCE);
    assert_eq!(open(word(0), 1, lacks), Some(Error::Lacks(Caps::FENCE)));
    assert_eq!(open(word(0), 1, Caps::FENCE), Some(Error::Lacks(Caps::STORE_DWORD)));
    assert!(matches!(open(word(1), 1, Caps::all()), Some(Error::OutOfPlace(..))), "8 bytes, aligned");
    assert!(matches!(open(word(4), 1, Caps::all()), Some(Error::OutOfPlace(..))));
    assert!(matches!(open(word(0), 0, Caps::all()), Some(Error::Setup(_))));
}

//! A send queue whose requests leave when bytecode says so.
//!
//! Posting only queues. A commit makes the bytecode that releases all that was posted before it: a fence, so
//! that what the device wrote for the sends is there, and one store to the doorbell. The store's value is
//! the number of requests that are released in all. What sends (the transport, or an agent of its own) reads
//! the doorbell ([`SendQueue::release`]). An adapter needs two stores, of a doorbell record and of its
//! register; memory that software reads needs one. The commits of a queue are executed in their order: by
//! one stream, or by streams that wait for each other.
//!
//! Numbers are not used again: bytecode of a commit that was rolled back rings for requests that are gone,
//! so that nothing leaves should it run after all.

use std::collections::VecDeque;

use crate::error::Error;
use crate::memory::Memory;
use crate::op::{List, Op};
use crate::place::{Caps, Fence, Place};

/// A commit of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitId(u64);

/// What a rollback takes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rollback {
    /// The last commit.
    Commit(CommitId),
    /// A commit, and those after it (ABORT_LATE).
    Late(CommitId),
    /// What is posted and in no commit (ABORT_UNCOMMITTED).
    Uncommitted,
}

/// Commits that are not executed yet: the numbers of their requests end here.
#[derive(Clone, Copy, Debug)]
struct Commit {
    id: CommitId,
    begin: u64,
    end: u64,
    /// Rolled back: its bytecode is not to be executed.
    gone: bool,
}

/// Requests, in the order in which they leave. The mark of PeerDirect Async is that an endpoint is opened
/// with such a queue: it has no other one.
#[derive(Debug)]
pub struct SendQueue<R, M> {
    memory: M,
    doorbell: Place,
    wide: bool,
    depth: usize,
    /// Those rolled back are `None`.
    requests: VecDeque<Option<R>>,
    /// Number of the first of `requests`, and where the committed ones and all end.
    first: u64,
    committed: u64,
    posted: u64,
    live: usize,
    commits: VecDeque<Commit>,
    next: u64,
}

impl<R, M: Memory> SendQueue<R, M> {
    /// One of `depth` requests whose doorbell is 8 bytes, for a peer with these capabilities.
    pub fn open(memory: M, doorbell: Place, depth: usize, caps: Caps) -> Result<SendQueue<R, M>, Error> {
        if !(1..=1 << 30).contains(&depth) {
            return Err(Error::Setup("a send queue has 1 to 2^30 requests: choose a depth among these"));
        }
        let wide = caps.contains(Caps::STORE_QWORD);
        let needs = Caps::FENCE | if wide { Caps::STORE_QWORD } else { Caps::STORE_DWORD };
        if !caps.contains(needs) {
            return Err(Error::Lacks(needs.difference(caps)));
        }
        memory.check(doorbell, 8, 8)?;
        memory.store64(doorbell, 0)?;
        let (requests, commits) = (VecDeque::new(), VecDeque::new());
        let (first, committed, posted, live, next) = (0, 0, 0, 0, 1);
        Ok(SendQueue {
            memory,
            doorbell,
            wide,
            depth,
            requests,
            first,
            committed,
            posted,
            live,
            commits,
            next,
        })
    }

    /// Queues a request. It leaves when bytecode of a later commit was executed.
    pub fn post(&mut self, request: R) -> Result<(), Error> {
        if self.live == self.depth || self.requests.len() > 1 << 30 {
            return Err(Error::QueueFull(self.depth));
        }
        self.requests.push_back(Some(request));
        self.posted += 1;
        self.live += 1;
        Ok(())
    }

    /// Adds the bytecode to `list` that releases all that is posted. If there is not room for it, nothing is
    /// committed.
    pub fn commit(&mut self, list: &mut List) -> Result<CommitId, Error> {
        if self.posted == self.committed {
            return Err(Error::NothingPosted);
        }
        let (to, value) = (self.doorbell, self.posted);
        let ring =
            if self.wide { Op::Store64 { to, value } } else { Op::Store32 { to, value: value as u32 } };
        list.append(&[Op::Fence(Fence::RELEASE), ring])?;
        let id = CommitId(self.next);
        self.next += 1;
        self.commits.push_back(Commit { id, begin: self.committed, end: self.posted, gone: false });
        self.committed = self.posted;
        Ok(id)
    }

    /// Takes requests back whose bytecode was not executed, and will not be; they are what is returned, in
    /// their order.
    pub fn rollback(&mut self, what: Rollback) -> Result<Vec<R>, Error> {
        let (begin, end) = match what {
            Rollback::Uncommitted => (self.committed, self.posted),
            Rollback::Commit(id) | Rollback::Late(id) => {
                let rung = self.rung()?;
                let at = self.commits.iter().position(|c| c.id == id && !c.gone).ok_or(Error::NoCommit)?;
                let later = self.commits.iter().skip(at + 1).filter(|c| !c.gone).count();
                if later > 0 && what == Rollback::Commit(id) {
                    return Err(Error::Later(later));
                }
                let begin = self.commits[at].begin;
                if rung > begin {
                    return Err(Error::Released);
                }
                self.commits.iter_mut().skip(at).for_each(|c| c.gone = true);
                (begin, self.committed)
            }
        };
        let range = (begin - self.first) as usize..(end - self.first) as usize;
        let taken: Vec<R> = self.requests.range_mut(range).filter_map(Option::take).collect();
        self.live -= taken.len();
        if what == Rollback::Uncommitted {
            // No bytecode has their numbers.
            self.requests.truncate((begin - self.first) as usize);
            self.posted = self.committed;
        } else if self.commits.iter().all(|c| c.gone) {
            // No bytecode rings that is to be executed: the queue goes on behind.
            self.requests.drain(..(end - self.first) as usize);
            self.commits.clear();
            self.first = end;
            self.memory.store64(self.doorbell, end)?;
        }
        Ok(taken)
    }

    /// The requests that bytecode has released since the last call, in their order.
    pub fn release(&mut self) -> Result<Vec<R>, Error> {
        let rung = self.rung()?;
        let count = (rung - self.first) as usize;
        let released: Vec<R> = self.requests.drain(..count).flatten().collect();
        self.first = rung;
        self.live -= released.len();
        while self.commits.front().is_some_and(|c| c.end <= rung) {
            self.commits.pop_front();
        }
        Ok(released)
    }

    /// Requests that have not left.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether all have left.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// How many requests the doorbell has released in all. A value from before those that have left releases
    /// nothing: it is of a commit that was rolled back.
    fn rung(&self) -> Result<u64, Error> {
        let word = self.memory.load32(self.doorbell)?;
        self.memory.fence();
        // Fewer than 2^31 are queued: the difference has a sign.
        let ahead = i64::from(word.wrapping_sub(self.first as u32) as i32);
        if ahead <= 0 {
            return Ok(self.first);
        }
        let rung = self.first + ahead as u64;
        if self.commits.iter().any(|c| c.end == rung) { Ok(rung) } else { Err(Error::Doorbell(word)) }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "queue_tests.rs"]
mod tests;

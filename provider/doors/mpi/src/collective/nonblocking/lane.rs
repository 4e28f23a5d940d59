//! What one rank has under way on one communicator: collectives whose outcome is not known yet, in the order
//! of their calls, and those that go on, in any order.

use std::collections::VecDeque;

use core::ffi::c_int;

use device_ops::board::{Kind, Outcome, SharedWords};
use device_ops::window::{Corrupt, Window};

use super::running::{Call, Running};
use crate::collective::marks::{Left, Marks};
use crate::collective::messages::{Messages, is_complete, test_some};
use crate::collective::part::Part;
use crate::library::{Library, pmpi};

/// Tags of messages: the first one, and how many there are.
const FIRST: c_int = 2;
const TAGS: u32 = 1 << 14;
/// The most collectives that go on at once; the others wait. Fewer than there are tags.
const MOST: usize = 1 << 12;
/// How many of them, the oldest ones, are polled: the oldest one of all ranks is among them at each rank.
const POLLED: usize = 64;
/// Polls without progress between two searches for ranks that are gone.
const SEARCH: u32 = 1 << 12;
const CORRUPT: &str = "a rank has written words that cannot be: does it run another version of this library?";

/// Of a rank that has marked itself as [`Left::Broken`].
fn has_ended_all(rank: usize) -> String {
    format!("rank {rank} calls no more collectives that return a request, after an error")
}

/// A collective without outcome.
#[derive(Debug)]
struct Queued {
    call: Call,
    /// This rank's part by its device.
    part: Option<Part>,
    /// How many outcomes are still to come; whether those that came say that devices do it.
    left: usize,
    is_by_devices: bool,
}

/// One communicator's.
#[derive(Debug)]
pub(super) struct Lane {
    window: Window<SharedWords>,
    messages: Messages,
    /// Its number in Fortran.
    number: Box<c_int>,
    marks: Marks,
    queue: VecDeque<Queued>,
    /// What is to be posted, in order.
    unposted: VecDeque<Kind>,
    running: Vec<Running>,
    /// The one whose own request is tested first.
    asked: usize,
    tags: u32,
    /// Polls without progress.
    idle: u32,
    /// Why there are no more of them.
    over: Option<String>,
    /// Whether MPI_Finalize has begun.
    is_last: bool,
}

/// What a rank posts of a collective: whether devices can do it and, where ranks know their own blocks alone,
/// whether those are short.
#[derive(Clone, Copy, Debug)]
pub(super) struct Says {
    pub(super) is_possible: bool,
    pub(super) is_short: Option<bool>,
}

impl Says {
    fn kinds(self) -> impl Iterator<Item = Kind> {
        let of = |is: bool| if is { Kind::Device } else { Kind::Host };
        // A rank that cannot keeps no other one waiting.
        let short = self.is_short.map(|is_short| of(is_short && self.is_possible));
        [Some(of(self.is_possible)), short].into_iter().flatten()
    }
}

impl Lane {
    pub(super) fn new(window: Window<SharedWords>, messages: Messages, marks: Marks) -> Lane {
        let number = Box::new(messages.number());
        let (queue, unposted, running) = (VecDeque::new(), VecDeque::new(), Vec::new());
        Lane {
            window,
            messages,
            number,
            marks,
            queue,
            unposted,
            running,
            asked: 0,
            tags: 0,
            idle: 0,
            over: None,
            is_last: false,
        }
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.running.is_empty()
    }

    /// Why no collective can be posted any more: each rank has its part in a later one.
    pub(super) fn is_over(&self) -> Option<String> {
        self.over.clone().or_else(|| {
            let mut ranks = 0..self.marks.ranks();
            ranks.find(|rank| self.marks.has_left(*rank) == Some(Left::Broken)).map(has_ended_all)
        })
    }

    /// MPI_Finalize has begun: this rank calls no more of them.
    pub(super) fn leave(&mut self) {
        self.is_last = true;
        self.say_left();
    }

    /// Once all is posted, others need not wait for more.
    fn say_left(&self) {
        if self.is_last && self.unposted.is_empty() {
            self.marks.mark_left(Left::Finalize);
        }
    }

    /// The rank at which a device has failed.
    pub(super) fn one_failed(&self) -> Option<usize> {
        self.marks.one_failed()
    }

    /// The communicator that the MPI's own collectives are called with, and the address of its number in
    /// Fortran. Their errors go to the handler of `comm`.
    ///
    /// # Safety
    /// `comm` is the communicator.
    pub(super) unsafe fn native(&self, comm: usize) -> (usize, usize) {
        let mut handler = 0usize;
        // SAFETY: valid places; the caller's promise.
        unsafe {
            if pmpi!("Comm_get_errhandler", comm, &raw mut handler).is_ok() {
                let _ = pmpi!("Comm_set_errhandler", self.messages.comm(), handler);
                let _ = pmpi!("Errhandler_free", &raw mut handler);
            }
        }
        (self.messages.comm(), (&raw const *self.number) as usize)
    }

    /// Posts a collective to which this rank passes host memory, where that can be done now: then it is the
    /// MPI's, and may begin at once.
    pub(super) fn passes_host(&mut self, says: Says) -> bool {
        if says.is_possible || !self.queue.is_empty() || self.running.len() >= MOST {
            return false;
        }
        let kinds = says.kinds().count();
        if self.window.has_room(kinds as u64) != Ok(true) {
            return false;
        }
        // With host memory the outcome is known at once.
        (0..kinds).all(|_| {
            self.window.post(Kind::Host);
            self.window.outcome() == Ok(Some(Outcome::Staged))
        })
    }

    /// One more collective.
    pub(super) fn push(&mut self, call: Call, part: Option<Part>, says: Says) {
        let part = part.filter(|_| says.is_possible);
        let left = says.kinds().count();
        self.unposted.extend(says.kinds());
        self.queue.push_back(Queued { call, part, left, is_by_devices: true });
    }

    /// Goes on with everything, as far as that is possible now; whether it went on.
    ///
    /// # Safety
    /// The buffers of the calls are valid, and the MPI's transport takes device memory.
    pub(super) unsafe fn poll(&mut self, library: &Library) -> bool {
        // An error ends the request, and is raised by the call that completes it.
        let _quiet = self.messages.quiet(library);
        // SAFETY: the caller's promise; so below.
        let went = unsafe { self.begin_agreed(library) | self.go_on(library) };
        self.idle = if went { 0 } else { self.idle.wrapping_add(1) };
        if self.idle % SEARCH == SEARCH - 1 {
            // SAFETY: as above.
            unsafe { self.search(library) };
        }
        self.say_left();
        went
    }

    unsafe fn begin_agreed(&mut self, library: &Library) -> bool {
        if self.over.is_some() {
            return false;
        }
        // SAFETY: the caller's promise.
        let agreed = unsafe { self.agree(library) };
        agreed.unwrap_or_else(|Corrupt(_)| {
            self.end_all(library, CORRUPT);
            // Others may wait for what this rank does not post.
            self.marks.mark_left(Left::Broken);
            true
        })
    }

    /// Goes on with what has begun.
    unsafe fn go_on(&mut self, library: &Library) -> bool {
        let before = self.running.len();
        let polled = before.min(POLLED);
        let (mut requests, mut of, mut failed) = (Vec::new(), Vec::new(), vec![None; polled]);
        for (n, one) in self.running.iter_mut().take(polled).enumerate() {
            requests.extend_from_slice(one.messages());
            of.resize(requests.len(), n);
        }
        if !is_complete(&library.abi, &requests) {
            // SAFETY: requests of this library's, whose errors are answered here.
            for (at, code) in unsafe { test_some(&library.abi, &mut requests) } {
                failed[of[at]].get_or_insert(code);
            }
        }
        let places = self.running.iter_mut().take(polled).flat_map(Running::messages);
        places.zip(requests).for_each(|(place, request)| *place = request);
        // One that is under way has the MPI progress, and yield: one in a poll, and another one in the next.
        for n in 0..polled {
            let one = &mut self.running[(self.asked + n) % polled];
            if one.is_awaiting(library) {
                self.asked = (self.asked + n + 1) % polled;
                break;
            }
        }
        let (messages, marks, mut failed) = (&self.messages, &self.marks, failed.into_iter());
        self.running.retain_mut(|one| {
            let Some(failed) = failed.next() else { return true };
            // SAFETY: the caller's promise.
            unsafe { !one.poll(library, messages, marks, failed) }
        });
        self.running.len() < before
    }

    /// Looks for ranks that will never post what is waited for, and that will send nothing any more.
    unsafe fn search(&mut self, library: &Library) {
        let (ended, ranks) = (self.marks.one_gone(), self.marks.ranks());
        let left: Vec<_> = (0..ranks).filter_map(|rank| Some((rank, self.marks.has_left(rank)?))).collect();
        let broken = left.iter().find(|(_, why)| *why == Left::Broken);
        // SAFETY: the caller's promise. What they have posted before is seen now.
        if unsafe { self.begin_agreed(library) } {
            return;
        }
        let why = ended.map(|rank| format!("the process of rank {rank} has ended"));
        let why = why.or_else(|| {
            let (rank, _) = broken?;
            self.marks.mark_left(Left::Broken);
            Some(has_ended_all(*rank))
        });
        if let Some(why) = why {
            self.end_all(library, &why);
            self.running.retain_mut(|one| !one.give_up(library, &why));
        } else if !self.queue.is_empty() {
            let awaited = left.into_iter().find(|(rank, _)| self.window.waits_for(*rank) == Ok(true));
            if let Some((rank, _)) = awaited {
                let why = format!("rank {rank} is in MPI_Finalize, and has not called the collective");
                self.end_all(library, &why);
            }
        }
    }

    /// Ends all without outcome, and those that are called later.
    fn end_all(&mut self, library: &Library, why: &str) {
        for queued in self.queue.drain(..) {
            queued.call.fail(library, why);
        }
        self.unposted.clear();
        self.over.get_or_insert_with(|| why.to_owned());
    }

    /// Posts what there is room for, and begins what has an outcome.
    unsafe fn agree(&mut self, library: &Library) -> Result<bool, Corrupt> {
        let mut has_gone = false;
        loop {
            let mut went = false;
            while !self.unposted.is_empty() && self.window.has_room(1)? {
                let Some(kind) = self.unposted.pop_front() else { break };
                self.window.post(kind);
                went = true;
            }
            while self.running.len() < MOST {
                let Some(outcome) = self.window.outcome()? else { break };
                went = true;
                let Some(front) = self.queue.front_mut() else { break };
                front.left -= 1;
                // Of the second outcome devices do it unless all blocks are short.
                let is_first = front.call.is_of_two() == (front.left == 1);
                front.is_by_devices &= (outcome == Outcome::Device) == is_first;
                if front.left == 0 {
                    let Some(Queued { call, part, is_by_devices, .. }) = self.queue.pop_front() else {
                        break;
                    };
                    let part = part.filter(|_| is_by_devices);
                    let tag = FIRST + self.tags as c_int;
                    // Of those by devices alone: another rank may have begun one by the MPI at once.
                    self.tags = (self.tags + u32::from(is_by_devices)) % TAGS;
                    // SAFETY: the caller's promise.
                    let begun = unsafe { Running::begin(library, call, part, tag, &self.messages) };
                    self.running.extend(begun);
                }
            }
            if !went {
                return Ok(has_gone);
            }
            has_gone = true;
        }
    }
}

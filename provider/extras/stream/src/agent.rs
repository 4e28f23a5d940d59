//! The agent: it carries words and slots to a peer that is on another host, or whose memory is not mapped.
//!
//! In place of the peer's memory this side has a copy of its own, the near words, which streams, graphs and
//! the CPU write as they would the peer's. The agent polls them: it takes a word that was raised and has the
//! carrier copy the slot to the peer's memory and store the word behind it. So lists are the same constants
//! as for a peer that is mapped, and a graph is replayed: each word is raised again only when the peer has
//! sent its counterpart back.
//!
//! A word is cleared before the carrier begins with it: the peer's answer lets the stream raise it again, and
//! what is cleared behind that would be lost (`tests::model`).
//!
//! The first line is one's own, not the peer's to write: an error word has one value, the first. What the
//! peer says of itself comes into words beside it, and is taken from there.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::error::Error;
use crate::failure::Kind;
use crate::layout::{CHOICE, CLOSED, ERROR, FROM_PEER, GOES_ON, LANES, LENGTH, LINE, Layout};
use crate::memory::Words;
use crate::shared::{Peer, Shared};

/// Begins with what is copied to the peer's memory, whose places are those of the near words. It is called by
/// the thread that carries.
pub trait Post {
    /// Copies `len` bytes at `from`, if there are any, then stores 8 bytes at `at`, which is a multiple of 8.
    /// `fenced`: behind all that was begun before. `false`: there is no room now, and nothing was begun.
    fn post(&self, from: usize, len: usize, at: usize, value: u64, fenced: bool) -> bool;
    /// Begins with a put or a get; its number. `None`: there is no room now.
    fn job(&self, job: &Job) -> Option<u64>;
    /// The job of that number has been done.
    fn is_done(&self, job: u64) -> bool;
    /// How much has been done of what was begun: it changes whenever something has.
    fn done(&self) -> u64;
    /// The peer cannot be reached any more.
    fn is_lost(&self) -> bool;
    /// All that was begun is in the peer's memory.
    fn is_idle(&self) -> bool;
}

/// A part of a put, or of a get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// To the peer's memory, or from there.
    pub puts: bool,
    /// Where the bytes are in the near memory, and how many.
    pub near: usize,
    /// Bytes.
    pub len: usize,
    /// The peer's registration, and bytes from its first one.
    pub region: u32,
    /// See `region`.
    pub offset: u64,
    /// Where 1 is stored in the peer's memory behind the bytes.
    pub signal: Option<usize>,
}

/// What the carrier calls before each of its own polls: how much there was to do.
pub type Feed = Box<dyn FnMut(&dyn Post) -> usize + Send>;

/// What brings bytes to a peer's memory.
pub trait Carrier: Send + Sync {
    /// Which memory a peer writes, and which is copied from: addresses, and the length of each.
    ///
    /// # Safety
    /// Both stay until [`Carrier::close`] has returned.
    unsafe fn register(&mut self, own: (usize, usize), near: (usize, usize)) -> Result<(), Error>;
    /// Memory that a peer puts to and gets from; they have numbers from 0 on.
    ///
    /// # Safety
    /// As of [`Carrier::register`].
    unsafe fn window(&mut self, at: usize, len: usize) -> Result<(), Error>;
    /// What the peer has to know of it.
    fn blob(&self) -> Vec<u8>;
    /// Refuses a peer that cannot be one: nothing has begun then.
    fn accepts(&self, peer: &[u8]) -> Result<(), Error>;
    /// Peers of this host are reached by shared memory.
    fn by_memory(&self) -> bool;
    /// Begins to carry, to the peer of that blob.
    fn begin(&mut self, peer: &[u8], feed: Feed) -> Result<(), Error>;
    /// How it polls.
    fn describe(&self) -> String;
    /// Ends it: neither it nor the peer accesses the memory any more.
    fn close(&mut self);
}

/// The near words as they were when they were last carried.
#[derive(Debug)]
pub(crate) struct Agent {
    shared: Arc<Shared>,
    said: [u64; 2],
    /// The job of each lane that is under way.
    jobs: [Option<u64>; LANES],
}

impl Agent {
    /// Of an endpoint that has a peer.
    pub(crate) fn feed(shared: Arc<Shared>) -> Feed {
        let mut agent = Agent { shared, said: [0; 2], jobs: [None; LANES] };
        Box::new(move |post| agent.poll(post))
    }

    fn poll(&mut self, post: &dyn Post) -> usize {
        let shared = self.shared.clone();
        let Some((peer, state)) = shared.peer.get().and_then(|p| Some((p, p.agent.as_ref()?))) else {
            return 0;
        };
        state.polled(post.done());
        hear(&shared);
        if post.is_lost() {
            state.loses();
            return 0;
        }
        // Read before the scan: what is raised before the end is brought before it.
        let mut now = first_line(peer);
        let (mut n, all) = carry(&shared.layout, &peer.words, post);
        if !all {
            now[0] &= u64::from(u32::MAX);
        }
        if state.is_asked() {
            n += self.jobs(peer, post);
        }
        n += self.say(now, post);
        let closed = self.said[0] >> 32 != 0;
        if closed && n == 0 && post.is_idle() {
            state.ends();
        }
        n
    }

    /// Begins with what lanes ask for, and says what has been done. A lane asks for one job at a time.
    fn jobs(&mut self, peer: &Peer, post: &dyn Post) -> usize {
        let (shared, mut n) = (&self.shared, 0);
        for (lane, under_way) in (0..).zip(&mut self.jobs) {
            let done = shared.own.word(shared.layout.job_done(lane), 0);
            if let Some(job) = *under_way {
                if post.is_done(job) {
                    *under_way = None;
                    done.store(1, Release);
                    n += 1;
                }
                continue;
            }
            let asks = peer.words.word(shared.layout.job(lane), 0);
            if asks.load(Acquire) == 0 {
                continue;
            }
            // Behind a failure the lane's kernel has moved nothing: what is there is of an earlier job.
            let job = if shared.failure().is_none() { job_of(&shared.layout, peer, lane) } else { None };
            match job {
                Some(job) => match post.job(&job) {
                    Some(begun) => *under_way = Some(begun),
                    None => return n,
                },
                None => {
                    shared.fail(libc::EINVAL, Kind::None, 0);
                    done.store(1, Release);
                }
            }
            asks.store(0, Release);
            n += 1;
        }
        n
    }

    /// Brings the first line's words to the peer.
    fn say(&mut self, now: [u64; 2], post: &dyn Post) -> usize {
        let mut n = 0;
        for (i, (value, before)) in now.iter().zip(&mut self.said).enumerate() {
            if value != before && post.post(0, 0, FROM_PEER + 8 * i, *value, true) {
                *before = *value;
                n += 1;
            }
        }
        n
    }
}

/// Words of a job's line behind the flag and the length: the peer's registration, the offset's halves, and
/// [`GETS`], 0, or the number of a signal and 1.
pub(crate) const REGION: usize = 8;
pub(crate) const OFFSET: usize = 12;
pub(crate) const WHAT: usize = 20;
pub(crate) const GETS: u32 = u32::MAX;

/// What a lane asks for, if it is inside of what the peer has registered.
fn job_of(layout: &Layout, peer: &Peer, lane: u32) -> Option<Job> {
    let word = |byte| peer.words.word(layout.job(lane), byte).load(Relaxed);
    let (len, region, what) = (word(LENGTH) as usize, word(REGION), word(WHAT));
    let offset = u64::from(word(OFFSET)) | u64::from(word(OFFSET + 4)) << 32;
    let (_, most) = peer.regions.get(region as usize)?;
    let inside = offset.checked_add(len as u64).is_some_and(|end| end <= *most);
    let signal = if what == GETS { 0 } else { what };
    let good = inside && len <= layout.stage() && signal <= layout.signals;
    let signal = signal.checked_sub(1).map(|n| layout.signal(n) as usize * LINE);
    let near = layout.stage_at(lane);
    good.then_some(Job { puts: what != GETS, near, len, region, offset, signal })
}

/// The first line's words for the peer: the error, the end, the choice of slots.
fn first_line(peer: &Peer) -> [u64; 2] {
    let word = |byte| u64::from(peer.words.word(0, byte).load(Acquire));
    [word(ERROR) | word(CLOSED) << 32, word(CHOICE)]
}

/// Takes what the peer says of itself.
fn hear(shared: &Shared) {
    let from = |n: usize| shared.own.word(0, FROM_PEER + 4 * n).load(Acquire);
    let own = |byte| shared.own.word(0, byte);
    let [error, closed, choice] = [from(0), from(1), from(2)];
    if error != 0 && own(ERROR).load(Relaxed) == 0 {
        let _ = own(ERROR).compare_exchange(0, error, AcqRel, Relaxed);
    }
    for (at, value) in [(CLOSED, closed), (CHOICE, choice)] {
        if value != 0 && own(at).load(Relaxed) == 0 {
            own(at).store(value, Release);
        }
    }
}

/// Has each word that is raised carried, with its slot if it is a slot's flag. How many there were, and
/// whether there was room for all.
fn carry(layout: &Layout, near: &Words, post: &dyn Post) -> (usize, bool) {
    let mut n = 0;
    for line in 1..layout.carried() {
        let word = near.word(line, 0);
        let value = word.load(Acquire);
        if value == 0 {
            continue;
        }
        let length = near.word(line, LENGTH).load(Acquire);
        let slot = line.wrapping_sub(layout.flag(0));
        // A slot is no longer than it is, whatever its word says: the receiver compares that.
        let len = if slot < layout.slots { (length & !GOES_ON).min(layout.slot_bytes) as usize } else { 0 };
        let from = layout.head() + slot as usize * layout.slot_bytes as usize * usize::from(len > 0);
        let with = u64::from(value) | u64::from(length) << 32;
        if !post.post(from, len, line as usize * LINE, with, false) {
            return (n, false);
        }
        // Nothing is under way yet: the thread that calls carries, too, behind this.
        word.store(0, Release);
        n += 1;
    }
    (n, true)
}

#[cfg(test)]
#[path = "agent_tests.rs"]
mod tests;

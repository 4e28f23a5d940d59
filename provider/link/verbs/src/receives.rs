//! Places that messages are received into: for all peers, where there is a shared receive queue, or for each
//! queue pair.

use rdma_sys::{Pd, Qp, Srq};

use crate::memory::Memory;

/// Places that are registered together: those of a queue pair, and as many as the shared queue grows by.
pub(crate) const CHUNK: usize = 16;
/// Places of the shared queue that are posted by one call, where there are so many more than peers may use.
const TOGETHER: usize = 8;
/// Bits of a place's number that are of the place in its chunk.
const BITS: u32 = 8;

/// Some places.
#[derive(Debug)]
struct Chunk {
    memory: Memory,
    usage: Usage,
}

/// What some places are used for.
#[derive(Debug, Default)]
struct Usage {
    /// Of which queue pair they are, where they are of one.
    owner: Option<u32>,
    /// How many are posted to that, or have a message that is not given back.
    lent: usize,
    /// Their queue pair was destroyed with receives, whose completions may still come.
    is_late: bool,
}

impl Usage {
    /// Whether another queue pair may have them.
    fn is_free(&self) -> bool {
        self.owner.is_none() && self.lent == 0 && !self.is_late
    }

    /// Their queue pair is destroyed, with so many receives. Messages that are not given back yet are of a
    /// generation that is over.
    fn end_owner(&mut self, posted: usize) {
        self.lent = self.lent.saturating_sub(posted);
        self.owner = None;
        self.is_late |= posted > 0;
    }

    /// A receive has completed that [`Usage::end_owner`] counts no more: it is lent until it is given back.
    fn note_late(&mut self) {
        self.lent += 1;
    }

    /// One is posted no more, nor has a message.
    #[inline]
    fn give_back(&mut self) {
        debug_assert!(self.lent > 0, "a place that was given back");
        self.lent = self.lent.saturating_sub(1);
    }
}

/// All places.
#[derive(Debug)]
pub(crate) struct Receives {
    chunks: Vec<Chunk>,
    srq: Option<Srq>,
    each: usize,
    /// How many places there are, how many of them one peer may use, and most.
    places: usize,
    window: usize,
    most: usize,
    pd: Pd,
    /// Places that are not posted to the shared queue yet.
    unposted: Vec<u32>,
    /// How many were posted one by one, since there are few.
    scarce: usize,
}

impl Receives {
    /// None yet, at most so many, of which one peer may use `window`.
    pub(crate) fn new(pd: &Pd, srq: Option<Srq>, each: usize, (window, most): (usize, usize)) -> Receives {
        let (chunks, unposted) = Default::default();
        Receives { chunks, srq, each, places: 0, window, most, pd: pd.clone(), unposted, scarce: 0 }
    }

    /// The queue that is shared by all peers.
    #[inline]
    pub(crate) fn srq(&self) -> Option<&Srq> {
        self.srq.as_ref()
    }

    fn add_chunk(&mut self, n: usize) -> Result<usize, String> {
        if n == 0 || self.places + n > self.most {
            return Err(format!("the device has room for {} receives, and all are in use", self.most));
        }
        let memory = Memory::new(&self.pd, n, self.each)?;
        self.chunks.push(Chunk { memory, usage: Usage::default() });
        self.places += n;
        Ok(self.chunks.len() - 1)
    }

    /// Places of the shared queue for one peer.
    pub(crate) fn begin(&mut self) -> Result<(), String> {
        self.grow(self.window)
    }

    /// So many more places for the shared queue, or as many as there may be.
    fn grow(&mut self, n: usize) -> Result<(), String> {
        let n = n.min(self.most - self.places);
        let at = self.add_chunk(n)?;
        let places = (0..n as u32).map(|i| (at as u32) << BITS | i);
        self.unposted.extend(places);
        self.post_rest();
        Ok(())
    }

    /// So many messages of the shared queue have come since that was looked at last, of so many peers: where
    /// they were half of the places there are more from now on.
    pub(crate) fn note_came(&mut self, messages: usize, peers: usize) {
        let wanted = (TOGETHER + peers * self.window).min(self.most);
        if self.srq.is_some() && 2 * messages >= self.places && self.places < wanted {
            self.grow_or_stay(CHUNK.min(wanted - self.places));
        }
    }

    #[cold]
    fn grow_or_stay(&mut self, n: usize) {
        if let Err(why) = self.grow(n) {
            log::debug!("the shared receive queue stays at {} places: {why}", self.places);
            self.most = self.places;
        }
    }

    /// Whether places that are not posted yet may be all that one peer uses.
    #[inline]
    fn is_scarce(&self) -> bool {
        self.places < self.window + TOGETHER
    }

    /// A place is free, of so few that each is posted at once: a peer that sends so many has some more.
    #[cold]
    fn post_scarce(&mut self) {
        self.post_rest();
        self.scarce += 1;
        if self.scarce == CHUNK && self.places < self.most {
            self.grow_or_stay(TOGETHER);
        }
    }

    /// Posts to the shared queue what is not, unless it refuses that.
    pub(crate) fn post_rest(&mut self) {
        let Some(srq) = &self.srq else { return };
        while !self.unposted.is_empty() {
            let wanted = self.unposted.len().min(TOGETHER);
            let chunks = &self.chunks;
            let list = self.unposted.iter().rev().map(|&place| {
                let (chunk, at) = Self::parts(place);
                (RECEIVE | u64::from(place), chunks[chunk].memory.whole(at))
            });
            // SAFETY: the memory is registered until after the queue pairs are gone; the places are this
            // side's, and the device's from here on.
            let posted = unsafe { srq.post_list::<TOGETHER>(list) };
            self.unposted.truncate(self.unposted.len() - posted);
            if posted < wanted {
                return;
            }
        }
    }

    fn parts(place: u32) -> (usize, usize) {
        ((place >> BITS) as usize, (place & ((1 << BITS) - 1)) as usize)
    }

    /// Places for a queue pair of its own receives, which are posted to it: how many.
    pub(crate) fn lend(&mut self, owner: u32, qp: &Qp) -> Result<u32, String> {
        let free = self.chunks.iter().position(|chunk| chunk.usage.is_free());
        let at = free.map_or_else(|| self.add_chunk(CHUNK), Ok)?;
        self.chunks[at].usage.owner = Some(owner);
        for i in 0..self.chunks[at].memory.len() as u32 {
            if !self.post_own((at as u32) << BITS | i, qp) {
                // The queue pair is destroyed with those that it has.
                self.end_owner(owner, i);
                return Err("ibv_post_recv: the device takes fewer receives than it has granted".into());
            }
        }
        Ok(CHUNK as u32)
    }

    fn post_own(&mut self, place: u32, qp: &Qp) -> bool {
        let (chunk, at) = Self::parts(place);
        let chunk = &mut self.chunks[chunk];
        // SAFETY: as for a shared queue.
        let posted = unsafe { qp.post_recv(RECEIVE | u64::from(place), &[chunk.memory.whole(at)]) }.is_ok();
        chunk.usage.lent += usize::from(posted);
        posted
    }

    /// The queue pair that a place is of, if it is of one.
    pub(crate) fn owner(&self, place: u32) -> Option<u32> {
        self.chunks.get(Self::parts(place).0)?.usage.owner
    }

    /// The queue pair of this number is gone: what was posted to it is not the device's any more.
    pub(crate) fn end_owner(&mut self, owner: u32, posted: u32) {
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.usage.owner == Some(owner)) {
            chunk.usage.end_owner(posted as usize);
        }
    }

    /// A receive has completed whose queue pair was destroyed before.
    #[cold]
    pub(crate) fn note_late(&mut self, place: u32) {
        if let Some(chunk) = self.chunks.get_mut(Self::parts(place).0) {
            chunk.usage.note_late();
        }
    }

    /// Whether completions may still come of a queue pair that was destroyed.
    pub(crate) fn has_late(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.usage.is_late)
    }

    /// The completion queue was read until it was empty: none of those comes any more.
    pub(crate) fn note_read(&mut self) {
        self.chunks.iter_mut().for_each(|chunk| chunk.usage.is_late = false);
    }

    /// The place has no message any more: it is posted again, if it is of the shared queue; whether it is.
    #[inline(always)]
    pub(crate) fn give_back_shared(&mut self, place: u32) -> bool {
        if self.srq.is_none() {
            return false;
        }
        self.unposted.push(place);
        if self.is_scarce() {
            self.post_scarce();
        } else if self.unposted.len() >= TOGETHER {
            self.post_rest();
        }
        true
    }

    /// The same of a place that is not of the shared queue, which is posted to the queue pair if there is
    /// one; whether it was.
    pub(crate) fn give_back_own(&mut self, place: u32, qp: Option<&Qp>) -> bool {
        let (chunk, at) = Self::parts(place);
        assert!(at < self.chunks[chunk].memory.len(), "a place that there is");
        self.chunks[chunk].usage.give_back();
        qp.is_some_and(|qp| self.post_own(place, qp))
    }

    /// The bytes of a place that has a message.
    #[inline(always)]
    pub(crate) fn bytes(&self, place: u32) -> &[u8] {
        let (chunk, at) = Self::parts(place);
        self.chunks[chunk].memory.bytes(at)
    }
}

/// What of the id of a request says that it is a receive: the rest is its place.
pub(crate) const RECEIVE: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue pair that is destroyed while one message is held, and 15 receives are posted.
    fn ended() -> Usage {
        let mut places = Usage { owner: Some(3), lent: 16, is_late: false };
        places.end_owner(15);
        assert!(!places.is_free(), "a message is held");
        places
    }

    #[test]
    fn a_message_that_is_held_keeps_its_place_though_late_completions_are_given_back_before() {
        let mut places = ended();
        for _ in 0..15 {
            places.note_late();
            places.give_back();
        }
        places.is_late = false;
        assert!(!places.is_free(), "a message is held");
        places.give_back();
        assert!(places.is_free());
    }

    #[test]
    fn places_are_free_once_no_completion_comes_of_a_queue_pair_that_is_destroyed() {
        let mut places = ended();
        places.give_back();
        assert!(!places.is_free(), "completions may come");
        places.note_late();
        places.is_late = false;
        assert!(!places.is_free(), "one has come");
        places.give_back();
        assert!(places.is_free());
    }
}

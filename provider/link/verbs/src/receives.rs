//! Places that messages are received into: for all peers, where there is a shared receive queue, or for each
//! queue pair.

use rdma_sys::{Pd, Qp, Srq};

use crate::memory::Memory;

/// Places that are registered together.
pub(crate) const CHUNK: usize = 16;
/// Places of the shared queue that are posted by one call, where there are so many more than peers may use.
const TOGETHER: usize = 8;
// Places of a chunk are beside those for each peer.
const _: () = assert!(TOGETHER <= CHUNK);
/// Bits of a place's number that are of the place in its chunk.
const BITS: u32 = 8;

/// Some places.
#[derive(Debug)]
struct Chunk {
    memory: Memory,
    /// Of which queue pair they are, where they are of one.
    owner: Option<u32>,
    /// How many are posted to that, or have a message that is not given back.
    lent: usize,
}

/// All places.
#[derive(Debug)]
pub(crate) struct Receives {
    chunks: Vec<Chunk>,
    srq: Option<Srq>,
    each: usize,
    /// Most places.
    most: usize,
    pd: Pd,
    /// Places that are not posted to the shared queue yet.
    unposted: Vec<u32>,
}

impl Receives {
    /// None yet, at most so many.
    pub(crate) fn new(pd: &Pd, srq: Option<Srq>, each: usize, most: usize) -> Receives {
        Receives { chunks: Vec::new(), srq, each, most, pd: pd.clone(), unposted: Vec::new() }
    }

    /// How many places there are.
    pub(crate) fn len(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// The queue that is shared by all peers.
    #[inline]
    pub(crate) fn srq(&self) -> Option<&Srq> {
        self.srq.as_ref()
    }

    fn add_chunk(&mut self) -> Result<usize, String> {
        if (self.chunks.len() + 1) * CHUNK > self.most {
            return Err(format!("the device has room for {} receives, and all are in use", self.most));
        }
        let memory = Memory::new(&self.pd, CHUNK, self.each)?;
        self.chunks.push(Chunk { memory, owner: None, lent: 0 });
        Ok(self.chunks.len() - 1)
    }

    /// More places for the shared queue, if there may be any.
    pub(crate) fn grow(&mut self) -> Result<(), String> {
        let at = self.add_chunk()?;
        let places = (0..CHUNK as u32).map(|i| (at as u32) << BITS | i);
        self.unposted.extend(places);
        self.post_rest();
        Ok(())
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
        let free = self.chunks.iter().position(|chunk| chunk.owner.is_none() && chunk.lent == 0);
        let at = free.map_or_else(|| self.add_chunk(), Ok)?;
        self.chunks[at].owner = Some(owner);
        for i in 0..self.chunks[at].memory.len() as u32 {
            if !self.post_own((at as u32) << BITS | i, qp) {
                // The queue pair is destroyed with those that it has.
                (self.chunks[at].owner, self.chunks[at].lent) = (None, 0);
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
        chunk.lent += usize::from(posted);
        posted
    }

    /// The queue pair that a place is of, if it is of one.
    pub(crate) fn owner(&self, place: u32) -> Option<u32> {
        self.chunks.get(Self::parts(place).0)?.owner
    }

    /// The queue pair of this number is gone: what was posted to it is not the device's any more.
    pub(crate) fn end_owner(&mut self, owner: u32, posted: u32) {
        for chunk in self.chunks.iter_mut().filter(|chunk| chunk.owner == Some(owner)) {
            chunk.lent = chunk.lent.saturating_sub(posted as usize);
            // Messages that are not given back yet are of a generation that is over.
            chunk.owner = None;
        }
    }

    /// The place has no message any more: it is posted again, if it is of the shared queue; whether it is.
    #[inline(always)]
    pub(crate) fn give_back_shared(&mut self, place: u32) -> bool {
        if self.srq.is_none() {
            return false;
        }
        self.unposted.push(place);
        // Until there are more than two chunks, those of one peer may be all.
        if self.unposted.len() >= TOGETHER || self.chunks.len() <= 2 {
            self.post_rest();
        }
        true
    }

    /// The same of a place that is not of the shared queue, which is posted to the queue pair if there is
    /// one; whether it was.
    pub(crate) fn give_back_own(&mut self, place: u32, qp: Option<&Qp>) -> bool {
        let (chunk, at) = Self::parts(place);
        assert!(at < self.chunks[chunk].memory.len(), "a place that there is");
        self.chunks[chunk].lent -= 1;
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

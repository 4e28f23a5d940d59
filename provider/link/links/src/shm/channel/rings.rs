//! Which ring has a frame.
//!
//! Each ring is listed with the address of the commit word of its next record. To look at a ring is one load,
//! which depends on no other, so the processor has the loads of many rings under way at once: a look at 32
//! rings takes little longer than at one. Senders do nothing for it.
//!
//! Rings that had frames lately, the hot ones, come first in the list, and all of them are looked at by every
//! poll; the others take turns.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use crate::shm::channel::ring::COMMIT;
#[cfg(doc)]
use crate::shm::channel::ring::SHORT;

/// Stands for no peer.
pub(in crate::shm) const NO_PEER: u32 = u32::MAX;
/// Most hot rings that one poll looks at.
const LOOKS: usize = 64;
/// Rings that are asked together.
const TOGETHER: usize = 4;
/// Rings that are not hot, of those that are looked at together.
const COLD: usize = 8;
/// Of a peer without a ring in the list.
const NOWHERE: u32 = u32::MAX;

#[derive(Debug)]
struct Ring {
    word: NonNull<AtomicU32>,
    id: u32,
}

// SAFETY: a mapping, in which the word is, belongs to the process and not to a thread.
unsafe impl Send for Ring {}
// SAFETY: as above; what a shared reference can do is to load the word, which is atomic.
unsafe impl Sync for Ring {}

impl Ring {
    #[inline(always)]
    fn has_frame(&self) -> bool {
        // SAFETY: mapped, which those promise that list a ring and that move its place.
        unsafe { self.word.as_ref() }.load(Relaxed) != 0
    }
}

/// Whether any ring seems to have a frame. Most looks find none, and to ask several together takes half of
/// the instructions.
#[inline(always)]
fn any(rings: &[Ring]) -> bool {
    let several = rings.chunks_exact(TOGETHER);
    let rest = several.remainder();
    let has = |rings: &[Ring]| rings.iter().fold(false, |any, ring| any | ring.has_frame());
    for some in several {
        if has(some) {
            return true;
        }
    }
    has(rest)
}

/// A record that was handed out: the commit word that it begins with, and the length of its frame.
#[derive(Clone, Copy, Debug)]
pub(in crate::shm) struct Held {
    word: NonNull<AtomicU32>,
    len: usize,
}

// SAFETY: a mapping, in which the word is, belongs to the process and not to a thread.
unsafe impl Send for Held {}
// SAFETY: as above; a shared reference gives the address alone.
unsafe impl Sync for Held {}

/// The rings that are polled, by the numbers of their peers. What a poll touches that looks at one ring comes
/// first.
#[derive(Debug)]
#[repr(C)]
pub(in crate::shm) struct Rings {
    /// The peer of which a frame was handed out, or `NO_PEER`.
    held: u32,
    /// The peer whose frame is waited for, and no other; or `NO_PEER`.
    awaited: u32,
    /// `sole`, unless another is waited for: then `NO_PEER`. One word to ask, since each poll asks.
    quick: u32,
    /// The peer of the only hot one, or `NO_PEER`. It is polled by itself, and its place is not kept up.
    sole: u32,
    /// The frame of `held`.
    record: Held,
    /// The last quick poll found nothing.
    idle: bool,
    /// So many, the first in the list, are hot.
    hot: usize,
    list: Vec<Ring>,
    /// Where in the list the ring of a peer is.
    places: Vec<u32>,
    /// Which of the hot ones, and which of the others, is looked at first.
    next: usize,
    next_cold: usize,
}

impl Rings {
    pub(in crate::shm) fn new() -> Rings {
        Rings {
            list: Vec::new(),
            places: Vec::new(),
            hot: 0,
            sole: NO_PEER,
            next: 0,
            next_cold: 0,
            awaited: NO_PEER,
            quick: NO_PEER,
            held: NO_PEER,
            record: Held { word: NonNull::dangling(), len: 0 },
            idle: false,
        }
    }

    pub(in crate::shm) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether a frame was handed out, of any peer.
    #[inline(always)]
    pub(in crate::shm) fn is_held(&self) -> bool {
        self.held != NO_PEER
    }

    /// The peer of which a frame was handed out, or `NO_PEER`.
    #[inline(always)]
    pub(in crate::shm) fn held(&self) -> u32 {
        self.held
    }

    /// Whether a frame of this peer was handed out.
    #[inline(always)]
    pub(in crate::shm) fn holds(&self, id: u32) -> bool {
        self.held == id
    }

    /// A frame of this peer is handed out, whose record begins with this word.
    ///
    /// # Safety
    /// The word stays mapped until the frame is given back or [`Rings::lose`] is called, and with it as many
    /// bytes behind it, up to [`SHORT`].
    #[inline(always)]
    pub(in crate::shm) unsafe fn hold(&mut self, id: u32, word: &AtomicU32, len: usize) {
        self.held = id;
        self.record = Held { word: word.into(), len };
    }

    /// Where the frame at hand of this peer begins, and its length: its first [`SHORT`] bytes are there, or
    /// all of them where it has fewer.
    #[inline(always)]
    pub(in crate::shm) fn frame_of(&self, id: u32) -> Option<(*mut u8, usize)> {
        let Held { word, len } = self.record;
        let first = word.as_ptr().cast::<u8>().wrapping_add(COMMIT);
        (self.held == id).then_some((first, len))
    }

    /// The peer of the frame at hand, and as [`Rings::frame_of`]; of no peer where there is none.
    #[inline(always)]
    pub(in crate::shm) fn frame(&self) -> (u32, *mut u8, usize) {
        let Held { word, len } = self.record;
        (self.held, word.as_ptr().cast::<u8>().wrapping_add(COMMIT), len)
    }

    /// The ring of this peer is not mapped any more: nothing is read of a frame of it.
    pub(in crate::shm) fn lose(&mut self, id: u32) {
        if self.held == id {
            self.record.len = 0;
        }
    }

    /// The frame was not taken, and stays in its ring.
    #[inline(always)]
    pub(in crate::shm) fn put_back(&mut self) {
        self.held = NO_PEER;
    }

    /// The frame at hand was of this peer, and is none any more.
    #[inline(always)]
    pub(in crate::shm) fn let_go_of(&mut self, id: u32) {
        self.held = NO_PEER;
        if id == self.awaited {
            self.awaits(NO_PEER);
        }
    }

    /// A quick poll has found a frame or not; whether the one before found none.
    #[inline(always)]
    pub(in crate::shm) fn note_found(&mut self, found: bool) -> bool {
        std::mem::replace(&mut self.idle, !found)
    }

    /// How many are hot.
    pub(in crate::shm) fn hot(&self) -> usize {
        self.hot
    }

    /// The peer of the only hot ring; `NO_PEER` if there are more, or none.
    #[inline(always)]
    pub(in crate::shm) fn sole(&self) -> u32 {
        self.sole
    }

    /// Whether all are hot.
    #[inline(always)]
    pub(in crate::shm) fn are_hot(&self) -> bool {
        self.list.len() <= self.hot
    }

    pub(in crate::shm) fn peers(&self) -> impl Iterator<Item = u32> + '_ {
        self.list.iter().map(|ring| ring.id)
    }

    #[inline]
    fn place(&self, id: u32) -> Option<usize> {
        self.places.get(id as usize).filter(|at| **at != NOWHERE).map(|at| *at as usize)
    }

    /// Whether each poll looks at the ring of this peer.
    #[inline(always)]
    pub(in crate::shm) fn is_hot(&self, id: u32) -> bool {
        self.place(id).is_some_and(|at| at < self.hot)
    }

    /// Lists the ring of a peer that has none here; it is not hot.
    ///
    /// # Safety
    /// The word must stay mapped until the peer is taken off the list.
    pub(in crate::shm) unsafe fn list(&mut self, id: u32, word: &AtomicU32) {
        debug_assert!(self.place(id).is_none());
        if self.places.len() <= id as usize {
            self.places.resize(id as usize + 1, NOWHERE);
        }
        self.places[id as usize] = self.list.len() as u32;
        self.list.push(Ring { word: word.into(), id });
    }

    /// Notes where the next record of a ring is.
    ///
    /// # Safety
    /// As for [`Rings::list`].
    #[inline(always)]
    pub(in crate::shm) unsafe fn moved(&mut self, id: u32, word: &AtomicU32) {
        if let Some(ring) = self.place(id).and_then(|at| self.list.get_mut(at)) {
            ring.word = word.into();
        }
    }

    /// Takes the ring of a peer off the list.
    pub(in crate::shm) fn unlist(&mut self, id: u32) {
        let Some(mut at) = self.place(id) else { return };
        if at < self.hot {
            self.exchange(at, self.hot - 1);
            at = self.hot - 1;
            self.set_hot(at);
        }
        self.exchange(at, self.list.len() - 1);
        self.list.pop();
        self.places[id as usize] = NOWHERE;
    }

    /// Makes a ring a hot one.
    pub(in crate::shm) fn warm(&mut self, id: u32) {
        if let Some(at) = self.place(id).filter(|at| *at >= self.hot) {
            self.exchange(at, self.hot);
            self.set_hot(self.hot + 1);
        }
    }

    /// Leaves those hot that are `busy`, and one at least.
    pub(in crate::shm) fn cool(&mut self, mut busy: impl FnMut(u32) -> bool) {
        for at in (0..self.hot).rev() {
            if !busy(self.list[at].id) && self.hot > 1 {
                self.exchange(at, self.hot - 1);
                self.set_hot(self.hot - 1);
            }
        }
    }

    fn exchange(&mut self, one: usize, other: usize) {
        self.list.swap(one, other);
        for at in [one, other] {
            self.places[self.list[at].id as usize] = at as u32;
        }
    }

    fn set_hot(&mut self, hot: usize) {
        self.hot = hot;
        self.next = 0;
        self.sole = if hot == 1 { self.list[0].id } else { NO_PEER };
        self.awaits(self.awaited);
    }

    /// Frames of this peer alone are waited for; `NO_PEER`: of any.
    #[inline(always)]
    pub(in crate::shm) fn awaits(&mut self, id: u32) {
        self.awaited = id;
        self.quick = if self.awaits_another(self.sole) { NO_PEER } else { self.sole };
    }

    /// The peer whose ring alone is looked at by a poll that does not look at rings that are not hot;
    /// `NO_PEER` if there is more to it.
    #[inline(always)]
    pub(in crate::shm) fn quick(&self) -> u32 {
        self.quick
    }

    #[inline(always)]
    pub(in crate::shm) fn awaited(&self) -> u32 {
        self.awaited
    }

    /// Whether another peer than the only hot one is waited for.
    #[inline(always)]
    pub(in crate::shm) fn awaits_another(&self, sole: u32) -> bool {
        (self.awaited != NO_PEER) & (self.awaited != sole)
    }

    /// Whether the ring of the peer that is waited for seems to have a frame; `None`: none is, or it has no
    /// ring, or it is the only hot one.
    #[inline(always)]
    pub(in crate::shm) fn has_awaited(&self) -> Option<bool> {
        let at = self.place(self.awaited).filter(|_| self.awaits_another(self.sole))?;
        Some(self.list.get(at)?.has_frame())
    }

    /// The peer of a hot ring that seems to have a frame, each in its turn; if none does, of one that is not
    /// hot. And whether it is hot.
    #[inline(always)]
    pub(in crate::shm) fn find(&mut self) -> Option<(u32, bool)> {
        let hot = self.list.get(..self.hot)?;
        let found = if hot.len() > LOOKS || any(hot) { self.find_hot() } else { None };
        match found {
            Some(id) => Some((id, true)),
            None if self.are_hot() => None,
            None => self.find_cold().map(|id| (id, false)),
        }
    }

    /// The peer of a hot ring that seems to have a frame, each in its turn.
    fn find_hot(&mut self) -> Option<u32> {
        let (before, from) = self.list.get(..self.hot)?.split_at_checked(self.next)?;
        let rest = LOOKS.saturating_sub(from.len()).min(before.len());
        let from = &from[..from.len().min(LOOKS)];
        let found = match from.iter().position(Ring::has_frame) {
            Some(at) => Ok(self.next + at),
            None => match before[..rest].iter().position(Ring::has_frame) {
                Some(at) => Ok(at),
                None => Err(if rest > 0 { rest } else { self.next + from.len() }),
            },
        };
        self.next = found.map_or_else(|next| next, |at| at + 1);
        if self.next >= self.hot {
            self.next = 0;
        }
        found.ok().map(|at| self.list[at].id)
    }

    /// The peer of a ring that is not hot and seems to have a frame, of a few.
    #[inline(never)]
    pub(in crate::shm) fn find_cold(&mut self) -> Option<u32> {
        let cold = self.list.get(self.hot..)?;
        let first = if self.next_cold < cold.len() { self.next_cold } else { 0 };
        let few = &cold[first..cold.len().min(first + COLD)];
        let found = few.iter().position(Ring::has_frame);
        self.next_cold = first + found.map_or(few.len(), |at| at + 1);
        found.map(|at| few[at].id)
    }
}

#[cfg(all(test, not(loom)))]
#[path = "rings_tests.rs"]
mod tests;

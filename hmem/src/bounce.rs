//! Bounce buffers in devices' memory: other processes' devices reach them, so that bytes of memory which
//! those do not reach (a default pool's, managed memory) can go through there, with one more copy on the
//! device.
//!
//! An [`Arena`] makes its memory when it is first needed, once for each place that memory is in: for CUDA, a
//! context. It hands it out in runs of blocks ([`Room`]). While a device copies into one it is inside of the
//! [`Fill`].

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::Error;
use crate::kind::{Caps, Kind};
use crate::memory::Exportable;
use crate::pending::{Part, PendingCopy};
use crate::registry;
use crate::span::{Span, walk};

/// Blocks of the memory in each place: as many as a word has bits.
const BLOCKS: usize = u128::BITS as usize;
/// Most places.
const PLACES: usize = 16;
/// After how many needs in vain it is tried again to make the memory.
const AGAIN: u32 = 256;

/// Memory to bounce through.
#[derive(Clone, Debug)]
pub struct Arena(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    block: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    places: Vec<Place>,
    made: u64,
}

#[derive(Debug)]
struct Place {
    kind: Kind,
    /// Which one, as its kind numbers them.
    at: usize,
    /// No other has it.
    name: u64,
    memory: Option<Exportable>,
    /// A bit for each block that is handed out.
    used: u128,
    /// Why there was none to be had, and how often it was needed since.
    vain: Option<(Error, u32)>,
}

/// Why there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// All is handed out.
    Taken,
    /// There is no such memory for that.
    Never(Error),
}

impl Place {
    /// Takes up to `n` blocks in a row: the longest run there is of `n`, `n / 2`, ... of them.
    fn take(&mut self, mut n: usize) -> Option<(usize, usize)> {
        while n > 0 {
            let run = u128::MAX >> (BLOCKS - n);
            if let Some(first) = (0..=BLOCKS - n).find(|first| self.used & (run << first) == 0) {
                self.used |= run << first;
                return Some((first, n));
            }
            n /= 2;
        }
        None
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Arena {
    /// Blocks in each place.
    pub const BLOCKS: usize = BLOCKS;

    /// One whose memory in each place is 128 blocks of so many bytes.
    ///
    /// # Panics
    /// If `block` is 0.
    pub fn new(block: usize) -> Arena {
        assert!(block > 0, "no blocks of no bytes");
        Arena(Arc::new(Shared { block, state: Mutex::default() }))
    }

    /// Bytes in each place.
    pub fn capacity(&self) -> usize {
        BLOCKS * self.0.block
    }

    /// Room for up to `len` bytes of `src`, where that memory is.
    pub fn take(&self, src: &[Span], len: usize) -> Result<Room, NoRoom> {
        let mut spans = src.iter().filter(|s| !s.is_empty());
        let none = NoRoom::Never(Error::UNSUPPORTED);
        let first = spans.next().filter(|s| s.can(Caps::DEVICE) && len > 0).ok_or(none)?;
        let kind = first.kind();
        if spans.any(|s| s.kind() != kind) {
            return Err(none);
        }
        let memory = registry::of(kind);
        let at = memory.place(first.addr() as usize).ok_or(none)?;
        let mut state = self.0.state();
        // What went with its context must not be written to any more: other memory may be there.
        let is_gone = |p: &Place| {
            let made = |e: &Exportable| memory.number(e.addr) != Some(e.number);
            (p.kind, p.at) == (kind, at) && p.memory.as_ref().is_some_and(made)
        };
        state.places.retain(|p| !is_gone(p));
        let known = state.places.iter().position(|p| (p.kind, p.at) == (kind, at));
        let known = match known {
            Some(known) => known,
            None if state.places.len() == PLACES => return Err(none),
            None => {
                state.made += 1;
                let name = state.made;
                state.places.push(Place { kind, at, name, memory: None, used: 0, vain: None });
                state.places.len() - 1
            }
        };
        let place = &mut state.places[known];
        let base = match (&place.memory, &mut place.vain) {
            (Some(made), _) => made.addr,
            (None, Some((why, needs))) if *needs < AGAIN => {
                *needs += 1;
                return Err(NoRoom::Never(*why));
            }
            (None, vain) => match memory.make_exportable(first.addr() as usize, self.capacity()) {
                Ok(made) => place.memory.insert(made).addr,
                Err(why) => {
                    *vain = Some((why, 0));
                    return Err(NoRoom::Never(why));
                }
            },
        };
        let (first, n) = place.take(len.div_ceil(self.0.block).min(BLOCKS)).ok_or(NoRoom::Taken)?;
        let (block, place) = (self.0.block, place.name);
        // SAFETY: blocks of memory of that kind, which stays as long as the arena's shared state does; the
        // room has that. The span is handed out to name the memory to peers, and only `Room::fill` copies
        // there, into a room that then is in the `Fill`.
        let span = unsafe { Span::new(base + first * block, n * block, kind) };
        Ok(Room { arena: self.0.clone(), place, first, n, span, len: len.min(n * block) })
    }
}

/// Blocks of an arena's memory, which go back to it.
pub struct Room {
    arena: Arc<Shared>,
    place: u64,
    first: usize,
    n: usize,
    span: Span,
    len: usize,
}

impl Room {
    /// Bytes that it was taken for, as far as there was room.
    #[allow(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes that it takes up.
    pub fn size(&self) -> usize {
        self.span.len()
    }

    /// Where its bytes are.
    pub fn span(&self) -> Span {
        self.span.cut(0, self.len)
    }

    /// Starts to fill it with the bytes of `src` from `off` on. `None`: the device does not copy them.
    pub fn fill(self, src: &[Span], off: usize) -> Option<Fill> {
        let (to, mut parts) = (self.span.addr() as usize, Vec::new());
        let done = walk(src, off, self.len, |s, at| {
            parts.push(Part { dst: to + at, src: s.addr() as usize, len: s.len() });
            s.kind() == self.span.kind()
        });
        if done != self.len {
            return None;
        }
        // SAFETY: the source is of spans, valid until the last operation that was given them has completed,
        // before which its caller sees the copy over or drops it; the destination is this room's alone, which
        // is inside of the fill, behind the flight.
        let flight = unsafe { registry::of(self.span.kind()).start(&parts, Vec::new(), false) }.ok()?;
        Some(Fill { flight, room: self })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let run = u128::MAX >> (BLOCKS - self.n) << self.first;
        if let Some(place) = self.arena.state().places.iter_mut().find(|p| p.name == self.place) {
            place.used &= !run;
        }
    }
}

impl fmt::Debug for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Room").field("span", &self.span).field("len", &self.len).finish()
    }
}

/// A copy into a room, in flight or over. Dropping it waits until the device has let go of the memory.
#[derive(Debug)]
pub struct Fill {
    /// Goes first.
    flight: Box<dyn PendingCopy>,
    room: Room,
}

impl Fill {
    /// Whether it is over: `None` means not yet, `false` that the bytes are not there. Not to be asked again
    /// then.
    pub fn poll(&mut self) -> Option<bool> {
        match self.flight.poll() {
            Ok(false) => None,
            Ok(true) => Some(true),
            Err(_) => Some(false),
        }
    }

    /// Where the bytes are, or will be.
    pub fn room(&self) -> &Room {
        &self.room
    }

    /// The room, once it is over.
    pub fn into_room(self) -> Room {
        self.room
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fake, read, write};

    #[test]
    fn rooms_are_runs_of_blocks_and_go_back() {
        let (arena, memory) = (Arena::new(100), fake::alloc(10));
        let near = [memory.span()];
        let take = |len| arena.take(&near, len);
        let one = take(250).unwrap();
        assert_eq!((one.len(), one.size(), one.span().len()), (250, 300, 250));
        let rest = take(usize::MAX).unwrap();
        assert_eq!(rest.size(), 6400, "the longest run of half as many, and so on");
        let more: Vec<_> = std::iter::from_fn(|| take(usize::MAX).ok()).collect();
        assert_eq!(take(1).err(), Some(NoRoom::Taken));
        assert_eq!(more.iter().map(Room::size).sum::<usize>(), arena.capacity() - 6400 - 300);
        let mut all: Vec<_> =
            more.iter().chain([&one, &rest]).map(|r| (r.span().addr(), r.size() as u64)).collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|w| w[0].0 + w[0].1 == w[1].0), "no two have a byte in common");
        drop((one, rest, more));
        assert_eq!(take(usize::MAX).unwrap().size(), arena.capacity());
        assert!(take(0).is_err() && arena.take(&[Span::leak(8)], 8).is_err(), "host memory has none");
    }

    #[test]
    fn a_room_is_filled_by_the_device() {
        let (arena, memory) = (Arena::new(1000), fake::alloc(5000));
        let bytes: Vec<u8> = (0..5000).map(|n| (n * 7 + n / 251) as u8).collect();
        let src = [memory.span().part(0, 2000).unwrap(), memory.span().part(2500, 2500).unwrap()];
        assert_eq!(write(&[memory.span()], 0, &bytes), 5000);
        let mut fill = arena.take(&src, 3500).unwrap().fill(&src, 700).unwrap();
        while fill.poll().is_none() {}
        let room = fill.into_room();
        let mut got = vec![0; 3500];
        assert_eq!(read(&[room.span()], 0, &mut got), 3500);
        assert!(got == [&bytes[700..2000], &bytes[2500..4700]].concat());
        assert!(arena.take(&src, 3500).unwrap().fill(&src, 1001).is_none(), "more than there is");
        memory.hold(true);
        let fill = arena.take(&src, 100).unwrap().fill(&src, 0).unwrap();
        assert_eq!(memory.in_flight(), 1);
        drop(fill);
        assert_eq!(memory.in_flight(), 0);
    }
}

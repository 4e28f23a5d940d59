//! The memory of a channel, a sealed memfd: a page of counters, a table of requests whose memory was taken
//! back, control words, and behind these, in their page, the ring.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, OnceLock, PoisonError};

use hmem::locked::PageLock;
use hmem::{Kind, Span, registry};
use ipc::Mapping;
use ipc::fence::full_fence;
use ipc::memfd::{self, Unfit, Writers};
use ipc::pieces::COUNTERS;

use crate::shm::ahead;
use crate::shm::channel::ring::{LINE, Mem, WORDS};
use crate::shm::channel::shrink;

/// Requests of the sender's that it can take back, by their place in its pool: a word each.
pub(crate) const REVOCABLE: u32 = 16 << 10;
/// Where the table of these is, behind the piece counters. A page of it takes memory once it was looked at.
const REVOKED: usize = 4096;
/// From one piece counter to the next.
const COUNTER: usize = 64;
const _: () = assert!(COUNTERS as usize * COUNTER <= REVOKED);

// Where the control words are: those that different sides write have cache lines of their own, two apart
// since hardware fetches lines in pairs. They and the ring's first lines share a page: a peer that few short
// messages go to takes one page less, and so does what a processor remembers of addresses.
const HEAD: usize = REVOKED + REVOCABLE as usize * 4;
const BELL: usize = HEAD + 128;
const WANT: usize = HEAD + 256;
/// What the sender, and what the receiver accesses of the other's memory (`access`).
const TX_INSIDE: usize = HEAD + 384;
const RX_INSIDE: usize = HEAD + 512;
/// Copies between devices that the receiver has in flight, beside the latter.
const RX_FLIGHTS: usize = RX_INSIDE + 4;
/// The sender gives pages back, and the receiver allows that (`shrink`); beside the same two.
const TX_GIVING: usize = TX_INSIDE + 4;
const RX_ALLOWS: usize = RX_INSIDE + 8;
/// Set for good: the sender's memory, and the receiver's, is not accessed any more.
const TX_CLOSED: usize = HEAD + 640;
const RX_CLOSED: usize = HEAD + 768;
/// Bytes before the ring.
pub(crate) const CONTROL: usize = HEAD + WORDS;
const _: () = assert!(HEAD % 4096 == 0 && RX_CLOSED + 4 <= CONTROL && CONTROL % LINE == 0);

/// Bytes of a channel with such a ring: whole pages.
pub(crate) const fn size(ring: usize) -> usize {
    (CONTROL + ring).next_multiple_of(4096)
}

/// Least bytes of a ring: enough for frames of 10 KiB.
pub const MIN_RING: usize = 24 << 10;

/// Most bytes of a ring.
pub const MAX_RING: usize = 16 << 20;

/// Of so many needs of page-locked memory one asks whether it still is that: the lock ends with the context
/// that it was made in, and then a device copies all the same, but by way of memory of its driver's.
const ASKS: u32 = 64;

/// What keeps a ring page-locked, and how often that was needed.
#[derive(Debug, Default)]
struct Locked {
    lock: PageLock,
    needs: u32,
}

/// The memory of a channel.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Once a device was to copy from or to it; given back before it is unmapped. Elsewhere, since few have
    /// one, and frames touch the rest of this.
    locked: OnceLock<Box<Mutex<Locked>>>,
    shared: Mapping,
    lines: u32,
    /// The peer made it, and sends.
    adopted: bool,
}

impl Segment {
    /// A new segment with a ring of `ring` bytes, a multiple of the page size.
    pub(crate) fn create(ring: usize) -> io::Result<(Segment, OwnedFd)> {
        let fd = memfd::create(c"strait", size(ring), Writers::All)?;
        Ok((Segment::over(Mapping::new(&fd, size(ring), None)?, ring), fd))
    }

    /// A segment a peer made; the reason if it is not one as agreed.
    pub(crate) fn adopt(fd: BorrowedFd<'_>, ring: usize) -> Result<Segment, Unfit> {
        if !(MIN_RING..=MAX_RING).contains(&ring) || ring % 4096 != 0 {
            return Err(Unfit::Size);
        }
        let segment = Segment::over(memfd::adopt(fd, size(ring)..=size(ring))?, ring);
        segment.word(RX_ALLOWS).store(1, Relaxed);
        Ok(Segment { adopted: true, ..segment })
    }

    /// A segment in memory of that size.
    fn over(shared: Mapping, ring: usize) -> Segment {
        assert!(shared.len() == size(ring));
        Segment { locked: OnceLock::new(), shared, lines: (ring / LINE) as u32, adopted: false }
    }

    /// The word at byte `at`, which is inside and aligned to 4.
    #[inline]
    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: callers ask for a control word, a place of the table, or the first word of a line of the
        // ring: these are inside, and multiples of 4.
        unsafe { self.shared.word(at) }
    }

    /// The word of 64 bits at byte `at`, a counter's.
    #[inline]
    fn wide(&self, at: usize) -> &AtomicU64 {
        // SAFETY: callers ask for places of counters, which are inside, and multiples of 8.
        unsafe { self.shared.wide(at) }
    }

    /// Where it is noted where the memory is.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn noted_at(&self) -> usize {
        (&raw const self.shared).addr()
    }

    /// Bytes that take memory.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn resident(&self) -> usize {
        self.shared.resident().unwrap()
    }

    /// Bytes of the ring.
    pub(crate) fn ring_bytes(&self) -> usize {
        self.lines as usize * LINE
    }

    /// A piece counter; `slot` is below [`COUNTERS`].
    pub(crate) fn pieces(&self, slot: u16) -> &AtomicU64 {
        self.wide(usize::from(slot % COUNTERS) * COUNTER)
    }

    /// What the side that did not open that counter reports.
    pub(crate) fn report(&self, slot: u16) -> &AtomicU64 {
        self.wide(usize::from(slot % COUNTERS) * COUNTER + size_of::<u64>())
    }

    /// What the sender accesses of the receiver's memory.
    pub(crate) fn tx_inside(&self) -> &AtomicU32 {
        self.word(TX_INSIDE)
    }

    /// What the receiver accesses of the sender's.
    pub(crate) fn rx_inside(&self) -> &AtomicU32 {
        self.word(RX_INSIDE)
    }

    /// How many copies the receiver has in flight that a device makes, from or to the sender's memory.
    pub(crate) fn rx_flights(&self) -> &AtomicU32 {
        self.word(RX_FLIGHTS)
    }

    /// Not 0: the sender's memory is not accessed any more.
    pub(crate) fn tx_closed(&self) -> &AtomicU32 {
        self.word(TX_CLOSED)
    }

    /// Not 0: the receiver's memory is not accessed any more.
    pub(crate) fn rx_closed(&self) -> &AtomicU32 {
        self.word(RX_CLOSED)
    }

    /// Which request at that place of the sender's pool was taken back, by its generation; `slot` is below
    /// [`REVOCABLE`].
    pub(crate) fn revoked(&self, slot: u32) -> &AtomicU32 {
        self.word(REVOKED + (slot % REVOCABLE) as usize * 4)
    }

    /// A device copies from or to here, if one of `iov` is a device's: then the memory is page-locked for the
    /// first kind of them that asks, so that it need not be copied twice.
    pub(crate) fn lock_for(&self, iov: &[Span]) {
        let Some(kind) = iov.iter().find(|s| s.can(hmem::Caps::DEVICE)).map(|s| s.kind()) else { return };
        if self.locked.get().is_none() && !self.keeps_pages() {
            // The next copy will find the sender done.
            return;
        }
        let mut locked = self.locked.get_or_init(Box::default).lock().unwrap_or_else(PoisonError::into_inner);
        locked.needs = locked.needs.wrapping_add(1);
        if locked.lock.held_for().is_some_and(|of| of != kind || locked.needs % ASKS != 0) {
            return;
        }
        let base = self.shared.base() as usize + HEAD;
        // SAFETY: the ring's pages, which end with the mapping, and live longer than what is remembered of
        // them.
        unsafe { locked.lock.lock_for(registry::of(kind), base, self.shared.len() - HEAD) };
    }

    /// Has the sender give no more pages back; whether it gives none by now. The sender itself looks at
    /// `locked`.
    pub(crate) fn keeps_pages(&self) -> bool {
        !self.adopted || shrink::forbid(self.word(TX_GIVING), self.word(RX_ALLOWS), full_fence)
    }

    /// Bytes `at..at+len` of the ring, which are inside it, for `hmem` to copy from or to.
    pub(crate) fn span(&self, at: usize, len: usize) -> Span {
        assert!(at + len <= self.lines as usize * LINE, "outside the ring");
        let addr = self.shared.base() as usize + CONTROL + at;
        // SAFETY: mapped memory, inside by the assertion. Callers use the span while they hold the
        // segment.
        unsafe { Span::new(addr, len, Kind::System) }
    }
}

impl Mem for Segment {
    type Word = AtomicU32;

    #[inline]
    fn lines(&self) -> u32 {
        self.lines
    }

    #[inline]
    fn commit(&self, line: u32) -> &AtomicU32 {
        self.word(CONTROL + line as usize * LINE)
    }

    fn head(&self) -> &AtomicU32 {
        self.word(HEAD)
    }

    #[inline]
    fn bell(&self) -> &AtomicU32 {
        self.word(BELL)
    }

    fn want(&self) -> &AtomicU32 {
        self.word(WANT)
    }

    fn fence(&self) {
        full_fence();
    }

    fn give_back(&self, all_but: u32) -> bool {
        // What this side locked itself stays.
        if self.locked.get().is_some()
            || !shrink::begin(self.word(TX_GIVING), self.word(RX_ALLOWS), full_fence)
        {
            return false;
        }
        let kept = CONTROL + all_but as usize * LINE;
        // SAFETY: the ring's pages, of which the caller says that they hold no record, but for the one with
        // the control words.
        let removed = unsafe { self.shared.remove(CONTROL..self.shared.len(), kept) };
        shrink::end(self.word(TX_GIVING));
        removed
    }

    #[inline(always)]
    fn will_read(&self, at: usize) {
        ahead::will_read(self.shared.base().wrapping_add(CONTROL + at));
    }

    #[inline(always)]
    fn will_write(&self, at: usize) {
        ahead::will_write(self.shared.base().wrapping_add(CONTROL + at));
    }

    #[inline(always)]
    fn hand_over(&self, at: usize) {
        ahead::hand_over(self.shared.base().wrapping_add(CONTROL + at));
    }

    #[inline]
    unsafe fn put(&self, at: usize, src: *const u8, len: usize) {
        // SAFETY: the bytes are inside the mapping, `src` is valid by contract, and private memory
        // never overlaps the mapping. A peer that breaks the rules may read or write the same bytes
        // meanwhile; what it gets or leaves there is then its own problem, no reference exists.
        unsafe { copy(src, self.shared.base().add(CONTROL + at), len) }
    }

    #[inline]
    unsafe fn get(&self, at: usize, dst: *mut u8, len: usize) {
        // SAFETY: as in `put`, with the roles exchanged; any bytes are a value.
        unsafe { copy(self.shared.base().add(CONTROL + at), dst, len) }
    }
}

/// `copy_nonoverlapping` that makes no call for the few bytes most frames have.
///
/// # Safety
/// As for `copy_nonoverlapping`.
#[inline(always)]
pub(in crate::shm) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    /// Copies `2 * size_of::<T>()` bytes or less, not less than `size_of::<T>()`: the first and the
    /// last of them, which may overlap.
    ///
    /// # Safety
    /// As above, and `len` must be in that range.
    #[inline(always)]
    unsafe fn ends<T>(src: *const u8, dst: *mut u8, len: usize) {
        let last = len - size_of::<T>();
        // SAFETY: both reads, and both writes, are inside `len` bytes, which are valid by contract.
        unsafe {
            let first: T = src.cast::<T>().read_unaligned();
            let second: T = src.add(last).cast::<T>().read_unaligned();
            dst.cast::<T>().write_unaligned(first);
            dst.add(last).cast::<T>().write_unaligned(second);
        }
    }
    /// Copies the head of a frame, by its fields, a short one and `N` long ones: so it never is in memory
    /// between the code that makes or reads it and the ring, and no store is read back in other parts,
    /// which takes long.
    ///
    /// # Safety
    /// As above, for `4 + 8 * N` bytes.
    #[inline(always)]
    unsafe fn head<const N: usize>(src: *const u8, dst: *mut u8) {
        // SAFETY: inside `4 + 8 * N` bytes, which are valid by contract.
        unsafe {
            dst.cast::<u32>().write_unaligned(src.cast::<u32>().read_unaligned());
            for at in (0..N).map(|n| 4 + 8 * n) {
                dst.add(at).cast::<u64>().write_unaligned(src.add(at).cast::<u64>().read_unaligned());
            }
        }
    }
    const HEAD_LEN: usize = wire::Head::LEN;
    const { assert!(HEAD_LEN == 20) };
    // SAFETY: by contract, each arm with a length in range.
    unsafe {
        match len {
            // UCX's: a word, and the header of a short message.
            12 => head::<1>(src, dst),
            // Before what is most often known when this is compiled.
            8..=16 => ends::<u64>(src, dst, len),
            HEAD_LEN => head::<2>(src, dst),
            4..8 => ends::<u32>(src, dst, len),
            17..=32 => ends::<u128>(src, dst, len),
            33..=64 => ends::<[u128; 2]>(src, dst, len),
            0 => {}
            _ => hmem::copy_bytes(src, dst, len),
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "locked_tests.rs"]
mod tests;

//! A ring as the drain has it: its places in shared memory, its commands under way, and its error word.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

use hmem::registry::{self, Exportable};
use hmem::{Kind, Span};

use crate::error::{Error, ended};
use crate::layout::{self, word_of};
use crate::queue::Place;
use crate::ring;
use crate::window::Window;
use crate::words::LINE;

/// Where the parts of a ring are.
#[derive(Clone, Debug)]
pub struct RingPlaces {
    /// 2^log2 slots.
    pub slots: Place,
    /// [`layout::Produced`].
    pub produced: Place,
    /// [`layout::Status`].
    pub status: Place,
    /// Memory of the device's that stands for `produced`, unless the ring has a bell.
    pub near: Option<Arc<Near>>,
}

/// Memory of one device's for what its kernels alone write ([`layout::Produced`]), and for a copy of what
/// they read: a reservation in host memory crosses the bus three times before the command does.
#[derive(Debug)]
pub struct Near(Kind, Exportable);

impl Near {
    /// In the calling thread's context, or in one of the device of that number. `None`: there is none, or no
    /// such memory.
    pub fn new(device: Option<i32>) -> Option<Arc<Near>> {
        registry::find_runtimes();
        let made = registry::of(Kind::Cuda).make_for_kernels(device, 2 * LINE);
        let made = made.inspect_err(|e| log::debug!("a ring's words are in host memory: {e}")).ok()?;
        Some(Arc::new(Near(Kind::Cuda, made)))
    }

    /// Where kernels find [`layout::Produced`].
    pub fn produced(&self) -> u64 {
        self.1.addr as u64
    }

    /// Copies what kernels have to know of the ring there; where they find it.
    pub fn write(&self, ring: &layout::Ring) -> Result<u64, Error> {
        let (to, words) = (self.1.addr + LINE, ring.words());
        let from = words.as_ptr().expose_provenance();
        registry::of(self.0).copy_now(to, from, size_of_val(&words[..])).map_err(Error::Memory)?;
        Ok(to as u64)
    }
}

/// How a ring is made.
#[derive(Clone, Copy, Debug)]
pub struct RingOptions {
    /// Its number, which the device sees.
    pub id: u32,
    /// It has 2^log2 slots.
    pub log2_slots: u32,
    /// Commands are taken up to its bell.
    pub bell: bool,
    /// The queue of the drain that its completions go into.
    pub queue: Option<usize>,
    /// That for what is received.
    pub receive_queue: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct RingSide {
    pub(crate) places: RingPlaces,
    pub(crate) options: RingOptions,
    pub(crate) window: Window,
    /// Two words for each slot: bytes that a command has in itself, while the engine works on them.
    cells: Option<Box<[AtomicU64]>>,
    pub(crate) ended: bool,
}

impl RingSide {
    pub(crate) fn status(&self, n: usize) -> &AtomicU64 {
        self.places.status.word(n)
    }

    /// One whose words are all 0.
    pub(crate) fn new(places: RingPlaces, options: RingOptions) -> RingSide {
        let cells = (0..2usize << options.log2_slots).map(|_| AtomicU64::new(0)).collect();
        let window = Window::new(options.log2_slots);
        RingSide { places, options, window, cells: Some(cells), ended: false }
    }

    /// A cell of a slot, with this value in it, as memory for an operation.
    pub(crate) fn cell(&self, ticket: u64, which: usize, value: u64, len: usize) -> Span {
        let at = ring::slot(ticket, self.options.log2_slots) * 2 + which;
        let Some(cell) = self.cells.as_ref().map(|c| &c[at]) else { return Span::EMPTY };
        cell.store(value, Relaxed);
        debug_assert!(len <= 8);
        // SAFETY: the cells are on the heap, and stay there until no command is under way: `Drop` leaks them
        // otherwise. A slot's command is the only one that uses them until it is over.
        unsafe { Span::new(cell.as_ptr().expose_provenance(), len.min(8), Kind::System) }
    }

    pub(crate) fn end(&mut self, errno: i32) {
        self.ended = true;
        self.fail(ended(errno));
    }

    /// The first error stays.
    pub(crate) fn fail(&self, error: u64) {
        let at = self.status(word_of!(Status.error));
        let now = at.load(Relaxed);
        if now == 0 {
            at.store(error, Release);
        } else if error & layout::ERROR_ENDED != 0 {
            at.store(now | layout::ERROR_ENDED, Release);
        }
    }
}

impl Drop for RingSide {
    fn drop(&mut self) {
        // The engine, or a peer, may still be inside of them.
        if !self.window.is_empty() {
            std::mem::forget(self.cells.take());
        }
    }
}

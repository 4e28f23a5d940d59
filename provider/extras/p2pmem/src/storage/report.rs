//! Which way bytes have gone.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

/// A way between a file and memory. The best comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// O_DIRECT into the memory itself.
    Direct = 0,
    /// By cuFile.
    Cufile = 1,
    /// Through host memory.
    Bounce = 2,
    /// Through the page cache.
    Cached = 3,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Direct, Way::Cufile, Way::Bounce, Way::Cached];

    pub fn name(self) -> &'static str {
        match self {
            Way::Direct => "direct",
            Way::Cufile => "cufile",
            Way::Bounce => "bounce",
            Way::Cached => "cached",
        }
    }
}

/// What has gone over a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// That of the last transfer's last bytes; `None` before the first.
    pub last: Option<Way>,
    /// Bytes by way, in the order of [`Way::ALL`].
    pub bytes: [u64; 4],
    /// Why the last transfer took no better way; empty if there is none.
    pub why: String,
}

#[derive(Debug, Default)]
pub(super) struct Tally {
    bytes: [AtomicU64; 4],
    last: Mutex<(Option<Way>, String)>,
}

impl Tally {
    pub fn add(&self, way: Way, bytes: usize) {
        self.bytes[way as usize].fetch_add(bytes as u64, Relaxed);
    }

    /// What a transfer has come to.
    pub fn took(&self, way: Way, why: String) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = (Some(way), why);
    }

    pub fn report(&self) -> Report {
        let (last, why) = self.last.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Report { last, bytes: Way::ALL.map(|way| self.bytes[way as usize].load(Relaxed)), why }
    }
}

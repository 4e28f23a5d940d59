//! Memory that this process and a device share: words, in whole lines of 64 bytes.

use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hmem::registry::{self, Pages};
use hmem::share::Export;
use hmem::{Kind, Span};
use ipc::Mapping;
use ipc::memfd::{self, Writers};

use crate::error::Error;

/// Bytes of a line.
pub(crate) const LINE: usize = 64;
const PAGE: usize = 4096;

/// Words that a device reads or writes. The CPU reads and writes them too; both may at any time.
///
/// Made by this process, they are in a memfd of a fixed size, which peers of this host may map, and
/// page-locked by the runtime of each kind of device that the process has, so that kernels find them at the
/// address they have here.
pub struct Words {
    base: NonNull<AtomicU64>,
    len: usize,
    /// Where the device finds them.
    device: u64,
    keep: Keep,
}

enum Keep {
    /// In this order: what is locked is unlocked before it is unmapped.
    Own { _locked: Vec<Pages>, _mapping: Mapping, file: OwnedFd },
    /// The caller's.
    Caller,
}

// SAFETY: what a shared reference gives is atomics and numbers, and the memory belongs to the process.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// So many words, all zero, rounded up to pages.
    pub fn new(words: usize) -> Result<Arc<Words>, Error> {
        let bytes = (words.max(1) * 8).next_multiple_of(PAGE);
        let file = memfd::create(c"strait-xpu", bytes, Writers::All)?;
        let mapping = Mapping::new(&file, bytes, None)?;
        let at = mapping.base().expose_provenance();
        registry::find_runtimes();
        // SAFETY: the mapping, which is dropped after what locks it.
        let locked = unsafe { registry::lock_for_devices(at, bytes) };
        let base = NonNull::new(mapping.base().cast()).ok_or(Error::Invalid("memory at NULL"))?;
        let keep = Keep::Own { _locked: locked, _mapping: mapping, file };
        Ok(Arc::new(Words { base, len: bytes / 8, device: at as u64, keep }))
    }

    /// As [`Words::new`], and a device finds them where `import` says, which is called with their address and
    /// their bytes.
    pub fn imported(
        words: usize,
        import: impl FnOnce(usize, usize) -> Result<u64, Error>,
    ) -> Result<Arc<Words>, Error> {
        let made = Words::new(words)?;
        let device = import(made.base.as_ptr().expose_provenance(), made.len * 8)?;
        Arc::try_unwrap(made)
            .map(|w| Arc::new(Words { device, ..w }))
            .map_err(|_| Error::State("in use already"))
    }

    /// Memory of the caller's, that a device finds at `device`.
    ///
    /// # Safety
    /// `addr` is a multiple of 64, and `bytes` bytes from there on are mapped, to be read and written by the
    /// CPU, until what is returned is dropped; in this process nothing but atomic accesses of words is made
    /// to them.
    pub unsafe fn from_caller(addr: usize, bytes: usize, device: u64) -> Result<Arc<Words>, Error> {
        if addr % LINE != 0 || device % LINE as u64 != 0 {
            return Err(Error::Invalid("memory for a queue begins at a multiple of 64 bytes"));
        }
        let base = NonNull::new(std::ptr::with_exposed_provenance_mut(addr))
            .ok_or(Error::Invalid("memory for a queue is not NULL"))?;
        Ok(Arc::new(Words { base, len: bytes / 8, device, keep: Keep::Caller }))
    }

    /// How many there are.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Word number `at`.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub fn get(&self, at: usize) -> &AtomicU64 {
        assert!(at < self.len, "a word that is not there");
        // SAFETY: inside, aligned to 8 as the base is to more, and mapped as long as `self` lives; every
        // value is a word, and a device may change it at any time, as an atomic may be.
        unsafe { self.base.add(at).as_ref() }
    }

    /// The eight words from number `at` on.
    ///
    /// # Panics
    /// If there are not so many.
    #[inline]
    pub(crate) fn eight(&self, at: usize) -> &[AtomicU64; 8] {
        assert!(at < self.len && self.len - at >= 8, "words that are not there");
        // SAFETY: as for `get`: eight words, all of them inside.
        unsafe { self.base.add(at).cast().as_ref() }
    }

    /// Where a device finds word number `at`.
    pub fn device(&self, at: usize) -> u64 {
        self.device + at as u64 * 8
    }

    /// All of it, for an operation.
    pub(crate) fn span(&self) -> Span {
        let addr = self.base.as_ptr().expose_provenance();
        // SAFETY: mapped as long as `self` lives, as the type that registers it keeps `self`.
        unsafe { Span::new(addr, self.len * 8, Kind::System) }
    }

    /// How another process of this host maps it, if it can.
    pub(crate) fn export(&self) -> Option<Export> {
        let Keep::Own { file, .. } = &self.keep else { return None };
        let (base, len) = (self.base.as_ptr().expose_provenance() as u64, self.len as u64 * 8);
        hmem::share::export_file(file, base, len).ok()
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Words").field("at", &self.base).field("words", &self.len).finish()
    }
}

//! Words that streams and the CPU access, page-locked for devices.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;

use hmem::registry::{self, Pages};
use hmem::share::{Export, Opened, export_file};
use ipc::Mapping;
use ipc::memfd::{self, Writers};

use crate::error::Error;
use crate::layout::LINE;

/// Memory of this process, or a peer's that is mapped here.
pub(crate) struct Words {
    at: usize,
    len: usize,
    /// Goes before what is mapped.
    _locked: Vec<Pages>,
    keep: Keep,
}

enum Keep {
    Own { _mapping: Mapping, file: OwnedFd },
    Peer { _opened: Opened },
}

impl Words {
    /// Zeroed memory that another process may map.
    pub(crate) fn new(len: usize) -> Result<Words, Error> {
        let file = memfd::create(c"strait-stream", len, Writers::All)?;
        let mapping = Mapping::new(&file, len, None)?;
        let at = mapping.base().expose_provenance();
        registry::find_runtimes();
        // SAFETY: mapped until `mapping` is dropped, behind what is returned.
        let locked = unsafe { registry::lock_for_devices(at, len) };
        Ok(Words { at, len, _locked: locked, keep: Keep::Own { _mapping: mapping, file } })
    }

    /// A peer's `len` bytes, which it has at `there`.
    pub(crate) fn of_peer(opened: Opened, there: u64, len: usize) -> Result<Words, Error> {
        let found = opened.place(there).filter(|(at, follow)| *follow >= len && at % LINE == 0);
        let (at, _) = found.ok_or(Error::Blob("its memory is shorter than it says, or not aligned"))?;
        // SAFETY: mapped until `opened` is dropped, behind what is returned.
        let locked = unsafe { registry::lock_for_devices(at, len) };
        Ok(Words { at, len, _locked: locked, keep: Keep::Peer { _opened: opened } })
    }

    pub(crate) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn export(&self) -> Option<Export> {
        match &self.keep {
            Keep::Own { file, .. } => export_file(file, self.at as u64, self.len as u64).ok(),
            Keep::Peer { .. } => None,
        }
    }

    /// A word of a line, by its first byte there.
    pub(crate) fn word(&self, line: u32, byte: usize) -> &AtomicU32 {
        let offset = line as usize * LINE + byte;
        assert!(byte % 4 == 0 && offset + 4 <= self.len, "a word that is not there");
        // SAFETY: inside of the memory and aligned, which stays as long as `self`; all accesses of words are
        // atomic or a device's.
        unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(self.at + offset)) }
    }
}

impl std::fmt::Debug for Words {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Words").field("at", &self.at).field("len", &self.len).finish()
    }
}

//! Memory that was taken of a publisher, and its mapping.

use std::io;
use std::sync::Arc;

use ipc::Mapping;

use super::contract::{Publisher, Source};

/// A piece of memory that was taken, given back on drop.
#[derive(Debug)]
pub struct Lease {
    publisher: Arc<dyn Publisher>,
    at: u64,
    len: u64,
    source: Source,
}

impl Lease {
    pub fn take(publisher: &Arc<dyn Publisher>, len: u64, align: u64) -> Result<Lease, String> {
        let (at, source) = publisher.take(len, align)?;
        Ok(Lease { publisher: publisher.clone(), at, len, source })
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Maps it.
    pub fn map(&self) -> io::Result<Mapped> {
        Mapped::new(&self.source, self.len)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.publisher.give(self.at, self.len);
    }
}

/// A piece of memory at an address of this process.
#[derive(Debug)]
pub struct Mapped {
    addr: usize,
    len: usize,
    mapping: Option<Mapping>,
    /// An access may end in SIGBUS once the device is gone.
    vanishes: bool,
}

impl Mapped {
    pub fn new(source: &Source, len: u64) -> io::Result<Mapped> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let (fd, offset) = match source {
            Source::Here(addr) => return Ok(Mapped { addr: *addr, len, mapping: None, vanishes: false }),
            Source::File { fd, offset } => {
                (fd, usize::try_from(*offset).map_err(|_| io::ErrorKind::OutOfMemory)?)
            }
            Source::Window(fd) => (fd, 0),
        };
        let end = offset.checked_add(len).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping::new(&**fd, end, None)?;
        let addr = mapping.base().expose_provenance() + offset;
        Ok(Mapped { addr, len, mapping: Some(mapping), vanishes: matches!(source, Source::Window(_)) })
    }

    pub fn addr(&self) -> usize {
        self.addr
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn may_vanish(&self) -> bool {
        self.vanishes
    }

    /// Whether it was mapped for this, and is unmapped when it goes.
    pub fn is_own(&self) -> bool {
        self.mapping.is_some()
    }
}

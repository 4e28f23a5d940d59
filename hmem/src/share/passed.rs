//! Memory of another process by a descriptor that it has passed, which takes no leave to look into that
//! process.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use super::handle::{Export, HandleType};
use super::mapped::Mapped;
use super::opened::Opened;
use crate::error::Error;
use crate::registry;

/// An allocation of another process. It is mapped when it is first used, once for each context that it is
/// used in, and until this is dropped.
#[derive(Debug)]
pub struct Passed {
    export: Export,
    _fd: Option<OwnedFd>,
    maps: Mutex<Vec<(usize, Arc<Mapped>)>>,
}

impl Passed {
    /// What came with a descriptor. Nothing of it is trusted: the driver knows how long the memory is.
    pub fn new(export: &Export, fd: OwnedFd) -> Result<Passed, Error> {
        if export.handle_type != HandleType::Descriptor {
            return Err(Error::UNSUPPORTED);
        }
        Passed::of(export, Some(fd))
    }

    /// What is opened by its token alone. Nothing of it is trusted: the driver knows how long the memory is.
    pub fn by_token(export: &Export) -> Result<Passed, Error> {
        match export.handle_type {
            HandleType::Legacy | HandleType::Hsa => Passed::of(export, None),
            _ => Err(Error::UNSUPPORTED),
        }
    }

    /// An export with its descriptor, if it is of a kind that has one.
    pub(crate) fn of(export: &Export, fd: Option<OwnedFd>) -> Result<Passed, Error> {
        if fd.is_some() != (export.handle_type == HandleType::Descriptor) {
            return Err(Error::UNSUPPORTED);
        }
        let export = Export { fd: fd.as_ref().map_or(-1, AsRawFd::as_raw_fd), ..*export };
        Ok(Passed { export, _fd: fd, maps: Mutex::default() })
    }

    /// What is known of it: `base` is where it is in its owner.
    pub fn export(&self) -> Export {
        self.export
    }

    /// Maps it, for a copy whose other side is this process's memory at `local` (0: none in particular).
    pub fn open(&self, local: usize) -> Result<Opened, Error> {
        self.open_in(self.context(local)?)
    }

    /// Where such a copy is to be done.
    pub(crate) fn context(&self, local: usize) -> Result<usize, Error> {
        registry::of(self.export.handle_type.kind()).context(&self.export, local)
    }

    /// Maps it for the copies that are done there.
    pub(crate) fn open_in(&self, ctx: usize) -> Result<Opened, Error> {
        let (kind, base) = (self.export.handle_type.kind(), self.export.base);
        let memory = registry::of(kind);
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, map)) = maps.iter().find(|(of, _)| *of == ctx) {
            return Ok(Opened { map: map.clone(), base, ctx, kind });
        }
        // The descriptor, if there is one, is this process's own.
        let map = Arc::new(memory.import(std::process::id() as i32, 0, &self.export, ctx)?);
        maps.push((ctx, map.clone()));
        Ok(Opened { map, base, ctx, kind })
    }
}

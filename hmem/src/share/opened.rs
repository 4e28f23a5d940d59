//! Memory of another process, in use.

use std::sync::Arc;

use super::file::Access;
use super::mapped::{Backing, Mapped};
use crate::error::Error;
use crate::kind::Kind;

/// Memory of another process that this one can name: it stays mapped for as long as this lives.
#[derive(Clone, Debug)]
pub struct Opened {
    pub(super) map: Arc<Mapped>,
    pub(super) base: u64,
    pub(super) ctx: usize,
    pub(super) kind: Kind,
}

impl Opened {
    /// Where `addr` of the owner is here, and how many bytes follow; `None` if it is not in there.
    pub fn place(&self, addr: u64) -> Option<(usize, usize)> {
        let off = addr.checked_sub(self.base).filter(|off| *off < self.map.len)?;
        Some(((self.map.at + off) as usize, (self.map.len - off) as usize))
    }

    /// Where it is to be copied, as its kind of memory has that: for CUDA, the context.
    pub fn context(&self) -> usize {
        self.ctx
    }

    /// The kind of memory whose device copies it; the CPU does, where it is [`Kind::System`].
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// From here until it is dropped the CPU uses the memory.
    pub(crate) fn cpu_access(&self, write: bool) -> Result<Option<Access<'_>>, Error> {
        match &self.map.backing {
            Backing::File(file) => file.cpu_access(write),
            _ => Ok(None),
        }
    }
}

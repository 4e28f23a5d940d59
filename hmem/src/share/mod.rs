//! How processes reach each other's memory: handles, and what was opened by them.
//!
//! An allocation's number never comes again, so what is remembered under it cannot be taken for a
//! later allocation at the same address.

mod bytes;
mod file;
mod kept;
mod opened;
mod plan;

pub use bytes::List;
pub use file::FileAt;
pub(crate) use file::{File, describe as describe_file, fetch, inode};
pub(crate) use kept::kept;
pub use opened::{Opened, forget, is_open, open};
pub use plan::{NoPlan, Owner, plan};

use crate::Kind;

/// What kind of handle it is. Numbers are part of the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum How {
    /// `token` is a `CUipcMemHandle`.
    Legacy = 1,
    /// `fd` is CUDA's shareable handle, a descriptor in the exporting process.
    Descriptor = 2,
    /// `fd` is a file of the exporting process that others may map: a dma-buf, or a memfd that cannot
    /// shrink. `token` says which one and from where on.
    File = 3,
    /// `token` is an `hsa_amd_ipc_memory_t`.
    Hsa = 4,
    /// `token` is a `ze_ipc_mem_handle_t`, whose descriptor is `fd`; `device` says which file that is.
    Ze = 5,
    /// `token` is a `CUmemPoolPtrExportData`, of the pool whose shareable handle `fd` is. It is open only as
    /// long as it is used, since it has to be let go of before its owner frees it.
    Pool = 6,
}

impl How {
    /// The one with this number.
    pub fn from_u8(v: u8) -> Option<How> {
        [How::Legacy, How::Descriptor, How::File, How::Hsa, How::Ze, How::Pool]
            .into_iter()
            .find(|h| *h as u8 == v)
    }

    /// The kind of memory whose device copies what was opened by it; the CPU does, where it is
    /// [`Kind::System`].
    pub fn kind(self) -> Kind {
        match self {
            How::Legacy | How::Descriptor | How::Pool => Kind::Cuda,
            How::File => Kind::System,
            How::Hsa => Kind::Rocr,
            How::Ze => Kind::Ze,
        }
    }
}

/// An allocation as another process is told of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// What kind of handle this is.
    pub how: How,
    /// The allocation's number in the exporting process.
    pub id: u64,
    /// First byte of it there.
    pub base: u64,
    /// Bytes.
    pub len: u64,
    /// Of kinds with a descriptor; else -1.
    pub fd: i32,
    /// The device it is on.
    pub device: [u8; 16],
    /// The driver's own handle.
    pub token: [u8; 64],
}

/// Memory of another process, mapped here until it is dropped.
#[derive(Debug)]
pub struct Mapped {
    /// First byte.
    pub(crate) at: u64,
    /// Bytes.
    pub(crate) len: u64,
    /// Dropping it unmaps the memory.
    pub(crate) hold: Hold,
}

/// What a mapping goes by.
pub(crate) enum Hold {
    /// Nothing: it is this process's own memory.
    Own,
    /// A file, mapped for the CPU.
    File(File),
    /// A runtime's mapping.
    Runtime(#[allow(dead_code, reason = "it is there to be dropped")] Box<dyn std::any::Any + Send + Sync>),
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Hold::Own => "own",
            Hold::File(_) => "file",
            Hold::Runtime(_) => "runtime",
        })
    }
}

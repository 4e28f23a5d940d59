//! Handles: names of allocations that other processes can open.

use crate::kind::Kind;

/// What kind of handle it is. Numbers are part of the wire format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HandleType {
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

impl HandleType {
    /// The one with this number.
    pub fn from_u8(v: u8) -> Option<HandleType> {
        [
            HandleType::Legacy,
            HandleType::Descriptor,
            HandleType::File,
            HandleType::Hsa,
            HandleType::Ze,
            HandleType::Pool,
        ]
        .into_iter()
        .find(|h| *h as u8 == v)
    }

    /// The kind of memory whose device copies what was opened by it; the CPU does, where it is
    /// [`Kind::System`].
    pub fn kind(self) -> Kind {
        match self {
            HandleType::Legacy | HandleType::Descriptor | HandleType::Pool => Kind::Cuda,
            HandleType::File => Kind::System,
            HandleType::Hsa => Kind::Rocr,
            HandleType::Ze => Kind::Ze,
        }
    }
}

/// An exported allocation: what another process opens it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// What kind of handle this is.
    pub handle_type: HandleType,
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

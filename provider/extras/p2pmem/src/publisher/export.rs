//! Dma-bufs of memory that is at an address of this process.

use std::io;
use std::os::fd::OwnedFd;

use hmem::share::HandleType;

use super::contract::Kind;
use crate::error::Error;

/// A dma-buf of device memory, and where in it that begins. `of` is what an error names.
pub fn export_memory(of: &str, kind: hmem::Kind, addr: usize, len: usize) -> Result<(OwnedFd, u64), Error> {
    let memory = hmem::registry::of(kind);
    let made = memory.export_dmabuf(addr, len, true).or_else(|_| memory.export_dmabuf(addr, len, false));
    made.map_err(|e| {
        let what = match e.errno() {
            libc::EOPNOTSUPP => {
                ": this GPU, or its driver, exports none (NVIDIA's open modules do, since CUDA 11.7)"
            }
            libc::EINVAL => ": it has to be whole pages of one allocation of the GPU's",
            libc::ENXIO | libc::ENOENT => ": the memory, or its context, is gone",
            _ => "",
        };
        let code = io::Error::from_raw_os_error(e.errno());
        Error::Os(format!("{of}: dma-buf: {e}{what}"), code)
    })
}

/// What other processes are given of memory of this one, and where in that it begins.
#[derive(Debug)]
pub enum Exported {
    /// A driver opens it by a token.
    Handle(hmem::share::Export, u64),
    Dmabuf(OwnedFd, u64),
}

/// What other processes are given of memory of this one, and its kind: a handle of its driver's, by which
/// they map it, or else a dma-buf.
pub fn export_to_processes(of: &str, addr: usize, len: usize) -> Result<(Kind, Exported), Error> {
    hmem::registry::find_runtimes();
    let kind = hmem::classify(addr, len);
    if kind == hmem::Kind::System {
        return Err(Error::Unsupported(format!(
            "{of}: no other process can map memory that malloc(3) or mmap(2) without a file has made: publish a memfd"
        )));
    }
    if let Ok([export]) = hmem::registry::of(kind).export_ipc(addr, len, 1).as_deref() {
        let by_token = matches!(export.handle_type, HandleType::Legacy | HandleType::Hsa);
        if let Some(offset) = (addr as u64).checked_sub(export.base).filter(|_| by_token) {
            return Ok((Kind::Memory(kind), Exported::Handle(*export, offset)));
        }
    }
    let (fd, offset) = export_memory(of, kind, addr, len)?;
    Ok((Kind::Memory(kind), Exported::Dmabuf(fd, offset)))
}

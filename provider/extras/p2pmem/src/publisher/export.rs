//! Dma-bufs of memory that is at an address of this process.

use std::io;
use std::os::fd::OwnedFd;

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

/// What other processes are given of memory of this one: its kind, a dma-buf, and where in that it begins.
pub fn export_to_processes(of: &str, addr: usize, len: usize) -> Result<(Kind, OwnedFd, u64), Error> {
    hmem::registry::find_runtimes();
    let kind = hmem::classify(addr, len);
    if kind == hmem::Kind::System {
        return Err(Error::Unsupported(format!(
            "{of}: no other process can map memory that malloc(3) or mmap(2) without a file has made: publish a memfd"
        )));
    }
    let (fd, offset) = export_memory(of, kind, addr, len)?;
    Ok((Kind::Memory(kind), fd, offset))
}

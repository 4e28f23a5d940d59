//! Questions about memory of any kind.

#![allow(non_camel_case_types, reason = "names of C")]

use std::os::fd::IntoRawFd;

use c_abi::guard;
use hmem::{Kind, Span, path, registry};
use libc::{c_char, c_int, c_void};

/// strait_memory.kind: host memory.
pub const STRAIT_MEMORY_SYSTEM: u32 = 0;
/// strait_memory.kind: CUDA's.
pub const STRAIT_MEMORY_CUDA: u32 = 2;
/// strait_memory.kind: ROCm's.
pub const STRAIT_MEMORY_ROCR: u32 = 3;
/// strait_memory.kind: Level Zero's.
pub const STRAIT_MEMORY_ZE: u32 = 4;
/// strait_memory.kind: that of a client of this process.
pub const STRAIT_MEMORY_CLIENT: u32 = 5;

/// strait_export_dmabuf: one that is sure to be reachable over PCIe.
pub const STRAIT_DMABUF_PCIE: u64 = 1;

/// What a piece of memory is. Paths are those of enum fi_strait_path_kind in strait_hmem.h.
#[repr(C)]
#[derive(Debug)]
pub struct strait_memory {
    /// In: sizeof(struct strait_memory).
    pub size: usize,
    /// Out: one of STRAIT_MEMORY_.
    pub kind: u32,
    /// Out: by which path others reach it.
    pub path: u32,
    /// Out: an errno for each path that was tried before, or 0.
    pub refused: [i32; 5],
    /// 0.
    pub zero: u32,
    /// Out: the refusals in words.
    pub why: [c_char; 256],
}

fn span(addr: *const c_void, len: usize) -> Result<Span, c_int> {
    let at = addr.expose_provenance();
    at.checked_add(len).ok_or(libc::EINVAL)?;
    registry::find_runtimes();
    // SAFETY: it is asked about, not followed.
    Ok(unsafe { Span::new(at, len, hmem::classify(at, len)) })
}

/// What memory `addr` is, and by which path another process or a device reaches `len` bytes there.
///
/// 0; -EINVAL: `memory` is NULL or its size is too small, or the range is none.
///
/// # Safety
/// `memory` is NULL or points to as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_query_memory(
    addr: *const c_void,
    len: usize,
    memory: *mut strait_memory,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        if memory.is_null() || unsafe { (*memory).size } < size_of::<strait_memory>() {
            return Err(libc::EINVAL);
        }
        let span = span(addr, len)?;
        let found = path::find(span, path::any_device(span));
        let mut why = [0; 256];
        for (to, from) in why[..255].iter_mut().zip(found.why.bytes()) {
            *to = from as c_char;
        }
        let (kind, path, refused) = (span.kind() as u32, found.path as u32, found.refused);
        // SAFETY: the program's promise; the size that was checked above stays as it is.
        unsafe {
            let size = (*memory).size;
            memory.write(strait_memory { size, kind, path, refused, zero: 0, why });
        }
        Ok(())
    })
}

/// A dma-buf of `len` bytes of device memory at `addr`, for a driver or a card that takes one: a new
/// descriptor in *fd, which the caller closes, and where in it `addr` is in *offset. `flags`: 0 or
/// STRAIT_DMABUF_PCIE.
///
/// 0; -EINVAL; -EOPNOTSUPP: host memory, or the kind of memory has none; else what its driver said.
///
/// # Safety
/// `fd` and `offset` are NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_export_dmabuf(
    addr: *const c_void,
    len: usize,
    flags: u64,
    fd: *mut c_int,
    offset: *mut u64,
) -> c_int {
    guard(|| {
        if fd.is_null() || offset.is_null() || len == 0 || flags & !STRAIT_DMABUF_PCIE != 0 {
            return Err(libc::EINVAL);
        }
        let span = span(addr, len)?;
        let memory = registry::of(span.kind());
        let pcie = flags & STRAIT_DMABUF_PCIE != 0;
        let (file, at) = memory.export_dmabuf(span.addr() as usize, len, pcie).map_err(|e| e.errno())?;
        // SAFETY: the program's promise.
        unsafe {
            fd.write(file.into_raw_fd());
            offset.write(at);
        }
        Ok(())
    })
}

const _: () = assert!(
    STRAIT_MEMORY_SYSTEM == Kind::System as u32
        && STRAIT_MEMORY_CUDA == Kind::Cuda as u32
        && STRAIT_MEMORY_ROCR == Kind::Rocr as u32
        && STRAIT_MEMORY_ZE == Kind::Ze as u32
        && STRAIT_MEMORY_CLIENT == Kind::Client as u32
        && path::Path::COUNT == 5
);

//! fi_open_ops(3) of domains: how device memory gets to peers, by include/strait_hmem.h.

use std::ffi::CStr;

use hmem::path::{self, Path};
use libc::{c_char, c_int, c_void};
use libfabric_sys as fi;

use crate::errno::Errno;
use crate::ffi::{arg, guard, obj, open_ops};
use crate::mr::MrFid;
use crate::{ep, xpu};

/// `FI_STRAIT_HMEM_OPS`.
pub(crate) const NAME: &CStr = c"strait_hmem_v1";

/// `struct fi_strait_path`.
#[repr(C)]
pub(crate) struct Answer {
    pub size: usize,
    pub path: u32,
    pub refused: [i32; Path::COUNT],
    pub why: [c_char; 256],
}

/// `struct fi_strait_ops_hmem`.
#[repr(C)]
pub(crate) struct HmemOps {
    pub size: usize,
    pub mr_query_path: unsafe extern "C" fn(*mut fi::fid_mr, *mut Answer) -> c_int,
}

static HMEM_OPS: HmemOps = HmemOps { size: size_of::<HmemOps>(), mr_query_path };

/// `fi_ops::ops_open` of a domain.
pub(crate) unsafe extern "C" fn ops_open(
    _fid: *mut fi::fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    let table = |n: &CStr| -> Option<*const c_void> {
        match n {
            n if n == NAME => Some((&raw const HMEM_OPS).cast()),
            n if n == ep::LINK_OPS_NAME => Some((&raw const ep::LINK_OPS).cast()),
            n if n == xpu::NAME => Some((&raw const xpu::TABLE).cast()),
            _ => None,
        }
    };
    // SAFETY: the application passes a string, and a place for the answer.
    unsafe { open_ops(name, flags, ops, table) }
}

unsafe extern "C" fn mr_query_path(mr: *mut fi::fid_mr, to: *mut Answer) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open registration, and an answer whose size is set.
        let (mr, size) = unsafe { (obj::<MrFid, _>(mr)?, arg(to)?.size) };
        if size < size_of::<Answer>() {
            return Err(Errno::INVAL);
        }
        // No link of this host hands a dma-buf to a device.
        let found = path::find(mr.memory, false);
        let mut why = [0; 256];
        for (to, from) in why[..255].iter_mut().zip(found.why.bytes()) {
            *to = from as c_char;
        }
        let answer = Answer { size, path: found.path as u32, refused: found.refused, why };
        // SAFETY: as above; there is room for all of it.
        unsafe { to.write(answer) };
        Ok(())
    })
}

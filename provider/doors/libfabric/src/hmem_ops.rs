//! fi_open_ops(3) of domains: how device memory gets to peers, by include/strait_hmem.h.

use std::ffi::CStr;

use hmem::path::{self, Found, Path};
use libc::{c_char, c_int, c_void};
use libfabric_sys as fi;

use crate::errno::Errno;
use crate::ffi::{arg, guard, obj, open_ops};
use crate::info::addr;
use crate::mr::MrFid;
use crate::{ep, param, xpu};

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
        let found = find(mr);
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

/// The path to a registration, and what the RDMA device of a `verbs` link, if that is named, says of it.
fn find(mr: &MrFid) -> Found {
    let Some(options) = &param::get().links.verbs else { return path::find(mr.memory, path::no_device) };
    let shared = &mr.shared;
    let at = shared.at.unwrap_or_else(|| addr::own(shared.addr_format == fi::FI_SOCKADDR_IN6));
    let asked = verbs::ask(options, at.ip(), mr.memory, mr.in_frames());
    let dmabuf =
        |path: Path| asked.dmabufs[usize::from(path == Path::Dmabuf)].map_err(|errno| (errno, String::new()));
    let mut found = path::find(mr.memory, dmabuf);
    // The device's words have the reasons of both.
    let rest: Vec<&str> = found.why.split("; ").filter(|why| why.starts_with(Path::PeerMap.name())).collect();
    found.why = [&[asked.text.as_str()][..], &rest].concat().join("; ");
    found
}

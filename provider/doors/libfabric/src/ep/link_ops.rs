//! fi_open_ops(3) of endpoints: the state of links and the path to a peer, by include/strait_link.h.

use std::ffi::CStr;

use libc::{c_char, c_int, c_void};
use libfabric_sys as fi;
use link_api::Standing;

use super::endpoint::EpFid;
use super::links::standing;
use crate::domain::DomainFid;
use crate::errno::Errno;
use crate::ffi::{guard, obj, open_ops};
use crate::info::addr;
use crate::text::put_text;

/// `FI_STRAIT_LINK_OPS`.
pub(crate) const NAME: &CStr = c"strait_link_v1";

/// `struct fi_strait_ops_link`.
#[repr(C)]
pub(crate) struct LinkOps {
    pub size: usize,
    pub path: unsafe extern "C" fn(*mut fi::fid_ep, fi::fi_addr_t, *mut c_char, usize) -> c_int,
    pub links: unsafe extern "C" fn(*mut fi::fid_domain, *mut c_char, usize) -> c_int,
}

pub(crate) static LINK_OPS: LinkOps = LinkOps { size: size_of::<LinkOps>(), path, links };

/// `fi_ops::ops_open` of an endpoint.
pub(crate) unsafe extern "C" fn ops_open(
    _fid: *mut fi::fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    let table = |n: &CStr| (n == NAME).then(|| (&raw const LINK_OPS).cast());
    // SAFETY: the application passes a string, and a place for the answer.
    unsafe { open_ops(name, flags, ops, table) }
}

/// Hands a text out as snprintf(3) does: as much as there is room for, and how long it is.
///
/// # Safety
/// `buf` is NULL or valid for `len` bytes of writes.
unsafe fn answer(text: &str, buf: *mut c_char, len: usize) -> Result<usize, Errno> {
    if buf.is_null() && len > 0 {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { put_text(buf, len, text) };
    Ok(text.len())
}

unsafe extern "C" fn path(ep: *mut fi::fid_ep, peer: fi::fi_addr_t, buf: *mut c_char, len: usize) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open endpoint.
        let ep = unsafe { obj::<EpFid, _>(ep) }?;
        let live = ep.live()?.ep;
        let text = ep.endpoint.shared.lock().ep_describe(live, peer)?;
        // SAFETY: the application passes NULL, or a buffer of that length.
        unsafe { answer(&text, buf, len) }
    })
}

unsafe extern "C" fn links(domain: *mut fi::fid_domain, buf: *mut c_char, len: usize) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open domain.
        let shared = unsafe { &obj::<DomainFid, _>(domain)?.shared };
        let own = addr::own(shared.addr_format == fi::FI_SOCKADDR_IN6);
        let text: String = standing(own, shared.auth_key.as_ref()).iter().map(line).collect();
        // SAFETY: the application passes NULL, or a buffer of that length.
        unsafe { answer(&text, buf, len) }
    })
}

fn line(link: &Standing) -> String {
    let (is, words) = match &link.offers {
        Ok(words) => ("yes", words),
        Err(why) => ("no", why),
    };
    format!("{} {is} {}\n", link.link, words.replace('\n', " "))
}

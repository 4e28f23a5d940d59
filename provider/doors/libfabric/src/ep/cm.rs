//! Names of endpoints, and their groups: fi_cm(3). There are no connections.

use libc::{c_int, c_void};
use libfabric_sys as fi;

use super::collective::join;
use super::endpoint::EpFid;
use super::links::open_link;
use crate::errno::Errno;
use crate::ffi::{arg, guard, obj};
use crate::info::addr::{from_sockaddr, named, to_sockaddr};

pub(super) static OPS: fi::fi_ops_cm =
    fi::fi_ops_cm { setname: Some(setname), getname: Some(getname), join: Some(join), ..fi::NO_OPS_CM };

/// Names of a shared receive context: it has none.
pub(super) static NO_NAMES: fi::fi_ops_cm = fi::NO_OPS_CM;

unsafe extern "C" fn getname(fid: fi::fid_t, to: *mut c_void, len: *mut usize) -> c_int {
    guard(|| {
        // SAFETY: fi_getname(3): a live fid, and how much room there is.
        let (ep, room) = unsafe { (obj::<EpFid, _>(fid)?, *arg(len)?) };
        let name = ep.endpoint.setup().name;
        let (bytes, n) = to_sockaddr(name, ep.endpoint.attrs.addr_format);
        // SAFETY: `arg` has seen that it is not NULL; it is for this answer.
        unsafe { len.write(n) };
        if to.is_null() && room > 0 {
            return Err(Errno::INVAL);
        }
        let part = &bytes[..n.min(room)];
        if !part.is_empty() {
            // SAFETY: fi_getname(3): `room` bytes, of which these are at most as many.
            unsafe { std::ptr::copy_nonoverlapping(part.as_ptr(), to.cast(), part.len()) };
        }
        if room < n { Err(Errno::TOOSMALL) } else { Ok(()) }
    })
}

unsafe extern "C" fn setname(fid: fi::fid_t, name: *mut c_void, len: usize) -> c_int {
    guard(|| {
        // SAFETY: fi_setname(3): a live fid.
        let ep = unsafe { obj::<EpFid, _>(fid) }?;
        if name.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: fi_setname(3): `len` bytes of an address.
        let name = unsafe { from_sockaddr(name.cast_const(), len) }?;
        ep.endpoint.setup().exchange(|| Ok(open_link(named(name), ep.endpoint.attrs.auth_key.as_ref())?))
    })
}

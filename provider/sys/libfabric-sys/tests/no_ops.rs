//! Every slot of every table is filled and answers that nothing is supported.

use libfabric_sys::*;
use std::ffi::CStr;
use std::ptr::null_mut;

#[test]
fn full() {
    fn check<T>(name: &str, table: T) {
        let words = size_of::<T>() / size_of::<usize>();
        assert_eq!(align_of::<T>(), align_of::<usize>());
        // SAFETY: a table is its size and function pointers: words, without padding.
        let words = unsafe { std::slice::from_raw_parts((&raw const table).cast::<usize>(), words) };
        assert_eq!(words[0], size_of::<T>(), "{name}");
        assert!(words[1..].iter().all(|&slot| slot != 0), "{name}");
    }
    macro_rules! check {
        ($($name:ident)*) => { $(check(stringify!($name), $name);)* };
    }
    check! {
        NO_OPS NO_OPS_FABRIC NO_OPS_DOMAIN NO_OPS_MR NO_OPS_EP NO_OPS_CM NO_OPS_MSG NO_OPS_TAGGED
        NO_OPS_RMA NO_OPS_ATOMIC NO_OPS_COLLECTIVE NO_OPS_AV NO_OPS_AV_SET NO_OPS_CQ NO_OPS_CNTR
        NO_OPS_EQ NO_OPS_WAIT NO_OPS_POLL NO_OPS_XPU_CTX
    }
}

#[test]
fn answers() {
    let none = null_mut();
    // SAFETY: the stubs ignore their arguments.
    unsafe {
        assert_eq!(NO_OPS.close.unwrap()(none), -FI_ENOSYS);
        assert_eq!(NO_OPS_EP.cancel.unwrap()(none, null_mut()), -FI_ENOSYS as isize);
        assert_eq!(NO_OPS_CNTR.readerr.unwrap()(null_mut()), 0);
        let text = NO_OPS_AV.straddr.unwrap()(null_mut(), null_mut(), null_mut(), null_mut());
        assert_eq!(CStr::from_ptr(text), c"unknown");
        let atomic = NO_OPS_ATOMIC.compwritemsg.unwrap();
        let answer = atomic(null_mut(), null_mut(), null_mut(), null_mut(), 0, null_mut(), null_mut(), 0, 0);
        assert_eq!(answer, -FI_ENOSYS as isize);
    }
}

#[test]
fn newer_forms_fall_back() {
    unsafe extern "C" fn endpoint(
        _domain: *mut fid_domain,
        _info: *mut fi_info,
        _ep: *mut *mut fid_ep,
        _context: *mut libc::c_void,
    ) -> libc::c_int {
        7
    }
    let mut ops = fi_ops_domain { endpoint: Some(endpoint), ..NO_OPS_DOMAIN };
    let mut domain = fid_domain { ops: &raw mut ops, ..fid_domain::default() };
    // SAFETY: the domain is live and its table full; the rest is passed on or ignored.
    unsafe {
        let endpoint2 = ops.endpoint2.unwrap();
        let call = |domain, flags| endpoint2(domain, null_mut(), null_mut(), flags, null_mut());
        assert_eq!(call(&raw mut domain, 0), 7);
        assert_eq!(call(&raw mut domain, FI_PEER), -FI_ENOSYS);
        (*domain.ops).endpoint = NO_OPS_DOMAIN.endpoint;
        assert_eq!(call(&raw mut domain, 0), -FI_ENOSYS);
    }
}

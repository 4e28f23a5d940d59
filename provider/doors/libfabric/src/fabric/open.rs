//! Opening and closing a fabric, and what is opened in it.

use std::ffi::CStr;
use std::sync::Arc;

use libc::{c_int, c_void};
use libfabric_sys as fi;

use super::{FabricFid, FabricShared};
use crate::cntr::CntrFid;
use crate::cq::CqFid;
use crate::eq::EqFid;
use crate::errno::Errno;
use crate::ffi::{Fid, Refs, arg, guard, header, obj, publish, put, reclaim};
use crate::info::answer;
use crate::{domain, eq};

// SAFETY: `#[repr(C)]` with the fid first, made in `open` alone, with this table.
unsafe impl Fid for FabricFid {
    const CLASS: usize = fi::FI_CLASS_FABRIC;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

static OPS: fi::fi_ops = fi::fi_ops { close: Some(close), ..fi::NO_OPS };

static FABRIC_OPS: fi::fi_ops_fabric = fi::fi_ops_fabric {
    domain: Some(domain::open),
    eq_open: Some(eq::open),
    trywait: Some(trywait),
    ..fi::NO_OPS_FABRIC
};

/// `fi_provider::fabric`.
pub(crate) unsafe extern "C" fn open(
    attr: *mut fi::fi_fabric_attr,
    fabric: *mut *mut fi::fid_fabric,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the core passes valid attributes, of one layout in all versions.
        let attr = unsafe { arg(attr) }?;
        if !attr.name.is_null() {
            // SAFETY: a name is a string.
            let name = unsafe { CStr::from_ptr(attr.name) }.to_bytes();
            if !name.eq_ignore_ascii_case(answer::NAME.as_bytes()) {
                return Err(Errno::NODATA);
            }
        }
        if fabric.is_null() {
            return Err(Errno::INVAL);
        }
        let shared = FabricShared { api_version: attr.api_version, children: Refs::default() };
        let fid = publish(Box::new(FabricFid {
            fid: fi::fid_fabric {
                fid: header::<FabricFid>(context),
                ops: (&raw const FABRIC_OPS).cast_mut(),
                api_version: attr.api_version,
            },
            shared: Arc::new(shared),
        }));
        // SAFETY: the core passes a place for the answer.
        unsafe { put(fabric, fid) }
    })
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open fabric and does not use it during the call.
        let fabric = unsafe { obj::<FabricFid, _>(fid)? };
        fabric.shared.children.none()?;
        // SAFETY: as above, and nothing opened in it is left.
        drop(unsafe { reclaim(fabric) });
        Ok(())
    })
}

unsafe extern "C" fn trywait(fabric: *mut fi::fid_fabric, fids: *mut *mut fi::fid, count: c_int) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open fabric.
        unsafe { obj::<FabricFid, _>(fabric)? };
        for i in 0..usize::try_from(count).map_err(|_| Errno::INVAL)? {
            if fids.is_null() {
                return Err(Errno::INVAL);
            }
            // SAFETY: the application passes `count` open objects.
            unsafe {
                let fid = *fids.add(i);
                match arg(fid)?.fclass {
                    fi::FI_CLASS_CQ => obj::<CqFid, _>(fid)?.try_wait()?,
                    fi::FI_CLASS_CNTR => obj::<CntrFid, _>(fid)?.try_wait()?,
                    fi::FI_CLASS_EQ => obj::<EqFid, _>(fid)?.try_wait()?,
                    _ => return Err(Errno::INVAL),
                }
            }
        }
        Ok(())
    })
}

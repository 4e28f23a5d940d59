//! fi_xpu(3) for applications of libfabric 2.6 and older: fi_open_ops(3), include/strait_fi_xpu.h.

use std::ffi::CStr;

use libc::{c_int, c_void};
use libfabric_sys as fi;

use super::{of, open, query, region_desc};
use crate::domain::DomainFid;
use crate::errno::Errno;
use crate::ffi::{guard, obj};
use crate::{av, cntr, cq, ep, mr};

/// `FI_STRAIT_XPU_OPS`.
pub(crate) const NAME: &CStr = c"strait_xpu_v1";

/// `struct fi_strait_ops_xpu`.
#[repr(C)]
pub(crate) struct Table {
    pub size: usize,
    pub ctx_open: unsafe extern "C" fn(
        *mut fi::fid_domain,
        *mut fi::fi_xpu_attr,
        *mut *mut fi::fid_xpu_ctx,
        *mut c_void,
    ) -> c_int,
    pub ctx_query: unsafe extern "C" fn(*mut fi::fid_xpu_ctx, *mut fi::fi_xpu_ctx_attr) -> c_int,
    pub endpoint: unsafe extern "C" fn(
        *mut fi::fid_domain,
        *mut fi::fi_info,
        *mut fi::fid_xpu_ctx,
        *mut *mut fi::fid_ep,
        *mut c_void,
    ) -> c_int,
    pub cq_open: unsafe extern "C" fn(
        *mut fi::fid_domain,
        *mut fi::fi_cq_attr,
        *mut fi::fid_xpu_ctx,
        *mut *mut fi::fid_cq,
        *mut c_void,
    ) -> c_int,
    pub cntr_open: unsafe extern "C" fn(
        *mut fi::fid_domain,
        *mut fi::fi_cntr_attr,
        *mut fi::fid_xpu_ctx,
        *mut *mut fi::fid_cntr,
        *mut c_void,
    ) -> c_int,
    pub ep_export: unsafe extern "C" fn(*mut fi::fid_ep, u64, *mut fi::fid_xpu_ep) -> c_int,
    pub cq_export: unsafe extern "C" fn(*mut fi::fid_cq, u64, *mut fi::fid_xpu_cq) -> c_int,
    pub cntr_export: unsafe extern "C" fn(*mut fi::fid_cntr, u64, *mut fi::fid_xpu_cntr) -> c_int,
    pub av_lookup: unsafe extern "C" fn(
        *mut fi::fid_av,
        fi::fi_addr_t,
        *mut c_void,
        *mut usize,
        u64,
        *mut fi::fid_xpu_ctx,
    ) -> c_int,
    pub mr_desc:
        unsafe extern "C" fn(*mut fi::fid_mr, *mut c_void, *mut usize, u64, *mut fi::fid_xpu_ctx) -> c_int,
}

pub(crate) static TABLE: Table = Table {
    size: size_of::<Table>(),
    ctx_open: open,
    ctx_query: query,
    endpoint,
    cq_open,
    cntr_open,
    ep_export: ep::export_xpu,
    cq_export: cq::export_xpu,
    cntr_export: cntr::export_xpu,
    av_lookup: av::lookup2,
    mr_desc,
};

unsafe extern "C" fn endpoint(
    domain: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    ctx: *mut fi::fid_xpu_ctx,
    ep: *mut *mut fi::fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the application passes an open domain and context, a valid info, and a place for the answer.
    guard(|| unsafe {
        let domain = obj::<DomainFid, _>(domain)?;
        ep::open(domain, info, ep, context, Some(of(ctx, &domain.shared)?))
    })
}

unsafe extern "C" fn cq_open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_cq_attr,
    ctx: *mut fi::fid_xpu_ctx,
    cq: *mut *mut fi::fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the application passes an open domain and context, attributes or NULL, and a place.
    guard(|| unsafe {
        let domain = obj::<DomainFid, _>(domain)?;
        cq::open_for(domain, attr, Some(of(ctx, &domain.shared)?), cq, context)
    })
}

unsafe extern "C" fn cntr_open(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_cntr_attr,
    ctx: *mut fi::fid_xpu_ctx,
    cntr: *mut *mut fi::fid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the application passes an open domain and context, attributes or NULL, and a place.
    guard(|| unsafe {
        let domain = obj::<DomainFid, _>(domain)?;
        cntr::open_for(domain, attr, Some(of(ctx, &domain.shared)?), cntr, context)
    })
}

unsafe extern "C" fn mr_desc(
    mr: *mut fi::fid_mr,
    buf: *mut c_void,
    len: *mut usize,
    flags: u64,
    ctx: *mut fi::fid_xpu_ctx,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open registration, and room of that length.
        let mr = unsafe { obj::<mr::MrFid, _>(mr)? };
        let (span, named) = mr.for_device().ok_or(Errno::OPNOTSUPP)?;
        let desc = fi::fi_mr_xpu_desc { buf, len, flags, ctx };
        // SAFETY: the application's room of that length; closing the registration takes it out again.
        unsafe { region_desc(&mr.shared, span, named, &desc) }
    })
}

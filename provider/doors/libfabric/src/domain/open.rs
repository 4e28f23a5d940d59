//! Opening and closing a domain, and what is opened in it.

use std::sync::{Arc, OnceLock};

use engine::Config;
use libc::{c_int, c_void};
use libfabric_sys as fi;
use runtime::{Progress, Runtime};
use wire::Addr;

use super::{DomainFid, Engine, Shared};
use crate::eq::EqFid;
use crate::errno::Errno;
use crate::fabric::FabricFid;
use crate::ffi::{Fid, Ref, Refs, arg, guard, header, obj, publish, put, reclaim};
use crate::info::answer;
use crate::info::auth::AuthKey;
use crate::info::ep::address;
use crate::{atomic, av, cntr, cq, ep, hmem_ops, mr, observer, param, xpu};

// SAFETY: `#[repr(C)]` with the fid first, made in `open` alone, with this table.
unsafe impl Fid for DomainFid {
    const CLASS: usize = fi::FI_CLASS_DOMAIN;
    fn ops() -> *const fi::fi_ops {
        &raw const OPS
    }
}

static OPS: fi::fi_ops = fi::fi_ops {
    close: Some(close),
    bind: Some(bind),
    control: Some(control),
    ops_open: Some(hmem_ops::ops_open),
    ..fi::NO_OPS
};

static DOMAIN_OPS: fi::fi_ops_domain = fi::fi_ops_domain {
    av_open: Some(av::open),
    cq_open: Some(cq::open),
    endpoint: Some(endpoint),
    cntr_open: Some(cntr::open),
    srx_ctx: Some(srx_ctx),
    query_atomic: Some(atomic::query_atomic),
    query_collective: Some(crate::ep::query_collective),
    endpoint2: Some(endpoint2),
    xpu_ctx: Some(xpu::open),
    ..fi::NO_OPS_DOMAIN
};

/// `fi_ops_fabric::domain`.
pub(crate) unsafe extern "C" fn open(
    fabric: *mut fi::fid_fabric,
    info: *mut fi::fi_info,
    domain: *mut *mut fi::fid_domain,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open fabric and a valid info, as fi_domain(3) demands.
        let (fabric, info) = unsafe { (obj::<FabricFid, _>(fabric)?, arg(info)?) };
        // SAFETY: as above.
        let wanted = unsafe { Wanted::read(info) }?;
        if domain.is_null() {
            return Err(Errno::INVAL);
        }
        let shared = wanted.open(fabric.shared.api_version)?;
        fabric.shared.children.inc();
        let fid = publish(Box::new(DomainFid {
            fid: fi::fid_domain {
                fid: header::<DomainFid>(context),
                ops: (&raw const DOMAIN_OPS).cast_mut(),
                mr: (&raw const mr::MR_OPS).cast_mut(),
            },
            shared,
            mr_eq: OnceLock::new(),
            eq: OnceLock::new(),
            fabric: fabric.shared.clone(),
        }));
        // SAFETY: the application passes a place for the answer.
        unsafe { put(domain, fid) }
    })
}

/// What a domain takes from the `fi_info` it is opened with.
#[derive(Debug)]
struct Wanted {
    caps: u64,
    addr_format: u32,
    at: Option<Addr>,
    orders: u64,
    threading: fi::fi_threading,
    data_progress: fi::fi_progress,
    mr_mode: c_int,
    auth_key: Option<AuthKey>,
}

impl Wanted {
    /// # Safety
    /// `info` and its attributes are valid.
    unsafe fn read(info: &fi::fi_info) -> Result<Wanted, Errno> {
        let d = info.domain_attr;
        if d.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the caller's promise; only fields that every version has are read, through places
        // that form no reference to a structure that may be shorter than ours.
        unsafe {
            let name = (*d).name;
            if !name.is_null() {
                let name = std::ffi::CStr::from_ptr(name).to_bytes();
                if !name.eq_ignore_ascii_case(answer::NAME.as_bytes()) {
                    return Err(Errno::INVAL);
                }
            }
            Ok(Wanted {
                caps: info.caps,
                addr_format: info.addr_format,
                // One that cannot be used is for the endpoint to refuse.
                at: address(info).unwrap_or_default(),
                orders: info.tx_attr.as_ref().map_or(0, |a| a.msg_order)
                    | info.rx_attr.as_ref().map_or(0, |a| a.msg_order),
                threading: (*d).threading,
                data_progress: (*d).anon1.data_progress,
                mr_mode: (*d).mr_mode,
                auth_key: AuthKey::read((*d).auth_key, (*d).auth_key_size)?,
            })
        }
    }

    fn open(&self, api_version: u32) -> Result<Arc<Shared>, Errno> {
        let (virt_addr, prov_key) = answer::mr_semantics(self.mr_mode);
        let auto_progress = self.data_progress == fi::FI_PROGRESS_AUTO;
        let mut engine = Engine::new(Config { virt_addr, rma_order: self.orders & answer::RMA_ORDERS != 0 });
        let allocated = answer::is_allocated(self.mr_mode);
        if allocated {
            engine.set_lasting();
        }
        let memory = param::get().memory;
        engine.set_unexpected_most(memory.unexpected);
        engine.set_kept_most(memory.peers);
        engine.set_group_memory(memory.group);
        // Contexts of devices have threads.
        let xpu = api_version >= xpu::SINCE && self.caps & fi::FI_XPU != 0;
        let one_thread =
            !auto_progress && self.threading == fi::FI_THREAD_DOMAIN && !xpu && !observer::is_observing();
        let runtime = if auto_progress {
            Runtime::new(engine, Progress::Auto)
        } else if one_thread {
            // SAFETY: fi_domain(3): with FI_THREAD_DOMAIN the application serializes its calls on a domain
            // and on what is opened in it. The other entries are of an endpoint or a registration that is
            // dropped, in such a call.
            unsafe { Runtime::serialized(engine) }
        } else {
            Runtime::new(engine, Progress::Manual)
        };
        let shared = Arc::new(Shared {
            runtime,
            api_version,
            caps: self.caps,
            addr_format: self.addr_format,
            at: self.at,
            mr_mode: self.mr_mode,
            allocated,
            prov_key,
            auth_key: self.auth_key.clone(),
            one_thread,
            children: Refs::default(),
            streams: Default::default(),
        });
        runtime::start(&shared)?;
        observer::observe(&shared);
        Ok(shared)
    }
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open domain and does not use it during the call.
        let domain = unsafe { obj::<DomainFid, _>(fid)? };
        domain.shared.children.none()?;
        domain.shared.close();
        // SAFETY: as above, and nothing opened in it is left.
        let domain = unsafe { reclaim(domain) };
        domain.fabric.children.dec();
        Ok(())
    })
}

unsafe extern "C" fn bind(fid: *mut fi::fid, to: *mut fi::fid, flags: u64) -> c_int {
    guard(|| {
        // SAFETY: the application passes open objects.
        let (domain, eq) = unsafe { (obj::<DomainFid, _>(fid)?, obj::<EqFid, _>(to)?) };
        let place = match flags {
            0 => &domain.eq,
            fi::FI_REG_MR => &domain.mr_eq,
            _ => return Err(Errno::BADFLAGS),
        };
        place.set(Ref::new(eq)).map_err(|_| Errno::INVAL)
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, arg: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: the application passes an open domain.
        let domain = unsafe { obj::<DomainFid, _>(fid)? };
        let work = arg.cast::<fi::fi_deferred_work>();
        match command {
            // SAFETY: the application passes work that fi_trigger(3) describes.
            fi::FI_QUEUE_WORK => unsafe { ep::trigger::deferred::queue(domain, work) },
            fi::FI_CANCEL_WORK => ep::trigger::deferred::cancel(domain, work),
            fi::FI_FLUSH_WORK => ep::trigger::deferred::flush(domain),
            _ => Err(Errno::NOSYS),
        }
    })
}

unsafe extern "C" fn endpoint(
    domain: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    ep: *mut *mut fi::fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the application passes an open domain, a valid info, and a place for the answer.
    guard(|| unsafe { ep::open(obj::<DomainFid, _>(domain)?, info, ep, context, None) })
}

/// With FI_XPU: a device's endpoint, of the context that the endpoint's attributes name.
unsafe extern "C" fn endpoint2(
    domain: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    ep: *mut *mut fi::fid_ep,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the application passes an open domain, a valid info of its version, and a place for the answer.
    guard(|| unsafe {
        let domain = obj::<DomainFid, _>(domain)?;
        let ctx = match flags {
            0 => None,
            fi::FI_XPU if xpu::is_native(&domain.shared) => {
                let attr = arg(info)?.ep_attr;
                if attr.is_null() {
                    return Err(Errno::INVAL);
                }
                Some(xpu::of((*attr).xpu_ctx, &domain.shared)?)
            }
            _ => return Err(Errno::BADFLAGS),
        };
        ep::open(domain, info, ep, context, ctx)
    })
}

unsafe extern "C" fn srx_ctx(
    domain: *mut fi::fid_domain,
    attr: *mut fi::fi_rx_attr,
    rx_ep: *mut *mut fi::fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the application passes an open domain, valid attributes, and a place for the answer.
    guard(|| unsafe { ep::srx::open(obj::<DomainFid, _>(domain)?, attr, rx_ep, context) })
}

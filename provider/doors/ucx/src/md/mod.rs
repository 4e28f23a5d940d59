//! The memory domain: windows that UCP allocates through us, registrations, packed keys.

pub(crate) mod keyhead;
pub(crate) mod readers;
pub(crate) mod region;
pub(crate) mod rkey;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use link::WindowId;
use ucx_sys::{self as ucx, DeregParams, MdBase, MdValues, Status};

use crate::device;
use crate::ffi::guard;
use crate::md::region::{Regions, Slot, Wait, regions};
use crate::md::rkey::{KEY, Key};
use crate::param;
use crate::params::{deregister, invalidates};
use crate::rma::served::{Served, of_component};

/// A memory domain as UCX holds it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Md {
    base: MdBase,
    pub(crate) served: &'static Served,
    pub(crate) regions: Arc<Regions>,
    /// Whether other memory than windows can be reached.
    pub(crate) cma: bool,
}

/// What stands for registered or allocated memory.
#[derive(Debug)]
struct Memh {
    addr: usize,
    len: usize,
    number: u64,
    window: Option<WindowId>,
    slot: Option<Slot>,
}

pub(crate) unsafe extern "C" fn open(
    component: *const c_void,
    name: *const c_char,
    _config: *const c_void,
    md: *mut *mut Md,
) -> Status {
    guard(|| {
        let Some(served) = of_component(component) else { return ucx::UCS_ERR_INVALID_PARAM };
        // SAFETY: UCX passes one of the names that `query_resources` returned, and room for the answer.
        unsafe {
            if !name.is_null() && CStr::from_ptr(name) == device::NAME {
                let Some(made) = device::md::Md::new(served, component) else { return ucx::UCS_ERR_IO_ERROR };
                md.cast::<*mut device::md::Md>().write(made);
                return ucx::UCS_OK;
            }
        }
        let Ok(regions) = regions() else { return ucx::UCS_ERR_IO_ERROR };
        let base = MdBase { ops: served.md_ops.as_ptr().cast(), component };
        let cma = match param::get().cma {
            true => link::cma_allowed(),
            false => Err("STRAIT_UCX_CMA=n".into()),
        };
        match &cma {
            Ok(how) => log::info!("large messages and memory of peers: CMA ({how}), else rings"),
            Err(why) => log::info!("large messages and memory of peers: rings and windows only: {why}"),
        }
        let cma = cma.is_ok();
        // SAFETY: UCX gives a place for the answer.
        unsafe { md.write(Box::into_raw(Box::new(Md { base, served, regions, cma }))) };
        ucx::UCS_OK
    })
}

/// The names of the domains: the host's, and the device's where there can be any.
pub(crate) unsafe extern "C" fn query_resources(
    component: *mut c_void,
    resources: *mut *mut c_void,
    count: *mut c_uint,
) -> Status {
    guard(|| {
        let Some(served) = of_component(component) else { return ucx::UCS_ERR_INVALID_PARAM };
        // SAFETY: UCX's arguments, passed on.
        let status = unsafe { (served.host.query_single_md_resource)(component, resources.cast(), count) };
        if status != ucx::UCS_OK || !device::is_here() {
            return status;
        }
        // SAFETY: what UCX has made is of malloc(3), which it gives back to free(3), and of so many names
        // of that many bytes.
        unsafe {
            let name = device::NAME.to_bytes_with_nul();
            let names = libc::realloc((*resources).cast(), 2 * ucx::UCT_MD_NAME_MAX).cast::<u8>();
            if !names.is_null() {
                names.add(ucx::UCT_MD_NAME_MAX).copy_from_nonoverlapping(name.as_ptr(), name.len());
                *resources = names.cast();
                *count = 2;
            }
        }
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn close(md: *mut Md) {
    // SAFETY: made by `open`, and closed once.
    guard(|| drop(unsafe { Box::from_raw(md) }));
}

pub(crate) unsafe extern "C" fn query(md: *mut Md, attr: *mut c_void) -> Status {
    guard(|| {
        // SAFETY: a domain of ours.
        let md = unsafe { &*md };
        let host = 1u64 << ucx::UCS_MEMORY_TYPE_HOST;
        let mut flags = ucx::UCT_MD_FLAG_ALLOC
            | ucx::UCT_MD_FLAG_FIXED
            | ucx::UCT_MD_FLAG_NEED_RKEY
            | ucx::UCT_MD_FLAG_INVALIDATE;
        if md.served.host.epoch() >= ucx::Epoch::V1_15 {
            flags |= ucx::UCT_MD_FLAG_INVALIDATE_RMA | ucx::UCT_MD_FLAG_INVALIDATE_AMO;
        }
        let mut values = MdValues {
            max_alloc: u64::MAX,
            alloc_mem_types: host,
            access_mem_types: host,
            cache_mem_types: host,
            rkey_packed_size: KEY as u64,
            ..MdValues::default()
        };
        if md.cma {
            flags |= ucx::UCT_MD_FLAG_REG;
            values.max_reg = u64::MAX;
            values.reg_mem_types = host;
            // A note in a table, whatever the length.
            values.reg_cost = ucx::Linear { c: 60e-9, m: 0.0 };
        }
        values.flags = flags;
        // SAFETY: UCX gives a structure of its release.
        unsafe { md.served.host.layout.write_md_attr(attr, &values) };
        ucx::UCS_OK
    })
}

/// # Safety
/// `length`, `address` and `memh` must be valid; `md` one of ours; memory at a fixed address the caller's.
unsafe fn allocate(
    md: *mut Md,
    length: *mut usize,
    address: *mut usize,
    mem_type: c_int,
    flags: c_uint,
    memh: *mut *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: a domain of ours.
        let md = unsafe { &*md };
        if mem_type != ucx::UCS_MEMORY_TYPE_HOST {
            return ucx::UCS_ERR_UNSUPPORTED;
        }
        // SAFETY: the caller's promise.
        let (len, at) = unsafe { (*length, *address) };
        let Some(len) = len.max(1).checked_next_multiple_of(4096) else { return ucx::UCS_ERR_NO_MEMORY };
        let fixed = flags & ucx::UCT_MD_MEM_FLAG_FIXED != 0;
        if fixed && (at == 0 || at % 4096 != 0) {
            return ucx::UCS_ERR_INVALID_PARAM;
        }
        // The range is the caller's, whatever is mapped there, as with UCX's own transports.
        let made = if fixed {
            // SAFETY: the caller's promise.
            unsafe { md.regions.windows.create_over(len, at) }
        } else {
            md.regions.windows.create(len, None)
        };
        let (window, mapping) = match made {
            Ok(made) => made,
            Err(e) => {
                log::debug!("no window of {len} bytes: {e}");
                return ucx::UCS_ERR_NO_MEMORY;
            }
        };
        let addr = mapping.base().expose_provenance();
        let number = md.regions.add(addr, len);
        let made = Box::new(Memh { addr, len, number, window: Some(window), slot: None });
        // SAFETY: the caller's promise.
        unsafe {
            *length = len;
            *address = addr;
            *memh = Box::into_raw(made).cast();
        }
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn mem_alloc(
    md: *mut Md,
    length: *mut usize,
    address: *mut usize,
    mem_type: c_int,
    flags: c_uint,
    _name: *const c_char,
    memh: *mut *mut c_void,
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe { allocate(md, length, address, mem_type, flags, memh) }
}

/// Since 1.19.
pub(crate) unsafe extern "C" fn mem_alloc_v2(
    md: *mut Md,
    length: *mut usize,
    address: *mut usize,
    mem_type: c_int,
    _sys_dev: u8,
    flags: c_uint,
    _name: *const c_char,
    memh: *mut *mut c_void,
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe { allocate(md, length, address, mem_type, flags, memh) }
}

pub(crate) unsafe extern "C" fn mem_free(md: *mut Md, memh: *mut c_void) -> Status {
    guard(|| {
        // SAFETY: a domain of ours, and a handle that it made, given back once.
        let (md, memh) = unsafe { (&*md, Box::from_raw(memh.cast::<Memh>())) };
        md.release(*memh, Wait::Bounded);
        ucx::UCS_OK
    })
}

/// What is registered needs no preparation, so the fourth argument (flags, parameters since 1.14)
/// has nothing to say.
pub(crate) unsafe extern "C" fn mem_reg(
    md: *mut Md,
    address: *mut c_void,
    length: usize,
    _params: usize,
    memh: *mut *mut c_void,
) -> Status {
    guard(|| {
        // SAFETY: a domain of ours.
        let md = unsafe { &*md };
        let addr = address.expose_provenance();
        let number = md.regions.add(addr, length);
        let made = Box::new(Memh { addr, len: length, number, window: None, slot: None });
        // SAFETY: UCX gives a place for the answer.
        unsafe { *memh = Box::into_raw(made).cast() };
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn mem_dereg(md: *mut Md, params: *const DeregParams) -> Status {
    // SAFETY: UCX's arguments: a handle that this domain made, given back once.
    unsafe { deregister(params, |memh, wait| (*md).release(*Box::from_raw(memh.cast::<Memh>()), wait)) }
}

impl Md {
    fn release(&self, memh: Memh, wait: Wait) {
        self.regions.remove(memh.addr, memh.number);
        if let Some(slot) = memh.slot {
            self.regions.invalidate(slot, wait);
        }
        if let Some(window) = memh.window {
            self.regions.windows.remove(window);
        }
    }
}

/// # Safety
/// `memh` must be one of the domain's, `params` null or UCX's, `out` valid for a key.
unsafe fn pack(md: *mut Md, memh: *mut c_void, params: *const u64, out: *mut [u8; KEY]) -> Status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (md, memh) = unsafe { (&*md, &mut *memh.cast::<Memh>()) };
        // SAFETY: the caller's promise.
        let Some(invalidates) = (unsafe { invalidates(params) }) else { return ucx::UCS_ERR_UNSUPPORTED };
        if invalidates && memh.slot.is_none() {
            memh.slot = md.regions.protect();
            if memh.slot.is_none() {
                return ucx::UCS_ERR_NO_MEMORY;
            }
        }
        let maker = md.regions.windows.maker();
        let key = Key {
            id: memh.window.unwrap_or(WindowId { maker, number: 0 }),
            base: memh.addr as u64,
            len: memh.len as u64,
            slot: memh.slot.filter(|_| invalidates),
        };
        // SAFETY: the caller's promise.
        unsafe { out.write(key.pack()) };
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn mkey_pack(
    md: *mut Md,
    memh: *mut c_void,
    params: *const u64,
    out: *mut [u8; KEY],
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe { pack(md, memh, params, out) }
}

/// Since 1.16: the part of the memory that is of interest comes along.
pub(crate) unsafe extern "C" fn mkey_pack_v2(
    md: *mut Md,
    memh: *mut c_void,
    _address: *mut c_void,
    _length: usize,
    params: *const u64,
    out: *mut [u8; KEY],
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe { pack(md, memh, params, out) }
}

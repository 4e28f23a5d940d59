//! The memory domain: registrations of device memory.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;

use hmem::share::{Export, List};
use hmem::{Kind, registry};
use ucx_sys::{self as ucx, DeregParams, MdBase, MdValues, Status};

use super::key::{Guard, KEY, Key, Pieces};
use crate::ffi::guard;
use crate::md::region::{Regions, Slot, Wait, regions};
use crate::params::{deregister, invalidates};
use crate::rma::served::{Served, of_component};

/// Most allocations that one piece of memory may lie in.
const PIECES: usize = 1024;
/// Most lists of one registration, for keys of parts of it.
const LISTS: usize = 64;

/// A memory domain as UCX holds it.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Md {
    base: MdBase,
    pub(crate) served: &'static Served,
    regions: Arc<Regions>,
}

/// What stands for registered memory.
#[derive(Debug)]
struct Memh {
    addr: usize,
    len: usize,
    /// Where parts of it lie in several allocations, the lists of those that peers fetch.
    lists: VecDeque<(Vec<Export>, List)>,
    /// On our board, once there is a key that may be taken back.
    slot: Option<Slot>,
}

impl Md {
    pub(crate) fn new(served: &'static Served, component: *const c_void) -> Option<*mut Md> {
        let base = MdBase { ops: served.device_md_ops.as_ptr().cast(), component };
        Some(Box::into_raw(Box::new(Md { base, served, regions: regions().ok()? })))
    }
}

/// Whether a domain is one of these, and not of host memory.
///
/// # Safety
/// `md` must be a domain of ours.
pub(crate) unsafe fn is(md: ucx::Md) -> bool {
    // SAFETY: the caller's promise: both sorts begin like that.
    let base = unsafe { &*md.cast::<MdBase>() };
    of_component(base.component).is_some_and(|s| base.ops == s.device_md_ops.as_ptr().cast())
}

pub(crate) unsafe extern "C" fn close(md: *mut Md) {
    // SAFETY: made by `new`, and closed once.
    guard(|| drop(unsafe { Box::from_raw(md) }));
}

pub(crate) unsafe extern "C" fn query(md: *mut Md, attr: *mut c_void) -> Status {
    guard(|| {
        // SAFETY: a domain of ours.
        let md = unsafe { &*md };
        let cuda = 1u64 << ucx::UCS_MEMORY_TYPE_CUDA | 1 << ucx::UCS_MEMORY_TYPE_CUDA_MANAGED;
        let mut flags = ucx::UCT_MD_FLAG_REG
            | ucx::UCT_MD_FLAG_NEED_MEMH
            | ucx::UCT_MD_FLAG_NEED_RKEY
            | ucx::UCT_MD_FLAG_INVALIDATE;
        if md.served.host.epoch() >= ucx::Epoch::V1_15 {
            flags |= ucx::UCT_MD_FLAG_INVALIDATE_RMA | ucx::UCT_MD_FLAG_INVALIDATE_AMO;
        }
        let values = MdValues {
            flags,
            max_reg: u64::MAX,
            reg_mem_types: cuda,
            cache_mem_types: cuda,
            // Only what is registered: with access to other memory of devices reported here, UCP wants a
            // transport that copies it within the process, and does not start without cuda_copy.
            access_mem_types: 0,
            rkey_packed_size: KEY as u64,
            ..MdValues::default()
        };
        // SAFETY: UCX gives a structure of its release.
        unsafe { md.served.host.layout.write_md_attr(attr, &values) };
        ucx::UCS_OK
    })
}

/// What memory is made of is found out when a key of it is packed: by then it may be another allocation
/// that is at the address.
pub(crate) unsafe extern "C" fn mem_reg(
    _md: *mut Md,
    address: *mut c_void,
    length: usize,
    _params: usize,
    memh: *mut *mut c_void,
) -> Status {
    guard(|| {
        let made = Box::new(Memh {
            addr: address.expose_provenance(),
            len: length,
            lists: VecDeque::new(),
            slot: None,
        });
        // SAFETY: UCX gives a place for the answer.
        unsafe { *memh = Box::into_raw(made).cast() };
        ucx::UCS_OK
    })
}

pub(crate) unsafe extern "C" fn mem_dereg(md: *mut Md, params: *const DeregParams) -> Status {
    // SAFETY: UCX's arguments: a handle that this domain made, given back once.
    unsafe {
        deregister(params, |memh, _| {
            let memh = Box::from_raw(memh.cast::<Memh>());
            if let Some(slot) = memh.slot {
                // A peer's progress leaves the slot, which may itself wait for this process; the device's
                // copy ends without that.
                (*md).regions.invalidate(slot, Wait::Bounded);
            }
        })
    }
}

impl Memh {
    /// What a peer has to look at before it accesses this.
    fn guard(&mut self, regions: &Regions) -> Option<Guard> {
        if self.slot.is_none() {
            self.slot = regions.protect();
        }
        let slot = self.slot?;
        let board = regions.windows.place(slot.board.into())?;
        Some(Guard { slot, maker: regions.windows.maker(), board })
    }

    fn pieces(&mut self, addr: usize, len: usize) -> Pieces {
        let exports = match registry::of(Kind::Cuda).export_ipc(addr, len.max(1), PIECES) {
            Ok(exports) => exports,
            Err(why) => {
                log::debug!("{len} bytes at {addr:#x} cannot be shared: {why}");
                return Pieces::None;
            }
        };
        if let [one] = exports[..] {
            return Pieces::One(one);
        }
        let count = exports.len() as u32;
        if let Some((_, list)) = self.lists.iter().find(|(of, _)| *of == exports) {
            return Pieces::Many(count, list.at());
        }
        match List::new(&exports) {
            Ok(list) => {
                let at = list.at();
                self.lists.push_front((exports, list));
                self.lists.truncate(LISTS);
                Pieces::Many(count, at)
            }
            Err(why) => {
                log::debug!("no list of handles: {why}");
                Pieces::None
            }
        }
    }
}

/// # Safety
/// `md` and `memh` must be ours, `params` null or UCX's, `out` valid for a key. `part`: address and
/// length of what is of interest, or else all of it.
unsafe fn pack(
    md: *mut Md,
    memh: *mut c_void,
    part: Option<(usize, usize)>,
    params: *const u64,
    out: *mut [u8; KEY],
) -> Status {
    guard(|| {
        // SAFETY: the caller's promise.
        let (md, memh) = unsafe { (&*md, &mut *memh.cast::<Memh>()) };
        // SAFETY: the caller's promise: null or UCX's.
        let Some(invalidates) = (unsafe { invalidates(params) }) else { return ucx::UCS_ERR_UNSUPPORTED };
        let guard = if invalidates { memh.guard(&md.regions) } else { None };
        if invalidates && guard.is_none() {
            return ucx::UCS_ERR_NO_MEMORY;
        }
        let (addr, len) = part.unwrap_or((memh.addr, memh.len));
        let pieces = memh.pieces(addr, len);
        let key = Key { owner: super::myself(), base: addr as u64, len: len as u64, pieces, guard };
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
    unsafe { pack(md, memh, None, params, out) }
}

/// Since 1.16: the part of the memory that is of interest comes along.
pub(crate) unsafe extern "C" fn mkey_pack_v2(
    md: *mut Md,
    memh: *mut c_void,
    address: *mut c_void,
    length: usize,
    params: *const u64,
    out: *mut [u8; KEY],
) -> Status {
    // SAFETY: UCX's arguments.
    unsafe { pack(md, memh, Some((address.expose_provenance(), length)), params, out) }
}

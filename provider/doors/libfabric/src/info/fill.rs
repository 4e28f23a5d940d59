//! Writes an answer into a `fi_info` of the core's.

use std::ptr::{null_mut, with_exposed_provenance_mut};

use libc::{c_char, c_void};
use libfabric_sys as fi;
use wire::Addr;

use super::addr;
use super::answer::{self, Offer};
use super::ends::Ends;
use super::hints::{Hints, Object};
use super::nic::{self, Device};
use crate::errno::Errno;

pub(super) fn fill(
    core: &fi::Core,
    offer: &Offer,
    ends: Ends,
    hints: Option<&Hints>,
    device: Option<&Device>,
) -> Result<*mut fi::fi_info, Errno> {
    // Zeroed, and in the layout and from the heap of the core, which will free it.
    let info = core.allocinfo();
    if info.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: a complete `fi_info` with all its attributes that nothing else knows of yet.
    let filled = unsafe { write(core, &mut *info, offer, ends, hints, device) };
    filled.map(|()| info).inspect_err(|_| {
        // SAFETY: it came from `allocinfo` just now, and its strings from malloc.
        unsafe { core.freeinfo(info) }
    })
}

/// # Safety
/// `info` is as [`fi::Core::allocinfo`] returns it.
unsafe fn write(
    core: &fi::Core,
    info: &mut fi::fi_info,
    offer: &Offer,
    ends: Ends,
    hints: Option<&Hints>,
    device: Option<&Device>,
) -> Result<(), Errno> {
    info.caps = offer.caps;
    info.mode = 0;
    info.addr_format = ends.format;
    (info.src_addr, info.src_addrlen) = heap_address(ends.src, ends.format)?;
    if let Some(dest) = ends.dest {
        (info.dest_addr, info.dest_addrlen) = heap_address(dest, ends.format)?;
    }
    if let Some(device) = device {
        // The core has it copied and freed by its own table.
        info.nic = nic::make(device)?;
    }
    // SAFETY: all five attribute structures are there, in the core's layout. The places below are
    // fields that 1.17 has.
    unsafe {
        *info.tx_attr = offer.tx;
        *info.rx_attr = offer.rx;

        endpoint(info.ep_attr, offer, hints)?;
        domain(info.domain_attr, core, offer, hints)?;

        let f = info.fabric_attr;
        (*f).fabric = object(hints.map_or(Object::Any, |h| h.fabric.object));
        (*f).name = heap_string(answer::NAME)?;
        // The core fills in the provider's name and both versions; a name here would read as that
        // of one provider layered over another.
    }
    Ok(())
}

/// # Safety
/// `ep` is of a `fi_info` as [`fi::Core::allocinfo`] returns it.
unsafe fn endpoint(ep: *mut fi::fi_ep_attr, offer: &Offer, hints: Option<&Hints>) -> Result<(), Errno> {
    // SAFETY: it is there, by the caller's promise, and these fields are in every core's layout.
    unsafe {
        (*ep).type_ = fi::FI_EP_RDM;
        (*ep).protocol = answer::PROTOCOL;
        (*ep).protocol_version = answer::PROTOCOL_VERSION;
        (*ep).max_msg_size = answer::MAX_MSG_SIZE;
        (*ep).max_order_raw_size = offer.max_order_size[0];
        (*ep).max_order_war_size = offer.max_order_size[1];
        (*ep).max_order_waw_size = offer.max_order_size[2];
        (*ep).mem_tag_format = offer.mem_tag_format;
        (*ep).tx_ctx_cnt = offer.tx_ctx_cnt;
        (*ep).rx_ctx_cnt = offer.rx_ctx_cnt;
        if let Some(key) = hints.and_then(|h| h.ep_key.as_ref()) {
            // The core frees it with all else.
            ((*ep).auth_key, (*ep).auth_key_size) = (heap(key.bytes())?.cast(), key.bytes().len());
        }
    }
    Ok(())
}

/// # Safety
/// `d` is of a `fi_info` as [`fi::Core::allocinfo`] returns it. An older core's is shorter than ours: there
/// is no reference to it.
unsafe fn domain(
    d: *mut fi::fi_domain_attr,
    core: &fi::Core,
    offer: &Offer,
    hints: Option<&Hints>,
) -> Result<(), Errno> {
    // SAFETY: it is there, by the caller's promise, in the core's layout. The places below are fields that
    // 1.17 has, but for those behind a question for the core's version.
    unsafe {
        (*d).domain = object(hints.map_or(Object::Any, |h| h.domain.object));
        (*d).name = heap_string(answer::NAME)?;
        (*d).threading = offer.models.threading;
        (*d).control_progress = offer.models.control_progress;
        (*d).anon1.data_progress = offer.models.data_progress;
        (*d).resource_mgmt = fi::FI_RM_ENABLED;
        (*d).av_type = offer.av_type;
        (*d).mr_mode = offer.mr_mode;
        (*d).mr_key_size = offer.mr_key_size;
        (*d).cq_data_size = offer.cq_data_size;
        (*d).cq_cnt = offer.count;
        (*d).ep_cnt = offer.count;
        (*d).tx_ctx_cnt = offer.count;
        (*d).rx_ctx_cnt = offer.count;
        (*d).max_ep_tx_ctx = 1;
        (*d).max_ep_rx_ctx = 1;
        (*d).max_ep_stx_ctx = 0;
        (*d).max_ep_srx_ctx = offer.count;
        (*d).cntr_cnt = offer.count;
        (*d).mr_iov_limit = offer.mr_iov_limit;
        (*d).caps = offer.domain_caps;
        (*d).mr_cnt = offer.count;
        (*d).tclass = offer.tclass;
        if let Some(key) = hints.and_then(|h| h.domain_key.as_ref()) {
            ((*d).auth_key, (*d).auth_key_size) = (heap(key.bytes())?.cast(), key.bytes().len());
        }
        if core.at_least(2, 5) {
            (*d).max_cntr_value = u64::MAX;
            (*d).max_err_cntr_value = u64::MAX;
        }

        if core.at_least(2, 7) && offer.caps & fi::FI_XPU != 0 {
            (*d).max_xpu_ctx_cnt = crate::xpu::MOST;
        }
    }
    Ok(())
}

fn object<P>(o: Object) -> *mut P {
    match o {
        Object::Ours(p, _) => with_exposed_provenance_mut(p),
        Object::Any | Object::Foreign => null_mut(),
    }
}

/// Memory of the C heap, for the core frees it.
fn heap(bytes: &[u8]) -> Result<*mut c_void, Errno> {
    // SAFETY: no memory is passed.
    let p = unsafe { libc::malloc(bytes.len().max(1)) };
    if p.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: `p` is new and has room for the bytes.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), p.cast(), bytes.len()) };
    Ok(p)
}

fn heap_string(s: &str) -> Result<*mut c_char, Errno> {
    let mut bytes = s.as_bytes().to_vec();
    bytes.push(0);
    Ok(heap(&bytes)?.cast())
}

fn heap_address(a: Addr, format: u32) -> Result<(*mut c_void, usize), Errno> {
    let (bytes, len) = addr::to_sockaddr(a, format);
    Ok((heap(&bytes[..len])?, len))
}

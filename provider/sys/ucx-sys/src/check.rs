//! Whether a UCX really is as its epoch says: looked up in the tables of its own transport `posix`.

use core::ffi::{CStr, c_void};

use crate::epoch::{Epoch, SLOTS};
use crate::host::Host;
use crate::{MdBase, Status};

/// Components a process may have.
const MANY: usize = 64;

/// Walks the host's list of components and opens the memory domain of its `posix`: names must be
/// where the layout has them, and the slots that posix leaves empty must hold UCX's own stubs.
///
/// # Errors
/// What was not as expected.
pub fn posix_agrees(host: &Host) -> Result<(), String> {
    let component = posix(host).ok_or("its list of components is not laid out as expected")?;
    tl_agrees(host, component)?;
    md_agrees(host, component)
}

/// A word of a structure of UCX.
///
/// # Safety
/// `base` must point to a live structure that has a word there.
unsafe fn word(base: *const c_void, at: usize) -> *const c_void {
    // SAFETY: the caller's promise.
    unsafe { base.byte_add(at).cast::<*const c_void>().read() }
}

/// Whether a name is at the start of a structure.
///
/// # Safety
/// `base` must point to a live structure of 16 bytes or more.
unsafe fn named(base: *const c_void, name: &CStr) -> bool {
    let name = name.to_bytes_with_nul();
    // SAFETY: the caller's promise; no name here is longer.
    let bytes = unsafe { base.cast::<[u8; 16]>().read() };
    bytes.starts_with(name)
}

fn posix(host: &Host) -> Option<*const c_void> {
    let link = host.layout.tl_list() + 16;
    let mut at: *const c_void = host.components;
    let mut known = 0;
    let mut found = None;
    for _ in 0..MANY {
        // SAFETY: a link of the host's list: previous, next.
        at = unsafe { word(at, 8) };
        if at == host.components {
            return found.filter(|_| known >= 2);
        }
        if at.is_null() {
            return None;
        }
        let component = at.wrapping_byte_sub(link);
        // SAFETY: whatever the layout, components are longer than this and in static memory, so
        // bytes before a link are mapped.
        unsafe {
            known += usize::from([c"self", c"tcp", c"sysv"].iter().any(|n| named(component, n)));
            if named(component, c"posix") {
                found = Some(component);
            }
        }
    }
    None
}

fn tl_agrees(host: &Host, component: *const c_void) -> Result<(), String> {
    let list = component.wrapping_byte_add(host.layout.tl_list());
    // SAFETY: the component is a real one, so this is its list of transports.
    let link = unsafe { word(list, 8) };
    if link.is_null() || link == list {
        return Err("its posix has no transport where one is expected".into());
    }
    // SAFETY: as above; a transport begins so much before its link.
    if unsafe { named(link.wrapping_byte_sub(host.layout.tl_link()), c"posix") } {
        Ok(())
    } else {
        Err("its transports are not laid out as expected".into())
    }
}

fn md_agrees(host: &Host, component: *const c_void) -> Result<(), String> {
    type ConfigRead =
        unsafe extern "C" fn(*const c_void, *const c_void, *const c_void, *mut *mut c_void) -> Status;
    type Open = unsafe extern "C" fn(*const c_void, *const u8, *const c_void, *mut *mut MdBase) -> Status;
    type Close = unsafe extern "C" fn(*mut MdBase);
    type Release = unsafe extern "C" fn(*mut c_void);
    let missing = || "it lacks uct_md_open".to_string();
    let find = |name: &CStr| Some(host.lookup(name)).filter(|f| !f.is_null()).ok_or_else(missing);
    // SAFETY: the types of these functions, which are in UCX's installed headers.
    let (read, open, close, release) = unsafe {
        (
            core::mem::transmute::<*const c_void, ConfigRead>(find(c"uct_md_config_read")?),
            core::mem::transmute::<*const c_void, Open>(find(c"uct_md_open")?),
            core::mem::transmute::<*const c_void, Close>(find(c"uct_md_close")?),
            core::mem::transmute::<*const c_void, Release>(find(c"uct_config_release")?),
        )
    };
    let mut config = core::ptr::null_mut();
    let mut md: *mut MdBase = core::ptr::null_mut();
    let null = core::ptr::null();
    // SAFETY: a component of this very UCX; the places are valid; what is made is given back.
    let (slots, owner) = unsafe {
        if read(component, null, null, &mut config) != crate::UCS_OK {
            return Err("its posix cannot be configured".into());
        }
        let status = open(component, c"posix".as_ptr().cast(), config, &mut md);
        release(config);
        if status != crate::UCS_OK {
            return Err("its posix cannot be opened".into());
        }
        let mut slots = [null; SLOTS];
        // The shortest table has 11 slots, and more is looked at only where there is more.
        let n = 11 + usize::from(host.epoch() == Epoch::V1_14 || host.epoch() == Epoch::V1_15);
        for (i, slot) in slots[..n].iter_mut().enumerate() {
            *slot = word((*md).ops, 8 * i);
        }
        let owner = (*md).component;
        close(md);
        (slots, owner)
    };
    if owner != component {
        return Err("its memory domains are not laid out as expected".into());
    }
    let none = host.lookup(c"ucs_empty_function_return_unsupported");
    let (attach, sockaddr) = (host.epoch() >= Epoch::V1_14, host.epoch() <= Epoch::V1_15);
    // mem_advise, mem_query? (not posix's), mem_attach, and the last one, detect_memory_type.
    let last = 9 + usize::from(attach) + usize::from(sockaddr);
    let mut expected = vec![4, last];
    if attach {
        expected.push(9);
    }
    match expected.iter().find(|i| slots[**i] != none) {
        None => Ok(()),
        Some(i) => Err(format!("its memory domains have something else in slot {i}")),
    }
}

//! Command lists, and the events that report when a copy is done.

use super::*;

/// `ze_command_queue_desc_t`.
#[repr(C)]
#[derive(Debug)]
pub struct QueueDesc {
    stype: u32,
    next: Ptr,
    ordinal: u32,
    index: u32,
    flags: u32,
    mode: u32,
    priority: u32,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeCommandListCreateImmediate(
    ctx: Ptr,
    device: Ptr,
    desc: *const QueueDesc,
    to: *mut Ptr,
) -> c_int {
    enter!("zeCommandListCreateImmediate");
    let (stype, mode) = unsafe { ((*desc).stype, (*desc).mode) };
    if !is_context(ctx) || number(device).is_none() || stype != 0xe || mode > 2 {
        return INVALID_ARGUMENT;
    }
    let mut state = state();
    let name = state.name(0x100_0000);
    state.lists.insert(name, mode == 1);
    unsafe { *to = name as Ptr };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn zeCommandListAppendMemoryCopy(
    list: Ptr,
    dst: Ptr,
    src: *const c_void,
    len: usize,
    done: Ptr,
    _count: u32,
    _after: *mut Ptr,
) -> c_int {
    enter!("zeCommandListAppendMemoryCopy");
    let mut state = state();
    let Some(&waited) = state.lists.get(&(list as usize)) else { return INVALID_HANDLE };
    let work = Work::new("ZE", dst as usize, src as usize, len);
    if waited {
        return if work.run(true) == Some(true) { SUCCESS } else { INVALID_ARGUMENT };
    }
    match state.events.get_mut(&(done as usize)) {
        // An event that was not reset would say that it is done at once.
        Some(e @ (None, None)) => e.0 = Some(work),
        _ => return INVALID_HANDLE,
    }
    SUCCESS
}

/// `ze_event_pool_desc_t`.
#[repr(C)]
#[derive(Debug)]
pub struct PoolDesc {
    stype: u32,
    next: Ptr,
    flags: u32,
    count: u32,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeEventPoolCreate(
    ctx: Ptr,
    desc: *const PoolDesc,
    _count: u32,
    _devices: *mut Ptr,
    to: *mut Ptr,
) -> c_int {
    enter!("zeEventPoolCreate");
    // The host asks for them.
    if !is_context(ctx) || unsafe { (*desc).stype != 0x10 || (*desc).flags & 1 == 0 } {
        return INVALID_ARGUMENT;
    }
    let mut state = state();
    let name = state.name(0x200_0000);
    state.pools.insert(name, unsafe { (*desc).count });
    unsafe { *to = name as Ptr };
    SUCCESS
}

/// `ze_event_desc_t`.
#[repr(C)]
#[derive(Debug)]
pub struct EventDesc {
    stype: u32,
    next: Ptr,
    index: u32,
    signal: u32,
    wait: u32,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn zeEventCreate(pool: Ptr, desc: *const EventDesc, to: *mut Ptr) -> c_int {
    enter!("zeEventCreate");
    let mut state = state();
    let room = state.pools.get(&(pool as usize)).copied().unwrap_or(0);
    if unsafe { (*desc).stype != 0x11 || (*desc).index >= room } {
        return INVALID_ARGUMENT;
    }
    let name = state.name(0x300_0000);
    state.events.insert(name, (None, None));
    unsafe { *to = name as Ptr };
    SUCCESS
}

fn look(event: Ptr, wait: bool) -> c_int {
    let mut state = state();
    let Some((work, done)) = state.events.get_mut(&(event as usize)) else { return INVALID_HANDLE };
    if let Some(ok) = work.as_ref().and_then(|w| w.run(wait)) {
        *work = None;
        *done = Some(if ok { SUCCESS } else { 0x7000_0001 });
    }
    done.unwrap_or(NOT_READY)
}

#[unsafe(no_mangle)]
pub extern "C" fn zeEventQueryStatus(event: Ptr) -> c_int {
    enter!("zeEventQueryStatus");
    look(event, false)
}

#[unsafe(no_mangle)]
pub extern "C" fn zeEventHostSynchronize(event: Ptr, _most: u64) -> c_int {
    enter!("zeEventHostSynchronize");
    look(event, true)
}

#[unsafe(no_mangle)]
pub extern "C" fn zeEventHostReset(event: Ptr) -> c_int {
    enter!("zeEventHostReset");
    match state().events.get_mut(&(event as usize)) {
        Some(e) => {
            *e = (None, None);
            SUCCESS
        }
        None => INVALID_HANDLE,
    }
}

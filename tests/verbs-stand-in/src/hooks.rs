//! What a test in the same process does to devices.

use std::ffi::{c_int, c_void};

use rdma_sys as ibv;

use crate::nic;
use crate::objects::{Backing, DeviceMemory, PeerMemory};
use crate::state::{State, lock};

/// The `nth` send request from now on ends with this `IBV_WC_*`.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_verbs_status(nth: u64, status: u32) {
    let mut state = lock();
    let at = state.sends + nth;
    state.planned.push((at, status));
}

/// The exporter of this dma-buf, or of all (-1), takes it back: how many registrations it had.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_verbs_revoke(fd: c_int) -> c_int {
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    if fd != -1 && unsafe { libc::fstat(fd, &mut stat) } != 0 {
        return -1;
    }
    let mut count = 0;
    for mr in lock().mrs.values_mut() {
        match &mut mr.backing {
            Backing::Dmabuf { inode, revoked, .. } if fd == -1 || *inode == stat.st_ino => {
                *revoked = true;
                count += 1;
            }
            _ => {}
        }
    }
    count
}

/// The kernel has a client for memory of another device: where the bytes at an address are (null: it has none
/// there), and of which allocation.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_verbs_peer_memory(
    find: extern "C" fn(u64, usize) -> *mut c_void,
    id: extern "C" fn(u64) -> u64,
) {
    lock().peer_memory = Some(PeerMemory { find, id });
}

/// No device faults this memory in, as that of a mapping without pages: it is registered on demand, and each
/// access fails.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_verbs_no_faults(first: u64, len: u64) {
    lock().beyond.push((first, first + len));
}

/// This memory is a mapping without pages, as of a dma-heap or a BAR: it is not registered by its address, but on
/// demand.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_verbs_no_pages(first: u64, len: u64) {
    lock().no_pages.push((first, first + len));
}

/// What copies bytes of dma-bufs that no processor maps, to and from addresses of either kind, and of which
/// allocation an address is: such a registration has bytes as long as that is the same.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_verbs_device_memory(
    copy: extern "C" fn(u64, u64, usize) -> bool,
    id: extern "C" fn(u64) -> u64,
) {
    lock().device_memory = Some(DeviceMemory { copy, id });
}

/// A port (from 1 on) of the device (from 0 on, as in the list) is up or down.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_verbs_port(device: usize, port: u8, is_up: bool) {
    let mut state = lock();
    let place = state.devices.get_mut(&device).and_then(|opened| opened.is_up.get_mut(usize::from(port) - 1));
    if let Some(place) = place {
        *place = is_up;
        let kind = if is_up { ibv::IBV_EVENT_PORT_ACTIVE } else { ibv::IBV_EVENT_PORT_ERR };
        state.raise_of_device(device, kind, port.into());
    }
    nic::wake();
}

/// Bytes of the send requests of this port of the device that have succeeded, in both directions.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_verbs_moved(device: usize, port: u8) -> u64 {
    lock().moved.get(&(device, port)).copied().unwrap_or(0)
}

/// An asynchronous event of a device, such as IBV_EVENT_DEVICE_FATAL: all contexts see it. One of queues is
/// raised of each that the device has: of queue pairs, completion queues or shared receive queues.
#[unsafe(no_mangle)]
pub extern "C" fn stand_in_verbs_event(device: usize, kind: u32) {
    let mut state = lock();
    let of_domain = |state: &State, pd: usize| state.pds.get(&pd) == Some(&device);
    let queues: Vec<(usize, usize)> = match kind {
        ibv::IBV_EVENT_CQ_ERR => {
            let all = state.cqs.values().map(|cq| cq.raw);
            all.map(|raw| (unsafe { (*(raw as *const ibv::ibv_cq)).context } as usize, raw))
                .filter(|(context, _)| state.contexts.get(context).is_some_and(|c| c.device == device))
                .collect()
        }
        ibv::IBV_EVENT_SRQ_ERR => {
            let all = state.srqs.values().filter(|srq| of_domain(&state, srq.pd)).map(|srq| srq.raw);
            all.map(|raw| (unsafe { (*(raw as *const ibv::ibv_srq)).context } as usize, raw)).collect()
        }
        ibv::IBV_EVENT_QP_FATAL | ibv::IBV_EVENT_QP_REQ_ERR | ibv::IBV_EVENT_QP_ACCESS_ERR => {
            let all = state.qps.values().filter(|qp| qp.device == device).map(|qp| qp.raw);
            all.map(|raw| (unsafe { (*(raw as *const ibv::ibv_qp)).context } as usize, raw)).collect()
        }
        _ => return state.raise_of_device(device, kind, 0),
    };
    queues.into_iter().for_each(|(context, raw)| state.raise(context, kind, raw));
}

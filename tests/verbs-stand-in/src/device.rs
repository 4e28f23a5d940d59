//! Devices, contexts, ports, GIDs, asynchronous events.

use std::collections::hash_map::Entry;
use std::ffi::{CString, c_char, c_int};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use rdma_sys as ibv;

use crate::connection::listen;
use crate::entry::{enter, enter_or_null, profile_of, set_errno};
use crate::nic;
use crate::settings::{Profile, settings};
use crate::state::{Context, Opened, eventfd, lock, take};

/// What may be named from here on.
#[derive(Debug)]
struct Devices(Vec<ibv::ibv_device>);

// The devices are constant.
unsafe impl Send for Devices {}
unsafe impl Sync for Devices {}

fn put(to: &mut [c_char], text: &str) {
    to.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from as c_char);
}

pub fn devices() -> &'static [ibv::ibv_device] {
    static DEVICES: OnceLock<Devices> = OnceLock::new();
    let make = |profile: &Profile| {
        let is_iwarp = profile.is("iwarp");
        let mut device = ibv::ibv_device {
            node_type: if is_iwarp { ibv::IBV_NODE_RNIC } else { ibv::IBV_NODE_CA },
            transport_type: if is_iwarp { ibv::IBV_TRANSPORT_IWARP } else { ibv::IBV_TRANSPORT_IB },
            ..Default::default()
        };
        put(&mut device.name, &profile.name);
        put(&mut device.dev_name, &format!("uverbs{}", profile.number - 1));
        put(&mut device.ibdev_path, &profile.sysfs);
        device
    };
    &DEVICES.get_or_init(|| Devices(settings().devices.iter().map(make).collect())).0
}

fn place(device: *const ibv::ibv_device) -> Option<usize> {
    devices().iter().position(|d| std::ptr::eq(d, device))
}

fn guid(profile: &Profile) -> u64 {
    0x0200_0000_00fe_0000 | u64::from(settings().host) << 8 | u64::from(profile.number)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv::ibv_device {
    if !enter_or_null("ibv_get_device_list") {
        return null_mut();
    }
    let mut list: Vec<*mut ibv::ibv_device> = devices().iter().map(|d| (&raw const *d).cast_mut()).collect();
    if !count.is_null() {
        unsafe { *count = list.len() as c_int };
    }
    list.push(null_mut());
    // As long as its capacity, so that the end is found by the null.
    Box::into_raw(list.into_boxed_slice()).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv::ibv_device) {
    let len = devices().len() + 1;
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, len)) });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv::ibv_device) -> *const c_char {
    unsafe { (*device).name.as_ptr() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(device: *mut ibv::ibv_device) -> u64 {
    place(device).map_or(0, |at| guid(&settings().devices[at]).to_be())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv::ibv_device) -> *mut ibv::ibv_context {
    if !enter_or_null("ibv_open_device") {
        return null_mut();
    }
    let Some(at) = place(device) else {
        set_errno(libc::ENODEV);
        return null_mut();
    };
    let mut state = lock();
    let profile = &settings().devices[at];
    if let Entry::Vacant(vacant) = state.devices.entry(at) {
        let Some((listener, address)) = listen(settings().host, profile.number) else {
            set_errno(libc::EMFILE);
            return null_mut();
        };
        vacant.insert(Opened {
            listener,
            at: address,
            is_up: vec![!profile.is("down"); profile.ports.into()],
        });
        nic::wake();
    }
    let Some(fd) = eventfd() else { return null_mut() };
    let mut all = Box::<ibv::verbs_context>::default();
    let ops = &mut all.context.ops;
    ops.poll_cq = Some(crate::queues::poll_cq);
    ops.req_notify_cq = Some(crate::queues::req_notify_cq);
    ops.post_srq_recv = Some(crate::post::post_srq_recv);
    ops.post_send = Some(crate::post::post_send);
    ops.post_recv = Some(crate::post::post_recv);
    ops.alloc_mw = Some(crate::windows::alloc_mw);
    ops.dealloc_mw = Some(crate::windows::dealloc_mw);
    let context = &mut all.context;
    (context.device, context.cmd_fd, context.async_fd) = (device, -1, fd.as_raw_fd());
    context.num_comp_vectors = 4;
    if !profile.is("old") {
        context.abi_compat = usize::MAX as *mut _;
        all.sz = size_of::<ibv::verbs_context>();
        all.query_port = Some(query_port);
        all.query_device_ex = Some(query_device_ex);
    }
    // Derived from the whole.
    let context = Box::into_raw(all).wrapping_byte_add(offset_of!(ibv::verbs_context, context)).cast();
    state.contexts.insert(context as usize, Context { device: at, fd, events: Default::default() });
    context
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv::ibv_context) -> c_int {
    if let Err(errno) = enter("ibv_close_device") {
        set_errno(errno);
        return -1;
    }
    let mut state = lock();
    state.contexts.remove(&(context as usize));
    let all = context.wrapping_byte_sub(offset_of!(ibv::verbs_context, context));
    drop(unsafe { Box::from_raw(all.cast::<ibv::verbs_context>()) });
    0
}

fn attributes(profile: &Profile) -> ibv::ibv_device_attr {
    let (limits, has) = (&profile.limits, |flag: &str| !profile.is(flag));
    let int = |n: u32| c_int::try_from(n).unwrap_or(c_int::MAX);
    let srq = |n: u32| if has("nosrq") { int(n) } else { 0 };
    let windows = ibv::IBV_DEVICE_MEM_WINDOW | ibv::IBV_DEVICE_MEM_WINDOW_TYPE_2B;
    let mut attr = ibv::ibv_device_attr {
        node_guid: guid(profile).to_be(),
        sys_image_guid: guid(profile).to_be(),
        max_mr_size: limits.mrsize,
        page_size_cap: 4096,
        max_qp: int(limits.qp),
        max_qp_wr: int(limits.wr),
        max_sge: int(limits.sge),
        max_sge_rd: int(limits.sge),
        max_cq: int(limits.cq),
        max_cqe: int(limits.cqe),
        max_mr: int(limits.mr),
        max_mw: if has("nomw") && has("iwarp") { int(limits.mw) } else { 0 },
        device_cap_flags: if has("nomw") && has("iwarp") { windows } else { 0 },
        max_pd: 1024,
        max_qp_rd_atom: int(limits.reads),
        max_qp_init_rd_atom: int(limits.reads),
        max_res_rd_atom: int(limits.reads.saturating_mul(1024)),
        atomic_cap: match profile.is("glob") {
            _ if profile.is("noatomics") || profile.is("iwarp") => ibv::IBV_ATOMIC_NONE,
            true => ibv::IBV_ATOMIC_GLOB,
            false => ibv::IBV_ATOMIC_HCA,
        },
        max_srq: srq(limits.srq),
        max_srq_wr: srq(limits.srqwr),
        max_srq_sge: srq(limits.srqsge),
        max_pkeys: 1,
        phys_port_cnt: profile.ports,
        vendor_id: if profile.is("rxe") { 0xff_ffff } else { 0 },
        ..Default::default()
    };
    put(&mut attr.fw_ver, "stand-in");
    attr
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(
    context: *mut ibv::ibv_context,
    attr: *mut ibv::ibv_device_attr,
) -> c_int {
    if let Err(errno) = enter("ibv_query_device") {
        return errno;
    }
    unsafe { *attr = attributes(profile_of(context)) };
    0
}

unsafe extern "C" fn query_device_ex(
    context: *mut ibv::ibv_context,
    input: *const ibv::ibv_query_device_ex_input,
    attr: *mut ibv::ibv_device_attr_ex,
    size: usize,
) -> c_int {
    if let Err(errno) = enter("ibv_query_device_ex") {
        return errno;
    }
    if !input.is_null() && unsafe { (*input).comp_mask } != 0 || size < size_of::<ibv::ibv_device_attr>() {
        return libc::EINVAL;
    }
    let profile = profile_of(context);
    let mut all = ibv::ibv_device_attr_ex { orig_attr: attributes(profile), ..Default::default() };
    if !profile.is("noodp") {
        all.odp_caps.general_caps = ibv::IBV_ODP_SUPPORT.into();
        let remote = ibv::IBV_ODP_SUPPORT_WRITE | ibv::IBV_ODP_SUPPORT_READ | ibv::IBV_ODP_SUPPORT_ATOMIC;
        all.odp_caps.per_transport_caps.rc_odp_caps =
            remote | ibv::IBV_ODP_SUPPORT_SEND | ibv::IBV_ODP_SUPPORT_RECV;
    }
    let size = size.min(size_of_val(&all));
    unsafe { std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), attr.cast(), size) };
    0
}

fn port(context: *mut ibv::ibv_context, number: u8) -> Result<ibv::ibv_port_attr, c_int> {
    enter("ibv_query_port")?;
    let profile = profile_of(context);
    if !profile.has_port(number) {
        return Err(libc::EINVAL);
    }
    let state = lock();
    let is_up = state.device_of(context).is_some_and(|at| state.devices[&at].is_up(number));
    let is_ib = profile.is("ib");
    let layer = if is_ib { ibv::IBV_LINK_LAYER_INFINIBAND } else { ibv::IBV_LINK_LAYER_ETHERNET };
    Ok(ibv::ibv_port_attr {
        state: if is_up { ibv::IBV_PORT_ACTIVE } else { ibv::IBV_PORT_DOWN },
        max_mtu: ibv::IBV_MTU_4096,
        active_mtu: profile.mtu,
        gid_tbl_len: profile.gids as c_int,
        max_msg_sz: profile.limits.msg,
        pkey_tbl_len: 1,
        lid: if is_ib { lid(settings().host, profile.number, number) } else { 0 },
        link_layer: layer as u8,
        active_speed: 32,
        active_width: 2,
        phys_state: if is_up { 5 } else { 3 },
        ..Default::default()
    })
}

unsafe extern "C" fn query_port(
    context: *mut ibv::ibv_context,
    number: u8,
    attr: *mut ibv::ibv_port_attr,
    size: usize,
) -> c_int {
    match port(context, number) {
        Ok(all) => {
            let size = size.min(size_of_val(&all));
            unsafe { std::ptr::copy_nonoverlapping((&raw const all).cast::<u8>(), attr.cast(), size) };
            0
        }
        Err(errno) => errno,
    }
}

/// The form that programs of before rdma-core 24 call: it ends before the second word of capabilities.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut ibv::ibv_context,
    number: u8,
    attr: *mut ibv::_compat_ibv_port_attr,
) -> c_int {
    let size = offset_of!(ibv::ibv_port_attr, port_cap_flags2);
    unsafe { query_port(context, number, attr.cast(), size) }
}

/// Which bits of the low byte of a LID are the port's, above the device's.
const PORT: u32 = 6;

fn lid(host: u8, device: u8, port: u8) -> u16 {
    u16::from(host) << 8 | u16::from(port - 1) << PORT | u16::from(device)
}

/// Whose LID this is: host, device and port.
pub fn of_lid(lid: u16) -> (u8, u8, u8) {
    let low = lid as u8;
    ((lid >> 8) as u8, low & ((1 << PORT) - 1), (low >> PORT) + 1)
}

/// An entry of a table: the GID, its type, and its network interface.
fn entry(profile: &Profile, port: u8, index: usize) -> Option<([u8; 16], u32)> {
    let (host, device) = (settings().host, profile.number);
    let mut local = [0; 16];
    local[..2].copy_from_slice(&[0xfe, 0x80]);
    local[8..].copy_from_slice(&guid(profile).to_be_bytes());
    local[12] = port - 1;
    let mut mapped = [0; 16];
    mapped[10..].copy_from_slice(&[0xff, 0xff, 10, host, port - 1, device]);
    if profile.is("iwarp") {
        let mut mac = [0; 16];
        mac[..6].copy_from_slice(&[2, 0, 0, port - 1, host, device]);
        return (index == 0).then_some((mac, ibv::IBV_GID_TYPE_IB));
    }
    if profile.is("ib") {
        return (index == 0).then_some((local, ibv::IBV_GID_TYPE_IB));
    }
    let kind = if index % 2 == 0 { ibv::IBV_GID_TYPE_ROCE_V1 } else { ibv::IBV_GID_TYPE_ROCE_V2 };
    match index {
        0 | 1 => Some((local, kind)),
        2 | 3 => Some((mapped, kind)),
        _ => None,
    }
}

/// Whose GID this is: host, device and port.
pub fn of_gid(gid: [u8; 16]) -> Option<(u8, u8, u8)> {
    match gid {
        [0xfe, 0x80, .., port @ 0..=3, _, host, device] => Some((host, device, port + 1)),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, host, port @ 0..=3, device] => {
            Some((host, device, port + 1))
        }
        _ => None,
    }
}

/// Whether the table has a GID there.
pub fn has_gid(profile: &Profile, port: u8, index: u8) -> bool {
    usize::from(index) < profile.gids && entry(profile, port, index.into()).is_some()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv::ibv_context,
    number: u8,
    index: c_int,
    gid: *mut ibv::ibv_gid,
) -> c_int {
    if let Err(errno) = enter("ibv_query_gid") {
        set_errno(errno);
        return -1;
    }
    let profile = profile_of(context);
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    if !profile.has_port(number) || index >= profile.gids {
        set_errno(libc::EINVAL);
        return -1;
    }
    unsafe { (*gid).raw = entry(profile, number, index).map_or([0; 16], |(gid, _)| gid) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv::ibv_context,
    number: u32,
    index: u32,
    to: *mut ibv::ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    if let Err(errno) = enter("ibv_query_gid_ex") {
        return errno;
    }
    let profile = profile_of(context);
    let port = u8::try_from(number).unwrap_or(0);
    let is_there = profile.has_port(port) && (index as usize) < profile.gids;
    if !is_there || flags != 0 || size < size_of::<ibv::ibv_gid_entry>() {
        return libc::EINVAL;
    }
    let Some((gid, gid_type)) = entry(profile, port, index as usize) else { return libc::ENODATA };
    let ndev_ifindex = if profile.is("ib") { 0 } else { u32::from(profile.number) + 1 };
    let found = ibv::ibv_gid_entry {
        gid: ibv::ibv_gid { raw: gid },
        gid_index: index,
        port_num: number,
        gid_type,
        ndev_ifindex,
    };
    unsafe { *to = found };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv::ibv_context,
    to: *mut ibv::ibv_async_event,
) -> c_int {
    if let Err(errno) = enter("ibv_get_async_event") {
        set_errno(errno);
        return -1;
    }
    loop {
        if !take(unsafe { (*context).async_fd }) {
            return -1;
        }
        let mut state = lock();
        let event = state.contexts.get_mut(&(context as usize)).and_then(|c| c.events.pop_front());
        let Some(event) = event else { continue };
        let mut element = ibv::ibv_async_event__bindgen_ty_1 { qp: null_mut() };
        match event.kind {
            ibv::IBV_EVENT_PORT_ACTIVE | ibv::IBV_EVENT_PORT_ERR => element.port_num = event.element as c_int,
            _ => element.qp = event.element as *mut _,
        }
        unsafe { *to = ibv::ibv_async_event { element, event_type: event.kind } };
        return 0;
    }
}

/// Objects of events are there until they are destroyed: a test reads its events before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(_event: *mut ibv::ibv_async_event) {
    let _ = enter("ibv_ack_async_event");
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_is_fork_initialized() -> u32 {
    ibv::IBV_FORK_UNNEEDED
}

fn name_of(list: &'static [&'static str], at: u32) -> *const c_char {
    static NAMES: OnceLock<Vec<CString>> = OnceLock::new();
    let names = NAMES.get_or_init(|| {
        STATUSES.iter().chain(EVENTS).chain(&["unknown"]).map(|n| CString::new(*n).expect("a name")).collect()
    });
    let text = list.get(at as usize).copied().unwrap_or("unknown");
    names.iter().find(|n| n.to_bytes() == text.as_bytes()).map_or(null(), |n| n.as_ptr())
}

const STATUSES: &[&str] = &[
    "success",
    "local length error",
    "local QP operation error",
    "local EE context operation error",
    "local protection error",
    "Work Request Flushed Error",
    "memory window bind error",
    "bad response error",
    "local access error",
    "remote invalid request error",
    "remote access error",
    "remote operation error",
    "transport retry counter exceeded",
    "RNR retry counter exceeded",
];
const EVENTS: &[&str] =
    &["CQ error", "local work queue catastrophic error", "invalid request local work queue error"];

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_wc_status_str(status: u32) -> *const c_char {
    name_of(STATUSES, status)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_event_type_str(event: u32) -> *const c_char {
    name_of(EVENTS, event)
}

//! Completion channels, completion queues, shared receive queues.

use std::ffi::{c_int, c_uint, c_void};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::time::Duration;

use rdma_sys as ibv;

use crate::entry::{enter, enter_or_null, profile_of, set_errno};
use crate::nic;
use crate::objects::{Armed, Channel, Cq, Plain, Srq};
use crate::settings::settings;
use crate::state::{eventfd, lock, take};

/// What the channel is, and its number behind it.
#[repr(C)]
struct Numbered {
    channel: ibv::ibv_comp_channel,
    number: u32,
}

fn number_of(channel: *mut ibv::ibv_comp_channel) -> u32 {
    unsafe { (*channel.cast::<Numbered>()).number }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_comp_channel(
    context: *mut ibv::ibv_context,
) -> *mut ibv::ibv_comp_channel {
    if !enter_or_null("ibv_create_comp_channel") {
        return null_mut();
    }
    let Some(fd) = eventfd() else { return null_mut() };
    let mut state = lock();
    let number = state.number();
    let channel = ibv::ibv_comp_channel { context, fd: fd.as_raw_fd(), refcnt: 0 };
    state.channels.insert(number, Channel { fd, waiting: Default::default(), users: 0 });
    Box::into_raw(Box::new(Numbered { channel, number })).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv::ibv_comp_channel) -> c_int {
    if let Err(errno) = enter("ibv_destroy_comp_channel") {
        return errno;
    }
    let (mut state, number) = (lock(), number_of(channel));
    if state.channels.get(&number).is_none_or(|c| c.users > 0) {
        return libc::EBUSY;
    }
    state.channels.remove(&number);
    drop(unsafe { Box::from_raw(channel.cast::<Numbered>()) });
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv::ibv_context,
    entries: c_int,
    value: *mut c_void,
    channel: *mut ibv::ibv_comp_channel,
    vector: c_int,
) -> *mut ibv::ibv_cq {
    if !enter_or_null("ibv_create_cq") {
        return null_mut();
    }
    let limits = &profile_of(context).limits;
    let mut state = lock();
    let fits = (1..=limits.cqe as i64).contains(&entries.into()) && (0..4).contains(&vector);
    if !fits || state.cqs.len() >= limits.cq as usize {
        set_errno(if fits { libc::ENOMEM } else { libc::EINVAL });
        return null_mut();
    }
    let handle = state.number();
    let cq = ibv::ibv_cq { context, channel, cq_context: value, handle, cqe: entries, ..blank_cq() };
    let raw = Box::into_raw(Box::new(cq));
    let channel = (!channel.is_null()).then(|| number_of(channel));
    if let Some(channel) = channel.and_then(|c| state.channels.get_mut(&c)) {
        channel.users += 1;
    }
    let cq = Cq {
        raw: raw as usize,
        entries: entries as usize,
        ready: Default::default(),
        delayed: Vec::new(),
        channel,
        armed: None,
        overrun: false,
        events: (0, 0),
    };
    state.cqs.insert(handle, cq);
    raw
}

fn blank_cq() -> ibv::ibv_cq {
    // Its mutex and condition are libibverbs' own, which has none here.
    unsafe { std::mem::zeroed() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv::ibv_cq) -> c_int {
    if let Err(errno) = enter("ibv_destroy_cq") {
        return errno;
    }
    let number = unsafe { (*cq).handle };
    loop {
        let mut state = lock();
        if state.qps.values().any(|qp| qp.send_cq == number || qp.recv_cq == number) {
            return libc::EBUSY;
        }
        let Some(known) = state.cqs.get(&number) else { return libc::EINVAL };
        // It waits until all events are acknowledged (ibv_get_cq_event(3)).
        if known.events.0 != known.events.1 {
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
            continue;
        }
        let channel = known.channel.and_then(|channel| state.channels.get_mut(&channel));
        if let Some(channel) = channel {
            channel.users -= 1;
            channel.waiting.retain(|waiting| *waiting != number);
        }
        state.cqs.remove(&number);
        let element = cq as usize;
        state.contexts.values_mut().for_each(|c| c.events.retain(|event| event.element != element));
        drop(unsafe { Box::from_raw(cq) });
        return 0;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv::ibv_comp_channel,
    to: *mut *mut ibv::ibv_cq,
    value: *mut *mut c_void,
) -> c_int {
    if let Err(errno) = enter("ibv_get_cq_event") {
        set_errno(errno);
        return -1;
    }
    loop {
        if !take(unsafe { (*channel).fd }) {
            return -1;
        }
        let mut state = lock();
        let number = state.channels.get_mut(&number_of(channel)).and_then(|c| c.waiting.pop_front());
        // An event of a queue that is gone is none.
        let Some(cq) = number.and_then(|number| state.cqs.get_mut(&number)) else { continue };
        cq.events.0 += 1;
        let raw = cq.raw as *mut ibv::ibv_cq;
        unsafe { (*to, *value) = (raw, (*raw).cq_context) };
        return 0;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_cq_events(cq: *mut ibv::ibv_cq, count: c_uint) {
    if let Some(cq) = lock().cqs.get_mut(&unsafe { (*cq).handle }) {
        cq.events.1 += count;
    }
}

fn filled(plain: &Plain) -> ibv::ibv_wc {
    let imm_data = plain.imm.unwrap_or(0);
    ibv::ibv_wc {
        wr_id: plain.id,
        status: plain.status,
        opcode: plain.opcode,
        byte_len: plain.len,
        anon1: ibv::ibv_wc__bindgen_ty_1 { imm_data },
        qp_num: plain.qpn,
        src_qp: plain.from,
        wc_flags: if plain.imm.is_some() { ibv::IBV_WC_WITH_IMM } else { 0 },
        ..Default::default()
    }
}

/// What means nothing where there is an error (ibv_poll_cq(3)).
const MEANINGLESS: u32 = 0x5a5a_5a5a;

pub unsafe extern "C" fn poll_cq(cq: *mut ibv::ibv_cq, room: c_int, to: *mut ibv::ibv_wc) -> c_int {
    if enter("ibv_poll_cq").is_err() || room < 0 {
        return -1;
    }
    let mut state = lock();
    if settings().polled {
        state.turn_over();
    }
    let Some(known) = state.cqs.get_mut(&unsafe { (*cq).handle }) else { return -1 };
    let mut taken = 0;
    let mut freed = Vec::new();
    while taken < room {
        let Some((plain, frees)) = known.ready.pop_front() else { break };
        let mut wc = filled(&plain);
        if plain.status != ibv::IBV_WC_SUCCESS {
            (wc.opcode, wc.byte_len) = (MEANINGLESS, MEANINGLESS);
        }
        unsafe { to.add(taken as usize).write(wc) };
        freed.extend(frees);
        taken += 1;
    }
    let dead = known.overrun && taken == 0;
    for (qpn, index) in freed {
        if let Some(qp) = state.qps.get_mut(&qpn) {
            qp.sending.freed = qp.sending.freed.max(index);
        }
    }
    if dead { -1 } else { taken }
}

pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv::ibv_cq, solicited: c_int) -> c_int {
    if let Err(errno) = enter("ibv_req_notify_cq") {
        return errno;
    }
    let mut state = lock();
    let Some(known) = state.cqs.get_mut(&unsafe { (*cq).handle }) else { return libc::EINVAL };
    // A request for any event is not taken back by one for fewer.
    let any = solicited == 0 || known.armed == Some(Armed::Any);
    known.armed = Some(if any { Armed::Any } else { Armed::Solicited });
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(
    pd: *mut ibv::ibv_pd,
    init: *mut ibv::ibv_srq_init_attr,
) -> *mut ibv::ibv_srq {
    if !enter_or_null("ibv_create_srq") {
        return null_mut();
    }
    let context = unsafe { (*pd).context };
    let (profile, attr) = (profile_of(context), unsafe { (*init).attr });
    let mut state = lock();
    let errno = if profile.is("nosrq") {
        libc::EOPNOTSUPP
    } else if attr.max_wr == 0 || attr.max_wr > profile.limits.srqwr || attr.max_sge > profile.limits.srqsge {
        libc::EINVAL
    } else if state.srqs.len() >= profile.limits.srq as usize {
        libc::ENOMEM
    } else {
        0
    };
    if errno != 0 {
        set_errno(errno);
        return null_mut();
    }
    let handle = state.number();
    let mut srq: ibv::ibv_srq = unsafe { std::mem::zeroed() };
    (srq.context, srq.srq_context, srq.pd, srq.handle) =
        (context, unsafe { (*init).srq_context }, pd, handle);
    let raw = Box::into_raw(Box::new(srq));
    let (max_wr, max_sge) = (attr.max_wr, attr.max_sge.max(1));
    unsafe { (*init).attr.max_sge = max_sge };
    let srq =
        Srq { raw: raw as usize, pd: pd as usize, max_wr, max_sge, limit: 0, posted: Default::default() };
    state.srqs.insert(handle, srq);
    raw
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv::ibv_srq,
    attr: *mut ibv::ibv_srq_attr,
    mask: c_int,
) -> c_int {
    if let Err(errno) = enter("ibv_modify_srq") {
        return errno;
    }
    let mut state = lock();
    let Some(known) = state.srqs.get_mut(&unsafe { (*srq).handle }) else { return libc::EINVAL };
    let limit = unsafe { (*attr).srq_limit };
    // Resizing is optional, and this device does not.
    if mask as u32 != ibv::IBV_SRQ_LIMIT || limit > known.max_wr {
        return libc::EINVAL;
    }
    known.limit = limit;
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv::ibv_srq) -> c_int {
    if let Err(errno) = enter("ibv_destroy_srq") {
        return errno;
    }
    let (mut state, number) = (lock(), unsafe { (*srq).handle });
    if state.qps.values().any(|qp| qp.srq == Some(number)) {
        return libc::EBUSY;
    }
    if state.srqs.remove(&number).is_none() {
        return libc::EINVAL;
    }
    let element = srq as usize;
    state.contexts.values_mut().for_each(|c| c.events.retain(|event| event.element != element));
    drop(unsafe { Box::from_raw(srq) });
    nic::wake();
    0
}

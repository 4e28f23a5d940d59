//! Queue pairs: made, modified, queried, destroyed.

use std::ffi::c_int;
use std::ptr::null_mut;

use rdma_sys as ibv;

use crate::device::{has_gid, of_gid, of_lid};
use crate::entry::{enter, enter_or_null, profile_of, set_errno};
use crate::nic;
use crate::objects::{Path, Qp};
use crate::packet::Address;
use crate::requester::MASK;
use crate::settings::{Profile, settings};
use crate::state::lock;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(
    pd: *mut ibv::ibv_pd,
    init: *mut ibv::ibv_qp_init_attr,
) -> *mut ibv::ibv_qp {
    if !enter_or_null("ibv_create_qp") {
        return null_mut();
    }
    let context = unsafe { (*pd).context };
    let (profile, wanted) = (profile_of(context), unsafe { &mut *init });
    let (limits, cap) = (&profile.limits, &mut wanted.cap);
    let mut state = lock();
    let too_large = cap.max_send_wr > limits.wr
        || cap.max_recv_wr > limits.wr
        || cap.max_send_sge > limits.sge
        || cap.max_recv_sge > limits.sge
        || cap.max_inline_data > limits.inline;
    let errno = if wanted.qp_type != ibv::IBV_QPT_RC {
        libc::EOPNOTSUPP
    } else if too_large || wanted.send_cq.is_null() || wanted.recv_cq.is_null() {
        libc::EINVAL
    } else if state.qps.len() >= limits.qp as usize {
        libc::ENOMEM
    } else {
        0
    };
    if errno != 0 {
        set_errno(errno);
        return null_mut();
    }
    cap.max_send_sge = cap.max_send_sge.max(1);
    let device = state.pds[&(pd as usize)];
    let instance = u32::from(state.devices[&device].at.instance);
    let mut low = state.number() & 0xffff;
    while low < 2 || state.qps.contains_key(&(instance << 16 | low)) {
        low = state.number() & 0xffff;
    }
    let qpn = instance << 16 | low;
    let mut qp: ibv::ibv_qp = unsafe { std::mem::zeroed() };
    (qp.context, qp.qp_context, qp.pd) = (context, wanted.qp_context, pd);
    (qp.send_cq, qp.recv_cq, qp.srq) = (wanted.send_cq, wanted.recv_cq, wanted.srq);
    (qp.qp_num, qp.handle, qp.qp_type) = (qpn, qpn, ibv::IBV_QPT_RC);
    let raw = Box::into_raw(Box::new(qp));
    let qp = Qp {
        raw: raw as usize,
        pd: pd as usize,
        device,
        cap: *cap,
        signal_all: wanted.sq_sig_all != 0,
        send_cq: unsafe { (*wanted.send_cq).handle },
        recv_cq: unsafe { (*wanted.recv_cq).handle },
        srq: (!wanted.srq.is_null()).then(|| unsafe { (*wanted.srq).handle }),
        state: ibv::IBV_QPS_RESET,
        path: Path::default(),
        sending: Default::default(),
        receiving: Default::default(),
        due: None,
    };
    state.qps.insert(qpn, qp);
    raw
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv::ibv_qp) -> c_int {
    if let Err(errno) = enter("ibv_destroy_qp") {
        return errno;
    }
    let (mut state, qpn) = (lock(), unsafe { (*qp).qp_num });
    // Soft RoCE waits for their end in vain.
    if state.windows.values().any(|window| window.bound.is_some_and(|bound| bound.qpn == qpn)) {
        return libc::EBUSY;
    }
    let Some(old) = state.qps.remove(&qpn) else { return libc::EINVAL };
    // Those of soft iWARP stay.
    if !settings().devices[old.device].is("iwarp") {
        state.forget_completions(qpn);
    }
    state.manager.hang_up(qpn);
    let element = qp as usize;
    state.contexts.values_mut().for_each(|c| c.events.retain(|event| event.element != element));
    drop(unsafe { Box::from_raw(qp) });
    0
}

impl crate::state::State {
    /// Queues have no completion of this queue pair any more.
    fn forget_completions(&mut self, qpn: u32) {
        for cq in self.cqs.values_mut() {
            cq.ready.retain(|(plain, _)| plain.qpn != qpn);
            cq.delayed.retain(|(_, plain, ..)| plain.qpn != qpn);
        }
    }
}

/// What a transition needs, and what it may have besides (ibv_modify_qp(3), RC).
fn masks(from: u32, to: u32, profile: &Profile) -> Option<(u32, u32)> {
    use ibv::*;
    let init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    let rtr = IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    let rts = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    let free = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER;
    match (from, to) {
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => Some((0, IBV_QP_CUR_STATE)),
        (IBV_QPS_RESET, IBV_QPS_INIT) if profile.is("iwarp") => Some((IBV_QP_ACCESS_FLAGS, init)),
        (IBV_QPS_RESET, IBV_QPS_INIT) => Some((init, 0)),
        (IBV_QPS_INIT, IBV_QPS_INIT) => Some((0, init)),
        (IBV_QPS_INIT, IBV_QPS_RTR) => Some((rtr, IBV_QP_PKEY_INDEX | IBV_QP_ACCESS_FLAGS)),
        (IBV_QPS_RTR, IBV_QPS_RTS) => Some((rts, free)),
        (IBV_QPS_RTS, IBV_QPS_RTS) => Some((0, free)),
        _ => None,
    }
}

/// Whom the path of a port leads to, and to which port; what a device refuses as EINVAL.
fn peer(profile: &Profile, port: u8, attr: &ibv::ibv_qp_attr) -> Result<(Address, u8), c_int> {
    let ah = &attr.ah_attr;
    let instance = (attr.dest_qp_num >> 16) as u8;
    let bad = attr.dest_qp_num > MASK || ah.port_num != port;
    if bad || ah.is_global != 0 && !has_gid(profile, port, ah.grh.sgid_index) {
        return Err(libc::EINVAL);
    }
    let (host, device, port) = if ah.is_global != 0 {
        // An address of nobody is a path that nothing answers on.
        of_gid(unsafe { ah.grh.dgid.raw }).unwrap_or((0, 0, 0))
    } else if profile.is("ib") {
        of_lid(ah.dlid)
    } else {
        // RoCE has no LIDs.
        return Err(libc::EINVAL);
    };
    Ok((Address { host, device, instance }, port))
}

fn is_in_range(attr: &ibv::ibv_qp_attr, mask: u32, profile: &Profile) -> bool {
    let has = |bit| mask & bit != 0;
    let reads = profile.limits.reads;
    (!has(ibv::IBV_QP_PORT) || profile.has_port(attr.port_num))
        && (!has(ibv::IBV_QP_PKEY_INDEX) || attr.pkey_index == 0)
        && (!has(ibv::IBV_QP_PATH_MTU) || (1..=profile.mtu).contains(&attr.path_mtu))
        && (!has(ibv::IBV_QP_MAX_DEST_RD_ATOMIC) || u32::from(attr.max_dest_rd_atomic) <= reads)
        && (!has(ibv::IBV_QP_MAX_QP_RD_ATOMIC) || u32::from(attr.max_rd_atomic) <= reads)
        && (!has(ibv::IBV_QP_MIN_RNR_TIMER) || attr.min_rnr_timer < 32)
        && (!has(ibv::IBV_QP_TIMEOUT) || attr.timeout < 32)
        && (!has(ibv::IBV_QP_RETRY_CNT) || attr.retry_cnt < 8)
        && (!has(ibv::IBV_QP_RNR_RETRY) || attr.rnr_retry < 8)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(
    qp: *mut ibv::ibv_qp,
    attr: *mut ibv::ibv_qp_attr,
    mask: c_int,
) -> c_int {
    if let Err(errno) = enter("ibv_modify_qp") {
        return errno;
    }
    let (qpn, attr, mask) = unsafe { ((*qp).qp_num, &*attr, mask as u32) };
    let profile = profile_of(unsafe { (*qp).context });
    let mut state = lock();
    let Some(known) = state.qps.get_mut(&qpn) else { return libc::EINVAL };
    let has = |bit| mask & bit != 0;
    if profile.is("iwarp")
        && ![ibv::IBV_QPS_INIT, ibv::IBV_QPS_ERR, ibv::IBV_QPS_RESET].contains(&attr.qp_state)
    {
        return libc::EINVAL;
    }
    let to = if has(ibv::IBV_QP_STATE) { attr.qp_state } else { known.state };
    let Some((needs, may)) = masks(known.state, to, profile) else { return libc::EINVAL };
    let given = mask & !ibv::IBV_QP_STATE;
    if given & needs != needs || given & !(needs | may) != 0 || !is_in_range(attr, mask, profile) {
        return libc::EINVAL;
    }
    if has(ibv::IBV_QP_AV) {
        match peer(profile, known.path.port, attr) {
            Ok((peer, port)) => (known.path.peer, known.path.peer_port) = (peer, port),
            Err(errno) => return errno,
        }
    }
    let path = &mut known.path;
    let set = |bit, place: &mut u8, value| {
        if has(bit) {
            *place = value;
        }
    };
    set(ibv::IBV_QP_MIN_RNR_TIMER, &mut path.rnr_timer, attr.min_rnr_timer);
    set(ibv::IBV_QP_RNR_RETRY, &mut path.rnr_retry, attr.rnr_retry);
    set(ibv::IBV_QP_RETRY_CNT, &mut path.retry, attr.retry_cnt);
    set(ibv::IBV_QP_TIMEOUT, &mut path.timeout, attr.timeout);
    set(ibv::IBV_QP_PORT, &mut path.port, attr.port_num);
    set(ibv::IBV_QP_MAX_QP_RD_ATOMIC, &mut path.max_reads.0, attr.max_rd_atomic);
    set(ibv::IBV_QP_MAX_DEST_RD_ATOMIC, &mut path.max_reads.1, attr.max_dest_rd_atomic);
    if has(ibv::IBV_QP_ACCESS_FLAGS) {
        path.access = attr.qp_access_flags;
    }
    if has(ibv::IBV_QP_DEST_QPN) {
        (path.qpn, path.mtu) = (attr.dest_qp_num, attr.path_mtu);
        known.receiving.psn = attr.rq_psn & MASK;
    }
    if has(ibv::IBV_QP_SQ_PSN) {
        known.sending.psn = attr.sq_psn & MASK;
    }
    match to {
        ibv::IBV_QPS_ERR => state.flush(qpn),
        ibv::IBV_QPS_RESET => {
            (known.state, known.path) = (to, Path::default());
            (known.sending, known.receiving) = Default::default();
            state.forget_completions(qpn);
        }
        _ => known.state = to,
    }
    unsafe { (*qp).state = to };
    drop(state);
    nic::wake();
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv::ibv_qp,
    to: *mut ibv::ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv::ibv_qp_init_attr,
) -> c_int {
    if let Err(errno) = enter("ibv_query_qp") {
        return errno;
    }
    let state = lock();
    let Some(known) = state.qps.get(&unsafe { (*qp).qp_num }) else { return libc::EINVAL };
    let (path, cap) = (&known.path, known.cap);
    unsafe {
        *to = ibv::ibv_qp_attr {
            qp_state: known.state,
            cur_qp_state: known.state,
            path_mtu: path.mtu,
            rq_psn: known.receiving.psn,
            sq_psn: known.sending.psn,
            dest_qp_num: path.qpn,
            qp_access_flags: path.access,
            cap,
            max_rd_atomic: path.max_reads.0,
            max_dest_rd_atomic: path.max_reads.1,
            min_rnr_timer: path.rnr_timer,
            port_num: path.port,
            timeout: path.timeout,
            retry_cnt: path.retry,
            rnr_retry: path.rnr_retry,
            ..Default::default()
        };
        (*init).cap = cap;
    }
    0
}

/// Packets of this device arrive in order, and are written so.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(_qp: *mut ibv::ibv_qp, _op: u32, flags: u32) -> c_int {
    if flags == 0 { 1 } else { 0 }
}

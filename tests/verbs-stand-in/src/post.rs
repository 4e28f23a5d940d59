//! Requests that are posted.

use std::ffi::c_int;

use rdma_sys as ibv;

use crate::entry::{enter, profile_of};
use crate::nic;
use crate::objects::{Local, Piece, Plain, Qp, Receive, Request};
use crate::packet::Kind;
use crate::settings::Profile;
use crate::state::lock;
use crate::windows::bind;

unsafe fn pieces(list: *const ibv::ibv_sge, count: c_int) -> Vec<Piece> {
    let piece = |at: usize| {
        let ibv::ibv_sge { addr, length, lkey } = unsafe { *list.add(at) };
        Piece { addr, len: length, key: lkey }
    };
    (0..count.max(0) as usize).map(piece).collect()
}

unsafe fn receive(wr: &ibv::ibv_recv_wr, max_sge: u32) -> Result<Receive, c_int> {
    if wr.num_sge < 0 || wr.num_sge as u32 > max_sge {
        return Err(libc::EINVAL);
    }
    Ok(Receive { id: wr.wr_id, pieces: unsafe { pieces(wr.sg_list, wr.num_sge) } })
}

pub unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv::ibv_srq,
    first: *mut ibv::ibv_recv_wr,
    bad: *mut *mut ibv::ibv_recv_wr,
) -> c_int {
    let mut wr = first;
    let done = enter("ibv_post_srq_recv").and_then(|()| {
        let mut state = lock();
        let known = state.srqs.get_mut(&unsafe { (*srq).handle }).ok_or(libc::EINVAL)?;
        while let Some(one) = unsafe { wr.as_ref() } {
            if known.posted.len() >= known.max_wr as usize {
                return Err(libc::ENOMEM);
            }
            known.posted.push_back(unsafe { receive(one, known.max_sge) }?);
            wr = one.next;
        }
        Ok(())
    });
    done.err().inspect(|_| unsafe { *bad = wr }).unwrap_or(0)
}

pub unsafe extern "C" fn post_recv(
    qp: *mut ibv::ibv_qp,
    first: *mut ibv::ibv_recv_wr,
    bad: *mut *mut ibv::ibv_recv_wr,
) -> c_int {
    let mut wr = first;
    let qpn = unsafe { (*qp).qp_num };
    let done = enter("ibv_post_recv").and_then(|()| {
        let mut state = lock();
        while let Some(one) = unsafe { wr.as_ref() } {
            let known = state.qps.get_mut(&qpn).ok_or(libc::EINVAL)?;
            if known.state == ibv::IBV_QPS_RESET || known.srq.is_some() {
                return Err(libc::EINVAL);
            }
            if known.receiving.posted.len() >= known.cap.max_recv_wr as usize {
                return Err(libc::ENOMEM);
            }
            known.receiving.posted.push_back(unsafe { receive(one, known.cap.max_recv_sge) }?);
            if known.state == ibv::IBV_QPS_ERR {
                let (cq, last) = (known.recv_cq, known.receiving.posted.pop_back());
                let (id, status) = (last.map_or(0, |r| r.id), ibv::IBV_WC_WR_FLUSH_ERR);
                let opcode = ibv::IBV_WC_RECV;
                state.complete(cq, Plain { id, status, opcode, qpn, ..Default::default() }, None, false);
            }
            wr = one.next;
        }
        Ok(())
    });
    nic::wake();
    done.err().inspect(|_| unsafe { *bad = wr }).unwrap_or(0)
}

fn kind(opcode: u32) -> Option<(Kind, bool)> {
    match opcode {
        ibv::IBV_WR_SEND => Some((Kind::Send, false)),
        ibv::IBV_WR_SEND_WITH_IMM => Some((Kind::Send, true)),
        ibv::IBV_WR_RDMA_WRITE => Some((Kind::Write, false)),
        ibv::IBV_WR_RDMA_WRITE_WITH_IMM => Some((Kind::Write, true)),
        ibv::IBV_WR_RDMA_READ => Some((Kind::Read, false)),
        ibv::IBV_WR_ATOMIC_FETCH_AND_ADD => Some((Kind::FetchAdd, false)),
        ibv::IBV_WR_BIND_MW | ibv::IBV_WR_LOCAL_INV => Some((Kind::Nothing, false)),
        ibv::IBV_WR_ATOMIC_CMP_AND_SWP => Some((Kind::CompareSwap, false)),
        _ => None,
    }
}

/// What a request does to a window, of a device that has them.
unsafe fn local(wr: &ibv::ibv_send_wr, qpn: u32, profile: &Profile) -> Result<Option<Local>, c_int> {
    match wr.opcode {
        ibv::IBV_WR_BIND_MW | ibv::IBV_WR_LOCAL_INV if profile.is("nomw") => Err(libc::EINVAL),
        ibv::IBV_WR_BIND_MW => unsafe { bind(wr, qpn) }.map(Some),
        ibv::IBV_WR_LOCAL_INV => Ok(Some(Local::Invalidate(unsafe { wr.anon1.invalidate_rkey }))),
        _ => Ok(None),
    }
}

unsafe fn request(wr: &ibv::ibv_send_wr, qp: &Qp, profile: &Profile) -> Result<Request, c_int> {
    let (kind, has_imm) = kind(wr.opcode).ok_or(libc::EINVAL)?;
    if profile.is("iwarp") && (has_imm || matches!(kind, Kind::FetchAdd | Kind::CompareSwap)) {
        return Err(libc::EINVAL);
    }
    let local = unsafe { local(wr, (*(qp.raw as *const ibv::ibv_qp)).qp_num, profile) }?;
    if wr.num_sge < 0 || wr.num_sge as u32 > qp.cap.max_send_sge {
        return Err(libc::EINVAL);
    }
    let flag = |bit| wr.send_flags & bit != 0;
    let pieces = unsafe { pieces(wr.sg_list, wr.num_sge) };
    let total: u64 = pieces.iter().map(|p| u64::from(p.len)).sum();
    let is_atomic = matches!(kind, Kind::FetchAdd | Kind::CompareSwap);
    let (rdma, atomic) = unsafe { (wr.wr.rdma, wr.wr.atomic) };
    if total > profile.limits.msg.into() || is_atomic && total != 8 {
        return Err(libc::EINVAL);
    }
    if is_atomic && (profile.is("noatomics") || profile.is("rxe") && atomic.remote_addr % 8 != 0) {
        return Err(libc::EINVAL);
    }
    let inline = flag(ibv::IBV_SEND_INLINE);
    if inline && (total > qp.cap.max_inline_data.into() || !matches!(kind, Kind::Send | Kind::Write)) {
        return Err(libc::EINVAL);
    }
    // Read now: its keys mean nothing, and its memory is the program's again when this returns.
    let copy = || {
        let piece = |p: &Piece| unsafe { std::slice::from_raw_parts(p.addr as *const u8, p.len as usize) };
        pieces.iter().filter(|p| p.len > 0).flat_map(piece).copied().collect()
    };
    let inline = inline.then(copy);
    let (remote, rkey) = match kind {
        Kind::Write | Kind::Read => (rdma.remote_addr, rdma.rkey),
        Kind::FetchAdd | Kind::CompareSwap => (atomic.remote_addr, atomic.rkey),
        _ => (0, 0),
    };
    Ok(Request {
        id: wr.wr_id,
        index: qp.sending.posted,
        kind,
        signaled: flag(ibv::IBV_SEND_SIGNALED),
        solicited: flag(ibv::IBV_SEND_SOLICITED),
        fence: flag(ibv::IBV_SEND_FENCE),
        is_alone: qp.sending.posted == qp.sending.freed,
        imm: has_imm.then_some(unsafe { wr.anon1.imm_data }),
        pieces,
        inline,
        total: total as u32,
        remote,
        rkey,
        local,
        operands: if is_atomic { [atomic.compare_add, atomic.swap] } else { [0; 2] },
        planned: None,
        sent: 0,
        answered: 0,
        done: false,
    })
}

pub unsafe extern "C" fn post_send(
    qp: *mut ibv::ibv_qp,
    first: *mut ibv::ibv_send_wr,
    bad: *mut *mut ibv::ibv_send_wr,
) -> c_int {
    let mut wr = first;
    let (qpn, profile) = (unsafe { (*qp).qp_num }, profile_of(unsafe { (*qp).context }));
    let done = enter("ibv_post_send").and_then(|()| {
        let mut state = lock();
        while let Some(one) = unsafe { wr.as_ref() } {
            let count = state.sends + 1;
            let planned = state.planned.iter().position(|(n, _)| *n == count);
            let known = state.qps.get_mut(&qpn).ok_or(libc::EINVAL)?;
            if matches!(known.state, ibv::IBV_QPS_RESET | ibv::IBV_QPS_INIT | ibv::IBV_QPS_RTR) {
                return Err(libc::EINVAL);
            }
            // A slot is free when the completion of its request, or of a later one, was polled.
            if known.sending.posted - known.sending.freed >= known.cap.max_send_wr.into() {
                return Err(libc::ENOMEM);
            }
            let mut request = unsafe { request(one, known, profile) }?;
            known.sending.posted += 1;
            let failed = known.state == ibv::IBV_QPS_ERR;
            state.sends = count;
            request.planned = planned.map(|at| state.planned.swap_remove(at).1);
            if let Some(known) = state.qps.get_mut(&qpn) {
                known.sending.requests.push_back(request);
            }
            if failed && profile.is("iwarp") {
                // As soft iWARP: it is taken, and never completes.
                if let Some(known) = state.qps.get_mut(&qpn) {
                    known.sending.requests.clear();
                }
            } else if failed {
                state.flush(qpn);
            }
            wr = one.next;
        }
        Ok(())
    });
    nic::wake();
    done.err().inspect(|_| unsafe { *bad = wr }).unwrap_or(0)
}

//! Queue pairs: reliable connections.

use core::ffi::c_int;
use core::ptr::{NonNull, null_mut};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::srq::receive;
use crate::{
    Access, Cq, Error, Gid, IBV_QP_ACCESS_FLAGS, IBV_QP_AV, IBV_QP_CAP, IBV_QP_DEST_QPN,
    IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER, IBV_QP_PATH_MTU,
    IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_RQ_PSN, IBV_QP_SQ_PSN,
    IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_ERR, IBV_QPS_INIT, IBV_QPS_RESET, IBV_QPS_RTR, IBV_QPS_RTS,
    IBV_QPT_RC, Pd, Srq, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_mtu, ibv_qp, ibv_qp_attr, ibv_qp_cap,
    ibv_qp_init_attr, ibv_qp_state, ibv_recv_wr, ibv_send_wr, ibv_sge,
};

/// How large a queue pair is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QpInit {
    /// Send requests under way.
    pub max_send_wr: u32,
    /// Receives under way; 0 where a shared receive queue serves.
    pub max_recv_wr: u32,
    /// Pieces of memory of a send request.
    pub max_send_sge: u32,
    /// Pieces of memory of a receive.
    pub max_recv_sge: u32,
    /// Bytes of a send that IBV_SEND_INLINE copies into the request.
    pub max_inline: u32,
    /// Every send request has a completion, without IBV_SEND_SIGNALED.
    pub signal_all: bool,
}

/// Where a connection leads, and how its receiving half works: RTR.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    /// The peer's queue pair.
    pub qpn: u32,
    /// The peer's first packet sequence number, of 24 bits.
    pub psn: u32,
    /// `enum ibv_mtu`: the smaller of both ends'.
    pub mtu: ibv_mtu,
    /// The peer's GID, and the own one that packets come from; none: the LID alone, within a subnet of
    /// InfiniBand.
    pub gid: Option<(Gid, [u8; 16])>,
    /// The peer's LID, where packets have one.
    pub lid: u16,
    /// The own port, from 1.
    pub port: u8,
    /// Of the GRH: the TOS byte of IP with RoCE v2.
    pub traffic_class: u8,
    /// InfiniBand's, of 4 bits.
    pub service_level: u8,
    /// How many reads and atomics of the peer's may be under way.
    pub max_reads: u8,
    /// How long the peer waits after "receiver not ready": a code of 5 bits (12: 0.64 ms).
    pub rnr_timer: u8,
}

/// How the sending half of a connection works: RTS.
#[derive(Clone, Copy, Debug)]
pub struct ToRts {
    /// The own first packet sequence number, of 24 bits.
    pub psn: u32,
    /// An acknowledgement is waited for 4.096 us times two to this power; 0: for ever.
    pub timeout: u8,
    /// How often that is tried again; at most 7.
    pub retries: u8,
    /// How often after "receiver not ready"; 7: for ever.
    pub rnr_retries: u8,
    /// How many own reads and atomics may be under way.
    pub max_reads: u8,
}

/// What [`Qp::query`] gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// `enum ibv_qp_state`.
    pub state: ibv_qp_state,
    /// What it has.
    pub cap: QpInit,
}

type Modify = unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;

/// Puts a queue pair in error from any thread, as long as that is there. Clones are of the same one.
#[derive(Clone)]
pub struct Breaker(Arc<Mutex<Option<Live>>>);

/// A queue pair that is there.
struct Live(NonNull<ibv_qp>, Modify);

// SAFETY: libibverbs' calls may be made from any thread.
unsafe impl Send for Live {}

impl Breaker {
    /// To ERR: all requests complete, most with IBV_WC_WR_FLUSH_ERR. One that is gone, or in error, stays so.
    pub fn fail(&self) {
        let found = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Live(raw, modify)) = *found {
            let mut attr = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
            // SAFETY: not destroyed as long as the lock is held. What is refused is in error.
            let _ = unsafe { modify(raw.as_ptr(), &raw mut attr, IBV_QP_STATE as c_int) };
        }
    }

    /// Whether both are of one queue pair.
    pub fn is_of(&self, other: &Breaker) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Breaker")
    }
}

/// A queue pair, destroyed when this is dropped.
pub struct Qp {
    raw: NonNull<ibv_qp>,
    breaker: Breaker,
    /// Of the driver, constant.
    send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
    recv: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    granted: QpInit,
    pd: Pd,
    cqs: [Cq; 2],
    srq: Option<Srq>,
}

// SAFETY: libibverbs' calls may be made from any thread.
unsafe impl Send for Qp {}
// SAFETY: as above.
unsafe impl Sync for Qp {}

impl Drop for Qp {
    fn drop(&mut self) {
        *self.breaker.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // SAFETY: made by this library, and its one end.
        if unsafe { (self.pd.context().functions().ibv_destroy_qp)(self.raw.as_ptr()) } != 0 {
            core::mem::forget((self.pd.clone(), self.cqs.clone(), self.srq.clone()));
        }
    }
}

impl QpInit {
    fn of(cap: ibv_qp_cap, signal_all: bool) -> QpInit {
        QpInit {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline: cap.max_inline_data,
            signal_all,
        }
    }
}

impl Qp {
    /// A queue pair in RESET. What is more than the device has is refused (EINVAL, ENOMEM).
    pub fn new(pd: &Pd, send_cq: &Cq, recv_cq: &Cq, srq: Option<&Srq>, init: QpInit) -> Result<Qp, Error> {
        let ops = pd.context().ops();
        let send = ops.post_send.ok_or(Error::Missing("ibv_post_send"))?;
        let recv = ops.post_recv.ok_or(Error::Missing("ibv_post_recv"))?;
        let mut wanted = ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: send_cq.raw(),
            recv_cq: recv_cq.raw(),
            srq: srq.map_or(null_mut(), Srq::raw),
            cap: ibv_qp_cap {
                max_send_wr: init.max_send_wr,
                max_recv_wr: init.max_recv_wr,
                max_send_sge: init.max_send_sge,
                max_recv_sge: init.max_recv_sge,
                max_inline_data: init.max_inline,
            },
            qp_type: IBV_QPT_RC,
            sq_sig_all: init.signal_all.into(),
        };
        // SAFETY: objects of this library, and attributes that it writes what it grants into.
        let raw = unsafe { (pd.context().functions().ibv_create_qp)(pd.raw(), &raw mut wanted) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_qp"))?;
        let granted = QpInit::of(wanted.cap, init.signal_all);
        let cqs = [send_cq.clone(), recv_cq.clone()];
        let breaker = Breaker(Arc::new(Mutex::new(Some(Live(raw, pd.context().functions().ibv_modify_qp)))));
        Ok(Qp { raw, breaker, send, recv, granted, pd: pd.clone(), cqs, srq: srq.cloned() })
    }

    /// What puts it in error from another thread.
    pub fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Its number: 24 bits.
    pub fn number(&self) -> u32 {
        // SAFETY: constant since it was made.
        unsafe { (*self.raw.as_ptr()).qp_num }
    }

    /// What it has: at least what was requested.
    pub fn granted(&self) -> &QpInit {
        &self.granted
    }

    fn modify(&self, attr: &mut ibv_qp_attr, mask: u32) -> Result<(), Error> {
        let modify = self.pd.context().functions().ibv_modify_qp;
        // SAFETY: a queue pair of this library. All bits of the mask are small.
        Error::check("ibv_modify_qp", unsafe { modify(self.raw.as_ptr(), attr, mask as c_int) })
    }

    fn to(&self, qp_state: ibv_qp_state) -> Result<(), Error> {
        self.modify(&mut ibv_qp_attr { qp_state, ..Default::default() }, IBV_QP_STATE)
    }

    /// Empties it, without completions.
    pub fn reset(&self) -> Result<(), Error> {
        self.to(IBV_QPS_RESET)
    }

    /// From RESET to INIT: receives may be posted. `port` counts from 1, `pkey_index` is of that port's
    /// table, `access` is what peers may do.
    pub fn init(&self, port: u8, pkey_index: u16, access: Access) -> Result<(), Error> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            pkey_index,
            port_num: port,
            qp_access_flags: access.bits(),
            ..Default::default()
        };
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
    }

    /// The same of an iWARP device, whose connections have their port by their address.
    pub fn init_for_manager(&self, access: Access) -> Result<(), Error> {
        let (qp_state, qp_access_flags) = (IBV_QPS_INIT, access.bits());
        let mut attr = ibv_qp_attr { qp_state, qp_access_flags, ..Default::default() };
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS)
    }

    /// From INIT to RTR.
    pub fn ready_to_receive(&self, to: &Ready) -> Result<(), Error> {
        let route = |(own, gid): (Gid, [u8; 16])| ibv_global_route {
            dgid: ibv_gid { raw: gid },
            sgid_index: own.index,
            hop_limit: 64,
            traffic_class: to.traffic_class,
            flow_label: 0,
        };
        let ah_attr = ibv_ah_attr {
            grh: to.gid.map(route).unwrap_or_default(),
            dlid: to.lid,
            sl: to.service_level,
            is_global: to.gid.is_some().into(),
            port_num: to.port,
            ..Default::default()
        };
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: to.mtu,
            dest_qp_num: to.qpn,
            rq_psn: to.psn,
            ah_attr,
            max_dest_rd_atomic: to.max_reads,
            min_rnr_timer: to.rnr_timer,
            ..Default::default()
        };
        let numbers = IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
        let limits = IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_AV | numbers | limits)
    }

    /// From RTR to RTS.
    pub fn ready_to_send(&self, how: &ToRts) -> Result<(), Error> {
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            sq_psn: how.psn,
            timeout: how.timeout,
            retry_cnt: how.retries,
            rnr_retry: how.rnr_retries,
            max_rd_atomic: how.max_reads,
            ..Default::default()
        };
        let retries = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
        self.modify(&mut attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC | retries)
    }

    /// Its state, and what it has.
    pub fn query(&self) -> Result<Attributes, Error> {
        let (mut attr, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
        let query = self.pd.context().functions().ibv_query_qp;
        let mask = (IBV_QP_STATE | IBV_QP_CAP) as c_int;
        // SAFETY: a queue pair of this library, and memory for both.
        let code = unsafe { query(self.raw.as_ptr(), &raw mut attr, mask, &raw mut init) };
        Error::check("ibv_query_qp", code)?;
        Ok(Attributes { state: attr.qp_state, cap: QpInit::of(attr.cap, self.granted.signal_all) })
    }

    /// Posts a list of send requests. An error has the number of those that were taken; of most drivers it is
    /// ENOMEM where the queue has no room for the next one.
    ///
    /// # Safety
    /// The list and its pieces are readable. Until the completion of a request (or of a later one of this
    /// queue pair that has one) its memory is registered, and as the operation needs it: the source is not
    /// written, what is written is unused by others. With IBV_SEND_INLINE only until the call returns.
    #[inline]
    pub unsafe fn post_send(&self, first: &mut ibv_send_wr) -> Result<(), (usize, Error)> {
        let mut bad = null_mut();
        let first: *mut ibv_send_wr = first;
        // SAFETY: a queue pair of this library; the caller's promise.
        match unsafe { (self.send)(self.raw.as_ptr(), first, &raw mut bad) } {
            0 => Ok(()),
            // SAFETY: the caller's list, which the call has not changed, and where it stopped.
            code => Err(unsafe { not_posted(code, first, bad) }),
        }
    }

    /// Posts one receive, whose completion has `id`. Of most drivers ENOMEM where the queue has no room. Not
    /// where a shared receive queue serves.
    ///
    /// # Safety
    /// Until its completion the memory is registered and unused by others.
    pub unsafe fn post_recv(&self, id: u64, sges: &[ibv_sge]) -> Result<(), Error> {
        let mut wr = receive(id, sges);
        let mut bad = null_mut();
        // SAFETY: a queue pair of this library, and a list of one request, read during the call alone.
        Error::check("ibv_post_recv", unsafe { (self.recv)(self.raw.as_ptr(), &raw mut wr, &raw mut bad) })
    }

    /// Whether bytes of each write arrive in ascending order of their addresses. A library that cannot say:
    /// no.
    pub fn writes_in_order(&self) -> bool {
        let query = self.pd.context().functions().data_in_order;
        // SAFETY: a queue pair of this library.
        query.is_some_and(|query| unsafe { query(self.raw.as_ptr(), crate::IBV_WR_RDMA_WRITE, 0) } == 1)
    }
}

/// How many of a list of requests were taken, of which `bad` was not, and why.
///
/// # Safety
/// The list is readable, and ends in null.
#[cold]
unsafe fn not_posted(code: c_int, first: *mut ibv_send_wr, bad: *mut ibv_send_wr) -> (usize, Error) {
    // SAFETY: the caller's promise.
    let list = core::iter::successors(Some(first), |wr| Some(unsafe { (**wr).next }));
    let taken = list.take_while(|wr| !wr.is_null() && *wr != bad).count();
    (taken, Error::of("ibv_post_send", code))
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Qp { granted, pd, cqs, srq, .. } = self;
        let mut f = f.debug_struct("Qp");
        f.field("number", &self.number()).field("granted", granted).field("pd", pd);
        f.field("cqs", cqs).field("srq", srq).finish()
    }
}

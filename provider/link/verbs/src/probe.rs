//! Transfers by which on-demand registrations show that the device serves them.
//!
//! ibv_reg_mr(3) grants on-demand registrations of memory whose pages the device cannot fault in, and there
//! are drivers that copy wrong bytes where memory does not begin with a page (rxe of Linux 7.3). So messages
//! go from one queue pair to another one of this device: once of some packets, not at the beginning of a page
//! and compared; and for each registration of its first and its last byte. They use local keys alone: no peer
//! gets a right to memory by them.

use std::time::{Duration, Instant};

use hmem::Span;
use rdma_sys::{
    Access, Cq, Gid, IBV_SEND_SIGNALED, IBV_WC_SUCCESS, IBV_WR_SEND, Pd, Qp, QpInit, Ready, ToRts,
    ibv_send_wr, ibv_sge, ibv_wc,
};

use crate::address::Address;
use crate::memory::Memory;
use crate::status::refused;

/// What is compared: where in memory of whole pages, and how long. Packets have 4096 bytes at most.
const OFF: usize = 100;
const LEN: usize = 10_000;
const ROOM: usize = 16 << 10;
/// How long a transfer may take.
const LONGEST: Duration = Duration::from_secs(2);
/// An acknowledgement is waited for 67 ms, as often as may be.
const HOW: ToRts = ToRts { psn: 0, timeout: 14, retries: 7, rnr_retries: 7, max_reads: 1 };

/// A call that refused, or what was wrong, and an errno.
type Refused = (&'static str, i32);

/// Two queue pairs of one device that are connected, and places for what goes between them.
#[derive(Debug)]
struct Loop {
    /// The first one sends, the other one receives. They are destroyed first, and access no memory then.
    pair: [Qp; 2],
    cq: Cq,
    /// What is pinned: the first place is received into, the second one sent from.
    places: Memory,
    /// What is not.
    own: Memory,
}

/// How a port is reached from itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own {
    /// That of packets with a GRH.
    pub(crate) gid: Option<Gid>,
    pub(crate) lid: u16,
    pub(crate) port: u8,
    /// `enum ibv_mtu`.
    pub(crate) mtu: u8,
}

/// On-demand registrations of a device.
#[derive(Debug)]
pub(crate) struct Probe {
    pd: Pd,
    own: Own,
    by: Option<Loop>,
    /// Whether the right bytes came, once that is known.
    outcome: Option<Result<(), Refused>>,
}

impl Loop {
    fn new(pd: &Pd, own: &Own) -> Result<Loop, Refused> {
        let cq = Cq::new(pd.context(), 8, None, 0, 0).map_err(refused)?;
        let init = QpInit {
            max_send_wr: 2,
            max_recv_wr: 2,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            signal_all: false,
        };
        let make = || Qp::new(pd, &cq, &cq, None, init).map_err(refused);
        let pair = [make()?, make()?];
        // A stranger knows neither.
        let draw = || Address::draw_psn().map_err(|_| ("getrandom", libc::EAGAIN));
        let psns = [draw()?, draw()?];
        for (at, one) in pair.iter().enumerate() {
            let other = &pair[1 - at];
            one.init(own.port, 0, Access::LOCAL_READ).map_err(refused)?;
            let ready = Ready {
                qpn: other.number(),
                psn: psns[1 - at],
                mtu: own.mtu.into(),
                gid: own.gid.map(|gid| (gid, gid.bytes)),
                lid: own.lid,
                port: own.port,
                traffic_class: 0,
                service_level: 0,
                max_reads: 1,
                rnr_timer: 12,
            };
            let how = ToRts { psn: psns[at], ..HOW };
            one.ready_to_receive(&ready).and_then(|()| one.ready_to_send(&how)).map_err(refused)?;
        }
        let places = Memory::new(pd, 2, ROOM).map_err(|_| ("memory of a probe", libc::ENOMEM))?;
        let own = Memory::with(pd, 1, ROOM, Access::LOCAL_WRITE.and(Access::ON_DEMAND));
        let own = own.map_err(|_| ("ibv_reg_mr of memory on demand", libc::EINVAL))?;
        Ok(Loop { pair, cq, places, own })
    }

    /// Sends what is at `from` to `to`, which have one length.
    ///
    /// # Safety
    /// Both are in memory that stays until this loop is dropped, or until this has returned `Ok`; `to` is
    /// used by nothing else.
    unsafe fn send(&self, from: ibv_sge, to: ibv_sge) -> Result<(), Refused> {
        const CALL: &str = "a transfer of memory on demand";
        // SAFETY: the caller's promise.
        unsafe { self.pair[1].post_recv(0, &[to]) }.map_err(refused)?;
        let mut from = from;
        let mut request = ibv_send_wr {
            sg_list: &raw mut from,
            num_sge: 1,
            opcode: IBV_WR_SEND,
            send_flags: IBV_SEND_SIGNALED,
            ..Default::default()
        };
        // SAFETY: a list of one request with one piece; the caller's promise.
        unsafe { self.pair[0].post_send(&mut request) }.map_err(|(_, e)| refused(e))?;
        let until = Instant::now() + LONGEST;
        let (mut left, mut found) = (2, [ibv_wc::default(); 2]);
        while left > 0 {
            let n = self.cq.poll(&mut found).map_err(refused)?;
            if found[..n].iter().any(|wc| wc.status != IBV_WC_SUCCESS) {
                return Err((CALL, libc::EFAULT));
            }
            left -= n.min(left);
            if n == 0 && Instant::now() >= until {
                return Err((CALL, libc::ETIMEDOUT));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Whether the bytes that come from on-demand memory, and those that go there, are right.
    fn compare(&mut self) -> Result<(), Refused> {
        let bytes = |seed: usize| (0..LEN).map(move |at| (at * 7 + at / 251 + seed) as u8);
        let put =
            |to: &mut [u8], seed| to[OFF..OFF + LEN].iter_mut().zip(bytes(seed)).for_each(|(t, b)| *t = b);
        let is = |of: &[u8], seed| of[OFF..OFF + LEN].iter().copied().eq(bytes(seed));
        let part = |whole: ibv_sge| ibv_sge { addr: whole.addr + OFF as u64, length: LEN as u32, ..whole };
        put(self.own.bytes_mut(0), 1);
        put(self.places.bytes_mut(1), 2);
        // SAFETY: places of this loop, which nothing else uses.
        unsafe { self.send(part(self.own.whole(0)), part(self.places.whole(0))) }?;
        let has_come = is(self.places.bytes(0), 1);
        // SAFETY: as above.
        unsafe { self.send(part(self.places.whole(1)), part(self.own.whole(0))) }?;
        let is_right = has_come && is(self.own.bytes(0), 2);
        if is_right {
            Ok(())
        } else {
            Err(("what a transfer of memory on demand has brought", libc::EBADMSG))
        }
    }

    /// Whether the device reads a byte of memory, and writes it, as it was, if it `writes` that memory.
    ///
    /// # Safety
    /// As [`Loop::send`]; a byte that is written is used by nothing else.
    unsafe fn touch(&mut self, byte: Span, lkey: u32, writes: bool) -> Result<(), Refused> {
        let at = ibv_sge { addr: byte.addr(), length: 1, lkey };
        // SAFETY: the caller's promise, and a place that nothing else uses.
        unsafe { self.send(at, self.places.sge(0, 1)) }?;
        if !writes {
            return Ok(());
        }
        if hmem::read(&[byte], 0, &mut self.places.bytes_mut(1)[..1]) < 1 {
            return Err(("memory to be written", libc::EFAULT));
        }
        // SAFETY: as above.
        unsafe { self.send(self.places.sge(1, 1), at) }
    }
}

impl Probe {
    pub(crate) fn new(pd: &Pd, own: Own) -> Probe {
        Probe { pd: pd.clone(), own, by: None, outcome: None }
    }

    /// Whether the device has on-demand registrations, and copies the right bytes.
    pub(crate) fn check(&mut self) -> Result<(), Refused> {
        if let Some(outcome) = self.outcome {
            return outcome;
        }
        let has = self.pd.context().has_on_demand();
        let outcome = if has { self.with(Loop::compare) } else { Err(("odp_caps", libc::EOPNOTSUPP)) };
        // What there was no room for may be found out later.
        let is_for_now = outcome.is_err_and(|(_, errno)| register::is_for_now(errno));
        self.outcome = Some(outcome).filter(|_| !is_for_now);
        outcome
    }

    /// Whether the device faults in the first and the last byte of memory.
    ///
    /// # Safety
    /// The memory is registered on demand, for accesses of this side, with this key, until this returns, and
    /// nothing else uses it until then if it is to be written.
    pub(crate) unsafe fn touch(&mut self, span: Span, lkey: u32, writes: bool) -> Result<(), Refused> {
        let bytes = [span.part(0, 1), span.part(span.len().saturating_sub(1), 1)];
        self.with(|by| {
            // SAFETY: the caller's promise; a loop that has failed is gone when this returns.
            bytes.into_iter().flatten().try_for_each(|byte| unsafe { by.touch(byte, lkey, writes) })
        })
    }

    /// Does something by the queue pairs, which are in error, and not used again, if it fails.
    fn with(&mut self, what: impl FnOnce(&mut Loop) -> Result<(), Refused>) -> Result<(), Refused> {
        let mut by = match self.by.take() {
            Some(by) => by,
            None => Loop::new(&self.pd, &self.own)?,
        };
        what(&mut by)?;
        self.by = Some(by);
        Ok(())
    }
}

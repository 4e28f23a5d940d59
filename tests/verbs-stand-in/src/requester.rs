//! The sending half of queue pairs.

use std::time::{Duration, Instant};

use rdma_sys as ibv;

use crate::objects::{Local, Plain, Qp, Request};
use crate::packet::{Kind, PIECE, Packet};
use crate::settings::settings;
use crate::state::State;

/// Of a sequence number.
pub const MASK: u32 = 0xff_ffff;

/// What a wait of 5 bits means, in units of 10 us (InfiniBand specification, table 45).
const RNR_TIMERS: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1_024, 1_536, 2_048,
    3_072, 4_096, 6_144, 8_192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

fn opcode(kind: Kind) -> u32 {
    match kind {
        Kind::Write => ibv::IBV_WC_RDMA_WRITE,
        Kind::Read => ibv::IBV_WC_RDMA_READ,
        Kind::FetchAdd => ibv::IBV_WC_FETCH_ADD,
        Kind::CompareSwap => ibv::IBV_WC_COMP_SWAP,
        Kind::Nothing => ibv::IBV_WC_BIND_MW,
        _ => ibv::IBV_WC_SEND,
    }
}

fn returns(kind: Kind) -> bool {
    matches!(kind, Kind::Read | Kind::FetchAdd | Kind::CompareSwap)
}

impl State {
    /// Sends what can be sent. `true`: something was done.
    pub fn transmit(&mut self, qpn: u32) -> bool {
        let mut any = false;
        while self.transmit_one(qpn) {
            any = true;
        }
        any
    }

    fn transmit_one(&mut self, qpn: u32) -> bool {
        let Some(qp) = self.qps.get(&qpn) else { return false };
        let (device, pd, path, sending) = (qp.device, qp.pd, qp.path, &qp.sending);
        if qp.state != ibv::IBV_QPS_RTS || sending.paused.is_some_and(|until| until > Instant::now()) {
            return false;
        }
        let Some(request) = sending.requests.get(sending.next) else { return false };
        if let Some(status) = request.planned {
            // What was posted before it completes first.
            return sending.next == 0 && self.fail(qpn, status);
        }
        let earlier = sending.requests.range(..sending.next).filter(|r| returns(r.kind)).count();
        let waits = request.fence && earlier > 0
            || returns(request.kind) && earlier >= path.max_reads.0.max(1).into();
        if waits || !self.has_room(path.peer) {
            return false;
        }
        let is_bind = matches!(request.local, Some(Local::Bind { .. }));
        if is_bind && !request.is_alone && settings().devices[device].is("repeats") {
            // What was posted before is sent again, and this with it.
            self.flush(qpn);
            return true;
        }
        let (psn, sent, total) = ((sending.psn + sending.next as u32) & MASK, request.sent, request.total);
        let mut request = request.clone();
        let piece = if returns(request.kind) { 0 } else { (total - sent).min(PIECE as u32) };
        let local = request.local.take().map_or(Ok(()), |what| self.local(qpn, what));
        let data = match local.and_then(|()| self.payload(pd, &request, sent, piece)) {
            Ok(data) => data,
            Err(status) => {
                request.planned = Some(status);
                return self.replace(qpn, request);
            }
        };
        let at = self.devices[&device].at;
        let is_last = returns(request.kind) || sent + piece == total;
        let packet = Packet {
            kind: request.kind,
            from: at,
            from_qpn: qpn,
            to_qpn: path.qpn,
            to_port: path.peer_port,
            psn,
            offset: sent,
            total,
            imm: request.imm,
            solicited: request.solicited,
            remote: request.remote,
            rkey: request.rkey,
            operands: request.operands,
            data,
            ..Default::default()
        };
        // A port that is down loses what it should send.
        if self.devices[&device].is_up(path.port) {
            self.send(path.peer, packet);
        }
        request.sent = sent + piece;
        self.replace(qpn, request);
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.sending.next += usize::from(is_last);
            qp.sending.deadline = qp.sending.deadline.or_else(|| deadline(path.timeout));
        }
        true
    }

    fn replace(&mut self, qpn: u32, request: Request) -> bool {
        let place = self.qps.get_mut(&qpn).and_then(|qp| {
            let next = qp.sending.next;
            qp.sending.requests.get_mut(next)
        });
        place.map(|place| *place = request).is_some()
    }

    /// The next bytes of a request, after its memory was checked.
    fn payload(&self, pd: usize, request: &Request, sent: u32, len: u32) -> Result<Vec<u8>, u32> {
        let refused = |_| match self.is_rxe(pd) {
            true => ibv::IBV_WC_WR_FLUSH_ERR,
            false => ibv::IBV_WC_LOC_PROT_ERR,
        };
        if returns(request.kind) {
            let write = ibv::IBV_ACCESS_LOCAL_WRITE;
            return self.check_pieces(pd, &request.pieces, write).map(|()| Vec::new()).map_err(refused);
        }
        match &request.inline {
            Some(bytes) => Ok(bytes[sent as usize..(sent + len) as usize].to_vec()),
            None => self.gather(pd, &request.pieces, sent, len as usize).map_err(refused),
        }
    }

    pub fn is_rxe(&self, pd: usize) -> bool {
        self.pds.get(&pd).is_some_and(|device| settings().devices[*device].is("rxe"))
    }

    /// An answer of the peer's.
    pub fn answered(&mut self, packet: Packet) {
        let Some(qp) = self.qps.get_mut(&packet.to_qpn) else { return };
        let from = (qp.path.peer, qp.path.qpn) == (packet.from, packet.from_qpn);
        let at = ((packet.psn.wrapping_sub(qp.sending.psn)) & MASK) as usize;
        if !from || qp.state != ibv::IBV_QPS_RTS || at > qp.sending.next {
            return;
        }
        let (qpn, pd, path) = (packet.to_qpn, qp.pd, qp.path);
        let Some(request) = qp.sending.requests.get_mut(at).filter(|r| !r.done) else { return };
        match packet.kind {
            Kind::Ack => request.done = matches!(request.kind, Kind::Send | Kind::Write | Kind::Nothing),
            Kind::ReadData if request.kind == Kind::Read && packet.offset == request.answered => {
                let (offset, pieces) = (request.answered, request.pieces.clone());
                request.answered += (packet.data.len() as u32).min(request.total - offset);
                request.done = request.answered == request.total;
                if self.scatter(pd, &pieces, offset, &packet.data).is_err() {
                    self.plan(qpn, at, ibv::IBV_WC_LOC_PROT_ERR);
                }
            }
            Kind::AtomicData if returns(request.kind) && request.kind != Kind::Read => {
                let pieces = request.pieces.clone();
                request.done = true;
                if self.scatter(pd, &pieces, 0, &packet.operands[0].to_ne_bytes()).is_err() {
                    self.plan(qpn, at, ibv::IBV_WC_LOC_PROT_ERR);
                }
            }
            Kind::NotReady => {
                let sending = &mut qp.sending;
                if path.rnr_retry != 7 && sending.rnr_tries >= path.rnr_retry {
                    self.plan(qpn, at, ibv::IBV_WC_RNR_RETRY_EXC_ERR);
                } else {
                    // The peer has answered.
                    sending.tries = 0;
                    sending.rnr_tries = sending.rnr_tries.saturating_add(1);
                    let wait = RNR_TIMERS[(packet.code & 31) as usize] * 10;
                    sending.paused = Some(Instant::now() + Duration::from_micros(wait.into()));
                    self.go_back(qpn, at);
                }
            }
            Kind::Nak => self.plan(qpn, at, packet.code),
            _ => {}
        }
        self.retire(qpn);
    }

    /// The request at `at` fails, as soon as those before it are complete.
    fn plan(&mut self, qpn: u32, at: usize, status: u32) {
        self.go_back(qpn, at);
        let request = self.qps.get_mut(&qpn).and_then(|qp| qp.sending.requests.get_mut(at));
        if let Some(request) = request {
            (request.planned, request.done) = (Some(status), false);
        }
    }

    fn go_back(&mut self, qpn: u32, at: usize) {
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        qp.sending.next = at.min(qp.sending.next);
        qp.sending.deadline = None;
        let again = qp.sending.requests.range_mut(at..).filter(|r| !r.done);
        again.for_each(|r| (r.sent, r.answered) = (0, 0));
    }

    /// Completes what is done, in order.
    fn retire(&mut self, qpn: u32) {
        loop {
            let Some(qp) = self.qps.get_mut(&qpn) else { return };
            let signal_all = qp.signal_all;
            let sending = &mut qp.sending;
            if sending.requests.front().is_none_or(|r| !r.done) {
                return;
            }
            let Some(request) = sending.requests.pop_front() else { return };
            sending.psn = (sending.psn + 1) & MASK;
            sending.next = sending.next.saturating_sub(1);
            (sending.tries, sending.rnr_tries) = (0, 0);
            sending.deadline = if sending.next > 0 { deadline(qp.path.timeout) } else { None };
            let is_long = request.kind == Kind::Write && request.total > 128 << qp.path.mtu;
            sending.again = if is_long { request.pieces.clone() } else { Vec::new() };
            let cq = qp.send_cq;
            if request.signaled || signal_all {
                self.finish(qpn, cq, &request, ibv::IBV_WC_SUCCESS);
            }
        }
    }

    fn finish(&mut self, qpn: u32, cq: u32, request: &Request, status: u32) {
        let plain = Plain {
            id: request.id,
            status,
            opcode: opcode(request.kind),
            len: if returns(request.kind) { request.total } else { 0 },
            qpn,
            ..Default::default()
        };
        if let Some(qp) = self.qps.get(&qpn).filter(|_| status == ibv::IBV_WC_SUCCESS) {
            *self.moved.entry((qp.device, qp.path.port)).or_default() += u64::from(request.total);
        }
        self.complete(cq, plain, Some((qpn, request.index + 1)), false);
    }

    /// The first request ends with this status, and the queue pair with it.
    pub fn fail(&mut self, qpn: u32, status: u32) -> bool {
        let Some(qp) = self.qps.get_mut(&qpn) else { return false };
        let cq = qp.send_cq;
        if let Some(request) = qp.sending.requests.pop_front() {
            self.finish(qpn, cq, &request, status);
        }
        self.flush(qpn);
        true
    }

    /// Memory is gone that a device which `repeats` still reads, of its own or of a peer.
    pub fn miss(&mut self, key: u32) {
        let repeats = |qp: &Qp| settings().devices[qp.device].is("repeats");
        let is_read = |qp: &Qp| qp.receiving.again == Some(key);
        let reads = |qp: &Qp| is_read(qp) || qp.sending.again.iter().any(|piece| piece.key == key);
        let missing = self.qps.iter().filter(|(_, qp)| repeats(qp) && reads(qp));
        let missing: Vec<u32> = missing.map(|(qpn, _)| *qpn).collect();
        missing.into_iter().for_each(|qpn| self.flush(qpn));
    }

    /// Into the error state: all that is posted completes.
    pub fn flush(&mut self, qpn: u32) {
        self.manager.hang_up(qpn);
        let Some(qp) = self.qps.get_mut(&qpn) else { return };
        let was = std::mem::replace(&mut qp.state, ibv::IBV_QPS_ERR);
        unsafe { (*(qp.raw as *mut ibv::ibv_qp)).state = ibv::IBV_QPS_ERR };
        let (send_cq, recv_cq, srq) = (qp.send_cq, qp.recv_cq, qp.srq);
        let requests = std::mem::take(&mut qp.sending.requests);
        (qp.sending.next, qp.sending.deadline, qp.sending.paused) = (0, None, None);
        qp.sending.again.clear();
        let receiving = &mut qp.receiving;
        receiving
            .answers
            .retain(|answer| matches!(answer, crate::objects::Answer::Packet(p) if p.kind == Kind::Nak));
        let receives: Vec<_> = receiving.into.take().into_iter().chain(receiving.posted.drain(..)).collect();
        for request in requests {
            self.finish(qpn, send_cq, &request, ibv::IBV_WC_WR_FLUSH_ERR);
        }
        for receive in receives {
            let (status, opcode) = (ibv::IBV_WC_WR_FLUSH_ERR, ibv::IBV_WC_RECV);
            self.complete(
                recv_cq,
                Plain { id: receive.id, status, opcode, qpn, ..Default::default() },
                None,
                false,
            );
        }
        if srq.is_some() && was != ibv::IBV_QPS_ERR {
            self.raise_of_qp(qpn, ibv::IBV_EVENT_QP_LAST_WQE_REACHED);
        }
    }

    /// What is due of the sending half; says when it is next.
    pub fn time_out(&mut self, qpn: u32) -> Option<Instant> {
        let now = Instant::now();
        let qp = self.qps.get_mut(&qpn)?;
        if qp.sending.paused.is_some_and(|until| until <= now) {
            qp.sending.paused = None;
        }
        if qp.sending.deadline.is_some_and(|deadline| deadline <= now) {
            qp.sending.tries += 1;
            if qp.sending.tries > qp.path.retry {
                self.fail(qpn, ibv::IBV_WC_RETRY_EXC_ERR);
            } else {
                self.go_back(qpn, 0);
            }
        }
        let sending = &self.qps.get(&qpn)?.sending;
        [sending.paused, sending.deadline].into_iter().flatten().min()
    }
}

/// When an answer is late.
fn deadline(timeout: u8) -> Option<Instant> {
    let wait = Duration::from_nanos(4096 << (timeout & 31));
    (timeout & 31 != 0).then(|| Instant::now() + wait)
}

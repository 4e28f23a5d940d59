//! The receiving half of queue pairs.

use rdma_sys as ibv;

use crate::buffers::Refused;
use crate::objects::{Answer, Plain, Receive};
use crate::packet::{Kind, PIECE, Packet};
use crate::requester::MASK;
use crate::settings::settings;
use crate::state::State;

/// How many results of atomics are kept for requests that come again.
const KEPT: usize = 32;

impl State {
    /// A packet from a peer.
    pub fn arrived(&mut self, packet: Packet) {
        if packet.kind.is_answer() {
            return self.answered(packet);
        }
        let Some(qp) = self.qps.get_mut(&packet.to_qpn) else { return };
        let known = (qp.path.peer, qp.path.qpn) == (packet.from, packet.from_qpn);
        if !known || !matches!(qp.state, ibv::IBV_QPS_RTR | ibv::IBV_QPS_RTS) {
            return;
        }
        match packet.psn.wrapping_sub(qp.receiving.psn) & MASK {
            0 => self.next(packet),
            ahead if ahead < 0x80_0000 => {}
            _ => self.again(packet),
        }
    }

    fn next(&mut self, packet: Packet) {
        let Some(qp) = self.qps.get_mut(&packet.to_qpn) else { return };
        if packet.offset == 0 {
            qp.receiving.arrived = 0;
        }
        if packet.offset != qp.receiving.arrived {
            return;
        }
        let remote = |bit| qp.path.access & bit != 0;
        let allowed = match packet.kind {
            Kind::Write => remote(ibv::IBV_ACCESS_REMOTE_WRITE),
            Kind::Read => remote(ibv::IBV_ACCESS_REMOTE_READ),
            Kind::FetchAdd | Kind::CompareSwap => {
                remote(ibv::IBV_ACCESS_REMOTE_ATOMIC) && packet.remote % 8 == 0
            }
            _ => true,
        };
        if !allowed {
            return self.refuse(&packet, ibv::IBV_WC_REM_INV_REQ_ERR, ibv::IBV_EVENT_QP_REQ_ERR);
        }
        qp.receiving.again = (packet.kind == Kind::Read).then_some(packet.rkey);
        match packet.kind {
            Kind::Send => self.message(packet),
            Kind::Write => self.write(packet),
            Kind::Read => self.read(packet),
            Kind::Nothing => {
                self.advance(packet.to_qpn);
                self.acknowledge(&packet);
            }
            _ => self.atomic_request(packet),
        }
    }

    /// The next receive: kept for the message until it is whole.
    fn receive(&mut self, qpn: u32) -> Option<Receive> {
        let qp = self.qps.get_mut(&qpn)?;
        if let Some(receive) = qp.receiving.into.take() {
            return Some(receive);
        }
        let Some(number) = qp.srq else { return qp.receiving.posted.pop_front() };
        let srq = self.srqs.get_mut(&number)?;
        let receive = srq.posted.pop_front()?;
        if srq.limit > srq.posted.len() as u32 {
            srq.limit = 0;
            let raw = srq.raw;
            let context = unsafe { (*(raw as *const ibv::ibv_srq)).context } as usize;
            self.raise(context, ibv::IBV_EVENT_SRQ_LIMIT_REACHED, raw);
        }
        Some(receive)
    }

    fn message(&mut self, packet: Packet) {
        let qpn = packet.to_qpn;
        let Some(receive) = self.receive(qpn) else { return self.not_ready(&packet) };
        let pd = self.qps[&qpn].pd;
        let room: u64 = receive.pieces.iter().map(|p| u64::from(p.len)).sum();
        if u64::from(packet.total) > room {
            let rxe = self.is_rxe(pd);
            let own = if rxe { ibv::IBV_WC_LOC_QP_OP_ERR } else { ibv::IBV_WC_LOC_LEN_ERR };
            let peer = if rxe { ibv::IBV_WC_REM_OP_ERR } else { ibv::IBV_WC_REM_INV_REQ_ERR };
            self.received(&packet, receive, own, ibv::IBV_WC_RECV);
            return self.refuse(&packet, peer, ibv::IBV_EVENT_QP_REQ_ERR);
        }
        // The domain of a shared queue may be another one.
        let shared = self.qps[&qpn].srq.and_then(|number| self.srqs.get(&number));
        let into = shared.map_or(pd, |srq| srq.pd);
        if self.scatter(into, &receive.pieces, packet.offset, &packet.data) == Err(Refused) {
            self.received(&packet, receive, ibv::IBV_WC_LOC_PROT_ERR, ibv::IBV_WC_RECV);
            return self.refuse(&packet, ibv::IBV_WC_REM_OP_ERR, ibv::IBV_EVENT_QP_FATAL);
        }
        if self.progress(&packet) {
            self.received(&packet, receive, ibv::IBV_WC_SUCCESS, ibv::IBV_WC_RECV);
            self.acknowledge(&packet);
        } else if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.receiving.into = Some(receive);
        }
    }

    fn write(&mut self, packet: Packet) {
        let (qpn, write) = (packet.to_qpn, ibv::IBV_ACCESS_REMOTE_WRITE);
        let whole = match packet.total {
            0 => Ok(()),
            total => self.granted_to_peer(qpn, packet.rkey, packet.remote, total.into(), write).map(drop),
        };
        let at = packet.remote.wrapping_add(packet.offset.into());
        if whole.and_then(|()| self.write_remote(qpn, packet.rkey, at, &packet.data)).is_err() {
            return self.refuse(&packet, ibv::IBV_WC_REM_ACCESS_ERR, ibv::IBV_EVENT_QP_ACCESS_ERR);
        }
        let is_last = packet.offset + packet.data.len() as u32 >= packet.total;
        let receive = match packet.imm.filter(|_| is_last) {
            Some(_) => match self.receive(packet.to_qpn) {
                Some(receive) => Some(receive),
                None => return self.not_ready(&packet),
            },
            None => None,
        };
        if self.progress(&packet) {
            if let Some(receive) = receive {
                self.received(&packet, receive, ibv::IBV_WC_SUCCESS, ibv::IBV_WC_RECV_RDMA_WITH_IMM);
            }
            self.acknowledge(&packet);
        }
    }

    fn read(&mut self, packet: Packet) {
        let (qpn, total, read) = (packet.to_qpn, packet.total, ibv::IBV_ACCESS_REMOTE_READ);
        let found = self.granted_to_peer(qpn, packet.rkey, packet.remote, total.into(), read);
        if total > 0 && found.is_err() {
            return self.refuse(&packet, ibv::IBV_WC_REM_ACCESS_ERR, ibv::IBV_EVENT_QP_ACCESS_ERR);
        }
        self.advance(packet.to_qpn);
        let Packet { psn, remote, rkey, .. } = packet;
        self.answer(packet.to_qpn, Answer::Read { psn, remote, rkey, total, sent: 0 });
    }

    fn atomic_request(&mut self, packet: Packet) {
        let [first, second] = packet.operands;
        let with = |old: u64| match packet.kind {
            Kind::FetchAdd => old.wrapping_add(first),
            _ if old == first => second,
            _ => old,
        };
        let Ok(old) = self.atomic(packet.to_qpn, packet.rkey, packet.remote, with) else {
            return self.refuse(&packet, ibv::IBV_WC_REM_ACCESS_ERR, ibv::IBV_EVENT_QP_ACCESS_ERR);
        };
        self.advance(packet.to_qpn);
        if let Some(qp) = self.qps.get_mut(&packet.to_qpn) {
            qp.receiving.atomics.push_back((packet.psn, old));
            if qp.receiving.atomics.len() > KEPT {
                qp.receiving.atomics.pop_front();
            }
        }
        self.reply(&packet, Packet { kind: Kind::AtomicData, operands: [old, 0], ..Default::default() });
    }

    /// A request that was served: its answer is on its way, or late.
    fn again(&mut self, packet: Packet) {
        let is_last = packet.offset + packet.data.len() as u32 >= packet.total;
        match packet.kind {
            Kind::Read => {
                let Packet { psn, remote, rkey, total, .. } = packet;
                self.answer(packet.to_qpn, Answer::Read { psn, remote, rkey, total, sent: 0 });
            }
            Kind::FetchAdd | Kind::CompareSwap => {
                let kept = self.qps.get(&packet.to_qpn).map(|qp| &qp.receiving.atomics);
                let kept = kept.and_then(|k| k.iter().find(|(psn, _)| *psn == packet.psn));
                if let Some(&(_, old)) = kept {
                    let operands = [old, 0];
                    self.reply(&packet, Packet { kind: Kind::AtomicData, operands, ..Default::default() });
                }
            }
            _ if is_last => self.acknowledge(&packet),
            _ => {}
        }
    }

    /// Notes what arrived. `true`: the message is whole.
    fn progress(&mut self, packet: &Packet) -> bool {
        let Some(qp) = self.qps.get_mut(&packet.to_qpn) else { return false };
        qp.receiving.arrived = packet.offset + packet.data.len() as u32;
        let whole = qp.receiving.arrived >= packet.total;
        if whole {
            self.advance(packet.to_qpn);
        }
        whole
    }

    fn advance(&mut self, qpn: u32) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.receiving.psn = (qp.receiving.psn + 1) & MASK;
            qp.receiving.arrived = 0;
        }
    }

    fn received(&mut self, packet: &Packet, receive: Receive, status: u32, opcode: u32) {
        let (qpn, imm) = (packet.to_qpn, packet.imm);
        let cq = self.qps[&qpn].recv_cq;
        let plain =
            Plain { id: receive.id, status, opcode, len: packet.total, imm, qpn, from: packet.from_qpn };
        self.complete(cq, plain, None, packet.solicited);
    }

    fn acknowledge(&mut self, packet: &Packet) {
        self.reply(packet, Packet { kind: Kind::Ack, ..Default::default() });
    }

    fn not_ready(&mut self, packet: &Packet) {
        let qp = &self.qps[&packet.to_qpn];
        if settings().devices[qp.device].is("iwarp") {
            // A message without a receive ends the connection.
            return self.flush(packet.to_qpn);
        }
        let code = self.qps[&packet.to_qpn].path.rnr_timer.into();
        self.reply(packet, Packet { kind: Kind::NotReady, code, ..Default::default() });
    }

    /// The peer's request fails, and this queue pair with it.
    fn refuse(&mut self, packet: &Packet, code: u32, event: u32) {
        self.reply(packet, Packet { kind: Kind::Nak, code, ..Default::default() });
        self.raise_of_qp(packet.to_qpn, event);
        self.flush(packet.to_qpn);
    }

    fn reply(&mut self, to: &Packet, packet: Packet) {
        let packet = Packet { psn: to.psn, ..packet };
        self.answer(to.to_qpn, Answer::Packet(packet));
    }

    fn answer(&mut self, qpn: u32, answer: Answer) {
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.receiving.answers.push_back(answer);
        }
    }

    /// Sends answers, in order. `true`: something was done.
    pub fn transmit_answers(&mut self, qpn: u32) -> bool {
        let mut any = false;
        while let Some(qp) = self.qps.get_mut(&qpn) {
            let (path, device) = (qp.path, qp.device);
            let (peer, to_qpn, to_port) = (path.peer, path.qpn, path.peer_port);
            let Some(front) = qp.receiving.answers.front_mut() else { break };
            let (mut packet, whole) = match front {
                Answer::Packet(packet) => (packet.clone(), true),
                Answer::Read { psn, total, sent, .. } => {
                    let (psn, offset, total) = (*psn, *sent, *total);
                    let piece = (total - offset).min(PIECE as u32);
                    let kind = Kind::ReadData;
                    // Its payload is filled in below, where the lock of the queue pair is not held.
                    let data = vec![0; piece as usize];
                    (Packet { kind, psn, offset, total, data, ..Default::default() }, offset + piece == total)
                }
            };
            let read = match front {
                Answer::Read { remote, rkey, sent, .. } => {
                    Some((*rkey, remote.wrapping_add(u64::from(*sent))))
                }
                Answer::Packet(_) => None,
            };
            // Requests that fill the inbox do not keep their answers from it.
            let is_short = read.is_none() && self.is_own(peer);
            if !is_short && !self.has_room(peer) {
                break;
            }
            any = true;
            let mut refused = false;
            if let Some((rkey, at)) = read {
                match self.read_remote(qpn, rkey, at, packet.data.len()) {
                    Ok(data) => packet.data = data,
                    Err(Refused) => {
                        let (kind, code) = (Kind::Nak, ibv::IBV_WC_REM_ACCESS_ERR);
                        packet = Packet { kind, code, psn: packet.psn, ..Default::default() };
                        refused = true;
                    }
                }
            }
            let piece = packet.data.len() as u32;
            let opened = &self.devices[&device];
            packet = Packet { from: opened.at, from_qpn: qpn, to_qpn, to_port, ..packet };
            if opened.is_up(path.port) {
                self.send(peer, packet);
            }
            if let Some(qp) = self.qps.get_mut(&qpn) {
                if whole || refused {
                    qp.receiving.answers.pop_front();
                } else if let Some(Answer::Read { sent, .. }) = qp.receiving.answers.front_mut() {
                    *sent += piece;
                }
            }
            if refused {
                self.raise_of_qp(qpn, ibv::IBV_EVENT_QP_ACCESS_ERR);
                self.flush(qpn);
            }
        }
        any
    }
}

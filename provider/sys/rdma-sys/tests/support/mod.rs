//! Two connected queue pairs over the stand-in, in one process.
#![allow(dead_code, reason = "each test program uses a part")]

use std::time::{Duration, Instant};

use rdma_sys::*;
use stand_in::program::Program;

pub struct Side {
    pub pd: Pd,
    pub cq: Cq,
    pub qp: Qp,
    pub memory: Box<[u8; 4096]>,
    pub mr: Mr,
}

pub const ALL: Access = Access::REMOTE_WRITE.and(Access::REMOTE_READ).and(Access::REMOTE_ATOMIC);

/// The library, and its hooks. Each test program is a process per test (nextest), so settings are the test's.
pub fn library(devices: &str) -> (Library, Program) {
    // SAFETY: before any thread of the stand-in.
    unsafe { std::env::set_var("VERBS_STAND_IN_DEVICES", devices) };
    // SAFETY: as above.
    unsafe { std::env::set_var("VERBS_STAND_IN_FABRIC", format!("test-{}", std::process::id())) };
    let path = stand_in::program::path("verbs_stand_in");
    (Library::open_at(&path).unwrap(), Program::open(path))
}

pub fn side(context: &Context, init: QpInit, srq: Option<&Srq>, pd: &Pd) -> Side {
    let cq = Cq::new(context, 64, None, 0, 0).unwrap();
    let qp = Qp::new(pd, &cq, &cq, srq, init).unwrap();
    let mut memory = Box::new([0; 4096]);
    let at = memory.as_mut_ptr().cast();
    // SAFETY: the memory lives as long as the registration does, in the same structure, but for what the test does.
    let mr = unsafe { pd.register(at, 4096, ALL) }.unwrap();
    Side { pd: pd.clone(), cq, qp, memory, mr }
}

pub const INIT: QpInit = QpInit {
    max_send_wr: 8,
    max_recv_wr: 8,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline: 64,
    signal_all: false,
};

pub fn connect(context: &Context, a: &Side, b: &Side, rnr_retries: u8) {
    let port = context.port(1).unwrap();
    let gid = context.gid(&port, 3).unwrap();
    for (own, peer, psn, peer_psn) in [(a, b, 0xff_fffe, 7), (b, a, 7, 0xff_fffe)] {
        let how = ToRts { psn, timeout: 12, retries: 2, rnr_retries, max_reads: 4 };
        own.join(&port, gid, (peer.qp.number(), peer_psn), &how);
    }
}

pub fn pair(context: &Context) -> (Side, Side) {
    let pd = Pd::new(context).unwrap();
    let (a, b) = (side(context, INIT, None, &pd), side(context, INIT, None, &pd));
    connect(context, &a, &b, 7);
    (a, b)
}

impl Side {
    /// Connects to the queue pair of that number, whose packets begin at that one, at the same address.
    pub fn join(&self, port: &Port, gid: Gid, (qpn, psn): (u32, u32), how: &ToRts) {
        self.qp.init(1, 0, ALL).unwrap();
        let ready = Ready {
            qpn,
            psn,
            mtu: port.attr.active_mtu,
            gid: Some((gid, gid.bytes)),
            lid: 0,
            port: 1,
            traffic_class: 0,
            service_level: 0,
            max_reads: 4,
            rnr_timer: 1,
        };
        self.qp.ready_to_receive(&ready).unwrap();
        self.qp.ready_to_send(how).unwrap();
    }

    pub fn sge(&self, at: usize, length: u32) -> ibv_sge {
        ibv_sge { addr: self.memory.as_ptr() as u64 + at as u64, length, lkey: self.mr.lkey() }
    }

    pub fn recv(&self, id: u64, at: usize, len: u32) {
        // SAFETY: registered, and the test leaves it.
        unsafe { self.qp.post_recv(id, &[self.sge(at, len)]) }.unwrap();
    }

    pub fn send(
        &self,
        id: u64,
        opcode: u32,
        at: usize,
        len: u32,
        remote: Option<(u64, u32)>,
    ) -> Result<(), Error> {
        self.post(id, opcode, at, len, remote, IBV_SEND_SIGNALED, [0; 2])
    }

    #[allow(clippy::too_many_arguments, reason = "a work request has as many")]
    pub fn post(
        &self,
        id: u64,
        opcode: u32,
        at: usize,
        len: u32,
        remote: Option<(u64, u32)>,
        send_flags: u32,
        [compare_add, swap]: [u64; 2],
    ) -> Result<(), Error> {
        let mut sge = self.sge(at, len);
        let mut wr = ibv_send_wr {
            wr_id: id,
            sg_list: &mut sge,
            num_sge: 1,
            opcode,
            send_flags,
            ..Default::default()
        };
        wr.anon1.imm_data = 0x1234u32.to_be();
        let (remote_addr, rkey) = remote.unwrap_or_default();
        if matches!(opcode, IBV_WR_ATOMIC_FETCH_AND_ADD | IBV_WR_ATOMIC_CMP_AND_SWP) {
            wr.wr.atomic = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 { remote_addr, compare_add, swap, rkey };
        } else {
            wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
        }
        // SAFETY: registered, and the test leaves it until the completion.
        unsafe { self.qp.post_send(&mut wr) }.map_err(|(_, error)| error)
    }

    pub fn at(&self, at: usize) -> Option<(u64, u32)> {
        Some((self.memory.as_ptr() as u64 + at as u64, self.mr.rkey()))
    }

    /// The next completion: id, status, length, immediate data.
    pub fn wait(&self) -> ibv_wc {
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let mut wcs = [ibv_wc::default()];
            if self.cq.poll(&mut wcs).unwrap() == 1 {
                return wcs[0];
            }
            assert!(Instant::now() < end, "no completion");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    pub fn status(&self) -> (u64, u32) {
        let wc = self.wait();
        (wc.wr_id, wc.status)
    }
}

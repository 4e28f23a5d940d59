//! Flags that are not offered: each call refuses them, and has done nothing.

use super::*;

const NO: *mut c_void = ptr::null_mut();
const REFUSED: isize = -(fi::FI_EBADFLAGS as isize);
/// Each changes what an operation promises, and none is offered: persistence, another kind of target, another
/// device's part in it.
const NOT_OFFERED: [u64; 5] =
    [fi::FI_COMMIT_COMPLETE, fi::FI_MULTICAST, fi::FI_PEER_TRANSFER, fi::FI_PEER, 1 << 62];

/// An endpoint, its address, and memory of its process that it may write.
struct Ends {
    world: World,
    ep: *mut fi::fid_ep,
    mr: *mut fi::fid_mr,
    to: fi::fi_addr_t,
    iov: *mut libc::iovec,
    there: *mut fi::fi_rma_iov,
    word: *mut u64,
}

impl Ends {
    fn new() -> Ends {
        let world = World::new();
        let (ep, to) = world.enabled(0);
        let (word, here) = (leak(0u64), leak(7u64));
        let mut mr = ptr::null_mut();
        let access = fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
        let at = word.cast::<c_void>().cast_const();
        assert_eq!(call!(world.domain, mr.reg(at, 8, access, 0, 1, 0, &mut mr, NO)), 0);
        let iov = leak(libc::iovec { iov_base: here.cast(), iov_len: 8 });
        let there = leak(fi::fi_rma_iov { addr: 0, len: 8, key: 1 });
        Ends { world, ep, mr, to, iov, there, word }
    }

    fn msg(&self) -> fi::fi_msg {
        fi::fi_msg {
            msg_iov: self.iov,
            iov_count: 1,
            addr: self.to,
            context: context(1),
            ..Default::default()
        }
    }

    fn tagged(&self) -> fi::fi_msg_tagged {
        let (msg_iov, addr) = (self.iov.cast_const(), self.to);
        fi::fi_msg_tagged { msg_iov, iov_count: 1, addr, context: context(1), ..Default::default() }
    }

    fn rma(&self) -> fi::fi_msg_rma {
        fi::fi_msg_rma {
            msg_iov: self.iov,
            iov_count: 1,
            addr: self.to,
            rma_iov: self.there,
            rma_iov_count: 1,
            context: context(1),
            ..Default::default()
        }
    }

    /// One element there, and as many here.
    fn atomic(&self, op: fi::fi_op) -> (fi::fi_msg_atomic, *mut fi::fi_ioc) {
        // SAFETY: from `leak`, and nothing writes it.
        let addr = unsafe { (*self.iov).iov_base };
        let ioc = leak(fi::fi_ioc { addr, count: 1 });
        let rma_iov = leak(fi::fi_rma_ioc { addr: 0, count: 1, key: 1 });
        let m = fi::fi_msg_atomic {
            msg_iov: ioc,
            iov_count: 1,
            addr: self.to,
            rma_iov,
            rma_iov_count: 1,
            datatype: fi::FI_UINT64,
            op,
            context: context(1),
            ..Default::default()
        };
        (m, ioc)
    }

    /// Every call that has flags.
    fn all(&self, flags: u64) -> Vec<(&'static str, isize)> {
        let (ep, none) = (self.ep, ptr::null_mut());
        let (m, t, r) = (self.msg(), self.tagged(), self.rma());
        let ((sum, ioc), (cswap, _)) = (self.atomic(fi::FI_SUM), self.atomic(fi::FI_CSWAP));
        vec![
            ("fi_sendmsg", call!(ep, msg.sendmsg(&m, flags))),
            ("fi_recvmsg", call!(ep, msg.recvmsg(&m, flags))),
            ("fi_tsendmsg", call!(ep, tagged.sendmsg(&t, flags))),
            ("fi_trecvmsg", call!(ep, tagged.recvmsg(&t, flags))),
            ("fi_trecvmsg to peek", call!(ep, tagged.recvmsg(&t, flags | fi::FI_PEEK))),
            ("fi_writemsg", call!(ep, rma.writemsg(&r, flags))),
            ("fi_writemsg to inject", call!(ep, rma.writemsg(&r, flags | fi::FI_INJECT))),
            ("fi_readmsg", call!(ep, rma.readmsg(&r, flags))),
            ("fi_atomicmsg", call!(ep, atomic.writemsg(&sum, flags))),
            ("fi_fetch_atomicmsg", call!(ep, atomic.readwritemsg(&sum, ioc, none, 1, flags))),
            (
                "fi_compare_atomicmsg",
                call!(ep, atomic.compwritemsg(&cswap, ioc, none, 1, ioc, none, 1, flags)),
            ),
        ]
    }

    fn end(self) {
        assert!(self.world.soon().is_none(), "a refused call completed");
        // SAFETY: nothing writes it any more.
        assert_eq!(unsafe { *self.word }, 0, "a refused call took effect");
        assert_eq!((close(self.ep), close(self.mr)), (0, 0));
        self.world.end();
    }
}

#[test]
fn each_call_with_flags_refuses_those_that_are_not_offered() {
    let ends = Ends::new();
    for flags in NOT_OFFERED {
        for (call, rc) in ends.all(flags | fi::FI_COMPLETION) {
            assert_eq!(rc, REFUSED, "{call} with {flags:#x}");
        }
    }
    // Atomics of messages' buffers, of which there are none.
    let (sum, ioc) = ends.atomic(fi::FI_SUM);
    for flags in [fi::FI_TAGGED, fi::FI_MSG] {
        assert_eq!(call!(ends.ep, atomic.writemsg(&sum, flags)), REFUSED);
        assert_eq!(call!(ends.ep, atomic.readwritemsg(&sum, ioc, ptr::null_mut(), 1, flags)), REFUSED);
    }
    ends.end();
}

#[test]
fn what_is_offered_goes_through_each_call() {
    let ends = Ends::new();
    let flags = fi::FI_MORE | fi::FI_TRANSMIT_COMPLETE | fi::FI_INJECT_COMPLETE;
    let sent = fi::FI_DELIVERY_COMPLETE | fi::FI_MATCH_COMPLETE | fi::FI_FENCE | fi::FI_REMOTE_CQ_DATA;
    for flags in [0, flags, sent] {
        for (call, rc) in ends.all(flags).into_iter().filter(|(call, _)| !call.ends_with("peek")) {
            // A fence waits until nothing is under way.
            assert!(rc == 0 || rc == -(fi::FI_EAGAIN as isize), "{call} with {flags:#x}: {rc}");
        }
        while ends.world.soon().is_some() {}
    }
    // SAFETY: nothing is under way that writes there.
    unsafe { *ends.word = 0 };
    ends.end();
}

#[test]
fn the_flags_of_an_endpoint_are_some_that_its_calls_take() {
    let ends = Ends::new();
    let set = |of: *mut fi::fid, flags: u64| call_fid!(of, control(fi::FI_SETOPSFLAG, leak(flags).cast()));
    let (w, ep) = (&ends.world, ends.ep);
    let mut srx = ptr::null_mut::<fi::fid_ep>();
    assert_eq!(call!(w.domain, ops.srx_ctx(&mut fi::fi_rx_attr::default(), &mut srx, NO)), 0);
    let mut fid = ptr::null_mut();
    for flags in NOT_OFFERED {
        for side in [fi::FI_TRANSMIT, fi::FI_RECV] {
            assert_eq!(set(ep.cast(), side | flags), REFUSED as c_int, "{side:#x} {flags:#x}");
            let mut alias = fi::fi_alias { fid: &raw mut fid, flags: side | flags };
            assert_eq!(call_fid!(ep, control(fi::FI_ALIAS, (&raw mut alias).cast())), REFUSED as c_int);
            let mut now = side;
            assert_eq!(call_fid!(ep, control(fi::FI_GETOPSFLAG, (&raw mut now).cast())), 0);
            assert_eq!(now, 0);
        }
        assert_eq!(set(srx.cast(), fi::FI_RECV | flags), REFUSED as c_int);
        let attr = &mut fi::fi_rx_attr { op_flags: flags, ..Default::default() };
        let mut other = ptr::null_mut::<fi::fid_ep>();
        assert_eq!(call!(w.domain, ops.srx_ctx(attr, &mut other, NO)), REFUSED as c_int, "{flags:#x}");
        for (tx, rx) in [(flags, 0), (0, flags)] {
            let mut info = fi::fi_info {
                tx_attr: leak(fi::fi_tx_attr { op_flags: tx, ..Default::default() }),
                rx_attr: leak(fi::fi_rx_attr { op_flags: rx, ..Default::default() }),
                // SAFETY: from `leak`, and nothing writes it.
                ..unsafe { *w.info }
            };
            assert_eq!(
                call!(w.domain, ops.endpoint(&mut info, &mut other, NO)),
                REFUSED as c_int,
                "{flags:#x}"
            );
        }
    }
    assert_eq!(set(ep.cast(), fi::FI_TRANSMIT | fi::FI_DELIVERY_COMPLETE), 0);
    assert_eq!(set(srx.cast(), fi::FI_RECV | fi::FI_COMPLETION), 0);
    assert_eq!(close(srx), 0);
    ends.end();
}

#[test]
fn deferred_work_refuses_them_when_it_is_queued() {
    let ends = Ends::new();
    let trigger = ends.world.cntr();
    let ((sum, ioc), (cswap, _)) = (ends.atomic(fi::FI_SUM), ends.atomic(fi::FI_CSWAP));
    let one = fi::fi_msg_fetch { msg_iov: ioc, desc: ptr::null_mut(), iov_count: 1 };
    let with = fi::fi_msg_compare { msg_iov: ioc, desc: ptr::null_mut(), iov_count: 1 };
    let ep = ends.ep;
    for flags in NOT_OFFERED {
        let msg = leak(fi::fi_op_msg { ep, msg: ends.msg(), flags });
        let tagged = leak(fi::fi_op_tagged { ep, msg: ends.tagged(), flags });
        let rma = leak(fi::fi_op_rma { ep, msg: ends.rma(), flags });
        let atomic = leak(fi::fi_op_atomic { ep, msg: sum, flags });
        let fetch_atomic = leak(fi::fi_op_fetch_atomic { ep, msg: sum, fetch: one, flags });
        let compare_atomic =
            leak(fi::fi_op_compare_atomic { ep, msg: cswap, fetch: one, compare: with, flags });
        type Op = fi::fi_deferred_work__bindgen_ty_1;
        for (op_type, op) in [
            (fi::FI_OP_SEND, Op { msg }),
            (fi::FI_OP_RECV, Op { msg }),
            (fi::FI_OP_TSEND, Op { tagged }),
            (fi::FI_OP_TRECV, Op { tagged }),
            (fi::FI_OP_WRITE, Op { rma }),
            (fi::FI_OP_READ, Op { rma }),
            (fi::FI_OP_ATOMIC, Op { atomic }),
            (fi::FI_OP_FETCH_ATOMIC, Op { fetch_atomic }),
            (fi::FI_OP_COMPARE_ATOMIC, Op { compare_atomic }),
        ] {
            let work = leak(fi::fi_deferred_work {
                threshold: 0,
                triggering_cntr: trigger,
                op_type,
                op,
                ..Default::default()
            });
            let rc = call_fid!(ends.world.domain, control(fi::FI_QUEUE_WORK, work.cast()));
            assert_eq!(rc, REFUSED as c_int, "operation {op_type} with {flags:#x}");
        }
    }
    assert_eq!(call!(trigger, ops.add(1)), 0);
    assert!(ends.world.soon().is_none());
    assert_eq!(close(trigger), 0);
    ends.end();
}

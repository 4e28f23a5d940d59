//! Counters of writes: what they have counted is at its target, and what has failed ends a wait.

use super::*;

const NO: *mut c_void = ptr::null_mut();
const KEY: u64 = 7;

/// An initiator and a target, each in a domain of its own, so that one makes no progress for the other.
struct Two {
    from: World,
    ep: *mut fi::fid_ep,
    to: fi::fi_addr_t,
    target: World,
    there: *mut fi::fid_ep,
    memory: *mut u64,
    mr: *mut fi::fid_mr,
}

impl Two {
    fn new() -> Two {
        let (from, target) = (World::new(), World::new());
        let (ep, _) = from.enabled(fi::FI_SELECTIVE_COMPLETION);
        let (there, _) = target.enabled(0);
        let memory: *mut u64 = leak(0);
        let mut mr = ptr::null_mut();
        let (fid, access) = (target.domain.cast(), fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE);
        // SAFETY: an open domain with full tables, and memory that stays.
        let rc = unsafe {
            ((*(*target.domain).mr).reg.unwrap())(fid, memory.cast(), 8, access, 0, KEY, 0, &mut mr, NO)
        };
        assert_eq!(rc, 0);
        let to = from.insert(there);
        target.insert(ep);
        let two = Two { from, ep, to, target, there, memory, mr };
        // What the target has registered is known once it has answered.
        two.write(1);
        while two.word() != 1 {
            two.progress();
            assert!(two.from.soon().is_none());
        }
        two
    }

    /// A write that has no completion.
    fn write(&self, word: u64) {
        self.write_to(KEY, word);
    }

    fn write_to(&self, key: u64, word: u64) {
        let at = (&raw const word).cast();
        assert_eq!(call!(self.ep, rma.inject(at, 8, self.to, 0, key)), 0);
    }

    /// One that its target has refused already. The initiator has not looked at the answer.
    fn refused(&self) {
        self.write_to(KEY + 1, 0);
        self.progress();
    }

    fn word(&self) -> u64 {
        // SAFETY: it is leaked; calls write it, of this thread or of the kernel.
        unsafe { self.memory.read_volatile() }
    }

    /// The target's.
    fn progress(&self) {
        assert!(self.target.soon().is_none());
    }

    /// Waits until the counter has this value, and says what the memory has then. The target makes progress
    /// if nothing comes without.
    fn word_once(&self, cntr: *mut fi::fid_cntr, n: u64) -> u64 {
        for _ in 0..100 {
            for _ in 0..100 {
                if call!(cntr, ops.read()) >= n {
                    return self.word();
                }
            }
            self.progress();
        }
        panic!("the counter stays at {}", call!(cntr, ops.read()));
    }

    fn end(self, cntrs: &[*mut fi::fid_cntr]) {
        assert_eq!((close(self.ep), close(self.mr), close(self.there)), (0, 0, 0));
        for cntr in cntrs {
            assert_eq!(close(*cntr), 0);
        }
        self.from.end();
        self.target.end();
    }
}

#[test]
fn a_counted_write_is_at_a_target_that_makes_no_progress() {
    let two = Two::new();
    let cntr = two.from.cntr();
    // As late as Sandia OpenSHMEM binds it.
    assert_eq!(bind_to(two.ep, cntr, fi::FI_WRITE), 0);
    for n in 1..=20 {
        two.write(100 + n);
        assert_eq!(two.word_once(cntr, n), 100 + n);
    }
    // The same of an alias, and with flags of the call's own.
    let mut alias = ptr::null_mut::<fi::fid>();
    let mut arg = fi::fi_alias { fid: &mut alias, flags: fi::FI_TRANSMIT };
    assert_eq!(call_fid!(two.ep, control(fi::FI_ALIAS, (&raw mut arg).cast())), 0);
    let (alias, word) = (alias.cast::<fi::fid_ep>(), leak(200u64));
    let iov = libc::iovec { iov_base: word.cast(), iov_len: 8 };
    let rma = fi::fi_rma_iov { addr: 0, len: 8, key: KEY };
    let m = fi::fi_msg_rma {
        msg_iov: &raw const iov,
        desc: ptr::null_mut(),
        iov_count: 1,
        addr: two.to,
        rma_iov: &raw const rma,
        rma_iov_count: 1,
        context: NO,
        data: 0,
    };
    assert_eq!(call!(alias, rma.writemsg(&m, fi::FI_TRANSMIT_COMPLETE)), 0);
    assert_eq!(two.word_once(cntr, 21), 200);
    assert_eq!(close(alias), 0);
    two.end(&[cntr]);
}

#[test]
fn a_deferred_write_is_at_its_target_when_its_counter_says_so() {
    let two = Two::new();
    let (start, done, word) = (two.from.cntr(), two.from.cntr(), leak(300u64));
    let iov = leak(libc::iovec { iov_base: word.cast(), iov_len: 8 });
    let rma = leak(fi::fi_rma_iov { addr: 0, len: 8, key: KEY });
    let mut op = fi::fi_op_rma { ep: two.ep, ..Default::default() };
    (op.msg.addr, op.msg.msg_iov, op.msg.iov_count) = (two.to, iov, 1);
    (op.msg.rma_iov, op.msg.rma_iov_count) = (rma, 1);
    let completing = fi::fi_op_rma { flags: fi::FI_COMPLETION, ..op };
    let mut work = fi::fi_deferred_work { threshold: 1, op_type: fi::FI_OP_WRITE, ..Default::default() };
    (work.triggering_cntr, work.completion_cntr) = (start, done);
    work.op.rma = leak(op);
    assert_eq!(call_fid!(two.from.domain, control(fi::FI_QUEUE_WORK, (&raw mut work).cast())), 0);
    assert_eq!(call!(start, ops.add(1)), 0);
    assert_eq!(two.word_once(done, 1), 300);
    // The same by the endpoint's, which counts one with FI_COMPLETION.
    let own = two.from.cntr();
    assert_eq!(bind_to(two.ep, own, fi::FI_WRITE), 0);
    // SAFETY: it is leaked, and nothing reads it now.
    unsafe { word.write(301) };
    let mut next = fi::fi_deferred_work { threshold: 2, completion_cntr: ptr::null_mut(), ..work };
    next.op.rma = leak(completing);
    assert_eq!(call_fid!(two.from.domain, control(fi::FI_QUEUE_WORK, (&raw mut next).cast())), 0);
    assert_eq!(call!(start, ops.add(1)), 0);
    assert_eq!(two.word_once(own, 1), 301);
    assert!(two.from.next().is_ok());
    two.end(&[start, done, own]);
}

#[test]
fn an_error_that_was_not_read_ends_a_wait() {
    let two = Two::new();
    let cntr = two.from.cntr();
    assert_eq!(bind_to(two.ep, cntr, fi::FI_WRITE), 0);
    let wait = |threshold| call!(cntr, ops.wait(threshold, 30));
    let failed = || assert_eq!(two.from.next().err(), Some(fi::FI_ENOKEY));
    const EAVAIL: c_int = -fi::FI_EAVAIL;
    const ETIMEDOUT: c_int = -fi::FI_ETIMEDOUT;

    // It comes in with the wait's first look.
    two.refused();
    assert_eq!(wait(1), EAVAIL);
    failed();
    // It was read, and no other one came.
    assert_eq!(wait(1), ETIMEDOUT);
    // One that another call has taken in, between the last read of the errors and the wait.
    two.refused();
    failed();
    assert_eq!(call!(cntr, ops.read()), 0);
    assert_eq!(wait(1), EAVAIL);
    // One that was read.
    two.refused();
    failed();
    assert_eq!(call!(cntr, ops.readerr()), 3);
    assert_eq!(wait(1), ETIMEDOUT);
    // What the application itself has made of it.
    assert_eq!(call!(cntr, ops.seterr(0)), 0);
    assert_eq!(wait(1), ETIMEDOUT);
    assert_eq!(call!(cntr, ops.adderr(5)), 0);
    assert_eq!(wait(1), ETIMEDOUT);
    two.refused();
    assert_eq!(wait(1), EAVAIL);
    failed();
    // A threshold that is reached comes first.
    two.refused();
    failed();
    two.write(9);
    assert_eq!(two.word_once(cntr, 1), 9);
    assert_eq!((wait(1), call!(cntr, ops.readerr())), (0, 7));
    two.end(&[cntr]);
}

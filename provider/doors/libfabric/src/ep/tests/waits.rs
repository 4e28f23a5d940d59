//! FI_TRIGGER and deferred work.

use super::*;

const NO: *mut c_void = ptr::null_mut();

fn add(cntr: *mut fi::fid_cntr, n: u64) {
    assert_eq!(call!(cntr, ops.add(n)), 0);
}

fn read(cntr: *mut fi::fid_cntr) -> u64 {
    call!(cntr, ops.read())
}

fn control(w: &World, command: c_int, work: *mut fi::fi_deferred_work) -> c_int {
    call_fid!(w.domain, control(command, work.cast()))
}

#[test]
fn a_triggered_send_waits_for_its_counter() {
    let w = World::new();
    let (ep, to) = w.enabled(0);
    let (start, other) = (w.cntr(), World::new());
    let foreign = other.cntr();
    let mut alias = ptr::null_mut::<fi::fid>();
    let mut arg = fi::fi_alias { fid: &mut alias, flags: fi::FI_TRANSMIT | fi::FI_TRIGGER };
    assert_eq!(call_fid!(ep, control(fi::FI_ALIAS, (&raw mut arg).cast())), 0);
    let alias = alias.cast::<fi::fid_ep>();
    let on = |cntr, event_type| {
        let mut c = fi::fi_triggered_context { event_type, ..Default::default() };
        c.trigger.threshold = fi::fi_trigger_threshold { cntr, threshold: 2 };
        leak(c).cast::<c_void>()
    };
    let send = |context| call!(alias, tagged.send(ptr::null(), 0, NO, to, 7, context));
    let bad = |n: c_int| -(n as isize);
    assert_eq!(send(NO), bad(fi::FI_EINVAL));
    assert_eq!(send(on(ptr::null_mut(), fi::FI_TRIGGER_THRESHOLD)), bad(fi::FI_EINVAL));
    assert_eq!(send(on(foreign, fi::FI_TRIGGER_THRESHOLD)), bad(fi::FI_EINVAL));
    assert_eq!(send(on(start, fi::FI_TRIGGER_XPU)), bad(fi::FI_ENOSYS));
    assert_eq!(call!(alias, tagged.inject(ptr::null(), 0, to, 7)), bad(fi::FI_EINVAL));
    let armed = on(start, fi::FI_TRIGGER_THRESHOLD);
    assert_eq!(send(armed), 0);
    assert_eq!(call!(ep, tagged.recv(NO, 0, NO, to, 7, 0, context(1))), 0);
    add(start, 1);
    assert!(w.soon().is_none());
    add(start, 1);
    let mut both = [context(1).addr(), armed.addr()];
    both.sort_unstable();
    assert_eq!(w.two(), both);
    assert_eq!((close(alias), close(ep), close(start), close(foreign)), (0, 0, 0, 0));
    w.end();
    other.end();
}

/// Changes a structure that the application has handed a pointer to.
fn edit<T>(at: *mut T, change: impl FnOnce(&mut T)) {
    // SAFETY: from `leak`, and nothing else looks at it now.
    change(unsafe { &mut *at });
}

struct Deferred {
    start: *mut fi::fid_cntr,
    done: *mut fi::fid_cntr,
}

impl Deferred {
    fn work(&self, threshold: u64, op_type: fi::fi_op_type) -> fi::fi_deferred_work {
        let mut work = fi::fi_deferred_work::default();
        (work.threshold, work.op_type) = (threshold, op_type);
        (work.triggering_cntr, work.completion_cntr) = (self.start, self.done);
        work
    }
}

#[test]
fn deferred_messages_count_on_their_own_counter_only() {
    let w = World::new();
    let d = Deferred { start: w.cntr(), done: w.cntr() };
    let (ep, to) = w.enabled(0);
    let (from, into) = (leak(*b"deferred"), leak([0u8; 8]));
    let iov = leak(libc::iovec { iov_base: into.cast(), iov_len: 8 });
    let op = leak(fi::fi_op_msg::default());
    edit(op, |op| {
        (op.ep, op.msg.addr, op.msg.msg_iov, op.msg.iov_count) = (ep, to, iov, 1);
    });
    let mut work = d.work(1, fi::FI_OP_RECV);
    work.op.msg = op;
    assert_eq!(control(&w, fi::FI_QUEUE_WORK, &mut work), 0);
    // All was copied: the same structures serve for the next.
    edit(iov, |iov| iov.iov_base = from.cast());
    work.op_type = fi::FI_OP_SEND;
    assert_eq!(control(&w, fi::FI_QUEUE_WORK, &mut work), 0);
    edit(op, |op| op.msg.iov_count = 9);
    assert_eq!(control(&w, fi::FI_QUEUE_WORK, &mut work), -fi::FI_EINVAL);
    assert!(w.soon().is_none());
    add(d.start, 1);
    assert!(w.soon().is_none(), "nothing was asked of the queue");
    assert_eq!(read(d.done), 2);
    edit(into, |into| assert_eq!(into, b"deferred"));
    assert_eq!((close(ep), close(d.start), close(d.done)), (0, 0, 0));
    w.end();
}

#[test]
fn deferred_counting_makes_chains_and_can_be_taken_back() {
    let w = World::new();
    let d = Deferred { start: w.cntr(), done: w.cntr() };
    let op = leak(fi::fi_op_cntr { cntr: d.done, value: 5 });
    let mut work = d.work(1, fi::FI_OP_CNTR_ADD);
    work.op.cntr = op;
    assert_eq!(control(&w, fi::FI_QUEUE_WORK, &mut work), -fi::FI_EINVAL, "it has no completion");
    work.completion_cntr = ptr::null_mut();
    assert_eq!(control(&w, fi::FI_QUEUE_WORK, &mut work), 0);
    let mut next = work;
    next.triggering_cntr = d.done;
    next.threshold = 5;
    next.op_type = fi::FI_OP_CNTR_SET;
    next.op.cntr = leak(fi::fi_op_cntr { cntr: d.done, value: 40 });
    assert_eq!(control(&w, fi::FI_QUEUE_WORK, &mut next), 0);
    let mut never = work;
    never.threshold = 2;
    assert_eq!(control(&w, fi::FI_QUEUE_WORK, &mut never), 0);
    assert_eq!(control(&w, fi::FI_CANCEL_WORK, &mut never), 0);
    assert_eq!(control(&w, fi::FI_CANCEL_WORK, &mut never), -fi::FI_ENOENT);
    assert_eq!(control(&w, fi::FI_CANCEL_WORK, ptr::null_mut()), -fi::FI_EINVAL);
    add(d.start, 3);
    assert_eq!(read(d.done), 40);
    never.threshold = 10;
    assert_eq!(control(&w, fi::FI_QUEUE_WORK, &mut never), 0);
    assert_eq!(control(&w, fi::FI_FLUSH_WORK, ptr::null_mut()), 0);
    add(d.start, 10);
    assert_eq!(read(d.done), 40);
    work.op_type = 99;
    assert_eq!(control(&w, fi::FI_QUEUE_WORK, &mut work), -fi::FI_ENOSYS);
    assert_eq!(control(&w, fi::FI_QUEUE_WORK, ptr::null_mut()), -fi::FI_EINVAL);
    assert_eq!((close(d.start), close(d.done)), (0, 0));
    w.end();
}

#[test]
fn a_deferred_fetch_is_translated_whole() {
    let w = World::new();
    let d = Deferred { start: w.cntr(), done: w.cntr() };
    let (ep, to) = w.enabled(0);
    let (there, operand, old) = (leak([3u64, 0]), leak(4u64), leak(0u64));
    let mut mr = ptr::null_mut();
    let access = fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
    // SAFETY: an open domain with full tables, and memory that stays.
    let rc = unsafe {
        ((*(*w.domain).mr).reg.unwrap())(w.domain.cast(), there.cast(), 16, access, 0, 1, 0, &mut mr, NO)
    };
    assert_eq!(rc, 0);
    let ioc = leak(fi::fi_ioc { addr: operand.cast(), count: 1 });
    let fetch = leak(fi::fi_ioc { addr: old.cast(), count: 1 });
    let rma = leak(fi::fi_rma_ioc { addr: 0, count: 1, key: 1 });
    let op = leak(fi::fi_op_fetch_atomic::default());
    edit(op, |op| {
        (op.ep, op.msg.addr, op.msg.datatype, op.msg.op) = (ep, to, fi::FI_UINT64, fi::FI_SUM);
        (op.msg.msg_iov, op.msg.iov_count) = (ioc, 1);
        (op.msg.rma_iov, op.msg.rma_iov_count) = (rma, 1);
        (op.fetch.msg_iov, op.fetch.iov_count) = (fetch, 1);
    });
    let mut work = d.work(1, fi::FI_OP_FETCH_ATOMIC);
    work.op.fetch_atomic = op;
    assert_eq!(control(&w, fi::FI_QUEUE_WORK, &mut work), 0);
    edit(op, |op| op.fetch.iov_count = 0);
    assert_eq!(control(&w, fi::FI_QUEUE_WORK, &mut work), -fi::FI_EINVAL, "nowhere to put the result");
    add(d.start, 1);
    assert!(w.soon().is_none());
    assert_eq!(read(d.done), 1);
    edit(there, |there| assert_eq!(there[0], 7));
    edit(old, |old| assert_eq!(*old, 3));
    assert_eq!((close(ep), close(mr), close(d.start), close(d.done)), (0, 0, 0, 0));
    w.end();
}

/// A target of RMA needs no queue and no counter; its peers need it to make progress all the same.
#[test]
fn a_progress_thread_knows_endpoints_that_nothing_is_bound_to() {
    let w = World::new();
    // SAFETY: valid structures from `leak`, which only this test looks at.
    let attr = unsafe { (*w.info).domain_attr };
    edit(w.info, |info| info.caps = fi::FI_RMA | fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE);
    edit(attr, |attr| attr.anon1.data_progress = fi::FI_PROGRESS_AUTO);
    let mut domain = ptr::null_mut::<fi::fid_domain>();
    assert_eq!(call!(w.fabric, ops.domain(w.info, &mut domain, NO)), 0);
    let (mut av, mut ep) = (ptr::null_mut::<fi::fid_av>(), ptr::null_mut::<fi::fid_ep>());
    assert_eq!(call!(domain, ops.av_open(&mut fi::fi_av_attr::default(), &mut av, NO)), 0);
    assert_eq!(call!(domain, ops.endpoint(w.info, &mut ep, NO)), 0);
    // SAFETY: an open domain.
    let shared = unsafe { crate::ffi::obj::<DomainFid, _>(domain) }.unwrap().shared.clone();
    let watched = || shared.attached();
    assert_eq!((bind_to(ep, av, 0), watched()), (0, 0));
    assert_eq!((enable(ep), watched()), (0, 1));
    assert_eq!((close(ep), watched()), (0, 0));
    assert_eq!((close(av), close(domain)), (0, 0));
    w.end();
}

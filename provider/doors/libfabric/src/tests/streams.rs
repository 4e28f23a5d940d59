//! Counters that streams raise and wait for, over the stand-in for CUDA's driver.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

use cuda_stand_in::driver::Driver;

use super::*;
use crate::xpu::counter_ops::{CntrOps, FIRST_NAME, NAME};

fn ops(cntr: *mut fi::fid_cntr) -> &'static CntrOps {
    let mut table = ptr::null_mut();
    assert_eq!(call_fid!(cntr, ops_open(c"cxi_counter_ops".as_ptr(), 0, &mut table, NO)), -fi::FI_ENOSYS);
    assert_eq!(call_fid!(cntr, ops_open(FIRST_NAME.as_ptr(), 0, &mut table, NO)), 0);
    assert_eq!(call_fid!(cntr, ops_open(NAME.as_ptr(), 0, &mut table, NO)), 0);
    // SAFETY: the table of that name, which is never freed.
    unsafe { &*table.cast::<CntrOps>() }
}

type Get = unsafe extern "C" fn(*mut fi::fid, *mut *mut c_void, *mut usize) -> c_int;

/// An address that one of the table's functions gives.
fn get(from: Get, cntr: *mut fi::fid_cntr, bytes: usize) -> u64 {
    let (mut at, mut len) = (ptr::null_mut(), 0);
    // SAFETY: an open counter, and places for the answers.
    assert_eq!(unsafe { from(cntr.cast(), &mut at, &mut len) }, 0);
    assert_eq!(len, bytes);
    at.expose_provenance() as u64
}

fn counter(w: &World) -> *mut fi::fid_cntr {
    let mut cntr = ptr::null_mut();
    assert_eq!(call!(w.domain, ops.cntr_open(ptr::null_mut(), &mut cntr, NO)), 0);
    cntr
}

fn set_buffer(cntr: *mut fi::fid_cntr, at: usize, len: usize) -> c_int {
    // SAFETY: an open counter; the memory stays until the counter is closed, or is refused.
    unsafe { (ops(cntr).set_wb_buffer)(cntr.cast(), ptr::with_exposed_provenance_mut(at), len) }
}

/// What a stream waits for that waits for a count.
fn reached(count: u64) -> u64 {
    1 << 63 | count
}

/// Waits until a stream has passed all that was queued, while nothing of the provider is called.
fn passes(cu: &Driver, stream: usize) {
    let begin = Instant::now();
    while !cu.is_idle(stream) {
        assert!(begin.elapsed() < Duration::from_secs(60), "the stream still waits");
        std::thread::sleep(Duration::from_micros(100));
    }
}

fn waits(cu: &Driver, stream: usize) {
    std::thread::sleep(Duration::from_millis(30));
    assert!(!cu.is_idle(stream), "the stream has passed too early");
}

/// Deferred sends, one for each of these buffers, with thresholds from 1 on.
fn queue_sends(
    w: &World,
    (ep, to): (*mut fi::fid_ep, u64),
    (trigger, done): (*mut fi::fid_cntr, *mut fi::fid_cntr),
    buffers: &[(usize, usize)],
) -> Vec<*mut fi::fi_deferred_work> {
    let queue = |(n, (at, len)): (usize, &(usize, usize))| {
        let iov = leak(libc::iovec { iov_base: ptr::with_exposed_provenance_mut(*at), iov_len: *len });
        let mut op = fi::fi_op_msg { ep, ..Default::default() };
        (op.msg.msg_iov, op.msg.iov_count, op.msg.addr) = (iov, 1, to);
        op.msg.context = ptr::without_provenance_mut(100 + n);
        let mut work = fi::fi_deferred_work { op_type: fi::FI_OP_SEND, ..Default::default() };
        (work.threshold, work.triggering_cntr, work.completion_cntr) = (1 + n as u64, trigger, done);
        work.op.msg = leak(op);
        let work = leak(work);
        assert_eq!(call_fid!(w.domain, control(fi::FI_QUEUE_WORK, work.cast())), 0);
        work
    };
    buffers.iter().enumerate().map(queue).collect()
}

/// The stream makes the contents, raises the counter, waits for the completions and reads what came.
#[test]
fn a_stream_releases_deferred_sends_and_waits_for_their_completions() {
    let cu = Driver::start();
    let w = World::new(Setting::default());
    let ((from, _), (to, name)) = (w.ep(), w.ep());
    let peer = w.insert(&name);
    let (trigger, done) = (counter(&w), counter(&w));
    let [sent, made, received, seen] = [(); 4].map(|()| cu.alloc(20 * 128));
    let stream = cu.stream();
    let raise = get(ops(trigger).get_mmio_addr, trigger, 16);
    let received_count = get(ops(w.cntr).get_wb_addr, w.cntr, 8);
    // The write-back word of the completions is in memory of the device.
    let word = cu.alloc(8);
    assert_eq!(set_buffer(done, word, 8), 0);
    assert_eq!(cu.read(word, 8), reached(0).to_ne_bytes());
    let part = |at: usize, n: usize| (at + n * 128, 128);
    for batch in 1..=3u64 {
        let base = (batch - 1) * 20;
        assert_eq!(call!(trigger, ops.set(0)), 0);
        for n in 0..20 {
            let at = ptr::with_exposed_provenance_mut(part(received, n).0);
            assert_eq!(call!(to, msg.recv(at, 128, NO, fi::FI_ADDR_UNSPEC, NO)), 0);
        }
        let bytes: Vec<u8> = (0..20 * 128).map(|i| (i * batch as usize) as u8).collect();
        cu.write(made, &bytes);
        let buffers: Vec<_> = (0..20).map(|n| part(sent, n)).collect();
        queue_sends(&w, (from, peer), (trigger, done), &buffers);
        let host: u64 = call!(trigger, ops.read());
        assert_eq!(host, 0);
        cu.copy_async(sent, made, 20 * 128, stream);
        // What the device has added in all: the host has set its counter back, and 20 go on.
        cu.write_word(stream, raise, 20 * batch);
        cu.wait_word(stream, word as u64, reached(base + 20));
        cu.wait_word(stream, received_count, reached(base + 20));
        cu.copy_async(seen, received, 20 * 128, stream);
        passes(&cu, stream);
        assert_eq!(cu.read(seen, 20 * 128), bytes, "batch {batch}");
        assert_eq!((call!(done, ops.read()), call!(w.cntr, ops.read())), (base + 20, base + 20));
    }
    cu.drop_stream(stream);
    for part in [from.cast::<fi::fid>(), to.cast(), trigger.cast(), done.cast()] {
        assert_eq!(close(part), 0);
    }
    w.end();
}

/// include/strait_fi_xpu.h: a stream waits for the sum that the host's word has, if it adds nothing itself.
#[test]
fn the_value_word_of_an_exported_counter_is_waited_for() {
    let cu = Driver::start();
    let w = World::new(Setting { api: (2, 7), ..Setting::default() });
    let (mut ctx, mut cntr, mut out) = (ptr::null_mut(), ptr::null_mut(), fi::fid_xpu_cntr::default());
    let attr = &mut fi::fi_xpu_attr { iface: fi::FI_HMEM_CUDA, ..Default::default() };
    assert_eq!(call!(w.domain, ops.xpu_ctx(attr, &mut ctx, NO)), 0);
    let attr = &mut fi::fi_cntr_attr { xpu_ctx: ctx, flags: fi::FI_XPU, ..Default::default() };
    assert_eq!(call!(w.domain, ops.cntr_open(attr, &mut cntr, NO)), 0);
    assert_eq!(call!(cntr, ops.export_xpu(0, &mut out)), 0);
    let stream = cu.stream();
    cu.wait_word(stream, out.fid.prov_ctx, 3);
    assert_eq!(call!(cntr, ops.add(2)), 0);
    waits(&cu, stream);
    assert_eq!(call!(cntr, ops.add(1)), 0);
    passes(&cu, stream);
    // The words of the table are the same counter's.
    assert_eq!(get(ops(cntr).get_mmio_addr, cntr, 16), out.fid.prov_ctx + 64);
    assert_eq!(get(ops(cntr).get_wb_addr, cntr, 8), out.fid.prov_ctx + 32);
    cu.drop_stream(stream);
    assert_eq!((close(cntr), close(ctx)), (0, 0));
    w.end();
}

#[test]
fn a_stream_that_waits_goes_on_when_what_it_waits_for_cannot_come() {
    let cu = Driver::start();
    let w = World::new(Setting::default());
    let (from, name) = w.ep();
    let peer = w.insert(&name);
    let stream = cu.stream();
    let wait = |cntr| cu.wait_word(stream, get(ops(cntr).get_wb_addr, cntr, 8), reached(1000));
    // Work that is taken back, and all of the domain's.
    let (trigger, done) = (counter(&w), counter(&w));
    wait(done);
    let work = queue_sends(&w, (from, peer), (trigger, done), &[(0, 0)]);
    waits(&cu, stream);
    assert_eq!(call_fid!(w.domain, control(fi::FI_CANCEL_WORK, work[0].cast())), 0);
    passes(&cu, stream);
    assert_eq!((call!(done, ops.readerr()), call!(done, ops.seterr(0))), (1, 0));
    std::thread::sleep(Duration::from_millis(2));
    queue_sends(&w, (from, peer), (trigger, done), &[(0, 0), (0, 0)]);
    passes(&cu, stream);
    assert_eq!(call_fid!(w.domain, control(fi::FI_FLUSH_WORK, NO)), 0);
    assert_eq!((call!(done, ops.readerr()), call!(done, ops.seterr(0))), (2, 0));
    // The program's own time-out.
    let read = |at: u64| {
        // SAFETY: a word that the table gave, of a counter that is open or whose domain is.
        unsafe { AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(at as usize)) }.load(Acquire)
    };
    let word = get(ops(done).get_wb_addr, done, 8);
    while read(word) != reached(0) {
        std::thread::yield_now();
    }
    wait(done);
    waits(&cu, stream);
    assert_eq!(call!(done, ops.adderr(1)), 0);
    passes(&cu, stream);
    assert_eq!(call!(done, ops.seterr(0)), 0);
    // The endpoint closes, with work that has not started and a receive that nothing comes for.
    wait(w.cntr);
    let mut byte = 0u8;
    assert_eq!(call!(from, msg.recv((&raw mut byte).cast(), 1, NO, fi::FI_ADDR_UNSPEC, NO)), 0);
    queue_sends(&w, (from, peer), (trigger, done), &[(0, 0)]);
    waits(&cu, stream);
    assert_eq!((close(trigger), close(done)), (BUSY, BUSY), "closed although work waits");
    assert_eq!(close(w.cntr), BUSY, "closed although an endpoint is bound to it");
    assert_eq!(close(from), 0);
    passes(&cu, stream);
    assert_eq!((call!(w.cntr, ops.readerr()), call!(done, ops.readerr())), (1, 1));
    assert_eq!(call!(done, ops.seterr(0)), 0);
    // The counter closes: one wait polls its word, another comes later.
    while read(word) != reached(0) {
        std::thread::yield_now();
    }
    let buffer = cu.alloc(8);
    assert_eq!(set_buffer(done, buffer, 8), 0);
    cu.wait_word(stream, word, reached(1000));
    cu.wait_word(stream, buffer as u64, reached(2000));
    waits(&cu, stream);
    assert_eq!((close(done), close(trigger)), (0, 0));
    passes(&cu, stream);
    assert_eq!(read(word) >> 48 & 127, 127);
    cu.wait_word(stream, word, reached(5000));
    passes(&cu, stream);
    cu.drop_stream(stream);
    w.end();
}

/// The next failure of a queue: the context and the error of the operation, and its provider's text.
fn failure(w: &World) -> (usize, c_int, String) {
    let (entry, text) = failed_entry(w);
    (entry.op_context.addr(), entry.err, text)
}

/// The same, with the whole entry.
fn failed_entry(w: &World) -> (fi::fi_cq_err_entry, String) {
    let mut entry = fi::fi_cq_err_entry::default();
    assert_eq!(call!(w.cq, ops.readerr(&mut entry, 0)), 1);
    let text = call!(w.cq, ops.strerror(entry.prov_errno, ptr::null(), ptr::null_mut(), 0));
    // SAFETY: a string that lives for ever, where no buffer is given.
    let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned();
    (entry, text)
}

/// The threshold is never reached; a peer sends nothing; one receives nothing.
#[test]
fn a_stream_that_waits_for_longer_than_the_limit_goes_on_and_the_operations_have_failed() {
    let cu = Driver::start();
    let w = World::new(Setting::default());
    let ((from, _), (to, name)) = (w.ep(), w.ep());
    let peer = w.insert(&name);
    let (trigger, done) = (counter(&w), counter(&w));
    let stream = cu.stream();
    // SAFETY: an open counter.
    let limit = |cntr, value, ns| unsafe { (ops(cntr).set_limit)(cntr.cast(), value, ns) };
    let wait = |cntr, value| cu.wait_word(stream, get(ops(cntr).get_wb_addr, cntr, 8), reached(value));
    const SHORT: u64 = 50_000_000;
    let long = cu.alloc(1 << 20);
    assert_eq!(limit(done, 1 << 48, SHORT), -fi::FI_EINVAL);
    // Without a limit, or with one that was taken back, nothing ends the wait.
    assert_eq!((limit(done, 2, SHORT), limit(done, 2, 0)), (0, 0));
    queue_sends(&w, (from, peer), (trigger, done), &[(long, 8), (long, 8)]);
    wait(done, 2);
    waits(&cu, stream);
    assert_eq!(limit(done, 2, SHORT), 0);
    passes(&cu, stream);
    assert_eq!((call!(done, ops.read()), call!(done, ops.readerr())), (0, 2));
    for context in [100, 101] {
        let (entry, text) = failed_entry(&w);
        assert_eq!((entry.op_context.addr(), entry.err), (context, fi::FI_ETIMEDOUT));
        assert_eq!(entry.src_addr, peer);
        assert!(text.contains("the time limit of its counter is over"), "{text}");
    }
    // The batch moves nothing, also when its time comes.
    let mut byte = [0u8; 8];
    assert_eq!(call!(trigger, ops.add(2)), 0);
    assert_eq!(
        call!(
            to,
            msg.recv((&raw mut byte).cast(), 8, NO, fi::FI_ADDR_UNSPEC, ptr::without_provenance_mut(7))
        ),
        0
    );
    assert_eq!(w.read().unwrap_err(), AGAIN);
    // The receive that no message comes for: the word of the endpoint's own counter.
    wait(w.cntr, 1);
    assert_eq!(limit(w.cntr, 1, SHORT), 0);
    passes(&cu, stream);
    assert_eq!((failure(&w).0, call!(w.cntr, ops.readerr())), (7, 1));
    // A long message that is not received.
    assert_eq!((call!(done, ops.seterr(0)), call!(trigger, ops.set(0))), (0, 0));
    // SAFETY: a word that the table gave, of a counter that is open.
    let word = unsafe {
        AtomicU64::from_ptr(ptr::with_exposed_provenance_mut(get(ops(done).get_wb_addr, done, 8) as usize))
    };
    while word.load(Acquire) != reached(0) {
        std::thread::yield_now();
    }
    wait(done, 1);
    queue_sends(&w, (from, peer), (trigger, done), &[(long, 1 << 20)]);
    assert_eq!((call!(trigger, ops.add(1)), limit(done, 1, SHORT)), (0, 0));
    passes(&cu, stream);
    assert_eq!((failure(&w).0, call!(done, ops.readerr())), (100, 1));
    cu.drop_stream(stream);
    for part in [from.cast::<fi::fid>(), to.cast(), trigger.cast(), done.cast()] {
        assert_eq!(close(part), 0);
    }
    w.end();
}

#[test]
fn buffers_and_domains_that_cannot_serve_a_stream_are_refused() {
    let cu = Driver::start();
    let w = World::new(Setting::default());
    let cntr = counter(&w);
    let table = ops(cntr);
    let (mut at, mut len) = (ptr::null_mut(), 0usize);
    let device = cu.alloc(64);
    assert_eq!(set_buffer(cntr, device + 4, 8), -fi::FI_EINVAL);
    assert_eq!(set_buffer(cntr, device, 7), -fi::FI_EINVAL);
    assert_eq!((set_buffer(cntr, device, 64), set_buffer(cntr, 0, 0)), (0, 0));
    // SAFETY: an open counter or none, and places for the answers or none.
    unsafe {
        assert_eq!((table.get_mmio_addr)(cntr.cast(), ptr::null_mut(), &mut len), -fi::FI_EINVAL);
        assert_eq!((table.get_wb_addr)(cntr.cast(), &mut at, ptr::null_mut()), -fi::FI_EINVAL);
        assert_eq!((table.get_wb_addr)(w.domain.cast(), &mut at, &mut len), -fi::FI_EINVAL);
        assert_eq!((table.set_wb_buffer)(ptr::null_mut(), NO, 0), -fi::FI_EINVAL);
    }
    assert_eq!(close(cntr), 0);
    // A domain whose application keeps its calls apart.
    // SAFETY: the world's info, which nothing else uses now.
    unsafe { (*(*w.info).domain_attr).threading = fi::FI_THREAD_DOMAIN };
    let mut one = ptr::null_mut();
    assert_eq!(call!(w.fabric, ops.domain(w.info, &mut one, NO)), 0);
    let mut cntr = ptr::null_mut();
    assert_eq!(call!(one, ops.cntr_open(ptr::null_mut(), &mut cntr, NO)), 0);
    // SAFETY: an open counter, and places for the answers.
    assert_eq!(unsafe { (table.get_wb_addr)(cntr.cast(), &mut at, &mut len) }, -fi::FI_EOPNOTSUPP);
    assert_eq!((close(cntr), close(one)), (0, 0));
    w.end();
}

//! fi_xpu(3), natively and by fi_open_ops: a thread of the test plays the device.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use ::xpu::command::{Op, Raw};
use ::xpu::layout::{self, NO_REGION, flag};
use ::xpu::{Place, Producer, RingPlaces, Words};

use super::*;
use crate::xpu::{NAME, Table};

/// A world of that version, whose application asked for FI_XPU.
fn world(api: (u32, u32)) -> World {
    World::new(Setting { api, ..Setting::default() })
}

fn until(so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !so() {
        assert!(begin.elapsed() < Duration::from_secs(60), "it never came");
        std::thread::yield_now();
    }
}

/// Words at an address that was exported.
fn words(at: u64, count: usize) -> Arc<Words> {
    // SAFETY: what the provider exported, which stays until its object is closed, after the last use here.
    unsafe { Words::from_caller(at as usize, count * 8, at) }.unwrap()
}

fn context(w: &World) -> *mut fi::fid_xpu_ctx {
    let mut ctx = ptr::null_mut();
    let attr = &mut fi::fi_xpu_attr { iface: fi::FI_HMEM_SYSTEM, ..Default::default() };
    assert_eq!(call!(w.domain, ops.xpu_ctx(attr, &mut ctx, NO)), 0);
    ctx
}

/// A device's endpoint with a queue and a counter of writes, and what is exported of them.
struct Device {
    ctx: *mut fi::fid_xpu_ctx,
    ep: *mut fi::fid_ep,
    cq: *mut fi::fid_cq,
    cntr: *mut fi::fid_cntr,
    producer: Producer,
    entries: Arc<Words>,
    read: Arc<Words>,
    counter: Arc<Words>,
}

impl Device {
    fn native(w: &World) -> Device {
        let ctx = context(w);
        let (mut cq, mut cntr, mut ep) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let attr = &mut fi::fi_cq_attr { size: 64, xpu_ctx: ctx, ..Default::default() };
        assert_eq!(call!(w.domain, ops.cq_open(attr, &mut cq, NO)), 0);
        let attr = &mut fi::fi_cntr_attr { xpu_ctx: ctx, flags: fi::FI_XPU, ..Default::default() };
        assert_eq!(call!(w.domain, ops.cntr_open(attr, &mut cntr, NO)), 0);
        // SAFETY: the world's info, with all its attributes, which nothing else uses now.
        unsafe { (*(*w.info).ep_attr).xpu_ctx = ctx };
        assert_eq!(call!(w.domain, ops.endpoint2(w.info, &mut ep, fi::FI_XPU, NO)), 0);
        Device::bound(w, ctx, ep, cq, cntr)
    }

    fn by_table(w: &World, table: &Table) -> Device {
        let (mut ctx, mut cq, mut cntr, mut ep) =
            (ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let attr = &mut fi::fi_xpu_attr { iface: fi::FI_HMEM_SYSTEM, ..Default::default() };
        // SAFETY: open objects, valid attributes, and places for the answers.
        unsafe {
            assert_eq!((table.ctx_open)(w.domain, attr, &mut ctx, NO), 0);
            assert_eq!((table.cq_open)(w.domain, ptr::null_mut(), ctx, &mut cq, NO), 0);
            assert_eq!((table.cntr_open)(w.domain, ptr::null_mut(), ctx, &mut cntr, NO), 0);
            assert_eq!((table.endpoint)(w.domain, w.info, ctx, &mut ep, NO), 0);
        }
        Device::bound(w, ctx, ep, cq, cntr)
    }

    fn bound(
        w: &World,
        ctx: *mut fi::fid_xpu_ctx,
        ep: *mut fi::fid_ep,
        cq: *mut fi::fid_cq,
        cntr: *mut fi::fid_cntr,
    ) -> Device {
        let mut out = fi::fid_xpu_ep::default();
        assert_eq!(call!(ep, ops.export_xpu(0, &mut out)), -fi::FI_EOPBADSTATE);
        assert_eq!(bind(ep, cq, fi::FI_TRANSMIT | fi::FI_RECV), 0);
        assert_eq!(bind(ep, cntr, fi::FI_WRITE), 0);
        assert_eq!(bind(ep, w.av, 0), 0);
        assert_eq!(call_fid!(ep, control(fi::FI_ENABLE, NO)), 0);
        assert_eq!(call!(ep, ops.export_xpu(1, &mut out)), -fi::FI_EBADFLAGS);
        assert_eq!(call!(ep, ops.export_xpu(0, &mut out)), 0);
        assert_eq!((out.fid.fclass, out.fid.prov_id), (fi::FI_CLASS_EP as u32, layout::PROV_ID));
        let ring = words(out.fid.prov_ctx, 8);
        let word = |n: usize| ring.get(n).load(Acquire);
        assert_eq!(word(0) as u32, layout::VERSION);
        let log2 = (word(0) >> 32) as u32;
        let place = |at, count| Place { words: words(at, count), at: 0 };
        let places = RingPlaces {
            slots: place(word(2), 8 << log2),
            produced: place(word(3), 8),
            near: None,
            status: place(word(4), 8),
        };
        let mut of_cq = fi::fid_xpu_cq::default();
        assert_eq!(call!(cq, ops.export_xpu(0, &mut of_cq)), 0);
        assert_eq!(of_cq.fid.prov_ctx, word(5), "the ring names another queue");
        let head = words(of_cq.fid.prov_ctx, 8);
        let entries = words(head.get(1).load(Acquire), 8);
        let read = words(head.get(2).load(Acquire), 8);
        let mut of_cntr = fi::fid_xpu_cntr::default();
        assert_eq!(call!(cntr, ops.export_xpu(0, &mut of_cntr)), 0);
        let counter = words(of_cntr.fid.prov_ctx, 16);
        Device { ctx, ep, cq, cntr, producer: Producer::new(places, log2), entries, read, counter }
    }

    fn end(self) {
        assert_eq!(close(self.ctx), BUSY);
        assert_eq!((close(self.cq), close(self.cntr)), (BUSY, BUSY));
        let producer = self.producer;
        assert_eq!(producer.error() >> 63, 0);
        for part in [self.ep.cast::<fi::fid>(), self.cq.cast(), self.cntr.cast(), self.ctx.cast()] {
            assert_eq!(close(part), 0);
        }
    }
}

/// A host's endpoint to write to, its index, and its memory.
fn target(w: &World) -> (*mut fi::fid_ep, u64, Arc<Words>, *mut fi::fid_mr) {
    let (ep, name) = w.ep();
    let memory = Words::new(512).unwrap();
    let at: *mut c_void = memory.get(0).as_ptr().cast();
    let mr = w.register(at, 4096, 77);
    (ep, w.insert(&name), memory, mr)
}

/// Puts by the device, of memory that it names by its descriptor, to what the table or the native calls said.
fn a_put_arrives(w: &World, d: &Device, peer: u64, region: u64, memory: &Words, source: &Words) {
    source.get(3).store(4711, Release);
    let put = Raw {
        op: Op::Put as u8,
        flags: flag::COMPLETION,
        peer: peer as u32,
        region: region as u32,
        local: source.device(3),
        // The world's registrations are addressed by offset.
        remote: 16,
        key: 77,
        length: 8,
        context: u64::MAX - 4,
        ..Raw::default()
    };
    let ticket = d.producer.post(&[put]).unwrap();
    until(|| {
        let _ = w.read();
        d.producer.done() > ticket
    });
    assert_eq!(memory.get(2).load(Acquire), 4711);
    until(|| d.entries.get(7).load(Acquire) == 1 && d.counter.get(0).load(Acquire) == 1);
    assert_eq!(
        (d.entries.get(0).load(Acquire), d.entries.get(1).load(Acquire)),
        (u64::MAX - 4, Op::Put as u64)
    );
    d.read.get(0).store(1, Release);
    // A key that is none.
    let ticket = d.producer.post(&[Raw { key: 78, flags: 0, ..put }]).unwrap();
    until(|| {
        let _ = w.read();
        d.producer.done() > ticket
    });
    assert_eq!((d.producer.error() as u32 as i32, d.producer.failed()), (fi::FI_ENOKEY, 1));
    until(|| d.counter.get(1).load(Acquire) == 1);
}

#[test]
fn a_device_puts_by_the_native_calls() {
    let w = world((2, 7));
    let (ep, peer, memory, mr) = target(&w);
    let d = Device::native(&w);
    let mut attr = fi::fi_xpu_ctx_attr::default();
    assert_eq!(call!(d.ctx, ops.query(&mut attr)), 0);
    assert_eq!((attr.caps, attr.av_addr_size, attr.mr_desc_size), (7, 8, 8));
    let (mut raw, mut len) = ([0u8; 8], 4);
    let at: *mut c_void = raw.as_mut_ptr().cast();
    let lookup = |addr, len: &mut usize, flags| call!(w.av, ops.lookup2(addr, at, len, flags, d.ctx));
    assert_eq!((lookup(peer, &mut len, fi::FI_XPU), len), (-fi::FI_ETOOSMALL, 8));
    assert_eq!(lookup(99, &mut len, fi::FI_XPU), -fi::FI_EINVAL);
    assert_eq!(lookup(peer, &mut len, fi::FI_MORE), -fi::FI_EBADFLAGS);
    assert_eq!(lookup(peer, &mut len, fi::FI_XPU), 0);
    assert_eq!(u64::from_le_bytes(raw), peer);
    let source = Words::new(512).unwrap();
    let local = w.register(source.get(0).as_ptr().cast(), 4096, 5);
    let (mut number, mut len) = (9u64, 8);
    let desc = &mut fi::fi_mr_xpu_desc {
        buf: (&raw mut number).cast(),
        len: &mut len,
        flags: fi::FI_XPU,
        ctx: d.ctx,
    };
    for _ in 0..2 {
        assert_eq!(call_fid!(local, control(fi::FI_GET_MR_XPU_DESC, ptr::from_mut(desc).cast())), 0);
        assert_eq!(number, 0, "the second time it has another number");
    }
    a_put_arrives(&w, &d, peer, number, &memory, &source);
    // A closed registration is named no more.
    assert_eq!(close(local), 0);
    let put =
        Raw { op: Op::Put as u8, peer: peer as u32, local: source.device(0), length: 8, ..Raw::default() };
    let ticket = d.producer.post(&[put]).unwrap();
    until(|| d.producer.done() > ticket);
    assert_eq!(d.producer.failed(), 2);
    d.end();
    assert_eq!((close(mr), close(ep)), (0, 0));
    w.end();
}

#[test]
fn a_device_puts_by_the_table_of_older_versions() {
    let w = world((1, 17));
    let mut table = ptr::null_mut();
    assert_eq!(call_fid!(w.domain, ops_open(NAME.as_ptr(), 0, &mut table, NO)), 0);
    // SAFETY: the table of that name, which is never freed.
    let table = unsafe { &*table.cast::<Table>() };
    assert_eq!(table.size, size_of::<Table>());
    let (ep, peer, memory, mr) = target(&w);
    let d = Device::by_table(&w, table);
    let source = Words::new(512).unwrap();
    let local = w.register(source.get(0).as_ptr().cast(), 4096, 5);
    let (mut number, mut raw, mut len) = (9u64, 9u64, 8);
    // SAFETY: open objects, and room for the answers.
    unsafe {
        let mut attr = fi::fi_xpu_ctx_attr::default();
        assert_eq!(((table.ctx_query)(d.ctx, &mut attr), attr.mr_desc_size), (0, 8));
        let at = (&raw mut number).cast();
        assert_eq!((table.mr_desc)(local, at, &mut len, fi::FI_XPU, d.ctx), 0);
        assert_eq!((table.av_lookup)(w.av, peer, (&raw mut raw).cast(), &mut len, fi::FI_XPU, d.ctx), 0);
        // An object that is not ours, as a layered provider would hand it out.
        let mut other = fi::fid_xpu_ctx::default();
        other.fid.fclass = fi::FI_CLASS_XPU_CTX;
        assert_eq!((table.ctx_query)(&mut other, &mut attr), -fi::FI_EINVAL);
    }
    a_put_arrives(&w, &d, raw, number, &memory, &source);
    assert_eq!(close(local), 0);
    d.end();
    assert_eq!((close(mr), close(ep)), (0, 0));
    w.end();
}

#[test]
fn the_host_neither_posts_nor_reads_queues_that_are_a_devices() {
    let w = world((2, 7));
    let d = Device::native(&w);
    let none = -(fi::FI_ENOSYS as isize);
    let mut byte = 0u8;
    let at: *mut c_void = (&raw mut byte).cast();
    assert_eq!(call!(d.ep, msg.send(at, 1, NO, 0, NO)), none);
    assert_eq!(call!(d.ep, rma.write(at, 1, NO, 0, 0, 0, NO)), none);
    assert_eq!(call!(d.cq, ops.read(at, 0)), none);
    assert_eq!(call!(d.cntr, ops.add(3)), 0);
    until(|| d.counter.get(0).load(Acquire) == 3);
    // And what is the host's is not exported.
    let (ep, _) = w.ep();
    let mut out = fi::fid_xpu_ep::default();
    assert_eq!(call!(ep, ops.export_xpu(0, &mut out)), -fi::FI_EINVAL);
    let mut out = fi::fid_xpu_cq::default();
    assert_ne!(call!(w.cq, ops.export_xpu(0, &mut out)), 0);
    assert_eq!(close(ep), 0);
    d.end();
    w.end();
}

#[test]
fn queues_of_the_host_and_of_devices_are_kept_apart() {
    let w = world((2, 7));
    let ctx = context(&w);
    let (mut cq, mut ep) = (ptr::null_mut(), ptr::null_mut());
    let attr = &mut fi::fi_cq_attr { flags: fi::FI_XPU, ..Default::default() };
    assert_eq!(call!(w.domain, ops.cq_open(attr, &mut cq, NO)), -fi::FI_EINVAL);
    let attr = &mut fi::fi_cq_attr { xpu_ctx: ctx, ..Default::default() };
    assert_eq!(call!(w.domain, ops.cq_open(attr, &mut cq, NO)), 0);
    // The host's endpoint at a device's queue.
    assert_eq!(call!(w.domain, ops.endpoint(w.info, &mut ep, NO)), 0);
    assert_eq!((bind(ep, cq, fi::FI_TRANSMIT | fi::FI_RECV), bind(ep, w.av, 0)), (0, 0));
    assert_eq!(call_fid!(ep, control(fi::FI_ENABLE, NO)), -fi::FI_EOPNOTSUPP);
    assert_eq!(close(ep), 0);
    // A device's at the host's.
    assert_eq!(call!(w.domain, ops.endpoint2(w.info, &mut ep, fi::FI_XPU, NO)), -fi::FI_EINVAL);
    // SAFETY: as in `native`.
    unsafe { (*(*w.info).ep_attr).xpu_ctx = ctx };
    assert_eq!(
        call!(w.domain, ops.endpoint2(w.info, &mut ep, fi::FI_XPU | fi::FI_MORE, NO)),
        -fi::FI_EBADFLAGS
    );
    assert_eq!(call!(w.domain, ops.endpoint2(w.info, &mut ep, fi::FI_XPU, NO)), 0);
    assert_eq!((bind(ep, w.cq, fi::FI_TRANSMIT), bind(ep, w.av, 0)), (0, 0));
    assert_eq!(call_fid!(ep, control(fi::FI_ENABLE, NO)), -fi::FI_EOPNOTSUPP);
    for part in [ep.cast::<fi::fid>(), cq.cast(), ctx.cast()] {
        assert_eq!(close(part), 0);
    }
    w.end();
}

#[test]
fn the_new_fields_of_an_older_applications_structures_are_not_read() {
    let w = world((2, 6));
    let (mut cq, mut cntr, mut ep) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // What is there is not the structure's.
    let wild = ptr::without_provenance_mut(0xdead_0000);
    let attr = &mut fi::fi_cq_attr { xpu_ctx: wild, ..Default::default() };
    assert_eq!(call!(w.domain, ops.cq_open(attr, &mut cq, NO)), 0);
    let attr = &mut fi::fi_cntr_attr { xpu_ctx: wild, ..Default::default() };
    assert_eq!(call!(w.domain, ops.cntr_open(attr, &mut cntr, NO)), 0);
    assert_eq!(call!(w.domain, ops.endpoint2(w.info, &mut ep, fi::FI_XPU, NO)), -fi::FI_EBADFLAGS);
    assert_eq!((close(cq), close(cntr)), (0, 0));
    w.end();
}

#[test]
fn a_command_that_is_refused_ends_the_wait_of_a_kernel() {
    let w = world((2, 7));
    let d = Device::native(&w);
    let (ended, stop) = (Arc::new(std::sync::atomic::AtomicU64::new(0)), d.producer.clone());
    let theirs = ended.clone();
    // A kernel that waits for a command which never comes; the ring's memory stays until the thread has
    // looked.
    let keep = d.entries.clone();
    let waits = std::thread::spawn(move || {
        let _keep = keep;
        let how = stop.wait(0, Duration::from_secs(60));
        theirs.store(1, Release);
        how
    });
    until(|| d.producer.beat() > 0);
    let bad = Raw { op: Op::Put as u8, peer: 3, region: NO_REGION, length: 8, ..Raw::default() };
    d.producer.post(&[bad]).unwrap();
    assert!(matches!(waits.join().unwrap(), Err(::xpu::device::Ended::Error(_))));
    assert_eq!(ended.load(Acquire), 1);
    d.end();
    w.end();
}

#[test]
fn a_device_that_is_none_and_a_domain_of_one_thread_have_no_context() {
    let w = world((2, 7));
    let mut ctx = ptr::null_mut();
    let attr = &mut fi::fi_xpu_attr { iface: fi::FI_HMEM_NEURON, ..Default::default() };
    assert_eq!(call!(w.domain, ops.xpu_ctx(attr, &mut ctx, NO)), -fi::FI_EOPNOTSUPP);
    let short = &mut fi::fi_xpu_ops { size: 16, ..Default::default() };
    let attr = &mut fi::fi_xpu_attr { iface: fi::FI_HMEM_SYSTEM, ops: short, ..Default::default() };
    assert_eq!(call!(w.domain, ops.xpu_ctx(attr, &mut ctx, NO)), -fi::FI_EINVAL);
    // SAFETY: the world's info, which nothing else uses now.
    unsafe { (*(*w.info).domain_attr).threading = fi::FI_THREAD_DOMAIN };
    let mut one = ptr::null_mut();
    assert_eq!(call!(w.fabric, ops.domain(w.info, &mut one, NO)), 0);
    let attr = &mut fi::fi_xpu_attr { iface: fi::FI_HMEM_SYSTEM, ..Default::default() };
    assert_eq!(call!(one, ops.xpu_ctx(attr, &mut ctx, NO)), -fi::FI_EOPNOTSUPP);
    assert_eq!(close(one), 0);
    // Asked for at fi_getinfo, such a domain has a lock all the same.
    // SAFETY: as above.
    unsafe { (*w.info).caps |= fi::FI_XPU };
    assert_eq!(call!(w.fabric, ops.domain(w.info, &mut one, NO)), 0);
    assert_eq!(call!(one, ops.xpu_ctx(attr, &mut ctx, NO)), 0);
    assert_eq!((close(ctx), close(one)), (0, 0));
    w.end();
}

/// A device's counter that no endpoint is bound to, and its words.
fn counter(w: &World, ctx: *mut fi::fid_xpu_ctx) -> (*mut fi::fid_cntr, Arc<Words>) {
    let (mut cntr, mut out) = (ptr::null_mut(), fi::fid_xpu_cntr::default());
    let attr = &mut fi::fi_cntr_attr { xpu_ctx: ctx, flags: fi::FI_XPU, ..Default::default() };
    assert_eq!(call!(w.domain, ops.cntr_open(attr, &mut cntr, NO)), 0);
    assert_eq!(call!(cntr, ops.export_xpu(0, &mut out)), 0);
    (cntr, words(out.fid.prov_ctx, 16))
}

/// Words of struct strait_xpu_counter.
const VALUE: usize = 0;
const ERRORS: usize = 1;
const ADDED: usize = 8;
const ERRORS_ADDED: usize = 9;

#[test]
fn the_host_reads_what_a_device_adds_and_the_sum_of_both_sides_is_the_value() {
    let w = world((2, 7));
    let ctx = context(&w);
    let (cntr, at) = counter(&w, ctx);
    let (read, errors) = (|| call!(cntr, ops.read()), || call!(cntr, ops.readerr()));
    let sum = || at.get(VALUE).load(Acquire).wrapping_add(at.get(ADDED).load(Acquire));
    at.get(ADDED).store(5, Release);
    assert_eq!((read(), errors()), (5, 0));
    assert_eq!(call!(cntr, ops.add(3)), 0);
    assert_eq!(read(), 8);
    // The thread of the context shows it: the host's part is 3.
    until(|| sum() == 8);
    // What a device adds while the host waits ends the wait, although nothing else changes.
    let begin = Instant::now();
    let device = at.clone();
    let adds = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        device.get(ADDED).store(7, Release);
    });
    assert_eq!(call!(cntr, ops.wait(10, 30_000)), 0);
    assert!(begin.elapsed() < Duration::from_secs(20), "the wait slept over it");
    adds.join().unwrap();
    // fi_xpu_cntr_set of a device stores a difference, which wraps.
    at.get(ADDED).store(2u64.wrapping_sub(at.get(VALUE).load(Acquire)), Release);
    assert_eq!((read(), sum()), (2, 2));
    // fi_cntr_set of the host replaces what the device has added, too.
    assert_eq!(call!(cntr, ops.set(100)), 0);
    until(|| sum() == 100);
    assert_eq!(read(), 100);
    // A failure that a device adds ends a wait of the host.
    at.get(ERRORS_ADDED).store(1, Release);
    assert_eq!(call!(cntr, ops.wait(1000, 30_000)), -fi::FI_EAVAIL);
    assert_eq!(errors(), 1);
    until(|| at.get(ERRORS).load(Acquire) == 0);
    // Whatever a device writes is a number.
    for wild in [u64::MAX, 0, 1 << 63, u64::MAX - 1] {
        let before = (read(), at.get(ADDED).load(Acquire));
        at.get(ADDED).store(wild, Release);
        assert_eq!(read(), before.0.wrapping_add(wild.wrapping_sub(before.1)));
    }
    assert_eq!((close(cntr), close(ctx)), (0, 0));
    w.end();
}

/// The stream raises the one counter's word, and waits for the other's: nothing of the host is called between.
#[test]
fn a_device_releases_deferred_writes_and_sees_their_completion_in_a_counters_word() {
    let w = world((2, 7));
    let (ep, peer, memory, mr) = target(&w);
    let ctx = context(&w);
    let ((start, raised), (done, seen)) = (counter(&w, ctx), counter(&w, ctx));
    const COUNT: usize = 20;
    let source: Vec<u64> = (0..COUNT as u64).map(|n| n + 1000).collect();
    let iovs: Vec<_> = source
        .iter()
        .map(|s| libc::iovec { iov_base: ptr::from_ref(s).cast_mut().cast(), iov_len: 8 })
        .collect();
    let rmas: Vec<_> = (0..COUNT as u64).map(|n| fi::fi_rma_iov { addr: n * 8, len: 8, key: 77 }).collect();
    let mut ops: Vec<_> = (0..COUNT)
        .map(|n| {
            let mut op = fi::fi_op_rma { ep, ..Default::default() };
            (op.msg.addr, op.msg.msg_iov, op.msg.iov_count) = (peer, &raw const iovs[n], 1);
            (op.msg.rma_iov, op.msg.rma_iov_count) = (&raw const rmas[n], 1);
            op
        })
        .collect();
    let mut queued: Vec<_> = ops
        .iter_mut()
        .enumerate()
        .map(|(n, op)| {
            // Two batches: of the threshold 1, and of 2.
            let threshold = 1 + u64::from(n >= COUNT / 2);
            let mut work = fi::fi_deferred_work { threshold, op_type: fi::FI_OP_WRITE, ..Default::default() };
            (work.triggering_cntr, work.completion_cntr) = (start, done);
            work.op.rma = op;
            work
        })
        .collect();
    for work in &mut queued {
        assert_eq!(call_fid!(w.domain, control(fi::FI_QUEUE_WORK, ptr::from_mut(work).cast())), 0);
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((seen.get(VALUE).load(Acquire), memory.get(0).load(Acquire)), (0, 0), "it left too early");
    for batch in 1..=2 {
        raised.get(ADDED).store(batch, Release);
        let end = COUNT / 2 * batch as usize;
        until(|| seen.get(VALUE).load(Acquire) >= end as u64);
        for n in 0..COUNT {
            let expected = if n < end { 1000 + n as u64 } else { 0 };
            assert_eq!(memory.get(n).load(Acquire), expected, "word {n} after batch {batch}");
        }
    }
    assert_eq!((call!(start, ops.read()), call!(done, ops.read())), (2, COUNT as u64));
    for part in [mr.cast::<fi::fid>(), ep.cast(), start.cast(), done.cast(), ctx.cast()] {
        assert_eq!(close(part), 0);
    }
    w.end();
}

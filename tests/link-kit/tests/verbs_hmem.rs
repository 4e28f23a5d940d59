//! Memory of devices over queue pairs, over the stand-ins for libibverbs and CUDA: by which way it is registered, what
//! refuses the others, and what is accessed when it is freed, used again or taken back.
#![cfg(not(loom))]

#[path = "support/client.rs"]
#[allow(dead_code, reason = "checks of hmem's")]
mod client_memory;
#[path = "support/counted.rs"]
mod counted;
#[path = "verbs/device.rs"]
#[allow(dead_code, reason = "what is of links alone")]
mod device;
#[path = "support/duo.rs"]
#[allow(dead_code, reason = "checks of memory of the host")]
mod duo;
#[path = "support/node.rs"]
mod node;
#[path = "support/ofi.rs"]
#[allow(dead_code, reason = "what is of links alone")]
mod support;

#[path = "verbs_hmem/apart.rs"]
mod apart;
#[path = "verbs_hmem/client.rs"]
mod client;
#[path = "verbs_hmem/conformance.rs"]
mod conformance;
#[path = "verbs/lone.rs"]
mod lone;
#[path = "verbs_hmem/nearest.rs"]
mod nearest;
#[path = "verbs_hmem/own.rs"]
mod own;
#[path = "verbs_hmem/random.rs"]
mod random;
#[path = "verbs_hmem/refusals.rs"]
mod refusals;
#[path = "verbs_hmem/scarce.rs"]
mod scarce;

use std::ffi::{CStr, c_void};

use below::{Did, Piece, Remote};
use cuda_stand_in::driver::Driver;
use engine::{Access, Atomic, Ctx, Error, OpFlags, Reg, Rma};
use hmem::{AtomicOp, Datatype, Kind, Span};
use link_api::Way;
use link_kit::text;
use stand_in::program::{self, Program};
use testkit::{pattern, read, there, write};
use verbs::{Options, Verbs};

use apart::join_second;
use device::{open, options, set};
use duo::Duo;
use lone::{accesses, happens, join, put_from, say};

const LEN: usize = 200_000;

/// The driver, whose second device is used, with dma-bufs as [`Driver::dmabufs`] says.
fn driver(dmabufs: u32) -> Driver {
    let driver = Driver::start();
    hmem::registry::find_runtimes();
    driver.enter(1);
    driver.dmabufs(dmabufs);
    driver
}

/// Memory of a device, from the address on.
fn span(at: usize, len: usize) -> Span {
    // SAFETY: the tests' own memory, of this length, which is freed when nothing uses it.
    unsafe { Span::new(at, len, Kind::Cuda) }
}

/// Memory of the second device of the stand-in, which is never freed.
fn filled(driver: &Driver, len: usize, seed: usize) -> Span {
    let span = span(driver.alloc(len), len);
    hmem::write(&[span], 0, &pattern(len, seed));
    span
}

fn ibv(name: &CStr) -> u64 {
    Program::open(program::path("verbs_stand_in")).calls(name)
}

/// The kernel has a client for memory of devices, and lists it there.
fn peer_memory(driver: &Driver) -> Options {
    let hook = Program::open(program::path("verbs_stand_in")).symbol("stand_in_verbs_peer_memory");
    // SAFETY: that function's type.
    let hook: extern "C" fn(*mut c_void, *mut c_void) = unsafe { std::mem::transmute(hook) };
    hook(driver.function("stand_in_dma"), driver.function("stand_in_memory_id"));
    Options { clients: Some(env!("CARGO_MANIFEST_DIR").into()), ..options() }
}

fn open_with(options: &Options) -> Verbs {
    verbs::open(options, std::net::Ipv4Addr::LOCALHOST.into()).expect("a device").0
}

/// What the path says of memory that was to be lent, and whether it was.
fn way_for_peers(options: &Options, src: Span) -> (bool, String) {
    let (mut owner, mut peer) = (open_with(options), open());
    let (to_peer, at) = join(&mut owner, &mut peer);
    if let Some(lease) = owner.lend(to_peer, src, Way::Get) {
        assert!(owner.end_lease(lease.number, false));
    }
    join_second((&mut owner, to_peer), (&mut peer, at));
    let lease = owner.lend(to_peer, src, Way::Get);
    if let Some(lease) = &lease {
        say(&mut owner, to_peer, &mut peer);
        let local = Span::leak(src.len());
        assert!(accesses(&mut peer, (Way::Get, at, lease.key, lease.base), local));
        assert!(text(&[local]) == text(&[src]), "the bytes of the device");
        assert!(owner.end_lease(lease.number, true));
    }
    (lease.is_some(), owner.registered())
}

/// What the path says of memory that this side was to write from, and whether it has.
fn way(options: &Options, src: Span) -> (bool, String) {
    put_from(open_with(options), open(), src)
}

/// What the driver and the adapter grant, and what the path says of it: a row of the table in docs/verbs.md.
fn says(dmabufs: u32, device: &str, client: bool, refusal: Option<i32>, said: &str) {
    said_of(way, dmabufs, device, client, refusal, said);
}

fn said_of(
    way: fn(&Options, Span) -> (bool, String),
    dmabufs: u32,
    device: &str,
    client: bool,
    refusal: Option<i32>,
    said: &str,
) {
    set(device, &[]);
    let driver = driver(dmabufs);
    let options = if client { peer_memory(&driver) } else { options() };
    // Behind a page, and not all of it: the dma-buf begins before.
    let whole = filled(&driver, LEN, 3);
    let src = whole.part(5_000, 100_000).expect("a part");
    if let Some(errno) = refusal {
        Program::open(program::path("verbs_stand_in")).fail(c"ibv_reg_dmabuf_mr", 1, errno);
    }
    let (lent, text) = way(&options, src);
    assert_eq!((lent, text.as_str()), (!said.contains("by no way"), said));
}

#[test]
fn memory_is_registered_as_a_dmabuf_over_pcie() {
    says(2, "sv0", false, None, "Cuda by dma-buf over PCIe");
}

#[test]
fn memory_is_registered_as_a_dmabuf_where_none_is_over_pcie() {
    let said = "Cuda by dma-buf (not dma-buf over PCIe: the export of a dma-buf: Operation not supported (os error 95))";
    says(1, "sv0", false, None, said);
}

/// As an adapter that is not behind the same PCIe root refuses.
#[test]
fn memory_is_registered_as_a_dmabuf_where_the_adapter_refuses_the_one_over_pcie() {
    let said = "Cuda by dma-buf (not dma-buf over PCIe: ibv_reg_dmabuf_mr: Unknown error 524 (os error 524))";
    says(2, "sv0", false, Some(524), said);
}

#[test]
fn memory_is_registered_by_its_address_where_the_kernel_knows_it() {
    let refused = "ibv_reg_dmabuf_mr: Operation not supported (os error 95)";
    let said = format!("Cuda by peer memory (not dma-buf over PCIe: {refused}; not dma-buf: {refused})");
    says(2, "sv0:nodmabuf", true, None, &said);
}

#[test]
fn memory_that_nothing_knows_is_registered_by_no_way() {
    let refused = "the export of a dma-buf: Operation not supported (os error 95)";
    let client = "/sys/kernel/mm/memory_peers: No such device (os error 19)";
    let said = format!(
        "Cuda by no way (not dma-buf over PCIe: {refused}; not dma-buf: {refused}; not peer memory: {client})"
    );
    says(0, "sv0", false, None, &said);
}

#[test]
fn memory_for_peers_is_registered_as_a_dmabuf_over_pcie() {
    said_of(way_for_peers, 2, "sv0", false, None, "Cuda for peers by dma-buf over PCIe");
}

/// Until there is a queue pair for it, whose keys serve one peer alone, what the kernel's client knows is lent.
#[test]
fn memory_for_peers_is_registered_as_a_dmabuf_where_the_kernel_knows_its_address() {
    said_of(way_for_peers, 2, "sv0", true, None, "Cuda for peers by dma-buf over PCIe");
}

#[test]
fn memory_for_peers_is_registered_as_a_dmabuf_where_none_is_over_pcie() {
    let said = "Cuda for peers by dma-buf (not dma-buf over PCIe: the export of a dma-buf: Operation not supported (os error 95))";
    said_of(way_for_peers, 1, "sv0", false, None, said);
}

#[test]
fn memory_for_peers_is_registered_by_its_address_where_no_dmabuf_is_taken() {
    let refused = "ibv_reg_dmabuf_mr: Operation not supported (os error 95)";
    let said =
        format!("Cuda for peers by peer memory (not dma-buf over PCIe: {refused}; not dma-buf: {refused})");
    said_of(way_for_peers, 2, "sv0:nodmabuf", true, None, &said);
}

#[test]
fn a_message_of_a_device_whose_dmabuf_is_refused_goes_in_frames() {
    set("sv0", &[]);
    let src = filled(&driver(0), LEN, 3);
    let mut duo = Duo::new(open);
    for _ in 0..2 {
        let (accesses, bytes) = duo.counted_send(src, Span::leak(LEN));
        assert!(accesses == 0 && bytes > LEN as u64, "{accesses} accesses, {bytes} bytes in frames");
    }
}

/// Memory is freed and its address used again, a thousand times: what is sent from there, or received there if
/// `into`, is what is there now.
fn is_never_stale(device: &str, client: bool, into: bool) {
    const SHORT: usize = 70_000;
    set(device, &[]);
    let driver = driver(2);
    let options = if client { peer_memory(&driver) } else { options() };
    let mut duo = Duo::new(|| open_with(&options));
    let registered =
        || ["ibv_reg_mr", "ibv_reg_dmabuf_mr"].map(|n| ibv(&std::ffi::CString::new(n).expect("a name")));
    let (before, ended, mut again) = (registered(), ibv(c"ibv_dereg_mr"), 0);
    let mut last = 0;
    for seed in 0..1000 {
        let at = driver.alloc(SHORT);
        again += u32::from(std::mem::replace(&mut last, at) == at);
        let (device, host) = (span(at, SHORT), Span::leak(SHORT));
        let (src, dst) = if into { (host, device) } else { (device, host) };
        hmem::write(&[src], 0, &pattern(SHORT, seed));
        let (accesses, bytes) = duo.counted_send(src, dst);
        assert!(accesses == 1 && bytes < 2_000, "{accesses} accesses, {bytes} bytes in frames");
        driver.free(at);
    }
    assert!(again > 500, "only {again} times the same address");
    let made: u64 = registered().iter().zip(before).map(|(now, before)| now - before).sum();
    assert!(made >= 1000, "{made} registrations");
    assert_eq!(ibv(c"ibv_alloc_mw") - ibv(c"ibv_dealloc_mw"), 0, "windows");
    assert!(ibv(c"ibv_dereg_mr") - ended >= 1000, "registrations that have ended");
}

#[test]
fn memory_that_is_freed_and_used_again_is_never_stale_by_dmabuf() {
    is_never_stale("sv0", false, true);
}

#[test]
fn memory_that_is_freed_and_used_again_is_never_stale_by_peer_memory() {
    is_never_stale("sv0:nodmabuf", true, false);
}

/// Taken back while this side reads into it: the access fails, and none of the bytes are there.
#[test]
fn a_dmabuf_that_its_exporter_takes_back_is_not_written() {
    set("sv0", &[]);
    let driver = driver(2);
    let (mut owner, mut peer) = (open(), open());
    let (at, to_owner) = join(&mut owner, &mut peer);
    let lease = peer.lend(to_owner, duo::filled(LEN, 3), Way::Get).expect("memory of the host");
    say(&mut peer, to_owner, &mut owner);
    let local = filled(&driver, LEN, 9);
    let stand_in = Program::open(program::path("verbs_stand_in"));
    let of = |name| stand_in.symbol(name);
    // SAFETY: that function's type.
    let revoke: extern "C" fn(i32) -> i32 = unsafe { std::mem::transmute(of("stand_in_verbs_revoke")) };
    // SAFETY: that function's type.
    let port: extern "C" fn(usize, u8, bool) = unsafe { std::mem::transmute(of("stand_in_verbs_port")) };
    port(0, 1, false);
    let piece =
        Piece { way: Way::Get, at, key: lease.key, first: lease.key, addr: lease.base, local, once: None };
    owner.access(5, &piece).expect("room for an access");
    assert_eq!(revoke(-1), 1);
    port(0, 1, true);
    let over = std::iter::repeat_with(|| happens(&mut owner)).find(|did| matches!(did, Did::Over(..)));
    assert!(matches!(over, Some(Did::Over(5, false))), "{over:?}");
    assert!(text(&[local]) == pattern(LEN, 9), "bytes of what was taken back");
}

/// Freed while it is lent: the peer's access fails, and it has none of the bytes.
#[test]
fn memory_that_is_freed_while_the_kernel_has_pinned_it_is_not_read_and_nor_is_what_follows() {
    set("sv0:nodmabuf", &[]);
    let driver = driver(2);
    let options = peer_memory(&driver);
    let src = filled(&driver, LEN, 3);
    let (mut owner, mut peer) = (open_with(&options), open());
    let (to_peer, at) = join(&mut owner, &mut peer);
    let lease = owner.lend(to_peer, src, Way::Get).expect("memory that can be lent");
    say(&mut owner, to_peer, &mut peer);
    let local = duo::filled(LEN, 9);
    driver.free(src.addr() as usize);
    assert_eq!(driver.alloc(LEN), src.addr() as usize, "the address of other memory now");
    assert!(!accesses(&mut peer, (Way::Get, at, lease.key, lease.base), local));
    assert!(text(&[local]) == pattern(LEN, 9), "bytes that were taken back");
    assert!(owner.end_lease(lease.number, true));
}

/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS` and `..._WRITES_ORDERING`.
const FLUSH_OPTIONS: i32 = 117;
const ORDERING: i32 = 118;

/// A message into memory of a device that orders an adapter's writes so, and flushes them so: the accesses, bytes
/// in frames, and flushes.
fn into_device(ordering: i32, options: i32) -> (u64, u64, u64) {
    set("sv0", &[]);
    let driver = driver(2);
    driver.attribute(ORDERING, ordering);
    driver.attribute(FLUSH_OPTIONS, options);
    let dst = filled(&driver, LEN, 3);
    let mut duo = Duo::new(open);
    let before = driver.calls(c"cuFlushGPUDirectRDMAWrites");
    let (accesses, bytes) = duo.counted_send(duo::filled(LEN, 4), dst);
    (accesses, bytes, driver.calls(c"cuFlushGPUDirectRDMAWrites") - before)
}

#[test]
fn a_message_is_read_into_a_device_that_sees_what_adapters_write() {
    let (accesses, bytes, flushes) = into_device(100, 0);
    assert!(accesses == 1 && bytes < 2_000, "{accesses} accesses, {bytes} bytes in frames");
    assert_eq!(flushes, 0, "flushes");
}

#[test]
fn a_message_into_a_device_that_is_to_be_flushed_is_seen_when_it_is_complete() {
    let (accesses, bytes, flushes) = into_device(0, 1);
    assert!(accesses == 1 && bytes < 2_000, "{accesses} accesses, {bytes} bytes in frames");
    assert_eq!(flushes, 1, "flushes");
}

#[test]
fn a_message_into_a_device_that_may_not_see_what_adapters_write_goes_in_frames() {
    let (accesses, bytes, flushes) = into_device(0, 0);
    assert!(accesses == 0 && bytes > LEN as u64, "{accesses} accesses, {bytes} bytes in frames");
    assert_eq!(flushes, 0, "flushes");
}

/// What the second one has registered, read and written without it.
struct Accessed {
    duo: Duo<Verbs>,
    target: Span,
}

impl Accessed {
    fn new(driver: &Driver, target: Span, access: Access) -> Accessed {
        let options = peer_memory(driver);
        let mut duo = Duo::new(|| open_with(&options));
        duo.b.domain.mr_reg(&Reg { iov: &[target], access, key: Some(9) }).expect("a key that is free");
        let mut all = Accessed { duo, target };
        // The first one goes by frames, and has the key known.
        assert_eq!(all.read(0, Span::leak(1)).0, None);
        all.duo.settle();
        all.duo.counts.take();
        all
    }

    fn access(&mut self, op: &Rma<'_>) -> (Option<Error>, u64) {
        self.duo.counts.take();
        self.duo.post(|a| a.domain.rma(a.ep, op));
        let err = self.duo.complete(1, 0).0[0].err;
        (err, self.duo.counts.take()[2])
    }

    /// Its error, if there is one, and how many accesses it took.
    fn read(&mut self, at: u64, into: Span) -> (Option<Error>, u64) {
        let to = self.duo.a.peer;
        self.access(&read(to, &[into], &[there(at, into.len(), 9)], 1))
    }

    fn write(&mut self, at: u64, from: Span) -> (Option<Error>, u64) {
        let to = self.duo.a.peer;
        self.access(&write(to, &[from], &[there(at, from.len(), 9)], 1))
    }
}

const BOTH: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

#[test]
fn registered_memory_of_a_device_is_read_and_written_from_the_host_and_from_devices() {
    set("sv0:nodmabuf", &[]);
    let driver = driver(2);
    let (target, own) = (filled(&driver, LEN, 3), filled(&driver, LEN, 8));
    let mut all = Accessed::new(&driver, target, BOTH);
    let mut want = pattern(LEN, 3);
    for (i, len) in [1, 8, 600, 16 << 10, 20_000, 100_000].into_iter().enumerate() {
        let at = 37 * i;
        for (from, into) in [
            (duo::filled(len, 40 + i), Span::leak(len)),
            (own.part(i, len).expect("a part"), filled(&driver, len, 9)),
        ] {
            assert_eq!(all.write(at as u64, from), (None, 1), "{len} bytes written");
            want[at..at + len].copy_from_slice(&text(&[from]));
            assert_eq!(all.read(at as u64, into), (None, 1), "{len} bytes read");
            assert!(text(&[into]) == want[at..at + len], "{len} bytes");
        }
        assert!(text(&[all.target]) == want, "{len} bytes");
    }
}

#[test]
fn registered_memory_of_a_device_that_peers_would_have_to_flush_goes_in_frames() {
    set("sv0", &[]);
    let driver = driver(2);
    driver.attribute(ORDERING, 0);
    driver.attribute(FLUSH_OPTIONS, 1);
    let target = filled(&driver, LEN, 3);
    let mut all = Accessed::new(&driver, target, BOTH);
    let short = duo::filled(600, 4);
    assert_eq!(all.write(5, short), (None, 0));
    assert_eq!(ibv(c"ibv_reg_dmabuf_mr"), 0, "registrations of it");
    // The bytes of a long one are read by the target, which flushes.
    let long = duo::filled(70_000, 4);
    assert_eq!(all.write(1000, long), (None, 1));
    assert_eq!(driver.calls(c"cuFlushGPUDirectRDMAWrites"), 1, "flushes");
    let now = text(&[target]);
    assert!(now[5..605] == text(&[short]) && now[1000..71_000] == text(&[long]));
}

/// An access of the adapter's is not atomic with those of the device and of the processor.
#[test]
fn an_atomic_on_memory_of_a_device_goes_in_frames() {
    set("sv0:glob,nodmabuf", &[]);
    let driver = driver(2);
    let target = filled(&driver, 4096, 0);
    hmem::write(&[target], 0, &41u64.to_ne_bytes());
    let mut all = Accessed::new(&driver, target, BOTH);
    let (one, old) = (Span::leak(8), Span::leak(8));
    hmem::write(&[one], 0, &1u64.to_ne_bytes());
    let op = Atomic {
        to: all.duo.a.peer,
        operand: &[one],
        compare: &[],
        result: &[old],
        remote: &[there(0, 8, 9)],
        op: AtomicOp::Sum,
        datatype: Datatype::Uint64,
        data: None,
        ctx: Ctx(1),
        flags: OpFlags::COMPLETION,
    };
    all.duo.post(|a| a.domain.atomic(a.ep, &op));
    assert_eq!(all.duo.complete(1, 0).0[0].err, None);
    assert_eq!(all.duo.counts.take()[2], 0, "accesses");
    assert_eq!(
        (text(&[old]), &text(&[target])[..8]),
        (41u64.to_ne_bytes().to_vec(), &42u64.to_ne_bytes()[..])
    );
}

/// The registration that accesses of this side find is of the memory that was there.
#[test]
fn memory_that_is_freed_while_it_is_registered_is_not_what_the_next_access_uses() {
    set("sv0:nodmabuf", &[]);
    let driver = driver(2);
    let at = driver.alloc(LEN);
    let own = span(at, LEN);
    let mut all = Accessed::new(&driver, duo::filled(LEN, 3), BOTH);
    all.duo.a.domain.mr_reg(&Reg { iov: &[own], access: BOTH, key: Some(7) }).expect("a key that is free");
    // The second one accesses it, by which the adapter of the first one knows it.
    let to = all.duo.b.peer;
    for _ in 0..2 {
        let into = Span::leak(8);
        std::mem::swap(&mut all.duo.a, &mut all.duo.b);
        all.duo.post(|b| b.domain.rma(b.ep, &read(to, &[into], &[there(0, 8, 7)], 1)));
        assert_eq!(all.duo.complete(1, 0).0[0].err, None);
        std::mem::swap(&mut all.duo.a, &mut all.duo.b);
        all.duo.settle();
    }
    driver.free(at);
    assert_eq!(driver.alloc(LEN), at, "the address of other memory now");
    hmem::write(&[own], 0, &pattern(LEN, 77));
    assert_eq!(all.write(0, own), (None, 1));
    assert!(text(&[all.target]) == pattern(LEN, 77), "the bytes that are there now");
}

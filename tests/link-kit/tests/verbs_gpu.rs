//! The registration of a GPU's memory by its own driver's dma-bufs, with the adapter of the stand-in for libibverbs, which
//! copies by the driver: on a machine with a GPU, by `ci/gpu/verbs`; over the stand-in for CUDA by `cargo nextest run`.
#![cfg(not(loom))]

#[path = "support/counted.rs"]
mod counted;
#[path = "verbs/device.rs"]
#[allow(dead_code, reason = "what is of links alone")]
mod device;
#[path = "support/duo.rs"]
#[allow(dead_code, reason = "checks of memory of the host")]
mod duo;
#[path = "verbs/lone.rs"]
mod lone;
#[path = "support/node.rs"]
mod node;
#[path = "support/ofi.rs"]
#[allow(dead_code, reason = "what is of links alone")]
mod support;

use std::ffi::c_void;
use std::os::fd::AsRawFd as _;
use std::sync::OnceLock;
use std::time::Instant;

use cuda_stand_in::driver::Driver;
use engine::{Access, Reg, Rma};
use hmem::{Kind, Span, registry};
use link_kit::text;
use stand_in::program::{self, Program};
use testkit::{pattern, read, there, write};
use verbs::Verbs;

use device::{open, set};
use duo::Duo;
use lone::put_from;

const LEN: usize = 200_000;
/// Of memory that is freed and used again, with a GPU and over the stand-in.
const ROUNDS: [usize; 2] = [10_000, 200];

/// The driver in use, for the adapter's thread.
static DRIVER: OnceLock<Driver> = OnceLock::new();

fn is_real() -> bool {
    std::env::var_os("STRAIT_TEST_GPU").is_some()
}

fn driver() -> Driver {
    let driver = if is_real() { Driver::start_real() } else { Driver::start() };
    if !is_real() {
        driver.dmabufs(2);
    }
    hmem::registry::find_runtimes();
    *DRIVER.get_or_init(|| driver)
}

/// Has the driver's context be current in this thread.
fn entered() -> Driver {
    thread_local!(static ENTERED: OnceLock<()> = const { OnceLock::new() });
    let driver = *DRIVER.get().expect("a driver");
    ENTERED.with(|once| *once.get_or_init(|| driver.enter(0)));
    driver
}

extern "C" fn copy(to: u64, from: u64, len: usize) -> bool {
    entered().copy(to as usize, from as usize, len)
}

extern "C" fn id(at: u64) -> u64 {
    entered().buffer_id(at as usize)
}

/// An adapter that copies by the driver.
fn adapter() {
    set("sv0:nomap", &[]);
    let hook = Program::open(program::path("verbs_stand_in")).symbol("stand_in_verbs_device_memory");
    // SAFETY: that function's type.
    let hook: extern "C" fn(*mut c_void, *mut c_void) = unsafe { std::mem::transmute(hook) };
    hook(copy as *mut c_void, id as *mut c_void);
}

fn span(at: usize, len: usize) -> Span {
    let kind = registry::classify(at, len);
    assert_eq!(kind, Kind::Cuda);
    // SAFETY: the tests' own memory, of this length, which is freed when nothing uses it.
    unsafe { Span::new(at, len, kind) }
}

/// What an export by the driver comes to: the length of the file, and where in it the memory begins.
fn exported(at: usize, len: usize, pcie: bool) -> String {
    match registry::of(Kind::Cuda).export_dmabuf(at, len, pcie) {
        Ok((fd, offset)) => {
            let is = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap_or_default();
            // SAFETY: a structure of numbers, and a descriptor that is open.
            let size = unsafe {
                let mut stat: libc::stat = std::mem::zeroed();
                assert_eq!(libc::fstat(fd.as_raw_fd(), &mut stat), 0);
                stat.st_size
            };
            format!("{} of {size} bytes, offset {offset}", is.display())
        }
        Err(e) => format!("{e}"),
    }
}

#[test]
fn each_kind_of_memory_is_exported_and_is_received_into_and_sent_from_by_its_dmabuf() {
    let driver = driver();
    adapter();
    for (name, attribute) in [("supported", 116), ("flush options", 117), ("ordering", 118), ("dma-buf", 124)]
    {
        println!("attribute {name}: {}", driver.attribute_of(attribute, 0));
    }
    let pool = driver.pool();
    let kinds = [
        ("cudaMalloc", driver.alloc(LEN)),
        ("VMM", driver.map(1)),
        ("cudaMallocAsync", driver.alloc_async(LEN)),
        ("pool", driver.alloc_from(pool, LEN)),
        ("managed", driver.alloc_managed(LEN)),
    ];
    for (name, at) in kinds {
        println!("{name}, over PCIe: {}", exported(at, LEN, true));
        println!("{name}: {}", exported(at, LEN, false));
        let (mut duo, device) = (Duo::new(open), span(at, LEN));
        let is_exported = registry::of(Kind::Cuda).export_dmabuf(at, LEN, false).is_ok();
        if is_exported {
            duo.send_until_accesses(|| device);
        }
        for seed in 0..3 {
            let host = duo::filled(LEN, seed);
            let into = duo.counted_send(host, device);
            assert!(text(&[device]) == pattern(LEN, seed), "{name}: the bytes that were received");
            let back = Span::leak(LEN);
            let from = duo.counted_send(device, back);
            assert!(text(&[back]) == pattern(LEN, seed), "{name}: the bytes that were sent");
            if seed == 2 {
                println!("{name}, accesses and bytes in frames: received {into:?}, sent {from:?}");
                assert_eq!(from.0, u64::from(is_exported), "{name}: accesses of what was sent");
            }
        }
        let other = span(driver.alloc(LEN), LEN);
        let between = duo.counted_send(device, other);
        assert!(text(&[other]) == pattern(LEN, 2), "{name}: the bytes that were sent to a device");
        println!("{name}, to a device: {between:?}");
        println!("{name}: {}", put_from(open(), open(), device).1);
        let path = duo.a.domain.ep_describe(duo.a.ep, duo.a.peer).expect("a path");
        println!("{name}, the path: {path}");
    }
}

/// Reported, not judged.
#[test]
fn an_export_takes_so_long() {
    let driver = driver();
    for len in
        [4 << 10, 64 << 10, 1 << 20, 64 << 20, 1 << 30].into_iter().filter(|len| is_real() || *len <= 1 << 20)
    {
        let at = driver.alloc(len);
        let once = || {
            let start = Instant::now();
            let made = registry::of(Kind::Cuda).export_dmabuf(at, len, false).expect("a dma-buf");
            let exported = start.elapsed();
            drop(made);
            (exported.as_nanos() / 100, (start.elapsed() - exported).as_nanos() / 100)
        };
        let (mut exports, mut closes): (Vec<u128>, Vec<u128>) = (0..21).map(|_| once()).unzip();
        exports.sort_unstable();
        closes.sort_unstable();
        println!("{len} bytes: exported in {}.{} us", exports[10] / 10, exports[10] % 10);
        println!("{len} bytes: closed in {}.{} us", closes[10] / 10, closes[10] % 10);
        driver.free(at);
    }
}

/// Registered memory of the GPU is read and written by a peer, from and to the host and the GPU.
#[test]
fn registered_memory_is_accessed_by_its_dmabuf() {
    let driver = driver();
    adapter();
    let (mut duo, target) = (Duo::new(open), span(driver.alloc(LEN), LEN));
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    duo.b.domain.mr_reg(&Reg { iov: &[target], access, key: Some(9) }).expect("a key that is free");
    let to = duo.a.peer;
    let rma = |duo: &mut Duo<Verbs>, op: &Rma<'_>| {
        duo.counts.take();
        duo.post(|a| a.domain.rma(a.ep, op));
        assert_eq!(duo.complete(1, 0).0[0].err, None);
        duo.settle();
        duo.counts.take()[2]
    };
    let known = (0..20).position(|_| rma(&mut duo, &read(to, &[Span::leak(1)], &[there(0, 1, 9)], 1)) == 1);
    println!("registered memory is accessed by the adapter behind {known:?} accesses");
    assert!(known.is_some());
    for (seed, len) in [8, 600, 20_000, 150_000].into_iter().enumerate() {
        let (own, back) = (span(driver.alloc(len), len), span(driver.alloc(len), len));
        hmem::write(&[own], 0, &pattern(len, seed));
        for (from, into) in [(own, Span::leak(len)), (duo::filled(len, seed), back)] {
            hmem::write(&[target], 0, &pattern(LEN, 9));
            let remote = [there(40, len, 9)];
            assert_eq!(rma(&mut duo, &write(to, &[from], &remote, 1)), 1, "{len} bytes written");
            assert!(text(&[target])[40..40 + len] == pattern(len, seed), "{len} bytes written");
            assert_eq!(rma(&mut duo, &read(to, &[into], &remote, 1)), 1, "{len} bytes read");
            assert!(text(&[into]) == pattern(len, seed), "{len} bytes read");
        }
    }
}

#[test]
fn memory_that_is_freed_and_used_again_is_what_is_received_into_and_sent_from() {
    const SHORT: usize = 70_000;
    let driver = driver();
    adapter();
    let mut duo = Duo::new(open);
    let first = span(driver.alloc(SHORT), SHORT);
    duo.send_until_accesses(|| first);
    let (host, back) = (Span::leak(SHORT), Span::leak(SHORT));
    let (mut last, mut again, mut by_dmabuf, mut sent) = (0, 0, 0, 0);
    let start = Instant::now();
    let rounds = ROUNDS[usize::from(!is_real())];
    for seed in 0..rounds {
        let at = driver.alloc(SHORT);
        again += u32::from(std::mem::replace(&mut last, at) == at);
        hmem::write(&[host], 0, &pattern(SHORT, seed));
        let device = span(at, SHORT);
        by_dmabuf += duo.counted_send(host, device).0;
        assert!(text(&[device]) == pattern(SHORT, seed), "round {seed}: the bytes of another one");
        sent += duo.counted_send(device, back).0;
        assert!(text(&[back]) == pattern(SHORT, seed), "round {seed}: the bytes of another one, sent");
        driver.free(at);
    }
    let took = start.elapsed().as_micros() as usize / rounds;
    println!(
        "{rounds} messages each way, {again} at the address before, {by_dmabuf} received into and {sent} sent from a dma-buf, {took} us both"
    );
    assert_eq!(sent as usize, rounds, "by a dma-buf");
    assert!(again as usize > rounds / 2, "only {again} times the same address");
}

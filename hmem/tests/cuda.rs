//! CUDA's memory, over the stand-in for its driver. One process, so one test at a time.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cuda_stand_in::driver::Driver;
use hmem::cuda::{self, Error, Sort};
use hmem::flight::{self, Flight, Part};
use hmem::path::{Path, find};
use hmem::share::{self, Export, HandleType, Opened};
use hmem::{AtomicOp, Datatype, Kind, Span, apply, classify, copy, read, registry, write};

fn alone() -> (MutexGuard<'static, ()>, Driver) {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = Driver::start();
    cuda::look();
    (guard, driver)
}

fn span(addr: usize, len: usize) -> Span {
    // SAFETY: the stand-in checks what is copied there, and these tests free nothing early unless
    // to see it checked.
    unsafe { Span::new(addr, len, classify(addr, len)) }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

#[test]
fn every_sort_of_memory_is_told_from_the_others() {
    let (_alone, cu) = alone();
    let (plain, pool, managed, host, mapped) =
        (cu.alloc(100), cu.alloc_async(100), cu.alloc_managed(100), cu.alloc_host(100), cu.map(2));
    for (at, sort, kind) in [
        (plain, Sort::Plain, Kind::Cuda),
        (pool, Sort::Pool, Kind::Cuda),
        (managed, Sort::Managed, Kind::Cuda),
        (host, Sort::Host, Kind::System),
        (mapped, Sort::Mapped, Kind::Cuda),
    ] {
        assert_eq!(classify(at, 100), kind, "{sort:?}");
        assert_eq!(classify(at + 99, 1), kind, "{sort:?}");
        let info = cuda::info(at + 50).unwrap();
        assert_eq!((info.sort, info.base), (sort, at as u64));
    }
    let (heap, stack, big) = (Box::new(5u8), 5u8, vec![0u8; 64 << 20]);
    for at in [(&raw const *heap).addr(), (&raw const stack).addr(), big.as_ptr().addr()] {
        assert_eq!(classify(at, 1), Kind::System);
        assert_eq!(cuda::info(at), None);
    }
    assert_eq!(classify(0, 0), Kind::System);
    for at in [plain, pool, managed, host] {
        cu.free(at);
        assert_eq!(classify(at, 1), Kind::System, "freed");
    }
    cu.unmap(mapped, 2);
}

#[test]
fn the_heap_and_the_stack_are_known_without_asking_the_driver() {
    let (_alone, cu) = alone();
    // A block of the main heap: small, and of the main arena, which tests' threads do not use.
    // SAFETY: asks where the heap ends.
    let end = unsafe { libc::sbrk(0) }.addr();
    let before = cu.calls(c"cuPointerGetAttributes");
    assert_eq!(classify(end - 64, 8), Kind::System);
    assert_eq!(cu.calls(c"cuPointerGetAttributes"), before);
    let other = vec![0u8; 8 << 20];
    assert_eq!(classify(other.as_ptr().addr(), 8), Kind::System);
    assert_eq!(cu.calls(c"cuPointerGetAttributes"), before + 1, "anything may be mapped there later");
}

#[test]
fn copies_go_every_way_from_any_thread() {
    let (_alone, cu) = alone();
    let (a, b) = (cu.alloc(5000), cu.map(2));
    let seam = (2 << 20) - 1000;
    let text = pattern(3000, 1);
    let run = || {
        assert_eq!(write(&[span(a, 5000)], 7, &text), 3000);
        // Across two mappings, which no single allocation holds.
        assert_eq!(copy(&[span(b, 4 << 20)], seam, &[span(a, 5000)], 7, 3000), 3000);
        let mut back = vec![0; 3000];
        assert_eq!(read(&[span(b, 4 << 20)], seam, &mut back), 3000);
        assert!(back == text);
    };
    run();
    cu.leave();
    run();
    std::thread::scope(|s| s.spawn(run).join().unwrap());
    cu.enter(1);
    run();
    let sum = apply(&[span(a, 8)], AtomicOp::AtomicWrite, Datatype::Uint64, &5u64.to_ne_bytes(), &[], None);
    assert_eq!(sum, Ok(()));
    let sum = apply(&[span(a, 8)], AtomicOp::Sum, Datatype::Uint64, &37u64.to_ne_bytes(), &[], None);
    assert_eq!(sum, Ok(()));
    assert_eq!(cu.read(a, 8), 42u64.to_ne_bytes());
    cu.free(a);
    cu.unmap(b, 2);
}

#[test]
fn a_copy_that_fails_is_not_taken_for_done() {
    let (_alone, cu) = alone();
    let a = cu.alloc(100);
    let (dev, host) = (span(a, 100), Span::leak(100));
    cu.fail(c"cuMemcpyAsync", 1, 700);
    assert_eq!(copy(&[dev], 0, &[host], 0, 100), 0);
    assert_eq!(copy(&[dev], 0, &[host], 0, 100), 100);
    cu.fail(c"cuMemcpyAsync", 2, 700);
    assert_eq!(read(&[dev, dev], 0, &mut [0; 200]), 100);
    cu.fail(c"cuMemcpyAsync", 0, 0);
    // What is gone is refused by the driver, not followed.
    cu.free(a);
    assert_eq!(write(&[dev], 0, &[1; 100]), 0);
}

/// # Safety
/// As of [`flight::start`].
unsafe fn start(part: &Part) -> Box<dyn Flight> {
    let memory = registry::of(Kind::Cuda);
    // SAFETY: the caller's promise.
    unsafe { memory.start(&[*part], Vec::<Opened>::new(), true) }.unwrap()
}

#[test]
fn copies_in_flight_come_to_an_end() {
    let (_alone, cu) = alone();
    let len = (3 << 20) + 5;
    let (a, text) = (cu.alloc(len), pattern(len, 3));
    // SAFETY: `text` outlives the copy.
    let mut pending = unsafe { start(&Part { dst: a, src: text.as_ptr().addr(), len }) };
    let mut polls = 0;
    while !pending.poll().unwrap() {
        polls += 1;
    }
    assert!(polls >= 3, "memory that is not page-locked goes in pieces, so that others get their turn");
    assert!(cu.read(a, len) == text);
    cu.fail(c"cuMemcpyAsync", 2, 700);
    // SAFETY: as above.
    let mut pending = unsafe { start(&Part { dst: a, src: text.as_ptr().addr(), len }) };
    let end = loop {
        match pending.poll() {
            Ok(false) => {}
            other => break other,
        }
    };
    assert_eq!(end.map_err(|e| e.code), Err(700));
    cu.fail(c"cuMemcpyAsync", 0, 0);
    drop(pending);
    cu.free(a);
}

#[test]
fn an_address_that_is_used_again_is_another_allocation() {
    let (_alone, cu) = alone();
    let mut seen: Vec<Export> = Vec::new();
    let mut again = false;
    for _ in 0..20 {
        let a = cu.alloc(8192);
        let e = cuda::export(a + 100, 1000, 8).unwrap();
        assert_eq!(e.len(), 1);
        assert_eq!((e[0].handle_type, e[0].base, e[0].len), (HandleType::Legacy, a as u64, 8192));
        assert_eq!(cuda::export(a, 8192, 8).unwrap(), e, "remembered");
        let number = hmem::registry::of(Kind::Cuda).number(a + 100);
        assert_eq!(number, e.first().map(|e| e.id), "is what tells it");
        again |= seen.iter().any(|s| s.base == a as u64);
        assert!(seen.iter().all(|s| s.id != e[0].id && s.token != e[0].token));
        seen.push(e[0]);
        cu.free(a);
        assert!(cuda::export(a, 1, 8).is_err());
        assert_eq!(hmem::registry::of(Kind::Cuda).number(a), None);
    }
    assert!(again, "the kernel gave no address out twice: the test tests nothing");
}

#[test]
fn what_cannot_be_shared_is_refused_with_the_drivers_word() {
    let (_alone, cu) = alone();
    for at in [cu.alloc_async(100), cu.alloc_managed(100)] {
        assert_eq!(cuda::export(at, 100, 8), Err(Error(801)));
        cu.free(at);
    }
    let at = cu.alloc(100);
    cu.fail(c"cuIpcGetMemHandle", 0, 1);
    assert_eq!(cuda::export(at, 100, 8), Err(Error(1)));
    cu.fail(c"cuIpcGetMemHandle", 0, 0);
    assert!(cuda::export(at, 100, 8).is_ok());
    assert_eq!(cuda::export(at, 1 << 30, 8), Err(Error(500)), "it ends before that");
    assert_eq!(cuda::export_dmabuf(at, 100, true).unwrap_err(), Error(801));
    cu.free(at);
    let at = cu.map(3);
    assert_eq!(cuda::export(at + 5, 5 << 20, 8).unwrap().len(), 3);
    assert_eq!(cuda::export(at + 5, 5 << 20, 2), Err(Error(500)), "more pieces than the peer is told of");
    // A descriptor keeps the memory alive, so none is kept of what is gone.
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let open = fds();
    cu.unmap(at, 3);
    let other = cu.map(1);
    cuda::export(other, 1, 8).unwrap();
    assert!(fds() < open, "{} < {open}", fds());
    cu.unmap(other, 1);
}

#[test]
fn the_path_is_the_first_that_nobody_refuses() {
    let (_alone, cu) = alone();
    let (plain, pool) = (cu.alloc(100), cu.alloc_async(100));
    let found = find(span(plain, 100), false);
    assert_eq!((found.path, found.refused[Path::Dmabuf as usize]), (Path::PeerMap, libc::ENODEV));
    let found = find(span(plain, 100), true);
    assert_eq!((found.path, found.refused[Path::DmabufPcie as usize]), (Path::PeerMap, libc::EOPNOTSUPP));
    let found = find(span(pool, 100), false);
    assert_eq!((found.path, found.refused[Path::PeerMap as usize]), (Path::Staged, libc::EOPNOTSUPP));
    assert!(found.why.contains("peer mapping: CUDA error 801"), "{}", found.why);
    assert_eq!(find(Span::leak(1), false).path, Path::Cpu);
    cu.free(plain);
    cu.free(pool);
}

/// Another process, which owns memory and does as it is told.
struct Owner(Child, BufReader<std::process::ChildStdout>);

impl Owner {
    fn start() -> Owner {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "as_owner", "--nocapture", "--ignored"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Owner(child, out)
    }

    fn ask(&mut self, what: &str) -> Vec<u64> {
        writeln!(self.0.stdin.as_mut().unwrap(), "{what}").unwrap();
        loop {
            let mut line = String::new();
            assert!(self.1.read_line(&mut line).unwrap() > 0, "the owner ended");
            if let Some(answer) = line.trim().strip_prefix("answer") {
                return answer.split_whitespace().map(|w| w.parse().unwrap()).collect();
            }
        }
    }

    /// Allocates, fills with `seed`'s pattern, and exports.
    fn make(&mut self, sort: &str, len: usize, seed: usize) -> Vec<Export> {
        let words = self.ask(&format!("{sort} {len} {seed}"));
        words.chunks(14).map(from_words).collect()
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn to_words(e: &Export) -> Vec<u64> {
    let mut out = vec![e.handle_type as u64, e.id, e.base, e.len, e.fd as u64 & 0xffff_ffff];
    let bytes = [&e.device[..8], &e.token[..]].concat();
    out.extend(bytes.chunks(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())));
    out
}

fn from_words(w: &[u64]) -> Export {
    let bytes: Vec<u8> = w[5..].iter().flat_map(|w| w.to_ne_bytes()).collect();
    let mut device = *b"stand-in device ";
    device[15] = 0;
    Export {
        handle_type: HandleType::from_u8(w[0] as u8).unwrap(),
        id: w[1],
        base: w[2],
        len: w[3],
        fd: w[4] as u32 as i32,
        device,
        token: bytes[8..72].try_into().unwrap(),
    }
}

#[test]
#[ignore = "the other process of the tests below"]
fn as_owner() {
    let cu = Driver::start();
    cuda::look();
    let (mut last, mut pool) = ((0, 0, String::new()), None);
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "plain" | "mapped" | "pool" => {
                let (len, seed): (usize, usize) = (words[1].parse().unwrap(), words[2].parse().unwrap());
                let at = match words[0] {
                    "plain" => cu.alloc(len),
                    "pool" => cu.alloc_from(*pool.get_or_insert_with(|| cu.pool()), len),
                    _ => cu.map(len.div_ceil(2 << 20)),
                };
                for off in (0..len).step_by(1 << 20) {
                    let n = (len - off).min(1 << 20);
                    cu.write(at + off, &pattern(len, seed)[off..off + n]);
                }
                last = (at, len, words[0].to_owned());
                let words: Vec<String> = cuda::export(at, len, 64)
                    .unwrap()
                    .iter()
                    .flat_map(to_words)
                    .map(|w| w.to_string())
                    .collect();
                println!("answer {}", words.join(" "));
            }
            "keep" => {
                // One allocation of the pool that stays.
                cuda::export(cu.alloc_from(*pool.get_or_insert_with(|| cu.pool()), 100), 100, 1).unwrap();
                println!("answer");
            }
            "another-pool" => {
                let old = pool.take().unwrap();
                cu.drop_pool(old);
                pool = Some(cu.pool());
                println!("answer {}", u64::from(pool == Some(old)));
            }
            "free" => {
                if last.2 != "mapped" {
                    cu.free(last.0)
                } else {
                    cu.unmap(last.0, last.1.div_ceil(2 << 20))
                }
                println!("answer");
            }
            "sum" => {
                let sum: u64 = cu.read(last.0, last.1).iter().map(|b| u64::from(*b)).sum();
                println!("answer {sum}");
            }
            other => panic!("{other}?"),
        }
    }
}

/// Reads `len` bytes from the start of what was exported.
fn fetch(owner: &Owner, exports: &[Export], local: usize, len: usize) -> Result<(), hmem::Error> {
    let base = exports[0].base;
    let (mut parts, mut keep, mut done) = (Vec::new(), Vec::new(), 0);
    for e in exports {
        let opened = share::open(owner.pid(), owner.pid() as u64, e, local)?;
        let (src, room) = opened.place(base + done as u64).unwrap();
        let n = room.min(len - done);
        parts.push(Part { dst: local + done, src, len: n });
        done += n;
        keep.push(opened);
    }
    assert_eq!(done, len);
    // SAFETY: the mappings are kept, and the local memory outlives the copy.
    let mut pending = unsafe { flight::start(&parts, keep, &[span(local, len)], false)? };
    while !pending.poll()? {
        std::thread::sleep(Duration::from_micros(10));
    }
    Ok(())
}

#[test]
fn another_process_memory_is_read_once_it_is_opened_and_opened_once() {
    let (_alone, cu) = alone();
    let mut owner = Owner::start();
    for (sort, len, opens) in [("plain", 5001, c"cuIpcOpenMemHandle_v2"), ("mapped", 6 << 20, c"cuMemMap")] {
        let exports = owner.make(sort, len, 9);
        assert_eq!(exports.len(), if sort == "plain" { 1 } else { 3 });
        let local = cu.alloc(len);
        fetch(&owner, &exports, local, len).unwrap();
        assert!(cu.read(local, len) == pattern(len, 9), "{sort}");
        let before = cu.calls(opens);
        let host = vec![0u8; len];
        fetch(&owner, &exports, host.as_ptr().addr(), len).unwrap();
        assert!(host == pattern(len, 9), "{sort}");
        assert_eq!(cu.calls(opens), before, "{sort}: opened once");
        cu.free(local);
    }
    share::forget(owner.pid() as u64);
}

#[test]
fn memory_of_a_pool_for_sharing_is_open_only_while_it_is_used() {
    let (_alone, cu) = alone();
    let mut owner = Owner::start();
    let local = cu.alloc(100_000);
    let mut imports = 0;
    owner.ask("keep");
    for seed in 1..5 {
        let e = owner.make("pool", 100_000, seed);
        assert_eq!((e.len(), e[0].handle_type), (1, HandleType::Pool));
        let before = cu.calls(c"cuMemPoolImportFromShareableHandle");
        for _ in 0..2 {
            let frees = cu.calls(c"cuMemFreeAsync");
            fetch(&owner, &e, local, 100_000).unwrap();
            assert!(cu.read(local, 100_000) == pattern(100_000, seed));
            assert_eq!(cu.calls(c"cuMemFreeAsync"), frees + 1, "freed before the owner does");
        }
        imports += cu.calls(c"cuMemPoolImportFromShareableHandle") - before;
        owner.ask("free");
        assert!(fetch(&owner, &e, local, 100_000).is_err(), "it is gone");
    }
    assert_eq!(imports, 1, "the pool is imported once");
    // Two parts of one transfer share a mapping.
    let e = owner.make("pool", 100_000, 9);
    let open = || share::open(owner.pid(), owner.pid() as u64, &e[0], local).unwrap();
    let (a, b) = (open(), open());
    assert_eq!(a.place(e[0].base), b.place(e[0].base));
    drop((a, b));
    // A pointer of no such pool, and calls that fail.
    let mut wrong = e.clone();
    wrong[0].token[0] ^= 1;
    assert_eq!(fetch(&owner, &wrong, local, 10), Err(Error(1).into()));
    for name in [c"cuMemPoolImportPointer", c"cuMemGetAddressRange_v2", c"cuMemcpyAsync"] {
        cu.fail(name, 1, 700);
        assert_eq!(fetch(&owner, &e, local, 10), Err(Error(700).into()), "{name:?}");
    }
    fetch(&owner, &e, local, 100_000).unwrap();
    share::forget(owner.pid() as u64);
    let imports = cu.calls(c"cuMemPoolImportFromShareableHandle");
    assert_eq!(cu.calls(c"cuMemPoolDestroy"), imports, "none stays imported");
    // The process's own.
    let own = cu.alloc_from(cu.pool(), 100);
    assert_eq!(find(span(own, 100), false).path, Path::PeerMap);
    cu.fail(c"cuMemPoolExportPointer", 0, 1);
    let other = cu.alloc_from(cu.pool(), 100);
    assert_eq!(find(span(other, 100), false).path, Path::Staged);
    cu.fail(c"cuMemPoolExportPointer", 0, 0);
    cu.free(own);
    cu.free(other);
    cu.free(local);
}

#[test]
fn a_pool_that_came_under_the_name_of_another_is_not_taken_for_it() {
    let (_alone, cu) = alone();
    let mut owner = Owner::start();
    let local = cu.alloc(100_000);
    for seed in 1..5 {
        let e = owner.make("pool", 100_000, seed);
        fetch(&owner, &e, local, 100_000).unwrap();
        assert!(cu.read(local, 100_000) == pattern(100_000, seed));
        owner.ask("free");
        assert_eq!(owner.ask("another-pool"), [1], "under the same name");
    }
    share::forget(owner.pid() as u64);
    cu.free(local);
}

#[test]
fn host_memory_is_page_locked_for_as_long_as_it_is_kept() {
    let (_alone, cu) = alone();
    let room = vec![0u8; 1 << 20];
    let at = room.as_ptr().addr();
    // SAFETY: `room` lives longer than what is returned.
    let locked = unsafe { registry::of(Kind::Cuda).lock_host(at, room.len()) }.unwrap();
    assert_eq!(cuda::info(at + 5).map(|i| i.sort), Some(Sort::Host));
    assert_eq!(classify(at, 8), Kind::System);
    drop(locked);
    assert_eq!(cuda::info(at + 5), None);
    cu.fail(c"cuMemHostRegister_v2", 1, 2);
    // SAFETY: as above.
    assert!(unsafe { registry::of(Kind::Cuda).lock_host(at, room.len()) }.is_none());
}

#[test]
fn memory_freed_while_it_is_open_is_not_taken_for_its_successor() {
    let (_alone, cu) = alone();
    let mut owner = Owner::start();
    let local = cu.alloc(8192);
    let first = owner.make("plain", 8192, 1);
    fetch(&owner, &first, local, 8192).unwrap();
    let mut again = false;
    for seed in 2..20 {
        owner.ask("free");
        let next = owner.make("plain", 8192, seed);
        again |= next[0].base == first[0].base;
        fetch(&owner, &next, local, 8192).unwrap();
        assert!(cu.read(local, 8192) == pattern(8192, seed));
    }
    assert!(again, "no address came twice: the test tests nothing");
    assert_eq!(cu.calls(c"cuIpcCloseMemHandle") > 0, again, "what was there before is closed");
    // What is gone is not opened by an old name.
    owner.ask("free");
    share::forget(owner.pid() as u64);
    assert!(fetch(&owner, &first, local, 8192).is_err());
    cu.free(local);
}

#[test]
fn a_peer_that_dies_or_lies_costs_an_error() {
    let (_alone, cu) = alone();
    let mut owner = Owner::start();
    let local = cu.alloc(8192);
    let exports = owner.make("plain", 8192, 1);
    cu.fail(c"cuIpcOpenMemHandle_v2", 0, 1);
    assert_eq!(fetch(&owner, &exports, local, 10), Err(Error(1).into()));
    cu.fail(c"cuIpcOpenMemHandle_v2", 0, 0);
    let mut longer = exports.clone();
    longer[0].len = 1 << 30;
    assert_eq!(fetch(&owner, &longer, local, 10), Err(Error(1).into()), "the driver knows better");
    let mut wild = exports.clone();
    wild[0].base = u64::MAX - 10;
    assert!(fetch(&owner, &wild, local, 10).is_err());
    let mapped = owner.make("mapped", 2 << 20, 1);
    let mut none = mapped.clone();
    none[0].fd = 9999;
    assert_eq!(fetch(&owner, &none, local, 10), Err(Error(400).into()));
    // Its memory stays until we let go of it, as with the driver.
    fetch(&owner, &exports, local, 8192).unwrap();
    drop(owner.0.kill());
    owner.0.wait().unwrap();
    fetch(&owner, &exports, local, 8192).unwrap();
    share::forget(owner.pid() as u64);
    assert!(fetch(&owner, &exports, local, 8192).is_err());
    cu.free(local);
}

#[test]
fn nothing_is_initialised_and_no_context_is_made() {
    let (_alone, cu) = alone();
    let before = (cu.calls(c"cuInit"), cu.calls(c"cuCtxCreate_v2"), cu.calls(c"cuDevicePrimaryCtxRetain"));
    let a = cu.alloc(10);
    write(&[span(a, 10)], 0, &[1; 10]);
    cu.free(a);
    // Device 1 is idle: it was not used in this test, or its context was made by another one.
    let after = (cu.calls(c"cuInit"), cu.calls(c"cuCtxCreate_v2"), cu.calls(c"cuDevicePrimaryCtxRetain"));
    assert_eq!((after.0, after.1), (before.0, before.1));
    assert!(after.2 <= before.2 + 1, "held once, being active already");
}

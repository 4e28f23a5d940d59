//! Memory of other processes.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cuda_stand_in::driver::Driver;
use hmem::cuda;
use hmem::pending::{self, Part};
use hmem::share::{self, Export, HandleType};

use super::*;

/// Another process, which owns memory and takes commands.
struct Owner(Child, BufReader<std::process::ChildStdout>);

impl Owner {
    fn start() -> Owner {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::as_owner", "--nocapture", "--ignored"])
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
    cuda::find_driver();
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
    let mut pending = unsafe { pending::start(&parts, keep, &[span(local, len)], false)? };
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
fn what_is_opened_uncached_is_closed_when_it_is_dropped() {
    let (_alone, cu) = alone();
    let mut owner = Owner::start();
    let local = cu.alloc(8192);
    let export = owner.make("plain", 8192, 1)[0];
    let (pid, closed) = (owner.pid(), cu.calls(c"cuIpcCloseMemHandle"));
    let kept = share::open(pid, pid as u64, &export, local).unwrap();
    drop(kept);
    assert_eq!(cu.calls(c"cuIpcCloseMemHandle"), closed);
    let opened = share::open_uncached(pid, pid as u64, &export, local).unwrap();
    let (at, len) = opened.place(export.base).unwrap();
    assert!(at != 0 && len >= 8192);
    let other = cu.calls(c"cuIpcCloseMemHandle");
    assert_eq!(other, closed + 1, "what was kept is closed first");
    drop(opened);
    assert_eq!(cu.calls(c"cuIpcCloseMemHandle"), other + 1);
    share::forget(pid as u64);
    cu.free(local);
}

/// The mapping of what cudaMalloc made goes with the context; that of what was mapped by hand belongs to
/// none.
#[test]
fn memory_is_opened_anew_when_the_context_it_was_opened_in_is_gone() {
    let (_alone, cu) = alone();
    let mut owner = Owner::start();
    for (sort, len) in [("plain", 5001), ("mapped", 2 << 20)] {
        let exports = owner.make(sort, len, 9);
        let (before, closed) = (cu.in_use(), cu.calls(c"cuIpcCloseMemHandle"));
        let mut name = 0;
        for round in 0..4 {
            let ctx = cu.make_context(0);
            assert!(name == 0 || name == ctx, "names are used again");
            name = ctx;
            let local = cu.alloc(len);
            fetch(&owner, &exports, local, len).unwrap_or_else(|e| panic!("{sort} {round}: {e}"));
            assert!(cu.read(local, len) == pattern(len, 9), "{sort} {round}");
            cu.free(local);
            cu.end_context(ctx);
            cu.enter(0);
        }
        // What is gone is not entered: the driver does not refuse that.
        let entered = cu.calls(c"cuCtxPushCurrent_v2");
        share::forget(owner.pid() as u64);
        assert_eq!(cu.calls(c"cuCtxPushCurrent_v2"), entered, "{sort}");
        assert_eq!(cu.in_use(), before, "{sort}: another process's memory is kept for good");
        assert_eq!(cu.calls(c"cuIpcCloseMemHandle"), closed, "{sort}: what may be something else by then");
    }
}

#[test]
fn the_processor_has_no_part_in_a_copy_to_memory_that_may_be_gone() {
    let (_alone, cu) = alone();
    let mut owner = Owner::start();
    let len = 3 << 20;
    let exports = owner.make("plain", len, 9);
    for may_vanish in [false, true] {
        let mut host = vec![0u8; len];
        let dst = host.as_mut_ptr().expose_provenance();
        let to = if may_vanish { span(dst, len).for_peers() } else { span(dst, len) };
        let opened = share::open(owner.pid(), owner.pid() as u64, &exports[0], dst).unwrap();
        let (src, _) = opened.place(exports[0].base).unwrap();
        let before = cu.calls(c"cuMemcpyAsync");
        // SAFETY: the mapping is kept, and the local memory outlives the copy.
        let started = unsafe { pending::start(&[Part { dst, src, len }], vec![opened], &[to], false) };
        assert_eq!(cu.calls(c"cuMemcpyAsync") - before, if may_vanish { 1 } else { 3 });
        let mut pending = started.unwrap();
        while !pending.poll().unwrap() {}
        assert!(host == pattern(len, 9));
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
    assert_eq!(find(span(own, 100), no_device).path, Path::PeerMap);
    cu.fail(c"cuMemPoolExportPointer", 0, 1);
    let other = cu.alloc_from(cu.pool(), 100);
    assert_eq!(find(span(other, 100), no_device).path, Path::Staged);
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

/// By its handle an importer knows memory that it has mapped: its address and its descriptor's number may be
/// those of memory that is gone.
#[test]
fn memory_that_is_made_again_has_another_handle() {
    let (_alone, _cu) = alone();
    let device = cuda::device(None).unwrap();
    let exports: Vec<Export> = (0..4).map(|_| cuda::Made::new(device, 100).unwrap().export()).collect();
    for (n, one) in exports.iter().enumerate() {
        assert!(exports[..n].iter().all(|other| other != one), "{one:?}");
    }
}

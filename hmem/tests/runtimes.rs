//! ROCm's and Level Zero's memory, over stand-ins for their runtimes. One process, so one test at a
//! time; each test for both.

use std::ffi::CStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hmem::path::{Path, any_device, find, no_device};
use hmem::pending::{self, Part};
use hmem::share::{self, Export, HandleType, Opened};
use hmem::{Kind, Span, classify, copy, read, registry, write};
use rocr_stand_in::runtime::Runtime;
use ze_stand_in::loader::Loader;

/// A runtime, as a program has it.
trait Device {
    fn kind(&self) -> Kind;
    fn alloc(&self, device: usize, len: usize) -> usize;
    fn alloc_host(&self, len: usize) -> usize;
    fn free(&self, at: usize);
    fn put(&self, at: usize, bytes: &[u8]);
    fn get(&self, at: usize, len: usize) -> Vec<u8>;
    fn fail(&self, name: &CStr, nth: u64, code: i32);
    fn calls(&self, name: &CStr) -> u64;
    /// Its calls: to export, open and close, copy and wait, copy in flight, ask how that is.
    fn names(&self) -> [&'static CStr; 6];
    /// An error of its, and the errno of that.
    fn an_error(&self) -> (i32, i32);
}

impl Device for Runtime {
    fn kind(&self) -> Kind {
        Kind::Rocr
    }
    fn alloc(&self, device: usize, len: usize) -> usize {
        Runtime::alloc(self, device as u64, len)
    }
    fn alloc_host(&self, len: usize) -> usize {
        Runtime::alloc_host(self, len)
    }
    fn free(&self, at: usize) {
        Runtime::free(self, at)
    }
    fn put(&self, at: usize, bytes: &[u8]) {
        self.write(at, bytes)
    }
    fn get(&self, at: usize, len: usize) -> Vec<u8> {
        self.read(at, len)
    }
    fn fail(&self, name: &CStr, nth: u64, code: i32) {
        Runtime::fail(self, name, nth, code)
    }
    fn calls(&self, name: &CStr) -> u64 {
        Runtime::calls(self, name)
    }
    fn names(&self) -> [&'static CStr; 6] {
        [
            c"hsa_amd_ipc_memory_create",
            c"hsa_amd_ipc_memory_attach",
            c"hsa_amd_ipc_memory_detach",
            c"hsa_memory_copy",
            c"hsa_amd_memory_async_copy",
            c"hsa_signal_load_scacquire",
        ]
    }
    fn an_error(&self) -> (i32, i32) {
        (0x1008, libc::ENOMEM)
    }
}

impl Device for Loader {
    fn kind(&self) -> Kind {
        Kind::Ze
    }
    fn alloc(&self, device: usize, len: usize) -> usize {
        Loader::alloc(self, device, len)
    }
    fn alloc_host(&self, len: usize) -> usize {
        Loader::alloc_host(self, len)
    }
    fn free(&self, at: usize) {
        Loader::free(self, at)
    }
    fn put(&self, at: usize, bytes: &[u8]) {
        self.write(at, bytes)
    }
    fn get(&self, at: usize, len: usize) -> Vec<u8> {
        self.read(at, len)
    }
    fn fail(&self, name: &CStr, nth: u64, code: i32) {
        Loader::fail(self, name, nth, code)
    }
    fn calls(&self, name: &CStr) -> u64 {
        Loader::calls(self, name)
    }
    fn names(&self) -> [&'static CStr; 6] {
        [
            c"zeMemGetIpcHandle",
            c"zeMemOpenIpcHandle",
            c"zeMemCloseIpcHandle",
            c"zeCommandListAppendMemoryCopy",
            c"zeCommandListAppendMemoryCopy",
            c"zeEventQueryStatus",
        ]
    }
    fn an_error(&self) -> (i32, i32) {
        (0x7000_0003, libc::ENOMEM)
    }
}

fn device(name: &str) -> Box<dyn Device> {
    match name {
        "rocr" => Box::new(Runtime::start()),
        _ => Box::new(Loader::start()),
    }
}

/// Runs the test for both; what it returns keeps other tests out.
fn each(test: impl Fn(&dyn Device, &str)) -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    let alone = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    for name in ["rocr", "ze"] {
        let d = device(name);
        registry::find_runtimes();
        test(&*d, name);
    }
    alone
}

fn span(addr: usize, len: usize) -> Span {
    // SAFETY: the stand-ins check what is copied there, and these tests free nothing early unless to
    // see it checked.
    unsafe { Span::new(addr, len, classify(addr, len)) }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

#[test]
fn device_memory_is_distinguished_from_the_hosts() {
    let _alone = each(|d, name| {
        let (mem, host, heap) = (d.alloc(1, 100), d.alloc_host(100), vec![0u8; 8 << 20]);
        assert_eq!((classify(mem, 100), classify(mem + 99, 1)), (d.kind(), d.kind()), "{name}");
        assert_eq!(classify(host, 100), Kind::System, "{name}");
        assert_eq!(classify(heap.as_ptr().addr(), 8), Kind::System);
        assert!(registry::of(d.kind()).describe().unwrap().contains('2'), "{name}: two devices");
        // ROCm's have no numbers.
        let device = u32::from(d.kind() == Kind::Ze);
        assert_eq!(registry::of(d.kind()).to_adapter(mem + 50, 1), Some((0, device)), "{name}");
        assert_eq!(registry::of(d.kind()).to_adapter(host, 1), None, "{name}");
        d.free(mem);
        assert_eq!(classify(mem, 1), Kind::System, "{name}: freed");
        d.free(host);
    });
    // One that migrates is a device's, and staged.
    let ze = Loader::start();
    let shared = ze.alloc_shared(100);
    assert_eq!(classify(shared, 8), Kind::Ze);
    assert_eq!(find(span(shared, 100), no_device).path, Path::Staged);
    assert_eq!(registry::of(Kind::Ze).to_adapter(shared, 1), None);
    ze.free(shared);
}

#[test]
fn copies_go_every_way_from_any_thread() {
    let _alone = each(|d, name| {
        let (a, b, text) = (d.alloc(0, 5000), d.alloc(1, 5000), pattern(3000, 1));
        let run = || {
            assert_eq!(write(&[span(a, 5000)], 7, &text), 3000);
            assert_eq!(copy(&[span(b, 5000)], 11, &[span(a, 5000)], 7, 3000), 3000);
            let mut back = vec![0; 3000];
            assert_eq!(read(&[span(b, 5000)], 11, &mut back), 3000);
            assert!(back == text, "{name}");
        };
        run();
        std::thread::scope(|s| s.spawn(run).join().unwrap());
        let (code, _) = d.an_error();
        d.fail(d.names()[3], 1, code);
        assert_eq!(write(&[span(a, 5000)], 0, &text), 0, "{name}");
        assert_eq!(write(&[span(a, 5000)], 0, &text), 3000, "{name}");
        // What is gone is refused, not followed.
        let gone = span(a, 5000);
        d.free(a);
        assert_eq!(write(&[gone], 0, &text), 0, "{name}");
        d.free(b);
    });
}

#[test]
fn between_two_kinds_bytes_go_through_the_host() {
    let _alone = each(|_, _| {});
    let (rocr, ze) = (Runtime::start(), Loader::start());
    let len = (2 << 20) + 77;
    let (a, b) = (rocr.alloc(0, len), ze.alloc(0, len));
    rocr.write(a, &pattern(len, 5));
    assert_eq!(copy(&[span(b, len)], 0, &[span(a, len)], 0, len), len);
    assert!(ze.read(b, len) == pattern(len, 5));
    rocr.free(a);
    ze.free(b);
}

#[test]
fn an_address_that_is_used_again_is_another_allocation() {
    let _alone = each(|d, name| {
        let memory = registry::of(d.kind());
        let (mut seen, mut again) = (Vec::<Export>::new(), false);
        for _ in 0..20 {
            let a = d.alloc(0, 8192);
            let e = memory.export_ipc(a + 100, 1000, 8).unwrap();
            assert_eq!((e.len(), e[0].base, e[0].len), (1, a as u64, 8192), "{name}");
            assert_eq!(memory.export_ipc(a, 8192, 8).unwrap(), e, "{name}: remembered");
            assert!(memory.is_still(&e[0]));
            again |= seen.iter().any(|s| s.base == a as u64);
            assert!(seen.iter().all(|s| s.id != e[0].id), "{name}");
            seen.push(e[0]);
            d.free(a);
            assert!(!memory.is_still(&e[0]), "{name}");
            assert!(memory.export_ipc(a, 1, 8).is_err(), "{name}");
        }
        assert!(again, "the kernel gave no address out twice: the test tests nothing");
    });
}

#[test]
fn refusals_have_their_errno_and_lead_to_staging() {
    let _alone = each(|d, name| {
        let a = d.alloc(0, 4096);
        let (code, errno) = d.an_error();
        d.fail(d.names()[0], 0, code);
        let found = find(span(a, 4096), no_device);
        assert_eq!((found.path, found.refused[Path::PeerMap as usize]), (Path::Staged, errno), "{name}");
        assert!(found.why.contains("peer mapping: "), "{}", found.why);
        d.fail(d.names()[0], 0, 0);
        assert_eq!(find(span(a, 4096), no_device).path, Path::PeerMap, "{name}");
        let found = find(span(a + 5, 100), any_device(span(a + 5, 100)));
        assert_eq!(found.path, Path::DmabufPcie, "{name}: {}", found.why);
        let (_fd, off) = registry::of(d.kind()).export_dmabuf(a + 5, 100, false).unwrap();
        assert_eq!(off, 5, "{name}");
        assert!(registry::get_pages(span(a, 4096), true).is_ok());
        d.free(a);
    });
    // A driver that cannot distinguish an allocation from its successor.
    let ze = Loader::start();
    let at = ze.alloc(0, 64);
    // SAFETY: no other thread of this test looks at the environment; the others hold no runtime now.
    unsafe { std::env::set_var("ZE_STAND_IN_OLD", "1") };
    let refused = registry::of(Kind::Ze).export_ipc(at, 64, 8).unwrap_err();
    // SAFETY: as above.
    unsafe { std::env::remove_var("ZE_STAND_IN_OLD") };
    assert_eq!(refused.errno(), libc::EOPNOTSUPP);
    ze.free(at);
    // A runtime that does not say when memory goes.
    let rocr = Runtime::start();
    let at = rocr.alloc(0, 64);
    rocr.fail(c"hsa_amd_register_deallocation_callback", 1, 0x1000);
    assert!(registry::of(Kind::Rocr).export_ipc(at, 64, 8).is_err());
    assert!(registry::of(Kind::Rocr).export_ipc(at, 64, 8).is_ok());
    rocr.free(at);
}

/// Another process, which owns memory and takes commands.
struct Owner(Child, BufReader<std::process::ChildStdout>);

impl Owner {
    fn start(runtime: &str) -> Owner {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "as_owner", "--nocapture"])
            .env("RUNTIME", runtime)
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

    fn make(&mut self, len: usize, seed: usize) -> Export {
        let w = self.ask(&format!("make {len} {seed}"));
        let bytes: Vec<u8> = w[5..].iter().flat_map(|w| w.to_ne_bytes()).collect();
        Export {
            handle_type: HandleType::from_u8(w[0] as u8).unwrap(),
            id: w[1],
            base: w[2],
            len: w[3],
            fd: w[4] as u32 as i32,
            device: bytes[..16].try_into().unwrap(),
            token: bytes[16..80].try_into().unwrap(),
        }
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

#[test]
#[ignore = "the other process of the tests below"]
fn as_owner() {
    let d = device(&std::env::var("RUNTIME").unwrap());
    registry::find_runtimes();
    let mut last = (0, 0);
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[0] {
            "make" => {
                let (len, seed): (usize, usize) = (words[1].parse().unwrap(), words[2].parse().unwrap());
                let at = d.alloc(0, len);
                d.put(at, &pattern(len, seed));
                last = (at, len);
                let e = registry::of(d.kind()).export_ipc(at, len, 8).unwrap()[0];
                let mut words = vec![e.handle_type as u64, e.id, e.base, e.len, e.fd as u64 & 0xffff_ffff];
                let bytes = [&e.device[..], &e.token[..]].concat();
                words.extend(bytes.chunks(8).map(|c| u64::from_ne_bytes(c.try_into().unwrap())));
                let words: Vec<String> = words.iter().map(u64::to_string).collect();
                println!("answer {}", words.join(" "));
            }
            "free" => {
                d.free(last.0);
                println!("answer");
            }
            "sum" => {
                let sum: u64 = d.get(last.0, last.1).iter().map(|b| u64::from(*b)).sum();
                println!("answer {sum}");
            }
            other => panic!("{other}?"),
        }
    }
}

/// Copies all of what was exported, from there or to there.
fn fly(owner: &Owner, e: &Export, local: usize, into: bool) -> Result<(), hmem::Error> {
    let len = e.len as usize;
    let opened: Opened = share::open(owner.pid(), owner.pid() as u64, e, local)?;
    let (there, room) = opened.place(e.base).unwrap();
    assert_eq!(room, len);
    let half = len / 2;
    let part = |off: usize, len| {
        let (here, there) = (local + off, there + off);
        if into { Part { dst: there, src: here, len } } else { Part { dst: here, src: there, len } }
    };
    let parts = [part(0, half), part(half, len - half)];
    // SAFETY: the mapping is kept, and the local memory outlives the copy.
    let mut pending = unsafe { pending::start(&parts, vec![opened], &[span(local, len)], into)? };
    while !pending.poll()? {
        std::thread::sleep(Duration::from_micros(10));
    }
    Ok(())
}

#[test]
fn another_process_memory_is_copied_both_ways_and_opened_once() {
    let _alone = each(|d, name| {
        let mut owner = Owner::start(name);
        let len = (3 << 20) + 5;
        let e = owner.make(len, 9);
        let local = d.alloc(1, len);
        fly(&owner, &e, local, false).unwrap();
        assert!(d.get(local, len) == pattern(len, 9), "{name}");
        let opens = d.calls(d.names()[1]);
        let host = vec![0u8; len];
        fly(&owner, &e, local, false).unwrap();
        assert_eq!(d.calls(d.names()[1]), opens, "{name}: opened once");
        fly(&owner, &e, host.as_ptr().addr(), false).unwrap();
        assert!(host == pattern(len, 9), "{name}");
        d.put(local, &vec![3; len]);
        fly(&owner, &e, local, true).unwrap();
        assert_eq!(owner.ask("sum"), [3 * len as u64], "{name}");
        share::forget(owner.pid() as u64);
        assert!(d.calls(d.names()[2]) > 0, "{name}: closed");
        d.free(local);
    });
}

#[test]
fn failures_midway_are_errors_and_leave_nothing_in_use() {
    let _alone = each(|d, name| {
        let mut owner = Owner::start(name);
        let e = owner.make(100_000, 4);
        let local = d.alloc(0, 100_000);
        let (code, errno) = d.an_error();
        d.fail(d.names()[1], 1, code);
        assert_eq!(fly(&owner, &e, local, false).unwrap_err().errno(), errno, "{name}");
        // The first part goes, the second does not.
        for nth in [1, 2] {
            d.fail(d.names()[4], nth, code);
            assert_eq!(fly(&owner, &e, local, false).unwrap_err().errno(), errno, "{name}");
        }
        d.fail(d.names()[5], 1, code);
        assert!(fly(&owner, &e, local, false).is_err(), "{name}");
        fly(&owner, &e, local, false).unwrap();
        assert!(d.get(local, 100_000) == pattern(100_000, 4), "{name}");
        // A liar's length, and a descriptor or handle that is not one.
        share::forget(owner.pid() as u64);
        let mut long = e;
        long.len = 1 << 30;
        assert!(share::open(owner.pid(), 7, &long, local).is_err(), "{name}");
        let mut wild = e;
        wild.base = u64::MAX - 10;
        assert!(share::open(owner.pid(), 7, &wild, local).is_err(), "{name}");
        let mut none = e;
        none.token[..8].fill(0xff);
        none.device.fill(1);
        assert!(share::open(owner.pid(), 7, &none, local).is_err(), "{name}");
        // Freed, and something else at its place.
        owner.ask("free");
        let next = owner.make(100_000, 5);
        fly(&owner, &next, local, false).unwrap();
        assert!(d.get(local, 100_000) == pattern(100_000, 5), "{name}");
        // The owner dies with a mapping open.
        drop(owner.0.kill());
        owner.0.wait().unwrap();
        fly(&owner, &next, local, false).unwrap();
        share::forget(owner.pid() as u64);
        assert!(fly(&owner, &next, local, false).is_err(), "{name}");
        d.free(local);
    });
}

//! Copies by an agent, over the stand-in for CUDA's driver. An agent is there for a process, so each test is
//! a process.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cuda_stand_in::again::{itself, outcome};
use cuda_stand_in::driver::Driver;
use hmem::share::{Export, Owner, plan};
use hmem::stage::Pool;
use hmem::{Kind, Span, agent, registry};

const LEN: usize = 700_001;

#[test]
#[ignore = "the agent of the tests below"]
fn as_agent() {
    Driver::load();
    if let Ok(file) = std::env::var("AGENT_PID_FILE") {
        std::fs::write(file, std::process::id().to_string()).unwrap();
    }
    hmem::agent_process::serve(std::io::stdin().as_fd().try_clone_to_owned().unwrap()).unwrap();
    if let Ok(file) = std::env::var("AGENT_CALLS_FILE") {
        let calls = [c"cuEventQuery", c"cuCtxPushCurrent_v2"].map(|name| Driver::load().calls(name));
        std::fs::write(file, format!("{} {} calls", calls[0], calls[1])).unwrap();
    }
}

fn passes(name: &str) {
    assert!(outcome(itself(name), 100).is_some_and(|s| s.success()), "{name}");
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251 + seed) as u8).collect()
}

fn device(at: usize, len: usize) -> Span {
    // SAFETY: device memory, or followed by no test.
    unsafe { Span::new(at, len, Kind::Cuda) }
}

fn host(bytes: &mut [u8]) -> Span {
    // SAFETY: the vectors of a test outlive what is done with them.
    unsafe { Span::new(bytes.as_mut_ptr().expose_provenance(), bytes.len(), Kind::System) }
}

fn start() -> Driver {
    let cu = Driver::start();
    registry::find_runtimes();
    cu
}

/// A thread in cudaFree, which waits for a kernel; the driver's other calls wait for that.
fn with_cuda_free<R>(cu: Driver, work: impl FnOnce() -> R) -> R {
    let scratch = cu.alloc(8);
    cu.kernel(true);
    let freeing = std::thread::spawn(move || cu.free(scratch));
    while cu.freeing() == 0 {
        std::thread::yield_now();
    }
    let done = work();
    // The kernel has what it waited for.
    cu.kernel(false);
    freeing.join().unwrap();
    done
}

fn copies_within_a_process(by_agent: bool) {
    let cu = start();
    let (a, b) = (cu.alloc(LEN), cu.alloc(LEN));
    cu.write(a, &pattern(LEN, 1));
    // One before, one after the agent starts.
    let _one = registry::get_pages(device(a, LEN), true).unwrap();
    if by_agent {
        agent::start(itself("as_agent")).unwrap();
        agent::start(itself("none")).unwrap();
    }
    let _two = registry::get_pages(device(b, LEN), true).unwrap();
    let mut back = vec![0; LEN];
    with_cuda_free(cu, || {
        assert_eq!((hmem::classify(a, 8), hmem::classify(b + LEN - 1, 1)), (Kind::Cuda, Kind::Cuda));
        let (a, b, back) = (device(a, LEN), device(b, LEN), host(&mut back));
        assert_eq!(hmem::copy(&[b], 3, &[a], 5, LEN - 5), LEN - 5);
        assert_eq!(hmem::copy(&[back], 0, &[b], 0, LEN), LEN);
        assert_eq!(hmem::write(&[a], 1, &[9; 600_000]), 600_000);
        // As frames are staged.
        let pool = Pool::new(2, 256 << 10);
        let mut out = pool.take().unwrap().read(&[b], 100, 200_000);
        while out.poll().is_none() {}
        assert_eq!(out.poll(), Some(true));
        let bytes = out.buffer().unwrap().bytes()[..200_000].to_vec();
        assert_eq!(bytes, &pattern(LEN, 1)[102..200_102]);
        let mut buffer = pool.take().unwrap();
        buffer.bytes()[..1000].fill(8);
        let mut into = buffer.write(&[a], 650_000, 1000);
        while into.poll().is_none() {}
        assert_eq!(into.poll(), Some(true));
        drop((out, into));
        // Short ones, of words and of other lengths and places, and those between short and long.
        for (at, len) in [(640_000, 8), (640_008, 1024), (642_001, 9), (643_004, 16), (644_000, 3000)] {
            let mut buffer = pool.take().unwrap();
            buffer.bytes()[..len].copy_from_slice(&pattern(len, at));
            let mut into = buffer.write(&[a], at, len);
            while into.poll().is_none() {}
            assert_eq!(into.poll(), Some(true));
        }
        assert_eq!(agent::is_on(), by_agent);
    });
    assert_eq!(back[3..LEN - 2], pattern(LEN, 1)[5..]);
    let a = cu.read(a, LEN);
    assert!(a[1..600_001].iter().all(|b| *b == 9) && a[650_000..651_000].iter().all(|b| *b == 8));
    assert_eq!(a[651_000..], pattern(LEN, 1)[651_000..]);
    for (at, len) in [(640_000, 8), (640_008, 1024), (642_001, 9), (643_004, 16), (644_000, 3000)] {
        assert_eq!(a[at..at + len], pattern(len, at), "{len} bytes at {at}");
    }
}

#[test]
#[ignore = "a process of a test"]
fn in_one_process() {
    copies_within_a_process(true);
}

#[test]
#[ignore = "a process of a test"]
fn in_one_process_without_an_agent() {
    copies_within_a_process(false);
}

/// Copies complete while cudaFree waits for a kernel that waits for them.
#[test]
fn agent_copies_while_cuda_free_waits_for_a_kernel() {
    passes("in_one_process");
    assert_eq!(outcome(itself("in_one_process_without_an_agent"), 3), None, "what the agent is for");
}

/// Another process, which has memory.
struct Peer(Child, BufReader<std::process::ChildStdout>);

impl Peer {
    fn start(sort: &str) -> (Peer, Vec<Export>) {
        let mut child =
            itself("as_peer").env("SORT", sort).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut peer = Peer(child, out);
        let line = peer.line();
        let bytes: Vec<u8> = line.split(' ').map(|b| b.parse().unwrap()).collect();
        let exports = bytes.chunks(Export::LEN).map(|c| Export::from_bytes(c.try_into().unwrap()).unwrap());
        (peer, exports.collect())
    }

    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.1.read_line(&mut line).unwrap() > 0, "the peer ended");
            if let Some(answer) = line.trim().strip_prefix("answer ") {
                return answer.to_owned();
            }
        }
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.0.stdin.as_mut().unwrap(), "{what}").unwrap();
        self.line()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "another process of the tests below"]
fn as_peer() {
    let cu = start();
    let mapped = std::env::var("SORT").unwrap() == "mapped";
    let len = 4 << 20;
    let at = if mapped { cu.map(2) } else { cu.alloc(len) };
    cu.write(at, &pattern(2 << 20, 2));
    cu.write(at + (2 << 20), &pattern(2 << 20, 3));
    let exports = hmem::cuda::export(at, len, 8).unwrap();
    let words: Vec<String> = exports.iter().flat_map(Export::to_bytes).map(|b| b.to_string()).collect();
    println!("answer {}", words.join(" "));
    for line in std::io::stdin().lines() {
        if line.unwrap() == "free" {
            cu.free(at);
            println!("answer freed");
            continue;
        }
        let bytes = cu.read(at, 100);
        println!("answer {}", bytes.iter().map(|b| u64::from(*b)).sum::<u64>());
    }
}

/// Copies `len` bytes between the peer's memory from byte 1 MiB on (`put`: from its first byte on) and
/// `local`.
fn with_peer(peer: &Peer, exports: &[Export], put: bool, local: &[Span], len: usize) -> Result<(), String> {
    let find = |at: u64| exports.iter().find(|e| at.wrapping_sub(e.base) < e.len);
    let at = exports[0].base + if put { 0 } else { 1 << 20 };
    let owner = Owner::now(peer.0.id() as i32);
    let plan = plan(put, owner, find, [(at, len as u64)], local, len).map_err(|e| format!("{e:?}"))?;
    let mut flight = plan.start().map_err(|e| e.to_string())?;
    loop {
        match flight.poll() {
            Ok(true) => return Ok(()),
            Ok(false) => std::thread::yield_now(),
            Err(e) => return Err(e.to_string()),
        }
    }
}

#[test]
#[ignore = "a process of a test"]
fn between_processes() {
    let cu = start();
    let at = cu.alloc(2 << 20);
    agent::start(itself("as_agent")).unwrap();
    let _kept = registry::get_pages(device(at, 2 << 20), true).unwrap();
    for sort in ["plain", "mapped"] {
        let (mut peer, exports) = Peer::start(sort);
        assert_eq!(exports.len(), if sort == "plain" { 1 } else { 2 });
        cu.write(at, &[0; 16]);
        with_cuda_free(cu, || {
            with_peer(&peer, &exports, false, &[device(at, 2 << 20)], 2 << 20).unwrap();
            // More than one packet has room for.
            let pieces: Vec<Span> = (0..100).map(|n| device(at + 4096 + n * 8, 1)).collect();
            with_peer(&peer, &exports, true, &pieces, 100).unwrap();
        });
        let got = cu.read(at, 2 << 20);
        assert_eq!(got[..1 << 20], pattern(2 << 20, 2)[1 << 20..], "{sort}");
        assert_eq!(got[1 << 20..], pattern(2 << 20, 3)[..1 << 20], "{sort}");
        let sum: u64 = (0..100).map(|n| u64::from(got[4096 + n * 8])).sum();
        assert_eq!(peer.ask("sum"), sum.to_string(), "{sort}");
    }
    // The driver of this process was asked for none of that.
    assert_eq!((cu.calls(c"cuIpcOpenMemHandle_v2"), cu.calls(c"cuMemcpyAsync")), (0, 0));
    // A handle of nothing is an error, and nothing else.
    let (mut peer, mut exports) = Peer::start("plain");
    exports[0].token[..8].fill(0);
    assert!(with_peer(&peer, &exports, false, &[device(at, 100)], 100).is_err());
    assert!(with_peer(&peer, &exports, false, &[Span::leak(100)], 100).is_err(), "no device reaches that");
    assert_eq!(peer.ask("free"), "freed");
    assert_eq!(hmem::copy(&[device(at, 50)], 0, &[device(at + 50, 50)], 0, 50), 50);
}

#[test]
fn the_agent_copies_between_processes() {
    passes("between_processes");
}

const MANY: usize = 12;

#[test]
#[ignore = "a process of a test"]
fn many_that_wait() {
    const LONG: usize = 256 << 10;
    let cu = start();
    let (peer, exports) = Peer::start("plain");
    let (at, file) = (cu.alloc(MANY * LONG), pid_file("many"));
    let mut command = itself("as_agent");
    command.env("AGENT_PID_FILE", &file);
    agent::start(command).unwrap();
    let _kept = registry::get_pages(device(at, MANY * LONG), true).unwrap();
    let find = |at: u64| exports.iter().find(|e| at.wrapping_sub(e.base) < e.len);
    let (owner, from) = (Owner::now(peer.0.id() as i32), [(exports[0].base, LONG as u64)]);
    let to: Vec<[Span; 1]> = (0..MANY).map(|n| [device(at + n * LONG, LONG)]).collect();
    let plans: Vec<_> = to.iter().map(|to| plan(false, owner, find, from, to, LONG).unwrap()).collect();
    let agent = pid_in(&file);
    // SAFETY: touches no memory.
    let signal = |which| assert_eq!(unsafe { libc::kill(agent, which) }, 0);
    signal(libc::SIGSTOP);
    let mut flights: Vec<_> = plans.into_iter().map(|plan| plan.start().unwrap()).collect();
    signal(libc::SIGCONT);
    for flight in &mut flights {
        while !flight.poll().unwrap() {}
    }
    for n in 0..MANY {
        assert_eq!(cu.read(at + n * LONG, LONG), pattern(2 << 20, 2)[..LONG]);
    }
}

#[test]
fn the_end_of_a_copy_does_not_wait_for_others_to_begin() {
    let file = pid_file("calls");
    let mut command = itself("many_that_wait");
    command.env("AGENT_CALLS_FILE", &file);
    assert!(outcome(command, 100).is_some_and(|s| s.success()));
    let until = Instant::now() + Duration::from_secs(50);
    // The agent writes it when its user has ended.
    let text = loop {
        match std::fs::read_to_string(&file) {
            Ok(text) if text.ends_with("calls") => break text,
            _ => assert!(Instant::now() < until, "the agent goes on"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    std::fs::remove_file(file).unwrap();
    let calls: Vec<usize> = text.split(' ').filter_map(|n| n.parse().ok()).collect();
    // The driver is asked between any two, and the context is entered once; to open the peer's memory may
    // enter it again.
    assert!(calls[0] >= MANY && calls[1] < MANY, "{text}");
}

#[test]
#[ignore = "a process of a test"]
fn what_is_not_known() {
    let cu = start();
    let (plain, pool) = (cu.alloc(1000), cu.alloc_async(1000));
    // What is registered already would be lost: there is no agent then.
    let both = [plain, pool].map(|at| registry::get_pages(device(at, 8), true).unwrap());
    assert!(agent::start(itself("as_agent")).is_err());
    assert_eq!((agent::is_on(), hmem::write(&[device(pool, 8)], 0, &[1; 8])), (false, 8));
    drop(both);
    agent::start(itself("as_agent")).unwrap();
    assert!(registry::get_pages(device(pool, 8), true).is_err(), "no other process reaches it");
    assert_eq!(registry::classify_to_register(plain, 8), Kind::Cuda);
    assert_eq!(hmem::copy(&[device(plain, 8)], 0, &[Span::leak(8)], 0, 8), 0, "not registered");
    let kept = registry::get_pages(device(plain, 8), true).unwrap();
    let again = registry::get_pages(device(plain + 8, 8), true).unwrap();
    drop(kept);
    assert_eq!(hmem::write(&[device(plain, 8)], 0, &[5; 8]), 8, "the allocation still has a registration");
    drop(again);
    assert_eq!(hmem::write(&[device(plain, 8)], 0, &[6; 8]), 0);
    assert_eq!(cu.read(plain, 8), [5; 8]);
    // What was open there is let go of, and what comes to the same place is another allocation.
    cu.free(plain);
    let next = cu.alloc(1000);
    let _kept = registry::get_pages(device(next, 1000), true).unwrap();
    assert_eq!(hmem::write(&[device(next, 1000)], 0, &[7; 1000]), 1000);
    assert_eq!(cu.read(next, 1000), [7; 1000]);
}

#[test]
fn memory_is_known_from_its_registration_on() {
    passes("what_is_not_known");
}

fn pid_file(name: &str) -> std::path::PathBuf {
    std::env::temp_dir().join(format!("strait-agent-{name}-{}", std::process::id()))
}

fn pid_in(file: &std::path::Path) -> i32 {
    let pid = std::fs::read_to_string(file).unwrap().parse().unwrap();
    std::fs::remove_file(file).unwrap();
    pid
}

#[test]
#[ignore = "a process of a test"]
fn with_an_agent_that_is_killed() {
    let cu = start();
    let (at, file) = (cu.alloc(1000), pid_file("killed"));
    let mut command = itself("as_agent");
    // What is in flight when it is killed.
    command.env("AGENT_PID_FILE", &file).env("CUDA_STAND_IN_DELAY_US", "300000");
    agent::start(command).unwrap();
    let kept = registry::get_pages(device(at, 1000), true).unwrap();
    let pid = pid_in(&file);
    std::thread::scope(|s| {
        let copy = s.spawn(|| hmem::copy(&[device(at, 8)], 0, &[device(at + 8, 8)], 0, 8));
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: touches no memory.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGKILL) }, 0);
        let _ = copy.join().unwrap();
    });
    assert_eq!(hmem::write(&[device(at, 8)], 0, &[5; 8]), 0);
    assert!(registry::get_pages(device(at, 1000), true).is_err());
    assert!(agent::start(itself("as_agent")).unwrap_err().to_string().contains("has ended"));
    drop(kept);
}

#[test]
fn without_the_agent_copies_fail_and_nothing_hangs() {
    passes("with_an_agent_that_is_killed");
}

#[test]
#[ignore = "a process of a test"]
fn with_an_agent_that_does_not_start() {
    start();
    assert!(agent::start(Command::new("/nowhere/strait")).is_err());
    assert!(agent::start(Command::new("true")).is_err());
    assert!(agent::start(Command::new("false")).is_err());
    assert!(!agent::is_on());
}

#[test]
fn an_agent_that_does_not_start_is_an_error() {
    passes("with_an_agent_that_does_not_start");
}

#[test]
#[ignore = "a process of a test"]
fn user_of_an_agent() {
    start();
    agent::start(itself("as_agent")).unwrap();
    // The end of a child is none of the agent's.
    // SAFETY: the child takes no lock that another thread may hold.
    match unsafe { libc::fork() } {
        0 => {
            assert!(agent::start(itself("as_agent")).is_err(), "a child has none");
            // SAFETY: ends the child.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: a child of this process, and a place for its status.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        }
    };
    let cu = Driver::start();
    let at = cu.alloc(8);
    let _kept = registry::get_pages(device(at, 8), true).unwrap();
    assert_eq!(hmem::write(&[device(at, 8)], 0, &[5; 8]), 8);
    // SAFETY: ends this process, as a signal would.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
}

#[test]
fn the_agent_ends_with_its_user() {
    use std::os::unix::process::ExitStatusExt as _;
    let file = pid_file("user");
    let mut command = itself("user_of_an_agent");
    command.env("AGENT_PID_FILE", &file);
    assert_eq!(outcome(command, 100).unwrap().signal(), Some(libc::SIGKILL));
    let pid = pid_in(&file);
    let is_there = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.contains(") ") && !stat.contains(") Z")
    };
    let until = Instant::now() + Duration::from_secs(50);
    while is_there() {
        assert!(Instant::now() < until, "the agent goes on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

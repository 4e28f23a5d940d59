//! Two processes with devices' memory, over the stand-in for CUDA's driver: what a device finds mapped is the
//! peer's memory, and commands move bytes from one device's memory to the other's.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{LIMIT, options, until};
use cuda_stand_in::driver::Driver;
use hmem::Kind;
use xpu::command::{Op, Raw};
use xpu::device::Ended;
use xpu::error::code;
use xpu::{Context, RingRequest, layout};

const LEN: usize = 1 << 16;

/// What the stand-in counts, and has fail, is the whole process's.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The other process: it does as it is told.
struct Peer(Child, BufReader<ChildStdout>);

impl Peer {
    fn start() -> Peer {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "as_peer", "--nocapture", "--ignored"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Peer(child, out)
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.0.stdin.as_mut().unwrap(), "{what}").unwrap();
        loop {
            let mut line = String::new();
            assert!(self.1.read_line(&mut line).unwrap() > 0, "the peer ended");
            if let Some(answer) = line.trim().strip_prefix("answer ") {
                return answer.to_string();
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// A context with one region of a device's memory, and that.
fn context(driver: &Driver) -> (Context, usize) {
    let mut context = Context::open(options()).unwrap();
    let at = driver.alloc(LEN);
    // SAFETY: it is never freed.
    assert_eq!(unsafe { context.register(at, LEN) }.unwrap(), 0);
    (context, at)
}

/// The second process of the tests below: its first line is the other one's blob.
#[test]
#[ignore = "started by other tests"]
fn as_peer() {
    let driver = Driver::start();
    let (mut context, at) = context(&driver);
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("blob", _) => println!("\nanswer {}", hex(&context.blob())),
            ("begin", theirs) => {
                context.connect(1, &[&unhex(theirs), &context.blob()]).unwrap();
                context.begin().unwrap();
                println!("\nanswer begun");
            }
            ("read", "") => println!("\nanswer {}", hex(&driver.read(at, 64))),
            (other, _) => panic!("{other}"),
        }
    }
}

#[test]
fn devices_reach_each_others_memory_and_learn_that_a_process_was_killed() {
    let _alone = alone();
    let driver = Driver::start();
    let (mut context, at) = context(&driver);
    let ring = context.open_ring(RingRequest::new(4)).unwrap();
    let mut peer = Peer::start();
    let (mine, theirs) = (context.blob(), unhex(&peer.ask("blob")));
    context.connect(0, &[&mine, &theirs]).unwrap();
    context.begin().unwrap();
    assert_eq!(peer.ask(&format!("begin {}", hex(&mine))), "begun");
    let entry = context.peer(1, 0).unwrap();
    assert_eq!(context.peer(0, 0).unwrap().mapped, at as u64);
    assert!(entry.mapped != 0 && entry.length == LEN as u64, "it is not mapped: {entry:?}");
    // What a kernel of this process would do: a store to the mapping.
    driver.write(entry.mapped as usize, &[7; 16]);
    // And a command, from this device's memory.
    driver.write(at, &[9; 32]);
    let put = Raw {
        op: Op::Put as u8,
        peer: 1,
        local: at as u64 + 8,
        remote: entry.remote + 16,
        key: entry.key,
        length: 24,
        ..Raw::default()
    };
    let producer = ring.producer();
    let ticket = producer.post(&[put]).unwrap();
    producer.wait(ticket, LIMIT).unwrap();
    let wanted = [[7u8; 16].as_slice(), &[9; 24], &[0; 24]].concat();
    assert_eq!(peer.ask("read"), hex(&wanted));
    // And back.
    let get = Raw { op: Op::Get as u8, local: at as u64 + 1000, remote: entry.remote, length: 40, ..put };
    let ticket = producer.post(&[get]).unwrap();
    producer.wait(ticket, LIMIT).unwrap();
    assert_eq!(driver.read(at + 1000, 40), wanted[..40]);
    // Outside of this process's memory.
    let ticket = producer.post(&[Raw { local: at as u64 + LEN as u64 - 8, ..put }]).unwrap();
    let Err(Ended::Error(error)) = producer.wait(ticket, LIMIT) else { panic!("it was done") };
    assert_eq!(error as u32 as i32, code::FAULT);
    assert_eq!(context.peer_error(1), 0);
    peer.0.kill().unwrap();
    until(|| context.peer_error(1) as u32 as i32 == code::CONNRESET);
    assert_eq!(context.peer_error(0), 0);
}

#[test]
fn memory_that_cannot_be_mapped_is_reached_by_commands() {
    let _alone = alone();
    let driver = Driver::start();
    let (mut context, _) = context(&driver);
    let mut peer = Peer::start();
    let (mine, mut theirs) = (context.blob(), unhex(&peer.ask("blob")));
    // As if of another host: of another boot.
    theirs[24] ^= 1;
    context.connect(0, &[&mine, &theirs]).unwrap();
    let entry = context.peer(1, 0).unwrap();
    assert_eq!(entry.mapped, 0);
    assert!(entry.remote != 0 && entry.length == LEN as u64);
}

/// What kernels find out about rings.
fn rings(view: u64, count: usize) -> Vec<layout::Ring> {
    // SAFETY: tables of a context that is open, in host memory; nothing writes them any more.
    unsafe {
        let view = std::ptr::with_exposed_provenance::<layout::Context>(view as usize).read();
        let first = std::ptr::with_exposed_provenance::<layout::Ring>(view.rings as usize);
        (0..count).map(|n| first.add(n).read()).collect()
    }
}

#[test]
fn what_kernels_alone_write_of_a_ring_is_in_their_devices_memory() {
    let _alone = alone();
    let driver = Driver::start();
    let (mut context, _) = context(&driver);
    let near = |bell| RingRequest { near: true, bell, ..RingRequest::new(4) };
    let copies = driver.calls(c"cuMemcpyAsync");
    let ring = context.open_ring(near(false)).unwrap();
    // The driver does not promise that new memory is zeroed.
    assert_eq!(driver.calls(c"cuMemcpyAsync"), copies + 1);
    context.open_ring(near(true)).unwrap();
    context.open_ring(RingRequest::new(4)).unwrap();
    driver.leave();
    context.open_ring(near(false)).unwrap();
    driver.enter(0);
    driver.fail(c"cuMemAlloc_v2", 0, 2);
    context.open_ring(near(false)).unwrap();
    driver.fail(c"cuMemAlloc_v2", 0, 0);
    let mine = context.blob();
    context.connect(0, &[&mine]).unwrap();
    let view = context.begin().unwrap();
    let found = rings(view, 5);
    let kinds: Vec<_> = found.iter().map(|r| hmem::classify(r.produced as usize, 64)).collect();
    // With a bell, not asked for, without a context, and without memory: the host's.
    assert_eq!(kinds, [Kind::Cuda, Kind::System, Kind::System, Kind::System, Kind::System]);
    assert_eq!(driver.read(found[0].produced as usize, 64), [0; 64]);
    // A command of a kernel's that reserved there.
    let words = Raw { op: Op::Nop as u8, region: layout::NO_REGION, ..Raw::default() }.pack(1);
    words.iter().enumerate().for_each(|(n, w)| ring.slots().words.get(n).store(*w, Release));
    // SAFETY: a word of the ring's in host memory, which stays as long as the context.
    let done =
        unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(found[0].status as usize + 16)) };
    until(|| done.load(Acquire) == 1);
}

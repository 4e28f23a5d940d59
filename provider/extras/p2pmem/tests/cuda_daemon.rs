//! Memory of a GPU in another process, by the daemon, over the stand-in for its driver; with STRAIT_TEST_CUDA=1
//! over the driver that this machine has.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cuda_stand_in::driver::Driver;
use p2pmem::daemon::{Publication, Server, Session};
use p2pmem::publisher::{Kind, PAGE};
use p2pmem::{Orchestrator, Rules, Topology};

const LEN: usize = 16 * PAGE as usize;

fn driver() -> Driver {
    match std::env::var_os("STRAIT_TEST_CUDA") {
        Some(_) => Driver::start_real(),
        None => Driver::start(),
    }
}

/// Not a test: the process that owns the memory.
#[test]
fn process_that_publishes() {
    let Ok(name) = std::env::var("STRAIT_P2PMEM_TEST_OWNER") else { return };
    let cu = driver();
    let at = cu.alloc(LEN);
    cu.write(at, &[7; LEN]);
    let session = Session::open(&name).unwrap();
    let function = Some("0000:07:00.0".parse().unwrap());
    let (kind, len) = (Kind::File, LEN as u64);
    let of = Publication { name: "gpu0", function, kind, offset: 0, len, all_users: false };
    session.with(|c| c.publish_memory(&of, at)).unwrap();
    println!("\n> published");
    for line in std::io::stdin().lines() {
        // A byte of it, by its place.
        let place: usize = line.unwrap().parse().unwrap();
        println!("\n> {}", cu.read(at + place, 1)[0]);
    }
}

fn said(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(from.read_line(&mut line).unwrap() > 0, "it ended");
        if let Some(text) = line.strip_prefix("> ") {
            return text.trim_end().to_owned();
        }
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn memory_of_a_gpu_is_mapped_by_another_process() {
    let cu = driver();
    let tree = Topology::parse(include_str!("trees/switches-intel.tree")).unwrap();
    let name = format!("strait-p2pmem-cuda/{}", std::process::id());
    let mut server = Server::new(&name, Orchestrator::new(tree, Rules::default(), Some(1))).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let until = stop.clone();
    let serving = std::thread::spawn(move || {
        while !until.load(Ordering::Relaxed) {
            server.serve_once(Duration::from_millis(20));
        }
    });
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process_that_publishes", "--nocapture"])
        .env("STRAIT_P2PMEM_TEST_OWNER", &name)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, mut from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let mut owner = Killed(child);
    assert_eq!(said(&mut from), "published");
    let session = Session::open(&name).unwrap();
    let listed = session.with(|c| c.list(&["mlx5_0"])).unwrap();
    assert_eq!((listed[0].kind.as_str(), listed[0].distance, listed[0].own), ("cuda", 6, true));
    let ask = || session.take(|c| c.allocate(&["mlx5_0"], 2 * PAGE, 1, 1, false, ""));
    let (one, two) = (ask().unwrap(), ask().unwrap());
    let at = one.pieces().unwrap()[0].addr();
    assert_eq!(hmem::classify(at, 2 * PAGE as usize), hmem::Kind::Cuda);
    assert_eq!(cu.read(at, 4), [7; 4], "what the owner has written");
    cu.write(at + 1, &[9]);
    cu.write(two.pieces().unwrap()[0].addr(), &[8]);
    for (place, is) in [(0, "7"), (1, "9"), (2 * PAGE as usize, "8")] {
        writeln!(to, "{place}").unwrap();
        assert_eq!(said(&mut from), is, "{place}");
    }
    // A dma-buf is its owner's to make.
    assert_eq!(one.dmabuf(0).unwrap_err().errno(), libc::EOPNOTSUPP);
    let token = one.token().unwrap();
    let other = Session::open(&name).unwrap();
    let joined = other.take(|c| c.open_shared(token)).unwrap();
    assert_eq!(cu.read(joined.pieces().unwrap()[0].addr() + 1, 1), [9]);
    two.free().unwrap();
    assert_eq!(session.with(|c| c.list(&[])).unwrap()[0].available, LEN as u64 - 2 * PAGE);
    // It ends: an error here, and the mapping stays until it is freed.
    let (calls, called) = std::sync::mpsc::channel();
    one.on_revoke(move |why| calls.send(why.to_owned()).unwrap()).unwrap();
    owner.0.kill().unwrap();
    assert!(called.recv_timeout(Duration::from_secs(60)).unwrap().contains("has ended"));
    assert_eq!(one.pieces().unwrap_err().errno(), libc::ESTALE);
    one.free().unwrap();
    joined.free().unwrap();
    assert_eq!(ask().unwrap_err().errno(), libc::ENOMEM);
    stop.store(true, Ordering::Relaxed);
    serving.join().unwrap();
}

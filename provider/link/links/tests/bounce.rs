//! Device memory that cannot be exported, between processes, over the stand-in for CUDA's driver.
//!
//! A child is this very program, started anew.
#![cfg(not(loom))]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cuda_stand_in::driver::Driver;
use engine::link_api::{Fallback, How, Link as _, Meter, Side};
use engine::{AvId, Cntrs, Completion, Config, CqId, Domain, EpConfig, EpId, Error, RxId};
use hmem::{Span, classify};
use link::{OpenOptions, ShmLink};
use testkit::{from, msg, pattern};
use wire::Addr;

const LONG: Duration = Duration::from_secs(60);

/// How many bytes of long messages have come, or gone, otherwise than by a device.
#[derive(Clone, Debug, Default)]
struct Staged(Arc<Mutex<(bool, usize)>>);

impl Meter for Staged {
    fn path(&mut self, _: &Addr, _: &'static str, _: String) {
        self.0.lock().unwrap().0 = true;
    }

    fn count(&mut self, _: &Addr, _: Side, how: How, bytes: usize) -> bool {
        let mut sum = self.0.lock().unwrap();
        if sum.0 && how != How::Device && bytes >= 32 << 10 {
            sum.1 += bytes;
        }
        sum.0
    }

    fn fell_back(&mut self, _: &Addr, _: Fallback) {}
}

/// A domain with one endpoint, which knows one peer.
struct Node {
    domain: Domain<ShmLink>,
    ep: EpId,
    rx: RxId,
    av: AvId,
    cq: CqId,
    addr: Addr,
    staged: Staged,
    cuda: Driver,
}

impl Node {
    fn new() -> Node {
        let cuda = Driver::start();
        hmem::cuda::find_driver();
        let bind = Some("127.0.0.1:0".parse().unwrap());
        let link = ShmLink::open(OpenOptions { bind, ..OpenOptions::default() }).unwrap();
        let addr = link.addr();
        let mut domain = Domain::new(Config { virt_addr: false, rma_order: false });
        let (av, cq) = (domain.av_open(), domain.cq_open(1024));
        let (tx_cq, rx_cq, cntrs) = (Some(cq), Some(cq), Cntrs::default());
        let ep = domain.ep_open(EpConfig { link, av, rx: None, tx_cq, rx_cq, cntrs });
        let rx = domain.ep_rx(ep).unwrap();
        let staged = Staged::default();
        domain.ep_meter(ep, Box::new(staged.clone()));
        Node { domain, ep, rx, av, cq, addr, staged, cuda }
    }

    fn knows(&mut self, addr: Addr) -> u64 {
        self.domain.av_insert(self.av, addr)
    }

    fn next(&mut self) -> Option<Completion> {
        let mut found = None;
        self.domain.progress();
        self.domain.cq_take(self.cq, 1, |_, c| found = Some(*c));
        found.or_else(|| self.domain.cq_error(self.cq))
    }

    /// The next `n` completions.
    fn wait(&mut self, n: usize) -> Vec<Completion> {
        let (start, mut all) = (Instant::now(), Vec::new());
        while all.len() < n {
            match self.next() {
                Some(c) => all.push(c),
                None => std::thread::yield_now(),
            }
            assert!(start.elapsed() < LONG, "{} of {n} complete", all.len());
        }
        all
    }

    /// Memory of a default pool, or managed memory.
    fn alloc(&self, managed: bool, len: usize) -> Span {
        let at = if managed { self.cuda.alloc_managed(len) } else { self.cuda.alloc_async(len) };
        // SAFETY: nothing here frees it before its operations are over.
        unsafe { Span::new(at, len, classify(at, len)) }
    }

    fn free(&self, span: Span) {
        self.cuda.free(span.addr() as usize);
    }

    fn filled(&self, managed: bool, off: usize, len: usize, seed: usize) -> Span {
        let all = self.alloc(managed, off + len);
        self.cuda.write(all.addr() as usize + off, &pattern(len, seed));
        all
    }

    fn send(&mut self, to: u64, iov: &[Span], ctx: usize) {
        let start = Instant::now();
        while let Err(e) = self.domain.send(self.ep, &msg(to, iov, ctx)) {
            assert!(e == Error::Again && start.elapsed() < LONG, "{e:?}");
            self.domain.progress();
        }
    }

    fn recv(&mut self, src: u64, iov: &[Span], ctx: usize) {
        self.domain.recv(self.rx, &from(src, iov, ctx)).unwrap();
    }
}

/// Each message: bytes, and how far into its memory it begins, on either side.
const MESSAGES: [(usize, usize, usize); 8] = [
    (1, 0, 3),
    (32_767, 1, 0),
    (32_768, 0, 0),
    (100_001, 13, 7),
    (1 << 20, 4095, 1),
    ((4 << 20) + 1, 3, 5),
    ((9 << 20) - 77, 0, 511),
    (33 << 20, 1, 3),
];

/// Messages of up to `most` bytes of either side's memory to the other, all at once or each alone.
fn exchange(node: &mut Node, peer: u64, most: usize, at_once: bool) {
    let mut all = Vec::new();
    for (n, (len, off, other)) in MESSAGES.into_iter().filter(|m| m.0 <= most).enumerate() {
        let src = node.filled(n % 2 == 0, off, len, n);
        let dst = node.alloc(n % 3 == 0, other + len);
        node.recv(peer, &[dst.part(other, len).unwrap()], n);
        node.send(peer, &[src.part(off, len).unwrap()], 100 + n);
        all.push((src, dst));
        if !at_once {
            assert!(node.wait(2).iter().all(|c| c.err.is_none()));
        }
    }
    if at_once {
        assert!(node.wait(2 * all.len()).iter().all(|c| c.err.is_none()));
    }
    for (n, ((src, dst), (len, _, other))) in all.into_iter().zip(MESSAGES).enumerate() {
        let got = node.cuda.read(dst.addr() as usize + other, len);
        assert!(got == pattern(len, n), "message {n} of {len} bytes");
        node.free(src);
        node.free(dst);
    }
}

/// Not a test: what a child does.
#[test]
fn child() {
    let Ok(parent) = std::env::var("STRAIT_ADDR") else { return };
    let mut node = Node::new();
    if std::env::var_os("STRAIT_SAME_DEVICE").is_none() {
        node.cuda.enter(1);
    }
    let peer = node.knows(Addr::new(parent.parse().unwrap()));
    println!("!{}", node.addr);
    match std::env::var("STRAIT_ROLE").as_deref() {
        Ok("exchange") => {
            let most = std::env::var("STRAIT_MOST").unwrap().parse().unwrap();
            exchange(&mut node, peer, most, false);
            exchange(&mut node, peer, most, true);
        }
        Ok("send") => {
            let src = node.filled(false, 0, SENT, 5);
            node.send(peer, &[src], 1);
            assert!(node.wait(1)[0].err.is_none());
        }
        Ok("one by one") => {
            for (n, (len, ..)) in ONE_BY_ONE.into_iter().enumerate() {
                let src = node.filled(false, 0, len, n);
                node.send(peer, &[src], n);
                assert!(node.wait(1)[0].err.is_none());
            }
        }
        _ => {
            let dst = node.alloc(false, 64 << 20);
            node.recv(peer, &[dst], 1);
            node.wait(1);
        }
    }
    // Its memory stays until the parent has all.
    node.recv(peer, &[], 9);
    node.wait(1);
}

struct Peer(Child, u64);

impl Peer {
    fn start(node: &mut Node, role: &str, env: &[(&str, &str)]) -> Peer {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "child", "--nocapture", "--test-threads=1"]).stdout(Stdio::piped());
        command.env("STRAIT_ROLE", role).env("STRAIT_ADDR", node.addr.to_string()).envs(env.iter().copied());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
        let addr = lines.filter_map(|l| l.split_once('!').map(|(_, addr)| addr.to_owned())).next().unwrap();
        let name = node.knows(Addr::new(addr.parse().unwrap()));
        Peer(child, name)
    }

    fn finish(mut self, node: &mut Node) {
        node.send(self.1, &[], 9);
        assert!(node.wait(1)[0].err.is_none());
        let start = Instant::now();
        while self.0.try_wait().unwrap().is_none() {
            node.domain.progress();
            assert!(start.elapsed() < LONG, "the child does not end");
        }
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// With this in the child's environment; `staged`: whether some bytes go by the host then.
fn run(most: usize, env: &[(&str, &str)], staged: bool) {
    let mut node = Node::new();
    let most_too = most.to_string();
    let all = [env, &[("STRAIT_MOST", &most_too)]].concat();
    let peer = Peer::start(&mut node, "exchange", &all);
    exchange(&mut node, peer.1, most, false);
    exchange(&mut node, peer.1, most, true);
    let bytes = node.staged.0.lock().unwrap().1;
    assert_eq!(bytes > 0, staged, "{bytes} bytes staged, {env:?}");
    peer.finish(&mut node);
}

#[test]
fn no_byte_goes_by_the_host() {
    run(usize::MAX, &[], false);
}

#[test]
fn a_slow_device_changes_nothing() {
    run(5 << 20, &[("CUDA_STAND_IN_DELAY_US", "300")], false);
}

#[test]
fn handles_that_are_not_opened_and_copies_that_fail_are_made_up_for() {
    for fail in [
        "cuIpcOpenMemHandle_v2=1",
        "cuMemAlloc_v2=2",
        "cuIpcGetMemHandle=801",
        "cuEventQuery@9=700,cuEventQuery@30=700",
        "cuMemcpyAsync@5=700,cuMemcpyAsync@14=700",
    ] {
        run(5 << 20, &[("CUDA_STAND_IN_FAIL", fail)], true);
    }
}

/// Bytes of a message of three parts, whose copies into buffers are started in one call.
const SENT: usize = (9 << 20) + 7;

#[test]
fn a_copy_into_a_buffer_that_is_not_started_takes_none_before_it_along() {
    let mut node = Node::new();
    for nth in 1..=4 {
        let fail = format!("cuMemcpyAsync@{nth}=700");
        let peer = Peer::start(&mut node, "send", &[("CUDA_STAND_IN_FAIL", &fail)]);
        let dst = node.alloc(true, SENT);
        node.recv(peer.1, &[dst], 1);
        assert_eq!(node.wait(1)[0].err, None, "{fail}");
        assert!(node.cuda.read(dst.addr() as usize, SENT) == pattern(SENT, 5), "{fail}");
        peer.finish(&mut node);
        node.free(dst);
    }
}

/// Messages of a default pool's memory: how long, whether the receiver's is managed, and whether they go by
/// the host on one device.
const ONE_BY_ONE: [(usize, bool, bool); 7] = [
    // Nothing is known yet.
    (64 << 10, false, false),
    (64 << 10, false, true),
    (512 << 10, false, true),
    (1 << 20, false, false),
    (256 << 10, false, true),
    (64 << 10, true, false),
    (64 << 10, false, true),
];

/// Two processes have a device in turns, for which a short message would wait longer than it takes by the
/// host.
#[test]
fn between_processes_on_one_device_short_messages_go_by_the_host() {
    for same in [true, false] {
        let mut node = Node::new();
        let env: &[(&str, &str)] = if same { &[("STRAIT_SAME_DEVICE", "1")] } else { &[] };
        let peer = Peer::start(&mut node, "one by one", env);
        for (n, (len, managed, by_host)) in ONE_BY_ONE.into_iter().enumerate() {
            let dst = node.alloc(managed, len);
            node.recv(peer.1, &[dst], n);
            assert_eq!(node.wait(1)[0].err, None);
            assert!(node.cuda.read(dst.addr() as usize, len) == pattern(len, n));
            let staged = std::mem::take(&mut node.staged.0.lock().unwrap().1);
            assert_eq!(staged > 0, same && by_host, "message {n} of {len} bytes, on one device: {same}");
            node.free(dst);
        }
        peer.finish(&mut node);
    }
}

/// Endpoints of one process do not have the device in turns.
#[test]
fn within_a_process_short_messages_do_not_go_by_the_host() {
    let (mut a, mut b) = (Node::new(), Node::new());
    let (to, from) = (a.knows(b.addr), b.knows(a.addr));
    for n in 0..4 {
        let (len, begin) = (64 << 10, Instant::now());
        let (src, dst) = (a.filled(false, 0, len, n), b.alloc(false, len));
        b.recv(from, &[dst], n);
        a.send(to, &[src], n);
        let (mut sent, mut came) = (None, None);
        while sent.is_none() || came.is_none() {
            sent = sent.or(a.next());
            came = came.or(b.next());
            assert!(begin.elapsed() < LONG);
        }
        assert!(sent.is_some_and(|c| c.err.is_none()) && came.is_some_and(|c| c.err.is_none()));
        assert!(b.cuda.read(dst.addr() as usize, len) == pattern(len, n));
        assert_eq!(b.staged.0.lock().unwrap().1, 0, "message {n}");
        a.free(src);
        b.free(dst);
    }
}

#[test]
fn a_killed_peer_takes_no_buffers_along() {
    let mut node = Node::new();
    let len = 64 << 20;
    let src = node.filled(false, 0, len, 5);
    for n in 0..3 {
        let mut peer = Peer::start(&mut node, "receive", &[("CUDA_STAND_IN_DELAY_US", "10000000")]);
        let start = Instant::now();
        node.send(peer.1, &[src], n);
        while start.elapsed() < Duration::from_millis(700) {
            assert!(node.next().is_none(), "too early");
        }
        peer.0.kill().unwrap();
        let end = node.wait(1)[0];
        assert_eq!((end.ctx.0, end.err), (n, Some(Error::Reset)));
    }
    let peer = Peer::start(&mut node, "receive", &[]);
    node.send(peer.1, &[src], 7);
    assert_eq!(node.wait(1)[0].err, None);
    assert_eq!(node.staged.0.lock().unwrap().1, 0);
    peer.finish(&mut node);
    node.free(src);
}

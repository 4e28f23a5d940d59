//! The engine over shared memory, where it matters that the link is the real one.
#![cfg(not(loom))]

use std::time::{Duration, Instant};

use engine::{Access, AvId, Cntrs, Completion, Config, CqId, Domain, EpConfig, EpId, Error};
use engine::{OpFlags, Reg, RxId, Send};
use hmem::Span;
use link::{OpenOptions, ShmLink};
use link_api::Link as _;
use testkit::{from, msg, pattern, there, write};
use wire::Addr;

const TIMEOUT: Duration = Duration::from_millis(60);

/// A domain with one endpoint.
struct Node {
    domain: Domain<ShmLink>,
    ep: EpId,
    rx: RxId,
    av: AvId,
    cq: CqId,
    addr: Addr,
}

impl Node {
    fn bound_to(bind: &str) -> Node {
        let bind = Some(bind.parse().unwrap());
        let link =
            ShmLink::open(OpenOptions { bind, connect_timeout: TIMEOUT, ..OpenOptions::default() }).unwrap();
        let addr = link.addr();
        let config = Config { virt_addr: false, rma_order: false };
        let mut domain = Domain::new(config);
        let (av, cq) = (domain.av_open(), domain.cq_open(1024));
        let (tx_cq, rx_cq, cntrs) = (Some(cq), Some(cq), Cntrs::default());
        let ep = domain.ep_open(EpConfig { link, av, rx: None, tx_cq, rx_cq, cntrs });
        let rx = domain.ep_rx(ep).unwrap();
        Node { domain, ep, rx, av, cq, addr }
    }

    fn new() -> Node {
        Node::bound_to("127.0.0.1:0")
    }

    fn knows(&mut self, addr: Addr) -> u64 {
        self.domain.av_insert(self.av, addr)
    }

    /// The next completion, of success or failure.
    fn next(&mut self) -> Option<Completion> {
        let mut found = None;
        self.domain.progress();
        self.domain.cq_take(self.cq, 1, |_, c| found = Some(*c));
        found.or_else(|| self.domain.cq_error(self.cq))
    }

    fn wait(&mut self) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(c) = self.next() {
                return c;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "nothing completes");
            std::thread::yield_now();
        }
    }

    /// Sends nothing, as soon as that is possible, without a completion.
    fn send(&mut self, to: u64) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            match self.domain.send(self.ep, &Send { flags: OpFlags::INJECT, ..msg(to, &[], 0) }) {
                Err(Error::Again) => assert!(start.elapsed() < Duration::from_secs(60), "no room"),
                other => return other,
            }
        }
    }

    fn recv(&mut self, src: u64, ctx: usize) {
        self.domain.recv(self.rx, &from(src, &[], ctx)).unwrap();
    }
}

/// A name that no endpoint has, nor is given before this process ends: its port is taken, by what no shared
/// memory reaches.
fn absent() -> Addr {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let name = Addr::new(taken.local_addr().unwrap());
    std::mem::forget(taken);
    name
}

#[test]
fn receives_from_a_peer_that_never_existed_fail_after_the_timeout() {
    let mut a = Node::new();
    let to = a.knows(absent());
    let start = Instant::now();
    a.recv(to, 1);
    assert_eq!(a.send(to), Err(Error::Refused));
    assert!(start.elapsed() >= TIMEOUT, "given up too early");
    let c = a.wait();
    assert_eq!((c.ctx.0, c.err), (1, Some(Error::Refused)));
    // It is looked for as long as a send would.
    a.recv(to, 3);
    let c = a.wait();
    assert_eq!((c.ctx.0, c.err), (3, Some(Error::Refused)));
    // On another host.
    let far = a.knows(Addr::new("203.0.113.7:4000".parse().unwrap()));
    a.recv(far, 4);
    assert_eq!(a.send(far), Err(Error::Unreachable));
    assert_eq!((a.wait().err, a.next()), (Some(Error::Unreachable), None));
    a.recv(far, 5);
    assert_eq!(a.wait().err, Some(Error::Unreachable));
}

#[test]
fn receives_from_a_dead_peer_fail_and_those_from_its_successor_wait() {
    let (mut a, mut b) = (Node::new(), Node::new());
    let (to_b, to_a) = (a.knows(b.addr), b.knows(a.addr));
    b.send(to_a).unwrap();
    a.recv(to_b, 1);
    assert_eq!(a.wait().err, None);
    let addr = b.addr;
    drop(b);
    a.recv(to_b, 2);
    let c = a.wait();
    assert!(matches!((c.ctx.0, c.err), (2, Some(Error::Reset | Error::Refused))), "{c:?}");
    a.recv(to_b, 3);
    let c = a.wait();
    assert_eq!((c.ctx.0, c.err), (3, Some(Error::Refused)));
    let mut b = Node::bound_to(&addr.to_string());
    let to_a = b.knows(a.addr);
    a.recv(to_b, 4);
    assert!((0..1000).all(|_| a.next().is_none()));
    b.send(to_a).unwrap();
    let c = a.wait();
    assert_eq!((c.ctx.0, c.err), (4, None));
    a.recv(to_b, 5);
    drop(b);
    let c = a.wait();
    assert_eq!((c.ctx.0, c.err), (5, Some(Error::Reset)));
}

#[test]
fn a_target_without_progress_is_written_without_end() {
    const LEN: usize = 64 << 10;
    let (mut a, mut b) = (Node::new(), Node::new());
    let (to_b, to_a) = (a.knows(b.addr), b.knows(a.addr));
    let (local, target) = (Span::leak(LEN), Span::leak(LEN));
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    b.domain.mr_reg(&Reg { iov: &[target], access, key: Some(7) }).unwrap();
    // Both know each other from here on, and what is registered.
    a.recv(to_b, 1);
    b.recv(to_a, 1);
    a.send(to_b).unwrap();
    b.send(to_a).unwrap();
    for node in [&mut b, &mut a] {
        assert_eq!(node.wait().err, None);
    }
    std::thread::sleep(Duration::from_millis(5));
    for _ in 0..10_000 {
        assert!(a.next().is_none());
    }
    let remote = [there(0, LEN, 7)];
    let mut done = 0;
    for i in 0..20_000 {
        if i == 19_000 {
            hmem::write(&[local], 0, &pattern(LEN, 5));
        }
        let posted = a.domain.rma(a.ep, &write(to_b, &[local], &remote, i));
        assert_eq!(posted, Ok(()), "write {i}");
        while i % 3 == 0 && done <= i {
            assert_eq!(a.wait().err, None);
            done += 1;
        }
    }
    while done < 20_000 {
        assert_eq!(a.wait().err, None);
        done += 1;
    }
    let mut bytes = vec![0; LEN];
    hmem::read(&[target], 0, &mut bytes);
    assert!(bytes == pattern(LEN, 5));
    // There is room for what it has to see.
    for i in 0..100 {
        a.domain.send(a.ep, &msg(to_b, &[], i)).unwrap();
    }
    for i in 0..100 {
        b.recv(to_a, i);
        assert_eq!(b.wait().err, None);
    }
}

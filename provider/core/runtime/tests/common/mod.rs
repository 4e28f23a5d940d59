//! Domains of one endpoint over a link that tests choose.
#![allow(dead_code, reason = "not every test needs all of it")]

mod memory;

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{
    AvId, CntrId, Cntrs, Completion, Config, CqId, Domain, EpConfig, EpId, Error, FiAddr, OpFlags, RxId,
    Send as Message,
};
use hmem::Span;
use link::{OpenOptions, ShmLink};
use link_api::{RmaLink, SleepLink as _, WaitFd};
use runtime::{Attached, Progress, Runtime, Wait};
use testkit::{from_any, msg};
use wire::Addr;

pub use memory::{MemoryLink, Network};

/// A runtime, and one endpoint in its domain with a queue and a counter of receives.
pub struct Node<L: RmaLink> {
    pub runtime: Arc<Runtime<L>>,
    pub ep: EpId,
    pub rx: RxId,
    pub av: AvId,
    pub cq: CqId,
    pub cntr: CntrId,
    /// What a caller sleeps on for the queue, and for the counter.
    pub wait: Arc<Wait>,
    pub cntr_wait: Arc<Wait>,
    pub addr: Addr,
    /// The link's descriptor.
    fd: RawFd,
    attached: Vec<Attached>,
}

impl<L: RmaLink + Send + std::fmt::Debug + 'static> Node<L> {
    pub fn new(link: L, fd: RawFd, progress: Progress) -> Node<L> {
        let config = Config { virt_addr: false, rma_order: false };
        let runtime = Arc::new(Runtime::new(Domain::new(config), progress));
        runtime::start(&runtime).unwrap();
        let (wait, cntr_wait) = (Arc::new(Wait::default()), Arc::new(Wait::default()));
        let mut attached: Vec<_> = runtime.attach(fd).unwrap().into_iter().collect();
        attached.extend([&wait, &cntr_wait].map(|w| Attached::new(w, fd).unwrap()));
        let addr = link.addr();
        let mut engine = runtime.lock();
        let (av, cq, cntr) = (engine.av_open(), engine.cq_open(64), engine.cntr_open());
        let cntrs = Cntrs { recv: Some(cntr), ..Cntrs::default() };
        let ep = engine.ep_open(EpConfig { link, av, rx: None, tx_cq: Some(cq), rx_cq: Some(cq), cntrs });
        let rx = engine.ep_rx(ep).unwrap();
        drop(engine);
        Node { runtime, ep, rx, av, cq, cntr, wait, cntr_wait, addr, fd, attached }
    }

    pub fn knows(&self, addr: Addr) -> FiAddr {
        self.runtime.lock().av_insert(self.av, addr)
    }

    pub fn recv(&self, room: Span, ctx: usize) {
        self.runtime.lock().recv(self.rx, &from_any(&[room], ctx)).unwrap();
    }

    /// Sends as soon as that is possible.
    pub fn send(&self, to: FiAddr, bytes: &[u8], flags: OpFlags) {
        let span = Span::leak(bytes.len());
        hmem::write(&[span], 0, bytes);
        let sent =
            patient(|| match self.runtime.lock().send(self.ep, &Message { flags, ..msg(to, &[span], 1) }) {
                Err(Error::Again) => None,
                sent => Some(sent),
            });
        assert_eq!(sent, Ok(()));
    }

    /// The link is slept on no more.
    pub fn let_go(&mut self) {
        self.attached.clear();
    }

    /// Sleeps in poll(2) until the peer wakes it: that only time has passed does not count.
    pub fn sleep(&self) {
        assert!(readable(&self.wait, 60_000), "nothing woke the sleeper");
        assert!(poll(self.fd, 60_000), "the peer did not wake the sleeper");
    }

    /// Takes what has completed, and looks for it first.
    pub fn poll(&self) -> Option<Completion> {
        let mut engine = self.runtime.lock_to_poll();
        let mut found = None;
        engine.progress();
        engine.cq_take(self.cq, 1, |_, c| found = Some(*c));
        found
    }
}

impl<L: RmaLink> Drop for Node<L> {
    fn drop(&mut self) {
        self.attached.clear();
        self.runtime.close();
    }
}

/// A message of eight bytes, without a completion.
pub fn message(to: FiAddr) -> Message<'static> {
    let spans = Box::leak(Box::new([Span::leak(8)]));
    Message { flags: OpFlags::default(), ..msg(to, spans, 1) }
}

/// Tries until there is something.
pub fn patient<T>(mut what: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = what() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing happens");
        std::thread::yield_now();
    }
}

/// Whether the descriptor becomes readable within so many milliseconds.
pub fn readable(wait: &Wait, ms: i32) -> bool {
    poll(wait.fd().unwrap(), ms)
}

fn poll(fd: RawFd, ms: i32) -> bool {
    let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut p, 1, ms) == 1 }
}

/// What two nodes talk over.
pub trait Pair: RmaLink + Send + std::fmt::Debug + Sized + 'static {
    /// Two links, and the descriptors to sleep on them.
    fn pair() -> [(Self, RawFd); 2];

    /// Two nodes that know each other; the second's progress is as given.
    fn nodes(second: Progress) -> ([Node<Self>; 2], [FiAddr; 2]) {
        let [(a, a_fd), (b, b_fd)] = Self::pair();
        let (a, b) = (Node::new(a, a_fd, Progress::Manual), Node::new(b, b_fd, second));
        let to = [a.knows(b.addr), b.knows(a.addr)];
        ([a, b], to)
    }
}

impl Pair for ShmLink {
    fn pair() -> [(ShmLink, RawFd); 2] {
        [(); 2].map(|()| {
            let bind = Some("127.0.0.1:0".parse().unwrap());
            let link = ShmLink::open(OpenOptions { bind, ..OpenOptions::default() }).unwrap();
            let fd = link.wait_fd(WaitFd::All).unwrap();
            (link, fd)
        })
    }
}

impl Pair for MemoryLink {
    fn pair() -> [(MemoryLink, RawFd); 2] {
        let network = Network::new();
        [(); 2].map(|()| network.link())
    }
}

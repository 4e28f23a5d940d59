//! A domain with one endpoint.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};

use engine::{
    Access, Atomic, AvId, Cntrs, Completion, CqId, Domain, EpConfig, EpId, Error, MrId, PollFast, Recv, Reg,
    Rma, RxId, Send,
};
use hmem::Span;

use crate::link::MemLink;
use crate::{Direct, Setup};

/// A domain with one endpoint in it.
#[derive(Debug)]
pub struct Node {
    domain: Domain<MemLink>,
    /// Its endpoint.
    pub ep: EpId,
    /// What the endpoint's receives are posted to.
    pub rx: RxId,
    /// Its address vector.
    pub av: AvId,
    /// Where sends, RMA and atomics complete.
    pub tx_cq: CqId,
    /// Where receives complete.
    pub rx_cq: CqId,
    /// What quick looks at that queue, when it was empty, have found; `None` if there are none.
    seen: Option<VecDeque<Completion>>,
}

impl Deref for Node {
    type Target = Domain<MemLink>;
    fn deref(&self) -> &Domain<MemLink> {
        &self.domain
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Domain<MemLink> {
        &mut self.domain
    }
}

impl Node {
    pub(crate) fn new(setup: &Setup, link: MemLink) -> Node {
        let mut domain = Domain::new(setup.config);
        domain.set_group_memory(if setup.shared { 16 << 10 } else { 0 });
        if setup.direct == Direct::Gets {
            domain.set_lasting();
        }
        let (tx_cq, rx_cq) = (domain.cq_open(setup.cq_size), domain.cq_open(setup.cq_size));
        let av = domain.av_open();
        let ep = domain.ep_open(EpConfig {
            link,
            av,
            rx: None,
            tx_cq: Some(tx_cq),
            rx_cq: Some(rx_cq),
            cntrs: Cntrs::default(),
        });
        let rx = domain.ep_rx(ep).expect("just opened");
        Node { domain, ep, rx, av, tx_cq, rx_cq, seen: setup.looks.then(VecDeque::new) }
    }

    /// Opens one more endpoint, in the same address vector and with the same queues.
    pub fn open(&mut self, link: MemLink, rx: Option<RxId>) -> EpId {
        let (av, tx_cq, rx_cq) = (self.av, Some(self.tx_cq), Some(self.rx_cq));
        self.ep_open(EpConfig { link, av, rx, tx_cq, rx_cq, cntrs: Cntrs::default() })
    }

    /// Makes progress; returns how much was done.
    pub fn progress(&mut self) -> usize {
        let Some(seen) = &mut self.seen else { return self.domain.progress() };
        let mut n = 0;
        let rests = self.domain.cq_is_empty(self.rx_cq) && self.domain.rests();
        while n < 32 && !rests && self.domain.cq_is_empty(self.rx_cq) {
            match self.domain.poll_fast(self.rx_cq, &mut |entry: &Completion| seen.push_back(*entry)) {
                PollFast::Message | PollFast::Kept | PollFast::Other => {}
                PollFast::Nothing => return n,
                PollFast::Unknown => break,
            }
            n += 1;
        }
        n + self.domain.progress()
    }

    /// What the node's domain waits for.
    pub fn pending(&self, most: usize) -> Vec<engine::Pending> {
        engine::pending(&self.domain, most)
    }

    /// Sends from the node's endpoint.
    pub fn send(&mut self, op: &Send<'_>) -> Result<(), Error> {
        self.domain.send(self.ep, op)
    }

    /// Sends from another endpoint of the node.
    pub fn send_from(&mut self, ep: EpId, op: &Send<'_>) -> Result<(), Error> {
        self.domain.send(ep, op)
    }

    /// Posts a receive to the node's endpoint.
    pub fn recv(&mut self, op: &Recv<'_>) -> Result<(), Error> {
        match *op.iov {
            [span] if self.seen.is_some() => self.domain.recv_one(self.rx, span, *op),
            _ => self.domain.recv(self.rx, op),
        }
    }

    /// Posts a receive to a shared receive context.
    pub fn recv_at(&mut self, rx: RxId, op: &Recv<'_>) -> Result<(), Error> {
        self.domain.recv(rx, op)
    }

    /// RMA from the node's endpoint.
    pub fn rma(&mut self, op: &Rma<'_>) -> Result<(), Error> {
        self.domain.rma(self.ep, op)
    }

    /// An atomic from the node's endpoint.
    pub fn atomic(&mut self, op: &Atomic<'_>) -> Result<(), Error> {
        self.domain.atomic(self.ep, op)
    }

    /// Registers memory for reads and writes by peers, under a key of the test's.
    pub fn share(&mut self, span: Span, key: u64) -> MrId {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        self.mr_reg(&Reg { iov: &[span], access, key: Some(key) }).expect("a key that is free").0
    }

    /// The next entry of a queue, failures like any other.
    pub fn next(&mut self, cq: CqId) -> Option<Completion> {
        if let (Some(seen), true) = (&mut self.seen, cq == self.rx_cq) {
            if let Some(entry) = seen.pop_front() {
                return Some(entry);
            }
        }
        let mut next = None;
        self.cq_take(cq, 1, |_, c| next = Some(*c));
        next.or_else(|| self.cq_error(cq))
    }

    fn all(&mut self, cq: CqId) -> Vec<Completion> {
        std::iter::from_fn(|| self.next(cq)).collect()
    }

    /// All that completed of what was started here.
    pub fn tx(&mut self) -> Vec<Completion> {
        self.all(self.tx_cq)
    }

    /// All that completed of what was received here.
    pub fn rx(&mut self) -> Vec<Completion> {
        self.all(self.rx_cq)
    }

    /// The one operation started here that completed.
    ///
    /// # Panics
    /// If there was none, or more.
    pub fn sent(&mut self) -> Completion {
        one(self.tx())
    }

    /// The one receive that completed.
    ///
    /// # Panics
    /// If there was none, or more.
    pub fn received(&mut self) -> Completion {
        one(self.rx())
    }

    /// The first bytes of some memory.
    pub fn look(&self, span: Span, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(hmem::read(&[span], 0, &mut bytes), len);
        bytes
    }
}

fn one(mut all: Vec<Completion>) -> Completion {
    assert_eq!(all.len(), 1, "one completion was expected: {all:?}");
    all.remove(0)
}

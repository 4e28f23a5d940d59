//! The engine over any link: a domain with one endpoint, and two that work on each other.

use std::thread::sleep;
use std::time::{Duration, Instant};

use engine::{Cntrs, Completion, Config, CqId, Domain, EpConfig, EpId, Error, RxId};
use link_api::RmaLink;

/// A domain with one endpoint, which has the other one as its only peer.
pub struct Node<L: RmaLink> {
    pub domain: Domain<L>,
    pub ep: EpId,
    pub rx: RxId,
    cq: CqId,
    pub peer: u64,
}

impl<L: RmaLink> Node<L> {
    pub fn new(link: L, peer: wire::Addr) -> Node<L> {
        let mut domain = Domain::new(Config { virt_addr: false, rma_order: false });
        let (av, cq) = (domain.av_open(), domain.cq_open(1_024));
        let (tx_cq, rx_cq, cntrs) = (Some(cq), Some(cq), Cntrs::default());
        let ep = domain.ep_open(EpConfig { link, av, rx: None, tx_cq, rx_cq, cntrs });
        let rx = domain.ep_rx(ep).expect("just opened");
        let peer = domain.av_insert(av, peer);
        Node { domain, ep, rx, cq, peer }
    }

    pub fn next(&mut self) -> Option<Completion> {
        let mut found = None;
        self.domain.progress();
        self.domain.cq_take(self.cq, 1, |_, c| found = Some(*c));
        found.or_else(|| self.domain.cq_error(self.cq))
    }
}

/// Has both make progress until so many operations of either have completed.
pub fn complete<L: RmaLink>(
    [one, other]: [&mut Node<L>; 2],
    of_a: usize,
    of_b: usize,
) -> (Vec<Completion>, Vec<Completion>) {
    let (mut a, mut b, start) = (Vec::new(), Vec::new(), Instant::now());
    while a.len() < of_a || b.len() < of_b {
        a.extend(one.next());
        b.extend(other.next());
        let so_far = (a.len(), b.len());
        assert!(start.elapsed() < Duration::from_secs(60), "only {so_far:?} of {of_a} and {of_b} completed");
        sleep(Duration::from_micros(10));
    }
    assert_eq!((a.len(), b.len()), (of_a, of_b));
    (a, b)
}

/// Posts at the first as soon as there is room.
pub fn post<L: RmaLink>(
    [one, other]: [&mut Node<L>; 2],
    mut post: impl FnMut(&mut Node<L>) -> Result<(), Error>,
) {
    let start = Instant::now();
    while let Err(why) = post(one) {
        assert_eq!(why, Error::Again);
        assert!(start.elapsed() < Duration::from_secs(60), "no room");
        one.domain.progress();
        other.domain.progress();
        sleep(Duration::from_micros(10));
    }
}

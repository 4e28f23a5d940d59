//! The engine over a selector of links, where peers of one link follow those of another.
#![cfg(not(loom))]

use std::thread::sleep;
use std::time::{Duration, Instant};

use engine::{AvId, Cntrs, Completion, Config, CqId, Domain, EpConfig, EpId, RxId};
use hmem::Span;
use link::{Links, OpenOptions};
use link_api::{Link as _, RmaLink};
use link_kit::keyed::{KeyedNet, Pace};
use link_kit::text;
use testkit::{from, msg, pattern};
use wire::Addr;

struct Node<L> {
    domain: Domain<L>,
    ep: EpId,
    rx: RxId,
    av: AvId,
    cq: CqId,
}

impl<L: RmaLink> Node<L> {
    fn new(link: L) -> Node<L> {
        let mut domain = Domain::new(Config { virt_addr: false, rma_order: false });
        let (av, cq) = (domain.av_open(), domain.cq_open(64));
        let (tx_cq, rx_cq, cntrs) = (Some(cq), Some(cq), Cntrs::default());
        let ep = domain.ep_open(EpConfig { link, av, rx: None, tx_cq, rx_cq, cntrs });
        let rx = domain.ep_rx(ep).expect("just opened");
        Node { domain, ep, rx, av, cq }
    }

    fn next(&mut self) -> Option<Completion> {
        let mut found = None;
        self.domain.progress();
        self.domain.cq_take(self.cq, 1, |_, c| found = Some(*c));
        found.or_else(|| self.domain.cq_error(self.cq))
    }
}

fn links(net: &mut KeyedNet, name: Addr) -> Links {
    let bind = Some("127.0.0.1:0".parse().expect("an address"));
    let mut links = Links::open(OpenOptions { bind, ..OpenOptions::default() }).expect("a free port");
    links.add(Box::new(net.open(name).expect("a name that is free"))).expect("a descriptor");
    links
}

/// A message of this length from one to the other arrives whole.
fn carry<A: RmaLink, B: RmaLink>(a: &mut Node<A>, to_b: u64, b: &mut Node<B>, to_a: u64, len: usize) {
    let (src, dst) = (Span::leak(len), Span::leak(len));
    hmem::write(&[src], 0, &pattern(len, len));
    b.domain.recv(b.rx, &from(to_a, &[dst], 2)).expect("room for a receive");
    let start = Instant::now();
    while a.domain.send(a.ep, &msg(to_b, &[src], 1)).is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "no room");
        a.domain.progress();
        b.domain.progress();
        sleep(Duration::from_micros(10));
    }
    let (mut sent, mut got) = (None, None);
    while sent.is_none() || got.is_none() {
        sent = sent.or_else(|| a.next());
        got = got.or_else(|| b.next());
        assert!(start.elapsed() < Duration::from_secs(60), "{sent:?}, {got:?}");
        sleep(Duration::from_micros(10));
    }
    assert_eq!((sent.and_then(|c| c.err), got.and_then(|c| c.err)), (None, None));
    assert!(text(&[dst]) == pattern(len, len), "{len} bytes");
}

const LENS: [usize; 4] = [10, 3_000, 9_000, 300_000];

#[test]
fn peers_of_either_link_exchange_messages() {
    let mut net = KeyedNet::new(Pace::default());
    let names = [net.name(), net.name(), net.name()];
    let near = links(&mut net, names[1]);
    let near_name = near.addr();
    let first = links(&mut net, names[0]);
    // By shared memory it has another name than by the further link.
    let a_name = first.addr();
    let (mut a, mut near) = (Node::new(first), Node::new(near));
    let mut far = Node::new(net.open(names[2]).expect("a name that is free"));
    let (to_near, to_far) = (a.domain.av_insert(a.av, near_name), a.domain.av_insert(a.av, names[2]));
    let near_to_a = near.domain.av_insert(near.av, a_name);
    let far_to_a = far.domain.av_insert(far.av, names[0]);
    for len in LENS {
        carry(&mut a, to_near, &mut near, near_to_a, len);
        carry(&mut a, to_far, &mut far, far_to_a, len);
        carry(&mut far, far_to_a, &mut a, to_far, len);
    }
}

#[test]
fn a_number_that_was_a_peers_of_one_link_may_be_one_of_anothers() {
    let mut net = KeyedNet::new(Pace::default());
    let names = [net.name(), net.name()];
    let absent = links(&mut net, Addr::new(([192, 0, 2, 9], 9).into())).addr();
    let mut a = Node::new(links(&mut net, names[0]));
    let mut far = Node::new(net.open(names[1]).expect("a name that is free"));
    let far_to_a = far.domain.av_insert(far.av, names[0]);
    // This one's number is free again, and its limits were those of shared memory.
    let gone = a.domain.av_insert(a.av, absent);
    a.domain.av_remove(a.av, gone).expect("it is there");
    let to_far = a.domain.av_insert(a.av, names[1]);
    for len in LENS {
        carry(&mut a, to_far, &mut far, far_to_a, len);
    }
}

//! The engine over links to peers that are not there: messages, writes and reads end with an error, however
//! they are posted.
#![cfg(not(loom))]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/node.rs"]
mod node;
#[path = "support/vacant.rs"]
mod vacant;

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use below::{BelowLink, BelowOptions};
use engine::{Completion, Error, OpFlags, Rma, Send};
use fake::{Fake, FakeNet};
use hmem::Span;
use link::{Links, OpenOptions, ShmLink, TcpLink, TcpOptions};
use link_api::RmaLink;
use testkit::{from, msg, read, tagged, there, write};
use vacant::Vacant;
use wire::Addr;
use wire::session::JobKey;

type Node<L> = node::Node<L>;

/// How long a peer that was never reached may take to appear.
const TIMEOUT: Duration = Duration::from_millis(60);
/// Far longer than anything here takes.
const MOST: Duration = Duration::from_secs(60);
const LENS: [usize; 3] = [8, 4_000, 1 << 20];

fn shm() -> OpenOptions {
    let bind = Some("127.0.0.1:0".parse().expect("an address"));
    OpenOptions { bind, connect_timeout: TIMEOUT, patience: TIMEOUT, ..OpenOptions::default() }
}

fn tcp() -> TcpOptions {
    let mut options = TcpOptions::new(JobKey::from_secret(b"of the checks"));
    options.connect_timeout = TIMEOUT;
    options
}

fn over_shm() -> ShmLink {
    ShmLink::open(shm()).expect("a free port")
}

fn over_tcp() -> TcpLink {
    TcpLink::bind("127.0.0.1:0".parse().expect("an address"), tcp()).expect("a free port")
}

/// Over a provider below, and TCP.
fn over_ofi() -> BelowLink<TcpLink, Fake> {
    let options = BelowOptions::new(JobKey::from_secret(b"of the checks"));
    BelowLink::new(over_tcp(), Ok(FakeNet::default().open()), options).expect("descriptors")
}

/// A selector, by which peers on this host are reached over TCP or not.
fn over_all(near: bool) -> Links {
    let mut links = Links::open(OpenOptions { port: link::Port::Listens, ..shm() }).expect("a free port");
    links.set_shm(near);
    links.add_tcp(tcp()).expect("the same port");
    links
}

/// As a door posts: a message of one buffer goes the quick way, where that is open.
fn send<L: RmaLink>(node: &mut Node<L>, span: Span, op: &Send<'_>) -> Result<(), Error> {
    let quick = node.domain.send_plain(node.ep, span, &Send { iov: &[], ..*op });
    if quick { Ok(()) } else { node.domain.send(node.ep, &Send { iov: &[span], ..*op }) }
}

fn next<L: RmaLink>(node: &mut Node<L>) -> Completion {
    let start = Instant::now();
    loop {
        if let Some(found) = node.next() {
            return found;
        }
        assert!(start.elapsed() < MOST, "nothing completes");
    }
}

/// Posts until that is taken or refused for good, and looks for completions meanwhile: how the operation
/// ends.
fn end<L: RmaLink>(
    node: &mut Node<L>,
    what: &str,
    post: impl Fn(&mut Node<L>) -> Result<(), Error>,
) -> Option<Error> {
    let start = Instant::now();
    loop {
        match post(node) {
            Ok(()) => return next(node).err,
            Err(Error::Again) => assert!(start.elapsed() < MOST, "{what} is tried again and again"),
            Err(why) => return Some(why),
        }
        assert!(node.next().is_none(), "{what} was not taken");
    }
}

/// What is posted to a peer which is not there.
fn all_end<L: RmaLink>(node: &mut Node<L>) {
    let (to, completes) = (node.peer, OpFlags::COMPLETION);
    for len in LENS {
        let span = [Span::leak(len)];
        let remote = [there(0, len, 7)];
        for flags in [completes, completes | OpFlags::DELIVERY, OpFlags::INJECT] {
            if flags == OpFlags::INJECT && len > LENS[0] {
                continue;
            }
            let found = [
                end(node, "a message", |n| send(n, span[0], &Send { flags, ..msg(to, &span, 1) })),
                end(node, "a tagged one", |n| send(n, span[0], &Send { flags, ..tagged(to, &span, 3, 1) })),
                end(node, "a write", |n| n.domain.rma(n.ep, &Rma { flags, ..write(to, &span, &remote, 1) })),
                end(node, "a read", |n| {
                    n.domain.rma(n.ep, &Rma { flags: completes, ..read(to, &span, &remote, 1) })
                }),
            ];
            assert_eq!(found, [Some(Error::Refused); 4], "{len} bytes, {flags:?}");
        }
    }
}

/// A name at which nothing listens, as long as the other is there.
fn absent() -> (Vacant, Addr) {
    let mut kept = Vacant::default();
    let name = kept.next(Ipv4Addr::LOCALHOST.into());
    (kept, Addr::new(name))
}

fn never_reached<L: RmaLink>(open: impl Fn() -> L) {
    let (_kept, mut node) = alone(open);
    all_end(&mut node);
}

/// One whose peer never was there, and never comes as long as the other is there.
fn alone<L: RmaLink>(open: impl Fn() -> L) -> (Vacant, Node<L>) {
    let (kept, absent) = absent();
    (kept, Node::new(open(), absent))
}

/// Messages go each way, and then one of the two is no more.
fn reached<L: RmaLink>(open: impl Fn() -> L) {
    all_end(&mut left_alone(open));
}

/// What is left of two between which messages went each way.
fn left_alone<L: RmaLink>(open: impl Fn() -> L) -> Node<L> {
    let (a, b) = (open(), open());
    let names: [Addr; 2] = [a.addr(), b.addr()];
    let (mut a, mut b) = (Node::new(a, names[1]), Node::new(b, names[0]));
    let (at_a, at_b, span) = (a.peer, b.peer, Span::leak(8));
    a.domain.recv(a.rx, &from(at_a, &[span], 2)).expect("room");
    b.domain.recv(b.rx, &from(at_b, &[span], 2)).expect("room");
    node::post([&mut a, &mut b], |a| send(a, span, &msg(at_a, &[span], 1)));
    node::post([&mut b, &mut a], |b| send(b, span, &msg(at_b, &[span], 1)));
    let (of_a, of_b) = node::complete([&mut a, &mut b], 2, 2);
    assert!(of_a.iter().chain(&of_b).all(|c| c.err.is_none()));
    drop(b);
    // No other test's.
    let mut kept = Vacant::default();
    kept.keep(names[1].sock());
    // Its end.
    a.domain.recv(a.rx, &from(at_a, &[span], 3)).expect("room");
    assert!(next(&mut a).err.is_some());
    a
}

/// The completion of the receive that names the absent peer.
const RECEIVE: usize = 9;

/// Posts while a receive that names the peer is always posted: each one that fails is posted again at once.
fn ends_beside_receives<L: RmaLink>(
    node: &mut Node<L>,
    what: &str,
    post: impl Fn(&mut Node<L>) -> Result<(), Error>,
) -> Option<Error> {
    let start = Instant::now();
    let (at, span) = (node.peer, Span::leak(8));
    let (mut posted, mut taken) = (false, false);
    loop {
        if !posted {
            node.domain.recv(node.rx, &from(at, &[span], RECEIVE)).expect("room");
            posted = true;
        }
        if !taken {
            match post(node) {
                Ok(()) => taken = true,
                Err(Error::Again) => {}
                Err(why) => return Some(why),
            }
        }
        while let Some(found) = node.next() {
            match found.ctx.0 {
                RECEIVE => posted = false,
                _ => return found.err,
            }
        }
        assert!(start.elapsed() < MOST, "{what} has not ended");
    }
}

/// Each operation has its end however many receives that name the peer have theirs before.
fn all_end_beside_receives<L: RmaLink>(open: impl Fn() -> L) {
    let (_kept, mut node) = alone(open);
    let to = node.peer;
    for len in LENS {
        let (span, remote) = ([Span::leak(len)], [there(0, len, 7)]);
        let flags = OpFlags::COMPLETION;
        let found = [
            ends_beside_receives(&mut node, "a message", |n| {
                send(n, span[0], &Send { flags, ..msg(to, &span, 1) })
            }),
            ends_beside_receives(&mut node, "an injected one", |n| {
                let flags = if len > LENS[0] { flags } else { OpFlags::INJECT };
                send(n, span[0], &Send { flags, ..tagged(to, &span, 3, 1) })
            }),
            ends_beside_receives(&mut node, "a write", |n| {
                n.domain.rma(n.ep, &Rma { flags, ..write(to, &span, &remote, 1) })
            }),
            ends_beside_receives(&mut node, "a read", |n| {
                n.domain.rma(n.ep, &Rma { flags, ..read(to, &span, &remote, 1) })
            }),
        ];
        assert_eq!(found, [Some(Error::Refused); 4], "{len} bytes");
    }
}

/// From one post to the next of a program that tries seldom: what came of the one before is no news by then.
const SELDOM: Duration = Duration::from_millis(1050);

/// A post that is tried again so seldom ends all the same, also where receives that name the peer complete at
/// each end before.
fn ends_if_tried_seldom<L: RmaLink>(what: &str, mut node: Node<L>, receives: bool) {
    let (at, span) = (node.peer, Span::leak(8));
    let (mut posted, mut taken) = (!receives, false);
    for _ in 0..5 {
        match send(&mut node, span, &msg(at, &[span], 1)) {
            Err(Error::Again) => {}
            Ok(()) => taken = true,
            Err(why) => return assert_eq!(why, Error::Refused),
        }
        let since = Instant::now();
        while taken || since.elapsed() < SELDOM {
            assert!(since.elapsed() < MOST, "nothing completes");
            if !std::mem::replace(&mut posted, true) {
                node.domain.recv(node.rx, &from(at, &[span], RECEIVE)).expect("room");
            }
            while let Some(found) = node.next() {
                assert_eq!(found.err, Some(Error::Refused));
                if found.ctx.0 != RECEIVE {
                    return;
                }
                posted = false;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    panic!("{what}, receives {receives}: a message is to be tried again and again");
}

/// As [`ends_if_tried_seldom`], with a peer that never was there.
fn ends_alone_if_tried_seldom<L: RmaLink>(what: &str, open: impl Fn() -> L, receives: bool) {
    let (_kept, node) = alone(open);
    ends_if_tried_seldom(what, node, receives);
}

#[test]
fn a_post_that_is_tried_seldom_ends_all_the_same() {
    let all: [fn(bool); 5] = [
        |receives| ends_alone_if_tried_seldom("never reached by shm", over_shm, receives),
        |receives| ends_alone_if_tried_seldom("never reached by tcp", over_tcp, receives),
        |receives| ends_if_tried_seldom("reached by tcp", left_alone(over_tcp), receives),
        |receives| ends_if_tried_seldom("reached by a selector", left_alone(|| over_all(false)), receives),
        |receives| ends_alone_if_tried_seldom("never reached by ofi", over_ofi, receives),
    ];
    // At a time, since they sleep.
    std::thread::scope(|s| {
        for (run, receives) in all.iter().flat_map(|run| [(run, false), (run, true)]) {
            s.spawn(move || run(receives));
        }
    });
}

#[test]
fn beside_receives_that_are_posted_again_over_shm() {
    all_end_beside_receives(over_shm);
}

#[test]
fn beside_receives_that_are_posted_again_over_tcp() {
    all_end_beside_receives(over_tcp);
}

#[test]
fn beside_receives_that_are_posted_again_over_a_provider_below() {
    all_end_beside_receives(over_ofi);
}

#[test]
fn beside_receives_that_are_posted_again_by_a_selector() {
    all_end_beside_receives(|| over_all(true));
    all_end_beside_receives(|| over_all(false));
}

#[test]
fn never_reached_over_shm() {
    never_reached(over_shm);
}

#[test]
fn never_reached_over_tcp() {
    never_reached(over_tcp);
}

#[test]
fn never_reached_over_a_provider_below() {
    never_reached(over_ofi);
}

#[test]
fn never_reached_by_a_selector() {
    never_reached(|| over_all(true));
    never_reached(|| over_all(false));
}

#[test]
fn reached_over_shm() {
    reached(over_shm);
}

#[test]
fn reached_over_tcp() {
    reached(over_tcp);
}

#[test]
fn reached_by_a_selector() {
    reached(|| over_all(true));
    reached(|| over_all(false));
}

//! What is counted where that is asked for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use engine::link_api::{Fallback, How, Meter, Side};
use testkit::*;
use wire::Addr;

type Counts = BTreeMap<(Side, How), (u64, usize)>;

/// What has been reported: sums by side and way, links of paths, what fell back.
type Reported = (Counts, Vec<String>, Vec<Fallback>);

/// Counts by side and way, and keeps what is reported of paths.
#[derive(Clone, Debug, Default)]
struct Book(Arc<Mutex<Reported>>);

impl Book {
    fn take(&self) -> Vec<(Side, How, u64, usize)> {
        let counts = std::mem::take(&mut self.0.lock().unwrap().0);
        counts.into_iter().map(|((side, how), (n, bytes))| (side, how, n, bytes)).collect()
    }
}

impl Meter for Book {
    fn path(&mut self, _: &Addr, link: &'static str, _: String) {
        self.0.lock().unwrap().1.push(link.into());
    }

    fn count(&mut self, _: &Addr, side: Side, how: How, bytes: usize) -> bool {
        let mut book = self.0.lock().unwrap();
        if book.1.is_empty() {
            return false;
        }
        let entry = book.0.entry((side, how)).or_default();
        *entry = (entry.0 + 1, entry.1 + bytes);
        true
    }

    fn fell_back(&mut self, _: &Addr, why: Fallback) {
        self.0.lock().unwrap().2.push(why);
    }
}

/// Two endpoints, both metered; `looks`: they are polled by the quick way too.
fn metered(direct: Direct, looks: bool) -> (Net, [Book; 2]) {
    let mut net = Net::with(2, Setup { direct, looks, ..Setup::default() });
    let books = [Book::default(), Book::default()];
    for (at, book) in books.iter().enumerate() {
        let ep = net[at].ep;
        net[at].ep_meter(ep, Box::new(book.clone()));
    }
    (net, books)
}

/// Sends one message of `len` bytes.
fn message(net: &mut Net, len: usize) {
    let (src, dst) = (net.bytes(0, &pattern(len, 1)), net.memory(1, len));
    net[1].recv(&from_any(&[dst], 1)).unwrap();
    net[0].send(&msg(1, &[src], 0)).unwrap();
    net.settle();
    assert_eq!((net[1].received().err, net[0].sent().err), (None, None));
}

#[test]
fn every_short_message_is_counted_at_both_ends() {
    for looks in [false, true] {
        let (mut net, [a, b]) = metered(Direct::InCall, looks);
        for _ in 0..100 {
            message(&mut net, 8);
        }
        assert_eq!(a.take(), [(Side::Ours, How::Eager, 100, 800)], "{looks}");
        assert_eq!(b.take(), [(Side::Theirs, How::Eager, 100, 800)], "{looks}");
        assert!(!a.0.lock().unwrap().1.is_empty() && !b.0.lock().unwrap().1.is_empty());
    }
}

#[test]
fn long_messages_are_counted_by_the_way_that_they_went() {
    let (mut net, [a, b]) = metered(Direct::InCall, false);
    message(&mut net, 20_000);
    assert_eq!(a.take(), [(Side::Ours, How::Direct, 1, 20_000)]);
    assert_eq!(b.take(), [(Side::Theirs, How::Direct, 1, 20_000)]);
    message(&mut net, 20 << 20);
    assert_eq!(a.take(), [(Side::Ours, How::Cooperative, 1, 20 << 20)]);
    assert_eq!(b.take(), [(Side::Theirs, How::Cooperative, 1, 20 << 20)]);
    assert_eq!(a.0.lock().unwrap().2, []);
}

#[test]
fn what_falls_back_to_frames_is_reported_once_and_counted_as_such() {
    let (mut net, [a, b]) = metered(Direct::Never, false);
    message(&mut net, 20_000);
    message(&mut net, 20_000);
    assert_eq!(a.take(), [(Side::Ours, How::Frames, 2, 40_000)]);
    assert_eq!(b.take(), [(Side::Theirs, How::Frames, 2, 40_000)]);
    let reasons = std::mem::take(&mut b.0.lock().unwrap().2);
    assert_eq!(reasons, [Fallback::Peer]);
}

#[test]
fn accesses_to_memory_are_counted_where_they_were_begun_and_where_they_are_seen() {
    let (mut net, [a, b]) = metered(Direct::InCall, false);
    let (here, target) = (net.bytes(0, &pattern(20_000, 1)), net.memory(1, 20_000));
    net[1].share(target, 5);
    let short = here.part(0, 8).unwrap();
    net[0].rma(&write(1, &[short], &[there(0, 8, 5)], 1)).unwrap();
    net.settle();
    assert_eq!(net[0].sent().err, None);
    assert_eq!(a.take(), [(Side::Ours, How::Eager, 1, 8)]);
    assert_eq!(b.take(), [(Side::Theirs, How::Eager, 1, 8)]);
    net[0].rma(&read(1, &[here], &[there(0, 20_000, 5)], 1)).unwrap();
    net.settle();
    assert_eq!(net[0].sent().err, None);
    assert_eq!(a.take(), [(Side::Ours, How::Direct, 1, 20_000)]);
}

#[test]
fn no_message_is_too_plain_to_be_counted() {
    let plain = |net: &mut Net| {
        message(net, 8);
        let (ep, src) = (net[0].ep, net.bytes(0, &pattern(8, 1)));
        net[0].send_plain(ep, src, &msg(1, &[src], 0))
    };
    assert!(plain(&mut Net::with(2, Setup::default())));
    let (mut net, [a, _]) = metered(Direct::InCall, false);
    assert!(!plain(&mut net));
    assert_eq!(a.take(), [(Side::Ours, How::Eager, 1, 8)]);
}

//! The engine over the slow link with keys: what it carries in frames, and by handles where it does.

#[path = "support/node.rs"]
mod node;

use std::thread::sleep;
use std::time::{Duration, Instant};

use engine::{Access, Atomic, Completion, Ctx, Error, OpFlags, Reg};
use hmem::{AtomicOp, Datatype, Span};
use link_kit::keyed::{KeyedLink, KeyedNet, Pace};
use link_kit::text;
use testkit::{from, from_any, msg, pattern, read, tagged, there, with_tag, write};

type Node = node::Node<KeyedLink>;

struct Pair {
    net: KeyedNet,
    a: Node,
    b: Node,
}

impl Pair {
    fn new() -> Pair {
        Pair::with(Pace::default())
    }

    fn with(pace: Pace) -> Pair {
        let mut net = KeyedNet::new(pace);
        let names = [net.name(), net.name()];
        let [a, b] = names.map(|name| net.open(name).expect("a name that is free"));
        Pair { net, a: Node::new(a, names[1]), b: Node::new(b, names[0]) }
    }

    /// Has both make progress until so many operations of either have completed.
    fn complete(&mut self, of_a: usize, of_b: usize) -> (Vec<Completion>, Vec<Completion>) {
        node::complete([&mut self.a, &mut self.b], of_a, of_b)
    }

    /// The one operation of the first that completes.
    fn completed(&mut self) -> Completion {
        self.complete(1, 0).0[0]
    }

    /// Posts as soon as there is room.
    fn post(&mut self, post: impl FnMut(&mut Node) -> Result<(), Error>) {
        node::post([&mut self.a, &mut self.b], post);
    }

    fn share(&mut self, span: Span, key: u64) {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        self.b.domain.mr_reg(&Reg { iov: &[span], access, key: Some(key) }).expect("a key that is free");
    }

    /// What there is to say of how bytes went.
    fn report(&self, what: &str) {
        match self.net.started() {
            0 => println!("{what}: in frames"),
            n => println!("{what}: by {n} operations of the link"),
        }
    }
}

fn filled(len: usize, seed: usize) -> Span {
    let span = Span::leak(len);
    hmem::write(&[span], 0, &pattern(len, seed));
    span
}

#[test]
fn messages_of_all_sizes_arrive_whole() {
    const LENS: [usize; 9] = [0, 1, 1_000, 1_024, 1_025, 10_000, 10_241, 100_000, 700_001];
    let mut pair = Pair::new();
    let (to_b, from_a) = (pair.a.peer, pair.b.peer);
    for (i, len) in LENS.into_iter().enumerate() {
        for posted_first in [true, false] {
            let (src, dst) = (filled(len, i), Span::leak(len + 9));
            let parts = [src.part(0, len / 3).unwrap(), src.part(len / 3, len - len / 3).unwrap()];
            let recv = |node: &mut Node| node.domain.recv(node.rx, &from(from_a, &[dst], 2 * i));
            if posted_first {
                recv(&mut pair.b).unwrap();
            }
            pair.post(|a| a.domain.send(a.ep, &msg(to_b, &parts, i)));
            if !posted_first {
                // It comes, or is offered, to a receiver that has no buffer for it yet.
                for _ in 0..20 {
                    assert!(pair.b.next().is_none());
                    sleep(Duration::from_micros(50));
                }
                recv(&mut pair.b).unwrap();
            }
            let (sent, got) = pair.complete(1, 1);
            assert_eq!((sent[0].ctx.0, sent[0].err), (i, None), "{len} bytes");
            assert_eq!((got[0].ctx.0, got[0].err, got[0].len), (2 * i, None, len), "{len} bytes");
            assert!(text(&[dst])[..len] == pattern(len, i) && text(&[dst])[len..] == [0; 9], "{len} bytes");
        }
    }
    pair.report("messages");
}

#[test]
fn many_messages_both_ways_are_matched_in_order() {
    const EACH: usize = 60;
    let mut pair = Pair::new();
    let len = |i: usize| (i * 7_919) % 30_000;
    let (to_b, to_a) = (pair.a.peer, pair.b.peer);
    let rooms: Vec<[Span; 2]> = (0..EACH).map(|_| [Span::leak(30_000), Span::leak(30_000)]).collect();
    for (i, [at_a, at_b]) in rooms.iter().enumerate() {
        pair.a.domain.recv(pair.a.rx, &from_any(&[*at_a], 1_000 + i)).unwrap();
        pair.b.domain.recv(pair.b.rx, &with_tag(&[*at_b], 5, 1_000 + i)).unwrap();
    }
    for i in 0..EACH {
        let (one, other) = (filled(len(i), i), filled(len(i), 500 + i));
        pair.post(|a| a.domain.send(a.ep, &tagged(to_b, &[one], 5, i)));
        std::mem::swap(&mut pair.a, &mut pair.b);
        pair.post(|b| b.domain.send(b.ep, &msg(to_a, &[other], i)));
        std::mem::swap(&mut pair.a, &mut pair.b);
    }
    let (of_a, of_b) = pair.complete(2 * EACH, 2 * EACH);
    for c in of_a.iter().chain(&of_b) {
        assert_eq!(c.err, None);
        assert!(c.ctx.0 < 1_000 || c.len == len(c.ctx.0 - 1_000), "{c:?}");
    }
    for (i, [at_a, at_b]) in rooms.iter().enumerate() {
        assert!(text(&[*at_b])[..len(i)] == pattern(len(i), i), "message {i} to the second");
        assert!(text(&[*at_a])[..len(i)] == pattern(len(i), 500 + i), "message {i} to the first");
    }
    pair.report("messages both ways");
}

#[test]
fn memory_of_the_peer_is_written_and_read() {
    let mut pair = Pair::new();
    let to_b = pair.a.peer;
    let target = filled(400_000, 3);
    pair.share(target, 7);
    let mut want = pattern(400_000, 3);
    for (i, (at, len)) in
        [(0, 1), (5, 1_000), (77, 20_000), (100, 300_000), (399_999, 1)].into_iter().enumerate()
    {
        let local = filled(len, 40 + i);
        pair.post(|a| a.domain.rma(a.ep, &write(to_b, &[local], &[there(at as u64, len, 7)], i)));
        let c = pair.completed();
        assert_eq!((c.ctx.0, c.err), (i, None));
        want[at..at + len].copy_from_slice(&pattern(len, 40 + i));
        let back = Span::leak(len + 20);
        let around = (at as u64).saturating_sub(10);
        let n = (len + 20).min(400_000 - around as usize);
        let part = back.part(0, n).unwrap();
        pair.post(|a| a.domain.rma(a.ep, &read(to_b, &[part], &[there(around, n, 7)], i)));
        let c = pair.completed();
        assert_eq!((c.ctx.0, c.err), (i, None));
        assert!(text(&[part]) == want[around as usize..around as usize + n], "{len} bytes around {at}");
    }
    assert!(text(&[target]) == want, "what was written, and nothing else");
    // A key that nothing is registered under, and more than is.
    let local = filled(5_000, 1);
    for remote in [there(0, 5_000, 8), there(399_000, 5_000, 7)] {
        pair.post(|a| a.domain.rma(a.ep, &write(to_b, &[local], &[remote], 9)));
        assert!(pair.completed().err.is_some(), "{remote:?}");
    }
    assert!(text(&[target]) == want);
    pair.report("writes and reads");
}

#[test]
fn atomics_are_done_at_the_target() {
    let mut pair = Pair::new();
    let target = Span::leak(24);
    let words = |values: &[u64]| values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<u8>>();
    hmem::write(&[target], 0, &words(&[10, 20, 30]));
    pair.share(target, 1);
    let (operand, result) = (Span::leak(24), Span::leak(24));
    hmem::write(&[operand], 0, &words(&[1, 2, 3]));
    let (operands, results, remote) = ([operand], [result], [there(0, 24, 1)]);
    let atomic = Atomic {
        to: pair.a.peer,
        op: AtomicOp::Sum,
        datatype: Datatype::Uint64,
        operand: &operands,
        compare: &[],
        result: &[],
        remote: &remote,
        data: None,
        ctx: Ctx(1),
        flags: OpFlags::COMPLETION,
    };
    for round in 1..=50 {
        pair.post(|a| a.domain.atomic(a.ep, &Atomic { result: &results, ..atomic }));
        assert_eq!(pair.completed().err, None);
        let n = round - 1;
        assert_eq!(text(&[result]), words(&[10 + n, 20 + 2 * n, 30 + 3 * n]), "what was there before");
        assert_eq!(text(&[target]), words(&[10 + round, 20 + 2 * round, 30 + 3 * round]));
    }
    let compares = [filled(24, 0)];
    hmem::write(&compares, 0, &words(&[60, 0, 180]));
    let swap = Atomic { op: AtomicOp::Cswap, compare: &compares, result: &results, ..atomic };
    pair.post(|a| a.domain.atomic(a.ep, &swap));
    assert_eq!(pair.completed().err, None);
    assert_eq!(text(&[target]), words(&[1, 120, 3]), "where it was as it was compared to");
    pair.report("atomics");
}

#[test]
fn what_a_peer_leaves_undone_when_it_ends_fails() {
    // So slow that it takes seconds.
    let mut pair = Pair::with(Pace { pause: Duration::from_millis(200), ..Pace::default() });
    let to_b = pair.a.peer;
    let (big, room) = (filled(600_000, 1), Span::leak(600_000));
    let from_a = pair.b.peer;
    pair.b.domain.recv(pair.b.rx, &from(from_a, &[room], 1)).unwrap();
    pair.post(|a| a.domain.send(a.ep, &msg(to_b, &[big], 5)));
    // It is under way now, or about to be.
    for _ in 0..10 {
        assert!(pair.b.next().is_none() && pair.a.next().is_none(), "it takes longer");
        sleep(Duration::from_millis(20));
    }
    let Pair { net: _net, mut a, b } = pair;
    drop(b);
    let start = Instant::now();
    let c = loop {
        if let Some(c) = a.next() {
            break c;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nothing reports the end");
        sleep(Duration::from_micros(20));
    };
    assert_eq!((c.ctx.0, c.err), (5, Some(Error::Reset)));
    assert_eq!(a.domain.ep_under_way(a.ep), 0);
}

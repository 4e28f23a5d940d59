//! What all peers together may have a domain keep: peers that end and come again under other names, peers
//! that let answers lie, peers that write more than is read.

use engine::{Completion, Error, What};
use testkit::*;
use wire::{Flags, Head, Op};
use zerocopy::IntoBytes;

const MOST: usize = 8000;
const KEPT: usize = 80_000;
/// What an unexpected message takes up beside its bytes.
const ALONE: usize = 256;

fn net(nodes: usize, setup: Setup) -> Net {
    let mut net = Net::with(nodes, Setup { cq_size: 1 << 20, ..setup });
    net[0].set_unexpected_most(MOST);
    net[0].set_kept_most(KEPT);
    net
}

/// A message that no pause keeps back.
fn eager(net: &mut Net, from: usize, id: usize, len: usize) {
    let mut frame = Head::new(Op::Eager, Flags::TAGGED, 0, id as u64, 0).as_bytes().to_vec();
    frame.extend(pattern(len, id));
    net.inject(from, 0, frame);
    net[0].progress();
}

#[test]
fn peers_that_end_and_come_under_other_names_do_not_pass_the_limit_and_what_came_is_received() {
    let mut net = net(6, Setup::default());
    let (len, mut id, mut most) = (300, 0, 0);
    // Each sends as much as no other limit is about, and ends.
    for from in (1..5).cycle().take(100) {
        for _ in 0..10 {
            eager(&mut net, from, id, len);
            id += 1;
            most = most.max(net[0].unexpected());
        }
        net.kill(from);
        net.settle();
        net.revive(from);
    }
    assert!(most <= KEPT, "{most}");
    let kept = net[0].unexpected() / (ALONE + len);
    assert!(kept > 100, "{kept}");
    // One whose message is expected is not refused.
    let (src, room) = (net.bytes(5, b"hello"), net.memory(0, 5));
    net[0].recv(&with_tag(&[room], 1 << 40, 1)).unwrap();
    net[5].send(&tagged(0, &[src], 1 << 40, 2)).unwrap();
    net.settle();
    assert_eq!((net[0].received().len, net[5].sent().err), (5, None));
    // The first ones, in order, of peers that have ended since, and no other.
    let room = net.memory(0, len);
    for id in 0..kept {
        net[0].recv(&with_tag(&[room], id as u64, id)).unwrap();
        net.settle();
        let got = net[0].received();
        assert_eq!((got.tag, got.err), (id as u64, None));
        assert!(net[0].look(room, len) == pattern(len, id), "message {id}");
    }
    assert_eq!(net[0].unexpected(), 0);
    // There is room again for all.
    eager(&mut net, 5, 7, len);
    assert_eq!(net[0].unexpected(), ALONE + len);
}

#[test]
fn answers_of_all_peers_together_have_a_limit() {
    const NODES: usize = 6;
    let mut net = net(NODES, Setup { direct: Direct::Never, capacity: 1, ..Setup::default() });
    net[0].set_kept_most(8 << 20);
    let memory = net.bytes(0, &pattern(200, 1));
    net[0].share(memory, 1);
    let mut most = 0;
    for at in 1..NODES {
        let ep = net[at].ep;
        net[at].ep_set_depth(ep, 1 << 16);
        let (dst, key) = (net.memory(at, 200), [there(0, 200, 1)]);
        for n in 0..8000 {
            // The answers are not taken.
            let _ = net[at].rma(&read(0, &[dst], &key, n));
            net[0].progress();
            most = most.max(net[0].owed());
        }
    }
    // 2 MiB of them are within the limit, and of each peer some more.
    assert!(most > 1 << 20, "{most}: too few for a test");
    assert!(most < (2 << 20) + NODES * (64 << 10) + 4096, "{most}");
}

/// Writes with data for the queue, which this process does not read.
#[test]
fn completions_of_what_peers_do_on_their_own_have_a_limit() {
    let mut net = net(4, Setup::default());
    let memory = net.memory(0, 8);
    net[0].share(memory, 1);
    let most = KEPT / 4 * 3 / size_of::<Completion>() + 1;
    let (mut refused, mut done) = (0, 0);
    for at in (1..4).cycle().take(3 * most) {
        let src = net.bytes(at, b"eight by");
        let (iov, remote) = ([src], [there(0, 8, 1)]);
        let op = engine::Rma { data: Some(7), ..write(0, &iov, &remote, 1) };
        match net[at].rma(&op) {
            Ok(()) => {}
            Err(why) => {
                assert_eq!(why, Error::Reset);
                refused += 1;
            }
        }
        net.settle();
        refused += net[at].tx().iter().filter(|c| c.err.is_some()).count();
    }
    let cq = net[0].rx_cq;
    while let Some(got) = net[0].next(cq) {
        assert!(got.what.contains(What::REMOTE_CQ_DATA) && got.err.is_none());
        done += 1;
    }
    assert!(done <= most && done + 8 > most, "{done} of {most}");
    assert!(refused > 0, "the peers have no error");
}

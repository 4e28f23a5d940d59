//! Floods in every constellation: no node waits for ever, nothing is lost, nothing overtakes, and a node that
//! behaves is not cut off.

use engine::{ADDR_UNSPEC, Access, Error, OpFlags, Pattern, Recv, Reg, Send};
use testkit::*;

const MOST: usize = 8000;
const DEPTH: usize = 20;

fn net(nodes: usize, direct: Direct, seed: u64) -> Net {
    let mut net = Net::with(nodes, Setup { direct, seed, cq_size: 1 << 20, ..Setup::default() });
    for at in 0..nodes {
        let ep = net[at].ep;
        net[at].ep_set_depth(ep, DEPTH);
        net[at].set_unexpected_most(MOST);
    }
    net
}

/// Length and contents of the `n`th message from one to another.
fn contents(from: usize, to: usize, n: usize) -> Vec<u8> {
    pattern([40, 250, 0, 700, 300][n % 5], from * 100_000 + to * 10_000 + n)
}

/// Sends the `n`th message; every third that fits is injected.
fn send(net: &mut Net, from: usize, to: usize, n: usize) -> Result<(), Error> {
    let bytes = contents(from, to, n);
    let src = net.bytes(from, &bytes);
    let inject = n % 3 == 0 && bytes.len() <= 256;
    let flags = if inject { OpFlags::INJECT } else { OpFlags::COMPLETION };
    net[from].send(&Send { flags, ..tagged(to as u64, &[src], n as u64, n) })
}

/// Sends on every one of these ways until none takes any more; how many each took.
fn fill(net: &mut Net, ways: &[(usize, usize)]) -> Vec<usize> {
    let mut sent = vec![0; ways.len()];
    loop {
        let before = sent.clone();
        for (sent, &(from, to)) in sent.iter_mut().zip(ways) {
            match send(net, from, to, *sent) {
                Ok(()) => *sent += 1,
                Err(err) => assert_eq!(err, Error::Again),
            }
            net.settle();
        }
        if sent == before {
            return sent;
        }
    }
}

/// Receives all of it, from any sender; `again` more are sent on each way meanwhile.
fn drain(net: &mut Net, ways: &[(usize, usize)], mut sent: Vec<usize>, again: usize) {
    let most: Vec<usize> = sent.iter().map(|n| n + again).collect();
    let mut got = vec![0; ways.len()];
    while got != most {
        let before = got.clone();
        for (at, &(from, to)) in ways.iter().enumerate() {
            if sent[at] < most[at] && send(net, from, to, sent[at]).is_ok() {
                sent[at] += 1;
            }
            if !ways[..at].iter().any(|w| w.1 == to) {
                let room = net.memory(to, 700);
                net[to]
                    .recv(&Recv {
                        pattern: Pattern { src: ADDR_UNSPEC, tag: Some((0, u64::MAX)) },
                        ..from_any(&[room], to)
                    })
                    .unwrap();
                net.settle();
                for c in net[to].rx() {
                    let way = ways.iter().position(|w| *w == (c.src as usize, to)).unwrap();
                    assert!(c.err.is_none() && c.tag == got[way] as u64, "{c:?}, {} were got", got[way]);
                    let want = contents(c.src as usize, to, got[way]);
                    assert!(net[to].look(room, c.len) == want, "{c:?}");
                    got[way] += 1;
                }
            }
        }
        assert_ne!(got, before, "of {most:?}, {sent:?} sent");
    }
    for at in 0..net_len(ways) {
        let done = net[at].tx();
        assert!(done.iter().all(|c| c.err.is_none()), "{done:?}");
        assert_eq!(net[at].unexpected(), 0);
    }
    net.assert_idle();
}

fn net_len(ways: &[(usize, usize)]) -> usize {
    ways.iter().map(|w| w.0.max(w.1) + 1).max().unwrap()
}

/// Each of these, with and without direct access, and heard in several orders.
fn flooded(ways: &[(usize, usize)]) {
    for (direct, seed) in
        Direct::ALL.into_iter().zip([1, 2, 3, 4]).chain([(Direct::InCall, 5), (Direct::AnyOrder, 6)])
    {
        let mut net = net(net_len(ways), direct, seed);
        let sent = fill(&mut net, ways);
        assert!(sent.iter().all(|n| *n >= DEPTH), "{sent:?}");
        drain(&mut net, ways, sent, 100);
    }
}

#[test]
fn two_that_flood_each_other() {
    flooded(&[(0, 1), (1, 0)]);
}

#[test]
fn one_that_floods_itself() {
    flooded(&[(0, 0)]);
    flooded(&[(0, 0), (1, 0), (0, 1)]);
}

#[test]
fn a_receiver_from_any_peer_takes_a_flood_of_many() {
    flooded(&[(1, 0), (2, 0), (3, 0)]);
}

#[test]
fn everybody_and_everybody() {
    let ways: Vec<_> = (0..4).flat_map(|from| (0..4).map(move |to| (from, to))).collect();
    flooded(&ways);
}

/// A node that is full of unexpected messages still gets what it did, and serves its memory.
#[test]
fn what_was_asked_for_passes_a_flood() {
    for direct in Direct::ALL {
        let mut net = net(3, direct, 5);
        // One that floods, and stops short of as many operations as it may have under way.
        let mut n = 0;
        while net[1].unexpected() <= MOST + 256 * 4 {
            send(&mut net, 0, 1, n).unwrap();
            net.settle();
            n += 1;
        }
        net[0].tx();
        // By rendezvous, from the one that floods and from one that does not, and to a larger buffer.
        for from in [0, 2] {
            let (src, room) = (net.bytes(from, &pattern(5000, 7 + from)), net.memory(1, 6000));
            net[1].recv(&with_tag(&[room], 1 << 40, 1)).unwrap();
            net[from].send(&tagged(1, &[src], 1 << 40, 2)).unwrap();
            net.settle();
            let got = net[1].received();
            assert_eq!((got.len, got.err), (5000, None));
            assert!(net[1].look(room, 5000) == pattern(5000, 7 + from));
            assert_eq!(net[from].sent().err, None);
        }
        // Memory of both, large and small, both ways.
        for (from, to) in [(0, 1), (1, 0), (2, 1), (1, 2)] {
            let memory = net.bytes(to, &pattern(5000, 20 + to));
            let iov = [memory];
            let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
            let (mr, key) = net[to].mr_reg(&Reg { iov: &iov, access, key: Some(9) }).unwrap();
            for len in [8, 5000] {
                let (buf, there) = (net.memory(from, 5000), [there(0, len, key)]);
                let part = [buf.part(0, len).unwrap()];
                net[from].rma(&read(to as u64, &part, &there, 3)).unwrap();
                net.settle();
                assert_eq!(net[from].sent().err, None);
                assert!(net[from].look(buf, len) == pattern(5000, 20 + to)[..len]);
                net[from].rma(&write(to as u64, &part, &there, 4)).unwrap();
                net.settle();
                assert_eq!(net[from].sent().err, None);
            }
            net[to].mr_close(mr).unwrap();
        }
        drain(&mut net, &[(0, 1)], vec![n], 0);
    }
}

/// An application that never makes progress while its messages are taken hears all the same that it is
/// to pause.
#[test]
fn a_node_that_only_sends_learns_of_a_pause() {
    let mut net = Net::with(2, Setup { cq_size: 8, ..Setup::default() });
    let ep = net[0].ep;
    net[0].ep_set_depth(ep, DEPTH);
    net[1].set_unexpected_most(MOST);
    let src = net.bytes(0, &[7; 200]);
    let iov = [src];
    let one = Send { flags: OpFlags::INJECT, ..tagged(1, &iov, 1, 1) };
    let mut sent = 0;
    for _ in 0..400_000 {
        let plain = net[0].send_plain(ep, src, &Send { iov: &[], ..one });
        if !plain && net[0].send(&one).is_err() {
            break;
        }
        sent += 1;
        net[1].progress();
    }
    let held = net[1].unexpected();
    assert!(held < (3 << 20) && sent < 10_000, "{held} bytes of {sent} messages");
    for n in 0..sent {
        let room = net.memory(1, 200);
        net[1].recv(&with_tag(&[room], 1, n)).unwrap();
        net.settle();
        assert_eq!(net[1].received().err, None, "{n} of {sent}");
    }
    net.assert_idle();
}

/// Of one that dies what has arrived whole is still there, and no more; the other's flood goes on.
#[test]
fn one_of_two_that_flood_dies() {
    for direct in Direct::ALL {
        let mut net = net(3, direct, 7);
        let sent = fill(&mut net, &[(1, 0), (2, 0)]);
        let before = net[0].unexpected();
        net.kill(1);
        net.settle();
        assert!(net[0].unexpected() < before, "offers of the dead are forgotten");
        let room = net.memory(0, 700);
        let mut got = [0; 3];
        loop {
            let any = Pattern { src: ADDR_UNSPEC, tag: Some((0, u64::MAX)) };
            net[0].recv(&Recv { pattern: any, ..from_any(&[room], 2) }).unwrap();
            net.settle();
            let Some(c) = net[0].rx().pop() else { break };
            assert!(c.err.is_none() && c.ctx.0 == 2, "{c:?}");
            let from = c.src as usize;
            assert!(c.tag as usize >= got[from] && (from == 1 || c.tag as usize == got[from]), "{c:?}");
            assert!(net[0].look(room, c.len) == contents(from, 0, c.tag as usize), "{c:?}");
            got[from] = c.tag as usize + 1;
        }
        assert_eq!(got[2], sent[1]);
        assert_eq!(net[0].unexpected(), 0);
    }
}

//! Peers that die, at every step of everything.

use engine::{Atomic, Completion, Ctx, Error, OpFlags, Pattern, Peek, Recv, Rma, Send, What};
use hmem::{AtomicOp, Datatype, Span};
use link_api::Gone;
use testkit::*;

/// What node 0 has going with node 1.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Deed {
    Send {
        len: usize,
        posted: bool,
    },
    Recv {
        len: usize,
        posted: bool,
    },
    Multi {
        len: usize,
    },
    Write {
        len: usize,
    },
    Read {
        len: usize,
    },
    Fetch,
    /// The other reads or writes memory here.
    Served {
        len: usize,
        write: bool,
    },
}

fn deeds() -> Vec<Deed> {
    let mut all = vec![Deed::Fetch];
    for len in [100, 3000] {
        all.extend([Deed::Write { len }, Deed::Read { len }, Deed::Multi { len }]);
        all.extend([true, false].map(|posted| Deed::Send { len, posted }));
        all.extend([true, false].map(|posted| Deed::Recv { len, posted }));
        all.extend([true, false].map(|write| Deed::Served { len, write }));
    }
    all
}

/// Starts it; returns how many completions node 0 is owed, sends and receives.
fn start(net: &mut Net, deed: Deed, here: Span, peer: Span) -> (usize, usize) {
    let flags = OpFlags::COMPLETION | OpFlags::DELIVERY;
    let cut = |len| ([here.part(0, len).unwrap()], [peer.part(0, len).unwrap()], [there(0, len, 1)]);
    match deed {
        Deed::Send { len, posted } => {
            let (here, peer, _) = cut(len);
            if posted {
                net[1].recv(&from_any(&peer, 0)).unwrap();
            }
            net[0].send(&Send { flags, ..msg(1, &here, 1) }).unwrap();
            (1, 0)
        }
        Deed::Recv { len, posted } => {
            let (here, peer, _) = cut(len);
            let pattern = Pattern { src: 1, tag: Some((3, 0)) };
            if posted {
                net[0].recv(&Recv { pattern, ..from_any(&here, 2) }).unwrap();
            }
            net[1].send(&Send { flags, ..tagged(0, &peer, 3, 0) }).unwrap();
            (0, usize::from(posted))
        }
        Deed::Multi { len } => {
            let (_, peer, _) = cut(len);
            let flags = OpFlags::COMPLETION | OpFlags::MULTI_RECV;
            net[0].recv(&Recv { flags, ..from(1, &[here], 2) }).unwrap();
            net[1].send(&msg(0, &peer, 0)).unwrap();
            (0, usize::MAX)
        }
        Deed::Write { len } => {
            let (here, _, remote) = cut(len);
            net[0].rma(&write(1, &here, &remote, 1)).unwrap();
            (1, 0)
        }
        Deed::Read { len } => {
            let (here, _, remote) = cut(len);
            net[0].rma(&read(1, &here, &remote, 1)).unwrap();
            (1, 0)
        }
        Deed::Fetch => {
            let (here, _, remote) = cut(8);
            let op = Atomic {
                to: 1,
                op: AtomicOp::Sum,
                datatype: Datatype::Uint64,
                operand: &here,
                compare: &[],
                result: &here,
                remote: &remote,
                data: None,
                ctx: Ctx(1),
                flags,
            };
            net[0].atomic(&op).unwrap();
            (1, 0)
        }
        Deed::Served { len, write: is_write } => {
            let (_, peer, _) = cut(len);
            net[1].rma(&Rma { write: is_write, ..write(0, &peer, &[there(0, len, 1)], 0) }).unwrap();
            (0, 0)
        }
    }
}

/// Whether the failure, if it is one, is that of a death: also where a direct copy is the first to notice.
fn is_of_death(c: &Completion) -> bool {
    matches!(c.err, None | Some(Error::Reset))
}

/// Both sides take turns; node 1 dies after `steps` of them. Returns whether all was over before.
fn die_after(deed: Deed, direct: Direct, capacity: usize, steps: usize) -> bool {
    let case = (deed, direct, capacity, steps);
    let capacity = capacity.max(direct.least_capacity());
    let mut net = Net::with(3, Setup { direct, capacity, ..Setup::default() });
    let (here, peer) = (net.memory(0, 6000), net.memory(1, 6000));
    net[0].share(here, 1);
    net[1].share(peer, 1);
    let (sends, recvs) = start(&mut net, deed, here, peer);
    let mut quiet = 0;
    for step in 0..steps {
        quiet = if net[step % 2].progress() == 0 { quiet + 1 } else { 0 };
    }
    net.kill(1);
    net.settle();
    let (tx, rx) = (net[0].tx(), net[0].rx());
    assert_eq!(tx.len(), sends, "{case:?} {tx:?}");
    assert!(tx.iter().chain(&rx).all(is_of_death), "{case:?} {tx:?} {rx:?}");
    if recvs == usize::MAX {
        let backs = rx.iter().filter(|c| c.what.contains(What::MULTI_RECV)).count();
        assert_eq!(backs, 1, "{case:?} {rx:?}");
    } else {
        assert_eq!(rx.len(), recvs, "{case:?} {rx:?}");
    }
    // A post to that name fails at once, and the third node goes on.
    let late = Send { flags: OpFlags::INJECT, ..msg(1, &[], 9) };
    assert_eq!(net[0].send(&late), Err(Error::Refused), "{case:?}");
    let (src, dst) = (net.bytes(2, &pattern(3000, 1)), net.memory(0, 3000));
    net[0].recv(&from(2, &[dst], 5)).unwrap();
    net[2].send(&msg(0, &[src], 6)).unwrap();
    net.settle();
    assert_eq!((net[0].received().len, net[2].sent().err), (3000, None), "{case:?}");
    assert_eq!(net[0].look(dst, 3000), pattern(3000, 1));
    let unasked = Pattern { src: 1, tag: Some((3, 0)) };
    let rx = net[0].rx;
    net[0].peek(rx, unasked, Peek::Discard, Ctx(7), OpFlags::empty()).unwrap();
    net[0].rx();
    net.assert_idle();
    quiet > 4
}

#[test]
fn whatever_a_dying_peer_was_at_ends() {
    for deed in deeds() {
        for direct in Direct::ALL {
            for capacity in [1, 2, 64] {
                let over = (0..60).position(|steps| die_after(deed, direct, capacity, steps));
                assert!(over.is_some(), "{deed:?} {direct:?} {capacity} was never over");
            }
        }
    }
}

#[test]
fn frames_sent_before_the_death_still_count() {
    let mut net = Net::new(2);
    let (src, dst) = (net.bytes(1, b"last words"), net.memory(0, 10));
    net[1].send(&msg(0, &[src], 0)).unwrap();
    net.kill(1);
    net.settle();
    net[0].recv(&from(1, &[dst], 1)).unwrap();
    assert_eq!(net[0].received().err, None);
    assert_eq!(net[0].look(dst, 10), b"last words");
}

#[test]
fn receives_from_the_dead_fail_and_those_from_anyone_stay() {
    let mut net = Net::new(3);
    net[1].send(&msg(0, &[], 0)).unwrap();
    net.settle();
    net[0].recv(&from_any(&[], 9)).unwrap();
    assert_eq!(net[0].received().src, 1);
    net[0].recv(&from(1, &[], 1)).unwrap();
    net[0].recv(&from_any(&[], 2)).unwrap();
    net[0].recv(&from(2, &[], 3)).unwrap();
    net.kill(1);
    net.settle();
    let c = net[0].received();
    assert_eq!((c.ctx.0, c.err, c.src), (1, Some(Error::Reset), 1));
    for ctx in [2, 3] {
        net[2].send(&msg(0, &[], 0)).unwrap();
        net.settle();
        assert_eq!(net[0].received().ctx.0, ctx);
    }
}

#[test]
fn a_message_only_offered_by_the_dead_is_gone_even_if_it_was_claimed() {
    let mut net = Net::new(2);
    let (src, rx) = (net.memory(1, 3000), net[0].rx);
    for tag in [1, 2] {
        net[1].send(&tagged(0, &[src], tag, 0)).unwrap();
    }
    net.settle();
    let second = Pattern { src: 1, tag: Some((2, 0)) };
    net[0].peek(rx, second, Peek::Claim, Ctx(4), OpFlags::empty()).unwrap();
    net.kill(1);
    net.settle();
    assert_eq!(net[0].claim(rx, &with_tag(&[], 2, 4)), Err(Error::NoMessage));
    net[0].peek(rx, Pattern { src: 1, tag: Some((1, 0)) }, Peek::Leave, Ctx(5), OpFlags::empty()).unwrap();
    assert_eq!(net[0].received().err, Some(Error::NoMessage));
}

/// The next process under the name numbers its requests from the start, too.
#[test]
fn a_successor_gets_no_answers_meant_for_the_dead() {
    for claimed in [false, true] {
        let mut net = Net::new(2);
        let delivery = Send { flags: OpFlags::COMPLETION | OpFlags::DELIVERY, ..tagged(0, &[], 1, 7) };
        net[1].send(&delivery).unwrap();
        net.settle();
        let rx = net[0].rx;
        if claimed {
            let first = Pattern { src: 1, tag: Some((1, 0)) };
            net[0].peek(rx, first, Peek::Claim, Ctx(1), OpFlags::empty()).unwrap();
        }
        net.kill(1);
        net.settle();
        net.revive(1);
        net[1].send(&delivery).unwrap();
        net.settle();
        if claimed {
            net[0].claim(rx, &with_tag(&[], 1, 1)).unwrap();
        } else {
            net[0].recv(&with_tag(&[], 1, 1)).unwrap();
        }
        net.settle();
        assert_eq!((net[0].received().ctx.0, net[1].tx()), (1, vec![]), "{claimed}");
        net[0].recv(&with_tag(&[], 1, 2)).unwrap();
        net.settle();
        assert_eq!((net[0].received().ctx.0, net[1].sent().ctx.0), (2, 7));
        net.assert_idle();
    }
}

#[test]
fn a_successor_is_talked_to_like_anyone() {
    let mut net = Net::with(2, Setup { direct: Direct::Never, ..Setup::default() });
    let large = net.memory(0, 3000);
    net[0].send(&msg(1, &[large], 1)).unwrap();
    net.settle();
    net.kill(1);
    net.settle();
    assert_eq!(net[0].sent().err, Some(Error::Reset));
    net.revive(1);
    net.set_direct(true);
    let dst = net.memory(1, 3000);
    net[1].recv(&from(0, &[dst], 2)).unwrap();
    net[0].send(&msg(1, &[large], 3)).unwrap();
    net.settle();
    assert_eq!((net[0].sent().err, net[1].received().err), (None, None));
    net.assert_idle();
}

#[test]
fn why_a_peer_cannot_be_reached_is_reported_by_the_completion() {
    let mut net = Net::new(2);
    let (large, remote) = (net.memory(0, 3000), [there(0, 3000, 1)]);
    let why = [
        (Gone::Refused, Error::Refused),
        (Gone::Reset, Error::Reset),
        (Gone::Unreachable, Error::Unreachable),
        (Gone::TimedOut, Error::TimedOut),
        (Gone::Denied, Error::Denied),
        (Gone::Exhausted, Error::Exhausted),
    ];
    for (gone, err) in why {
        net.refuse(0, 1, gone);
        for iov in [Span::EMPTY, large] {
            net[0].send(&tagged(1, &[iov], 7, 1)).unwrap();
            let c = net[0].sent();
            assert_eq!((c.ctx.0, c.err, c.tag, c.what), (1, Some(err), 7, What::SEND | What::TAGGED));
        }
        net[0].rma(&read(1, &[large], &remote, 2)).unwrap();
        let c = net[0].sent();
        assert_eq!((c.ctx.0, c.err, c.what), (2, Some(err), What::RMA | What::READ));
        // What wants no completion has its error from the post alone.
        for flags in [OpFlags::empty(), OpFlags::INJECT] {
            assert_eq!(net[0].send(&Send { flags, ..msg(1, &[], 3) }), Err(err));
        }
        assert_eq!(net[0].tx(), vec![]);
    }
    net.assert_idle();
}

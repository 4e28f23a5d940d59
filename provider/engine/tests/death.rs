//! Peers that die, at every step of everything.

use engine::testkit::*;
use engine::{Atomic, Completion, Ctx, Error, OpFlags, Pattern, Peek, Recv, Rma, Send, What};
use hmem::{AtomicOp, Datatype, Span};
use link_api::Gone;

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

/// Whether the failure, if it is one, tells of a death: also where a direct copy is the first to notice.
fn told(c: &Completion) -> bool {
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
    assert!(tx.iter().chain(&rx).all(told), "{case:?} {tx:?} {rx:?}");
    if recvs == usize::MAX {
        let backs = rx.iter().filter(|c| c.what.contains(What::MULTI_RECV)).count();
        assert_eq!(backs, 1, "{case:?} {rx:?}");
    } else {
        assert_eq!(rx.len(), recvs, "{case:?} {rx:?}");
    }
    // Whoever arrives under that name is heard, and the third was never bothered.
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
    net[0].peek(rx, Pattern { src: 1, tag: Some((1, 0)) }, Peek::Look, Ctx(5), OpFlags::empty()).unwrap();
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
fn why_a_peer_cannot_be_reached_is_told_by_the_completion() {
    let mut net = Net::new(2);
    let (large, remote) = (net.memory(0, 3000), [there(0, 3000, 1)]);
    let why = [
        (Gone::Refused, Error::Refused),
        (Gone::Reset, Error::Reset),
        (Gone::Unreachable, Error::Unreachable),
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
        // What wants no completion has only the post to be told by.
        for flags in [OpFlags::empty(), OpFlags::INJECT] {
            assert_eq!(net[0].send(&Send { flags, ..msg(1, &[], 3) }), Err(err));
        }
        assert_eq!(net[0].tx(), vec![]);
    }
    net.assert_idle();
}

/// Receives posted for node 1's messages, tagged and not, and one for anybody's.
fn expect(net: &mut Net, first: usize) {
    net[0].recv(&from(1, &[], first)).unwrap();
    let pattern = Pattern { src: 1, tag: Some((3, 0)) };
    net[0].recv(&Recv { pattern, ..from_any(&[], first + 1) }).unwrap();
}

/// One that only the call tells of.
fn inject(to: u64) -> Send<'static> {
    Send { flags: OpFlags::INJECT, ..msg(to, &[], 0) }
}

fn failures(net: &mut Net) -> Vec<(usize, Option<Error>)> {
    let mut all: Vec<_> = net[0].rx().iter().map(|c| (c.ctx.0, c.err)).collect();
    all.sort_by_key(|c| c.0);
    all
}

#[test]
fn receives_posted_for_one_that_has_died_fail() {
    for multi in [false, true] {
        let mut net = Net::new(2);
        net[1].send(&msg(0, &[], 0)).unwrap();
        net.settle();
        net.kill(1);
        net.settle();
        // What it has sent is still there, for a receive that names it too.
        net[0].recv(&from(1, &[], 1)).unwrap();
        assert_eq!(failures(&mut net), [(1, None)]);
        let buffer = net.memory(0, 1000);
        if multi {
            let flags = OpFlags::COMPLETION | OpFlags::MULTI_RECV;
            net[0].recv(&Recv { flags, ..from(1, &[buffer], 2) }).unwrap();
            let c = net[0].received();
            assert_eq!((c.err, c.src), (Some(Error::Refused), 1));
            assert!(c.what.contains(What::MULTI_RECV));
        } else {
            expect(&mut net, 2);
            assert_eq!(failures(&mut net), [2, 3].map(|c| (c, Some(Error::Refused))));
        }
        net.settle();
        net.assert_idle();
    }
}

#[test]
fn receives_from_one_that_cannot_be_reached_fail() {
    let why = [
        (Gone::Refused, Error::Refused),
        (Gone::Unreachable, Error::Unreachable),
        (Gone::Denied, Error::Denied),
    ];
    for (gone, err) in why {
        let mut net = Net::new(3);
        net.refuse(0, 1, gone);
        // Nothing is known of it yet.
        expect(&mut net, 1);
        net[0].recv(&from(2, &[], 8)).unwrap();
        net[0].recv(&from_any(&[], 9)).unwrap();
        net.settle();
        assert_eq!(failures(&mut net), []);
        assert_eq!(net[0].send(&inject(1)), Err(err));
        assert_eq!(failures(&mut net), [(1, Some(err)), (2, Some(err))]);
        expect(&mut net, 3);
        assert_eq!(failures(&mut net), [(3, Some(err)), (4, Some(err))]);
        // It is there now, and what is posted waits for it.
        net.admit(0, 1);
        expect(&mut net, 5);
        assert_eq!(failures(&mut net), []);
        net[1].send(&msg(0, &[], 0)).unwrap();
        net[2].send(&msg(0, &[], 0)).unwrap();
        net.settle();
        // The first message went to the oldest receive, which is for anybody's.
        assert_eq!(failures(&mut net), [(8, None), (9, None)]);
        net.kill(1);
        net.settle();
        assert_eq!(failures(&mut net), [5, 6].map(|c| (c, Some(Error::Reset))));
    }
}

#[test]
fn a_peer_that_refuses_us_but_sends_is_heard() {
    let mut net = Net::new(2);
    net[1].send(&msg(0, &[], 0)).unwrap();
    net.refuse(0, 1, Gone::Refused);
    expect(&mut net, 1);
    assert_eq!(net[0].send(&inject(1)), Err(Error::Refused));
    net.settle();
    assert_eq!(failures(&mut net), [(1, None)]);
    net.kill(1);
    net.settle();
    assert_eq!(failures(&mut net), [(2, Some(Error::Reset))]);
}

#[test]
fn a_receive_waits_for_the_successor_of_one_that_died() {
    for (sends_first, found) in [(false, true), (false, false), (true, true)] {
        let mut net = Net::new(2);
        net[1].send(&msg(0, &[], 0)).unwrap();
        net[0].recv(&from(1, &[], 0)).unwrap();
        net.settle();
        net.kill(1);
        net.settle();
        assert_eq!(net[0].rx().len(), 1);
        net.set_slow(true);
        if sends_first {
            net.revive(1);
            net[1].send(&msg(0, &[], 0)).unwrap();
        }
        expect(&mut net, 1);
        for _ in 0..10 {
            net[0].progress();
        }
        assert_eq!(failures(&mut net), if sends_first { vec![(1, None)] } else { vec![] });
        if !sends_first && found {
            net.revive(1);
        }
        net.set_slow(false);
        net.settle();
        if !found {
            assert_eq!(failures(&mut net), [1, 2].map(|c| (c, Some(Error::Refused))));
            net.assert_idle();
            continue;
        }
        assert_eq!(failures(&mut net), []);
        net[1].send(&tagged(0, &[], 3, 0)).unwrap();
        net.settle();
        assert_eq!(failures(&mut net), [(2, None)]);
        // The end of one that was only looked for is told of like any other's.
        expect(&mut net, 3);
        net.kill(1);
        net.settle();
        let left = if sends_first { vec![3, 4] } else { vec![1, 3, 4] };
        let left: Vec<_> = left.into_iter().map(|c| (c, Some(Error::Reset))).collect();
        assert_eq!(failures(&mut net), left);
    }
}

#[test]
fn nothing_is_kept_of_those_that_came_and_went() {
    for (inserts, keeps) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut net = Net::new(2);
        let (av, ep0, dst) = (net[0].av, net[0].ep, net.memory(0, 3000));
        for round in 0..20 {
            let link = net.link();
            let place = link.place();
            let (name, src) = (net.addr(place), net.memory(place, 3000));
            let client = net[1].open(link, None);
            let at = inserts.then(|| net[0].av_insert(av, name));
            for len in [100, 3000] {
                if !keeps {
                    net[0].recv(&from_any(&[dst], len)).unwrap();
                }
                let iov = [src.part(0, len).unwrap()];
                net[1].send_from(client, &msg(0, &iov, len)).unwrap();
                net.settle();
            }
            if let Some(at) = at {
                net[0].send(&inject(at)).unwrap();
                net[0].recv(&from(at, &[dst], 7)).unwrap();
            }
            net.part(place);
            net[1].ep_close(client).unwrap();
            net.settle();
            let failed = if inserts && !keeps { 1 } else { 0 };
            let received = net[0].rx();
            assert_eq!(received.iter().filter(|c| c.err.is_some()).count(), failed, "{received:?}");
            if keeps {
                // What has arrived whole is still to be had; of what was only offered nothing is left.
                let taken = if inserts { vec![] } else { vec![None] };
                if !inserts {
                    net[0].recv(&from_any(&[dst], 1)).unwrap();
                }
                assert_eq!(net[0].rx().iter().map(|c| c.err).collect::<Vec<_>>(), taken);
            }
            if let Some(at) = at {
                net[0].av_remove(av, at).unwrap();
            }
            net[1].tx();
            assert!(net[0].ep_peers(ep0) <= 3, "{inserts} {keeps}: {} after {round}", net[0].ep_peers(ep0));
        }
        // Those that stay are who they were.
        for node in [0, 1] {
            net[1 - node].recv(&from(node as u64, &[], 5)).unwrap();
            net[node].send(&msg(1 - node as u64, &[], 6)).unwrap();
            net.settle();
            assert_eq!((net[node].sent().err, net[1 - node].received().src), (None, node as u64));
        }
        net.assert_idle();
    }
}

#[test]
fn receives_that_name_a_peer_which_never_comes_fail_in_time() {
    let mut net = Net::new(3);
    net.kill(1);
    net[0].recv(&from(1, &[], 1)).unwrap();
    net[0].recv(&from(1, &[], 2)).unwrap();
    net[0].recv(&from(2, &[], 3)).unwrap();
    net.settle();
    assert_eq!(net[0].rx(), vec![], "it may come yet");
    net.give_up_expected();
    net.settle();
    let failed: Vec<_> = net[0].rx().iter().map(|c| (c.ctx.0, c.err)).collect();
    assert_eq!(failed, [(1, Some(Error::Refused)), (2, Some(Error::Refused))]);
    // The other one is there, and only has not said anything.
    net[2].send(&msg(0, &[], 4)).unwrap();
    net.settle();
    assert_eq!((net[0].received().ctx.0, net[2].sent().err), (3, None));
    // It comes after all.
    net.revive(1);
    net[1].send(&msg(0, &[], 5)).unwrap();
    net.settle();
    net[0].recv(&from(1, &[], 6)).unwrap();
    net.settle();
    assert_eq!((net[0].received().ctx.0, net[1].sent().err), (6, None));
    net.assert_idle();
}

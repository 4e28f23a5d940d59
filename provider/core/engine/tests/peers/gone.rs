//! Receives that name a peer which is not there, and what is kept of those that were.

use engine::{Error, OpFlags, Pattern, Recv, Send, What};
use link_api::Gone;
use testkit::*;

/// Receives posted for node 1's messages, tagged and not, and one for any peer's.
fn expect(net: &mut Net, first: usize) {
    net[0].recv(&from(1, &[], first)).unwrap();
    let pattern = Pattern { src: 1, tag: Some((3, 0)) };
    net[0].recv(&Recv { pattern, ..from_any(&[], first + 1) }).unwrap();
}

/// One whose error only the call returns.
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
        (Gone::TimedOut, Error::TimedOut),
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
        // The first message went to the oldest receive, which is for any peer's.
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
        // The end of one that was only looked for is reported like any other's.
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
        // Those that stay keep their names.
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

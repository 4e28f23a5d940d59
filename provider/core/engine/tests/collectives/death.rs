//! Members that end: the operations of the others end too.

use engine::{CollectiveKind as Kind, Error, GroupId};
use testkit::{Direct, Net, Setup};

use crate::group::{Reach, begin_join, call, join, net, op, with_memory};

fn post(net: &mut Net, at: usize, group: GroupId, kind: Kind, count: usize) {
    let op = with_memory(net, at, group, &op(kind, 0, count), |len| vec![0; len]).unwrap();
    call(net, at, group, &op).unwrap();
}

/// All of the rest complete what they posted, with or without an error; their next operation fails, or
/// completes where it needs nothing of the one that ended.
fn all_end(net: &mut Net, groups: &[GroupId], dead: usize, case: &str) {
    net.settle();
    for at in (0..groups.len()).filter(|at| *at != dead) {
        let done = net[at].tx();
        assert_eq!(done.len(), 1, "{case} {at}");
        let why = done[0].err;
        assert!(
            matches!(why, None | Some(Error::Reset | Error::Refused | Error::Cancelled | Error::Io)),
            "{case} {at}: {why:?}"
        );
    }
    for at in (0..groups.len()).filter(|at| *at != dead) {
        post(net, at, groups[at], Kind::Barrier, 0);
    }
    net.settle();
    for at in (0..groups.len()).filter(|at| *at != dead) {
        let done = net[at].tx();
        assert_eq!(done.len(), 1, "{case} {at}: the next one");
        assert!(done[0].err.is_some(), "{case} {at}: a barrier without a member");
        assert_eq!(net[at].ep_under_way(net[at].ep), 0, "{case} {at}");
        assert_eq!(net[at].group_close(groups[at]), Ok(()), "{case} {at}");
    }
}

#[test]
fn operations_end_when_a_member_does_whatever_it_was_at() {
    for kind in Kind::ALL {
        let shared = Reach::ALL.into_iter().filter(|reach| reach.is_shared());
        let ways = Direct::ALL.map(|direct| (direct, Reach::Messages)).into_iter();
        for (direct, reach) in ways.chain(shared.map(|reach| (Direct::InCall, reach))) {
            for (members, dead) in [(2, 1), (3, 0), (5, 3), (8, 6)] {
                for count in if reach.is_shared() { [4000, 40_000] } else { [1, 4000] } {
                    for steps in [0, 1, 3, 7, 20] {
                        let capacity = direct.least_capacity().max(4);
                        let setup = Setup { direct, capacity, ..Setup::default() };
                        let mut net = reach.net(members, setup);
                        let groups = join(&mut net, &(0..members).collect::<Vec<_>>());
                        (0..members).for_each(|at| post(&mut net, at, groups[at], kind, count));
                        for step in 0..steps {
                            net[step % members].progress();
                        }
                        net.kill(dead);
                        let case =
                            format!("{kind:?} {direct:?} {dead} of {members}, {count}, {steps}, {reach:?}");
                        all_end(&mut net, &groups, dead, &case);
                    }
                }
            }
        }
    }
}

#[test]
fn a_member_that_never_called_and_ended_fails_all() {
    for (members, reach) in (2..=10).flat_map(|members| Reach::ALL.map(|reach| (members, reach))) {
        let mut net = reach.net(members, Setup::default());
        let groups = join(&mut net, &(0..members).collect::<Vec<_>>());
        (1..members).for_each(|at| post(&mut net, at, groups[at], Kind::AllReduce, 100));
        net.settle();
        assert!((1..members).all(|at| net[at].tx().is_empty()));
        net.kill(0);
        net.settle();
        for at in 1..members {
            let done = net[at].tx();
            assert!(done.len() == 1 && done[0].err.is_some(), "{at} of {members}: {done:?}");
        }
    }
}

#[test]
fn a_join_fails_whose_member_ends() {
    for (members, reach) in (2..=6).flat_map(|members| Reach::ALL.map(|reach| (members, reach))) {
        let mut net = reach.net(members, Setup::default());
        let all: Vec<usize> = (0..members).collect();
        let addrs: Vec<u64> = all.iter().map(|at| *at as u64).collect();
        // The last one has made itself known, and does not call.
        let last = members - 1;
        let calls = (0..last).map(|at| {
            let ep = net[at].ep;
            net[at].group_join(ep, &addrs, engine::Ctx(7)).unwrap()
        });
        let groups: Vec<GroupId> = calls.collect();
        net.settle();
        net.kill(last);
        net.settle();
        for at in 0..last {
            let joined = net[at].joined(groups[at]).expect("over");
            assert!(joined.err.is_some(), "{at} of {members}");
            assert_eq!(net[at].group_close(groups[at]), Ok(()));
        }
    }
}

/// A member ends at each call of progress of a join, its own join being over or not: what the others are joined
/// to fails them.
#[test]
fn a_member_that_ends_in_the_join_or_right_behind_it_is_missed() {
    let mut behind = 0;
    let shared = || Reach::ALL.into_iter().filter(|reach| reach.is_shared());
    for (members, reach) in (2..=5).flat_map(|members| shared().map(move |reach| (members, reach))) {
        for (dead, first) in (0..members).flat_map(|dead| (0..members).map(move |first| (dead, first))) {
            for steps in 0.. {
                let mut net = reach.net(members, Setup::default());
                let groups = begin_join(&mut net, &(0..members).collect::<Vec<_>>());
                (0..steps).for_each(|step| _ = net[(first + step) % members].progress());
                let before: Vec<_> = (0..members).map(|at| net[at].joined(groups[at])).collect();
                net.kill(dead);
                net.settle();
                let case = format!("{dead} of {members}, {steps} from {first} on, {reach:?}");
                let left = (0..members).filter(|at| *at != dead);
                let joined: Vec<_> = left
                    .filter(|at| {
                        let late = net[*at].joined(groups[*at]);
                        before[*at].as_ref().or(late.as_ref()).expect(&case).err.is_none()
                    })
                    .collect();
                let over = before.iter().filter(|joined| joined.is_some()).count();
                behind += usize::from(before[dead].is_some() && over < members);
                for kind in [Kind::Gather, Kind::Barrier] {
                    let root = *joined.last().unwrap_or(&0);
                    for at in &joined {
                        let op = op(kind, root, 1);
                        let op = with_memory(&mut net, *at, groups[*at], &op, |len| vec![0; len]).unwrap();
                        call(&mut net, *at, groups[*at], &op).unwrap();
                    }
                    net.settle();
                    for at in &joined {
                        let done = net[*at].tx();
                        assert_eq!(done.len(), 1, "{case}: {kind:?} at {at}");
                        let fails = kind == Kind::Barrier || *at == root;
                        assert!(!fails || done[0].err.is_some(), "{case}: {kind:?} at {at}");
                    }
                }
                for at in joined {
                    assert_eq!(net[at].group_close(groups[at]), Ok(()), "{case}");
                }
                if over == members {
                    break;
                }
            }
        }
    }
    assert!(behind > 0);
}

/// A member that is done with all of its operations may end: the others complete theirs.
#[test]
fn one_that_ends_after_its_last_operation_fails_none() {
    for (members, reach) in (2..=10).flat_map(|members| Reach::ALL.map(|reach| (members, reach))) {
        let mut net = reach.net(members, Setup::default());
        let groups = join(&mut net, &(0..members).collect::<Vec<_>>());
        (0..members).for_each(|at| post(&mut net, at, groups[at], Kind::Barrier, 0));
        let mut over = false;
        for step in 0..10_000 {
            net[step % members].progress();
            if let Some(first) = (0..members).find(|at| !net[*at].cq_is_empty(net[*at].tx_cq)) {
                net.kill(first);
                net.settle();
                for at in (0..members).filter(|at| *at != first) {
                    let done = net[at].tx();
                    assert_eq!(done.iter().map(|c| c.err).collect::<Vec<_>>(), [None], "{at} of {members}");
                }
                over = true;
                break;
            }
        }
        assert!(over);
    }
}

#[test]
fn another_group_goes_on() {
    Reach::ALL.into_iter().for_each(goes_on);
}

fn goes_on(reach: Reach) {
    let mut net = reach.net(4, Setup::default());
    let all = join(&mut net, &[0, 1, 2, 3]);
    let some = join(&mut net, &[0, 1, 2]);
    (0..3).for_each(|at| post(&mut net, at, all[at], Kind::Barrier, 0));
    net.kill(3);
    net.settle();
    (0..3).for_each(|at| assert!(net[at].sent().err.is_some()));
    (0..3).for_each(|at| post(&mut net, at, some[at], Kind::AllReduce, 10));
    net.settle();
    (0..3).for_each(|at| assert_eq!(net[at].sent().err, None));
}

#[test]
fn a_notice_of_an_endpoint_that_is_no_member_has_no_effect() {
    let mut net = net(3, Setup::default());
    let groups = begin_join(&mut net, &[0, 1]);
    net.settle();
    (0..2).for_each(|at| assert_eq!(net[at].joined(groups[at]).unwrap().err, None));
    // A notice of the group by the third node: the frame that a member sends when its operation fails.
    let (tag, head) = (std::cell::Cell::new(0), wire::Head::LEN);
    post(&mut net, 0, groups[0], Kind::Barrier, 0);
    net.tamper(0, 1, |frame| tag.set(wire::Head::of(&frame[..head]).unwrap().tag.get()));
    let flags = wire::Flags::TAGGED | wire::Flags::CQ_DATA | wire::Flags::COLLECTIVE;
    let notice = wire::Head::new(wire::Op::Eager, flags, 0, 1 << 63 | tag.get(), 1);
    let bytes = zerocopy::IntoBytes::as_bytes(&notice).to_vec();
    net.inject(2, 1, bytes.clone());
    net.settle();
    post(&mut net, 1, groups[1], Kind::Barrier, 0);
    net.settle();
    assert_eq!((net[0].sent().err, net[1].sent().err), (None, None));
    // The same of a member has.
    net.inject(0, 1, bytes);
    net.settle();
    post(&mut net, 1, groups[1], Kind::Barrier, 0);
    net.settle();
    assert_eq!(net[1].sent().err, Some(Error::Reset));
}

/// A member's address is removed at each call of progress of a join, at one of the others or at all.
#[test]
fn a_join_ends_in_which_the_address_of_a_member_is_removed() {
    for (members, reach) in (2..=5).flat_map(|members| Reach::ALL.map(|reach| (members, reach))) {
        for (by, of) in (0..members).flat_map(|by| (0..members).map(move |of| (by, of))) {
            for steps in 0.. {
                let case = format!("{of} of {members} at {by}, {steps}, {reach:?}");
                let mut net = reach.net(members, Setup::default());
                let groups = begin_join(&mut net, &(0..members).collect::<Vec<_>>());
                (0..steps).for_each(|step| _ = net[step % members].progress());
                let joined: Vec<_> = (0..members).map(|at| net[at].joined(groups[at])).collect();
                let over = joined.iter().all(Option::is_some);
                let av = net[by].av;
                net[by].av_remove(av, of as u64).unwrap();
                net.settle();
                for at in 0..members {
                    let late = net[at].joined(groups[at]);
                    let joined = joined[at].as_ref().or(late.as_ref()).expect(&case);
                    if joined.err.is_none() {
                        post(&mut net, at, groups[at], Kind::Barrier, 0);
                    }
                }
                net.settle();
                for at in 0..members {
                    assert!(net[at].tx().iter().all(|done| done.err.is_some()), "{case}: {at}");
                    assert_eq!(net[at].group_close(groups[at]), Ok(()), "{case}: {at}");
                }
                if over {
                    break;
                }
            }
        }
    }
}

#[test]
fn operations_end_when_the_address_of_a_member_is_removed() {
    for (kind, reach) in Kind::ALL.into_iter().flat_map(|kind| Reach::ALL.map(|reach| (kind, reach))) {
        for (members, by, of) in [(2, 0, 1), (3, 2, 0), (5, 1, 4), (7, 0, 3), (7, 4, 2), (7, 6, 0)] {
            for (count, steps) in [(1, 0), (4000, 3), (40_000, 7)] {
                let case = format!("{kind:?} {of} of {members} at {by}, {count}, {steps}, {reach:?}");
                let mut net = reach.net(members, Setup::default());
                let groups = join(&mut net, &(0..members).collect::<Vec<_>>());
                (0..members).for_each(|at| post(&mut net, at, groups[at], kind, count));
                (0..steps).for_each(|step| _ = net[step % members].progress());
                let av = net[by].av;
                net[by].av_remove(av, of as u64).unwrap();
                net.settle();
                for at in 0..members {
                    let done = net[at].tx();
                    assert_eq!(done.len(), 1, "{case}: {at}");
                    let why = done[0].err;
                    assert!(
                        matches!(why, None | Some(Error::Cancelled | Error::Io)),
                        "{case}: {at}: {why:?}"
                    );
                    post(&mut net, at, groups[at], Kind::Barrier, 0);
                }
                net.settle();
                for at in 0..members {
                    let done = net[at].tx();
                    assert!(done.len() == 1 && done[0].err.is_some(), "{case}: {at}: {done:?}");
                    assert_eq!(net[at].group_close(groups[at]), Ok(()), "{case}: {at}");
                }
            }
        }
    }
}

#[test]
fn a_member_that_has_another_entry_stays_one() {
    for reach in Reach::ALL {
        let mut net = reach.net(3, Setup::default());
        let (av, addr) = (net[0].av, net[0].av_lookup(net[0].av, 1).unwrap());
        let also = net[0].av_insert(av, addr);
        let groups = join(&mut net, &[0, 1, 2]);
        post(&mut net, 0, groups[0], Kind::AllReduce, 40_000);
        net[0].progress();
        net[0].av_remove(av, 1).unwrap();
        (1..3).for_each(|at| post(&mut net, at, groups[at], Kind::AllReduce, 40_000));
        net.settle();
        (0..3).for_each(|at| assert_eq!(net[at].sent().err, None, "{reach:?}"));
        (0..3).for_each(|at| post(&mut net, at, groups[at], Kind::AllReduce, 40_000));
        net.settle();
        (0..3).for_each(|at| assert_eq!(net[at].sent().err, None, "{reach:?}"));
        net[0].av_remove(av, also).unwrap();
        post(&mut net, 1, groups[1], Kind::Barrier, 0);
        net.settle();
        assert!(net[1].sent().err.is_some());
    }
}

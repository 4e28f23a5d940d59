//! Members that share memory: what is left of messages, and what becomes of groups without it.

use engine::{CollectiveKind as Kind, Error, GroupId};
use testkit::{Net, Setup};

use crate::group::{begin_join, call, join, net, op, with_memory};

fn shared(nodes: usize) -> Net {
    net(nodes, Setup { shared: true, ..Setup::default() })
}

fn post(net: &mut Net, at: usize, group: GroupId, kind: Kind, count: usize) {
    let op = with_memory(net, at, group, &op(kind, 0, count), |len| vec![1; len]).unwrap();
    call(net, at, group, &op).unwrap();
}

fn frames(net: &Net, nodes: usize) -> usize {
    (0..nodes).flat_map(|a| (0..nodes).map(move |b| (a, b))).map(|(a, b)| net.in_flight(a, b)).sum()
}

#[test]
fn operations_need_no_message_and_are_over_when_the_last_member_posts() {
    for members in 2..=10 {
        let mut net = shared(members);
        let groups = join(&mut net, &(0..members).collect::<Vec<_>>());
        for kind in Kind::ALL {
            for (at, group) in groups.iter().enumerate() {
                post(&mut net, at, *group, kind, 3);
                assert_eq!(frames(&net, members), 0, "{kind:?} of {members}");
            }
            net.settle();
            assert!((0..members).all(|at| net[at].sent().err.is_none()), "{kind:?} of {members}");
        }
    }
}

#[test]
fn a_group_of_which_a_member_has_no_memory_goes_by_messages() {
    for (members, lacks) in [(2, 0), (2, 1), (5, 3), (10, 0)] {
        let mut net = shared(members);
        net.lack_group_memory(lacks);
        let groups = join(&mut net, &(0..members).collect::<Vec<_>>());
        (0..members).for_each(|at| post(&mut net, at, groups[at], Kind::AllReduce, 3));
        assert!(frames(&net, members) > 0, "{lacks} of {members}");
        net.settle();
        assert!((0..members).all(|at| net[at].sent().err.is_none()), "{lacks} of {members}");
        net.assert_idle();
    }
}

/// At each call of progress of a join: a group that is not joined is not closed.
#[test]
fn a_group_is_not_closed_before_its_join_is_over() {
    for members in [2, 3, 5] {
        let mut net = shared(members);
        let groups = begin_join(&mut net, &(0..members).collect::<Vec<_>>());
        let mut open: Vec<usize> = (0..members).collect();
        for _ in 0..10_000 {
            open.retain(|at| {
                let joined = net[*at].joined(groups[*at]);
                if joined.is_none() {
                    assert_eq!(net[*at].group_close(groups[*at]), Err(Error::Busy), "{at} of {members}");
                }
                net[*at].progress();
                joined.is_none()
            });
        }
        assert!(open.is_empty(), "{open:?} of {members}");
    }
}

#[test]
fn a_member_that_sleeps_is_woken_by_a_frame_and_no_other_is() {
    let mut net = shared(3);
    let groups = join(&mut net, &[0, 1, 2]);
    post(&mut net, 1, groups[1], Kind::Barrier, 0);
    assert!(net[1].arm() && net[1].is_armed());
    post(&mut net, 0, groups[0], Kind::Barrier, 0);
    net[0].progress();
    assert_eq!((net.in_flight(0, 1), net.in_flight(0, 2)), (1, 0));
    net[1].progress();
    assert!(net[1].arm(), "nothing has come but that");
    post(&mut net, 2, groups[2], Kind::Barrier, 0);
    net[2].progress();
    assert_eq!((net.in_flight(2, 1), net.in_flight(2, 0)), (1, 0));
    net.settle();
    assert!((0..3).all(|at| net[at].sent().err.is_none()));
    // What has come before keeps it awake.
    post(&mut net, 1, groups[1], Kind::Broadcast, 1);
    post(&mut net, 0, groups[0], Kind::Broadcast, 1);
    assert!(!net[1].arm());
    assert!(net[1].sent().err.is_none());
}

#[test]
fn one_posted_since_it_was_armed_is_not_slept_on() {
    let mut net = shared(2);
    let groups = join(&mut net, &[0, 1]);
    assert!(net[0].arm() && net[0].is_armed());
    post(&mut net, 0, groups[0], Kind::Barrier, 0);
    assert!(!net[0].is_armed());
    assert!(net[0].arm() && net[0].is_armed());
}

/// One that went on by itself, and closed the group, gets the frame that wakes it all the same.
#[test]
fn what_comes_for_a_closed_group_is_not_kept() {
    let mut net = shared(2);
    let (kept, mut first) = (join(&mut net, &[0, 1]), None);
    for _ in 0..3 {
        let groups = join(&mut net, &[0, 1]);
        post(&mut net, 1, groups[1], Kind::Barrier, 0);
        assert!(net[1].arm());
        post(&mut net, 0, groups[0], Kind::Barrier, 0);
        net[0].progress();
        assert_eq!(net.in_flight(0, 1), 1);
        assert!(!net[1].arm());
        (0..2).for_each(|at| assert_eq!(net[at].sent().err, None));
        (0..2).for_each(|at| assert_eq!(net[at].group_close(groups[at]), Ok(())));
        net.settle();
        let late = net[1].unexpected();
        assert!(late > 0 && *first.get_or_insert(late) == late, "{late}, {first:?} before");
    }
    assert_eq!(net[1].group_close(kept[1]), Ok(()));
    assert_eq!(net[1].unexpected(), 0);
}

/// The operation that is posted cannot begin, and is of a group that had none under way.
#[test]
fn a_root_that_is_ahead_is_not_slept_on() {
    let mut net = shared(2);
    let groups = join(&mut net, &[0, 1]);
    let mut ahead = 0;
    loop {
        assert!(net[0].arm() && net[0].is_armed());
        post(&mut net, 0, groups[0], Kind::Broadcast, 1);
        if net[0].tx().is_empty() {
            break;
        }
        ahead += 1;
    }
    assert!(!net[0].is_armed(), "{ahead} are over");
    assert!(net[0].arm() && net[0].is_armed());
    post(&mut net, 1, groups[1], Kind::Broadcast, 1);
    net[1].progress();
    assert_eq!(net.in_flight(1, 0), 1);
    net.settle();
    assert_eq!((net[0].tx().len(), net[1].tx().len()), (1, 1));
}

#[test]
fn a_root_that_is_ahead_waits_for_its_members() {
    let mut net = shared(2);
    let groups = join(&mut net, &[0, 1]);
    (0..20).for_each(|_| post(&mut net, 0, groups[0], Kind::Broadcast, 1));
    net[0].progress();
    let ahead = net[0].tx().len();
    assert!((1..=4).contains(&ahead), "{ahead} of 20");
    (0..20).for_each(|_| post(&mut net, 1, groups[1], Kind::Broadcast, 1));
    net.settle();
    assert_eq!((net[0].tx().len() + ahead, net[1].tx().len()), (20, 20));
}

#[test]
fn members_that_post_other_operations_fail() {
    let mut net = shared(3);
    let groups = join(&mut net, &[0, 1, 2]);
    post(&mut net, 0, groups[0], Kind::Barrier, 0);
    post(&mut net, 1, groups[1], Kind::AllReduce, 1);
    post(&mut net, 2, groups[2], Kind::Barrier, 0);
    net.settle();
    for at in 0..3 {
        let done = net[at].tx();
        let why: Vec<_> = done.iter().map(|c| c.err).collect();
        assert!(matches!(why[..], [Some(Error::Invalid | Error::Io)]), "{at}: {why:?}");
        assert_eq!(net[at].group_close(groups[at]), Ok(()));
    }
}

/// One member's operation is too long for shared memory, or the ones of all others are.
#[test]
fn members_that_post_other_sizes_fail_where_some_go_by_messages() {
    for kind in Kind::ALL.into_iter().filter(|kind| *kind != Kind::Barrier) {
        for (members, odd) in [(2, 0), (3, 1), (10, 0), (10, 9)] {
            for (few, many) in [(1, 40_000), (3000, 40_000), (40_000, 1), (40_000, 3000)] {
                let case = format!("{kind:?}, {few} at {odd} of {members}, else {many}");
                let mut net = shared(members);
                let groups = join(&mut net, &(0..members).collect::<Vec<_>>());
                (0..members).for_each(|at| {
                    post(&mut net, at, groups[at], kind, if at == odd { few } else { many });
                });
                net.settle();
                let mut failed = 0;
                for at in 0..members {
                    let done = net[at].tx();
                    assert_eq!(done.len(), 1, "{case}: {at}");
                    failed += usize::from(done[0].err.is_some());
                    assert_eq!(net[at].group_close(groups[at]), Ok(()), "{case}: {at}");
                }
                assert!(failed > 0, "{case}");
            }
        }
    }
}

/// A slot has no line for each of so many members: what has slices goes by messages.
#[test]
fn members_that_post_other_kinds_fail_where_slots_are_short() {
    let members = 80;
    for kind in [Kind::AllToAll, Kind::ReduceScatter] {
        let mut net = shared(members);
        let groups = join(&mut net, &(0..members).collect::<Vec<_>>());
        for (at, group) in groups.iter().enumerate() {
            post(&mut net, at, *group, if at == 3 { Kind::Barrier } else { kind }, 1);
        }
        net.settle();
        let failed = (0..members).filter(|at| net[*at].tx().iter().any(|done| done.err.is_some())).count();
        assert!(failed > 0, "{kind:?}");
        (0..members).for_each(|at| assert_eq!(net[at].group_close(groups[at]), Ok(()), "{kind:?} {at}"));
        let groups = join(&mut net, &(0..members).collect::<Vec<_>>());
        (0..members).for_each(|at| post(&mut net, at, groups[at], kind, 1));
        net.settle();
        (0..members).for_each(|at| assert_eq!(net[at].sent().err, None, "{kind:?} {at}"));
    }
}

/// The first operation fails at the step before its messages; what was posted behind it fails too.
#[test]
fn operations_behind_one_that_fails_before_its_messages_fail() {
    let mut net = shared(3);
    let groups = join(&mut net, &[0, 1, 2]);
    for (at, group) in groups.iter().enumerate() {
        post(&mut net, at, *group, Kind::AllReduce, if at == 0 { 40_000 } else { 40_001 });
        post(&mut net, at, *group, Kind::Broadcast, 1);
    }
    net.settle();
    for at in 0..3 {
        let done = net[at].tx();
        assert_eq!(done.len(), 2, "{at}");
        assert!(done.iter().all(|done| done.err.is_some()), "{at}: {done:?}");
        assert_eq!(net[at].group_close(groups[at]), Ok(()));
    }
}

/// A member closes the group, and the others post, one of which sleeps.
#[test]
fn operations_fail_of_which_a_member_has_closed_the_group() {
    for (members, closes) in [(2, 0), (3, 1), (5, 0), (10, 9)] {
        for kind in [Kind::Barrier, Kind::AllReduce, Kind::AllGather] {
            let case = format!("{kind:?}, {closes} of {members}");
            let mut net = shared(members);
            let groups = join(&mut net, &(0..members).collect::<Vec<_>>());
            (0..members).for_each(|at| post(&mut net, at, groups[at], Kind::Barrier, 0));
            net.settle();
            (0..members).for_each(|at| assert_eq!(net[at].sent().err, None, "{case}"));
            let others: Vec<usize> = (0..members).filter(|at| *at != closes).collect();
            others.iter().for_each(|at| post(&mut net, *at, groups[*at], kind, 1));
            let sleeper = others[0];
            while !net[sleeper].arm() {}
            assert_eq!(net[closes].group_close(groups[closes]), Ok(()));
            net[closes].progress();
            assert_eq!(net.in_flight(closes, sleeper), 1, "{case}: it is woken");
            for _ in 0..300 {
                others.iter().for_each(|at| _ = net[*at].progress());
            }
            net.settle();
            for at in &others {
                let err = net[*at].sent().err;
                assert!(matches!(err, Some(Error::Cancelled | Error::Io)), "{case}: {at}: {err:?}");
                assert_eq!(net[*at].group_close(groups[*at]), Ok(()), "{case}");
            }
        }
    }
}

/// A member that is done with all operations may close the group before the others are.
#[test]
fn operations_end_that_a_member_has_completed_before_it_closed_the_group() {
    let mut net = shared(3);
    let groups = join(&mut net, &[0, 1, 2]);
    for kind in [Kind::Broadcast, Kind::Gather] {
        post(&mut net, 1, groups[1], kind, 1);
        post(&mut net, 0, groups[0], kind, 1);
        net[1].progress();
    }
    assert_eq!(net[1].tx().len(), 2);
    assert_eq!(net[1].group_close(groups[1]), Ok(()));
    for _ in 0..300 {
        net[0].progress();
    }
    [Kind::Broadcast, Kind::Gather].into_iter().for_each(|kind| post(&mut net, 2, groups[2], kind, 1));
    net.settle();
    for at in [0, 2] {
        assert_eq!(net[at].tx().iter().map(|done| done.err).collect::<Vec<_>>(), [None, None], "{at}");
    }
}

/// One member has another root than the others, or another operation.
#[test]
fn a_member_that_has_another_root_ends() {
    for kind in [Kind::Broadcast, Kind::Scatter, Kind::Reduce, Kind::Gather] {
        for (odd, root, count) in [(2, 1, 1), (2, 2, 3000), (1, 2, 1), (0, 2, 1), (0, 0, 1)] {
            let case = format!("{kind:?} of {count}, {root} at {odd}");
            let mut net = shared(4);
            let groups = join(&mut net, &[0, 1, 2, 3]);
            for (at, group) in groups.iter().enumerate() {
                let op = op(kind, if at == odd { root } else { 3 }, count);
                let op = with_memory(&mut net, at, *group, &op, |len| vec![1; len]).unwrap();
                call(&mut net, at, *group, &op).unwrap();
            }
            net.settle();
            for (at, group) in groups.iter().enumerate() {
                assert_eq!(net[at].tx().len(), 1, "{case}: {at}");
                assert_eq!(net[at].group_close(*group), Ok(()), "{case}: {at}");
            }
        }
    }
}

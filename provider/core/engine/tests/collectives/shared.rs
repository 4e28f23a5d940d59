//! Members that share memory: what is left of messages, and what becomes of groups without it.

use engine::{CollectiveKind as Kind, Error, GroupId};
use testkit::{Net, Setup};

use crate::group::{call, join, net, op, with_memory};

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
            for at in 0..members {
                post(&mut net, at, groups[at], kind, 3);
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

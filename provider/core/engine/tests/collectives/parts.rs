//! Groups, and what the application sees of their messages.

use engine::{ADDR_UNSPEC, Collective, CollectiveKind as Kind, Ctx, Error, OpFlags, Pattern, Recv};
use hmem::AtomicOp;
use testkit::{Net, Setup, from_any, msg};

use crate::group::{begin_join, call, join, net, op, with_memory};

fn barrier(net: &mut Net, at: usize, group: engine::GroupId) {
    call(net, at, group, &op(Kind::Barrier, 0, 0)).unwrap();
}

#[test]
fn a_join_ends_when_the_last_member_calls() {
    let mut net = net(3, Setup::default());
    let ep = net[0].ep;
    let group = net[0].group_join(ep, &[0, 1, 2], Ctx(7)).unwrap();
    assert_eq!(call(&mut net, 0, group, &op(Kind::Barrier, 0, 0)), Err(Error::NotFound));
    net.settle();
    assert_eq!((net[0].joined(group), net[0].group_close(group)), (None, Err(Error::Busy)));
    for at in [1, 2] {
        let ep = net[at].ep;
        net[at].group_join(ep, &[0, 1, 2], Ctx(7)).unwrap();
    }
    net.settle();
    let joined = net[0].joined(group).unwrap();
    assert_eq!((joined.group, joined.err), (group, None));
}

#[test]
fn members_that_make_no_group_are_refused() {
    let mut net = net(3, Setup::default());
    let ep = net[0].ep;
    for members in [&[1u64, 2][..], &[0, 1, 1], &[]] {
        assert_eq!(net[0].group_join(ep, members, Ctx(7)), Err(Error::Invalid));
    }
    assert_eq!(net[0].group_join(ep, &[0, 99], Ctx(7)), Err(Error::NoAddr));
    let mut plain = Net::new(1);
    let ep = plain[0].ep;
    assert_eq!(plain[0].group_join(ep, &[0], Ctx(7)), Err(Error::Unsupported));
}

#[test]
fn no_receive_of_the_application_matches_a_part() {
    let mut net = net(2, Setup::default());
    let room = net.memory(1, 64);
    net[1].recv(&from_any(&[room], 1)).unwrap();
    let any = Pattern { src: ADDR_UNSPEC, tag: Some((0, u64::MAX)) };
    net[1].recv(&Recv { pattern: any, ..from_any(&[room], 2) }).unwrap();
    let groups = join(&mut net, &[0, 1]);
    for count in [1, 4000] {
        for at in [0, 1] {
            let base = op(Kind::AllReduce, 0, count);
            let op = with_memory(&mut net, at, groups[at], &base, |len| vec![0; len]).unwrap();
            call(&mut net, at, groups[at], &op).unwrap();
        }
        net.settle();
        assert_eq!((net[0].tx().len(), net[1].tx().len(), net[1].rx()), (1, 1, vec![]));
    }
    net[0].send(&msg(1, &[], 5)).unwrap();
    net.settle();
    assert_eq!((net[0].sent().ctx, net[1].received().ctx), (Ctx(5), Ctx(1)));
}

#[test]
fn a_barrier_holds_all_until_the_last_has_come() {
    for (members, shared) in (2..=10).flat_map(|members| [(members, false), (members, true)]) {
        let mut net = net(members, Setup { shared, ..Setup::default() });
        let groups = join(&mut net, &(0..members).collect::<Vec<_>>());
        for (at, group) in groups.iter().enumerate().skip(1) {
            barrier(&mut net, at, *group);
        }
        net.settle();
        assert!((0..members).all(|at| net[at].tx().is_empty()));
        barrier(&mut net, 0, groups[0]);
        net.settle();
        assert!((0..members).all(|at| net[at].tx().len() == 1));
    }
}

#[test]
fn groups_of_the_same_members_are_apart() {
    [false, true].into_iter().for_each(are_apart);
}

fn are_apart(shared: bool) {
    let mut net = net(3, Setup { shared, ..Setup::default() });
    let (a, b) = (join(&mut net, &[0, 1, 2]), join(&mut net, &[0, 1, 2]));
    let some = join(&mut net, &[2, 0]);
    // The first group is called in another order than the second.
    for (at, first, second) in [(0, &a, &b), (1, &b, &a), (2, &a, &b)] {
        barrier(&mut net, at, first[at]);
        barrier(&mut net, at, second[at]);
    }
    barrier(&mut net, 2, some[0]);
    barrier(&mut net, 0, some[1]);
    net.settle();
    assert_eq!([0, 1, 2].map(|at| net[at].tx().len()), [3, 2, 3]);
    // A group that was left is joined anew.
    for at in 0..3 {
        assert_eq!(net[at].group_close(a[at]), Ok(()));
        assert_eq!(net[at].group_close(a[at]), Err(Error::NotFound));
    }
    let again = join(&mut net, &[0, 1, 2]);
    (0..3).for_each(|at| barrier(&mut net, at, again[at]));
    net.settle();
    assert_eq!([0, 1, 2].map(|at| net[at].tx().len()), [1, 1, 1]);
}

#[test]
fn operations_that_are_none_are_refused() {
    let mut net = net(2, Setup::default());
    let groups = join(&mut net, &[0, 1]);
    let sum = op(Kind::AllReduce, 0, 4);
    let mut post = |op: &Collective| call(&mut net, 0, groups[0], op);
    assert_eq!(post(&sum), Err(Error::Invalid), "no memory");
    assert_eq!(post(&op(Kind::Reduce, 9, 0)), Err(Error::Invalid), "no such root");
    assert_eq!(post(&op(Kind::AllGather, 0, usize::MAX / 8)), Err(Error::TooBig));
    for by in [None, Some(AtomicOp::AtomicRead), Some(AtomicOp::Cswap)] {
        assert_eq!(post(&Collective { op: by, count: 0, ..sum }), Err(Error::Unsupported));
    }
    assert_eq!(post(&Collective { count: 0, ..sum }), Ok(()));
}

#[test]
fn one_without_a_completion_has_none() {
    let mut net = net(2, Setup::default());
    let groups = join(&mut net, &[0, 1]);
    for at in [0, 1] {
        let quiet = Collective { flags: OpFlags::empty(), ..op(Kind::Barrier, 0, 0) };
        call(&mut net, at, groups[at], &quiet).unwrap();
    }
    net.settle();
    assert!(net[0].tx().is_empty());
    assert_eq!(net[0].group_close(groups[0]), Ok(()));
}

#[test]
fn members_that_post_other_sizes_fail() {
    let counts = [(4, 5), (5, 4), (4, 4000), (4000, 4)];
    for ((a, b), shared) in counts.into_iter().flat_map(|counts| [(counts, false), (counts, true)]) {
        let mut net = net(3, Setup { shared, ..Setup::default() });
        let groups = join(&mut net, &[0, 1, 2]);
        for (at, count) in [(0, a), (1, b), (2, a)] {
            let base = op(Kind::AllReduce, 0, count);
            let op = with_memory(&mut net, at, groups[at], &base, |len| vec![0; len]).unwrap();
            call(&mut net, at, groups[at], &op).unwrap();
        }
        net.settle();
        let failed = |net: &mut Net, at: usize| net[at].tx().iter().filter(|c| c.err.is_some()).count();
        assert!((0..3).map(|at| failed(&mut net, at)).sum::<usize>() > 0, "{a} {b}");
        net.assert_idle();
        assert!((0..3).all(|at| net[at].group_close(groups[at]) == Ok(())), "{a} {b}");
    }
}

#[test]
fn an_endpoint_is_closed_with_operations_under_way() {
    [false, true].into_iter().for_each(is_closed);
}

fn is_closed(shared: bool) {
    let mut net = net(2, Setup { shared, ..Setup::default() });
    let groups = begin_join(&mut net, &[0, 1]);
    net.settle();
    let base = op(Kind::AllReduce, 0, 9000);
    let op = with_memory(&mut net, 0, groups[0], &base, |len| vec![1; len]).unwrap();
    call(&mut net, 0, groups[0], &op).unwrap();
    let ep = net[0].ep;
    assert_eq!(net[0].ep_close(ep), Ok(()));
    assert_eq!(net[0].joined(groups[0]), None);
    net[0].progress();
    assert!(net[0].tx().is_empty());
}

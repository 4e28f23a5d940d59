//! Members of several hosts, which share memory inside each.

use engine::{Collective, CollectiveKind as Kind, Error, GroupId};
use hmem::{AtomicOp, Datatype};
use testkit::{Net, Setup};

use crate::group::{begin_join, call, join, net, op, with_memory};
use crate::model::{expected, put, value};

/// The kinds that go by the memory of each host.
const LAYERED: [Kind; 4] = [Kind::Barrier, Kind::AllReduce, Kind::Reduce, Kind::AllGather];

/// Nodes on these hosts.
fn on(hosts: &[usize]) -> Net {
    let mut net = net(hosts.len(), Setup { shared: true, ..Setup::default() });
    net.set_hosts(hosts);
    net
}

/// So many members on each of so many hosts: host by host, in turn, and one fewer on the last host.
fn placements(each: usize, hosts: usize) -> Vec<Vec<usize>> {
    let blocks: Vec<usize> = (0..each * hosts).map(|at| at / each).collect();
    let turns = (0..each * hosts).map(|at| at % hosts).collect();
    let fewer = blocks[..blocks.len() - 1].to_vec();
    vec![blocks, turns, fewer].into_iter().filter(|on| !on.is_empty()).collect()
}

fn all(on: &[usize]) -> Vec<usize> {
    (0..on.len()).collect()
}

fn post(net: &mut Net, at: usize, group: GroupId, kind: Kind, (root, count): (usize, usize)) {
    let op = with_memory(net, at, group, &op(kind, root, count), |len| vec![1; len]).unwrap();
    call(net, at, group, &op).unwrap();
}

#[test]
fn every_operation_has_its_results() {
    for (each, hosts) in (1..=5).flat_map(|each| (1..=3).map(move |hosts| (each, hosts))) {
        for placed in placements(each, hosts) {
            let (mut net, members) = (on(&placed), placed.len());
            let groups = join(&mut net, &all(&placed));
            let mut all: Vec<_> =
                Kind::ALL.into_iter().flat_map(|kind| [0, 1, 600].map(|n| (kind, n))).collect();
            if each % 2 == 0 {
                // In several pieces at a host, and not whole among leaders.
                all.extend(LAYERED.map(|kind| (kind, 5000)));
            }
            for (kind, count) in all {
                let root = (count + each) % members;
                let by = kind.reduces().then_some(AtomicOp::Sum);
                let base = Collective { datatype: Datatype::Double, op: by, ..op(kind, root, count) };
                let mut posted = Vec::new();
                for (at, group) in groups.iter().enumerate() {
                    let fill =
                        |len: usize| (0..len / 8).flat_map(|i| put(base.datatype, value(at, i, 1))).collect();
                    let op = with_memory(&mut net, at, *group, &base, fill).unwrap();
                    call(&mut net, at, *group, &op).unwrap();
                    posted.push(op);
                }
                net.settle();
                for (at, op) in posted.iter().enumerate() {
                    let case = format!("{kind:?} of {count} at {at} of {placed:?}");
                    assert_eq!(net[at].sent().err, None, "{case}");
                    let result = net[at].look(op.result, op.result.len());
                    assert!(result == expected(op, members, at, 1), "{case}");
                }
            }
            net.assert_idle();
        }
    }
}

/// Sums whose value depends on the order are the same bytes at all members, as floating point numbers have it.
#[test]
fn a_sum_of_floating_point_numbers_is_the_same_at_all_members() {
    for (placed, count) in
        [(&[0, 0, 0, 1, 1][..], 3), (&[0, 1, 2, 0, 1, 2, 0][..], 3), (&[0, 1, 0, 1][..], 9000)]
    {
        let mut net = on(placed);
        let groups = join(&mut net, &all(placed));
        let base = Collective { datatype: Datatype::Double, ..op(Kind::AllReduce, 0, count) };
        let mut posted = Vec::new();
        for (at, group) in groups.iter().enumerate() {
            let element =
                |i: usize| (0.1 + at as f64).powi(i as i32 % 7 + 17 * (at as i32 % 2)).to_ne_bytes();
            let fill = |len: usize| (0..len / 8).flat_map(element).collect();
            let op = with_memory(&mut net, at, *group, &base, fill).unwrap();
            call(&mut net, at, *group, &op).unwrap();
            posted.push(op);
        }
        net.settle();
        let results: Vec<_> =
            posted.iter().enumerate().map(|(at, op)| net[at].look(op.result, op.result.len())).collect();
        assert!(results.iter().all(|result| *result == results[0]), "{placed:?}");
    }
}

#[test]
fn leaders_alone_send_to_other_hosts() {
    for placed in [&[0, 0, 0, 1, 1, 1][..], &[0, 1, 0, 1, 2], &[2, 2, 2, 0, 2]] {
        let mut net = on(placed);
        let groups = join(&mut net, &all(placed));
        for (kind, root) in LAYERED.into_iter().flat_map(|kind| [(kind, 0), (kind, placed.len() - 1)]) {
            let leader = |at: usize| {
                let first = placed.iter().position(|host| *host == placed[at]);
                let has_root = kind == Kind::Reduce && placed[root] == placed[at];
                if has_root { at == root } else { first == Some(at) }
            };
            let mut crossed = 0;
            for turn in 0..100 * placed.len() {
                let at = turn % placed.len();
                if turn < placed.len() {
                    post(&mut net, at, groups[at], kind, (root, 5));
                } else {
                    net[at].progress();
                }
                for (a, b) in (0..placed.len()).flat_map(|a| (0..placed.len()).map(move |b| (a, b))) {
                    let frames = net.in_flight(a, b);
                    let lead = leader(a) && leader(b);
                    assert!(frames == 0 || lead, "{kind:?} of {root}: {a} to {b} of {placed:?}");
                    crossed += frames;
                }
            }
            assert!(crossed > 0, "{kind:?} of {placed:?}");
            net.settle();
            (0..placed.len()).for_each(|at| assert_eq!(net[at].sent().err, None));
        }
    }
}

/// These members post one operation, and the others another one. All of them end, some with an error.
fn fails(placed: &[usize], odd: &[usize], (one, few): (Kind, usize), (other, many): (Kind, usize)) {
    let case = format!("{one:?} of {few} at {odd:?}, {other:?} of {many} else");
    let mut net = on(placed);
    let groups = join(&mut net, &all(placed));
    for (at, group) in groups.iter().enumerate() {
        let (kind, count) = if odd.contains(&at) { (one, few) } else { (other, many) };
        post(&mut net, at, *group, kind, (0, count));
    }
    net.settle();
    let mut failed = 0;
    for at in all(placed) {
        let done = net[at].tx();
        assert_eq!(done.len(), 1, "{case}: {at}");
        failed += usize::from(done[0].err.is_some());
        assert_eq!(net[at].group_close(groups[at]), Ok(()), "{case}: {at}");
    }
    assert!(failed > 0, "{case}");
}

#[test]
fn members_that_post_other_operations_fail() {
    let kinds = [Kind::Barrier, Kind::AllReduce, Kind::AllGather];
    for (one, other) in kinds.into_iter().flat_map(|one| kinds.map(|other| (one, other))) {
        for odd in (0..6).filter(|_| one != other) {
            fails(&[0, 0, 0, 1, 1, 1], &[odd], (one, 5), (other, 5));
        }
    }
}

/// One member posts another count, or all of a host do, on either side of what goes by messages alone.
#[test]
fn members_that_post_other_counts_fail() {
    for kind in LAYERED.into_iter().filter(|kind| *kind != Kind::Barrier) {
        for (few, many) in [(5, 6), (5, 9000), (9000, 5), (600, 9000), (9000, 9001)] {
            for odd in [&[0][..], &[1], &[2], &[3], &[4], &[5], &[0, 1, 2], &[3, 4, 5]] {
                fails(&[0, 0, 0, 1, 1, 1], odd, (kind, few), (kind, many));
            }
            for odd in [&[0][..], &[1], &[2], &[3], &[4], &[0, 3], &[1, 4], &[2]] {
                fails(&[0, 1, 2, 0, 1], odd, (kind, few), (kind, many));
            }
        }
    }
}

/// Many operations are under way, and a member of each host ends, or its address is removed, at each place.
#[test]
fn operations_under_way_end_when_a_member_does() {
    let placed = [0, 0, 0, 1, 1, 1, 2];
    for (victim, removed) in (0..placed.len()).flat_map(|victim| [(victim, false), (victim, true)]) {
        for (steps, count) in [0, 1, 4, 9, 15, 22, 40].into_iter().flat_map(|n| [(n, 5), (n, 9000)]) {
            let mut net = on(&placed);
            let groups = join(&mut net, &all(&placed));
            for kind in LAYERED.into_iter().chain(LAYERED) {
                (0..placed.len()).for_each(|at| post(&mut net, at, groups[at], kind, (1, count)));
            }
            for step in 0..steps {
                net[step % placed.len()].progress();
            }
            let case = format!("{victim}, removed {removed}, {steps}, {count}");
            let by = (victim + 3) % placed.len();
            if removed {
                let av = net[by].av;
                net[by].av_remove(av, victim as u64).unwrap();
            } else {
                net.kill(victim);
            }
            net.settle();
            for at in (0..placed.len()).filter(|at| removed || *at != victim) {
                let errs: Vec<_> = net[at].tx().iter().map(|done| done.err).collect();
                assert_eq!(errs.len(), 2 * LAYERED.len(), "{case}: {at}");
                post(&mut net, at, groups[at], Kind::Barrier, (0, 0));
            }
            net.settle();
            for at in (0..placed.len()).filter(|at| removed || *at != victim) {
                assert!(net[at].sent().err.is_some(), "{case}: {at}");
                assert_eq!(net[at].group_close(groups[at]), Ok(()), "{case}: {at}");
                assert_eq!(net[at].ep_under_way(net[at].ep), 0, "{case}: {at}");
            }
        }
    }
}

#[test]
fn a_group_in_which_a_host_has_no_memory_goes_by_messages() {
    for lacks in 0..5 {
        let placed = [0, 0, 1, 1, 1];
        let mut net = on(&placed);
        net.lack_group_memory(lacks);
        let groups = join(&mut net, &all(&placed));
        post(&mut net, 1, groups[1], Kind::Barrier, (0, 0));
        net[1].progress();
        assert_eq!(net.in_flight(1, 2), 1, "a step of the barrier by messages, {lacks}");
        (0..5).filter(|at| *at != 1).for_each(|at| post(&mut net, at, groups[at], Kind::Barrier, (0, 0)));
        net.settle();
        (0..5).for_each(|at| assert_eq!(net[at].sent().err, None, "{lacks}: {at}"));
        net.assert_idle();
    }
}

/// At each call of progress of a join: a group that is not joined is not closed.
#[test]
fn a_group_is_not_closed_before_its_join_is_over() {
    let placed = [0, 0, 1, 1, 2];
    let mut net = on(&placed);
    let groups = begin_join(&mut net, &all(&placed));
    let mut open = all(&placed);
    for _ in 0..10_000 {
        open.retain(|at| {
            let joined = net[*at].joined(groups[*at]);
            if joined.is_none() {
                assert_eq!(net[*at].group_close(groups[*at]), Err(Error::Busy), "{at}");
            }
            net[*at].progress();
            joined.is_none()
        });
    }
    assert!(open.is_empty(), "{open:?}");
}

/// A member sleeps in the step of its host, and its leader while the other host's is awaited.
#[test]
fn members_that_sleep_are_woken() {
    let placed = [0, 0, 1, 1];
    let mut net = on(&placed);
    let groups = join(&mut net, &all(&placed));
    for at in [1, 0] {
        post(&mut net, at, groups[at], Kind::Barrier, (0, 0));
        net[at].progress();
    }
    assert!(net[1].arm() && net[1].is_armed());
    while !net[0].arm() {}
    assert_eq!(net.in_flight(0, 2), 1);
    (2..4).for_each(|at| post(&mut net, at, groups[at], Kind::Barrier, (0, 0)));
    net[2].progress();
    assert!(net.in_flight(2, 0) > 0, "the leader of the other host");
    net[0].progress();
    assert!(net.in_flight(0, 1) > 0, "the member that sleeps");
    net.settle();
    (0..4).for_each(|at| assert_eq!(net[at].sent().err, None, "{at}"));
}

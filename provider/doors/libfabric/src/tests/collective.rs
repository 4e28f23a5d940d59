//! Groups and collective operations, by endpoints of several domains.

use super::*;

const ENOSYS: c_int = -fi::FI_ENOSYS;
const EINVAL: c_int = -fi::FI_EINVAL;
const NONE: u64 = fi::FI_ADDR_NOTAVAIL;

/// An endpoint that knows the names of all, and the set of them.
struct Member {
    world: World,
    ep: *mut fi::fid_ep,
    set: *mut fi::fid_av_set,
    mc: *mut fi::fid_mc,
}

fn endpoint(world: &World, caps: u64, events: bool) -> *mut fi::fid_ep {
    // SAFETY: the world's own, which nothing reads meanwhile.
    unsafe { (*world.info).caps |= caps };
    let mut ep = ptr::null_mut();
    assert_eq!(call!(world.domain, ops.endpoint(world.info, &mut ep, NO)), 0);
    assert_eq!(bind(ep, world.cq, fi::FI_TRANSMIT | fi::FI_RECV), 0);
    assert_eq!(bind(ep, world.cntr, fi::FI_WRITE), 0);
    assert_eq!(bind(ep, world.av, 0), 0);
    if events {
        assert_eq!(bind(ep, world.eq, 0), 0);
    }
    assert_eq!(call_fid!(ep, control(fi::FI_ENABLE, NO)), 0);
    ep
}

fn name(ep: *mut fi::fid_ep) -> Vec<u8> {
    let (mut name, mut len) = (vec![0; 64], 64);
    assert_eq!(call!(ep, cm.getname(name.as_mut_ptr().cast(), &mut len)), 0);
    name.truncate(len);
    name
}

fn set_of(world: &World, start_addr: u64, end_addr: u64) -> *mut fi::fid_av_set {
    let attr = &mut fi::fi_av_set_attr { start_addr, end_addr, stride: 1, ..Default::default() };
    let mut set = ptr::null_mut();
    assert_eq!(call!(world.av, ops.av_set(attr, &mut set, NO)), 0);
    set
}

fn join(ep: *mut fi::fid_ep, set: *mut fi::fid_av_set, context: usize) -> Result<*mut fi::fid_mc, c_int> {
    let (mut mc, mut coll_addr) = (ptr::null_mut(), 0);
    assert_eq!(call!(set, ops.addr(&mut coll_addr)), 0);
    let addr = fi::fi_collective_addr { set, coll_addr };
    let to = (&raw const addr).cast();
    match call!(ep, cm.join(to, fi::FI_COLLECTIVE, &mut mc, ptr::without_provenance_mut(context))) {
        0 => Ok(mc),
        err => Err(err),
    }
}

/// The next event, after reading the queues of all.
fn event(of: &World, all: &[&World]) -> Option<(u32, fi::fi_eq_entry)> {
    for _ in 0..10_000 {
        let (mut code, mut entry) = (0, fi::fi_eq_entry::default());
        let len = size_of_val(&entry);
        match call!(of.eq, ops.read(&mut code, (&raw mut entry).cast(), len, 0)) {
            n if n == len as isize => return Some((code, entry)),
            n => assert_eq!(n, AGAIN),
        }
        all.iter().for_each(|w| assert_eq!(w.read().err(), Some(AGAIN)));
    }
    None
}

/// As many endpoints, each of a domain of its own, that have joined a group.
fn members(n: usize) -> Vec<Member> {
    let worlds: Vec<World> = (0..n).map(|_| World::new(Setting::default())).collect();
    let eps: Vec<_> = worlds.iter().map(|w| endpoint(w, fi::FI_COLLECTIVE, true)).collect();
    let names: Vec<_> = eps.iter().map(|ep| name(*ep)).collect();
    worlds.iter().for_each(|w| names.iter().for_each(|name| assert_ne!(w.insert(name), NONE)));
    let sets: Vec<_> = worlds.iter().map(|w| set_of(w, 0, n as u64 - 1)).collect();
    let mcs: Vec<_> = (0..n).map(|i| join(eps[i], sets[i], 77).unwrap()).collect();
    let all: Vec<&World> = worlds.iter().collect();
    for (world, mc) in worlds.iter().zip(&mcs) {
        let (code, entry) = event(world, &all).expect("the join ends");
        assert_eq!((code, entry.fid, entry.context.addr()), (fi::FI_JOIN_COMPLETE, mc.cast(), 77));
    }
    let of = |(((world, ep), set), mc)| Member { world, ep, set, mc };
    worlds.into_iter().zip(eps).zip(sets).zip(mcs).map(of).collect()
}

impl Member {
    fn address(&self) -> u64 {
        // SAFETY: an open group.
        unsafe { (*self.mc).fi_addr }
    }

    fn end(self) {
        for object in [self.mc.cast::<fi::fid>(), self.set.cast(), self.ep.cast()] {
            assert_eq!(close(object), 0);
        }
        self.world.end();
    }
}

/// One completion at each member, of a collective operation.
fn all_done(all: &[Member]) {
    let mut left: Vec<&Member> = all.iter().collect();
    for _ in 0..100_000 {
        left.retain(|m| match m.world.read() {
            Ok(entry) => {
                assert_eq!((entry.op_context.addr(), entry.flags), (5, fi::FI_COLLECTIVE));
                false
            }
            Err(why) => {
                assert_eq!(why, AGAIN);
                true
            }
        });
        if left.is_empty() {
            return;
        }
    }
    panic!("{} of {} have no completion", left.len(), all.len());
}

const CTX: *mut c_void = ptr::without_provenance_mut(5);

#[test]
fn each_call_does_what_it_is_to_do() {
    const N: usize = 3;
    let all = members(N);
    let mut input: Vec<Vec<u64>> = (0..N).map(|r| (0..N).map(|i| (10 * r + i) as u64).collect()).collect();
    let mut results = vec![vec![0u64; N]; N];
    let mut run = |post: &dyn Fn(&Member, *mut c_void, *mut c_void) -> isize| {
        results.iter_mut().for_each(|r| r.fill(99));
        for ((m, buf), result) in all.iter().zip(&mut input).zip(&mut results) {
            assert_eq!(post(m, buf.as_mut_ptr().cast(), result.as_mut_ptr().cast()), 0);
        }
        all_done(&all);
        results.clone()
    };
    let (u64_, sum) = (fi::FI_UINT64, fi::FI_SUM);
    run(&|m, _, _| call!(m.ep, collective.barrier(m.address(), CTX)));
    run(&|m, _, _| call!(m.ep, collective.barrier2(m.address(), fi::FI_COMPLETION, CTX)));
    let got = run(&|m, buf, to| {
        call!(m.ep, collective.allreduce(buf, N, NO, to, NO, m.address(), u64_, sum, 0, CTX))
    });
    assert_eq!(got, [[30, 33, 36], [30, 33, 36], [30, 33, 36]]);
    let got =
        run(&|m, buf, to| call!(m.ep, collective.allgather(buf, 1, NO, to, NO, m.address(), u64_, 0, CTX)));
    assert_eq!(got, [[0, 10, 20], [0, 10, 20], [0, 10, 20]]);
    let got =
        run(&|m, buf, to| call!(m.ep, collective.alltoall(buf, 1, NO, to, NO, m.address(), u64_, 0, CTX)));
    assert_eq!(got, [[0, 10, 20], [1, 11, 21], [2, 12, 22]]);
    let got = run(&|m, buf, to| {
        call!(m.ep, collective.reduce_scatter(buf, 1, NO, to, NO, m.address(), u64_, sum, 0, CTX))
    });
    assert_eq!(got, [[30, 99, 99], [33, 99, 99], [36, 99, 99]]);
    let got = run(&|m, buf, to| {
        call!(m.ep, collective.reduce(buf, 2, NO, to, NO, m.address(), 1, u64_, fi::FI_MAX, 0, CTX))
    });
    assert_eq!(got, [[99, 99, 99], [20, 21, 99], [99, 99, 99]]);
    let got =
        run(&|m, buf, to| call!(m.ep, collective.scatter(buf, 1, NO, to, NO, m.address(), 2, u64_, 0, CTX)));
    assert_eq!(got, [[20, 99, 99], [21, 99, 99], [22, 99, 99]]);
    let got =
        run(&|m, buf, to| call!(m.ep, collective.gather(buf, 1, NO, to, NO, m.address(), 0, u64_, 0, CTX)));
    assert_eq!(got, [[0, 10, 20], [99, 99, 99], [99, 99, 99]]);
    let got = run(&|m, buf, to| {
        let (msg_iov, resultv) = (fi::fi_ioc { addr: buf, count: N }, &mut fi::fi_ioc { addr: to, count: N });
        let message = fi::fi_msg_collective {
            msg_iov: &raw const msg_iov,
            iov_count: 1,
            coll_addr: m.address(),
            coll: fi::FI_ALLREDUCE,
            datatype: u64_,
            op: fi::FI_MIN,
            context: CTX,
            ..Default::default()
        };
        call!(m.ep, collective.msg(&raw const message, resultv, ptr::null_mut(), 1, 0))
    });
    assert_eq!(got, [[0, 1, 2], [0, 1, 2], [0, 1, 2]]);
    run(&|m, buf, _| call!(m.ep, collective.broadcast(buf, N, NO, m.address(), 1, u64_, 0, CTX)));
    assert_eq!(input, [[10, 11, 12], [10, 11, 12], [10, 11, 12]]);
    // Each has counted what it completed.
    assert!(all.iter().all(|m| call!(m.world.cntr, ops.read()) == 11));
    all.into_iter().for_each(Member::end);
}

#[test]
fn calls_that_make_no_sense_are_refused() {
    let all = members(2);
    let m = &all[0];
    let (at, buf) = (m.address(), (&raw mut *leak([0u64; 4])).cast());
    let reduce = |to: *mut c_void, at, datatype, op, flags| {
        call!(m.ep, collective.allreduce(buf, 2, NO, to, NO, at, datatype, op, flags, CTX))
    };
    let (u64_, sum, einval) = (fi::FI_UINT64, fi::FI_SUM, EINVAL as isize);
    let unsupported = -(fi::FI_EOPNOTSUPP as isize);
    assert_eq!(reduce(NO, at, u64_, sum, 0), einval, "no buffer");
    for other in [at + 1, u64::MAX, NONE] {
        assert_eq!(reduce(buf, other, u64_, sum, 0), einval, "no group");
    }
    assert_eq!(reduce(buf, at, fi::FI_VOID, sum, 0), unsupported);
    assert_eq!(reduce(buf, at, fi::FI_DOUBLE, fi::FI_BXOR, 0), unsupported);
    assert_eq!(reduce(buf, at, u64_, fi::FI_CSWAP, 0), unsupported);
    assert_eq!(reduce(buf, at, u64_, sum, fi::FI_COMMIT_COMPLETE), -(fi::FI_EBADFLAGS as isize));
    let far = call!(m.ep, collective.broadcast(buf, 1, NO, at, 9, u64_, 0, CTX));
    assert_eq!(far, einval, "no such root");
    // A member that waits cannot leave; both can when the other has come.
    assert_eq!(call!(m.ep, collective.barrier(at, CTX)), 0);
    assert_eq!(close(m.mc), BUSY);
    assert_eq!(close(m.set), BUSY);
    assert_eq!(call!(all[1].ep, collective.barrier(all[1].address(), CTX)), 0);
    all_done(&all);
    all.into_iter().for_each(Member::end);
}

#[test]
fn only_endpoints_with_the_capability_and_a_queue_of_events_join() {
    for (caps, events, why) in [(0, true, ENOSYS), (fi::FI_COLLECTIVE, false, -fi::FI_ENOEQ)] {
        let world = World::new(Setting::default());
        let ep = endpoint(&world, caps, events);
        world.insert(&name(ep));
        let set = set_of(&world, 0, 0);
        assert_eq!(join(ep, set, 0).err(), Some(why));
        if caps == 0 {
            assert_eq!(call!(ep, collective.barrier(0, NO)), ENOSYS as isize);
        }
        assert_eq!((close(set), close(ep)), (0, 0));
        world.end();
    }
}

#[test]
fn a_group_of_one_is_joined_and_left_after_its_endpoint() {
    let mut all = members(1);
    let m = all.remove(0);
    assert_eq!(call!(m.ep, collective.barrier(m.address(), CTX)), 0);
    all_done(std::slice::from_ref(&m));
    for object in [m.ep.cast::<fi::fid>(), m.mc.cast(), m.set.cast()] {
        assert_eq!(close(object), 0);
    }
    m.world.end();
}

#[test]
fn no_join_is_waited_for_asleep() {
    let worlds = [(); 2].map(|()| World::new(Setting::default()));
    let eps = [0, 1].map(|i| endpoint(&worlds[i], fi::FI_COLLECTIVE, true));
    for world in &worlds {
        eps.iter().for_each(|ep| assert_ne!(world.insert(&name(*ep)), NONE));
    }
    let sets = [0, 1].map(|i| set_of(&worlds[i], 0, 1));
    let first = join(eps[0], sets[0], 1).unwrap();
    let (mut code, mut entry) = (0, fi::fi_eq_entry::default());
    let (to, len) = ((&raw mut entry).cast(), size_of::<fi::fi_eq_entry>());
    assert_eq!(call!(worlds[0].eq, ops.sread(&mut code, to, len, 20, 0)), AGAIN);
    assert_eq!(close(first), BUSY);
    let second = join(eps[1], sets[1], 2).unwrap();
    // Each read makes progress with the join of its own.
    let both = [&worlds[0], &worlds[1]];
    assert_eq!(event(&worlds[0], &both).unwrap().1.context.addr(), 1);
    assert_eq!(call!(worlds[1].eq, ops.sread(&mut code, to, len, -1, 0)), len as isize);
    assert_eq!((code, entry.context.addr()), (fi::FI_JOIN_COMPLETE, 2));
    for object in [first.cast::<fi::fid>(), second.cast(), sets[0].cast(), sets[1].cast()] {
        assert_eq!(close(object), 0);
    }
    assert_eq!((close(eps[0]), close(eps[1])), (0, 0));
    worlds.into_iter().for_each(World::end);
}

#[test]
fn sets_are_sets() {
    let world = World::new(Setting::default());
    let eps = [(); 4].map(|()| endpoint(&world, fi::FI_COLLECTIVE, true));
    eps.iter().for_each(|ep| assert_ne!(world.insert(&name(*ep)), NONE));
    let (low, high) = (set_of(&world, 0, 2), set_of(&world, 1, 3));
    // What is in a set shows by what can be inserted, and removed.
    let has = |set: *mut fi::fid_av_set, at: u64| {
        if call!(set, ops.remove(at)) != 0 {
            return false;
        }
        assert_eq!(call!(set, ops.insert(at)), 0);
        assert_eq!(call!(set, ops.insert(at)), EINVAL, "twice");
        true
    };
    let all = |set| [0, 1, 2, 3].map(|at| has(set, at));
    assert_eq!((all(low), all(high)), ([true, true, true, false], [false, true, true, true]));
    assert_eq!(call!(low, ops.insert(9)), EINVAL);
    assert_eq!(call!(low, ops.intersect(high)), 0);
    assert_eq!(all(low), [false, true, true, false]);
    assert_eq!(call!(high, ops.diff(low)), 0);
    assert_eq!(all(high), [false, false, false, true]);
    assert_eq!(call!(low, ops.set_union(high)), 0);
    assert_eq!(all(low), [false, true, true, true]);
    assert_eq!(call!(low, ops.diff(low)), 0);
    assert_eq!(all(low), [false; 4]);
    // A set keeps its vector open.
    assert_eq!(close(world.av), BUSY);
    assert_eq!((close(low), close(high)), (0, 0));
    eps.into_iter().for_each(|ep| assert_eq!(close(ep), 0));
    world.end();
}

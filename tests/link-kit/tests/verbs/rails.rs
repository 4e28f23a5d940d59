//! Long accesses that go in parts by several ports.

use std::ffi::CStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

use below::{Below as _, Dest, Did, Poll, RAILS, RailsWith, Remote as _};
use engine::{Ctx, Error, MrId};
use hmem::Span;
use link_api::{Link as _, Patience, Way};
use link_kit::text;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rdma_sys as ibv;
use stand_in::program::{self, Program};
use testkit::{from_any, msg, pattern, read, there, write};
use verbs::{Options, Verbs};

use crate::device::{options, set};
use crate::duo::{Duo, Node, filled, link_with};
use crate::lone::{accesses, join, say};
use crate::rma::{BOTH, access, known};

const WAIT: Duration = Duration::from_secs(60);
/// Of tests, so that many accesses are cut.
const STRIPES: usize = 8 << 10;
const LEN: usize = 400_000;
/// Three devices that differ.
const THREE: &str = "sv0;sv1:inline=16,sge=1,reads=1,mtu=256;sv2:rxe,cqe=64,wr=8";

fn with_rails(rails: usize) -> Options {
    Options { rails, ..options() }
}

fn open(options: &Options) -> Verbs {
    verbs::open(options, std::net::Ipv4Addr::LOCALHOST.into()).expect("a device").0
}

/// Two endpoints, of which each has so many ports.
fn duo_of(devices: &str, others: &[(&str, &str)], rails: [usize; 2]) -> Duo<Verbs> {
    set(devices, others);
    let mut each = rails.into_iter();
    Duo::linked(|counts| {
        let fabric = open(&with_rails(each.next().expect("two")));
        link_with(fabric, counts, |options| options.stripes = STRIPES)
    })
}

fn duo(devices: &str, rails: usize) -> Duo<Verbs> {
    duo_of(devices, &[], [rails; 2])
}

fn calls(name: &CStr) -> u64 {
    Program::open(program::path("verbs_stand_in")).calls(name)
}

fn registered() -> u64 {
    calls(c"ibv_reg_mr") - calls(c"ibv_dereg_mr")
}

fn port(device: usize, is_up: bool) {
    let symbol = Program::open(program::path("verbs_stand_in")).symbol("stand_in_verbs_port");
    // SAFETY: that function's type.
    let set: extern "C" fn(usize, bool) = unsafe { std::mem::transmute(symbol) };
    set(device, is_up);
}

/// An asynchronous event of a device.
fn raise(device: usize, kind: u32) {
    let symbol = Program::open(program::path("verbs_stand_in")).symbol("stand_in_verbs_event");
    // SAFETY: that function's type.
    let raise: extern "C" fn(usize, u32) = unsafe { std::mem::transmute(symbol) };
    raise(device, kind);
}

/// Writes until that goes in so many parts: rails are made while accesses go on.
fn writes_in_parts(duo: &mut Duo<Verbs>, key: u64, target: Span, parts: u64) {
    let (to, local, remote, start) =
        (duo.a.peer, [filled(target.len(), 41)], [there(0, target.len(), key)], Instant::now());
    loop {
        assert!(start.elapsed() < WAIT, "it never goes in {parts} parts");
        duo.settle();
        duo.counts.take();
        let err = access(duo, &write(to, &local, &remote, 1)).err;
        let [_, bytes, accesses, _] = duo.counts.take();
        match err {
            None => assert!(text(&[target]) == pattern(target.len(), 41)),
            // A connection that has just ended.
            Some(why) => assert_eq!(why, Error::Reset),
        }
        if err.is_none() && accesses == parts && bytes < 2_000 {
            return;
        }
    }
}

/// Each of so many bytes written and read in so many accesses.
fn goes_in_parts(duo: &mut Duo<Verbs>, key: u64, target: Span, parts: u64) {
    writes_in_parts(duo, key, target, parts);
    let (to, len) = (duo.a.peer, target.len());
    let (local, back, remote) = (filled(len, 40), Span::leak(len), [there(0, len, key)]);
    for op in [write(to, &[local], &remote, 1), read(to, &[back], &remote, 2)] {
        assert_eq!(access(duo, &op).err, None);
        let [_, bytes, accesses, moved] = duo.counts.take();
        assert_eq!((accesses, moved), (parts, len as u64), "accesses, and their bytes");
        assert!(bytes < 2_000, "{bytes} bytes in frames");
    }
    assert!(text(&[target]) == pattern(len, 40) && text(&[back]) == pattern(len, 40));
}

#[test]
fn registered_memory_is_accessed_in_a_part_by_each_port() {
    for rails in [1, 2, 3] {
        let mut duo = duo("sv0;sv1;sv2", rails);
        let target = filled(LEN, 3);
        known(&mut duo, target, 9, BOTH);
        goes_in_parts(&mut duo, 9, target, rails as u64);
        // What is shorter goes by the first alone.
        let (to, local) = (duo.a.peer, filled(STRIPES - 1, 1));
        assert_eq!(access(&mut duo, &write(to, &[local], &[there(0, STRIPES - 1, 9)], 1)).err, None);
        assert_eq!(duo.counts.take()[2], 1);
    }
}

/// Without a parameter a part has at least 64 KiB.
#[test]
fn by_default_256_kib_are_cut_and_less_is_not() {
    set("sv0;sv1", &[]);
    let mut duo = Duo::new(|| open(&with_rails(2)));
    let target = filled(LEN, 3);
    known(&mut duo, target, 9, BOTH);
    writes_in_parts(&mut duo, 9, target, 2);
    let to = duo.a.peer;
    for (len, parts) in [((256 << 10) - 1, 1), (256 << 10, 2)] {
        let local = filled(len, 5);
        assert_eq!(access(&mut duo, &write(to, &[local], &[there(0, len, 9)], 1)).err, None);
        assert_eq!(duo.counts.take()[2], parts, "{len} bytes");
    }
}

/// Sends messages until one goes in so many parts.
fn sends_in_parts(duo: &mut Duo<Verbs>, parts: u64) {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < WAIT, "it never goes in {parts} parts");
        duo.settle();
        duo.counts.take();
        duo.send(&[filled(LEN, 1)], &[Span::leak(LEN)]);
        if duo.counts.take()[2] == parts {
            return duo.settle();
        }
    }
}

#[test]
fn a_long_message_is_read_in_a_part_by_each_port_and_leaves_nothing_registered() {
    for rails in [2, 3] {
        let mut duo = duo("sv0;sv1;sv2", rails);
        sends_in_parts(&mut duo, rails as u64);
        let before = registered();
        for i in 0..3 {
            duo.counts.take();
            duo.send(&[filled(LEN, i)], &[Span::leak(LEN)]);
            let [messages, bytes, reads, moved] = duo.counts.take();
            assert_eq!((reads, moved), (rails as u64, LEN as u64), "reads, and their bytes");
            assert!(messages <= 8 && bytes < 2_000, "{messages} messages of {bytes} bytes");
            assert_eq!((duo.lent(), registered()), (0, before), "what is registered when it is over");
        }
    }
}

#[test]
fn many_long_messages_at_once_arrive_whole() {
    const N: usize = 40;
    let mut duo = duo(THREE, 3);
    sends_in_parts(&mut duo, 3);
    let to = duo.a.peer;
    let of: Vec<[Span; 2]> = (0..N).map(|i| [filled(70_000 + i, i), Span::leak(70_000 + i)]).collect();
    for (i, [src, dst]) in of.iter().enumerate() {
        duo.b.domain.recv(duo.b.rx, &from_any(&[*dst], i)).expect("a receive");
        duo.post(|a| a.domain.send(a.ep, &msg(to, &[*src], i)));
    }
    duo.complete(N, N);
    assert!(of.iter().all(|[src, dst]| text(&[*dst]) == text(&[*src])));
    assert_eq!(duo.lent(), 0);
}

/// Whatever is read and written, and where: as in memory of one process.
fn does_what_copies_do(devices: &str, others: &[(&str, &str)], rails: usize, parts: u64) {
    let step = (any::<bool>(), 0usize..LEN, 1usize..LEN, any::<u8>());
    let config = ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() };
    let run = TestRunner::new(config).run(&prop::collection::vec(step, 1..15), |steps| {
        let mut duo = duo_of(devices, others, [rails; 2]);
        let (to, target) = (duo.a.peer, filled(LEN, 3));
        known(&mut duo, target, 9, BOTH);
        writes_in_parts(&mut duo, 9, target, parts);
        let mut model = pattern(LEN, 41);
        for (is_write, at, len, seed) in steps {
            let len = if seed % 3 == 0 { len % 9_000 + 1 } else { len }.min(LEN - at);
            let local = filled(len, seed.into());
            let (remote, half) = ([there(at as u64, len, 9)], len / 2);
            let here = [(0, half), (half, len - half)].map(|(at, n)| local.part(at, n).expect("a part"));
            let op = if is_write { write(to, &here, &remote, 1) } else { read(to, &here, &remote, 1) };
            prop_assert_eq!(access(&mut duo, &op).err, None);
            if is_write {
                model[at..at + len].copy_from_slice(&pattern(len, seed.into()));
            } else {
                prop_assert!(text(&[local]) == model[at..at + len], "{} bytes at {} that were read", len, at);
            }
        }
        prop_assert!(text(&[target]) == model, "what was written, and nothing else");
        prop_assert_eq!(duo.counts.take()[1], 0, "bytes in frames");
        Ok(())
    });
    run.unwrap_or_else(|why| panic!("{devices}: {why}"));
}

#[test]
fn accesses_in_parts_do_what_copies_do() {
    does_what_copies_do("sv0;sv1", &[], 2, 2);
}

#[test]
fn accesses_in_parts_do_what_copies_do_on_devices_that_differ() {
    does_what_copies_do(THREE, &[], 3, 3);
}

#[test]
fn accesses_in_parts_do_what_copies_do_where_completions_are_late_and_overtake_each_other() {
    does_what_copies_do(THREE, &[("DELAY_US", "200"), ("REORDER", "7")], 3, 3);
}

/// No part is longer than what the messages of each port have.
#[test]
fn accesses_in_parts_do_what_copies_do_where_messages_of_a_rail_are_short() {
    does_what_copies_do("sv0;sv1:msg=65536", &[], 2, LEN.div_ceil(65_536) as u64);
}

#[test]
fn accesses_in_parts_do_what_copies_do_where_requests_are_repeated() {
    does_what_copies_do("sv0:rxe,repeats;sv1:rxe,repeats", &[], 2, 2);
}

/// The flag that follows data is sent once all parts were acknowledged, which is after the message would
/// otherwise have come.
#[test]
fn a_message_behind_a_write_in_parts_finds_its_bytes() {
    let mut duo = duo_of("sv0;sv1;sv2", &[("DELAY_US", "2000"), ("REORDER", "3")], [3; 2]);
    let (to, target, local, room) = (duo.a.peer, Span::leak(LEN), filled(LEN, 7), Span::leak(8));
    known(&mut duo, target, 9, BOTH);
    writes_in_parts(&mut duo, 9, target, 3);
    duo.b.domain.recv(duo.b.rx, &from_any(&[room], 2)).expect("a receive");
    duo.post(|a| a.domain.rma(a.ep, &write(to, &[local], &[there(0, LEN, 9)], 1)));
    duo.post(|a| a.domain.send(a.ep, &msg(to, &[filled(8, 1)], 3)));
    let (start, mut is_acknowledged) = (Instant::now(), false);
    while duo.b.next().is_none() {
        assert!(start.elapsed() < WAIT, "the message does not come");
        is_acknowledged |= duo.a.next().is_some_and(|done| done.ctx == Ctx(1));
    }
    assert!(is_acknowledged, "a message that overtakes a write");
    assert!(text(&[target]) == pattern(LEN, 7));
    assert_eq!(duo.counts.take()[2], 3);
}

/// Where one end has one port nothing is cut, and no rail is made.
#[test]
fn a_peer_with_one_port_has_no_rails() {
    for rails in [[1, 2], [3, 1]] {
        let before = calls(c"ibv_create_qp");
        let mut duo = duo_of("sv0;sv1;sv2", &[], rails);
        let made = calls(c"ibv_create_qp") - before;
        let target = filled(LEN, 3);
        known(&mut duo, target, 9, BOTH);
        goes_in_parts(&mut duo, 9, target, 1);
        duo.send(&[filled(LEN, 1)], &[Span::leak(LEN)]);
        assert_eq!(duo.counts.take()[2], 1);
        assert_eq!(calls(c"ibv_create_qp") - before, made, "queue pairs after the first");
    }
}

/// The one has more of them.
#[test]
fn the_smaller_number_of_ports_holds() {
    let mut duo = duo_of("sv0;sv1;sv2", &[], [3, 2]);
    let target = filled(LEN, 3);
    known(&mut duo, target, 9, BOTH);
    goes_in_parts(&mut duo, 9, target, 2);
}

#[test]
fn ports_that_cannot_be_rails_are_refused_with_a_reason() {
    set("sv0;sv1:down;sv2:reads=0;sv3:ib;sv4:cqe=32;sv5", &[]);
    let found = verbs::open(&with_rails(3), std::net::Ipv4Addr::LOCALHOST.into());
    let (found, refused) = found.expect("a device");
    let text = found.about().detail;
    assert!(text.starts_with("sv0 port 1, GID") && text.contains("; rail sv5 port 1, GID"), "{text}");
    let why = refused.join("; ");
    for part in [
        "sv1: port 1: it is not active",
        "sv2 port 1: as a rail: no RDMA reads",
        "sv3 port 1: as a rail: its link layer is another one",
        "sv4 port 1: as a rail: its completion queues have 32 entries",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[test]
fn devices_that_are_named_are_used_in_that_order() {
    set("sv0;sv1;sv2;sv3", &[]);
    let of = |names: &str, rails| open(&Options { device: Some(names.into()), ..with_rails(rails) });
    let text = of("sv2, sv0,sv1", 2).about().detail.to_owned();
    assert!(text.starts_with("sv2 port 1, GID"), "{text}");
    assert!(text.contains("; rail sv0 port 1") && !text.contains("sv1") && !text.contains("sv3"), "{text}");
    let text = of("sv9,sv3,", 1).about().detail.to_owned();
    assert!(text.starts_with("sv3 port 1, GID"), "one that this host has: {text}");
    let text = of("sv1", 3).about().detail.to_owned();
    assert!(text.starts_with("sv1 port 1, GID") && !text.contains("rail"), "{text}");
}

/// A port that is down when the two meet is left out, and the others serve.
#[test]
fn a_rail_whose_port_is_down_is_left_out() {
    set("sv0;sv1;sv2", &[]);
    let mut opened = 0;
    let mut duo = Duo::linked(|counts| {
        let fabric = open(&with_rails(3));
        opened += 1;
        if opened == 2 {
            port(1, false);
        }
        link_with(fabric, counts, |options| options.stripes = STRIPES)
    });
    let target = filled(LEN, 3);
    known(&mut duo, target, 9, BOTH);
    goes_in_parts(&mut duo, 9, target, 2);
}

/// Neither end knows why: the write of no bytes is not acknowledged.
#[test]
fn a_rail_by_which_no_packet_gets_there_and_back_is_left_out_at_both_ends() {
    set("sv0;sv1", &[]);
    let (mut one, mut other) = (open(&with_rails(2)), open(&with_rails(2)));
    let (to_other, to_one) = join(&mut one, &mut other);
    say(&mut one, to_other, &mut other);
    let symbol = Program::open(program::path("verbs_stand_in")).symbol("stand_in_verbs_status");
    // SAFETY: that function's type.
    let fail: extern "C" fn(u64, u32) = unsafe { std::mem::transmute(symbol) };
    fail(1, ibv::IBV_WC_RETRY_EXC_ERR);
    make_rails((&mut one, to_other), (&mut other, to_one));
    assert_eq!((one.rails(to_other), other.rails(to_one)), (NONE, NONE));
    let start = Instant::now();
    while calls(c"ibv_create_qp") - calls(c"ibv_destroy_qp") > 2 {
        assert!(start.elapsed() < WAIT, "their queue pairs stay");
        assert_eq!((one.poll(Poll::All), other.poll(Poll::All)), (None, None));
    }
    // The connection goes on, and memory is lent as before.
    say(&mut one, to_other, &mut other);
    let memory = filled(LEN, 3);
    let lease = one.lend(to_other, memory, Way::Put).expect("memory that can be lent");
    assert_eq!(one.stripe(to_other, lease.number, memory, false, true), [0; RAILS]);
    assert!(one.end_lease(lease.number, true));
}

/// A rail's device is gone: its accesses fail with their connection, which is made anew without that rail.
#[test]
fn a_rail_that_fails_in_use_ends_the_connection_and_the_next_one_goes_without_it() {
    let mut duo = duo("sv0;sv1", 2);
    let (to, target, local) = (duo.a.peer, filled(LEN, 3), filled(LEN, 7));
    known(&mut duo, target, 9, BOTH);
    goes_in_parts(&mut duo, 9, target, 2);
    raise(1, ibv::IBV_EVENT_DEVICE_FATAL);
    // Each access until then is done, or ends with the connection.
    writes_in_parts(&mut duo, 9, target, 1);
    goes_in_parts(&mut duo, 9, target, 1);
    assert_eq!(access(&mut duo, &read(to, &[local], &[there(0, LEN, 9)], 1)).err, None);
    assert!(text(&[local]) == text(&[target]));
}

/// A part fails at the device of the peer: the whole access does, and none of it is done again.
#[test]
fn a_part_that_ends_with_an_error_ends_the_access_and_the_connection() {
    let mut duo = duo("sv0;sv1", 2);
    let (to, target, local) = (duo.a.peer, filled(LEN, 3), filled(LEN, 7));
    known(&mut duo, target, 9, BOTH);
    goes_in_parts(&mut duo, 9, target, 2);
    let symbol = Program::open(program::path("verbs_stand_in")).symbol("stand_in_verbs_status");
    // SAFETY: that function's type.
    let fail: extern "C" fn(u64, u32) = unsafe { std::mem::transmute(symbol) };
    // The first request is the first port's, the second the rail's.
    fail(2, ibv::IBV_WC_REM_OP_ERR);
    let end = access(&mut duo, &write(to, &[local], &[there(0, LEN, 9)], 1)).err;
    assert_eq!(end, Some(Error::Reset));
    assert_eq!(duo.counts.take()[2], 2, "parts that were posted");
    goes_in_parts(&mut duo, 9, target, 2);
}

/// The owner takes a registration back while parts of an access are under way: when it has it, none touches it.
#[test]
fn a_registration_is_closed_once_no_part_of_an_access_is_under_way() {
    let mut duo = duo_of("sv0;sv1;sv2", &[("DELAY_US", "3000"), ("REORDER", "5")], [3; 2]);
    let (to, target, local) = (duo.a.peer, Span::leak(LEN), filled(LEN, 7));
    duo.b.domain.set_patience(Patience::Retried);
    for round in 0..5 {
        let mr: MrId = known(&mut duo, target, 9 + round, BOTH);
        writes_in_parts(&mut duo, 9 + round, target, 3);
        duo.a
            .domain
            .rma(duo.a.ep, &write(to, &[local], &[there(0, LEN, 9 + round)], 1))
            .expect("room for one");
        let (start, mut outcome) = (Instant::now(), None);
        while let Err(why) = duo.b.domain.mr_close(mr) {
            assert!(why == Error::Busy && start.elapsed() < WAIT, "{why:?}");
            outcome = outcome.or(duo.a.next());
        }
        assert_eq!(duo.lent(), 0);
        hmem::write(&[target], 0, &pattern(LEN, 1));
        while outcome.is_none() {
            assert!(start.elapsed() < WAIT, "the write is never over");
            outcome = duo.a.next();
            duo.b.next();
        }
        sleep(Duration::from_millis(20));
        assert!(text(&[target]) == pattern(LEN, 1), "a part that came later, in round {round}");
    }
}

/// A silent peer keeps no memory: its keys end, those of rails, too.
#[test]
fn the_keys_of_rails_end_with_a_registration_that_a_silent_peer_knows() {
    let mut duo = duo("sv0;sv1", 2);
    let (to, target, local) = (duo.a.peer, filled(LEN, 1), filled(LEN, 2));
    let before = registered();
    let mr = known(&mut duo, target, 9, BOTH);
    goes_in_parts(&mut duo, 9, target, 2);
    hmem::write(&[target], 0, &pattern(LEN, 1));
    duo.b.domain.mr_close(mr).expect("memory that is taken back");
    let end = access(&mut duo, &write(to, &[local], &[there(0, LEN, 9)], 1)).err;
    assert_eq!(end, Some(Error::Reset), "the device refuses it");
    assert!(text(&[target]) == pattern(LEN, 1));
    let start = Instant::now();
    // What each side has registered for short accesses stays.
    while registered() > before + 2 {
        assert!(start.elapsed() < WAIT, "{} more registrations", registered() - before);
        duo.a.next();
        duo.b.next();
    }
}

/// Has two that are connected make their rails, or leave them out.
fn make_rails((one, to_other): (&mut Verbs, Dest), (other, to_one): (&mut Verbs, Dest)) {
    one.begin_rails(to_other, true);
    other.begin_rails(to_one, false);
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < WAIT, "no rails");
        while let Some(said) = one.second(to_other) {
            let mut answer = other.join_second(to_one, &said).expect("what makes sense");
            while let Some(said) = answer {
                // What is said then need not be of the same rail.
                let more = one.join_second(to_other, &said).expect("what makes sense");
                answer = more.and_then(|said| other.join_second(to_one, &said).expect("what makes sense"));
            }
        }
        let is_awaited = [one.awaits_second(to_other), other.awaits_second(to_one)];
        if is_awaited == [false; 2] {
            return;
        }
        for each in [&mut *one, &mut *other] {
            assert!(matches!(each.poll(Poll::All), None | Some(Did::Announces(_))));
        }
    }
}

/// Two that are connected, with their rails, as each knows the other.
fn joined(one: &mut Verbs, other: &mut Verbs) -> (Dest, Dest) {
    let (to_other, to_one) = join(one, other);
    // A failure is reported with what a message had.
    say(one, to_other, other);
    make_rails((one, to_other), (other, to_one));
    assert!(one.rails(to_other) != NONE && one.rails(to_other) == other.rails(to_one));
    (to_other, to_one)
}

const NONE: RailsWith = RailsWith::Made([false; RAILS]);

/// A third one, connected to the owner by the same ports, that has learnt the keys: it reads and writes nothing.
#[test]
fn a_key_of_a_rail_is_of_no_use_to_another_peer() {
    set("sv0;sv1", &[]);
    let options = with_rails(2);
    let [mut owner, mut peer, mut thief] = [open(&options), open(&options), open(&options)];
    let ((to_peer, at), memory) = (joined(&mut owner, &mut peer), filled(LEN, 3));
    let (_, of_thief) = joined(&mut owner, &mut thief);
    let lease = owner.lend(to_peer, memory, Way::Put).expect("memory that can be lent");
    let keys = owner.stripe(to_peer, lease.number, memory, false, true);
    assert!(keys[0] != 0 && keys[1..] == [0; RAILS - 1], "{keys:x?}");
    assert_eq!(owner.stripe(to_peer, lease.number, memory, false, true), keys, "one for a peer");
    say(&mut owner, to_peer, &mut peer);
    for way in [Way::Put, Way::Get] {
        let (_, of_thief) =
            if way == Way::Get { joined(&mut owner, &mut thief) } else { (of_thief, of_thief) };
        assert!(!accesses(&mut thief, (way, of_thief, keys[0], lease.base), filled(LEN, 9)), "{way:?}");
    }
    assert!(text(&[memory]) == pattern(LEN, 3));
    assert!(accesses(&mut peer, (Way::Put, at, keys[0], lease.base), filled(LEN, 4)));
    assert!(text(&[memory]) == pattern(LEN, 4));
    // It is lent to be written, by this rail as by the first port.
    let loot = filled(LEN, 9);
    assert!(!accesses(&mut peer, (Way::Get, at, keys[0], lease.base), loot));
    assert!(text(&[loot]) == pattern(LEN, 9));
    assert!(owner.end_lease(lease.number, true));
}

/// What a peer says of rails is checked.
#[test]
fn what_makes_no_sense_of_rails_is_refused() {
    set("sv0;sv1", &[]);
    let mut one = open(&with_rails(2));
    let mut other = open(&with_rails(2));
    let (_, to_one) = joined(&mut one, &mut other);
    let mut address = vec![1; 29];
    address[1 + 18] = 9;
    for said in [&[0][..], &[9], &[1, 1], &[1, 2], &[1; 29], &address, &[1; 30], &[2, 1]] {
        let heard = other.join_second(to_one, said);
        let is_harmless = said == [2, 1];
        assert_eq!(heard.is_err(), !is_harmless, "{said:?}: {heard:?}");
    }
    // There are none that they could be of.
    assert!(open(&with_rails(1)).join_second(to_one, &[1]).is_err());
}

/// Events of a rail's device are read until it is gone, and wake no one after that.
#[test]
fn a_device_of_a_rail_that_is_gone_wakes_no_more() {
    set("sv0;sv1", &[]);
    let mut one = open(&with_rails(2));
    let lender = one.waits().lender.expect("a descriptor");
    let is_readable = || {
        let mut fd = libc::pollfd { fd: lender, events: libc::POLLIN, revents: 0 };
        // SAFETY: one that is open.
        unsafe { libc::poll(&mut fd, 1, 0) == 1 }
    };
    for is_seen in [true, false] {
        raise(1, ibv::IBV_EVENT_DEVICE_FATAL);
        assert_eq!(is_readable(), is_seen);
        assert!(one.try_wait(), "the first port goes on");
        assert!(!is_readable(), "an event that wakes for ever");
    }
}

/// The other process of [`a_peer_that_is_killed_ends_its_accesses`].
const KILLED: &str = "STRAIT_TEST_RAILS_KILLED";

#[test]
#[ignore = "another process of a test"]
fn another_process() {
    let Ok(fabric) = std::env::var(KILLED) else { return };
    set("sv0;sv1", &[("HOST", "2")]);
    // SAFETY: nothing reads the environment yet.
    unsafe { std::env::set_var("VERBS_STAND_IN_FABRIC", fabric) };
    let counts = Default::default();
    let link = link_with(open(&with_rails(2)), &counts, |options| options.stripes = STRIPES);
    println!("name {}", link.addr());
    let mut name = String::new();
    std::io::stdin().read_line(&mut name).expect("a name");
    let mut node = Node::new(link, wire::Addr::new(name.trim().parse().expect("a name")));
    node.domain.set_lasting();
    let room = filled(LEN, 3);
    let reg = engine::Reg { iov: &[room], access: BOTH, key: Some(9) };
    node.domain.mr_reg(&reg).expect("a key that is free");
    loop {
        node.next();
    }
}

/// A process that does not outlive this.
struct Process(Child);

impl Process {
    fn end(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

#[test]
fn a_peer_that_is_killed_ends_its_accesses() {
    set("sv0;sv1", &[("DELAY_US", "300")]);
    let counts = Default::default();
    let link = link_with(open(&with_rails(2)), &counts, |options| options.stripes = STRIPES);
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--ignored", "--exact", "--nocapture", "rails::another_process"])
        .env(KILLED, std::process::id().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("another process");
    let mut child = Process(child);
    writeln!(child.0.stdin.as_mut().expect("a pipe"), "{}", link.addr()).expect("a process that reads");
    let said = BufReader::new(child.0.stdout.take().expect("a pipe"));
    let name = said.lines().map_while(Result::ok).find_map(|l| l.strip_prefix("name ").map(str::to_owned));
    let mut here = Node::new(link, wire::Addr::new(name.expect("its name").parse().expect("a name")));
    here.domain.set_lasting();
    let (to, local, start) = (here.peer, filled(LEN, 7), Instant::now());
    let (mut posted, mut over, mut errors, mut is_killed) = (0, 0, 0, false);
    let mut before = u64::MAX;
    while errors == 0 || over < posted {
        assert!(start.elapsed() < WAIT, "{over} of {posted} accesses are over, {errors} with an error");
        let remote = [there(0, LEN, 9)];
        if posted - over < 4
            && errors == 0
            && here.domain.rma(here.ep, &write(to, &[local], &remote, posted)).is_ok()
        {
            posted += 1;
        }
        if let Some(done) = here.next() {
            over += 1;
            // With what is under way.
            before = before.min(registered());
            errors += u64::from(done.err.is_some());
        }
        // In the middle of accesses in parts.
        if !is_killed && counts.reads.load(Relaxed) > 40 {
            child.end();
            is_killed = true;
        }
    }
    assert!(is_killed && counts.reads.load(Relaxed) > 40);
    while registered() > before {
        assert!(start.elapsed() < WAIT, "{} more registrations", registered() - before);
        here.next();
    }
}

//! Long accesses that go in parts by several ports.

use std::time::{Duration, Instant};

use below::{Below as _, Dest, Did, NotSent, Poll, RAILS, RailsWith, Remote as _};
use engine::{Ctx, Error};
use hmem::Span;
use link_api::Way;
use link_kit::text;
use rdma_sys as ibv;
use testkit::{from_any, msg, pattern, read, there, write};
use verbs::{Options, Verbs};

use crate::device::{calls, options, port, set, stand_in};
use crate::duo::{Duo, Node, filled, link_with};
use crate::lone::{accesses, join, say};
use crate::rma::{BOTH, LEN, access, does_what_copies_do, known};

mod ends;
mod memory;
mod ports;

const WAIT: Duration = Duration::from_secs(60);
/// Of tests, so that many accesses are cut.
const STRIPES: usize = 8 << 10;
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

fn registered() -> u64 {
    calls(c"ibv_reg_mr") - calls(c"ibv_dereg_mr")
}

/// An asynchronous event of a device.
fn raise(device: usize, kind: u32) {
    let symbol = stand_in().symbol("stand_in_verbs_event");
    // SAFETY: that function's type.
    let raise: extern "C" fn(usize, u32) = unsafe { std::mem::transmute(symbol) };
    raise(device, kind);
}

/// So many requests on, one ends with this status.
fn end_with(nth: u64, status: u32) {
    let symbol = stand_in().symbol("stand_in_verbs_status");
    // SAFETY: that function's type.
    let end: extern "C" fn(u64, u32) = unsafe { std::mem::transmute(symbol) };
    end(nth, status);
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

/// Most accesses are long.
fn do_what_copies_do(devices: &str, others: &[(&str, &str)], rails: usize, parts: u64) {
    let len_of = |len, seed| if seed % 3 == 0 { len % 9_000 + 1 } else { len };
    does_what_copies_do(devices, (4, 15), len_of, || {
        let (mut duo, target) = (duo_of(devices, others, [rails; 2]), filled(LEN, 3));
        known(&mut duo, target, 9, BOTH);
        writes_in_parts(&mut duo, 9, target, parts);
        (duo, target, 41)
    });
}

#[test]
fn accesses_in_parts_do_what_copies_do() {
    do_what_copies_do("sv0;sv1", &[], 2, 2);
}

#[test]
fn accesses_in_parts_do_what_copies_do_on_devices_that_differ() {
    do_what_copies_do(THREE, &[], 3, 3);
}

#[test]
fn accesses_in_parts_do_what_copies_do_where_completions_are_late_and_overtake_each_other() {
    do_what_copies_do(THREE, &[("DELAY_US", "200"), ("REORDER", "7")], 3, 3);
}

/// No part is longer than what the messages of each port have.
#[test]
fn accesses_in_parts_do_what_copies_do_where_messages_of_a_rail_are_short() {
    do_what_copies_do("sv0;sv1:msg=65536", &[], 2, LEN.div_ceil(65_536) as u64);
}

#[test]
fn accesses_in_parts_do_what_copies_do_where_requests_are_repeated() {
    do_what_copies_do("sv0:rxe,repeats;sv1:rxe,repeats", &[], 2, 2);
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
            port(1, 1, false);
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
    end_with(1, ibv::IBV_WC_RETRY_EXC_ERR);
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
    assert_eq!(one.stripe(to_other, lease.number, memory, (false, true), true), [0; RAILS]);
    assert!(one.end_lease(lease.number, true));
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
        for (each, to) in [(&mut *one, to_other), (&mut *other, to_one)] {
            match each.poll(Poll::All) {
                None | Some(Did::Announces(_)) => {}
                // The end of an earlier connection may be reported late.
                Some(Did::Failed(who, _)) if who != to.0 => {}
                Some(did) => panic!("{did:?}"),
            }
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

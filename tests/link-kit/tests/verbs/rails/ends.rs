//! Rails that fail, whom their keys serve, and what ends with a registration or a process.

use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

use below::{Below as _, RAILS, Remote as _};
use engine::{Error, MrId};
use hmem::Span;
use link_api::{Link as _, Patience, Way};
use link_kit::process::{Process, meet};
use link_kit::text;
use rdma_sys as ibv;
use testkit::{pattern, read, there, write};

use super::*;

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
    // The first request is the first port's, the second the rail's.
    end_with(2, ibv::IBV_WC_REM_OP_ERR);
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

/// A third one, connected to the owner by the same ports, that has learnt the keys: it reads and writes nothing.
#[test]
fn a_key_of_a_rail_is_of_no_use_to_another_peer() {
    set("sv0;sv1", &[]);
    let options = with_rails(2);
    let [mut owner, mut peer, mut thief] = [open(&options), open(&options), open(&options)];
    let ((to_peer, at), memory) = (joined(&mut owner, &mut peer), filled(LEN, 3));
    let (_, of_thief) = joined(&mut owner, &mut thief);
    let lease = owner.lend(to_peer, memory, Way::Put).expect("memory that can be lent");
    let keys = owner.stripe(to_peer, lease.number, memory, (false, true), true);
    assert!(keys[0] != 0 && keys[1..] == [0; RAILS - 1], "{keys:x?}");
    assert_eq!(owner.stripe(to_peer, lease.number, memory, (false, true), true), keys, "one for a peer");
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
    let name = meet(link.addr());
    let mut node = Node::new(link, name);
    node.domain.set_lasting();
    let room = filled(LEN, 3);
    let reg = engine::Reg { iov: &[room], access: BOTH, key: Some(9) };
    node.domain.mr_reg(&reg).expect("a key that is free");
    loop {
        node.next();
    }
}

#[test]
fn a_peer_that_is_killed_ends_its_accesses() {
    set("sv0;sv1", &[("DELAY_US", "300")]);
    let counts = Default::default();
    let link = link_with(open(&with_rails(2)), &counts, |options| options.stripes = STRIPES);
    let pid = std::process::id().to_string();
    let (mut child, name) = Process::start("rails::ends::another_process", (KILLED, &pid), link.addr());
    let mut here = Node::new(link, name);
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
            child.0.kill().and_then(|()| child.0.wait()).expect("a process");
            is_killed = true;
        }
    }
    assert!(is_killed && counts.reads.load(Relaxed) > 40);
    while registered() > before {
        assert!(start.elapsed() < WAIT, "{} more registrations", registered() - before);
        here.next();
    }
}

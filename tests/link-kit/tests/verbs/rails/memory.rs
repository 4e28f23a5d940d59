//! Memory that the device of a rail does not register, and requests that it does not take.

use super::*;
use crate::device::moved;

/// Has a call of the stand-in fail once: the `nth` time from now on.
fn fail_once(call: &std::ffi::CStr, nth: u64, errno: i32) {
    stand_in().fail(call, nth, errno);
}

/// Bytes that went by the rail in one access, whose bytes are right.
fn by_rail(duo: &mut Duo<Verbs>, target: Span, (is_write, seed): (bool, usize)) -> u64 {
    let (to, before, local) = (duo.a.peer, moved(1, 1), filled(LEN, seed));
    let (here, remote) = ([local], [there(0, LEN, 9)]);
    let op = if is_write { write(to, &here, &remote, 1) } else { read(to, &here, &remote, 1) };
    assert_eq!(access(duo, &op).err, None);
    assert!(text(&[local]) == text(&[target]), "the bytes of a write ({is_write})");
    assert!(!is_write || text(&[target]) == pattern(LEN, seed));
    moved(1, 1) - before
}

/// The bytes of its part go by the first port, and no other access is concerned.
#[test]
fn an_access_whose_memory_a_rail_does_not_register_goes_by_the_first_port_and_the_next_by_the_rail_again() {
    let mut duo = duo("sv0;sv1", 2);
    let target = filled(LEN, 3);
    known(&mut duo, target, 9, BOTH);
    goes_in_parts(&mut duo, 9, target, 2);
    for (round, errno) in [libc::ENOMEM, libc::EFAULT, libc::EIO].into_iter().enumerate() {
        for is_write in [true, false] {
            let before = registered();
            // The first registration of an access is the first port's.
            fail_once(c"ibv_reg_mr", 2, errno);
            assert_eq!(by_rail(&mut duo, target, (is_write, round)), 0, "errno {errno}");
            let bytes = by_rail(&mut duo, target, (is_write, round + 7));
            assert!(bytes > 0 && bytes < LEN as u64, "{bytes} bytes by the rail after errno {errno}");
            // The call that was refused counts, too.
            assert_eq!(registered(), before + 1, "what is registered when they are over");
        }
    }
    duo.counts.take();
    goes_in_parts(&mut duo, 9, target, 2);
}

/// Short parts go by places, which are registered at the first such access.
#[test]
fn places_that_a_rail_does_not_register_are_tried_again_by_the_next_access() {
    let mut duo = duo("sv0;sv1", 2);
    let (to, target) = (duo.a.peer, filled(LEN, 3));
    known(&mut duo, target, 9, BOTH);
    writes_in_parts(&mut duo, 9, target, 2);
    let (len, mut by) = (STRIPES, Vec::new());
    for nth in [2, 0] {
        let (local, before) = (filled(len, 5 + by.len()), moved(1, 1));
        if nth > 0 {
            fail_once(c"ibv_reg_mr", nth, libc::ENOMEM);
        }
        assert_eq!(access(&mut duo, &write(to, &[local], &[there(0, len, 9)], 1)).err, None);
        assert!(text(&[target])[..len] == text(&[local]));
        by.push(moved(1, 1) - before);
    }
    assert_eq!(by, [0, len as u64 / 2], "bytes by the rail");
}

/// An access by a key of the rail, or by that of the first port where the rail does not do it.
fn part(by: &mut Verbs, at: Dest, (lease, key): (&below::Lease, u64), local: Span) -> u64 {
    let (before, op) = (moved(1, 1), 6);
    let (first, addr) = (lease.key, lease.base);
    let piece = below::Piece { way: Way::Put, at, key, first, addr, local, once: None };
    let outcome = match by.access(op, &piece) {
        Err(NotSent::ByFirst) => by.access(op, &below::Piece { key: first, ..piece }),
        outcome => outcome,
    };
    outcome.expect("room for one");
    assert_eq!(crate::lone::happens(by), Did::Over(op, true));
    moved(1, 1) - before
}

#[test]
fn a_refusal_of_a_rail_is_kept_with_call_and_errno_and_concerns_no_other_memory_and_no_other_peer() {
    set("sv0;sv1", &[]);
    let options = with_rails(2);
    let [mut one, mut left, mut right] = [open(&options), open(&options), open(&options)];
    let rooms = [Span::leak(LEN), Span::leak(LEN)];
    let mut peers = Vec::new();
    for (peer, room) in [&mut left, &mut right].into_iter().zip(rooms) {
        let (to_peer, to_one) = joined(&mut one, peer);
        let lease = peer.lend(to_one, room, Way::Put).expect("memory that can be lent");
        let keys = peer.stripe(to_one, lease.number, room, (false, true), true);
        assert!(keys[0] != 0, "{keys:x?}");
        say(peer, to_one, &mut one);
        peers.push((to_peer, lease, keys[0]));
    }
    let [local, other] = [filled(LEN, 1), filled(LEN, 2)];
    let text_of = |one: &Verbs| one.registered();
    assert!(!text_of(&one).contains("ibv_reg_mr"), "{}", text_of(&one));
    // That of the first port is next.
    fail_once(c"ibv_reg_mr", 1, libc::ENOMEM);
    let (at, lease, key) = &peers[0];
    assert_eq!(part(&mut one, *at, (lease, *key), local), 0);
    let said = text_of(&one);
    let rail = said.split("rail sv1 port 1: peers 2").nth(1).unwrap_or_else(|| panic!("{said}"));
    assert!(rail.contains("not address: ibv_reg_mr: Cannot allocate memory (os error 12)"), "{said}");
    assert!(!said.contains("left out"), "{said}");
    for ((at, lease, key), room) in peers.iter().zip(rooms) {
        for local in [local, other] {
            assert_eq!(part(&mut one, *at, (lease, *key), local), LEN as u64);
            assert!(text(&[room]) == text(&[local]));
        }
    }
    assert!(!text_of(&one).contains("ibv_reg_mr"), "what works again: {}", text_of(&one));
}

/// What peers have registered there counts, too, so that some find no room: all bytes are right.
fn accesses_where_a_rail_has_few_registrations(devices: &str, is_by_rail: bool) {
    do_what_copies_do(devices, &[], 2, 2);
    assert_eq!(moved(1, 1) > 0, is_by_rail, "{} bytes by the rail", moved(1, 1));
}

/// The one is that of the memory that peers access.
#[test]
fn accesses_do_what_copies_do_where_a_rail_has_no_registration_to_spare() {
    accesses_where_a_rail_has_few_registrations("sv0;sv1:mr=1", false);
}

#[test]
fn accesses_do_what_copies_do_where_a_rail_has_few_registrations() {
    accesses_where_a_rail_has_few_registrations("sv0;sv1:mr=2", true);
}

/// Those that find no room wait for one that has it, and none waits for ever.
#[test]
fn many_accesses_at_once_end_where_a_rail_has_few_registrations() {
    const N: usize = 30;
    let mut duo = duo("sv0;sv1:mr=3", 2);
    let (to, target) = (duo.a.peer, Span::leak(N * LEN));
    known(&mut duo, target, 9, BOTH);
    writes_in_parts(&mut duo, 9, target, 2);
    let before = moved(1, 1);
    for i in 0..N {
        let (local, remote) = ([filled(LEN, i)], [there((i * LEN) as u64, LEN, 9)]);
        duo.post(|a| a.domain.rma(a.ep, &write(to, &local, &remote, i)));
    }
    let (done, _) = duo.complete(N, 0);
    assert!(done.iter().all(|one| one.err.is_none()));
    for i in 0..N {
        assert!(text(&[target.part(i * LEN, LEN).expect("a part")]) == pattern(LEN, i), "access {i}");
    }
    assert!(moved(1, 1) > before, "none by the rail");
}

/// The first port has no room for all of them at once: what a rail has refused waits there, and is not
/// registered with the rail at each poll.
#[test]
fn a_part_that_a_rail_has_refused_is_tried_there_once() {
    const N: usize = 30;
    // The registration is that of the memory that peers access.
    let mut duo = duo("sv0:wr=8;sv1:mr=1", 2);
    let (to, target) = (duo.a.peer, Span::leak(N * LEN));
    known(&mut duo, target, 9, BOTH);
    writes_in_parts(&mut duo, 9, target, 2);
    let before = calls(c"ibv_reg_mr");
    for i in 0..N {
        let (local, remote) = ([filled(LEN, i)], [there((i * LEN) as u64, LEN, 9)]);
        duo.post(|a| a.domain.rma(a.ep, &write(to, &local, &remote, i)));
    }
    let (done, _) = duo.complete(N, 0);
    assert!(done.iter().all(|one| one.err.is_none()));
    // Each access has two parts of the first port, one of which the rail has refused.
    let tried = calls(c"ibv_reg_mr") - before;
    assert!(tried > N as u64 && tried <= 3 * N as u64, "{tried} registrations for {N} accesses");
}

/// That connection posts no more accesses to the rail, and the next one has it again.
#[test]
fn a_rail_that_takes_no_requests_is_left_out_as_long_as_the_connection_lasts() {
    let mut duo = duo("sv0;sv1", 2);
    let (to, target, local) = (duo.a.peer, filled(LEN, 3), filled(LEN, 7));
    known(&mut duo, target, 9, BOTH);
    goes_in_parts(&mut duo, 9, target, 2);
    let before = moved(1, 1);
    fail_once(c"ibv_post_send", 2, libc::EINVAL);
    assert_eq!(access(&mut duo, &write(to, &[local], &[there(0, LEN, 9)], 1)).err, None);
    assert!(text(&[target]) == text(&[local]));
    duo.counts.take();
    goes_in_parts(&mut duo, 9, target, 1);
    assert_eq!(moved(1, 1), before, "bytes by the rail");
    // The peer goes on to use it.
    duo.settle();
    std::mem::swap(&mut duo.a, &mut duo.b);
    let target = filled(LEN, 5);
    known(&mut duo, target, 8, BOTH);
    goes_in_parts(&mut duo, 8, target, 2);
    std::mem::swap(&mut duo.a, &mut duo.b);
    end_with(1, ibv::IBV_WC_REM_OP_ERR);
    let end = access(&mut duo, &write(to, &[local], &[there(0, LEN, 9)], 1)).err;
    assert_eq!(end, Some(Error::Reset));
    let target = filled(LEN, 6);
    known(&mut duo, target, 7, BOTH);
    goes_in_parts(&mut duo, 7, target, 2);
}

/// Memory that peers are to access is refused by a rail: they access that by the first port.
#[test]
fn memory_that_a_rail_does_not_register_for_peers_is_accessed_by_the_first_port_alone() {
    let mut duo = duo("sv0;sv1", 2);
    let targets = [filled(LEN, 3), filled(LEN, 4), filled(LEN, 5)];
    known(&mut duo, targets[0], 9, BOTH);
    goes_in_parts(&mut duo, 9, targets[0], 2);
    // The first registration is the first port's.
    fail_once(c"ibv_reg_mr", 2, libc::ENOMEM);
    known(&mut duo, targets[1], 8, BOTH);
    goes_in_parts(&mut duo, 8, targets[1], 1);
    known(&mut duo, targets[2], 7, BOTH);
    goes_in_parts(&mut duo, 7, targets[2], 2);
    goes_in_parts(&mut duo, 9, targets[0], 2);
}

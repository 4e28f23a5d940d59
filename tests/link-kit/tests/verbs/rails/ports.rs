//! Ports of one device, and ports that go down and come up again.

use std::thread::sleep;

use below::Piece;

use super::*;
use crate::device::moved;
use crate::lone::happens;

/// Long enough for events to be read, and shorter than a queue pair sends again.
const DOWN: Duration = Duration::from_millis(400);

#[test]
fn two_ports_of_a_device_are_a_port_and_its_rail() {
    let mut duo = duo("sv0:ports=2", 2);
    let target = filled(LEN, 3);
    known(&mut duo, target, 9, BOTH);
    writes_in_parts(&mut duo, 9, target, 2);
    let before = [moved(0, 1), moved(0, 2)];
    goes_in_parts(&mut duo, 9, target, 2);
    let each = [moved(0, 1) - before[0], moved(0, 2) - before[1]];
    assert!(each.iter().all(|bytes| *bytes > LEN as u64 / 2), "bytes by each port: {each:?}");
}

/// By LID.
#[test]
fn two_ports_of_an_infiniband_device_are_a_port_and_its_rail() {
    let mut duo = duo("sv0:ib,ports=2", 2);
    let target = filled(LEN, 3);
    known(&mut duo, target, 9, BOTH);
    goes_in_parts(&mut duo, 9, target, 2);
    assert!(moved(0, 2) > LEN as u64 / 2);
}

#[test]
fn two_ports_of_two_devices_are_used_all_four() {
    let mut duo = duo("sv0:ports=2;sv1:ports=2", 4);
    let target = filled(LEN, 3);
    known(&mut duo, target, 9, BOTH);
    goes_in_parts(&mut duo, 9, target, 4);
    let each = [(0, 1), (0, 2), (1, 1), (1, 2)].map(|(device, port)| moved(device, port));
    assert!(each.iter().all(|bytes| *bytes > LEN as u64 / 4), "bytes by each port: {each:?}");
}

#[test]
fn accesses_in_parts_by_two_ports_of_a_device_do_what_copies_do() {
    do_what_copies_do("sv0:ports=2", &[("DELAY_US", "200"), ("REORDER", "7")], 2, 2);
    assert!(moved(0, 2) > 0);
}

/// Events of a device are read by polls that find nothing.
fn read_events(duo: &mut Duo<Verbs>) {
    for _ in 0..4_000 {
        assert!(duo.a.next().is_none() && duo.b.next().is_none());
    }
}

/// A rail goes down between accesses, and comes up again.
fn goes_without_a_port_that_is_down(devices: &str, (device, number): (usize, u8)) {
    let mut duo = duo(devices, 2);
    let target = filled(LEN, 3);
    known(&mut duo, target, 9, BOTH);
    goes_in_parts(&mut duo, 9, target, 2);
    for round in 0..3 {
        port(device, number, false);
        read_events(&mut duo);
        let before = moved(device, number);
        goes_in_parts(&mut duo, 9, target, 1);
        // Its key is requested while the port is down.
        let (other, key) = (filled(LEN, 4), 20 + round);
        known(&mut duo, other, key, BOTH);
        goes_in_parts(&mut duo, key, other, 1);
        assert_eq!(moved(device, number), before, "bytes by a port that is down");
        port(device, number, true);
        read_events(&mut duo);
        goes_in_parts(&mut duo, 9, target, 2);
        goes_in_parts(&mut duo, key, other, 2);
        assert!(moved(device, number) > before);
    }
}

#[test]
fn accesses_go_without_a_port_that_is_down_and_by_it_again_once_it_is_up() {
    goes_without_a_port_that_is_down("sv0;sv1", (1, 1));
}

#[test]
fn accesses_go_without_the_second_port_of_a_device_that_is_down_and_by_it_again_once_it_is_up() {
    goes_without_a_port_that_is_down("sv0:ports=2", (0, 2));
}

/// The receiver reads at once, by each rail that it has a key of: its own port is up, and it knows of no other.
#[test]
fn a_long_message_goes_without_a_rail_whose_port_is_down_at_the_sender_alone() {
    set("sv0;sv1;sv2;sv3", &[]);
    let mut each = ["sv0,sv1", "sv2,sv3"].into_iter();
    let mut duo = Duo::linked(|counts| {
        let device = Some(each.next().expect("two").into());
        let fabric = open(&Options { device, ..with_rails(2) });
        link_with(fabric, counts, |options| options.stripes = STRIPES)
    });
    sends_in_parts(&mut duo, 2);
    for round in 0..3 {
        let made = calls(c"ibv_create_qp");
        port(1, 1, false);
        read_events(&mut duo);
        let before = moved(3, 1);
        for seed in 0..2 {
            duo.counts.take();
            duo.send(&[filled(LEN, seed)], &[Span::leak(LEN)]);
            let [_, bytes, reads, length] = duo.counts.take();
            assert_eq!((reads, length), (1, LEN as u64), "reads, and their bytes, in round {round}");
            assert!(bytes < 2_000, "{bytes} bytes in frames");
        }
        assert_eq!(moved(3, 1), before, "bytes by a port that is down at the other end");
        port(1, 1, true);
        read_events(&mut duo);
        duo.send(&[filled(LEN, 5)], &[Span::leak(LEN)]);
        assert_eq!(duo.counts.take()[2], 2, "reads in round {round}");
        assert_eq!(calls(c"ibv_create_qp"), made, "queue pairs of a connection that ended");
    }
}

/// A part that waited meanwhile is not posted to a port that is down, and none is requested by it.
#[test]
fn a_part_that_is_not_posted_when_a_port_goes_down_is_the_first_ports() {
    set("sv0;sv1", &[]);
    let (mut one, mut other) = (open(&with_rails(2)), open(&with_rails(2)));
    let (to_other, to_one) = joined(&mut one, &mut other);
    let room = Span::leak(LEN);
    let lends = |other: &mut Verbs, published| {
        let lease = other.lend(to_one, room, Way::Put).expect("memory that can be lent");
        let keys = other.stripe(to_one, lease.number, room, (false, true), published);
        (lease, keys)
    };
    let (lease, keys) = lends(&mut other, false);
    say(&mut other, to_one, &mut one);
    let (first, addr, local) = (lease.key, lease.base, filled(LEN, 7));
    let part = Piece { way: Way::Put, at: to_other, key: keys[0], first, addr, local, once: None };
    let read_both = |one: &mut Verbs, other: &mut Verbs, is_up: bool| {
        let start = Instant::now();
        while (one.rails(to_other) != NONE, other.rails(to_one) != NONE) != (is_up, is_up) {
            assert!(start.elapsed() < WAIT, "the event is not read");
            assert_eq!((one.poll(Poll::All), other.poll(Poll::All)), (None, None));
        }
    };
    port(1, 1, false);
    read_both(&mut one, &mut other, false);
    assert_eq!(one.access(6, &part), Err(NotSent::ByFirst));
    let (for_a_request, published) = (lends(&mut other, false).1, lends(&mut other, true).1);
    assert_eq!(for_a_request, [0; RAILS]);
    assert!(published[0] != 0, "{published:x?}");
    port(1, 1, true);
    read_both(&mut one, &mut other, true);
    assert_eq!(one.access(6, &part), Ok(()));
    assert_eq!(happens(&mut one), Did::Over(6, true));
    assert!(text(&[room]) == text(&[local]));
}

/// Any of the ports goes down while accesses are under way, for less than a queue pair sends again.
#[test]
fn a_port_that_goes_down_and_comes_up_in_the_middle_of_accesses_loses_none() {
    const N: usize = 6;
    let mut duo = duo("sv0:ports=2;sv1", 3);
    let (to, target) = (duo.a.peer, Span::leak(N * LEN));
    known(&mut duo, target, 9, BOTH);
    writes_in_parts(&mut duo, 9, target, 3);
    for (round, (device, number)) in [(0, 2), (1, 1), (0, 1), (0, 2)].into_iter().enumerate() {
        for i in 0..N {
            if i == N / 2 {
                port(device, number, false);
            }
            let (local, remote) = ([filled(LEN, round + i)], [there((i * LEN) as u64, LEN, 9)]);
            duo.post(|a| a.domain.rma(a.ep, &write(to, &local, &remote, i)));
        }
        let (mut over, start, mut is_down) = (0, Instant::now(), true);
        while over < N {
            assert!(start.elapsed() < WAIT, "{over} of {N} are over");
            if let Some(done) = duo.a.next() {
                assert_eq!(done.err, None, "port {number} of device {device}");
                over += 1;
            }
            duo.b.next();
            if is_down && start.elapsed() > DOWN {
                port(device, number, true);
                is_down = false;
            }
            sleep(Duration::from_micros(20));
        }
        // What was posted by a port that is down is not over before that is up.
        assert!(!is_down, "no access waited for port {number} of device {device}");
        for i in 0..N {
            let part = target.part(i * LEN, LEN).expect("a part");
            assert!(text(&[part]) == pattern(LEN, round + i), "access {i} of round {round}");
        }
        read_events(&mut duo);
        goes_in_parts(&mut duo, 9, target.part(0, LEN).expect("a part"), 3);
    }
}

/// A rail's port stays down for longer: the connection ends with what is under way, the next one goes without
/// the rail, also once the port is up, and the one after that by it.
#[test]
fn a_rail_whose_port_was_down_for_long_is_used_again_by_the_next_connection() {
    let mut duo = duo("sv0:ports=2", 2);
    let (to, target, local) = (duo.a.peer, filled(LEN, 3), [filled(LEN, 7)]);
    known(&mut duo, target, 9, BOTH);
    goes_in_parts(&mut duo, 9, target, 2);
    port(0, 2, false);
    // The event is not read yet.
    let end = access(&mut duo, &write(to, &local, &[there(0, LEN, 9)], 1)).err;
    assert_eq!(end, Some(Error::Reset));
    writes_in_parts(&mut duo, 9, target, 1);
    port(0, 2, true);
    read_events(&mut duo);
    goes_in_parts(&mut duo, 9, target, 1);
    end_with(1, ibv::IBV_WC_REM_OP_ERR);
    assert_eq!(access(&mut duo, &write(to, &local, &[there(0, LEN, 9)], 1)).err, Some(Error::Reset));
    writes_in_parts(&mut duo, 9, target, 2);
}

//! The engine over queue pairs: writes with remote CQ data, which are immediate data.

use std::thread::sleep;
use std::time::{Duration, Instant};

use engine::{Completion, Error, OpFlags, Rma, What};
use hmem::Span;
use link_kit::text;
use testkit::{from_any, msg, pattern, read, there, write};
use verbs::Verbs;

use crate::device::{open, set};
use crate::duo::{Duo, filled};
use crate::rma::{BOTH, LEN, WAIT, access, duo, known};

/// A write of all of this memory, with data.
fn with(op: Rma<'_>, data: u64) -> Rma<'_> {
    Rma { data: Some(data), ..op }
}

/// The next completion of the target, while the initiator does nothing.
fn reported(duo: &mut Duo<Verbs>) -> Completion {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < WAIT, "a write is never reported");
        if let Some(found) = duo.b.next() {
            return found;
        }
        sleep(Duration::from_micros(20));
    }
}

/// Writes with data are one request of the initiator, of any length.
fn is_one_request(device: &str) {
    let mut duo = duo(device);
    let (to, target) = (duo.a.peer, filled(LEN, 3));
    known(&mut duo, target, 9, BOTH);
    let mut want = pattern(LEN, 3);
    for (i, len) in [1, 8, 512, 513, 16 << 10, 90_000, LEN].into_iter().enumerate() {
        let (local, data) = ([filled(len, 40 + i)], [0, 7, u64::from(u32::MAX)][i % 3]);
        let remote = [there(0, len, 9)];
        duo.a.domain.rma(duo.a.ep, &with(write(to, &local, &remote, 1), data)).expect("room for one");
        want[..len].copy_from_slice(&pattern(len, 40 + i));
        let found = reported(&mut duo);
        let what = What::RMA | What::REMOTE_WRITE | What::REMOTE_CQ_DATA;
        assert_eq!((found.data, found.len, found.what, found.err), (data, len, what, None));
        assert!(text(&[target]) == want, "the bytes are there when it is reported");
        let (of_a, _) = duo.complete(1, 0);
        assert_eq!(of_a[0].err, None);
        // A message may report room.
        let [messages, bytes, accesses, all] = duo.counts.take();
        assert!(messages <= 1 && bytes < 64, "{messages} messages of {bytes} bytes");
        assert_eq!((accesses, all), (1, len as u64), "accesses, and their bytes");
    }
}

#[test]
fn a_write_with_data_is_one_request_and_is_reported_with_its_length() {
    is_one_request("sv0");
}

#[test]
fn a_write_with_data_is_one_request_on_a_small_device() {
    is_one_request("sv0:nosrq,inline=16,sge=1,reads=1");
}

/// Many more than there is room for, with messages between them: each takes room and gives it back, and the
/// reports are in the order of the posts. So many writes at least are the device's: frames make up for slots that
/// are lacking.
fn takes_turns(device: &str, least: usize) {
    const N: usize = 300;
    let mut duo = duo(device);
    let (to, target, local) = (duo.a.peer, Span::leak(LEN), filled(64, 7));
    known(&mut duo, target, 9, BOTH);
    let room = Span::leak(8);
    let (mut reports, mut done, start) = (Vec::new(), 0, Instant::now());
    for i in 0..N {
        let (here, remote, text) = ([local], [there(64 * i as u64, 64, 9)], [filled(8, i)]);
        if i % 3 == 0 {
            duo.b.domain.recv(duo.b.rx, &from_any(&[room], i)).expect("a receive");
        }
        loop {
            let posted = match i % 3 {
                0 => duo.a.domain.send(duo.a.ep, &msg(to, &text, i)),
                _ => duo.a.domain.rma(duo.a.ep, &with(write(to, &here, &remote, i), i as u64)),
            };
            if posted.is_ok() {
                break;
            }
            assert_eq!(posted, Err(Error::Again));
            assert!(start.elapsed() < WAIT, "no room");
            done += usize::from(duo.a.next().is_some());
            reports.extend(duo.b.next());
        }
    }
    while done < N || reports.len() < N {
        assert!(start.elapsed() < WAIT, "{done} and {} of {N}", reports.len());
        done += usize::from(duo.a.next().is_some());
        reports.extend(duo.b.next());
    }
    let order: Vec<u64> =
        reports.iter().map(|c| if c.what.contains(What::RMA) { c.data } else { c.ctx.0 as u64 }).collect();
    assert!(reports.iter().all(|c| c.err.is_none()));
    assert_eq!(order, (0..N as u64).collect::<Vec<_>>());
    let [_, _, accesses, _] = duo.counts.take();
    assert!(accesses as usize >= least, "{accesses} writes by the device");
    (0..N).filter(|i| i % 3 != 0).for_each(|i| {
        assert!(text(&[target])[64 * i..64 * i + 64] == pattern(64, 7), "write {i}");
    });
}

#[test]
fn writes_with_data_and_messages_are_reported_in_order_and_find_room_again() {
    takes_turns("sv0", 200);
}

#[test]
fn writes_with_data_find_room_without_a_shared_receive_queue() {
    takes_turns("sv0:nosrq", 200);
}

#[test]
fn writes_with_data_find_room_in_short_queues() {
    takes_turns("sv0:cqe=64,srqwr=16,wr=8", 20);
}

/// The buffer is the program's when the call returns, and nothing reports the end here.
#[test]
fn what_is_injected_with_data_is_copied_and_only_the_target_reports_it() {
    let mut duo = duo("sv0");
    let (to, target) = (duo.a.peer, Span::leak(LEN));
    known(&mut duo, target, 9, BOTH);
    for (i, len) in [8, 600, 10 << 10].into_iter().enumerate() {
        let (local, remote) = ([filled(len, i)], [there(0, len, 9)]);
        let op = Rma { flags: OpFlags::INJECT, ..with(write(to, &local, &remote, 1), 5) };
        duo.post(|a| a.domain.rma(a.ep, &op));
        hmem::write(&local, 0, &vec![0xee; len]);
        assert_eq!(reported(&mut duo).data, 5);
        assert!(text(&[target])[..len] == pattern(len, i), "{len} bytes");
        duo.settle();
        assert_eq!(duo.counts.take()[2], 1, "accesses for {len} bytes");
    }
    // More than is copied goes in frames.
    let (local, remote) = ([filled(16 << 10, 9)], [there(0, 16 << 10, 9)]);
    let op = Rma { flags: OpFlags::INJECT, ..with(write(to, &local, &remote, 1), 6) };
    duo.post(|a| a.domain.rma(a.ep, &op));
    hmem::write(&local, 0, &vec![0xee; 16 << 10]);
    let (_, of_b) = duo.complete(0, 1);
    assert_eq!((of_b[0].data, duo.counts.take()[2]), (6, 0));
    assert!(text(&[target])[..16 << 10] == pattern(16 << 10, 9));
}

/// Immediate data has 32 bits; a registration that the target counts, a fence and no bytes go by frames as well.
#[test]
fn data_that_cannot_be_immediate_goes_by_frames() {
    let mut duo = duo("sv0");
    let (to, target, local) = (duo.a.peer, Span::leak(LEN), filled(8, 7));
    let mr = known(&mut duo, target, 9, BOTH);
    let (here, remote) = ([local], [there(0, 8, 9)]);
    let fence = OpFlags::COMPLETION | OpFlags::FENCE;
    let plain = with(write(to, &here, &remote, 1), 1);
    let none = [there(0, 0, 9)];
    // A read reports nothing, and is no write.
    let back = [Span::leak(8)];
    let found = access(&mut duo, &with(read(to, &back, &remote, 1), 1));
    assert_eq!((found.err, duo.counts.take()[2], text(&[target])[..8].to_vec()), (None, 0, vec![0; 8]));
    for (op, data) in [
        (with(plain, 1 << 32), 1 << 32),
        (Rma { flags: fence, ..plain }, 1),
        (with(write(to, &[], &none, 1), 2), 2),
    ] {
        duo.post(|a| a.domain.rma(a.ep, &op));
        let (of_a, of_b) = duo.complete(1, 1);
        assert_eq!((of_a[0].err, of_b[0].data, duo.counts.take()[2]), (None, data, 0), "data, and accesses");
    }
    let cntr = duo.b.domain.cntr_open();
    duo.b.domain.mr_bind_cntr(mr, None, Some(cntr));
    duo.settle();
    duo.counts.take();
    duo.post(|a| a.domain.rma(a.ep, &plain));
    let (_, of_b) = duo.complete(1, 1);
    assert_eq!((of_b[0].data, duo.counts.take()[2]), (1, 0));
    assert_eq!(duo.b.domain.cntr_read(cntr), 1);
}

/// One whose registration the target has taken away fails with its connection, and is not repeated: the target
/// reports nothing, also once the two have met again.
#[test]
fn a_write_with_data_that_the_device_refuses_fails_and_is_not_repeated() {
    let mut duo = duo("sv0");
    let (to, target, local) = (duo.a.peer, filled(LEN, 1), filled(64, 2));
    let mr = known(&mut duo, target, 9, BOTH);
    let other = filled(64, 5);
    // The first one does nothing meanwhile, and is not waited for.
    duo.b.domain.mr_close(mr).expect("memory that is taken back");
    let (here, remote) = ([local], [there(0, 64, 9)]);
    let op = with(write(to, &here, &remote, 1), 5);
    assert_eq!(access(&mut duo, &op).err, Some(Error::Reset));
    known(&mut duo, other, 9, BOTH);
    for _ in 0..50 {
        assert!(duo.a.next().is_none() && duo.b.next().is_none(), "a report");
    }
    assert!(text(&[target]) == pattern(LEN, 1) && text(&[other]) == pattern(64, 5));
}

/// As [`crate::rma`] has it of plain writes: what was posted before is done first.
#[test]
fn a_fence_waits_for_writes_with_data() {
    set("sv0", &[("DELAY_US", "20000")]);
    let mut duo: Duo<Verbs> = Duo::new(open);
    let (to, target, local) = (duo.a.peer, Span::leak(LEN), filled(LEN, 7));
    known(&mut duo, target, 9, BOTH);
    let (here, remote) = ([local], [there(0, LEN, 9)]);
    duo.a.domain.rma(duo.a.ep, &with(write(to, &here, &remote, 1), 1)).expect("room for one");
    let fenced = Rma { flags: OpFlags::COMPLETION | OpFlags::FENCE, ..write(to, &here, &remote, 2) };
    assert_eq!(duo.a.domain.rma(duo.a.ep, &fenced), Err(Error::Again));
    let (_, of_b) = duo.complete(1, 1);
    assert_eq!(of_b[0].data, 1);
    assert_eq!(access(&mut duo, &fenced).err, None);
}

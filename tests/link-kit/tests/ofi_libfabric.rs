//! The link over a provider of libfabric's, put to the checks: STRAIT_TEST_BELOW names the provider, and
//! STRAIT_TEST_LIBFABRIC the library. ci/suite/ofi has both.
#![cfg(not(loom))]

#[path = "support/accessed.rs"]
mod accessed;
#[path = "support/counted.rs"]
mod counted;
#[path = "support/duo.rs"]
#[allow(dead_code, reason = "checks of memory of devices")]
mod duo;
#[path = "support/killed.rs"]
mod killed;
#[path = "support/left.rs"]
mod left;
#[path = "support/library.rs"]
mod library;
#[path = "support/pages.rs"]
mod memory;
#[path = "support/node.rs"]
mod node;
#[path = "support/sockets.rs"]
#[allow(dead_code)]
mod sockets;
#[path = "support/ofi.rs"]
mod support;

use link_api::RmaCaps;
use ofi::{Beyond, Fabric};
use support::OfiHarness;

fn below() -> String {
    std::env::var("STRAIT_TEST_BELOW").unwrap_or_else(|_| "tcp;ofi_rxm".into())
}

fn fabric() -> Fabric {
    let name = below();
    let beyond = Beyond { devices: true, writes: true };
    let found = ofi::open(&library::core(), &[&name], "127.0.0.1".parse().expect("an address"), beyond);
    found.unwrap_or_else(|why| panic!("{name} cannot be opened: {why:?}")).0
}

fn provider() -> OfiHarness<Fabric> {
    let mut harness = OfiHarness::new(|| Ok(fabric()));
    // So that nothing goes another way.
    harness.fallback = false;
    // Over datagrams there are none, nor where a provider cannot end them.
    let fabric = fabric();
    let about = below::Below::about(&fabric);
    harness.caps.set(RmaCaps::HOST_GETS, about.reads.is_some());
    harness.caps.set(RmaCaps::HOST_PUTS, about.writes);
    harness
}

link_kit::conform! { provider(); frames polls peers ends returns host hostile sleep threads frames_only }

/// Counted by what is asked of the provider: one `fi_read`.
#[test]
fn a_long_message_is_one_read() {
    for len in [100_000, 4 << 20] {
        let duo = duo::Duo::new(fabric);
        duo::a_long_message_is_one_read(duo, len);
    }
}

#[test]
fn a_message_that_is_longer_than_its_receive_is_cut_to_that() {
    duo::a_long_message_is_cut_to_its_receive(duo::Duo::new(fabric));
}

#[test]
fn more_messages_than_may_be_read_at_once_are_all_read() {
    duo::many_long_messages_at_once(duo::Duo::new(fabric));
}

/// The sockets of the provider below have room for a part of them. Up to 9000 bytes `tcp` may hold although
/// it has told of their end.
#[test]
fn frames_that_are_not_kept_any_more_arrive_without_another_call() {
    for len in [60_000, 20_000, 10_000] {
        let counts = std::sync::Arc::default();
        let (mut a, mut b) = (duo::link_over(fabric(), &counts), duo::link_over(fabric(), &counts));
        let to_b = left::connect(&mut a, &mut b);
        assert!(sockets::narrow([127, 0, 0, 1], 40_000) > 0);
        for _ in 0..3 {
            left::what_is_not_kept_arrives(&mut a, &mut b, to_b, |_| len);
        }
    }
}

/// Memory that is read by the provider below, where it has reads.
mod reads {
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::thread::{scope, sleep};
    use std::time::{Duration, Instant};

    use below::{Below as _, Remote as _};
    use hmem::Span;
    use link_api::{
        Direct, Event, FrameLink, Grant, HandleNote, Link, Parting, RmaCaps, RmaLink as _, SleepLink, WaitFd,
        Way,
    };
    use link_kit::{Harness as _, name};
    use wire::Seg;

    use super::duo::link_over;
    use super::{fabric, provider};

    /// The provider below checks key and bounds, whatever the reader was told.
    #[test]
    fn a_handle_that_was_forged_reads_nothing() {
        let mut h = provider();
        let (mut a, mut b) = (h.open(), h.open());
        let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
        let start = Instant::now();
        while a.send(to_b, b"hello", &[], 0, 0).is_err() || !a.path(to_b).rma.contains(RmaCaps::HOST_GETS) {
            assert!(start.elapsed() < Duration::from_secs(120), "no way to the peer");
            a.poll();
        }
        let (all, room) = (Span::leak(8_000), Span::leak(8_000));
        hmem::write(&[all], 0, &[7; 8_000]);
        let there = all.part(0, 4_000).expect("a part");
        let remote = |span: Span| [Seg { addr: span.addr().into(), len: (span.len() as u64).into() }];
        for how in 0..4 {
            // Another read may have ended what was lent before.
            let found = loop {
                assert!(start.elapsed() < Duration::from_secs(120), "nothing can be read any more");
                h.pass();
                let Some(handles) = b.export_handles(to_a, &[there], Way::Get) else { continue };
                let Some(&(mut handle)) = handles.first() else { continue };
                match how {
                    0 => handle.token[0] ^= 1,
                    1 => handle.len = 8_000.into(),
                    2 => handle.token[15] ^= 0x40,
                    _ => {}
                }
                a.note_handle(to_b, HandleNote::Imported(&handle));
                let (part, len) = if how == 1 { (all, 8_000) } else { (there, 4_000) };
                let (remote, local) = (remote(part), [room.part(0, len).expect("a part")]);
                let access = Direct::new(Grant::Request(name(1, 1)), &remote, &local, len);
                let Ok(op) = a.start(Way::Get, to_b, &access) else { continue };
                let found = loop {
                    assert!(start.elapsed() < Duration::from_secs(120), "a read is never over");
                    match a.poll() {
                        Some(Event::Done(which, ok)) if which == op => break ok,
                        _ => h.pass(),
                    }
                };
                if how < 3 || found {
                    break found;
                }
            };
            assert_eq!(found, how == 3, "forged in way {how}");
            let mut bytes = [0; 8_000];
            hmem::read(&[room], 0, &mut bytes);
            assert_eq!(bytes.contains(&7), how == 3, "forged in way {how}");
        }
    }

    /// The provider below checks what a registration is for.
    #[test]
    fn memory_is_accessed_in_the_way_that_it_is_lent_for() {
        let mut h = provider();
        if h.caps.contains(RmaCaps::HOST_PUTS) {
            super::support::memory_is_accessed_in_the_way_that_it_is_lent_for(&mut h);
        }
    }

    /// A peer that is disconnected, and does not know it yet, reads nothing of what the memory holds from
    /// then on.
    #[test]
    fn memory_of_a_peer_that_is_cut_off_in_its_read_is_not_read_any_more() {
        const LEN: usize = 64 << 20;
        let start = Instant::now();
        let byte = |span: Span, at| {
            let mut found = [0];
            hmem::read(&[span], at, &mut found);
            found[0]
        };
        // All of it may have come before the peer was cut off.
        for _ in 0..50 {
            let mut h = provider();
            let (mut a, mut b) = (h.open(), h.open());
            let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
            while a.send(to_b, b"hello", &[], 0, 0).is_err() || !a.path(to_b).rma.contains(RmaCaps::HOST_GETS)
            {
                assert!(start.elapsed() < Duration::from_secs(120), "no way to the peer");
                a.poll();
            }
            let (there, room) = (Span::leak(LEN), Span::leak(LEN));
            hmem::write(&[there], 0, &vec![1; LEN]);
            // The owner may not know yet that the fabric leads to the reader.
            let handles = loop {
                assert!(start.elapsed() < Duration::from_secs(120), "nothing can be lent");
                h.pass();
                if let Some(handles) = b.export_handles(to_a, &[there], Way::Get) {
                    break handles;
                }
            };
            handles.iter().for_each(|handle| a.note_handle(to_b, HandleNote::Imported(handle)));
            let remote = [Seg { addr: there.addr().into(), len: (LEN as u64).into() }];
            let access = Direct::new(Grant::Request(name(1, 1)), &remote, std::slice::from_ref(&room), LEN);
            a.start(Way::Get, to_b, &access).expect("memory that it was told of");
            while byte(room, LEN / 8) == 0 {
                assert!(start.elapsed() < Duration::from_secs(120), "nothing is read");
                h.pass();
            }
            b.dismiss(to_a, Parting::CutOff);
            hmem::write(&[there], 0, &vec![0xa5; LEN]);
            let in_time = byte(room, LEN - 1) == 0;
            (0..50).for_each(|_| h.pass_long());
            let mut found = vec![0; LEN];
            hmem::read(&[room], 0, &mut found);
            assert!(!found.contains(&0xa5), "memory is read after it was given back");
            if in_time {
                return;
            }
        }
        panic!("no peer was cut off in time");
    }

    /// Takes what came to a link that has nothing to say; the end of an operation, if there is one.
    fn next<L: FrameLink>(link: &mut L) -> Option<Event> {
        match link.poll()? {
            Event::Frame(frame) => link.release(frame),
            event @ Event::Done(..) => return Some(event),
            _ => {}
        }
        None
    }

    /// More than sockets keep, so that an owner has to be woken where its provider needs calls.
    #[test]
    fn memory_is_read_while_its_owner_sleeps() {
        const LEN: usize = 64 << 20;
        const WAIT: Duration = Duration::from_secs(120);
        let (start, counts) = (Instant::now(), Arc::default());
        let (mut reader, mut owner) = (link_over(fabric(), &counts), link_over(fabric(), &counts));
        let (to, from) = (reader.peer(&owner.addr()), owner.peer(&reader.addr()));
        let (there, room) = (Span::leak(LEN), Span::leak(LEN));
        hmem::write(&[there], 0, &vec![7; LEN]);
        let handles = loop {
            assert!(start.elapsed() < WAIT, "no way to the peer");
            let is_sent = reader.send(to, b"hello", &[], 0, 0).is_ok();
            assert!(next(&mut reader).is_none() && next(&mut owner).is_none());
            match owner.export_handles(from, &[there], Way::Get) {
                Some(handles) if is_sent => break handles,
                _ => {}
            }
        };
        handles.iter().for_each(|handle| reader.note_handle(to, HandleNote::Imported(handle)));
        let remote = [Seg { addr: there.addr().into(), len: (LEN as u64).into() }];
        let is_over = AtomicBool::new(false);
        scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let fd = owner.wait_fd(WaitFd::All).expect("a descriptor");
                    let mut one = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
                    let sleeps = owner.arm();
                    // SAFETY: one valid pollfd.
                    while sleeps && !is_over.load(Relaxed) && unsafe { libc::poll(&mut one, 1, 100) } == 0 {
                        assert!(start.elapsed() < WAIT, "nothing wakes the owner");
                    }
                    while next(&mut owner).is_some() {}
                }
            });
            let access = Direct::new(Grant::Request(name(1, 1)), &remote, std::slice::from_ref(&room), LEN);
            let op = reader.start(Way::Get, to, &access).expect("memory that it was told of");
            let found = loop {
                if let Some(Event::Done(found, ok)) = next(&mut reader) {
                    break Some((found, ok));
                }
                if start.elapsed() > WAIT {
                    break None;
                }
                sleep(Duration::from_micros(20));
            };
            is_over.store(true, Relaxed);
            assert_eq!(found, Some((op, true)));
        });
        let mut last = [0; 2];
        hmem::read(&[room], LEN - 2, &mut last);
        assert_eq!(last, [7, 7]);
    }

    /// The endpoint, its domain, queue and fabric.
    #[test]
    fn what_memory_is_lent_by_is_closed_whole() {
        // In a process in which nothing else opens descriptors.
        let child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "--nocapture", "reads::another_process_that_lends_and_ends_it"])
            .status();
        assert!(child.expect("another process").success());
    }

    #[test]
    #[ignore = "it is the other process of the test before"]
    fn another_process_that_lends_and_ends_it() {
        const TIMES: usize = 30;
        let open = || std::fs::read_dir("/proc/self/fd").expect("/proc").count();
        let (mut fabric, memory) = (fabric(), Span::leak(1 << 20));
        let mut before = 0;
        for i in 0..2 + TIMES {
            if i == 2 {
                before = open();
            }
            let lease = fabric.lend(below::Dest(0), memory, Way::Get).expect("memory that can be lent");
            assert!(*lease.lender != *fabric.about().address && !lease.lender.is_empty());
            while !fabric.stop(below::Stop::Leases) {
                let _ = fabric.poll(below::Poll::All);
            }
        }
        let after = open();
        assert!(
            after < before + TIMES,
            "{before} descriptors were open, and {after} are, after {TIMES} ends"
        );
    }

    link_kit::conform! { provider(); handles flights sleep_in_flight }
}

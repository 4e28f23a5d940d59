//! Memory of devices that peers access as dma-bufs: by a second queue pair, which is alone in its domain.

use std::ffi::CStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use below::{Below as _, Dest, Remote as _};
use link::{TcpLink, TcpOptions};
use link_api::{Event, FrameLink as _, Gone, Link as _};
use wire::session::{Control, JobKey};

use super::*;
use crate::duo::filled as host;
use crate::duo::link_with;

/// How many there are of what is made and ended by these calls.
fn left(made: &CStr, ended: &CStr) -> u64 {
    ibv(made) - ibv(ended)
}

pub fn pairs() -> u64 {
    left(c"ibv_create_qp", c"ibv_destroy_qp")
}

pub fn domains() -> u64 {
    left(c"ibv_alloc_pd", c"ibv_dealloc_pd")
}

/// Registrations, by either way.
pub fn registrations() -> u64 {
    ibv(c"ibv_reg_mr") + ibv(c"ibv_reg_dmabuf_mr") - ibv(c"ibv_dereg_mr")
}

pub fn fail(call: &CStr, nth: u64, errno: i32) {
    Program::open(program::path("verbs_stand_in")).fail(call, nth, errno);
}

/// Makes the second queue pairs of two that are connected, which one of them needs; whether there are some.
pub fn join_second((one, to_other): (&mut Verbs, Dest), (other, to_one): (&mut Verbs, Dest)) -> bool {
    let Some(address) = one.second(to_other) else { return false };
    assert_eq!(one.second(to_other), None, "what was announced");
    let answer = other.join_second(to_one, &address).expect("an honest one").expect("an answer");
    assert_eq!(one.join_second(to_other, &answer), Ok(None));
    !answer.is_empty()
}

/// Two endpoints of a device of the stand-in, and the driver.
fn devices(device: &str) -> (Driver, Duo<Verbs>) {
    set(device, &[]);
    (driver(2), Duo::new(open))
}

/// Has the other one send next.
pub fn turn(duo: &mut Duo<Verbs>) {
    std::mem::swap(&mut duo.a, &mut duo.b);
}

/// A message in frames, by which the second queue pair is made, which those behind it go by before long.
fn prepare(duo: &mut Duo<Verbs>, driver: &Driver) {
    let (before, made) = (pairs(), domains());
    let (accesses, bytes) = duo.counted_send(filled(driver, LEN, 1), Span::leak(LEN));
    assert!(accesses == 0 && bytes > LEN as u64, "{accesses} accesses, {bytes} bytes in frames");
    duo.send_until_accesses(|| filled(driver, LEN, 1));
    assert_eq!((pairs() - before, domains() - made), (2, 2), "queue pairs and domains of both ends");
}

/// The message arrives by one access, and no frame has a byte of it.
pub fn is_one_access(duo: &mut Duo<Verbs>, src: Span, dst: Span) {
    let (accesses, bytes) = duo.counted_send(src, dst);
    assert!(accesses == 1 && bytes < 2_000, "{accesses} accesses, {bytes} bytes in frames");
}

#[test]
fn a_message_between_devices_is_one_access_and_no_frame_has_any_of_it() {
    let (driver, mut duo) = devices("sv0");
    prepare(&mut duo, &driver);
    let windows = ibv(c"ibv_alloc_mw");
    for seed in 0..3 {
        is_one_access(&mut duo, filled(&driver, LEN, seed), filled(&driver, LEN, 50));
        is_one_access(&mut duo, filled(&driver, LEN, seed), Span::leak(LEN));
    }
    assert_eq!(ibv(c"ibv_alloc_mw"), windows, "windows");
    // The other way the second queue pair is there, too; memory of the host goes by the first.
    turn(&mut duo);
    is_one_access(&mut duo, filled(&driver, LEN, 7), filled(&driver, LEN, 50));
    is_one_access(&mut duo, host(LEN, 7), filled(&driver, LEN, 50));
    assert_eq!(ibv(c"ibv_alloc_mw"), windows + 1, "the one of the host's memory");
    let text = duo.a.domain.ep_describe(duo.a.ep, duo.a.peer).expect("a path");
    assert!(text.contains("Cuda for peers by dma-buf over PCIe"), "{text}");
    assert!(!text.contains("(not "), "{text}");
}

#[test]
fn both_ends_may_need_the_second_queue_pair_at_once() {
    let (driver, mut duo) = devices("sv0");
    let (before, made) = (pairs(), domains());
    let of = |seed| (filled(&driver, LEN, seed), filled(&driver, LEN, 50));
    let ((src, dst), (back, home)) = (of(1), of(2));
    duo.a.domain.recv(duo.a.rx, &testkit::from_any(&[home], 3)).expect("a receive");
    duo.b.domain.recv(duo.b.rx, &testkit::from_any(&[dst], 3)).expect("a receive");
    let (to_b, to_a) = (duo.a.peer, duo.b.peer);
    duo.post(|a| a.domain.send(a.ep, &testkit::msg(to_b, &[src], 1)));
    turn(&mut duo);
    duo.post(|b| b.domain.send(b.ep, &testkit::msg(to_a, &[back], 1)));
    duo.complete(2, 2);
    assert!(text(&[dst]) == pattern(LEN, 1) && text(&[home]) == pattern(LEN, 2));
    let start = Instant::now();
    while (pairs() - before, domains() - made) != (2, 2) {
        assert!(start.elapsed() < Duration::from_secs(30), "no second queue pair");
        duo.settle();
    }
    duo.settle();
    assert_eq!((pairs() - before, domains() - made), (2, 2), "queue pairs and domains of both ends");
    for _ in 0..2 {
        is_one_access(&mut duo, filled(&driver, LEN, 7), filled(&driver, LEN, 50));
        turn(&mut duo);
    }
}

/// A peer of `owner` that has a second queue pair with it: itself, and how each knows the other.
fn peer_of(owner: &mut Verbs, src: Span) -> (Verbs, Dest, Dest) {
    let mut peer = open();
    let (to_peer, at) = join(owner, &mut peer);
    assert!(owner.lend(to_peer, src, Way::Get).is_none(), "a key for all peers");
    assert!(join_second((owner, to_peer), (&mut peer, at)));
    (peer, to_peer, at)
}

/// A third one, that has a second queue pair with the owner, too, and has learnt the key: whichever way, by whichever
/// queue pair, it reads and writes nothing. Nor does the peer itself by the first one.
#[test]
fn a_key_of_a_dmabuf_that_one_peer_was_given_is_of_no_use_to_another() {
    set("sv0", &[]);
    let driver = driver(2);
    let src = filled(&driver, LEN, 3);
    for way in [Way::Get, Way::Put] {
        hmem::write(&[src], 0, &pattern(LEN, 3));
        let mut owner = open();
        let (mut peer, to_peer, to_owner) = peer_of(&mut owner, src);
        let lease = owner.lend(to_peer, src, way).expect("a key of its own");
        say(&mut owner, to_peer, &mut peer);
        for hostile in [Way::Get, Way::Put] {
            for key in [lease.key, lease.key & u64::from(u32::MAX)] {
                let (mut thief, _, at) = peer_of(&mut owner, src);
                let loot = host(LEN, 9);
                assert!(!accesses(&mut thief, (hostile, at, key, lease.base), loot), "{hostile:?} {key:#x}");
                assert!(text(&[loot]) == pattern(LEN, 9), "{hostile:?} {key:#x}");
            }
        }
        assert!(text(&[src]) == pattern(LEN, 3));
        // The peer that has it goes on, and the thieves' ends are not its own.
        let local = host(LEN, 4);
        assert!(accesses(&mut peer, (way, to_owner, lease.key, lease.base), local));
        let same = if way == Way::Get { 3 } else { 4 };
        assert!(text(&[src]) == pattern(LEN, same) && text(&[local]) == pattern(LEN, same));
        let key = lease.key & u64::from(u32::MAX);
        assert!(!accesses(&mut peer, (way, to_owner, key, lease.base), host(LEN, 5)), "by the first one");
        assert!(text(&[src]) == pattern(LEN, same));
        assert!(owner.end_lease(lease.number, true));
    }
    assert_eq!((pairs(), domains(), registrations()), (0, 0, 0), "what is left");
}

/// It is lent for one way; what is past its end, or was ended, is not there.
#[test]
fn a_key_of_a_dmabuf_serves_its_bytes_its_way_and_its_time() {
    set("sv0", &[]);
    let driver = driver(2);
    let whole = filled(&driver, LEN, 3);
    let src = whole.part(5_000, 100_000).expect("a part");
    type Case = (&'static str, Way, i64, bool);
    let cases: [Case; 4] = [
        ("the other way", Way::Put, 0, false),
        ("a byte beyond the end", Way::Get, 1, false),
        ("a byte before the first", Way::Get, -1, false),
        ("what has ended", Way::Get, 0, true),
    ];
    for (what, way, off, ends) in cases {
        let mut owner = open();
        let (mut peer, to_peer, at) = peer_of(&mut owner, src);
        let lease = owner.lend(to_peer, src, Way::Get).expect("a key of its own");
        say(&mut owner, to_peer, &mut peer);
        let local = host(src.len(), 9);
        assert!(accesses(&mut peer, (Way::Get, at, lease.key, lease.base), local));
        assert!(text(&[local]) == text(&[src]));
        if ends {
            let before = ibv(c"ibv_dereg_mr");
            assert!(owner.end_lease(lease.number, true));
            assert_eq!(ibv(c"ibv_dereg_mr") - before, 1, "ended when the call has returned");
        }
        let local = host(src.len(), 9);
        let addr = lease.base.wrapping_add_signed(off);
        assert!(!accesses(&mut peer, (way, at, lease.key, addr), local), "{what}");
        assert!(text(&[local]) == pattern(src.len(), 9) && text(&[whole]) == pattern(LEN, 3), "{what}");
        assert!(ends || owner.end_lease(lease.number, true));
        // Both queue pairs have ended, at either end.
        assert!(matches!(happens(&mut owner), Did::Failed(..)), "{what}");
        assert!(owner.lend(to_peer, src, Way::Get).is_none(), "{what}");
        assert!(
            peer.access(6, &Piece { way, at, key: 0, first: 0, addr, local, once: None }).is_err(),
            "{what}"
        );
    }
    assert_eq!((pairs(), domains(), registrations()), (0, 0, 0), "what is left");
}

#[test]
fn each_peer_has_a_registration_of_its_own_of_a_dmabuf_that_is_published() {
    set("sv0", &[]);
    let driver = driver(2);
    let src = filled(&driver, LEN, 3);
    let mut owner = open();
    let lease = owner.publish(src, true, true).expect("memory that is registered");
    let mut peers = [0, 1].map(|_| {
        let (mut peer, to_peer, at) = peer_of(&mut owner, src);
        let before = ibv(c"ibv_reg_dmabuf_mr");
        let key = owner.admit(to_peer, &lease, true, true).expect("a key");
        assert_eq!(owner.admit(to_peer, &lease, true, true), Some(key), "one for a peer");
        assert_eq!(ibv(c"ibv_reg_dmabuf_mr") - before, 1, "registrations");
        say(&mut owner, to_peer, &mut peer);
        (peer, at, key, to_peer)
    });
    for (i, (peer, at, key, _)) in peers.iter_mut().enumerate() {
        assert!(accesses(peer, (Way::Put, *at, *key, lease.base), host(LEN, i)));
        assert!(text(&[src]) == pattern(LEN, i));
    }
    let [(_, _, theirs, to_first), (peer, at, own, _)] = &mut peers;
    assert!(theirs != own);
    assert!(!accesses(peer, (Way::Put, *at, *theirs, lease.base), host(LEN, 7)), "another one's key");
    assert!(text(&[src]) == pattern(LEN, 1));
    // A peer that is gone has no registration any more, and the other ones have theirs.
    let before = registrations();
    owner.part(*to_first);
    assert_eq!(before - registrations(), 1, "the one of the peer that is gone");
    assert!(owner.end_lease(lease.number, true));
    drop((owner, peers));
    assert_eq!((pairs(), domains(), registrations()), (0, 0, 0), "what is left");
}

#[test]
fn a_dmabuf_that_its_exporter_takes_back_is_not_read_by_peers() {
    set("sv0", &[]);
    let driver = driver(2);
    let src = filled(&driver, LEN, 3);
    let mut owner = open();
    let (mut peer, to_peer, at) = peer_of(&mut owner, src);
    let lease = owner.lend(to_peer, src, Way::Get).expect("a key of its own");
    say(&mut owner, to_peer, &mut peer);
    let symbol = Program::open(program::path("verbs_stand_in")).symbol("stand_in_verbs_revoke");
    // SAFETY: that function's type.
    let revoke: extern "C" fn(i32) -> i32 = unsafe { std::mem::transmute(symbol) };
    assert_eq!(revoke(-1), 1);
    let local = host(LEN, 9);
    assert!(!accesses(&mut peer, (Way::Get, at, lease.key, lease.base), local));
    assert!(text(&[local]) == pattern(LEN, 9), "bytes that were taken back");
    assert!(owner.end_lease(lease.number, true));
    assert!(matches!(happens(&mut owner), Did::Failed(..)), "the end of the peer");
    assert!(owner.lend(to_peer, src, Way::Get).is_none());
}

#[test]
fn memory_that_is_freed_and_used_again_is_never_stale_for_peers_by_dmabuf() {
    const SHORT: usize = 70_000;
    let (driver, mut duo) = devices("sv0");
    prepare(&mut duo, &driver);
    let (mut before, mut again, mut last) = (0, 0, 0);
    for seed in 0..1000 {
        if seed == 100 {
            // The shared receive queue has grown by now.
            before = registrations();
        }
        let at = driver.alloc(SHORT);
        again += u32::from(std::mem::replace(&mut last, at) == at);
        let (device, back) = (span(at, SHORT), Span::leak(SHORT));
        hmem::write(&[device], 0, &pattern(SHORT, seed));
        is_one_access(&mut duo, device, back);
        driver.free(at);
    }
    assert!(again > 500, "only {again} times the same address");
    assert_eq!(registrations(), before, "what is left");
}

/// Neither end, or one of them alone, can have what it takes, whose call is refused once: messages arrive in frames,
/// and the path says why.
fn is_refused(call: &CStr, nth: u64, said: &str) {
    let (driver, mut duo) = devices("sv0");
    let before = (pairs(), domains());
    fail(call, nth, libc::ENOMEM);
    for seed in 0..12 {
        let (accesses, bytes) = duo.counted_send(filled(&driver, LEN, seed), filled(&driver, LEN, 50));
        assert!(accesses == 0 && bytes > LEN as u64, "{accesses} accesses, {bytes} bytes in frames");
        duo.settle();
    }
    let refused = |of: &CStr| u64::from(of == call);
    let made = (before.0 + refused(c"ibv_create_qp"), before.1 + refused(c"ibv_alloc_pd"));
    assert_eq!((pairs(), domains()), made, "what was made besides is given back");
    let text = duo.a.domain.ep_describe(duo.a.ep, duo.a.peer).expect("a path");
    assert!(
        text.contains("Cuda for peers by no way (not dma-buf over PCIe: ") && text.contains(said),
        "{text}"
    );
    // What goes by the first queue pair is not touched by that.
    is_one_access(&mut duo, host(LEN, 7), filled(&driver, LEN, 50));
}

#[test]
fn a_device_without_room_for_a_domain_has_messages_of_devices_go_in_frames() {
    is_refused(c"ibv_alloc_pd", 0, "ibv_alloc_pd: Cannot allocate memory");
}

#[test]
fn a_device_without_room_for_a_queue_pair_has_messages_of_devices_go_in_frames() {
    is_refused(c"ibv_create_qp", 0, "ibv_create_qp: Cannot allocate memory");
}

#[test]
fn a_peer_without_room_for_a_second_queue_pair_has_messages_of_devices_go_in_frames() {
    is_refused(c"ibv_create_qp", 2, "the peer's second queue pair: Resource temporarily unavailable");
}

/// Announcements that no honest peer makes are errors, by which its connection ends.
#[test]
fn a_peer_that_announces_what_is_no_queue_pair_or_twice_is_not_believed() {
    set("sv0", &[]);
    let driver = driver(2);
    let src = filled(&driver, LEN, 3);
    let (mut owner, mut peer) = (open(), open());
    let (to_peer, _) = join(&mut owner, &mut peer);
    assert!(owner.join_second(to_peer, &[]).is_err(), "none, which was not asked");
    assert!(owner.join_second(to_peer, &[7; 28]).is_err(), "no queue pair");
    let (_peer, to_peer, _) = peer_of(&mut owner, src);
    assert!(owner.join_second(to_peer, &[]).is_err(), "none, though there is one");
    assert!(owner.join_second(to_peer, &[7; 28]).is_err(), "another one");
}

/// What it announces by the connection that the two meet by where no other one is open is not believed either.
#[test]
fn a_peer_that_announces_a_second_connection_beside_none_is_cut_off() {
    set("sv0", &[]);
    let key = JobKey::from_secret(b"of the engine's checks");
    let mut own = link_with(open(), &Arc::default(), |_| {});
    let at = "127.0.0.1:0".parse().expect("an address");
    let mut peer = TcpLink::bind(at, TcpOptions::new(key)).expect("a free name");
    let (to, said) = (peer.peer(&own.addr()), Control::Second(vec![7; 28]).encode());
    while peer.send(to, &said, &[], 0, 0).is_err() {
        assert!(peer.poll().is_none() && own.poll().is_none());
    }
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_secs(30), "it is believed");
        let _ = peer.poll();
        match own.poll() {
            Some(Event::Closed(_, why)) => return assert_eq!(why, Gone::Denied),
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    }
}

/// An access by the second queue pair ends with an error: both ends have the peer's end, and what follows
/// connects anew, with a second queue pair of its own.
#[test]
fn an_error_of_the_second_queue_pair_is_the_end_of_the_peer_and_what_follows_connects_anew() {
    let (driver, mut duo) = devices("sv0");
    prepare(&mut duo, &driver);
    duo.settle();
    let symbol = Program::open(program::path("verbs_stand_in")).symbol("stand_in_verbs_revoke");
    // SAFETY: that function's type.
    let revoke: extern "C" fn(i32) -> i32 = unsafe { std::mem::transmute(symbol) };
    let (src, dst, to) = (filled(&driver, LEN, 3), host(LEN, 9), duo.a.peer);
    duo.post(|a| a.domain.send(a.ep, &testkit::msg(to, &[src], 1)));
    duo.settle();
    assert_eq!(revoke(-1), 1, "dma-bufs that are lent");
    duo.b.domain.recv(duo.b.rx, &testkit::from_any(&[dst], 2)).expect("a receive");
    let (sent, got) = duo.complete(1, 1);
    assert!(sent[0].err.is_some() && got[0].err.is_some(), "{sent:?} {got:?}");
    assert!(text(&[dst]) == pattern(LEN, 9), "bytes of what was taken back");
    duo.settle();
    duo.send(&[host(8, 1)], &[Span::leak(8)]);
    duo.settle();
    prepare(&mut duo, &driver);
    is_one_access(&mut duo, filled(&driver, LEN, 7), filled(&driver, LEN, 50));
}

/// Registered memory of a device, which its peer knows: once a first access has gone in frames, and the key is there.
pub fn known(duo: &mut Duo<Verbs>, target: Span) -> engine::MrId {
    let (mr, _) = duo.b.domain.mr_reg(&Reg { iov: &[target], access: BOTH, key: Some(9) }).expect("a key");
    let to = duo.a.peer;
    for _ in 0..100 {
        duo.counts.take();
        duo.post(|a| a.domain.rma(a.ep, &read(to, &[Span::leak(1)], &[there(0, 1, 9)], 1)));
        assert_eq!(duo.complete(1, 0).0[0].err, None);
        duo.settle();
        if duo.counts.take()[2] == 1 {
            return mr;
        }
    }
    panic!("memory that is not accessed by the adapter");
}

/// Bytes of either sort of memory.
pub fn local(driver: &Driver, is_device: bool, len: usize, seed: usize) -> Span {
    if is_device { filled(driver, len, seed) } else { host(len, seed) }
}

fn is_accessed(device: &str) {
    let (driver, mut duo) = devices(device);
    let target = filled(&driver, LEN, 3);
    let mr = known(&mut duo, target);
    let (to, mut want) = (duo.a.peer, pattern(LEN, 3));
    for (i, len) in [1, 8, 600, 16 << 10, 20_000, 100_000].into_iter().enumerate() {
        for is_device in [false, true] {
            let (from, into) = (local(&driver, is_device, len, 40 + i), local(&driver, is_device, len, 9));
            let remote = [there(37 * i as u64, len, 9)];
            for op in [write(to, &[from], &remote, 1), read(to, &[into], &remote, 2)] {
                duo.post(|a| a.domain.rma(a.ep, &op));
                assert_eq!(duo.complete(1, 0).0[0].err, None);
                assert_eq!(duo.counts.take()[2], 1, "{len} bytes: accesses");
            }
            want[37 * i..37 * i + len].copy_from_slice(&pattern(len, 40 + i));
            assert!(text(&[target]) == want && text(&[into]) == pattern(len, 40 + i), "{len} bytes");
        }
    }
    // What takes a receive at the target, or changes a word in one step, is none of the second queue pair's.
    let (from, remote) = ([host(100, 3)], [there(0, 100, 9)]);
    let op = Rma { data: Some(7), ..write(to, &from, &remote, 1) };
    duo.post(|a| a.domain.rma(a.ep, &op));
    let (of_a, of_b) = duo.complete(1, 1);
    assert_eq!((of_a[0].err, of_b[0].err, of_b[0].data), (None, None, 7));
    assert!(text(&[target])[..100] == pattern(100, 3));
    let before = registrations();
    duo.post(|a| a.domain.rma(a.ep, &read(to, &[Span::leak(1)], &[there(0, 1, 9)], 1)));
    assert_eq!(duo.complete(1, 0).0[0].err, None);
    // The peer has to leave it, which it does as it makes progress.
    closes(&mut duo, mr);
    assert!(before - registrations() >= 2, "of this side, and of the peer's domain");
    duo.post(|a| a.domain.rma(a.ep, &read(to, &[Span::leak(1)], &[there(0, 1, 9)], 1)));
    assert_eq!(duo.complete(1, 0).0[0].err, Some(Error::BadKey));
}

/// Closes a registration while its peer makes progress.
pub fn closes(duo: &mut Duo<Verbs>, mr: engine::MrId) {
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (a, b, is_done) = (&mut duo.a, &mut duo.b, &is_done);
        scope.spawn(move || {
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                assert!(a.next().is_none());
            }
        });
        b.domain.mr_close(mr).expect("an end");
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn registered_memory_of_a_device_is_accessed_by_its_dmabuf() {
    is_accessed("sv0");
}

#[test]
fn registered_memory_of_a_device_is_accessed_by_its_dmabuf_on_a_small_device() {
    is_accessed("sv0:nosrq,inline=16,sge=1,reads=1");
}

#[test]
fn registered_memory_of_a_device_is_accessed_by_its_dmabuf_where_queues_are_short() {
    is_accessed("sv0:cqe=64,srqwr=16,wr=8,mtu=256");
}

//! Memory of devices over the link over a provider of libfabric's that offers FI_HMEM: `tests/ofi/hmem.c`,
//! over the stand-in for CUDA. ci/suite/ofi builds that provider.
#![cfg(not(loom))]

#[path = "support/accessed.rs"]
mod accessed;
#[path = "support/counted.rs"]
mod counted;
#[path = "support/duo.rs"]
#[allow(dead_code, reason = "checks of memory of devices")]
mod duo;
#[path = "ofi_hmem/hostile.rs"]
mod hostile;
#[path = "support/killed.rs"]
mod killed;
#[path = "support/library.rs"]
mod library;
#[path = "support/node.rs"]
mod node;

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use accessed::{access, share};
use duo::Duo;
use engine::{Access, Ctx, Error, Reg};
use hmem::{Kind, Span};
use link_api::{Link as _, Setting};
use ofi::{Beyond, Fabric};
use testkit::{from_any, msg, pattern, read, there};

use memory::{driver, filled, room};

const LEN: usize = 200_000;
const WAIT: Duration = Duration::from_secs(60);

/// Memory of a device's.
mod memory {
    use std::sync::OnceLock;

    use cuda_stand_in::driver::Driver;
    use hmem::{Kind, Span};
    use testkit::pattern;

    /// Far more than sockets keep.
    pub const LEN: usize = 64 << 20;

    pub fn driver() -> Driver {
        static DRIVER: OnceLock<Driver> = OnceLock::new();
        let driver = *DRIVER.get_or_init(|| {
            let driver = Driver::start();
            hmem::registry::find_runtimes();
            driver
        });
        // Not on the first device, whose number is that of none.
        driver.enter(1);
        driver
    }

    pub fn room(len: usize) -> Span {
        let at = driver().alloc(len);
        // SAFETY: so many bytes of it, which are freed when nothing has them any more, or never.
        unsafe { Span::new(at, len, Kind::Cuda) }
    }

    pub fn filled(len: usize, seed: usize) -> Span {
        let span = room(len);
        hmem::write(&[span], 0, &pattern(len, seed));
        span
    }

    pub fn pages(byte: u8) -> Span {
        let span = room(LEN);
        hmem::write(&[span], 0, &vec![byte; LEN]);
        span
    }

    pub fn forbid(span: Span) {
        driver().free(span.addr() as usize);
    }
}

fn fabric() -> Fabric {
    driver();
    let found = ofi::open(
        &library::core(),
        &["hmem"],
        "127.0.0.1".parse().expect("an address"),
        Beyond { devices: true, writes: false },
    );
    found.unwrap_or_else(|why| panic!("it cannot be opened: {why:?}")).0
}

/// What the provider has counted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    lent: u64,
    lent_bytes: u64,
    local: u64,
    open: u64,
    refused: u64,
    read_from: u64,
    read_into: u64,
}

fn library() -> libloading::Library {
    let dir = std::env::var("FI_PROVIDER_PATH").expect("ci/suite/ofi sets it");
    // SAFETY: libfabric has loaded it.
    unsafe { libloading::Library::new(format!("{dir}/libhmem-fi.so")) }.expect("the provider")
}

fn counts() -> Counts {
    let (library, mut found) = (library(), Counts::default());
    // SAFETY: the function's type, as the provider has it.
    unsafe { library.get::<unsafe extern "C" fn(*mut Counts)>(b"hmem_counts\0").expect("it")(&mut found) };
    found
}

/// Has the next registrations of a device's memory refused.
fn refuse(times: i32, code: i32) {
    let library = library();
    // SAFETY: likewise.
    unsafe { library.get::<unsafe extern "C" fn(i32, i32)>(b"hmem_refuse\0").expect("it")(times, code) };
}

/// Likewise of those for this use alone.
fn refuse_for(times: i32, code: i32, access: u64) {
    type Refuse = unsafe extern "C" fn(i32, i32, u64);
    let library = library();
    // SAFETY: likewise.
    unsafe { library.get::<Refuse>(b"hmem_refuse_for\0").expect("it")(times, code, access) };
}

/// Has no more of them open at a time.
fn limit(most: i32) {
    let library = library();
    // SAFETY: likewise.
    unsafe { library.get::<unsafe extern "C" fn(i32)>(b"hmem_limit\0").expect("it")(most) };
}

fn host(len: usize, seed: usize) -> Span {
    duo::filled(len, seed)
}

/// Two endpoints that have read from each other: a read that finds no room yet, as while the provider
/// connects, registers anew.
fn duo() -> Duo<Fabric> {
    let mut duo = Duo::new(fabric);
    for _ in 0..2 {
        meet(&mut duo);
        std::mem::swap(&mut duo.a, &mut duo.b);
    }
    duo
}

fn meet(duo: &mut Duo<Fabric>) {
    duo.send(&[host(LEN, 1)], &[Span::leak(LEN)]);
    duo.settle();
    assert_eq!(duo.counts.take()[2], 1, "reads");
}

/// The three ways that have a device in them, with memory that is filled, and such to go to.
fn ways(len: usize, seed: usize) -> [(Span, Span); 3] {
    [
        (filled(len, seed), room(len)),
        (filled(len, seed + 1), Span::leak(len)),
        (host(len, seed + 2), room(len)),
    ]
}

fn is_device(span: Span) -> u64 {
    u64::from(span.kind() == Kind::Cuda)
}

#[test]
fn long_messages_from_and_to_devices_are_one_read_each() {
    let mut duo = duo();
    for len in [64 << 10, LEN, 3 << 20] {
        for (from, into) in ways(len, len) {
            let (before, n) = (counts(), len as u64);
            duo.send(&[from], &[into]);
            let [messages, bytes, reads, read] = duo.counts.take();
            assert_eq!((reads, read), (1, n), "reads of the provider below, and their bytes");
            assert!(messages <= 8 && bytes < 2_000, "{messages} messages of {bytes} bytes");
            let now = counts();
            assert_eq!(now.lent - before.lent, is_device(from));
            assert_eq!(now.lent_bytes - before.lent_bytes, n * is_device(from));
            assert_eq!(now.local - before.local, is_device(into));
            assert_eq!(now.read_from - before.read_from, n * is_device(from));
            assert_eq!(now.read_into - before.read_into, n * is_device(into));
            assert_eq!((now.open, now.refused, duo.lent()), (0, 0, 0));
        }
    }
}

#[test]
fn messages_of_the_host_are_read_as_without_devices() {
    duo::a_long_message_is_one_read(Duo::new(fabric), LEN);
    duo::a_long_message_is_cut_to_its_receive(Duo::new(fabric));
    duo::many_long_messages_at_once(Duo::new(fabric));
    assert_eq!(counts(), Counts::default());
}

#[test]
fn short_messages_and_what_moves_go_in_frames() {
    let mut duo = duo();
    for (from, into) in ways((64 << 10) - 1, 1) {
        duo.send(&[from], &[into]);
    }
    let managed = |seed| {
        let at = driver().alloc_managed(LEN);
        // SAFETY: so many bytes of it, for good.
        let span = unsafe { Span::new(at, LEN, Kind::Cuda) };
        hmem::write(&[span], 0, &pattern(LEN, seed));
        span
    };
    // More often than registrations may be refused.
    for i in 0..10 {
        duo.send(&[managed(2 * i)], &[Span::leak(LEN)]);
        duo.send(&[host(LEN, i)], &[managed(2 * i + 1)]);
    }
    assert_eq!((duo.counts.take()[2], counts()), (0, Counts::default()));
    duo.send(&[filled(LEN, 3)], &[room(LEN)]);
    assert_eq!((duo.counts.take()[2], counts().lent, counts().local), (1, 1, 1));
}

#[test]
fn a_message_of_parts_in_different_memory_is_read_whole() {
    let mut duo = duo();
    let src = [filled(LEN, 1), host(LEN, 2), filled(LEN, 3)];
    duo.send(&src, &[Span::leak(LEN / 2), room(2 * LEN), Span::leak(LEN)]);
    let [_, bytes, _, read] = duo.counts.take();
    assert!(read == 3 * LEN as u64 && bytes < 3_000, "{read} bytes were read, {bytes} came in frames");
    assert_eq!((counts().open, duo.lent()), (0, 0));
}

/// As by FI_STRAIT_DEVICE_DIRECT=no, or by FI_HMEM_P2P_DISABLED.
#[test]
fn memory_of_devices_goes_in_frames_where_that_is_asked_for() {
    let address = || "127.0.0.1".parse().expect("an address");
    let never_asked = || {
        driver();
        ofi::open(&library::core(), &["hmem"], address(), Beyond::default()).expect("a provider").0
    };
    for mut duo in [Duo::new(never_asked), Duo::prepared(fabric, |link| link.set(Setting::StageDevices))] {
        meet(&mut duo);
        for (from, into) in ways(LEN, 1) {
            duo.send(&[from], &[into]);
        }
        assert_eq!((duo.counts.take()[2], counts()), (0, Counts::default()));
    }
}

#[test]
fn a_path_says_that_memory_of_devices_is_read() {
    let duo = duo();
    let line = duo.a.domain.ep_describe(duo.a.ep, duo.a.peer).expect("a peer");
    assert!(
        line.contains("long payloads, also from and to memory of devices, read by their receiver"),
        "{line}"
    );
}

#[test]
fn long_accesses_from_and_to_devices_are_one_read_each() {
    let mut duo = duo();
    for (i, (target, local)) in ways(LEN, 1).into_iter().enumerate() {
        let mr = share(&mut duo, target, 9);
        for is_write in [false, true] {
            // The part that begins at byte 7 of the target.
            let part = local.part(0, LEN - 100).expect("a part");
            if is_write {
                hmem::write(&[local], 0, &pattern(LEN, 50 + i));
            }
            let before = counts();
            access(&mut duo, is_write, part, 7, 9);
            assert_eq!(duo.complete(1, 0).0[0].err, None);
            assert!(link_kit::text(&[target])[7..LEN - 93] == link_kit::text(&[part])[..]);
            let want = if is_write { pattern(LEN, 50 + i) } else { pattern(LEN, 1 + i)[7..].to_vec() };
            assert!(link_kit::text(&[part])[..] == want[..LEN - 100]);
            let [_, bytes, reads, _] = duo.counts.take();
            assert!(reads == 1 && bytes < 2_000, "{reads} reads, {bytes} bytes in frames");
            let [from, into] = if is_write { [local, target] } else { [target, local] };
            duo.settle();
            let now = counts();
            assert_eq!(
                (now.lent - before.lent, now.local - before.local),
                (is_device(from), is_device(into))
            );
            assert_eq!((now.open, duo.lent()), (0, 0));
        }
        duo.b.domain.mr_close(mr).expect("a registration that nothing accesses");
    }
}

/// Without FI_MR_ALLOCATED a program may free what it has registered.
#[test]
fn accesses_to_devices_go_in_frames_where_registered_memory_may_be_freed() {
    let counted = std::sync::Arc::default();
    let (a, b) = (duo::link_over(fabric(), &counted), duo::link_over(fabric(), &counted));
    let names = (a.addr(), b.addr());
    let (mut a, mut b) = (duo::Node::new(a, names.1), duo::Node::new(b, names.0));
    // The initiator alone makes the promise, or the target does.
    for of_a in [true, false] {
        if of_a {
            a.domain.set_lasting();
        }
        let mut duo = Duo { a, b, counts: std::sync::Arc::clone(&counted) };
        duo.send(&[host(8, 1)], &[Span::leak(8)]);
        let (target, local) = (filled(LEN, 1), room(LEN));
        share(&mut duo, target, 9 + u64::from(of_a));
        duo.counts.take();
        for is_write in [false, true] {
            let before = counts();
            access(&mut duo, is_write, local, 0, 9 + u64::from(of_a));
            assert_eq!(duo.complete(1, 0).0[0].err, None);
            assert!(
                link_kit::text(&[target]) == pattern(LEN, 1) && link_kit::text(&[local]) == pattern(LEN, 1)
            );
            // What a side lends it has promised to keep. The initiator's own buffer is there until it
            // completes.
            assert_eq!(counts().lent - before.lent, u64::from(of_a == is_write));
            assert_eq!(duo.counts.take()[2], u64::from(!of_a && !is_write), "reads");
        }
        Duo { a, b, .. } = duo;
        std::mem::swap(&mut a, &mut b);
    }
}

/// It has one that was not met yet, and one whose memory is being read.
#[test]
fn a_send_from_a_device_that_is_cancelled_lends_nothing_any_more() {
    const LEN: usize = memory::LEN;
    for met in [false, true] {
        let mut duo = Duo::new(fabric);
        let (to, src, dst) = (duo.a.peer, memory::pages(1), room(LEN));
        let (start, mut sent, mut received) = (Instant::now(), None, None);
        if met {
            duo.b.domain.recv(duo.b.rx, &from_any(&[dst], 4)).expect("a receive");
        }
        duo.post(|a| a.domain.send(a.ep, &msg(to, &[src], 3)));
        while counts().open < 1 + u64::from(met) {
            assert!(start.elapsed() < WAIT, "it is not lent");
            assert!(duo.a.next().is_none());
            received = received.or_else(|| duo.b.next());
        }
        duo.a.domain.set_patience(link_api::Patience::Retried);
        let mut begun = None;
        while let Err(why) = duo.a.domain.ep_cancel_in_turns(duo.a.ep, Ctx(3), &mut begun) {
            assert_eq!(why, Error::Busy);
            assert!(start.elapsed() < WAIT, "it is never cancelled");
            received = received.or_else(|| duo.b.next());
        }
        // What it holds from now on is another's.
        hmem::write(&[src], 0, &vec![0xa5; LEN]);
        while sent.is_none() || received.is_some() != met {
            assert!(start.elapsed() < WAIT, "it is never over");
            sent = sent.or_else(|| duo.a.next());
            received = received.or_else(|| duo.b.next());
        }
        let is_cancelled = sent.is_some_and(|c| c.err == Some(Error::Cancelled));
        assert!(is_cancelled || met, "{sent:?}");
        assert!(!link_kit::text(&[dst]).contains(&0xa5), "memory that was given back");
        memory::forbid(src);
        duo.settle();
        assert_eq!((counts().open, duo.lent()), (0, 0));
        // Others go on.
        duo.send(&[filled(100_000, 3)], &[room(100_000)]);
        assert_eq!(duo.counts.reads.load(Relaxed), 1 + u64::from(met));
    }
}

#[test]
fn a_provider_that_lacks_the_interface_is_not_asked_again() {
    let mut duo = duo();
    refuse(i32::MAX, libfabric_sys::FI_ENOSYS);
    for _ in 0..3 {
        for (from, into) in ways(LEN, 1) {
            duo.send(&[from], &[into]);
        }
    }
    // Each side found out once: the sender as it was to lend, the receiver as it was to read what the host
    // had lent.
    let found = counts();
    assert_eq!((found.refused, found.lent, found.local), (2, 0, 0));
    assert_eq!(duo.counts.take()[2], 0, "reads");
    // The host's memory is read.
    duo.send(&[host(LEN, 1)], &[Span::leak(LEN)]);
    assert_eq!(duo.counts.take()[2], 1, "reads");
    // And accesses go in frames.
    let (target, local) = (filled(LEN, 1), room(LEN));
    share(&mut duo, target, 9);
    for is_write in [false, true] {
        access(&mut duo, is_write, local, 0, 9);
        assert_eq!(duo.complete(1, 0).0[0].err, None);
        assert!(link_kit::text(&[local]) == pattern(LEN, 1) && link_kit::text(&[target]) == pattern(LEN, 1));
    }
    assert_eq!((counts(), duo.counts.take()[2]), (found, 0));
}

#[test]
fn memory_that_is_refused_goes_in_frames_and_other_memory_is_read() {
    let mut duo = duo();
    for times in [1, 3] {
        refuse(times, libfabric_sys::FI_EINVAL);
        for _ in 0..times {
            duo.send(&[filled(LEN, 1)], &[Span::leak(LEN)]);
        }
        assert_eq!((duo.counts.take()[2], counts().lent), (0, 0), "reads, and registrations");
        refuse(times, libfabric_sys::FI_EINVAL);
        for _ in 0..times {
            duo.send(&[host(LEN, 1)], &[room(LEN)]);
        }
        assert_eq!((duo.counts.take()[2], counts().local), (0, 0), "reads, and registrations");
    }
    duo.send(&[filled(LEN, 1)], &[room(LEN)]);
    assert_eq!((duo.counts.take()[2], counts().lent, counts().local), (1, 1, 1));
    assert_eq!((counts().open, duo.lent()), (0, 0));
    // What is refused time and again is not tried for good.
    refuse(i32::MAX, libfabric_sys::FI_EINVAL);
    let before = counts().refused;
    for i in 0..20 {
        duo.send(&[filled(LEN, i)], &[Span::leak(LEN)]);
    }
    assert_eq!(counts().refused - before, 8);
}

/// Of a message of parts the first is registered, and the second refused.
#[test]
fn a_message_of_which_one_part_is_refused_leaves_nothing_registered() {
    let mut duo = duo();
    refuse(1, libfabric_sys::FI_EINVAL);
    duo.send(&[host(LEN, 1), filled(LEN, 2)], &[Span::leak(2 * LEN)]);
    duo.settle();
    assert_eq!((counts().open, duo.lent()), (0, 0));
    let (target, local) = ([host(LEN, 1), filled(LEN, 2)], Span::leak(2 * LEN));
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    duo.b.domain.mr_reg(&Reg { iov: &target, access, key: Some(9) }).expect("a key that is free");
    refuse(1, libfabric_sys::FI_EINVAL);
    let (to, remote) = (duo.a.peer, [there(0, 2 * LEN, 9)]);
    duo.post(|a| a.domain.rma(a.ep, &read(to, &[local], &remote, 2)));
    assert_eq!(duo.complete(1, 0).0[0].err, None);
    assert!(link_kit::text(&[local]) == link_kit::text(&target));
    duo.settle();
    assert_eq!((counts().open, duo.lent()), (0, 0));
}

/// The receiver's registrations are refused with FI_EAGAIN, for good.
#[test]
fn a_message_arrives_where_registrations_are_refused_for_now_without_end() {
    let mut duo = duo();
    refuse(i32::MAX, libfabric_sys::FI_EAGAIN);
    duo.send(&[filled(LEN, 1)], &[Span::leak(LEN)]);
    duo.send(&[host(LEN, 1)], &[room(LEN)]);
}

/// Likewise for a while.
#[test]
fn a_refusal_for_now_does_not_keep_memory_from_being_read_later() {
    let mut duo = duo();
    refuse(20, libfabric_sys::FI_EAGAIN);
    for i in 0..20 {
        duo.send(&[filled(LEN, i)], &[Span::leak(LEN)]);
    }
    duo.counts.take();
    duo.send(&[filled(LEN, 1)], &[room(LEN)]);
    assert_eq!(duo.counts.take()[2], 1, "reads");
}

//! Memory that the program maps of a dma-buf of its own, which it has named (FI_MR_DMABUF): a memfd stands for that. No
//! device pins such memory by its address.

use std::os::fd::{AsRawFd as _, OwnedFd};

use hmem::share::Dmabuf;

use super::apart::{closes, domains, is_one_access, join_second, known, pairs, registrations, turn};
use super::duo::filled as host;
use super::*;

/// Where in the dma-buf memory begins, inside of a page.
const OFFSET: usize = 4096 + 777;

fn revoke(fd: i32) -> i32 {
    let symbol = Program::open(program::path("verbs_stand_in")).symbol("stand_in_verbs_revoke");
    // SAFETY: that function's type.
    let revoke: extern "C" fn(i32) -> i32 = unsafe { std::mem::transmute(symbol) };
    revoke(fd)
}

/// A dma-buf, and its mapping, which stays.
fn dmabuf(len: usize) -> (OwnedFd, usize) {
    let fd = ipc::memfd::create(c"dma-buf", len, ipc::memfd::Writers::All).expect("a memfd");
    let at = Box::leak(Box::new(ipc::Mapping::new(&fd, len, None).expect("room"))).base() as usize;
    let symbol = Program::open(program::path("verbs_stand_in")).symbol("stand_in_verbs_no_pages");
    // SAFETY: that function's type.
    let no_pages: extern "C" fn(u64, u64) = unsafe { std::mem::transmute(symbol) };
    no_pages(at as u64, len as u64);
    (fd, at)
}

/// Memory of the host, from the address on.
fn mapped(at: usize, len: usize) -> Span {
    // SAFETY: the tests' own memory, which stays.
    unsafe { Span::new(at, len, Kind::System).lasting() }
}

/// Memory of a dma-buf whose descriptor the program has closed since, and which it names until what is returned is
/// dropped.
fn given(len: usize, seed: usize) -> (Span, Dmabuf) {
    let (fd, at) = dmabuf(len + OFFSET);
    let span = mapped(at + OFFSET, len);
    hmem::write(&[span], 0, &pattern(len, seed));
    (span, Dmabuf::new(fd.as_raw_fd(), OFFSET as u64, span).expect("a dma-buf"))
}

/// The same for as long as the test is.
pub fn lasting(len: usize, seed: usize) -> Span {
    let (span, given) = given(len, seed);
    std::mem::forget(given);
    span
}

fn path(duo: &Duo<Verbs>) -> String {
    duo.a.domain.ep_describe(duo.a.ep, duo.a.peer).expect("a path")
}

#[test]
fn messages_between_dmabufs_are_accesses() {
    set("sv0", &[]);
    let mut duo = Duo::new(open);
    let (accesses, bytes) = duo.counted_send(lasting(LEN, 1), lasting(LEN, 9));
    assert!(accesses == 0 && bytes > LEN as u64, "{accesses} accesses, {bytes} bytes in frames");
    duo.send_until_accesses(|| lasting(LEN, 1));
    for seed in 0..3 {
        is_one_access(&mut duo, lasting(LEN, seed), lasting(LEN, 50));
        is_one_access(&mut duo, lasting(LEN, seed), Span::leak(LEN));
        is_one_access(&mut duo, host(LEN, seed), lasting(LEN, 50));
        turn(&mut duo);
    }
    let said = path(&duo);
    assert!(said.contains("System for peers by the program's dma-buf"), "{said}");
}

/// Memory that is not registered any more is no dma-buf's: it goes in frames, as memory does that no device takes.
#[test]
fn memory_of_a_registration_that_is_closed_goes_in_frames() {
    set("sv0", &[]);
    let mut duo = Duo::new(open);
    let (span, named) = given(LEN, 3);
    duo.send_until_accesses(|| span);
    drop(named);
    for _ in 0..2 {
        let (accesses, bytes) = duo.counted_send(span, Span::leak(LEN));
        assert!(accesses == 0 && bytes > LEN as u64, "{accesses} accesses, {bytes} bytes in frames");
    }
}

fn is_accessed(device: &str) {
    set(device, &[]);
    let mut duo = Duo::new(open);
    let target = lasting(LEN, 3);
    let mr = known(&mut duo, target);
    let (to, mut want) = (duo.a.peer, pattern(LEN, 3));
    for (i, len) in [1, 8, 600, 16 << 10, 20_000, 100_000].into_iter().enumerate() {
        for is_dmabuf in [false, true] {
            let of = |seed| if is_dmabuf { lasting(len, seed) } else { host(len, seed) };
            let (from, into, remote) = (of(40 + i), of(9), [there(37 * i as u64, len, 9)]);
            for op in [write(to, &[from], &remote, 1), read(to, &[into], &remote, 2)] {
                duo.post(|a| a.domain.rma(a.ep, &op));
                assert_eq!(duo.complete(1, 0).0[0].err, None);
                assert_eq!(duo.counts.take()[2], 1, "{len} bytes: accesses");
            }
            want[37 * i..37 * i + len].copy_from_slice(&pattern(len, 40 + i));
            assert!(text(&[target]) == want && text(&[into]) == pattern(len, 40 + i), "{len} bytes");
        }
    }
    let before = registrations();
    closes(&mut duo, mr);
    assert!(before - registrations() >= 2, "of this side, and of the peer's domain");
    duo.post(|a| a.domain.rma(a.ep, &read(to, &[Span::leak(1)], &[there(0, 1, 9)], 1)));
    assert_eq!(duo.complete(1, 0).0[0].err, Some(Error::BadKey));
}

#[test]
fn registered_memory_of_a_dmabuf_is_accessed() {
    is_accessed("sv0");
}

#[test]
fn registered_memory_of_a_dmabuf_is_accessed_on_a_small_device() {
    is_accessed("sv0:nosrq,inline=16,sge=1,reads=1");
}

#[test]
fn registered_memory_of_a_dmabuf_is_accessed_where_the_driver_repeats_requests() {
    is_accessed("sv0:rxe,repeats");
}

/// Two registrations of one dma-buf, which overlap: each is accessed, and the end of one is not that of the other.
#[test]
fn two_registrations_of_one_dmabuf_are_accessed_each() {
    set("sv0", &[]);
    let mut duo = Duo::new(open);
    let (fd, at) = dmabuf(LEN);
    let [all, part] = [mapped(at, LEN), mapped(at + OFFSET, 100_000)];
    let name = |offset: usize, span| Dmabuf::new(fd.as_raw_fd(), offset as u64, span).expect("a dma-buf");
    let _named = [name(0, all), name(OFFSET, part)];
    let first = known(&mut duo, all);
    let reg = Reg { iov: &[part], access: BOTH, key: Some(7) };
    duo.b.domain.mr_reg(&reg).expect("a key");
    let to = duo.a.peer;
    let put = |duo: &mut Duo<Verbs>, key, off: usize, seed| {
        let from = [host(5000, seed)];
        duo.post(|a| a.domain.rma(a.ep, &write(to, &from, &[there(off as u64, 5000, key)], 1)));
        let err = duo.complete(1, 0).0[0].err;
        duo.settle();
        err
    };
    assert_eq!((put(&mut duo, 9, OFFSET, 3), put(&mut duo, 7, 0, 4)), (None, None));
    assert!(text(&[all])[OFFSET..OFFSET + 5000] == pattern(5000, 4));
    closes(&mut duo, first);
    assert_eq!(put(&mut duo, 9, 0, 5), Some(Error::BadKey));
    duo.counts.take();
    assert_eq!(put(&mut duo, 7, 0, 6), None);
    assert_eq!(duo.counts.take()[2], 1, "accesses");
    assert!(text(&[part])[..5000] == pattern(5000, 6));
}

/// Taken back by its exporter: the next access is an error at both ends, and none of its bytes arrive.
#[test]
fn a_dmabuf_of_the_program_that_is_taken_back_is_not_read_by_peers() {
    set("sv0", &[]);
    let src = lasting(LEN, 3);
    let (mut owner, mut peer) = (open(), open());
    let (to_peer, at) = join(&mut owner, &mut peer);
    assert!(owner.lend(to_peer, src, Way::Get).is_none(), "a key for all peers");
    assert!(join_second((&mut owner, to_peer), (&mut peer, at)));
    let lease = owner.lend(to_peer, src, Way::Get).expect("a key of its own");
    say(&mut owner, to_peer, &mut peer);
    assert_eq!(revoke(-1), 1);
    let local = host(LEN, 9);
    assert!(!accesses(&mut peer, (Way::Get, at, lease.key, lease.base), local));
    assert!(text(&[local]) == pattern(LEN, 9), "bytes that were taken back");
    assert!(owner.end_lease(lease.number, true));
    assert!(matches!(happens(&mut owner), Did::Failed(..)), "the end of the peer");
    drop((owner, peer));
    // By its address the memory was refused once.
    assert_eq!((pairs(), domains(), registrations()), (0, 0, 1), "what is left");
}

/// A registration that is taken back ends the peer that accesses it; registered anew it is accessed.
#[test]
fn a_registration_of_a_dmabuf_that_is_taken_back_fails_and_a_new_one_does_not() {
    set("sv0", &[]);
    let mut duo = Duo::new(open);
    let (span, named) = given(LEN, 3);
    let mr = known(&mut duo, span);
    assert!(revoke(-1) > 0);
    let (to, into) = (duo.a.peer, host(20_000, 9));
    duo.post(|a| a.domain.rma(a.ep, &read(to, &[into], &[there(0, 20_000, 9)], 1)));
    assert!(duo.complete(1, 0).0[0].err.is_some());
    assert!(text(&[into]) == pattern(20_000, 9), "bytes of what was taken back");
    duo.settle();
    closes(&mut duo, mr);
    drop(named);
    duo.send(&[host(8, 1)], &[Span::leak(8)]);
    duo.settle();
    known(&mut duo, lasting(LEN, 4));
}

#[test]
fn the_path_says_why_a_dmabuf_of_the_program_is_not_registered() {
    set("sv0:nodmabuf", &[]);
    let mut duo = Duo::new(open);
    for seed in 0..2 {
        let (accesses, bytes) = duo.counted_send(lasting(LEN, seed), Span::leak(LEN));
        assert!(accesses == 0 && bytes > LEN as u64, "{accesses} accesses, {bytes} bytes in frames");
    }
    let said = path(&duo);
    let refused = "(not the program's dma-buf: ibv_reg_dmabuf_mr: Operation not supported (os error 95); \
                   not address: ibv_reg_mr: Bad address (os error 14))";
    assert!(said.contains(refused), "{said}");
    is_one_access(&mut duo, host(LEN, 7), host(LEN, 50));
}

/// A child that ends closes what it has of the descriptors, and takes nothing of the parent's with it.
#[test]
fn a_fork_leaves_registrations_of_dmabufs_as_they_are() {
    set("sv0", &[]);
    let mut duo = Duo::new(open);
    let target = lasting(LEN, 3);
    known(&mut duo, target);
    // SAFETY: the child makes no call but one that ends it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: it ends.
        unsafe { libc::_exit(0) };
    }
    let mut status = 1;
    // SAFETY: a valid place.
    assert_eq!((unsafe { libc::waitpid(child, &mut status, 0) }, status), (child, 0));
    let (to, from) = (duo.a.peer, lasting(100_000, 5));
    duo.post(|a| a.domain.rma(a.ep, &write(to, &[from], &[there(0, 100_000, 9)], 1)));
    assert_eq!((duo.complete(1, 0).0[0].err, duo.counts.take()[2]), (None, 1));
    assert!(text(&[target])[..100_000] == pattern(100_000, 5));
    duo.send(&[lasting(LEN, 6)], &[lasting(LEN, 50)]);
    assert_eq!(duo.counts.take()[2], 1, "accesses");
}

/// That a GPU's driver exports no dma-buf says nothing of memory of which the program names one.
#[test]
fn a_dmabuf_of_a_gpus_memory_is_accessed_where_the_driver_exports_none() {
    set("sv0", &[]);
    let (driver, mut duo) = (driver(0), Duo::new(open));
    for seed in 0..3 {
        let (accesses, bytes) = duo.counted_send(filled(&driver, LEN, seed), Span::leak(LEN));
        assert!(accesses == 0 && bytes > LEN as u64, "{accesses} accesses, {bytes} bytes in frames");
    }
    let said = path(&duo);
    assert!(said.contains("Cuda for peers by no way"), "{said}");
    let ((fd, at), span) = (dmabuf(LEN), filled(&driver, LEN, 4));
    hmem::write(&[mapped(at, LEN)], 0, &pattern(LEN, 4));
    let _named = Dmabuf::new(fd.as_raw_fd(), 0, span).expect("a dma-buf");
    duo.send_until_accesses(|| span);
    is_one_access(&mut duo, span, Span::leak(LEN));
    let said = path(&duo);
    assert!(said.contains("Cuda for peers by the program's dma-buf"), "{said}");
}

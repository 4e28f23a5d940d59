//! Memory of a client of the program (six callbacks), which says to a device what to register, and takes that back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use below::Dest;
use hmem::client::Registered;

use super::apart::{closes, domains, fail, is_one_access, join_second, known, pairs, registrations, turn};
use super::client_memory::{Memory, Says};
use super::duo::filled as host;
use super::*;

/// Memory of a client that says this, whose bytes are those of `seed`; and how many registrations the devices had when
/// its mapping for one ended last.
pub struct Own {
    pub memory: Arc<Memory>,
    client: Registered,
    at_unmap: Arc<AtomicU64>,
}

impl Own {
    pub fn new(says: Says, seed: usize) -> Own {
        let (memory, client) = Memory::register(2 * LEN, says);
        let at_unmap = Arc::new(AtomicU64::new(u64::MAX));
        let seen = at_unmap.clone();
        memory.at_unmap(move || seen.store(registrations(), Relaxed));
        hmem::write(&[memory.alias()], 0, &pattern(2 * LEN, seed));
        Own { memory, client, at_unmap }
    }

    /// A part that begins inside of a page, with these bytes.
    pub fn filled(&self, len: usize, seed: usize) -> Span {
        let span = self.memory.part(4096 + 777, len);
        hmem::write(&[self.memory.alias().part(4096 + 777, len).expect("a part")], 0, &pattern(len, seed));
        span
    }

    /// Another part.
    fn part(&self, len: usize) -> Span {
        self.memory.part(LEN + 33, len)
    }

    /// The client takes it back: how many registrations of devices that has ended, none of which is left when the
    /// mapping ends.
    fn take_back(&self) -> u64 {
        let before = registrations();
        self.memory.invalidate(&self.client);
        let left = registrations();
        let maps = self.memory.device_maps();
        assert_eq!(maps.0, maps.1, "mappings, and those that have ended");
        assert_eq!(self.at_unmap.load(Relaxed), left, "registrations when the mapping ended");
        before - left
    }

    pub fn end(self) {
        self.client.unregister().expect("a client");
        self.memory.check_end();
    }
}

fn messages(says: Says) {
    set("sv0", &[]);
    let (from, into) = (Own::new(says, 1), Own::new(says, 9));
    let mut duo = Duo::new(open);
    duo.send_until_accesses(|| from.filled(LEN, 1));
    for seed in 0..3 {
        is_one_access(&mut duo, from.filled(LEN, seed), into.filled(LEN, 50));
        is_one_access(&mut duo, from.filled(LEN, seed), Span::leak(LEN));
        is_one_access(&mut duo, host(LEN, seed), into.filled(LEN, 50));
        turn(&mut duo);
    }
    // Taken back when nothing is under way: the connection stays, and what follows is mapped anew.
    let modified = ibv(c"ibv_modify_qp");
    assert_eq!((from.take_back(), into.take_back()), (0, 0));
    assert_eq!(ibv(c"ibv_modify_qp"), modified, "queue pairs in error");
    is_one_access(&mut duo, from.filled(LEN, 7), into.filled(LEN, 50));
    drop(duo);
    from.end();
    into.end();
    assert_eq!((pairs(), domains(), registrations()), (0, 0, 0), "what is left");
}

#[test]
fn messages_between_dmabufs_of_clients_are_accesses() {
    messages(Says::Dmabuf);
}

#[test]
fn messages_between_addresses_of_clients_are_accesses() {
    messages(Says::Address);
}

fn is_accessed(device: &str, says: Says) {
    set(device, &[]);
    let (own, other) = (Own::new(says, 3), Own::new(says, 9));
    let mut duo = Duo::new(open);
    let target = own.filled(LEN, 3);
    let mr = known(&mut duo, target);
    let (to, mut want) = (duo.a.peer, pattern(LEN, 3));
    for (i, len) in [1, 8, 600, 16 << 10, 20_000, 100_000].into_iter().enumerate() {
        for is_client in [false, true] {
            let of = |seed| if is_client { other.filled(len, seed) } else { host(len, seed) };
            let remote = [there(37 * i as u64, len, 9)];
            let (from, into) = ([of(40 + i)], [host(len, 9)]);
            let op = write(to, &from, &remote, 1);
            duo.post(|a| a.domain.rma(a.ep, &op));
            assert_eq!((duo.complete(1, 0).0[0].err, duo.counts.take()[2]), (None, 1), "{len} bytes written");
            // Into other memory than that which it was written from.
            let into = if is_client { [other.part(len)] } else { into };
            let op = read(to, &into, &remote, 2);
            duo.post(|a| a.domain.rma(a.ep, &op));
            assert_eq!((duo.complete(1, 0).0[0].err, duo.counts.take()[2]), (None, 1), "{len} bytes read");
            want[37 * i..37 * i + len].copy_from_slice(&pattern(len, 40 + i));
            assert!(text(&[target]) == want && text(&into) == pattern(len, 40 + i), "{len} bytes");
        }
    }
    closes(&mut duo, mr);
    drop(duo);
    own.end();
    other.end();
    // A queue pair that was refused, for as much inline, counts.
    assert_eq!((domains(), registrations()), (0, 0), "what is left");
}

#[test]
fn registered_memory_of_a_client_is_accessed() {
    is_accessed("sv0", Says::Dmabuf);
}

#[test]
fn registered_memory_of_a_client_is_accessed_by_an_address_of_the_clients() {
    is_accessed("sv0:nosrq,inline=16,sge=1,reads=1,nodmabuf", Says::Address);
}

#[test]
fn registered_memory_of_a_client_is_accessed_where_the_driver_repeats_requests() {
    is_accessed("sv0:rxe,repeats", Says::Dmabuf);
}

/// An owner of a client's memory, a peer that has a second queue pair with it, and how each knows the other.
fn lent(own: &Own, way: Way) -> (Verbs, Verbs, Dest, Dest, below::Lease) {
    let src = own.filled(LEN, 3);
    let (mut owner, mut peer) = (open(), open());
    let (to_peer, at) = join(&mut owner, &mut peer);
    assert!(owner.lend(to_peer, src, way).is_none(), "a key for all peers");
    assert!(join_second((&mut owner, to_peer), (&mut peer, at)));
    let lease = owner.lend(to_peer, src, way).expect("a key of its own");
    say(&mut owner, to_peer, &mut peer);
    (owner, peer, to_peer, at, lease)
}

/// What ends the memory of a client while a peer has a key.
fn is_taken_from_peers(says: Says, ends: fn(&Own)) {
    set("sv0", &[]);
    for way in [Way::Get, Way::Put] {
        let own = Own::new(says, 3);
        let (mut owner, mut peer, to_peer, at, lease) = lent(&own, way);
        let before = registrations();
        ends(&own);
        assert_eq!(before - registrations(), 1, "ended when the call has returned");
        assert_eq!(own.at_unmap.load(Relaxed), registrations(), "registrations when the mapping ended");
        assert_eq!(own.memory.device_maps(), (1, 1));
        // Other bytes come to the place.
        hmem::write(&[own.memory.alias()], 0, &pattern(2 * LEN, 7));
        let local = host(LEN, 9);
        assert!(!accesses(&mut peer, (way, at, lease.key, lease.base), local), "{way:?}");
        assert!(text(&[local]) == pattern(LEN, 9), "bytes that were taken back");
        assert!(text(&[own.memory.alias()]) == pattern(2 * LEN, 7), "bytes in what was taken back");
        assert!(owner.end_lease(lease.number, true));
        assert!(matches!(happens(&mut owner), Did::Failed(..)), "the end of the peer");
        assert!(owner.lend(to_peer, own.memory.span(), way).is_none());
        drop((owner, peer));
        own.memory.check();
        let _ = own.client.unregister();
        own.memory.check_end();
        assert_eq!((pairs(), domains(), registrations()), (0, 0, 0), "what is left");
    }
}

#[test]
fn a_dmabuf_that_a_client_invalidates_is_not_accessed_by_peers() {
    is_taken_from_peers(Says::Dmabuf, |own| own.memory.invalidate(&own.client));
}

#[test]
fn an_address_that_a_client_invalidates_is_not_accessed_by_peers() {
    is_taken_from_peers(Says::Address, |own| own.memory.invalidate(&own.client));
}

#[test]
fn memory_of_a_client_that_is_unregistered_is_not_accessed_by_peers() {
    is_taken_from_peers(Says::Dmabuf, |own| own.client.unregister().expect("a client"));
}

/// The device refuses to end it: the peer's queue pair is in error before the client has its memory.
#[test]
fn memory_that_is_taken_back_and_stays_registered_is_not_accessed_by_peers() {
    set("sv0", &[]);
    let own = Own::new(Says::Dmabuf, 3);
    let (owner, mut peer, _, at, lease) = lent(&own, Way::Get);
    let before = (registrations(), ibv(c"ibv_modify_qp"));
    let at_unmap = Arc::new(AtomicU64::new(0));
    let seen = at_unmap.clone();
    own.memory.at_unmap(move || seen.store(ibv(c"ibv_modify_qp"), Relaxed));
    fail(c"ibv_dereg_mr", 1, libc::EIO);
    own.memory.invalidate(&own.client);
    assert_eq!(before.0 - registrations(), 1, "a call, which was refused");
    assert_eq!(at_unmap.load(Relaxed) - before.1, 1, "queue pairs in error when the mapping ended");
    let local = host(LEN, 9);
    assert!(!accesses(&mut peer, (Way::Get, at, lease.key, lease.base), local));
    assert!(text(&[local]) == pattern(LEN, 9), "bytes that were taken back");
    drop((owner, peer));
    own.end();
}

/// A peer that has had its key, and requests it again.
#[test]
fn a_key_of_memory_that_was_taken_back_is_not_given_out_again() {
    set("sv0", &[]);
    let own = Own::new(Says::Dmabuf, 3);
    let (mut owner, mut peer) = (open(), open());
    let (to_peer, at) = join(&mut owner, &mut peer);
    let lease = owner.publish(own.filled(LEN, 3), true, true).expect("memory that is registered");
    assert!(owner.admit(to_peer, &lease, true, true).is_none(), "a key for all peers");
    assert!(join_second((&mut owner, to_peer), (&mut peer, at)));
    let key = owner.admit(to_peer, &lease, true, true).expect("a key");
    assert_eq!(owner.admit(to_peer, &lease, true, true), Some(key));
    assert_eq!(own.take_back(), 2, "of this side, and of the peer's domain");
    assert!(owner.admit(to_peer, &lease, true, true).is_none(), "a key of what is gone");
    assert!(owner.end_lease(lease.number, true));
    drop((owner, peer));
    own.end();
    assert_eq!((pairs(), domains(), registrations()), (0, 0, 0), "what is left");
}

/// A request under way that names it: its queue pair is in error before the client has its memory, also where nothing
/// polls, and nothing is written there any more.
#[test]
fn a_request_under_way_is_over_when_its_memory_is_taken_back() {
    set("sv0", &[("DELAY_US", "200000")]);
    for says in [Says::Dmabuf, Says::Address] {
        let own = Own::new(says, 3);
        let (mut by, mut peer) = (open(), open());
        let (at, to) = join(&mut by, &mut peer);
        say(&mut by, at, &mut peer);
        let lease = peer.lend(to, host(LEN, 5), Way::Get).expect("memory of the host");
        say(&mut peer, to, &mut by);
        let local = own.filled(LEN, 9);
        let (key, addr) = (lease.key, lease.base);
        let before = (registrations(), ibv(c"ibv_modify_qp"));
        let piece = Piece { way: Way::Get, at, key, first: key, addr, local, once: None };
        by.access(5, &piece).expect("room for an access");
        assert_eq!(registrations() - before.0, 1, "that of the request");
        assert_eq!(own.take_back(), 1);
        assert_eq!(ibv(c"ibv_modify_qp") - before.1, 1, "the queue pair of the request");
        hmem::write(&[own.memory.alias()], 0, &pattern(2 * LEN, 7));
        // The completion that was under way may be one of success.
        let (mut over, mut failed) = (None, false);
        while over.is_none() || !failed {
            match happens(&mut by) {
                Did::Over(5, is_done) => over = Some(is_done),
                Did::Failed(..) => failed = true,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(over, Some(false), "an access of what was taken back");
        assert!(text(&[own.memory.alias()]) == pattern(2 * LEN, 7), "bytes in what was taken back");
        assert!(by.access(6, &Piece { local: own.filled(LEN, 9), ..piece }).is_err());
        drop((by, peer));
        own.end();
        assert_eq!((pairs(), domains(), registrations()), (0, 0, 0), "what is left");
    }
}

/// A registration of the program that its own requests use: once it is taken back it serves none, and they go by one
/// that is made anew.
#[test]
fn a_registration_that_was_taken_back_serves_no_request_of_this_side() {
    set("sv0", &[]);
    let own = Own::new(Says::Dmabuf, 3);
    let (mut by, mut peer) = (open(), open());
    let (at, to) = join(&mut by, &mut peer);
    let local = own.filled(LEN, 9);
    let shared = by.publish(local, true, true).expect("memory that is registered");
    let mut get = |by: &mut Verbs, seed: usize| {
        let lease = peer.lend(to, host(LEN, seed), Way::Get).expect("memory of the host");
        say(&mut peer, to, by);
        let before = ibv(c"ibv_reg_dmabuf_mr");
        assert!(accesses(by, (Way::Get, at, lease.key, lease.base), local));
        assert!(text(&[local]) == pattern(LEN, seed));
        assert!(peer.end_lease(lease.number, true));
        ibv(c"ibv_reg_dmabuf_mr") - before
    };
    assert_eq!(get(&mut by, 5), 0, "it serves the request");
    assert_eq!(own.take_back(), 1);
    assert!(by.admit(at, &shared, true, true).is_none(), "a key of what is gone");
    assert_eq!(get(&mut by, 6), 1, "one that is made anew");
    assert!(by.end_lease(shared.number, true));
    drop((by, peer));
    own.end();
}

/// The engine's operations on registered memory that its client takes back: an error, and no byte of what was there;
/// what is registered anew is accessed.
#[test]
fn registered_memory_that_is_taken_back_fails_and_a_new_registration_does_not() {
    set("sv0", &[]);
    let own = Own::new(Says::Dmabuf, 3);
    let mut duo = Duo::new(open);
    let mr = known(&mut duo, own.filled(LEN, 3));
    assert_eq!(own.take_back(), 2, "of this side, and of the peer's domain");
    let (to, into) = (duo.a.peer, host(20_000, 9));
    duo.post(|a| a.domain.rma(a.ep, &read(to, &[into], &[there(0, 20_000, 9)], 1)));
    assert!(duo.complete(1, 0).0[0].err.is_some());
    assert!(text(&[into]) == pattern(20_000, 9), "bytes of what was taken back");
    duo.settle();
    closes(&mut duo, mr);
    duo.send(&[host(8, 1)], &[Span::leak(8)]);
    duo.settle();
    known(&mut duo, own.filled(LEN, 4));
    drop(duo);
    own.end();
}

/// Either end goes while the other one has a key, or has lent memory: what is mapped ends with the link, or before.
#[test]
fn the_end_of_either_end_leaves_nothing_mapped() {
    set("sv0", &[]);
    let own = Own::new(Says::Dmabuf, 3);
    for owner_first in [false, true] {
        let (owner, peer, _, _, _) = lent(&own, Way::Get);
        if owner_first {
            drop(owner);
            drop(peer);
        } else {
            drop(peer);
            drop(owner);
        }
        assert_eq!((pairs(), domains(), registrations()), (0, 0, 0), "what is left");
    }
    own.end();
}

/// Memory is taken back, and filled with other bytes, while a peer reads it: what it gets is of one filling, or an
/// error.
#[test]
fn what_a_peer_reads_while_memory_is_taken_back_is_of_one_time() {
    set("sv0", &[]);
    let own = Own::new(Says::Dmabuf, 0);
    let (over, fillings, wanted) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let (mut good, mut failed) = (0, 0);
    std::thread::scope(|scope| {
        let (own, over, fillings, wanted) = (&own, &over, &fillings, &wanted);
        let all = own.memory.alias();
        hmem::write(&[all], 0, &vec![0; all.len()]);
        scope.spawn(move || {
            while !over.load(Relaxed) {
                if fillings.load(Relaxed) == wanted.load(Relaxed) {
                    std::thread::yield_now();
                    continue;
                }
                own.memory.says(Says::NotAcquired(libc::EAGAIN));
                own.memory.invalidate(&own.client);
                let byte = fillings.load(Relaxed) as u8;
                hmem::write(&[all], 0, &vec![byte.wrapping_add(1); all.len()]);
                own.memory.says(Says::Dmabuf);
                fillings.fetch_add(1, Relaxed);
            }
        });
        let src = own.memory.part(777, LEN);
        for _ in 0..30 {
            let (mut owner, mut peer) = (open(), open());
            let (to_peer, at) = join(&mut owner, &mut peer);
            let _ = owner.lend(to_peer, src, Way::Get);
            if !join_second((&mut owner, to_peer), (&mut peer, at)) {
                continue;
            }
            // Every other access meets one that takes the memory back.
            for nth in 0..50 {
                while fillings.load(Relaxed) < wanted.load(Relaxed) {
                    std::thread::yield_now();
                }
                let Some(lease) = owner.lend(to_peer, src, Way::Get) else { continue };
                say(&mut owner, to_peer, &mut peer);
                let local = host(LEN, 9);
                wanted.fetch_add(nth % 2, Relaxed);
                let is_done = accesses(&mut peer, (Way::Get, at, lease.key, lease.base), local);
                let got = text(&[local]);
                assert!(is_done || nth % 2 == 1, "an access of memory that is not taken back");
                if is_done {
                    assert!(got.iter().all(|byte| *byte == got[0]), "bytes of two fillings");
                    good += 1;
                } else {
                    assert!(got == pattern(LEN, 9), "some bytes of an access that has failed");
                    failed += 1;
                }
                owner.end_lease(lease.number, true);
                if !is_done {
                    break;
                }
            }
        }
        over.store(true, Relaxed);
    });
    assert!(good > 0 && fillings.load(Relaxed) > 1, "{good} accesses were done, {failed} failed");
    own.memory.invalidate(&own.client);
    own.end();
}

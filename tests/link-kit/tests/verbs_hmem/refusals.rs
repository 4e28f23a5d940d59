//! What becomes of memory of a client that refuses it, or says what is of no use: the path, and frames.

use below::NotSent;

use super::apart::{domains, pairs, registrations};
use super::client::Own;
use super::client_memory::Says;
use super::duo::filled as host;
use super::*;

/// What the path says of memory of a client that says this, for this side and for peers; and whether it was accessed.
fn says(device: &str, says: Says, said: &str) {
    set(device, &[]);
    let own = Own::new(says, 3);
    let src = own.filled(100_000, 3);
    let is_taken = !said.contains("by no way");
    assert_eq!(way(&options(), src), (is_taken, said.to_owned()));
    let (lent, text) = way_for_peers(&options(), src);
    let (for_peers, why) = said.split_once(" by ").expect("a way");
    // For this side it was tried whether the device takes it.
    assert_eq!((lent, text), (is_taken, format!("{for_peers} for peers by {why}")));
    own.end();
    // A call that was refused counts.
    assert!(!is_taken || (pairs(), domains(), registrations()) == (0, 0, 0), "what is left");
}

const TAKEN: &str = "Client by its client's mapping";

fn refused(why: &str, errno: i32) -> String {
    let text = std::io::Error::from_raw_os_error(errno);
    format!("Client by no way (not its client's mapping: {why}: {text})")
}

#[test]
fn memory_of_a_client_is_registered_as_its_dmabuf() {
    says("sv0", Says::Dmabuf, TAKEN);
}

#[test]
fn memory_of_a_client_is_registered_as_what_it_exports() {
    says("sv0", Says::Export, TAKEN);
}

#[test]
fn memory_of_a_client_is_registered_by_an_address_of_the_clients() {
    says("sv0:nodmabuf", Says::Address, TAKEN);
}

#[test]
fn the_path_says_that_the_device_takes_no_dmabuf_of_a_client() {
    says("sv0:nodmabuf", Says::Dmabuf, &refused("ibv_reg_dmabuf_mr", libc::EOPNOTSUPP));
}

#[test]
fn the_path_says_which_callback_of_a_client_has_refused() {
    says("sv0", Says::NotMapped(libc::ENOSPC), &refused("the client's dma_map", libc::ENOSPC));
}

#[test]
fn the_path_says_that_a_client_exports_no_dmabuf() {
    says("sv0", Says::Opaque, &refused("the client's export_dmabuf", libc::EOPNOTSUPP));
}

#[test]
fn a_descriptor_of_a_client_that_is_none_is_not_registered() {
    says("sv0", Says::Closed, &refused("what the client's dma_map answers", libc::EBADF));
}

#[test]
fn a_dmabuf_of_a_client_that_is_too_short_is_not_registered() {
    says("sv0", Says::Short, &refused("what the client's dma_map answers", libc::EINVAL));
}

#[test]
fn pieces_of_a_client_that_have_no_byte_are_not_registered() {
    says("sv0", Says::Empty, &refused("what the client's dma_map answers", libc::EINVAL));
}

#[test]
fn memory_of_a_client_in_two_pieces_is_not_registered() {
    says("sv0", Says::TwoPieces, &refused("what the client's dma_map answers", libc::EOPNOTSUPP));
}

#[test]
fn a_descriptor_of_a_client_that_is_of_no_dmabuf_is_not_registered() {
    says("sv0", Says::NoDmabuf, &refused("what the client's dma_map answers", libc::EPERM));
}

#[test]
fn the_path_says_that_a_client_has_not_acquired_memory() {
    says("sv0", Says::NotAcquired(libc::EACCES), &refused("the client's acquire", libc::EACCES));
}

#[test]
fn the_path_says_that_a_client_has_not_pinned_memory() {
    says("sv0", Says::NotPinned(libc::ENOMEM), &refused("the client's get_pages", libc::ENOMEM));
}

#[test]
fn the_path_says_that_a_client_is_not_for_devices() {
    let why = refused("the client, which is not registered for devices", libc::EOPNOTSUPP);
    says("sv0", Says::NotForDevices, &why);
}

/// The errno of what has refused it; of all of the memory, and not of its first 64 KiB alone.
#[test]
fn what_is_asked_of_memory_of_a_client_is_answered_by_its_client() {
    set("sv0", &[]);
    let name = std::net::IpAddr::from([127, 0, 0, 1]);
    for (says, found) in [
        (Says::Dmabuf, Ok(())),
        (Says::Address, Err(libc::EOPNOTSUPP)),
        (Says::NotMapped(libc::ENOSPC), Err(libc::ENOSPC)),
        (Says::Closed, Err(libc::EBADF)),
        (Says::TwoPieces, Err(libc::EOPNOTSUPP)),
        (Says::NotForDevices, Err(libc::EOPNOTSUPP)),
    ] {
        let own = Own::new(says, 3);
        let asked = verbs::ask(&options(), name, own.filled(100_000, 3), None);
        assert_eq!(asked.dmabufs[1], found, "{says:?}: {}", asked.text);
        let is_taken = matches!(says, Says::Dmabuf | Says::Address);
        assert_eq!(asked.text.contains(TAKEN), is_taken, "{says:?}: {}", asked.text);
        own.end();
    }
    assert_eq!((domains(), registrations()), (0, 0), "what is left");
}

/// A client that was written before there were adapters: its memory goes in frames, and no callback is called for one.
#[test]
fn memory_of_a_client_that_is_not_for_devices_goes_in_frames() {
    set("sv0", &[]);
    let (from, into) = (Own::new(Says::NotForDevices, 1), Own::new(Says::NotForDevices, 9));
    let mut duo = Duo::new(open);
    for seed in 0..10 {
        let (accesses, bytes) = duo.counted_send(from.filled(LEN, seed), into.filled(LEN, 50));
        assert!(accesses == 0 && bytes > LEN as u64, "{accesses} accesses, {bytes} bytes in frames");
    }
    assert_eq!((from.memory.asked(), into.memory.asked()), (0, 0));
    drop(duo);
    from.end();
    into.end();
}

/// The room that a client has not is none that requests of this side give back.
#[test]
fn an_access_to_memory_that_its_client_refuses_for_now_waits_for_no_other_request() {
    set("sv0", &[("DELAY_US", "200000")]);
    for errno in [libc::ENOMEM, libc::EAGAIN, libc::ENOSPC] {
        let own = Own::new(Says::NotMapped(errno), 3);
        let (mut by, mut peer) = (open(), open());
        let (at, to) = join(&mut by, &mut peer);
        say(&mut by, at, &mut peer);
        let lease = peer.lend(to, host(LEN, 5), Way::Get).expect("memory of the host");
        say(&mut peer, to, &mut by);
        let (key, addr) = (lease.key, lease.base);
        let piece = Piece { way: Way::Get, at, key, first: key, addr, local: host(LEN, 9), once: None };
        by.access(5, &piece).expect("room for an access");
        let refused = by.access(6, &Piece { local: own.filled(LEN, 9), ..piece });
        assert!(matches!(refused, Err(NotSent::Error(_))), "{errno}: {refused:?}");
        assert_eq!(own.memory.asked(), 1);
        drop((by, peer));
        own.end();
    }
}

/// One client's refusals say nothing of another one's memory, however many there are.
#[test]
fn memory_of_a_client_is_tried_however_often_that_of_another_one_was_refused() {
    set("sv0", &[]);
    let (bad, good) = (Own::new(Says::NotMapped(libc::EOPNOTSUPP), 3), Own::new(Says::Dmabuf, 4));
    let mut duo = Duo::new(open);
    for seed in 0..10 {
        let (accesses, bytes) = duo.counted_send(bad.filled(LEN, seed), Span::leak(LEN));
        assert!(accesses == 0 && bytes > LEN as u64, "{accesses} accesses, {bytes} bytes in frames");
    }
    duo.send_until_accesses(|| good.filled(LEN, 5));
    assert_eq!(bad.memory.asked(), 1, "calls of dma_map that has refused");
    drop(duo);
    bad.end();
    good.end();
}

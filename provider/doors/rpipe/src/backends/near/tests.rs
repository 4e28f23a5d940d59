//! What a peer leaves behind on this host.

use std::fs;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use ipc::memfd::{self, Writers};
use ipc::rights::send_fd;
use ipc::socket;

use super::Near;
use crate::{Backend, Event};

/// A connection of a peer, which has said its rank.
fn peer(near: &Near) -> std::os::fd::OwnedFd {
    let card = String::from_utf8(near.card()).unwrap();
    let sock = socket::connect(card.split_once(' ').unwrap().0).unwrap();
    socket::send(&sock, &[1, 7, 0, 0, 0]).unwrap();
    sock
}

fn progress_until_gone(near: &mut Near) {
    let mut events = Vec::new();
    for _ in 0..60_000 {
        near.progress(&mut events).unwrap();
        if events.iter().any(|event| matches!(event, Event::Gone { peer: 7, .. })) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("its end is not noticed");
}

#[test]
fn memory_that_was_sent_and_never_granted_goes_with_its_sender() {
    let maps = || fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:never-granted").count();
    let mut near = Near::open(0, true).unwrap();
    let sock = peer(&near);
    for _ in 0..3 {
        let memory = memfd::create(c"never-granted", 4096, Writers::All).unwrap();
        send_fd(&sock, &[2], memory.as_fd()).unwrap();
    }
    let mut events = Vec::new();
    for _ in 0..60_000 {
        near.progress(&mut events).unwrap();
        if maps() == 3 {
            break;
        }
    }
    assert_eq!(maps(), 3);
    drop(sock);
    progress_until_gone(&mut near);
    assert_eq!(maps(), 0);
}

#[test]
fn packets_use_up_no_names_of_regions() {
    let mut near = Near::open(0, true).unwrap();
    let first = near.expose(64).unwrap().id.0;
    let sock = peer(&near);
    for _ in 0..5 {
        socket::send(&sock, &[4]).unwrap();
    }
    drop(sock);
    progress_until_gone(&mut near);
    assert_eq!(near.expose(64).unwrap().id.0, first + 1);
}

#[test]
fn connections_that_say_nothing_are_few_and_end_and_hold_up_no_peer() {
    let mut near = Near::open(0, true).unwrap();
    let card = String::from_utf8(near.card()).unwrap();
    let name = card.split_once(' ').unwrap().0;
    let mut events = Vec::new();
    let mut silent = Vec::new();
    for _ in 0..5 {
        silent.extend((0..40).map(|_| socket::connect(name).unwrap()));
        near.progress(&mut events).unwrap();
    }
    let held = |near: &Near| near.sockets.iter().flatten().count();
    assert_eq!((held(&near), near.guests.len()), (64, 64));
    let sock = peer(&near);
    socket::send(&sock, &[3, 1, 2]).unwrap();
    let heard = |events: &[Event]| events.iter().any(|event| matches!(event, Event::Control { from: 7, .. }));
    for _ in 0..60_000 {
        near.progress(&mut events).unwrap();
        if heard(&events) {
            break;
        }
    }
    assert!(heard(&events), "a peer is not heard behind those that say nothing");
    let long_ago = Instant::now().checked_sub(Duration::from_secs(11)).unwrap();
    near.guests.each_since().for_each(|since| *since = long_ago);
    near.progress(&mut events).unwrap();
    assert_eq!((held(&near), near.guests.len()), (1, 0));
    drop(silent);
    drop(sock);
    progress_until_gone(&mut near);
}

#[test]
fn a_peer_that_has_not_accepted_others_yet_is_called_again() {
    let far = Near::open(1, true).unwrap();
    let card = far.card();
    let name = std::str::from_utf8(&card).unwrap().split_once(' ').unwrap().0;
    let mut waiting = Vec::new();
    let full = loop {
        match socket::connect(name) {
            Ok(sock) => waiting.push(sock),
            Err(e) => break e,
        }
    };
    if full.kind() != std::io::ErrorKind::WouldBlock {
        eprintln!("left out: {} connections wait, and then: {full}", waiting.len());
        return;
    }
    let mut near = Near::open(0, true).unwrap();
    assert_eq!(near.connect(1, &card), Err(crate::Error::Again));
    drop(socket::accept(far.listener.as_ref().unwrap()).unwrap());
    assert_eq!(near.connect(1, &card), Ok(()));
}

//! A selector's peer that has a channel on two links.
#![cfg(not(loom))]

use std::thread::sleep;
use std::time::{Duration, Instant};

use link::{Links, OpenOptions, ShmLink};
use link_api::{Event, Gone, Link, PeerId, Refused};
use link_kit::keyed::{KeyedLink, KeyedNet, Pace};
use wire::Addr;

/// An endpoint `a` with both links; and its peer, of one name, as a link each.
struct Both {
    net: KeyedNet,
    keyed_name: Addr,
    a: Links,
    to_b: PeerId,
    shm: Option<ShmLink>,
    keyed: Option<KeyedLink>,
}

fn options() -> OpenOptions {
    OpenOptions { bind: Some("127.0.0.1:0".parse().unwrap()), ..OpenOptions::default() }
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain: {what}");
        sleep(Duration::from_micros(10));
    }
}

fn bytes_of(link: &mut impl Link, event: Event) -> (PeerId, Vec<u8>) {
    let Event::Frame(frame) = event else { panic!("{event:?}, not a frame") };
    let (from, mut bytes) = (frame.from, vec![0; frame.len]);
    assert_eq!(link.read(&frame, 0, &mut bytes), frame.len);
    link.release(frame);
    (from, bytes)
}

fn next(link: &mut impl Link) -> Event {
    let mut event = None;
    until("an event", || {
        event = link.poll();
        event.is_some()
    });
    event.unwrap()
}

fn assert_closed(link: &mut impl Link, peer: PeerId) {
    let event = next(link);
    assert!(matches!(event, Event::Closed(of, Gone::Reset) if of == peer), "{event:?}");
}

fn say(link: &mut impl Link, to: PeerId, bytes: &[u8]) {
    until("room for a frame", || match link.send(to, bytes, &[], 0, 0) {
        Err(Refused::Busy) => link.poll().is_some(),
        done => done.map(|()| true).unwrap(),
    });
}

impl Both {
    /// Both channels are there, and `a` has heard of the peer by each.
    fn new() -> Both {
        let mut net = KeyedNet::new(Pace::default());
        let mut a = Links::open(options()).unwrap();
        let keyed_name = net.name();
        a.add(Box::new(net.open(keyed_name).unwrap())).unwrap();
        let mut shm = ShmLink::open(options()).unwrap();
        let mut keyed = net.open(shm.addr()).unwrap();
        let to_b = a.peer(&shm.addr());
        assert_eq!(a.path(to_b).link, "shm");
        let (by_shm, by_key) = (shm.peer(&a.addr()), keyed.peer(&keyed_name));
        say(&mut shm, by_shm, b"shm");
        assert_eq!(heard(&mut a), (to_b, b"shm".to_vec()));
        say(&mut keyed, by_key, b"keyed");
        assert_eq!(heard(&mut a), (to_b, b"keyed".to_vec()));
        say(&mut a, to_b, b"back");
        assert_eq!(heard(&mut shm), (by_shm, b"back".to_vec()));
        Both { net, keyed_name, a, to_b, shm: Some(shm), keyed: Some(keyed) }
    }

    /// Frames by both links, which `a` has not polled yet.
    fn say_by_both(&mut self) {
        for n in 0..4u8 {
            say(self.shm.as_mut().unwrap(), PeerId(0), &[b's', n]);
            say(self.keyed.as_mut().unwrap(), PeerId(0), &[b'k', n]);
        }
    }

    /// The end of the peer comes once, with nothing behind it.
    fn ends_once(&mut self) -> (Gone, Vec<Vec<u8>>) {
        let mut frames = Vec::new();
        let why = loop {
            match next(&mut self.a) {
                Event::Closed(peer, why) => {
                    assert_eq!(peer, self.to_b);
                    break why;
                }
                event => frames.push(bytes_of(&mut self.a, event).1),
            }
        };
        assert!(!self.a.is_connected(self.to_b), "a channel is left");
        for _ in 0..500 {
            let event = self.a.poll();
            assert!(event.is_none(), "{event:?} after the end");
            sleep(Duration::from_micros(10));
        }
        (why, frames)
    }

    /// A new endpoint of the peer's name is heard.
    fn successor_is_heard(mut self) {
        let name = self.a.peer_addr(self.to_b);
        (self.shm, self.keyed) = (None, None);
        let mut shm = ShmLink::open(OpenOptions { bind: Some(name.sock()), ..options() }).unwrap();
        let to_a = shm.peer(&self.a.addr());
        say(&mut shm, to_a, b"new");
        assert_eq!(heard(&mut self.a), (self.to_b, b"new".to_vec()));
        say(&mut self.a, self.to_b, b"welcome");
        assert_eq!(heard(&mut shm), (to_a, b"welcome".to_vec()));
    }
}

fn heard(link: &mut impl Link) -> (PeerId, Vec<u8>) {
    let event = next(link);
    bytes_of(link, event)
}

#[test]
fn frames_of_either_channel_are_seen_to_be_there() {
    let mut both = Both::new();
    assert!(!both.a.has_frames_of(both.to_b));
    say(both.keyed.as_mut().unwrap(), PeerId(0), b"1");
    until("the carrier", || both.a.has_frames_of(both.to_b));
    assert_eq!(heard(&mut both.a).1, b"1");
    assert!(!both.a.has_frames_of(both.to_b));
    say(both.shm.as_mut().unwrap(), PeerId(0), b"2");
    assert!(both.a.has_frames_of(both.to_b));
}

#[test]
fn a_peer_that_is_cut_off_ends_once_and_on_both_links() {
    let mut both = Both::new();
    both.say_by_both();
    both.a.disconnect(both.to_b);
    let (why, frames) = both.ends_once();
    assert_eq!((why, frames), (Gone::Denied, Vec::<Vec<u8>>::new()));
    assert_closed(both.shm.as_mut().unwrap(), PeerId(0));
    assert_closed(both.keyed.as_mut().unwrap(), PeerId(0));
    both.successor_is_heard();
}

#[test]
fn an_end_by_the_further_link_ends_the_channel_of_shared_memory_too() {
    let mut both = Both::new();
    both.keyed = None;
    assert_eq!(both.ends_once(), (Gone::Reset, Vec::new()));
    assert_closed(both.shm.as_mut().unwrap(), PeerId(0));
    both.successor_is_heard();
}

#[test]
fn an_end_by_shared_memory_ends_the_channel_of_the_further_link_too() {
    let mut both = Both::new();
    both.shm = None;
    assert_eq!(both.ends_once(), (Gone::Reset, Vec::new()));
    assert_closed(both.keyed.as_mut().unwrap(), PeerId(0));
    both.successor_is_heard();
}

/// A peer whose end the further link has reported, and shared memory has not.
fn half_ended() -> Both {
    // Which link is polled first changes with each poll; half of the time one poll takes in both reports.
    for _ in 0..100 {
        let mut both = Both::new();
        both.keyed = None;
        let mut closed = false;
        until("a report", || {
            closed = both.a.poll().is_some();
            closed || both.a.is_connected(both.to_b) && both.a.connect(both.to_b).is_err()
        });
        if !closed {
            return both;
        }
    }
    panic!("both ends are always reported by one poll");
}

#[test]
fn nothing_is_sent_between_the_two_reports_of_an_end() {
    let mut both = half_ended();
    let (a, to_b) = (&mut both.a, both.to_b);
    let gone = Err(Refused::Gone(Gone::Reset));
    assert_eq!((a.send(to_b, b"?", &[], 0, 0), a.connect(to_b)), (gone, gone));
    assert!(a.is_connected(to_b) && a.is_gone(to_b));
    assert_eq!(both.ends_once(), (Gone::Reset, Vec::new()));
    both.successor_is_heard();
}

#[test]
fn a_successor_that_connects_between_the_two_reports_is_cut_off_and_may_come_again() {
    let mut both = half_ended();
    let name = both.a.peer_addr(both.to_b);
    let mut again = both.net.open(name).unwrap();
    let to_a = again.peer(&both.keyed_name);
    say(&mut again, to_a, b"too early");
    // The frame is on its way, and arrives before the poll.
    sleep(Duration::from_millis(50));
    assert_eq!(both.ends_once(), (Gone::Reset, Vec::new()));
    assert_closed(&mut again, to_a);
    say(&mut again, to_a, b"in time");
    assert_eq!(heard(&mut both.a), (both.to_b, b"in time".to_vec()));
}

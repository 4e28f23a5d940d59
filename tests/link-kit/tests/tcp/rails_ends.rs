//! Connections and rails that end one without the other.

use std::io::Write as _;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd as _;
use std::thread;
use std::time::Duration;

use crate::pair::{open, until};
use crate::played::{Played, filled, railed, with_rail};
use crate::sockets::narrow;
use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::{Event, FrameLink, Gone, LandAt, Landing, Link, PeerId, Sent, Setting};
use wire::session::{COVERED, RailNote};

const LONG: usize = 200_000;

/// With a host given up after so long.
fn patient(timeout: Duration) -> TcpOptions {
    let mut options = railed(2);
    options.timeout = timeout;
    options
}

/// A peer that has announced a frame on its rail, of which half has come; the frame.
fn with_half_a_frame(b: &mut TcpLink, seed: usize) -> (Played, TcpStream, Vec<u8>) {
    let (mut played, mut rail, mut keys) = with_rail(b);
    let long = filled(seed, LONG);
    played.say(&RailNote::Next(1).encode());
    rail.write_all(&keys.sealer.seal(LONG as u32, &long[..COVERED])).unwrap();
    rail.write_all(&long[..LONG / 2]).unwrap();
    (played, rail, long)
}

/// Ends a connection by a RST.
fn reset(stream: TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: a valid option of its length.
    let done = unsafe {
        let at = (&raw const linger).cast();
        let len = size_of::<libc::linger>() as u32;
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, at, len)
    };
    assert_eq!(done, 0);
}

/// Takes what comes until a peer's end: the frames. Those that begin go to `room`, if it is given.
fn take_until_end(b: &mut TcpLink, room: Option<Span>) -> (Vec<Vec<u8>>, PeerId) {
    let (mut frames, mut end) = (Vec::new(), None);
    until("the end of the peer", || {
        match b.poll() {
            Some(Event::Frame(frame)) => {
                let mut out = vec![0; frame.len];
                assert_eq!(b.read(&frame, 0, &mut out), frame.len);
                b.release(frame);
                frames.push(out);
            }
            Some(Event::Begun(frame)) => {
                let len = frame.len;
                let room = room.expect("a frame that was not to begin");
                assert!(matches!(
                    b.land(frame, Some(LandAt { off: 0, dst: &[room], doff: 0, len })),
                    Landing::InFlight(_)
                ));
            }
            Some(Event::Done(_, ok)) => assert!(!ok, "half of it has not come"),
            Some(Event::Closed(peer, why)) => {
                assert_eq!(why, Gone::Reset);
                end = Some(peer);
            }
            Some(other) => panic!("{other:?}"),
            None => {}
        }
        end.is_some()
    });
    (frames, end.unwrap())
}

/// How a connection and its rail end while half of a frame is on the rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    RailFinished,
    RailReset,
    ConnectionFinished,
    ConnectionReset,
}

#[test]
fn the_end_of_either_with_half_a_frame_on_the_rail_is_told_of() {
    use How::*;
    for how in [RailFinished, RailReset, ConnectionFinished, ConnectionReset] {
        for lands in [false, true] {
            let mut b = open(patient(Duration::from_secs(1)));
            if lands {
                b.set(Setting::Early);
            }
            let (played, rail, _) = with_half_a_frame(&mut b, 1);
            let room = lands.then(|| Span::leak(LONG));
            // So that it is the rail's turn, and half of the frame has been looked at.
            for _ in 0..100 {
                match b.poll() {
                    Some(Event::Begun(frame)) => {
                        let len = frame.len;
                        b.land(frame, Some(LandAt { off: 0, dst: &[room.unwrap()], doff: 0, len }));
                    }
                    None => {}
                    other => panic!("{how:?}: {other:?}"),
                }
                thread::sleep(Duration::from_micros(100));
            }
            let name = played.name;
            // What does not end stays open, and its kernel answers.
            let (mut stream, mut rail) = (Some(played.stream), Some(rail));
            match how {
                RailFinished => rail.as_ref().unwrap().shutdown(Shutdown::Write).unwrap(),
                RailReset => reset(rail.take().unwrap()),
                ConnectionFinished => stream.as_ref().unwrap().shutdown(Shutdown::Write).unwrap(),
                ConnectionReset => reset(stream.take().unwrap()),
            }
            let (frames, peer) = take_until_end(&mut b, room);
            assert_eq!((frames.len(), b.peer_addr(peer)), (0, name), "{how:?}");
        }
    }
}

/// A frame that comes slowly on a rail arrives though the connection has ended.
#[test]
fn slow_frame_of_a_rail_arrives_after_the_connection_ended() {
    let timeout = Duration::from_secs(2);
    let mut b = open(patient(timeout));
    let (played, mut rail, long) = with_half_a_frame(&mut b, 2);
    played.stream.shutdown(Shutdown::Write).unwrap();
    let rest = long[LONG / 2..].to_vec();
    let sender = thread::spawn(move || {
        for part in rest.chunks(LONG / 80) {
            rail.write_all(part).unwrap();
            thread::sleep(timeout / 20);
        }
        rail
    });
    let (frames, _) = take_until_end(&mut b, None);
    assert!(frames == [long]);
    sender.join().unwrap();
}

/// The peer goes on to have the connection, and says nothing.
#[test]
fn a_rail_that_ends_with_a_part_of_a_frame_kept_here_ends_the_connection() {
    // An address of this test's own.
    let (at, mut options) = ([127, 0, 0, 78], railed(2));
    options.rails_at = vec![at.into()];
    let mut b = open(options);
    b.set(Setting::Kept);
    let (played, rail, _keys) = with_rail(&mut b);
    let peer = b.peer(&played.name);
    until("the rail to be up", || {
        assert!(b.poll().is_none(), "nothing was to come");
        b.describe(peer).contains("over 2 rails")
    });
    assert!(narrow(at, 1) >= 2);
    assert_eq!(b.send(peer, &[], &[Span::leak(LONG)], 0, LONG), Ok(Sent::Kept));
    assert!(b.keeps(peer));
    reset(rail);
    let (_, ended) = take_until_end(&mut b, None);
    assert_eq!((ended, b.keeps(peer), b.keeps(peer)), (peer, true, false), "lost, which is told once");
}

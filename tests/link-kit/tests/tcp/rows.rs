//! Frames of one transfer that are sent by one call, and what is kept back from one call to the next.

use crate::pair::{open, options, say, take, until};
use crate::sockets::narrow;
use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::{Cork, Event, FrameLink as _, Link as _, PeerId, Refused, RmaLink as _, Row};
use link_kit::bytes;

fn pair_of(options: impl Fn() -> TcpOptions) -> (TcpLink, PeerId, TcpLink) {
    let (mut a, mut b) = (open(options()), open(options()));
    let to_b = a.peer(&b.addr());
    say(&mut a, to_b, &mut [&mut b], b"hello");
    assert_eq!(take(&mut b, &mut a).1, b"hello");
    (a, to_b, b)
}

/// Sends all frames of a row of `len` bytes, `most` in each, while the other side takes them.
fn send_all(a: &mut TcpLink, to_b: PeerId, b: &mut TcpLink, body: &[Span], (most, len): (usize, usize)) {
    let heads: Vec<Vec<u8>> = (0..len.div_ceil(most)).map(|n| bytes(20, n)).collect();
    let mut all = vec![0; len];
    assert_eq!(hmem::read(body, 0, &mut all), len);
    let want: Vec<Vec<u8>> = heads.iter().zip(all.chunks(most)).map(|(h, part)| [h, part].concat()).collect();
    let (mut sent, mut got) = (0, 0);
    until("all frames", || {
        let mut is_full = sent == want.len();
        if sent < want.len() {
            let row: Vec<&[u8]> = heads[sent..].iter().take(Row::FRAMES).map(|head| &head[..]).collect();
            let off = sent * most;
            let len = (len - off).min(row.len() * most);
            match a.send_row(to_b, Row { heads: &row, body, off, most, len }) {
                Ok(n) => {
                    assert!(n > 0 && n <= row.len());
                    sent += n;
                }
                Err(why) => {
                    assert_eq!(why, Refused::Busy);
                    is_full = true;
                }
            }
        }
        a.progress();
        while got < sent && is_full {
            assert!(take(b, a).1 == want[got], "frame {got} of {}", want.len());
            got += 1;
        }
        got == want.len()
    });
}

#[test]
fn the_frames_of_a_row_come_whole_and_in_order_however_little_room_there_is() {
    for (rails, room) in [(1, 0), (1, 40_000), (1, 200_000), (2, 0)] {
        let ip = [127, 0, 2, 1 + rails as u8 + (room >> 12) as u8];
        let (mut a, to_b, mut b) = pair_of(|| {
            let mut options = options("of rows");
            options.rails = rails;
            options.rails_at = vec![ip.into()];
            options.striped = 50_000;
            options
        });
        if room > 0 {
            assert!(narrow([127, 0, 0, 1], room) > 0);
        }
        for (most, len) in [(200_000, 2_500_000), (20_000, 310_000), (400, 4_001), (384, 384), (100, 250)] {
            // A kernel with little room may wait for its timers.
            let len = if room > 0 { len.min(8 * room as usize) } else { len };
            let parts = [Span::leak(len / 3), Span::leak(len - len / 3)];
            hmem::write(&parts, 0, &bytes(len, most));
            send_all(&mut a, to_b, &mut b, &parts, (most, len));
            say(&mut a, to_b, &mut [&mut b], b"behind");
            assert_eq!(take(&mut b, &mut a).1, b"behind");
        }
    }
}

#[test]
fn what_stays_goes_before_the_next_frame_or_when_that_is_over() {
    let (mut a, to_b, mut b) = pair_of(|| {
        let mut options = options("of what stays");
        options.gathers = true;
        options
    });
    for (how, kept) in [(0, Cork::Gather), (1, Cork::Gather), (2, Cork::Gather), (2, Cork::On)] {
        for number in 0..3 {
            a.cork(kept);
            assert!(a.send(to_b, &bytes(700, number), &[], 0, 0).is_ok());
            a.cork(Cork::Leave);
        }
        (0..300).for_each(|_| assert!(b.poll().is_none(), "it stays"));
        match how {
            0 => assert!(a.send(to_b, &bytes(700, 3), &[], 0, 0).is_ok()),
            1 => assert!(a.send(to_b, &bytes(100_000, 3), &[], 0, 0).is_ok()),
            _ => {
                a.cork(Cork::On);
                assert!(a.send(to_b, &bytes(700, 3), &[], 0, 0).is_ok());
                a.cork(Cork::Off);
            }
        }
        for number in 0..3 {
            assert_eq!(take(&mut b, &mut a).1, bytes(700, number));
        }
        assert_eq!(take(&mut b, &mut a).1, bytes(if how == 1 { 100_000 } else { 700 }, 3));
    }
}

#[test]
fn a_link_that_is_not_to_gather_sends_at_once() {
    let (mut a, to_b, mut b) = pair_of(|| options("of none that stays"));
    a.cork(Cork::Gather);
    for number in 0..3 {
        assert!(a.send(to_b, &bytes(700, number), &[], 0, 0).is_ok());
        assert_eq!(take_alone(&mut b), bytes(700, number));
    }
    a.cork(Cork::Leave);
}

/// The next frame, which comes without a call of its sender's.
fn take_alone(b: &mut TcpLink) -> Vec<u8> {
    let mut got = Vec::new();
    until("a frame", || {
        let Some(Event::Frame(frame)) = b.poll() else { return false };
        got = vec![0; frame.len];
        assert_eq!(b.read(&frame, 0, &mut got), got.len());
        b.release(frame);
        true
    });
    got
}

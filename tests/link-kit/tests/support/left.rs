//! What a link over a fabric says of frames that have not left this process.

use std::thread::sleep;
use std::time::{Duration, Instant};

use link_api::{Event, FrameLink, PeerId, Refused, Setting, SleepLink, WaitFd};
use link_kit::{bytes, is_readable};

const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until that is so.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "waited in vain: {what}");
        sleep(Duration::from_micros(20));
    }
}

/// The next frame that has come; nothing else may.
pub fn next(of: &mut impl FrameLink) -> Option<Vec<u8>> {
    match of.poll()? {
        Event::PathChanged(_) => None,
        Event::Frame(frame) => {
            let mut out = vec![0; frame.len];
            assert_eq!(of.read(&frame, 0, &mut out), frame.len);
            of.release(frame);
            Some(out)
        }
        other => panic!("{other:?}"),
    }
}

/// Has both find each other, with a frame that arrives. What the first one calls the other.
pub fn connect(a: &mut impl FrameLink, b: &mut impl FrameLink) -> PeerId {
    let (to_b, mut sent, mut got) = (a.peer(&b.addr()), false, None);
    a.set(Setting::Kept);
    until("a frame", || {
        sent = sent || a.send(to_b, b"hello", &[], 0, 0).is_ok();
        assert!(next(a).is_none());
        got = got.take().or_else(|| next(b));
        got.is_some() && !a.keeps(to_b)
    });
    assert_eq!(got.as_deref(), Some(&b"hello"[..]));
    to_b
}

/// Sends frames of these lengths until there is no room; how many.
pub fn fill(a: &mut impl FrameLink, to_b: PeerId, len: impl Fn(usize) -> usize) -> usize {
    for sent in 0.. {
        match a.send(to_b, &bytes(len(sent), sent), &[], 0, 0) {
            Ok(_) => {}
            Err(why) => {
                assert_eq!(why, Refused::Busy);
                return sent;
            }
        }
    }
    0
}

/// Frames of these lengths all arrive, though their sender is called only where it cannot sleep or is woken,
/// and not any more once it keeps none of them.
pub fn what_is_not_kept_arrives(
    a: &mut (impl FrameLink + SleepLink),
    b: &mut impl FrameLink,
    to_b: PeerId,
    len: impl Fn(usize) -> usize,
) {
    let (sent, mut got) = (fill(a, to_b, &len), 0);
    until("all frames", || {
        // Asleep, as long as nothing wakes it.
        if a.keeps(to_b)
            && !(a.arm() && a.wait_fd(WaitFd::All).is_some_and(|fd| !is_readable(fd, Duration::ZERO)))
        {
            assert!(next(a).is_none());
        }
        if let Some(frame) = next(b) {
            assert!(frame == bytes(len(got), got), "frame {got}");
            got += 1;
        }
        got == sent
    });
}

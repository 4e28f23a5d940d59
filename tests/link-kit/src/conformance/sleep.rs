//! Sleeping until something happens: [`arm`](link_api::SleepLink::arm) and [`wait_fd`](link_api::SleepLink::wait_fd).

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use link_api::{Connect, Event, FrameLink as _, Gone, Link as _, Parting, Refused, SleepLink as _, WaitFd};

use crate::harness::{Drive, next};
use crate::{Ends, Harness, bytes, is_readable};

/// Arms a link to which nothing is on its way; its descriptor.
fn armed<H: Harness>(h: &mut H, link: &mut H::Link) -> RawFd {
    let fd = link.wait_fd(WaitFd::All).expect("this group is for links with a descriptor");
    h.until("that an idle link may sleep", |_| {
        if let Some(event) = next(link) {
            panic!("nothing was to come, but {event:?} did");
        }
        link.arm()
    });
    fd
}

/// "`false` means that something is there already."
pub fn a_link_with_a_frame_does_not_sleep<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    for i in 0..20 {
        h.say(&mut a, to_b, &bytes(300, i));
        h.until("a link that is kept from sleeping by a frame", |_| !b.arm());
        assert_eq!(h.take(&mut b), (to_a, bytes(300, i)));
    }
}

/// "Readable when there is something to do, provided that `arm` returned true and `poll` was not called
/// since."
pub fn a_frame_wakes<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    for i in 0..50 {
        let fd = armed(h, &mut b);
        h.say(&mut a, to_b, &bytes(300, i));
        assert!(is_readable(fd, h.patience()), "frame {i} does not wake");
        assert_eq!(h.take(&mut b), (to_a, bytes(300, i)));
    }
}

/// The end of a peer is something to do.
pub fn an_end_wakes<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, b, .. } = h.pair();
    let fd = armed(h, &mut a);
    h.end(b);
    assert!(is_readable(fd, h.patience()), "the end of a peer does not wake");
    assert_eq!(h.closed(&mut a), (to_b, Gone::Reset));
}

/// So is room for a frame that found none.
pub fn room_wakes<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, .. } = h.pair();
    for round in 0..5 {
        let mut sent = 0;
        let fd = a.wait_fd(WaitFd::All).expect("this group is for links with a descriptor");
        // Room of the round before may be on its way still: what does not arm reports it, and it is filled,
        // too.
        h.until("that a link which waits for room may sleep", |_| {
            while a.send(to_b, &bytes(900, sent), &[], 0, 0).is_ok() {
                sent += 1;
            }
            assert!(next(&mut a).is_none(), "nothing was to come");
            a.arm()
        });
        for i in 0..sent {
            assert!(h.take(&mut b).1 == bytes(900, i));
        }
        assert!(is_readable(fd, h.patience()), "room does not wake, in round {round}");
        h.say(&mut a, to_b, b"now");
        assert_eq!(h.take(&mut b).1, b"now");
    }
}

/// Also room that was there by the last poll, which does not report it.
pub fn room_that_was_made_before_a_poll_wakes<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, .. } = h.pair();
    let fd = armed(h, &mut a);
    for round in 0..5 {
        let mut sent = 0;
        while a.send(to_b, &bytes(900, sent), &[], 0, 0).is_ok() {
            sent += 1;
        }
        for i in 0..sent {
            assert!(h.take(&mut b).1 == bytes(900, i));
        }
        (0..20).for_each(|_| h.pass());
        assert!(next(&mut a).is_none(), "nothing was to come");
        assert!(!a.arm() || is_readable(fd, h.patience()), "room does not wake, in round {round}");
        h.say(&mut a, to_b, b"now");
        assert_eq!(h.take(&mut b).1, b"now");
    }
}

/// So is the end of a peer that was cut off, and that of one that was waited for in vain.
pub fn an_end_that_is_still_to_be_reported_wakes<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, b: _b, .. } = h.pair();
    let fd = armed(h, &mut a);
    a.dismiss(to_b, Parting::CutOff);
    assert!(!a.arm() || is_readable(fd, h.patience()), "the end of a peer that was cut off does not wake");
    assert_eq!(h.closed(&mut a), (to_b, Gone::Denied));

    let name = h.nowhere();
    let absent = a.peer(&name);
    assert_eq!(a.connect(absent, Connect::Expected), Ok(()));
    let start = Instant::now();
    loop {
        if let Some(event) = next(&mut a) {
            assert!(matches!(event, Event::Closed(peer, Gone::Refused) if peer == absent), "{event:?}");
            break;
        }
        assert!(start.elapsed() < 3 * h.patience(), "an expected peer is waited for for ever");
        assert!(!a.arm() || is_readable(fd, h.patience()), "an expected peer that never comes does not wake");
    }
}

/// So is a channel that took a while to be made.
pub fn a_channel_wakes<H: Harness>(h: &mut H) {
    for round in 0..10 {
        let (mut a, mut b) = (h.open(), h.open());
        let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
        let fd = a.wait_fd(WaitFd::All).expect("this group is for links with a descriptor");
        let start = Instant::now();
        while a.send(to_b, b"first", &[], 0, 0) == Err(Refused::Busy) {
            assert!(start.elapsed() < h.patience(), "a peer that is there is never reached");
            // It may be made before that poll, which does not report it.
            (0..20 * (round % 2)).for_each(|_| h.pass());
            assert!(next(&mut a).is_none(), "nothing was to come");
            assert!(!a.arm() || is_readable(fd, h.patience()), "a channel that was made does not wake");
        }
        assert_eq!(h.take(&mut b), (to_a, b"first".to_vec()));
    }
}

/// A descriptor that is always readable would keep the program from sleeping.
pub fn an_idle_link_sleeps<H: Harness>(h: &mut H) {
    let Ends { mut a, mut b, .. } = h.pair();
    let fds = [armed(h, &mut a), armed(h, &mut b)];
    h.until("a descriptor that is not readable", |h| {
        let all = fds.iter().all(|fd| !is_readable(*fd, Duration::from_millis(2)));
        // What came of the greetings is over at some time.
        armed(h, &mut a);
        armed(h, &mut b);
        all
    });
}

/// "Whether the last `arm` returned true and holds." A link may say `false` where it does not know, and never
/// `true`.
pub fn an_armed_link_says_so_until_it_is_polled<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    armed(h, &mut b);
    assert!(next(&mut b).is_none(), "nothing was to come");
    assert!(!b.is_armed(), "a link that was polled says that it is armed");
    h.say(&mut a, to_b, b"1");
    h.until("a link that is kept from sleeping by a frame", |_| !b.arm());
    assert!(!b.is_armed(), "a link that may not sleep says that it is armed");
    assert_eq!(h.take(&mut b), (to_a, b"1".to_vec()));
}

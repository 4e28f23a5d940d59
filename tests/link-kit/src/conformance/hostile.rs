//! Peers that do what no honest one does.

use link_api::{Event, FrameLink as _, Link as _};

use crate::harness::{Drive, next, taken};
use crate::{Ends, Harness, bytes};

/// "Whatever it writes, a link answers with frames of correct length, or with `Event::Closed`."
pub fn nonsense_ends_its_channel_and_no_other<H: Harness>(h: &mut H) {
    assert!(h.attacks() > 0, "the harness can do nothing that is hostile");
    for how in 0..h.attacks() {
        let Ends { mut a, to_b, mut b, to_a } = h.pair();
        let most = b.path(to_a).max_frame;
        let mut c = h.open();
        let (c_to_b, to_c) = (c.peer(&b.addr()), b.peer(&c.addr()));
        h.say(&mut a, to_b, b"before");
        let fatal = h.attack(how, &mut a, &b);
        let (mut ended, mut heard, mut before) = (false, 0, false);
        h.until("what comes of an attack", |h| {
            if heard < 20 {
                let _ = c.send(c_to_b, &bytes(500, heard), &[], 0, 0);
            }
            match next(&mut b) {
                Some(Event::Closed(peer, _)) => {
                    assert_eq!((peer, ended), (to_a, false), "attack {how}");
                    ended = true;
                }
                Some(Event::Frame(f)) => {
                    assert!(f.len <= most, "attack {how}: a frame of {} bytes", f.len);
                    let (from, got) = taken(&mut b, f);
                    if from == to_c {
                        assert!(got.len() == 500, "attack {how}: a frame of the other peer is {got:?}");
                        heard += 1;
                    } else {
                        before |= got == b"before";
                    }
                }
                Some(other) => panic!("attack {how}: {other:?}"),
                None => {}
            }
            let _ = h;
            heard >= 20 && before && (ended || !fatal)
        });
        h.end(a);
        if !fatal && !ended {
            h.until("the end of a peer that did not finish", |_| match next(&mut b) {
                Some(Event::Closed(peer, _)) => peer == to_a,
                Some(Event::Frame(f)) => {
                    assert_eq!(taken(&mut b, f).0, to_c, "attack {how}: a frame that was never whole");
                    false
                }
                _ => false,
            });
        }
    }
}

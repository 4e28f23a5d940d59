//! Peers that come back.

use link_api::{Event, Gone, Link as _, Parting};

use crate::harness::{Drive, next, taken};
use crate::{Ends, Harness, bytes};

/// "Unless it can be connected to anew."
pub fn a_successor_is_connected_to_anew_under_the_same_number<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, .. } = h.pair();
    for round in 0..5 {
        let name = b.addr();
        h.end(b);
        assert_eq!(h.closed(&mut a), (to_b, Gone::Reset), "in round {round}");
        b = h.reopen(&name);
        assert_eq!(b.addr(), name);
        assert_eq!(a.peer(&name), to_b, "a name stays one peer");
        let to_a = b.peer(&a.addr());
        h.say(&mut a, to_b, &bytes(200, round));
        assert_eq!(h.take(&mut b), (to_a, bytes(200, round)), "to a successor");
        h.say(&mut b, to_a, &bytes(300, round));
        assert_eq!(h.take(&mut a), (to_b, bytes(300, round)), "from a successor");
    }
    h.quiet(&mut a);
}

/// All frames of a peer come before its end, and those of its successor after it.
pub fn frames_of_a_successor_come_after_the_end_of_the_former<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    for i in 0..5 {
        h.say(&mut b, to_a, &bytes(100, i));
    }
    let name = b.addr();
    h.end(b);
    let mut b = h.reopen(&name);
    let to_a = b.peer(&a.addr());
    for i in 5..10 {
        h.say(&mut b, to_a, &bytes(100, i));
    }
    for i in 0..5 {
        assert!(h.take(&mut a) == (to_b, bytes(100, i)), "frame {i} of the one that ended");
    }
    assert_eq!(h.closed(&mut a), (to_b, Gone::Reset));
    for i in 5..10 {
        assert!(h.take(&mut a) == (to_b, bytes(100, i)), "frame {i} of its successor");
    }
    h.quiet(&mut a);
}

/// A channel that was cut off may be followed by another one, from either side.
pub fn a_peer_that_was_cut_off_can_be_connected_anew<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    a.dismiss(to_b, Parting::CutOff);
    assert_eq!(h.closed(&mut a), (to_b, Gone::Denied));
    h.until("that the other side hears of it", |_| match next(&mut b) {
        Some(Event::Closed(peer, _)) => peer == to_a,
        Some(Event::Frame(f)) => panic!("a frame that was not sent: {:?}", taken(&mut b, f)),
        _ => false,
    });
    h.say(&mut b, to_a, b"again");
    assert_eq!(h.take(&mut a), (to_b, b"again".to_vec()));
    h.say(&mut a, to_b, b"again too");
    assert_eq!(h.take(&mut b), (to_a, b"again too".to_vec()));
}

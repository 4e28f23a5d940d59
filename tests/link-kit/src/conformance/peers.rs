//! Peers, their names and their numbers.

use link_api::{Channel, Connect, Event, Gone, Link as _, Parting, Path, Refused};

use crate::harness::Drive;
use crate::{Ends, Harness};

/// [`peer`](link_api::Link::peer) and [`peer_addr`](link_api::Link::peer_addr).
pub fn a_name_is_one_peer_and_a_peer_one_name<H: Harness>(h: &mut H) {
    let (mut a, b) = (h.open(), h.open());
    let names = [b.addr(), h.nowhere(), h.nowhere(), a.addr()];
    assert!(names.iter().enumerate().all(|(i, n)| !names[..i].contains(n)), "names of one's own");
    let peers = names.map(|name| a.peer(&name));
    for (at, (peer, name)) in peers.iter().zip(names).enumerate() {
        assert!(!peers[..at].contains(peer), "two names are one peer");
        assert_eq!(a.peer_addr(*peer), name, "the name of a peer");
        assert_eq!(a.peer(&name), *peer, "the peer of a name that was met before");
        assert!((peer.0 as usize) < names.len(), "numbers are dense, and {peer:?} is not");
    }
    // None of them needs to be there.
    h.quiet(&mut a);
}

/// [`path`](link_api::Link::path): "the same until its next `Event::Closed`".
pub fn a_path_stays_as_it_is_and_holds_what_it_has_to<H: Harness>(h: &mut H) {
    let (mut a, mut b) = (h.open(), h.open());
    let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
    let path = a.path(to_b);
    assert!(path.max_frame >= Path::LEAST_FRAME, "{path:?}");
    assert!(path.eager <= path.eager_in_a_row && path.eager < path.max_frame, "{path:?}");
    assert!(path.eager_in_a_row <= path.eager_one_way, "{path:?}");
    assert!(path.eager_one_way + wire::EAGER_HEAD <= path.max_frame, "a payload and its head: {path:?}");
    assert!(!path.link.is_empty());
    assert_eq!(path.rma, h.caps(), "what the harness expects");
    for round in 0..5 {
        assert_eq!(a.path(to_b), path, "in round {round}");
        h.say(&mut a, to_b, b"there");
        assert_eq!(h.take(&mut b).0, to_a);
        assert_eq!(a.path(to_b), path, "after a frame to it, in round {round}");
        h.say(&mut b, to_a, b"and back");
        assert_eq!(h.take(&mut a).0, to_b);
    }
}

/// [`channel`](link_api::Link::channel) and [`connect`](link_api::Link::connect).
pub fn a_peer_is_connected_once_either_has_called<H: Harness>(h: &mut H) {
    let (mut a, mut b) = (h.open(), h.open());
    let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
    assert_eq!([a.channel(to_b), b.channel(to_a)], [Channel::None; 2], "nothing was sent");
    h.until("a channel", |_| match a.connect(to_b, Connect::Now) {
        Ok(()) => true,
        Err(why) => {
            assert_eq!(why, Refused::Busy);
            false
        }
    });
    assert_eq!(a.channel(to_b), Channel::Open, "a channel was made");
    assert_eq!(a.connect(to_b, Connect::Now), Ok(()), "there is one already");
    h.say(&mut a, to_b, b"hello");
    assert_eq!(h.take(&mut b), (to_a, b"hello".to_vec()));
    assert_eq!(b.channel(to_a), Channel::Open, "a frame came from it");
    assert_eq!(b.connect(to_a, Connect::Now), Ok(()));
    h.quiet(&mut a);
    h.quiet(&mut b);
    assert_eq!([a.channel(to_b), b.channel(to_a)], [Channel::Open; 2], "nothing has ended");
}

/// A send to a peer that is not there: [`Refused::Busy`] for a while at most, then [`Refused::Gone`], and no
/// event.
pub fn a_peer_that_is_not_there_is_gone<H: Harness>(h: &mut H) {
    let (mut a, name) = (h.open(), h.nowhere());
    let to = a.peer(&name);
    for _ in 0..2 {
        assert_eq!(h.send(&mut a, to, b"hello", &[], 0, 0), Err(Refused::Gone(Gone::Refused)));
        let mut found = Err(Refused::Busy);
        h.until("an answer to a connect", |_| {
            found = a.connect(to, Connect::Now);
            found != Err(Refused::Busy)
        });
        assert_eq!(found, Err(Refused::Gone(Gone::Refused)));
        assert_eq!(a.channel(to), Channel::None);
    }
    h.quiet(&mut a);
}

/// [`forget`](link_api::Link::forget) of a peer to which there is no channel.
pub fn a_number_that_was_forgotten_may_be_anothers<H: Harness>(h: &mut H) {
    let (mut a, mut b) = (h.open(), h.open());
    for _ in 0..20 {
        let name = h.nowhere();
        let peer = a.peer(&name);
        a.dismiss(peer, Parting::Forgotten);
        // A second time, of a number that may be free.
        let again = a.peer(&name);
        assert_eq!(a.peer_addr(again), name);
        a.dismiss(again, Parting::Forgotten);
    }
    let to_b = a.peer(&b.addr());
    assert_eq!(a.peer_addr(to_b), b.addr());
    assert!(to_b.0 < 20, "numbers of peers that were forgotten are used again");
    let to_a = b.peer(&a.addr());
    h.say(&mut b, to_a, b"hello");
    assert_eq!(h.take(&mut a), (to_b, b"hello".to_vec()));
    h.say(&mut a, to_b, b"hi");
    assert_eq!(h.take(&mut b), (to_a, b"hi".to_vec()));
}

/// "If the link has no channel to or from it either": a peer with a channel keeps its number.
pub fn a_peer_that_is_connected_is_not_forgotten<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, mut b, to_a } = h.pair();
    a.dismiss(to_b, Parting::Forgotten);
    let name = h.nowhere();
    let other = a.peer(&name);
    assert_ne!(other, to_b, "a number of a peer that has a channel is given to another");
    assert_eq!(a.peer(&b.addr()), to_b);
    assert_eq!((a.peer_addr(to_b), a.peer_addr(other)), (b.addr(), name));
    h.say(&mut b, to_a, b"still");
    assert_eq!(h.take(&mut a), (to_b, b"still".to_vec()));
    h.end(b);
    assert!(matches!(h.event(&mut a, "the end"), Event::Closed(peer, _) if peer == to_b));
    // Now it has none.
    a.dismiss(to_b, Parting::Forgotten);
    let next = h.nowhere();
    let third = a.peer(&next);
    assert_eq!(third, to_b, "the number of a peer that has ended and was forgotten is used again");
    assert_eq!((a.peer_addr(third), a.peer_addr(other)), (next, name));
}

/// [`describe`](link_api::Link::describe).
pub fn what_a_path_is_like_is_described_in_one_line<H: Harness>(h: &mut H) {
    let Ends { mut a, to_b, .. } = h.pair();
    let name = h.nowhere();
    let absent = a.peer(&name);
    for peer in [to_b, absent] {
        let line = a.describe(peer);
        assert!(!line.trim().is_empty() && !line.contains('\n'), "no line on a path: {line:?}");
    }
}

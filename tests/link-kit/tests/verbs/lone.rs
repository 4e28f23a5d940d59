//! Networks without links over them: two that are connected, messages and accesses to memory.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use below::{Below, Dest, Did, Message, NotSent, Piece, Poll, Remote};
use hmem::Span;
use link_api::Way;
use link_kit::text;
use verbs::Verbs;

/// Whose endpoints all are.
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const WAIT: Duration = Duration::from_secs(60);

/// Connects two, and says how each knows the other.
pub fn join(one: &mut Verbs, other: &mut Verbs) -> (Dest, Dest) {
    let (a, b) = (one.offer().expect("a queue pair"), other.offer().expect("a queue pair"));
    let to_other = one.connect(a.number, &b.address, (HOST, true)).expect("a connection");
    (to_other, other.connect(b.number, &a.address, (HOST, false)).expect("a connection"))
}

/// What happens next.
pub fn happens(to: &mut Verbs) -> Did {
    let start = Instant::now();
    loop {
        if let Some(did) = to.poll(Poll::All) {
            return did;
        }
        assert!(start.elapsed() < WAIT, "nothing happens");
    }
}

/// Sends a message, behind which the other one may use what it was given. A failure of the connection is
/// reported with what `to` has.
pub fn say(from: &mut Verbs, to: Dest, other: &mut Verbs) {
    let message =
        Message { who: to.0, is_frame: false, front: b"now", middle: &[], body: &[], off: 0, len: 0 };
    from.send(to, &message).expect("room for a message");
    let Did::Came(buffer, 3, _) = happens(other) else { panic!("not the message") };
    other.give_back(buffer);
}

/// Accesses memory: whether the bytes are where they belong.
pub fn accesses(by: &mut Verbs, (way, at, key, addr): (Way, Dest, u64, u64), local: Span) -> bool {
    match by.access(5, &Piece { way, at, key, first: key, addr, local, once: None }) {
        Err(NotSent::Error(_)) => return false,
        outcome => outcome.expect("room for an access"),
    }
    loop {
        match happens(by) {
            Did::Over(5, ok) => return ok,
            Did::Failed(..) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Writes from memory to a peer's: whether that was done, and what the path says of the ways to register it.
pub fn put_from(mut owner: Verbs, mut peer: Verbs, src: Span) -> (bool, String) {
    let (at, to_owner) = join(&mut owner, &mut peer);
    let theirs = Span::leak(src.len());
    let lease = peer.lend(to_owner, theirs, Way::Put).expect("memory of the host");
    say(&mut peer, to_owner, &mut owner);
    let done = accesses(&mut owner, (Way::Put, at, lease.key, lease.base), src);
    assert!(!done || text(&[theirs]) == text(&[src]), "the bytes of the memory");
    assert!(peer.end_lease(lease.number, true));
    (done, owner.registered())
}

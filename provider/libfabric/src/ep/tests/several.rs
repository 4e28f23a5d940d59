//! Messages of several peers at once, of which one is waited for.

use super::*;

const NO: *mut c_void = ptr::null_mut();
const PEERS: usize = 4;
/// Rounds: whose ring a read looks at first changes from one to the next.
const ROUNDS: usize = 3 * PEERS;

#[test]
fn a_read_finds_what_is_waited_for_behind_messages_of_others() {
    let own = World::new();
    let (ep, _) = own.enabled(0);
    let peers: Vec<_> = (0..PEERS)
        .map(|_| {
            let w = World::new();
            let (from, _) = w.enabled(0);
            let to = w.insert(ep);
            own.insert(from);
            (w, from, to)
        })
        .collect();
    let say = |at: usize, tag: u64| {
        let (_, from, to) = &peers[at];
        assert_eq!(call!(*from, tagged.inject(ptr::null(), 0, *to, tag)), 0);
    };
    let wait = |tag: u64| {
        assert_eq!(call!(ep, tagged.recv(NO, 0, NO, fi::FI_ADDR_UNSPEC, tag, 0, context(tag as usize))), 0)
    };
    for at in 0..PEERS {
        say(at, 1);
        wait(1);
        assert_eq!(own.next().unwrap().tag, 1);
    }
    for round in 0..ROUNDS {
        let sought = round % PEERS;
        (0..PEERS).for_each(|at| say(at, if at == sought { 2 } else { 1 }));
        wait(2);
        let mut entry = fi::fi_cq_tagged_entry::default();
        assert_eq!(call!(own.cq, ops.read((&raw mut entry).cast(), 1)), 1, "by one read, in round {round}");
        assert_eq!(entry.tag, 2);
        for _ in 1..PEERS {
            wait(1);
            assert_eq!(own.next().unwrap().tag, 1);
        }
    }
    for (w, from, _) in peers {
        assert_eq!(close(from), 0);
        w.end();
    }
    assert_eq!(close(ep), 0);
    own.end();
}

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

/// Messages of each of the peers that no receive is for.
const MANY: usize = 200;

/// One read takes in a part of the unexpected messages, and no sleep begins before the rest.
#[test]
fn one_read_takes_some_unexpected_messages_and_sleep_waits_for_the_rest() {
    let own = World::new();
    let mut cq = ptr::null_mut();
    let attr = &mut fi::fi_cq_attr {
        format: fi::FI_CQ_FORMAT_TAGGED,
        wait_obj: fi::FI_WAIT_FD,
        ..Default::default()
    };
    assert_eq!(call!(own.domain, ops.cq_open(attr, &mut cq, NO)), 0);
    let ep = own.ep();
    assert_eq!(
        (bind_to(ep, cq, fi::FI_RECV | fi::FI_TRANSMIT), bind_to(ep, own.av, 0), enable(ep)),
        (0, 0, 0)
    );
    let peers: Vec<_> = (0..PEERS)
        .map(|_| {
            let w = World::new();
            let (from, _) = w.enabled(0);
            let to = w.insert(ep);
            let src = own.insert(from);
            (w, from, to, src)
        })
        .collect();
    let say = |at: usize, tag: usize| {
        let (_, from, to, _) = &peers[at];
        assert_eq!(call!(*from, tagged.inject(ptr::null(), 0, *to, tag as u64)), 0);
    };
    let wait = |src: fi::fi_addr_t, tag: usize, ignore: u64| {
        assert_eq!(call!(ep, tagged.recv(NO, 0, NO, src, tag as u64, ignore, context(1))), 0)
    };
    let read = || {
        let mut entry = fi::fi_cq_tagged_entry::default();
        let n = call!(cq, ops.read((&raw mut entry).cast(), 1));
        assert!(n == 1 || n == -(fi::FI_EAGAIN as isize), "{n}");
        (n == 1).then_some(entry.tag as usize)
    };
    // All are connected.
    for (at, peer) in peers.iter().enumerate() {
        wait(peer.3, 0, 0);
        say(at, 0);
        while read().is_none() {}
    }
    for n in 1..=MANY {
        (0..PEERS).for_each(|at| say(at, n));
    }
    say(0, MANY + 1);
    wait(fi::FI_ADDR_UNSPEC, MANY + 1, 0);
    // The first reads after a completion look at no ring; without a bound the next one would take all in.
    assert_eq!([(); 4].map(|()| read()), [None; 4]);
    let mut fids = [cq.cast::<fi::fid>()];
    let slept = call!(own.fabric, ops.trywait(fids.as_mut_ptr(), 1));
    assert_eq!(slept, -fi::FI_EAGAIN, "what is waited for is in a ring");
    assert_eq!((0..1000).find_map(|_| read()), Some(MANY + 1));
    for n in 1..=MANY {
        for peer in &peers {
            wait(peer.3, 0, u64::MAX);
            let found = (0..1000).find_map(|_| read());
            assert_eq!(found, Some(n), "in order");
        }
    }
    for (w, from, ..) in peers {
        assert_eq!(close(from), 0);
        w.end();
    }
    assert_eq!((close(ep), close(cq)), (0, 0));
    own.end();
}

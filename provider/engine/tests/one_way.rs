//! Messages that go one way: longer ones travel inside frames than else, while the peer takes them in.

use engine::Error;
use testkit::*;

/// What a node of a tree sends to the next: more than what goes both ways travels inside its frame.
#[test]
fn one_way_to_few_peers_more_travels_inside_a_frame() {
    let mut net = Net::with(6, Setup { eager_one_way: 800, max_frame: 2048, ..Setup::default() });
    let mut posted = 0;
    let mut send = |to: usize, len: usize, waits: bool| {
        let (src, dst) = (net.bytes(0, &pattern(len, to)), net.memory(to, len));
        net[to].recv(&from_any(&[dst], 1)).unwrap();
        if waits {
            let back = net.memory(0, 8);
            net[0].recv(&from_any(&[back], 3)).unwrap();
            posted += 1;
        }
        net.hold(0, to);
        net[0].send(&msg(to as u64, &[src], 2)).unwrap();
        let inside = !net[0].tx().is_empty();
        net.let_pass(0, to, usize::MAX);
        net.settle();
        assert_eq!(net[0].tx().len(), usize::from(!inside));
        assert_eq!((net[to].received().len, net[to].look(dst, len)), (len, pattern(len, to)));
        if waits {
            let short = net.bytes(to, b"answered");
            net[to].send(&msg(0, &[short], 2)).unwrap();
            net.settle();
            assert_eq!((net[0].received().len, net[to].sent().err), (8, None));
        }
        inside
    };
    // The first may yet be answered.
    assert_eq!([800, 800, 801, 800].map(|len| send(1, len, false)), [false, true, false, true]);
    // While a receive waits, up to what goes both ways.
    assert_eq!([601, 600].map(|len| send(1, len, true)), [false, true]);
    assert_eq!([801, 800].map(|len| send(1, len, false)), [false, true]);
    // Four peers in turn are few, and five are not.
    let in_turn = |send: &mut dyn FnMut(usize, usize, bool) -> bool, peers: usize, len: usize| {
        (0..12 * peers).for_each(|at| _ = send(1 + at % peers, len, false));
        (0..2 * peers).filter(|at| send(1 + at % peers, len, false)).count()
    };
    assert_eq!(in_turn(&mut send, 4, 800), 8);
    assert_eq!((in_turn(&mut send, 5, 800), in_turn(&mut send, 5, 600)), (0, 10));
    assert_eq!(in_turn(&mut send, 2, 800), 4);
    assert_eq!(posted, 2);
    net.assert_idle();
}

/// A peer whose program is elsewhere takes nothing in: what finds no room in the ring for long is offered, and its program may go on.
#[test]
fn what_a_peer_does_not_take_in_is_offered() {
    let setup = Setup { eager_one_way: 800, max_frame: 2048, room: 3000, looks: false, ..Setup::default() };
    let mut net = Net::with(2, setup);
    let len = |n: usize| [700, 500][n % 2];
    let src: Vec<_> = (0..20).map(|n| net.bytes(0, &pattern(len(n), n))).collect();
    let mut sent = 0;
    // So many times it is said that there is no room.
    let mut send = |net: &mut Net, most: usize| {
        let mut again = 0;
        while let Err(why) = net[0].send(&msg(1, std::slice::from_ref(&src[sent]), sent)) {
            assert_eq!(why, Error::Again);
            again += 1;
            assert!(again <= most, "message {sent}");
        }
        sent += 1;
        again
    };
    // The first may be answered, and is offered.
    let mut completed = 0;
    let mut tried = Vec::new();
    for _ in 0..10 {
        tried.push(send(&mut net, 2000));
        completed += net[0].tx().len();
    }
    assert_eq!(completed, 4, "those that found room inside frames");
    assert_eq!(
        tried,
        [0, 0, 0, 0, 0, 1023, 0, 0, 0, 0],
        "once it has shown, the next ones are offered at once"
    );
    let dst: Vec<_> = (0..20).map(|_| net.memory(1, 800)).collect();
    for (n, dst) in dst[..10].iter().enumerate() {
        net[1].recv(&from_any(std::slice::from_ref(dst), n)).unwrap();
    }
    net.settle();
    for (n, got) in net[1].rx().iter().enumerate() {
        assert_eq!((got.ctx.0, got.len), (n, len(n)));
        assert_eq!(net[1].look(dst[n], len(n)), pattern(len(n), n));
    }
    assert_eq!(net[0].tx().len(), 6);
    // There is room again.
    net.hold(0, 1);
    for _ in 10..14 {
        assert_eq!(send(&mut net, 0), 0);
    }
    assert_eq!(net[0].tx().len(), 4, "inside frames");
    assert_eq!(send(&mut net, 2000), 1023, "it is given as much time as before");
    net.let_pass(0, 1, usize::MAX);
    for (n, dst) in dst.iter().enumerate().take(15).skip(10) {
        net[1].recv(&from_any(std::slice::from_ref(dst), n)).unwrap();
        net.settle();
        let got = net[1].received();
        assert_eq!((got.ctx.0, got.len), (n, len(n)));
        assert_eq!(net[1].look(*dst, len(n)), pattern(len(n), n));
    }
    assert_eq!(net[0].sent().err, None);
    net.assert_idle();
}

//! Messages that go one way: longer ones travel inside frames than else, while the peer takes them in.

use engine::Error;
use testkit::*;

/// What a node of a tree sends to the next: more than what goes both ways travels inside its frame.
#[test]
fn one_way_more_travels_inside_a_frame() {
    let mut net = Net::with(2, Setup { eager_one_way: 800, max_frame: 2048, ..Setup::default() });
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
    assert_eq!(posted, 2);
    net.assert_idle();
}

/// A peer whose program is elsewhere takes nothing in: what would put it further behind is offered, so that
/// this program goes on.
#[test]
fn a_peer_that_is_behind_is_offered_what_else_goes_inside_frames() {
    let setup = Setup { eager_one_way: 800, max_frame: 2048, capacity: 8, looks: false, ..Setup::default() };
    let mut net = Net::with(2, setup);
    let (len, src) = (700, net.bytes(0, &pattern(700, 1)));
    let post = |net: &mut Net, n: usize| {
        net[0].send(&msg(1, std::slice::from_ref(&src), n)).map(|()| net[0].tx().len() == 1)
    };
    // The first may yet be answered; half of the room is for frames.
    let inside = [false, true, true, true, false, false, false, false];
    assert_eq!((0..8).map(|n| post(&mut net, n)).collect::<Vec<_>>(), inside.map(Ok));
    assert_eq!(post(&mut net, 8), Err(Error::Again));
    let dst: Vec<_> = (0..12).map(|_| net.memory(1, len)).collect();
    for (n, dst) in dst[..8].iter().enumerate() {
        net[1].recv(&from_any(std::slice::from_ref(dst), n)).unwrap();
    }
    net.settle();
    let got = net[1].rx();
    assert_eq!(
        got.iter().map(|c| (c.ctx.0, c.len)).collect::<Vec<_>>(),
        (0..8).map(|n| (n, len)).collect::<Vec<_>>()
    );
    assert!(dst[..8].iter().all(|dst| net[1].look(*dst, len) == pattern(len, 1)));
    assert_eq!(net[0].tx().len(), 5);
    // It has taken all.
    assert_eq!(post(&mut net, 8), Ok(true));
    net[1].recv(&from_any(std::slice::from_ref(&dst[8]), 8)).unwrap();
    net.settle();
    assert_eq!(net[1].received().len, len);
    net.assert_idle();
}

/// A frame counts with its own length: what is behind it finds room as long as the peer has no more than that
/// to take in.
#[test]
fn what_would_leave_too_little_room_is_offered() {
    let sizes = Setup { eager_one_way: 800, max_frame: 2048, ..Setup::default() };
    let mut net = Net::with(2, Setup { spare: 2000, looks: false, ..sizes });
    let src = net.bytes(0, &pattern(800, 1));
    let dst: Vec<_> = (0..5).map(|_| net.memory(1, 800)).collect();
    // The first may yet be answered.
    let inside = [false, true, true, false, false].map(Ok);
    let posted: Vec<Result<bool, Error>> = (0..5)
        .map(|n| net[0].send(&msg(1, std::slice::from_ref(&src), n)).map(|()| net[0].tx().len() == 1))
        .collect();
    assert_eq!(posted, inside);
    for (n, dst) in dst.iter().enumerate() {
        net[1].recv(&from_any(std::slice::from_ref(dst), n)).unwrap();
    }
    net.settle();
    assert_eq!(
        net[1].rx().iter().map(|c| (c.ctx.0, c.len)).collect::<Vec<_>>(),
        [0, 1, 2, 3, 4].map(|n| (n, 800))
    );
    assert!(dst.iter().all(|dst| net[1].look(*dst, 800) == pattern(800, 1)));
    assert_eq!(net[0].tx().len(), 3);
    net.assert_idle();
}

/// Messages to many peers in a row which send such messages, too: the first few go inside frames, and the
/// others are offered. Progress begins a new row; several messages to one peer are to one; what goes inside
/// frames both ways does so to many; and so does what goes to peers that send nothing long.
#[test]
fn what_goes_to_many_peers_that_answer_is_offered_behind_the_first_few() {
    const PEERS: usize = 6;
    let mut net = Net::with(PEERS + 1, Setup { eager_one_way: 800, max_frame: 2048, ..Setup::default() });
    // Which of the messages went inside their frames.
    let row = |net: &mut Net, peers: &[usize], len: usize, answer: bool| -> Vec<bool> {
        let posted: Vec<_> = peers
            .iter()
            .map(|&to| {
                let (src, dst) = (net.bytes(0, &pattern(len, to)), net.memory(to, len));
                net[to].recv(&from_any(&[dst], 1)).unwrap();
                net[0].send(&msg(to as u64, &[src], 2)).unwrap();
                (to, dst, !net[0].tx().is_empty())
            })
            .collect();
        net.settle();
        let got: Vec<_> = (1..=PEERS).flat_map(|to| net[to].rx()).collect();
        assert!(got.len() == peers.len() && got.iter().all(|c| (c.len, c.err) == (len, None)), "{got:?}");
        assert!(posted.iter().all(|&(to, dst, _)| net[to].look(dst, len) == pattern(len, to)));
        assert_eq!(net[0].tx().len(), posted.iter().filter(|(.., inside)| !inside).count());
        for to in (1..=PEERS).filter(|_| answer) {
            let (back, bytes) = (net.memory(0, 300), net.bytes(to, &pattern(300, to)));
            net[0].recv(&from_any(&[back], 3)).unwrap();
            net[to].send(&msg(0, &[bytes], 2)).unwrap();
            net.settle();
            assert_eq!((net[0].received().len, net[to].sent().err), (300, None));
        }
        posted.into_iter().map(|(.., inside)| inside).collect()
    };
    let all: Vec<usize> = (1..=PEERS).collect();
    // The first of a row may yet be answered.
    let few_then_many = [false, true, false, false, false, false];
    assert_eq!(row(&mut net, &all, 800, true), few_then_many);
    assert_eq!(row(&mut net, &all, 800, true), few_then_many);
    assert_eq!(row(&mut net, &all, 600, true), [false, true, true, true, true, true]);
    assert_eq!(row(&mut net, &[1, 1, 1, 2, 2, 2], 800, true), [false, true, true, true, true, true]);
    assert_eq!(row(&mut net, &all, 800, false), few_then_many);
    assert_eq!(row(&mut net, &all, 800, false), [true; PEERS]);
    net.assert_idle();
}

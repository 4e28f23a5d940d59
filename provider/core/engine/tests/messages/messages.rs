//! Messages, whichever way they travel.

use engine::{Completion, Error, OpFlags, Send, What};
use hmem::Span;
use testkit::*;

/// How a message gets across.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Path {
    Eager,
    Direct,
    Frames,
    FromDevice,
    ToDevice,
    DeviceToDevice,
    /// By handles of host memory, and of a device's at one side or at both.
    Handles,
    HandlesFromDevice,
    HandlesToDevice,
    HandlesAnyOrder,
}

const PATHS: [Path; 10] = [
    Path::Eager,
    Path::Direct,
    Path::Frames,
    Path::FromDevice,
    Path::ToDevice,
    Path::DeviceToDevice,
    Path::Handles,
    Path::HandlesFromDevice,
    Path::HandlesToDevice,
    Path::HandlesAnyOrder,
];

impl Path {
    fn net(self, capacity: usize) -> Net {
        let direct = match self {
            Path::Frames => Direct::Never,
            Path::Handles | Path::HandlesFromDevice | Path::HandlesToDevice => Direct::Later,
            Path::HandlesAnyOrder => Direct::AnyOrder,
            _ => Direct::InCall,
        };
        Net::with(2, Setup { direct, capacity: capacity.max(direct.least_capacity()), ..Setup::default() })
    }

    fn len(self) -> usize {
        if self == Path::Eager { 200 } else { 3001 }
    }

    /// Operations that end later which a message takes. A device's memory has no handles here, so that it
    /// is the receiver's, or else the sender's, that counts.
    fn operations(self) -> usize {
        match self {
            Path::Handles | Path::HandlesAnyOrder | Path::HandlesFromDevice | Path::HandlesToDevice => 1,
            _ => 0,
        }
    }

    /// Memory at the sender.
    fn source(self, net: &mut Net, len: usize) -> Span {
        match self {
            Path::FromDevice | Path::DeviceToDevice | Path::HandlesFromDevice => net.device(len),
            _ => net.memory(0, len),
        }
    }

    /// Memory at the receiver.
    fn room(self, net: &mut Net, len: usize) -> Span {
        match self {
            Path::ToDevice | Path::DeviceToDevice | Path::HandlesToDevice => net.device(len),
            _ => net.memory(1, len),
        }
    }
}

/// Cuts a span into three, with an empty one between.
fn cut(s: Span) -> Vec<Span> {
    let (a, b) = (s.len() / 3, s.len() / 2);
    let part = |from: usize, to: usize| s.part(from, to - from).unwrap();
    vec![part(0, a), Span::EMPTY, part(a, b), part(b, s.len())]
}

#[test]
fn every_path_delivers_whether_the_receive_or_the_message_is_first() {
    for path in PATHS {
        for posted_first in [true, false] {
            for tag in [None, Some(0x1234)] {
                for (cut_src, cut_dst) in [(false, false), (true, false), (false, true), (true, true)] {
                    for capacity in [1, 64] {
                        let case = (path, posted_first, tag, cut_src, cut_dst, capacity);
                        let mut net = path.net(capacity);
                        let bytes = pattern(path.len(), 5);
                        let src = path.source(&mut net, bytes.len());
                        let dst = path.room(&mut net, bytes.len() + 10);
                        hmem::write(&[src], 0, &bytes);
                        let src_iov = if cut_src { cut(src) } else { vec![src] };
                        let dst_iov = if cut_dst { cut(dst) } else { vec![dst] };
                        let receive = match tag {
                            Some(tag) => with_tag(&dst_iov, tag, 9),
                            None => from_any(&dst_iov, 9),
                        };
                        if posted_first {
                            net[1].recv(&receive).unwrap();
                        }
                        net[0].send(&Send { tag, data: Some(77), ..msg(1, &src_iov, 4) }).unwrap();
                        net.settle();
                        if !posted_first {
                            assert_eq!(net[1].rx(), [], "{case:?}");
                            net[1].recv(&receive).unwrap();
                            net.settle();
                        }
                        let kind = if tag.is_some() { What::TAGGED } else { What::MSG };
                        let sent = net[0].sent();
                        assert_eq!(
                            (sent.ctx.0, sent.what, sent.err),
                            (4, What::SEND | kind, None),
                            "{case:?}"
                        );
                        let got = net[1].received();
                        let want = Completion {
                            ctx: receive.ctx,
                            what: What::RECV | kind | What::REMOTE_CQ_DATA,
                            len: bytes.len(),
                            buf: dst.addr(),
                            data: 77,
                            tag: tag.unwrap_or(0),
                            src: 0,
                            err: None,
                            olen: 0,
                        };
                        assert_eq!(got, want, "{case:?}");
                        assert_eq!(net[1].look(dst, bytes.len()), bytes, "{case:?}");
                        assert_eq!(net[1].look(dst.part(bytes.len(), 10).unwrap(), 10), [0; 10]);
                        assert_eq!(net.direct_accesses() > 0, path == Path::Direct, "{case:?}");
                        assert_eq!(net.device_copies(), path.operations(), "{case:?}");
                        net.assert_idle();
                    }
                }
            }
        }
    }
}

#[test]
fn a_message_too_long_is_cut_and_the_rest_is_counted() {
    for path in PATHS {
        for posted_first in [true, false] {
            for room in [0, 1, 150] {
                let mut net = path.net(64);
                let bytes = pattern(path.len(), 1);
                let src = path.source(&mut net, bytes.len());
                hmem::write(&[src], 0, &bytes);
                let dst = path.room(&mut net, 160);
                let fits = dst.part(0, room).unwrap();
                if posted_first {
                    net[1].recv(&from_any(&[fits], 2)).unwrap();
                }
                net[0].send(&msg(1, &[src], 1)).unwrap();
                net.settle();
                if !posted_first {
                    net[1].recv(&from_any(&[fits], 2)).unwrap();
                    net.settle();
                }
                let got = net[1].received();
                let want = (Some(Error::Truncated), room, bytes.len() - room);
                assert_eq!((got.err, got.len, got.olen), want, "{path:?} {room}");
                assert_eq!(net[1].look(dst, room), bytes[..room]);
                assert_eq!(net[1].look(dst.part(room, 10).unwrap(), 10), [0; 10]);
                assert_eq!(net[0].sent().err, None);
                net.assert_idle();
            }
        }
    }
}

#[test]
fn an_empty_message_is_a_message() {
    let mut net = Net::new(2);
    net[0].send(&tagged(1, &[], 3, 0)).unwrap();
    net[0].send(&tagged(1, &[Span::EMPTY], 4, 0)).unwrap();
    net.settle();
    net[1].recv(&with_tag(&[], 4, 4)).unwrap();
    net[1].recv(&with_tag(&[], 3, 3)).unwrap();
    let got: Vec<_> = net[1].rx().iter().map(|c| (c.ctx.0, c.tag, c.len, c.err)).collect();
    assert_eq!(got, [(4, 4, 0, None), (3, 3, 0, None)]);
    assert_eq!(net[0].tx().len(), 2);
    net.assert_idle();
}

#[test]
fn an_endpoint_talks_to_itself() {
    for len in [10, 3000] {
        let mut net = Net::new(1);
        let (src, dst) = (net.bytes(0, &pattern(len, 2)), net.memory(0, len));
        net[0].send(&msg(0, &[src], 1)).unwrap();
        net[0].recv(&from_any(&[dst], 2)).unwrap();
        net.settle();
        assert_eq!((net[0].sent().ctx.0, net[0].received().src), (1, 0));
        assert_eq!(net[0].look(dst, len), pattern(len, 2));
        net.assert_idle();
    }
}

#[test]
fn messages_of_one_sender_match_in_order_whatever_their_size() {
    for direct in Direct::ALL {
        for capacity in [1, 2, 64] {
            let mut net = Net::with(2, Setup { direct, capacity, ..Setup::default() });
            let lens = [3000, 10, 700, 0, 5000, 1, 256, 257];
            let room: Vec<Span> = lens.iter().map(|_| net.memory(1, 5000)).collect();
            for (i, r) in room.iter().enumerate().take(4) {
                net[1].recv(&from_any(&[*r], i)).unwrap();
            }
            for (i, len) in lens.into_iter().enumerate() {
                let src = net.bytes(0, &pattern(len, i));
                let mut tries = 0;
                while net[0].send(&msg(1, &[src], i)) == Err(Error::Again) {
                    net[1].progress();
                    tries += 1;
                    assert!(tries < 1000);
                }
            }
            net.settle();
            for (i, r) in room.iter().enumerate().skip(4) {
                net[1].recv(&from_any(&[*r], i)).unwrap();
            }
            net.settle();
            let mut got: Vec<_> = net[1].rx().iter().map(|c| (c.ctx.0, c.len)).collect();
            got.sort_unstable();
            assert_eq!(got, lens.into_iter().enumerate().collect::<Vec<_>>());
            for (i, len) in lens.into_iter().enumerate() {
                assert_eq!(net[1].look(room[i], len), pattern(len, i));
            }
            assert_eq!(net[0].tx().len(), lens.len());
            net.assert_idle();
        }
    }
}

#[test]
fn an_iov_of_more_spans_than_a_frame_names_is_refused_where_it_matters() {
    let mut net = Net::new(2);
    let src = net.bytes(0, &pattern(900, 1));
    let nine: Vec<Span> = (0..9).map(|i| src.part(i * 100, 100).unwrap()).collect();
    assert_eq!(net[0].send(&msg(1, &nine, 1)), Err(Error::Invalid));
    let nine: Vec<Span> = (0..9).map(|i| src.part(i * 10, 10).unwrap()).collect();
    net[0].send(&msg(1, &nine, 1)).unwrap();
    let dst = net.memory(1, 100);
    net[1].recv(&from_any(&[dst], 0)).unwrap();
    net.settle();
    assert_eq!(net[1].received().len, 90);
    assert_eq!(net[1].look(dst, 90), pattern(900, 1)[..90]);
}

#[test]
fn the_eager_threshold_gives_way_to_the_frame() {
    let mut net = Net::with(2, Setup { eager: 1 << 20, eager_in_a_row: 0, ..Setup::default() });
    for len in [250, 292, 293, 511, 512, 4096] {
        let (src, dst) = (net.bytes(0, &pattern(len, 3)), net.memory(1, len));
        net[1].recv(&from_any(&[dst], 0)).unwrap();
        net[0].send(&msg(1, &[src], 1)).unwrap();
        net.settle();
        assert_eq!((net[0].sent().err, net[1].received().len), (None, len));
        assert_eq!(net[1].look(dst, len), pattern(len, 3));
    }
}

/// The peer is likely to send as well, and each side to have a copy to make.
#[test]
fn what_is_sent_while_a_receive_waits_travels_in_its_frame_up_to_more() {
    let mut net = Net::warm(Setup { max_frame: 2048, ..Setup::default() });
    for (round, (len, waits, inside)) in
        [(500, false, false), (500, true, true), (600, true, true), (601, true, false)]
            .into_iter()
            .enumerate()
    {
        // Not just one way.
        let (src, dst) = (net.bytes(1, &pattern(601, round)), net.memory(0, 601));
        net[0].recv(&from_any(&[dst], 0)).unwrap();
        net[1].send(&msg(0, &[src], 1)).unwrap();
        net.settle();
        assert_eq!((net[1].sent().err, net[0].received().len), (None, 601));
        let (src, dst) = (net.bytes(0, &pattern(len, round)), net.memory(1, len));
        let (back, into) = (net.bytes(1, &pattern(8, round)), net.memory(0, 8));
        if waits {
            net[0].recv(&from_any(&[into], 3)).unwrap();
        }
        net[1].recv(&from_any(&[dst], 0)).unwrap();
        net.hold(0, 1);
        net[0].send(&msg(1, &[src], 1)).unwrap();
        // A message inside its frame is sent with the call.
        assert_eq!(net[0].tx().len(), usize::from(inside), "round {round}");
        net.let_pass(0, 1, usize::MAX);
        net.settle();
        assert_eq!(net[0].tx().len(), usize::from(!inside), "round {round}");
        assert_eq!((net[1].received().len, net[1].look(dst, len)), (len, pattern(len, round)));
        if waits {
            net[1].send(&msg(0, &[back], 2)).unwrap();
            net.settle();
            assert_eq!((net[1].sent().err, net[0].received().len), (None, 8));
        }
        net.assert_idle();
    }
}

/// A receiver of one message after the other, of many senders perhaps, is slower where it makes a call for
/// each.
#[test]
fn what_goes_one_way_travels_in_its_frame_up_to_more() {
    let mut net = Net::warm(Setup { max_frame: 2048, ..Setup::default() });
    let mut send = |from: usize, len: usize, unexpected: bool| {
        let (src, dst) = (net.bytes(from, &pattern(len, from)), net.memory(1 - from, len));
        let to = 1 - from;
        if !unexpected {
            net[to].recv(&from_any(&[dst], 0)).unwrap();
        }
        net.hold(from, to);
        net[from].send(&msg(to as u64, &[src], 1)).unwrap();
        // A message inside its frame is sent with the call.
        let inside = net[from].tx().len() == 1;
        net.let_pass(from, to, usize::MAX);
        net.settle();
        if unexpected {
            net[to].recv(&from_any(&[dst], 0)).unwrap();
            net.settle();
        }
        assert_eq!(net[from].tx().len(), usize::from(!inside));
        assert_eq!((net[to].received().len, net[to].look(dst, len)), (len, pattern(len, from)));
        net.assert_idle();
        inside
    };
    send(1, 601, false);
    // One way.
    assert_eq!([500, 500, 601, 600].map(|len| send(0, len, false)), [false, true, false, true]);
    assert!(send(0, 500, true));
    // A short message is no answer; one of the same sort is, taken in the one way or the other.
    assert!(send(1, 8, false) && send(0, 500, false));
    assert!(!send(1, 500, false) && !send(0, 500, false));
    assert!(!send(1, 500, false) && send(1, 500, false) && !send(0, 500, false) && send(0, 500, false));
    assert!(!send(1, 500, true) && send(1, 500, true) && !send(0, 500, false));
}

#[test]
fn many_in_a_row_travel_in_their_frames_up_to_more() {
    let mut net = Net::with(2, Setup { max_frame: 2048, ..Setup::default() });
    let dst: Vec<Span> = (0..8).map(|_| net.memory(1, 700)).collect();
    for (ctx, dst) in dst.iter().enumerate() {
        net[1].recv(&from_any(std::slice::from_ref(dst), ctx)).unwrap();
    }
    let mut sent = 0;
    for (len, inside) in [(500, [false, true, true]), (601, [false; 3])] {
        // What came before was waited for.
        assert!(net[0].tx().is_empty());
        let src = net.bytes(0, &pattern(len, sent));
        let posted = inside.map(|inside| {
            net.hold(0, 1);
            let before = net.in_flight(0, 1);
            net[0].send(&msg(1, &[src], sent)).unwrap();
            assert_eq!(net.in_flight(0, 1), before + 1);
            sent += 1;
            inside
        });
        net.settle();
        let done: Vec<usize> = net[0].tx().iter().map(|c| c.ctx.0).collect();
        let whole: Vec<usize> = (0..3).filter(|i| posted[*i]).map(|i| sent - 3 + i).collect();
        assert_eq!(done, whole, "a message of {len} bytes that is inside its frame completes at once");
        net.let_pass(0, 1, usize::MAX);
        net.settle();
        assert_eq!(net[0].tx().len(), 3 - whole.len());
        for c in net[1].rx() {
            assert_eq!((c.len, c.err), (len, None));
            assert_eq!(net[1].look(dst[c.ctx.0], len), pattern(len, sent - 3));
        }
    }
}

#[test]
fn completions_come_only_where_asked_for_but_failures_always() {
    let mut net = Net::new(2);
    let (src, dst) = (net.bytes(0, b"abcd"), net.memory(1, 2));
    let quiet = OpFlags::empty();
    net[1].recv(&engine::Recv { flags: quiet, ..from_any(&[dst], 0) }).unwrap();
    net[0].send(&Send { flags: quiet, ..msg(1, &[src.part(0, 2).unwrap()], 0) }).unwrap();
    net.settle();
    net.assert_idle();
    net[1].recv(&engine::Recv { flags: quiet, ..from_any(&[dst], 5) }).unwrap();
    net[0].send(&Send { flags: quiet, ..msg(1, &[src], 0) }).unwrap();
    net.settle();
    let got = net[1].received();
    assert_eq!((got.ctx.0, got.err, got.olen), (5, Some(Error::Truncated), 2));
    net.assert_idle();
}

#[test]
fn a_fault_on_the_way_is_reported_to_both() {
    let mut net = Net::new(2);
    let (src, dst) = (net.memory(0, 3000), net.memory(1, 3000));
    net.fault(2);
    net[1].recv(&from_any(&[dst], 1)).unwrap();
    net[0].send(&msg(1, &[src], 2)).unwrap();
    net.settle();
    assert_eq!((net[0].sent().err, net[1].received().err), (Some(Error::Io), Some(Error::Io)));
    net.assert_idle();
}

#[test]
fn a_peer_whose_memory_cannot_be_reached_is_not_tried_again() {
    let mut net = Net::new(2);
    net.set_direct(false);
    for round in 0..2 {
        let (src, dst) = (net.bytes(0, &pattern(2000, round)), net.memory(1, 2000));
        net[1].recv(&from_any(&[dst], 1)).unwrap();
        net[0].send(&msg(1, &[src], 2)).unwrap();
        net.settle();
        assert_eq!((net[0].sent().err, net[1].received().err), (None, None));
        assert_eq!(net[1].look(dst, 2000), pattern(2000, round));
        net.set_direct(true);
    }
    assert_eq!(net.direct_accesses(), 0);
}

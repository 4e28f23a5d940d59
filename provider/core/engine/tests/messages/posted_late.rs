//! Large messages that came before their receive: the next call of progress takes them in, not the call that
//! posts the receive.

use engine::{ADDR_UNSPEC, Ctx, Error, OpFlags, Pattern, Peek, Recv, Send, What, Work, WorkOp};
use testkit::*;

const LEN: usize = 100_000;

/// One has come from the first node to the second, and waits.
fn with_one_waiting() -> (Net, hmem::Span) {
    let mut net = Net::warm(Setup::default());
    let src = net.bytes(0, &pattern(LEN, 5));
    net[0].send(&msg(1, &[src], 7)).unwrap();
    net.settle();
    assert_eq!((net[0].tx(), net[1].rx(), net[1].unexpected() > 0), (vec![], vec![], true));
    let dst = net.memory(1, LEN);
    (net, dst)
}

#[test]
fn what_is_posted_next_does_not_wait_for_the_copy() {
    for len in [LEN, 16 << 10, (16 << 10) - 1] {
        let at_once = len < 16 << 10;
        let mut net = Net::warm(Setup::default());
        let src = net.bytes(0, &pattern(len, 5));
        net[0].send(&msg(1, &[src], 7)).unwrap();
        net.settle();
        let (dst, back, into) = (net.memory(1, len), net.bytes(1, &[3; 8]), net.memory(0, 8));
        let before = net.direct_accesses();
        net[1].recv(&from_any(&[dst], 2)).unwrap();
        assert_eq!(
            (net.direct_accesses() - before, net[1].rx().len()),
            (at_once.into(), at_once.into()),
            "{len}"
        );
        // No sleep on it.
        assert_eq!(net[1].arm(), at_once, "{len}");
        // What is sent now is on its way before it.
        net[0].recv(&from_any(&[into], 3)).unwrap();
        net[1].send(&msg(0, &[back], 4)).unwrap();
        net[0].progress();
        assert_eq!((net[0].received().len, net.direct_accesses() - before), (8, at_once.into()), "{len}");
        assert_eq!((net[1].sent().err, net[0].tx().len()), (None, at_once.into()));
        net.settle();
        if !at_once {
            let got = net[1].received();
            assert_eq!((got.ctx, got.len, got.err, net[0].sent().err), (Ctx(2), len, None, None));
        }
        assert!(net[1].look(dst, len) == pattern(len, 5), "{len}");
        net.assert_idle();
    }
}

#[test]
fn each_call_of_progress_takes_one_in() {
    let mut net = Net::warm(Setup::default());
    let src: Vec<_> = (0..3).map(|n| net.bytes(0, &pattern(LEN, n))).collect();
    for (n, src) in src.iter().enumerate() {
        net[0].send(&msg(1, std::slice::from_ref(src), n)).unwrap();
    }
    net.settle();
    let dst: Vec<_> = (0..3).map(|_| net.memory(1, LEN)).collect();
    for (n, dst) in dst.iter().enumerate() {
        net[1].recv(&from_any(std::slice::from_ref(dst), n)).unwrap();
    }
    let begun = |net: &Net| dst.iter().filter(|dst| net[1].look(**dst, LEN) != vec![0; LEN]).count();
    assert_eq!(begun(&net), 0);
    for n in 1..=3 {
        net[1].progress();
        assert_eq!(begun(&net), n);
    }
    net.settle();
    assert_eq!(
        net[1].rx().iter().map(|c| (c.ctx.0, c.len, c.err)).collect::<Vec<_>>(),
        [0, 1, 2].map(|n| (n, LEN, None))
    );
    for (n, dst) in dst.iter().enumerate() {
        assert!(net[1].look(*dst, LEN) == pattern(LEN, n), "{n}");
    }
    assert_eq!(net[0].tx().len(), 3);
    net.assert_idle();
}

#[test]
fn a_sender_that_ends_first_fails_the_receive() {
    let (mut net, dst) = with_one_waiting();
    net[1].recv(&from_any(&[dst], 2)).unwrap();
    net.kill(0);
    net.settle();
    let got = net[1].received();
    assert_eq!((got.ctx, got.err), (Ctx(2), Some(Error::Reset)));
    assert_eq!(net[1].look(dst, LEN), vec![0; LEN]);
    assert_eq!(net[1].ep_under_way(net[1].ep), 0);
}

#[test]
fn a_send_that_is_cancelled_first_fails_both() {
    let (mut net, dst) = with_one_waiting();
    net[1].recv(&from_any(&[dst], 2)).unwrap();
    // A receive that has met its message is not cancelled by itself.
    let rx = net[1].rx;
    assert_eq!(net[1].cancel(rx, Ctx(2)), Err(Error::NotFound));
    let ep = net[0].ep;
    assert_eq!(net[0].ep_cancel(ep, Ctx(7)), Ok(()));
    net.settle();
    assert_eq!((net[0].sent().err, net[1].received().err), (Some(Error::Cancelled), Some(Error::Cancelled)));
    assert_eq!(net[1].look(dst, LEN), vec![0; LEN]);
    net.assert_idle();
}

/// Posts a receive into that memory.
type Post = dyn Fn(&mut Net, hmem::Span);

/// Whatever posts the receive, and wherever the message lands.
#[test]
fn each_sort_of_receive_gets_it() {
    let sorts: [&Post; 3] = [
        &|net, dst| {
            let (rx, any) = (net[1].rx, Pattern { src: ADDR_UNSPEC, tag: Some((1, 0)) });
            net[1].peek(rx, any, Peek::Claim, Ctx(2), OpFlags::empty()).unwrap();
            net[1].claim(rx, &with_tag(&[dst], 1, 2)).unwrap();
        },
        &|net, dst| {
            let go = net[1].cntr_open();
            let pattern = Pattern { src: ADDR_UNSPEC, tag: Some((1, 0)) };
            let (rx, iov) = (net[1].rx, [dst].into_iter().collect());
            let op = WorkOp::Recv { rx, pattern, iov, ctx: Ctx(2), flags: OpFlags::COMPLETION };
            net[1].queue_work(Work { id: Ctx(3), trigger: go, threshold: 1, completion: Some(go), op });
            net[1].cntr_add(go, 1);
        },
        &|net, dst| net[1].recv(&with_tag(&[dst], 1, 2)).unwrap(),
    ];
    for (sort, room) in sorts.iter().zip([LEN, LEN + 1, LEN - 1]) {
        let mut net = Net::warm(Setup::default());
        let (src, dst) = (net.bytes(0, &pattern(LEN, 5)), net.memory(1, LEN + 1));
        net[0]
            .send(&Send { flags: OpFlags::COMPLETION | OpFlags::DELIVERY, ..tagged(1, &[src], 1, 7) })
            .unwrap();
        net.settle();
        sort(&mut net, dst.part(0, room).unwrap());
        assert_eq!((net[0].tx(), net[1].rx(), net[1].arm()), (vec![], vec![], false), "{room}");
        net.settle();
        let (got, n) = (net[1].received(), room.min(LEN));
        assert_eq!((got.ctx, got.len, got.olen), (Ctx(2), n, LEN - n));
        assert_eq!(got.err, (n < LEN).then_some(Error::Truncated));
        assert_eq!(net[0].sent().err, None);
        assert!(
            net[1].look(dst, n) == pattern(LEN, 5)[..n]
                && net[1].look(dst, LEN + 1)[n..].iter().all(|b| *b == 0)
        );
        net.assert_idle();
    }
}

#[test]
fn a_multi_receive_buffer_comes_back_with_the_last_that_is_taken_in() {
    let mut net = Net::warm(Setup::default());
    let rx = net[1].rx;
    net[1].rx_set_min_multi_recv(rx, 0);
    for n in 0..2 {
        let src = net.bytes(0, &pattern(LEN, n));
        net[0].send(&msg(1, &[src], n)).unwrap();
    }
    let short = net.bytes(0, &[1; 8]);
    net[0].send(&msg(1, &[short], 2)).unwrap();
    net.settle();
    let dst = net.memory(1, 2 * LEN + 8);
    let flags = OpFlags::COMPLETION | OpFlags::MULTI_RECV;
    net[1].recv(&Recv { flags, ..from_any(&[dst], 2) }).unwrap();
    net.settle();
    let got: Vec<_> = net[1]
        .rx()
        .iter()
        .map(|c| ((c.buf - dst.addr()) as usize, c.len, c.what.contains(What::MULTI_RECV)))
        .collect();
    assert_eq!(got, [(2 * LEN, 8, false), (0, LEN, false), (LEN, LEN, true)]);
    assert!(net[1].look(dst, 2 * LEN) == [pattern(LEN, 0), pattern(LEN, 1)].concat());
    assert_eq!(net[0].tx().len(), 3);
    net.assert_idle();
}

#[test]
fn an_endpoint_that_closes_first_gives_back_what_is_of_a_shared_context_and_touches_nothing() {
    for shared in [false, true] {
        let mut net = Net::with(2, Setup::default());
        let (mut ep, mut to, mut rx) = (net[1].ep, 1, net[1].rx);
        if shared {
            rx = net[1].srx_open();
            let link = net.link();
            let (addr, av) = (net.addr(2), net[0].av);
            ep = net[1].open(link, Some(rx));
            to = net[0].av_insert(av, addr);
        }
        let (src, dst) = (net.bytes(0, &pattern(LEN, 5)), net.memory(1, LEN));
        net[0].send(&msg(to, &[src], 7)).unwrap();
        net.settle();
        net[1].recv_at(rx, &from_any(&[dst], 2)).unwrap();
        net[1].ep_close(ep).unwrap();
        net.settle();
        // The buffer of a shared context is given back.
        let back: Vec<_> = net[1].rx().iter().map(|c| (c.ctx, c.err)).collect();
        let want = [(Ctx(2), Some(Error::Cancelled))];
        assert_eq!(back, want[..usize::from(shared)]);
        assert_eq!(net[1].look(dst, LEN), vec![0; LEN]);
    }
}

/// The thread sleeps until the link's descriptor is readable, which a receive that was posted does not cause:
/// no call of progress would follow.
#[test]
fn where_one_sleeps_the_call_that_posts_the_receive_takes_it_in() {
    let (mut net, dst) = with_one_waiting();
    assert!(net[1].arm());
    net[1].recv(&from_any(&[dst], 2)).unwrap();
    assert_eq!((net[1].received().len, net[1].look(dst, LEN)), (LEN, pattern(LEN, 5)));
    net.settle();
    assert_eq!(net[0].sent().err, None);
    net.assert_idle();
}

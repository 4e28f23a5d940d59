//! Receive contexts that endpoints share.

use engine::{
    ADDR_UNSPEC, Cntrs, CqId, Ctx, EpConfig, EpId, Error, FiAddr, OpFlags, Pattern, Peek, PollFast, Recv,
    RxId, What,
};
use testkit::*;

/// Node 1 gets a second endpoint; both take from one shared receive context.
fn sharing() -> (Net, RxId, [EpId; 2], [FiAddr; 2]) {
    sharing_with(Setup::default())
}

fn sharing_with(setup: Setup) -> (Net, RxId, [EpId; 2], [FiAddr; 2]) {
    let mut net = Net::with(2, setup);
    let links = [net.link(), net.link()];
    let places = links.each_ref().map(MemLink::place);
    let rx = net[1].srx_open();
    let eps = links.map(|link| net[1].open(link, Some(rx)));
    let names = places.map(|p| net.addr(p));
    let av = net[0].av;
    let to = names.map(|name| net[0].av_insert(av, name));
    (net, rx, eps, to)
}

#[test]
fn endpoints_that_share_a_receive_context_take_from_the_same_receives() {
    let (mut net, rx, _, to) = sharing();
    let room = [net.memory(1, 3000), net.memory(1, 3000)];
    net[1].recv_at(rx, &from_any(&[room[0]], 0)).unwrap();
    net[1].recv_at(rx, &from(0, &[room[1]], 1)).unwrap();
    for (i, to) in to.into_iter().enumerate() {
        let src = net.bytes(0, &pattern(3000, i));
        net[0].send(&msg(to, &[src], i)).unwrap();
    }
    net.settle();
    let mut got: Vec<_> = net[1].rx().iter().map(|c| (c.ctx.0, c.src, c.len)).collect();
    got.sort_unstable();
    assert_eq!(got, [(0, 0, 3000), (1, 0, 3000)]);
    assert_eq!(net[0].tx().len(), 2);
    // Unexpected ones wait for either, in order of arrival.
    for to in [to[1], to[0]] {
        let src = net.bytes(0, &to.to_le_bytes());
        net[0].send(&msg(to, &[src], 0)).unwrap();
        net.settle();
    }
    for to in [to[1], to[0]] {
        net[1].recv_at(rx, &from_any(&[room[0]], 0)).unwrap();
        assert_eq!(net[1].received().len, 8);
        assert_eq!(net[1].look(room[0], 8), to.to_le_bytes());
    }
}

#[test]
fn a_shared_receive_is_written_as_its_endpoint_has_it() {
    for len in [8, 3000, 1 << 20] {
        let (mut net, rx, eps, to) = sharing();
        net[1].ep_write_every_receive(eps[1]);
        let (src, room) = (net.memory(0, len), [net.memory(1, len)]);
        for late in [false, true] {
            for (asked, expected) in [
                (OpFlags::empty(), [false; 2]),
                (OpFlags::AS_BOUND, [false, true]),
                (OpFlags::COMPLETION, [true; 2]),
            ] {
                for (to, written) in to.into_iter().zip(expected) {
                    let op = Recv { flags: asked, ..from_any(&room, 1) };
                    if !late {
                        net[1].recv_at(rx, &op).unwrap();
                    }
                    net[0].send(&msg(to, &[src], 0)).unwrap();
                    net.settle();
                    if late {
                        net[1].recv_at(rx, &op).unwrap();
                        net.settle();
                    }
                    assert_eq!(
                        net[1].rx().len(),
                        usize::from(written),
                        "{len} bytes, {asked:?}, late: {late}"
                    );
                    assert_eq!(net[0].tx().len(), 1);
                }
            }
        }
    }
}

/// A caller that goes on to the next ring counts by it.
#[test]
fn the_work_of_a_poll_is_that_of_all_endpoints() {
    const EACH: usize = 20;
    let (mut net, _, _, to) = sharing_with(Setup { looks: true, ..Setup::default() });
    let src = net.memory(0, 8);
    for n in 0..2 * EACH {
        net[0].send(&msg(to[n % 2], &[src], n)).unwrap();
    }
    let cq = net[1].rx_cq;
    let mut work = 0;
    while net[1].poll_fast(cq, &mut |_: &engine::Completion| {}) == PollFast::Kept {
        work += net[1].kept();
    }
    assert_eq!(work as usize, 2 * EACH);
    assert_eq!(net[1].kept(), 0, "the sum starts anew");
}

/// Opens one more endpoint that shares, and has this queue.
fn share(net: &mut Net, rx: RxId, rx_cq: Option<CqId>) -> EpId {
    let (link, av, tx_cq) = (net.link(), net[1].av, Some(net[1].tx_cq));
    net[1].ep_open(EpConfig { link, av, rx: Some(rx), tx_cq, rx_cq, cntrs: Cntrs::default() })
}

#[test]
fn what_is_not_of_a_message_is_reported_in_the_queue_of_the_endpoint_that_was_called() {
    let mut net = Net::new(2);
    let (rx, room) = (net[1].srx_open(), net.memory(1, 8));
    let queues = [net[1].cq_open(8), net[1].cq_open(8)];
    let [deaf, _, last] = [None, Some(queues[0]), Some(queues[1])].map(|cq| share(&mut net, rx, cq));
    let has_error = |net: &mut Net, ctx| {
        queues.map(|cq| {
            let found = net[1].cq_error(cq);
            assert!(found.is_none_or(|c| (c.ctx.0, c.err) == (ctx, Some(Error::Cancelled))));
            found.is_some()
        })
    };
    // By the context, and by each of its endpoints.
    for (by, expected) in [(None, [true, false]), (Some(deaf), [true, false]), (Some(last), [false, true])] {
        net[1].recv_at(rx, &from_any(&[room], 5)).unwrap();
        match by {
            None => net[1].cancel(rx, Ctx(5)).unwrap(),
            Some(ep) => net[1].ep_cancel(ep, Ctx(5)).unwrap(),
        }
        assert_eq!(has_error(&mut net, 5), expected, "{by:?}");
    }
    for (by, at) in [(None, 0), (Some(deaf), 0), (Some(last), 1)] {
        let (pattern, ctx, flags) =
            (Pattern { src: ADDR_UNSPEC, tag: Some((3, 0)) }, Ctx(6), OpFlags::empty());
        match by {
            None => net[1].peek(rx, pattern, Peek::Leave, ctx, flags).unwrap(),
            Some(ep) => net[1].ep_peek(ep, pattern, Peek::Leave, ctx, flags).unwrap(),
        }
        assert_eq!(net[1].cq_error(queues[at]).unwrap().err, Some(Error::NoMessage), "{by:?}");
    }
}

#[test]
fn a_message_that_a_peek_finds_is_reported_in_the_queue_of_the_endpoint_that_was_called() {
    for what in [Peek::Leave, Peek::Claim, Peek::Discard] {
        let (mut net, rx, [_, first], to) = sharing();
        let queue = net[1].cq_open(8);
        let (own, last) = (net[1].rx_cq, share(&mut net, rx, Some(queue)));
        let (deaf, src) = (share(&mut net, rx, None), net.memory(0, 3000));
        // By the context, whose message it is, by its endpoint, by another one, and by one that has no queue.
        let calls = [(None, own), (Some(first), own), (Some(last), queue), (Some(deaf), own)];
        for (n, (by, expected)) in calls.into_iter().enumerate() {
            net[0].send(&msg(to[1], &[src], 0)).unwrap();
            net.settle();
            let (pattern, ctx) = (Pattern { src: ADDR_UNSPEC, tag: None }, Ctx(n));
            match by {
                None => net[1].peek(rx, pattern, what, ctx, OpFlags::COMPLETION).unwrap(),
                Some(ep) => net[1].ep_peek(ep, pattern, what, ctx, OpFlags::COMPLETION).unwrap(),
            }
            let found = [own, queue].map(|cq| net[1].next(cq).map(|c| (c.ctx, c.err, c.len)));
            assert_eq!(found, [own, queue].map(|cq| (cq == expected).then_some((ctx, None, 3000))), "{by:?}");
            // Received bytes are reported to the endpoint that they came to.
            let room = net.memory(1, 3000);
            match what {
                Peek::Leave => net[1].recv_at(rx, &from_any(&[room], n)).unwrap(),
                Peek::Claim => net[1].claim(rx, &from_any(&[room], n)).unwrap(),
                Peek::Discard => {}
            }
            net.settle();
            assert_eq!(net[1].rx().len(), usize::from(what != Peek::Discard));
            assert_eq!((net[1].next(queue), net[0].sent().err), (None, None));
        }
        net.assert_idle();
    }
}

/// By the context itself, where the message came to an endpoint that has no queue.
#[test]
fn what_a_peek_finds_of_an_endpoint_without_a_queue_is_reported_in_the_first_one() {
    let (mut net, rx, _, _) = sharing();
    let (link, av, own) = (net.link(), net[1].av, net[1].rx_cq);
    let (place, tx_cq) = (link.place(), Some(net[1].tx_cq));
    net[1].ep_open(EpConfig { link, av, rx: Some(rx), tx_cq, rx_cq: None, cntrs: Cntrs::default() });
    let (av, name, src) = (net[0].av, net.addr(place), net.memory(0, 3000));
    let to_deaf = net[0].av_insert(av, name);
    net[0].send(&msg(to_deaf, &[src], 0)).unwrap();
    net.settle();
    let pattern = Pattern { src: ADDR_UNSPEC, tag: None };
    net[1].peek(rx, pattern, Peek::Leave, Ctx(7), OpFlags::COMPLETION).unwrap();
    assert_eq!(net[1].next(own).map(|c| (c.ctx, c.err, c.len)), Some((Ctx(7), None, 3000)));
}

#[test]
fn a_shared_multi_receive_buffer_is_given_back_whichever_endpoint_fills_it() {
    for (last, len) in [(0, 80), (1, 80), (0, 5000), (1, 5000)] {
        let (mut net, rx, eps, to) = sharing_with(Setup { direct: Direct::Never, ..Setup::default() });
        net[1].ep_write_every_receive(eps[1]);
        let (src, room) = (net.memory(0, len), net.memory(1, 2 * len));
        let flags = OpFlags::AS_BOUND | OpFlags::MULTI_RECV;
        net[1].recv_at(rx, &Recv { flags, ..from_any(&[room], 7) }).unwrap();
        for at in [1 - last, last] {
            net[0].send(&msg(to[at], &[src], 0)).unwrap();
            net.settle();
        }
        let got: Vec<_> = net[1].rx().iter().map(|c| (c.len, c.what.contains(What::MULTI_RECV))).collect();
        let expected: &[_] = if last == 1 { &[(len, true)] } else { &[(len, false), (len, true)] };
        assert_eq!(got, expected, "{last}, {len}");
        // What fails has a completion in any case.
        net[1].recv_at(rx, &Recv { flags: OpFlags::AS_BOUND, ..from_any(&[], 8) }).unwrap();
        net[0].send(&msg(to[0], &[src], 0)).unwrap();
        net.settle();
        let cut = net[1].received();
        assert_eq!((cut.ctx.0, cut.err, cut.olen), (8, Some(Error::Truncated), len));
    }
}

#[test]
fn closing_one_of_two_that_share_leaves_the_other_its_receives() {
    let (mut net, rx, eps, to) = sharing();
    let (src, room) = (net.bytes(0, b"x"), net.memory(1, 1));
    net[0].send(&msg(to[0], &[src], 0)).unwrap();
    net.settle();
    assert_eq!(net[1].srx_close(rx), Err(Error::Busy));
    net[1].ep_close(eps[0]).unwrap();
    // What came in at the closed one went with it.
    net[1].recv_at(rx, &from_any(&[room], 1)).unwrap();
    assert_eq!(net[1].rx(), []);
    net[0].send(&msg(to[1], &[src], 0)).unwrap();
    net.settle();
    assert_eq!(net[1].received().ctx.0, 1);
    net[1].ep_close(eps[1]).unwrap();
    assert_eq!(net[1].srx_close(rx), Ok(()));
}

/// The buffer is the context's, which stays.
#[test]
fn closing_one_of_two_that_share_gives_back_receives_that_messages_were_on_their_way_to() {
    for multi in [true, false] {
        let (mut net, rx, eps, to) = sharing_with(Setup { direct: Direct::Never, ..Setup::default() });
        let (src, room) = (net.memory(0, 3000), net.memory(1, 6000));
        let more = if multi { OpFlags::MULTI_RECV } else { OpFlags::empty() };
        let flags = OpFlags::COMPLETION | more;
        net[1].recv_at(rx, &Recv { flags, ..from_any(&[room], 42) }).unwrap();
        net[0].send(&msg(to[0], &[src], 0)).unwrap();
        net[1].progress();
        assert_eq!(net[1].rx(), []);
        net[1].ep_close(eps[0]).unwrap();
        let gone = net[1].received();
        assert_eq!((gone.ctx.0, gone.err), (42, Some(Error::Cancelled)));
        if multi {
            net[0].send(&msg(to[1], &[src], 0)).unwrap();
            net.settle();
            let got = net[1].received();
            assert_eq!((got.err, got.len, got.what.contains(What::MULTI_RECV)), (None, 3000, true));
        }
        assert_eq!(net[1].rx(), []);
    }
}

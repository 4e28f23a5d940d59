//! Which message goes to which receive: address vectors, multi-receive buffers, peeks, cancels.

use engine::{ADDR_UNSPEC, Ctx, Error, OpFlags, Pattern, Peek, Recv, Send, What};
use hmem::Span;
use testkit::*;

fn any_peer(tag: Option<(u64, u64)>) -> Pattern {
    Pattern { src: ADDR_UNSPEC, tag }
}

#[test]
fn a_mask_lets_other_tags_in_and_the_oldest_receive_wins() {
    let mut net = Net::new(2);
    let room = net.memory(1, 4);
    for (ctx, tag, ignore) in [(1, 0x10, 0xf), (2, 0x11, 0), (3, 0, u64::MAX)] {
        net[1].recv(&Recv { pattern: any_peer(Some((tag, ignore))), ..from_any(&[room], ctx) }).unwrap();
    }
    for tag in [0x11, 0x99, 0x11] {
        net[0].send(&tagged(1, &[], tag, 0)).unwrap();
    }
    net.settle();
    let got: Vec<_> = net[1].rx().iter().map(|c| (c.ctx.0, c.tag)).collect();
    assert_eq!(got, [(1, 0x11), (3, 0x99), (2, 0x11)]);
}

#[test]
fn tagged_and_untagged_do_not_mix() {
    let mut net = Net::new(2);
    net[1].recv(&from_any(&[], 1)).unwrap();
    net[0].send(&tagged(1, &[], 0, 0)).unwrap();
    net.settle();
    assert_eq!(net[1].rx(), []);
    net[1].recv(&with_tag(&[], 0, 2)).unwrap();
    assert_eq!(net[1].received().ctx.0, 2);
    net[0].send(&msg(1, &[], 0)).unwrap();
    net.settle();
    assert_eq!(net[1].received().ctx.0, 1);
}

#[test]
fn a_directed_receive_waits_for_its_peer() {
    let mut net = Net::new(3);
    net[2].recv(&from(1, &[], 1)).unwrap();
    net[2].recv(&from(0, &[], 0)).unwrap();
    net[0].send(&msg(2, &[], 0)).unwrap();
    net.settle();
    let got = net[2].received();
    assert_eq!((got.ctx.0, got.src), (0, 0));
    net[1].send(&msg(2, &[], 0)).unwrap();
    net.settle();
    let got = net[2].received();
    assert_eq!((got.ctx.0, got.src), (1, 1));
}

#[test]
fn a_stranger_gets_his_name_when_he_is_inserted_even_after_his_message_came() {
    let mut net = Net::with(2, Setup { acquainted: false, ..Setup::default() });
    let (me, him) = (net.addr(1), net.addr(0));
    let av = net[0].av;
    let to = net[0].av_insert(av, me);
    for tag in [1, 2, 3] {
        net[0].send(&tagged(to, &[], tag, 0)).unwrap();
    }
    net.settle();
    net[1].recv(&with_tag(&[], 1, 0)).unwrap();
    assert_eq!(net[1].received().src, ADDR_UNSPEC);
    // One waits, one was claimed.
    let rx = net[1].rx;
    net[1].peek(rx, any_peer(Some((3, 0))), Peek::Claim, Ctx(8), OpFlags::empty()).unwrap();
    let av = net[1].av;
    let name = net[1].av_insert(av, him);
    let directed = Pattern { src: name, tag: Some((2, 0)) };
    net[1].recv(&Recv { pattern: directed, ..from_any(&[], 0) }).unwrap();
    assert_eq!(net[1].received().src, name);
    net[1].claim(rx, &with_tag(&[], 3, 8)).unwrap();
    assert_eq!(net[1].received().src, name);
}

#[test]
fn an_address_inserted_twice_is_one_peer() {
    let mut net = Net::new(2);
    let (him, me, av) = (net.addr(0), net.addr(1), net[1].av);
    let again = net[1].av_insert(av, him);
    assert_eq!((again, net[1].av_lookup(av, again)), (2, Some(him)));
    // A receive from either name takes its message, which bears the older.
    for name in [0, again] {
        net[1].recv(&from(name, &[], name as usize)).unwrap();
        net[0].send(&msg(1, &[], 0)).unwrap();
        net.settle();
        let got = net[1].received();
        assert_eq!((got.ctx.0, got.src), (name as usize, 0));
    }
    // The older name goes: the other is its name now, for receives posted before, too.
    net[1].recv(&from(again, &[], 5)).unwrap();
    net[1].av_remove(av, 0).unwrap();
    assert_eq!(net[1].av_remove(av, 0), Err(Error::NotFound));
    assert_eq!(net[1].send(&msg(0, &[], 0)), Err(Error::NoAddr));
    net[0].send(&msg(1, &[], 0)).unwrap();
    net.settle();
    let got = net[1].received();
    assert_eq!((got.ctx.0, got.src), (5, again));
    net[1].send(&msg(again, &[], 0)).unwrap();
    // No name at all: it is a stranger again.
    net[1].av_remove(av, again).unwrap();
    net[1].recv(&from_any(&[], 6)).unwrap();
    net[0].send(&msg(1, &[], 0)).unwrap();
    net.settle();
    assert_eq!(net[1].received().src, ADDR_UNSPEC);
    let av0 = net[0].av;
    assert_eq!(net[0].av_lookup(av0, 1), Some(me));
}

#[test]
fn an_address_that_was_not_inserted_is_refused() {
    let mut net = Net::new(2);
    for to in [2, 99, u64::from(u32::MAX), ADDR_UNSPEC] {
        assert_eq!(net[0].send(&msg(to, &[], 0)), Err(Error::NoAddr));
    }
}

#[test]
fn a_cancelled_receive_is_reported_and_takes_nothing() {
    let mut net = Net::new(2);
    let rx = net[1].rx;
    net[1].recv(&with_tag(&[], 7, 1)).unwrap();
    net[1].recv(&from_any(&[], 2)).unwrap();
    for (ctx, tag) in [(1, 7), (2, 0)] {
        net[1].cancel(rx, Ctx(ctx)).unwrap();
        let gone = net[1].received();
        assert_eq!((gone.ctx.0, gone.err, gone.tag), (ctx, Some(Error::Cancelled), tag));
        assert_eq!(net[1].cancel(rx, Ctx(ctx)), Err(Error::NotFound));
    }
    net[0].send(&msg(1, &[], 0)).unwrap();
    net.settle();
    assert_eq!(net[1].rx(), []);
}

#[test]
fn a_receive_with_bytes_on_the_way_is_beyond_cancelling() {
    let mut net = Net::with(2, Setup { direct: Direct::Never, ..Setup::default() });
    let (src, dst, rx) = (net.memory(0, 3000), net.memory(1, 3000), net[1].rx);
    net[1].recv(&from_any(&[dst], 1)).unwrap();
    net[0].send(&msg(1, &[src], 1)).unwrap();
    net[1].progress();
    assert_eq!(net[1].cancel(rx, Ctx(1)), Err(Error::NotFound));
    net.settle();
    assert_eq!(net[1].received().err, None);
}

/// Posts a multi-receive buffer of so many bytes.
fn multi(net: &mut Net, len: usize) -> Span {
    let room = net.memory(1, len);
    let flags = OpFlags::COMPLETION | OpFlags::MULTI_RECV;
    net[1].recv(&Recv { flags, ..from_any(&[room], 42) }).unwrap();
    room
}

#[test]
fn a_multi_receive_buffer_fills_up_and_is_given_back_with_its_last_message() {
    for (direct, waiting) in Direct::ALL.into_iter().flat_map(|d| [(d, false), (d, true)]) {
        let mut net = Net::with(2, Setup { direct, ..Setup::default() });
        let rx = net[1].rx;
        net[1].rx_set_min_multi_recv(rx, 100);
        let lens = [300, 5, 0, 600, 25];
        let mut room = Span::EMPTY;
        if !waiting {
            room = multi(&mut net, 1000);
        }
        for (i, len) in lens.into_iter().enumerate() {
            let src = net.bytes(0, &pattern(len, i));
            net[0].send(&msg(1, &[src], i)).unwrap();
        }
        net.settle();
        if waiting {
            room = multi(&mut net, 1000);
            net.settle();
        }
        let mut got = net[1].rx();
        // Messages by rendezvous may complete late, but the buffer comes back with the last.
        let backs: Vec<_> = got.iter().map(|c| c.what.contains(What::MULTI_RECV)).collect();
        assert_eq!(backs, [false, false, false, true], "{direct:?} {waiting}");
        got.sort_by_key(|c| (c.buf, c.len));
        let places: Vec<_> = got.iter().map(|c| (c.ctx.0, c.err, (c.buf - room.addr()), c.len)).collect();
        assert_eq!(
            places,
            [(42, None, 0, 300), (42, None, 300, 5), (42, None, 305, 0), (42, None, 305, 600)]
        );
        for (i, off) in [(0, 0), (1, 300), (3, 305)] {
            let part = room.part(off, lens[i]).unwrap();
            assert_eq!(net[1].look(part, lens[i]), pattern(lens[i], i));
        }
        // The fifth found no room in it.
        net[1].recv(&from_any(&[], 1)).unwrap();
        assert_eq!(net[1].received().olen, 25);
        assert_eq!(net[0].tx().len(), 5);
        net.assert_idle();
    }
}

#[test]
fn a_message_longer_than_what_is_left_of_a_multi_receive_buffer_is_cut() {
    let mut net = Net::new(2);
    let rx = net[1].rx;
    net[1].rx_set_min_multi_recv(rx, 0);
    multi(&mut net, 100);
    let src = net.memory(0, 60);
    for _ in 0..2 {
        net[0].send(&msg(1, &[src], 0)).unwrap();
    }
    net.settle();
    let got: Vec<_> =
        net[1].rx().iter().map(|c| (c.len, c.olen, c.what.contains(What::MULTI_RECV))).collect();
    assert_eq!(got, [(60, 0, false), (40, 20, true)]);
}

#[test]
fn a_cancelled_multi_receive_buffer_is_given_back_once_nothing_is_coming_in() {
    let mut net = Net::with(2, Setup { direct: Direct::Never, ..Setup::default() });
    let rx = net[1].rx;
    multi(&mut net, 5000);
    net[1].cancel(rx, Ctx(42)).unwrap();
    let gone = net[1].received();
    assert_eq!((gone.err, gone.what.contains(What::MULTI_RECV)), (Some(Error::Cancelled), true));

    multi(&mut net, 5000);
    let src = net.memory(0, 3000);
    net[0].send(&msg(1, &[src], 0)).unwrap();
    net[1].progress();
    net[1].cancel(rx, Ctx(42)).unwrap();
    let gone = net[1].received();
    assert_eq!((gone.err, gone.what.contains(What::MULTI_RECV)), (Some(Error::Cancelled), false));
    net.settle();
    let got = net[1].received();
    assert_eq!((got.err, got.len, got.what.contains(What::MULTI_RECV)), (None, 3000, true));
}

fn peek(net: &mut Net, pattern: Pattern, what: Peek, ctx: usize) -> engine::Completion {
    let rx = net[1].rx;
    net[1].peek(rx, pattern, what, Ctx(ctx), OpFlags::COMPLETION).unwrap();
    net[1].received()
}

#[test]
fn a_peek_reports_a_message_and_leaves_it() {
    for len in [20, 3000] {
        let mut net = Net::new(2);
        let none = peek(&mut net, any_peer(Some((7, 0))), Peek::Leave, 1);
        assert_eq!((none.err, none.ctx.0), (Some(Error::NoMessage), 1));
        let src = net.bytes(0, &pattern(len, 1));
        net[0].send(&Send { data: Some(5), ..tagged(1, &[src], 7, 0) }).unwrap();
        let early = peek(&mut net, any_peer(Some((7, 0))), Peek::Leave, 2);
        assert_eq!(early.err, Some(Error::NoMessage), "it makes progress after the look");
        for _ in 0..2 {
            let c = peek(&mut net, any_peer(Some((7, 0))), Peek::Leave, 2);
            assert_eq!((c.err, c.len, c.tag, c.src, c.data), (None, len, 7, 0, 5));
            assert_eq!(c.what, What::RECV | What::TAGGED | What::REMOTE_CQ_DATA);
        }
        let dst = net.memory(1, len);
        net[1].recv(&with_tag(&[dst], 7, 3)).unwrap();
        net.settle();
        assert_eq!(net[1].received().len, len);
        assert_eq!(net[1].look(dst, len), pattern(len, 1));
    }
}

#[test]
fn a_claimed_message_is_matched_by_no_other_receive() {
    for (len, discard) in [(20, false), (3000, false), (20, true), (3000, true)] {
        let mut net = Net::new(2);
        let (src, dst, rx) = (net.bytes(0, &pattern(len, 1)), net.memory(1, len), net[1].rx);
        let flags = OpFlags::COMPLETION | OpFlags::DELIVERY;
        net[0].send(&Send { flags, data: Some(6), ..tagged(1, &[src], 7, 0) }).unwrap();
        net.settle();
        let c = peek(&mut net, any_peer(Some((7, 0))), Peek::Claim, 9);
        assert!(c.what.contains(What::CLAIM), "{c:?}");
        net[1].recv(&with_tag(&[], 7, 1)).unwrap();
        net.settle();
        assert_eq!((net[1].rx(), net[0].tx()), (vec![], vec![]));
        assert_eq!(net[1].claim(rx, &with_tag(&[dst], 7, 8)), Err(Error::NoMessage));
        if discard {
            net[1].claim_discard(rx, Ctx(9), true, OpFlags::COMPLETION).unwrap();
        } else {
            net[1].claim(rx, &with_tag(&[dst], 7, 9)).unwrap();
        }
        net.settle();
        let got = net[1].received();
        assert_eq!((got.ctx.0, got.len, got.data, got.err), (9, len, 6, None));
        assert!(got.what.contains(What::REMOTE_CQ_DATA));
        if !discard {
            assert_eq!(net[1].look(dst, len), pattern(len, 1));
        }
        assert_eq!(net[0].sent().err, None);
        assert_eq!(net[1].claim_discard(rx, Ctx(9), true, OpFlags::COMPLETION), Err(Error::NoMessage));
        net.assert_idle();
    }
}

#[test]
fn a_discarded_message_is_gone_and_its_sender_content() {
    for len in [20, 3000] {
        let mut net = Net::new(2);
        let src = net.memory(0, len);
        let flags = OpFlags::COMPLETION | OpFlags::DELIVERY;
        net[0].send(&Send { flags, ..msg(1, &[src], 1) }).unwrap();
        net.settle();
        let c = peek(&mut net, any_peer(None), Peek::Discard, 2);
        assert_eq!((c.err, c.len), (None, len));
        net.settle();
        assert_eq!(net[0].sent().err, None);
        assert_eq!(peek(&mut net, any_peer(None), Peek::Leave, 3).err, Some(Error::NoMessage));
        net.assert_idle();
    }
}

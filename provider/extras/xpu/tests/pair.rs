//! Two contexts, and threads that play their devices.

mod common;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use common::{LIMIT, Pair, put, signal};
use xpu::command::{Op, Raw};
use xpu::device::Ended;
use xpu::error::code;
use xpu::layout::{ANY, NO_REGION, flag};
use xpu::{Context, RingRequest};

#[test]
fn a_put_with_a_signal_of_each_size_arrives_before_its_signal() {
    let pair = Pair::new();
    for (turn, words) in [(1, 1usize), (2, 128), (3, 16_384)] {
        for at in 0..words {
            pair.mine.get(at).store((turn << 32) + at as u64, Relaxed);
        }
        let ticket = pair.producer.post(&[put(&pair, 0, 0, words, Some((words, turn)))]).unwrap();
        common::until(|| pair.theirs.get(words).load(Acquire) == turn);
        for at in 0..words {
            assert_eq!(pair.theirs.get(at).load(Relaxed), (turn << 32) + at as u64, "{words} words, at {at}");
        }
        pair.producer.wait(ticket, LIMIT).unwrap();
    }
}

#[test]
fn every_operation_does_what_it_says() {
    let pair = Pair::new();
    let (mine, theirs) = (&pair.mine, &pair.theirs);
    let remote = |at| pair.remote(at);
    // Bytes that the command has in itself.
    let inline = Raw {
        flags: flag::INLINE_DATA,
        region: NO_REGION,
        local: u64::MAX - 1,
        length: 8,
        ..put(&pair, 0, 3, 1, None)
    };
    pair.run(&[inline]);
    assert_eq!(theirs.get(3).load(Relaxed), u64::MAX - 1, "the highest bit is lost");
    let get = Raw { op: Op::Get as u8, ..put(&pair, 9, 3, 1, None) };
    pair.run(&[get]);
    assert_eq!(mine.get(9).load(Relaxed), u64::MAX - 1);
    // Signals: set, add, and of 4 bytes.
    pair.run(&[signal(&pair, 20, 5, 0)]);
    pair.run(&[signal(&pair, 20, 2, flag::SIGNAL_ADD | flag::SIGNAL_WEAK)]);
    pair.run(&[Raw { operand: remote(20) + 4, ..signal(&pair, 20, 9, flag::SIGNAL_32) }]);
    assert_eq!(theirs.get(20).load(Relaxed), 9 << 32 | 7);
    // Atomics of 8 bytes: datatype 7 is FI_UINT64; 2 is FI_SUM, 12 is FI_CSWAP.
    let atomic = |op: Op, what: u64, operand, value| Raw {
        op: op as u8,
        length: 7 | what << 8,
        operand,
        value,
        ..put(&pair, 30, 21, 1, None)
    };
    theirs.get(21).store(100, Release);
    pair.run(&[atomic(Op::Atomic, 2, 11, 0)]);
    pair.run(&[atomic(Op::Fetch, 2, 1, 0)]);
    assert_eq!((mine.get(30).load(Relaxed), theirs.get(21).load(Relaxed)), (111, 112));
    pair.run(&[atomic(Op::Compare, 12, 7, 112)]);
    assert_eq!((mine.get(30).load(Relaxed), theirs.get(21).load(Relaxed)), (112, 7));
    pair.run(&[atomic(Op::Compare, 12, 8, 1)]);
    assert_eq!((mine.get(30).load(Relaxed), theirs.get(21).load(Relaxed)), (7, 7));
    let nop = Raw { op: Op::Nop as u8, peer: ANY, ..Raw::default() };
    pair.run(&[nop, nop]);
    assert_eq!((pair.producer.error(), pair.producer.failed()), (0, 0));
}

#[test]
fn many_commands_of_several_producers_go_round_the_ring() {
    let pair = Pair::new();
    const EACH: u64 = 500;
    std::thread::scope(|s| {
        for number in 0..3u64 {
            let pair = &pair;
            s.spawn(move || {
                for n in 1..=EACH {
                    let add = signal(pair, number as usize, 1, flag::SIGNAL_ADD | flag::SIGNAL_WEAK);
                    common::until(|| pair.producer.post(&[add]).is_some());
                    let _ = n;
                }
            });
        }
    });
    common::until(|| pair.producer.done() == 3 * EACH);
    for number in 0..3 {
        assert_eq!(pair.theirs.get(number).load(Acquire), EACH);
    }
}

/// A strong signal comes after every earlier put, and not after one that failed.
#[test]
fn strong_signal_follows_all_earlier_puts_but_no_failed_one() {
    let pair = Pair::new();
    for turn in 1..=200u64 {
        let mut commands: Vec<Raw> = (0..6).map(|at| put(&pair, at, at, 1, None)).collect();
        (0..6).for_each(|at| pair.mine.get(at).store(turn, Relaxed));
        commands.push(signal(&pair, 40, turn, 0));
        common::until(|| pair.producer.post(&commands).is_some());
        common::until(|| pair.theirs.get(40).load(Acquire) == turn);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|at| pair.theirs.get(at).load(Relaxed)), [turn; 6]);
        common::until(|| pair.producer.done() == turn * 7);
    }
    // Of a key that the target lacks, in frames: the answer comes later than the signal is taken.
    let bad = Raw { key: 0xdead_beef, ..put(&pair, 0, 0, 1, None) };
    let first = pair.producer.post(&[bad, signal(&pair, 40, 999, 0)]).unwrap();
    common::until(|| pair.producer.done() == first + 2);
    assert_eq!(pair.theirs.get(40).load(Acquire), 200, "the signal came although a put before it failed");
    let error = pair.producer.error();
    assert_eq!((error as u32 as i32, error >> 32 & 0x7fff_ffff), (code::NOKEY, first), "{error:#x}");
    assert_eq!(pair.producer.failed(), 2);
    // Nor one that is taken long after the failure, nor behind a put that was refused here: another ring's
    // is.
    let (late, kept) = (signal(&pair, 40, 1000, 0), signal(&pair, 41, 7, flag::SIGNAL_WEAK));
    let last = pair.producer.post(&[late, kept]).unwrap() + 1;
    common::until(|| pair.producer.done() > last);
    assert_eq!((pair.theirs.get(40).load(Acquire), pair.theirs.get(41).load(Acquire)), (200, 7));
    let pair = Pair::new();
    let outside = Raw { length: 1 << 30, ..put(&pair, 0, 0, 1, None) };
    let last = pair.producer.post(&[outside, signal(&pair, 40, 1001, 0)]).unwrap() + 1;
    common::until(|| pair.producer.done() > last);
    assert_eq!(pair.theirs.get(40).load(Acquire), 0, "the signal came although a put before it was refused");
}

/// A peer without room stops neither other rings nor commands to other peers.
/// Signals to a peer that makes no progress fill all that is between: those of another ring, and to another
/// peer, go on.
#[test]
fn full_peer_stops_no_other_rings_or_peers() {
    let mut contexts = [(); 3].map(|()| Context::open(common::options()).unwrap());
    let memory = contexts.each_mut().map(|c| c.allocate(common::WORDS).unwrap().1);
    let rings = [(); 2].map(|()| contexts[0].open_ring(RingRequest::new(14)).unwrap());
    let blobs = contexts.each_ref().map(Context::blob);
    let blobs = blobs.each_ref().map(|b| b.as_slice());
    contexts.iter_mut().enumerate().for_each(|(rank, c)| c.connect(rank as u32, &blobs).unwrap());
    // Peer 1 does not begin, and so takes nothing.
    contexts[0].begin().unwrap();
    contexts[2].begin().unwrap();
    let to = |peer: u32, at: usize, value: u64| {
        let region = contexts[0].peer(peer, 0).unwrap();
        let operand = region.remote + at as u64 * 8;
        Raw {
            op: Op::Signal as u8,
            flags: flag::SIGNAL_WEAK | flag::SIGNAL_ADD,
            peer,
            operand,
            value,
            context: region.key,
            ..Raw::default()
        }
    };
    let producers = rings.each_ref().map(|r| r.producer());
    for _ in 0..(1 << 14) - 8 {
        producers[0].post(&[to(1, 0, 1)]).unwrap();
    }
    producers[0].post(&[to(2, 5, 55)]).unwrap();
    producers[1].post(&[to(2, 6, 66)]).unwrap();
    common::until(|| memory[2].get(6).load(Acquire) == 66);
    common::until(|| memory[2].get(5).load(Acquire) == 55);
    assert_eq!(producers[0].done(), 0, "a peer that makes no progress has taken a signal");
    contexts[1].begin().unwrap();
    common::until(|| producers[0].done() == (1 << 14) - 7);
    assert_eq!((producers[0].failed(), memory[1].get(0).load(Acquire)), (0, (1 << 14) - 8));
}

/// Completions go into the queue, and stop the ring while there is no room.
#[test]
fn completions_without_room_in_the_queue_stop_the_ring() {
    let pair = Pair::with(|r| r.log2_entries = Some(1));
    let (entries, read) = (pair.ring.entries.clone().unwrap(), pair.ring.read.clone().unwrap());
    let wanted: Vec<Raw> = (0..4)
        .map(|n| Raw { flags: flag::COMPLETION, context: (1 << 63) + n, ..put(&pair, 0, 0, 1, None) })
        .collect();
    pair.producer.post(&wanted).unwrap();
    for n in 0..4usize {
        let word = |w: usize| entries.words.get(entries.at + n % 2 * 8 + w);
        common::until(|| word(7).load(Acquire) == n as u64 + 1);
        assert_eq!(
            (word(0).load(Relaxed), word(1).load(Relaxed), word(2).load(Relaxed)),
            ((1 << 63) + n as u64, 2, 8)
        );
        read.words.get(read.at).store(n as u64 + 1, Release);
    }
}

#[test]
fn messages_and_receives() {
    let pair = Pair::with(|r| r.log2_entries = Some(4));
    // To oneself: both sides are the same ring's.
    let own = |op: Op, at: usize, tag| Raw {
        op: op as u8,
        flags: flag::COMPLETION,
        peer: 0,
        remote: tag,
        key: 0,
        context: tag,
        ..put(&pair, at, 0, 2, None)
    };
    pair.mine.get(50).store(77, Release);
    let commands = [Raw { peer: ANY, ..own(Op::Trecv, 60, 5) }, own(Op::Tsend, 50, 5)];
    pair.producer.post(&commands).unwrap();
    common::until(|| pair.mine.get(60).load(Acquire) == 77);
    let entries = pair.ring.entries.clone().unwrap();
    let entry = |n: usize, w: usize| entries.words.get(entries.at + n * 8 + w).load(Acquire);
    common::until(|| entry(1, 7) == 2);
    let mut ops = [entry(0, 1), entry(1, 1)];
    ops.sort_unstable();
    assert_eq!(ops, [Op::Tsend as u64, Op::Trecv as u64]);
}

#[test]
fn a_ring_with_a_bell_takes_what_is_below_it() {
    let pair = Pair::with(|r| r.bell = true);
    pair.mine.get(0).store(1, Release);
    pair.producer.post(&[put(&pair, 0, 1, 1, None), put(&pair, 0, 2, 1, None)]).unwrap();
    pair.producer.notify(1);
    pair.producer.wait(0, LIMIT).unwrap();
    assert_eq!(pair.producer.wait(1, Duration::from_millis(50)), Err(Ended::Timeout));
    pair.producer.notify(2);
    pair.producer.wait(1, LIMIT).unwrap();
    assert_eq!(pair.theirs.get(2).load(Acquire), 1);
}

#[test]
fn a_close_and_the_loss_of_a_peer_are_told_in_error_words() {
    let Pair { mut here, there, producer, .. } = Pair::new();
    assert_eq!((producer.error(), here.peer_error(0), here.peer_error(1)), (0, 0, 0));
    common::until(|| producer.beat() > 2);
    drop(there);
    // The same process: it is known only by what a command to it ends with.
    let lost = Raw { op: Op::Get as u8, peer: 1, key: 1, ..Raw::default() };
    let ticket = producer.post(&[Raw { length: 8, local: 0, ..lost }]).unwrap();
    assert!(matches!(producer.wait(ticket, LIMIT), Err(Ended::Error(_))));
    here.close().unwrap();
    assert_eq!(producer.error() >> 63, 1, "the ring does not say that it has ended");
    assert_eq!((here.peer_error(0) >> 63, here.peer_error(1) >> 63), (1, 1));
    assert_eq!(producer.wait(ticket + 1, LIMIT).map_err(|e| matches!(e, Ended::Error(_))), Err(true));
}

#[test]
fn a_small_engine_queue_and_a_full_ring_lose_and_repeat_nothing() {
    let pair = Pair::new();
    // More to one peer than goes at once, each with a weak signal of its own: a put that was started twice
    // adds twice.
    let total = 600u64;
    for n in 0..total {
        let add = flag::SIGNAL_ADD | flag::SIGNAL_WEAK;
        let one = Raw { flags: add, ..put(&pair, 0, 1, 4_000, Some((20_000, 1))) };
        common::until(|| pair.producer.post(&[one]).is_some());
        let _ = n;
    }
    common::until(|| pair.producer.done() == total);
    assert_eq!(pair.theirs.get(20_000).load(Acquire), total);
    assert_eq!(pair.producer.failed(), 0);
}

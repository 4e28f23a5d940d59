//! What an endpoint of the link over TCP keeps for peers that have sent it something. By itself, since it
//! counts what is allocated.
#![cfg(not(loom))]

#[allow(dead_code)]
#[path = "support/pair.rs"]
mod pair;

use std::alloc::Layout;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed};

use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::{Event, FrameLink, Link, Refused, Sent};
use link_kit::counting::Counting;
use pair::{open, options, until};

/// Longer than all that is kept for a peer but a buffer to receive into.
const LARGE: usize = 128 << 10;

const MANY: usize = 64;

static COUNTS: AtomicBool = AtomicBool::new(false);
static BUFFERS: AtomicIsize = AtomicIsize::new(0);

fn count(layout: Layout, n: isize) {
    if layout.size() >= LARGE && COUNTS.load(Relaxed) {
        BUFFERS.fetch_add(n, Relaxed);
    }
}

/// Tests take turns.
static TURN: Mutex<()> = Mutex::new(());

#[global_allocator]
static ALLOCATOR: Counting = Counting(count);

/// What one endpoint does, counted.
fn counted<T>(does: impl FnOnce() -> T) -> T {
    COUNTS.store(true, Relaxed);
    let done = does();
    COUNTS.store(false, Relaxed);
    done
}

/// Whether there was a frame, which is given back.
fn takes_one(one: &mut TcpLink) -> bool {
    let found = takes(one);
    assert_few();
    found
}

fn assert_few() {
    let buffers = BUFFERS.load(Relaxed);
    assert!(buffers <= 9, "{buffers} buffers");
}

fn takes(one: &mut TcpLink) -> bool {
    match counted(|| one.poll()) {
        None => false,
        Some(Event::Frame(frame)) => {
            counted(|| one.release(frame));
            true
        }
        Some(other) => panic!("{other:?}"),
    }
}

#[test]
fn peers_that_have_sent_something_share_a_few_buffers() {
    let _turn = TURN.lock();
    BUFFERS.store(0, Relaxed);
    let mut one = counted(|| open(options("key")));
    let mut many: Vec<TcpLink> = (0..MANY).map(|_| open(options("key"))).collect();
    let to: Vec<_> = many.iter_mut().map(|link| link.peer(&one.addr())).collect();
    for round in 0..3 {
        // But for the first time, all of them have something before any is looked at.
        let (mut sent, mut got) = ([false; MANY], 0);
        until("room for a frame of each", || {
            for ((link, to), sent) in many.iter_mut().zip(&to).zip(&mut sent).filter(|(_, sent)| !**sent) {
                match link.send(*to, &[round; 8], &[], 0, 0) {
                    Ok(Sent::Done) => *sent = true,
                    other => assert_eq!(other, Err(Refused::Busy)),
                }
                link.progress();
            }
            if round == 0 {
                got += usize::from(takes_one(&mut one));
            }
            sent.iter().all(|sent| *sent)
        });
        until("all frames", || {
            got += usize::from(takes_one(&mut one));
            got == MANY
        });
    }
}

#[test]
fn so_do_the_rails_of_peers() {
    const FEW: usize = 8;
    const LONG: usize = 200_000;
    let _turn = TURN.lock();
    BUFFERS.store(0, Relaxed);
    let railed = || TcpOptions {
        rails: 4,
        rails_at: (2..5).map(|n| [127, 0, 0, n].into()).collect(),
        ..options("key")
    };
    let mut one = counted(|| open(railed()));
    let mut many: Vec<TcpLink> = (0..FEW).map(|_| open(railed())).collect();
    let to: Vec<_> = many.iter_mut().map(|link| link.peer(&one.addr())).collect();
    let (body, mut sent, mut got) = ([Span::leak(LONG)], [0; FEW], 0);
    until("frames on all rails", || {
        let mut all = true;
        for ((link, to), sent) in many.iter_mut().zip(&to).zip(&mut sent) {
            let has_rails = link.describe(*to).contains("over 4 rails");
            all &= has_rails && *sent >= 20;
            if (*sent == 0 || has_rails && *sent < 20) && link.send(*to, &[], &body, 0, LONG).is_ok() {
                *sent += 1;
            }
            assert!(link.poll().is_none(), "nothing was to come");
        }
        got += usize::from(takes(&mut one));
        all && got == 20 * FEW
    });
    // A frame of which a part is there has one of its own, and now there is none.
    (0..100).for_each(|_| assert!(!takes(&mut one)));
    assert_few();
}

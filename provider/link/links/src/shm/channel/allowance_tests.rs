//! What rings take of their endpoint's allowance, and without it.

use std::os::fd::AsFd as _;

use super::Allowance;
use crate::shm::channel::producer::Producer;
use crate::shm::channel::ring::{Consumer, LINE};
use crate::shm::channel::segment::Segment;
use crate::shm::{DEFAULT_RING, LONG_RING};

fn pair(ring: usize, allowance: &Allowance) -> (Producer<Segment>, Consumer<Segment>) {
    let (tx, fd) = Segment::create(ring).unwrap();
    let rx = Segment::adopt(fd.as_fd(), ring).unwrap();
    (Producer::new(tx, 5, allowance.clone()), Consumer::new(rx))
}

/// So many frames, each of which is taken before the next.
fn use_much(tx: &mut Producer<Segment>, rx: &mut Consumer<Segment>, len: usize, frames: usize) {
    for sent in 0..frames {
        assert!(tx.reserve(len).unwrap(), "frame {sent} of {len} bytes");
        tx.publish(len);
        assert_eq!(rx.peek(), Ok(Some(len)));
        rx.advance();
    }
}

fn pages(tx: &Producer<Segment>) -> usize {
    tx.mem().resident() / 4096
}

#[test]
fn rings_share_what_longer_laps_take_and_give_it_back() {
    const FRAMES: usize = 40 * LONG_RING / LINE;
    let all = (LONG_RING / LINE) as u32;
    let allowance = Allowance::new(all);
    let (mut one, mut from_one) = pair(LONG_RING, &allowance);
    let (mut two, mut from_two) = pair(LONG_RING, &allowance);
    use_much(&mut one, &mut from_one, 28, FRAMES);
    use_much(&mut two, &mut from_two, 28, FRAMES);
    assert!(pages(&one) >= LONG_RING / 4096, "{} pages", pages(&one));
    assert!(pages(&two) <= LONG_RING / 4096 / 4 + 1, "{} pages", pages(&two));
    assert!(allowance.left() < all / 4);

    for _ in 0..2 {
        from_one.publish();
        one.shrink();
    }
    use_much(&mut two, &mut from_two, 28, FRAMES);
    assert!(pages(&two) >= LONG_RING / 4096, "{} pages", pages(&two));
    drop(two);
    assert_eq!(allowance.left(), all);
    use_much(&mut one, &mut from_one, 28, FRAMES);
    assert!(pages(&one) >= LONG_RING / 4096, "{} pages", pages(&one));
    let _segment = one.into_mem();
    assert_eq!(allowance.left(), all);
}

/// Laps that are twice as long take no more pages than are left alone.
#[test]
fn a_ring_that_is_idle_keeps_nothing_of_the_allowance_however_little_it_took() {
    for ring in [DEFAULT_RING, LONG_RING] {
        let all = (LONG_RING / LINE) as u32;
        let allowance = Allowance::new(all);
        let (mut tx, mut rx) = pair(ring, &allowance);
        while allowance.left() == all {
            use_much(&mut tx, &mut rx, 28, 1);
        }
        for _ in 0..2 {
            rx.publish();
            tx.shrink();
        }
        assert_eq!(allowance.left(), all, "a ring of {ring} bytes");
    }
}

#[test]
fn long_frames_that_are_taken_before_the_next_do_not_take_the_whole_ring() {
    for len in [8 << 10, 16 << 10, 20 << 10] {
        let (mut tx, mut rx) = pair(DEFAULT_RING, &Allowance::new(0));
        use_much(&mut tx, &mut rx, len, 1000);
        assert!(pages(&tx) <= DEFAULT_RING / 4096 / 2, "{} pages for {len} bytes", pages(&tx));
    }
}

#[test]
fn a_consumer_that_is_behind_has_the_whole_ring_filled_without_an_allowance() {
    for ring in [DEFAULT_RING, LONG_RING] {
        let (mut tx, _rx) = pair(ring, &Allowance::new(0));
        let sent = (0..)
            .take_while(|_| {
                tx.reserve(28).unwrap_or(false) && {
                    tx.publish(28);
                    true
                }
            })
            .count();
        assert!(sent >= ring / LINE - 32, "{sent} frames");
    }
}

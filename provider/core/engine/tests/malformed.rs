//! What is logged of frames that make no sense.

use std::sync::Mutex;

use engine::Send;
use testkit::*;
use wire::{Flags, Head, Op, Pieces, Seg, put};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keep;

impl log::Log for Keep {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        if record.level() == log::Level::Warn {
            LINES.lock().unwrap().push(record.args().to_string());
        }
    }
    fn flush(&self) {}
}

fn head(op: Op, flags: Flags, aux: u16, tag: u64, data: u64) -> Vec<u8> {
    let mut frame = Vec::new();
    put(&mut frame, &Head::new(op, flags, aux, tag, data));
    frame
}

#[test]
fn a_line_says_which_frame_it_was_and_what_is_wrong_with_it() {
    log::set_logger(&Keep).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let none = Flags::empty();
    let other = 1 << 32;
    let mut odd = head(Op::Fin, none, 0, 1, 0);
    odd[0] = 99;
    let mut rts = head(Op::Rts, none, 1, 1, 0);
    put(&mut rts, &wire::Offer { req: 1.into(), len: 7.into() });
    put(&mut rts, &Seg { addr: 0.into(), len: 8.into() });
    let mut share = head(Op::CoopFetch, none, 0, other, 1);
    put(&mut share, &Pieces { len: 1.into(), piece: 1.into(), slot: 0.into(), generation: 0.into() });
    let cases = [
        (
            vec![1; 7],
            "10.0.0.1:2 has sent a malformed frame of 7 bytes, which is dropped: shorter than a head of 20 bytes",
        ),
        (odd, "op 99 is unknown"),
        (
            head(Op::Eager, Flags::COLLECTIVE, 0, 1, 0),
            "Eager: flags 0x80, of which this endpoint does not take all",
        ),
        (head(Op::Eager, Flags::ACK, 0, 1, 0), "Eager: 0 bytes behind the head, of at least 8"),
        (head(Op::Rts, none, 9, 1, 0), "Rts: aux 0x9 counts more than 8 segments"),
        (head(Op::Write, none, 0xf, 1, 0), "Write: aux 0xf counts more than 8 segments"),
        (head(Op::Atomic, none, 2, 1, 0), "Atomic: 0 bytes behind the head, of at least 48"),
        (rts, "Rts: the segments are not as long as the message"),
        (head(Op::Fin, none, 0, 77, 0), "Fin: tag 0x4d names no operation under way"),
        (head(Op::Fin, none, 0, other, 0), "Fin: tag 0x100000000 names an operation with another peer"),
        (share, "CoopFetch: tag 0x100000000 names an operation with another peer"),
        (head(Op::Pause, none, 0, 0, 5), "Pause: data 0x5, aux 0x0: each is 0 or 1, and not both 1"),
        (
            head(Op::Refused, none, 1, 0, 0),
            "Refused: status 1 for an operation that this endpoint did not post",
        ),
    ];
    // Of each peer a few lines alone are written.
    let fresh = || {
        let mut net = Net::new(3);
        let large = net.memory(0, 3000);
        net[0].send(&Send { tag: Some(1), ..msg(2, &[large], 1) }).unwrap();
        net
    };
    for (frame, what) in cases {
        let mut net = fresh();
        net.inject(1, 0, frame);
        net[0].progress();
        let lines = std::mem::take(&mut *LINES.lock().unwrap());
        assert!(lines.len() == 1 && lines[0].contains(what), "{what}: {lines:?}");
    }
    // One of the right peer that does not fit: there is nothing to be put together.
    let mut net = fresh();
    net.inject(2, 0, head(Op::Result, none, 0, other, 0));
    net[0].progress();
    let lines = std::mem::take(&mut *LINES.lock().unwrap());
    assert!(lines[0].contains("Result: data 0x0, aux 0x0 or 0 bytes do not fit operation"), "{lines:?}");
}

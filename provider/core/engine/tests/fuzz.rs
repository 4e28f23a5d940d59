//! A peer whose every step is drawn from bytes: what it sends, what it does to what honest code sends in its
//! place, and when each node makes progress. Seeds are in `__fuzz__`; plain `cargo test` runs these and so
//! many random ones, `cargo bolero test -p strait-engine peer` searches for more.

use engine::{ADDR_UNSPEC, Atomic, Config, Ctx, OpFlags, Pattern, Recv, Send};
use hmem::{AtomicOp, Datatype, Span};
use testkit::*;
use wire::RmaSeg;

/// The bytes, front to back; zeros once they are used up.
struct Draw<'a>(&'a [u8]);

impl Draw<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn below(&mut self, n: u8) -> u8 {
        self.byte() % n
    }

    fn many(&mut self, n: usize) -> Vec<u8> {
        (0..n.min(self.0.len())).map(|_| self.byte()).collect()
    }

    /// A number that a frame may hold.
    fn word(&mut self, shared: Span) -> u64 {
        let (kind, small) = (self.below(6), u64::from(self.byte()));
        match kind {
            0 => small,
            1 => small << 4,
            2 => (small >> 6 << 32 | 1 << 32) | (small & 31),
            3 => shared.addr() + 16 * small,
            4 => u64::MAX - small,
            _ => u64::from_le_bytes([0; 8].map(|_: u8| self.byte())),
        }
    }
}

fn frame(draw: &mut Draw<'_>, shared: Span) -> Vec<u8> {
    if draw.below(4) == 0 {
        let n = draw.byte();
        return draw.many(n.into());
    }
    let mut frame = vec![draw.below(24), draw.below(130), draw.byte(), draw.below(32)];
    for _ in 0..2 + draw.below(8) {
        frame.extend(draw.word(shared).to_le_bytes());
    }
    let n = draw.byte();
    frame.extend(draw.many(n.into()));
    frame.truncate(512);
    frame
}

fn atomic<'a>(to: u64, iov: &'a [Span], old: &'a [Span], there: &'a [RmaSeg], ctx: usize) -> Atomic<'a> {
    Atomic {
        to,
        op: AtomicOp::Sum,
        datatype: Datatype::Uint64,
        operand: iov,
        compare: &[],
        result: old,
        remote: there,
        data: None,
        ctx: Ctx(ctx),
        flags: OpFlags::COMPLETION,
    }
}

/// Starts one of the victim's operations with a peer, and counts sends and receives.
fn deed(net: &mut Net, draw: &mut Draw<'_>, peer: u64, room: Span, started: &mut [usize; 2]) {
    let key = [there(0, 3000, 1)];
    let small = [there(8, 8, 1)];
    let (large, tiny, old) =
        (room.part(0, 3000).unwrap(), room.part(0, 8).unwrap(), room.part(8, 8).unwrap());
    let kind = draw.below(9);
    let sent = match kind {
        0 => net[0].send(&msg(peer, &[tiny], 1)),
        1 => net[0].send(&tagged(peer, &[large], 1, 2)),
        2 => net[0].rma(&write(peer, &[large], &key, 3)),
        3 => net[0].rma(&read(peer, &[large], &key, 4)),
        4 => net[0].rma(&read(peer, &[tiny], &small, 5)),
        5 => net[0].send(&Send { flags: OpFlags::INJECT, ..msg(peer, &[old], 9) }),
        6 => net[0].atomic(&atomic(peer, &[tiny], &[old], &small, 6)),
        7 => net[0].recv(&from(peer, &[large], 7)),
        _ => net[0].recv(&from(peer, &[tiny], 8)),
    };
    started[usize::from(kind >= 7)] += usize::from(sent.is_ok());
}

#[test]
fn peer() {
    bolero::check!().with_iterations(3000).for_each(|bytes: &[u8]| {
        let draw = &mut Draw(bytes);
        let how = draw.byte();
        let config = Config { virt_addr: how & 1 != 0, rma_order: how & 2 != 0 };
        let setup = Setup {
            config,
            direct: if how & 64 != 0 {
                Direct::Frames
            } else {
                Direct::ALL[usize::from(how >> 6 & 2 | how >> 2 & 1)]
            },
            looks: how & 32 != 0,
            capacity: 16,
            cq_size: 1000,
            ..Setup::default()
        };
        let mut net = Net::with(3, setup);
        net.set_boards(how & 8 != 0);
        net[0].set_unexpected_most(2000);
        let shared: Vec<Span> = (0..3).map(|at| net.bytes(at, &[at as u8; 3000])).collect();
        shared.iter().enumerate().for_each(|(at, span)| _ = net[at].share(*span, 1));
        let secret = net.bytes(0, &[0x5a; 100]);
        let room = net.memory(0, 3000);
        // To an honest peer, which wants it only in the end.
        let (offered, wanted) = (net.bytes(0, &pattern(3000, 9)), net.memory(2, 3000));
        if how & 16 != 0 {
            net[0].send(&tagged(2, &[offered], 9, 200)).unwrap();
        }
        let mut started = [0, 0];
        for _ in 0..200 {
            if draw.0.is_empty() {
                break;
            }
            match draw.below(8) {
                0..=2 => {
                    let frame = frame(draw, shared[0]);
                    net.inject(1, 0, frame);
                }
                3 | 4 => deed(&mut net, draw, 1, room, &mut started),
                5 => {
                    let (at, byte) = (draw.byte(), draw.byte());
                    net.tamper(1, 0, |frame| {
                        let at = usize::from(at) % frame.len().max(1);
                        frame.iter_mut().skip(at).take(1).for_each(|b| *b = byte);
                    });
                }
                6 => (0..3).for_each(|at| _ = net[at].progress()),
                _ => _ = net[1].progress(),
            }
        }
        // An honest peer is served, whatever has come.
        let (hello, heard) = (net.bytes(2, b"hello"), net.memory(0, 5));
        net.settle();
        net[0].rx();
        net[0].recv(&from(2, &[heard], 100)).unwrap();
        net[2].send(&msg(0, &[hello], 101)).unwrap();
        net.settle();
        assert_eq!(net[0].look(heard, 5), b"hello");
        if how & 16 != 0 {
            net[2]
                .recv(&Recv {
                    pattern: Pattern { src: ADDR_UNSPEC, tag: Some((9, 0)) },
                    ..from_any(&[wanted], 201)
                })
                .unwrap();
            net.settle();
            assert!(net[2].look(wanted, 3000) == pattern(3000, 9));
            let of_it = net[0].tx().into_iter().filter(|c| c.ctx == Ctx(200)).collect::<Vec<_>>();
            assert!(of_it.len() == 1 && of_it[0].err.is_none(), "{of_it:?}");
        }
        assert_eq!(net[0].look(secret, 100), [0x5a; 100]);
        // Whatever was begun with the other ends, at the latest with it.
        net.kill(1);
        net.settle();
        net[0].tx();
        net[0].rx();
        let ep = net[0].ep;
        assert_eq!(net[0].ep_under_way(ep), 0, "{started:?} started");
    });
}

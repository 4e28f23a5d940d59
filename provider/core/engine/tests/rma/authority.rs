//! A frame names memory by the means of the link that it came by, and by no other.

use hmem::Span;
use testkit::*;
use wire::{Flags, Handle, Head, Offer, Op, Pieces, RmaSeg, Seg, put};

/// A frame, and the means that it takes.
struct Named {
    what: &'static str,
    frame: Vec<u8>,
    takes: Means,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Means {
    /// CMA, and the counters of cooperative copies.
    Cpu,
    Handles,
}

fn allows(direct: Direct, means: Means) -> bool {
    match (direct, means) {
        (Direct::Frames, _) => false,
        (Direct::Never | Direct::InCall, _) => true,
        // Handles of host memory, of device memory, or both.
        (Direct::Later | Direct::AnyOrder | Direct::Gets, means) => means == Means::Handles,
    }
}

const LEN: u64 = 3000;

/// Every sort of frame that names memory of its sender, as one that knows an address there would say it.
fn frames(secret: Span) -> Vec<Named> {
    let seg = Seg { addr: secret.addr().into(), len: LEN.into() };
    let there = RmaSeg { addr: 0.into(), len: LEN.into(), key: 1.into() };
    let request = 1u64 << 32 | 9;
    let pieces = Pieces { len: LEN.into(), piece: 1000.into(), slot: 0.into(), generation: 1.into() };
    let frame = |op, flags, aux: u16, tag: u64, data: u64| {
        let mut bytes = Vec::new();
        put(&mut bytes, &Head::new(op, flags, aux, tag, data));
        bytes
    };
    let mut all = Vec::new();
    for (flag, takes) in [(Flags::DIRECT, Means::Cpu), (Flags::HANDLES, Means::Handles)] {
        let mut rts = frame(Op::Rts, flag, 1, 1, 0);
        put(&mut rts, &Offer { req: request.into(), len: LEN.into() });
        put(&mut rts, &seg);
        all.push(Named { what: "Rts", frame: rts, takes });
        for op in [Op::WriteRts, Op::Read] {
            let mut rma = frame(op, flag, 0x11, request, 0);
            put(&mut rma, &there);
            put(&mut rma, &seg);
            all.push(Named { what: "access to a region", frame: rma, takes });
        }
        let mut cts = frame(Op::Cts, flag, 1, request, request);
        cts.extend(LEN.to_le_bytes());
        put(&mut cts, &seg);
        all.push(Named { what: "Cts", frame: cts, takes });
    }
    let mut write = frame(Op::CoopRma, Flags::empty(), 1, request, 1);
    put(&mut write, &pieces);
    put(&mut write, &there);
    put(&mut write, &seg);
    all.push(Named { what: "CoopRma", frame: write, takes: Means::Cpu });
    let mut fetch = frame(Op::CoopFetch, Flags::empty(), 1, request, request);
    put(&mut fetch, &pieces);
    put(&mut fetch, &seg);
    all.push(Named { what: "CoopFetch", frame: fetch, takes: Means::Cpu });
    for op in [Op::Handle, Op::Bounce, Op::Invite, Op::ReadRts] {
        let mut handle = frame(op, Flags::empty(), 1, request, request);
        handle.resize(handle.len() + size_of::<Handle>() + 64, 0);
        all.push(Named { what: "by handle", frame: handle, takes: Means::Handles });
    }
    all
}

#[test]
fn a_frame_that_names_memory_by_means_its_link_lacks_has_no_effect() {
    for direct in Direct::ALL {
        let mut net = Net::with(3, Setup { direct, ..Setup::default() });
        let (shared, secret) = (net.memory(0, LEN as usize), net.memory(2, LEN as usize));
        net[0].share(shared, 1);
        hmem::write(&[secret], 0, &[7; LEN as usize]);
        for Named { what, frame, takes } in frames(secret) {
            if allows(direct, takes) {
                continue;
            }
            let target = net.memory(0, LEN as usize);
            net[0].recv(&from(1, &[target], 5)).unwrap();
            net.inject(1, 0, frame);
            net[0].progress();
            assert_eq!(net.in_flight(0, 1), 0, "{direct:?}, {what}, {takes:?}: it is answered");
            assert_eq!((net.direct_accesses(), net.operations_in_flight()), (0, 0), "{direct:?}, {what}");
            // The receive is there for an honest message.
            let small = net.bytes(1, &[3; 10]);
            net[1].send(&msg(0, &[small], 6)).unwrap();
            net.settle();
            let (cq, sent) = (net[0].rx_cq, net[1].tx());
            let got = net[0].next(cq).expect("the message");
            assert_eq!((got.len, got.err, sent.len()), (10, None, 1), "{direct:?}, {what}");
        }
        assert_eq!(text(shared), vec![0; LEN as usize], "{direct:?}: something was written");
        assert_eq!(text(secret), vec![7; LEN as usize], "{direct:?}: something was written");
    }
}

fn text(span: Span) -> Vec<u8> {
    let mut bytes = vec![0; span.len()];
    hmem::read(&[span], 0, &mut bytes);
    bytes
}

//! A peer that sends whatever it likes.

use engine::{Access, Atomic, Config, Ctx, OpFlags, Pattern, Recv, Reg, Send, What};
use hmem::{AtomicOp, Datatype, Span};
use proptest::prelude::*;
use testkit::*;
use wire::Op;

/// What the evil node 1 does next.
#[derive(Clone, Debug)]
enum Evil {
    /// Bytes of no meaning.
    Noise(Vec<u8>),
    /// A head that looks right, and numbers behind it that may.
    Frame { op: u8, flags: u8, aux: u16, words: Vec<Word>, payload: usize },
    /// Changes a byte of what honest code is about to send.
    Mutate { at: prop::sample::Index, byte: u8, cut: bool },
    /// All nodes make progress once.
    Work,
    /// The victim looks at what came.
    Take,
}

/// A number a frame may hold.
#[derive(Clone, Copy, Debug)]
enum Word {
    /// A small one: tag, key, length, offset.
    Small(u64),
    /// What could be a request of the victim's.
    Request(u64, u64),
    /// An address in memory that node 1 shares.
    Address(u64),
    /// Any.
    Any(u64),
}

fn word() -> impl Strategy<Value = Word> {
    prop_oneof![
        4 => prop_oneof![0..4u64, Just(8), Just(100), Just(3000), 0..4000u64].prop_map(Word::Small),
        3 => (1..3u64, 0..16u64).prop_map(|(generation, slot)| Word::Request(generation, slot)),
        2 => (0..3000u64).prop_map(Word::Address),
        1 => prop_oneof![Just(u64::MAX), Just(u64::MAX - 1), Just(1 << 63), any::<u64>()].prop_map(Word::Any),
    ]
}

fn evil() -> impl Strategy<Value = Evil> {
    let aux = prop_oneof![3 => 0..4u16, 3 => Just(0x11), 1 => Just(0x21), 2 => Just(7 << 10 | 2 << 4 | 1), 2 => any::<u16>()];
    let flags = prop_oneof![3 => 0..64u8, 1 => any::<u8>()];
    prop_oneof![
        1 => prop::collection::vec(any::<u8>(), 0..512).prop_map(Evil::Noise),
        12 => (0..24u8, flags, aux, prop::collection::vec(word(), 2..12), 0..300usize)
            .prop_map(|(op, flags, aux, words, payload)| Evil::Frame { op, flags, aux, words, payload }),
        4 => (any::<prop::sample::Index>(), any::<u8>(), any::<bool>()).prop_map(|(at, byte, cut)| Evil::Mutate { at, byte, cut }),
        6 => Just(Evil::Work),
        1 => Just(Evil::Take),
    ]
}

fn number(w: Word, shared: Span) -> u64 {
    match w {
        Word::Small(v) | Word::Any(v) => v,
        Word::Request(generation, slot) => generation << 32 | slot,
        Word::Address(off) => shared.addr() + off,
    }
}

/// Operations of node 0 to a peer, contexts `base` and up; returns how many, of sends and receives.
fn involve(net: &mut Net, to: usize, base: usize, memory: Span) -> (usize, usize) {
    let peer = to as u64;
    let part = |off, len| [memory.part(off, len).unwrap()];
    let (key, flags) = ([there(0, 3000, 1)], OpFlags::COMPLETION | OpFlags::DELIVERY);
    let small = [there(0, 8, 1)];
    let mut started = 0;
    let mut took = |r: Result<(), engine::Error>| started += usize::from(r.is_ok());
    took(net[0].send(&Send { flags, ..msg(peer, &part(0, 100), base) }));
    took(net[0].send(&tagged(peer, &part(0, 3000), 1, base + 1)));
    took(net[0].rma(&write(peer, &part(0, 3000), &key, base + 2)));
    took(net[0].rma(&write(peer, &part(0, 8), &small, base + 3)));
    took(net[0].rma(&read(peer, &part(3000, 3000), &key, base + 4)));
    took(net[0].rma(&read(peer, &part(6000, 8), &small, base + 5)));
    let (operand, result) = (part(0, 8), part(6008, 8));
    took(net[0].atomic(&Atomic {
        to: peer,
        op: AtomicOp::Sum,
        datatype: Datatype::Uint64,
        operand: &operand,
        compare: &[],
        result: &result,
        remote: &small,
        data: None,
        ctx: Ctx(base + 6),
        flags,
    }));
    let tagged = Pattern { src: peer, tag: Some((2, 0)) };
    net[0].recv(&from(peer, &part(6016, 2000), base + 7)).unwrap();
    net[0].recv(&Recv { pattern: tagged, ..from_any(&part(8016, 100), base + 8) }).unwrap();
    (started, 2)
}

/// What the evil node does next, or what it has others do.
fn do_evil(net: &mut Net, deed: &Evil, shared: Span, theirs: Span) {
    match deed {
        Evil::Noise(bytes) => net.inject(1, 0, bytes.clone()),
        Evil::Frame { op, flags, aux, words, payload } => {
            let mut frame = vec![*op, *flags];
            frame.extend(aux.to_le_bytes());
            frame.extend(words.iter().flat_map(|w| number(*w, shared).to_le_bytes()));
            frame.resize((frame.len() + payload).min(512), *op);
            net.inject(1, 0, frame);
        }
        Evil::Mutate { at, byte, cut } => {
            net[1].progress();
            net.tamper(1, 0, |frame| {
                if let Some(b) = (!frame.is_empty()).then(|| at.index(frame.len())) {
                    frame[b] = *byte;
                    frame.truncate(if *cut { b } else { frame.len() });
                }
            });
        }
        Evil::Work => {
            for at in 0..3 {
                net[at].progress();
            }
        }
        Evil::Take => {
            let rx = net[0].rx;
            let room = [theirs.part(8200, 400).unwrap()];
            net[0].recv(&from_any(&room, 1)).unwrap();
            let untagged = from_any(&room, 1);
            let pattern = Pattern { tag: Some((0, u64::MAX)), ..untagged.pattern };
            net[0].recv(&Recv { pattern, ..untagged }).unwrap();
            // Whether or not they took something, they are not in the way of others.
            while net[0].cancel(rx, Ctx(1)).is_ok() {}
        }
    }
}

fn attack(direct: Direct, rma_order: bool, deeds: &[Evil]) {
    let config = Config { virt_addr: false, rma_order };
    let mut net = Net::with(3, Setup { config, direct, capacity: 16, cq_size: 1000, ..Setup::default() });
    let shared: Vec<Span> = (0..3).map(|at| net.bytes(at, &[at as u8; 3000])).collect();
    for (at, span) in shared.iter().enumerate() {
        net[at].share(*span, 1);
    }
    let read_only = net.bytes(0, &[7; 4000]);
    let iov = [read_only];
    net[0].mr_reg(&Reg { iov: &iov, access: Access::REMOTE_READ, key: Some(2) }).unwrap();
    let [mine, theirs] = [net.memory(0, 9000), net.memory(0, 9000)];
    hmem::write(&[mine], 0, &pattern(3000, 1));
    let (tx1, rx1) = involve(&mut net, 1, 100, theirs);
    let (tx2, rx2) = involve(&mut net, 2, 200, mine);
    let (mut tx, mut rx) = (Vec::new(), Vec::new());
    for deed in deeds {
        do_evil(&mut net, deed, shared[1], theirs);
        tx.extend(net[0].tx());
        rx.extend(net[0].rx());
    }
    // Honest messages to the honest peer's receives, once the air is clear.
    net.kill(1);
    net.settle();
    let (room, twos) = (net.memory(2, 3000), net.bytes(2, &[2; 2000]));
    net[2].recv(&from_any(&[room], 0)).unwrap();
    net[2].recv(&with_tag(&[room], 1, 0)).unwrap();
    net[2].send(&msg(0, &[twos], 0)).unwrap();
    net[2].send(&tagged(0, &[twos.part(0, 100).unwrap()], 2, 0)).unwrap();
    net.settle();
    tx.extend(net[0].tx());
    rx.extend(net[0].rx());

    // Whatever it did: everything completes once, under a context that was posted.
    for (ops, base, n) in [(&tx, 100, tx1), (&tx, 200, tx2)] {
        let mut all: Vec<_> =
            ops.iter().map(|c| c.ctx.0).filter(|c| (base..base + 100).contains(c)).collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n, "{ops:?}");
    }
    assert_eq!(tx.len(), tx1 + tx2, "{tx:?}");
    let directed = |base| rx.iter().filter(move |c| (base..base + 100).contains(&c.ctx.0));
    assert_eq!((directed(100).count(), directed(200).count()), (rx1, rx2), "{rx:?}");
    assert!(
        rx.iter().all(|c| c.ctx.0 >= 100 || c.ctx.0 == 1 || c.what.contains(What::REMOTE_WRITE)),
        "{rx:?}"
    );
    // What others had going with us is as if it had never been.
    assert!(tx.iter().chain(&rx).filter(|c| c.ctx.0 >= 200).all(|c| c.err.is_none()), "{tx:?} {rx:?}");
    assert!(net[0].look(mine.part(6016, 2000).unwrap(), 2000) == [2; 2000], "what it sent");
    assert!(net[0].look(mine, 3000) == pattern(3000, 1), "what it was sent");
    assert!(net[2].look(room, 3000) == pattern(3000, 1), "what it got");
    assert!(net[0].look(read_only, 4000) == [7; 4000], "what no peer may write");
    for at in [0, 2] {
        let ep = net[at].ep;
        assert_eq!(net[at].ep_under_way(ep), 0, "node {at}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_hostile_peer_harms_only_itself(
        direct in prop::sample::select(&Direct::ALL[..]),
        rma_order in any::<bool>(),
        deeds in prop::collection::vec(evil(), 0..80),
    ) {
        attack(direct, rma_order, &deeds);
    }
}

fn head(op: Op, flags: u8, aux: u16, tag: u64, data: u64) -> Vec<u8> {
    let mut frame = vec![op as u8, flags];
    frame.extend(aux.to_le_bytes());
    frame.extend(tag.to_le_bytes());
    frame.extend(data.to_le_bytes());
    frame
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

/// A request for more bytes than an eager message keeps, or than there are.
#[test]
fn a_cts_for_more_than_a_request_has_is_dropped() {
    let mut net = Net::with(2, Setup { direct: Direct::Never, ..Setup::default() });
    let src = net.memory(0, 100);
    let flags = OpFlags::COMPLETION | OpFlags::DELIVERY;
    net[0].send(&Send { flags, ..msg(1, &[src], 1) }).unwrap();
    let mut ask = head(Op::Cts, 0, 0, 1 << 32, 9);
    ask.extend(words(&[100]));
    net.inject(1, 0, ask);
    net[0].progress();
    assert_eq!(net.in_flight(0, 1), 1);
}

/// All memory registered, and lengths that add up to more than there can be.
#[test]
fn lengths_that_overflow_are_out_of_range() {
    let mut net = Net::new(2);
    // SAFETY: nothing is reached through it.
    let everything = unsafe { Span::new(0, usize::MAX, hmem::Kind::System) };
    net[0].share(everything, 0);
    let ranges = words(&[0, u64::MAX - 1, 0, 0, u64::MAX - 1, 0]);
    let sum = 2 << 4 | 7 << 10 | 2;
    let read = 10 << 4 | 7 << 10 | 2;
    for (op, flags, aux) in [
        (Op::Write, 4, 2),
        (Op::WriteRts, 0, 2),
        (Op::Read, 0, 2),
        (Op::Atomic, 20, sum),
        (Op::Atomic, 20, read),
    ] {
        let mut frame = head(op, flags, aux, 5, 0);
        frame.extend(&ranges);
        net.inject(1, 0, frame);
    }
    // One range is enough to ask for more than any answer holds.
    let mut frame = head(Op::Atomic, 20, 10 << 4 | 7 << 10 | 1, 5, 0);
    frame.extend(words(&[0, u64::MAX - 7, 0]));
    net.inject(1, 0, frame);
    net[0].progress();
    let mut answers = Vec::new();
    net.tamper(0, 1, |f| answers.push((f[0], f[2])));
    let fin = Op::Fin as u8;
    assert_eq!(answers, [(fin, 3), (fin, 3), (fin, 3), (fin, 3), (fin, 3), (fin, 4)]);
}

/// Node 0 reads from node 1 in frames; what else comes for that request changes nothing.
#[test]
fn an_answer_counts_only_from_the_target_in_order_and_whole() {
    let mut net = Net::with(3, Setup { direct: Direct::Never, ..Setup::default() });
    let (src, dst) = (net.bytes(1, &pattern(600, 1)), net.memory(0, 600));
    net[1].share(src, 1);
    net[0].rma(&read(1, &[dst], &[there(0, 600, 1)], 7)).unwrap();
    let request = 1 << 32;
    let data = |off, len| [head(Op::Data, 0, 0, request, off), vec![9; len]].concat();
    net.inject(2, 0, data(0, 100));
    net.inject(2, 0, head(Op::Fin, 0, 0, request, 600));
    net.inject(2, 0, head(Op::Result, 0, 0, request, 0));
    net.inject(1, 0, data(100, 100));
    net.inject(1, 0, data(0, 0));
    net.inject(1, 0, head(Op::Result, 0, 0, request, 0)[..19].to_vec());
    net[0].progress();
    assert_eq!((net[0].tx(), net[0].look(dst, 600)), (vec![], vec![0; 600]));
    net.settle();
    assert_eq!(net[0].sent().err, None);
    assert!(net[0].look(dst, 600) == pattern(600, 1));
    // A peer that claims to be done and is not is not believed.
    net[0].rma(&read(1, &[dst], &[there(0, 600, 1)], 8)).unwrap();
    net.inject(1, 0, head(Op::Fin, 0, 0, 2 << 32, 599));
    net[0].progress();
    assert_eq!(net[0].sent().err, Some(engine::Error::Io));
    net.settle();
    net.assert_idle();
}

/// The same for a message: its bytes come from its sender, which sends them once however often asked.
#[test]
fn a_payload_is_sent_once_and_taken_from_its_sender() {
    let mut net = Net::with(3, Setup { direct: Direct::Never, ..Setup::default() });
    let (src, dst) = (net.bytes(0, &pattern(600, 1)), net.memory(1, 600));
    net[1].recv(&from_any(&[dst], 1)).unwrap();
    net[0].send(&msg(1, &[src], 2)).unwrap();
    net[1].progress();
    net.inject(2, 1, [head(Op::Data, 0, 0, 1 << 32, 0), vec![9; 600]].concat());
    let mut ask = Vec::new();
    net.tamper(1, 0, |f| ask = f.clone());
    net.inject(1, 0, ask);
    net[0].progress();
    assert_eq!(net.in_flight(0, 1), 2);
    net.settle();
    assert!(net[1].look(dst, 600) == pattern(600, 1));
    assert_eq!((net[0].sent().err, net[1].received().err), (None, None));
    net.assert_idle();
}

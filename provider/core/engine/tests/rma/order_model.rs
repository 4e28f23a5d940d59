//! Random accesses to one memory, in order: as if each had been made when it was posted, up to the end of
//! their initiator.

use engine::{Atomic, Config, Ctx, Error, OpFlags, Rma};
use hmem::{AtomicOp, Datatype, Span};
use proptest::prelude::*;
use testkit::*;

/// Bytes of the memory.
const SIZE: usize = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Write,
    Read,
    Add,
    FetchAdd,
}

#[derive(Clone, Debug)]
enum Step {
    Post { kind: Kind, off: usize, len: usize, quiet: bool, device: bool },
    Deliver { forth: bool, items: usize },
    Progress { at: usize },
    Direct(bool),
    Capacity(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// All is waited for.
    Done,
    /// The initiator's process ends.
    Killed,
    /// It closes its endpoint, and ends when all that it sent has been taken in.
    Closed,
}

#[derive(Clone, Debug)]
struct Program {
    setup: Setup,
    device: bool,
    steps: Vec<Step>,
    end: End,
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![6 => Just(Kind::Write), 3 => Just(Kind::Read), 1 => Just(Kind::Add), 1 => Just(Kind::FetchAdd)];
    let len = prop_oneof![3 => 1..60usize, 2 => 250..262usize, 4 => 262..1500usize];
    prop_oneof![
        12 => (kind, 0..SIZE, len, any::<bool>(), prop::bool::weighted(0.15)).prop_map(
            |(kind, off, len, quiet, device)| Step::Post { kind, off, len, quiet, device }
        ),
        12 => (any::<bool>(), 1..4usize).prop_map(|(forth, items)| Step::Deliver { forth, items }),
        4 => (0..2usize).prop_map(|at| Step::Progress { at }),
        1 => any::<bool>().prop_map(Step::Direct),
        1 => (1..8usize).prop_map(Step::Capacity),
    ]
}

fn program() -> impl Strategy<Value = Program> {
    let setup = (
        prop_oneof![1..6usize, Just(64)],
        prop_oneof![3 => Just(Direct::InCall), 1 => prop::sample::select(&Direct::ALL[..])],
        any::<bool>(),
        any::<bool>(),
        prop_oneof![Just(0), Just(40), Just(256)],
    )
        .prop_map(|(capacity, direct, looks, peer_access, eager)| Setup {
            config: Config { virt_addr: false, rma_order: true },
            eager,
            eager_in_a_row: 3 * eager,
            capacity: capacity.max(direct.least_capacity()),
            direct,
            peer_access,
            looks,
            cq_size: 1 << 20,
            ..Setup::default()
        });
    let end = prop::sample::select(&[End::Done, End::Killed, End::Closed][..]);
    let steps = prop::collection::vec(step(), 0..60);
    (setup, prop::bool::weighted(0.2), steps, end).prop_map(|(setup, device, steps, end)| Program {
        setup,
        device,
        steps,
        end,
    })
}

struct Run {
    net: Net,
    target: Span,
    /// What is there after each of the accesses posted, and before the first.
    states: Vec<Vec<u8>>,
    reads: Vec<(Span, Vec<u8>)>,
    completions: usize,
    device: bool,
    least: usize,
}

impl Run {
    fn new(p: &Program) -> Run {
        let mut net = Net::with(2, p.setup);
        let target = if p.device { net.device(SIZE) } else { net.memory(1, SIZE) };
        net[1].share(target, 1);
        // The way is known, where it is a direct one.
        let warm = net.memory(0, SIZE);
        net[0].rma(&write(1, &[warm], &[there(0, SIZE, 1)], 0)).unwrap();
        net.settle();
        net[0].sent();
        net.hold(0, 1);
        net.hold(1, 0);
        let (states, least) = (vec![vec![0; SIZE]], p.setup.direct.least_capacity());
        Run { net, target, states, reads: Vec::new(), completions: 0, device: p.device, least }
    }

    fn post(&mut self, kind: Kind, off: usize, len: usize, quiet: bool, device: bool) {
        let id = self.states.len();
        let mut state = self.states[id - 1].clone();
        let is_atomic = matches!(kind, Kind::Add | Kind::FetchAdd);
        if is_atomic && self.device {
            return;
        }
        let (off, len) = if is_atomic { (off / 8 * 8, 8) } else { (off, len.min(SIZE - off)) };
        let local = if device { self.net.device(len) } else { self.net.memory(0, len) };
        let (bytes, remote) = (pattern(len, id), [there(off as u64, len, 1)]);
        let flags = if quiet { OpFlags::empty() } else { OpFlags::COMPLETION };
        let there = state[off..off + len].to_vec();
        let posted = if is_atomic {
            let operand = [self.net.bytes(0, &bytes)];
            let result = [local];
            let sum = u64::from_ne_bytes(there[..].try_into().unwrap())
                .wrapping_add(u64::from_ne_bytes(bytes[..].try_into().unwrap()));
            state[off..off + 8].copy_from_slice(&sum.to_ne_bytes());
            let atomic = Atomic {
                to: 1,
                op: AtomicOp::Sum,
                datatype: Datatype::Uint64,
                operand: &operand,
                compare: &[],
                result: if kind == Kind::FetchAdd { &result } else { &[] },
                remote: &remote,
                data: None,
                ctx: Ctx(id),
                flags,
            };
            self.net[0].atomic(&atomic)
        } else if kind == Kind::Write {
            hmem::write(&[local], 0, &bytes);
            state[off..off + len].copy_from_slice(&bytes);
            self.net[0].rma(&Rma { flags, ..write(1, &[local], &remote, id) })
        } else {
            self.net[0].rma(&Rma { flags, ..read(1, &[local], &remote, id) })
        };
        if posted == Err(Error::Again) {
            return;
        }
        posted.unwrap();
        if matches!(kind, Kind::Read | Kind::FetchAdd) {
            self.reads.push((local, there));
        }
        self.completions += usize::from(!quiet);
        self.states.push(state);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Post { kind, off, len, quiet, device } => self.post(kind, off, len, quiet, device),
            Step::Deliver { forth, items } => {
                let (from, to) = if forth { (0, 1) } else { (1, 0) };
                self.net.let_pass(from, to, items.min(self.net.in_flight(from, to)));
                self.net[to].progress();
            }
            Step::Progress { at } => drop(self.net[at].progress()),
            Step::Direct(on) => self.net.set_direct(on),
            Step::Capacity(frames) => self.net.set_capacity(frames.max(self.least)),
        }
    }

    fn finish(mut self, end: End) {
        let ep = self.net[0].ep;
        match end {
            End::Done => {}
            End::Killed => self.net.kill(0),
            End::Closed => self.net[0].ep_close(ep).unwrap(),
        }
        self.net.let_pass(0, 1, usize::MAX);
        self.net.let_pass(1, 0, usize::MAX);
        if end == End::Closed {
            for _ in 0..200 {
                self.net[1].progress();
            }
            self.net.kill(0);
        }
        self.net.settle();
        let now = self.net[1].look(self.target, SIZE);
        if end == End::Done {
            assert!(now == *self.states.last().unwrap());
            for (at, (span, want)) in self.reads.iter().enumerate() {
                assert!(self.net[0].look(*span, want.len()) == *want, "read {at}");
            }
            let done = self.net[0].tx();
            assert!(done.iter().all(|c| c.err.is_none()), "{done:?}");
            assert_eq!(done.len(), self.completions);
        } else {
            // Of one of them there may be a part.
            let torn = |w: &[Vec<u8>]| now.iter().zip(&w[0]).zip(&w[1]).all(|((n, a), b)| n == a || n == b);
            let last = self.states.last().unwrap().clone();
            self.states.push(last);
            assert!(self.states.windows(2).any(torn), "not as after any of them");
        }
        let ep = self.net[1].ep;
        assert_eq!(self.net[1].ep_under_way(ep), 0);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    #[cfg_attr(miri, ignore = "too long")]
    fn as_if_each_access_was_made_when_it_was_posted(program in program()) {
        let mut run = Run::new(&program);
        for step in &program.steps {
            run.step(step);
        }
        run.finish(program.end);
    }
}

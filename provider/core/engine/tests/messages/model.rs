//! Random programs against MPI's rule spelled out with two lists.

use std::collections::{HashMap, VecDeque};

use engine::{ADDR_UNSPEC, Completion, Ctx, Error, OpFlags, Pattern, Recv, Send, What};
use hmem::Span;
use proptest::prelude::*;
use testkit::*;

#[derive(Clone, Debug)]
enum Step {
    Send { from: usize, to: usize, tag: Option<u64>, len: usize, delivery: bool },
    Recv { at: usize, src: Option<usize>, tag: Option<(u64, u64)>, len: usize, multi: bool },
    Deliver { from: usize, to: usize },
    Progress { at: usize },
    Cancel { at: usize, which: usize },
}

#[derive(Clone, Debug)]
struct Program {
    nodes: usize,
    setup: Setup,
    /// What may wait before senders pause.
    waits: usize,
    steps: Vec<Step>,
}

fn step(nodes: usize) -> impl Strategy<Value = Step> {
    let node = move || 0..nodes;
    let len = || prop_oneof![4 => 0..60usize, 2 => 250..262usize, 3 => 262..1500usize];
    let tag = || prop_oneof![2 => Just(None), 5 => (0..3u64).prop_map(Some)];
    let ignore = prop_oneof![3 => Just(0), 1 => Just(1), 1 => Just(u64::MAX)];
    let from = prop_oneof![1 => Just(None), 1 => node().prop_map(Some)];
    prop_oneof![
        5 => (node(), node(), tag(), len(), prop::bool::weighted(0.3))
            .prop_map(|(from, to, tag, len, delivery)| Step::Send { from, to, tag, len, delivery }),
        5 => (node(), from, tag(), ignore, len(), prop::bool::weighted(0.15)).prop_map(
            |(at, src, tag, ignore, len, multi)| {
                Step::Recv { at, src, tag: tag.map(|t| (t, ignore)), len, multi }
            }
        ),
        10 => (node(), node()).prop_map(|(from, to)| Step::Deliver { from, to }),
        3 => node().prop_map(|at| Step::Progress { at }),
        1 => (node(), any::<prop::sample::Index>()).prop_map(|(at, i)| Step::Cancel { at, which: i.index(64) }),
    ]
}

fn program() -> impl Strategy<Value = Program> {
    let setup = (
        1..6usize,
        prop::sample::select(&Direct::ALL[..]),
        any::<bool>(),
        prop_oneof![Just(0), Just(40), Just(256)],
    )
        .prop_map(|(capacity, direct, looks, eager)| Setup {
            eager,
            eager_in_a_row: 3 * eager,
            capacity,
            direct,
            looks,
            cq_size: 1 << 20,
            ..Setup::default()
        });
    let waits = prop_oneof![Just(0), Just(700), Just(usize::MAX)];
    (2..4usize, setup, waits).prop_flat_map(|(nodes, setup, waits)| {
        let steps = prop::collection::vec(step(nodes), 0..150);
        steps.prop_map(move |steps| Program { nodes, setup, waits, steps })
    })
}

/// A message, as the model has it.
#[derive(Clone, Copy, Debug)]
struct Msg {
    id: usize,
    from: usize,
    tag: Option<u64>,
    len: usize,
}

/// A receive, as the model has it.
#[derive(Clone, Copy, Debug)]
struct Want {
    id: usize,
    src: Option<usize>,
    tag: Option<(u64, u64)>,
    room: Span,
    multi: bool,
    used: usize,
}

impl Want {
    fn fits(&self, m: &Msg) -> bool {
        let tags = match (self.tag, m.tag) {
            (None, None) => true,
            (Some((want, ignore)), Some(tag)) => want & !ignore == tag & !ignore,
            _ => false,
        };
        tags && self.src.is_none_or(|s| s == m.from)
    }
}

/// What a node must report of one message.
#[derive(Clone, Copy, Debug)]
struct Due {
    msg: Msg,
    into: Span,
}

/// What least room keeps a multi-receive buffer posted.
const LEAST: usize = 64;

#[derive(Default)]
struct Model {
    sent: HashMap<(usize, usize), VecDeque<Msg>>,
    posted: HashMap<usize, Vec<Want>>,
    waiting: HashMap<usize, Vec<Msg>>,
    /// Per node, receive and address: what must complete.
    due: HashMap<(usize, usize, u64), VecDeque<Due>>,
    /// Multi-receive buffers to be given back: with the last of so many messages.
    multi: HashMap<usize, (usize, bool)>,
    /// Sends to complete, and those that only may once they are matched.
    sending: HashMap<usize, bool>,
    matched: Vec<usize>,
    cancelled: Vec<usize>,
}

impl Model {
    fn matches(&mut self, at: usize, want: &mut Want, msg: Msg) -> bool {
        let left = want.room.len() - want.used;
        let into = want.room.part(want.used, if want.multi { msg.len.min(left) } else { left }).unwrap();
        self.due.entry((at, want.id, into.addr())).or_default().push_back(Due { msg, into });
        self.matched.push(msg.id);
        if !want.multi {
            return true;
        }
        want.used += into.len();
        let state = self.multi.entry(want.id).or_default();
        state.0 += 1;
        state.1 = want.room.len() - want.used < LEAST;
        state.1
    }

    fn arrive(&mut self, from: usize, to: usize) {
        let msg =
            self.sent.get_mut(&(from, to)).and_then(VecDeque::pop_front).expect("a message that was sent");
        let mut posted = self.posted.remove(&to).unwrap_or_default();
        match posted.iter().position(|w| w.fits(&msg)) {
            Some(i) => {
                if self.matches(to, &mut posted[i], msg) {
                    posted.remove(i);
                }
            }
            None => self.waiting.entry(to).or_default().push(msg),
        }
        self.posted.insert(to, posted);
    }

    fn post(&mut self, at: usize, mut want: Want) {
        let mut waiting = self.waiting.remove(&at).unwrap_or_default();
        let mut full = false;
        while let Some(i) = (!full).then(|| waiting.iter().position(|m| want.fits(m))).flatten() {
            let msg = waiting.remove(i);
            full = self.matches(at, &mut want, msg);
        }
        self.waiting.insert(at, waiting);
        if !full {
            self.posted.entry(at).or_default().push(want);
        }
    }

    fn completed(&mut self, at: usize, c: &Completion, bytes: impl Fn(Span, usize) -> Vec<u8>) {
        let id = c.ctx.0;
        if c.err == Some(Error::Cancelled) {
            let i = self.cancelled.iter().position(|x| *x == id).expect("a receive that was cancelled");
            self.cancelled.remove(i);
            return;
        }
        let due = self.due.get_mut(&(at, id, c.buf)).expect("a receive that is due, at its address");
        // Empty messages share an address, and so may complete in any order.
        let same = |d: &Due| {
            d.msg.tag.unwrap_or(0) == c.tag && d.msg.from as u64 == c.src && d.msg.len == c.len + c.olen
        };
        let i = due.iter().position(same).unwrap_or_else(|| panic!("{c:?} but {due:?}"));
        let Due { msg, into } = due.remove(i).unwrap();
        if due.is_empty() {
            self.due.remove(&(at, id, c.buf));
        }
        let len = msg.len.min(into.len());
        let err = (msg.len > len).then_some(Error::Truncated);
        assert_eq!((c.len, c.olen, c.err), (len, msg.len - len, err), "{c:?} {msg:?}");
        assert_eq!(bytes(into, len), pattern(msg.len, msg.id)[..len], "{c:?} {msg:?}");
        if let Some((coming, spent)) = self.multi.get_mut(&id) {
            *coming -= 1;
            let last = *spent && *coming == 0;
            assert_eq!(c.what.contains(What::MULTI_RECV), last, "{c:?}");
            if last {
                self.multi.remove(&id);
            }
        }
    }
}

struct Run {
    net: Net,
    model: Model,
    nodes: usize,
    next: usize,
}

impl Run {
    fn new(p: &Program) -> Run {
        let mut net = Net::with(p.nodes, p.setup);
        for from in 0..p.nodes {
            net[from].set_unexpected_most(p.waits);
            let rx = net[from].rx;
            net[from].rx_set_min_multi_recv(rx, LEAST);
            for to in 0..p.nodes {
                net.hold(from, to);
            }
        }
        Run { net, model: Model::default(), nodes: p.nodes, next: 0 }
    }

    fn step(&mut self, step: &Step) {
        self.next += 1;
        let id = self.next;
        match *step {
            Step::Send { from, to, tag, len, delivery } => {
                let src = self.net.bytes(from, &pattern(len, id));
                let mut flags = OpFlags::COMPLETION;
                flags.set(OpFlags::DELIVERY, delivery);
                match self.net[from].send(&Send { tag, flags, ..msg(to as u64, &[src], id) }) {
                    Ok(()) => {
                        self.model.sent.entry((from, to)).or_default().push_back(Msg { id, from, tag, len });
                        self.model.sending.insert(id, delivery);
                    }
                    Err(err) => assert_eq!(err, Error::Again),
                }
            }
            Step::Recv { at, src, tag, len, multi } => {
                let room = self.net.memory(at, if multi { 3 * len + 1 } else { len });
                let mut flags = OpFlags::COMPLETION;
                flags.set(OpFlags::MULTI_RECV, multi);
                let pattern = Pattern { src: src.map_or(ADDR_UNSPEC, |s| s as u64), tag };
                self.model.post(at, Want { id, src, tag, room, multi, used: 0 });
                self.net[at].recv(&Recv { pattern, iov: &[room], ctx: Ctx(id), flags }).unwrap();
            }
            Step::Deliver { from, to } => {
                let mut first = None;
                self.net.tamper(from, to, |frame| first = first.or(Some(frame[0])));
                // Only frames of these two kinds bring a message.
                if matches!(first, Some(1 | 2)) {
                    self.model.arrive(from, to);
                }
                self.net.let_pass(from, to, usize::from(first.is_some()));
                self.net[to].progress();
            }
            Step::Progress { at } => {
                self.net[at].progress();
            }
            Step::Cancel { at, which } => {
                let posted = self.model.posted.entry(at).or_default();
                if posted.is_empty() {
                    return;
                }
                let want = posted.remove(which % posted.len());
                self.model.cancelled.push(want.id);
                if let Some(state) = self.model.multi.get_mut(&want.id) {
                    state.1 = true;
                    if state.0 == 0 {
                        self.model.multi.remove(&want.id);
                    }
                }
                let rx = self.net[at].rx;
                self.net[at].cancel(rx, Ctx(want.id)).unwrap();
            }
        }
        self.look();
    }

    fn look(&mut self) {
        for at in 0..self.nodes {
            for c in self.net[at].tx() {
                assert_eq!(c.err, None);
                let delivery = self.model.sending.remove(&c.ctx.0).expect("a send, for the first time");
                assert!(!delivery || self.model.matched.contains(&c.ctx.0), "{c:?} before it was matched");
            }
            for c in self.net[at].rx() {
                let net = &self.net;
                self.model.completed(at, &c, |span, len| net[at].look(span, len));
            }
        }
    }

    fn drain(&mut self) {
        let nodes = self.nodes;
        for _ in 0..10_000 {
            let ways = || (0..nodes).flat_map(|f| (0..nodes).map(move |t| (f, t)));
            for (from, to) in ways() {
                self.step(&Step::Deliver { from, to });
            }
            let frames = ways().any(|(from, to)| self.net.in_flight(from, to) > 0);
            let busy = frames || self.net.operations_in_flight() > 0;
            if !busy && (0..nodes).all(|at| self.net[at].progress() == 0) {
                return;
            }
        }
        panic!("never comes to rest");
    }

    fn finish(mut self) {
        self.drain();
        for at in 0..self.nodes {
            while self.model.posted.get(&at).is_some_and(|p| !p.is_empty()) {
                self.step(&Step::Cancel { at, which: 0 });
            }
            while let Some(m) = self.model.waiting.get(&at).and_then(|w| w.last()).copied() {
                let tag = m.tag.map(|t| (t, 0));
                self.step(&Step::Recv { at, src: Some(m.from), tag, len: 500, multi: false });
            }
        }
        self.drain();
        let m = &self.model;
        assert!(m.due.is_empty() && m.cancelled.is_empty(), "never completed: {:?} {:?}", m.due, m.cancelled);
        assert!(m.sending.is_empty(), "never completed: {:?}", m.sending);
        self.net.assert_idle();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn as_mpi_would_match(program in program()) {
        let mut run = Run::new(&program);
        for step in &program.steps {
            run.step(step);
        }
        run.finish();
    }
}

//! Random receives, many of them posted after their messages have come to the ring: no message overtakes
//! another of its sender.

use std::collections::HashMap;

use engine::{ADDR_UNSPEC, Completion, Ctx, Error, OpFlags, Pattern, Peek, Recv, Send, What};
use hmem::Span;
use proptest::prelude::*;
use testkit::*;

#[derive(Clone, Debug)]
enum Step {
    Send {
        from: usize,
        tag: Option<u64>,
        len: usize,
        data: bool,
        delivery: bool,
    },
    Recv {
        src: Option<usize>,
        tag: Option<(u64, u64)>,
        room: usize,
    },
    /// A message that waits is set aside, and received then.
    Claim {
        src: Option<usize>,
        tag: Option<(u64, u64)>,
    },
    /// The next receive that is sure to find its message, as often as it takes for receives to be late.
    Stream {
        from: usize,
        count: usize,
    },
    Poll,
    Progress,
}

const NODES: usize = 4;
const LONGEST: usize = 1500;

fn step() -> impl Strategy<Value = Step> {
    let from = || 1..NODES;
    let len = || prop_oneof![5 => 0..60usize, 1 => 250..262usize, 1 => 262..LONGEST];
    let tag = || prop_oneof![1 => Just(None), 6 => (0..3u64).prop_map(Some)];
    let ignore = || prop_oneof![3 => Just(0), 1 => Just(1), 1 => Just(u64::MAX)];
    let src = || prop_oneof![1 => Just(None), 1 => from().prop_map(Some)];
    let want = move || (tag(), ignore()).prop_map(|(tag, ignore)| tag.map(|tag| (tag, ignore)));
    prop_oneof![
        6 => (from(), tag(), len(), any::<bool>(), prop::bool::weighted(0.1))
            .prop_map(|(from, tag, len, data, delivery)| Step::Send { from, tag, len, data, delivery }),
        6 => (src(), want(), prop_oneof![Just(LONGEST), Just(8)])
            .prop_map(|(src, tag, room)| Step::Recv { src, tag, room }),
        1 => (src(), want()).prop_map(|(src, tag)| Step::Claim { src, tag }),
        2 => (from(), 1..12usize).prop_map(|(from, count)| Step::Stream { from, count }),
        4 => Just(Step::Poll),
        1 => Just(Step::Progress),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Msg {
    from: usize,
    tag: Option<u64>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Want {
    src: Option<usize>,
    tag: Option<(u64, u64)>,
    room: Span,
    /// The message that it has received.
    got: Option<usize>,
    /// It was only for a message that waited.
    claims: bool,
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

    fn pattern(&self) -> Pattern {
        Pattern { src: self.src.map_or(ADDR_UNSPEC, |s| s as u64), tag: self.tag }
    }
}

struct Run {
    net: Net,
    sent: Vec<Msg>,
    /// By context.
    wants: Vec<Want>,
    /// The receive of each message.
    taken: HashMap<usize, usize>,
}

impl Run {
    fn new(seed: u64, waits: usize) -> Run {
        let setup = Setup { looks: true, cq_size: 1 << 16, seed, ..Setup::default() };
        let mut net = Net::with(NODES, setup);
        net[0].set_unexpected_most(waits);
        Run { net, sent: Vec::new(), wants: Vec::new(), taken: HashMap::new() }
    }

    fn send(&mut self, msg: Msg, data: bool, delivery: bool) -> bool {
        let id = self.sent.len();
        let data = (data || msg.len < 8).then_some(id as u64);
        let mut bytes = pattern(msg.len, id);
        if msg.len >= 8 {
            bytes[..8].copy_from_slice(&id.to_ne_bytes());
        }
        let bytes = [self.net.bytes(msg.from, &bytes)];
        let mut flags = OpFlags::empty();
        flags.set(OpFlags::DELIVERY, delivery);
        let op = Send { tag: msg.tag, data, flags, ..testkit::msg(0, &bytes, id) };
        let sent = self.net[msg.from].send(&op);
        assert!(sent.is_ok() || sent == Err(Error::Again));
        if sent.is_ok() {
            self.sent.push(msg);
        }
        sent.is_ok()
    }

    fn want(&mut self, src: Option<usize>, tag: Option<(u64, u64)>, room: usize, claims: bool) -> Want {
        let want = Want { src, tag, room: self.net.memory(0, room), got: None, claims };
        self.wants.push(want);
        want
    }

    fn recv(&mut self, src: Option<usize>, tag: Option<(u64, u64)>, room: usize) {
        let want = self.want(src, tag, room, false);
        let ctx = Ctx(self.wants.len() - 1);
        let op = Recv { pattern: want.pattern(), iov: &[want.room], ctx, flags: OpFlags::COMPLETION };
        self.net[0].recv(&op).unwrap();
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send { from, tag, len, data, delivery } => {
                self.send(Msg { from, tag, len }, data, delivery);
            }
            Step::Recv { src, tag, room } => self.recv(src, tag, room),
            Step::Claim { src, tag } => {
                let want = self.want(src, tag, LONGEST, true);
                let (rx, ctx) = (self.net[0].rx, Ctx(self.wants.len() - 1));
                self.look();
                self.net[0].peek(rx, want.pattern(), Peek::Claim, ctx, OpFlags::COMPLETION).unwrap();
                let seen = self.net[0].rx();
                let (peeked, others): (Vec<_>, Vec<_>) = seen.into_iter().partition(|c| c.ctx == ctx);
                others.iter().for_each(|c| self.completed(c));
                if peeked[0].err.is_none() {
                    assert!(peeked[0].what.contains(What::CLAIM));
                    let flags = OpFlags::COMPLETION;
                    self.net[0]
                        .claim(rx, &Recv { pattern: want.pattern(), iov: &[want.room], ctx, flags })
                        .unwrap();
                }
            }
            Step::Stream { from, count } => {
                for _ in 0..count {
                    if self.send(Msg { from, tag: Some(1), len: 8 }, false, false) {
                        self.recv(Some(from), Some((1, 0)), 8);
                        self.poll();
                    }
                }
            }
            Step::Poll => self.poll(),
            Step::Progress => {
                for at in 0..NODES {
                    self.net[at].progress();
                }
            }
        }
        self.look();
    }

    fn poll(&mut self) {
        let cq = self.net[0].rx_cq;
        self.look();
        let mut seen = None;
        self.net[0].poll_fast(cq, &mut |entry: &Completion| seen = Some(*entry));
        if let Some(entry) = seen {
            self.completed(&entry);
        }
    }

    fn look(&mut self) {
        for entry in self.net[0].rx() {
            self.completed(&entry);
        }
    }

    fn completed(&mut self, c: &Completion) {
        let at = c.ctx.0;
        let want = self.wants[at];
        let bytes = self.net[0].look(want.room, c.len);
        let id = match c.what.contains(What::REMOTE_CQ_DATA) {
            true => c.data as usize,
            false => usize::from_ne_bytes(bytes[..8].try_into().unwrap()),
        };
        let msg = self.sent[id];
        assert!(want.fits(&msg) && want.got.is_none(), "{want:?} {msg:?}");
        let len = msg.len.min(want.room.len());
        let err = (len < msg.len).then_some(Error::Truncated);
        assert_eq!((c.len, c.olen, c.err), (len, msg.len - len, err), "{c:?}");
        assert_eq!((c.tag, c.src), (msg.tag.unwrap_or(0), msg.from as u64), "{c:?}");
        if len > 8 {
            assert_eq!(bytes[8..], pattern(msg.len, id)[8..len], "{c:?}");
        }
        self.wants[at].got = Some(id);
        assert_eq!(self.taken.insert(id, at), None, "twice");
    }

    /// A receive has no message while an earlier or equal one would have been there for it, and none that
    /// came behind that.
    fn check(&self) {
        for (id, msg) in self.sent.iter().enumerate() {
            let taken = self.taken.get(&id).copied().unwrap_or(usize::MAX);
            for (at, want) in self.wants.iter().enumerate().take(taken) {
                let later = |got: usize| got > id && self.sent[got].from == msg.from;
                let in_vain = want.got.is_none() && !want.claims;
                assert!(
                    !(want.fits(msg) && (in_vain || want.got.is_some_and(later))),
                    "message {id} {msg:?}, received by {taken}, is for receive {at} {want:?}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    #[cfg_attr(miri, ignore = "too long")]
    fn no_message_overtakes_another(
        seed in any::<u64>(),
        waits in prop_oneof![Just(0), Just(700), Just(usize::MAX)],
        steps in prop::collection::vec(step(), 0..150),
    ) {
        let mut run = Run::new(seed, waits);
        for step in &steps {
            run.step(step);
        }
        run.net.settle();
        run.look();
        run.check();
    }
}

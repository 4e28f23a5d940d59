//! Random receives of a shared context, whose endpoints have queues of their own, and one of which closes:
//! each receive ends once, and is reported in the queue of the endpoint that its message came to, as that
//! endpoint has it.

use engine::{
    ADDR_UNSPEC, CntrId, Cntrs, CqId, Ctx, EpConfig, EpId, Error, OpFlags, Pattern, Recv, RxId, Send, What,
};
use proptest::prelude::*;
use testkit::*;

#[derive(Clone, Debug)]
enum Step {
    Send {
        to: usize,
        tag: Option<u64>,
        len: usize,
    },
    Recv {
        tag: Option<u64>,
        flags: OpFlags,
        room: usize,
    },
    /// A buffer for several.
    Multi {
        flags: OpFlags,
        room: usize,
    },
    /// By an endpoint, or by the context.
    Cancel {
        which: prop::sample::Index,
        by: Option<usize>,
    },
    Progress(usize),
    Close,
}

const EPS: usize = 3;
/// Of this one all are written.
const WRITES: usize = 1;
const CLOSED: usize = 2;

fn step() -> impl Strategy<Value = Step> {
    let len = || prop_oneof![4 => 0..100usize, 2 => 100..2000usize, 1 => 2000..9000usize];
    let tag = || prop_oneof![Just(None), (0..2u64).prop_map(Some)];
    let flags = || prop_oneof![Just(OpFlags::empty()), Just(OpFlags::AS_BOUND), Just(OpFlags::COMPLETION)];
    prop_oneof![
        8 => (0..EPS, tag(), len()).prop_map(|(to, tag, len)| Step::Send { to, tag, len }),
        6 => (tag(), flags(), len()).prop_map(|(tag, flags, room)| Step::Recv { tag, flags, room }),
        1 => (flags(), 300..20_000usize).prop_map(|(flags, room)| Step::Multi { flags, room }),
        1 => (any::<prop::sample::Index>(), prop::option::of(0..EPS)).prop_map(|(which, by)| Step::Cancel { which, by }),
        4 => (0..2usize).prop_map(Step::Progress),
        1 => Just(Step::Close),
    ]
}

#[derive(Debug)]
struct Posted {
    flags: OpFlags,
    ends: Vec<(usize, Option<Error>)>,
    given_back: usize,
}

struct Run {
    net: Net,
    rx: RxId,
    eps: [EpId; EPS],
    to: [u64; EPS],
    queues: [CqId; EPS],
    cntrs: [CntrId; EPS],
    posted: Vec<Posted>,
    closed: bool,
}

impl Run {
    fn new(seed: u64, direct: Direct) -> Run {
        let mut net = Net::with(2, Setup { direct, seed, cq_size: 1 << 16, ..Setup::default() });
        let rx = net[1].srx_open();
        let links = [net.link(), net.link(), net.link()];
        let names = links.each_ref().map(|link| link.place()).map(|place| net.addr(place));
        let queues = [(); EPS].map(|()| net[1].cq_open(1 << 16));
        let cntrs = [(); EPS].map(|()| net[1].cntr_open());
        let (av, tx_cq, mut at) = (net[1].av, Some(net[1].tx_cq), 0);
        let eps = links.map(|link| {
            let of = Cntrs { recv: Some(cntrs[at]), ..Cntrs::default() };
            let rx_cq = Some(queues[at]);
            at += 1;
            net[1].ep_open(EpConfig { link, av, rx: Some(rx), tx_cq, rx_cq, cntrs: of })
        });
        net[1].ep_write_every_receive(eps[WRITES]);
        let av = net[0].av;
        let to = names.map(|name| net[0].av_insert(av, name));
        Run { net, rx, eps, to, queues, cntrs, posted: Vec::new(), closed: false }
    }

    fn post(&mut self, tag: Option<u64>, flags: OpFlags, room: usize) {
        let pattern = Pattern { src: ADDR_UNSPEC, tag: tag.map(|t| (t, 0)) };
        let (iov, ctx) = ([self.net.memory(1, room)], Ctx(self.posted.len()));
        self.posted.push(Posted { flags, ends: Vec::new(), given_back: 0 });
        self.net[1].recv_at(self.rx, &Recv { pattern, iov: &iov, ctx, flags }).unwrap();
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Send { to, .. } if to == CLOSED && self.closed => {}
            Step::Send { to, tag, len } => {
                let src = [self.net.memory(0, len)];
                let sent = self.net[0].send(&Send { tag, ..msg(self.to[to], &src, 0) });
                assert!(matches!(sent, Ok(()) | Err(Error::Again)), "{sent:?}");
            }
            Step::Recv { tag, flags, room } => self.post(tag, flags, room),
            Step::Multi { flags, room } => self.post(None, flags | OpFlags::MULTI_RECV, room),
            Step::Cancel { which, by } if !self.posted.is_empty() => {
                let ctx = Ctx(which.index(self.posted.len()));
                let by = by.filter(|by| !(self.closed && *by == CLOSED));
                let found = match by {
                    Some(by) => self.net[1].ep_cancel(self.eps[by], ctx),
                    None => self.net[1].cancel(self.rx, ctx),
                };
                assert!(matches!(found, Ok(()) | Err(Error::NotFound)), "{found:?}");
                let before = self.posted[ctx.0].ends.len();
                self.look();
                if found.is_ok() {
                    let ends = &self.posted[ctx.0].ends[before..];
                    assert!(ends.contains(&(by.unwrap_or(0), Some(Error::Cancelled))), "{ends:?} by {by:?}");
                }
            }
            Step::Cancel { .. } => {}
            Step::Progress(at) => {
                self.net[at].progress();
            }
            Step::Close if !self.closed => {
                self.look();
                self.net[1].ep_close(self.eps[CLOSED]).unwrap();
                self.closed = true;
            }
            Step::Close => {}
        }
        self.look();
    }

    fn look(&mut self) {
        for (at, queue) in self.queues.into_iter().enumerate() {
            while let Some(c) = self.net[1].next(queue) {
                let posted = &mut self.posted[c.ctx.0];
                posted.ends.push((at, c.err));
                posted.given_back += usize::from(c.what.contains(What::MULTI_RECV));
                let asked = posted.flags.contains(OpFlags::COMPLETION)
                    || posted.flags.contains(OpFlags::AS_BOUND) && at == WRITES;
                assert!(asked || c.err.is_some() || c.what.contains(What::MULTI_RECV), "{c:?} of {posted:?}");
            }
        }
    }

    /// Takes back what is left, and looks whether each receive has ended once.
    fn end(mut self) {
        self.net.settle();
        for at in 0..self.posted.len() {
            let _ = self.net[1].cancel(self.rx, Ctx(at));
        }
        self.net.settle();
        self.look();
        let single = |p: &&Posted| !p.flags.contains(OpFlags::MULTI_RECV);
        for p in self.posted.iter().filter(single) {
            assert!(p.ends.len() <= 1, "{p:?}");
            assert!(p.ends.len() == 1 || !p.flags.contains(OpFlags::COMPLETION), "{p:?}");
        }
        for p in self.posted.iter().filter(|p| !single(p)) {
            assert_eq!(p.given_back, 1, "{p:?}");
        }
        if self.posted.iter().all(|p| single(&p)) {
            let count = |c: CntrId| self.net[1].cntr_read(c) + self.net[1].cntr_readerr(c);
            let ended: u64 = self.cntrs.iter().map(|c| count(*c)).sum();
            assert_eq!(ended as usize, self.posted.len());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    #[cfg_attr(miri, ignore = "too long")]
    fn each_receive_of_a_shared_context_ends_once(
        seed in any::<u64>(),
        never in any::<bool>(),
        multi in any::<bool>(),
        steps in prop::collection::vec(step(), 0..120),
    ) {
        let direct = if never { Direct::Never } else { Setup::default().direct };
        let mut run = Run::new(seed, direct);
        for step in steps.iter().filter(|s| multi || !matches!(s, Step::Multi { .. })) {
            run.step(step);
        }
        run.end();
    }
}

//! Peers that share no memory with this process: Strait's own engine over its links, which move bytes by
//! frames. Puts and gets are its RMA, control messages its messages. A peer has to make progress for any of
//! them to end.
//!
//! An idle peer's end shows in nothing, so each peer that is known is sent a message now and then, of which
//! the next goes when the last was received: one that fails tells.

mod links;
mod messages;
mod op;
#[cfg(all(test, not(loom)))]
mod tests;

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use engine::{
    ADDR_UNSPEC, Access, Atomic, Cntrs, Completion, Config, Ctx, Domain, EpConfig, FiAddr, MrId, OpFlags,
    Pattern, Recv, Reg, Rma, What,
};
use hmem::{AtomicOp, Datatype, Span};
use link::Links;
use link_api::{Link as _, Path, RmaCaps, WaitFd};
use runtime::{Guard, Progress, Runtime};
use wire::{Addr, RmaSeg};

use op::Op;

use super::reach::Reach;
use super::terms::{segment, span};
use crate::{
    CONTROL_MOST, Error, Event, GRANTS_MOST, Get, Memory, Promise, Put, Rank, RemoteId, Settings, Token,
};

/// Receives that are posted.
const RECEIVES: usize = 32;
/// Between two messages that ask whether a peer is there.
const PING: Duration = Duration::from_millis(200);
/// For how long what a peer has sent before it ended is waited for.
const LAST_WORDS: Duration = Duration::from_millis(250);
/// The most bytes of an injected put.
const INJECT: usize = 4096;
/// Up to so many bytes an injected put is the faster one (docs/rpipe.md, Thresholds).
const EAGER: usize = 128;
/// The longest put or get.
const MOST: usize = 1 << 30;
/// Contexts from here on are of injected puts and messages, and say to which rank.
const INJECTED: usize = 1 << 40;

/// Kinds of messages.
const CONTROL: u8 = 1;
const PINGING: u8 = 2;
const WAKE: u8 = 3;
const BYE: u8 = 4;
/// Before the grants: rank, address, kind, how many grants.
const HEAD: usize = 4 + Addr::LEN + 2;
const MESSAGE_MOST: usize = HEAD + 16 * GRANTS_MOST + CONTROL_MOST;

/// Messages to one peer that have not left yet, in order.
#[derive(Debug, Default)]
struct Waiting {
    messages: VecDeque<(u8, Vec<u8>)>,
    next: Option<Instant>,
}

#[derive(Debug)]
pub(super) struct Far {
    rank: Rank,
    runtime: Runtime<Links>,
    ep: engine::EpId,
    rx: engine::RxId,
    av: engine::AvId,
    cq: engine::CqId,
    own: Own,
    peers: HashMap<Rank, Peer>,
    ranks: HashMap<FiAddr, Rank>,
    regions: HashMap<u32, (MrId, u64, Memory)>,
    remotes: HashMap<u32, (Rank, u64, usize)>,
    /// What the engine uses until an operation completes, and what is told then.
    ops: HashMap<usize, Op>,
    last: usize,
    /// Messages that have not left yet.
    waiting: HashMap<Rank, Waiting>,
    /// Regions that were taken back, and are reached until these messages have left.
    withdrawn: Vec<(MrId, Memory)>,
    gone: HashSet<Rank>,
    /// Peers to which an operation has failed since they have ended, and why. What they have sent before
    /// comes first.
    ending: Vec<(Rank, String, Instant)>,
    asked: Instant,
    events: Vec<Event>,
}

/// This end, as it was opened.
#[derive(Debug)]
struct Own {
    addr: Addr,
    fd: Option<RawFd>,
    /// The provider of libfabric below, if there is one.
    carrier: String,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    at: FiAddr,
    /// A message that asks whether it is there is under way.
    pinged: bool,
    /// Puts under way whose bytes the peer fetches.
    fetched: u32,
}

impl Far {
    /// Opens the links by which peers are reached so.
    pub(super) fn open(rank: Rank, reach: &Reach, settings: &Settings) -> Result<Far, Error> {
        let (link, carrier) = links::open(reach, settings)?;
        let own = Own { addr: link.addr(), fd: link.wait_fd(WaitFd::All), carrier };
        let config = Config { virt_addr: false, rma_order: true };
        let mut domain = Domain::new(config);
        // `Far::register` says so of each registration.
        domain.set_lasting();
        let runtime = Runtime::new(domain, Progress::Manual);
        let mut engine = runtime.enter()?;
        let (av, cq) = (engine.av_open(), engine.cq_open(4096));
        let (tx_cq, rx_cq, cntrs) = (Some(cq), Some(cq), Cntrs::default());
        let ep = engine.ep_open(EpConfig { link, av, rx: None, tx_cq, rx_cq, cntrs });
        let rx = engine.ep_rx(ep).ok_or(engine::Error::NotFound)?;
        drop(engine);
        let (peers, ranks, regions, remotes, ops) =
            (HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new(), HashMap::new());
        let (waiting, withdrawn, ending) = (HashMap::new(), Vec::new(), Vec::new());
        let (gone, asked, events) = (HashSet::new(), Instant::now(), Vec::new());
        let mut far = Far {
            rank,
            runtime,
            ep,
            rx,
            av,
            cq,
            own,
            peers,
            ranks,
            regions,
            remotes,
            ops,
            last: 0,
            waiting,
            withdrawn,
            gone,
            ending,
            asked,
            events,
        };
        (0..RECEIVES).try_for_each(|_| far.receive(vec![0; MESSAGE_MOST]))?;
        Ok(far)
    }

    pub(super) fn addr(&self) -> Addr {
        self.own.addr
    }

    /// The provider of libfabric below, if there is one.
    pub(super) fn carrier(&self) -> &str {
        &self.own.carrier
    }

    pub(super) fn knows(&self, rank: Rank) -> bool {
        self.peers.contains_key(&rank)
    }

    pub(super) fn fd(&self) -> Option<RawFd> {
        self.own.fd
    }

    fn enter(&self) -> Result<Guard<'_, Links>, Error> {
        Ok(self.runtime.enter_to_poll()?)
    }

    fn next(&mut self) -> usize {
        self.last += 1;
        self.last
    }

    /// Posts a receive into this buffer.
    fn receive(&mut self, buffer: Vec<u8>) -> Result<(), Error> {
        let ctx = self.next();
        let iov = [span(buffer.as_ptr(), buffer.len())];
        let pattern = Pattern { src: ADDR_UNSPEC, tag: None };
        let recv = Recv { pattern, iov: &iov, ctx: Ctx(ctx), flags: OpFlags::COMPLETION };
        self.enter()?.recv(self.rx, &recv)?;
        self.ops.insert(ctx, Op::Receive(buffer));
        Ok(())
    }

    /// Introduces a peer, by its address.
    pub(super) fn connect(&mut self, rank: Rank, addr: Addr) -> Result<(), Error> {
        if !self.knows(rank) {
            let at = self.enter()?.av_insert(self.av, addr);
            self.peers.insert(rank, Peer { at, pinged: false, fetched: 0 });
            self.ranks.insert(at, rank);
        }
        Ok(())
    }

    fn peer(&self, rank: Rank) -> Result<FiAddr, Error> {
        match self.peers.get(&rank) {
            Some(_) if self.gone.contains(&rank) => Err(Error::Gone(format!("rank {rank} has ended"))),
            Some(peer) => Ok(peer.at),
            None => Err(Error::Invalid(format!("rank {rank} is not known here"))),
        }
    }

    pub(super) fn promise(&self) -> Promise {
        Promise {
            path: "frames".into(),
            why: "the peer is on another host".into(),
            between: true,
            delivered: true,
            settled: true,
            notify: false,
            fetch: true,
            wakes: true,
            peer_progress: true,
            inject: INJECT,
            eager: EAGER,
            most: MOST,
            ..Promise::default()
        }
    }

    /// Lets peers reach a region; its key.
    pub(super) fn register(&mut self, id: u32, memory: &Memory) -> Result<u64, Error> {
        if let Some((_, key, _)) = self.regions.get(&id) {
            return Ok(*key);
        }
        let memory_of = span(memory.address(0), memory.len());
        // SAFETY: `regions` keeps it until the registration is closed; where that cannot be, it is leaked.
        let iov = [unsafe { memory_of.lasting() }];
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let (mr, key) = self.enter()?.mr_reg(&Reg { iov: &iov, access, key: None })?;
        self.regions.insert(id, (mr, key, memory.clone()));
        Ok(key)
    }

    pub(super) fn withdraw(&mut self, id: u32) {
        if let Some((mr, _, memory)) = self.regions.remove(&id) {
            // That it is taken back may be what a message says.
            match self.waiting.is_empty() {
                true => self.unregister(mr, memory),
                false => self.withdrawn.push((mr, memory)),
            }
        }
    }

    fn unregister(&mut self, mr: MrId, memory: Memory) {
        if self.runtime.take_back(|engine| engine.mr_close(mr)).is_err() {
            // A peer may still be inside.
            std::mem::forget(memory);
        }
    }

    pub(super) fn forget(&mut self, remote: RemoteId) {
        self.remotes.remove(&remote.0);
    }

    fn remote(&self, peer: Rank, remote: (RemoteId, usize), len: usize) -> Result<RmaSeg, Error> {
        match self.remotes.get(&remote.0.0) {
            Some((of, key, most)) if *of == peer && remote.1 <= *most && len <= most - remote.1 => {
                Ok(segment(remote.1, len, *key))
            }
            _ => Err(Error::Invalid(format!("rank {peer} has not granted this memory"))),
        }
    }

    fn rma(
        &mut self,
        peer: Rank,
        write: bool,
        iov: Span,
        remote: RmaSeg,
        moved: Option<(Token, &Memory)>,
    ) -> Result<(), Error> {
        let to = self.peer(peer)?;
        if write && self.peers.get(&peer).is_some_and(|peer| peer.fetched > 0) {
            return Err(Error::Again);
        }
        let (ctx, flags) = match moved {
            Some(_) => (self.next(), OpFlags::COMPLETION | OpFlags::DELIVERY),
            None => (INJECTED + peer as usize, OpFlags::INJECT),
        };
        let op = Rma { to, write, iov: &[iov], remote: &[remote], data: None, ctx: Ctx(ctx), flags };
        let mut engine = self.enter()?;
        engine.rma(self.ep, &op)?;
        // If a peer that fetches is no more, or this process is not, what was put behind would be there
        // without these bytes.
        let is_fetched = |path: Path| path.rma.contains(RmaCaps::SYNC) && iov.len() > path.eager;
        let fetched = write && engine.ep_path(self.ep, to).is_none_or(is_fetched);
        drop(engine);
        if let Some((token, memory)) = moved {
            self.ops.insert(ctx, Op::Move(peer, token, memory.clone(), fetched));
            if let Some(peer) = self.peers.get_mut(&peer) {
                peer.fetched += u32::from(fetched);
            }
        }
        Ok(())
    }

    pub(super) fn put(&mut self, put: &Put, from: &Memory) -> Result<(), Error> {
        let remote = self.remote(put.to, put.remote, put.len)?;
        self.rma(put.to, true, span(from.address(put.from.1), put.len), remote, Some((put.token, from)))
    }

    pub(super) fn put_bytes(
        &mut self,
        to: Rank,
        remote: (RemoteId, usize),
        bytes: &[u8],
    ) -> Result<(), Error> {
        let remote = self.remote(to, remote, bytes.len())?;
        self.rma(to, true, span(bytes.as_ptr(), bytes.len()), remote, None)
    }

    pub(super) fn get(&mut self, get: &Get, to: &Memory) -> Result<(), Error> {
        let remote = self.remote(get.from, get.remote, get.len)?;
        self.rma(get.from, false, span(to.address(get.to.1), get.len), remote, Some((get.token, to)))
    }

    pub(super) fn fetch_add(
        &mut self,
        peer: Rank,
        remote: (RemoteId, usize),
        add: u64,
        token: Token,
    ) -> Result<(), Error> {
        let (to, remote) = (self.peer(peer)?, self.remote(peer, remote, 8)?);
        let words = Box::new([add, 0]);
        let at = words.as_ptr();
        let (operand, result) = ([span(at.cast(), 8)], [span(at.wrapping_add(1).cast(), 8)]);
        let ctx = self.next();
        let op = Atomic {
            to,
            op: AtomicOp::Sum,
            datatype: Datatype::Uint64,
            operand: &operand,
            compare: &[],
            result: &result,
            remote: &[remote],
            data: None,
            ctx: Ctx(ctx),
            flags: OpFlags::COMPLETION,
        };
        self.enter()?.atomic(self.ep, &op)?;
        self.ops.insert(ctx, Op::Fetch(peer, token, words));
        Ok(())
    }

    /// Makes progress. `names`: names for regions that are granted.
    pub(super) fn progress(&mut self, events: &mut Vec<Event>, names: &mut u32) -> Result<(), Error> {
        let mut ended = Vec::new();
        let mut engine = self.enter()?;
        engine.progress();
        engine.cq_take(self.cq, usize::MAX, |_, completion| ended.push(*completion));
        while let Some(completion) = engine.cq_error(self.cq) {
            ended.push(completion);
        }
        drop(engine);
        let ends = self.ends(ended.is_empty());
        for completion in ended {
            self.completed(&completion, names)?;
        }
        for (peer, why) in ends {
            if self.gone.insert(peer) {
                self.events.push(Event::Gone { peer, why });
            }
        }
        self.drain();
        if self.asked.elapsed() > PING {
            self.asked = Instant::now();
            self.ping_all();
        }
        if let Some(e) = self.lack() {
            let why = Error::system("a connection to a peer, or from one, waits", &e);
            self.events.push(Event::Lack { peer: None, why });
        }
        events.append(&mut self.events);
        Ok(())
    }

    fn completed(&mut self, c: &Completion, names: &mut u32) -> Result<(), Error> {
        let outcome = c.err.map_or(Ok(()), |e| Err(Error::from(e)));
        if c.ctx.0 >= INJECTED {
            return outcome.or_else(|fault| self.lost((c.ctx.0 - INJECTED) as Rank, fault));
        }
        match self.ops.remove(&c.ctx.0) {
            Some(Op::Receive(buffer)) => {
                if outcome.is_ok() && c.what.contains(What::RECV) {
                    self.take(c, &buffer[..c.len.min(buffer.len())], names);
                }
                self.receive(buffer)
            }
            Some(Op::Ping(to, _)) => {
                if let Some(peer) = self.peers.get_mut(&to) {
                    peer.pinged = false;
                }
                match outcome {
                    // There is a peer, and one of the two has no descriptor for a connection yet.
                    Err(Error::Exhausted(_)) => Ok(()),
                    outcome => outcome.or_else(|fault| self.lost(to, fault)),
                }
            }
            Some(Op::Move(peer, token, _, fetched)) => {
                if let Some(peer) = self.peers.get_mut(&peer) {
                    peer.fetched -= u32::from(fetched);
                }
                let event =
                    outcome.clone().map_or_else(|fault| Event::Failed(token, fault), |()| Event::Done(token));
                self.events.push(event);
                outcome.or_else(|fault| self.lost(peer, fault))
            }
            Some(Op::Fetch(peer, token, words)) => {
                let event = outcome
                    .clone()
                    .map_or_else(|fault| Event::Failed(token, fault), |()| Event::Fetched(token, words[1]));
                self.events.push(event);
                outcome.or_else(|fault| self.lost(peer, fault))
            }
            None => Ok(()),
        }
    }

    /// An operation has failed: for the end of its peer, or for itself.
    fn lost(&mut self, peer: Rank, fault: Error) -> Result<(), Error> {
        let Error::Gone(why) = fault else {
            log::warn!("rpipe: an operation to rank {peer} has failed: {fault}");
            return Ok(());
        };
        if !self.gone.contains(&peer) && self.ending.iter().all(|(rank, ..)| *rank != peer) {
            self.ending.push((peer, why, Instant::now()));
        }
        Ok(())
    }

    pub(super) fn arm(&mut self) -> bool {
        // Nothing tells when a message that waits can leave.
        self.events.is_empty()
            && self.waiting.is_empty()
            && self.ending.is_empty()
            && self.enter().is_ok_and(|mut engine| engine.cq_is_empty(self.cq) && engine.arm())
    }
}

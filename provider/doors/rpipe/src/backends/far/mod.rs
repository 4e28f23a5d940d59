//! Peers that share no memory with this process: Strait's own engine over its links, which move bytes by
//! frames. Puts and gets are its RMA, control messages its messages. A peer has to make progress for any of
//! them to end.
//!
//! An idle peer's end shows in nothing, so each peer that is known is sent a message now and then, of which
//! the next goes when the last was received: one that fails shows its end.

mod ep;
mod links;
mod memories;
mod messages;
mod op;
mod outbox;
mod peers;
#[cfg(all(test, not(loom)))]
mod tests;

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use engine::{Atomic, Completion, Ctx, OpFlags, Rma, What};
use hmem::{AtomicOp, Datatype, Span};
use link_api::{Link as _, SleepLink as _, WaitFd};
use wire::{Addr, RmaSeg};

use ep::Ep;
use memories::Memories;
use op::{Op, Ops};
use outbox::Outbox;
use peers::Peers;

use super::reach::Reach;
use super::terms::span;
use crate::{
    CONTROL_MOST, Error, Event, GRANTS_MOST, Get, Memory, Promise, Put, Rank, RemoteId, Settings, Token,
};

/// Receives that are posted.
const RECEIVES: usize = 32;
/// Between two messages that ask whether a peer is there.
const PING: Duration = Duration::from_millis(200);
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

#[derive(Debug)]
pub(super) struct Far {
    rank: Rank,
    own: Own,
    ep: Ep,
    peers: Peers,
    memories: Memories,
    ops: Ops,
    outbox: Outbox,
    /// When peers were last asked whether they are there.
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

impl Far {
    /// Opens the links by which peers are reached so.
    pub(super) fn open(rank: Rank, reach: &Reach, settings: &Settings) -> Result<Far, Error> {
        let (link, carrier) = links::open(reach, settings)?;
        let own = Own { addr: link.addr(), fd: link.wait_fd(WaitFd::All), carrier };
        let mut far = Far {
            rank,
            own,
            ep: Ep::open(link)?,
            peers: Peers::default(),
            memories: Memories::default(),
            ops: Ops::default(),
            outbox: Outbox::default(),
            asked: Instant::now(),
            events: Vec::new(),
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
        self.peers.knows(rank)
    }

    pub(super) fn fd(&self) -> Option<RawFd> {
        self.own.fd
    }

    /// Posts a receive into this buffer.
    fn receive(&mut self, buffer: Vec<u8>) -> Result<(), Error> {
        let ctx = self.ops.next();
        self.ep.receive(&buffer, ctx)?;
        self.ops.insert(ctx, Op::Receive(buffer));
        Ok(())
    }

    /// Introduces a peer, by its address.
    pub(super) fn connect(&mut self, rank: Rank, addr: Addr) -> Result<(), Error> {
        if !self.knows(rank) {
            self.peers.add(rank, self.ep.insert(addr)?);
        }
        Ok(())
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
        self.memories.register(&self.ep, id, memory)
    }

    pub(super) fn withdraw(&mut self, id: u32) {
        self.memories.withdraw(&self.ep, id, !self.outbox.is_empty());
    }

    pub(super) fn forget(&mut self, remote: RemoteId) {
        self.memories.forget(remote);
    }

    fn rma(
        &mut self,
        peer: Rank,
        write: bool,
        iov: Span,
        remote: RmaSeg,
        moved: Option<(Token, &Memory)>,
    ) -> Result<(), Error> {
        let to = self.peers.at(peer)?;
        if write && self.peers.fetches(peer) {
            return Err(Error::Again);
        }
        let (ctx, flags) = match moved {
            Some(_) => (self.ops.next(), OpFlags::COMPLETION | OpFlags::DELIVERY),
            None => (INJECTED + peer as usize, OpFlags::INJECT),
        };
        let op = Rma { to, write, iov: &[iov], remote: &[remote], data: None, ctx: Ctx(ctx), flags };
        let fetched = self.ep.rma(&op, iov.len())?;
        if let Some((token, memory)) = moved {
            self.ops.insert(ctx, Op::Move(peer, token, memory.clone(), fetched));
            if fetched {
                self.peers.begin_fetch(peer);
            }
        }
        Ok(())
    }

    pub(super) fn put(&mut self, put: &Put, from: &Memory) -> Result<(), Error> {
        let remote = self.memories.remote(put.to, put.remote, put.len)?;
        self.rma(put.to, true, span(from.address(put.from.1), put.len), remote, Some((put.token, from)))
    }

    pub(super) fn put_bytes(
        &mut self,
        to: Rank,
        remote: (RemoteId, usize),
        bytes: &[u8],
    ) -> Result<(), Error> {
        let remote = self.memories.remote(to, remote, bytes.len())?;
        self.rma(to, true, span(bytes.as_ptr(), bytes.len()), remote, None)
    }

    pub(super) fn get(&mut self, get: &Get, to: &Memory) -> Result<(), Error> {
        let remote = self.memories.remote(get.from, get.remote, get.len)?;
        self.rma(get.from, false, span(to.address(get.to.1), get.len), remote, Some((get.token, to)))
    }

    pub(super) fn fetch_add(
        &mut self,
        peer: Rank,
        remote: (RemoteId, usize),
        add: u64,
        token: Token,
    ) -> Result<(), Error> {
        let (to, remote) = (self.peers.at(peer)?, self.memories.remote(peer, remote, 8)?);
        let words = Box::new([add, 0]);
        let at = words.as_ptr();
        let (operand, result) = ([span(at.cast(), 8)], [span(at.wrapping_add(1).cast(), 8)]);
        let ctx = self.ops.next();
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
        self.ep.atomic(&op)?;
        self.ops.insert(ctx, Op::Fetch(peer, token, words));
        Ok(())
    }

    /// Makes progress. `names`: names for regions that are granted.
    pub(super) fn progress(&mut self, events: &mut Vec<Event>, names: &mut u32) -> Result<(), Error> {
        let completions = self.ep.progress()?;
        let ends = self.take_ended(completions.is_empty());
        for completion in completions {
            self.completed(&completion, names)?;
        }
        for (peer, why) in ends {
            if self.peers.end(peer) {
                self.events.push(Event::Gone { peer, why });
            }
        }
        self.drain();
        if self.asked.elapsed() > PING {
            self.asked = Instant::now();
            self.ping_all();
        }
        if let Some(e) = self.ep.lack() {
            let why = Error::system("a connection to a peer, or from one, waits", &e);
            self.events.push(Event::Lack { peer: None, why });
        }
        events.append(&mut self.events);
        Ok(())
    }

    /// Peers whose end is to be reported now. `quiet`: nothing has come just now.
    fn take_ended(&mut self, quiet: bool) -> Vec<(Rank, String)> {
        if !self.peers.has_ending() {
            return Vec::new();
        }
        let Ok(is_connected) = self.ep.connected() else { return Vec::new() };
        self.peers.take_ended(quiet, is_connected)
    }

    fn completed(&mut self, c: &Completion, names: &mut u32) -> Result<(), Error> {
        let outcome = c.err.map_or(Ok(()), |e| Err(Error::from(e)));
        if c.ctx.0 >= INJECTED {
            self.note((c.ctx.0 - INJECTED) as Rank, outcome);
            return Ok(());
        }
        match self.ops.remove(c.ctx.0) {
            Some(Op::Receive(buffer)) => {
                if outcome.is_ok() && c.what.contains(What::RECV) {
                    self.take(c, &buffer[..c.len.min(buffer.len())], names);
                }
                self.receive(buffer)?;
            }
            Some(Op::Ping(to, _)) => {
                self.peers.set_pinged(to, false);
                // There may be a peer, and one of the two has no descriptor for a connection yet.
                if !matches!(outcome, Err(Error::Exhausted(_))) {
                    self.note(to, outcome);
                }
            }
            Some(Op::Move(peer, token, _, fetched)) => {
                if fetched {
                    self.peers.end_fetch(peer);
                }
                self.events.push(match &outcome {
                    Ok(()) => Event::Done(token),
                    Err(fault) => Event::Failed(token, fault.clone()),
                });
                self.note(peer, outcome);
            }
            Some(Op::Fetch(peer, token, words)) => {
                self.events.push(match &outcome {
                    Ok(()) => Event::Fetched(token, words[1]),
                    Err(fault) => Event::Failed(token, fault.clone()),
                });
                self.note(peer, outcome);
            }
            None => {}
        }
        Ok(())
    }

    /// What a failed operation says of its peer.
    fn note(&mut self, peer: Rank, outcome: Result<(), Error>) {
        if let Err(fault) = outcome {
            self.peers.fail(peer, fault);
        }
    }

    pub(super) fn arm(&mut self) -> bool {
        // Nothing notifies when a message that waits can leave.
        self.events.is_empty() && self.outbox.is_empty() && !self.peers.has_ending() && self.ep.arm()
    }
}

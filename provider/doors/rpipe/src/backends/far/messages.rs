//! Messages to peers and from them: control messages with what they grant, and those that ask, wake and part.
//! One that finds no room, or no connection yet, waits here, so that no call waits for a peer that does not
//! receive.

use std::time::{Duration, Instant};

use engine::{Completion, Ctx, OpFlags, Send};
use link_api::Link as _;
use wire::Addr;

use super::super::terms::span;
use super::{BYE, CONTROL, Far, HEAD, INJECTED, LAST_WORDS, Op, PINGING, WAKE};
use crate::{Error, Event, GRANTS_MOST, Grant, Rank, RemoteId};

/// Between two attempts where this process, or the peer, has no descriptor for a connection.
const AGAIN: Duration = Duration::from_millis(100);

/// For how long what is under way besides puts is waited for.
const LEAVING: Duration = Duration::from_secs(1);

impl Far {
    fn encode(&self, kind: u8, grants: &[(u64, usize)], bytes: &[u8]) -> Vec<u8> {
        let mut message = self.rank.to_le_bytes().to_vec();
        message.extend(self.own.addr.encode());
        message.extend([kind, grants.len() as u8]);
        for (key, len) in grants {
            message.extend(key.to_le_bytes());
            message.extend((*len as u64).to_le_bytes());
        }
        message.extend(bytes);
        message
    }

    /// Sends a message, behind those that wait.
    pub(super) fn message(
        &mut self,
        to: Rank,
        kind: u8,
        grants: &[(u64, usize)],
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.peer(to)?;
        let message = self.encode(kind, grants, bytes);
        let mut next = None;
        if !self.waiting.contains_key(&to) {
            match self.post(to, &message) {
                Err(Error::Again) => {}
                Err(Error::Exhausted(_)) => next = self.again(),
                outcome => return outcome.or_else(|fault| self.lost(to, fault)),
            }
        }
        let waiting = self.waiting.entry(to).or_default();
        waiting.next = waiting.next.or(next);
        // One of these says as much as many.
        if kind != WAKE || waiting.messages.back().is_none_or(|(last, _)| *last != WAKE) {
            waiting.messages.push_back((kind, message));
        }
        Ok(())
    }

    /// When a peer is called again for which there is no descriptor; where this process lacks it, whenever it
    /// looks.
    fn again(&self) -> Option<Instant> {
        self.lack().is_none().then(|| Instant::now() + AGAIN)
    }

    fn post(&mut self, to: Rank, message: &[u8]) -> Result<(), Error> {
        let iov = [span(message.as_ptr(), message.len())];
        let (to, ctx) = (self.peer(to)?, Ctx(INJECTED + to as usize));
        let send = Send { to, iov: &iov, tag: None, data: None, ctx, flags: OpFlags::INJECT };
        Ok(self.enter()?.send(self.ep, &send)?)
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn drain(&mut self) {
        if self.waiting.is_empty() {
            return;
        }
        let mut all = std::mem::take(&mut self.waiting);
        all.retain(|rank, waiting| {
            if waiting.next.is_some_and(|next| Instant::now() < next) {
                return true;
            }
            waiting.next = None;
            while let Some((_, message)) = waiting.messages.front() {
                match self.post(*rank, message) {
                    Ok(()) => drop(waiting.messages.pop_front()),
                    Err(Error::Again) => return true,
                    Err(Error::Exhausted(_)) => {
                        waiting.next = self.again();
                        return true;
                    }
                    Err(fault) => {
                        let _ = self.lost(*rank, fault);
                        return false;
                    }
                }
            }
            false
        });
        self.waiting = all;
        if self.waiting.is_empty() {
            for (mr, memory) in std::mem::take(&mut self.withdrawn) {
                self.unregister(mr, memory);
            }
        }
    }

    /// Asks each peer that was not asked yet whether it is there.
    pub(super) fn ping_all(&mut self) {
        let quiet = |rank: &Rank| !self.gone.contains(rank) && !self.waiting.contains_key(rank);
        let unasked = self.peers.iter().filter(|(rank, peer)| !peer.pinged && quiet(rank));
        for rank in unasked.map(|(rank, _)| *rank).collect::<Vec<_>>() {
            let sent = self.ping(rank).is_ok();
            if let Some(peer) = self.peers.get_mut(&rank) {
                peer.pinged = sent;
            }
        }
    }

    fn ping(&mut self, rank: Rank) -> Result<(), Error> {
        let to = self.peer(rank)?;
        let message = self.encode(PINGING, &[], &[]);
        let ctx = self.next();
        let iov = [span(message.as_ptr(), message.len())];
        let flags = OpFlags::COMPLETION | OpFlags::DELIVERY;
        self.enter()?.send(self.ep, &Send { to, iov: &iov, tag: None, data: None, ctx: Ctx(ctx), flags })?;
        self.ops.insert(ctx, Op::Ping(rank, message));
        Ok(())
    }

    /// What this process lacks for connections.
    pub(super) fn lack(&self) -> Option<std::io::Error> {
        self.enter().ok()?.link(self.ep)?.lack()
    }

    /// Peers whose end is to be told of now, since nothing of them comes any more. `quiet`: nothing has come
    /// just now.
    pub(super) fn ends(&mut self, quiet: bool) -> Vec<(Rank, String)> {
        if self.ending.is_empty() {
            return Vec::new();
        }
        let Ok(engine) = self.runtime.enter_to_poll() else { return Vec::new() };
        let comes = |rank: &Rank| {
            !quiet || self.peers.get(rank).is_some_and(|peer| engine.ep_is_connected(self.ep, peer.at))
        };
        let ends = |(rank, _, since): &(Rank, String, Instant)| since.elapsed() > LAST_WORDS || !comes(rank);
        let (told, later) = std::mem::take(&mut self.ending).into_iter().partition(ends);
        self.ending = later;
        drop(engine);
        let told: Vec<(Rank, String, Instant)> = told;
        told.into_iter().map(|(rank, why, _)| (rank, why)).collect()
    }

    /// A control message, with regions by their keys and lengths.
    pub(crate) fn send(&mut self, to: Rank, bytes: &[u8], grants: &[(u64, usize)]) -> Result<(), Error> {
        self.message(to, CONTROL, grants, bytes)
    }

    pub(crate) fn wake(&mut self, to: Rank) -> Result<(), Error> {
        self.message(to, WAKE, &[], &[])
    }

    /// Whether that is where a rank is, or may be from now on: it was not known yet. Of messages that came
    /// before it was, the later ones have no sender either.
    fn is_at(&mut self, rank: Rank, addr: Addr) -> bool {
        let Some(at) = self.peers.get(&rank).map(|peer| peer.at) else {
            return self.connect(rank, addr).is_ok();
        };
        self.enter().is_ok_and(|engine| engine.av_lookup(self.av, at) == Some(addr))
    }

    /// A message. One whose sender is not known yet says where that is.
    pub(super) fn take(&mut self, c: &Completion, bytes: &[u8], names: &mut u32) {
        let Some((head, rest)) = bytes.split_at_checked(HEAD) else { return };
        let said = Rank::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let mut addr = [0; Addr::LEN];
        addr.copy_from_slice(&head[4..4 + Addr::LEN]);
        let (kind, count) = (head[HEAD - 2], usize::from(head[HEAD - 1]));
        let from = match (self.ranks.get(&c.src).copied(), Addr::decode(&addr)) {
            (Some(rank), _) => rank,
            (None, Some(addr)) if self.is_at(said, addr) => said,
            _ => return,
        };
        let most = if kind == CONTROL { GRANTS_MOST } else { 0 };
        let Some((list, bytes)) = rest.split_at_checked(16 * count).filter(|_| count <= most) else {
            return;
        };
        let mut grants = Vec::new();
        for grant in list.chunks_exact(16) {
            let number = |at: usize| {
                let mut word = [0; 8];
                word.copy_from_slice(&grant[at..at + 8]);
                u64::from_le_bytes(word)
            };
            let Ok(len) = usize::try_from(number(8)) else { return };
            *names += 1;
            self.remotes.insert(*names, (from, number(0), len));
            grants.push(Grant { remote: RemoteId(*names), len, mapped: None, device: None });
        }
        match kind {
            CONTROL => self.events.push(Event::Control { from, bytes: bytes.to_vec(), grants }),
            BYE if self.gone.insert(from) => {
                self.events.push(Event::Gone { peer: from, why: "it has left the job".into() });
            }
            _ => {}
        }
    }
}

/// The end of the backend: what was put is there, or an error says what is not.
impl Far {
    /// A rank that has not ended, as far as is known, and to which bytes were put that are not there yet.
    fn unheard(&self) -> Option<Rank> {
        let ends = |rank| self.gone.contains(rank) || self.ending.iter().any(|(of, ..)| of == rank);
        self.ops.values().find_map(|op| match op {
            Op::Move(to, ..) if !ends(to) => Some(*to),
            _ => None,
        })
    }

    pub(in super::super) fn close(&mut self, until: Instant) -> Result<(), Error> {
        let soon = until.min(Instant::now() + LEAVING);
        let (mut names, mut events) = (u32::MAX / 2, Vec::new());
        for rank in self.peers.keys().copied().collect::<Vec<_>>() {
            let _ = self.message(rank, BYE, &[], &[]);
        }
        let busy = |far: &Far| {
            !far.waiting.is_empty() || far.enter().is_ok_and(|engine| engine.ep_under_way(far.ep) > 0)
        };
        let late = |far: &Far| Instant::now() >= if far.unheard().is_none() { soon } else { until };
        loop {
            // Also of what has ended by now: it is no longer under way, and not taken note of yet.
            let _ = self.progress(&mut events, &mut names);
            if !busy(self) || late(self) {
                break;
            }
            std::thread::yield_now();
        }
        let (ep, unheard, lost) = (self.ep, self.unheard(), link::lost_at_ends());
        let mut link = None;
        if self.runtime.take_back(|engine| engine.ep_part(ep).map(|parted| link = Some(parted))).is_err() {
            // Peers may still be inside the buffers.
            std::mem::forget(std::mem::take(&mut self.ops));
            std::mem::forget(std::mem::take(&mut self.regions));
            std::mem::forget(std::mem::take(&mut self.withdrawn));
        }
        drop(link);
        let lost = link::lost_at_ends() - lost;
        match unheard {
            Some(rank) => Err(Error::TimedOut(format!(
                "rank {rank} has not taken in what was written within STRAIT_RPIPE_LINGER: it may be lost"
            ))),
            None if lost > 0 => Err(Error::TimedOut(format!(
                "{lost} bytes to other hosts are not acknowledged within STRAIT_RPIPE_LINGER: they may be lost"
            ))),
            None => Ok(()),
        }
    }
}

//! Messages to peers and from them: they carry control messages, ask whether a peer is there, wake and part.
//! One that finds no room, or no connection yet, waits here, so that no call waits for a peer that does not
//! receive.

use std::time::{Duration, Instant};

use engine::{Completion, OpFlags};
use wire::Addr;

use super::ep::Ep;
use super::{BYE, CONTROL, Far, HEAD, INJECTED, Op, PINGING, WAKE};
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
        self.peers.at(to)?;
        let message = self.encode(kind, grants, bytes);
        let mut next = None;
        if !self.outbox.has(to) {
            match self.post(to, &message) {
                Err(Error::Again) => {}
                Err(Error::Exhausted(_)) => next = later(&self.ep),
                outcome => {
                    self.note(to, outcome);
                    return Ok(());
                }
            }
        }
        self.outbox.add(to, kind, message, next, kind == WAKE);
        Ok(())
    }

    fn post(&self, to: Rank, message: &[u8]) -> Result<(), Error> {
        self.ep.send(self.peers.at(to)?, message, INJECTED + to as usize, OpFlags::INJECT)
    }

    /// Sends what waits, as far as there is room.
    pub(super) fn drain(&mut self) {
        if self.outbox.is_empty() {
            return;
        }
        let mut outbox = std::mem::take(&mut self.outbox);
        let failed = outbox.drain(|rank, message| self.post(rank, message), || later(&self.ep));
        self.outbox = outbox;
        failed.into_iter().for_each(|(rank, fault)| self.peers.fail(rank, fault));
        if self.outbox.is_empty() {
            self.memories.close_withdrawn(&self.ep);
        }
    }

    /// Asks each peer that was not asked yet whether it is there.
    pub(super) fn ping_all(&mut self) {
        for rank in self.peers.unasked() {
            if !self.outbox.has(rank) {
                let sent = self.ping(rank).is_ok();
                self.peers.set_pinged(rank, sent);
            }
        }
    }

    fn ping(&mut self, rank: Rank) -> Result<(), Error> {
        let to = self.peers.at(rank)?;
        let message = self.encode(PINGING, &[], &[]);
        let ctx = self.ops.next();
        self.ep.send(to, &message, ctx, OpFlags::COMPLETION | OpFlags::DELIVERY)?;
        self.ops.insert(ctx, Op::Ping(rank, message));
        Ok(())
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
        match self.peers.place(rank) {
            Some(at) => self.ep.is_at(at, addr),
            None => self.connect(rank, addr).is_ok(),
        }
    }

    /// A message. One whose sender is not known yet says where that is.
    pub(super) fn take(&mut self, c: &Completion, bytes: &[u8], names: &mut u32) {
        let Some((head, rest)) = bytes.split_at_checked(HEAD) else { return };
        let said = Rank::from_le_bytes([head[0], head[1], head[2], head[3]]);
        let mut addr = [0; Addr::LEN];
        addr.copy_from_slice(&head[4..4 + Addr::LEN]);
        let (kind, count) = (head[HEAD - 2], usize::from(head[HEAD - 1]));
        let from = match (self.peers.rank_at(c.src), Addr::decode(&addr)) {
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
            self.memories.add_remote(*names, from, number(0), len);
            grants.push(Grant { remote: RemoteId(*names), len, mapped: None, device: None });
        }
        match kind {
            CONTROL => self.events.push(Event::Control { from, bytes: bytes.to_vec(), grants }),
            BYE if self.peers.end(from) => {
                self.events.push(Event::Gone { peer: from, why: "it has left the job".into() });
            }
            _ => {}
        }
    }

    /// A rank that has not ended, as far as is known, and to which bytes were put that are not there yet.
    fn unheard(&self) -> Option<Rank> {
        self.ops.moving(|to| !self.peers.ends(to))
    }

    /// The end of the backend: what was put is there, or an error says what is not.
    pub(in super::super) fn close(&mut self, until: Instant) -> Result<(), Error> {
        let soon = until.min(Instant::now() + LEAVING);
        let (mut names, mut events) = (u32::MAX / 2, Vec::new());
        for rank in self.peers.all() {
            let _ = self.message(rank, BYE, &[], &[]);
        }
        let late = |far: &Far| Instant::now() >= if far.unheard().is_none() { soon } else { until };
        loop {
            // Also of what has ended by now: it is no longer under way, and not taken note of yet.
            let _ = self.progress(&mut events, &mut names);
            if self.outbox.is_empty() && !self.ep.is_busy() || late(self) {
                break;
            }
            std::thread::yield_now();
        }
        let (unheard, lost) = (self.unheard(), link::lost_at_ends());
        if self.ep.close().is_err() {
            self.ops.leak();
            self.memories.leak();
        }
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

/// When a peer is called again for which there is no descriptor; where this process lacks it, with each call
/// of progress.
fn later(ep: &Ep) -> Option<Instant> {
    ep.lack().is_none().then(|| Instant::now() + AGAIN)
}

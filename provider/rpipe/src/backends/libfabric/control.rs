//! Messages between backends, completions, and the end of peers.

use std::mem::MaybeUninit;
use std::time::{Duration, Instant};

use libfabric_sys as sys;

use super::super::message::{Key, Kind, Message};
use super::card::Card;
use super::endpoint::{Libfabric, insert};
use super::post::{self, Work};
use super::watch::Watch;
use crate::{Error, Event, Grant, Rank};

/// Completions taken at a time.
const BATCH: usize = 16;
/// From the end of a peer's connection to its report, for what is still on its way; also the least limit of
/// leaving.
const LAST: Duration = Duration::from_millis(100);
/// How long leaving may take.
const LEAVE: Duration = Duration::from_secs(1);

impl Libfabric {
    /// Takes a peer's card, unless it is known.
    pub(super) fn introduce(&mut self, peer: Rank, card: &[u8]) -> Result<(), Error> {
        if self.peers.known(peer) {
            return Ok(());
        }
        let card = Card::read(card).ok_or_else(|| {
            Error::Broken(format!("the card of rank {peer} is none of the backend libfabric"))
        })?;
        let address = insert(&self.with.av, &self.with.library, &card.address)?;
        self.peers.add(peer, address);
        match &self.watch {
            // This process ends when it ends.
            Some(watch) if peer != self.rank => watch.add(peer, card.place),
            _ => {}
        }
        Ok(())
    }

    /// Queues a message, and sends what can leave.
    pub(super) fn queue(
        &mut self,
        to: Rank,
        kind: Kind,
        grants: Vec<Key>,
        bytes: &[u8],
    ) -> Result<(), Error> {
        self.peers.address(to)?;
        let told = self.peers.get(to).is_some_and(|peer| std::mem::replace(&mut peer.told, true));
        let card = if told { Vec::new() } else { self.card.clone() };
        let message = Message { kind, from: self.rank, card, grants, bytes: bytes.to_vec() };
        self.outgoing.queue.push_back((to, message.encode()));
        self.flush()
    }

    /// Sends what can leave now. What one peer does not take yet does not hold up others.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        if self.outgoing.is_empty() {
            return Ok(());
        }
        while let Some(buffer) = self.outgoing.receives.pop() {
            match self.buffers.receive(&self.with, &mut self.slots, buffer) {
                Ok(()) => {}
                Err(Error::Again) => {
                    self.outgoing.receives.push(buffer);
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        let mut later: Vec<Rank> = Vec::new();
        for _ in 0..self.outgoing.queue.len() {
            let Some((to, bytes)) = self.outgoing.queue.pop_front() else { break };
            // To a peer that is gone nothing leaves.
            let Ok(address) = self.peers.address(to) else { continue };
            let sent = match later.contains(&to) {
                true => Err(Error::Again),
                false => self.post_message(address, &bytes),
            };
            match sent {
                Ok(()) => {}
                Err(Error::Again) => {
                    later.push(to);
                    self.outgoing.queue.push_back((to, bytes));
                }
                Err(e) => log::debug!("a message to rank {to} was refused: {e}"),
            }
        }
        Ok(())
    }

    fn post_message(&mut self, to: u64, bytes: &[u8]) -> Result<(), Error> {
        let (buffer, at, desc) = self.buffers.take(bytes)?;
        let started = self.start(Work::Buffer(buffer), |with, context| {
            post::send(with, at.cast_const(), bytes.len(), desc, to, context)
        });
        if started.is_err() {
            self.buffers.give(buffer);
        }
        started
    }

    /// Takes completions; returns whether there were any.
    pub(super) fn poll(&mut self) -> Result<bool, Error> {
        let mut some = false;
        // A peer that writes without end must not keep this call.
        for _ in 0..8 {
            let mut entries = [const { MaybeUninit::<sys::fi_cq_data_entry>::uninit() }; BATCH];
            // SAFETY: the queue is open, so its table is valid; it was opened with FI_CQ_FORMAT_DATA, and
            // there is room for BATCH entries.
            let n = unsafe {
                let Some(read) = (*(*self.with.cq.as_ptr()).ops).read else { return Ok(false) };
                read(self.with.cq.as_ptr(), entries.as_mut_ptr().cast(), BATCH)
            };
            match n {
                1.. => {}
                0 => return Ok(some),
                _ if n == -(sys::FI_EAGAIN as isize) => return Ok(some),
                _ if n == -(sys::FI_EAVAIL as isize) => {
                    self.failed()?;
                    some = true;
                    continue;
                }
                _ => {
                    let why = self.with.library.strerror(n as i64);
                    return Err(Error::System(format!("provider {}: {why}", self.with.limits.provider)));
                }
            }
            some = true;
            for entry in &entries[..(n as usize).min(BATCH)] {
                // SAFETY: the provider has filled in as many entries as it said.
                let entry = unsafe { entry.assume_init_ref() };
                self.completed(entry);
            }
            if (n as usize) < BATCH {
                break;
            }
        }
        Ok(some)
    }

    fn completed(&mut self, entry: &sys::fi_cq_data_entry) {
        let (from, data) = ((entry.data >> 32) as u32, entry.data as u32);
        if entry.flags & sys::FI_REMOTE_WRITE != 0 {
            return self.ready.push(Event::Notified { from, data });
        }
        match self.slots.end(entry.op_context) {
            // Not one of this process's operations, where the provider does not say more.
            Work::Free if entry.flags & sys::FI_REMOTE_CQ_DATA != 0 => {
                self.ready.push(Event::Notified { from, data });
            }
            Work::Free | Work::Dead(None) => {}
            Work::Move(_, token) => self.ready.push(Event::Done(token)),
            Work::Fetch(_, token, buffer) => {
                let bytes = self.buffers.bytes(buffer, 16);
                let old = bytes[8..].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
                self.buffers.give(buffer);
                self.ready.push(Event::Fetched(
                    token,
                    if cfg!(target_endian = "big") { old.swap_bytes() } else { old },
                ));
            }
            Work::Buffer(buffer) | Work::Dead(Some(buffer)) => self.buffers.give(buffer),
            Work::Receive(buffer) => {
                let bytes = self.buffers.bytes(buffer, entry.len);
                self.outgoing.receives.push(buffer);
                match Message::decode(&bytes) {
                    Some(message) => self.received(message),
                    None => log::warn!("a message that is none of this backend's was dropped"),
                }
            }
        }
    }

    fn received(&mut self, message: Message) {
        let from = message.from;
        if !message.card.is_empty() {
            if let Err(e) = self.introduce(from, &message.card) {
                log::warn!("rank {from}: {e}");
            }
        }
        if self.peers.get(from).is_none_or(|peer| peer.gone) {
            return log::warn!("a message of rank {from}, which is unknown or gone, was dropped");
        }
        match message.kind {
            Kind::Wake => {}
            // All that it has sent before is in the queue already.
            Kind::Bye => self.peers.ends(from, Instant::now()),
            Kind::Control => {
                let grant = |key: &Key| {
                    let remote = self.peers.grant(from, *key)?;
                    Some(Grant { remote, len: usize::try_from(key.len).ok()?, mapped: None, device: None })
                };
                let grants = message.grants.iter().filter_map(grant).collect();
                self.ready.push(Event::Control { from, bytes: message.bytes, grants });
            }
        }
    }

    /// Takes a completion with an error.
    #[cold]
    fn failed(&mut self) -> Result<(), Error> {
        let mut entry = sys::fi_cq_err_entry::default();
        // SAFETY: the queue is open; this slot was there in 1.0. The entry is at least as long as any version
        // of it, and has no buffer for err_data.
        let got = unsafe {
            let Some(readerr) = (*(*self.with.cq.as_ptr()).ops).readerr else { return Ok(()) };
            readerr(self.with.cq.as_ptr(), &mut entry, 0)
        };
        if got < 1 {
            return Ok(());
        }
        let why = self.with.library.strerror(entry.err.into());
        let error = Error::System(format!("provider {}: {why}", self.with.limits.provider));
        match self.slots.end(entry.op_context) {
            Work::Free | Work::Dead(None) => {}
            Work::Move(peer, token) => self.doubts.add(peer, token, error),
            Work::Fetch(peer, token, buffer) => {
                self.buffers.give(buffer);
                self.doubts.add(peer, token, error);
            }
            Work::Buffer(buffer) | Work::Dead(Some(buffer)) => self.buffers.give(buffer),
            Work::Receive(buffer) => self.outgoing.receives.push(buffer),
        }
        Ok(())
    }

    /// Reports peers that have ended, once what they did before was taken.
    pub(super) fn look_for_the_gone(&mut self) {
        while let Some(peer) = self.watch.as_ref().and_then(Watch::ended) {
            self.peers.ends(peer, Instant::now() + LAST);
        }
        while let Some(peer) = self.peers.due() {
            let failed = self.doubts.ended(peer);
            for token in self.slots.abandon(peer).into_iter().chain(failed) {
                self.ready.push(Event::Failed(token, Error::Gone(format!("rank {peer} has ended"))));
            }
            self.ready.push(Event::Gone { peer, why: format!("rank {peer} has ended, or has left the job") });
        }
        if !self.doubts.is_empty() {
            self.doubts.tell(&mut self.ready);
        }
    }

    /// Says so to all, and waits for what is under way.
    pub(super) fn leave(&mut self) {
        let deadline = Instant::now() + LEAVE;
        let done = |this: &mut Libfabric| {
            while Instant::now() < deadline && !(this.outgoing.is_empty() && this.slots.quiet()) {
                if this.poll().and(this.flush()).is_err() {
                    return;
                }
                this.look_for_the_gone();
                std::thread::yield_now();
            }
        };
        done(self);
        for peer in self.peers.ranks() {
            if peer != self.rank {
                let _ = self.queue(peer, Kind::Bye, Vec::new(), &[]);
            }
        }
        done(self);
    }
}

//! A fabric of which is counted what is asked of it.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use below::{
    About, Below, Buffer, Dest, Did, Keys, Lease, Message, NotSent, Offer, Piece, Poll, RailsWith, Remote,
    Stop, Usage, Waits,
};
use hmem::{Kind, Span};
use link_api::Way;

/// What was asked of all of them.
#[derive(Debug, Default)]
pub struct Counts {
    /// Bytes of messages, and messages.
    pub sent: AtomicU64,
    pub messages: AtomicU64,
    /// Bytes of accesses that have succeeded in being posted, and accesses.
    pub read: AtomicU64,
    pub reads: AtomicU64,
    /// How many of these are writes.
    pub writes: AtomicU64,
    /// What is lent now.
    pub lent: AtomicU64,
    /// How often all that is lent was ended.
    pub stops: AtomicU64,
    /// Ends of accesses are not reported yet, and those that came meanwhile.
    pub holds: AtomicBool,
    pub held: Mutex<Vec<Did>>,
    /// They are reported when a connection is stopped, as where its device had them all the time.
    pub hands_over: AtomicBool,
    /// It does not say that it writes with data and has atomics.
    pub hides_once: AtomicBool,
}

impl Counts {
    /// Messages, their bytes, reads, and their bytes, since the last time.
    pub fn take(&self) -> [u64; 4] {
        [&self.messages, &self.sent, &self.reads, &self.read].map(|n| n.swap(0, Relaxed))
    }
}

#[derive(Debug)]
pub struct Counted<F>(pub F, pub Arc<Counts>);

impl<F: Below> Below for Counted<F> {
    const LINK: &'static str = F::LINK;
    const CONNECTS: bool = F::CONNECTS;
    const SECONDS: bool = F::SECONDS;

    fn offer(&mut self) -> Result<Offer, String> {
        self.0.offer()
    }

    fn withdraw(&mut self, offer: u64) {
        self.0.withdraw(offer);
    }

    fn connect(&mut self, offer: u64, address: &[u8], peer: (IpAddr, bool)) -> Result<Dest, String> {
        self.0.connect(offer, address, peer)
    }

    fn about(&self) -> About<'_> {
        let (about, says) = (self.0.about(), !self.1.hides_once.load(Relaxed));
        About { data: about.data && says, atomics: about.atomics && says, ..about }
    }
    fn meet(&mut self, address: &[u8]) -> Result<Dest, String> {
        self.0.meet(address)
    }
    fn part(&mut self, dest: Dest) {
        self.0.part(dest);
    }
    fn send(&mut self, to: Dest, message: &Message<'_>) -> Result<(), NotSent> {
        self.0.send(to, message)?;
        self.1.messages.fetch_add(1, Relaxed);
        self.1.sent.fetch_add(message.total() as u64, Relaxed);
        Ok(())
    }
    fn keeps(&self, who: u64) -> bool {
        self.0.keeps(who)
    }
    fn poll(&mut self, how: Poll) -> Option<Did> {
        let mut held = self.1.held.lock().expect("no panic");
        if !self.1.holds.load(Relaxed) && !held.is_empty() {
            return Some(held.remove(0));
        }
        loop {
            match self.0.poll(how)? {
                did @ Did::Over(..) if self.1.holds.load(Relaxed) => held.push(did),
                did => return Some(did),
            }
        }
    }
    fn bytes(&self, buffer: Buffer) -> &[u8] {
        self.0.bytes(buffer)
    }
    fn give_back(&mut self, buffer: Buffer) {
        self.0.give_back(buffer);
    }
    fn try_wait(&mut self) -> bool {
        self.0.try_wait()
    }
    fn waits(&self) -> Waits {
        self.0.waits()
    }
    fn unwatch_lender(&mut self) {
        self.0.unwatch_lender();
    }
}

impl<F: Below> Remote for Counted<F> {
    fn reaches(&self, kind: Kind, usage: Usage) -> bool {
        self.0.reaches(kind, usage)
    }
    fn reaches_memory(&self, span: &Span, usage: Usage) -> bool {
        self.0.reaches_memory(span, usage)
    }
    fn registered(&self) -> String {
        self.0.registered()
    }
    fn lend(&mut self, to: Dest, span: Span, way: Way) -> Option<Lease> {
        let lease = self.0.lend(to, span, way)?;
        self.1.lent.fetch_add(1, Relaxed);
        Some(lease)
    }
    fn publish(&mut self, span: Span, read: bool, write: bool) -> Option<Lease> {
        let lease = self.0.publish(span, read, write)?;
        self.1.lent.fetch_add(1, Relaxed);
        Some(lease)
    }
    fn admit(&mut self, to: Dest, lease: &Lease, read: bool, write: bool) -> Option<u64> {
        self.0.admit(to, lease, read, write)
    }
    fn begin_rails(&mut self, to: Dest, begins: bool) {
        self.0.begin_rails(to, begins);
    }
    fn rails(&self, to: Dest) -> RailsWith {
        self.0.rails(to)
    }
    fn stripe(&mut self, to: Dest, lease: u64, span: Span, may: (bool, bool), published: bool) -> Keys {
        self.0.stripe(to, lease, span, may, published)
    }
    fn awaits_second(&self, to: Dest) -> bool {
        self.0.awaits_second(to)
    }
    fn second(&mut self, to: Dest) -> Option<Vec<u8>> {
        self.0.second(to)
    }
    fn join_second(&mut self, to: Dest, address: &[u8]) -> Result<Option<Vec<u8>>, String> {
        self.0.join_second(to, address)
    }
    fn end_lease(&mut self, number: u64, is_known: bool) -> bool {
        let is_over = self.0.end_lease(number, is_known);
        self.1.lent.fetch_sub(u64::from(is_over), Relaxed);
        is_over
    }
    fn access(&mut self, who: u64, piece: &Piece) -> Result<(), NotSent> {
        self.0.access(who, piece)?;
        self.1.reads.fetch_add(1, Relaxed);
        self.1.writes.fetch_add(u64::from(piece.way == Way::Put), Relaxed);
        self.1.read.fetch_add(piece.local.len() as u64, Relaxed);
        Ok(())
    }
    fn stop(&mut self, what: Stop) -> bool {
        self.1.stops.fetch_add(u64::from(what == Stop::Leases), Relaxed);
        if matches!(what, Stop::Connection(_)) && self.1.hands_over.load(Relaxed) {
            self.1.holds.store(false, Relaxed);
        }
        self.0.stop(what)
    }
}

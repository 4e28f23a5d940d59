//! How second queue pairs are made, connected and closed; `manager`: how those of iWARP are connected, which
//! `address` announces, at a `place`; `connecting`: the call that does it, by a thread of a `crew`.

mod address;
mod connecting;
mod crew;
mod hand_over;
pub(crate) mod manager;
pub(crate) mod place;

use std::net::IpAddr;

use rdma_sys::{Access, Error, Pd, Qp, QpInit};

use crate::address::Address;
use crate::joining::manager::News;
use crate::pair::{Pair, State};
use crate::registered::NO_DOMAIN;
use crate::seconds::{Heard, Refusal};
use crate::state::{Objects, Verbs};

/// A refusal as it is said of memory. One that is not for want of something says nothing of other peers.
fn refused(e: &Error) -> Refusal {
    let errno = if register::is_for_now(e.errno()) { e.errno() } else { NO_DOMAIN.1 };
    (e.call().unwrap_or(NO_DOMAIN.0), errno)
}

/// The second queue pairs of a port.
pub(crate) struct Joining<'a>(pub(crate) &'a mut Verbs);

impl Joining<'_> {
    /// Makes a queue pair in a domain of its own: its number, and what is announced of it.
    fn make(&mut self, first: u32) -> Result<(u32, Vec<u8>), Refusal> {
        let made = self.try_to_make(first);
        if made.is_err() && self.0.end_closing() { self.try_to_make(first) } else { made }
    }

    fn try_to_make(&mut self, first: u32) -> Result<(u32, Vec<u8>), Refusal> {
        let number = self.make_apart(Some(first))?;
        self.0.objects.seconds.offer(first, number);
        let pair = self.0.objects.pairs.get(number).ok_or(NO_DOMAIN)?;
        Ok((number, self.0.own_address(pair).encode()))
    }

    /// Makes a queue pair that is alone in a domain: its number. A second one of this peer's or, `None`, one
    /// of a rail.
    pub(crate) fn make_apart(&mut self, first: Option<u32>) -> Result<u32, Refusal> {
        // Peers are not to go without a first one for want of what a second one has.
        if !self.0.reserve(self.0.half) {
            return Err(("its completion queue", libc::ENOSPC));
        }
        self.make_reserved(first).inspect_err(|_| self.0.credits += 1)
    }

    fn make_reserved(&mut self, first: Option<u32>) -> Result<u32, Refusal> {
        let Verbs { objects, route, sizes, .. } = &mut *self.0;
        let Objects { pairs, seconds, registered, cq, context, .. } = &mut **objects;
        let pd = Pd::new(context).map_err(|e| refused(&e))?;
        // Nothing is received by it, but a queue of no receives is not what all drivers have.
        let init = QpInit { max_recv_wr: 1, max_recv_sge: 1, ..sizes.init() };
        let qp = Qp::new(&pd, cq, cq, None, init).map_err(|e| refused(&e))?;
        let access = Access::REMOTE_READ.and(Access::REMOTE_WRITE);
        qp.init(route.port.number, 0, access).map_err(|e| refused(&e))?;
        let psn = Address::draw_psn().map_err(|_| NO_DOMAIN)?;
        let mut pair = Pair::new(qp, psn);
        // Of a shared queue it has none.
        pair.is_last = true;
        // A driver repeats reads that are over, too, also once the owner of the memory has heard of that by
        // the first queue pair.
        pair.delays = sizes.repeats;
        let number = pairs.add(|_| Ok(pair)).map_err(|_| ("its queue pairs", libc::ENOSPC))?;
        let domain = seconds.add_domain(number, first, pd.clone());
        let pair = pairs.get(number).ok_or(NO_DOMAIN)?;
        registered.device().add_domain(domain, &pd, Some(pair.qp.breaker()));
        Ok(number)
    }

    /// There is none with this peer, which has announced something of its own, or not.
    fn refuse(&mut self, first: u32, why: Refusal, has_heard: bool) {
        let (call, errno) = why;
        log::info!("no second queue pair with a peer, for memory without windows: {call}: errno {errno}");
        self.part(first);
        self.0.objects.seconds.refuse(first, why, has_heard);
    }

    /// What is announced to a peer that is to have one.
    pub(crate) fn announce(&mut self, first: u32) -> Option<Vec<u8>> {
        if !self.0.objects.seconds.is_wanted(first) {
            return None;
        }
        self.make(first).map_err(|why| self.refuse(first, why, false)).ok().map(|(_, own)| own)
    }

    /// A peer has announced its own, or, by no bytes, that it has none: what is announced to it.
    pub(crate) fn join(&mut self, first: u32, address: &[u8]) -> Result<Option<Vec<u8>>, String> {
        let none = Ok(Some(Vec::new()));
        if self.0.objects.manager.is_some() {
            return Err("it announces a second queue pair, which iWARP has not".into());
        }
        match self.0.objects.seconds.hear(first, address.is_empty()) {
            Heard::Make => {
                let far = self.0.far(address)?;
                match self
                    .make(first)
                    .and_then(|(second, own)| self.connect(first, second, &far).map(|()| own))
                {
                    Ok(own) => return Ok(Some(own)),
                    Err(why) => self.refuse(first, why, true),
                }
                none
            }
            Heard::Connect(second) => {
                let far = self.0.far(address)?;
                if let Err((call, errno)) = self.connect(first, second, &far) {
                    // The peer has connected its own, and may use it.
                    self.0.fail(first, None, format!("{call}: errno {errno}: of a second queue pair"));
                }
                Ok(None)
            }
            Heard::Refused => {
                self.refuse(first, ("the peer's second queue pair", libc::EAGAIN), true);
                Ok(None)
            }
            Heard::Decline => none,
            Heard::Nonsense => Err("it announces a second queue pair where none was to be".into()),
        }
    }

    fn connect(&mut self, first: u32, second: u32, far: &Address) -> Result<(), Refusal> {
        self.0.join(second, far).map_err(|e| refused(&e))?;
        self.0.objects.seconds.note_connected(first, second);
        Ok(())
    }

    /// A peer is not needed any more: its second queue pair goes, and what was registered for it there.
    pub(crate) fn part(&mut self, first: u32) {
        let (second, registrations) = self.0.objects.seconds.part(first);
        for number in registrations {
            below::Remote::end_lease(self.0, number, true);
        }
        if let Some(second) = second {
            self.0.part_one(second);
        }
    }

    /// Whether the second queue pair of a peer can be used.
    pub(crate) fn is_usable(&self, first: u32) -> bool {
        let Objects { seconds, pairs, .. } = &*self.0.objects;
        let pair = seconds.connected(first).and_then(|(second, _)| pairs.get(second));
        pair.is_some_and(|pair| pair.state == State::Connected)
    }
}

/// The queue pairs of a port that a connection manager connects, if one does.
pub(crate) struct Managed<'a>(pub(crate) &'a mut Verbs);

/// Most events that are taken by one look: a stranger may bring as many as it likes.
const MOST: usize = 64;

impl Managed<'_> {
    /// What is announced of a queue pair that was made, with a nonce that was drawn for it.
    pub(crate) fn announce(&mut self, number: u32, nonce: [u8; 16]) -> Result<Vec<u8>, String> {
        let Objects { manager, pairs, .. } = &mut *self.0.objects;
        let (Some(manager), Some(pair)) = (manager, pairs.get(number)) else {
            return Err("no queue pair".into());
        };
        Ok(manager.announce(number, pair.qp.number(), nonce))
    }

    /// Has a queue pair that was announced connected, to what the peer has announced, whose endpoint has this
    /// address. One of the two `begins`.
    pub(crate) fn connect(
        &mut self,
        number: u32,
        address: &[u8],
        peer: (IpAddr, bool),
    ) -> Result<(), String> {
        let Objects { manager, pairs, .. } = &mut *self.0.objects;
        let pair = pairs.get_mut(number).filter(|pair| pair.state == State::Offered);
        let (Some(manager), Some(pair)) = (manager, pair) else { return Err("no queue pair".into()) };
        manager.agree(number, address, peer)?;
        pair.state = State::Joining;
        Ok(())
    }

    /// Something is to be sent by a queue pair that is not connected yet.
    pub(crate) fn begin(&mut self, number: u32) -> Result<(), String> {
        self.0.objects.manager.as_mut().map_or(Ok(()), |manager| manager.begin(number))
    }

    /// A queue pair is not to be connected, or not any more.
    pub(crate) fn end(&mut self, number: u32) {
        if let Some(manager) = &mut self.0.objects.manager {
            manager.end(number);
        }
    }

    /// A queue pair is destroyed: at once, or when what connects it has returned.
    pub(crate) fn destroy(&mut self, number: u32, qp: Qp) {
        if let Some(manager) = &mut self.0.objects.manager {
            manager.destroy(number, qp);
        }
    }

    /// The same of all that are being connected: the port is closed.
    pub(crate) fn leave(&mut self) {
        let Objects { manager: Some(manager), pairs, .. } = &mut *self.0.objects else { return };
        for number in manager.unanswered() {
            if let Some(pair) = pairs.remove(number) {
                manager.destroy(number, pair.qp);
            }
        }
    }

    /// Takes what has become of them; whether something has.
    pub(crate) fn read(&mut self) -> bool {
        for nth in 0..MOST {
            let Some(manager) = &mut self.0.objects.manager else { return false };
            match manager.next() {
                Ok(None) => return nth > 0,
                Ok(Some(None)) => {}
                Ok(Some(Some(News::Connected(number)))) => {
                    let pair = self.0.objects.pairs.get_mut(number);
                    if let Some(pair) = pair.filter(|pair| pair.state == State::Joining) {
                        pair.state = State::Connected;
                    }
                }
                Ok(Some(Some(News::Lost(number, why)))) => self.0.fail(number, None, why),
                Err(why) => {
                    self.0.dead = Some(why);
                    return true;
                }
            }
        }
        true
    }
}

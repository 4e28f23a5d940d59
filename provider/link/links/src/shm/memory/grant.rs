//! What allows a process to access memory of a peer, and the words that say that it does.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use ipc::access;
use ipc::fence::full_fence;
use link_api::{Grant, NoDirect};

use crate::shm::channel::segment::REVOCABLE;
use crate::shm::peer::Peer;

/// In the word of an access: to a registration at that place of the owner's table.
pub(in crate::shm) const REGION: u32 = 1 << 31;
/// To memory that the caller has agreed on with the peer by other means.
const AGREED: u32 = 1 << 30;

/// Place and generation of a request in its owner's pool, if it can be taken back.
pub(in crate::shm) fn place(request: u64) -> Option<(u32, u32)> {
    let (slot, generation) = (request as u32, (request >> 32) as u32);
    (slot < REVOCABLE).then_some((slot, generation))
}

impl Peer {
    /// Begins an access; the word that says so, to be left. Or why there is none to be.
    #[inline]
    pub(in crate::shm) fn enter(&self, grant: Grant) -> Result<&AtomicU32, NoDirect> {
        let (inside, allowed) = match grant {
            Grant::Request(name) => {
                let mem = self.inb.as_ref().ok_or(NoDirect::Fault)?.rx.mem();
                let (slot, generation) = place(name).ok_or(NoDirect::Memory)?;
                let inside = mem.rx_inside();
                let allowed =
                    || mem.tx_closed().load(Acquire) == 0 && mem.revoked(slot).load(Acquire) != generation;
                (inside, access::enter(inside, slot + 1, full_fence, allowed))
            }
            Grant::Region(ticket) => {
                let out = self.out.as_ref().ok_or(NoDirect::Fault)?;
                let table = out.mr_table.as_ref().ok_or(NoDirect::Memory)?;
                let (mem, inside) = (out.tx.mem(), out.tx.mem().tx_inside());
                let allowed = || mem.rx_closed().load(Acquire) == 0 && table.shows(ticket);
                if !access::enter(inside, REGION | ticket.place, full_fence, allowed) {
                    // It may only have changed: the owner knows.
                    return Err(NoDirect::Memory);
                }
                (inside, true)
            }
            Grant::Agreed => {
                let (inside, closed) = match (&self.inb, &self.out) {
                    (Some(inb), _) => (inb.rx.mem().rx_inside(), inb.rx.mem().tx_closed()),
                    (None, Some(out)) => (out.tx.mem().tx_inside(), out.tx.mem().rx_closed()),
                    (None, None) => return Err(NoDirect::Fault),
                };
                (inside, access::enter(inside, AGREED, full_fence, || closed.load(Acquire) == 0))
            }
        };
        if allowed { Ok(inside) } else { Err(NoDirect::Revoked) }
    }

    /// A device begins a copy that a frame of the peer's allows.
    pub(in crate::shm) fn enter_flight(&self, request: u64) -> Result<(), NoDirect> {
        let mem = self.inb.as_ref().ok_or(NoDirect::Fault)?.rx.mem();
        let (slot, generation) = place(request).ok_or(NoDirect::Never)?;
        let flights = mem.rx_flights();
        flights.store(flights.load(Relaxed).wrapping_add(1), Release);
        full_fence();
        if mem.tx_closed().load(Acquire) != 0 || mem.revoked(slot).load(Acquire) == generation {
            self.leave_flight();
            return Err(NoDirect::Revoked);
        }
        Ok(())
    }

    /// Such a copy is over.
    pub(in crate::shm) fn leave_flight(&self) {
        if let Some(inb) = &self.inb {
            let flights = inb.rx.mem().rx_flights();
            flights.store(flights.load(Relaxed).saturating_sub(1), Release);
        }
    }

    /// A request of ours that was revoked may be named again.
    pub(in crate::shm) fn renew_request(&self, request: u64) {
        let (Some((slot, generation)), Some(out)) = (place(request), &self.out) else { return };
        let word = out.tx.mem().revoked(slot);
        if word.load(Relaxed) == generation {
            word.store(0, Release);
        }
    }
}

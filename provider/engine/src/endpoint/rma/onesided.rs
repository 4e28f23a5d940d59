//! RMA that needs nothing of its target.
//!
//! Peers see each other's registrations ([`RmaLink::published`]). So a read, and a write that is large or
//! that is to be delivered when it completes or is counted, is one direct copy, made in the call that posts
//! it. Another small write goes into a frame, which takes no time at all; since the registration allows it,
//! it completes at once, too.
//!
//! What is so large that both had better copy is copied cooperatively (`coop.rs`): the target copies pieces
//! while it is there, and the initiator copies what it does not.
//!
//! What a target has to see (remote CQ data, counters), what is asked for in order, and what cannot be
//! reached directly goes the way of frames. So does what is posted behind a frame that the target does not
//! answer, until a later one has been answered: it would overtake the former.

use hmem::total;
use wire::{Aux, Flags, Head, Op as WireOp, Seg};
use zerocopy::IntoBytes;

use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::endpoint::net::taken;
use crate::endpoint::parts::request::Done;
use crate::proto::{Plan, Tried};
use crate::types::*;
use link_api::{Direct, Grant, How, PeerId, Region, RmaLink, Side};

/// The place that an operation names, if the peer exposes it for that.
fn place(memory: &Region, addr: u64, len: u64, write: bool) -> Option<Seg> {
    let allowed = if write { memory.write } else { memory.read };
    let off = addr.checked_sub(if memory.virt_addr { memory.addr } else { 0 })?;
    let inside = off.checked_add(len).is_some_and(|end| end <= memory.len);
    let first = memory.addr.checked_add(off)?;
    (allowed && !memory.target_must_observe && inside).then_some(Seg { addr: first.into(), len: len.into() })
}

impl<L: RmaLink> Endpoint<L> {
    /// Whether the target need not see an access: it is in no order, and reports nothing there.
    #[inline(always)]
    pub(in crate::endpoint) fn is_one_sided(&self, core: &Core, op: &Rma<'_>) -> bool {
        !core.config.rma_order
            && op.data.is_none()
            && op.remote.len() == 1
            && !op.flags.contains(OpFlags::FENCE)
    }

    /// Does the operation as planned, without the target or together with it. Otherwise nothing has happened,
    /// and this is what was tried in vain.
    #[inline]
    pub(in crate::endpoint) fn one_sided(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        op: &Rma<'_>,
        plan: Plan,
        done: &Done,
    ) -> Result<(), Tried> {
        let ([seg], len) = (op.remote, total(op.iov)) else { return Err(Tried::ONE_SIDED) };
        let (memory, version) = self.net.link.published(peer, seg.key.get()).ok_or(Tried::ONE_SIDED)?;
        let there = place(&memory, seg.addr.get(), len as u64, op.write).ok_or(Tried::ONE_SIDED)?;
        let grant = Grant::Region(version);
        let is_done = match plan {
            Plan::OneSidedFrame => self.write_unacked(peer, op, seg),
            Plan::Cooperative(cut) => {
                let begun = self.coop_rma(core, peer, op, (there, version), cut, *done);
                return if begun { Ok(()) } else { Err(Tried::COOPERATIVE) };
            }
            _ if op.write => self.net.link.put(peer, &Direct::new(grant, &[there], op.iov, len)).is_ok(),
            _ => self.net.link.get(peer, &Direct::new(grant, &[there], op.iov, len)).is_ok(),
        };
        if !is_done {
            return Err(Tried::ONE_SIDED);
        }
        if plan == Plan::InCall {
            self.net.peer(peer).hints.helper().works();
        }
        let how = if plan == Plan::OneSidedFrame { How::Eager } else { How::Direct };
        self.net.meter(peer, Side::Ours, how, len);
        self.bind.finish(core, done, len, None);
        Ok(())
    }

    /// Writes inside a frame that is not answered.
    #[inline(always)]
    fn write_unacked(&mut self, peer: PeerId, op: &Rma<'_>, seg: &wire::RmaSeg) -> bool {
        const HEADERS: usize = Head::LEN + size_of::<wire::RmaSeg>();
        let mut bytes = [0; HEADERS];
        let head = Head::new(WireOp::Write, Flags::empty(), Aux::rma(1, 0), 0, 0);
        bytes[..Head::LEN].copy_from_slice(head.as_bytes());
        bytes[Head::LEN..].copy_from_slice(seg.as_bytes());
        let sent = taken(self.net.link.send(peer, &bytes, op.iov, 0, total(op.iov))).is_ok();
        if sent {
            self.net.sent_unacked(peer);
        }
        sent
    }
}

#[cfg(test)]
mod bounds_tests;

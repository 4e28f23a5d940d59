//! RMA that needs nothing of its target.
//!
//! Peers see each other's registrations ([`Link::exposed`]). So a read, and a write that is large or
//! that is to be delivered when it completes, is one direct copy, made in the call that posts it. A
//! small write goes into a frame, which takes no time at all; since the registration allows it, it
//! completes at once, too.
//!
//! What is so large that both had better copy is shared (`share.rs`): the target copies pieces while it
//! is there, and the initiator copies what it does not.
//!
//! What a target has to see (remote CQ data, counters), what is asked for in order, and what cannot be
//! reached directly goes the way of frames. So does what is posted behind a frame that nobody will
//! answer, until a later one has been answered: it would overtake the former.

use hmem::total;
use wire::{Aux, Flags, Head, Op as WireOp, Seg};
use zerocopy::IntoBytes;

use super::{Done, Endpoint};
use crate::core::Core;
use crate::proto::Proto;
use crate::types::*;
use link_api::{Grant, PeerId, Region, RmaLink};

/// The place that an operation names, if the peer exposes it for that.
fn place(memory: &Region, addr: u64, len: u64, write: bool) -> Option<Seg> {
    let allowed = if write { memory.write } else { memory.read };
    let off = addr.checked_sub(if memory.virt_addr { memory.addr } else { 0 })?;
    let inside = off.checked_add(len).is_some_and(|end| end <= memory.len);
    let first = memory.addr.checked_add(off)?;
    (allowed && !memory.target_must_observe && inside).then_some(Seg { addr: first.into(), len: len.into() })
}

impl<L: RmaLink> Endpoint<L> {
    /// Does the operation here and now. `false`: nothing has happened, and the target has to help.
    pub(super) fn alone(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        op: &Rma<'_>,
        (proto, in_a_row): (Proto, bool),
        done: &Done,
    ) -> bool {
        let [seg] = op.remote else { return false };
        let len = total(op.iov);
        let state = self.peer(peer);
        if core.config.rma_order
            || len == 0
            || op.data.is_some()
            || op.flags.contains(OpFlags::FENCE)
            || state.frames_only
        {
            return false;
        }
        let late = state.loose > 0;
        let small = op.write && proto == Proto::Eager && !op.flags.contains(OpFlags::DELIVERY);
        if (late && !small) || !hmem::can(op.iov, hmem::Caps::CMA) {
            return false;
        }
        let Some((memory, ticket)) = self.link.published(peer, seg.key.get()) else { return false };
        let Some(there) = place(&memory, seg.addr.get(), len as u64, op.write) else { return false };
        if !small && self.share_rma(core, peer, op, (there, ticket), in_a_row, *done) {
            return true;
        }
        let copied = if small {
            const HEADERS: usize = Head::LEN + size_of::<wire::RmaSeg>();
            let mut bytes = [0; HEADERS];
            let head = Head::new(WireOp::Write, Flags::empty(), Aux::rma(1, 0), 0, 0);
            bytes[..Head::LEN].copy_from_slice(head.as_bytes());
            bytes[Head::LEN..].copy_from_slice(seg.as_bytes());
            let sent = self.link.send(peer, &bytes, op.iov, 0, len).is_ok();
            if sent {
                self.loosen(peer);
            }
            sent
        } else if op.write {
            self.link.put(peer, Grant::Region(ticket), &[there], 0, op.iov, 0, len).is_ok()
        } else {
            self.link.get(peer, Grant::Region(ticket), &[there], 0, op.iov, 0, len).is_ok()
        };
        if copied {
            if !small {
                self.peer(peer).shares.may();
            }
            self.finish(core, done, len, None);
        }
        copied
    }

    /// A frame went out that accesses memory and that nobody will answer.
    pub(super) fn loosen(&mut self, peer: PeerId) {
        let state = self.peer(peer);
        state.posted += 1;
        state.loose = state.posted;
        state.unanswered += 1;
    }
}

#[cfg(test)]
mod bounds_tests;

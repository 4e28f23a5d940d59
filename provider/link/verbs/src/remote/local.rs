//! The memory of this side in an access.

use std::time::Instant;

use below::{NotSent, Piece};
use hmem::{Caps, Span};
use link_api::Way;
use rdma_sys::ibv_sge;
use register::Uses;

use crate::bounces::EACH;
use crate::pair::{Access, Posted};
use crate::seconds::Domain;
use crate::state::Objects;

/// The memory of an access here.
#[derive(Debug)]
pub(crate) struct Local {
    pub(super) bytes: ibv_sge,
    pub(super) is_inline: bool,
    pub(super) posted: Posted,
}

impl Local {
    /// So many bytes from this address on, which go inline.
    pub(super) fn inline(op: u64, addr: u64, len: usize) -> Local {
        let access = Some(Access { op, ..Access::default() });
        let bytes = ibv_sge { addr, length: len as u32, lkey: 0 };
        Local { bytes, is_inline: true, posted: Posted { access, ..Posted::default() } }
    }
}

impl Objects {
    /// Finds the means for memory of this side in an access that is not inline.
    pub(super) fn find_local(
        &mut self,
        op: u64,
        piece: &Piece,
        (domain, repeats): (Option<Domain>, bool),
    ) -> Result<Local, NotSent> {
        let (local, is_read) = (piece.local, piece.way == Way::Get);
        let mut access = Access { op, ..Access::default() };
        let in_domain = domain.as_ref().map(|domain| (domain.id, &domain.pd));
        let id = in_domain.map_or(0, |(id, _)| id);
        let uses = Uses { local_write: is_read, domain: id, ..Uses::default() };
        // To register a device's takes longer than to copy it. What is done once may be injected.
        let mut shared = || self.registered.find(local, uses).map(|(number, key)| (number, key.sge(local)));
        let is_copied = local.len() <= EACH && (piece.once.is_some() || !local.can(Caps::DEVICE));
        let shared = if is_copied { None } else { shared() };
        if local.len() <= EACH && shared.is_none() {
            let found = self.bounces.take(local.len(), in_domain).map_err(NotSent::Error)?;
            let (place, bytes) = found.ok_or(NotSent::Busy)?;
            if is_read {
                access.into = Some(local);
            } else if hmem::read(&[local], 0, &mut self.bounces.bytes_mut(place)[..local.len()]) < local.len()
            {
                self.bounces.give_back(place);
                return Err(NotSent::Fault);
            }
            let posted = Posted { place: Some(place), access: Some(access), ..Posted::default() };
            return Ok(Local { bytes, is_inline: false, posted });
        }
        let (number, bytes) = match shared {
            Some(found) => {
                self.registered.begin(found.0);
                found
            }
            None => self.register_for_one(local, uses)?,
        };
        access.held = Some(number);
        if repeats && !is_read {
            self.registered.begin(number);
            access.late = Some(number);
        }
        let posted = Posted { access: Some(access), ..Posted::default() };
        Ok(Local { bytes, is_inline: false, posted })
    }

    /// Registers memory for one request, whose end is that of the registration, unless that is on demand.
    fn register_for_one(&mut self, local: Span, uses: Uses) -> Result<(u64, ibv_sge), NotSent> {
        if self.registered.has_no_room(Instant::now()) {
            return Err(NotSent::Busy);
        }
        let made = self.registered.register(local, uses, false).map(|(number, key)| (number, key.sge(local)));
        let (number, bytes) = match made {
            Ok(made) => made,
            // Room for it may come where a request ends; what the program has registered may stay for good.
            Err(refusals)
                if self.registered.is_used()
                    && refusals.iter().all(|r| r.is_for_now() || r.way == Some(register::Way::OnDemand)) =>
            {
                self.registered.note_no_room(Instant::now());
                return Err(NotSent::Busy);
            }
            Err(refusals) => {
                let all: Vec<String> = refusals.iter().map(ToString::to_string).collect();
                return Err(NotSent::Error(all.join("; ")));
            }
        };
        self.registered.begin(number);
        // With the request under way this cannot fail yet.
        let _ = self.registered.let_go(number);
        Ok((number, bytes))
    }
}

//! Registrations.

use super::Domain;
use crate::config::{MrId, Reg};
use crate::types::*;
use link_api::{InUse, Revoke, RmaLink};

impl<L: RmaLink> Domain<L> {
    /// Memory that is registered, here and at peers, stays until its registration is closed, so that long
    /// writes may be got by their targets. Where a target's does not ([`hmem::Span::stays`]), they come in
    /// frames all the same.
    pub fn set_lasting(&mut self) {
        self.core.lasting = true;
    }

    /// Registers memory; returns its name here and its key.
    pub fn mr_reg(&mut self, reg: &Reg<'_>) -> Result<(MrId, u64), Error> {
        let made = self.core.mrs.register(reg)?;
        self.expose(made.0);
        Ok(made)
    }

    fn expose(&mut self, mr: MrId) {
        for (_, ep) in self.eps.iter_mut() {
            ep.expose(&self.core, mr);
        }
    }

    /// Has counters count what peers do to a registration.
    pub fn mr_bind_cntr(&mut self, mr: MrId, remote_read: Option<CntrId>, remote_write: Option<CntrId>) {
        if let Some(mr) = self.core.mrs.get_mut(mr) {
            mr.remote_read = remote_read.or(mr.remote_read);
            mr.remote_write = remote_write.or(mr.remote_write);
        }
        self.expose(mr);
    }

    /// Ends a registration: from now on its key is unknown, and what peers had under way with it fails on
    /// both sides, whatever the answer. When it returns `Ok`, the memory is not accessed any more on account
    /// of it.
    /// [`Error::Busy`]: a peer is stopped while it accesses it, so that the call is to be made again; until
    /// then no other registration gets the key.
    pub fn mr_close(&mut self, mr: MrId) -> Result<(), Error> {
        let key = self.core.mrs.end(mr)?;
        let mut outcome = Ok(());
        for (_, ep) in self.eps.iter_mut() {
            let concealed = key.map_or(Ok(()), |key| ep.net.link.revoke(Revoke::Region(key)));
            let ended = ep.end_accesses(&mut self.core, mr);
            outcome = outcome.and(concealed).and(ended);
        }
        if let Err(InUse) = outcome {
            // Peers that take memory back likewise wait for an answer.
            self.progress();
            return Err(Error::Busy);
        }
        self.core.mrs.close(mr);
        Ok(())
    }
}

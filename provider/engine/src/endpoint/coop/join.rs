//! Cooperative copies that the peer opens, of which this side copies pieces.

use hmem::total;
use wire::{Head, Pieces, RmaSeg, Status};

use crate::core::{Core, Spans};
use crate::endpoint::Endpoint;
use crate::endpoint::coop_copy::{Coop, CoopHelp};
use crate::endpoint::malformed::{Fields, Handled, Malformed, parse_segs};
use crate::endpoint::parts::request::{In, Out, Request};
use crate::proto::Memory;
use crate::types::{Access, What};
use link_api::{PeerId, RmaLink, Way};
use xfer::{LAST, MAX_HELPED};

impl<L: RmaLink> Endpoint<L> {
    /// A peer has begun to read or write memory here, and this side may help.
    pub(in crate::endpoint) fn on_coop_rma(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let n = parse_segs(head.aux.get())?;
        let about: Pieces = fields.take()?;
        let named: RmaSeg = fields.take()?;
        let segs = fields.take_segs(n)?;
        let write = head.data.get() == 1;
        let want = if write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        // If it has changed meanwhile, it does not concern this side; the peer finds that out by itself.
        let Ok(reached) = core.reach(&[named], want) else { return Ok(()) };
        let way = if write { Way::Get } else { Way::Put };
        let coop = Coop::helping(peer, &about, segs, head.tag.get(), way).ok_or(Malformed::Pieces)?;
        // The last bytes of a write are the initiator's.
        let behind = if write { LAST } else { 0 };
        if !(coop.copy.len..=coop.copy.len.saturating_add(behind)).contains(&reached.len)
            || !self.net.peer(peer).flow.limits().is_sync()
            || Memory::of(&reached.iov) != Memory::Host
        {
            return Ok(());
        }
        let iov = Spans::from(&reached.iov[..]);
        let requests = &mut self.requests.pool;
        let mut is_theirs =
            |name: &u64| matches!(requests.get_mut(*name), Some(Request::CoopHelp(l)) if l.peer == peer);
        if self.requests.queues.coop().iter().filter(|name| is_theirs(name)).count() >= MAX_HELPED {
            return Ok(());
        }
        let lent = CoopHelp { peer, iov, coop: Box::new(coop), mrs: reached.mrs };
        let name = self.requests.pool.insert(Request::CoopHelp(lent));
        self.coop_join(core, name);
        Ok(())
    }

    /// The taker of what this side sends has begun, and this side may help.
    pub(in crate::endpoint) fn on_coop_fetch(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        fields: &mut Fields<'_>,
    ) -> Handled {
        let n = parse_segs(head.aux.get())?;
        let about: Pieces = fields.take()?;
        let segs = fields.take_segs(n)?;
        let name = head.tag.get();
        let is_sync = self.net.peer(peer).flow.limits().is_sync();
        let in_order = core.config.rma_order;
        if self.requests.is_withdrawn(peer, name) {
            return Ok(());
        }
        let Request::Out(out) = self.requests.named(peer, name)? else { return Err(Malformed::Unfit) };
        let coop = Coop::helping(peer, &about, segs, head.data.get(), Way::Put).ok_or(Malformed::Pieces)?;
        let fits = out.asked.is_none()
            && out.coop.is_none()
            && coop.copy.len <= total(&out.iov)
            && !out.done_as.what.intersects(What::READ | What::ATOMIC);
        if !fits {
            return Err(Malformed::Unfit);
        }
        if !is_sync
            || (in_order && out.done_as.what.contains(What::RMA))
            || Memory::of(&out.iov) != Memory::Host
        {
            return Ok(());
        }
        out.coop = Some(Box::new(coop));
        self.coop_join(core, name);
        Ok(())
    }

    /// The other side has copied so many pieces, and there are no more.
    pub(in crate::endpoint) fn on_coop_done(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
    ) -> Handled {
        let name = head.tag.get();
        let coop = match self.requests.named(peer, name)? {
            Request::In(In { coop: Some(coop), .. }) | Request::Out(Out { coop: Some(coop), .. }) => coop,
            _ => return Err(Malformed::Unfit),
        };
        if !coop.is_owner() || coop.reported.is_some() {
            return Err(Malformed::Unfit);
        }
        coop.reported = Some((Status::from_u16(head.aux.get()), head.data.get()));
        // Otherwise our own pieces come first.
        if !self.requests.queues.coop().contains(&name) {
            self.coop_end(core, name);
        }
        Ok(())
    }
}

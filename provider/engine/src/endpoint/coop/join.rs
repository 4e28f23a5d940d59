//! Cooperative copies that the peer opens, of which this side copies pieces.

use hmem::total;
use wire::{Head, Pieces, RmaSeg, Status};

use crate::core::{Core, Spans};
use crate::endpoint::Endpoint;
use crate::endpoint::coop_copy::{Lent, Part};
use crate::endpoint::malformed::{Fields, Handled, Malformed, parse_segs};
use crate::endpoint::request::{In, Out, Request};
use crate::proto::Memory;
use crate::types::{Access, What};
use link_api::{PeerId, RmaLink, Way};
use xfer::MAX_HELPED;

impl<L: RmaLink> Endpoint<L> {
    /// A peer has begun to read or write memory here, and we may help.
    pub(in crate::endpoint) fn on_lend(
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
        // If it has changed meanwhile, it does not concern us; the peer finds that out by itself.
        let Ok(reached) = core.reach(&[named], want) else { return Ok(()) };
        let way = if write { Way::Get } else { Way::Put };
        let part = Part::helping(peer, &about, segs, head.tag.get(), way).ok_or(Malformed::Pieces)?;
        if part.copy.len != reached.len
            || !self.peer(peer).limits.is_sync()
            || Memory::of(&reached.iov) != Memory::Host
        {
            return Ok(());
        }
        let iov = Spans::from(&reached.iov[..]);
        let requests = &mut self.requests;
        let mut is_theirs =
            |name: &u64| matches!(requests.get_mut(*name), Some(Request::Lent(l)) if l.peer == peer);
        if self.shares.iter().filter(|name| is_theirs(name)).count() >= MAX_HELPED {
            return Ok(());
        }
        let lent = Lent { peer, iov, part: Box::new(part), mrs: reached.mrs };
        let name = self.requests.insert(Request::Lent(lent));
        self.share_in(core, name);
        Ok(())
    }

    /// The taker of what we send has begun, and we may help.
    pub(in crate::endpoint) fn on_share(
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
        let is_sync = self.peer(peer).limits.is_sync();
        let in_order = core.config.rma_order;
        if self.is_withdrawn(peer, name) {
            return Ok(());
        }
        let Request::Out(out) = self.named(peer, name)? else { return Err(Malformed::Unfit) };
        let part = Part::helping(peer, &about, segs, head.data.get(), Way::Put).ok_or(Malformed::Pieces)?;
        let fits = out.asked.is_none()
            && out.shared.is_none()
            && part.copy.len <= total(&out.iov)
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
        out.shared = Some(Box::new(part));
        self.share_in(core, name);
        Ok(())
    }

    /// The other side has copied so many pieces, and there are no more.
    pub(in crate::endpoint) fn on_shared(&mut self, core: &mut Core, peer: PeerId, head: &Head) -> Handled {
        let name = head.tag.get();
        let part = match self.named(peer, name)? {
            Request::In(In { shared: Some(part), .. }) | Request::Out(Out { shared: Some(part), .. }) => part,
            _ => return Err(Malformed::Unfit),
        };
        if !part.is_owner() || part.said.is_some() {
            return Err(Malformed::Unfit);
        }
        part.said = Some((Status::from_u16(head.aux.get()), head.data.get()));
        // Otherwise our own pieces come first.
        if !self.shares.contains(&name) {
            self.share_end(core, name);
        }
        Ok(())
    }
}

//! Cooperative copies that the peer opens, of which this side copies pieces.

use arrayvec::ArrayVec;
use hmem::total;
use wire::{Head, MAX_SEGS, Pieces, RmaSeg, Seg, Status, take, take_many};

use crate::core::{Core, Spans};
use crate::endpoint::Endpoint;
use crate::endpoint::coop_copy::{Lent, Part};
use crate::endpoint::request::{In, Out, Request};
use crate::proto::Memory;
use crate::types::{Access, What};
use link_api::{PeerId, RmaLink};

/// Reads and writes of one peer that we take part in at a time: more than a peer of ours begins.
const LENT: usize = 64;

impl<L: RmaLink> Endpoint<L> {
    /// A peer has begun to read or write memory here, and we may help.
    pub(in crate::endpoint) fn on_lend(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        rest: &mut &[u8],
    ) -> Option<()> {
        let about: Pieces = take(rest)?;
        let named: RmaSeg = take(rest)?;
        let n = usize::from(head.aux.get());
        (n <= MAX_SEGS).then_some(())?;
        let segs: ArrayVec<Seg, MAX_SEGS> = take_many::<Seg>(rest, n)?.try_into().ok()?;
        let write = head.data.get() == 1;
        let want = if write { Access::REMOTE_WRITE } else { Access::REMOTE_READ };
        // If it has changed meanwhile, it does not concern us; the peer finds that out by itself.
        let Ok(reached) = core.reach(&[named], want) else { return Some(()) };
        let part = Part::helping(&about, segs, head.tag.get(), write)?;
        if part.len != reached.len
            || !self.peer(peer).limits.is_sync()
            || Memory::of(&reached.iov) != Memory::Host
        {
            return Some(());
        }
        let iov = Spans::from(&reached.iov[..]);
        let requests = &mut self.requests;
        let mut is_theirs =
            |name: &u64| matches!(requests.get_mut(*name), Some(Request::Lent(l)) if l.peer == peer);
        if self.shares.iter().filter(|name| is_theirs(name)).count() >= LENT {
            return Some(());
        }
        let lent = Lent { peer, iov, part: Box::new(part), mrs: reached.mrs };
        let name = self.requests.insert(Request::Lent(lent));
        self.share_in(core, name);
        Some(())
    }

    /// The taker of what we send has begun, and we may help.
    pub(in crate::endpoint) fn on_share(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
        rest: &mut &[u8],
    ) -> Option<()> {
        let about: Pieces = take(rest)?;
        let n = usize::from(head.aux.get());
        (n <= MAX_SEGS).then_some(())?;
        let segs: ArrayVec<Seg, MAX_SEGS> = take_many::<Seg>(rest, n)?.try_into().ok()?;
        let part = Part::helping(&about, segs, head.data.get(), false)?;
        let name = head.tag.get();
        let is_sync = self.peer(peer).limits.is_sync();
        let in_order = core.config.rma_order;
        if self.is_withdrawn(peer, name) {
            return Some(());
        }
        let Request::Out(out) = self.requests.get_mut(name)? else { return None };
        let ours = out.peer == peer
            && out.asked.is_none()
            && out.shared.is_none()
            && part.len <= total(&out.iov)
            && !out.done_as.what.intersects(What::READ | What::ATOMIC);
        ours.then_some(())?;
        if !is_sync
            || (in_order && out.done_as.what.contains(What::RMA))
            || Memory::of(&out.iov) != Memory::Host
        {
            return Some(());
        }
        out.shared = Some(Box::new(part));
        self.share_in(core, name);
        Some(())
    }

    /// The other side has copied so many pieces, and there are no more.
    pub(in crate::endpoint) fn on_shared(
        &mut self,
        core: &mut Core,
        peer: PeerId,
        head: &Head,
    ) -> Option<()> {
        let name = head.tag.get();
        let (from, part) = match self.requests.get_mut(name)? {
            Request::In(In { peer, shared: Some(part), .. })
            | Request::Out(Out { peer, shared: Some(part), .. }) => (*peer, part),
            _ => return None,
        };
        (from == peer && part.owner && part.said.is_none()).then_some(())?;
        part.said = Some((Status::from_u16(head.aux.get()), head.data.get()));
        // Otherwise our own pieces come first.
        if !self.shares.contains(&name) {
            self.share_end(core, name);
        }
        Some(())
    }
}

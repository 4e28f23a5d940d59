//! RMA that takes effect in the order in which it was posted, where that was requested.
//!
//! What the target does within the call that takes a frame in is in order, since frames are. A write whose
//! bytes come later, in frames or by an operation of the link, and a read whose bytes leave later, are still
//! under way when the next frame comes: frames that access memory are then held until the request is done. An
//! initiator posts none behind a request that is not done in the call ([`Endpoint::rma`]), but it has to
//! learn first that this one is not. What is held is bounded.
//!
//! A write whose initiator ended before the bytes were here fails, and so does everything that was posted
//! behind it: a flag must not be seen without the data that it stands for. Whether the initiator has ended or
//! its memory cannot be read is not known at that time. The target sends the failure to an initiator that
//! lives, which answers with a frame (`Withdrawn`, of that write): what comes after it was posted with the
//! failure known, and takes effect.

use wire::{Flags, Head, Op as WireOp, Status};
use zerocopy::IntoBytes;

use crate::endpoint::malformed::parse_head;
use crate::endpoint::net::Net;
use crate::endpoint::parts::quota::{SLACK, cost};
use crate::endpoint::requests::Requests;
use link_api::{Frame, PeerId, RmaLink};

/// The order of peers' accesses.
pub(crate) struct RmaOrder<'a, L> {
    pub(in crate::endpoint) net: &'a mut Net<L>,
    pub(in crate::endpoint) requests: &'a mut Requests,
}

impl<L: RmaLink> RmaOrder<'_, L> {
    /// This request of a peer's has begun, and no later access may overtake it.
    pub(in crate::endpoint) fn keep_in_order(&mut self, peer: PeerId, name: u64) {
        self.net.peer(peer).order.get_or_insert_default().under_way.push(name);
        self.net.peers.add_in_order(peer);
        self.net.unhurried.set_in_order(true);
    }

    /// This write of a peer's came to nothing, perhaps because the peer ended.
    #[cold]
    pub(in crate::endpoint) fn break_order(&mut self, peer: PeerId, req: u64) {
        let order = self.net.peer(peer).order.get_or_insert_default();
        order.broken = Some(req);
        order.under_way.clear();
        order.size = 0;
        for frame in std::mem::take(&mut order.held) {
            if let Ok((head, op, flags)) = parse_head(&frame) {
                self.refuse_access(peer, &head, op, flags);
            }
        }
    }

    /// Whether this `Withdrawn` is of the write that broke the order of the peer's accesses; if so, those
    /// that follow take effect again.
    #[cold]
    pub(in crate::endpoint) fn restore_order(&mut self, peer: PeerId, req: u64) -> bool {
        let order = &mut self.net.peer(peer).order;
        let is_it = order.as_ref().is_some_and(|o| o.broken == Some(req) && o.under_way.is_empty());
        if is_it {
            *order = None;
        }
        is_it
    }

    /// A write of ours has failed, by an answer of its target: what is posted from now on is not behind it.
    #[cold]
    pub(in crate::endpoint) fn has_heard_of_failure(&mut self, peer: PeerId, name: u64) {
        let heard = Head::new(WireOp::Withdrawn, Flags::empty(), 0, name, 0);
        self.net.send_or_queue(peer, heard.as_bytes());
    }

    /// Holds a frame that accesses memory, or refuses the access; `false` if it may take effect now.
    #[cold]
    pub(in crate::endpoint) fn is_held_back(
        &mut self,
        frame: &Frame,
        head: &Head,
        op: WireOp,
        flags: Flags,
    ) -> bool {
        let peer = frame.from;
        let Some(order) = self.net.peers.get_mut(peer).and_then(|p| p.order.as_mut()) else {
            return false;
        };
        if order.broken.is_some() {
            self.refuse_access(peer, head, op, flags);
            return true;
        }
        if order.held.is_empty() && !order.waits(&mut self.requests.pool) {
            return false;
        }
        let mut bytes = vec![0; frame.len];
        self.net.link.read(frame, 0, &mut bytes);
        let before = order.size;
        order.size += cost(&bytes);
        order.held.push_back(bytes);
        if order.size > SLACK && before <= SLACK {
            self.net.cut_off(peer, "accesses behind one that is under way");
        }
        true
    }

    /// Answers an access that does not take effect.
    fn refuse_access(&mut self, peer: PeerId, head: &Head, op: WireOp, flags: Flags) {
        if flags.contains(Flags::ACK) || matches!(op, WireOp::WriteRts | WireOp::Read) {
            self.net.fin(peer, head.tag.get(), Status::Discarded, 0);
        } else {
            self.net.refuse(peer, head.tag.get(), Status::Discarded, op == WireOp::Atomic);
        }
    }
}

//! Counting what an endpoint does, where that is requested.
//!
//! It costs the short ways nothing: it is in the one question that progress asks before it takes one, and a
//! peer whose messages are counted takes none for plain ([`Peer::takes_plain`]). So the short ways are not
//! taken, and what is on the general ones asks whether there is a meter.
//!
//! [`Peer::takes_plain`]: crate::endpoint::parts::peer::Peer::takes_plain

use hmem::total;
use wire::{Aux, Flags, Head, Op as WireOp, RmaSeg};

use crate::core::on_device;
use crate::endpoint::malformed::parse_rma;
use crate::endpoint::parts::request::{Followed, Out};
use crate::types::What;
use link_api::{Fallback, Frame, How, Meter, PeerId, RmaLink, Side};

/// What counts, if anything does.
#[derive(Debug, Default)]
pub(super) struct Metered(Option<Box<dyn Meter>>);

impl Metered {
    pub(super) fn set(&mut self, meter: Box<dyn Meter>) {
        self.0 = Some(meter);
    }

    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// An operation is done.
    #[inline(always)]
    pub(super) fn count<L: RmaLink>(&mut self, link: &L, peer: PeerId, side: Side, how: How, bytes: usize) {
        if self.is_on() {
            self.count_now(link, peer, side, how, bytes);
        }
    }

    #[cold]
    fn count_now<L: RmaLink>(&mut self, link: &L, peer: PeerId, side: Side, how: How, bytes: usize) {
        let addr = link.peer_addr(peer);
        let count = |m: &mut Box<dyn Meter>| m.count(&addr, side, how, bytes);
        if !self.0.as_mut().is_none_or(count) {
            self.path(link, peer);
            self.0.as_mut().map(count);
        }
    }

    /// Reports to the meter what the path to a peer is by now.
    #[cold]
    pub(super) fn path<L: RmaLink>(&mut self, link: &L, peer: PeerId) {
        if let Some(meter) = &mut self.0 {
            let words = link.describe(peer);
            meter.path(&link.peer_addr(peer), link.path(peer).link, words);
        }
    }

    /// Bytes go by frames that should not.
    #[cold]
    pub(super) fn fell_back<L: RmaLink>(&mut self, link: &L, peer: PeerId, why: Fallback) {
        self.path(link, peer);
        if let Some(meter) = &mut self.0 {
            meter.fell_back(&link.peer_addr(peer), why);
        }
    }

    /// A frame has come: what it carries itself is counted. The rest is when it is here.
    #[cold]
    pub(super) fn frame<L: RmaLink>(&mut self, link: &L, frame: &Frame) {
        let Some(bytes) = link.peek::<{ Head::LEN }>(frame) else { return };
        let head: Head = zerocopy::transmute!(bytes);
        let acked = head.flags().is_some_and(|flags| flags.contains(Flags::ACK));
        let places = match head.op() {
            Some(WireOp::Eager) => {
                if acked {
                    size_of::<u64>()
                } else {
                    0
                }
            }
            Some(WireOp::Write) => {
                parse_rma(head.aux.get()).map_or(0, |aux| aux.rma.into()) * size_of::<RmaSeg>()
            }
            Some(WireOp::Atomic) => {
                Aux::parse_atomic(head.aux.get()).map_or(0, |aux| aux.rma.into()) * size_of::<RmaSeg>()
            }
            _ => return,
        };
        // The peer chooses both lengths.
        let bytes = frame.len.saturating_sub(Head::LEN + places);
        self.count_now(link, frame.from, Side::Theirs, How::Eager, bytes);
    }

    /// An operation that was started here, and that the peer has answered.
    #[cold]
    pub(super) fn out<L: RmaLink>(&mut self, link: &L, out: &Out) {
        // A short read is answered in one frame.
        let in_one = out.done_as.what.contains(What::READ) && !out.large && out.done > 0;
        let how = if in_one {
            How::Eager
        } else if out.helped || out.coop.is_some() {
            How::Cooperative
        } else if out.one_sided.is_some() {
            How::Device
        } else if out.done_as.what.contains(What::ATOMIC) || (total(&out.iov) == 0 && out.len > 0) {
            How::Eager
        } else if out.bounced {
            How::Device
        } else if out.done > 0 || out.followed != Followed::No {
            How::Frames
        } else if out.asked.is_some() || on_device(&out.iov) {
            How::Device
        } else {
            How::Direct
        };
        self.count_now(link, out.peer, Side::Ours, how, out.len);
    }
}

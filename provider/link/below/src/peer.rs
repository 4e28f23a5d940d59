//! What an endpoint has of a peer, as the parts that it is made of: each owns its state.

mod end;
mod farewell;
mod first;
mod meeting;
pub(crate) mod rest;
mod second;
mod upkeep;

use crate::channel::Channel;
use crate::lent::Dealings;
use crate::peer::end::End;
use crate::peer::farewell::Farewell;
use crate::peer::first::First;
use crate::peer::meeting::Meeting;
use crate::peer::rest::Rest;
use crate::peer::second::Second;
use crate::peer::upkeep::Upkeep;

/// How far two endpoints are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing was said.
    Idle,
    /// It is to turn out whether the fabric leads to the peer.
    Meeting,
    /// It does.
    Fabric,
    /// Frames go by the connection.
    Base,
}

/// A peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) stage: Stage,
    pub(crate) channel: Option<Channel>,
    /// The generation of its slot.
    pub(crate) generation: u32,
    pub(crate) meeting: Meeting,
    pub(crate) first: First,
    pub(crate) farewell: Farewell,
    pub(crate) end: End,
    pub(crate) upkeep: Upkeep,
    /// What the two read of each other's memory.
    pub(crate) dealings: Dealings,
    pub(crate) rest: Rest,
    pub(crate) second: Second,
}

impl Peer {
    pub(crate) fn new(generation: u32) -> Peer {
        Peer {
            stage: Stage::Idle,
            channel: None,
            generation,
            meeting: Meeting::default(),
            first: First::default(),
            farewell: Farewell::default(),
            end: End::default(),
            upkeep: Upkeep::default(),
            dealings: Dealings::default(),
            rest: Rest::default(),
            second: Second::default(),
        }
    }

    /// The same one at another time: nothing but what is still to be reported, and the lists that it is in.
    pub(crate) fn renewed(&self, generation: u32) -> Peer {
        Peer { end: self.end.carry(), upkeep: self.upkeep.carry(), ..Peer::new(generation) }
    }

    /// Whether something is to be sent to it, or it has a deadline.
    pub(crate) fn is_restless(&self) -> bool {
        self.meeting.is_under_way()
            || self.first.is_pending()
            || self.upkeep.is_due()
            || self.end.is_broken()
            || self.farewell.owes_answer()
            || self.dealings.has_notes()
            || self.rest.holds()
            || self.second.is_due()
    }

    /// Whether messages and accesses may go by the fabric now, where it leads to the peer: none was lost, and
    /// no proposal to close the connection is under way.
    #[inline]
    pub(crate) fn may_send(&self) -> bool {
        !self.end.is_broken() && !self.rest.holds()
    }

    /// Whether many frames find room, if they go by the fabric.
    pub(crate) fn has_much_room(&self) -> bool {
        let may = self.may_send() && !self.upkeep.is_full();
        may && self.channel.as_ref().is_some_and(Channel::has_much_room)
    }

    /// Whether all that it has said it sent has arrived.
    pub(crate) fn is_complete(&self) -> bool {
        self.farewell.is_complete(self.channel.as_ref().map_or(0, |c| c.came()))
    }
}

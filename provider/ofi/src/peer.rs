//! What an endpoint has of a peer.

use std::time::Instant;

use link_api::Gone;
use wire::session::Announce;

use crate::channel::Channel;
use crate::lent::Dealings;

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
    /// The generation of its slot, and what was announced to it with that.
    pub(crate) generation: u32,
    pub(crate) announced: Option<Vec<u8>>,
    /// What it has announced, until there is a channel.
    pub(crate) theirs: Option<Box<Announce>>,
    /// A message that came before its announce.
    pub(crate) early: Option<Vec<u8>>,
    /// Until when it has to turn out.
    pub(crate) until: Option<Instant>,
    /// A ping, or the answer to one, is still to be sent.
    pub(crate) ping_due: bool,
    pub(crate) pong_due: bool,
    /// While the two meet: when the first message is sent again, or for the first time where the provider
    /// refused it; how often it was sent; how often it failed.
    pub(crate) again: Option<Instant>,
    pub(crate) repeats: u32,
    pub(crate) failures: u32,
    /// It takes a first message that is repeated.
    pub(crate) takes_again: bool,
    /// It is to be told of room, and could not be.
    pub(crate) room_due: bool,
    /// Why the fabric does not lead to it.
    pub(crate) refused: Option<String>,
    /// It has said how many messages it sent, and was told that all have come.
    pub(crate) bye: Option<(u32, bool)>,
    /// This side has said so, and was told.
    pub(crate) bye_said: Option<u32>,
    pub(crate) bye_heard: bool,
    /// The fabric has lost a message: its end is to be told of by the connection until then.
    pub(crate) broken: Option<Instant>,
    /// How many ends of it are still to be told of here.
    pub(crate) ending: u32,
    /// Frames to it were lost, and its end has not been told of yet; or has, and that some were lost is told
    /// once.
    pub(crate) losing: bool,
    pub(crate) lost: bool,
    /// Why it is cut off, if not as the connection says.
    pub(crate) why: Option<Gone>,
    /// A send has just found no room.
    pub(crate) full: bool,
    /// A send found no way, or no room.
    pub(crate) wants: bool,
    /// It is among those that are looked after.
    pub(crate) listed: bool,
    /// What the two read of each other's memory.
    pub(crate) dealings: Dealings,
}

impl Peer {
    pub(crate) fn new(generation: u32) -> Peer {
        Peer {
            stage: Stage::Idle,
            channel: None,
            generation,
            announced: None,
            theirs: None,
            early: None,
            until: None,
            ping_due: false,
            pong_due: false,
            again: None,
            repeats: 0,
            failures: 0,
            takes_again: false,
            room_due: false,
            refused: None,
            bye: None,
            bye_said: None,
            bye_heard: false,
            broken: None,
            ending: 0,
            losing: false,
            lost: false,
            why: None,
            full: false,
            wants: false,
            listed: false,
            dealings: Dealings::default(),
        }
    }

    /// Whether it is to be looked after: something is to be said to it, or it takes time.
    pub(crate) fn is_restless(&self) -> bool {
        self.until.is_some()
            || self.again.is_some()
            || self.ping_due
            || self.pong_due
            || self.room_due
            || self.full
            || self.broken.is_some()
            || self.bye.is_some_and(|(_, told)| !told)
            || !self.dealings.notes.is_empty()
    }

    /// Whether all that it has said it sent has come.
    pub(crate) fn is_complete(&self) -> bool {
        let came = self.channel.as_ref().map_or(0, |c| c.came);
        // Signed, since what came behind it would be more.
        self.bye.is_none_or(|(sent, _)| sent.wrapping_sub(came) as i32 <= 0)
    }
}

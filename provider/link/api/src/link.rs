//! A link and its peers.

use std::io;

use wire::Addr;

use crate::path::{Path, PeerId, Standing};
use crate::setting::Setting;

/// Why a link did not take a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No room now (or the peer cannot be reached just yet); the same call may succeed later.
    /// Nothing was sent.
    Busy,
    /// The peer is not there: nothing listens, or it ended, or it refused this endpoint. Nothing was sent.
    Gone(Gone),
    /// The body could not be read: its device failed, or it is registered memory that was unmapped. Nothing
    /// was sent.
    Fault,
}

/// Why a peer cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Nothing listens at its address.
    Refused,
    /// It was connected, and ended or closed.
    Reset,
    /// No link leads to its address.
    Unreachable,
    /// It was not connected, and nothing has answered for as long as it may take.
    TimedOut,
    /// It belongs to another user, or speaks another version.
    Denied,
    /// A channel to it lacked descriptors or memory, here or there, for too long.
    Exhausted,
}

/// Whether there is a channel to or from a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// There is none.
    None,
    /// There is one: [`Event::Closed`](crate::Event::Closed) will report its end.
    Open,
    /// Its peer has ended, though [`Event::Closed`](crate::Event::Closed) is still to come.
    Ended,
}

/// What a channel is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connect {
    /// One is made unless there is one, as a send would.
    Now,
    /// The same for a send that is tried again for as long as the answer is [`Refused::Busy`]: what comes of
    /// it is returned here, too, however seldom the send is tried.
    ToSend,
    /// A receive waits for this peer, to which there is no channel. If none comes to be, and after some
    /// seconds none can be made, [`Event::Closed`](crate::Event::Closed) says so. A peer that is slow to
    /// start costs nothing meanwhile, and is not refused here.
    Expected,
}

/// How a link has done with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// No operation, message or address refers to this peer any more. If the link has no channel to or from
    /// it either, its number may be given to another peer from now on; else this is to be said again after
    /// its next [`Event::Closed`](crate::Event::Closed).
    Forgotten,
    /// The peer, which has a channel, takes more than any peer may: no frame of it comes any more, and
    /// [`Event::Closed`](crate::Event::Closed) with [`Gone::Denied`] follows, here; there it is an end like
    /// any other. A new channel may follow.
    CutOff,
}

/// A way to peers. It belongs to one endpoint and is driven by one thread at a time.
pub trait Link {
    /// The endpoint's own name.
    fn addr(&self) -> Addr;

    /// The peer of that name; made known if it was not. Does no IO, and needs no peer to be there. It may be
    /// this endpoint's own name, which is a peer like any other.
    fn peer(&mut self, addr: &Addr) -> PeerId;

    /// The name of a peer.
    fn peer_addr(&self, peer: PeerId) -> Addr;

    /// Whether this link can reach an endpoint of that name, or why not. No connection is tried: `Ok` may be
    /// wrong.
    fn reaches(&self, _addr: &Addr) -> Result<(), String> {
        Ok(())
    }

    /// What the way to this peer can do. The same until its next [`Event::Closed`](crate::Event::Closed) or
    /// [`Event::PathChanged`](crate::Event::PathChanged).
    fn path(&self, peer: PeerId) -> Path;

    /// How the link is to be from now on.
    fn set(&mut self, _setting: Setting<'_>) {}

    /// Of the channel to or from this peer. Not for each message: whether a process has ended may be asked of
    /// the kernel.
    fn channel(&self, _peer: PeerId) -> Channel {
        Channel::Open
    }

    /// Makes a channel to this peer, as [`Connect`] says.
    fn connect(&mut self, _peer: PeerId, _how: Connect) -> Result<(), Refused> {
        Ok(())
    }

    /// The process exits with this endpoint open. Whether all that was sent has arrived, or never will; if
    /// not, this is to be called again, for the `last` time when it is not waited for any more. Nothing is
    /// handed out, and nothing closed. A link that needs no calls for what it has taken ignores this.
    fn settle(&mut self, _last: bool) -> bool {
        true
    }

    /// A frame of this peer's, which begins so, is none of those that users of links send each other. Whether
    /// it is one that links do, which this link has answered, or lets go: it is not malformed then.
    fn answer(&mut self, _peer: PeerId, _front: &[u8]) -> bool {
        false
    }

    /// Has done with a peer, as [`Parting`] says.
    fn dismiss(&mut self, _peer: PeerId, _how: Parting) {}

    /// Why connections wait, to peers or from them: this process lacks a descriptor, or memory, now.
    fn lack(&self) -> Option<io::Error> {
        None
    }

    /// One line on the path to this peer, for people: link, copy engine, limits, and why.
    fn describe(&self, peer: PeerId) -> String;

    /// What this link is, for people, whatever peers there are; of one that holds others, all of them. Each
    /// text is one line.
    fn standing(&self) -> Vec<Standing>;
}

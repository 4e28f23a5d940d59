//! What is asked of a network below.

use std::net::IpAddr;
use std::os::fd::RawFd;

use hmem::{Kind, Span};
use link_api::{Once, Way};

/// A peer, as the provider below knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dest(pub u64);

/// A buffer in which a message has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer(pub u32);

/// Memory that peers may access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// What it is called here.
    pub number: u64,
    /// Its key.
    pub key: u64,
    /// What its first byte is called by those that access it.
    pub base: u64,
    /// The address, of at most [`LENDER`] bytes, of the endpoint by which it is accessed: another one after
    /// [`Below::stop`] of [`Stop::Leases`]. None where each peer has a connection of its own
    /// ([`Below::CONNECTS`]).
    pub lender: Box<[u8]>,
}

/// Further connections that a peer may have by other ports of this side, rails, at most.
pub const RAILS: usize = 3;

/// By rail, the key by which a peer accesses memory there, under the address that it has by the first
/// connection; 0: it does not.
pub type Keys = [u64; RAILS];

/// How far the rails with a peer are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RailsWith {
    /// The two are about to connect some.
    Awaited,
    /// Which can be used; no more will be made.
    Made([bool; RAILS]),
}

/// Longest address of an endpoint by which memory is lent.
pub const LENDER: usize = 39;

/// Where one peer, and no other, finds this side on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// What [`Below::connect`] and [`Below::withdraw`] know it by.
    pub number: u64,
    /// The address that is announced to the peer.
    pub address: Vec<u8>,
}

/// What does not change of an endpoint below.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The provider's name.
    pub name: &'a str,
    /// What else there is to say of it, for people.
    pub detail: &'a str,
    /// Which protocol it speaks, and what sort of addresses it has: both ends have to agree.
    pub dialect: (u32, u32),
    /// The endpoint's address.
    pub address: &'a [u8],
    /// Longest message.
    pub most: usize,
    /// How many messages of one peer it has room for, all in all.
    pub window: u32,
    /// Longest access to memory without its owner; `None` if there is none, else there are reads.
    pub reads: Option<usize>,
    /// Whether there are writes, too. The end of one means that its bytes are in the peer's memory.
    pub writes: bool,
    /// Whether memory stays registered for peers at no cost but the registration's ([`Remote::publish`]).
    /// Only with reads and writes.
    pub publishes: bool,
    /// Whether such memory is written with data ([`Once::Write`]). Only with that, and where each peer has a
    /// connection of its own ([`Below::CONNECTS`]).
    pub data: bool,
    /// Whether peers may have rails ([`Remote::begin_rails`]). Only where there are second connections
    /// ([`Below::SECONDS`]).
    pub rails: bool,
    /// Whether words of such memory are changed in one step that no processor and no other device divides
    /// ([`Once::FetchAdd`], [`Once::CompareSwap`]), where it may be read and written. As for `data`.
    pub atomics: bool,
}

/// How much is done to find out what has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// All that it takes: no answer means that nothing has happened.
    All,
    /// Few calls of the provider: no answer does not mean that nothing has happened.
    Soon,
    /// No call of the provider: what was taken from it already, which the others return first.
    Taken,
}

/// Descriptors that are readable when there is something to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// For [`Below::poll`]; `None`: it has to be polled.
    pub own: Option<RawFd>,
    /// For peers that access memory, the same one all the time; `None`: there never is anything.
    pub lender: Option<RawFd>,
    /// Peers may be accessing memory for which something has to be done that no descriptor reports.
    pub lends_unseen: bool,
}

/// What is ended as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// All that is lent, and all accesses to it.
    Leases,
    /// All accesses of this side, which are not reported any more unless they go on.
    Accesses,
    /// The accesses of this side by a connection, which is of no use any more ([`Below::CONNECTS`]).
    Connection(Dest),
}

/// Why a message was not sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// There is no room now.
    Busy,
    /// Its bytes could not be read.
    Fault,
    /// The connection that the key of this access is of does not do it: it goes by [`Piece::first`]. That is
    /// said of accesses alone.
    ByFirst,
    /// The provider says no.
    Error(String),
}

/// What a provider reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Did {
    /// A message of so many bytes came; by which connection, where each peer has its own
    /// ([`Below::CONNECTS`]).
    Came(Buffer, usize, Option<Dest>),
    /// A peer has written memory that is published, with data ([`Once::Write`]): what messages to that peer
    /// have as their [`Message::who`], the data, and how many bytes. It comes in order with messages, and has
    /// taken the room of one, and this buffer.
    Written(Buffer, u64, u32, usize),
    /// A message was not delivered, by what [`Message::who`] was.
    Failed(u64, String),
    /// An access to a peer's memory is over: which, and whether all its bytes are where they belong.
    Over(u64, bool),
    /// An access is over whose bytes have come, and could not be written to memory of this side.
    Unwritten(u64),
    /// Something is to be announced to a peer ([`Remote::second`]): what messages to it have as their
    /// [`Message::who`].
    Announces(u64),
    /// Nothing can be had of it any more.
    Dead(String),
}

/// What has happened next, where that is what mostly happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing is known to have happened.
    Nothing,
    /// [`Did::Came`].
    Came(Buffer, usize, Option<Dest>),
    /// Anything else, or there is more to do: [`Poll::Soon`] says what.
    Other,
}

/// A message: three parts, one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// What [`Did::Failed`] has if it fails.
    pub who: u64,
    /// Whether [`Below::keeps`] counts it.
    pub is_frame: bool,
    /// The first part.
    pub front: &'a [u8],
    /// The second one.
    pub middle: &'a [u8],
    /// Of this, `len` bytes from `off` on.
    pub body: &'a [Span],
    /// See `body`.
    pub off: usize,
    /// See `body`.
    pub len: usize,
}

impl Message<'_> {
    /// Bytes of all parts.
    #[inline]
    pub fn total(&self) -> usize {
        self.front.len() + self.middle.len() + self.len
    }

    /// Its bytes, if the first part is all.
    #[inline]
    pub fn whole(&self) -> Option<&[u8]> {
        (self.middle.is_empty() && self.len == 0).then_some(self.front)
    }

    /// Copies all of it to the front of `into`; whether it could be read.
    #[inline]
    pub fn copy_to(&self, into: &mut [u8]) -> bool {
        if let Some(bytes) = self.whole() {
            into.copy_from_slice(bytes);
            return true;
        }
        let (front, rest) = into.split_at_mut(self.front.len());
        let (middle, body) = rest.split_at_mut(self.middle.len());
        front.copy_from_slice(self.front);
        middle.copy_from_slice(self.middle);
        self.len == 0 || hmem::read(self.body, self.off, &mut body[..self.len]) == self.len
    }
}

/// What memory is registered for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Usage {
    /// Peers read it.
    ReadByPeers,
    /// What is read is put there.
    ReadInto,
    /// Peers write it.
    WrittenByPeers,
    /// What is written is taken from there.
    WrittenFrom,
}

impl Usage {
    /// That of memory of this side which a peer accesses this way.
    pub fn by_peer(way: Way) -> Usage {
        match way {
            Way::Get => Usage::ReadByPeers,
            Way::Put => Usage::WrittenByPeers,
        }
    }

    /// That of memory of this side in an access of its own.
    pub fn by_self(way: Way) -> Usage {
        match way {
            Way::Get => Usage::ReadInto,
            Way::Put => Usage::WrittenFrom,
        }
    }

    /// Whether a peer accesses it.
    pub fn is_by_peers(self) -> bool {
        matches!(self, Usage::ReadByPeers | Usage::WrittenByPeers)
    }
}

/// A piece of an access: at the peer, and here.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Which way its bytes go.
    pub way: Way,
    /// Where the peer's memory is accessed.
    pub at: Dest,
    /// The key of its lease; and that by which the same bytes are accessed by the first connection, where
    /// that is a rail's.
    pub key: u64,
    /// See `key`.
    pub first: u64,
    /// What its first byte is called there.
    pub addr: u64,
    /// Memory here, all of which takes part.
    pub local: Span,
    /// What it does besides, if it is the whole of what is done once. Then as much of `local` as
    /// [`Once::COPIED`] says was copied when the call returns.
    pub once: Option<Once>,
}

/// A network below the link: what an endpoint of datagrams gives that arrive, though not in order, and what
/// accesses memory of peers.
///
/// How that is opened, and what its objects are, is behind it.
pub trait Below: Remote {
    /// What the link is called in `FI_STRAIT_LINKS` and where paths are described.
    const LINK: &'static str;

    /// Whether each end has to connect to the other before either can send: then the side that decides sends
    /// nothing before the other one has said by the connection that it has connected. Else messages may get
    /// lost while two peers meet, and the first one is repeated.
    ///
    /// Memory is accessed by the same connection, in both directions, and what a peer has lent by no other
    /// one. An access that fails ends the connection. A lease that has ended is accessed no more, whatever
    /// peers do.
    const CONNECTS: bool = false;

    /// Whether there are second connections ([`Remote::second`]). Only with that.
    const SECONDS: bool = false;

    /// What it is.
    fn about(&self) -> About<'_>;

    /// What is announced to a peer that is about to be met: the endpoint's address, or one for this peer
    /// alone.
    fn offer(&mut self) -> Result<Offer, String> {
        Ok(Offer { number: 0, address: self.about().address.to_vec() })
    }

    /// An offer is not needed any more, whose peer was not met.
    fn withdraw(&mut self, _offer: u64) {}

    /// Makes the peer known that this offer was announced to, and that has announced this address. Its
    /// endpoint's is beside it, and whether this side begins: of the two one does, which sends first, and not
    /// before the other one is known to have connected, too.
    fn connect(&mut self, _offer: u64, address: &[u8], _peer: (IpAddr, bool)) -> Result<Dest, String> {
        self.meet(address)
    }

    /// Makes a peer known.
    fn meet(&mut self, address: &[u8]) -> Result<Dest, String>;

    /// It is not needed any more.
    fn part(&mut self, dest: Dest);

    /// Sends a message. When this returns `Ok` all bytes have been copied.
    fn send(&mut self, to: Dest, message: &Message<'_>) -> Result<(), NotSent>;

    /// Whether a frame was taken that has this [`Message::who`], and whose end the provider has not reported:
    /// calls may be needed for it to leave.
    fn keeps(&self, who: u64) -> bool;

    /// What has happened next.
    fn poll(&mut self, how: Poll) -> Option<Did>;

    /// What [`Poll::Soon`] finds, if that is nothing, or a message.
    #[inline]
    fn poll_next(&mut self) -> Next {
        Next::Other
    }

    /// Whether [`Poll::Taken`] returns something.
    #[inline]
    fn has_taken(&self) -> bool {
        true
    }

    /// The bytes of a buffer that a message came in, which was not given back.
    fn bytes(&self, buffer: Buffer) -> &[u8];

    /// The buffer serves another message.
    fn give_back(&mut self, buffer: Buffer);

    /// Whether it is safe to sleep on [`Below::waits`].
    fn try_wait(&mut self) -> bool;

    /// What ends a sleep.
    fn waits(&self) -> Waits;

    /// [`Waits::lender`] is not to be readable any more.
    fn unwatch_lender(&mut self) {}
}

/// Memory of peers that a network accesses without them, and memory here that peers access; one without has
/// the defaults.
pub trait Remote: Send {
    /// Whether memory of this kind may be used so, as far as is known: of a device it may be refused
    /// nevertheless.
    fn reaches(&self, kind: Kind, _usage: Usage) -> bool {
        kind == Kind::System
    }

    /// Whether this memory may be, of which more may be known than of its kind.
    fn reaches_memory(&self, span: &Span, usage: Usage) -> bool {
        self.reaches(span.kind(), usage)
    }

    /// By which way memory was registered, and why by no better one, for people; nothing where there is
    /// nothing to say.
    fn registered(&self) -> String {
        String::new()
    }

    /// Lets a peer access memory this way and no other, by the endpoint of [`Lease::lender`]; `None` if that
    /// cannot be. Where each peer has a connection of its own the key is of use to this peer alone, from the
    /// next message to it on.
    fn lend(&mut self, _to: Dest, _span: Span, _way: Way) -> Option<Lease> {
        None
    }

    /// Registers memory of the program that peers are to read or write, for as long as that lasts. Accesses
    /// of this side find it, too. `None` if that cannot be.
    fn publish(&mut self, _span: Span, _read: bool, _write: bool) -> Option<Lease> {
        None
    }

    /// The key by which this peer accesses what is published; as [`Remote::lend`] for whom it serves. `None`:
    /// there is no room, now at least.
    fn admit(&mut self, _to: Dest, lease: &Lease, _read: bool, _write: bool) -> Option<u64> {
        Some(lease.key)
    }

    /// Both ends of this connection can have rails, and have agreed on it. Of the two one `begins` to make
    /// them, and says of each whether it has it, which the other one awaits.
    fn begin_rails(&mut self, _to: Dest, _begins: bool) {}

    /// How far those are.
    fn rails(&self, _to: Dest) -> RailsWith {
        RailsWith::Made([false; RAILS])
    }

    /// The keys by which a peer accesses memory in parts, beside that by which it was lent to it, or
    /// admitted, the same way. They end with the lease. `published`: the peer has them for as long as the
    /// registration lasts; else for a request that is about to be sent.
    fn stripe(
        &mut self,
        _to: Dest,
        _lease: u64,
        _span: Span,
        (_read, _write): (bool, bool),
        _published: bool,
    ) -> Keys {
        [0; RAILS]
    }

    /// What is to be announced next to this peer of a second connection, which memory that was to be lent or
    /// admitted needs, or of rails. All end with the first one.
    fn second(&mut self, _to: Dest) -> Option<Vec<u8>> {
        None
    }

    /// Whether the peer has yet to say something of these.
    fn awaits_second(&self, _to: Dest) -> bool {
        false
    }

    /// The peer has announced this of a second connection, or of rails; nothing: that there is no second one.
    /// What is to be announced to it for that. An error: the peer does what no honest one does.
    fn join_second(&mut self, _to: Dest, _address: &[u8]) -> Result<Option<Vec<u8>>, String> {
        Err("there are no second connections".into())
    }

    /// They access it no more. Whether no access of this side uses it either; if one does, this is to be
    /// called again. A peer that is not known to have the key, in no message that was sent, cannot have it.
    fn end_lease(&mut self, _number: u64, _is_known: bool) -> bool {
        true
    }

    /// Accesses memory that a peer has lent. [`Did::Over`] reports the end.
    fn access(&mut self, _who: u64, _piece: &Piece) -> Result<(), NotSent> {
        Err(NotSent::Error("it has no reads and no writes".into()))
    }

    /// Ends some. Whether none accesses memory any more; if not, this is to be called again.
    fn stop(&mut self, _what: Stop) -> bool {
        true
    }
}

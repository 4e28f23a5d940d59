//! Access to memory of peers.
//!
//! A link accesses a peer's memory in one of two ways, as its [`RmaCaps`](crate::RmaCaps) say: in the call
//! ([`RmaLink::access`]: the kernel copies), or by an operation in flight that
//! [`Event::Done`](crate::Event::Done) ends ([`RmaLink::start`]: a device or a network adapter copies). The
//! latter needs a handle of the memory: its owner exports it, once per peer ([`RmaLink::export_handles`]),
//! and the peer imports it ([`HandleNote::Imported`]).
//!
//! Each access has a [`Grant`], which the owner of the memory may end: then nothing accesses it any more.

use hmem::Span;
use wire::{Handle, Seg};

use crate::frames::FrameLink;
use crate::group::GroupLink;
use crate::link::Refused;
use crate::path::{OpId, PeerId};
use crate::sleep::SleepLink;

/// Why memory of a peer could not be reached directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoDirect {
    /// Not with this peer, ever: other means must be used (frames).
    Never,
    /// Not this memory, or not any more: other means may reach it, or will say why not.
    Memory,
    /// The peer has taken it back, with what it was for.
    Revoked,
    /// The peer is gone.
    Fault,
}

/// What allows an access to a peer's memory. The peer may end it at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// A request of the peer, by the name in the frame that carried its segments ([`Revoke::Request`]). The
    /// lower half of a name is a slot, of which a link has a fixed number; the upper half is a generation,
    /// not 0.
    Request(u64),
    /// A registration that the peer publishes ([`Revoke::Region`]).
    Region(RegionVersion),
    /// What a caller has agreed on with the peer by means of its own. It ends with the channel.
    Agreed,
}

/// The memory of a direct access, here and at a peer, and what allows it.
#[derive(Clone, Copy, Debug)]
pub struct Direct<'a> {
    /// What allows it.
    pub grant: Grant,
    /// The peer's memory, as the peer has announced it.
    pub remote: &'a [Seg],
    /// The byte of `remote` at which it begins.
    pub roff: usize,
    /// Memory of this process.
    pub local: &'a [Span],
    /// The byte of `local` at which it begins.
    pub loff: usize,
    /// Bytes.
    pub len: usize,
}

impl<'a> Direct<'a> {
    /// Between the fronts of both.
    #[inline]
    pub fn new(grant: Grant, remote: &'a [Seg], local: &'a [Span], len: usize) -> Direct<'a> {
        Direct { grant, remote, roff: 0, local, loff: 0, len }
    }

    /// Between these bytes of both.
    #[inline]
    #[must_use]
    pub fn at(self, roff: usize, loff: usize) -> Direct<'a> {
        Direct { roff, loff, ..self }
    }

    /// The request of the peer's that allows an operation in flight, which begins at the fronts of both; a
    /// link without [`RmaCaps::REGIONS`](crate::RmaCaps::REGIONS) refuses any other one.
    pub fn operation(&self) -> Result<u64, NoDirect> {
        match self.grant {
            Grant::Request(request) if (self.roff, self.loff) == (0, 0) => Ok(request),
            _ => Err(NoDirect::Memory),
        }
    }
}

/// A published registration as it was when it was looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RegionVersion {
    /// Its place among those of its owner.
    pub place: u32,
    /// Which version of what was published there.
    pub number: u32,
}

/// A peer is inside an access to memory that is to be given back, and does not go on: it is stopped, say.
/// Nothing new is accessed, but the memory must be kept until the same call succeeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InUse;

/// A registration that peers may access without asking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its key.
    pub key: u64,
    /// First byte, by the owner's virtual address.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Peers may read it.
    pub read: bool,
    /// Peers may write it.
    pub write: bool,
    /// Operations name it by virtual address (else by offset).
    pub virt_addr: bool,
    /// The owner counts accesses, so that it has to see each.
    pub target_must_observe: bool,
}

/// What peers may access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Allow<'a> {
    /// A registration, which is published, or a change of it; and its memory.
    Region(&'a Region, Span),
    /// What a request of ours names to this peer, which is done with one of the same name that was taken
    /// back: the name may be used again.
    Request(PeerId, u64),
}

/// What peers may not access any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Revoke {
    /// The registration of this key is taken out of what is published.
    Region(u64),
    /// What frames to this peer allowed under the name of this request of ours: accesses by it end with
    /// [`NoDirect::Revoked`], and operations of the peer's in flight fail.
    Request(PeerId, u64),
    /// All that peers may access, for good; the caller has cancelled its own operations in flight. Nothing is
    /// to be posted any more, whatever is returned.
    All,
}

/// What became of handles.
#[derive(Clone, Copy, Debug)]
pub enum HandleNote<'a> {
    /// The peer has been sent this one.
    Exported(&'a Handle),
    /// The peer has sent this one.
    Imported(&'a Handle),
    /// No request of ours names this memory to the peer any more, so that handles of it, which were made for
    /// the time of a request, may end: what needs it next exports it anew. No memory stands for all of it.
    Retired(&'a [Span]),
}

/// The devices that two memories are on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Devices {
    /// At least one of the two is not on a device, or not on a known one.
    Unknown,
    /// One, which the two processes have in turns: each change takes longer than many copies.
    One,
    /// Two, which can both copy at once.
    Two,
}

/// The counter that hands out the pieces of a transfer which both sides copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceCounter {
    /// Which counter of those between the two.
    pub slot: u16,
    /// Which transfer it serves. A generation does not come again: an offer may lie unread in a peer's ring
    /// for as long as the peer is stopped.
    pub generation: u64,
}

/// Most pieces of such a transfer.
pub const MAX_PIECES: u16 = i16::MAX as u16;

/// Which way bytes go between here and a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the peer to here.
    Get,
    /// From here to the peer.
    Put,
}

/// What an operation in flight does that is never done again, whatever becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once {
    /// Writes, and has the target report this behind the bytes ([`Event::Written`](crate::Event::Written)).
    Write(u32),
    /// Adds this to an aligned word of 64 bits, and gets what it was.
    FetchAdd(u64),
    /// Puts the second one into such a word if it is the first one, and gets what it was.
    CompareSwap(u64, u64),
}

impl Once {
    /// Most bytes of host memory that are copied before [`RmaLink::start_once`] returns.
    pub const COPIED: usize = crate::Path::LEAST_FRAME;

    /// Which way bytes go.
    pub fn way(self) -> Way {
        match self {
            Once::Write(_) => Way::Put,
            Once::FetchAdd(_) | Once::CompareSwap(..) => Way::Get,
        }
    }
}

/// Frames of one transfer, which are sent one behind the other: each has one of these heads, and the next
/// `most` bytes of `body` from `off` on, the last one those that are left of `len`.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// As many as there are frames, and at most [`Row::FRAMES`].
    pub heads: &'a [&'a [u8]],
    /// The payload of all.
    pub body: &'a [Span],
    /// Where it begins.
    pub off: usize,
    /// Bytes of it in each frame.
    pub most: usize,
    /// Bytes of it in all.
    pub len: usize,
}

impl<'a> Row<'a> {
    /// Most frames: while they are sent nothing is received.
    pub const FRAMES: usize = 4;

    /// The head of each frame, where its payload begins, and how many bytes that has.
    pub fn frames(self) -> impl Iterator<Item = (&'a [u8], usize, usize)> {
        let Row { heads, off, most, len, .. } = self;
        heads
            .iter()
            .zip((0..len).step_by(most.max(1)))
            .map(move |(head, at)| (*head, off + at, most.min(len - at)))
    }
}

/// [`RmaLink::send_row`], frame by frame.
pub fn send_each<L: FrameLink + ?Sized>(link: &mut L, to: PeerId, row: Row<'_>) -> Result<usize, Refused> {
    let mut n = 0;
    for (head, off, len) in row.frames() {
        match link.send(to, head, row.body, off, len) {
            Ok(_) => n += 1,
            Err(why) if n == 0 => return Err(why),
            Err(_) => break,
        }
    }
    Ok(n)
}

/// Access to memory of peers, and to memory of this endpoint by peers. What a link leaves as it is here it
/// cannot do; frames serve instead.
pub trait RmaLink: FrameLink + SleepLink {
    /// Sends the first frames of a row, as [`FrameLink::send`] does each: how many, at least one. Behind
    /// [`Refused::Fault`] and [`Refused::Gone`] some of them may have left all the same.
    fn send_row(&mut self, to: PeerId, row: Row<'_>) -> Result<usize, Refused> {
        send_each(self, to, row)
    }

    /// Copies bytes between local memory and the peer's, in the call. Where they are not inside of both it
    /// fails, and nothing outside is touched; what is inside may have been copied by then.
    fn access(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        let _ = (way, peer, access);
        Err(NoDirect::Never)
    }

    /// Starts to copy between local memory and the peer's: memory of which the peer has sent a handle,
    /// under the name of a request of its own ([`Direct::operation`]), or a part of a registration that the
    /// peer publishes ([`RmaCaps::REGIONS`](crate::RmaCaps::REGIONS)).
    /// [`Event::Done`](crate::Event::Done) says when it is over. Operations may end in any order, and nothing
    /// else waits for them. Memory of which no handle is known, or less of it than `len`, is refused here or
    /// fails later. Each operation ends, also where its peer does, before or after
    /// [`Event::Closed`](crate::Event::Closed).
    fn start(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        let _ = (way, peer, access);
        Err(NoDirect::Never)
    }

    /// Starts what is done once, with a part of a registration that the peer publishes. Where that is refused
    /// nothing has happened, and frames serve; it is refused as well where there is no room now. The peer has
    /// the report of [`Once::Write`] behind frames that were sent before, and before those that follow.
    fn start_once(&mut self, peer: PeerId, once: Once, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        let _ = (peer, once, access);
        Err(NoDirect::Never)
    }

    /// Ends an operation in flight: no event reports it any more, and when this returns its memory is not
    /// accessed any more; the peer's, by [`RmaCaps::HOST_PUTS`](crate::RmaCaps::HOST_PUTS), when the peer has
    /// the next frame. An operation whose [`Event::Done`](crate::Event::Done) was polled is left as it is.
    fn cancel(&mut self, op: OpId) {
        let _ = op;
    }

    /// The handles that this peer lacks to reach `iov` by [`RmaLink::start`], this way at least; `None` if it
    /// cannot be reached so, or not all of it. The caller sends each in a `Handle` frame and then calls
    /// [`RmaLink::note_handle`].
    fn export_handles(&mut self, to: PeerId, iov: &[Span], way: Way) -> Option<Vec<Handle>> {
        let _ = (to, iov, way);
        None
    }

    /// What became of handles between here and this peer.
    fn note_handle(&mut self, peer: PeerId, what: HandleNote<'_>) {
        let _ = (peer, what);
    }

    /// What is known of the devices that the peer's memory and the local one are on.
    fn devices(&self, _peer: PeerId, _theirs: &[Seg], _ours: &[Span]) -> Devices {
        Devices::Unknown
    }

    /// Opens a counter that both sides take pieces of one transfer from. `None`: no counter is free, or this
    /// link has none.
    fn pieces_open(&mut self, _with: PeerId) -> Option<PieceCounter> {
        None
    }

    /// Takes the next of `of` pieces, on the side that opened the counter (`mine`) or on the other.
    /// `None`: all are taken, or the transfer is over.
    ///
    /// No piece is handed out twice, as long as the peer keeps to that.
    fn pieces_claim(&mut self, _with: PeerId, _counter: PieceCounter, _mine: bool, _of: u16) -> Option<u16> {
        None
    }

    /// Whether a piece was taken besides the first, which this side takes once it has opened the counter;
    /// also if it is not open any more.
    fn pieces_begun(&self, _with: PeerId, _counter: PieceCounter) -> bool {
        false
    }

    /// Closes a counter that this side opened, when all pieces are done with. One that was closed stays so:
    /// nothing happens to a later transfer at its place.
    fn pieces_close(&mut self, _with: PeerId, _counter: PieceCounter) {}

    /// What this peer publishes under a key, as far as is known here: none of it is to be trusted. A link
    /// may ask the peer for what is not known, and know it later.
    fn published(&mut self, _by: PeerId, _key: u64) -> Option<(Region, RegionVersion)> {
        None
    }

    /// Peers may access memory from now on.
    fn allow(&mut self, _what: Allow<'_>) {}

    /// Takes memory back. When it returns `Ok`, no peer accesses it any more on account of what is ended.
    fn revoke(&mut self, _what: Revoke) -> Result<(), InUse> {
        Ok(())
    }

    /// What makes memory that members of a group share; `None`: this link has none.
    fn groups(&mut self) -> Option<Box<dyn GroupLink + '_>> {
        None
    }
}

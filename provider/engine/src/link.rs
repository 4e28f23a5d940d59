use std::fmt;

use hmem::Span;
use wire::{Addr, Handle, Seg};

/// A peer of one link: small, dense, given out by [`Link::peer`] and not used again for another
/// address until [`Link::forget`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct PeerId(pub u32);

/// Why a link did not take a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No room now (or the peer cannot be reached just yet); the same call may succeed later.
    /// Nothing was sent.
    Busy,
    /// The peer is not there: nobody listens, or it died, or it refused us. Nothing was sent.
    Gone(Gone),
    /// The body could not be read: the device that has it failed, or it is registered memory that is gone. Nothing
    /// was sent.
    Fault,
}

/// Why a peer cannot be talked to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gone {
    /// Nobody listens at its address.
    Refused,
    /// It was there, and ended or closed.
    Reset,
    /// Its address is on another host, and no link goes there.
    Unreachable,
    /// It is another user's, or speaks another version.
    Denied,
    /// There were no descriptors, or no memory, for a channel to it, here or there, for too long.
    Exhausted,
}

/// Why memory of a peer could not be reached directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoDirect {
    /// Not with this peer, ever: other means must be used (frames).
    Never,
    /// Not this memory, or not any more: other means may reach it, or will tell why not.
    Memory,
    /// The peer has taken it back, with what it was for.
    Revoked,
    /// The peer is gone.
    Fault,
}

/// What allows an access to a peer's memory. The peer may end it at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Grant {
    /// A request of the peer's, by the name in the frame that told of the memory ([`Link::revoke`]).
    Request(u64),
    /// A registration that the peer exposes ([`Link::conceal`]).
    Region(Ticket),
    /// What a caller has agreed on with the peer by means of its own. It ends with the channel.
    Agreed,
}

/// A registration as it was exposed when it was looked up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// Its place among those of its owner.
    pub place: u32,
    /// Which version of what was exposed there.
    pub number: u32,
}

/// A peer is inside an access to memory that is to be given back, and does not go on: it is stopped, say.
/// Nothing new is accessed, but the memory must be kept until the same call succeeds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inside;

/// Memory that peers may reach, as they can learn without asking.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Exposed {
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
    pub noted: bool,
}

/// A transfer that two sides share: the name of the counter that hands its pieces out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    /// Which counter of those between the two.
    pub slot: u16,
    /// The how manyth transfer it serves. It does not come again: an offer may lie unread in a peer's ring for as long
    /// as the peer is stopped.
    pub turn: u64,
}

/// Most pieces of a shared transfer.
pub const MAX_PIECES: u16 = i16::MAX as u16;

/// What happened on a link.
#[derive(Debug)]
pub enum Event<F> {
    /// A frame came in. It must be given back with [`Link::release`] before the next
    /// [`Link::poll`].
    Frame(F),
    /// A peer went away. Every frame it had sent has been delivered before. Frames sent to it are
    /// refused from now on, unless it can be connected to anew.
    Closed(PeerId, Gone),
    /// A copy that [`Link::start`] began is over: whether all bytes are there.
    Copied(CopyId, bool),
}

/// What [`Link::glance`] saw.
#[derive(Debug)]
pub enum Glance<F> {
    /// Nothing is there.
    Nothing,
    /// A frame, to be given back like one of [`Link::poll`].
    Frame(F),
    /// Only a poll can tell.
    Unknown,
}

/// A copy in flight: given out by [`Link::start`], and never again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyId(pub u64);

/// Which way bytes go between here and a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the peer to us.
    Get,
    /// From us to the peer.
    Put,
}

/// A frame that a link holds: who sent it and how long it is.
pub trait Frame: fmt::Debug {
    /// The endpoint it came from.
    fn from(&self) -> PeerId;
    /// Bytes.
    fn len(&self) -> usize;
    /// Whether it has no byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What a link can do, fixed when it is opened.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest frame, in bytes, at least 10 KiB.
    pub max_frame: usize,
}

/// A way to peers: moves frames, in order and without loss, and reaches remote memory directly
/// where it can. It belongs to one endpoint and is driven by one thread at a time.
///
/// Nothing here blocks. A peer is untrusted: whatever it writes, a link answers with frames of
/// honest length, or with [`Event::Closed`].
pub trait Link {
    /// A received frame.
    type Frame: Frame;

    /// The endpoint's own name.
    fn addr(&self) -> Addr;

    /// What this link can do.
    fn limits(&self) -> Limits;

    /// The peer of that name; made known if it was not. Does no IO, and needs no peer to be there.
    fn peer(&mut self, addr: &Addr) -> PeerId;

    /// The name of a peer.
    fn peer_addr(&self, peer: PeerId) -> Addr;

    /// Sends one frame made of `head` and then the bytes `off..off+len` of `body`, connecting if
    /// need be. When it returns `Ok` all bytes have been copied.
    fn send(&mut self, to: PeerId, head: &[u8], body: &[Span], off: usize, len: usize)
    -> Result<(), Refused>;

    /// The next event, if there is one.
    fn poll(&mut self) -> Option<Event<Self::Frame>>;

    /// A quick look at what a [`Link::poll`] would look at first. Unless it answers that only a poll can
    /// tell, it counts for one, which then need not be called.
    #[inline]
    fn glance(&mut self) -> Glance<Self::Frame> {
        Glance::Unknown
    }

    /// Another frame of this peer, if one is there; to be given back like one of [`Link::poll`]. A
    /// quick look after one was given back: it may be over before all are taken.
    #[inline]
    fn more(&mut self, _from: PeerId) -> Option<Self::Frame> {
        None
    }

    /// Whether this peer has sent more than what was handed out. Quick, and may be over at once.
    fn waiting(&self, _from: PeerId) -> bool {
        false
    }

    /// The first `N` bytes of the frame, at most 60 of them; `None` if it has fewer.
    #[inline]
    fn first<const N: usize>(&self, frame: &Self::Frame) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        (self.read(frame, 0, &mut bytes) == N).then_some(bytes)
    }

    /// Copies bytes from `off` on out of the frame; returns how many there were.
    fn read(&self, frame: &Self::Frame, off: usize, dst: &mut [u8]) -> usize;

    /// Copies up to `len` bytes from `off` on out of the frame to byte `doff` of `dst`; returns how
    /// many there were, or fewer where memory of `dst` is gone or its device failed.
    fn copy_out(&self, frame: &Self::Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize;

    /// Gives a frame back.
    fn release(&mut self, frame: Self::Frame);

    /// Copies `len` bytes at `roff` of the peer's memory `remote`, as `grant` allows, to byte `loff` of
    /// `local`.
    #[allow(clippy::too_many_arguments)]
    fn get(
        &mut self,
        from: PeerId,
        grant: Grant,
        remote: &[Seg],
        roff: usize,
        local: &[Span],
        loff: usize,
        len: usize,
    ) -> Result<(), NoDirect>;

    /// Copies `len` bytes at `loff` of `local` to byte `roff` of the peer's memory `remote`, as `grant`
    /// allows.
    #[allow(clippy::too_many_arguments)]
    fn put(
        &mut self,
        to: PeerId,
        grant: Grant,
        remote: &[Seg],
        roff: usize,
        local: &[Span],
        loff: usize,
        len: usize,
    ) -> Result<(), NoDirect>;

    /// Whether a peer is gone by now, though [`Event::Closed`] is still to come. Asked only after a
    /// direct access failed.
    fn is_gone(&self, _peer: PeerId) -> bool {
        false
    }

    /// Whether there is a channel to or from this peer, so that [`Event::Closed`] will tell of its end.
    fn is_met(&self, _peer: PeerId) -> bool {
        true
    }

    /// Has [`Event::Closed`] tell of this peer's end from now on, connecting if need be, as a send would.
    fn meet(&mut self, _peer: PeerId) -> Result<(), Refused> {
        Ok(())
    }

    /// A receive waits for this peer, to which there is no channel. If none comes to be, and after some seconds
    /// none can be made, [`Event::Closed`] says so. A peer that is slow to start costs nothing meanwhile.
    fn expect(&mut self, _peer: PeerId) {}

    /// Whether there is room for a frame that the peer can do without: those that it has not taken are far
    /// fewer than there may be, and fewer than transfers that a [`Share`] can tell apart.
    fn has_room_to_spare(&mut self, _to: PeerId) -> bool {
        true
    }

    /// Nothing is held of this peer any more: no operation, no message of its, no address that leads to it.
    /// If the link has no channel to or from it either, its number may be given to another peer from now on;
    /// else this is to be called again after its next [`Event::Closed`].
    fn forget(&mut self, _peer: PeerId) {}

    /// Cuts a peer off that takes more of us than any peer may; [`Event::Closed`] follows.
    fn cut(&mut self, _peer: PeerId) {}

    /// Opens a counter that we and this peer take pieces of one transfer from. `None`: there is none
    /// to be had now.
    fn share_open(&mut self, _with: PeerId) -> Option<Share> {
        None
    }

    /// Takes the next of `of` pieces, on the side that opened the counter (`mine`) or on the other.
    /// `None`: all are taken, or the transfer is over.
    ///
    /// No piece is handed out twice, as long as the peer keeps to that.
    fn share_claim(&mut self, _with: PeerId, _share: Share, _mine: bool, _of: u16) -> Option<u16> {
        None
    }

    /// Whether a piece was taken since this counter of ours was opened.
    fn share_begun(&self, _with: PeerId, _share: Share) -> bool {
        false
    }

    /// Closes a counter we opened, when all pieces are done with.
    fn share_close(&mut self, _with: PeerId, _share: Share) {}

    /// Lets peers see a registration, or a change of it.
    fn expose(&mut self, _memory: &Exposed) {}

    /// Lets them see it no more. When it returns `Ok`, no peer accesses it any more on account of that.
    fn conceal(&mut self, _key: u64) -> Result<(), Inside> {
        Ok(())
    }

    /// What this peer exposes under a key, as far as is known here: none of it is to be believed.
    fn exposed(&self, _by: PeerId, _key: u64) -> Option<(Exposed, Ticket)> {
        None
    }

    /// Takes back what frames to this peer allowed under the name of this request of ours: accesses by
    /// it end with [`NoDirect::Revoked`]. When it returns `Ok`, the peer is in none any more.
    fn revoke(&mut self, _from: PeerId, _request: u64) -> Result<(), Inside> {
        Ok(())
    }

    /// The peer is done with a request that was taken back: the same name may be used again.
    fn renew(&mut self, _to: PeerId, _request: u64) {}

    /// Takes back all that peers may access, for good. When it returns `Ok`, none accesses memory of ours any
    /// more; nothing is to be posted any more in either case.
    fn close(&mut self) -> Result<(), Inside> {
        Ok(())
    }

    /// The allocations of a device that `iov` is of and that this peer has not been told of, so that
    /// it may reach them; `None` if it cannot be told, or not of all. Whoever asks sends each in a
    /// `Handle` frame and then calls [`Link::told`].
    fn untold(&mut self, to: PeerId, iov: &[Span]) -> Option<Vec<Handle>> {
        let _ = (to, iov);
        None
    }

    /// Whether the peer's memory and ours are on two devices, which can both copy at once. Two processes
    /// that use one device have it in turns, and each change takes longer than many copies.
    fn apart(&self, _peer: PeerId, _theirs: &[Seg], _ours: &[Span]) -> bool {
        false
    }

    /// The peer has been sent this.
    fn told(&mut self, to: PeerId, handle: &Handle) {
        let _ = (to, handle);
    }

    /// The peer has sent this.
    fn learn(&mut self, from: PeerId, handle: &Handle) {
        let _ = (from, handle);
    }

    /// Starts to copy `len` bytes between the front of `local` and that of the peer's `remote`, which
    /// is a device's memory that it told of, and told of under the name of this `request` of its own. [`Event::Copied`] says when it is over. Copies may end
    /// in any order, and nothing else waits for them.
    fn start(
        &mut self,
        way: Way,
        peer: PeerId,
        request: u64,
        remote: &[Seg],
        local: &[Span],
        len: usize,
    ) -> Result<CopyId, NoDirect> {
        let _ = (way, peer, request, remote, local, len);
        Err(NoDirect::Never)
    }

    /// Nobody wants to hear of this copy any more. When it returns, the memory is let go of.
    fn cancel(&mut self, copy: CopyId) {
        let _ = copy;
    }

    /// Asks every peer to wake this endpoint when it sends. Returns whether it is safe to sleep:
    /// `false` means that something is there already.
    fn arm(&mut self) -> bool;

    /// One line on the path to this peer, for people: link, copy engine, limits, and why.
    fn describe(&self, peer: PeerId) -> String;
}

//! Frames to and from peers.

use std::io;
use std::os::fd::RawFd;

use hmem::Span;
use wire::Addr;

use crate::path::{OpId, Path, PeerId, Standing};
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

/// Where the bytes of a frame are that a link took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// On their way.
    Done,
    /// Some of them wait in this process for room, or may do so as long as a provider below has not completed
    /// them. A later [`Link::poll`] sends them on, and [`Link::keeps`] says whether it has. Only after
    /// [`Setting::Kept`].
    Kept,
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
    /// There is one: [`Event::Closed`] will report its end.
    Open,
    /// Its peer has ended, though [`Event::Closed`] is still to come.
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
    /// seconds none can be made, [`Event::Closed`] says so. A peer that is slow to start costs nothing
    /// meanwhile, and is not refused here.
    Expected,
}

/// How a link has done with a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parting {
    /// No operation, message or address refers to this peer any more. If the link has no channel to or from
    /// it either, its number may be given to another peer from now on; else this is to be said again after
    /// its next [`Event::Closed`].
    Forgotten,
    /// The peer, which has a channel, takes more than any peer may: no frame of it comes any more, and
    /// [`Event::Closed`] with [`Gone::Denied`] follows, here; there it is an end like any other. A new
    /// channel may follow.
    CutOff,
}

/// Descriptors of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFd {
    /// The one that stands for all. It is readable where there is an event to poll, room for a frame that
    /// found none, or a channel where [`Refused::Busy`] said that there is none yet; provided that
    /// [`Link::arm`], which looks for the same, returned true and [`Link::poll`] was not called since.
    All,
    /// Those that it stands for, by number, one of which is readable when it is: for a caller that watches
    /// other descriptors as well, since descriptors may watch each other but a few levels deep.
    Each(usize),
    /// One of these that is not to be watched any more, since it may stay readable for good. Reported once;
    /// asked for with each [`Link::arm`].
    Worn,
}

impl WaitFd {
    /// Of a link that has this descriptor alone.
    pub fn only(self, fd: RawFd) -> Option<RawFd> {
        matches!(self, WaitFd::All | WaitFd::Each(0)).then_some(fd)
    }
}

/// A received frame, which its link holds until [`Link::release`].
#[derive(Debug)]
pub struct Frame {
    /// The endpoint it came from.
    pub from: PeerId,
    /// Bytes.
    pub len: usize,
    /// Where the link has it. Of no meaning elsewhere; below 2^24, since several links held together number
    /// themselves in the bits above.
    pub slot: u32,
}

/// What happened on a link.
#[derive(Debug)]
pub enum Event {
    /// A frame came in. It must be given back with [`Link::release`] before the next
    /// [`Link::poll`].
    Frame(Frame),
    /// The front of a long frame came in, at least [`Path::FRONT`] bytes of it, and the rest is on its way;
    /// only after [`Setting::Early`]. It can be read and peeked at as far as it is there. Before the next
    /// [`Link::poll`] it has to be given back with [`Link::land`].
    Begun(Frame),
    /// A peer went away. Every frame it had sent has been delivered before. Frames sent to it are
    /// refused from now on, unless it can be connected to anew.
    Closed(PeerId, Gone),
    /// Another path leads to this peer than [`Link::path`] said before. Nothing was sent on either.
    PathChanged(PeerId),
    /// An access that [`crate::RmaLink::start`] began, or a [`Link::land`], is over: whether all bytes are
    /// there.
    Done(OpId, bool),
}

/// Where the bytes of a frame that has begun belong: `len` of them, from byte `off` of the frame on, to byte
/// `doff` of `dst`. What is behind them goes nowhere.
#[derive(Clone, Copy, Debug)]
pub struct LandAt<'a> {
    /// Within [`Path::FRONT`].
    pub off: usize,
    /// Memory of this process.
    pub dst: &'a [Span],
    /// The byte of `dst` at which they begin.
    pub doff: usize,
    /// Bytes.
    pub len: usize,
}

/// How far the bytes of a frame that has begun are where they belong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Landing {
    /// It is over: whether all are.
    Over(bool),
    /// [`Event::Done`] will tell.
    InFlight(OpId),
    /// They belong nowhere yet: a poll hands the frame out again.
    Left,
}

/// What [`Link::poll_frame`] saw.
#[derive(Debug)]
pub enum PollFrame {
    /// Nothing is there.
    Nothing,
    /// A frame, to be given back like one of [`Link::poll`].
    Frame(Frame),
    /// Only a [`Link::poll`] can tell.
    Unknown,
}

/// Moves frames to and from peers, in order and without loss. It belongs to one endpoint and is driven by one
/// thread at a time.
pub trait Link {
    /// The endpoint's own name.
    fn addr(&self) -> Addr;

    /// The peer of that name; made known if it was not. Does no IO, and needs no peer to be there. It may be
    /// this endpoint's own name, which is a peer like any other.
    fn peer(&mut self, addr: &Addr) -> PeerId;

    /// The name of a peer.
    fn peer_addr(&self, peer: PeerId) -> Addr;

    /// Whether this link may lead to an endpoint of that name, as far as can be told without trying, or why
    /// not.
    fn reaches(&self, _addr: &Addr) -> Result<(), String> {
        Ok(())
    }

    /// What the way to this peer can do. The same until its next [`Event::Closed`] or [`Event::PathChanged`].
    fn path(&self, peer: PeerId) -> Path;

    /// Sends one frame made of `head` and then the bytes `off..off+len` of `body`, connecting if
    /// need be. When it returns `Ok` all bytes have been copied.
    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused>;

    /// As [`Link::send`], of one buffer behind a head, if it is short and there is room, so that it takes no
    /// more than to copy it; else `None`, and nothing has happened.
    #[inline]
    fn send_short<const N: usize>(
        &mut self,
        _to: PeerId,
        _head: [u8; N],
        _body: Span,
    ) -> Option<Result<Sent, Refused>>
    where
        Self: Sized,
    {
        None
    }

    /// The next event, if there is one.
    fn poll(&mut self) -> Option<Event>;

    /// The next frame, by what a [`Link::poll`] would look at first. Unless it answers that only a poll can
    /// tell, it counts for one, which then need not be called.
    #[inline]
    fn poll_frame(&mut self) -> PollFrame {
        PollFrame::Unknown
    }

    /// Another frame of this peer, if one is there; to be called, and the frame to be given back, like
    /// [`Link::poll`] and its. `None` may come before all are taken.
    #[inline]
    fn poll_frame_from(&mut self, _from: PeerId) -> Option<Frame> {
        None
    }

    /// [`Link::poll_frame`] that looks for frames of this peer alone. A caller that has its frames so has to
    /// poll for those of other peers when this answers that only a poll can tell, which it does now and then.
    #[inline]
    fn poll_frame_of(&mut self, _from: PeerId) -> PollFrame {
        PollFrame::Unknown
    }

    /// Whether this peer has sent more than what was handed out. Quick; `false` may be wrong a moment later.
    fn has_frames_of(&self, _from: PeerId) -> bool {
        false
    }

    /// The first `N` bytes of the frame, at most 60 of them; `None` if it has fewer.
    #[inline]
    fn peek<const N: usize>(&self, frame: &Frame) -> Option<[u8; N]>
    where
        Self: Sized,
    {
        let mut bytes = [0; N];
        (self.read(frame, 0, &mut bytes) == N).then_some(bytes)
    }

    /// Copies bytes from `off` on out of the frame; returns how many there were.
    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize;

    /// Copies up to `len` bytes from `off` on out of the frame to byte `doff` of `dst`; returns how
    /// many there were, or fewer where memory of `dst` is gone or its device failed.
    fn copy_out(&self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize;

    /// Copies `len` bytes from `off` on out of the frame to `dst` and gives it back, if that takes no more
    /// than a copy; else `false`, and [`Link::copy_out`] and [`Link::release`] are the way.
    #[inline]
    fn take(&mut self, _frame: &Frame, _off: usize, _dst: Span, _len: usize) -> bool {
        false
    }

    /// Gives a frame back.
    fn release(&mut self, frame: Frame);

    /// How the link is to be from now on.
    fn set(&mut self, _setting: Setting<'_>) {}

    /// Whether bytes for this peer that a send has taken are still in this process. Once its end was told of
    /// ([`Event::Closed`]): whether some were lost so, which is told once.
    fn keeps(&mut self, _to: PeerId) -> bool {
        false
    }

    /// Gives a frame back unread. One that has begun goes to `to` as it comes, or comes as [`Event::Frame`]
    /// when it is whole; where [`Event::Done`] follows, it comes before anything else of that peer, and
    /// [`crate::RmaLink::cancel`] ends the operation, after which the memory is not written any more. One of
    /// a [`Link::poll_frame`] goes nowhere: the next poll finds it again. Any link that begins frames, or
    /// finds some so, has this.
    fn land(&mut self, frame: Frame, _to: Option<LandAt<'_>>) -> Landing {
        debug_assert!(false, "a frame of {} bytes that no link has begun", frame.len);
        Landing::Over(false)
    }

    /// Of the channel to or from this peer. Not for each message: whether a process has ended may be asked of
    /// the kernel.
    fn channel(&self, _peer: PeerId) -> Channel {
        Channel::Open
    }

    /// Makes a channel to this peer, as [`Connect`] says.
    fn connect(&mut self, _peer: PeerId, _how: Connect) -> Result<(), Refused> {
        Ok(())
    }

    /// The next frame that matters is most likely one of this peer: a receive from it is posted, and no
    /// other. Until one has come, or this is called again, quick polls that follow each other closely may
    /// look for frames of others only now and then.
    fn awaits(&mut self, _peer: Option<PeerId>) {}

    /// The next short frame most likely goes to this peer: what it takes may be fetched meanwhile from the
    /// core that polls it.
    fn will_send(&mut self, _to: PeerId) {}

    /// Whether there is room for a frame of `len` bytes that the peer can do without: with it, those that it
    /// has not taken are far fewer than there may be, and fewer than transfers that a [`crate::PieceCounter`]
    /// can tell apart. Where frames share room, it finds some now.
    fn has_room_to_spare(&mut self, _to: PeerId, _len: usize) -> bool {
        true
    }

    /// The process exits with this endpoint open. Whether all that was sent has arrived, or never will; if
    /// not, this is to be called again, for the `last` time when it is not waited for any more. Nothing is
    /// handed out, and nothing closed. A link that needs no calls for what it has taken ignores this.
    fn settle(&mut self, _last: bool) -> bool {
        true
    }

    /// Has done with a peer, as [`Parting`] says.
    fn dismiss(&mut self, _peer: PeerId, _how: Parting) {}

    /// Asks every peer to wake this endpoint when it sends. Returns whether it is safe to sleep:
    /// `false` means that something is there already.
    fn arm(&mut self) -> bool;

    /// Whether the last [`Link::arm`] returned true and holds: [`Link::poll`] was not called since, nothing
    /// was taken from [`WaitFd::All`], and no operation is in flight whose end does not show there. Quick:
    /// it is asked by each call that another thread makes while one sleeps. A link that cannot tell says
    /// `false`.
    fn is_armed(&self) -> bool {
        false
    }

    /// A descriptor that poll(2) finds readable when there is something to do; `None`: this link has none such,
    /// and where it has none at all, it is polled.
    fn wait_fd(&self, _which: WaitFd) -> Option<RawFd> {
        None
    }

    /// Whether a connection that is being made has come further since this was asked last, so that more of it
    /// is about to come.
    fn has_met(&mut self) -> bool {
        false
    }

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

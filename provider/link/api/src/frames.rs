//! Frames to and from peers.

use hmem::Span;

use crate::link::{Gone, Link, Refused};
use crate::path::{OpId, PeerId};

/// Where the bytes of a frame are that a link took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// On their way.
    Done,
    /// Some of them wait in this process for room, or may do so as long as a provider below has not completed
    /// them. A later [`FrameLink::poll`] sends them on, and [`FrameLink::keeps`] says whether it has. Only
    /// after [`Setting::Kept`](crate::Setting::Kept).
    Kept,
}

/// A received frame, which its link holds until [`FrameLink::release`].
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
    /// A frame came in. It must be given back with [`FrameLink::release`] before the next
    /// [`FrameLink::poll`].
    Frame(Frame),
    /// The front of a long frame came in, at least [`Path::FRONT`](crate::Path::FRONT) bytes of it, and the
    /// rest is on its way; only after [`Setting::Early`](crate::Setting::Early). It can be read and peeked at
    /// as far as it is there. Before the next [`FrameLink::poll`] it has to be given back with
    /// [`FrameLink::land`].
    Begun(Frame),
    /// A peer went away. Every frame it had sent has been delivered before. Frames sent to it are
    /// refused from now on, unless it can be connected to anew.
    Closed(PeerId, Gone),
    /// Another path leads to this peer than [`Link::path`] said before. Nothing was sent on either.
    PathChanged(PeerId),
    /// An access that [`crate::RmaLink::start`] began, or a [`FrameLink::land`], is over: whether all bytes
    /// are there. What [`crate::RmaLink::start_once`] began was done if they are not: its result could not be
    /// written.
    Done(OpId, bool),
    /// Such an access has ended with the connection that it went by: whether its bytes are where they belong
    /// is not known, and it is not to be repeated. The end of the peer follows.
    Cut(OpId),
    /// A peer has written memory of a registration by [`Once::Write`](crate::Once::Write), in order with its
    /// frames: the data that came with it, and how many bytes.
    Written(PeerId, u32, usize),
}

/// Where the bytes of a frame that has begun belong: `len` of them, from byte `off` of the frame on, to byte
/// `doff` of `dst`. What is behind them goes nowhere.
#[derive(Clone, Copy, Debug)]
pub struct LandAt<'a> {
    /// Within [`Path::FRONT`](crate::Path::FRONT).
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
    /// [`Event::Done`] reports it.
    InFlight(OpId),
    /// They belong nowhere yet: a poll hands the frame out again.
    Left,
}

/// Whose frames a [`FrameLink::poll_frame`] looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameSource {
    /// Those of all peers. Unless the answer is [`PollFrame::Unknown`] the call counts for a
    /// [`FrameLink::poll`], which then need not be called.
    Any,
    /// As [`FrameSource::Any`], of links alone that look without a system call. [`PollFrame::Nothing`]: none
    /// has a frame, or none was looked at. The call never counts for a [`FrameLink::poll`].
    AnyAtHand,
    /// Those of this peer alone. A caller that has its frames so has to poll for those of other peers when
    /// the answer is [`PollFrame::Unknown`], which it is now and then.
    Only(PeerId),
    /// More of this peer, behind a frame of it that was given back; to be called like [`FrameLink::poll`],
    /// and never instead of it. The answer is a frame or [`PollFrame::Unknown`], which may come before all
    /// are taken.
    Next(PeerId),
}

/// What most likely comes next: a link may do it faster, and nothing depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The next frame that matters is one of this peer: a receive from it is posted, and no other. Until one
    /// has come, or this is said again, quick polls that follow each other closely may look for frames of
    /// others only now and then. `None`: it may be of any.
    ReceiveFrom(Option<PeerId>),
    /// The next short frame goes to this peer: what it takes may be fetched meanwhile from the core that
    /// polls it.
    SendTo(PeerId),
}

/// What becomes of short frames that are sent from now on ([`FrameLink::cork`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cork {
    /// They may be kept back. The same call of the application's ends that.
    On,
    /// They may be kept back, by a link that [`Cork::Leave`] leaves them with; with others this is
    /// [`Cork::Off`].
    Gather,
    /// They are not. Those that are kept may stay until a frame to their peer that is not, or [`Cork::Off`],
    /// which the next call of progress brings.
    Leave,
    /// They are not, and none stays: all have been sent, or wait for room, when the call returns.
    Off,
}

/// What [`FrameLink::poll_frame`] saw.
#[derive(Debug)]
pub enum PollFrame {
    /// Nothing is there.
    Nothing,
    /// A frame, to be given back like one of [`FrameLink::poll`].
    Frame(Frame),
    /// Only a [`FrameLink::poll`] finds out.
    Unknown,
}

/// Moves frames to and from peers, in order and without loss.
pub trait FrameLink: Link {
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

    /// As [`FrameLink::send`], of one buffer behind a head, if it is short and there is room, so that it
    /// takes no more than to copy it; else `None`, and nothing has happened.
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

    /// The next frame of this source, by what a [`FrameLink::poll`] would look at first.
    #[inline]
    fn poll_frame(&mut self, _of: FrameSource) -> PollFrame {
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

    /// As [`FrameLink::copy_out`], where nothing of these bytes, or of what is behind them in the frame, is
    /// copied or read again: a link that would have to keep them for that need not.
    #[inline]
    fn copy_last(&mut self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        self.copy_out(frame, off, dst, doff, len)
    }

    /// Copies all bytes from `off` on out of the frame, which was handed out last, to the beginning of `dst`
    /// and gives it back, if that takes no more than a copy; else `false`, and [`FrameLink::copy_out`] and
    /// [`FrameLink::release`] are the way.
    ///
    /// A caller calls with `apart` false first, and with `apart` true if the answer is `false`. A link that
    /// holds several others takes the frames of one of them by the first call alone, which may be inlined,
    /// and those of the others by the second call alone, which is not to be inlined. Any other link may
    /// ignore `apart`.
    #[inline]
    fn take(&mut self, _frame: &Frame, _off: usize, _dst: Span, _apart: bool) -> bool {
        false
    }

    /// Gives a frame back.
    fn release(&mut self, frame: Frame);

    /// Whether bytes for this peer that a send has taken are still in this process. Once its end was reported
    /// ([`Event::Closed`]): whether some were lost so, which is reported once.
    fn keeps(&mut self, _to: PeerId) -> bool {
        false
    }

    /// Gives a frame back unread. One that has begun goes to `to` as it comes, or comes as [`Event::Frame`]
    /// when it is whole; where [`Event::Done`] follows, it comes before anything else of that peer, and
    /// [`crate::RmaLink::cancel`] ends the operation, after which the memory is not written any more. One of
    /// a [`FrameLink::poll_frame`] goes nowhere: the next poll finds it again. Any link that begins frames,
    /// or finds some so, has this.
    fn land(&mut self, frame: Frame, _to: Option<LandAt<'_>>) -> Landing {
        debug_assert!(false, "a frame of {} bytes that no link has begun", frame.len);
        Landing::Over(false)
    }

    /// Short frames may be kept back to go together: answers to frames that came together, or writes that are
    /// posted one behind the other.
    #[inline]
    fn cork(&mut self, _how: Cork) {}

    /// What most likely comes next.
    #[inline]
    fn hint(&mut self, _hint: Hint) {}

    /// Whether there is room for a frame of `len` bytes that the peer can do without: with it, those that it
    /// has not taken are far fewer than there may be, and fewer than transfers that a [`crate::PieceCounter`]
    /// can keep apart. Where frames share room, it finds some now.
    fn has_room_to_spare(&mut self, _to: PeerId, _len: usize) -> bool {
        true
    }
}

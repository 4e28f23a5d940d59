//! Sleeping until a link has something to do.

use std::os::fd::RawFd;

use crate::link::Link;

/// Descriptors of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitFd {
    /// The one that stands for all. It is readable where there is an event to poll, room for a frame that
    /// found none, or a channel where [`Refused::Busy`](crate::Refused::Busy) said that there is none yet;
    /// provided that [`SleepLink::arm`], which looks for the same, returned true and
    /// [`FrameLink::poll`](crate::FrameLink::poll) was not called since.
    All,
    /// Those that it stands for, by number, one of which is readable when it is: for a caller that watches
    /// other descriptors as well, since descriptors may watch each other but a few levels deep.
    Each(usize),
    /// One of these that is not to be watched any more, since it may stay readable for good. Reported once;
    /// requested with each [`SleepLink::arm`].
    Worn,
}

impl WaitFd {
    /// Of a link that has this descriptor alone.
    pub fn only(self, fd: RawFd) -> Option<RawFd> {
        matches!(self, WaitFd::All | WaitFd::Each(0)).then_some(fd)
    }
}

/// What a caller that sleeps needs of a link.
pub trait SleepLink: Link {
    /// Asks every peer to wake this endpoint when it sends. Returns whether it is safe to sleep:
    /// `false` means that something is there already.
    fn arm(&mut self) -> bool;

    /// Whether the last [`SleepLink::arm`] returned true and holds:
    /// [`FrameLink::poll`](crate::FrameLink::poll) was not called since, nothing was taken from
    /// [`WaitFd::All`], and no operation is in flight whose end does not show there. Quick: it is asked by
    /// each call that another thread makes while one sleeps. A link that does not know says `false`.
    fn is_armed(&self) -> bool {
        false
    }

    /// A descriptor that poll(2) finds readable when there is something to do; `None`: this link has none
    /// such, and where it has none at all, it is polled.
    fn wait_fd(&self, _which: WaitFd) -> Option<RawFd> {
        None
    }

    /// Whether a connection that is being made has come further since this was asked last, so that more of it
    /// is about to come.
    fn has_met(&mut self) -> bool {
        false
    }
}

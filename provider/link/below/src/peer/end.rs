//! Ends of a peer that are still to be reported, and the frames that it lost.

use std::time::Instant;

use link_api::Gone;

/// How a peer ends, and what of its frames was lost.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// The fabric has lost a message: the connection has to report the end of the peer until then.
    broken: Option<Instant>,
    /// How many ends of it are still to be reported here.
    ending: u32,
    /// Frames to it were lost, and its end is not reported yet; or is, and the loss is still to be reported.
    losing: bool,
    lost: bool,
    /// Why it is cut off, if not as the connection says.
    why: Option<Gone>,
}

impl End {
    /// Of the same peer at another time: only the reports that are outstanding.
    pub(crate) fn carry(&self) -> End {
        End { broken: None, ending: self.ending, losing: self.losing, lost: self.lost, why: None }
    }

    /// The fabric has lost a message.
    pub(crate) fn break_off(&mut self, until: Instant) {
        self.broken = Some(until);
    }

    /// Whether the fabric has lost a message.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Whether it has, and the connection has not reported the end in time.
    pub(crate) fn is_overdue(&self, now: Instant) -> bool {
        self.broken.is_some_and(|until| until <= now)
    }

    /// The reason to report instead of the connection's.
    pub(crate) fn set_why(&mut self, why: Option<Gone>) {
        self.why = why;
    }

    /// The reason to report, where the connection has this one.
    pub(crate) fn take_why(&mut self, why: Gone) -> Gone {
        self.why.take().unwrap_or(why)
    }

    /// Frames to the peer were lost, if `losing`.
    pub(crate) fn lose(&mut self, losing: bool) {
        self.losing |= losing;
    }

    /// An end is to be reported.
    pub(crate) fn begin(&mut self) {
        self.lost = std::mem::take(&mut self.losing);
        self.ending += 1;
    }

    /// An end is reported.
    pub(crate) fn report(&mut self) {
        self.ending -= 1;
    }

    /// Whether an end is still to be reported.
    #[inline]
    pub(crate) fn is_ending(&self) -> bool {
        self.ending > 0
    }

    /// Whether an end is still to be reported, or will be of which it is known that frames were lost.
    pub(crate) fn is_losing(&self) -> bool {
        self.ending > 0 || self.losing
    }

    /// Whether frames were lost before the end that was reported last; reported once.
    pub(crate) fn take_lost(&mut self) -> bool {
        std::mem::take(&mut self.lost)
    }

    /// No loss is reported any more.
    pub(crate) fn forget_losses(&mut self) {
        (self.losing, self.lost) = (false, false);
    }
}

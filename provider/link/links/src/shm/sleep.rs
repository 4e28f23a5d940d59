//! Sleeping until a descriptor is readable, and what keeps an endpoint from it.

use std::cell::Cell;
use std::os::fd::{AsRawFd, RawFd};

use ipc::Poller;
use ipc::fence::{self, Barrier};

/// Whether the endpoint's senders wake it, and by what.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Sleep {
    /// This process takes part in barriers of other processes, and this endpoint fenced since.
    registered: Cell<bool>,
    poller: Poller,
    barrier: Barrier,
    /// Each sender is asked to wake this endpoint.
    armed: bool,
    /// The last arming found nothing to do.
    quiet: bool,
    /// A peer could not be reached just yet, so the next arming refuses to sleep: nothing would wake the
    /// endpoint when it can.
    retry: bool,
}

impl Sleep {
    pub(super) fn new(poller: Poller) -> Sleep {
        let (barrier, registered) = (Barrier::probe_unregistered(), Cell::new(false));
        Sleep { poller, barrier, registered, armed: false, quiet: false, retry: false }
    }

    pub(super) fn poller(&self) -> &Poller {
        &self.poller
    }

    pub(super) fn fd(&self) -> RawFd {
        self.poller.fd()
    }

    pub(super) fn watch(&self, fd: &impl AsRawFd, token: u64) -> std::io::Result<()> {
        self.poller.add(fd, token)
    }

    pub(super) fn unwatch(&self, fd: &impl AsRawFd) {
        self.poller.remove(fd);
    }

    pub(super) fn barrier(&self) -> Barrier {
        self.barrier
    }

    /// Whether this process takes part in barriers of other processes (membarrier(2)).
    #[inline(always)]
    pub(super) fn is_registered(&self) -> bool {
        self.registered.get() || self.ask_registered()
    }

    /// The same, asked of the process: its keeper registers it while the endpoint is used already.
    #[cold]
    fn ask_registered(&self) -> bool {
        if fence::is_registered() {
            fence::full_fence();
            self.registered.set(true);
        }
        self.registered.get()
    }

    /// Senders are asked from now on; whatever comes of it, the next poll disarms.
    pub(super) fn arm(&mut self) {
        self.armed = true;
    }

    /// Whether it was armed.
    pub(super) fn disarm(&mut self) -> bool {
        std::mem::take(&mut self.armed)
    }

    pub(super) fn set_quiet(&mut self, quiet: bool) {
        self.quiet = quiet;
    }

    /// Whether the last arming found nothing to do, and no poll followed.
    pub(super) fn may_sleep(&self) -> bool {
        self.armed && self.quiet
    }

    /// Something is to be tried again, and no descriptor says when.
    pub(super) fn retry(&mut self) {
        self.retry = true;
    }

    pub(super) fn is_to_retry(&self) -> bool {
        self.retry
    }

    /// Whether something is to be tried again, which counts once.
    pub(super) fn take_retry(&mut self) -> bool {
        std::mem::take(&mut self.retry)
    }
}

//! Descriptors or memory that peers wait for, and a descriptor in reserve.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ipc::{rights, socket};

/// What peers cannot be met for want of.
#[derive(Debug, Default)]
pub struct Shortage {
    callers: Option<Lacking>,
    /// What a peer that is called last found lacking, as an errno.
    called: Option<i32>,
    reported: bool,
}

/// What peers that call find lacking.
#[derive(Clone, Copy, Debug)]
pub struct Lacking {
    /// The last one's, as an errno.
    pub errno: i32,
    /// When the first one did, and when the last one did.
    pub since: Instant,
    pub last: Instant,
}

fn errno(e: &io::Error) -> i32 {
    e.raw_os_error().unwrap_or(libc::EMFILE)
}

impl Shortage {
    /// Whether the log gets a line aloud, which is so once.
    pub fn warns(&mut self) -> bool {
        !std::mem::replace(&mut self.reported, true)
    }

    /// A peer that calls cannot be met; for how long that has been so.
    pub fn of_caller(&mut self, e: &io::Error) -> Duration {
        let last = Instant::now();
        let since = self.callers.map_or(last, |callers| callers.since);
        self.callers = Some(Lacking { errno: errno(e), since, last });
        last - since
    }

    /// A peer cannot be called.
    pub fn of_called(&mut self, e: &io::Error) {
        self.called = Some(errno(e));
    }

    /// A peer that calls could be met, or is refused: what callers have found lacking until now.
    pub fn end(&mut self) -> Option<Lacking> {
        self.callers.take()
    }

    /// A peer is called once more.
    pub fn calls_again(&mut self) {
        self.called = None;
    }

    /// What peers that call find lacking.
    pub fn callers(&self) -> Option<Lacking> {
        self.callers
    }

    /// What a peer that is called last found lacking, as an errno.
    pub fn called(&self) -> Option<i32> {
        self.called
    }

    /// Whether there ever was any.
    pub fn was_ever(&self) -> bool {
        self.reported || self.callers.is_some()
    }
}

/// A descriptor that gives its place away where one is needed for a moment.
#[derive(Debug)]
pub struct Spare<F>(Option<F>);

impl<F> Spare<F> {
    /// What is given away, if there is one.
    pub fn new(fd: Option<F>) -> Spare<F> {
        Spare(fd)
    }

    /// Whether it has its place.
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Gives its place away; whether it still had it.
    pub fn give(&mut self) -> bool {
        self.0.take().is_some()
    }

    /// Takes a place again if there is one, by a descriptor that is made.
    pub fn renew(&mut self, make: impl FnOnce() -> io::Result<F>) {
        if self.0.is_none() {
            self.0 = make().ok();
        }
    }
}

impl Spare<OwnedFd> {
    /// As [`rights::recv_fd`]; if there is no place for the descriptor, it has the spare one's.
    pub fn recv_fd(&mut self, sock: &OwnedFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
        match rights::recv_fd(sock, bytes) {
            Err(e) if socket::is_lack(&e) && self.give() => rights::recv_fd(sock, bytes),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn what_callers_and_called_ones_lack_is_known_until_they_are_met() {
        let of = io::Error::from_raw_os_error;
        let mut all = Shortage::default();
        assert!(!all.was_ever() && all.callers().is_none() && all.end().is_none());
        assert!(all.warns() && !all.warns() && all.was_ever());
        let first = all.of_caller(&of(libc::EMFILE));
        assert!(all.of_caller(&of(libc::ENOMEM)) >= first && first.is_zero());
        all.of_called(&of(libc::ENFILE));
        let callers = all.callers().unwrap();
        assert!(callers.errno == libc::ENOMEM && callers.last >= callers.since);
        assert_eq!(all.called(), Some(libc::ENFILE));
        all.calls_again();
        assert!(all.called().is_none() && all.end().is_some() && all.callers().is_none());
    }

    #[test]
    fn the_spare_descriptor_gives_its_place_once() {
        let (near, far) = UnixDatagram::pair().unwrap();
        let (near, far): (OwnedFd, OwnedFd) = (near.into(), far.into());
        let mut spare = Spare::new(near.try_clone().ok());
        rights::send_fd(&near, b"x", near.as_fd()).unwrap();
        assert!(spare.recv_fd(&far, &mut [0; 4]).unwrap().1.is_some());
        assert!(spare.is_there() && spare.give(), "there was place enough");
        assert!(!spare.is_there() && !spare.give());
        spare.renew(|| near.try_clone());
        assert!(spare.give());
    }
}

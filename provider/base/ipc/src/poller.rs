//! Sleeping until one of many descriptors has something (epoll(7)).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use crate::cvt;

/// What a member is watched for. An error or a hang-up is reported in any case, as readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Something to read.
    Read,
    /// Room to write.
    Write,
    /// Either.
    Both,
    /// Neither.
    Ends,
    /// Something to read, reported once: after that it is not watched until it is [changed](Poller::change).
    Once,
}

/// A set of descriptors that are watched, for something to read if nothing else is said, each with a number,
/// its token. It has a descriptor itself, which other pollers can watch, and on which programs can sleep.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    pub fn new() -> io::Result<Poller> {
        // SAFETY: epoll_create1(2) touches no memory of ours.
        let fd = cvt(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: a descriptor just made, which nothing else owns.
        Ok(Poller(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Readable while a member has something.
    pub fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub fn add(&self, fd: &impl AsRawFd, token: u64) -> io::Result<()> {
        self.add_for(fd, token, Watch::Read)
    }

    /// Adds a member that is watched for this.
    pub fn add_for(&self, fd: &impl AsRawFd, token: u64, watch: Watch) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, watch)
    }

    /// From now on a member is watched for this.
    pub fn change(&self, fd: &impl AsRawFd, token: u64, watch: Watch) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, watch)
    }

    fn control(&self, op: i32, fd: &impl AsRawFd, token: u64, watch: Watch) -> io::Result<()> {
        let events = match watch {
            Watch::Read => libc::EPOLLIN,
            Watch::Write => libc::EPOLLOUT,
            Watch::Both => libc::EPOLLIN | libc::EPOLLOUT,
            Watch::Ends => 0,
            Watch::Once => libc::EPOLLIN | libc::EPOLLONESHOT,
        };
        let mut ev = libc::epoll_event { events: events as u32, u64: token };
        // SAFETY: `ev` is a valid event.
        cvt(unsafe { libc::epoll_ctl(self.fd(), op, fd.as_raw_fd(), &mut ev) })?;
        Ok(())
    }

    /// Takes a member out. Closing it is not enough where a forked child holds it too.
    pub fn remove(&self, fd: &impl AsRawFd) {
        let none = std::ptr::null_mut();
        // SAFETY: EPOLL_CTL_DEL takes no event.
        unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), none) };
    }

    /// The members that have something, `N` of them at most, without waiting.
    pub fn ready<const N: usize>(&self) -> Ready<N> {
        let mut ready = Ready { events: [const { MaybeUninit::uninit() }; N], n: 0 };
        // SAFETY: `events` is a valid place for so many events.
        let n = unsafe { libc::epoll_wait(self.fd(), ready.events.as_mut_ptr().cast(), N as i32, 0) };
        ready.n = n.max(0) as usize;
        ready
    }
}

/// What [`Poller::ready`] found.
pub struct Ready<const N: usize> {
    /// The kernel has written the first `n`.
    events: [MaybeUninit<libc::epoll_event>; N],
    n: usize,
}

impl<const N: usize> Ready<N> {
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    fn found(&self) -> impl Iterator<Item = libc::epoll_event> + '_ {
        // SAFETY: epoll_wait(2) has written as many as it said.
        self.events[..self.n].iter().map(|event| unsafe { event.assume_init() })
    }

    /// The tokens of the members.
    pub fn tokens(&self) -> impl Iterator<Item = u64> + '_ {
        self.found().map(|event| event.u64)
    }

    /// The tokens, whether there is something to read, an error or a hang-up, and whether there is room to
    /// write.
    pub fn events(&self) -> impl Iterator<Item = (u64, bool, bool)> + '_ {
        const ROOM: u32 = libc::EPOLLOUT as u32;
        self.found().map(|event| {
            let what = event.events;
            (event.u64, what & !ROOM != 0, what & ROOM != 0)
        })
    }
}

impl<const N: usize> std::fmt::Debug for Ready<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.tokens()).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn members_that_have_something_are_named_by_their_tokens() {
        let poller = Poller::new().unwrap();
        let (mut one, at_one) = UnixStream::pair().unwrap();
        let (mut other, at_other) = UnixStream::pair().unwrap();
        poller.add(&at_one, 1 << 40).unwrap();
        poller.add(&at_other.as_raw_fd(), 7).unwrap();
        assert!(poller.ready::<4>().is_empty());
        // A poller is a member like any other.
        let outer = Poller::new().unwrap();
        outer.add(&poller.fd(), 3).unwrap();
        assert!(outer.ready::<1>().is_empty());
        one.write_all(b"x").unwrap();
        assert_eq!(poller.ready::<4>().tokens().collect::<Vec<_>>(), [1 << 40]);
        assert_eq!(outer.ready::<1>().tokens().collect::<Vec<_>>(), [3]);
        other.write_all(b"x").unwrap();
        assert_eq!(poller.ready::<4>().tokens().count(), 2);
        assert_eq!(poller.ready::<1>().tokens().count(), 1);
        poller.remove(&at_one);
        assert_eq!(poller.ready::<4>().tokens().collect::<Vec<_>>(), [7]);
        assert!(poller.add(&-1, 0).is_err());
    }

    #[test]
    fn members_are_watched_for_what_was_asked() {
        let poller = Poller::new().unwrap();
        let (mut one, at_one) = UnixStream::pair().unwrap();
        let found = || poller.ready::<4>().events().collect::<Vec<_>>();
        poller.add_for(&at_one, 5, Watch::Write).unwrap();
        assert_eq!(found(), [(5, false, true)]);
        one.write_all(b"x").unwrap();
        assert_eq!(found(), [(5, false, true)]);
        poller.change(&at_one, 5, Watch::Both).unwrap();
        assert_eq!(found(), [(5, true, true)]);
        poller.change(&at_one, 5, Watch::Read).unwrap();
        assert_eq!(found(), [(5, true, false)]);
        poller.change(&at_one, 5, Watch::Once).unwrap();
        assert_eq!(found(), [(5, true, false)]);
        assert_eq!(found(), [], "it was reported");
        poller.change(&at_one, 5, Watch::Once).unwrap();
        assert_eq!(found(), [(5, true, false)], "what is there is reported once more");
        assert!(poller.change(&one, 5, Watch::Read).is_err());
    }
}

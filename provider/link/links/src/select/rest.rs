//! The descriptor that stands for all links of an endpoint, and when it is polled together with those of
//! other endpoints of the process ([`super::crowd`]).

use std::io;
use std::os::fd::RawFd;

use ipc::Poller;
use link_api::WaitFd;

use super::crowd::Member;
use super::further::BoxedLink;

#[derive(Debug, Default)]
pub(super) struct Rest {
    /// The endpoint's part in polls of many endpoints, if it takes part. It is dropped before `poller`, whose
    /// descriptor it names.
    member: Option<Member>,
    /// Watches the descriptors of all links, if there is more than one.
    poller: Option<Poller>,
}

impl Rest {
    /// The descriptor that stands for all links, if there is more than one.
    pub(super) fn fd(&self) -> Option<RawFd> {
        self.poller.as_ref().map(Poller::fd)
    }

    /// Has one descriptor stand for all links, that of shared memory being `shm`.
    pub(super) fn begin(&mut self, shm: Option<RawFd>) -> io::Result<()> {
        if self.poller.is_none() {
            let poller = Poller::new()?;
            poller.add(&shm.unwrap_or(-1), 0)?;
            self.poller = Some(poller);
        }
        Ok(())
    }

    /// Watches the descriptor of a further link.
    pub(super) fn watch(&mut self, shm: Option<RawFd>, fd: RawFd) -> io::Result<()> {
        self.begin(shm)?;
        self.poller.as_ref().map_or(Ok(()), |poller| poller.add(&fd, 0))
    }

    /// Watches descriptors no more that further links have replaced.
    pub(super) fn unwatch<'a>(&self, links: impl Iterator<Item = &'a BoxedLink>) {
        if let Some(poller) = &self.poller {
            links.filter_map(|link| link.wait_fd(WaitFd::Worn)).for_each(|fd| poller.remove(&fd));
        }
    }

    /// Takes part in polls of many endpoints, where one descriptor stands for each further link. Those of a
    /// link that has several may lie so deep that one more level is too much.
    pub(super) fn join<'a>(&mut self, mut links: impl Iterator<Item = &'a BoxedLink>) {
        let is_simple = links
            .all(|link| link.wait_fd(WaitFd::Each(0)).is_some() && link.wait_fd(WaitFd::Each(1)).is_none());
        let fd = self.fd();
        self.member = fd.filter(|_| is_simple).and_then(|fd| self.member.take().or_else(|| Member::new(fd)));
    }

    /// Whether the endpoint takes part in polls of many endpoints.
    #[inline]
    pub(super) fn takes_part(&self) -> bool {
        self.member.is_some()
    }

    /// Nothing has come. Whether it is time to rest.
    pub(super) fn is_quiet(&mut self) -> bool {
        self.member.as_mut().is_some_and(Member::is_quiet)
    }

    /// The endpoint was just armed, and its descriptor shows what comes from now on.
    pub(super) fn rest(&mut self) {
        if let Some(member) = &mut self.member {
            member.rest();
        }
    }

    /// Whether the endpoint's descriptor shows what comes.
    #[inline]
    pub(super) fn rests(&self) -> bool {
        self.member.as_ref().is_some_and(Member::rests)
    }

    /// Whether an endpoint that rests is to be polled: its descriptor has something, or it is not armed.
    #[inline]
    pub(super) fn is_due(&mut self, is_armed: impl FnOnce() -> bool) -> bool {
        self.member.as_mut().is_none_or(|member| member.is_due() || (member.is_asked() && !is_armed()))
    }

    /// The next poll is of all links.
    pub(super) fn wake(&mut self) {
        if let Some(member) = &mut self.member {
            member.wake();
        }
    }

    /// The endpoint takes no part in polls of many endpoints.
    #[cfg(all(test, not(loom)))]
    pub(super) fn leave(&mut self) {
        self.member = None;
    }
}

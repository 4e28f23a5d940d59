//! When an endpoint is looked at together with others of its process ([`super::crowd`]).

use link_api::{Link as _, WaitFd};

use super::Links;
use super::crowd::Member;

impl Links {
    /// Takes part in looks at many endpoints, where one descriptor stands for each further link. Those of a
    /// link that has several may lie so deep that one more level is too much.
    pub(super) fn join(&mut self) {
        let is_simple = self.far.iter().all(|far| {
            far.link.wait_fd(WaitFd::Each(0)).is_some() && far.link.wait_fd(WaitFd::Each(1)).is_none()
        });
        let fd = self.poller.as_ref().map(ipc::Poller::fd);
        self.member = fd.filter(|_| is_simple).and_then(|fd| self.member.take().or_else(|| Member::new(fd)));
    }

    /// Nothing has come. Where that is so for a while, and no peer has a ring here, descriptors tell what
    /// comes.
    #[cold]
    pub(super) fn rest_if_quiet(&mut self) {
        let Some(member) = &mut self.member else { return };
        if !member.is_quiet() || !self.shm.has_no_rings() {
            return;
        }
        let is_armed = self.arm();
        if let Some(member) = self.member.as_mut().filter(|_| is_armed) {
            member.rest();
        }
    }

    /// Whether this poll is to find nothing: the endpoint rests, and its descriptor has nothing.
    #[inline(never)]
    pub(super) fn rests(&mut self) -> bool {
        let Some(member) = self.member.as_mut().filter(|member| member.rests()) else { return false };
        if !member.is_due() && (!member.is_asked() || self.is_armed()) {
            return true;
        }
        self.wake();
        self.pace.hurry();
        self.pace.look_next();
        false
    }

    /// A look at further links has found something.
    pub(super) fn found(&mut self) {
        self.pace.found();
        self.wake();
    }

    /// The next poll looks at all links by itself.
    pub(super) fn wake(&mut self) {
        if let Some(member) = &mut self.member {
            member.wake();
        }
    }
}

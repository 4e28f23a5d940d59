//! The socket of a connection, and whether it ends.

use ipc::Unshared;
use link_api::Gone;

use crate::tcp::sock;

/// One of them.
#[derive(Debug)]
pub(super) struct Line {
    fd: Unshared,
    /// Nothing more will be received.
    over: Option<Gone>,
    /// What it is followed by is there, or nothing can be sent any more: it ends when nothing more is to be
    /// had.
    last: bool,
}

impl Line {
    pub(super) fn new(fd: Unshared) -> Line {
        sock::unpace(&fd);
        Line { fd, over: None, last: false }
    }

    #[inline(always)]
    pub(super) fn fd(&self) -> &Unshared {
        &self.fd
    }

    /// Why nothing more will be received, if that is so.
    #[inline(always)]
    pub(super) fn over(&self) -> Option<Gone> {
        self.over
    }

    #[inline(always)]
    pub(super) fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// Nothing more will be received, for this reason.
    #[inline]
    pub(super) fn set_over(&mut self, why: Gone) {
        self.over = Some(why);
    }

    /// Nothing more will be received, for this reason unless there was one before.
    #[inline]
    pub(super) fn end_by(&mut self, why: Gone) {
        self.over.get_or_insert(why);
    }

    /// Whether it ends when nothing more is to be had.
    #[inline(always)]
    pub(super) fn is_last(&self) -> bool {
        self.last
    }

    /// It ends when nothing more is to be had.
    #[inline]
    pub(super) fn set_last(&mut self) {
        self.last = true;
    }

    /// Whether its end is to be reported, perhaps after frames that have come.
    #[inline(always)]
    pub(super) fn ends(&self) -> bool {
        self.over.is_some() || self.last
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    use super::*;

    /// The name of the algorithm for congestion control.
    fn control(fd: &impl AsRawFd) -> String {
        let (mut name, mut len) = ([0u8; 16], 16 as libc::socklen_t);
        let at = name.as_mut_ptr().cast();
        // SAFETY: `name` is a valid place of `len` bytes.
        let rc = unsafe {
            libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_CONGESTION, at, &mut len)
        };
        assert_eq!(rc, 0);
        name.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()
    }

    #[test]
    fn a_connection_within_the_host_is_not_paced_and_one_to_another_address_is_as_the_host_has_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let usual = control(&listener);
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        for end in [near, far] {
            assert_eq!(control(Line::new(Unshared::new(end.into())).fd()), "reno");
        }
        let other = TcpListener::bind("127.0.0.2:0").unwrap();
        let near = TcpStream::connect(other.local_addr().unwrap()).unwrap();
        let is_other = near.local_addr().unwrap().ip() != other.local_addr().unwrap().ip();
        assert!(is_other, "{near:?}");
        assert_eq!(control(Line::new(Unshared::new(near.into())).fd()), usual);
    }
}

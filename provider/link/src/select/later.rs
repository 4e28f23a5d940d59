//! A link over TCP that is opened when a peer of another host is known. Until then no port of the endpoint listens.
//!
//! A job of one host needs no port, and what does not listen cannot be called by a stranger. The port is the endpoint's from the
//! beginning, so that its name does not change. A peer of another host that calls earlier is refused by its kernel, and calls
//! again ([`crate::TcpOptions::connect_timeout`]).

use std::io;

use ipc::Poller;
use link_api::{Link as _, Standing};

use super::Links;
use crate::tcp::{TcpLink, TcpOptions};

/// What such a link is to be opened with, and what was asked of all links meanwhile.
#[derive(Debug)]
pub(super) struct Later {
    options: TcpOptions,
    early: bool,
    kept: bool,
}

impl Later {
    pub(super) fn set_early(&mut self) {
        self.early = true;
    }

    pub(super) fn tell_kept(&mut self) {
        self.kept = true;
    }

    pub(super) fn standing(&self) -> Standing {
        Standing { link: "tcp", offers: Ok("listens once a peer of another host is known".into()) }
    }
}

impl Links {
    /// Adds a link over TCP that is opened when a peer of another host is known, with
    /// [`Port::ListensLater`](crate::Port). To be called
    /// before any peer is known.
    pub fn add_tcp_later(&mut self, options: TcpOptions) -> io::Result<()> {
        // What watches the endpoint's descriptor is not to notice when there is another link.
        let poller = Poller::new()?;
        poller.add(&self.shm.wait_fd().unwrap_or(-1), 0)?;
        self.poller = Some(poller);
        self.later = Some(Later { options, early: false, kept: false });
        self.share_out();
        Ok(())
    }

    /// A peer of another host is known: opens the link that leads there.
    #[cold]
    pub(super) fn open_later(&mut self) {
        let Some(Later { options, early, kept }) = self.later.take() else { return };
        let opened = self.shm.listen().and_then(|()| TcpLink::open(self.shm.name(), options));
        let added = opened.and_then(|mut link| {
            if early {
                link.set_early();
            }
            if kept {
                link.tell_kept();
            }
            self.add(Box::new(link))
        });
        match added {
            Ok(()) => {
                log::debug!("{}: a peer of another host is known, and its port listens", self.shm.addr())
            }
            Err(e) => {
                log::warn!("{}: no peer of another host is reached: {e}", self.shm.addr());
                self.absent.push(("tcp", e.to_string()));
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use link_api::{Event, Refused};
    use wire::Addr;
    use wire::session::JobKey;

    use super::*;
    use crate::{OpenOptions, Port};

    fn later() -> Links {
        let bind = Some("127.0.0.1:0".parse().unwrap());
        let mut links =
            Links::open(OpenOptions { bind, port: Port::ListensLater, ..OpenOptions::default() }).unwrap();
        links.add_tcp_later(TcpOptions::new(JobKey::from_secret(b"of the tests"))).unwrap();
        (links.set_early(), links.tell_kept());
        links
    }

    fn listens(links: &Links) -> bool {
        TcpStream::connect((Ipv4Addr::LOCALHOST, links.addr().port())).is_ok()
    }

    #[test]
    fn a_port_listens_once_a_peer_of_another_host_is_known() {
        let (mut a, mut b) = (later(), later());
        let (fd, own) = (a.wait_fd(), a.addr());
        let to_b = a.peer(&b.addr());
        let mut got = false;
        while !got {
            assert!(matches!(a.send(to_b, b"hello", &[], 0, 0), Ok(()) | Err(Refused::Busy)));
            if let Some(Event::Frame(frame)) = b.poll() {
                b.release(frame);
                got = true;
            }
        }
        assert!(!listens(&a) && !listens(&b), "all peers are of this host");
        let far = a.peer(&Addr::new(([198, 51, 100, 1], 7).into()));
        assert!(listens(&a) && !listens(&b));
        assert_eq!((a.path(far).link, a.path(to_b).link), ("tcp", "shm"));
        assert_eq!((a.wait_fd(), a.addr()), (fd, own));
        assert_eq!(a.send(to_b, b"again", &[], 0, 0), Ok(()));
    }

    /// The kernel lets two sockets share a port that both may use again as long as neither listens.
    #[test]
    fn a_port_that_does_not_listen_is_not_taken() {
        let mut a = later();
        let at = a.addr().sock();
        assert!(crate::name::reserve(at, true).is_err());
        a.peer(&Addr::new(([198, 51, 100, 1], 7).into()));
        assert!(listens(&a));
    }
}

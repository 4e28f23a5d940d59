//! How an endpoint gets its links.

use std::collections::VecDeque;
use std::io;

use ipc::Poller;
use link_api::{Link as _, Setting, WaitFd};

use super::Links;
use super::later::Later;
use super::pace::Pace;
use super::route::{BoxedLink, Far, Routes};
use crate::shm::{Callers, OpenOptions, ShmLink};
use crate::tcp::{TcpLink, TcpOptions};

impl Links {
    /// Opens an endpoint of this name, with the link of shared memory alone.
    pub fn open(options: OpenOptions) -> io::Result<Links> {
        Ok(Links {
            shm: ShmLink::open(options)?,
            far: Vec::new(),
            routes: Routes::default(),
            events: VecDeque::new(),
            turn: 0,
            pace: Pace::default(),
            member: None,
            poller: None,
            near: true,
            neighbours: 0,
            later: None,
            absent: Vec::new(),
        })
    }

    /// Adds a link, to be considered after those that are here. To be called before any peer is known.
    pub fn add(&mut self, link: BoxedLink) -> io::Result<()> {
        for fd in (0..).map_while(|n| link.wait_fd(WaitFd::Each(n))) {
            if self.poller.is_none() {
                let poller = Poller::new()?;
                poller.add(&self.shm.wait_fd(WaitFd::All).unwrap_or(-1), 0)?;
                self.poller = Some(poller);
            }
            if let Some(poller) = &self.poller {
                poller.add(&fd, 0)?;
            }
        }
        self.far.push(Far::new(link));
        self.share_out();
        self.pace.begin();
        self.join();
        Ok(())
    }

    /// Adds a link over TCP, if [`OpenOptions::port`] listens.
    pub fn add_tcp(&mut self, options: TcpOptions) -> io::Result<()> {
        let link = TcpLink::open(self.shm.name(), options)?;
        self.add(Box::new(link))
    }

    /// Adds a link over TCP that is opened when a peer of another host is known, with
    /// [`Port::ListensLater`](crate::Port). To be called before any peer is known.
    pub fn add_tcp_later(&mut self, options: TcpOptions) -> io::Result<()> {
        // What watches the endpoint's descriptor is not to notice when there is another link.
        let poller = Poller::new()?;
        poller.add(&self.shm.wait_fd(WaitFd::All).unwrap_or(-1), 0)?;
        self.poller = Some(poller);
        self.later = Some(Later::new(options));
        self.share_out();
        Ok(())
    }

    /// A peer of another host is known: opens the link that leads there.
    #[cold]
    pub(super) fn open_later(&mut self) {
        let Some(later) = self.later.take() else { return };
        let added = later.open(&mut self.shm).and_then(|link| self.add(Box::new(link)));
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

    /// Adds a link that is made of one over TCP; where it cannot be opened, the log says why.
    pub fn add_over_tcp(
        &mut self,
        options: TcpOptions,
        over: impl FnOnce(TcpLink) -> io::Result<BoxedLink>,
    ) -> io::Result<()> {
        let link = TcpLink::open(self.shm.name(), options)?;
        self.add(over(link)?)
    }

    /// Whether peers on this host are reached by shared memory, and not like all others. To be called before
    /// any peer is known.
    pub fn set_shm(&mut self, on: bool) {
        self.near = on;
        self.share_out();
    }

    /// Peers of this host are served by shared memory, or by further links, and are refused by the others.
    fn share_out(&mut self) {
        self.shm.admit_callers(match (self.near, self.far.is_empty() && self.later.is_none()) {
            (_, true) => Callers::All,
            (true, false) => Callers::OfThisHost,
            (false, false) => Callers::Itself,
        });
        self.far.iter_mut().for_each(|far| far.link.set(Setting::ServeHost(!self.near)));
    }

    /// A link that is not here, and why: what is told of paths says so.
    pub fn set_absent(&mut self, link: &'static str, why: String) {
        self.absent.push((link, why));
    }

    /// Whether a device copies from or to a peer's device memory, where shared memory leads to the peer, and
    /// whether an adapter accesses it elsewhere. That ends for good.
    pub fn set_device_direct(&mut self, on: bool) {
        self.shm.set_device_direct(on);
        if !on {
            self.far.iter_mut().for_each(|far| far.link.set(Setting::StageDevices));
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use link_api::{Event, Refused, Sent, Setting};
    use wire::Addr;
    use wire::session::JobKey;

    use super::*;
    use crate::Port;

    fn later() -> Links {
        let bind = Some("127.0.0.1:0".parse().unwrap());
        let mut links =
            Links::open(OpenOptions { bind, port: Port::ListensLater, ..OpenOptions::default() }).unwrap();
        links.add_tcp_later(TcpOptions::new(JobKey::from_secret(b"of the tests"))).unwrap();
        links.set(Setting::Early);
        links.set(Setting::Kept);
        links
    }

    fn listens(links: &Links) -> bool {
        TcpStream::connect((Ipv4Addr::LOCALHOST, links.addr().port())).is_ok()
    }

    #[test]
    fn a_port_listens_once_a_peer_of_another_host_is_known() {
        let (mut a, mut b) = (later(), later());
        let (fd, own) = (a.wait_fd(WaitFd::All), a.addr());
        let to_b = a.peer(&b.addr());
        let mut got = false;
        while !got {
            assert!(matches!(a.send(to_b, b"hello", &[], 0, 0), Ok(_) | Err(Refused::Busy)));
            if let Some(Event::Frame(frame)) = b.poll() {
                b.release(frame);
                got = true;
            }
        }
        assert!(!listens(&a) && !listens(&b), "all peers are of this host");
        let far = a.peer(&Addr::new(([198, 51, 100, 1], 7).into()));
        assert!(listens(&a) && !listens(&b));
        assert_eq!((a.path(far).link, a.path(to_b).link), ("tcp", "shm"));
        assert_eq!((a.wait_fd(WaitFd::All), a.addr()), (fd, own));
        assert_eq!(a.send(to_b, b"again", &[], 0, 0), Ok(Sent::Done));
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

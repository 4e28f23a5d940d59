//! The engine's link in memory, for several threads, and with a bell that wakes a link that is armed.

use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hmem::Span;
use link_api::{
    Allow, Direct, Event, Frame, FrameLink, InUse, Link, NoDirect, Path, Patience, PeerId, Refused, Revoke,
    RmaLink, Sent, Setting, SleepLink, Standing, Way,
};
use testkit::{MemLink, Net};
use wire::Addr;

/// All links of one net, to be had by one thread at a time.
#[derive(Debug)]
struct Links {
    net: Net,
    stations: Vec<Station>,
}

#[derive(Debug)]
struct Station {
    link: MemLink,
    addr: Addr,
    armed: bool,
    quiet: bool,
    rung: bool,
    bell: (UnixStream, UnixStream),
    broken: bool,
    /// A peer is inside an access of memory here.
    inside: bool,
    /// How long it was waited for, each time.
    waited: Vec<Patience>,
    patience: Patience,
}

// SAFETY: what is not `Send` are the `Rc`s by which the net and its links share a hub. All of them are
// inside this one value, none is handed out, and none of the closures is set that a net may call.
unsafe impl Send for Links {}

/// Where memory links meet.
#[derive(Clone, Debug)]
pub struct Network(Arc<Mutex<Links>>);

/// A link at such a place.
#[derive(Debug)]
pub struct MemoryLink {
    network: Network,
    at: usize,
}

impl Network {
    pub fn new() -> Network {
        Network(Arc::new(Mutex::new(Links { net: Net::new(0), stations: Vec::new() })))
    }

    /// One more link, and the descriptor to sleep on it.
    pub fn link(&self) -> (MemoryLink, RawFd) {
        let mut links = self.lock();
        let link = links.net.link();
        let (addr, bell) = (link.addr(), UnixStream::pair().unwrap());
        let fd = bell.0.as_raw_fd();
        links.stations.push(Station {
            link,
            addr,
            armed: false,
            quiet: false,
            rung: false,
            bell,
            broken: false,
            inside: false,
            waited: Vec::new(),
            patience: Patience::Second,
        });
        (MemoryLink { network: self.clone(), at: links.stations.len() - 1 }, fd)
    }

    /// Whether a peer is inside an access of memory of this link's.
    pub fn set_inside(&self, addr: Addr, inside: bool) {
        self.station(addr, |s| s.inside = inside);
    }

    /// How long such a peer was waited for, each time.
    pub fn waited(&self, addr: Addr) -> Vec<Patience> {
        self.station(addr, |s| s.waited.clone())
    }

    fn station<T>(&self, addr: Addr, call: impl FnOnce(&mut Station) -> T) -> T {
        call(self.lock().stations.iter_mut().find(|s| s.addr == addr).unwrap())
    }

    /// The next poll of this link panics, and so does its close.
    pub fn break_link(&self, addr: Addr) {
        self.station(addr, |s| {
            s.broken = true;
            s.ring();
        });
    }

    fn lock(&self) -> MutexGuard<'_, Links> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Station {
    fn wait(&mut self) -> Result<(), InUse> {
        self.waited.push(self.patience);
        if self.inside { Err(InUse) } else { Ok(()) }
    }

    fn ring(&mut self) {
        if self.armed && !self.rung {
            self.bell.1.write_all(b"!").unwrap();
            self.rung = true;
        }
    }
}

impl MemoryLink {
    fn with<T>(&self, call: impl FnOnce(&mut Station) -> T) -> T {
        call(&mut self.network.lock().stations[self.at])
    }
}

impl Link for MemoryLink {
    fn addr(&self) -> Addr {
        self.with(|s| s.addr)
    }

    fn path(&self, peer: PeerId) -> Path {
        self.with(|s| s.link.path(peer))
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        self.with(|s| s.link.peer(addr))
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.with(|s| s.link.peer_addr(peer))
    }

    fn describe(&self, peer: PeerId) -> String {
        self.with(|s| s.link.describe(peer))
    }

    fn standing(&self) -> Vec<Standing> {
        self.with(|s| s.link.standing())
    }

    fn set(&mut self, setting: Setting<'_>) {
        if let Setting::Patience(patience) = setting {
            self.with(|s| s.patience = patience);
        }
    }
}

impl FrameLink for MemoryLink {
    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        let mut links = self.network.lock();
        let link = &mut links.stations[self.at].link;
        let addr = link.peer_addr(to);
        let sent = link.send(to, head, body, off, len)?;
        links.stations.iter_mut().filter(|s| s.addr == addr).for_each(Station::ring);
        Ok(sent)
    }

    fn poll(&mut self) -> Option<Event> {
        self.with(|s| {
            assert!(!s.broken, "the link is broken");
            s.armed = false;
            if std::mem::take(&mut s.rung) {
                s.bell.0.read_exact(&mut [0]).unwrap();
            }
            s.link.poll()
        })
    }

    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        self.with(|s| s.link.read(frame, off, dst))
    }

    fn copy_out(&self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        self.with(|s| s.link.copy_out(frame, off, dst, doff, len))
    }

    fn release(&mut self, frame: Frame) {
        self.with(|s| s.link.release(frame));
    }
}

impl SleepLink for MemoryLink {
    fn arm(&mut self) -> bool {
        self.with(|s| {
            s.armed = true;
            s.quiet = s.link.arm() && !s.broken;
            s.quiet
        })
    }

    fn is_armed(&self) -> bool {
        self.with(|s| s.armed && s.quiet)
    }
}

impl RmaLink for MemoryLink {
    fn access(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        self.with(|s| s.link.access(way, peer, access))
    }

    fn allow(&mut self, what: Allow<'_>) {
        if let Allow::Request(..) = what {
            self.with(|s| s.link.allow(what));
        }
    }

    fn revoke(&mut self, what: Revoke) -> Result<(), InUse> {
        self.with(|s| match what {
            Revoke::Region(_) => Ok(()),
            Revoke::Request(..) => {
                let left = s.wait();
                s.link.revoke(what).and(left)
            }
            Revoke::All => {
                assert!(!s.broken, "the link is broken");
                s.wait()
            }
        })
    }
}

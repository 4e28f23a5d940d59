//! Links over TCP, each of which a thread besides keeps going, as its own process would.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::{Event, Frame, Link, Path, PeerId, Refused, RmaCaps, RmaLink};
use link_kit::Harness;
use wire::Addr;
use wire::session::JobKey;

type Shared = Arc<Mutex<Option<TcpLink>>>;

/// A link that its harness keeps going.
#[derive(Debug)]
pub struct Driven(Shared);

impl Driven {
    pub fn lock(&self) -> MutexGuard<'_, Option<TcpLink>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the link itself.
    pub fn with<T>(&self, f: impl FnOnce(&mut TcpLink) -> T) -> T {
        f(self.lock().as_mut().expect("a link that was not ended"))
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        let link = self.lock().take();
        drop(link);
    }
}

impl Link for Driven {
    fn addr(&self) -> Addr {
        self.with(|l| l.addr())
    }
    fn peer(&mut self, addr: &Addr) -> PeerId {
        self.with(|l| l.peer(addr))
    }
    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.with(|l| l.peer_addr(peer))
    }
    fn reaches(&self, addr: &Addr) -> Result<(), String> {
        self.with(|l| l.reaches(addr))
    }
    fn path(&self, peer: PeerId) -> Path {
        self.with(|l| l.path(peer))
    }
    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
        self.with(|l| l.send(to, head, body, off, len))
    }
    fn poll(&mut self) -> Option<Event> {
        self.with(|l| l.poll())
    }
    fn poll_frame_from(&mut self, from: PeerId) -> Option<Frame> {
        self.with(|l| l.poll_frame_from(from))
    }
    fn has_frames_of(&self, from: PeerId) -> bool {
        self.with(|l| l.has_frames_of(from))
    }
    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        self.with(|l| l.read(frame, off, dst))
    }
    fn copy_out(&self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        self.with(|l| l.copy_out(frame, off, dst, doff, len))
    }
    fn release(&mut self, frame: Frame) {
        self.with(|l| l.release(frame));
    }
    fn is_gone(&self, peer: PeerId) -> bool {
        self.with(|l| l.is_gone(peer))
    }
    fn is_connected(&self, peer: PeerId) -> bool {
        self.with(|l| l.is_connected(peer))
    }
    fn connect(&mut self, peer: PeerId) -> Result<(), Refused> {
        self.with(|l| l.connect(peer))
    }
    fn expect(&mut self, peer: PeerId) {
        self.with(|l| l.expect(peer));
    }
    fn has_room_to_spare(&mut self, to: PeerId) -> bool {
        self.with(|l| l.has_room_to_spare(to))
    }
    fn forget(&mut self, peer: PeerId) {
        self.with(|l| l.forget(peer));
    }
    fn disconnect(&mut self, peer: PeerId) {
        self.with(|l| l.disconnect(peer));
    }
    fn arm(&mut self) -> bool {
        self.with(|l| l.arm())
    }
    fn wait_fd(&self) -> Option<RawFd> {
        self.with(|l| l.wait_fd())
    }
    fn describe(&self, peer: PeerId) -> String {
        self.with(|l| l.describe(peer))
    }
}

impl RmaLink for Driven {}

/// Makes [`TcpLink`]s on a loopback address.
pub struct TcpHarness {
    bind: &'static str,
    links: Arc<Mutex<Vec<Shared>>>,
    stop: Arc<AtomicBool>,
    driver: Option<JoinHandle<()>>,
}

impl TcpHarness {
    pub fn new(bind: &'static str) -> TcpHarness {
        let (links, stop) = (Arc::new(Mutex::new(Vec::<Shared>::new())), Arc::new(AtomicBool::new(false)));
        let (all, over) = (Arc::clone(&links), Arc::clone(&stop));
        let driver = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let now: Vec<Shared> = all.lock().unwrap_or_else(PoisonError::into_inner).clone();
                for link in &now {
                    if let Some(link) = link.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                        link.progress();
                    }
                }
                thread::sleep(Duration::from_micros(50));
            }
        });
        TcpHarness { bind, links, stop, driver: Some(driver) }
    }

    pub fn options() -> TcpOptions {
        let mut options = TcpOptions::new(JobKey::from_secret(b"of the checks"));
        options.connect_timeout = Duration::from_millis(60);
        options
    }

    fn bind(&self, to: &str) -> Driven {
        let link = TcpLink::bind(to.parse().expect("an address"), Self::options()).expect("a free name");
        let link = Arc::new(Mutex::new(Some(link)));
        self.links.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&link));
        Driven(link)
    }
}

impl Drop for TcpHarness {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(driver) = self.driver.take() {
            let _ = driver.join();
        }
    }
}

impl Harness for TcpHarness {
    type Link = Driven;

    fn open(&mut self) -> Driven {
        self.bind(self.bind)
    }

    fn reopen(&mut self, addr: &Addr) -> Driven {
        self.bind(&addr.to_string())
    }

    fn nowhere(&mut self) -> Addr {
        self.open().addr()
    }

    fn caps(&self) -> RmaCaps {
        RmaCaps::empty()
    }

    fn pass(&mut self) {
        thread::sleep(Duration::from_micros(20));
    }

    fn pass_long(&mut self) {
        thread::sleep(Duration::from_millis(1));
    }

    fn attacks(&self) -> usize {
        5
    }

    fn attack(&mut self, how: usize, from: &mut Driven, to: &Driven) -> bool {
        let (raw, fatal): (&[u8], bool) = match how {
            // Another kind; zeros that are none; a frame that is too long; one with another tag.
            0 => (&[4, 0, 0, 0, 9, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, b'a', b'b', b'c', b'd'], true),
            1 => (&[4, 0, 0, 0, 1, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, b'a', b'b', b'c', b'd'], true),
            2 => (&[1, 0, 2, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], true),
            3 => (&[4, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, b'a', b'b', b'c', b'd'], true),
            // The rest of a header never comes.
            _ => (&[1, 0, 0, 0, 1], false),
        };
        let name = to.addr();
        from.with(|l| {
            let peer = l.peer(&name);
            let socket =
                l.socket(peer).expect("there is a channel").try_clone_to_owned().expect("a descriptor");
            File::from(socket).write_all(raw).expect("room");
        });
        fatal
    }
}

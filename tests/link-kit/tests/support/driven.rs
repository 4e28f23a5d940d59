//! Links each of which a thread besides keeps going, as its own process would.

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use hmem::Span;
use link_api::{
    Allow, Channel, Connect, Direct, Event, Frame, FrameLink, FrameSource, HandleNote, InUse, LandAt,
    Landing, Link, NoDirect, OpId, Parting, Path, PeerId, PollFrame, Refused, Region, RegionVersion, Revoke,
    RmaLink, Sent, Setting, SleepLink, Standing, WaitFd, Way,
};
use wire::{Addr, Handle};

type Shared<L> = Arc<Mutex<Option<L>>>;

/// A link that a [`Driver`] keeps going.
#[derive(Debug)]
pub struct Driven<L>(Shared<L>);

impl<L> Driven<L> {
    fn lock(&self) -> MutexGuard<'_, Option<L>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the link itself.
    pub fn with<T>(&self, f: impl FnOnce(&mut L) -> T) -> T {
        f(self.lock().as_mut().expect("a link that was not ended"))
    }
}

impl<L> Drop for Driven<L> {
    fn drop(&mut self) {
        let link = self.lock().take();
        drop(link);
    }
}

impl<L: Link> Link for Driven<L> {
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

    fn channel(&self, peer: PeerId) -> Channel {
        self.with(|l| l.channel(peer))
    }

    fn connect(&mut self, peer: PeerId, how: Connect) -> Result<(), Refused> {
        self.with(|l| l.connect(peer, how))
    }

    fn set(&mut self, setting: Setting<'_>) {
        if let Setting::ServeHost(_) | Setting::Patience(_) = setting {
            self.with(|l| l.set(setting));
        }
    }

    fn dismiss(&mut self, peer: PeerId, how: Parting) {
        self.with(|l| l.dismiss(peer, how));
    }

    fn describe(&self, peer: PeerId) -> String {
        self.with(|l| l.describe(peer))
    }

    fn standing(&self) -> Vec<Standing> {
        self.with(|l| l.standing())
    }
}

impl<L: FrameLink> FrameLink for Driven<L> {
    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        self.with(|l| l.send(to, head, body, off, len))
    }

    fn poll(&mut self) -> Option<Event> {
        self.with(|l| l.poll())
    }

    fn poll_frame(&mut self, of: FrameSource) -> PollFrame {
        self.with(|l| l.poll_frame(of))
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

    fn take(&mut self, frame: &Frame, off: usize, dst: Span, apart: bool) -> bool {
        self.with(|l| l.take(frame, off, dst, apart))
    }

    fn land(&mut self, frame: Frame, to: Option<LandAt<'_>>) -> Landing {
        self.with(|l| l.land(frame, to))
    }

    fn release(&mut self, frame: Frame) {
        self.with(|l| l.release(frame));
    }

    fn has_room_to_spare(&mut self, to: PeerId, len: usize) -> bool {
        self.with(|l| l.has_room_to_spare(to, len))
    }
}

impl<L: SleepLink> SleepLink for Driven<L> {
    fn arm(&mut self) -> bool {
        self.with(|l| l.arm())
    }

    fn is_armed(&self) -> bool {
        self.with(|l| l.is_armed())
    }

    fn wait_fd(&self, which: WaitFd) -> Option<RawFd> {
        // The thread that keeps the link going polls all that it has: one stands for them.
        self.with(|l| l.wait_fd(WaitFd::All)).and_then(|fd| which.only(fd))
    }
}

impl<L: RmaLink> RmaLink for Driven<L> {
    fn start(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        self.with(|l| l.start(way, peer, access))
    }
    fn cancel(&mut self, op: OpId) {
        self.with(|l| l.cancel(op));
    }
    fn export_handles(&mut self, to: PeerId, iov: &[Span], way: Way) -> Option<Vec<Handle>> {
        self.with(|l| l.export_handles(to, iov, way))
    }
    fn note_handle(&mut self, peer: PeerId, what: HandleNote<'_>) {
        self.with(|l| l.note_handle(peer, what));
    }
    fn allow(&mut self, what: Allow<'_>) {
        self.with(|l| l.allow(what));
    }
    fn published(&mut self, by: PeerId, key: u64) -> Option<(Region, RegionVersion)> {
        self.with(|l| l.published(by, key))
    }
    fn revoke(&mut self, what: Revoke) -> Result<(), InUse> {
        self.with(|l| l.revoke(what))
    }
}

/// The thread.
pub struct Driver<L> {
    links: Arc<Mutex<Vec<Shared<L>>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<L: Send + 'static> Driver<L> {
    pub fn new(progress: impl Fn(&mut L) + Send + 'static) -> Driver<L> {
        let (links, stop) = (Arc::new(Mutex::new(Vec::<Shared<L>>::new())), Arc::new(AtomicBool::new(false)));
        let (all, over) = (Arc::clone(&links), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !over.load(Ordering::Relaxed) {
                let now: Vec<Shared<L>> = all.lock().unwrap_or_else(PoisonError::into_inner).clone();
                for link in &now {
                    if let Some(link) = link.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                        progress(link);
                    }
                }
                drop(now);
                thread::sleep(Duration::from_micros(50));
            }
        });
        Driver { links, stop, thread: Some(thread) }
    }

    /// Keeps a link going from now on.
    pub fn take_on(&self, link: L) -> Driven<L> {
        let link = Arc::new(Mutex::new(Some(link)));
        self.links.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&link));
        Driven(link)
    }
}

impl<L> Drop for Driver<L> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

//! Windows: memory that one process makes and its peers map, so that they load and store it
//! themselves.
//!
//! A window is a sealed memfd. Its name, the number of its maker and its own, travels by any means
//! (in a UCX remote key); the descriptor goes over the socket of a channel, once, when a peer asks
//! for it ([`ShmLink::want`]). Nothing has a name in a file system.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use hmem::share::FileAt;
use link_api::{PeerId, Refused};

use super::ShmLink;
use super::control::{self, cvt};

/// First byte of a packet: the window of this maker and number is wanted, is here, is not.
pub(super) const WANT: u8 = 3;
const GRANT: u8 = 4;
const DENY: u8 = 5;
/// Bytes of such a packet.
const PACKET: usize = 17;

/// Between two packets that ask for the same window.
const ASK_AGAIN: Duration = Duration::from_millis(20);
/// After how many answers that a window is granted, and came without its descriptor, it is not asked for any more.
const MOST_BARE: u32 = 100;

const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Memory of a window, unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping belongs to the process; this only says where it is.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of a memfd, at `at` if that is given and free.
    fn new(fd: &OwnedFd, len: usize, at: Option<usize>) -> io::Result<Mapping> {
        let fixed = if at.is_some() { libc::MAP_FIXED_NOREPLACE } else { 0 };
        // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping.
        unsafe { Mapping::with(fd, len, at, fixed) }
    }

    /// # Safety
    /// With MAP_FIXED the memory at `at` must be the caller's, and no longer in use.
    unsafe fn with(fd: &OwnedFd, len: usize, at: Option<usize>, fixed: libc::c_int) -> io::Result<Mapping> {
        let place = std::ptr::without_provenance_mut(at.unwrap_or(0));
        // SAFETY: a new mapping; what it replaces is the caller's.
        let base = unsafe {
            libc::mmap(
                place,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | fixed,
                fd.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let mapping = Mapping { base: NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?, len };
        // A kernel before 4.17 takes the place for a wish.
        if at.is_some_and(|at| at != base.addr()) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        Ok(mapping)
    }

    /// Where it is here.
    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and whole; users keep `self` as long as they touch it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The name of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct WindowId {
    /// Who made it: [`Windows::maker`].
    pub maker: u64,
    /// Which of the maker's it is.
    pub number: u64,
}

impl WindowId {
    fn packet(self, what: u8) -> [u8; PACKET] {
        let mut out = [what; PACKET];
        out[1..9].copy_from_slice(&self.maker.to_ne_bytes());
        out[9..].copy_from_slice(&self.number.to_ne_bytes());
        out
    }

    fn parse(packet: &[u8]) -> Option<(u8, WindowId)> {
        let p: &[u8; PACKET] = packet.try_into().ok()?;
        let word = |at: usize| u64::from_ne_bytes(p[at..at + 8].try_into().expect("8 bytes"));
        Some((p[0], WindowId { maker: word(1), number: word(9) }))
    }
}

#[derive(Debug)]
enum Import {
    /// When, and how many answers came without the descriptor.
    Asked(Instant, u32),
    Here(Arc<Mapping>),
    Denied,
}

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    ours: HashMap<u64, (OwnedFd, Arc<Mapping>)>,
    theirs: HashMap<WindowId, Import>,
}

/// The windows that a process has made, and those of others it has mapped. Links share it.
#[derive(Debug)]
pub struct Windows {
    maker: u64,
    inner: Mutex<Inner>,
}

impl Windows {
    /// None yet.
    pub fn new() -> io::Result<Windows> {
        Ok(Windows { maker: crate::random()?, inner: Mutex::default() })
    }

    /// The number of this maker, random.
    pub fn maker(&self) -> u64 {
        self.maker
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Makes a window of `len` bytes, a multiple of the page size, all zero; at the address `at` if
    /// that is given, where nothing may be mapped yet, else where the kernel likes.
    pub fn create(&self, len: usize, at: Option<usize>) -> io::Result<(WindowId, Arc<Mapping>)> {
        self.add(len, |fd| Mapping::new(fd, len, at))
    }

    /// The same at the address `at`, in place of what is mapped there.
    ///
    /// # Safety
    /// `at..at+len` must be the caller's memory, or unmapped, and no longer in use.
    pub unsafe fn create_over(&self, len: usize, at: usize) -> io::Result<(WindowId, Arc<Mapping>)> {
        // SAFETY: the caller's promise.
        self.add(len, |fd| unsafe { Mapping::with(fd, len, Some(at), libc::MAP_FIXED) })
    }

    fn add(
        &self,
        len: usize,
        map: impl FnOnce(&OwnedFd) -> io::Result<Mapping>,
    ) -> io::Result<(WindowId, Arc<Mapping>)> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: the name is a C string; memfd_create(2) takes nothing else from memory.
        let fd = unsafe { libc::memfd_create(c"strait-window".as_ptr(), flags) };
        // SAFETY: a descriptor just made, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(cvt(fd)?) };
        let size = libc::off_t::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        // SAFETY: `ftruncate` and `fcntl` touch no memory of ours.
        unsafe {
            cvt(libc::ftruncate(fd.as_raw_fd(), size))?;
            cvt(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS))?;
        }
        let mapping = Arc::new(map(&fd)?);
        let mut inner = self.lock();
        inner.next += 1;
        let number = inner.next;
        inner.ours.insert(number, (fd, Arc::clone(&mapping)));
        Ok((WindowId { maker: self.maker, number }, mapping))
    }

    /// Forgets a window of ours: nobody gets it any more. Those who have it keep what they mapped.
    pub fn remove(&self, id: WindowId) {
        if id.maker == self.maker {
            self.lock().ours.remove(&id.number);
        }
    }

    /// The memory of a window, if it is ours or has come.
    pub fn find(&self, id: WindowId) -> Option<Arc<Mapping>> {
        let inner = self.lock();
        if id.maker == self.maker {
            return inner.ours.get(&id.number).map(|(_, mapping)| Arc::clone(mapping));
        }
        match inner.theirs.get(&id)? {
            Import::Here(mapping) => Some(Arc::clone(mapping)),
            Import::Asked(..) | Import::Denied => None,
        }
    }

    /// How a peer that we have no channel to gets at a window of ours ([`Windows::fetch`]).
    pub fn place(&self, number: u64) -> Option<FileAt> {
        FileAt::of(&self.lock().ours.get(&number)?.0).ok()
    }

    /// The memory of a window, fetched from its maker, the process `pid`, if it is not here yet. The kernel
    /// has to allow that (pidfd_getfd(2)); who is no peer has no such window.
    pub fn fetch(&self, id: WindowId, pid: i32, at: FileAt) -> Result<Arc<Mapping>, String> {
        if let Some(here) = self.find(id) {
            return Ok(here);
        }
        let fd = at.fetch(pid).map_err(|e| e.to_string())?;
        let mapping = Arc::new(adopt(&fd)?);
        self.lock().theirs.insert(id, Import::Here(Arc::clone(&mapping)));
        Ok(mapping)
    }

    /// Whether its maker said that there is no such window, or it does not come.
    pub fn denied(&self, id: WindowId) -> bool {
        matches!(self.lock().theirs.get(&id), Some(Import::Denied))
    }

    /// Somebody's window is no longer of use here, unless others still hold its mapping.
    pub fn forget(&self, id: WindowId) {
        let mut inner = self.lock();
        let used = match inner.theirs.get(&id) {
            Some(Import::Here(mapping)) => Arc::strong_count(mapping) > 1,
            Some(_) => false,
            None => return,
        };
        if !used {
            inner.theirs.remove(&id);
        }
    }

    /// Whether it is time to ask for this window, which is so noted.
    fn ask(&self, id: WindowId) -> bool {
        let now = Instant::now();
        let mut inner = self.lock();
        let at = inner.theirs.entry(id).or_insert(Import::Asked(now, 0));
        match at {
            Import::Here(_) | Import::Denied => return false,
            Import::Asked(when, _) if now > *when && now - *when < ASK_AGAIN => return false,
            Import::Asked(when, _) => *when = now,
        }
        true
    }

    /// A grant came without the descriptor; whether that was the last one that is waited for.
    fn bare(&self, id: WindowId) -> bool {
        let mut inner = self.lock();
        let Some(at) = inner.theirs.get_mut(&id) else { return false };
        let Import::Asked(_, bare) = at else { return false };
        *bare += 1;
        let last = *bare >= MOST_BARE;
        if last {
            *at = Import::Denied;
        }
        last
    }

    fn answer(&self, id: WindowId, import: Import) {
        // Only what was asked for, and is still wanted.
        if let Some(at @ Import::Asked(..)) = self.lock().theirs.get_mut(&id) {
            *at = import;
        }
    }
}

/// The memory of a window that a peer sent; the reason if it is not one as agreed.
fn adopt(fd: &OwnedFd) -> Result<Mapping, String> {
    let raw = fd.as_raw_fd();
    // SAFETY: F_GET_SEALS touches no memory of ours.
    let seals = unsafe { libc::fcntl(raw, libc::F_GET_SEALS) };
    if seals < 0 || seals & SEALS != SEALS {
        return Err("it is not sealed".into());
    }
    // SAFETY: both structs are plain data, for which zeros are a value.
    let (mut stat, mut fs): (libc::stat, libc::statfs) = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` and `fs` are valid places for the answers.
    let ok = unsafe { libc::fstat(raw, &mut stat) == 0 && libc::fstatfs(raw, &mut fs) == 0 };
    // Huge pages can run out at a touch (SIGBUS), also when sealed.
    if !ok || fs.f_type != libc::TMPFS_MAGIC || stat.st_size <= 0 {
        return Err("it is no ordinary memfd".into());
    }
    Mapping::new(fd, stat.st_size as usize, None).map_err(|e| format!("it cannot be mapped: {e}"))
}

impl ShmLink {
    /// Asks a peer for a window, connecting if need be. Once it is there, [`Windows::find`] has it;
    /// until then it may be called again at any time.
    pub fn want(&mut self, from: PeerId, id: WindowId) -> Result<(), Refused> {
        if self.peers[from.0 as usize].out.is_none() {
            self.open_channel(from.0)?;
        }
        let Some(windows) = &self.options.windows else { return Ok(()) };
        if let Some(out) = &self.peers[from.0 as usize].out {
            if windows.ask(id) {
                control::notify(&out.sock, &id.packet(WANT));
                return Ok(());
            }
        }
        // The answer may be here: who only puts and gets has no other reason to poll.
        self.service();
        Ok(())
    }

    /// A peer asks for a window of ours.
    pub(super) fn hear_want(&self, id: u32, packet: &[u8]) {
        let Some((WANT, window)) = WindowId::parse(packet) else { return };
        let Some(inb) = &self.peers[id as usize].inb else { return };
        let windows = self.options.windows.as_ref().filter(|w| w.maker == window.maker);
        let sent = windows.and_then(|w| {
            let inner = w.lock();
            let (fd, _) = inner.ours.get(&window.number)?;
            Some(control::send_fd(&inb.sock, &window.packet(GRANT), fd.as_fd()))
        });
        match sent {
            None => control::notify(&inb.sock, &window.packet(DENY)),
            // It will ask again, for a while.
            Some(Err(e)) => {
                log::debug!("{}: a window could not be sent: {e}", self.addr);
                control::notify(&inb.sock, &window.packet(GRANT));
            }
            Some(Ok(())) => {}
        }
    }

    /// A peer answers for a window of its own.
    pub(super) fn hear_window(&self, id: u32, packet: &[u8], fd: Option<OwnedFd>) {
        let Some(windows) = &self.options.windows else { return };
        match (WindowId::parse(packet), fd) {
            (Some((GRANT, window)), Some(fd)) => match adopt(&fd) {
                Ok(mapping) => windows.answer(window, Import::Here(Arc::new(mapping))),
                Err(why) => {
                    log::warn!("{}: refused a window of {}: {why}", self.addr, self.peers[id as usize].addr);
                    windows.answer(window, Import::Denied);
                }
            },
            (Some((GRANT, window)), None) if windows.bare(window) => log::warn!(
                "{}: {} grants a window, of which no descriptor comes: raise the limit of descriptors (ulimit -n) here \
                 or there; memory is accessed by requests",
                self.addr,
                self.peers[id as usize].addr
            ),
            (Some((DENY, window)), None) => windows.answer(window, Import::Denied),
            _ => {}
        }
    }
}

#[cfg(all(test, not(loom)))]
#[path = "window_tests.rs"]
mod tests;

//! The clients of this process, and what is registered of their memory.
//!
//! A registration is made when an address is found to be a client's, and serves every later operation
//! inside it. What a client has invalidated is not used any more when
//! [`Registered::invalidate`] returns; a registration of it that is still open (`fid_mr`) yields an
//! error from then on, even if other memory comes to the same address, until that is closed.
//!
//! Which callbacks run and when is decided in `registrations`, with no lock held while a client is called.
//! What a client must not do from within its own callbacks is refused with EDEADLK.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use super::contract::{Client, Importer, Place, Segment};
use super::import::Revoke;
use super::refused::{Call, Refused};
use super::registrations::{Callbacks, Extent, Held, InUse, Registrations};
use super::table::{FileExport, MOST};
use crate::presence;
use crate::share::{File, describe_file, vet_file};

/// Most registrations kept for later.
const BOUND: usize = 256;

/// How many clients there are.
pub(super) static COUNT: AtomicU32 = AtomicU32::new(0);

/// How many of them may have memory for a device, as far as is known.
pub(super) static FOR_DEVICES: AtomicU32 = AtomicU32::new(0);

static ALL: LazyLock<Registrations<Plugged>> = LazyLock::new(|| Registrations::new(BOUND));

struct Plugged {
    client: Box<dyn Client>,
    /// Why a device gets none of its memory: no callback is called for one any more.
    refuses: Mutex<Option<Refused>>,
}

impl Plugged {
    fn new(client: Box<dyn Client>) -> Plugged {
        let is_for_devices = client.serves_devices();
        let refused = Call::NotForDevices.refuses(libc::EOPNOTSUPP);
        FOR_DEVICES.fetch_add(is_for_devices.into(), Relaxed);
        Plugged { client, refuses: Mutex::new((!is_for_devices).then_some(refused)) }
    }

    fn refusal(&self) -> MutexGuard<'_, Option<Refused>> {
        self.refuses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its memory goes to devices no more, until it is registered again.
    fn note_refusal(&self, refused: Refused) {
        if self.refusal().replace(refused).is_none() {
            FOR_DEVICES.fetch_sub(1, Relaxed);
        }
    }
}

impl Drop for Plugged {
    fn drop(&mut self) {
        if self.refusal().is_none() {
            FOR_DEVICES.fetch_sub(1, Relaxed);
        }
    }
}

/// A piece of memory, as this process reaches it, or a device.
enum Reached {
    Cpu(usize),
    /// What the processor does not access has no mapping.
    File {
        map: Option<File>,
        fd: OwnedFd,
        off: u64,
    },
    Opaque,
}

struct Pinned {
    segments: Vec<Segment>,
    reached: Vec<Reached>,
}

thread_local! {
    /// Whether a client is being called in this thread.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Calls a client.
fn call<T>(body: impl FnOnce() -> T) -> T {
    struct Reset(bool);
    impl Drop for Reset {
        fn drop(&mut self) {
            INSIDE.set(self.0);
        }
    }
    let _reset = Reset(INSIDE.replace(true));
    body()
}

/// Callbacks may not wait for what waits for callbacks.
fn outside() -> Result<(), i32> {
    if INSIDE.get() { Err(libc::EDEADLK) } else { Ok(()) }
}

/// A client that is registered, as its owner holds it.
#[derive(Clone, Copy, Debug)]
pub struct Registered(u64);

/// Registers a client; the table is known.
pub(super) fn register(client: Box<dyn Client>) -> Result<Registered, i32> {
    outside()?;
    let id = ALL.register(Plugged::new(client));
    // The first one: other copies of this crate may still think that this library is not loaded.
    if COUNT.fetch_add(1, Relaxed) == 0 {
        presence::outlive_answers();
    }
    Ok(Registered(id))
}

impl Registered {
    /// Ends it: when this returns, no callback of the client runs, in any thread, and none will. What is
    /// registered of its memory is invalidated first. EDEADLK: called from a callback.
    pub fn unregister(&self) -> Result<(), i32> {
        outside()?;
        ALL.unregister(self.0)?;
        COUNT.fetch_sub(1, Relaxed);
        Ok(())
    }

    /// The client takes back the memory that is registered under this name: its registrations are released
    /// when this returns. ENOENT: it is not registered any more. EDEADLK: called from a callback.
    pub fn invalidate(&self, name: u64) -> Result<(), i32> {
        outside()?;
        ALL.invalidate(self.0, name)
    }
}

impl Callbacks for Plugged {
    type Pages = Pinned;

    fn refuses(&self, importer: Importer) -> Option<Refused> {
        if importer == Importer::Device { *self.refusal() } else { None }
    }

    fn acquire(&self, addr: usize, len: usize) -> Result<Option<usize>, Refused> {
        call(|| self.client.acquire(addr, len)).map_err(|errno| Call::Acquire.refuses(errno))
    }

    fn get_pages(&self, of: &Extent) -> Result<Pinned, Refused> {
        let client = &*self.client;
        let mut segments = call(|| client.get_pages(of.ctx, of.addr, of.len, of.write, of.name))
            .map_err(|errno| Call::GetPages.refuses(errno))?;
        let before = segments.clone();
        if let Err(errno) = call(|| client.dma_map(of.ctx, of.importer, &mut segments)) {
            call(|| client.put_pages(of.ctx, &before));
            let refused = Call::DmaMap.refuses(errno);
            if of.importer == Importer::Device && refused.is_for_good() {
                self.note_refusal(refused);
            }
            return Err(refused);
        }
        if !segments.iter().map(|s| s.len).eq(before.iter().map(|s| s.len)) {
            self.unmap(of, &before);
            return Err(Call::Pieces.refuses(libc::EINVAL));
        }
        let total = segments.iter().try_fold(0usize, |t, s| t.checked_add(s.len));
        let reach = |s| reach(s, of.importer);
        let reached = segments.iter().map(reach).collect::<Result<Vec<_>, i32>>();
        match reached {
            Ok(reached) if total == Some(of.len) && segments.len() <= MOST => {
                Ok(Pinned { segments, reached })
            }
            // The answer does not match the request.
            wrong => {
                self.unmap(of, &segments);
                Err(Call::Pieces.refuses(wrong.err().unwrap_or(libc::EINVAL)))
            }
        }
    }

    fn give_back(&self, of: &Extent, pages: Option<Arc<Pinned>>) {
        if let Some(pages) = pages {
            let segments = pages.segments.clone();
            // The mappings of this process go first.
            drop(pages);
            self.unmap(of, &segments);
        }
        call(|| self.client.release(of.ctx));
    }
}

impl Plugged {
    fn unmap(&self, of: &Extent, segments: &[Segment]) {
        call(|| {
            self.client.dma_unmap(of.ctx, of.importer, segments);
            self.client.put_pages(of.ctx, segments);
        });
    }
}

fn reach(s: &Segment, importer: Importer) -> Result<Reached, i32> {
    match s.place {
        Place::Cpu(at) => Ok(Reached::Cpu(at)),
        Place::Opaque => Ok(Reached::Opaque),
        Place::File(fd, off) if fd >= 0 => {
            // A descriptor of its own: its number cannot be reused for another file while the description is
            // in use. SAFETY: the client says that it is open; if it is not, the kernel says so.
            let again = || unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
            let failed = |e: std::io::Error| e.raw_os_error().unwrap_or(libc::EBADF);
            let fd = again().map_err(failed)?;
            let map = match importer {
                Importer::Process => {
                    Some(File::map(again().map_err(failed)?, off, s.len as u64).map_err(|e| e.code)?)
                }
                Importer::Device => {
                    vet_file(fd.as_fd(), off, s.len as u64).map_err(|e| e.code)?;
                    None
                }
            };
            Ok(Reached::File { map, fd, off })
        }
        Place::File(..) => Err(libc::EBADF),
    }
}

fn with_pages(addr: usize, len: usize, write: bool) -> Result<Held<'static, Plugged>, i32> {
    outside()?;
    Ok(ALL.hold((addr, len), write, Importer::Process)?)
}

/// Whether `addr` is a client's; also, if the client says that it cannot be used now.
pub(super) fn is_a_clients(addr: usize, len: usize) -> bool {
    let is_none = || {
        let found = ALL.use_one((addr, len), true, Importer::Process);
        found.is_err_and(|refused| refused.errno == libc::EFAULT)
    };
    len > 0 && outside().is_ok() && !is_none()
}

/// Registers `addr..addr+len`, and names the registration.
pub(super) fn pin(addr: usize, len: usize, write: bool) -> Result<u64, i32> {
    outside()?;
    ALL.pin(addr, len, write)
}

/// Lets go of it.
pub(super) fn unpin(name: u64) {
    ALL.unpin(name);
}

/// Copies. One side is a client's at least, and the other one host memory if it is no client's.
///
/// # Safety
/// Host memory on one of the sides is valid for the copy.
pub(super) unsafe fn copy(dst: usize, src: usize, len: usize) -> Result<(), i32> {
    if len == 0 {
        return Ok(());
    }
    let from = match with_pages(src, len, false) {
        Ok(from) => Some(from),
        Err(libc::EFAULT) => None,
        Err(e) => return Err(e),
    };
    let to = match with_pages(dst, len, true) {
        Ok(to) => Some(to),
        Err(libc::EFAULT) => None,
        Err(e) => return Err(e),
    };
    let host = |at: usize| std::ptr::with_exposed_provenance_mut::<u8>(at);
    match (&to, &from) {
        (None, None) => Err(libc::EFAULT),
        // SAFETY: the caller's promise.
        (Some(to), None) => unsafe { one(to, dst, host(src), len, false) },
        // SAFETY: the caller's promise.
        (None, Some(from)) => unsafe { one(from, src, host(dst), len, true) },
        (Some(to), Some(from)) => {
            let mut bytes = vec![0u8; len.min(1 << 20)];
            for off in (0..len).step_by(bytes.len()) {
                let n = bytes.len().min(len - off);
                // SAFETY: a place of ours, of as many bytes.
                unsafe {
                    one(from, src + off, bytes.as_mut_ptr(), n, true)?;
                    one(to, dst + off, bytes.as_mut_ptr(), n, false)?;
                }
            }
            Ok(())
        }
    }
}

/// # Safety
/// `host` is valid for reads of `len` bytes, or, `to_host`, for writes.
unsafe fn one(
    Held { pages, used }: &Held<'_, Plugged>,
    addr: usize,
    host: *mut u8,
    len: usize,
    to_host: bool,
) -> Result<(), i32> {
    let InUse { of, by, .. } = used;
    // SAFETY: the caller's promise.
    if let Some(done) = call(|| unsafe { by.client.copy(of.ctx, addr, host, len, to_host) }) {
        return done;
    }
    let (mut off, mut done) = (addr - of.addr, 0);
    for (s, reached) in pages.segments.iter().zip(&pages.reached) {
        if off >= s.len {
            off -= s.len;
            continue;
        }
        let n = (s.len - off).min(len - done);
        let (at, _access) = match reached {
            Reached::Cpu(at) => (*at, None),
            Reached::File { map: Some(map), .. } => (map.at(), map.cpu_access(!to_host).map_err(|e| e.code)?),
            Reached::File { map: None, .. } | Reached::Opaque => return Err(libc::EOPNOTSUPP),
        };
        let at = std::ptr::with_exposed_provenance_mut::<u8>(at + off);
        // SAFETY: the client says that the segment is there, or it is mapped here, and stays while it is
        // in use; the host's side is the caller's promise.
        unsafe {
            let host = host.add(done);
            if to_host { std::ptr::copy(at, host, n) } else { std::ptr::copy(host, at, n) }
        }
        (off, done) = (0, done + n);
        if done == len {
            break;
        }
    }
    Ok(())
}

/// Handles for another process.
pub(super) fn map(addr: usize, len: usize) -> Result<Vec<FileExport>, i32> {
    let Held { pages, used } = with_pages(addr, len, true)?;
    let (mut base, mut out) = (used.of.addr, Vec::new());
    for (i, (s, reached)) in pages.segments.iter().zip(&pages.reached).enumerate() {
        if base < addr + len && addr < base + s.len {
            let Reached::File { fd, off, .. } = reached else { return Err(libc::EOPNOTSUPP) };
            let id = used.of.name * MOST as u64 + i as u64;
            let e = describe_file(fd.as_fd(), *off, id, base as u64, s.len as u64).map_err(|e| e.code)?;
            out.push(FileExport { id, base: e.base, len: e.len, fd: e.fd, zero: 0, token: e.token });
        }
        base += s.len;
    }
    Ok(out)
}

/// What a device registers of a client's memory.
pub(super) enum Source {
    /// A part of a dma-buf that begins there.
    Dmabuf(OwnedFd, u64),
    /// This address.
    Address(usize),
}

/// Has a device use `addr..addr+len`, which is in one piece: what it registers, the registration, and the
/// number of its import.
pub(super) fn import(
    (addr, len): (usize, usize),
    write: bool,
    revoke: Revoke,
) -> Result<(Source, u64, u64), Refused> {
    outside()?;
    let held = ALL.hold((addr, len), write, Importer::Device)?;
    let source = source(&held, addr, len)?;
    let id = ALL.import(&held, revoke)?;
    Ok((source, held.used.of.name, id))
}

fn source(Held { pages, used }: &Held<'_, Plugged>, addr: usize, len: usize) -> Result<Source, Refused> {
    let mut off = addr - used.of.addr;
    for (s, reached) in pages.segments.iter().zip(&pages.reached) {
        if off >= s.len {
            off -= s.len;
            continue;
        }
        // Each registration of a device is of one dma-buf.
        if len > s.len - off {
            return Err(Call::Pieces.refuses(libc::EOPNOTSUPP));
        }
        let failed = |e: std::io::Error| Call::Pieces.refuses(e.raw_os_error().unwrap_or(libc::EBADF));
        return match reached {
            Reached::Cpu(at) => Ok(Source::Address(at + off)),
            Reached::File { fd, off: first, .. } => {
                Ok(Source::Dmabuf(fd.try_clone().map_err(failed)?, first + off as u64))
            }
            Reached::Opaque => {
                let (fd, at) = call(|| used.by.client.export_dmabuf(used.of.ctx, addr, len))
                    .map_err(|errno| Call::ExportDmabuf.refuses(errno))?;
                vet_file(fd.as_fd(), at, len as u64).map_err(|e| Call::ExportDmabuf.refuses(e.code))?;
                Ok(Source::Dmabuf(fd, at))
            }
        };
    }
    Err(Call::Pieces.refuses(libc::EINVAL))
}

/// That device uses it no more.
pub(super) fn end_import(name: u64, id: u64) {
    ALL.end_import(name, id);
}

/// A dma-buf of it.
pub(super) fn export_dmabuf(addr: usize, len: usize) -> Result<(OwnedFd, u64), i32> {
    let Held { used, .. } = with_pages(addr, len, true)?;
    call(|| used.by.client.export_dmabuf(used.of.ctx, addr, len))
}

/// The clients' names.
pub(super) fn names() -> String {
    let mut names = Vec::new();
    ALL.each(|client| names.push(call(|| client.client.name())));
    names.join(", ")
}

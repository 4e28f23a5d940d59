//! Buffers.

use std::ffi::CString;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use c_abi::{guard, sized};
use libc::{c_char, c_int, c_void};
use p2pmem::daemon::{Connection, Remote};
use p2pmem::publisher::Mapped;
use p2pmem::{Error, Orchestrator, Request, Rules};

use super::types::*;

/// Opens. Pieces of devices' windows are a kind of memory of their own from then on, which Strait's provider
/// and transport take in this process.
///
/// 0, or an errno below 0: -EINVAL for rules that are wrong, -ECONNREFUSED without a daemon.
///
/// # Safety
/// As said of the structure; `opened` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_open(
    options: *const strait_p2pmem_options,
    opened: *mut *mut strait_p2pmem,
) -> c_int {
    guard(|| {
        let none = strait_p2pmem_options {
            size: 0,
            daemon: ptr::null(),
            sysfs: ptr::null(),
            rules: ptr::null(),
            host: 0,
        };
        // SAFETY: the program's promise.
        let options = unsafe { sized(options, size_of::<strait_p2pmem_options>(), none)? };
        if opened.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: likewise.
        let (daemon, sysfs, rules) =
            unsafe { (text(options.daemon)?, text(options.sysfs)?, text(options.rules)?) };
        let home = match daemon {
            Some(name) => {
                let name = if name.is_empty() { p2pmem::daemon::NAME } else { name };
                Home::Daemon(Arc::new(Mutex::new(errno(Connection::open(name))?)))
            }
            None => {
                let rules = errno(Rules::parse(rules.unwrap_or("")))?;
                Home::Own(errno(Orchestrator::of_host(
                    Path::new(sysfs.unwrap_or("/sys")),
                    rules,
                    options.host,
                ))?)
            }
        };
        p2pmem::peer::register()?;
        // SAFETY: the program has a place for it.
        unsafe { opened.write(Box::into_raw(Box::new(strait_p2pmem { home }))) };
        Ok(())
    })
}

/// Closes. Buffers stay until they are freed.
///
/// # Safety
/// `opened` is NULL or came from strait_p2pmem_open, and was not closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_close(opened: *mut strait_p2pmem) -> c_int {
    guard(|| {
        if !opened.is_null() {
            // SAFETY: the program's promise.
            drop(unsafe { Box::from_raw(opened) });
        }
        Ok(())
    })
}

/// Allocates memory that all clients of the request reach, from the publisher that is closest to all of them,
/// and maps it.
///
/// 0; -ENOMEM: no publisher may or can give it (strait_p2pmem_error has the reason of each); -ENODEV: a
/// client is not there; -EINVAL.
///
/// # Safety
/// As said of the structure; `buffer` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_alloc(
    opened: *mut strait_p2pmem,
    request: *const strait_p2pmem_request,
    buffer: *mut *mut strait_p2pmem_buffer,
) -> c_int {
    guard(|| {
        let none = strait_p2pmem_request {
            size: 0,
            len: 0,
            align: 0,
            clients: ptr::null(),
            client_count: 0,
            segments: 0,
            flags: 0,
            job: ptr::null(),
        };
        // SAFETY: the program's promise.
        let (home, asked) =
            unsafe { (home(opened)?, sized(request, size_of::<strait_p2pmem_request>(), none)?) };
        if buffer.is_null() || asked.flags & !STRAIT_P2PMEM_NO_HOST != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: likewise.
        let (clients, job) =
            unsafe { (names(asked.clients, asked.client_count)?, text(asked.job)?.unwrap_or("")) };
        let (align, segments) = (asked.align.max(1), asked.segments.max(1));
        let host = asked.flags & STRAIT_P2PMEM_NO_HOST == 0;
        let held = match home {
            Home::Own(all) => {
                let clients = clients.iter().map(|name| errno(all.client(name))).collect::<Result<_, _>>()?;
                let (len, job, segments) = (asked.len, job.to_owned(), segments as usize);
                let request = Request { clients, len, align, segments, job, host, ..Request::default() };
                Held::Own(errno(all.allocate(&request))?)
            }
            Home::Daemon(of) => {
                let segments = u16::try_from(segments).unwrap_or(u16::MAX);
                let got = lock(of).allocate(&clients, asked.len, align, segments, host, job);
                Held::Daemon { buffer: Some(errno(got)?), of: of.clone(), revoked: false }
            }
        };
        give(held, buffer);
        Ok(())
    })
}

pub(super) fn lock(of: &Mutex<Connection>) -> std::sync::MutexGuard<'_, Connection> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees a buffer. The memory goes back when the last buffer that shares it is freed.
///
/// # Safety
/// `buffer` is NULL or came from strait_p2pmem_alloc or strait_p2pmem_share, and was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_free(buffer: *mut strait_p2pmem_buffer) -> c_int {
    guard(|| {
        if buffer.is_null() {
            return Ok(());
        }
        // SAFETY: the program's promise.
        let mut freed = unsafe { Box::from_raw(buffer) };
        match &mut freed.held {
            Held::Own(buffer) => {
                // Another buffer may share the memory; it has notices of its own.
                let notices = freed.notices.get_mut().unwrap_or_else(PoisonError::into_inner);
                notices.drain(..).for_each(|notice| buffer.cancel_notice(notice));
                Ok(())
            }
            Held::Daemon { buffer, of, .. } => match buffer.take() {
                Some(buffer) => errno(lock(of).free(buffer)),
                None => Ok(()),
            },
        }
    })
}

/// # Safety
/// `buffer` is NULL or a buffer that was not freed.
unsafe fn held<'a>(buffer: *const strait_p2pmem_buffer) -> Result<&'a Held, c_int> {
    // SAFETY: the caller's promise.
    unsafe { buffer.as_ref() }.map(|b| &b.held).ok_or(libc::EINVAL)
}

fn pieces(held: &Held) -> Result<&[Mapped], c_int> {
    match held {
        Held::Own(buffer) => errno(buffer.map()),
        Held::Daemon { buffer, .. } => buffer.as_ref().map(Remote::pieces).ok_or(libc::EINVAL),
    }
}

/// Piece `index` of a buffer.
///
/// 0; -ENOENT: it has no such piece; -ESTALE: it was revoked; -EINVAL.
///
/// # Safety
/// `buffer` is NULL or a buffer that was not freed; `segment` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_segment_at(
    buffer: *mut strait_p2pmem_buffer,
    index: u32,
    segment: *mut strait_p2pmem_segment,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let all = pieces(unsafe { held(buffer)? })?;
        if segment.is_null() {
            return Err(libc::EINVAL);
        }
        let piece = all.get(index as usize).ok_or(libc::ENOENT)?;
        let addr = ptr::with_exposed_provenance_mut(piece.addr());
        // SAFETY: likewise.
        unsafe { segment.write(strait_p2pmem_segment { addr, len: piece.len() }) };
        Ok(())
    })
}

/// What a buffer is, and whether it was taken back.
///
/// # Safety
/// `buffer` is NULL or a buffer that was not freed and that no other thread uses now; `info` is NULL or
/// points to as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_query(
    buffer: *mut strait_p2pmem_buffer,
    info: *mut strait_p2pmem_info,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let held = unsafe {
            has_size(info)?;
            &mut buffer.as_mut().ok_or(libc::EINVAL)?.held
        };
        let (len, segments, revoked, publisher, kind) = match held {
            Held::Own(b) => {
                let kind = b.kind().name().to_owned();
                (b.len(), b.segments(), b.is_revoked(), b.publisher().to_owned(), kind)
            }
            Held::Daemon { buffer, of, revoked } => {
                let b = buffer.as_ref().ok_or(libc::EINVAL)?;
                *revoked = *revoked || errno(lock(of).is_revoked(b.handle))?;
                let len = b.pieces().iter().map(|p| p.len() as u64).sum();
                (len, b.pieces().len(), *revoked, b.publisher.clone(), b.kind.clone())
            }
        };
        // SAFETY: likewise: it has all of these fields.
        let info = unsafe { &mut *info };
        (info.len, info.segments, info.revoked) = (len, segments as u32, revoked.into());
        fill(&mut info.publisher, &publisher);
        fill(&mut info.kind, &kind);
        Ok(())
    })
}

/// The same memory for further clients (broadcast): a buffer of its own, which is freed by itself.
///
/// 0; -ENOMEM: a client does not reach it, or a rule is against it; -ENODEV; -ESTALE; -EINVAL.
///
/// # Safety
/// `buffer` is NULL or a buffer that was not freed; `clients` has `client_count` C strings; `shared` is NULL
/// or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_share(
    opened: *mut strait_p2pmem,
    buffer: *mut strait_p2pmem_buffer,
    clients: *const *const c_char,
    client_count: usize,
    shared: *mut *mut strait_p2pmem_buffer,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let (home, held, clients) = unsafe { (home(opened)?, held(buffer)?, names(clients, client_count)?) };
        if shared.is_null() {
            return Err(libc::EINVAL);
        }
        let wider = match (home, held) {
            (Home::Own(all), Held::Own(buffer)) => {
                let clients =
                    clients.iter().map(|name| errno(all.client(name))).collect::<Result<Vec<_>, _>>()?;
                Held::Own(errno(buffer.share(&clients))?)
            }
            (Home::Daemon(_), Held::Daemon { buffer: Some(buffer), of, .. }) => {
                let widened = errno(lock(of).widen(buffer, &clients))?;
                Held::Daemon { buffer: Some(widened), of: of.clone(), revoked: false }
            }
            _ => return Err(libc::EINVAL),
        };
        give(wider, shared);
        Ok(())
    })
}

/// A dma-buf of piece `index`, for a driver that takes one: a new descriptor in *fd, which the caller closes,
/// and where in it the piece begins in *offset.
///
/// 0; -EOPNOTSUPP: Linux makes none of such memory; -EINVAL; else what the memory's driver said.
///
/// # Safety
/// `buffer` is NULL or a buffer that was not freed; `fd` and `offset` are NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_dmabuf(
    buffer: *mut strait_p2pmem_buffer,
    index: u32,
    fd: *mut c_int,
    offset: *mut u64,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let held = unsafe { held(buffer)? };
        if fd.is_null() || offset.is_null() {
            return Err(libc::EINVAL);
        }
        let Held::Own(buffer) = held else {
            return errno(Err(Error::Unsupported("a buffer of the daemon's has no dma-buf here".into())));
        };
        let (file, at) = errno(buffer.dmabuf(index as usize))?;
        // SAFETY: likewise.
        unsafe {
            fd.write(file.into_raw_fd());
            offset.write(at);
        }
        Ok(())
    })
}

/// Has `notice` called, from any thread, when the buffer is taken back: `why` says in words what happened. At
/// once if it was. It may not free the buffer. strait_p2pmem_free waits for it, so the caller of that holds
/// no lock that `notice` takes; it is not called later. Not with a daemon: strait_p2pmem_query says it there.
///
/// # Safety
/// `buffer` is NULL or a buffer that was not freed; `notice` may be called with `arg` once, until the buffer
/// is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_on_revoke(
    buffer: *mut strait_p2pmem_buffer,
    notice: Option<unsafe extern "C" fn(arg: *mut c_void, why: *const c_char)>,
    arg: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let buffer = unsafe { buffer.as_ref() }.ok_or(libc::EINVAL)?;
        let notice = notice.ok_or(libc::EINVAL)?;
        let Held::Own(own) = &buffer.held else {
            return errno(Err(Error::Unsupported("ask strait_p2pmem_query whether it was revoked".into())));
        };
        let arg = arg.expose_provenance();
        let id = own.on_revoke(move |why| {
            let why = CString::new(why).unwrap_or_default();
            // SAFETY: the program's promise.
            unsafe { notice(ptr::with_exposed_provenance_mut(arg), why.as_ptr()) };
        });
        buffer.notices.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        Ok(())
    })
}

//! Buffers.

use std::ffi::CString;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::ptr;
use std::sync::PoisonError;

use c_abi::{guard, sized};
use libc::{c_char, c_int, c_void};
use p2pmem::daemon::{Session, Wanted};
use p2pmem::publisher::Mapped;
use p2pmem::{Orchestrator, Request, Rules};

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
            flags: 0,
            reserved: 0,
        };
        let least = std::mem::offset_of!(strait_p2pmem_options, flags);
        // SAFETY: the program's promise.
        let options = unsafe { sized(options, least, none)? };
        if opened.is_null() || options.flags & !STRAIT_P2PMEM_FOR_ALL_USERS != 0 || options.reserved != 0 {
            return Err(wrong(
                "`opened` is NULL, `flags` has a flag that this version does not know, or `reserved` is not 0",
            ));
        }
        // SAFETY: the program's promise: each is NULL or a string.
        let (daemon, sysfs, rules) =
            unsafe { (text(options.daemon)?, text(options.sysfs)?, text(options.rules)?) };
        let home = match daemon {
            Some(name) => {
                let name = if name.is_empty() { p2pmem::daemon::NAME } else { name };
                let rules = errno(Rules::parse(rules.unwrap_or("")))?;
                let session = errno(Session::open(name))?;
                for rule in rules.all() {
                    errno(session.with(|connection| connection.add_rule(&rule.text)))?;
                }
                Home::Daemon(session)
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
        p2pmem::peer::register()
            .map_err(|code| refused(code, &"devices' windows cannot be a kind of memory in this process"))?;
        let for_all_users = options.flags & STRAIT_P2PMEM_FOR_ALL_USERS != 0;
        // SAFETY: the program has a place for it.
        unsafe { opened.write(Box::into_raw(Box::new(strait_p2pmem { home, for_all_users }))) };
        Ok(())
    })
}

/// Closes. Buffers stay until they are freed, and what was published by way of the daemon as long as they do.
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
        let known = STRAIT_P2PMEM_NO_HOST | STRAIT_P2PMEM_OTHER_USERS;
        if buffer.is_null() || asked.flags & !known != 0 {
            return Err(wrong("`buffer` is NULL, or `flags` has a flag that this version does not know"));
        }
        // SAFETY: the program's promise: so many clients, each a string, and a job that is NULL or one.
        let (clients, job) =
            unsafe { (names(asked.clients, asked.client_count)?, text(asked.job)?.unwrap_or("")) };
        let (align, segments) = (asked.align.max(1), asked.segments.max(1));
        let (len, host) = (asked.len, asked.flags & STRAIT_P2PMEM_NO_HOST == 0);
        let others = asked.flags & STRAIT_P2PMEM_OTHER_USERS != 0;
        let held = match home {
            Home::Own(all) => {
                let clients = clients.iter().map(|name| errno(all.client(name))).collect::<Result<_, _>>()?;
                let (job, segments) = (job.to_owned(), segments as usize);
                let request =
                    Request { clients, len, align, segments, job, host, others, ..Request::default() };
                Held::own(errno(all.allocate(&request))?, all)
            }
            Home::Daemon(session) => {
                let segments = u16::try_from(segments).unwrap_or(u16::MAX);
                let wanted = Wanted { clients: &clients, len, align, segments, host, others, job };
                Held::Daemon(errno(session.take(|connection| connection.request(&wanted)))?)
            }
        };
        give(held, buffer);
        Ok(())
    })
}

/// Frees a buffer. The memory goes back when the last buffer that shares it is freed.
///
/// # Safety
/// `buffer` is NULL or came from strait_p2pmem_alloc, strait_p2pmem_share or strait_p2pmem_join, and was not
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_free(buffer: *mut strait_p2pmem_buffer) -> c_int {
    guard(|| {
        if buffer.is_null() {
            return Ok(());
        }
        // SAFETY: the program's promise.
        let mut freed = unsafe { Box::from_raw(buffer) };
        let notices = std::mem::take(freed.notices.get_mut().unwrap_or_else(PoisonError::into_inner));
        match freed.held {
            Held::Own { buffer, home, tokens } => {
                // Another buffer may share the memory; it has notices of its own.
                notices.into_iter().for_each(|notice| buffer.cancel_notice(notice));
                let tokens = tokens.into_inner().unwrap_or_else(PoisonError::into_inner);
                tokens.into_iter().for_each(|token| home.forget_token(token));
                Ok(())
            }
            Held::Daemon(buffer) => {
                notices.into_iter().for_each(|notice| buffer.cancel_notice(notice));
                errno(buffer.free())
            }
        }
    })
}

/// # Safety
/// `buffer` is NULL or a buffer that was not freed.
pub(super) unsafe fn held<'a>(buffer: *const strait_p2pmem_buffer) -> Result<&'a Held, c_int> {
    // SAFETY: the caller's promise.
    not_null(unsafe { buffer.as_ref() }, "`buffer`").map(|b| &b.held)
}

fn pieces(held: &Held) -> Result<&[Mapped], c_int> {
    match held {
        Held::Own { buffer, .. } => errno(buffer.map()),
        Held::Daemon(buffer) => errno(buffer.pieces()),
    }
}

/// Piece `index` of a buffer.
///
/// 0; -ENOENT: it has no such piece; -ESTALE: it was revoked; -EOPNOTSUPP: no processor can map it, and
/// devices take its dma-buf; -EINVAL.
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
            return Err(wrong("`segment` is NULL"));
        }
        let none =
            || refused(libc::ENOENT, &format!("there is no piece {index}: the buffer has {}", all.len()));
        let piece = all.get(index as usize).ok_or_else(none)?;
        let addr = ptr::with_exposed_provenance_mut(piece.addr());
        // SAFETY: it is not NULL: valid for a write by the program's promise.
        unsafe { segment.write(strait_p2pmem_segment { addr, len: piece.len() }) };
        Ok(())
    })
}

/// What a buffer is, and whether it was taken back.
///
/// # Safety
/// `buffer` is NULL or a buffer that was not freed; `info` is NULL or points to as many bytes as its `size`
/// says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_query(
    buffer: *mut strait_p2pmem_buffer,
    info: *mut strait_p2pmem_info,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let held = unsafe {
            has_size(info)?;
            held(buffer)?
        };
        let (len, segments, revoked, publisher, kind) = match held {
            Held::Own { buffer: b, .. } => {
                let kind = b.kind().name().to_owned();
                (b.len(), b.segments(), b.is_revoked(), b.publisher().to_owned(), kind)
            }
            Held::Daemon(buffer) => {
                let (revoked, b) = (buffer.why().is_some(), errno(buffer.known())?);
                (b.len(), b.segments(), revoked, b.publisher.clone(), b.kind.clone())
            }
        };
        // SAFETY: the program's promise; by its size it has all of these fields.
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
            return Err(wrong("`shared` is NULL"));
        }
        let wider = match (home, held) {
            (Home::Own(all), Held::Own { buffer, .. }) => {
                let clients =
                    clients.iter().map(|name| errno(all.client(name))).collect::<Result<Vec<_>, _>>()?;
                Held::own(errno(buffer.share(&clients))?, all)
            }
            (Home::Daemon(_), Held::Daemon(buffer)) => Held::Daemon(errno(buffer.widen(&clients))?),
            _ => return Err(wrong("the buffer is not of `opened`")),
        };
        give(wider, shared);
        Ok(())
    })
}

/// A dma-buf of piece `index`, for a driver that takes one: a new descriptor in *fd, which the caller closes,
/// and where in it the piece begins in *offset.
///
/// 0; -EOPNOTSUPP: Linux makes none of such memory; -ESTALE: it was revoked; -EINVAL; else what the memory's
/// driver said.
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
            return Err(wrong("`fd` or `offset` is NULL"));
        }
        let (file, at) = errno(match held {
            Held::Own { buffer, .. } => buffer.dmabuf(index as usize),
            Held::Daemon(buffer) => buffer.dmabuf(index as usize),
        })?;
        // SAFETY: neither is NULL: valid for a write by the program's promise.
        unsafe {
            fd.write(file.into_raw_fd());
            offset.write(at);
        }
        Ok(())
    })
}

/// Has `notice` called, from any thread, when the buffer is taken back: `why` says in words what happened. At
/// once if it was. It may not free the buffer. strait_p2pmem_free waits for it, so the caller of that holds
/// no lock that `notice` takes; it is not called later. With a daemon a thread of the library's waits for
/// what the daemon says, and its end is a revocation too.
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
        let buffer = not_null(unsafe { buffer.as_ref() }, "`buffer`")?;
        let notice = not_null(notice, "`notice`")?;
        let arg = arg.expose_provenance();
        let call = move |why: &str| {
            let why = CString::new(why).unwrap_or_default();
            // SAFETY: the program's promise.
            unsafe { notice(ptr::with_exposed_provenance_mut(arg), why.as_ptr()) };
        };
        let id = match &buffer.held {
            Held::Own { buffer, .. } => buffer.on_revoke(call),
            Held::Daemon(buffer) => errno(buffer.on_revoke(call))?,
        };
        buffer.notices.lock().unwrap_or_else(PoisonError::into_inner).push(id);
        Ok(())
    })
}

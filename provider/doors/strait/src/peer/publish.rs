//! Publishers, rules and routes.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use c_abi::guard;
use libc::{c_char, c_int, c_void};
use p2pmem::daemon::{Publication, Session};
use p2pmem::publisher::{Kind, Publisher, Region, bar};
use p2pmem::{Address, Drain, Error};

use super::types::*;

/// How a device, by its address or name, reaches memory of a publisher, by its name.
///
/// # Safety
/// The texts are C strings or NULL; `route` is NULL or points to as many bytes as its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_query_route(
    opened: *mut strait_p2pmem,
    publisher: *const c_char,
    client: *const c_char,
    route: *mut strait_p2pmem_route,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let (home, publisher, client) = unsafe {
            has_size(route)?;
            (home(opened)?, not_null(text(publisher)?, "`publisher`")?, not_null(text(client)?, "`client`")?)
        };
        let (map, distance, why) = match home {
            Home::Own(all) => {
                let found = errno(all.client(client).and_then(|client| all.route(publisher, &client)))?;
                (found.map as u32, found.distance, found.to_string())
            }
            Home::Daemon(session) => {
                let (reach, why) = errno(session.with(|connection| connection.route(publisher, client)))?;
                (reach.map.into(), reach.distance, why)
            }
        };
        // SAFETY: as above: it has all of these fields.
        let route = unsafe { &mut *route };
        (route.map, route.distance) = (map, distance);
        fill(&mut route.why, &why);
        Ok(())
    })
}

/// Adds a rule behind the others (strait_p2pmem(7) has the grammar). With a daemon it is one for the requests
/// of this process, behind the daemon's own.
///
/// # Safety
/// `rule` is a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_add_rule(opened: *mut strait_p2pmem, rule: *const c_char) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let (home, rule) = unsafe { (home(opened)?, not_null(text(rule)?, "`rule`")?) };
        errno(match home {
            Home::Own(all) => all.add_rule(rule),
            Home::Daemon(session) => session.with(|connection| connection.add_rule(rule)),
        })
    })
}

/// # Safety
/// `function` is a C string or NULL.
unsafe fn function(function: *const c_char) -> Result<Option<Address>, c_int> {
    // SAFETY: the caller's promise.
    let text = unsafe { text(function)? };
    text.map(address).transpose()
}

/// What is published, and for which users.
#[derive(Clone, Copy)]
struct Named<'a> {
    name: &'a str,
    function: Option<Address>,
    all_users: bool,
}

/// # Safety
/// `opened` is as of [`home`]; the texts are C strings or NULL.
unsafe fn named<'a>(
    opened: *const strait_p2pmem,
    name: *const c_char,
    pci_function: *const c_char,
) -> Result<(&'a Home, Named<'a>), c_int> {
    // SAFETY: the caller's promise.
    let (opened, name, function) =
        unsafe { (not_null(opened.as_ref(), "`opened`")?, text(name)?, function(pci_function)?) };
    let name = not_null(name, "`name`")?;
    Ok((&opened.home, Named { name, function, all_users: opened.for_all_users }))
}

/// Publishes memory by way of the daemon.
fn send(session: &Session, of: &Named<'_>, kind: Kind, fd: &OwnedFd, part: (u64, u64)) -> Result<(), Error> {
    let (Named { name, function, all_users }, (offset, len)) = (*of, part);
    let publication = Publication { name, function, kind, offset, len, all_users };
    session.with(|connection| connection.publish(&publication, fd.as_fd()))
}

/// Publishes memory of this process, a device's (cudaMalloc) or other: `len` bytes at `addr`, from which
/// parts are given. `function` is the address of the PCI function that has it, without which no client
/// reaches it, or NULL.
///
/// With a daemon other processes of this user map memory of cudaMalloc (hipMalloc) by its driver, and have
/// other memory by a dma-buf: -EOPNOTSUPP where there is none, as of malloc(3)'s. It is published until this
/// is closed.
///
/// # Safety
/// The memory stays until it is unpublished and all buffers of it are freed. The texts are C strings, or
/// NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_publish_memory(
    opened: *mut strait_p2pmem,
    name: *const c_char,
    pci_function: *const c_char,
    addr: *mut c_void,
    len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let (home, of) = unsafe { named(opened, name, pci_function)? };
        let addr = addr.expose_provenance();
        addr.checked_add(len)
            .filter(|_| addr != 0 && len > 0)
            .ok_or_else(|| wrong("`addr` is NULL, `len` is 0, or the end is behind the last address"))?;
        errno(match home {
            Home::Own(all) => {
                // SAFETY: as above.
                let region = unsafe { Region::of_memory(of.name, of.function, addr, len) };
                all.publish(Arc::new(region))
            }
            Home::Daemon(session) => {
                let Named { name, function, all_users } = of;
                let (kind, offset, len) = (Kind::File, 0, len as u64);
                let publication = Publication { name, function, kind, offset, len, all_users };
                session.with(|connection| connection.publish_memory(&publication, addr))
            }
        })
    })
}

/// Publishes `len` bytes of a file that can be mapped, from byte `offset` on: a dma-buf, or a memfd. The
/// descriptor is copied. Else as strait_p2pmem_publish_memory.
///
/// With a daemon a memfd is sealed so that it cannot become shorter (F_SEAL_SHRINK), since an access would be
/// SIGBUS at other processes: -EOPNOTSUPP where that cannot be done, as with a file of a file system.
///
/// # Safety
/// The texts are C strings, or NULL. The file is as long until it is unpublished and all buffers of it are
/// freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_publish_file(
    opened: *mut strait_p2pmem,
    name: *const c_char,
    pci_function: *const c_char,
    fd: c_int,
    offset: u64,
    len: u64,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let (home, of) = unsafe { named(opened, name, pci_function)? };
        let end = offset.checked_add(len).filter(|_| offset % 4096 == 0 && len > 0);
        let end = end
            .ok_or_else(|| wrong("`offset` is no multiple of 4096, `len` is 0, or the end is above 2^64"))?;
        let copy = copy_of(fd)?;
        errno(is_so_long(&copy, end))?;
        errno(match home {
            Home::Own(all) => all.publish(Arc::new(Region::of_file(of.name, of.function, copy, offset, len))),
            Home::Daemon(session) => send(session, &of, Kind::File, &copy, (offset, len)),
        })
    })
}

/// Publishes `len` bytes from byte `offset` on of BAR `bar` of a device that VFIO has, by the device's
/// descriptor, which is copied. They are mapped through that; strait_p2pmem_dmabuf gives a dma-buf, which
/// Linux makes since 6.19, or says why there is none. Else as strait_p2pmem_publish_memory.
///
/// With a daemon other processes have the dma-buf alone, since the device's descriptor controls all of the
/// device.
///
/// # Safety
/// The texts are C strings, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_publish_vfio(
    opened: *mut strait_p2pmem,
    name: *const c_char,
    pci_function: *const c_char,
    device: c_int,
    bar: u32,
    offset: u64,
    len: u64,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let (home, of) = unsafe { named(opened, name, pci_function)? };
        let copy = copy_of(device)?;
        let part = (bar, offset, len);
        let region = errno(Region::of_bar(of.name, of.function, copy, part, bar::ioctl))?;
        errno(match home {
            Home::Own(all) => all.publish(Arc::new(region)),
            Home::Daemon(session) => {
                let none = || Error::Unsupported(format!("{}: there is no dma-buf of it", of.name));
                let (fd, at) = errno(region.dmabuf(0).ok_or_else(none).and_then(|made| made))?;
                send(session, &of, Kind::Bar, &fd, (at, len))
            }
        })
    })
}

/// What is behind the end of a file can be mapped, but an access is SIGBUS.
fn is_so_long(fd: &OwnedFd, end: u64) -> Result<(), Error> {
    let of = fd.try_clone().and_then(|fd| std::fs::File::from(fd).metadata());
    let of = of.map_err(|e| Error::Os("fstat".into(), e))?;
    // Of a dma-buf too; what has no length says 0.
    if of.len() < end && (of.is_file() || of.len() > 0) {
        let len = of.len();
        return Err(Error::Invalid(format!("the file has {len} bytes: there are none up to byte {end}")));
    }
    Ok(())
}

/// A descriptor of the program's, copied.
fn copy_of(fd: c_int) -> Result<OwnedFd, c_int> {
    // SAFETY: a number; what is no descriptor is EBADF.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return errno(Err(Error::Os(format!("descriptor {fd}"), std::io::Error::last_os_error())));
    }
    // SAFETY: a descriptor just made, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Takes a publisher out. `drain` is STRAIT_P2PMEM_IF_IDLE, STRAIT_P2PMEM_REVOKE, or for how many
/// milliseconds to wait until its buffers are freed; meanwhile it gives nothing.
///
/// 0; -EBUSY: buffers are in use; -EPERM: another user has published it, or the daemon has; -ENOENT; -EINVAL.
///
/// # Safety
/// `name` is a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_unpublish(
    opened: *mut strait_p2pmem,
    name: *const c_char,
    drain: i64,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let (home, name) = unsafe { (home(opened)?, not_null(text(name)?, "`name`")?) };
        let drain = match drain {
            STRAIT_P2PMEM_IF_IDLE => Drain::IfIdle,
            STRAIT_P2PMEM_REVOKE => Drain::Revoke,
            time => Drain::Wait(Duration::from_millis(
                time.try_into().map_err(|_| wrong("`drain` is below 0, and not STRAIT_P2PMEM_REVOKE"))?,
            )),
        };
        match home {
            Home::Own(all) => errno(all.unpublish(name, drain)).map(drop),
            Home::Daemon(session) => errno(session.unpublish(name, drain)).map(drop),
        }
    })
}

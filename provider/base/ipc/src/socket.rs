//! Unix sockets that keep packets apart, under abstract names: nothing has a name in a file system, unless a
//! caller wants a path.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::cvt;

/// A socket that does not block and that execve(2) closes.
pub fn socket(domain: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) touches no memory of ours.
    let fd = cvt(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) })?;
    // SAFETY: a descriptor just made, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An abstract name, which has room for 107 bytes.
fn address(name: &str) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: a `sockaddr_un` is plain data, for which zeros are a value.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // An abstract name starts with a zero byte.
    let room = &mut addr.sun_path[1..];
    if name.len() > room.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in room.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
    Ok((addr, len as libc::socklen_t))
}

/// A path, which has room for 107 bytes.
fn path_address(path: &Path) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: a `sockaddr_un` is plain data, for which zeros are a value.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.is_empty() || bytes.len() >= addr.sun_path.len() || bytes.contains(&0) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in addr.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    Ok((addr, len as libc::socklen_t))
}

/// Listens at a path, for every user that can reach it. A socket is replaced that nothing listens at any
/// more.
pub fn listen_at(path: &Path) -> io::Result<OwnedFd> {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    let (addr, len) = path_address(path)?;
    let fd = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET)?;
    // SAFETY: `addr` is an address of `len` bytes.
    let bind = || cvt(unsafe { libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len) });
    if let Err(e) = bind() {
        let is_socket = || std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket());
        let refused = || connect_at(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
        if e.kind() != io::ErrorKind::AddrInUse || !is_socket() || !refused() {
            return Err(e);
        }
        std::fs::remove_file(path)?;
        bind()?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    // SAFETY: listen(2) touches no memory.
    cvt(unsafe { libc::listen(fd.as_raw_fd(), 4096) })?;
    Ok(fd)
}

/// Connects to what listens at a path.
pub fn connect_at(path: &Path) -> io::Result<OwnedFd> {
    let (addr, len) = path_address(path)?;
    let fd = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET)?;
    // SAFETY: `addr` is an address of `len` bytes.
    cvt(unsafe { libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(fd)
}

/// Listens under a name.
pub fn listen(name: &str) -> io::Result<OwnedFd> {
    let (addr, len) = address(name)?;
    let fd = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET)?;
    // SAFETY: `addr` is an address of `len` bytes.
    unsafe {
        cvt(libc::bind(fd.as_raw_fd(), (&raw const addr).cast(), len))?;
        cvt(libc::listen(fd.as_raw_fd(), 4096))?;
    }
    Ok(fd)
}

/// Connects to what listens under a name.
pub fn connect(name: &str) -> io::Result<OwnedFd> {
    let (addr, len) = address(name)?;
    let fd = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET)?;
    // SAFETY: `addr` is an address of `len` bytes.
    cvt(unsafe { libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), len) })?;
    Ok(fd)
}

/// The next connection, if there is one.
pub fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: the address is NULL, so accept4(2) touches no memory of ours.
    let fd = cvt(unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
        )
    })?;
    // SAFETY: a descriptor just made, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether a system call failed because there are no descriptors, or no memory, to be had.
pub fn is_lack(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

/// How many descriptors there may be.
pub fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur
}

/// Sends a packet; whether that worked is of no interest, since a full or dead socket will say so.
pub fn notify(sock: &OwnedFd, bytes: &[u8]) {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: send(2) reads `bytes` and nothing else.
    let _ = unsafe { libc::send(sock.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
}

/// Sends a packet without waiting; EAGAIN where the other end lets its packets lie.
pub fn send(sock: &OwnedFd, bytes: &[u8]) -> io::Result<()> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: send(2) reads `bytes` and nothing else.
    let n = unsafe { libc::send(sock.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits until there is something to receive, or so many milliseconds have passed (-1: no limit); whether
/// there is.
pub fn wait(fd: &impl AsRawFd, milliseconds: i32) -> bool {
    let mut p = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `p` is one valid pollfd.
    unsafe { libc::poll(&mut p, 1, milliseconds) == 1 }
}

/// Receives a packet without waiting; 0 bytes is the end.
pub fn receive(sock: &OwnedFd, bytes: &mut [u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: `bytes` is a valid place of its length.
    let n = unsafe { libc::recv(sock.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Whether the other end of a socket is closed.
pub fn hung_up(sock: &OwnedFd) -> bool {
    readable(sock, libc::POLLRDHUP)
}

/// Whether a connection waits to be accepted.
pub fn has_caller(listener: &OwnedFd) -> bool {
    readable(listener, libc::POLLIN)
}

/// The abstract name that the other end of a socket has.
pub fn peer_name(sock: &OwnedFd) -> io::Result<String> {
    // SAFETY: a `sockaddr_un` is plain data, for which zeros are a value.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `name` is a valid place of `len` bytes.
    cvt(unsafe { libc::getpeername(sock.as_raw_fd(), (&raw mut name).cast(), &mut len) })?;
    let len = (len as usize).saturating_sub(std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1);
    Ok(name.sun_path[1..].iter().take(len).map(|c| char::from(*c as u8)).collect())
}

/// Ends a connection, or listening, also for processes that hold a copy of the descriptor.
pub fn shutdown(sock: &OwnedFd) {
    // SAFETY: shutdown(2) touches no memory.
    unsafe { libc::shutdown(sock.as_raw_fd(), libc::SHUT_RDWR) };
}

/// The first bytes of the next packet, which stays, and how long it is.
pub fn peek(sock: &OwnedFd, bytes: &mut [u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_TRUNC;
    // SAFETY: `bytes` is a valid place of its length.
    let n = unsafe { libc::recv(sock.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Whether one of these events of poll(2) is there, or an error or a hang-up.
pub fn readable(fd: &OwnedFd, events: libc::c_short) -> bool {
    let mut p = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: `p` is one valid pollfd.
    unsafe { libc::poll(&mut p, 1, 0) == 1 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pair(name: &str) -> (OwnedFd, OwnedFd, OwnedFd) {
        let name = format!("strait-test/{name}/{}", std::process::id());
        let listener = listen(&name).unwrap();
        assert!(!has_caller(&listener));
        assert_eq!(listen(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        let near = connect(&name).unwrap();
        assert!(has_caller(&listener));
        let far = accept(&listener).unwrap();
        (listener, near, far)
    }

    #[test]
    fn packets_stay_apart_and_the_end_is_seen() {
        let (_listener, near, far) = pair("packets");
        notify(&near, b"one");
        notify(&near, b"another");
        let mut bytes = [0; 5];
        assert_eq!(peek(&far, &mut bytes[..2]).unwrap(), 3, "the length of all of it");
        assert_eq!((receive(&far, &mut bytes).unwrap(), &bytes[..3]), (3, &b"one"[..]));
        assert_eq!((receive(&far, &mut bytes).unwrap(), &bytes), (5, b"anoth"), "the rest is gone");
        assert_eq!(receive(&far, &mut bytes).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(!hung_up(&far));
        // A copy of the descriptor does not keep the connection.
        let _copy = near.try_clone().unwrap();
        shutdown(&near);
        assert!(hung_up(&far));
        assert_eq!(receive(&far, &mut bytes).unwrap(), 0);
        notify(&far, b"nothing reads this");
        assert_eq!(send(&far, b"nor this").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }

    #[test]
    fn a_packet_is_waited_for_and_a_full_socket_says_so() {
        let (_listener, near, far) = pair("full");
        assert!(!wait(&far, 0));
        send(&near, b"one").unwrap();
        assert!(wait(&far, -1));
        let full = (0..1 << 20).find_map(|_| send(&near, &[0; 1000]).err());
        assert_eq!(full.map(|e| e.kind()), Some(io::ErrorKind::WouldBlock));
    }

    #[test]
    fn a_path_is_listened_at_by_one_and_taken_over_from_one_that_ended() {
        let path = std::env::temp_dir().join(format!("strait-socket-{}", std::process::id()));
        let first = listen_at(&path).unwrap();
        let near = connect_at(&path).unwrap();
        let far = accept(&first).unwrap();
        send(&near, b"one").unwrap();
        assert_eq!(receive(&far, &mut [0; 8]).unwrap(), 3);
        assert_eq!(listen_at(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(first);
        assert_eq!(connect_at(&path).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let second = listen_at(&path).unwrap();
        connect_at(&path).unwrap();
        drop(second);
        std::fs::remove_file(&path).unwrap();
        // What is no socket stays.
        std::fs::write(&path, b"text").unwrap();
        assert!(listen_at(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"text");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(listen_at(Path::new(&"x".repeat(108))).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn a_name_without_a_listener_refuses() {
        let (listener, _near, _far) = pair("refused");
        let name = format!("strait-test/refused/{}", std::process::id());
        shutdown(&listener);
        assert_eq!(connect(&name).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        drop(listener);
        assert!(connect(&name).is_err());
        assert_eq!(connect(&"x".repeat(108)).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}

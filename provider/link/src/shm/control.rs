//! Names, sockets, and the hello by which a segment changes hands.
//!
//! An endpoint named `ip:port` holds a TCP socket bound there (never listening: it only reserves
//! the port among all programs) and listens on the abstract unix socket `strait/ip:port`, or
//! `strait/*:port` if it serves every address. Whoever wants to send connects there and sends one
//! packet, the hello, with the descriptor of the segment it made. Then packets of the acceptor are
//! one byte (`WELCOME`: and more), those of the connector are wake-ups.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use wire::Addr;

use crate::space::Space;

/// First byte of a packet after the hello: wake up.
pub(crate) const WAKE: u8 = 0;
/// Accepted; the acceptor's incarnation and address space follow.
pub(crate) const WELCOME: u8 = 1;
/// Bytes of such a packet.
pub(crate) const WELCOME_LEN: usize = 9 + Space::LEN;
/// Refused; the connection ends.
pub(crate) const REFUSED: u8 = 2;
/// Likewise, for want of descriptors or memory.
pub(crate) const EXHAUSTED: u8 = 6;

/// The answer of a system call, or errno.
pub(crate) fn cvt(ret: libc::c_int) -> io::Result<libc::c_int> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

/// What a connector says of itself and its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    pub(crate) ring: u32,
    /// Random; tells this endpoint from earlier ones of the same name.
    pub(crate) incarnation: u64,
    /// Its name.
    pub(crate) from: Addr,
    /// The name it knows the acceptor by. One that serves every address has several, and answers
    /// under the one it was called by.
    pub(crate) to: Addr,
    /// Its address space.
    pub(crate) space: Space,
}

impl Hello {
    pub(crate) const LEN: usize = 72 + Space::LEN;
    const MAGIC: [u8; 8] = *b"straitS\x01";

    pub(crate) fn encode(&self) -> [u8; Hello::LEN] {
        let mut out = [0; Hello::LEN];
        out[..8].copy_from_slice(&Hello::MAGIC);
        out[8..16].copy_from_slice(&self.incarnation.to_le_bytes());
        out[16..20].copy_from_slice(&self.ring.to_le_bytes());
        out[20..22].copy_from_slice(&self.version.to_le_bytes());
        out[24..48].copy_from_slice(&self.from.encode());
        out[48..72].copy_from_slice(&self.to.encode());
        out[72..].copy_from_slice(&self.space.encode());
        out
    }

    pub(crate) fn decode(b: &[u8]) -> Option<Hello> {
        let b: &[u8; Hello::LEN] = b.try_into().ok()?;
        if b[..8] != Hello::MAGIC || b[22..24] != [0, 0] {
            return None;
        }
        Some(Hello {
            incarnation: u64::from_le_bytes(b[8..16].try_into().ok()?),
            ring: u32::from_le_bytes(b[16..20].try_into().ok()?),
            version: u16::from_le_bytes(b[20..22].try_into().ok()?),
            from: Addr::decode(b[24..48].try_into().ok()?)?,
            to: Addr::decode(b[48..72].try_into().ok()?)?,
            space: Space::decode(b[72..].try_into().ok()?),
        })
    }
}

/// Who is at the other end of a socket, by the kernel's word.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cred {
    pub(crate) uid: u32,
    /// 0 if it is not visible in our pid namespace.
    pub(crate) pid: i32,
}

impl Cred {
    pub(crate) fn of(fd: &OwnedFd) -> io::Result<Cred> {
        let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
        let mut len = size_of::<libc::ucred>() as libc::socklen_t;
        // SAFETY: `cred` is a valid place of `len` bytes.
        cvt(unsafe {
            libc::getsockopt(
                fd.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut cred).cast(),
                &mut len,
            )
        })?;
        Ok(Cred { uid: cred.uid, pid: cred.pid })
    }

    /// Whose it is: `sock` is where these come from.
    ///
    /// The kernel tells a uid as this user namespace maps it, and each uid without a mapping as the
    /// overflow uid. So that one may stand for any user, and is ours only if the kernel, which compares
    /// users themselves, lets us signal the process.
    pub(crate) fn user(&self, sock: &OwnedFd) -> User {
        // SAFETY: geteuid(2) cannot fail and touches no memory.
        let me = unsafe { libc::geteuid() };
        match self.uid == me {
            false => User::Other,
            true if !others_look_alike() || may_signal(sock) => User::Ours,
            true => User::Unknown,
        }
    }
}

/// Whose a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    Ours,
    Other,
    /// This user namespace shows it with the same uid, and others too.
    Unknown,
}

/// What to do about [`User::Unknown`].
pub(crate) const UNMAPPED: &str = "in this user namespace that uid stands for every user without a mapping: \
    map the user (unshare --map-current-user, --map-root-user or --map-user; /etc/subuid)";

/// Whether other users than ours have our uid, as this user namespace shows them.
pub fn others_look_alike() -> bool {
    // SAFETY: geteuid(2) cannot fail and touches no memory.
    unsafe { libc::geteuid() == overflow_uid() && !every_uid_is_mapped() }
}

/// What stands for a uid without a mapping.
fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    text.ok().and_then(|t| t.trim().parse().ok()).unwrap_or(65534)
}

/// Whether this user namespace maps every uid there is, as the first one does; no if that is not known.
fn every_uid_is_mapped() -> bool {
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().filter_map(count).sum::<u64>() >= u64::from(u32::MAX)
}

/// Whether we may signal the process at the other end of a socket; no if it is not known which that is.
///
/// kill(2): its real or saved uid has to be our real or effective one, in the kernel's own terms. A
/// capability serves instead only inside our own user namespace.
fn may_signal(sock: &OwnedFd) -> bool {
    // Its number would not do: it may be another process's by now.
    let Ok(life) = peer_pidfd(sock) else { return false };
    let (fd, info) = (life.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
    // SAFETY: signal 0 sends none, and nothing is read from the null pointer.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, fd, 0, info, 0) == 0 }
}

/// A descriptor of the process at the other end of a socket, with Linux 6.5 or later.
fn peer_pidfd(sock: &OwnedFd) -> io::Result<OwnedFd> {
    let mut raw: RawFd = -1;
    let mut len = size_of::<RawFd>() as libc::socklen_t;
    let place = (&raw mut raw).cast();
    // SAFETY: `raw` is a valid place of `len` bytes.
    cvt(unsafe {
        libc::getsockopt(sock.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERPIDFD, place, &mut len)
    })?;
    // SAFETY: a descriptor just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Watches the process at the other end of a socket: a descriptor that is readable once all of it has
/// ended, whoever else holds the socket by then. `Err`: it has ended. `None`: the kernel cannot (it
/// came with Linux 5.3, and with 6.5 for processes of other pid namespaces), or lacks descriptors.
pub(crate) fn watch(sock: &OwnedFd, pid: i32) -> Result<Option<OwnedFd>, Ended> {
    let got = match peer_pidfd(sock) {
        Err(e) if e.raw_os_error() == Some(libc::ENOPROTOOPT) && pid > 0 => {
            // SAFETY: pidfd_open(2) touches no memory of ours; the descriptor is new.
            unsafe {
                cvt(libc::syscall(libc::SYS_pidfd_open, pid, 0) as libc::c_int)
                    .map(|raw| OwnedFd::from_raw_fd(raw))
            }
        }
        other => other,
    };
    match got {
        Ok(fd) if has_ended(&fd) => Err(Ended),
        Ok(fd) => Ok(Some(fd)),
        Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Err(Ended),
        Err(_) => Ok(None),
    }
}

/// The process is no more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended;

/// Whether the process of a descriptor of [`watch`] has ended.
pub(crate) fn has_ended(life: &OwnedFd) -> bool {
    readable(life, libc::POLLIN)
}

fn readable(fd: &OwnedFd, events: libc::c_short) -> bool {
    let mut p = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    // SAFETY: `p` is one valid pollfd.
    unsafe { libc::poll(&mut p, 1, 0) == 1 }
}

pub(crate) fn socket(domain: libc::c_int, kind: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: socket(2) touches no memory of ours.
    let fd = cvt(unsafe { libc::socket(domain, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) })?;
    // SAFETY: a descriptor just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The unix socket name of an endpoint; `None` stands for every address.
fn unix_name(ip: Option<IpAddr>, port: u16) -> (libc::sockaddr_un, libc::socklen_t) {
    let text = match ip {
        None => format!("strait/*:{port}"),
        Some(ip) => format!("strait/{}", SocketAddr::new(ip, port)),
    };
    // SAFETY: a `sockaddr_un` is plain data, for which zeros are a value.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    name.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // An abstract name starts with a zero byte. The text has at most 60 bytes, there is room for
    // 107.
    for (to, from) in name.sun_path[1..].iter_mut().zip(text.bytes()) {
        *to = from as libc::c_char;
    }
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + text.len();
    (name, len as libc::socklen_t)
}

/// Listens under the endpoint's name.
pub(crate) fn listen(bound: SocketAddr) -> io::Result<OwnedFd> {
    let ip = Addr::new(bound).ip();
    let (name, len) = unix_name((!ip.is_unspecified()).then_some(ip), bound.port());
    let fd = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET)?;
    // SAFETY: `name` is an address of `len` bytes.
    unsafe {
        cvt(libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len))?;
        cvt(libc::listen(fd.as_raw_fd(), 4096))?;
    }
    Ok(fd)
}

/// Who listens under an endpoint's name.
pub(crate) fn listener(bound: SocketAddr) -> Option<Cred> {
    let ip = Addr::new(bound).ip();
    let sock = connect((!ip.is_unspecified()).then_some(ip), bound.port()).ok()?;
    Cred::of(&sock).ok()
}

/// Connects to the endpoint listening at one address, or at every address (`None`).
pub(crate) fn connect(ip: Option<IpAddr>, port: u16) -> io::Result<OwnedFd> {
    let (name, len) = unix_name(ip, port);
    let fd = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET)?;
    // SAFETY: `name` is an address of `len` bytes.
    cvt(unsafe { libc::connect(fd.as_raw_fd(), (&raw const name).cast(), len) })?;
    Ok(fd)
}

/// The next connection, if there is one.
pub(crate) fn accept(listener: &OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: no address is asked for, so accept4(2) touches no memory of ours.
    let fd = cvt(unsafe {
        libc::accept4(
            listener.as_raw_fd(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
        )
    })?;
    // SAFETY: a descriptor just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether a system call failed because there are no descriptors, or no memory, to be had.
pub(crate) fn is_lack(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS))
}

/// How many descriptors there may be.
pub(crate) fn descriptor_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur
}

/// Room for a few descriptors in a control message, aligned as it must be.
#[repr(C, align(8))]
struct Ancillary([u8; 64]);

/// Sends a packet with a descriptor.
pub(crate) fn send_fd(sock: &OwnedFd, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut room = Ancillary([0; 64]);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: a `msghdr` is plain data, for which zeros are a value.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = room.0.as_mut_ptr().cast();
    // SAFETY: 1. CMSG_SPACE of 4 bytes is 24, less than the room there is. 2. So CMSG_FIRSTHDR is
    // the start of `room`, aligned, with place for a header and a descriptor.
    unsafe {
        msg.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
        let cmsg = libc::CMSG_FIRSTHDR(&msg);
        (*cmsg).cmsg_level = libc::SOL_SOCKET;
        (*cmsg).cmsg_type = libc::SCM_RIGHTS;
        (*cmsg).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(cmsg).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
    }
    // SAFETY: `msg` points to `bytes`, which sendmsg(2) only reads, and to `room`.
    let n = unsafe { libc::sendmsg(sock.as_raw_fd(), &msg, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives a packet and the descriptor with it, if there is one; 0 bytes is the end. Where there is no
/// place for the descriptor (EMFILE) the packet stays, to be received later.
pub(crate) fn recv_fd(sock: &OwnedFd, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    // What is received is gone, and a descriptor that finds no place with it: so it is looked at first,
    // for which the kernel makes the descriptor all the same.
    let seen = peek(sock, bytes)?;
    if seen.len == 0 {
        return Ok((0, None));
    }
    if seen.cut && !seen.full {
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    // All descriptors but the first are closed again.
    Ok((receive(sock, bytes)?, seen.fds.into_iter().next()))
}

/// The incarnation that a welcome tells, if that is the next packet; it stays.
pub(crate) fn peek_welcome(sock: &OwnedFd) -> Option<u64> {
    let mut bytes = [0; WELCOME_LEN];
    let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK | libc::MSG_TRUNC;
    // SAFETY: `bytes` is a valid place of its length.
    let n = unsafe { libc::recv(sock.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    let [WELCOME, number @ ..] = *bytes.first_chunk::<9>()? else { return None };
    (n == WELCOME_LEN as isize).then_some(u64::from_le_bytes(number))
}

/// The next packet, which stays.
struct Seen {
    len: usize,
    fds: Vec<OwnedFd>,
    /// Not all of its descriptors are in `fds`.
    cut: bool,
    /// As many as there was room for are.
    full: bool,
}

fn peek(sock: &OwnedFd, bytes: &mut [u8]) -> io::Result<Seen> {
    let mut room = Ancillary([0; 64]);
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: a `msghdr` is plain data, for which zeros are a value.
    let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = room.0.as_mut_ptr().cast();
    msg.msg_controllen = room.0.len() as _;
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT | libc::MSG_PEEK;
    // SAFETY: `msg` points to `bytes` and `room`, with their lengths.
    let n = unsafe { libc::recvmsg(sock.as_raw_fd(), &mut msg, flags) };
    if n < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut fds = Vec::new();
    // SAFETY: `msg` is as the kernel left it: its control messages are inside `room`.
    let mut cmsg = unsafe { libc::CMSG_FIRSTHDR(&msg) };
    while !cmsg.is_null() {
        // SAFETY: `cmsg` is a header inside `room`, followed by as much data as it says; for
        // SCM_RIGHTS these are descriptors that are ours from now on.
        unsafe {
            if (*cmsg).cmsg_level == libc::SOL_SOCKET && (*cmsg).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(cmsg).cast::<RawFd>();
                let bytes = ((*cmsg).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
                for i in 0..bytes / size_of::<RawFd>() {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            cmsg = libc::CMSG_NXTHDR(&msg, cmsg);
        }
    }
    // SAFETY: this computes a number.
    let most = (room.0.len() - unsafe { libc::CMSG_LEN(0) } as usize) / size_of::<RawFd>();
    let (cut, full) = (msg.msg_flags & libc::MSG_CTRUNC != 0, fds.len() == most);
    Ok(Seen { len: n as usize, fds, cut, full })
}

/// Sends a packet; whether that worked is of no interest, since a full or dead socket will say so.
pub(crate) fn notify(sock: &OwnedFd, bytes: &[u8]) {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: send(2) reads `bytes` and nothing else.
    let _ = unsafe { libc::send(sock.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) };
}

/// Receives a packet without waiting; 0 bytes is the end.
pub(crate) fn receive(sock: &OwnedFd, bytes: &mut [u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: `bytes` is a valid place of its length.
    let n = unsafe { libc::recv(sock.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), flags) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Whether the other end of a socket is closed.
pub(crate) fn hung_up(sock: &OwnedFd) -> bool {
    readable(sock, libc::POLLRDHUP)
}

/// Whether somebody has connected to a listener.
pub(crate) fn calls(listener: &OwnedFd) -> bool {
    readable(listener, libc::POLLIN)
}

/// The abstract name that the other end of a socket has.
pub(crate) fn peer_name(sock: &OwnedFd) -> io::Result<String> {
    // SAFETY: a `sockaddr_un` is plain data, for which zeros are a value.
    let mut name: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `name` is a valid place of `len` bytes.
    cvt(unsafe { libc::getpeername(sock.as_raw_fd(), (&raw mut name).cast(), &mut len) })?;
    let len = (len as usize).saturating_sub(std::mem::offset_of!(libc::sockaddr_un, sun_path) + 1);
    Ok(name.sun_path[1..].iter().take(len).map(|c| char::from(*c as u8)).collect())
}

/// Ends a connection, or listening, also for processes that hold a copy of the descriptor.
pub(crate) fn shutdown(sock: &OwnedFd) {
    // SAFETY: shutdown(2) touches no memory.
    unsafe { libc::shutdown(sock.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Has a timer be readable every so often; never, if that is zero.
pub(crate) fn set_timer(timer: &OwnedFd, every: Duration) -> io::Result<()> {
    let time = libc::timespec { tv_sec: every.as_secs() as _, tv_nsec: every.subsec_nanos() as _ };
    let spec = libc::itimerspec { it_interval: time, it_value: time };
    // SAFETY: `spec` is a valid setting, and no old one is asked for.
    cvt(unsafe { libc::timerfd_settime(timer.as_raw_fd(), 0, &spec, std::ptr::null_mut()) })?;
    Ok(())
}

/// An epoll set, whose members are named by numbers.
#[derive(Debug)]
pub(crate) struct Poller(OwnedFd);

impl Poller {
    pub(crate) fn new() -> io::Result<Poller> {
        // SAFETY: epoll_create1(2) touches no memory of ours.
        let fd = cvt(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: a descriptor just made, and nobody else's.
        Ok(Poller(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn add(&self, fd: &OwnedFd, token: u64) -> io::Result<()> {
        let mut ev = libc::epoll_event { events: libc::EPOLLIN as u32, u64: token };
        // SAFETY: `ev` is a valid event.
        cvt(unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_ADD, fd.as_raw_fd(), &mut ev) })?;
        Ok(())
    }

    /// Takes a member out. Closing it is not enough where a forked child holds it too.
    pub(crate) fn remove(&self, fd: &OwnedFd) {
        let none = std::ptr::null_mut();
        // SAFETY: EPOLL_CTL_DEL takes no event.
        unsafe { libc::epoll_ctl(self.fd(), libc::EPOLL_CTL_DEL, fd.as_raw_fd(), none) };
    }

    /// The members that have something, without waiting.
    pub(crate) fn ready<'a>(&self, room: &'a mut [libc::epoll_event]) -> &'a [libc::epoll_event] {
        // SAFETY: `room` is a valid place for that many events.
        let n = unsafe { libc::epoll_wait(self.fd(), room.as_mut_ptr(), room.len() as i32, 0) };
        &room[..n.max(0) as usize]
    }
}

//! System calls on TCP sockets, none of which blocks.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use hmem::{Caps, Span};
use ipc::socket::socket;
use ipc::{Unshared, cvt};
use link_api::Gone;

use super::table;
use crate::{net, pacing};

/// Why a connection is no more, by what the kernel says.
pub(super) fn gone(e: &io::Error) -> Gone {
    match e.raw_os_error() {
        Some(libc::ECONNREFUSED) => Gone::Refused,
        Some(libc::EHOSTUNREACH | libc::ENETUNREACH | libc::EADDRNOTAVAIL | libc::EAFNOSUPPORT) => {
            Gone::Unreachable
        }
        _ => Gone::Reset,
    }
}

pub(super) fn would_block(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR))
}

/// Most parts that one call takes.
pub(super) const PARTS: usize = 16;

/// Parts of memory for one call.
pub(super) struct Parts {
    iov: [libc::iovec; PARTS],
    n: usize,
    bytes: usize,
}

impl Parts {
    pub(super) fn new() -> Parts {
        Parts { iov: [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PARTS], n: 0, bytes: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    fn push(&mut self, base: *mut u8, len: usize) -> bool {
        if len == 0 {
            return true;
        }
        let Some(part) = self.iov.get_mut(self.n) else { return false };
        *part = libc::iovec { iov_base: base.cast(), iov_len: len };
        (self.n, self.bytes) = (self.n + 1, self.bytes + len);
        true
    }

    /// Bytes `off..off+len` of `iov`; `false` if the kernel does not reach all of it, or there are too many
    /// parts.
    fn push_spans(&mut self, iov: &[Span], mut off: usize, mut len: usize) -> bool {
        for span in iov {
            let here = span.len().saturating_sub(off).min(len);
            if let Some(part) = span.part(off, here).filter(|_| here > 0) {
                if !part.can(Caps::CMA) || !self.push(part.as_ptr(), here) {
                    return false;
                }
                len -= here;
            }
            off = off.saturating_sub(span.len());
        }
        len == 0
    }
}

/// Connects, from this address if one is given. The connection is there once the socket is writable and
/// [`error`] returns none.
pub(super) fn connect(to: SocketAddr, from: Option<SocketAddr>) -> io::Result<Unshared> {
    let (raw, len) = net::raw(to);
    let fd = Unshared::make(|| socket(i32::from(raw.ss_family), libc::SOCK_STREAM))?;
    if let Some(mut from) = from.filter(|from| from.is_ipv4() == to.is_ipv4()) {
        // All of it but the port: a link-local address is one on its interface.
        from.set_port(0);
        let (own, len) = net::raw(from);
        // Where the kernel lacks it a port is taken for each address, and not for each pair.
        let _ = set(&fd, libc::IPPROTO_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1);
        // SAFETY: `own` is an address of `len` bytes.
        cvt(unsafe { libc::bind(fd.as_raw_fd(), (&raw const own).cast(), len) })?;
    }
    let usual = pacing::unpace(&fd);
    // SAFETY: `raw` is an address of `len` bytes.
    match cvt(unsafe { libc::connect(fd.as_raw_fd(), (&raw const raw).cast(), len) }) {
        Err(e) if e.raw_os_error() != Some(libc::EINPROGRESS) => Err(e),
        _ => {
            if let Some(usual) = usual {
                pacing::pace_between(local(&fd).map(|own| (own, to)), &fd, usual);
            }
            table::make_room(&fd);
            Ok(fd)
        }
    }
}

/// What getsockname(2) or getpeername(2) says. That takes no descriptor, of which there may be none.
fn name(
    fd: &OwnedFd,
    of: unsafe extern "C" fn(i32, *mut libc::sockaddr, *mut libc::socklen_t) -> i32,
) -> Option<SocketAddr> {
    // SAFETY: a `sockaddr_storage` is plain data, for which zeros are a value.
    let mut raw: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = size_of_val(&raw) as libc::socklen_t;
    // SAFETY: `raw` is a valid place of `len` bytes.
    cvt(unsafe { of(fd.as_raw_fd(), (&raw mut raw).cast(), &mut len) }).ok()?;
    net::addr(&raw)
}

/// The address of this host that a connection came to.
pub(super) fn local(fd: &OwnedFd) -> Option<SocketAddr> {
    name(fd, libc::getsockname)
}

/// Where a connection comes from: an address, or the network of one of IPv6, since a host has many of these.
pub(super) fn origin(fd: &OwnedFd) -> IpAddr {
    // One that has ended by now has none.
    match name(fd, libc::getpeername).map(|at| at.ip().to_canonical()) {
        Some(IpAddr::V6(ip)) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        Some(v4) => v4,
        None => Ipv4Addr::UNSPECIFIED.into(),
    }
}

/// The connection is to leave nothing in the kernel when it is closed: its end is a reset.
pub(super) fn abort(fd: &OwnedFd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = size_of_val(&linger) as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
    // SAFETY: `linger` is a valid option of `len` bytes.
    unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const linger).cast(), len) };
}

/// The addresses of a connection: here, and there.
pub(super) fn ends(fd: &OwnedFd) -> Option<(SocketAddr, SocketAddr)> {
    Some((name(fd, libc::getsockname)?, name(fd, libc::getpeername)?))
}

fn set(fd: &OwnedFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: `value` is a valid option of `len` bytes.
    cvt(unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), len) })?;
    Ok(())
}

/// What became of a connect, if not a connection.
pub(super) fn error(fd: &OwnedFd) -> Option<io::Error> {
    let (mut code, mut len) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: `code` is a valid place of `len` bytes.
    let found = cvt(unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut code).cast(), &mut len)
    });
    match found {
        Err(e) => Some(e),
        Ok(_) => (code != 0).then(|| io::Error::from_raw_os_error(code)),
    }
}

/// Short messages leave at once; a peer whose host does not answer for so long, while nothing is sent, is
/// gone.
pub(super) fn tune(fd: &OwnedFd, timeout: Duration) -> io::Result<()> {
    let [idle, interval, count] = questions(timeout);
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, idle)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, interval)?;
    set(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, count)?;
    set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)
}

/// After how many idle seconds the kernel asks whether the other end is there, how often, and how many times:
/// whole seconds, since it knows no others, that add up to the time; two questions at least, since one may
/// get lost.
fn questions(timeout: Duration) -> [i32; 3] {
    let seconds = |of: Duration| i32::try_from(of.as_secs()).unwrap_or(i32::MAX);
    let (idle, interval) = (seconds(timeout / 2).clamp(1, 32_767), seconds(timeout / 6).clamp(1, 32_767));
    let count = (seconds(timeout).saturating_sub(idle) / interval).clamp(2, 7);
    [idle, interval, count]
}

/// Has the kernel keep so many bytes that were not received yet, if it can.
pub(super) fn widen(fd: &OwnedFd, bytes: usize) {
    // The only way that leaves it to the kernel to keep more later.
    let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
    let _ = set(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes);
    let _ = set(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1);
}

/// Receives; 0 bytes are the end.
pub(super) fn recv(fd: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT;
    let none = std::ptr::null_mut::<u8>();
    // SAFETY: `into` is a valid place of its length; the other end's address is not requested. libc's own
    // function is a place to end a thread (pthread_cancel(3)), which is none here and takes longer.
    let n = unsafe {
        libc::syscall(libc::SYS_recvfrom, fd.as_raw_fd(), into.as_mut_ptr(), into.len(), flags, none, none)
    };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// The first `len` bytes that are there, to byte `doff` of `dst`; they stay. How many that were; `None` if
/// the kernel does not reach all of `dst`.
pub(super) fn peek(fd: &OwnedFd, dst: &[Span], doff: usize, len: usize) -> Option<io::Result<usize>> {
    let mut parts = Parts::new();
    if !parts.push_spans(dst, doff, len) {
        return None;
    }
    // SAFETY: the parts are inside of spans, which are valid for writes as their invariant says; where they
    // have vanished the kernel says so.
    Some(unsafe { receive_message(fd, &mut parts, libc::MSG_PEEK) })
}

/// Receives up to `len` bytes to byte `doff` of `dst`, and what is behind them to `ahead`; 0 bytes are the
/// end. `None` if the kernel does not reach all of `dst`.
pub(super) fn recv_spans(
    fd: &OwnedFd,
    dst: &[Span],
    doff: usize,
    len: usize,
    ahead: &mut [u8],
) -> Option<io::Result<usize>> {
    let mut parts = Parts::new();
    if !parts.push_spans(dst, doff, len) {
        return None;
    }
    // Without a place left for it, it stays with the kernel.
    if parts.bytes() == len {
        parts.push(ahead.as_mut_ptr(), ahead.len());
    }
    // SAFETY: as in `peek`, and `ahead` is valid for writes.
    Some(unsafe { receive_message(fd, &mut parts, 0) })
}

/// Reads bytes and leaves them in the socket, to memory of this process.
pub(super) fn peek_bytes(fd: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
    let mut parts = Parts::new();
    parts.push(into.as_mut_ptr(), into.len());
    // SAFETY: `into` is valid for writes.
    unsafe { receive_message(fd, &mut parts, libc::MSG_PEEK) }
}

/// # Safety
/// The parts must be valid for writes, or not mapped.
unsafe fn receive_message(fd: &OwnedFd, parts: &mut Parts, flags: i32) -> io::Result<usize> {
    // SAFETY: a `msghdr` is plain data, for which zeros are a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.iov.as_mut_ptr();
    message.msg_iovlen = parts.n as _;
    // SAFETY: the message has `n` parts, of which the caller has promised that they may be written.
    let n = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut message, flags | libc::MSG_DONTWAIT) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Takes so many bytes off that are there, without looking at them.
pub(super) fn discard(fd: &OwnedFd, mut len: usize) -> io::Result<()> {
    while len > 0 {
        match discard_some(fd, len)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => len -= n.min(len),
        }
    }
    Ok(())
}

/// Takes up to so many bytes off, without reading them; how many there were, 0 at the end.
pub(super) fn discard_some(fd: &OwnedFd, len: usize) -> io::Result<usize> {
    // SAFETY: with MSG_TRUNC, TCP stores nothing.
    let n = unsafe {
        libc::recv(fd.as_raw_fd(), std::ptr::null_mut(), len, libc::MSG_TRUNC | libc::MSG_DONTWAIT)
    };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok((n as usize).min(len)) }
}

/// How many bytes are there.
pub(super) fn available(fd: &OwnedFd) -> usize {
    let mut n = 0i32;
    // SAFETY: `n` is a valid place for the answer.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut n) };
    if done < 0 { 0 } else { usize::try_from(n).unwrap_or(0) }
}

/// Sends as many of these bytes as find room.
pub(super) fn send(fd: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let none = std::ptr::null::<u8>();
    // SAFETY: the call reads `bytes` and nothing else; why it is not libc's: see `recv`.
    let n = unsafe {
        libc::syscall(libc::SYS_sendto, fd.as_raw_fd(), bytes.as_ptr(), bytes.len(), flags, none, 0usize)
    };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// Sends as much of `front`, `middle`, and bytes `off..off+len` of `body` as finds room. `None`: not in one
/// call.
pub(super) fn send_parts(
    fd: &OwnedFd,
    front: &[u8],
    middle: &[u8],
    body: &[Span],
    off: usize,
    len: usize,
) -> Option<io::Result<usize>> {
    if middle.is_empty() && len == 0 {
        return Some(send(fd, front));
    }
    send_row(fd, [(front, middle, off, len)], body)
}

/// Sends as much of these as finds room: of each two parts of its own, and behind them bytes of `body` from a
/// place on. `None`: not in one call.
pub(super) fn send_row<'a>(
    fd: &OwnedFd,
    frames: impl IntoIterator<Item = (&'a [u8], &'a [u8], usize, usize)>,
    body: &[Span],
) -> Option<io::Result<usize>> {
    let (mut parts, mut total) = (Parts::new(), 0);
    for (front, middle, off, len) in frames {
        total += front.len() + middle.len() + len;
        let own = [front, middle].iter().all(|part| parts.push(part.as_ptr().cast_mut(), part.len()));
        if !own || !parts.push_spans(body, off, len) {
            return None;
        }
    }
    debug_assert_eq!(parts.bytes(), total);
    // SAFETY: slices, or inside of spans, which are valid for reads as their invariant says.
    Some(unsafe { send_message(fd, &mut parts) })
}

/// # Safety
/// The parts must be valid for reads, or not mapped.
unsafe fn send_message(fd: &OwnedFd, parts: &mut Parts) -> io::Result<usize> {
    // SAFETY: a `msghdr` is plain data, for which zeros are a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.iov.as_mut_ptr();
    message.msg_iovlen = parts.n as _;
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: sendmsg(2) only reads the parts, of which the caller has promised that they may be read.
    let n = unsafe { libc::sendmsg(fd.as_raw_fd(), &message, flags) };
    if n < 0 { Err(io::Error::last_os_error()) } else { Ok(n as usize) }
}

/// What the kernel knows of the other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vitals {
    /// Something was sent that is not acknowledged: data, or questions whether there is room.
    pub(super) owes: bool,
    /// Something is to be sent, or was sent and is not acknowledged. Where the way out of this host is gone
    /// nothing is sent, and nothing owed, until the kernel's questions fail.
    pub(super) queued: bool,
    /// When anything was acknowledged last.
    pub(super) silent: Duration,
    /// When anything came last, but acknowledgements.
    pub(super) received: Duration,
}

/// [`Vitals`], if the kernel has them.
pub(super) fn vitals(fd: &OwnedFd) -> Option<Vitals> {
    // SAFETY: a `tcp_info` is plain data, for which zeros are a value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: `info` is a valid place of `len` bytes.
    cvt(unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &mut len)
    })
    .ok()?;
    // One question may be on its way at any time.
    let owes = info.tcpi_unacked > 0 || info.tcpi_probes > 1;
    let queued = queued(fd) > 0;
    let since = |ms: u32| Duration::from_millis(ms.into());
    let (silent, received) = (since(info.tcpi_last_ack_recv), since(info.tcpi_last_data_recv));
    Some(Vitals { owes, queued, silent, received })
}

/// Bytes that are to be sent, or were sent and are not acknowledged.
pub(super) fn queued(fd: &impl AsRawFd) -> usize {
    let mut queued: libc::c_int = 0;
    // SAFETY: `queued` is a valid place for what SIOCOUTQ, which tcp(7) has under this number too, writes.
    let done = cvt(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut queued) });
    done.ok().and_then(|_| usize::try_from(queued).ok()).unwrap_or(0)
}

/// Bytes that were sent and are not acknowledged yet, of a TCP connection by which they still may be; 0 of
/// anything else.
pub(super) fn owed(fd: &impl AsRawFd) -> usize {
    // As the kernel numbers them (enum of netinet/tcp.h).
    const ESTABLISHED: u8 = 1;
    const FIN_WAIT1: u8 = 4;
    const CLOSE_WAIT: u8 = 8;
    const LAST_ACK: u8 = 9;
    const CLOSING: u8 = 11;
    let (mut state, mut len) = (0u8, 1 as libc::socklen_t);
    // SAFETY: `state` is a valid place of `len` bytes; the state is the first byte of a `tcp_info`.
    let got = cvt(unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut state).cast(), &mut len)
    });
    match state {
        _ if got.is_err() => 0,
        ESTABLISHED | CLOSE_WAIT => queued(fd),
        // The end counts as one byte.
        FIN_WAIT1 | LAST_ACK | CLOSING => queued(fd).saturating_sub(1),
        _ => 0,
    }
}

/// Bytes that were acknowledged in a second, lately. `None`: the kernel does not know, or nothing was sent
/// that was bound by the way there.
pub(super) fn rate(fd: &OwnedFd) -> Option<u64> {
    // What no field of libc's has: a byte whose first bit says that the program, and not the way, has bound
    // the rate.
    const BOUND: usize = std::mem::offset_of!(libc::tcp_info, tcpi_rto) - 1;
    const RATE: usize = std::mem::offset_of!(libc::tcp_info, tcpi_delivery_rate);
    let mut info = [0u8; size_of::<libc::tcp_info>()];
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: `info` is a valid place of `len` bytes.
    cvt(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut len,
        )
    })
    .ok()?;
    // A kernel that does not have it writes less, and leaves 0.
    let rate = info[RATE..].first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    rate.filter(|rate| *rate > 0 && info[BOUND] & 1 == 0)
}

/// Whether the other end sends nothing any more, or the connection has ended.
pub(super) fn is_finished(fd: &OwnedFd) -> bool {
    polled(fd, libc::POLLRDHUP, Duration::ZERO)
}

/// What was sent is followed by the end.
pub(super) fn finish(fd: &OwnedFd) {
    // SAFETY: shutdown(2) touches no memory.
    unsafe { libc::shutdown(fd.as_raw_fd(), libc::SHUT_WR) };
}

/// Waits until there is room to send, for so long at most.
pub(super) fn wait_for_room(fd: &OwnedFd, most: Duration) -> bool {
    polled(fd, libc::POLLOUT, most)
}

/// A connection that something is awaited of.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Awaited(libc::pollfd);

impl Awaited {
    /// Something to read, or the end; and `room`, if that is wanted.
    pub(super) fn new(fd: &OwnedFd, room: bool) -> Awaited {
        let events = if room { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        Awaited(libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 })
    }
}

/// Waits for any of these, for so long at most.
pub(super) fn wait_for_any(all: &mut [Awaited], most: Duration) {
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(most.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: most.subsec_nanos() as _,
    };
    // SAFETY: `all` has so many pollfds, which each `Awaited` is; ppoll(2) only reads the limit, and no
    // signal mask is given.
    unsafe {
        libc::ppoll(all.as_mut_ptr().cast(), all.len() as libc::nfds_t, &raw const limit, std::ptr::null())
    };
}

/// Waits for one of these events, or the end of the connection.
fn polled(fd: &OwnedFd, events: libc::c_short, most: Duration) -> bool {
    let mut one = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
    let ms = i32::try_from(most.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `one` is one valid pollfd.
    unsafe { libc::poll(&mut one, 1, ms) == 1 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_does_not_answer_is_gone_after_the_time_and_not_after_twice() {
        for seconds in (2..1000).chain([86_400]) {
            let [idle, interval, count] = questions(Duration::from_secs(seconds));
            let all = u64::from((idle + interval * count).unsigned_abs());
            assert!(all <= seconds.max(3) && 5 * all >= 4 * seconds, "{all} of {seconds}");
            assert!(count >= 2);
        }
    }
}

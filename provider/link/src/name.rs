//! An endpoint's name: an IP address and a port of this host, reserved as long as the endpoint is open.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd as _, OwnedFd};

use ipc::cvt;
use ipc::socket::socket;
use wire::Addr;

use crate::net;

/// A name that no other endpoint of this host has, and the socket that keeps it so.
#[derive(Debug)]
pub struct Name {
    addr: Addr,
    bound: SocketAddr,
    _port: OwnedFd,
}

/// Tries to find a free port whose other sockets are free, too.
const TRIES: usize = 16;

impl Name {
    /// Takes the name `bind`: port 0 takes a free one, an unspecified address serves all of the host's, and `None` is
    /// `0.0.0.0:0`. `listen` opens what answers under the name; where it finds that taken (`AddrInUse`), another
    /// free port is tried. The answer's second part is what it returned.
    pub fn claim<T>(
        bind: Option<SocketAddr>,
        listen: impl Fn(SocketAddr) -> io::Result<T>,
    ) -> io::Result<(Name, T)> {
        let bind = bind.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
        let mut tries = 0;
        loop {
            let (port, bound) = reserve(bind)?;
            match listen(bound) {
                Ok(listener) => {
                    let mut called = bound;
                    if bound.ip().is_unspecified() {
                        called.set_ip(net::primary_ip(bound.is_ipv6()));
                    }
                    return Ok((Name { addr: Addr::new(called), bound, _port: port }, listener));
                }
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && bind.port() == 0 && tries < TRIES => {
                    tries += 1
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// What peers call the endpoint.
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// Whether the endpoint serves every address of the host.
    pub fn is_wildcard(&self) -> bool {
        self.bound.ip().is_unspecified()
    }
}

/// A bound TCP socket, and what it is bound to.
pub(crate) fn reserve(bind: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    // SAFETY: a `sockaddr_storage` is plain data, for which zeros are a value.
    let mut raw: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let place = &raw mut raw;
    let (domain, mut len) = match bind {
        SocketAddr::V4(a) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: `sockaddr_storage` is large and aligned enough for every address.
            unsafe { place.cast::<libc::sockaddr_in>().write(sin) };
            (libc::AF_INET, size_of::<libc::sockaddr_in>())
        }
        SocketAddr::V6(a) => {
            let sin = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: a.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: a.ip().octets() },
                sin6_scope_id: a.scope_id(),
            };
            // SAFETY: as above.
            unsafe { place.cast::<libc::sockaddr_in6>().write(sin) };
            (libc::AF_INET6, size_of::<libc::sockaddr_in6>())
        }
    };
    let fd = socket(domain, libc::SOCK_STREAM)?;
    // SAFETY: `place` holds an address of `len` bytes, and has room for any.
    unsafe {
        cvt(libc::bind(fd.as_raw_fd(), place.cast(), len as libc::socklen_t))?;
        let mut room = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        cvt(libc::getsockname(fd.as_raw_fd(), place.cast(), &mut room))?;
        len = room as usize;
    }
    let _ = len;
    // SAFETY: both address types start with family and port at the same places, and the family is
    // the one bound.
    let port = u16::from_be(unsafe { (*place.cast::<libc::sockaddr_in>()).sin_port });
    let mut bound = bind;
    bound.set_port(port);
    Ok((fd, bound))
}

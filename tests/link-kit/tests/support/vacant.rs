//! Ports at which nothing listens.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};

/// Sockets that are bound and do not listen: connections to them are refused, and no other socket is given
/// their ports meanwhile.
#[derive(Debug, Default)]
pub struct Vacant(Vec<OwnedFd>);

impl Vacant {
    /// One more, at this address.
    pub fn next(&mut self, at: IpAddr) -> SocketAddr {
        self.keep((at, 0).into())
    }

    /// This one, at which something has listened until now; port 0 stands for any.
    pub fn keep(&mut self, at: SocketAddr) -> SocketAddr {
        let (at, port) = (at.ip(), at.port());
        // SAFETY: plain data, for which zeros are a value.
        let mut name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        let name_at: *mut libc::sockaddr_in6 = &raw mut name;
        let (family, len) = match at {
            IpAddr::V4(ip) => {
                let v4: *mut libc::sockaddr_in = name_at.cast();
                // SAFETY: the shorter structure, in room for the longer one, which is aligned as that is.
                unsafe { (*v4).sin_addr.s_addr = u32::from(ip).to_be() };
                (libc::AF_INET, size_of::<libc::sockaddr_in>())
            }
            IpAddr::V6(ip) => {
                name.sin6_addr.s6_addr = ip.octets();
                (libc::AF_INET6, size_of::<libc::sockaddr_in6>())
            }
        };
        name.sin6_family = family as libc::sa_family_t;
        // At the same place in both.
        name.sin6_port = port.to_be();
        // SAFETY: plain call; the descriptor is nothing else's.
        let socket = unsafe {
            let fd = libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
            assert!(fd >= 0, "socket(2)");
            OwnedFd::from_raw_fd(fd)
        };
        let (fd, mut len) = (socket.as_raw_fd(), len as libc::socklen_t);
        // Connections that have ended may still have the port.
        let (old, size) = (i32::from(port != 0), size_of::<i32>() as libc::socklen_t);
        // SAFETY: an option of this length.
        let set = unsafe {
            libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const old).cast(), size)
        };
        assert_eq!(set, 0, "setsockopt(2)");
        let name_at: *mut libc::sockaddr_in6 = &raw mut name;
        // SAFETY: an open socket, an address of this length, and room for one.
        let ok = unsafe {
            libc::bind(fd, name_at.cast(), len) == 0 && libc::getsockname(fd, name_at.cast(), &mut len) == 0
        };
        assert!(ok, "a free port");
        self.0.push(socket);
        (at, u16::from_be(name.sin6_port)).into()
    }
}

//! Addresses: libfabric's sockaddrs, and names to resolve.

use std::ffi::CString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::ptr;

use libc::{c_char, c_int, c_void};
use libfabric_sys as fi;
use wire::Addr;

use crate::errno::Errno;

/// Bytes of the longer kind, `sockaddr_in6`.
pub(crate) const MAX: usize = size_of::<libc::sockaddr_in6>();
const V4: usize = size_of::<libc::sockaddr_in>();

/// Bytes of an address in that format.
pub(crate) fn length(format: u32) -> usize {
    if format == fi::FI_SOCKADDR_IN6 { MAX } else { V4 }
}

/// The address at `p`.
///
/// # Safety
/// `p` is NULL or valid for reads of `len` bytes.
pub(crate) unsafe fn from_sockaddr(p: *const c_void, len: usize) -> Result<Addr, Errno> {
    if p.is_null() || len < V4 {
        return Err(Errno::INVAL);
    }
    // SAFETY: at least `V4` bytes may be read, more than a family has.
    let family = unsafe { p.cast::<libc::sa_family_t>().read_unaligned() };
    let further;
    let sock = match c_int::from(family) {
        libc::AF_INET => {
            // SAFETY: `len` is at least `V4`; any bytes are a `sockaddr_in`.
            let a = unsafe { p.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(a.sin_addr.s_addr.to_ne_bytes());
            let [b0, b1, b2, b3, check @ ..] = a.sin_zero;
            further = Some([b0, b1, b2, b3]).filter(|other| check == checked(*other));
            SocketAddr::from(SocketAddrV4::new(ip, u16::from_be(a.sin_port)))
        }
        libc::AF_INET6 if len >= MAX => {
            // SAFETY: `len` is at least `MAX`; any bytes are a `sockaddr_in6`.
            let a = unsafe { p.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(a.sin6_addr.s6_addr);
            further = Some(a.sin6_flowinfo.to_ne_bytes());
            SocketAddrV6::new(ip, u16::from_be(a.sin6_port), 0, a.sin6_scope_id).into()
        }
        _ => return Err(Errno::INVAL),
    };
    let addr = Addr::new(sock);
    Ok(further.map_or(addr, |other| addr.with_further(other.into())))
}

/// What is behind a further address in the padding of a `sockaddr_in`, which a program may have left as it
/// was.
fn checked(further: [u8; 4]) -> [u8; 4] {
    let [a, b, c, d] = further;
    [a ^ b's', b ^ b't', c ^ b'r', d ^ b't']
}

/// As [`from_sockaddr`], for an address that may be left out.
///
/// # Safety
/// As there.
pub(crate) unsafe fn optional(p: *const c_void, len: usize) -> Result<Option<Addr>, Errno> {
    if p.is_null() || len == 0 {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    unsafe { from_sockaddr(p, len) }.map(Some)
}

/// The bytes of a `sockaddr_in` or `sockaddr_in6`, by `format`, and how many of them count. A further address
/// is where the padding of the one is, or the flow label of the other.
pub(crate) fn to_sockaddr(a: Addr, format: u32) -> ([u8; MAX], usize) {
    let mut out = [0; MAX];
    let port = a.port().to_be_bytes();
    match a.ip() {
        IpAddr::V4(ip) if format != fi::FI_SOCKADDR_IN6 => {
            out[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            out[2..4].copy_from_slice(&port);
            out[4..8].copy_from_slice(&ip.octets());
            if let Some(further) = a.further() {
                out[8..12].copy_from_slice(&further.octets());
                out[12..16].copy_from_slice(&checked(further.octets()));
            }
            (out, V4)
        }
        ip => {
            let (ip, scope) = match (ip, a.sock()) {
                (IpAddr::V4(ip), _) => (ip.to_ipv6_mapped(), 0),
                (IpAddr::V6(ip), SocketAddr::V6(s)) => (ip, s.scope_id()),
                (IpAddr::V6(ip), _) => (ip, 0),
            };
            out[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            out[2..4].copy_from_slice(&port);
            if let Some(further) = a.further() {
                out[4..8].copy_from_slice(&further.octets());
            }
            out[8..24].copy_from_slice(&ip.octets());
            out[24..28].copy_from_slice(&scope.to_ne_bytes());
            (out, MAX)
        }
    }
}

/// The format an address is in by itself.
pub(crate) fn format_of(a: Addr) -> u32 {
    if a.ip().is_ipv6() { fi::FI_SOCKADDR_IN6 } else { fi::FI_SOCKADDR_IN }
}

/// How an address is written for people: libfabric's URL form.
pub(crate) fn text(a: Addr) -> String {
    let kind = if a.ip().is_ipv6() { "fi_sockaddr_in6" } else { "fi_sockaddr_in" };
    format!("{kind}://{a}")
}

/// Names, and what an application wants of their resolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Query {
    /// NULL or a string.
    pub node: *const c_char,
    /// NULL or a string.
    pub service: *const c_char,
    /// `AF_INET`, `AF_INET6` or `AF_UNSPEC`.
    pub family: c_int,
    /// To listen on, not to send to.
    pub passive: bool,
    /// The node is a number: no name is looked up.
    pub numeric: bool,
}

impl Query {
    /// The first address of that name; IPv4 is preferred where either would do. `None` if there is
    /// none.
    ///
    /// # Safety
    /// `node` and `service` are each NULL or a string, and not both NULL.
    pub(crate) unsafe fn resolve(self) -> Option<Addr> {
        let mut flags = 0;
        if self.passive {
            flags |= libc::AI_PASSIVE;
        }
        if self.numeric {
            flags |= libc::AI_NUMERICHOST;
        }
        // SAFETY: all zero is a valid `addrinfo`.
        let mut hints: libc::addrinfo = unsafe { std::mem::zeroed() };
        hints.ai_family = self.family;
        hints.ai_flags = flags;
        hints.ai_socktype = libc::SOCK_STREAM;
        let mut list = ptr::null_mut();
        // SAFETY: the strings are the caller's promise, the rest is ours and lives on.
        if unsafe { libc::getaddrinfo(self.node, self.service, &raw const hints, &raw mut list) } != 0 {
            return None;
        }
        let mut found: Option<Addr> = None;
        let mut at = list;
        while !at.is_null() {
            // SAFETY: a node of the list, which lives until `freeaddrinfo`, with its address.
            let (next, addr) = unsafe {
                let node = &*at;
                (node.ai_next, from_sockaddr(node.ai_addr.cast(), node.ai_addrlen as usize))
            };
            at = next;
            match (addr, found) {
                (Ok(a), None) => found = Some(a),
                (Ok(a), Some(f)) if f.ip().is_ipv6() && a.ip().is_ipv4() => found = Some(a),
                _ => {}
            }
        }
        // SAFETY: the list came from `getaddrinfo`, and nothing borrows from it any more.
        unsafe { libc::freeaddrinfo(list) };
        found
    }
}

/// As [`Query::resolve`], of our own strings.
pub(crate) fn lookup(node: &str, service: &str, family: c_int) -> Option<Addr> {
    let node = CString::new(node).ok()?;
    let service = CString::new(service).ok()?;
    let query = Query {
        node: node.as_ptr(),
        service: if service.is_empty() { ptr::null() } else { service.as_ptr() },
        family,
        passive: false,
        numeric: false,
    };
    // SAFETY: both are strings that live on, the first is not NULL.
    unsafe { query.resolve() }
}

/// The address of this host that a peer at `dest` sees, port 0. No packet is sent.
pub(crate) fn towards(dest: Addr) -> Addr {
    let any: SocketAddr = match dest.ip() {
        IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let mut to = dest.sock();
    if to.port() == 0 {
        to.set_port(9);
    }
    let local = UdpSocket::bind(any).and_then(|s| {
        s.connect(to)?;
        s.local_addr()
    });
    match local {
        Ok(mut a) if !a.ip().is_unspecified() => {
            a.set_port(0);
            Addr::new(a)
        }
        _ => own(dest.ip().is_ipv6()),
    }
}

/// This host's name for itself, port 0.
pub(crate) fn own(v6: bool) -> Addr {
    Addr::new(SocketAddr::new(link::primary_ip(v6), 0))
}

/// Whether an endpoint can be bound there: the address is one of this host's, in this network namespace. True
/// where that cannot be found out: opening the endpoint fails then.
pub(crate) fn is_here(a: Addr) -> bool {
    let mut at = a.sock();
    at.set_port(0);
    let missing = |e: std::io::Error| e.kind() == std::io::ErrorKind::AddrNotAvailable;
    !a.ip().is_multicast() && !UdpSocket::bind(at).is_err_and(missing)
}

/// Whether other hosts can reach this one over IPv6 alone.
pub(crate) fn is_v6_only() -> bool {
    link::primary_ip(false).is_loopback() && !link::primary_ip(true).is_loopback()
}

/// With a wildcard replaced by this host's own address, which peers can use.
pub(crate) fn named(a: Addr) -> Addr {
    if a.ip().is_unspecified() {
        Addr::new(SocketAddr::new(link::primary_ip(a.ip().is_ipv6()), a.port()))
    } else {
        a
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockaddrs_come_and_go() {
        for s in ["127.0.0.1:9228", "[::1]:7", "[fe80::1%2]:1"] {
            let a = Addr::new(s.parse().unwrap());
            let (bytes, len) = to_sockaddr(a, format_of(a));
            assert_eq!(len, length(format_of(a)));
            // SAFETY: `bytes` holds `len` bytes.
            assert_eq!(unsafe { from_sockaddr(bytes.as_ptr().cast(), len) }, Ok(a));
        }
        let a = Addr::new("10.0.0.1:5".parse().unwrap());
        let (bytes, len) = to_sockaddr(a, fi::FI_SOCKADDR_IN6);
        assert_eq!(len, MAX);
        // SAFETY: as above.
        assert_eq!(unsafe { from_sockaddr(bytes.as_ptr().cast(), len) }, Ok(a));
    }

    #[test]
    fn a_further_address_comes_and_goes_and_padding_is_none() {
        let further = Some([10, 7, 0, 200].into());
        for s in ["127.0.0.1:9228", "[fe80::1%2]:1"] {
            let a = Addr::new(s.parse().unwrap()).with_further([10, 7, 0, 200].into());
            for format in [format_of(a), fi::FI_SOCKADDR_IN6] {
                let (mut bytes, len) = to_sockaddr(a, format);
                // SAFETY: `bytes` holds `len` bytes.
                let found = unsafe { from_sockaddr(bytes.as_ptr().cast(), len) }.unwrap();
                assert_eq!((found, found.further()), (a, further), "{s}");
                if len == V4 {
                    bytes[15] ^= 1;
                    // SAFETY: as above.
                    let found = unsafe { from_sockaddr(bytes.as_ptr().cast(), len) }.unwrap();
                    assert_eq!((found, found.further()), (a, None));
                }
            }
        }
    }

    #[test]
    fn addresses_of_other_hosts_are_not_here() {
        let here = |a: &str| is_here(Addr::new(a.parse().unwrap()));
        assert!(here("127.0.0.1:0") && here("127.0.0.9:9228") && is_here(own(false)));
        for other in ["192.0.2.1:0", "198.51.100.7:9228", "224.0.0.1:0", "[2001:db8::1]:0"] {
            assert!(!here(other), "{other}");
        }
    }

    #[test]
    fn without_a_loopback_address_there_is_none_to_be_had() {
        let alone = std::thread::spawn(|| {
            let ip = |args: &[&str]| {
                std::process::Command::new("ip").args(args).status().is_ok_and(|s| s.success())
            };
            // SAFETY: unshare(2) touches no memory, and changes the network namespace of this thread alone.
            let entered = unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0;
            let bare = entered && ip(&["link", "set", "lo", "up"]) && ip(&["addr", "flush", "dev", "lo"]);
            bare.then(|| (own(false).ip().is_loopback(), is_here(own(false))))
        });
        match alone.join().unwrap() {
            Some(found) => assert_eq!(found, (true, false)),
            None => eprintln!("skipped: no network namespace without CAP_SYS_ADMIN, or no ip(8)"),
        }
    }

    #[test]
    fn zeros_and_short_buffers_are_no_address() {
        let zeros = [0u8; MAX];
        // SAFETY: `zeros` is longer than any of the lengths.
        unsafe {
            assert!(from_sockaddr(zeros.as_ptr().cast(), MAX).is_err());
            assert!(from_sockaddr(zeros.as_ptr().cast(), 4).is_err());
            assert!(from_sockaddr(ptr::null(), MAX).is_err());
        }
    }

    #[test]
    fn the_way_to_oneself_is_the_loopback() {
        let there = lookup("127.0.0.1", "9228", libc::AF_UNSPEC).unwrap();
        assert_eq!(there.port(), 9228);
        assert!(towards(there).ip().is_loopback());
        assert!(!named(Addr::new("0.0.0.0:3".parse().unwrap())).ip().is_unspecified());
    }
}

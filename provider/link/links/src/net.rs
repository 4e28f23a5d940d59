//! Which IP addresses are this host's.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use ipc::cvt;

/// An address as the kernel takes it, and how many bytes it has.
pub(crate) fn raw(addr: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: a `sockaddr_storage` is plain data, for which zeros are a value.
    let mut raw: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let place = &raw mut raw;
    let len = match addr {
        SocketAddr::V4(a) => {
            let sin = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: a.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(a.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: `sockaddr_storage` is large and aligned enough for every address.
            unsafe { place.cast::<libc::sockaddr_in>().write(sin) };
            size_of::<libc::sockaddr_in>()
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
            size_of::<libc::sockaddr_in6>()
        }
    };
    (raw, len as libc::socklen_t)
}

/// The address in one that the kernel has written; `None`: it is of another family.
pub(crate) fn addr(raw: &libc::sockaddr_storage) -> Option<SocketAddr> {
    let place = &raw const *raw;
    match i32::from(raw.ss_family) {
        libc::AF_INET => {
            // SAFETY: an address of this family is a `sockaddr_in`, for which a `sockaddr_storage` has room
            // and alignment.
            let sin = unsafe { place.cast::<libc::sockaddr_in>().read() };
            let ip = Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes());
            Some((ip, u16::from_be(sin.sin_port)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above, with `sockaddr_in6`.
            let sin = unsafe { place.cast::<libc::sockaddr_in6>().read() };
            let (ip, port) = (Ipv6Addr::from(sin.sin6_addr.s6_addr), u16::from_be(sin.sin6_port));
            Some(SocketAddrV6::new(ip, port, sin.sin6_flowinfo, sin.sin6_scope_id).into())
        }
        _ => None,
    }
}

/// Whether a peer of this address is on this host.
pub(crate) fn is_local(ip: IpAddr) -> bool {
    find_local(ip).unwrap_or(false)
}

/// Whether an interface of this host has this address; an error where the kernel does not list them, as to a
/// process without a descriptor.
pub(crate) fn find_local(ip: IpAddr) -> io::Result<bool> {
    Ok(ip.is_loopback() || list()?.iter().any(|i| i.ip == ip))
}

/// What an endpoint that listens on every address calls itself: the first address of an interface
/// that is up and is no loopback, else the loopback address.
pub fn primary_ip(v6: bool) -> IpAddr {
    interfaces()
        .into_iter()
        .find(|i| !i.loopback && i.ip.is_ipv6() == v6 && !is_link_local(i.ip))
        .map_or(if v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() }, |i| i.ip)
}

/// Another IPv4 address by which other hosts may reach this one, for peers that do not get through to
/// `first`: that of another interface, or of the same one beside an IPv6 address.
pub(crate) fn further_ip(first: IpAddr) -> Option<Ipv4Addr> {
    let all = interfaces();
    let of_first = all.iter().find(|i| i.ip == first)?;
    let v4 = |i: &Interface| match i.ip {
        IpAddr::V4(ip) if !i.loopback && i.ip != first && !ip.is_link_local() => Some(ip),
        _ => None,
    };
    let elsewhere = all.iter().filter(|i| i.name != of_first.name).find_map(v4);
    elsewhere.or_else(|| if first.is_ipv6() { all.iter().find_map(v4) } else { None })
}

/// An address of each interface by which other hosts may reach this one; of the same version of IP as this
/// one where there is one.
pub(crate) fn each_interface(like: IpAddr) -> Vec<IpAddr> {
    let mut all: Vec<Interface> = Vec::new();
    for i in interfaces().into_iter().filter(|i| !i.loopback && !is_link_local(i.ip)) {
        match all.iter_mut().find(|known| known.name == i.name) {
            None => all.push(i),
            Some(known) if known.ip.is_ipv4() != like.is_ipv4() && i.ip.is_ipv4() == like.is_ipv4() => {
                *known = i
            }
            Some(_) => {}
        }
    }
    all.into_iter().map(|i| i.ip).collect()
}

/// Whether both addresses are of one interface of this host.
pub(crate) fn share_interface(one: IpAddr, other: IpAddr) -> bool {
    let all = interfaces();
    let of = |ip: IpAddr| all.iter().filter(move |i| i.ip == ip);
    of(one).any(|i| of(other).any(|j| i.name == j.name))
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}

struct Interface {
    name: std::ffi::CString,
    ip: IpAddr,
    loopback: bool,
}

/// The addresses of interfaces that are up; none if they cannot be listed.
fn interfaces() -> Vec<Interface> {
    list().unwrap_or_default()
}

/// The addresses of interfaces that are up, in the kernel's order.
fn list() -> io::Result<Vec<Interface>> {
    let mut list = std::ptr::null_mut();
    // SAFETY: `list` is a valid place for the list's head.
    cvt(unsafe { libc::getifaddrs(&mut list) })?;
    let mut found = Vec::new();
    let mut at = list;
    while !at.is_null() {
        // SAFETY: `at` is a node of the list, which lives until `freeifaddrs`.
        let node = unsafe { &*at };
        at = node.ifa_next;
        if node.ifa_addr.is_null() || node.ifa_flags & libc::IFF_UP as u32 == 0 {
            continue;
        }
        // SAFETY: a node's address, where there is one, is at least a `sockaddr`.
        let family = i32::from(unsafe { (*node.ifa_addr).sa_family });
        let ip = match family {
            libc::AF_INET => {
                // SAFETY: an address of this family is a `sockaddr_in`; read without regard to
                // alignment.
                let sin = unsafe { node.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
                IpAddr::V4(Ipv4Addr::from(sin.sin_addr.s_addr.to_ne_bytes()))
            }
            libc::AF_INET6 => {
                // SAFETY: as above, with `sockaddr_in6`.
                let sin = unsafe { node.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
                IpAddr::V6(Ipv6Addr::from(sin.sin6_addr.s6_addr))
            }
            _ => continue,
        };
        // SAFETY: a node has a name, which lives as long as the list.
        let name = unsafe { std::ffi::CStr::from_ptr(node.ifa_name) }.to_owned();
        found.push(Interface { name, ip, loopback: node.ifa_flags & libc::IFF_LOOPBACK as u32 != 0 });
    }
    // SAFETY: the list came from `getifaddrs` and nothing borrows from it any more.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_interfaces_are_local_and_others_are_not() {
        assert!(is_local("127.0.0.1".parse().unwrap()));
        assert!(is_local("::1".parse().unwrap()));
        assert!(is_local(primary_ip(false)));
        assert!(!is_local("192.0.2.1".parse().unwrap()));
    }
}

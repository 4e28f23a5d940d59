//! Which addresses a peer may have this endpoint call for rails.
//!
//! A peer names up to seven, which nothing proves to be its own before it answers there. So that it cannot
//! have this process call whatever it likes, they have to be such as a rail of the connection can have.

use std::net::{IpAddr, SocketAddr};

/// Why an address that a peer has named is not called, if it is not. `there` is where the connection to the
/// peer leads, and `is_here` says of an address whether it is this host's.
pub(in crate::tcp) fn refuses(
    named: SocketAddr,
    there: SocketAddr,
    is_here: impl Fn(IpAddr) -> bool,
) -> Option<&'static str> {
    let (ip, from) = (named.ip().to_canonical(), there.ip().to_canonical());
    let broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast() || ip.octets()[0] == 0);
    if ip.is_unspecified() || ip.is_multicast() || broadcast || named.port() == 0 {
        return Some("no endpoint has such an address");
    }
    if (ip.is_loopback() || is_here(ip)) && !(from.is_loopback() || is_here(from)) {
        return Some("it is an address of this host, and the peer is on another one");
    }
    if named.port() < 1024 && there.port() >= 1024 {
        return Some("its port is one of the system's");
    }
    if is_global(ip) && !is_global(from) {
        return Some("it is an address of the public network, and that of the connection is not");
    }
    None
}

/// Whether packets to this address may leave the networks of a site.
fn is_global(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, ..] = ip.octets();
            let shared = a == 100 && b & 0xc0 == 64;
            !(ip.is_private() || ip.is_loopback() || ip.is_link_local() || shared)
        }
        IpAddr::V6(ip) => {
            let first = ip.segments()[0];
            !(ip.is_loopback() || first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfe80)
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn refused(named: &str, there: &str) -> bool {
        let here: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        refuses(named.parse().unwrap(), there.parse().unwrap(), |ip| here.contains(&ip)).is_some()
    }

    #[test]
    fn addresses_that_no_rail_of_the_connection_has_are_refused() {
        for (named, there) in [
            ("0.0.0.0:5000", "10.0.0.2:5000"),
            ("0.1.2.3:5000", "10.0.0.2:5000"),
            ("255.255.255.255:5000", "10.0.0.2:5000"),
            ("224.0.0.1:5000", "10.0.0.2:5000"),
            ("[::]:5000", "10.0.0.2:5000"),
            ("[ff02::1]:5000", "10.0.0.2:5000"),
            ("10.1.0.2:0", "10.0.0.2:5000"),
            // This host, from another one.
            ("127.0.0.1:5000", "10.0.0.2:5000"),
            ("127.9.9.9:5000", "[fd00::2]:5000"),
            ("[::1]:5000", "10.0.0.2:5000"),
            ("[::ffff:127.0.0.1]:5000", "10.0.0.2:5000"),
            ("10.0.0.1:5000", "10.0.0.2:5000"),
            ("[fd00::1]:5000", "10.0.0.2:5000"),
            // Services.
            ("10.1.0.2:22", "10.0.0.2:5000"),
            // Beyond the site.
            ("8.8.8.8:5000", "10.0.0.2:5000"),
            ("[2001:db8::7]:5000", "10.0.0.2:5000"),
            ("8.8.8.8:5000", "127.0.0.1:5000"),
        ] {
            assert!(refused(named, there), "{named} by {there}");
        }
    }

    #[test]
    fn addresses_of_other_interfaces_of_the_peer_are_called() {
        for (named, there) in [
            ("10.1.0.2:40000", "10.0.0.2:5000"),
            ("192.168.7.2:5000", "10.0.0.2:5000"),
            ("[fd01::2]:5000", "10.0.0.2:5000"),
            ("100.64.0.9:5000", "10.0.0.2:5000"),
            ("169.254.1.2:5000", "10.0.0.2:5000"),
            // Of one site, by public addresses and others.
            ("10.1.0.2:5000", "192.0.43.8:5000"),
            ("192.0.43.9:5000", "192.0.43.8:5000"),
            // On one host.
            ("127.0.0.2:5000", "127.0.0.1:5000"),
            ("10.0.0.1:5000", "127.0.0.1:5000"),
            ("127.0.0.2:5000", "10.0.0.1:5000"),
            ("10.1.0.2:900", "10.0.0.2:800"),
        ] {
            assert!(!refused(named, there), "{named} by {there}");
        }
    }
}

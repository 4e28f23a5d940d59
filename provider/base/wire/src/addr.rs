use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

/// The name of an endpoint: an IP address of its host and a port that is its own there.
///
/// It is the same name for a peer on this host, which will meet the endpoint in shared memory, and
/// for one on another host.
///
/// It may have a further IPv4 address, of another interface of that host, by which the endpoint is reached
/// where the first one leads nowhere. That is no part of the name: names are equal if the first address and
/// the port are.
#[derive(Clone, Copy)]
pub struct Addr {
    sock: SocketAddr,
    further: Option<Ipv4Addr>,
}

impl PartialEq for Addr {
    fn eq(&self, other: &Addr) -> bool {
        self.sock == other.sock
    }
}

impl Eq for Addr {}

impl Hash for Addr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sock.hash(state);
    }
}

impl PartialOrd for Addr {
    fn partial_cmp(&self, other: &Addr) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Addr {
    fn cmp(&self, other: &Addr) -> std::cmp::Ordering {
        self.sock.cmp(&other.sock)
    }
}

impl Addr {
    /// Bytes of the encoded form.
    pub const LEN: usize = 24;

    /// The name for this socket address; an IPv4 address mapped into IPv6 is the IPv4 one, and a
    /// flow label is no part of a name.
    pub fn new(sock: SocketAddr) -> Addr {
        let ip = sock.ip().to_canonical();
        let mut name = SocketAddr::new(ip, sock.port());
        if let (SocketAddr::V6(to), SocketAddr::V6(from)) = (&mut name, sock) {
            to.set_scope_id(from.scope_id());
        }
        Addr { sock: name, further: None }
    }

    /// With this further address, unless it is none that an endpoint can have.
    #[must_use]
    pub fn with_further(self, further: Ipv4Addr) -> Addr {
        let [first, ..] = further.octets();
        let fits = first != 0 && !further.is_loopback() && !further.is_multicast() && !further.is_broadcast();
        Addr { further: Some(further).filter(|ip| fits && self.sock.ip() != IpAddr::V4(*ip)), ..self }
    }

    /// The further address, if there is one.
    pub fn further(&self) -> Option<Ipv4Addr> {
        self.further
    }

    /// As a socket address.
    pub fn sock(&self) -> SocketAddr {
        self.sock
    }

    /// Its IP address.
    pub fn ip(&self) -> IpAddr {
        self.sock.ip()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.sock.port()
    }

    /// Encoded: family (4 or 6), 0, port, scope, address; little-endian but for the address.
    pub fn encode(&self) -> [u8; Addr::LEN] {
        let mut out = [0; Addr::LEN];
        out[2..4].copy_from_slice(&self.port().to_le_bytes());
        match self.sock {
            SocketAddr::V4(a) => {
                out[0] = 4;
                out[8..12].copy_from_slice(&a.ip().octets());
            }
            SocketAddr::V6(a) => {
                out[0] = 6;
                out[4..8].copy_from_slice(&a.scope_id().to_le_bytes());
                out[8..24].copy_from_slice(&a.ip().octets());
            }
        }
        out
    }

    /// Decoded; `None` if it is no such encoding.
    pub fn decode(b: &[u8; Addr::LEN]) -> Option<Addr> {
        let port = u16::from_le_bytes([b[2], b[3]]);
        let scope = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
        let ip = match b[0] {
            4 if scope == 0 && b[12..] == [0; 12] => IpAddr::from([b[8], b[9], b[10], b[11]]),
            6 => IpAddr::from(<[u8; 16]>::try_from(&b[8..24]).ok()?),
            _ => return None,
        };
        let mut sock = SocketAddr::new(ip, port);
        if let SocketAddr::V6(a) = &mut sock {
            a.set_scope_id(scope);
        }
        (b[1] == 0 && Addr::new(sock).encode() == *b).then_some(Addr::new(sock))
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sock.fmt(f)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.sock.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_wire() {
        for s in ["127.0.0.1:9228", "[::1]:1", "[fe80::1%3]:65535", "[2001:db8::7]:80"] {
            let a = Addr::new(s.parse().unwrap());
            assert_eq!(Addr::decode(&a.encode()), Some(a), "{s}");
        }
        let a = Addr::new("10.1.2.3:258".parse().unwrap());
        let mut golden = [0; Addr::LEN];
        golden[..12].copy_from_slice(&[4, 0, 2, 1, 0, 0, 0, 0, 10, 1, 2, 3]);
        assert_eq!(a.encode(), golden);
        let mapped = Addr::new("[::ffff:10.1.2.3]:258".parse().unwrap());
        assert_eq!(mapped, a);
    }

    #[test]
    fn a_further_address_is_no_part_of_a_name() {
        let a = Addr::new("10.1.2.3:258".parse().unwrap());
        let b = a.with_further([10, 9, 8, 7].into());
        assert_eq!((b, b.encode()), (a, a.encode()));
        assert_eq!((a.further(), b.further()), (None, Some([10, 9, 8, 7].into())));
        for not in [[10, 1, 2, 3], [0, 0, 1, 7], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4]] {
            assert_eq!(a.with_further(not.into()).further(), None, "{not:?}");
        }
    }

    #[test]
    fn nonsense_is_no_name() {
        assert!(Addr::decode(&[0; Addr::LEN]).is_none());
        let mut b = Addr::new("10.1.2.3:258".parse().unwrap()).encode();
        b[20] = 1;
        assert!(Addr::decode(&b).is_none());
        b[20] = 0;
        b[1] = 1;
        assert!(Addr::decode(&b).is_none());
    }
}

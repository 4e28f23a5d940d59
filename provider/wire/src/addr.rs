use std::fmt;
use std::net::{IpAddr, SocketAddr};

/// The name of an endpoint: an IP address of its host and a port that is its own there.
///
/// It is the same name for a peer on this host, which will meet the endpoint in shared memory, and
/// for one on another host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Addr(SocketAddr);

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
        Addr(name)
    }

    /// As a socket address.
    pub fn sock(&self) -> SocketAddr {
        self.0
    }

    /// Its IP address.
    pub fn ip(&self) -> IpAddr {
        self.0.ip()
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.0.port()
    }

    /// Encoded: family (4 or 6), 0, port, scope, address; little-endian but for the address.
    pub fn encode(&self) -> [u8; Addr::LEN] {
        let mut out = [0; Addr::LEN];
        out[2..4].copy_from_slice(&self.port().to_le_bytes());
        match self.0 {
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
        (b[1] == 0 && Addr::new(sock).encode() == *b).then_some(Addr(sock))
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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

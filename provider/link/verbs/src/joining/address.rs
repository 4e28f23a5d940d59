//! How a queue pair of iWARP is announced.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::connecting::Nonce;

/// What an end announces of its queue pair.
///
/// | bytes | what |
/// |---|---|
/// | 0..16 | IPv6 address, or an IPv4 address that is mapped to one |
/// | 16..18 | port (u16, little endian) |
/// | 18 | how many reads of the peer's the device serves at once |
/// | 19 | 0 |
/// | 20..36 | nonce |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) at: SocketAddr,
    pub(super) reads: u8,
    pub(super) nonce: Nonce,
}

impl Address {
    const LEN: usize = 36;

    pub(super) fn encode(&self) -> Vec<u8> {
        let ip = match self.at.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mut out = ip.octets().to_vec();
        out.extend(self.at.port().to_le_bytes());
        out.extend([self.reads, 0]);
        out.extend(self.nonce);
        out
    }

    /// Of what a peer has announced; `None` if it is no address.
    pub(super) fn decode(bytes: &[u8]) -> Option<Address> {
        let bytes: &[u8; Address::LEN] = bytes.try_into().ok()?;
        let ip: [u8; 16] = std::array::from_fn(|i| bytes[i]);
        let (ip, port) = (Ipv6Addr::from(ip).to_canonical(), u16::from_le_bytes([bytes[16], bytes[17]]));
        let is_one = port != 0 && bytes[19] == 0 && !ip.is_unspecified() && !ip.is_multicast();
        let nonce = std::array::from_fn(|i| bytes[20 + i]);
        is_one.then_some(Address { at: (ip, port).into(), reads: bytes[18], nonce })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(ip: &str) -> Address {
        Address { at: (ip.parse::<IpAddr>().expect("an address"), 4791).into(), reads: 8, nonce: [7; 16] }
    }

    #[test]
    fn an_address_is_read_as_it_was_written() {
        for ip in ["10.9.0.1", "fd00::1"] {
            assert_eq!(Address::decode(&one(ip).encode()), Some(one(ip)));
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let changes: [fn(&mut Vec<u8>); 5] =
            [|b| b.truncate(35), |b| b.push(0), |b| b[16..18].fill(0), |b| b[19] = 1, |b| b[12..16].fill(0)];
        for (n, change) in changes.into_iter().enumerate() {
            let mut bytes = one("10.9.0.1").encode();
            change(&mut bytes);
            assert_eq!(Address::decode(&bytes), None, "change {n}");
        }
    }
}

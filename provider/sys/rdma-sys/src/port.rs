//! Ports, and their GIDs.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::{ibv_gid, ibv_port_attr};

/// What ibv_query_port(3) said.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// The structure itself.
    pub attr: ibv_port_attr,
}

impl Port {
    /// Whether it carries packets.
    pub fn is_active(&self) -> bool {
        self.attr.state == crate::IBV_PORT_ACTIVE
    }

    /// Whether packets need a GRH, and so GIDs: RoCE. On InfiniBand a LID is enough within a subnet.
    pub fn is_ethernet(&self) -> bool {
        u32::from(self.attr.link_layer) == crate::IBV_LINK_LAYER_ETHERNET
    }

    /// The largest payload of a packet, in bytes.
    pub fn mtu(&self) -> usize {
        mtu_bytes(self.attr.active_mtu)
    }
}

/// The bytes that a value of `enum ibv_mtu` stands for; 256 for one that is unknown.
fn mtu_bytes(mtu: u32) -> usize {
    match mtu {
        crate::IBV_MTU_256..=crate::IBV_MTU_4096 => 128 << mtu,
        _ => 256,
    }
}

/// How a GID travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GidType {
    /// InfiniBand's.
    Ib,
    /// Ethernet frames, not routed.
    RoceV1,
    /// UDP, routed as IP is.
    RoceV2,
    /// A library without ibv_query_gid_ex(3) does not say.
    Unknown,
}

/// An entry of a port's table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Gid {
    /// Its place in the port's table, from 0.
    pub index: u8,
    /// In the network's order.
    pub bytes: [u8; 16],
    /// How packets with it travel.
    pub kind: GidType,
    /// The network interface that it is of, by the kernel's index; 0 if there is none.
    pub interface: u32,
}

impl Gid {
    pub(crate) fn new(index: u8, gid: ibv_gid, kind: GidType, interface: u32) -> Option<Gid> {
        // SAFETY: any bytes are a GID.
        let bytes = unsafe { gid.raw };
        (bytes != [0; 16]).then_some(Gid { index, bytes, kind, interface })
    }

    fn address(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.bytes)
    }

    /// The IPv4 address that it stands for.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.address().to_ipv4_mapped()
    }

    /// Whether it leads to this link's hosts alone: fe80::/10, or 169.254.0.0/16.
    pub fn is_link_local(&self) -> bool {
        self.ipv4().map_or(self.address().segments()[0] & 0xffc0 == 0xfe80, |v4| v4.is_link_local())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({}: {} {:?} if{})", self.index, self.address(), self.kind, self.interface)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        let address: Ipv6Addr = text.parse().unwrap();
        Gid { index: 0, bytes: address.octets(), kind: GidType::RoceV2, interface: 0 }
    }

    #[test]
    fn link_local_gids_are_known() {
        for local in ["fe80::1", "febf::1", "::ffff:169.254.1.1"] {
            assert!(gid(local).is_link_local(), "{local}");
        }
        for far in ["fec0::1", "2001:db8::1", "::ffff:10.0.0.1", "fd00::1"] {
            assert!(!gid(far).is_link_local(), "{far}");
        }
        assert_eq!(gid("::ffff:10.0.0.1").ipv4(), Some(Ipv4Addr::new(10, 0, 0, 1)));
        assert_eq!(gid("fe80::1").ipv4(), None);
    }

    #[test]
    fn mtu_is_in_bytes() {
        assert_eq!([1, 2, 3, 4, 5].map(mtu_bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!([0, 6, u32::MAX].map(mtu_bytes), [256; 3]);
    }
}

//! Which GID packets of a port leave by.

use std::cmp::Reverse;
use std::net::IpAddr;

use rdma_sys::{Gid, GidType};

/// Whether a GID stands for this address.
pub(super) fn is_of(gid: &Gid, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => gid.ipv4() == Some(v4),
        IpAddr::V6(v6) => gid.bytes == v6.octets(),
    }
}

/// The GID that stands for the address, else one that is routed, else any: by RoCE v2 where there is that.
pub(super) fn best_gid(gids: &[Gid], own: IpAddr) -> Option<Gid> {
    let rank = |gid: &Gid| {
        let is_v2 = [GidType::RoceV2, GidType::Ib].contains(&gid.kind);
        (is_of(gid, own), !gid.is_link_local(), is_v2, gid.ipv4().is_some(), Reverse(gid.index))
    };
    gids.iter().max_by_key(|gid| rank(gid)).copied()
}

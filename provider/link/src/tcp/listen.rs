//! Where an endpoint is called for rails.

use std::net::SocketAddr;

use ipc::Unshared;

use super::options::TcpOptions;
use crate::name::{self, Name};
use crate::net;

/// The sockets at which an endpoint is called for rails besides that of its name, and the addresses.
pub(super) fn for_rails(name: &Name, asked: &TcpOptions) -> (Vec<Unshared>, Vec<SocketAddr>) {
    let (own, further) = (name.addr(), name.addr().further());
    let mut all = Vec::new();
    let mut sockets = Vec::new();
    if asked.rails < 2 {
        return (sockets, all);
    }
    let ips = if asked.rails_at.is_empty() { net::each_interface(own.ip()) } else { asked.rails_at.clone() };
    for ip in ips {
        if name.is_wildcard() || ip == own.ip() || Some(ip) == further.map(Into::into) {
            all.push((ip, own.port()).into());
            continue;
        }
        match name::listen_at(ip) {
            Ok((socket, at)) => {
                sockets.push(socket);
                all.push(at);
            }
            Err(e) => log::debug!("{own}: not at {ip} as well, for rails: {e}"),
        }
    }
    (sockets, all)
}

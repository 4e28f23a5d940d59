//! The sockets at which a segment changes hands, and their names.
//!
//! An endpoint named `ip:port` listens on the abstract unix socket `strait/ip:port`, or `strait/*:port` if it
//! serves every address; its port is reserved apart from that ([`crate::name`]). A sender connects there and
//! sends one packet, the hello, with the descriptor of the segment it made. [`wire::channel`] has the layout
//! of all packets.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use ipc::credentials::Cred;
use ipc::socket;
use wire::Addr;
use wire::channel::Packet;

/// What the abstract names of endpoints' sockets begin with; the address and port follow.
pub const ENDPOINT_NAMES: &str = "strait/";

/// The unix socket name of an endpoint; `None` stands for every address.
pub(in crate::shm) fn unix_name(ip: Option<IpAddr>, port: u16) -> String {
    match ip {
        None => format!("{ENDPOINT_NAMES}*:{port}"),
        Some(ip) => format!("{ENDPOINT_NAMES}{}", SocketAddr::new(ip, port)),
    }
}

/// Listens under the endpoint's name.
pub(crate) fn listen(bound: SocketAddr) -> io::Result<OwnedFd> {
    let ip = Addr::new(bound).ip();
    socket::listen(&unix_name((!ip.is_unspecified()).then_some(ip), bound.port()))
}

/// The process that listens under an endpoint's name.
pub(crate) fn listener(bound: SocketAddr) -> Option<Cred> {
    let ip = Addr::new(bound).ip();
    let sock = connect((!ip.is_unspecified()).then_some(ip), bound.port()).ok()?;
    Cred::of(&sock).ok()
}

/// Connects to the endpoint listening at one address, or at every address (`None`).
pub(crate) fn connect(ip: Option<IpAddr>, port: u16) -> io::Result<OwnedFd> {
    socket::connect(&unix_name(ip, port))
}

/// The incarnation in a welcome, if that is the next packet; it stays.
pub(crate) fn peek_welcome(sock: &OwnedFd) -> Option<u64> {
    let mut bytes = [0; Packet::BUFFER];
    let n = socket::peek(sock, &mut bytes).ok()?;
    match Packet::decode(&bytes[..n])? {
        Packet::Welcome(welcome) => Some(welcome.incarnation),
        _ => None,
    }
}

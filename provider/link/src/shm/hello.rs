//! Names, and the hello by which a segment changes hands.
//!
//! An endpoint named `ip:port` listens on the abstract unix socket `strait/ip:port`, or
//! `strait/*:port` if it serves every address; its port is reserved apart from that ([`crate::name`]). A sender
//! connects there and sends one packet, the hello, with the descriptor of the segment it made. Then packets of the
//! acceptor are one byte (`WELCOME`: and more), those of the connector are wake-ups.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use ipc::credentials::Cred;
use ipc::socket;
use wire::Addr;

use crate::space::Space;

/// First byte of a packet after the hello: wake up.
pub(crate) const WAKE: u8 = 0;
/// Accepted; the acceptor's incarnation and address space follow.
pub(crate) const WELCOME: u8 = 1;
/// Bytes of such a packet.
pub(crate) const WELCOME_LEN: usize = 9 + Space::LEN;
/// Refused; the connection ends.
pub(crate) const REFUSED: u8 = 2;
/// Likewise, for want of descriptors or memory.
pub(crate) const EXHAUSTED: u8 = 6;

/// What a connector says of itself and its segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) version: u16,
    pub(crate) ring: u32,
    /// Random; distinguishes this endpoint from earlier ones of the same name.
    pub(crate) incarnation: u64,
    /// Its name.
    pub(crate) from: Addr,
    /// The name it knows the acceptor by. One that serves every address has several, and answers
    /// under the one it was called by.
    pub(crate) to: Addr,
    /// Its address space.
    pub(crate) space: Space,
}

impl Hello {
    pub(crate) const LEN: usize = 72 + Space::LEN;
    const MAGIC: [u8; 8] = *b"straitS\x01";

    pub(crate) fn encode(&self) -> [u8; Hello::LEN] {
        let mut out = [0; Hello::LEN];
        out[..8].copy_from_slice(&Hello::MAGIC);
        out[8..16].copy_from_slice(&self.incarnation.to_le_bytes());
        out[16..20].copy_from_slice(&self.ring.to_le_bytes());
        out[20..22].copy_from_slice(&self.version.to_le_bytes());
        out[24..48].copy_from_slice(&self.from.encode());
        out[48..72].copy_from_slice(&self.to.encode());
        out[72..].copy_from_slice(&self.space.encode());
        out
    }

    pub(crate) fn decode(b: &[u8]) -> Option<Hello> {
        let b: &[u8; Hello::LEN] = b.try_into().ok()?;
        if b[..8] != Hello::MAGIC || b[22..24] != [0, 0] {
            return None;
        }
        Some(Hello {
            incarnation: u64::from_le_bytes(b[8..16].try_into().ok()?),
            ring: u32::from_le_bytes(b[16..20].try_into().ok()?),
            version: u16::from_le_bytes(b[20..22].try_into().ok()?),
            from: Addr::decode(b[24..48].try_into().ok()?)?,
            to: Addr::decode(b[48..72].try_into().ok()?)?,
            space: Space::decode(b[72..].try_into().ok()?),
        })
    }
}

/// What the abstract names of endpoints' sockets begin with; the address and port follow.
pub const ENDPOINT_NAMES: &str = "strait/";

/// The unix socket name of an endpoint; `None` stands for every address.
fn unix_name(ip: Option<IpAddr>, port: u16) -> String {
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
    let mut bytes = [0; WELCOME_LEN];
    let n = socket::peek(sock, &mut bytes).ok()?;
    let [WELCOME, number @ ..] = *bytes.first_chunk::<9>()? else { return None };
    (n == WELCOME_LEN).then_some(u64::from_le_bytes(number))
}

//! Names in series: what fi_av_insertsym(3) makes of one node and one service.

use std::net::{IpAddr, SocketAddr};

use libc::c_int;
use wire::Addr;

use crate::errno::Errno;
use crate::info::addr::lookup;

/// The addresses of `nodes` nodes counted up from `node`, each with `services` services counted up
/// from `service`. An IPv4 node counts as a number, a name by the digits at its end.
pub(super) fn symmetric<'a>(
    node: &'a str,
    nodes: usize,
    service: &'a str,
    services: usize,
    family: c_int,
) -> impl Iterator<Item = Result<Addr, Errno>> + 'a {
    let first = lookup(node, service, family);
    let numeric = node.parse::<IpAddr>().is_ok();
    (0..nodes).flat_map(move |n| {
        (0..services).map(move |s| {
            let base = match (n, numeric) {
                (0, _) | (_, true) => first,
                (n, false) => counted(node, n).and_then(|name| lookup(&name, service, family)),
            };
            let mut sock = base.ok_or(Errno::NOENT)?.sock();
            if numeric && n > 0 {
                sock = nth(sock, n).ok_or(Errno::INVAL)?;
            }
            let port = usize::from(sock.port()) + s;
            sock.set_port(u16::try_from(port).map_err(|_| Errno::INVAL)?);
            Ok(Addr::new(sock))
        })
    })
}

/// `host07` and 5: `host12`.
fn counted(node: &str, by: usize) -> Option<String> {
    let stem = node.trim_end_matches(|c: char| c.is_ascii_digit());
    let digits = &node[stem.len()..];
    let n = digits.parse::<usize>().ok()?.checked_add(by)?;
    Some(format!("{stem}{n:0width$}", width = digits.len()))
}

fn nth(sock: SocketAddr, by: usize) -> Option<SocketAddr> {
    let ip = match sock.ip() {
        IpAddr::V4(ip) => IpAddr::from(u32::from(ip).checked_add(by.try_into().ok()?)?.to_be_bytes()),
        IpAddr::V6(ip) => IpAddr::from(u128::from(ip).checked_add(by as u128)?.to_be_bytes()),
    };
    Some(SocketAddr::new(ip, sock.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_up() {
        let all: Vec<_> =
            symmetric("127.0.0.1", 2, "4000", 2, libc::AF_INET).map(|a| a.unwrap().to_string()).collect();
        assert_eq!(all, ["127.0.0.1:4000", "127.0.0.1:4001", "127.0.0.2:4000", "127.0.0.2:4001"]);
    }

    #[test]
    fn names_count_by_their_digits() {
        assert_eq!(counted("host07", 5).as_deref(), Some("host12"));
        assert_eq!(counted("host", 1), None);
        assert!(symmetric("255.255.255.255", 2, "1", 1, libc::AF_INET).nth(1).unwrap().is_err());
    }
}

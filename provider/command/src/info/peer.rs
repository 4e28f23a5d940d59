//! `strait info --peer`: which link a peer would get.

use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use serde::Serialize;

use super::provider::{self, NAME};
use crate::fabric::{self, Error, Library};

/// The way to a peer, as it is printed with `--json`.
#[derive(Debug, Serialize)]
pub struct Way {
    pub peer: String,
    /// `None`: none leads to it.
    pub link: Option<String>,
    /// The provider's words.
    pub path: String,
}

/// Asks the provider; an error says what to do.
pub fn query(library: &Arc<Library>, peer: SocketAddr) -> Result<Way, Error> {
    let provider = provider::query(library);
    if !provider.offered {
        let advice = provider.advice.join("; ");
        return Err(Error::Failed(format!(
            "--peer: the provider is not offered by this libfabric: {advice}"
        )));
    }
    let path = fabric::path(library, NAME, peer).map_err(|error| {
        let links = fabric::links(library, NAME).unwrap_or_default();
        let lacking: String =
            links.iter().filter(|(_, ok, _)| !ok).map(|(name, _, why)| format!("; {name}: {why}")).collect();
        Error::Failed(format!("--peer {peer}: {error}{lacking}"))
    })?;
    Ok(Way { peer: peer.to_string(), link: link_of(&path), path })
}

/// The link of a path in the provider's words.
pub fn link_of(path: &str) -> Option<String> {
    path.split([' ', ';']).next().filter(|word| *word != "no").map(str::to_owned)
}

/// Whether a text is an address, or a name with a port that may have one.
pub fn well_formed(text: &str) -> Result<String, String> {
    match parse_with(text, |name| {
        host_and_port(name).map(|(_, port)| SocketAddr::from(([127, 0, 0, 1], port)))
    }) {
        Ok(_) => Ok(text.into()),
        Err(error) => Err(error.text().trim_start_matches("--peer ").into()),
    }
}

/// The address in a name as fi_getname(3), the log or a person has it.
pub fn parse(text: &str) -> Result<SocketAddr, Error> {
    parse_with(text, resolve)
}

fn parse_with(text: &str, resolve: impl Fn(&str) -> Result<SocketAddr, String>) -> Result<SocketAddr, Error> {
    const WANTED: &str = "such as 10.9.0.2:46949, [2001:db8::7]:46949, node2:46949 or fi_sockaddr_in://10.9.0.2:46949: \
                          the log of the peer's process has it with FI_LOG_LEVEL=info";
    let wrong = |why: &str| Error::Failed(format!("--peer {text}: {why}; an address is {WANTED}"));
    let name = match text.trim().split_once("://") {
        Some(("fi_sockaddr_in" | "fi_sockaddr_in6" | "fi_sockaddr", name)) => name,
        Some((format, _)) => {
            return Err(wrong(&format!("no endpoint of Strait's has an address of format {format}")));
        }
        None => text.trim(),
    };
    let found = match name.parse::<SocketAddr>() {
        Ok(found) => found,
        Err(_) if name.parse::<std::net::IpAddr>().is_ok() => {
            return Err(wrong("a port is missing (an IPv6 address stands in brackets before it)"));
        }
        Err(_) => resolve(name).map_err(|why| wrong(&why))?,
    };
    match found {
        _ if found.port() == 0 => Err(wrong("no endpoint has port 0")),
        _ if found.ip().is_unspecified() => {
            Err(wrong("that stands for all addresses of a host, and is none of a peer"))
        }
        _ => Ok(found),
    }
}

fn host_and_port(name: &str) -> Result<(&str, u16), String> {
    let Some((host, port)) = name.rsplit_once(':').filter(|(host, _)| !host.is_empty()) else {
        return Err("a port is missing".into());
    };
    let port: u16 =
        port.parse().map_err(|_| format!("{port:?} is no port, which is a number up to 65535"))?;
    Ok((host, port))
}

/// A host's name and a port. IPv4 is preferred, as by the provider.
fn resolve(name: &str) -> Result<SocketAddr, String> {
    let (host, port) = host_and_port(name)?;
    let found = (host, port).to_socket_addrs().map_err(|e| format!("no host {host} is known ({e})"))?;
    let mut all: Vec<SocketAddr> = found.collect();
    all.sort_by_key(SocketAddr::is_ipv6);
    all.into_iter().next().ok_or_else(|| format!("host {host} has no address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_in_each_form() {
        for (text, wanted) in [
            ("10.9.0.2:7", "10.9.0.2:7"),
            ("fi_sockaddr_in://10.9.0.2:7", "10.9.0.2:7"),
            ("[2001:db8::7]:7", "[2001:db8::7]:7"),
            ("fi_sockaddr_in6://[2001:db8::7]:7", "[2001:db8::7]:7"),
            ("fi_sockaddr_in6://[fe80::1%2]:7", "[fe80::1%2]:7"),
            (" 10.9.0.2:7 ", "10.9.0.2:7"),
        ] {
            assert_eq!(parse(text).map(|a| a.to_string()), Ok(wanted.into()), "{text}");
        }
        assert!(parse("localhost:7").is_ok_and(|a| a.ip().is_loopback() && a.port() == 7));
    }

    #[test]
    fn an_address_that_is_none_says_what_one_is() {
        for (text, why) in [
            ("", "a port is missing"),
            ("10.9.0.2", "a port is missing"),
            ("2001:db8::7", "in brackets"),
            ("10.9.0.2:0", "port 0"),
            ("10.9.0.2:70000", "\"70000\" is no port"),
            ("10.9.0.2:x", "\"x\" is no port"),
            ("0.0.0.0:7", "all addresses"),
            ("[::]:7", "all addresses"),
            (":7", "a port is missing"),
            ("fi_sockaddr_ib://10.9.0.2:7", "format fi_sockaddr_ib"),
            ("fi_shm://1234", "format fi_shm"),
        ] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(why) && error.contains("such as 10.9.0.2:46949"), "{text}: {error}");
        }
    }
}

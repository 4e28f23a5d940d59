//! Where an exchange is, as text.

use std::fmt;
use std::path::PathBuf;

use crate::Error;

/// Where the processes of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket in the file system.
    Path(PathBuf),
    /// A socket under an abstract name, in the network namespace.
    Abstract(String),
    /// `HOST:PORT`
    Tcp(String),
    /// A file in which rank 0 says where it listens.
    File(PathBuf),
}

impl std::str::FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        let wrong = || {
            Error::Environment(format!(
                "{} is unix:PATH, unix:@NAME, tcp:HOST:PORT or file:PATH, not {text:?}",
                crate::names::EXCHANGE
            ))
        };
        let (kind, rest) = text.split_once(':').ok_or_else(wrong)?;
        match (kind, rest.strip_prefix('@')) {
            (_, _) if rest.is_empty() => Err(wrong()),
            ("unix", Some(name)) if !name.is_empty() => Ok(Address::Abstract(name.into())),
            ("unix", None) => Ok(Address::Path(rest.into())),
            ("tcp", _) => match rest.rsplit_once(':') {
                Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                    Ok(Address::Tcp(rest.into()))
                }
                _ => Err(wrong()),
            },
            ("file", _) => Ok(Address::File(rest.into())),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Path(path) => write!(f, "unix:{}", path.display()),
            Address::Abstract(name) => write!(f, "unix:@{name}"),
            Address::Tcp(place) => write!(f, "tcp:{place}"),
            Address::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for text in ["unix:/tmp/a:b", "unix:@a/b", "tcp:host:70", "tcp:[::1]:80", "file:x"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in
            ["", "unix", "unix:", "unix:@", "tcp:host", "tcp::1", "tcp:host:x", "tcp:h:65536", "udp:a:1"]
        {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.text().contains("STRAIT_EXCHANGE is unix:PATH"), "{text}: {error}");
        }
    }
}

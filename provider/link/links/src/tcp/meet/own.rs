//! What an endpoint is: its name, the address that it calls from, its process.

use std::io;
use std::net::SocketAddr;

use wire::Addr;
use wire::session::{Hello, Role};

use crate::name::Name;

/// What an endpoint says of itself.
#[derive(Debug)]
pub(in crate::tcp) struct Own {
    addr: Addr,
    /// The address that connections are made from, unless the endpoint serves all of the host's.
    source: Option<SocketAddr>,
    instance: u64,
    /// The process whose endpoint it is.
    pid: u32,
    _name: Option<Name>,
}

impl Own {
    pub(in crate::tcp) fn new(name: &Name) -> io::Result<Own> {
        let addr = name.addr();
        Ok(Own {
            addr,
            source: (!name.is_wildcard()).then_some(addr.sock()),
            instance: crate::random()?,
            pid: std::process::id(),
            _name: None,
        })
    }

    /// The endpoint keeps its name, which no link of another sort does.
    pub(in crate::tcp) fn keep_name(&mut self, name: Name) {
        self._name = Some(name);
    }

    #[inline]
    pub(in crate::tcp) fn addr(&self) -> Addr {
        self.addr
    }

    /// The address that connections are made from, unless the endpoint serves all of the host's.
    pub(in crate::tcp) fn source(&self) -> Option<SocketAddr> {
        self.source
    }

    /// What this endpoint says of itself to `other`.
    pub(in crate::tcp) fn hello(&self, role: Role, other: Addr) -> io::Result<Hello> {
        Ok(Hello { role, instance: self.instance, name: self.addr, other, nonce: ipc::random()? })
    }

    /// Whether this is a forked child of the process whose endpoint it is.
    pub(in crate::tcp) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }
}

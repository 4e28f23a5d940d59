//! What this endpoint is to its peers: name, incarnation, process.

use std::io;

use wire::Addr;
use wire::channel::Space;

use crate::name::Name;
use crate::space;

/// Set when the endpoint is opened.
#[derive(Debug)]
pub(in crate::shm) struct Own {
    addr: Addr,
    /// It serves every address of the host.
    everywhere: bool,
    incarnation: u64,
    pid: u32,
    space: Space,
    /// Reserves the port.
    name: Name,
}

impl Own {
    pub(in crate::shm) fn new(name: Name) -> io::Result<Own> {
        Ok(Own {
            addr: name.addr(),
            everywhere: name.is_wildcard(),
            incarnation: crate::random()?,
            pid: std::process::id(),
            space: space::own()?,
            name,
        })
    }

    #[inline]
    pub(in crate::shm) fn addr(&self) -> Addr {
        self.addr
    }

    /// Whether this endpoint is called so.
    pub(in crate::shm) fn is_called(&self, name: &Addr) -> bool {
        *name == self.addr || self.everywhere && name.port() == self.addr.port()
    }

    pub(in crate::shm) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(in crate::shm) fn pid(&self) -> u32 {
        self.pid
    }

    pub(in crate::shm) fn space(&self) -> Space {
        self.space
    }

    /// Whether this is a process forked from the endpoint's, which has the same channels mapped.
    pub(in crate::shm) fn is_forked(&self) -> bool {
        std::process::id() != self.pid
    }

    pub(in crate::shm) fn name(&self) -> &Name {
        &self.name
    }

    /// The port of the name listens from now on, for other links.
    pub(in crate::shm) fn listen(&mut self) -> io::Result<()> {
        self.name.listen()
    }
}

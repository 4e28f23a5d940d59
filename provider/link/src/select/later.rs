//! A link over TCP that is opened when a peer of another host is known. Until then no port of the endpoint listens.
//!
//! A job of one host needs no port, and what does not listen cannot be called by a stranger. The port is the endpoint's from the
//! beginning, so that its name does not change. A peer of another host that calls earlier is refused by its kernel, and calls
//! again ([`crate::TcpOptions::connect_timeout`]).

use std::io;

use link_api::{Link as _, Standing};

use crate::shm::ShmLink;
use crate::tcp::{TcpLink, TcpOptions};

/// What such a link is to be opened with, and what was asked of all links meanwhile.
#[derive(Debug)]
pub(super) struct Later {
    options: TcpOptions,
    early: bool,
    kept: bool,
}

impl Later {
    pub(super) fn new(options: TcpOptions) -> Later {
        Later { options, early: false, kept: false }
    }

    pub(super) fn set_early(&mut self) {
        self.early = true;
    }

    pub(super) fn tell_kept(&mut self) {
        self.kept = true;
    }

    /// The link, of the same name as this one.
    pub(super) fn open(self, shm: &mut ShmLink) -> io::Result<TcpLink> {
        shm.listen()?;
        let mut link = TcpLink::open(shm.name(), self.options)?;
        if self.early {
            link.set_early();
        }
        if self.kept {
            link.tell_kept();
        }
        Ok(link)
    }

    pub(super) fn standing(&self) -> Standing {
        Standing { link: "tcp", offers: Ok("listens once a peer of another host is known".into()) }
    }
}

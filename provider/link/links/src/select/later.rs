//! A link over TCP that is opened when a peer of another host is known. Until then no port of the endpoint
//! listens.
//!
//! A job of one host needs no port, and what does not listen cannot be called by a stranger. The port is the
//! endpoint's from the beginning, so that its name does not change. A peer of another host that calls earlier
//! is refused by its kernel, and calls again ([`crate::TcpOptions::connect_timeout`]).

use std::io;

use link_api::{Budget, Link as _, Setting, Standing};

use crate::shm::ShmLink;
use crate::tcp::{TcpLink, TcpOptions};

/// What such a link is to be opened with, and what was asked of all links meanwhile.
#[derive(Debug)]
pub(super) struct Later {
    options: TcpOptions,
    early: bool,
    kept: bool,
    budget: Option<Budget>,
}

impl Later {
    pub(super) fn new(options: TcpOptions) -> Later {
        Later { options, early: false, kept: false, budget: None }
    }

    /// As [`Link::set`](link_api::Link::set) does once the link is open, of what concerns it.
    pub(super) fn set(&mut self, setting: Setting<'_>) {
        match setting {
            Setting::Early => self.early = true,
            Setting::Kept => self.kept = true,
            Setting::Budget(budget) => self.budget = Some(budget.clone()),
            Setting::ServeHost(_) | Setting::Patience(_) | Setting::StageDevices => {}
        }
    }

    /// The link, of the same name as this one.
    pub(super) fn open(self, shm: &mut ShmLink) -> io::Result<TcpLink> {
        shm.listen()?;
        let mut link = TcpLink::open(shm.name(), self.options)?;
        if self.early {
            link.set(Setting::Early);
        }
        if self.kept {
            link.set(Setting::Kept);
        }
        if let Some(budget) = &self.budget {
            link.set(Setting::Budget(budget));
        }
        Ok(link)
    }

    pub(super) fn standing(&self) -> Standing {
        Standing { link: "tcp", offers: Ok("listens once a peer of another host is known".into()) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use wire::session::JobKey;

    use super::*;
    use crate::{OpenOptions, Port};

    #[test]
    fn what_was_asked_of_all_links_before_holds_for_one_that_is_opened_later() {
        let bind = Some("127.0.0.1:0".parse().unwrap());
        let options = OpenOptions { bind, port: Port::ListensLater, ..OpenOptions::default() };
        let mut shm = ShmLink::open(options).unwrap();
        let budget = Budget::new(1 << 20);
        let mut later = Later::new(TcpOptions::new(JobKey::from_secret(b"of the tests")));
        later.set(Setting::Budget(&budget));
        assert!(later.open(&mut shm).unwrap().counts_in(&budget));
    }
}

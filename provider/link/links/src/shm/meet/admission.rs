//! Which names and which users are served.

use std::collections::HashSet;
use std::fmt;

use ipc::credentials::{Cred, UNMAPPED, User};
use link_api::PeerId;
use wire::Addr;

use crate::net;

/// Which peers shared memory serves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Callers {
    /// All: there is no other link.
    All,
    /// Those of this host. Others are served by other links.
    OfThisHost,
    /// This endpoint alone.
    Itself,
}

/// Which names shared memory serves. A caller has proved which user it is of, and nothing of its name.
#[derive(Debug)]
pub(in crate::shm) struct Admission {
    callers: Callers,
    /// A caller of another user was refused, and the log says so.
    warned: bool,
    /// Peers that another link serves.
    elsewhere: HashSet<PeerId>,
}

impl Admission {
    pub(in crate::shm) fn new() -> Admission {
        Admission { callers: Callers::All, warned: false, elsewhere: HashSet::new() }
    }

    pub(in crate::shm) fn set_callers(&mut self, callers: Callers) {
        self.callers = callers;
    }

    /// A process is not of this endpoint's user: the log warns of that once.
    pub(in crate::shm) fn log_other_user(
        &mut self,
        own: Addr,
        what: fmt::Arguments<'_>,
        cred: Cred,
        user: User,
    ) {
        let level = if self.warned { log::Level::Debug } else { log::Level::Warn };
        self.warned = true;
        let why = if user == User::Unknown { UNMAPPED } else { "another user" };
        log::log!(level, "{own}: {what} uid {} (pid {}): {why}", cred.uid, cred.pid);
    }

    pub(in crate::shm) fn set_elsewhere(&mut self, peer: PeerId, on: bool) {
        if on {
            self.elsewhere.insert(peer);
        } else {
            self.elsewhere.remove(&peer);
        }
    }

    /// Why a caller of this name is not let in, if so; `peer`: what it is called here, if it is known. Where
    /// the addresses of this host cannot be listed, as without a descriptor, the name counts for one of this
    /// host's: the caller is.
    pub(in crate::shm) fn refusal(
        &self,
        own: &Addr,
        name: &Addr,
        peer: Option<PeerId>,
    ) -> Option<&'static str> {
        match self.callers {
            _ if peer.is_some_and(|peer| self.elsewhere.contains(&peer)) => {
                Some("another link serves that peer")
            }
            Callers::Itself => Some(
                "shared memory is not to be used here: give all processes of a job the same FI_STRAIT_LINKS",
            ),
            Callers::OfThisHost
                if own.ip() != name.ip() && matches!(net::find_local(name.ip()), Ok(false)) =>
            {
                Some("that is no address of this host")
            }
            Callers::OfThisHost | Callers::All => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn names_that_another_link_serves_are_refused() {
        let name = |text: &str| Addr::new(text.parse().unwrap());
        let (near, far, own) = (name("127.0.0.1:7"), name("198.51.100.1:7"), name("127.0.0.1:8"));
        let mut all = Admission::new();
        assert_eq!((all.refusal(&own, &near, None), all.refusal(&own, &far, None)), (None, None));
        all.set_callers(Callers::OfThisHost);
        assert!(all.refusal(&own, &near, None).is_none() && all.refusal(&own, &far, None).is_some());
        all.set_elsewhere(PeerId(3), true);
        assert!(
            all.refusal(&own, &near, Some(PeerId(3))).is_some()
                && all.refusal(&own, &near, Some(PeerId(2))).is_none()
        );
        all.set_elsewhere(PeerId(3), false);
        assert!(all.refusal(&own, &near, Some(PeerId(3))).is_none());
        all.set_callers(Callers::Itself);
        assert!(all.refusal(&own, &near, None).is_some());
    }
}

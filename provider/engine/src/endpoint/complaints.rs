//! How often the log has a line of what peers do wrong: the first times, and then each time that it was twice
//! as often.

use std::fmt;

use super::Endpoint;
use link_api::{PeerId, RmaLink};

/// Lines of one peer, and of all of an endpoint's together, whatever they call themselves, that come at once.
const OF_PEER: u32 = 8;
const OF_ALL: u32 = 64;

impl<L: RmaLink> Endpoint<L> {
    /// Says of a peer that it does something wrong, unless that was said often.
    #[cold]
    pub(super) fn complain(&mut self, peer: PeerId, what: fmt::Arguments<'_>) {
        let Some(n) = self.peer(peer).complaints.count(OF_PEER) else { return };
        if self.quota.complain(OF_ALL) {
            let (here, there) = (self.link.addr(), self.link.peer_addr(peer));
            let more = if n > OF_PEER {
                format!(" ({n} such things of it; most have no line)")
            } else {
                String::new()
            };
            log::warn!("{here}: {there} {what}{more}");
        }
    }
}

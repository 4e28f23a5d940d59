//! What the log and fi_open_ops say of paths and links.

use link_api::{Channel, Link as _, PeerId, Standing};
use wire::Addr;

use super::assign::Host;
use super::further::Further;
use super::later::Later;
use super::route::{Cause, Route, Routes};
use crate::net;
use crate::shm::ShmLink;

/// The name of the link that is here by its type.
const SHM: &str = "shm";

/// Describes the links of an endpoint.
pub(super) struct Describe<'a> {
    pub(super) shm: &'a ShmLink,
    pub(super) further: &'a Further,
    pub(super) routes: &'a Routes,
    pub(super) host: &'a Host,
    pub(super) later: Option<&'a Later>,
    /// Links that were not opened, and why.
    pub(super) absent: &'a [(&'static str, String)],
}

impl Describe<'_> {
    /// The path to a peer, why it is that one, and what speaks against each other link.
    pub(super) fn path(&self, peer: PeerId) -> String {
        let addr = self.shm.peer_addr(peer);
        let route = self.routes.of(peer);
        let cause = route.map_or_else(|| self.host.cause(self.shm.addr(), &addr), Route::cause);
        let far = route.and_then(Route::far);
        let is_near = net::is_local(addr.ip()) || self.shm.channel(peer) != Channel::None;
        let mut line = match (far, cause) {
            (Some((at, id)), _) => {
                format!("{} {}; {cause}", self.further.name(at, id), self.further[at].describe(id))
            }
            (None, Cause::Far(why)) if is_near => {
                format!("{}; {why}, but no further link leads to its address", self.shm.describe(peer))
            }
            (None, Cause::Far(_)) => format!("no link leads to its address; {cause}"),
            (None, _) => format!("{}; {cause}", self.shm.describe(peer)),
        };
        self.add_others(&mut line, &addr, far.map(|(at, _)| at));
        line
    }

    /// Why the path to this address is none of the links but `taken`.
    fn add_others(&self, line: &mut String, addr: &Addr, taken: Option<usize>) {
        for (at, other) in self.further.each().enumerate().filter(|(at, _)| Some(*at) != taken) {
            let why = other.reaches(addr).err().unwrap_or_else(|| match taken {
                Some(taken) if at < taken => "the peer did not connect by it".into(),
                Some(taken) => format!("{} comes before it", self.further.own_name(taken)),
                None => format!("{SHM} comes before it"),
            });
            for link in other.standing() {
                *line += &format!("; not {}: {}", link.link, link.offers.err().as_ref().unwrap_or(&why));
            }
        }
        for (link, why) in self.absent {
            *line += &format!("; not {link}: {why}");
        }
    }

    /// What each link is, or why it is not available.
    pub(super) fn standing(&self) -> Vec<Standing> {
        let mut all = self.shm.standing();
        if !self.host.has_shm() {
            for shm in &mut all {
                shm.offers = Err("shared memory is not to be used".into());
            }
        }
        all.extend(self.further.each().flat_map(|link| link.standing()));
        all.extend(self.later.map(Later::standing));
        let absent = |(link, why): &(&'static str, String)| Standing { link, offers: Err(why.clone()) };
        all.extend(self.absent.iter().map(absent));
        all
    }
}

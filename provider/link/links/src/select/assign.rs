//! Which link a peer gets, and why.

use link_api::{Channel, Event, Link as _, PeerId, Standing};
use wire::Addr;

use super::Links;
use super::later::Later;
use super::route::{Cause, Route};
use crate::{net, turns};

/// The name of the link that is here by its type.
const SHM: &str = "shm";

impl Links {
    /// Chooses a link for a peer that is new.
    pub(super) fn assign(&mut self, peer: PeerId, addr: &Addr) {
        let cause = self.near(addr);
        if let Cause::Near(_) = cause {
            self.neighbours += 1;
            turns::knows(self.neighbours);
        }
        if let Cause::Far(_) = cause {
            self.open_later();
        }
        match self.leads(addr, cause) {
            Some(at) => self.assign_far(peer, addr, at, cause),
            None => self.routes.set(peer, Route::shm(cause)),
        }
    }

    /// A peer that was found to be on this host is forgotten, or is not.
    pub(super) fn is_no_neighbour(&mut self, peer: PeerId) {
        if let Some(Cause::Near(_)) = self.routes.of(peer).map(Route::cause) {
            self.neighbours -= 1;
        }
    }

    /// Whether a peer of this name is to be reached by shared memory, and why or why not.
    pub(super) fn near(&self, addr: &Addr) -> Cause {
        let own = self.shm.addr();
        match addr.ip() == own.ip() || net::is_local(addr.ip()) {
            _ if *addr == own => Cause::Near("it is this endpoint"),
            true if self.near => Cause::Near("its address is this host's"),
            true => Cause::Far("shared memory is not to be used"),
            false => Cause::Far("its address is not this host's"),
        }
    }

    /// The first further link that leads to an address, unless shared memory is to.
    fn leads(&self, addr: &Addr, cause: Cause) -> Option<usize> {
        let mut all = 0..self.far.len();
        match cause {
            Cause::Near(_) => None,
            _ => all.find(|&at| self.far[at].link.reaches(addr).is_ok()),
        }
    }

    fn assign_far(&mut self, peer: PeerId, addr: &Addr, at: usize, cause: Cause) {
        let id = self.far[at].link.peer(addr);
        self.route_to(peer, at, id, cause);
    }

    /// A further link serves a peer, which it calls `id`, from now on.
    pub(super) fn route_to(&mut self, peer: PeerId, at: usize, id: PeerId, cause: Cause) {
        self.pace.has_peer();
        self.far[at].set(id, peer);
        self.shm.set_elsewhere(peer, true);
        self.routes.set(peer, Route::to(at, id, cause));
    }

    /// Shared memory does not lead to this peer: the next link that does takes it.
    #[cold]
    pub(super) fn reroute(&mut self, peer: PeerId) -> bool {
        if self.far_of(peer).is_some() {
            return false;
        }
        let addr = self.shm.peer_addr(peer);
        let cause = Cause::Far("by shared memory nothing answers to its address here");
        let Some(at) = self.leads(&addr, cause) else { return false };
        self.is_no_neighbour(peer);
        self.assign_far(peer, &addr, at, cause);
        self.events.push_back(Event::PathChanged(peer));
        true
    }

    /// The way to a peer, why it is that one, and what speaks against each other link.
    pub(super) fn tell(&self, peer: PeerId) -> String {
        let addr = self.shm.peer_addr(peer);
        let route = self.routes.of(peer);
        let cause = route.map_or_else(|| self.near(&addr), Route::cause);
        let far = route.and_then(Route::far);
        let is_near = net::is_local(addr.ip()) || self.shm.channel(peer) != Channel::None;
        let mut line = match (far, cause) {
            (Some((at, id)), _) => {
                format!("{} {}; {cause}", self.far[at].name(id), self.far[at].link.describe(id))
            }
            (None, Cause::Far(why)) if is_near => {
                format!("{}; {why}, but no further link leads to its address", self.shm.describe(peer))
            }
            (None, Cause::Far(_)) => format!("no link leads to its address; {cause}"),
            (None, _) => format!("{}; {cause}", self.shm.describe(peer)),
        };
        let taken = far.map(|(at, _)| at);
        for (at, other) in self.far.iter().enumerate().filter(|(at, _)| Some(*at) != taken) {
            let why = other.link.reaches(&addr).err().unwrap_or_else(|| match taken {
                Some(taken) if at < taken => "the peer did not connect by it".into(),
                Some(taken) => format!("{} comes before it", self.far[taken].own_name()),
                None => format!("{SHM} comes before it"),
            });
            for link in other.link.standing() {
                line += &format!("; not {}: {}", link.link, link.offers.err().as_ref().unwrap_or(&why));
            }
        }
        for (link, why) in &self.absent {
            line += &format!("; not {link}: {why}");
        }
        line
    }

    /// What each link is, or why it is not to be had.
    pub(super) fn all_standing(&self) -> Vec<Standing> {
        let mut all = self.shm.standing();
        if !self.near {
            for shm in &mut all {
                shm.offers = Err("shared memory is not to be used".into());
            }
        }
        all.extend(self.far.iter().flat_map(|far| far.link.standing()));
        all.extend(self.later.iter().map(Later::standing));
        let absent = |(link, why): &(&'static str, String)| Standing { link, offers: Err(why.clone()) };
        all.extend(self.absent.iter().map(absent));
        all
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::net::SocketAddr;

    use wire::session::JobKey;

    use super::*;
    use crate::{OpenOptions, TcpOptions};

    #[test]
    fn who_is_on_this_host_is_counted_once() {
        let mut links = Links::open(OpenOptions::default()).unwrap();
        links.add_tcp(TcpOptions::new(JobKey::from_secret(b"of the tests"))).unwrap();
        let name = |ip: [u8; 4], n: u16| Addr::new(SocketAddr::from((ip, n)));
        for n in 1..9 {
            for again in 0..2 {
                links.peer(&name([198, 51, 100, 1], n));
                let peer = links.peer(&name([127, 0, 0, 1], n));
                assert_eq!(links.neighbours, usize::from(n));
                if n == 8 && again == 1 {
                    (0..2).for_each(|_| links.dismiss(peer, link_api::Parting::Forgotten));
                    assert_eq!(links.neighbours, 7, "it is forgotten");
                }
            }
        }
        for n in 0..crate::processors::Processors::new().count() {
            links.peer(&name([127, 0, 0, 1], 100 + n as u16));
        }
        assert!(turns::yields(turns::TURN, 8 * turns::TURN));
    }
}

//! Which link serves a peer, where the peer's side calls first.
//!
//! A frame is carried out with the means of its peer's path: shared memory's reach private memory of a
//! process. So a link hands on what comes from a peer that it serves, and nothing else.

use link_api::{Channel, Event, Frame, Link as _, Parting, PeerId};
use wire::Addr;

use super::Links;
use super::route::{Cause, Served};

impl Links {
    /// The peer of which a further link has a frame, if that link serves it, or may from now on.
    pub(super) fn serve(&mut self, at: usize, id: PeerId) -> Option<Served> {
        if let Some(served) = self.far[at].served(id) {
            return Some(served);
        }
        let addr = self.far[at].link.peer_addr(id);
        let peer = self.may_serve(&addr)?;
        self.route_to(peer, at, id, Cause::Connected);
        self.events.push_back(Event::PathChanged(peer));
        self.far[at].served(id)
    }

    /// The peer of a name by which a further link was called, unless another link serves it, or is to.
    fn may_serve(&mut self, addr: &Addr) -> Option<PeerId> {
        if matches!(self.near(addr), Cause::Near(_)) {
            return None;
        }
        let peer = self.shm.peer(addr);
        let elsewhere = self.far_of(peer).is_some() || self.shm.channel(peer) != Channel::None;
        (!elsewhere).then_some(peer)
    }

    /// Cuts off what has called by a name of a peer that another link serves. Its end is reported to no one.
    #[cold]
    pub(super) fn refuse(&mut self, at: usize, frame: Frame) {
        let id = frame.from;
        self.far[at].link.release(frame);
        self.cut_off(at, id);
    }

    #[cold]
    pub(super) fn refuse_begun(&mut self, at: usize, frame: Frame) {
        let id = frame.from;
        self.far[at].link.land(frame, None);
        self.cut_off(at, id);
    }

    fn cut_off(&mut self, at: usize, id: PeerId) {
        let (own, link) = (self.shm.addr(), self.far[at].name(id));
        let addr = self.far[at].link.peer_addr(id);
        log::warn!(
            "{own}: refused a connection by {link} under the name {addr}, whose endpoint is reached by another link: give all \
             processes of a job the same FI_STRAIT_LINKS"
        );
        self.far[at].link.dismiss(id, Parting::CutOff);
    }
}

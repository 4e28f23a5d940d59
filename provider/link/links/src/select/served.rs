//! Which link serves a peer, where the peer's side calls first.
//!
//! A frame is carried out with the means of its peer's path: shared memory's reach private memory of a
//! process. So a link hands on what comes from a peer that it serves, and nothing else.

use link_api::{Channel, Event, Frame, Link as _, Parting, PeerId};
use wire::Addr;

use super::assign::Assign;
use super::further::Served;
use super::route::{self, Cause};

impl Assign<'_> {
    /// The next event of one further link, of peers that it serves.
    pub(super) fn poll(&mut self, at: usize) -> Option<Event> {
        loop {
            return Some(match self.further[at].poll()? {
                Event::Frame(frame) => match self.of_frame(at, frame) {
                    Some(event) => event,
                    None => continue,
                },
                Event::Begun(frame) => match self.serve(at, frame.from) {
                    Some(from) => {
                        let slot = route::tagged(at, frame.slot);
                        Event::Begun(Frame { from: from.peer(), len: frame.len, slot })
                    }
                    None => {
                        self.refuse_begun(at, frame);
                        continue;
                    }
                },
                Event::Closed(id, why) => match self.further.served(at, id) {
                    Some(peer) => Event::Closed(peer.peer(), why),
                    None => {
                        self.further[at].dismiss(id, Parting::Forgotten);
                        continue;
                    }
                },
                Event::PathChanged(id) => match self.further.served(at, id) {
                    Some(peer) => Event::PathChanged(peer.peer()),
                    None => continue,
                },
                Event::Written(id, data, len) => match self.further.served(at, id) {
                    Some(peer) => Event::Written(peer.peer(), data, len),
                    None => continue,
                },
                Event::Done(op, ok) => Event::Done(route::tag_op(at, op), ok),
                Event::Cut(op) => Event::Cut(route::tag_op(at, op)),
            });
        }
    }

    /// A frame of a further link, of a peer that it serves; another one is cut off.
    pub(super) fn of_frame(&mut self, at: usize, frame: Frame) -> Option<Event> {
        let Some(from) = self.serve(at, frame.from) else {
            self.refuse(at, frame);
            return None;
        };
        let slot = route::tagged(at, frame.slot);
        Some(Event::Frame(Frame { from: from.peer(), len: frame.len, slot }))
    }

    /// The peer of which a further link has a frame, if that link serves it, or may from now on.
    fn serve(&mut self, at: usize, id: PeerId) -> Option<Served> {
        if let Some(served) = self.further.served(at, id) {
            return Some(served);
        }
        let addr = self.further[at].peer_addr(id);
        let peer = self.may_serve(&addr)?;
        self.route_to(peer, at, id, Cause::Connected);
        self.events.push_back(Event::PathChanged(peer));
        self.further.served(at, id)
    }

    /// The peer of a name by which a further link was called, unless another link serves it, or is to.
    fn may_serve(&mut self, addr: &Addr) -> Option<PeerId> {
        if matches!(self.host.cause(self.shm.addr(), addr), Cause::Near(_)) {
            return None;
        }
        let peer = self.shm.peer(addr);
        let elsewhere = self.routes.far_of(peer).is_some() || self.shm.channel(peer) != Channel::None;
        (!elsewhere).then_some(peer)
    }

    /// Cuts off what has called by a name of a peer that another link serves. Its end is not reported.
    #[cold]
    fn refuse(&mut self, at: usize, frame: Frame) {
        let id = frame.from;
        self.further[at].release(frame);
        self.cut_off(at, id);
    }

    #[cold]
    fn refuse_begun(&mut self, at: usize, frame: Frame) {
        let id = frame.from;
        self.further[at].land(frame, None);
        self.cut_off(at, id);
    }

    fn cut_off(&mut self, at: usize, id: PeerId) {
        let (own, link) = (self.shm.addr(), self.further.name(at, id));
        let addr = self.further[at].peer_addr(id);
        log::warn!(
            "{own}: refused a connection by {link} under the name {addr}, whose endpoint is reached by another link: give all \
             processes of a job the same FI_STRAIT_LINKS"
        );
        self.further[at].dismiss(id, Parting::CutOff);
    }
}

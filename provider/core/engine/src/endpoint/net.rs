//! The link of an endpoint and the peers that it leads to.

use std::fmt;

use hmem::Span;
use wire::{Head, Status};

use crate::core::{Core, failure};
use crate::endpoint::malformed::{Fields, Handled, Malformed, describe};
use crate::endpoint::metered::Metered;
use crate::endpoint::parts::header::handle_frame;
use crate::endpoint::parts::peer::Peer;
use crate::endpoint::parts::quota::{A_WHILE, Quota};
use crate::endpoint::parts::table::Table;
use crate::endpoint::parts::unhurried::Unhurried;
use crate::types::*;
use link_api::{
    Budget, Channel, Devices, Fallback, Frame, HandleNote, How, Meter, NoDirect, Parting, Path, PeerId,
    Refused, RmaLink, Setting, Side, Way,
};

/// So many bytes say what a frame of links' own is.
const FRONT: usize = 16;
/// Lines of the log about what one peer does wrong, and about all of an endpoint's together, whatever they
/// call themselves, that come at once. Later ones come each time that it was twice as often.
const OF_PEER: u32 = 8;
const OF_ALL: u32 = 64;

/// What short messages touch comes first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Net<L> {
    /// What keeps progress from the short way beside lists of things to do.
    pub(in crate::endpoint) unhurried: Unhurried,
    pub(crate) peers: Table,
    pub(crate) link: L,
    pub(in crate::endpoint) quota: Quota,
    /// Counts what is done, where that is requested.
    pub(in crate::endpoint) metered: Metered,
}

impl<L: RmaLink> Net<L> {
    pub(in crate::endpoint) fn new(mut link: L, budget: &Budget) -> Net<L> {
        link.set(Setting::Budget(budget));
        link.set(Setting::Early);
        link.set(Setting::Kept);
        let (quota, unhurried) = (Quota::new(budget), Unhurried::default());
        Net { link, peers: Table::default(), quota, unhurried, metered: Metered::default() }
    }

    pub(crate) fn set_meter(&mut self, meter: Box<dyn Meter>) {
        self.metered.set(meter);
        self.unhurried.set_metered();
        self.peers.iter_mut().for_each(|peer| peer.flow.set_metered());
    }

    /// Sets how many operations to one peer may be under way.
    pub(crate) fn set_depth(&mut self, depth: usize) {
        self.quota.set_depth(depth);
    }

    /// An operation is done.
    #[inline(always)]
    pub(in crate::endpoint) fn meter(&mut self, peer: PeerId, side: Side, how: How, bytes: usize) {
        self.metered.count(&self.link, peer, side, how, bytes);
    }

    #[inline]
    pub(in crate::endpoint) fn peer(&mut self, peer: PeerId) -> &mut Peer {
        if peer.0 as usize >= self.peers.len() {
            self.add_peers(peer.0 as usize);
        }
        &mut self.peers[peer]
    }

    #[cold]
    fn add_peers(&mut self, at: usize) {
        while self.peers.len() <= at {
            let path = self.link.path(PeerId(self.peers.len() as u32));
            self.peers.push(Peer::new(&path, self.metered.is_on()));
        }
    }

    /// One line on the path to an address; `None`: the vector does not have it.
    pub(crate) fn path_words(&self, to: FiAddr) -> Option<String> {
        let peer = self.peers.routed(to)?;
        Some(self.link.describe(peer))
    }

    /// What the way to an address can do; `None`: the vector does not have it.
    pub(crate) fn path(&self, to: FiAddr) -> Option<Path> {
        let peer = self.peers.routed(to)?;
        Some(self.link.path(peer))
    }

    /// Whether there is a connection with the peer of an address.
    pub(crate) fn is_connected(&self, to: FiAddr) -> bool {
        let peer = self.peers.routed(to);
        peer.is_some_and(|peer| self.link.channel(peer) != Channel::None)
    }

    /// Writes a line on the path to a peer that something was just posted to for the first time.
    #[inline(always)]
    pub(crate) fn log_new_path(&mut self) {
        if let Some(peer) = self.peers.take_unlogged() {
            self.log_path(peer);
        }
    }

    /// Writes a line on the path to a peer, once there is one.
    fn log_path(&mut self, peer: PeerId) {
        let first = self.peer(peer).flow.mark_path_logged();
        if first {
            self.metered.path(&self.link, peer);
        }
        if !first || !log::log_enabled!(log::Level::Info) {
            return;
        }
        let limits = *self.peer(peer).flow.limits();
        log::info!(
            "{} -> {}: {}; up to {} bytes inside the frame, more fetched by the other side, or sent in frames of {} where it can't",
            self.link.addr(),
            self.link.peer_addr(peer),
            self.link.describe(peer),
            limits.eager,
            limits.max_frame()
        );
    }

    #[inline(always)]
    pub(crate) fn routed(&self, at: FiAddr) -> Option<PeerId> {
        self.peers.routed(at)
    }

    /// Says of a peer that it does something wrong, unless that was said often.
    #[cold]
    pub(in crate::endpoint) fn complain(&mut self, peer: PeerId, what: fmt::Arguments<'_>) {
        let Some(n) = self.peer(peer).complaints.count(OF_PEER) else { return };
        if self.quota.complain(OF_ALL) {
            let (here, there) = (self.link.addr(), self.link.peer_addr(peer));
            let how_often = if n > OF_PEER {
                format!(" ({n} such things of it; most have no line)")
            } else {
                String::new()
            };
            log::warn!("{here}: {there} {what}{how_often}");
        }
    }

    /// A frame makes no sense: it is of what links say to each other, or malformed.
    #[cold]
    pub(in crate::endpoint) fn not_taken(&mut self, frame: &Frame, why: Malformed) {
        let mut front = [0; FRONT];
        let n = self.link.read(frame, 0, &mut front);
        if !self.link.answer(frame.from, &front[..n]) {
            let head = self.link.peek(frame);
            self.malformed(frame.from, head, frame.len, why);
        }
    }

    /// Logs that a frame of so many bytes was dropped; `head`: as far as that was there.
    #[cold]
    pub(in crate::endpoint) fn malformed(
        &mut self,
        from: PeerId,
        head: Option<[u8; Head::LEN]>,
        len: usize,
        why: Malformed,
    ) {
        let what = describe(head, len, why);
        self.complain(
            from,
            format_args!(
                "has sent a malformed frame of {len} bytes, which is dropped: {what}; that peer has a defect or is no \
                 Strait: please report this line"
            ),
        );
    }

    /// A peer did not get at memory here.
    #[cold]
    pub(in crate::endpoint) fn warn_of(&mut self, peer: PeerId, status: Status) {
        if status == Status::Fault {
            let what = "accesses registered memory that is not mapped, or not for that: close a registration before its memory is \
                        unmapped, and address within what is mapped";
            self.complain(peer, format_args!("{what}"));
        } else {
            self.complain(peer, format_args!("was refused access: {status:?}"));
        }
    }

    pub(in crate::endpoint) fn cut_off(&mut self, peer: PeerId, what: &str) {
        self.complain(peer, format_args!("is cut off: too many {what}"));
        self.link.dismiss(peer, Parting::CutOff);
    }

    /// So many bytes more are owed to a peer.
    pub(in crate::endpoint) fn owe(&mut self, peer: PeerId, bytes: usize) {
        let (most, is_room) = self.quota.owe(bytes);
        let owed = self.peer(peer).flow.owe(bytes);
        if owed > most && (!is_room || owed - bytes <= most) {
            self.cut_off(peer, "answers that it does not take");
        }
    }

    pub(in crate::endpoint) fn on_pause(&mut self, peer: PeerId, head: &Head) -> Handled {
        let flow = &mut self.peer(peer).flow;
        match (head.data.get(), head.aux.get()) {
            (on @ (0 | 1), 0) => flow.set_paused(on == 1),
            (0, 1) => flow.offer_long(A_WHILE),
            _ => return Err(Malformed::Data),
        }
        Ok(())
    }

    /// Whether the ring to a peer has room to spare for a frame with so many bytes of payload.
    pub(in crate::endpoint) fn has_room_to_spare(&mut self, peer: PeerId, len: usize) -> bool {
        !self.peer(peer).flow.has_backlog() && self.link.has_room_to_spare(peer, wire::EAGER_HEAD + len)
    }

    /// Whether a peer may be sent what it can do without. While it does not look, such frames add up, and
    /// must not be in the way of others.
    pub(in crate::endpoint) fn has_room_for_offers(&mut self, peer: PeerId) -> bool {
        self.has_room_to_spare(peer, 0)
    }

    /// A frame was sent that accesses memory and that is not answered.
    #[inline]
    pub(in crate::endpoint) fn sent_unacked(&mut self, peer: PeerId) {
        self.peer(peer).answers.sent_unacked();
    }

    /// A write was posted to this peer that shares answers with others; `unasked`: by this name, and requests
    /// none.
    pub(in crate::endpoint) fn posted_write(&mut self, peer: PeerId, unasked: Option<u64>) {
        let state = &mut self.peers[peer];
        let Some(cumulative) = &mut state.cumulative else { return };
        match unasked {
            None => cumulative.posted_asking(state.answers.last_seq()),
            Some(name) => {
                if cumulative.posted(state.answers.last_seq(), name) {
                    self.peers.add_tail(peer);
                    self.unhurried.set_tails(true);
                }
            }
        }
    }

    /// Whether this memory is on the device that the peer has used last, as far as it has said, which it most
    /// likely goes on using.
    pub(in crate::endpoint) fn is_on_one_device(&mut self, peer: PeerId, iov: &[Span]) -> bool {
        let Some(seg) = self.peer(peer).hints.on_device() else { return false };
        self.link.devices(peer, &[seg], iov) == Devices::One
    }

    /// How an access in the call ended; `None` if the bytes may come otherwise.
    pub(in crate::endpoint) fn moved(
        &mut self,
        peer: PeerId,
        outcome: Result<(), NoDirect>,
    ) -> Option<Status> {
        match outcome {
            Ok(()) => {
                self.peer(peer).hints.helper().works();
            }
            Err(NoDirect::Fault) => return Some(Status::Io),
            Err(NoDirect::Revoked) => return Some(Status::Discarded),
            Err(NoDirect::Never) => {
                self.peer(peer).flow.set_not_sync();
                self.metered.fell_back(&self.link, peer, Fallback::Peer);
                return None;
            }
            // This memory, perhaps: frames will show.
            Err(NoDirect::Memory) => {
                self.metered.fell_back(&self.link, peer, Fallback::Memory);
                return None;
            }
        }
        Some(Status::Ok)
    }

    /// Whether a peer has begun with most of what was delegated to it.
    pub(in crate::endpoint) fn may_delegate(&mut self, peer: PeerId) -> bool {
        let (link, delegated) = (&self.link, self.peers[peer].hints.delegated());
        delegated.retain(|counter| !link.pieces_begun(peer, *counter));
        !delegated.is_full()
    }

    /// Why bytes of a peer could not be moved: its death may show in these first.
    pub(in crate::endpoint) fn failure(&self, peer: PeerId, status: Status) -> Option<Error> {
        match failure(status) {
            Some(Error::Io) if self.link.channel(peer) == Channel::Ended => Some(Error::Reset),
            other => other,
        }
    }

    /// Makes sure that the peer has handles of all of `iov`, by which it goes this way. `false`: it cannot be
    /// accessed so.
    pub(in crate::endpoint) fn export(
        &mut self,
        peer: PeerId,
        iov: &[Span],
        way: Way,
    ) -> Result<bool, Refused> {
        let Some(lacking) = self.link.export_handles(peer, iov, way) else { return Ok(false) };
        for handle in &lacking {
            self.link.send(peer, &handle_frame(handle), &[], 0, 0)?;
            self.link.note_handle(peer, HandleNote::Exported(handle));
        }
        Ok(true)
    }

    pub(in crate::endpoint) fn on_handle(&mut self, peer: PeerId, fields: &mut Fields<'_>) -> Handled {
        let handle: wire::Handle = fields.take()?;
        self.link.note_handle(peer, HandleNote::Imported(&handle));
        Ok(())
    }

    /// Whether so many bytes more are within what all peers may have this side keep. Else the peer is cut
    /// off.
    pub(in crate::endpoint) fn may_keep(&mut self, core: &Core, peer: PeerId, bytes: usize) -> bool {
        // An endpoint's operations on itself are its application's.
        let may = core.limit.holds(core.waiting + bytes) || self.link.peer_addr(peer) == self.link.addr();
        if !may {
            self.cut_off(peer, "messages that wait or completions, of all peers together");
        }
        may
    }
}

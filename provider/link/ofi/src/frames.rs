//! The engine's calls.

use std::os::fd::RawFd;

use hmem::{Span, total};
use link_api::{
    Allow, Channel, Connect, Devices, Direct, Event, Frame, Gone, HandleNote, InUse, Link, NoDirect, OpId,
    Parting, Path, PeerId, PieceCounter, Refused, Region, RegionVersion, Revoke, RmaLink, Sent, Setting,
    Standing, WaitFd, Way,
};
use wire::{Addr, Handle, Seg};

use crate::below::{Below, NotSent};
use crate::channel::{BEFORE, Said, Sort};
use crate::dealings::is_read;
use crate::link::OfiLink;
use crate::parts::inbox::Held;
use crate::peer::Stage;

impl<B: RmaLink, F: Below> OfiLink<B, F> {
    fn send_by_fabric(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        assert!(head.len() + len <= self.provider.max_frame(), "frame longer than Path::max_frame");
        debug_assert!(off + len <= total(body), "bytes {off}+{len} of {body:?}");
        if self.peers[to].dealings.has_notes() {
            // Before what follows from it: a frame that asks for what was not read.
            self.send_notes(to);
        }
        let at = &mut self.peers[to];
        let found = match (&mut self.below, &mut at.channel) {
            (Some(below), Some(channel)) if !at.end.is_broken() && !at.dealings.has_notes() => {
                channel.send(below, Said { sort: Sort::Frame, head, body, off, len })
            }
            _ => Err(NotSent::Busy),
        };
        match found {
            Ok(()) if self.reports_kept && self.keeps_frames(to) => Ok(Sent::Kept),
            Ok(()) => Ok(Sent::Done),
            Err(NotSent::Fault) => Err(Refused::Fault),
            Err(NotSent::Busy) => {
                self.peers.at(to).upkeep.set_full(true);
                self.note_restless(to);
                self.peers.want(to);
                Err(Refused::Busy)
            }
            Err(NotSent::Error(why)) => {
                let who = u64::from(to.0) << 32 | u64::from(self.peers.at(to).generation);
                self.lost(who, &why);
                self.peers.want(to);
                Err(Refused::Busy)
            }
        }
    }

    fn next_out(&mut self) -> Option<Event> {
        let event = self.inbox.next()?;
        if let Event::Closed(peer, _) = event {
            self.peers.at(peer).end.report();
        }
        Some(event)
    }

    /// Makes a way to a peer, which is met over its connection.
    fn meet(&mut self, peer: PeerId, how: Connect) -> Result<(), Refused> {
        let at = self.peers.at(peer);
        if at.end.is_ending() {
            return Err(Refused::Gone(Gone::Reset));
        }
        if at.stage == Stage::Fabric {
            return Ok(());
        }
        if self.goes_by_base(peer) {
            return self.base.connect(peer, how);
        }
        if self.peers.at(peer).stage == Stage::Idle {
            match self.base.connect(peer, how) {
                Ok(()) if self.provider.has_failed() => self.refuse(peer, "it has failed here"),
                Ok(()) => self.announce(peer),
                Err(Refused::Gone(why)) => return Err(Refused::Gone(why)),
                Err(_) => {}
            }
        }
        self.peers.want(peer);
        Err(Refused::Busy)
    }

    /// The bytes of the frame at hand, if it came by the fabric.
    fn at_hand(&self, frame: &Frame) -> Option<&[u8]> {
        let Some(Held::Fabric(_, _, came)) = self.inbox.held() else { return None };
        came.bytes(self.below.as_ref()).get(BEFORE..BEFORE + frame.len)
    }

    /// [`Parting::Forgotten`].
    fn forget(&mut self, peer: PeerId) {
        if self.channel(peer) != Channel::None || self.is_own(peer) {
            return;
        }
        self.base.dismiss(peer, Parting::Forgotten);
        self.reset(peer);
        self.peers.forget(peer);
    }

    /// [`Parting::CutOff`].
    fn disconnect(&mut self, peer: PeerId) {
        self.inbox.drop_frames_of(peer, &mut self.base, &mut self.below);
        self.cut(peer, None);
    }
}

impl<B: RmaLink, F: Below> Link for OfiLink<B, F> {
    fn addr(&self) -> Addr {
        self.base.addr()
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        let peer = self.base.peer(addr);
        self.peers.add(peer);
        peer
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.base.peer_addr(peer)
    }

    fn reaches(&self, addr: &Addr) -> Result<(), String> {
        self.base.reaches(addr)
    }

    fn path(&self, peer: PeerId) -> Path {
        if self.goes_by_base(peer) && !self.is_own(peer) { self.base.path(peer) } else { self.fabric_path() }
    }

    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        let Some(at) = self.peers.get(to) else { return self.base.send(to, head, body, off, len) };
        if at.end.is_ending() {
            return Err(Refused::Gone(Gone::Reset));
        }
        if at.stage == Stage::Fabric {
            return self.send_by_fabric(to, head, body, off, len);
        }
        if self.goes_by_base(to) {
            return self.base.send(to, head, body, off, len);
        }
        self.meet(to, Connect::ToSend).and(Err(Refused::Busy))
    }

    fn poll(&mut self) -> Option<Event> {
        debug_assert!(self.inbox.held().is_none(), "polled before the last frame was released");
        let slept = self.sleep.disarm();
        if self.inbox.is_empty() {
            self.poll_some();
        }
        let found = !self.inbox.is_empty();
        // What has ended a sleep may take more than one look, since the provider is asked by few calls at a
        // time.
        if (slept || found && self.sleep.is_vain()) && self.sleep.woke(found) {
            self.set_timer();
        }
        self.next_out()
    }

    fn poll_frame_from(&mut self, from: PeerId) -> Option<Frame> {
        if !self.has_frames_of(from) {
            return None;
        }
        match self.next_out() {
            Some(Event::Frame(frame)) => Some(frame),
            _ => None,
        }
    }

    fn has_frames_of(&self, from: PeerId) -> bool {
        self.inbox.is_next_from(from)
    }

    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        if let Some(Held::Base(held)) = self.inbox.held() {
            return self.base.read(held, off, dst);
        }
        let rest = self.at_hand(frame).and_then(|bytes| bytes.get(off..)).unwrap_or_default();
        let n = rest.len().min(dst.len());
        dst[..n].copy_from_slice(&rest[..n]);
        n
    }

    fn copy_out(&self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        if let Some(Held::Base(held)) = self.inbox.held() {
            return self.base.copy_out(held, off, dst, doff, len);
        }
        let rest = self.at_hand(frame).and_then(|bytes| bytes.get(off..)).unwrap_or_default();
        let n = rest.len().min(len).min(total(dst).saturating_sub(doff));
        hmem::write(dst, doff, &rest[..n])
    }

    fn release(&mut self, _frame: Frame) {
        match self.inbox.take_held() {
            Some(Held::Base(frame)) => self.inbox.release_base(&mut self.base, frame),
            Some(Held::Fabric(peer, generation, came)) => {
                came.give_back(self.below.as_mut());
                let at = &mut self.peers[peer];
                if let Some(channel) = at.channel.as_mut().filter(|_| at.generation == generation) {
                    channel.note_done();
                    self.send_room(peer);
                }
            }
            None => {}
        }
    }

    fn set(&mut self, setting: Setting<'_>) {
        match setting {
            // Frames of the base are handed out whole.
            Setting::Early => return,
            Setting::Kept => self.reports_kept = true,
            Setting::Patience(patience) => self.reading.set_patience(patience),
            Setting::StageDevices => {
                if let Some(below) = &mut self.below {
                    below.stage_devices();
                }
            }
            Setting::Budget(_) | Setting::ServeHost(_) => {}
        }
        self.base.set(setting);
    }

    fn keeps(&mut self, to: PeerId) -> bool {
        let Some(at) = self.peers.get_mut(to) else { return self.base.keeps(to) };
        // Its end is still to be reported.
        if at.end.is_losing() {
            return true;
        }
        let lost = at.end.take_lost();
        lost || self.keeps_frames(to) || self.goes_by_base(to) && self.base.keeps(to)
    }

    fn channel(&self, peer: PeerId) -> Channel {
        match self.peers.get(peer) {
            Some(at) if at.end.is_ending() => Channel::Ended,
            _ => self.base.channel(peer),
        }
    }

    fn connect(&mut self, peer: PeerId, how: Connect) -> Result<(), Refused> {
        match how {
            Connect::Now | Connect::ToSend => self.meet(peer, how),
            Connect::Expected if self.channel(peer) == Channel::None => self.base.connect(peer, how),
            Connect::Expected => Ok(()),
        }
    }

    fn has_room_to_spare(&mut self, to: PeerId, len: usize) -> bool {
        if self.goes_by_base(to) {
            return self.base.has_room_to_spare(to, len);
        }
        let at = self.peers.at(to);
        at.stage == Stage::Fabric
            && !at.upkeep.is_full()
            && at.channel.as_ref().is_some_and(|c| c.has_much_room())
    }

    fn settle(&mut self, last: bool) -> bool {
        self.settle_at_exit(last)
    }

    fn dismiss(&mut self, peer: PeerId, how: Parting) {
        match how {
            Parting::Forgotten => self.forget(peer),
            Parting::CutOff => self.disconnect(peer),
        }
    }

    fn arm(&mut self) -> bool {
        let nudged = self.sleep.take_nudge();
        let armed = !self.has_something(true) && self.may_sleep() && !nudged;
        self.sleep.set_armed(armed);
        if armed {
            self.falls_asleep();
        }
        armed
    }

    fn is_armed(&self) -> bool {
        self.sleep.is_armed()
    }

    fn wait_fd(&self, which: WaitFd) -> Option<RawFd> {
        match which {
            WaitFd::All => Some(self.sleep.fd()),
            WaitFd::Each(n) => self.fds().get(n).copied(),
            WaitFd::Worn => self.sleep.take_worn().or_else(|| self.base.wait_fd(which)),
        }
    }

    fn has_met(&mut self) -> bool {
        self.base.has_met()
    }

    fn describe(&self, peer: PeerId) -> String {
        let base = self.base.describe(peer);
        let stage = self.peers.get(peer).map_or(Stage::Idle, |at| at.stage);
        let Some(below) = &self.below else {
            return format!("{base}; no fabric: {}", self.provider.lacks());
        };
        let (name, detail) = (below.name(), below.detail());
        match stage {
            Stage::Fabric => {
                let payloads = self.payloads(peer);
                format!(
                    "{name} ({detail}), frames of {} bytes, {payloads}; set up over tcp, {base}",
                    self.provider.max_frame()
                )
            }
            Stage::Base => {
                let why = self.peers.get(peer).map(|at| at.meeting.refused()).unwrap_or_default();
                format!("{base}; not {name}: {why}")
            }
            Stage::Idle | Stage::Meeting => format!("{name} ({detail}), not connected; tcp {base}"),
        }
    }

    fn standing(&self) -> Vec<Standing> {
        let offers = match &self.below {
            Some(below) => {
                let refused = match self.provider.lacks() {
                    "" => String::new(),
                    lacks => format!("; refused before it: {lacks}"),
                };
                let (name, detail) = (below.name(), below.detail());
                Ok(format!("over {name} ({detail}), frames of {} bytes{refused}", self.provider.max_frame()))
            }
            None => Err(self.provider.lacks().to_owned()),
        };
        let base = self.base.standing().into_iter().map(|base| {
            let only = |what| format!("only meets peers for ofi, and is not to carry frames; {what}");
            let offers =
                if self.options.fallback { base.offers } else { base.offers.and_then(|w| Err(only(w))) };
            Standing { offers, ..base }
        });
        std::iter::once(Standing { link: "ofi", offers }).chain(base).collect()
    }
}

/// Calls a method of the connection for a peer whose frames go by it.
macro_rules! by_base {
    ($self:ident, $peer:ident, $method:ident($($arg:expr),*), $else:expr) => {
        if $self.goes_by_base($peer) { $self.base.$method($peer, $($arg),*) } else { $else }
    };
}

/// By the fabric payloads come in frames, or are read by their receivers.
impl<B: RmaLink, F: Below> RmaLink for OfiLink<B, F> {
    fn access(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        if self.goes_by_base(peer) { self.base.access(way, peer, access) } else { Err(NoDirect::Never) }
    }

    fn start(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        if self.goes_by_base(peer) {
            self.base.start(way, peer, access)
        } else {
            self.start_read(way, peer, access)
        }
    }

    fn cancel(&mut self, op: OpId) {
        if is_read(op) { self.cancel_read(op) } else { self.base.cancel(op) }
    }

    fn export_handles(&mut self, to: PeerId, iov: &[Span]) -> Option<Vec<Handle>> {
        by_base!(self, to, export_handles(iov), self.lend(to, iov))
    }

    fn note_handle(&mut self, peer: PeerId, what: HandleNote<'_>) {
        if self.goes_by_base(peer) {
            return self.base.note_handle(peer, what);
        }
        match what {
            HandleNote::Exported(handle) => self.peers.at(peer).dealings.mark_exported(handle),
            HandleNote::Imported(handle) => self.note_imported(peer, handle),
            HandleNote::Retired(iov) => self.end_leases(peer, iov),
        }
    }

    fn devices(&self, peer: PeerId, theirs: &[Seg], ours: &[Span]) -> Devices {
        by_base!(self, peer, devices(theirs, ours), Devices::Unknown)
    }

    fn pieces_open(&mut self, with: PeerId) -> Option<PieceCounter> {
        by_base!(self, with, pieces_open(), None)
    }

    fn pieces_claim(&mut self, with: PeerId, counter: PieceCounter, mine: bool, of: u16) -> Option<u16> {
        by_base!(self, with, pieces_claim(counter, mine, of), None)
    }

    fn pieces_begun(&self, with: PeerId, counter: PieceCounter) -> bool {
        by_base!(self, with, pieces_begun(counter), false)
    }

    fn pieces_close(&mut self, with: PeerId, counter: PieceCounter) {
        by_base!(self, with, pieces_close(counter), ());
    }

    fn published(&self, by: PeerId, key: u64) -> Option<(Region, RegionVersion)> {
        by_base!(self, by, published(key), None)
    }

    fn allow(&mut self, what: Allow<'_>) {
        match what {
            Allow::Request(to, request) if !self.goes_by_base(to) => self.give_again(to, request),
            _ => self.base.allow(what),
        }
    }

    fn revoke(&mut self, what: Revoke) -> Result<(), InUse> {
        match what {
            Revoke::Request(from, request) if !self.goes_by_base(from) => self.take_back(from, request),
            Revoke::All => {
                let lent = self.take_back_all();
                self.base.revoke(what).and(lent)
            }
            _ => self.base.revoke(what),
        }
    }
}

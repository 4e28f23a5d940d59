//! The engine's calls.

use std::os::fd::RawFd;

use hmem::{Span, total};
use link_api::{
    Allow, Channel, Connect, Devices, Direct, Event, Frame, FrameLink, FrameSource, Gone, HandleNote, InUse,
    LandAt, Landing, Link, NoDirect, Once, OpId, Parting, Path, PeerId, PieceCounter, PollFrame, Refused,
    Region, RegionVersion, Revoke, RmaLink, Sent, Setting, SleepLink, Standing, WaitFd, Way,
};
use wire::{Addr, Handle, Seg};

use crate::channel::BEFORE;
use crate::dealings::is_read;
use crate::link::BelowLink;
use crate::network::{About, Below};
use crate::parts::inbox::Held;
use crate::peer::Stage;

impl<B: RmaLink, F: Below> BelowLink<B, F> {
    fn next_out(&mut self) -> Option<Event> {
        let event = self.net.inbox.next()?;
        match event {
            Event::Closed(peer, _) => self.net.peers.at(peer).end.report(),
            Event::Written(..) => self.release_held(),
            _ => {}
        }
        Some(event)
    }

    /// What is at hand was taken.
    #[inline(always)]
    fn release_held(&mut self) {
        let (peer, generation) = match self.net.inbox.take_held() {
            Some(Held::Base(frame)) => return self.net.inbox.release_base(&mut self.net.base, frame),
            Some(Held::Fabric(peer, generation, came)) => {
                came.give_back(self.net.below.as_mut());
                (peer, generation)
            }
            Some(Held::Written(peer, generation)) => (peer, generation),
            None => return,
        };
        let (at, window) = (&mut self.net.peers[peer], self.net.provider.window());
        if let Some(channel) = at.channel.as_mut().filter(|_| at.generation == generation) {
            channel.note_done();
            if channel.owes_room(window) {
                self.net.send_room(peer);
            }
        }
    }

    /// Makes a way to a peer, which is met over its connection.
    fn meet(&mut self, peer: PeerId, how: Connect) -> Result<(), Refused> {
        let at = self.net.peers.at(peer);
        if at.end.is_ending() {
            return Err(Refused::Gone(Gone::Reset));
        }
        if at.stage == Stage::Fabric {
            return Ok(());
        }
        if self.net.goes_by_base(peer) {
            return self.net.base.connect(peer, how);
        }
        if self.net.peers.at(peer).stage == Stage::Idle {
            match self.net.base.connect(peer, how) {
                Ok(()) if self.net.provider.has_failed() => self.net.refuse(peer, "it has failed here"),
                Ok(()) => self.net.announce(peer),
                Err(Refused::Gone(why)) => return Err(Refused::Gone(why)),
                Err(_) => {}
            }
        }
        self.net.peers.want(peer);
        Err(Refused::Busy)
    }

    /// The bytes of the frame at hand from there on, if it came by the fabric.
    #[inline(always)]
    fn at_hand(&self, frame: &Frame, off: usize) -> Option<&[u8]> {
        let Some(Held::Fabric(_, _, came)) = self.net.inbox.held() else { return None };
        debug_assert_eq!(came.len(), BEFORE + frame.len, "the frame that was handed out last");
        came.bytes(self.net.below.as_ref()).get(off.saturating_add(BEFORE)..)
    }

    /// Has peers access a registration no more.
    fn conceal(&mut self, key: u64) -> Result<(), InUse> {
        self.net.with_memory(|memory| memory.conceal(key));
        self.wait_for_ending(Some(key))
    }

    /// [`Parting::Forgotten`].
    fn forget(&mut self, peer: PeerId) {
        if self.channel(peer) != Channel::None || self.net.is_own(peer) {
            return;
        }
        self.net.base.dismiss(peer, Parting::Forgotten);
        self.net.reset(peer);
        self.net.peers.forget(peer);
    }

    /// [`Parting::CutOff`].
    fn disconnect(&mut self, peer: PeerId) {
        self.net.inbox.drop_frames_of(peer, &mut self.net.base, &mut self.net.below);
        self.net.cut(peer, None);
    }
}

impl<B: RmaLink, F: Below> Link for BelowLink<B, F> {
    fn addr(&self) -> Addr {
        self.net.base.addr()
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        let peer = self.net.base.peer(addr);
        self.net.peers.add(peer);
        peer
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.net.base.peer_addr(peer)
    }

    fn reaches(&self, addr: &Addr) -> Result<(), String> {
        self.net.base.reaches(addr)
    }

    fn path(&self, peer: PeerId) -> Path {
        if self.net.goes_by_base(peer) && !self.net.is_own(peer) {
            self.net.base.path(peer)
        } else {
            self.net.fabric_path()
        }
    }

    fn set(&mut self, setting: Setting<'_>) {
        match setting {
            // Frames of the base are handed out whole.
            Setting::Early => return,
            Setting::Kept => self.reports_kept = true,
            Setting::Patience(patience) => self.net.reading.set_patience(patience),
            Setting::StageDevices => self.net.provider.stage_devices(),
            Setting::Budget(_) | Setting::ServeHost(_) => {}
        }
        self.net.base.set(setting);
    }

    fn channel(&self, peer: PeerId) -> Channel {
        match self.net.peers.get(peer) {
            Some(at) if at.end.is_ending() => Channel::Ended,
            _ => self.net.base.channel(peer),
        }
    }

    fn connect(&mut self, peer: PeerId, how: Connect) -> Result<(), Refused> {
        match how {
            Connect::Now | Connect::ToSend => self.meet(peer, how),
            Connect::Expected if self.channel(peer) == Channel::None => self.net.base.connect(peer, how),
            Connect::Expected => Ok(()),
        }
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

    fn describe(&self, peer: PeerId) -> String {
        let base = self.net.base.describe(peer);
        let stage = self.net.peers.get(peer).map_or(Stage::Idle, |at| at.stage);
        let Some(below) = &self.net.below else {
            return format!("{base}; no fabric: {}", self.net.provider.lacks());
        };
        let About { name, detail, .. } = below.about();
        match stage {
            Stage::Fabric => {
                let payloads = self.net.payloads(peer);
                let registered = match below.registered() {
                    text if text.is_empty() => text,
                    text => format!(", registered: {text}"),
                };
                format!(
                    "{name} ({detail}), frames of {} bytes, {payloads}{registered}; set up over tcp, {base}",
                    self.net.provider.max_frame()
                )
            }
            Stage::Base => {
                let why = self.net.peers.get(peer).map(|at| at.meeting.refused()).unwrap_or_default();
                format!("{base}; not {name}: {why}")
            }
            Stage::Idle | Stage::Meeting => format!("{name} ({detail}), not connected; tcp {base}"),
        }
    }

    fn standing(&self) -> Vec<Standing> {
        let offers = match &self.net.below {
            Some(below) => {
                let refused = match self.net.provider.lacks() {
                    "" => String::new(),
                    lacks => format!("; refused before it: {lacks}"),
                };
                let About { name, detail, .. } = below.about();
                Ok(format!(
                    "over {name} ({detail}), frames of {} bytes{refused}",
                    self.net.provider.max_frame()
                ))
            }
            None => Err(self.net.provider.lacks().to_owned()),
        };
        let base = self.net.base.standing().into_iter().map(|base| {
            let only = |what| format!("only meets peers for {}, and is not to carry frames; {what}", F::LINK);
            let offers =
                if self.net.options.fallback { base.offers } else { base.offers.and_then(|w| Err(only(w))) };
            Standing { offers, ..base }
        });
        std::iter::once(Standing { link: F::LINK, offers }).chain(base).collect()
    }
}

impl<B: RmaLink, F: Below> FrameLink for BelowLink<B, F> {
    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        let Some(at) = self.net.peers.get(to) else { return self.net.base.send(to, head, body, off, len) };
        if at.end.is_ending() {
            return Err(Refused::Gone(Gone::Reset));
        }
        if at.stage == Stage::Fabric {
            let kept = self.net.send_by_fabric(to, (head, body, off, len), self.reports_kept)?;
            return Ok(if kept { Sent::Kept } else { Sent::Done });
        }
        if self.net.goes_by_base(to) {
            return self.net.base.send(to, head, body, off, len);
        }
        self.meet(to, Connect::ToSend).and(Err(Refused::Busy))
    }

    fn poll(&mut self) -> Option<Event> {
        debug_assert!(self.net.inbox.held().is_none(), "polled before the last frame was released");
        let slept = self.net.sleep.disarm();
        if slept {
            self.net.sweep_idle();
        }
        if self.net.inbox.is_empty() {
            self.poll_some();
        }
        let found = !self.net.inbox.is_empty();
        if !found && !slept {
            return None;
        }
        // What has ended a sleep may take more than one look, since the provider is asked by few calls at a
        // time.
        if (slept || found && self.net.sleep.is_vain()) && self.net.sleep.woke(found) {
            self.net.set_timer();
        }
        self.next_out()
    }

    fn poll_frame(&mut self, of: FrameSource) -> PollFrame {
        match of {
            FrameSource::Any if !self.net.sleep.is_armed() && !self.net.sleep.is_vain() => {
                self.net.sleep.disarm();
                if self.net.inbox.is_empty() {
                    self.poll_some();
                }
                if self.net.inbox.is_empty() {
                    return PollFrame::Nothing;
                }
            }
            FrameSource::Next(from) if self.has_frames_of(from) => {}
            _ => return PollFrame::Unknown,
        }
        self.net.inbox.next_frame().map_or(PollFrame::Unknown, PollFrame::Frame)
    }

    fn has_frames_of(&self, from: PeerId) -> bool {
        self.net.inbox.is_next_from(from)
    }

    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        if let Some(Held::Base(held)) = self.net.inbox.held() {
            return self.net.base.read(held, off, dst);
        }
        let rest = self.at_hand(frame, off).unwrap_or_default();
        let n = rest.len().min(dst.len());
        dst[..n].copy_from_slice(&rest[..n]);
        n
    }

    fn copy_out(&self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        if let Some(Held::Base(held)) = self.net.inbox.held() {
            return self.net.base.copy_out(held, off, dst, doff, len);
        }
        let rest = self.at_hand(frame, off).unwrap_or_default();
        let n = rest.len().min(len).min(total(dst).saturating_sub(doff));
        hmem::write(dst, doff, &rest[..n])
    }

    fn take(&mut self, frame: &Frame, off: usize, dst: Span, _apart: bool) -> bool {
        let Some(bytes) = self.at_hand(frame, off) else { return false };
        if bytes.len() > dst.len() || hmem::write(&[dst], 0, bytes) != bytes.len() {
            return false;
        }
        self.release_held();
        true
    }

    fn land(&mut self, _frame: Frame, to: Option<LandAt<'_>>) -> Landing {
        if to.is_some() {
            debug_assert!(false, "no frame begins here");
            return Landing::Over(false);
        }
        self.net.inbox.put_back();
        Landing::Left
    }

    fn release(&mut self, _frame: Frame) {
        self.release_held();
    }

    fn keeps(&mut self, to: PeerId) -> bool {
        let Some(at) = self.net.peers.get_mut(to) else { return self.net.base.keeps(to) };
        // Its end is still to be reported.
        if at.end.is_losing() {
            return true;
        }
        let lost = at.end.take_lost();
        lost || self.net.keeps_frames(to) || self.net.goes_by_base(to) && self.net.base.keeps(to)
    }

    fn has_room_to_spare(&mut self, to: PeerId, len: usize) -> bool {
        if self.net.goes_by_base(to) {
            return self.net.base.has_room_to_spare(to, len);
        }
        let at = self.net.peers.at(to);
        at.stage == Stage::Fabric && at.has_much_room()
    }
}

impl<B: RmaLink, F: Below> SleepLink for BelowLink<B, F> {
    fn arm(&mut self) -> bool {
        let nudged = self.net.sleep.take_nudge();
        let armed = !self.net.has_something(true) && self.net.may_sleep() && !nudged;
        self.net.sleep.set_armed(armed);
        if armed {
            self.net.falls_asleep();
        }
        armed
    }

    fn is_armed(&self) -> bool {
        self.net.sleep.is_armed()
    }

    fn wait_fd(&self, which: WaitFd) -> Option<RawFd> {
        match which {
            WaitFd::All => Some(self.net.sleep.fd()),
            WaitFd::Each(n) => self.net.fds().get(n).copied(),
            WaitFd::Worn => self.net.sleep.take_worn().or_else(|| self.net.base.wait_fd(which)),
        }
    }

    fn has_met(&mut self) -> bool {
        self.net.base.has_met()
    }
}

/// Calls a method of the connection for a peer whose frames go by it.
macro_rules! by_base {
    ($self:ident, $peer:ident, $method:ident($($arg:expr),*), $else:expr) => {
        if $self.net.goes_by_base($peer) { $self.net.base.$method($peer, $($arg),*) } else { $else }
    };
}

/// By the fabric payloads come in frames, or are read or written without the owner of the memory.
impl<B: RmaLink, F: Below> RmaLink for BelowLink<B, F> {
    fn access(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<(), NoDirect> {
        if self.net.goes_by_base(peer) {
            self.net.base.access(way, peer, access)
        } else {
            Err(NoDirect::Never)
        }
    }

    fn start(&mut self, way: Way, peer: PeerId, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        if self.net.goes_by_base(peer) {
            self.net.base.start(way, peer, access)
        } else {
            self.net.with_accesses(|memory| memory.start_access(way, peer, access))
        }
    }

    fn start_once(&mut self, peer: PeerId, once: Once, access: &Direct<'_>) -> Result<OpId, NoDirect> {
        if self.net.goes_by_base(peer) {
            self.net.base.start_once(peer, once, access)
        } else {
            self.net.with_accesses(|memory| memory.start_once(peer, once, access))
        }
    }

    fn cancel(&mut self, op: OpId) {
        if is_read(op) {
            self.net.with_memory(|memory| memory.cancel_read(op))
        } else {
            self.net.base.cancel(op)
        }
    }

    fn export_handles(&mut self, to: PeerId, iov: &[Span], way: Way) -> Option<Vec<Handle>> {
        by_base!(self, to, export_handles(iov, way), self.net.with_memory(|memory| memory.lend(to, iov, way)))
    }

    fn note_handle(&mut self, peer: PeerId, what: HandleNote<'_>) {
        if self.net.goes_by_base(peer) {
            return self.net.base.note_handle(peer, what);
        }
        match what {
            HandleNote::Exported(handle) => self.net.peers.at(peer).dealings.mark_exported(handle),
            HandleNote::Imported(handle) => self.net.with_memory(|memory| memory.note_imported(peer, handle)),
            HandleNote::Retired(iov) => self.net.with_memory(|memory| memory.end_leases(peer, iov)),
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

    fn published(&mut self, by: PeerId, key: u64) -> Option<(Region, RegionVersion)> {
        if self.net.goes_by_base(by) {
            return self.net.base.published(by, key);
        }
        self.net.memory().published(by, key)
    }

    fn allow(&mut self, what: Allow<'_>) {
        match what {
            Allow::Request(to, request) if !self.net.goes_by_base(to) => {
                self.net.with_memory(|memory| memory.give_again(to, request))
            }
            Allow::Region(region, span) => {
                self.net.with_memory(|memory| memory.expose(*region, span));
                self.net.base.allow(what);
            }
            Allow::Request(..) => self.net.base.allow(what),
        }
    }

    fn revoke(&mut self, what: Revoke) -> Result<(), InUse> {
        match what {
            Revoke::Request(from, request) if !self.net.goes_by_base(from) => self.take_back(from, request),
            Revoke::Region(key) => {
                let own = self.conceal(key);
                self.net.base.revoke(what).and(own)
            }
            Revoke::All => {
                let lent = self.take_back_all();
                self.net.base.revoke(what).and(lent)
            }
            Revoke::Request(..) => self.net.base.revoke(what),
        }
    }
}

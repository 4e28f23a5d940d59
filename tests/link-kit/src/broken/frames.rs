//! Frames of a broken link.

use std::os::fd::RawFd;

use hmem::Span;
use link_api::{
    Channel, Connect, Cork, Event, Frame, FrameLink, FrameSource, Gone, LandAt, Landing, Link, Parting, Path,
    PeerId, PollFrame, Refused, RmaLink, Sent, Setting, SleepLink, Standing, WaitFd,
};
use wire::Addr;

use super::{Broken, Flaw, Item};

impl<L: RmaLink> Link for Broken<L> {
    fn addr(&self) -> Addr {
        self.name.unwrap_or_else(|| self.link.addr())
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        let peer = self.link.peer(addr);
        match self.freed {
            Some(freed) => freed,
            None if self.flaw == Flaw::OneNumberForTwo && peer.0 == 2 => PeerId(1),
            None => peer,
        }
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        if self.flaw == Flaw::ForgetsNames { self.addr() } else { self.link.peer_addr(peer) }
    }

    fn reaches(&self, addr: &Addr) -> Result<(), String> {
        self.link.reaches(addr)
    }

    fn path(&self, peer: PeerId) -> Path {
        let path = self.link.path(peer);
        match self.flaw {
            Flaw::SaysFramesAreShort => Path { max_frame: Path::LEAST_FRAME - 1, ..path },
            Flaw::ChangesPath if self.link.channel(peer) != Channel::None => {
                Path { eager: path.eager / 2, ..path }
            }
            _ => path,
        }
    }

    fn channel(&self, peer: PeerId) -> Channel {
        match (self.flaw, self.link.channel(peer)) {
            (Flaw::IsAlwaysConnected, Channel::None) => Channel::Open,
            (Flaw::IsNeverConnected, _) => Channel::None,
            (_, channel) => channel,
        }
    }

    fn connect(&mut self, peer: PeerId, how: Connect) -> Result<(), Refused> {
        match (how, self.flaw) {
            (Connect::Expected, Flaw::ExpectsNobody) => {}
            (Connect::Expected, Flaw::GivesUpThosePresent) => {
                self.queue.push_back(Item::Other(Event::Closed(peer, Gone::Refused)));
            }
            _ => return self.link.connect(peer, how),
        }
        Ok(())
    }

    fn set(&mut self, setting: Setting<'_>) {
        match (setting, self.flaw) {
            (Setting::ServeHost(_), Flaw::ServesHostAlways) => {}
            (Setting::ServeHost(_), Flaw::ServesHostNeverAgain) => self.link.set(Setting::ServeHost(false)),
            (Setting::ServeHost(_), _) => self.link.set(setting),
            _ => {}
        }
    }

    fn dismiss(&mut self, peer: PeerId, how: Parting) {
        match (how, self.flaw) {
            (Parting::Forgotten, Flaw::NeverForgets) => {}
            // Its number goes to whatever is met next.
            (Parting::Forgotten, Flaw::ForgetsConnected) => self.freed = Some(peer),
            (Parting::Forgotten, _) => self.link.dismiss(peer, how),
            (Parting::CutOff, Flaw::CutsNobodyOff) => {}
            (Parting::CutOff, Flaw::CutsAllOff) => {
                (0..=peer.0 + 1).for_each(|p| self.link.dismiss(PeerId(p), how));
            }
            (Parting::CutOff, _) => {
                let is_of = |item: &Item| matches!(item, Item::Frame(of, _) if *of == peer);
                self.queue.retain(|item| !is_of(item));
                self.link.dismiss(peer, how);
            }
        }
    }

    fn describe(&self, peer: PeerId) -> String {
        if self.flaw == Flaw::DescribesNothing { String::new() } else { self.link.describe(peer) }
    }

    fn standing(&self) -> Vec<Standing> {
        self.link.standing()
    }
}

impl<L: RmaLink> FrameLink for Broken<L> {
    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        self.flush();
        let off = if self.flaw == Flaw::ForgetsOffsetOfBody { 0 } else { off };
        if self.flaw == Flaw::CopiesLate && len > 0 {
            self.late = Some((to, head.to_vec(), body.to_vec(), off, len));
            return Ok(Sent::Done);
        }
        if self.corked && self.flaw == Flaw::StaysCorked {
            return Ok(Sent::Done);
        }
        let sent = self.link.send(to, head, body, off, len);
        match sent {
            Ok(_) if self.shows(Flaw::IsBusyThoughSent, 7) => Err(Refused::Busy),
            Err(Refused::Gone(_)) if self.flaw == Flaw::TakesFramesForNobody => Ok(Sent::Done),
            other => other,
        }
    }

    fn copy_last(&mut self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        if self.flaw == Flaw::TakesMoreWithLastCopy {
            self.pump(true);
            self.queue.pop_front();
        }
        self.copy_out(frame, off, dst, doff, len)
    }

    fn take(&mut self, _frame: &Frame, off: usize, dst: Span, _apart: bool) -> bool {
        let rest = self.rest(off);
        if rest.len() > dst.len() && self.flaw != Flaw::TakesAPart || self.flaw == Flaw::TakesNoFrame {
            return false;
        }
        hmem::write(&[dst], 0, &rest[..rest.len().min(dst.len())]);
        self.held = None;
        true
    }

    fn cork(&mut self, how: Cork) {
        self.corked = how == Cork::On;
        self.link.cork(how);
    }

    fn poll(&mut self) -> Option<Event> {
        self.pump(matches!(self.flaw, Flaw::SwapsFrames | Flaw::ReportsEndFirst));
        Some(match self.queue.pop_front()? {
            Item::Frame(from, bytes) => Event::Frame(self.hand_out(from, bytes)),
            Item::Other(event) => event,
        })
    }

    fn poll_frame(&mut self, of: FrameSource) -> PollFrame {
        if let FrameSource::Next(from) = of {
            self.pump(true);
            return self.pop_frame_of(from).map_or(PollFrame::Unknown, PollFrame::Frame);
        }
        if of != FrameSource::Any {
            return PollFrame::Unknown;
        }
        match self.queue.front() {
            None => {
                self.pump(false);
                PollFrame::Unknown
            }
            Some(Item::Other(_)) if self.flaw == Flaw::SaysNothingOfEnds => PollFrame::Nothing,
            Some(Item::Other(_)) => PollFrame::Unknown,
            Some(Item::Frame(..)) => match self.queue.pop_front() {
                Some(Item::Frame(from, bytes)) if !self.shows(Flaw::LosesFrameLookedAt, 3) => {
                    PollFrame::Frame(self.hand_out(from, bytes))
                }
                _ => PollFrame::Nothing,
            },
        }
    }

    fn land(&mut self, _frame: Frame, _to: Option<LandAt<'_>>) -> Landing {
        if let Some((from, bytes)) = self.held.take_if(|_| self.flaw != Flaw::LosesFramePutBack) {
            self.queue.push_front(Item::Frame(from, bytes));
        }
        self.held = None;
        Landing::Left
    }

    fn has_frames_of(&self, from: PeerId) -> bool {
        let is_of = |item: &Item| matches!(item, Item::Frame(of, _) if *of == from);
        self.flaw == Flaw::HasAlwaysFrames || self.queue.iter().any(is_of) || self.link.has_frames_of(from)
    }

    fn peek<const N: usize>(&self, frame: &Frame) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        let n = self.read(frame, 0, &mut bytes);
        (n == N || self.flaw == Flaw::PeeksTooFar).then_some(bytes)
    }

    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        let rest = self.rest(off);
        let n = rest.len().min(dst.len());
        dst[..n].copy_from_slice(&rest[..n]);
        if self.flaw == Flaw::HoldsNothing && self.link.has_frames_of(frame.from) {
            // What came after it is in its place.
            dst.iter_mut().for_each(|b| *b ^= 1);
        }
        n
    }

    fn copy_out(&self, _frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        let doff = if self.flaw == Flaw::ForgetsOffsetOfDestination { 0 } else { doff };
        let rest = self.rest(off);
        hmem::write(dst, doff, &rest[..rest.len().min(len)])
    }

    fn release(&mut self, _frame: Frame) {
        self.held = None;
    }

    fn has_room_to_spare(&mut self, to: PeerId, len: usize) -> bool {
        self.flaw == Flaw::HasAlwaysRoom || self.link.has_room_to_spare(to, len)
    }
}

impl<L: RmaLink> SleepLink for Broken<L> {
    fn is_armed(&self) -> bool {
        self.flaw == Flaw::SaysItIsArmed || self.queue.is_empty() && self.link.is_armed()
    }

    fn arm(&mut self) -> bool {
        self.flush();
        let blind = self.shows(Flaw::LosesWakeUpsSometimes, 50);
        match self.flaw {
            Flaw::NeverSleeps => false,
            Flaw::LosesWakeUps => true,
            Flaw::SleepsInSpiteOfFrames => {
                self.link.arm();
                true
            }
            _ => blind || self.queue.is_empty() && self.link.arm(),
        }
    }

    fn wait_fd(&self, which: WaitFd) -> Option<RawFd> {
        if which == WaitFd::Worn { None } else { self.link.wait_fd(which) }
    }
}

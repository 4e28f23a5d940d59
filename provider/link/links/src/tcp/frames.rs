//! The engine's calls.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Instant;

use hmem::{Span, total};
use link_api::{
    Connect, Cork, Event, Frame, FrameLink, FrameSource, Gone, LandAt, Landing, Link, OpId, Parting, Path,
    PeerId, PollFrame, Refused, RmaLink, Row, Sent, Setting, SleepLink, Standing, WaitFd, send_each,
};
use wire::Addr;
use wire::session::Control;

use crate::tcp::channel::connection::Channel;
use crate::tcp::channel::pool::MAX_FRAME;
use crate::tcp::channel::rails::Rails;
use crate::tcp::link::TcpLink;
use crate::tcp::receiving::Held;

impl Link for TcpLink {
    fn addr(&self) -> Addr {
        self.conns.own.addr()
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        self.conns.peers.named(addr)
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.conns.peers[peer].addr
    }

    fn reaches(&self, addr: &Addr) -> Result<(), String> {
        if addr.ip().is_unspecified() || addr.port() == 0 {
            return Err("that is no address of an endpoint".into());
        }
        match self.conns.own.source() {
            Some(own) if own.is_ipv4() != addr.ip().is_ipv4() => Err(format!(
                "this endpoint is bound to {}, and that address is of another version of IP: bind to an unspecified one",
                own.ip()
            )),
            _ => Ok(()),
        }
    }

    fn path(&self, _peer: PeerId) -> Path {
        self.conns.common_path()
    }

    fn set(&mut self, setting: Setting<'_>) {
        match setting {
            Setting::Early => self.conns.receiving.set_early(),
            Setting::Kept => self.conns.reports.report_kept(),
            Setting::Budget(budget) => self.conns.receiving.set_budget(budget),
            Setting::ServeHost(on) => self.meeting.names.serve_host(on),
            Setting::Patience(_) | Setting::StageDevices => {}
        }
    }

    fn channel(&self, peer: PeerId) -> link_api::Channel {
        let at = &self.conns.peers[peer];
        match at.cut || at.channel.as_deref().is_some_and(Channel::ends) {
            true => link_api::Channel::Ended,
            false if at.is_connected() => link_api::Channel::Open,
            false => link_api::Channel::None,
        }
    }

    fn connect(&mut self, peer: PeerId, how: Connect) -> Result<(), Refused> {
        if self.is_own(peer) {
            return Ok(());
        }
        match (how, &self.conns.peers[peer].channel) {
            (Connect::Expected, _) => {
                if !self.conns.peers[peer].is_connected() && self.conns.peers[peer].expected.is_none() {
                    self.conns.peers[peer].expected =
                        Some((Instant::now() + self.conns.options.connect_timeout, false));
                    self.calls().note_pending(peer);
                }
                return Ok(());
            }
            (Connect::ToSend, None) => return Err(self.send_unconnected(peer)),
            _ => {}
        }
        match &self.conns.peers[peer].channel {
            Some(channel) if !channel.ends() => Ok(()),
            Some(_) => Err(Refused::Gone(Gone::Reset)),
            None => {
                let found = self.calls().call(peer);
                if found == Err(Refused::Busy) {
                    self.conns.want(peer);
                }
                found
            }
        }
    }

    fn dismiss(&mut self, peer: PeerId, how: Parting) {
        match how {
            Parting::Forgotten => self.forget(peer),
            Parting::CutOff => self.disconnect(peer),
        }
    }

    fn answer(&mut self, peer: PeerId, front: &[u8]) -> bool {
        if !Control::is_one(front) {
            return false;
        }
        log::debug!(
            "{} -> {}: the peer announces an RDMA device or a provider for frames, and is answered that they go by tcp",
            self.addr(),
            self.peer_addr(peer)
        );
        if Control::awaits_answer(front) {
            // Where there is no room, frames of this side are on their way, which say the same.
            let _ = self.send(peer, &Control::Settle(false).encode(), &[], 0, 0);
        }
        true
    }

    fn lack(&self) -> Option<io::Error> {
        self.meeting.listening.lack().map(io::Error::from_raw_os_error)
    }

    fn describe(&self, peer: PeerId) -> String {
        let at = &self.conns.peers[peer];
        let state = match (&at.channel, &at.call) {
            (Some(_), _) => "connected",
            (None, Some(_)) => "being connected",
            (None, None) => "not connected",
        };
        let by = match at.addr.further().filter(|_| at.by_further && at.channel.is_some()) {
            Some(further) => format!(" to its further address {further}"),
            None => String::new(),
        };
        let key = if self.conns.options.secret { "a secret job key" } else { "a job key that is no secret" };
        format!(
            "{state}{by}{}, frames of {MAX_FRAME} bytes, {key}, gone after {} s of silence",
            at.channel.as_ref().map_or(String::new(), |channel| channel.describe_rails()),
            self.conns.options.timeout.as_secs()
        )
    }

    fn standing(&self) -> Vec<Standing> {
        let port = self.conns.own.addr().port();
        let further = match self.conns.own.addr().further() {
            Some(ip) => format!(", and {ip}:{port}"),
            None => String::new(),
        };
        let listens = match self.conns.own.source() {
            Some(own) => format!("listens on {own}{further}"),
            None => format!("listens on port {port} of every address of this host"),
        };
        let key = if self.conns.options.secret { "a secret job key" } else { "a job key that is no secret" };
        let rails = match self.conns.options.rails {
            1 => String::new(),
            most => {
                let all: Vec<_> = self.conns.railed.addrs().iter().map(SocketAddr::to_string).collect();
                format!("; up to {most} rails for each peer, at {}", all.join(", "))
            }
        };
        let offers = Ok(format!("{listens}; its name is {}{further}; {key}{rails}", self.conns.own.addr()));
        vec![Standing { link: "tcp", offers }]
    }
}

impl FrameLink for TcpLink {
    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        assert!(head.len() + len <= MAX_FRAME, "frame longer than Path::max_frame");
        debug_assert!(off + len <= total(body), "bytes {off}+{len} of {body:?}");
        let Some(channel) = &mut self.conns.peers[to].channel else {
            if self.is_own(to) {
                return self.send_own(head, body, off, len);
            }
            return Err(self.send_unconnected(to));
        };
        let (was_blocked, was_unsure) = (channel.is_blocked(), channel.is_unsure());
        let striped = channel.is_striped(head.len() + len);
        let cork = self.conns.cork.is_on() && !striped;
        let was_corked = channel.is_corked();
        let done = channel.send((head, body, off, len), cork);
        if cork && !was_corked && channel.is_corked() {
            self.conns.cork.add(to);
        }
        let kept = self.conns.reports.reports_kept() && channel.keeps();
        if was_blocked != channel.is_blocked() {
            self.conns.watch_room(to, was_blocked);
        } else if striped {
            self.conns.sync_rails(to);
        }
        match done {
            Ok(()) => {
                self.conns.looks.set_hot(to);
                if !was_unsure && self.conns.ticks.are_off() {
                    self.conns.tick_as_needed();
                }
            }
            Err(Refused::Busy) => self.conns.want(to),
            Err(Refused::Gone(_) | Refused::Fault) => self.conns.note_ready(to),
        }
        done.map(|()| if kept { Sent::Kept } else { Sent::Done })
    }

    fn poll(&mut self) -> Option<Event> {
        debug_assert!(self.conns.receiving.held().is_none(), "polled before the last frame was released");
        self.conns.sleep.begin_poll();
        if let Some(event) = self.next_event() {
            return Some(event);
        }
        self.service().poll();
        self.next_event()
    }

    fn poll_frame(&mut self, of: FrameSource) -> PollFrame {
        let from = match of {
            FrameSource::Next(from) => from,
            FrameSource::Any => return self.poll_frame_at_hand(),
            FrameSource::AnyAtHand | FrameSource::Only(_) => return PollFrame::Unknown,
        };
        if !self.has_frames_of(from) {
            return PollFrame::Unknown;
        }
        match self.conns.next_of(from) {
            Some(Event::Frame(frame)) => PollFrame::Frame(frame),
            // Its end, where what is there is no frame after all.
            other => {
                if let Some(event) = other {
                    self.conns.reports.push(event);
                }
                PollFrame::Unknown
            }
        }
    }

    fn has_frames_of(&self, from: PeerId) -> bool {
        let at = &self.conns.peers[from];
        let Some(channel) = at.channel.as_ref().filter(|_| !at.cut) else { return false };
        match self.conns.receiving.held() {
            Some(Held::Of(peer, len)) if *peer == from => channel.has_frame_behind(*len),
            _ => channel.has_frame(),
        }
    }

    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        match self.conns.receiving.held() {
            Some(Held::Of(peer, len)) => {
                debug_assert_eq!((*peer, *len), (frame.from, frame.len));
                self.conns.peers[*peer].channel.as_ref().map_or(0, |channel| channel.read(*len, off, dst))
            }
            // One that has begun.
            None => {
                let channel = self.conns.peers[frame.from].channel.as_ref();
                channel.map_or(0, |channel| channel.read_front(frame.len, off, dst))
            }
            Some(Held::Own(bytes)) => {
                let rest = bytes.get(off..).unwrap_or_default();
                let n = rest.len().min(dst.len());
                dst[..n].copy_from_slice(&rest[..n]);
                n
            }
        }
    }

    fn copy_out(&self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        match self.conns.receiving.held() {
            Some(Held::Of(peer, size)) => {
                debug_assert_eq!((*peer, *size), (frame.from, frame.len));
                let channel = self.conns.peers[*peer].channel.as_ref();
                channel.map_or(0, |channel| channel.copy_out((*size, off), dst, doff, len))
            }
            Some(Held::Own(bytes)) => {
                let rest = bytes.get(off..).unwrap_or_default();
                hmem::write(dst, doff, &rest[..rest.len().min(len)])
            }
            None => 0,
        }
    }

    fn copy_last(&mut self, frame: &Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        let Some(Held::Of(peer, size)) = self.conns.receiving.held() else {
            return self.copy_out(frame, off, dst, doff, len);
        };
        let (peer, size) = (*peer, *size);
        let channel = self.conns.peers[peer].channel.as_mut();
        channel.map_or(0, |channel| channel.copy_last((size, off), dst, doff, len))
    }

    fn cork(&mut self, how: Cork) {
        self.conns.cork.set(how);
        while let Some(peer) = self.conns.cork.next() {
            self.conns.uncork(peer);
        }
    }

    fn release(&mut self, _frame: Frame) {
        self.release_held();
    }

    fn keeps(&mut self, to: PeerId) -> bool {
        if self.conns.peers[to].cut || self.conns.reports.has_end_of(to) {
            return true;
        }
        let at = &mut self.conns.peers[to];
        let lost = std::mem::take(&mut at.lost);
        lost || at.channel.as_deref().is_some_and(Channel::keeps)
    }

    fn land(&mut self, frame: Frame, to: Option<LandAt<'_>>) -> Landing {
        let peer = frame.from;
        let Some(LandAt { off, dst, doff, len }) = to else {
            match self.conns.receiving.take_held() {
                Some(Held::Of(..)) => self.conns.note_ready(peer),
                Some(Held::Own(bytes)) => self.to_self.put_back(bytes),
                None => {
                    if let Some(channel) = &mut self.conns.peers[peer].channel {
                        channel.leave();
                    }
                }
            }
            return Landing::Left;
        };
        let op = self.conns.receiving.number();
        let Some(channel) = &mut self.conns.peers[peer].channel else { return Landing::Over(false) };
        let current = channel.current();
        let found = channel.land(op, (frame.len, off), dst, doff, len);
        if found.is_some() || channel.is_at_end() {
            // So that it is known whether there is more.
            self.conns.note_ready(peer);
        }
        if current != 0 {
            self.conns.sync_rails(peer);
        }
        found.map_or(Landing::InFlight(op), Landing::Over)
    }

    fn has_room_to_spare(&mut self, to: PeerId, _: usize) -> bool {
        let own = self.is_own(to) && self.to_self.has_room_to_spare();
        let Some(channel) = &mut self.conns.peers[to].channel else { return own };
        let rails = channel.rails_mut().into_iter().flat_map(Rails::channels_mut);
        rails.filter(|rail| rail.is_blocked()).for_each(Channel::flush);
        if channel.is_blocked() {
            channel.flush();
            self.conns.watch_room(to, true);
            self.conns.note_ready(to);
        }
        self.conns.peers[to].channel.as_ref().is_some_and(|channel| channel.has_much_room())
    }
}

impl SleepLink for TcpLink {
    fn arm(&mut self) -> bool {
        self.conns.watch_again();
        let armed = !self.has_something(true);
        self.conns.sleep.set_armed(armed);
        armed
    }

    fn is_armed(&self) -> bool {
        self.conns.sleep.is_armed()
    }

    fn wait_fd(&self, which: WaitFd) -> Option<RawFd> {
        which.only(self.conns.sleep.fd())
    }

    fn has_met(&mut self) -> bool {
        self.meeting.take_met()
    }
}

/// Payloads are requested, and come in frames that need no further copy here.
impl RmaLink for TcpLink {
    fn send_row(&mut self, to: PeerId, row: Row<'_>) -> Result<usize, Refused> {
        let longest = row.heads.iter().map(|head| head.len()).max().unwrap_or(0) + row.most.min(row.len);
        assert!(longest <= MAX_FRAME, "a frame longer than Path::max_frame");
        debug_assert!(row.off + row.len <= total(row.body), "a row behind the end of {:?}", row.body);
        let Some(channel) = &mut self.conns.peers[to].channel else { return send_each(self, to, row) };
        let was_unsure = channel.is_unsure();
        let Some(done) = channel.send_row(&row) else { return send_each(self, to, row) };
        // It was not blocked before.
        self.conns.watch_room(to, false);
        match done {
            Ok(_) => {
                self.conns.looks.set_hot(to);
                if !was_unsure && self.conns.ticks.are_off() {
                    self.conns.tick_as_needed();
                }
            }
            Err(Refused::Busy) => self.conns.want(to),
            Err(Refused::Gone(_) | Refused::Fault) => self.conns.note_ready(to),
        }
        done
    }

    fn cancel(&mut self, op: OpId) {
        let channels = self.conns.peers.as_mut_slice().iter_mut().filter_map(|at| at.channel.as_mut());
        let _ = channels.into_iter().any(|channel| channel.cancel(op));
        self.conns.reports.cancel(op);
    }
}

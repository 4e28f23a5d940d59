//! The engine's calls.

use std::io;
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::time::Instant;

use hmem::{Span, total};
use link_api::{Event, Frame, Gone, Landing, Link, OpId, Path, PeerId, Refused, RmaLink, Standing};
use wire::Addr;

use super::channel::connection::Channel;
use super::channel::pool::MAX_FRAME;
use super::channel::rails::Rails;
use super::link::{Held, TcpLink};

/// Most bytes on their way from an endpoint to itself.
const OWN: usize = 256 << 10;

impl TcpLink {
    fn send_own(&mut self, head: &[u8], body: &[Span], off: usize, len: usize) -> Result<(), Refused> {
        if self.own_bytes > OWN {
            return Err(Refused::Busy);
        }
        let mut bytes = vec![0; head.len() + len];
        bytes[..head.len()].copy_from_slice(head);
        if hmem::read(body, off, &mut bytes[head.len()..]) != len {
            return Err(Refused::Fault);
        }
        // No descriptor tells of it.
        self.armed = false;
        self.own_bytes += bytes.len() + 1;
        self.own.push_back(bytes);
        Ok(())
    }

    fn next_own(&mut self) -> Option<Event> {
        let bytes = self.own.pop_front()?;
        self.own_bytes -= bytes.len() + 1;
        let (len, addr) = (bytes.len(), self.addr);
        self.held = Some(Held::Own(bytes));
        Some(Event::Frame(Frame { from: self.id_of(&addr), len, slot: 0 }))
    }

    /// A send finds no way to this peer.
    fn want(&mut self, peer: PeerId) {
        if !std::mem::replace(&mut self.at_mut(peer).wants, true) {
            self.wanting.push(peer);
        }
    }

    /// A send to a peer without a channel: why nothing can be sent yet, or at all.
    #[cold]
    fn send_unconnected(&mut self, to: PeerId) -> Refused {
        if let Some(why) = self.at_mut(to).take_owed() {
            return Refused::Gone(why);
        }
        match self.connect(to) {
            Ok(()) | Err(Refused::Busy) => {
                self.at_mut(to).keep_send_waiting();
                Refused::Busy
            }
            Err(why) => {
                self.at_mut(to).end_send_waiting();
                why
            }
        }
    }

    fn is_own(&self, peer: PeerId) -> bool {
        self.at(peer).addr == self.addr
    }

    fn next_event(&mut self) -> Option<Event> {
        if self.ready.is_empty() && self.events.is_empty() && self.own.is_empty() {
            return None;
        }
        self.events.pop_front().or_else(|| self.next_own()).or_else(|| self.next_ready())
    }
}

impl Link for TcpLink {
    fn addr(&self) -> Addr {
        self.addr
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        self.id_of(addr)
    }

    fn serve_host(&mut self, on: bool) {
        self.names.serve_host(on);
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.at(peer).addr
    }

    fn reaches(&self, addr: &Addr) -> Result<(), String> {
        if addr.ip().is_unspecified() || addr.port() == 0 {
            return Err("that is no address of an endpoint".into());
        }
        match self.source {
            Some(own) if own.is_ipv4() != addr.ip().is_ipv4() => Err(format!(
                "this endpoint is bound to {}, and that address is of another version of IP: bind to an unspecified one",
                own.ip()
            )),
            _ => Ok(()),
        }
    }

    fn path(&self, _peer: PeerId) -> Path {
        self.common_path()
    }

    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
        assert!(head.len() + len <= MAX_FRAME, "frame longer than Path::max_frame");
        debug_assert!(off + len <= total(body), "bytes {off}+{len} of {body:?}");
        let Some(channel) = &mut self.peers[to.0 as usize].channel else {
            if self.is_own(to) {
                return self.send_own(head, body, off, len);
            }
            return Err(self.send_unconnected(to));
        };
        let (was_blocked, was_unsure) = (channel.is_blocked(), channel.is_unsure());
        let striped = channel.is_striped(head.len() + len);
        let done = channel.send(head, body, off, len);
        let kept = self.tells_kept && channel.keeps();
        if was_blocked != channel.is_blocked() {
            self.watch_room(to, was_blocked);
        } else if striped {
            self.sync_rails(to);
        }
        match done {
            Ok(()) => {
                self.hot = Some(to);
                if !was_unsure && self.period.is_zero() {
                    self.set_timer();
                }
                if kept {
                    return Err(Refused::Kept);
                }
            }
            Err(Refused::Busy | Refused::Kept) => self.want(to),
            Err(Refused::Gone(_) | Refused::Fault) => self.note_ready(to),
        }
        done
    }

    fn poll(&mut self) -> Option<Event> {
        debug_assert!(self.held.is_none(), "polled before the last frame was released");
        self.slept = std::mem::take(&mut self.armed);
        self.bell.clear();
        if let Some(event) = self.next_event() {
            return Some(event);
        }
        self.look();
        self.next_event()
    }

    fn poll_frame_from(&mut self, from: PeerId) -> Option<Frame> {
        if !self.has_frames_of(from) {
            return None;
        }
        match self.next_of(from) {
            Some(Event::Frame(frame)) => Some(frame),
            // Its end, where what is there is no frame after all.
            other => {
                self.events.extend(other);
                None
            }
        }
    }

    fn has_frames_of(&self, from: PeerId) -> bool {
        let at = self.at(from);
        let Some(channel) = at.channel.as_ref().filter(|_| !at.cut) else { return false };
        match self.held {
            Some(Held::Of(peer, len)) if peer == from => channel.has_frame_behind(len),
            _ => channel.has_frame(),
        }
    }

    fn read(&self, frame: &Frame, off: usize, dst: &mut [u8]) -> usize {
        match &self.held {
            Some(Held::Of(peer, len)) => {
                debug_assert_eq!((*peer, *len), (frame.from, frame.len));
                self.at(*peer).channel.as_ref().map_or(0, |channel| channel.read(*len, off, dst))
            }
            // One that has begun.
            None => {
                let channel = self.at(frame.from).channel.as_ref();
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
        match &self.held {
            Some(Held::Of(peer, size)) => {
                debug_assert_eq!((*peer, *size), (frame.from, frame.len));
                let channel = self.at(*peer).channel.as_ref();
                channel.map_or(0, |channel| channel.copy_out((*size, off), dst, doff, len))
            }
            Some(Held::Own(bytes)) => {
                let rest = bytes.get(off..).unwrap_or_default();
                hmem::write(dst, doff, &rest[..rest.len().min(len)])
            }
            None => 0,
        }
    }

    fn release(&mut self, _frame: Frame) {
        let Some(Held::Of(peer, len)) = self.held.take() else { return };
        if let Some(channel) = &mut self.peers[peer.0 as usize].channel {
            let turn = channel.turn();
            if channel.release(len) {
                self.note_ready(peer);
            }
            if turn != 0 {
                self.sync_rails(peer);
            }
        }
    }

    fn set_early(&mut self) {
        self.early = true;
    }

    fn set_budget(&mut self, budget: &link_api::Budget) {
        self.pool.set_budget(budget);
    }

    fn tell_kept(&mut self) {
        self.tells_kept = true;
    }

    fn keeps(&mut self, to: PeerId) -> bool {
        let ends = |event: &Event| matches!(event, Event::Closed(peer, _) if *peer == to);
        if self.at(to).cut || self.events.iter().any(ends) {
            return true;
        }
        let at = self.at_mut(to);
        let lost = std::mem::take(&mut at.lost);
        lost || at.channel.as_deref().is_some_and(Channel::keeps)
    }

    fn land(&mut self, frame: Frame, off: usize, dst: &[Span], doff: usize, len: usize) -> Landing {
        let peer = frame.from;
        let op = OpId(self.landings);
        self.landings += 1;
        let Some(channel) = &mut self.peers[peer.0 as usize].channel else { return Landing::Over(false) };
        let turn = channel.turn();
        let found = channel.land(op, (frame.len, off), dst, doff, len);
        if found.is_some() || channel.is_at_end() {
            // So that it is known whether there is more.
            self.note_ready(peer);
        }
        if turn != 0 {
            self.sync_rails(peer);
        }
        found.map_or(Landing::InFlight(op), Landing::Over)
    }

    fn leave(&mut self, frame: Frame) {
        if let Some(channel) = &mut self.peers[frame.from.0 as usize].channel {
            channel.leave();
        }
    }

    fn is_gone(&self, peer: PeerId) -> bool {
        let at = self.at(peer);
        at.cut || at.channel.as_deref().is_some_and(Channel::ends)
    }

    fn is_connected(&self, peer: PeerId) -> bool {
        self.at(peer).is_connected()
    }

    fn connect(&mut self, peer: PeerId) -> Result<(), Refused> {
        if self.is_own(peer) {
            return Ok(());
        }
        match &self.at(peer).channel {
            Some(channel) if !channel.ends() => Ok(()),
            Some(_) => Err(Refused::Gone(Gone::Reset)),
            None => {
                let found = self.call(peer);
                if found == Err(Refused::Busy) {
                    self.want(peer);
                }
                found
            }
        }
    }

    fn connect_to_send(&mut self, peer: PeerId) -> Result<(), Refused> {
        match self.at(peer).channel {
            None if !self.is_own(peer) => Err(self.send_unconnected(peer)),
            _ => self.connect(peer),
        }
    }

    fn expect(&mut self, peer: PeerId) {
        if !self.is_connected(peer) && !self.is_own(peer) && self.at(peer).expected.is_none() {
            self.at_mut(peer).expected = Some((Instant::now() + self.options.connect_timeout, false));
            self.note_pending(peer);
        }
    }

    fn has_room_to_spare(&mut self, to: PeerId, _: usize) -> bool {
        let own = self.is_own(to) && 2 * self.own_bytes < OWN;
        let Some(channel) = &mut self.peers[to.0 as usize].channel else { return own };
        let rails = channel.rails_mut().into_iter().flat_map(Rails::channels_mut);
        rails.filter(|rail| rail.is_blocked()).for_each(Channel::flush);
        if channel.is_blocked() {
            channel.flush();
            self.watch_room(to, true);
            self.note_ready(to);
        }
        self.at(to).channel.as_ref().is_some_and(|channel| channel.has_much_room())
    }

    fn forget(&mut self, peer: PeerId) {
        let addr = self.at(peer).addr;
        if self.is_connected(peer) || self.ids.get(&addr) != Some(&peer) || addr == self.addr {
            return;
        }
        self.drop_call(peer);
        self.ids.remove(&addr);
        self.pending.retain(|known| *known != peer);
        self.wanting.retain(|known| *known != peer);
        self.events.retain(|event| !matches!(event, Event::Closed(known, _) if *known == peer));
        let at = self.at_mut(peer);
        (at.wants, at.expected) = (false, None);
        self.free.push(peer);
    }

    fn disconnect(&mut self, peer: PeerId) {
        let at = &mut self.peers[peer.0 as usize];
        let Some(mut channel) = at.channel.take() else { return };
        (at.cut, at.lost) = (true, channel.keeps());
        self.events.extend(channel.lands().map(|op| Event::Done(op, false)));
        channel.end_rails(&self.poller);
        self.poller.remove(channel.fd());
        ipc::socket::shutdown(channel.fd());
        self.agreed.ended(&at.addr, channel.conn());
        self.note_ready(peer);
    }

    fn arm(&mut self) -> bool {
        self.watch_alone();
        self.armed = !self.has_something(true);
        self.armed
    }

    fn is_armed(&self) -> bool {
        self.armed
    }

    fn wait_fd(&self) -> Option<RawFd> {
        Some(self.poller.fd())
    }

    fn has_met(&mut self) -> bool {
        std::mem::take(&mut self.met)
    }

    fn lack(&self) -> Option<io::Error> {
        self.lacks_now()
    }

    fn describe(&self, peer: PeerId) -> String {
        let at = self.at(peer);
        let state = match (&at.channel, &at.call) {
            (Some(_), _) => "connected",
            (None, Some(_)) => "being connected",
            (None, None) => "not connected",
        };
        let by = match at.addr.further().filter(|_| at.by_further && at.channel.is_some()) {
            Some(further) => format!(" to its further address {further}"),
            None => String::new(),
        };
        let key = if self.options.secret { "a secret job key" } else { "a job key that is no secret" };
        format!(
            "{state}{by}{}, frames of {MAX_FRAME} bytes, {key}, gone after {} s of silence",
            at.channel.as_ref().map_or(String::new(), |channel| channel.describe_rails()),
            self.options.timeout.as_secs()
        )
    }

    fn standing(&self) -> Vec<Standing> {
        let port = self.addr.port();
        let further = match self.addr.further() {
            Some(ip) => format!(", and {ip}:{port}"),
            None => String::new(),
        };
        let listens = match self.source {
            Some(own) => format!("listens on {own}{further}"),
            None => format!("listens on port {port} of every address of this host"),
        };
        let key = if self.options.secret { "a secret job key" } else { "a job key that is no secret" };
        let rails = match self.options.rails {
            1 => String::new(),
            most => {
                let all: Vec<_> = self.rails_at.iter().map(SocketAddr::to_string).collect();
                format!("; up to {most} rails for each peer, at {}", all.join(", "))
            }
        };
        let offers = Ok(format!("{listens}; its name is {}{further}; {key}{rails}", self.addr));
        vec![Standing { link: "tcp", offers }]
    }
}

/// Payloads are asked for, and come in frames that need no further copy here.
impl RmaLink for TcpLink {
    fn cancel(&mut self, op: OpId) {
        let channels = self.peers.iter_mut().filter_map(|at| at.channel.as_mut());
        let _ = channels.into_iter().any(|channel| channel.cancel(op));
        self.events.retain(|event| !matches!(event, Event::Done(done, _) if *done == op));
    }
}

//! What a connection that has rails does otherwise: sends on them, takes frames from that one whose turn it
//! is, and sends and reads notes.

use std::time::{Duration, Instant};

use hmem::Span;
use ipc::{Poller, Watch};
use link_api::{Gone, OpId, PeerId, Refused};
use wire::session::{MOST_RAILS, Opener, RailNote};

use crate::tcp::channel::connection::Channel;
use crate::tcp::channel::incoming::{Step, spoilt, strange};
use crate::tcp::channel::pool::{MAX_FRAME, Pool};
use crate::tcp::channel::rails::{Rails, State};
use crate::tcp::sock;
use crate::tcp::watched::token;

/// Where the best connection has no room, another one is used that takes up to so many times as long.
const WORSE: u64 = 2;
/// One that is slower than by this power of two is taken to be slower by this: where the other one has no
/// room it is tried again, and may turn out to be quicker than it was.
const SLOWER: u32 = 5;
/// Fewer bytes make no difference: they are notes, or not acknowledged yet.
const GRAIN: usize = 16 << 10;

impl Channel {
    /// Up to `most` rails may be added, for frames of `striped` bytes and more: by this side, if it `calls`.
    pub(in crate::tcp) fn allow_rails(&mut self, calls: bool, most: usize, striped: usize) {
        self.striped = striped;
        self.rails = Some(Box::new(Rails::new(calls, most)));
    }

    /// Sends a frame on this connection itself, out of line.
    #[cold]
    #[inline(never)]
    fn send_apart(&mut self, head: &[u8], body: &[Span], off: usize, len: usize) -> Result<(), Refused> {
        self.outgoing.send(&mut self.line, (head, body, off, len), false)
    }

    /// Whether there is a rail, or one that is being made.
    pub(in crate::tcp) fn has_rails(&self) -> bool {
        self.rails().is_some_and(|rails| rails.iter().next().is_some())
    }

    /// Whether the rail on which the last long frame found no room, if there is such a one, has some now.
    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn has_room_on_rail(&self) -> bool {
        let full = self.rails().and_then(|rails| rails.full()?.channel());
        full.is_none_or(|rail| rail.ends() || rail.has_much_room())
    }

    /// The rail whose turn it is.
    pub(in crate::tcp) fn turned(&mut self) -> Option<&mut Channel> {
        let current = self.current;
        self.rails.as_mut()?.get_mut(current)?.channel_mut()
    }

    pub(in crate::tcp) fn turned_ref(&self) -> Option<&Channel> {
        self.rails.as_ref()?.get(usize::from(self.current))?.channel()
    }

    /// [`Channel::next`], of the rail whose turn it is.
    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn next_of_rail(&mut self) -> Step {
        let Some(rail) = self.turned() else { return Step::Nothing };
        if rail.incoming.has_ended_landing() == Some(true) {
            // That one's turn is over, also where nothing is to be reported it.
            let step = rail.incoming.next_of_landing(&rail.line);
            self.current = 0;
            return step.unwrap_or_else(|| self.next_here());
        }
        match rail.next_here() {
            Step::End(why) => {
                self.current = 0;
                self.spoil(why);
                Step::End(why)
            }
            step => step,
        }
    }

    /// [`Channel::fill`], of the rail whose turn it is.
    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn fill_of_rail(&mut self, pool: &mut Pool) -> bool {
        let last = self.line.is_last();
        let Some(rail) = self.turned() else { return false };
        if last {
            rail.line.set_last();
        }
        rail.incoming.fill(&mut rail.line, pool)
    }

    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn has_frame_of_rail(&self) -> bool {
        self.turned_ref().is_some_and(|rail| rail.incoming.has_frame_at(0))
    }

    /// Whether a note has been read that something is to be done for.
    pub(in crate::tcp) fn has_notes(&mut self) -> bool {
        let has_heard = self.rails().is_some_and(Rails::has_heard);
        has_heard || self.current != 0 && self.is_rail_ready()
    }

    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn is_rail_ready(&mut self) -> bool {
        self.turned().is_none_or(Channel::is_ready)
    }

    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn land_of_rail(
        &mut self,
        op: OpId,
        frame: (usize, usize),
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> Option<bool> {
        let Some(rail) = self.turned() else { return Some(false) };
        let over = rail.land(op, frame, dst, doff, len);
        if over.is_some() {
            self.current = 0;
        }
        over
    }

    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn leave_of_rail(&mut self) {
        if let Some(rail) = self.turned() {
            rail.leave();
        }
    }

    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn cancel_of_rail(&mut self, op: OpId) -> bool {
        self.turned().is_some_and(|rail| rail.cancel(op))
    }

    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn release_of_rail(&mut self, len: usize) -> bool {
        if let Some(rail) = self.turned() {
            rail.release_here(len);
        }
        self.current = 0;
        // What is behind it here.
        true
    }

    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn read_of_rail(&self, len: usize, off: usize, dst: &mut [u8]) -> usize {
        self.turned_ref().map_or(0, |rail| rail.incoming.read(&rail.line, len, off, dst))
    }

    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn copy_out_of_rail(
        &self,
        frame: (usize, usize),
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> usize {
        self.turned_ref().map_or(0, |rail| rail.incoming.copy_out(&rail.line, frame, dst, doff, len))
    }

    /// Whether the end of it, or of the rail whose turn it is, is known.
    pub(in crate::tcp) fn is_at_end(&self) -> bool {
        self.ends() || self.turned_ref().is_some_and(Channel::ends)
    }

    /// The record at the front is no frame: [`Channel::open`] of what is behind the notes there.
    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn open_behind_notes(&mut self) -> Result<Option<usize>, Gone> {
        loop {
            let Some(header) = self.incoming.buffered().first_chunk() else { return Ok(None) };
            let Some(len) = Opener::note_len(header) else {
                Opener::len(header, MAX_FRAME).map_err(spoilt)?;
                return self.open();
            };
            if !self.take_note(len)? || self.current != 0 {
                return Ok(None);
            }
        }
    }

    /// The record at the front is a note of `len` bytes. Whether all of it was there, and was taken.
    fn take_note(&mut self, len: usize) -> Result<bool, Gone> {
        let Some(note) = self.incoming.take_note(len)? else { return Ok(false) };
        self.hear(note).map_err(strange)?;
        Ok(true)
    }

    fn hear(&mut self, note: RailNote) -> Result<(), &'static str> {
        let is_rail = self.rails_key.is_none();
        if note == RailNote::Probe && !is_rail {
            return Ok(());
        }
        let Some(rails) = &mut self.rails else {
            return match note {
                // This endpoint is to have none.
                RailNote::At(_) if !is_rail => Ok(()),
                _ => Err("there are none"),
            };
        };
        if let Some(number) = rails.hear(note)? {
            self.current = number;
        }
        Ok(())
    }

    /// A rail that this side has made may be used.
    pub(in crate::tcp) fn set_up(&mut self, number: u8) {
        if let Some(rail) = self.rails_mut().and_then(|rails| rails.get_mut(number)) {
            rail.set_up();
            self.say(&RailNote::Up(number));
        }
    }

    /// Sends a long frame on that of all connections which has the least to send before it, in time; of
    /// equals on the next one.
    #[cold]
    #[inline(never)]
    pub(in crate::tcp) fn send_striped(
        &mut self,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
        if self.ends() {
            return Err(Refused::Gone(Gone::Reset));
        }
        let (ways, n) = self.ways(head.len() + len);
        let mut full = None;
        for &(cost, way) in &ways[..n] {
            if full.is_some_and(|least| cost > WORSE * least) {
                // There it would hold up those behind it for longer than it takes the other one to have room.
                break;
            }
            if way > 0 && (self.rail_to_send(way).is_none() || !self.outgoing.takes_note(&mut self.line)) {
                continue;
            }
            let done = match self.rail_to_send(way) {
                _ if way == 0 => self.send_apart(head, body, off, len),
                Some(rail) => rail.send_apart(head, body, off, len),
                None => continue,
            };
            match done {
                Err(Refused::Busy) => {
                    full = full.or(Some(cost));
                    if let Some(rails) = &mut self.rails {
                        rails.set_full(way);
                    }
                    continue;
                }
                Ok(()) if way > 0 => self.say(&RailNote::Next(way as u8)),
                Ok(()) => {}
                // What is on the rail, or a part of this frame, may not arrive.
                Err(_) => {
                    if way > 0 && self.rail_to_send(way).is_none() {
                        self.line.set_last();
                    }
                }
            }
            if let Some(rails) = &mut self.rails {
                rails.set_last(way);
            }
            return done;
        }
        Err(Refused::Busy)
    }

    /// All connections, and how long what is before a frame of `len` bytes takes on each, with the frame, by
    /// a measure of their own: the least first.
    fn ways(&mut self, len: usize) -> ([(u64, usize); MOST_RAILS], usize) {
        let mut ways = [(0, 0); MOST_RAILS];
        let (n, last) = self.rails.as_ref().map_or((1, 0), |rails| (rails.most() + 1, rails.last()));
        let n = n.min(MOST_RAILS);
        let mut rates = [None; MOST_RAILS];
        for (at, (before, way)) in ways[..n].iter_mut().enumerate() {
            *way = (last + 1 + at) % n;
            let channel = match *way {
                0 => Some(&*self),
                way => self.rails.as_ref().and_then(|rails| rails.get(way)?.channel()),
            };
            if let Some(channel) = channel {
                *before = ((sock::queued(channel.fd()) + channel.pending()) / GRAIN * GRAIN) as u64;
                rates[at] = sock::rate(channel.fd());
            }
        }
        // One of which nothing is known is taken to be as quick as the quickest.
        let most = rates.iter().flatten().max().copied().unwrap_or(1);
        for ((before, _), rate) in ways[..n].iter_mut().zip(rates) {
            // By powers of two: rates of one cable are not the same at any time either.
            *before = (*before + len as u64) << (most / rate.unwrap_or(most)).ilog2().min(SLOWER);
        }
        ways[..n].sort_by_key(|(before, _)| *before);
        (ways, n)
    }

    fn rail_to_send(&mut self, way: usize) -> Option<&mut Channel> {
        self.rails.as_mut()?.get_mut(way as u8)?.usable().filter(|channel| !channel.ends())
    }

    /// Whether it is a rail's turn, nothing more has come on that for so long, and the other end has ended
    /// the connection itself. What it sent on the rail before may be under way still, but not for longer than
    /// a host that lives takes to answer.
    pub(in crate::tcp) fn is_starved(&mut self, now: Instant, most: Duration) -> bool {
        let is_waiting =
            self.current != 0 && !self.is_at_end() && sock::is_finished(self.fd()) && !self.is_rail_ready();
        let vitals = self.turned_ref().filter(|rail| is_waiting && sock::available(rail.fd()) == 0);
        let received = vitals.and_then(|rail| sock::vitals(rail.fd())).map(|vitals| vitals.received);
        let Some(rails) = &mut self.rails else { return false };
        rails.starves(received, now, most)
    }

    /// The rails of a connection end with it.
    pub(in crate::tcp) fn end_rails(&mut self, poller: &Poller) {
        for rail in self.rails.iter_mut().flat_map(|rails| rails.drain()) {
            match rail.state() {
                State::Called(call) => call.fd().into_iter().for_each(|fd| poller.remove(fd)),
                State::Attached(there) => {
                    if rail.watch().is_some() {
                        poller.remove(there.fd());
                    }
                    ipc::socket::shutdown(there.fd());
                }
            }
        }
    }

    /// Watches that of all connections to this `peer` whose turn it is for what comes, and all that lack room
    /// for that. `unwatched`: the connection itself is polled, and not
    /// watched.
    pub(in crate::tcp) fn sync_rails(&mut self, poller: &Poller, peer: PeerId, unwatched: bool) {
        let current = self.current;
        let Some(rails) = self.rails.as_mut() else { return };
        let wanted = |number: u8, blocked: bool| match (current == number, blocked) {
            (true, false) => Watch::Read,
            (true, true) => Watch::Both,
            (false, true) => Watch::Write,
            (false, false) => Watch::Ends,
        };
        let want = wanted(0, self.outgoing.is_blocked());
        if rails.watch() != want && !self.line.is_over() && !unwatched {
            // If this fails the next look or flush is that of another call.
            let _ = poller.change(self.line.fd(), token::channel(peer), want);
            rails.set_watch(want);
        }
        for (number, rail) in rails.numbered_mut() {
            let State::Attached(there) = rail.state() else { continue };
            let is_to_be = !rail.has_ended() || current == number;
            let want = is_to_be.then(|| wanted(number, there.is_blocked()));
            let was = rail.set_watch(want);
            let Some(there) = rail.channel() else { continue };
            let token = token::rail(peer, number);
            match (was, want) {
                (was, want) if was == want => {}
                (Some(_), Some(want)) => drop(poller.change(there.fd(), token, want)),
                (None, Some(want)) => drop(poller.add_for(there.fd(), token, want)),
                (_, None) => poller.remove(there.fd()),
            }
        }
    }

    /// For people: the ways that it consists of, if it has rails.
    pub(in crate::tcp) fn describe_rails(&self) -> String {
        let all: Vec<_> = self.rails().into_iter().flat_map(Rails::up).collect();
        let Some(ends) = sock::ends(self.fd()).filter(|_| !all.is_empty()) else { return String::new() };
        let first = std::iter::once((ends.0.ip(), ends.1.ip()));
        let ways = first.chain(all.iter().map(|rail| (rail.here().ip(), rail.there().ip())));
        let ways: Vec<_> = ways.map(|(here, there)| format!("{here} to {there}")).collect();
        format!(" over {} rails ({})", ways.len(), ways.join(", "))
    }
}

//! What a connection that has rails does otherwise: sends on them, takes frames from that one whose turn it
//! is, and sends and reads notes.

use std::time::{Duration, Instant};

use hmem::Span;
use ipc::Poller;
use link_api::{Gone, OpId, Refused};
use wire::session::{JobKey, MOST_RAILS, Opener, RECORD, RailNote};

use super::channel::{Channel, MAX_FRAME, Step, spoilt};
use super::landing::Front;
use super::pool::Pool;
use super::rails::{Rail, Rails, State};
use super::sock;

/// Where the best connection has no room, another one is used that takes up to so many times as long.
const WORSE: u64 = 2;
/// One that is slower than by this power of two is taken to be slower by this: where the other one has no
/// room it is tried again, and may turn out to be quicker than it was.
const SLOWER: u32 = 5;
/// Fewer bytes make no difference: they are notes, or not acknowledged yet.
const GRAIN: usize = 16 << 10;

impl Rail<Channel> {
    /// Its channel, if frames may be sent there.
    fn usable(&mut self) -> Option<&mut Channel> {
        let up = self.up && !self.ended;
        self.channel_mut().filter(|channel| up && !channel.ends())
    }
}

impl Channel {
    /// Up to `most` rails may be added, for frames of `striped` bytes and more: by this side, if it `calls`.
    pub(super) fn allow_rails(&mut self, calls: bool, most: usize, striped: usize) {
        self.striped = striped;
        self.rails = Some(Box::new(Rails::new(calls, most)));
    }

    pub(super) fn rails_key(&self) -> Option<&JobKey> {
        self.keys.rails.as_ref()
    }

    /// [`Channel::send_here`], out of line.
    #[cold]
    #[inline(never)]
    fn send_apart(&mut self, head: &[u8], body: &[Span], off: usize, len: usize) -> Result<(), Refused> {
        self.send_here(head, body, off, len)
    }

    /// Whether there is a rail, or one that is being made.
    pub(super) fn has_rails(&self) -> bool {
        self.rails.as_ref().is_some_and(|rails| rails.all.iter().any(Option::is_some))
    }

    /// Whether the rail on which the last long frame found no room, if there is such a one, has some now.
    #[cold]
    #[inline(never)]
    pub(super) fn has_room_on_rail(&self) -> bool {
        let full = self.rails.as_ref().and_then(|rails| rails.all.get(rails.full.checked_sub(1)?)?.as_ref());
        let full = full.filter(|rail| !rail.ended).and_then(Rail::channel);
        full.is_none_or(|rail| rail.ends() || rail.has_much_room())
    }

    /// The rail whose turn it is.
    pub(super) fn turned(&mut self) -> Option<&mut Channel> {
        let turn = self.turn;
        self.rails.as_mut()?.get(turn)?.channel_mut()
    }

    pub(super) fn turned_ref(&self) -> Option<&Channel> {
        let at = usize::from(self.turn).checked_sub(1)?;
        self.rails.as_ref()?.all.get(at)?.as_ref()?.channel()
    }

    /// [`Channel::next`], of the rail whose turn it is.
    #[cold]
    #[inline(never)]
    pub(super) fn next_of_rail(&mut self) -> Step {
        let Some(rail) = self.turned() else { return Step::Nothing };
        if matches!(&rail.front, Front::Lands(landing) if landing.is_over()) {
            // That one's turn is over, also where nothing is to be told of it.
            let told = rail.next_of_landing();
            self.turn = 0;
            return told.unwrap_or_else(|| self.next_here());
        }
        match rail.next_here() {
            Step::End(why) => {
                self.turn = 0;
                self.spoil(why);
                Step::End(why)
            }
            step => step,
        }
    }

    /// [`Channel::fill`], likewise.
    #[cold]
    #[inline(never)]
    pub(super) fn fill_of_rail(&mut self, pool: &mut Pool) -> bool {
        let last = self.last;
        let Some(rail) = self.turned() else { return false };
        rail.last |= last;
        rail.fill_here(pool)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn has_frame_of_rail(&self) -> bool {
        self.turned_ref().is_some_and(|rail| rail.has_frame_at(0))
    }

    /// Whether a note has been read that something is to be done for.
    pub(super) fn has_notes(&mut self) -> bool {
        let told = self.rails.as_ref().is_some_and(|rails| rails.told.is_some() || rails.news.is_some());
        told || self.turn != 0 && self.is_rail_ready()
    }

    #[cold]
    #[inline(never)]
    pub(super) fn is_rail_ready(&mut self) -> bool {
        self.turned().is_none_or(Channel::is_ready)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn land_of_rail(
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
            self.turn = 0;
        }
        over
    }

    #[cold]
    #[inline(never)]
    pub(super) fn leave_of_rail(&mut self) {
        if let Some(rail) = self.turned() {
            rail.leave();
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn cancel_of_rail(&mut self, op: OpId) -> bool {
        self.turned().is_some_and(|rail| rail.cancel(op))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn release_of_rail(&mut self, len: usize) -> bool {
        if let Some(rail) = self.turned() {
            rail.release_here(len);
        }
        self.turn = 0;
        // What is behind it here.
        true
    }

    #[cold]
    #[inline(never)]
    pub(super) fn read_of_rail(&self, len: usize, off: usize, dst: &mut [u8]) -> usize {
        self.turned_ref().map_or(0, |rail| rail.read_here(len, off, dst))
    }

    #[cold]
    #[inline(never)]
    pub(super) fn copy_out_of_rail(
        &self,
        size: usize,
        off: usize,
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> usize {
        self.turned_ref().map_or(0, |rail| rail.copy_out_here(size, off, dst, doff, len))
    }

    /// Whether the end of it, or of the rail whose turn it is, is known.
    pub(super) fn is_at_end(&self) -> bool {
        self.ends() || self.turned_ref().is_some_and(Channel::ends)
    }

    /// The record at the front is no frame: [`Channel::open`] of what is behind the notes there.
    #[cold]
    #[inline(never)]
    pub(super) fn open_behind_notes(&mut self) -> Result<Option<usize>, Gone> {
        loop {
            let Some(header) = self.buffered().first_chunk() else { return Ok(None) };
            let Some(len) = Opener::note_len(header) else {
                Opener::len(header, MAX_FRAME).map_err(spoilt)?;
                return self.open();
            };
            if !self.take_note(len)? || self.turn != 0 {
                return Ok(None);
            }
        }
    }

    /// The record at the front is a note of `len` bytes. Whether all of it was there, and was taken.
    fn take_note(&mut self, len: usize) -> Result<bool, Gone> {
        let Some(record) = self.buffered().get(..RECORD + len).map(<[u8]>::to_vec) else { return Ok(false) };
        let Some((header, note)) = record.split_first_chunk() else { return Ok(false) };
        let strange = |what: &str| {
            log::warn!("a peer says what is not its to say of rails ({what}): its connection is closed");
            Gone::Denied
        };
        self.keys.opener.open_note(header, note).map_err(|e| strange(&format!("{e:?}")))?;
        let note = RailNote::decode(note).ok_or_else(|| strange("no note"))?;
        self.pass(record.len(), 0);
        self.hear(note).map_err(strange)?;
        Ok(true)
    }

    fn hear(&mut self, note: RailNote) -> Result<(), &'static str> {
        let is_rail = self.keys.rails.is_none();
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
        match note {
            RailNote::At(_) if !rails.calls || rails.offered => return Err("addresses"),
            RailNote::At(all) => (rails.offered, rails.told) = (true, Some(all)),
            RailNote::Up(_) if rails.calls => return Err("one is up"),
            RailNote::Up(number) => match rails.get(number) {
                Some(rail) if !rail.up && rail.channel().is_some() => {
                    (rail.up, rails.news) = (true, Some(number));
                }
                _ => return Err("one is up that is none"),
            },
            RailNote::Next(number) => match rails.get(number) {
                Some(rail) if rail.up && rail.channel().is_some() => self.turn = number,
                _ => return Err("a frame on one that is none"),
            },
            RailNote::Probe => return Err("a probe"),
        }
        Ok(())
    }

    /// Puts a note among the records. It is kept where the kernel has no room: there are few for which that
    /// was not asked before.
    pub(super) fn say(&mut self, note: &RailNote) {
        let body = note.encode();
        debug_assert!(Opener::note_len(&self.keys.sealer.clone().seal_note(&body)).is_some());
        let header = self.keys.sealer.seal_note(&body);
        self.tx.extend_from_slice(&header);
        self.tx.extend_from_slice(&body);
        if !self.blocked {
            self.flush();
        }
        self.unsure = true;
    }

    /// A rail that this side has made may be used.
    pub(super) fn set_up(&mut self, number: u8) {
        if let Some(rail) = self.rails.as_mut().and_then(|rails| rails.get(number)) {
            rail.up = true;
            self.say(&RailNote::Up(number));
        }
    }

    /// Sends a long frame on that of all connections which has the least to send before it, in time; of
    /// equals on the next one.
    #[cold]
    #[inline(never)]
    pub(super) fn send_striped(
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
            if way > 0 && (self.rail_to_send(way).is_none() || !self.takes_note()) {
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
                        rails.full = way;
                    }
                    continue;
                }
                Ok(()) if way > 0 => self.say(&RailNote::Next(way as u8)),
                Ok(()) => {}
                // What is on the rail, or a part of this frame, may not arrive.
                Err(_) => self.last |= way > 0 && self.rail_to_send(way).is_none(),
            }
            if let Some(rails) = &mut self.rails {
                (rails.last, rails.full) = (way, 0);
            }
            return done;
        }
        Err(Refused::Busy)
    }

    /// All connections, and how long what is before a frame of `len` bytes takes on each, with the frame, by
    /// a measure of their own: the least first.
    fn ways(&mut self, len: usize) -> ([(u64, usize); MOST_RAILS], usize) {
        let mut ways = [(0, 0); MOST_RAILS];
        let (n, last) = self.rails.as_ref().map_or((1, 0), |rails| (rails.all.len() + 1, rails.last));
        let n = n.min(MOST_RAILS);
        let mut rates = [None; MOST_RAILS];
        for (at, (before, way)) in ways[..n].iter_mut().enumerate() {
            *way = (last + 1 + at) % n;
            let channel = match *way {
                0 => Some(&*self),
                way => self.rails.as_ref().and_then(|rails| rails.all[way - 1].as_ref()?.channel()),
            };
            if let Some(channel) = channel {
                *before = ((sock::queued(&channel.fd) + channel.pending()) / GRAIN * GRAIN) as u64;
                rates[at] = sock::rate(&channel.fd);
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

    /// Whether the kernel has room for a note. One that was kept here would have to wait for a later call of
    /// the application's, which may make none.
    fn takes_note(&mut self) -> bool {
        if self.pending() > 0 || self.blocked {
            return false;
        }
        self.blocked = !sock::wait_for_room(&self.fd, Duration::ZERO);
        !self.blocked
    }

    fn rail_to_send(&mut self, way: usize) -> Option<&mut Channel> {
        self.rails.as_mut()?.get(way as u8)?.usable()
    }

    /// Whether it is a rail's turn, nothing more has come on that for so long, and the other end has ended
    /// the connection itself. What it sent on the rail before may be under way still, but not for longer than
    /// a host that lives takes to answer.
    pub(super) fn is_starved(&mut self, now: Instant, most: Duration) -> bool {
        let is_waiting =
            self.turn != 0 && !self.is_at_end() && sock::is_finished(&self.fd) && !self.is_rail_ready();
        let vitals = self.turned_ref().filter(|rail| is_waiting && sock::available(&rail.fd) == 0);
        let received = vitals.and_then(|rail| sock::vitals(&rail.fd)).map(|vitals| vitals.received);
        let Some(rails) = &mut self.rails else { return false };
        // By two looks: what is there at neither may have come between them.
        let since = rails
            .starved
            .filter(|since| received.is_some_and(|ago| now.saturating_duration_since(*since) < ago));
        rails.starved = received.map(|_| since.unwrap_or(now));
        since.is_some_and(|since| now.saturating_duration_since(since) >= most)
    }

    /// The rails of a connection end with it.
    pub(super) fn end_rails(&mut self, poller: &Poller) {
        for rail in self.rails.iter_mut().flat_map(|rails| rails.all.drain(..)).flatten() {
            match &rail.state {
                State::Called(call) => call.fd().into_iter().for_each(|fd| poller.remove(fd)),
                State::Attached(there) => {
                    if rail.watch.is_some() {
                        poller.remove(&there.fd);
                    }
                    ipc::socket::shutdown(&there.fd);
                }
            }
        }
    }
}

//! Records as they come: what of them was received, and what of the one at the front was reported.
//!
//! A long frame is left with the kernel until all of it is there, and goes from there to where it belongs in
//! one copy ([`Incoming::copy_out`]), or goes there as it comes ([`Incoming::land`]). What would wait too
//! long so is taken into a buffer here: the kernel keeps only so much.

use std::time::{Duration, Instant};

use hmem::Span;
use link_api::{Gone, OpId};
use wire::session::{COVERED, Opener, RECORD, RailNote, Spoilt};

use crate::tcp::channel::landing::{Front, Landing};
use crate::tcp::channel::line::Line;
use crate::tcp::channel::pool::{Buffer, MAX_FRAME, Pool, STRETCH};
use crate::tcp::sock::{self, gone, would_block};

/// From how many bytes on a frame may be left with the kernel.
pub(super) const LONG: usize = 16 << 10;
/// Most bytes that are received at a time where long frames come: a header, and what it covers.
const FRONT: usize = RECORD + COVERED;
/// Short frames behind a long one that may be what is said between it and the next: that a message comes, is
/// to come, has come.
const AMONG: u8 = 4;
/// Looks at a long frame that does not grow before it is taken in, and so copied once more. A sender puts
/// some ten KiB at a time into the socket, and a look takes less time than that.
const PATIENCE: u8 = 64;

/// What there is of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::tcp) enum Step {
    /// A frame of so many bytes, to be given back by [`Incoming::release`].
    Frame(usize),
    /// The front of one of so many bytes, to be given back by [`Incoming::land`] or [`Incoming::leave`].
    Begun(usize),
    /// What [`Incoming::land`] has begun is over: whether all is where it belongs.
    Done(OpId, bool),
    /// Nothing, as far as was received.
    Nothing,
    /// Nothing any more.
    End(Gone),
}

/// What the record at the front is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opened {
    /// A frame of so many bytes.
    Frame(usize),
    /// That is not known yet.
    Unknown,
    /// A note, or nothing that the other side may send.
    Other,
}

/// What was received of the frame at hand to where it belongs, and so is with the kernel no more; and of the
/// next one to behind what is buffered.
#[derive(Debug, Default)]
struct Taken {
    of_frame: usize,
    ahead: usize,
}

/// What is received on a connection.
#[derive(Debug)]
pub(super) struct Incoming {
    opener: Opener,
    /// With the end of a frame that lands the front of the next one is received: not of a rail, of which the
    /// connection has to announce it first.
    goes_ahead: bool,
    /// What was received, from `start` to `end`.
    rx: Option<Buffer>,
    start: usize,
    end: usize,
    /// The record at `start` is what was sent, and its frame has so many bytes.
    opened: Option<usize>,
    /// Frames are reported when they begin; and how far the one at the front is with that.
    early: bool,
    front: Front,
    /// How many of the next frames may be short without long ones being expected no more.
    bulk: u8,
    widened: bool,
    /// What of the frame at hand, and of the next one, a last copy of it has received.
    taken: Taken,
    /// How much of the next frame was with the kernel at the last look, and looks since.
    seen: usize,
    waited: u8,
    /// Since when, as far as is known, a part of this record has taken up a buffer while other peers found
    /// none.
    part: Option<(u64, Instant)>,
}

impl Incoming {
    /// `early`: long frames are reported when they begin.
    pub(super) fn new(opener: Opener, is_rail: bool, early: bool) -> Incoming {
        Incoming {
            opener,
            goes_ahead: !is_rail,
            rx: None,
            start: 0,
            end: 0,
            opened: None,
            early,
            front: Front::Unseen,
            bulk: 0,
            widened: false,
            taken: Taken::default(),
            seen: 0,
            waited: 0,
            part: None,
        }
    }

    /// What is left with the kernel wakes a sleeper again and again: a look after a sleep counts as several.
    pub(super) fn hasten(&mut self) {
        self.waited = self.waited.saturating_add(PATIENCE / 4 - 1);
    }

    /// Receives what is there, or leaves it where it is if that is better; `pool` has a buffer to spare.
    /// Returns whether there may be a frame, or the end.
    #[inline]
    pub(super) fn fill(&mut self, line: &mut Line, pool: &mut Pool) -> bool {
        let is_fresh =
            self.rx.is_none() && self.opened.is_none() && matches!(self.front, Front::Unseen) && !line.ends();
        match if is_fresh { pool.first() } else { None } {
            Some(buffer) => {
                let most = if self.bulk > 0 { FRONT } else { STRETCH };
                match sock::recv(line.fd(), &mut buffer[..most]) {
                    Ok(n) if n > 0 => {
                        (self.start, self.end) = (0, n);
                        self.rx = pool.take_first();
                    }
                    Err(e) if would_block(&e) => return false,
                    Ok(_) => line.set_over(Gone::Reset),
                    Err(e) => line.set_over(gone(&e)),
                }
                true
            }
            None => self.fill_on(line, pool),
        }
    }

    /// The same, where something was received before, or no buffer may be there.
    fn fill_on(&mut self, line: &mut Line, pool: &mut Pool) -> bool {
        if line.is_over() || self.has_frame_at(0) {
            return true;
        }
        if let Front::Lands(_) = &self.front {
            return self.fill_landing(line, pool);
        }
        if self.may_begin(line) {
            return true;
        }
        let most = match self.opened {
            Some(len) if len >= LONG => {
                let lacks = RECORD + len - (self.end - self.start);
                let there = sock::available(line.fd());
                if there >= lacks {
                    return true;
                }
                if there > self.seen {
                    (self.seen, self.waited) = (there, 0);
                    return false;
                }
                self.waited = self.waited.saturating_add(1);
                if self.waited < PATIENCE && !line.is_last() {
                    return false;
                }
                self.seen = 0;
                lacks
            }
            // All of a shorter one, of which the length is known.
            Some(len) if self.bulk > 0 => RECORD + len - (self.end - self.start) + FRONT,
            None if self.bulk > 0 => FRONT,
            _ => STRETCH,
        };
        if self.rx.is_none() {
            // At its end it is not asked again.
            self.rx = pool.take(line.is_last());
        }
        let Some(rx) = &mut self.rx else { return false };
        if self.start > 0 && rx.len() - self.end < most {
            rx.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let until = rx.len().min(self.end + most);
        match sock::recv(line.fd(), &mut rx[self.end..until]) {
            Ok(0) => line.set_over(Gone::Reset),
            Ok(n) => self.end += n,
            Err(e) if would_block(&e) && line.is_last() => line.set_over(Gone::Reset),
            Err(e) if would_block(&e) => {
                self.give_back(pool);
                return false;
            }
            Err(e) => line.set_over(gone(&e)),
        }
        true
    }

    /// [`Incoming::fill`], while a frame lands.
    fn fill_landing(&mut self, line: &mut Line, pool: &mut Pool) -> bool {
        let Front::Lands(mut landing) = std::mem::replace(&mut self.front, Front::Unseen) else {
            return false;
        };
        self.rx = self.rx.take().or_else(|| pool.take(false));
        self.receive_landing(line, &mut landing);
        let is_over = landing.is_over();
        if line.is_last() && !is_over {
            line.end_by(Gone::Reset);
        }
        self.front = Front::Lands(landing);
        if !is_over {
            self.give_back(pool);
        }
        is_over || line.is_over()
    }

    /// A buffer with nothing in it serves others.
    #[inline]
    pub(super) fn give_back(&mut self, pool: &mut Pool) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if let Some(rx) = self.rx.take() {
                pool.give(rx);
            }
        }
    }

    /// What was received and is not passed.
    #[inline]
    pub(super) fn buffered(&self) -> &[u8] {
        self.rx.as_deref().and_then(|rx| rx.get(self.start..self.end)).unwrap_or_default()
    }

    /// Whether nothing is there of what was received.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether the header of the record at the front is there.
    #[inline]
    pub(super) fn has_header(&self) -> bool {
        self.end - self.start >= RECORD
    }

    /// How many bytes the frame at the front has, once its record was checked.
    #[inline]
    pub(super) fn opened(&self) -> Option<usize> {
        self.opened
    }

    /// Whether a frame of so many bytes at the front is whole, here or with the kernel, and is to be reported
    /// as such.
    #[inline]
    pub(super) fn is_whole(&self, line: &Line, len: usize) -> bool {
        let there = self.end - self.start;
        if there >= RECORD + len {
            return true;
        }
        if self.begins_early(len) {
            return false;
        }
        let rest = RECORD + len - there;
        len >= LONG && sock::available(line.fd()) >= rest
    }

    /// Whether some of the frame at hand is with the kernel no more.
    #[inline]
    pub(super) fn is_taken(&self) -> bool {
        self.taken.of_frame > 0
    }

    /// Receives the last `len` bytes of the frame at hand, to byte `doff` of `dst`: how many that were.
    /// `None` if the kernel does not reach all of `dst`.
    pub(super) fn receive_rest(
        &mut self,
        line: &Line,
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> Option<usize> {
        let ahead = match &mut self.rx {
            Some(rx) if self.goes_ahead => rx.get_mut(self.end..self.end + FRONT).unwrap_or_default(),
            _ => &mut [],
        };
        let found = sock::recv_spans(line.fd(), dst, doff, len, ahead)?.unwrap_or(0);
        let of_frame = found.min(len);
        self.taken = Taken { of_frame, ahead: found - of_frame };
        Some(of_frame)
    }

    /// Checks the record at the front, if enough of it is there, and it is a frame.
    #[inline]
    pub(super) fn open(&mut self, line: &Line) -> Result<Opened, Gone> {
        let bytes = self.rx.as_deref().and_then(|rx| rx.get(self.start..self.end)).unwrap_or_default();
        let Some((header, rest)) = bytes.split_first_chunk::<RECORD>() else { return Ok(Opened::Unknown) };
        let Ok(len) = Opener::len(header, MAX_FRAME) else { return Ok(Opened::Other) };
        let Some(front) = rest.get(..len.min(COVERED)) else { return Ok(Opened::Unknown) };
        self.opener.open(header, front).map_err(spoilt)?;
        self.opened = Some(len);
        if len >= LONG {
            self.widen(line);
        }
        Ok(Opened::Frame(len))
    }

    #[inline(never)]
    fn widen(&mut self, line: &Line) {
        if !std::mem::replace(&mut self.widened, true) {
            sock::widen(line.fd(), 8 * MAX_FRAME);
        }
    }

    /// The note of `len` bytes at the front, if all of it is there: it is passed.
    pub(super) fn take_note(&mut self, len: usize) -> Result<Option<RailNote>, Gone> {
        let Some(record) = self.buffered().get(..RECORD + len).map(<[u8]>::to_vec) else { return Ok(None) };
        let Some((header, note)) = record.split_first_chunk() else { return Ok(None) };
        self.opener.open_note(header, note).map_err(|e| strange(&format!("{e:?}")))?;
        let note = RailNote::decode(note).ok_or_else(|| strange("no note"))?;
        self.pass(record.len(), 0);
        Ok(Some(note))
    }

    /// Whether a whole frame or note was received, from byte `at` on.
    #[inline]
    pub(super) fn has_frame_at(&self, at: usize) -> bool {
        let record = self.buffered().get(at..).and_then(<[u8]>::split_first_chunk);
        record.is_some_and(|(header, rest)| match Opener::len(header, MAX_FRAME) {
            Ok(len) => rest.len() >= len,
            // What comes next is one of a rail.
            Err(_) => Opener::note_len(header).is_some_and(|len| rest.len() >= len),
        })
    }

    /// Nothing of what was received is taken.
    pub(super) fn clear(&mut self) {
        (self.start, self.end, self.opened, self.taken) = (0, 0, None, Taken::default());
        self.front = Front::Unseen;
    }

    /// What was received of the frame at hand, which has `len` bytes, is not needed any more: `near` bytes.
    fn pass(&mut self, near: usize, len: usize) {
        self.start += near;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        self.bulk = if len >= LONG { AMONG } else { self.bulk.saturating_sub(1) };
        (self.opened, self.seen, self.waited) = (None, 0, 0);
        self.front = Front::Unseen;
    }

    /// The frame at hand, which has `len` bytes, is not needed any more, here or with the kernel.
    #[inline(always)]
    pub(super) fn release(&mut self, line: &mut Line, len: usize) {
        let whole = RECORD + len;
        let near = whole.min(self.end - self.start);
        let Taken { of_frame, ahead } = std::mem::take(&mut self.taken);
        if near + of_frame < whole {
            if let Err(e) = sock::discard(line.fd(), whole - near - of_frame) {
                line.end_by(gone(&e));
            }
        }
        self.end += ahead;
        self.pass(near, len);
    }

    /// Whether a frame of so many bytes is reported before it is whole.
    #[inline]
    fn begins_early(&self, len: usize) -> bool {
        self.early && len >= LONG && matches!(self.front, Front::Unseen | Front::Reported)
    }

    /// Whether the frame at the front is to be reported now.
    #[inline]
    pub(super) fn may_begin(&self, line: &Line) -> bool {
        matches!(self.front, Front::Unseen)
            && !line.is_over()
            && self.opened.is_some_and(|len| self.begins_early(len))
    }

    /// How many bytes the frame at the front has, which the engine hears has begun.
    #[inline]
    pub(super) fn begin(&mut self) -> usize {
        self.front = Front::Reported;
        self.opened.unwrap_or_default()
    }

    /// If a frame lands, whether that is over.
    #[inline]
    pub(super) fn has_ended_landing(&self) -> Option<bool> {
        match &self.front {
            Front::Lands(landing) => Some(landing.is_over()),
            _ => None,
        }
    }

    /// What is to be reported the frame that lands, if one does.
    #[inline]
    pub(super) fn next_of_landing(&mut self, line: &Line) -> Option<Step> {
        let Front::Lands(landing) = &self.front else { return None };
        let (is_over, op, good) = (landing.is_over(), landing.op(), landing.is_good());
        if !is_over && !line.is_over() {
            return Some(Step::Nothing);
        }
        self.front = Front::Unseen;
        op.map(|op| Step::Done(op, good))
    }

    /// The frame at the front, of `size` bytes, goes to byte `doff` of `dst`, `len` bytes of it from `off`
    /// on. Whether that is over, and all are there.
    pub(super) fn land(
        &mut self,
        line: &mut Line,
        op: OpId,
        (size, off): (usize, usize),
        dst: &[Span],
        doff: usize,
        len: usize,
    ) -> Option<bool> {
        debug_assert!(off + len <= size, "bytes {off}+{len} of a frame of {size}");
        let len = len.min(size.saturating_sub(off));
        let front = self.here_from(size, off, len);
        let near = front.len();
        let failed = hmem::write(dst, doff, front) < near;
        let (left, rest) = (len - near, size - self.here(size).len());
        let mut landing = Box::new(Landing::new(op, dst, doff + near, left, rest - left, failed));
        self.pass(RECORD + size - rest, size);
        self.receive_landing(line, &mut landing);
        if landing.is_over() {
            return Some(landing.is_good());
        }
        self.front = Front::Lands(landing);
        None
    }

    /// Receives what is there of a frame that lands, and with its end the front of the next one.
    fn receive_landing(&mut self, line: &mut Line, landing: &mut Landing) {
        let ahead = match &mut self.rx {
            Some(rx) if self.start == self.end && self.goes_ahead => &mut rx[..FRONT],
            _ => &mut [],
        };
        let (next, end) = landing.receive(line.fd(), ahead);
        if next > 0 {
            (self.start, self.end) = (0, next);
        }
        if let Some(end) = end {
            line.end_by(end);
        }
    }

    /// The frame at the front is reported again when it is whole.
    pub(super) fn leave(&mut self) {
        if let Front::Reported = self.front {
            self.front = Front::Left;
        }
    }

    /// Nothing more of this operation goes where it belongs. Whether it was the one that is under way;
    /// `None`: none is.
    pub(super) fn cancel(&mut self, op: OpId) -> Option<bool> {
        match &mut self.front {
            Front::Lands(landing) => Some(landing.cancel(op)),
            _ => None,
        }
    }

    /// The operation that is under way, as far as its end is to be reported; `None`: none is.
    pub(super) fn lands(&self) -> Option<Option<OpId>> {
        match &self.front {
            Front::Lands(landing) => Some(landing.op()),
            _ => None,
        }
    }

    /// Whether a part of one frame has taken up a buffer for so long, while other peers found none (`short`:
    /// lately).
    pub(super) fn is_stuck(&mut self, line: &Line, short: bool, now: Instant, most: Duration) -> bool {
        let is_part = short && self.rx.is_some() && !line.is_over() && !self.has_frame_at(0);
        let count = self.opener.count();
        let since = self.part.filter(|(of, _)| *of == count).map_or(now, |(_, since)| since);
        self.part = is_part.then_some((count, since));
        is_part && now.saturating_duration_since(since) >= most && sock::available(line.fd()) == 0
    }
}

#[cold]
pub(super) fn spoilt(e: Spoilt) -> Gone {
    log::warn!("a peer sends what is no record ({e:?}): its connection is closed");
    Gone::Denied
}

/// Why the connection of a peer ends that says what is not its to say of rails.
pub(super) fn strange(what: &str) -> Gone {
    log::warn!("a peer says what is not its to say of rails ({what}): its connection is closed");
    Gone::Denied
}

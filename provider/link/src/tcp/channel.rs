//! A connection that is agreed on: frames as records, either way.
//!
//! A long frame is left with the kernel until all of it is there, and goes from there to where it belongs in
//! one copy ([`Channel::copy_out`]), or goes there as it comes ([`Channel::land`]). What would wait too long
//! so is taken into a buffer here: the kernel keeps only so much.

use std::time::Instant;

use ipc::Unshared;
use link_api::{Gone, OpId};
use wire::session::{COVERED, Hello, Keys, Opener, RECORD, Spoilt};

use super::agreement::Conn;
use super::landing::Front;
pub(super) use super::pool::MAX_FRAME;
use super::pool::{Buffer, Pool, STRETCH};
use super::rails::Rails;
use super::sock::{self, gone, would_block};

/// From how many bytes on a frame may be left with the kernel.
pub(super) const LONG: usize = 16 << 10;
/// Most bytes that are received at a time where long frames come: a header, and what it covers.
pub(super) const FRONT: usize = RECORD + COVERED;
/// Most bytes that wait here for room, but for the rest of one frame.
const TX_MOST: usize = 64 << 10;
/// Short frames behind a long one that may be what is said between it and the next: that a message comes, is
/// to come, has come.
const AMONG: u8 = 4;
/// Looks at a long frame that does not grow before it is taken in, and so copied once more. A sender puts
/// some ten KiB at a time into the socket, and a look takes less time than that.
const PATIENCE: u8 = 64;

/// What there is of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// A frame of so many bytes, to be given back by [`Channel::release`].
    Frame(usize),
    /// The front of one of so many bytes, to be given back by [`Channel::land`] or [`Channel::leave`].
    Begun(usize),
    /// What [`Channel::land`] has begun is over: whether all is where it belongs.
    Landed(OpId, bool),
    /// Nothing, as far as was received.
    Nothing,
    /// Nothing any more.
    End(Gone),
}

/// A connection.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) fd: Unshared,
    pub(super) keys: Keys,
    /// Further connections, if there may be any; and which of them has the next frame, 0: this one.
    pub(super) rails: Option<Box<Rails<Channel>>>,
    pub(super) turn: u8,
    /// From how many bytes on a frame may go on one of them.
    pub(super) striped: usize,
    /// Which endpoint is at the other end ([`Hello`]), and which of this one's connections it is.
    pub(super) instance: u64,
    pub(super) conn: Conn,
    /// What waits for room, from `sent` on.
    pub(super) tx: Vec<u8>,
    pub(super) sent: usize,
    /// Some of it was given up.
    pub(super) lost: bool,
    /// The kernel had no room, and has not said since that it has.
    pub(super) blocked: bool,
    pub(super) rx: Option<Buffer>,
    pub(super) start: usize,
    pub(super) end: usize,
    /// The record at `start` is what was sent, and its frame has so many bytes.
    pub(super) opened: Option<usize>,
    /// Frames are told of when they begin; and how far the one at the front is with that.
    pub(super) early: bool,
    pub(super) front: Front,
    /// How many of the next frames may be short without long ones being expected no more.
    bulk: u8,
    widened: bool,
    /// How much of the next frame was with the kernel at the last look, and looks since.
    seen: usize,
    waited: u8,
    /// Nothing more will be received.
    pub(super) over: Option<Gone>,
    /// What it is followed by is there, or nothing can be sent any more: it ends when nothing more is to be
    /// had.
    pub(super) last: bool,
    /// Something was sent that may not have arrived, and since when that is known.
    pub(super) unsure: bool,
    pub(super) owing: Option<Instant>,
    /// Since when, as far as is known, a part of this record has taken up a buffer while other peers found
    /// none.
    pub(super) part: Option<(u64, Instant)>,
}

impl Channel {
    /// `early`: long frames are told of when they begin. exit(3) waits for what is sent by it.
    pub(super) fn new(fd: Unshared, keys: Keys, (peer, conn): (&Hello, Conn), early: bool) -> Channel {
        fd.mark();
        Channel {
            fd,
            keys,
            rails: None,
            turn: 0,
            striped: usize::MAX,
            instance: peer.instance,
            conn,
            tx: Vec::new(),
            sent: 0,
            lost: false,
            blocked: false,
            rx: None,
            start: 0,
            end: 0,
            opened: None,
            early,
            front: Front::Unseen,
            bulk: 0,
            widened: false,
            seen: 0,
            waited: 0,
            over: None,
            last: false,
            unsure: false,
            owing: None,
            part: None,
        }
    }

    /// Whether its end is to be told of, perhaps after frames that have come.
    pub(super) fn ends(&self) -> bool {
        self.over.is_some() || self.last
    }

    /// Bytes that wait here for room.
    pub(super) fn pending(&self) -> usize {
        self.tx.len() - self.sent
    }

    /// Whether something that was sent has not left this process.
    pub(super) fn keeps(&self) -> bool {
        let rails = self.rails.iter().flat_map(|rails| rails.all.iter().flatten());
        self.pending() > 0 || self.lost || rails.filter_map(|rail| rail.channel()).any(Channel::keeps)
    }

    /// Whether a frame of so many bytes finds room, as far as is known.
    pub(super) fn has_room(&self, len: usize) -> bool {
        match self.pending() {
            0 => !self.blocked || len < LONG,
            pending => len < LONG && pending + len + RECORD <= TX_MOST,
        }
    }

    /// Whether much more finds room.
    pub(super) fn has_much_room(&self) -> bool {
        self.pending() == 0 && !self.blocked && (self.rails.is_none() || self.has_room_on_rail())
    }

    /// What is left with the kernel wakes a sleeper again and again: a look after a sleep counts as several.
    pub(super) fn hasten(&mut self) {
        if let Some(channel) = if self.turn == 0 { Some(self) } else { self.turned() } {
            channel.waited = channel.waited.saturating_add(PATIENCE / 4 - 1);
        }
    }

    /// Receives what is there, or leaves it where it is if that is better; `pool` has a buffer to spare.
    /// Returns whether there may be a frame, or the end.
    pub(super) fn fill(&mut self, pool: &mut Pool) -> bool {
        if self.turn != 0 {
            return self.fill_of_rail(pool);
        }
        self.fill_here(pool)
    }

    /// Likewise, of this connection.
    #[inline]
    pub(super) fn fill_here(&mut self, pool: &mut Pool) -> bool {
        if self.over.is_some() || self.has_frame_at(0) {
            return true;
        }
        if let Front::Lands(_) = &self.front {
            return self.fill_landing(pool);
        }
        if self.may_begin() {
            return true;
        }
        let most = match self.opened {
            Some(len) if len >= LONG => {
                let lacks = RECORD + len - (self.end - self.start);
                let there = sock::available(&self.fd);
                if there >= lacks {
                    return true;
                }
                if there > self.seen {
                    (self.seen, self.waited) = (there, 0);
                    return false;
                }
                self.waited = self.waited.saturating_add(1);
                if self.waited < PATIENCE && !self.last {
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
            self.rx = pool.take(self.last);
        }
        let Some(rx) = &mut self.rx else { return false };
        if self.start > 0 && rx.len() - self.end < most {
            rx.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let until = rx.len().min(self.end + most);
        match sock::recv(&self.fd, &mut rx[self.end..until]) {
            Ok(0) => self.over = Some(Gone::Reset),
            Ok(n) => self.end += n,
            Err(e) if would_block(&e) && self.last => self.over = Some(Gone::Reset),
            Err(e) if would_block(&e) => {
                self.give_back(pool);
                return false;
            }
            Err(e) => self.over = Some(gone(&e)),
        }
        true
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

    pub(super) fn buffered(&self) -> &[u8] {
        self.rx.as_deref().and_then(|rx| rx.get(self.start..self.end)).unwrap_or_default()
    }

    /// The next frame, if all of it is there, or it may be told of before.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Step {
        if self.turn != 0 {
            return self.next_of_rail();
        }
        self.next_here()
    }

    /// Likewise, where it is the turn of this connection.
    #[inline(always)]
    pub(super) fn next_here(&mut self) -> Step {
        if let Some(step) = self.next_of_landing() {
            return step;
        }
        match self.try_next() {
            Ok(Some(len)) => Step::Frame(len),
            Ok(None) if self.turn != 0 => self.next_of_rail(),
            Ok(None) if self.may_begin() => {
                self.front = Front::Told;
                Step::Begun(self.opened.unwrap_or_default())
            }
            Ok(None) => self.over.map_or(Step::Nothing, Step::End),
            Err(why) => {
                self.spoil(why);
                Step::End(why)
            }
        }
    }

    /// Nothing that comes is taken any more.
    pub(super) fn spoil(&mut self, why: Gone) {
        self.over = Some(why);
        (self.start, self.end, self.opened) = (0, 0, None);
        self.front = Front::Unseen;
    }

    fn try_next(&mut self) -> Result<Option<usize>, Gone> {
        let there = self.end - self.start;
        let len = match self.opened {
            Some(len) => len,
            None if there < RECORD => return Ok(None),
            None => match self.open()? {
                Some(len) => len,
                None => return Ok(None),
            },
        };
        if there >= RECORD + len {
            return Ok(Some(len));
        }
        if self.begins_early(len) {
            return Ok(None);
        }
        let rest = RECORD + len - there;
        Ok((len >= LONG && sock::available(&self.fd) >= rest).then_some(len))
    }

    /// Checks the record at the front, if enough of it is there; notes before it are taken.
    #[inline]
    pub(super) fn open(&mut self) -> Result<Option<usize>, Gone> {
        let bytes = self.rx.as_deref().and_then(|rx| rx.get(self.start..self.end)).unwrap_or_default();
        let Some((header, rest)) = bytes.split_first_chunk::<RECORD>() else { return Ok(None) };
        let Ok(len) = Opener::len(header, MAX_FRAME) else { return self.open_behind_notes() };
        let Some(front) = rest.get(..len.min(COVERED)) else { return Ok(None) };
        self.keys.opener.open(header, front).map_err(spoilt)?;
        self.opened = Some(len);
        if len >= LONG {
            self.widen();
        }
        Ok(Some(len))
    }

    #[inline(never)]
    fn widen(&mut self) {
        if !std::mem::replace(&mut self.widened, true) {
            sock::widen(&self.fd, 8 * MAX_FRAME);
        }
    }

    /// Whether a whole frame was received.
    pub(super) fn has_frame(&self) -> bool {
        if self.turn != 0 {
            return self.has_frame_of_rail();
        }
        self.has_frame_at(0)
    }

    /// Likewise, behind the one at hand, which has `len` bytes.
    pub(super) fn has_frame_behind(&self, len: usize) -> bool {
        self.turn == 0 && self.has_frame_at(RECORD + len)
    }

    pub(super) fn has_frame_at(&self, at: usize) -> bool {
        let record = self.buffered().get(at..).and_then(<[u8]>::split_first_chunk);
        record.is_some_and(|(header, rest)| match Opener::len(header, MAX_FRAME) {
            Ok(len) => rest.len() >= len,
            // What comes next is one of a rail.
            Err(_) => Opener::note_len(header).is_some_and(|len| rest.len() >= len),
        })
    }

    /// Whether there is a frame or an end to be told of, as far as was received.
    pub(super) fn is_ready(&mut self) -> bool {
        if self.turn != 0 {
            return self.is_rail_ready();
        }
        match &self.front {
            Front::Lands(landing) => landing.is_over() || self.ends(),
            _ => {
                self.ends()
                    || matches!(self.try_next(), Ok(Some(_)) | Err(_))
                    || self.may_begin()
                    || self.has_notes()
            }
        }
    }

    /// What was received of the frame at hand, which has `len` bytes, is not needed any more: `near` bytes.
    pub(super) fn pass(&mut self, near: usize, len: usize) {
        self.start += near;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        self.bulk = if len >= LONG { AMONG } else { self.bulk.saturating_sub(1) };
        (self.opened, self.seen, self.waited) = (None, 0, 0);
        self.front = Front::Unseen;
    }

    /// Gives the frame at hand back, which has `len` bytes. Returns whether there may be another one.
    #[inline(always)]
    pub(super) fn release(&mut self, len: usize) -> bool {
        if self.turn != 0 {
            return self.release_of_rail(len);
        }
        self.release_here(len)
    }

    /// Likewise, one of this connection.
    #[inline(always)]
    pub(super) fn release_here(&mut self, len: usize) -> bool {
        let whole = RECORD + len;
        let near = whole.min(self.end - self.start);
        if near < whole {
            if let Err(e) = sock::discard(&self.fd, whole - near) {
                self.over.get_or_insert(gone(&e));
            }
        }
        self.pass(near, len);
        // So that it is known whether another one is whole.
        if self.end - self.start >= RECORD {
            if let Err(why) = self.open() {
                self.spoil(why);
            }
        }
        self.end > self.start || self.over.is_some()
    }
}

#[cold]
pub(super) fn spoilt(e: Spoilt) -> Gone {
    log::warn!("a peer sends what is no record ({e:?}): its connection is closed");
    Gone::Denied
}

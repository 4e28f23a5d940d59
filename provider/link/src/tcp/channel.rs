//! A connection that is agreed on: frames as records, either way.
//!
//! A long frame is left with the kernel until all of it is there, and goes from there to where it belongs in one
//! copy ([`Channel::copy_out`]), or goes there as it comes ([`Channel::land`]). What would wait too long so is taken into a buffer here: the kernel keeps only so much.

use std::time::Instant;

use hmem::{Caps, Span};
use ipc::Unshared;
use link_api::{Gone, OpId, Refused};
use wire::Addr;
use wire::session::{COVERED, Hello, Keys, Opener, RECORD};

use super::landing::Front;
use super::sock::{self, gone, would_block};

/// Longest frame.
pub(super) const MAX_FRAME: usize = (256 << 10) + wire::EAGER_HEAD;
/// From how many bytes on a frame may be left with the kernel.
pub(super) const LONG: usize = 16 << 10;
/// Bytes of a buffer: a frame and what else one look finds.
const BUFFER: usize = MAX_FRAME + RECORD + STRETCH;
/// Most bytes that are received at a time where short frames come.
const STRETCH: usize = 32 << 10;
/// And where long ones do: a header, and what it covers.
const FRONT: usize = RECORD + COVERED;
/// Most bytes that wait here for room, but for the rest of one frame.
const TX_MOST: usize = 64 << 10;
/// Looks at a long frame that does not grow before it is taken in.
const PATIENCE: u8 = 4;

/// Memory to receive into.
pub(super) type Buffer = Box<[u8]>;

pub(super) fn buffer() -> Buffer {
    vec![0; BUFFER].into_boxed_slice()
}

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
    keys: Keys,
    /// Which endpoint is at the other end, and its epoch when it was made ([`Hello`]).
    pub(super) instance: u64,
    pub(super) epoch: u64,
    /// What that one calls this endpoint.
    pub(super) called: Addr,
    /// What waits for room, from `sent` on.
    tx: Vec<u8>,
    sent: usize,
    /// The kernel had no room, and has not said since that it has.
    pub(super) blocked: bool,
    rx: Option<Buffer>,
    start: usize,
    end: usize,
    /// The record at `start` is what was sent, and its frame has so many bytes.
    pub(super) opened: Option<usize>,
    /// Frames are told of when they begin; and how far the one at the front is with that.
    pub(super) early: bool,
    pub(super) front: Front,
    /// Long frames come.
    bulk: bool,
    widened: bool,
    /// How much of the next frame was with the kernel at the last look, and looks since.
    seen: usize,
    waited: u8,
    /// Nothing more will be received.
    pub(super) over: Option<Gone>,
    /// What it is followed by is there, or nothing can be sent any more: it ends when nothing more is to be had.
    pub(super) last: bool,
    /// Something was sent that may not have arrived, and since when that is known.
    pub(super) unsure: bool,
    pub(super) owing: Option<Instant>,
}

impl Channel {
    /// `early`: long frames are told of when they begin.
    pub(super) fn new(fd: Unshared, keys: Keys, peer: &Hello, early: bool) -> Channel {
        Channel {
            fd,
            keys,
            instance: peer.instance,
            epoch: peer.epoch,
            called: peer.other,
            tx: Vec::new(),
            sent: 0,
            blocked: false,
            rx: None,
            start: 0,
            end: 0,
            opened: None,
            early,
            front: Front::Unseen,
            bulk: false,
            widened: false,
            seen: 0,
            waited: 0,
            over: None,
            last: false,
            unsure: false,
            owing: None,
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

    /// Whether a frame of so many bytes finds room, as far as is known.
    pub(super) fn has_room(&self, len: usize) -> bool {
        match self.pending() {
            0 => !self.blocked || len < LONG,
            pending => len < LONG && pending + len + RECORD <= TX_MOST,
        }
    }

    /// Whether much more finds room.
    pub(super) fn has_much_room(&self) -> bool {
        self.pending() == 0 && !self.blocked
    }

    /// Sends a frame, or what of it finds room with the kernel, and keeps the rest.
    pub(super) fn send(&mut self, head: &[u8], body: &[Span], off: usize, len: usize) -> Result<(), Refused> {
        let n = head.len() + len;
        if self.ends() {
            return Err(Refused::Gone(Gone::Reset));
        }
        if !self.has_room(n) {
            return Err(Refused::Busy);
        }
        let mut front = [0; RECORD + COVERED];
        let of_head = head.len().min(COVERED);
        let of_body = len.min(COVERED - of_head);
        front[RECORD..RECORD + of_head].copy_from_slice(&head[..of_head]);
        let inline = RECORD + of_head + of_body;
        if of_body > 0 && hmem::read(body, off, &mut front[RECORD + of_head..inline]) != of_body {
            return Err(Refused::Fault);
        }
        let header = self.keys.sealer.seal(n as u32, &front[RECORD..inline]);
        front[..RECORD].copy_from_slice(&header);
        let (front, middle) = (&front[..inline], &head[of_head..]);
        let done = self.send_sealed(front, middle, body, off + of_body, len - of_body);
        match done {
            Ok(()) => self.unsure = true,
            Err(_) => self.keys.sealer.take_back(),
        }
        done
    }

    fn send_sealed(
        &mut self,
        front: &[u8],
        middle: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
        let total = front.len() + middle.len() + len;
        // What may turn out not to be there is read before anything is sent.
        let steady = len == 0 || hmem::can(body, Caps::CMA) && !body.iter().any(|s| s.may_vanish());
        let mut sent = 0;
        if steady && !self.blocked && self.pending() == 0 {
            match sock::send_parts(&self.fd, front, middle, body, off, len) {
                Some(Ok(n)) if n == total => return Ok(()),
                Some(Ok(n)) => (sent, self.blocked) = (n, true),
                Some(Err(e)) if would_block(&e) => {
                    self.blocked = true;
                    if total >= LONG {
                        return Err(Refused::Busy);
                    }
                }
                Some(Err(_)) => {
                    // What came before is there all the same.
                    self.last = true;
                    return Err(Refused::Gone(Gone::Reset));
                }
                None => {}
            }
        }
        self.keep(front, middle, body, off, len, sent)?;
        if !self.blocked {
            self.flush();
        }
        Ok(())
    }

    /// Keeps a record but for the first `sent` bytes of it.
    fn keep(
        &mut self,
        front: &[u8],
        middle: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
        mut sent: usize,
    ) -> Result<(), Refused> {
        let (before, begun) = (self.tx.len(), sent > 0);
        for part in [front, middle] {
            let skip = sent.min(part.len());
            self.tx.extend_from_slice(&part[skip..]);
            sent -= skip;
        }
        let at = self.tx.len();
        self.tx.resize(at + len - sent, 0);
        if hmem::read(body, off + sent, &mut self.tx[at..]) == len - sent {
            return Ok(());
        }
        self.tx.truncate(before);
        if begun {
            // A part of it is on its way, and the rest is not to be had.
            self.last = true;
        }
        Err(Refused::Fault)
    }

    /// Sends on what waits for room.
    pub(super) fn flush(&mut self) {
        self.blocked = false;
        while self.pending() > 0 {
            match sock::send(&self.fd, &self.tx[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if would_block(&e) => {
                    self.blocked = true;
                    return;
                }
                Err(_) => {
                    self.last = true;
                    break;
                }
            }
        }
        (self.tx, self.sent) = (Vec::new(), 0);
    }

    /// Receives what is there, or leaves it where it is if that is better; `pool` has a buffer to spare. Returns whether there may be a
    /// frame, or the end.
    pub(super) fn fill(&mut self, pool: &mut Vec<Buffer>) -> bool {
        if self.over.is_some() || self.has_frame() {
            return true;
        }
        if let Front::Lands(landing) = &mut self.front {
            let end = landing.receive(&self.fd);
            self.over = end.or((self.last && !landing.is_over()).then_some(Gone::Reset));
            return landing.is_over() || self.over.is_some();
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
            _ if self.bulk => FRONT,
            _ => STRETCH,
        };
        let rx = self.rx.get_or_insert_with(|| pool.pop().unwrap_or_else(buffer));
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
    fn give_back(&mut self, pool: &mut Vec<Buffer>) {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if pool.len() < 4 {
                pool.extend(self.rx.take());
            } else {
                self.rx = None;
            }
        }
    }

    pub(super) fn buffered(&self) -> &[u8] {
        self.rx.as_deref().and_then(|rx| rx.get(self.start..self.end)).unwrap_or_default()
    }

    /// The next frame, if all of it is there, or it may be told of before.
    pub(super) fn next(&mut self) -> Step {
        if let Some(step) = self.next_of_landing() {
            return step;
        }
        match self.try_next() {
            Ok(Some(len)) => Step::Frame(len),
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

    /// Nothing that comes is believed any more.
    fn spoil(&mut self, why: Gone) {
        self.over = Some(why);
        (self.start, self.end, self.opened) = (0, 0, None);
        self.front = Front::Unseen;
    }

    fn try_next(&mut self) -> Result<Option<usize>, Gone> {
        let there = self.end - self.start;
        let len = match self.opened {
            Some(len) => len,
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

    /// Checks the record at the front, if enough of it is there.
    fn open(&mut self) -> Result<Option<usize>, Gone> {
        let bytes = self.rx.as_deref().and_then(|rx| rx.get(self.start..self.end)).unwrap_or_default();
        let Some((header, rest)) = bytes.split_first_chunk::<RECORD>() else { return Ok(None) };
        let spoilt = |e| {
            log::warn!("a peer sends what is no record ({e:?}): its connection is closed");
            Gone::Denied
        };
        let len = Opener::len(header, MAX_FRAME).map_err(spoilt)?;
        let Some(front) = rest.get(..len.min(COVERED)) else { return Ok(None) };
        self.keys.opener.open(header, front).map_err(spoilt)?;
        self.opened = Some(len);
        if len >= LONG && !self.widened {
            self.widened = true;
            sock::widen(&self.fd, 8 * MAX_FRAME);
        }
        Ok(Some(len))
    }

    /// Whether a whole frame was received.
    pub(super) fn has_frame(&self) -> bool {
        self.has_frame_at(0)
    }

    /// Likewise, behind the one at hand, which has `len` bytes.
    pub(super) fn has_frame_behind(&self, len: usize) -> bool {
        self.has_frame_at(RECORD + len)
    }

    fn has_frame_at(&self, at: usize) -> bool {
        let header = self.buffered().get(at..).and_then(<[u8]>::split_first_chunk);
        header.is_some_and(|(header, rest)| Opener::len(header, MAX_FRAME).is_ok_and(|len| rest.len() >= len))
    }

    /// Whether there is a frame or an end to be told of, as far as was received.
    pub(super) fn is_ready(&mut self) -> bool {
        match &self.front {
            Front::Lands(landing) => landing.is_over() || self.ends(),
            _ => self.ends() || matches!(self.try_next(), Ok(Some(_)) | Err(_)) || self.may_begin(),
        }
    }

    /// What was received of the frame at hand, which has `len` bytes, is not needed any more: `near` bytes.
    pub(super) fn pass(&mut self, near: usize, len: usize) {
        self.start += near;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        self.bulk = len >= LONG;
        (self.opened, self.seen, self.waited) = (None, 0, 0);
        self.front = Front::Unseen;
    }

    /// Gives the frame at hand back, which has `len` bytes. Returns whether there may be another one.
    pub(super) fn release(&mut self, len: usize) -> bool {
        let whole = RECORD + len;
        let near = whole.min(self.end - self.start);
        if near < whole {
            if let Err(e) = sock::discard(&self.fd, whole - near) {
                self.over.get_or_insert(gone(&e));
            }
        }
        self.pass(near, len);
        // So that it is known whether another one is whole.
        if let Err(why) = self.open() {
            self.spoil(why);
        }
        self.end > self.start || self.over.is_some()
    }
}

//! What two ends of a fabric have agreed on, and what is under way between them.

use std::collections::BTreeMap;

use hmem::Span;
use wire::session::{COVERED, Keys, Mark, Opener, RECORD};

use crate::network::{Below, Buffer, Dest, Message, NotSent};
use crate::peer::rest::Counts;
use crate::published::{MOST_SAID, said_in};

/// Bytes before a frame: the mark, the record's header, the sort of message, and what the sender is done
/// with.
pub(crate) const BEFORE: usize = Mark::LEN + RECORD + WORDS;
const WORDS: usize = 8;
/// Where that begins which the tag covers.
const START: usize = Mark::LEN + RECORD;
/// Bytes of a short message, at most.
const SHORT: usize = 128;
// The front of a short message is all of it, which the tag covers.
const _: () = assert!(SHORT <= START + COVERED);
/// So much of what may be under way is for messages that report room.
const SPARE: u32 = 4;

/// What a message is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Sort {
    Frame = 1,
    Ping = 2,
    Pong = 3,
    Room = 4,
    /// The request of this name is taken back.
    Revoke = 5,
    /// No memory is accessed by it any more.
    Left = 6,
    /// The name may be used again.
    Renew = 7,
    /// A read of memory of this generation has ended before its time: its owner's provider may not know yet.
    Cut = 8,
    /// What was lent in this generation is not lent any more.
    Ended = 9,
    /// How is the registration of this key accessed?
    Ask = 10,
    /// So, or not without its owner.
    Region = 11,
}

/// A message to be sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said<'a> {
    pub(crate) sort: Sort,
    pub(crate) head: &'a [u8],
    /// Of this, `len` bytes from `off` on come behind the head.
    pub(crate) body: &'a [Span],
    pub(crate) off: usize,
    pub(crate) len: usize,
}

impl<'a> Said<'a> {
    /// A message that is no frame.
    pub(crate) fn short(sort: Sort, head: &'a [u8]) -> Said<'a> {
        Said { sort, head, body: &[], off: 0, len: 0 }
    }
}

/// A message breaks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spoilt(pub(crate) &'static str);

/// Where a message is that has come.
#[derive(Debug)]
pub(crate) enum Came {
    /// Where the fabric has put it, and its bytes.
    Buffer(Buffer, usize),
    /// It arrived before others that were sent earlier.
    Copy(Box<[u8]>),
}

impl Came {
    /// Its bytes; none of a buffer of a fabric that is no more.
    #[inline(always)]
    pub(crate) fn bytes<'a, F: Below>(&'a self, below: Option<&'a F>) -> &'a [u8] {
        match (self, below) {
            (Came::Buffer(buffer, len), Some(below)) => below.bytes(*buffer).get(..*len).unwrap_or_default(),
            (Came::Buffer(..), None) => &[],
            (Came::Copy(bytes), _) => bytes,
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Came::Buffer(_, len) => *len,
            Came::Copy(bytes) => bytes.len(),
        }
    }

    /// It is not needed any more.
    pub(crate) fn give_back<F: Below>(self, below: Option<&mut F>) {
        if let (Came::Buffer(buffer, _), Some(below)) = (self, below) {
            below.give_back(buffer);
        }
    }
}

/// A message's header, and what that covers and more.
#[inline]
fn parts(bytes: &[u8]) -> Result<(&[u8; RECORD], &[u8]), Spoilt> {
    let short = Spoilt("it is too short");
    let record = bytes.get(Mark::LEN..).ok_or(short)?;
    let (header, said) = record.split_first_chunk::<RECORD>().ok_or(short)?;
    let len = Opener::len(header, said.len()).map_err(|_| Spoilt("its length is wrong"))?;
    if len != said.len() || len < WORDS {
        return Err(Spoilt("its length is wrong"));
    }
    Ok((header, said))
}

/// What a message is for, and what its sender is done with.
#[inline]
fn words(said: &[u8]) -> Result<(u32, u32), Spoilt> {
    let both = said.first_chunk().map(|both| u64::from_le_bytes(*both));
    let both = both.ok_or(Spoilt("it is too short"))?;
    Ok((both as u32, (both >> 32) as u32))
}

/// The name that a message says something of.
pub(crate) fn name_in(bytes: &[u8]) -> Option<u64> {
    bytes.get(BEFORE..)?.try_into().ok().map(u64::from_le_bytes)
}

/// What a message says of a registration.
pub(crate) fn region_in(bytes: &[u8]) -> Option<[u8; MOST_SAID]> {
    said_in(bytes.get(BEFORE..)?)
}

/// The other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Far {
    pub(crate) dest: Dest,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
    /// How many messages may be under way.
    pub(crate) window: u32,
}

/// A channel by the fabric.
#[derive(Debug)]
pub(crate) struct Channel {
    far: Far,
    keys: Keys,
    /// What failures of messages are reported with.
    who: u64,
    /// Messages sent, and with how many of them the other side is done.
    sent: u32,
    done_there: u32,
    /// Messages that came in order, with how many of them this side is done, and what it has said of that.
    came: u32,
    done: u32,
    reported: u32,
    /// What came before others that were sent earlier. Copied, so that those find buffers to come in.
    early: BTreeMap<u32, Box<[u8]>>,
    /// The first message each way, by which the two meet: either may be sent again, and come again.
    first_sent: Option<Box<[u8]>>,
    first_came: Option<Box<[u8]>>,
}

/// What failures of a channel's first message, which may be sent again, are reported with beside its
/// [`Message::who`].
pub(crate) const FIRST: u64 = 1 << 63;

impl Channel {
    pub(crate) fn new(far: Far, keys: Keys, who: u64) -> Channel {
        Channel {
            far,
            keys,
            who,
            sent: 0,
            done_there: 0,
            came: 0,
            done: 0,
            reported: 0,
            early: BTreeMap::new(),
            first_sent: None,
            first_came: None,
        }
    }

    /// The other end.
    pub(crate) fn far(&self) -> Far {
        self.far
    }

    /// How many messages were sent.
    pub(crate) fn sent(&self) -> u32 {
        self.sent
    }

    /// How many messages arrived in order.
    pub(crate) fn came(&self) -> u32 {
        self.came
    }

    /// Sends the first message again, if there was one, as it was.
    pub(crate) fn repeat_first<F: Below>(&self, below: &mut F) -> Result<(), NotSent> {
        let Some(front) = self.first_sent.as_deref() else { return Ok(()) };
        let who = self.who | FIRST;
        let message = Message { who, is_frame: false, front, middle: &[], body: &[], off: 0, len: 0 };
        below.send(self.far.dest, &message)
    }

    /// Whether these bytes are those of the first message, which was taken before.
    #[cold]
    pub(crate) fn is_first_again(&self, bytes: &[u8]) -> bool {
        self.first_came.as_deref() == Some(bytes)
    }

    /// Whether a frame that was sent is with the provider below still.
    pub(crate) fn keeps<F: Below>(&self, below: &F) -> bool {
        below.keeps(self.who)
    }

    fn under_way(&self) -> u32 {
        self.sent.wrapping_sub(self.done_there)
    }

    /// Whether a frame finds room with the other side.
    pub(crate) fn has_room(&self) -> bool {
        self.under_way() + SPARE < self.far.window
    }

    /// Whether many do.
    pub(crate) fn has_much_room(&self) -> bool {
        2 * self.under_way() < self.far.window
    }

    /// Whether all that was sent was taken.
    pub(crate) fn is_quiet(&self) -> bool {
        self.under_way() == 0
    }

    /// How many messages went each way, if this side is done with all that came.
    pub(crate) fn counts_if_done(&self) -> Option<Counts> {
        let is_done = self.came == self.done && self.early.is_empty();
        is_done.then_some(self.counts())
    }

    /// How many messages went each way.
    pub(crate) fn counts(&self) -> Counts {
        Counts { sent: self.sent, came: self.came }
    }

    /// Sends a message.
    #[inline(always)]
    pub(crate) fn send<F: Below>(&mut self, below: &mut F, said: Said<'_>) -> Result<(), NotSent> {
        let is_frame = said.sort == Sort::Frame;
        if !(if is_frame { self.has_room() } else { self.under_way() < self.far.window }) {
            return Err(NotSent::Busy);
        }
        // To zero room for more takes longer than a short message.
        if said.head.len() <= SHORT - BEFORE && said.len <= SHORT - BEFORE - said.head.len() {
            self.send_short(below, said)
        } else {
            self.send_long(below, said)
        }
    }

    /// Sends a message that goes as a whole.
    #[inline]
    fn send_short<F: Below>(
        &mut self,
        below: &mut F,
        Said { sort, head, body, off, len }: Said<'_>,
    ) -> Result<(), NotSent> {
        let mut front = [0; SHORT];
        let mid = BEFORE + head.len();
        let end = mid + len;
        front[BEFORE..mid].copy_from_slice(head);
        if len > 0 && hmem::read(body, off, &mut front[mid..end]) != len {
            return Err(NotSent::Fault);
        }
        self.send_with(below, sort, (&mut front, end), (&[], &[], 0, 0))
    }

    /// Sends a message of which the front holds all that the tag covers.
    #[inline(never)]
    fn send_long<F: Below>(
        &mut self,
        below: &mut F,
        Said { sort, head, body, off, len }: Said<'_>,
    ) -> Result<(), NotSent> {
        let mut front = [0; START + COVERED];
        let of_head = head.len().min(COVERED - WORDS);
        let of_body = len.min(COVERED - WORDS - of_head);
        let (mid, end) = (BEFORE + of_head, BEFORE + of_head + of_body);
        front[BEFORE..mid].copy_from_slice(&head[..of_head]);
        if of_body > 0 && hmem::read(body, off, &mut front[mid..end]) != of_body {
            return Err(NotSent::Fault);
        }
        let rest = (&head[of_head..], body, off + of_body, len - of_body);
        self.send_with(below, sort, (&mut front, end), rest)
    }

    /// Sends a message whose front, up to `end`, has room for what is before all messages. Behind it are part
    /// of a head, and of a body so many bytes from there on.
    #[inline(always)]
    fn send_with<const FRONT: usize, F: Below>(
        &mut self,
        below: &mut F,
        sort: Sort,
        (front, end): (&mut [u8; FRONT], usize),
        (middle, body, off, len): (&[u8], &[Span], usize, usize),
    ) -> Result<(), NotSent> {
        front[START..START + 4].copy_from_slice(&(sort as u32).to_le_bytes());
        front[START + 4..BEFORE].copy_from_slice(&self.done.to_le_bytes());
        let total = end - START + middle.len() + len;
        let header = self.keys.sealer.seal(total as u32, &front[START..end]);
        let mark = Mark { slot: self.far.slot, generation: self.far.generation, number: self.sent };
        front[..Mark::LEN].copy_from_slice(&mark.encode());
        front[Mark::LEN..START].copy_from_slice(&header);
        let is_first = self.sent == 0 && sort != Sort::Frame && self.first_sent.is_none();
        let message = Message {
            who: if is_first { self.who | FIRST } else { self.who },
            is_frame: sort == Sort::Frame,
            front: &front[..end],
            middle,
            body,
            off,
            len,
        };
        match below.send(self.far.dest, &message) {
            Ok(()) => {
                if is_first {
                    self.first_sent = Some(front[..end].into());
                }
                self.sent = self.sent.wrapping_add(1);
                self.reported = self.done;
                Ok(())
            }
            Err(why) => {
                self.keys.sealer.take_back();
                Err(why)
            }
        }
    }

    /// Whether a message of this number, which is all of `bytes`, is the next one. One that overtook others
    /// is kept, if it is what was sent.
    #[inline]
    pub(crate) fn is_next(&mut self, number: u32, bytes: &[u8], window: u32) -> Result<bool, Spoilt> {
        let ahead = number.wrapping_sub(self.came);
        // No honest sender has more under way than there is room for.
        if ahead >= window {
            return Err(Spoilt("its number is not one of those that may come"));
        }
        if ahead == 0 { Ok(true) } else { self.keep_early(number, ahead, bytes) }
    }

    /// Keeps a message that comes `ahead` others, if it is what was sent.
    #[cold]
    fn keep_early(&mut self, number: u32, ahead: u32, bytes: &[u8]) -> Result<bool, Spoilt> {
        let (header, said) = parts(bytes)?;
        let checked = self.keys.opener.check(ahead.into(), header, &said[..said.len().min(COVERED)]);
        checked.map_err(|_| Spoilt("it is not what was sent"))?;
        if self.early.contains_key(&number) {
            return Err(Spoilt("its number came before"));
        }
        self.early.insert(number, bytes.into());
        Ok(false)
    }

    /// Whether messages are kept that arrived before others that were sent earlier.
    #[inline]
    pub(crate) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// The next message, if it arrived before others that were sent earlier.
    pub(crate) fn next_early(&mut self) -> Option<Box<[u8]>> {
        self.early.remove(&self.came)
    }

    /// Checks the next message, which is all of `bytes`; what it is for.
    #[inline]
    pub(crate) fn open(&mut self, bytes: &[u8]) -> Result<Sort, Spoilt> {
        let (header, said) = parts(bytes)?;
        let opened = self.keys.opener.open(header, &said[..said.len().min(COVERED)]);
        opened.map_err(|_| Spoilt("it is not what was sent"))?;
        let (sort, done) = words(said)?;
        // More than before, and no more than was sent.
        if done.wrapping_sub(self.done_there) > self.under_way() {
            return Err(Spoilt("it has taken what was not sent"));
        }
        if self.came == 0 && self.first_came.is_none() && bytes.len() <= SHORT {
            self.first_came = Some(bytes.into());
        }
        self.done_there = done;
        self.came = self.came.wrapping_add(1);
        Ok(match sort {
            1 => Sort::Frame,
            2 => Sort::Ping,
            3 => Sort::Pong,
            4 => Sort::Room,
            5 => Sort::Revoke,
            6 => Sort::Left,
            7 => Sort::Renew,
            8 => Sort::Cut,
            9 => Sort::Ended,
            10 => Sort::Ask,
            11 => Sort::Region,
            _ => return Err(Spoilt("its sort is unknown")),
        })
    }

    /// Memory of the peer was written with data, which is reported there in the place of a message.
    pub(crate) fn note_sent(&mut self) {
        self.sent = self.sent.wrapping_add(1);
    }

    /// The peer has written memory with data. Up to so many messages may wait here.
    pub(crate) fn note_written(&mut self, window: u32) -> Result<(), Spoilt> {
        if self.came.wrapping_sub(self.done) >= window {
            return Err(Spoilt("it has written with data more often than there is room"));
        }
        self.came = self.came.wrapping_add(1);
        Ok(())
    }

    /// One more message was done with.
    #[inline]
    pub(crate) fn note_done(&mut self) {
        self.done = self.done.wrapping_add(1);
    }

    /// Whether room has to be reported by a message of its own: once half of the window is free
    /// without its knowledge. Less than that never keeps [`Channel::has_much_room`] from being true there.
    #[inline]
    pub(crate) fn owes_room(&self, window: u32) -> bool {
        2 * self.done.wrapping_sub(self.reported) >= window
    }
}

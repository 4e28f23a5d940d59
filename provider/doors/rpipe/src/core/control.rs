//! The control messages by which the two ends of a stream meet and part.
//!
//! | message | from, to | says | grants |
//! |---|---|---|---|
//! | `Hello` | writer, reader | the stream is needed | – |
//! | `Reader` | reader, writer | what the heap is like | slots, tags, heap |
//! | `Writer` | writer, reader | how messages will come | state, tags, heap of the writer |
//! | `Close` | either, either | the end is closed, and why | – |
//!
//! Numbers are little-endian. Nothing is trusted: what cannot be is `None`.

use crate::core::settings::{HEAP_MOST, INJECT_MOST, SLOTS, Sync, granule};
use crate::core::stream::Mode;
use crate::{Error, Rank};

/// What a stream is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// The one of a half-duplex pipe.
    Half,
    /// One of the two of a full-duplex pipe.
    Full,
}

/// Which stream: the two ends count alike those that they open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) class: Class,
    pub(crate) writer: Rank,
    pub(crate) reader: Rank,
    pub(crate) ordinal: u32,
}

/// What the reader's end is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// The longest message; `u64::MAX`: as long as the heap.
    pub(crate) width: u64,
    pub(crate) heap: usize,
    /// A power of two.
    pub(crate) slots: usize,
    pub(crate) place: Place,
}

/// What memory a heap is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// The host's, behind the slots.
    #[default]
    Host,
    /// A device's, a region of its own; `numbers`: with numbers of messages before it, for kernels.
    Device { numbers: bool },
}

/// Bytes by which a kernel finds a message: its length, the lower half of its number, the place of its block,
/// and the same half again. Each of the two words is there at once, and says of which message it is.
pub(crate) const NUMBER: usize = 16;

impl Shape {
    /// With at least so long a heap and so many slots.
    pub(crate) fn new(width: u64, heap: usize, slots: usize) -> Result<Shape, Error> {
        let wide = if width == u64::MAX { 1 } else { usize::try_from(width).unwrap_or(usize::MAX) };
        if heap > HEAP_MOST || wide > HEAP_MOST || !SLOTS.contains(&slots) {
            return Err(Error::Invalid(format!(
                "a heap of {heap} bytes, a width of {wide}, {slots} slots: the most are 16 GiB, 16 GiB and 32768, the least 1"
            )));
        }
        let heap = heap.max(wide).max(8);
        let heap = heap.next_multiple_of(granule(heap));
        let (heap, slots) = (heap.next_multiple_of(granule(heap)), slots.next_power_of_two());
        Ok(Shape { width, heap, slots, place: Place::Host })
    }

    pub(crate) fn granule(self) -> usize {
        granule(self.heap)
    }

    /// The longest block that may be allocated: as wide as the pipe, as long as the heap, less than 4 GiB.
    pub(crate) fn most(self) -> usize {
        self.heap.min(usize::try_from(self.width).unwrap_or(usize::MAX)).min(u32::MAX as usize)
    }

    /// Where the slot of the message of this number (from 0) is in the reader's region.
    #[inline]
    pub(crate) fn slot(self, number: u64) -> usize {
        (number as usize & (self.slots - 1)) * crate::core::slot::SLOT
    }

    /// Where the tags begin in the reader's region, behind the slots.
    pub(crate) fn tags(self) -> usize {
        self.slots * crate::core::slot::SLOT
    }

    /// Where the heap begins in the reader's region.
    pub(crate) fn heap_at(self) -> usize {
        (self.unread_at() + INJECT_MOST).next_multiple_of(4096)
    }

    /// Where the writer puts `INJECT_MOST` bytes to see how long that takes: in the reader's region, which
    /// does not read them.
    pub(crate) fn unread_at(self) -> usize {
        (self.tags() + 8 * self.slots).next_multiple_of(64)
    }

    /// The bytes of the reader's region.
    pub(crate) fn region(self) -> usize {
        self.heap_at() + if self.place == Place::Host { self.heap.next_multiple_of(64) } else { 0 }
    }

    pub(crate) fn is_on_device(self) -> bool {
        self.place != Place::Host
    }

    /// Where the number of the message of this number (from 0) is in the reader's memory of a device.
    pub(crate) fn number(self, number: u64) -> Option<usize> {
        let there = self.place == Place::Device { numbers: true };
        there.then_some((number as usize & (self.slots - 1)) * NUMBER)
    }

    /// Where the heap begins there.
    pub(crate) fn device_heap_at(self) -> usize {
        if self.number(0).is_some() { (self.slots * NUMBER).next_multiple_of(4096) } else { 0 }
    }

    /// The bytes of it.
    pub(crate) fn device_region(self) -> usize {
        self.device_heap_at() + self.heap
    }

    /// Where slots are made in the writer's region, behind a line of state and the tags.
    pub(crate) fn stage_at(self) -> usize {
        (STATE + 8 * self.slots).next_multiple_of(64)
    }

    /// Where the heap begins in the writer's region.
    pub(crate) fn writer_heap_at(self) -> usize {
        (self.answer_at() + 8).next_multiple_of(4096)
    }

    /// Where a word goes in the writer's region that is got for the time it takes.
    pub(crate) fn answer_at(self) -> usize {
        self.stage_at() + self.tags()
    }

    /// The bytes of the writer's region, with a heap or without.
    pub(crate) fn writer_region(self, heap: bool) -> usize {
        self.writer_heap_at() + if heap { self.heap.next_multiple_of(64) } else { 0 }
    }

    fn check(self) -> Option<Shape> {
        let fits = self.heap > 0 && self.heap <= HEAP_MOST && self.heap % self.granule() == 0;
        (fits && SLOTS.contains(&self.slots) && self.slots.is_power_of_two()).then_some(self)
    }
}

/// Bytes of state at the beginning of the writer's region, before its tags: whether the reader sleeps.
pub(crate) const STATE: usize = 64;

/// How the writer's messages will come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Manner {
    pub(crate) mode: Mode,
    pub(crate) sync: Sync,
    /// The reader gets the bytes, instead of the writer putting them.
    pub(crate) pull: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    Hello,
    /// `no`: what notifications of this stream carry. `fences`: the reader uses membarrier(2) before it
    /// sleeps.
    Reader {
        shape: Shape,
        no: u16,
        fences: bool,
    },
    Writer {
        width: u64,
        manner: Manner,
    },
    Close(Reason),
}

/// Why an end is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// By its program.
    Done,
    /// The two ends do not go together.
    Mismatch,
    /// The other end broke the protocol.
    Protocol,
    /// The reader cannot have its heap where it is to be.
    NoHeap,
    /// The other end cannot be set up where it is.
    Failed,
    /// The group that it was of is over: for this rank's end, or because its call has failed.
    Over(Rank),
}

impl Reason {
    fn encode(self) -> Vec<u8> {
        match self {
            Reason::Done => vec![0],
            Reason::Mismatch => vec![1],
            Reason::Protocol => vec![2],
            Reason::NoHeap => vec![4],
            Reason::Failed => vec![5],
            Reason::Over(rank) => [3].into_iter().chain(rank.to_le_bytes()).collect(),
        }
    }
}

/// Beside whether the reader uses membarrier(2): its heap is a device's, with numbers.
const ON_DEVICE: u8 = 2;
const NUMBERS: u8 = 4;
const BOTH: u8 = ON_DEVICE | NUMBERS;

const VERSION: u8 = 1;
/// Bytes before what each kind adds.
const HEAD: usize = 16;

impl Control {
    pub(crate) fn encode(&self, key: &Key) -> Vec<u8> {
        let (kind, rest): (u8, Vec<u8>) = match self {
            Control::Hello => (1, Vec::new()),
            Control::Reader { shape, no, fences } => {
                let mut rest = Vec::new();
                rest.extend(shape.width.to_le_bytes());
                rest.extend((shape.heap as u64).to_le_bytes());
                rest.extend((shape.slots as u32).to_le_bytes());
                rest.extend(no.to_le_bytes());
                let on_device = match shape.place {
                    Place::Host => 0,
                    Place::Device { numbers } => ON_DEVICE | if numbers { NUMBERS } else { 0 },
                };
                rest.push(u8::from(*fences) | on_device);
                (2, rest)
            }
            Control::Writer { width, manner } => {
                let mut rest = width.to_le_bytes().to_vec();
                rest.extend([
                    manner.mode.code(),
                    u8::from(manner.sync == Sync::Immediate),
                    u8::from(manner.pull),
                ]);
                (3, rest)
            }
            Control::Close(reason) => (4, reason.encode()),
        };
        let mut bytes = vec![VERSION, kind, u8::from(key.class == Class::Full), 0];
        for number in [key.writer, key.reader, key.ordinal] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(rest);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Option<(Key, Control)> {
        let (head, rest) = bytes.split_at_checked(HEAD)?;
        let number = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let class = match head[2] {
            0 => Class::Half,
            1 => Class::Full,
            _ => return None,
        };
        let key = Key { class, writer: number(4), reader: number(8), ordinal: number(12) };
        let mut rest = Rest(rest);
        let control = match (head[0], head[1]) {
            (VERSION, 1) => Control::Hello,
            (VERSION, 2) => {
                let (width, heap) = (rest.wide()?, usize::try_from(rest.wide()?).ok()?);
                let slots = rest.wide_of::<4>()? as usize;
                let (no, bits) = (rest.wide_of::<2>()? as u16, rest.wide_of::<1>()? as u8);
                let place = match bits & !1 {
                    0 => Place::Host,
                    ON_DEVICE => Place::Device { numbers: false },
                    BOTH => Place::Device { numbers: true },
                    _ => return None,
                };
                let shape = Shape { width, heap, slots, place }.check()?;
                Control::Reader { shape, no, fences: bits & 1 != 0 }
            }
            (VERSION, 3) => {
                let width = rest.wide()?;
                let mode = Mode::from_code(rest.wide_of::<1>()? as u8)?;
                let sync = if rest.bit()? { Sync::Immediate } else { Sync::Deferred };
                Control::Writer { width, manner: Manner { mode, sync, pull: rest.bit()? } }
            }
            (VERSION, 4) => Control::Close(match rest.wide_of::<1>()? {
                0 => Reason::Done,
                1 => Reason::Mismatch,
                3 => Reason::Over(rest.wide_of::<4>()? as Rank),
                4 => Reason::NoHeap,
                5 => Reason::Failed,
                _ => Reason::Protocol,
            }),
            _ => return None,
        };
        rest.0.is_empty().then_some((key, control))
    }
}

/// What is left of a message.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn wide_of<const N: usize>(&mut self) -> Option<u64> {
        let (head, rest) = self.0.split_at_checked(N)?;
        self.0 = rest;
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(head);
        Some(u64::from_le_bytes(wide))
    }

    fn wide(&mut self) -> Option<u64> {
        self.wide_of::<8>()
    }

    fn bit(&mut self) -> Option<bool> {
        match self.wide_of::<1>()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

/// The error of a program when the peer has closed its end.
pub(crate) fn closed(reason: Reason, shape: &str) -> Error {
    match reason {
        Reason::Done => Error::Gone("the peer has closed its end of the pipe".into()),
        Reason::Mismatch => Error::Invalid(format!(
            "the two ends of the pipe do not go together: give both the same width and the same kind ({shape})"
        )),
        Reason::NoHeap => Error::Unsupported(
            "the reader cannot have its heap in memory of a device, or no path to it leads there: the reader's call says why".into(),
        ),
        Reason::Failed => Error::Gone(
            "the peer cannot set its end of the pipe up, for want of descriptors or memory, or of a flag mode: its call says why".into(),
        ),
        Reason::Over(rank) => Error::Gone(format!(
            "rank {rank} has ended, has left the group, or its call has failed: the group is over"
        )),
        Reason::Protocol => Error::Broken("the peer says that this end has broken the protocol".into()),
    }
}

/// The error of a program when the two ends are not as wide.
pub(crate) fn mismatch(mine: u64, theirs: u64) -> Error {
    let name = |width: u64| if width == u64::MAX { "unbounded".to_owned() } else { width.to_string() };
    Error::Invalid(format!(
        "this end of the pipe is {} wide, and the other {}: give both the same width",
        name(mine),
        name(theirs)
    ))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn messages_come_back_as_they_were_sent() {
        let key = Key { class: Class::Full, writer: 7, reader: 1 << 20, ordinal: 3 };
        let shape = Shape { width: 8, heap: 64, slots: 8, place: Place::Host };
        let on_device = |numbers| Shape { place: Place::Device { numbers }, ..shape };
        let manner = Manner { mode: Mode::TwoWrites, sync: Sync::Immediate, pull: true };
        for control in [
            Control::Hello,
            Control::Reader { shape, no: 9, fences: true },
            Control::Reader { shape: on_device(false), no: 9, fences: true },
            Control::Reader { shape: on_device(true), no: 9, fences: false },
            Control::Close(Reason::NoHeap),
            Control::Writer { width: u64::MAX, manner },
            Control::Close(Reason::Mismatch),
            Control::Close(Reason::Failed),
            Control::Close(Reason::Over(1 << 30)),
        ] {
            let bytes = control.encode(&key);
            assert!(bytes.len() <= crate::CONTROL_MOST);
            assert_eq!(Control::decode(&bytes), Some((key, control)));
            for cut in 0..bytes.len() {
                assert_eq!(Control::decode(&bytes[..cut]), None);
            }
        }
        for shape in [
            Shape { heap: 0, ..shape },
            Shape { heap: 63, ..shape },
            Shape { slots: 0, ..shape },
            Shape { slots: 3, ..shape },
            Shape { heap: usize::MAX, ..shape },
        ] {
            let lie = Control::Reader { shape, no: 0, fences: false }.encode(&key);
            assert_eq!(Control::decode(&lie), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_none(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Some((key, control)) = Control::decode(&bytes) {
                prop_assert_eq!(Control::decode(&control.encode(&key)), Some((key, control)));
            }
        }
    }
}

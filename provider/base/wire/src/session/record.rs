//! Records: frames with a header that authenticates them.

use std::hash::Hasher as _;

use siphasher::sip::SipHasher24;

use super::rails::NOTE;
use crate::{EAGER_HEAD, MAX_SEGS, Seg};

/// Bytes of a header: length of the frame or note (u32), kind (1 a frame, 2 a note), three zeros, tag (u64).
pub const RECORD: usize = 16;

/// So many bytes of a frame are covered by the tag: every head, every list of segments, and all of a short
/// message. The rest of a payload is covered by TCP's checksum alone.
pub const COVERED: usize = 384;

// A request to read or to write may name segments of both sides.
const _: () = assert!(COVERED >= EAGER_HEAD + MAX_SEGS * size_of::<Seg>());

// All of a note is.
const _: () = assert!(COVERED >= NOTE);

const FRAME: u8 = 1;
const OF_RAILS: u8 = 2;

/// A record is not what was sent next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoilt {
    /// Its header makes no sense.
    Header,
    /// It is longer than frames may be.
    Long,
    /// Its tag is wrong: it was changed, or is another one, or comes again.
    Tag,
}

/// A key of one direction, and how many records it has seen.
#[derive(Clone)]
struct Counter {
    key: [u8; 16],
    /// It was derived from a secret, without which no tag can be made.
    secret: bool,
    seq: u64,
}

impl Counter {
    fn new(key: [u8; 16], secret: bool) -> Counter {
        Counter { key, secret, seq: 0 }
    }

    /// The tag of the next record, or of one of those behind it; `what`: [`what`] of it.
    #[inline(always)]
    fn tag(&self, ahead: u64, what: u64, front: &[u8]) -> u64 {
        if self.secret { self.mac(ahead, what, front) } else { self.sum(ahead, what, front) }
    }

    /// Without a secret a tag is to find mistakes: another record than the next one, or of another
    /// connection, or one that was changed.
    #[inline(always)]
    fn sum(&self, ahead: u64, what: u64, front: &[u8]) -> u64 {
        let [a, b] = words(&self.key);
        let step = |sum: u64, part: &[u8; 16]| {
            let [first, second] = words(part);
            fold(first ^ a, second ^ sum)
        };
        let mut sum = fold((self.seq + ahead) ^ a, what ^ b);
        let mut rest = front;
        while let Some((part, others)) = rest.split_first_chunk() {
            (sum, rest) = (step(sum, part), others);
        }
        if !rest.is_empty() {
            sum = match front.last_chunk() {
                Some(last) => step(sum, last),
                None => step(sum, &std::array::from_fn(|at| rest.get(at).copied().unwrap_or(0))),
            };
        }
        fold(sum ^ a, b)
    }

    #[inline(never)]
    fn mac(&self, ahead: u64, what: u64, front: &[u8]) -> u64 {
        let mut hash = SipHasher24::new_with_key(&self.key);
        // By its calls for whole words, and for the last part, which take half the instructions of those for
        // bytes.
        hash.write_u64((self.seq + ahead).to_le());
        hash.write_u64(what.to_le());
        hash.hash(front)
    }
}

#[inline]
fn words(bytes: &[u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(*bytes);
    [both as u64, (both >> 64) as u64]
}

/// Both halves of a product, one on the other.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// The kind and the length of a record, as its tag covers them.
#[inline]
fn what(kind: u8, len: u32) -> u64 {
    u64::from(len) << 8 | u64::from(kind)
}

/// Makes the headers of records of one direction.
#[derive(Clone)]
pub struct Sealer(Counter);

/// Checks them.
#[derive(Clone)]
pub struct Opener(Counter);

impl Sealer {
    pub(super) fn new(key: [u8; 16], secret: bool) -> Sealer {
        Sealer(Counter::new(key, secret))
    }

    /// The header of the next record, a frame of `len` bytes that begins with `front`: all of it up to
    /// [`COVERED`] bytes.
    #[inline]
    pub fn seal(&mut self, len: u32, front: &[u8]) -> [u8; RECORD] {
        debug_assert_eq!(front.len(), (len as usize).min(COVERED));
        self.seal_as(FRAME, len, front)
    }

    /// The header of the next record, which is this [`RailNote`](super::RailNote).
    pub fn seal_note(&mut self, note: &[u8]) -> [u8; RECORD] {
        debug_assert!(note.len() <= NOTE);
        self.seal_as(OF_RAILS, note.len() as u32, note)
    }

    #[inline]
    fn seal_as(&mut self, kind: u8, len: u32, front: &[u8]) -> [u8; RECORD] {
        let tag = self.0.tag(0, what(kind, len), front);
        self.0.seq += 1;
        let mut out = [0; RECORD];
        out[..4].copy_from_slice(&len.to_le_bytes());
        out[4] = kind;
        out[8..].copy_from_slice(&tag.to_le_bytes());
        out
    }

    #[cfg(test)]
    pub(super) fn is_of_secret(&self) -> bool {
        self.0.secret
    }

    /// The last record was not sent after all.
    pub fn take_back(&mut self) {
        self.0.seq -= 1;
    }
}

impl Opener {
    pub(super) fn new(key: [u8; 16], secret: bool) -> Opener {
        Opener(Counter::new(key, secret))
    }

    #[cfg(test)]
    pub(super) fn is_of_secret(&self) -> bool {
        self.0.secret
    }

    /// How long the frame behind this header is, at most `most` bytes.
    #[inline]
    pub fn len(header: &[u8; RECORD], most: usize) -> Result<usize, Spoilt> {
        let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        if header[4..8] != [FRAME, 0, 0, 0] {
            return Err(Spoilt::Header);
        }
        if len <= most { Ok(len) } else { Err(Spoilt::Long) }
    }

    /// How long the note behind this header is, if one is.
    pub fn note_len(header: &[u8; RECORD]) -> Option<usize> {
        let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        (header[4..8] == [OF_RAILS, 0, 0, 0] && len <= NOTE).then_some(len)
    }

    /// How many records it has opened.
    pub fn count(&self) -> u64 {
        self.0.seq
    }

    /// Checks the tag of the next record, of which `front` is all up to [`COVERED`] bytes.
    #[inline]
    pub fn open(&mut self, header: &[u8; RECORD], front: &[u8]) -> Result<(), Spoilt> {
        self.check(0, header, front)?;
        self.0.seq += 1;
        Ok(())
    }

    /// Checks the tag of a note, which is all of `note`.
    pub fn open_note(&mut self, header: &[u8; RECORD], note: &[u8]) -> Result<(), Spoilt> {
        self.check_as(OF_RAILS, 0, header, note)?;
        self.0.seq += 1;
        Ok(())
    }

    /// Checks the tag of a record that came before `ahead` earlier ones, and is to be opened after them.
    #[inline]
    pub fn check(&self, ahead: u64, header: &[u8; RECORD], front: &[u8]) -> Result<(), Spoilt> {
        self.check_as(FRAME, ahead, header, front)
    }

    #[inline]
    fn check_as(&self, kind: u8, ahead: u64, header: &[u8; RECORD], front: &[u8]) -> Result<(), Spoilt> {
        let [len, tag] = [&header[..4], &header[8..]];
        let len = u32::from_le_bytes(len.try_into().map_err(|_| Spoilt::Header)?);
        let tag = u64::from_le_bytes(tag.try_into().map_err(|_| Spoilt::Header)?);
        if front.len() != (len as usize).min(COVERED) || self.0.tag(ahead, what(kind, len), front) != tag {
            return Err(Spoilt::Tag);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Sealer({})", self.0.seq)
    }
}

impl std::fmt::Debug for Opener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Opener({})", self.0.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(secret: bool) -> (Sealer, Opener) {
        let key = std::array::from_fn(|i| i as u8);
        (Sealer::new(key, secret), Opener::new(key, secret))
    }

    /// The bytes on the wire are a promise: a change here is a new [`super::super::VERSION`]. These were
    /// computed by other means, as the tag's definition says.
    #[test]
    fn golden_bytes() {
        let hex = |b: [u8; RECORD]| b.iter().map(|b| format!("{b:02x}")).collect::<String>();
        for (secret, golden) in [(true, SECRET), (false, KNOWN)] {
            let (mut sealer, _) = both(secret);
            let long: Vec<u8> = (0..36).collect();
            let records = [
                hex(sealer.seal(3, b"abc")),
                hex(sealer.seal(0, b"")),
                hex(sealer.seal_note(&[1, 2, 0, 0, 0, 0, 0, 0])),
                hex(sealer.seal(36, &long)),
                hex(sealer.seal(32, &long[..32])),
            ];
            assert_eq!(records, golden);
        }
    }

    const SECRET: [&str; 5] = [
        "03000000010000001a8be996416a36b2",
        "0000000001000000c9b9ca50c678b816",
        "0800000002000000466b55b8c14bf3c4",
        "240000000100000089fc9221ff81fb1d",
        "20000000010000003ad8edf2ad93bfda",
    ];

    const KNOWN: [&str; 5] = [
        "0300000001000000aeb5ccb26a86c253",
        "000000000100000093150f328ae5b68f",
        "0800000002000000217f6efdadd8b265",
        "240000000100000092f6e2b3bc478be2",
        "20000000010000005bee6ee554beba2d",
    ];

    #[test]
    fn a_note_is_no_frame_and_a_frame_no_note() {
        for secret in [true, false] {
            let (sealer, opener) = both(secret);
            let note = sealer.clone().seal_note(b"note");
            assert_eq!((Opener::note_len(&note), Opener::len(&note, 99)), (Some(4), Err(Spoilt::Header)));
            assert_eq!(opener.clone().open_note(&note, b"note"), Ok(()));
            assert_eq!(opener.clone().open_note(&note, b"nota"), Err(Spoilt::Tag));
            let frame = sealer.clone().seal(4, b"note");
            assert_eq!((Opener::note_len(&frame), Opener::len(&frame, 99)), (None, Ok(4)));
            // Nor does the one become the other by its kind.
            let (mut as_frame, mut as_note) = (note, frame);
            (as_frame[4], as_note[4]) = (FRAME, OF_RAILS);
            assert_eq!(opener.clone().open(&as_frame, b"note"), Err(Spoilt::Tag));
            assert_eq!(opener.clone().open_note(&as_note, b"note"), Err(Spoilt::Tag));
            let mut long = note;
            long[..4].copy_from_slice(&(NOTE as u32 + 1).to_le_bytes());
            assert_eq!(Opener::note_len(&long), None);
        }
    }

    /// The vectors of SipHash's paper: 15 bytes from 0 on, by the key of [`both`].
    #[test]
    fn tags_are_those_of_the_standard() {
        let mut hash = SipHasher24::new_with_key(&std::array::from_fn(|i| i as u8));
        hash.write(&(0..15).collect::<Vec<u8>>());
        assert_eq!(hash.finish(), 0xa129ca6149be45e5);
    }

    #[test]
    fn what_was_sealed_opens_in_order_and_once() {
        for secret in [true, false] {
            let (mut sealer, mut opener) = both(secret);
            let frames: Vec<Vec<u8>> =
                [0, 1, 20, COVERED, COVERED + 1, 5_000].map(|n| vec![n as u8; n]).into();
            let front = |f: &[u8]| f[..f.len().min(COVERED)].to_vec();
            let headers: Vec<_> = frames.iter().map(|f| sealer.seal(f.len() as u32, &front(f))).collect();
            // Not the second one first, and none twice.
            assert_eq!(opener.open(&headers[1], &front(&frames[1])), Err(Spoilt::Tag));
            // But it is known to be the one behind the first, and no other.
            assert_eq!(opener.check(1, &headers[1], &front(&frames[1])), Ok(()));
            assert_eq!(opener.check(2, &headers[1], &front(&frames[1])), Err(Spoilt::Tag));
            for (header, frame) in headers.iter().zip(&frames) {
                assert_eq!(Opener::len(header, 5_000), Ok(frame.len()));
                assert_eq!(opener.open(header, &front(frame)), Ok(()));
                assert_eq!(opener.open(header, &front(frame)), Err(Spoilt::Tag));
            }
            assert_eq!(Opener::len(&headers[5], 4_999), Err(Spoilt::Long));
        }
    }

    #[test]
    fn each_bit_that_is_changed_is_noticed() {
        for (secret, len) in [(true, 20), (false, 5), (false, 16), (false, 20), (false, 36), (false, COVERED)]
        {
            let (sealer, opener) = both(secret);
            let sent = vec![7; len];
            let header = sealer.clone().seal(len as u32, &sent);
            for bit in 0..8 * (RECORD + len) {
                let (mut header, mut front) = (header, sent.clone());
                match bit / 8 {
                    at if at < RECORD => header[at] ^= 1 << (bit % 8),
                    at => front[at - RECORD] ^= 1 << (bit % 8),
                }
                let found = Opener::len(&header, len).and_then(|_| opener.clone().open(&header, &front));
                assert!(found.is_err(), "bit {bit} of {len} bytes");
            }
            let mut back = sealer.clone();
            back.seal(1, b"x");
            back.take_back();
            assert_eq!(back.seal(len as u32, &sent), header);
        }
    }

    #[test]
    fn blocks_of_a_frame_that_change_places_are_noticed() {
        let mut front: Vec<u8> = (0..48).collect();
        let (sealer, opener) = both(false);
        let header = sealer.clone().seal(48, &front);
        front.rotate_left(16);
        assert_eq!(opener.clone().open(&header, &front), Err(Spoilt::Tag));
        front.rotate_left(16 + 8);
        assert_eq!(opener.clone().open(&header, &front), Err(Spoilt::Tag));
        front.rotate_left(8);
        assert_eq!(opener.clone().open(&header, &front), Ok(()));
    }

    /// All of the key counts, and which sort of tag it is for.
    #[test]
    fn tags_are_of_their_key_and_sort() {
        let front = [7; 20];
        let tag = |key, secret| Counter::new(key, secret).tag(0, what(FRAME, 20), &front);
        for secret in [true, false] {
            let mut seen = std::collections::HashSet::from([tag([1; 16], !secret)]);
            assert!(seen.insert(tag([1; 16], secret)));
            for bit in 0..128 {
                let mut key = [1; 16];
                key[bit / 8] ^= 1 << (bit % 8);
                assert!(seen.insert(tag(key, secret)), "bit {bit}");
            }
        }
    }
}

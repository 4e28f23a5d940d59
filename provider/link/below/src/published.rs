//! Registrations of a peer's program that are accessed without asking it.
//!
//! The peer says of one what it is when it is requested its key (`Sort::Ask`):
//! the first access goes by frames, and those behind the answer do not. It takes one back by its number, as
//! it does a request, and is answered when no access of it is under way.

use std::collections::HashMap;

use link_api::{Region, RegionVersion, Way};
use wire::Seg;

use crate::network::{Dest, Keys, RAILS};

/// Registrations of one peer that are known, at most.
const KNOWN: usize = 1024;
/// At most so many accesses go by frames until a key is requested again that the peer had nothing for: none
/// after the first answer, and about twice as many after each further one.
const PAUSE: u32 = 255;
/// Bytes of what is said of a registration; and with keys of rails.
const SAID: usize = 56;
pub(crate) const MOST_SAID: usize = SAID + 8 * RAILS;

/// Where a segment of a peer's memory is accessed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) from: Dest,
    pub(crate) generation: u64,
    pub(crate) key: u64,
    /// The keys of rails.
    pub(crate) further: Keys,
    pub(crate) at: u64,
}

/// What is said of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) region: Region,
    /// Its version: not 0. The names of requests have a part above 32 bits, and it has none.
    pub(crate) number: u32,
    /// By which key it is accessed, and what its first byte is called.
    pub(crate) key: u64,
    pub(crate) base: u64,
    pub(crate) further: Keys,
    /// Words there are changed in one step.
    pub(crate) atomics: bool,
}

/// The flags of what is said.
const READ: u64 = 1;
const WRITE: u64 = 2;
const VIRT_ADDR: u64 = 4;
const ATOMICS: u64 = 8;

/// What is said of a key: a registration, or none that is accessed so; and in how many bytes, which are the
/// more if there are keys of rails.
pub(crate) fn encode(key: u64, entry: Option<&Entry>) -> ([u8; MOST_SAID], usize) {
    let flag = |is_so, bit| if is_so { bit } else { 0 };
    let words = entry.map_or([key, 0, 0, 0, 0, 0, 0], |entry| {
        let Region { addr, len, read, write, virt_addr, .. } = entry.region;
        let flags = flag(read, READ) | flag(write, WRITE) | flag(virt_addr, VIRT_ADDR);
        let flags = flags | flag(entry.atomics, ATOMICS);
        [key, entry.number.into(), addr, len, flags, entry.key, entry.base]
    });
    let further = entry.map_or([0; RAILS], |entry| entry.further);
    let mut out = [0; MOST_SAID];
    for (at, word) in words.into_iter().chain(further).enumerate() {
        out[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
    }
    (out, if further == [0; RAILS] { SAID } else { MOST_SAID })
}

/// What is said of a registration in so many bytes.
pub(crate) fn said_in(bytes: &[u8]) -> Option<[u8; MOST_SAID]> {
    let mut said = [0; MOST_SAID];
    let is_one = [SAID, MOST_SAID].contains(&bytes.len());
    is_one.then(|| {
        said[..bytes.len()].copy_from_slice(bytes);
        said
    })
}

/// Of what a peer says: the key, and what is said of it. `None`: it makes no sense.
pub(crate) fn decode(said: &[u8; MOST_SAID]) -> Option<(u64, Option<Entry>)> {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| said[8 * at + i]));
    let (name, number, flags) = (word(0), u32::try_from(word(1)).ok()?, word(4));
    if number == 0 {
        return Some((name, None));
    }
    let (addr, len, key, base) = (word(2), word(3), word(5), word(6));
    let is_one = flags & !(READ | WRITE | VIRT_ADDR | ATOMICS) == 0
        && addr.checked_add(len).is_some()
        && base.checked_add(len).is_some();
    let region = Region {
        key: name,
        addr,
        len,
        read: flags & READ != 0,
        write: flags & WRITE != 0,
        virt_addr: flags & VIRT_ADDR != 0,
        target_must_observe: false,
    };
    let (further, atomics) = (std::array::from_fn(|i| word(SAID / 8 + i)), flags & ATOMICS != 0);
    is_one.then_some((name, Some(Entry { region, number, key, base, further, atomics })))
}

/// What is known of a key.
#[derive(Clone, Copy, Debug)]
enum State {
    /// It was requested; if the peer has nothing for it, it is requested again after so many accesses.
    Asked(u32),
    /// It is requested again after so many more accesses, and the next time after so many.
    Refused(u32, u32),
    /// It has this place.
    Known(u32),
}

/// What a peer publishes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    /// By keys that the program has named.
    keys: HashMap<u64, State>,
    places: Vec<Option<Entry>>,
    free: Vec<u32>,
}

impl Published {
    /// The registration of a key, if it is known.
    #[inline]
    pub(crate) fn find(&self, key: u64) -> Option<(Region, RegionVersion)> {
        let Some(State::Known(place)) = self.keys.get(&key) else { return None };
        let entry = self.places.get(*place as usize)?.as_ref()?;
        Some((entry.region, RegionVersion { place: *place, number: entry.number }))
    }

    /// A key that is not known is named: whether to ask for it.
    pub(crate) fn asks(&mut self, key: u64) -> bool {
        let has_room = self.keys.len() < KNOWN;
        match self.keys.get_mut(&key) {
            None if has_room => {
                self.keys.insert(key, State::Asked(0));
                true
            }
            None | Some(State::Asked(_) | State::Known(_)) => false,
            Some(state @ State::Refused(0, _)) => {
                if let State::Refused(_, pause) = *state {
                    *state = State::Asked(pause);
                }
                true
            }
            Some(State::Refused(left, _)) => {
                *left -= 1;
                false
            }
        }
    }

    /// The peer says something of a key; whether that was asked, and makes sense.
    pub(crate) fn take_note(&mut self, key: u64, entry: Option<Entry>) -> bool {
        let Some(&State::Asked(pause)) = self.keys.get(&key) else { return false };
        let Some(entry) = entry else {
            self.keys.insert(key, State::Refused(pause, (2 * pause + 1).min(PAUSE)));
            return true;
        };
        if self.places.iter().flatten().any(|known| known.number == entry.number) {
            return false;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            self.places.len() as u32 - 1
        });
        self.places[place as usize] = Some(entry);
        self.keys.insert(key, State::Known(place));
        true
    }

    /// The peer takes the registration of this number back.
    pub(crate) fn forget(&mut self, number: u32) {
        let at = self.places.iter().position(|entry| entry.is_some_and(|entry| entry.number == number));
        let Some(entry) = at.and_then(|at| self.places[at].take()) else { return };
        self.free.extend(at.map(|at| at as u32));
        self.keys.remove(&entry.region.key);
    }

    /// Whether words of a version of a registration are changed in one step.
    pub(crate) fn has_atomics(&self, version: RegionVersion) -> bool {
        let entry = self.places.get(version.place as usize).and_then(Option::as_ref);
        entry.is_some_and(|entry| entry.number == version.number && entry.atomics)
    }

    /// Where a segment of a version of a registration is accessed this way, by the connection with the peer.
    pub(crate) fn place(&self, version: RegionVersion, seg: &Seg, way: Way, from: Dest) -> Option<Found> {
        let entry = self.places.get(version.place as usize)?.as_ref()?;
        let Region { addr, len, read, write, .. } = entry.region;
        let allows = match way {
            Way::Get => read,
            Way::Put => write,
        };
        let off = seg.addr.get().checked_sub(addr)?;
        let end = off.checked_add(seg.len.get())?;
        let at = entry.base.checked_add(off)?;
        let is_in = entry.number == version.number && allows && end <= len;
        is_in.then_some(Found { from, generation: 0, key: entry.key, further: entry.further, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u32, key: u64) -> Entry {
        let (read, write, virt_addr) = (true, number % 2 == 0, false);
        let region = Region { key, addr: 4096, len: 100, read, write, virt_addr, target_must_observe: false };
        let further = if number == 3 { [0; RAILS] } else { [5, 0, 7] };
        Entry { region, number, key: 77, base: 1 << 40, further, atomics: number % 3 == 0 }
    }

    fn seg(addr: u64, len: u64) -> Seg {
        Seg { addr: addr.into(), len: len.into() }
    }

    #[test]
    fn what_is_said_is_read_as_it_was_written() {
        let read = |one: Option<&Entry>, len: usize| {
            let (said, used) = encode(9, one);
            assert_eq!(used, len);
            decode(&said_in(&said[..used]).expect("of such a length"))
        };
        // Without keys of rails as a peer of an older version says it.
        assert_eq!(read(Some(&entry(3, 9)), SAID), Some((9, Some(entry(3, 9)))));
        assert_eq!(read(Some(&entry(4, 9)), MOST_SAID), Some((9, Some(entry(4, 9)))));
        assert_eq!(read(None, SAID), Some((9, None)));
        assert_eq!([0, SAID - 1, SAID + 8, MOST_SAID + 1].map(|n| said_in(&vec![0; n])), [None; 4]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let change = |at: usize, word: u64| {
            let mut said = encode(9, Some(&entry(3, 9))).0;
            said[8 * at..8 * at + 8].copy_from_slice(&word.to_le_bytes());
            decode(&said)
        };
        for (at, word) in [(1, 1 << 32), (3, u64::MAX), (4, 16), (6, u64::MAX - 99)] {
            assert_eq!(change(at, word), None, "word {at}");
        }
    }

    #[test]
    fn only_what_was_asked_is_learnt_and_once() {
        let mut all = Published::default();
        assert!(!all.take_note(9, Some(entry(3, 9))), "nothing was asked");
        assert!(all.asks(9) && !all.asks(9), "one question for a key");
        assert!(all.take_note(9, Some(entry(3, 9))));
        assert!(!all.take_note(9, Some(entry(4, 9))), "one answer for a question");
        assert!(all.asks(10) && !all.take_note(10, Some(entry(3, 10))), "a number of another one");
        assert_eq!(all.find(9).map(|(region, _)| region), Some(entry(3, 9).region));
    }

    #[test]
    fn a_key_that_was_refused_is_asked_for_again_later() {
        let mut all = Published::default();
        assert!(all.asks(9) && all.take_note(9, None));
        let mut pauses = Vec::new();
        for _ in 0..10 {
            pauses.extend((0..=PAUSE).position(|_| all.asks(9)));
            assert!(all.take_note(9, None));
        }
        assert_eq!(pauses, [0, 1, 3, 7, 15, 31, 63, 127, 255, 255]);
    }

    #[test]
    fn a_place_is_inside_allowed_and_of_the_version() {
        let mut all = Published::default();
        let from = Dest(5);
        assert!(all.asks(9) && all.take_note(9, Some(entry(3, 9))));
        let version = all.find(9).expect("known").1;
        let found = all.place(version, &seg(4100, 96), Way::Get, from).expect("inside");
        assert_eq!((found.from, found.key, found.at), (from, 77, (1 << 40) + 4));
        assert!(all.place(version, &seg(4100, 97), Way::Get, from).is_none(), "a byte beyond the end");
        assert!(all.place(version, &seg(4095, 1), Way::Get, from).is_none(), "before the first");
        assert!(all.place(version, &seg(4100, u64::MAX), Way::Get, from).is_none(), "a sum that wraps");
        assert!(all.place(version, &seg(4100, 1), Way::Put, from).is_none(), "one that is only read");
        assert!(all.has_atomics(version) && !all.has_atomics(RegionVersion { number: 4, ..version }));
        all.forget(3);
        assert!(!all.has_atomics(version));
        assert!(all.find(9).is_none() && all.place(version, &seg(4100, 1), Way::Get, from).is_none());
        assert!(all.asks(9) && all.take_note(9, Some(entry(4, 9))));
        assert!(all.place(version, &seg(4100, 1), Way::Get, from).is_none(), "the version before");
    }

    #[test]
    fn what_is_known_is_bounded() {
        let mut all = Published::default();
        let asked = (0..2 * KNOWN as u64).filter(|key| all.asks(*key)).count();
        assert_eq!(asked, KNOWN);
    }
}

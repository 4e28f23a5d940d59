//! Connections of which it is not known yet what is at their other end: a bounded number, and none of them
//! keeps another one waiting.
//!
//! A connection that finds no place takes that of another one at once. Those that have said nothing that
//! counts give way first, then those of the origin (an address, a user) that has the most places, then the
//! oldest. So the connections of one origin take places from each other before they take one of another
//! origin, and a handshake that is under way is ended only where there is no connection without one.

use std::time::{Duration, Instant};

/// See the module. `O` is where a connection comes from, `T` what is kept of it.
#[derive(Debug)]
pub struct Strangers<O, T> {
    most: usize,
    places: Vec<Option<Place<T>>>,
    origins: Vec<Origin<O>>,
    len: usize,
}

#[derive(Debug)]
struct Place<T> {
    /// `None` while it is lent.
    what: Option<T>,
    origin: usize,
    since: Instant,
    spoke: bool,
}

/// An origin, and how many places it has: of connections that have said nothing that counts, and of all
/// others.
#[derive(Debug)]
struct Origin<O> {
    of: O,
    held: [usize; 2],
}

impl<O: PartialEq, T> Strangers<O, T> {
    /// So many at most, and one at least.
    pub fn new(most: usize) -> Strangers<O, T> {
        Strangers { most: most.max(1), places: Vec::new(), origins: Vec::new(), len: 0 }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The connection that gives way to a new one of this origin, where all places are taken. It is ended,
    /// and dropped.
    #[must_use]
    pub fn give_way(&mut self, to: &O) -> Option<T> {
        if self.len < self.most {
            return None;
        }
        [false, true].into_iter().find_map(|spoke| self.least(Some(to), spoke)).and_then(|at| self.take(at))
    }

    /// The oldest connection of those that have said nothing, of the origin that has the most of these: it
    /// gives way where the process lacks descriptors.
    #[must_use]
    pub fn give_silent(&mut self) -> Option<T> {
        self.least(None, false).and_then(|at| self.take(at))
    }

    /// The oldest connection of this origin that has said nothing.
    #[must_use]
    pub fn give_silent_of(&mut self, of: &O) -> Option<T> {
        let origin = self.origins.iter().position(|origin| origin.of == *of)?;
        let is_its = |place: &Place<T>| place.origin == origin && !place.spoke;
        let all = self.places.iter().enumerate();
        let all = all.filter_map(|(at, place)| place.as_ref().filter(|p| is_its(p)).map(|p| (p.since, at)));
        all.min().and_then(|(_, at)| self.take(at))
    }

    /// Adds a connection, which the caller has made room for; the number of its place, which is below `most`.
    pub fn add(&mut self, of: O, what: T) -> usize {
        let origin = self.origin(of);
        self.origins[origin].held[0] += 1;
        self.len += 1;
        let place = Some(Place { what: Some(what), origin, since: Instant::now(), spoke: false });
        match self.places.iter_mut().enumerate().find(|(_, place)| place.is_none()) {
            Some((at, free)) => {
                *free = place;
                at
            }
            None => {
                self.places.push(place);
                self.places.len() - 1
            }
        }
    }

    /// The connection at that place has said something that counts.
    pub fn has_spoken(&mut self, at: usize) {
        let Some(place) = self.places.get_mut(at).and_then(Option::as_mut) else { return };
        if !std::mem::replace(&mut place.spoke, true) {
            let held = &mut self.origins[place.origin].held;
            (held[0], held[1]) = (held[0] - 1, held[1] + 1);
        }
    }

    /// Whether a connection has said something that counts.
    pub fn has_any_spoken(&self) -> bool {
        self.origins.iter().any(|origin| origin.held[1] > 0)
    }

    /// What is kept of the connection at that place.
    pub fn get(&self, at: usize) -> Option<&T> {
        self.places.get(at)?.as_ref()?.what.as_ref()
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        self.places.get_mut(at)?.as_mut()?.what.as_mut()
    }

    /// Lends what is kept of the connection, which keeps its place until it is given back or taken.
    pub fn lend(&mut self, at: usize) -> Option<T> {
        self.places.get_mut(at)?.as_mut()?.what.take()
    }

    /// Gives back what was lent.
    pub fn give_back(&mut self, at: usize, what: T) {
        if let Some(place) = self.places.get_mut(at).and_then(Option::as_mut) {
            place.what = Some(what);
        }
    }

    /// For how long the connection at that place has been here, and whether it has said something that
    /// counts.
    pub fn waits(&self, at: usize) -> Option<(Duration, bool)> {
        let place = self.places.get(at)?.as_ref()?;
        Some((place.since.elapsed(), place.spoke))
    }

    /// The connection that has been here longest, and since when.
    pub fn oldest(&self) -> Option<(usize, Instant)> {
        let all = self.places.iter().enumerate();
        all.filter_map(|(at, place)| Some((at, place.as_ref()?.since))).min_by_key(|(_, since)| *since)
    }

    /// The places of those that have been here for so long.
    pub fn late(&self, now: Instant, most: Duration) -> Vec<usize> {
        let late = |place: &Place<T>| now.saturating_duration_since(place.since) >= most;
        let all = self.places.iter().enumerate();
        all.filter_map(|(at, place)| place.as_ref().filter(|place| late(place)).map(|_| at)).collect()
    }

    /// Since when each of them counts as being here, to be changed.
    pub fn each_since(&mut self) -> impl Iterator<Item = &mut Instant> {
        self.places.iter_mut().flatten().map(|place| &mut place.since)
    }

    /// Takes the connection out of that place: it is known, or ended. `None` too if it is lent.
    pub fn take(&mut self, at: usize) -> Option<T> {
        let place = self.places.get_mut(at)?.take()?;
        self.len -= 1;
        self.origins[place.origin].held[usize::from(place.spoke)] -= 1;
        while let Some(None) = self.places.last() {
            self.places.pop();
        }
        place.what
    }

    /// Takes all of them out.
    pub fn take_all(&mut self) -> impl Iterator<Item = T> + use<O, T> {
        (self.len, self.origins) = (0, Vec::new());
        std::mem::take(&mut self.places).into_iter().flatten().filter_map(|place| place.what)
    }

    /// All, and their places.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.places.iter().enumerate().filter_map(|(at, place)| Some((at, place.as_ref()?.what.as_ref()?)))
    }

    /// An origin's place in the list, where it takes that of one that has none any more.
    fn origin(&mut self, of: O) -> usize {
        if let Some(at) = self.origins.iter().position(|origin| origin.of == of) {
            return at;
        }
        let origin = Origin { of, held: [0; 2] };
        match self.origins.iter().position(|known| known.held == [0; 2]) {
            Some(at) => {
                self.origins[at] = origin;
                at
            }
            None => {
                self.origins.push(origin);
                self.origins.len() - 1
            }
        }
    }

    /// The place of that of these which gives way to one of this origin.
    fn least(&self, to: Option<&O>, spoke: bool) -> Option<usize> {
        let held = |origin: &Origin<O>| origin.held[usize::from(spoke)];
        let most = self.origins.iter().map(held).max().filter(|most| *most > 0)?;
        // Of origins that have equally many, that of the new one gives way.
        let own = self.origins.iter().position(|origin| to == Some(&origin.of) && held(origin) == most);
        let gives = |place: &Place<T>| {
            place.spoke == spoke
                && own.map_or(held(&self.origins[place.origin]) == most, |own| place.origin == own)
        };
        let all = self.places.iter().enumerate();
        let all = all.filter_map(|(at, place)| place.as_ref().filter(|p| gives(p)).map(|p| (p.since, at)));
        all.min().map(|(_, at)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds one as its owner does: what gives way to it is returned.
    fn come(all: &mut Strangers<u8, u32>, of: u8, what: u32) -> (usize, Option<u32>) {
        let gone = all.give_way(&of);
        (all.add(of, what), gone)
    }

    #[test]
    fn the_oldest_silent_one_gives_way_at_once() {
        let mut all = Strangers::new(3);
        assert!((0..3).all(|n| come(&mut all, 1, n) == (n as usize, None)));
        for n in 3..100 {
            assert_eq!(come(&mut all, 1, n).1, Some(n - 3));
            assert_eq!(all.len(), 3);
        }
    }

    #[test]
    fn one_that_has_spoken_stays_as_long_as_a_silent_one_is_there() {
        let mut all = Strangers::new(4);
        let (kept, _) = come(&mut all, 1, 7777);
        all.has_spoken(kept);
        all.has_spoken(kept);
        assert!((0..100).all(|n| come(&mut all, 1, n).1 != Some(7777)));
        assert_eq!(all.get_mut(kept), Some(&mut 7777));
        // Where all have spoken, the oldest of them.
        for at in 0..4 {
            all.has_spoken(at);
        }
        assert_eq!(come(&mut all, 1, 200).1, Some(7777));
        assert_eq!(come(&mut all, 1, 201).1, Some(200));
    }

    #[test]
    fn connections_of_one_origin_push_out_their_own() {
        let mut all = Strangers::new(8);
        let (first, _) = come(&mut all, 2, 9999);
        assert!((0..1000).all(|n| come(&mut all, 1, n).1 != Some(9999)));
        // A third origin's takes one of the origin that has most.
        assert!(come(&mut all, 3, 1001).1.is_some_and(|gone| gone < 1000));
        assert_eq!(all.get_mut(first), Some(&mut 9999));
    }

    #[test]
    fn of_origins_with_equally_many_that_of_the_new_one_gives_way() {
        let mut all = Strangers::new(4);
        for (n, of) in [1, 1, 2, 2].into_iter().enumerate() {
            come(&mut all, of, n as u32);
        }
        assert_eq!(come(&mut all, 2, 4).1, Some(2));
        assert_eq!(come(&mut all, 3, 5).1, Some(0));
    }

    #[test]
    fn silent_ones_are_given_for_descriptors_and_others_are_not() {
        let mut all = Strangers::new(4);
        let (spoke, _) = come(&mut all, 1, 0);
        all.has_spoken(spoke);
        come(&mut all, 1, 1);
        come(&mut all, 2, 2);
        assert_eq!(
            (all.give_silent_of(&2), all.give_silent_of(&2), all.give_silent_of(&3)),
            (Some(2), None, None)
        );
        assert_eq!((all.give_silent(), all.give_silent()), (Some(1), None));
        assert_eq!(all.len(), 1);
    }

    #[test]
    fn one_that_is_lent_keeps_its_place_and_its_time() {
        let mut all = Strangers::new(4);
        let (at, _) = come(&mut all, 1, 7);
        all.each_since().for_each(|since| *since -= Duration::from_secs(3));
        let (other, _) = come(&mut all, 1, 8);
        assert_eq!((all.lend(at), all.lend(at), all.len(), all.get(at)), (Some(7), None, 2, None));
        assert_ne!(come(&mut all, 1, 9).0, at);
        all.give_back(at, 10);
        all.has_spoken(at);
        assert!(
            all.has_any_spoken() && all.waits(at).is_some_and(|(for_, spoke)| for_.as_secs() >= 3 && spoke)
        );
        assert_eq!(all.oldest().map(|(at, _)| at), Some(at));
        assert_eq!(all.late(Instant::now(), Duration::from_secs(2)), [at]);
        assert_eq!((all.take(other), all.lend(at), all.take(at), all.len()), (Some(8), Some(10), None, 1));
        assert_eq!(
            (all.take_all().collect::<Vec<_>>(), all.len(), all.has_any_spoken()),
            (vec![9], 0, false)
        );
    }

    /// Beside a list that is searched from the front, with arrivals, words and departures in any order.
    #[test]
    fn a_model_agrees() {
        struct One(u8, u32, bool, usize);
        let (mut all, mut model, mut seed) = (Strangers::new(5), Vec::<One>::new(), 1u64);
        for n in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let of = (seed >> 40 & 3) as u8;
            match seed >> 60 {
                0..8 => {
                    let count = |model: &[One], of: u8, spoke: bool| {
                        model.iter().filter(|one| one.0 == of && one.2 == spoke).count()
                    };
                    let mut expected = None;
                    if model.len() == 5 {
                        let spoke = model.iter().all(|one| one.2);
                        let most = (0..4).map(|of| count(&model, of, spoke)).max().unwrap();
                        let own = count(&model, of, spoke) == most;
                        let gives = |one: &One| {
                            one.2 == spoke && count(&model, one.0, spoke) == most && (!own || one.0 == of)
                        };
                        let at = model.iter().position(gives).unwrap();
                        expected = Some(model.remove(at).1);
                    }
                    let (at, gone) = come(&mut all, of, n);
                    assert_eq!(gone, expected);
                    model.push(One(of, n, false, at));
                }
                8..12 if !model.is_empty() => {
                    let which = seed as usize % model.len();
                    all.has_spoken(model[which].3);
                    model[which].2 = true;
                }
                _ if !model.is_empty() => {
                    let One(_, n, _, at) = model.remove(seed as usize % model.len());
                    assert_eq!(all.take(at), Some(n));
                    assert_eq!(all.take(at), None);
                }
                _ => {}
            }
            assert_eq!(all.len(), model.len());
            assert!(model.iter().all(|one| all.get_mut(one.3) == Some(&mut { one.1 })));
            assert!(all.places.len() <= 5 && all.origins.len() <= 6);
        }
    }
}

//! Entries of a queue by what they are looked for: tag and source, or as much of these as a pattern asks for.
//!
//! A pattern asks for some bits of the tag, and for one source or any. Patterns that ask for the same are of
//! one [`Kind`]. A [`Class`] has the entries of a queue by the [`Key`] that patterns of one kind find them
//! by, oldest first: so the first that is still in the queue is the one. Several kinds are looked up one
//! after the other, and of what they find the oldest counts.

use super::queue::{At, Queue};
use crate::hash::Map;
use crate::types::{ADDR_UNSPEC, FiAddr, Pattern};

/// Up to this many entries are walked, of one source or of all; only more are worth an index, and only once
/// one was looked for that was not among the oldest.
const SHORT: usize = 16;
/// Up to this many entries of all sources are walked, which takes no longer than to list them by source.
const FEW: usize = 4;
/// Most kinds one index keeps apart; programs use two or three.
const CLASSES: usize = 8;
/// Most entries that a class which is not used keeps room for.
const ROOM: usize = 1024;

/// What is looked at of an entry: the source, and the tag.
pub(super) type Sight = (FiAddr, u64);

/// What patterns ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Kind {
    ignore: u64,
    directed: bool,
}

impl Kind {
    pub(super) fn of(pattern: &Pattern) -> Kind {
        Kind { ignore: pattern.key().1, directed: pattern.src != ADDR_UNSPEC }
    }

    fn key(self, (src, tag): Sight) -> Key {
        Key { tag: tag & !self.ignore, src: if self.directed { src } else { ADDR_UNSPEC } }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Key {
    tag: u64,
    src: FiAddr,
}

const NONE: u32 = u32::MAX;

/// The entries of one key, by the first and the last link.
#[derive(Clone, Copy, Debug)]
struct List {
    first: u32,
    last: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    at: At,
    next: u32,
}

/// The entries of a queue by the keys of one kind. Those that have left the queue stay here until they are
/// met.
#[derive(Debug)]
struct Class {
    kind: Kind,
    lists: Map<Key, List>,
    links: Vec<Link>,
    /// The first link that is not in use.
    free: u32,
    held: usize,
}

impl Class {
    fn new(kind: Kind) -> Self {
        Class { kind, lists: Map::default(), links: Vec::new(), free: NONE, held: 0 }
    }

    /// Forgets all entries, but keeps the room for some.
    fn reuse(&mut self, kind: Kind) {
        if self.lists.capacity() > ROOM || self.links.capacity() > ROOM {
            *self = Class::new(kind);
        }
        self.kind = kind;
        self.lists.clear();
        self.links.clear();
        (self.free, self.held) = (NONE, 0);
    }

    fn push(&mut self, sight: Sight, at: At) {
        let link = Link { at, next: NONE };
        let new = match self.free {
            NONE => {
                self.links.push(link);
                self.links.len() as u32 - 1
            }
            free => {
                self.free = std::mem::replace(&mut self.links[free as usize], link).next;
                free
            }
        };
        let list = self.lists.entry(self.kind.key(sight)).or_insert(List { first: new, last: NONE });
        if list.last != NONE {
            self.links[list.last as usize].next = new;
        }
        list.last = new;
        self.held += 1;
    }

    /// The oldest entry that patterns of this kind find an entry of that sight by, and that is still in
    /// `queue`.
    fn find<T>(&mut self, sight: Sight, queue: &Queue<T>) -> Option<At> {
        let key = self.kind.key(sight);
        let list = self.lists.get_mut(&key)?;
        while let Some(link) = self.links.get_mut(list.first as usize) {
            if queue.get(link.at).is_some() {
                return Some(link.at);
            }
            let gone = std::mem::replace(&mut list.first, link.next);
            link.next = std::mem::replace(&mut self.free, gone);
            self.held -= 1;
        }
        self.lists.remove(&key);
        None
    }

    /// Whether more of what it holds has gone than is there.
    fn is_stale(&self, live: usize) -> bool {
        self.held > 2 * live + 64
    }
}

/// The classes that are in use, in front of those that were.
#[derive(Debug, Default)]
struct Classes {
    all: Vec<Class>,
    used: usize,
}

impl Classes {
    fn used(&mut self) -> &mut [Class] {
        &mut self.all[..self.used]
    }

    fn of(&self, kind: Kind) -> Option<usize> {
        self.all[..self.used].iter().position(|c| c.kind == kind)
    }

    /// One without entries, unless there are too many.
    fn add(&mut self, kind: Kind) -> Option<usize> {
        if self.used == CLASSES {
            return None;
        }
        match self.all.get_mut(self.used) {
            Some(class) => class.reuse(kind),
            None => self.all.push(Class::new(kind)),
        }
        self.used += 1;
        Some(self.used - 1)
    }
}

/// The oldest entry, if it `fits`; `None` if there is no other either. `Err`: that takes a search.
#[inline(always)]
fn near<T>(queue: &Queue<T>, fits: impl Fn(&T) -> bool + Copy) -> Result<Option<At>, ()> {
    let Some((at, first)) = queue.first() else { return Ok(None) };
    if fits(first) {
        return Ok(Some(at));
    }
    if queue.len() > 1 { Err(()) } else { Ok(None) }
}

/// How a search finds its entry.
enum Way {
    /// Few are to be walked.
    Walk,
    /// An index is kept, and worth a look-up.
    Search,
    /// Entries are in the lists of their sources.
    Lists,
}

/// The way of a search that looks for one source; `indexed`: an index knows already.
#[inline(always)]
fn way<T>(queue: &mut Queue<T>, indexed: bool, source: impl Fn(&T) -> FiAddr) -> Way {
    if indexed {
        return if queue.len() > SHORT { Way::Search } else { Way::Walk };
    }
    if queue.len() <= FEW && !queue.is_listed() {
        return Way::Walk;
    }
    queue.list_by_source(source);
    Way::Lists
}

#[inline]
fn walk<T>(queue: &Queue<T>, fits: impl Fn(&T) -> bool + Copy) -> Option<At> {
    queue.iter().find(|(_, v)| fits(v)).map(|(at, _)| at)
}

/// Posted receives: each is found by messages that its own pattern fits.
#[derive(Debug, Default)]
pub(super) struct ByOwnPattern {
    classes: Classes,
    /// Whether there are more kinds than classes: then everything is walked.
    full: bool,
    on: bool,
}

impl ByOwnPattern {
    /// To be called after each push.
    #[inline(always)]
    pub(super) fn pushed<T>(&mut self, queue: &Queue<T>, at: At, pattern: impl Fn(&T) -> &Pattern) {
        if self.on {
            self.index(queue, at, pattern);
        }
    }

    #[inline(never)]
    fn index<T>(&mut self, queue: &Queue<T>, at: At, pattern: impl Fn(&T) -> &Pattern) {
        if queue.len() == 1 {
            self.forget();
        } else if let Some(v) = queue.get(at) {
            self.add(pattern(v), at);
            if self.classes.used().iter().any(|c| c.is_stale(queue.len())) {
                self.build(queue, pattern);
            }
        }
    }

    /// To be called when entries have changed.
    pub(super) fn forget(&mut self) {
        self.classes.used = 0;
        (self.full, self.on) = (false, false);
    }

    fn build<T>(&mut self, queue: &Queue<T>, pattern: impl Fn(&T) -> &Pattern) {
        self.forget();
        self.on = true;
        for (at, v) in queue.iter() {
            self.add(pattern(v), at);
        }
    }

    fn add(&mut self, pattern: &Pattern, at: At) {
        let kind = Kind::of(pattern);
        match self.classes.of(kind).or_else(|| self.classes.add(kind)) {
            Some(class) => self.classes.all[class].push((pattern.src, pattern.key().0), at),
            None => self.full = true,
        }
    }

    /// The oldest entry for a message of that sight. `fits` decides in full.
    #[inline(always)]
    pub(super) fn find<T>(
        &mut self,
        queue: &mut Queue<T>,
        sight: Sight,
        pattern: impl Fn(&T) -> &Pattern + Copy,
        fits: impl Fn(&T) -> bool + Copy,
    ) -> Option<At> {
        match near(queue, fits) {
            Ok(found) => found,
            Err(()) => self.search(queue, sight, pattern, fits),
        }
    }

    /// The oldest receive that names the source and fits, or the oldest for any source, whichever was posted
    /// first.
    #[inline(never)]
    fn search<T>(
        &mut self,
        queue: &mut Queue<T>,
        sight: Sight,
        pattern: impl Fn(&T) -> &Pattern + Copy,
        fits: impl Fn(&T) -> bool + Copy,
    ) -> Option<At> {
        match way(queue, self.on, |v| pattern(v).src) {
            Way::Walk => return walk(queue, fits),
            Way::Search => return self.search_index(queue, sight, pattern, fits),
            Way::Lists => {}
        }
        match (queue.first_of(sight.0, SHORT, fits), queue.first_of(ADDR_UNSPEC, SHORT, fits)) {
            (Ok(Some(one)), Ok(Some(other))) => Some(if one.seq < other.seq { one } else { other }),
            (Ok(one), Ok(other)) => one.or(other),
            _ => {
                // From now on the index knows.
                queue.unlist();
                self.search_index(queue, sight, pattern, fits)
            }
        }
    }

    #[inline(never)]
    fn search_index<T>(
        &mut self,
        queue: &Queue<T>,
        sight: Sight,
        pattern: impl Fn(&T) -> &Pattern + Copy,
        fits: impl Fn(&T) -> bool + Copy,
    ) -> Option<At> {
        if !self.on {
            self.build(queue, pattern);
        }
        if self.full {
            return walk(queue, fits);
        }
        self.classes.used().iter_mut().filter_map(|c| c.find(sight, queue)).min_by_key(|at| at.seq)
    }
}

/// Unexpected messages: each may be looked for by patterns of any kind, so each kind that is used
/// gets an index of all of them.
#[derive(Debug, Default)]
pub(super) struct ByAnyPattern {
    classes: Classes,
}

impl ByAnyPattern {
    /// To be called after each push.
    #[inline(always)]
    pub(super) fn pushed<T>(&mut self, queue: &Queue<T>, at: At, sight: Sight) {
        if self.classes.used > 0 {
            self.index(queue, at, sight);
        }
    }

    #[inline(never)]
    fn index<T>(&mut self, queue: &Queue<T>, at: At, sight: Sight) {
        let live = queue.len();
        let stale = self.classes.used().iter().any(|c| c.is_stale(live));
        if live == 1 || stale {
            return self.forget();
        }
        self.classes.used().iter_mut().for_each(|c| c.push(sight, at));
    }

    /// To be called when entries have changed.
    pub(super) fn forget(&mut self) {
        self.classes.used = 0;
    }

    /// The oldest entry that a pattern `fits`.
    #[inline(always)]
    pub(super) fn find<T>(
        &mut self,
        queue: &mut Queue<T>,
        pattern: &Pattern,
        sight: impl Fn(&T) -> Sight,
        fits: impl Fn(&T) -> bool + Copy,
    ) -> Option<At> {
        match near(queue, fits) {
            Ok(found) => found,
            Err(()) => self.search(queue, pattern, sight, fits),
        }
    }

    /// The oldest message of the source that a pattern names, or, if it is for any source, of all.
    #[inline(never)]
    fn search<T>(
        &mut self,
        queue: &mut Queue<T>,
        pattern: &Pattern,
        sight: impl Fn(&T) -> Sight,
        fits: impl Fn(&T) -> bool + Copy,
    ) -> Option<At> {
        let indexed = self.classes.used > 0 || pattern.src == ADDR_UNSPEC;
        match way(queue, indexed, |v| sight(v).0) {
            Way::Walk => return walk(queue, fits),
            Way::Search => return self.search_index(queue, pattern, sight, fits),
            Way::Lists => {}
        }
        queue.first_of(pattern.src, SHORT, fits).unwrap_or_else(|()| {
            // From now on the index knows.
            queue.unlist();
            self.search_index(queue, pattern, sight, fits)
        })
    }

    #[inline(never)]
    fn search_index<T>(
        &mut self,
        queue: &Queue<T>,
        pattern: &Pattern,
        sight: impl Fn(&T) -> Sight,
        fits: impl Fn(&T) -> bool + Copy,
    ) -> Option<At> {
        let kind = Kind::of(pattern);
        let class = match self.classes.of(kind) {
            Some(class) => class,
            None => match self.classes.add(kind) {
                None => return walk(queue, fits),
                Some(class) => {
                    for (at, v) in queue.iter() {
                        self.classes.all[class].push(sight(v), at);
                    }
                    class
                }
            },
        };
        self.classes.all[class].find((pattern.src, pattern.key().0), queue)
    }
}

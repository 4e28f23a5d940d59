//! The hub at which all links of one [`crate::Net`] meet.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use hmem::Span;
use link_api::{Gone, Grant, InUse, NoDirect, Path, PieceCounter, Region, RegionVersion, RmaCaps};
use wire::{Addr, Seg};

use crate::group_memory::Offer;
use crate::{Direct, Setup};

/// A link's place at the hub.
pub type Place = usize;

/// What is on its way from one link to another.
#[derive(Debug)]
pub(crate) enum Item {
    Frame(Vec<u8>),
    Closed(Gone),
}

/// One direction between two links.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) items: VecDeque<Item>,
    /// How many more items may come out.
    pub(crate) open: usize,
    /// Its sender keeps a part of what goes in.
    pub(crate) keeps: bool,
    /// What sends are answered with.
    pub(crate) refuse: Option<Gone>,
    /// Whether anything ever went in.
    pub(crate) used: bool,
    /// Its receiver wants no more.
    pub(crate) cut: bool,
}

impl Way {
    /// Of frames that are on their way.
    pub(crate) fn bytes(&self) -> usize {
        self.items.iter().map(|item| if let Item::Frame(bytes) = item { bytes.len() } else { 0 }).sum()
    }
}

#[derive(Debug)]
pub(crate) struct Station {
    pub(crate) addr: Addr,
    pub(crate) alive: bool,
    /// How many ended here before it.
    pub(crate) epoch: u32,
    /// Memory others may reach directly, by address.
    pub(crate) memory: BTreeMap<u64, Span>,
}

#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) path: Path,
    pub(crate) capacity: usize,
    pub(crate) spare: usize,
    /// Links go on with the frames of one sender.
    rows: bool,
    pub(crate) direct: Direct,
    /// No direct access works any more.
    pub(crate) off: bool,
    /// Copies out of frames come one byte short.
    pub(crate) short: bool,
    /// How many direct accesses are to fail.
    pub(crate) faults: usize,
    /// How many succeeded.
    pub(crate) accesses: usize,
    /// How many frames found no room.
    pub(crate) busy: usize,
    pub(crate) peer_access: bool,
    /// All devices' memory.
    pub(crate) devices: Vec<Span>,
    /// They are all the memory of one.
    pub(crate) one_device: bool,
    /// Whether others reach bounce buffers, and those that were exported to them.
    pub(crate) bounces: bool,
    pub(crate) rooms: Vec<Span>,
    /// Operations that ended well later, and how many are to fail before and after they were started.
    pub(crate) copies: usize,
    pub(crate) fail: (usize, usize),
    pub(crate) chance: u64,
    /// Operations in flight of each station, and whether none ends for now.
    pub(crate) flying: BTreeMap<Place, usize>,
    pub(crate) held: bool,
    pub(crate) stations: Vec<Station>,
    pub(crate) ways: BTreeMap<(Place, Place), Way>,
    /// By owner, other side and slot: turn, and the next piece.
    pub(crate) shares: BTreeMap<(Place, Place, u16), (u64, u16)>,
    /// How many pieces the side that did not open the counter took.
    pub(crate) helped: usize,
    /// Whether they can learn that.
    pub(crate) boards: bool,
    /// What each station lets others reach, by its key.
    pub(crate) exposed: BTreeMap<(Place, u64), Region>,
    /// How often something was exposed or concealed: what tickets say.
    pub(crate) versions: BTreeMap<(Place, u64), u32>,
    /// Requests that their owners took back.
    pub(crate) revoked: BTreeSet<(Place, u64)>,
    /// Which station waits for which.
    pub(crate) expected: Vec<(Place, Place)>,
    /// Of which station alone a frame is waited for, by the one that waits.
    pub(crate) awaited: BTreeMap<Place, Option<Place>>,
    /// Stations whose memory is not accessed any more, and how many more calls find a peer inside an access.
    pub(crate) closed: BTreeSet<Place>,
    pub(crate) stuck: usize,
    /// A station that may not write to others' memory.
    pub(crate) barred: Option<Place>,
    /// It takes a while to connect.
    pub(crate) slow: bool,
    /// Memory of groups that was made, and the node that has none.
    pub(crate) groups: Vec<Offer>,
    pub(crate) no_group_memory: Option<Place>,
    /// The host of each place; of those beyond: the first.
    pub(crate) hosts: Vec<usize>,
    /// An answer to a request of group memory took a while.
    pub(crate) is_late: bool,
    /// What happens when a node finds nothing to do.
    pub(crate) meanwhile: Option<Meanwhile>,
}

/// What others do while a node waits, or copies directly.
pub(crate) struct Meanwhile {
    pub(crate) at: Place,
    pub(crate) copies: bool,
    pub(crate) work: Box<dyn FnMut()>,
}

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "while {} {}", self.at, if self.copies { "copies" } else { "waits" })
    }
}

impl Hub {
    pub(crate) fn new(setup: &Setup) -> Rc<RefCell<Hub>> {
        let &Setup {
            max_frame,
            eager,
            eager_in_a_row,
            eager_one_way,
            capacity,
            spare,
            direct,
            peer_access,
            seed,
            rows,
            ..
        } = setup;
        let path = Path {
            link: "memory",
            max_frame,
            eager,
            eager_in_a_row,
            eager_one_way,
            rma: match direct {
                Direct::Later | Direct::AnyOrder => RmaCaps::DEVICE_HANDLES | RmaCaps::HOST_HANDLES,
                Direct::Gets => RmaCaps::DEVICE_HANDLES | RmaCaps::HOST_GETS,
                Direct::Never | Direct::InCall => RmaCaps::DEVICE_HANDLES | RmaCaps::SYNC,
                Direct::Frames => RmaCaps::empty(),
            },
            least_get: 0,
        };
        let hub = Hub {
            path,
            capacity,
            spare,
            rows,
            direct,
            off: matches!(direct, Direct::Never | Direct::Frames),
            faults: 0,
            short: false,
            accesses: 0,
            busy: 0,
            peer_access,
            devices: Vec::new(),
            one_device: false,
            bounces: false,
            rooms: Vec::new(),
            copies: 0,
            fail: (0, 0),
            chance: seed | 1,
            flying: BTreeMap::new(),
            held: false,
            stations: Vec::new(),
            ways: BTreeMap::new(),
            shares: BTreeMap::new(),
            helped: 0,
            exposed: BTreeMap::new(),
            boards: false,
            versions: BTreeMap::new(),
            revoked: BTreeSet::new(),
            expected: Vec::new(),
            awaited: BTreeMap::new(),
            closed: BTreeSet::new(),
            stuck: 0,
            barred: None,
            groups: Vec::new(),
            no_group_memory: None,
            hosts: Vec::new(),
            is_late: false,
            slow: false,
            meanwhile: None,
        };
        Rc::new(RefCell::new(hub))
    }

    pub(crate) fn fail_copies(&mut self, copies: usize, late: bool) {
        *(if late { &mut self.fail.1 } else { &mut self.fail.0 }) = copies;
    }

    /// The place of another link at the hub.
    pub(crate) fn join(&mut self) -> Place {
        let at = self.stations.len();
        let addr = Addr::new(([10, 0, 0, 1], 1 + at as u16).into());
        self.stations.push(Station { addr, alive: true, epoch: 0, memory: BTreeMap::new() });
        at
    }

    pub(crate) fn addr(&self, at: Place) -> Addr {
        self.stations[at].addr
    }

    pub(crate) fn share(&mut self, at: Place, span: Span) {
        self.stations[at].memory.insert(span.addr(), span);
    }

    pub(crate) fn set_direct(&mut self, on: bool) {
        self.off = !on;
    }

    pub(crate) fn set_capacity(&mut self, frames: usize) {
        self.capacity = frames;
    }

    pub(crate) fn fault(&mut self, accesses: usize) {
        self.faults = accesses;
    }

    pub(crate) fn accesses(&self) -> usize {
        self.accesses
    }

    pub(crate) fn set_boards(&mut self, on: bool) {
        self.boards = on;
    }

    pub(crate) fn bar(&mut self, at: Place) {
        self.barred = Some(at);
    }

    /// Opens a counter of the node at `at` to another one.
    pub(crate) fn open_share(&mut self, at: Place, with: Place) -> Option<PieceCounter> {
        let slot = (0..4).find(|slot| self.shares.get(&(at, with, *slot)).is_none_or(|s| s.1 == u16::MAX))?;
        let state = self.shares.entry((at, with, slot)).or_insert((0, 0));
        *state = (state.0 + 1, 0);
        Some(PieceCounter { slot, generation: state.0 })
    }

    /// Has all pieces of all counters handed out once more.
    pub(crate) fn rewind_shares(&mut self) {
        self.shares.values_mut().for_each(|state| state.1 = 0);
    }

    pub(crate) fn helped(&self) -> usize {
        self.helped
    }

    pub(crate) fn way(&mut self, from: Place, to: Place) -> &mut Way {
        self.ways.entry((from, to)).or_insert_with(|| Way {
            items: VecDeque::new(),
            open: usize::MAX,
            keeps: false,
            refuse: None,
            used: false,
            cut: false,
        })
    }

    pub(crate) fn set_open(&mut self, from: Place, to: Place, items: usize) {
        self.way(from, to).open = items;
    }

    pub(crate) fn refuse(&mut self, from: Place, to: Place, why: Option<Gone>) {
        self.way(from, to).refuse = why;
    }

    pub(crate) fn inject(&mut self, from: Place, to: Place, bytes: Vec<u8>) {
        let way = self.way(from, to);
        way.used = true;
        if !way.cut {
            way.items.push_back(Item::Frame(bytes));
        }
    }

    pub(crate) fn frames(&mut self, from: Place, to: Place) -> Vec<&mut Vec<u8>> {
        let frame = |i| match i {
            &mut Item::Frame(ref mut f) => Some(f),
            Item::Closed(_) => None,
        };
        self.way(from, to).items.iter_mut().filter_map(frame).collect()
    }

    /// `at` ends: what it sent still arrives, then every station that it ever met has an event.
    pub(crate) fn kill(&mut self, at: Place) {
        self.stations[at].alive = false;
        self.stations[at].epoch += 1;
        self.revoked.retain(|(place, _)| *place != at);
        self.exposed.retain(|(place, _), _| *place != at);
        self.stations[at].memory.clear();
        for other in 0..self.stations.len() {
            let met = self.way(at, other).used || self.way(other, at).used;
            self.way(other, at).items.clear();
            if other == at {
                continue;
            }
            self.way(other, at).used = false;
            let way = self.way(at, other);
            way.used = false;
            if met {
                way.items.push_back(Item::Closed(Gone::Reset));
            }
        }
    }

    /// So much time goes by that stations that are expected and not there are given up.
    pub(crate) fn give_up_expected(&mut self) {
        for (at, of) in std::mem::take(&mut self.expected) {
            if !self.stations[of].alive && !self.way(of, at).used {
                self.way(of, at).items.push_back(Item::Closed(Gone::Refused));
            }
        }
    }

    /// Another process at the place of one that ended.
    pub(crate) fn rejoin(&mut self, at: Place) {
        self.stations[at].alive = true;
        self.closed.remove(&at);
        self.ways.iter_mut().filter(|(way, _)| way.0 == at).for_each(|(_, way)| way.cut = false);
    }

    pub(crate) fn draw(&mut self, of: usize) -> usize {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance % of as u64) as usize
    }

    /// Whether the next item of some station for `to` is its end.
    pub(crate) fn ends(&self, to: Place) -> bool {
        let ended = |way: &Way| way.open > 0 && matches!(way.items.front(), Some(Item::Closed(_)));
        self.ways.iter().any(|(&(_, at), way)| at == to && ended(way))
    }

    /// The next item for `to`, from whichever sender chance picks.
    pub(crate) fn next(&mut self, to: Place) -> Option<(Place, Item)> {
        let ready = |(&(from, at), way): (&(Place, Place), &Way)| {
            (at == to && way.open > 0 && !way.items.is_empty()).then_some(from)
        };
        let senders: Vec<Place> = self.ways.iter().filter_map(ready).collect();
        if senders.is_empty() {
            return None;
        }
        let from = senders[self.draw(senders.len())];
        let way = self.way(from, to);
        if way.open != usize::MAX {
            way.open -= 1;
        }
        Some((from, way.items.pop_front()?))
    }

    /// The next item of `from` for `to`, if it is a frame and links go on so.
    pub(crate) fn next_in_row(&mut self, from: Place, to: Place) -> Option<Vec<u8>> {
        if self.rows { self.next_frame_of(from, to) } else { None }
    }

    /// The next frame from one link to another, if it is a frame that comes next.
    pub(crate) fn next_frame_of(&mut self, from: Place, to: Place) -> Option<Vec<u8>> {
        let way = self.way(from, to);
        let goes_on = way.open == usize::MAX && matches!(way.items.front(), Some(Item::Frame(_)));
        match goes_on.then(|| way.items.pop_front())?? {
            Item::Frame(bytes) => Some(bytes),
            Item::Closed(_) => None,
        }
    }

    /// The shared memory of `at` that `seg` names, as far as all of it was shared.
    pub(crate) fn memory(&self, at: Place, seg: &Seg) -> Option<Span> {
        let (addr, len) = (seg.addr.get(), usize::try_from(seg.len.get()).ok()?);
        if len == 0 {
            return Some(Span::EMPTY);
        }
        let (start, span) = self.stations[at].memory.range(..=addr).next_back()?;
        span.part(usize::try_from(addr - start).ok()?, len)
    }

    /// The memory of `at` that `seg` names, if it is accessed by handles.
    pub(crate) fn memory_by_handle(&self, at: Place, seg: &Seg) -> Option<Span> {
        let (addr, len) = (seg.addr.get(), usize::try_from(seg.len.get()).ok()?);
        let part = |d: &Span| d.part(usize::try_from(addr.checked_sub(d.addr())?).ok()?, len);
        let on_host = || self.memory(at, seg).filter(|_| self.direct.has_handles() && !self.off);
        self.devices.iter().chain(&self.rooms).find_map(part).or_else(on_host)
    }

    /// The allocation that a span of `at` is in, if peers may access it by handles.
    pub(crate) fn allocation(&self, at: Place, span: &Span) -> Option<Span> {
        let inside = |d: &&Span| span.addr().wrapping_sub(d.addr()) < d.len() as u64;
        if !span.can(hmem::Caps::DEVICE) {
            assert!(
                self.path.rma.intersects(RmaCaps::HOST_HANDLES | RmaCaps::HOST_GETS),
                "host memory has no handles here"
            );
            let (_, owner) = self.stations[at].memory.range(..=span.addr()).next_back()?;
            return Some(*owner).filter(|owner| !self.off && inside(&owner));
        }
        match self.devices.iter().find(inside) {
            Some(device) => Some(*device).filter(|_| self.peer_access),
            // Memory that the endpoint itself has made.
            None => Some(*span).filter(|_| self.bounces),
        }
    }

    pub(crate) fn is_allowed(&self, at: Place, grant: Grant) -> Result<(), NoDirect> {
        match grant {
            _ if self.closed.contains(&at) => Err(NoDirect::Revoked),
            Grant::Request(name) if self.revoked.contains(&(at, name)) => Err(NoDirect::Revoked),
            Grant::Region(RegionVersion { place, number })
                if self.versions.get(&(at, place.into())) != Some(&number) =>
            {
                Err(NoDirect::Memory)
            }
            _ => Ok(()),
        }
    }

    /// A peer is inside an access, as often as the test says.
    pub(crate) fn leave(&mut self) -> Result<(), InUse> {
        if self.stuck == 0 {
            return Ok(());
        }
        self.stuck -= 1;
        Err(InUse)
    }

    pub(crate) fn version(&mut self, at: Place, key: u64) {
        *self.versions.entry((at, u64::from(key as u32))).or_default() += 1;
    }

    pub(crate) fn reach(&mut self, at: Place, grant: Grant, segs: &[Seg]) -> Result<Vec<Span>, NoDirect> {
        assert!(self.path.rma.contains(RmaCaps::SYNC), "host memory is not accessed in the call here");
        if self.off {
            return Err(NoDirect::Never);
        }
        self.is_allowed(at, grant)?;
        if self.faults > 0 || !self.stations[at].alive {
            self.faults = self.faults.saturating_sub(1);
            return Err(NoDirect::Fault);
        }
        let all: Option<Vec<Span>> = segs.iter().map(|s| self.memory(at, s)).collect();
        all.ok_or(NoDirect::Memory)
    }
}

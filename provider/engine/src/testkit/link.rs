//! The link of the kit, and the hub that all links of one [`super::Net`] meet at.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use hmem::{Span, total};
use wire::{Addr, Handle, Seg};

use super::Setup;
use crate::link::{
    CopyId, Event, Exposed, Frame, Glance, Gone, Grant, Inside, Limits, Link, NoDirect, PeerId, Refused,
    Share, Ticket, Way as CopyWay,
};

/// A link's place at the hub.
pub type Place = usize;

/// What is on its way from one link to another.
#[derive(Debug)]
enum Item {
    Frame(Vec<u8>),
    Closed(Gone),
}

/// One direction between two links.
#[derive(Debug)]
struct Way {
    items: VecDeque<Item>,
    /// How many more items may come out.
    open: usize,
    /// What sends are answered with.
    refuse: Option<Gone>,
    /// Whether anything ever went in.
    used: bool,
    /// Its receiver wants no more.
    cut: bool,
}

#[derive(Debug)]
struct Station {
    addr: Addr,
    alive: bool,
    /// Memory others may reach directly, by address.
    memory: BTreeMap<u64, Span>,
}

#[derive(Debug)]
pub(super) struct Hub {
    max_frame: usize,
    capacity: usize,
    direct: bool,
    /// How many direct accesses are to fail.
    faults: usize,
    /// How many succeeded.
    accesses: usize,
    peer_access: bool,
    /// All devices' memory.
    pub(super) devices: Vec<Span>,
    /// They are all the memory of one.
    pub(super) one_device: bool,
    /// Copies that devices made, and how many are to fail before and after they were started.
    pub(super) copies: usize,
    fail: (usize, usize),
    chance: u64,
    stations: Vec<Station>,
    ways: BTreeMap<(Place, Place), Way>,
    /// By owner, other side and slot: turn, and the next piece.
    shares: BTreeMap<(Place, Place, u16), (u64, u16)>,
    /// How many pieces the side that did not open the counter took.
    helped: usize,
    /// Whether they can learn that.
    boards: bool,
    /// What each station lets others reach, by its key.
    exposed: BTreeMap<(Place, u64), Exposed>,
    /// How often something was exposed or concealed: what tickets say.
    versions: BTreeMap<(Place, u64), u32>,
    /// Requests that their owners took back.
    revoked: BTreeSet<(Place, u64)>,
    /// Who waits for whom.
    expected: Vec<(Place, Place)>,
    /// Whose memory is not accessed any more, and who is inside an access for as long as that.
    closed: BTreeSet<Place>,
    pub(super) stuck: usize,
    /// Who may not write to others' memory.
    barred: Option<Place>,
    /// It takes a while to connect.
    pub(super) slow: bool,
    /// What happens when a node finds nothing to do.
    pub(super) meanwhile: Option<Meanwhile>,
}

/// What others do while a node waits.
pub(super) struct Meanwhile {
    pub(super) at: Place,
    pub(super) work: Box<dyn FnMut()>,
}

impl std::fmt::Debug for Meanwhile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "while {} waits", self.at)
    }
}

impl Hub {
    pub(super) fn new(setup: &Setup) -> Rc<RefCell<Hub>> {
        let &Setup { max_frame, capacity, direct, peer_access, seed, .. } = setup;
        let hub = Hub {
            max_frame,
            capacity,
            direct,
            faults: 0,
            accesses: 0,
            peer_access,
            devices: Vec::new(),
            one_device: false,
            copies: 0,
            fail: (0, 0),
            chance: seed | 1,
            stations: Vec::new(),
            ways: BTreeMap::new(),
            shares: BTreeMap::new(),
            helped: 0,
            exposed: BTreeMap::new(),
            boards: false,
            versions: BTreeMap::new(),
            revoked: BTreeSet::new(),
            expected: Vec::new(),
            closed: BTreeSet::new(),
            stuck: 0,
            barred: None,
            slow: false,
            meanwhile: None,
        };
        Rc::new(RefCell::new(hub))
    }

    pub(super) fn fail_copies(&mut self, copies: usize, late: bool) {
        *(if late { &mut self.fail.1 } else { &mut self.fail.0 }) = copies;
    }

    /// Another link at the hub.
    pub(super) fn join(hub: &Rc<RefCell<Hub>>) -> MemLink {
        let mut h = hub.borrow_mut();
        let at = h.stations.len();
        let addr = Addr::new(([10, 0, 0, 1], 1 + at as u16).into());
        h.stations.push(Station { addr, alive: true, memory: BTreeMap::new() });
        MemLink::new(hub, at)
    }

    pub(super) fn addr(&self, at: Place) -> Addr {
        self.stations[at].addr
    }

    pub(super) fn share(&mut self, at: Place, span: Span) {
        self.stations[at].memory.insert(span.addr(), span);
    }

    pub(super) fn set_direct(&mut self, on: bool) {
        self.direct = on;
    }

    pub(super) fn set_capacity(&mut self, frames: usize) {
        self.capacity = frames;
    }

    pub(super) fn fault(&mut self, accesses: usize) {
        self.faults = accesses;
    }

    pub(super) fn accesses(&self) -> usize {
        self.accesses
    }

    pub(super) fn set_boards(&mut self, on: bool) {
        self.boards = on;
    }

    pub(super) fn bar(&mut self, at: Place) {
        self.barred = Some(at);
    }

    /// Opens a counter of the node at `at` to another one.
    pub(super) fn open_share(&mut self, at: Place, with: Place) -> Option<Share> {
        let slot = (0..4).find(|slot| self.shares.get(&(at, with, *slot)).is_none_or(|s| s.1 == u16::MAX))?;
        let state = self.shares.entry((at, with, slot)).or_insert((0, 0));
        *state = (state.0 + 1, 0);
        Some(Share { slot, turn: state.0 })
    }

    /// Has all pieces of all counters handed out once more.
    pub(super) fn rewind_shares(&mut self) {
        self.shares.values_mut().for_each(|state| state.1 = 0);
    }

    pub(super) fn helped(&self) -> usize {
        self.helped
    }

    fn way(&mut self, from: Place, to: Place) -> &mut Way {
        self.ways.entry((from, to)).or_insert_with(|| Way {
            items: VecDeque::new(),
            open: usize::MAX,
            refuse: None,
            used: false,
            cut: false,
        })
    }

    pub(super) fn set_open(&mut self, from: Place, to: Place, items: usize) {
        self.way(from, to).open = items;
    }

    pub(super) fn refuse(&mut self, from: Place, to: Place, why: Option<Gone>) {
        self.way(from, to).refuse = why;
    }

    pub(super) fn inject(&mut self, from: Place, to: Place, bytes: Vec<u8>) {
        let way = self.way(from, to);
        way.used = true;
        if !way.cut {
            way.items.push_back(Item::Frame(bytes));
        }
    }

    pub(super) fn frames(&mut self, from: Place, to: Place) -> Vec<&mut Vec<u8>> {
        let frame = |i| match i {
            &mut Item::Frame(ref mut f) => Some(f),
            Item::Closed(_) => None,
        };
        self.way(from, to).items.iter_mut().filter_map(frame).collect()
    }

    /// `at` ends: what it sent still arrives, then everyone it ever met hears of it.
    pub(super) fn kill(&mut self, at: Place) {
        self.stations[at].alive = false;
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

    /// So much time goes by that those who are expected and not there are given up.
    pub(super) fn give_up_expected(&mut self) {
        for (at, of) in std::mem::take(&mut self.expected) {
            if !self.stations[of].alive && !self.way(of, at).used {
                self.way(of, at).items.push_back(Item::Closed(Gone::Refused));
            }
        }
    }

    /// Another process at the place of one that ended.
    pub(super) fn rejoin(hub: &Rc<RefCell<Hub>>, at: Place) -> MemLink {
        hub.borrow_mut().stations[at].alive = true;
        hub.borrow_mut().closed.remove(&at);
        MemLink::new(hub, at)
    }

    fn draw(&mut self, of: usize) -> usize {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance % of as u64) as usize
    }

    /// Whether somebody's next item for `to` is its end.
    fn ends(&self, to: Place) -> bool {
        let ended = |way: &Way| way.open > 0 && matches!(way.items.front(), Some(Item::Closed(_)));
        self.ways.iter().any(|(&(_, at), way)| at == to && ended(way))
    }

    /// The next item for `to`, from whichever sender chance picks.
    fn next(&mut self, to: Place) -> Option<(Place, Item)> {
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

    /// The shared memory of `at` that `seg` names, as far as all of it was shared.
    fn memory(&self, at: Place, seg: &Seg) -> Option<Span> {
        let (addr, len) = (seg.addr.get(), usize::try_from(seg.len.get()).ok()?);
        if len == 0 {
            return Some(Span::EMPTY);
        }
        let (start, span) = self.stations[at].memory.range(..=addr).next_back()?;
        span.part(usize::try_from(addr - start).ok()?, len)
    }

    fn is_allowed(&self, at: Place, grant: Grant) -> Result<(), NoDirect> {
        match grant {
            _ if self.closed.contains(&at) => Err(NoDirect::Revoked),
            Grant::Request(name) if self.revoked.contains(&(at, name)) => Err(NoDirect::Revoked),
            Grant::Region(Ticket { place, number })
                if self.versions.get(&(at, place.into())) != Some(&number) =>
            {
                Err(NoDirect::Memory)
            }
            _ => Ok(()),
        }
    }

    /// A peer is inside an access, as often as the test says.
    fn leave(&mut self) -> Result<(), Inside> {
        if self.stuck == 0 {
            return Ok(());
        }
        self.stuck -= 1;
        Err(Inside)
    }

    fn version(&mut self, at: Place, key: u64) {
        *self.versions.entry((at, u64::from(key as u32))).or_default() += 1;
    }

    fn reach(&mut self, at: Place, grant: Grant, segs: &[Seg]) -> Result<Vec<Span>, NoDirect> {
        if !self.direct {
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

/// A frame in memory.
#[derive(Debug)]
pub struct MemFrame {
    from: PeerId,
    bytes: Vec<u8>,
}

impl Frame for MemFrame {
    fn from(&self) -> PeerId {
        self.from
    }

    fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// A link to others at the same hub. It holds the engine to the contract of [`Link`]: a frame that
/// is too long, bytes that no span has, or a poll before the last frame was released all panic.
#[derive(Debug)]
pub struct MemLink {
    hub: Rc<RefCell<Hub>>,
    at: Place,
    /// By number; `None`: it was given back.
    peers: Vec<Option<Place>>,
    held: bool,
    /// What peers were told of, and told us, of devices' memory.
    told: Vec<(Place, u64)>,
    learned: Vec<(Place, u64, u64)>,
    /// Copies in flight, which are made when they are over.
    flying: Vec<(CopyId, Vec<Span>, Vec<Span>, usize)>,
    started: u64,
}

impl MemLink {
    fn new(hub: &Rc<RefCell<Hub>>, at: Place) -> MemLink {
        let hub = hub.clone();
        let (told, learned) = (Vec::new(), Vec::new());
        MemLink { hub, at, peers: Vec::new(), held: false, told, learned, flying: Vec::new(), started: 0 }
    }

    /// The oldest copy in flight is over. Frames overtake copies.
    fn land(&mut self) -> Option<Event<MemFrame>> {
        if self.flying.is_empty() {
            return None;
        }
        let (id, dst, src, len) = self.flying.remove(0);
        let mut hub = self.hub.borrow_mut();
        if hub.fail.1 > 0 {
            hub.fail.1 -= 1;
            // Half of it was made.
            hmem::copy(&dst, 0, &src, 0, len / 2);
            return Some(Event::Copied(id, false));
        }
        hub.copies += 1;
        Some(Event::Copied(id, hmem::copy(&dst, 0, &src, 0, len) == len))
    }

    /// Its place at the hub, which is its peers' index of it where a [`super::Net`] introduced them.
    pub fn place(&self) -> Place {
        self.at
    }

    fn peer_at(&mut self, place: Place) -> PeerId {
        let at = |peers: &[Option<Place>], place| peers.iter().position(|p| *p == place);
        let known = at(&self.peers, Some(place)).or_else(|| at(&self.peers, None)).unwrap_or_else(|| {
            self.peers.push(None);
            self.peers.len() - 1
        });
        self.peers[known] = Some(place);
        PeerId(known as u32)
    }

    fn place_of(&self, peer: PeerId) -> Place {
        self.peers[peer.0 as usize].expect("the number of a peer that was not given back")
    }

    fn copy(&self, dst: &[Span], doff: usize, src: &[Span], soff: usize, len: usize) -> Result<(), NoDirect> {
        let host = |iov: &[Span]| hmem::can(iov, hmem::Caps::CMA);
        assert!(host(dst) && host(src), "direct access to memory that is not the host's");
        match hmem::copy(dst, doff, src, soff, len) == len {
            true => {
                self.hub.borrow_mut().accesses += 1;
                Ok(())
            }
            false => Err(NoDirect::Fault),
        }
    }
}

impl Link for MemLink {
    type Frame = MemFrame;

    fn addr(&self) -> Addr {
        self.hub.borrow().addr(self.at)
    }

    fn limits(&self) -> Limits {
        Limits { max_frame: self.hub.borrow().max_frame }
    }

    fn peer(&mut self, addr: &Addr) -> PeerId {
        let known = self.hub.borrow().stations.iter().position(|s| s.addr == *addr);
        let place = known.unwrap_or_else(|| {
            // A name that nobody has: a place where nobody lives.
            let mut hub = self.hub.borrow_mut();
            hub.stations.push(Station { addr: *addr, alive: false, memory: BTreeMap::new() });
            hub.stations.len() - 1
        });
        self.peer_at(place)
    }

    fn peer_addr(&self, peer: PeerId) -> Addr {
        self.hub.borrow().addr(self.place_of(peer))
    }

    fn send(
        &mut self,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<(), Refused> {
        let to = self.place_of(to);
        let mut hub = self.hub.borrow_mut();
        assert!(head.len() + len <= hub.max_frame, "a frame of {} + {len} bytes", head.len());
        assert!(off + len <= total(body), "bytes {off}+{len} of {body:?}");
        let (alive, capacity) = (hub.stations[to].alive, hub.capacity);
        let way = hub.way(self.at, to);
        if let Some(why) = way.refuse {
            return Err(Refused::Gone(why));
        }
        if !alive {
            return Err(Refused::Gone(Gone::Refused));
        }
        if way.items.len() >= capacity {
            return Err(Refused::Busy);
        }
        let mut bytes = vec![0; head.len() + len];
        bytes[..head.len()].copy_from_slice(head);
        if hmem::read(body, off, &mut bytes[head.len()..]) != len {
            return Err(Refused::Fault);
        }
        way.used = true;
        way.items.push_back(Item::Frame(bytes));
        Ok(())
    }

    fn poll(&mut self) -> Option<Event<MemFrame>> {
        assert!(!self.held, "polled before the last frame was released");
        let next = self.hub.borrow_mut().next(self.at);
        let Some((from, item)) = next else {
            let work = self.hub.borrow_mut().meanwhile.take_if(|m| m.at == self.at);
            if let Some(mut meanwhile) = work {
                (meanwhile.work)();
                self.hub.borrow_mut().meanwhile = Some(meanwhile);
            }
            return self.land();
        };
        let from = self.peer_at(from);
        Some(match item {
            Item::Frame(bytes) => {
                self.held = true;
                Event::Frame(MemFrame { from, bytes })
            }
            Item::Closed(why) => {
                let place = self.place_of(from);
                self.told.retain(|t| t.0 != place);
                self.learned.retain(|l| l.0 != place);
                Event::Closed(from, why)
            }
        })
    }

    fn glance(&mut self) -> Glance<MemFrame> {
        if !self.flying.is_empty() || self.hub.borrow().ends(self.at) {
            return Glance::Unknown;
        }
        match self.poll() {
            None => Glance::Nothing,
            Some(Event::Frame(frame)) => Glance::Frame(frame),
            Some(other) => panic!("{other:?} came out of nowhere"),
        }
    }

    fn read(&self, frame: &MemFrame, off: usize, dst: &mut [u8]) -> usize {
        let rest = frame.bytes.get(off..).unwrap_or_default();
        let n = rest.len().min(dst.len());
        dst[..n].copy_from_slice(&rest[..n]);
        n
    }

    fn copy_out(&self, frame: &MemFrame, off: usize, dst: &[Span], doff: usize, len: usize) -> usize {
        let rest = frame.bytes.get(off..).unwrap_or_default();
        hmem::write(dst, doff, &rest[..rest.len().min(len)])
    }

    fn waiting(&self, from: PeerId) -> bool {
        let way = (self.place_of(from), self.at);
        self.hub.borrow().ways.get(&way).is_some_and(|w| w.open > 0 && !w.items.is_empty())
    }

    fn release(&mut self, _frame: MemFrame) {
        assert!(self.held, "released what was not held");
        self.held = false;
    }

    fn get(
        &mut self,
        from: PeerId,
        grant: Grant,
        remote: &[Seg],
        roff: usize,
        local: &[Span],
        loff: usize,
        len: usize,
    ) -> Result<(), NoDirect> {
        let there = self.hub.borrow_mut().reach(self.place_of(from), grant, remote)?;
        self.copy(local, loff, &there, roff, len)
    }

    fn put(
        &mut self,
        to: PeerId,
        grant: Grant,
        remote: &[Seg],
        roff: usize,
        local: &[Span],
        loff: usize,
        len: usize,
    ) -> Result<(), NoDirect> {
        if self.hub.borrow().barred == Some(self.at) {
            return Err(NoDirect::Never);
        }
        let there = self.hub.borrow_mut().reach(self.place_of(to), grant, remote)?;
        self.copy(&there, roff, local, loff, len)
    }

    fn expose(&mut self, memory: &Exposed) {
        let mut hub = self.hub.borrow_mut();
        hub.exposed.insert((self.at, memory.key), *memory);
        hub.version(self.at, memory.key);
    }

    fn conceal(&mut self, key: u64) -> Result<(), Inside> {
        let mut hub = self.hub.borrow_mut();
        hub.exposed.remove(&(self.at, key));
        hub.version(self.at, key);
        hub.leave()
    }

    fn exposed(&self, by: PeerId, key: u64) -> Option<(Exposed, Ticket)> {
        let (hub, by) = (self.hub.borrow(), self.place_of(by));
        let known = hub.direct && hub.boards;
        let exposed = *hub.exposed.get(&(by, key)).filter(|_| known)?;
        let place = key as u32;
        Some((exposed, Ticket { place, number: *hub.versions.get(&(by, place.into()))? }))
    }

    fn revoke(&mut self, _: PeerId, request: u64) -> Result<(), Inside> {
        let mut hub = self.hub.borrow_mut();
        hub.revoked.insert((self.at, request));
        hub.leave()
    }

    fn renew(&mut self, _: PeerId, request: u64) {
        assert!(self.hub.borrow_mut().revoked.remove(&(self.at, request)), "it was not taken back");
    }

    fn close(&mut self) -> Result<(), Inside> {
        let mut hub = self.hub.borrow_mut();
        hub.closed.insert(self.at);
        hub.leave()
    }

    fn is_met(&self, peer: PeerId) -> bool {
        let (here, there) = (self.at, self.place_of(peer));
        let hub = self.hub.borrow();
        let way = |from, to| hub.ways.get(&(from, to));
        way(here, there).is_some_and(|w| w.used)
            || way(there, here).is_some_and(|w| w.used || !w.items.is_empty())
    }

    fn expect(&mut self, peer: PeerId) {
        assert!(!self.is_met(peer), "a peer that is there is expected");
        let place = self.place_of(peer);
        self.hub.borrow_mut().expected.push((self.at, place));
    }

    fn meet(&mut self, peer: PeerId) -> Result<(), Refused> {
        if self.is_met(peer) {
            return Ok(());
        }
        let there = self.place_of(peer);
        let mut hub = self.hub.borrow_mut();
        let alive = hub.stations[there].alive;
        let slow = hub.slow;
        let way = hub.way(self.at, there);
        match way.refuse {
            _ if slow => Err(Refused::Busy),
            Some(why) => Err(Refused::Gone(why)),
            None if !alive => Err(Refused::Gone(Gone::Refused)),
            None => {
                way.used = true;
                Ok(())
            }
        }
    }

    fn has_room_to_spare(&mut self, to: PeerId) -> bool {
        let to = self.place_of(to);
        let mut hub = self.hub.borrow_mut();
        let capacity = hub.capacity;
        2 * hub.way(self.at, to).items.len() < capacity
    }

    fn forget(&mut self, peer: PeerId) {
        if !self.is_met(peer) {
            self.peers[peer.0 as usize] = None;
        }
    }

    fn cut(&mut self, peer: PeerId) {
        let place = self.place_of(peer);
        let mut hub = self.hub.borrow_mut();
        let way = hub.way(place, self.at);
        // Nothing more comes from there, whatever is sent.
        if !std::mem::replace(&mut way.cut, true) {
            way.items.clear();
            way.items.push_back(Item::Closed(Gone::Denied));
        }
    }

    fn is_gone(&self, peer: PeerId) -> bool {
        !self.hub.borrow().stations[self.place_of(peer)].alive
    }

    fn share_open(&mut self, with: PeerId) -> Option<Share> {
        let with = self.place_of(with);
        self.hub.borrow_mut().open_share(self.at, with)
    }

    fn share_claim(&mut self, with: PeerId, share: Share, mine: bool, of: u16) -> Option<u16> {
        let with = self.place_of(with);
        let sides = if mine { (self.at, with) } else { (with, self.at) };
        let mut hub = self.hub.borrow_mut();
        let state = hub.shares.get_mut(&(sides.0, sides.1, share.slot))?;
        if state.0 != share.turn || state.1 >= of {
            return None;
        }
        state.1 += 1;
        let piece = state.1 - 1;
        hub.helped += usize::from(!mine);
        Some(piece)
    }

    fn share_begun(&self, with: PeerId, share: Share) -> bool {
        let key = (self.at, self.place_of(with), share.slot);
        self.hub.borrow().shares.get(&key).is_none_or(|state| *state != (share.turn, 1))
    }

    fn share_close(&mut self, with: PeerId, share: Share) {
        let key = (self.at, self.place_of(with), share.slot);
        if let Some(state) = self.hub.borrow_mut().shares.get_mut(&key) {
            state.1 = u16::MAX;
        }
    }

    fn apart(&self, _: PeerId, theirs: &[Seg], ours: &[Span]) -> bool {
        !theirs.is_empty() && !ours.is_empty() && !self.hub.borrow().one_device
    }

    fn untold(&mut self, to: PeerId, iov: &[Span]) -> Option<Vec<Handle>> {
        let (hub, place) = (self.hub.borrow(), self.place_of(to));
        if !hub.peer_access {
            return None;
        }
        let mut out: Vec<Handle> = Vec::new();
        for s in iov {
            let inside = |d: &&Span| s.addr().wrapping_sub(d.addr()) < d.len() as u64;
            let owner = hub.devices.iter().find(inside)?;
            let base = owner.addr();
            if self.told.contains(&(place, base)) || out.iter().any(|h| h.base.get() == base) {
                continue;
            }
            let len = owner.len() as u64;
            let (device, token, zero) = ([0; 16], [0; 64], [0; 3]);
            let (fd, id, base, len) = (0.into(), base.into(), base.into(), len.into());
            out.push(Handle { how: 1, zero, fd, id, base, len, device, token });
        }
        Some(out)
    }

    fn told(&mut self, to: PeerId, handle: &Handle) {
        self.told.push((self.place_of(to), handle.base.get()));
    }

    fn learn(&mut self, from: PeerId, handle: &Handle) {
        self.learned.push((self.place_of(from), handle.base.get(), handle.len.get()));
    }

    fn start(
        &mut self,
        way: CopyWay,
        peer: PeerId,
        request: u64,
        remote: &[Seg],
        local: &[Span],
        len: usize,
    ) -> Result<CopyId, NoDirect> {
        let place = self.place_of(peer);
        let mut hub = self.hub.borrow_mut();
        hub.is_allowed(place, Grant::Request(request))?;
        if hub.fail.0 > 0 {
            hub.fail.0 -= 1;
            return Err(NoDirect::Never);
        }
        let mut there = Vec::new();
        for seg in remote {
            let (addr, len) = (seg.addr.get(), seg.len.get());
            let has = |&(p, base, size): &(Place, u64, u64)| {
                p == place && addr.checked_sub(base).is_some_and(|off| off < size && len <= size - off)
            };
            if !self.learned.iter().any(has) {
                return Err(NoDirect::Never);
            }
            let part = |d: &Span| d.part(usize::try_from(addr.checked_sub(d.addr())?).ok()?, len as usize);
            there.push(hub.devices.iter().find_map(part).ok_or(NoDirect::Fault)?);
        }
        if total(&there) < len || total(local) < len {
            return Err(NoDirect::Fault);
        }
        self.started += 1;
        let here = local.to_vec();
        let (dst, src) = if way == CopyWay::Get { (here, there) } else { (there, here) };
        self.flying.push((CopyId(self.started), dst, src, len));
        Ok(CopyId(self.started))
    }

    fn cancel(&mut self, copy: CopyId) {
        self.flying.retain(|f| f.0 != copy);
    }

    fn arm(&mut self) -> bool {
        if !self.flying.is_empty() {
            return false;
        }
        let hub = self.hub.borrow();
        !hub.ways.iter().any(|(&(_, to), way)| to == self.at && way.open > 0 && !way.items.is_empty())
    }

    fn describe(&self, _peer: PeerId) -> String {
        "in memory".into()
    }
}

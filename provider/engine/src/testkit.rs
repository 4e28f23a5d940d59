//! Endpoints that talk to each other inside one process, for tests that read as stories.
//!
//! A [`Net`] has nodes, each with a domain and an endpoint of its own, that know each other: node
//! `i` is address `i` of every address vector. Frames go through memory, in order, and as slowly,
//! late or wrong as a test likes; nothing happens but when a node makes progress.
//!
//! ```
//! use engine::testkit::{Net, from_any, msg};
//!
//! let mut net = Net::new(2);
//! let (hello, room) = (net.bytes(0, b"hello"), net.memory(1, 8));
//! net[1].recv(&from_any(&[room], 7)).unwrap();
//! net[0].send(&msg(1, &[hello], 3)).unwrap();
//! net.settle();
//! assert_eq!(net[0].sent().ctx.0, 3);
//! let got = net[1].received();
//! assert_eq!((got.ctx.0, got.len, got.src), (7, 5, 0));
//! assert_eq!(net[1].look(room, 5), b"hello");
//! ```

mod hub;
mod link;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::{Deref, DerefMut, Index, IndexMut};
use std::rc::Rc;

use hmem::Span;
use hmem::fake::FakeMem;
use wire::RmaSeg;

use self::hub::Hub;
pub use self::hub::Place;
pub use self::link::MemLink;
use crate::domain::{Cntrs, Config, Domain, EpConfig, Reg};
use crate::types::*;
use link_api::Gone;

/// What a [`Net`] is like.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Of every domain.
    pub config: Config,
    /// Bytes of a payload that travel inside a frame, and of many in a row.
    pub eager: usize,
    /// See [`link_api::Path::eager_in_a_row`].
    pub eager_in_a_row: usize,
    /// Longest frame.
    pub max_frame: usize,
    /// Frames that fit between two nodes, each way.
    pub capacity: usize,
    /// How nodes access each other's host memory.
    pub direct: Direct,
    /// Whether a node's device may reach another node's.
    pub peer_access: bool,
    /// Entries of each completion queue.
    pub cq_size: usize,
    /// Whether the nodes are in each other's address vectors.
    pub acquainted: bool,
    /// Picks which sender is heard next.
    pub seed: u64,
    /// Whether nodes make progress by a quick look where they can.
    pub looks: bool,
}

/// How nodes access each other's host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direct {
    /// They try, and cannot.
    Never,
    /// In the call, as the kernel does it.
    InCall,
    /// By operations that end later, in the order they were started, as a network adapter does it.
    Later,
    /// By operations that end later, in any order, between frames.
    AnyOrder,
}

impl Direct {
    /// All of them.
    pub const ALL: [Direct; 4] = [Direct::InCall, Direct::Never, Direct::Later, Direct::AnyOrder];

    /// Least frames that have to fit between two nodes for a message to be sent: its own, and one with a handle.
    pub fn least_capacity(self) -> usize {
        if self.is_by_handles() { 2 } else { 1 }
    }

    /// Whether it takes handles.
    pub fn is_by_handles(self) -> bool {
        matches!(self, Direct::Later | Direct::AnyOrder)
    }
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            config: Config { virt_addr: false, rma_order: false },
            eager: 256,
            eager_in_a_row: 600,
            max_frame: 512,
            capacity: 64,
            direct: Direct::InCall,
            peer_access: false,
            cq_size: 64,
            acquainted: true,
            seed: 1,
            looks: true,
        }
    }
}

/// Nodes that may talk to each other.
#[derive(Debug)]
pub struct Net {
    setup: Setup,
    hub: Rc<RefCell<Hub>>,
    nodes: Vec<Node>,
    devices: Vec<FakeMem>,
}

/// A domain with one endpoint in it.
#[derive(Debug)]
pub struct Node {
    domain: Domain<MemLink>,
    /// Its endpoint.
    pub ep: EpId,
    /// What the endpoint's receives are posted to.
    pub rx: RxId,
    /// Its address vector.
    pub av: AvId,
    /// Where sends, RMA and atomics complete.
    pub tx_cq: CqId,
    /// Where receives complete.
    pub rx_cq: CqId,
    /// What quick looks at that queue, when it was empty, have told; `None` if there are none.
    seen: Option<VecDeque<Completion>>,
}

impl Net {
    /// Nodes in a net like any other.
    pub fn new(nodes: usize) -> Net {
        Net::with(nodes, Setup::default())
    }

    /// Nodes in a net of this kind.
    pub fn with(nodes: usize, setup: Setup) -> Net {
        let hub = Hub::new(&setup);
        let nodes: Vec<Node> = (0..nodes).map(|_| Node::new(&setup, Hub::join(&hub))).collect();
        let mut net = Net { setup, hub, nodes, devices: Vec::new() };
        if setup.acquainted {
            net.introduce();
        }
        net
    }

    /// Puts every node into the address vector of each.
    pub fn introduce(&mut self) {
        for at in 0..self.nodes.len() {
            self.acquaint(at);
        }
    }

    fn acquaint(&mut self, at: Place) {
        for other in 0..self.nodes.len() {
            let addr = self.hub.borrow().addr(other);
            let node = &mut self.nodes[at];
            let av = node.av;
            node.av_insert(av, addr);
        }
    }

    /// The name of what is at a place.
    pub fn addr(&self, at: Place) -> wire::Addr {
        self.hub.borrow().addr(at)
    }

    /// A link at a new place, for one more endpoint of some node.
    pub fn link(&mut self) -> MemLink {
        Hub::join(&self.hub)
    }

    /// Zeroed memory of a node, which others may reach directly.
    pub fn memory(&mut self, of: Place, len: usize) -> Span {
        let span = Span::leak(len);
        self.hub.borrow_mut().share(of, span);
        span
    }

    /// Memory of a node that holds these bytes.
    pub fn bytes(&mut self, of: Place, bytes: &[u8]) -> Span {
        let span = self.memory(of, bytes.len());
        hmem::write(&[span], 0, bytes);
        span
    }

    /// Zeroed memory of a device, which nobody may reach directly.
    pub fn device(&mut self, len: usize) -> Span {
        let memory = hmem::fake::alloc(len);
        let span = memory.span();
        self.devices.push(memory);
        self.hub.borrow_mut().devices.push(span);
        span
    }

    /// Makes progress everywhere until there is nothing to do.
    ///
    /// # Panics
    /// If that never ends.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            let done = self.nodes.iter_mut().map(|n| n.progress()).sum::<usize>();
            if done == 0 && (self.operations_in_flight() == 0 || self.hub.borrow().held) {
                return;
            }
        }
        panic!("the net does not come to rest");
    }

    /// Runs `work` at a node, while another, of a higher number, makes progress whenever that one finds
    /// nothing to do.
    pub fn while_answered(&mut self, at: Place, by: Place, work: impl FnOnce(&mut Node)) {
        assert!(at < by, "the places below do not move");
        let other = Rc::new(RefCell::new(self.nodes.remove(by)));
        let answer = Rc::clone(&other);
        let answer = Box::new(move || {
            answer.borrow_mut().progress();
        });
        self.hub.borrow_mut().meanwhile = Some(hub::Meanwhile { at, work: answer });
        work(&mut self.nodes[at]);
        self.hub.borrow_mut().meanwhile = None;
        let other = Rc::into_inner(other).expect("nobody else has it");
        self.nodes.insert(by, other.into_inner());
    }

    /// Has the next operations that end later fail, before or (`late`) while they are in flight.
    pub fn fail_copies(&mut self, copies: usize, late: bool) {
        self.hub.borrow_mut().fail_copies(copies, late);
    }

    /// From now on all devices' memory is of the same one.
    pub fn one_device(&mut self) {
        self.hub.borrow_mut().one_device = true;
    }

    /// How many operations that end later did all they were to: copies by devices, and of host memory by handles.
    pub fn device_copies(&self) -> usize {
        self.hub.borrow().copies
    }

    /// How many operations that end later are in flight.
    pub fn operations_in_flight(&self) -> usize {
        self.hub.borrow().flying.values().sum()
    }

    /// Whether operations stay in flight from now on, however long.
    pub fn hold_operations(&mut self, on: bool) {
        self.hub.borrow_mut().held = on;
    }

    /// Stops everything on its way from one node to another, until [`Net::let_pass`].
    pub fn hold(&mut self, from: Place, to: Place) {
        self.hub.borrow_mut().set_open(from, to, 0);
    }

    /// Lets that many items more pass; `usize::MAX` for all there will ever be.
    pub fn let_pass(&mut self, from: Place, to: Place, items: usize) {
        self.hub.borrow_mut().set_open(from, to, items);
    }

    /// How many frames are on their way from one node to another.
    pub fn in_flight(&self, from: Place, to: Place) -> usize {
        self.hub.borrow_mut().frames(from, to).len()
    }

    /// Changes frames that are on their way.
    pub fn tamper(&mut self, from: Place, to: Place, mut with: impl FnMut(&mut Vec<u8>)) {
        self.hub.borrow_mut().frames(from, to).into_iter().for_each(&mut with);
    }

    /// Sends any bytes, as if the node at `from` had.
    pub fn inject(&mut self, from: Place, to: Place, bytes: Vec<u8>) {
        self.hub.borrow_mut().inject(from, to, bytes);
    }

    /// Whether memory may be reached directly, from now on.
    pub fn set_direct(&mut self, on: bool) {
        self.hub.borrow_mut().set_direct(on);
    }

    /// How many frames fit between two nodes, from now on.
    pub fn set_capacity(&mut self, frames: usize) {
        self.hub.borrow_mut().set_capacity(frames);
    }

    /// Has the next direct accesses fail.
    pub fn fault(&mut self, accesses: usize) {
        self.hub.borrow_mut().fault(accesses);
    }

    /// How many direct accesses there were.
    pub fn direct_accesses(&self) -> usize {
        self.hub.borrow().accesses()
    }

    /// Whether nodes see each other's registrations. At first they do not.
    pub fn set_boards(&mut self, on: bool) {
        self.hub.borrow_mut().set_boards(on);
    }

    /// A node may not write to others' memory any more.
    pub fn bar_puts(&mut self, at: Place) {
        self.hub.borrow_mut().bar(at);
    }

    /// Opens a counter of one node's to another one, for pieces of a transfer.
    pub fn open_share(&mut self, from: Place, to: Place) -> link_api::PieceCounter {
        self.hub.borrow_mut().open_share(from, to).expect("a counter is free")
    }

    /// Turns all such counters back, as a hostile node may.
    pub fn rewind_shares(&mut self) {
        self.hub.borrow_mut().rewind_shares();
    }

    /// How many pieces of shared transfers their senders took.
    pub fn pieces_helped(&self) -> usize {
        self.hub.borrow().helped()
    }

    /// Has every send from one to another fail.
    pub fn refuse(&mut self, from: Place, to: Place, why: Gone) {
        self.hub.borrow_mut().refuse(from, to, Some(why));
    }

    /// Whether new connections take a while from now on.
    pub fn set_slow(&mut self, on: bool) {
        self.hub.borrow_mut().slow = on;
    }

    /// Sends are not refused any more.
    pub fn admit(&mut self, from: Place, to: Place) {
        self.hub.borrow_mut().refuse(from, to, None);
    }

    /// Ends a node. What it has sent still arrives; then all whom it met hear that it is gone.
    pub fn kill(&mut self, at: Place) {
        // Nothing reaches or leaves what takes the node's place for now.
        self.nodes[at] = Node::new(&self.setup, Hub::rejoin(&self.hub, at));
        self.hub.borrow_mut().kill(at);
    }

    /// Ends an endpoint that is not a node's only one, for its peers; the test closes it.
    pub fn part(&mut self, at: Place) {
        self.hub.borrow_mut().kill(at);
    }

    /// Starts another process in the place, and under the name, of one that was killed.
    pub fn revive(&mut self, at: Place) {
        self.nodes[at] = Node::new(&self.setup, Hub::rejoin(&self.hub, at));
        self.acquaint(at);
    }

    /// A peer is inside an access for as many of the next calls that take memory back.
    pub fn keep_inside(&mut self, calls: usize) {
        self.hub.borrow_mut().stuck = calls;
    }

    /// So much time goes by that peers which receives name, and which are not there, are given up.
    pub fn give_up_expected(&mut self) {
        self.hub.borrow_mut().give_up_expected();
    }

    /// That no node has an operation under way, or a completion that nobody looked at.
    ///
    /// # Panics
    /// If one has.
    pub fn assert_idle(&mut self) {
        for (i, node) in self.nodes.iter_mut().enumerate() {
            assert_eq!(node.ep_under_way(node.ep), 0, "node {i} has operations under way");
            assert_eq!((node.tx(), node.rx()), (vec![], vec![]), "node {i} has completions");
        }
    }
}

impl Index<Place> for Net {
    type Output = Node;
    fn index(&self, at: Place) -> &Node {
        &self.nodes[at]
    }
}

impl IndexMut<Place> for Net {
    fn index_mut(&mut self, at: Place) -> &mut Node {
        &mut self.nodes[at]
    }
}

impl Deref for Node {
    type Target = Domain<MemLink>;
    fn deref(&self) -> &Domain<MemLink> {
        &self.domain
    }
}

impl DerefMut for Node {
    fn deref_mut(&mut self) -> &mut Domain<MemLink> {
        &mut self.domain
    }
}

impl Node {
    fn new(setup: &Setup, link: MemLink) -> Node {
        let mut domain = Domain::new(setup.config);
        let (tx_cq, rx_cq) = (domain.cq_open(setup.cq_size), domain.cq_open(setup.cq_size));
        let av = domain.av_open();
        let ep = domain.ep_open(EpConfig {
            link,
            av,
            rx: None,
            tx_cq: Some(tx_cq),
            rx_cq: Some(rx_cq),
            cntrs: Cntrs::default(),
        });
        let rx = domain.ep_rx(ep).expect("just opened");
        Node { domain, ep, rx, av, tx_cq, rx_cq, seen: setup.looks.then(VecDeque::new) }
    }

    /// Opens one more endpoint, in the same address vector and with the same queues.
    pub fn open(&mut self, link: MemLink, rx: Option<RxId>) -> EpId {
        let (av, tx_cq, rx_cq) = (self.av, Some(self.tx_cq), Some(self.rx_cq));
        self.ep_open(EpConfig { link, av, rx, tx_cq, rx_cq, cntrs: Cntrs::default() })
    }

    /// Makes progress; returns how much was done.
    pub fn progress(&mut self) -> usize {
        let Some(seen) = &mut self.seen else { return self.domain.progress() };
        let mut n = 0;
        while n < 32 && self.domain.cq_is_empty(self.rx_cq) {
            match self.domain.look_for(self.rx_cq) {
                Look::Message(entry) => seen.push_back(entry),
                Look::Other => {}
                Look::Nothing => return n,
                Look::Unknown => break,
            }
            n += 1;
        }
        n + self.domain.progress()
    }

    /// Sends from the node's endpoint.
    pub fn send(&mut self, op: &Send<'_>) -> Result<(), Error> {
        self.domain.send(self.ep, op)
    }

    /// Sends from another endpoint of the node.
    pub fn send_from(&mut self, ep: EpId, op: &Send<'_>) -> Result<(), Error> {
        self.domain.send(ep, op)
    }

    /// Posts a receive to the node's endpoint.
    pub fn recv(&mut self, op: &Recv<'_>) -> Result<(), Error> {
        self.domain.recv(self.rx, op)
    }

    /// Posts a receive to a shared receive context.
    pub fn recv_at(&mut self, rx: RxId, op: &Recv<'_>) -> Result<(), Error> {
        self.domain.recv(rx, op)
    }

    /// RMA from the node's endpoint.
    pub fn rma(&mut self, op: &Rma<'_>) -> Result<(), Error> {
        self.domain.rma(self.ep, op)
    }

    /// An atomic from the node's endpoint.
    pub fn atomic(&mut self, op: &Atomic<'_>) -> Result<(), Error> {
        self.domain.atomic(self.ep, op)
    }

    /// Registers memory for reads and writes by peers, under a key of the test's.
    pub fn share(&mut self, span: Span, key: u64) -> crate::domain::MrId {
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        self.mr_reg(&Reg { iov: &[span], access, key: Some(key) }).expect("a key that is free").0
    }

    /// The next entry of a queue, failures like any other.
    pub fn next(&mut self, cq: CqId) -> Option<Completion> {
        if let (Some(seen), true) = (&mut self.seen, cq == self.rx_cq) {
            if let Some(entry) = seen.pop_front() {
                return Some(entry);
            }
        }
        let mut next = None;
        self.cq_take(cq, 1, |_, c| next = Some(*c));
        next.or_else(|| self.cq_error(cq))
    }

    fn all(&mut self, cq: CqId) -> Vec<Completion> {
        std::iter::from_fn(|| self.next(cq)).collect()
    }

    /// All that completed of what was started here.
    pub fn tx(&mut self) -> Vec<Completion> {
        self.all(self.tx_cq)
    }

    /// All that completed of what was received here.
    pub fn rx(&mut self) -> Vec<Completion> {
        self.all(self.rx_cq)
    }

    /// The one operation started here that completed.
    ///
    /// # Panics
    /// If there was none, or more.
    pub fn sent(&mut self) -> Completion {
        one(self.tx())
    }

    /// The one receive that completed.
    ///
    /// # Panics
    /// If there was none, or more.
    pub fn received(&mut self) -> Completion {
        one(self.rx())
    }

    /// The first bytes of some memory.
    pub fn look(&self, span: Span, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        assert_eq!(hmem::read(&[span], 0, &mut bytes), len);
        bytes
    }
}

fn one(mut all: Vec<Completion>) -> Completion {
    assert_eq!(all.len(), 1, "one completion was expected: {all:?}");
    all.remove(0)
}

/// An untagged message.
pub fn msg(to: FiAddr, iov: &[Span], ctx: usize) -> Send<'_> {
    Send { to, iov, tag: None, data: None, ctx: Ctx(ctx), flags: OpFlags::COMPLETION }
}

/// A tagged message.
pub fn tagged(to: FiAddr, iov: &[Span], tag: u64, ctx: usize) -> Send<'_> {
    Send { tag: Some(tag), ..msg(to, iov, ctx) }
}

/// A receive for untagged messages of anyone.
pub fn from_any(iov: &[Span], ctx: usize) -> Recv<'_> {
    let pattern = Pattern { src: ADDR_UNSPEC, tag: None };
    Recv { pattern, iov, ctx: Ctx(ctx), flags: OpFlags::COMPLETION }
}

/// A receive for messages of anyone with this tag.
pub fn with_tag(iov: &[Span], tag: u64, ctx: usize) -> Recv<'_> {
    Recv { pattern: Pattern { src: ADDR_UNSPEC, tag: Some((tag, 0)) }, ..from_any(iov, ctx) }
}

/// A receive for untagged messages of one peer.
pub fn from(src: FiAddr, iov: &[Span], ctx: usize) -> Recv<'_> {
    Recv { pattern: Pattern { src, tag: None }, ..from_any(iov, ctx) }
}

/// An RMA write.
pub fn write<'a>(to: FiAddr, iov: &'a [Span], remote: &'a [RmaSeg], ctx: usize) -> Rma<'a> {
    Rma { to, write: true, iov, remote, data: None, ctx: Ctx(ctx), flags: OpFlags::COMPLETION }
}

/// An RMA read.
pub fn read<'a>(to: FiAddr, iov: &'a [Span], remote: &'a [RmaSeg], ctx: usize) -> Rma<'a> {
    Rma { write: false, ..write(to, iov, remote, ctx) }
}

/// A piece of a peer's registration.
pub fn there(addr: u64, len: usize, key: u64) -> RmaSeg {
    RmaSeg { addr: addr.into(), len: (len as u64).into(), key: key.into() }
}

/// Bytes that differ from those of any other `seed`, mostly.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ i >> 8 ^ seed.wrapping_mul(97)) as u8).collect()
}

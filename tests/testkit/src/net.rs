//! Nodes that may talk to each other.

use std::cell::RefCell;
use std::ops::{Index, IndexMut};
use std::rc::Rc;

use hmem::Span;
use hmem::fake::FakeMem;
use link_api::Gone;

use crate::Setup;
use crate::hub::{Hub, Meanwhile, Place};
use crate::link::MemLink;
use crate::node::Node;
use crate::ops::{from_any, msg, pattern};

/// Nodes that may talk to each other.
#[derive(Debug)]
pub struct Net {
    setup: Setup,
    hub: Rc<RefCell<Hub>>,
    nodes: Vec<Node>,
    devices: Vec<FakeMem>,
}

impl Net {
    /// Nodes in a net like any other.
    pub fn new(nodes: usize) -> Net {
        Net::with(nodes, Setup::default())
    }

    /// Nodes in a net of this kind.
    pub fn with(nodes: usize, setup: Setup) -> Net {
        let hub = Hub::new(&setup);
        let nodes: Vec<Node> = (0..nodes).map(|_| Node::new(&setup, MemLink::join(&hub))).collect();
        let mut net = Net { setup, hub, nodes, devices: Vec::new() };
        if setup.acquainted {
            net.introduce();
        }
        net
    }

    /// Two nodes, of which the second has fetched something directly, so that from then on both copy what is
    /// large.
    pub fn warm(setup: Setup) -> Net {
        let mut net = Net::with(2, setup);
        net.exchange(100_000, 9);
        assert_eq!(net.pieces_helped(), 0);
        net
    }

    /// One message of `len` bytes from the first node to the second, received and checked.
    pub fn exchange(&mut self, len: usize, seed: usize) {
        let (src, dst) = (self.bytes(0, &pattern(len, seed)), self.memory(1, len));
        self[1].recv(&from_any(&[dst], 1)).expect("a receive is posted");
        self[0].send(&msg(1, &[src], 0)).expect("there is room for a message");
        self.settle();
        let (sent, got) = (self[0].sent(), self[1].received());
        assert_eq!((sent.err, got.err, got.len), (None, None, len));
        assert!(self[1].look(dst, len) == pattern(len, seed), "{len} bytes");
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
        MemLink::join(&self.hub)
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

    /// Zeroed memory of a device, which no CPU reaches.
    pub fn device(&mut self, len: usize) -> Span {
        let memory = hmem::fake::alloc(len);
        let span = memory.span();
        self.devices.push(memory);
        self.hub.borrow_mut().devices.push(span);
        span
    }

    /// From now on copies between this device memory and the host's that were started stay in flight, or are
    /// over when they are asked for again.
    pub fn hold_device(&mut self, span: Span, on: bool) {
        self.device_of(span).hold(on);
    }

    /// Such copies in flight.
    pub fn staged_in_flight(&self, span: Span) -> usize {
        self.device_of(span).in_flight()
    }

    fn device_of(&self, span: Span) -> &FakeMem {
        let is_it =
            |d: &&FakeMem| d.span().addr() <= span.addr() && span.addr() < d.span().addr() + d.len() as u64;
        self.devices.iter().find(is_it).expect("memory of a device")
    }

    /// Makes progress everywhere until there is nothing to do.
    ///
    /// # Panics
    /// If that never ends.
    pub fn settle(&mut self) {
        for _ in 0..100_000 {
            let done = self.nodes.iter_mut().map(|n| n.progress()).sum::<usize>();
            let staging = self.devices.iter().any(|d| !d.is_held() && d.in_flight() > 0);
            let is_late = std::mem::take(&mut self.hub.borrow_mut().is_late);
            if done == 0
                && !staging
                && !is_late
                && (self.operations_in_flight() == 0 || self.hub.borrow().held)
            {
                return;
            }
        }
        panic!("the net does not come to rest");
    }

    /// Runs `work` at a node, while another, of a higher number, makes progress whenever that one finds
    /// nothing to do.
    pub fn while_answered(&mut self, at: Place, by: Place, work: impl FnOnce(&mut Node)) {
        let answer = |node: &mut Node| {
            node.progress();
        };
        self.meanwhile((at, false), by, answer, work);
    }

    /// Runs `work` at a node, and `other` at another one, of a higher number, whenever that one is about to
    /// get memory directly: as if the copy took so long.
    pub fn while_copying(
        &mut self,
        at: Place,
        by: Place,
        other: impl FnMut(&mut Node) + 'static,
        work: impl FnOnce(&mut Node),
    ) {
        self.meanwhile((at, true), by, other, work);
    }

    fn meanwhile(
        &mut self,
        (at, copies): (Place, bool),
        by: Place,
        mut answer: impl FnMut(&mut Node) + 'static,
        work: impl FnOnce(&mut Node),
    ) {
        assert!(at < by, "the places below do not move");
        let other = Rc::new(RefCell::new(self.nodes.remove(by)));
        let node = Rc::clone(&other);
        let answer = Box::new(move || answer(&mut node.borrow_mut()));
        self.hub.borrow_mut().meanwhile = Some(Meanwhile { at, copies, work: answer });
        work(&mut self.nodes[at]);
        self.hub.borrow_mut().meanwhile = None;
        let other = Rc::into_inner(other).expect("the closure that had it is gone");
        self.nodes.insert(by, other.into_inner());
    }

    /// Has the next operations that end later fail, before or (`late`) while they are in flight.
    pub fn fail_copies(&mut self, copies: usize, late: bool) {
        self.hub.borrow_mut().fail_copies(copies, late);
    }

    /// From now on others reach bounce buffers in a device's memory, whatever they reach of the memory that
    /// is sent.
    pub fn set_bounces(&mut self, on: bool) {
        self.hub.borrow_mut().bounces = on;
    }

    /// From now on all devices' memory is of the same one.
    pub fn one_device(&mut self) {
        self.hub.borrow_mut().one_device = true;
    }

    /// How many operations that end later did all they were to: copies by devices, and of host memory by
    /// handles.
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

    /// From now on a link keeps a part of what it sends to another one, or has sent all on.
    pub fn set_keeps(&mut self, from: Place, to: Place, keeps: bool) {
        self.hub.borrow_mut().way(from, to).keeps = keeps;
    }

    /// How many frames fit between two nodes, from now on.
    pub fn set_capacity(&mut self, frames: usize) {
        self.hub.borrow_mut().set_capacity(frames);
    }

    /// Has the next direct accesses fail.
    pub fn fault(&mut self, accesses: usize) {
        self.hub.borrow_mut().fault(accesses);
    }

    /// From now on copies out of frames come one byte short, as where memory is unmapped meanwhile.
    pub fn set_short(&mut self, on: bool) {
        self.hub.borrow_mut().short = on;
    }

    /// A node has no memory for a group, made there or elsewhere.
    pub fn lack_group_memory(&mut self, at: Place) {
        self.hub.borrow_mut().no_group_memory = Some(at);
    }

    /// Which host each node is on: nodes of different ones share no memory of groups.
    pub fn set_hosts(&mut self, hosts: &[usize]) {
        self.hub.borrow_mut().hosts = hosts.to_vec();
    }

    /// How many direct accesses there were.
    pub fn direct_accesses(&self) -> usize {
        self.hub.borrow().accesses()
    }

    /// How many frames found no room.
    pub fn refused_frames(&self) -> usize {
        self.hub.borrow().busy
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

    /// Ends a node. What it has sent still arrives; then all nodes that it met have an event.
    pub fn kill(&mut self, at: Place) {
        // Nothing reaches or leaves what takes the node's place for now.
        self.nodes[at] = Node::new(&self.setup, MemLink::rejoin(&self.hub, at));
        self.hub.borrow_mut().kill(at);
    }

    /// Ends an endpoint that is not a node's only one, for its peers; the test closes it.
    pub fn part(&mut self, at: Place) {
        self.hub.borrow_mut().kill(at);
    }

    /// Starts another process in the place, and under the name, of one that was killed.
    pub fn revive(&mut self, at: Place) {
        self.nodes[at] = Node::new(&self.setup, MemLink::rejoin(&self.hub, at));
        self.acquaint(at);
    }

    /// A peer is inside an access for as many of the next calls that take memory back.
    pub fn keep_inside(&mut self, calls: usize) {
        self.hub.borrow_mut().stuck = calls;
    }

    /// The node of which alone that one waits for a frame.
    pub fn awaited(&self, at: usize) -> Option<usize> {
        self.hub.borrow().awaited.get(&at).copied().flatten()
    }

    /// So much time goes by that peers which receives name, and which are not there, are given up.
    pub fn give_up_expected(&mut self) {
        self.hub.borrow_mut().give_up_expected();
    }

    /// That no node has an operation under way, or a completion that was not taken.
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

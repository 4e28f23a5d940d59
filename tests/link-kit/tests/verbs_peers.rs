//! What an endpoint of the link over queue pairs keeps for each peer, over the stand-in: one that is known, that is
//! connected, and whose connection was closed because nothing went by it. By itself, since it counts what is allocated.
#![cfg(not(loom))]

use std::alloc::Layout;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use below::{BelowLink, BelowOptions};
use link::{TcpLink, TcpOptions};
use link_api::{Event, FrameLink as _, Link as _, PeerId};
use link_kit::counting::Counting;
use stand_in::program::{self, Program};
use verbs::{Options, Verbs};
use wire::session::JobKey;

type Node = BelowLink<TcpLink, Verbs>;

const WAIT: Duration = Duration::from_secs(300);
/// So many come first, whose queue pairs have more slots.
const FIRST: usize = 16;
/// So many of them send so many messages at once.
const SENDERS: usize = 56;
const BURST: usize = 16;
/// What peers share where few messages are under way, however many peers there are; and at most.
const FEW: isize = 8 << 20;
const MOST: isize = 32 << 20;
/// Nothing has gone for so long by a connection that is closed.
const IDLE: Duration = Duration::from_millis(1);

/// Longer than all that is kept for a peer but places of messages, which are pages, and buffers of TCP: bytes. Peers
/// share both.
const LONG: usize = 32 << 10;
const PAGE: usize = 4096;

static COUNTS: AtomicBool = AtomicBool::new(false);
static BYTES: AtomicIsize = AtomicIsize::new(0);
static SHARED_BYTES: AtomicIsize = AtomicIsize::new(0);

fn count(layout: Layout, sign: isize) {
    if COUNTS.load(Relaxed) {
        let is_shared = layout.size() > LONG && (layout.align() == 1 || layout.align() >= PAGE);
        let bytes = if is_shared { &SHARED_BYTES } else { &BYTES };
        bytes.fetch_add(sign * layout.size() as isize, Relaxed);
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting(count);

/// What the one endpoint does, counted.
fn counted<T>(does: impl FnOnce() -> T) -> T {
    COUNTS.store(true, Relaxed);
    let done = does();
    COUNTS.store(false, Relaxed);
    done
}

fn open(idle: Option<Duration>) -> Node {
    let key = JobKey::from_secret(b"of many peers");
    let to = "127.0.0.1:0".parse().expect("an address");
    let base = TcpLink::bind(to, TcpOptions::new(key.clone())).expect("a free name");
    let library = Options { library: Some(program::path("verbs_stand_in")), ..Options::default() };
    let (device, _) = verbs::open(&library, Ipv4Addr::LOCALHOST.into()).expect("a device");
    BelowLink::new(base, Ok(device), BelowOptions { fallback: false, idle, ..BelowOptions::new(key) })
        .expect("descriptors")
}

fn pairs() -> u64 {
    let stand_in = Program::open(program::path("verbs_stand_in"));
    stand_in.calls(c"ibv_create_qp") - stand_in.calls(c"ibv_destroy_qp")
}

/// One endpoint and its peers, each with how the one knows it.
struct Many {
    one: Node,
    peers: Vec<(Node, PeerId)>,
    start: Instant,
}

impl Many {
    /// A frame to a peer, which takes it: the way there is made if there is none.
    fn send(&mut self, to: usize) {
        let Many { one, peers, start } = self;
        let (link, peer) = &mut peers[to];
        let (mut sent, mut came) = (false, false);
        while !came {
            assert!(start.elapsed() < WAIT, "no way to peer {to}");
            sent |= !sent && counted(|| one.send(*peer, b"hello", &[], 0, 0)).is_ok();
            assert!(counted(|| one.poll()).is_none());
            match link.poll() {
                Some(Event::Frame(frame)) => {
                    link.release(frame);
                    came = true;
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }

    /// Some peers send as much as they can, and the one takes a message where none can send more.
    fn burst(&mut self) {
        let own = self.one.addr();
        let to: Vec<PeerId> = self.peers.iter_mut().map(|(link, _)| link.peer(&own)).collect();
        let (mut left, mut came) = ([BURST; SENDERS], 0);
        while came < BURST * SENDERS {
            assert!(self.start.elapsed() < WAIT, "only {came} have come");
            let mut has_sent = false;
            for (at, (link, _)) in self.peers.iter_mut().enumerate().take(SENDERS) {
                if left[at] > 0 && link.send(to[at], b"hello", &[], 0, 0).is_ok() {
                    left[at] -= 1;
                    has_sent = true;
                }
                match link.poll() {
                    None => {}
                    Some(other) => {
                        panic!("peer {at} has {other:?}, {came} have come after {:?}", self.start.elapsed())
                    }
                }
            }
            if has_sent {
                continue;
            }
            match counted(|| self.one.poll()) {
                Some(Event::Frame(frame)) => {
                    counted(|| self.one.release(frame));
                    came += 1;
                }
                Some(other) => panic!("{other:?}"),
                None => {}
            }
        }
    }

    /// All have closed their connections.
    fn close(&mut self) {
        while pairs() > 0 {
            assert!(self.start.elapsed() < WAIT, "they are not closed");
            for (link, _) in &mut self.peers {
                assert!(link.poll().is_none());
            }
            for _ in 0..100 {
                assert!(counted(|| self.one.poll()).is_none());
            }
        }
    }
}

/// Bytes for each of so many, since then.
fn each(before: isize, many: usize) -> isize {
    (BYTES.load(Relaxed) - before) / many as isize
}

fn peers_cost(many: usize) {
    // SAFETY: nothing reads the environment yet: the stand-in is not loaded, and no link is open.
    unsafe { std::env::set_var("VERBS_STAND_IN_FABRIC", std::process::id().to_string()) };
    let mut one = counted(|| open(None));
    let mut links: Vec<Node> = (0..FIRST + many).map(|_| open(Some(IDLE))).collect();
    let own = one.addr();
    for link in &mut links {
        link.peer(&own);
    }
    let names: Vec<_> = links.iter().map(|link| link.addr()).collect();
    let before = BYTES.load(Relaxed);
    let to: Vec<PeerId> = counted(|| names.iter().map(|name| one.peer(name)).collect());
    let known = each(before, FIRST + many);
    let mut all = Many { one, peers: links.into_iter().zip(to).collect(), start: Instant::now() };
    (0..FIRST).for_each(|to| all.send(to));
    let (before, begun) = (BYTES.load(Relaxed), Instant::now());
    (FIRST..FIRST + many).for_each(|to| all.send(to));
    let (took, connected) = (begun.elapsed() / many as u32, known + each(before, many));
    assert_eq!(pairs(), 2 * (FIRST + many) as u64);
    all.close();
    let closed = known + each(before, many);
    (0..FIRST + many).for_each(|to| all.send(to));
    assert_eq!(pairs(), 2 * (FIRST + many) as u64, "all are connected anew");
    let few = SHARED_BYTES.load(Relaxed);
    assert!(few < FEW, "{few} bytes, though a message at a time is under way");
    all.burst();
    let shared = SHARED_BYTES.load(Relaxed);
    assert!(shared > few, "no more places, though all send");
    println!("{many} peers, each: known {known} bytes, connected {connected}, closed {closed}");
    println!("connecting {took:?} each; shared by all {few} bytes, {shared} once all send");
    assert!(shared < MOST, "{shared} bytes");
    assert!(known < 2 << 10, "{known} bytes for a peer that is known");
    assert!(
        closed < connected,
        "{closed} bytes for one that is closed, {connected} for one that is connected"
    );
}

#[test]
fn a_peer_that_is_known_costs_little_and_one_that_is_idle_gives_its_queue_pair_back() {
    peers_cost(40);
}

#[test]
#[ignore = "takes 20 000 descriptors"]
fn a_thousand_peers() {
    peers_cost(1_000 - FIRST);
}

//! Requests that are done once, and that no honest peer posts: immediate data that nothing has room for, or that
//! was not agreed on, and atomics of words that may not be both read and written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

use below::{Below as _, Dest, Did, Piece, Poll, Remote as _};
use engine::{Error, OpFlags};
use hmem::{AtomicOp, Datatype, Kind, Span};
use link_api::{
    Connect, Direct, Event, FrameLink as _, Gone, Grant, Link as _, Once, PeerId, RmaLink as _, Way,
};
use link_kit::text;
use testkit::there;
use verbs::{Options, Verbs};
use wire::Seg;

use crate::counted::Counts;
use crate::device::{open, options, set};
use crate::duo::{Duo, Over, filled, link_over};
use crate::lone::{happens, join, say};
use crate::rma::{BOTH, WAIT, known};

/// Writes data and no bytes, for which the device asks for no key.
fn data(at: Dest) -> Piece {
    let (local, once) = (Span::leak(1).part(0, 0).expect("no bytes"), Some(Once::Write(7)));
    Piece { way: Way::Put, at, key: 0, first: 0, addr: 0, local, once }
}

fn is_written(did: &Did) -> bool {
    matches!(did, Did::Written(..))
}

/// A report holds the place of a message until it is taken: a peer that floods this side waits, and what this
/// side keeps has a bound.
#[test]
fn data_that_was_not_agreed_on_is_kept_in_as_many_places_as_there_are() {
    const PLACES: usize = 16;
    set("sv0:cqe=64,srqwr=16,wr=8", &[]);
    let (mut owner, mut peer) = (open(), open());
    let (to_peer, at) = join(&mut owner, &mut peer);
    say(&mut owner, to_peer, &mut peer);
    let (mut posted, mut over, mut kept) = (0, 0, VecDeque::new());
    for _ in 0..2_000 {
        posted += usize::from(peer.access(5, &data(at)).is_ok());
        over += usize::from(peer.poll(Poll::All).is_some());
        kept.extend(owner.poll(Poll::All));
        sleep(Duration::from_micros(20));
    }
    assert!(kept.iter().all(is_written));
    assert!(kept.len() <= PLACES && posted > kept.len(), "{} of {posted} are kept", kept.len());
    // They are places of messages again, and the peer goes on.
    let (mut reported, start) = (0, Instant::now());
    while reported < posted || over < posted {
        assert!(start.elapsed() < WAIT, "{reported} of {posted}, {over} are over");
        while let Some(did) = kept.pop_front() {
            let Did::Written(buffer, who, 7, 0) = did else { panic!("{did:?}") };
            assert_eq!(who, to_peer.0);
            owner.give_back(buffer);
            reported += 1;
        }
        over += usize::from(peer.poll(Poll::All).is_some());
        kept.extend(owner.poll(Poll::All));
    }
    say(&mut owner, to_peer, &mut peer);
}

/// Of a peer that was sent nothing, and so knows no key.
#[test]
fn data_before_the_first_message_ends_the_connection() {
    set("sv0", &[]);
    let (mut owner, mut peer) = (open(), open());
    let (_, at) = join(&mut owner, &mut peer);
    peer.access(5, &data(at)).expect("room for one");
    assert_eq!(happens(&mut peer), Did::Over(5, true));
    let start = Instant::now();
    while peer.access(5, &data(at)).is_ok() && matches!(happens(&mut peer), Did::Over(5, true)) {
        assert!(start.elapsed() < WAIT, "it goes on");
        assert_eq!(owner.poll(Poll::All), None);
    }
}

/// What an atomic of the device finds: whether it was done.
fn adds(by: &mut Verbs, (at, key, addr): (Dest, u64, u64)) -> bool {
    let once = Some(Once::FetchAdd(5));
    let piece = Piece { way: Way::Get, at, key, first: key, addr, local: Span::leak(8), once };
    by.access(5, &piece).expect("room for one");
    loop {
        match happens(by) {
            Did::Over(5, ok) => return ok,
            Did::Failed(..) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// A peer that has the key of memory that it may read, or write, alone, or that the two may not change so.
#[test]
fn an_atomic_of_a_word_that_may_not_be_read_and_written_is_refused_by_the_device() {
    set("sv0:glob;sv1:noatomics", &[]);
    let device = |name: &str| {
        let options = Options { device: Some(name.into()), ..options() };
        verbs::open(&options, std::net::Ipv4Addr::LOCALHOST.into()).expect("a device").0
    };
    let before = filled(64, 3);
    for (of, read, write, is_done) in [
        ("sv0", true, true, true),
        ("sv0", true, false, false),
        ("sv0", false, true, false),
        ("sv1", true, true, false),
    ] {
        let (mut owner, mut peer, memory) = (device(of), device("sv0"), filled(64, 3));
        let (to_peer, at) = join(&mut owner, &mut peer);
        let lease = owner.publish(memory, read, write).expect("memory that is registered");
        let key = owner.admit(to_peer, &lease, read, write).expect("a key");
        say(&mut owner, to_peer, &mut peer);
        assert_eq!(adds(&mut peer, (at, key, lease.base + 8)), is_done, "{of}, {read}, {write}");
        assert_eq!(text(&[memory]) == text(&[before]), !is_done, "{of}, {read}, {write}");
    }
}

/// Two links, of which the first one decides, with what each asks of its device.
struct Two {
    a: Over<Verbs>,
    b: Over<Verbs>,
    to_b: PeerId,
    to_a: PeerId,
    of_b: Arc<Counts>,
}

impl Two {
    /// The second one says of itself that it is not written to with data, if `hides`.
    fn new(hides: bool) -> Two {
        set("sv0", &[]);
        let counts = [(); 2].map(|()| Arc::new(Counts::default()));
        counts.iter().for_each(|counts| counts.hides_once.store(hides, Relaxed));
        let mut links = counts.each_ref().map(|counts| (link_over(open(), counts), Arc::clone(counts)));
        links.sort_by_key(|(link, _)| link.addr());
        let [(mut a, of_a), (mut b, of_b)] = links;
        of_a.hides_once.store(false, Relaxed);
        let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
        Two { a, b, to_b, to_a, of_b }
    }

    /// Until the first one knows that its messages arrive, and the second one does not know that yet.
    fn meet(&mut self) {
        let start = Instant::now();
        while self.a.connect(self.to_b, Connect::Now).is_err() {
            assert!(start.elapsed() < WAIT, "no way to the peer");
            assert!(self.b.poll().is_none());
            assert!(self.a.poll().is_none());
        }
        assert!(self.b.describe(self.to_a).contains("not connected"));
    }

    /// The first one writes with data, whatever was agreed on, and its device has the answer.
    fn write(&mut self) {
        let (at, start) = (self.a.next_mark(self.to_b).expect("there is a channel").0, Instant::now());
        let below = self.a.below().expect("a device");
        below.access(1 << 54, &data(at)).expect("room for one");
        while below.poll(Poll::All) != Some(Did::Over(1 << 54, true)) {
            assert!(start.elapsed() < WAIT, "it does not arrive");
        }
    }

    /// What the second one reports next.
    fn reported(&mut self) -> Event {
        let start = Instant::now();
        loop {
            assert!(start.elapsed() < WAIT, "nothing is reported");
            if let Some(event) = self.b.poll() {
                return event;
            }
        }
    }
}

/// The word that frames can come goes by the connection, and may arrive later than what follows from it.
#[test]
fn data_that_arrives_before_the_word_that_it_can_is_reported() {
    let mut two = Two::new(false);
    two.meet();
    two.write();
    let event = two.reported();
    assert!(matches!(event, Event::Written(from, 7, 0) if from == two.to_a), "{event:?}");
}

/// The honest one does not write so; the one that does is cut off.
#[test]
fn data_that_one_side_has_not_agreed_on_is_not_written_and_not_reported() {
    let mut two = Two::new(true);
    two.meet();
    let (local, remote) = ([Span::leak(8)], [Seg { addr: 0.into(), len: 8.into() }]);
    let version = link_api::RegionVersion { place: 0, number: 1 };
    let access = Direct::new(Grant::Region(version), &remote, &local, 8);
    assert!(two.a.start_once(two.to_b, Once::Write(7), &access).is_err());
    two.write();
    let event = two.reported();
    assert!(matches!(event, Event::Closed(from, Gone::Denied) if from == two.to_a), "{event:?}");
    assert_eq!(two.of_b.take()[2], 0);
}

/// The device has added, and the program has unmapped the memory of the result: that is said, the connection
/// goes on, and the word is not added to again.
#[test]
fn an_atomic_whose_result_cannot_be_written_fails_with_that_and_its_connection_goes_on() {
    const PAGE: usize = 4096;
    set("sv0:glob", &[("DELAY_US", "20000")]);
    let mut duo: Duo<Verbs> = Duo::new(open);
    let memory = filled(64, 0);
    hmem::write(&[memory], 0, &[0; 64]);
    known(&mut duo, memory, 9, BOTH);
    // SAFETY: fresh memory.
    let page = unsafe {
        let (rw, anon) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(std::ptr::null_mut(), PAGE, rw, anon, -1, 0)
    };
    assert!(page != libc::MAP_FAILED);
    // SAFETY: accessed by the guard alone, which bears that it is unmapped.
    let result = [unsafe { Span::new(page as usize, 8, Kind::System).for_peers().lasting() }];
    let (operand, remote) = (Span::leak(8), there(8, 8, 9));
    hmem::write(&[operand], 0, &5u64.to_le_bytes());
    let op = engine::Atomic {
        to: duo.a.peer,
        op: AtomicOp::Sum,
        datatype: Datatype::Uint64,
        operand: &[operand],
        compare: &[],
        result: &result,
        remote: std::slice::from_ref(&remote),
        data: None,
        ctx: engine::Ctx(1),
        flags: OpFlags::COMPLETION,
    };
    duo.a.domain.atomic(duo.a.ep, &op).expect("room for one");
    // SAFETY: of no use to anything but the request.
    assert_eq!(unsafe { libc::munmap(page, PAGE) }, 0);
    let (of_a, _) = duo.complete(1, 0);
    assert_eq!((of_a[0].err, duo.counts.take()[2]), (Some(Error::Fault), 1));
    duo.send(&[filled(8, 1)], &[Span::leak(8)]);
    assert_eq!(text(&[memory])[8..16], 5u64.to_le_bytes());
}

//! The selector of links, put to the checks: over each of its links, while the other one is there.
#![cfg(not(loom))]

#[path = "support/vacant.rs"]
mod vacant;

use std::net::Ipv4Addr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hmem::Span;
use link::{Links, OpenOptions};
use link_api::{Event, Frame, FrameLink, FrameSource, Link as _, PollFrame, RmaCaps, Sent};
use link_kit::keyed::{KeyedNet, Pace};
use link_kit::{Broken, Flaw, Harness, text};
use vacant::Vacant;
use wire::Addr;

/// Makes links of shared memory and a further one.
struct LinksHarness {
    net: KeyedNet,
    /// Peers are known by the names that the further link has.
    far: bool,
    vacant: Vacant,
}

impl LinksHarness {
    fn near() -> LinksHarness {
        LinksHarness { net: KeyedNet::new(Pace::default()), far: false, vacant: Vacant::default() }
    }

    fn far() -> LinksHarness {
        LinksHarness { far: true, ..LinksHarness::near() }
    }

    fn with(&mut self, bind: &str, name: Addr) -> Broken<Links> {
        let bind = Some(bind.parse().expect("an address"));
        let connect_timeout = Duration::from_millis(60);
        let options = OpenOptions { bind, connect_timeout, ..OpenOptions::default() };
        let mut links = Links::open(options).expect("a name that is free");
        links.add(Box::new(self.net.open(name).expect("a name that is free"))).expect("a descriptor");
        let links = Broken::new(links, Flaw::Nothing);
        if self.far { links.named(name) } else { links }
    }
}

impl Harness for LinksHarness {
    type Link = Broken<Links>;

    fn open(&mut self) -> Broken<Links> {
        let name = self.net.name();
        self.with("127.0.0.1:0", name)
    }

    fn reopen(&mut self, addr: &Addr) -> Broken<Links> {
        if self.far {
            return self.with("127.0.0.1:0", *addr);
        }
        let name = self.net.name();
        self.with(&addr.to_string(), name)
    }

    fn nowhere(&mut self) -> Addr {
        if self.far { self.net.name() } else { Addr::new(self.vacant.next(Ipv4Addr::LOCALHOST.into())) }
    }

    fn caps(&self) -> RmaCaps {
        if self.far { RmaCaps::HOST_HANDLES } else { RmaCaps::SYNC | RmaCaps::DEVICE_HANDLES }
    }

    fn memory(&mut self, _of: &Broken<Links>, len: usize, _handles: bool) -> Span {
        Span::leak(len)
    }

    fn pass(&mut self) {
        sleep(Duration::from_micros(20));
    }

    fn halt(&mut self, at: Option<usize>) -> bool {
        self.net.halt(at);
        self.far
    }

    fn attacks(&self) -> usize {
        2
    }

    fn attack(&mut self, how: usize, from: &mut Broken<Links>, to: &Broken<Links>) -> bool {
        let raw = [[9, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 255, 255, 255, 255]];
        assert!(self.net.inject(&from.addr(), &to.addr(), &raw[how]), "there is a channel");
        true
    }
}

/// To peers on this host.
mod near {
    use super::*;

    link_kit::conform! {
        LinksHarness::near();
        frames polls peers ends returns sleep threads sync regions pieces stale_pieces shared_pieces
    }
}

/// To others.
mod far {
    use super::*;

    link_kit::conform! {
        LinksHarness::far();
        frames polls peers ends returns hostile sleep threads frames_only handles flights sleep_in_flight
    }
}

/// A selector with two further links, `[0]` of names that [`KeyedNet`] has given, and its name by each of
/// them.
fn two_further(net: &mut KeyedNet) -> Links {
    let bind = Some("127.0.0.1:0".parse().expect("an address"));
    let mut links = Links::open(OpenOptions { bind, ..OpenOptions::default() }).expect("a free port");
    for _ in 0..2 {
        let name = net.name();
        links.add(Box::new(net.open(name).expect("a name that is free"))).expect("a descriptor");
    }
    links
}

#[test]
fn what_speaks_against_each_other_link_is_reported() {
    let mut net = KeyedNet::new(Pace::default());
    let mut links = two_further(&mut net);
    links.set_absent("tcp", "the test has none".into());
    let (near, far) = (Addr::new("127.0.0.1:7".parse().expect("an address")), net.name());
    let peers = [links.addr(), near, far].map(|addr| links.peer(&addr));
    let [own, near, far] = peers.map(|peer| links.describe(peer));
    let comes = "not keyed: shm comes before it; not keyed: shm comes before it; not tcp: the test has none";
    assert!(own.ends_with(&format!("; it is this endpoint; {comes}")), "{own}");
    assert!(
        near.starts_with("shm ") && near.ends_with(&format!("; its address is this host's; {comes}")),
        "{near}"
    );
    assert!(far.starts_with("keyed keyed, not connected"), "{far}");
    let rest = "; not shm: its address is not this host's; not keyed: keyed comes before it; not tcp: the test has none";
    assert!(far.ends_with(rest), "{far}");
}

#[test]
fn links_are_reported_with_those_that_are_not_to_be_had() {
    let mut net = KeyedNet::new(Pace::default());
    let mut links = two_further(&mut net);
    links.set_absent("tcp", "the test has none".into());
    let standing = |links: &Links| -> Vec<(&str, bool)> {
        links.standing().iter().map(|s| (s.link, s.offers.is_ok())).collect()
    };
    assert_eq!(standing(&links), [("shm", true), ("keyed", true), ("keyed", true), ("tcp", false)]);
    links.set_shm(false);
    assert_eq!(standing(&links), [("shm", false), ("keyed", true), ("keyed", true), ("tcp", false)]);
    let near = links.peer(&Addr::new("127.0.0.1:7".parse().expect("an address")));
    let line = links.describe(near);
    assert!(line.contains("; not shm: shared memory is not to be used; not keyed: keyed comes"), "{line}");
}

/// Two selectors, each with a further link that takes frames, and the second one's name by that link.
fn two_that_take() -> ([Links; 2], Addr) {
    let mut net = KeyedNet::new(Pace::default());
    let names = [net.name(), net.name()];
    let links = names.map(|name| {
        let bind = Some("127.0.0.1:0".parse().expect("an address"));
        let mut links = Links::open(OpenOptions { bind, ..OpenOptions::default() }).expect("a free port");
        let further = Broken::new(net.open(name).expect("a name that is free"), Flaw::Nothing);
        links.add(Box::new(further)).expect("a descriptor");
        links
    });
    (links, names[1])
}

/// Asks again until there is an answer.
fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "waited in vain");
        sleep(Duration::from_micros(20));
    }
}

/// The next frame.
fn frame(links: &mut Links) -> Frame {
    until(|| match links.poll() {
        Some(Event::Frame(frame)) => Some(frame),
        _ => None,
    })
}

/// Sends a frame.
fn say(from: &mut Links, to: link_api::PeerId, bytes: &[u8]) {
    let sent = |from: &mut Links| from.send(to, bytes, &[], 0, 0).ok();
    assert_eq!(
        until(|| {
            let sent = sent(from);
            from.poll();
            sent
        }),
        Sent::Done
    );
}

/// The bytes of the next frame, which is given back.
fn read(links: &mut Links) -> Vec<u8> {
    let frame = frame(links);
    let mut bytes = vec![0; frame.len];
    assert_eq!(links.read(&frame, 0, &mut bytes), frame.len);
    links.release(frame);
    bytes
}

#[test]
fn a_frame_is_taken_by_the_call_for_its_link_alone() {
    for is_far in [false, true] {
        let ([mut a, mut b], further) = two_that_take();
        let to_b = a.peer(&if is_far { further } else { b.addr() });
        for i in 0..24_u8 {
            let (sent, off) = ([i; 40], [0, 7, 32][usize::from(i) % 3]);
            say(&mut a, to_b, &sent);
            say(&mut a, to_b, &[!i; 9]);
            let (found, into) = (frame(&mut b), Span::leak(40));
            hmem::write(&[into], 0, &[99; 40]);
            assert!(!b.take(&found, off, into, !is_far), "frame {i}, far: {is_far}, by the other call");
            assert_eq!(text(&[into]), [99; 40], "frame {i}, far: {is_far}: nothing is written");
            assert!(b.take(&found, off, into, is_far), "frame {i}, far: {is_far}");
            let rest = 40 - off;
            assert_eq!((&text(&[into])[..rest], &text(&[into])[rest..]), (&sent[off..], &[99; 40][rest..]));
            assert_eq!(read(&mut b), [!i; 9], "behind frame {i}, far: {is_far}");
        }
    }
}

#[test]
fn a_call_for_frames_at_hand_is_the_poll_of_shared_memory_between_two_looks() {
    for is_asked in [false, true] {
        let ([mut a, mut b], further) = two_that_take();
        let to_b = a.peer(&further);
        say(&mut a, to_b, b"one");
        assert_eq!(read(&mut b), b"one");
        say(&mut a, to_b, b"two");
        say(&mut a, to_b, b"three");
        let found = frame(&mut b);
        let from = found.from;
        b.release(found);
        until(|| b.has_frames_of(from).then_some(()));
        if is_asked {
            assert!(matches!(b.poll_frame(FrameSource::AnyAtHand), PollFrame::Nothing));
        }
        let is_nothing = matches!(b.poll_frame(FrameSource::Any), PollFrame::Nothing);
        assert_eq!(is_nothing, !is_asked, "the poll is a look if frames at hand were asked for before");
        assert_eq!(read(&mut b), b"three");
    }
}

//! How links are made for the checks, and what these have in common.

use std::thread;
use std::time::{Duration, Instant};

use hmem::Span;
use link_api::{Event, Frame, FrameLink, Gone, Link, PeerId, Refused, RmaCaps, RmaLink, Sent};
use wire::Addr;

/// How links of one sort are made and ended.
///
/// Waiting is by [`Harness::pass`] again and again, up to [`Harness::patience`]: only a link that does not do
/// what it has to takes that long.
pub trait Harness {
    /// The links.
    type Link: RmaLink;

    /// A link under a name of its own, which can reach all others of the harness.
    fn open(&mut self) -> Self::Link;

    /// Ends an endpoint, as the end of its process would.
    fn end(&mut self, link: Self::Link) {
        drop(link);
    }

    /// Another endpoint under the name of one that was ended.
    fn reopen(&mut self, _addr: &Addr) -> Self::Link {
        unimplemented!("no group of checks that needs this was asked for")
    }

    /// A name under which nothing listens.
    fn nowhere(&mut self) -> Addr;

    /// How memory of peers is expected to be reached.
    fn caps(&self) -> RmaCaps;

    /// Zeroed memory of an endpoint that peers may reach: in a call, or (`handles`) by [`RmaLink::start`].
    fn memory(&mut self, _of: &Self::Link, len: usize, _handles: bool) -> Span {
        Span::leak(len)
    }

    /// Whether the links take frames by [`FrameLink::take`], mostly.
    fn takes_frames(&self) -> bool {
        false
    }

    /// Lets a little time pass.
    fn pass(&mut self) {
        thread::yield_now();
    }

    /// Lets as much time pass as an expected peer may take, at most.
    fn pass_long(&mut self) {
        self.pass();
    }

    /// How long a link may take for anything.
    fn patience(&self) -> Duration {
        Duration::from_secs(60)
    }

    /// How often two threads send to and fro where each sleeps meanwhile.
    fn rounds(&self) -> usize {
        3_000
    }

    /// Has every operation in flight stop at so many bytes, or go on; whether that can be done here.
    fn halt(&mut self, _at: Option<usize>) -> bool {
        false
    }

    /// How many ways there are to [`Harness::attack`].
    fn attacks(&self) -> usize {
        0
    }

    /// Does what no honest sender does, on the channel from one link to another; whether the receiver has to
    /// notice.
    fn attack(&mut self, _how: usize, _from: &mut Self::Link, _to: &Self::Link) -> bool {
        unimplemented!("no group of checks that needs this was asked for")
    }
}

/// A name of a request, as the engine's are: a place and a generation, which is not 0.
pub fn name(place: u32, generation: u32) -> u64 {
    assert_ne!(generation, 0, "no request has this generation");
    u64::from(generation) << 32 | u64::from(place)
}

/// Bytes that differ from those of any other `seed`, mostly.
pub fn bytes(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ i >> 8 ^ seed.wrapping_mul(97)) as u8).collect()
}

/// What some memory holds.
pub fn text(iov: &[Span]) -> Vec<u8> {
    let mut out = vec![0; hmem::total(iov)];
    assert_eq!(hmem::read(iov, 0, &mut out), out.len(), "memory of the check's own cannot be read");
    out
}

/// What the checks do with links of a harness.
pub(crate) trait Drive: Harness {
    /// Waits until `is_so`, and says what for.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&mut Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < self.patience(), "waited in vain: {what}");
            self.pass();
        }
    }

    /// The next event.
    fn event(&mut self, link: &mut Self::Link, what: &str) -> Event {
        let mut found = None;
        self.until(what, |_| {
            found = next(link);
            found.is_some()
        });
        found.expect("just found")
    }

    /// The next event, which has to be a frame: not given back yet.
    fn frame(&mut self, link: &mut Self::Link) -> Frame {
        match self.event(link, "a frame") {
            Event::Frame(frame) => frame,
            other => panic!("no frame, but {other:?}"),
        }
    }

    /// The bytes of the next frame, and from where they came.
    fn take(&mut self, link: &mut Self::Link) -> (PeerId, Vec<u8>) {
        let frame = self.frame(link);
        taken(link, frame)
    }

    /// The next event, which has to be the end of a peer.
    fn closed(&mut self, link: &mut Self::Link) -> (PeerId, Gone) {
        match self.event(link, "the end of a peer") {
            Event::Closed(peer, why) => (peer, why),
            other => panic!("no end of a peer, but {other:?}"),
        }
    }

    /// Nothing happens for a while.
    fn quiet(&mut self, link: &mut Self::Link) {
        let (start, mut n) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_millis(3) || n < 100 {
            n += 1;
            if let Some(event) = next(link) {
                panic!("nothing more was to come, but {event:?} did");
            }
            self.pass();
        }
    }

    /// Sends as soon as there is room.
    fn send(
        &mut self,
        link: &mut Self::Link,
        to: PeerId,
        head: &[u8],
        body: &[Span],
        off: usize,
        len: usize,
    ) -> Result<Sent, Refused> {
        let mut found = Err(Refused::Busy);
        self.until("room for a frame", |_| {
            found = link.send(to, head, body, off, len);
            found != Err(Refused::Busy)
        });
        found
    }

    /// Sends these bytes.
    fn say(&mut self, link: &mut Self::Link, to: PeerId, bytes: &[u8]) {
        assert_eq!(self.send(link, to, bytes, &[], 0, 0), Ok(Sent::Done), "sending {} bytes", bytes.len());
    }

    /// Two links that have exchanged a frame each way.
    fn pair(&mut self) -> Ends<Self::Link> {
        let (a, b) = (self.open(), self.open());
        self.join(a, b)
    }

    /// As [`Harness::pair`], of these.
    fn join(&mut self, mut a: Self::Link, mut b: Self::Link) -> Ends<Self::Link> {
        let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
        self.say(&mut a, to_b, b"hello");
        assert_eq!(self.take(&mut b), (to_a, b"hello".to_vec()));
        self.say(&mut b, to_a, b"hi");
        assert_eq!(self.take(&mut a), (to_b, b"hi".to_vec()));
        Ends { a, to_b, b, to_a }
    }
}

impl<H: Harness> Drive for H {}

/// The next event that is about more than the choice of a link: [`Event::PathChanged`] may come at any time
/// before something was sent.
pub(crate) fn next<L: FrameLink>(link: &mut L) -> Option<Event> {
    loop {
        match link.poll() {
            Some(Event::PathChanged(_)) => {}
            other => return other,
        }
    }
}

/// The bytes of a frame, which is given back.
pub(crate) fn taken<L: FrameLink>(link: &mut L, frame: Frame) -> (PeerId, Vec<u8>) {
    let (from, mut bytes) = (frame.from, vec![0; frame.len]);
    assert_eq!(link.read(&frame, 0, &mut bytes), frame.len, "a frame has as many bytes as it says");
    link.release(frame);
    (from, bytes)
}

/// Two links that know each other.
#[derive(Debug)]
pub struct Ends<L> {
    /// One.
    pub a: L,
    /// The other one, as this one knows it.
    pub to_b: PeerId,
    /// The other one.
    pub b: L,
    /// The first one, as the other one knows it.
    pub to_a: PeerId,
}

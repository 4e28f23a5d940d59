//! Links over a fabric.

use std::net::Ipv4Addr;
use std::thread;
use std::time::{Duration, Instant};

use below::{Below, BelowLink, BelowOptions, Message, NotSent};
use hmem::Span;
use link::{TcpLink, TcpOptions};
use link_api::{Direct, Event, FrameLink as _, Grant, HandleNote, Link as _, RmaCaps, RmaLink as _, Way};
use link_kit::{Harness, name};
use wire::session::JobKey;
use wire::{Addr, Seg};

#[path = "driven.rs"]
mod driven;
#[path = "vacant.rs"]
mod vacant;

pub use driven::Driven;
use driven::Driver;
use vacant::Vacant;

/// A link over a fabric, with TCP besides.
pub type Over<F> = BelowLink<TcpLink, F>;

/// Makes links over fabrics that `make` opens.
pub struct OfiHarness<F: Below> {
    make: Box<dyn FnMut() -> Result<F, String>>,
    driver: Driver<Over<F>>,
    /// The last link opened has a fabric.
    has_fabric: bool,
    vacant: Vacant,
    pub fallback: bool,
    pub patience: Duration,
    pub leave: Duration,
    /// After how much time an idle connection is closed.
    pub idle: Option<Duration>,
    /// From how many bytes on accesses go in parts, if not as by default.
    pub stripes: Option<usize>,
    /// How memory is accessed by the fabric.
    pub caps: RmaCaps,
    /// What has every read stop at so many bytes, or go on.
    pub halt: Option<Box<dyn Fn(Option<usize>)>>,
    /// What gives zeroed memory that is none of the host's own.
    pub memory: Option<Box<dyn FnMut(usize) -> Span>>,
}

impl<F: Below + 'static> OfiHarness<F> {
    pub fn new(make: impl FnMut() -> Result<F, String> + 'static) -> OfiHarness<F> {
        OfiHarness {
            make: Box::new(make),
            driver: Driver::new(|link: &mut Over<F>| link.progress()),
            has_fabric: false,
            vacant: Vacant::default(),
            fallback: true,
            patience: Duration::from_secs(15),
            leave: Duration::from_millis(500),
            idle: None,
            stripes: None,
            caps: RmaCaps::empty(),
            halt: None,
            memory: None,
        }
    }

    fn key() -> JobKey {
        JobKey::from_secret(b"of the checks")
    }

    pub fn bind(&mut self, to: &str) -> Driven<Over<F>> {
        let mut tcp = TcpOptions::new(Self::key());
        tcp.connect_timeout = Duration::from_millis(60);
        let base = TcpLink::bind(to.parse().expect("an address"), tcp).expect("a free name");
        let mut options = BelowOptions::new(Self::key());
        options.fallback = self.fallback;
        options.patience = self.patience;
        options.leave = self.leave;
        options.idle = self.idle;
        options.stripes = self.stripes.unwrap_or(options.stripes);
        options.grace = Duration::from_secs(1);
        let fabric = (self.make)();
        self.has_fabric = fabric.is_ok();
        let mut link = BelowLink::new(base, fabric, options).expect("descriptors");
        // `revoke` and `close` let go of the lock by which the link is kept going.
        link_api::Link::set(&mut link, link_api::Setting::Patience(link_api::Patience::Retried));
        self.driver.take_on(link)
    }
}

/// What is lent to be read is not written, and the other way round, whatever the peer makes of its handle.
#[allow(dead_code)]
pub fn memory_is_accessed_in_the_way_that_it_is_lent_for<F: Below + 'static>(h: &mut OfiHarness<F>) {
    const LEN: usize = 4_000;
    const WAIT: Duration = Duration::from_secs(120);
    let (mut a, mut b) = (h.open(), h.open());
    let (to_b, to_a) = (a.peer(&b.addr()), b.peer(&a.addr()));
    let start = Instant::now();
    while a.send(to_b, b"hello", &[], 0, 0).is_err() || !a.path(to_b).rma.contains(RmaCaps::HOST_PUTS) {
        assert!(start.elapsed() < WAIT, "no way to the peer");
        a.poll();
    }
    let (there, here) = (Span::leak(LEN), Span::leak(LEN));
    for (lent, way) in [(Way::Get, Way::Put), (Way::Put, Way::Get)] {
        // As it is lent, and otherwise: with the handle as it is, and with one that says otherwise.
        for (way, is_forged) in [(lent, false), (way, false), (way, true)] {
            hmem::write(&[there], 0, &[7; LEN]);
            hmem::write(&[here], 0, &[9; LEN]);
            let found = loop {
                assert!(start.elapsed() < WAIT, "nothing can be lent any more");
                h.pass();
                b.note_handle(to_a, HandleNote::Retired(&[]));
                let Some(handles) = b.export_handles(to_a, &[there], lent) else { continue };
                let Some(&(mut handle)) = handles.first() else { continue };
                handle.how ^= u8::from(is_forged);
                a.note_handle(to_b, HandleNote::Imported(&handle));
                let remote = [Seg { addr: there.addr().into(), len: (LEN as u64).into() }];
                let access =
                    Direct::new(Grant::Request(name(1, 1)), &remote, std::slice::from_ref(&here), LEN);
                let Ok(op) = a.start(way, to_b, &access) else {
                    // One that is not forged is refused here.
                    if way != lent && !is_forged {
                        break false;
                    }
                    continue;
                };
                let found = loop {
                    assert!(start.elapsed() < WAIT, "an access is never over");
                    match a.poll() {
                        Some(Event::Done(which, ok)) if which == op => break ok,
                        Some(Event::Cut(which)) if which == op => break false,
                        _ => h.pass(),
                    }
                };
                if way != lent || found {
                    break found;
                }
            };
            assert_eq!(found, way == lent, "lent for {lent:?}, and {way:?}, forged: {is_forged}");
            let (theirs, ours) = match (found, way) {
                (false, _) => (7, 9),
                (true, Way::Get) => (7, 7),
                (true, Way::Put) => (9, 9),
            };
            assert!(link_kit::text(&[there]) == [theirs; LEN] && link_kit::text(&[here]) == [ours; LEN]);
        }
    }
}

impl<F: Below + 'static> Harness for OfiHarness<F> {
    type Link = Driven<Over<F>>;

    fn open(&mut self) -> Driven<Over<F>> {
        self.bind("127.0.0.1:0")
    }

    fn reopen(&mut self, addr: &Addr) -> Driven<Over<F>> {
        self.bind(&addr.to_string())
    }

    /// Where idle connections are closed, each round makes one.
    fn rounds(&self) -> usize {
        if self.idle.is_some() { 500 } else { 3_000 }
    }

    fn nowhere(&mut self) -> Addr {
        Addr::new(self.vacant.next(Ipv4Addr::LOCALHOST.into()))
    }

    fn caps(&self) -> RmaCaps {
        self.caps
    }

    fn memory(&mut self, _of: &Driven<Over<F>>, len: usize, _handles: bool) -> Span {
        self.memory.as_mut().map_or_else(|| Span::leak(len), |make| make(len))
    }

    fn takes_frames(&self) -> bool {
        self.has_fabric
    }

    fn pass(&mut self) {
        thread::sleep(Duration::from_micros(20));
    }

    fn pass_long(&mut self) {
        thread::sleep(Duration::from_millis(1));
    }

    fn halt(&mut self, at: Option<usize>) -> bool {
        self.halt.as_ref().map(|halt| halt(at)).is_some()
    }

    fn attacks(&self) -> usize {
        6
    }

    fn attack(&mut self, how: usize, from: &mut Driven<Over<F>>, to: &Driven<Over<F>>) -> bool {
        let (name, own) = (to.addr(), from.addr());
        // What was sent before is not to be overtaken.
        while !to.with(|l| {
            let peer = l.peer(&own);
            l.has_frames_of(peer)
        }) {
            thread::yield_now();
        }
        from.with(|l| {
            let peer = l.peer(&name);
            let (dest, mut mark) = l.next_mark(peer).expect("there is a channel");
            match how {
                // One that came; one that cannot come yet; one that is next, but was not sealed; an old slot;
                // no mark; one that may overtake others, but was not sealed.
                0 => mark.number = mark.number.wrapping_sub(2),
                1 => mark.number = mark.number.wrapping_add(1 << 20),
                2 => {}
                3 => mark.generation ^= 1,
                5 => mark.number = mark.number.wrapping_add(3),
                _ => {}
            }
            let rest: &[u8] = &[4, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 0, 0, 0, 0, 0, 0, 0];
            let bytes = [&mark.encode()[..], rest].concat();
            let front = if how == 4 { &bytes[..7] } else { &bytes[..] };
            let message =
                Message { who: u64::MAX, is_frame: false, front, middle: &[], body: &[], off: 0, len: 0 };
            while l.below().expect("a fabric").send(dest, &message) == Err(NotSent::Busy) {}
        });
        how < 3 || how == 5
    }
}

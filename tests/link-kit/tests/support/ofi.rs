//! Links over a fabric.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use link::{TcpLink, TcpOptions};
use link_api::{Link as _, RmaCaps};
use link_kit::Harness;
use ofi::{Below, Message, NotSent, OfiLink, OfiOptions};
use wire::Addr;
use wire::session::JobKey;

#[path = "driven.rs"]
mod driven;
#[path = "vacant.rs"]
mod vacant;

pub use driven::Driven;
use driven::Driver;
use vacant::Vacant;

/// A link over a fabric, with TCP besides.
pub type Over<F> = OfiLink<TcpLink, F>;

/// Makes links over fabrics that `make` opens.
pub struct OfiHarness<F: Below> {
    make: Box<dyn FnMut() -> Result<F, String>>,
    driver: Driver<Over<F>>,
    vacant: Vacant,
    pub fallback: bool,
    pub patience: Duration,
    pub leave: Duration,
    /// Whether memory is read by the fabric.
    pub reads: bool,
    /// What has every read stop at so many bytes, or go on.
    pub halt: Option<Box<dyn Fn(Option<usize>)>>,
}

impl<F: Below + 'static> OfiHarness<F> {
    pub fn new(make: impl FnMut() -> Result<F, String> + 'static) -> OfiHarness<F> {
        OfiHarness {
            make: Box::new(make),
            driver: Driver::new(|link: &mut Over<F>| link.progress()),
            vacant: Vacant::default(),
            fallback: true,
            patience: Duration::from_secs(15),
            leave: Duration::from_millis(500),
            reads: false,
            halt: None,
        }
    }

    fn key() -> JobKey {
        JobKey::from_secret(b"of the checks")
    }

    pub fn bind(&mut self, to: &str) -> Driven<Over<F>> {
        let mut tcp = TcpOptions::new(Self::key());
        tcp.connect_timeout = Duration::from_millis(60);
        let base = TcpLink::bind(to.parse().expect("an address"), tcp).expect("a free name");
        let mut options = OfiOptions::new(Self::key());
        options.fallback = self.fallback;
        options.patience = self.patience;
        options.leave = self.leave;
        options.grace = Duration::from_secs(1);
        let mut link = OfiLink::new(base, (self.make)(), options).expect("descriptors");
        // `revoke` and `close` let go of the lock by which the link is kept going.
        link_api::Link::set(&mut link, link_api::Setting::Patience(link_api::Patience::Look));
        self.driver.take_on(link)
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

    fn nowhere(&mut self) -> Addr {
        Addr::new(self.vacant.next(Ipv4Addr::LOCALHOST.into()))
    }

    fn caps(&self) -> RmaCaps {
        if self.reads { RmaCaps::HOST_GETS } else { RmaCaps::empty() }
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

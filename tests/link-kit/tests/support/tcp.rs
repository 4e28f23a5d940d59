//! Links over TCP.

use std::fs::File;
use std::io::Write as _;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use link::{TcpLink, TcpOptions};
use link_api::{Link as _, RmaCaps};
use link_kit::Harness;
use wire::Addr;
use wire::session::JobKey;

#[path = "driven.rs"]
mod driven;
#[path = "vacant.rs"]
mod vacant;

use driven::{Driven, Driver};
use vacant::Vacant;

/// Makes [`TcpLink`]s on a loopback address.
pub struct TcpHarness {
    bind: &'static str,
    rails: &'static [[u8; 4]],
    driver: Driver<TcpLink>,
    vacant: Vacant,
}

impl TcpHarness {
    pub fn new(bind: &'static str) -> TcpHarness {
        let driver = Driver::new(|link: &mut TcpLink| link.progress());
        TcpHarness { bind, rails: &[], driver, vacant: Vacant::default() }
    }

    /// With rails at these addresses, on which frames of any length go.
    #[allow(dead_code)]
    pub fn with_rails(bind: &'static str, rails: &'static [[u8; 4]]) -> TcpHarness {
        TcpHarness { rails, ..TcpHarness::new(bind) }
    }

    pub fn options() -> TcpOptions {
        let mut options = TcpOptions::new(JobKey::from_secret(b"of the checks"));
        options.connect_timeout = Duration::from_millis(60);
        options
    }

    fn bind(&self, to: &str) -> Driven<TcpLink> {
        let mut options = Self::options();
        if !self.rails.is_empty() {
            options.rails = self.rails.len() + 1;
            options.rails_at = self.rails.iter().map(|ip| (*ip).into()).collect();
            options.striped = 1;
        }
        let link = TcpLink::bind(to.parse().expect("an address"), options).expect("a free name");
        self.driver.take_on(link)
    }
}

impl Harness for TcpHarness {
    type Link = Driven<TcpLink>;

    fn open(&mut self) -> Driven<TcpLink> {
        self.bind(self.bind)
    }

    fn reopen(&mut self, addr: &Addr) -> Driven<TcpLink> {
        self.bind(&addr.to_string())
    }

    fn nowhere(&mut self) -> Addr {
        let at: SocketAddr = self.bind.parse().expect("an address");
        Addr::new(self.vacant.next(at.ip()))
    }

    fn caps(&self) -> RmaCaps {
        RmaCaps::empty()
    }

    fn pass(&mut self) {
        thread::sleep(Duration::from_micros(20));
    }

    fn pass_long(&mut self) {
        thread::sleep(Duration::from_millis(1));
    }

    fn attacks(&self) -> usize {
        5
    }

    fn attack(&mut self, how: usize, from: &mut Driven<TcpLink>, to: &Driven<TcpLink>) -> bool {
        let (raw, fatal): (&[u8], bool) = match how {
            // Another kind; zeros that are none; a frame that is too long; one with another tag.
            0 => (&[4, 0, 0, 0, 9, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, b'a', b'b', b'c', b'd'], true),
            1 => (&[4, 0, 0, 0, 1, 0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, b'a', b'b', b'c', b'd'], true),
            2 => (&[1, 0, 16, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8], true),
            3 => (&[4, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, b'a', b'b', b'c', b'd'], true),
            // The rest of a header never comes.
            _ => (&[1, 0, 0, 0, 1], false),
        };
        let name = to.addr();
        from.with(|l| {
            let peer = l.peer(&name);
            let socket =
                l.socket(peer).expect("there is a channel").try_clone_to_owned().expect("a descriptor");
            File::from(socket).write_all(raw).expect("room");
        });
        fatal
    }
}

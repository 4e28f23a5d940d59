//! Links over shared memory.

use std::net::Ipv4Addr;
use std::time::Duration;

use link::{OpenOptions, ShmLink};
use link_api::RmaCaps;
use link_kit::Harness;
use wire::Addr;

#[path = "vacant.rs"]
mod vacant;

use vacant::Vacant;

/// Makes [`ShmLink`]s on the loopback address.
#[derive(Default)]
pub struct ShmHarness(Vacant);

impl ShmHarness {
    pub fn new() -> ShmHarness {
        ShmHarness::default()
    }

    fn bind(&self, to: &str) -> ShmLink {
        let bind = Some(to.parse().expect("an address"));
        let connect_timeout = Duration::from_millis(60);
        ShmLink::open(OpenOptions { bind, connect_timeout, ..OpenOptions::default() }).expect("a free name")
    }
}

impl Harness for ShmHarness {
    type Link = ShmLink;

    fn open(&mut self) -> ShmLink {
        self.bind("127.0.0.1:0")
    }

    fn reopen(&mut self, addr: &Addr) -> ShmLink {
        self.bind(&addr.to_string())
    }

    fn nowhere(&mut self) -> Addr {
        // Which reserves its port, too.
        Addr::new(self.0.next(Ipv4Addr::LOCALHOST.into()))
    }

    fn caps(&self) -> RmaCaps {
        RmaCaps::SYNC | RmaCaps::DEVICE_HANDLES
    }

    fn takes_frames(&self) -> bool {
        true
    }

    fn pass_long(&mut self) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

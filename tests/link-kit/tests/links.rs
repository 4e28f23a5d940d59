//! The selector of links, put to the checks: over each of its links, while the other one is there.
#![cfg(not(loom))]

use std::time::Duration;

use hmem::Span;
use link::{Links, OpenOptions};
use link_api::{Link as _, RmaCaps};
use link_kit::keyed::{KeyedNet, Pace};
use link_kit::{Broken, Flaw, Harness};
use wire::Addr;

/// Makes links of shared memory and a further one.
struct LinksHarness {
    net: KeyedNet,
    /// Peers are known by the names that the further link has.
    far: bool,
}

impl LinksHarness {
    fn near() -> LinksHarness {
        LinksHarness { net: KeyedNet::new(Pace::default()), far: false }
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
        if self.far { self.net.name() } else { self.open().addr() }
    }

    fn caps(&self) -> RmaCaps {
        if self.far { RmaCaps::HOST_HANDLES } else { RmaCaps::SYNC | RmaCaps::DEVICE_HANDLES }
    }

    fn memory(&mut self, _of: &Broken<Links>, len: usize, _handles: bool) -> Span {
        Span::leak(len)
    }

    fn pass(&mut self) {
        std::thread::sleep(Duration::from_micros(20));
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

//! [`KeyedLink`]s for the checks.

use std::thread;
use std::time::Duration;

use link_api::{Link as _, RmaCaps};
use wire::Addr;

use super::{KeyedLink, KeyedNet, Pace};
use crate::Harness;

/// Makes [`KeyedLink`]s of one net.
#[derive(Debug)]
pub struct KeyedHarness {
    net: KeyedNet,
}

impl KeyedHarness {
    /// A net of the default pace.
    #[allow(clippy::new_without_default)]
    pub fn new() -> KeyedHarness {
        KeyedHarness { net: KeyedNet::new(Pace::default()) }
    }

    /// The net.
    pub fn net(&mut self) -> &mut KeyedNet {
        &mut self.net
    }
}

impl Harness for KeyedHarness {
    type Link = KeyedLink;

    fn open(&mut self) -> KeyedLink {
        let name = self.net.name();
        self.reopen(&name)
    }

    fn reopen(&mut self, addr: &Addr) -> KeyedLink {
        self.net.open(*addr).expect("a name that is free")
    }

    fn nowhere(&mut self) -> Addr {
        self.net.name()
    }

    fn caps(&self) -> RmaCaps {
        RmaCaps::HOST_HANDLES
    }

    fn pass(&mut self) {
        thread::sleep(Duration::from_micros(20));
    }

    fn halt(&mut self, at: Option<usize>) -> bool {
        self.net.halt(at);
        true
    }

    fn attacks(&self) -> usize {
        5
    }

    fn attack(&mut self, how: usize, from: &mut KeyedLink, to: &KeyedLink) -> bool {
        let (raw, fatal): (&[u8], bool) = match how {
            // Another kind; zeros that are none; a frame that is too long; one as long as a number goes.
            0 => (&[9, 0, 0, 0, 0, 0, 0, 0], true),
            1 => (&[1, 0, 0, 1, 4, 0, 0, 0, b'a', b'b', b'c', b'd'], true),
            2 => (&[1, 0, 0, 0, 1, 40, 0, 0], true),
            3 => (&[1, 0, 0, 0, 255, 255, 255, 255], true),
            // The rest of a frame never comes.
            _ => (&[1, 0, 0, 0, 4, 0, 0, 0, b'a'], false),
        };
        assert!(self.net.inject(&from.addr(), &to.addr(), raw), "there is a channel");
        fatal
    }
}

//! The net that links meet at.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread;

use wire::Addr;

use super::carrier::{Pace, Shared};
use super::link::KeyedLink;

/// What [`KeyedLink`]s meet at.
#[derive(Debug)]
pub struct KeyedNet {
    shared: Arc<Shared>,
    ports: u16,
}

impl KeyedNet {
    /// A net of this pace, and its carrier, which ends with the net and all links.
    pub fn new(pace: Pace) -> KeyedNet {
        let shared = Arc::new(Shared::new(pace));
        let carrier = Arc::clone(&shared);
        thread::spawn(move || carrier.carry());
        KeyedNet { shared, ports: 0 }
    }

    /// A name that no endpoint of the net has had.
    pub fn name(&mut self) -> Addr {
        self.ports += 1;
        Addr::new((Ipv4Addr::new(192, 0, 2, 1), self.ports).into())
    }

    /// A link of this name; `None` if another one has it.
    pub fn open(&mut self, addr: Addr) -> Option<KeyedLink> {
        let (id, bell) = self.shared.join(addr)?;
        Some(KeyedLink::new(&self.shared, id, addr, bell))
    }

    /// How many accesses were started.
    pub fn started(&self) -> u64 {
        self.shared.lock().started
    }

    /// Has every access stop at so many bytes, or go on.
    pub fn halt(&mut self, at: Option<usize>) {
        self.shared.lock().halt = at.unwrap_or(usize::MAX);
    }

    /// Puts any bytes on the way from one endpoint to another, as a hostile sender may; whether there is a
    /// channel.
    pub fn inject(&mut self, from: &Addr, to: &Addr, bytes: &[u8]) -> bool {
        let mut wire = self.shared.lock();
        let (Some(&from), Some(&to)) = (wire.names.get(from), wire.names.get(to)) else { return false };
        let Some(way) = wire.ways.get_mut(&(from, to)) else { return false };
        way.transit.extend(bytes);
        self.shared.hurry();
        true
    }
}

impl Drop for KeyedNet {
    fn drop(&mut self) {
        self.shared.part();
    }
}

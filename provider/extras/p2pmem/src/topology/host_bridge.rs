//! Which host bridges pass peer-to-peer requests on, as far as Linux knows.

use super::config::Port;
use super::tree::{Device, Host};

const INTEL: u16 = 0x8086;
const GOOGLE: u16 = 0x1ae0;

/// Between any two root ports of the host, or only between two of one host bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Any,
    OneHostBridge,
}

/// The devices by which Linux (7.2) knows a host bridge that passes peer-to-peer requests on.
fn listed(vendor: u16, device: u16) -> Option<Reach> {
    match (vendor, device) {
        // Sandy Bridge E, Haswell E.
        (INTEL, 0x3c00 | 0x3c01 | 0x2f00 | 0x2f01) => Some(Reach::OneHostBridge),
        // Skylake SP and later.
        (INTEL, 0x2020 | 0x2030..=0x2033 | 0x09a2) => Some(Reach::Any),
        (GOOGLE, _) => Some(Reach::Any),
        _ => None,
    }
}

/// What a host bridge answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    PassesOn,
    /// There is no function by which it could be known.
    Nameless,
    /// This one is in no list.
    NotListed {
        vendor: u16,
        device: u16,
    },
    /// It does only for two devices below it.
    OneHostBridge {
        vendor: u16,
        device: u16,
    },
}

/// Asks the host bridge. `same`: both devices are below it.
pub fn ask(host: &Host, devices: &[Device], same: bool) -> Verdict {
    // The first function of the root bus identifies the bridge if it is at 00.0, or a root port.
    let known = host
        .first
        .map(|n| &devices[n])
        .filter(|d| (d.address.device, d.address.function) == (0, 0) || d.port == Port::Root);
    let Some(first) = known else { return Verdict::Nameless };
    let (vendor, device) = (first.vendor, first.device);
    match listed(vendor, device) {
        None => Verdict::NotListed { vendor, device },
        Some(Reach::OneHostBridge) if !same => Verdict::OneHostBridge { vendor, device },
        Some(_) => Verdict::PassesOn,
    }
}

//! PCI configuration space, as far as it matters here (PCI Express Base Specification, 7.5 and 7.7.11).

const STATUS: usize = 0x06;
const HAS_CAPABILITIES: u16 = 1 << 4;
const FIRST_CAPABILITY: usize = 0x34;
const EXPRESS: u8 = 0x10;
const FIRST_EXTENDED: usize = 0x100;
const ACS: u16 = 0x000d;

/// Bits of the ACS control register that keep a request or a completion from turning round at this function:
/// P2P request redirect, P2P completion redirect, P2P egress control.
pub const REDIRECTS: u16 = 1 << 2 | 1 << 3 | 1 << 5;

/// What a function is in a PCIe hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    Endpoint,
    Root,
    Upstream,
    Downstream,
    /// A bridge to or from conventional PCI, an integrated endpoint, or not PCIe at all.
    Other,
    /// Its capabilities cannot be read.
    Unknown,
}

/// Access control services of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acs {
    Absent,
    /// Its control register.
    Control(u16),
    /// Only root may read where it would be.
    Unreadable,
}

impl Acs {
    /// Whether peer-to-peer requests that arrive here are sent up instead of to the peer. If that cannot be
    /// read it is assumed.
    pub fn redirects(self) -> bool {
        match self {
            Acs::Absent => false,
            Acs::Control(bits) => bits & REDIRECTS != 0,
            Acs::Unreadable => true,
        }
    }
}

/// What could be read of a function's configuration space, from its beginning.
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    pub bytes: &'a [u8],
    /// How much there is of it: 256, or 4096 with PCIe.
    pub size: usize,
}

impl Config<'_> {
    fn word(&self, at: usize) -> Option<u16> {
        Some(u16::from_le_bytes(self.bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
    }

    fn long(&self, at: usize) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
    }

    pub fn port(&self) -> Port {
        match self.word(STATUS) {
            None => return Port::Unknown,
            Some(status) if status & HAS_CAPABILITIES == 0 => return Port::Other,
            Some(_) => {}
        }
        let mut at = usize::from(self.bytes.get(FIRST_CAPABILITY).copied().unwrap_or(0) & !3);
        // There is room for 48 of them: a list that is longer runs in a circle.
        for _ in 0..48 {
            if at < 0x40 {
                return Port::Other;
            }
            let Some(head) = self.word(at) else { return Port::Unknown };
            if head as u8 == EXPRESS {
                return match self.word(at + 2).map(|flags| flags >> 4 & 0xf) {
                    None => Port::Unknown,
                    Some(0 | 1) => Port::Endpoint,
                    Some(4) => Port::Root,
                    Some(5) => Port::Upstream,
                    Some(6) => Port::Downstream,
                    Some(_) => Port::Other,
                };
            }
            at = usize::from(head >> 8) & !3;
        }
        Port::Other
    }

    pub fn acs(&self) -> Acs {
        if self.size <= FIRST_EXTENDED {
            return Acs::Absent;
        }
        let mut at = FIRST_EXTENDED;
        for _ in 0..(4096 - FIRST_EXTENDED) / 8 {
            let Some(head) = self.long(at) else { return Acs::Unreadable };
            // All ones: the device does not answer.
            if head == 0 || head == u32::MAX {
                return Acs::Absent;
            }
            if head as u16 == ACS {
                return self.word(at + 6).map_or(Acs::Unreadable, Acs::Control);
            }
            at = (head >> 20) as usize & !3;
            if at < FIRST_EXTENDED {
                return Acs::Absent;
            }
        }
        Acs::Absent
    }
}

/// The bytes of a function that is such a port and has, if any, this ACS control register. For recordings
/// made by hand.
pub fn made(vendor: u16, device: u16, class: u32, port: Port, acs: Option<u16>) -> Vec<u8> {
    let mut bytes = vec![0u8; 4096];
    bytes[..2].copy_from_slice(&vendor.to_le_bytes());
    bytes[2..4].copy_from_slice(&device.to_le_bytes());
    bytes[9..12].copy_from_slice(&class.to_le_bytes()[..3]);
    bytes[0x0e] = u8::from(class >> 8 == 0x0604);
    let code = match port {
        Port::Endpoint => 0u16,
        Port::Root => 4,
        Port::Upstream => 5,
        Port::Downstream => 6,
        Port::Other | Port::Unknown => return bytes,
    };
    bytes[STATUS] = HAS_CAPABILITIES as u8;
    bytes[FIRST_CAPABILITY] = 0x40;
    // Something else comes first, as it does in real devices.
    bytes[0x40..0x42].copy_from_slice(&[0x01, 0x60]);
    bytes[0x60] = EXPRESS;
    bytes[0x62..0x64].copy_from_slice(&(2 | code << 4).to_le_bytes());
    if let Some(control) = acs {
        // Advanced error reporting, then ACS.
        bytes[0x100..0x104].copy_from_slice(&(1u32 | 1 << 16 | 0x150 << 20).to_le_bytes());
        bytes[0x150..0x154].copy_from_slice(&(u32::from(ACS) | 1 << 16).to_le_bytes());
        bytes[0x154..0x156].copy_from_slice(&0x007fu16.to_le_bytes());
        bytes[0x156..0x158].copy_from_slice(&control.to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_and_acs_are_found_and_what_cannot_be_read_is_said() {
        for port in [Port::Endpoint, Port::Root, Port::Upstream, Port::Downstream] {
            let bytes = made(0x8086, 0x2030, 0x06_0400, port, Some(0x1d));
            let all = Config { bytes: &bytes, size: 4096 };
            assert_eq!((all.port(), all.acs()), (port, Acs::Control(0x1d)));
            let bare = made(0x8086, 0x2030, 0x06_0400, port, None);
            assert_eq!(Config { bytes: &bare, size: 4096 }.acs(), Acs::Absent);
            // What a process without privileges gets to read.
            let start = Config { bytes: &bytes[..64], size: 4096 };
            assert_eq!((start.port(), start.acs()), (Port::Unknown, Acs::Unreadable));
            let conventional = Config { bytes: &bytes[..64], size: 256 };
            assert_eq!(conventional.acs(), Acs::Absent);
        }
        for (bits, redirects) in [(0, false), (1 << 2, true), (1 << 3, true), (1 << 5, true), (0x53, false)] {
            assert_eq!(Acs::Control(bits).redirects(), redirects, "{bits:#x}");
        }
    }

    #[test]
    fn lists_that_run_in_a_circle_end() {
        let mut bytes = made(1, 2, 0x02_0000, Port::Endpoint, Some(4));
        bytes[0x41] = 0x40;
        bytes[0x100..0x104].copy_from_slice(&(1u32 | 1 << 16 | 0x100 << 20).to_le_bytes());
        let config = Config { bytes: &bytes, size: 4096 };
        assert_eq!((config.port(), config.acs()), (Port::Other, Acs::Absent));
    }

    #[test]
    fn any_bytes_can_be_read() {
        bolero::check!().for_each(|bytes: &[u8]| {
            for size in [0, 256, 4096] {
                let config = Config { bytes, size };
                let _ = (config.port(), config.acs());
            }
        });
    }
}

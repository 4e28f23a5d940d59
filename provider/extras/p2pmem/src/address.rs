//! Names of PCI functions.

use std::fmt;
use std::str::FromStr;

/// A PCI function: domain, bus, device and function. Displayed as sysfs names it, `0000:3a:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// It is not of the form `0000:3a:00.0`, or `3a:00.0` in domain 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAnAddress;

fn hex(text: &str, digits: std::ops::RangeInclusive<usize>, most: u32) -> Result<u32, NotAnAddress> {
    let plain = digits.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    let value = u32::from_str_radix(text, 16).ok().filter(|v| plain && *v <= most);
    value.ok_or(NotAnAddress)
}

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Address, NotAnAddress> {
        let (slot, function) = text.rsplit_once('.').ok_or(NotAnAddress)?;
        let (bus, device) = slot.rsplit_once(':').ok_or(NotAnAddress)?;
        let (domain, bus) = bus.rsplit_once(':').unwrap_or(("0000", bus));
        Ok(Address {
            domain: hex(domain, 4..=8, u32::MAX)?,
            bus: hex(bus, 2..=2, 0xff)? as u8,
            device: hex(device, 2..=2, 0x1f)? as u8,
            function: hex(function, 1..=1, 7)? as u8,
        })
    }
}

/// The name of a root bus in sysfs, `pci0000:00`: domain and bus.
pub(crate) fn root_bus(name: &str) -> Option<(u32, u8)> {
    let (domain, bus) = name.strip_prefix("pci")?.split_once(':')?;
    Some((hex(domain, 4..=8, u32::MAX).ok()?, hex(bus, 2..=2, 0xff).ok()? as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_sysfs_writes_them() {
        for text in ["0000:3a:00.0", "10000:e1:1f.7"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("3a:00.1".parse::<Address>().unwrap().to_string(), "0000:3a:00.1");
        for text in
            ["", "3a", "0000:3a:20.0", "0000:3a:00.8", "0000:3a:0.0", "000:3a:00.0", "0000:+a:00.0", "é:00.0"]
        {
            assert_eq!(text.parse::<Address>(), Err(NotAnAddress), "{text}");
        }
        assert_eq!(root_bus("pci0000:5d"), Some((0, 0x5d)));
        assert_eq!(root_bus("pci0000"), None);
    }
}

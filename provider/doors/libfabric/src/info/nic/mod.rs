//! The network device that an answer names (fi_nic(3)), for clients that take no answer without one.
//!
//! Messages between processes of one host pass through no device, so an answer names one only if the hints
//! carry a `nic` or FI_STRAIT_NIC asks for it. The device is in the machine: all its attributes are read from
//! sysfs.

mod fid;
#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Once, OnceLock};

use libfabric_sys as fi;

pub(super) use fid::make;

/// Which device an answer names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Choice {
    /// One if the hints carry a `nic`.
    #[default]
    Hinted,
    /// None, whatever the hints carry.
    Never,
    /// A network card, else an accelerator.
    Auto,
    /// That one.
    Named(String),
}

impl Choice {
    fn parse(text: &str) -> Choice {
        let text = text.trim();
        match text.to_ascii_lowercase().as_str() {
            "" => Choice::Hinted,
            "no" | "0" | "false" | "off" => Choice::Never,
            "auto" | "yes" | "1" | "true" | "on" => Choice::Auto,
            _ => Choice::Named(text.to_owned()),
        }
    }
}

static CHOICE: OnceLock<Choice> = OnceLock::new();

/// Declares FI_STRAIT_NIC and reads it.
///
/// # Safety
/// As of [`crate::param::read`].
pub(crate) unsafe fn read_param(core: &fi::Core, provider: *mut fi::fi_provider) {
    // SAFETY: the caller's promise; the name is defined here alone.
    let text = unsafe { crate::param::declared(core, provider, &settings::NIC) };
    let _ = CHOICE.set(text.map_or(Choice::Hinted, |text| Choice::parse(&text)));
}

/// The device that an answer to these hints names. `hinted`: the hints carry a `nic`, and with it perhaps
/// a device's name.
pub(super) fn wanted(hinted: Option<&Option<String>>) -> Option<Device> {
    static LOGGED: Once = Once::new();
    let choice = CHOICE.get().cloned().unwrap_or_default();
    let sys = Path::new("/sys");
    let (found, asked) = match (&choice, hinted) {
        (Choice::Never, _) | (Choice::Hinted, None) => return None,
        (Choice::Named(name), _) => (Device::named(sys, name), name.as_str()),
        (Choice::Hinted, Some(Some(name))) => (Device::named(sys, name), name.as_str()),
        (Choice::Auto, _) | (Choice::Hinted, Some(None)) => (Device::any(sys), "auto"),
    };
    match &found {
        Some(device) => LOGGED.call_once(|| {
            log::info!("fi_getinfo: {} is named as the network device; no byte passes through it", device.name);
            if device.pci.is_none() {
                log::info!("fi_getinfo: {} is no PCI device; some programs need one", device.name);
            }
        }),
        None if choice == Choice::Hinted => {
            LOGGED.call_once(|| log::info!("fi_getinfo: no network device is named: there is no {asked} here"));
        }
        None => LOGGED.call_once(|| {
            log::warn!(
                "FI_STRAIT_NIC={asked}: no such device, so fi_getinfo names none. Give a PCI address of \
                 /sys/bus/pci/devices, or a name below /sys/class/infiniband, /sys/class/net or /sys/class/cxi"
            );
        }),
    }
    found
}

/// A place on the PCI bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Pci {
    pub(super) domain: u16,
    pub(super) bus: u8,
    pub(super) device: u8,
    pub(super) function: u8,
}

impl Pci {
    /// `0000:3b:00.0`, or without the domain.
    fn parse(text: &str) -> Option<Pci> {
        let hex = |s: &str, digits: usize| {
            let fits = s.len() == digits && s.bytes().all(|b| b.is_ascii_hexdigit());
            if fits { u16::from_str_radix(s, 16).ok() } else { None }
        };
        let (place, function) = text.split_once('.')?;
        let mut parts = place.rsplit(':');
        let (device, bus) = (hex(parts.next()?, 2)?, hex(parts.next()?, 2)?);
        let domain = parts.next().map_or(Some(0), |d| hex(d, 4))?;
        let function = hex(function, 1)?;
        if parts.next().is_some() || device > 31 || function > 7 {
            return None;
        }
        Some(Pci { domain, bus: bus as u8, device: device as u8, function: function as u8 })
    }

    /// The device that a path in /sys/devices leads to, or the nearest one above it.
    fn above(path: &Path) -> Option<(Pci, PathBuf)> {
        let named = |p: &Path| Pci::parse(p.file_name()?.to_str()?);
        path.ancestors().find_map(|p| Some((named(p)?, p.to_owned())))
    }
}

/// A network's link, by sysfs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) address: Option<String>,
    pub(super) mtu: usize,
    /// Bits a second; 0 if unknown.
    pub(super) speed: usize,
    pub(super) state: fi::fi_link_state,
    pub(super) network: Option<&'static str>,
}

/// A device of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Device {
    /// As it was chosen.
    pub(super) name: String,
    pub(super) id: Option<String>,
    pub(super) version: Option<String>,
    pub(super) vendor: Option<String>,
    pub(super) driver: Option<String>,
    pub(super) pci: Option<Pci>,
    pub(super) link: Link,
}

/// Where names are looked up, in this order.
const CLASSES: [&str; 3] = ["infiniband", "net", "cxi"];

impl Device {
    /// That of a PCI address, or of a name.
    fn named(sys: &Path, name: &str) -> Option<Device> {
        if let Some(pci) = Pci::parse(name) {
            let Pci { domain, bus, device, function } = pci;
            let of = format!("bus/pci/devices/{domain:04x}:{bus:02x}:{device:02x}.{function:x}");
            return Device::of(name, &fs::canonicalize(sys.join(of)).ok()?, None);
        }
        // As the programs resolve it: through the directory of the class, also where the name leads out of
        // it.
        CLASSES.iter().filter(|_| !name.is_empty() && !name.starts_with('/')).find_map(|class| {
            let entry = fs::canonicalize(sys.join("class").join(class).join(name)).ok()?;
            let port = entry.join("ports/1");
            let port = port.is_dir().then_some(port);
            let interface = entry.join("operstate").is_file();
            let device = fs::canonicalize(entry.join("device")).ok();
            if device.is_none() && !interface {
                return None;
            }
            let mut found = Device::of(name, device.as_deref().unwrap_or(&entry), port.as_deref())?;
            if interface {
                found.link = Link::interface(&entry);
            }
            Some(found)
        })
    }

    /// A network card, the first that is up; else an accelerator. The same for every process of the machine.
    fn any(sys: &Path) -> Option<Device> {
        for class in CLASSES {
            let mut cards: Vec<Device> = list(&sys.join("class").join(class))
                .iter()
                .filter_map(|p| Device::named(sys, p.file_name()?.to_str()?))
                .filter(|d| d.pci.is_some())
                .collect();
            cards.sort_by_key(|d| (d.link.state != fi::FI_LINK_UP, d.pci));
            if !cards.is_empty() {
                return Some(cards.swap_remove(0));
            }
        }
        // 3D controllers, processing accelerators, displays.
        ["0x0302", "0x1200", "0x0300"].iter().find_map(|class| {
            list(&sys.join("bus/pci/devices")).iter().find_map(|p| {
                let its = line(p, "class")?;
                let used = p.join("driver").exists();
                if !used || !its.starts_with(class) {
                    None
                } else {
                    Device::named(sys, p.file_name()?.to_str()?)
                }
            })
        })
    }

    /// What is at `path` in /sys/devices, with a port of its that is known.
    fn of(name: &str, path: &Path, port: Option<&Path>) -> Option<Device> {
        let (pci, at) = Pci::above(path).map_or((None, path.to_owned()), |(pci, at)| (Some(pci), at));
        let interface = [&at, path].iter().find_map(|p| list(&p.join("net")).into_iter().next());
        let driver = fs::read_link(at.join("driver")).ok();
        let mut link = interface.map_or_else(Link::default, |i| Link::interface(&i));
        if let Some(port) = port {
            link = Link { address: link.address, mtu: link.mtu, ..Link::port(port) };
        }
        if link.speed == 0 {
            link.speed = pci_speed(&at);
        }
        Some(Device {
            name: name.to_owned(),
            id: line(&at, "device"),
            version: line(&at, "revision"),
            vendor: line(&at, "vendor"),
            driver: driver.and_then(|d| Some(d.file_name()?.to_str()?.to_owned())),
            pci,
            link,
        })
    }
}

impl Link {
    /// Of an interface of /sys/class/net.
    fn interface(at: &Path) -> Link {
        let number = |name| line(at, name).and_then(|t| t.parse::<usize>().ok()).unwrap_or(0);
        Link {
            address: line(at, "address"),
            mtu: number("mtu"),
            // In Mb/s; -1 or an error where the driver does not know.
            speed: number("speed") * 1_000_000,
            state: match line(at, "operstate").as_deref() {
                Some("up") => fi::FI_LINK_UP,
                Some("down" | "lowerlayerdown" | "notpresent") => fi::FI_LINK_DOWN,
                _ => fi::FI_LINK_UNKNOWN,
            },
            // ARPHRD_ETHER, ARPHRD_INFINIBAND
            network: match number("type") {
                1 => Some("Ethernet"),
                32 => Some("InfiniBand"),
                _ => None,
            },
        }
    }

    /// Of a port of /sys/class/infiniband.
    fn port(at: &Path) -> Link {
        // "100 Gb/sec (4X EDR)", "4: ACTIVE"
        let rate = line(at, "rate").and_then(|t| t.split(' ').next()?.parse::<f64>().ok());
        Link {
            address: None,
            mtu: 0,
            speed: rate.map_or(0, |gb| (gb * 1e9) as usize),
            state: match line(at, "state").as_deref().and_then(|t| t.split(':').next()) {
                Some("4") => fi::FI_LINK_UP,
                Some("1") => fi::FI_LINK_DOWN,
                _ => fi::FI_LINK_UNKNOWN,
            },
            network: match line(at, "link_layer").as_deref() {
                Some("Ethernet") => Some("Ethernet"),
                Some("InfiniBand") => Some("InfiniBand"),
                _ => None,
            },
        }
    }
}

/// Bits a second of a device's PCI link, less what its coding takes; 0 if it does not say.
fn pci_speed(at: &Path) -> usize {
    // "32.0 GT/s PCIe" and "16"; "Unknown" and 0 where there is no link.
    let rate = line(at, "current_link_speed").and_then(|t| t.split(' ').next()?.parse::<f64>().ok());
    let lanes = line(at, "current_link_width").and_then(|t| t.parse::<f64>().ok());
    let (Some(rate), Some(lanes)) = (rate, lanes) else { return 0 };
    let coding = if rate < 8.0 { 0.8 } else { 128.0 / 130.0 };
    (rate * lanes * coding * 1e9) as usize
}

/// A file's only line.
fn line(at: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(at.join(name)).ok()?;
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

/// What is in a directory, in the order of names.
fn list(at: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> =
        fs::read_dir(at).into_iter().flatten().filter_map(|e| Some(e.ok()?.path())).collect();
    all.sort();
    all
}

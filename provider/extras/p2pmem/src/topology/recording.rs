//! A PCI tree as text: recorded from a host, or written by hand.
//!
//! `#` begins a comment. A line `cpu VENDOR FAMILY` names the processor. Each further line is a function: its
//! place below /sys/devices, and `key=value` words:
//!
//! | key | value |
//! |---|---|
//! | `id` | vendor and device in hexadecimal, `8086:2030` |
//! | `class` | in hexadecimal, `060400` |
//! | `size` | bytes of configuration space: 256 or 4096 |
//! | `config@OFF` | bytes of it from hexadecimal OFF on; gaps are 0, and all of it without `config@` |
//! | `port` | instead of `config@`: `root`, `up`, `down` or `endpoint` |
//! | `acs` | with `port`: the ACS control register in hexadecimal |
//! | `p2pmem` | size, available and published: `67108864,67108864,1` |
//! | `name` | what a driver made of it; may occur again |
//! | `numa`, `physfn` | its NUMA node; the physical function of a virtual one |

use std::fmt::Write as _;
use std::io;
use std::path::Path;

use super::config::{Port, made};
use super::cpu::Cpu;
use crate::address::Address;
use crate::error::Error;

/// What a function publishes, as sysfs says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct P2pmem {
    pub size: u64,
    pub available: u64,
    pub published: bool,
}

/// What is read of a function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Raw {
    /// Below /sys/devices: `pci0000:00/0000:00:01.0`.
    pub path: String,
    pub vendor: u16,
    pub device: u16,
    pub class: u32,
    pub config: Vec<u8>,
    pub config_size: usize,
    pub p2pmem: Option<P2pmem>,
    pub names: Vec<String>,
    pub numa: Option<u32>,
    pub physfn: Option<Address>,
}

impl Raw {
    pub fn address(&self) -> Option<Address> {
        self.path.rsplit('/').next()?.parse().ok()
    }
}

/// Reads a recording.
pub fn parse(text: &str) -> Result<(Cpu, Vec<Raw>), Error> {
    let mut cpu = Cpu { vendor: String::new(), family: 0 };
    let mut all = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("");
        let mut words = line.split_whitespace();
        let wrong = |what: &str| Error::Topology(format!("recording, line {}: {what}", number + 1));
        match words.next() {
            None => {}
            Some("cpu") => {
                let vendor = words.next().ok_or_else(|| wrong("cpu wants a vendor and a family"))?;
                let family = words.next().and_then(|f| f.parse().ok());
                let family =
                    family.ok_or_else(|| wrong("cpu wants a vendor and a family, a decimal number"))?;
                cpu = Cpu { vendor: vendor.to_owned(), family };
            }
            Some(path) => all.push(function(path, words).map_err(|what| wrong(&what))?),
        }
    }
    Ok((cpu, all))
}

fn function<'a>(path: &str, words: impl Iterator<Item = &'a str>) -> Result<Raw, String> {
    let mut raw = Raw { path: path.into(), config_size: 4096, ..Raw::default() };
    let (mut port, mut acs) = (None, None);
    if raw.address().is_none() || path.split('/').any(|part| part == "..") {
        return Err(format!("{path} does not end in a PCI address such as 0000:01:00.0"));
    }
    for word in words {
        let (key, value) =
            word.split_once('=').ok_or_else(|| format!("{word}: not of the form key=value"))?;
        let bad = || format!("{key}: {value:?} is no value for it");
        let hex = |text: &str| u32::from_str_radix(text, 16).map_err(|_| bad());
        let decimal = |text: &str| text.parse::<u64>().map_err(|_| bad());
        match key {
            "id" => {
                let (vendor, device) = value.split_once(':').ok_or_else(bad)?;
                (raw.vendor, raw.device) = (hex(vendor)? as u16, hex(device)? as u16);
            }
            "class" => raw.class = hex(value)?,
            "size" => raw.config_size = decimal(value)?.min(4096) as usize,
            "port" => {
                port = Some(match value {
                    "root" => Port::Root,
                    "up" => Port::Upstream,
                    "down" => Port::Downstream,
                    "endpoint" => Port::Endpoint,
                    _ => return Err(bad()),
                });
            }
            "acs" => acs = Some(hex(value)? as u16),
            "p2pmem" => {
                let numbers = value.split(',').map(decimal).collect::<Result<Vec<_>, _>>()?;
                let [size, available, published] = numbers[..] else { return Err(bad()) };
                raw.p2pmem = Some(P2pmem { size, available, published: published != 0 });
            }
            "name" => raw.names.push(value.into()),
            "numa" => raw.numa = Some(hex(value)?),
            "physfn" => raw.physfn = Some(value.parse().map_err(|_| bad())?),
            _ => {
                let at = key.strip_prefix("config@").ok_or_else(|| format!("{key}: there is no such key"))?;
                let at = hex(at)? as usize;
                if value.len() % 2 != 0 || !value.is_ascii() || at + value.len() / 2 > 4096 {
                    return Err(bad());
                }
                raw.config.resize(raw.config.len().max(at + value.len() / 2), 0);
                for (n, to) in raw.config[at..at + value.len() / 2].iter_mut().enumerate() {
                    *to = hex(&value[2 * n..2 * n + 2])? as u8;
                }
            }
        }
    }
    if raw.config.is_empty() {
        let port = port.unwrap_or(Port::Other);
        raw.config = made(raw.vendor, raw.device, raw.class, port, acs);
        raw.config.truncate(raw.config_size);
    }
    Ok(raw)
}

/// Records.
pub fn write(cpu: &Cpu, all: &[Raw]) -> String {
    let mut out = String::new();
    let vendor = if cpu.vendor.is_empty() { "unknown" } else { &cpu.vendor };
    let _ = writeln!(out, "cpu {vendor} {}", cpu.family);
    for raw in all {
        let Raw { path, vendor, device, class, config, config_size, .. } = raw;
        let _ = write!(out, "{path} id={vendor:04x}:{device:04x} class={class:06x} size={config_size}");
        for (n, part) in config.chunks(64).enumerate() {
            // The last is there even if it is all zero: it says how much could be read.
            if part.iter().any(|b| *b != 0) || (n + 1) * 64 >= config.len() {
                let _ = write!(out, " config@{:x}=", n * 64);
                for byte in part {
                    let _ = write!(out, "{byte:02x}");
                }
            }
        }
        if let Some(P2pmem { size, available, published }) = raw.p2pmem {
            let _ = write!(out, " p2pmem={size},{available},{}", u8::from(published));
        }
        for name in &raw.names {
            let _ = write!(out, " name={name}");
        }
        if let Some(numa) = raw.numa {
            let _ = write!(out, " numa={numa:x}");
        }
        if let Some(physfn) = raw.physfn {
            let _ = write!(out, " physfn={physfn}");
        }
        out.push('\n');
    }
    out
}

/// Lays a recording out as a directory like /sys. What is published is a file of that size, which can be
/// mapped.
pub fn lay_out(cpu: &Cpu, all: &[Raw], sysfs: &Path) -> io::Result<()> {
    let links = sysfs.join("bus/pci/devices");
    std::fs::create_dir_all(&links)?;
    let cpuinfo = format!("processor\t: 0\nvendor_id\t: {}\ncpu family\t: {}\n", cpu.vendor, cpu.family);
    std::fs::write(sysfs.join("cpuinfo"), cpuinfo)?;
    for raw in all {
        let dir = sysfs.join("devices").join(&raw.path);
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("vendor"), format!("{:#06x}\n", raw.vendor))?;
        std::fs::write(dir.join("device"), format!("{:#06x}\n", raw.device))?;
        std::fs::write(dir.join("class"), format!("{:#08x}\n", raw.class))?;
        std::fs::write(dir.join("numa_node"), raw.numa.map_or("-1\n".into(), |n| format!("{n}\n")))?;
        let mut config = raw.config.clone();
        config.resize(config.len().max(raw.config_size), 0);
        std::fs::write(dir.join("config"), config)?;
        for name in &raw.names {
            std::fs::create_dir_all(dir.join("net").join(name))?;
        }
        if let Some(P2pmem { size, available, published }) = raw.p2pmem {
            let dir = dir.join("p2pmem");
            std::fs::create_dir_all(&dir)?;
            std::fs::write(dir.join("size"), format!("{size}\n"))?;
            std::fs::write(dir.join("available"), format!("{available}\n"))?;
            std::fs::write(dir.join("published"), format!("{}\n", u8::from(published)))?;
            std::fs::File::create(dir.join("allocate"))?.set_len(size)?;
        }
        let name = raw.path.rsplit('/').next().unwrap_or("");
        std::os::unix::fs::symlink(Path::new("../../../devices").join(&raw.path), links.join(name))?;
        if let Some(physfn) = raw.physfn {
            std::os::unix::fs::symlink(format!("../{physfn}"), dir.join("physfn"))?;
        }
    }
    Ok(())
}

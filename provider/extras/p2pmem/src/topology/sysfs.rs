//! The PCI tree as sysfs shows it (Documentation/ABI/testing/sysfs-bus-pci).

use std::fs;
use std::path::Path;

use super::cpu::Cpu;
use super::recording::{P2pmem, Raw};
use crate::address::Address;
use crate::error::Error;

/// The directories in which drivers put what they make of a function.
const CLASSES: [&str; 5] = ["nvme", "net", "infiniband", "drm", "block"];

fn os(path: &Path) -> impl Fn(std::io::Error) -> Error + '_ {
    |e| Error::Os(path.display().to_string(), e)
}

pub fn read(sysfs: &Path) -> Result<(Cpu, Vec<Raw>), Error> {
    let links = sysfs.join("bus/pci/devices");
    let devices = sysfs.join("devices");
    let devices = devices.canonicalize().map_err(os(&devices))?;
    let mut all = Vec::new();
    let list = match fs::read_dir(&links) {
        Ok(list) => Some(list),
        // A host without PCI.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(os(&links)(e)),
    };
    for entry in list.into_iter().flatten() {
        let link = entry.map_err(os(&links))?.path();
        // It may be unplugged while this is read.
        let Ok(dir) = link.canonicalize() else { continue };
        let inside = dir.strip_prefix(&devices).ok().and_then(Path::to_str);
        let inside = inside
            .ok_or_else(|| Error::Topology(format!("{} is not in {}", dir.display(), devices.display())))?;
        // Platform host bridges are below other directories: pci0000:00 is where it begins.
        let start =
            inside.find("pci").filter(|at| *at == 0 || inside.as_bytes()[at - 1] == b'/').unwrap_or(0);
        let mut raw = function(&dir);
        raw.path = inside[start..].to_owned();
        all.push(raw);
    }
    let own = sysfs.join("cpuinfo");
    let cpuinfo =
        fs::read_to_string(&own).or_else(|_| fs::read_to_string("/proc/cpuinfo")).unwrap_or_default();
    Ok((Cpu::parse(&cpuinfo), all))
}

fn number(file: &Path) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// What the function in that directory publishes now.
pub fn p2pmem(dir: &Path) -> Option<P2pmem> {
    let dir = dir.join("p2pmem");
    let size = number(&dir.join("size"))?;
    let available = number(&dir.join("available"))?;
    Some(P2pmem { size, available, published: number(&dir.join("published"))? != 0 })
}

fn function(dir: &Path) -> Raw {
    let config = fs::read(dir.join("config")).unwrap_or_default();
    let size = fs::metadata(dir.join("config")).map_or(0, |m| m.len() as usize);
    let mut names = Vec::new();
    for class in CLASSES {
        names_in(&dir.join(class), if class == "nvme" { 2 } else { 1 }, &mut names);
    }
    names.sort();
    let physfn = fs::read_link(dir.join("physfn")).ok();
    let physfn: Option<Address> = physfn.and_then(|to| to.file_name()?.to_str()?.parse().ok());
    Raw {
        path: String::new(),
        vendor: number(&dir.join("vendor")).unwrap_or(0) as u16,
        device: number(&dir.join("device")).unwrap_or(0) as u16,
        class: number(&dir.join("class")).unwrap_or(0) as u32,
        config_size: size.max(config.len()),
        config,
        p2pmem: p2pmem(dir),
        names,
        numa: number(&dir.join("numa_node")).map(|n| n as u32),
        physfn,
    }
}

/// The names of the directories below, and below these those that continue them: nvme0, nvme0n1.
fn names_in(dir: &Path, depth: usize, names: &mut Vec<String>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        if !entry.path().is_dir() || name.contains(char::is_whitespace) {
            continue;
        }
        let upper = dir.file_name().is_some_and(|of| name.starts_with(&*of.to_string_lossy()));
        if depth == 2 || upper || CLASSES.iter().any(|c| dir.ends_with(c)) {
            names.push(name);
            if depth > 1 {
                names_in(&entry.path(), depth - 1, names);
            }
        }
    }
}

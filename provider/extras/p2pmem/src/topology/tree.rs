//! The tree: functions, bridges above them, root buses.

use std::collections::HashMap;
use std::path::Path;

use super::config::{self, Acs, Port};
use super::cpu::Cpu;
use super::recording::{self, P2pmem, Raw};
use super::sysfs;
use crate::address::{Address, root_bus};
use crate::error::Error;

/// A PCI function.
#[derive(Clone, Debug)]
pub struct Device {
    pub address: Address,
    /// The bridge above it, as an index of [`Topology::devices`]; `None` on a root bus.
    pub upstream: Option<usize>,
    /// Its host bridge, as an index of [`Topology::hosts`].
    pub host: usize,
    pub vendor: u16,
    pub device: u16,
    /// Class, subclass and programming interface.
    pub class: u32,
    pub port: Port,
    pub acs: Acs,
    /// What it publishes.
    pub p2pmem: Option<P2pmem>,
    /// Names of what its drivers made of it: `nvme0`, `eth0`, `mlx5_0`.
    pub names: Vec<String>,
    pub numa: Option<u32>,
}

impl Device {
    pub fn is_bridge(&self) -> bool {
        self.class >> 8 == 0x0604
    }

    /// A word for people.
    pub fn sort(&self) -> &'static str {
        match (self.class >> 16, self.class >> 8) {
            (_, 0x0600) => "host bridge",
            (_, 0x0604) => match self.port {
                Port::Root => "root port",
                Port::Upstream => "switch, upstream",
                Port::Downstream => "switch, downstream",
                _ => "bridge",
            },
            (_, 0x0108) => "NVMe",
            (_, 0x0207) => "InfiniBand",
            (0x01, _) => "storage",
            (0x02, _) => "network",
            (0x03, _) => "display",
            (0x12, _) => "accelerator",
            (0x05, _) => "memory",
            (0x06, _) => "bridge",
            _ => "device",
        }
    }
}

/// A host bridge: the root bus under it.
#[derive(Clone, Copy, Debug)]
pub struct Host {
    pub domain: u32,
    pub bus: u8,
    /// The first function on the root bus.
    pub first: Option<usize>,
}

/// The PCI tree.
#[derive(Clone, Debug)]
pub struct Topology {
    devices: Vec<Device>,
    hosts: Vec<Host>,
    cpu: Cpu,
    by_address: HashMap<Address, usize>,
}

impl Topology {
    /// That of this host, or of a directory that is laid out as /sys is. A file `cpuinfo` in there stands for
    /// /proc/cpuinfo.
    pub fn read(sysfs: &Path) -> Result<Topology, Error> {
        let (cpu, raw) = sysfs::read(sysfs)?;
        Topology::new(cpu, &raw)
    }

    /// What [`Topology::read`] reads, as a recording.
    pub fn record(sysfs: &Path) -> Result<String, Error> {
        let (cpu, mut raw) = sysfs::read(sysfs)?;
        raw.sort_by_key(Raw::address);
        Ok(recording::write(&cpu, &raw))
    }

    /// That of a recording.
    pub fn parse(text: &str) -> Result<Topology, Error> {
        let (cpu, raw) = recording::parse(text)?;
        Topology::new(cpu, &raw)
    }

    /// From what is known of each function.
    pub fn new(cpu: Cpu, raw: &[Raw]) -> Result<Topology, Error> {
        let mut order: Vec<&Raw> = raw.iter().collect();
        order.sort_by_key(|r| r.address());
        let mut by_address = HashMap::new();
        for (n, raw) in order.iter().enumerate() {
            let address =
                raw.address().ok_or_else(|| Error::Topology(format!("{}: no PCI function", raw.path)))?;
            if by_address.insert(address, n).is_some() {
                return Err(Error::Topology(format!("{address} is there twice")));
            }
        }
        let mut hosts: Vec<Host> = Vec::new();
        let mut devices = Vec::with_capacity(order.len());
        for (n, raw) in order.iter().enumerate() {
            let (upstream, root) = above(&raw.path, raw.physfn, &order, &by_address)?;
            let host = hosts.iter().position(|h| (h.domain, h.bus) == root).unwrap_or_else(|| {
                hosts.push(Host { domain: root.0, bus: root.1, first: None });
                hosts.len() - 1
            });
            let on_root_bus = upstream.is_none() && raw.physfn.is_none();
            // They come in order, so the first one is that with the least number.
            if on_root_bus && hosts[host].first.is_none() {
                hosts[host].first = Some(n);
            }
            let config = config::Config { bytes: &raw.config, size: raw.config_size };
            let port = match config.port() {
                Port::Unknown if upstream.is_none() && raw.class >> 8 == 0x0604 => Port::Root,
                other => other,
            };
            devices.push(Device {
                address: by_address_of(raw),
                upstream,
                host,
                vendor: raw.vendor,
                device: raw.device,
                class: raw.class,
                port,
                acs: config.acs(),
                p2pmem: raw.p2pmem,
                names: raw.names.clone(),
                numa: raw.numa,
            });
        }
        let topology = Topology { devices, hosts, cpu, by_address };
        topology.check()?;
        Ok(topology)
    }

    /// Going up ends.
    fn check(&self) -> Result<(), Error> {
        for device in &self.devices {
            let (mut at, mut steps) = (device.upstream, 0);
            while let Some(up) = at {
                steps += 1;
                if steps > self.devices.len() {
                    return Err(Error::Topology(format!("{} is above itself", device.address)));
                }
                at = self.devices[up].upstream;
            }
        }
        Ok(())
    }

    /// All functions, in the order of their addresses.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    pub fn cpu(&self) -> &Cpu {
        &self.cpu
    }

    /// The index of a function.
    pub fn find(&self, address: Address) -> Option<usize> {
        self.by_address.get(&address).copied()
    }

    /// The index of a function by its address, or by a name that a driver gave to what it made of it.
    pub fn resolve(&self, name: &str) -> Result<usize, Error> {
        let by_address = name.parse().ok().and_then(|address| self.find(address));
        let by_name = || self.devices.iter().position(|d| d.names.iter().any(|n| n == name));
        by_address.or_else(by_name).ok_or_else(|| Error::NoDevice(name.into()))
    }

    /// The functions from this one up to the root bus, itself included.
    pub fn upward(&self, device: usize) -> impl Iterator<Item = usize> + '_ {
        std::iter::successors(Some(device), |at| self.devices[*at].upstream)
    }
}

fn by_address_of(raw: &Raw) -> Address {
    raw.address().expect("it was looked up before")
}

/// The bridge above a function, and its root bus. A virtual function is where its physical one is.
fn above(
    path: &str,
    physfn: Option<Address>,
    all: &[&Raw],
    by_address: &HashMap<Address, usize>,
) -> Result<(Option<usize>, (u32, u8)), Error> {
    let of = physfn.and_then(|address| by_address.get(&address)).map_or(path, |n| all[*n].path.as_str());
    let mut parts = of.rsplit('/').skip(1);
    let parent = parts.next().unwrap_or("");
    if let Some(root) = root_bus(parent) {
        return Ok((None, root));
    }
    let bridge = parent.parse().ok().and_then(|address: Address| by_address.get(&address).copied());
    let root = parts.find_map(root_bus);
    match (bridge, root) {
        (Some(bridge), Some(root)) => Ok((Some(bridge), root)),
        _ => Err(Error::Topology(format!(
            "{path}: what is above it is no bridge and no root bus that is known"
        ))),
    }
}

//! How a client's requests reach a publisher's memory, and how far that is: what Linux decides in pci_p2pdma.
//!
//! From each of the two functions a chain of bridges leads up. Where the chains meet below a host bridge,
//! requests turn round there and carry bus addresses, unless a function on the way redirects them upwards
//! (ACS). Otherwise they go through the host bridge, or two of them, which has to be known to pass them on.
//! The distance is the number of steps on both sides; where the chains do not meet each counts one step
//! beyond its last bridge.

use std::fmt;

use super::config::Acs;
use super::host_bridge::{Verdict, ask};
use super::tree::Topology;
use crate::address::Address;

/// How the memory's address reaches the client's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Map {
    /// As an address of the bus: requests turn round in a switch, below the host bridge.
    BusAddress,
    /// Through the host bridge, as for host memory; an IOMMU translates.
    HostBridge,
    /// It is host memory.
    HostMemory,
    NotSupported,
}

impl Map {
    pub fn name(self) -> &'static str {
        match self {
            Map::BusAddress => "bus-address",
            Map::HostBridge => "host-bridge",
            Map::HostMemory => "host-memory",
            Map::NotSupported => "not-supported",
        }
    }
}

/// Why a route is what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// One function is both.
    Itself,
    /// Requests turn round at this bridge.
    Bridge(Address),
    /// The processor passes them on between any two root ports.
    Processor,
    /// The host bridge is in the kernel's list.
    Listed,
    /// The first function of that root bus is neither 00.0 nor a root port, so the host bridge is not known.
    Nameless { domain: u32, bus: u8 },
    /// The host bridge is in no list.
    NotListed { domain: u32, bus: u8, vendor: u16, device: u16 },
    /// The host bridge passes on between devices below it alone.
    OneHostBridge { vendor: u16, device: u16 },
    /// It is host memory.
    HostMemory,
    /// The memory's PCI function is not known.
    NoFunction,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Itself => write!(f, "the device's own memory"),
            Reason::Bridge(at) => write!(f, "turns round at {at}"),
            Reason::Processor => write!(f, "this processor (AMD, Zen or later) passes it on"),
            Reason::Listed => write!(f, "the kernel lists the host bridge"),
            Reason::Nameless { domain, bus } => {
                write!(f, "root bus {domain:04x}:{bus:02x} has no function by which its host bridge is known")
            }
            Reason::NotListed { domain, bus, vendor, device } => write!(
                f,
                "the kernel does not list the host bridge of root bus {domain:04x}:{bus:02x} ({vendor:04x}:{device:04x})"
            ),
            Reason::OneHostBridge { vendor, device } => {
                write!(f, "the host bridge {vendor:04x}:{device:04x} passes on only between devices below it")
            }
            Reason::HostMemory => write!(f, "host memory"),
            Reason::NoFunction => write!(f, "it is not known which PCI function has the memory"),
        }
    }
}

/// How one client reaches one publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Steps. Counted also where the map is not supported.
    pub distance: u32,
    pub map: Map,
    pub reason: Reason,
    /// Functions on the way that redirect requests upwards, in the order of the way.
    pub redirects: Vec<Address>,
    /// Those of them of which that is assumed, since only root may read their ACS.
    pub assumed: Vec<Address>,
    /// The functions on the way, from the publisher to the client.
    pub path: Vec<Address>,
}

impl Route {
    pub fn is_supported(&self) -> bool {
        self.map != Map::NotSupported
    }

    /// That of host memory.
    pub fn host_memory() -> Route {
        Route::plain(Map::HostMemory, Reason::HostMemory)
    }

    /// That of memory whose PCI function is not known.
    pub fn no_function() -> Route {
        Route::plain(Map::NotSupported, Reason::NoFunction)
    }

    fn plain(map: Map, reason: Reason) -> Route {
        Route { distance: 0, map, reason, redirects: Vec::new(), assumed: Vec::new(), path: Vec::new() }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)?;
        let list = |of: &[Address]| of.iter().map(Address::to_string).collect::<Vec<_>>().join(";");
        if !self.redirects.is_empty() {
            let list = list(&self.redirects);
            write!(f, "; ACS redirects at {list} (kernel parameter pci=disable_acs_redir={list})")?;
        }
        if !self.assumed.is_empty() {
            write!(f, "; assumed of {}, whose ACS only root may read", list(&self.assumed))?;
        }
        Ok(())
    }
}

impl Topology {
    /// How `client` reaches memory of `publisher`, both by index.
    pub fn route(&self, publisher: usize, client: usize) -> Route {
        let ours: Vec<usize> = self.upward(publisher).collect();
        let theirs: Vec<usize> = self.upward(client).collect();
        let meet = ours.iter().enumerate().find_map(|(i, a)| Some((i, theirs.iter().position(|b| a == b)?)));
        let address = |n: &usize| self.devices()[*n].address;
        let Some((i, j)) = meet else {
            let path = ours.iter().chain(theirs.iter().rev()).map(address).collect();
            let distance = (ours.len() + theirs.len()) as u32;
            return self.through_host(publisher, client, Route { distance, path, ..Route::no_function() });
        };
        let way: Vec<usize> = ours[..=i].iter().chain(theirs[..j].iter().rev()).copied().collect();
        let redirects: Vec<usize> =
            way.iter().copied().filter(|n| self.devices()[*n].acs.redirects()).collect();
        let assumed =
            redirects.iter().filter(|n| self.devices()[**n].acs == Acs::Unreadable).map(address).collect();
        let route = Route {
            distance: (i + j) as u32,
            map: Map::BusAddress,
            reason: if publisher == client { Reason::Itself } else { Reason::Bridge(address(&ours[i])) },
            redirects: redirects.iter().map(address).collect(),
            assumed,
            path: way.iter().map(address).collect(),
        };
        match redirects.is_empty() {
            true => route,
            false => self.through_host(publisher, client, route),
        }
    }

    fn through_host(&self, publisher: usize, client: usize, route: Route) -> Route {
        if self.cpu().passes_on() {
            return Route { map: Map::HostBridge, reason: Reason::Processor, ..route };
        }
        let (a, b) = (self.devices()[publisher].host, self.devices()[client].host);
        let mut hosts = vec![a];
        if a != b {
            hosts.push(b);
        }
        for n in hosts {
            let host = self.hosts()[n];
            let (domain, bus) = (host.domain, host.bus);
            let reason = match ask(&host, self.devices(), a == b) {
                Verdict::PassesOn => continue,
                Verdict::Nameless => Reason::Nameless { domain, bus },
                Verdict::NotListed { vendor, device } => Reason::NotListed { domain, bus, vendor, device },
                Verdict::OneHostBridge { vendor, device } => Reason::OneHostBridge { vendor, device },
            };
            return Route { map: Map::NotSupported, reason, ..route };
        }
        Route { map: Map::HostBridge, reason: Reason::Listed, ..route }
    }

    /// The distance from `publisher` to all of `clients`: the sum. `Err` has the first client that does not
    /// reach it, by its place in `clients`, and the route. There is none to no clients at all.
    pub fn distance(&self, publisher: usize, clients: &[usize]) -> Result<Option<u32>, (usize, Route)> {
        let mut sum = None;
        for (n, client) in clients.iter().enumerate() {
            let route = self.route(publisher, *client);
            if !route.is_supported() {
                return Err((n, route));
            }
            sum = Some(sum.unwrap_or(0) + route.distance);
        }
        Ok(sum)
    }

    /// The function among those that publish memory which is closest to all clients, and how far it is.
    pub fn closest(&self, clients: &[usize], ties: &mut Ties) -> Option<(usize, u32)> {
        let publishes = |n: &usize| self.devices()[*n].p2pmem.is_some_and(|m| m.published);
        let near = |n: usize| Some((n, self.distance(n, clients).ok()??));
        let all: Vec<(usize, u32)> = (0..self.devices().len()).filter(publishes).filter_map(near).collect();
        let least = all.iter().map(|(_, far)| *far).min()?;
        let best: Vec<_> = all.into_iter().filter(|(_, far)| *far == least).collect();
        Some(best[ties.pick(best.len())])
    }
}

/// Chooses among equals, each as often as any other.
#[derive(Clone, Debug)]
pub struct Ties(u64);

impl Ties {
    /// From a seed, for tests; from the clock otherwise.
    pub fn new(seed: Option<u64>) -> Ties {
        let clock = || {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(1, |t| t.as_nanos() as u64) ^ u64::from(std::process::id()) << 32
        };
        Ties(seed.unwrap_or_else(clock))
    }

    /// A number below `n`, which is above 0.
    pub fn pick(&mut self, n: usize) -> usize {
        // SplitMix64 (Steele, Lea and Flood, 2014).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ z >> 31) % n as u64) as usize
    }
}

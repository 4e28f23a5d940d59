//! Which device is near to the memory that an endpoint is to move: to the GPU that the opening thread uses,
//! else to the processors that it may run on. As sysfs shows the PCI tree.

use std::fmt;
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

use hmem::Kind;
use hmem::registry;

/// Words of a mask of processors, for 8192, more than a kernel can be built for.
const WORDS: usize = 128;

/// How near a device is: the nearest last; and how many bridges of the PCI tree both are behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Nearness {
    /// Nothing is known, or it is elsewhere.
    Else,
    /// Both are of one NUMA node.
    Node,
    /// Both are below one host bridge, or below one port of it.
    HostBridge,
    RootPort,
    /// Both are behind a switch: the deeper the more bridges they have in common.
    Switch(usize),
}

impl fmt::Display for Nearness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Nearness::Else => "elsewhere",
            Nearness::Node => "one NUMA node",
            Nearness::HostBridge => "one host bridge",
            Nearness::RootPort => "one root port",
            Nearness::Switch(_) => "one switch",
        })
    }
}

/// What devices are to be near to.
#[derive(Debug)]
pub(crate) enum Center {
    /// A GPU: its name on the PCI bus, and where it is in the tree.
    Gpu(String, Place),
    /// The NUMA nodes of the processors that the thread may run on.
    Nodes(Vec<u32>),
}

/// Where a device is in the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    /// The host bridge, and all bridges and the function behind it.
    path: Vec<String>,
    node: Option<u32>,
}

/// Whether a directory is a function of the PCI bus: `0000:1b:00.0`.
fn is_function(name: &str) -> bool {
    let mut parts = name.split([':', '.']);
    let lens = [(4, 8), (2, 2), (2, 2), (1, 1)];
    let is_hex = |part: &str| part.bytes().all(|b| b.is_ascii_hexdigit());
    let fits = |(least, most): (usize, usize)| {
        parts.next().is_some_and(|part| (least..=most).contains(&part.len()) && is_hex(part))
    };
    lens.into_iter().all(fits) && name.split([':', '.']).count() == 4
}

impl Place {
    /// That of the PCI function that this directory of sysfs is of, or is inside of. Of none: nowhere.
    fn of(dir: &Path) -> Place {
        let Ok(dir) = dir.canonicalize() else { return Place::default() };
        let names: Vec<&str> = dir.iter().filter_map(|name| name.to_str()).collect();
        let is_in_tree = |name: &&&str| is_function(name) || name.starts_with("pci");
        let path = names.iter().filter(is_in_tree).map(|name| (*name).to_owned()).collect();
        let own = dir
            .ancestors()
            .find(|up| up.file_name().is_some_and(|name| is_function(&name.to_string_lossy())));
        let text = own.and_then(|own| read_to_string(own.join("numa_node")).ok());
        // -1 where there is one node, or the firmware does not say.
        Place { path, node: text.and_then(|text| text.trim().parse().ok()) }
    }

    fn near_to(&self, other: &Place) -> Nearness {
        let both = self.path.iter().zip(&other.path).take_while(|(a, b)| a == b);
        match both.count() {
            0 if self.node.is_some() && self.node == other.node => Nearness::Node,
            0 => Nearness::Else,
            1 => Nearness::HostBridge,
            2 => Nearness::RootPort,
            depth => Nearness::Switch(depth),
        }
    }
}

impl Center {
    /// That of the calling thread. `sysfs`: where that is, if elsewhere than Linux has it.
    pub(crate) fn find(sysfs: Option<&Path>) -> Center {
        let sysfs = sysfs.unwrap_or(Path::new("/sys"));
        let gpu = Some(Kind::Cuda).filter(|kind| registry::is_here(*kind));
        let name = gpu.and_then(|kind| registry::of(kind).current_pci());
        let place = name.map(|name| (Place::of(&sysfs.join("bus/pci/devices").join(&name)), name));
        match place.filter(|(place, _)| *place != Place::default()) {
            Some((place, name)) => Center::Gpu(name, place),
            None => Center::Nodes(nodes(sysfs, &processors())),
        }
    }

    /// How near the device is that sysfs has in this directory.
    pub(crate) fn near_to(&self, dir: &Path) -> Nearness {
        let place = Place::of(dir);
        match self {
            Center::Gpu(_, gpu) => gpu.near_to(&place),
            Center::Nodes(all) if place.node.is_some_and(|node| all.contains(&node)) => Nearness::Node,
            Center::Nodes(_) => Nearness::Else,
        }
    }

    /// Why a device that is so near comes before others, for people; `None`: it does not for that.
    pub(crate) fn reason(&self, nearness: Nearness) -> Option<String> {
        match self {
            _ if nearness == Nearness::Else => None,
            Center::Gpu(name, _) => Some(format!("nearest to GPU {name}, {nearness}")),
            Center::Nodes(all) => {
                let all: Vec<String> = all.iter().map(u32::to_string).collect();
                Some(format!("nearest to the thread, on NUMA node {}", all.join(" or ")))
            }
        }
    }
}

/// The processors that the calling thread may run on.
fn processors() -> [u64; WORDS] {
    let mut mask = [0u64; WORDS];
    // SAFETY: so many bytes, in which any bit may be set.
    unsafe { libc::sched_getaffinity(0, size_of_val(&mask), mask.as_mut_ptr().cast()) };
    mask
}

/// The NUMA nodes that have some of these processors.
fn nodes(sysfs: &Path, processors: &[u64; WORDS]) -> Vec<u32> {
    let is_set = |n: usize| processors.get(n / 64).is_some_and(|word| word >> (n % 64) & 1 == 1);
    let has = |dir: &PathBuf| {
        let list = read_to_string(dir.join("cpulist")).unwrap_or_default();
        list.trim().split(',').any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let ends = first.parse().ok().zip(last.parse().ok());
            ends.is_some_and(|(first, last): (usize, usize)| (first..=last.min(64 * WORDS)).any(is_set))
        })
    };
    let all = read_dir(sysfs.join("devices/system/node")).into_iter().flatten().flatten();
    let number = |dir: &PathBuf| dir.file_name()?.to_str()?.strip_prefix("node")?.parse().ok();
    let mut found: Vec<u32> = all.map(|one| one.path()).filter(has).filter_map(|dir| number(&dir)).collect();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &str, node: Option<u32>) -> Place {
        Place { path: path.split('/').map(Into::into).collect(), node }
    }

    #[test]
    fn the_more_of_the_tree_is_common_the_nearer_it_is() {
        let gpu = place("pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:02.0/0000:1b:00.0", Some(0));
        let of = |path: &str, node| gpu.near_to(&place(path, node));
        let all = [
            of("pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:02.0/0000:1b:00.1", Some(0)),
            of("pci0000:17/0000:17:01.0/0000:18:00.0/0000:19:00.0/0000:1a:00.0", Some(0)),
            of("pci0000:17/0000:17:01.0/0000:1c:00.0", Some(0)),
            of("pci0000:17/0000:17:02.0/0000:1d:00.0", Some(0)),
            of("pci0000:40/0000:40:01.0/0000:41:00.0", Some(0)),
            of("pci0000:80/0000:80:01.0/0000:81:00.0", Some(1)),
        ];
        use Nearness::*;
        assert_eq!(all, [Switch(4), Switch(3), RootPort, HostBridge, Node, Else]);
        assert!(all.is_sorted_by(|a, b| a > b), "{all:?}");
        assert_eq!(Place::default().near_to(&Place::default()), Else);
    }

    #[test]
    fn functions_are_distinguished_from_other_directories() {
        for (name, is_one) in [
            ("0000:1b:00.0", true),
            ("10000:e1:00.0", true),
            ("pci0000:17", false),
            ("0000:1b:00", false),
            ("mlx5_0", false),
            ("0000:1b:00.0:x", false),
            ("00z0:1b:00.0", false),
        ] {
            assert_eq!(is_function(name), is_one, "{name}");
        }
    }
}

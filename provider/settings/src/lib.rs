//! The provider's parameters: the one table that the provider declares to libfabric, that `strait info`
//! shows and that docs/provider.md lists, and the one way in which values are read.
//!
//! Values are read from text here, not by libfabric: its core takes `1M` for 1 and `abc` for 0.
#![forbid(unsafe_code)]

use std::fmt;

mod value;

pub use value::{Reading, Value, bytes_text};

/// What every variable's name begins with.
pub const PREFIX: &str = "FI_STRAIT_";

/// What a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number of bytes.
    Bytes { least: u64, most: u64 },
    /// A number of milliseconds.
    Millis { least: u64, most: u64 },
    /// Yes or no.
    Switch,
    /// Text, which the provider itself reads; what it may be, in words.
    Text(&'static str),
    /// Likewise, which is shown to nobody.
    Secret(&'static str),
}

/// A parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// As libfabric is told of it: the variable is this in capitals, behind [`PREFIX`].
    pub name: &'static str,
    pub kind: Kind,
    /// What holds where it is not set, in words.
    pub default: &'static str,
    pub help: &'static str,
}

pub const EAGER_SIZE: Setting = Setting {
    name: "eager_size",
    kind: Kind::Bytes { least: 0, most: 8 << 20 },
    default: "8192, or 4096 where a copy between processes is quick",
    help: "Messages and RMA of up to this many bytes travel inside a frame of the ring; longer ones are copied straight \
           between the two processes where the kernel allows it",
};

pub const RING_SIZE: Setting = Setting {
    name: "ring_size",
    kind: Kind::Bytes { least: 24 << 10, most: 16 << 20 },
    default: "520192 to the first 16 peers, 126976 to more",
    help: "Bytes of the shared memory ring from one endpoint to another, in pages",
};

pub const INJECT_SIZE: Setting = Setting {
    name: "inject_size",
    kind: Kind::Bytes { least: 0, most: 4096 },
    default: "4096",
    help: "Bytes of FI_INJECT that a program is offered which does not say what it needs. 0 is for MPI programs whose \
           short messages are on GPUs: injected they are copied twice",
};

pub const UNEXPECTED_SIZE: Setting = Setting {
    name: "unexpected_size",
    kind: Kind::Bytes { least: 0, most: u64::MAX >> 1 },
    default: "268435456",
    help: "Bytes that messages may take up which arrived before they were asked for; beyond that their senders keep \
           them until they are wanted",
};

pub const CMA: Setting = Setting {
    name: "cma",
    kind: Kind::Switch,
    default: "yes",
    help: "Copy long messages straight from one process to the other by process_vm_readv(2) where the kernel allows it",
};

pub const DEVICE_DIRECT: Setting = Setting {
    name: "device_direct",
    kind: Kind::Switch,
    default: "yes",
    help: "Have a GPU copy straight from or to a peer's GPU memory where its driver allows it; else such memory goes \
           through the ring",
};

pub const FAULT_HANDLER: Setting = Setting {
    name: "fault_handler",
    kind: Kind::Switch,
    default: "yes",
    help: "Handle SIGSEGV and SIGBUS of accesses by peers to memory that is registered but not mapped, so that they are \
           errors to the peer; other faults go to the handlers there were before. If not, the kernel makes these accesses, \
           which takes longer",
};

pub const CONNECT_TIMEOUT: Setting = Setting {
    name: "connect_timeout",
    kind: Kind::Millis { least: 0, most: 24 * 3600 * 1000 },
    default: "3000",
    help: "How many milliseconds a peer that was never reached may take to appear before operations to it fail",
};

pub const NIC: Setting = Setting {
    name: "nic",
    kind: Kind::Text(
        "auto, no, a PCI address (0000:3b:00.0), or a name below /sys/class/infiniband, /sys/class/net or /sys/class/cxi",
    ),
    default: "auto where the hints carry a nic, else no",
    help: "The network device that fi_getinfo names in fi_info.nic, for programs that need one; auto is a network card, else \
           an accelerator",
};

pub const ALIAS: Setting = Setting {
    name: "alias",
    kind: Kind::Text("a name such as efa or cxi"),
    default: "none",
    help: "The provider goes by this name instead of strait, for programs that take none but those they list. A provider \
           of libfabric's own with that name keeps it, unless FI_PROVIDER_PATH says +/path/to/libstrait-fi.so",
};

pub const LINKS: Setting = Setting {
    name: "links",
    kind: Kind::Text("names of links with commas between them: shm, tcp"),
    default: "shm,tcp",
    help: "What peers may be reached by: shm is shared memory, for those on this host, and tcp is for all others, or for \
           all if shm is not in the list",
};

pub const JOB_KEY: Setting = Setting {
    name: "job_key",
    kind: Kind::Secret("text, the same in all processes of a job"),
    default: "made of the launcher's name of the job",
    help: "What processes on several hosts show each other that they have before they talk. The default keeps jobs apart and \
           is no secret",
};

pub const TCP_TIMEOUT: Setting = Setting {
    name: "tcp_timeout",
    kind: Kind::Millis { least: 2000, most: 24 * 3600 * 1000 },
    default: "30000",
    help: "How many milliseconds another host may not answer before operations to it fail, and how long a connection to it \
           may take to be made",
};

/// All of them.
pub const ALL: [Setting; 13] = [
    EAGER_SIZE,
    RING_SIZE,
    INJECT_SIZE,
    UNEXPECTED_SIZE,
    CMA,
    DEVICE_DIRECT,
    FAULT_HANDLER,
    CONNECT_TIMEOUT,
    NIC,
    ALIAS,
    LINKS,
    JOB_KEY,
    TCP_TIMEOUT,
];

impl Setting {
    /// The environment variable.
    pub fn variable(&self) -> String {
        format!("{PREFIX}{}", self.name.to_ascii_uppercase())
    }

    /// What it does, what it takes and what holds otherwise, as libfabric lists it.
    pub fn description(&self) -> String {
        format!("{} ({}; default: {})", self.help, self.kind, self.default)
    }
}

impl fmt::Display for Kind {
    /// What may be given.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Kind::Bytes { least, most } if most > 1 << 50 => {
                write!(f, "bytes from {least}, also with K, M or G")
            }
            Kind::Bytes { least, most } => {
                write!(f, "bytes from {} to {}, also with K, M or G", bytes_text(least), bytes_text(most))
            }
            Kind::Millis { least, most } => write!(f, "milliseconds from {least} to {most}"),
            Kind::Switch => f.write_str("yes or no"),
            Kind::Text(what) | Kind::Secret(what) => f.write_str(what),
        }
    }
}

/// What to say of variables that have the prefix and are no parameter, one line each.
pub fn unknown<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let all = ALL.map(|s| s.variable());
    let mut lines: Vec<String> = names
        .into_iter()
        .filter(|name| name.starts_with(PREFIX) && !all.iter().any(|known| known == name))
        .map(|name| {
            let near = all.iter().map(|known| (distance(name, known), known)).min();
            match near {
                Some((n, known)) if n <= 4 => {
                    format!("{name} is no parameter and is ignored; is {known} meant?")
                }
                _ => format!("{name} is no parameter and is ignored; there are {}", all.join(", ")),
            }
        })
        .collect();
    lines.sort();
    lines
}

/// How many characters have to be put in, taken out or changed to make one of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = i;
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let changed = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = changed.min(corner + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_lists_every_parameter() {
        let reference = include_str!("../../../docs/provider.md");
        for s in ALL {
            let line = reference.lines().find(|l| l.starts_with(&format!("| `{}` ", s.variable())));
            let line = line.unwrap_or_else(|| panic!("docs/provider.md does not list {}", s.variable()));
            let default = s.default.split([',', ' ']).next().unwrap_or_default();
            assert!(line.contains(default), "{}: {default} in {line}", s.name);
        }
        let listed = reference.lines().filter(|l| l.starts_with("| `FI_STRAIT_")).count();
        assert_eq!(listed, ALL.len(), "docs/provider.md lists parameters that are none");
    }

    #[test]
    fn names_that_are_none_are_told() {
        let lines =
            unknown(["FI_STRAIT_RNG_SIZE", "PATH", "FI_STRAIT_CMA", "FI_STRAIT_COLOUR", "FI_PROVIDER"]);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("FI_STRAIT_COLOUR ") && lines[0].contains("FI_STRAIT_CONNECT_TIMEOUT"));
        assert!(lines[1].ends_with("is FI_STRAIT_RING_SIZE meant?"), "{lines:?}");
        // Variables are told apart by case.
        assert_eq!(unknown(["FI_STRAIT_cma"]).len(), 1);
    }
}

//! What the parameters are.

use std::fmt;

/// What every variable's name begins with.
pub const PREFIX: &str = "FI_STRAIT_";

/// What a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number of bytes.
    Bytes { least: u64, most: u64 },
    /// A number of milliseconds.
    Millis { least: u64, most: u64 },
    /// A number of things.
    Count { least: u64, most: u64 },
    /// A number of seconds.
    Seconds { least: u64, most: u64 },
    /// Yes or no.
    Switch,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Two port numbers with a minus sign between them.
    Ports,
    /// Names of links with commas between them.
    Links,
    /// Yes, no, or the name of a file that is written.
    Report,
    /// auto, no, or the path of a program.
    Program,
    /// auto, no, or the name of a network device.
    Device,
    /// The name of a provider.
    Provider,
    /// A file that is written.
    Output(&'static str),
    /// A file or a directory that is read.
    Input(&'static str),
    /// Text that its reader judges; what it may be, in words.
    Text(&'static str),
    /// Text that is never shown.
    Secret(&'static str),
}

/// A parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The name of the parameter in libfabric: the variable is this in capitals, behind [`PREFIX`]. Of what
    /// is no parameter of libfabric's it is the variable itself, in capitals.
    pub name: &'static str,
    pub kind: Kind,
    /// What holds where it is not set, in words.
    pub default: &'static str,
    pub help: &'static str,
}

pub const EAGER_SIZE: Setting = Setting {
    name: "eager_size",
    kind: Kind::Bytes { least: 0, most: 8 << 20 },
    default: "8192, or 4096, 16384 or 32768 by what a copy between processes takes",
    help: "Messages and RMA writes of up to this many bytes travel inside a frame of the ring; longer ones are copied \
           straight from one process to the other where the kernel allows it",
};

pub const RING_SIZE: Setting = Setting {
    name: "ring_size",
    kind: Kind::Bytes { least: 24 << 10, most: 16 << 20 },
    default: "520192 to the first 4 peers, 258048 to 12 more, 126976 to all else",
    help: "Size of the shared memory ring from one endpoint to another, in whole pages",
};

pub const INJECT_SIZE: Setting = Setting {
    name: "inject_size",
    kind: Kind::Bytes { least: 0, most: 16 << 10 },
    default: "4096",
    help: "The inject_size that endpoints get if the hints leave it 0. With 16384 MPICH and Intel MPI do not wait for their \
           messages of up to so many bytes to be taken. Set it to 0 for MPI programs that have many short \
           messages on GPUs in flight: a call that injects such a message waits for its copy",
};

pub const UNEXPECTED_SIZE: Setting = Setting {
    name: "unexpected_size",
    kind: Kind::Bytes { least: 0, most: u64::MAX >> 1 },
    default: "268435456",
    help: "Memory that unexpected messages (no receive is posted for them yet) may take up in a domain; beyond that \
           senders keep their messages until a receive matches",
};

pub const PEER_MEMORY: Setting = Setting {
    name: "peer_memory",
    kind: Kind::Bytes { least: 16 << 20, most: u64::MAX >> 1 },
    default: "2147483648, or 4 times unexpected_size if that is more",
    help: "Memory that all peers together may have a domain keep, those that have ended included: unexpected messages, \
           requests, completions that are not read, answers that find no room, parts of frames. A peer that would have \
           it keep more is disconnected, and what has come stays; half of it is the most that unexpected_size is",
};

pub const GROUP_MEMORY: Setting = Setting {
    name: "group_memory",
    kind: Kind::Bytes { least: 0, most: 64 << 20 },
    default: "65536",
    help: "Memory that each member of a group (FI_COLLECTIVE) shares with the others of its host, in whole pages for \
           each quarter; less than 16384: none, and their operations go by messages",
};

pub const CMA: Setting = Setting {
    name: "cma",
    kind: Kind::Switch,
    default: "yes",
    help: "Copy long messages straight from one process to the other with process_vm_readv(2), where the kernel allows it; \
           else they go through the ring",
};

pub const DEVICE_DIRECT: Setting = Setting {
    name: "device_direct",
    kind: Kind::Switch,
    default: "yes",
    help: "Have a GPU copy straight from or to a peer's GPU memory, where its driver allows it; else such memory goes \
           through the ring",
};

pub const FAULT_HANDLER: Setting = Setting {
    name: "fault_handler",
    kind: Kind::Switch,
    default: "yes",
    help: "Catch SIGSEGV and SIGBUS where a peer accesses memory that is registered but not mapped, and answer the peer \
           with an error; all other faults go to the handlers that were installed before. With no, there is no handler, and \
           the kernel makes these accesses, which takes longer",
};

pub const COPY_AGENT: Setting = Setting {
    name: "copy_agent",
    kind: Kind::Program,
    default: "auto, strait beside the provider or in bin of a directory above it",
    help: "The process that copies GPU memory for endpoints whose FI_OPT_CUDA_API_PERMITTED is false; with no, that option is \
           refused where there is CUDA",
};

pub const CONNECT_TIMEOUT: Setting = Setting {
    name: "connect_timeout",
    kind: Kind::Millis { least: 0, most: 24 * 3600 * 1000 },
    default: "3000",
    help: "Milliseconds for which operations to a peer that was never reached are retried before they fail",
};

pub const NIC: Setting = Setting {
    name: "nic",
    kind: Kind::Device,
    default: "auto where the hints carry a nic, else no",
    help: "The network device that fi_getinfo names in fi_info.nic, for programs that need one; auto takes a network card, \
           or if there is none an accelerator",
};

pub const ALIAS: Setting = Setting {
    name: "alias",
    kind: Kind::Provider,
    default: "none",
    help: "Another name for this provider instead of strait, for programs that accept only names of a list. If libfabric \
           itself has a provider of that name, that one keeps it, unless FI_PROVIDER_PATH is +/path/to/libstrait-fi.so",
};

pub const REPORT: Setting = Setting {
    name: "report",
    kind: Kind::Report,
    default: "no",
    help: "Count messages, and say at the end of the process which way they went: on standard error, or as a line of JSON \
           that is appended to the file. Short messages then take a little longer",
};

pub const LINKS: Setting = Setting {
    name: "links",
    kind: Kind::Links,
    default: "shm,tcp and, where the host has an adapter of a fabric, ofi",
    help: "What peers may be reached by: shm is shared memory, for those on this host; tcp is for all others, or for \
           all if shm is not in the list; ofi is the provider of a fabric, opened below, for those that it leads to, before tcp; \
           verbs is an RDMA device, used by libibverbs alone, and by name alone, before ofi",
};

pub const OFI_WRITES: Setting = Setting {
    name: "ofi_writes",
    kind: Kind::Switch,
    default: "no",
    help: "Over ofi, have the target of a long fi_read write the bytes into the initiator's buffer, which takes one message \
           less. Only for jobs whose processes all trust each other: a provider may go on with a write after the memory \
           was taken back",
};

pub const VERBS_DEVICE: Setting = Setting {
    name: "verbs_device",
    kind: Kind::Text("the name of a device below /sys/class/infiniband, or several with commas"),
    default: "the one with the endpoint's address, else the nearest that is active",
    help: "The RDMA device of the link verbs; of several the first that is active, and its rails by the others",
};

pub const VERBS_PORT: Setting = Setting {
    name: "verbs_port",
    kind: Kind::Count { least: 1, most: 255 },
    default: "the first that is active",
    help: "Its port",
};

pub const VERBS_GID: Setting = Setting {
    name: "verbs_gid",
    kind: Kind::Count { least: 0, most: 255 },
    default: "the one of the endpoint's address, else one that is routed, by RoCE v2",
    help: "The index of the GID that its packets come from, in the table that ibv_devinfo -v lists",
};

pub const VERBS_MTU: Setting = Setting {
    name: "verbs_mtu",
    kind: Kind::Choice(&["256", "512", "1024", "2048", "4096"]),
    default: "the port's",
    help: "Bytes of a packet at most; the smaller value of both ends holds",
};

pub const VERBS_IDLE: Setting = Setting {
    name: "verbs_idle",
    kind: Kind::Seconds { least: 0, most: 24 * 3600 },
    default: "0, never",
    help: "After this time a connection by which nothing goes gives back its queue pair, until something does",
};

pub const VERBS_ON_DEMAND: Setting = Setting {
    name: "verbs_on_demand",
    kind: Kind::Switch,
    default: "no",
    help: "Memory that the program has not registered is registered with the device on demand at its first access, and stays \
           registered. By default it is pinned for each access",
};

pub const VERBS_RAILS: Setting = Setting {
    name: "verbs_rails",
    kind: Kind::Count { least: 1, most: 4 },
    default: "1",
    help: "How many ports, of one device or several, a connection of the link verbs uses: accesses of 256 KiB and more go in a \
           part by each. The smaller value of both sides holds",
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

pub const TCP_LINGER: Setting = Setting {
    name: "tcp_linger",
    kind: Kind::Millis { least: 0, most: 24 * 3600 * 1000 },
    default: "5000",
    help: "How many milliseconds fi_close of an endpoint, and exit(3), wait at most until other hosts have acknowledged what was \
           sent to them; what is not acknowledged then may be lost",
};

pub const TCP_RAILS: Setting = Setting {
    name: "tcp_rails",
    kind: Kind::Count { least: 1, most: 8 },
    default: "1",
    help: "How many connections a peer on another host may have, each by a network interface of its own; frames of 64 KiB and more \
           are spread over them. The smaller value of both sides holds",
};

pub const XPU_MODE: Setting = Setting {
    name: "xpu_mode",
    kind: Kind::Choice(&["auto", "performance", "economy"]),
    default: "auto",
    help: "How the thread polls what GPU streams and kernels write: performance: without a pause, on a core of its \
           own; economy: it sleeps 100 microseconds after a poll that found nothing, but for 20 microseconds after one \
           that found something; auto: it polls while there is something, and then sleeps 50 microseconds between polls",
};

pub const PORTS: Setting = Setting {
    name: "ports",
    kind: Kind::Ports,
    default: "any free port",
    help: "The ports at which endpoints listen for peers of other hosts, where the program names none: one for each endpoint of a \
           host, and one more for each rail. A firewall has to let connections to them in",
};

pub const LOG: Setting = Setting {
    name: "log",
    kind: Kind::Choice(&["warn", "info", "debug", "no"]),
    default: "no",
    help: "Write the log's lines of this level and above to standard error, or to FI_STRAIT_LOG_FILE, instead of libfabric's log \
           (FI_LOG_LEVEL), whose core and other providers write there too",
};

pub const LOG_FILE: Setting = Setting {
    name: "log_file",
    kind: Kind::Output("a file, in whose name %p is the process's number"),
    default: "standard error",
    help: "The file to which FI_STRAIT_LOG appends its lines; alone it means FI_STRAIT_LOG=warn",
};

/// All of them.
pub const ALL: [Setting; 31] = [
    EAGER_SIZE,
    RING_SIZE,
    INJECT_SIZE,
    UNEXPECTED_SIZE,
    PEER_MEMORY,
    GROUP_MEMORY,
    CMA,
    DEVICE_DIRECT,
    FAULT_HANDLER,
    COPY_AGENT,
    CONNECT_TIMEOUT,
    NIC,
    ALIAS,
    REPORT,
    LINKS,
    OFI_WRITES,
    VERBS_DEVICE,
    VERBS_PORT,
    VERBS_GID,
    VERBS_MTU,
    VERBS_IDLE,
    VERBS_ON_DEMAND,
    VERBS_RAILS,
    JOB_KEY,
    TCP_TIMEOUT,
    TCP_LINGER,
    TCP_RAILS,
    XPU_MODE,
    PORTS,
    LOG,
    LOG_FILE,
];

impl Setting {
    /// The environment variable.
    pub fn variable(&self) -> String {
        match self.name.as_bytes().first().is_some_and(u8::is_ascii_uppercase) {
            true => self.name.to_owned(),
            false => format!("{PREFIX}{}", self.name.to_ascii_uppercase()),
        }
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
            Kind::Count { least, most } => write!(f, "a number from {least} to {most}"),
            Kind::Seconds { least, most } => write!(f, "seconds from {least} to {most}"),
            Kind::Switch => f.write_str("yes or no"),
            Kind::Choice(words) => f.write_str(&words.join(", ")),
            Kind::Ports => f.write_str("two ports from 1024 to 65535 with a minus sign between them, such as 40000-40999"),
            Kind::Links => {
                f.write_str("names of links with commas between them: shm, tcp, verbs, ofi, or ofi: and a provider's name")
            }
            Kind::Report => {
                f.write_str("yes, no, or a file with a / or a dot in its name, in which %p is the process's number")
            }
            Kind::Program => f.write_str("auto, no, or the path of the strait command"),
            Kind::Device => f.write_str(
                "auto, no, a PCI address (0000:3b:00.0), or a name below /sys/class/infiniband, /sys/class/net or \
                 /sys/class/cxi",
            ),
            Kind::Provider => f.write_str("a name such as efa or cxi"),
            Kind::Output(what) | Kind::Input(what) | Kind::Text(what) | Kind::Secret(what) => f.write_str(what),
        }
    }
}

/// `24K` of a number of bytes, where it is a round one.
pub fn bytes_text(n: u64) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if n > 0 && n.trailing_zeros() >= shift {
            return format!("{}{unit}", n >> shift);
        }
    }
    n.to_string()
}

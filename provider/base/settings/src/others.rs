//! Variables of the libraries and commands besides the provider.

use crate::table::{Kind, Setting};

const fn other(name: &'static str, kind: Kind, default: &'static str, help: &'static str) -> Setting {
    Setting { name, kind, default, help }
}

pub const UCX_LOG: Setting = other(
    "STRAIT_UCX_LOG",
    Kind::Choice(&["off", "error", "warn", "info", "debug", "trace"]),
    "warn",
    "The log of the UCX transport, on standard error",
);

pub const UCX_RING: Setting = other(
    "STRAIT_UCX_RING",
    Kind::Bytes { least: 32 << 10, most: 16 << 20 },
    "508K to the first 4 peers, 252K to 12 more, 64K to all else",
    "Bytes of the ring to each peer",
);

pub const UCX_CMA: Setting =
    other("STRAIT_UCX_CMA", Kind::Switch, "yes", "Access memory of peers by process_vm_readv(2)");

pub const UCX_FAULT_HANDLER: Setting = other(
    "STRAIT_UCX_FAULT_HANDLER",
    Kind::Switch,
    "yes",
    "Catch SIGSEGV and SIGBUS where a peer accesses memory that is registered but not mapped",
);

pub const UCX_REPORT: Setting = other(
    "STRAIT_UCX_REPORT",
    Kind::Report,
    "no",
    "Count what interfaces send, and say at the end of the process which way it went",
);

pub const UCX_CHECK: Setting = other(
    "STRAIT_UCX_CHECK",
    Kind::Switch,
    "yes",
    "Serve no UCX whose tables look different from what its release has",
);

const DAY: u64 = 24 * 3600;

/// All of them.
pub const OTHERS: &[Setting] = &[
    UCX_LOG,
    UCX_RING,
    UCX_CMA,
    UCX_FAULT_HANDLER,
    UCX_REPORT,
    UCX_CHECK,
    other("STRAIT_MPI", Kind::Switch, "yes", "Have strait_mpi take device memory"),
    other(
        "STRAIT_MPI_KERNELS",
        Kind::Switch,
        "yes",
        "Have strait_mpi pack and reduce by kernels of the device",
    ),
    other("STRAIT_MPI_NCCL", Kind::Switch, "no", "Have collectives of strait_mpi go by NCCL"),
    other(
        "STRAIT_MPI_NCCL_LEAST",
        Kind::Text("a number of bytes above 0, in digits alone"),
        "32768",
        "The least bytes of a collective that goes by NCCL",
    ),
    other(
        "STRAIT_MPI_NONBLOCKING",
        Kind::Switch,
        "yes",
        "Have collectives of strait_mpi that return a request go from device to device",
    ),
    other(
        "STRAIT_MPI_MOVE_LEAST",
        Kind::Text("a number of bytes, or off"),
        "65536",
        "The least bytes of a collective that computes nothing and goes from device to device",
    ),
    other(
        "STRAIT_MPI_PACK_LEAST",
        Kind::Text("a number of bytes, or off"),
        "262144",
        "The least bytes of a message that kernels pack to device memory",
    ),
    other(
        "STRAIT_MPI_REDUCE_LEAST",
        Kind::Text("a number of bytes, or off"),
        "262144",
        "The least bytes of a reduction that the ranks' devices compute",
    ),
    other(
        "STRAIT_MPI_REDUCE_MEMORY",
        Kind::Text("a number of bytes above 0, in digits alone"),
        "67108864",
        "The most bytes of device memory for what such a reduction receives",
    ),
    other("STRAIT_MPI_REPORT", Kind::Switch, "no", "Print the calls with device memory at MPI_Finalize"),
    other(
        "STRAIT_MPI_SYNC",
        Kind::Choice(&["stream", "device", "off", "0"]),
        "stream",
        "Before what a call with device memory waits",
    ),
    other(
        "STRAIT_RPIPE_BACKEND",
        Kind::Text("strait, strait:frames, strait:tcp, libfabric, libfabric:PROVIDER or mpi:NAME"),
        "strait",
        "The backend of pipes",
    ),
    other("STRAIT_RPIPE_HEAP", Kind::Bytes { least: 8, most: 16 << 30 }, "1MiB", "Bytes of a heap"),
    other(
        "STRAIT_RPIPE_SLOTS",
        Kind::Bytes { least: 1, most: 1 << 15 },
        "256",
        "Messages under way in a pipe",
    ),
    other(
        "STRAIT_RPIPE_POLICY",
        Kind::Text("next-fit, first-fit, best-fit or worst-fit"),
        "next-fit",
        "The policy of heaps",
    ),
    other(
        "STRAIT_RPIPE_SYNC",
        Kind::Choice(&["deferred", "immediate"]),
        "deferred for next-fit and first-fit, immediate for best-fit and worst-fit",
        "When the writer learns of freed blocks",
    ),
    other("STRAIT_RPIPE_FLAG", Kind::Text("a flag mode"), "by what the path promises", "The flag mode"),
    other(
        "STRAIT_RPIPE_INJECT",
        Kind::Bytes { least: 0, most: 4096 },
        "measured",
        "The longest copied message",
    ),
    other("STRAIT_RPIPE_KEY", Kind::Secret("text"), "by the user's number", "The secret of a job"),
    other("STRAIT_RPIPE_LINGER", Kind::Millis { least: 0, most: DAY * 1000 }, "5000", "The wait at the end"),
    other("STRAIT_RPIPE_MAP", Kind::Switch, "yes", "Map the heaps of peers on this host"),
    other("STRAIT_RPIPE_DEVICE", Kind::Text("a number, or current"), "current", "The device of ends"),
    other("STRAIT_RPIPE_DIR", Kind::Input("a directory"), "none", "Where processes meet without a launcher"),
    other(
        "STRAIT_RPIPE_SIZE",
        Kind::Count { least: 1, most: 1 << 20 },
        "none",
        "How many processes there are",
    ),
    other("STRAIT_RPIPE_RANK", Kind::Count { least: 0, most: 1 << 20 }, "none", "Which process this is"),
    other("STRAIT_RPIPE_LIBFABRIC", Kind::Input("a file, or a directory"), "the linker's", "The libfabric"),
    other("STRAIT_RPIPE_MPI", Kind::Text("openmpi or mpich"), "none", "The MPI whose ranks are taken"),
    other("STRAIT_RPIPE_MPI_DIR", Kind::Input("a directory"), "none", "Where the library for an MPI is"),
    other("STRAIT_RANK", Kind::Count { least: 0, most: 1 << 20 }, "the launcher's", "The process's number"),
    other(
        "STRAIT_SIZE",
        Kind::Count { least: 1, most: 1 << 20 },
        "the launcher's",
        "How many processes there are",
    ),
    other(
        "STRAIT_EXCHANGE",
        Kind::Text("unix:PATH, unix:@NAME, tcp:HOST:PORT or file:PATH"),
        "the launcher's",
        "Where processes meet",
    ),
    other("STRAIT_JOB", Kind::Secret("a word"), "none", "What all processes of a job have to know"),
    other(
        "STRAIT_JOURNAL",
        Kind::Input("a directory"),
        "none, set by strait doctor",
        "Where processes write what happens to them",
    ),
    other("STRAIT_EXCHANGE_TIMEOUT", Kind::Seconds { least: 0, most: DAY }, "30", "The wait at the start"),
    other(
        "STRAIT_BOOTSTRAP",
        Kind::Choice(&["strait", "pmi", "pmix", "single"]),
        "the first that there is",
        "Which way processes meet",
    ),
    other("STRAIT_PMIX_LIBRARY", Kind::Input("a file"), "libpmix.so.2", "The file of libpmix"),
    other("STRAIT_LAUNCHER", Kind::Text("any text"), "none", "Set by strait run"),
    other("STRAIT_NCCL_LIBRARY", Kind::Input("a file"), "libnccl.so.2", "The file of NCCL"),
    other("STRAIT_WAS_UCX_TLS", Kind::Text("any text"), "none", "What UCX_TLS was before strait ucx-env"),
    other("STRAIT_WAS_UCX_ALLOC_PRIO", Kind::Text("any text"), "none", "The same of UCX_ALLOC_PRIO"),
    other("STRAIT_WAS_PML_UCX_TLS", Kind::Text("any text"), "none", "The same of OMPI_MCA_pml_ucx_tls"),
    other(
        "STRAIT_WAS_PML_UCX_DEVICES",
        Kind::Text("any text"),
        "none",
        "The same of OMPI_MCA_pml_ucx_devices",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn is_listed(text: &str, name: &str) -> bool {
        text.contains(&format!("`{name}`")) || text.contains(&format!("`{name}="))
    }

    /// The manuals list what programs may set, and this table has all of it.
    #[test]
    fn the_manuals_and_the_table_have_the_same_names() {
        let manuals = [
            include_str!("../../../../docs/ucx.md"),
            include_str!("../../../../docs/rpipe.md"),
            include_str!("../../../../docs/mpi.md"),
            include_str!("../../../../docs/strait.md"),
        ]
        .concat();
        for s in OTHERS.iter().filter(|s| !s.name.contains("_WAS_") && s.name != "STRAIT_NCCL_LIBRARY") {
            assert!(is_listed(&manuals, s.name), "no manual lists {}", s.name);
        }
        let rows = manuals.lines().filter_map(|l| l.strip_prefix("| `STRAIT_"));
        for row in rows {
            let name = format!("STRAIT_{}", row.split(['`', '=']).next().unwrap_or_default());
            assert!(OTHERS.iter().any(|s| s.name == name), "{name} is not in the table");
        }
    }
}

//! What the machine has, apart from libfabric.

use std::collections::BTreeMap;
use std::path::Path;

use super::found::{Adapter, Finding, Limit, Link, Memory};
use crate::fabric::{Error, LinkStatus};
use crate::os;

/// The links, as the provider reports them, or why it does not.
pub fn links(status: Result<Vec<LinkStatus>, Error>) -> Vec<Link> {
    let link = |name: &str, ok, text| Link { name: name.into(), finding: Finding::new(ok, text) };
    let mut links: Vec<Link> = match status {
        Ok(status) => status.into_iter().map(|(name, ok, text)| link(&name, ok, text)).collect(),
        Err(error) => {
            let other = |name| link(name, false, format!("the provider does not report it: {error}"));
            vec![
                link("shm", true, link::shm_offers(&link::OpenOptions::default())),
                other("tcp"),
                other("ofi"),
            ]
        }
    };
    if let (Some(shm), Err(error)) = (links.iter_mut().find(|l| l.name == "shm"), os::memfd_works()) {
        shm.finding = Finding::new(false, format!("memfd_create(2) does not work here: {error}"));
    }
    links
}

/// Whether processes of this user may read each other's memory.
pub fn cma() -> Finding {
    let mut finding = match link::cma_allowed() {
        Ok(text) => Finding::new(true, text),
        Err(text) => Finding::new(false, text),
    };
    if !finding.ok {
        finding.text.push_str("; large messages are then copied through the ring, which is slower");
        if Path::new("/proc/sys/kernel/yama/ptrace_scope").exists() {
            finding.text.push_str(
                "\nto allow it: sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE for the \
                 processes",
            );
        }
        if seccomp() {
            finding.text.push_str(
                "\nin a container: docker run --cap-add=SYS_PTRACE, or a seccomp profile that allows \
                 process_vm_readv and process_vm_writev",
            );
        }
    }
    finding
}

pub fn membarrier() -> Finding {
    const GLOBAL_EXPEDITED: u64 = 1 << 1;
    match os::membarrier_commands() {
        Ok(commands) if commands & GLOBAL_EXPEDITED != 0 => {
            Finding::new(true, "works: a sender needs no fence to see that its peer sleeps")
        }
        Ok(_) => Finding::new(false, "this kernel has no expedited one (4.16 has); fences are used"),
        Err(error) => Finding::new(false, format!("not available ({error}); fences are used")),
    }
}

fn seccomp() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Seccomp:")).is_some_and(|mode| mode.trim() != "0")
}

/// Signs of a container.
pub fn container() -> Vec<String> {
    let mut signs = Vec::new();
    for file in ["/.dockerenv", "/run/.containerenv", "/.singularity.d"] {
        if Path::new(file).exists() {
            signs.push(format!("{file} exists"));
        }
    }
    if let Some(name) = std::env::var_os("container") {
        signs.push(format!("container={}", name.to_string_lossy()));
    }
    if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
        signs.push("KUBERNETES_SERVICE_HOST is set".into());
    }
    if seccomp() {
        signs.push("a seccomp filter is active".into());
    }
    signs
}

/// A runtime of devices, as this command starts it: the provider uses one that the application has
/// started.
struct Runtime {
    name: &'static str,
    kind: hmem::Kind,
    library: &'static str,
    comes_with: &'static str,
    /// What initialises it; a 0 is passed, whether it takes one or not.
    init: &'static [u8],
}

const RUNTIMES: [Runtime; 3] = [
    Runtime {
        name: "cuda",
        kind: hmem::Kind::Cuda,
        library: "libcuda.so.1",
        comes_with: "NVIDIA's driver",
        init: b"cuInit\0",
    },
    Runtime {
        name: "rocr",
        kind: hmem::Kind::Rocr,
        library: "libhsa-runtime64.so.1",
        comes_with: "ROCm",
        init: b"hsa_init\0",
    },
    Runtime {
        name: "level zero",
        kind: hmem::Kind::Ze,
        library: "libze_loader.so.1",
        comes_with: "Level Zero",
        init: b"zeInit\0",
    },
];

pub fn memory() -> Vec<Memory> {
    let mut kinds = vec![Memory { kind: "system", finding: Finding::new(true, "ordinary memory") }];
    kinds.extend(RUNTIMES.iter().map(|r| Memory { kind: r.name, finding: runtime(r) }));
    let text = "only where a program registers a client of its own (libstrait.so, strait.h)";
    kinds.push(Memory { kind: "client", finding: Finding::new(false, text) });
    kinds
}

fn runtime(r: &Runtime) -> Finding {
    type Init = unsafe extern "C" fn(libc::c_uint) -> libc::c_int;
    // SAFETY: a driver's library, whose initialisers may run in any process.
    let Ok(library) = (unsafe { libloading::Library::new(r.library) }) else {
        return Finding::new(false, format!("no {} (it comes with {})", r.library, r.comes_with));
    };
    // SAFETY: the symbol has this type by its manual, or takes nothing and does not look; 0 is a value
    // that all of them take.
    let code = unsafe { library.get::<Init>(r.init).map(|init| init(0)) };
    let finding = match code {
        Ok(0) if hmem::registry::is_here(r.kind) => hmem::registry::of(r.kind).describe(),
        Ok(0) => Err(format!("{} is here, and is not found in the process", r.library)),
        Ok(code) => Err(format!("{} does not start: {}", r.library, hmem::registry::of(r.kind).error(code))),
        Err(error) => Err(format!("{} is not what its name says: {error}", r.library)),
    };
    // It has threads of its own: it stays.
    std::mem::forget(library);
    match finding {
        // What runs here has not been seen to work on hardware.
        Ok(text) if r.kind != hmem::Kind::Cuda => {
            Finding::new(true, format!("{text} (never run on such hardware)"))
        }
        Ok(text) => Finding::new(true, text),
        Err(text) => Finding::new(false, text),
    }
}

/// RDMA devices.
pub fn adapters() -> Vec<Adapter> {
    let all = crate::adapters::all().into_iter();
    let text = |text: String, cure: Option<String>| match cure {
        Some(cure) => format!("{text}\nto use it: {cure}"),
        None => text,
    };
    all.map(|one| Adapter { name: one.name, finding: Finding::new(one.ok, text(one.text, one.cure)) })
        .collect()
}

pub fn limits() -> Vec<Limit> {
    [
        (
            "open files",
            libc::RLIMIT_NOFILE,
            false,
            "each endpoint has some, and each peer it talks to a socket and a memfd",
        ),
        (
            "locked memory",
            libc::RLIMIT_MEMLOCK,
            true,
            "not used by shared memory; network cards pin registered memory",
        ),
        ("address space", libc::RLIMIT_AS, true, "each peer takes a ring for each direction"),
    ]
    .into_iter()
    .filter_map(|(name, resource, bytes, means)| {
        let (soft, hard) = os::limit(resource)?;
        Some(Limit { name, soft, hard, bytes, means })
    })
    .collect()
}

/// What is set that libfabric or Strait listens to.
pub fn environment() -> BTreeMap<String, String> {
    std::env::vars_os()
        .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
        .filter(|(name, _)| {
            matches!(
                name.as_str(),
                "FI_PROVIDER"
                    | "FI_PROVIDER_PATH"
                    | "FI_HOOK"
                    | "FI_LOG_LEVEL"
                    | "FI_LOG_PROV"
                    | "FI_LOG_SUBSYS"
            ) || name.starts_with("FI_STRAIT_")
                || name.starts_with("FI_HMEM")
        })
        .collect()
}

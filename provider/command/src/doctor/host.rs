//! The host: what processes may do to each other here, limits, devices.

use std::path::Path;
use std::process::Command;

use super::finding::{Finding, Level};
use crate::os;

/// Descriptors that a job's process is likely to need.
const FEW_FILES: u64 = 1024;
/// With less room in /dev/shm, MPI libraries fail.
const LITTLE_ROOM: u64 = 4 << 20;

/// What processes may do to each other, and limits.
pub fn host() -> Vec<Finding> {
    const AREA: &str = "host";
    let mut findings = vec![cma(AREA)];
    findings.push(match os::memfd_works() {
        Ok(()) => Finding::ok(AREA, "memfd_create(2) works: rings are in memory of their own"),
        Err(error) => Finding::new(AREA, Level::Problem, format!("memfd_create(2) does not work: {error}"))
            .means("no endpoint can be opened")
            .cure("a seccomp profile that allows it; Linux has it since 3.17"),
    });
    findings.push(files(AREA));
    let locked = match os::limit(libc::RLIMIT_MEMLOCK) {
        Some((Some(soft), _)) => link::usage::bytes_text(soft),
        _ => "unlimited".into(),
    };
    findings.push(Finding::ok(
        AREA,
        format!(
            "locked memory {locked}: used by RDMA devices alone, by the link verbs 2.5 MiB an endpoint and more"
        ),
    ));
    findings.push(dev_shm(AREA));
    findings.push(temporary(AREA, &std::env::temp_dir()));
    findings.extend(containers(AREA));
    // Without /proc it is not known, which the first finding says.
    findings.extend(std::fs::read_to_string("/proc/self/uid_map").ok().map(|map| users(AREA, &map)));
    findings
}

fn files(area: &'static str) -> Finding {
    let Some((soft, hard)) = os::limit(libc::RLIMIT_NOFILE) else {
        return Finding::ok(area, "open files: the limit is not known");
    };
    let text = |n: Option<u64>| n.map_or("unlimited".into(), |n| n.to_string());
    let line = format!("open files {} (at most {})", text(soft), text(hard));
    match soft {
        Some(n) if n < FEW_FILES => Finding::new(area, Level::Note, line)
            .means("each peer takes up to 4 descriptors; a job of many processes has too few")
            .cure(raise_files()),
        _ => Finding::ok(area, line),
    }
}

/// How processes get more descriptors: above the hard limit a user has no say.
pub fn raise_files() -> String {
    match os::limit(libc::RLIMIT_NOFILE) {
        Some((_, Some(hard))) if hard < FEW_FILES => format!(
            "raise the hard limit, which is {hard} here: nofile in /etc/security/limits.conf, LimitNOFILE of the service that \
             starts the job (slurmd, sshd), or --ulimit nofile=65536 of the container"
        ),
        Some((_, hard)) => {
            format!("ulimit -n {}, before the job is started", hard.map_or(1 << 16, |hard| hard.min(1 << 16)))
        }
        None => "ulimit -n 65536, before the job is started".into(),
    }
}

fn dev_shm(area: &'static str) -> Finding {
    match os::space("/dev/shm") {
        Some((free, all)) => {
            let is_full = free < LITTLE_ROOM;
            let (free, all) = (link::usage::bytes_text(free), link::usage::bytes_text(all));
            let line = format!("/dev/shm {free} of {all} free: Strait takes none; MPI libraries and UCX do");
            if is_full {
                return Finding::new(area, Level::Problem, line)
                    .means("programs whose MPI library or UCX puts files there fail, or end with SIGBUS")
                    .cure("remove what ended jobs have left in it, or make it larger: mount -o remount,size=SIZE /dev/shm, of a container --shm-size=SIZE");
            }
            Finding::ok(area, line)
        }
        None => Finding::new(area, Level::Note, "/dev/shm is not there")
            .means("Strait takes none; MPI libraries' own shared memory does not work"),
    }
}

/// Where launchers keep the files of a job. Strait keeps none.
fn temporary(area: &'static str, dir: &Path) -> Finding {
    match super::scratch::make(&dir.join(format!("strait-doctor-{}-try", std::process::id()))) {
        Ok(made) => {
            let _ = std::fs::remove_dir_all(made);
            Finding::ok(
                area,
                format!("{} can be written: Strait keeps nothing there; launchers do", dir.display()),
            )
        }
        Err(error) => {
            Finding::new(area, Level::Problem, format!("{} cannot be written: {error}", dir.display()))
                .means("mpirun, and MPI libraries that keep files of a job there, fail")
                .cure("TMPDIR=DIR, a directory of this host that can be written and has room")
        }
    }
}

/// Really reads the memory of a process: that of this one, by a child, as a peer that is no parent of it
/// would.
fn cma(area: &'static str) -> Finding {
    let outcome = try_cma();
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let scope = scope.trim();
    let yama = if scope.is_empty() { "no Yama".into() } else { format!("yama ptrace_scope {scope}") };
    let Err(why) = outcome else {
        return Finding::ok(area, format!("process_vm_readv(2) between processes works (tried; {yama})"));
    };
    let mut cures = Vec::new();
    if !Path::new("/proc/self").exists() {
        return Finding::new(area, Level::Problem, format!("/proc is not mounted here: {why}"))
            .means("neither Strait nor this command can find out what processes may do to each other")
            .cure("mount -t proc proc /proc");
    }
    if !matches!(scope, "" | "0") {
        cures.push("sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE for the processes".to_owned());
    }
    if !crate::info::containers().is_empty() {
        cures.push("in a container: --cap-add=SYS_PTRACE, or a seccomp profile that allows process_vm_readv and process_vm_writev".into());
    }
    if cures.is_empty() {
        cures.push("ask what forbids it: a security module, or a seccomp filter".into());
    }
    Finding::new(
        area,
        Level::Problem,
        format!("process_vm_readv(2) between processes fails: {why} (tried; {yama})"),
    )
    .means("large messages go through the ring in frames, at about half the speed")
    .cure(cures.join("\n"))
}

fn try_cma() -> Result<(), String> {
    let secret: Box<[u8; 16]> = Box::new(*b"strait-doctor-16");
    let address = format!("{}", secret.as_ptr().expose_provenance());
    let exe = std::env::current_exe().map_err(|e| e.to_string())?;
    let pid = std::process::id().to_string();
    let output = Command::new(exe).args(["cma-probe", &pid, &address]).output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let wanted = String::from_utf8_lossy(&secret[..]).into_owned();
    match text.strip_prefix("read ") {
        Some(read) if read == wanted => Ok(()),
        _ if text.is_empty() => Err("the process that was to try it did not answer".into()),
        _ => Err(text),
    }
}

/// The process that tries: reads 16 bytes of another one and prints them.
pub fn probe(pid: i32, address: usize) -> String {
    match os::read_process(pid, address) {
        Ok(bytes) => format!("read {}\n", String::from_utf8_lossy(&bytes)),
        Err(error) => format!("{error}\n"),
    }
}

fn containers(area: &'static str) -> Vec<Finding> {
    let mut signs = crate::info::containers();
    for name in ["pid", "user", "net", "ipc"] {
        let [own, first] = ["self", "1"].map(|p| std::fs::read_link(format!("/proc/{p}/ns/{name}")).ok());
        if own.is_some() && first.is_some() && own != first {
            signs.push(format!("the {name} namespace is not that of process 1"));
        }
    }
    if signs.is_empty() {
        return vec![Finding::ok(area, "no sign of a container")];
    }
    vec![
        Finding::new(area, Level::Note, format!("container: {}", signs.join("; ")))
            .means(
                "peers in other network namespaces are reached by TCP, if at all; those in other pid or user namespaces in frames, by \
                 two copies",
            )
            .cure("one container for all processes of a job on the host; or one network, pid and user namespace: --network=host --pid=host"),
    ]
}

/// By what this user namespace maps.
fn users(area: &'static str, map: &str) -> Finding {
    let numbers: Vec<&str> = map.split_whitespace().collect();
    if let [inside, outside, _, ..] = numbers[..] {
        if inside != outside || numbers.len() > 3 {
            return Finding::new(
                area,
                Level::Note,
                format!("a user namespace, as of a rootless container: user {inside} is user {outside} outside"),
            )
            .means("processes outside of it, or in another one, may be those of other users to Strait, and be refused")
            .cure("all processes of a job on the host in one container, or outside of any");
        }
    }
    if !numbers.is_empty() {
        return Finding::ok(area, "peers of this user are distinguished from those of others");
    }
    Finding::new(area, Level::Note, "a user namespace without a mapping: users look alike")
        .means("a peer's process must be one that this process may signal, and Linux 6.5 or later")
        .cure("unshare --map-current-user")
}

/// GPUs and network cards.
pub fn devices() -> Vec<Finding> {
    const AREA: &str = "devices";
    let mut findings = Vec::new();
    for (kind, ok, text) in crate::info::device_memory() {
        let has_node = match kind {
            "cuda" => Path::new("/dev/nvidiactl").exists(),
            "rocr" => Path::new("/dev/kfd").exists(),
            _ => Path::new("/dev/dri").exists(),
        };
        findings.push(match (ok, has_node) {
            (true, _) => Finding::ok(AREA, format!("{kind}: {text}")),
            // A driver that is there and does not start, or a device without its library.
            (false, true) if kind != "level zero" => Finding::new(AREA, Level::Note, format!("{kind}: {text}"))
                .means("messages in its memory fail, or are staged by the program")
                .cure("the driver's libraries of the same release as its kernel module; in a container, those of the host"),
            _ => Finding::ok(AREA, format!("{kind}: {text}")),
        });
    }
    findings.extend(crate::adapters::all().into_iter().map(|adapter| {
        let name = adapter.name.map_or_else(String::new, |name| format!(" {name}"));
        let text = format!("RDMA{name}: {}", adapter.text);
        match adapter.ok {
            true => Finding::ok(AREA, text),
            false => Finding { cure: adapter.cure, ..Finding::new(AREA, Level::Note, text) }
                .means("the link verbs does not use it"),
        }
    }));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_reported() {
        let answer = probe(std::process::id() as i32, 16);
        assert!(!answer.starts_with("read") && answer.len() > 1, "{answer}");
        let bytes = *b"0123456789abcdef";
        let answer = probe(std::process::id() as i32, bytes.as_ptr().expose_provenance());
        assert!(answer == "read 0123456789abcdef\n" || answer.contains("permitted"), "{answer}");
    }

    #[test]
    fn a_temporary_directory_that_cannot_be_written_is_a_problem() {
        assert_eq!(temporary("host", &std::env::temp_dir()).level, Level::Ok);
        let found = temporary("host", Path::new("/proc"));
        assert!(found.level == Level::Problem && found.cure.is_some_and(|c| c.contains("TMPDIR")));
    }

    #[test]
    fn what_a_user_namespace_maps_is_said() {
        for (map, level, says) in [
            ("         0          0 4294967295\n", Level::Ok, "distinguished"),
            ("         0       1000          1\n", Level::Note, "user 0 is user 1000 outside"),
            ("0 0 1\n1 100000 65536\n", Level::Note, "as of a rootless container"),
            ("", Level::Note, "without a mapping"),
        ] {
            let found = users("host", map);
            assert!(found.level == level && found.text.contains(says), "{map}: {found:?}");
        }
    }

    #[test]
    fn each_finding_of_the_host_that_is_not_well_has_a_consequence() {
        for finding in host().into_iter().chain(devices()) {
            assert!(finding.level == Level::Ok || finding.means.is_some(), "{finding:?}");
        }
    }
}

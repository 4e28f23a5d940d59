//! The processes of a job while it runs: which libraries they have loaded, and what they do.

use std::collections::BTreeSet;
use std::path::Path;

/// A process of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    pub pid: u32,
    pub name: String,
    /// What its main thread does.
    pub state: String,
}

/// Libraries that say what a program communicates by.
const LIBRARIES: [&str; 8] =
    ["libfabric", "libmpi", "libmpich", "libucp", "libuct", "libnccl", "liboshmem", "libstrait"];

/// The processes of this host whose environment names this directory.
pub fn of(dir: &Path) -> Vec<Running> {
    let wanted = format!("{}={}", link::journal::VARIABLE, dir.display()).into_bytes();
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    let is_of = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one == wanted)
    };
    pids.filter(is_of).map(describe).collect()
}

fn describe(pid: u32) -> Running {
    let text = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let stat = text("stat");
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()).unwrap_or('?');
    let place = text("wchan");
    let place =
        if matches!(place.trim(), "" | "0") { String::new() } else { format!(" in {}", place.trim()) };
    let state = match state {
        'R' => "its main thread runs".into(),
        'S' => format!("its main thread sleeps{place}"),
        'D' => format!("its main thread waits for a device{place}"),
        'T' => "it is stopped: SIGCONT has it go on".into(),
        't' => "a debugger holds it".into(),
        'Z' => "it has ended".into(),
        _ => String::new(),
    };
    Running { pid, name: text("comm").trim().into(), state }
}

/// Adds the libraries of these processes that say what they communicate by.
pub fn libraries(of: &[Running], all: &mut BTreeSet<String>) {
    for process in of {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.pid)).unwrap_or_default();
        for line in maps.lines() {
            let Some(file) = line.rsplit('/').next().filter(|_| line.contains(" r-xp ")) else { continue };
            let stem = file.split(['.', '-']).next().unwrap_or_default();
            if LIBRARIES.contains(&stem) && file.contains(".so") {
                all.insert(file.to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_are_found_by_their_environment() {
        let dir = std::env::temp_dir().join(format!("strait-running-{}", std::process::id()));
        assert_eq!(of(&dir), []);
        let mut child = std::process::Command::new("sleep")
            .arg("300")
            .env(link::journal::VARIABLE, &dir)
            .spawn()
            .unwrap();
        let found = (0..500).find_map(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            of(&dir).into_iter().find(|p| p.name == "sleep" && p.state.starts_with("its main thread sleeps"))
        });
        let _ = child.kill();
        let _ = child.wait();
        assert_eq!(found.map(|p| p.pid), Some(child.id()));
    }
}

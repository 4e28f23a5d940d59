//! `strait doctor -- PROGRAM`: runs a program, and says which path its bytes took.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use serde::Serialize;
use serde_json::Value;

use crate::fabric::Error;
use crate::out::{quoted, say};
use crate::run::signals::{Came, PASSED, Signals};

/// What asks the provider, and the UCX transport, for a report.
const REPORT: [&str; 2] = ["FI_STRAIT_REPORT", "STRAIT_UCX_REPORT"];

/// Runs the program with reports enabled. Returns whether Strait carried something and the program succeeded.
pub fn run(program: &[OsString], json: bool) -> Result<bool, Error> {
    let dir = Scratch::new()?;
    let file = dir.0.join("report.json");
    let (name, args) = program.split_first().ok_or_else(|| Error::Failed("no program".into()))?;
    let mut command = Command::new(name);
    // Launchers hand their environment on to processes of this host.
    command.args(args).envs(REPORT.map(|name| (name, &file)));
    let status = ended(&mut command).map_err(|e| format!("{} cannot be run: {e}", name.to_string_lossy()))?;
    let lines = std::fs::read_to_string(&file).unwrap_or_default();
    let processes: Vec<Value> = lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let summary = Summary::of(&processes, status, &reasons(program));
    if json {
        let text = serde_json::to_string_pretty(&summary).map_err(|e| e.to_string())?;
        crate::out::print(&(text + "\n"))?;
    } else {
        say!("{}", summary.render().trim_end());
    }
    Ok(summary.used && status.success())
}

/// Runs a program. Signals that would end this process go to the program alone, so that there is an answer
/// when it has ended.
fn ended(command: &mut Command) -> std::io::Result<ExitStatus> {
    let signals = Signals::take()?;
    // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(Signals::give_back) };
    let mut child = command.spawn()?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        match signals.next(None) {
            Some(Came { signal, from_terminal: false }) if PASSED.contains(&signal) => {
                // SAFETY: the number is that of a child that was not waited for.
                unsafe { libc::kill(child.id() as libc::pid_t, signal) };
            }
            // A terminal's signals, and those of the end of a child, need no help.
            _ => {}
        }
    }
}

/// A directory that goes when this does.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Scratch, Error> {
        let stamp = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let name = format!("strait-doctor-{}-{}", std::process::id(), stamp.as_nanos());
        let dir = std::env::temp_dir().join(name);
        let mut builder = std::fs::DirBuilder::new();
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(Scratch(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Counts {
    messages: u64,
    bytes: u64,
}

impl Counts {
    fn of(value: &Value) -> Counts {
        let number = |name| value[name].as_u64().unwrap_or(0);
        Counts { messages: number("messages"), bytes: number("bytes") }
    }

    fn add(&mut self, other: Counts) {
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Way {
    way: String,
    out: Counts,
    #[serde(rename = "in")]
    came: Counts,
}

/// What the processes of a job have done.
#[derive(Debug, Serialize)]
struct Summary {
    /// Strait carried something.
    used: bool,
    /// Processes that loaded the provider, and those of them that opened an endpoint.
    loaded: usize,
    processes: usize,
    out: Counts,
    #[serde(rename = "in")]
    came: Counts,
    /// The most peers that a process had.
    peers: u64,
    ways: Vec<Way>,
    paths: Vec<String>,
    fell_back: Vec<String>,
    /// Why nothing was carried, perhaps.
    reasons: Vec<String>,
    /// How the program ended.
    status: String,
}

impl Summary {
    fn of(reports: &[Value], status: ExitStatus, reasons: &[String]) -> Summary {
        let (mut out, mut came) = (Counts::default(), Counts::default());
        let (mut paths, mut fell_back): (Vec<String>, Vec<String>) = Default::default();
        let mut ways: Vec<Way> = Vec::new();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for report in reports {
            out.add(Counts::of(&report["out"]));
            came.add(Counts::of(&report["in"]));
            for way in list(&report["ways"]) {
                let name = text(&way["way"]);
                let at = ways.iter().position(|w| w.way == name).unwrap_or_else(|| {
                    ways.push(Way { way: name, out: Counts::default(), came: Counts::default() });
                    ways.len() - 1
                });
                ways[at].out.add(Counts::of(&way["out"]));
                ways[at].came.add(Counts::of(&way["in"]));
            }
            paths.extend(list(&report["paths"]).iter().map(|p| text(&p["path"])));
            fell_back.extend(list(&report["fell_back"]).iter().map(text));
        }
        paths.sort();
        paths.dedup();
        fell_back.sort();
        fell_back.dedup();
        let used = out.messages + came.messages > 0;
        let opened = |r: &&Value| r["endpoints"].as_u64().unwrap_or(0) > 0;
        let processes = reports.iter().filter(opened).count();
        let mut why: Vec<String> = Vec::new();
        if !used && !reports.is_empty() && processes == 0 {
            why.push("libfabric loaded the provider, and the program chose another one: for MPI libraries, see `strait doctor`".into());
        } else if !used && processes > 0 {
            why.push("endpoints were opened, and nothing was sent through them: one process alone, or the program has shared memory of its own (MPICH: MPIR_CVAR_NOLOCAL=1)".into());
        } else if !used {
            why.push("no process loaded the provider".into());
            why.extend(reasons.iter().cloned());
        }
        let peers = reports.iter().filter_map(|r| r["peers"].as_u64()).max().unwrap_or(0);
        let (loaded, status) = (reports.len(), status.to_string());
        Summary { used, loaded, processes, out, came, peers, ways, paths, fell_back, reasons: why, status }
    }

    fn render(&self) -> String {
        let bytes = link::usage::bytes_text;
        let mut text = match self.used {
            true => format!(
                "strait doctor: yes, strait carried {} messages, {}, in {} processes with up to {} peers each\n",
                self.out.messages,
                bytes(self.out.bytes),
                self.processes,
                self.peers
            ),
            false => String::from("strait doctor: no, strait carried nothing\n"),
        };
        for way in &self.ways {
            text += &format!(
                "  {:<16} {:>12} messages {:>12} sent, {:>12} messages {:>12} came\n",
                way.way,
                way.out.messages,
                bytes(way.out.bytes),
                way.came.messages,
                bytes(way.came.bytes)
            );
        }
        for (what, lines) in [("path", &self.paths), ("fell back", &self.fell_back), ("why", &self.reasons)] {
            for line in lines {
                text += &format!("  {what}: {line}\n");
            }
        }
        if self.used && self.fell_back.is_empty() {
            text += "  nothing fell back\n";
        }
        format!("{text}  the program ended with {}\n", self.status)
    }
}

/// Why no process may have loaded the provider: what is certainly wrong, and only where nothing is, what may
/// be.
fn reasons(program: &[OsString]) -> Vec<String> {
    let words: Vec<String> = program.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    let var = |name| setting(&words, name);
    let mut lines = Vec::new();
    let filter = var("FI_PROVIDER");
    if crate::info::filtered_out(&filter) {
        lines.push(format!("FI_PROVIDER={filter} keeps it out: FI_PROVIDER=strait"));
    }
    let path = var("FI_PROVIDER_PATH");
    if !path.is_empty() && !path.split([':', '@', '+']).any(|d| Path::new(d).join(crate::info::FILE).exists())
    {
        let place = crate::info::nearby_provider()
            .map(|dir| format!(": FI_PROVIDER_PATH={}", quoted(&dir.to_string_lossy())))
            .unwrap_or_default();
        lines.push(format!("FI_PROVIDER_PATH={path} has no {}{place}", crate::info::FILE));
    }
    if var("UCX_TLS").split(',').any(|tl| tl == crate::info::NAME) {
        lines.push(
            "UCX_TLS names strait, and no UCX loaded it: eval \"$(strait ucx-env)\" names its place, too"
                .into(),
        );
    }
    if !lines.is_empty() {
        return lines;
    }
    if filter.is_empty() {
        lines.push(
            "FI_PROVIDER is not set: the program may have chosen another provider; FI_PROVIDER=strait".into(),
        );
    } else if path.is_empty() {
        lines.push(
            "its libfabric may look in another directory for providers: `strait doctor` says for each one which"
                .into(),
        );
    }
    if is_launcher(&words) && !uses_libfabric(&words) {
        lines.push(
            "an MPI library that was not told uses shared memory of its own. Open MPI: --mca pml cm --mca mtl ofi; MPICH: \
             MPIR_CVAR_CH4_NETMOD=ofi MPIR_CVAR_NOLOCAL=1; Intel MPI: I_MPI_FABRICS=ofi I_MPI_OFI_PROVIDER=strait"
                .into(),
        );
    }
    lines.push("a program that is killed, or calls _exit(2), reports nothing".into());
    lines
}

/// The value that a program is started with: `NAME=VALUE` among its words, as of env and `mpirun -x`, `NAME
/// VALUE` behind `-env` and `-genv` of mpiexec, or the environment's.
fn setting(words: &[String], name: &str) -> String {
    let assigned = words.iter().rev().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    let behind = || {
        let mut triples = words.windows(3).rev();
        triples.find(|w| matches!(w[0].as_str(), "-env" | "-genv") && w[1] == name).map(|w| w[2].as_str())
    };
    assigned.or_else(behind).map_or_else(|| std::env::var(name).unwrap_or_default(), str::to_owned)
}

fn is_launcher(words: &[String]) -> bool {
    words.iter().any(|word| {
        let name = word.rsplit('/').next().unwrap_or_default();
        matches!(name, "mpirun" | "mpiexec" | "mpiexec.hydra" | "prterun" | "srun" | "orterun")
    })
}

/// Whether the command line has an MPI library use libfabric.
fn uses_libfabric(words: &[String]) -> bool {
    let var = |name| setting(words, name);
    let component = |kind: &str| {
        let mut triples = words.windows(3);
        let listed =
            triples.any(|w| w[0].ends_with("-mca") && w[1] == kind && w[2].split(',').any(|c| c == "ofi"));
        listed || setting(words, &format!("OMPI_MCA_{kind}")).split(',').any(|c| c == "ofi")
    };
    component("mtl")
        || component("btl")
        || var("MPIR_CVAR_CH4_NETMOD") == "ofi"
        || !var("I_MPI_OFI_PROVIDER").is_empty()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    fn report(messages: u64, fell_back: &[&str]) -> Value {
        let counts = serde_json::json!({"messages": messages, "bytes": 8 * messages});
        serde_json::json!({
            "endpoints": 1, "peers": 1, "out": counts, "in": counts,
            "ways": [{"way": "ring", "out": counts, "in": counts}],
            "paths": [{"peers": 1, "path": "shm"}], "fell_back": fell_back
        })
    }

    #[test]
    fn processes_are_added_up() {
        let all = [report(10, &[]), report(5, &["x"])];
        let summary = Summary::of(&all, ExitStatus::from_raw(0), &[]);
        assert!(summary.used && summary.processes == 2 && summary.peers == 1);
        assert_eq!(summary.out, Counts { messages: 15, bytes: 120 });
        assert_eq!((summary.ways.len(), summary.paths.len()), (1, 1));
        let text = summary.render();
        assert!(
            text.starts_with("strait doctor: yes, strait carried 15 messages, 120 B, in 2 processes"),
            "{text}"
        );
        assert!(text.contains("fell back: x") && !text.contains("nothing fell back"), "{text}");
    }

    #[test]
    fn what_carried_nothing_is_told_apart() {
        let ended = ExitStatus::from_raw(0);
        let text = |reports: &[Value]| {
            Summary::of(reports, ended, &["FI_PROVIDER=shm keeps it out".into()]).render()
        };
        let none = text(&[]);
        assert!(none.contains("no, strait carried nothing"), "{none}");
        assert!(none.contains("no process loaded") && none.contains("FI_PROVIDER=shm"), "{none}");
        let mut loaded = report(0, &[]);
        assert!(text(&[loaded.clone()]).contains("nothing was sent"));
        loaded["endpoints"] = 0.into();
        let passed_over = text(&[loaded]);
        assert!(
            passed_over.contains("chose another") && !passed_over.contains("FI_PROVIDER=shm"),
            "{passed_over}"
        );
    }

    #[test]
    fn a_launcher_has_reasons_of_its_own() {
        let reasons_of = |name: &str| {
            reasons(&words(&format!("{UNSET} FI_PROVIDER= MPIR_CVAR_CH4_NETMOD= {name}"))).join("\n")
        };
        assert!(reasons_of("/usr/bin/mpirun").contains("--mca mtl ofi"));
        assert!(!reasons_of("./a.out").contains("--mca"));
    }

    /// The environment of the tests does not count.
    const UNSET: &str = "env FI_PROVIDER_PATH= UCX_TLS= OMPI_MCA_mtl= OMPI_MCA_btl= I_MPI_OFI_PROVIDER=";

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn settings_on_the_command_line_count() {
        let of = |line: &str| reasons(&words(&format!("{UNSET} {line}"))).join("\n");
        let told = of("mpirun -n 2 -x FI_PROVIDER=strait --mca pml cm --mca mtl ofi ./a.out");
        assert!(!told.contains("FI_PROVIDER is not set") && !told.contains("was not told"), "{told}");
        assert!(told.contains("another directory") && told.contains("_exit"), "{told}");
        let not_told = of("mpirun -n 2 -x FI_PROVIDER=strait -x MPIR_CVAR_CH4_NETMOD= ./a.out");
        assert!(not_told.contains("was not told"), "{not_told}");
        assert!(of("mpiexec -genv FI_PROVIDER shm ./a.out").contains("FI_PROVIDER=shm keeps it out"));
        assert!(
            of("mpiexec -genv FI_PROVIDER strait -env MPIR_CVAR_CH4_NETMOD ofi ./a.out").contains("_exit")
        );
    }

    #[test]
    fn what_is_certain_comes_without_guesses() {
        let lines =
            reasons(&words("mpirun -x FI_PROVIDER= -x UCX_TLS= -x FI_PROVIDER_PATH=/nonexistent ./a.out"));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].starts_with("FI_PROVIDER_PATH=/nonexistent has no libstrait-fi.so"), "{lines:?}");
    }
}

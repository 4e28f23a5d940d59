//! `strait doctor -- PROGRAM`: runs a program, and says which path its bytes took, why it failed, or what it
//! waits for.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::cause::Cause;
use super::causes::Job;
use super::far::Far;
use super::finding::Finding;
use super::journal::{self, Process};
use super::running::{self, Running};
use super::scratch::Scratch;
use super::summary::Summary;
use super::waits::Hang;
use super::{guess, host, variables};
use crate::fabric::Error;
use crate::out::say;
use crate::run::signals::{Came, PASSED, Signals};

/// What asks the provider, and the UCX transport, for a report.
const REPORT: [&str; 2] = ["FI_STRAIT_REPORT", "STRAIT_UCX_REPORT"];
/// Between two looks at the processes of the job: at first, and later on.
const PERIODS: [Duration; 2] = [Duration::from_millis(200), Duration::from_secs(2)];
/// How long processes have to say what is pending, and to end.
const ANSWER: Duration = Duration::from_secs(4);
const END: Duration = Duration::from_secs(5);
/// How long a command on another host may take.
const FAR: Duration = Duration::from_secs(30);

/// How a program is run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    pub program: Vec<OsString>,
    pub json: bool,
    /// After so long it is asked what it waits for, and ended.
    pub timeout: Option<Duration>,
    pub hosts: Vec<String>,
    pub rsh: String,
}

/// Runs the program with reports enabled. Returns whether Strait carried something and the program succeeded.
pub fn run(options: &Options) -> Result<bool, Error> {
    let dir = Scratch::new()?;
    let file = dir.0.join("report.json");
    let far = Far::new(&options.hosts, &options.rsh, FAR);
    let program = handed_on(&options.program, !far.is_empty());
    let (name, args) = program.split_first().ok_or_else(|| Error::Failed("no program".into()))?;
    let mut command = Command::new(name);
    // Launchers hand their environment on to processes of this host.
    command.args(args).envs(REPORT.map(|name| (name, &file))).env(link::journal::VARIABLE, &dir.0);
    let mut watch = Watch { dir: &dir.0, far: &far, libraries: BTreeSet::new(), hang: None };
    let status = watch
        .ended(&mut command, options.timeout)
        .map_err(|e| format!("{} cannot be run: {e}", name.to_string_lossy()))?;
    let brought = far.bring(&dir.0);
    let dirs: Vec<&Path> = std::iter::once(&*dir.0).chain(brought.iter().map(|path| &**path)).collect();
    let (processes, reports) = (processes_in(&dirs), reports_in(&dirs));
    let mut of_hosts = far.missing(&brought);
    of_hosts.extend(far.clear(&dir.0, &brought));
    let used = Summary::carries(&reports);
    let failed = !used || !status.success();
    let (waits, mut causes) = watch.hang.take().unwrap_or_default();
    let hung = options.timeout.is_some() && !waits.is_empty();
    let job = Job {
        processes: &processes,
        status,
        used,
        hung,
        guesses: match guess::crashed(&options.program, status) {
            Some(cause) => vec![cause],
            None => guess::reasons(&options.program),
        },
        libraries: watch.libraries,
        findings: if failed { findings() } else { Vec::new() },
    };
    causes.extend(job.causes());
    causes.extend(of_hosts);
    let summary = Summary::of(&reports, &processes, status, causes, waits);
    if options.json {
        let text = serde_json::to_string_pretty(&summary).map_err(|e| e.to_string())?;
        crate::out::print(&(text + "\n"))?;
    } else {
        say!("{}", summary.render().trim_end());
    }
    Ok(summary.used && status.success())
}

/// What the doctor finds of this host and of its settings.
fn findings() -> Vec<Finding> {
    let mut all = variables::findings();
    all.extend(host::host());
    all
}

/// Open MPI's mpirun hands no variable on to other hosts that is not named.
fn handed_on(program: &[OsString], hosts: bool) -> Vec<OsString> {
    let mut words = program.to_vec();
    let is_open_mpi = || {
        let output = Command::new(&program[0]).arg("--version").output();
        output.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("Open"))
    };
    if hosts && guess::is_launcher(&guess::words(program)[..1.min(program.len())]) && is_open_mpi() {
        let named = REPORT.iter().chain([&link::journal::VARIABLE]);
        words.splice(1..1, named.flat_map(|name| ["-x".into(), OsString::from(name)]));
    }
    words
}

/// The journals in these directories: one that several have, as on a shared file system, once.
fn processes_in(dirs: &[&Path]) -> Vec<Process> {
    let mut all: Vec<Process> = Vec::new();
    for process in dirs.iter().flat_map(|dir| journal::read(dir)) {
        let is_same = |other: &Process| {
            (&other.host, other.pid, &other.program) == (&process.host, process.pid, &process.program)
        };
        if !all.iter().any(is_same) {
            all.push(process);
        }
    }
    all.sort_by(|a, b| (a.rank, &a.host, a.pid).cmp(&(b.rank, &b.host, b.pid)));
    all
}

fn reports_in(dirs: &[&Path]) -> Vec<Value> {
    let lines = dirs.iter().map(|dir| std::fs::read_to_string(dir.join("report.json")).unwrap_or_default());
    let lines: BTreeSet<String> =
        lines.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// What is seen of a job while it runs.
struct Watch<'a> {
    dir: &'a Path,
    far: &'a Far,
    libraries: BTreeSet<String>,
    /// What it waited for, and why.
    hang: Option<(Vec<super::waits::Waits>, Vec<Cause>)>,
}

impl Watch<'_> {
    /// Runs a program. Signals that would end this process go to the program alone, so that there is an
    /// answer when it has ended.
    fn ended(&mut self, command: &mut Command, timeout: Option<Duration>) -> std::io::Result<ExitStatus> {
        let signals = Signals::take()?;
        // SAFETY: between fork and exec the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(Signals::give_back) };
        let mut child = command.spawn()?;
        let begin = Instant::now();
        let mut seen = begin;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            let passed = begin.elapsed();
            if timeout.is_some_and(|timeout| passed >= timeout) {
                self.ask();
                return end(&mut child);
            }
            let period = PERIODS[usize::from(passed > END)];
            if seen.elapsed() >= period {
                running::libraries(&running::of(self.dir), &mut self.libraries);
                seen = Instant::now();
            }
            let left = timeout.map_or(period, |timeout| period.min(timeout.saturating_sub(passed)));
            match signals.next(Some(left)) {
                Some(Came { signal, from_terminal: false }) if PASSED.contains(&signal) => {
                    // SAFETY: the number is that of a child that was not waited for.
                    unsafe { libc::kill(child.id() as libc::pid_t, signal) };
                }
                // A terminal's signals, and those of the end of a child, need no help.
                _ => {}
            }
        }
    }

    /// Has the processes say what is pending.
    fn ask(&mut self) {
        let _ = std::fs::write(self.dir.join(link::journal::ASK), "");
        self.far.ask(self.dir);
        let begin = Instant::now();
        let mut processes = Vec::new();
        while begin.elapsed() < ANSWER {
            std::thread::sleep(PERIODS[0]);
            processes = journal::read(self.dir);
            if self.far.is_empty() && processes.iter().all(|p| p.asked.is_some() || p.exited) {
                break;
            }
        }
        let brought = self.far.bring(self.dir);
        if !brought.is_empty() {
            let dirs: Vec<&Path> =
                std::iter::once(self.dir).chain(brought.iter().map(|path| &**path)).collect();
            processes = processes_in(&dirs);
        }
        let running = running::of(self.dir);
        let hang = Hang::new(&processes, &running);
        let (mut waits, mut causes) = (hang.waits(), hang.causes());
        if processes.is_empty() {
            causes.push(without_strait(&running));
        }
        waits.sort_by_key(|waits| waits.rank);
        self.hang = Some((waits, causes));
    }
}

/// A program that hangs in which nothing of Strait is.
fn without_strait(running: &[Running]) -> Cause {
    let shown = running.iter().take(8).map(|r| format!("{} (pid {}): {}", r.name, r.pid, r.state));
    let text = format!("no process that hangs has loaded Strait: {}", shown.collect::<Vec<_>>().join("; "));
    Cause::new(text, "gdb -p PID, thread apply all bt, of one of them")
}

/// Ends a program that hangs: it is asked to, and then killed.
fn end(child: &mut Child) -> std::io::Result<ExitStatus> {
    // SAFETY: the number is that of a child that was not waited for.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
    let begin = Instant::now();
    while begin.elapsed() < END {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()
}

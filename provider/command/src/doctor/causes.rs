//! Why a job failed, or did not use Strait: what its processes wrote down, the first failure first, and what
//! the host lacks. Each cause comes with one thing to do.

use std::collections::BTreeSet;
use std::process::ExitStatus;

use super::cause::Cause;
use super::finding::{Finding, Level};
use super::journal::{Failed, Process};

/// Lines of the log that are shown where no rule knows what they mean.
const LINES: usize = 4;

/// A job that has ended.
#[derive(Debug)]
pub struct Job<'a> {
    pub processes: &'a [Process],
    pub status: ExitStatus,
    /// Strait carried something.
    pub used: bool,
    /// The doctor has ended it, and knows more of it.
    pub hung: bool,
    /// Why no process may have loaded Strait.
    pub guesses: Vec<Cause>,
    /// Which libraries the job's processes had.
    pub libraries: BTreeSet<String>,
    /// What the doctor finds of this host.
    pub findings: Vec<Finding>,
}

/// In an error that stands for several: a line of the log says which of them it is.
const SEE_LOG: &str = "the log says which";

/// What is said of a process that has written no end.
const KILLED: &str = "ended without exit(3), by _exit(2), execve(2) or a signal such as SIGKILL";
const FIND_KILLER: &str = "see the launcher's last lines, and dmesg for the kernel's out-of-memory killer";

/// What to do where a text has these words, the first that fits.
const RULES: [(&[&str], &str); 15] = [
    (
        &["another job key", "another key", "wrong key"],
        "give all processes one FI_STRAIT_JOB_KEY, or none of them any",
    ),
    (&["too many open files", "descriptors", "nofile"], ""),
    (&["file table overflow"], "raise it for the host: sysctl fs.file-max"),
    (
        &["be opened until tcp", "nothing else leads to other hosts"],
        "FI_STRAIT_LINKS=shm,tcp, or unset it: the provider that it names below is not there",
    ),
    (&["no space left"], "free the file system that the text names, or set TMPDIR to another one"),
    (
        &[
            "shm cannot be opened: operation not permitted",
            "shm cannot be opened: function not implemented",
            "shm cannot be opened: permission denied",
        ],
        "have the seccomp profile of the container or the job allow memfd_create(2), fcntl(2) and socket(2) of AF_UNIX",
    ),
    (
        &["another version", "other version", "of the protocol"],
        "install one version of Strait on all hosts, and name it in one FI_PROVIDER_PATH",
    ),
    (
        &["another user", "users look alike", "user namespace"],
        "run all processes of the job as one user, in one user namespace (container)",
    ),
    (
        &["network namespace", "another host"],
        "FI_STRAIT_LINKS=shm,tcp, or unset it; of containers on one host: --network=host for all",
    ),
    (
        &["process does not answer"],
        "see what that process does: `strait doctor --timeout 60 -- PROGRAM`, or gdb -p; it answers in its calls of libfabric",
    ),
    (
        &[
            "no answer",
            "nothing answers",
            "nothing has answered",
            "timed out",
            "does not answer",
            "unreachable",
            "no route",
        ],
        "open the ports of the job's processes to each other in the firewall, or name the network that leads there (FI_STRAIT_NIC); \
         `strait info --peer ADDRESS` says which path is taken",
    ),
    (&["cannot assign requested address"], "name an address of this host, or let Strait choose"),
    (
        &["nothing listens", "connection refused"],
        "see why that peer had ended or was not there yet: its own cause is in this list if it has one",
    ),
    (
        &["peer process ended", "connection reset"],
        "see why that process ended: its own cause is in this list if it has one",
    ),
    (
        &["cannot allocate memory", "memory limit", "rlimit_as"],
        "raise the limit that the text names, or set a shorter FI_STRAIT_RING_SIZE",
    ),
];

/// What to do about a text.
pub fn todo(text: &str) -> Option<String> {
    let low = text.to_ascii_lowercase();
    let (words, todo) = RULES.iter().find(|(words, _)| words.iter().any(|word| low.contains(word)))?;
    Some(if words.contains(&"descriptors") { super::host::raise_files() } else { (*todo).into() })
}

impl Job<'_> {
    /// All causes, the first failure first; none where the job succeeded and used Strait.
    pub fn causes(&self) -> Vec<Cause> {
        let mut all = Vec::new();
        if self.used && self.status.success() {
            return all;
        }
        all.extend(self.faults());
        all.extend(self.failures());
        all.extend(self.versions());
        let has_failed = !all.is_empty();
        if !has_failed {
            all.extend(self.without_failure());
        }
        let guessed = if !self.used && self.processes.is_empty() { self.not_loaded() } else { Vec::new() };
        // Of a program that failed what is known to be wrong comes first.
        let rest = match self.status.success() {
            true => [guessed, self.lacks()],
            false => [self.lacks(), guessed],
        };
        all.extend(rest.into_iter().flatten());
        let mut seen = BTreeSet::new();
        all.retain(|cause| seen.insert(cause.text.clone()));
        all
    }

    fn faults(&self) -> Vec<Cause> {
        let faulty = self.processes.iter().filter(|p| !p.exited);
        faulty.filter_map(|p| Some(p.fault.as_ref()?.cause(&p.name(), p.pid))).collect()
    }

    /// The calls and the lines of the log that say why, by time. Of what has the same cure the first stands
    /// for all; but a call that gives a line as its reason stands before that: a process may be interrupted
    /// between its line and the end of its call.
    fn failures(&self) -> Vec<Cause> {
        let mut found: Vec<(u64, Option<&str>, Cause)> = Vec::new();
        for process in self.processes {
            let name = process.name();
            // A program asks fi_getinfo for what it can do without.
            for failed in process.failed.iter().filter(|f| f.call != "fi_getinfo") {
                found.push((failed.time, None, self.with_peer(of_call(&name, failed))));
            }
            for line in process.lines.iter().filter(|line| line.warns) {
                if let Some(todo) = todo(&line.text) {
                    let cause = Cause { text: format!("{name}: {}", line.text), todo };
                    found.push((line.time, Some(&line.text), self.with_peer(cause)));
                }
            }
        }
        found.sort_by_key(|(time, ..)| *time);
        let is_general = |cause: &Cause| cause.text.contains(SEE_LOG);
        if found.iter().any(|(.., cause)| !is_general(cause)) {
            found.retain(|(.., cause)| !is_general(cause));
        }
        let mut all: Vec<(Option<&str>, Cause)> = Vec::new();
        for (_, line, cause) in found {
            match all.iter().position(|(_, earlier)| earlier.todo == cause.todo) {
                Some(at) if line.is_none() && all[at].0.is_some_and(|said| cause.text.contains(said)) => {
                    all[at] = (line, cause);
                }
                None if all.len() < 2 * LINES => all.push((line, cause)),
                _ => {}
            }
        }
        all.into_iter().map(|(_, cause)| cause).collect()
    }

    /// Names the process of the peer that a cause is about; where that was killed, that is what to look at.
    fn with_peer(&self, mut cause: Cause) -> Cause {
        let Some((_, rest)) = cause.text.split_once(" -> ") else { return cause };
        let address: &str = rest.split(": ").next().unwrap_or_default();
        let Some(peer) = self.processes.iter().find(|p| p.endpoints.iter().any(|one| one == address)) else {
            return cause;
        };
        let was_killed =
            !peer.exited && peer.fault.is_none() && peer.failed.iter().all(|f| f.call == "fi_getinfo");
        let ended = cause.text.contains("peer process ended");
        let address = address.to_owned();
        cause.text += &format!("; {address} is {}", peer.name());
        if was_killed && ended {
            cause.text += &format!(", which {KILLED}");
            cause.todo = FIND_KILLER.into();
        }
        cause
    }

    fn versions(&self) -> Vec<Cause> {
        let loaded = self.processes.iter().flat_map(|p| p.loaded.iter().map(move |l| (l, p)));
        let mut versions: Vec<(&str, &str, String)> = Vec::new();
        for (l, p) in loaded.filter(|(l, _)| l.library == "libfabric") {
            if !versions.iter().any(|(version, ..)| *version == l.version) {
                versions.push((&l.version, &l.path, p.name()));
            }
        }
        if versions.len() < 2 {
            return Vec::new();
        }
        let listed: Vec<String> =
            versions.iter().map(|(version, path, name)| format!("{version} ({path}) in {name}")).collect();
        let text = format!("the processes have different versions of Strait: {}", listed.join("; "));
        vec![Cause::new(text, "install one version on all hosts, and name it in one FI_PROVIDER_PATH")]
    }

    /// Strait was loaded, and no call of it is known to have failed.
    fn without_failure(&self) -> Vec<Cause> {
        if self.processes.is_empty() || self.hung {
            return Vec::new();
        }
        let mut all = Vec::new();
        let opened = self.processes.iter().filter(|p| !p.endpoints.is_empty()).count();
        let ucx = self.processes.iter().any(|p| p.loaded.iter().any(|l| l.library == "UCX"));
        if opened > 0 {
            all.extend(
                self.processes
                    .iter()
                    .filter(|p| !p.exited)
                    .map(|p| Cause::new(format!("{} {KILLED}{}", p.name(), p.uncounted()), FIND_KILLER)),
            );
        }
        if self.used {
            let lines =
                self.processes.iter().flat_map(|p| p.lines.iter().filter(|l| l.warns).map(move |l| (p, l)));
            all.extend(lines.take(LINES).map(|(p, l)| {
                Cause::new(
                    format!("{} said: {}", p.name(), l.text),
                    "FI_LOG_LEVEL=info has what came before it",
                )
            }));
        } else if self.processes.iter().any(|p| !p.uncounted().is_empty()) {
            return all;
        } else if opened > 0 {
            all.push(Cause::new(
                "endpoints were opened, and nothing was sent through them: one process alone, or the program has shared memory of its \
                 own",
                "MPICH: MPIR_CVAR_NOLOCAL=1; Open MPI: --mca pml cm --mca mtl ofi; `strait doctor` has the line of each MPI here",
            ));
        } else if ucx {
            all.push(Cause::new(
                "UCX loaded the transport, and sent nothing by it: it chose others, or the MPI library did not choose UCX",
                "Open MPI: --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any; UCX_TLS has to name strait if it is set",
            ));
        } else {
            all.push(self.passed_over());
        }
        all
    }

    /// No endpoint was opened.
    fn passed_over(&self) -> Cause {
        if let Some(certain) = self.guesses.iter().find(|cause| cause.text.contains("keeps it out")) {
            return certain.clone();
        }
        let mut asked = self.processes.iter().flat_map(|p| p.failed.iter().map(move |f| (p, f)));
        let refused = asked.rfind(|(_, f)| f.call == "fi_getinfo" && !f.why.is_empty());
        let todo = "`strait doctor` has the line of each MPI library here by which it takes Strait";
        let asked = refused.map_or_else(String::new, |(p, f)| {
            format!("; {} asked for what Strait does not offer: {}", p.name(), f.why)
        });
        let text = "libfabric loaded the provider, and no endpoint of it was opened: the program chose another provider, or opened no endpoint";
        Cause::new(format!("{text}{asked}"), todo)
    }

    /// No process said that it has loaded Strait.
    fn not_loaded(&self) -> Vec<Cause> {
        let mut text =
            String::from("no process loaded the provider, as far as the processes of this host say");
        if !self.libraries.is_empty() {
            let listed: Vec<&str> = self.libraries.iter().map(String::as_str).collect();
            text += &format!("; they had {}", listed.join(", "));
        }
        let mut all = self.guesses.clone();
        let todo = match self.guesses.first() {
            Some(_) => "see the next lines",
            None if self.status.success() => {
                "`strait doctor` has the line of each MPI library here by which it takes Strait"
            }
            None => "see what the program said before it ended: it came to nothing of Strait",
        };
        all.insert(0, Cause::new(text, todo));
        all
    }

    /// What this host lacks.
    fn lacks(&self) -> Vec<Cause> {
        let problems = self.findings.iter().filter(|f| f.level == Level::Problem);
        let causes = problems.map(|f| {
            let so = f.means.as_ref().map(|means| format!(", so that {means}")).unwrap_or_default();
            let todo = f.cure.clone().unwrap_or_else(|| "`strait doctor` has more".into());
            Cause::new(format!("on this host: {}{so}", f.text), todo)
        });
        causes.collect()
    }
}

fn of_call(name: &str, failed: &Failed) -> Cause {
    let Failed { call, error, why, .. } = failed;
    let because = if why.is_empty() { String::new() } else { format!(" ({why})") };
    let text = format!("{name}: {call} failed: {error}{because}");
    let todo = self::todo(why).or_else(|| self::todo(error)).unwrap_or_else(|| {
        format!("FI_LOG_LEVEL=info has what came before it; `man {}` has what the error means", manual(call))
    });
    Cause { text, todo }
}

/// The manual page of a call.
fn manual(call: &str) -> &str {
    match call.starts_with("fi_") && call != "fi_enable" {
        true => call,
        false if call == "fi_enable" => "fi_endpoint",
        false => "fi_errno",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::doctor::journal::{Line, Loaded};

    fn process(rank: u64) -> Process {
        let version = Loaded { library: "libfabric".into(), version: "1".into(), path: "/x".into() };
        Process {
            host: "h".into(),
            pid: 10 + rank,
            rank: Some(rank),
            loaded: vec![version],
            exited: true,
            ..Process::default()
        }
    }

    fn causes(processes: &[Process], status: i32, used: bool) -> Vec<Cause> {
        let guesses = vec![Cause::new("FI_PROVIDER is not set", "FI_PROVIDER=strait")];
        let status = ExitStatus::from_raw(status);
        let job = Job {
            processes,
            status,
            used,
            hung: false,
            guesses,
            libraries: BTreeSet::new(),
            findings: vec![],
        };
        let all = job.causes();
        assert!(all.iter().all(|cause| !cause.text.is_empty() && !cause.todo.is_empty()), "{all:?}");
        all
    }

    fn failed(time: u64, call: &str, why: &str) -> Failed {
        Failed { time, call: call.into(), error: "no".into(), why: why.into() }
    }

    #[test]
    fn the_first_failed_call_comes_first_with_its_rank_and_reason() {
        let (mut a, mut b) = (process(0), process(1));
        a.failed.push(failed(20, "fi_av_open", "another reason"));
        b.failed.push(failed(
            10,
            "fi_endpoint",
            "shm cannot be opened: Operation not permitted (os error 1)",
        ));
        b.failed.push(failed(5, "fi_getinfo", "a layered provider asks"));
        let all = causes(&[a, b], 256, false);
        assert!(
            all[0].text.starts_with("rank 1 (pid 11 on h): fi_endpoint failed: no (shm cannot be opened"),
            "{all:?}"
        );
        assert!(all[0].todo.contains("memfd_create(2)"), "{all:?}");
        assert!(all[1].text.contains("fi_av_open failed") && all.len() == 2, "{all:?}");
    }

    #[test]
    fn known_reasons_have_one_thing_to_do() {
        for (text, todo) in [
            ("a -> b: no connection: it has another job key: give", "one FI_STRAIT_JOB_KEY"),
            ("tcp cannot be opened: Too many open files (os error 24)", "nofile"),
            (
                "ofi cannot be opened: nosuch: not there; no endpoint can be opened until tcp is added",
                "FI_STRAIT_LINKS=shm,tcp",
            ),
            ("a -> b: no connection: no answer in 30 s", "firewall"),
            ("nothing answers at the peer's address: a firewall drops what is sent there", "open the ports"),
            (
                "a -> b: no connection by tcp: nothing has answered for 5 s: a firewall drops",
                "open the ports",
            ),
            (
                "a -> b: no connection by tcp: the host has taken the connection and the process does not answer",
                "gdb -p",
            ),
            ("a -> b: no connection: it has version 4.2 of the protocol, and this is 3.1", "one version"),
            ("the peer speaks another version", "one version"),
            ("a user namespace without a mapping: users look alike", "one user namespace"),
        ] {
            let mut p = process(0);
            p.lines.push(Line { time: 1, warns: true, text: text.into() });
            let all = causes(&[p], 256, false);
            assert!(
                all[0].todo.contains(todo) || todo == "nofile" && all[0].todo.contains("ulimit -n"),
                "{text}: {all:?}"
            );
        }
    }

    #[test]
    fn an_error_that_stands_for_several_gives_way_to_the_line_that_says_which() {
        let general =
            "a -> b: the peer belongs to another user or job, or runs another version: the log says which";
        let mut p = process(0);
        p.failed.push(failed(1, "a completion", general));
        assert!(causes(std::slice::from_ref(&p), 256, false)[0].text.contains("says which"));
        let text = "a -> b: no connection: it has another job key: give".into();
        p.lines.push(Line { time: 2, warns: true, text });
        let all = causes(&[p], 256, false);
        assert!(all.len() == 1 && all[0].todo.contains("one FI_STRAIT_JOB_KEY"), "{all:?}");
    }

    #[test]
    fn a_call_stands_before_the_line_that_it_gives_as_its_reason_and_before_no_other() {
        let ended = "ofi cannot be opened: nosuch: not there; no endpoint can be opened until tcp is added";
        let (named, unnamed) =
            ("A -> B: no connection: no answer in 30 s", "nothing answers: the log has it");
        for (line, call, first) in [(ended, ended, "fi_endpoint failed"), (named, unnamed, "A -> B")] {
            let (mut a, mut b) = (process(0), process(1));
            a.lines.push(Line { time: 1, warns: true, text: line.into() });
            b.failed.push(failed(2, "fi_endpoint", call));
            let all = causes(&[a, b], 256, false);
            assert!(all.len() == 1 && all[0].text.contains(first), "{all:?}");
        }
    }

    #[test]
    fn what_the_host_lacks_comes_before_guesses_of_a_program_that_failed() {
        let finding = Finding::new("host", Level::Problem, "/tmp cannot be written").means("no MPI");
        let guesses = vec![Cause::new("FI_PROVIDER is not set", "FI_PROVIDER=strait")];
        let of = |status| Job {
            processes: &[],
            status: ExitStatus::from_raw(status),
            used: false,
            hung: false,
            guesses: guesses.clone(),
            libraries: BTreeSet::new(),
            findings: vec![finding.clone()],
        };
        let (failed, succeeded) = (of(256).causes(), of(0).causes());
        assert!(failed[0].text.contains("/tmp") && failed.len() == 3, "{failed:?}");
        assert!(succeeded[2].text.contains("/tmp") && succeeded.len() == 3, "{succeeded:?}");
    }

    #[test]
    fn what_is_not_known_is_not_said() {
        let none = causes(&[], 0, false);
        assert!(
            none[0].text.contains("no process loaded") && none[1].text.contains("FI_PROVIDER is not set"),
            "{none:?}"
        );
        // Loaded, though it died: nothing says that it was not.
        let died = Process { exited: false, endpoints: vec!["a".into()], ..process(0) };
        let text = format!("{:?}", causes(std::slice::from_ref(&died), 9, false));
        assert!(text.contains("without exit(3)") && !text.contains("no process loaded"), "{text}");
        assert!(text.contains("execve(2)") && text.contains("what it carried is not known"), "{text}");
        assert!(!text.contains("nothing was sent"), "{text}");
        let mut peer = process(1);
        peer.failed.push(failed(1, "a completion", "b -> a: the peer process ended"));
        let text = causes(&[died, peer], 9, false)[0].text.clone();
        assert!(text.contains("a is rank 0 (pid 10 on h), which ended without exit(3)"), "{text}");
        let passed_over = format!("{:?}", causes(&[process(0)], 0, false));
        assert!(
            passed_over.contains("no endpoint of it was opened")
                && !passed_over.contains("FI_PROVIDER is not set"),
            "{passed_over}"
        );
        let mut opened = process(0);
        opened.endpoints.push("a".into());
        assert!(format!("{:?}", causes(&[opened], 0, false)).contains("nothing was sent"));
        assert_eq!(causes(&[process(0)], 0, true), []);
    }

    #[test]
    fn two_versions_are_named() {
        let (a, mut b) = (process(0), process(1));
        b.loaded[0].version = "2".into();
        let all = causes(&[a, b], 256, true);
        assert!(
            all[0].text.contains("1 (/x) in rank 0 (pid 10 on h); 2 (/x) in rank 1 (pid 11 on h)"),
            "{all:?}"
        );
    }
}

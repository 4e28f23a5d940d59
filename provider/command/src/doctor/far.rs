//! The journals of a job's processes on other hosts: requested, brought here, and removed there, by ssh(1) or
//! what is given in its place. A host whose command does not end in time is asked nothing more, and after a
//! signal none is, but for the removal.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::cause::Cause;
use crate::out::quoted;
use crate::rsh;
use crate::run::signals::{PASSED, Signals};

/// Between two polls of a command on a host.
const PERIOD: Duration = Duration::from_millis(20);
/// What the removal may take behind a signal.
const CLEAR: Duration = Duration::from_secs(5);

/// The other hosts of a job.
#[derive(Debug)]
pub struct Far {
    hosts: Vec<String>,
    /// A command that runs another one on a host: its words, in front of the host's name.
    rsh: Vec<String>,
    /// What a command on a host may take.
    limit: Duration,
    /// The numbers of hosts on which one took longer.
    silent: Mutex<BTreeSet<usize>>,
    /// `None`: they cannot be read.
    signals: OnceLock<Option<Signals>>,
    /// A signal came.
    is_interrupted: AtomicBool,
}

impl Far {
    pub fn new(hosts: &[String], rsh: &str, limit: Duration) -> Far {
        let (hosts, rsh) = (hosts.to_vec(), rsh::words(rsh));
        let (silent, signals, is_interrupted) = Default::default();
        Far { hosts, rsh, limit, silent, signals, is_interrupted }
    }

    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty()
    }

    /// Has the processes on all hosts say what is pending.
    pub fn ask(&self, dir: &Path) {
        let file = quoted(&dir.join(link::journal::ASK).to_string_lossy());
        self.run_on_each(&format!("touch {file}"));
    }

    /// Brings the directories of all hosts into this one, and returns them.
    pub fn bring(&self, dir: &Path) -> Vec<PathBuf> {
        let line = format!("tar -C {} --exclude 'far-*' -cf - .", quoted(&dir.to_string_lossy()));
        let bring = |n| {
            let to = dir.join(format!("far-{n}"));
            self.bring_one(n, &line, &to).map(|()| to)
        };
        self.on_each(bring).into_iter().flatten().collect()
    }

    /// The hosts of which nothing was brought, and why.
    pub fn missing(&self, brought: &[PathBuf]) -> Vec<Cause> {
        let silent = self.silent.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_missing = |n: usize| !brought.iter().any(|path| path.ends_with(format!("far-{n}")));
        let cause = |(n, host): (usize, &String)| {
            let rsh = self.rsh.join(" ");
            let why = match silent.contains(&n) {
                _ if self.is_interrupted() => ": a signal ended the wait for them".into(),
                true => format!(": `{rsh} {host}` had not ended after {} s", self.limit.as_secs_f64()),
                false => String::new(),
            };
            Cause::new(
                format!("nothing is known of the processes on {host}{why}"),
                format!(
                    "see that `{rsh} {host} true` ends at once and asks for nothing, and that the launcher hands {} on",
                    link::journal::VARIABLE
                ),
            )
        };
        self.hosts.iter().enumerate().filter(|(n, _)| is_missing(*n)).map(cause).collect()
    }

    /// Removes the directories, also when a signal has come; the next one ends that. Returns where one may be
    /// left: not on a host whose commands failed at once.
    pub fn clear(&self, dir: &Path, brought: &[PathBuf]) -> Vec<Cause> {
        let interrupted = self.is_interrupted.swap(false, Ordering::Relaxed);
        let limit = if interrupted { CLEAR.min(self.limit) } else { self.limit };
        let line = format!("rm -rf {}", quoted(&dir.to_string_lossy()));
        let removed = self.on_each(|n| self.run_on(n, &line, limit)?.success().then_some(()));
        let silent = self.silent.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let is_left = |n: usize| {
            let was_there = brought.iter().any(|path| path.ends_with(format!("far-{n}")));
            removed[n].is_none() && (was_there || interrupted || silent.contains(&n))
        };
        let cause = |(_, host): (usize, &String)| {
            let rsh = self.rsh.join(" ");
            Cause::new(format!("{} may be left on {host}", dir.display()), format!("{rsh} {host} \"{line}\""))
        };
        self.hosts.iter().enumerate().filter(|(n, _)| is_left(*n)).map(cause).collect()
    }

    fn run_on_each(&self, line: &str) {
        self.on_each(|n| self.run_on(n, line, self.limit));
    }

    fn run_on(&self, n: usize, line: &str, limit: Duration) -> Option<ExitStatus> {
        let mut child = self.on(n, line)?.stdout(Stdio::null()).spawn().ok()?;
        self.ended(n, &mut child, Instant::now() + limit)
    }

    /// Calls it with the number of each host, for all hosts at once.
    fn on_each<T: Send>(&self, of: impl Fn(usize) -> Option<T> + Sync) -> Vec<Option<T>> {
        // In this thread, so that those of the hosts block signals, too.
        let _ = self.signals.get_or_init(|| Signals::take().ok());
        let of = &of;
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..self.hosts.len()).map(|n| scope.spawn(move || of(n))).collect();
            all.into_iter().map(|one| one.join().ok().flatten()).collect()
        })
    }

    /// A line for a shell on this host; `None` for one that is silent.
    fn on(&self, n: usize, line: &str) -> Option<Command> {
        if self.is_interrupted() || self.silent.lock().is_ok_and(|silent| silent.contains(&n)) {
            return None;
        }
        let mut command = rsh::on(&self.rsh, &self.hosts[n], line)?;
        command.stdin(Stdio::null());
        // SAFETY: between fork and exec the closure makes system calls alone, and allocates nothing.
        unsafe { command.pre_exec(Signals::give_back) };
        Some(command)
    }

    fn is_interrupted(&self) -> bool {
        self.is_interrupted.load(Ordering::Relaxed)
    }

    /// Waits a moment, or for a signal.
    fn pause(&self) {
        let Some(Some(signals)) = self.signals.get() else { return std::thread::sleep(PERIOD) };
        if signals.next(Some(PERIOD)).is_some_and(|came| PASSED.contains(&came.signal)) {
            self.is_interrupted.store(true, Ordering::Relaxed);
        }
    }

    fn bring_one(&self, n: usize, line: &str, to: &Path) -> Option<()> {
        let _ = std::fs::create_dir(to);
        let mut from = self.on(n, line)?.stdout(Stdio::piped()).spawn().ok()?;
        let unpack = Command::new("tar")
            .args(["--no-same-owner", "-xf", "-", "-C"])
            .arg(to)
            .stdin(from.stdout.take()?)
            .stderr(Stdio::null())
            .spawn();
        let until = Instant::now() + self.limit;
        let sent = self.ended(n, &mut from, until);
        // What the command started may have the pipe still.
        let unpacked = self.ended(n, &mut unpack.ok()?, until);
        (sent?.success() && unpacked?.success()).then_some(())
    }

    /// Waits until a command has ended, or kills it.
    fn ended(&self, n: usize, child: &mut Child, until: Instant) -> Option<ExitStatus> {
        loop {
            match child.try_wait() {
                Ok(None) if Instant::now() < until && !self.is_interrupted() => self.pause(),
                Ok(None) => break,
                ended => return ended.ok().flatten(),
            }
        }
        let _ = child.kill();
        let _ = child.wait();
        if !self.is_interrupted() {
            self.silent.lock().ok()?.insert(n);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// A directory with what stands in for ssh(1): on the host `hangs` it does not end, and neither does a
    /// child that keeps its output open; each call is a line of the file `calls`.
    fn place(name: &str) -> (PathBuf, String) {
        let dir = std::env::temp_dir().join(format!("strait-far-{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let (rsh, calls) = (dir.join("rsh"), dir.join("calls"));
        let script = format!(
            "#!/bin/sh\necho \"$1\" >>{}\ncase $1 in\nhangs) sleep 3 2>/dev/null & exec sleep 300 2>/dev/null ;;\nfails) exit 1 ;;\n*) exec sh -c \"$2\" ;;\nesac\n",
            calls.display()
        );
        std::fs::write(&rsh, script).unwrap();
        std::fs::set_permissions(&rsh, std::fs::Permissions::from_mode(0o700)).unwrap();
        let rsh = rsh.to_string_lossy().into_owned();
        (dir, rsh)
    }

    #[test]
    fn a_host_whose_command_hangs_is_called_once_and_is_named() {
        let (place, rsh) = place("hangs");
        let dir = place.join("journals");
        std::fs::create_dir(&dir).unwrap();
        std::fs::write(dir.join("one.journal"), "x").unwrap();
        let hosts = ["hangs", "here", "fails"].map(str::to_owned);
        let far = Far::new(&hosts, &rsh, Duration::from_millis(1500));
        let begin = Instant::now();
        far.ask(&dir);
        let brought = far.bring(&dir);
        let took = begin.elapsed();
        let asked = dir.join(link::journal::ASK).exists();
        let read = std::fs::read_to_string(dir.join("far-1/one.journal"));
        let missing: Vec<String> = far.missing(&brought).into_iter().map(|cause| cause.text).collect();
        let left: Vec<String> = far.clear(&dir, &brought).iter().map(Cause::to_string).collect();
        let calls = std::fs::read_to_string(place.join("calls")).unwrap();
        let cleared = !dir.exists();
        std::fs::remove_dir_all(&place).unwrap();

        assert!(asked && cleared);
        assert_eq!((brought, read.unwrap().as_str()), (vec![dir.join("far-1")], "x"));
        let line =
            format!("{} may be left on hangs: {rsh} hangs \"rm -rf {}\"", dir.display(), dir.display());
        assert_eq!(left, [line]);
        assert_eq!(missing.len(), 2, "{missing:?}");
        assert!(missing[0].contains("on hangs: ") && missing[0].contains("had not ended after 1.5 s"));
        assert!(missing[1].ends_with("on fails"), "{missing:?}");
        let count = |host: &str| calls.lines().filter(|line| *line == host).count();
        assert_eq!((count("hangs"), count("here"), count("fails")), (1, 3, 3), "{calls}");
        assert!(took < Duration::from_secs(60), "{took:?}");
    }

    #[test]
    fn a_transfer_that_hangs_has_a_limit() {
        let (place, rsh) = place("transfer");
        let far = Far::new(&["hangs".to_owned()], &rsh, Duration::from_millis(300));
        let begin = Instant::now();
        assert_eq!(far.bring(&place), Vec::<PathBuf>::new());
        assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
        std::fs::remove_dir_all(&place).unwrap();
    }
}

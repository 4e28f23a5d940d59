//! Names of processes, in two words of shared memory, by which others find out that a process has ended.
//!
//! A pid alone does not do: it is given to another process some time later. So the name has bits of the time
//! at which the process began, and the pid namespace that it has its pid in is beside it.

use std::os::unix::fs::MetadataExt as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bits of a name that are of the time at which its process began: a pid has 22 at most.
const START: u32 = 10;

/// A process, as others know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// Its pid and when it began; never 0.
    pub process: u32,
    /// The pid namespace; 0 if /proc does not show it.
    pub namespace: u32,
}

impl Name {
    fn new(pid: u32, start: u64, namespace: u32) -> Name {
        // Never 0, since no pid is.
        let start = (start.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - START)) as u32;
        Name { process: pid << START | start, namespace }
    }

    /// This process's.
    pub fn own() -> Name {
        /// The two words of the name; 0: it is not known yet.
        static OWN: AtomicU64 = AtomicU64::new(0);
        let pid = std::process::id();
        let (kept, new) = (OWN.load(Relaxed), Name::new(pid, 0, 0));
        let own = Name { process: (kept >> 32) as u32, namespace: kept as u32 };
        // A forked child is another process.
        if own.process >> START == new.process >> START {
            return own;
        }
        let text = read_stat(pid);
        // What is not known now for that may be known later. Where /proc is not there, nothing is.
        let is_scarce = text
            .as_ref()
            .is_err_and(|e| matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)));
        let start = text.ok().and_then(|text| parse(&text)).map(|s| s.start);
        let space = std::fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino() as u32);
        // /proc may be that of another namespace.
        let own = std::fs::read_link("/proc/self").is_ok_and(|to| to.as_os_str() == pid.to_string().as_str());
        let space = if own && start.is_some() { space } else { 0 };
        let name = Name::new(pid, start.unwrap_or(0), space);
        if !is_scarce {
            OWN.store(u64::from(name.process) << 32 | u64::from(name.namespace), Relaxed);
        }
        name
    }

    /// That of a process of this pid namespace, if /proc shows it.
    pub fn of(pid: u32) -> Option<Name> {
        Some(Name::new(pid, stat(pid)?.start, Name::own().namespace))
    }

    /// Its pid, if it is one of this process's namespace.
    pub fn pid(self) -> Option<u32> {
        let pid = self.process >> START;
        (self.namespace != 0 && self.namespace == Name::own().namespace && pid != 0).then_some(pid)
    }

    /// Whether the process has ended for certain.
    pub fn has_ended(self) -> bool {
        let Some(pid) = self.pid() else { return false };
        // SAFETY: kill(2) with signal 0 sends none.
        let gone = unsafe { libc::kill(pid as libc::pid_t, 0) } != 0
            && std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
        // Killed and not waited for yet; or another one has its pid.
        gone || stat(pid).is_some_and(|s| s.ended || Name::new(pid, s.start, self.namespace) != self)
    }
}

/// The nearest process among those that started this one, and that these were started by, for which
/// `is_one(name)` is true: a name of at most 15 characters, as /proc has it.
pub fn ancestor(is_one: impl Fn(&str) -> bool) -> Option<Name> {
    let mut pid = std::process::id();
    loop {
        let of = stat(pid)?;
        if pid != std::process::id() && is_one(&of.name) {
            return Name::of(pid);
        }
        pid = of.parent;
    }
}

struct Stat {
    name: String,
    parent: u32,
    start: u64,
    ended: bool,
}

fn read_stat(pid: u32) -> std::io::Result<String> {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
}

/// What /proc/PID/stat says.
fn stat(pid: u32) -> Option<Stat> {
    parse(&read_stat(pid).ok()?)
}

fn parse(text: &str) -> Option<Stat> {
    // The name, in parentheses, may hold anything.
    let (before, behind) = text.rsplit_once(')')?;
    let (name, words) = (before.split_once('(')?.1.to_owned(), behind.split_whitespace().collect::<Vec<_>>());
    // A process whose first thread has ended may have others.
    let ended = matches!(*words.first()?, "Z" | "X") && matches!(*words.get(17)?, "0" | "1");
    let (parent, start) = (words.get(1)?.parse().ok()?, words.get(19)?.parse().ok()?);
    Some(Stat { name, parent, start, ended })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn an_ancestor_is_found_by_its_name() {
        let parent = std::os::unix::process::parent_id();
        let name = stat(parent).unwrap().name;
        assert_eq!(ancestor(|n| n == name), Name::of(parent));
        assert_eq!(ancestor(|n| n == "no such process"), None);
    }

    #[test]
    fn a_process_has_ended_once_it_is_killed_or_its_pid_is_another_ones() {
        let own = Name::own();
        assert_ne!(own.namespace, 0, "no /proc");
        assert_eq!((Name::of(std::process::id()), own.has_ended()), (Some(own), false));
        // One of the same pid, and of another time.
        assert!(Name { process: own.process ^ 1, ..own }.has_ended());
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let name = Name::of(child.id()).unwrap();
        assert_eq!((name.pid(), name.has_ended()), (Some(child.id()), false));
        child.kill().unwrap();
        // Not waited for yet.
        while !name.has_ended() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(name.has_ended());
        // In another namespace its pid says nothing.
        for namespace in [0, name.namespace ^ 1] {
            let other = Name { namespace, ..name };
            assert_eq!((other.pid(), other.has_ended()), (None, false));
        }
    }

    #[test]
    fn a_name_that_too_few_descriptors_hide_is_found_later() {
        // The descriptors of this process are other tests', too.
        const ALONE: &str = "STRAIT_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "process::tests::a_name_that_too_few_descriptors_hide_is_found_later";
            let mut alone = Command::new(std::env::current_exe().unwrap());
            let out = alone.args(["--exact", name]).env(ALONE, "1").output().unwrap();
            let said = String::from_utf8_lossy(&out.stdout);
            assert!(out.status.success() && said.contains("1 passed"), "{out:?}");
            return;
        }
        let mut all = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: valid for a write.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut all) }, 0);
        let set = |limit: libc::rlimit| {
            // SAFETY: valid for a read.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        };
        let none = libc::rlimit { rlim_cur: 0, ..all };
        set(none);
        let hidden = Name::own();
        set(all);
        assert_eq!((hidden.namespace, hidden.pid()), (0, None));
        assert_eq!(Name::own().pid(), Some(std::process::id()));
        set(none);
        assert_eq!(Name::own().pid(), Some(std::process::id()), "it is kept");
        set(all);
        // SAFETY: the child calls what needs no lock that another thread of this process has, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let found = Name::own();
            set(none);
            let keeps = found.pid() == Some(std::process::id()) && Name::own() == found;
            // SAFETY: no condition.
            unsafe { libc::_exit(i32::from(!keeps)) };
        }
        let mut status = 1;
        // SAFETY: valid for a write.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "a child keeps its own");
    }
}

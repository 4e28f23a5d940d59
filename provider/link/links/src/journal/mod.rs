//! What `strait doctor` reads of the processes of a job: that a library was loaded, which calls and which
//! peers failed, what is pending, and the signal that ended the process.
//!
//! Each process has a file of its own, with a line of JSON for each event, in the directory that
//! [`VARIABLE`] names; without that variable there is none of this, and a call here costs one load.

mod crash;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::usage::json_string;

/// The variable that names the directory.
pub const VARIABLE: &str = "STRAIT_JOURNAL";
/// The file in the directory that asks for what is pending.
pub const ASK: &str = "ask";
/// How the name of a process's file ends.
pub const ENDING: &str = ".journal";
/// Lines of the log and failed calls that a process writes.
const MOST: u32 = 100;
/// For how long a line of the log may be the reason of a call that fails.
const FRESH: Duration = Duration::from_secs(2);

/// The file of this process.
#[derive(Debug)]
struct Journal {
    file: File,
    dir: PathBuf,
    /// A process that this one forks writes nothing.
    pid: u32,
    lines: AtomicU32,
}

static JOURNAL: OnceLock<Option<Journal>> = OnceLock::new();

thread_local! {
    /// What this thread has said last in the log, and when.
    static SAID: RefCell<Option<(Instant, String)>> = const { RefCell::new(None) };
}

/// Opens the journal if [`VARIABLE`] asks for one, and writes down that this library was loaded. Once in a
/// process: of several libraries of Strait each writes that it was loaded. The caller is never unloaded, or a
/// program.
pub fn open(library: &str, version: &str) {
    let opened = JOURNAL.get_or_init(|| {
        let dir = std::env::var_os(VARIABLE).filter(|dir| !dir.is_empty())?;
        // SAFETY: asks for a number that the kernel gave to the process.
        if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
            return None;
        }
        let journal = Journal::open(Path::new(&dir)).ok()?;
        crash::write_to(journal.file.as_raw_fd());
        // SAFETY: the function is there when the process exits, since its object is never unloaded.
        unsafe { libc::atexit(at_exit) };
        Some(journal)
    });
    if opened.is_none() {
        return;
    }
    let program = std::env::current_exe().map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
    note(
        "loaded",
        &[
            ("library", json_string(library)),
            ("version", json_string(version)),
            ("path", json_string(&crash::own_object())),
            ("program", json_string(&program)),
            ("rank", rank().map_or("null".into(), |rank| rank.to_string())),
            ("host", json_string(&ipc::host::name())),
        ],
    );
}

/// Whether there is a journal.
#[inline]
pub fn is_open() -> bool {
    matches!(JOURNAL.get(), Some(Some(_)))
}

/// Whether a doctor asks for what is pending.
pub fn is_asked() -> bool {
    of_this_process().is_some_and(|journal| journal.dir.join(ASK).exists())
}

/// Writes an event: its members are in JSON.
pub fn note(event: &str, members: &[(&str, String)]) {
    if let Some(journal) = of_this_process() {
        journal.write(event, members);
    }
}

/// Something is written to the log: the journal has it, too, unless there are many such lines.
pub fn note_line(level: log::Level, of: &str, text: &str) {
    let Some(journal) = of_this_process() else { return };
    // At a thread's end it has no such place any more.
    let _ = SAID.try_with(|said| said.replace(Some((Instant::now(), text.to_owned()))));
    if journal.has_room() {
        let members =
            [("level", json_string(level.as_str())), ("of", json_string(of)), ("text", json_string(text))];
        journal.write("log", &members);
    }
}

/// A call has failed, with this error: the reason is what the thread has written to the log in it.
#[cold]
pub fn note_failed(call: &str, error: &str) {
    let Some(journal) = of_this_process().filter(|journal| journal.has_room()) else { return };
    let said = SAID.try_with(RefCell::take).ok().flatten();
    let why = said.filter(|(when, _)| when.elapsed() < FRESH).map(|(_, text)| text).unwrap_or_default();
    let members = [("call", json_string(call)), ("error", json_string(error)), ("why", json_string(&why))];
    journal.write("failed", &members);
}

fn of_this_process() -> Option<&'static Journal> {
    JOURNAL.get()?.as_ref().filter(|journal| journal.pid == std::process::id())
}

impl Journal {
    fn open(dir: &Path) -> io::Result<Journal> {
        // On another host than the doctor's it may not be there.
        let _ = DirBuilder::new().mode(0o700).create(dir);
        let is = std::fs::symlink_metadata(dir)?;
        // SAFETY: asks for a number of the process.
        if !is.is_dir() || is.uid() != unsafe { libc::geteuid() } {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let pid = std::process::id();
        let unique = crate::random()?;
        let name = format!("{}.{pid}.{unique:x}{ENDING}", ipc::host::name().replace('/', "_"));
        let mut options = OpenOptions::new();
        let file = options.append(true).create_new(true).mode(0o600).open(dir.join(name))?;
        Ok(Journal { file, dir: dir.to_owned(), pid, lines: AtomicU32::new(0) })
    }

    fn has_room(&self) -> bool {
        self.lines.fetch_add(1, Relaxed) < MOST
    }

    fn write(&self, event: &str, members: &[(&str, String)]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let (pid, millis) = (self.pid, now.as_millis());
        let mut line = format!("{{\"event\":{},\"pid\":{pid},\"time\":{millis}", json_string(event));
        for (name, value) in members {
            let _ = write!(line, ",\"{name}\":{value}");
        }
        line.push_str("}\n");
        // All of it at once. Where there is no room nothing is to be done about it.
        let _ = (&self.file).write_all(line.as_bytes());
    }
}

extern "C" fn at_exit() {
    // Nothing is left to be done about a panic.
    let _ = std::panic::catch_unwind(|| note("exit", &[]));
}

/// The number that the launcher gave this process.
fn rank() -> Option<u64> {
    const NAMES: [&str; 7] =
        ["STRAIT_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MPI_RANK", "RANK", "SLURM_PROCID"];
    NAMES.iter().find_map(|name| std::env::var(name).ok()?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("strait-journal-{name}-{}", std::process::id()))
    }

    fn lines_of(dir: &Path) -> Vec<String> {
        let files = std::fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
        let text: String = files.map(|path| std::fs::read_to_string(path).unwrap()).collect();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_process_makes_the_directory_and_a_file_that_only_its_user_reads() {
        let dir = scratch("own");
        let journal = Journal::open(&dir).unwrap();
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        assert_eq!(journal.file.metadata().unwrap().mode() & 0o777, 0o600);
        journal.write("loaded", &[("library", json_string("a \"b\"")), ("rank", "3".into())]);
        let lines = lines_of(&dir);
        assert_eq!(lines.len(), 1);
        let head = format!("{{\"event\":\"loaded\",\"pid\":{},\"time\":", journal.pid);
        assert!(lines[0].starts_with(&head), "{lines:?}");
        assert!(lines[0].ends_with(",\"library\":\"a \\\"b\\\"\",\"rank\":3}"), "{lines:?}");
        std::fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_link_in_the_place_of_the_directory_is_not_followed() {
        let (dir, link) = (scratch("place"), scratch("link"));
        std::fs::create_dir(&dir).unwrap();
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        assert!(Journal::open(&link).is_err());
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
        std::fs::remove_file(&link).unwrap();
        std::fs::remove_dir(&dir).unwrap();
        assert!(Journal::open(Path::new("/nonexistent/journal")).is_err());
    }

    #[test]
    fn lines_are_bounded() {
        let dir = scratch("bounded");
        let journal = Journal::open(&dir).unwrap();
        let room = (0..10 * MOST).filter(|_| journal.has_room()).count();
        assert_eq!(room, MOST as usize);
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

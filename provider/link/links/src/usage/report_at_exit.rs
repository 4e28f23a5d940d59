//! What is said of the sums when the process ends.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::Usage;
use super::file::open_to_append;
use super::text::json_string;

/// Where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Standard error, for people.
    Stderr,
    /// A line of JSON in a file.
    File(PathBuf),
}

/// A text that says neither yes nor no, and names no file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unclear;

impl Place {
    /// What a variable asks for. A program with rights that its caller lacks (set-user-ID) writes no file for
    /// it.
    pub fn parse(text: &str) -> Result<Option<Place>, Unclear> {
        // SAFETY: asks for a number that the kernel gave to the process.
        let is_trusted = unsafe { libc::getauxval(libc::AT_SECURE) } == 0;
        Place::parse_in(text, is_trusted)
    }

    fn parse_in(text: &str, is_trusted: bool) -> Result<Option<Place>, Unclear> {
        let trimmed = text.trim();
        match trimmed.to_ascii_lowercase().as_str() {
            "" | "0" | "n" | "no" | "off" | "false" => return Ok(None),
            "1" | "y" | "yes" | "on" | "true" => return Ok(Some(Place::Stderr)),
            _ => {}
        }
        if !trimmed.contains(['/', '.']) {
            return Err(Unclear);
        }
        if !is_trusted {
            return Ok(None);
        }
        let name = trimmed.replace("%p", &std::process::id().to_string());
        // The process may go elsewhere until its end.
        let path = std::path::absolute(&name).unwrap_or_else(|_| name.into());
        Ok(Some(Place::File(path)))
    }
}

/// A report that is to be made.
#[derive(Debug)]
struct Pending {
    usage: Arc<Usage>,
    place: Place,
    /// A process that this one forks has the same memory, and nothing to say.
    pid: u32,
    library: &'static str,
}

static PENDING: OnceLock<Pending> = OnceLock::new();

impl Usage {
    /// Sums that are reported when the process exits, as those of a library: `None` if that cannot be. There
    /// is one report in a process, for what requested it first. The caller is never unloaded, or a
    /// program.
    pub fn reported_at_exit(place: Place, library: &'static str) -> Option<Arc<Usage>> {
        let mut is_new = false;
        let pending = PENDING.get_or_init(|| {
            is_new = true;
            Pending { usage: Usage::new(), place, pid: std::process::id(), library }
        });
        // SAFETY: the function is there when the process exits, since its object is never unloaded.
        let refused = is_new && unsafe { libc::atexit(at_exit) } != 0;
        (!refused).then(|| pending.usage.clone())
    }
}

extern "C" fn at_exit() {
    // Nothing is left to be done about a panic.
    let _ = std::panic::catch_unwind(|| {
        if let Some(pending) = PENDING.get().filter(|p| p.pid == std::process::id()) {
            pending.report();
        }
    });
}

impl Pending {
    fn report(&self) {
        let program = std::env::current_exe().map(|p| p.to_string_lossy().into_owned()).unwrap_or_default();
        let name = program.rsplit('/').next().unwrap_or_default();
        let process = format!("{name} (pid {}, {})", self.pid, self.library);
        let Some(report) = self.usage.report() else {
            return to_stderr(&format!("strait: {process}: no report, since a thread is still counting\n"));
        };
        match &self.place {
            Place::Stderr => to_stderr(&report.to_text(&process)),
            Place::File(path) => {
                let head = [
                    ("strait", json_string(env!("CARGO_PKG_VERSION"))),
                    ("door", json_string(self.library)),
                    ("pid", self.pid.to_string()),
                    ("program", json_string(&program)),
                ];
                if let Err(error) = append(path, &report.to_json(&head)) {
                    to_stderr(&format!("strait: {process}: no report in {}: {error}\n", path.display()));
                }
            }
        }
    }
}

/// All of it at once, so that lines of several processes do not mix.
fn to_stderr(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// All of it at once: several processes may have the same file.
fn append(path: &Path, line: &str) -> std::io::Result<()> {
    open_to_append(path)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for() {
        for text in ["", "0", " no", "OFF"] {
            assert_eq!(Place::parse(text), Ok(None), "{text}");
        }
        for text in ["1", "yes", "On "] {
            assert_eq!(Place::parse(text), Ok(Some(Place::Stderr)), "{text}");
        }
        let named = format!("/tmp/a.{}.json", std::process::id());
        assert_eq!(Place::parse("/tmp/a.%p.json"), Ok(Some(Place::File(named.into()))));
        let Ok(Some(Place::File(path))) = Place::parse("here.json") else { panic!() };
        assert!(path.is_absolute() && path.ends_with("here.json"), "{path:?}");
        assert_eq!(Place::parse("maybe"), Err(Unclear));
        assert_eq!(Place::parse_in("/etc/passwd", false), Ok(None));
        assert_eq!(Place::parse_in("1", false), Ok(Some(Place::Stderr)));
    }

    #[test]
    fn lines_are_added_to_a_file() {
        let path = std::env::temp_dir().join(format!("strait-report-{}", std::process::id()));
        append(&path, "a\n").unwrap();
        append(&path, "b\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\nb\n");
        std::fs::remove_file(&path).unwrap();
        assert!(append(Path::new("/nonexistent/x"), "a").is_err());
    }
}

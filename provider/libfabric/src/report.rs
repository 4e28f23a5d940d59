//! `FI_STRAIT_REPORT`: what is said at the end of the process of what its endpoints have carried.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use engine::link_api::Meter;
use libfabric_sys as fi;
use link::usage::{Usage, json_string};

/// Where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Standard error, for people.
    Stderr,
    /// A line of JSON in a file.
    File(PathBuf),
}

/// What was asked for; in `Err`, what is wrong with that.
fn place(text: &str, pid: u32) -> Result<Option<Place>, String> {
    let trimmed = text.trim();
    match trimmed.to_ascii_lowercase().as_str() {
        "" | "0" | "n" | "no" | "off" | "false" => return Ok(None),
        "1" | "y" | "yes" | "on" | "true" => return Ok(Some(Place::Stderr)),
        _ => {}
    }
    if !trimmed.contains(['/', '.']) {
        let (name, takes) = (settings::REPORT.variable(), settings::REPORT.kind);
        return Err(format!("{name}={text} is not understood, and nothing is reported; it takes {takes}"));
    }
    let name = trimmed.replace("%p", &pid.to_string());
    // The process may go elsewhere until its end.
    let path = std::path::absolute(&name).unwrap_or_else(|_| name.into());
    Ok(Some(Place::File(path)))
}

/// A report that is to be made.
#[derive(Debug)]
struct Report {
    usage: Arc<Usage>,
    place: Place,
    /// A process that this one forks has the same memory, and nothing to say.
    pid: u32,
}

static REPORT: OnceLock<Report> = OnceLock::new();

/// Declares FI_STRAIT_REPORT and reads it; where it asks for a report, one is made when the process exits.
///
/// # Safety
/// `provider` is the structure that fi_prov_ini is about to return, with its name set.
pub(crate) unsafe fn read(core: &fi::Core, provider: *mut fi::fi_provider) {
    let help = CString::new(settings::REPORT.description()).unwrap_or_default();
    // SAFETY: the caller's promise; the name is defined here alone.
    let Some(asked) = (unsafe { core.param_string(provider, c"report", &help) }) else { return };
    let pid = std::process::id();
    let place = match place(&asked.to_string_lossy(), pid) {
        Ok(Some(place)) => place,
        Ok(None) => return,
        Err(line) => return log::warn!("{line}"),
    };
    if REPORT.set(Report { usage: Usage::new(), place, pid }).is_ok() {
        // SAFETY: this library is never unloaded, so the function is there when the process exits.
        let refused = unsafe { libc::atexit(at_exit) } != 0;
        if refused {
            log::warn!("{}: nothing is reported: atexit(3) has no room", settings::REPORT.variable());
        }
    }
}

/// What counts for one endpoint more, where a report is asked for.
pub(crate) fn meter() -> Option<Box<dyn Meter>> {
    REPORT.get().map(|report| report.usage.meter())
}

extern "C" fn at_exit() {
    crate::ffi::guard_or((), || {
        if let Some(report) = REPORT.get().filter(|r| r.pid == std::process::id()) {
            report.write();
        }
    });
}

impl Report {
    fn write(&self) {
        let program = program();
        let who = format!("{} (pid {})", program.rsplit('/').next().unwrap_or_default(), self.pid);
        let Some(sums) = self.usage.report() else {
            return to_stderr(&format!("strait: {who}: no report, since a thread is still counting\n"));
        };
        match &self.place {
            Place::Stderr => to_stderr(&sums.to_text(&who)),
            Place::File(path) => {
                let head = [
                    ("strait", json_string(env!("CARGO_PKG_VERSION"))),
                    ("pid", self.pid.to_string()),
                    ("program", json_string(&program)),
                ];
                if let Err(error) = append(path, &sums.to_json(&head)) {
                    to_stderr(&format!("strait: {who}: no report in {}: {error}\n", path.display()));
                }
            }
        }
    }
}

/// The program that runs here.
fn program() -> String {
    std::env::current_exe().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
}

/// All of it at once, so that lines of several processes do not mix.
fn to_stderr(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Likewise: several processes may have the same file.
fn append(path: &Path, line: &str) -> std::io::Result<()> {
    OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for() {
        for text in ["", "0", " no", "OFF"] {
            assert_eq!(place(text, 1), Ok(None), "{text}");
        }
        for text in ["1", "yes", "On "] {
            assert_eq!(place(text, 1), Ok(Some(Place::Stderr)), "{text}");
        }
        assert_eq!(place("/tmp/a.%p.json", 17), Ok(Some(Place::File("/tmp/a.17.json".into()))));
        let Ok(Some(Place::File(path))) = place("here.json", 1) else { panic!() };
        assert!(path.is_absolute() && path.ends_with("here.json"), "{path:?}");
        let told = place("maybe", 1).unwrap_err();
        assert!(told.contains("FI_STRAIT_REPORT=maybe") && told.contains("%p"), "{told}");
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

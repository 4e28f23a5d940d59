//! What the processes of a job have written into their journals (`link::journal`). Any process of the user
//! may have written it.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::fault::{Fault, Object};

/// The most that is read of a process.
const MOST: u64 = 16 << 20;

/// A call, or a line of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Failed {
    pub time: u64,
    pub call: String,
    pub error: String,
    pub why: String,
}

/// A line of the log at this level.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    pub time: u64,
    pub warns: bool,
    pub text: String,
}

/// An operation that is not over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pending {
    pub kind: String,
    pub endpoint: Option<String>,
    pub peer: Option<String>,
    pub tag: Option<String>,
    pub ignore: Option<String>,
    pub bytes: u64,
    pub done: u64,
    pub millis: u64,
    pub state: String,
}

/// A library of Strait in a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Loaded {
    pub library: String,
    pub version: String,
    pub path: String,
}

/// A process that has loaded Strait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Process {
    pub host: String,
    pub pid: u64,
    pub rank: Option<u64>,
    pub program: String,
    pub loaded: Vec<Loaded>,
    pub endpoints: Vec<String>,
    pub failed: Vec<Failed>,
    pub lines: Vec<Line>,
    pub fault: Option<Fault>,
    pub exited: bool,
    pub pending: Vec<Pending>,
    /// It has said what is pending: how many domains there are, and in how many a thread stayed.
    pub asked: Option<(u64, u64)>,
}

impl Process {
    /// How a person knows it.
    pub fn name(&self) -> String {
        match self.rank {
            Some(rank) => format!("rank {rank} (pid {} on {})", self.pid, self.host),
            None => {
                let program = self.program.rsplit('/').next().unwrap_or_default();
                format!("{program} (pid {} on {})", self.pid, self.host)
            }
        }
    }

    /// What is said of a process that had endpoints and ended before its report; of others nothing.
    pub fn uncounted(&self) -> &'static str {
        match !self.exited && !self.endpoints.is_empty() {
            true => "; what it carried is not known",
            false => "",
        }
    }

    /// What a journal says; `None`: nothing.
    pub fn parse(text: &str) -> Option<Process> {
        let (mut of, mut maps) = (Process::default(), Vec::new());
        for line in text.lines() {
            match serde_json::from_str::<Value>(line) {
                Ok(value) if value.is_object() => of.take(&value),
                _ => maps.extend(Object::parse(line)),
            }
        }
        if let Some(fault) = &mut of.fault {
            fault.objects = maps;
        }
        (!of.loaded.is_empty()).then_some(of)
    }

    fn take(&mut self, value: &Value) {
        let text = |name: &str| shown(value[name].as_str().unwrap_or_default());
        let some = |name: &str| value[name].as_str().map(shown);
        let number = |name: &str| value[name].as_u64().unwrap_or(0);
        match value["event"].as_str().unwrap_or_default() {
            "loaded" => {
                (self.host, self.pid, self.program) = (text("host"), number("pid"), text("program"));
                self.rank = value["rank"].as_u64();
                let (library, version, path) = (text("library"), text("version"), text("path"));
                self.loaded.push(Loaded { library, version, path });
            }
            "endpoint" => self.endpoints.push(text("address")),
            "failed" => {
                let (call, error, why) = (text("call"), text("error"), text("why"));
                self.failed.push(Failed { time: number("time"), call, error, why });
            }
            "log" => {
                let warns = value["level"] != "INFO";
                self.lines.push(Line { time: number("time"), warns, text: text("text") });
            }
            "signal" => self.fault = Some(Fault::of(value)),
            "exit" => self.exited = true,
            "pending" => self.pending.push(Pending {
                kind: text("kind"),
                endpoint: some("endpoint"),
                peer: some("peer"),
                tag: some("tag"),
                ignore: some("ignore"),
                bytes: number("bytes"),
                done: number("done"),
                millis: number("millis"),
                state: text("state"),
            }),
            "asked" => self.asked = Some((number("domains"), number("busy"))),
            _ => {}
        }
    }
}

/// Without what a terminal would obey.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(2000).collect()
}

/// The processes that have a journal in this directory, by rank.
pub fn read(dir: &Path) -> Vec<Process> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let journals = entries.filter(|path| path.to_string_lossy().ends_with(link::journal::ENDING));
    let mut all: Vec<Process> = journals.filter_map(|path| Process::parse(&text_of(&path)?)).collect();
    all.sort_by(|a, b| (a.rank, &a.host, a.pid).cmp(&(b.rank, &b.host, b.pid)));
    all
}

/// Of a file alone: what else the directory has may never end, or never begin.
fn text_of(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    let file =
        OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW).open(path).ok()?;
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    std::io::Read::read_to_end(&mut std::io::Read::take(file, MOST), &mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_passed_over() {
        let dir = std::env::temp_dir().join(format!("strait-journals-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let at = |name: &str| dir.join(format!("{name}{}", link::journal::ENDING));
        let line = r#"{"event":"loaded","pid":7,"library":"libfabric","host":"h"}"#;
        std::fs::write(at("a"), line).unwrap();
        let fifo = std::ffi::CString::new(at("b").into_os_string().into_encoded_bytes()).unwrap();
        // SAFETY: a string that ends in NUL.
        assert_eq!(unsafe { libc::mkfifo(fifo.as_ptr(), 0o600) }, 0);
        std::os::unix::fs::symlink(at("a"), at("c")).unwrap();
        std::fs::create_dir(at("d")).unwrap();
        let found = read(&dir);
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(found.iter().map(|process| process.pid).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn a_journal_is_read_whatever_is_in_it() {
        let text = r#"{"event":"loaded","pid":7,"time":1,"library":"libfabric","version":"1","path":"/x/y","program":"/p/a","rank":3,"host":"h"}
{"event":"failed","pid":7,"time":5,"call":"fi_endpoint","error":"no","why":"be\u001bcause"}
{"event":"signal","pid":7,"signal":11,"thread":7,"address":"8","pc":"1005","stack":"2006 7 "}
1000-2000 r-xp 00000000 00:00 0 /p/a
2000-3000 r-xp 00001000 00:00 0 /x/y
{"event":"nothing known"}
not json at all {"
{"event":"asked","domains":2,"busy":1}"#;
        let p = Process::parse(text).unwrap();
        assert_eq!(p.name(), "rank 3 (pid 7 on h)");
        assert_eq!((p.failed[0].call.as_str(), p.failed[0].why.as_str()), ("fi_endpoint", "be?cause"));
        assert_eq!((p.asked, p.exited, p.fault.unwrap().objects.len()), (Some((2, 1)), false, 2));
        assert_eq!(Process::parse("{\"event\":\"exit\"}\n[1]\n"), None);
        assert_eq!(Process::parse(""), None);
    }
}

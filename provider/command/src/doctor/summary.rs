//! What the processes of a job have sent, and which way.

use std::process::ExitStatus;

use serde::Serialize;
use serde_json::Value;

use super::cause::Cause;
use super::journal::Process;
use super::waits::Waits;

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
pub struct Summary {
    /// Strait carried something.
    pub used: bool,
    /// It is known whether it did: no process with an endpoint ended before its report.
    known: bool,
    /// Those that did.
    unreported: Vec<String>,
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
    /// Why it failed, or nothing was carried: in a line each, and in parts.
    reasons: Vec<String>,
    causes: Vec<Cause>,
    /// What its processes waited for when it was ended.
    waits: Vec<Waits>,
    /// How the program ended.
    status: String,
}

impl Summary {
    /// Whether these reports have anything that was carried.
    pub fn carries(reports: &[Value]) -> bool {
        reports.iter().any(|r| Counts::of(&r["out"]).messages + Counts::of(&r["in"]).messages > 0)
    }

    pub fn of(
        reports: &[Value],
        journals: &[Process],
        status: ExitStatus,
        causes: Vec<Cause>,
        waits: Vec<Waits>,
    ) -> Summary {
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
        // A process that was killed has no report.
        let processes = reports.iter().filter(opened).count();
        let processes = processes.max(journals.iter().filter(|p| !p.endpoints.is_empty()).count());
        let reasons = causes.iter().map(ToString::to_string).collect();
        let unreported = journals.iter().filter(|p| !p.uncounted().is_empty()).map(Process::name);
        let unreported: Vec<String> = unreported.collect();
        let known = unreported.is_empty();
        let peers = reports.iter().filter_map(|r| r["peers"].as_u64()).max().unwrap_or(0);
        let (loaded, status) = (reports.len().max(journals.len()), status.to_string());
        Summary {
            used,
            known,
            unreported,
            loaded,
            processes,
            out,
            came,
            peers,
            ways,
            paths,
            fell_back,
            reasons,
            causes,
            waits,
            status,
        }
    }

    pub fn render(&self) -> String {
        let bytes = link::usage::bytes_text;
        let mut text = match self.used {
            true => format!(
                "strait doctor: yes, strait carried {}{} messages, {}, in {} processes with up to {} peers each\n",
                if self.known { "" } else { "at least " },
                self.out.messages,
                bytes(self.out.bytes),
                self.processes,
                self.peers
            ),
            false if !self.known => String::from(
                "strait doctor: what strait carried is not known: processes with endpoints ended before their report\n",
            ),
            false => String::from("strait doctor: no, strait carried nothing\n"),
        };
        for name in &self.unreported {
            text += &format!("  no report of {name}: what it carried is not counted\n");
        }
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
        for (what, lines) in [("path", &self.paths), ("fell back", &self.fell_back)] {
            for line in lines {
                text += &format!("  {what}: {line}\n");
            }
        }
        if self.used && self.fell_back.is_empty() {
            let of = if self.known { "" } else { " in the processes that reported" };
            text += &format!("  nothing fell back{of}\n");
        }
        for waits in &self.waits {
            let state = if waits.state.is_empty() { String::new() } else { format!(" ({})", waits.state) };
            text += &format!("  {}{state} waits for\n", waits.process);
            waits.lines.iter().for_each(|line| text += &format!("    {line}\n"));
        }
        for cause in &self.causes {
            text += &format!("  why: {}\n    to do: {}\n", cause.text, cause.todo.replace('\n', "\n      "));
        }
        format!("{text}  the program ended with {}\n", self.status)
    }
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
        let summary = Summary::of(&all, &[], ExitStatus::from_raw(0), vec![], vec![]);
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
    fn what_carried_nothing_has_its_causes() {
        let cause = Cause::new("FI_PROVIDER=shm keeps it out", "FI_PROVIDER=strait");
        let text = Summary::of(&[], &[], ExitStatus::from_raw(0), vec![cause], vec![]).render();
        assert!(text.contains("no, strait carried nothing"), "{text}");
        assert!(
            text.contains("  why: FI_PROVIDER=shm keeps it out\n    to do: FI_PROVIDER=strait\n"),
            "{text}"
        );
        let journal = Process { endpoints: vec!["a".into()], ..Process::default() };
        let summary = Summary::of(&[], &[journal], ExitStatus::from_raw(9), vec![], vec![]);
        assert_eq!((summary.loaded, summary.processes, summary.used), (1, 1, false));
        assert!(summary.render().contains("is not known"), "{}", summary.render());
    }

    #[test]
    fn what_a_process_without_a_report_carried_is_not_counted() {
        let ended = |rank, exited| Process {
            rank: Some(rank),
            host: "h".into(),
            exited,
            endpoints: vec!["a".into()],
            ..Process::default()
        };
        let journals = [ended(0, true), ended(1, false)];
        let text =
            Summary::of(&[report(5, &[])], &journals, ExitStatus::from_raw(9), vec![], vec![]).render();
        assert!(text.contains("carried at least 5 messages, 40 B, in 2 processes"), "{text}");
        assert!(
            text.contains("  no report of rank 1 (pid 0 on h): what it carried is not counted\n"),
            "{text}"
        );
        assert!(!text.contains("no report of rank 0"), "{text}");
    }
}

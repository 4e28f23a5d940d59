//! The sums of a process, as lines for people and for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use link_api::Fallback;

use super::counts::{Counts, ROWS, SIDES, row_name};
use super::state::State;

/// What a process has carried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Endpoints that were opened.
    pub endpoints: u64,
    /// Peers that something was exchanged with.
    pub peers: usize,
    /// The ways that were used.
    pub ways: Vec<Way>,
    /// The paths to peers, each with the number of peers it led to.
    pub paths: Vec<Path>,
    /// What went by frames though it should not have, and why.
    pub fell_back: Vec<String>,
}

/// A way that bytes went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    pub name: &'static str,
    /// What this process began.
    pub ours: Counts,
    /// What peers began.
    pub theirs: Counts,
}

/// A path, and how many peers it led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    pub words: String,
    pub peers: usize,
}

/// A path in words, without what differs from peer to peer.
fn common(words: &str) -> String {
    const PID: &str = " with pid ";
    let Some(at) = words.find(PID) else { return words.into() };
    let rest = words[at + PID.len()..].trim_start_matches(|c: char| c.is_ascii_digit());
    format!("{}{rest}", &words[..at])
}

impl Report {
    pub(super) fn of(state: &State) -> Report {
        let way = |row: usize| {
            let (ours, theirs) = (state.counts[0][row], state.counts[1][row]);
            (ours.messages + theirs.messages > 0).then(|| Way { name: row_name(row), ours, theirs })
        };
        let mut paths: BTreeMap<String, usize> = BTreeMap::new();
        let mut fell_back = Vec::new();
        let mut memory = 0;
        for peer in state.peers.values().filter(|p| p.carried) {
            *paths.entry(common(&peer.words)).or_default() += 1;
            memory += peer.fell_back[Fallback::Memory as usize];
        }
        let all = state.with_counts;
        for (words, peers) in &paths {
            if let Some((_, why)) = words.split_once("frames only: ") {
                fell_back.push(format!("frames alone to {peers} of {all} peers: {why}"));
            } else if let Some((_, why)) = words.split_once("device memory: ") {
                fell_back.push(format!("device memory of {peers} of {all} peers not by one copy: {why}"));
            }
        }
        if memory > 0 {
            fell_back.push(format!(
                "{memory} transfers in frames: the kernel does not copy from or to that memory"
            ));
        }
        let paths = paths.into_iter().map(|(words, peers)| Path { words, peers }).collect();
        let ways = (0..ROWS).filter_map(way).collect();
        Report { endpoints: state.endpoints, peers: state.with_counts, ways, paths, fell_back }
    }

    /// All ways together: what this process began, and what peers did.
    pub fn sums(&self) -> [Counts; SIDES] {
        let sum = |of: fn(&Way) -> Counts| {
            self.ways.iter().map(of).fold(Counts::default(), |sum, c| Counts {
                messages: sum.messages.saturating_add(c.messages),
                bytes: sum.bytes.saturating_add(c.bytes),
            })
        };
        [sum(|w| w.ours), sum(|w| w.theirs)]
    }

    /// For people: the first line is the answer.
    pub fn to_text(&self, process: &str) -> String {
        if self.endpoints == 0 && self.ways.is_empty() {
            return format!(
                "strait: {process}: carried nothing; the provider was loaded, and no endpoint was opened\n"
            );
        }
        let [ours, theirs] = self.sums();
        let peers = if self.peers == 1 { "peer" } else { "peers" };
        let (sent, bytes) = (ours.messages, bytes_text(ours.bytes));
        let mut out =
            format!("strait: {process}: carried {sent} messages, {bytes} to {} {peers}", self.peers);
        // Under UCX what comes is not counted.
        if theirs.messages > 0 {
            let _ = write!(out, "; {} messages, {} came", theirs.messages, bytes_text(theirs.bytes));
        }
        out.push('\n');
        for way in &self.ways {
            let _ = writeln!(
                out,
                "strait:   {:<16} out {:>10} {:>10}   in {:>10} {:>10}",
                way.name,
                way.ours.messages,
                bytes_text(way.ours.bytes),
                way.theirs.messages,
                bytes_text(way.theirs.bytes)
            );
        }
        for path in &self.paths {
            let _ = writeln!(out, "strait:   {} of {} {peers}: {}", path.peers, self.peers, path.words);
        }
        for line in &self.fell_back {
            let _ = writeln!(out, "strait:   fell back: {line}");
        }
        out
    }

    /// For programs: one line of JSON. `head`: members to begin with, as JSON has them.
    pub fn to_json(&self, head: &[(&str, String)]) -> String {
        let [ours, theirs] = self.sums();
        let counts = |c: Counts| format!("{{\"messages\":{},\"bytes\":{}}}", c.messages, c.bytes);
        let list = |items: Vec<String>| format!("[{}]", items.join(","));
        let ways = self.ways.iter().map(|w| {
            let (ours, theirs) = (counts(w.ours), counts(w.theirs));
            format!("{{\"way\":{},\"out\":{ours},\"in\":{theirs}}}", json_string(w.name))
        });
        let paths = self
            .paths
            .iter()
            .map(|p| format!("{{\"peers\":{},\"path\":{}}}", p.peers, json_string(&p.words)));
        let mut members: Vec<String> =
            head.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        members.push(format!("\"endpoints\":{},\"peers\":{}", self.endpoints, self.peers));
        members.push(format!("\"out\":{},\"in\":{}", counts(ours), counts(theirs)));
        members.push(format!("\"ways\":{}", list(ways.collect())));
        members.push(format!("\"paths\":{}", list(paths.collect())));
        members
            .push(format!("\"fell_back\":{}", list(self.fell_back.iter().map(|s| json_string(s)).collect())));
        format!("{{{}}}\n", members.join(","))
    }
}

/// A string as JSON has it.
pub fn json_string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out + "\""
}

/// `1.5 MiB` of a number of bytes.
pub fn bytes_text(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = n as f64;
    let mut unit = None;
    for name in UNITS {
        if value < 1024.0 {
            break;
        }
        (value, unit) = (value / 1024.0, Some(name));
    }
    unit.map_or_else(|| format!("{n} B"), |unit| format!("{value:.1} {unit}"))
}

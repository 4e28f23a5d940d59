//! What the processes of a job that hangs wait for, and who has to act.

use std::collections::BTreeMap;

use serde::Serialize;

use super::cause::Cause;
use super::journal::{Pending, Process};
use super::running::Running;

/// Operations of a process that are shown.
const SHOWN: usize = 8;

/// What one process waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Waits {
    pub process: String,
    pub rank: Option<u64>,
    /// What the process does apart from Strait.
    pub state: String,
    pub pending: Vec<Pending>,
    /// Operations in lines for people.
    #[serde(skip)]
    pub lines: Vec<String>,
}

/// A job that hangs.
#[derive(Debug)]
pub struct Hang<'a> {
    processes: &'a [Process],
    running: &'a [Running],
    /// Which process has an endpoint of this name.
    owners: BTreeMap<&'a str, usize>,
}

impl<'a> Hang<'a> {
    pub fn new(processes: &'a [Process], running: &'a [Running]) -> Hang<'a> {
        let named = processes.iter().enumerate();
        let owners =
            named.flat_map(|(at, p)| p.endpoints.iter().map(move |name| (name.as_str(), at))).collect();
        Hang { processes, running, owners }
    }

    /// Buffers for any message are no one's to wait for.
    fn pending(&self, at: usize) -> impl Iterator<Item = &'a Pending> {
        self.processes[at].pending.iter().filter(|p| !p.state.starts_with("a buffer for several"))
    }

    fn peer(&self, pending: &Pending) -> Option<usize> {
        self.owners.get(pending.peer.as_deref()?).copied()
    }

    fn peer_name(&self, pending: &Pending) -> String {
        let address = pending.peer.as_deref().unwrap_or("any peer");
        match self.peer(pending).and_then(|at| self.processes[at].rank) {
            Some(rank) => format!("rank {rank} ({address})"),
            None => address.into(),
        }
    }

    fn line(&self, p: &Pending) -> String {
        let (bytes, seconds) = (link::usage::bytes_text(p.bytes), p.millis as f64 / 1000.0);
        let peer = self.peer_name(p);
        let mut line = match p.kind.as_str() {
            "receive" => format!("a receive from {peer} of up to {bytes}"),
            "unexpected" => format!("a message of {bytes} from {peer} has come, and no receive matches it"),
            "arriving" => {
                format!("a message of {bytes} from {peer} is on its way, {} B of it are here", p.done)
            }
            "send" => format!("a send of {bytes} to {peer}, {} B of it moved", p.done),
            "read" | "write" => format!("an RMA {} of {bytes} at {peer}, {} B moved", p.kind, p.done),
            "atomic" => format!("an atomic operation at {peer}"),
            other => format!("a {other} of {bytes} by {peer}"),
        };
        if let Some(tag) = &p.tag {
            line += &format!(", tag {tag}");
            if let Some(ignore) = p.ignore.as_ref().filter(|ignore| *ignore != "0x0" && p.kind == "receive") {
                line += &format!(" (without the bits {ignore})");
            }
        }
        line += &format!(", for {seconds:.0} s at least");
        if !p.state.is_empty() {
            line += &format!("; {}", p.state);
        }
        line
    }

    fn state(&self, at: usize) -> String {
        let process = &self.processes[at];
        if process.exited {
            return "it has ended".into();
        }
        let found = self.running.iter().find(|r| u64::from(r.pid) == process.pid);
        found.map_or_else(String::new, |running| running.state.clone())
    }

    /// Of each process.
    pub fn waits(&self) -> Vec<Waits> {
        let all = self.processes.iter().enumerate().map(|(at, process)| {
            let mut lines: Vec<String> = self.pending(at).map(|p| self.line(p)).collect();
            let left_out = lines.len().saturating_sub(SHOWN);
            lines.truncate(SHOWN);
            if left_out > 0 {
                lines.push(format!("and {left_out} other operations"));
            }
            match process.asked {
                None if !process.exited => {
                    lines.push("it gives no answer: it is stopped, or held by a debugger".into())
                }
                Some((_, busy)) if busy > 0 => lines.push("a thread stays inside a call of Strait".into()),
                Some(_) if lines.is_empty() => lines.push("no operation of Strait".into()),
                _ => {}
            }
            let (name, rank) = (process.name(), process.rank);
            Waits { process: name, rank, state: self.state(at), pending: process.pending.clone(), lines }
        });
        all.collect()
    }

    /// Why it hangs.
    pub fn causes(&self) -> Vec<Cause> {
        let mut all: Vec<Cause> = Vec::new();
        let mut others = Vec::new();
        for at in 0..self.processes.len() {
            match self.mismatch(at) {
                Some(cause) => all.push(cause),
                None => others.push(at),
            }
        }
        for at in others {
            all.extend(self.pending(at).filter_map(|p| self.of_peer(at, p)).take(1));
        }
        if all.is_empty() {
            all.extend(self.circle());
        }
        if all.is_empty() && !self.processes.is_empty() {
            let idle = (0..self.processes.len()).all(|at| self.pending(at).next().is_none());
            let has_failed = self.processes.iter().any(|p| p.failed.iter().any(|f| f.call != "fi_getinfo"));
            all.extend((!idle || !has_failed).then(|| match idle {
                true => Cause::new(
                    "no process waits for an operation of Strait: the program waits for something else",
                    "gdb -p PID, thread apply all bt, of a process above",
                ),
                false => Cause::new(
                    "operations are pending, and none of them is known to be at fault",
                    "gdb -p PID, thread apply all bt, of the process that the others wait for",
                ),
            }));
        }
        let mut seen = std::collections::BTreeSet::new();
        all.retain(|cause| seen.insert(cause.text.clone()));
        all
    }

    /// A message has come, and the receives that are posted want another tag or another sender.
    fn mismatch(&self, at: usize) -> Option<Cause> {
        let came = self.pending(at).find(|p| p.kind == "unexpected")?;
        let wanted: Vec<&Pending> = self.pending(at).filter(|p| p.kind == "receive").collect();
        let (name, peer) = (self.processes[at].name(), self.peer_name(came));
        let tag = came.tag.clone().unwrap_or_else(|| "none".into());
        if wanted.is_empty() {
            let state = self.state(at);
            let does = if state.is_empty() { String::new() } else { format!(" ({state})") };
            let text =
                format!("{name} has a message from {peer}, tag {tag}, and posts no receive for it{does}");
            let todo = format!(
                "gdb -p {}, thread apply all bt: what that process does instead",
                self.processes[at].pid
            );
            return Some(Cause::new(text, todo));
        }
        let tags: Vec<String> = wanted
            .iter()
            .take(SHOWN)
            .map(|p| format!("{} from {}", p.tag.as_deref().unwrap_or("no tag"), self.peer_name(p)))
            .collect();
        let text = format!(
            "{name} has a message from {peer} with tag {tag}, and waits for another one: {}",
            tags.join(", ")
        );
        Some(Cause::new(text, "compare tag, communicator and sender of these two calls"))
    }

    /// An operation waits for a process that has ended, or waits for nothing.
    fn of_peer(&self, at: usize, pending: &Pending) -> Option<Cause> {
        if pending.kind == "unexpected" || pending.kind.starts_with("served") {
            return None;
        }
        let peer = self.peer(pending)?;
        let (name, other) = (self.processes[at].name(), self.processes[peer].name());
        let what = self.line(pending);
        if self.processes[peer].exited {
            let text = format!("{name} waits for {other}, which has ended: {what}");
            return Some(Cause::new(text, "see why that process ended before it had sent or received all"));
        }
        if self.processes[peer].asked.is_none() {
            let text = format!("{name} waits for {other}, which gives no answer: {what}");
            return Some(Cause::new(text, "see whether it is stopped (ps -o stat), and SIGCONT it"));
        }
        let is_idle = peer != at && self.pending(peer).next().is_none();
        is_idle.then(|| {
            let state = self.state(peer);
            let does = if state.is_empty() { String::new() } else { format!(" ({state})") };
            let text = format!(
                "{name} waits for {other}, which has no operation of Strait to wait for{does}: {what}"
            );
            let todo = format!(
                "gdb -p {}, thread apply all bt: what that process does instead",
                self.processes[peer].pid
            );
            Cause::new(text, todo)
        })
    }

    /// Receives alone, each from a process that receives itself.
    fn circle(&self) -> Option<Cause> {
        let next = |at: usize| self.pending(at).filter(|p| p.kind == "receive").find_map(|p| self.peer(p));
        let all_receive = (0..self.processes.len()).all(|at| self.pending(at).all(|p| p.kind == "receive"));
        for start in 0..self.processes.len() {
            let mut path = vec![start];
            while let Some(to) = next(*path.last()?) {
                if to == start && all_receive {
                    let names: Vec<String> = path.iter().map(|at| self.processes[*at].name()).collect();
                    return Some(Cause::new(
                        format!(
                            "each waits for a message that the next has not sent, in a circle: {}, and again the first",
                            names.join(", then ")
                        ),
                        "have one side send before it receives, or use MPI_Sendrecv or MPI_Irecv",
                    ));
                }
                if path.contains(&to) {
                    break;
                }
                path.push(to);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::journal::Loaded;

    fn process(rank: u64, pending: Vec<Pending>) -> Process {
        Process {
            host: "h".into(),
            pid: 10 + rank,
            rank: Some(rank),
            loaded: vec![Loaded::default()],
            endpoints: vec![format!("a:{rank}")],
            pending,
            asked: Some((1, 0)),
            ..Process::default()
        }
    }

    fn op(kind: &str, peer: u64, tag: &str) -> Pending {
        let (kind, peer, tag) = (kind.into(), Some(format!("a:{peer}")), Some(tag.into()));
        Pending { kind, peer, tag, bytes: 1 << 20, millis: 4600, ..Pending::default() }
    }

    fn causes(processes: &[Process]) -> String {
        let hang = Hang::new(processes, &[]);
        hang.causes().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn each_operation_has_peer_bytes_and_time() {
        let all = [process(0, vec![op("send", 1, "0x5")]), process(1, vec![])];
        let waits = Hang::new(&all, &[]).waits();
        let line = "a send of 1.0 MiB to rank 1 (a:1), 0 B of it moved, tag 0x5, for 5 s at least";
        assert_eq!(waits[0].lines, [line]);
        assert_eq!(waits[1].lines, ["no operation of Strait"]);
    }

    #[test]
    fn the_process_that_has_to_act_is_named() {
        let mut idle = process(1, vec![]);
        let found = causes(&[process(0, vec![op("send", 1, "0x5")]), idle.clone()]);
        assert!(
            found.starts_with("rank 0 (pid 10 on h) waits for rank 1 (pid 11 on h), which has no operation"),
            "{found}"
        );
        assert!(found.contains("gdb -p 11"), "{found}");
        idle.exited = true;
        let found = causes(&[process(0, vec![op("receive", 1, "0x5")]), idle]);
        assert!(found.contains("rank 1 (pid 11 on h), which has ended"), "{found}");
    }

    #[test]
    fn tags_that_do_not_match_and_circles_are_found() {
        let all = [process(0, vec![]), process(1, vec![op("receive", 0, "0x6"), op("unexpected", 0, "0x5")])];
        let found = causes(&all);
        assert!(
            found.contains("from rank 0 (a:0) with tag 0x5, and waits for another one: 0x6 from rank 0"),
            "{found}"
        );
        let all = [process(0, vec![op("receive", 1, "0x5")]), process(1, vec![op("receive", 0, "0x5")])];
        let found = causes(&all);
        assert!(found.contains("in a circle: rank 0 (pid 10 on h), then rank 1 (pid 11 on h)"), "{found}");
        assert!(causes(&[process(0, vec![])]).contains("waits for something else"));
    }
}

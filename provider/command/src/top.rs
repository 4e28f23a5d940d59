//! `strait top`: the endpoints of this host, and what goes through them.
//!
//! It looks at what is visible anyway: the abstract sockets that endpoints listen on, the processes that have
//! them, and the page of sums of each process that runs with FI_STRAIT_REPORT. Nothing is asked of the
//! processes.

use std::collections::{BTreeMap, HashMap};
use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use link::usage::{self, Sums, bytes_text};
use serde::Serialize;

use crate::fabric::Error;
use crate::values;

/// Flags of a socket in /proc/net/unix that listens.
const LISTENS: u32 = 1 << 16;

#[derive(Args, Clone, Debug, PartialEq)]
#[command(after_help = "\
Lists the endpoints in this network namespace, those of UCX too: process, user, peers. Messages and bytes are shown of
processes that run with FI_STRAIT_REPORT=1 and may be looked at by this user; of others there are no counts.

Example:
  strait top --once")]
pub struct Options {
    /// one look, instead of one after the other until it is ended
    #[arg(long)]
    pub once: bool,
    /// each look as a line of JSON
    #[arg(long)]
    pub json: bool,
    /// between two looks
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = values::duration(0.001, 3600.0))]
    pub delay: Duration,
}

/// An endpoint, as the table of sockets has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Endpoint {
    address: String,
    #[serde(skip)]
    inode: u64,
    /// Channels from peers to it.
    peers: usize,
}

/// A process with endpoints.
#[derive(Debug, Serialize)]
struct Process {
    /// `None`: it is not this user's, or in another pid namespace.
    pid: Option<u32>,
    user: Option<String>,
    command: Option<String>,
    endpoints: Vec<Endpoint>,
    /// Whether it counts what it carries.
    counted: bool,
    carried: Option<Carried>,
}

/// What a process has carried, and what it carries in a second.
#[derive(Debug, PartialEq, Serialize)]
struct Carried {
    peers: u64,
    messages: u64,
    bytes: u64,
    messages_per_second: Option<f64>,
    bytes_per_second: Option<f64>,
    ways: Vec<Way>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Way {
    way: &'static str,
    messages: u64,
    bytes: u64,
}

/// The sums of processes as they were, and when.
type Before = Option<(Instant, HashMap<u32, Sums>)>;

/// Shows the endpoints, once or until it is ended.
pub fn run(options: &Options) -> Result<bool, Error> {
    let mut before: Before = None;
    loop {
        let table = std::fs::read("/proc/net/unix").map_err(|e| format!("/proc/net/unix: {e}"))?;
        let owners = owners();
        let now = Instant::now();
        let processes = processes(endpoints(&String::from_utf8_lossy(&table)), &owners, before.as_ref(), now);
        let text = match options.json {
            true => serde_json::to_string(&processes).map_err(|e| e.to_string())? + "\n",
            false => render(&processes),
        };
        // A terminal shows each look in the place of the one before.
        let is_screen =
            !options.once && !options.json && std::io::IsTerminal::is_terminal(&std::io::stdout());
        let clear = if is_screen { "\x1b[H\x1b[2J" } else { "" };
        crate::out::print(&format!("{clear}{text}"))?;
        if options.once {
            return Ok(true);
        }
        let sums = owners.pages.iter().map(|(pid, sums)| (*pid, *sums)).collect();
        before = Some((now, sums));
        std::thread::sleep(options.delay.max(Duration::from_millis(100)));
    }
}

/// The endpoints in a table like /proc/net/unix. Any user can have a socket of any name.
fn endpoints(table: &str) -> Vec<Endpoint> {
    let mut found: BTreeMap<String, Endpoint> = BTreeMap::new();
    for line in table.lines().skip(1) {
        let mut words = line.split_whitespace();
        let (flags, inode, name) = (words.nth(3), words.nth(2), words.next());
        let Some(address) = name.and_then(|name| name.strip_prefix('@')?.strip_prefix(link::ENDPOINT_NAMES))
        else {
            continue;
        };
        let address = shown(address);
        let listens = flags.and_then(|f| u32::from_str_radix(f, 16).ok()).is_some_and(|f| f & LISTENS != 0);
        let none = Endpoint { address: address.clone(), inode: 0, peers: 0 };
        let endpoint = found.entry(address).or_insert(none);
        match inode.and_then(|i| i.parse().ok()) {
            Some(inode) if listens => endpoint.inode = inode,
            _ => endpoint.peers += 1,
        }
    }
    // What nothing listens on any more is the rest of an endpoint that was.
    found.into_values().filter(|endpoint| endpoint.inode != 0).collect()
}

/// Which process has a socket, and the sums of those that count.
#[derive(Debug, Default)]
struct Owners {
    sockets: HashMap<u64, u32>,
    pages: HashMap<u32, Sums>,
}

/// Looks at the descriptors of all processes that this user may look at.
fn owners() -> Owners {
    let mut owners = Owners::default();
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in pids.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok()) {
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for fd in fds {
            let Ok(target) = std::fs::read_link(fd.path()) else { continue };
            let target = target.to_string_lossy();
            if let Some(inode) = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')) {
                if let Ok(inode) = inode.parse() {
                    // Of processes that share a socket, the first has opened it.
                    let first = owners.sockets.entry(inode).or_insert(pid);
                    *first = pid.min(*first);
                }
            } else if usage::is_page(&target) {
                if let Some(sums) = page(&fd.path()) {
                    owners.pages.insert(pid, sums);
                }
            }
        }
    }
    owners
}

/// The sums in a descriptor that is called a page. A process may call anything so, a pipe that is never
/// written to for one.
fn page(path: &Path) -> Option<Sums> {
    if !std::fs::metadata(path).is_ok_and(|what| what.is_file()) {
        return None;
    }
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path);
    usage::read(&file.ok()?)
}

fn processes(
    endpoints: Vec<Endpoint>,
    owners: &Owners,
    before: Option<&(Instant, HashMap<u32, Sums>)>,
    now: Instant,
) -> Vec<Process> {
    let mut by_pid: BTreeMap<Option<u32>, Vec<Endpoint>> = BTreeMap::new();
    for endpoint in endpoints {
        by_pid.entry(owners.sockets.get(&endpoint.inode).copied()).or_default().push(endpoint);
    }
    let processes = by_pid.into_iter().map(|(pid, endpoints)| {
        let sums = pid.and_then(|pid| owners.pages.get(&pid));
        let was = before.and_then(|(then, all)| Some((now.duration_since(*then), all.get(&pid?)?)));
        Process {
            pid,
            user: pid.and_then(user),
            command: pid.and_then(command),
            endpoints,
            counted: sums.is_some(),
            carried: sums.map(|sums| carried(sums, was)),
        }
    });
    processes.collect()
}

/// Messages and bytes of all ways, both those begun here and those that came.
fn total(sums: &Sums) -> (u64, u64) {
    let all = sums.counts.iter().flatten();
    all.fold((0, 0), |(n, bytes), c| (n.wrapping_add(c.messages), bytes.wrapping_add(c.bytes)))
}

fn carried(sums: &Sums, was: Option<(Duration, &Sums)>) -> Carried {
    let (messages, bytes) = total(sums);
    let rate =
        |now: u64, then: u64, time: Duration| now.wrapping_sub(then) as f64 / time.as_secs_f64().max(1e-3);
    let rates = was.map(|(time, was)| {
        let (n, b) = total(was);
        (rate(messages, n, time), rate(bytes, b, time))
    });
    let ways = (0..usage::ROWS).filter_map(|row| {
        let [ours, theirs] = [sums.counts[0][row], sums.counts[1][row]];
        let messages = ours.messages.wrapping_add(theirs.messages);
        let bytes = ours.bytes.wrapping_add(theirs.bytes);
        (messages > 0).then(|| Way { way: usage::row_name(row), messages, bytes })
    });
    Carried {
        peers: sums.peers,
        messages,
        bytes,
        messages_per_second: rates.map(|r| r.0),
        bytes_per_second: rates.map(|r| r.1),
        ways: ways.collect(),
    }
}

fn user(pid: u32) -> Option<String> {
    let uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let names = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = names.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(uid)).then(|| name.to_owned())
    });
    Some(name.unwrap_or_else(|| uid.to_string()))
}

/// The program and the first of its arguments, in one line and without what a terminal would obey.
fn command(pid: u32) -> Option<String> {
    let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = bytes.split(|b| *b == 0).filter(|word| !word.is_empty());
    let words: Vec<String> = words.take(6).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let (name, args) = words.split_first()?;
    let name = Path::new(name).file_name().map_or(name.clone(), |name| name.to_string_lossy().into_owned());
    let line = [&[name][..], args].concat().join(" ");
    Some(shown(&line))
}

/// A text of another process's, without what a terminal would obey.
fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(120).collect()
}

/// What is said in place of the command of a process that has an endpoint and cannot be looked at.
fn hidden() -> String {
    // SAFETY: a call without arguments.
    match unsafe { libc::geteuid() } {
        0 => "(in another pid namespace: run strait top there)".into(),
        _ => "(another user's, or in another pid namespace: root sees more)".into(),
    }
}

fn render(processes: &[Process]) -> String {
    let count: usize = processes.iter().map(|p| p.endpoints.len()).sum();
    let mut out = format!("{count} endpoints of {} processes in this network namespace\n", processes.len());
    if count == 0 {
        return out;
    }
    out += &format!(
        "\n{:>8} {:<10} {:>5} {:>12} {:>12} {:>12} {:>12}  {}\n",
        "PID", "USER", "PEERS", "MESSAGES", "BYTES", "MESSAGES/s", "BYTES/s", "COMMAND"
    );
    for process in processes {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
        let pid = process.pid.map_or("-".into(), |pid| pid.to_string());
        let channels: usize = process.endpoints.iter().map(|e| e.peers).sum();
        let carried = process.carried.as_ref();
        let number = |n: Option<f64>| n.map_or("-".into(), |n| format!("{n:.0}"));
        let peers = carried.map_or(channels, |c| c.peers as usize);
        out += &format!(
            "{pid:>8} {:<10} {peers:>5} {:>12} {:>12} {:>12} {:>12}  {}\n",
            text(&process.user),
            carried.map_or("-".into(), |c| c.messages.to_string()),
            carried.map_or("-".into(), |c| bytes_text(c.bytes)),
            number(carried.and_then(|c| c.messages_per_second)),
            carried.and_then(|c| c.bytes_per_second).map_or("-".into(), |n| bytes_text(n as u64)),
            process.pid.map_or(hidden(), |_| text(&process.command))
        );
        for endpoint in &process.endpoints {
            out += &format!("{:>8} {} ({} channels from peers)\n", "", endpoint.address, endpoint.peers);
        }
        for way in carried.map_or(&[][..], |c| &c.ways) {
            out +=
                &format!("{:>8} {:<16} {} messages, {}\n", "", way.way, way.messages, bytes_text(way.bytes));
        }
    }
    if processes.iter().any(|p| !p.counted) {
        out += "\nMessages are counted of processes that run with FI_STRAIT_REPORT=1 (UCX: STRAIT_UCX_REPORT=1).\n";
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::Relaxed;

    use link::usage::Counts;

    use super::*;

    const TABLE: &str = "Num       RefCount Protocol Flags    Type St Inode Path\n\
        000000: 00000002 00000000 00010000 0005 01 41 @strait/10.0.0.1:5000\n\
        000001: 00000003 00000000 00000000 0005 03 42 @strait/10.0.0.1:5000\n\
        000002: 00000003 00000000 00000000 0005 03 43 @strait/10.0.0.1:5000\n\
        000003: 00000002 00000000 00010000 0005 01 44 @strait/*:6000\n\
        000004: 00000002 00000000 00010000 0001 01 45 /run/other\n\
        000005: 00000002 00000000 00010000 0001 01 46 @straits/1.1.1.1:1\n\
        000006: 00000003 00000000 00000000 0005 03 47 @strait/10.0.0.1:7000\n\
        000007: 00000003 00000000 00000000 0001 03 48\n";

    #[test]
    fn endpoints_are_found_by_their_sockets() {
        let found = endpoints(TABLE);
        let seen: Vec<_> = found.iter().map(|e| (e.address.as_str(), e.inode, e.peers)).collect();
        assert_eq!(seen, [("*:6000", 44, 0), ("10.0.0.1:5000", 41, 2)]);
        assert_eq!(endpoints(""), []);
    }

    #[test]
    fn the_name_of_a_socket_does_nothing_to_a_terminal() {
        let table = "Num\n000: 2 0 00010000 0005 01 41 @strait/\x1b[2J\u{9b}7:1\n";
        let found = endpoints(table);
        assert_eq!(found.iter().map(|e| e.address.as_str()).collect::<Vec<_>>(), ["?[2J?7:1"]);
    }

    #[test]
    fn a_pipe_that_is_called_a_page_is_not_opened() {
        let path = std::env::temp_dir().join(format!("strait-top-{}", std::process::id()));
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let looked = AtomicBool::new(false);
        let read = std::thread::scope(|threads| {
            let writer = threads.spawn(|| {
                // Such an open succeeds once there is a reader, which waits for it.
                let mut writer = OpenOptions::new();
                let writer = writer.write(true).custom_flags(libc::O_NONBLOCK);
                let mut met = false;
                while !met && !looked.load(Relaxed) {
                    met = writer.open(&path).is_ok();
                    std::thread::yield_now();
                }
                met
            });
            assert_eq!(page(&path), None);
            looked.store(true, Relaxed);
            writer.join().unwrap()
        });
        std::fs::remove_file(&path).unwrap();
        assert!(!read, "the pipe was opened");
        // A page is read.
        let usage = usage::Usage::new();
        usage.opened();
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten().map(|fd| fd.path());
        let mut pages =
            fds.filter(|fd| std::fs::read_link(fd).is_ok_and(|to| usage::is_page(&to.to_string_lossy())));
        assert!(pages.any(|fd| page(&fd).is_some()));
        drop(usage);
    }

    fn sums(messages: u64) -> Sums {
        let mut sums = Sums { peers: 2, ..Sums::default() };
        sums.counts[0][0] = Counts { messages, bytes: 8 * messages };
        sums
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        assert_eq!(carried(&sums(10), None).messages_per_second, None);
        let was = sums(10);
        let now = carried(&sums(30), Some((Duration::from_secs(2), &was)));
        assert_eq!((now.messages_per_second, now.bytes_per_second), (Some(10.0), Some(80.0)));
        assert_eq!(now.ways, [Way { way: "ring", messages: 30, bytes: 240 }]);
    }

    #[test]
    fn processes_that_cannot_be_seen_are_listed() {
        let mut owners = Owners::default();
        let own = std::process::id();
        owners.sockets.insert(44, own);
        owners.pages.insert(own, sums(7));
        let all = processes(endpoints(TABLE), &owners, None, Instant::now());
        assert_eq!(all.iter().map(|p| p.pid).collect::<Vec<_>>(), [None, Some(own)]);
        assert!(all[1].counted && all[1].user.is_some() && all[1].command.is_some());
        let text = render(&all);
        assert!(
            text.starts_with("2 endpoints of 2 processes") && text.contains("FI_STRAIT_REPORT"),
            "{text}"
        );
        assert!(text.contains("10.0.0.1:5000 (2 channels from peers)"), "{text}");
        assert!(text.contains("7 messages, 56 B"), "{text}");
        let hidden = text.lines().find(|line| line.trim_start().starts_with('-'));
        assert!(hidden.is_some_and(|line| line.contains("in another pid namespace")), "{text}");
    }
}

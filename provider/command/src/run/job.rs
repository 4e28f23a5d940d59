//! Starting the processes, and what happens when one ends.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::ops::Range;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bootstrap::{Address, Server, names, token};

use super::Options;
use super::confirm::{Confirmation, Marked, Seen};
use super::far::{Far, Late};
use super::output::{copy, copy_bytes, stderr, stdout};
use super::part::{self, Part};
use super::signals::{PASSED, Signals, name};
use crate::fabric::Error;
use crate::os;
use crate::out::say;
use crate::rsh;

/// What the end of processes of another host, and of what reaches it, takes beside the grace.
const FAR: Duration = Duration::from_secs(2);
/// Between two polls of output whose writer has ended, and of what the output of another host confirms.
const PERIOD: Duration = Duration::from_millis(10);
const CONFIRMED: Duration = Duration::from_millis(100);

pub(super) struct Job {
    started: Vec<Started>,
    copies: Vec<JoinHandle<std::io::Result<()>>>,
    /// `None`: it is on the host of `strait run`.
    exchange: Option<Server>,
    grace: Duration,
    /// What the first process that failed leaves with.
    code: Option<u8>,
    /// When those that are left are killed.
    kill_at: Option<Instant>,
    killed: bool,
    /// A command that reaches a host was ended: what is left of it may have its output.
    gave_up: bool,
}

/// A process, or what starts those of another host.
struct Started {
    /// `None`: it has ended.
    child: Option<Child>,
    ranks: Range<usize>,
    far: Option<Far>,
}

/// What all processes of this host are started with.
pub(super) struct Place {
    pub(super) program: Vec<OsString>,
    pub(super) size: usize,
    pub(super) address: Address,
    pub(super) secret: String,
    /// Rank 0 reads standard input, unless that is a terminal.
    pub(super) stdin: bool,
    /// Beside those of this process.
    pub(super) variables: Vec<(String, String)>,
}

/// Runs the job; the answer is the exit code of the first process that failed.
pub fn run(options: &Options) -> Result<ExitCode, Error> {
    let signals = Signals::take().map_err(|e| Error::Failed(format!("signalfd: {e}")))?;
    let failed = |e: bootstrap::Error| Error::Failed(e.to_string());
    let (secret, name) = (token().map_err(failed)?, token().map_err(failed)?);
    let hosts = options.placed()?;
    let local = match hosts {
        Some(_) => Address::Tcp("0.0.0.0:0".into()),
        None => Address::Abstract(format!("strait/run/{name}")),
    };
    let exchange =
        Server::start(std::slice::from_ref(&local), options.procs, &secret, None).map_err(failed)?;
    let port = exchange.ports().first().copied();
    let mut job = Job::new(Some(exchange), options.grace);
    match hosts {
        Some(hosts) => job.start_on(options, &hosts, &secret, port)?,
        None => {
            let program = options.program.clone();
            let place = Place {
                program,
                size: options.procs,
                address: local,
                secret,
                stdin: true,
                variables: vec![],
            };
            job.start_here(&place, 0..options.procs, (options.bind, options.label, options.lines));
        }
    }
    job.finish(&signals).map(ExitCode::from)
}

/// The process of a rank.
fn command(place: &Place, rank: usize, cpu: Option<usize>, piped: bool) -> Command {
    let mut command = Command::new(&place.program[0]);
    command.args(&place.program[1..]);
    command.envs(place.variables.iter().map(|(name, value)| (name, value)));
    command.env(names::RANK, rank.to_string()).env(names::SIZE, place.size.to_string());
    command
        .env(names::EXCHANGE, place.address.to_string())
        .env(names::JOB, &place.secret)
        .env(names::LAUNCHER, "strait run");
    // What a launcher around this one said of its own job is wrong here.
    for other in ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMIX_NAMESPACE", "PMIX_RANK"] {
        command.env_remove(other);
    }
    // Rank 0 reads what this process could; a group in the background would be stopped by a terminal.
    if rank > 0 || !place.stdin || std::io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    if piped {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
    }
    // A group of its own, so that what it starts ends with it.
    command.process_group(0);
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure makes only system calls and allocates nothing.
    unsafe {
        command.pre_exec(move || {
            os::end_with_parent(parent);
            if let Some(cpu) = cpu {
                os::pin(cpu)?;
            }
            Signals::give_back()
        });
    }
    command
}

impl Job {
    pub(super) fn new(exchange: Option<Server>, grace: Duration) -> Job {
        let (started, copies) = (Vec::new(), Vec::new());
        Job { started, copies, exchange, grace, code: None, kill_at: None, killed: false, gave_up: false }
    }

    /// Starts these ranks on this host.
    pub(super) fn start_here(
        &mut self,
        place: &Place,
        ranks: Range<usize>,
        (bind, label, lines): (bool, bool, bool),
    ) {
        let cpus = os::spread_cpus();
        for rank in ranks.clone() {
            let cpu = bind.then(|| cpus[(rank - ranks.start) % cpus.len()]);
            let mut command = command(place, rank, cpu, label || lines);
            match command.spawn() {
                Ok(mut child) => {
                    let label = if label { format!("[{rank}] ") } else { String::new() };
                    if let Err(e) = self.copy_output(&mut child, &label) {
                        self.stop(&format!("cannot copy the output of rank {rank}: {e}"), 1);
                    }
                    self.started.push(Started { child: Some(child), ranks: rank..rank + 1, far: None });
                }
                Err(e) => {
                    // As shells do: 127 for a program that is not there, 126 for one that cannot be run.
                    let code = if e.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
                    let program = place.program[0].to_string_lossy();
                    self.stop(&format!("cannot start {program} as rank {rank}: {e}"), code);
                    break;
                }
            }
        }
    }

    /// Starts the ranks of each host there. They find the exchange at this port.
    fn start_on(
        &mut self,
        options: &Options,
        hosts: &[(String, Range<usize>)],
        secret: &str,
        port: Option<u16>,
    ) -> Result<(), Error> {
        let own = options.address.clone().or_else(|| bootstrap::addresses().into_iter().next());
        let (own, port) = own
            .zip(port)
            .ok_or_else(|| Error::Failed("no address of this host leads to others: give --address".into()))?;
        let utf8 = |word: &OsString| word.to_str().map(str::to_owned);
        let program: Option<Vec<String>> = options.program.iter().map(utf8).collect();
        let program =
            program.ok_or_else(|| Error::Failed("with --hosts the program's words are UTF-8".into()))?;
        let dir =
            std::env::current_dir().map_err(|e| Error::Failed(format!("the current directory: {e}")))?;
        for (host, ranks) in hosts {
            let part = Part {
                first: ranks.start,
                count: ranks.len(),
                size: options.procs,
                exchange: Address::Tcp(format!("{own}:{port}")).to_string(),
                secret: secret.to_owned(),
                word: token().map_err(|e| Error::Failed(e.to_string()))?,
                bind: options.bind,
                label: options.label,
                lines: options.lines,
                grace: options.grace.as_secs_f64(),
                variables: part::variables(),
                dir: dir.clone(),
                program: program.clone(),
            };
            match part::start(&rsh::words(&options.rsh), host, &part) {
                Ok((mut child, input)) => {
                    let confirmation = Confirmation::default();
                    if let Err(e) = self.copy_far(&mut child, &part, &confirmation) {
                        self.stop(&format!("cannot copy the output of host {host}: {e}"), 1);
                    }
                    let limits = (options.start_timeout, self.grace + FAR);
                    let far = Some(Far::new((host, &options.rsh), confirmation, input, limits));
                    self.started.push(Started { child: Some(child), ranks: ranks.clone(), far });
                }
                Err(e) => {
                    self.stop(&format!("cannot start {:?} for host {host}: {e}", options.rsh), 126);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Waits until all have ended, and all that they have written is copied; the exit code of the job. A
    /// signal ends the second wait: what left the job's process groups may have the output still. Where a
    /// command that reaches a host was ended the wait has a limit.
    pub(super) fn finish(mut self, signals: &Signals) -> Result<u8, Error> {
        self.wait(signals);
        let until = self.gave_up.then(|| Instant::now() + FAR);
        let is_late = || until.is_some_and(|until| until <= Instant::now());
        while !is_late() && self.copies.iter().any(|copy| !copy.is_finished()) {
            match signals.next(Some(PERIOD)).map(|came| came.signal) {
                Some(signal) if PASSED.contains(&signal) => return Ok(128 + signal as u8),
                _ => {}
            }
        }
        for thread in self.copies.drain(..).filter(JoinHandle::is_finished) {
            // One that reads no more (`| head`) has what it wants.
            match thread.join() {
                Ok(Err(e)) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                    return Err(Error::Failed(format!("output of the job is lost: {e}")));
                }
                _ => {}
            }
        }
        Ok(self.code.unwrap_or(0))
    }

    fn copy_output(&mut self, child: &mut Child, label: &str) -> std::io::Result<()> {
        if let Some(out) = child.stdout.take() {
            self.copies.push(copy(out, stdout, label.to_owned())?);
        }
        if let Some(error) = child.stderr.take() {
            self.copies.push(copy(error, stderr, label.to_owned())?);
        }
        Ok(())
    }

    /// As [`Job::copy_output`], of a part that confirms what it does.
    fn copy_far(&mut self, child: &mut Child, part: &Part, to: &Confirmation) -> std::io::Result<()> {
        if let Some(out) = child.stdout.take() {
            let out = Marked::new(out, &part.word, to.clone());
            let copy = match part.by_line() {
                true => copy(out, stdout, String::new()),
                false => copy_bytes(out, stdout),
            };
            self.copies.push(copy?);
        }
        self.copy_output(child, "")
    }

    /// Waits until all have ended.
    fn wait(&mut self, signals: &Signals) {
        loop {
            self.reap();
            self.confirm();
            self.end_late();
            let is_open = self.started.iter().any(|one| one.far.as_ref().is_some_and(Far::is_open));
            let has_ended = self.started.iter().all(|one| one.child.is_none());
            if has_ended && (!is_open || self.code.is_some()) {
                return;
            }
            let limit = self.kill_at.map(|at| at.saturating_duration_since(Instant::now()));
            let far = self.started.iter().any(|one| one.far.is_some() && one.child.is_some());
            let period = if is_open { Some(PERIOD) } else { far.then_some(CONFIRMED) };
            let limit = limit.into_iter().chain(period).min();
            match signals.next(limit).map(|came| came.signal) {
                Some(signal) if PASSED.contains(&signal) && has_ended => {
                    self.code = Some(128 + signal as u8);
                    return;
                }
                Some(signal) if PASSED.contains(&signal) => {
                    self.signal(signal);
                    if signal == libc::SIGTERM {
                        self.kill_at.get_or_insert(Instant::now() + self.grace);
                    }
                }
                Some(_) => {}
                None if self.kill_at.is_some_and(|at| at <= Instant::now()) => self.kill(),
                None => {}
            }
        }
    }

    /// Kills what is left. Other hosts have the grace once more: theirs began later.
    fn kill(&mut self) {
        let again = std::mem::replace(&mut self.killed, true);
        self.signal(libc::SIGKILL);
        let far = self.started.iter().filter(|one| one.far.is_some());
        let left = far.filter_map(|one| one.child.as_ref());
        if again {
            self.gave_up = true;
            left.for_each(|child| signal_group(child.id(), libc::SIGKILL));
            self.kill_at = None;
        } else {
            self.kill_at = left.count().gt(&0).then(|| Instant::now() + self.grace + FAR);
        }
    }

    /// Sends a signal to the groups of the processes that run.
    fn signal(&mut self, signal: libc::c_int) {
        for one in &mut self.started {
            match (&one.child, &mut one.far) {
                (Some(child), Some(far)) => {
                    // What reaches the host heeds it while nothing there can.
                    if far.is_starting() && signal != libc::SIGUSR1 && signal != libc::SIGUSR2 {
                        signal_group(child.id(), signal);
                    }
                    far.signal(signal);
                }
                (Some(child), None) => signal_group(child.id(), signal),
                (None, _) => {}
            }
        }
    }

    /// Takes note of the processes that have ended.
    fn reap(&mut self) {
        for at in 0..self.started.len() {
            let Some(child) = &mut self.started[at].child else { continue };
            // Before its number is free for others: what it has left in its group ends with it.
            if has_ended(child.id()) {
                signal_group(child.id(), libc::SIGKILL);
            }
            let status = match child.try_wait() {
                Ok(None) => continue,
                Ok(Some(status)) => status,
                // Not our child any more: there is nothing to wait for.
                Err(_) => ExitStatus::from_raw(1 << 8),
            };
            let id = child.id();
            let one = &mut self.started[at];
            one.child = None;
            if one.far.as_mut().is_some_and(|far| far.ended(status.success())) {
                continue;
            }
            if status.success() {
                if let Some(exchange) = &self.exchange {
                    one.ranks.clone().for_each(|rank| exchange.ended(rank));
                }
                continue;
            }
            let (how, code) = match (status.signal(), status.code()) {
                (Some(signal), _) => (format!("was killed by {}", name(signal)), 128 + signal as u8),
                (None, code) => {
                    let code = code.unwrap_or(1);
                    (format!("ended with exit code {code}"), u8::try_from(code).unwrap_or(1))
                }
            };
            let ended = match &one.far {
                Some(far) => format!("host {}, with {}, {how}", far.host(), ranks(&one.ranks)),
                None => format!("rank {} (process {id}) {how}", one.ranks.start),
            };
            self.stop(&ended, code);
        }
    }

    /// Takes note of the hosts whose command has succeeded, by what their output confirms.
    fn confirm(&mut self) {
        for at in 0..self.started.len() {
            let one = &mut self.started[at];
            let Some(far) = &mut one.far else { continue };
            let Some(verdict) = far.verdict() else { continue };
            let of = format!("host {}, with {},", far.host(), ranks(&one.ranks));
            match verdict {
                Ok(0) => {
                    if let Some(exchange) = &self.exchange {
                        one.ranks.clone().for_each(|rank| exchange.ended(rank));
                    }
                }
                Ok(code) => self.stop(&format!("{of} ended with exit code {code}"), code),
                Err(Seen::Nothing) => {
                    self.stop(&format!("{of} ran nothing: the command of --rsh ended without it"), 1);
                }
                Err(_) => self.stop(&format!("{of} is lost: its processes began, and no end is known"), 1),
            }
        }
    }

    /// Ends the commands that have not begun or ended in time.
    fn end_late(&mut self) {
        for at in 0..self.started.len() {
            let Started { child: Some(child), far: Some(far), ranks: all } = &mut self.started[at] else {
                continue;
            };
            let Some(late) = far.late(Instant::now()) else { continue };
            let (id, says) = (child.id(), far.says(&late, &ranks(all)));
            self.gave_up = true;
            match late {
                Late::Start => {
                    signal_group(id, libc::SIGTERM);
                    self.stop(&says, 1);
                }
                Late::End => {
                    signal_group(id, libc::SIGKILL);
                    say!("strait run: {says}");
                }
            }
        }
    }

    /// Ends the job for this reason; of several the first counts.
    fn stop(&mut self, why: &str, code: u8) {
        if self.code.is_some() {
            return;
        }
        self.code = Some(code);
        let left: usize =
            self.started.iter().filter(|one| one.child.is_some()).map(|one| one.ranks.len()).sum();
        let rest = match left {
            0 => String::new(),
            1 => "; the other process is ended".into(),
            _ => format!("; the other {left} processes are ended"),
        };
        say!("strait run: {why}{rest}");
        if let Some(exchange) = &self.exchange {
            exchange.fail(why);
        }
        self.signal(libc::SIGTERM);
        self.kill_at = Some(Instant::now() + self.grace);
    }
}

/// Ranks, for people.
fn ranks(ranks: &Range<usize>) -> String {
    match ranks.len() {
        1 => format!("rank {}", ranks.start),
        _ => format!("ranks {} to {}", ranks.start, ranks.end - 1),
    }
}

/// Whether a child has ended; it is waited for later.
fn has_ended(child: u32) -> bool {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: a valid place for the answer, of which zeros are a value; without an answer they stay
    // (waitid(2)).
    unsafe {
        libc::waitid(libc::P_PID, child, info.as_mut_ptr(), options) == 0
            && info.assume_init_ref().si_pid() != 0
    }
}

/// Sends a signal to the group of a child that was not waited for.
fn signal_group(child: u32, signal: libc::c_int) {
    if let Ok(group) = i32::try_from(child) {
        // SAFETY: kill(2) takes numbers. The child was not waited for, so the number is still its own.
        unsafe { libc::kill(-group, signal) };
    }
}

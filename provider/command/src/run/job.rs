//! Starting the processes, and what happens when one ends.

use std::io::IsTerminal;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::Instant;

use bootstrap::{Address, Server, names, token};

use super::Options;
use super::output::{copy, stderr, stdout};
use super::signals::{PASSED, Signals, name};
use crate::fabric::Error;
use crate::os;
use crate::out::say;

struct Job {
    children: Vec<Option<Child>>,
    copies: Vec<JoinHandle<std::io::Result<()>>>,
    exchange: Server,
    /// What the first process that failed leaves with.
    code: Option<u8>,
    /// When those that are left are killed.
    kill_at: Option<Instant>,
}

/// Runs the job; the answer is the exit code of the first process that failed.
pub fn run(options: &Options) -> Result<ExitCode, Error> {
    let signals = Signals::take().map_err(|e| Error::Failed(format!("signalfd: {e}")))?;
    let failed = |e: bootstrap::Error| Error::Failed(e.to_string());
    let (secret, place) = (token().map_err(failed)?, token().map_err(failed)?);
    let address = Address::Abstract(format!("strait/run/{place}"));
    let exchange =
        Server::start(std::slice::from_ref(&address), options.procs, &secret, None).map_err(failed)?;
    let mut job = Job { children: Vec::new(), copies: Vec::new(), exchange, code: None, kill_at: None };
    let cpus = os::spread_cpus();
    for rank in 0..options.procs {
        let mut command =
            command(options, rank, &address, &secret, options.bind.then(|| cpus[rank % cpus.len()]));
        match command.spawn() {
            Ok(mut child) => {
                if let Err(e) = job.copy_output(&mut child, rank, options.label) {
                    job.stop(options, &format!("cannot copy the output of rank {rank}: {e}"), 1);
                }
                job.children.push(Some(child));
            }
            Err(e) => {
                // As shells do: 127 for a program that is not there, 126 for one that cannot be run.
                let code = if e.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
                let program = options.program[0].to_string_lossy();
                job.stop(options, &format!("cannot start {program} as rank {rank}: {e}"), code);
                break;
            }
        }
    }
    job.wait(options, &signals);
    for thread in job.copies.drain(..) {
        // One that reads no more (`| head`) has what it wants.
        match thread.join() {
            Ok(Err(e)) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                return Err(Error::Failed(format!("output of the job is lost: {e}")));
            }
            _ => {}
        }
    }
    Ok(ExitCode::from(job.code.unwrap_or(0)))
}

/// The process of a rank.
fn command(options: &Options, rank: usize, address: &Address, secret: &str, cpu: Option<usize>) -> Command {
    let mut command = Command::new(&options.program[0]);
    command.args(&options.program[1..]);
    command.env(names::RANK, rank.to_string()).env(names::SIZE, options.procs.to_string());
    command
        .env(names::EXCHANGE, address.to_string())
        .env(names::JOB, secret)
        .env(names::LAUNCHER, "strait run");
    // What a launcher around this one said of its own job is wrong here.
    for other in ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMIX_NAMESPACE", "PMIX_RANK"] {
        command.env_remove(other);
    }
    // Rank 0 reads what this process could; a group in the background would be stopped by a terminal.
    if rank > 0 || std::io::stdin().is_terminal() {
        command.stdin(Stdio::null());
    }
    if options.label || options.lines {
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
    fn copy_output(&mut self, child: &mut Child, rank: usize, label: bool) -> std::io::Result<()> {
        let label = if label { format!("[{rank}] ") } else { String::new() };
        if let Some(out) = child.stdout.take() {
            self.copies.push(copy(out, stdout, label.clone())?);
        }
        if let Some(error) = child.stderr.take() {
            self.copies.push(copy(error, stderr, label)?);
        }
        Ok(())
    }

    /// Waits until all have ended.
    fn wait(&mut self, options: &Options, signals: &Signals) {
        loop {
            self.reap(options);
            if self.children.iter().all(Option::is_none) {
                return;
            }
            let limit = self.kill_at.map(|at| at.saturating_duration_since(Instant::now()));
            match signals.next(limit).map(|came| came.signal) {
                Some(signal) if PASSED.contains(&signal) => {
                    self.signal(signal);
                    if signal == libc::SIGTERM {
                        self.kill_at.get_or_insert(Instant::now() + options.grace);
                    }
                }
                Some(_) => {}
                None if self.kill_at.is_some_and(|at| at <= Instant::now()) => {
                    self.signal(libc::SIGKILL);
                    self.kill_at = None;
                }
                None => {}
            }
        }
    }

    /// Sends a signal to the groups of the processes that run.
    fn signal(&self, signal: libc::c_int) {
        for child in self.children.iter().flatten() {
            signal_group(child.id(), signal);
        }
    }

    /// Takes note of the processes that have ended.
    fn reap(&mut self, options: &Options) {
        for rank in 0..self.children.len() {
            let Some(child) = &mut self.children[rank] else { continue };
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
            self.children[rank] = None;
            if status.success() {
                self.exchange.ended(rank);
                continue;
            }
            let (how, code) = match (status.signal(), status.code()) {
                (Some(signal), _) => (format!("was killed by {}", name(signal)), 128 + signal as u8),
                (None, code) => {
                    let code = code.unwrap_or(1);
                    (format!("ended with exit code {code}"), u8::try_from(code).unwrap_or(1))
                }
            };
            self.stop(options, &format!("rank {rank} (process {id}) {how}"), code);
        }
    }

    /// Ends the job for this reason; of several the first counts.
    fn stop(&mut self, options: &Options, why: &str, code: u8) {
        if self.code.is_some() {
            return;
        }
        self.code = Some(code);
        let left = self.children.iter().flatten().count();
        let rest = match left {
            0 => String::new(),
            1 => "; the other process is ended".into(),
            _ => format!("; the other {left} processes are ended"),
        };
        say!("strait run: {why}{rest}");
        self.exchange.fail(why);
        self.signal(libc::SIGTERM);
        self.kill_at = Some(Instant::now() + options.grace);
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

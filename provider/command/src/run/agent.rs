//! `strait run-part`: the processes of a job on this host, which `strait run` on another one describes.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::process::ExitCode;
use std::time::Duration;

use super::confirm::mark;
use super::job::{Job, Place};
use super::output::stdout;
use super::part::Part;
use super::signals::{PASSED, Signals};
use crate::fabric::Error;

/// Runs the part that standard input describes.
pub fn run() -> Result<ExitCode, Error> {
    let signals = Signals::take().map_err(|e| Error::Failed(format!("signalfd: {e}")))?;
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    input.read_line(&mut line).map_err(|e| Error::Failed(format!("standard input: {e}")))?;
    let part: Part = serde_json::from_str(&line).map_err(|e| {
        Error::Failed(format!("run-part is for the use of strait run of the same version: {e}"))
    })?;
    std::env::set_current_dir(&part.dir).map_err(|e| {
        Error::Failed(format!("the directory {} of strait run is not here: {e}", part.dir.display()))
    })?;
    std::thread::Builder::new()
        .name("strait-signals".into())
        .spawn(move || pass_on(input))
        .map_err(|e| Error::Failed(format!("cannot start a thread: {e}")))?;
    let exchange = part.exchange.parse().map_err(|e: bootstrap::Error| Error::Failed(e.to_string()))?;
    let program = part.program.iter().map(OsString::from).collect();
    let mut job = Job::new(None, Duration::from_secs_f64(part.grace));
    let (size, secret, variables) = (part.size, part.secret, part.variables);
    let place = Place { program, size, address: exchange, secret, stdin: false, variables };
    confirm(&part.word, None);
    job.start_here(&place, part.first..part.first + part.count, (part.bind, part.label, part.lines));
    let code = job.finish(&signals)?;
    confirm(&part.word, Some(code));
    Ok(ExitCode::from(code))
}

/// Writes a mark. Where it finds no reader any more, none needs it.
fn confirm(word: &str, ended: Option<u8>) {
    let _ = stdout(&mark(word, ended));
}

/// Gives this process the signals that come, and SIGTERM when none comes any more.
fn pass_on(input: impl BufRead) {
    let raise = |signal: libc::c_int| {
        // SAFETY: kill(2) takes numbers; the signal is blocked, and read by the job.
        unsafe { libc::kill(libc::getpid(), signal) };
    };
    for line in input.lines().map_while(Result::ok) {
        if let Some(signal) = line.trim().parse().ok().filter(|signal| PASSED.contains(signal)) {
            raise(signal);
        }
    }
    raise(libc::SIGTERM);
}

//! The processes of a job on another host, as `strait run` starts and signals them: what it sends there on
//! standard input is a description, one line of JSON, and a line with the number of each signal. The end of
//! the input ends the processes.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Stdio};

use serde::{Deserialize, Serialize};

use super::signals::Signals;
use crate::out::quoted;
use crate::rsh;

/// Variables that begin like this are those of the job on all hosts.
const HANDED_ON: [&str; 4] = ["STRAIT_", "FI_", "UCX_", "LD_LIBRARY_PATH"];

/// What a host is to start.
#[derive(Debug, Serialize, Deserialize)]
pub struct Part {
    pub first: usize,
    pub count: usize,
    pub size: usize,
    pub exchange: String,
    /// The word that all processes have to know: it is in no command line.
    pub secret: String,
    /// What its marks have ([`super::confirm`]).
    pub word: String,
    pub bind: bool,
    pub label: bool,
    pub lines: bool,
    pub grace: f64,
    pub variables: Vec<(String, String)>,
    pub dir: PathBuf,
    pub program: Vec<String>,
}

impl Part {
    /// Output is kept together in lines.
    pub fn by_line(&self) -> bool {
        self.label || self.lines
    }
}

/// The variables of this process that its job has on all hosts.
pub fn variables() -> Vec<(String, String)> {
    let all =
        std::env::vars_os().filter_map(|(name, value)| name.into_string().ok().zip(value.into_string().ok()));
    all.filter(|(name, _)| HANDED_ON.iter().any(|start| name.starts_with(start))).collect()
}

/// Starts this program on a host, to run that part.
pub fn start(words: &[String], host: &str, part: &Part) -> std::io::Result<Child> {
    use std::os::unix::process::CommandExt;
    let own = std::env::current_exe()?;
    let line = format!("exec {} run-part", quoted(&own.to_string_lossy()));
    let mut command = rsh::on(words, host, &line).ok_or(std::io::ErrorKind::InvalidInput)?;
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    if part.by_line() {
        command.stderr(Stdio::piped());
    }
    // SAFETY: between fork and exec the closure makes system calls alone, and allocates nothing.
    unsafe { command.pre_exec(Signals::give_back) };
    let mut child = command.spawn()?;
    let mut text = serde_json::to_string(part)?;
    text.push('\n');
    if let Some(input) = &mut child.stdin {
        // One that has ended already says so by its exit code.
        let _ = input.write_all(text.as_bytes());
    }
    Ok(child)
}

/// Passes a signal on to the processes of a host.
pub fn signal(child: &mut Child, signal: libc::c_int) {
    match &mut child.stdin {
        // Without more input the processes are ended there.
        input if signal == libc::SIGKILL => drop(input.take()),
        Some(input) => drop(writeln!(input, "{signal}").and_then(|()| input.flush())),
        None => {}
    }
}

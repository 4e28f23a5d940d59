//! The processes of a job on another host, as `strait run` starts and signals them: what it sends there on
//! standard input is a description, one line of JSON, and a line with the number of each signal. The end of
//! the input ends the processes.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Sender, channel};

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

/// The standard input of a command that reaches a host. A thread writes it, since a command that hangs may
/// read nothing.
pub struct Input(Option<Sender<String>>);

impl Input {
    fn new(mut to: ChildStdin) -> std::io::Result<Input> {
        let (lines, all) = channel::<String>();
        std::thread::Builder::new().name("strait-input".into()).stack_size(256 << 10).spawn(move || {
            for line in all {
                // One that has ended already says so by its exit code.
                if to.write_all(line.as_bytes()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Input(Some(lines)))
    }

    #[cfg(test)]
    pub fn none() -> Input {
        Input(None)
    }

    fn line(&self, text: String) {
        if let Some(lines) = &self.0 {
            let _ = lines.send(text + "\n");
        }
    }

    /// Passes a signal on to the processes of the host.
    pub fn signal(&mut self, signal: libc::c_int) {
        match signal {
            // Without more input the processes are ended there.
            libc::SIGKILL => self.0 = None,
            _ => self.line(signal.to_string()),
        }
    }
}

/// Starts this program on a host, to run that part.
pub fn start(words: &[String], host: &str, part: &Part) -> std::io::Result<(Child, Input)> {
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
    let text = serde_json::to_string(part)?;
    let mut child = command.spawn()?;
    let input = child.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe.into()).and_then(Input::new);
    let input = input.inspect_err(|_| {
        let _ = child.kill().and_then(|()| child.wait());
    })?;
    input.line(text);
    Ok((child, input))
}

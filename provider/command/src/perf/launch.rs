//! Starting the processes that measure.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::session::Role;
use super::wire::{Channel, Reply};
use super::worker::Start;
use crate::fabric::Error;
use crate::os;

/// What workers are started for.
#[derive(Clone, Debug)]
pub struct Plan {
    pub libfabric: Option<std::path::PathBuf>,
    pub cpus: (usize, usize),
    /// Name and directory of this installation's provider, if FI_PROVIDER_PATH names no other.
    pub own: Option<(&'static str, std::path::PathBuf)>,
    pub timeout: Duration,
}

pub(super) fn end(mut child: Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Starts a worker that talks to another by `aside`.
pub(super) fn worker(
    plan: &Plan,
    provider: Option<&str>,
    role: Role,
    aside: UnixStream,
    number: usize,
    replies: Sender<(usize, Option<Reply>)>,
) -> Result<(Child, Channel), Error> {
    let (ours, theirs) = UnixStream::pair()?;
    let start = Start {
        role,
        aside: aside.as_raw_fd(),
        cpus: plan.cpus,
        timeout_ms: plan.timeout.as_millis().try_into().unwrap_or(u64::MAX),
        libfabric: plan.libfabric.clone(),
    };
    let mut command = Command::new(std::env::current_exe()?);
    command.args(start.args()).stdin(Stdio::from(OwnedFd::from(theirs)));
    // What a provider prints is no part of our output.
    command.stdout(Stdio::from(std::io::stderr()));
    if let Some(provider) = provider {
        command.env("FI_PROVIDER", provider);
        // For this one alone: the variable takes the place of libfabric's own directory.
        if let Some((_, dir)) = plan.own.as_ref().filter(|(name, _)| *name == provider) {
            command.env("FI_PROVIDER_PATH", dir);
        }
    }
    let fd = aside.as_raw_fd();
    let parent = std::process::id();
    // SAFETY: between fork and exec the closure makes only system calls and allocates nothing. The
    // descriptor is open there as here: `aside` is dropped after the child was started.
    unsafe {
        command.pre_exec(move || {
            os::end_with_parent(parent);
            if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let child = command
        .spawn()
        .map_err(|error| Error::Failed(format!("cannot start a process to measure: {error}")))?;
    drop(command);
    let mut inbox = Channel::new(ours.try_clone()?);
    std::thread::spawn(move || {
        loop {
            let reply = inbox.recv::<Reply>().ok();
            let last = reply.is_none();
            if replies.send((number, reply)).is_err() || last {
                return;
            }
        }
    });
    Ok((child, Channel::new(ours)))
}

//! The journals of a job's processes on other hosts: requested, and brought here, by ssh(1) or what is given
//! in its place.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::out::quoted;
use crate::rsh;

/// The other hosts of a job.
#[derive(Clone, Debug, Default)]
pub struct Far {
    pub hosts: Vec<String>,
    /// A command that runs another one on a host: its words, in front of the host's name.
    pub rsh: Vec<String>,
}

impl Far {
    fn on(&self, host: &str, line: String) -> Option<Command> {
        let mut command = rsh::on(&self.rsh, host, &line)?;
        command.stdin(Stdio::null());
        Some(command)
    }

    /// Has the processes on all hosts say what is pending.
    pub fn ask(&self, dir: &Path) {
        let file = quoted(&dir.join(link::journal::ASK).to_string_lossy());
        let started =
            self.hosts.iter().filter_map(|host| self.on(host, format!("touch {file}"))?.spawn().ok());
        for mut child in started.collect::<Vec<_>>() {
            let _ = child.wait();
        }
    }

    /// Brings the directories of all hosts into this one, and returns them; and the hosts of which there is
    /// none.
    pub fn bring(&self, dir: &Path) -> (Vec<PathBuf>, Vec<String>) {
        let (mut brought, mut missing) = (Vec::new(), Vec::new());
        for (n, host) in self.hosts.iter().enumerate() {
            let to = dir.join(format!("far-{n}"));
            match self.bring_one(host, dir, &to) {
                Some(()) => brought.push(to),
                None => missing.push(host.clone()),
            }
        }
        (brought, missing)
    }

    fn bring_one(&self, host: &str, dir: &Path, to: &Path) -> Option<()> {
        let _ = std::fs::create_dir(to);
        let line = format!("tar -C {} --exclude 'far-*' -cf - .", quoted(&dir.to_string_lossy()));
        let mut from = self.on(host, line)?.stdout(Stdio::piped()).spawn().ok()?;
        let unpack = Command::new("tar")
            .args(["--no-same-owner", "-xf", "-", "-C"])
            .arg(to)
            .stdin(from.stdout.take()?)
            .stderr(Stdio::null())
            .status();
        let sent = from.wait().is_ok_and(|status| status.success());
        (sent && unpack.is_ok_and(|status| status.success())).then_some(())
    }

    /// Removes the directories.
    pub fn clear(&self, dir: &Path) {
        for host in &self.hosts {
            if let Some(mut command) = self.on(host, format!("rm -rf {}", quoted(&dir.to_string_lossy()))) {
                let _ = command.status();
            }
        }
    }
}

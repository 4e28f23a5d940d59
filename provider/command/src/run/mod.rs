//! `strait run`: starts the processes of a job, on this host or on others, and ends when they have.

mod agent;
mod confirm;
mod far;
mod hosts;
mod job;
mod output;
mod part;
pub mod signals;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};

use crate::fabric::Error;
use crate::values;
pub use agent::run as run_part;
pub use job::run;

#[derive(Args, Debug, PartialEq)]
#[command(after_help = "\
Each process gets STRAIT_RANK, STRAIT_SIZE and, by STRAIT_EXCHANGE, a socket by which libstrait_rpipe finds the others.
Rank 0 reads standard input, unless that is a terminal. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on.
If a process is killed or ends with another exit code than 0, the others get the reason, SIGTERM, and later SIGKILL.

Exits with the exit code of the first process that failed, with 128 and its number for a signal, with 127 if there is no
such program, with 2 for wrong usage, and else with 0.

With --hosts or --hostfile the processes are on those hosts, in the order of the list, and all read nothing. Each host has this
program at the same path, the directory, and the program. Variables whose names begin with STRAIT_, FI_ and UCX_, and
LD_LIBRARY_PATH, are those of this command.

Examples:
  strait run -n 4 --bind --label ./program
  strait run -n 8 --hosts node1:4,node2:4 ./program")]
pub struct Options {
    /// so many processes
    #[arg(short = 'n', long, value_name = "N", value_parser = values::count(1, 65536))]
    pub procs: usize,
    /// each is bound to a core of its own, as far as there are enough
    #[arg(long)]
    pub bind: bool,
    /// output line by line, with the rank in front
    #[arg(short, long)]
    pub label: bool,
    /// output line by line, so that lines of several processes do not mix
    #[arg(long)]
    pub lines: bool,
    /// from the request to end until a process is killed
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = values::duration(0.0, 3600.0))]
    pub grace: Duration,
    /// the hosts, each with how many processes it takes; without numbers equal parts
    #[arg(long, value_name = "HOST[:N],HOST[:N]", conflicts_with = "hostfile")]
    pub hosts: Option<String>,
    /// the same by lines of a file: HOST, or HOST slots=N
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub hostfile: Option<PathBuf>,
    /// what runs a command on one of them
    #[arg(long, value_name = "COMMAND", default_value = "ssh")]
    pub rsh: String,
    /// how long a host may take until its processes begin
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = values::duration(0.1, 86400.0))]
    pub start_timeout: Duration,
    /// the address of this host that they reach; default: its first one that is up
    #[arg(long, value_name = "HOST")]
    pub address: Option<String>,
    /// the program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

impl Options {
    /// What is wrong with the values of the line together.
    pub fn wrong(&self) -> Option<String> {
        let placed = self.hosts.as_ref().map(|text| hosts::placed(self.procs, text));
        placed?.err().map(|why| format!("run: --hosts: {why}"))
    }

    /// The ranks of each host, if there are hosts.
    fn placed(&self) -> Result<Option<hosts::Placed>, Error> {
        let text = match (&self.hosts, &self.hostfile) {
            (Some(text), _) => text.clone(),
            (None, Some(file)) => hosts::read(file).map_err(Error::Failed)?,
            (None, None) => return Ok(None),
        };
        hosts::placed(self.procs, &text).map(Some).map_err(Error::Failed)
    }
}

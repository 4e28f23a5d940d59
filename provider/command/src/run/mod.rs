//! `strait run`: starts the processes of a job on this host, and ends when they have.

mod job;
mod output;
pub mod signals;

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, ValueHint};

use crate::values;
pub use job::run;

#[derive(Args, Debug, PartialEq)]
#[command(after_help = "\
Each process gets STRAIT_RANK, STRAIT_SIZE and, by STRAIT_EXCHANGE, a socket by which libstrait_rpipe finds the others.
Rank 0 reads standard input, unless that is a terminal. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on.
If a process is killed or ends with another exit code than 0, the others are told why, get SIGTERM, and later SIGKILL.

Exits with the exit code of the first process that failed, with 128 and its number for a signal, with 127 if there is no
such program, with 2 for wrong usage, and else with 0.

Example:
  strait run -n 4 --bind --label ./program")]
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
    /// the program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    pub program: Vec<OsString>,
}

//! The `strait` command: see [`help`].

mod args;
mod fabric;
mod help;
mod info;
mod os;
mod perf;
mod ucx_env;

use std::io::Write;
use std::process::ExitCode;

use args::Command;

fn main() -> ExitCode {
    // Output into a pipe that nobody reads to its end is no reason to panic.
    // SAFETY: no handler is installed, and no other thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let command = match args::parse(std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(error) => {
            eprintln!("strait: {error}\nTry `strait --help`.");
            return ExitCode::from(2);
        }
    };
    let done = match command {
        Command::Help(text) => {
            print!("{text}");
            Ok(true)
        }
        Command::Version => {
            println!("strait {}", env!("CARGO_PKG_VERSION"));
            Ok(true)
        }
        Command::Info { json, libfabric } => info::run(json, libfabric.as_deref()),
        Command::Perf(options) => perf::run(&options),
        Command::Plot { results, picture } => perf::plot(&results, &picture).map(|()| true),
        Command::UcxEnv { undo: true, .. } => ucx_env::undo().map_err(Into::into),
        Command::UcxEnv { ucx, sockaddr, .. } => ucx_env::run(ucx.as_deref(), sockaddr).map_err(Into::into),
        Command::Peer(start) => perf::peer(&start).map(|()| true),
    };
    let _ = std::io::stdout().flush();
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("strait: {error}");
            ExitCode::FAILURE
        }
    }
}

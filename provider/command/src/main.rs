//! The `strait` command: see [`args`].

mod adapters;
mod args;
mod call;
mod copy_agent;
mod doctor;
mod fabric;
mod info;
mod os;
mod out;
mod p2pmemd;
mod perf;
mod picture;
mod rsh;
mod run;
mod storage;
mod top;
mod topo;
mod ucx_env;
mod values;
mod version;

use std::process::ExitCode;

use args::Command;
use out::say;

fn main() -> ExitCode {
    let command = match args::parse(std::env::args_os().skip(1)) {
        Ok(command) => command,
        Err(error) if error.use_stderr() => {
            say!("{}", error.to_string().trim_end());
            return ExitCode::from(2);
        }
        // The help, or the version.
        Err(text) => return ended(out::print(&text.to_string()).map(|()| true)),
    };
    let done = match command {
        Command::Info(options) if options.call => call::run(&options),
        Command::Info(options) => info::run(&options),
        Command::Doctor { json, program, .. } if program.is_empty() => doctor::run(json),
        Command::Doctor { json, timeout, hosts, rsh, program } => {
            doctor::job(&doctor::JobOptions { program, json, timeout, hosts, rsh })
        }
        Command::Top(options) => top::run(&options),
        Command::Probe { pid, address } => out::print(&doctor::probe(pid, address)).map(|()| true),
        Command::CopyAgent => copy_agent::run().map(|()| true).map_err(Into::into),
        Command::Perf(options) => perf::run(&options),
        Command::Plot { files } => perf::plot(&files).map(|()| true),
        Command::Topo(options) => topo::run(&options).map(|()| true),
        Command::Storage(options) => storage::run(&options),
        Command::P2pmemd(options) => p2pmemd::run(&options).map(|()| true),
        Command::UcxEnv { undo: true, .. } => ucx_env::undo().map_err(Into::into),
        Command::UcxEnv { ucx, sockaddr, .. } => ucx_env::run(ucx.as_deref(), sockaddr).map_err(Into::into),
        Command::Run(options) => match run::run(&options) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::RunPart => match run::run_part() {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Peer(start) => perf::peer(&start).map(|()| true),
        Command::Completions(shell) => out::print(&args::completions(shell)).map(|()| true),
    };
    ended(done)
}

fn ended(done: Result<bool, fabric::Error>) -> ExitCode {
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say!("strait: {error}");
            ExitCode::FAILURE
        }
    }
}

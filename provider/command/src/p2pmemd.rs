//! `strait p2pmemd`: an orchestrator of peer memory for the processes of this host.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use clap::Args;
use p2pmem::daemon::{NAME, Server};
use p2pmem::{Orchestrator, Rules, rules};

use crate::fabric::Error;
use crate::{out, picture};

#[derive(Args, Debug, PartialEq)]
#[command(after_help = "\
Serves what devices publish in sysfs, and host memory, on a unix socket, until it is killed. Each process is known
by its user; what it holds goes back when it ends. Rules say which memory is for what: strait_p2pmem(7).

Example:
  strait p2pmemd --host 1GiB --rules /etc/strait/p2pmem.rules")]
pub struct Options {
    /// rules, one a line
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// so much host memory as the last resort, with KiB, MiB, GiB or TiB
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = rules::size)]
    pub host: u64,
    /// the socket's abstract name
    #[arg(long, default_value = NAME)]
    pub name: String,
    /// this directory
    #[arg(long, value_name = "PATH", default_value = "/sys")]
    pub sysfs: PathBuf,
}

/// Serves until it is killed.
pub fn run(options: &Options) -> Result<(), Error> {
    let failed = |e: p2pmem::Error| Error::Failed(e.to_string());
    let rules = match &options.rules {
        None => Rules::default(),
        Some(file) => {
            let named = |e: &dyn std::fmt::Display| Error::Failed(format!("{}: {e}", file.display()));
            let text = std::fs::read_to_string(file).map_err(|e| named(&e))?;
            Rules::parse(&text).map_err(|e| named(&e))?
        }
    };
    let all = Orchestrator::of_host(&options.sysfs, rules, options.host).map_err(failed)?;
    let publishers = all.publishers();
    if publishers.is_empty() {
        let what = "no device publishes peer memory here, and --host gives no host memory: there is nothing to serve";
        return Err(Error::Failed(what.into()));
    }
    // Each connection and each piece of host memory is a descriptor.
    crate::os::raise_descriptors();
    let mut server = Server::new(&options.name, all).map_err(failed)?;
    let mut text = format!("strait p2pmemd: listens at @{}\n", options.name);
    for p in publishers {
        text += &format!("  {} ({}): {}\n", p.name, p.kind, picture::bytes(p.size));
    }
    out::print(&text)?;
    server.serve(&AtomicBool::new(false));
    Ok(())
}

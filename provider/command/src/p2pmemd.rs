//! `strait p2pmemd`: an orchestrator of peer memory for the processes of this host.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use lexopt::prelude::*;
use p2pmem::daemon::{NAME, Server};
use p2pmem::{Orchestrator, Rules, rules};

use crate::fabric::Error;
use crate::out;

/// The options of the command line.
#[derive(Debug, PartialEq)]
pub struct Options {
    pub name: String,
    pub sysfs: PathBuf,
    pub rules: Option<PathBuf>,
    pub host: u64,
}

/// Understands the options; `None` asks for help.
pub fn parse(parser: &mut lexopt::Parser) -> Result<Option<Options>, lexopt::Error> {
    let mut options = Options { name: NAME.into(), sysfs: "/sys".into(), rules: None, host: 0 };
    while let Some(arg) = parser.next()? {
        match arg {
            Short('h') | Long("help") => return Ok(None),
            Long("name") => options.name = parser.value()?.string()?,
            Long("sysfs") => options.sysfs = parser.value()?.into(),
            Long("rules") => options.rules = Some(parser.value()?.into()),
            Long("host") => {
                options.host = rules::size(&parser.value()?.string()?).map_err(|e| format!("--host: {e}"))?;
            }
            other => return Err(other.unexpected()),
        }
    }
    Ok(Some(options))
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
        text += &format!("  {} ({}): {}\n", p.name, p.kind, p2pmem::picture::bytes(p.size));
    }
    out::print(&text)?;
    server.serve(&AtomicBool::new(false));
    Ok(())
}

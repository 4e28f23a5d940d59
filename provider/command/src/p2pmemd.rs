//! `strait p2pmemd`: an orchestrator of peer memory for the processes of this host.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use clap::Args;
use p2pmem::daemon::{Connection, NAME, Published, Server};
use p2pmem::publisher::PAGE;
use p2pmem::topology::Map;
use p2pmem::{Orchestrator, Rules, rules};

use crate::fabric::Error;
use crate::{out, picture};

#[derive(Args, Debug, PartialEq)]
#[command(after_help = "\
Serves what devices publish in sysfs, what processes publish, and host memory, on a unix socket, until it is killed.
Each process is known by its user; what it holds goes back when it ends, and what it has published is revoked.
Rules say which memory is for what: strait_p2pmem(7).

Examples:
  strait p2pmemd --host 1GiB --rules /etc/strait/p2pmem.rules
  strait p2pmemd --name /run/strait/p2pmem.sock      # for containers with a network namespace of their own
  strait p2pmemd --list mlx5_0 nvme0                 # what a running daemon has, the closest to both first")]
pub struct Options {
    /// rules, one a line
    #[arg(long, value_name = "FILE")]
    pub rules: Option<PathBuf>,
    /// so much host memory as the last resort, with KiB, MiB, GiB or TiB
    #[arg(long, value_name = "SIZE", default_value = "0", value_parser = host_size)]
    pub host: u64,
    /// the socket's abstract name, or its path if it begins with /
    #[arg(long, default_value = NAME)]
    pub name: String,
    /// this directory
    #[arg(long, value_name = "PATH", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// print what the daemon that listens there has, and how far it is from these devices together
    #[arg(long, value_name = "DEVICE", num_args = 0.., conflicts_with_all = ["rules", "host", "sysfs"])]
    pub list: Option<Vec<String>>,
}

/// A size that this host's memory has.
fn host_size(text: &str) -> Result<u64, String> {
    let size = rules::size(text).map_err(|e| e.to_string())?;
    match crate::os::memory() {
        _ if (1..PAGE).contains(&size) => Err(format!("host memory is given in pages of {PAGE} bytes")),
        Some(all) if size > all => Err(format!("this host has {}", picture::bytes(all))),
        _ => Ok(size),
    }
}

/// A line for each publisher of a running daemon.
fn list(name: &str, devices: &[String]) -> Result<(), Error> {
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    let all = Connection::open(name).and_then(|mut daemon| daemon.list(&devices)).map_err(failed)?;
    let mut text = String::new();
    for p in &all {
        text += &line(p, !devices.is_empty());
    }
    out::print(&text)
}

fn failed(e: p2pmem::Error) -> Error {
    Error::Failed(e.to_string())
}

/// A file of rules, of which no more is read than such a file has.
fn rules_of(file: &Path) -> Result<Rules, Error> {
    let named = |e: &dyn std::fmt::Display| Error::Failed(format!("{}: {e}", file.display()));
    let mut text = String::new();
    let most = Rules::MOST_BYTES as u64 + 1;
    let read = File::open(file).and_then(|file| file.take(most).read_to_string(&mut text));
    read.map_err(|e| named(&e))?;
    Rules::parse(&text).map_err(|e| named(&e))
}

fn line(p: &Published, with_distance: bool) -> String {
    let far = match p.map {
        _ if !with_distance => String::new(),
        m if m == Map::NotSupported as u8 => format!(", not reached: {}", p.why),
        m if m == Map::HostMemory as u8 => ", host memory".into(),
        m if m == Map::BusAddress as u8 => format!(", {} steps by bus addresses", p.distance),
        _ => format!(", {} steps through the host bridge", p.distance),
    };
    let state = if p.draining { ", is being unpublished" } else { "" };
    let (free, size) = (picture::bytes(p.available), picture::bytes(p.size));
    format!("{} ({}): {free} of {size} free, {} buffers{far}{state}\n", p.name, p.kind, p.buffers)
}

/// Serves until it is killed.
pub fn run(options: &Options) -> Result<(), Error> {
    if let Some(devices) = &options.list {
        return list(&options.name, devices);
    }
    let rules = match &options.rules {
        None => Rules::default(),
        Some(file) => rules_of(file)?,
    };
    let all = Orchestrator::of_host(&options.sysfs, rules, options.host).map_err(failed)?;
    let publishers = all.publishers();
    // Each connection and each piece of host memory is a descriptor.
    crate::os::raise_descriptors();
    let mut server = Server::new(&options.name, all).map_err(failed)?;
    let at = if options.name.starts_with('/') { "" } else { "@" };
    let mut text = format!("strait p2pmemd: listens at {at}{}\n", options.name);
    if publishers.is_empty() {
        text += "  no device publishes peer memory here, and there is no --host: what processes publish is served\n";
    }
    for p in publishers {
        text += &format!("  {} ({}): {}\n", p.name, p.kind, picture::bytes(p.size));
    }
    out::print(&text)?;
    server.serve(&AtomicBool::new(false));
    Ok(())
}

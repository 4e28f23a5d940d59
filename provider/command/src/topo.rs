//! `strait topo`: the PCI tree, what publishes memory in it, and how far devices are from it.

use std::path::{Path, PathBuf};

use clap::Args;
use p2pmem::Topology;
use serde::Serialize;

use crate::fabric::Error;
use crate::{out, picture};

#[derive(Args, Debug, PartialEq)]
#[command(after_help = "\
Distances and map types are those of the kernel's pci_p2pdma. As root it reads ACS everywhere; else what it
cannot read is assumed to redirect, and it says so.

Examples:
  strait topo
  strait topo --path nvme0,mlx5_0 --svg topology.svg")]
pub struct Options {
    /// the way from publisher P to client C, step by step; addresses, or names such as nvme0
    #[arg(long, value_name = "P,C", value_parser = pair)]
    pub path: Option<(String, String)>,
    /// draw it, with that way if --path is given
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// print JSON
    #[arg(long)]
    pub json: bool,
    /// also devices that neither publish nor use memory
    #[arg(long)]
    pub all: bool,
    /// this directory, or a recording
    #[arg(long, value_name = "PATH", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// print the tree as a recording, for reports of faults
    #[arg(long)]
    pub record: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (publisher, client) = text.split_once(',').ok_or("it is PUBLISHER,CLIENT")?;
    let (publisher, client) = (publisher.trim(), client.trim());
    if publisher.is_empty() || client.is_empty() || client.contains(',') {
        return Err("it is PUBLISHER,CLIENT, such as nvme0,mlx5_0".into());
    }
    Ok((publisher.into(), client.into()))
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Failed(error.to_string())
}

/// That of a directory like /sys, or of a recording.
pub fn read(sysfs: &Path) -> Result<Topology, Error> {
    if sysfs.is_dir() {
        return Topology::read(sysfs).map_err(failed);
    }
    let text = std::fs::read_to_string(sysfs).map_err(|e| failed(format!("{}: {e}", sysfs.display())))?;
    Topology::parse(&text).map_err(failed)
}

pub fn run(options: &Options) -> Result<(), Error> {
    if options.record {
        return out::print(&Topology::record(&options.sysfs).map_err(failed)?);
    }
    let all = read(&options.sysfs)?;
    let resolve = |name: &String| all.resolve(name).map_err(failed);
    let pair = match &options.path {
        Some((a, b)) => Some((resolve(a)?, resolve(b)?)),
        None => None,
    };
    if let Some(file) = &options.svg {
        let text = picture::svg(&all, pair);
        std::fs::write(file, text).map_err(|e| failed(format!("{}: {e}", file.display())))?;
    }
    match (options.json, pair) {
        (true, _) => {
            let text = serde_json::to_string_pretty(&Found::new(&all, pair)).map_err(failed)?;
            out::print(&(text + "\n"))
        }
        (false, Some((a, b))) => out::print(&picture::way(&all, a, b)),
        (false, None) => out::print(&picture::table(&all, options.all)),
    }
}

#[derive(Serialize)]
struct Found {
    processor: Processor,
    devices: Vec<Device>,
    routes: Vec<Route>,
}

#[derive(Serialize)]
struct Processor {
    vendor: String,
    family: u32,
    passes_on: bool,
}

#[derive(Serialize)]
struct Device {
    address: String,
    names: Vec<String>,
    id: String,
    class: String,
    sort: &'static str,
    upstream: Option<String>,
    root_bus: String,
    numa: Option<u32>,
    acs_redirects: bool,
    p2pmem: Option<Published>,
}

#[derive(Serialize)]
struct Published {
    size: u64,
    available: u64,
    published: bool,
}

#[derive(Serialize)]
struct Route {
    publisher: String,
    client: String,
    distance: u32,
    map: &'static str,
    why: String,
    path: Vec<String>,
    acs_redirects: Vec<String>,
}

impl Found {
    fn new(all: &Topology, pair: Option<(usize, usize)>) -> Found {
        let name = |n: usize| all.devices()[n].address.to_string();
        let device = |d: &p2pmem::topology::Device| Device {
            address: d.address.to_string(),
            names: d.names.clone(),
            id: format!("{:04x}:{:04x}", d.vendor, d.device),
            class: format!("{:06x}", d.class),
            sort: d.sort(),
            upstream: d.upstream.map(name),
            root_bus: format!("{:04x}:{:02x}", all.hosts()[d.host].domain, all.hosts()[d.host].bus),
            numa: d.numa,
            acs_redirects: d.acs.redirects(),
            p2pmem: d.p2pmem.map(|m| Published {
                size: m.size,
                available: m.available,
                published: m.published,
            }),
        };
        let route = |(a, b): (usize, usize)| {
            let route = all.route(a, b);
            let texts = |of: &[p2pmem::Address]| of.iter().map(ToString::to_string).collect();
            Route {
                publisher: name(a),
                client: name(b),
                distance: route.distance,
                map: route.map.name(),
                why: route.to_string(),
                path: texts(&route.path),
                acs_redirects: texts(&route.redirects),
            }
        };
        let clients = picture::clients(all);
        let every = picture::publishers(all).into_iter().flat_map(|a| clients.iter().map(move |b| (a, *b)));
        let pairs: Vec<_> = pair.map_or_else(|| every.collect(), |pair| vec![pair]);
        let cpu = all.cpu();
        Found {
            processor: Processor {
                vendor: cpu.vendor.clone(),
                family: cpu.family,
                passes_on: cpu.passes_on(),
            },
            devices: all.devices().iter().map(device).collect(),
            routes: pairs.into_iter().map(route).collect(),
        }
    }
}

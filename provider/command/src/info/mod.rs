//! `strait info`: what Strait finds on this host.

mod found;
mod host;
mod parameter;
pub mod peer;
mod provider;
mod text;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

pub use host::{container as containers, environment};
pub use provider::{FILE, NAME, filtered_out, libraries, nearby as nearby_provider, own as own_provider};
pub use text::{put, ranges, way};

use crate::fabric::{self, Error, Library, version_text};
use crate::values;
use crate::version::VERSION;
use found::{Found, Libfabric, Provider};

/// What is wrong with parameters that are set.
pub fn parameter_problems() -> Vec<String> {
    parameter::all(&[]).into_iter().filter_map(|p| p.problem).collect()
}

/// Why this libfabric does not offer the provider, and what to do; nothing if it does.
pub fn not_offered(library: &std::sync::Arc<Library>) -> Vec<String> {
    provider::query(library).advice
}

/// Kinds of device memory: the name, whether it is there, and words.
pub fn device_memory() -> Vec<(&'static str, bool, String)> {
    let kinds = host::memory().into_iter().filter(|m| !matches!(m.kind, "system" | "client"));
    kinds.map(|m| (m.kind, m.finding.ok, m.finding.text)).collect()
}

#[derive(Args, Debug, PartialEq)]
#[command(after_help = "\
Exits with 0 if libfabric offers the provider `strait` (with --peer: if a link leads there, with --try: if the peer
answers), else with 1.

Examples:
  strait info
  strait info --peer 10.9.0.2:46949
  strait info --peer 10.9.0.2:46949 --try
  FI_PROVIDER_PATH=/opt/strait/lib strait info --json")]
pub struct Options {
    /// the same for programs
    #[arg(long)]
    pub json: bool,
    /// which link a peer of this address would get from here with the settings in force, why, and
    /// what speaks against each other link; nothing is sent.
    /// HOST:PORT, [IPv6]:PORT, or as fi_av_straddr has it
    #[arg(long, value_name = "ADDRESS", value_parser = peer::well_formed, verbatim_doc_comment)]
    pub peer: Option<String>,
    /// calls that peer, and says how long its answer takes, or why there is none: another job key, a port
    /// that is closed or filtered, another version. Its program receives nothing
    #[arg(long = "try", requires = "peer", verbatim_doc_comment)]
    pub call: bool,
    /// how long to wait for its answer (3 to 600); closing the endpoint takes 1 s more at most
    #[arg(long, value_name = "SECONDS", requires = "call", default_value = "10", value_parser = values::duration(3.0, 600.0))]
    pub timeout: Duration,
    /// this libfabric (file, or directory with libfabric.so.1) instead of the default
    #[arg(long, value_name = "PATH")]
    pub libfabric: Option<PathBuf>,
}

/// Looks around and prints; whether the provider is offered, or a link leads to the peer.
pub fn run(options: &Options) -> Result<bool, Error> {
    let library = || Library::load(options.libfabric.as_deref());
    match &options.peer {
        Some(address) => {
            let address = peer::parse(address)?;
            let way = peer::query(&library()?, address)?;
            print(options.json, &way, || text::way(&way))?;
            Ok(way.link.is_some())
        }
        None => report(library(), options.json),
    }
}

/// Prints it in JSON or for people.
pub fn print<T: serde::Serialize>(json: bool, found: &T, render: impl Fn() -> String) -> Result<(), Error> {
    match json {
        true => crate::out::print(&(serde_json::to_string_pretty(found).map_err(|e| e.to_string())? + "\n")),
        false => crate::out::print(&render()),
    }
}

fn report(library: Result<Arc<Library>, Error>, json: bool) -> Result<bool, Error> {
    let links = match &library {
        Ok(library) => fabric::links(library, NAME),
        Err(error) => Err(error.clone()),
    };
    let (libfabric, provider, known) = match &library {
        Ok(library) => {
            let provider = provider::query(library);
            let known = library.params(settings::PREFIX);
            let libfabric = Libfabric {
                found: true,
                path: Some(library.path().display().to_string()),
                version: Some(version_text(library.version())),
                error: None,
            };
            (libfabric, provider, known)
        }
        Err(error) => {
            let libfabric =
                Libfabric { found: false, path: None, version: None, error: Some(error.text().into()) };
            (libfabric, Provider::default(), Vec::new())
        }
    };
    let found = Found {
        strait: VERSION,
        libfabric,
        provider,
        links: host::links(links),
        cma: host::cma(),
        membarrier: host::membarrier(),
        container: host::container(),
        memory: host::memory(),
        adapters: host::adapters(),
        limits: host::limits(),
        cpus: crate::os::allowed_cpus(),
        environment: host::environment(),
        parameters: parameter::all(&known),
        unknown: parameter::unknown(),
    };
    print(json, &found, || text::render(&found))?;
    Ok(found.provider.offered)
}

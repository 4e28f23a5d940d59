//! `strait info`: what Strait finds on this host.

mod host;
mod provider;
mod text;

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::fabric::{Error, Library, version_text};

/// Whether something works, and what there is to say about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub ok: bool,
    pub text: String,
}

impl Finding {
    fn new(ok: bool, text: impl Into<String>) -> Finding {
        Finding { ok, text: text.into() }
    }
}

#[derive(Debug, Serialize)]
pub struct Found {
    pub strait: &'static str,
    pub libfabric: Libfabric,
    pub provider: Provider,
    pub links: Vec<Link>,
    pub cma: Finding,
    pub membarrier: Finding,
    pub container: Vec<String>,
    pub memory: Vec<Memory>,
    pub limits: Vec<Limit>,
    pub cpus: Vec<usize>,
    pub environment: BTreeMap<String, String>,
    pub parameters: Vec<Parameter>,
}

#[derive(Debug, Serialize)]
pub struct Libfabric {
    pub found: bool,
    pub path: Option<String>,
    pub version: Option<String>,
    pub error: Option<String>,
}

#[derive(Debug, Default, Serialize)]
pub struct Provider {
    /// libfabric offers endpoints of it.
    pub offered: bool,
    pub version: Option<String>,
    /// The file that libfabric loaded.
    pub path: Option<String>,
    /// Why it is not offered, and what to do.
    pub advice: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Link {
    pub name: &'static str,
    #[serde(flatten)]
    pub finding: Finding,
}

#[derive(Debug, Serialize)]
pub struct Memory {
    pub kind: &'static str,
    #[serde(flatten)]
    pub finding: Finding,
}

#[derive(Debug, Serialize)]
pub struct Limit {
    pub name: &'static str,
    /// `None` is unlimited.
    pub soft: Option<u64>,
    pub hard: Option<u64>,
    pub bytes: bool,
    pub means: &'static str,
}

#[derive(Debug, Serialize)]
pub struct Parameter {
    pub name: String,
    pub help: String,
    pub value: Option<String>,
}

/// Looks around and prints; whether the provider is offered.
pub fn run(json: bool, path: Option<&Path>) -> Result<bool, Error> {
    let library = Library::load(path);
    let (libfabric, provider, parameters) = match &library {
        Ok(library) => {
            let provider = provider::look(library);
            let parameters = library
                .params("FI_STRAIT_")
                .into_iter()
                .map(|p| Parameter { name: p.name, help: p.help, value: p.value })
                .collect();
            let libfabric = Libfabric {
                found: true,
                path: Some(library.path().display().to_string()),
                version: Some(version_text(library.version())),
                error: None,
            };
            (libfabric, provider, parameters)
        }
        Err(error) => {
            let libfabric =
                Libfabric { found: false, path: None, version: None, error: Some(error.text().into()) };
            (libfabric, Provider::default(), Vec::new())
        }
    };
    let found = Found {
        strait: env!("CARGO_PKG_VERSION"),
        libfabric,
        provider,
        links: host::links(),
        cma: host::cma(),
        membarrier: host::membarrier(),
        container: host::container(),
        memory: host::memory(),
        limits: host::limits(),
        cpus: crate::os::allowed_cpus(),
        environment: host::environment(),
        parameters,
    };
    if json {
        println!("{}", serde_json::to_string_pretty(&found).map_err(|e| e.to_string())?);
    } else {
        print!("{}", text::render(&found));
    }
    Ok(found.provider.offered)
}

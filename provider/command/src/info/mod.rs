//! `strait info`: what Strait finds on this host.

mod found;
mod host;
mod parameter;
mod provider;
mod text;

use std::path::Path;

pub use host::{container as containers, environment};
pub use provider::{FILE, NAME, filtered_out, libraries, nearby as nearby_provider, own as own_provider};
pub use text::ranges;

use crate::fabric::{Error, Library, version_text};
use crate::version::version;
use found::{Found, Libfabric, Provider};

/// What is wrong with parameters that are set, and with variables that are named like them.
pub fn wrong_parameters() -> Vec<String> {
    let set = parameter::all(&[]).into_iter().filter_map(|p| p.problem);
    set.chain(parameter::unknown()).collect()
}

/// Why this libfabric does not offer the provider, and what to do; nothing if it does.
pub fn not_offered(library: &std::sync::Arc<Library>) -> Vec<String> {
    provider::look(library).advice
}

/// Kinds of device memory: the name, whether it is there, and words.
pub fn device_memory() -> Vec<(&'static str, bool, String)> {
    let kinds = host::memory().into_iter().filter(|m| !matches!(m.kind, "system" | "client"));
    kinds.map(|m| (m.kind, m.finding.ok, m.finding.text)).collect()
}

/// Looks around and prints; whether the provider is offered.
pub fn run(json: bool, path: Option<&Path>) -> Result<bool, Error> {
    let library = Library::load(path);
    let (libfabric, provider, known) = match &library {
        Ok(library) => {
            let provider = provider::look(library);
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
        strait: version(),
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
        parameters: parameter::all(&known),
        unknown: parameter::unknown(),
    };
    if json {
        let text = serde_json::to_string_pretty(&found).map_err(|e| e.to_string())?;
        crate::out::print(&(text + "\n"))?;
    } else {
        crate::out::print(&text::render(&found))?;
    }
    Ok(found.provider.offered)
}

//! `strait info`: what Strait finds on this host.

mod found;
mod host;
mod parameter;
mod provider;
mod text;

use std::path::Path;

pub use provider::{NAME, libraries, own as own_provider};
pub use text::ranges;

use crate::fabric::{Error, Library, version_text};
use crate::version::version;
use found::{Found, Libfabric, Provider};

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

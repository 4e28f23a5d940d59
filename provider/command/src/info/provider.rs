//! Whether libfabric offers the provider, and if not why.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::found::Provider;
use crate::fabric::{Library, Want, version_text};

pub const NAME: &str = "strait";
pub const FILE: &str = "libstrait-fi.so";

pub fn query(library: &Arc<Library>) -> Provider {
    match library.getinfo(Want { provider: NAME, caps: 0 }) {
        Ok(info) => Provider {
            offered: true,
            version: Some(version_text(info.provider_version())),
            path: loaded(),
            advice: Vec::new(),
        },
        Err(error) => {
            let path = loaded();
            let mut advice = advice(library, path.as_deref());
            if !advice.iter().any(|line| line.contains("FI_PROVIDER")) {
                advice.push(format!("libfabric says: {error}"));
            }
            Provider { offered: false, version: None, path, advice }
        }
    }
}

/// The provider's file in this process.
fn loaded() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let line = maps.lines().find(|line| line.contains(FILE))?;
    line.find('/').map(|at| line[at..].to_owned())
}

fn advice(library: &Library, loaded: Option<&str>) -> Vec<String> {
    let mut lines = Vec::new();
    let filter = std::env::var("FI_PROVIDER").unwrap_or_default();
    if filtered_out(&filter) {
        lines.push(format!("FI_PROVIDER={filter} keeps it out: unset it, or FI_PROVIDER={NAME}"));
    }
    if loaded.is_some() {
        if lines.is_empty() {
            lines.push("libfabric loaded it, but it offers nothing here".into());
            lines.push(format!("what it has to say: FI_LOG_LEVEL=info FI_LOG_PROV={NAME} strait info"));
        }
        return lines;
    }
    // libfabric looks in its own directory only if the variable is not set.
    let variable = std::env::var("FI_PROVIDER_PATH").ok().filter(|path| !path.is_empty());
    let (dirs, whence) = match &variable {
        Some(path) => (
            path.split([':', '@', '+']).filter(|p| !p.is_empty()).map(PathBuf::from).collect(),
            format!("FI_PROVIDER_PATH={path}"),
        ),
        None => {
            let dir = library.path().parent().unwrap_or(Path::new("/")).join("libfabric");
            let whence = format!("{} (FI_PROVIDER_PATH is not set)", dir.display());
            (vec![dir], whence)
        }
    };
    let there = dirs.iter().map(|dir| dir.join(FILE)).find(|file| file.exists());
    match there {
        Some(file) => {
            lines.push(format!("{} exists, but libfabric did not take it", file.display()));
            lines.push(match load(&file) {
                Err(error) => format!("it cannot be used: {error}"),
                Ok(()) => "it can be loaded: FI_LOG_LEVEL=warn strait info may say more".into(),
            });
        }
        None => {
            lines.push(format!("{FILE} is not in {whence}"));
            let place =
                nearby().map_or_else(|| "DIRECTORY".into(), |dir| crate::out::quoted(&dir.to_string_lossy()));
            lines.push(format!("to use it: export FI_PROVIDER_PATH={place} (the directory of {FILE})"));
        }
    }
    lines
}

/// Whether a value of FI_PROVIDER excludes strait.
pub fn filtered_out(filter: &str) -> bool {
    let (negated, names) = match filter.strip_prefix('^') {
        Some(names) => (true, names),
        None => (false, filter),
    };
    let named = names.split([',', ';']).any(|name| name.trim() == NAME);
    !filter.is_empty() && named == negated
}

/// The directory of the provider that this program was installed or built with, unless FI_PROVIDER_PATH names
/// one.
pub fn own() -> Option<PathBuf> {
    let named = std::env::var_os("FI_PROVIDER_PATH").is_some_and(|path| !path.is_empty());
    if named { None } else { nearby() }
}

/// Where an installation or a build would have the provider, seen from this program.
pub fn nearby() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let dir = program.parent()?;
    let beside = ["", "..", "../strait", "../lib/strait", "../lib"].map(|place| dir.join(place));
    let installed = libraries(dir).map(|lib| lib.join("libfabric"));
    beside
        .into_iter()
        .chain(installed)
        .find(|dir| dir.join(FILE).exists())
        .and_then(|dir| dir.canonicalize().ok())
}

/// The directories for libraries that go with a directory for programs: everywhere, Red Hat's and SUSE's,
/// Debian's.
pub fn libraries(bin: &Path) -> [PathBuf; 3] {
    let multiarch = format!("../lib/{}-linux-gnu", std::env::consts::ARCH);
    ["../lib", "../lib64", &multiarch].map(|place| bin.join(place))
}

fn load(file: &Path) -> Result<(), String> {
    // SAFETY: the provider's initialisers are made to be run by any program, as libfabric just did
    // or was about to; it is left loaded.
    match unsafe { libloading::Library::new(file) } {
        Ok(object) => {
            // SAFETY: the symbol is looked up, and not used.
            let is_provider = unsafe { object.get::<*const ()>(b"fi_prov_ini\0") }.is_ok();
            std::mem::forget(object);
            if is_provider {
                Ok(())
            } else {
                Err("it is no provider of libfabric: it lacks fi_prov_ini".into())
            }
        }
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_an_installation() {
        let multiarch = format!("/usr/bin/../lib/{}-linux-gnu", std::env::consts::ARCH);
        let wanted = ["/usr/bin/../lib", "/usr/bin/../lib64", &multiarch].map(PathBuf::from);
        assert_eq!(libraries(Path::new("/usr/bin")), wanted);
    }

    #[test]
    fn filters() {
        for (filter, out) in [
            ("", false),
            ("strait", false),
            ("shm,strait", false),
            ("strait;ofi_rxm", false),
            ("shm", true),
            ("straits", true),
            ("^shm", false),
            ("^shm,strait", true),
        ] {
            assert_eq!(filtered_out(filter), out, "{filter:?}");
        }
    }
}

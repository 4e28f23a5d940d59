//! The libraries of this host that could take Strait: the linker's cache, the places that the environment
//! names, and those where they are often put.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directories that are looked into, at most.
const MOST: usize = 4000;

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Libfabric,
    Ucx,
    Mpi,
}

impl Kind {
    /// Whether a file of this name is such a library; wheels add a hash to the names of theirs.
    fn is(self, name: &str) -> bool {
        let Some((stem, rest)) = name.split_once(".so") else { return false };
        let versioned = rest.starts_with('.') && rest[1..].split('.').all(|n| n.parse::<u32>().is_ok());
        let stem = stem.split_once('-').map_or(stem, |(stem, _)| stem);
        versioned
            && match self {
                Kind::Libfabric => stem == "libfabric",
                Kind::Ucx => stem == "libuct",
                Kind::Mpi => matches!(stem, "libmpi" | "libmpich"),
            }
    }
}

/// All files of one kind, each once: in the order in which programs find them.
pub fn all(kind: Kind) -> Vec<PathBuf> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for dir in directories() {
        let mut here: Vec<PathBuf> = std::fs::read_dir(&dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| kind.is(&entry.file_name().to_string_lossy()))
            .filter_map(|entry| entry.path().canonicalize().ok())
            .collect();
        here.sort();
        found.extend(here.into_iter().filter(|path| seen.insert(path.clone())));
    }
    found
}

/// Where to look.
fn directories() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> = Vec::new();
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    dirs.extend(std::env::split_paths(&path).filter(|dir| dir.is_absolute()));
    dirs.extend(of_cache());
    let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    for lib in ["/usr/local/lib", "/usr/local/lib64", "/usr/lib64", "/usr/lib", "/lib64", &multiarch] {
        dirs.extend(["", "openmpi/lib", "mpich/lib"].map(|below| Path::new(lib).join(below)));
    }
    for name in ["MPI_HOME", "MPI_ROOT", "I_MPI_ROOT", "UCX_HOME", "UCX_DIR", "CONDA_PREFIX", "VIRTUAL_ENV"] {
        if let Some(prefix) = std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute()) {
            dirs.extend(libs(&prefix));
            dirs.push(prefix.join("opt/mpi/libfabric/lib"));
            for python in below(&prefix.join("lib")) {
                let packages = below(&python.join("site-packages"));
                dirs.extend(packages.iter().flat_map(|p| [p.clone(), p.join("lib")]));
            }
        }
    }
    // /opt/mpich, /opt/intel/oneapi/mpi/2021.13
    let mut level = below(Path::new("/opt"));
    for _ in 0..4 {
        level.truncate(MOST);
        dirs.extend(level.iter().flat_map(|dir| libs(dir)));
        level = level.iter().flat_map(|dir| below(dir)).collect();
    }
    let mut seen = BTreeSet::new();
    dirs.retain(|dir| seen.insert(dir.clone()));
    dirs.truncate(MOST);
    dirs
}

fn libs(prefix: &Path) -> [PathBuf; 2] {
    ["lib", "lib64"].map(|lib| prefix.join(lib))
}

/// The directories in a directory, without what links lead to.
fn below(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
}

/// The directories that the linker's cache names.
fn of_cache() -> Vec<PathBuf> {
    let text = ["/sbin/ldconfig", "ldconfig"].iter().find_map(|program| {
        let output = Command::new(program).arg("-p").output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    });
    cached(&text.unwrap_or_default())
}

fn cached(text: &str) -> Vec<PathBuf> {
    let files = text.lines().filter_map(|line| Some(PathBuf::from(line.split_once(" => ")?.1)));
    let dirs: BTreeSet<PathBuf> = files.filter_map(|file| Some(file.parent()?.to_owned())).collect();
    dirs.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for name in ["libfabric.so.1", "libfabric.so.1.20.0", "libfabric-1a2b3c.so.1.29.1"] {
            assert!(Kind::Libfabric.is(name), "{name}");
        }
        for name in ["libfabric.so", "libfabric.a", "libfabrics.so.1", "libfabric.so.1.bak"] {
            assert!(!Kind::Libfabric.is(name), "{name}");
        }
        assert!(Kind::Ucx.is("libuct.so.0") && Kind::Ucx.is("libuct-96a.so.0.0.0"));
        assert!(!Kind::Ucx.is("libuct_cma.so.0") && !Kind::Ucx.is("libucp.so.0"));
        assert!(Kind::Mpi.is("libmpi.so.40") && Kind::Mpi.is("libmpich.so.12"));
        assert!(!Kind::Mpi.is("libmpi_cxx.so.40") && !Kind::Mpi.is("libmpi++.so.1"));
    }

    #[test]
    fn directories_of_the_cache() {
        let text = "12 libs found in cache `/etc/ld.so.cache'\n\tlibz.so.1 (libc6,x86-64) => /lib/x/libz.so.1\n\
                    \tliby.so (libc6) => /lib/x/liby.so\n\tlibw.so (libc6) => /opt/w/libw.so\n";
        assert_eq!(cached(text), ["/lib/x", "/opt/w"].map(PathBuf::from));
    }
}

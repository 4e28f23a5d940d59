//! `strait ucx-env`: how Strait is turned on under the UCX at hand.

use std::path::{Path, PathBuf};

use ucx_sys::{Epoch, Host, libraries, posix_agrees};

/// The file that UCX loads, or that is preloaded to it.
const FILE: &str = "libuct_strait.so.0";

/// Prints the settings.
pub fn run(ucx: Option<&Path>) -> Result<bool, String> {
    let plugins = plugins()?;
    let (path, epoch) = find(ucx)?;
    let text = settings(&plugins, &path, epoch, has_cuda(Path::new(&path)));
    crate::out::print(&text).map_err(|error| error.text().to_owned())?;
    Ok(true)
}

/// Whether this UCX can tell device memory from the host's (its own module does that), and there is a
/// driver for CUDA.
fn has_cuda(libuct: &Path) -> bool {
    let modules = libuct.parent().map(|dir| dir.join("ucx")).and_then(|dir| std::fs::read_dir(dir).ok());
    let module = modules.into_iter().flatten().flatten().any(|entry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        name.starts_with("libuct_cuda") && name.contains(".so")
    });
    // SAFETY: a library like any program that uses CUDA loads; it does nothing until it is asked to.
    module && unsafe { libloading::Library::new("libcuda.so.1") }.map(std::mem::forget).is_ok()
}

/// The directory with our transport: near this program.
fn plugins() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|e| format!("where is this program? {e}"))?;
    let bin = exe.parent().unwrap_or(Path::new("/"));
    let places = ["../ucx", "../lib/strait/ucx"].map(|place| bin.join(place));
    places
        .iter()
        .find(|dir| dir.join(FILE).exists())
        .and_then(|dir| dir.canonicalize().ok())
        .ok_or_else(|| format!("no {FILE} in {} or {}", places[0].display(), places[1].display()))
}

/// Loads the UCX and checks it as the transport does: its file and its release.
fn find(ucx: Option<&Path>) -> Result<(String, Epoch), String> {
    let file = match ucx {
        None => PathBuf::from("libuct.so.0"),
        Some(path) if path.is_dir() => {
            let mut files: Vec<PathBuf> = std::fs::read_dir(path)
                .map_err(|e| format!("{}: {e}", path.display()))?
                .filter_map(|entry| Some(entry.ok()?.path()))
                .filter(|p| {
                    let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    // Wheels add a hash to the names of their libraries.
                    name.starts_with("libuct") && !name.starts_with("libuct_") && name.contains(".so")
                })
                .collect();
            files.sort_by_key(|p| p.as_os_str().len());
            files.into_iter().next().ok_or_else(|| format!("no libuct in {}", path.display()))?
        }
        Some(path) => path.to_owned(),
    };
    // SAFETY: a library like any program that uses UCX loads; its initialisers are UCX's.
    let library = unsafe { libloading::Library::new(&file) }.map_err(|e| match ucx {
        None => format!("no UCX here ({e}); --ucx PATH names one"),
        Some(_) => e.to_string(),
    })?;
    let loaded = libraries().into_iter().next();
    std::mem::forget(library);
    let loaded = loaded.ok_or_else(|| format!("{}: this is no libuct", file.display()))?;
    let path = loaded.path().to_string_lossy().into_owned();
    let host = Host::of(loaded).map_err(|why| format!("not with the UCX in {path}: {why}"))?;
    posix_agrees(&host).map_err(|why| format!("not with the UCX in {path}: {why}"))?;
    Ok((path, host.epoch()))
}

fn settings(plugins: &Path, ucx: &str, epoch: Epoch, cuda: bool) -> String {
    let plugins = plugins.display();
    let door = if epoch.has_plugin_path() {
        format!("export UCX_PLUGIN_PATH={plugins}")
    } else {
        format!("export LD_PRELOAD={plugins}/{FILE}")
    };
    // What memory is a device's is found out by cuda_copy.
    let tls = if cuda { "strait,cuda_copy" } else { "strait" };
    format!(
        "# UCX {} in {ucx}\n{door}\nexport UCX_TLS={tls}\n\
         # Memory that UCP allocates, also of 2 MiB and more, is mapped into peers:\n\
         export UCX_ALLOC_PRIO=md:strait,thp,md:*,mmap,heap\n\
         # Open MPI, besides: --mca pml ucx --mca osc ucx --mca pml_ucx_tls any --mca pml_ucx_devices any\n",
        epoch.name()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_has_its_door() {
        let text = |epoch| settings(Path::new("/opt/ucx"), "/lib/libuct.so.0", epoch, false);
        assert!(text(Epoch::V1_22).contains("\nexport UCX_PLUGIN_PATH=/opt/ucx\n"));
        assert!(text(Epoch::V1_21).contains("\nexport LD_PRELOAD=/opt/ucx/libuct_strait.so.0\n"));
        assert!(text(Epoch::V1_13).contains("\nexport UCX_TLS=strait\n"));
        let cuda = settings(Path::new("/opt/ucx"), "/lib/libuct.so.0", Epoch::V1_22, true);
        assert!(cuda.contains("\nexport UCX_TLS=strait,cuda_copy\n"));
    }

    #[test]
    fn no_cuda_where_ucx_has_no_module_for_it() {
        assert!(!has_cuda(Path::new("/nonexistent/libuct.so.0")) && !has_cuda(Path::new("/")));
    }

    #[test]
    fn what_is_no_ucx_is_told() {
        assert!(find(Some(Path::new("/nonexistent"))).is_err());
        assert!(find(Some(Path::new("/proc/self"))).unwrap_err().contains("no libuct in"));
    }
}

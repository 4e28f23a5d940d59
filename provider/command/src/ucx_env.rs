//! `strait ucx-env`: how Strait is turned on under the UCX at hand.

use std::path::{Path, PathBuf};

use ucx_sys::{Epoch, Host, libraries, posix_agrees};

use crate::out::quoted;

/// The file that UCX loads, or that is preloaded to it.
pub const FILE: &str = "libuct_strait.so.0";

/// Prints the settings.
pub fn run(ucx: Option<&Path>, sockaddr: bool) -> Result<bool, String> {
    let plugins = plugins()?;
    let (path, epoch) = find(ucx)?;
    let cuda = has_cuda(Path::new(&path));
    nameable(&plugins, epoch)?;
    let text = settings(&plugins, &path, epoch, Wanted { cuda, sockaddr }, &from_env);
    crate::out::print(&text).map_err(|error| error.text().to_owned())?;
    Ok(true)
}

/// Prints what takes the settings back.
pub fn undo() -> Result<bool, String> {
    crate::out::print(&undoing(&from_env)).map_err(|error| error.text().to_owned())?;
    Ok(true)
}

fn from_env(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()).filter(|value| !value.is_empty())
}

/// What Open MPI reads of the transports and devices with which it takes UCX: by default those of network
/// cards.
pub const OPEN_MPI: [&str; 2] = ["OMPI_MCA_pml_ucx_tls", "OMPI_MCA_pml_ucx_devices"];

/// The variables that `settings` sets besides the entry point, and those that keep the values from before.
const KEPT: [(&str, &str); 4] = [
    ("UCX_TLS", "STRAIT_WAS_UCX_TLS"),
    ("UCX_ALLOC_PRIO", "STRAIT_WAS_UCX_ALLOC_PRIO"),
    (OPEN_MPI[0], "STRAIT_WAS_PML_UCX_TLS"),
    (OPEN_MPI[1], "STRAIT_WAS_PML_UCX_DEVICES"),
];

/// Memory that UCP allocates, of 2 MiB and more too, is mapped into peers.
const ALLOC_PRIO: &str = "md:strait,thp,md:*,mmap,heap";

/// Whether an entry of LD_PRELOAD or UCX_PLUGIN_PATH is of ours, in this place or another.
pub fn is_ours(entry: &str) -> bool {
    let path = Path::new(entry);
    path.file_name().is_some_and(|name| name == FILE) || path.join(FILE).exists()
}

/// A list that begins with `ours`, and goes on with what else is in it by now.
fn first(ours: Option<&str>, now: Option<String>, separators: &[char]) -> String {
    let now = now.unwrap_or_default();
    let others = now.split(separators).filter(|entry| !entry.is_empty() && !is_ours(entry));
    ours.into_iter().chain(others).collect::<Vec<_>>().join(":")
}

fn set(name: &str, value: &str) -> String {
    match value {
        "" => format!("unset {name}\n"),
        _ => format!("export {name}={}\n", quoted(value)),
    }
}

/// Whether this UCX recognises device memory (by its CUDA module), and there is a driver for CUDA.
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
pub fn plugins() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|e| format!("where is this program? {e}"))?;
    let bin = exe.parent().unwrap_or(Path::new("/"));
    let mut places = vec![bin.join("../ucx")];
    places.extend(crate::info::libraries(bin).map(|lib| lib.join("strait/ucx")));
    places.iter().find(|dir| dir.join(FILE).exists()).and_then(|dir| dir.canonicalize().ok()).ok_or_else(
        || {
            let places: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
            format!("no {FILE} in {}", places.join(", "))
        },
    )
}

/// Whether the variable by which this UCX takes the transport can name its directory.
fn nameable(plugins: &Path, epoch: Epoch) -> Result<(), String> {
    let (variable, separators) = match epoch.has_plugin_path() {
        true => ("UCX_PLUGIN_PATH", &[':'][..]),
        false => ("LD_PRELOAD", &[' ', ':'][..]),
    };
    let Some(c) = plugins.to_string_lossy().chars().find(|c| separators.contains(c)) else { return Ok(()) };
    let what = if c == ' ' { "a blank" } else { "a colon" };
    Err(format!(
        "the transport is in {}: {variable} cannot name a path with {what} in it, which to the loader is two. Install it \
         elsewhere",
        plugins.display()
    ))
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

/// What a program needs besides.
#[derive(Clone, Copy, Debug, Default)]
struct Wanted {
    /// Device memory.
    cuda: bool,
    /// Connections by the address of a socket.
    sockaddr: bool,
}

fn settings(
    plugins: &Path,
    ucx: &str,
    epoch: Epoch,
    wanted: Wanted,
    env: &dyn Fn(&str) -> Option<String>,
) -> String {
    let plugins = plugins.display();
    let entry = if epoch.has_plugin_path() {
        set("UCX_PLUGIN_PATH", &first(Some(&plugins.to_string()), env("UCX_PLUGIN_PATH"), &[':']))
    } else {
        let file = format!("{plugins}/{FILE}");
        set("LD_PRELOAD", &first(Some(&file), env("LD_PRELOAD"), &[':', ' ']))
    };
    let mut tls = String::from("strait");
    if wanted.sockaddr {
        tls += ",tcp";
    }
    // What memory is a device's is found out by cuda_copy.
    if wanted.cuda {
        tls += ",cuda_copy";
    }
    let mut out = format!("# UCX {} in {ucx}\n{entry}", epoch.name());
    for ((name, kept), ours) in KEPT.into_iter().zip([tls.as_str(), ALLOC_PRIO, "any", "any"]) {
        // A second time the value is of ours, and the one from before is kept already.
        let is_ours = |value: &String| value == ours || value.split(',').next() == Some("strait");
        if let Some(was) = env(name).filter(|value| !is_ours(value)) {
            out += &set(kept, &was);
        }
        out += &set(name, ours);
    }
    if !wanted.sockaddr {
        out += "# For programs that connect by the address of a socket, besides: strait ucx-env --sockaddr\n";
    }
    out + "# Open MPI: mpirun --mca pml ucx --mca osc ucx (Debian's configuration leaves UCX out by default)\n\
           # To take it back: eval \"$(strait ucx-env --undo)\"\n"
}

fn undoing(env: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    for (name, separators) in [("LD_PRELOAD", &[':', ' '][..]), ("UCX_PLUGIN_PATH", &[':'][..])] {
        if let Some(now) = env(name) {
            out += &set(name, &first(None, Some(now), separators));
        }
    }
    for (name, kept) in KEPT {
        out += &set(name, &env(kept).unwrap_or_default());
        out += &set(kept, "");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_release_has_its_door() {
        let text = |epoch| text_for(epoch, Wanted::default(), &[]);
        assert!(text(Epoch::V1_22).contains("\nexport UCX_PLUGIN_PATH=/opt/ucx\n"));
        assert!(text(Epoch::V1_21).contains("\nexport LD_PRELOAD=/opt/ucx/libuct_strait.so.0\n"));
        assert!(text(Epoch::V1_13).contains("\nexport UCX_TLS=strait\n"));
        for name in OPEN_MPI {
            assert!(text(Epoch::V1_13).contains(&format!("\nexport {name}=any\n")), "{name}");
        }
        let with = |cuda, sockaddr| text_for(Epoch::V1_22, Wanted { cuda, sockaddr }, &[]);
        assert!(with(true, false).contains("\nexport UCX_TLS=strait,cuda_copy\n"));
        assert!(with(false, true).contains("\nexport UCX_TLS=strait,tcp\n"));
        assert!(with(true, true).contains("\nexport UCX_TLS=strait,tcp,cuda_copy\n"));
    }

    type Env<'a> = &'a [(&'a str, &'a str)];

    fn text_for(epoch: Epoch, wanted: Wanted, env: Env<'_>) -> String {
        settings(Path::new("/opt/ucx"), "/lib/libuct.so.0", epoch, wanted, &in_env(env))
    }

    fn in_env<'a>(env: Env<'a>) -> impl Fn(&str) -> Option<String> + 'a {
        |name| env.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).into())
    }

    #[test]
    fn what_else_is_set_stays_and_comes_back() {
        let env = [
            ("LD_PRELOAD", "/usr/lib/liba.so /old/libuct_strait.so.0:libb.so"),
            ("UCX_PLUGIN_PATH", "/opt/mine:/opt/other"),
            ("UCX_TLS", "rc,x y"),
        ];
        let old = text_for(Epoch::V1_21, Wanted::default(), &env);
        assert!(
            old.contains("\nexport LD_PRELOAD=/opt/ucx/libuct_strait.so.0:/usr/lib/liba.so:libb.so\n"),
            "{old}"
        );
        assert!(old.contains("\nexport STRAIT_WAS_UCX_TLS='rc,x y'\nexport UCX_TLS=strait\n"), "{old}");
        assert!(!old.contains("WAS_UCX_ALLOC") && !old.contains("UCX_PLUGIN_PATH"));
        let new = text_for(Epoch::V1_22, Wanted::default(), &env);
        assert!(new.contains("\nexport UCX_PLUGIN_PATH=/opt/ucx:/opt/mine:/opt/other\n"), "{new}");
        // Again: nothing comes twice, and what was before is not forgotten.
        let again = [("UCX_TLS", "strait"), ("UCX_ALLOC_PRIO", ALLOC_PRIO), ("STRAIT_WAS_UCX_TLS", "rc")];
        assert!(!text_for(Epoch::V1_22, Wanted::default(), &again).contains("WAS"));
        assert_eq!(
            undoing(&in_env(&[
                ("LD_PRELOAD", "/opt/ucx/libuct_strait.so.0:/usr/lib/liba.so"),
                again[0],
                again[2]
            ])),
            "export LD_PRELOAD=/usr/lib/liba.so\nexport UCX_TLS=rc\nunset STRAIT_WAS_UCX_TLS\n\
             unset UCX_ALLOC_PRIO\nunset STRAIT_WAS_UCX_ALLOC_PRIO\n\
             unset OMPI_MCA_pml_ucx_tls\nunset STRAIT_WAS_PML_UCX_TLS\n\
             unset OMPI_MCA_pml_ucx_devices\nunset STRAIT_WAS_PML_UCX_DEVICES\n"
        );
        assert!(
            undoing(&in_env(&[("LD_PRELOAD", "/x/libuct_strait.so.0")])).starts_with("unset LD_PRELOAD\n")
        );
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn a_path_that_the_variable_cannot_name_is_refused() {
        let refusal = |path: &str, epoch| nameable(Path::new(path), epoch).err().unwrap_or_default();
        assert!(refusal("/opt/a b/ucx", Epoch::V1_21).contains("LD_PRELOAD cannot name a path with a blank"));
        assert!(refusal("/opt/a:b/ucx", Epoch::V1_21).contains("with a colon"));
        assert!(refusal("/opt/a:b/ucx", Epoch::V1_22).contains("UCX_PLUGIN_PATH"));
        // A blank is nothing to UCX.
        assert_eq!(refusal("/opt/a b/ucx", Epoch::V1_22), "");
        assert_eq!(refusal("/opt/ab/ucx", Epoch::V1_13), "");
    }

    #[test]
    fn no_cuda_where_ucx_has_no_module_for_it() {
        assert!(!has_cuda(Path::new("/nonexistent/libuct.so.0")) && !has_cuda(Path::new("/")));
    }

    #[test]
    fn what_is_no_ucx_is_reported() {
        assert!(find(Some(Path::new("/nonexistent"))).is_err());
        assert!(find(Some(Path::new("/proc/self"))).unwrap_err().contains("no libuct in"));
    }
}

//! The process that copies devices' memory where this one is not to call CUDA: `strait copy-agent`, by
//! [`hmem::agent`].

use std::ffi::{CStr, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::errno::Errno;
use crate::param::{self, CopyAgent};

/// Starts it, if it is not there. From then on no call of an operation goes to CUDA.
pub(crate) fn start() -> Result<(), Errno> {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    let refused = |why: String| {
        // Programs ask for each of their endpoints, and can do without.
        if !LOGGED.swap(true, Ordering::Relaxed) {
            log::warn!(
                "FI_OPT_CUDA_API_PERMITTED=false is refused: {why}. A program that needs that may copy GPU memory to the host \
                 itself; see FI_STRAIT_COPY_AGENT"
            );
        }
        Errno::OPNOTSUPP
    };
    let path = match param::get().copy_agent {
        CopyAgent::No => return Err(refused("FI_STRAIT_COPY_AGENT=no".into())),
        CopyAgent::At(path) => path,
        CopyAgent::Beside => beside().ok_or_else(|| {
            refused("there is no strait command beside the provider or in bin of a directory above it".into())
        })?,
    };
    let mut command = Command::new(&path);
    command.arg("copy-agent");
    // Peers' devices are copied from and to as well.
    if std::env::var_os("CUDA_VISIBLE_DEVICES").is_some_and(|v| !v.as_bytes().starts_with(b"MIG")) {
        command.env_remove("CUDA_VISIBLE_DEVICES");
    }
    let is_new = !hmem::agent::is_on();
    hmem::agent::start(command).map_err(|e| refused(format!("{} copy-agent: {e}", path.display())))?;
    let level = if is_new { log::Level::Info } else { log::Level::Debug };
    log::log!(level, "GPU memory is copied by a process of its own ({} copy-agent)", path.display());
    Ok(())
}

/// The command that was installed with this library.
fn beside() -> Option<PathBuf> {
    // SAFETY: plain data, for which zeros are a value.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is only compared, and the place is valid.
    if unsafe { libc::dladdr(start as *const libc::c_void, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the linker's name of this library, which ends in NUL.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    command_near(&std::fs::canonicalize(OsStr::from_bytes(name.to_bytes())).ok()?)
}

/// `lib/libfabric/`, `lib/x86_64-linux-gnu/libfabric/` and what Python has are below the directory that has
/// bin.
fn command_near(library: &Path) -> Option<PathBuf> {
    let dir = library.parent()?;
    let above = dir.ancestors().take(8).map(|d| d.join("bin"));
    let mut places = std::iter::once(dir.to_owned()).chain(above).map(|d| d.join("strait"));
    places.find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_found_where_it_is_installed() {
        let root = std::env::temp_dir().join(format!("strait-beside-{}", std::process::id()));
        let make = |name: &str| {
            let file = root.join(name);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(&file, "").unwrap();
            file
        };
        let library = root.join("lib/x86_64-linux-gnu/libfabric/libstrait-fi.so");
        assert_eq!(command_near(&library), None);
        for name in [
            "bin/strait",
            "lib/bin/strait",
            "lib/x86_64-linux-gnu/libfabric/bin/strait",
            "lib/x86_64-linux-gnu/libfabric/strait",
        ] {
            let file = make(name);
            assert_eq!(command_near(&library), Some(file));
        }
        std::fs::remove_dir_all(root).unwrap();
    }
}

//! Memory behind a device's BARs that its driver has published: `p2pmem/` of a function in sysfs.

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::contract::{Kind, PAGE, Publisher, Source};
use crate::address::Address;
use crate::topology::{P2pmem, Topology, published};

/// What one function publishes, up to six BARs of it, which the kernel keeps as one pool. Each mapping of
/// `allocate` is an allocation, so `available` falls when a piece is mapped, not when it is taken: what is
/// taken is counted here.
#[derive(Debug)]
pub struct Window {
    function: Address,
    dir: PathBuf,
    size: u64,
    taken: Mutex<u64>,
    /// The inode of the directory in sysfs. It is another one, of other memory, once the driver is bound
    /// again.
    inode: Option<u64>,
    allocate: Mutex<Option<Arc<OwnedFd>>>,
}

/// Those of a host, or of a directory that is laid out as /sys is.
pub fn windows(sysfs: &Path, topology: &Topology) -> Vec<Window> {
    let publishes = topology.devices().iter().filter(|d| d.p2pmem.is_some_and(|m| m.published));
    publishes.map(|d| Window::new(sysfs, d.address, d.p2pmem.map_or(0, |m| m.size))).collect()
}

impl Window {
    fn new(sysfs: &Path, function: Address, size: u64) -> Window {
        let dir = sysfs.join("bus/pci/devices").join(function.to_string());
        let inode = number_of(&dir);
        Window { function, dir, size, taken: Mutex::new(0), inode, allocate: Mutex::new(None) }
    }

    fn now(&self) -> Option<P2pmem> {
        published(&self.dir).filter(|m| m.published)
    }

    fn open(&self) -> Result<Arc<OwnedFd>, String> {
        let mut allocate = self.allocate.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(fd) = &*allocate {
            return Ok(fd.clone());
        }
        let path = self.dir.join("p2pmem/allocate");
        let file: File =
            OpenOptions::new().read(true).write(true).open(&path).map_err(|e| match e.kind() {
                std::io::ErrorKind::PermissionDenied => {
                    format!(
                        "{}: {e}: run `strait p2pmemd` as root, or let the user's group have the file",
                        path.display()
                    )
                }
                std::io::ErrorKind::NotFound => {
                    format!("{}: {e}: kernels before 6.2 have none", path.display())
                }
                _ => format!("{}: {e}", path.display()),
            })?;
        Ok(allocate.insert(Arc::new(file.into())).clone())
    }
}

impl Publisher for Window {
    fn name(&self) -> String {
        self.function.to_string()
    }

    fn kind(&self) -> Kind {
        Kind::Sysfs
    }

    fn function(&self) -> Option<Address> {
        Some(self.function)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn available(&self) -> u64 {
        let taken = *self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // Other programs may have some of it too.
        let kernels = self.now().map_or(0, |m| m.available);
        self.size.saturating_sub(taken).min(kernels) / PAGE * PAGE
    }

    fn longest(&self, align: u64) -> u64 {
        if align <= PAGE { self.available() } else { 0 }
    }

    fn take(&self, len: u64, align: u64) -> Result<(u64, Source), String> {
        if align > PAGE {
            return Err(format!("the kernel gives no more than {PAGE} bytes of alignment"));
        }
        if !self.is_alive() {
            return Err("its device is gone, or publishes no more".into());
        }
        let free = self.available();
        if len > free {
            return Err(format!("{free} of {} bytes are free", self.size));
        }
        let fd = self.open()?;
        *self.taken.lock().unwrap_or_else(PoisonError::into_inner) += len;
        Ok((0, Source::Window(fd)))
    }

    fn give(&self, _at: u64, len: u64) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = taken.saturating_sub(len);
    }

    fn is_alive(&self) -> bool {
        self.now().is_some() && number_of(&self.dir) == self.inode
    }
}

/// The number of what the function in that directory publishes: another one when its driver is bound again.
pub fn number_of(dir: &Path) -> Option<u64> {
    std::fs::metadata(dir.join("p2pmem")).ok().map(|m| m.ino())
}

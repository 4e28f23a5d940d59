//! Publishers and clients that come while the orchestrator is in use, and those that go.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::publisher::number_of;

/// What is to be seen in sysfs without reading all of it: functions, and of those that publish the number of
/// their directory.
pub(super) type Seen = HashMap<String, Option<u64>>;

/// Where a host's devices are, and what was there.
#[derive(Debug)]
pub(super) struct Host {
    pub sysfs: PathBuf,
    seen: Mutex<Seen>,
    /// What a program has taken out, which stays so until the device publishes anew.
    withdrawn: Mutex<HashMap<String, u64>>,
}

impl Host {
    pub fn new(sysfs: &Path) -> Host {
        Host { sysfs: sysfs.into(), seen: Mutex::new(seen(sysfs)), withdrawn: Mutex::default() }
    }

    /// What is there now.
    pub fn read(&self) -> Seen {
        seen(&self.sysfs)
    }

    /// Whether that is what was there when it was last read.
    pub fn is_known(&self, now: &Seen) -> bool {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) == *now
    }

    /// All was read after that was seen.
    pub fn knows(&self, now: Seen) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = now;
    }

    /// A publisher was taken out by a program, not by its device.
    pub fn withdraw(&self, name: &str) {
        if let Some(number) = number_of(&directory(&self.sysfs, name)) {
            self.withdrawn.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), number);
        }
    }

    pub fn is_withdrawn(&self, name: &str) -> bool {
        let now = number_of(&directory(&self.sysfs, name));
        let mut all = self.withdrawn.lock().unwrap_or_else(PoisonError::into_inner);
        let is = all.get(name).is_some_and(|then| Some(*then) == now);
        if !is {
            all.remove(name);
        }
        is
    }
}

fn directory(sysfs: &Path, name: &str) -> PathBuf {
    sysfs.join("bus/pci/devices").join(name)
}

fn seen(sysfs: &Path) -> Seen {
    let entries = std::fs::read_dir(sysfs.join("bus/pci/devices")).into_iter().flatten().flatten();
    let read = |entry: std::fs::DirEntry| {
        let published = std::fs::read(entry.path().join("p2pmem/published")).unwrap_or_default();
        let number = number_of(&entry.path()).filter(|_| published.first() == Some(&b'1'));
        (entry.file_name().to_string_lossy().into_owned(), number)
    };
    entries.map(read).collect()
}

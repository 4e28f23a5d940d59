//! Publishers and clients that come while the orchestrator is in use, and those that go.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use super::Orchestrator;
use super::state::Active;
use crate::error::Error;
use crate::publisher::{Publisher, number_of, windows};
use crate::topology::Topology;

/// What is to be seen in sysfs without reading all of it: functions, and of those that publish the number of their directory.
type Seen = HashMap<String, Option<u64>>;

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

    /// A publisher was taken out by a program, not by its device.
    pub fn withdraw(&self, name: &str) {
        if let Some(number) = number_of(&directory(&self.sysfs, name)) {
            self.withdrawn.lock().unwrap_or_else(PoisonError::into_inner).insert(name.into(), number);
        }
    }

    fn is_withdrawn(&self, name: &str) -> bool {
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
    let look = |entry: std::fs::DirEntry| {
        let published = std::fs::read(entry.path().join("p2pmem/published")).unwrap_or_default();
        let number = number_of(&entry.path()).filter(|_| published.first() == Some(&b'1'));
        (entry.file_name().to_string_lossy().into_owned(), number)
    };
    entries.map(look).collect()
}

impl Orchestrator {
    /// Looks for publishers and clients that have come, and takes out those that have gone ([`Orchestrator::check`]): how many
    /// publishers came. To be called now and then: it costs little as long as nothing has changed. Of an orchestrator that is of
    /// no host there are none.
    pub fn rediscover(&self) -> Result<usize, Error> {
        self.check();
        let Some(host) = &self.inner.host else { return Ok(0) };
        let now = seen(&host.sysfs);
        if *host.seen.lock().unwrap_or_else(PoisonError::into_inner) == now {
            return Ok(0);
        }
        self.read_anew()
    }

    /// Likewise, whatever has changed: names that drivers give come later than their devices.
    pub(super) fn read_anew(&self) -> Result<usize, Error> {
        let Some(host) = &self.inner.host else { return Ok(0) };
        // Before it is read: what changes meanwhile is found the next time.
        let now = seen(&host.sysfs);
        let topology = Arc::new(Topology::read(&host.sysfs)?);
        let found = windows(&host.sysfs, &topology);
        let mut state = self.inner.state();
        state.topology = topology;
        let mut came = 0;
        for window in found {
            let name = window.name();
            if state.publisher(&name).is_some() || host.is_withdrawn(&name) {
                continue;
            }
            state.publishers.push(Active { name, publisher: Arc::new(window), draining: false });
            came += 1;
        }
        *host.seen.lock().unwrap_or_else(PoisonError::into_inner) = now;
        Ok(came)
    }
}

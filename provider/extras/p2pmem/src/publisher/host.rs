//! Host memory: the last resort.

use std::sync::{Arc, Mutex, PoisonError};

use ipc::memfd::{self, Writers};

use super::contract::{Kind, PAGE, Publisher, Source};
use crate::address::Address;

/// Host memory, up to a limit. Each piece is a sealed file of its own, so a process that is given one reaches
/// no other.
#[derive(Debug)]
pub struct Host {
    size: u64,
    used: Mutex<u64>,
}

impl Host {
    pub fn new(size: u64) -> Host {
        Host { size: size / PAGE * PAGE, used: Mutex::new(0) }
    }

    fn used(&self) -> std::sync::MutexGuard<'_, u64> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Publisher for Host {
    fn name(&self) -> String {
        "host".into()
    }

    fn kind(&self) -> Kind {
        Kind::Host
    }

    fn function(&self) -> Option<Address> {
        None
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn available(&self) -> u64 {
        self.size - *self.used()
    }

    fn longest(&self, align: u64) -> u64 {
        if align <= PAGE { self.available() } else { 0 }
    }

    fn take(&self, len: u64, align: u64) -> Result<(u64, Source), String> {
        if align > PAGE {
            return Err(format!("gives no more than {PAGE} bytes of alignment"));
        }
        let mut used = self.used();
        if len > self.size - *used {
            return Err(format!("{} of {} bytes are free", self.size - *used, self.size));
        }
        let bytes = usize::try_from(len).map_err(|_| "that is more than a process has")?;
        let fd = memfd::create(c"strait-p2pmem", bytes, Writers::All).map_err(|e| e.to_string())?;
        *used += len;
        Ok((0, Source::File { fd: Arc::new(fd), offset: 0 }))
    }

    fn give(&self, _at: u64, len: u64) {
        let mut used = self.used();
        *used = used.saturating_sub(len);
    }
}

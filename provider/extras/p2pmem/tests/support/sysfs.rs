//! What tests of orchestrators share.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use p2pmem::topology::recording;
use p2pmem::{Error, Orchestrator, Request};

/// A laid out recording, removed on drop.
pub struct Sysfs(pub PathBuf);

impl Sysfs {
    pub fn new(text: &str) -> Sysfs {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("strait-orchestrator-{}-{n}", std::process::id()));
        let (cpu, raw) = recording::parse(text).unwrap();
        recording::lay_out(&cpu, &raw, &dir).unwrap();
        Sysfs(dir)
    }
}

impl Drop for Sysfs {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn request(all: &Orchestrator, clients: &[&str], len: u64) -> Request {
    let clients = clients.iter().map(|c| all.client(c).unwrap()).collect();
    Request { clients, len, uid: 1000, ..Request::default() }
}

pub fn why(error: Error) -> String {
    assert!(matches!(error, Error::Refused(_)), "{error}");
    error.to_string()
}

//! What tests publish, and how long they wait.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use ipc::memfd::{self, Writers};
use p2pmem::daemon::Publication;
use p2pmem::publisher::Kind;

/// Below the switch that mlx5_0 is below too.
pub const NEAR: &str = "0000:03:00.0";

pub fn memory(len: usize) -> OwnedFd {
    memfd::create(c"published", len, Writers::All).unwrap()
}

pub fn publication(name: &str, len: u64) -> Publication<'_> {
    let function = Some(NEAR.parse().unwrap());
    Publication { name, function, kind: Kind::File, offset: 0, len, all_users: false }
}

pub fn until(what: &str, is: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

//! The link over shared memory, put to the checks.
#![cfg(not(loom))]

#[path = "support/shm.rs"]
mod shm;

use shm::ShmHarness;

link_kit::conform! {
    ShmHarness::new();
    frames polls peers ends returns sleep threads sync regions pieces stale_pieces shared_pieces
}

//! The link of the engine's test kit, put to the checks.

#[path = "support/memory.rs"]
mod memory;

use link_kit::conformance::{flights, stale_pieces};
use memory::MemHarness;

link_kit::conform! { MemHarness::new(); frames polls peers ends hostile sync regions pieces handles }

/// Host memory by operations that end later.
mod later {
    use super::memory::MemHarness;
    use testkit::Direct;

    link_kit::conform! { MemHarness::by(Direct::Later); frames polls peers ends hostile pieces handles }
}

#[test]
fn memory_that_was_taken_back_in_flight_is_not_touched() {
    flights::memory_that_was_taken_back_in_flight_is_not_touched(&mut MemHarness::new());
}

#[test]
fn closing_by_the_name_of_an_earlier_transfer_does_nothing() {
    stale_pieces::closing_by_the_name_of_an_earlier_transfer_does_nothing(&mut MemHarness::new());
}

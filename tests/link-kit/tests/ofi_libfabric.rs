//! The link over a provider of libfabric's, put to the checks: STRAIT_TEST_BELOW names the provider, and STRAIT_TEST_LIBFABRIC the
//! library. ci/ofi has both.
#![cfg(not(loom))]

#[path = "support/counted.rs"]
mod counted;
#[path = "support/duo.rs"]
mod duo;
#[path = "support/killed.rs"]
mod killed;
#[path = "support/ofi.rs"]
mod support;

use std::sync::OnceLock;

use libfabric_sys::Core;
use ofi::Fabric;
use support::OfiHarness;

fn core() -> Core {
    static CORE: OnceLock<Core> = OnceLock::new();
    *CORE.get_or_init(|| {
        let name = std::env::var("STRAIT_TEST_LIBFABRIC").unwrap_or_else(|_| "libfabric.so.1".into());
        // SAFETY: a libfabric, whose initialisers may run here.
        let library = unsafe { libloading::Library::new(&name) }.expect("a libfabric: see ci/get-libfabric");
        std::mem::forget(library);
        Core::find(None).expect("what was just loaded")
    })
}

fn fabric() -> Fabric {
    let name = std::env::var("STRAIT_TEST_BELOW").unwrap_or_else(|_| "tcp;ofi_rxm".into());
    let found = ofi::open(&core(), &[&name], "127.0.0.1".parse().expect("an address"));
    found.unwrap_or_else(|why| panic!("{name} cannot be opened: {why:?}")).0
}

fn provider() -> OfiHarness<Fabric> {
    let mut harness = OfiHarness::new(|| Ok(fabric()));
    // So that nothing goes another way.
    harness.fallback = false;
    harness.reads = true;
    harness
}

link_kit::conform! { provider(); frames polls peers ends returns hostile sleep threads frames_only }

/// Counted by what is asked of the provider: one `fi_read`.
#[test]
fn a_long_message_is_one_read() {
    for len in [100_000, 4 << 20] {
        let duo = duo::Duo::new(fabric);
        duo::a_long_message_is_one_read(duo, len);
    }
}

/// Memory that is read by the provider below, where it has reads.
mod reads {
    use super::provider;

    link_kit::conform! { provider(); handles flights sleep_in_flight }
}

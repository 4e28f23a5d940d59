//! The link over a provider below, put to the checks: with a provider that a test made.
#![cfg(not(loom))]

#[path = "support/fake.rs"]
mod fake;
#[path = "support/ofi.rs"]
mod support;

use fake::{Fake, FakeNet};
use support::OfiHarness;

fn fakes() -> OfiHarness<Fake> {
    let net = FakeNet::default();
    OfiHarness::new(move || Ok(net.open()))
}

link_kit::conform! { fakes(); frames polls peers ends returns hostile sleep threads frames_only }

/// A fabric that has no room at times.
mod stingy {
    use super::{Fake, FakeNet, OfiHarness};

    fn stingy() -> OfiHarness<Fake> {
        let net = FakeNet::default();
        OfiHarness::new(move || {
            let mut fake = net.open();
            fake.stingy = true;
            Ok(fake)
        })
    }

    link_kit::conform! { stingy(); polls ends threads }
}

/// Endpoints without a fabric.
mod none {
    use super::{Fake, OfiHarness};

    fn none() -> OfiHarness<Fake> {
        OfiHarness::new(|| Err("none".into()))
    }

    // Not those of `returns`, in which a link is not polled while a frame waits: then its connections wait as well.
    link_kit::conform! { none(); frames polls peers ends sleep threads frames_only }
}

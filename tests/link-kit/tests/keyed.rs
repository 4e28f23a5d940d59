//! The slow link with keys, put to the checks.

use link_kit::keyed::KeyedHarness;

link_kit::conform! { KeyedHarness::new(); frames polls peers ends returns hostile sleep threads frames_only handles flights }

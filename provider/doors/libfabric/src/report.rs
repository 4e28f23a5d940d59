//! `FI_STRAIT_REPORT`: what is said at the end of the process of what its endpoints have carried.

use std::sync::{Arc, OnceLock};

use engine::link_api::Meter;
use libfabric_sys as fi;
use link::usage::{Place, Unclear, Usage};

use crate::param;

static USAGE: OnceLock<Arc<Usage>> = OnceLock::new();

/// Declares FI_STRAIT_REPORT and reads it; where it asks for a report, one is made when the process exits.
///
/// # Safety
/// `provider` is the structure that fi_prov_ini is about to return, with its name set.
pub(crate) unsafe fn read(core: &fi::Core, provider: *mut fi::fi_provider) {
    // SAFETY: the caller's promise; the name is defined here alone.
    let Some(asked) = (unsafe { param::declared(core, provider, &settings::REPORT) }) else { return };
    let name = settings::REPORT.variable();
    if let Some(complaint) = settings::REPORT.check(&asked).complaint {
        log::warn!("{complaint}");
    }
    match Place::parse(&asked) {
        Ok(None) | Err(Unclear) => {}
        Ok(Some(place)) => match Usage::reported_at_exit(place, "libfabric") {
            Some(usage) => drop(USAGE.set(usage)),
            None => log::warn!("{name}: nothing is reported: atexit(3) has no room"),
        },
    }
}

/// A meter for one endpoint more, if FI_STRAIT_REPORT asks for reports.
pub(crate) fn meter() -> Option<Box<dyn Meter>> {
    USAGE.get().map(Usage::meter)
}

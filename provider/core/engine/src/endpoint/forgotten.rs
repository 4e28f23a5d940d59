//! What an endpoint forgets when it closes: operations under way, and receives that nothing has come for.

use crate::core::{Core, Tally};
use crate::endpoint::Endpoint;
use crate::types::*;

/// Counts these as failed in counters for which a device waits ([`crate::Domain::cntr_watch`]).
pub(crate) fn forget<L>(ep: &mut Endpoint<L>, core: &mut Core) {
    let under_way = ep.requests.that_count().into_iter();
    let mut forgotten: Vec<(Tally, What)> = under_way.map(|(_, tally, what)| (tally, what)).collect();
    if let Some(rx) = core.rxs.get_mut(ep.bind.rx().at()).filter(|rx| !rx.shared) {
        for tagged in [true, false] {
            let posted = rx.matcher(tagged).unpost_all(|_| true);
            forgotten.extend(posted.iter().map(|recv| (recv.tally, What::RECV)));
        }
    }
    for (tally, what) in forgotten {
        core.forget(tally, ep.bind.cntr_of(what));
    }
}

//! What an endpoint forgets when it closes: operations under way, and receives that nothing has come for.

use crate::core::{Core, Tally};
use crate::endpoint::Endpoint;
use crate::endpoint::parts::request::{In, Request, Then};
use crate::types::*;

/// Counts these as failed in counters for which a device waits ([`crate::Domain::cntr_watch`]).
pub(crate) fn forget<L>(ep: &mut Endpoint<L>, core: &mut Core) {
    let mut forgotten: Vec<(Tally, What)> = Vec::new();
    for name in ep.requests.pool.names(|_| true) {
        match ep.requests.pool.get_mut(name) {
            Some(Request::Out(out)) => forgotten.push((out.done_as.tally, out.done_as.what)),
            Some(Request::In(In { then: Then::Recv(matched), .. })) => {
                forgotten.push((matched.tally, What::RECV));
            }
            _ => {}
        }
    }
    forgotten.extend(ep.requests.queues.unsent().iter().map(|u| (u.done_as.tally, u.done_as.what)));
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

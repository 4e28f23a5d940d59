//! What a domain waits for: receives that no message matches, messages that no receive matches, operations
//! that a peer has yet to answer.

use link_api::RmaLink;

use super::Domain;
use super::opened::Opened;
use crate::core::{Message, RxContext};
use crate::endpoint::pending::add_requests;
use crate::pending::{Pending, PendingKind};
use crate::types::{ADDR_UNSPEC, FiAddr};

/// The operations of a domain that are not over, up to `most` and some more. Nothing is changed, and no
/// progress is made.
pub fn pending<L: RmaLink>(domain: &Domain<L>, most: usize) -> Vec<Pending> {
    let (opened, mut all) = (&domain.opened, Vec::new());
    for ep in opened.eps.iter() {
        add_requests(ep, most, &mut all);
    }
    for (at, rx) in opened.core.rxs.all() {
        add_messages(opened, at, rx, most, &mut all);
    }
    all
}

fn add_messages<L: RmaLink>(
    opened: &Opened<L>,
    at: u32,
    rx: &RxContext,
    most: usize,
    all: &mut Vec<Pending>,
) {
    let ep = rx.sole().and_then(|ep| opened.eps.get(ep.at()));
    let own = ep.map(|ep| ep.net.link.addr());
    let av = ep
        .or_else(|| rx.eps.first().and_then(|ep| opened.eps.get(ep.at())))
        .and_then(|ep| opened.avs.get(ep.bind.av().at()));
    let named = |src: FiAddr| (src != ADDR_UNSPEC).then(|| av?.lookup(src)).flatten();
    let posted = rx.tagged.posted().chain(rx.plain.posted());
    for (number, op) in posted.take(most.saturating_sub(all.len())) {
        all.push(Pending {
            kind: PendingKind::Receive,
            name: (at << 1 | u32::from(op.pattern.tag.is_some()), number),
            endpoint: own,
            peer: named(op.pattern.src),
            tag: op.pattern.tag,
            len: op.len(),
            done: 0,
            state: if op.multi.is_some() { "a buffer for several messages" } else { "" },
        });
    }
    let waiting = rx.tagged.waiting_numbered().chain(rx.plain.waiting_numbered());
    for (number, message) in waiting.take(most.saturating_sub(all.len())) {
        all.push(unexpected(opened, at, number, message));
    }
}

fn unexpected<L: RmaLink>(opened: &Opened<L>, at: u32, number: u64, message: &Message) -> Pending {
    let ep = opened.eps.get(message.ep.at());
    Pending {
        kind: PendingKind::Unexpected,
        name: (at << 1 | u32::from(message.tagged), number),
        endpoint: ep.map(|ep| ep.net.link.addr()),
        peer: ep.map(|ep| ep.net.link.peer_addr(message.peer)),
        tag: message.tagged.then_some((message.tag, 0)),
        len: message.len,
        done: 0,
        state: "",
    }
}

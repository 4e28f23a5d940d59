//! Operations of an endpoint that are not over, for a person that asks what a program waits for.

use link_api::RmaLink;

use crate::endpoint::Endpoint;
use crate::endpoint::parts::request::{Request, Then};
use crate::pending::{Pending, PendingKind};
use crate::types::What;

/// Adds the operations that peers have yet to answer or to feed, up to `most` in all.
pub(crate) fn add_requests<L: RmaLink>(ep: &Endpoint<L>, most: usize, all: &mut Vec<Pending>) {
    for (name, request) in ep.requests.pool.iter() {
        if all.len() >= most {
            return;
        }
        let (kind, tag, len, done) = match request {
            Request::Out(out) => {
                let sends = out.done_as.what.contains(What::SEND);
                let tag = out.done_as.what.contains(What::TAGGED).then_some((out.done_as.tag, 0));
                (kind_of(out.done_as.what), tag.filter(|_| sends), out.len, out.done)
            }
            Request::In(i) => {
                let (kind, tag) = match &i.then {
                    Then::Recv(r) => (
                        PendingKind::Arriving,
                        r.entry.what.contains(What::TAGGED).then_some((r.entry.tag, 0)),
                    ),
                    Then::Write { .. } => (PendingKind::ServedWrite, None),
                };
                (kind, tag, i.want, i.got)
            }
            Request::Serve(serve) => (PendingKind::ServedRead, None, serve.len, serve.done),
            Request::CoopHelp(_) | Request::Withdrawn(_) | Request::Flush(..) => continue,
        };
        let peer = request.peer();
        let state = ep.net.peers.get(peer).map_or("", |peer| {
            if peer.flow.is_paused() {
                "the receiver has paused its senders: unexpected messages fill its memory"
            } else if peer.flow.has_backlog() {
                "the ring or the socket to the peer is full: the peer reads nothing"
            } else {
                ""
            }
        });
        all.push(Pending {
            kind,
            name: (ep.id.0, name),
            endpoint: Some(ep.net.link.addr()),
            peer: Some(ep.net.link.peer_addr(peer)),
            tag,
            len,
            done,
            state,
        });
    }
    for unsent in ep.requests.queues.unsent() {
        all.push(Pending {
            kind: kind_of(unsent.done_as.what),
            // The context distinguishes it from other operations in flight, and is no request's name.
            name: (ep.id.0 | 1 << 31, unsent.done_as.ctx.0 as u64),
            endpoint: Some(ep.net.link.addr()),
            peer: Some(ep.net.link.peer_addr(unsent.peer)),
            tag: unsent.done_as.what.contains(What::TAGGED).then_some((unsent.done_as.tag, 0)),
            len: unsent.len,
            done: 0,
            state: "the link has yet to send a part of it",
        });
    }
}

fn kind_of(what: What) -> PendingKind {
    if what.contains(What::SEND) {
        PendingKind::Send
    } else if what.contains(What::ATOMIC) {
        PendingKind::Atomic
    } else if what.contains(What::READ) {
        PendingKind::Read
    } else {
        PendingKind::Write
    }
}

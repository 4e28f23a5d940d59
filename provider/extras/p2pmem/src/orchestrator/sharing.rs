//! What those that share an orchestrator ask it: which publishers serve them and from how far, and which
//! buffer a token is of.

use std::sync::Arc;

use super::state::Shared;
use super::{Buffer, Client, Listed, Orchestrator};
use crate::address::Address;
use crate::error::Error;
use crate::publisher::Kind;
use crate::topology::Map;

/// What opens a shared buffer: as good as random.
pub type Token = [u8; 16];

/// Most tokens of a buffer.
pub const MOST_TOKENS: usize = 16;

/// A publisher, and how some clients reach it together.
#[derive(Clone, Debug)]
pub struct Reached {
    pub listed: Listed,
    /// The worst of all clients'.
    pub map: Map,
    /// The sum over all clients. That of host memory is 0.
    pub distance: u32,
    /// Why a client does not reach it; empty if all do.
    pub why: String,
}

impl Orchestrator {
    /// The publishers that a user may have memory of: those that all clients reach first, the closest of them
    /// before others, host memory last. Without clients, in the order in which they came.
    pub fn reached(&self, clients: &[Client], uid: u32) -> Vec<Reached> {
        let state = self.inner.state();
        let mut all = Vec::new();
        for active in &state.publishers {
            let listed = state.listed(active);
            if listed.owner.is_some_and(|owner| owner.admit(uid, true).is_err()) {
                continue;
            }
            let host = active.publisher.kind() == Kind::Host;
            let (mut map, mut distance, mut why) = (Map::BusAddress, 0u32, String::new());
            if host {
                map = Map::HostMemory;
            }
            for client in clients {
                match active.route(&state.topology, client) {
                    Ok(route) => {
                        map = map.max(route.map);
                        distance = distance.saturating_add(if host { 0 } else { route.distance });
                        if !route.is_supported() && why.is_empty() {
                            why = format!("{}: {route}", client.name());
                        }
                    }
                    Err(gone) => (map, why) = (Map::NotSupported, gone),
                }
            }
            all.push(Reached { listed, map, distance, why });
        }
        if !clients.is_empty() {
            // Stable: equals stay in the order in which they came.
            all.sort_by_key(|r| (r.map == Map::NotSupported, r.map == Map::HostMemory, r.distance));
        }
        all
    }

    /// Whether that function has published memory that is still to be had.
    pub fn has_p2pmem(&self, function: Address) -> bool {
        self.publishers().iter().any(|p| p.function == Some(function) && !p.draining)
    }

    /// Takes a publisher out whose process has ended, and revokes its buffers: how many.
    pub fn withdraw(&self, name: &str, why: &str) -> usize {
        let mut state = self.inner.state();
        let revoked = state.buffers_of(name);
        state.publishers.retain(|p| p.name != name);
        drop(state);
        revoked.iter().for_each(|core| core.notices.revoke(why));
        self.inner.freed.notify_all();
        revoked.len()
    }

    /// A token by which another part of this process joins a buffer, as long as that is there and
    /// [`Orchestrator::forget_token`] was not called. For other processes there is the daemon.
    pub fn token(&self, buffer: &Buffer) -> Result<Token, Error> {
        may_have_token(buffer)?;
        let token: Token = ipc::random().map_err(|e| Error::Os("getrandom".into(), e))?;
        let (core, routes) = (Arc::downgrade(&buffer.core), buffer.routes.clone());
        self.inner.state().shared.insert(token, Shared { core, routes });
        Ok(token)
    }

    /// The buffer that a token is of.
    pub fn join(&self, token: Token) -> Result<Buffer, Error> {
        let (core, routes) = {
            let state = self.inner.state();
            let shared = state.shared.get(&token);
            (shared.and_then(|s| s.core.upgrade()), shared.map(|s| s.routes.clone()).unwrap_or_default())
        };
        let core = core.ok_or_else(unknown_token)?;
        match core.notices.why() {
            Some(why) => Err(Error::Revoked(why)),
            None => Ok(Buffer { core, routes }),
        }
    }

    /// Nothing joins by that token any more.
    pub fn forget_token(&self, token: Token) {
        self.inner.state().shared.remove(&token);
    }
}

/// Whether a token of that buffer is of use.
pub fn may_have_token(buffer: &Buffer) -> Result<(), Error> {
    if buffer.kind() == Kind::Sysfs {
        let why = "the kernel makes a new allocation of each mapping of sysfs memory: fork(2) shares it";
        return Err(Error::Unsupported(why.into()));
    }
    buffer.core.notices.why().map_or(Ok(()), |why| Err(Error::Revoked(why)))
}

pub fn too_many_tokens() -> Error {
    Error::Invalid(format!("{MOST_TOKENS} tokens are enough for a buffer: use one of them"))
}

pub fn unknown_token() -> Error {
    Error::Unknown("buffer with that token: its owner freed it, or it was never shared".into())
}

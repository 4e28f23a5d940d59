//! What an orchestrator knows, under its lock.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use super::buffer::{Buffer, Core, Home};
use super::notices::Notices;
use super::request::{Client, Request};
use crate::publisher::{Kind, Lease, Publisher};
use crate::rules::{Case, Rules, Target};
use crate::topology::{Route, Ties, Topology};

/// A publisher in use.
#[derive(Debug)]
pub(super) struct Active {
    pub name: String,
    pub publisher: Arc<dyn Publisher>,
    pub draining: bool,
}

impl Active {
    /// How a client reaches it; in `Err`, that the client is there no more.
    pub fn route(&self, topology: &Topology, client: &Client) -> Result<Route, String> {
        let Some(at) = topology.find(client.address) else {
            return Err(format!("{} is there no more", client.name()));
        };
        Ok(match self.publisher.function().and_then(|address| topology.find(address)) {
            _ if self.publisher.kind() == Kind::Host => Route::host_memory(),
            Some(device) => topology.route(device, at),
            None => Route::no_function(),
        })
    }
}

/// A publisher that may serve a request.
pub(super) struct Candidate {
    pub name: String,
    kind: Kind,
    /// Less is more preferred.
    rank: usize,
    /// The sum over all clients; `None` with host memory.
    pub distance: Option<u32>,
    /// Names of each client, and its route.
    pub clients: Vec<(Vec<String>, Route)>,
}

/// What stays of a buffer as long as a handle of it is there.
pub(super) struct Live {
    pub core: Weak<Core>,
    pub publisher: String,
    pub kind: Kind,
    pub uid: u32,
    pub bytes: u64,
    /// Descriptors of its own: host memory has one for each piece.
    pub descriptors: usize,
}

pub(super) struct State {
    pub topology: Arc<Topology>,
    pub publishers: Vec<Active>,
    pub rules: Rules,
    pub live: HashMap<u64, Live>,
    next: u64,
    ties: Ties,
}

impl State {
    pub fn new(topology: Topology, rules: Rules, ties: Ties) -> State {
        State {
            topology: Arc::new(topology),
            publishers: Vec::new(),
            rules,
            live: HashMap::new(),
            next: 1,
            ties,
        }
    }

    pub fn publisher(&mut self, name: &str) -> Option<&mut Active> {
        self.publishers.iter_mut().find(|p| p.name == name)
    }

    /// Buffers of a publisher, and their bytes.
    pub fn count(&self, name: &str) -> (usize, u64) {
        let of = self.live.values().filter(|b| b.publisher == name);
        of.fold((0, 0), |(n, bytes), b| (n + 1, bytes + b.bytes))
    }

    pub fn buffers_of(&self, name: &str) -> Vec<Arc<Core>> {
        self.live.values().filter(|b| b.publisher == name).filter_map(|b| b.core.upgrade()).collect()
    }

    /// Whether one publisher may serve a request, and how well. In `Err`, why it may not.
    pub fn judge(&self, at: usize, request: &Request) -> Result<Candidate, String> {
        let active = &self.publishers[at];
        let kind = active.publisher.kind();
        if active.draining {
            return Err("it is being unpublished".into());
        }
        if kind == Kind::Host && !request.host {
            return Err("the request wants no host memory".into());
        }
        let mut clients = Vec::with_capacity(request.clients.len());
        for client in &request.clients {
            let route = active.route(&self.topology, client)?;
            if !route.is_supported() {
                return Err(format!("{} cannot reach it: {route}", client.name()));
            }
            clients.push((client.names.clone(), route));
        }
        let case =
            Case { publisher: &active.name, kind, uid: request.uid, job: &request.job, clients: &clients };
        let rank = self.rules.judge(&case)?;
        let sum = clients.iter().map(|(_, route)| route.distance).sum();
        let distance = (kind != Kind::Host).then_some(sum);
        Ok(Candidate { name: active.name.clone(), kind, rank, distance, clients })
    }

    /// The publishers that may serve a request, the best first; and why the others may not.
    pub fn rank(&mut self, request: &Request) -> (Vec<Candidate>, Vec<(String, String)>) {
        let (mut best, mut refused) = (Vec::new(), Vec::new());
        for at in 0..self.publishers.len() {
            match self.judge(at, request) {
                Ok(candidate) => best.push(candidate),
                Err(why) => refused.push((self.publishers[at].name.clone(), why)),
            }
        }
        // Equals come in any order (Fisher and Yates), and a stable sort leaves them in it.
        for n in (1..best.len()).rev() {
            best.swap(n, self.ties.pick(n + 1));
        }
        best.sort_by_key(|c| (c.rank, c.distance.unwrap_or(u32::MAX)));
        (best, refused)
    }

    pub fn quota(&self, case: &Case<'_>, wanted: u64) -> Result<(), String> {
        let used = |target: Option<&Target>| {
            let of = |b: &&Live| b.uid == case.uid && target.is_none_or(|t| t.matches(&b.publisher, b.kind));
            self.live.values().filter(of).map(|b| b.bytes).sum()
        };
        self.rules.quota(case, wanted, used)
    }

    /// Makes a buffer of what was taken.
    pub fn keep(
        &mut self,
        home: Arc<dyn Home>,
        of: Candidate,
        request: &Request,
        bytes: u64,
        leases: Vec<Lease>,
    ) -> Buffer {
        let id = self.next;
        self.next += 1;
        let routes = of.clients.into_iter().map(|(names, route)| (names[0].clone(), route)).collect();
        let core = Arc::new(Core {
            id,
            home,
            publisher: of.name,
            kind: of.kind,
            uid: request.uid,
            job: request.job.clone(),
            leases,
            segments: request.segments,
            mapped: OnceLock::new(),
            notices: Notices::default(),
        });
        let live = Live {
            core: Arc::downgrade(&core),
            publisher: core.publisher.clone(),
            kind: of.kind,
            uid: request.uid,
            bytes,
            descriptors: if of.kind == Kind::Host { core.leases.len() } else { 0 },
        };
        self.live.insert(id, live);
        Buffer { core, routes }
    }
}

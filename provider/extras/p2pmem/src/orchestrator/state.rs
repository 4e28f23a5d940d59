//! What an orchestrator knows, under its lock.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use super::buffer::{Buffer, Core, Home};
use super::notices::Notices;
use super::request::{Client, Request};
use crate::publisher::{Kind, Lease, Owner, Publisher};
use crate::rules::{Case, Rules, Target};
use crate::topology::{Route, Ties, Topology};

/// What is known of a publisher.
#[derive(Clone, Debug)]
pub struct Listed {
    pub name: String,
    pub kind: &'static str,
    pub function: Option<crate::Address>,
    /// Whose it is, where another process has published it.
    pub owner: Option<Owner>,
    pub size: u64,
    pub available: u64,
    pub buffers: usize,
    pub draining: bool,
}

/// A publisher in use.
#[derive(Debug)]
pub(super) struct Active {
    pub name: String,
    pub publisher: Arc<dyn Publisher>,
    pub draining: bool,
    /// The user, other than its owner, that has had memory of it: processes of it may still have that mapped.
    served: Option<u32>,
    /// Its number: another one may have the name later.
    number: u64,
}

impl Active {
    /// Whether a user may have its memory at all.
    fn admit(&self, uid: u32, others: bool) -> Result<(), String> {
        let Some(owner) = self.publisher.owner() else { return Ok(()) };
        owner.admit(uid, others)?;
        match self.served {
            Some(to) if to != uid && owner.uid != uid => Err(format!(
                "uid {to} has had it, and may have it mapped: it serves that user and its owner until it is published anew"
            )),
            _ => Ok(()),
        }
    }

    /// Whether a user may have so much of it: a part of a file would give all of it away.
    pub fn admit_part(&self, uid: u32, bytes: u64) -> Result<(), String> {
        match self.publisher.owner() {
            Some(owner) if owner.uid != uid && !(owner.whole && bytes == self.publisher.size()) => {
                Err(format!(
                    "uid {} has published it, other users can have all of it alone, in one buffer",
                    owner.uid
                ))
            }
            _ => Ok(()),
        }
    }

    /// That user has got some of it.
    pub fn gives(&mut self, uid: u32) {
        if self.publisher.owner().is_some_and(|owner| owner.uid != uid) {
            self.served = Some(uid);
        }
    }

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
    /// Less is more preferred: by the orchestrator's rules, then by the request's.
    rank: (usize, usize),
    /// The sum over all clients; `None` with host memory.
    pub distance: Option<u32>,
    /// Names of each client, and its route.
    pub clients: Vec<(Vec<String>, Route)>,
}

/// What stays of a buffer as long as a handle of it is there.
pub(super) struct Live {
    pub core: Weak<Core>,
    /// The publisher's number, and its name.
    of: u64,
    publisher: String,
    pub kind: Kind,
    pub uid: u32,
    pub bytes: u64,
    /// Descriptors of its own: host memory has one for each piece.
    pub descriptors: usize,
}

/// What a token stands for, as long as the memory is there.
pub(super) struct Shared {
    pub core: Weak<Core>,
    pub routes: Vec<(String, Route)>,
}

pub(super) struct State {
    pub topology: Arc<Topology>,
    pub publishers: Vec<Active>,
    pub rules: Rules,
    pub live: HashMap<u64, Live>,
    /// Buffers of the process itself that another part of it may join.
    pub shared: HashMap<[u8; 16], Shared>,
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
            shared: HashMap::new(),
            next: 1,
            ties,
        }
    }

    pub fn publisher(&mut self, name: &str) -> Option<&mut Active> {
        self.publishers.iter_mut().find(|p| p.name == name)
    }

    pub fn listed(&self, p: &Active) -> Listed {
        Listed {
            name: p.name.clone(),
            kind: p.publisher.kind().name(),
            function: p.publisher.function(),
            owner: p.publisher.owner(),
            size: p.publisher.size(),
            available: p.publisher.available(),
            buffers: self.count(&p.name).0,
            draining: p.draining,
        }
    }

    /// Adds a publisher.
    pub fn add(&mut self, name: String, publisher: Arc<dyn Publisher>) {
        let number = self.next;
        self.next += 1;
        self.publishers.push(Active { name, publisher, draining: false, served: None, number });
    }

    /// What there is of a publisher, not of one that had the name before.
    fn live_of(&self, name: &str) -> impl Iterator<Item = &Live> {
        let number = self.publishers.iter().find(|p| p.name == name).map(|p| p.number);
        self.live.values().filter(move |b| Some(b.of) == number)
    }

    /// Buffers of a publisher, and their bytes.
    pub fn count(&self, name: &str) -> (usize, u64) {
        self.live_of(name).fold((0, 0), |(n, bytes), b| (n + 1, bytes + b.bytes))
    }

    pub fn buffers_of(&self, name: &str) -> Vec<Arc<Core>> {
        self.live_of(name).filter_map(|b| b.core.upgrade()).collect()
    }

    /// Whether one publisher may serve a request, and how well. In `Err`, why it may not.
    pub fn judge(&self, at: usize, request: &Request) -> Result<Candidate, String> {
        let active = &self.publishers[at];
        let kind = active.publisher.kind();
        if active.draining {
            return Err("it is being unpublished".into());
        }
        active.admit(request.uid, request.others)?;
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
        let rank = (self.rules.judge(&case)?, request.rules.as_ref().map_or(Ok(0), |own| own.judge(&case))?);
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

    pub fn quota(&self, case: &Case<'_>, own: Option<&Rules>, wanted: u64) -> Result<(), String> {
        let used = |target: Option<&Target>| {
            let of = |b: &&Live| b.uid == case.uid && target.is_none_or(|t| t.matches(&b.publisher, b.kind));
            self.live.values().filter(of).map(|b| b.bytes).sum()
        };
        self.rules.quota(case, wanted, used)?;
        own.map_or(Ok(()), |own| own.quota(case, wanted, used))
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
        let mut number = 0;
        if let Some(publisher) = self.publisher(&of.name) {
            publisher.gives(request.uid);
            number = publisher.number;
        }
        let routes = of.clients.into_iter().map(|(names, route)| (names[0].clone(), route)).collect();
        let core = Arc::new(Core {
            id,
            home,
            publisher: of.name,
            kind: of.kind,
            uid: request.uid,
            job: request.job.clone(),
            rules: request.rules.clone(),
            leases,
            segments: request.segments,
            mapped: OnceLock::new(),
            notices: Notices::default(),
        });
        let live = Live {
            core: Arc::downgrade(&core),
            of: number,
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

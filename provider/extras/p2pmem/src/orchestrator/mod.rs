//! Publishers, clients, rules and buffers together.
//!
//! A request names clients, which are devices, and a length. Each publisher is judged by the rules and by its
//! routes to the clients; of those that are left the preferred come first, then the closest, equals in random
//! order, host memory last. The first one that has the memory gives it, in one piece, or in several if the
//! request allows that.

mod buffer;
mod discover;
mod notices;
mod request;
mod sharing;
mod state;

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub use buffer::{Buffer, BufferId};
use buffer::{Core, Home};
pub use notices::NoticeId;
pub(crate) use notices::Notices;
pub use request::{Client, Request};
pub use sharing::{MOST_TOKENS, Reached, Token, too_many_tokens};
pub(crate) use sharing::{may_have_token, unknown_token};
pub use state::Listed;
use state::{Active, State};

use crate::error::Error;
use crate::publisher::{Host, Kind, Lease, PAGE, Publisher, pages, windows};
use crate::rules::{Case, Rules};
use crate::topology::{Route, Ties, Topology};

/// How buffers of a publisher that is to go are dealt with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drain {
    /// It goes only if there are none.
    IfIdle,
    /// No new ones are made, and it goes when the last one has been freed. After that time it is an error;
    /// the publisher still gives nothing, and may be drained again.
    Wait(Duration),
    /// The owners get notices, and it goes at once; the memory stays mapped until they free it.
    Revoke,
}

struct Inner {
    /// Of one that is of a host.
    host: Option<discover::Host>,
    state: Mutex<State>,
    freed: Condvar,
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module. A clone is the same orchestrator.
#[derive(Clone)]
pub struct Orchestrator {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Orchestrator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.publishers()).finish()
    }
}

impl Orchestrator {
    /// One without publishers. `seed` makes the choice among equals repeatable.
    pub fn new(topology: Topology, rules: Rules, seed: Option<u64>) -> Orchestrator {
        Orchestrator::made(topology, rules, seed, None)
    }

    fn made(
        topology: Topology,
        rules: Rules,
        seed: Option<u64>,
        host: Option<discover::Host>,
    ) -> Orchestrator {
        let state = Mutex::new(State::new(topology, rules, Ties::new(seed)));
        Orchestrator { inner: Arc::new(Inner { host, state, freed: Condvar::new() }) }
    }

    /// One with all that the host publishes in sysfs, and so many bytes of host memory.
    pub fn of_host(sysfs: &Path, rules: Rules, host: u64) -> Result<Orchestrator, Error> {
        if (1..PAGE).contains(&host) {
            let why = format!("{host} bytes of host memory: it is given in pages of {PAGE} bytes");
            return Err(Error::Invalid(why));
        }
        let of = discover::Host::new(sysfs);
        let topology = Topology::read(sysfs)?;
        let found = windows(sysfs, &topology);
        let all = Orchestrator::made(topology, rules, None, Some(of));
        for window in found {
            all.publish(Arc::new(window))?;
        }
        if host > 0 {
            all.publish(Arc::new(Host::new(host)))?;
        }
        Ok(all)
    }

    /// What it knows now.
    pub fn topology(&self) -> Arc<Topology> {
        self.inner.state().topology.clone()
    }

    /// Adds a publisher.
    pub fn publish(&self, publisher: Arc<dyn Publisher>) -> Result<(), Error> {
        let (name, mut state) = (publisher.name(), self.inner.state());
        if name.is_empty() || name.len() > 64 || name.contains(char::is_whitespace) {
            return Err(Error::Invalid(format!(
                "{name:?}: a publisher's name is 1 to 64 characters without blanks"
            )));
        }
        if state.publisher(&name).is_some() {
            return Err(Error::Invalid(format!("there is a publisher {name} already")));
        }
        state.add(name, publisher);
        Ok(())
    }

    /// Takes a publisher out. How many buffers were revoked.
    pub fn unpublish(&self, name: &str, drain: Drain) -> Result<usize, Error> {
        let mut state = self.inner.state();
        let of = state.publisher(name).ok_or_else(|| Error::Unknown(format!("publisher {name}")))?;
        let before = std::mem::replace(&mut of.draining, true);
        let until = match drain {
            Drain::Wait(time) => Instant::now().checked_add(time),
            _ => Some(Instant::now()),
        };
        while drain != Drain::Revoke && state.count(name).0 > 0 {
            let left =
                until.map_or(Duration::from_secs(3600), |u| u.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                let (buffers, bytes) = state.count(name);
                if drain == Drain::IfIdle {
                    state.publisher(name).into_iter().for_each(|p| p.draining = before);
                }
                return Err(Error::Busy { publisher: name.into(), buffers, bytes });
            }
            state = self.inner.freed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let revoked = state.buffers_of(name);
        let is_window = |p: &Active| p.name == name && p.publisher.kind() == Kind::Sysfs;
        if let Some(host) = self.inner.host.as_ref().filter(|_| state.publishers.iter().any(is_window)) {
            host.withdraw(name);
        }
        state.publishers.retain(|p| p.name != name);
        drop(state);
        for core in &revoked {
            core.notices.revoke(&format!("{name} was unpublished"));
        }
        Ok(revoked.len())
    }

    /// Takes those publishers out whose device is gone, and revokes their buffers: how many. To be called now
    /// and then.
    pub fn check(&self) -> usize {
        self.inner.check()
    }

    /// The publishers, in the order in which they came.
    pub fn publishers(&self) -> Vec<Listed> {
        let state = self.inner.state();
        state.publishers.iter().map(|p| state.listed(p)).collect()
    }

    /// Replaces the rules. Buffers that there are stay.
    pub fn set_rules(&self, rules: Rules) {
        self.inner.state().rules = rules;
    }

    /// Adds a rule behind the others.
    pub fn add_rule(&self, rule: &str) -> Result<(), Error> {
        self.inner.state().rules.add(rule)
    }

    /// A device by its address or name; one that has come since counts.
    pub fn client(&self, name: &str) -> Result<Client, Error> {
        self.known_client(name).or_else(|e| {
            self.read_anew()?;
            self.known_client(name).map_err(|_| e)
        })
    }

    /// A client of those that were there when the host was last read.
    pub fn known_client(&self, name: &str) -> Result<Client, Error> {
        let topology = self.topology();
        let device = &topology.devices()[topology.resolve(name)?];
        let mut names = vec![device.address.to_string()];
        names.extend(device.names.iter().cloned());
        Ok(Client { address: device.address, names })
    }

    /// How that client reaches that publisher.
    pub fn route(&self, publisher: &str, client: &Client) -> Result<Route, Error> {
        let mut state = self.inner.state();
        let topology = state.topology.clone();
        let active =
            state.publisher(publisher).ok_or_else(|| Error::Unknown(format!("publisher {publisher}")))?;
        active.route(&topology, client).map_err(Error::Unknown)
    }

    /// The publishers that may serve a request, the best first, and how far each is from all clients together
    /// (host memory: `None`). In the second list those that may not, and why.
    #[allow(clippy::type_complexity)]
    pub fn candidates(&self, request: &Request) -> (Vec<(String, Option<u32>)>, Vec<(String, String)>) {
        let (best, refused) = self.inner.state().rank(request);
        (best.into_iter().map(|c| (c.name, c.distance)).collect(), refused)
    }

    /// Takes memory for the request, and maps nothing.
    pub fn grant(&self, request: &Request) -> Result<Buffer, Error> {
        let granted = self.grant_but(request, &[]);
        self.or_anew(granted, || self.grant_but(request, &[]))
    }

    /// Where nothing was to be had, once more if publishers have come since.
    fn or_anew(
        &self,
        granted: Result<Buffer, Error>,
        again: impl FnOnce() -> Result<Buffer, Error>,
    ) -> Result<Buffer, Error> {
        match granted {
            Err(Error::Refused(_)) if self.rediscover().is_ok_and(|came| came > 0) => again(),
            granted => granted,
        }
    }

    /// Grants a request, but not of publishers that have refused already, each with its reason.
    fn grant_but(&self, request: &Request, without: &[(String, String)]) -> Result<Buffer, Error> {
        let len = pages(request.len).ok_or_else(|| {
            Error::Invalid(format!("{} bytes: from 1 to 2^48 can be asked for", request.len))
        })?;
        let align = request.align.max(PAGE);
        if !align.is_power_of_two() || request.segments == 0 {
            return Err(Error::Invalid(
                "the alignment is a power of two, and there is at least one segment".into(),
            ));
        }
        let mut state = self.inner.state();
        let (best, mut refused) = state.rank(request);
        refused.extend_from_slice(without);
        for candidate in best {
            if without.iter().any(|(name, _)| *name == candidate.name) {
                continue;
            }
            let Some(active) = state.publisher(&candidate.name) else { continue };
            let publisher = active.publisher.clone();
            let case = Case {
                publisher: &candidate.name,
                kind: publisher.kind(),
                uid: request.uid,
                job: &request.job,
                clients: &candidate.clients,
            };
            let may = active.admit_part(request.uid, len);
            if let Err(why) = may.and_then(|()| state.quota(&case, request.rules.as_deref(), len)) {
                refused.push((candidate.name, why));
                continue;
            }
            match gather(&publisher, len, align, request.segments) {
                Ok(leases) => return Ok(state.keep(self.inner.clone(), candidate, request, len, leases)),
                Err(why) => refused.push((candidate.name, why)),
            }
        }
        Err(Error::Refused(refused))
    }

    /// Takes memory for the request and maps it.
    pub fn allocate(&self, request: &Request) -> Result<Buffer, Error> {
        let first = self.allocate_now(request);
        self.or_anew(first, || self.allocate_now(request))
    }

    fn allocate_now(&self, request: &Request) -> Result<Buffer, Error> {
        let mut without = Vec::new();
        loop {
            let buffer = self.grant_but(request, &without)?;
            match buffer.map() {
                Ok(_) => return Ok(buffer),
                // What is free of a window may be in pieces; only the kernel knows.
                Err(Error::Os(_, e)) if buffer.kind() == Kind::Sysfs => {
                    let why = format!(
                        "the kernel has no {} bytes in {} pieces: {e}",
                        buffer.len(),
                        request.segments
                    );
                    without.push((buffer.publisher().to_owned(), why));
                }
                Err(e) => return Err(e),
            }
        }
    }

    /// Bytes and buffers that a user has.
    pub fn used(&self, uid: u32) -> (usize, u64) {
        let state = self.inner.state();
        let mut used = (0, 0);
        for core in state.live.values().filter(|b| b.uid == uid) {
            used = (used.0 + 1, used.1 + core.bytes);
        }
        used
    }
}

impl Orchestrator {
    /// Descriptors that this process has open for a user's buffers.
    pub fn descriptors(&self, uid: u32) -> usize {
        self.inner.state().live.values().filter(|b| b.uid == uid).map(|b| b.descriptors).sum()
    }
}

impl Orchestrator {
    /// Looks for publishers and clients that have come, and takes out those that have gone
    /// ([`Orchestrator::check`]): how many publishers came. To be called now and then: it costs little as
    /// long as nothing has changed. Of an orchestrator that is of no host there are none.
    pub fn rediscover(&self) -> Result<usize, Error> {
        self.check();
        let Some(host) = &self.inner.host else { return Ok(0) };
        if host.is_known(&host.read()) {
            return Ok(0);
        }
        self.read_anew()
    }

    /// Reads the host anew, whatever has changed: names that drivers give come later than their devices.
    fn read_anew(&self) -> Result<usize, Error> {
        let Some(host) = &self.inner.host else { return Ok(0) };
        // Before it is read: what changes meanwhile is found the next time.
        let now = host.read();
        let topology = Arc::new(Topology::read(&host.sysfs)?);
        let found = windows(&host.sysfs, &topology);
        let mut state = self.inner.state();
        state.topology = topology;
        let mut came = 0;
        for window in found {
            let name = window.name();
            if state.publisher(&name).is_some() || host.is_withdrawn(&name) {
                continue;
            }
            state.add(name, Arc::new(window));
            came += 1;
        }
        host.knows(now);
        Ok(came)
    }
}

impl Home for Inner {
    fn forget(&self, id: u64) {
        let mut state = self.state();
        state.live.remove(&id);
        state.shared.retain(|_, shared| shared.core.strong_count() > 0);
        drop(state);
        self.freed.notify_all();
    }

    fn check(&self) -> usize {
        let dead = |p: &&Active| !p.publisher.is_alive();
        let names: Vec<String> =
            self.state().publishers.iter().filter(dead).map(|p| p.name.clone()).collect();
        let mut count = 0;
        for name in names {
            let mut state = self.state();
            let revoked = state.buffers_of(&name);
            state.publishers.retain(|p| p.name != name);
            drop(state);
            revoked.iter().for_each(|core| core.notices.revoke(&format!("the device of {name} is gone")));
            count += revoked.len();
        }
        self.freed.notify_all();
        count
    }

    fn may_share(&self, core: &Core, clients: &[Client]) -> Result<Vec<Route>, Error> {
        let state = self.state();
        let request = Request {
            clients: clients.to_vec(),
            uid: core.uid,
            job: core.job.clone(),
            rules: core.rules.clone(),
            others: true,
            ..Request::default()
        };
        if let Some(why) = core.notices.why() {
            return Err(Error::Revoked(why));
        }
        let Some(at) = state.publishers.iter().position(|p| p.name == core.publisher) else {
            return Err(Error::Unknown(format!("publisher {}", core.publisher)));
        };
        let judged = state.judge(at, &request);
        let candidate = judged.map_err(|why| Error::Refused(vec![(core.publisher.clone(), why)]))?;
        Ok(candidate.clients.into_iter().map(|(_, route)| route).collect())
    }
}

/// Takes `len` bytes in up to `most` pieces.
fn gather(publisher: &Arc<dyn Publisher>, len: u64, align: u64, most: usize) -> Result<Vec<Lease>, String> {
    if publisher.longest(align) >= len || most == 1 {
        return Lease::take(publisher, len, align).map(|lease| vec![lease]);
    }
    let (mut leases, mut left) = (Vec::new(), len);
    while left > 0 {
        // The longest pieces first: so there are as few as can be.
        let piece = publisher.longest(align).min(left) / PAGE * PAGE;
        if piece == 0 || leases.len() == most {
            let got = len - left;
            return Err(format!("{got} of {len} bytes are to be had in {} pieces", leases.len()));
        }
        leases.push(Lease::take(publisher, piece, align)?);
        left -= piece;
    }
    Ok(leases)
}

//! Which callbacks of a client may run: the clients, and their registrations from acquire to release.
//!
//! Every callback is called by a method of [`Registrations`], with no lock held. A client is listed as long
//! as one of its callbacks runs, and a registration until release has returned, whichever thread ends it: so
//! [`Registrations::unregister`] has one list to wait for. The thread that ends a registration marks it,
//! waits until no operation uses it, and gives it back.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use super::contract::Importer;
use super::import::Import;
use super::refused::Refused;
#[cfg(all(test, loom))]
use super::twins::Twin;
use super::twins::forgets;

#[cfg(all(test, loom))]
use loom::sync::{Condvar, Mutex, MutexGuard};
#[cfg(not(all(test, loom)))]
use std::sync::{Condvar, Mutex, MutexGuard};

/// The callbacks of a client, as far as their order is concerned.
pub(super) trait Callbacks {
    /// What get_pages and dma_map answer.
    type Pages;
    /// Why it has no memory for this importer, whatever the address: then it is not called.
    fn refuses(&self, _importer: Importer) -> Option<Refused> {
        None
    }
    fn acquire(&self, addr: usize, len: usize) -> Result<Option<usize>, Refused>;
    fn get_pages(&self, of: &Extent) -> Result<Self::Pages, Refused>;
    /// dma_unmap and put_pages where there are pages, and release.
    fn give_back(&self, of: &Extent, pages: Option<Arc<Self::Pages>>);
}

/// What a registration is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// What the client invalidates it by. Never used again.
    pub(super) name: u64,
    pub(super) ctx: usize,
    pub(super) addr: usize,
    pub(super) len: usize,
    pub(super) write: bool,
    pub(super) importer: Importer,
}

impl Extent {
    fn covers(&self, addr: usize, len: usize) -> bool {
        let off = addr.wrapping_sub(self.addr);
        off < self.len.max(1) && len <= self.len - off
    }
}

enum Pages<P> {
    Unknown,
    /// A thread calls get_pages.
    Asked,
    Known(Arc<P>),
}

pub(super) struct Registration<C: Callbacks> {
    of: Extent,
    /// The client's number, and its callbacks.
    client: u64,
    by: Arc<C>,
    pages: Pages<C::Pages>,
    /// Operations that use it just now, and imports.
    pub(super) using: u32,
    /// Of devices.
    pub(super) imports: Vec<Import>,
    /// How many have it registered (fi_mr).
    pins: u32,
    /// A thread gives it back: no operation begins to use it.
    pub(super) ended: bool,
}

struct Listed<C> {
    id: u64,
    by: Arc<C>,
    /// Callbacks that run and belong to no registration.
    running: u32,
    /// It is being unregistered: no such callback is called.
    leaving: bool,
}

/// What was invalidated while it was registered.
struct Stale {
    name: u64,
    pins: u32,
    addr: usize,
    len: usize,
}

pub(super) struct State<C: Callbacks> {
    last_name: u64,
    /// In the order of their numbers.
    clients: Vec<Listed<C>>,
    pub(super) registrations: BTreeMap<u64, Registration<C>>,
    stale: Vec<Stale>,
}

pub(super) struct Registrations<C: Callbacks> {
    state: Mutex<State<C>>,
    /// Something has ended that may be waited for.
    pub(super) ended: Condvar,
    /// Most registrations kept for later.
    bound: usize,
    #[cfg(all(test, loom))]
    pub(super) twin: Twin,
}

/// A registration in use; until this is dropped it stays as it is.
pub(super) struct InUse<'a, C: Callbacks> {
    all: &'a Registrations<C>,
    pub(super) of: Extent,
    pub(super) by: Arc<C>,
}

/// A registration in use with its pages, which are let go of first.
pub(super) struct Held<'a, C: Callbacks> {
    pub(super) pages: Arc<C::Pages>,
    pub(super) used: InUse<'a, C>,
}

impl<C: Callbacks> Drop for InUse<'_, C> {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        if let Some(r) = state.registrations.get_mut(&self.of.name) {
            r.using -= 1;
            if r.using == 0 && r.ended && !forgets!(self.all, Silent) {
                self.all.ended.notify_all();
            }
        }
    }
}

/// A callback outside registrations.
struct Running<'a, C: Callbacks> {
    all: &'a Registrations<C>,
    id: u64,
    by: Arc<C>,
}

impl<C: Callbacks> Drop for Running<'_, C> {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        if let Some(client) = state.clients.iter_mut().find(|c| c.id == self.id) {
            client.running -= 1;
            if client.leaving {
                self.all.ended.notify_all();
            }
        }
    }
}

impl<C: Callbacks> State<C> {
    pub(super) fn new_name(&mut self) -> u64 {
        self.last_name += 1;
        self.last_name
    }

    fn is_stale(&self, addr: usize, end: usize) -> bool {
        self.stale.iter().any(|s| addr < s.addr + s.len && s.addr < end)
    }

    /// Marks it as ended; the caller gives it back.
    fn end(&mut self, name: u64) {
        let Some(r) = self.registrations.get_mut(&name) else { return };
        r.ended = true;
        // In one step: the pins are in one of the lists at any time.
        if r.pins > 0 {
            self.stale.push(Stale { name, pins: r.pins, addr: r.of.addr, len: r.of.len });
            r.pins = 0;
        }
    }
}

impl<C: Callbacks> Registrations<C> {
    pub(super) fn new(bound: usize) -> Registrations<C> {
        let (clients, registrations, stale) = (Vec::new(), BTreeMap::new(), Vec::new());
        let state = Mutex::new(State { last_name: 0, clients, registrations, stale });
        Registrations {
            state,
            ended: Condvar::new(),
            bound,
            #[cfg(all(test, loom))]
            twin: Twin::Sound,
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, State<C>>) -> MutexGuard<'a, State<C>> {
        self.ended.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The client's number.
    pub(super) fn register(&self, client: C) -> u64 {
        let mut state = self.lock();
        let id = state.new_name();
        state.clients.push(Listed { id, by: Arc::new(client), running: 0, leaving: false });
        id
    }

    /// When this returns no callback of the client runs or will run. ENOENT: it was unregistered.
    pub(super) fn unregister(&self, id: u64) -> Result<(), i32> {
        let mut state = self.lock();
        let is_it = |c: &Listed<C>| c.id == id;
        let client = state.clients.iter_mut().find(|c| is_it(c)).ok_or(libc::ENOENT)?;
        let is_second = std::mem::replace(&mut client.leaving, true);
        let gone = loop {
            let mine = state.registrations.values().filter(|r| r.client == id && !r.ended);
            let mine: Vec<u64> = mine.map(|r| r.of.name).collect();
            if !mine.is_empty() {
                mine.iter().for_each(|name| state.end(*name));
                drop(state);
                mine.into_iter().for_each(|name| self.finish(name));
                state = self.lock();
                continue;
            }
            let Some(at) = state.clients.iter().position(is_it) else { break None };
            let runs = state.clients[at].running > 0 && !forgets!(self, Running);
            if !runs && state.registrations.values().all(|r| r.client != id) {
                self.ended.notify_all();
                break Some(state.clients.remove(at));
            }
            state = self.wait(state);
        };
        drop(state);
        drop(gone);
        if is_second { Err(libc::ENOENT) } else { Ok(()) }
    }

    /// Ends a registration of the client. It has been given back when this returns, also where another thread
    /// does so.
    pub(super) fn invalidate(&self, id: u64, name: u64) -> Result<(), i32> {
        let mut state = self.lock();
        let r = state.registrations.get(&name).filter(|r| r.client == id).ok_or(libc::ENOENT)?;
        if r.ended {
            while state.registrations.contains_key(&name) {
                state = self.wait(state);
            }
            return Err(libc::ENOENT);
        }
        state.end(name);
        drop(state);
        self.finish(name);
        Ok(())
    }

    /// Gives a registration back that this thread has marked as ended.
    fn finish(&self, name: u64) {
        /// It is off the list when the callbacks have returned, or unwound.
        struct Off<'a, C: Callbacks>(&'a Registrations<C>, u64);
        impl<C: Callbacks> Drop for Off<'_, C> {
            fn drop(&mut self) {
                let ended = self.0.lock().registrations.remove(&self.1);
                self.0.ended.notify_all();
                drop(ended);
            }
        }
        if !forgets!(self, RevokesLast) {
            self.revoke_imports(name);
        }
        let mut state = self.lock();
        let (of, by, pages) = loop {
            let Some(r) = state.registrations.get_mut(&name) else { return };
            let is_forgotten = forgets!(self, RevokesLast);
            if r.using == 0 || forgets!(self, InUse) || is_forgotten {
                let pages = match std::mem::replace(&mut r.pages, Pages::Unknown) {
                    Pages::Known(pages) => Some(pages),
                    Pages::Unknown | Pages::Asked => None,
                };
                break (r.of, r.by.clone(), pages);
            }
            state = self.wait(state);
        };
        drop(state);
        let off = Off(self, name);
        if forgets!(self, LeavesListFirst) {
            drop(off);
            by.give_back(&of, pages);
            return;
        }
        by.give_back(&of, pages);
        drop(off);
    }

    /// The registration for this importer that `addr..addr+len` is in, made if there is none. EFAULT: no
    /// client's.
    pub(super) fn use_one(
        &self,
        (addr, len): (usize, usize),
        write: bool,
        importer: Importer,
    ) -> Result<InUse<'_, C>, Refused> {
        let mut state = self.lock();
        let fits = |r: &&mut Registration<C>| {
            !r.ended && r.of.importer == importer && r.of.covers(addr, len) && (r.of.write || !write)
        };
        if let Some(r) = state.registrations.values_mut().rev().find(fits) {
            r.using += 1;
            return Ok(InUse { all: self, of: r.of, by: r.by.clone() });
        }
        // What another importer has is the same client's.
        let known = |r: &&Registration<C>| !r.ended && r.of.covers(addr, len);
        let found = state.registrations.values().find(known);
        if let Some(refused) = found.and_then(|r| r.by.refuses(importer)) {
            return Err(refused);
        }
        let end = addr.checked_add(len).ok_or(libc::EFAULT)?;
        let (mut last, mut refused) = (0, libc::EFAULT.into());
        loop {
            if state.is_stale(addr, end) {
                return Err(libc::ESTALE.into());
            }
            let asked = state.clients.iter_mut().find(|c| c.id > last && !c.leaving).ok_or(refused)?;
            if let Some(why) = asked.by.refuses(importer) {
                (last, refused) = (asked.id, why);
                continue;
            }
            asked.running += 1;
            let running = Running { all: self, id: asked.id, by: asked.by.clone() };
            drop(state);
            if let Some(ctx) = running.by.acquire(addr, len)? {
                return self.add(&running, Extent { name: 0, ctx, addr, len, write, importer });
            }
            last = running.id;
            drop(running);
            state = self.lock();
        }
    }

    /// Lists what has been acquired, while that callback counts as running.
    fn add(&self, by: &Running<'_, C>, of: Extent) -> Result<InUse<'_, C>, Refused> {
        let mut state = self.lock();
        let of = Extent { name: state.new_name(), ..of };
        // Memory at this address may have been invalidated while the client was asked.
        let is_stale = state.is_stale(of.addr, of.addr + of.len) && !forgets!(self, StaleOnce);
        let new = Registration {
            of,
            client: by.id,
            by: by.by.clone(),
            pages: Pages::Unknown,
            using: 1,
            imports: Vec::new(),
            pins: 0,
            ended: is_stale,
        };
        state.registrations.insert(of.name, new);
        let used = InUse { all: self, of, by: by.by.clone() };
        if is_stale {
            drop(state);
            drop(used);
            self.finish(of.name);
            return Err(libc::ESTALE.into());
        }
        let idle = |r: &&Registration<C>| !r.ended && r.using == 0 && r.pins == 0;
        let evicted = match state.registrations.len() > self.bound {
            true => state.registrations.values().find(idle).map(|r| r.of.name),
            false => None,
        };
        if let Some(name) = evicted {
            state.end(name);
            drop(state);
            self.finish(name);
        }
        Ok(used)
    }

    /// The same with its pages, which are got from the client if they are not there yet. A registration that
    /// gets none is not kept.
    pub(super) fn hold(
        &self,
        at: (usize, usize),
        write: bool,
        importer: Importer,
    ) -> Result<Held<'_, C>, Refused> {
        let used = self.use_one(at, write, importer)?;
        match self.pages(&used) {
            Ok(pages) => Ok(Held { pages, used }),
            Err(e) => {
                self.give_up(used);
                Err(e)
            }
        }
    }

    /// A registration has got no pages for this thread. Where no other one has it, it ends.
    fn give_up(&self, used: InUse<'_, C>) {
        let name = used.of.name;
        let mut state = self.lock();
        let is_last = |r: &Registration<C>| {
            !r.ended && r.using == 1 && r.pins == 0 && matches!(r.pages, Pages::Unknown)
        };
        let ends = state.registrations.get(&name).is_some_and(is_last);
        if ends {
            state.end(name);
        }
        drop(state);
        drop(used);
        if ends {
            self.finish(name);
        }
    }

    fn pages(&self, used: &InUse<'_, C>) -> Result<Arc<C::Pages>, Refused> {
        let name = used.of.name;
        let mut state = self.lock();
        loop {
            // In use: it is on the list.
            let r = state.registrations.get_mut(&name).ok_or(libc::ESTALE)?;
            match &r.pages {
                Pages::Known(pages) => return Ok(pages.clone()),
                Pages::Asked => state = self.wait(state),
                Pages::Unknown => {
                    r.pages = Pages::Asked;
                    break;
                }
            }
        }
        drop(state);
        let mut asked = Asked { all: self, name, pages: None };
        let pages = Arc::new(used.by.get_pages(&used.of)?);
        asked.pages = Some(pages.clone());
        Ok(pages)
    }

    /// Registers `addr..addr+len`, and names the registration.
    pub(super) fn pin(&self, addr: usize, len: usize, write: bool) -> Result<u64, i32> {
        let held = self.hold((addr, len), write, Importer::Process)?;
        let name = held.used.of.name;
        let mut state = self.lock();
        let r = state.registrations.get_mut(&name).ok_or(libc::ESTALE)?;
        // Invalidated since it was found: it is not what the client has there now.
        if r.ended && !forgets!(self, PinsEnded) {
            return Err(libc::ESTALE);
        }
        r.pins += 1;
        Ok(name)
    }

    /// Lets go of it.
    pub(super) fn unpin(&self, name: u64) {
        let mut state = self.lock();
        if let Some(r) = state.registrations.get_mut(&name).filter(|r| r.pins > 0) {
            r.pins -= 1;
            return;
        }
        if let Some(at) = state.stale.iter().position(|s| s.name == name) {
            state.stale[at].pins -= 1;
            if state.stale[at].pins == 0 {
                state.stale.remove(at);
            }
        }
    }

    /// Calls `body` for each client.
    pub(super) fn each(&self, mut body: impl FnMut(&C)) {
        let mut last = 0;
        loop {
            let mut state = self.lock();
            let Some(next) = state.clients.iter_mut().find(|c| c.id > last && !c.leaving) else { return };
            next.running += 1;
            let running = Running { all: self, id: next.id, by: next.by.clone() };
            drop(state);
            body(&running.by);
            last = running.id;
        }
    }
}

/// A call of get_pages, which has ended when this is dropped: with pages, with an error, or by unwinding.
struct Asked<'a, C: Callbacks> {
    all: &'a Registrations<C>,
    name: u64,
    pages: Option<Arc<C::Pages>>,
}

impl<C: Callbacks> Drop for Asked<'_, C> {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        let Some(r) = state.registrations.get_mut(&self.name) else { return };
        r.pages = match self.pages.take() {
            Some(pages) => Pages::Known(pages),
            None => Pages::Unknown,
        };
        self.all.ended.notify_all();
    }
}

#[cfg(all(test, loom))]
#[path = "registrations_loom.rs"]
mod loom_tests;

//! The device memory that this process has registered: what of it its agent knows.
//!
//! It is asked about at registration, so that no later operation has to ask the driver.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::connection::{Agent, active};
use crate::error::Error;
use crate::share::{Export, HandleType, fetch};

/// Most allocations one registration may lie in.
const PIECES: usize = 4096;

/// Exports the handles of memory by the driver.
pub(crate) type Exporter = fn(usize, usize, usize) -> Result<Vec<Export>, Error>;

/// An allocation that the agent has open.
#[derive(Debug)]
struct Known {
    export: Export,
    number: u32,
    users: usize,
}

#[derive(Debug)]
struct Registered {
    name: u64,
    addr: usize,
    len: usize,
    export: Exporter,
    /// Numbers of the allocations it is in.
    of: Vec<u32>,
}

#[derive(Debug, Default)]
struct All {
    known: Vec<Known>,
    registered: Vec<Registered>,
}

fn all() -> MutexGuard<'static, All> {
    static ALL: Mutex<All> = Mutex::new(All { known: Vec::new(), registered: Vec::new() });
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A registration, until it is dropped.
#[derive(Debug)]
pub(crate) struct Registration(u64);

/// Registers memory. Where there is an agent, an error is why that cannot reach it.
pub(crate) fn register(addr: usize, len: usize, export: Exporter) -> Result<Registration, Error> {
    static NAMES: AtomicU64 = AtomicU64::new(1);
    let name = NAMES.fetch_add(1, Ordering::Relaxed);
    // First, so that an agent that starts meanwhile finds it.
    all().registered.push(Registered { name, addr, len, export, of: Vec::new() });
    let registration = Registration(name);
    if let Some(agent) = active() {
        open(agent, name)?;
    }
    Ok(registration)
}

/// Has an agent open all that is registered; an error is why it cannot open one of them.
pub(crate) fn open_all(agent: &Agent) -> Result<(), Error> {
    let names: Vec<u64> = all().registered.iter().map(|r| r.name).collect();
    let mut all_open = Ok(());
    for name in names {
        all_open = all_open.and(open(agent, name));
    }
    all_open
}

/// There is no agent after all.
pub(crate) fn forget_all() {
    let mut all = all();
    all.known.clear();
    all.registered.iter_mut().for_each(|r| r.of.clear());
}

/// Has the agent open the memory of a registration, if it has not.
fn open(agent: &Agent, name: u64) -> Result<(), Error> {
    let of = |all: &All| all.registered.iter().position(|r| r.name == name);
    let found = {
        let all = all();
        of(&all).map(|at| (all.registered[at].addr, all.registered[at].len, all.registered[at].export))
    };
    let Some((addr, len, export)) = found else { return Ok(()) };
    agent.check()?;
    // This asks the driver, which may keep it waiting: no operation is to wait for that, so the lock is not
    // held.
    let exports = export(addr, len.max(1), PIECES)?;
    let mut all = all();
    match of(&all) {
        Some(at) if all.registered[at].of.is_empty() => {
            let (numbers, done) = all.open(agent, &exports);
            match done {
                Ok(()) => all.registered[at].of = numbers,
                Err(_) => all.leave(&numbers),
            }
            done
        }
        _ => Ok(()),
    }
}

impl All {
    /// The numbers of those that could be opened, and whether these are all.
    fn open(&mut self, agent: &Agent, exports: &[Export]) -> (Vec<u32>, Result<(), Error>) {
        let mut numbers = Vec::new();
        for e in exports {
            let known = self.known.iter_mut().find(|k| k.export == *e);
            let number = match known {
                Some(known) => {
                    known.users += 1;
                    Ok(known.number)
                }
                None => descriptor(std::process::id() as i32, e)
                    .and_then(|fd| agent.open(e, fd.as_ref(), true))
                    .inspect(|number| self.known.push(Known { export: *e, number: *number, users: 1 })),
            };
            match number {
                Ok(number) => numbers.push(number),
                Err(e) => return (numbers, Err(e)),
            }
        }
        (numbers, Ok(()))
    }

    fn leave(&mut self, numbers: &[u32]) {
        for number in numbers {
            let Some(at) = self.known.iter().position(|k| k.number == *number) else { continue };
            self.known[at].users -= 1;
            if self.known[at].users == 0 {
                self.known.remove(at);
                if let Some(agent) = active() {
                    agent.close(*number);
                }
            }
        }
    }

    /// The newest one there.
    fn find(&self, addr: u64) -> Option<&Known> {
        self.known.iter().rev().find(|k| addr.wrapping_sub(k.export.base) < k.export.len)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut all = all();
        let Some(at) = all.registered.iter().position(|r| r.name == self.0) else { return };
        let gone = all.registered.swap_remove(at);
        all.leave(&gone.of);
    }
}

/// A descriptor that the agent is to be given with a handle.
pub(crate) fn descriptor(pid: i32, export: &Export) -> Result<Option<OwnedFd>, Error> {
    match export.handle_type {
        HandleType::Legacy => Ok(None),
        HandleType::Descriptor => fetch(pid, export.fd).map(Some),
        _ => Err(Error::UNSUPPORTED),
    }
}

/// Whether an address is of registered device memory.
pub(crate) fn is_registered(addr: usize) -> bool {
    all().find(addr as u64).is_some()
}

/// The number that the driver gave the allocation at an address.
pub(crate) fn number(addr: usize) -> Option<u64> {
    all().find(addr as u64).map(|k| k.export.id).filter(|id| *id != 0)
}

/// Whether an allocation is still registered.
pub(crate) fn is_still(export: &Export) -> bool {
    all().known.iter().any(|k| k.export == *export)
}

/// Where the agent has an address: the number of the allocation, the offset, and how many bytes follow.
pub(crate) fn place(addr: usize) -> Option<(u32, u64, u64)> {
    let all = all();
    let known = all.find(addr as u64)?;
    let off = addr as u64 - known.export.base;
    Some((known.number, off, known.export.len - off))
}

/// The handles of all allocations that `addr..addr + len` is in.
pub(crate) fn exports(addr: usize, len: usize, most: usize) -> Result<Vec<Export>, Error> {
    let all = all();
    let (mut at, end) = (addr as u64, addr as u64 + len as u64);
    let mut out = Vec::new();
    while at < end {
        let known = all.find(at).filter(|_| out.len() < most).ok_or(Error::FAULT)?;
        out.push(known.export);
        at = known.export.base + known.export.len;
    }
    Ok(out)
}

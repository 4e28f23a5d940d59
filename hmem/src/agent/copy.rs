//! Copies that the agent makes.

use super::connection::{Agent, Ticket};
use super::message::{BOUNCE, HOST, Move};
use super::registered::{descriptor, is_registered, place};
use crate::error::Error;
use crate::pending::{Part, PendingCopy};
use crate::share::{Backing, Export, Mapped, Opened};

/// Stands for the place of all copies.
pub(crate) const CONTEXT: usize = usize::MAX;

/// Addresses of others' memory are names: this bit, the number that the agent knows it by, and an offset.
const FOREIGN: u64 = 1 << 63;
const OFFSET: u64 = 1 << 40;

/// Memory of another process that the agent knows.
#[derive(Debug)]
struct Foreign {
    agent: &'static Agent,
    number: u32,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        self.agent.close(self.number);
    }
}

/// Has the agent know what the process `pid` exported. It opens it with the first copy.
pub(crate) fn import(agent: &'static Agent, pid: i32, export: &Export) -> Result<Mapped, Error> {
    if export.len > OFFSET {
        return Err(Error::UNSUPPORTED);
    }
    let fd = descriptor(pid, export)?;
    let number = agent.open(export, fd.as_ref(), false)?;
    let foreign = Foreign { agent, number };
    if u64::from(number) >= FOREIGN / OFFSET {
        return Err(Error::os(libc::ENOSPC));
    }
    let at = FOREIGN | (u64::from(number) * OFFSET);
    Ok(Mapped { at, len: export.len, backing: Backing::Runtime(Box::new(foreign)) })
}

/// Where the agent has an address, how many bytes follow, and whether it is device memory of this process.
fn find(agent: &Agent, addr: usize) -> Option<((u32, u64), u64, bool)> {
    let at = addr as u64;
    if at & FOREIGN != 0 {
        let (number, off) = ((at & !FOREIGN) / OFFSET, at % OFFSET);
        return Some(((number as u32, off), OFFSET - off, false));
    }
    if let Some((off, room)) = agent.in_bounces(addr) {
        return Some(((HOST, off), room, false));
    }
    place(addr).map(|(number, off, room)| ((number, off), room, true))
}

/// Begins to copy all parts.
fn begin(agent: &Agent, parts: impl IntoIterator<Item = Part>) -> Result<Vec<Ticket>, Error> {
    let (mut moves, mut by) = (Vec::new(), None);
    for part in parts {
        let (mut dst, mut src, mut left) = (part.dst, part.src, part.len as u64);
        while left > 0 {
            let (to, room, to_own) = find(agent, dst).ok_or(Error::FAULT)?;
            let (from, there, from_own) = find(agent, src).ok_or(Error::FAULT)?;
            let len = left.min(room).min(there);
            // The device that has this process's side, the source's if both are.
            by = by.or(from_own.then_some(from.0)).or(to_own.then_some(to.0));
            moves.push(Move { dst: to, src: from, len });
            (dst, src, left) = (dst + len as usize, src + len as usize, left - len);
        }
    }
    match by {
        Some(by) => agent.copy(by, &moves),
        // Between others' memory and the buffers, for instance.
        None => {
            let known = moves.iter().flat_map(|m| [m.src.0, m.dst.0]).find(|n| *n != HOST);
            agent.copy(known.unwrap_or(HOST), &moves)
        }
    }
}

/// Starts to copy.
pub(crate) fn start(
    agent: &'static Agent,
    parts: &[Part],
    keep: Vec<Opened>,
) -> Result<Box<dyn PendingCopy>, Error> {
    let tickets = begin(agent, parts.iter().copied())?;
    Ok(Box::new(Pending { agent, tickets, polls: 0, ok: true, _keep: keep }))
}

/// A copy that the agent was given. Dropping it waits until it is over.
#[derive(Debug)]
struct Pending {
    agent: &'static Agent,
    tickets: Vec<Ticket>,
    polls: u32,
    ok: bool,
    _keep: Vec<Opened>,
}

impl PendingCopy for Pending {
    fn poll(&mut self) -> Result<bool, Error> {
        self.ok &= self.agent.poll(&mut self.tickets, &mut self.polls)?;
        match (self.tickets.is_empty(), self.ok) {
            (false, _) => Ok(false),
            (true, true) => Ok(true),
            (true, false) => Err(Error::os(libc::EIO)),
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.agent.end(&mut self.tickets);
    }
}

/// Copies and waits. Host memory goes through a buffer.
pub(crate) fn copy_now(agent: &Agent, dst: usize, src: usize, len: usize) -> Result<(), Error> {
    let finish = |mut tickets| agent.end(&mut tickets).then_some(()).ok_or(Error::os(libc::EIO));
    let is_host = |addr| find(agent, addr).is_none();
    match (is_host(dst), is_host(src)) {
        (false, false) => finish(begin(agent, [Part { dst, src, len }])?),
        (true, true) => Err(Error::FAULT),
        (to_host, _) => {
            let device = if to_host { src } else { dst };
            if !is_registered(device) && device as u64 & FOREIGN == 0 {
                return Err(Error::FAULT);
            }
            let (_one, buffer) = agent.waited();
            let at = buffer.expose_provenance();
            for off in (0..len).step_by(BOUNCE) {
                let n = BOUNCE.min(len - off);
                let host = |addr: usize| std::ptr::with_exposed_provenance_mut::<u8>(addr + off);
                if to_host {
                    finish(begin(agent, [Part { dst: at, src: src + off, len: n }])?)?;
                    // SAFETY: the caller's: `len` bytes of host memory at `dst`; the buffer has `BOUNCE`
                    // bytes, which are this call's for as long as the lock is held, and no device copies.
                    unsafe { crate::bytes::copy_bytes(buffer, host(dst), n) };
                } else {
                    // SAFETY: the caller's: `len` bytes of host memory at `src`; the buffer is as above.
                    unsafe { crate::bytes::copy_bytes(host(src), buffer, n) };
                    finish(begin(agent, [Part { dst: dst + off, src: at, len: n }])?)?;
                }
            }
            Ok(())
        }
    }
}

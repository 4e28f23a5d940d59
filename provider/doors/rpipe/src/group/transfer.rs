//! What one call of a group moves: from several members and to several at once.

use std::ptr;
use std::time::Duration;

use super::pieces::{HEAD, Incoming, Outgoing};
use super::{Fault, Group, LEAST};
use crate::core::Visit;
use crate::core::{Patience, WaitStep, Waiting};
use crate::{Error, Pipe};

/// The longest piece; a fourth of the heap, if that is less.
const PIECE: usize = 32 << 10;

impl Group {
    /// Moves all that was begun. `relay`: what goes out is what comes in.
    pub(super) fn run(&mut self, relay: bool, patience: Patience) -> Result<(), Error> {
        self.move_all(relay, patience).map_err(|fault| self.end(fault))
    }

    fn move_all(&mut self, relay: bool, patience: Patience) -> Result<(), Fault> {
        let context = self.context.clone();
        let place = self.me;
        let own = |error: Error| (place, error);
        let mut waiting: Option<Waiting> = None;
        // Of the call, and not of each wait.
        let patience = if patience == Patience::Poll { Patience::for_a(Duration::ZERO) } else { patience };
        loop {
            let mut moved = self.step(relay, false)?;
            if self.is_done() {
                return Ok(());
            }
            if moved {
                if patience.is_over() {
                    return Err(self.too_late());
                }
                waiting = None;
                continue;
            }
            let Some(wait) = &mut waiting else {
                self.step(relay, true)?;
                waiting = Some(Waiting::new(patience, self.polls()));
                continue;
            };
            let step = match wait.step(&context) {
                // What the last progress has brought counts.
                Err(Error::Again) => {
                    self.step(relay, true)?;
                    return if self.is_done() { Ok(()) } else { Err(self.too_late()) };
                }
                step => step.map_err(own)?,
            };
            if step == WaitStep::Poll {
                continue;
            }
            moved |= self.step(relay, true)?;
            if step == WaitStep::Sleep && !moved {
                let wakes = self.arm(relay);
                context.barrier().heavy();
                if !self.step(relay, false)? && !self.step(relay, true)? {
                    wait.sleep(&context, wakes);
                }
            }
        }
    }

    /// The time of the call is over: of which members something was waited for.
    #[cold]
    fn too_late(&self) -> Fault {
        let ins = self.incoming.iter().filter(|one| !one.is_done()).map(|one| one.member);
        let outs = self.outgoing.iter().filter(|one| !one.done).map(|one| one.member);
        let mut late: Vec<_> = ins.chain(outs).map(|place| self.members[place].rank).collect();
        late.sort_unstable();
        late.dedup();
        let ranks = late.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let why =
            format!("not within the time, which is over for the whole group: it waited for rank {ranks}");
        (self.me, Error::TimedOut(why))
    }

    fn is_done(&self) -> bool {
        self.incoming.iter().all(Incoming::is_done) && self.outgoing.iter().all(|one| one.done)
    }

    /// What is there of what is relayed; all, of what is this member's.
    fn there(&self, relay: bool, one: &Outgoing) -> Option<usize> {
        match self.incoming.first() {
            Some(from) if relay => from.total.map(|_| from.got),
            _ => Some(one.from.1),
        }
    }

    /// Whether all that is waited for is seen without progress.
    fn polls(&self) -> bool {
        let pipe = |member: usize| self.members[member].pipe.as_ref();
        let mut ins = self.incoming.iter().filter(|one| !one.is_done());
        let mut outs = self.outgoing.iter().filter(|one| !one.done);
        ins.all(|one| pipe(one.member).is_some_and(Pipe::reader_polls))
            && outs.all(|one| pipe(one.member).is_some_and(Pipe::writer_polls))
    }

    /// Has those wake this process whose messages are waited for; whether nothing else is.
    fn arm(&mut self, relay: bool) -> bool {
        let mut wakes = self.outgoing.iter().all(|one| one.is_idle(self.there(relay, one)));
        for one in self.incoming.iter().filter(|one| !one.is_done()) {
            wakes &= self.members[one.member].pipe.as_mut().is_some_and(|pipe| pipe.visit(Visit::Arm));
        }
        wakes
    }

    /// Moves what can be moved now; whether anything was. `ask`: also sets ends up, and asks whether members
    /// are there.
    fn step(&mut self, relay: bool, ask: bool) -> Result<bool, Fault> {
        let mut moved = false;
        for at in 0..self.incoming.len() {
            let mut one = self.incoming[at];
            if one.is_done() || one.after.is_some_and(|before| !self.incoming[before].is_done()) {
                continue;
            }
            let taken = self.take(&mut one, ask);
            self.incoming[at] = one;
            moved |= taken.map_err(|error| (one.member, error))?;
        }
        for at in 0..self.outgoing.len() {
            let mut one = self.outgoing[at];
            if one.done || one.after.is_some_and(|before| !self.outgoing[before].done) {
                continue;
            }
            let there = self.there(relay, &one);
            let sent = self.give(&mut one, there, ask);
            self.outgoing[at] = one;
            moved |= sent.map_err(|error| (one.member, error))?;
        }
        Ok(moved)
    }

    /// Takes what has come from a member.
    fn take(&mut self, one: &mut Incoming, ask: bool) -> Result<bool, Error> {
        let member = &mut self.members[one.member];
        let Some(pipe) = &mut member.pipe else { return Ok(false) };
        let visit = if ask { Visit::Ask { begin: true } } else { Visit::Flag };
        let mut moved = false;
        while !one.is_done() && pipe.visit(visit) {
            let (address, len, handler) = match pipe.read_any(usize::MAX, Patience::Poll) {
                Err(Error::Again) => break,
                other => other?,
            };
            if handler != 0 {
                return Err(Error::Broken("an active message came in a group's pipe".into()));
            }
            let at = pipe.address(address)?;
            one.take(at, len, member.rank)?;
            pipe.free(address)?;
            moved = true;
        }
        Ok(moved)
    }

    /// Gives to a member as much as it has room for.
    fn give(&mut self, one: &mut Outgoing, there: Option<usize>, ask: bool) -> Result<bool, Error> {
        let member = &mut self.members[one.member];
        let Some(pipe) = &mut member.pipe else { return Ok(false) };
        if ask && !pipe.connect_writer()? {
            return Ok(false);
        }
        let Some((heap, slots)) = pipe.room() else { return Ok(false) };
        if heap < LEAST.0 || slots < LEAST.1 {
            return Err(Error::Broken(
                "the heap of a group's pipe is shorter than each member makes it".into(),
            ));
        }
        let mut moved = false;
        while one.can_send(there) {
            let head = if one.begun { 0 } else { HEAD };
            let len = (there.unwrap_or(0) - one.sent).min(PIECE.min(heap / 4) - head);
            let Some(block) = pipe.alloc_now(head + len)? else { break };
            let to = pipe.address(block)?;
            // SAFETY: a block of so many bytes, which is this end's; the bytes are the caller's, and are
            // there (`there`).
            unsafe {
                if head != 0 {
                    to.cast::<u64>().write_unaligned(one.what.to_le());
                    to.add(8).cast::<u64>().write_unaligned((one.from.1 as u64).to_le());
                }
                ptr::copy_nonoverlapping(one.from.0.add(one.sent), to.add(head), len);
            }
            match pipe.write_timed(block, None, Patience::Poll) {
                Err(Error::Again) => {
                    pipe.free(block)?;
                    break;
                }
                other => other?,
            }
            (one.begun, moved) = (true, true);
            one.sent += len;
        }
        if one.begun && one.sent == one.from.1 {
            one.done = match pipe.flush(Patience::Poll) {
                Err(Error::Again) => false,
                other => other.map(|()| true)?,
            };
        }
        Ok(moved | one.done)
    }
}

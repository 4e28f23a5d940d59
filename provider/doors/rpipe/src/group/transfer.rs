//! What one call of a group moves: from several members and to several at once.

use std::ptr;

use super::members::{Fault, Member, Members};
use super::pieces::{HEAD, Incoming, Outgoing, write_head};
use super::reduction::Reduction;
use crate::core::{Patience, Visit, WaitStep, Waiting};
use crate::{Error, Pipe};

/// Sleeps of a call, of 100 ms each where members wake each other, before it sends notes.
const NOTE_AFTER: u32 = 2;

/// The members, and what a call moves between this one and others.
#[derive(Debug)]
pub(super) struct Transfers {
    pub(super) members: Members,
    pub(super) incoming: Vec<Incoming>,
    pub(super) outgoing: Vec<Outgoing>,
}

/// What goes on in a call beside incoming and outgoing messages.
#[derive(Debug)]
pub(super) enum Also<'a, 'b> {
    Nothing,
    /// What goes out is what comes in.
    Relay,
    Reduce(Reduction<'a, 'b>),
}

impl Transfers {
    /// Forgets the messages of the last call.
    pub(super) fn clear(&mut self) {
        self.incoming.clear();
        self.outgoing.clear();
        self.members.all.iter_mut().for_each(Member::clear);
    }

    /// Moves all that was begun.
    pub(super) fn move_all(&mut self, mut also: Also<'_, '_>, patience: Patience) -> Result<(), Fault> {
        let also = &mut also;
        let context = self.members.context.clone();
        let place = self.members.me;
        let own = |error: Error| (place, error);
        let mut waiting: Option<Waiting> = None;
        let patience = patience.of_call();
        let mut sleeps = 0;
        loop {
            let mut moved = self.step(also, false)?;
            if self.is_done(also) {
                return Ok(());
            }
            if moved {
                if patience.is_over() {
                    return Err(self.too_late(also));
                }
                waiting = None;
                continue;
            }
            let Some(wait) = &mut waiting else {
                self.step(also, true)?;
                waiting = Some(Waiting::new(patience, self.polls(also)));
                continue;
            };
            let step = match wait.step(&context) {
                // What the last progress has brought counts.
                Err(Error::Again) => {
                    self.step(also, true)?;
                    self.compare_others(also)?;
                    return if self.is_done(also) { Ok(()) } else { Err(self.too_late(also)) };
                }
                step => step.map_err(own)?,
            };
            if step == WaitStep::Poll {
                continue;
            }
            moved |= self.step(also, true)?;
            if step == WaitStep::Sleep && !moved {
                self.compare_others(also)?;
                sleeps += 1;
                // Long enough for a note to be worth a connection.
                if sleeps >= NOTE_AFTER {
                    self.note(also);
                }
                let wakes = self.arm(also);
                context.barrier().heavy();
                if !self.step(also, false)? && !self.step(also, true)? {
                    wait.sleep(&context, wakes);
                }
            }
        }
    }

    /// Finds members that are in another call, among those of which nothing is waited for.
    #[cold]
    fn compare_others(&mut self, also: &Also<'_, '_>) -> Result<(), Fault> {
        let me = self.members.me;
        for place in (0..self.members.all.len()).filter(|place| *place != me) {
            let comes = self.incoming.iter().any(|one| one.member == place && !one.is_done())
                || also.reduction().is_some_and(|one| one.reads(place));
            if !comes {
                // One that has left needs not be there any more.
                match self.members.compare(place) {
                    Err(error @ Error::Invalid(_)) => return Err((place, error)),
                    _ => continue,
                }
            }
        }
        Ok(())
    }

    /// Sends a note to each member that this call waits for, but not into the middle of a message.
    #[cold]
    fn note(&mut self, also: &Also<'_, '_>) {
        let ins = self.incoming.iter().filter(|one| !one.is_done()).map(|one| one.member);
        let missing = also.reduction().into_iter().flat_map(Reduction::missing);
        let places: Vec<usize> = ins.chain(missing).collect();
        let writes = |place| self.outgoing.iter().any(|one| one.member == place && one.begun && !one.done);
        for place in places.into_iter().filter(|place| !writes(*place)).collect::<Vec<_>>() {
            let _ = self.members.note(place);
        }
    }

    /// The time of the call is over: of which members something was waited for.
    #[cold]
    fn too_late(&self, also: &Also<'_, '_>) -> Fault {
        let ins = self.incoming.iter().filter(|one| !one.is_done()).map(|one| one.member);
        let outs = self.outgoing.iter().filter(|one| !one.done).map(|one| one.member);
        let places = ins.chain(outs).chain(also.reduction().into_iter().flat_map(Reduction::waits_for));
        let mut late: Vec<_> = places.map(|place| self.members.all[place].rank).collect();
        late.sort_unstable();
        late.dedup();
        let ranks = late.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let why =
            format!("not within the time, which is over for the whole group: it waited for rank {ranks}");
        (self.members.me, Error::TimedOut(why))
    }

    fn is_done(&self, also: &Also<'_, '_>) -> bool {
        self.incoming.iter().all(Incoming::is_done)
            && self.outgoing.iter().all(|one| one.done)
            && also.reduction().is_none_or(Reduction::is_done)
    }

    /// What is there of what is relayed; all, of what is this member's.
    fn there(&self, also: &Also<'_, '_>, one: &Outgoing) -> Option<usize> {
        match (self.incoming.first(), also) {
            (Some(from), Also::Relay) => from.total.map(|_| from.got),
            _ => Some(one.from.1),
        }
    }

    /// Whether all that is waited for is seen without progress.
    fn polls(&self, also: &Also<'_, '_>) -> bool {
        let pipe = |member: usize| self.members.all[member].pipe.as_ref();
        let reads = |member| pipe(member).is_some_and(Pipe::reader_polls);
        let writes = |member| pipe(member).is_some_and(Pipe::writer_polls);
        let mut ins = self.incoming.iter().filter(|one| !one.is_done());
        let mut outs = self.outgoing.iter().filter(|one| !one.done);
        ins.all(|one| reads(one.member))
            && outs.all(|one| writes(one.member))
            && also.reduction().is_none_or(|one| one.missing().all(reads) && one.target().is_none_or(writes))
    }

    /// Has those wake this process whose messages are waited for; whether nothing else is.
    fn arm(&mut self, also: &Also<'_, '_>) -> bool {
        let mut wakes = self.outgoing.iter().all(|one| one.is_idle(self.there(also, one)));
        let ins = self.incoming.iter().filter(|one| !one.is_done()).map(|one| one.member);
        let mut of: Vec<usize> = ins.collect();
        if let Some(one) = also.reduction().filter(|one| !one.is_done()) {
            of.extend(one.missing());
            // Room is what it waits for otherwise.
            wakes &= one.missing().next().is_some();
        }
        for member in of {
            wakes &= self.members.all[member].pipe.as_mut().is_some_and(|pipe| pipe.visit(Visit::Arm));
        }
        wakes
    }

    /// Moves what can be moved now; whether anything was. `ask`: also sets ends up, and asks whether members
    /// are there.
    fn step(&mut self, also: &mut Also<'_, '_>, ask: bool) -> Result<bool, Fault> {
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
            let there = self.there(also, &one);
            let sent = self.give(&mut one, there, ask);
            self.outgoing[at] = one;
            moved |= sent.map_err(|error| (one.member, error))?;
        }
        if let Also::Reduce(reduction) = also {
            moved |= reduction.step(&mut self.members, ask)?;
        }
        Ok(moved)
    }

    /// Takes what has come from a member.
    fn take(&mut self, one: &mut Incoming, ask: bool) -> Result<bool, Error> {
        let mut moved = false;
        while !one.is_done() {
            let first = one.total.is_none();
            let Some((address, at, len)) = self.members.next(one.member, first, ask)? else { break };
            one.take(at, len, self.members.all[one.member].rank)?;
            self.members.free(one.member, address)?;
            moved = true;
        }
        Ok(moved)
    }

    /// Gives to a member as much as it has room for.
    fn give(&mut self, one: &mut Outgoing, there: Option<usize>, ask: bool) -> Result<bool, Error> {
        let Some((pipe, heap)) = self.members.writable(one.member, ask)? else { return Ok(false) };
        let mut moved = false;
        while one.can_send(there) {
            let head = if one.begun { 0 } else { HEAD };
            let len = (there.unwrap_or(0) - one.sent).min(one.piece.min(heap / 4) - HEAD);
            let Some(block) = pipe.alloc_now(head + len)? else { break };
            let to = pipe.address(block)?;
            // SAFETY: a block of so many bytes, which is this end's; the bytes are the caller's, and are
            // there (`there`).
            unsafe {
                if head != 0 {
                    write_head(to, one.what, one.from.1);
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

impl<'a, 'b> Also<'a, 'b> {
    fn reduction(&self) -> Option<&Reduction<'a, 'b>> {
        if let Also::Reduce(reduction) = self { Some(reduction) } else { None }
    }
}

//! Lists of operations: what a batch does, in constants.

use std::sync::Arc;
use std::time::{Duration, Instant};

use peerop::{Fence, Op, Until};

use crate::agent::{GETS, OFFSET, REGION, WHAT};
use crate::error::Error;
use crate::failure::Kind;
use crate::kernel::{Move, Raise};
use crate::layout::{AT, GOES_ON, LANES, LENGTH, code};
use crate::pass::Pass;
use crate::shared::{Core, Peer, RECEIVES, SENDS, place};
use crate::slots::{PUT_BLOCKS, Slots};

/// How long the end of a graph is waited for, which the driver says in a thread of its own.
const LET_GO: Duration = Duration::from_millis(100);

/// Slots that a message takes at most, and parts of a put or a get by an agent: a length that no buffer has
/// is not made into operations.
const MOST_PARTS: usize = 1 << 20;
/// Bytes of a message between two devices at most, where that is more: it is one operation.
const MOST_BYTES: usize = 64 << 30;

/// A step of a list.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    /// Memory operations.
    Ops(Vec<Op>),
    /// A move of data, unless the endpoint has failed.
    Move(Move),
    /// The same between devices, with its waits and what it raises.
    Pass(Pass),
}

/// Operations of an endpoint, in order. What executes it: [`List::run`], [`List::run_on_cpu`],
/// [`List::add_to_graph`].
///
/// One execution of a list is over before the next begins: EBUSY while another stream has not executed what
/// it was given. Graphs that have it are launched one after another.
#[derive(Debug)]
pub struct List {
    pub(crate) core: Arc<Core>,
    pub(crate) lane: u32,
    entries: usize,
    used: usize,
    /// In the lane of sends: an acknowledgement, which is behind the waits of the other lane.
    pub(crate) is_behind_waits: bool,
    pub(crate) items: Vec<Item>,
    /// Memory of the program's.
    pub(crate) buffers: Vec<(usize, usize)>,
}

/// What a put or a get moves.
#[derive(Clone, Copy, Debug)]
pub struct Put {
    /// Memory of this process.
    pub local: usize,
    /// Bytes.
    pub len: usize,
    /// The number of the peer's registration.
    pub region: u32,
    /// Bytes from its first one.
    pub offset: u64,
    /// A signal that is raised behind the data.
    pub signal: Option<u32>,
}

impl List {
    /// One with room for so many operations: a message takes one for each slot that it fills.
    pub(crate) fn new(core: Arc<Core>, entries: usize) -> Result<List, Error> {
        core.shared.peer()?;
        let lane = {
            let taken = &mut core.state().taken;
            let free = taken.iter().position(|t| !t).ok_or(Error::Busy(
                "62 lists are open, as many as an endpoint has: free one, or use one list for more operations",
            ))?;
            taken[free] = true;
            free as u32
        };
        Ok(List::of_lane(core, lane, entries))
    }

    /// The list of a call without one.
    pub(crate) fn of_lane(core: Arc<Core>, lane: u32, entries: usize) -> List {
        let (items, buffers) = (Vec::new(), Vec::new());
        List { core, lane, entries, used: 0, is_behind_waits: false, items, buffers }
    }

    /// Refuses calls in a child of the process that opened the endpoint.
    pub fn is_of_this_process(&self) -> Result<(), Error> {
        self.core.shared.is_of_this_process()
    }

    /// Adds a send.
    ///
    /// # Safety
    /// The memory is readable until the last execution of the list is over.
    pub unsafe fn send(&mut self, at: usize, len: usize) -> Result<(), Error> {
        self.message(at, len, Kind::Send)
    }

    /// Adds a receive. The message has the length of the buffer: the endpoint fails otherwise.
    ///
    /// # Safety
    /// The memory is writable until the last execution of the list is over, and accessed by nothing else
    /// meanwhile.
    pub unsafe fn receive(&mut self, at: usize, len: usize) -> Result<(), Error> {
        self.message(at, len, Kind::Receive)
    }

    fn message(&mut self, at: usize, len: usize, kind: Kind) -> Result<(), Error> {
        let core = self.core.clone();
        let (peer, layout) = (core.shared.peer()?, core.shared.layout);
        buffer(at, len)?;
        let most = layout.slot_bytes as usize;
        let parts = match peer.direct {
            Some(_) if len <= MOST_BYTES => len.div_ceil(most).max(1),
            _ => parts(len, most, TOO_LONG)?,
        };
        self.room(parts)?;
        let sends = kind == Kind::Send;
        if peer.direct.is_some() {
            let next = &mut core.state().next[usize::from(!sends)];
            let slots = Slots::of(&layout, if sends { peer.to } else { peer.from }, *next, len);
            *next = (*next + slots.taken()) % layout.slots;
            let (flags, credits) = (layout.flag(0), layout.credit(0));
            let (waits, raises) = if sends { (credits, flags) } else { (flags, credits) };
            let (wait, raise) = (Some((kind, waits)), Some(raises));
            self.passes(Pass { at, len, sends, slots, wait, raise, checks: !sends, acknowledges: None });
            self.buffers.push((at, len));
            return Ok(());
        }
        self.items_for(2 * parts)?;
        let next = &mut core.state().next[usize::from(!sends)];
        for part in 0..parts {
            let (slot, begin) = (*next, part * most);
            *next = (slot + 1) % layout.slots;
            let (here, len) = (at + begin, (len - begin).min(most));
            // Both sides say where the message ends: parts of two are never taken for one.
            let length = len as u32 | if part + 1 < parts { GOES_ON } else { 0 };
            let in_slot = slot as usize * most;
            let (flag, credit) = (layout.flag(slot), layout.credit(slot));
            if sends {
                self.take(peer, Kind::Send, credit);
                let raise = Some(Raise { line: flag, length });
                let to = peer.to + in_slot;
                self.moves(Move { to, from: here, len, clear: Some(credit), slot: None, raise });
            } else {
                self.take(peer, Kind::Receive, flag);
                let raise = Some(Raise { line: credit, length: 0 });
                let from = peer.from + in_slot;
                let slot = Some((slot, length));
                self.moves(Move { to: here, from, len, clear: Some(flag), slot, raise });
            }
        }
        self.buffers.push((at, len));
        Ok(())
    }

    /// Adds a put into memory that the peer has registered; with a signal, [`List::wait`] of the peer waits
    /// for it. The signal is raised again when the peer has acknowledged it.
    ///
    /// # Safety
    /// The memory is readable until the last execution of the list is over.
    pub unsafe fn put(&mut self, put: &Put) -> Result<(), Error> {
        let core = self.core.clone();
        let (peer, there) = remote(&core, put)?;
        let layout = core.shared.layout;
        if let Some(signal) = put.signal {
            self.signal(signal)?;
        }
        if peer.agent.is_some() && put.len > 0 {
            let parts = parts(put.len, layout.stage(), TOO_LONG_BY_AGENT)?;
            self.room(1)?;
            self.items_for(4 * parts)?;
            self.by_agent(peer, put, true);
            self.buffers.push((put.local, put.len));
            return Ok(());
        }
        self.room(1)?;
        if peer.direct.is_some() {
            self.put_between_devices(peer, put, there);
            self.buffers.push((put.local, put.len));
            return Ok(());
        }
        let clear = put.signal.map(|signal| layout.signal_credit(signal));
        if let Some(credit) = clear {
            self.take(peer, Kind::Put, credit);
        }
        let raise = put.signal.map(|signal| Raise { line: layout.signal(signal), length: 0 });
        self.moves(Move { to: there, from: put.local, len: put.len, clear, slot: None, raise });
        self.buffers.push((put.local, put.len));
        Ok(())
    }

    /// Adds a get from memory that the peer has registered. `signal` is none.
    ///
    /// # Safety
    /// The memory is writable until the last execution of the list is over.
    pub unsafe fn get(&mut self, get: &Put) -> Result<(), Error> {
        let core = self.core.clone();
        let (peer, there) = remote(&core, get)?;
        if get.signal.is_some() {
            return Err(Error::Invalid("a get raises no signal: pass none"));
        }
        if peer.agent.is_some() && get.len > 0 {
            let parts = parts(get.len, core.shared.layout.stage(), TOO_LONG_BY_AGENT)?;
            self.room(1)?;
            self.items_for(2 * parts)?;
            self.by_agent(peer, get, false);
            self.buffers.push((get.local, get.len));
            return Ok(());
        }
        self.room(1)?;
        if peer.direct.is_some() {
            let (at, len) = (get.local, get.len);
            let slots = Slots::spread(there, len, PUT_BLOCKS);
            self.passes(Pass { at, len, slots, ..Pass::word(None, None) });
            self.buffers.push((get.local, get.len));
            return Ok(());
        }
        self.moves(Move { to: get.local, from: there, len: get.len, clear: None, slot: None, raise: None });
        self.buffers.push((get.local, get.len));
        Ok(())
    }

    /// Asks the agent, for each part that the lane's stage has room for, and waits until it is done: what is
    /// behind a put finds it in the peer's memory.
    fn by_agent(&mut self, peer: &Peer, what: &Put, puts: bool) {
        let layout = self.core.shared.layout;
        let (asks, done) = (layout.job(self.lane), layout.job_done(self.lane));
        let stage = peer.words.at() + layout.stage_at(self.lane);
        if let Some(agent) = &peer.agent {
            agent.asks();
        }
        let mut begin = 0;
        while begin < what.len {
            let (local, len) = (what.local + begin, (what.len - begin).min(layout.stage()));
            let offset = what.offset + begin as u64;
            begin += len;
            let signal = what.signal.filter(|_| begin == what.len);
            let how = if puts { signal.map_or(0, |n| n + 1) } else { GETS };
            let words = [
                (REGION, what.region),
                (OFFSET, offset as u32),
                (OFFSET + 4, (offset >> 32) as u32),
                (WHAT, how),
            ];
            let to = |byte| place(peer.places.peer, asks, byte);
            self.ops(words.map(|(byte, value)| Op::Store32 { to: to(byte), value }));
            let raised = Raise { line: asks, length: len as u32 };
            if !puts {
                self.ops(raise(peer, &raised));
                self.take(peer, Kind::Get, done);
                self.moves(Move { to: local, from: stage, len, clear: Some(done), slot: None, raise: None });
                continue;
            }
            let clear = signal.map(|n| layout.signal_credit(n));
            if let Some(credit) = clear {
                self.take(peer, Kind::Put, credit);
            }
            self.moves(Move { to: stage, from: local, len, clear, slot: None, raise: Some(raised) });
            self.take(peer, Kind::Put, done);
            self.moves(Move { to: 0, from: 0, len: 0, clear: Some(done), slot: None, raise: None });
        }
    }

    /// Adds a wait for a signal of the peer's.
    pub fn wait(&mut self, signal: u32) -> Result<(), Error> {
        let core = self.core.clone();
        let peer = core.shared.peer()?;
        let line = self.signal(signal)?;
        self.room(1)?;
        if peer.direct.is_some() {
            self.passes(Pass::word(Some((Kind::Wait, line)), None));
            return Ok(());
        }
        self.take(peer, Kind::Wait, line);
        // Nothing is moved: the word is cleared, and that the wait has passed is counted.
        self.moves(Move { to: 0, from: 0, len: 0, clear: Some(line), slot: None, raise: None });
        Ok(())
    }

    /// Adds the acknowledgement of a signal: the peer may put again.
    pub fn acknowledge(&mut self, signal: u32) -> Result<(), Error> {
        let core = self.core.clone();
        let peer = core.shared.peer()?;
        self.signal(signal)?;
        self.room(1)?;
        self.is_behind_waits = self.lane == SENDS;
        if peer.direct.is_some() {
            self.passes(Pass::word(None, Some(core.shared.layout.signal_credit(signal))));
            return Ok(());
        }
        self.ops(raise(peer, &Raise { line: core.shared.layout.signal_credit(signal), length: 0 }));
        Ok(())
    }

    /// Refuses while an execution is under way that was queued in a stream.
    pub fn is_unused(&self) -> Result<(), Error> {
        match self.core.is_idle(self.lane) {
            true => Ok(()),
            false => Err(Error::Busy("a stream has not executed the list yet: wait for the stream")),
        }
    }

    /// Refuses also while a graph or an instance of one has the list, where the driver says so (CUDA 11.3).
    /// It says the end of one a moment later: this waits for it.
    pub fn is_free(&self) -> Result<(), Error> {
        self.is_unused()?;
        let began = Instant::now();
        while self.core.is_held(self.lane) {
            if began.elapsed() >= LET_GO {
                return Err(Error::Busy("a graph or an instance of one has the list: destroy it first"));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// The line of a signal.
    fn signal(&self, signal: u32) -> Result<u32, Error> {
        let layout = self.core.shared.layout;
        if signal >= layout.signals {
            return Err(Error::Invalid("no such signal: open the endpoint with more signals"));
        }
        Ok(layout.signal(signal))
    }

    fn room(&mut self, needed: usize) -> Result<(), Error> {
        let room = self.entries - self.used;
        if needed > room {
            return Err(Error::NoSpace { needed, room, what: "operations" });
        }
        self.used += needed;
        Ok(())
    }

    /// Has room for so many more items.
    fn items_for(&mut self, items: usize) -> Result<(), Error> {
        let reserved = self.items.try_reserve(items);
        reserved.map_err(|_| Error::Os(std::io::Error::from_raw_os_error(libc::ENOMEM)))
    }

    /// Waits until the peer has raised the word of a line, and says in the lane's word that it does. The move
    /// behind it clears both.
    fn take(&mut self, peer: &Peer, kind: Kind, line: u32) {
        let at = place(peer.places.lanes, self.lane, AT);
        let word = place(peer.places.own, line, 0);
        self.ops([
            Op::Store32 { to: at, value: code(kind, line) },
            Op::Poll { at: word, until: Until::And, value: 1 },
        ]);
    }

    pub(crate) fn ops(&mut self, ops: impl IntoIterator<Item = Op>) {
        match self.items.last_mut() {
            Some(Item::Ops(all)) => all.extend(ops),
            _ => self.items.push(Item::Ops(ops.into_iter().collect())),
        }
    }

    fn passes(&mut self, p: Pass) {
        self.items.push(Item::Pass(p));
    }

    /// One kernel, which has the acknowledgement that is right before it, too.
    fn put_between_devices(&mut self, peer: &Peer, put: &Put, to: usize) {
        let layout = self.core.shared.layout;
        let wait = put.signal.map(|signal| (Kind::Put, layout.signal_credit(signal)));
        let raise = put.signal.map(|signal| layout.signal(signal));
        let (at, len) = (put.local, put.len);
        let slots = Slots::spread(to, len, peer.put_blocks(len, wait.is_some()));
        let acknowledges = match self.items.last() {
            Some(Item::Pass(p)) => p.only_raises(),
            _ => None,
        };
        if acknowledges.is_some() {
            self.items.pop();
        }
        self.passes(Pass { at, len, sends: true, slots, wait, raise, checks: false, acknowledges });
    }

    fn moves(&mut self, m: Move) {
        self.items.push(Item::Move(m));
    }
}

impl Drop for List {
    fn drop(&mut self) {
        let lane = self.lane;
        // A lane that is still used is not given to another list.
        let is_free = || self.core.is_idle(lane) && !self.core.is_held(lane);
        if lane != SENDS && lane != RECEIVES && (lane as usize) < LANES && is_free() {
            self.core.state().taken[lane as usize] = false;
        }
    }
}

fn buffer(at: usize, len: usize) -> Result<(), Error> {
    if at == 0 && len > 0 || at.checked_add(len).is_none() {
        return Err(Error::Invalid("no memory can be at this address: pass an address and a length"));
    }
    Ok(())
}

const TOO_LONG: &str =
    "the message would take more than 1048576 slots: pass its length, or open both sides with longer slots";
const TOO_LONG_BY_AGENT: &str = "an agent carries a put or a get in parts of slot_bytes, 64 KiB at most, and this one has more than 1048576: \
                                 pass its length, or divide it";

/// How many parts of so many bytes there are, at least one.
fn parts(len: usize, most: usize, too_long: &'static str) -> Result<usize, Error> {
    let parts = len.div_ceil(most).max(1);
    if parts > MOST_PARTS { Err(Error::Invalid(too_long)) } else { Ok(parts) }
}

/// What raises a line of the peer's.
pub(crate) fn raise(peer: &Peer, raise: &Raise) -> [Op; 3] {
    let at = |byte| place(peer.places.peer, raise.line, byte);
    [
        Op::Store32 { to: at(LENGTH), value: raise.length },
        Op::Fence(Fence::RELEASE),
        Op::Store32 { to: at(0), value: 1 },
    ]
}

/// Where the peer's memory is here.
fn remote<'c>(core: &'c Core, put: &Put) -> Result<(&'c Peer, usize), Error> {
    let peer = core.shared.peer()?;
    buffer(put.local, put.len)?;
    if put.len == 0 {
        // A signal alone takes no registration.
        return Ok((peer, 0));
    }
    let found = peer.regions.get(put.region as usize);
    let (at, len) = found.ok_or(Error::Invalid("the peer has no such registration: register it there"))?;
    let inside = put.offset.checked_add(put.len as u64).is_some_and(|end| end <= *len);
    if !inside {
        return Err(Error::Invalid("the range is not inside of the peer's registration"));
    }
    Ok((peer, at + put.offset as usize))
}

#[cfg(test)]
mod tests;
